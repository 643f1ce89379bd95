"""The log effect, the primitive that carries it, and `lox.log`, which binds the primitive.

`lox.log` binds only while a handler is in scope. Whether one is, is a JAX user context, hence part of every
trace and compile cache key: a function that was traced without logs is traced again, once, when a handler first
runs it, and a program without a handler is the program without its log calls.
"""

from __future__ import annotations

import contextvars
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching

from lox import _compat
from lox._events import Destination, Event, Node, Site, depths, events, map_events, masked
from lox._exceptions import LogDataError, LogValueError
from lox._probe import probing

Data = TypeVar("Data")

recording = jax.make_user_context(False)
"""Whether a handler is in scope, so that `lox.log` must bind."""

transforming = jax.make_user_context(False)
"""Whether JAX is differentiating a program in which logs happen. What it caches then serves no other purpose."""


batching_shards: contextvars.ContextVar[tuple[Any, ...]] = contextvars.ContextVar("batching_shards", default=())
"""The traces of `vmap` that are batching a `shard_map`, whose logs have become outputs where they can."""


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
    """What JAX's dead code elimination may remove: logs in a trace that a library only looks at."""


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
        tree: The structure of the nodes and of their destination.
        effect: The effect of the equation.
    """

    __slots__ = ("_hash", "effect", "keys", "tree")

    def __init__(self, tree: Any, nodes: Sequence[Node], to: Destination | None):
        self.tree = tree
        found = list(events(nodes))
        self.keys = tuple(key for event in found for key in event.values)
        self.effect = log_effect if to is None else ordered_tap_effect if to.ordered else tap_effect
        self._hash = hash((tree, self.keys, tuple(event.site for event in found)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._hash == other._hash and self.tree == other.tree

    def __repr__(self) -> str:
        return ", ".join(self.keys)


@log_p.def_effectful_abstract_eval
def _has_effect(*leaves: Any, layout: Layout) -> tuple[list[Any], set[Any]]:
    del leaves
    return [], {layout.effect}


def _batch(
    axis_data: Any, leaves: Sequence[Any], dims: Sequence[Any], *, layout: Layout
) -> tuple[list[Any], list[Any]]:
    nodes, to = jax.tree.unflatten(layout.tree, leaves)
    places, place_to = jax.tree.unflatten(layout.tree, [_Place(dim) for dim in dims])
    if to is not None:  # It is the same for all lanes.
        to = jax.tree.map(lambda leaf, at: at.first(leaf), to, place_to)
    leaves, tree = jax.tree.flatten(nodes)
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
    """Emits nodes whose arrays have batch axes at `dims`.

    The axes of batches follow those of loops, and every value gets one, whether or not it depends on the batch.
    """
    places = depths(jax.tree.unflatten(tree, leaves))
    moved = [
        _compat.matchaxis(axis_data, dim, place, leaf) for leaf, dim, place in zip(leaves, dims, places, strict=True)
    ]
    names = axis_data.spmd_name or ()
    shards = jax.sharding.get_abstract_mesh().manual_axes
    names = tuple(name for name in (names if isinstance(names, tuple) else (names,)) if name in shards)

    outside = any(trace.axis_data is axis_data for trace in batching_shards.get())

    def add_axis(event: Event, depth: int) -> Event:
        split = (names, *event.split) if names or event.split else ()
        return dataclasses.replace(event, lanes=event.lanes + 1, split=split, outside=event.outside + outside)

    emit(map_events(add_axis, jax.tree.unflatten(tree, moved)), to)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, layout: Layout) -> tuple[list[Any], list[Any]]:
    del tangents
    emit(*received(primals, {"layout": layout}))
    return [], []


def _transpose(cotangents: Sequence[Any], *leaves: Any, layout: Layout) -> list[Any]:
    # A value that the transposed program does not have: its log does not happen.
    del cotangents
    known = [_compat.zeros_like_aval(leaf.aval) if ad.is_undefined_primal(leaf) else leaf for leaf in leaves]
    nodes, to = received(known, {"layout": layout})

    def say_why(event: Event, depth: int) -> Event:
        reason = (
            f"The log at {event.site} is of a value that JAX transposes, a tangent in reverse mode or the argument of "
            "a linear function, which never gets a value. Log where it does, use unify=True to get the event with a "
            "mask, or leave it out with argnames= or tags=."
        )
        return dataclasses.replace(event, optional=event.optional or reason)

    emit(masked(map_events(say_why, nodes), jnp.asarray(False)), to)
    return [None] * len(leaves)


batching.fancy_primitive_batchers[log_p] = _batch
ad.primitive_transposes[log_p] = _transpose
ad.primitive_jvps[log_p] = _jvp


def emit(nodes: Sequence[Node], to: Destination | None = None) -> None:
    """Binds the primitive: `nodes` happen now, for whichever handler comes next, or on their way to a tap."""
    if nodes:
        leaves, tree = jax.tree.flatten((tuple(nodes), to))
        with _compat.staged():  # A log of constants happens when the program runs, not when it is traced.
            log_p.bind(*leaves, layout=Layout(tree, nodes, to))


def received(leaves: Sequence[Any], params: Mapping[str, Any]) -> tuple[tuple[Node, ...], Destination | None]:
    """The nodes that an equation of the primitive carries, and where they go when a tap has taken them."""
    return jax.tree.unflatten(params["layout"].tree, leaves)


def log(data: Data, *, tags: str | Iterable[str] = (), prefix: str = "", **steps: Any) -> Data:
    """Logs `data` here, for the handler in scope, and returns it unchanged.

    A handler (`lox.spool`, `lox.keep`, ...) decides what becomes of the log. Without one, nothing happens: no
    operation runs or is traced, and the arguments are not looked at.

    Args:
        data: A mapping from key to a pytree of array-likes of any shape and dtype. Nested mappings and pytrees
            flatten to keys such as ``"grads/w"`` and ``"layers/0"``.
        tags: A name or names by which handlers can select this log.
        prefix: Put before every key.
        **steps: Named scalar counters of the event, such as ``step=i, episode=e``.

    Returns:
        `data`.

    Raises:
        LogDataError: `data`, a key, a leaf or a tag has the wrong type. A `TypeError`.
        LogValueError: Two keys are equal after flattening, or a step is not a scalar. A `ValueError`.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> @lox.spool
    ... def f(x):
    ...     lox.log({"x": x, "stats": {"max": x.max()}}, step=3)
    ...     return 2 * x
    >>> _, logs = f(jnp.arange(3.0))
    >>> sorted(logs), logs["x"].shape
    (['stats/max', 'x'], (1, 3))
    """
    if not recording.value:
        return data
    site = _calling_site(tags)
    if not isinstance(prefix, str):
        raise LogDataError(f"prefix must be a string, got {_describe(prefix)}, at {site}.")
    values = _named_values(data, prefix, site)
    if values:
        counters = {name: _counter(name, value, site) for name, value in steps.items()}
        emit((Event(values, counters, mask=None, anchors=(), site=site),))
    return data


def names(value: str | Iterable[str], what: str, where: str) -> tuple[str, ...]:
    """A name or an iterable of names as a tuple; a bare string is one name."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable):
        raise LogDataError(f"{what} must be a string or an iterable of strings, got {_describe(value)}{where}.")
    found = tuple(value)
    for name in found:
        if not isinstance(name, str):
            raise LogDataError(f"{what} must be strings, got {_describe(name)}{where}.")
    return found


def _calling_site(tags: str | Iterable[str]) -> Site:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lox._"):
        frame = frame.f_back
    code = frame.f_code
    where = f", at {code.co_filename}:{frame.f_lineno} ({code.co_name})"
    return Site(code.co_filename, frame.f_lineno, code.co_name, names(tags, "tags", where))


def _named_values(data: Any, prefix: str, site: Site) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise LogDataError(
            f"lox.log takes a mapping from key to arrays, got {_describe(data)}, at {site}. "
            'Write lox.log({"name": value}).'
        )
    values: dict[str, Any] = {}
    for key, leaf in _flatten(data, "", site):
        name = prefix + key
        if name in values:
            raise LogValueError(f"lox.log got two values for the key {name!r} after flattening, at {site}.")
        values[name] = _array(leaf, f"key {name!r}", site)
    return values


def _flatten(data: Mapping[Any, Any], path: str, site: Site) -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if not isinstance(key, str):
            raise LogDataError(
                f"lox.log takes string keys, got {_describe(key)} under {path or 'the top'!r}, at {site}."
            )
        name = f"{path}{key}"
        if value is None:
            raise LogDataError(f"lox.log got None for key {name!r}, at {site}. Leave the key out instead.")
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{name}/", site)
            continue
        leaves, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda leaf: isinstance(leaf, Mapping))
        for entries, leaf in leaves:
            below = jax.tree_util.keystr(entries, simple=True, separator="/")
            full = f"{name}/{below}" if below else name
            if isinstance(leaf, Mapping):
                yield from _flatten(leaf, f"{full}/", site)
            else:
                yield full, leaf


def _array(value: Any, what: str, site: Site) -> Any:
    array_like = isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
    if not array_like and not hasattr(value, "__jax_array__"):
        raise LogDataError(f"lox.log takes array-likes, got {_describe(value)} for {what}, at {site}.")
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise LogDataError(f"lox.log got {_describe(value)} for {what}, at {site}: {error}") from error
    # A Python scalar is weakly typed; arrays of one key must have one type whatever they were computed from.
    return jax.lax.convert_element_type(array, array.dtype) if jax.typeof(array).weak_type else array


def _counter(name: str, value: Any, site: Site) -> Any:
    counter = _array(value, f"step {name!r}", site)
    if counter.shape != () or not jnp.issubdtype(counter.dtype, np.number):
        raise LogValueError(
            f"The step {name!r} of lox.log must be a scalar number, got {counter.dtype.name}{list(counter.shape)}, "
            f"at {site}."
        )
    return counter


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"
