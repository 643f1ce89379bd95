"""The reduction that keeps the largest values, with the counters of their events."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lox._columns import promoted
from lox._stepwise import Stepwise, joined

SINGLE = 8
"""How many events are put in their places one at a time; more are ordered together."""


class Numbered(NamedTuple):
    """The values of events with their counters, which have the shape of the values or begin its shape."""

    value: Any
    steps: dict[str, Any]


class Kept(NamedTuple):
    """The values that were kept, in order, of shape `(*batch, *shape, k)`.

    Attributes:
        happened: Whether there were so many.
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

    takes_steps = True

    def __repr__(self) -> str:
        return f"lox.reductions.topk({self.k}{f', pool={self.pool}' if self.pool else ''})"

    def read(self, value: Numbered) -> Numbered:
        array = value.value
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise ValueError("complex numbers have no order")

        def of_each(step: Any) -> Any:
            return jnp.broadcast_to(jax.lax.expand_dims(step, range(step.ndim, array.ndim)), array.shape)

        return Numbered(array, {name: of_each(step) for name, step in value.steps.items()})

    def dtype_of(self, values: Numbered) -> Any:
        return values.value.dtype, tuple(sorted((name, step.dtype) for name, step in values.steps.items()))

    def no_values(self, shape: tuple[int, ...], dtype: Any) -> Numbered:
        value, steps = dtype
        return Numbered(np.zeros((*shape, 0), value), {name: np.zeros((*shape, 0), each) for name, each in steps})

    def bytes_of(self, shape: tuple[int, ...], dtype: Any, batch_shape: tuple[int, ...]) -> int:
        return math.prod((*batch_shape, *(() if self.pool else shape), self.k)) * jnp.dtype(dtype).itemsize

    def size(self, shape: tuple[int, ...], dtype: Any) -> int:
        raise NotImplementedError

    def start(self, shape: tuple[int, ...], dtype: Any) -> Kept:
        value, steps = dtype
        whole = (*shape, self.k)
        return Kept(
            np.zeros(whole, bool), np.zeros(whole, value), {name: np.zeros(whole, each) for name, each in steps}
        )

    def add(self, state: Kept, values: Numbered, happened: Any, shape: tuple[int, ...]) -> Kept:
        if happened is None:
            happened = jnp.ones(values.value.shape, bool)
        else:
            happened = jax.lax.expand_dims(happened, range(happened.ndim - 1, values.value.ndim - 1))
            happened = jnp.broadcast_to(happened, values.value.shape)
        events = Kept(happened, *values)
        number = happened.shape[-1]
        if number > SINGLE:
            return self._kept(joined(state, events))
        for place in range(number):
            state = self._inserted(state, jax.tree.map(lambda array: array[..., place : place + 1], events))  # noqa: B023
        return state

    def join(self, first: Kept, second: Kept, batch_ndim: int) -> Kept:
        return self._kept(joined(first, second))

    def value(self, state: Kept, shape: tuple[int, ...], dtype: Any, batch_ndim: int) -> Kept:
        return state

    def _inserted(self, kept: Kept, event: Kept) -> Kept:
        """Put an event in its place, and those that come after it one place further on."""
        is_less = event.value > kept.value
        if jnp.issubdtype(kept.value.dtype, jnp.floating):
            is_less |= jnp.isnan(kept.value) & ~jnp.isnan(event.value)
        stays = (kept.happened & ~is_less) | ~event.happened
        moves = jnp.concatenate([jnp.zeros_like(stays[..., :1]), ~stays[..., :-1]], axis=-1)

        def put(old: Any, new: Any) -> Any:
            if old.dtype != new.dtype:
                dtype = promoted(old.dtype, new.dtype)
                old, new = old.astype(dtype), new.astype(dtype)
            before = jnp.concatenate([old[..., :1], old[..., :-1]], axis=-1)
            return jnp.where(stays, old, jnp.where(moves, before, new))

        return jax.tree.map(put, kept, event)

    def _kept(self, kept: Kept) -> Kept:
        falling = -kept.value if jnp.issubdtype(kept.value.dtype, jnp.floating) else ~kept.value
        leaves, structure = jax.tree.flatten(kept)
        ordered = jax.lax.sort((~kept.happened, falling, *leaves), dimension=-1, is_stable=True, num_keys=2)
        return jax.tree.unflatten(structure, [leaf[..., : self.k] for leaf in ordered[2:]])
