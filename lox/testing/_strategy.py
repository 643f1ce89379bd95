"""Random programs, by Hypothesis."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from hypothesis import strategies as st

from lox.testing._program import (
    VALUES,
    Body,
    Branch,
    Call,
    Derivative,
    Log,
    Program,
    Scan,
    Statement,
    Update,
    Vmap,
    While,
)

CONSTRUCTS = (
    "jit",
    "checkpoint",
    "custom_jvp",
    "custom_vjp",
    "strip",
    "keep",
    "scan",
    "while_loop",
    "fori_loop",
    "cond",
    "switch",
    "grad",
    "vjp",
    "jvp",
    "linearize",
    "vmap",
)
"""What a program can be made of, besides logs and arithmetic."""

TAGS = ("metric", "debug")
LANES = "lanes"


def programs(
    *,
    depth: int = 3,
    constructs: Iterable[str] = CONSTRUCTS,
    values: Iterable[str] = tuple(VALUES),
    length: int = 3,
) -> st.SearchStrategy[Program]:
    """A Hypothesis strategy of programs that log.

    A program is a function of `x`, floats of any shape, and `n`, an integer from 0 to 6. It shrinks to few and simple
    statements, and prints as the Python that it runs.

    Args:
        depth: How deep statements nest.
        constructs: What they are made of, of `lox.testing.CONSTRUCTS`.
        values: What they log, of `lox.testing.VALUES`.
        length: The greatest number of statements in a sequence, of iterations of a loop, and of lanes.

    Returns:
        The strategy.

    Raises:
        ValueError: An option is none of the above.

    >>> from hypothesis import given
    >>> import lox
    >>> from lox.testing import programs
    >>> @given(programs(depth=1, constructs=["scan"]))
    ... def test_a_handler_changes_no_result(program):
    ...     assert lox.spool(program)(1.0, 2)[0] == program(1.0, 2)
    """
    constructs, values = tuple(constructs), tuple(values)
    for name, chosen, known in (("constructs", constructs, CONSTRUCTS), ("values", values, tuple(VALUES))):
        for item in chosen:
            if item not in known:
                raise ValueError(f"{name} must be among {', '.join(known)}; got {item!r}.")
    for name, number, least in (("depth", depth, 0), ("length", length, 1)):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {number!r}.")
    if not values:
        raise ValueError("A program must log something: values is empty.")
    grammar = _Grammar(constructs, values, length)
    return grammar.bodies(depth, ()).filter(_logs).map(Program)


def _logs(body: Body) -> bool:
    return any(isinstance(statement, Log) for statement in Program(body).statements())


class _Grammar:
    """The strategies of statements; `inside` says which constructs are around them."""

    def __init__(self, constructs: tuple[str, ...], values: tuple[str, ...], length: int):
        self._constructs, self._values, self._length = constructs, values, length

    @functools.cache  # noqa: B019  (a grammar lives as long as its strategy)
    def bodies(self, depth: int, inside: tuple[str, ...]) -> st.SearchStrategy[Body]:
        return st.lists(self._statements(depth, inside), min_size=1, max_size=self._length).map(tuple)

    def _statements(self, depth: int, inside: tuple[str, ...]) -> st.SearchStrategy[Statement]:
        simple = [self._logs(inside), _updates]
        compound = [self._compound(name, depth, inside) for name in self._allowed(depth, inside)]
        return st.one_of(*simple, *compound)

    def _allowed(self, depth: int, inside: tuple[str, ...]) -> list[str]:
        if depth == 0:
            return []
        forbidden = {"custom_vjp"} if {"jvp", "linearize"} & set(inside) else set()  # JAX has no forward mode of it.
        if self._lanes(inside):  # Lanes of lanes are in the batches around a program.
            forbidden |= {"vmap"}
        return [name for name in self._constructs if name not in forbidden]

    def _logs(self, inside: tuple[str, ...]) -> st.SearchStrategy[Log]:
        # A key has one shape and one set of counters wherever it is logged, hence its name.
        def log(letter: str, value: str, tags: tuple[str, ...]) -> Log:
            return Log(f"{self._lanes(inside)}{letter}/{value}", value, tags, steps=letter == "a")

        tags = st.sampled_from([(), *((tag,) for tag in TAGS), TAGS])
        return st.builds(log, st.sampled_from("ab"), st.sampled_from(self._values), tags)

    @staticmethod
    def _lanes(inside: tuple[str, ...]) -> str:
        return next((f"{name}/" for name in inside if name.startswith(LANES)), "")

    def _compound(self, name: str, depth: int, inside: tuple[str, ...]) -> st.SearchStrategy[Statement]:
        forward = name in ("jvp", "linearize") and name not in inside
        inner = self.bodies(depth - 1, (*inside, name) if forward else inside)
        few = st.integers(0, self._length)
        match name:
            case "scan":
                return st.builds(Scan, few, inner, st.booleans(), st.integers(1, 2))
            case "while_loop":
                test = st.one_of(st.just(()), inner)
                return st.builds(While, st.integers(1, self._length + 1), inner, test)
            case "fori_loop":
                return st.builds(While, st.integers(1, self._length + 1), inner, fori=st.just(True))
            case "cond" | "switch":
                number = 2 if name == "cond" else 3
                branch = st.one_of(st.just(()), inner)
                return st.builds(Branch, st.tuples(*[branch] * number), st.sampled_from(["n", "i"]))
            case "grad" | "vjp" | "jvp" | "linearize":
                return st.builds(Derivative, st.just(name), inner)
            case "vmap":
                inner_of = {size: self.bodies(depth - 1, (*inside, f"{LANES}{size}")) for size in (1, self._length)}
                return st.one_of(*(st.builds(Vmap, st.just(size), inner) for size, inner in inner_of.items()))
            case "strip" | "keep":
                return st.builds(Call, st.just(name), inner, st.sampled_from(TAGS))
        return st.builds(Call, st.just(name), inner)


_numbers = st.sampled_from([0.25, 0.5, -0.75, 1.0])
_updates = st.builds(Update, _numbers, _numbers, st.integers(0, 6))
