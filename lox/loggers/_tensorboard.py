"""A logger for TensorBoard."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lox._extras import extra
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant
from lox._run_all import each
from lox.loggers._cards import Files
from lox.loggers._images import keys_of_images
from lox.loggers._logger import Logger
from lox.loggers._names import escaped
from lox.loggers._rows import described, rows
from lox.loggers._run import Run

REFUSED = r"[^-/\w.]|\A/+"
"""Pattern of what tensorboardX replaces or removes when it makes a tag of a key."""
RESERVED = ("config/text_summary",)
"""The tag of the config of the run, as tensorboardX makes it of "config"."""

_POSITIVE = [*1e-12 * 1.1 ** np.arange(774), np.finfo(np.float64).max]
LIMITS = np.array([*np.negative(_POSITIVE[::-1]), 0, *_POSITIVE])
"""Limits of the bins of histograms: TensorFlow's, with the last one, which tensorboardX leaves out."""


OPEN = 32
"""Largest number of open files, each of another run. Systems let a process open some hundreds."""


class TensorBoardLogger(Logger):
    """Write each run to a directory of its own for TensorBoard. Needs the extra `tensorboard`.

    The directory of a run is `logdir/NAME/RUN`, of the names of experiment and run. Its config is a text, and
    hyperparameters for the tab HPARAMS. TensorBoard hides what `from_step` takes back. It opens 32 files at most.

    Numbers become scalars and arrays histograms of what is finite in them, unless nothing is. Values with batch axes
    become their mean, or what `batch_as` says. What `lox.reductions.histogram` made is a histogram of its bins, and
    quantiles are a curve each, `KEY/q0.5`. The step is the counter `step`, or the number of the event where none was
    logged or it is of floats; other counters are scalars as well. A character that tags cannot have, as a space, is
    written as its code point: `_x20-`. A key that is the name of one of its counters, or the tag "config/text_summary"
    of what describes the run, gets `_x-` at its end.

    Args:
        logdir: The directory for the directories of experiments.
        images: Keys whose values are images: shape `(H, W)` or `(H, W, C)` with 1, 3 or 4 channels, of `uint8`, or of
            floats from 0 to 1.
        **options: As for `Logger`.

    Raises:
        ImportError: tensorboardX is not installed.
        LogDataError: `images` is not a name or an iterable of names. A `TypeError`.

    >>> import tempfile
    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> def f(x):
    ...     return lox.log({"x": x}, step=3)["x"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lox.loggers.TensorBoardLogger(folder) as logger:
    ...         _ = logger.tap(f, logger.init(jax.random.key(7)))(jnp.float32(1))
    """

    gathers = True

    @says_what_was_meant()
    def __init__(self, logdir: str | Path, *, images: str | Iterable[str] = (), **options: Any):
        with extra("tensorboard", "TensorBoardLogger"):
            from tensorboardX import summary
        self._summary = summary
        self.logdir = Path(logdir)
        self._path = self.logdir.absolute()  # Wherever the program goes later.
        self._images = keys_of_images(images)
        self._files: dict[str, _Events] = {}
        self._opened: dict[_Events, None] = {}  # In the order in which they were written last.
        super().__init__(**options)
        self._kept_by(Files.at(logdir, "*/tensorboard.json"))

    @property
    def directory(self) -> Path:
        """Directory of the experiment, which is begun for that if no run has begun yet."""
        return self._path / self.experiment

    def start(self, run: Run) -> None:
        """See `Logger`."""
        self._files[run.name] = file = _Events(self.directory / run.name, self._opened)
        if self._experiment.from_step is not None:
            file.take_back(self._experiment.from_step)
        self.describe(run)
        if run.notes is not None:
            self._files[run.name].add(0, self._summary.text("notes", run.notes))

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        if run.config:
            lines = [f"| {name} | {value} |" for name, value in described(run).items()]
            text = "\n".join(["| name | value |", "|---|---|", *lines])
            self._files[run.name].add(0, self._summary.text("config", text))
            _, of_run, _ = self._summary.hparams(described(run), {})
            self._files[run.name].add(0, of_run)

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        add, summary = self._files[run.name].add, self._summary
        for row in rows(run, logs, self._images, whole=True, batch_as=self.batch_as):
            counters = {_tag(name): number for name, number in row.counters.items()}
            numbers = {_tag(key, counters): number for key, number in row.numbers.items()}
            for tag, number in (counters | numbers).items():
                add(row.step, summary.scalar(tag, float(number)))
            for key, array in row.arrays.items():
                with np.errstate(over="ignore", invalid="ignore"):  # Of their sum and their squares.
                    add(row.step, summary.histogram(_tag(key, counters), array, LIMITS))
            for key, (counts, edges) in row.histograms.items():
                add(row.step, _of_bins(summary, _tag(key, counters), counts, edges))
            for key, image in row.images.items():
                add(row.step, summary.image(_tag(key, counters), image, dataformats="HWC"[: image.ndim]))

    def sync(self) -> None:
        """See `Logger`."""
        each(lambda file: file.flush(), list(self._opened))

    def finish(self, run: Run) -> None:
        """See `Logger`."""
        if run.name in self._files:
            self._files.pop(run.name).close()

    def _forked(self, is_whole: bool) -> None:
        """See `Logger`. The files are those of the parent."""
        super()._forked(is_whole)
        for file in self._files.values():
            file.drop()
        self._files.clear()
        self._opened.clear()

    def __repr__(self) -> str:
        return f"TensorBoardLogger({str(self.logdir)!r})"


class _Events:
    """The files of a run: what cannot be written in full is the end of one.

    `tensorboardX.SummaryWriter` has a thread and a queue of its own, and waits for ever once a full disk ends that.
    """

    def __init__(self, folder: Path, opened: dict[_Events, None]):
        """Opens none yet.

        Args:
            folder: The directory of the run.
            opened: The open ones of all runs, in the order in which they were written last.
        """
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._new, self._event, self._session = folder, EventsWriter, Event, SessionLog
        self._opened = opened
        self._file: Any = None

    def add(self, step: float, summary: Any) -> None:
        """Writes a summary of `tensorboardX.summary`."""
        self._add(int(step), summary=summary)

    def take_back(self, step: int) -> None:
        """Has TensorBoard hide what was written of this step and later ones."""
        self._add(step, session_log=self._session(status=self._session.START))

    def _add(self, step: int, **what: Any) -> None:
        event = self._event(wall_time=time.time(), step=step, **what)
        if self not in self._opened and len(self._opened) >= OPEN:
            next(iter(self._opened)).rest()
        with self._written():
            if self._file is not None and self not in self._opened:
                self._records._writer = open(self._records.path, "ab")
            elif self._file is None:
                # Their names tell the second and the host only: a file of the same second would replace another, and
                # TensorBoard reads them in the order of their names.
                suffix = f".{time.time_ns()}.{os.getpid()}"
                self._file = self._new(str(self._folder / "events"), suffix)
            self._opened.pop(self, None)
            self._opened[self] = None
            self._file.write_event(event)

    @property
    def _records(self) -> Any:
        return self._file._py_recordio_writer

    def flush(self) -> None:
        """Has all on the disk."""
        if self in self._opened:
            with self._written():
                self._file.flush()

    def rest(self) -> None:
        """The same, and closes the file until more is written."""
        if self in self._opened:
            with self._written():
                self._file.close()
                del self._opened[self]

    def close(self) -> None:
        """The same, and writes no more to the file."""
        self.rest()
        self._file = None

    def drop(self) -> None:
        """Lets go of the file, and of what is in its buffer, which another process writes."""
        if self in self._opened:
            with open(os.devnull, "wb") as nowhere, contextlib.suppress(OSError):
                os.dup2(nowhere.fileno(), self._records._writer.fileno())

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            file, self._file = self._file, None
            if self in self._opened:
                del self._opened[self]
                # What is left in its buffer is not written later, when the object is collected.
                with contextlib.suppress(OSError):
                    file._py_recordio_writer.close()
            raise


def _of_bins(summary: Any, tag: str, counts: np.ndarray, edges: np.ndarray) -> Any:
    """A summary of bins. The sums of the numbers and of their squares are those of the middles of the bins.

    TensorBoard leaves out bins that are empty before the smallest number and after the largest one, and ends what is
    left at those two: they are the outer edges of the bins that have numbers.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        middles = edges[:-1] / 2 + edges[1:] / 2
        sums = [float((counts * power).sum()) for power in (middles, middles**2)]
    (there,) = np.nonzero(counts)
    ends = [float(edges[there[0]]), float(edges[there[-1] + 1])]
    return summary.histogram_raw(tag, *ends, float(counts.sum()), *sums, edges[1:].tolist(), counts.tolist())


def _tag(key: str, counters: Collection[str] = ()) -> str:
    return escaped(key, REFUSED, reserved={*RESERVED, *counters})
