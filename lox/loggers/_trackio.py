"""A logger for Trackio."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from lox._extras import extra
from lox._logdict import logdict
from lox.loggers._each import each
from lox.loggers._histogram import histogram
from lox.loggers._images import keys_of_images
from lox.loggers._logger import Logger
from lox.loggers._rows import described, rows
from lox.loggers._run import Run

HELD = 1000
"""How many rows of a run are held at most before they are written together."""
RESERVED = re.compile("(project|run|timestamp|step|time|metrics)_*")
"""Keys that Trackio has a use of its own for, and those that take their place."""

Written = tuple[dict[str, Any], int, str]
"""Metrics, their step, and when they were logged."""


class TrackioLogger(Logger):
    """Logs each run to a Trackio run of its own. Needs the extra `trackio`.

    The Trackio run has the run's name, so that the same key continues it, and what describes the run as its config.
    Numbers become metrics and arrays histograms of what is finite in them. The step is the counter `step`, or the
    number of the event where none was logged or it is of floats; other counters are metrics as well. A key that Trackio
    has a use of its own for, as "step", gets an underscore at its end.

    Everything is written to Trackio's database of the project, in the directory that the environment variable
    `TRACKIO_DIR` says. `trackio show` shows it, and `trackio.sync` takes it to a server; the logger itself starts no
    dashboard, sends nothing, and leaves the run alone that `trackio.log` logs to.

    Args:
        project: The project.
        group: The group of the runs.
        config: What describes all runs.
        images: Keys whose values are images: shape `(H, W)` or `(H, W, C)` with 1, 3 or 4 channels, of `uint8`, or of
            floats from 0 to 1.
        **options: As for `Logger`.

    Raises:
        ImportError: trackio is not installed.
        LogDataError: `images` is not a name or an iterable of names. A `TypeError`.
        ValueError: The project has no name that Trackio takes.
    """

    def __init__(
        self,
        project: str,
        *,
        group: str | None = None,
        config: Mapping[str, Any] | None = None,
        images: str | Iterable[str] = (),
        **options: Any,
    ):
        with extra("trackio", "TrackioLogger"):
            import trackio
            from trackio.sqlite_storage import SQLiteStorage
        SQLiteStorage.validate_project_name(project)
        # A run of trackio.init has a thread of its own: those of hundreds of runs wait for one lock, and give up. Nor
        # does its log raise what goes wrong.
        self._trackio, self._storage = trackio, SQLiteStorage
        self._images = keys_of_images(images)
        self._project, self._group, self._config = project, group, dict(config or {})
        self._untold: dict[str, dict[str, Any]] = {}
        self._held: dict[str, list[Written]] = {}
        super().__init__(**options)

    def start(self, run: Run) -> None:
        """See `Logger`."""
        self.describe(run)

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        of_trackio = {"_Created": _now(), "_Group": self._group}
        self._untold[run.name] = self._config | {"key": list(run.key)} | described(run) | of_trackio

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        held = self._held.setdefault(run.name, [])
        try:
            for row in rows(run, logs, self._images, whole=True):
                step = int(row.step)
                values: dict[str, Any] = row.counters | row.numbers
                for key, array in row.arrays.items():
                    values[key] = self._trackio.Histogram(np_histogram=histogram(array))._to_dict()
                for key, array in row.images.items():
                    image = self._trackio.Image(array)
                    image._save(self._project, run.name, step)
                    values[key] = image._to_dict()
                if values:
                    held.append(({_name(key): value for key, value in values.items()}, step, _now()))
        finally:
            if len(held) >= HELD:
                self._send(run.name)

    def sync(self) -> None:
        """See `Logger`."""
        each(self._send, list(self._held))

    def _send(self, name: str) -> None:
        if held := self._held.pop(name):
            metrics, steps, times = (list(column) for column in zip(*held, strict=True))
            self._storage.bulk_log(self._project, name, metrics, steps, times, self._untold.pop(name, None))

    def __repr__(self) -> str:
        return f"TrackioLogger({self._project!r})"


def _name(key: str) -> str:
    return f"{key}_" if RESERVED.fullmatch(key) else key


def _now() -> str:
    return datetime.now(UTC).isoformat()
