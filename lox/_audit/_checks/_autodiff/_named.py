"""Variables called target that the loss moves."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lox._audit._attained import plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._stopped import bootstrapped
from lox._audit._checks._autodiff._way import Way, is_asked, is_square
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import frames
from lox._audit._naming import variables_of
from lox._audit._rules import primitives

NAMED = Kind(
    "LOX618",
    "warning",
    "What is called a target depends on what the loss is differentiated by",
    "Take it as a constant, target = jax.lax.stop_gradient(...), or leave it out of what is differentiated by. If both "
    "sides are to be moved, give it another name or ignore LOX618.",
)

_TARGET = re.compile(r"(\w+_)?(targets?|teacher|backup|bootstrap)", re.IGNORECASE)


def named(audited: Audited) -> Iterator[Finding | Held]:
    """LOX618: one side of an error that is squared is a variable called target, and both sides move."""
    if not is_asked(audited):
        return
    way = audited.once(Way)
    for place in way.of("square", "integer_pow", "mul", "abs"):
        error = plain(place.inputs[0]).place
        if error is None or not is_square(place) or error.step.equation.primitive not in primitives("sub"):
            continue
        names = [_name_of_target(node, error) if node in way.on else None for node in error.inputs]
        called = [name for name in names if name]
        if None not in names and len(called) == 1 and not bootstrapped(place.inputs[0], way):
            yield NAMED.at(
                place.location,
                f"'{called[0]}' depends on the parameters like the value that it is compared with: the derivative "
                "moves both towards each other.",
            )


def _name_of_target(node: Node, error: Place) -> str:
    """The name of the variable that a value was computed for before the error, if it is that of a target."""
    around = set(frames(error.step.equation))
    node = resolved(node)
    while node.place is not None:
        for frame, name in variables_of(node.place.step.equation):
            if _TARGET.fullmatch(name) and frame not in around:
                return name
        before = plain(node)
        if before is node:
            break
        node = before
    return ""


KINDS = (NAMED,)
CHECKS = (named,)
