"""Where a value comes from, through calls and through what passes it on as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

from lox._audit._label import label_p
from lox._audit._location import Location
from lox._audit._program import Step, Value, is_call
from lox._audit._rules import primitives

PASSING = primitives(
    "broadcast_in_dim", "reshape", "squeeze", "transpose", "copy", "sharding_constraint", "reshard", "name"
) | {label_p}
"""What only lays out the elements of its first operand."""

FLOWS = PASSING | primitives("convert_element_type", "stop_gradient")
"""What passes on the numbers of its first operand: in other axes, in another type, or without a derivative."""

LAID_OUT = primitives("broadcast_in_dim", "reshape", "squeeze")
"""What puts the elements of its operand into other axes, in their order."""


_MOST = 100
"""Through how many operations is looked."""


class Origins:
    """What the values of a program are outside or inside the calls that they go through."""

    def __init__(self, steps: Iterable[tuple[Step, Location]]) -> None:
        self._outside: dict[Value, Value] = {}
        self._scanned: dict[Value, Value] = {}
        self._shared: dict[Value, Value] = {}
        self.inputs: set[Value] = set()
        for step, _ in steps:
            self.inputs.update(*(block.inputs for block in step.blocks))
            if is_call(step):
                for inner, outer in zip(step.blocks[0].inputs, step.inputs, strict=True):
                    self._outside.setdefault(inner, outer)
            elif step.equation.primitive in primitives("scan"):
                for outer, inner, role in step.regions[0].inputs:
                    if role != "carry":
                        self._scanned.setdefault(inner, outer)
                    if role == "in":
                        self._shared.setdefault(inner, outer)

    def of(self, value: Value, through: Set[Any] = PASSING, *, loops: bool = False) -> Value:
        """The value that one is, before the calls and the operations of these primitives that it went through.

        Args:
            value: The value.
            through: The primitives.
            loops: Whether it is followed out of and into scans too, to the array that it is a slice of, or a slice.
        """
        return self.met(value, through, loops=loops)[0]

    def scanned(self, value: Value) -> Value | None:
        """The array outside a scan whose slices the body gets as this value, or None."""
        return None if value in self._shared else self._scanned.get(value)

    def shared(self, value: Value) -> Value | None:
        """The value outside a scan that all its iterations get as this one, or None."""
        return self._shared.get(value)

    def index(self, value: Value) -> Value:
        """An index, before those below zero are counted from the end."""
        value = self.of(value, FLOWS)
        chosen = value.maker is not None and value.maker.equation.primitive in primitives("select_n")
        return self.of(value.maker.inputs[1], FLOWS) if value.maker is not None and chosen else value

    def leads_to(self, value: Value, wanted: Set[Any], through: Set[Any], passing: Set[Any]) -> bool:
        """Say whether a value comes out of one of some primitives, by way of others.

        Args:
            value: The value.
            wanted: The primitives.
            through: Those that may be on the way. It goes on from their first operand that is no number.
            passing: Those that only pass on their operand, as for `of`.
        """
        for _ in range(_MOST):
            maker = self.of(value, passing).maker
            if maker is None or maker.equation.primitive in wanted:
                return maker is not None
            if maker.equation.primitive not in through:
                return False
            value = next((each for each in maker.inputs if each.number is None), maker.inputs[0])
        return False

    def met(
        self, value: Value, through: Set[Any] = PASSING, entered: Sequence[Step] = (), *, loops: bool = False
    ) -> tuple[Value, tuple[Step, ...]]:
        """The value that one is, and the calls that it is met in, from those that the value was met in."""
        calls = list(entered)
        while True:
            maker = value.maker
            if maker is None:
                if calls and value in (inputs := calls[-1].blocks[0].inputs):
                    value = calls.pop().inputs[inputs.index(value)]
                elif value in self._outside:
                    value = self._outside[value]
                elif loops and value in self._scanned:
                    value = self._scanned[value]
                else:
                    return value, tuple(calls)
            elif is_call(maker):
                calls.append(maker)
                value = maker.blocks[0].outputs[maker.outputs.index(value)]
            elif maker.equation.primitive in through and maker.inputs:
                value = maker.inputs[0]
            elif loops and maker.equation.primitive in primitives("scan"):
                (slice_,) = (each for each in maker.regions[0].outputs if each.outside is value)
                if slice_.role == "carry":
                    return value, tuple(calls)
                value = slice_.inside
            else:
                return value, tuple(calls)


def axes_before(step: Step) -> Sequence[int | None] | None:
    """Which axis of its operand each axis is of what a step lays out; None for all if that is not known."""
    (operand, *_), (result,) = step.inputs, step.outputs
    kept = step.equation.params.get("broadcast_dimensions")
    if kept is not None:
        return [kept.index(axis) if axis in kept else None for axis in range(len(result.shape))]
    long = [axis for axis, size in enumerate(operand.shape) if size != 1]
    if [operand.shape[axis] for axis in long] != [size for size in result.shape if size != 1]:
        return None
    left = iter(long)
    return [None if size == 1 else next(left) for size in result.shape]
