"""Closing the loggers that are open when their process ends."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  (its threads end when the program does: loggers are written before that)
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from lox import _channel

GRACE = 1.0
"""Seconds that loggers have to write what waits, when the user has interrupted the wait for them before."""

opened: weakref.WeakSet[Any] = weakref.WeakSet()
"""The loggers that are open."""


def close_first() -> None:
    """Has loggers closed before what else happens at the exit.

    What a sink needs until it is closed may end at the exit as well, and the last to register is the first to run.
    """
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _write_all() -> None:
    """Writes what waits, when the program has ended and other threads may go on.

    After this, Python may start no threads, which some sinks need to begin a run. What a sink registers while its first
    run begins, to end at the exit, is registered in time, so that loggers are closed before it.
    """
    if _is_child_of_multiprocessing():
        _close_all()  # Such a process does nothing at the exit.
    elif opened or _channel.waiting:
        with _until_interrupted():
            _keeping_errors(_channel.wait)
            for logger in _channel.members(opened):
                logger._worker.wait(logger._sync)


def _close_all() -> None:
    with _until_interrupted():
        for worker in _channel.members(_channel.waiting):  # Those of loggers that are gone finish their runs.
            worker.wait()
    for logger in _channel.members(opened):
        with _until_interrupted():
            _keeping_errors(logger.close)


def _keeping_errors(act: Callable[[], None]) -> None:
    try:
        act()
    except BaseException as error:  # (the next logger is closed as well)
        if _channel.patience.has_ended():
            raise
        _channel.keep(error)  # which is printed when lox itself ends


@contextlib.contextmanager
def _until_interrupted() -> Iterator[None]:
    """Gives up what is not written yet when the user has waited long enough."""
    last = threading.Timer(GRACE, _give_up)
    if _channel.patience.is_over:
        with contextlib.suppress(RuntimeError):  # Python may start no more threads.
            last.start()
    try:
        yield
    except KeyboardInterrupt:
        _give_up()
    finally:
        last.cancel()


def _give_up() -> None:
    gathers = {logger._worker: logger.gathers for logger in _channel.members(opened)}
    workers = _channel.members(_channel.waiting)
    left = sum(worker.give_up(gathers.get(worker, False)) for worker in workers)
    if left:
        print(f"Interrupted: {left} deliveries to loggers were not written.", file=sys.stderr)


def _is_child_of_multiprocessing() -> bool:
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


close_first()
# It has no public name, but is what executors of `concurrent.futures` end by. It comes before all of `atexit`.
getattr(threading, "_register_atexit", atexit.register)(_write_all)
