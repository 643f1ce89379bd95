"""The arrays of a table, and the files that hold them."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from lox._distributions import Distribution, as_json, from_json
from lox._exceptions import LogDataError
from lox._keys import impl_of
from lox._logdict import logdict
from lox._storage._devices import is_of_device
from lox._storage._dtypes import as_stored, can_be_stored, from_stored, name_of, stored_dtype
from lox._timeline import Timeline, merged

SMALL = 64
"""Values of fewer bytes are small."""

APART = 8
"""So many keys with small values of one dtype and shape have a file each. Those of more keys are side by side."""

TOGETHER = 512
"""So many keys are side by side in one file at most."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One array of a timeline.

    Attributes:
        kind: Its role: "value", "step" or "mask".
        name: The key, or the name of the counter.
        dtype: The name of the dtype, as `name_of` makes it.
        shape: The shape of one entry.
        distribution: The reduction that made the values, where it was a histogram or quantiles.
    """

    kind: Literal["value", "step", "mask"]
    name: str
    dtype: str
    shape: tuple[int, ...]
    distribution: Distribution | None = None

    def of(self, timeline: Timeline) -> Any:
        """This array of a timeline."""
        if self.kind == "mask":
            return timeline.mask
        return (timeline.values if self.kind == "value" else timeline.steps)[self.name]

    def to_json(self) -> list[Any]:
        """Return its entry in the manifest."""
        found: list[Any] = [self.kind, self.name, self.dtype, self.shape]
        return found if self.distribution is None else [*found, as_json(self.distribution)]

    @classmethod
    def from_json(cls, found: Any) -> Part:
        """Read its entry in the manifest.

        Raises:
            KeyError: It is no such entry.
            TypeError: As well.
            ValueError: As well.
        """
        kind, name, dtype, shape, *distribution = found
        stored_dtype(dtype)
        if kind not in ("value", "step", "mask") or not isinstance(name, str):
            raise ValueError(f"{found!r} is no array")
        if not all(type(length) is int and length >= 0 for length in shape):
            raise ValueError(f"{shape!r} is no shape")
        return cls(kind, name, dtype, tuple(shape), *map(from_json, distribution))


@dataclasses.dataclass(frozen=True)
class File:
    """The content of one file of a table: an array, or several of one dtype and shape, side by side.

    Attributes:
        name: The name of the file.
        parts: The arrays.
    """

    name: str
    parts: tuple[Part, ...]

    @property
    def dtype(self) -> np.dtype:
        """The dtype on disk."""
        return stored_dtype(self.parts[0].dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one entry on disk."""
        shape = self.parts[0].shape
        return shape if len(self.parts) == 1 else (len(self.parts), *shape)

    def entries(self, timeline: Timeline) -> np.ndarray:
        """Return its entries for a timeline."""
        arrays = [as_stored(np.asarray(part.of(timeline))) for part in self.parts]
        return arrays[0] if len(arrays) == 1 else np.stack(arrays, 1)

    def arrays(self, entries: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
        """Yield its arrays, from its entries."""
        for place, part in enumerate(self.parts):
            yield part, from_stored(entries if len(self.parts) == 1 else entries[:, place], part.dtype)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The arrays of a table: those of its counters, its mask, and its keys.

    Attributes:
        parts: The arrays.
    """

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, timeline: Timeline) -> Layout:
        """Make the layout of the events of a timeline, of arrays of NumPy.

        Raises:
            LogDataError: There are no files of the dtype of a key, or of a counter.
        """
        made = timeline.distributions
        return _layout(
            tuple((name, array.dtype, array.shape[1:]) for name, array in timeline.steps.items()),
            None if timeline.mask is None else timeline.mask.shape[1:],
            tuple((key, *_kind(array), made.get(key)) for key, array in timeline.values.items()),
        )

    def fits(self, timeline: Timeline) -> bool:
        """Say whether it is the layout of a timeline's events. It looks at the arrays only, unlike `of`."""
        steps, mask, values = self._dtypes
        if len(values) != len(timeline.values) or len(steps) != len(timeline.steps):
            return False
        if timeline.distributions or mask != (None if timeline.mask is None else timeline.mask.shape[1:]):
            return False
        for dtypes, arrays in ((steps, timeline.steps), (values, timeline.values)):
            for name, dtype, shape in dtypes:
                array = arrays.get(name)
                if type(array) is not np.ndarray or array.dtype is not dtype or array.shape[1:] != shape:
                    return False
        return True

    @functools.cached_property
    def _dtypes(self) -> tuple[Any, ...]:
        """Types that `fits` compares: names, dtypes and shapes of counters and of values, and the shape of the mask."""
        steps, values = (
            [(part.name, _native(part), part.shape) for part in self.parts if part.kind == kind]
            for kind in ("step", "value")
        )
        return steps, None if self.mask is None else self.mask.shape, values

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """Its keys."""
        return frozenset(part.name for part in self.parts if part.kind == "value")

    @functools.cached_property
    def mask(self) -> Part | None:
        """Its mask, if it has one."""
        return next((part for part in self.parts if part.kind == "mask"), None)

    @property
    def without_mask(self) -> Layout:
        """The layout of such events where all happened."""
        return Layout(tuple(part for part in self.parts if part.kind != "mask"))

    @functools.cached_property
    def files(self) -> tuple[File, ...]:
        """Its files, each with its arrays."""
        alike: dict[Any, list[Part]] = {}
        for part in self.parts:
            dtype = stored_dtype(part.dtype)
            is_small = part.kind == "value" and math.prod(part.shape) * dtype.itemsize < SMALL
            alike.setdefault((dtype, part.shape) if is_small else part, []).append(part)
        together = [tuple(parts) for parts in alike.values() if len(parts) > APART]
        blocks = [parts[start : start + TOGETHER] for parts in together for start in range(0, len(parts), TOGETHER)]
        apart = [part for parts in alike.values() if len(parts) <= APART for part in parts]
        return (
            *(File(_file_of(part), (part,)) for part in apart),
            *(File(f"@@values{place}.npy", parts) for place, parts in enumerate(blocks)),
        )

    def timeline(self, entries: Mapping[str, np.ndarray]) -> Timeline:
        """The events in the entries of its files, by their names."""
        found = dict(pair for file in self.files for pair in file.arrays(entries[file.name]))
        of: dict[str, dict[str, Any]] = {"step": {}, "mask": {}, "value": {}}
        for part in self.parts:
            of[part.kind][part.name] = found[part]
        made = {part.name: part.distribution for part in self.parts if part.distribution is not None}
        return Timeline(of["value"], of["step"], of["mask"].get(""), distributions=made)

    def to_json(self) -> list[Any]:
        """Return its entry in the manifest."""
        return [part.to_json() for part in self.parts]

    @classmethod
    def from_json(cls, found: Any) -> Layout:
        """Read its entry in the manifest.

        Raises:
            KeyError: It is no such entry.
            TypeError: As well.
            ValueError: As well.
        """
        layout = cls(tuple(map(Part.from_json, found)))
        if len({(part.kind, part.name) for part in layout.parts}) < len(layout.parts) or not layout.keys:
            raise ValueError("no table has these arrays")
        return layout


@functools.lru_cache(10_000)  # One is asked for at every event.
def _layout(steps: tuple[Any, ...], batch: tuple[int, ...] | None, values: tuple[Any, ...]) -> Layout:
    """The layout of these arrays, in an order that depends on their names alone."""
    key = min(name for name, *_ in values)
    for name, dtype in [(key, dtype) for _, dtype, *_ in steps] + [(name, dtype) for name, dtype, *_ in values]:
        if not can_be_stored(dtype):
            raise LogDataError(f"{name!r} cannot be saved: {dtype} is no dtype of numbers, truth values or PRNG keys.")
    counters = (Part("step", name, dtype.name, shape) for name, dtype, shape in sorted(steps, key=_name))
    mask = () if batch is None else (Part("mask", "", "bool", batch),)
    events = (
        Part("value", key, name_of(dtype, impl), shape, made)
        for key, dtype, impl, shape, made in sorted(values, key=_name)
    )
    return Layout((*counters, *mask, *events))


def _kind(array: Any) -> tuple[np.dtype, str | None, tuple[int, ...]]:
    return array.dtype, None if type(array) is np.ndarray else impl_of(array), array.shape[1:]


def _native(part: Part) -> np.dtype | None:
    """The dtype of an array; None where `Layout.fits` does not know it."""
    return None if part.distribution is not None or part.dtype.startswith("key<") else np.dtype(jnp.dtype(part.dtype))


def _name(found: tuple[Any, ...]) -> str:
    return found[0]


def storable(logs: logdict) -> tuple[list[tuple[Layout, Timeline]], list[LogDataError]]:
    """Return the logs that can be saved, in as few tables as can be, and errors for the others."""
    found, errors = [], []
    for timeline in merged(logs._timelines):
        try:
            found.append((Layout.of(timeline), timeline))
            continue
        except LogDataError:
            keys = set()
        for key in timeline.values:
            try:
                Layout.of(timeline.only({key}))
                keys.add(key)
            except LogDataError as error:
                errors.append(error)
        if keys:
            part = timeline.only(keys)
            found.append((Layout.of(part), part))
    return found, errors


def file_name(name: str) -> str:
    """A name as that of a file, on any file system: what is not a lowercase letter or a digit is escaped."""
    found = re.sub(rb"[^a-z0-9_-]", lambda byte: b"%%%02x" % byte[0][0], name.encode("utf-8", "surrogatepass")).decode()
    if len(found) > 120:
        found = f"{found[:80]}~{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
    if is_of_device(found):
        found = f"%{ord(found[0]):02x}{found[1:]}"
    return found or "%"


def _file_of(part: Part) -> str:
    """The name of the file of an array that is in one alone. No name of a key or counter has an @ in it."""
    if part.kind == "mask":
        return "@@mask.npy"
    return f"{'@' if part.kind == 'step' else ''}{file_name(part.name)}.npy"
