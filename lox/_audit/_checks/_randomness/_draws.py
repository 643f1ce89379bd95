"""Follows what is drawn at random through a program, to the data that it meets."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping, Sequence, Set

from lox._audit._checks._randomness._key_arrays import DRAWS, FOLDED, SEEDED, is_key
from lox._audit._checks._randomness._key_uses import LOOPS, paired
from lox._audit._location import Location, transformations
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
    "scatter",
    "scatter_add",
    "dynamic_update_slice",
    "sort",
    "argmax",
    "argmin",
    "concatenate",
)
"""Operations after which what was drawn is no noise on single elements of data."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """A place where something is drawn.

    Attributes:
        location: The line.
        size: How many numbers.
        shared: Whether all lanes of a vmap share them.
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
        given: Whether it depends on the arguments.
        derived: Whether it is a derivative, or depends on one.
        constant: Whether it is a constant, or a key made of one.
        folded: Whether a constant was folded into such a key.
    """

    draws: frozenset[Draw] = frozenset()
    given: bool = False
    derived: bool = False
    constant: bool = False
    folded: bool = False

    def __or__(self, other: Mark) -> Mark:
        if self == other:
            return self
        return Mark(
            self.draws | other.draws,
            self.given or other.given,
            self.derived or other.derived,
            self.constant and other.constant,
            self.folded or other.folded,
        )


class Draws:
    """What is drawn in a program.

    Attributes:
        shared: What all lanes of a vmap share, where it meets what each lane has of its own.
        constant: What is drawn from a constant key outside of loops, where it meets the arguments.
    """

    def __init__(self, program: Block, locations: Mapping[Step, Location], live: Set[Value]) -> None:
        self._locations, self._live = locations, live
        self.shared: dict[Draw, None] = {}
        self.constant: dict[Draw, None] = {}
        self._seen: dict[object, list[Mark]] = {}
        self._through(program, [Mark(given=True) for _ in program.inputs], False, False)

    def _through(self, block: Block, marks: Sequence[Mark], mapped: bool, looped: bool) -> list[Mark]:
        """The marks of the outputs of a block."""
        seen = (block, tuple(marks), mapped, looped)
        if seen in self._seen:
            return self._seen[seen]
        known: dict[Value, Mark] = dict(zip(block.inputs, marks, strict=True))

        def read(value: Value) -> Mark:
            return known.get(value, Mark(constant=True))

        for step in block.steps:
            names = transformations(step.equation)
            given = [read(value) for value in step.inputs]
            inside = mapped or ("vmap" in names and not _differentiates(step))
            if step.blocks:
                found = self._run(step, given, inside, looped)
            else:
                found = [self._mark(step, given, inside, looped)] * len(step.outputs)
            if "transpose" in names:
                found = [dataclasses.replace(mark, derived=True) for mark in found]
            known.update(zip(step.outputs, found, strict=True))
        self._seen[seen] = [read(value) for value in block.outputs]
        return self._seen[seen]

    def _mark(self, step: Step, given: Sequence[Mark], mapped: bool, looped: bool) -> Mark:
        primitive = step.equation.primitive
        every = functools.reduce(operator.or_, given) if given else Mark(constant=True)
        plain = every if not every.draws and not every.constant else Mark(given=every.given, derived=every.derived)
        if primitive in _CARRYING and not every.draws:
            return every
        if primitive in FOLDED:
            return dataclasses.replace(plain, constant=every.constant, folded=every.constant)
        if primitive in _SPLIT:
            return plain
        if primitive in DRAWS:
            shared = mapped and is_key(step.inputs[0].aval) and not step.inputs[0].shape
            constant = given[0].constant and not looped
            draw = Draw(self._locations[step], _size(step.outputs[0]), shared, constant, given[0].folded)
            return dataclasses.replace(plain, draws=frozenset({draw} if shared or constant else ()))
        if primitive in _MIXING or not every.draws or _shrinks(step):
            return plain
        if primitive in _MEETING:
            self._meet(step, given)
        return dataclasses.replace(plain, draws=every.draws)

    def _meet(self, step: Step, given: Sequence[Mark]) -> None:
        for mark in given:
            for draw in mark.draws:
                for other, value in zip(given, step.inputs, strict=True):
                    if draw in other.draws or other.constant:
                        continue
                    if draw.shared and _size(value) > draw.size:
                        self.shared[draw] = None
                    is_noise = not draw.folded or self._is_mask(step, draw, given)
                    if draw.constant and is_noise and other.given and not other.derived and value.shape:
                        self.constant[draw] = None

    def _is_mask(self, step: Step, draw: Draw, given: Sequence[Mark]) -> bool:
        """Whether a draw masks what a step takes, as dropout does: what a module makes its parameters of does not."""
        is_choice = step.equation.primitive in primitives("select_n") and draw in given[0].draws
        return is_choice and not self._live.isdisjoint(step.outputs)

    def _run(self, step: Step, given: Sequence[Mark], mapped: bool, looped: bool) -> list[Mark]:
        """The marks of the outputs of a step that runs others."""
        every = Mark()
        for mark in given:
            every = every | Mark(given=mark.given, derived=mark.derived)
        marks: dict[Value, Mark] = dict(zip(step.inputs, given, strict=True))
        loops = step.equation.primitive in LOOPS
        results: list[Mark] | None = None
        for block in step.blocks:
            pairs = list(paired(step, block))
            if len(pairs) != len(block.inputs):
                self._through(block, [every] * len(block.inputs), mapped, looped or loops)
                continue
            inner = [marks[value] for value, _ in pairs]
            found = self._through(block, inner, mapped, looped or loops)
            if loops:  # What one iteration makes goes into the next one.
                places = [place for place, (_, role) in enumerate(pairs) if role == "carry"]
                for place, mark in zip(places, found, strict=False):
                    inner[place] = inner[place] | mark
                found = self._through(block, inner, mapped, True)
            if len(found) == len(step.outputs):
                joined = zip(results or found, found, strict=True)
                results = [one | other for one, other in joined]
        return results or [every] * len(step.outputs)


def _differentiates(step: Step) -> bool:
    """Whether the vmap around a step that may draw is that of a Jacobian matrix, whose lanes are directions."""
    traceback = step.equation.source_info.traceback
    if traceback is None or not (step.blocks or step.equation.primitive in DRAWS):
        return False
    return tracebacks.is_jacobian(frame.function_name for frame in traceback.frames)


def _size(value: Value) -> int:
    """How many elements a value has; of one whose shape has a size that is a symbol, 0."""
    return math.prod(value.shape) if all(isinstance(size, int) for size in value.shape) else 0


def _shrinks(step: Step) -> bool:
    """Whether a step has less elements in its result than in what it takes, as a sum has."""
    return max(map(_size, step.outputs), default=0) < max(map(_size, step.inputs), default=0)
