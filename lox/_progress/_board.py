"""The host's side of bars: how far each loop is, how long its next chunk is, and when this is shown."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator

from lox import _channel, _compat
from lox._channel import Receiver
from lox._exceptions import ProgressWarning
from lox._progress._display import Display, Row, Run
from lox._progress._names import Names
from lox._progress._report import LONGEST, Loop

DELAY = 0.5
"""Seconds before a loop is shown, and before bars are closed when no loop runs any more."""

CHUNKS = 33
"""Chunks between two updates. When iterations take a hundred times as long, the chunk that runs takes three updates."""

_PATIENCE = 2.0
"""Seconds for which the program waits for the last drawing."""

GROWTH = 8
"""The most by which a chunk is longer than the one before: the time of a few iterations tells little."""


class Board(Receiver):
    """The bars of one function, which compiled programs know by number.

    Loops report from threads of JAX, several at a time. While there is something to show, a
    thread of its own draws it.
    """

    def __init__(self, names: Names, refresh: float):
        """Take the names of the loops, and how often a second the display changes."""
        super().__init__()
        self.names = names
        self._seconds = 1 / refresh
        self._warned = False
        self.begin()
        _boards.add(self)

    def begin(self) -> None:
        """Begin anew, without a loop. In a forked process no thread goes on, and one may have held the lock."""
        self._lock = threading.Lock()
        self._runs: dict[int, Run] = {}
        self._rows: list[Row] = []
        self._ended: list[Row] = []
        self._told = 0.0
        self._calls = 0
        self._has_raised = False
        self._drawer: threading.Thread | None = None
        self._closes = False
        self._wake = threading.Event()

    # -- Called by loops, on threads of JAX -----------------------------------------------------------------------

    def report(self, loop: Loop, number: int, done: int, live: int) -> tuple[int, int]:
        """Take note of how far a loop is.

        Args:
            loop: The loop.
            number: The number of the run, or 0.
            done: The number of iterations since the last report, or of their groups.
            live: The number of batch elements that go on, or 0 when there is no further iteration.

        Returns:
            The number of the run, and the number of iterations of the next chunk, or of their groups.
        """
        now = time.perf_counter()
        with self._lock:
            run = self._runs.get(number) or self._begun(loop, now)
            seconds = now - run.told
            run.told = self._told = now
            run.count += done * loop.unroll
            run.live = live
            if not live:
                run.count = run.count if loop.length is None else loop.length
                run.is_over = True
                del self._runs[run.number]
        growth = min(self._seconds / CHUNKS / seconds, GROWTH) if seconds and number else 1
        return run.number, max(
            1, min(int(done * growth + 0.25), LONGEST)
        )  # A little less than a number is that number.

    def _begun(self, loop: Loop, now: float) -> Run:
        run = Run(next(_numbers), loop, now, now)
        self._runs[run.number] = run
        for row in self._rows:
            if row.run.loop.path == loop.path and row.run.is_over:
                row.run, row.runs = run, row.runs + 1
                break
        else:
            self._rows.append(Row(run))
        if self._drawer is None and not self._warned and not _is_quiet():
            self._closes = False
            self._wake.clear()
            self._drawer = threading.Thread(target=self._draw, name="lox.progress", daemon=True)
            self._drawer.start()
        return run

    # -- Called by the program ------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """The context of a call of the function. At its end its bars are closed, unless it was short."""
        began = time.perf_counter()
        with self._lock:
            self._calls += 1
        raised = True
        try:
            yield
            raised = False
        finally:
            with self._lock:
                self._calls -= 1
                self._has_raised |= raised
                if not self._calls and self._has_raised:  # Its loops have ended without telling so.
                    self._runs.clear()
                    self._has_raised = False
                closes = not self._calls and not self._runs
            if closes and time.perf_counter() - began >= DELAY:
                self.close()

    def close(self) -> None:
        """Draw the bars for the last time."""
        with self._lock:
            drawer, self._closes = self._drawer, True
        self._wake.set()
        if drawer is not None:
            drawer.join(_PATIENCE)

    def failed(self, error: BaseException, where: str) -> None:
        """Showing bars raised an error: warn of the first."""
        if self._warned:
            return
        self._warned = True
        text = "".join(traceback.format_exception(error))
        message = f"lox.progress failed to show {where}, and shows nothing from now on. The program goes on.\n{text}"
        try:
            warnings.warn(message, ProgressWarning, stacklevel=1)
        except ProgressWarning as warning:  # Warnings are errors here.
            _channel.keep(warning)

    # -- On the thread that draws ---------------------------------------------------------------------------------

    def _draw(self) -> None:
        try:
            began = time.perf_counter()
            with contextlib.closing(Display(self.names)) as display:
                self._wake.wait(DELAY)
                while (rows := self._rows_to_show()) is not None:
                    display.update(rows)
                    self._wake.wait(self._seconds)
                if time.perf_counter() - began >= DELAY:
                    display.update(self._ended)
        except Exception as error:  # noqa: BLE001
            with self._lock:
                self._drawer = None
            self.failed(error, "its bars")

    def _rows_to_show(self) -> list[Row] | None:
        """The rows to show; None when all is over, from when on another thread draws what begins then."""
        with self._lock:
            is_idle = not self._calls and time.perf_counter() - self._told >= DELAY
            if self._runs and not self._closes or not (self._closes or is_idle):
                return list(self._rows)
            self._drawer, self._ended, self._rows = None, self._rows, []
            return None


_numbers = itertools.count(1)
_boards: weakref.WeakSet[Board] = weakref.WeakSet()
_compat.cache_weakly(Board)


def _is_quiet() -> bool:
    return "PYTEST_CURRENT_TEST" in os.environ


def _begin_all() -> None:
    for board in _channel.members(_boards):
        board.begin()


def _close_all() -> None:
    for board in _channel.members(_boards):
        board.close()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):  # Windows does not fork.
    os.register_at_fork(after_in_child=_begin_all)
