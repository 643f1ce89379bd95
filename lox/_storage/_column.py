"""A file that is one array of NumPy, which grows."""

from __future__ import annotations

import dataclasses
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import LogValueError, StorageError

HEADER = 128
"""The length of the header of a column: a multiple of 64, with room for any count."""

UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
"""What maps a file without keeping a descriptor of it, which only newer versions of Python can do."""

READ_AT_ONCE = 2**16 if UNTRACKED else 2**20
"""The bytes of the largest array that is read at once. Larger ones are mapped."""


@dataclasses.dataclass
class Column:
    """One array that grows.

    Attributes:
        path: Its file.
        dtype: The dtype on disk.
        shape: The shape of one entry.
        count: How many entries there are.
    """

    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    count: int

    @classmethod
    def create(cls, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Column:
        """A new column without entries, whose file is there with its header or not at all."""
        column = cls(path, dtype, shape, 0)
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(column._header())
        os.rename(new, path)
        return column

    @classmethod
    def open(cls, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Column:
        """A column that is there.

        Raises:
            StorageError: It is damaged: it is no array of this dtype and shape, or shorter than it says.
        """
        with _file(path) as file:
            return cls._opened(file, path, dtype, shape)

    @classmethod
    def read(cls, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """The entries of a column that is there, which cannot be written to.

        Raises:
            StorageError: As `open`.
        """
        with _file(path) as file:
            column = cls._opened(file, path, dtype, shape)
            size = column.count * column._entry_bytes()
            whole = (column.count, *shape)
            if size <= READ_AT_ONCE:
                return np.ndarray(whole, dtype, file.read(size))
            mapped = mmap.mmap(file.fileno(), HEADER + size, access=mmap.ACCESS_READ, **UNTRACKED)
            return np.ndarray(whole, dtype, mapped, HEADER)

    @classmethod
    def _opened(cls, file: Any, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> Column:
        """The column of a file, which is read up to the first entry."""
        try:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f"it is of version {version} of the format of NumPy")
            whole, by_columns, found = np.lib.format.read_array_header_1_0(file)
            if by_columns or not whole or (found, whole[1:], file.tell()) != (dtype, shape, HEADER):
                raise ValueError(f"it is no column of {dtype.name}{list(shape)}")
            column = cls(path, dtype, shape, whole[0])
            end, there = HEADER + column.count * column._entry_bytes(), os.fstat(file.fileno()).st_size
            if there < end:
                raise ValueError(f"it has {there} bytes of {end}")
        except (ValueError, EOFError) as error:
            raise StorageError(f"{path} is damaged: {error}") from error
        return column

    def append(self, entries: np.ndarray) -> None:
        """Adds entries, of shape `(n, *shape)`."""
        data = np.ascontiguousarray(entries, self.dtype)
        # Without a buffer, each write is one call of the system: the header is there as a whole or not at all.
        with open(self.path, "r+b", buffering=0) as file:
            file.seek(HEADER + self.count * self._entry_bytes())
            _write(file, data.reshape(-1).view(np.uint8).data)
            self.count += len(data)
            file.seek(0)
            _write(file, self._header())

    def _entry_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def _header(self) -> bytes:
        shape = (self.count, *self.shape)
        text = f"{{'descr': {np.lib.format.dtype_to_descr(self.dtype)!r}, 'fortran_order': False, 'shape': {shape}, }}"
        length = HEADER - 10
        if len(text) >= length:
            raise LogValueError(f"The shape {shape} has too many axes to be saved.")
        return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def lost(path: Path) -> StorageError:
    """The error of a column that is gone: there are no events in others before all columns are there."""
    return StorageError(f"{path} is damaged: it is gone, and events of its key are in the files beside it.")


def _file(path: Path) -> Any:
    if path.exists() and not path.is_file():  # Opening a pipe would wait for someone to write into it.
        raise StorageError(f"{path} is damaged: it is no file.")
    return open(path, "rb")


def _write(file: Any, data: Any) -> None:
    written = 0
    while written < len(data):
        written += file.write(data[written:])
