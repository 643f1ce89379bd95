"""Attention: over which axis its weights are normalized, and what its masks keep."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._numerics._backwards import is_backwards
from lox._audit._checks._numerics._elements import kept, other_axis
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._integers import is_float
from lox._audit._checks._numerics._masks import Mask, flags_of, laid_out, masks_of, parts_of
from lox._audit._checks._numerics._squashes import Squash, squashes
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, is_users, transformations
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

AXIS = Kind(
    "LOX815",
    "warning",
    "Attention weights that are normalized over another axis than values are summed over",
    "Give the softmax the axis of the keys, over which the sum is: axis=-1 for scores of shape (..., queries, keys).",
    "Attention weights are normalized over the axis of the keys.",
    "The axis of each softmax was compared with the axes over which its product with the values sums.",
)
MASK = Kind(
    "LOX816",
    "warning",
    "A mask of logits that does not mask what it should",
    "Mask with jnp.where(keep, logits, -jnp.inf) or a large negative number; a causal mask keeps keys up to the query, "
    "as jnp.tril(jnp.ones((n, n), bool)) does for scores of shape (..., queries, keys).",
    "Masks make logits so small that their weights are zero.",
    "The numbers that masks give were looked at, and masks of constants at some places.",
)
_SMALL = 1.0
"""Up to which size a number leaves the weight of a logit in place."""
_SAME = primitives("convert_element_type")
_PROJECTIONS = primitives("dot_general", "conv_general_dilated")


@dataclasses.dataclass(frozen=True, eq=False)
class Attention:
    """A softmax of scores whose result is multiplied with values.

    Attributes:
        squash: The softmax.
        axis: Its axis.
        scores: The product that the scores come out of.
        factors: What the scores, or the queries and keys, are multiplied by.
        product: The product with the values.
        location: Where that is.
        summed: The axes of the softmax over which the product sums.
        values: What the product multiplies the weights with.
        by: What the weights are multiplied by after the softmax.
    """

    squash: Squash
    axis: int
    scores: Step
    factors: tuple[float, ...]
    product: Step
    location: Location
    summed: frozenset[int | None]
    values: Value
    by: float

    @property
    def scale(self) -> float:
        """The product of all factors of the scores."""
        return math.prod(self.factors)

    @property
    def size(self) -> int:
        """The number of elements of a query, which its product with a key sums."""
        axes = self.scores.equation.params["dimension_numbers"][0][0]
        return math.prod(self.scores.inputs[0].shape[axis] for axis in axes)


def attentions(audited: Audited) -> list[Attention]:
    """The attentions of a program."""
    return list(_attentions(audited))


def _attentions(audited: Audited) -> Iterator[Attention]:
    known, origins = audited.once(squashes), audited.origins
    if not any(squash.name == "softmax" for squash in known.values()):
        return
    for step, location in audited.of("dot_general"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        for place, axes in enumerate(step.equation.params["dimension_numbers"][0]):
            sources = [_weights(step.inputs[place], axis, origins) for axis in axes]
            squash = known.get(sources[0].value.maker) if sources else None  # type: ignore[arg-type]
            if squash is None or squash.name != "softmax" or len(squash.axes) != 1:
                continue
            scores = scores_of(squash.logits, origins)
            if scores is not None:
                summed = frozenset(source.axis for source in sources)
                values, by = step.inputs[1 - place], sources[0].by
                yield Attention(squash, squash.axes[0], *scores, step, location, summed, values, by)


class _Weights(NamedTuple):
    """Where weights come from: the array, its axis that is summed, and the constant that it was multiplied by since."""

    value: Value
    axis: int | None
    by: float


def _weights(value: Value, axis: int | None, origins: Origins) -> _Weights:
    by = 1.0
    while True:
        value, axis = laid_out(value, axis, origins)
        maker = value.maker
        if maker is None or maker.equation.primitive not in _SAME | primitives("select_n", "mul", "div"):
            return _Weights(value, axis, by)
        if maker.equation.primitive in _SAME:
            (value,) = maker.inputs
            continue
        unknown = [each for each in maker.inputs if each.number is None]
        if maker.equation.primitive in primitives("select_n"):
            unknown = [each for each in unknown if each is not maker.inputs[0]]
        elif len(unknown) == 1:
            (number,) = (each.number or math.nan for each in maker.inputs if each is not unknown[0])
            by = by / number if _divides(maker) else by * number
        if (
            len(unknown) != 1
            or unknown[0].shape != value.shape
            or (_divides(maker) and unknown[0] is not maker.inputs[0])
        ):
            return _Weights(value, axis, by)
        value = unknown[0]


def _divides(maker: Step) -> bool:
    return maker.equation.primitive in primitives("div")


def scores_of(logits: Value, origins: Origins) -> tuple[Step, tuple[float, ...]] | None:
    """The product that logits come out of, and what they are multiplied by."""
    waiting: list[tuple[Value, tuple[float, ...]]] = [(logits, ())]
    for _ in range(30):
        if not waiting:
            break
        value, factors = waiting.pop()
        maker = origins.of(value, FLOWS).maker
        if maker is None:
            continue
        if maker.equation.primitive in primitives("dot_general"):
            return maker, (*factors, *(factor for each in maker.inputs[:2] for factor in _factors(each, origins)))
        if maker.equation.primitive in primitives("select_n"):
            waiting += [(case, factors) for case in maker.inputs[1:]]
        elif maker.equation.primitive in primitives("add", "sub"):
            waiting += [(each, factors) for each in maker.inputs[::-1]]
        elif maker.equation.primitive in primitives("mul", "div"):
            waiting += _scaled(maker, factors)
    return None


def _scaled(maker: Step, factors: tuple[float, ...]) -> Iterator[tuple[Value, tuple[float, ...]]]:
    """The operand of a product with a constant, or of one with flags, and what it is multiplied by."""
    for one, other in (maker.inputs, maker.inputs[::-1]):
        number = other.number
        if number and not (_divides(maker) and other is maker.inputs[0]):
            yield one, (*factors, 1 / number if _divides(maker) else number)
            return
    yield from ((each, factors) for each in maker.inputs if not _divides(maker))


def _factors(operand: Value, origins: Origins) -> tuple[float, ...]:
    """What queries or keys are multiplied by after they were projected; NaN for what is not known."""
    factors: tuple[float, ...] = ()
    while True:
        maker = origins.of(operand, FLOWS).maker
        if maker is None or maker.equation.primitive in _PROJECTIONS:
            return factors
        unknown = [each for each in maker.inputs if each.number is None]
        if maker.equation.primitive in primitives("add"):
            unknown = [each for each in maker.inputs if made_by(origins.of(each, FLOWS), _PROJECTIONS)]
        elif maker.equation.primitive in primitives("mul", "div") and len(unknown) == 1:
            (number,) = (each.number or math.nan for each in maker.inputs if each is not unknown[0])
            factors = (*factors, 1 / number if _divides(maker) else number)
        elif maker.equation.primitive not in primitives("slice", "gather", "dynamic_slice", "split"):
            return *factors, math.nan
        if not unknown:
            return *factors, math.nan
        operand = unknown[0]


def is_about(number: float, other: float) -> bool:
    """Say whether two numbers are the same but for rounding."""
    return math.isclose(number, other, rel_tol=5e-3)


def normalized_axis(audited: Audited) -> Iterator[Finding | Held]:
    """LOX815: weights are normalized over an axis, and summed over another one."""
    origins, found = audited.origins, audited.once(attentions)
    summed = {origins.of(step.inputs[0], FLOWS) for step, _ in audited.of("reduce_sum")} if found else set()
    for each in found:
        weights = each.squash.step.outputs[0]
        if each.axis in each.summed:
            yield AXIS.fine(each.location)
        elif None not in each.summed and weights not in summed and _is_of_attention(each, origins):
            axes = " and ".join(str(axis) for axis in sorted(axis for axis in each.summed if axis is not None))
            yield AXIS.at(
                each.location,
                f"The weights of shape {weights.shape} are normalized over axis {each.axis}, and their product with "
                f"{each.values.called} sums over axis {axes}: the weights of a sum do not add up to one.",
            )


def _is_of_attention(found: Attention, origins: Origins) -> bool:
    """Say whether scores are scaled or masked as those of attention are, and the values are not what is scored."""
    masks = list(masks_of(found.squash.logits, found.axis, origins))
    if any(mask.number < -1e3 and _varies_along(mask, found) for mask in masks):
        return True
    values = origins.of(found.values, FLOWS | primitives("transpose"))
    scored = {origins.of(each, FLOWS | primitives("transpose")) for each in found.scores.inputs[:2]}
    if values in scored:
        return False
    return is_about(found.scale, found.size**-0.5) or any(mask.number < -1e3 for mask in masks)


def _varies_along(mask: Mask, found: Attention) -> bool:
    """Say whether a mask of logits differs along the axis of the softmax and along that of the sum, as a graph does."""
    condition, logits = mask.condition, found.squash.logits
    axes = [found.axis, *(axis for axis in found.summed if axis is not None)]
    return condition.shape == logits.shape and all(condition.shape[axis] > 1 for axis in axes)


def masked(audited: Audited) -> Iterator[Finding | Held]:
    """LOX816: masked logits keep their weight, or a causal mask keeps what is to come."""
    origins, seen = audited.origins, set()
    for squash in audited.once(squashes).values():
        is_weight = squash.name in ("softmax", "categorical") and len(squash.axes) == 1
        if not is_weight or not is_users(squash.location.of_user.file):
            continue
        for mask in masks_of(squash.logits, squash.axes[0], origins):
            text = _keeps_weight(mask, squash, audited)
            if text and squash.location not in seen:
                seen.add(squash.location)
                yield MASK.at(squash.location, text)
    for each in audited.once(attentions):
        masks = list(masks_of(each.squash.logits, each.axis, origins)) if each.axis in each.summed else []
        large = [mask for mask in masks if mask.number < -1e3]
        texts = [text for mask in large for text in _causal(mask, each, audited)]
        if large and not texts and all(_is_same_along(mask, origins) for mask in large):
            texts = [
                "A mask is the same for all keys of a query: it leaves the weights of a query as they are, or all keys "
                "alike. What is to be masked are keys."
            ]
        if texts and each.squash.location not in seen:
            seen.add(each.squash.location)
            yield MASK.at(each.squash.location, texts[0])
        elif not texts:
            yield MASK.fine(each.squash.location)


def _keeps_weight(mask: Mask, squash: Squash, audited: Audited) -> str:
    """What is wrong with the number that logits become where they are masked."""
    origins = audited.origins
    parts = [*parts_of(mask, origins)]
    varies = any(axis is not None and condition.shape[axis] > 1 for condition, axis, _ in parts)
    small = -1e-3 <= mask.number < 0 if mask.is_added else abs(mask.number) <= _SMALL
    conditions = [mask.condition, *_conditions(mask, origins)]
    asked = conditions if mask.condition.aval.dtype == np.bool_ else conditions[1:]
    if not varies or not small or any(_depends(each, squash.logits, origins) for each in asked):
        return ""
    if not _again(squash.step.outputs[0], audited).isdisjoint(origins.of(each, FLOWS) for each in conditions):
        return ""
    does = f"has {mask.number:g} added" if mask.is_added else f"is {mask.number:g}"
    return f"A logit that is masked {does}, and keeps a weight: only large negative numbers have the weight zero."


def _depends(condition: Value, logits: Value, origins: Origins) -> bool:
    """Say whether a condition is computed from what the logits are computed from, and so asks for them."""
    if origins.of(condition, FLOWS).maker is None:  # An argument.
        return False
    asked = floats_of(condition, origins, through_conditions=True)
    return asked is None or not asked.isdisjoint(floats_of(logits, origins, through_conditions=False) or asked)


def floats_of(value: Value, origins: Origins, *, through_conditions: bool = False) -> set[Value] | None:
    """The floats that a value is computed from; None if it is computed from a lot, or drawn."""
    waiting, seen = [value], set()
    while waiting:
        value = origins.of(waiting.pop())
        if value in seen or value.number is not None:
            continue
        if not through_conditions and getattr(value.aval, "dtype", None) == np.bool_:
            continue
        seen.add(value)
        if len(seen) > 200 or _is_key(value):
            return None
        waiting += value.maker.inputs if value.maker is not None else ()
    return {each for each in seen if is_float(each)}


def _is_key(value: Value) -> bool:
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, jax.dtypes.prng_key)


def _again(weights: Value, audited: Audited) -> set[Value]:
    """The conditions by which weights are masked once more."""
    origins = audited.origins
    found = set()
    for step, _ in audited.of("select_n"):
        if any(origins.of(case, FLOWS) is weights for case in step.inputs[1:]):
            found.add(origins.of(step.inputs[0], FLOWS))
    for step, _ in audited.of("mul"):
        for one, other in (step.inputs, step.inputs[::-1]):
            flags = flags_of(other, None, origins) if origins.of(one, FLOWS) is weights else None
            if flags is not None:
                found |= {origins.of(each, FLOWS) for each in (flags.condition, *_conditions(flags, origins))}
    return found


def _conditions(mask: Mask, origins: Origins) -> Iterator[Value]:
    return (condition for condition, _, _ in parts_of(mask, origins))


def _is_same_along(mask: Mask, origins: Origins) -> bool:
    """Say whether a mask of more than one query is the same along the axis of the softmax."""
    condition, axis = laid_out(mask.condition, mask.axis, origins)
    return (axis is None or condition.shape[axis] == 1) and any(size > 1 for size in condition.shape)


def _causal(mask: Mask, found: Attention, audited: Audited) -> Iterator[str]:
    """What is wrong with a causal mask that is made of constants."""
    origins = audited.origins
    for condition, axis, truth in parts_of(mask, origins):
        if axis is None:
            continue
        size = condition.shape[axis]
        queries = other_axis(condition, axis)
        if queries is None or condition.shape[queries] != size or size < 4:
            continue

        keeps = functools.partial(kept, condition, (queries, axis), truth, origins)
        corners = keeps(np.array([0, size - 1]), np.array([size - 1, 0]))
        if corners is None:
            continue
        if corners[0] and not corners[1] and not is_backwards(found.scores, audited):
            yield "A mask of constants keeps keys after the query, and none from the first one on: it is upside down."
        elif corners[1] and not corners[0]:
            place = np.arange(size - 2)
            if keeps(place, place + 1).all() and not keeps(place, place + 2).any():
                yield "A causal mask keeps one key after each query, which is what is to be predicted."


def chosen_unmasked(audited: Audited) -> Iterator[Finding]:
    """LOX816: what chooses takes logits of which there is a masked version that is used elsewhere."""
    known, origins = audited.once(squashes), audited.origins
    choices = [squash for squash in known.values() if squash.name in ("categorical", "gumbel")]
    versions = dict(_masked_versions(audited)) if choices else {}
    for squash in choices:
        made = origins.of(squash.logits, FLOWS)
        if made in versions and versions[made] in audited.live and is_users(squash.location.of_user.file):
            yield MASK.at(
                squash.location,
                f"What is chosen here is chosen by {made.called}, and not by the logits that were masked of it: what "
                "is masked may be chosen.",
            )


def _masked_versions(audited: Audited) -> Iterator[tuple[Value, Value]]:
    """Arrays with elements that are set to a large negative number, and the results of that."""
    for step, _ in audited.of("select_n"):
        cases = step.inputs[1:]
        numbers = [audited.origins.of(each).number for each in cases]
        if len(cases) == 2 and [number is not None and number < -1e3 for number in numbers].count(True) == 1:
            kept = cases[0] if numbers[0] is None else cases[1]
            if kept.number is None:
                yield audited.origins.of(kept, FLOWS), step.outputs[0]


KINDS = (AXIS, MASK)
CHECKS = (normalized_axis, masked, chosen_unmasked)
