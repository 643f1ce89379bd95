"""A directory with the columns of events that were logged together."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import uuid
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import StorageError
from lox._storage._column import Column, OpenFiles, sync
from lox._storage._layout import Layout
from lox._storage._manifest import MANIFEST
from lox._timeline import Timeline

ORDER = "@@order.npy"
"""The file of numbers of rows, by which events of a key that is in several tables are in their order. An entry is how
many rows there were and the number of the last ones; the next entry is of those after them. It is written after the
rows. A table that shares a key has those rows that are in an entry: of others it is not known when they came. One that
shares none needs no entry."""

ENTRY = np.dtype(np.int64), (2,)
"""The dtype and the shape of an entry."""


@dataclasses.dataclass(frozen=True)
class Table:
    """A table: its place and its content.

    Attributes:
        folder: Its directory.
        layout: Its arrays.
        number: The number of its first rows.
        dropped: Number of events that a bounded buffer dropped, in lists; None when there was no bound.
        rows: Number of rows that it keeps, when it was found damaged by a run that then went on; else None.
    """

    folder: Path
    layout: Layout
    number: int = 0
    dropped: Any = None
    rows: int | None = None

    @classmethod
    def create(cls, folder: Path, layout: Layout, number: int = 0, dropped: Any = None) -> Table:
        """A new table without rows, in a new directory."""
        folder.mkdir()
        for file in layout.files:
            Column.create(folder / file.name, file.dtype, file.shape)
        Column.create(folder / ORDER, *ENTRY)
        return cls(folder, layout, number, dropped)

    @classmethod
    def filled(cls, folder: Path, layout: Layout, events: Timeline, numbers: np.ndarray) -> Table:
        """A new table with events, and the number of each, in a new directory."""
        dropped = None if events.dropped is None else np.asarray(events.dropped).tolist()
        table = cls.create(folder, layout, int(numbers[0]) if len(numbers) else 0, dropped)
        with OpenFiles() as files:
            appender = Appender(table.look(), files)
            appender.append(events)
            ends = np.flatnonzero(np.diff(numbers, append=-1))
            appender.number(zip(ends + 1, numbers[ends], strict=True))
        return table

    def sync(self) -> None:
        """Flushes it to the disk, with its name."""
        for place in (*self.folder.iterdir(), self.folder, self.folder.parent):
            sync(place)

    def move(self, run: Path, start: int = 0) -> Table:
        """Moves it into the directory of a run, by the first name from number `start` on that is free."""
        return dataclasses.replace(self, folder=move(self.folder, run, "table-", start))

    def look(self, shares: bool = False) -> Rows:
        """Return the rows that it has now.

        Args:
            shares: Whether it shares a key with another table of the run.
        """
        order = Column.find(self.folder / ORDER, *ENTRY)  # First: rows that are in it are there by then.
        files = self.layout.files
        columns = {file.name: Column.find(self.folder / file.name, file.dtype, file.shape) for file in files}
        return Rows(self, columns, order, shares)

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the manifest."""
        found = {"folder": self.folder.name, "number": self.number, "arrays": self.layout.to_json()}
        more = {"dropped": self.dropped, "rows": self.rows}
        return found | {name: value for name, value in more.items() if value is not None}

    @classmethod
    def from_json(cls, run: Path, found: Mapping[str, Any]) -> Table:
        """Read its entry in the manifest of a run.

        Raises:
            KeyError: It is no such entry.
            TypeError: As well.
            ValueError: As well.
        """
        if not re.fullmatch(r"table-\d+", found["folder"]):
            raise ValueError(f"{found['folder']!r} is no directory of a table")
        if (dropped := found.get("dropped")) is not None:
            np.array(dropped, np.int32)
        rows, number = found.get("rows"), int(found["number"])
        return cls(
            run / found["folder"],
            Layout.from_json(found["arrays"]),
            number,
            dropped,
            None if rows is None else int(rows),
        )


class Rows:
    """The rows of a table that were there when somebody looked.

    Attributes:
        table: The table.
        columns: Its columns, by the names of their files.
        order: The column of their numbers.
        entries: Its entries, shape `(entries, 2)`.
        count: Number of rows whose arrays are all whole.
        problem: The damage, or the empty text.
    """

    def __init__(self, table: Table, columns: dict[str, Column], order: Column, shares: bool):
        self.table, self.columns, self.order = table, columns, order
        self.count = min(column.count for column in columns.values())
        self.problem = next((column.problem for column in columns.values() if column.problem), "")
        self.entries = self._read(order)
        if len(self.entries) or order.problem:
            numbered = int(self.entries[-1, 0]) if len(self.entries) else 0
            if self.count >= numbered and all(column.can_grow for column in columns.values()):
                self.count, self.problem = numbered, order.problem
            elif not self.problem:
                self.problem = f"{table.folder} is damaged: it has {self.count} rows of {numbered}."
        elif shares and table.rows is None:
            self.count = 0
        if table.rows is not None and self.count >= table.rows:
            self.count, self.problem = table.rows, ""

    def _read(self, order: Column) -> np.ndarray:
        """The entries of the numbers, up to one that cannot be."""
        entries = order.read()
        ends, numbers = entries[:, 0], entries[:, 1]
        is_next = (np.diff(ends, prepend=0) >= 0) & (np.diff(numbers, prepend=self.table.number - 1) > 0)
        if not is_next.all() and not order.problem:
            order.problem = f"{order.path} is damaged: its numbers do not increase."
        return entries if is_next.all() else entries[: int(is_next.argmin())]

    @property
    def last_number(self) -> int:
        """The number of the last row."""
        if not self.count or not len(self.entries):
            return self.table.number
        return int(self.entries[np.searchsorted(self.entries[:, 0], self.count), 1])

    @property
    def all_numbers(self) -> set[int]:
        """The numbers of rows, also of those that are not whole."""
        return {self.table.number, *self.entries[:, 1].tolist()}

    def next_number(self, known: Container[int]) -> int:
        """The number of the row after the last one; where it is lost, the first that is not known in other tables."""
        later = self.entries[self.entries[:, 0] > self.count, 1]
        if len(later):
            return int(later[0])
        if not self.count:
            return self.table.number
        return next(number for number in itertools.count(self.last_number + 1) if number not in known)

    def numbers(self) -> np.ndarray:
        """The number of each row, shape `(rows,)`: those with larger ones came later."""
        if not len(self.entries):
            return np.full(self.count, self.table.number)
        return np.repeat(self.entries[:, 1], np.diff(np.minimum(self.entries[:, 0], self.count), prepend=0))

    def cut(self, last: int) -> None:
        """Forgets rows whose number is larger than this one."""
        self.count = int(np.searchsorted(self.numbers(), last, "right"))

    def timeline(self) -> Timeline:
        """The events.

        Raises:
            StorageError: The files changed since.
        """
        entries = {name: column.read()[: self.count] for name, column in self.columns.items()}
        dropped = self.table.dropped
        counts = None if dropped is None else np.array(dropped, np.int32)
        return dataclasses.replace(self.table.layout.timeline(entries), dropped=counts)


class Appender:
    """Adds rows to a table.

    Args:
        rows: The rows of the table.
        files: The pool of open files.
        durable: Whether readers see rows only when they are on the disk, which is when `sync` returns.

    Attributes:
        table: The table.
        sharing: The appenders of other tables of the run that have one of its keys.
        is_latest: Whether none of them got rows after it did.

    Raises:
        StorageError: It is damaged.
    """

    def __init__(self, rows: Rows, files: OpenFiles, durable: bool = False):
        if rows.problem:
            raise StorageError(rows.problem)
        self.table, self._files, self._durable, self._order = rows.table, files, durable, rows.order
        self.sharing: list[Appender] = []
        self.is_latest = True
        self._columns = [(file, rows.columns[file.name]) for file in rows.table.layout.files]
        self._cut(rows.count)
        self._number = rows.last_number
        self._unsaid: list[tuple[int, int]] = []
        self._order.count = len(rows.entries)
        self._said = rows.last_number if len(rows.entries) else None

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._columns[0][1].count

    @property
    def columns(self) -> Iterator[Column]:
        """Its columns, and that of the numbers."""
        yield from (column for _, column in self._columns)
        yield self._order

    def append(self, events: Timeline, number: int | None = None) -> None:
        """Adds events as rows, with all of their arrays or not at all.

        Args:
            events: The events. Without a mask, they happened in all batch elements.
            number: Their number, where it is not that of the row before.
        """
        count, mask = self.count, self.table.layout.mask
        if mask is not None and events.mask is None:
            events = dataclasses.replace(events, mask=np.ones((len(events), *mask.shape), bool))
        try:
            for file, column in self._columns:
                column.append(file.entries(events), self._files, not self._durable)
            if self.is_numbered:
                self.number([(self.count, self._number if number is None else number)])
        except BaseException:
            self._cut(count)
            raise

    @property
    def is_numbered(self) -> bool:
        """True if its rows are in entries of numbers."""
        return bool(self._order.count or self._unsaid)

    def number(self, entries: Iterable[tuple[int, int]], synced: bool = False) -> None:
        """Says which numbers rows have.

        Args:
            entries: Pairs of how many rows there are, and the number of the last ones.
            synced: Whether they are on the disk when it returns. Else, those of durable rows are written by `sync`.
        """
        for entry in entries:
            if self._unsaid and self._unsaid[-1][1] == entry[1]:
                self._unsaid.pop()
            self._unsaid.append(entry)
            self._number = entry[1]
        if synced or not self._durable:
            self._say_numbers(synced)

    def share(self) -> None:
        """Numbers its rows, since another table has one of its keys.

        The numbers are on the disk when it returns, as it has no rows without them once the manifest names the other.
        """
        if not self.is_numbered:
            self._sync_rows()
            self.number([(self.count, self._number)], synced=True)

    def _say_numbers(self, synced: bool) -> None:
        """Writes the new entries, to the disk if asked. The first one may be the last in the file, with more rows."""
        unsaid, self._unsaid = self._unsaid, []
        there = self._order.count
        if unsaid and unsaid[0][1] == self._said:
            self._order.count -= 1
        try:
            self._order.append(np.array(unsaid, ENTRY[0]).reshape(-1, 2), self._files, not synced)
            if synced:
                _sync_and_tell([self._order], self._files)
        except BaseException:
            self._order.count = there
            raise
        if unsaid:
            self._said = unsaid[-1][1]

    def sync(self) -> None:
        """Flushes the rows to the disk, if they are durable."""
        self._sync_rows()
        if self._durable:
            self._say_numbers(synced=True)

    def _sync_rows(self) -> None:
        if self._durable:
            _sync_and_tell([column for _, column in self._columns], self._files)

    def check(self) -> None:
        """Checks that its files are where they were.

        Raises:
            StorageError: One was removed.
        """
        for column in self.columns:
            column.check()

    def _cut(self, count: int) -> None:
        """Has later rows overwritten, since not all of their arrays were written."""
        for _, column in self._columns:
            column.count = count


def _sync_and_tell(columns: Sequence[Column], files: OpenFiles) -> None:
    """Flushes new entries to the disk, and then their number: they are whole before they are said to be there."""
    for act in (Column.sync, Column.tell, Column.sync):
        for column in columns:
            act(column, files)


def look_at(tables: Sequence[Table]) -> list[Rows]:
    """The rows that the tables of a run have now."""
    number = collections.Counter(key for table in tables for key in table.layout.keys)
    return [table.look(any(number[key] > 1 for key in table.layout.keys)) for table in tables]


def move(folder: Path, run: Path, prefix: str, start: int) -> Path:
    """Moves a directory into that of a run, to a name that is free: a prefix and a number, from `start` on."""
    for number in itertools.count(start):
        place = run / f"{prefix}{number}"
        with contextlib.suppress(OSError):
            os.rename(folder, place)
            return place
        if not place.exists():
            os.rename(folder, place)  # The error says why it cannot be done.
    raise AssertionError("unreachable")


@contextlib.contextmanager
def scratch(run: Path) -> Iterator[Path]:
    """Make a directory in that of a run, in which no reader looks, and remove it afterwards."""
    folder = run / f".{uuid.uuid4().hex}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_scratch(run: Path) -> None:
    """Removes such directories of processes that were killed."""
    for folder in run.glob(".*"):
        if re.fullmatch(r"\.[0-9a-f]{32}", folder.name):
            shutil.rmtree(folder, ignore_errors=True)


def tables_of(manifest: Mapping[str, Any], run: Path) -> list[Table]:
    """The tables of a run, by its manifest.

    Raises:
        StorageError: The manifest is damaged.
    """
    try:
        return [Table.from_json(run, found) for found in manifest["tables"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{run / MANIFEST} is damaged: {error!r} in its tables.") from error


def keys_in_order(manifest: Mapping[str, Any], tables: Iterable[Table]) -> list[str]:
    """The keys of a run in the order in which they first appeared; of a run that does not say, in that of its tables.

    How keys share tables depends on when they were written, and so does the order of keys in tables.

    Raises:
        StorageError: The manifest is damaged.
    """
    said = manifest.get("keys", [])
    if not isinstance(said, list) or not all(isinstance(key, str) for key in said):
        raise StorageError(f"a {MANIFEST} is damaged: its keys are no list of text.")
    return [*dict.fromkeys([*said, *(key for table in tables for key in sorted(table.layout.keys))])]
