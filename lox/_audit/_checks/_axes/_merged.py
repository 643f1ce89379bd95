"""Axes that were merged in one order, and that are split, or meet others that were merged, in another order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import MEETING, RESHAPED
from lox._audit._checks._numerics._along import Along, sources
from lox._audit._findings import Finding
from lox._audit._labels import groups
from lox._audit._location import is_users, transformations
from lox._audit._naming import place_of, source_text
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_PARTS = re.compile(r"-1|mini|micro|chunk|fold|shard|device|block|patch|window|group|(num|n)_batches")
"""Sizes that nobody expects to be those of the axes before."""


def split_otherwise(audited: Audited) -> Iterator[Finding]:
    """LOX103: an axis that was merged of two is split in two whose sizes are exchanged."""
    for step, location in audited.of("reshape"):
        (value, *_), (result,) = step.inputs, step.outputs
        if "transpose" in transformations(step.equation) or not is_users(location.file) or result not in audited.live:
            continue
        if any(value.fact.labels):
            continue
        for old, new in groups(value.shape, result.shape):
            sizes = _long([result.shape[axis] for axis in new])
            if len([axis for axis in old if value.shape[axis] > 1]) != 1 or len(sizes) < 2:
                continue
            (axis,) = (axis for axis in old if value.shape[axis] > 1)
            found = (each for each in sources(Along(value, axis), audited.origins) if each.value.maker is not None)
            merged = [each for each in found if not each.offset and _is_other(_merged(each), sizes)]
            if merged and not _PARTS.search(_text(step)):
                yield RESHAPED.at(
                    location,
                    f"An axis that was made of two of sizes {_merged(merged[0])} is split here into {sizes}: a reshape "
                    "keeps the order of the elements, so that neither is what it was.",
                    severity="warning",
                )


def met_otherwise(audited: Audited) -> Iterator[Finding]:
    """LOX101: two axes meet that were made of two each, of the same sizes in another order."""
    made = {pair for step, _ in audited.of("reshape", "concatenate") for pair in _pairs(step)}
    lengths = {one * other for one, other in made if one != other and (other, one) in made}
    if not lengths:
        return
    for step, location in audited.of("add", "sub", "mul", "div", "max", "min"):
        one, other = step.inputs
        if "transpose" in transformations(step.equation) or not is_users(location.file) or one.shape != other.shape:
            continue
        for axis in (axis for axis, size in enumerate(one.shape) if size in lengths):
            labels = {each.fact.labels[axis] for each in (one, other)} - {None}
            if len(labels) > 1:
                continue
            orders = [_orders(each, axis, audited) for each in (one, other)]
            if len(orders[0]) == len(orders[1]) == 1 and _is_other(*(next(iter(each)) for each in orders)):
                yield MEETING.at(
                    location,
                    f"Axis {axis} of {one.text} was made of two of sizes {[*next(iter(orders[0]))]}, and that of "
                    f"{other.text} of {[*next(iter(orders[1]))]}: their elements are in another order.",
                    severity="warning",
                )
                break


def _pairs(step: Step) -> Iterator[tuple[int, int]]:
    (result,) = step.outputs
    for axis in range(len(result.shape)):
        if len(sizes := _merged(Along(result, axis))) == 2:
            yield sizes[0], sizes[1]


def _orders(value: Value, axis: int, audited: Audited) -> set[tuple[int, ...]]:
    """The sizes of the axes that were merged into this one, for each source of it that was merged."""
    found = (_merged(each) for each in sources(Along(value, axis), audited.origins) if not each.offset)
    return {tuple(sizes) for sizes in found if len(sizes) > 1}


def _is_other(before: Sequence[int], after: Sequence[int]) -> bool:
    return list(before) != list(after) and sorted(before) == sorted(after)


def _merged(here: Along) -> list[int]:
    """The sizes of the axes that a reshape merged into one, or the number and the size of what was joined."""
    maker = here.value.maker
    if maker is None:
        return []
    before = maker.inputs[0].shape
    if maker.equation.primitive in primitives("concatenate"):
        is_even = here.axis == maker.equation.params["dimension"] and {each.shape for each in maker.inputs} == {before}
        return _long([len(maker.inputs), before[here.axis]]) if is_even else []
    for old, new in groups(before, here.value.shape):
        if here.axis in new and len(_long([here.value.shape[axis] for axis in new])) == 1:
            return _long([before[axis] for axis in old])
    return []


def _long(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes if size != 1]


def _text(step: Step) -> str:
    place = place_of(step.equation)
    return "-1" if place is None else source_text(*place)


KINDS = ()
CHECKS = (split_otherwise, met_otherwise)
