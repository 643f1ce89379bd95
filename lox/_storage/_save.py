"""Writing logs that are complete."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lox._exceptions import LogDataError, StorageError
from lox._host_values import plain
from lox._keys import on_host
from lox._logdict import logdict
from lox._run_all import raise_first
from lox._storage._layout import Layout, storable
from lox._storage._manifest import MANIFEST, is_run, new_manifest, write_manifest
from lox._storage._owner import Claim
from lox._storage._reader import runs
from lox._storage._table import Table, scratch
from lox._timeline import Timeline


def save(logs: logdict, path: str | Path, **config: Any) -> None:
    """Write logs to a directory, as a whole or not at all.

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
    keys = [*logs]  # `jax.tree.map` returns them in another order.
    logs = jax.tree.map(on_host, logs)
    for key in logs:
        counts = {len(of[key]) for of in (logs.data, *logs.steps.values(), logs.mask) if key in of}
        if len(counts) > 1:
            raise LogDataError(f"The events, counters and mask of {key!r} are not as many: {sorted(counts)}.")
    events, errors = storable(logs)
    raise_first(errors)
    path = Path(path)
    made = not path.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        claim = Claim(path)
        try:
            _write(events, new_manifest((), {}) | {"config": plain(config), "keys": keys}, path)
        finally:
            claim.release()
    except BaseException:
        if made:
            with contextlib.suppress(OSError):  # It is not empty.
                path.rmdir()
        raise


def _write(events: list[tuple[Layout, Timeline]], manifest: dict[str, Any], path: Path) -> None:
    """Writes tables out of the way, moves them to their places, and makes a run of them by the manifest."""
    if (path / MANIFEST).exists():
        what = "is a run already" if is_run(path) else f"has a {MANIFEST} that is not lox's"
        raise StorageError(f"{path} {what}. Give this one another path.")
    if inside := next(iter(runs(path).values()), None):
        raise StorageError(f"{path} has runs in it, such as {inside}, which logs there would hide. Save them apart.")
    moved: list[Table] = []
    with scratch(path) as folder:
        tables = [
            Table.filled(folder / f"{place}", layout, timeline, np.full(len(timeline), place))
            for place, (layout, timeline) in enumerate(events)
        ]
        try:
            for table in tables:
                moved.append(table.move(path, len(moved)))
            write_manifest(path, manifest | {"tables": [table.to_json() for table in moved]})
        except BaseException:
            for table in moved:
                shutil.rmtree(table.folder, ignore_errors=True)
            raise
