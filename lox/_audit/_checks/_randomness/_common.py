"""Random numbers that two computations share on purpose: what is computed from them is alike, and is compared.

Two evaluations with the same noise differ less by chance: finite differences, the same episodes for two policies,
antithetic pairs. An image and its labels are cropped at the same places.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Set
from typing import Any

from lox._audit._audited import Audited
from lox._audit._checks._randomness._key_arrays import USES
from lox._audit._dependence import Node, Place
from lox._audit._location import transformations
from lox._audit._origins import FLOWS
from lox._audit._program import Step, blocks_in
from lox._audit._rules import primitives
from lox._audit._worklist import Worklist

_COMPARING = primitives("sub", "div", "lt", "le", "gt", "ge")
_JOINING = primitives("add", "concatenate")
_SIGNED = primitives("add", "sub")
_NEGATIVE = primitives("neg")
_AFFINE = primitives("add", "sub", "neg") | FLOWS
_INDEXING = primitives("gather", "dynamic_slice", "select_n")
_CHOOSING = primitives("select_n")
_MOST = 5000
"""How many pairs of values are compared."""


@dataclasses.dataclass
class _Likeness:
    """Two values that are computed alike from the draws of one key.

    Attributes:
        met: Whether the draws were met.
        differs: Whether anything else that they are computed from differs.
        opposite: Whether the noise has opposite signs.
        mixed: Whether anything but sums is made of the noise, so that it does not cancel out.
    """

    met: bool = False
    differs: bool = False
    opposite: bool = False
    mixed: bool = False


class _Side:
    """What depends on what a step draws or splits, within an iteration of the loops around it."""

    def __init__(self, step: Step, common: Common) -> None:
        self.step = step
        places = common.places.get(step, [])
        drawing = [place for place in places if place.step is step or place.step.equation.primitive in USES]
        self.starts = {node for place in drawing for node in place.outputs}
        self.inner = set(places)
        self.drawn = {passed for place in places for node in place.outputs for passed in _passed_on(node, common)}
        self.reached = common.reached(self.starts)
        self.taking = common.taking(self.reached)

    def takes(self, place: Place) -> list[int]:
        """The operands of an operation that depend on it."""
        return [index for index, node in enumerate(place.inputs) if node in self.reached]

    def first_takes(self, place: Place) -> bool:
        """Say whether an operation is the first one that takes what is drawn."""
        if place in self.inner:
            return False
        return any(node in self.drawn for node in place.inputs)


class Common:
    """The uses of a key in a program that have the same random numbers on purpose."""

    def __init__(self, audited: Audited) -> None:
        places = audited.dependence.places
        self._made = {node: place for place in places for node in place.outputs}
        self._running = [place for place in places if place.step.blocks]
        self.places: dict[Step, list[Place]] = {}
        for place in places:
            for step in {place.step, *place.around}:
                self.places.setdefault(step, []).append(place)

    def is_made(self, node: Node) -> bool:
        """Say whether a node is the result of an operation."""
        return node in self._made

    def is_carried(self, node: Node) -> bool:
        """Say whether a node is what a loop carries, inside it."""
        return node not in self._made and len(node.sources) > 1

    def names(self, node: Node) -> Iterator[Node]:
        """A value, and what it is called outside the calls that it goes into."""
        yield node
        while node not in self._made and len(node.sources) == 1:
            node = node.sources[0][0]
            yield node

    def reached(self, start: Iterable[Node], apart: Set[Node] = frozenset()) -> set[Node]:
        """What depends on these, within an iteration of the loops around them and not by way of `apart`."""
        found = set(start) - apart
        left = list(found)
        while left:
            new = {each for each, _ in left.pop().feeds if not self.is_carried(each)} - found - apart
            found |= new
            left += new
        return found

    def taking(self, nodes: Set[Node]) -> list[Place]:
        """The operations that take any of these."""
        found = dict.fromkeys(self._made[feed] for node in nodes for feed, _ in node.feeds if feed in self._made)
        return [
            *found,
            *(place for place in self._running if place not in found and not nodes.isdisjoint(place.inputs)),
        ]

    def is_meant(self, first: Step, second: Step) -> bool:
        """Say whether two steps are to have the same random numbers."""
        sides = _Side(first, self), _Side(second, self)
        return (
            any(self._compares(place, *sides) for place in sides[0].taking)
            or self._is_paired(*sides)
            or self._is_differentiated_again(*sides)
        )

    def _compares(self, place: Place, one: _Side, other: _Side) -> bool:
        """Say whether an operation compares what is computed alike from both."""
        is_comparison = place.step.equation.primitive in _COMPARING
        if not is_comparison and place.step.equation.primitive not in _JOINING:
            return False
        likenesses = (self._likeness([pair], one, other) for pair in _meeting(place, one, other))
        return any(like and like.met and _is_common(like, is_comparison) for like in likenesses)

    def _is_paired(self, one: _Side, other: _Side) -> bool:
        """Say whether both only say which elements of several arrays are taken."""
        chosen = list(self._indexed(other, one))
        return any(
            self._are_paired(place, again, one, other) for place in self._indexed(one, other) for again in chosen
        )

    def _are_paired(self, place: Place, again: Place, one: _Side, other: _Side) -> bool:
        indices = one.takes(place)
        if place.step.equation.primitive is not again.step.equation.primitive or indices != other.takes(again):
            return False
        pairs = list(zip(place.inputs, again.inputs, strict=False))
        like = self._likeness([pairs[index] for index in indices], one, other)
        data = self._likeness([pair for index, pair in enumerate(pairs) if index not in indices], one, other)
        return bool(like and data and like.met and not like.differs and not like.opposite and data.differs)

    def _is_differentiated_again(self, one: _Side, other: _Side) -> bool:
        """Say whether both are in one computation with the same operands, of which two derivatives are taken."""
        around = transformations(one.step.equation)
        if "jvp" not in around or around != transformations(other.step.equation):
            return False
        if any(_meeting(place, one, other) and _is_primal(place) for place in one.taking):
            return False  # They are parts of one function that is differentiated.
        again = [place for place in other.taking if _is_primal(place) and other.first_takes(place)]
        found = [place for place in one.taking if _is_primal(place) and one.first_takes(place)]
        return bool(found) and all(any(self._are_same(place, each, one, other) for each in again) for place in found)

    def _are_same(self, place: Place, again: Place, one: _Side, other: _Side) -> bool:
        like = _are_alike(place, again) and self._likeness(zip(place.inputs, again.inputs, strict=True), one, other)
        return bool(like and like.met and not like.differs and not like.opposite)

    def _indexed(self, side: _Side, other: _Side) -> Iterator[Place]:
        """The operations that take elements of other arrays at places that depend on a draw."""
        for place in side.taking:
            primitive, takes = place.step.equation.primitive, side.takes(place)
            if primitive not in _INDEXING or not takes or place in side.inner or other.takes(place):
                continue
            if primitive in _CHOOSING and (takes != [0] or any(each.literal is not None for each in place.inputs)):
                continue
            if primitive in _CHOOSING and any(each.value.number is not None for each in place.inputs[1:]):
                continue  # A mask of noise, as of dropout.
            if 0 not in takes or primitive in _CHOOSING:
                yield place

    def _likeness(self, pairs: Iterable[tuple[Node, Node]], one: _Side, other: _Side) -> _Likeness | None:
        """What two values have in common, going back from both at once; None if they are not computed alike."""
        found = _Likeness()
        left = Worklist(pairs, _MOST)
        for pair in left:
            a, b = map(self.plain, pair)
            random = a in one.reached, b in other.reached
            if a is b:
                continue
            made, again = self._made.get(a), self._made.get(b)
            if made is not None and again is not None and _are_alike(made, again):
                found.met |= a in one.starts and b in other.starts
                found.mixed |= (
                    all(random) and (made not in one.inner or bool(made.step.blocks)) and not _is_affine(made)
                )
                found.opposite |= made.step.equation.primitive in primitives("mul") and any(
                    map(_are_opposite, map(self.plain, made.inputs), map(self.plain, again.inputs))
                )
                left.add(zip(made.inputs, again.inputs, strict=True))
            elif not any(random):
                found.differs |= not _is_same_number(a, b)
            elif sources := _with_signs(made, again):
                found.opposite = True
                left.add(sources)
            else:
                return None
        return found

    def plain(self, node: Node) -> Node:
        """A value before what passes its numbers on."""
        while True:
            place = self._made.get(node)
            if place is None and len(node.sources) == 1:
                node = node.sources[0][0]
            elif place is not None and place.step.equation.primitive in FLOWS:
                node = place.inputs[0]
            else:
                return node


def _is_common(like: _Likeness, is_comparison: bool) -> bool:
    return like.mixed and (like.opposite or (is_comparison and like.differs))


def _meeting(place: Place, one: _Side, other: _Side) -> list[tuple[Node, Node]]:
    """The operands of an operation of which each depends on another draw."""
    ours, theirs = set(one.takes(place)), set(other.takes(place))
    return [(place.inputs[a], place.inputs[b]) for a in ours - theirs for b in theirs - ours]


def _is_primal(place: Place) -> bool:
    """Say whether an operation is of the forward part of a derivative."""
    around = {name for step in (place.step, *place.around) for name in transformations(step.equation)}
    return "jvp" in around and "transpose" not in around


def _passed_on(node: Node, common: Common) -> list[Node]:
    """A value, and what it is called outside the calls that it comes out of."""
    found = [node]
    for each in found:
        found += [feed for feed, _ in each.feeds if not common.is_made(feed) and len(feed.sources) == 1]
    return found


def _are_alike(one: Place, other: Place) -> bool:
    """Say whether two operations are the same one, of whatever operands."""
    first, second = one.step, other.step
    if first is second:
        return True
    if first.equation.primitive is not second.equation.primitive or len(one.inputs) != len(other.inputs):
        return False
    if [each.shape for each in first.outputs] != [each.shape for each in second.outputs]:
        return False
    if first.blocks or second.blocks:
        return _runs(first) == _runs(second)
    return bool(first.equation.params == second.equation.params)


def _runs(step: Step) -> list[Any]:
    """The primitives of all that a step runs."""
    return [[inner.equation.primitive for inner in each.steps] for block in step.blocks for each in blocks_in(block)]


def _is_affine(place: Place) -> bool:
    """Say whether an operation is a sum, or multiplies by a number."""
    primitive = place.step.equation.primitive
    is_scaled = primitive in primitives("mul", "div") and any(each.value.number is not None for each in place.inputs)
    return primitive in _AFFINE or is_scaled


def _are_opposite(one: Node, other: Node) -> bool:
    """Say whether two values are a number and that number with the other sign."""
    first, second = one.value.number, other.value.number
    return first is not None and second is not None and first == -second != 0


def _is_same_number(one: Node, other: Node) -> bool:
    return one.value.number is not None and one.value.number == other.value.number


def _with_signs(one: Place | None, other: Place | None) -> list[tuple[Node, Node]]:
    """The operands of a sum and of a difference, or those of a value and of its negative."""
    if one is None or other is None:
        return []
    first, second = one.step.equation.primitive, other.step.equation.primitive
    if first in _SIGNED and second in _SIGNED:
        return list(zip(one.inputs, other.inputs, strict=True))
    if first in _NEGATIVE:
        return [(one.inputs[0], each) for each in other.outputs[:1]]
    return [(each, other.inputs[0]) for each in one.outputs[:1]] if second in _NEGATIVE else []
