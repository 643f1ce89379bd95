"""The functions that a program differentiates itself, each as if it was audited with `differentiate=`."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._capture import Capture, name_of
from lox._audit._differentiated import differentiated_in
from lox._audit._location import Location, locate
from lox._audit._naming import name_values
from lox._audit._walk import Walk


def derivatives(audited: Audited) -> Iterator[tuple[Audited, Location]]:
    """What a program differentiates, each with the line where it does so."""
    for equation, found in differentiated_in(audited.captured.jaxpr):
        name = name_of(found.fun)
        program = Walk().block(name, found.program, found.facts, found.arguments)
        name_values(program)
        captured = Capture(name, found.program, found.arguments, ("out",), None, None, audited.captured.reached)
        yield (
            Audited(
                fun=found.fun,
                arguments=audited.arguments,
                captured=captured,
                program=program,
                differentiate=found.by,
            ),
            locate(equation),
        )
