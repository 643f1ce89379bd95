"""The operations in which what is not finite began, found backwards from the values that it has reached.

Which element of an operand an element of the result depends on is known of operations that act on each element, that
move, sum up or contract elements; of others, batch elements at least are told apart. So what another element, or what
`select` drops, has of NaN is left behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lox._nonfinite._axes import Axes
from lox._nonfinite._evaluate import bind
from lox._nonfinite._flow import COLLECTIVES, MOVES, Pairs, pairs, sources, spread
from lox._nonfinite._loops import Loop, sinks
from lox._nonfinite._record import Carried, Operation, Position, Record, Sink, is_float

Mask = np.ndarray[Any, Any]
Test = Callable[[Any], Any]


@dataclasses.dataclass(eq=False)
class Origin:
    """Elements that are not finite, and were made of finite ones.

    Attributes:
        operation: The operation; None for a value that was not finite from the beginning.
        number: The number of the result.
        mask: The elements of the result.
        value: The result.
        nan: Whether it is NaN, rather than infinite.
    """

    operation: Operation | None
    number: int
    mask: Mask
    value: Any
    nan: bool

    @property
    def position(self) -> Position:
        return () if self.operation is None else self.operation.position


def origins(record: Record, begin: Sequence[Sink], nan: bool) -> Iterator[tuple[Origin, list[Operation]]]:
    """Find where elements that are not finite began.

    Args:
        record: The operations.
        begin: Values, and their elements that are not finite.
        nan: Whether these are NaN, rather than infinite.

    Yields:
        The origins, the latest first, each with the operations that have carried it on, in their order.
    """
    test = np.isnan if nan else np.isinf
    walk = _Walk(record, test)
    for value, mask in begin:
        walk.reach(value, mask, None)
    yield from walk.given()
    while walk.waiting:
        operation = max(walk.waiting, key=lambda each: each.position)
        masks = walk.waiting.pop(operation)
        if operation.loop is not None:
            walk.enter(operation, operation.loop, masks)
        else:
            for number, born in walk.through(operation, masks):
                yield Origin(operation, number, born, operation.results[number], nan), walk.chain(operation)
        yield from walk.given()


class _Walk:
    """A walk backwards.

    Attributes:
        waiting: Operations to look at, with the elements of each result that others were made of.
    """

    def __init__(self, record: Record, test: Test) -> None:
        self._record = record
        self._test = test
        self._given: list[tuple[Sink, Operation | None]] = []
        self._next: dict[Operation, Operation | None] = {}
        self.waiting: dict[Operation, dict[int, Mask]] = {}

    def reach(self, value: Any, mask: Mask, after: Operation | None) -> None:
        """Go on at what has made a value."""
        made = self._record.made(value)
        if made is None:
            self._given.append(((value, mask), after))
            return
        by, number = made
        if isinstance(by, Carried):
            self._carried(by, after)
            return
        masks = self.waiting.setdefault(by, {})
        masks[number] = masks[number] | mask if number in masks else mask
        self._next.setdefault(by, after)

    def given(self) -> Iterator[tuple[Origin, list[Operation]]]:
        """The values that nothing has made, since this was last asked, as origins."""
        found, self._given = self._given, []
        for (value, mask), after in {id(value): each for each in reversed(found) for value in [each[0][0]]}.values():
            chain = [] if after is None else [after, *self.chain(after)]
            yield Origin(None, 0, mask, value, self._test is np.isnan), chain

    def chain(self, operation: Operation) -> list[Operation]:
        """The operations that have carried on what an operation has made."""
        found: list[Operation] = []
        after = self._next.get(operation)
        while after is not None:
            found.append(after)
            after = self._next.get(after)
        return found

    def _carried(self, place: Carried, after: Operation | None) -> None:
        """Go on from what an iteration gets: an infinite value is from the first iteration that has made one."""
        loop: Loop = place.loop
        if self._test is np.isnan:
            return  # The first carry with a NaN is looked at for itself.
        if 0 <= loop.first_infinite < place.trip:
            outs = loop.iteration(self._record, loop.first_infinite)[: loop.program.num_carry]
            for value, mask in sinks(outs, self._test):
                self.reach(value, mask, after)

    def enter(self, operation: Operation, loop: Loop, masks: dict[int, Mask]) -> None:
        """Go on in the iteration of a loop that has made some elements of its results."""
        for number, mask in sorted(masks.items()):
            if number < loop.program.num_carry:
                found = self._carry_of(operation, loop, number, mask)
            else:
                found = self._stacked(loop, number, mask)
            for value, elements in found:
                self.reach(value, elements, operation)

    def _carry_of(self, operation: Operation, loop: Loop, number: int, mask: Mask) -> list[Sink]:
        """The first values that a loop has carried which some elements of its last carry come from."""
        count, trip = loop.program.num_carry, loop.first_nan if self._test is np.isnan else loop.first_infinite
        if loop.program.for_all:
            watched = self._same_elements(operation, number, mask, operation.results[:count])
            found = loop.reach(self._record, watched, self._test is np.isnan)
            same = self._same_elements(operation, number, mask, [value for value, _ in found])
            found = [(value, elements & own) for (value, elements), own in zip(found, same, strict=True)]
        else:
            found = sinks(loop.iteration(self._record, trip)[:count], self._test) if trip >= 0 else []
        if not any(elements.any() for _, elements in found) and not loop.program.began_finite[number]:
            found = sinks([loop.init[number]], self._test)
        return found

    def _stacked(self, loop: Loop, number: int, mask: Mask) -> list[Sink]:
        """The values of the first iteration that has stacked one of some elements."""
        trip = loop.trip_of(mask)
        if 0 <= loop.first_nan < trip:
            return []  # What has failed before is looked at for itself.
        found = sinks([loop.iteration(self._record, trip)[number]], self._test)
        return [(value, elements & loop.slice_of(mask, trip)) for value, elements in found]

    def _same_elements(self, operation: Operation, number: int, mask: Mask, values: Sequence[Any]) -> list[Mask]:
        """The batch elements of some elements of a result, in each of some values."""
        shards = operation.frame.shards
        ahead = [(axis, axis) for axis in range(shards.ndim)] if shards is not None else []
        axes = self._record.axes(operation.results[number]) or ()
        found = []
        for value in values:
            own = self._record.axes(value) or ()
            shared = list(zip(own, axes, strict=True)) if len(own) == len(axes) else []
            known = [(one, other) for one, other in shared if one is not None and other is not None]
            found.append(spread(mask, [*ahead, *known], np.shape(value), backwards=True))
        return found

    def through(self, operation: Operation, masks: dict[int, Mask]) -> Iterator[tuple[int, Mask]]:
        """Go on from an operation to its operands. Yields, by the number of a result, the elements that it has made."""
        moved = operation.moves or (_mover(operation) if operation.primitive in MOVES else None)
        if moved is not None:
            yield from self._moved(operation, moved, masks)
            return
        for number, mask in masks.items():
            made_of = np.zeros(mask.shape, bool)
            for place, operand in enumerate(operation.operands):
                if not is_float(operand):
                    continue
                bad = self._test(np.asarray(operand))
                if not bad.any():
                    continue
                shared = self.shared(operation, number, place)
                made_of |= spread(bad, shared, mask.shape, backwards=False)
                wanted = bad & spread(mask, shared, bad.shape, backwards=True)
                if wanted.any():
                    self._label(operand, operation.results[number], shared)
                    self.reach(operand, wanted, operation)
            if (born := mask & ~made_of).any():
                yield number, born

    def _moved(self, operation: Operation, run: Any, masks: dict[int, Mask]) -> Iterator[tuple[int, Mask]]:
        operands = operation.operands
        is_moved = [is_float(operand) for operand in operands]
        numbers = sources(run, operands, is_moved, len(operation.results))
        for number, mask in masks.items():
            wanted = np.unique(numbers[number][mask])
            first = 1
            for operand, moved in zip(operands, is_moved, strict=True):
                if not moved:
                    continue
                size = np.size(operand)
                own = wanted[(wanted >= first) & (wanted < first + size)] - first
                first += size
                if own.size:
                    found = np.zeros(size, bool)
                    found[own] = True
                    found = found.reshape(np.shape(operand))
                    self.reach(operand, found, operation)
            if (born := mask & (numbers[number] == 0)).any():
                yield number, born

    def shared(self, operation: Operation, number: int, place: int) -> Pairs:
        """The axes along which elements of a result depend on the same elements of an operand."""
        shards = operation.frame.shards
        ahead = shards.ndim if shards is not None else 0
        crosses = operation.primitive in COLLECTIVES
        shapes = [np.shape(operand)[ahead:] for operand in operation.operands]
        shape = np.shape(operation.results[number])[ahead:]
        known = pairs(operation.primitive, operation.params, shapes, place, shape)
        if known is None:
            known = []
            own, out = (
                self._record.axes(each) or () for each in (operation.operands[place], operation.results[number])
            )
            if len(own) == len(out):
                known = [
                    (one - ahead, other - ahead)
                    for one, other in zip(own, out, strict=True)
                    if one is not None and other is not None
                ]
        across = [] if crosses else [(axis, axis) for axis in range(ahead)]
        return [*across, *((one + ahead, other + ahead) for one, other in known)]

    def _label(self, operand: Any, result: Any, shared: Pairs) -> None:
        """Tell values of backward passes, of which only some have passed `vmap`, the batch axes of each other."""
        axes = self._record.axes(result)
        if axes is not None and (own := _mapped(axes, {other: one for one, other in shared})) is not None:
            self._record.tell(operand, own)


def _mapped(axes: Axes, places: dict[int, int]) -> Axes | None:
    """The axes at other places, if each has one."""
    if not all(axis is None or axis in places for axis in axes):
        return None
    return tuple(None if axis is None else places[axis] for axis in axes)


def _mover(operation: Operation) -> Callable[..., Sequence[Any]]:
    params = operation.params
    if params.get("fill_value") is not None:  # What is filled in is no element.
        params = params | {"fill_value": 0}
    return lambda *args: operation.frame.run(lambda *args: bind(operation.primitive, args, params), *args)


def batch_axes(record: Record, operation: Operation, number: int) -> tuple[Axes, list[Axes | None]]:
    """The batch axes of a result of an operation, and those of each operand, as far as one tells those of the other."""
    walk = _Walk(record, np.isnan)
    shared = [walk.shared(operation, number, place) for place in range(len(operation.operands))]
    own = [record.axes(operand) for operand in operation.operands]
    axes = record.axes(operation.results[number])
    for known, each in zip(own, shared, strict=True):
        axes = axes or (_mapped(known, dict(each)) if known else None)
    found = axes or ()
    return found, [
        known or _mapped(found, {other: one for one, other in each}) for known, each in zip(own, shared, strict=True)
    ]
