"""The host's side of `lox.tap`: the receivers of logs, and the errors that they raise.

Nothing here calls JAX but `flush`: callbacks run on threads of its runtime, where JAX may deadlock.
"""

from __future__ import annotations

import abc
import atexit
import contextlib
import itertools
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax

from lox._compat import forget_what_runs
from lox._exceptions import TapWarning
from lox._logdict import logdict

Callback = Callable[[logdict], Any]


class Receiver(abc.ABC):
    """An object on the host that compiled programs call by its number.

    Attributes:
        number: The number.
    """

    def __init__(self) -> None:
        """Give it a number."""
        self.number = next(_numbers)
        _channels[self.number] = weakref.ref(self)
        weakref.finalize(self, _channels.pop, self.number)

    @abc.abstractmethod
    def failed(self, error: BaseException, where: str) -> None:
        """Report an error in a call that the program makes at `where`."""


@jax.tree_util.register_static
class Channel(Receiver):
    """One tap, as compiled programs know it: by number, or itself.

    Attributes:
        take: Takes the logs.
        warns: Whether an error of the callback is a warning.
    """

    def __init__(self, callback: Callback, prefix: str, warns: bool):
        super().__init__()
        self.take = callback if not prefix else lambda logs: callback(logs.prefix(prefix))
        self.warns = warns
        self._warned = False

    def failed(self, error: BaseException, where: str) -> None:
        """The callback raised an error for logs made at `where`."""
        note = f"The error was raised in a callback of lox.tap, for what is logged at {where}."
        if not self.warns:
            error.add_note(note)
            keep(error)
        elif not self._warned:
            self._warned = True
            text = "".join(traceback.format_exception(error))
            try:
                warnings.warn(f"{note} Further ones will not be reported.\n{text}", TapWarning, stacklevel=1)
            except TapWarning as warning:  # Warnings are errors here.
                keep(warning)


_numbers = itertools.count(1)
_channels: dict[int, weakref.ref[Receiver]] = {}
_closed: list[Receiver] = []
waiting: weakref.WeakSet[Any] = weakref.WeakSet()
"""Receivers of logs from callbacks; `wait` of one returns when all that it got has arrived."""


def members(found: weakref.WeakSet[Any]) -> list[Any]:
    """The members of a set, to which other threads may add some meanwhile."""
    while True:
        try:
            return list(found)
        except RuntimeError:  # It changed while it was read.
            continue


class Patience:
    """The user's patience with waits for what is to arrive.

    Attributes:
        is_over: Whether the user has interrupted a wait that came of an interrupt.
    """

    is_over = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Notes that a wait is interrupted."""
        try:
            yield
        except KeyboardInterrupt as interrupt:
            interrupt._lox_waited = True  # type: ignore[attr-defined]
            self.is_over = self.is_over or isinstance(interrupt.__context__, KeyboardInterrupt)
            raise

    def has_ended(self) -> bool:
        """Say whether this is called while an exception ends the program that has interrupted a wait."""
        return getattr(sys.exception(), "_lox_waited", False)


patience = Patience()

_errors: list[BaseException] = []
_later_errors = 0
_times_raised = 0
_lock = threading.RLock()  # Garbage collection may close a channel while this thread holds it.


def keep(error: BaseException) -> None:
    """Keeps an error until `flush` raises it."""
    global _later_errors
    with _lock:
        if _errors:
            _later_errors += 1
        else:
            _errors.append(error)


def times_raised() -> int:
    """Return the number of times that `flush` has raised a kept error."""
    return _times_raised


def find(number: int) -> Any:
    """The receiver of this number.

    Raises:
        RuntimeError: It is gone.
    """
    reference = _channels.get(number)
    receiver = None if reference is None else reference()
    if receiver is None:
        raise RuntimeError("a program calls a function of lox that is gone")
    return receiver


def failed(receiver: Receiver | None, error: BaseException, where: str) -> None:
    """Delivering what is logged at `where` raised an error. The program goes on, whatever it was."""
    if isinstance(error, KeyboardInterrupt):  # JAX may call from the main thread: the user wants the program to end.
        raise error
    if receiver is not None:
        receiver.failed(error, where)
    else:
        error.add_note(f"They are logged at {where}.")
        keep(error)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raises the `KeyboardInterrupt` that ended a program, which JAX reports as an error of its own."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt from error
        raise


def close(receiver: Receiver) -> None:
    """Lets go of a receiver as soon as all has arrived that was sent."""
    with _lock:
        _closed.append(receiver)


def release() -> None:
    """Lets go of closed channels when they are many."""
    if len(_closed) > 64:
        wait()


def wait(but: Any = None) -> None:
    """Waits until all that this thread has sent has arrived, and each receiver is done, except `but`."""
    with _lock:
        closed = list(_closed)
        _closed.clear()
    with interruptible(), patience():
        jax.effects_barrier()
    for each in members(waiting):
        if each is not but:
            each.wait()
    del closed  # No sooner: what is on its way finds its channel.


before_flush: list[Callable[[], None]] = []
"""Functions of other modules that `flush` calls first, to wait for their own work."""


def flush() -> None:
    """Wait for all callbacks of `lox.tap` that this thread has started, and raise their errors.

    It also waits for the calls of functions that `lox.guard` guards, and looks whether one has failed.

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
    global _later_errors, _times_raised
    for settle in before_flush:
        settle()
    try:
        wait()
    finally:
        if not isinstance(sys.exception(), KeyboardInterrupt):  # The next call raises them.
            with _lock:
                errors, later = list(_errors), _later_errors
                _errors.clear()
                _later_errors = 0
                _times_raised += len(errors)
    for error in errors:
        if later:
            error.add_note(f"Callbacks raised {later} more errors after this one.")
        raise error


def forget() -> None:
    """Begins anew in a forked process: what is on its way arrives in its parent, for whom errors are kept as well."""
    global _later_errors, _lock
    _lock = threading.RLock()
    _errors.clear()
    _later_errors = 0
    _closed.clear()
    forget_what_runs()


def _at_exit() -> None:
    try:
        flush()
    except BaseException as error:  # noqa: BLE001
        print("An error was raised in lox.tap and never reported, for want of a lox.flush():", file=sys.stderr)
        traceback.print_exception(error)


atexit.register(_at_exit)
