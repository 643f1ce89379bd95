"""Attention in a loop to an array that the iterations fill, one place after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lox._audit._audited import Audited
from lox._audit._checks._numerics._attention import MASK, Attention, attentions
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._masks import CONVERTED, Mask, laid_out, masks_of, parts_of
from lox._audit._findings import Finding, Kind
from lox._audit._loops import Scan, scans
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

BEFORE = Kind(
    "LOX230",
    "warning",
    "A loop reads an array before it writes what the mask keeps",
    "Write first, and read the result: keys = keys.at[position].set(k) before the scores of the query with keys.",
)

_LAYOUT = FLOWS | primitives("transpose")
_WRITES = primitives("scatter", "dynamic_update_slice")
_SCALED = _LAYOUT | primitives("mul", "div")
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_MOST = 20


class Cache(NamedTuple):
    """An array that a loop carries and fills at a counter.

    Attributes:
        inside: What an iteration gets.
        new: What it carries on.
        counter: Where it writes.
        axis: Along which axis that is.
        is_empty: Whether it begins as zeros.
    """

    inside: Value
    new: Value
    counter: Value
    axis: int
    is_empty: bool


def caches(audited: Audited) -> Iterator[Finding]:
    """LOX230, and LOX816 where nothing masks what is not yet filled."""
    found = audited.once(attentions)
    known = [cache for scan, _ in scans(audited) for cache in _caches(audited, scan)] if found else []
    origins = audited.origins
    for attention in found if known else ():
        values = origins.of(attention.values, _LAYOUT)
        for cache in known:
            masks = list(masks_of(attention.squash.logits, attention.axis, origins))
            if values is cache.inside and cache.new is not cache.inside:
                if any(_keeps(mask, cache.counter, origins) for mask in masks):
                    yield BEFORE.at(
                        attention.location,
                        f"{cache.inside.called} is read here as the iteration before left it, and the mask keeps the "
                        "place that this iteration writes to: what is there is not yet written.",
                    )
            elif values is cache.new and cache.is_empty and _sums_over(attention, cache, origins):
                if not _is_plain(attention, origins):
                    continue
                yield MASK.at(
                    attention.squash.location,
                    f"Nothing masks the places of {cache.inside.called} that later iterations write to, which are "
                    "zero: their scores are zero, and they keep a weight.",
                )


def _caches(audited: Audited, scan: Scan) -> Iterator[Cache]:
    counters = {inside for outside, inside in scan.xs if _is_counted(outside, audited.origins)}
    counters |= {inside for _, inside, new in scan.carry if not inside.shape and _is_next(inside, new, audited.origins)}
    for outside, inside, new in scan.carry if counters else ():
        step = made_by(audited.origins.of(new, FLOWS), _WRITES)
        if step is None or not inside.shape or audited.origins.of(step.inputs[0], FLOWS) is not inside:
            continue
        for axis, place in _places(step):
            counter = audited.origins.index(place)
            if counter in counters:
                yield Cache(inside, step.outputs[0], counter, axis, outside.number == 0)


def _places(step: Step) -> Iterator[tuple[int, Value]]:
    """The axes of an array along which a step writes at one place, and the place."""
    if step.equation.primitive in primitives("dynamic_update_slice"):
        for axis, place in enumerate(step.inputs[2:]):
            if step.inputs[1].shape[axis] == 1 < step.inputs[0].shape[axis]:
                yield axis, place
    else:
        dims = step.equation.params["dimension_numbers"].scatter_dims_to_operand_dims
        if len(dims) == 1 and all(size == 1 for size in step.inputs[1].shape):
            yield dims[0], step.inputs[1]


def _is_counted(value: Value, origins: Origins) -> bool:
    return made_by(origins.of(value, FLOWS | primitives("add")), primitives("iota")) is not None


def _is_next(inside: Value, new: Value, origins: Origins) -> bool:
    step = made_by(origins.of(new, FLOWS), primitives("add"))
    return step is not None and step.inputs[1].number == 1 and origins.of(step.inputs[0], FLOWS) is inside


def _keeps(mask: Mask, counter: Value, origins: Origins) -> bool:
    """Say whether a mask keeps the place that a counter says, and none after it."""
    for condition, _, truth in parts_of(mask, origins):
        step = made_by(condition, primitives(*_OPPOSITE))
        if step is None:
            continue
        one, other = step.inputs
        for places, bound, mirrored in ((one, other, False), (other, one, True)):
            name = step.equation.primitive.name
            name = _MIRRORED[name] if mirrored else name
            name = _OPPOSITE[name] if truth else name
            added = made_by(origins.of(bound, FLOWS), primitives("add"))
            is_after = added is not None and added.inputs[1].number == 1
            at = origins.of(added.inputs[0] if added is not None and is_after else bound, FLOWS)
            if at is counter and _is_counted(places, origins) and name == ("lt" if is_after else "le"):
                return True
    return False


def _sums_over(attention: Attention, cache: Cache, origins: Origins) -> bool:
    """Say whether the values of an attention are summed over the axis along which an array is filled."""
    step = attention.product
    place = step.inputs.index(attention.values)
    summed = step.equation.params["dimension_numbers"][0][place]
    return (cache.new, cache.axis) in [laid_out(attention.values, axis, origins, CONVERTED) for axis in summed]


def _is_plain(attention: Attention, origins: Origins) -> bool:
    """Say whether the logits of a softmax are products of queries and keys, multiplied by numbers alone."""
    value = attention.squash.logits
    for _ in range(_MOST):
        value = origins.of(value, _LAYOUT)
        if value.maker is attention.scores:
            return True
        if value.maker is None or value.maker.equation.primitive not in _SCALED:
            return False
        arrays = [each for each in value.maker.inputs if each.number is None]
        if len(arrays) != 1:
            return False
        (value,) = arrays
    return False


KINDS = (BEFORE,)
CHECKS = (caches,)
