"""Values in forms that programs without JAX know."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import re
import sys
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
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin != 2:  # float8_e5m2 says that it is of the kind "f".
        return array
    if dtypes.issubdtype(array.dtype, np.signedinteger):
        return array.astype(np.int8)
    return array.astype(np.uint8 if dtypes.issubdtype(array.dtype, np.integer) else np.float32)


def plain(value: Any) -> Any:
    """A value as numbers, text, lists and mappings of Python; what has no such form stays as it is.

    A dtype is its name, and a function or class is the name by which other modules import it.

    >>> import jax.numpy as jnp
    >>> plain({"rate": np.float32(0.1), "shape": (2, 3), "dtype": jnp.bfloat16, "activation": jnp.tanh})
    {'rate': 0.1, 'shape': [2, 3], 'dtype': 'bfloat16', 'activation': 'jax.numpy.tanh'}
    """
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (set, frozenset)):  # Whose order is another in each process.
        return sorted((plain(each) for each in value), key=repr)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return value.tolist() if value.dtype.kind in "SUOMm" else shortest(value)
    dtype = dtype_of(value)
    return (_importable_name(value) or value) if dtype is None else dtype.name


def _importable_name(value: Any) -> str | None:
    """The name of a function or class, as pickle finds it; None of other values, and of a lambda or a closure."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (callable(value) and isinstance(module, str) and isinstance(name, str)):
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except (AttributeError, KeyError):
        return None
    return f"{module}.{name}" if found is value else None


def has_address(text: str) -> bool:
    """Say whether a text has a memory address in it, which differs between processes.

    >>> has_address("<function <lambda> at 0x7f1de1ad7ec0>")
    True
    """
    return re.search(r" at 0x[0-9a-f]+", text) is not None


def shortest(array: Any) -> Any:
    """The elements of an array in lists, floats as the shortest decimals that their own dtype tells from others.

    >>> shortest(np.float32(0.1)), shortest(np.float16([0.1, np.inf]))
    (0.1, [0.1, inf])
    """
    array = np.asarray(on_host(array) if isinstance(array, jax.Array) else array)
    if not dtypes.issubdtype(array.dtype, np.floating) or array.dtype.itemsize >= 8:
        return standard(array).tolist()
    with np.errstate(over="ignore"):  # A decimal above the largest number is none of the dtype.
        return np.array([_shortest(number) for number in array.ravel()]).reshape(array.shape).tolist()


def _shortest(number: Any) -> float:
    """The shortest decimal that is this number, of a float dtype, among the numbers of the dtype."""
    wide = float(number)
    texts = (f"{wide:.{digits}g}" for digits in range(1, 10))
    return next((float(text) for text in texts if number.dtype.type(float(text)) == number), wide)


def dtype_of(value: Any) -> np.dtype | None:
    """The dtype that `jnp.float32`, `np.float32` and `np.dtype("float32")` are; None of what is no dtype."""
    if isinstance(value, type) and (issubclass(value, np.generic) or isinstance(vars(value).get("dtype"), np.dtype)):
        with contextlib.suppress(TypeError):  # Such as np.floating is the type of several.
            return np.dtype(value)
    return value if isinstance(value, np.dtype) else None


class Logs(Protocol):
    """The content of a `lox.logdict`."""

    @property
    def data(self) -> Mapping[str, Any]:
        """The events by key."""

    @property
    def steps(self) -> Mapping[str, Mapping[str, Any]]:
        """The counters by name and key."""

    @property
    def mask(self) -> Mapping[str, Any]:
        """The masks of events that happened, by key."""

    @property
    def distributions(self) -> Mapping[str, Any]:
        """The reductions that made the values, by key, where they make distributions."""


@dataclasses.dataclass(frozen=True)
class PlainEvents:
    """The events of one key, as arrays of NumPy.

    The batch axes are those that the counters and the mask have as well, and as many as the caller knows of. Those of
    a key without either cannot be told from the axes of its values otherwise.

    Attributes:
        values: Shape `(events, *batch, *shape)`.
        steps: The counters by name, shape `(events, *batch)`.
        happened: The mask of events that happened, shape `(events, *batch)`.
        impl: The implementation of the PRNG keys whose words the values are.
        distribution: The reduction that made the values, if their last axis is of its bins or quantiles.
    """

    values: np.ndarray
    steps: dict[str, np.ndarray]
    happened: np.ndarray
    impl: str | None
    distribution: Any = None

    @classmethod
    def of(cls, logs: Logs, key: str, batch_ndim: int = 0) -> PlainEvents:
        """Those of a key of logs, which has so many batch axes or more."""
        values, mask = logs.data[key], logs.mask.get(key)
        steps = {name: standard(of[key]) for name, of in logs.steps.items() if key in of}
        with_batch = (np.ndim(array) for array in (*steps.values(), mask) if array is not None)
        plain_values = standard(values)
        shape = plain_values.shape[: max(1 + batch_ndim, *with_batch, 1)]
        happened = np.ones(shape, bool) if mask is None else along(standard(mask), shape)
        steps = {name: along(step, shape) for name, step in steps.items()}
        made_by = logs.distributions.get(key)  # jax.tree.map may have changed the values since.
        is_one = made_by is not None and plain_values.shape[len(shape) :][-1:] == (made_by.size,)
        return cls(plain_values, steps, happened, impl_of(values), made_by if is_one else None)

    @property
    def batch(self) -> tuple[int, ...]:
        """The lengths of the batch axes."""
        return self.happened.shape[1:]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return self.values.shape[self.happened.ndim :]

    def counter(self, name: str) -> np.ndarray:
        """A counter as one number for each event, shape `(events,)`: that of the first batch element
        in which it happened.
        """
        steps = self.steps[name]
        if not self.batch:
            return steps
        if 0 in self.batch:  # It happened in none.
            return np.zeros(len(steps), steps.dtype)
        happened = self.happened.reshape(len(steps), -1)
        return np.take_along_axis(steps.reshape(happened.shape), happened.argmax(1)[:, None], 1)[:, 0]

    def means(self) -> np.ndarray:
        """The mean of each event over the batch elements in which it happened, shape `(events, *shape)`.

        It is NaN where an element is, or where the event happened in none. A batch of one element is that element.
        """
        count, size = len(self.values), math.prod(self.batch)
        values = self.values.reshape(count, size, *self.shape)
        if size == 1:
            return values[:, 0]
        happened = self.happened.reshape(count, size, *(1 for _ in self.shape))
        with np.errstate(all="ignore"):
            return values.sum(1, np.float64, where=happened) / happened.sum(1)

    def counts(self) -> np.ndarray:
        """The counts of each event of histograms, those of all elements and batch elements added up, shape
        `(events, bins)`.
        """
        mask = self.happened.reshape(*self.happened.shape, *(1 for _ in self.shape))
        return self.values.sum(tuple(range(1, self.values.ndim - 1)), where=mask)

    def numbers(self) -> np.ndarray:
        """Each event as one number, shape `(events,)`: the mean of its elements in the batch elements in which it
        happened.

        Complex elements count by their absolute value. Where there are no elements, it is NaN.
        """
        values = real(self.values)
        if values.size == len(values):
            return values.reshape(-1)
        size, axes = math.prod(self.shape), tuple(range(1, self.happened.ndim))
        with np.errstate(all="ignore"):
            of_batch = values.reshape(*self.happened.shape, size).sum(-1, np.float64)
            return of_batch.sum(axes, where=self.happened) / (self.happened.sum(axes) * size)


def real(values: np.ndarray) -> np.ndarray:
    """Complex numbers as their absolute values, and others as they are."""
    return np.abs(values) if values.dtype.kind == "c" else values


def along(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array repeated along further axes, to a shape that begins with its own."""
    if array.shape == shape:
        return array
    return np.broadcast_to(array.reshape(array.shape + (1,) * (len(shape) - array.ndim)), shape)


def steps_of_elements(steps: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """A counter in each batch element, as an array of shape `(events, elements)`, NaN where an event did not happen."""
    return _elements(np.asarray(steps, np.float64), mask, np.nan)


def at_least(steps: np.ndarray, mask: np.ndarray | None, step: int) -> np.ndarray:
    """Say of each event whether its counter is `step` or later in a batch element in which it happened."""
    later = steps >= (step if steps.dtype.kind in "iu" else np.float64(step))
    return np.logical_or.reduce(_elements(later, mask, False), 1)


def _elements(array: np.ndarray, mask: np.ndarray | None, otherwise: Any) -> np.ndarray:
    """An array with one axis for all batch elements, shape `(events, elements)`; `otherwise` where none happened."""
    if mask is not None:
        shape = max(array.shape, mask.shape, key=len)
        array = np.where(along(mask, shape), along(array, shape), otherwise)
    return array.reshape(len(array), math.prod(array.shape[1:]))
