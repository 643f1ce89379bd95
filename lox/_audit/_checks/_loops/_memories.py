"""Loops over several episodes: what they remember of one in the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lox._audit._audited import Audited
from lox._audit._checks._loops._episodes import is_inverted
from lox._audit._ends import is_reward
from lox._audit._episodes import Flow, flows
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, is_users
from lox._audit._parts import Part
from lox._audit._program import Step
from lox._audit._rules import primitives

MEMORY = Kind(
    "LOX221",
    "warning",
    "A memory of one episode goes on into the next",
    "Start all that belongs to an episode anew where it ends, as with jax.tree.map(lambda new, old: jnp.where(done, "
    "new, old), initial, state); or multiply it by (1 - done).",
    "What loops remember of an episode stops at its end.",
    "The body of each loop over time was evaluated with all flags of ends set, and what it carries was followed.",
)


def memories(audited: Audited) -> Iterator[Finding | Held]:
    """LOX221: with all flags of ends set, a part of what is remembered of an episode goes on."""
    for flow in audited.once(flows):
        if flow.is_backward:
            continue
        goes_on = next(filter(None, (rule(flow) for rule in _RULES)), None)
        if goes_on is not None:
            yield MEMORY.at(_place(audited, flow, goes_on.reset), goes_on.text)
        elif flow.cut:
            yield MEMORY.fine(flow.location)


class GoesOn(NamedTuple):
    """A sentence that says which memory goes on over an end, and the place in the carry of what is reset there."""

    text: str
    reset: int | None = None


def _place(audited: Audited, flow: Flow, reset: int | None) -> Location:
    """The line of a reset, if the user wrote a choice there, or that of the loop."""
    chosen = None if reset is None else audited.origins.of(flow.loop.body.outputs[reset]).maker
    is_choice = chosen is not None and chosen.equation.primitive in primitives("select_n")
    location = audited.lines[chosen] if chosen is not None and is_choice else flow.location
    return location if is_users(location.file) else flow.location


def _inverted(flow: Flow) -> GoesOn | None:
    """What is carried goes on only where an episode ends, by flags that are given, and not found as in a search."""
    found = [place for place in flow.numbers if is_inverted(flow, place)]
    if not found or flow.causes or flow.ends.bit_count() > 1:
        return None
    name = flow.name(found[0])
    return GoesOn(f"A loop goes on with {name} where an episode ends, and starts it anew in each other step.")


def _trace(flow: Flow) -> GoesOn | None:
    """An eligibility trace goes on, and the errors that it is multiplied by stop at the ends of episodes."""
    for place in flow.numbers:
        bit, ending = 1 << place, flow.ending[place]
        if not ending.sure & ending.kept & ~ending.added & bit or flow.knows(place):
            continue
        has_weights = any(part.added & 1 << other and part.sure & bit for other, part in enumerate(flow.unknown))
        if has_weights and any(_multiplies(flow, step, bit) for step in flow.loop.body.steps):
            return GoesOn(
                f"A loop multiplies errors that stop at the ends of episodes by {flow.name(place)}, which goes on from "
                "one episode into the next."
            )
    return None


def _multiplies(flow: Flow, step: Step, bit: int) -> bool:
    """Say whether a step multiplies a trace by what depends on the end of an episode."""
    if step.equation.primitive not in primitives("mul"):
        return False
    parts = [flow.values.get(value, Part()) for value in step.inputs]
    return any(
        one.kept & bit and other.may & flow.ends and not other.is_mask for one, other in (parts, reversed(parts))
    )


def _partly_reset(flow: Flow) -> GoesOn | None:
    """Of a recurrent state whose parts depend on each other, one is reset and another is not."""
    for place in filter(lambda place: is_recurrent(flow.ending[place], place), flow.numbers):
        for other in flow.cut:
            if flow.ending[other].sure & 1 << place and flow.going[place].may & 1 << other:
                return GoesOn(
                    f"A loop resets {flow.name(other)} where an episode ends, and goes on with {flow.name(place)}, "
                    "which is computed together with it.",
                    other,
                )
    return None


def _never_reset(flow: Flow) -> GoesOn | None:
    """An environment is reset, and the recurrent state of the policy that acts in it is not."""
    for place in filter(lambda place: is_recurrent(flow.ending[place], place), flow.numbers):
        if flow.unknown[place].may & (flow.ends | _rewards(flow)) or not flow.ending[place].squashed & 1 << place:
            continue
        for other in flow.cut:
            if flow.is_cut(other, place):
                return GoesOn(
                    f"A loop resets {flow.name(other)} where an episode ends, and goes on with {flow.name(place)}, "
                    "which a network computes from its value in the step before.",
                    other,
                )
    return None


def is_recurrent(part: Part, place: int) -> bool:
    """Say whether what is carried goes through a cell of a network, and is neither a total nor parameters."""
    return bool(part.sure & ~part.kept & (part.squashed | part.gated) & 1 << place)


def _rewards(flow: Flow) -> int:
    """The sources that carry a reward."""
    return sum(1 << place for place, values in enumerate(flow.loop.carry) if any(map(is_reward, values)))


def _cause(flow: Flow) -> GoesOn | None:
    """What tells that an episode ends goes on, and something else is reset."""
    for place, (_, inside, new) in enumerate(flow.loop.carry):
        bit, ending = 1 << place, flow.ending[place]
        if not flow.causes & ending.sure & bit or flow.knows(place) or new is inside:
            continue
        # A flag that stays zero is not reset.
        cut = [other for other in flow.cut if flow.going[other].may & ~flow.ends & ~(1 << other)]
        if ending.added & bit and cut and flow.limits.get(bit, flow.times) < flow.times - 1:
            return GoesOn(
                f"Episodes end where {flow.name(place)} is {flow.limits[bit]:g} or so, and a loop resets "
                f"{flow.name(cut[0])} there, but not {flow.name(place)}: after that, they end in each step.",
                cut[0],
            )
        for other in cut:
            if place in flow.numbers and flow.going[place].may & 1 << other:
                return GoesOn(
                    f"A loop resets {flow.name(other)} where an episode ends, and goes on with {flow.name(place)}, by "
                    "which it is told that one ends.",
                    other,
                )
    return None


def _frames(flow: Flow) -> GoesOn | None:
    """A stack of the last observations keeps those of the episode before."""
    moved = [place for place, part in enumerate(flow.going[: len(flow.loop.carry)]) if part.moved & 1 << place]
    if len(moved) != 1 or not flow.ending[moved[0]].moved & flow.ending[moved[0]].sure & 1 << moved[0]:
        return None
    is_of_arrays = len(flow.loop.carry[moved[0]][1].shape) > 1
    for other in flow.cut:
        is_put_in = is_of_arrays and flow.going[moved[0]].may & 1 << other
        if flow.is_cut(other, moved[0]) or is_put_in:
            return GoesOn(
                f"A loop resets {flow.name(other)} where an episode ends, and the stack {flow.name(moved[0])} keeps "
                "what is of the episode before.",
                other,
            )
    return None


def _reported(flow: Flow) -> GoesOn | None:
    """What is reported of an episode where it ends is a total that goes on."""
    for place in totals(flow):
        bit = 1 << place
        for other, _ in enumerate(flow.loop.carry):
            is_report = flow.ending[other].sure & ~flow.going[other].may & bit
            is_total = flow.going[other].added & 1 << other and not differ(flow, bit, 1 << other)
            if is_report and is_total and not _is_average(flow, bit):
                return GoesOn(
                    f"A loop reports {flow.name(place)} where an episode ends, and goes on adding to it in the next "
                    "episode."
                )
    return None


def totals(flow: Flow) -> Iterator[int]:
    """The numbers of the carry to which each step adds, where an episode ends as well."""
    for place in flow.numbers:
        bit, ending = 1 << place, flow.ending[place]
        if ending.sure & ending.added & bit and flow.unknown[place].may & ~bit:
            yield place


def differ(flow: Flow, one: int, other: int) -> bool:
    """Say whether the body takes the difference of what depends on two sources."""
    pairs = _operands(flow, "sub")
    return any((first & one and second & other) or (first & other and second & one) for first, second in pairs)


def _operands(flow: Flow, name: str) -> Iterator[tuple[int, int]]:
    """The sources that the two operands of each step of a primitive in the body may depend on."""
    for step in flow.loop.body.steps:
        if step.equation.primitive in primitives(name):
            first, second = (flow.values.get(value, Part()).may for value in step.inputs)
            yield first, second


def _is_average(flow: Flow, total: int) -> bool:
    """Say whether the body divides a total by another one that goes on as well."""
    going_on = (1 << place for place, part in enumerate(flow.ending) if part.sure & part.added & 1 << place)
    others = sum(going_on) & ~total
    return any(over & total and under & others for over, under in _operands(flow, "div"))


def _discounted(flow: Flow) -> GoesOn | None:
    """A discounted sum of rewards goes on, though the loop gets where episodes end."""
    rewards = {inside for outside, inside in flow.loop.xs if is_reward(outside)}
    for place in flow.numbers:
        ending, maker = flow.ending[place], flow.loop.carry[place][2].maker
        if not ending.sure & ending.kept & ~ending.added & 1 << place or maker is None:
            continue
        if maker.equation.primitive in primitives("add") and any(
            each in rewards or is_reward(each) for each in maker.inputs
        ):
            name = flow.name(place)
            return GoesOn(f"A loop sums up rewards in {name}, which goes on from one episode into the next.")
    return None


_RULES = (_inverted, _trace, _partly_reset, _never_reset, _cause, _frames, _reported, _discounted)

KINDS = (MEMORY,)
CHECKS = (memories,)
