"""The part of a loss that depends on what it is differentiated by."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._attained import is_constant, plain
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._paths import differentiated, loss_of
from lox._audit._dependence import Node, Place, downstream, upstream
from lox._audit._location import is_users, transformations
from lox._audit._rules import primitives
from lox._audit._terms import Term


class Way:
    """The values of a loss that depend on what it is differentiated by, and its operations on the user's account."""

    def __init__(self, audited: Audited) -> None:
        dependence = audited.dependence
        self.by = frozenset(differentiated(audited, dependence).values())
        self.on = downstream(self.by)
        self.touched = downstream(self.by, smoothly=False)
        self.inputs = frozenset(dependence.inputs)
        self.before = upstream(loss_of(audited, dependence))
        self.places = [
            place
            for place in dependence.places
            if not self.before.isdisjoint(place.outputs)
            and not self.on.isdisjoint(place.inputs)
            and is_users(place.location.of_user.file)
            and not {"jvp", "transpose"} & set(transformations(place.step.equation))
        ]

    def of(self, *names: str) -> Iterator[Place]:
        """The operations of primitives of these names."""
        wanted = primitives(*names)
        return (place for place in self.places if place.step.equation.primitive in wanted)

    def is_data(self, term: Term) -> bool:
        """Whether a term is an array of numbers that the parameters have no part in."""
        return term.node not in self.touched and not is_constant(term.node) and term.node.literal is None


def is_asked(audited: Audited) -> bool:
    """Whether somebody said by what the result is to be differentiated."""
    return bool(audited.differentiate and audited.captured.results)


def is_square(place: Place) -> bool:
    """Whether an operation squares its operand, or takes its size, as losses do with an error."""
    primitive = place.step.equation.primitive
    if primitive in primitives("mul"):
        return plain(place.inputs[0]) is plain(place.inputs[1])
    if primitive in primitives("integer_pow"):
        return bool(place.step.equation.params["y"] == 2)
    return primitive in primitives("square", "abs")


def text_of(node: Node) -> str:
    """What to call a value."""
    return f"{node.value.called} of shape {node.value.shape}"
