"""What a loop carries where episodes end: its body is folded with numbers in place of the flags of their ends."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._ends import Flags, is_boolean, is_reward, last_name
from lox._audit._expect import DONE, declared_around, is_declared
from lox._audit._location import Location, call, is_users, locate, transformations
from lox._audit._loops import Scan, is_called, loop_of, origins
from lox._audit._parts import COMPUTED, Part, has_rule, made, of_number, one_of, source, together
from lox._audit._program import NAMELESS, Block, Step, Value, blocks_in, is_call
from lox._audit._rules import primitives

_MOST = 20_000
"""At how many operations is looked: what calls itself twice is called very often."""
_ITERATIONS = 4
"""How many iterations are looked at until no more numbers are known."""
_DEEP = 24
"""Through how many operations what is scanned is followed back."""

_LOOPS = frozenset({"scan", "while_loop", "fori_loop"})
_REDUCING = primitives("reduce_or", "reduce_and", "reduce_max", "reduce_min", "reduce_sum")

Scenario = tuple[float | None, float | None]
"""The number that all flags are, or None, and the number that a flag of some of them is, such as `jnp.any(done)`."""

UNKNOWN = (None, None)
GOING = (0.0, 0.0)
ENDING = (1.0, 1.0)
ANOTHER_ENDS = (0.0, 1.0)


class Fold:
    """Follows what values depend on through blocks, with numbers for the flags of the ends of episodes.

    Attributes:
        sources: The bits of values inside blocks that are sources.
        computed: What is known of these, as they are computed.
    """

    def __init__(self, scenario: Scenario, flags: Flags, flag: int) -> None:
        self.end, self.of_some = scenario
        self.flags, self.flag = flags, flag
        self.declared_end = self.end
        self.shapes: set[tuple[int, ...]] = set()
        self.whole: frozenset[Value] = frozenset()
        self.next_reads: dict[Step, int] = {}
        self.reduces = False
        self.causes = 0
        self.limits: dict[int, float] = {}
        self.sources: Mapping[Value, int] = MappingProxyType({})
        self.computed: dict[Value, Part] = {}
        self._left = _MOST

    def through(self, block: Block, inputs: Sequence[Part], known: dict[Value, Part] | None = None) -> list[Part]:
        """What comes out of a block; what is known of its values is put into `known`."""
        known = {} if known is None else known
        for value, part in zip(block.inputs, inputs, strict=True):
            known[value] = self.named(value, part)
        for step in block.steps:
            parts = [self._read(known, value) for value in step.inputs]
            for value, part in zip(step.outputs, self.step(step, parts), strict=True):
                known[value] = self.named(value, part)
        return [self._read(known, value) for value in block.outputs]

    def named(self, value: Value, part: Part, shape: tuple[int, ...] | None = None) -> Part:
        """A part, or that of a flag if the value is one; `shape` is that of the flag of a step."""
        if value in self.flags:
            if value not in self.whole:
                self.shapes.add(value.shape if shape is None else shape)
            self.causes |= part.direct
            number = self.declared_end if self.flags.is_declared(value) else self.end
            return Part(number, self.flag, direct=part.direct, is_mask=True, is_end=True)
        if part.number is None and not part.may & self.flag and self.flags.is_onward(value):
            if value not in self.whole:
                self.shapes.add(value.shape if shape is None else shape)
            return Part(None if self.end is None else 1.0 - self.end, self.flag, direct=part.direct, is_mask=True)
        if value in self.sources:
            bit, self.computed[value] = self.sources[value], part
            return source(bit)
        if is_boolean(value) and not part.is_mask:
            return part._replace(is_mask=True)
        return part

    def _read(self, known: dict[Value, Part], value: Value) -> Part:
        if value not in known:
            known[value] = of_number(value)
        return known[value]

    def step(self, step: Step, parts: Sequence[Part]) -> list[Part]:
        """What comes out of a step."""
        self._left -= 1
        primitive = step.equation.primitive
        if parts and parts[0].is_end and primitive in _READING | primitives("squeeze"):
            self.shapes.add(step.outputs[0].shape)
        if step in self.next_reads:
            bit = self.next_reads[step]
            return [Part(None, parts[0].may | bit, bit)]
        if step.blocks and not has_rule(primitive):  # A scatter has one that says how elements are put together.
            if self._left > 0 and is_call(step):
                return self.through(step.blocks[0], parts)
            if self._left > 0 and primitive in primitives("cond"):
                return self._cond(step, parts)
            opaque = together(parts)._replace(sure=0, direct=0)
            return [opaque] * len(step.outputs)
        if primitive in _REDUCING and parts[0].is_end:
            return [self._reduced(step, parts[0])]
        if primitive in primitives("ge", "gt") and parts[1].number is not None:
            self.limits[parts[0].added] = parts[1].number
        return [made(step, parts)] * len(step.outputs)

    def _cond(self, step: Step, parts: Sequence[Part]) -> list[Part]:
        asked, *given = parts
        if asked.number is not None:
            place = min(max(int(asked.number), 0), len(step.blocks) - 1)
            return self.through(step.blocks[place], given)
        results = [self.through(block, given) for block in step.blocks]
        return [one_of(asked, each) for each in zip(*results, strict=True)]

    def _reduced(self, step: Step, part: Part) -> Part:
        """A reduction of a flag: over environments, one of which decides then."""
        axes = step.equation.params["axes"]
        over_some = 0 in axes and step.inputs[0].shape[0] > 1
        number = self.of_some if over_some else part.number
        self.reduces |= over_some
        if step.equation.primitive in primitives("reduce_and", "reduce_min"):
            number = part.number
        if number is not None and step.equation.primitive in primitives("reduce_sum"):
            number *= math.prod(step.inputs[0].shape[axis] for axis in axes)
        return part._replace(number=number, is_end=not over_some)


_FOLLOWED = frozenset(COMPUTED) | primitives(
    *("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy", "rev", "slice", "mul"),
    *("stop_gradient", "select_n", "and", "or", "not", "concatenate", "gather"),
)
_NEXT_VALUE = re.compile(
    r"next_?(?:state_?)?(?:v|q|values?|vals?|critics?)|(?:v|q|values?|vals?)_?(?:next|tp1|t_plus_1)", re.IGNORECASE
)
_NEXT_STATE = re.compile(r"(?:next_?|n)(?:obs\w*|states?)|(?:obs|states?)_?(?:next|tp1)", re.IGNORECASE)
_CUT_SHORT = re.compile(r"trunc|time_?out|time_?limit", re.IGNORECASE)
_LAST_OF_A_NETWORK = primitives("dot_general", "squeeze", "reduce_max", "reduce_min", "add")
_SHIFTED = re.compile(r"(\w+_)?(values?|baselines?|critics?|v|vs|vf)(_\w+)?", re.IGNORECASE)


def before(audited: Audited, value: Value, through: Set[Any], scanned: Mapping[Value, Value]) -> Value:
    """The value that one is before calls and operations of these primitives, and before it is scanned."""
    value = audited.origins.of(value, through)
    while value in scanned:
        value = audited.origins.of(scanned[value], through)
    return value


class Before:
    """What is known of arrays outside a loop: numbers in place of flags, and where values are those of a next step.

    Attributes:
        shifted: The values of next steps, each with its source.
    """

    def __init__(
        self, audited: Audited, fold: Fold, step: int, scanned: Mapping[Value, Value] = MappingProxyType({})
    ) -> None:
        self._audited, self._fold, self._step, self._scanned = audited, fold, step, scanned
        self._known: dict[Value, Part] = {}
        self._shape: tuple[int, ...] = ()
        self.shifted: dict[Value, int] = {}

    def sliced(self, value: Value, slice_: Value) -> Part:
        """What is known of a slice of an array that is scanned."""
        self._shape = slice_.shape
        return self._of(value, _DEEP)

    def read_at_next(self, loop: Scan) -> dict[Step, int]:
        """The steps of a body that read values at the place after that of the step, each with its source."""
        arrays = {inside: outside for outside, inside in loop.consts}
        reads = [(step, _counted(step.inputs[1])) for step in loop.body.steps if step.equation.primitive in _READING]
        counters = {counter for _, counter in reads}
        found = {}
        for step, counter in reads:
            array, maker = step.inputs[0], counter.maker
            if array not in arrays or maker is None or maker.equation.primitive not in primitives("add"):
                continue
            is_next = maker.inputs[0] in counters and of_number(maker.inputs[1]).number == 1
            if is_next and (_is_of_values(array) or _is_of_values(arrays[array])):
                found[step] = self.shifted.setdefault(step.outputs[0], self._step << 1 + len(self.shifted))
        return found

    def _of(self, value: Value, deep: int) -> Part:
        value = before(self._audited, value, frozenset(), self._scanned)
        if value not in self._known:
            self._known[value] = self._fold.named(value, self._part(value, deep), self._shape)
        return self._known[value]

    def _part(self, value: Value, deep: int) -> Part:
        found = of_number(value)
        if found.number is not None or value in self._fold.flags:
            return found
        found = found._replace(may=self._step)
        maker = value.maker
        if maker is not None and deep > 0 and maker.equation.primitive in _FOLLOWED:
            if is_of_next_step(maker):
                return self._of_next(value)
            parts = [self._of(each, deep - 1) for each in maker.inputs]
            (result,) = self._fold.step(maker, parts)
            found = result._replace(is_mask=result.is_mask or found.is_mask)
        if found.number is None and not found.may & self._fold.flag and not found.is_mask:
            is_next = not is_reward(value) and (_is_called_next(value) or _is_value_of_next(value))
            return self._of_next(value) if is_next else found
        return found

    def _of_next(self, value: Value) -> Part:
        bit = self.shifted.setdefault(value, self._step << 1 + len(self.shifted))
        return Part(None, self._step | bit, bit)


def _counted(value: Value) -> Value:
    """The counter that an index is made of, before it is brought into the array and laid out."""
    while value.maker is not None and value.maker.equation.primitive in _INDEXING:
        value = value.maker.inputs[value.maker.equation.primitive in primitives("select_n")]
    return value


_READING = primitives("dynamic_slice", "gather")
_INDEXING = primitives("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "select_n", "concatenate")


def is_of_next_step(step: Step) -> bool:
    """Whether a step moves values by one along their first axis, so that each stands where the one before it did."""
    if step.equation.primitive in primitives("concatenate"):
        if step.equation.params["dimension"] != 0 or len(step.inputs) != 2:
            return False
        first, last = step.inputs
        moved = first.maker
        if last.shape[:1] != (1,) or moved is None or not _is_after_first(moved):
            return False
        return first.shape[0] + 1 == moved.inputs[0].shape[0] and _is_of_values(moved.inputs[0])
    return _is_after_first(step) and _is_of_values(step.inputs[0])


def _is_after_first(step: Step) -> bool:
    if step.equation.primitive not in primitives("slice"):
        return False
    (operand,), (result,) = step.inputs, step.outputs
    start, strides = step.equation.params["start_indices"], step.equation.params["strides"]
    if not operand.shape or strides is not None and any(stride != 1 for stride in strides):
        return False
    return start[0] == 1 and result.shape[0] == operand.shape[0] - 1


def _is_called_next(value: Value) -> bool:
    return any(_NEXT_VALUE.fullmatch(last_name(name)) for name in (value.name, value.written) if name)


def _is_value_of_next(value: Value) -> bool:
    """Say whether a value is one number for each state, computed by a network from states that are called the next."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in _LAST_OF_A_NETWORK:
        return False
    own = [each.name for each in origins([value]) if each.name and each.shape[: len(value.shape)] == value.shape]
    return bool(own) and all(_NEXT_STATE.fullmatch(last_name(name)) for name in own)


def _is_of_values(value: Value) -> bool:
    return any(_SHIFTED.fullmatch(last_name(name)) for name in (value.name, value.written) if name)


@dataclasses.dataclass(frozen=True, eq=False)
class Flow:
    """What a loop carries from one iteration to the next, with and without the end of an episode between them.

    Attributes:
        loop: The loop.
        location: Its line.
        is_backward: Whether it goes from the last step to the first.
        unknown: What is known of each output of the body, whatever the flags are.
        going: The same while no episode ends.
        ending: The same where an episode ends in each iteration.
        ended: The same where one ends in an iteration, whatever it gets from the one before.
        another: The same where an episode of another environment ends; None if the body does not ask for any of them.
        values: What is known of the values of the body, whatever the flags are.
        ends: The sources that are flags.
        causes: The sources that flags are computed from.
        limits: The numbers that sources are compared with, by source.
        shifted: The values of next steps that are scanned, by their source.
        shapes: The shapes of the flags.
    """

    loop: Scan
    location: Location
    is_backward: bool
    unknown: list[Part]
    going: list[Part]
    ending: list[Part]
    ended: list[Part]
    another: list[Part] | None
    values: dict[Value, Part]
    ends: int
    causes: int
    limits: dict[int, float]
    shifted: dict[int, Value]
    shapes: frozenset[tuple[int, ...]]

    @property
    def times(self) -> float:
        """How many iterations the loop has."""
        return float(self.loop.step.equation.params.get("length", math.inf))

    @property
    def reads_ends(self) -> bool:
        """True if anything that comes out of the body depends on a flag."""
        return any(part.may & self.ends for part in self.unknown)

    @functools.cached_property
    def numbers(self) -> tuple[int, ...]:
        """The places of what is carried that is made of floats."""
        carried = (inside.aval for _, inside, _ in self.loop.carry)
        dtypes = (getattr(aval, "dtype", jnp.bool_) for aval in carried)
        return tuple(place for place, dtype in enumerate(dtypes) if jnp.issubdtype(dtype, jnp.floating))

    @functools.cached_property
    def cut(self) -> tuple[int, ...]:
        """Those of them that go on within an episode, and not over its end."""
        return tuple(place for place in self.numbers if self.is_cut(place, place))

    def is_cut(self, place: int, source: int) -> bool:
        """Say whether what is carried depends on a source within an episode, and not where one ends."""
        return bool(self.going[place].may & ~self.ending[place].may & 1 << source)

    def knows(self, place: int) -> bool:
        """Say whether what is carried depends on a flag."""
        return bool(self.unknown[place].may & self.ends)

    def may_go_on(self, source: int, is_added: bool) -> bool:
        """Say whether values are of the next states themselves, which count where an episode is only cut short.

        Those that are only known by what they are computed from may be rewards, if they are added as they are.
        """
        value = self.shifted.get(1 << source)
        if value is None or (value.maker is not None and is_of_next_step(value.maker)):
            return False
        if value.maker is not None and value.maker in self.loop.body.steps:  # Read at the place after that of the step.
            return False
        ends = [pair for pair in self.loop.xs if self.values[pair[1]].is_end]
        names = [name for one, *_ in ends for name in (one.name, one.written)]
        if not ends:  # What is zero at an end is computed from the flags before.
            sources = origins(outside for outside, inside in self.loop.xs if self.values[inside].is_mask)
            names = [each.name for each in sources if each.maker is None]
        is_cut_short = any(map(_CUT_SHORT.search, names)) or not any(names)
        return is_cut_short or (is_added and not _is_called_next(value))

    def name(self, source: int) -> str:
        """The name of what is carried, or of values of next steps."""
        if source < len(self.loop.carry):
            outside, inside, new = self.loop.carry[source]
            variable = next((each.written for each in (new, inside) if each.written.isidentifier()), inside.name)
            return variable or new.written or outside.called.replace(NAMELESS, "what is carried")
        value = self.shifted[1 << source]
        if value.called != NAMELESS or value.maker is None:
            return value.called
        return f"the next of {value.maker.inputs[0].called}" if is_of_next_step(value.maker) else "the next value"


def flows(audited: Audited) -> list[Flow]:
    """The loops that people wrote in which flags of the ends of episodes are read.

    Where a flag depends on what it was, as in `done | found`, all ends with the first end, and nothing begins after it.
    """
    if not audited.has("scan", "while"):
        return []
    declared, flags = audited.once(declarations), audited.once(Flags)
    if not declared and not any(value in flags or flags.is_onward(value) for value in _values(audited)):
        return []
    found = []
    for step, location in _loops(audited):
        flags.declared = declared.get(step, frozenset())
        found.append(_flow(audited, step, location, flags))
    return [flow for flow in found if flow is not None and not flow.causes & flow.ends]


def _values(audited: Audited) -> Iterator[Value]:
    yield from audited.program.inputs
    for step, _ in audited.steps:
        yield from step.outputs
        for block in step.blocks:
            yield from block.inputs


def _loops(audited: Audited) -> Iterator[tuple[Step, Location]]:
    for step, location in audited.of("scan", "while"):
        is_written = is_called(step, *_LOOPS) or (not _LOOPS.isdisjoint(call(step.equation)[1:]) and _is_lifted(step))
        if is_written and "transpose" not in transformations(step.equation):
            yield step, location


def _is_lifted(step: Step) -> bool:
    """Say whether a library calls a loop, such as `nn.scan` of flax, and people wrote what it does with flags."""
    body = step.blocks[-1]
    return any(is_users(locate(each.equation).file) for inner in blocks_in(body) for each in inner.steps)


def declarations(audited: Audited) -> dict[Step, frozenset[str]]:
    """The names of flags that are declared around the steps of a program."""
    found: dict[Step, frozenset[str]] = {}
    if any(is_declared(step.equation) for step, _ in audited.steps):
        for step, declared in declared_around(audited.program):
            found[step] = found.get(step, frozenset()) | declared.get(DONE, frozenset())
    return found


def _flow(audited: Audited, step: Step, location: Location, flags: Flags) -> Flow | None:
    loop = loop_of(step)
    flag = 1 << len(loop.carry)

    def folded(scenario: Scenario) -> tuple[Fold, Before, list[tuple[list[Part], dict[Value, Part]]]]:
        fold = Fold(scenario, flags, flag)
        outside = Before(audited, fold, flag << 1)
        return fold, outside, _folded(loop, fold, outside)

    fold, outside, iterations = folded(UNKNOWN)
    unknown, values = iterations[-1]
    if not fold.shapes:
        return None
    carried = enumerate(unknown[: len(loop.carry)])
    ending = [results for results, _ in folded(ENDING)[2]]
    return Flow(
        loop,
        location,
        _is_backward(audited, loop, flags),
        unknown,
        folded(GOING)[2][-1][0],
        ending[-1],
        ending[0],
        folded(ANOTHER_ENDS)[2][-1][0] if fold.reduces else None,
        values,
        functools.reduce(operator.or_, (1 << place for place, part in carried if part.is_end), flag),
        fold.causes,
        fold.limits,
        {bit: value for value, bit in outside.shifted.items()},
        frozenset(fold.shapes),
    )


def _folded(loop: Scan, fold: Fold, outside: Before) -> list[tuple[list[Part], dict[Value, Part]]]:
    """What comes out of the body of a loop, and is in it, in as many iterations as tell what is the same in each."""
    fold.whole = frozenset(value for pair in loop.consts for value in pair)
    consts = [fold.named(value, of_number(value)) for value, _ in loop.consts]
    xs = [outside.sliced(*pair) for pair in loop.xs]
    fold.next_reads = outside.read_at_next(loop)
    carry = [source(1 << place) for place in range(len(loop.carry))]
    iterations = []
    for _ in range(_ITERATIONS):
        known: dict[Value, Part] = {}
        results = fold.through(loop.body, [*consts, *carry, *xs], known)
        iterations.append((results, known))
        after = [
            part if new.number is None else Part(new.number, is_mask=new.is_mask, is_end=new.is_end)
            for part, new in zip(carry, results, strict=False)
        ]
        if after == carry:
            break
        carry = after
    return iterations


def _is_backward(audited: Audited, loop: Scan, flags: Flags) -> bool:
    """Say whether a loop goes from the last step to the first."""
    arrays = {value for pair in loop.consts for value in pair if value in flags or pair[0] in flags}
    makers = [audited.origins.of(outside, frozenset()).maker for outside, _ in loop.xs]
    is_flipped = any(
        maker is not None and maker.equation.primitive in primitives("rev") and 0 in maker.equation.params["dimensions"]
        for maker in makers
    )
    is_reversed = bool(loop.step.equation.params.get("reverse", False)) != is_flipped
    for step in loop.body.steps:
        if step.equation.primitive in _READING and step.inputs[0] in arrays:
            return is_reversed != _counts_down(loop, _counted(step.inputs[1]))
    return is_reversed


def _counts_down(loop: Scan, counter: Value) -> bool:
    """Say whether an index gets less from one iteration to the next."""
    maker, is_less = counter.maker, False
    if maker is not None and maker.equation.primitive in primitives("sub") and of_number(maker.inputs[0]).number:
        counter, is_less = maker.inputs[1], True
    for _, inside, new in loop.carry:
        if inside is counter and new.maker is not None and inside in new.maker.inputs[:1]:
            by = of_number(new.maker.inputs[-1]).number or 0.0
            sign = -1 if new.maker.equation.primitive in primitives("sub") else 1
            return is_less != (sign * by < 0)
    return is_less
