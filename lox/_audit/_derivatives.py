"""The functions that a program differentiates itself, each as if it was audited with `differentiate=`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._capture import Capture, capture
from lox._audit._differentiated import differentiated_in, watched
from lox._audit._location import Location, locate, transformations
from lox._audit._naming import name_values
from lox._audit._walk import Walk


def derivatives(audited: Audited) -> Iterator[tuple[Audited, Audited, Location]]:
    """The functions that a program differentiates, each with its result alone, as a whole, and the derivative's line.

    The function is traced once more for it: in the tracebacks of what is traced before it is differentiated, the calls
    around are missing, and other checks read these.
    """
    if not any("jvp" in transformations(step.equation) for step, _ in audited.steps):
        return
    with watched():
        traced = capture(audited.fun, *audited.arguments[0])
    for equation, found in differentiated_in(traced.jaxpr):
        program = Walk(code=traced.code).block(found.name, found.program, found.facts, found.arguments)
        name_values(program)
        reached = audited.captured.reached
        captured = Capture(found.name, found.program, found.arguments, (found.called,), None, None, reached)
        whole = Audited(audited.fun, audited.arguments, captured, program)
        loss = dataclasses.replace(program, outputs=(program.outputs[found.result],))
        function = Audited(audited.fun, audited.arguments, captured, loss, found.by, check_rules=audited.check_rules)
        yield function, whole, locate(equation)
