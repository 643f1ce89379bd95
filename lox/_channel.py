"""The host's side of `lox.tap`: who takes the logs that arrive, and what becomes of the errors that this raises.

Nothing here calls JAX but `flush`: callbacks run on threads of its runtime, where JAX may deadlock.
"""

from __future__ import annotations

import atexit
import itertools
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax

from lox._exceptions import TapWarning
from lox._logdict import logdict

Callback = Callable[[logdict], Any]


class Channel:
    """One tap, as compiled programs know it: by number.

    Attributes:
        number: The number.
        callback: Takes the logs.
        prefix: Put before every key.
        warns: Whether an error of the callback is a warning.
    """

    def __init__(self, callback: Callback, prefix: str, warns: bool):
        self.callback, self.prefix, self.warns = callback, prefix, warns
        self.number = next(_numbers)
        self._warned = False
        _channels[self.number] = weakref.ref(self)
        weakref.finalize(self, _channels.pop, self.number)

    def failed(self, error: BaseException, where: str) -> None:
        """The callback raised an error for logs made at `where`."""
        note = f"The error was raised in a callback of lox.tap, for what is logged at {where}."
        if not self.warns:
            error.add_note(note)
            _keep(error)
        elif not self._warned:
            self._warned = True
            text = "".join(traceback.format_exception(error))
            try:
                warnings.warn(f"{note} Further ones will not be reported.\n{text}", TapWarning, stacklevel=1)
            except TapWarning as warning:  # Warnings are errors here.
                _keep(warning)


_numbers = itertools.count(1)
_channels: dict[int, weakref.ref[Channel]] = {}
_closed: list[Channel] = []
_errors: list[BaseException] = []
_later_errors = 0
_lock = threading.RLock()  # Garbage collection may close a channel while this thread holds it.


def _keep(error: BaseException) -> None:
    global _later_errors
    with _lock:
        if _errors:
            _later_errors += 1
        else:
            _errors.append(error)


def deliver(number: int, make: Callable[[Any], logdict], arrays: Any, where: str) -> None:
    """Hands the logs that `make` makes of what arrived to their channel. The program goes on whatever that raises."""
    channel = None
    try:
        channel = _channels[number]()
        logs = make(arrays)
        channel.callback(logs.prefix(channel.prefix) if channel.prefix else logs)  # type: ignore[union-attr]
    except KeyboardInterrupt:  # JAX may call from the main thread: this is the user, who wants the program to end.
        raise
    except BaseException as error:  # noqa: BLE001
        if channel is not None:
            channel.failed(error, where)
        else:
            gone = RuntimeError("logs arrived for a function of lox.tap that is gone")
            gone.add_note(f"They are logged at {where}.")
            _keep(gone)


def close(channel: Channel) -> None:
    """Lets go of a channel as soon as all has arrived that was sent."""
    with _lock:
        _closed.append(channel)


def release() -> None:
    """Lets go of closed channels when they are many."""
    if len(_closed) > 64:
        _wait()


def _wait() -> None:
    with _lock:
        closed = list(_closed)
        _closed.clear()
    jax.effects_barrier()
    del closed  # No sooner: what is on its way finds its channel.


def flush() -> None:
    """Waits until all has arrived that this thread has sent through `lox.tap`, and raises what a callback raised.

    The first error is raised as it was, with a note of the log call; further ones are counted in another note. After
    that they count as reported. At the interpreter's exit lox does the same, and prints the errors.

    Raises:
        BaseException: Whatever a callback of `lox.tap` raised since the last call.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> def callback(logs):
    ...     raise OSError("disk full")
    >>> def f(x):
    ...     return lox.log({"x": x})["x"]
    >>> lox.tap(f, callback)(jnp.float32(1)).item()
    1.0
    >>> try:
    ...     lox.flush()
    ... except OSError as error:
    ...     print(error)
    disk full
    """
    global _later_errors
    try:
        _wait()
    finally:
        with _lock:
            errors, later = list(_errors), _later_errors
            _errors.clear()
            _later_errors = 0
    for error in errors:
        if later:
            error.add_note(f"Callbacks raised {later} more errors after this one.")
        raise error


def _at_exit() -> None:
    try:
        flush()
    except BaseException as error:  # noqa: BLE001
        print("An error was raised in lox.tap and never reported, for want of a lox.flush():", file=sys.stderr)
        traceback.print_exception(error)


atexit.register(_at_exit)
