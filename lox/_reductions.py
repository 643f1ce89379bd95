"""The reductions: each makes states of events, merges two states, and makes a result of a state.

A state is a tree of arrays that begin with the batch axes. A reduction says nothing of where events come from, in which
order loops, branches and shards merge them, or how many there were: `_reduce.py` does that for all of them.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._leading_axes import where
from lox._sharding import sharded_as

State = TypeVar("State")


class Reducer(abc.ABC, Generic[State]):
    """A reduction of events. It is static in the structure of an `Accumulator`, so equal ones do the same."""

    takes_keys = False
    """True if it takes PRNG keys too. The others take numbers only."""

    takes_steps = False
    """True if it gets the counters with the values. Then its result has counters and a mask for each element."""

    keeps_first = False
    """True if the result has the counters of the first event. The others have those of the last event."""

    is_number_of_events = False
    """True if it only counts events, and ignores their values."""

    is_zero_of_none = False
    """True if the result of no events is 0. The others give NaN, 0 or False, by their dtype."""

    pool: bool | int = False
    """True if all elements of an event are one sample, with the axes of `where=`; a number takes so many of them."""

    saves = "pool=True takes all elements of an event as one sample"
    """Advice to the user about a state that is too large, for the error."""

    is_numbered = False
    """True if it needs the number of each event, counted from the first one of the function."""

    is_ordered = False
    """True if the result depends on the order of the events."""

    is_distribution = False
    """True if the last axis of the result has the bins of a histogram, or quantiles."""

    adds_up = False
    """True if the sum of the results of parts of the events is the result of all."""

    is_large = False
    """True if its state is larger than an event. Branches do not return such a state, and windows finish few."""

    def keeps(self, distribution: Reducer[Any]) -> bool:
        """Say whether the result is such a distribution again, where the events are results of `distribution`."""
        return False

    def __str__(self) -> str:
        """The reduction as a user writes it, for messages."""
        return next((repr(name) for name, each in REDUCTIONS.items() if each == self), repr(self))

    @abc.abstractmethod
    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> State:
        """Return the state of one event.

        Args:
            value: Shape `(*batch_shape, *shape)`.
            mask: True for batch elements in which the event happened; or None. Others have the state of no events.
            batch_shape: The sizes of the batch axes.

        Raises:
            ValueError: There is no such reduction of this dtype.
        """

    @abc.abstractmethod
    def none(self, like: State) -> State:
        """Return the state of no events, in all arrays that a state can have, from the abstract values of one."""

    @abc.abstractmethod
    def merge(self, first: State, second: State, first_happened: Any, second_happened: Any) -> State:
        """Return the state of the events of `first` and then those of `second`.

        Args:
            first: A state.
            second: Another.
            first_happened: Whether it has an event, a bool of the shape of the batch, or True or False where known.
            second_happened: The same of the other.
        """

    @abc.abstractmethod
    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> State:
        """Return the state of several events, which are stacked along a first axis and all happened."""

    def stacked_after(self, before: State, values: Any, batch_shape: tuple[int, ...]) -> State:
        """Return the state of such events, knowing which events were before."""
        del before
        return self.stacked(values, batch_shape)

    @abc.abstractmethod
    def finish(self, state: State, number: Callable[[Any], Any], dtype: Any) -> Any:
        """Return the result; where there was no event, it does not matter which.

        Args:
            state: The state.
            number: Returns how many events there were, in a dtype: an array of the shape of the batch, or a scalar.
            dtype: The dtype of the events.
        """

    def full(self, state: State) -> State:
        """Return the state with all arrays that it can have."""
        return state

    def none_in_branch(self, like: State) -> State:
        """Return the state of no events at the start of a branch, from the abstract values of one of an event."""
        return self.none(like)

    def after(self, none: State, before: State) -> State:
        """Return the state of no events, or one that `lift` returned, knowing which events were before."""
        del before
        return none

    def alike(self, state: State, states: Sequence[State]) -> State:
        """Return the state of a branch with the arrays that those of all branches, which are abstract, can have."""
        del states
        return state

    def bytes_of(self, shape: tuple[int, ...], dtype: Any, batch_shape: tuple[int, ...]) -> int:
        """Return the size of a state that is larger than an event of this shape."""
        del shape, dtype, batch_shape
        return 0


@dataclasses.dataclass(frozen=True)
class Count(Reducer[None]):
    """The number of events, which is counted for every reduction."""

    takes_keys = True
    is_number_of_events = True
    is_zero_of_none = True

    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> None:
        return None

    def none(self, like: None) -> None:
        return None

    def merge(self, first: None, second: None, first_happened: Any, second_happened: Any) -> None:
        return None

    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> None:
        return None

    def finish(self, state: None, number: Callable[[Any], Any], dtype: Any) -> Any:
        return number(jnp.int32)


@dataclasses.dataclass(frozen=True)
class End(Reducer[Any]):
    """The first event or the last one."""

    keeps_first: bool = False
    takes_keys = True
    is_ordered = True

    def keeps(self, distribution: Reducer[Any]) -> bool:
        return True

    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> Any:
        return value

    def none(self, like: Any) -> Any:
        return _compat.zeros_like_aval(like)

    def merge(self, first: Any, second: Any, first_happened: Any, second_happened: Any) -> Any:
        if self.keeps_first:
            return choose(first_happened, first, second)
        return choose(second_happened, second, first)

    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> Any:
        return values[0 if self.keeps_first else -1]

    def finish(self, state: Any, number: Callable[[Any], Any], dtype: Any) -> Any:
        return state


def choose(mask: Any, first: Any, second: Any) -> Any:
    """The first where the mask is True, which may be a bool of Python; else the second."""
    if isinstance(mask, bool):
        return first if mask else second
    return where(mask, first, second)


@dataclasses.dataclass(frozen=True)
class Extreme(Reducer[Any]):
    """The smallest or the largest value."""

    largest: bool

    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> Any:
        return value if mask is None else where(mask, value, self.none(jax.typeof(value)))

    def none(self, like: Any) -> Any:
        zeros = _compat.zeros_like_aval(like)
        if like.dtype == bool:
            return zeros if self.largest else ~zeros
        integer = jnp.issubdtype(like.dtype, jnp.integer)
        limits: Any = jnp.iinfo(like.dtype) if integer else jnp.finfo(like.dtype)
        most, least = limits.max, limits.min
        if not integer and np.isinf(np.asarray(np.inf, limits.dtype)):  # Some floats of 8 bits have no infinity.
            most, least = np.inf, -np.inf
        return zeros + jnp.asarray(least if self.largest else most, like.dtype)

    def merge(self, first: Any, second: Any, first_happened: Any, second_happened: Any) -> Any:
        return (jnp.maximum if self.largest else jnp.minimum)(first, second)

    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> Any:
        return (jnp.max if self.largest else jnp.min)(values, axis=0)

    def finish(self, state: Any, number: Callable[[Any], Any], dtype: Any) -> Any:
        return state


class Sum(NamedTuple):
    """A sum that does not lose what rounding takes from it.

    Attributes:
        total: The sum.
        lost: Of floats, what rounding has taken from it; None for nothing.
    """

    total: Any
    lost: Any = None

    def plus(self, more: Any, lost: Any = None, of: Literal["any", "finite", "positive"] = "any") -> Sum:
        """Add an array, from which rounding has taken `lost`.

        It takes less time where all sums are finite, and where all that is added is positive or 0.
        """
        if not jnp.issubdtype(self.total.dtype, jnp.inexact):
            return Sum(self.total + more)
        return Sum(*_compensated(self.total, more, plus(self.lost, lost), of))

    def value(self) -> Any:
        return plus(self.total, self.lost)

    def full(self) -> Sum:
        """The sum with all arrays that it can have."""
        if self.lost is None and jnp.issubdtype(self.total.dtype, jnp.inexact):
            return Sum(self.total, jnp.zeros_like(self.total))
        return self

    @classmethod
    def none(cls, like: Sum) -> Sum:
        """The sum of nothing."""
        return cls(_compat.zeros_like_aval(like.total)).full()


def plus(first: Any, second: Any) -> Any:
    """The sum, where None stands for nothing."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


@functools.partial(jax.jit, static_argnums=3, inline=True)  # An eager call dispatches it at once.
def _compensated(first: Any, second: Any, lost: Any, of: str) -> tuple[Any, Any]:
    """The sum of two floats and of what rounding has taken from them, and what rounding takes from it.

    That is added with the next event, so that it stays small: a sum of n events is off by at most about
    (3 * 2**-24 + n * 2**-46) times the sum of their sizes, for float32. (Kahan, Communications of the ACM 8, 1965.) The
    derivative is that of the sum.
    """
    if lost is not None:
        second = second + jax.lax.stop_gradient(lost)
    total = first + second
    if of == "positive":  # What the largest number has no room for counts as taken.
        total = jax.lax.min(total, jnp.asarray(jnp.finfo(total.dtype).max, total.dtype))
    # Differences of infinities would be NaN.
    added = _finite(total) - _finite(first) if of == "any" else total - first
    return total, jax.lax.stop_gradient(second - added)


def _finite(array: Any) -> Any:
    """The array, with the largest number in place of infinity."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return jax.lax.complex(_finite(jnp.real(array)), _finite(jnp.imag(array)))
    most = jnp.asarray(jnp.finfo(array.dtype).max, array.dtype)
    return jax.lax.clamp(-most, array, most)


@dataclasses.dataclass(frozen=True)
class Total(Reducer[Sum]):
    """The sum of the values, or their mean."""

    name: str

    @property
    def is_zero_of_none(self) -> bool:  # type: ignore[override]
        return self.name == "sum"

    def keeps(self, distribution: Reducer[Any]) -> bool:
        return self.name == "sum" and distribution.adds_up

    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> Sum:
        value = value.astype(_sum_dtype(self.name, value.dtype))
        return Sum(value if mask is None else where(mask, value, jnp.zeros_like(value)))

    def none(self, like: Sum) -> Sum:
        return Sum.none(like)

    def merge(self, first: Sum, second: Sum, first_happened: Any, second_happened: Any) -> Sum:
        return first.plus(*second)

    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> Sum:
        return Sum(jnp.sum(values, axis=0, dtype=_sum_dtype(self.name, values.dtype)))

    def finish(self, state: Sum, number: Callable[[Any], Any], dtype: Any) -> Any:
        total = state.value()
        if self.name == "mean":
            total = total / _expanded(jnp.maximum(number(total.dtype), 1), total)
        return total.astype(result_dtype(self.name, dtype))

    def full(self, state: Sum) -> Sum:
        return state.full()


class Moments(NamedTuple):
    """The number, mean and spread of some events, from which their variance follows.

    Attributes:
        number: Their number, the shape of the batch.
        mean: Their mean, in which 0 stands for what is not finite, or so large that a distance may not be.
        squares: The sum of their squared distances from it.
        had_large: True where there was such an event; the result is NaN. A sum of NaN would be seen by a check of
            the program, also in a branch that is not taken.
    """

    number: Any
    mean: Sum
    squares: Sum
    had_large: Any


@dataclasses.dataclass(frozen=True)
class Spread(Reducer[Moments]):
    """The variance of the values, or its square root, as of a population.

    States merge as in Chan, Golub and LeVeque, The American Statistician 37, 1983; one event at a time, that is the
    method of Welford, Technometrics 4, 1962. A difference of large sums is never taken.
    """

    name: str

    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> Moments:
        value = value.astype(_sum_dtype("mean", value.dtype))
        number = jnp.ones(batch_shape, jnp.int32) if mask is None else mask.astype(jnp.int32)
        number = sharded_as(value, number)
        value = value if mask is None else where(mask, value, jnp.zeros_like(value))
        value, is_large = _without_large(value)
        return Moments(number, Sum(value), Sum(jnp.zeros_like(jnp.real(value))), is_large)

    def none(self, like: Moments) -> Moments:
        number, had_large = _compat.zeros_like_aval(like.number), _compat.zeros_like_aval(like.had_large)
        return Moments(number, Sum.none(like.mean), Sum.none(like.squares), had_large)

    def merge(self, first: Moments, second: Moments, first_happened: Any, second_happened: Any) -> Moments:
        number = first.number + second.number
        # Without what rounding took from the first one, so that the next event need not wait for it.
        distance = second.mean.value() - first.mean.total
        dtype = first.squares.total.dtype
        weight = second.number.astype(dtype) / jnp.maximum(number, 1).astype(dtype)
        # Times a number that may be 0 before it is squared, which may make it infinite.
        scaled = distance * _expanded(first.number.astype(dtype) * weight, distance)
        return Moments(
            number,
            first.mean.plus(distance * _expanded(weight, distance), of="finite"),
            first.squares.plus(second.squares.value() + _real_product(scaled, distance), of="positive"),
            first.had_large | second.had_large,
        )

    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> Moments:
        values = values.astype(_sum_dtype("mean", values.dtype))
        values, is_large = _without_large(values)
        mean = jnp.mean(values, axis=0)
        distance = values - mean
        squares = jnp.sum(_real_product(distance, distance), axis=0)
        number = sharded_as(mean, jnp.full(batch_shape, values.shape[0], jnp.int32))
        return Moments(number, Sum(mean), Sum(squares), jnp.any(is_large, axis=0))

    def finish(self, state: Moments, number: Callable[[Any], Any], dtype: Any) -> Any:
        squares = state.squares.value()
        found = squares / _expanded(jnp.maximum(state.number, 1).astype(squares.dtype), squares)
        has_spread = found > 0
        if self.name == "std":  # The square root of 0 has no derivative.
            found = where(has_spread, jnp.sqrt(where(has_spread, found, jnp.ones_like(found))), found)
        found = jnp.where(state.had_large, np.asarray(np.nan, found.dtype), found)
        return found.astype(result_dtype(self.name, dtype))

    def full(self, state: Moments) -> Moments:
        return state._replace(mean=state.mean.full(), squares=state.squares.full())


def _without_large(value: Any) -> tuple[Any, Any]:
    """Return 0 for what is not finite or so large that its distance from another value may not be, and where it is."""
    size = jnp.abs(value)
    is_small = size <= jnp.finfo(size.dtype).max / 4
    return where(is_small, value, jnp.zeros_like(value)), ~is_small


class Average(NamedTuple):
    """A weighted mean of some events, as it goes on from the events before them.

    Attributes:
        own: The sum of the events, each with its weight: (1 - decay) times decay to the power of the number of events
            after it.
        left: The weight of what was before them, the shape of the batch: decay to the power of their number.
        first: The first event, which is what was before, where there was nothing.
    """

    own: Any
    left: Any
    first: Any


@dataclasses.dataclass(frozen=True, repr=False)
class Ewma(Reducer[Average]):
    """The exponentially weighted moving average after the last event."""

    decay: float

    is_ordered = True

    def __repr__(self) -> str:
        return f"lox.reductions.ewma({self.decay})"

    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> Average:
        value = value.astype(_sum_dtype("mean", value.dtype))
        left = sharded_as(value, jnp.full(batch_shape, self.decay, jnp.finfo(value.dtype).dtype))
        if mask is not None:
            value, left = where(mask, value, jnp.zeros_like(value)), jnp.where(mask, left, jnp.ones_like(left))
        return Average(value * (1 - self.decay), left, value)

    def none(self, like: Average) -> Average:
        own, left, first = map(_compat.zeros_like_aval, like)
        return Average(own, left + 1, first)

    def merge(self, first: Average, second: Average, first_happened: Any, second_happened: Any) -> Average:
        own = second.own + _weighted(first.own, second.left)
        return Average(own, first.left * second.left, where(first.left < 1, first.first, second.first))

    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> Average:
        def add(sofar: Average, value: Any) -> tuple[Average, None]:
            return self.merge(sofar, self.lift(value, None, batch_shape), True, True), None

        return jax.lax.scan(add, self.lift(values[0], None, batch_shape), values[1:])[0]

    def finish(self, state: Average, number: Callable[[Any], Any], dtype: Any) -> Any:
        return (state.own + _weighted(state.first, state.left)).astype(result_dtype("mean", dtype))


def _weighted(value: Any, weight: Any) -> Any:
    """The value times a weight of the shape of the batch, where infinity times 0 is infinity."""
    weight = sharded_as(value, jnp.broadcast_to(_expanded(weight, value), value.shape))
    return value * where((weight == 0) & ~jnp.isfinite(value), jnp.ones_like(value), weight)


def _real_product(first: Any, second: Any) -> Any:
    """The real part of a number times the conjugate of another."""
    is_complex = jnp.issubdtype(first.dtype, jnp.complexfloating)
    return jnp.real(first * jnp.conj(second)) if is_complex else first * second


def _expanded(number: Any, value: Any) -> Any:
    """Numbers of the shape of the batch, with the dtype and the further axes of a value."""
    number = number.astype(value.dtype)
    return jax.lax.expand_dims(number, range(number.ndim, value.ndim)) if number.ndim else number


def result_dtype(name: str, dtype: Any) -> Any:
    return _numpy_dtype(name, dtype, jax.config.jax_enable_x64)  # type: ignore[attr-defined]


@functools.cache
def _numpy_dtype(name: str, dtype: Any, x64: bool) -> Any:
    """The dtype that `jax.numpy` gives a reduction of arrays of this dtype."""
    return jax.eval_shape(getattr(jnp, name), jax.ShapeDtypeStruct((1,), dtype)).dtype


def _sum_dtype(name: str, dtype: Any) -> Any:
    out = result_dtype(name, dtype)
    return jnp.float32 if jnp.issubdtype(out, jnp.floating) and jnp.finfo(out).bits < 32 else out


REDUCTIONS: dict[str, Reducer[Any]] = {
    "mean": Total("mean"),
    "sum": Total("sum"),
    "std": Spread("std"),
    "var": Spread("var"),
    "min": Extreme(largest=False),
    "max": Extreme(largest=True),
    "first": End(keeps_first=True),
    "last": End(),
    "count": Count(),
}
"""The reductions that have a name."""
