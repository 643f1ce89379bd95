"""A file that is one array of NumPy, which grows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from lox._exceptions import LogValueError, StorageError

HEADER = 128
"""The length of the header of a column: a multiple of 64, with room for any count."""


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
        """A new column without entries."""
        column = cls(path, dtype, shape, 0)
        with open(path, "xb") as file:
            file.write(column._header())
        return column

    @classmethod
    def open(cls, path: Path) -> Column:
        """A column that is there."""
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise StorageError(f"{path} is no column of lox: it is of version {version} of the format of NumPy.")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        return cls(path, dtype, shape[1:], shape[0])

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


def _write(file: Any, data: Any) -> None:
    written = 0
    while written < len(data):
        written += file.write(data[written:])
