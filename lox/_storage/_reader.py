"""Reading runs, also while they are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from lox._concatenate import concatenated
from lox._exceptions import LogValueError, StorageError, StorageWarning
from lox._logdict import logdict
from lox._site import calling_site, warn_at
from lox._storage._manifest import ASIDE, MANIFEST, is_run, read_manifest
from lox._storage._stack import stacked
from lox._storage._table import Rows, Table, keys_in_order, look_at, tables_of


def load(path: str | Path, *, stack: bool = False, damaged: Literal["raise", "prefix"] = "raise") -> Any:
    """Read saved logs, also while they are being written.

    Args:
        path: The directory of a run, or one with runs in it.
        stack: Whether the runs become one `lox.logdict`, laid out as under `spool(vmap(f))`: an axis of runs, in the
            order of `load_config`, follows that of events. Events that a run has not got are masked out, with NaN or 0
            in their place; those of a key count from the first that each run has.
        damaged: What to do with runs whose files are damaged, by a power failure or by hand: "raise" an error, or read
            the "prefix" of the events of each key before the first that is not whole. Changed bytes are not noticed.

    Returns:
        The `lox.logdict` of a run; or a mapping from the names of runs to such; or, with `stack`, one that holds all
        runs in memory. Arrays of more than 64 KiB are mapped from disk, and read when they are used. Before Python
        3.13, each that is mapped keeps a file descriptor, and those are that have more than 1 MiB. Keys are in the
        order in which they first reached the logger. A key whose shape, dtype, counters, batch axes or distribution
        changed goes on as ``"key#2"``, or the next number that is no other key. Typed PRNG keys are their data, so that
        reading needs no device: `jax.random.wrap_key_data(data, impl=data.impl)`.

    Raises:
        LogValueError: `damaged` is none of these. A `ValueError`.
        StorageError: There are no logs, or those of a run are damaged; others are read by their own path. An `OSError`.
        StructureError: The runs to be stacked differ in the shape, dtype or counters of a key. A `ValueError`.

    Warns:
        StorageWarning: With ``damaged="prefix"``: says what is damaged, for each damaged run.

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
    if damaged not in ("raise", "prefix"):
        raise LogValueError(f'damaged is "raise" or "prefix", got {damaged!r}.')
    read = read_run if damaged == "raise" else read_prefix
    if stack:
        return stacked({name: read(run) for name, run in _some(path).items()})
    return _of_runs(path, read)


def load_config(path: str | Path) -> dict[str, Any]:
    """Read the configs of saved runs: the keywords of `logger.init`, or of `lox.save`.

    Args:
        path: The directory of a run, or one with runs in it.

    Returns:
        The config of the run; or a mapping from the names of runs to configs, as `lox.load` has of logs. Values are
        numbers, text and lists, nested ones of a logger by names such as "model/width"; all others become text.

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
    """The runs in a directory, by name; the directory itself when it is one. Events that were taken back are none.

    Raises:
        StorageError: There is no such directory.
    """
    path = Path(path)
    if is_run(path):
        return {path.resolve().name: path}
    if not path.is_dir():
        raise StorageError(f"{path} is no directory of runs.")
    return {run.relative_to(path).as_posix(): run for run in sorted(_runs_below(path))}


def _runs_below(path: Path) -> Iterator[Path]:
    """The runs in a directory, in directories in it, and in those that are linked from there."""
    folders, links, seen = [path], list[Path](), set[tuple[int, int]]()
    while folders or links:
        folder = folders.pop() if folders else links.pop()  # What is linked goes by its own name, if that is here.
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        here = is_run(folder)
        if here:
            yield folder
        try:
            entries = [*os.scandir(folder)]
        except PermissionError:
            continue
        for entry in entries:
            if entry.is_dir() and not (here and entry.name.startswith((".", ASIDE, "table-"))):
                (links if entry.is_symlink() else folders).append(Path(entry.path))


def _some(path: str | Path) -> dict[str, Path]:
    found = runs(path)
    if not found:
        raise StorageError(f"{path} has no run of lox in it: there is no {MANIFEST}.")
    return found


def _of_runs(path: str | Path, read: Callable[[Path], Any]) -> Any:
    """Read the run in a directory, or each run below it, by name."""
    found = _some(path)
    if [*found.values()] == [Path(path)]:
        return read(Path(path))
    return {name: read(run) for name, run in found.items()}


def read_run(path: Path) -> logdict:
    """The logs of one run.

    Raises:
        StorageError: It is no run, or damaged.
    """
    logs, problems = _read(path)
    if problems:
        raise StorageError(f'{problems[0]} lox.load(path, damaged="prefix") reads what is whole.')
    return logs


def read_prefix(path: Path) -> logdict:
    """The logs of one run before the first event that is not whole.

    Warns:
        StorageWarning: It is damaged.
    """
    try:
        logs, problems = _read(path)
    except StorageError as error:
        logs, problems = logdict(), [str(error)]
    if problems:
        warn_at(calling_site(), " ".join(problems), StorageWarning)
    return logs


def _read(path: Path) -> tuple[logdict, list[str]]:
    """The logs of a run that are whole, and what is damaged.

    Raises:
        StorageError: It is no run, or what it has is not known.
    """
    while True:
        manifest = read_manifest(path)
        tables = tables_of(manifest, path)
        try:
            rows = _rows(tables)
            logs = concatenated(
                [each.timeline() for each in rows], [each.numbers for each in rows], keys_in_order(manifest, tables)
            )
        except StorageError:  # Files changed while they were read.
            if read_manifest(path)["tables"] == manifest["tables"]:
                raise
            continue
        if read_manifest(path)["tables"] == manifest["tables"]:
            return logs, [each.problem for each in rows if each.problem]


def _rows(tables: list[Table]) -> list[Rows]:
    """The rows of tables up to one moment, and up to the first that is damaged in those that have a key in common.

    Rows of a table that is read later may have come after rows that were not there yet when another one was read.
    """
    rows = look_at(tables)
    last = max((each.last_number for each in rows), default=0)
    if last:  # All rows before the one with this number are written by now.
        rows = look_at(tables)
    known = {number for each in rows for number in each.all_numbers}
    for group in _sharing(rows):
        until = min([last, *(each.next_number(known) for each in group if each.problem)])
        for each in group:
            each.cut(until)
    return rows


def _sharing(rows: Iterable[Rows]) -> Iterator[list[Rows]]:
    """The rows of tables that have a key in common, also by way of others, together."""
    of_key: dict[str, list[Rows]] = {}
    for each in rows:
        group = [each]
        for other in {id(of_key[key]): of_key[key] for key in each.table.layout.keys if key in of_key}.values():
            group += other
        of_key |= {key: group for member in group for key in member.table.layout.keys}
    groups = {id(group): group for group in of_key.values()}
    return (group for group in groups.values() if len(group) > 1)
