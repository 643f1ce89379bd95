"""Derivatives of operations: those that the caller asked for, and those that the program takes itself."""

from __future__ import annotations

import collections
from typing import Any

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._paths import differentiated, loss_of
from lox._audit._checks._autodiff._way import is_asked
from lox._audit._dependence import Node, Place, downstream, upstream
from lox._audit._location import Frame, frames, is_internal, is_recomputed, transformations
from lox._audit._rules import primitives

_FACTORS = primitives("mul", "div")
_DIVISIONS = primitives("div")
_ROOTS = primitives("sqrt")
"""Operations whose derivative JAX writes with the result in place of the operand."""

_CHOICES = primitives("select_n")

Site = Frame | None


class Asked:
    """The derivative that `differentiate=` asks for."""

    def __init__(self, audited: Audited) -> None:
        dependence = audited.dependence
        self._after = downstream(differentiated(audited, dependence).values())
        self._before = upstream(loss_of(audited, dependence))

    def takes(self, place: Place) -> bool:
        """Say whether the derivative by the first operand of an operation is taken."""
        return place.inputs[0] in self._after and not self._before.isdisjoint(place.outputs)

    def chooses(self, select: Place) -> bool:
        """Say whether a derivative goes through a choice."""
        return select.outputs[0] in self._after & self._before

    def passes(self, place: Place, operand: Node) -> bool:
        """Say whether the derivative at the pole of an operand is taken, and gets to what is differentiated by."""
        return operand in self._after or self._is_open(place.inputs[0])

    def multiplies(self, product: Place, factor: Node) -> bool:
        """Say whether the derivative of a product by what a factor is multiplied with is taken."""
        is_square = product.inputs[0] is product.inputs[-1]
        return any(node in self._after for node in product.inputs if is_square or node is not factor)

    def _is_open(self, node: Node) -> bool:
        """Say whether no other choice is on some way from a value to what is differentiated by.

        What is kept out of a sum by a choice gets no derivative from it, be it NaN.
        """
        seen, left = {node}, [node]
        while left:
            node = left.pop()
            if node in self._after and not node.sources:
                return True
            if node.place is None or node.place.step.equation.primitive not in _CHOICES:
                found = {source for source, smooth in node.sources if smooth and source in self._after} - seen
                seen |= found
                left += found
        return False


class Taken:
    """The derivatives that a program takes itself, as by `jax.grad` in an update step.

    The forward part has been through `jvp`. The operations of the backward part, its transpose, have the call in the
    user's program that those have which they come from. A derivative is taken if the backward part multiplies by it.
    """

    def __init__(self, audited: Audited) -> None:
        self._backward: dict[Site, list[Place]] = collections.defaultdict(list)
        self._forward: dict[Place, None] = {}
        self._anew: dict[Place, None] = {}
        self._first: dict[Node, Node] = {}
        for place in audited.dependence.places:
            steps = (*place.around, place.step)
            through = {name for step in steps for name in transformations(step.equation)}
            if "transpose" in through and any(is_recomputed(step.equation) for step in steps):
                self._anew[place] = None
            elif "transpose" in through and not audited.live.isdisjoint(place.step.outputs):
                self._backward[_site(place)].append(place)
            elif "jvp" in through and "transpose" not in through:
                self._forward[place] = None
        if self._anew:
            self._match()

    def _match(self) -> None:
        """Finds what each value that a `jax.checkpoint` computes anew was before, where one alone may be that."""
        before: dict[tuple[Site, Any], list[Place]] = collections.defaultdict(list)
        for place in self._forward:
            before[_site(place), place.step.equation.primitive].append(place)
        for place in self._anew:
            found = before.get((_site(place), place.step.equation.primitive), ())
            if len(found) == 1:
                self._first.update(zip(place.outputs, found[0].outputs, strict=False))

    def takes(self, place: Place) -> bool:
        """Say whether the derivative of an operation by its first operand is taken."""
        return self._multiplies(place, place.inputs[0]) or self._divides(place, place.inputs[0])

    def chooses(self, select: Place) -> bool:
        """Say whether a derivative goes through a choice."""
        return select in self._forward and any(
            place.step.equation.primitive in _CHOICES
            and self._source(place.inputs[0]) is self._source(select.inputs[0])
            for place in self._backward.get(_site(select), ())
        )

    def passes(self, place: Place, operand: Node) -> bool:
        """Say whether the derivative at the pole of an operand is taken, and gets to what is differentiated by."""
        if self._multiplies(place, operand):
            return True
        return self._divides(place, operand) and (operand is place.inputs[0] or not self._is_chosen(place.inputs[0]))

    def multiplies(self, product: Place, factor: Node) -> bool:
        """Say whether the derivative of a product by what a factor is multiplied with is taken."""
        return product in self._forward and any(
            back.step.equation.primitive in _FACTORS and self._source(factor) in map(self._source, back.inputs)
            for back in self._backward.get(_site(product), ())
        )

    def _divides(self, place: Place, operand: Node) -> bool:
        """Say whether the backward part of an operation divides by an operand of it."""
        return place in self._forward and any(
            back.step.equation.primitive in _DIVISIONS and self._source(back.inputs[1]) is self._source(operand)
            for back in self._backward.get(_site(place), ())
        )

    def _multiplies(self, place: Place, operand: Node) -> bool:
        """Say whether it multiplies by what the forward part has computed for it of an operand, or of a root."""
        if place not in self._forward:
            return False
        is_root = place.step.equation.primitive in _ROOTS
        site, ends = _site(place), {self._source(place.outputs[0] if is_root else operand)}
        backward = [back for back in self._backward.get(site, ()) if back.step.equation.primitive in _FACTORS]
        left = [self._source(node) for back in backward for node in back.inputs]
        left = [node for node in left if node not in ends]
        seen = set(left)
        while left:
            made = left.pop().place
            if made is None or made is place or not self._is_forward(made) or _site(made) != site:
                continue
            before = {self._source(node) for node in made.inputs}
            if not before.isdisjoint(ends):
                return True
            left += before - seen
            seen |= before
        return False

    def _is_forward(self, place: Place) -> bool:
        return place in self._forward or place in self._anew

    def _source(self, node: Node) -> Node:
        """A value before changes of its shape and type, and before a `jax.checkpoint` computed it anew."""
        node = plain(node)
        return self._first.get(node, node)

    def _is_chosen(self, node: Node) -> bool:
        """Say whether there is a choice among what a value of the forward part is made of."""
        seen, left = {node}, [node]
        while left:
            node = left.pop()
            if node.place is not None and node.place not in self._forward:
                continue
            if node.place is not None and node.place.step.equation.primitive in _CHOICES:
                return True
            found = {source for source, smooth in node.sources if smooth} - seen
            seen |= found
            left += found
        return False


def ways_of(audited: Audited) -> list[Asked | Taken]:
    """The derivatives that the caller asked for, and those that the program takes."""
    ways: list[Asked | Taken] = [Asked(audited)] if is_asked(audited) else []
    return [*ways, Taken(audited)] if audited.differentiates else ways


def _site(place: Place) -> Site:
    """The call in the user's program that an operation comes from; that of what runs it where it has none."""
    for step in (place.step, *reversed(place.around)):
        for frame in frames(step.equation):
            if not is_internal(frame.file):
                return frame
    return None
