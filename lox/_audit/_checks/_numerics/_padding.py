"""Masks of attention that keep the padding, or that keep keys of other documents in the same row."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._numerics._attention import MASK, Attention, attentions
from lox._audit._checks._numerics._elements import kept, other_axis
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._integers import is_integer
from lox._audit._checks._numerics._masks import Mask, masks_of, parts_of
from lox._audit._checks._numerics._squashes import squashes
from lox._audit._ends import last_name
from lox._audit._findings import Finding
from lox._audit._location import is_users
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_PADDING = re.compile(r"(is_|key_|src_|source_)?pad(ding|ded|s)?(_mask)?", re.IGNORECASE)
_TOKENS = re.compile(r"(\w+_)?(tokens?|words?|text|sentences?)|(input|token|word)_?ids?", re.IGNORECASE)
_LARGE = -1e3
"""Logits that are masked are below this."""
_MOST = 200


def keeps_padding(audited: Audited) -> Iterator[Finding]:
    """LOX816: a mask keeps the places where there is padding, and no others."""
    origins, embedded = audited.origins, audited.once(_indices)
    for squash in audited.once(squashes).values():
        if squash.name != "softmax" or len(squash.axes) != 1 or not is_users(squash.location.of_user.file):
            continue
        for mask in masks_of(squash.logits, squash.axes[0], origins):
            parts = parts_of(mask, origins) if mask.number < _LARGE else ()
            kept = [each for each, axis, truth in parts if axis is not None and _is_equal(each, 1 - truth)]
            padding = [each for each in kept if (array := _compared(each, origins)) in embedded and _says(each, array)]
            if padding:
                yield MASK.at(
                    squash.location,
                    f"Logits keep their weight where {padding[0].called} is true, which is where there is padding, and "
                    "all others are masked: the mask is the wrong way round.",
                )
                break


def _is_equal(condition: Value, truth: int) -> bool:
    """Say whether a condition asks for integers being equal to a number, if it has this truth."""
    return made_by(condition, primitives("eq" if truth else "ne")) is not None


def _compared(condition: Value, origins: Origins) -> Value | None:
    """The array of integers that a condition compares with a number."""
    inputs = condition.maker.inputs if condition.maker is not None else ()
    arrays = [each for each in inputs if each.number is None]
    return origins.of(arrays[0], FLOWS) if len(arrays) == 1 and is_integer(arrays[0]) else None


def _says(condition: Value, array: Value | None) -> bool:
    """Say whether a condition is called padding, or is about tokens that are zero."""
    if _PADDING.fullmatch(condition.written):
        return True
    is_zero = condition.maker is not None and any(each.number == 0 for each in condition.maker.inputs)
    return is_zero and array is not None and _TOKENS.fullmatch(last_name(array.name)) is not None


def _indices(audited: Audited) -> set[Value]:
    """The arrays of integers with which something is looked up."""
    found, origins = set(), audited.origins
    for step, _ in audited.of("gather"):
        found.add(origins.index(step.inputs[1]))
    return found


def crosses_documents(audited: Audited) -> Iterator[Finding]:
    """LOX816: rows have several documents, and a causal mask keeps keys of those before."""
    packed = [each for each in audited.once(_packed) if each[0] not in audited.once(_indices)]
    known = audited.once(attentions) if packed else []
    asked = {source for found in known for source in _sources(found, audited.origins)}
    for found in known:
        masks = [mask for mask in masks_of(found.squash.logits, found.axis, audited.origins) if mask.number < _LARGE]
        length = found.squash.logits.shape[found.axis]
        same = [array for array, size in packed if length in (size, size - 1)]
        if found.axis not in found.summed or not same or not all(_is_causal(mask, audited.origins) for mask in masks):
            continue
        if masks and same[0] not in asked:
            yield MASK.at(
                found.squash.location,
                f"{same[0].called} is compared with itself one place later, as a row has several of them, and the mask "
                "of attention is causal alone: keys of those before are kept.",
            )


def _packed(audited: Audited) -> list[tuple[Value, int]]:
    """The arrays of integers that are compared with themselves one place later, and the length of that axis."""
    found = []
    for step, location in audited.of("eq", "ne"):
        (one, starts), (other, others) = (_place(each, audited.origins) for each in step.inputs)
        is_given = one is other and one.maker is None and one.constant is None and is_integer(one)
        if is_given and len(starts) == len(others) and is_users(location.of_user.file):
            moved = [abs(start - after) for start, after in zip(starts, others, strict=True)]
            if sorted(moved)[-1:] == [1] and sum(moved) == 1:
                found.append((one, one.shape[moved.index(1)]))
    return found


def _place(value: Value, origins: Origins) -> tuple[Value, list[int]]:
    """The array that a value is a stretch of, and where it starts there."""
    value = origins.of(value, primitives("copy"))
    starts = [0] * len(value.shape)
    while (maker := made_by(value, primitives("slice", "pad", "concatenate"))) is not None:
        params, before = maker.equation.params, maker.inputs[0]
        if maker.equation.primitive in primitives("slice"):
            moved = list(params["start_indices"])
        elif maker.equation.primitive in primitives("pad"):
            moved = [-low for low, _, _ in params["padding_config"]]
        else:
            before = max(maker.inputs, key=lambda each: each.shape[params["dimension"]])
            earlier = maker.inputs[: maker.inputs.index(before)]
            moved = [0] * len(starts)
            moved[params["dimension"]] = -sum(each.shape[params["dimension"]] for each in earlier)
        starts = [start + more for start, more in zip(starts, moved, strict=True)]
        value = origins.of(before, primitives("copy"))
    return value, starts


def _is_causal(mask: Mask, origins: Origins) -> bool:
    """Say whether a mask is made of constants, and keeps what is before a query alone."""
    parts = [*parts_of(mask, origins)]
    return bool(parts) and all(keeps_past(*part, origins) for part in parts)


def keeps_past(condition: Value, axis: int | None, truth: int, origins: Origins) -> bool:
    """Say whether a part of a mask is made of constants, and keeps what is before a query alone."""
    queries = None if axis is None else (other_axis(condition, axis) or _last_alike(condition, axis))
    if axis is None or queries is None:
        return False
    last = np.array([0, condition.shape[axis] - 1])
    keeps = kept(condition, (queries, axis), truth, origins, np.minimum(last, condition.shape[queries] - 1), last[::-1])
    return keeps is not None and not keeps[0] and bool(keeps[1])


def _last_alike(condition: Value, axis: int) -> int | None:
    """The last other axis, of queries, that is as long as that of the keys; those before are of a batch."""
    long = [place for place, size in enumerate(condition.shape) if size == condition.shape[axis] and place != axis]
    return long[-1] if long else None


def _sources(found: Attention, origins: Origins) -> set[Value]:
    """The values that the logits of attention are made of, without the queries and keys."""
    left, seen = [found.squash.logits], set[Value]()
    while left and len(seen) < _MOST:
        value = origins.of(left.pop(), FLOWS)
        maker: Step | None = value.maker
        if value not in seen and maker is not found.scores:
            left += maker.inputs if maker is not None else ()
        seen.add(value)
    return seen


KINDS = ()
CHECKS = (keeps_padding, crosses_documents)
