"""Loops whose iterations do not go on from each other, since nothing in them reads what is carried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._location import transformations
from lox._audit._loops import Scan, loop_of, reached
from lox._audit._needs import read
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_AS_IT_IS = primitives("convert_element_type", "copy")
_TIMES_A_NUMBER = primitives("mul", "neg")


def restarted(audited: Audited, step: Step, carried: Mapping[Value, str]) -> str:
    """The mistake in the values that no iteration reads, as a sentence; empty if there is none.

    Args:
        audited: The function.
        step: The loop.
        carried: What an iteration gets of what changes, with its name.
    """
    loop, names = loop_of(step), {inside: name for inside, name in carried.items() if not name.startswith("_")}
    used = {value for block in step.blocks for value in read(block)}
    asked = [crossed.outside for region in step.regions[:-1] for crossed in region.carried if crossed.inside in used]
    carry = [each for each in loop.carry if each[1] in names]
    unread = [each for each in carry if each[1] not in used and each[0] not in asked]
    if not unread or "transpose" in transformations(step.equation):
        return ""
    again = next(_from_the_start(audited, loop, unread, used), None)
    if again is not None:
        return (
            f"Each iteration of a loop computes {names[again]} from the value that it had before the loop, and none "
            f"reads {names[again]} of its carry: the iterations do not go on from each other."
        )
    last = next(_last_of_a_mean(audited, step, unread), None)
    if last is None:
        return ""
    return (
        f"A loop of {step.equation.params['length']} iterations begins with {names[last]} = 0 and does not add to it: "
        "what comes out is that of the last iteration, and is divided by their number."
    )


def _from_the_start(
    audited: Audited, loop: Scan, unread: list[tuple[Value, Value, Value]], used: set[Value]
) -> Iterator[Value]:
    """The values that are computed from what they were before the loop, which the body closes over."""
    body, consts = loop.body, [(audited.origins.of(outside, _AS_IT_IS), inside) for outside, inside in loop.consts]
    anew: dict[Value, set[Value]] = {}
    for outside, inside, _ in loop.carry:
        start = audited.origins.of(outside, _AS_IT_IS)
        again = {own for whole, own in consts if whole is start}
        anew[inside] = reached(body, again) if again else set()
    if any(inside in used and new in anew[inside] and new is not inside for _, inside, new in loop.carry):
        return  # A search or an iteration to a fixed point, which knows where it began.
    changing = [each for each in loop.carry if each[1] is not each[2]]
    scanned = reached(body, (inside for _, inside in loop.xs if _is_data(inside)))
    varying = reached(body, (inside for _, inside in loop.xs))
    for _, inside, new in unread:
        if new not in anew[inside]:
            continue
        by = [each for each in changing if each[1] is not inside and new in reached(body, {each[1]})]
        is_fed = new in scanned or new not in varying
        if (not by and is_fed) or any(_goes_on(loop, new, each) for each in by):
            yield inside


def _is_data(value: Value) -> bool:
    """Say whether what is scanned is made of vectors of numbers, and not of counters, keys or sizes of steps."""
    return bool(value.shape) and jnp.issubdtype(value.aval.dtype, jnp.inexact)


def _goes_on(loop: Scan, new: Value, other: tuple[Value, Value, Value]) -> bool:
    """Say whether another array of the carry, of the same shape, is updated by a value, as parameters by a momentum."""
    _, inside, after = other
    is_alike = bool(new.shape) and inside.shape == new.shape and jnp.issubdtype(inside.aval.dtype, jnp.inexact)
    return is_alike and after in reached(loop.body, {inside}) & reached(loop.body, {new})


def _last_of_a_mean(audited: Audited, step: Step, unread: list[tuple[Value, Value, Value]]) -> Iterator[Value]:
    """The values that begin at zero, and whose last one is divided by the number of iterations."""
    length = step.equation.params.get("length", 0)
    results = dict(zip((inside for _, inside, _ in loop_of(step).carry), step.outputs, strict=False))
    for outside, inside, _ in unread if length > 2 else ():
        if outside.number == 0 and _is_divided(audited, results[inside], length):
            yield inside


def _is_divided(audited: Audited, value: Value, by: int, deep: int = 3) -> bool:
    """Say whether a value is divided by a number, perhaps after it was multiplied by others."""
    for user in audited.users.of(value) if deep else ():
        if user.equation.primitive in primitives("div") and user.inputs[1].number == by:
            return True
        is_scaled = user.equation.primitive in _TIMES_A_NUMBER and any(each.number is not None for each in user.inputs)
        if is_scaled and _is_divided(audited, user.outputs[0], by, deep - 1):
            return True
    return False
