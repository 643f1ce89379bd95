"""Random programs, by Hypothesis."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from lox.testing._hypothesis import strategies as st
from lox.testing._program import (
    DTYPES,
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
    "context",
    "spool",
    "tap",
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
    "shard_map",
)
"""The constructs of a program, besides logs and arithmetic."""

TAGS = ("metric", "debug")
UNVARYING = ("constant", "empty")
"""Values that are the same on all devices, so that their key has no axis for devices."""


def programs(
    *,
    depth: int = 3,
    constructs: Iterable[str] = CONSTRUCTS,
    values: Iterable[str] = tuple(VALUES),
    dtypes: Iterable[str] = DTYPES,
    length: int = 3,
) -> st.SearchStrategy[Program]:
    """Return a Hypothesis strategy of programs that log.

    A program is a function of `x`, floats of any shape, and `n`, an integer from 0 to 6. It shrinks to few and simple
    statements, and prints as the Python that it runs.

    Args:
        depth: How deep statements nest.
        constructs: What they are made of, of `lox.testing.CONSTRUCTS`.
        values: What they log, of `lox.testing.VALUES`.
        dtypes: The dtypes that `x` is also logged in, of `lox.testing.DTYPES`.
        length: The greatest number of statements in a sequence, iterations of a loop, batch elements, and devices of a
            `shard_map`, which has no more than there are.

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
    constructs, values, dtypes = (
        _names(*given) for given in (("constructs", constructs), ("values", values), ("dtypes", dtypes))
    )
    for name, chosen, known in (
        ("constructs", constructs, CONSTRUCTS),
        ("values", values, tuple(VALUES)),
        ("dtypes", dtypes, DTYPES),
    ):
        for item in chosen:
            if item not in known:
                raise ValueError(f"{name} must be among {', '.join(known)}; got {item!r}.")
    for name, number, least in (("depth", depth, 0), ("length", length, 1)):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {number!r}.")
    if not values and not dtypes:
        raise ValueError("A program must log something: values and dtypes are empty.")
    grammar = _Grammar(constructs, (*values, *dtypes), length)
    return _programs(grammar, depth)


# Hypothesis prints the values of a function like these by their own repr, and the function by its name and arguments.
@st.composite
def _programs(draw: st.DrawFn, grammar: _Grammar, depth: int) -> Program:
    return Program(draw(_bodies(grammar, depth, _Around()).filter(_logs)))


@st.composite
def _bodies(draw: st.DrawFn, grammar: _Grammar, depth: int, around: _Around) -> Body:
    return tuple(draw(st.lists(grammar.statements(depth, around), min_size=1, max_size=grammar.length)))


def _names(option: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, Iterable):
        raise ValueError(f"{option} must be a name or names, got {names!r}.")
    return tuple(names)


def _logs(body: Body) -> bool:
    return any(isinstance(statement, Log) for statement in Program(body).statements())


@dataclasses.dataclass(frozen=True)
class _Around:
    """The surroundings of a statement, as far as they say what may be inside.

    Attributes:
        lanes: A name for the batches, that the keys inside begin with: a key has one shape wherever it is logged.
        forward: Whether it is differentiated in forward mode.
        reverse: Whether it is differentiated in reverse mode.
        sharded: Whether it runs on several devices.
    """

    lanes: str = ""
    forward: bool = False
    reverse: bool = False
    sharded: bool = False

    def forbidden(self) -> Iterator[str]:
        if self.forward:  # JAX has no forward mode of it.
            yield "custom_vjp"
        if self.sharded:
            yield "shard_map"
        if self.lanes.count("/") == 2:
            yield from ("vmap", "shard_map")

    def cuts(self) -> st.SearchStrategy[bool]:
        """Tell whether a loop cuts derivatives off."""
        return st.booleans() if self.forward and not self.reverse else st.just(True)


class _Grammar:
    """The strategies of statements."""

    def __init__(self, constructs: tuple[str, ...], values: tuple[str, ...], length: int):
        self._constructs, self._values, self.length = constructs, values, length

    def __repr__(self) -> str:
        return f"<programs of {', '.join(self._constructs)}>"

    @functools.cache  # noqa: B019  (a grammar lives as long as its strategy)
    def statements(self, depth: int, around: _Around) -> st.SearchStrategy[Statement]:
        allowed = [name for name in self._constructs if name not in around.forbidden()] if depth else []
        return st.one_of(self._logs(around), _updates, *(self._compound(name, depth, around) for name in allowed))

    def _logs(self, around: _Around) -> st.SearchStrategy[Log]:
        # A key has one shape and one set of counters wherever it is logged, hence its name.
        def log(letter: str, value: str, tags: tuple[str, ...], others: list[str], where: str) -> Log:
            beside = tuple((f"{letter}/{other}", other) for other in others if other != value)
            name, prefix = f"{letter}/{value}", around.lanes
            return Log(name, value, tags, steps=letter == "a", prefix=prefix, beside=beside, where=where)

        values = [value for value in self._values if not (around.sharded and value in UNVARYING)]
        tags = st.sampled_from([(), *((tag,) for tag in TAGS), TAGS])
        value = st.sampled_from(values or ["x"])
        logs = [st.builds(log, st.sampled_from("ab"), value, tags, _few(value), st.sampled_from(["", "odd"]))]
        if arrays := [value for value in values if value == "x" or value in DTYPES]:
            array = st.sampled_from(arrays)
            logs.append(st.builds(log, st.just("c"), array, tags, _few(array), st.just("each")))
        return st.one_of(*logs)

    def _compound(self, name: str, depth: int, around: _Around) -> st.SearchStrategy[Statement]:
        def inner(**changed: Any) -> st.SearchStrategy[Body]:
            return _bodies(self, depth - 1, dataclasses.replace(around, **changed))

        def lanes(name: str, size: int, **changed: Any) -> st.SearchStrategy[Body]:
            return inner(lanes=f"{around.lanes}{name}{size}/", **changed)

        length = self.length
        match name:
            case "scan":
                return st.builds(Scan, st.integers(0, length), inner(), st.booleans(), st.integers(1, 2))
            case "while_loop":
                test = st.one_of(st.just(()), inner())
                return st.builds(While, st.integers(1, length + 1), inner(), test, cut=around.cuts())
            case "fori_loop":
                return st.builds(While, st.integers(1, length + 1), inner(), fori=st.just(True), cut=around.cuts())
            case "cond" | "switch":
                number = 2 if name == "cond" else 3
                branch = st.one_of(st.just(()), inner())
                return st.builds(Branch, st.tuples(*[branch] * number), st.sampled_from(["n", "i"]))
            case "grad" | "vjp":
                return st.builds(Derivative, st.just(name), inner(reverse=True))
            case "jvp" | "linearize":
                return st.builds(Derivative, st.just(name), inner(forward=True))
            case "vmap":
                axis = st.sampled_from([0, -1])
                return st.one_of(
                    *(st.builds(Vmap, st.just(size), lanes("lanes", size), axis) for size in sorted({1, length}))
                )
            case "shard_map":
                size = min(length, jax.device_count())
                return st.builds(Vmap, st.just(size), lanes("shards", size, sharded=True), sharded=st.just(True))
            case "strip" | "keep" | "context":
                return st.builds(Call, st.just(name), inner(), st.sampled_from(TAGS))
        return st.builds(Call, st.just(name), inner())


def _few(value: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(value, max_size=2, unique=True)


_numbers = st.sampled_from([0.25, 0.5, -0.75, 1.0])
_updates = st.builds(Update, _numbers, _numbers, st.integers(0, 6))
