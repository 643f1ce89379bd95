"""Loops over several episodes: returns that go on from one into the next, and resets of all environments."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._episodes import Flow, flows
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import transformations
from lox._audit._needs import read
from lox._audit._origins import PASSING
from lox._audit._parts import Part
from lox._audit._program import Value
from lox._audit._rules import primitives

_ENVIRONMENTS = re.compile(r"(num_?)?(env(ironment)?|world|actor|agent|worker|lane)s?", re.IGNORECASE)
_SAME = PASSING | primitives("convert_element_type")

RETURNS = Kind(
    "LOX220",
    "error",
    "A return goes on over the end of an episode",
    "Multiply each term that comes from the next step by (1 - done), the bootstrapped value as well as what is "
    "carried; or take jnp.where(done, 0, ...) of it.",
    "Returns stop at the ends of episodes.",
    "The body of each loop over time was evaluated with all flags of ends set, and what it carries was followed.",
)
OTHERS = Kind(
    "LOX222",
    "warning",
    "The end of one episode resets all environments",
    "Choose for each environment by itself: jnp.where(done, new, old), where done has an axis of environments, with "
    "done[:, None] for arrays that have more axes.",
    "Environments are reset one by one.",
    "The body of each loop was evaluated with the end of an episode in another environment.",
)


def returns(audited: Audited) -> Iterator[Finding | Held]:
    """LOX220: with all flags of ends set, a return that is computed backwards depends on the step after it."""
    for flow in audited.once(flows):
        if not flow.is_backward or not flow.reads_ends:
            continue
        place, sources = next(_leaks(flow), (0, []))
        if sources:
            yield RETURNS.at(
                flow.location,
                f"{flow.name(place)} of a step at which an episode ends depends on "
                f"{' and '.join(map(flow.name, sources))} of the step after it, which is of the next episode.",
            )
        elif any(map(flow.knows, range(len(flow.loop.carry)))):
            yield RETURNS.fine(flow.location)


def unread(audited: Audited) -> Iterator[Finding]:
    """LOX220: a loop backwards carries the flag of the next step, reads that of the step itself, and never the next."""
    for flow in audited.once(flows):
        used = read(flow.loop.body) if flow.is_backward and flow.cut else set()
        scanned = {inside for _, inside in flow.loop.xs}
        for _, inside, new in flow.loop.carry if used else ():
            flag = audited.origins.of(new, _SAME)
            is_told = flow.values[flag].is_end if flag in scanned else False
            if is_told and inside not in used and flag in used and flag.uses > 1:
                yield RETURNS.at(
                    flow.location,
                    f"A loop carries {flag.called} of the step after and never reads it. What comes from that step is "
                    f"stopped by {flag.called} of the step itself: one of them is of the wrong step.",
                    severity="warning",
                )


def _leaks(flow: Flow) -> Iterator[tuple[int, list[int]]]:
    """The places of carried returns that go on over the ends of episodes, and the sources of what goes on."""
    each = [place for place in flow.numbers if _is_of_each_step(flow, flow.loop.carry[place][1])]
    followed = [*each, *(bit.bit_length() - 1 for bit in flow.shifted)]
    for place in each:
        ending, going = flow.ending[place], flow.going[place]
        sources = [source for source in followed if ending.sure & going.may & 1 << source]
        sources = [each for each in sources if not flow.may_go_on(each, bool(ending.added & 1 << each))]
        is_total = sources == [place] and ending.added & 1 << place
        if is_inverted(flow, place):
            yield place, [place]
        elif sources and not is_total:
            yield place, sources


def _is_of_each_step(flow: Flow, value: Value) -> bool:
    """Whether a value that is carried has an element for each flag."""
    return any(value.shape == shape or (shape and value.shape[: len(shape)] == shape) for shape in flow.shapes)


def is_inverted(flow: Flow, place: int) -> bool:
    """Whether what is carried goes on only where an episode ends."""
    return bool(flow.ending[place].sure & ~flow.going[place].may & 1 << place)


def others(audited: Audited) -> Iterator[Finding | Held]:
    """LOX222: where an episode of one environment ends, what is carried of the others is reset."""
    for flow in audited.once(flows):
        if flow.another is None:
            continue
        found = [place for place in range(len(flow.loop.carry)) if _is_reset_by_another(flow, flow.another, place)]
        if found:
            yield OTHERS.at(
                flow.location,
                f"A loop resets {flow.name(found[0])} of all environments where an episode ends in any of them.",
                severity="warning" if _is_of_environments(flow, found[0]) or _are_given(flow) else "info",
            )
        else:
            yield OTHERS.fine(flow.location)


def _is_reset_by_another(flow: Flow, another: list[Part], place: int) -> bool:
    first = flow.loop.carry[place][1].shape[:1]
    is_of_each = bool(first) and any(shape[:1] == first for shape in flow.shapes)
    return is_of_each and bool(flow.going[place].may & ~another[place].may & 1 << place)


def _are_given(flow: Flow) -> bool:
    """Whether flags, one for each environment, are scanned, so that the loop does not say itself what ends."""
    return not flow.causes and any(inside.shape and flow.values[inside].is_end for _, inside in flow.loop.xs)


def _is_of_environments(flow: Flow, place: int) -> bool:
    """Whether the first axis of a carried value is that of a vmap, or its label is that of environments."""
    first = flow.loop.carry[place][2].shape[:1]
    labels = [value.fact.labels[0] for value in flow.loop.carry[place][:2] if value.shape]
    if any(isinstance(label, str) and _ENVIRONMENTS.fullmatch(label) for label in labels):
        return True
    mapped = (step for step in flow.loop.body.steps if "vmap" in transformations(step.equation))
    return any(value.shape[:1] == first for step in mapped for value in step.outputs)


KINDS = (RETURNS, OTHERS)
CHECKS = (returns, unread, others)
