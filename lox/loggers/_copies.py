"""Copies of arrays, which a program may change or donate as soon as they are made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import backends

from lox._arguments import untyped
from lox._keys import impl_of, key_data

COPIED = 4096
"""Up to this size in bytes, a copy on the host takes next to no time, and lets JAX reuse the memory of the array."""


def kept(arrays: Iterable[Any]) -> Callable[[], list[np.ndarray]]:
    """Keep arrays as they are now.

    The call waits neither for the device nor for the host.

    Returns:
        A function that reads the arrays into arrays of NumPy. The logger's thread calls it, since it waits.
    """
    late: list[Any] = []
    copies = [_host_copy(leaf, late) for leaf in arrays]
    if not late:
        return lambda: copies
    copies_of_late = _device_copies(late)

    def read() -> list[np.ndarray]:
        waiting = iter(copies_of_late)
        return [next(waiting)() if copy is None else copy for copy in copies]

    return read


def _host_copy(leaf: Any, late: list[Any]) -> Any:
    """A copy that the program cannot change; None of a leaf that may have to be waited for, which is put in `late`.

    JAX does not write over memory of the CPU to which an array of NumPy refers: what is donated is copied then.
    """
    if leaf.__class__ is not np.ndarray and is_on_host(leaf):
        try:
            array = np.asarray(leaf)
        except jax.errors.JaxRuntimeError:  # Its computation failed, which the logger's thread finds out.
            pass
        else:
            return array if array.nbytes > COPIED else array.copy()
    if not isinstance(leaf, jax.Array):
        return np.array(leaf, subok=True)
    late.append(leaf)
    return None


def is_on_host(leaf: Any) -> bool:
    """Say whether a leaf is an array of NumPy, or one of JAX that is computed and in the memory of the CPU."""
    kind = leaf.__class__
    if kind is np.ndarray:
        return True
    return _is_array_of_numbers(kind) and (_is_one_cpu() or _is_cpu(leaf.sharding)) and leaf.is_ready()


@functools.cache
def _is_array_of_numbers(of: type) -> bool:
    """Say whether a type is that of JAX's arrays of numbers. Arrays of PRNG keys have no `is_ready`."""
    return issubclass(of, jax.Array) and hasattr(of, "is_ready")


@functools.cache
def _is_one_cpu() -> bool:
    """Say whether JAX has one device, a CPU, so that each array is there."""
    return [*backends()] == ["cpu"] and jax.device_count() == 1


@functools.lru_cache
def _is_cpu(sharding: Any) -> bool:
    devices: Any = sharding.device_set
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def _device_copies(leaves: Sequence[Any]) -> list[Callable[[], np.ndarray]]:
    """For each array a function that waits for a copy of it, which is made when the array is there."""
    arrays, impls = list(leaves), [None if isinstance(leaf.dtype, np.dtype) else impl_of(leaf) for leaf in leaves]
    pending: dict[Any, list[int]] = {}
    for place, array in enumerate(arrays):
        if impls[place] is not None:
            with jax.ensure_compile_time_eval():
                array = untyped(array)
        arrays[place] = array if array.is_fully_addressable else array.addressable_data(0)
        pending.setdefault(arrays[place].sharding, []).append(place)
    for places in pending.values():  # One program runs on the devices of one sharding.
        # To look for NaN waits for the result, and NaN may be logged.
        with jax.debug_nans(False), jax.debug_infs(False), jax.ensure_compile_time_eval():
            copies = _copied([arrays[place] for place in places])
        for place, copy in zip(places, copies, strict=True):
            copy.copy_to_host_async()
            arrays[place] = copy
    return [functools.partial(_read, array, impl) for array, impl in zip(arrays, impls, strict=True)]


def _read(array: jax.Array, impl: str | None) -> np.ndarray:
    words = np.asarray(array)
    return words if impl is None else key_data(words, impl)


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return list(map(jnp.copy, arrays))
