"""Means of means whose counts differ: over the batch elements of a vmap, and over parts of one array."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._lanes._shards import QUOTIENTS
from lox._audit._checks._loops._accumulated import MEANS
from lox._audit._findings import Finding
from lox._audit._location import transformations
from lox._audit._origins import LAID_OUT
from lox._audit._program import Step, Value
from lox._audit._rules import primitives
from lox._audit._varying import SUMS, collective_axes

_SAME = LAID_OUT | primitives("convert_element_type")
_GUARDS = _SAME | primitives("max", "add", "clamp")
_MOST = 100
_UNEVEN = 0.75
"""Parts are of about one size if each has at least this fraction of the largest."""


def quotients(audited: Audited) -> Iterator[Finding]:
    """LOX305: a pmean in a vmap of sums that are divided by counts of their own."""
    for step, location in audited.steps:
        if step.equation.primitive not in SUMS or "transpose" in transformations(step.equation):
            continue
        axes = [axis for axis in collective_axes(step.equation) if isinstance(axis, int)]
        for value, result in zip(step.inputs, step.outputs, strict=True) if len(axes) == 1 else ():
            lanes = value.shape[axes[0]]
            means = (each for each in audited.users.of(result) if each.equation.primitive in primitives("div"))
            if any(each.inputs[1].number == lanes for each in means) and _is_quotient(audited, value):
                yield QUOTIENTS.at(
                    location,
                    f"What is averaged over the {lanes} batch elements of vmap is a sum divided by a sum of each: "
                    f"{value.text}. The mean of the quotients is not the quotient of the sums.",
                )


def _is_quotient(audited: Audited, value: Value) -> bool:
    maker = audited.origins.of(value, _SAME).maker
    if maker is None or maker.equation.primitive not in primitives("div"):
        return False
    return all(_is_sum(audited, each) and len(each.shape) for each in maker.inputs)


def _is_sum(audited: Audited, value: Value) -> bool:
    return audited.origins.leads_to(value, primitives("reduce_sum"), _GUARDS, _SAME)


def parts(audited: Audited) -> Iterator[Finding]:
    """LOX214: a mean of the means of some parts of an array, of which one has fewer elements."""
    for step, location in audited.of("div", "mul"):
        number = next((each.number for each in step.inputs[::-1] if each.number), None)
        if number is None or step.outputs[0].shape or "transpose" in transformations(step.equation):
            continue
        times = number if step.equation.primitive in primitives("div") else 1 / number
        terms = list(_terms(audited, step.inputs[0])) if 1 < times < _MOST and abs(times - round(times)) < 1e-3 else []
        if len(terms) != round(times):
            continue
        means = [_mean(audited, term) for term in terms]
        found = [mean for mean in means if mean is not None]
        counts = {count for _, count in found}
        few, many = min(counts, default=0), max(counts, default=0)
        is_uneven = len(found) == len(terms) and few < _UNEVEN * many
        if is_uneven and _is_of_one_array(audited, [total for total, _ in found]):
            yield MEANS.at(
                location,
                f"The means of {len(terms)} parts of one array are averaged, and have {few:g} to {many:g} elements: "
                "what is in a part with few elements weighs more.",
            )


def _terms(audited: Audited, value: Value) -> Iterator[Value]:
    """The numbers that a value is the sum of."""
    maker = audited.origins.of(value, _SAME).maker
    if maker is not None and maker.equation.primitive in primitives("add") and not value.shape:
        for each in maker.inputs:
            if each.number != 0:
                yield from (each,) if each.number is not None else _terms(audited, each)
    elif maker is not None and maker.equation.primitive in primitives("reduce_sum"):
        joined = audited.origins.of(maker.inputs[0], _SAME).maker
        is_joined = joined is not None and joined.equation.primitive in primitives("concatenate", "stack")
        yield from joined.inputs if joined is not None and is_joined else (value,)
    elif value.number != 0:
        yield value


def _mean(audited: Audited, value: Value) -> tuple[Step, float] | None:
    """The sum that a mean is made of, and the number that it is divided by."""
    maker = audited.origins.of(value, _SAME).maker
    if maker is None or maker.equation.primitive not in primitives("div"):
        return None
    total = audited.origins.of(maker.inputs[0], _SAME).maker
    count = maker.inputs[1].number
    is_sum = total is not None and total.equation.primitive in primitives("reduce_sum")
    return (total, count) if total is not None and is_sum and count else None


def _is_of_one_array(audited: Audited, totals: list[Step]) -> bool:
    """Say whether sums are of slices of one array that lie apart."""
    cut = [_slices(audited, total.inputs[0]) for total in totals]
    shared = set.intersection(*(set(each) for each in cut)) if cut else set()
    return any(len({each[array] for each in cut}) == len(cut) for array in shared)


def _slices(audited: Audited, value: Value) -> dict[Value, tuple[int, ...]]:
    """The arrays of which a value is computed from a slice, and where that begins."""
    found: dict[Value, tuple[int, ...]] = {}
    seen, left = set[Value](), [value]
    while left and len(seen) < _MOST:
        each = audited.origins.of(left.pop(), _SAME)
        if each in seen or each.maker is None:
            continue
        seen.add(each)
        if each.maker.equation.primitive in primitives("slice"):
            found[audited.origins.of(each.maker.inputs[0])] = tuple(each.maker.equation.params["start_indices"])
        elif each.maker.equation.primitive in primitives("split"):
            found[audited.origins.of(each.maker.inputs[0])] = (each.maker.outputs.index(each),)
        else:
            left += each.maker.inputs
    return found


def variances(audited: Audited) -> Iterator[Finding]:
    """LOX305: variances about the means of each replica are averaged, as are the means themselves."""
    summed = [(step, value, location) for step, location in audited.of("psum") for value in step.inputs]
    summed = [each for each in summed if "transpose" not in transformations(each[0].equation)]
    averaged = {array for _, value, _ in summed if (array := _averaged(audited, value)) is not None}
    for _, value, location in summed if averaged else ():
        array = _spread(audited, value)
        if array is not None and array in averaged:
            yield QUOTIENTS.at(
                location,
                f"The variances of {array.text}, each about the mean of its own replica, are averaged like these "
                "means: how far the means are apart is not in the result. Average (x - mean) ** 2 with the mean over "
                "all replicas.",
            )


def _averaged(audited: Audited, value: Value) -> Value | None:
    """The array that a value is the mean of, over some axes."""
    mean = _mean(audited, value)
    return None if mean is None else audited.origins.of(mean[0].inputs[0], _SAME)


def _spread(audited: Audited, value: Value) -> Value | None:
    """The array that a value is the variance of."""
    origins = audited.origins
    chosen = origins.of(value, _SAME).maker
    if chosen is not None and chosen.equation.primitive in primitives("select_n"):  # jnp.var asks for elements.
        value = next((each for each in chosen.inputs[1:] if each.number is None and _averaged(audited, each)), value)
    squares = _averaged(audited, value)
    square = squares.maker if squares is not None else None
    if square is None or square.equation.primitive not in primitives("square", "integer_pow", "mul"):
        return None
    difference = origins.of(square.inputs[0], _SAME).maker
    if difference is None or difference.equation.primitive not in primitives("sub"):
        return None
    array, mean = difference.inputs
    array = origins.of(array, _SAME)
    return array if _averaged(audited, mean) is array else None


CHECKS = (quotients, parts, variances)
