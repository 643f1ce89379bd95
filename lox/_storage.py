"""Runs on disk: a directory each, with a column of `.npy` for each key and counter, and a manifest.

    RUN/manifest.json       what the run is, and of each column its key, its part and its logical dtype
    RUN/COLUMN.SEGMENT.npy  the events, appended

A column is written data first and header after, so that every file is a complete array at any moment. What a killed
process left behind the end of the array is overwritten by the next event. Readers cut the columns of a key to the
shortest of them, which are those of events that were written in full.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._arguments import untyped
from lox._exceptions import LogDataError, LogValueError, StorageError
from lox._logdict import logdict

MANIFEST = "manifest.json"
FORMAT = 1
HEADER = 128
"""The length of the header of a column: a multiple of 64, with room for any count."""


# -- names ---------------------------------------------------------------------------------------------------------


def file_name(key: str) -> str:
    """A key as the name of a file, on any file system: what is not a lowercase letter or a digit is escaped."""
    name = re.sub(rb"[^a-z0-9_-]", lambda found: b"%%%02x" % found[0][0], key.encode("utf-8", "surrogatepass")).decode()
    if len(name) > 120:
        name = f"{name[:80]}~{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"
    return name or "%"


# -- columns -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Column:
    """One array that grows.

    Attributes:
        path: Its file.
        dtype: The dtype on disk.
        shape: The shape of one entry.
        count: How many entries there are.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    count: int

    @classmethod
    def create(cls, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Column:
        """A new column without entries."""
        column = cls(path, dtype, shape, 0)
        with open(path, "xb") as file:
            file.write(column._header())
        return column

    @classmethod
    def open(cls, path: Path) -> Column:
        """A column that is there."""
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise StorageError(f"{path} is no column of lox: it is of version {version} of the format of NumPy.")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return cls(path, dtype, shape[1:], shape[0])

    def append(self, entries: np.ndarray) -> None:
        """Adds entries, of shape `(n, *shape)`."""
        data = np.ascontiguousarray(entries, self.dtype)
        # Without a buffer, each write is one call of the system: the header is there as a whole or not at all.
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(HEADER + self.count * self._entry_bytes())
            _write(file, data.reshape(-1).view(np.uint8).data)
            self.count += len(data)
            file.seek(0)
            _write(file, self._header())

    def _entry_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def _header(self) -> bytes:
        shape = (self.count, *self.shape)
        text = f"{{'descr': {np.lib.format.dtype_to_descr(self.dtype)!r}, 'fortran_order': False, 'shape': {shape}, }}"
        length = HEADER - 10
        if len(text) >= length:
            raise LogValueError(f"The shape {shape} has too many axes to be saved.")
        return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def _write(file: Any, data: Any) -> None:
    written = 0
    while written < len(data):
        written += file.write(data[written:])


# -- the events of one key -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Segment:
    """Events of one key that are alike.

    Attributes:
        stem: What the names of its files begin with.
        number: Which segment of the key it is.
        dtype: The name of the dtype of the values, which NumPy need not know.
        shape: The shape of a value.
        steps: The dtypes of the counters, by name.
        lanes: The shape of the mask of an event, or None when all lanes are there.
    """

    stem: str
    number: int
    dtype: str
    shape: tuple[int, ...]
    steps: tuple[tuple[str, str, tuple[int, ...]], ...]
    lanes: tuple[int, ...] | None

    @classmethod
    def of(cls, logs: logdict, key: str) -> Segment:
        """The segment that events of a key belong to, as if it were the first."""
        value = logs.data[key]
        steps = [(name, of[key].dtype, of[key].shape[1:]) for name, of in logs.steps.items() if key in of]
        lanes = logs.mask[key].shape[1:] if key in logs.mask else None
        return _segment(key, value.dtype, value.shape[1:], tuple(steps), lanes)

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
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Segment:
        """What the manifest says of it."""
        return cls(
            found["stem"],
            found["number"],
            found["dtype"],
            tuple(found["shape"]),
            tuple((name, dtype, tuple(shape)) for name, dtype, shape in found["steps"]),
            None if found["lanes"] is None else tuple(found["lanes"]),
        )


@functools.lru_cache(100_000)  # One is asked for at every event.
def _segment(key: str, dtype: Any, shape: Any, steps: tuple[Any, ...], lanes: Any) -> Segment:
    named = tuple(sorted((name, of.name, of_shape) for name, of, of_shape in steps))
    return Segment(file_name(key), 0, dtype.name, shape, named, lanes)


def _counter(name: str, logs: logdict, key: str) -> Any:
    return logs.steps[name][key]


def stored_dtype(name: str) -> np.dtype:
    """The dtype on disk of a dtype by name: that of NumPy, or for those it does not know, bits of the same size."""
    dtype = jnp.dtype(name)
    if dtype.kind in "biufc":
        return dtype
    return np.dtype(f"u{dtype.itemsize}")


# -- writing -------------------------------------------------------------------------------------------------------


class RunWriter:
    """Appends to one run.

    Args:
        path: The directory of the run. It is made, or continued.
        key: The words of the PRNG key that the run is of.
        config: What describes it.
        must_be_new: Whether it is an error that the run exists.

    Raises:
        StorageError: The run exists and must not; another process writes it; or the directory is no run.
    """

    def __init__(self, path: Path, key: Sequence[int], config: Mapping[str, Any], must_be_new: bool = False):
        self.path = path
        self._columns: dict[tuple[str, int], list[Column]] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._owner = _own(path)
        try:
            manifest = read_manifest(path) if (path / MANIFEST).exists() else None
            if manifest is not None and must_be_new:
                raise StorageError(f"{path} is a run already. Give it another key or path, or continue it.")
            self._manifest = manifest or {"format": FORMAT, "versions": _versions(), "key": list(key), "config": {}}
            self._manifest["config"].update({name: _to_json(value) for name, value in config.items()})
            self._segments = {
                name: [Segment.from_json(each) for each in segments]
                for name, segments in self._manifest.get("columns", {}).items()
            }
            self._write_manifest()
        except BaseException:
            self.close()
            raise

    def describe(self, config: Mapping[str, Any]) -> None:
        """Adds to what describes the run."""
        new = self._manifest["config"] | {name: _to_json(value) for name, value in config.items()}
        if new != self._manifest["config"]:
            self._manifest["config"] = new
            self._write_manifest()

    def append(self, parts: Sequence[logdict]) -> None:
        """Adds logs, each with at least one event of each of its keys, of arrays of NumPy."""
        batches: dict[str, list[tuple[Segment, list[logdict]]]] = {}
        for logs in parts:
            for key in logs.data:
                runs = batches.setdefault(key, [])
                segment = Segment.of(logs, key)
                if runs and (runs[-1][0] is segment or runs[-1][0] == segment):
                    runs[-1][1].append(logs)
                else:
                    runs.append((segment, [logs]))
        placed = [
            (key, self._placed(key, segment), having) for key, runs in batches.items() for segment, having in runs
        ]
        if self._changed:
            self._write_manifest()
        for key, segment, having in placed:
            self._append(key, segment, having)

    _changed = False

    def _placed(self, key: str, like: Segment) -> Segment:
        """The segment for events like these: the last one, or a new one."""
        known = self._segments.setdefault(key, [])
        if known and dataclasses.replace(known[-1], number=0, stem=like.stem) == like:
            return known[-1]
        segment = dataclasses.replace(like, number=len(known))
        known.append(segment)
        self._changed = True
        return segment

    def _append(self, key: str, segment: Segment, parts: Sequence[logdict]) -> None:
        columns = self._columns.get((key, segment.number))
        if columns is None:
            columns = self._columns[key, segment.number] = self._opened(segment)
        count = columns[0].count
        try:
            for column, (_, _, dtype, _, entries) in zip(columns, segment.columns(), strict=True):
                arrays = [np.asarray(entries(logs, key)) for logs in parts]
                array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
                column.append(array if array.dtype == dtype else array.view(dtype))
        except BaseException:
            for column in columns:  # What was not written in full was not written.
                column.count = count
            raise

    def _opened(self, segment: Segment) -> list[Column]:
        columns = []
        for _, file, dtype, shape, _ in segment.columns():
            path = self.path / file
            columns.append(Column.open(path) if path.exists() else Column.create(path, dtype, shape))
        count = min(column.count for column in columns)
        for column in columns:
            column.count = count
        return columns

    def _write_manifest(self) -> None:
        self._manifest["columns"] = {
            key: [segment.to_json() for segment in segments] for key, segments in self._segments.items()
        }
        new = self.path / f"{MANIFEST}.{uuid.uuid4().hex}"
        try:
            new.write_text(json.dumps(self._manifest, indent=1))
            os.replace(new, self.path / MANIFEST)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        self._changed = False

    def close(self) -> None:
        """Lets another process write the run."""
        if _owner(self.path) == self._owner:
            (self.path / OWNER).unlink(missing_ok=True)


OWNER = "owner.json"


def _own(path: Path) -> dict[str, Any]:
    """Claims a run for this process; a claim of a process that is gone does not count."""
    claim = {"process": os.getpid(), "host": socket.gethostname(), "id": uuid.uuid4().hex}
    new = path / f"{OWNER}.{claim['id']}"
    new.write_text(json.dumps(claim))
    try:
        for _ in range(2):
            try:
                os.link(new, path / OWNER)  # Unlike a rename, it fails when there is one.
                return claim
            except FileExistsError:
                other = _owner(path)
                if other is not None and _lives(other):
                    raise StorageError(
                        f"{path} is written by process {other['process']} on {other['host']}. Close that logger, or "
                        f"give this run another key or path. If it is gone, delete {path / OWNER}."
                    ) from None
                (path / OWNER).unlink(missing_ok=True)
    finally:
        new.unlink(missing_ok=True)
    raise StorageError(f"{path} was claimed by another process just now.")


def _owner(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / OWNER).read_text())
    except (OSError, ValueError):
        return None


def _lives(owner: Mapping[str, Any]) -> bool:
    if owner.get("host") != socket.gethostname():
        return True  # Nobody here can tell.
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _versions() -> dict[str, str]:
    versions = {}
    for name, package in (("lox", "jax-lox"), ("jax", "jax"), ("numpy", "numpy")):
        try:
            versions[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # It runs from a checkout.
            versions[name] = "unknown"
    return versions


def _to_json(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        value = np.asarray(value).astype(object).tolist() if np.asarray(value).dtype.kind == "V" else np.asarray(value)
        value = value.tolist() if isinstance(value, np.ndarray) else value
    return str(value) if isinstance(value, complex) else value


# -- reading -------------------------------------------------------------------------------------------------------


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        StorageError: There is none, or it is damaged, or of a later format.
    """
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text())
    except FileNotFoundError:
        raise StorageError(f"{path} is no run of lox: it has no {MANIFEST}.") from None
    except ValueError as error:
        raise StorageError(f"{file} is damaged: {error}. The columns beside it are arrays of NumPy.") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("columns"), dict):
        raise StorageError(f"{file} is no manifest of lox.")
    if manifest.get("format", 0) > FORMAT:
        raise StorageError(f"{file} is of format {manifest['format']}, and this lox reads up to {FORMAT}.")
    return manifest


def runs(path: str | Path) -> dict[str, Path]:
    """The runs in a directory, by name; the directory itself when it is one."""
    path = Path(path)
    if (path / MANIFEST).exists():
        return {path.name: path}
    if not path.is_dir():
        raise StorageError(f"{path} is no directory of runs.")
    return {found.parent.relative_to(path).as_posix(): found.parent for found in sorted(path.rglob(MANIFEST))}


def read_run(path: Path) -> logdict:
    """The logs of one run, mapped from disk where a key has one segment."""
    data: dict[str, Any] = {}
    mask: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    columns = read_manifest(path)["columns"]
    for key, segments in columns.items():
        groups: dict[Any, list[Segment]] = {}
        for segment in map(Segment.from_json, segments):
            alike = (segment.dtype, segment.shape, tuple(name for name, _, _ in segment.steps))
            groups.setdefault(alike, []).append(segment)
        for place, group in enumerate(groups.values()):
            name = key
            while place and name in columns:
                place += 1
                name = f"{key}#{place}"
            parts = [part for part in (_read_segment(path, segment) for segment in group) if part is not None]
            if not parts:
                continue
            data[name] = _joined([part[""] for part in parts])
            for counter, _, _ in group[0].steps:
                steps.setdefault(counter, {})[name] = _joined([part[counter] for part in parts])
            if any("@mask" in part for part in parts):
                lanes = next(part["@mask"].shape[1:] for part in parts if "@mask" in part)
                mask[name] = _joined([part.get("@mask", np.ones((len(part[""]), *lanes), bool)) for part in parts])
    return logdict(data, steps, mask)


def _read_segment(path: Path, segment: Segment) -> dict[str, Any] | None:
    arrays = {}
    for part, file, _, _, _ in segment.columns():
        try:
            arrays[part] = _mapped(path / file)
        except FileNotFoundError:  # The manifest names a column before it is there.
            return None
    count = min(map(len, arrays.values()))
    arrays = {part: array[:count] for part, array in arrays.items()}
    arrays[""] = arrays[""].view(jnp.dtype(segment.dtype))
    return arrays


def _mapped(path: Path) -> np.ndarray:
    if path.stat().st_size <= HEADER:  # There is nothing to map.
        return np.load(path, allow_pickle=False)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


# -- what people call ----------------------------------------------------------------------------------------------


def save(logs: logdict, path: str | Path, **config: Any) -> None:
    """Writes logs to a directory, which must not be one of saved logs yet.

    Args:
        logs: What `lox.spool` returned.
        path: The directory. It is made.
        **config: What describes the logs, for the manifest.

    Raises:
        LogDataError: The logs are no `lox.logdict`. A `TypeError`.
        StorageError: The directory has logs already, or cannot be written. An `OSError`.

    >>> import pathlib, tempfile
    >>> import jax.numpy as jnp
    >>> import lox
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lox.save(lox.logdict({"loss": jnp.array([3.0, 2.0])}), pathlib.Path(folder) / "run")
    ...     lox.load(pathlib.Path(folder) / "run")["loss"].tolist()
    [3.0, 2.0]
    """
    if not isinstance(logs, logdict):
        raise LogDataError(f"lox.save writes a lox.logdict, got {type(logs).__name__}.")
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(logs)):
        raise LogDataError("lox.save writes arrays, and these are traced: call it outside of jit, or use a SaveLogger.")
    writer = RunWriter(Path(path), (), config, must_be_new=True)
    try:
        writer.append([jax.tree.map(lambda array: np.asarray(untyped(array)), logs)])
    finally:
        writer.close()


def load(path: str | Path) -> Any:
    """Reads saved logs, also while they are written.

    Args:
        path: The directory of a run, or one with runs in it.

    Returns:
        The `lox.logdict` of a run, whose arrays are mapped from disk and read when they are used; or a mapping from
        the names of runs to such. A key whose shape, dtype or counters changed goes on as ``"key#2"``.

    Raises:
        StorageError: There are no logs, or they are damaged. An `OSError`.
    """
    path = Path(path)
    if (path / MANIFEST).exists():
        return read_run(path)
    found = runs(path)
    if not found:
        raise StorageError(f"{path} has no run of lox in it: there is no {MANIFEST}.")
    return {name: read_run(run) for name, run in found.items()}
