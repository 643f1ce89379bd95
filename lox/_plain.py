"""Values as programs know them that know no JAX."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax import dtypes

from lox._keys import impl_of, on_host


def standard(array: Any) -> np.ndarray:
    """An array in a dtype of NumPy: small floats as float32, small integers as eight bits, typed keys as their words.

    >>> import jax.numpy as jnp
    >>> standard(jnp.array([0.5, 2], jnp.bfloat16))
    array([0.5, 2. ], dtype=float32)
    """
    array = np.asarray(on_host(array) if isinstance(array, jax.Array) else array)
    if array.dtype.kind in "biufc":
        return array
    if dtypes.issubdtype(array.dtype, np.signedinteger):
        return array.astype(np.int8)
    return array.astype(np.uint8 if dtypes.issubdtype(array.dtype, np.integer) else np.float32)


def plain(value: Any) -> Any:
    """An array as numbers and lists of Python; what is none stays as it is."""
    return standard(value).tolist() if hasattr(value, "dtype") else value


class Logs(Protocol):
    """What a `lox.logdict` holds."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The events by key."""

    @property
    def steps(self) -> Mapping[str, Mapping[str, Any]]:
        """The counters by name and key."""

    @property
    def mask(self) -> Mapping[str, Any]:
        """Which events happened, by key."""


@dataclasses.dataclass(frozen=True)
class PlainEvents:
    """The events of one key, as arrays of NumPy.

    The axes of batches are those that the counters and the mask have as well. A key without either has none that can
    be told from those of its values.

    Attributes:
        values: Shape `(events, *lanes, *shape)`.
        steps: The counters by name, shape `(events, *lanes)`.
        happened: Which events happened, shape `(events, *lanes)`.
        impl: The implementation of the PRNG keys whose words the values are.
    """

    values: np.ndarray
    steps: dict[str, np.ndarray]
    happened: np.ndarray
    impl: str | None

    @classmethod
    def of(cls, logs: Logs, key: str) -> PlainEvents:
        """Those of a key of logs."""
        values, mask = logs.data[key], logs.mask.get(key)
        steps = {name: standard(of[key]) for name, of in logs.steps.items() if key in of}
        lanes = max([np.ndim(array) for array in (*steps.values(), mask) if array is not None], default=1)
        plain_values = standard(values)
        shape = plain_values.shape[:lanes]
        happened = np.ones(shape, bool) if mask is None else along(standard(mask), shape)
        return cls(plain_values, {name: along(step, shape) for name, step in steps.items()}, happened, impl_of(values))

    @property
    def lanes(self) -> tuple[int, ...]:
        """The lengths of the axes of batches."""
        return self.happened.shape[1:]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values.shape[self.happened.ndim :]


def along(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array repeated along further axes, to a shape that begins with its own."""
    return np.broadcast_to(array.reshape(array.shape + (1,) * (len(shape) - array.ndim)), shape)
