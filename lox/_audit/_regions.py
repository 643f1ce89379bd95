"""How what an equation runs is wired: which of its values go into that and come out of it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

from lox import _compat
from lox._audit._rules import primitives
from lox._logs_in import jaxprs_in

Kind = Literal["call", "branch", "body", "condition", "apart"]
"""What a region is. One that is "apart" is called with values that no operand or result is, as that of a reduction."""

Role = Literal["in", "carry", "each", "out", "stacked"]
"""What a value is to a region: one that it gets or gives once, or of each iteration a part."""


class Port(NamedTuple):
    """Where a value goes into a region or comes out of it.

    Attributes:
        place: That of the operand, or of the result, of the step.
        role: What it is to the region.
    """

    place: int
    role: Role


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """How a region is wired.

    Attributes:
        kind: What the region is.
        jaxpr: What it runs.
        inputs: For each of its inputs where it comes from; of what is apart, nothing.
        outputs: For each of its outputs where it goes to; of a condition and of what is apart, nothing.
    """

    kind: Kind
    jaxpr: Any
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()

    @property
    def carried(self) -> list[int]:
        """The places of the inputs that come from the iteration before. The first outputs of a body are the next."""
        return [place for place, port in enumerate(self.inputs) if port.role == "carry"]


def ports_of(equation: Any) -> tuple[Ports, ...]:
    """How what an equation runs is wired: of a while loop the condition and the body, of others as JAX has them."""
    primitive, params = equation.primitive, equation.params
    inner = list(jaxprs_in(params)) if params else []
    if not inner:
        return ()
    taken, given = len(equation.invars), len(equation.outvars)
    if primitive in primitives("scan"):
        consts, carry = _compat.scan_counts(params)
        inputs = _ports((consts, "in"), (carry, "carry"), (taken - consts - carry, "each"))
        return (Ports("body", params["jaxpr"], inputs, _ports((carry, "carry"), (given - carry, "stacked"))),)
    if primitive in primitives("while"):
        first, second = params["cond_nconsts"], params["body_nconsts"]
        every = _ports((first, "in"), (second, "in"), (given, "carry"))
        carry_in = every[first + second :]
        condition = Ports("condition", params["cond_jaxpr"], (*every[:first], *carry_in))
        inputs = (*every[first : first + second], *carry_in)
        return condition, Ports("body", params["body_jaxpr"], inputs, _ports((given, "carry")))
    if primitive in primitives("cond"):
        inputs, outputs = _ports((taken, "in"))[1:], _ports((given, "out"))
        return tuple(Ports("branch", branch, inputs, outputs) for branch in params["branches"])
    if len(inner) == 1 and _is_called(equation, inner[0]):
        return (Ports("call", inner[0], _ports((taken, "in")), _ports((given, "out"))),)
    return tuple(Ports("apart", jaxpr) for jaxpr in inner)


def _ports(*parts: tuple[int, Role]) -> tuple[Port, ...]:
    roles = [role for count, role in parts for _ in range(count)]
    return tuple(Port(place, role) for place, role in enumerate(roles))


def _is_called(equation: Any, jaxpr: Any) -> bool:
    """Whether what an equation runs takes its operands and returns its results, other than that of a reduction does."""
    outside = [[var.aval for var in each] for each in (equation.invars, equation.outvars)]
    inside = [_compat.in_avals(jaxpr), _compat.out_avals(jaxpr)]
    return [list(map(_axes, each)) for each in outside] == [list(map(_axes, each)) for each in inside]


def _axes(aval: Any) -> int:
    return getattr(aval, "ndim", 0)
