"""The processes that write logs, among those that `jax.distributed` connects."""

from __future__ import annotations

import concurrent.futures
import functools
import warnings
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from lox import _transform
from lox._arguments import untyped
from lox._exceptions import LogValueError, TapWarning
from lox._keys import impl_of, key_data
from lox.loggers._arrived import Arrived
from lox.loggers._experiment import Experiment

Word = Literal["first", "all"]


class Here(NamedTuple):
    """This process: its index, how many there are, and how many devices it has."""

    process: int
    processes: int
    devices: int


@functools.cache
def here() -> Here:
    """This process, which stays what it is once there are devices."""
    return Here(jax.process_index(), jax.process_count(), jax.local_device_count())


class Processes:
    """Says whether this process writes what arrived in it, and under which name of a run.

    Args:
        word: The processes that write; None for the first one, and a warning where another leaves something out.
    """

    def __init__(self, word: Word | None):
        if word is not None:
            _transform.choice("processes", word, ("first", "all"))
        self._word = word
        self._warns = word is None

    def shares(self) -> bool:
        """Say whether other processes may write to the same run."""
        return self._word == "all" and here().processes > 1

    def writes(self, logger: object, name: str, arrived: Arrived) -> bool:
        """Say whether this process writes logs that arrived in it.

        Args:
            logger: The logger.
            name: The name of the run.
            arrived: Their origin.

        Raises:
            LogValueError: It does not, and the first process has not got them. A `ValueError`.
        """
        if self._word == "all" or here().process == 0:
            return True
        which = f"what process {here().process} of {here().processes} logs to run {name}"
        if arrived.differs:
            raise LogValueError(
                f"{logger!r} does not write {which}: it differs between the shards of a shard_map, and the first "
                "process, which writes, has other ones. Log what is the same on all shards, such as a lax.pmean, or "
                'let each process write its own with processes="all".'
            )
        if arrived.devices > here().devices:
            raise LogValueError(
                f"{logger!r} does not write {which}: it arrives where the first device of the program's mesh is, which "
                "is not in the first process, which writes. Let the mesh begin with one of its devices, or let each "
                'process write what arrives in it with processes="all".'
            )
        if self._warns or arrived.devices > 1:  # Of which some may be of other processes.
            self._warns = False
            warnings.warn(
                f"{logger!r} does not write {which}, since the first process writes. Say that all processes log the "
                'same with processes="first", or let each write its own with processes="all".',
                TapWarning,
                stacklevel=2,
            )
        return False

    def suffix(self, arrived: Arrived) -> str:
        """The end of the names of the runs that they are written to."""
        return f"-process{here().process}" if arrived.axis and self.shares() else ""


def agree(experiment: Experiment) -> None:
    """Has all processes write the experiment that the first one begins or continues. All of them must call this.

    Raises:
        LogValueError: The first process cannot. A `ValueError`.
    """

    def exchanged() -> str:
        told = b""
        if here().process == 0:
            try:
                told = b"1" + experiment.told().encode()
            except Exception as error:  # noqa: BLE001  (the others wait for an answer)
                told = b"0" + f"{type(error).__name__}: {error}".encode()
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(told))))
        text = np.zeros(size, np.uint8) if here().process else np.frombuffer(told, np.uint8)
        return bytes(np.asarray(multihost_utils.broadcast_one_to_all(text))).decode()

    # Another thread computes at once, also while this one is traced.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        told = thread.submit(exchanged).result()
    if told[0] == "0":
        raise LogValueError(f"The first process could not begin an experiment. {told[1:]}")
    if here().process:
        experiment.follow(told[1:])


def home(arrays: Iterable[Any]) -> int | None:
    """The first process that has a part of arrays that several have; None when they are all of this one."""
    return min((_first(array.sharding) for array in arrays if _is_global(array)), default=None)


def whole(array: Any) -> Any:
    """An array that several processes have, as each of them has it when all of them have called this."""
    if not _is_global(array) or array.is_fully_replicated or not array.addressable_shards:
        return array
    impl, words = impl_of(array), multihost_utils.process_allgather(untyped(array), tiled=True)
    return words if impl is None else key_data(words, impl)


def _is_global(array: Any) -> bool:
    return isinstance(array, jax.Array) and not array.is_fully_addressable


@functools.lru_cache
def _first(sharding: Any) -> int:
    return min(device.process_index for device in sharding.device_set)
