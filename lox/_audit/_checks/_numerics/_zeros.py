"""Elements that a mask set to zero, and that a mean counts or a maximum takes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._attention import MASK
from lox._audit._checks._numerics._exponentials import made_by, without_constants
from lox._audit._checks._numerics._integers import is_float
from lox._audit._checks._numerics._masks import Mask, flags_of
from lox._audit._checks._numerics._weights import is_of_data, is_one_hot, mask_of
from lox._audit._ends import last_name
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._origins import FLOWS, LAID_OUT, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

COUNTED = Kind(
    "LOX819",
    "warning",
    "A mean counts the elements that a mask set to zero",
    "Divide by how many are kept: jnp.where(mask, x, 0).sum() / mask.sum(), or x.mean(where=mask) and "
    "x.std(where=mask).",
    "Means that are subtracted are of the elements that a mask keeps.",
    "Each mean that is subtracted from an array was followed back to masks of that array.",
)

_SAME = primitives("convert_element_type", "copy", "stop_gradient")
_GUARDS = primitives("add", "max", "clamp")
_CUT = primitives("slice", "dynamic_slice", "rev", "transpose")
_PADDING = re.compile(r"(\w+_)?(mask|valid|pad(ding|ded)?|non_?pad(ding)?)s?(_mask)?", re.IGNORECASE)


def counted_zeros(audited: Audited) -> Iterator[Finding | Held]:
    """LOX819: an array minus a mean of it, in which elements that a mask set to zero count."""
    origins, seen = audited.origins, set[Value]()
    for step, location in audited.of("sub"):
        if "transpose" in transformations(step.equation) or not step.inputs[0].shape:
            continue
        total = _total_of_mean(step.inputs[1], origins)
        if total is None:
            continue
        (reduced, calls) = total
        masked, _ = origins.met(reduced.inputs[0], _SAME, calls)
        mask, before = _masked(masked, reduced.equation.params["axes"], origins)
        array = origins.of(step.inputs[0], _SAME)
        if masked in seen:
            continue  # What a deviation does inside is said with the mean.
        is_met = mask is not None and (array is masked or array is origins.of(before, _SAME))
        if mask is not None and is_met and _is_of_padding(mask, masked, audited):
            seen.add(masked)
            yield COUNTED.at(
                location,
                f"The mean that is subtracted from {array.text} counts the elements that a mask set to zero: its sum "
                f"is divided by {_count(reduced)}, which is the number of all elements.",
            )
        elif mask is None and array is masked:
            yield COUNTED.fine(location)


def averaged_zeros(audited: Audited) -> Iterator[Finding]:
    """LOX819: a mean of what a mask of padding set to zero is over all elements, and nothing counts those it keeps."""
    origins = audited.origins
    counted: set[Value] | None = None
    for step, location in audited.of("div"):
        if not {"transpose", "vmap"}.isdisjoint(transformations(step.equation)) or not is_users(location.of_user.file):
            continue
        total, number = origins.of(step.inputs[0], LAID_OUT | _SAME).maker, step.inputs[1].number
        if total is None or total.equation.primitive not in primitives("reduce_sum") or number != _count(total):
            continue
        masked = origins.of(total.inputs[0], _SAME)
        mask, before = _masked(masked, total.equation.params["axes"], origins)
        if mask is None or number < 2 or not _says_padding(mask.condition, origins) or not is_float(before):
            continue
        if counted is None:
            counted = {each for total, _ in audited.of("reduce_sum") for each in _sources(total.inputs[0], origins)}
        if counted.isdisjoint(_sources(mask.condition, origins)):
            yield COUNTED.at(
                location,
                f"A mean of {number:.0f} elements counts those that {mask.condition.called} set to zero: it depends on "
                "how many these are.",
            )


def divided_twice(audited: Audited) -> Iterator[Finding]:
    """LOX819: `(x * mask).mean() / mask.sum()`, which divides by two counts."""
    origins = audited.origins
    for step, location in audited.of("div"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        total = _total_of_mean(step.inputs[0], origins)
        if total is None:
            continue
        count = without_constants(origins.of(step.inputs[1], FLOWS), origins, _GUARDS)
        kept = made_by(count, primitives("reduce_sum"))
        if kept is None:
            continue
        (reduced, calls) = total
        product, _ = origins.met(reduced.inputs[0], _SAME, calls)
        made = made_by(product, primitives("mul", "select_n"))
        mask = _sources(kept.inputs[0], origins)
        same = [each for each in (made.inputs[:2] if made is not None else ()) if mask & _sources(each, origins)]
        if any(each.aval.dtype == bool or flags_of(each, None, origins) is not None for each in same):
            yield COUNTED.at(
                location,
                f"A mean of {_count(reduced)} elements, which counts those that a mask set to zero, is divided by how "
                "many the mask keeps as well.",
            )


def _says_padding(condition: Value, origins: Origins) -> bool:
    """Say whether a mask is called that of padding."""
    return any(_PADDING.fullmatch(last_name(each.name)) for each in _sources(condition, origins) if each.maker is None)


def _sources(value: Value, origins: Origins) -> set[Value]:
    """The arrays that a mask is, before it is converted, laid out, cut or negated."""
    found: set[Value] = set()
    while True:
        value = origins.of(value, _SAME | LAID_OUT | _CUT, loops=True)
        found.add(value)
        if value.maker is None or value.maker.equation.primitive not in primitives("not", "sub"):
            return found
        value = value.maker.inputs[-1]


def _total_of_mean(value: Value, origins: Origins) -> tuple[Step, tuple[Step, ...]] | None:
    """The sum that a mean of an array is made of, with the calls that it is in."""
    value, calls = origins.met(value, LAID_OUT | _SAME)
    if value.maker is None or value.maker.equation.primitive not in primitives("div"):
        return None
    total, number = value.maker.inputs
    value, calls = origins.met(total, LAID_OUT | _SAME, calls)
    if value.maker is None or value.maker.equation.primitive not in primitives("reduce_sum"):
        return None
    return (value.maker, calls) if number.number == _count(value.maker) else None


def _count(reduced: Step) -> int:
    return math.prod(reduced.inputs[0].shape[axis] for axis in reduced.equation.params["axes"])


def _masked(masked: Value, axes: tuple[int, ...], origins: Origins) -> tuple[Mask | None, Value]:
    """A mask of arguments that set parts of an array to zero along one of these axes, and what it was before."""
    maker = masked.maker
    for axis in axes:
        mask, before = (None, masked) if maker is None else mask_of(maker, axis, origins)
        if mask is not None and _is_mask(mask, origins):
            return mask, before
    return None, masked


def _is_of_padding(mask: Mask, masked: Value, audited: Audited) -> bool:
    """Say whether a mask is of whole vectors, or masks or counts something else too.

    Another choice may be between a number and zero as data, such as rewards that come at the end of an episode.
    """
    if math.prod(mask.condition.shape) < math.prod(masked.shape):
        return True
    left = [audited.origins.of(mask.condition, FLOWS)]
    uses: set[Step] = set()
    for each in left:
        for step in audited.users.of(each):
            if step.equation.primitive in FLOWS | primitives("not"):
                left += [result for result in step.outputs if result not in left]
            elif "transpose" not in transformations(step.equation):
                uses.add(step)
    return len(uses) > 1


def _is_mask(mask: Mask, origins: Origins) -> bool:
    """Say whether a mask differs along its axis, comes from arguments, and is no choice of one element."""
    if mask.axis is None or mask.condition.shape[mask.axis] == 1 or is_one_hot(mask.condition, origins):
        return False
    return is_of_data(mask.condition, origins, of_arguments=True)


def taken_zeros(audited: Audited) -> Iterator[Finding]:
    """LOX816: the largest of outputs of a layer is taken of which some were set to zero, and not to -inf."""
    for step, location in audited.of("argmax", "reduce_max"):
        (value, *_), axes = step.inputs, step.equation.params["axes"]
        if "transpose" in transformations(step.equation) or not is_float(value):
            continue
        masked = audited.origins.of(value, _SAME)
        mask, before = _masked(masked, axes, audited.origins)
        if mask is not None and before.fact.range.low < 0 and _is_of_layer(before, audited.origins):
            yield MASK.at(
                location,
                "The largest is taken of outputs of a layer of which a mask set some to zero: where all others are "
                "negative, a masked one is taken.",
            )


def _is_of_layer(value: Value, origins: Origins) -> bool:
    """Say whether a value is a product with a matrix that is an argument, perhaps with another argument added."""
    while (maker := origins.of(value, FLOWS).maker) is not None:
        left, right, *_ = *maker.inputs, maker.inputs[0]
        if maker.equation.primitive in primitives("dot_general"):
            (over, by), batch = maker.equation.params["dimension_numbers"]
            last = len(left.shape) - 1
            return tuple(over) == (last,) and tuple(by) == (0,) and not batch[0] and _is_given(right, origins)
        if maker.equation.primitive not in primitives("add") or not _is_given(right, origins):
            return False
        value = left
    return False


def _is_given(value: Value, origins: Origins) -> bool:
    found = origins.of(value, _SAME | LAID_OUT)
    return found.maker is None and found.number is None


KINDS = (COUNTED,)
CHECKS = (counted_zeros, averaged_zeros, divided_twice, taken_zeros)
