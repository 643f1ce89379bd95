"""The changing display of a console: in place on a terminal and in a notebook, as lines in a file or pipe."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding

from lox._text import encodable

REFRESHES = 10
"""Largest number of times that a part in place is drawn again in a second."""


class Part(Protocol):
    """A part of the display."""

    def table(self, height: int) -> RenderableType:
        """Return its current state, in about so many lines."""

    def line(self) -> str:
        """The same in as few lines of text as possible."""


class Screen(Protocol):
    """Shows parts. Several threads may use it."""

    def add(self, part: Part) -> None:
        """Shows a part from now on."""

    def changed(self, part: Part) -> None:
        """Takes note that a part has changed."""

    def remove(self, part: Part) -> None:
        """Leaves a part as it is, and lets go of what it needed."""


class Terminal:
    """Draws all parts in place, on a thread of rich's own, below what the program prints."""

    def __init__(self, console: Console):
        self._console = console
        self._parts: list[Part] = []
        self._live: Live | None = None
        self._lock = threading.RLock()

    def add(self, part: Part) -> None:
        """See `Screen`."""
        with self._lock:
            self._parts = [*self._parts, part]
            if self._live is None:
                live = Live(
                    get_renderable=self._draw,
                    console=self._console,
                    refresh_per_second=REFRESHES,
                    vertical_overflow="crop",
                )
                live.start()
                self._live = live

    def changed(self, part: Part) -> None:
        """See `Screen`."""

    def remove(self, part: Part) -> None:
        """See `Screen`."""
        with self._lock:
            others = [other for other in self._parts if other is not part]
            if others:
                self._parts = others
                self._console.print(part.table(self._console.height))
            elif self._live is not None:
                live, self._live = self._live, None
                try:
                    live.stop()
                finally:
                    self._parts = []

    def _draw(self) -> RenderableType:
        parts = self._parts
        return Group(*(part.table((self._console.height - 1) // len(parts)) for part in parts))


class Notebook:
    """Draws each part in a display of its own, in the cell that was running when it was added."""

    def __init__(self) -> None:
        self._shown: dict[int, tuple[Any, float]] = {}
        self._lock = threading.RLock()

    def add(self, part: Part) -> None:
        """See `Screen`."""
        from IPython.display import display

        with self._lock:
            self._shown[id(part)] = (display(self._draw(part), display_id=True), time.monotonic())

    def changed(self, part: Part) -> None:
        """See `Screen`."""
        with self._lock:
            handle, before = self._shown[id(part)]
            if time.monotonic() - before >= 1 / REFRESHES:
                handle.update(self._draw(part))
                self._shown[id(part)] = (handle, time.monotonic())

    def remove(self, part: Part) -> None:
        """See `Screen`."""
        with self._lock:
            handle, _ = self._shown.pop(id(part))
            handle.update(self._draw(part))

    def _draw(self, part: Part) -> Any:
        return Padding(part.table(100), 0)  # IPython can display it, unlike a group.


class Lines:
    """Prints a part when it first changes, every few seconds as long as it does, and at the end: its new lines."""

    def __init__(self, console: Console, seconds: float):
        self._console, self._seconds = console, seconds
        self._next: dict[int, float] = {}
        self._unsaid: set[int] = set()
        self._said: dict[int, list[str]] = {}
        self._lock = threading.Lock()

    def add(self, part: Part) -> None:
        """See `Screen`."""
        self._next[id(part)] = time.monotonic()

    def changed(self, part: Part) -> None:
        """See `Screen`."""
        with self._lock:
            self._unsaid.add(id(part))
            if time.monotonic() >= self._next[id(part)]:
                self._print(part)

    def remove(self, part: Part) -> None:
        """See `Screen`."""
        with self._lock:
            if id(part) in self._unsaid:
                self._print(part)
            del self._next[id(part)]
            self._said.pop(id(part), None)

    def _print(self, part: Part) -> None:
        lines, said = part.line().splitlines(), self._said.get(id(part), [])
        if new := [line for line in lines if line not in said]:
            text = encodable("\n".join(new), self._console.encoding)
            with contextlib.suppress(SystemExit):  # So says rich that nobody reads any longer; the rest goes nowhere.
                self._console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)
                self._console.file.flush()
        self._said[id(part)] = lines
        self._unsaid.discard(id(part))
        self._next[id(part)] = time.monotonic() + self._seconds


_terminals: weakref.WeakValueDictionary[tuple[str, int], Terminal] = weakref.WeakValueDictionary()
"""Terminals by the number of their device, or by the identity of their consoles, which they keep alive."""


def screen_of(console: Console, seconds: float) -> Screen:
    """Return the screen of a console, which shows all parts on one terminal together.

    Args:
        console: The console.
        seconds: How many seconds pass between two lines, where lines are printed.
    """
    if console.is_jupyter:
        return Notebook()
    if not console.is_terminal or console.is_dumb_terminal:
        return Lines(console, seconds)
    return _terminals.setdefault(_device(console), Terminal(console))


def _device(console: Console) -> tuple[str, int]:
    try:
        return "device", os.fstat(console.file.fileno()).st_rdev
    except (OSError, ValueError, AttributeError):  # It is no file of the system.
        return "console", id(console)
