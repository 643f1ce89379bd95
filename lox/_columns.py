"""Logs sorted into timelines: the events of each, in the order in which they happened."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lox._events import NOWHERE, Event, Log, Site, StackedEvents
from lox._exceptions import StructureError, UnsupportedPrimitiveError
from lox._sharding import concatenate
from lox._site import Optional, from_context, strictest
from lox._split import MENDS, is_typed, plain
from lox._timeline import Timeline, groups


@jax.tree_util.register_dataclass
@dataclasses.dataclass(slots=True)
class Columns(Timeline):
    """A timeline inside loops. Arrays have the axes of the loops around, then the event axis.

    Attributes:
        site: The first log call.
        batch_ndim: The number of batch axes.
        optional: Why the number of events depends on data; None when it does not.
        outer_batch_ndim: Number of leading batch axes of a `vmap` around a `shard_map`.
        is_filled: Whether values and counters already are what the user gets where the mask is False.
        where_ndim: Number of trailing batch axes of `where=`.
        single: Whether there is one event, and no event axis yet, so that stacking costs nothing.
    """

    site: Site = dataclasses.field(default=NOWHERE, metadata={"static": True})
    batch_ndim: int = dataclasses.field(default=0, metadata={"static": True})
    optional: Optional | None = dataclasses.field(default=None, metadata={"static": True})
    outer_batch_ndim: int = dataclasses.field(default=0, metadata={"static": True})
    is_filled: bool = dataclasses.field(default=False, metadata={"static": True})
    where_ndim: int = dataclasses.field(default=0, metadata={"static": True})
    single: bool = dataclasses.field(default=False, metadata={"static": True})

    def any_value(self) -> Any:
        """One of the values: the axes of loops, events and batches are the same for all."""
        return next(iter(self.values.values()))

    def batch(self, depth: int) -> tuple[int, ...]:
        """The sizes of the batch axes, under `depth` loops."""
        first = depth + (not self.single)
        return tuple(self.any_value().shape[first : first + self.batch_ndim])

    def happened(self, depth: int = 0) -> Any:
        """The mask, which is all true where there is none."""
        if self.mask is not None:
            return self.mask
        shape = jnp.shape(self.any_value())[: depth + self.batch_ndim + (not self.single)]
        return (np if isinstance(self.any_value(), np.ndarray) else jnp).ones(shape, bool)

    def as_log(self) -> StackedEvents:
        """The timeline, which has an event axis, as logs."""
        fixed = (self.site, self.batch_ndim, self.optional, (), self.outer_batch_ndim)
        event = Event(self.values, self.steps, self.mask, (), *fixed, where_ndim=self.where_ndim)
        dropped = {} if self.dropped is None else {tuple(sorted(self.values)): self.dropped}
        return StackedEvents((event,), dropped, jnp.shape(self.any_value())[0])


_OPERANDS = 32
"""Largest number of arrays that one compiled call joins."""


class Arrays(Protocol):
    """Operations that put events one after the other: of JAX in a program, of NumPy on the host."""

    def with_event_axis(self, part: Any) -> Any:
        """A tree of arrays with a first axis of length one."""

    def unrolled(self, array: Any, axis: int) -> Any:
        """The array with this axis and the next one made one."""

    def joined(self, parts: list[Any], single: tuple[bool, ...], axis: int) -> Any:
        """Trees of arrays one after the other along an axis, which those that are single do not have yet."""

    def padded(self, array: Any, axis: int, size: int) -> Any:
        """The array with zeros up to this size."""


class OnDevice:
    """With JAX."""

    def with_event_axis(self, part: Any) -> Any:
        return one_event(part)

    def unrolled(self, array: Any, axis: int) -> Any:
        shape = jnp.shape(array)
        return jax.lax.reshape(array, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))

    def joined(self, parts: list[Any], single: tuple[bool, ...], axis: int) -> Any:
        leaves, trees = zip(*map(jax.tree.flatten, parts), strict=True)
        return jax.tree.unflatten(trees[0], self.joined_leaves(leaves, single, axis))

    def joined_leaves(self, leaves: Sequence[list[Any]], single: tuple[bool, ...], axis: int) -> list[Any]:
        """The same for trees of one structure, as lists of their arrays."""
        at_once = runs_at_once(leaves[0])
        if at_once and len(leaves) > _OPERANDS:  # XLA takes long to compile what joins many.
            ranges = [slice(first, first + _OPERANDS) for first in range(0, len(leaves), _OPERANDS)]
            joined = [self.joined_leaves(leaves[some], single[some], axis) for some in ranges]
            return self.joined_leaves(joined, (False,) * len(joined), axis)
        # Numbers of Python are joined on the host: each array there that a call takes makes it slower.
        columns = [
            ON_HOST.joined(list(column), single, axis) if all(type(each) is np.ndarray for each in column) else column
            for column in zip(*leaves, strict=True)
        ]
        return (_joined if at_once else _join)(columns, single, axis)

    def padded(self, array: Any, axis: int, size: int) -> Any:
        lacks = (*array.shape[:axis], size - array.shape[axis], *array.shape[axis + 1 :])
        return concatenate([array, jax.lax.full(lacks, 0, array.dtype)], axis)


class OnHost:
    """With NumPy, whose `expand_dims` takes ten times as long as a reshape."""

    def with_event_axis(self, part: Any) -> Any:
        return jax.tree.map(lambda array: array.reshape(1, *array.shape), part)

    def unrolled(self, array: Any, axis: int) -> Any:
        return array.reshape(*array.shape[:axis], array.shape[axis] * array.shape[axis + 1], *array.shape[axis + 2 :])

    def joined(self, parts: list[Any], single: tuple[bool, ...], axis: int) -> Any:
        def join(*arrays: Any) -> Any:
            if axis == 0 and all(single):
                return np.array(arrays)  # A tenth of the time of `np.stack`.
            shapes = [(*a.shape[:axis], 1, *a.shape[axis:]) for a in arrays]
            pairs = zip(arrays, shapes, single, strict=True)
            return np.concatenate([a.reshape(shape) if one else a for a, shape, one in pairs], axis)

        return jax.tree.map(join, *parts)

    def padded(self, array: Any, axis: int, size: int) -> Any:
        lacks = (*array.shape[:axis], size - array.shape[axis], *array.shape[axis + 1 :])
        return np.concatenate([array, np.zeros(lacks, array.dtype)], axis)


ON_DEVICE, ON_HOST = OnDevice(), OnHost()


def columns(logs: Sequence[Log], depth: int = 0, arrays: Arrays = ON_DEVICE) -> list[Columns]:
    """The timelines of logs, in the order of their first events.

    Args:
        logs: The logs, under `depth` loops.
        depth: The number of leading loop axes.
        arrays: The operations for these arrays.

    Raises:
        StructureError: Events of one key differ in shape, dtype or counters. Those of one log call may be in batches of
            several sizes: the smaller ones are masked where they have no element.
    """
    parts: list[Columns] = []
    for log in logs:
        if isinstance(log, StackedEvents):
            parts += [
                _unrolled(each, _dropped(log, each), depth, arrays) for each in columns(log.body, depth + 1, arrays)
            ]
        else:
            if any(log.spmd_axes):
                raise UnsupportedPrimitiveError(
                    f"reduce=, interval= and branches that log differently cannot be had for the log at {log.site} "
                    "inside a shard_map under vmap with spmd_axis_name=, which splits the batch over shards. Apply "
                    "lox.spool inside the vmap, as in vmap(spool(f), spmd_axis_name=...)."
                )
            log = log.with_full_steps(depth)
            fixed = (log.site, log.batch_ndim, log.optional, log.outer_batch_ndim, log.is_filled, log.where_ndim)
            parts.append(Columns(log.values, log.steps, log.mask, None, {}, *fixed, single=True))
    return [
        in_sequence([parts[place].only(keys) for place in places], depth, arrays)
        for keys, places in groups(part.values for part in parts).items()
    ]


def one_event(part: Any) -> Any:
    """A tree of arrays with an event axis of length one."""
    if not runs_at_once(part):
        return _expanded(part)
    leaves, structure = jax.tree.flatten(part)
    return jax.tree.unflatten(structure, _one_event(leaves))  # Compiled once for all keys that are alike.


def runs_at_once(tree: Any) -> bool:
    """Tell whether operations on these arrays run where they are called, so that one call for all is faster."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _expanded(part: Any) -> Any:
    return jax.tree.map(lambda array: jax.lax.expand_dims(array, (0,)), part)


_one_event = jax.jit(_expanded, inline=True)  # A program of constants does not show the call.


def with_event_axes(logs: Sequence[Log], arrays: Arrays = ON_DEVICE) -> list[Columns]:
    """The timelines of logs, each with an event axis, also where there is one event."""
    return [
        _with(each, arrays.with_event_axis(_arrays(each)), single=False) if each.single else each
        for each in columns(logs, 0, arrays)
    ]


def _arrays(part: Columns) -> tuple[Any, Any, Any]:
    return part.values, part.steps, part.mask


def _with(part: Columns, arrays: tuple[Any, Any, Any], **changes: Any) -> Columns:
    values, steps, mask = arrays
    return dataclasses.replace(part, values=values, steps=steps, mask=mask, **changes)


def _dropped(loop: StackedEvents, part: Columns) -> Any:
    return next((count for keys, count in loop.dropped.items() if not part.values.keys().isdisjoint(keys)), None)


def _unrolled(part: Columns, dropped: Any, depth: int, arrays: Arrays) -> Columns:
    if part.dropped is not None:
        inside = part.dropped.sum(axis=depth)
        dropped = inside if dropped is None else dropped + inside
    if part.single:
        return dataclasses.replace(part, dropped=dropped, single=False)
    return part.map(lambda array: arrays.unrolled(array, depth), dropped=dropped)


def in_sequence(parts: list[Columns], depth: int = 0, arrays: Arrays = ON_DEVICE) -> Columns:
    """The events of some timelines of the same keys, one after the other.

    Raises:
        StructureError: They differ in shape, dtype or counters.
    """
    if len(parts) == 1:
        return parts[0]
    first, *others = parts = in_equal_batches(parts, depth, arrays)
    types = types_of(first, depth)
    for other in others:
        check_alike(types, first, other, depth)
    parts = with_steps_of_one_dtype(parts)
    is_filled = all(part.is_filled or part.mask is None for part in parts)
    if any(part.mask is not None for part in parts):
        parts = [dataclasses.replace(part, mask=part.happened(depth)) for part in parts]
    joined = arrays.joined([_arrays(part) for part in parts], tuple(part.single for part in parts), depth)
    dropped = [part.dropped for part in parts if part.dropped is not None]
    return _with(
        first,
        joined,
        dropped=sum(dropped[1:], dropped[0]) if dropped else None,
        optional=strictest(part.optional for part in parts),
        is_filled=is_filled,
        single=False,
    )


def promoted(first: Any, second: Any) -> Any:
    """The dtype of a counter that has these, whatever promotion of dtypes JAX is set to for the values of a program."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(first, second)


def with_steps_of_one_dtype(parts: list[Columns]) -> list[Columns]:
    """The timelines, with the counters of each name in a dtype that has the values of all."""
    dtypes = [{name: step.dtype for name, step in part.steps.items()} for part in parts]
    if all(each == dtypes[0] for each in dtypes):
        return parts
    common = {name: functools.reduce(promoted, [each[name] for each in dtypes]) for name in dtypes[0]}

    def cast(part: Columns) -> Columns:
        steps = {name: step.astype(common[name]) for name, step in part.steps.items()}
        return dataclasses.replace(part, steps=steps)

    return list(map(cast, parts))


def _join(columns: list[Any], single: tuple[bool, ...], axis: int) -> list[Any]:
    def join(arrays: Any) -> Any:
        if not isinstance(arrays, tuple):
            return arrays
        pairs = zip(arrays, single, strict=True)
        return concatenate([jax.lax.expand_dims(a, (axis,)) if one else a for a, one in pairs], axis)

    return [join(arrays) for arrays in columns]


_joined = jax.jit(_join, static_argnums=(1, 2), inline=True)


Type = tuple[Any, tuple[int, ...], int]
"""The dtype and shape of an event, and its number of leading batch axes."""


def check_alike(types: dict[str, Type], first: Columns, other: Columns, depth: int = 0) -> None:
    """Raise StructureError where events differ from the first ones, which have these types."""
    others = types_of(other, depth)
    if types == others and first.steps.keys() == other.steps.keys():
        return
    for key in first.values:
        if types[key] != others[key]:
            raise StructureError(
                f"The key {plain(key)!r} is logged as {describe(*types[key])} at {first.site} and as "
                f"{describe(*others[key])} at {other.site}. Events of one key must be alike: {MENDS}"
            )
    raise StructureError(
        f"The key {plain(next(iter(first.values)))!r} is logged with {_counters(first)} at {first.site} and with "
        f"{_counters(other)} at {other.site}. Events of one key must have the same counters: {MENDS}"
        f"{from_context(first.site, other.site)}"
    )


def types_of(part: Columns, depth: int = 0) -> dict[str, Type]:
    """The type of the events of each key."""
    first = depth + (not part.single)
    return {key: (value.dtype, tuple(value.shape[first:]), part.batch_ndim) for key, value in part.values.items()}


def in_equal_batches(parts: list[Columns], depth: int = 0, arrays: Arrays = ON_DEVICE) -> list[Columns]:
    """The parts in equal batches: smaller ones get the elements that they lack, in which no event happened.

    So it is in `lax.map` with a `batch_size` that does not divide the length, and for all events that are collected by
    type. Others stay as they are.
    """
    batches = [part.batch(depth) for part in parts]
    if all(batch == batches[0] for batch in batches):
        return parts
    logged = [{key: (dtype, shape[n:]) for key, (dtype, shape, n) in types_of(part, depth).items()} for part in parts]
    one_site = any(map(is_typed, parts[0].values)) or all(part.site == parts[0].site for part in parts)
    first = parts[0].batch_ndim, logged[0]
    if not one_site or any((part.batch_ndim, types) != first for part, types in zip(parts, logged, strict=True)):
        return parts
    largest = tuple(map(max, zip(*batches, strict=True)))
    return [
        part if batch == largest else _padded(part, largest, depth, arrays)
        for part, batch in zip(parts, batches, strict=True)
    ]


def _padded(part: Columns, batch: tuple[int, ...], depth: int, arrays: Arrays) -> Columns:
    def pad(array: Any, first: int) -> Any:
        for axis, size in enumerate(batch, first):
            array = arrays.padded(array, axis, size)
        return array

    dropped = part.dropped
    if dropped is not None and jnp.ndim(dropped) > depth:
        dropped = pad(dropped, depth)
    masked = dataclasses.replace(part, mask=part.happened(depth), dropped=dropped, is_filled=False)
    return masked.map(lambda array: pad(array, depth + (not part.single)))


def describe(dtype: Any, shape: Sequence[int], batch_ndim: int) -> str:
    """The type of an event, with the batch axes apart from those that were logged."""
    logged = f"{dtype.name}{list(shape[batch_ndim:])}"
    return f"{logged} in a batch of {' x '.join(map(str, shape[:batch_ndim]))}" if batch_ndim else logged


def _counters(part: Columns) -> str:
    return f"the steps {', '.join(sorted(part.steps))}" if part.steps else "no steps"
