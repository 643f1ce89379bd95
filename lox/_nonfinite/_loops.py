"""Loops: the first iteration whose carry is not finite, and that iteration alone.

A loop runs compiled, as a `while_loop` that stops when its carry has a NaN. It keeps the carry before the last
iteration, which is then the input of the failing one, and memory does not grow with the number of iterations. The
failing iteration is interpreted.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._exceptions import LogValueError
from lox._leading_axes import where
from lox._nonfinite._evaluate import bind, bind_on_shards, on_shards
from lox._nonfinite._flags import Condition, across, any_nan, flagged, nothing, until_flagged
from lox._nonfinite._record import (
    Carried,
    Frame,
    Operation,
    Position,
    Reached,
    Record,
    Resume,
    Sink,
    add_rule,
    has_loops,
    is_float,
    is_nonfinite,
    without_logs,
)
from lox._nonfinite._shards import Shards
from lox._rules._scan import operands
from lox._rules._while import split_args

_listed = jex.core.primitives


@dataclasses.dataclass(frozen=True)
class Program:
    """The static part of a loop.

    Attributes:
        body: The jaxpr of an iteration.
        condition: The jaxpr of the condition of a `while_loop`.
        num_carry: The number of values that it carries.
        length: The number of iterations of a `scan`.
        reverse: Whether a `scan` begins at the end.
        began_finite: Which of the carried values are finite at first.
        everything: Whether an iteration stops the loop if anything in it is NaN, rather than its carry.
        shards: The shards on which it runs, if any.
        for_all: Whether it is in a branch that runs for all batch elements: a NaN in its carry may be of an element
            that does not take this branch.
    """

    body: Any
    condition: Any
    num_carry: int
    length: int | None
    reverse: bool
    began_finite: tuple[bool, ...]
    everything: bool
    shards: Shards | None
    for_all: bool

    @property
    def in_lockstep(self) -> bool:
        """True if batch elements, or shards, that have ended stand still until the last one has."""
        if self.condition is None:
            return False
        (predicate,) = _compat.out_avals(self.condition)
        return self.shards is not None or bool(predicate.shape)


@dataclasses.dataclass
class Loop:
    """A loop on concrete values.

    Attributes:
        program: Its static part.
        consts: The values that all iterations share.
        condition_consts: Those of its condition.
        init: The carry at first.
        xs: What a `scan` goes through.
        frame: The surroundings.
        position: The time at which it began.
        first_nan: The first iteration whose carry has a NaN, or -1.
        first_infinite: The first iteration whose carry is infinite and began finite, or -1.
        is_whole: Whether the search ran to its end.
    """

    program: Program
    consts: Sequence[Any]
    condition_consts: Sequence[Any]
    init: Sequence[Any]
    xs: Sequence[Any]
    frame: Frame
    position: Position

    def __post_init__(self) -> None:
        self._interpreted: dict[int, list[Any]] = {}
        self.first_infinite = -1
        self.first_nan = -1
        self.is_whole = False
        self._before: Sequence[Any] = ()
        self._finite: Sequence[Any] = ()

    def search(self, limit: int, watched: Sequence[Any] | bool = True) -> Any:
        """Run the first iterations, until one has a carry with a NaN in elements that are watched. See `_search`."""
        shards = self.program.shards
        if isinstance(watched, bool):
            watched = [np.full(() if shards is None else shards.shape, watched)] * len(self.init)
        groups = (watched, self.condition_consts, self.consts, self.init, self.xs)
        values, sizes = [value for group in groups for value in group], tuple(map(len, groups))
        count = jnp.int32(limit) if shards is None else jnp.full(shards.shape, limit, jnp.int32)
        run = _search(self.program, sizes)
        outs = self.frame.run(run, count, *values)
        trips, first_infinite, nan, in_condition, *carries = outs
        numbers = [int(np.max(np.asarray(each))) for each in (trips, first_infinite, nan, in_condition)]
        half = len(carries) // 2
        return numbers, carries[:half], carries[half:]

    def begins_bad(self, record: Record) -> bool:
        """Tell whether its carry has a NaN from the beginning."""
        found = [] if self.program.for_all else sinks(self.init, np.isnan)
        record.sinks += found
        return bool(found)

    def run(self, record: Record) -> Sequence[Any]:
        """Run it to its end, or to the first iteration whose carry has a NaN; interpret that. Returns the carry.

        Raises:
            Reached: The search ends here.
        """
        number = -1
        if not self.frame.iterations:
            number, record.loops = record.loops, record.loops + 1
        if record.resume is not None and record.resume.loop == number:
            self._go_on(record, record.resume)
        numbers, before, after = self.search(self._limit, not self.program.for_all)
        trips, self.first_infinite, nan, in_condition = numbers
        if nan:
            self.first_nan, self._before = trips - 1, before
        if record.stops and number >= 0:
            bad = [self.first_nan, *([self.first_infinite] if record.stops == "nonfinite" else [])]
            if trip := [each for each in bad if each >= 0]:
                raise Reached(self._place(record, number, min(trip)))
        self.is_whole = not nan
        if nan:
            self._sink(record, trips - 1)
        elif in_condition:
            record.sinks += self._compared(record, trips, after)
        if self.first_infinite >= 0:
            self._sink_infinite(record, self.first_infinite)
        return after  # type: ignore[no-any-return]

    def _place(self, record: Record, number: int, trip: int) -> Resume:
        """An iteration, with what it takes to interpret it and the first one that has made something infinite."""
        carry = self._carry(record, trip)
        infinite = self.first_infinite if self.first_infinite < trip else -1
        finite_carry = self._carry(record, infinite) if infinite >= 0 else ()
        backward = self.frame.phase == "backward"
        return Resume(number, trip, carry, infinite, finite_carry, self._shown(trip), backward)

    def _go_on(self, record: Record, place: Resume) -> None:
        """Interpret one iteration, and end the search."""
        known = [carry for carry in (place.carry, place.finite_carry) if carry]
        types = [[str(jax.typeof(value)).lstrip("~") for value in carry] for carry in (self.init, *known)]
        if any(each != types[0] for each in types):
            raise LogValueError(
                f"The loop at {self.frame.line} carries {', '.join(types[0])}, and that of the bundle "
                f"{', '.join(types[1])}: it is another program. Give the function that was guarded."
            )
        self.first_nan, self._before = place.trip, place.carry
        self.first_infinite, self._finite = place.infinite, place.finite_carry
        self._sink(record, place.trip)
        self._sink_infinite(record, place.trip)
        raise Reached(place)

    @property
    def _limit(self) -> int:
        return self.program.length if self.program.length is not None else int(np.iinfo(np.int32).max)

    def reach(self, record: Record, watched: Sequence[Any], nan: bool) -> list[Sink]:
        """The values of the first iteration that makes some elements of the carry NaN, or infinite."""
        (trips, infinite, found, _), _, _ = self.search(self._limit, watched)
        trip = (trips - 1 if found else -2) if nan else infinite
        if trip < -nan:
            return []
        after = self.iteration(record, trip)[: self.program.num_carry] if trip >= 0 else self.init
        bad = sinks(after, np.isnan if nan else np.isinf)
        masks = {id(value): mask for value, mask in zip(after, watched, strict=True)}
        reached = [(value, mask & masks[id(value)]) for value, mask in bad]
        reached = [(value, mask) for value, mask in reached if mask.any()]
        if reached or not nan or self.program.condition is None:
            return reached
        return self._compared(record, trips, after)

    def _compared(self, record: Record, trips: int, carry: Sequence[Any]) -> list[Sink]:
        """Interpret the condition after some iterations; returns what it compares that is NaN."""
        known = len(record.sinks)
        record.interpret(self._frame(trips, condition=True), self.program.condition, [*self.condition_consts, *carry])
        found = record.sinks[known:]
        del record.sinks[known:]
        return found

    def _sink(self, record: Record, trip: int) -> None:
        before = len(record.sinks)
        found = sinks(self.iteration(record, trip)[: self.program.num_carry], np.isnan)
        record.sinks += found
        if not found and len(record.sinks) == before and not self.program.everything:
            record.lost.append(f"iteration {self._shown(trip)} of the loop at {self.frame.line}")

    def _sink_infinite(self, record: Record, trip: int) -> None:
        outs = self.iteration(record, trip)
        finite = [value for value, began in zip(outs, self.program.began_finite, strict=False) if began]
        record.infinite += sinks(finite, np.isinf)

    def iteration(self, record: Record, trip: int) -> list[Any]:
        """Interpret one iteration; returns what it returns."""
        if trip not in self._interpreted:
            frame = self._frame(trip)
            take = lambda *xs: [self.slice_of(x, trip) for x in xs]  # noqa: E731
            slices = take(*self.xs)
            if self.xs:
                record.keep(Operation(None, {}, self.xs, slices, self.frame.line, frame, frame.next(), take))
            carry = self._carry(record, trip)
            outs = record.interpret(frame, self.program.body, [*self.consts, *carry, *slices])
            if self.program.in_lockstep:
                outs = self._where_going(record, frame, outs, carry)
            self._interpreted[trip] = outs
        return self._interpreted[trip]

    def _carry(self, record: Record, trip: int) -> Sequence[Any]:
        if trip == 0:
            return self.init
        if trip == self.first_nan:
            carry = self._before
        elif trip == self.first_infinite and self._finite:
            carry = self._finite
        else:
            carry = self.search(trip, not self.program.for_all)[2]
        for number, value in enumerate(carry):
            if is_nonfinite(value):
                record.note(value, Carried(self, number, trip), 0)
        return carry

    def _where_going(self, record: Record, frame: Frame, outs: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
        """The carry after an iteration; batch elements and shards that have ended keep theirs."""
        condition = without_logs(self.program.condition)
        run = _compat.as_fun(condition) if self.program.shards is None else on_shards(condition)
        (going,) = frame.run(run, *self.condition_consts, *carry)
        stays = lambda going, *both: [where(going, *both)]  # noqa: E731
        found = []
        for pair in zip(outs, carry, strict=True):
            result = stays(going, *pair)
            position = frame.next()
            record.keep(Operation(None, {}, (going, *pair), result, self.frame.line, frame, position, stays))
            found += result
        return found

    def _frame(self, trip: int, condition: bool = False) -> Frame:
        around = self.frame
        return dataclasses.replace(
            around,
            iterations=(*around.iterations, self._shown(trip)),
            position=(*self.position, trip, int(not condition)),
            in_condition=condition or around.in_condition,
            numbers=itertools.count(),
        )

    def _shown(self, trip: int) -> int:
        """The number of an iteration for people: in a backward pass that of the iteration that it differentiates."""
        backward = self.frame.phase != "forward" and self.program.length is not None
        return (self.program.length or 0) - 1 - trip if backward else trip

    def trip_of(self, mask: np.ndarray[Any, Any]) -> int:
        """The first iteration that has stacked one of some elements, by the elements of the whole."""
        others = tuple(axis for axis in range(mask.ndim) if axis != self._axis)
        places = np.flatnonzero(mask.any(axis=others))
        return int(mask.shape[self._axis] - 1 - places[-1] if self.program.reverse else places[0])

    def slice_of(self, stacked: Any, trip: int) -> Any:
        """The part that an iteration has stacked, or gets."""
        at = trip if not self.program.reverse else (self.program.length or 0) - 1 - trip
        take = np.take if isinstance(stacked, np.ndarray) else jnp.take
        return take(stacked, at, axis=self._axis)

    @property
    def _axis(self) -> int:
        """The axis that a `scan` goes along."""
        return 0 if self.program.shards is None else self.program.shards.ndim


def sinks(values: Sequence[Any], test: Callable[[Any], Any]) -> list[Sink]:
    """The values that have elements which a test finds, each with these."""
    found = [(value, test(np.asarray(value))) for value in values if is_float(value)]
    return [(value, mask) for value, mask in found if mask.any()]


@functools.lru_cache(maxsize=256)
def _search(program: Program, sizes: tuple[int, ...]) -> Callable[..., Any]:
    """Compile the first iterations of a loop, until its carry has a NaN.

    Returns:
        A function of the number of iterations and of all values. It returns how many iterations have run; the first
        after which a carried value that began finite is infinite, or -1; whether the carry has a NaN, and whether its
        condition compares one; and the carries before and after the last iteration.
    """
    ends = np.cumsum(sizes)
    shards, for_all = program.shards, program.for_all
    body = flagged(program.body, any_nan if program.everything else nothing, shards, for_all)

    def run(limit: Any, *values: Any) -> list[Any]:
        watched, of_condition, consts, init, xs = (
            values[end - size : end] for end, size in zip(ends, sizes, strict=True)
        )
        condition = None if program.condition is None else Condition(program.condition, init, shards, for_all)

        def tested(carry: Sequence[Any], flag: Any) -> tuple[Any, ...]:
            going, compares = jnp.bool_(True), jnp.bool_(False)
            if condition is not None:
                going, compares, carry = condition(of_condition, carry)
            nan = _any_watched(jnp.isnan, zip(carry, watched, strict=True))
            return going, across(shards, compares), across(shards, nan | flag), list(carry)

        def iterate(state: Any) -> Any:
            trips, first, _, (going, _, _, carry) = state
            at = program.length - 1 - trips if program.reverse and program.length is not None else trips
            slices = [jax.lax.dynamic_index_in_dim(x, at, keepdims=False) for x in xs]
            outs, flag = body(*consts, *carry, *slices)
            new = outs[: program.num_carry]
            if program.in_lockstep:
                new = [where(going, after, before) for after, before in zip(new, carry, strict=True)]
            pairs = zip(new, watched, program.began_finite, strict=True)
            infinite = _any_watched(jnp.isinf, [(value, elements) for value, elements, began in pairs if began])
            first = jnp.where((first < 0) & across(shards, infinite), trips, first)
            return trips + 1, first, carry, tested(new, flag)

        def continues(state: Any) -> Any:
            trips, _, _, (going, compares, nan, _) = state
            return (trips < limit) & across(shards, going.any()) & ~compares & ~nan

        start = (jnp.int32(0), jnp.int32(-1), list(init), tested(init, jnp.bool_(False)))
        trips, first, before, (_, compares, nan, after) = jax.lax.while_loop(continues, iterate, start)
        return [trips, first, nan.astype(jnp.int32), compares.astype(jnp.int32), *before, *after]

    return jax.jit(run) if program.shards is None else run


def _any_watched(test: Callable[[Any], Any], pairs: Iterable[tuple[Any, Any]]) -> Any:
    flags = [(test(value) & watched).any() for value, watched in pairs if is_float(value)]
    return functools.reduce(jnp.logical_or, flags, jnp.bool_(False))


def _scan(
    record: Record, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any
) -> list[Any]:
    consts, init, xs = operands(args, params)
    loop = _loop(record, frame.called(info), params["jaxpr"], None, consts, (), init, xs, params)
    before = loop.begins_bad(record)
    after = None if before or not params["length"] else loop.run(record)
    is_whole = after is not None and loop.is_whole
    if after is not None and len(_compat.out_avals(params["jaxpr"])) == len(init):
        outs = list(after)
    elif not is_whole and has_loops(params["jaxpr"]):
        outs = frame.run(lambda *args: until_flagged(params, args, frame.shards, frame.for_all), *args)
    else:
        whole = params | {"jaxpr": without_logs(params["jaxpr"])}
        one = bind if frame.shards is None else bind_on_shards
        outs = frame.run(lambda *args: one(primitive, args, whole), *args)
    return _kept(record, loop, primitive, params, args, outs)


def _while(
    record: Record, frame: Frame, primitive: Any, args: Sequence[Any], params: dict[str, Any], info: Any
) -> list[Any]:
    of_condition, consts, init = split_args(args, params)
    condition = params["cond_jaxpr"]
    loop = _loop(record, frame.called(info), params["body_jaxpr"], condition, consts, of_condition, init, (), params)
    before = loop.begins_bad(record)
    outs = list(init) if before else list(loop.run(record))
    return _kept(record, loop, primitive, params, args, outs)


def _loop(
    record: Record,
    frame: Frame,
    body: Any,
    condition: Any,
    consts: Sequence[Any],
    of_condition: Sequence[Any],
    init: Sequence[Any],
    xs: Sequence[Any],
    params: dict[str, Any],
) -> Loop:
    began_finite = tuple(not is_nonfinite(value) for value in init)
    program = Program(
        body,
        condition,
        len(init),
        params.get("length"),
        params.get("reverse", False),
        began_finite,
        record.everything,
        frame.shards,
        frame.for_all and not record.everything,
    )
    return Loop(program, consts, of_condition, init, xs, frame, frame.next())


def _kept(
    record: Record,
    loop: Loop,
    primitive: Any,
    params: dict[str, Any],
    args: Sequence[Any],
    outs: list[Any],
) -> list[Any]:
    record.keep(Operation(primitive, params, args, outs, loop.frame.line, loop.frame, loop.position, None, loop))
    return outs


add_rule(_listed.scan_p, _scan)
add_rule(_listed.while_p, _while)
