"""The events of one key folded as they happen, in the memory of one state of their reduction.

This module has what all reductions share: how many events happened, for which batch elements, and their counters.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Container, Mapping
from itertools import takewhile
from typing import Any, Literal

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._arguments import names
from lox._collect import fill
from lox._columns import Columns, one_event, promoted
from lox._events import NOWHERE, Site
from lox._exceptions import LogValueError
from lox._largest import Kept, Numbered
from lox._leading_axes import where
from lox._own_reduction import Own, Reduction
from lox._reductions import REDUCTIONS, Count, Reducer, choose, plus
from lox._sharding import sharded_as, spec_of, without_sharding

Name = Literal["mean", "sum", "std", "var", "min", "max", "first", "last", "count"]
"""The name of a reduction."""

AnyReduction = Name | Reducer[Any] | Reduction
"""A value of `reduce=` for one key: a name, or an object of `lox.reductions`."""

MOST_BYTES = 64 << 20
"""The most that the state of a key may take, where it is larger than the event."""

Reductions = tuple[tuple[str | None, Reducer[Any]], ...]
"""The reduction of every key, under None, or those of some names and patterns."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accumulator:
    """The events of one key so far.

    Attributes:
        state: The state of the reduction: arrays that begin with the batch axes.
        maybe: Number of events that happened but might not have, the shape of the batch; None for none.
        begun: Whether there was an event, the shape of the batch. Only what keeps the first one in a loop has it.
        steps: The counters of the last event, or of the first one.
        reduction: The reduction.
        dtype: The dtype of the events.
        shape: Their shape, without the batch axes.
        batch_shape: The sizes of the batch axes.
        certain: Number of other events. In a loop: since the iteration began.
        site: The first log call.
        outer_batch_ndim: Inside a `shard_map`, the number of leading batch axes of a `vmap` around it.
        is_masked: Whether there are events that might not have happened. In a loop `maybe` is an array in any case.
    """

    state: Any
    maybe: Any
    begun: Any
    steps: dict[str, Any]
    reduction: Reducer[Any] = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
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


def read_reduction(reduction: Any) -> Reducer[Any]:
    """Read what `reduce=` has for a key.

    Raises:
        LogValueError: It is no reduction.
    """
    if isinstance(reduction, Reducer):
        return reduction
    if isinstance(reduction, Reduction):
        return Own(reduction)
    if isinstance(reduction, str) and reduction in REDUCTIONS:
        return REDUCTIONS[reduction]
    known = ", ".join(map(repr, REDUCTIONS))
    raise LogValueError(
        f"There is no reduction {reduction!r}: reduce= takes one of {known}, an object of lox.reductions, or a mapping "
        "to them."
    )


def read_reductions(reduce: Any) -> Reductions:
    """Read the keyword `reduce` of a transformation."""
    if reduce is None:
        return ()
    if not isinstance(reduce, Mapping):
        return ((None, read_reduction(reduce)),)
    return tuple((key, read_reduction(reduce[key])) for key in names(reduce, "keys of reduce=", ""))


def check_window(function: str, reduce: Any, interval: Any, window: Any) -> None:
    """Raise LogValueError where these keywords of a function do not go together."""
    if reduce is not None and interval is not None:
        raise LogValueError(f"{function} takes reduce= or interval=, not both.")
    if window is not None and reduce is None:
        raise LogValueError(f"window= of {function} takes reduce=: how the events of a window become one.")


def lift(
    reduction: Reducer[Any],
    value: Any,
    mask: Any,
    steps: Mapping[str, Any],
    site: Site,
    batch_ndim: int,
    where_ndim: int = 0,
) -> Accumulator:
    """One event as an accumulator; it did not happen where `mask` is False.

    The last `where_ndim` batch axes are of `where=`, and are part of the sample of a reduction that pools.

    Raises:
        LogValueError: There is no such reduction of values of this dtype.
    """
    batch_ndim = pooled_ndim(reduction, batch_ndim, where_ndim)
    dtype, batch_shape, shape = value.dtype, value.shape[:batch_ndim], value.shape[batch_ndim:]
    if jnp.issubdtype(dtype, jax.dtypes.extended) and not reduction.takes_keys:
        raise LogValueError(f"reduce={reduction} takes numbers, got {dtype.name}{_at(site, ' ')}.")
    try:
        state = reduction.lift(_with_steps(reduction, value, steps), mask, batch_shape)
    except ValueError as error:
        raise LogValueError(
            f"There is no {reduction} of {dtype.name}{_at(site)}: convert it to another dtype first."
        ) from error
    size = reduction.bytes_of(shape, dtype, batch_shape)
    if size > MOST_BYTES:
        raise LogValueError(
            f"The state of reduce={reduction} takes {size / 2**20:,.0f} MiB for events of shape {shape}"
            f"{f' in a batch of {batch_shape}' if batch_shape else ''}{_at(site)}; {MOST_BYTES >> 20} MiB is the most. "
            f"{reduction.saves}."
        )
    if mask is not None and mask.ndim > batch_ndim:
        mask, steps = of_last(mask, steps, batch_ndim)
    maybe, certain = (None, 1) if mask is None else (mask.astype(jnp.int32), 0)
    if mask is not None:  # Which event is the last one varies over shards as the mask does.
        axes = sorted(_compat.varying_axes(mask))
        steps = {name: _compat.vary_in_branch(step, axes) for name, step in steps.items()}
    is_masked = mask is not None
    return Accumulator(state, maybe, None, dict(steps), reduction, dtype, shape, batch_shape, certain, site, is_masked)


def pooled_ndim(reduction: Reducer[Any], batch_ndim: int, where_ndim: int) -> int:
    """The number of batch axes of the results of a reduction: those of `where=` are none when it pools."""
    return batch_ndim - where_ndim if reduction.pool else batch_ndim


def of_last(mask: Any, steps: Mapping[str, Any], batch_ndim: int) -> tuple[Any, dict[str, Any]]:
    """The mask and the counters of what happens in some element of the further axes: those of the last one there."""
    specs: Any = lambda: spec_of(mask, stop=batch_ndim)  # noqa: E731
    return without_sharding(functools.partial(_of_last, batch_ndim=batch_ndim), specs, mask, dict(steps))


def _of_last(mask: Any, steps: dict[str, Any], batch_ndim: int) -> tuple[Any, dict[str, Any]]:
    shape = (*mask.shape[:batch_ndim], math.prod(mask.shape[batch_ndim:]))
    flat = mask.reshape(shape)
    if not shape[-1]:
        return jnp.any(flat, axis=-1), {name: jnp.zeros(shape[:-1], step.dtype) for name, step in steps.items()}
    last = shape[-1] - 1 - jnp.argmax(flat[..., ::-1], axis=-1, keepdims=True)
    of = {name: jnp.take_along_axis(step.reshape(shape), last, axis=-1)[..., 0] for name, step in steps.items()}
    return jnp.any(flat, axis=-1), of


def _with_steps(reduction: Reducer[Any], value: Any, steps: Mapping[str, Any]) -> Any:
    return Numbered(value, dict(steps)) if reduction.takes_steps else value


def _at(site: Site, before: str = ", ") -> str:
    """Return the place where events were logged, for a message; a logdict does not know it."""
    return "" if site == NOWHERE else f"{before}logged at {site}"


def count(maybe: Any, certain: int, batch_shape: tuple[int, ...], site: Site) -> Accumulator:
    """The accumulator of "count" that has counted so many events."""
    return Accumulator(None, maybe, None, {}, Count(), None, (), batch_shape, certain, site, maybe is not None)


def fold(
    reduction: Reducer[Any],
    value: Any,
    mask: Any,
    steps: Mapping[str, Any],
    site: Site,
    batch_ndim: int,
    where_ndim: int = 0,
    before: Accumulator | None = None,
) -> Accumulator:
    """Events, stacked along their first axis, as an accumulator. They are numbered after those `before`."""
    length = value.shape[0]
    if length == 1:
        value, mask, steps = jax.tree.map(lambda array: jax.lax.squeeze(array, (0,)), (value, mask, dict(steps)))
        return numbered_after(before, lift(reduction, value, mask, steps, site, batch_ndim, where_ndim))
    if mask is None and length:
        place = 0 if reduction.keeps_first else -1
        one = lift(reduction, value[place], None, {name: step[place] for name, step in steps.items()}, site, batch_ndim)
        values = _with_steps(reduction, value, steps)
        if before is None:
            state = reduction.stacked(values, one.batch_shape)
        else:
            state = reduction.stacked_after(before.state, values, one.batch_shape)
        return dataclasses.replace(one, state=state, certain=length)

    def of_event(event: Any) -> Accumulator:
        value, mask, steps = event
        return lift(reduction, value, mask, steps, site, batch_ndim, where_ndim)

    stacked = (value, mask, dict(steps))
    of_one = jax.tree.map(lambda array: jex.core.mapped_aval(array.shape[0], 0, jax.typeof(array)), stacked)
    none = numbered_after(before, empty(_compat.abstract(of_event, of_one)))
    if mask is None:
        return none
    return jax.lax.scan(lambda sofar, event: (merge(sofar, of_event(event)), None), none, stacked)[0]


def numbered_after(before: Accumulator | None, accumulator: Accumulator) -> Accumulator:
    """The accumulator of no events, or of one log call, for a reduction that needs to know which events were before."""
    if before is None or not accumulator.reduction.is_numbered:
        return accumulator
    return dataclasses.replace(accumulator, state=accumulator.reduction.after(accumulator.state, before.state))


def empty(like: Accumulator) -> Accumulator:
    """An accumulator of no events, from the abstract values of one."""
    zeros = jax.tree.map(_compat.zeros_like_aval, dataclasses.replace(like, state=None))
    return dataclasses.replace(zeros, state=like.reduction.none(like.state), certain=0)


def empty_in_loop(like: Accumulator) -> Accumulator:
    """An accumulator of no events, which has the same arrays after any events, from the abstract values of one."""
    none = empty(like)
    maybe = _numbers(none, 0) if none.maybe is None else none.maybe
    begun = maybe > 0 if none.reduction.keeps_first else None
    return dataclasses.replace(none, maybe=maybe, begun=begun, is_masked=False)


def _numbers(accumulator: Accumulator, number: Any) -> Any:
    """A number for each batch element, sharded as the state is."""
    numbers = jnp.full(accumulator.batch_shape, number, jnp.int32)
    return next((sharded_as(leaf, numbers) for leaf in jax.tree.leaves(accumulator.state)), numbers)


def empty_in_branch(like: Accumulator) -> Accumulator:
    """An accumulator of no events at the start of a branch, from the abstract values of one."""
    return dataclasses.replace(empty_in_loop(like), state=like.reduction.none_in_branch(like.state))


def in_equal_batches(first: Accumulator, second: Accumulator, of_any_call: bool) -> tuple[Accumulator, Accumulator]:
    """Accumulators of one log call in equal batches: the smaller one gets the elements that it lacks, without events.

    So it is in `lax.map` with a `batch_size` that does not divide the length. Others stay as they are.
    """
    return in_batch_of(first, second, of_any_call), in_batch_of(second, first, of_any_call)


def in_batch_of(accumulator: Accumulator, other: Accumulator, of_any_call: bool) -> Accumulator:
    """The accumulator in a batch as large as that of another, or larger. The other may have abstract arrays."""
    here, there = accumulator.batch_shape, other.batch_shape
    if not (of_any_call or accumulator.site == other.site) or len(here) != len(there):
        return accumulator
    return _in_batch(accumulator, tuple(map(max, here, there)))


def _in_batch(accumulator: Accumulator, batch_shape: tuple[int, ...]) -> Accumulator:
    if accumulator.batch_shape == batch_shape:
        return accumulator
    uncertain = with_full_state(with_certain(accumulator, 0))

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
    reduction = first.reduction
    state = reduction.merge(first.state, second.state, first.happened(), second.happened())
    first, second = with_steps_as(first, second), with_steps_as(second, first)
    steps = {}
    for name, step in first.steps.items():
        if reduction.keeps_first:
            steps[name] = choose(first.happened(), step, second.steps[name])
        else:
            steps[name] = choose(second.happened(), second.steps[name], step)
    maybe, certain = plus(first.maybe, second.maybe), first.certain + second.certain
    begun = first.begun
    if begun is not None:
        begun = jnp.ones_like(begun) if second.happened() is True else begun | second.happened()
    is_masked = first.is_masked or second.is_masked
    return dataclasses.replace(
        first, state=state, maybe=maybe, begun=begun, steps=steps, certain=certain, is_masked=is_masked
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
        trips: The number of iterations; not an array if it is known.
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
    """The same events, `certain` of which surely happened; the others count as if they might not have."""
    more = accumulator.certain - certain
    if isinstance(more, int) and more == 0 and accumulator.maybe is not None:
        return accumulator
    number = _numbers(accumulator, more)
    return dataclasses.replace(accumulator, maybe=plus(accumulator.maybe, number), certain=certain, is_masked=True)


def with_full_state(accumulator: Accumulator) -> Accumulator:
    """The same events, in all arrays that a state can have."""
    return dataclasses.replace(accumulator, state=accumulator.reduction.full(accumulator.state))


def result(accumulator: Accumulator) -> Any:
    """The reduced value; of no events, 0 for "sum" and "count", else NaN, 0 or False."""
    reduction, certain = accumulator.reduction, accumulator.certain
    if reduction.is_number_of_events and isinstance(certain, int) and certain > jnp.iinfo(jnp.int32).max:
        raise LogValueError(
            f"reduce='count' counts {certain:,} events{_at(accumulator.site)}, which is more than an int32 holds. "
            "Leave it out of reduce=: the number is known before the program runs."
        )

    def number(dtype: Any) -> Any:
        surely = jnp.full(accumulator.batch_shape if reduction.is_number_of_events else (), certain, dtype)
        return surely if accumulator.maybe is None else accumulator.maybe.astype(dtype) + surely

    value, mask = reduction.finish(accumulator.state, number, accumulator.dtype), accumulator.mask()
    if reduction.takes_steps:
        return Kept(value.happened, *_where(value.happened, value[1:]))
    return value if mask is None or reduction.is_zero_of_none else _where(mask, value)


def _where(mask: Any, tree: Any) -> Any:
    """The arrays where the mask is True, and elsewhere what the user gets where no event happened."""
    return jax.tree.map(lambda array: where(mask, array, fill(jax.typeof(array))), tree)


def as_event(accumulators: Mapping[str, Accumulator], result: Callable[[Accumulator], Any] = result) -> Columns:
    """The reduced events of the keys of one timeline, without an axis for events."""
    first = next(iter(accumulators.values()))
    batch_ndim = len(first.batch_shape)
    values = {key: result(each) for key, each in accumulators.items()}
    if not first.reduction.takes_steps:
        return Columns(values, dict(first.steps), first.mask(), None, made_by(accumulators), batch_ndim=batch_ndim)
    ((key, kept),) = values.items()
    return Columns({key: kept.value}, kept.steps, kept.happened, batch_ndim=batch_ndim)


def made_by(accumulators: Mapping[str, Accumulator]) -> dict[str, Reducer[Any]]:
    """The reductions of those keys that become distributions."""
    return {key: each.reduction for key, each in accumulators.items() if each.reduction.is_distribution}


def as_timeline(accumulators: Mapping[str, Accumulator]) -> Columns:
    """The reduced events of the keys of one timeline, as its only event."""
    return as_event(accumulators).map(one_event)


def apart(reduction: Reducer[Any], key: str) -> Any:
    """A value that is equal for keys of one log call if their results have the same counters and mask."""
    return reduction.keeps_first, bool(reduction.pool), key if reduction.takes_steps else None
