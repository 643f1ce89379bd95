"""How bars look: on a terminal, in a notebook, and as lines of text."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lox._progress._names import Names
from lox._progress._report import Loop
from lox._text import number, visible

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Task, TaskID

SECONDS = 5.0
"""Seconds between two lines, where lines are printed."""


@dataclasses.dataclass
class Run:
    """A loop that runs.

    Attributes:
        number: The number by which the loop names the run.
        loop: The loop.
        began: When it told for the first time.
        told: When it told last.
        count: The number of iterations that are done.
        live: The number of batch elements that go on.
        is_over: Whether it has ended.
    """

    number: int
    loop: Loop
    began: float
    told: float
    count: int = 0
    live: int = 0
    is_over: bool = False


@dataclasses.dataclass
class Row:
    """A bar: the last run of a loop, and how many there were.

    Attributes:
        run: The run.
        runs: The number of runs.
    """

    run: Run
    runs: int = 1


class Display:
    """The bars of a function on a screen, from when they are first shown until they are closed."""

    def __init__(self, names: Names):
        """Take the names of the loops."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        from lox import _screen

        self._names = names
        console = Console(stderr=True)
        self._screen = _screen.screen_of(console, SECONDS)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[more]}", markup=False),
        )
        self._bars = Progress(*columns, console=console, auto_refresh=False, get_time=time.perf_counter)
        self._tasks: dict[int, tuple[TaskID, int]] = {}
        self.is_shown = False

    def update(self, rows: Sequence[Row]) -> None:
        """Show rows as they are now."""
        labels = self._labels(rows)
        for row, label in zip(rows, labels, strict=True):
            self._update(row, label)
        if not self.is_shown:
            self._screen.add(self)
            self.is_shown = True
        self._screen.changed(self)

    def close(self) -> None:
        """Leave the bars as they are."""
        if self.is_shown:
            self.is_shown = False
            self._screen.remove(self)

    def _update(self, row: Row, label: str) -> None:
        run = row.run
        task_id, runs = self._tasks.get(id(row), (None, 0))
        if task_id is None:
            task_id = self._bars.add_task("", total=None, count="", share="", rate="", more="")
        elif runs != row.runs:
            self._bars.reset(task_id, total=None)
        self._tasks[id(row)] = task_id, row.runs
        task = next(task for task in self._bars.tasks if task.id == task_id)
        task.start_time = run.began
        given = run.loop.length or self._names.total(run.loop.path)
        total = run.count if run.is_over else given
        if total is not None and not run.is_over:
            total = max(total, run.count + 1)  # A task that is complete has no time any more.
        if run.is_over and run.loop.length is None:
            given = None  # It was over before or after the total.
        count = f"{run.count:,}" if given is None else f"{run.count:,}/{given:,}"
        share = "" if given is None else f" ({100 * run.count / given:.0f}%)"
        self._bars.update(
            task_id,
            description=visible(label),
            completed=run.count,
            total=total,
            count=count,
            share=share,
            more=_more(row),
        )
        self._bars.update(task_id, rate=_rate(task, run))

    def _labels(self, rows: Sequence[Row]) -> list[str]:
        """The labels of rows. Loops that are given one label are told apart by their paths."""
        paths = [row.run.loop.path for row in rows]
        labels = list(map(self._names.label, paths))
        counts = Counter(label for _, label in dict.fromkeys(zip(paths, labels, strict=True)))
        return [f"{label} {path}" if counts[label] > 1 else label for path, label in zip(paths, labels, strict=True)]

    # -- A part of a screen ---------------------------------------------------------------------------------------

    def table(self, height: int) -> RenderableType:
        """See `Part`."""
        del height
        return self._bars.make_tasks_table(self._bars.tasks)

    def line(self) -> str:
        """See `Part`."""
        return "\n".join(map(_line, self._bars.tasks))


def _line(task: Task) -> str:
    parts = [f"{task.description} {task.fields['count']}{task.fields['share']}", task.fields["rate"]]
    if not task.finished and task.time_remaining is not None:
        parts.append(f"{datetime.timedelta(seconds=int(task.time_remaining))} left")
    return ", ".join(filter(None, [*parts, task.fields["more"]]))


def _rate(task: Task, run: Run) -> str:
    seconds = run.told - run.began
    speed = None if run.is_over else task.speed
    if speed is None:
        speed = run.count / seconds if seconds else None
    return f"{number(speed)}/s" if speed else ""


def _more(row: Row) -> str:
    run, parts = row.run, []
    if run.loop.elements > 1 and run.loop.parts:
        parts.append(f"{run.loop.elements - run.live:,}/{run.loop.elements:,} elements done")
    elif run.loop.elements > 1:
        parts.append(f"{run.loop.elements:,} elements")
    if row.runs > 1:
        parts.append(f"run {row.runs:,}")
    return ", ".join(parts)
