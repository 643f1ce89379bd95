"""The reductions that keep some events, with their counters: those of the largest values, and random ones."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._stepwise import Folded, Pending, Stepwise, check_ordered, joined, of_each, of_one_dtype

SINGLE = 8
"""So many events or fewer are put in their places one at a time; more are sorted together."""


class Numbered(NamedTuple):
    """The values of events with their counters, which have the shape of the values or begin its shape."""

    value: Any
    steps: dict[str, Any]


class Kept(NamedTuple):
    """The values that were kept, in order, of shape `(*batch, *shape, k)`.

    Attributes:
        happened: Where there was an event; after the last one there is none.
        value: The values.
        steps: The counters of each.
    """

    happened: Any
    value: Any
    steps: dict[str, Any]


@dataclasses.dataclass(frozen=True, repr=False)
class Largest(Stepwise):
    """The `k` largest values; of equal ones, the earliest."""

    k: int
    pool: bool | int

    name = "topk"
    takes_steps = True
    orders_values: ClassVar[bool] = True

    def __repr__(self) -> str:
        return self.written(f"{self.k}")

    def read(self, value: Numbered) -> Numbered:
        array = value.value
        if self.orders_values:
            check_ordered(array.dtype)

        def of_each(step: Any) -> Any:
            return jnp.broadcast_to(jax.lax.expand_dims(step, range(step.ndim, array.ndim)), array.shape)

        return Numbered(array, {name: of_each(step) for name, step in value.steps.items()})

    def dtype_of(self, values: Numbered) -> Any:
        return values.value.dtype, tuple(sorted((name, step.dtype) for name, step in values.steps.items()))

    def no_values(self, shape: tuple[int, ...], dtype: Any) -> Numbered:
        return _zeros((*shape, 0), dtype)

    def bytes_of(self, shape: tuple[int, ...], dtype: Any, batch_shape: tuple[int, ...]) -> int:
        return self.samples(shape, batch_shape) * self.k * jnp.dtype(dtype).itemsize

    def start(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return Kept(np.zeros((*shape, self.k), bool), *_zeros((*shape, self.k), dtype))

    def add(self, state: Any, values: Numbered, happened: Any, shape: tuple[int, ...]) -> Any:
        return self._with(state, Kept(_happened(happened, values), *values))

    def _with(self, state: Kept, events: Kept) -> Kept:
        number = events.value.shape[-1]
        if number > SINGLE:
            return self._kept(joined(state, events))
        for place in range(number):
            state = self._inserted(state, jax.tree.map(lambda array: array[..., place : place + 1], events))  # noqa: B023
        return state

    def join(self, first: Any, second: Any, batch_ndim: int) -> Any:
        return self._kept(joined(first, second))

    def value(self, state: Any, shape: tuple[int, ...], dtype: Any, batch_ndim: int) -> Kept:
        return state

    def _inserted(self, kept: Kept, event: Kept) -> Kept:
        """Put an event in its place, and those that come after it one place further on."""
        is_less = event.value > kept.value
        if jnp.issubdtype(kept.value.dtype, jnp.floating):
            is_less |= jnp.isnan(kept.value) & ~jnp.isnan(event.value)
        stays = (kept.happened & ~is_less) | ~event.happened
        moves = jnp.concatenate([jnp.zeros_like(stays[..., :1]), ~stays[..., :-1]], axis=-1)

        def put(old: Any, new: Any) -> Any:
            old, new = of_one_dtype(old, new)
            before = jnp.concatenate([old[..., :1], old[..., :-1]], axis=-1)
            return jnp.where(stays, old, jnp.where(moves, before, new))

        return jax.tree.map(put, kept, event)

    def _kept(self, kept: Kept) -> Kept:
        falling = -kept.value if jnp.issubdtype(kept.value.dtype, jnp.floating) else ~kept.value
        leaves, structure = jax.tree.flatten(kept)
        ordered = jax.lax.sort((~kept.happened, falling, *leaves), dimension=-1, is_stable=True, num_keys=2)
        return jax.tree.unflatten(structure, [leaf[..., : self.k] for leaf in ordered[2:]])


def _zeros(shape: tuple[int, ...], dtype: Any) -> Numbered:
    value, steps = dtype
    return Numbered(np.zeros(shape, value), {name: np.zeros(shape, each) for name, each in steps})


def _happened(happened: Any, values: Numbered) -> Any:
    """The mask of events, or None for all, for each element of their values."""
    return jnp.ones(values.value.shape, bool) if happened is None else of_each(happened, values.value)


VALUE = ""
"""The name of the value among the counters of an event that was drawn."""


class Drawn(NamedTuple):
    """The state of a `Reservoir`.

    Attributes:
        number: How many events there were in all, uint32, of shape `(*batch, *shape)`.
        kept: Those that were drawn, with a random number of each as its value.
    """

    number: Any
    kept: Kept


@dataclasses.dataclass(frozen=True, repr=False)
class Reservoir(Largest):
    """The `k` events with the largest hash of their number, which is a random sample without replacement."""

    seed: tuple[int, ...] = ()

    name = "reservoir"
    is_numbered = True
    is_ordered = True
    orders_values = False

    def start(self, shape: tuple[int, ...], dtype: Any) -> Any:
        value, steps = dtype
        kept = super().start(shape, (jnp.uint32, ((VALUE, value), *steps)))
        return Drawn(np.zeros(shape, np.uint32), kept)

    def add(self, state: Any, values: Numbered, happened: Any, shape: tuple[int, ...]) -> Any:
        happened = _happened(happened, values)
        after = state.number[..., None] + jnp.cumsum(happened, axis=-1, dtype=jnp.uint32)
        drawn = Numbered(_hash(after - np.uint32(1), self.seed), {VALUE: values.value, **values.steps})
        return Drawn(after[..., -1], self._with(state.kept, Kept(happened, *drawn)))

    def join(self, first: Any, second: Any, batch_ndim: int) -> Any:
        # In a larger batch, the second has no events of some elements, and does not know how many they had before.
        number = jnp.where(second.number == 0, first.number, second.number)
        return Drawn(number, super().join(first.kept, second.kept, batch_ndim))

    def value(self, state: Any, shape: tuple[int, ...], dtype: Any, batch_ndim: int) -> Kept:
        steps = dict(state.kept.steps)
        value = steps.pop(VALUE)
        return Kept(state.kept.happened, value, steps)

    def after(self, none: Any, before: Any) -> Any:
        if isinstance(before, Folded):
            number = before.state.number
        else:
            number = jnp.sum(before.mask(), axis=-1, dtype=jnp.uint32)
            number = jax.lax.expand_dims(number, range(number.ndim, number.ndim + len(before.shape)))
            number = jnp.broadcast_to(number, before.any_value().shape[:-1])
            number = number if before.before is None else number + before.before
        shape = none.any_value().shape[:-1] if isinstance(none, Pending) else none.state.number.shape
        if number.ndim != len(shape):  # Events that differ so are refused.
            return none
        if number.shape != shape:  # A batch may be smaller or larger than the one before it.
            lacks = [(0, size - have, 0) for size, have in zip(shape, number.shape, strict=True)]
            number = jax.lax.pad(number, np.uint32(0), lacks)
        if isinstance(none, Pending):
            return dataclasses.replace(none, before=number)
        return dataclasses.replace(none, state=none.state._replace(number=number))


def _hash(number: Any, seed: tuple[int, ...]) -> Any:
    """A number between 0 and 2**32, uint32, that looks random; other numbers have others.

    The function is lowbias32, which C. Wellons found by searching for the least bias (nullprogram.com, 2018).
    """
    for word in (0, *seed):
        number = number ^ np.uint32(word)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            number = (number ^ (number >> np.uint32(shift))) * np.uint32(factor)
        number = number ^ (number >> np.uint32(16))
    return number
