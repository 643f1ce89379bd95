"""Reading runs, also while they are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import StorageError
from lox._logdict import logdict
from lox._storage._column import HEADER
from lox._storage._manifest import MANIFEST, read_manifest
from lox._storage._segment import Segment, from_stored
from lox._storage._stack import stacked


def load(path: str | Path, *, stack: bool = False) -> Any:
    """Reads saved logs, also while they are written.

    Args:
        path: The directory of a run, or one with runs in it.
        stack: Whether the runs become one `lox.logdict`, laid out as under `spool(vmap(f))`: an axis of runs, sorted
            by name, follows that of events. Events that a run has not got are masked out, with NaN or 0 in their
            place; those of a key count from the first that each run has.

    Returns:
        The `lox.logdict` of a run, whose arrays are mapped from disk and read when they are used; or a mapping from
        the names of runs to such; or, with `stack`, one that holds all runs in memory. A key whose shape, dtype or
        counters changed goes on as ``"key#2"``. Typed PRNG keys are their data, so that reading needs no device:
        `jax.random.wrap_key_data(data, impl=data.impl)`.

    Raises:
        StorageError: There are no logs, or they are damaged. An `OSError`.
        StructureError: The runs to be stacked differ in the shape, dtype or counters of a key. A `ValueError`.

    >>> import pathlib, tempfile
    >>> import jax.numpy as jnp
    >>> import lox
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lox.save(lox.logdict({"loss": jnp.array([3.0, 2.0])}), pathlib.Path(folder) / "first")
    ...     lox.save(lox.logdict({"loss": jnp.array([5.0])}), pathlib.Path(folder) / "second")
    ...     logs = lox.load(folder, stack=True)
    >>> logs["loss"].tolist(), logs.mask["loss"].tolist()
    ([[3.0, 5.0], [2.0, nan]], [[True, True], [True, False]])
    """
    found = runs(path)
    if not found:
        raise StorageError(f"{path} has no run of lox in it: there is no {MANIFEST}.")
    if stack:
        return stacked({name: read_run(run) for name, run in found.items()})
    if (Path(path) / MANIFEST).exists():
        return read_run(Path(path))
    return {name: read_run(run) for name, run in found.items()}


def runs(path: str | Path) -> dict[str, Path]:
    """The runs in a directory, by name; the directory itself when it is one.

    Raises:
        StorageError: There is no such directory.
    """
    path = Path(path)
    if (path / MANIFEST).exists():
        return {path.resolve().name: path}
    if not path.is_dir():
        raise StorageError(f"{path} is no directory of runs.")
    return {found.parent.relative_to(path).as_posix(): found.parent for found in sorted(path.rglob(MANIFEST))}


def read_run(path: Path) -> logdict:
    """The logs of one run, mapped from disk where a key has one segment.

    Raises:
        StorageError: It is no run, or damaged.
    """
    data: dict[str, Any] = {}
    mask: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    columns = _columns(path)
    for key, segments in columns.items():
        groups: dict[Any, list[Segment]] = {}
        for segment in segments:
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
            data[name] = from_stored(_joined([part[""] for part in parts]), group[0].dtype)
            for counter, _, _ in group[0].steps:
                steps.setdefault(counter, {})[name] = _joined([part[counter] for part in parts])
            if any("@mask" in part for part in parts):
                lanes = next(part["@mask"].shape[1:] for part in parts if "@mask" in part)
                mask[name] = _joined([part.get("@mask", np.ones((len(part[""]), *lanes), bool)) for part in parts])
    return logdict(data, steps, mask)


def _columns(path: Path) -> dict[str, list[Segment]]:
    try:
        return {
            key: [Segment.from_json(found) for found in segments]
            for key, segments in read_manifest(path)["columns"].items()
        }
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path / MANIFEST} is damaged: {error!r} in its columns.") from error


def _read_segment(path: Path, segment: Segment) -> dict[str, Any] | None:
    arrays = {}
    for part, file, _, _, _ in segment.columns():
        try:
            arrays[part] = _mapped(path / file)
        except FileNotFoundError:  # The manifest names a column before it is there.
            return None
        except (ValueError, EOFError) as error:
            raise StorageError(f"{path / file} is damaged: {error}") from error
    count = min(map(len, arrays.values()))
    return {part: array[:count] for part, array in arrays.items()}


def _mapped(path: Path) -> np.ndarray:
    if path.stat().st_size <= HEADER:  # There is nothing to map.
        return np.load(path, allow_pickle=False)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
