"""The log effect and the primitive that carries it.

It is bound only while a handler is in scope. Whether one is, is a JAX user context, hence part of every trace and
compile cache key: a function that was traced without logs is traced again, once, when a handler first runs it, and a
program without a handler is the program without its log calls.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from lox import _compat
from lox._events import Destination, Event, Log, Logs, counters, depths, events, map_events, masked
from lox._exceptions import UnsupportedPrimitiveError
from lox._flax_probe import probing
from lox._site import Transposed, Watched, strictest

recording = jax.make_user_context(False)
"""True while a handler is in scope, so that logs must be bound."""

heard = jax.make_user_context(True)
"""True where a handler gets the logs: in the rules of one that returns results, a handler further out."""

in_place = jax.make_user_context(False)
"""True if all handlers in scope act where logs happen, so that logs must stay there."""

transforming = jax.make_user_context(False)
"""True while JAX differentiates a program in which logs happen. What it caches then serves no other purpose."""


watching = jax.make_user_context(None)
"""The operations whose results are marked while a program runs that `lox.watch` watches; None elsewhere.

It is None as well in what JAX, or lox, does with an operation once it is bound, but for functions of the program.
"""


batching_shards: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("batching_shards", default=())
"""The traces of `vmap` that are batching a `shard_map`, whose logs have become outputs where they can."""


ordering: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("ordering", default=())
"""The selections of the taps around that stream logs in their order."""


class LogEffect(_compat.Effect):
    """The effect of logging. It marks every jaxpr that a log happens in."""

    def __str__(self) -> str:
        return "Log"


class TapEffect(LogEffect):
    """The effect of logs that a tap has taken, and that are on their way to the host."""

    def __str__(self) -> str:
        return "Tap"


class OrderedTapEffect(TapEffect):
    """The same when they must arrive in order."""

    def __str__(self) -> str:
        return "OrderedTap"


class _DeadCodeType(type):
    def __instancecheck__(cls, effect: Any) -> bool:
        return isinstance(effect, LogEffect) and not transforming.value and probing()


class _DeadLogEffect(metaclass=_DeadCodeType):
    """The effect that JAX's dead code elimination may remove: logs in a trace that a library only looks at."""


log_effect, tap_effect, ordered_tap_effect = LogEffect(), TapEffect(), OrderedTapEffect()
_compat.allow_effect(LogEffect, _DeadLogEffect)
_compat.order_effect(OrderedTapEffect)


def without_logs(effects: Iterable[Any]) -> frozenset[Any]:
    """The effects that are not of logs."""
    return frozenset(effect for effect in effects if not isinstance(effect, LogEffect))


log_p = jex.core.Primitive("lox_log")
log_p.multiple_results = True


class Layout:
    """The structure of what an equation of the primitive carries, as a parameter of it.

    A tree of JAX hashes by its shape alone; in JAX's caches, which look parameters up, all logs would be neighbours.

    Attributes:
        tree: The structure of the logs and of their destination.
        effect: The effect of the equation.
    """

    __slots__ = ("__weakref__", "_hash", "effect", "keys", "tree")

    def __init__(self, tree: Any, logs: Sequence[Log], to: Destination | None):
        self.tree = tree
        found = list(events(logs))
        self.keys = tuple(key for event in found for key in event.values)
        self.effect = log_effect if to is None else ordered_tap_effect if to.ordered else tap_effect
        self._hash = hash((tree, self.keys, tuple(event.site for event in found)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._hash == other._hash and self.tree == other.tree

    def __repr__(self) -> str:
        return ", ".join(self.keys)


_compat.cache_weakly(Layout)


@log_p.def_effectful_abstract_eval
def _has_effect(*leaves: Any, layout: Layout) -> tuple[list[Any], set[Any]]:
    del leaves
    return [], {layout.effect}


def _batch(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, layout: Layout
) -> tuple[list[Any], list[Any]]:
    logs, to = jax.tree.unflatten(layout.tree, leaves)
    places, place_to = jax.tree.unflatten(layout.tree, [_Place(dim) for dim in dims])
    if to is not None:  # It is the same for all batch elements.
        to = jax.tree.map(lambda leaf, at: at.first(leaf), to, place_to)
    leaves, tree = jax.tree.flatten(logs)
    emit_batched(axis_data, leaves, [place.dim for place in jax.tree.leaves(places)], tree, to)
    return [], []


@dataclasses.dataclass(frozen=True)
class _Place:
    """A batch axis, or None, as a leaf of a tree."""

    dim: int | None

    def first(self, leaf: Any) -> Any:
        return leaf if self.dim is None else jax.lax.index_in_dim(leaf, 0, self.dim, keepdims=False)


def emit_batched(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], tree: Any, to: Destination | None = None
) -> None:
    """Emits logs whose arrays have batch axes at `dims`."""
    emit(with_batch_axis(axis_data, leaves, dims, tree, to), to)


def with_batch_axis(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], tree: Any, to: Destination | None = None
) -> Logs:
    """Return logs whose arrays have batch axes at `dims`, with the axis where that of a batch belongs.

    The axes of batches follow those of loops, and every value gets one, whether or not it depends on the batch. A
    counter that does not, as most do not, stays without: it is copied where the loops around are over.
    """
    names = axis_data.spmd_name or ()
    shards = jax.sharding.get_abstract_mesh().manual_axes
    names = tuple(name for name in (names if isinstance(names, tuple) else (names,)) if name in shards)
    logs = jax.tree.unflatten(tree, leaves)

    def move(leaf: Any, dim: int | None, place: int, batch_ndim: int | None) -> Any:
        has_axes = batch_ndim is None or jnp.ndim(leaf) - (dim is not None) > place
        if dim is None and batch_ndim is not None and not names:  # A loop need not stack anew what it counts with.
            return jax.lax.expand_dims(leaf, (place,)) if has_axes else leaf
        leaf = _compat.with_axis(axis_data, dim, place, leaf)
        return leaf if has_axes else jax.lax.expand_dims(leaf, range(place + 1, place + 1 + (batch_ndim or 0)))

    moved = list(map(move, leaves, dims, depths(logs), counters(logs)))
    if to is not None and names:
        site = next(events(jax.tree.unflatten(tree, leaves))).site
        raise UnsupportedPrimitiveError(
            f"The log at {site} is sent from inside a shard_map under vmap with spmd_axis_name=, which splits the "
            "batch over shards: lox.tap, or a logger, does not know the others' batch elements there. Apply it outside "
            "of the vmap, as in tap(vmap(f, spmd_axis_name=...)), or use lox.spool inside."
        )
    if shards:
        _compat.need(_compat.Feature.VMAPPED_SHARDS)
    is_outer = any(trace.axis_data is axis_data for trace in batching_shards.get())

    def add_axis(event: Event, depth: int) -> Event:
        spmd_axes = (names, *event.spmd_axes) if names or event.spmd_axes else ()
        return dataclasses.replace(
            event,
            batch_ndim=event.batch_ndim + 1,
            spmd_axes=spmd_axes,
            outer_batch_ndim=event.outer_batch_ndim + is_outer,
        )

    return map_events(add_axis, jax.tree.unflatten(tree, moved))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, layout: Layout) -> tuple[list[Any], list[Any]]:
    del tangents
    emit(*received(primals, {"layout": layout}))
    return [], []


def _transpose(cotangents: Sequence[Any], *leaves: Any, layout: Layout) -> list[Any]:
    # A value that the transposed program does not have: its log does not happen, and a point is not there.
    del cotangents
    known = [_compat.zeros_like_aval(leaf.aval) if ad.is_undefined_primal(leaf) else leaf for leaf in leaves]
    logs, to = received(known, {"layout": layout})

    def say_why(event: Event, depth: int) -> Event | None:
        if isinstance(event.optional, Watched):
            return None
        return dataclasses.replace(event, optional=strictest((event.optional, Transposed())))

    emit(masked(map_events(say_why, logs), jnp.asarray(False)), to)
    return [None] * len(leaves)


def _jet(primals: Sequence[Any], series: Sequence[Any], *, layout: Layout) -> tuple[list[Any], list[Any]]:
    del series
    emit(*received(primals, {"layout": layout}))
    return [], []


batching.fancy_primitive_batchers[log_p] = _batch
ad.primitive_transposes[log_p] = _transpose
ad.primitive_jvps[log_p] = _jvp
_compat.add_jet_rule(log_p, _jet)


class Listener(jax.core.Trace):
    """A trace that hears of logs."""

    __slots__ = ()

    def hear(self, logs: Logs, to: Destination | None) -> None:
        """Does what an equation of the primitive with these logs means."""
        raise NotImplementedError


def emit(logs: Sequence[Log], to: Destination | None = None) -> None:
    """Binds the primitive: `logs` happen now, for whichever handler comes next, or on their way to a tap."""
    if not logs:
        return
    if watching.value is not None:  # What a handler computes of the logs is not of the program.
        with watching(None):
            return emit(logs, to)
    trace = _compat.current_trace()
    if isinstance(trace, Listener):  # What binding leads to, at once.
        trace.hear(tuple(logs), to)
    else:
        if _compat.lacks(_compat.Feature.FLAX_SCAN) and probing():
            _compat.need(_compat.Feature.FLAX_SCAN)
        leaves, tree = jax.tree.flatten((tuple(logs), to))
        with _compat.staged(leaves):  # A log of constants happens when the program runs, not when it is traced.
            log_p.bind(*leaves, layout=Layout(tree, logs, to))


def received(leaves: Sequence[Any], params: Mapping[str, Any]) -> tuple[Logs, Destination | None]:
    """The logs that an equation of the primitive carries, and where they go when a tap has taken them."""
    return jax.tree.unflatten(params["layout"].tree, list(map(as_array, leaves)))


def as_array(value: Any) -> Any:
    """A value of a program as an array: literals may be numbers of Python, or of JAX, without attributes of arrays."""
    if hasattr(value, "ndim") or not isinstance(value, bool | int | float | complex):
        return value
    return np.asarray(value, jax.typeof(value).dtype)
