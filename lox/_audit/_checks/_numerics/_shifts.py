"""Sequences that a causal model gets and is to predict: the labels have to be one place later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lox._audit._audited import Audited
from lox._audit._checks._autodiff._stopped import SAME
from lox._audit._checks._numerics._along import Along, sources
from lox._audit._checks._numerics._attention import attentions
from lox._audit._checks._numerics._classes import choices
from lox._audit._checks._numerics._masks import masks_of, parts_of
from lox._audit._checks._numerics._padding import keeps_past
from lox._audit._checks._numerics._squashes import squashes
from lox._audit._findings import Finding
from lox._audit._location import is_users, transformations
from lox._audit._origins import Origins
from lox._audit._program import Value


def unshifted(audited: Audited) -> Iterator[Finding]:
    """LOX612: the labels of a causal model are the tokens that it is given at the same places, or at earlier ones."""
    origins = audited.origins
    if not audited.once(squashes):
        return
    for step, location in audited.of("mul", "gather"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        for choice in choices(step, origins):
            tokens = _read(choice.labels, origins)
            if tokens is None:
                continue
            given = _given([(choice.array, row) for row in choice.rows], tokens[0], origins)
            if _is_told(given, tokens) and (any(each.is_carried for each in given) or audited.once(_is_causal)):
                yield SAME.at(
                    location,
                    f"The labels are the elements of {tokens[0].called} that the model, which is causal, is given at "
                    "the same places: it is to predict what it gets, and not what follows.",
                )


def _is_told(given: Sequence[Along], labels: tuple[Value, dict[int, int]]) -> bool:
    """Say whether a model gets each label at its place or before."""
    array, starts = labels
    long = {axis for axis, size in enumerate(array.shape) if size > 1}
    told = {each.axis for each in given if starts.get(each.axis, 1) <= each.offset}
    return bool(long) and long <= told and long <= starts.keys()


def _read(labels: Value, origins: Origins) -> tuple[Value, dict[int, int]] | None:
    """The array from outside that labels are, and where they start along each axis of it."""
    found = [
        each
        for axis, size in enumerate(labels.shape)
        if size > 1
        for each in sources(Along(labels, axis, is_index=True), origins)
        if each.value.maker is None
    ]
    arrays = {each.value for each in found}
    return (arrays.pop(), {each.axis: each.offset for each in found}) if len(arrays) == 1 else None


def _given(logits: Sequence[tuple[Value, int]], tokens: Value, origins: Origins) -> list[Along]:
    """The places where logits look up an array, along axes that keep its order."""
    found = (each for value, axis in logits for each in sources(Along(value, axis), origins))
    return [each for each in found if each.is_index and each.value is tokens]


def _is_causal(audited: Audited) -> bool:
    """Say whether a mask of attention keeps what is before a query alone."""
    origins = audited.origins
    return any(
        keeps_past(*part, origins)
        for found in audited.once(attentions)
        for mask in masks_of(found.squash.logits, found.axis, origins)
        for part in parts_of(mask, origins)
    )


KINDS = ()
CHECKS = (unshifted,)
