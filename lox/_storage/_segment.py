"""Which columns the events of a key are in."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._distributions import Distribution, as_json, from_json
from lox._exceptions import LogDataError, StorageError
from lox._keys import impl_of, key_data
from lox._logdict import logdict
from lox._storage._manifest import MANIFEST


def file_name(key: str) -> str:
    """A key as the name of a file, on any file system: what is not a lowercase letter or a digit is escaped."""
    name = re.sub(rb"[^a-z0-9_-]", lambda found: b"%%%02x" % found[0][0], key.encode("utf-8", "surrogatepass")).decode()
    if len(name) > 120:
        name = f"{name[:80]}~{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
    return name or "%"


@dataclasses.dataclass(frozen=True)
class Segment:
    """Events of one key that are alike.

    Attributes:
        stem: What the names of its files begin with.
        number: Which segment of the key it is.
        dtype: The name of the dtype of the values, which NumPy need not know; ``"key<rbg>"`` of the data of keys.
        shape: The shape of a value.
        steps: The dtypes of the counters, by name.
        lanes: The shape of the mask of an event, or None when all batch elements are there.
        distribution: The reduction that made the values, where it was a histogram or quantiles.
    """

    stem: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    steps: tuple[tuple[str, str, tuple[int, ...]], ...]
    lanes: tuple[int, ...] | None
    distribution: Distribution | None = None

    @classmethod
    def of(cls, logs: logdict, key: str) -> Segment:
        """The segment that events of a key belong to, as if it were the first.

        Raises:
            LogDataError: Their dtype, or that of a counter, cannot be saved.
        """
        value = logs.data[key]
        steps = [(name, of[key].dtype, of[key].shape[1:]) for name, of in logs.steps.items() if key in of]
        lanes = logs.mask[key].shape[1:] if key in logs.mask else None
        impl = None if type(value) is np.ndarray else impl_of(value)
        distribution = logs.distributions.get(key)
        return _segment(key, value.dtype, impl, value.shape[1:], tuple(steps), lanes, distribution)

    def columns(self) -> Iterator[tuple[str, str, np.dtype, tuple[int, ...], Callable[[logdict, str], Any]]]:
        """For each column: its part, the name of its file, its dtype on disk, its shape, and its entries in logs."""
        for name, dtype, shape in self.steps:
            file = f"{self.stem}@{file_name(name)}.{self.number}.npy"
            yield name, file, stored_dtype(dtype), shape, functools.partial(_counter, name)
        if self.lanes is not None:
            file = f"{self.stem}@@mask.{self.number}.npy"
            yield "@mask", file, np.dtype(bool), self.lanes, lambda logs, key: logs.mask[key]
        file = f"{self.stem}.{self.number}.npy"
        yield "", file, stored_dtype(self.dtype), self.shape, lambda logs, key: logs[key]

    def to_json(self) -> dict[str, Any]:
        """What the manifest says of it."""
        found = dataclasses.asdict(dataclasses.replace(self, distribution=None))
        del found["distribution"]
        return found if self.distribution is None else found | {"distribution": as_json(self.distribution)}

    @classmethod
    def from_json(cls, key: str, found: Mapping[str, Any]) -> Segment:
        """What the manifest says of a segment of a key."""
        if found["stem"] != file_name(key):
            raise ValueError(f"no file of {key!r} begins with {found['stem']!r}")
        segment = cls(
            found["stem"],
            int(found["number"]),
            found["dtype"],
            tuple(found["shape"]),
            tuple((name, dtype, tuple(shape)) for name, dtype, shape in found["steps"]),
            None if found["lanes"] is None else tuple(found["lanes"]),
            None if found.get("distribution") is None else from_json(found["distribution"]),
        )
        for dtype in (segment.dtype, *(dtype for _, dtype, _ in segment.steps)):
            stored_dtype(dtype)
        return segment


@functools.lru_cache(100_000)  # One is asked for at every event.
def _segment(
    key: str, dtype: Any, impl: str | None, shape: Any, steps: tuple[Any, ...], lanes: Any, distribution: Any
) -> Segment:
    named = tuple(sorted((name, of.name, of_shape) for name, of, of_shape in steps))
    segment = Segment(
        file_name(key), 0, dtype.name if impl is None else f"key<{impl}>", shape, named, lanes, distribution
    )
    for each in (dtype, *(of for _, of, _ in steps)):
        if not is_of_bits(each) and each.kind not in "biufc":
            raise LogDataError(f"{key!r} cannot be saved: {each} is no dtype of numbers, truth values or PRNG keys.")
    return segment


def segments_of(manifest: Mapping[str, Any], path: Path) -> dict[str, list[Segment]]:
    """The segments of each key, by the manifest of the run in a directory.

    Raises:
        StorageError: The manifest is damaged.
    """
    try:
        return {key: [Segment.from_json(key, each) for each in found] for key, found in manifest["columns"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path / MANIFEST} is damaged: {error!r} in its columns.") from error


def _counter(name: str, logs: logdict, key: str) -> Any:
    return logs.steps[name][key]


def is_of_bits(dtype: np.dtype) -> bool:
    """Whether a dtype is not NumPy's own, so that files have its bits as integers of the same size."""
    return dtype.isbuiltin == 2


def stored_dtype(name: str) -> np.dtype:
    """The dtype on disk of a dtype by name."""
    if _impl(name) is not None:
        return np.dtype(np.uint32)
    dtype = jnp.dtype(name)
    return np.dtype(f"u{dtype.itemsize}") if is_of_bits(dtype) else dtype


def as_stored(array: np.ndarray) -> np.ndarray:
    """An array as an array of the dtype on disk."""
    return array.view(f"u{array.dtype.itemsize}") if is_of_bits(array.dtype) else array


def from_stored(array: np.ndarray, name: str) -> np.ndarray:
    """What was stored as an array of this dtype."""
    impl = _impl(name)
    return array.view(jnp.dtype(name)) if impl is None else key_data(array, impl)


def _impl(name: str) -> str | None:
    return name[4:-1] if name.startswith("key<") else None
