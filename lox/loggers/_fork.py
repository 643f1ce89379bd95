"""Loggers of a process that forks.

A fork copies what is in memory and none of the threads. So it waits until the loggers have written what waits: then no
sink is in the middle of something, no buffer holds what both processes would write, and it is known which runs have
begun. In the child, a logger writes other runs than these.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping

from lox import _channel
from lox._exceptions import LogValueError
from lox.loggers import _exit
from lox.loggers._run import Run
from lox.loggers._worker import Worker

LONGEST = 5.0
"""Largest number of seconds that a fork waits for loggers to write what waits."""


@dataclasses.dataclass(frozen=True)
class Inherited:
    """The state that a logger in a forked process has of its parent.

    Attributes:
        runs: The names of the runs that the parent had begun, by their identities.
        is_whole: Whether nothing waited to be written when the process was forked.
    """

    runs: Mapping[str, str]
    is_whole: bool

    @classmethod
    def of(cls, before: Inherited | None, runs: Mapping[str, Run], is_whole: bool) -> Inherited:
        """Make that of a logger with these runs, which may have inherited others `before`."""
        names = {identity: run.name for identity, run in runs.items()}
        return cls(names if before is None else {**before.runs, **names}, is_whole)

    def check(self, logger: object, identity: str) -> None:
        """Checks that this process may write a run.

        Raises:
            LogValueError: The parent has begun it, or may have. A `ValueError`.
        """
        if not self.is_whole:
            raise LogValueError(
                f"{logger!r} was still writing {LONGEST:g} s after this process was to be forked, and cannot be used "
                "in it. Make another logger in this process, or call `flush` before the fork."
            )
        if identity in self.runs:
            raise LogValueError(
                f"Run {self.runs[identity]} of {logger!r} was begun by the process from which this one was forked, and "
                "both would write it. Make another logger in this process, or log to a run of another key, config or "
                "name."
            )


class _Held(threading.local):
    """The workers that are held while this thread forks."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []


_held = _Held()


def _before() -> None:
    until = time.monotonic() + LONGEST
    for worker in _channel.members(_channel.waiting):
        if worker.hold(until):
            _held.workers.append(worker)


def _after_in_parent() -> None:
    for worker in _held.workers:
        worker.release()
    _held.workers.clear()


def _after_in_child() -> None:
    _channel.forget()
    whole = {id(worker) for worker in _held.workers}
    _held.workers.clear()
    for worker in _channel.members(_channel.waiting):
        worker.forget()
    for logger in _channel.members(_exit.opened):
        logger._forked(id(logger._worker) in whole)
    _exit.opened.clear()  # Those that the child writes with are closed at its end, and no others.


if hasattr(os, "register_at_fork"):  # Windows does not fork.
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
