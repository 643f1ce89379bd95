"""Values of next states where an episode is only cut short."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lox._audit._audited import Audited
from lox._audit._ends import Flags, last_name
from lox._audit._episodes import ENDING, GOING, Before, Fold, before, declarations, is_of_next_step
from lox._audit._findings import Finding, Held, Kind
from lox._audit._loops import scans
from lox._audit._origins import PASSING
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

CUT_SHORT = Kind(
    "LOX223",
    "warning",
    "A value is not bootstrapped where an episode is only cut short",
    "Multiply the value of the next state by (1 - terminated): after a time limit, there would have been more rewards. "
    "What is carried from step to step still stops at each end.",
    "Values of next states stop where episodes terminate.",
    "The operations were evaluated with the flag that lox.audit.expect(done=...) declares unset and all others set.",
)

_NEXT = re.compile(
    r"next_?(state_?)?(values?|v|vs|q|qs|q_?values?)|(v|q|values?)_?(next|tp1)|bootstrap(ped)?(_?values?)?"
    r"|(final|terminal)_?values?",
    re.IGNORECASE,
)


def cut_short(audited: Audited) -> Iterator[Finding | Held]:
    """LOX223: a value of a next state is made zero by a flag that is not the one that is declared to end episodes."""
    declared = audited.once(declarations)
    if not declared:
        return
    flags = Flags(audited)
    scanned = {inside: outside for scan, _ in scans(audited) for outside, inside in scan.xs}
    for step, location in audited.of("mul", "select_n"):
        flags.declared = declared.get(step, frozenset())
        value = _bootstrapped(audited, step, scanned) if flags.declared else None
        if value is None:
            continue
        if _is_zero(audited, flags, step, scanned, ENDING) and not _is_zero(audited, flags, step, scanned, GOING):
            said = " or ".join(sorted(flags.declared))
            yield CUT_SHORT.at(
                location,
                f"{value.called} is made zero where an episode is over, and not only where expect(done=...) says that "
                f"it ends, which is {said}.",
            )
        else:
            yield CUT_SHORT.fine(location)


def _bootstrapped(audited: Audited, step: Step, scanned: Mapping[Value, Value]) -> Value | None:
    """The operand that is called a value of the next state, and is not that of the step after it."""
    for value in step.inputs:
        origin = before(audited, value, PASSING, scanned)
        is_scaled = origin.maker is not None and origin.maker.equation.primitive in primitives("mul")
        for each in (origin, *(origin.maker.inputs if is_scaled and origin.maker else ())):
            found = before(audited, each, PASSING, scanned)
            is_next = any(_NEXT.fullmatch(last_name(name)) for name in (each.name, found.name, found.written) if name)
            if is_next and not (found.maker is not None and is_of_next_step(found.maker)):
                return found
    return None


def _is_zero(
    audited: Audited, flags: Flags, step: Step, scanned: Mapping[Value, Value], scenario: tuple[float, float]
) -> bool:
    """Whether a step makes zero of a value where no declared flag is set, and all others are as in a scenario."""
    fold = Fold(scenario, flags, 1)
    fold.declared_end = 0.0
    outside = Before(audited, fold, 2, scanned)
    (result,) = fold.step(step, [outside.sliced(each, each) for each in step.inputs])
    return result.number == 0


KINDS = (CUT_SHORT,)
CHECKS = (cut_short,)
