"""A file that is one array of NumPy, which grows."""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import StorageError

COUNT_AT, COUNT_BYTES = 64, 24
"""Place of the number of entries in the header: within one line of a processor's cache, and its last eight digits in
one word, so that a reader sees one number or the next one while the file is written."""

READ_AT_ONCE = 2**16 if sys.version_info >= (3, 13) else 2**20
"""The bytes of the largest array that is read at once. Larger ones are mapped."""

UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""Options that map a file without keeping a descriptor of it, which only newer versions of Python can do."""


class Column:
    """One array that grows.

    Attributes:
        path: Its file.
        dtype: The dtype on disk.
        shape: The shape of one entry.
        count: The number of entries.
        problem: The reason why entries are missing, where the file is damaged; else the empty text.
        can_grow: Whether entries can follow those that were found.
    """

    __slots__ = ("path", "dtype", "shape", "count", "problem", "can_grow", "_header", "_start", "_entry", "_file")

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]):
        self.path, self.dtype, self.shape = path, dtype, shape
        self.count, self.problem, self.can_grow = 0, "", True
        self._header = _header(dtype, shape)
        self._start = len(self._header)
        self._entry = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        self._file: tuple[int, int] | None = None

    @classmethod
    def create(cls, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Column:
        """A new column without entries."""
        column = cls(path, dtype, shape)
        path.write_bytes(column._header)
        return column

    @classmethod
    def find(cls, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Column:
        """Find a column that should exist, with those of its entries that do."""
        column = cls(path, dtype, shape)
        column.can_grow = False
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # Opening a pipe would wait for someone to write into it.
                raise ValueError("it is no file")
            with open(path, "rb", buffering=0) as file:
                column._look(file)
        except FileNotFoundError:
            column.problem = f"{path} is damaged: it is gone."
        except (OSError, ValueError) as error:
            column.problem = f"{path} is damaged: {error}."
        return column

    def read(self) -> np.ndarray:
        """The entries that were found, as an array that cannot be written to.

        Raises:
            StorageError: They are gone.
        """
        size, whole, start = self.count * self._entry, (self.count, *self.shape), self._start
        if not size:
            return np.ndarray(whole, self.dtype, b"")
        try:
            with open(self.path, "rb") as file:
                if size > READ_AT_ONCE:
                    mapped = mmap.mmap(file.fileno(), start + size, access=mmap.ACCESS_READ, **UNTRACKED)
                    return np.ndarray(whole, self.dtype, mapped, start)
                file.seek(start)
                return np.ndarray(whole, self.dtype, file.read(size))
        except (FileNotFoundError, TypeError, ValueError) as error:
            raise StorageError(f"{self.path} is damaged: it changed while it was read ({error}).") from error

    def append(self, entries: np.ndarray, files: OpenFiles, tells: bool = True) -> None:
        """Adds entries, of shape `(n, *shape)`. Their data is written first, and their number after it.

        Args:
            entries: The entries.
            files: The pool of open files.
            tells: Whether the file says now how many it has.
        """
        data = np.ascontiguousarray(entries, self.dtype)
        size = data.nbytes
        if size:
            _write(files.of(self), data, size, self._start + self.count * self._entry)
        self.count += len(data)
        if tells:
            self.tell(files)

    def tell(self, files: OpenFiles) -> None:
        """Writes the number of entries to the file."""
        _write(files.of(self), b"%24d" % self.count, COUNT_BYTES, COUNT_AT)

    def sync(self, files: OpenFiles) -> None:
        """Flushes what was written to the disk."""
        os.fsync(files.of(self))

    def check(self) -> None:
        """Checks that the file is where it was.

        Raises:
            StorageError: It was removed.
        """
        if not self.path.exists():
            raise StorageError(f"{self.path} was removed while a logger writes it.")

    def open(self) -> int:
        """A descriptor of its file, to write to.

        Raises:
            StorageError: It is not the file that this column was.
        """
        descriptor = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0))
        found = os.fstat(descriptor)
        if self._file not in (None, (found.st_dev, found.st_ino)):
            os.close(descriptor)
            raise StorageError(f"{self.path} is another file than the one that was written before.")
        self._file = found.st_dev, found.st_ino
        return descriptor

    def _look(self, file: Any) -> None:
        """Finds how many entries a file has.

        Raises:
            ValueError: Its content is not as expected.
        """
        end = COUNT_AT + COUNT_BYTES
        found = file.read(len(self._header))
        if not found:
            raise ValueError("it is empty")
        if (found[:COUNT_AT], found[end:]) != (self._header[:COUNT_AT], self._header[end:]):
            raise ValueError(f"it does not begin as a column of {self.dtype.name}{list(self.shape)}")
        count = int(found[COUNT_AT:end])
        self.can_grow = True
        there = (os.fstat(file.fileno()).st_size - len(found)) // self._entry if self._entry else count
        self.count = max(0, min(count, there))
        if self.count != count:
            raise ValueError(f"it has {self.count} whole entries of {count}")


class OpenFiles:
    """The files that are open to be written to: those that were used last.

    To open and close a file costs more than to write an event to it.
    """

    def __init__(self, most: int = 64):
        self._most = most
        self._open: collections.OrderedDict[Column, int] = collections.OrderedDict()

    def of(self, column: Column) -> int:
        """The descriptor of the file of a column.

        Raises:
            StorageError: As `Column.open`.
        """
        descriptor = self._open.get(column)
        if descriptor is not None:
            self._open.move_to_end(column)
            return descriptor
        if len(self._open) >= self._most:
            os.close(self._open.popitem(last=False)[1])
        self._open[column] = descriptor = column.open()
        return descriptor

    def close(self, columns: Iterable[Column] | None = None) -> None:
        """Closes the files of these columns, or all."""
        for column in [*self._open] if columns is None else columns:
            if (descriptor := self._open.pop(column, None)) is not None:
                os.close(descriptor)

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def sync(path: Path) -> None:
    """Flushes a file, or the names in a directory, to the disk."""
    with contextlib.suppress(PermissionError):  # Windows opens no directory.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The header of a column without entries. Its length is a multiple of 64."""
    begin = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': ("
    end = "".join(f", {length}" for length in shape) or ","
    text = f"{begin:<{COUNT_AT - 10}}{0:>{COUNT_BYTES}}{end}), }}"
    length = -(-(10 + len(text) + 1) // 64) * 64 - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


if hasattr(os, "pwrite"):
    _write_at = os.pwrite
else:  # On Windows.

    def _write_at(file: int, data: Any, offset: int, /) -> int:
        os.lseek(file, offset, os.SEEK_SET)
        return os.write(file, data)


def _write(file: int, data: Any, size: int, offset: int) -> None:
    written = _write_at(file, data, offset)
    while written < size:  # One call of the system writes at most 2 GB, and less on a disk that is nearly full.
        written += _write_at(file, memoryview(data).cast("B")[written:], offset + written)
