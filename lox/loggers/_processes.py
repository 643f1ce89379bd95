"""Which of the processes that `jax.distributed` connects writes what arrives in them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import jax

from lox import _transform
from lox._exceptions import LogValueError, TapWarning
from lox.loggers._run import Key, Run

Word = Literal["first", "all"]


class Here(NamedTuple):
    """This process: its index, and how many there are."""

    process: int
    processes: int


@functools.cache
def here() -> Here:
    """This process, which stays what it is once there are devices."""
    return Here(jax.process_index(), jax.process_count())


class Processes:
    """Says whether this process writes what arrived in it, and to a run of which name.

    Args:
        word: The processes that write; None for the first one, and a warning where another leaves something out.
    """

    def __init__(self, word: Word | None):
        if word is not None:
            _transform.choice("processes", word, ("first", "all"))
        self._word = word
        self._warns = word is None

    def waits(self) -> bool:
        """Whether a run begins with its logs only, as other processes may be those that get them."""
        return self._word == "all" and here().processes > 1

    def writes(self, logger: object, key: Key, axis: int | None) -> bool:
        """Whether this process writes logs that arrived in it.

        Args:
            logger: The logger.
            key: The words of the run's key.
            axis: That of shards, as `lox.loggers._run.shard_axis` says it.

        Raises:
            LogValueError: It does not, and the first process has not got them. A `ValueError`.
        """
        if self._word == "all" or here().process == 0:
            return True
        which = f"what process {here().process} of {here().processes} logs to run {Run(key).name}"
        if axis is not None:
            raise LogValueError(
                f"{logger!r} does not write {which}: it differs between the shards of a shard_map, and the first "
                "process, which writes, has other ones. Log what is the same on all shards, such as a lax.pmean, or "
                'let each process write its own with processes="all".'
            )
        if self._warns:
            self._warns = False
            warnings.warn(
                f"{logger!r} does not write {which}, since the first process writes. Say that all processes log the "
                'same with processes="first", or let each write its own with processes="all".',
                TapWarning,
                stacklevel=2,
            )
        return False

    def title(self, key: Key, axis: int | None) -> str:
        """The name of the run that they are written to, where it is not that of the key."""
        return f"{Run(key).name}-process{here().process}" if axis and self.waits() else ""


def home(arrays: Iterable[Any]) -> int | None:
    """The first process that has a part of arrays that several have; None when they are all of this one."""
    return min((_first(array.sharding) for array in arrays if _is_global(array)), default=None)


def are_spread(arrays: Iterable[Any]) -> bool:
    """Whether no single process has all of the arrays."""
    return any(_is_global(array) and not array.is_fully_replicated for array in arrays)


def _is_global(array: Any) -> bool:
    return isinstance(array, jax.Array) and not array.is_fully_addressable


@functools.lru_cache
def _first(sharding: Any) -> int:
    return min(device.process_index for device in sharding.device_set)
