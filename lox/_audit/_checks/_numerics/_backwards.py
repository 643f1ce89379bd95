"""Attention that reads a sequence backwards on purpose, to predict an earlier element from later ones."""

from __future__ import annotations

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._dependence import Node, Place, upstream
from lox._audit._program import Step
from lox._audit._rules import primitives


def is_backwards(scores: Step, audited: Audited) -> bool:
    """Say whether scores come from a later part of an array, and the result from an earlier part that they do not.

    The parts are slices of one size that overlap, as `x[:, 1:]`, which is read, and `x[:, :-1]`, which is predicted.
    """
    places = audited.dependence.places
    slices = [place for place in places if _is_slice(place)]
    read = upstream((node for place in places if place.step is scores for node in place.inputs[:2]), smoothly=False)
    into = [place for place in slices if place.outputs[0] in read]
    if not into:
        return False
    used = upstream(audited.dependence.outputs, smoothly=False) - read
    beside = [place for place in slices if place.outputs[0] in used]
    return any(_is_later(one, other) for one in into for other in beside)


def _is_slice(place: Place) -> bool:
    params = place.step.equation.params
    return place.step.equation.primitive in primitives("slice") and set(params["strides"] or (1,)) == {1}


def _is_later(one: Place, other: Place) -> bool:
    """Say whether a slice is another one of the same array and size, moved towards the end along one axis."""
    first, second = (place.step.equation.params for place in (one, other))
    starts = list(zip(first["start_indices"], second["start_indices"], strict=False))
    moved = [axis for axis, (start, earlier) in enumerate(starts) if start != earlier]
    if _array(one) is not _array(other) or one.outputs[0].value.shape != other.outputs[0].value.shape or not moved:
        return False
    start, earlier = starts[moved[0]]
    return len(moved) == 1 and earlier < start < second["limit_indices"][moved[0]]


def _array(place: Place) -> Node:
    return plain(place.inputs[0])
