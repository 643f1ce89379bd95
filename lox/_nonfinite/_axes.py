"""The batch axes of values: an identity that a search binds to each result, and that `vmap` tells its axes.

Where a program is traced, or runs under `vmap`, its own shapes are seen. The arrays of an operation that is batched
have further axes, at places that JAX alone knows. So each result goes through `axes_p`, whose batching rule notes the
place of the new axis. Its derivative and its transpose are the same identity, so that cotangents are told as well.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from lox import _compat
from lox._compat import _tracebacks

Axes = tuple[int | None, ...]
"""For each `vmap` around, the outermost first, the axis of an array that it has added; None where it added none."""

searching = jax.make_user_context(False)
"""True while results are told their batch axes. It is in the keys of JAX's caches."""

axes_p = jex.core.Primitive("lox_batch_axes")
axes_p.def_impl(lambda value, *, axes: value)
axes_p.def_abstract_eval(lambda value, *, axes: value)
mlir.register_lowering(axes_p, lambda ctx, value, *, axes: [value])
ad.deflinear2(axes_p, lambda cotangent, value, *, axes: [_bind(cotangent, axes)])


def _bind(value: Any, axes: Axes) -> Any:
    return value if isinstance(value, ad.Zero) else axes_p.bind(value, axes=axes)


def _batch(axis_data: Any, values: Sequence[Any], dims: Sequence[Any], *, axes: Axes) -> tuple[Any, Any]:
    del axis_data
    (value,), (dim,) = values, dims
    if dim is None:
        return axes_p.bind(value, axes=(None, *axes)), dim
    inner = (axis if axis is None or axis < dim else axis + 1 for axis in axes)
    return axes_p.bind(value, axes=(dim, *inner)), dim


batching.fancy_primitive_batchers[axes_p] = _batch


_lock = threading.Lock()
_searches = 0
_undo: Callable[[], None] = lambda: None  # noqa: E731


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """The context of a search, in which results are told their batch axes."""
    global _searches, _undo
    _tracebacks.hide_lox()
    with _lock:
        if not _searches:  # Only as long as one goes on: it is one more function in each call of JAX.
            _undo = _compat.observe_bind(_observed)
        _searches += 1
    try:
        with searching(True):
            yield
    finally:
        with _lock:
            _searches -= 1
            if not _searches:
                _undo()


def _observed(bind: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(bind)
    def binding(self: Any, *args: Any, **params: Any) -> Any:
        outs = bind(self, *args, **params)
        if not searching.value or self.name.startswith("lox_"):
            return outs
        return _compat.map_outputs(_told, outs) if self.multiple_results else _told(outs)

    return binding


def _told(value: Any) -> Any:
    """The value, through the identity if it is a tracer of floats."""
    is_traced = isinstance(value, jax.core.Tracer) and not _compat.is_ref(jax.typeof(value))
    return axes_p.bind(value, axes=()) if is_traced and jnp.issubdtype(value.dtype, jnp.inexact) else value
