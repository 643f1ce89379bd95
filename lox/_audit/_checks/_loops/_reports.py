"""Loops over several episodes: what they put out where an episode ends, beside what they carry on."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._loops._memories import MEMORY, differ, is_recurrent, totals
from lox._audit._episodes import Flow, flows
from lox._audit._findings import Finding
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Value
from lox._audit._rules import primitives


def reports(audited: Audited) -> Iterator[Finding]:
    """LOX221: a state or a total is masked where it is put out, and not where it is carried; or reset too early."""
    for flow in audited.once(flows):
        text = "" if flow.is_backward else _masked(flow) or _total(flow) or _reset_before(flow, audited.origins)
        if text:
            yield MEMORY.at(flow.location, text)


def _masked(flow: Flow) -> str:
    """A recurrent state is zero in the output where an episode ends, and goes on in the carry."""
    for place in flow.numbers:
        bit, ending = 1 << place, flow.ending[place]
        if flow.knows(place) or not is_recurrent(ending, place) or not ending.squashed & bit:
            continue
        for output, value in _put_out(flow):
            is_cut = flow.going[output].may & ~flow.ending[output].may & bit
            if is_cut and value.shape == flow.loop.carry[place][1].shape:
                return (
                    f"A loop resets {flow.name(place)} in what it puts out where an episode ends, and goes on with it "
                    "in what it carries."
                )
    return ""


def _total(flow: Flow) -> str:
    """A loop puts out a total where an episode ends, and does not reset it."""
    for place in totals(flow):
        bit = 1 << place
        for output, _ in _put_out(flow):
            is_report = flow.ending[output].sure & flow.ending[output].kept & ~flow.going[output].may & bit
            if is_report and not any(differ(flow, bit, 1 << other) for other in flow.numbers if other != place):
                return (
                    f"A loop puts out {flow.name(place)} where an episode ends, and goes on adding to it in the next "
                    "episode."
                )
    return ""


def _reset_before(flow: Flow, origins: Origins) -> str:
    """A loop resets a total before it reports it, so that each report is the initial number."""
    reset = [place for place in range(len(flow.loop.carry)) if flow.ending[place].number is not None]
    for output, value in enumerate(flow.loop.body.outputs):
        unknown, going, ending = flow.unknown[output], flow.going[output], flow.ending[output]
        if unknown.number is not None or ending.number is None or unknown.is_mask:
            continue
        is_always = flow.ended[output].number is not None
        own = 1 << output if output < len(flow.loop.carry) else 0
        is_kept = going.number is not None or (own and going.may & ~flow.ends == going.added == own)
        for place in reset if is_kept else ():
            is_counted = flow.going[place].added & 1 << place and flow.going[place].number is None
            is_as_reset = flow.ending[place].number == ending.number and value is not flow.loop.carry[place][2]
            is_told = is_always or _takes(value, flow.loop.carry[place][1], origins)
            if is_told and is_counted and is_as_reset and output != place and unknown.may & 1 << place:
                return (
                    f"A loop reports {flow.name(place)} where an episode ends after it was reset there: what is "
                    f"reported is always {ending.number:g}."
                )
    return ""


def _takes(value: Value, carried: Value, origins: Origins) -> bool:
    """Say whether a value is, in some case, what is carried as it comes from the iteration before."""
    made = origins.of(value, FLOWS).maker
    is_choice = made is not None and made.equation.primitive in primitives("select_n")
    return made is not None and is_choice and any(origins.of(case, FLOWS) is carried for case in made.inputs[1:])


def _put_out(flow: Flow) -> Iterator[tuple[int, Value]]:
    """The places of what each iteration puts out besides what it carries."""
    yield from ((len(flow.loop.carry) + place, value) for place, value in enumerate(flow.loop.ys))


CHECKS = (reports,)
