"""Recurrences that go over another axis than that of time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._loops import Scan, reached, scans
from lox._audit._program import Step, Value
from lox._audit._rules import primitives
from lox._audit._unwritten import Made, Unwritten

RECURRENCE = Kind(
    "LOX106",
    "warning",
    "A recurrence goes over the batch, and not over time",
    "Bring the axis of time first for a scan, as with jnp.swapaxes(x, 0, 1), or give cumsum and its like its axis; for "
    "a function of one sequence, take jax.vmap over the other axis.",
    "Recurrences go over time.",
    "The labels of the axes that scans and cumulative operations go over were read.",
)


class Meaning(NamedTuple):
    """What an axis may be: the names that people give it, and what makes it where nobody does."""

    names: re.Pattern[str]
    made: Made


TIME = Meaning(re.compile(r"t|(num_?)?(time_?)?steps?|times?", re.IGNORECASE), "iterations")
BATCH = Meaning(
    re.compile(r"b|batch(es)?|batch_?size|(num_?)?(env(ironment)?|actor|agent|worker|lane)s?", re.IGNORECASE), "keys"
)
_MOST = 20
"""How many terms and factors are looked at."""
_CUMULATIVE = primitives("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")


def recurrence(audited: Audited) -> Iterator[Finding | Held]:
    """LOX106: what is computed for an element of the batch depends on other elements, each step of time by itself."""
    for scan, location in scans(audited):
        scanned = [value.fact.labels[0] for value, _ in scan.xs if value.shape]
        if any(_is(label, TIME) for label in scanned):
            yield RECURRENCE.fine(location)
        elif any(_is(label, BATCH) for label in scanned) and (carried := _mixes(scan)) is not None:
            label = next(label for label in scanned if _is(label, BATCH))
            yield RECURRENCE.at(
                location,
                severity="error",
                message=f"A scan goes over {label}, and carries {carried.text}: what is computed for one "
                f"element of {label} depends on those before it.",
            )
    for step, location in audited.steps:
        if step.equation.primitive in _CUMULATIVE:
            (value, *_), axis = step.inputs, step.equation.params["axis"]
            labels = value.fact.labels
            if _is(labels[axis], TIME):
                yield RECURRENCE.fine(location)
            if not _is(labels[axis], BATCH):
                continue
            is_product = step.equation.primitive in primitives("cumprod")
            has_time = any(_is(label, TIME) for label in labels)
            is_named = isinstance(labels[axis], str) and len(value.shape) > 1
            if (has_time and (_is_summed(value) or is_product)) or (is_product and is_named):
                yield RECURRENCE.at(
                    location,
                    f"'{step.equation.primitive.name}' goes over {labels[axis]} of "
                    f"{audited.origins.of(value, frozenset()).text}.",
                )

    for step, location in audited.of("sub"):
        neighbours = _neighbours(audited, step)
        if neighbours is not None:
            value, axis = neighbours
            labels = value.fact.labels
            if _is(labels[axis], BATCH) and any(_is(label, TIME) for label in labels):
                yield RECURRENCE.at(
                    location,
                    f"A difference of neighbours goes over {labels[axis]} of "
                    f"{audited.origins.of(value, frozenset()).text}.",
                )


def _neighbours(audited: Audited, step: Step) -> tuple[Value, int] | None:
    """The array of which a step subtracts each element from the next one along an axis, and that axis."""
    last = audited.origins.of(step.inputs[1], frozenset()).maker
    if last is None or last.equation.primitive not in primitives("slice"):
        return None
    array = audited.origins.of(last.inputs[0])
    cut = [last, *(each for each in _slices(audited, step.inputs[0]) if audited.origins.of(each.inputs[0]) is array)]
    if len(cut) != 2:
        return None
    starts = [each.equation.params["start_indices"] for each in cut]
    moved = [axis for axis, pair in enumerate(zip(*starts, strict=True)) if pair[0] != pair[1]]
    array = cut[0].inputs[0]
    is_all = len(moved) == 1 and cut[0].outputs[0].shape[moved[0]] == array.shape[moved[0]] - 1
    return (array, moved[0]) if is_all else None


def _slices(audited: Audited, value: Value) -> Iterator[Step]:
    """The slices that are added up to a value, perhaps each multiplied by numbers and masks."""
    left = [value]
    for _ in range(_MOST):
        if not left:
            return
        maker = audited.origins.of(left.pop(), frozenset()).maker
        if maker is not None and maker.equation.primitive in primitives("slice"):
            yield maker
        elif maker is not None and maker.equation.primitive in primitives("add", "mul"):
            left += [each for each in maker.inputs if each.number is None]


def _mixes(scan: Scan) -> Value | None:
    """What a scan carries that has an axis of time, like its slices and its results, which depend on it."""
    timed = reached(scan.body, [slice_ for _, slice_ in scan.xs if _has_time(slice_)])
    for _, before, new in scan.carry:
        if _has_time(new) and new in timed and jnp.issubdtype(new.aval.dtype, jnp.floating):
            after = reached(scan.body, [before])
            if new in after and any((_has_time(y) and y in after) or y is before for y in scan.ys):
                return new
    return None


def _has_time(value: Value) -> bool:
    return any(_is(label, TIME) for label in value.fact.labels)


def _is_summed(value: Value) -> bool:
    """Whether an array is no mask or index, of which a cumulative sum numbers what is in a batch."""
    return isinstance(value.aval, jax.core.ShapedArray) and jnp.issubdtype(value.aval.dtype, jnp.floating)


def _is(label: object, meaning: Meaning) -> bool:
    if isinstance(label, Unwritten):
        return label.kind == meaning.made
    return isinstance(label, str) and meaning.names.fullmatch(label) is not None


KINDS = (RECURRENCE,)
CHECKS = (recurrence,)
