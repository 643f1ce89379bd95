"""A logger for people who watch."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lox._exceptions import LogDataError, LogValueError
from lox._extras import extra
from lox._logdict import distributions_of, logdict
from lox._misspelt import says_what_was_meant
from lox._run_all import raise_first
from lox._text import number, sparkline, visible
from lox.loggers._curves import BatchAs, curves
from lox.loggers._logger import Logger
from lox.loggers._run import Run
from lox.loggers._statistics import BARS, Statistics, numbers_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Task

HELD = 4096
"""Largest number of deliveries that are kept before they are processed together."""

ON_A_LINE = 8
"""Number of keys that a line of text shows."""


class ConsoleLogger(Logger):
    """Show the last value, mean and range of each key. Needs the extra `console`.

    On a terminal it is a table that is drawn anew ten times a second at most, below what the program prints: for each
    key the last value, mean, smallest and largest value, and a line of all values. Values of several runs are shown as
    mean ± standard deviation of the runs' last ones, arrays and batches as the mean of their elements, complex numbers
    as their absolute values. With ``batch_as="each"`` each batch element has a row of its own. Quantiles have one each,
    and histograms one for each of three estimated quantiles. What is not finite is counted, shown in red, and left out
    of the mean and the range. With ``overflow="drop"`` it says how many deliveries were dropped. In a notebook the
    table is an output of the cell that first logs. Elsewhere, as in a file, a line of text is printed every few
    seconds.

    What a program prints without a newline at its end may be overwritten by the table.

    Args:
        progress: For counters, such as ``{"step": 10_000}``, how many steps there are to do: each gets a bar, with the
            time it took, the time that is left and the steps a second. Of several runs, it is the mean. A counter that
            goes beyond its total leaves the bar full, with the last step beside it.
        seconds: Number of seconds between two lines of text.
        console: Where to show it; by default, rich's own.
        **options: As for `Logger`.

    Raises:
        ImportError: rich is not installed.
        LogDataError: `progress` is not a mapping of names, `seconds` not a number, or `console` not one. A `TypeError`.
        LogValueError: A number of steps, or `seconds`, is not positive. A `ValueError`.

    >>> import sys
    >>> import jax.numpy as jnp
    >>> import rich.console
    >>> import lox
    >>> console = rich.console.Console(file=sys.stdout, force_terminal=False)
    >>> with lox.loggers.ConsoleLogger(console=console) as logger:
    ...     logger.log(logger.init(7), lox.logdict({"loss": jnp.array([2.0, 1.0, 0.5])}))
    loss 0.5
    """

    @says_what_was_meant()
    def __init__(
        self,
        progress: Mapping[str, int] | None = None,
        *,
        seconds: float = 5.0,
        console: Console | None = None,
        **options: Any,
    ):
        with extra("console", "ConsoleLogger"):
            import rich.console

            from lox import _screen
        _check(progress, seconds)
        if not isinstance(console, (rich.console.Console, type(None))):
            raise LogDataError(f"console= of ConsoleLogger is a rich.console.Console, got {console!r}.")
        self._console = console or rich.get_console()
        self._screen = _screen.screen_of(self._console, seconds)
        self._seconds = seconds
        self._totals = dict(progress or {})
        self._held: list[tuple[str, logdict]] = []
        self._at: dict[str, dict[str, float]] = {name: {} for name in self._totals}
        self._bars: Any = None
        self._shown = False
        self._statistics: dict[str, Statistics] = {}
        self._lock = threading.Lock()
        super().__init__(**options)

    # -- On the logger's thread -----------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """See `Logger`."""
        if not self._shown:
            self._bars = _bars(self._console, self._totals)  # The time begins.
            self._shown = True
            self._screen.add(self)

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        errors: list[LogDataError] = []
        if self.batch_as == "each":
            logs = _as_curves(run, logs, logs, "each", errors)
        elif made := distributions_of(logs):
            logs = logs.filter(lambda key: key not in made) | _as_curves(run, logs, made, "mean", errors)
        with self._lock:
            self._held.append((run.identity, logs))
            if len(self._held) >= HELD:
                self._digest()
        self._screen.changed(self)
        raise_first(errors)

    def close(self) -> None:
        """See `Logger`."""
        try:
            super().close()
        finally:
            if self._shown:
                self._shown = False
                self._screen.remove(self)

    def _forked(self, is_whole: bool) -> None:
        """See `Logger`. The table and its locks are those of the parent: the child prints lines."""
        from rich.console import Console

        from lox import _screen

        super()._forked(is_whole)
        self._console = Console(file=self._console.file, force_terminal=False, force_jupyter=False)
        self._screen = _screen.screen_of(self._console, self._seconds)
        self._lock, self._held, self._statistics = threading.Lock(), [], {}
        self._at = {name: {} for name in self._totals}
        self._shown = False

    # -- What is shown --------------------------------------------------------------------------------------------

    def table(self, height: int) -> RenderableType:
        """Return the bars, and a row for each key, as many as a height has room for.

        Args:
            height: The number of lines.

        Returns:
            What `rich` draws.
        """
        from rich.text import Text

        try:
            return self._table(height)
        except Exception as error:  # noqa: BLE001  (the thread that draws goes on)
            self._failed(error)
            return Text("")

    def _table(self, height: int) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        with self._lock:
            self._digest()
            self._advance()
            bars = [self._bars.make_tasks_table(self._bars.tasks)] if self._totals else []
            table = Table("", "last", "mean", "min", "max", "", box=None, header_style="dim", pad_edge=False)
            groups: dict[str, list[str]] = {}
            for key in self._statistics:
                groups.setdefault(key.rpartition("/")[0], []).append(key)
            lost = self._lost()
            room = max(height - len(self._totals) - 2 - len(lost), 1)
            left = len(self._statistics)
            for group, keys in groups.items():
                if room < 2:
                    break
                if group:
                    table.add_row(Text(visible(group), style="bold"))
                    room -= 1
                for key in keys[:room]:
                    name = visible(key.removeprefix(f"{group}/"))
                    table.add_row(Text(f"  {name}" if group else name), *self._cells(self._statistics[key]))
                left -= len(keys[:room])
                room -= len(keys[:room])
            if left:
                table.add_row(Text(f"and {left:,} keys more", style="dim"))
            for text in lost:
                table.add_row(Text(text, style="red"))
            return Group(*bars, table)

    def line(self) -> str:
        """Return the progress, and the last value of the first few keys.

        Returns:
            The text of one line, without its end.
        """
        with self._lock:
            self._digest()
            self._advance()
            parts = [_progress(task) for task in (self._bars.tasks if self._totals else ())]
            keys = list(self._statistics)[:ON_A_LINE]
            parts += [f"{visible(key)} {_last(self._statistics[key])}" for key in keys]
            if len(self._statistics) > len(keys):
                parts.append(f"and {len(self._statistics) - len(keys):,} keys more")
            return "  ".join([*parts, *self._lost()])

    def _lost(self) -> list[str]:
        return [f"{self.dropped:,} deliveries dropped"] if self.dropped else []

    def _digest(self) -> None:
        """Processes kept deliveries: many small logs at a time cost a fraction of what they cost one by one."""
        held, self._held = self._held, []
        parts: dict[tuple[str, str], list[logdict]] = {}
        for run, logs in held:
            for key in logs:
                parts.setdefault((run, key), []).append(logs)
            for name, at in self._at.items():
                for counter in logs.steps.get(name, {}).values():
                    steps = counter[np.isfinite(counter)]
                    if len(steps):
                        at[run] = max(float(steps.max()) + 1, at.get(run, 0.0))
        for (run, key), having in parts.items():
            statistics = self._statistics.setdefault(key, Statistics())
            for numbers in numbers_of(key, having):
                statistics.add(run, numbers)

    def _advance(self) -> None:
        for task, at in zip(self._bars.tasks, self._at.values(), strict=True):
            total = float(task.total)
            completed = sum(min(done, total) for done in at.values()) / len(at) if at else 0.0
            last = max(at.values(), default=0.0) - 1
            beyond = f"now {last:.0f}" if last > total else ""  # A loop that counts from 1 ends with the total.
            self._bars.update(task.id, completed=completed, rate=f"{beyond} {_rate(task)}".strip(), beyond=beyond)
            if completed < total:  # Another run has begun since all were done.
                task.finished_time = task.finished_speed = None

    def _cells(self, statistics: Statistics) -> Iterable[RenderableType]:
        from rich.text import Text

        finite = np.isfinite(list(statistics.last.values())).all()
        last = Text(_last(statistics), style="" if finite else "bold red")
        if statistics.not_finite:
            last.append(f" ({statistics.not_finite:,} not finite)", style="red")
        range_of = (statistics.mean, statistics.low, statistics.high) if statistics.count else ()
        return [last, *map(number, range_of), *[""] * (3 - len(range_of)), sparkline(statistics.series.means(), BARS)]

    def __repr__(self) -> str:
        return f"ConsoleLogger({self._totals})" if self._totals else "ConsoleLogger()"


def _as_curves(run: Run, logs: logdict, keys: Iterable[str], batch_as: BatchAs, errors: list[LogDataError]) -> logdict:
    """The logs of some keys, whose curves are keys of their own. What is wrong with a key is appended to the errors."""
    data: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    for key in keys:
        try:
            for name, events in curves(run, logs, key, batch_as):
                data[name] = events.values
                for counter, step in events.steps.items():
                    steps.setdefault(counter, {})[name] = step
        except LogDataError as error:
            errors.append(error)
    return logdict(data, steps)


def _check(progress: Mapping[str, int] | None, seconds: Any) -> None:
    if progress is not None and not isinstance(progress, Mapping):
        raise LogDataError(f'progress= of ConsoleLogger is a mapping such as {{"step": 10_000}}, got {progress!r}.')
    for name, total in (progress or {}).items():
        if not isinstance(name, str):
            raise LogDataError(f"progress= of ConsoleLogger maps the names of counters, got {name!r}.")
        if isinstance(total, bool) or not isinstance(total, (int, np.integer)) or total < 1:
            raise LogValueError(f"progress= of ConsoleLogger needs a positive integer for {name!r}, got {total!r}.")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise LogDataError(f"seconds= of ConsoleLogger is a number of seconds, got {seconds!r}.")
    if not seconds > 0:
        raise LogValueError(f"seconds= of ConsoleLogger must be positive, got {seconds!r}.")


def _bars(console: Console, totals: Mapping[str, int]) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bars = Progress(*columns, console=console, auto_refresh=False)
    for name, total in totals.items():
        bars.add_task(visible(name), total=int(total), rate="", beyond="")
    return bars


def _progress(task: Task) -> str:
    parts = [f"{task.description} {task.completed:.0f}/{task.total:.0f} ({task.percentage:.0f}%)"]
    if task.fields["beyond"]:
        parts.append(task.fields["beyond"])
    if rate := _rate(task):
        parts.append(rate)
    if task.time_remaining is not None:
        parts.append(f"{datetime.timedelta(seconds=int(task.time_remaining))} left")
    return ", ".join(parts)


def _rate(task: Task) -> str:
    speed = task.finished_speed or task.speed
    return f"{number(speed)}/s" if speed else ""


def _last(statistics: Statistics) -> str:
    values = np.array(list(statistics.last.values()))
    if not len(values):
        return "empty"
    if len(values) == 1:
        return number(values[0])
    with np.errstate(invalid="ignore", over="ignore"):
        return f"{number(values.mean())} ± {number(values.std())}"
