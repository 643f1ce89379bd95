"""Flags that a rollout stores, and a loop backwards reads: of another step, or of what nothing resets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._loops._episodes import RETURNS
from lox._audit._checks._loops._memories import MEMORY
from lox._audit._checks._randomness._key_arrays import is_key
from lox._audit._ends import Flags, is_boolean, is_reward
from lox._audit._episodes import Flow, flows
from lox._audit._findings import Finding
from lox._audit._loops import Scan, loop_of, reached
from lox._audit._origins import PASSING
from lox._audit._program import Value
from lox._audit._rules import primitives

_SAME = PASSING | primitives("convert_element_type")
_CUMULATIVE = ("cumsum", "cumprod", "cummax", "argmax")
"""Operations that mask the steps after the first end, after which a rollout may go on."""


class Stored(NamedTuple):
    """An output of each iteration of a loop, as the body has it."""

    loop: Scan
    value: Value


def off_by_one(audited: Audited) -> Iterator[Finding]:
    """LOX220: the flags that a rollout stores are of the step before its rewards, or those of the next are taken."""
    for flow in audited.once(flows) if audited.has("scan") else ():
        if len(slices := _flags(audited, flow)) != 1:
            continue
        ((stored, flag),) = slices
        if not _has_reward(audited, flow, flag, stored.loop):
            continue
        carried = [new for _, _, new in flow.loop.carry if audited.origins.of(new, _SAME) is flag]
        is_read = flag.uses > sum(new is flag for new in carried)
        if not carried and _is_of_step_before(audited, stored):
            yield RETURNS.at(
                flow.location,
                f"{flag.called} stops what comes from the step after, but the loop that stored it stores the flag of "
                "the step before, which it carries: store the flag of the step itself, as that of its reward.",
            )
        elif carried and not is_read and stored.value.maker is not None:
            yield RETURNS.at(
                flow.location,
                f"What comes from the step after is stopped by {flag.called} of that step, but the flag was stored "
                f"together with the reward of its own step: take {flag.called} of the step itself.",
            )


def never_reset(audited: Audited) -> Iterator[Finding]:
    """LOX221: returns stop at the flags of a rollout, and what these are computed from goes on after them."""
    found = audited.once(flows) if audited.has("scan") and not audited.has(*_CUMULATIVE) else ()
    rollouts = {flow.loop.step: flow for flow in found}
    for flow in found:
        if not (slices := _flags(audited, flow)):
            continue
        stored, flag = slices[0]
        rollout = rollouts.get(stored.loop.step)
        if rollout is None or stored.value.maker is None or not _has_reward(audited, flow, flag, stored.loop):
            continue
        causes = [place for place in rollout.numbers if _tells(rollout, place)]
        others = [place for place, _ in enumerate(rollout.loop.carry) if not rollout.unknown[place].is_end]
        if causes and not any(map(rollout.knows, others)):
            yield MEMORY.at(
                rollout.location,
                f"{stored.value.called} is computed from {rollout.name(causes[0])}, which goes on after it: nothing is "
                "reset where an episode ends, though returns stop there.",
            )


def _tells(rollout: Flow, place: int) -> bool:
    """Say whether flags are computed from what is carried, and that is no counter whose limit is the last iteration."""
    bit = 1 << place
    is_counter = rollout.unknown[place].may == bit
    is_before = rollout.limits.get(bit, rollout.times) < rollout.times - 1
    return bool(rollout.causes & rollout.going[place].sure & bit) and (is_before or not is_counter)


def _flags(audited: Audited, flow: Flow) -> list[tuple[Stored, Value]]:
    """The flags of ends that a loop backwards scans, as they were stored, and as the loop has them."""
    if not flow.is_backward or not flow.cut:
        return []
    pairs = [(_stored(audited, outside), flag) for outside, flag in flow.loop.xs if flow.values[flag].is_end]
    found = [(stored, flag) for stored, flag in pairs if stored is not None]
    return found if len(found) == len(pairs) else []


def _stored(audited: Audited, array: Value) -> Stored | None:
    """The value in the loop that stored the slices of an array."""
    array = audited.origins.of(array, _SAME)
    if array.maker is None or array.maker.equation.primitive not in primitives("scan"):
        return None
    (found,) = (each for each in array.maker.regions[0].outputs if each.outside is array)
    if found.role != "stacked":
        return None
    return Stored(loop_of(array.maker), audited.origins.of(found.inside, _SAME))


def _has_reward(audited: Audited, flow: Flow, flag: Value, rollout: Scan) -> bool:
    """Say whether a loop scans rewards that the rollout computed, known by their name or by their randomness."""
    found = [(inside, _stored(audited, outside)) for outside, inside in flow.loop.xs if inside.shape == flag.shape]
    own = [(each, stored.value) for each, stored in found if stored is not None and stored.loop.step is rollout.step]
    numbers = [pair for pair in own if jnp.issubdtype(pair[1].aval.dtype, jnp.floating)]
    computed = [pair for pair in numbers if pair[1].maker is not None]
    if any(is_reward(each) for pair in computed for each in pair):
        return True
    keys = (inside for _, inside, *_ in (*rollout.xs, *rollout.carry) if is_key(inside.aval))
    random = reached(rollout.body, keys) if len(computed) == len(numbers) else set()
    return any(value in random for _, value in computed)


def _is_of_step_before(audited: Audited, stored: Stored) -> bool:
    """Say whether a flag that is stored is what the iteration before computed."""
    flags = audited.once(Flags)
    for _, inside, new in stored.loop.carry:
        if inside is stored.value:
            made = audited.origins.of(new, _SAME)
            return made is not inside and made.maker is not None and (is_boolean(made) or made in flags)
    return False


CHECKS = (off_by_one, never_reset)
