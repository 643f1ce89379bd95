"""Targets of single steps: a reward, and a discounted value of the next state."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._loops._episodes import RETURNS
from lox._audit._ends import goes_on, is_boolean, is_reward, last_name, says_end, says_onward
from lox._audit._findings import Finding
from lox._audit._location import transformations
from lox._audit._loops import origins, scans
from lox._audit._origins import FLOWS
from lox._audit._program import Block, Value, blocks_in
from lox._audit._rules import primitives

_CUT_SHORT = re.compile(r"trunc|time|first|start", re.IGNORECASE)
_OTHERS = re.compile(r"final|terminal|last|boot|rew|bonus|intrinsic|shap|potential", re.IGNORECASE)
"""Names of what is meant to be added where an episode ends, or to rewards."""
_OF_ANOTHER_STEP = re.compile(r"prev|last|was|tm1|valid", re.IGNORECASE)
_NEXT = re.compile(r"next|tp1", re.IGNORECASE)


def targets(audited: Audited) -> Iterator[Finding]:
    """LOX220: a target goes on where an episode ends, as its flag is not read; or only there."""
    if not any(is_reward(value) for block in blocks_in(audited.program) for value in block.inputs):
        return
    blocks = {value: block for block in blocks_in(audited.program) for value in block.inputs}
    carried = {inside for scan, _ in scans(audited) for _, inside, _ in scan.carry}
    for step, location in audited.of("add"):
        if step.outputs[0] not in audited.live or "transpose" in transformations(step.equation):
            continue
        for reward, other in (step.inputs, step.inputs[::-1]):
            reward = audited.origins.of(reward, FLOWS)
            factors = list(_factors(audited, other))
            rest = [factor for factor in factors if not _is_discount(factor)]
            if reward not in blocks or not is_reward(reward) or len(rest) == len(factors):
                continue
            flags = [factor for factor in rest if _is_end(factor)]
            values = [factor for factor in rest if factor not in flags]
            if len(values) != 1 or values[0] in carried or not _is_of_next(values[0], step.outputs[0]):
                continue
            unread = _unread(audited, blocks[reward], reward)
            if len(flags) == 1:
                yield RETURNS.at(
                    location,
                    f"{values[0].called} is multiplied by {flags[0].called}: that of the next state is added to "
                    f"{reward.called} where an episode ends, and nowhere else.",
                )
            elif not flags and values[0].shape == reward.shape and unread is not None:
                yield RETURNS.at(
                    location,
                    f"{values[0].called} of the next state is added to {reward.called} also where an episode ends: "
                    f"{unread.called} comes with it and is not read.",
                    severity="warning",
                )


def masked_as_a_whole(audited: Audited) -> Iterator[Finding]:
    """LOX220: a flag of an end makes the reward of the last step zero, together with the value of the next state."""
    if not any(is_reward(value) for block in blocks_in(audited.program) for value in block.inputs):
        return
    for step, location in audited.of("mul"):
        if step.outputs[0] not in audited.live or "transpose" in transformations(step.equation):
            continue
        for mask, other in (step.inputs, step.inputs[::-1]):
            flag = _ended(audited, mask)
            terms = list(_terms(audited, other)) if flag is not None else []
            rewards = [term for term in terms if is_reward(term) and term.maker is None]
            values = [value for value in (_discounted(audited, term) for term in terms) if value is not None]
            if flag is not None and rewards and len(values) == 1 and _is_of_next(values[0], step.outputs[0]):
                yield RETURNS.at(
                    location,
                    f"1 - {flag.called} multiplies {rewards[0].called} together with {values[0].called} of the next "
                    "state: the reward of the last step of an episode is lost.",
                    severity="warning",
                )


def _ended(audited: Audited, value: Value) -> Value | None:
    """The flag of an end that a mask is one without."""
    maker = audited.origins.of(value, FLOWS).maker
    if maker is None or maker.equation.primitive not in primitives("sub", "not"):
        return None
    if maker.equation.primitive in primitives("sub") and maker.inputs[0].number != 1:
        return None
    flag = audited.origins.of(maker.inputs[-1], FLOWS)
    is_of_this_step = _OF_ANOTHER_STEP.search(last_name(flag.name or flag.written)) is None
    return flag if _is_end(flag) and is_of_this_step else None


def _terms(audited: Audited, value: Value) -> Iterator[Value]:
    """The terms of a sum, those too that are subtracted."""
    value = audited.origins.of(value, FLOWS)
    if value.maker is not None and value.maker.equation.primitive in primitives("add", "sub"):
        for each in value.maker.inputs:
            yield from _terms(audited, each)
    else:
        yield value


def _discounted(audited: Audited, value: Value) -> Value | None:
    """What is multiplied by a discount, and by nothing else."""
    factors = list(_factors(audited, value))
    rest = [factor for factor in factors if not _is_discount(factor)]
    return rest[0] if len(rest) == 1 < len(factors) else None


def _is_of_next(value: Value, result: Value) -> bool:
    """Say whether a value is computed from what is called next, and neither it nor the result is called otherwise."""
    if any(_OTHERS.search(last_name(each.called)) for each in (value, result)):
        return False
    return any(_NEXT.search(each.name or each.written) for each in origins([value]))


def _factors(audited: Audited, value: Value) -> Iterator[Value]:
    """The factors of a product."""
    value = audited.origins.of(value, FLOWS)
    if value.maker is not None and value.maker.equation.primitive in primitives("mul"):
        for each in value.maker.inputs:
            yield from _factors(audited, each)
    else:
        yield value


def _is_discount(value: Value) -> bool:
    if value.number is not None:
        return 0.8 <= value.number < 1
    return not value.shape and re.search("gamma|discount", value.called, re.IGNORECASE) is not None


def _is_end(value: Value) -> bool:
    name = last_name(value.name or value.written)
    return says_end(name, is_boolean(value)) and _CUT_SHORT.search(name) is None


def _unread(audited: Audited, block: Block, reward: Value) -> Value | None:
    """The flag that comes with a reward and that nothing reads, if nothing else that comes with it is a mask."""
    along = [value for value in block.inputs if value is not reward and _around(value) == _around(reward)]
    flags = [value for value in along if value.shape == reward.shape and _is_end(value)]
    masks = [value for value in block.inputs if value.shape[:1] == reward.shape[:1] and value not in flags]
    if (
        len(flags) != 1
        or flags[0] in audited.live
        or any(_may_mask(value) and value in audited.live for value in masks)
    ):
        return None
    return flags[0]


def _may_mask(value: Value) -> bool:
    name = value.name or value.written
    return is_boolean(value) or goes_on(value) or says_onward(name) or says_end(name, True)


def _around(value: Value) -> str:
    """The name of the container that a value is in, if it is in one."""
    name = value.name or value.written
    return name[: name.rfind(last_name(name))] if last_name(name) else name


CHECKS = (targets, masked_as_a_whole)
