"""Random numbers that are the same in each iteration of a loop on purpose, as they are a part of the problem.

A random function that a state moves in is drawn anew in each iteration, and is the same one. A descent that
goes over no data lowers an average over the same samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from lox._audit._audited import Audited
from lox._audit._checks._randomness._common import Common
from lox._audit._checks._randomness._draws import size_of
from lox._audit._checks._randomness._key_arrays import USES, is_keyed
from lox._audit._checks._randomness._key_uses import Repetition
from lox._audit._dependence import Node, Place, is_inexact
from lox._audit._location import transformations
from lox._audit._program import Region
from lox._audit._rules import primitives

_CONTRACTING = primitives("dot_general", "conv_general_dilated")


def is_fixed(audited: Audited, repetition: Repetition) -> bool:
    """Say whether what each iteration of a loop draws from one key is a part of the problem that the loop solves."""
    common = audited.once(Common)
    body = repetition.step.regions[-1]
    inside = common.places.get(repetition.step, [])
    taken = {each for place in inside for node in place.inputs for each in common.names(node)}
    carried = {each.inside for each in body.carried if not is_keyed(each.inside.aval)}
    given = {each.inside for each in body.inputs if each.role == "each" and not is_keyed(each.inside.aval)}
    moving = common.reached(node for node in taken if node.value in carried)
    changing = moving | common.reached(node for node in taken if node.value in given)
    drawn = [place for place in common.places.get(repetition.use.step, ()) if place.step.equation.primitive in USES]
    start = [node for place in drawn for node in place.outputs]
    fixed = common.reached(start, apart=changing)
    met_before = common.reached(start) - fixed
    first = [each for each in inside if _takes(each, fixed) and not _takes(each, met_before)]
    met = [each for each in first if _takes(each, changing) and not _is_backward(each)]
    if not met or not all(_takes(place, moving) for place in met):
        return False
    if all(map(_contracts, met)):
        return True
    return (
        any(map(_is_backward, inside)) and not _takes_data(body) and all(_averages(common, each, fixed) for each in met)
    )


def _takes(place: Place, nodes: Set[Node]) -> bool:
    return not nodes.isdisjoint(place.inputs)


def _is_backward(place: Place) -> bool:
    return any("transpose" in transformations(step.equation) for step in (place.step, *place.around))


def _contracts(place: Place) -> bool:
    return place.step.equation.primitive in _CONTRACTING


def _takes_data(body: Region) -> bool:
    """Say whether a loop goes over numbers that its iterations use."""
    return any(each.role == "each" and each.inside.uses and is_inexact(each.inside) for each in body.inputs)


def _averages(common: Common, place: Place, fixed: Set[Node]) -> bool:
    """Say whether many samples meet the same numbers."""
    samples = _size(common.plain(node) for node in place.inputs if node in fixed)
    return samples > _size(common.plain(node) for node in place.inputs if node not in fixed)


def _size(nodes: Iterable[Node]) -> int:
    return max((size_of(node.value) for node in nodes), default=0)
