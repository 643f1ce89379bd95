"""Writing logs that are complete."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import jax

from lox._exceptions import LogDataError, StorageError
from lox._host_values import plain
from lox._keys import on_host
from lox._logdict import logdict
from lox._storage._column import Column
from lox._storage._manifest import MANIFEST, new_manifest, write_manifest
from lox._storage._owner import claim, release
from lox._storage._segment import Segment, as_stored
from lox._storage._writer import absent


def save(logs: logdict, path: str | Path, **config: Any) -> None:
    """Writes logs to a directory, as a whole or not at all.

    Args:
        logs: What `lox.spool` returned.
        path: The directory. It is made. One that is there may have other files in it, and no saved logs.
        **config: What describes the logs, for the manifest.

    Raises:
        LogDataError: The logs are no `lox.logdict`, have a dtype that cannot be saved, such as text, or
            a key with more events than counters. A `TypeError`.
        StorageError: The directory has logs or runs already, or a file where one would be written. An `OSError`.
        OSError: It cannot be written.

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
    logs = jax.tree.map(on_host, logs)
    for key in logs:
        counts = {len(of[key]) for of in (logs.data, *logs.steps.values(), logs.mask) if key in of}
        if len(counts) > 1:
            raise LogDataError(f"The events, counters and mask of {key!r} are not as many: {sorted(counts)}.")
    segments = {key: Segment.of(logs, key) for key in logs}
    manifest = new_manifest((), {}) | {
        "config": plain(config),
        "columns": {key: [segment.to_json()] for key, segment in segments.items()},
        "dropped": plain(logs.dropped),
    }
    path = Path(path)
    made = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        mine = claim(path)
        try:
            _write(logs, segments, manifest, path)
        finally:
            release(path, mine)
    except BaseException:
        if made:
            with contextlib.suppress(OSError):  # It is not empty.
                path.rmdir()
        raise


def _write(logs: logdict, segments: dict[str, Segment], manifest: dict[str, Any], path: Path) -> None:
    """Writes the columns out of the way, moves them to their places, and makes a run of them by the manifest."""
    if (path / MANIFEST).exists():
        raise StorageError(f"{path} is a run already. Give this one another path.")
    if inside := next(path.rglob(MANIFEST), None):
        raise StorageError(
            f"{path} has runs in it, such as {inside.parent}, which logs there would hide. Save them apart."
        )
    files = [path / file for segment in segments.values() for _, file, *_ in segment.columns()]
    absent(files)
    scratch = path / f".{uuid.uuid4().hex}"
    scratch.mkdir()
    moved = []
    try:
        for key, segment in segments.items():
            for _, file, dtype, shape, entries in segment.columns():
                Column.create(scratch / file, dtype, shape).append(as_stored(entries(logs, key)))
        for place in files:
            os.rename(scratch / place.name, place)
            moved.append(place)
        write_manifest(path, manifest)
    except BaseException:
        for place in moved:
            place.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
