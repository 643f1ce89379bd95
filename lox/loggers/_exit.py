"""The loggers that are open: the exit of the interpreter closes them, and a forked process forgets them."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any

from lox import _channel

loggers: weakref.WeakSet[Any] = weakref.WeakSet()
"""The loggers that are open."""


def _close_all() -> None:
    for worker in _channel.members(_channel.waiting):  # Those of loggers that are gone finish their runs.
        worker.wait()
    for logger in _channel.members(loggers):
        try:
            logger.close()
        except BaseException as error:  # noqa: BLE001  (the next logger is closed as well)
            _channel.keep(error)  # which is printed when lox itself ends


def close_first_at_exit() -> None:
    """Close the loggers before what has registered by now to run at the exit."""
    # What a sink needs until it is closed may end at the exit as well, and the last to register is the first to run.
    atexit.unregister(_close_all)
    atexit.register(_close_all)


close_first_at_exit()


def _forget() -> None:
    for logger in loggers:
        logger._worker.forget()
    loggers.clear()


if hasattr(os, "register_at_fork"):  # Windows does not fork.
    os.register_at_fork(after_in_child=_forget)
