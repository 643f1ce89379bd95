"""Loops over several episodes: what goes on from one into the next."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._episodes import Flow, Part, flows
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import transformations
from lox._audit._program import NAMELESS, Step, Value
from lox._audit._rules import primitives

RETURNS = Kind(
    "LOX220",
    "error",
    "A return goes on over the end of an episode",
    "Multiply each term that comes from the next step by (1 - done), the bootstrapped value as well as what is carried; "
    "or take jnp.where(done, 0, ...) of it.",
    "Returns stop at the ends of episodes.",
    "The body of each loop over time was evaluated with all flags of ends set, and what it carries was followed.",
)
MEMORY = Kind(
    "LOX221",
    "warning",
    "A memory of one episode goes on into the next",
    "Start all that belongs to an episode anew where it ends, as with jax.tree.map(lambda new, old: jnp.where(done, "
    "new, old), initial, state); or multiply it by (1 - done).",
    "What loops remember of an episode stops at its end.",
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

_REWARD = re.compile(r"(\w+_)?(rewards?|rew|r)(_t|_tm1|_tp1|_batch)?", re.IGNORECASE)


def returns(audited: Audited) -> Iterator[Finding | Held]:
    """LOX220: with all flags of ends set, a return that is computed backwards depends on the step after it."""
    for flow in audited.once(flows):
        if not flow.is_backward:
            continue
        leaks = list(_leaks(flow))
        if leaks:
            place, sources = leaks[0]
            yield RETURNS.at(
                flow.location,
                f"{_name(flow, place)} of a step at which an episode ends depends on {_all(flow, sources)} of the step "
                "after it, which is of the next episode.",
            )
        elif any(_reads_ends(flow, place) for place, _ in enumerate(flow.loop.carry)):
            yield RETURNS.fine(flow.location)


def _leaks(flow: Flow) -> Iterator[tuple[int, list[int]]]:
    """The places of carried returns that go on over the ends of episodes, and of what goes on."""
    if not any(part.may & flow.ends for part in flow.unknown):
        return
    for place, (_, inside, _) in enumerate(flow.loop.carry):
        if not _is_of_each_step(flow, inside):
            continue
        ending, going = flow.ending[place], flow.going[place]
        sources = [each for each in _float_bits(flow) if ending.sure & going.may & 1 << each]
        if sources == [place] and ending.added & 1 << place:  # It is a total over all steps.
            continue
        if sources:
            yield place, sources


def _is_of_each_step(flow: Flow, value: Value) -> bool:
    """Whether a value that is carried has an element for each flag."""
    if not _is_float(value):
        return False
    return any(value.shape == shape or shape and value.shape[: len(shape)] == shape for shape in flow.shapes)


def _float_bits(flow: Flow) -> Iterator[int]:
    """The numbers of the sources of numbers with an element for each flag: what is carried, and values of next steps."""
    for place, (_, inside, _) in enumerate(flow.loop.carry):
        if _is_of_each_step(flow, inside):
            yield place
    for bit in flow.shifted:
        yield bit.bit_length() - 1


def memories(audited: Audited) -> Iterator[Finding | Held]:
    """LOX221: with all flags of ends set, a part of what is remembered of an episode goes on."""
    for flow in audited.once(flows):
        text = _trace(flow) or _partly_reset(flow) or _never_reset(flow) or _reported(flow) or _discounted(flow)
        if text and not flow.is_backward:
            yield MEMORY.at(flow.location, text)
        elif any(_is_cut(flow, place) for place, _ in enumerate(flow.loop.carry)):
            yield MEMORY.fine(flow.location)


def _partly_reset(flow: Flow) -> str:
    """Of a recurrent state whose parts depend on each other, one is reset and another is not."""
    for place, (_, inside, _) in enumerate(flow.loop.carry):
        if not _is_float(inside) or not _is_recurrent(flow.ending[place], place):
            continue
        for other, (_, beside, _) in enumerate(flow.loop.carry):
            mutual = flow.ending[other].sure & 1 << place and flow.going[place].may & 1 << other
            if other != place and _is_float(beside) and mutual and _is_cut(flow, other):
                return (
                    f"A loop resets {_name(flow, other)} where an episode ends, and goes on with {_name(flow, place)}, "
                    "which is computed together with it."
                )
    return ""


def _never_reset(flow: Flow) -> str:
    """An environment is reset, and the recurrent state of the policy that acts in it is not."""
    reset = [other for other, (_, beside, _) in enumerate(flow.loop.carry) if _is_float(beside) and _is_cut(flow, other)]
    for place, (_, inside, _) in enumerate(flow.loop.carry):
        if not _is_float(inside) or not _is_recurrent(flow.ending[place], place):
            continue
        if flow.unknown[place].may & (flow.ends | _rewards(flow)) or not flow.ending[place].squashed & 1 << place:
            continue
        for other in reset:
            if flow.going[other].may & 1 << place and not flow.ending[other].may & 1 << place:
                return (
                    f"A loop resets {_name(flow, other)} where an episode ends, and goes on with the recurrent state "
                    f"{_name(flow, place)}."
                )
    return ""


def _is_recurrent(part: Part, place: int) -> bool:
    """Whether what is carried goes through a cell of a network, and is neither a total nor parameters."""
    bit = 1 << place
    return bool(part.sure & bit and not part.kept & bit and (part.squashed | part.gated) & bit)


def _is_cut(flow: Flow, place: int) -> bool:
    """Whether what is carried goes on within an episode, and not over its end."""
    return bool(flow.going[place].may & 1 << place and not flow.ending[place].may & 1 << place)


def _rewards(flow: Flow) -> int:
    """The sources that carry a reward."""
    found = 0
    for place, (outside, inside, new) in enumerate(flow.loop.carry):
        if any(_REWARD.fullmatch(_last(value)) for value in (outside, inside, new)):
            found |= 1 << place
    return found


def _trace(flow: Flow) -> str:
    """The eligibility trace that errors of single steps are multiplied by is not reset, though the errors know of ends."""
    for place, (_, inside, _) in enumerate(flow.loop.carry):
        bit, ending = 1 << place, flow.ending[place]
        if not _is_float(inside) or not ending.sure & bit or not ending.kept & ~ending.added & bit:
            continue
        if flow.unknown[place].may & flow.ends:
            continue
        weights = [other for other, part in enumerate(flow.unknown) if part.added & 1 << other and part.sure & bit]
        if weights and any(_multiplies(flow, step, bit) for step in flow.loop.body.steps):
            return (
                f"A loop multiplies errors that stop at the ends of episodes by {_name(flow, place)}, which goes on from "
                "one episode into the next."
            )
    return ""


def _multiplies(flow: Flow, step: Step, bit: int) -> bool:
    """Whether a step multiplies a trace by what depends on the end of an episode."""
    if step.equation.primitive not in primitives("mul"):
        return False
    one, other = (flow.values.get(value, Part()) for value in step.inputs)
    return bool(
        (one.kept & bit and other.may & flow.ends and not other.is_mask)
        or (other.kept & bit and one.may & flow.ends and not one.is_mask)
    )


def _reported(flow: Flow) -> str:
    """What is reported of an episode where it ends is a total that goes on."""
    for place, (_, inside, _) in enumerate(flow.loop.carry):
        bit, ending = 1 << place, flow.ending[place]
        if not _is_float(inside) or not ending.sure & ending.added & bit or not flow.unknown[place].may & ~bit:
            continue
        for other, _ in enumerate(flow.loop.carry):
            own = 1 << other
            is_report = flow.ending[other].sure & bit and not flow.going[other].may & bit
            if other != place and is_report and flow.going[other].added & own and not _differ(flow, bit, own):
                return (
                    f"A loop reports {_name(flow, place)} where an episode ends, and goes on adding to it in the next "
                    "episode."
                )
    return ""


def _differ(flow: Flow, one: int, other: int) -> bool:
    """Whether the body takes the difference of what depends on two sources."""
    for step in flow.loop.body.steps:
        if step.equation.primitive in primitives("sub"):
            first, second = (flow.values.get(value, Part()).may for value in step.inputs)
            if first & one and second & other or first & other and second & one:
                return True
    return False


def _discounted(flow: Flow) -> str:
    """A discounted sum of rewards goes on, where something else is reset."""
    if not any(part.may & flow.ends for part in flow.unknown):
        return ""
    for place, (_, inside, new) in enumerate(flow.loop.carry):
        bit, ending = 1 << place, flow.ending[place]
        if not _is_float(inside) or not ending.sure & bit or not ending.kept & ~ending.added & bit:
            continue
        if new.maker is not None and new.maker.equation.primitive in primitives("add"):
            names = [_last(value) for value in new.maker.inputs]
            if any(map(_REWARD.fullmatch, filter(None, names))):
                return f"A loop sums up rewards in {_name(flow, place)}, which goes on from one episode into the next."
    return ""


def others(audited: Audited) -> Iterator[Finding | Held]:
    """LOX222: where an episode of one environment ends, what is carried of the others is reset."""
    for flow in audited.once(flows):
        if flow.another is None:
            continue
        found = [place for place, (_, inside, _) in enumerate(flow.loop.carry) if _is_reset_by_another(flow, place, inside)]
        if found:
            yield OTHERS.at(
                flow.location,
                f"A loop resets {_name(flow, found[0])} of all environments where an episode ends in any of them.",
                severity="warning" if _is_of_environments(flow, found[0]) else "info",
            )
        else:
            yield OTHERS.fine(flow.location)


def _is_reset_by_another(flow: Flow, place: int, value: Value) -> bool:
    own = 1 << place
    is_of_each = any(shape and value.shape[:1] == shape[:1] for shape in flow.shapes)
    alone, another = flow.going[place], (flow.another or flow.going)[place]
    return bool(is_of_each and alone.may & own and not another.may & own)


def _is_of_environments(flow: Flow, place: int) -> bool:
    """Whether the first axis of what is carried is that of a vmap, so that its elements have no part in each other."""
    _, _, new = flow.loop.carry[place]
    return any(
        "vmap" in transformations(step.equation)
        for step in flow.loop.body.steps
        if any(value.shape[:1] == new.shape[:1] for value in step.outputs)
    )


def _is_float(value: Value) -> bool:
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, jnp.floating)


def _reads_ends(flow: Flow, place: int) -> bool:
    return bool(flow.unknown[place].may & flow.ends)


def _all(flow: Flow, sources: list[int]) -> str:
    return " and ".join(_name(flow, source) for source in sources)


def _name(flow: Flow, place: int) -> str:
    """The name of what is carried or scanned."""
    if place >= len(flow.loop.carry):
        return flow.shifted[1 << place].called
    outside, inside, new = flow.loop.carry[place]
    name = next((each.written for each in (new, inside) if each.written), "")
    return name or inside.name or outside.called.replace(NAMELESS, "what is carried")


def _last(value: Value) -> str:
    parts = re.findall(r"\w+", value.name or value.written)
    return parts[-1] if parts else ""


KINDS = (RETURNS, MEMORY, OTHERS)
CHECKS = (returns, memories, others)
