"""Arrays that a scalar with a type of its own makes wider."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._numerics._integers import is_float
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Frame, frames, is_internal, is_users
from lox._audit._origins import Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

WIDENED = Kind(
    "LOX807",
    "warning",
    "A scalar of NumPy widens an array",
    "Write a number of Python, as in x / math.sqrt(d) or x * float(scale), or give the scalar the type of the array: "
    "jnp.asarray(scale, x.dtype). Where the wider type is meant, say so: x.astype(jnp.float32).",
    "Numbers leave to arrays the type that they have.",
    "The dtypes of operands and result were compared where scalars of NumPy meet arrays.",
)


def widened(audited: Audited) -> Iterator[Finding | Held]:
    """LOX807: an operation converts an array because a number in it has a wider type."""
    origins, around = audited.origins, _around(audited)
    for step, location in audited.of("add", "sub", "mul", "div", "max", "min", "pow", "select_n"):
        if not is_float(step.outputs[0]) or not is_users(location.file):
            continue
        numbers = [number for value in step.inputs if _is_number(number := _number(value, step, origins))]
        arrays = [before for value in step.inputs if (before := _before(value, step)) is not None]
        if not numbers:
            continue
        if not arrays:
            yield WIDENED.fine(location)
        elif _is_written(step, around) and not _is_narrowed(step, around, audited):
            number, before, after = numbers[0], arrays[0].aval, step.outputs[0].aval
            yield WIDENED.at(
                location,
                f"{number.fact.range.low:.4g} is a {number.aval.dtype} here, and makes {after.str_short()} of "
                f"{before.str_short()}: a scalar of NumPy or JAX has a type of its own, while a number of Python takes "
                f"that of the array.",
            )


def _number(value: Value, step: Step, origins: Origins) -> Value:
    """What a step takes, before JAX gave it the shape of the other operands."""
    value = origins.of(value, frozenset())
    while (maker := value.maker) is not None and maker.equation.primitive in primitives("broadcast_in_dim"):
        if _callers(maker.equation) != _callers(step.equation):
            break
        value = origins.of(maker.inputs[0], frozenset())
    return value


def _is_number(value: Value) -> bool:
    """Whether a value is one number that is known."""
    return is_float(value) and not value.shape and value.number is not None


def _before(value: Value, step: Step) -> Value | None:
    """What a value was, if it is an array of floats that the call that a step is of converted to more digits."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in primitives("convert_element_type"):
        return None
    (before,) = maker.inputs
    if not is_float(before) or not before.shape:
        return None
    wider = before.aval.dtype.itemsize < value.aval.dtype.itemsize
    return before if wider and _callers(maker.equation) == _callers(step.equation) else None


def _is_written(step: Step, around: Mapping[Step, Step]) -> bool:
    """Whether a step is an operation that somebody wrote, rather than a detail of another function of JAX."""
    if _called(step.equation) not in _operations():
        return False
    return bool(_callers(step.equation)) or (step in around and _is_written(around[step], around))


def _is_narrowed(step: Step, around: Mapping[Step, Step], audited: Audited) -> bool:
    """Whether a result is only converted back."""
    (result,) = step.outputs
    while step in around and result in around[step].blocks[0].outputs and not _callers(step.equation):
        step = around[step]
        result = step.outputs[step.blocks[0].outputs.index(result)]
    back = [
        each
        for each, _ in audited.of("convert_element_type")
        if each.inputs[0] is result and each.outputs[0].aval.dtype.itemsize < result.aval.dtype.itemsize
    ]
    return len(back) == result.uses


def _around(audited: Audited) -> dict[Step, Step]:
    """The call in which each step is."""
    calls = (step for step, _ in audited.steps if len(step.blocks) == 1)
    return {inner: step for step in reversed([*calls]) for inner in step.blocks[0].steps}


def _callers(equation: Any) -> tuple[Frame, ...]:
    """Where the functions outside JAX were that led to an equation; of what JAX has jitted, nowhere."""
    return tuple(itertools.dropwhile(lambda frame: is_internal(frame.file), frames(equation)))


def _called(equation: Any) -> tuple[CodeType, ...]:
    """What was called of JAX where an equation came about; operators are called through what all have in common."""
    inside = itertools.takewhile(lambda frame: is_internal(frame.file) and frame.file != __file__, frames(equation))
    return tuple(frame.code for frame in inside)[-2:]


@functools.cache
def _operations() -> frozenset[tuple[CodeType, ...]]:
    """The functions of JAX through which operations on elements come about."""

    c = np.float32(2)

    def written(x: Any) -> Any:
        operators = (x + c, c + x, x - c, c - x, x * c, c * x, x / c, c / x, x**c, c**x)
        sums = (jnp.add(x, c), jnp.subtract(x, c), jnp.multiply(x, c), jnp.divide(x, c), jnp.power(x, c))
        return operators, sums, jnp.maximum(x, c), jnp.minimum(x, c), jnp.where(x > 0, x, c), jnp.clip(x, c, c)

    with jax.numpy_dtype_promotion("standard"):
        jaxpr = jax.make_jaxpr(written)(np.zeros(3, jnp.bfloat16))
    inside = [inner for equation in jaxpr.eqns if (inner := equation.params.get("jaxpr")) is not None]
    equations = [*jaxpr.eqns, *(equation for inner in inside for equation in inner.eqns)]
    return frozenset(map(_called, equations))


KINDS = (WIDENED,)
CHECKS = (widened,)
