"""Follows what is drawn at random through a program, to the data that it meets."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Mapping, Sequence, Set

from lox._audit._checks._randomness._key_arrays import DRAWS, FOLDED, SEEDED, is_key, is_keyed
from lox._audit._forward import Forward
from lox._audit._location import Location, frames, transformations
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

_KEYS = primitives("random_wrap", "random_unwrap", "convert_element_type", "squeeze", "reshape", "broadcast_in_dim")
_CARRYING = SEEDED | _KEYS
_SPLIT = primitives("random_split") | FOLDED
_MEETING = primitives("add", "sub", "mul", "div", "max", "min", "lt", "le", "gt", "ge", "select_n", "pow", "rem")
"""Operations on elements in which noise meets data."""
_MIXING = primitives(
    "dot_general",
    "conv_general_dilated",
    "gather",
    "dynamic_slice",
    "sort",
    "argmax",
    "argmin",
)
"""Operations after which what was drawn is no noise on single elements of data."""
_JOINING = primitives("concatenate", "pad", "dynamic_update_slice", "scatter")
"""Operations that put what was drawn beside other elements."""
_ADDING = primitives("scatter_add", "scatter_mul")
_MOST_PASSES = 16
"""How often a loop is gone through, for what goes from slot to slot of its carry."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """A place where something is drawn.

    Attributes:
        location: The line.
        size: How many numbers.
        shared: Whether all batch elements of a vmap share them.
        constant: Whether they are drawn from a key that is a constant.
        folded: Whether a constant was folded into that key, as modules do for each of their layers.
    """

    location: Location
    size: int
    shared: bool
    constant: bool
    folded: bool = False


@dataclasses.dataclass(frozen=True)
class Mark:
    """What a value depends on.

    Attributes:
        draws: What was drawn that is in it, element by element.
        given: Whether it depends on the arguments that are no keys.
        keyed: Whether it depends on the keys among them.
        derived: Whether it is a derivative, or depends on one.
        constant: Whether it is a constant, or a key made of one.
        past: The lines of what was drawn for all batch elements and has any part in it.
        folded: Whether a constant was folded into such a key.
    """

    draws: frozenset[Draw] = frozenset()
    given: bool = False
    keyed: bool = False
    derived: bool = False
    constant: bool = False
    past: frozenset[Location] = frozenset()
    folded: bool = False

    def __or__(self, other: Mark) -> Mark:
        if self is other or self == other:
            return self
        return Mark(
            self.draws | other.draws,
            self.given or other.given,
            self.keyed or other.keyed,
            self.derived or other.derived,
            self.constant and other.constant,
            self.past | other.past,
            self.folded or other.folded,
        )


_CONSTANT = Mark(constant=True)


class Draws(Forward[Mark]):
    """What is drawn in a program.

    Attributes:
        shared: What all batch elements of a vmap share, and the steps, the outermost first, in the last of
            which it meets what each has of its own.
        constant: What is drawn from a constant key outside loops, where it meets the arguments.
        beside: What is drawn so, where it meets arguments together with what is drawn from a key among them.
        copied: What is drawn once for all batch elements of a vmap that takes nothing else, and has a part in what is a
            result of each: the line of the call of what is mapped, and that of the draw.
        keyed: Whether anything is drawn from a key among the arguments, or one is returned.
    """

    most_iterations = _MOST_PASSES

    def __init__(self, program: Block, locations: Mapping[Step, Location], live: Set[Value]) -> None:
        self._locations, self._live = locations, live
        self.shared: dict[Draw, tuple[Step, ...]] = {}
        self.constant: dict[Draw, None] = {}
        self.beside: dict[Draw, None] = {}
        self.copied: dict[Location, Location] = {}
        self.keyed = False
        self._seen: dict[object, list[Mark]] = {}
        self._mapped, self._looped = False, False
        self._around: list[Step] = []
        marks = [Mark(given=not is_keyed(value.aval), keyed=is_keyed(value.aval)) for value in program.inputs]
        results = self._through(program, marks, False, False)
        self.keyed |= any(mark.keyed for mark in results)

    def _through(self, block: Block, marks: Sequence[Mark], mapped: bool, looped: bool) -> list[Mark]:
        """The marks of the outputs of a block."""
        seen = (block, tuple(marks), mapped, looped)
        if seen not in self._seen:
            around = self._mapped, self._looped
            self._seen[seen] = self._followed(block, marks, mapped, looped)
            self._mapped, self._looped = around
        return self._seen[seen]

    def _followed(self, block: Block, marks: Sequence[Mark], mapped: bool, looped: bool) -> list[Mark]:
        known: dict[Value, Mark] = dict(zip(block.inputs, marks, strict=True))

        def read(value: Value) -> Mark:
            return known.get(value, _CONSTANT)

        for step in block.steps:
            names = transformations(step.equation)
            self._mapped = mapped or ("vmap" in names and not _differentiates(step))
            self._looped = looped
            self._around.append(step)
            found = self.through(step, [read(value) for value in step.inputs])
            self._around.pop()
            if "transpose" in names:
                found = [dataclasses.replace(mark, derived=True) for mark in found]
            known.update(zip(step.outputs, found, strict=True))
            if found and found[0].past and self._mapped and not mapped and _copies(step):
                lanes = step.outputs[0].shape[0]
                if _takes_nothing(block, lanes, self._locations[step]):
                    self.copied[self._locations[step]] = min(found[0].past, key=str)
        return [read(value) for value in block.outputs]

    def join(self, facts: Sequence[Mark]) -> Mark:
        return functools.reduce(operator.or_, facts)

    def inside(self, step: Step, place: int, facts: Sequence[Mark]) -> list[Mark]:
        is_loop = step.ports[place].kind in ("condition", "body")
        return self._through(step.blocks[place], facts, self._mapped, self._looped or is_loop)

    def transfer(self, step: Step, facts: Sequence[Mark]) -> list[Mark]:
        if not step.blocks or step.equation.primitive in _ADDING:
            return [self._mark(step, facts, self._mapped, self._looped)] * len(step.outputs)
        every = functools.reduce(operator.or_, (dataclasses.replace(mark, draws=frozenset()) for mark in facts), Mark())
        for block in step.blocks:
            self._through(block, [every] * len(block.inputs), self._mapped, self._looped)
        return [every] * len(step.outputs)

    def _mark(self, step: Step, given: Sequence[Mark], mapped: bool, looped: bool) -> Mark:
        primitive = step.equation.primitive
        every = functools.reduce(operator.or_, given) if given else _CONSTANT
        plain = (
            dataclasses.replace(every, draws=frozenset(), constant=False) if every.draws or every.constant else every
        )
        self.keyed |= every.keyed and primitive in _SPLIT | DRAWS
        if primitive in _CARRYING and not every.draws:
            return every
        if primitive in FOLDED:
            return dataclasses.replace(plain, constant=every.constant, folded=every.constant)
        if primitive in _SPLIT:
            return plain
        if primitive in DRAWS:
            shared = mapped and is_key(step.inputs[0].aval) and not step.inputs[0].shape
            constant = given[0].constant and not looped
            draw = Draw(self._locations[step], size_of(step.outputs[0]), shared, constant, given[0].folded)
            past = plain.past | {draw.location} if shared else plain.past
            return dataclasses.replace(plain, draws=frozenset({draw} if shared or constant else ()), past=past)
        if primitive in primitives("slice"):
            size = size_of(step.outputs[0])
            return dataclasses.replace(
                plain, draws=frozenset(dataclasses.replace(draw, size=min(draw.size, size)) for draw in every.draws)
            )
        if primitive in _MIXING or not every.draws or _shrinks(step):
            return plain
        if primitive in _MEETING:
            self._meet(step, given, step.inputs)
            if every.given and every.keyed and not (every.derived or looped):
                size = size_of(step.outputs[0])
                self.beside |= dict.fromkeys(draw for draw in every.draws if draw.constant and draw.size == size > 1)
        elif primitive in _ADDING:  # What is added to some elements has the size of these.
            self._meet(step, [given[0], given[-1]], [step.inputs[-1]] * 2)
        elif primitive in _JOINING:
            return dataclasses.replace(plain, draws=_joined(step, given))
        return dataclasses.replace(plain, draws=every.draws)

    def _meet(self, step: Step, given: Sequence[Mark], values: Sequence[Value]) -> None:
        for mark in given:
            for draw in mark.draws:
                for other, value in zip(given, values, strict=True):
                    if draw in other.draws or other.constant:
                        continue
                    of_itself = other.derived and draw.location in other.past  # Parameters that start alike.
                    if draw.shared and size_of(value) > draw.size and not of_itself:
                        self.shared.setdefault(draw, tuple(self._around))
                    is_noise = not draw.folded or self._is_mask(step, draw, given)
                    if draw.constant and is_noise and other.given and not other.derived and value.shape:
                        self.constant[draw] = None

    def _is_mask(self, step: Step, draw: Draw, given: Sequence[Mark]) -> bool:
        """Whether a draw masks what a step takes, as dropout does: what a module makes its parameters of does not."""
        is_choice = step.equation.primitive in primitives("select_n") and draw in given[0].draws
        return is_choice and not self._live.isdisjoint(step.outputs)


def _copies(step: Step) -> bool:
    """Say whether a step copies a result of a vmap that is the same for all batch elements."""
    if step.equation.primitive not in primitives("broadcast_in_dim") or not step.outputs[0].uses:
        return False
    return tracebacks.copies_result(frame.code.co_qualname for frame in frames(step.equation))


def _takes_nothing(block: Block, lanes: int, location: Location) -> bool:
    """Say whether a vmap maps over something only for its number, such as `jnp.arange(n)`."""
    made = itertools.chain(block.inputs, *(step.outputs for step in block.steps))
    return "axis_size" in location.code or any(value.shape[:1] == (lanes,) and not value.uses for value in made)


def _joined(step: Step, given: Sequence[Mark]) -> frozenset[Draw]:
    """What batch elements share, as large as what it is a part of then."""
    found = set()
    for mark, value in zip(given, step.inputs, strict=True):
        for draw in mark.draws:
            lanes = max(size_of(value) // max(draw.size, 1), 1)
            if draw.shared:
                found.add(dataclasses.replace(draw, size=size_of(step.outputs[0]) // lanes, constant=False))
    return frozenset(found)


def _differentiates(step: Step) -> bool:
    """Say whether the vmap around a step that may draw is that of a Jacobian, with directions as batch elements."""
    traceback = step.equation.source_info.traceback
    if traceback is None or not (step.blocks or step.equation.primitive in DRAWS):
        return False
    return tracebacks.is_jacobian(frame.function_name for frame in traceback.frames)


def size_of(value: Value) -> int:
    """How many elements a value has; of one whose shape has a size that is a symbol, 0."""
    return math.prod(value.shape) if all(isinstance(size, int) for size in value.shape) else 0


def _shrinks(step: Step) -> bool:
    """Say whether a step has less elements in its result than in what it takes, as a sum has."""
    return max(map(size_of, step.outputs), default=0) < max(map(size_of, step.inputs), default=0)
