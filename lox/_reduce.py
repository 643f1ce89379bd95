"""Reductions of events that need no more memory than one event: a monoid for each, to fold logs as they happen."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Container, Mapping
from itertools import takewhile
from typing import Any, Literal, get_args

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._arguments import names
from lox._collect import fill
from lox._columns import one_event, promoted
from lox._events import NOWHERE, Site
from lox._exceptions import LogValueError
from lox._leading_axes import where
from lox._timeline import Timeline

Reduction = Literal["mean", "sum", "min", "max", "first", "last", "count"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)

Reductions = tuple[tuple[str | None, str], ...]
"""The reduction of every key, under None, or those of some names and patterns."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accumulator:
    """The events of one key so far.

    Attributes:
        value: The sum for "mean" and "sum"; the smallest, largest, first or last value; None for "count". Its shape is
            `(*batch, *shape)`. Before the first event it is the identity of the reduction, where that has one.
        lost: What rounding has taken from the last sum of floats, or None for nothing.
        maybe: How many events happened of those that might not have, the shape of the batch; None for none.
        begun: Whether there was an event, the shape of the batch. Only "first" in a loop has it, which asks.
        steps: The counters of the last event, or of the first for "first".
        reduction: Which one.
        dtype: The dtype of the events.
        batch_shape: The sizes of the batch axes.
        certain: How many other events happened. In a loop: since the iteration began.
        site: The first log call.
        outer_batch_ndim: Inside a `shard_map`, how many of the first batch axes are of a `vmap` around it.
        is_masked: Whether there are events that might not have happened. In a loop `maybe` is an array in any case.
    """

    value: Any
    lost: Any
    maybe: Any
    begun: Any
    steps: dict[str, Any]
    reduction: str = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    batch_shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    certain: Any = dataclasses.field(metadata={"static": True})
    site: Site = dataclasses.field(metadata={"static": True})
    is_masked: bool = dataclasses.field(metadata={"static": True})
    outer_batch_ndim: int = dataclasses.field(default=0, metadata={"static": True})

    def happened(self) -> Any:
        """Tell whether there was an event: a bool of the shape of the batch, or True or False where that is known."""
        if self.certain > 0 or (self.maybe is None and self.begun is None):
            return bool(self.certain > 0)
        return self.begun if self.begun is not None else self.maybe > 0

    def mask(self) -> Any:
        """The mask of the batch elements that had an event, or None if all surely did."""
        happened = self.happened()
        if happened is True:
            return None
        return jnp.zeros(self.batch_shape, bool) if happened is False else happened


def check_reduction(name: Any) -> str:
    """Raises LogValueError when there is no reduction of this name."""
    if name not in REDUCTIONS:
        known = ", ".join(map(repr, REDUCTIONS))
        raise LogValueError(f"There is no reduction {name!r}: reduce= takes one of {known}, or a mapping to them.")
    return name


def read_reductions(reduce: Any) -> Reductions:
    """Read the keyword `reduce` of a transformation."""
    if reduce is None:
        return ()
    if not isinstance(reduce, Mapping):
        return ((None, check_reduction(reduce)),)
    return tuple((key, check_reduction(reduce[key])) for key in names(reduce, "keys of reduce=", ""))


def check_window(function: str, reduce: Any, interval: Any, window: Any) -> None:
    """Raise LogValueError where these keywords of a function do not go together."""
    if reduce is not None and interval is not None:
        raise LogValueError(f"{function} takes reduce= or interval=, not both.")
    if window is not None and reduce is None:
        raise LogValueError(f"window= of {function} takes reduce=: how the events of a window become one.")


def lift(reduction: str, value: Any, mask: Any, steps: Mapping[str, Any], site: Site, batch_ndim: int) -> Accumulator:
    """One event as an accumulator; it did not happen where `mask` is False.

    Raises:
        LogValueError: There is no such reduction of values of this dtype.
    """
    if jnp.issubdtype(value.dtype, jax.dtypes.extended) and reduction not in ("first", "last", "count"):
        raise LogValueError(f"reduce={reduction!r} takes numbers, got {value.dtype.name}{_at(site, ' ')}.")
    dtype, shape = value.dtype, value.shape[:batch_ndim]
    if reduction in ("mean", "sum"):
        try:
            value = value.astype(_sum_dtype(reduction, dtype))
        except ValueError as error:
            raise LogValueError(
                f"jax.numpy has no {reduction} of {dtype.name}{_at(site)}: convert it to another dtype first."
            ) from error
    if mask is not None and reduction not in ("first", "last", "count"):
        value = where(mask, value, _identity(reduction, jax.typeof(value)))
    maybe, certain = (None, 1) if mask is None else (mask.astype(jnp.int32), 0)
    kept = None if reduction == "count" else value
    return Accumulator(kept, None, maybe, None, dict(steps), reduction, dtype, shape, certain, site, mask is not None)


def _at(site: Site, before: str = ", ") -> str:
    """Where events were logged, for a message; a logdict does not know."""
    return "" if site == NOWHERE else f"{before}logged at {site}"


def count(maybe: Any, certain: int, batch_shape: tuple[int, ...], site: Site) -> Accumulator:
    """The accumulator of "count" that has counted so many events."""
    return Accumulator(None, None, maybe, None, {}, "count", None, batch_shape, certain, site, maybe is not None)


def fold(reduction: str, value: Any, mask: Any, steps: Mapping[str, Any], site: Site, batch_ndim: int) -> Accumulator:
    """Events, stacked along their first axis, as an accumulator."""
    length = value.shape[0]
    if length == 1:
        value, mask, steps = jax.tree.map(lambda array: jax.lax.squeeze(array, (0,)), (value, mask, dict(steps)))
        return lift(reduction, value, mask, steps, site, batch_ndim)
    if mask is None and length:
        place = 0 if reduction == "first" else -1
        one = lift(reduction, value[place], None, {name: step[place] for name, step in steps.items()}, site, batch_ndim)
        total = one.value
        if reduction in ("mean", "sum"):
            total = jnp.sum(value, axis=0, dtype=total.dtype)
        elif reduction in ("min", "max"):
            total = getattr(jnp, reduction)(value, axis=0)
        return dataclasses.replace(one, value=total, certain=length)

    def of_event(event: Any) -> Accumulator:
        value, mask, steps = event
        return lift(reduction, value, mask, steps, site, batch_ndim)

    stacked = (value, mask, dict(steps))
    of_one = jax.tree.map(lambda array: jex.core.mapped_aval(array.shape[0], 0, jax.typeof(array)), stacked)
    none = empty(_compat.abstract(of_event, of_one))
    if mask is None:
        return none
    return jax.lax.scan(lambda sofar, event: (merge(sofar, of_event(event)), None), none, stacked)[0]


def empty(like: Accumulator) -> Accumulator:
    """An accumulator of no events, from the abstract values of one."""
    zeros = jax.tree.map(_compat.zeros_like_aval, like)
    value, lost = zeros.value, zeros.lost
    if value is not None:
        value = _identity(like.reduction, like.value)
        lost = _compat.zeros_like_aval(like.value) if _compensated(like) else None
    return dataclasses.replace(zeros, value=value, lost=lost, certain=0)


def empty_in_loop(like: Accumulator) -> Accumulator:
    """An accumulator of no events, which has the same arrays after any events, from the abstract values of one."""
    none = empty(like)
    maybe = jnp.zeros(none.batch_shape, jnp.int32) if none.maybe is None else none.maybe
    begun = maybe > 0 if none.reduction == "first" else None
    return dataclasses.replace(none, maybe=maybe, begun=begun, is_masked=False)


def in_equal_batches(
    first: Accumulator, second: Accumulator, of_any_call: bool = False
) -> tuple[Accumulator, Accumulator]:
    """Accumulators of one log call, of which that of the smaller batch has no events of the elements that it lacks.

    So it is in `lax.map` with a `batch_size` that does not divide the length. Others stay as they are.
    """
    if not (of_any_call or first.site == second.site) or len(first.batch_shape) != len(second.batch_shape):
        return first, second
    largest = tuple(map(max, first.batch_shape, second.batch_shape))
    return _in_batch(first, largest), _in_batch(second, largest)


def _in_batch(accumulator: Accumulator, batch_shape: tuple[int, ...]) -> Accumulator:
    if accumulator.batch_shape == batch_shape:
        return accumulator
    uncertain = with_certain(accumulator, 0)
    if uncertain.lost is None and _compensated(uncertain):
        uncertain = dataclasses.replace(uncertain, lost=jnp.zeros_like(uncertain.value))

    def widened(aval: Any) -> Any:
        return aval.update(shape=(*batch_shape, *aval.shape[len(batch_shape) :]))

    like = jax.tree.map(lambda array: widened(jax.typeof(array)), uncertain)
    none = empty(dataclasses.replace(like, batch_shape=batch_shape))

    def put(whole: Any, part: Any) -> Any:
        return jax.lax.dynamic_update_slice(whole, part, [0] * part.ndim)

    return jax.tree.map(put, none, dataclasses.replace(uncertain, batch_shape=batch_shape))


def in_common_batches(first: Accumulator, second: Accumulator) -> tuple[Accumulator, Accumulator]:
    """Counts with the first batch axes that both have, and the counters. Other axes are added up, and have none."""
    shared = takewhile(lambda sizes: sizes[0] == sizes[1], zip(first.batch_shape, second.batch_shape, strict=False))
    batch_shape = tuple(size for size, _ in shared)
    steps = first.steps.keys() & second.steps.keys() if first.batch_shape == second.batch_shape else ()
    return _in_common_batch(first, batch_shape, steps), _in_common_batch(second, batch_shape, steps)


def _in_common_batch(accumulator: Accumulator, batch_shape: tuple[int, ...], steps: Container[str]) -> Accumulator:
    """A count with these batch axes and counters only."""
    ndim, sizes = len(batch_shape), accumulator.batch_shape[len(batch_shape) :]
    maybe = accumulator.maybe
    if maybe is not None and sizes:
        maybe = jnp.sum(maybe, axis=tuple(range(ndim, maybe.ndim)), dtype=maybe.dtype)
    return dataclasses.replace(
        accumulator,
        maybe=maybe,
        certain=accumulator.certain * math.prod(sizes),
        steps={name: step for name, step in accumulator.steps.items() if name in steps},
        batch_shape=batch_shape,
        outer_batch_ndim=min(accumulator.outer_batch_ndim, ndim),
    )


def merge(first: Accumulator, second: Accumulator) -> Accumulator:
    """The events of `first`, then those of `second`."""
    value, lost = first.value, None
    if _compensated(first):
        value, lost = _sum(first.value, second.value, _plus(first.lost, second.lost))
    elif first.reduction in ("mean", "sum"):
        value = first.value + second.value
    elif first.reduction in ("min", "max"):
        value = (jnp.minimum if first.reduction == "min" else jnp.maximum)(first.value, second.value)
    elif first.reduction == "first":
        value = _choose(first.happened(), first.value, second.value)
    elif first.reduction == "last":
        value = _choose(second.happened(), second.value, first.value)
    first, second = with_steps_as(first, second), with_steps_as(second, first)
    steps = {}
    for name, step in first.steps.items():
        if first.reduction == "first":
            steps[name] = _choose(first.happened(), step, second.steps[name])
        else:
            steps[name] = _choose(second.happened(), second.steps[name], step)
    maybe, certain = _plus(first.maybe, second.maybe), first.certain + second.certain
    begun = first.begun
    if begun is not None:
        begun = jnp.ones_like(begun) if second.happened() is True else begun | second.happened()
    is_masked = first.is_masked or second.is_masked
    return dataclasses.replace(
        first, value=value, lost=lost, maybe=maybe, begun=begun, steps=steps, certain=certain, is_masked=is_masked
    )


def with_steps_as(accumulator: Accumulator, other: Accumulator) -> Accumulator:
    """The accumulator, with counters in dtypes that have the values of those of the other as well."""
    steps = {}
    for name, step in accumulator.steps.items():
        theirs = other.steps.get(name, step)
        steps[name] = step.astype(promoted(step.dtype, theirs.dtype)) if step.dtype != theirs.dtype else step
    return dataclasses.replace(accumulator, steps=steps)


def entered(accumulator: Accumulator) -> Accumulator:
    """An accumulator in a loop as that of a loop inside, which counts its own events."""
    return dataclasses.replace(accumulator, certain=0, is_masked=False)


def repeated(accumulator: Accumulator, trips: Any) -> Accumulator:
    """Count the events that each iteration surely has once for each iteration.

    Args:
        accumulator: The accumulator after the last iteration.
        trips: How many iterations there were; not an array if that is known.
    """
    if not isinstance(trips, jax.Array) or accumulator.certain == 0:
        return dataclasses.replace(accumulator, certain=accumulator.certain and accumulator.certain * trips)
    return with_certain(dataclasses.replace(accumulator, certain=accumulator.certain * trips), 0)


def continued(before: Accumulator, after: Accumulator) -> Accumulator:
    """The accumulator after a loop in a loop that went on with the one before it."""
    is_masked = before.is_masked or after.is_masked
    return dataclasses.replace(after, certain=before.certain + after.certain, is_masked=is_masked)


def out_of_loop(accumulator: Accumulator) -> Accumulator:
    """The accumulator after a loop that is in no other loop."""
    return dataclasses.replace(accumulator, begun=None, maybe=accumulator.maybe if accumulator.is_masked else None)


def with_certain(accumulator: Accumulator, certain: int) -> Accumulator:
    """The same events, so many of which surely happened, and the others as if they might not have."""
    more = accumulator.certain - certain
    if isinstance(more, int) and more == 0 and accumulator.maybe is not None:
        return accumulator
    number = jnp.full(accumulator.batch_shape, more, jnp.int32)
    return dataclasses.replace(accumulator, maybe=_plus(accumulator.maybe, number), certain=certain, is_masked=True)


def result(accumulator: Accumulator) -> Any:
    """The reduced value; of no events, 0 for "sum" and "count", else NaN, 0 or False."""
    reduction, mask = accumulator.reduction, accumulator.mask()
    value = _plus(accumulator.value, accumulator.lost)
    if reduction == "count":
        if isinstance(accumulator.certain, int) and accumulator.certain > jnp.iinfo(jnp.int32).max:
            raise LogValueError(
                f"reduce='count' counts {accumulator.certain:,} events{_at(accumulator.site)}, which is more "
                "than an int32 holds. Leave it out of reduce=: the number is known before the program runs."
            )
        return _plus(accumulator.maybe, jnp.full(accumulator.batch_shape, accumulator.certain, jnp.int32))
    if reduction == "sum":
        return value.astype(_result_dtype("sum", accumulator.dtype))
    if reduction == "mean":
        number = jnp.asarray(accumulator.certain, value.dtype)
        if accumulator.maybe is not None:
            number = accumulator.maybe.astype(value.dtype) + number
            number = jax.lax.expand_dims(number, range(number.ndim, value.ndim))
        number = number if mask is None else jnp.maximum(number, 1)
        value = (value / number).astype(_result_dtype("mean", accumulator.dtype))
    return value if mask is None else where(mask, value, fill(jax.typeof(value)))


def as_timeline(accumulators: Mapping[str, Accumulator]) -> Timeline:
    """The reduced events of the keys of one timeline, as its only event."""
    first = next(iter(accumulators.values()))
    values = {key: one_event(result(each)) for key, each in accumulators.items()}
    happened = first.mask()
    mask = None if happened is None else one_event(happened)
    return Timeline(values, {name: one_event(step) for name, step in first.steps.items()}, mask)


def _identity(reduction: str, aval: Any) -> Any:
    """The value of no events: what leaves others as they are in a sum, a minimum and a maximum; else zeros."""
    zeros = _compat.zeros_like_aval(aval)
    if reduction not in ("min", "max"):
        return zeros
    if aval.dtype == bool:
        return ~zeros if reduction == "min" else zeros
    integer = jnp.issubdtype(aval.dtype, jnp.integer)
    limits: Any = jnp.iinfo(aval.dtype) if integer else jnp.finfo(aval.dtype)
    most, least = limits.max, limits.min
    if not integer and np.isinf(np.asarray(np.inf, limits.dtype)):  # Some floats of 8 bits have no infinity.
        most, least = np.inf, -np.inf
    return zeros + jnp.asarray(most if reduction == "min" else least, aval.dtype)


def _compensated(accumulator: Accumulator) -> bool:
    return accumulator.reduction in ("mean", "sum") and jnp.issubdtype(accumulator.value.dtype, jnp.inexact)


@functools.partial(jax.jit, inline=True)  # Which an eager call dispatches at once.
def _sum(first: Any, second: Any, lost: Any) -> tuple[Any, Any]:
    """The sum of two floats and of what rounding has taken from them, and what rounding takes from it.

    That is added with the next event, so that it stays small: a sum of n events is off by at most about
    (3 * 2**-24 + n * 2**-46) times the sum of their sizes, for float32. (Kahan, Communications of the ACM 8, 1965.) The
    derivative is that of the sum.
    """
    if lost is not None:
        second = second + jax.lax.stop_gradient(lost)
    total = first + second
    added = _finite(total) - _finite(first)  # Differences of infinities would be NaN.
    return total, jax.lax.stop_gradient(second - added)


def _finite(array: Any) -> Any:
    """The array, with the largest number in place of infinity."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return jax.lax.complex(_finite(jnp.real(array)), _finite(jnp.imag(array)))
    most = jnp.asarray(jnp.finfo(array.dtype).max, array.dtype)
    return jax.lax.clamp(-most, array, most)


def _plus(first: Any, second: Any) -> Any:
    """The sum, where None stands for nothing."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _choose(mask: Any, first: Any, second: Any) -> Any:
    if isinstance(mask, bool):
        return first if mask else second
    return where(mask, first, second)


def _result_dtype(reduction: str, dtype: Any) -> Any:
    return _numpy_dtype(reduction, dtype, jax.config.jax_enable_x64)  # type: ignore[attr-defined]


@functools.cache
def _numpy_dtype(reduction: str, dtype: Any, x64: bool) -> Any:
    """The dtype that `jax.numpy` gives a reduction of arrays of this dtype."""
    return jax.eval_shape(getattr(jnp, reduction), jax.ShapeDtypeStruct((1,), dtype)).dtype


def _sum_dtype(reduction: str, dtype: Any) -> Any:
    out = _result_dtype(reduction, dtype)
    return jnp.float32 if out in (jnp.bfloat16, jnp.float16) else out
