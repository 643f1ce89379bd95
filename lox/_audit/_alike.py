"""Finds values that are computed alike: by the same operations, of the same values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from lox import _compat
from lox._audit._attained import resolved
from lox._audit._dependence import Node, Place
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

V = TypeVar("V")
Made = Step | Place

_MOST_EQUATIONS = 60
"""Functions are compared by their texts up to so many equations."""

_DRAWS = primitives("random_bits", "random_split", "random_gamma")
"""Those of the same key are the same, and are compared by the checks of keys."""

_WITHOUT_MEANING = {"sharding", "jvp_jaxpr_fun", "num_consts", "symbolic_zeros"}
"""Parameters that do not change what is computed."""


class Computations(Generic[V]):
    """Numbers for values, which are the same for what is computed alike; made when they are asked for.

    Args:
        of: What tells the value itself from its other names, and what it is made by, if that is known.
        stand_for: Values, each with the one that it is taken for.
    """

    def __init__(
        self, of: Callable[[V], tuple[V, Made | None]], stand_for: Mapping[V, V] = MappingProxyType({})
    ) -> None:
        self._made_of = of
        self._stand_for = stand_for
        self._of: dict[V, int] = {}
        self._known: dict[Hashable, int] = {}

    def __getitem__(self, value: V) -> int:
        left = [value]
        while left:
            each = left[-1]
            missing = [] if each in self._of else [other for other in self._needs(each) if other not in self._of]
            if not missing:
                left.pop()
                if each not in self._of:
                    self._of[each] = self._number(each)
            left += missing
        return self._of[value]

    def _needs(self, value: V) -> list[V]:
        """The values whose numbers are needed for that of another one."""
        plain, made = self._made_of(value)
        if plain in self._stand_for:
            return [self._stand_for[plain]]
        return [] if made is None else [*made.inputs]

    def _number(self, value: V) -> int:
        plain, made = self._made_of(value)
        if plain in self._stand_for:
            return self._of[self._stand_for[plain]]
        return self._known.setdefault(self._key(plain, made), len(self._known))

    def _key(self, value: V, made: Made | None) -> Hashable:
        if made is None:
            known = value.value if isinstance(value, Node) else value
            is_number = isinstance(known, Value) and not known.shape and known.number is not None
            return (known.number, str(known.aval)) if isinstance(known, Value) and is_number else value
        equation = (made if isinstance(made, Step) else made.step).equation
        is_alone = equation.effects or equation.primitive in _DRAWS
        params = None if is_alone else params_of(equation)
        outputs: Sequence[Any] = made.outputs
        operands: Sequence[Any] = made.inputs
        inputs: Hashable = made if params is None else tuple(self._of[each] for each in operands)
        return equation.primitive, params, inputs, outputs.index(value)


def of_values() -> Computations[Value]:
    """The computations of values in blocks: what goes into a block is known by itself."""
    return Computations(lambda value: (value, value.maker))


def of_nodes(stand_for: Mapping[Node, Node] = MappingProxyType({})) -> Computations[Node]:
    """The computations of values where they are met, through calls.

    Args:
        stand_for: Values, each with the one that it is taken for.
    """

    def made(node: Node) -> tuple[Node, Place | None]:
        node = resolved(node)
        return node, node.place

    return Computations(made, stand_for)


def params_of(equation: Any) -> Hashable | None:
    """The parameters of an operation, functions as their texts; None if they cannot be compared."""
    given = equation.params
    if "call_jaxpr" in given:  # Of a custom rule, which is that of the function.
        given = {"call_jaxpr": given["call_jaxpr"]}
    params = [
        (name, _content(each) if hasattr(each, "eqns") else each)
        for name, each in sorted(given.items())
        if name not in _WITHOUT_MEANING
    ]
    try:
        hash(found := tuple(params))
    except TypeError:
        return None
    return found


def _content(jaxpr: Any) -> str | int:
    """The text of a short function, which is the same for what JAX has traced twice; the identity of another one."""
    opened = _compat.open_jaxpr(jaxpr)
    is_short = len(opened.eqns) <= _MOST_EQUATIONS and not list(getattr(opened, "constvars", ()))
    return str(opened) if is_short else id(opened)
