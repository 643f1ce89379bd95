"""Reading runs, also while they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lox._concatenate import concatenated
from lox._exceptions import StorageError
from lox._logdict import logdict
from lox._storage._column import Column, lost
from lox._storage._manifest import ASIDE, MANIFEST, read_manifest
from lox._storage._segment import Segment, from_stored, segments_of
from lox._storage._stack import stacked


def load(path: str | Path, *, stack: bool = False) -> Any:
    """Reads saved logs, also while they are written.

    Args:
        path: The directory of a run, or one with runs in it.
        stack: Whether the runs become one `lox.logdict`, laid out as under `spool(vmap(f))`: an axis of runs, in the
            order of `load_config`, follows that of events. Events that a run has not got are masked out, with NaN or 0
            in their place; those of a key count from the first that each run has.

    Returns:
        The `lox.logdict` of a run; or a mapping from the names of runs to such; or, with `stack`, one that holds all
        runs in memory. Arrays of more than 64 KiB are mapped from disk, and read when they are used. Before Python
        3.13, each that is mapped keeps a file descriptor, and those are that have more than 1 MiB. A key whose shape,
        dtype, counters, batch axes or distribution changed goes on as ``"key#2"``, or the next number that is no other
        key. Typed PRNG keys are their data, so that reading needs no device:
        `jax.random.wrap_key_data(data, impl=data.impl)`.

    Raises:
        StorageError: There are no logs, or those of a run are damaged; others are read by their own path. An `OSError`.
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
    if stack:
        return stacked({name: read_run(run) for name, run in _some(path).items()})
    return _of_runs(path, read_run)


def load_config(path: str | Path) -> dict[str, Any]:
    """Reads what describes saved runs: the keywords of `logger.init`, or of `lox.save`.

    Args:
        path: The directory of a run, or one with runs in it.

    Returns:
        What describes the run; or a mapping from the names of runs to that, as `lox.load` has of logs. Values are
        numbers, text and lists, nested ones of a logger by names such as "model/width"; what is none of these, as text.

    Raises:
        StorageError: There are no logs, or they are damaged. An `OSError`.

    >>> import pathlib, tempfile
    >>> import lox
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for rate in (0.1, 0.5):
    ...         lox.save(lox.logdict(), pathlib.Path(folder) / f"rate={rate}", rate=rate, shape=(2, 3))
    ...     lox.load_config(folder)
    {'rate=0.1': {'rate': 0.1, 'shape': [2, 3]}, 'rate=0.5': {'rate': 0.5, 'shape': [2, 3]}}
    """
    return _of_runs(path, lambda run: read_manifest(run)["config"])


def runs(path: str | Path) -> dict[str, Path]:
    """The runs in a directory, by name; the directory itself when it is one. What was taken back of a run is none.

    Raises:
        StorageError: There is no such directory.
    """
    path = Path(path)
    if (path / MANIFEST).exists():
        return {path.resolve().name: path}
    if not path.is_dir():
        raise StorageError(f"{path} is no directory of runs.")
    found = {manifest.parent for manifest in path.rglob(MANIFEST)}
    taken_back = {run for run in found if run.name.startswith((ASIDE, ".")) and not found.isdisjoint(run.parents)}
    return {run.relative_to(path).as_posix(): run for run in sorted(found - taken_back)}


def _some(path: str | Path) -> dict[str, Path]:
    found = runs(path)
    if not found:
        raise StorageError(f"{path} has no run of lox in it: there is no {MANIFEST}.")
    return found


def _of_runs(path: str | Path, read: Callable[[Path], Any]) -> Any:
    """What is read of the run that is there, or of each run in it by name."""
    found = _some(path)
    if (Path(path) / MANIFEST).exists():
        return read(Path(path))
    return {name: read(run) for name, run in found.items()}


def read_run(path: Path) -> logdict:
    """The logs of one run.

    Raises:
        StorageError: It is no run, or damaged.
    """
    while True:
        manifest = read_manifest(path)
        try:
            logs = _read(path, manifest)
        except StorageError:
            if not _has_changed(path, manifest):
                raise
            continue
        if not _has_changed(path, manifest):
            return logs


def _has_changed(path: Path, manifest: Mapping[str, Any]) -> bool:
    """Say whether columns of a run were added or removed after its manifest was read."""
    return read_manifest(path)["columns"] != manifest["columns"]


def _read(path: Path, manifest: Mapping[str, Any]) -> logdict:
    parts = []
    for key, segments in segments_of(manifest, path).items():
        for segment in segments:
            part = _read_segment(path, key, segment)
            if part is not None:
                parts.append(part)
    logs = concatenated(parts)
    return logdict(logs.data, logs.steps, logs.mask, _dropped(manifest, path), logs.distributions)


def _dropped(manifest: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        return {key: np.array(count, np.int32) for key, count in manifest.get("dropped", {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise StorageError(f"{path / MANIFEST} is damaged: {error!r} in what was dropped.") from error


def _read_segment(path: Path, key: str, segment: Segment) -> logdict | None:
    arrays: dict[str, Any] = {}
    absent = []
    for part, file, dtype, shape, _ in segment.columns():
        try:
            arrays[part] = Column.read(path / file, dtype, shape)
        except FileNotFoundError:  # The manifest names a column before it is there.
            absent.append(path / file)
    if any(map(len, arrays.values())):
        for gone in absent:
            if not gone.exists():  # It was not made meanwhile either.
                raise lost(gone)
    if absent:
        return None
    count = min(map(len, arrays.values()))
    steps = {name: {key: from_stored(arrays[name][:count], dtype)} for name, dtype, _ in segment.steps}
    mask = {key: arrays["@mask"][:count]} if "@mask" in arrays else {}
    values = from_stored(arrays[""][:count], segment.dtype)
    distributions = {} if segment.distribution is None else {key: segment.distribution}
    return logdict({key: values}, steps, mask, distributions=distributions)
