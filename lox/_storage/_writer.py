"""Appending to runs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import StorageError
from lox._host_values import plain, without_addresses
from lox._logdict import logdict
from lox._run_all import each
from lox._storage._column import Column, lost
from lox._storage._manifest import MANIFEST, new_manifest, read_manifest, to_json, write_manifest
from lox._storage._owner import claim, release
from lox._storage._segment import Segment, as_stored, segments_of


class RunWriter:
    """Appends to one run.

    Args:
        path: The directory of the run. It is made, or continued.
        key: The words of the PRNG key that the run is of.
        config: What describes it.
        identity: What tells it from other runs.
        about: What else the manifest of a new run says of it, by name.
        must_be_new: Whether it is an error that the run exists.

    Raises:
        StorageError: The run exists and must not, or is another one; another process writes it; or the directory is
            no run.
    """

    def __init__(
        self,
        path: Path,
        key: Sequence[int],
        config: Mapping[str, Any],
        identity: str,
        about: Mapping[str, Any],
        must_be_new: bool = False,
    ):
        self.path = path
        self._columns: dict[tuple[str, int], list[Column]] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._claim = claim(path)
        try:
            exists = (path / MANIFEST).exists()
            if exists and must_be_new:
                raise StorageError(f"{path} is a run already. Give this one another key or path.")
            self._manifest = read_manifest(path) if exists else new_manifest(key, {"run": identity, **about})
            if self._manifest.get("run", identity) != identity:
                raise StorageError(f"{path} is another run already. Give this one another name or path.")
            self._segments = segments_of(self._manifest, path)
            self._changed = not exists
            self._warn_of_another(config)
            self.describe(config)
        except BaseException:
            self.close()
            raise

    def describe(self, config: Mapping[str, Any]) -> None:
        """Adds to what describes the run."""
        new = self._manifest["config"] | {name: plain(value) for name, value in config.items()}
        self._changed |= new != self._manifest["config"]
        self._manifest["config"] = new
        self._write_manifest()

    def _warn_of_another(self, config: Mapping[str, Any]) -> None:
        """Says so where a run goes on that was another experiment."""
        said = self._manifest["config"]
        for name, value in config.items():
            if name in said and _text(said[name]) != _text(value):
                warnings.warn(
                    f"{self.path} is a run already, with {name}={said[name]!r}, and goes on with {plain(value)!r}. If "
                    "this is another experiment, give it another key or path.",
                    stacklevel=2,
                )

    def append(self, parts: Sequence[logdict]) -> None:
        """Adds logs, each with at least one event of each of its keys, of arrays of NumPy.

        A key that cannot be written does not keep the others from being written.

        Raises:
            LogDataError: A dtype cannot be saved.
            StorageError: The columns of a key are damaged, or there are other files by their names.
        """
        batches: dict[str, list[tuple[Segment, list[logdict]]]] = {}

        def sort(event: tuple[str, logdict]) -> None:
            key, logs = event
            segment = Segment.of(logs, key)
            runs = batches.setdefault(key, [])
            if runs and (runs[-1][0] is segment or runs[-1][0] == segment):
                runs[-1][1].append(logs)
            else:
                runs.append((segment, [logs]))

        try:
            each(sort, ((key, logs) for logs in parts for key in logs.data))
        finally:
            self._append_all([(key, segment, having) for key, runs in batches.items() for segment, having in runs])

    def _append_all(self, batches: Sequence[tuple[str, Segment, list[logdict]]]) -> None:
        placed = []
        try:
            each(lambda batch: placed.append((batch[0], self._placed(*batch[:2]), batch[2])), batches)
        finally:
            self._write_manifest()
            each(lambda batch: self._append(*batch), placed)

    def _placed(self, key: str, like: Segment) -> Segment:
        """The segment for events like these: the last one, or a new one."""
        known = self._segments.get(key, [])
        if known and dataclasses.replace(known[-1], number=0, stem=like.stem) == like:
            return known[-1]
        segment = dataclasses.replace(like, number=len(known))
        absent(self.path / file for _, file, *_ in segment.columns())
        self._segments[key] = [*known, segment]
        self._changed = True
        return segment

    def _append(self, key: str, segment: Segment, parts: Sequence[logdict]) -> None:
        columns = self._columns.get((key, segment.number))
        if columns is None:
            columns = self._columns[key, segment.number] = self._opened(segment)
        count = columns[0].count
        try:
            for column, (*_, entries) in zip(columns, segment.columns(), strict=True):
                arrays = [np.asarray(entries(logs, key)) for logs in parts]
                column.append(as_stored(arrays[0] if len(arrays) == 1 else np.concatenate(arrays)))
        except BaseException:
            for column in columns:  # What was not written in full was not written.
                column.count = count
            raise

    def _opened(self, segment: Segment) -> list[Column]:
        """The columns of a segment, cut to the events that were written in full; those are made that are not there."""
        files = [(self.path / file, dtype, shape) for _, file, dtype, shape, _ in segment.columns()]
        there = {path: Column.open(path, dtype, shape) for path, dtype, shape in files if path.exists()}
        if any(column.count for column in there.values()):
            for path, *_ in files:
                if path not in there:
                    raise lost(path)
        columns = [there.get(file[0]) or Column.create(*file) for file in files]
        count = min(column.count for column in columns)
        for column in columns:
            column.count = count
        return columns

    def _write_manifest(self) -> None:
        if self._changed:
            self._manifest["columns"] = {
                key: [segment.to_json() for segment in segments] for key, segments in self._segments.items()
            }
            write_manifest(self.path, self._manifest)
            self._changed = False

    def close(self) -> None:
        """Lets another process write the run."""
        release(self.path, self._claim)


def _text(value: Any) -> str:
    """A value as a manifest has it, without where in memory an object was."""
    return without_addresses(to_json(plain(value)))


def absent(files: Iterable[Path]) -> None:
    """Checks that there are no files yet where columns are to be.

    Raises:
        StorageError: There is one.
    """
    for file in files:
        if file.exists():
            raise StorageError(f"{file} is in the way of a column, and is of no run. Move it, or give another path.")
