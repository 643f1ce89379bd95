"""Errors of the runs of a logger: warned of at once, and raised by the next flush."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings

from lox import _channel
from lox._exceptions import LoggerWarning

LONGEST = 500
"""Largest number of characters of an error in a warning."""


@dataclasses.dataclass
class Unstarted:
    """A run whose start failed.

    Attributes:
        error: The error that it raised.
        lost: Number of its events that were not written since an error was raised last.
        raised: Number of times that errors had been raised to the program when it failed.
    """

    error: BaseException
    lost: int = 0
    raised: int = 0

    def lose(self, count: int) -> None:
        """Counts events that are not written, in a note of the error."""
        if self.raised != _channel.times_raised():  # It was raised before they came.
            self.raised = _channel.times_raised()
            _channel.keep(self.error)
        notes = [note for note in getattr(self.error, "__notes__", []) if note != self._note]
        self.lost += count
        self.error.__notes__ = [*notes, self._note]

    @property
    def _note(self) -> str:
        return f"Events of the run that were not written: {self.lost}."


class Failures:
    """The errors of one logger. Used on its thread."""

    def __init__(self) -> None:
        self._said: set[tuple[str, type[BaseException]]] = set()
        self._unstarted: dict[str, Unstarted] = {}

    def not_started(self, logger: object, identity: str, name: str, error: BaseException) -> None:
        """Takes down that the start of a run failed."""
        self._unstarted[identity] = Unstarted(error, 0, _channel.times_raised())
        then = "Its events are not written. It begins again after a flush has raised this error."
        self.say(logger, error, name, then)

    def waits(self, identity: str) -> bool:
        """Say whether a run is not to be started: that has failed, and the program does not know it yet."""
        found = self._unstarted.get(identity)
        return found is not None and found.raised == _channel.times_raised()

    def lose(self, identity: str, count: int) -> None:
        """Counts events of a run that could not be started."""
        self._unstarted[identity].lose(count)

    def say(
        self, logger: object, error: BaseException, run: str = "", then: str = "The next flush raises this error."
    ) -> None:
        """Warns of an error that was kept, once for each run and type of error.

        Where warnings are errors, the one that was kept is enough.
        """
        kind = type(error)
        if (run, kind) in self._said or (not run and any(kind is said for _, said in self._said)):
            return
        self._said.add((run, kind))
        what = str(error).partition("\n")[0][:LONGEST].rstrip(".")
        where = f"{logger!r} has a problem" + (f" with run {run}" if run else "")
        with contextlib.suppress(LoggerWarning):
            warnings.warn(f"{where}: {kind.__name__}: {what}. {then}", LoggerWarning, stacklevel=2)
