"""Rows of logits that a mask makes -inf as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._autodiff._way import Way, is_asked
from lox._audit._checks._numerics._elements import kept, other_axis
from lox._audit._checks._numerics._exponentials import chosen_from
from lox._audit._checks._numerics._masks import Mask, masks_of, parts_of
from lox._audit._checks._numerics._squashes import Squash, squashes
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Value

ROWS = Kind(
    "LOX809",
    "warning",
    "A softmax of logits that are all -inf",
    "Mask with a large finite number, such as jnp.finfo(x.dtype).min, or mask only along the axis of the softmax, and "
    "leave the other rows out of the result.",
    "Masks of logits leave something in each row.",
    "The parts of each mask with which logits become -inf were compared with the axis of the softmax.",
)

_MOST = 10_000
"""Longer rows are not evaluated."""


def rows(audited: Audited) -> Iterator[Finding | Held]:
    """LOX809: a part of a mask is the same along the axis of a softmax, so that it leaves nothing in a row."""
    left_out = audited.once(chosen_from)
    for squash in audited.once(squashes).values():
        one_axis = len(squash.axes) == 1 and squash.logits.shape[squash.axes[0]] > 1
        if not squash.is_shifted or not one_axis or not is_users(squash.location.of_user.file):
            continue
        masks = list(masks_of(squash.logits, squash.axes[0], audited.origins))
        infinite = [mask for mask in masks if mask.number == -math.inf and not mask.is_guarded]
        if squash.step.outputs[0] in left_out:
            yield from _left_out_too_late(squash, infinite, audited)
        elif text := next((text for mask in infinite for text in _empty_rows(mask, audited.origins)), ""):
            yield ROWS.at(squash.location, text)
        elif found := [part for mask in infinite for part in _same_in_row(mask, audited.origins)]:
            yield ROWS.at(squash.location, _text(found[0], squash))
        elif masks:
            yield ROWS.fine(squash.location)


def _text(flag: Value, squash: Squash) -> str:
    return (
        f"The logits of a row are all -inf where {flag.called} says so, as it is the same along axis "
        f"{squash.axes[0]} of the softmax: -inf - -inf is NaN."
    )


def _left_out_too_late(squash: Squash, masks: list[Mask], audited: Audited) -> Iterator[Finding]:
    """Rows that are chosen away in the result, and not in the derivative: zero times NaN is NaN."""
    for mask in masks:
        found = [*_same_in_row(mask, audited.origins)]
        if found and (_multiplies_cotangents(squash, mask, audited) or _is_differentiated(squash, mask, audited)):
            later = " What leaves the row out later does not leave it out of the derivative: zero times NaN is NaN."
            yield ROWS.at(squash.location, _text(found[0], squash) + later)
            return


def _multiplies_cotangents(squash: Squash, mask: Mask, audited: Audited) -> bool:
    """Say whether weights are multiplied with cotangents that no mask sets to zero afterwards.

    With `jnp.where(mask, scores, -jnp.inf)` the derivative by the scores is masked, and that by the values is not.
    """
    weights, powers = squash.step.outputs[0], audited.origins.of(squash.step.inputs[0], FLOWS)
    products, undefined = ["dot_general"], {weights}
    if mask.is_added:
        products, undefined = ["dot_general", "mul"], {weights, powers}
    return any(
        "transpose" in transformations(step.equation)
        and step.outputs[0] in audited.live
        and any(audited.origins.of(each, FLOWS) in undefined for each in step.inputs[:2])
        for step, _ in audited.of(*products)
    )


def _is_differentiated(squash: Squash, mask: Mask, audited: Audited) -> bool:
    """Say whether the derivative that is asked for goes through the product with values, or to a mask that is added."""
    if not is_asked(audited):
        return False
    way, weights = audited.once(Way), squash.step.outputs[0]
    for place in way.of("dot_general"):
        sides = [audited.origins.of(each, FLOWS) is weights for each in place.step.inputs[:2]]
        others = [node for node, is_weights in zip(place.inputs[:2], sides, strict=True) if not is_weights]
        if any(sides) and any(node in way.on for node in others):
            return True
    made = (node for place in way.places for node in place.outputs if node in way.on and node in way.before)
    return mask.is_added and any(audited.origins.of(node.value, FLOWS) is weights for node in made)


def _empty_rows(mask: Mask, origins: Origins) -> Iterator[str]:
    """A sentence for each row that a mask of constants masks as a whole."""
    for condition, axis, truth in parts_of(mask, origins):
        rows = None if axis is None else other_axis(condition, axis)
        if axis is None or rows is None or condition.shape[axis] > _MOST:
            continue
        for row in (0, condition.shape[rows] - 1):
            place = np.arange(condition.shape[axis])
            keeps = kept(condition, (rows, axis), truth, origins, np.full_like(place, row), place)
            if keeps is not None and not keeps.any():
                yield f"A mask of constants makes all logits of row {row} -inf: -inf - -inf is NaN."


def _same_in_row(mask: Mask, origins: Origins) -> Iterator[Value]:
    """The parts of a mask that each leave nothing of a row, or all."""
    for condition, axis, _ in parts_of(mask, origins):
        limits = condition.fact.range
        if (axis is None or condition.shape[axis] == 1) and limits.low < limits.high:
            yield condition


KINDS = (ROWS,)
CHECKS = (rows,)
