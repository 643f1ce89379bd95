"""Reductions whose state is larger than an event, so that events are added to it one by one, where they happen.

An event, or the few of a branch, is kept as it is (`Pending`) until it meets the state of all events (`Folded`). Thus a
loop carries one large state, to which each iteration adds in place, and a branch returns events rather than a state.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._columns import promoted
from lox._reductions import Reducer
from lox._sharding import concatenate, sharded_as, spec_of, specs_of, without_sharding


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pending:
    """Events that were not added to a state yet.

    Attributes:
        values: An array or a tree of arrays of shape `(*batch, *shape, number)`.
        happened: The mask of those that happened, of shape `(*batch, number)`; None for all.
        shape: The shape of what a sample is taken of: that of an event, or `()` where its elements are the sample.
        before: The number of events before them, for a reduction that `is_numbered`; None for none.
        room: The largest number of them; more are folded, but for a first event.
    """

    values: Any
    happened: Any
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    before: Any = None
    room: int = dataclasses.field(default=1, metadata={"static": True})

    @property
    def number(self) -> int:
        """The number of events."""
        return int(self.any_value().shape[-1])

    def any_value(self) -> Any:
        """One of the arrays of values, or its abstract value."""
        return jax.tree.leaves(self.values)[0]

    def mask(self) -> Any:
        """Return the mask of the events that happened, as an array."""
        if self.happened is not None:
            return self.happened
        values = self.any_value()
        batch = values.shape[: values.ndim - len(self.shape) - 1]
        return jnp.ones((*batch, self.number), bool)

    def then(self, other: Pending) -> Pending:
        """These, and then others."""
        if not self.number:
            return dataclasses.replace(other, before=self.before, room=self.room)
        values = joined(self.values, other.values)
        if self.happened is None and other.happened is None:
            return dataclasses.replace(self, values=values)
        mask = self.mask()
        happened = concatenate([mask, other.mask()], axis=mask.ndim - 1)
        return dataclasses.replace(self, values=values, happened=happened)

    def padded(self, number: int) -> Pending:
        """These, and after them events that did not happen: so many in all."""
        more = [(0, 0, 0)] * (self.any_value().ndim - 1) + [(0, number - self.number, 0)]
        values = jax.tree.map(lambda array: jax.lax.pad(array, jnp.zeros((), array.dtype), more), self.values)
        happened = jax.lax.pad(self.mask(), np.False_, more[len(self.shape) :])
        return dataclasses.replace(self, values=values, happened=happened)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Folded:
    """A state to which events were added.

    Attributes:
        state: Arrays that begin with the batch axes.
        shape: As in `Pending`.
        dtype: The dtype of the values, or whatever `Stepwise.dtype_of` says of them.
    """

    state: Any
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})


def joined(first: Any, second: Any) -> Any:
    """Two trees of arrays, one after the other along the last axis, in dtypes that have the values of both."""

    def join(first: Any, second: Any) -> Any:
        return concatenate(of_one_dtype(first, second), axis=first.ndim - 1)

    return jax.tree.map(join, first, second)


def of_one_dtype(first: Any, second: Any) -> tuple[Any, Any]:
    """Two arrays in a dtype that has the values of both."""
    dtype = promoted(first.dtype, second.dtype)
    return first.astype(dtype), second.astype(dtype)


def of_each(happened: Any, values: Any) -> Any:
    """The mask of events, shape `(*batch, number)`, for each of their values, shape `(*batch, *shape, number)`."""
    happened = jax.lax.expand_dims(happened, range(happened.ndim - 1, values.ndim - 1))
    return jnp.broadcast_to(happened, values.shape)


def check_ordered(dtype: Any) -> None:
    """Raise ValueError where values of a dtype have no order."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError("complex numbers have no order")


IN_BRANCH = 64
"""A branch returns up to so many numbers of a key as they are, or those of one event. For more it returns a state."""


class Stepwise(Reducer[Any]):
    """A reduction that adds events to a state."""

    is_large = True

    name = ""
    """The function that makes it."""

    def read(self, value: Any) -> Any:
        """The event in the dtype that the state is of.

        Raises:
            ValueError: There is no such reduction of this dtype.
        """
        return value

    def dtype_of(self, values: Any) -> Any:
        """The dtype of values that `read` returned, on which the arrays of a state depend."""
        return values.dtype

    def no_values(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """No events of one batch element, as NumPy has them."""
        return np.zeros((*shape, 0), dtype)

    @abc.abstractmethod
    def start(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """The state of no events of one batch element, as NumPy has it or as JAX does."""

    @abc.abstractmethod
    def add(self, state: Any, values: Any, happened: Any, shape: tuple[int, ...]) -> Any:
        """Add events of these values, shape `(*batch, *shape, number)`, and mask, `(*batch, number)` or None."""

    @abc.abstractmethod
    def join(self, first: Any, second: Any, batch_ndim: int) -> Any:
        """The state of the events of two states."""

    @abc.abstractmethod
    def value(self, state: Any, shape: tuple[int, ...], dtype: Any, batch_ndim: int) -> Any:
        """The result, of any dtype."""

    def written(self, arguments: str) -> str:
        """Return the call that makes an object with these arguments and `pool=`."""
        return f"lox.reductions.{self.name}({arguments}{f', pool={self.pool}' if self.pool else ''})"

    def samples(self, shape: tuple[int, ...], batch_shape: tuple[int, ...]) -> int:
        """Return the number of samples that are taken of events of this shape."""
        return math.prod((*batch_shape, *(() if self.pool else shape)))

    def lift(self, value: Any, mask: Any, batch_shape: tuple[int, ...]) -> Pending:
        value = self.read(value)
        values, shape = self._sample(value, len(batch_shape))
        happened = None if mask is None else mask[..., None]
        if mask is not None and self.pool:  # It may have axes of `where=` too.
            array = jax.tree.leaves(value)[0]
            mask = jnp.broadcast_to(jax.lax.expand_dims(mask, range(mask.ndim, array.ndim)), array.shape)
            happened, _ = self._sample(mask, len(batch_shape))
        return Pending(values, happened, shape)

    def none(self, like: Any) -> Folded:
        if isinstance(like, Folded):

            def of_type(leaf: Any, aval: Any) -> Any:
                return _laid_out_as(_compat.zeros_like_aval(aval), jnp.broadcast_to(leaf, aval.shape))

            start = self.start(like.shape, like.dtype)
            return dataclasses.replace(like, state=jax.tree.map(of_type, start, like.state))
        dtype, event = self.dtype_of(like.values), _event_of(like.any_value())
        return Folded(_repeated(self.start(like.shape, dtype), event, like.shape), like.shape, dtype)

    def none_in_branch(self, like: Any) -> Pending:
        if isinstance(like, Folded):
            dtype, array = like.dtype, jax.tree.leaves(like.state)[0]
            rest = array.ndim - np.ndim(jax.tree.leaves(self.start(like.shape, dtype))[0]) + len(like.shape)
            event = _compat.zeros_like_aval(array)
            event = jnp.sum(event, axis=tuple(range(min(rest, event.ndim), event.ndim)))
        else:
            dtype, event = self.dtype_of(like.values), _event_of(like.any_value())
        values = _repeated(self.no_values(like.shape, dtype), event, like.shape)
        return Pending(values, None, like.shape, room=IN_BRANCH)

    def alike(self, state: Any, states: Sequence[Any]) -> Any:
        if not all(isinstance(each, Pending) for each in states):
            return self.full(state)
        number = max(each.number for each in states)
        if all(each.happened is None and each.number == number for each in states):
            return state
        return state.padded(number)

    def full(self, state: Any) -> Folded:
        if isinstance(state, Folded):
            return state
        none = self.none(jax.tree.map(jax.typeof, state))
        if state.before is not None:
            none = self.after(none, dataclasses.replace(state, happened=jnp.zeros_like(state.mask())))
        return self._added(none, state)

    def merge(self, first: Any, second: Any, first_happened: Any, second_happened: Any) -> Any:
        if isinstance(first, Pending) and isinstance(second, Pending):
            fits = first.number + second.number <= first.room
            if fits or (not first.number and first.room == IN_BRANCH):
                return first.then(second)
        if isinstance(second, Pending):
            return self._added(self.full(first), second)
        first = self.full(first)
        batch_ndim = _batch_ndim(first, self.start(first.shape, first.dtype))
        join = functools.partial(self.join, batch_ndim=batch_ndim)
        return dataclasses.replace(
            first, state=without_sharding(join, lambda: specs_of(first.state), first.state, second.state)
        )

    def stacked(self, values: Any, batch_shape: tuple[int, ...]) -> Folded:
        return self.full(self._stacked(values, batch_shape))

    def stacked_after(self, before: Any, values: Any, batch_shape: tuple[int, ...]) -> Folded:
        return self.full(self.after(self._stacked(values, batch_shape), before))

    def _stacked(self, values: Any, batch_shape: tuple[int, ...]) -> Pending:
        values, shape = self._sample(self.read(values), 1 + len(batch_shape))

        def in_sequence(array: Any) -> Any:
            array = jnp.moveaxis(array, 0, -2)
            return array.reshape(*array.shape[:-2], math.prod(array.shape[-2:]))

        specs: Any = lambda: jax.tree.map(lambda array: spec_of(array, 1, array.ndim - 1), values)  # noqa: E731
        values = without_sharding(functools.partial(jax.tree.map, in_sequence), specs, values)
        return Pending(values, None, shape)

    def finish(self, state: Any, number: Callable[[Any], Any], dtype: Any) -> Any:
        folded = self.full(state)
        batch_ndim = _batch_ndim(folded, self.start(folded.shape, folded.dtype))
        value = functools.partial(self.value, shape=folded.shape, dtype=dtype, batch_ndim=batch_ndim)

        def specs() -> Any:
            first = jax.tree.leaves(folded.state)[0]
            state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), folded.state)
            like = jax.eval_shape(value, state)
            return jax.tree.map(lambda leaf: spec_of(first, stop=min(leaf.ndim, batch_ndim + len(folded.shape))), like)

        return without_sharding(value, specs, folded.state)

    def _added(self, folded: Folded, events: Pending) -> Folded:
        if not events.number:
            return folded
        add = functools.partial(_add, self, shape=folded.shape)
        state = without_sharding(add, lambda: specs_of(folded.state), folded.state, events.values, events.happened)
        return dataclasses.replace(folded, state=state)

    def _sample(self, value: Any, batch_ndim: int) -> tuple[Any, tuple[int, ...]]:
        """The values that an event adds, along a last axis, and the shape of what each is an element of."""
        array = jax.tree.leaves(value)[0]
        batch, shape = array.shape[:batch_ndim], array.shape[batch_ndim:]
        if not self.pool:
            return jax.tree.map(lambda array: array[..., None], value), shape
        number = math.prod(shape)
        chosen: Any = slice(None)
        if self.pool is not True and self.pool < number:
            chosen = np.sort(np.random.default_rng(0).choice(number, self.pool, replace=False))

        def sample(value: Any) -> Any:
            return jax.tree.map(lambda array: array.reshape(*batch, number)[..., chosen], value)

        return without_sharding(sample, lambda: specs_of(value, stop=batch_ndim), value), ()


def _batch_ndim(folded: Folded, start: Any) -> int:
    first, of_one = jax.tree.leaves(folded.state)[0], jax.tree.leaves(start)[0]
    return int(first.ndim - np.ndim(of_one))


def _event_of(aval: Any) -> Any:
    """Zeros of the shape of one event, from the abstract value of several along the last axis."""
    return jnp.sum(_compat.zeros_like_aval(aval), axis=-1)


def _repeated(tree: Any, event: Any, shape: tuple[int, ...]) -> Any:
    """Arrays for each batch element of an event of this shape, sharded as it is, and varying over shards as it does.

    An array that begins with the axes of the event is sharded along these too.
    """
    batch = event.shape[: event.ndim - len(shape)]
    of_batch = jnp.sum(event, axis=tuple(range(len(batch), event.ndim)))

    def repeated(leaf: Any) -> Any:
        begins_alike = np.shape(leaf)[: len(shape)] == shape
        return _laid_out_as(event if begins_alike else of_batch, jnp.broadcast_to(leaf, (*batch, *np.shape(leaf))))

    return jax.tree.map(repeated, tree)


def _laid_out_as(like: Any, array: Any) -> Any:
    """The array, sharded as another is, and varying over shards as it does."""
    return _compat.vary_in_branch(sharded_as(like, array), sorted(_compat.varying_axes(like)))


@functools.partial(jax.jit, static_argnums=(0, 4), inline=True)  # An eager call dispatches it at once.
def _add(reduction: Stepwise, state: Any, values: Any, happened: Any, shape: tuple[int, ...]) -> Any:
    return reduction.add(state, values, happened, shape)
