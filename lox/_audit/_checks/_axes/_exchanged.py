"""Axes that are exchanged, where nobody wrote what they mean: those of split keys and those of iterations."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import MEETING, Pairing, meetings, reshaped
from lox._audit._checks._axes._recurrences import recurrence
from lox._audit._findings import Finding
from lox._audit._labels import Merged
from lox._audit._program import Value
from lox._audit._unwritten import Indexed, Unwritten, with_origins

_MOST = 60
"""Through how many values is looked for one that has two axes."""


def exchanged(audited: Audited) -> Iterator[Finding]:
    """LOX101, LOX103 and LOX106, by the operations that made axes: what is exchanged is there in either order."""
    known = audited.once(with_origins)
    if known is None:
        return
    yield from (finding for finding in (*reshaped(known), *recurrence(known)) if isinstance(finding, Finding))
    for _, pairings in itertools.groupby(meetings(known), lambda pairing: pairing.step):
        found = list(pairings)
        pairs = {pairing.labels for pairing in found if all(isinstance(each, Unwritten) for each in pairing.labels)}
        turned = next((each for each in found if _is_turned(*each.labels)), None)
        wrong = next((each for each in found if each.differs and each.labels[::-1] in pairs), None)
        alone = next((each for each in found if len(found) == 1 and each.differs and _are_two_axes(known, each)), None)
        if turned is not None:
            one, other = turned.labels
            yield _meeting(
                turned,
                f"Axis {turned.axis} of {turned.one.text} was made of {one}, that of {turned.other.text} of {other}: "
                "their elements are in another order, and",
            )
        elif wrong is not None:
            one, other = wrong.labels
            yield _meeting(
                wrong,
                f"Axis {wrong.axis} of {wrong.one.text} goes over the {one}, that of {wrong.other.text} over the "
                f"{other}, and the other axes the other way round:",
            )
        elif alone is not None:
            one, other = alone.labels
            yield _meeting(
                alone,
                f"Axis {alone.axis} of {alone.one.text} goes over the {one}, and that of {alone.other.text} over the "
                f"{other}, which are two axes of what these were computed from:",
            )


def _meeting(pairing: Pairing, text: str) -> Finding:
    """The finding that two axes meet of which this is said."""
    one, other = pairing.labels
    name = pairing.step.equation.primitive.name
    return MEETING.at(
        pairing.location, f"{text} '{name}' takes them element by element.", found=str(other), expected=str(one)
    )


def _are_two_axes(audited: Audited, pairing: Pairing) -> bool:
    """Say whether both values come from arrays that have both axes, so that one is not the other by another name."""
    labels = {*pairing.labels}
    both = all(isinstance(label, Unwritten) for label in labels)
    return both and all(_has_source_with(audited, value, labels) for value in (pairing.one, pairing.other))


def _has_source_with(audited: Audited, value: Value, labels: set[Any]) -> bool:
    seen, left = set[Value](), [value]
    while left and len(seen) < _MOST:
        each = audited.origins.of(left.pop(), frozenset())
        if each in seen:
            continue
        seen.add(each)
        beside = each.maker.outputs if each.maker is not None else ()  # Such as the carry of a rollout.
        if any(labels <= {*other.fact.labels} for other in (each, *beside)):
            return True
        left += [source for source in (each.maker.inputs if each.maker is not None else ()) if source.shape]
    return False


def _is_turned(one: object, other: object) -> bool:
    """Say whether two axes were made of the same ones, in another order."""
    if isinstance(one, Indexed) and isinstance(other, Indexed) and one.at is other.at:
        one, other = one.of, other.of
    if not isinstance(one, Merged) or not isinstance(other, Merged) or one.parts == other.parts:
        return False
    if None in one.parts and None in other.parts:
        (own,), (others,) = ([part for part in each.parts if part is not None] for each in (one, other))
        return own == others and _stride(one) != _stride(other)
    return len(set(one.parts)) == len(one.parts) == len(other.parts) and set(one.parts) == set(other.parts)


def _stride(merged: Merged) -> int:
    """The distance in elements between neighbours along the only axis with a meaning."""
    (place,) = (place for place, part in enumerate(merged.parts) if part is not None)
    return math.prod(merged.sizes[place + 1 :])


CHECKS = (exchanged,)
