"""Loops whose iterations do not go on from each other, since nothing in them reads what is carried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._location import transformations
from lox._audit._loops import Scan, loop_of, reached
from lox._audit._needs import read
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._rules import primitives

_AS_IT_IS = primitives("convert_element_type", "copy")
_ADDED = primitives("add", "sub", "add_any")
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
    if "transpose" in transformations(step.equation):
        return ""
    stepped = next((inside for inside in _stepped(audited, loop) if inside in names), None)
    if stepped is not None:
        return (
            f"Each iteration of a loop adds to {names[stepped]} what it computes from the value that {names[stepped]} "
            "had before the loop, and not from what it is by then."
        )
    if not unread:
        return ""
    again = next(_from_the_start(audited, loop, unread, used), None)
    if again is not None:
        return (
            f"Each iteration of a loop computes {names[again]} from the value that it had before the loop, and none "
            f"reads {names[again]} of its carry: the iterations do not go on from each other."
        )
    alone = next(_put_out_alone(audited, loop, unread), None)
    if alone is not None:
        return (
            f"A loop carries {names[alone]} and puts it out, but no iteration reads that of the one before: each is "
            "computed from what is scanned alone."
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
    body, consts = loop.body, [(_start(audited, outside), inside) for outside, inside in loop.consts]
    starts = {inside: _start(audited, outside) for outside, inside, _ in loop.carry}
    anew: dict[Value, set[Value]] = {}
    for inside, start in starts.items():
        again = {own for whole, own in consts if whole is start}
        anew[inside] = reached(body, again) if again else set()
    alike = {starts[inside] for _, inside, _ in unread}
    read_too = [(inside, new) for _, inside, new in loop.carry if inside in used and starts[inside] not in alike]
    if any(new in anew[inside] and new is not inside for inside, new in read_too):
        return  # A search or an iteration to a fixed point, which knows where it began.
    is_counted = loop.step.equation.primitive in primitives("scan")
    changing = [each for each in loop.carry if each[1] is not each[2] and not (is_counted and _is_counter(each))]
    results = dict(zip(starts, loop.step.outputs, strict=False))
    scanned = reached(body, (inside for _, inside in loop.xs if _is_data(inside)))
    numbers = reached(body, (inside for _, inside in loop.xs if jnp.issubdtype(inside.aval.dtype, jnp.inexact)))
    varying = reached(body, (inside for _, inside in loop.xs))
    for _, inside, new in unread:
        if new not in anew[inside]:
            continue
        by = [each for each in changing if each[1] is not inside and new in reached(body, {each[1]})]
        is_last = results[inside] in audited.live and new in numbers  # As the state after the last control.
        is_fed = new in scanned or new not in varying or is_last
        if (not by and is_fed) or any(_goes_on(loop, new, each) or _is_updated(each, anew[inside]) for each in by):
            yield inside


def _start(audited: Audited, value: Value) -> Value:
    """The value from which a loop starts, before a vmap broadcasts it to each batch element."""
    value = audited.origins.of(value, _AS_IT_IS)
    while (maker := value.maker) is not None and maker.equation.primitive in primitives("broadcast_in_dim"):
        whole = audited.origins.of(maker.inputs[0], _AS_IT_IS)
        if whole.number is not None or not whole.shape or whole.shape != value.shape[1:]:
            break
        value = whole
    return value


def _is_counter(carried: tuple[Value, Value, Value]) -> bool:
    """Say whether what is carried is an integer that goes on by a number in each iteration."""
    _, inside, new = carried
    maker = new.maker
    is_integer = not inside.shape and jnp.issubdtype(inside.aval.dtype, jnp.integer)
    if not is_integer or maker is None or maker.equation.primitive not in _ADDED:
        return False
    return inside in maker.inputs and any(each.number is not None for each in maker.inputs)


def _is_data(value: Value) -> bool:
    """Say whether what is scanned is made of vectors of numbers, and not of counters, keys or sizes of steps."""
    return bool(value.shape) and jnp.issubdtype(value.aval.dtype, jnp.inexact)


def _goes_on(loop: Scan, new: Value, other: tuple[Value, Value, Value]) -> bool:
    """Say whether another array of the carry, of the same shape, is updated by a value, as parameters by a momentum."""
    _, inside, after = other
    is_alike = bool(new.shape) and inside.shape == new.shape and jnp.issubdtype(inside.aval.dtype, jnp.inexact)
    return is_alike and after in reached(loop.body, {inside}) & reached(loop.body, {new})


def _is_updated(other: tuple[Value, Value, Value], anew: set[Value]) -> bool:
    """Say whether other values of the carry are updated by what one was before the loop, as positions by momenta."""
    _, inside, after = other
    return bool(inside.shape) and jnp.issubdtype(inside.aval.dtype, jnp.inexact) and after in anew


def _stepped(audited: Audited, loop: Scan) -> Iterator[Value]:
    """The values that are a sum of what they were and of what is computed from what they were before the loop."""
    consts = [(_start(audited, outside), inside) for outside, inside in loop.consts if inside.shape]
    for outside, inside, new in loop.carry if consts else ():
        start = _start(audited, outside)
        again = {own for whole, own in consts if whole is start}
        if not again or new is inside or not jnp.issubdtype(inside.aval.dtype, jnp.inexact):
            continue
        terms = list(_terms(audited, new, {inside}))
        added = [term for term in terms if term is not inside]
        if len(added) != len(terms) - 1 or not reached(loop.body, {inside}).isdisjoint(added):
            continue
        if any(term in _computed(loop.body, again) for term in added):
            yield inside


def _terms(audited: Audited, value: Value, own: set[Value], deep: int = 6) -> Iterator[Value]:
    """The terms of a sum, without numbers that they are multiplied by."""
    maker = None if value in own else value.maker
    if maker is not None and is_call(maker):
        inner, block = value, maker.blocks[0]
        inner = block.outputs[maker.outputs.index(value)]
        inside = {each for each, outer in zip(block.inputs, maker.inputs, strict=True) if outer in own}
        outer = dict(zip(block.inputs, maker.inputs, strict=True))
        found = list(_terms(audited, inner, inside, deep - 1)) if deep else [inner]
        yield from (outer[each] for each in found) if all(each in outer for each in found) else (value,)
    elif deep and maker is not None and maker.equation.primitive in _ADDED:
        for each in maker.inputs:
            yield from _terms(audited, each, own, deep - 1)
    elif deep and maker is not None and maker.equation.primitive in _TIMES_A_NUMBER | _AS_IT_IS:
        for each in maker.inputs:
            if each.number is None:
                yield from _terms(audited, each, own, deep - 1)
    else:
        yield value


def _computed(body: Block, start: set[Value]) -> set[Value]:
    """The values of a body that are computed from some by more than sums and products with numbers."""
    linear = set(start)
    for step in body.steps:
        primitive = step.equation.primitive
        is_linear = primitive in _ADDED | _TIMES_A_NUMBER | _AS_IT_IS
        if is_linear and all(each in linear or each.number is not None for each in step.inputs):
            linear.update(step.outputs)
    return reached(body, start) - linear


def _put_out_alone(audited: Audited, loop: Scan, unread: list[tuple[Value, Value, Value]]) -> Iterator[Value]:
    """The values that are carried and put out as they are, of which only what is put out is used."""
    results = dict(zip((inside for _, inside, _ in loop.carry), loop.step.outputs, strict=False))
    onward = reached(loop.body, results) if unread else set()
    for _, inside, new in unread:
        is_number = jnp.issubdtype(inside.aval.dtype, jnp.inexact)
        if is_number and new in loop.ys and new not in onward and results[inside] not in audited.live:
            yield inside


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
