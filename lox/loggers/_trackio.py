"""A logger for Trackio."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lox._arguments import keywords
from lox._distributions import MOST
from lox._exceptions import LogValueError
from lox._extras import extra
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant
from lox.loggers._cards import Files
from lox.loggers._histogram import histogram
from lox.loggers._images import keys_of_images
from lox.loggers._logger import Logger
from lox.loggers._names import UNWRITABLE, escaped
from lox.loggers._rows import described, rows
from lox.loggers._run import Run

RESERVED = "project run timestamp step time metrics id run_id run_name log_id space_id created_at".split()
"""Metrics that Trackio loses, from its database or from the tables that it publishes."""
RESERVED_OF_CONFIG = ("key", "_Created", "_Group", "_Username")
"""The key of the run, and what Trackio writes itself."""

Written = tuple[dict[str, Any], int, str]
"""Metrics, their step, and when they were logged."""


class TrackioLogger(Logger):
    """Write each run to a Trackio run of its own. Needs the extra `trackio`.

    A Trackio run is called `NAME/RUN`, by the names of experiment and run, and the experiment is its group. Its config
    is what describes the run. Trackio takes nothing back: with `from_step`, runs go on as further Trackio runs, whose
    names end in "-from4" for the step 4. Files in the directory `lox` of Trackio's say which experiments there are.

    Numbers become metrics and arrays histograms of what is finite in them, unless nothing is. Values with batch axes
    become their mean, or what `batch_as` says. What `lox.reductions.histogram` made is a histogram of its bins, and
    quantiles are a curve each, `KEY/q0.5`. The step is the counter `step`, or the number of the event where none was
    logged or it is of floats; other counters are metrics as well. A reserved key of Trackio, such as
    "time", and a key with the name of one of its counters get `_x-` at the end.

    Everything is written to Trackio's database of the project, in the directory that the environment variable
    `TRACKIO_DIR` says. `trackio show` shows it, and `trackio.sync` takes it to a server; the logger itself starts no
    dashboard, sends nothing, and leaves the run alone that `trackio.log` logs to.

    Args:
        project: The project.
        init: The keywords `group` and `config` of `trackio.init`: a group other than the experiment, and what describes
            all runs.
        images: Keys whose values are images: shape `(H, W)` or `(H, W, C)` with 1, 3 or 4 channels, of `uint8`, or of
            floats from 0 to 1.
        **options: As for `Logger`.

    Raises:
        ImportError: trackio is not installed.
        LogDataError: `init` is not a mapping, or `images` is not a name or an iterable of names. A `TypeError`.
        LogValueError: `init` has another keyword, or `TRACKIO_DIR` is not an absolute path. A `ValueError`.
        ValueError: The project has no name that Trackio takes.
    """

    gathers = True

    @says_what_was_meant()
    def __init__(
        self,
        project: str,
        *,
        init: Mapping[str, Any] | None = None,
        images: str | Iterable[str] = (),
        **options: Any,
    ):
        with extra("trackio", "TrackioLogger"):
            import trackio
            from trackio.sqlite_storage import SQLiteStorage
            from trackio.utils import TRACKIO_DIR
        if not TRACKIO_DIR.is_absolute():
            raise LogValueError(
                f"TRACKIO_DIR is {str(TRACKIO_DIR)!r}, and Trackio writes elsewhere when the program goes to another "
                "directory. Make it an absolute path before trackio is imported."
            )
        SQLiteStorage.validate_project_name(project)
        self._init = keywords(init, "init= of TrackioLogger", "trackio.init")
        for name in self._init:
            if name not in ("group", "config"):
                raise LogValueError(f"init= of TrackioLogger has group and config of trackio.init, got {name!r}.")
        # A run of trackio.init has a thread of its own: those of hundreds of runs wait for one lock, and give up. Nor
        # does its log raise what goes wrong.
        self._trackio, self._storage = trackio, SQLiteStorage
        self._images = keys_of_images(images)
        self._project = project
        self._untold: dict[str, dict[str, Any]] = {}
        self._of_trackio: dict[str, str] = {}
        super().__init__(**options)
        self._kept_by(Files.at(Path(TRACKIO_DIR) / "lox" / escaped(project, r"[^\w.-]"), "*.json"))

    def start(self, run: Run) -> None:
        """See `Logger`."""
        card = self._card
        self._of_trackio[run.name] = f"{card.name}/{run.name}{card.suffix}"
        self.describe(run)

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        of_trackio = {"_Created": _now(), "_Group": self._init.get("group", self.experiment)}
        if run.notes is not None:
            of_trackio["_Notes"] = run.notes
        self._untold[run.name] = (
            dict(self._init.get("config") or {}) | {"key": list(run.key)} | _config(run) | of_trackio
        )

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        written: list[Written] = []
        try:
            for row in rows(run, logs, self._images, whole=True, batch_as=self.batch_as, most_bins=MOST):
                step = int(row.step)
                counters = {_name(name): number for name, number in row.counters.items()}
                of_keys: dict[str, Any] = dict(row.numbers)
                found = {key: histogram(array) for key, array in row.arrays.items()} | row.histograms
                for key, bins in found.items():
                    of_keys[key] = self._trackio.Histogram(np_histogram=bins)._to_dict()
                for key, array in row.images.items():
                    image = self._trackio.Image(array)
                    image._save(self._project, self._of_trackio[run.name], step)
                    of_keys[key] = image._to_dict()
                values = counters | {_name(key, counters): value for key, value in of_keys.items()}
                if values:
                    written.append((values, step, _now()))
        finally:
            if written:
                metrics, steps, times = (list(column) for column in zip(*written, strict=True))
                config = self._untold.pop(run.name, None)
                self._storage.bulk_log(self._project, self._of_trackio[run.name], metrics, steps, times, config)

    def __repr__(self) -> str:
        return f"TrackioLogger({self._project!r})"


def _name(key: str, counters: Collection[str] = ()) -> str:
    return escaped(key, UNWRITABLE, reserved={*RESERVED, *counters})


def _config(run: Run) -> dict[str, Any]:
    config = described(run)
    return {escaped(name, UNWRITABLE, reserved=RESERVED_OF_CONFIG): value for name, value in config.items()}


def _now() -> str:
    return datetime.now(UTC).isoformat()
