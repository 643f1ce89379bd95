"""Loops that count after an episode has ended, or treat ends of different kinds apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import jax.numpy as jnp

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, after, bodies, made_by, unscaled
from lox._audit._checks._loops._episodes import RETURNS
from lox._audit._checks._loops._memories import MEMORY
from lox._audit._dependence import Node
from lox._audit._ends import is_boolean, is_reward, last_name, says_end
from lox._audit._findings import Finding
from lox._audit._loops import reached
from lox._audit._program import Value, blocks_in
from lox._audit._rules import primitives

_OTHER_END = re.compile(r"trunc|time|limit|first|start|reset|prev|last", re.IGNORECASE)
_LAST = re.compile(r"final|terminal|last|boot|rew|bonus|return|ret\b", re.IGNORECASE)


class Chosen(NamedTuple):
    """A value that is one of two.

    Attributes:
        flag: What decides.
        unset: The value where the flag is not set.
        set: The value where it is; None where that is zero.
    """

    flag: Node
    unset: Node
    set: Node | None


def chosen(node: Node) -> Chosen | None:
    """The two values of `where(flag, one, other)`, or of `other * (1 - flag)`."""
    place = made_by(node, "select_n")
    if place is not None and len(place.inputs) == 3:
        flag, unset, is_set = place.inputs
        if (negated := made_by(flag, "not")) is not None:
            return Chosen(plain(negated.inputs[0]), is_set, unset)
        return Chosen(plain(flag), unset, is_set)
    if (place := made_by(node, "mul")) is None:
        return None
    for mask, other in (place.inputs, place.inputs[::-1]):
        negated = made_by(unscaled(mask), "not", "sub")
        if negated is not None and (len(negated.inputs) == 1 or negated.inputs[0].value.number == 1):
            return Chosen(plain(negated.inputs[-1]), other, None)
    return None


def causes(node: Node) -> set[Node]:
    """The flags that a flag is the `or` of, itself included."""
    found, left = set[Node](), [plain(node)]
    while left:
        each = left.pop()
        found.add(each)
        place = made_by(each, "or", "max")
        left += [plain(one) for one in place.inputs] if place is not None else []
    return found


def counted_after_the_end(audited: Audited) -> Iterator[Finding]:
    """LOX220: a total goes on after a flag stays set that freezes what it is computed from."""
    for body in audited.once(bodies):
        for flag in body.changing:
            ends = causes(flag.new) - {plain(flag.new)} if flag.is_of(jnp.bool_) else set()
            moved = [] if flag.inside not in ends else list(_frozen(body, flag))
            masked = after({flag.inside, *(end for end in ends if end.place is not None)}) if moved else set()
            for total in body.changing if moved else ():
                place = made_by(total.new, "add")
                if place is None or not total.is_of(jnp.floating):
                    continue
                added = [each for each in place.inputs if plain(each) is not total.inside]
                is_of_moved = len(added) == 1 and added[0] in after(moved) - masked
                if is_of_moved and not _is_masked_outside(audited, body, flag, total):
                    yield RETURNS.at(
                        place.location,
                        f"A loop does not move on once {flag.name} is set, and still adds to {total.name} what it "
                        "computes of the next step, which does not happen.",
                        severity="warning",
                    )


def _frozen(body: Body, flag: Carried) -> Iterator[Node]:
    """The new values of what stays as it is once a flag is set."""
    for each in body.changing:
        case = chosen(each.new) if each is not flag else None
        is_kept = case is not None and case.set is not None and plain(case.set) is each.inside
        if case is not None and is_kept and case.flag in (flag.inside, plain(flag.new)):
            yield plain(case.unset)


def _is_masked_outside(audited: Audited, body: Body, flag: Carried, total: Carried) -> bool:
    """Say whether what comes out of a loop meets the flag that it ends with in a mask."""
    step = body.loop.step
    results = dict(zip((inside for _, inside, _ in body.loop.carry), step.outputs, strict=False))
    block = next(block for block in blocks_in(audited.program) if step in block.steps)
    by, of = reached(block, [results[flag.value]]), reached(block, [results[total.value]])

    def meet(values: tuple[Value, ...]) -> bool:
        return any(one in by for one in values) and any(other in of for other in values)

    masks = primitives("select_n", "mul", "jit")
    return any(each.equation.primitive in masks and meet(each.inputs) for each in block.steps)


def reset_by_another(audited: Audited) -> Iterator[Finding]:
    """LOX221: a state is reset at each end, and the memory of what acts in it at one kind of end alone."""
    for body in audited.once(bodies):
        cases = [(each, case) for each in body.changing if (case := chosen(each.new)) is not None]
        ends = {case.flag: causes(case.flag) for _, case in cases}
        for memory, case in cases:
            wider = (each for each in cases if case.flag is not each[1].flag and case.flag in ends[each[1].flag])
            found = next((each for each in wider if _is_memory_of(memory, case, *each)), None)
            place = plain(memory.new).place
            if found is not None and place is not None:
                state, ended = found
                yield MEMORY.at(
                    place.location,
                    f"A loop resets {state.name} where {ended.flag.value.called} is set, and {memory.name}, which is "
                    f"computed from it, only where {case.flag.value.called} is.",
                )


def _is_memory_of(memory: Carried, case: Chosen, state: Carried, ended: Chosen) -> bool:
    """Say whether a value has features of a state, goes on from itself, and decides how the state goes on."""
    own, others = after([memory.inside]), after([state.inside])
    has_features = memory.is_of(jnp.floating) and len(memory.value.shape) > len(case.flag.value.shape)
    is_reset = (case.set is None or case.set not in own) and ended.set not in others
    return has_features and is_reset and case.unset in own & others and ended.unset in own & others


def reward_lost(audited: Audited) -> Iterator[Finding]:
    """LOX220: where an episode ends, a return backwards is something else than the reward, and without it."""
    for body in audited.once(bodies):
        if not body.loop.step.equation.params.get("reverse", False):
            continue
        rewards = {node: value for value, node in body.scanned if is_reward(value) or is_reward(node.value)}
        flags = {node for value, node in body.scanned if _says_end(value) or _says_end(node.value)}
        others = after(node for value, node in body.scanned if node not in rewards and not _is_last(value, node))
        for each in body.changing if flags else ():
            case = chosen(each.new)
            if case is None or case.flag not in flags or case.set is None or case.set.value.number is not None:
                continue
            place, earned = plain(each.new).place, after(rewards)
            is_other = case.set in others - earned - after(one.inside for one in body.changing)
            if place is not None and is_other and case.unset in earned & after([each.inside]):
                (reward, *_) = rewards.values()
                yield RETURNS.at(
                    place.location,
                    f"Where an episode ends, {each.name} is computed without {reward.called}: the reward of the last "
                    "step is lost.",
                    severity="warning",
                )


def _says_end(value: Value) -> bool:
    """Say whether a value is called the end of an episode, and neither a time limit nor the first step of one."""
    names = [last_name(name) for name in (value.name, value.written) if name]
    return any(says_end(name, is_boolean(value)) and _OTHER_END.search(name) is None for name in names)


def _is_last(outside: Value, inside: Node) -> bool:
    """Say whether the name of a scanned value says that it is for the last step of an episode."""
    names = (outside.name, outside.written, inside.value.name)
    return any(_LAST.search(last_name(name)) is not None for name in names if name)


CHECKS = (counted_after_the_end, reset_by_another, reward_lost)
