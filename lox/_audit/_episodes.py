"""What a loop carries where episodes end: its body is folded with numbers in place of the flags of their ends."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._expect import ends_declared_at
from lox._audit._location import Location, Span, transformations
from lox._audit._loops import Scan, is_called, scan_of
from lox._audit._naming import place_of, source_text
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._rules import Rules, primitives

_SAID = r"((is|last|prev|previous|next|env|envs|ep|episode|global|new|any|batch)_)?"
_END = re.compile(
    rf"{_SAID}(done|terminal|terminated|termination|terminate|truncated|truncation|episode_end|end_of_episode"
    r"|episode_start|is_first)s?(_t|_tm1|_tp1|_flags?|_prev)?",
    re.IGNORECASE,
)
_END_IF_BOOLEAN = re.compile(rf"{_SAID}(reset|term|trunc|timeout|ended|finished)s?(_t|_tm1|_tp1|_flags?)?", re.IGNORECASE)
_GOES_ON = re.compile(r"discount|mask|not_|non_|nonterm|contin|first|start|alive|valid|weight|gamma", re.IGNORECASE)

_NAME = re.compile(r"[\w./'\"\[\]]+")
"""A name of an argument or a field, and not an expression."""
_MOST = 20_000
"""At how many operations is looked: what calls itself twice is called very often."""
_ITERATIONS = 4
"""How many iterations are looked at until no more numbers are known."""
_DEEP = 24
"""Through how many operations what is scanned is followed back."""

Scenario = tuple[float | None, float | None]
"""The number that all flags are, or None, and the number that a flag of some of them is, such as `jnp.any(done)`."""

UNKNOWN: Scenario = (None, None)
GOING: Scenario = (0.0, 0.0)
ENDING: Scenario = (1.0, 1.0)
ANOTHER_ENDS: Scenario = (0.0, 1.0)


class Part(NamedTuple):
    """What is known of a value of a body. A set is an integer with a bit for each source.

    Attributes:
        number: The number that all its elements are, or None.
        may: The sources that it may depend on.
        sure: Those of them that nothing is known to leave out in some iterations.
        kept: Those of which it is a sum with something, up to constant factors, as a total or parameters are.
        added: Those of which it is a sum with something, as they are.
        gated: Those that were multiplied by what a nonlinear function gave.
        mixed: Those that went through a product of matrices.
        squashed: Those that went through a nonlinear function of such a product.
        is_mask: Whether it is made of booleans.
        is_gate: Whether a nonlinear function gave it.
        is_end: Whether it is a flag of ends, with other axes or of another dtype.
    """

    number: float | None = None
    may: int = 0
    sure: int = 0
    kept: int = 0
    added: int = 0
    gated: int = 0
    mixed: int = 0
    squashed: int = 0
    is_mask: bool = False
    is_gate: bool = False
    is_end: bool = False


NOTHING = Part()


@functools.lru_cache(maxsize=4096)
def _last(name: str) -> str:
    """The last part of a name, as of "step.done"; of an expression, nothing."""
    parts = re.findall(r"\w+", name)
    return parts[-1] if parts and _NAME.fullmatch(name) else ""


@functools.lru_cache(maxsize=4096)
def _says_end(name: str, of_boolean: bool) -> bool:
    last = _last(name)
    return bool(last) and (_END.fullmatch(last) is not None or (of_boolean and _END_IF_BOOLEAN.fullmatch(last) is not None))


@functools.lru_cache(maxsize=4096)
def _says_that_it_goes_on(name: str) -> bool:
    return _GOES_ON.search(_last(name)) is not None


def is_boolean(value: Value) -> bool:
    """Whether the elements of a value are booleans."""
    return getattr(value.aval, "dtype", None) == jnp.bool_


class Flags:
    """Which values are flags of where episodes end.

    Attributes:
        declared: The names that are declared to be such.
    """

    def __init__(self, audited: Audited) -> None:
        self.declared: frozenset[str] = frozenset()
        self._used = {value for step, _ in audited.steps for value in _used_as_ends(step)}

    def __contains__(self, value: Value) -> bool:
        if value in self._used:
            return True
        for name in (value.name, value.written):
            if name and _is_flag(value) and (_says_end(name, is_boolean(value)) or _last(name) in self.declared):
                return True
        return False


def _is_flag(value: Value) -> bool:
    """Whether a value may be a flag by its type and by what is known of it."""
    if is_boolean(value):
        return True
    dtype = getattr(value.aval, "dtype", None)
    if dtype is None or not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        return False
    return value.maker is None or _is_within_one(value)


def _is_within_one(value: Value) -> bool:
    return 0 <= value.fact.range.low and value.fact.range.high <= 1


def _used_as_ends(step: Step) -> Iterator[Value]:
    """The operand that an expression calls by the name of a flag, if that has no name of its own."""
    unnamed = [value for value in step.inputs if value.maker is not None and not value.name and _is_flag(value)]
    if len(unnamed) != 1 or unnamed[0].fact.range.low == unnamed[0].fact.range.high:
        return
    place = place_of(step.equation)
    if place is None:
        return
    file, span = place
    names = _ends_in(file, span, is_boolean(unnamed[0]))
    made = place_of(unnamed[0].maker.equation)
    is_inside = made is not None and made[0] == file and made[1].line >= span.line and made[1].end_line <= span.end_line
    if len(names) == 1 and not is_inside:
        yield unnamed[0]


@functools.lru_cache(maxsize=4096)
def _ends_in(file: str, span: Span, of_boolean: bool) -> frozenset[str]:
    """The names of flags in an expression."""
    text = source_text(file, span)
    return frozenset(name for name in re.findall(r"[\w.]+(?!\w*\()", text) if _says_end(name, of_boolean))


def goes_on(value: Value) -> bool:
    """Whether a value is called as what is zero where an episode ends."""
    return any(_says_that_it_goes_on(name) for name in (value.name, value.written) if name)


class Fold:
    """Follows what values depend on through blocks, with numbers for the flags of the ends of episodes."""

    def __init__(self, scenario: Scenario, flags: Flags, flag: int) -> None:
        self.end, self.of_some = scenario
        self.flags, self.flag = flags, flag
        self.shapes: set[tuple[int, ...]] = set()
        self.reduces = False
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
            self.shapes.add(value.shape if shape is None else shape)
            return Part(self.end, may=self.flag, is_mask=True, is_end=True)
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
        rule = _rule[primitive]
        if step.blocks and rule is None:  # A scatter has one that says how elements are put together.
            if self._left > 0 and is_call(step):
                return self.through(step.blocks[0], parts)
            if self._left > 0 and primitive in primitives("cond"):
                return self._cond(step, parts)
            opaque = together(parts)._replace(sure=0)
            return [opaque] * len(step.outputs)
        if primitive in _REDUCING and parts[0].is_end:
            return [self._reduced(step, parts[0])]
        return [(rule or _other)(step, parts)] * len(step.outputs)

    def _cond(self, step: Step, parts: Sequence[Part]) -> list[Part]:
        asked, *given = parts
        if asked.number is not None:
            place = min(max(int(asked.number), 0), len(step.blocks) - 1)
            return self.through(step.blocks[place], given)
        results = [self.through(block, given) for block in step.blocks]
        return [_one_of(asked, each) for each in zip(*results, strict=True)]

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


def of_number(value: Value) -> Part:
    """What is known of a value that comes from outside of all that is followed."""
    known = value.fact.range
    if known.low == known.high and math.isfinite(known.low):
        return Part(known.low, is_mask=is_boolean(value))
    return NOTHING._replace(is_mask=is_boolean(value) or (bool(value.shape) and goes_on(value)))


def together(parts: Iterable[Part]) -> Part:
    """What depends on several values."""
    may = sure = gated = mixed = squashed = 0
    for part in parts:
        may, sure, gated = may | part.may, sure | part.sure, gated | part.gated
        mixed, squashed = mixed | part.mixed, squashed | part.squashed
    return Part(None, may, sure, 0, 0, gated, mixed, squashed)


def _other(step: Step, parts: Sequence[Part]) -> Part:
    return together(parts)


def _one_of(asked: Part, cases: Sequence[Part]) -> Part:
    """One of several values, of which it is not known which."""
    found = together([asked, *cases])
    sure, kept, added = functools.reduce(operator.and_, (case.sure for case in cases)), 0, 0
    for case in cases:
        kept, added = kept | case.kept, added | case.added
    number = cases[0].number if all(case.number == cases[0].number for case in cases) else None
    if number is not None:
        return Part(number)
    return found._replace(sure=sure, kept=kept, added=added, is_mask=all(case.is_mask for case in cases))


Rule = Callable[[Step, Sequence[Part]], Part]
_rule = Rules[Rule]()

_REDUCING = primitives("reduce_or", "reduce_and", "reduce_max", "reduce_min", "reduce_sum")


@_rule("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy", "rev", "slice")
@_rule("stop_gradient", "name", "optimization_barrier", "reduce_precision", "sharding_constraint", "reshard")
@_rule("reduce_or", "reduce_and", "reduce_max", "reduce_min")
def _as_it_is(step: Step, parts: Sequence[Part]) -> Part:
    return parts[0]


@_rule("dynamic_slice", "gather")
def _taken(step: Step, parts: Sequence[Part]) -> Part:
    first, *places = parts
    if first.number is not None:
        return first
    return together(parts)._replace(kept=first.kept, added=first.added, is_mask=first.is_mask)


@_rule("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_update_slice")
def _put(step: Step, parts: Sequence[Part]) -> Part:
    return together(parts)._replace(kept=parts[0].kept, added=parts[0].added)


@_rule("select_n")
def _select(step: Step, parts: Sequence[Part]) -> Part:
    asked, *cases = parts
    if asked.number is not None:
        return cases[int(asked.number)]
    return _one_of(asked, cases)


@_rule("clamp")
def _clamp(step: Step, parts: Sequence[Part]) -> Part:
    return parts[1] if parts[1].number is None else NOTHING


@_rule("concatenate", "stack")
def _joined(step: Step, parts: Sequence[Part]) -> Part:
    number = parts[0].number
    if number is not None and all(part.number == number for part in parts):
        return parts[0]
    return together(parts)


@_rule("mul", "dot_general")
def _mul(step: Step, parts: Sequence[Part]) -> Part:
    one, other = parts
    if one.number == 0 or other.number == 0:
        return Part(0.0)
    if one.number is not None and other.number is not None:
        return Part(one.number * other.number, one.may | other.may, is_mask=one.is_mask or other.is_mask)
    found = together(parts)
    left = one.sure if not other.is_mask or other.number is not None else 0
    right = other.sure if not one.is_mask or one.number is not None else 0
    kept = (one.kept if _is_same_in_all(other) else 0) | (other.kept if _is_same_in_all(one) else 0)
    is_mask = one.is_mask and other.is_mask or _is_scaled_mask(one, other) or _is_scaled_mask(other, one)
    added = (one.added if other.number == 1 else 0) | (other.added if one.number == 1 else 0)
    gated = found.gated | (one.may if other.is_gate else 0) | (other.may if one.is_gate else 0)
    found = found._replace(sure=left | right, kept=kept, added=added, gated=gated, is_mask=is_mask)
    if step.equation.primitive in primitives("dot_general"):
        found = found._replace(mixed=found.may, kept=0, added=0, is_mask=False)
    return found


def _is_same_in_all(part: Part) -> bool:
    """Whether a value is the same in all iterations."""
    return part.number is not None or not part.may


def _is_scaled_mask(one: Part, other: Part) -> bool:
    return one.is_mask and _is_same_in_all(other)


@_rule("tanh", "logistic", "erf", "max")
def _squash(step: Step, parts: Sequence[Part]) -> Part:
    if len(parts) == 2 and None not in (parts[0].number, parts[1].number):
        return _arithmetic(step, parts)
    found = together(parts)
    squashed = found.squashed | found.mixed
    if len(parts) == 1:
        return found._replace(squashed=squashed, is_gate=True)
    kept, added = parts[0].kept | parts[1].kept, parts[0].added | parts[1].added
    return found._replace(squashed=squashed, kept=kept, added=added)


_COMPUTED: dict[Any, Callable[..., float]] = {
    primitive: function
    for name, function in {
        "add": operator.add,
        "sub": operator.sub,
        "neg": operator.neg,
        "max": max,
        "min": min,
        "eq": lambda a, b: float(a == b),
        "ne": lambda a, b: float(a != b),
        "lt": lambda a, b: float(a < b),
        "le": lambda a, b: float(a <= b),
        "gt": lambda a, b: float(a > b),
        "ge": lambda a, b: float(a >= b),
        "div": lambda a, b: a / b if b else math.nan,
    }.items()
    for primitive in primitives(name)
}


@_rule("add", "sub", "neg", "min", "eq", "ne", "lt", "le", "gt", "ge", "div")
def _arithmetic(step: Step, parts: Sequence[Part]) -> Part:
    numbers = [part.number for part in parts]
    found = together(parts)
    is_mask = all(part.is_mask or part.number is not None for part in parts)
    if None not in numbers:
        result = _COMPUTED[step.equation.primitive](*numbers)
        if not math.isnan(result):
            return Part(result, found.may, is_mask=is_mask)
    if step.equation.primitive in primitives("eq", "ne", "lt", "le", "gt", "ge"):
        return found._replace(is_mask=True)
    kept, added = parts[0].kept, parts[0].added
    if step.equation.primitive in primitives("add", "min"):
        kept, added = kept | parts[1].kept, added | parts[1].added
    if step.equation.primitive in primitives("div"):
        kept, added = kept if _is_same_in_all(parts[1]) else 0, added if parts[1].number == 1 else 0
    is_gate = any(part.is_gate for part in parts)
    return found._replace(kept=kept, added=added, is_mask=is_mask, is_gate=is_gate)


@_rule("add_any")
def _added(step: Step, parts: Sequence[Part]) -> Part:
    return together(parts)._replace(kept=parts[0].kept | parts[1].kept, added=parts[0].added | parts[1].added)


@_rule("and")
def _and(step: Step, parts: Sequence[Part]) -> Part:
    return _logic(step, parts, 0.0)


@_rule("or")
def _or(step: Step, parts: Sequence[Part]) -> Part:
    return _logic(step, parts, 1.0)


def _logic(step: Step, parts: Sequence[Part], decides: float) -> Part:
    numbers = [part.number for part in parts]
    may = parts[0].may | parts[1].may
    if not is_boolean(step.outputs[0]):
        return together(parts)
    if decides in numbers:
        return Part(decides, may, is_mask=True)
    if None not in numbers:
        return Part(1.0 - decides, may, is_mask=True)
    left = [part for part in parts if part.number is None]
    return together(left)._replace(is_mask=True)


@_rule("not")
def _not(step: Step, parts: Sequence[Part]) -> Part:
    if parts[0].number is None or not is_boolean(step.outputs[0]):
        return parts[0]._replace(number=None, is_end=False)
    return parts[0]._replace(number=1.0 - parts[0].number, is_end=False)


_FOLLOWED = frozenset(_COMPUTED) | primitives(
    *("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy", "rev", "slice", "mul"),
    *("stop_gradient", "select_n", "and", "or", "not", "concatenate", "gather"),
)
_SHIFTED = re.compile(r"(\w+_)?(values?|baselines?|critics?|v|vs|vf)(_\w+)?", re.IGNORECASE)


class Before:
    """What is known of arrays outside of a loop: numbers in place of flags, and where values are those of a next step.

    Attributes:
        shifted: The values of next steps, each with its source.
    """

    def __init__(self, audited: Audited, fold: Fold, step: int) -> None:
        self._audited, self._fold, self._step = audited, fold, step
        self._known: dict[Value, Part] = {}
        self._shape: tuple[int, ...] = ()
        self.shifted: dict[Value, int] = {}

    def sliced(self, value: Value, slice_: Value) -> Part:
        """What is known of a slice of an array that is scanned."""
        self._shape = slice_.shape
        return self._of(value, _DEEP)

    def _of(self, value: Value, deep: int) -> Part:
        value = self._audited.origins.of(value, frozenset())
        if value not in self._known:
            self._known[value] = self._fold.named(value, self._part(value, deep), self._shape)
        return self._known[value]

    def _part(self, value: Value, deep: int) -> Part:
        found = of_number(value)
        if found.number is not None or value in self._fold.flags:
            return found
        found = found._replace(may=self._step)
        maker = value.maker
        if maker is None or deep == 0 or maker.equation.primitive not in _FOLLOWED:
            return found
        if _is_of_next_step(maker):
            bit = self.shifted.setdefault(value, self._step << 1 + len(self.shifted))
            return Part(None, self._step | bit, bit)
        parts = [self._of(each, deep - 1) for each in maker.inputs]
        (result,) = self._fold.step(maker, parts)
        return result._replace(is_mask=result.is_mask or found.is_mask)


def _is_of_next_step(step: Step) -> bool:
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


def _is_of_values(value: Value) -> bool:
    return any(_SHIFTED.fullmatch(_last(name)) for name in (value.name, value.written) if name)


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
        another: The same where an episode of another environment ends; None if the body does not ask for any of them.
        values: What is known of the values of the body, whatever the flags are.
        ends: The sources that are flags.
        shifted: The values of next steps that are scanned, by their source.
        shapes: The shapes of the flags.
    """

    loop: Scan
    location: Location
    is_backward: bool
    unknown: list[Part]
    going: list[Part]
    ending: list[Part]
    another: list[Part] | None
    values: dict[Value, Part]
    ends: int
    shifted: dict[int, Value]
    shapes: frozenset[tuple[int, ...]]


def flows(audited: Audited) -> list[Flow]:
    """The loops that people wrote in which flags of the ends of episodes are read."""
    if not audited.has("scan", "while"):
        return []
    declared, flags = audited.once(_declarations), audited.once(Flags)
    if not declared and not any(value in flags for value in _values(audited)):
        return []
    found = []
    for step, location in _loops(audited):
        flags.declared = declared.get(step, frozenset())
        found.append(_flow(audited, step, location, flags))
    return [flow for flow in found if flow is not None]


def _values(audited: Audited) -> Iterator[Value]:
    yield from audited.program.inputs
    for step, _ in audited.steps:
        yield from step.outputs
        for block in step.blocks:
            yield from block.inputs


def _loops(audited: Audited) -> Iterator[tuple[Step, Location]]:
    for step, location in audited.of("scan", "while"):
        is_users = is_called(step, "scan", "while_loop", "fori_loop")
        if is_users and "transpose" not in transformations(step.equation):
            yield step, location


def _declarations(audited: Audited) -> dict[Step, frozenset[str]]:
    """The names of flags that are declared around the steps of a program."""
    found: dict[Step, frozenset[str]] = {}

    def visit(block: Block, around: frozenset[str]) -> None:
        for step in block.steps:
            names = around | ends_declared_at(step.equation)
            if names - found.get(step, frozenset()):
                found[step] = found.get(step, frozenset()) | names
                for inner in step.blocks:
                    visit(inner, names)
            elif step not in found:
                for inner in step.blocks:
                    visit(inner, names)

    if any(ends_declared_at(step.equation) for step, _ in audited.steps):
        visit(audited.program, frozenset())
    return found


def _flow(audited: Audited, step: Step, location: Location, flags: Flags) -> Flow | None:
    loop = loop_of(step)
    flag = 1 << len(loop.carry)
    results, folds, values = {}, {}, {}
    for scenario in (UNKNOWN, GOING, ENDING, ANOTHER_ENDS):
        fold = Fold(scenario, flags, flag)
        before = Before(audited, fold, flag << 1)
        results[scenario], known = _folded(loop, fold, before)
        if scenario is UNKNOWN:
            values, shapes = known, frozenset(fold.shapes)
            if not shapes:
                return None
            reduces, shifted = fold.reduces, {bit: value for value, bit in before.shifted.items()}
        if scenario is ENDING and not reduces:
            break
    carried = enumerate(results[UNKNOWN][: len(loop.carry)])
    return Flow(
        loop,
        location,
        _is_backward(audited, loop),
        results[UNKNOWN],
        results[GOING],
        results[ENDING],
        results.get(ANOTHER_ENDS),
        values,
        functools.reduce(operator.or_, (1 << place for place, part in carried if part.is_end), flag),
        shifted,
        shapes,
    )


def _folded(loop: Scan, fold: Fold, before: Before) -> tuple[list[Part], dict[Value, Part]]:
    """What comes out of the body of a loop, after enough iterations that what is the same in each is known."""
    consts = [of_number(outside) for outside, _ in loop.consts]
    xs = [before.sliced(*pair) for pair in loop.xs]
    carry = [Part(None, bit, bit, bit, bit) for bit in (1 << place for place in range(len(loop.carry)))]
    for _ in range(_ITERATIONS):
        known: dict[Value, Part] = {}
        results = fold.through(loop.body, [*consts, *carry, *xs], known)
        after = [
            part if new.number is None else Part(new.number, is_mask=new.is_mask, is_end=new.is_end)
            for part, new in zip(carry, results, strict=False)
        ]
        if after == carry:
            break
        carry = after
    return results, known


def loop_of(step: Step) -> Scan:
    """A scan, or a while loop as one that scans nothing."""
    if step.equation.primitive in primitives("scan"):
        return scan_of(step)
    body, params = step.blocks[-1], step.equation.params
    outside, consts = step.inputs[params["cond_nconsts"] :], params["body_nconsts"]
    pairs = tuple(zip(outside, body.inputs, strict=True))
    carried = zip(pairs[consts:], body.outputs, strict=True)
    return Scan(step, body, pairs[:consts], tuple((out, own, new) for (out, own), new in carried), (), ())


def _is_backward(audited: Audited, loop: Scan) -> bool:
    """Whether a scan goes from the last step to the first."""
    makers = [audited.origins.of(outside, frozenset()).maker for outside, _ in loop.xs]
    is_flipped = any(
        maker is not None
        and maker.equation.primitive in primitives("rev")
        and 0 in maker.equation.params["dimensions"]
        for maker in makers
    )
    return bool(loop.step.equation.params.get("reverse", False)) != is_flipped
