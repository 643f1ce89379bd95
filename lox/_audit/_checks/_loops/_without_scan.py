"""Returns that are computed without a scan: by an associative scan, and by a loop of Python."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._loops._episodes import RETURNS
from lox._audit._checks._loops._scan import ENDS
from lox._audit._ends import Flags, goes_on, is_boolean, is_reward, last_name, says_end, says_onward
from lox._audit._episodes import ENDING, GOING, UNKNOWN, Before, Fold, Scenario, declarations
from lox._audit._findings import Finding, Held
from lox._audit._location import Frame, frames, is_internal, is_users, transformations
from lox._audit._loops import reached
from lox._audit._naming import place_of
from lox._audit._origins import PASSING
from lox._audit._parts import Part
from lox._audit._program import Block, Step, Value, blocks_in
from lox._audit._rules import primitives

_SAME = primitives("convert_element_type")
_FLAG, _OUTSIDE = 1, 2
"""The sources of what is computed from flags, and from anything else."""
_VALUES = re.compile(r"(\w+_)?(values?|baselines?|critics?|v|vs|vf|qs?|q_values?)(_\w+)?", re.IGNORECASE)
_FACTORS = 40
"""Through how many products and sums is looked."""
_LEAST = 3
"""The number of times that a line computes a return from the one before, from which on it counts as a loop."""
_MOST = 2_000
"""The largest number of operations in a block that is searched for loops of Python."""


def by_associative_scan(audited: Audited) -> Iterator[Finding | Held]:
    """LOX220: an associative scan of a linear recurrence has weights that do not stop at the ends of episodes."""
    declared = audited.once(declarations)
    for block in blocks_in(audited.program):
        for steps in _associative(block):
            flags = audited.once(Flags)
            flags.declared = declared.get(steps[0], frozenset())
            pair = _recurrence(block, steps)
            if pair is None or not all(_is_flipped(audited, steps, value) for value in pair):
                continue
            weights, added = pair
            flagged = [_outside(audited, flags, value, UNKNOWN).may & _FLAG for value in pair]
            ending, going = (_outside(audited, flags, weights, scenario).number for scenario in (ENDING, GOING))
            location = audited.lines[steps[0]]
            goes_on = flagged[1] and not flagged[0] and _is_of_numbers(audited, weights)
            if goes_on or (going == 0 and ending not in (0, None)):
                yield RETURNS.at(
                    location,
                    f"An associative scan multiplies what comes from the step after by {weights.called}, which is not "
                    f"zero where an episode ends, and {added.called} that it adds stops there.",
                )
            elif flagged[0] and ending == 0:
                yield RETURNS.fine(location)


def unread_by_associative_scan(audited: Audited) -> Iterator[Finding]:
    """LOX205: a flag of ends comes with what a linear recurrence is computed of, and nothing reads it."""
    if not audited.has("slice"):
        return
    ends = [value for value in audited.program.inputs if value.shape and says_end(value.name, is_boolean(value))]
    if len(ends) != 1 or ends[0] in audited.live:
        return
    (mark,) = ends
    along = [value for value in audited.program.inputs if value.shape[: len(mark.shape)] == mark.shape]
    if any(is_boolean(value) or goes_on(value) or says_onward(value.name) for value in along if value is not mark):
        return
    for block in blocks_in(audited.program):
        for steps in _associative(block):
            pair = _recurrence(block, steps)
            if pair is None or any(_is_flipped(audited, steps, value) for value in pair):
                continue
            _, added = pair
            if len(added.shape) > len(mark.shape) and set(mark.shape) <= set(added.shape):
                yield ENDS.at(
                    audited.lines[steps[0]],
                    f"An associative scan computes a memory of all steps, and nothing reads {last_name(mark.name)} "
                    "that comes with them: it goes on from one episode into the next.",
                )


def _outside(audited: Audited, flags: Flags, value: Value, scenario: Scenario) -> Part:
    return Before(audited, Fold(scenario, flags, _FLAG), _OUTSIDE).sliced(value, value)


def _is_of_numbers(audited: Audited, value: Value) -> bool:
    """Say whether an array has the same number everywhere."""
    value = audited.origins.of(value, PASSING | _SAME)
    if not value.shape or value.number is not None:
        return True
    is_product = value.maker is not None and value.maker.equation.primitive in primitives("mul")
    return is_product and value.maker is not None and all(_is_of_numbers(audited, each) for each in value.maker.inputs)


def _associative(block: Block) -> Iterator[list[Step]]:
    """The steps of a block that one call of `jax.lax.associative_scan` led to, and none of a derivative."""
    found: dict[Any, list[Step]] = collections.defaultdict(list)
    slices = (step for step in block.steps if step.equation.primitive in primitives("slice"))
    steps = (
        block.steps if any(map(_is_associative, {each for step in slices for each in frames(step.equation)})) else ()
    )
    for step in steps:
        calls = frames(step.equation)
        place = next((at for at, each in enumerate(calls) if _is_associative(each)), len(calls))
        caller = next((each for each in calls[place:] if is_users(each.file)), None)
        if caller is not None and "transpose" not in transformations(step.equation):
            found[caller].append(step)
    yield from found.values()


def _is_associative(frame: Frame) -> bool:
    return frame.code.co_qualname == "associative_scan" and is_internal(frame.file)


def _recurrence(block: Block, steps: list[Step]) -> tuple[Value, Value] | None:
    """The weights and what is added of x = added + weights * x, if that is what is scanned."""
    own = set(steps)
    given = {value: None for step in steps for value in step.inputs if value.shape and value.maker not in own}
    arrays = [value for value in given if jnp.issubdtype(value.aval.dtype, jnp.floating)]
    if len(arrays) != 2 or len(given) != 2 or arrays[0].shape[:1] != arrays[1].shape[:1]:
        return None
    one, other = ({*reached(block, [value])} for value in arrays)
    is_alone = [any(len(reads & {*step.inputs}) > 1 for step in steps) for reads in (one - other, other - one)]
    if is_alone[0] == is_alone[1]:
        return None
    return (arrays[0], arrays[1]) if is_alone[0] else (arrays[1], arrays[0])


def _is_flipped(audited: Audited, steps: list[Step], value: Value) -> bool:
    """Say whether an array is scanned from its last row to its first."""
    maker = audited.origins.of(value, _SAME).maker
    flips = [step for step in (*steps, *filter(None, [maker])) if step.equation.primitive in primitives("rev")]
    own = [step for step in flips if step is maker or step.inputs[0] is value]
    return any(0 in step.equation.params["dimensions"] for step in own)


def by_python_loop(audited: Audited) -> Iterator[Finding | Held]:
    """LOX220: a line that is traced for each step, from the last one to the first, goes on over ends of episodes."""
    flags, declared = audited.once(Flags), audited.once(declarations)
    for block in blocks_in(audited.program):
        backwards = _read_backwards(block) if len(block.steps) <= _MOST else []
        if not backwards:
            continue
        flags.declared = declared.get(block.steps[0], frozenset())
        if not any(_outside(audited, flags, value, UNKNOWN).may & _FLAG for value in backwards):
            continue
        for steps in _repeated(block):
            links = list(_links(audited, flags, block, steps))
            leaks = [name for name, is_cut in links if not is_cut]
            if len(leaks) >= _LEAST - 1:
                yield RETURNS.at(
                    audited.lines[steps[0]],
                    f"{leaks[-1]} of a step at which an episode ends depends on {leaks[-1]} of the step after it, "
                    "which is of the next episode.",
                )
            elif len(links) >= _LEAST - 1 and not leaks:
                yield RETURNS.fine(audited.lines[steps[0]])


def by_windows(audited: Audited) -> Iterator[Finding]:
    """LOX220: of a sum over the next steps, the rewards stop where an episode ends, and a value after them does not."""
    flags = None
    for step, location in audited.of("add") if audited.has("slice") else ():
        if "transpose" in transformations(step.equation) or not step.outputs[0].shape:
            continue
        later = [(value, *found) for value in step.inputs if (found := _later(audited, value)) is not None]
        if len(later) != 1 or not _is_called_value(later[0][1]):
            continue
        ((bootstrap, array, start),) = later
        (sum_,) = (value for value in step.inputs if value is not bootstrap)
        terms = [(value, *found) for value in _summed(audited, sum_) if (found := _later(audited, value)) is not None]
        before = [value for value, other, begin in terms if other is not array and begin < start]
        if not before:
            continue
        flags = audited.once(Flags) if flags is None else flags
        is_cut = [_outside(audited, flags, value, ENDING).number == 0 for value in before]
        if any(is_cut) and not _outside(audited, flags, bootstrap, UNKNOWN).may & _FLAG:
            yield RETURNS.at(
                location,
                f"Rewards of later steps stop where an episode ends, and {array.called}, which is added to them from "
                f"{start} steps later, does not: it is of the next episode.",
            )


def by_last_flags(audited: Audited) -> Iterator[Finding]:
    """LOX220: of windows of several steps, all rewards are added up, and the flag of the last step alone is read."""
    inputs = audited.program.inputs
    for flag in inputs:
        if len(flag.shape) < 2 or not says_end(flag.name, is_boolean(flag)):
            continue
        for reward in inputs:
            if not is_reward(reward) or reward.shape != flag.shape:
                continue
            for axis, size in enumerate(flag.shape):
                steps = [step for step in audited.users.of(flag) if not step.blocks]
                if size < 2 or not steps or not all(_is_last(step, axis) for step in steps):
                    continue
                total = next((step for step in _sums_of(audited, reward) if axis in step.equation.params["axes"]), None)
                if total is not None:
                    yield RETURNS.at(
                        audited.lines[total],
                        f"{reward.called} of {size} steps is added up along axis {axis}, and of {flag.called} the last "
                        "one alone is read: rewards after an end before it are of the next episode.",
                        severity="warning",
                    )


def _is_last(step: Step, axis: int) -> bool:
    params = step.equation.params
    if step.equation.primitive not in primitives("slice"):
        return False
    size = step.inputs[0].shape[axis]
    return bool(params["start_indices"][axis] == size - 1 and params["limit_indices"][axis] == size)


def _sums_of(audited: Audited, value: Value) -> Iterator[Step]:
    """The sums of a value that is multiplied by others."""
    left = [value]
    for each in left:
        for step in audited.users.of(each) if len(left) < _FACTORS else ():
            if step.equation.primitive in primitives("reduce_sum"):
                yield step
            elif step.equation.primitive in primitives("mul") | _SAME:
                left += step.outputs


def _later(audited: Audited, value: Value) -> tuple[Value, int] | None:
    """The array that a factor of a product is a later slice of, and where the slice begins."""
    left = [value]
    for _ in range(_FACTORS):
        if not left:
            break
        maker = audited.origins.of(left.pop(), _SAME).maker
        if maker is None:
            continue
        if maker.equation.primitive in primitives("slice"):
            starts, strides = maker.equation.params["start_indices"], maker.equation.params["strides"]
            array = audited.origins.of(maker.inputs[0], _SAME)
            if starts and starts[0] > 0 and strides is None and not any(starts[1:]) and array.maker is None:
                return array, int(starts[0])
        elif maker.equation.primitive in primitives("mul"):
            left += [each for each in maker.inputs[::-1] if each.number is None]
    return None


def _summed(audited: Audited, value: Value) -> Iterator[Value]:
    """The terms of a sum."""
    left = [value]
    for _ in range(_FACTORS):
        if not left:
            break
        value = audited.origins.of(left.pop(), _SAME)
        if value.maker is not None and value.maker.equation.primitive in primitives("add"):
            left += value.maker.inputs
        else:
            yield value


def _is_called_value(value: Value) -> bool:
    return _VALUES.fullmatch(last_name(value.name)) is not None


def _read_backwards(block: Block) -> list[Value]:
    """The arrays whose rows are read from the last one to the first."""
    starts: dict[Value, list[int]] = collections.defaultdict(list)
    for step in block.steps:
        if step.equation.primitive not in primitives("slice", "unstack", "split"):
            continue
        (array,), params = step.inputs, step.equation.params
        if params.get("axis") == 0:
            starts[array] += range(array.shape[0])
        elif "start_indices" in params and step.outputs[0].shape[0] == 1 < array.shape[0]:
            starts[array].append(params["start_indices"][0])
    return [array for array, read in starts.items() if _goes_back(array, list(dict.fromkeys(read)))]


def _goes_back(array: Value, read: list[int]) -> bool:
    maker = array.maker
    is_flipped = maker is not None and maker.equation.primitive in primitives("rev")
    return len(read) >= _LEAST and read == sorted(read, reverse=not is_flipped)


def _repeated(block: Block) -> list[list[Step]]:
    """The sums that one expression led to several times, in order."""
    found: dict[Any, list[Step]] = collections.defaultdict(list)
    for step in block.steps:
        is_sum = step.equation.primitive in primitives("add", "sub")
        if (
            is_sum
            and jnp.issubdtype(step.outputs[0].aval.dtype, jnp.floating)
            and "transpose" not in transformations(step.equation)
        ):
            found[place_of(step.equation), step.outputs[0].shape].append(step)
    return [steps for (place, _), steps in found.items() if place is not None and len(steps) >= _LEAST]


def _links(audited: Audited, flags: Flags, block: Block, steps: list[Step]) -> Iterator[tuple[str, bool]]:
    """The sums that are made of a part of the one before: the name, and whether nothing goes on over an end."""
    sources = {step.outputs[0]: 4 << place for place, step in enumerate(steps)}
    ending, going = (_computed(audited, flags, block, sources, scenario) for scenario in (ENDING, GOING))
    for before, after in itertools.pairwise(sources):
        bit, left = sources[before], ending[after]
        if going[after].sure & ~going[after].added & bit:
            yield after.called, not left.sure & ~(left.added | left.squashed | left.mixed | left.gated) & bit


def _computed(
    audited: Audited, flags: Flags, block: Block, sources: dict[Value, int], scenario: Scenario
) -> dict[Value, Part]:
    """Facts about the values of a block that are sources themselves, by value."""
    fold = Fold(scenario, flags, _FLAG)
    fold.sources = sources
    fold.through(block, [_outside(audited, flags, value, scenario) for value in block.inputs])
    return fold.computed


CHECKS = (by_associative_scan, unread_by_associative_scan, by_python_loop, by_windows, by_last_flags)
