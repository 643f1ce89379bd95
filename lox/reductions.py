"""Reductions with parameters, for `reduce=` of `lox.spool`, `lox.tap` and `lox.logdict.reduce`.

The state of a reduction has a fixed size, and states of loops, branches and batch elements merge to that of all events.
Each element of a value is reduced by itself, as by a mean. With `pool=True` the elements of a value are the sample
together, such as the activations of a layer; `pool=n` takes `n` of them, drawn once, the same ones of each event. The
axes of `where=` are pooled too, those of a `vmap` never. (A logdict does not know which axes are of `where=`, and pools
none of them.)

A state that would take more than 64 MiB raises `lox.LogValueError` with the number.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._bins import Histogram, Quantiles
from lox._exceptions import LogValueError
from lox._largest import Largest, Reservoir
from lox._own_reduction import Reduction as Reduction
from lox._reductions import Ewma, Reducer

__all__ = ["Reduction", "ewma", "histogram", "quantiles", "reservoir", "topk"]


def quantiles(qs: float | Sequence[float], relative_error: float = 0.01, *, pool: bool | int = False) -> Reducer[Any]:
    """Return quantiles of the events.

    The quantile `q` of `n` numbers is the number with the index `floor(q * (n - 1))` when they are in order: NumPy's
    method "lower". What is returned differs from it by no more than `relative_error` times its size, whatever the
    numbers are. 0, infinities, and numbers of a dtype with so few digits are exact. NaN does not count.

    A key takes 139 KiB per element of the value (and of the batch) in float32, at the default error, so that a value of
    1,000 elements needs `pool=`; half the error takes twice as much, and 1e-4 is about the least for one number. The
    result takes a pass over all of it: with `window=`, some tenths of a millisecond for each window and element. It is
    NaN where there was no number, and where one bin of the state has counted 2**32 - 1 numbers, which is as far as it
    can count. It has no derivative: `jax.grad` takes it as a constant.

    Args:
        qs: Numbers from 0 to 1, each rounded up to a multiple of `2**-32`. They are the last axis of the result; a
            single number adds no axis.
        relative_error: The largest relative error, at least 1e-6 and less than 1.
        pool: Whether all elements of a value are one sample, or how many of them.

    Returns:
        A reduction for `reduce=`. Its result has a last axis of `len(qs)` quantiles, or none for a single number.

    Raises:
        lox.LogValueError: An argument is not as described.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(xs):
    ...     return jax.lax.map(lambda x: lox.log({"loss": x})["loss"], xs)
    >>> _, logs = lox.spool(f, reduce=lox.reductions.quantiles([0, 0.5, 1]))(jnp.arange(1001.0))
    >>> logs["loss"]
    Array([[   0.,  502., 1004.]], dtype=float32)
    """
    message = f"lox.reductions.quantiles takes a number from 0 to 1 or a sequence of them, got {qs!r}."
    try:
        ndim, numbers = np.ndim(qs), tuple(map(_number, np.asarray(qs).reshape(-1).tolist()))
    except (TypeError, ValueError):
        raise LogValueError(message) from None
    if not numbers or ndim > 1 or not all(0 <= q <= 1 for q in numbers):
        raise LogValueError(message)
    error = _number(relative_error)
    if not 1e-6 <= error < 1:
        raise LogValueError(
            "The relative_error of lox.reductions.quantiles is a number from 1e-6 to less than 1, "
            f"got {relative_error!r}."
        )
    return Quantiles(numbers, error, ndim == 0, _sample("quantiles", pool))


def histogram(edges: Sequence[float], *, pool: bool | int = False) -> Reducer[Any]:
    """Count the events in each bin.

    Bin `i` counts `edges[i - 1] <= x < edges[i]`. The first bin counts what is less than all edges, and the last one
    the rest, so that there is one bin more than there are edges: the last axis of the result, which is uint32. NaN is
    in no bin. A bin that has counted 2**32 - 1 events counts no more.

    Args:
        edges: Numbers in order, each larger than the one before it. At least one is finite.
        pool: Whether all elements of a value are one sample, or how many of them.

    Returns:
        A reduction for `reduce=`. Its result is uint32, with a last axis of `len(edges) + 1` bins.

    Raises:
        lox.LogValueError: An argument is not as described.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(xs):
    ...     return jax.lax.map(lambda x: lox.log({"loss": x})["loss"], xs)
    >>> _, logs = lox.spool(f, reduce=lox.reductions.histogram([0, 1, 10]))(jnp.array([-1.0, 0.0, 0.5, 1.0, 99.0]))
    >>> logs["loss"]
    Array([[1, 2, 1, 1]], dtype=uint32)
    """
    message = (
        "lox.reductions.histogram takes one or more numbers, each larger than the one before it, and not only infinite "
        f"ones, got {edges!r}."
    )
    try:
        numbers = tuple(edge if type(edge) is int else float(edge) for edge in np.asarray(edges).tolist())
        tuple(map(float, numbers))  # Which raises OverflowError for an integer beyond all floats.
    except (TypeError, ValueError, OverflowError):
        raise LogValueError(message) from None
    if not any(map(math.isfinite, numbers)) or not all(map(operator.lt, numbers, numbers[1:])):
        raise LogValueError(message)
    return Histogram(numbers, _sample("histogram", pool))


def topk(k: int, *, pool: bool | int = False) -> Reducer[Any]:
    """Return the `k` largest values of the events, the largest first, and their counters.

    Of equal values the earliest come first; NaN counts as less than all numbers. The values are the last axis of the
    result. All its axes are as those of a batch: the counters, each that of the event that the value is from, have them
    too, and so has the mask, which is False where there were fewer events. The derivative is the true one.

    Args:
        k: How many.
        pool: Whether all elements of a value are one sample, or how many of them.

    Returns:
        A reduction for `reduce=`. Its result has a last axis of `k` values.

    Raises:
        lox.LogValueError: An argument is not as described.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(xs):
    ...     return jax.lax.scan(lambda i, x: (i + 1, lox.log({"loss": x}, step=i)["loss"]), 0, xs)[1]
    >>> _, logs = lox.spool(f, reduce=lox.reductions.topk(2))(jnp.array([3.0, 9.0, 1.0, 7.0]))
    >>> logs["loss"].tolist(), logs.steps["step"]["loss"].tolist()
    ([[9.0, 7.0]], [[1, 3]])
    """
    return Largest(_count("topk", k), _sample("topk", pool))


def reservoir(k: int, key: Any, *, pool: bool | int = False) -> Reducer[Any]:
    """Return a random sample of `k` events, without replacement, and their counters.

    Each event has the same chance. The sample depends on `key` and on the numbers of the events, those that happened
    before them, and on nothing else: it is the same however loops and functions group the events, and in each batch
    element with as many events, and the elements of an event are sampled together. It is in a random order. The result,
    its counters and its mask have the axes that those of `topk` have.

    In functions with rules of their own (`jax.custom_jvp` and the like) it raises `lox.UnsupportedPrimitiveError`, and
    so it does in a `shard_map`, where events of the key were logged before it, as in a loop around it.

    Args:
        k: How many.
        key: An integer of at least 0, or a PRNG key of JAX.
        pool: Whether the elements of all values are one sample, or how many of them.

    Returns:
        A reduction for `reduce=`. Its result has a last axis of `k` events.

    Raises:
        lox.LogValueError: An argument is not as described.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(xs):
    ...     return jax.lax.scan(lambda i, x: (i + 1, lox.log({"loss": x}, step=i)["loss"]), 0, xs)[1]
    >>> _, logs = lox.spool(f, reduce=lox.reductions.reservoir(3, 0))(jnp.arange(1000.0))
    >>> logs["loss"].shape, logs["loss"].tolist() == logs.steps["step"]["loss"].tolist()
    ((1, 3), True)
    """
    return Reservoir(_count("reservoir", k), _sample("reservoir", pool), _seed(key))


def _seed(key: Any) -> tuple[int, ...]:
    message = f"The key of lox.reductions.reservoir is an integer of at least 0 or a PRNG key, got {key!r}."
    if isinstance(key, jax.core.Tracer):
        raise LogValueError(f"{message} It has to be known when the function is traced.")
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool) and key >= 0:
        words = range(max(2, -(-int(key).bit_length() // 32)))
        return tuple(int(key) >> 32 * word & 0xFFFFFFFF for word in reversed(words))
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    if isinstance(key, (jax.Array, np.ndarray)) and key.dtype == jnp.uint32 and key.ndim == 1 and key.size:
        return tuple(map(int, np.asarray(key)))
    raise LogValueError(message)


def ewma(decay: float) -> Reducer[Any]:
    """Return the exponentially weighted moving average after the last event.

    It starts at the first event; each further event `x` makes `decay * average + (1 - decay) * x` of it, in each
    element of the value and of the batch. Its derivative is the true one. Its dtype is that of a mean. An event that
    is not finite stays in it.

    Args:
        decay: The weight of what was before, from 0 to less than 1. The average is mostly that of the last
            `1 / (1 - decay)` events.

    Returns:
        A reduction for `reduce=`. Its result has the shape of the value.

    Raises:
        lox.LogValueError: It is not such a number.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(xs):
    ...     return jax.lax.map(lambda x: lox.log({"loss": x})["loss"], xs)
    >>> _, logs = lox.spool(f, reduce=lox.reductions.ewma(0.5))(jnp.array([8.0, 0.0, 4.0]))
    >>> logs["loss"]
    Array([4.], dtype=float32)
    """
    number = _number(decay)
    if not 0 <= number < 1 or np.float32(number) == 1:
        raise LogValueError(
            f"The decay of lox.reductions.ewma is a number from 0 to less than 1 (in float32), got {decay!r}."
        )
    return Ewma(number)


def _number(value: Any) -> float:
    """The value as a number, or NaN if it is none."""
    try:
        return np.nan if isinstance(value, (bool, np.bool_, str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def _count(function: str, k: Any) -> int:
    """Read how many events a function keeps."""
    if isinstance(k, (int, np.integer)) and not isinstance(k, bool) and k > 0:
        return int(k)
    raise LogValueError(f"lox.reductions.{function} takes a number of at least 1, got {k!r}.")


def _sample(function: str, pool: Any) -> bool | int:
    """Read the keyword `pool` of a function."""
    if isinstance(pool, (bool, np.bool_)):
        return bool(pool)
    if isinstance(pool, (int, np.integer)) and pool > 0:
        return int(pool)
    raise LogValueError(f"pool= of lox.reductions.{function} takes True, False or a number of elements, got {pool!r}.")
