"""Appending to runs."""

from __future__ import annotations

import dataclasses
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import StorageError
from lox._host_values import at_least, plain, steps_of_elements
from lox._logdict import logdict
from lox._run_all import each
from lox._storage._column import Column, lost
from lox._storage._manifest import ASIDE, MANIFEST, new_manifest, read_manifest, to_json, write_manifest
from lox._storage._owner import claim, holds, release
from lox._storage._segment import Segment, as_stored, from_stored, segments_of


class RunWriter:
    """Appends to one run.

    Args:
        path: The directory of the run. It is made, or continued.
        key: The words of the PRNG key that the run is of.
        config: What describes it.
        identity: What tells it from other runs.
        about: What else the manifest of a new run says of it, by name.
        warn: Takes what to say where the run has another config, or was claimed by a process on another machine. Of
            that one nobody here can tell whether it lives, and without this its claim counts.

    Attributes:
        is_new: Whether the run was not there.

    Raises:
        StorageError: The run is another one; another process writes it; or the directory is no run.
    """

    def __init__(
        self,
        path: Path,
        key: Sequence[int],
        config: Mapping[str, Any],
        identity: str,
        about: Mapping[str, Any],
        warn: Callable[[str], None] | None = None,
    ):
        self.path = path
        self._columns: dict[tuple[str, int], list[Column]] = {}
        path.mkdir(parents=True, exist_ok=True)
        self._claim = claim(path, warn)
        try:
            self.is_new = not (path / MANIFEST).exists()
            self._manifest = new_manifest(key, {"run": identity, **about}) if self.is_new else read_manifest(path)
            if self._manifest.get("run", identity) != identity:
                raise StorageError(f"{path} is another run already. Give this one another name.")
            self._segments = segments_of(self._manifest, path)
            self._changed = self.is_new
            if warn is not None:
                self._warn_of_another(config, warn)
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

    def _warn_of_another(self, config: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        """Says so where a run goes on that was another experiment."""
        said = self._manifest["config"]
        for name, value in config.items():
            if name in said and to_json(said[name]) != to_json(plain(value)):
                warn(
                    f"{self.path} is a run already, with {name}={said[name]!r}, and goes on with {plain(value)!r}. If "
                    "this is another run, give it another name."
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

        if not holds(self.path, self._claim):
            raise StorageError(f"{self.path} is written by another process now, which continues the experiment.")
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
        segment = dataclasses.replace(like, number=self._next(key))
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

    def _next(self, key: str) -> int:
        """A number that no segment of a key has had."""
        had = self._manifest.setdefault("numbers", {})
        number = max(had.get(key, 0), *(segment.number + 1 for segment in self._segments.get(key, [])), 0)
        had[key] = number + 1
        return number

    def last_steps(self) -> dict[str, np.ndarray]:
        """The largest counter `step` of each key that has one, of each batch element."""
        found = {}
        for key, segments in self._segments.items():
            steps = self._steps(segments[-1])
            if steps is not None and len(steps[0]):
                found[key] = np.fmax.reduce(steps_of_elements(*steps))
        return found

    def set_aside(self, step: int) -> list[str]:
        """Takes the events whose counter `step` is this one or a later one, in any batch element, out of the run.

        They are in a run of their own then, a directory `aside-N` of the run.

        Returns:
            The keys with events that have no such counter, which stay.
        """
        later: dict[tuple[str, int], np.ndarray] = {}
        without = []
        for key, segments in self._segments.items():
            for segment in segments:
                steps = self._steps(segment)
                if steps is None:
                    without.append(key)
                elif (found := at_least(*steps, step)).any():
                    later[key, segment.number] = found
        if later:
            self._take_out(later)
        return list(dict.fromkeys(without))

    def _take_out(self, later: Mapping[tuple[str, int], np.ndarray]) -> None:
        """Moves events of segments to a run of their own. Killed at any time, the run has all of them, or none."""
        numbers = {place: self._next(place[0]) for place in later}
        self._changed = True
        self._write_manifest()  # What is made below is never in the way of what comes after a kill.
        old = [segment for key, of in self._segments.items() for segment in of if (key, segment.number) in later]
        scratch = self.path / f".{uuid.uuid4().hex}"
        scratch.mkdir()
        aside = scratch / ASIDE
        aside.mkdir()
        moved: dict[str, list[Segment]] = {}
        left: dict[str, list[Segment]] = {}
        for key, segments in self._segments.items():
            for segment in segments:
                taken = later.get((key, segment.number))
                if taken is None:
                    left.setdefault(key, []).append(segment)
                    continue
                self._copy(segment, taken, aside, segment)
                moved.setdefault(key, []).append(segment)
                if not taken.all():
                    rest = dataclasses.replace(segment, number=numbers[key, segment.number])
                    self._copy(segment, ~taken, scratch, rest)
                    left.setdefault(key, []).append(rest)
        columns = {key: [segment.to_json() for segment in segments] for key, segments in moved.items()}
        write_manifest(aside, self._manifest | {"columns": columns})
        number = next(number for number in itertools.count(1) if not (self.path / f"{ASIDE}{number}").exists())
        os.rename(aside, self.path / f"{ASIDE}{number}")
        for column in scratch.iterdir():
            os.replace(column, self.path / column.name)
        scratch.rmdir()
        self._segments, self._changed = left, True
        self._columns = {}
        self._write_manifest()
        for segment in old:
            for _, file, *_ in segment.columns():
                (self.path / file).unlink(missing_ok=True)

    def _copy(self, segment: Segment, chosen: np.ndarray, folder: Path, to: Segment) -> None:
        """Writes some events of a segment as another one to a directory."""
        for (_, file, dtype, shape, _), (_, new, *_) in zip(segment.columns(), to.columns(), strict=True):
            entries = Column.read(self.path / file, dtype, shape)[: len(chosen)]
            Column.create(folder / new, dtype, shape).append(entries[chosen])

    def _steps(self, segment: Segment) -> tuple[np.ndarray, np.ndarray | None] | None:
        """The counter `step` of a segment, and its mask; None when it has none."""
        try:
            arrays = {part: Column.read(self.path / file, dtype, of) for part, file, dtype, of, _ in segment.columns()}
        except (StorageError, FileNotFoundError):  # It is damaged, as its next event will say, or has no event yet.
            return np.zeros(0), None
        count = min(map(len, arrays.values()))
        if "step" not in arrays:
            return None
        logical = next(logical for name, logical, _ in segment.steps if name == "step")
        mask = arrays["@mask"][:count] if "@mask" in arrays else None
        return from_stored(arrays["step"][:count], logical), mask

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


def absent(files: Iterable[Path]) -> None:
    """Checks that there are no files yet where columns are to be.

    Raises:
        StorageError: There is one.
    """
    for file in files:
        if file.exists():
            raise StorageError(f"{file} is in the way of a column, and is of no run. Move it, or give another path.")
