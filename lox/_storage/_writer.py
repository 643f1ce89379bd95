"""Appending to runs."""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import StorageError
from lox._host_values import plain, steps_of_elements
from lox._logdict import logdict
from lox._run_all import each, raise_first
from lox._storage._aside import steps_of, taken_aside
from lox._storage._column import OpenFiles
from lox._storage._layout import Layout, storable
from lox._storage._manifest import MANIFEST, new_manifest, read_manifest, to_json, was_cut_off, write_manifest
from lox._storage._owner import Claim
from lox._storage._table import Appender, Rows, Table, keys_in_order, look_at, remove_scratch, scratch, tables_of
from lox._timeline import Timeline

CHECK_AFTER = 0.1
"""Least number of seconds between checks that files exist, each of which costs as much as an event."""


class RunWriter:
    """Appends to one run.

    Args:
        path: The directory of the run. It is made, or continued.
        key: The words of the PRNG key that the run is of.
        config: The config of the run.
        identity: Text that tells it from other runs.
        about: Further entries of the manifest of a new run, by name.
        warn: Takes a message when the run has another config, is damaged, or was claimed by a process on another
            machine. It is not known whether that process lives, and without `warn` its claim counts.
        files: The pool of open files.
        durable: Whether `sync` returns when all is on the disk.

    Attributes:
        is_new: Whether the run did not exist before.

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
        files: OpenFiles | None = None,
        durable: bool = False,
    ):
        self.path = path
        say = warn or (lambda _: None)
        self._files, self._durable = OpenFiles() if files is None else files, durable
        self._appenders: dict[Layout, Appender] = {}
        self._of_key: dict[str, list[Appender]] = {}
        self._written: dict[Appender, None] = {}
        self._checked = 0.0
        self._kept: set[str] = set()
        self._last: Appender | None = None
        path.mkdir(parents=True, exist_ok=True)
        self._claim = Claim(path, warn)
        try:
            remove_scratch(path)
            self.is_new = not (path / MANIFEST).exists()
            if not self.is_new and was_cut_off(path):
                self.is_new = True
                say(f"{path / MANIFEST} is empty, as after a power failure: what was there is no part of the run.")
            self._manifest = new_manifest(key, {"run": identity, **about}) if self.is_new else read_manifest(path)
            if self._manifest.get("run", identity) != identity:
                raise StorageError(f"{path} is another run already. Give this one another name.")
            self._tables = tables_of(self._manifest, path)
            self._changed = self.is_new
            self._order = dict.fromkeys(keys_in_order(self._manifest, self._tables))
            self._open_all(say)
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

    def append(self, logs: logdict) -> None:
        """Adds logs, each with at least one event of each of its keys, of arrays of NumPy.

        A key that cannot be written does not keep the others from being written.

        Raises:
            LogDataError: A dtype cannot be saved.
            StorageError: The run is not this process's to write any more, or its files are not those that were left.
        """
        self._claim.check()
        if len(logs._timelines) == 1 and self._last is not None:  # Nearly all events are like the one before.
            (timeline,) = logs._timelines
            if self._last.table.layout.fits(timeline):
                self._append(self._last, timeline)
                return
        self._order |= dict.fromkeys(logs)
        events, errors = storable(logs)
        placed = [(self._place(layout), timeline) for layout, timeline in events]
        self._write_manifest()
        each(lambda one: self._append(*one), placed)
        self._last = placed[-1][0] if placed else None
        raise_first(errors)

    def _place(self, layout: Layout) -> Appender:
        """The table for events like these, which is made if there is none."""
        if layout not in self._appenders:
            with scratch(self.path) as folder:
                shares = not (layout.keys.isdisjoint(self._of_key) and layout.keys.isdisjoint(self._kept))
                self._number += shares
                number = self._number if shares else 0
                table = Table.create(folder / "table", layout, number).move(self.path, len(self._tables))
            if self._durable:
                table.sync()
            self._tables.append(table)
            self._changed = True
            self._now_latest(self._open(table.look()))
        return self._appenders[layout]

    def _append(self, to: Appender, events: Timeline) -> None:
        self._written[to] = None
        if to.is_latest:
            to.append(events)
            return
        self._number += 1
        to.append(events, self._number)
        self._now_latest(to)

    def _now_latest(self, to: Appender) -> None:
        """Has others begin a new number, when they get rows after this one."""
        to.is_latest = True
        for other in to.sharing:
            other.is_latest = False

    def _open(self, rows: Rows) -> Appender:
        """Has events like those of a table appended to it."""
        table = rows.table
        appender, keys = Appender(rows, self._files, self._durable), table.layout.keys
        of_key = [self._of_key.setdefault(key, []) for key in keys]
        appender.sharing = [*dict.fromkeys(other for others in of_key for other in others)]
        appender.is_latest = not appender.sharing and keys.isdisjoint(self._kept)
        for other in appender.sharing:
            other.sharing.append(appender)
            other.is_latest = False
            other.share()
        if not appender.is_latest:
            appender.share()
        for others in of_key:
            others.append(appender)
        self._appenders[table.layout] = appender
        if table.layout.mask is not None:  # Events without a mask go on there: all happened.
            whole = table.layout.without_mask
            there = self._appenders.get(whole)
            if there is None or there.table.layout.mask is None:
                self._appenders[whole] = appender
        return appender

    def _open_all(self, say: Callable[[str], None]) -> None:
        """Opens the tables of the run. One that is damaged keeps the rows that are whole, and gets no others."""
        self._files.close(column for appender in self._appenders.values() for column in appender.columns)
        self._appenders, self._of_key, self._written, self._last = {}, {}, {}, None
        rows = look_at(self._tables)
        self._number = max((number for each in rows for number in each.all_numbers), default=0)
        for place, each_rows in enumerate(rows):
            if each_rows.problem:
                self._tables[place] = dataclasses.replace(each_rows.table, rows=each_rows.count)
                self._changed = True
                say(
                    f"{each_rows.problem} {self.path} goes on with the {each_rows.count} rows of this table that are "
                    "whole, and writes others to another table."
                )
        kept = [table for table in self._tables if table.rows is not None]
        self._kept = {key for table in kept for key in table.layout.keys}
        for each_rows in rows:
            if not each_rows.problem and each_rows.table.rows is None:
                self._open(each_rows)

    def sync(self) -> None:
        """Flushes what was written to the disk, if that was asked for; and checks now and then that its files exist.

        Raises:
            StorageError: Files were removed meanwhile.
            OSError: The disk fails.
        """
        if self._durable:
            for appender in self._written:
                appender.sync()
        if self._durable or time.monotonic() - self._checked > CHECK_AFTER:
            self._check_written()

    def _check_written(self) -> None:
        """Checks that the files exist to which rows were written since the last check."""
        written, self._written, self._checked = self._written, {}, time.monotonic()
        each(Appender.check, written)

    def last_steps(self) -> dict[str, np.ndarray]:
        """The largest counter `step` of each key that has one, of each batch element."""
        found: dict[str, np.ndarray] = {}
        for rows in look_at(self._tables):
            steps = steps_of(rows)
            if steps is None or not len(steps[0]):
                continue
            last = np.fmax.reduce(steps_of_elements(*steps))
            for key in rows.table.layout.keys:
                is_alike = key in found and found[key].shape == last.shape
                found[key] = np.fmax(found[key], last) if is_alike else last
        return found

    def set_aside(self, step: int, say: Callable[[str], None]) -> list[str]:
        """Takes the events whose counter `step` is this one or a later one, in any batch element, out of the run.

        They are in a run of their own then, a directory `aside-N` of the run. Killed at any time, the run has all of
        them, or none.

        Args:
            step: The first that is taken.
            say: Takes a message about a table that was damaged meanwhile.

        Returns:
            The keys with events that have no such counter, which stay.
        """
        left, without = taken_aside(self.path, self._tables, step, self._manifest)
        old = [table for table in self._tables if table not in left]
        if old:
            self._tables, self._changed = left, True
            self._write_manifest()
            self._open_all(say)
            for table in old:
                shutil.rmtree(table.folder)
        return without

    def _write_manifest(self) -> None:
        if self._changed:
            # A power failure may leave a new file empty: it must not be in place of one that names tables.
            durable = self._durable or bool(self._manifest["tables"])
            self._manifest["tables"] = [table.to_json() for table in self._tables]
            self._manifest["keys"] = [*self._order]
            write_manifest(self.path, self._manifest, durable)
            self._changed = False

    def close(self) -> None:
        """Lets another process write the run.

        Raises:
            StorageError: Files were removed while they were written.
        """
        try:
            self._check_written()
        finally:
            self._files.close(column for appender in self._appenders.values() for column in appender.columns)
            self._claim.release()
