"""A logger that appends to files."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from lox._exceptions import StorageError
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant
from lox._run_all import each
from lox._storage import OpenFiles, RunWriter, is_written, read_manifest, runs
from lox.loggers._cards import Files
from lox.loggers._logger import Logger
from lox.loggers._run import Run


class SaveLogger(Logger):
    """Write each run to a directory of its own, which `lox.load` reads at any time, also after a crash.

    The directory of the experiment is `path/NAME`, and those of its runs are in it. What `from_step` takes back is in
    a directory `aside-1`, `aside-2` and so on of the run, which `lox.load` reads by its own path.

    Args:
        path: The directory for the directories of experiments.
        durable: Whether `flush` returns when all is on the disk. Without it, what was flushed survives the end of the
            process, however that comes, and a power failure takes what the system had not written yet: of Linux, some
            30 seconds.
        **options: As for `Logger`.

    Raises:
        LogDataError: By `flush`: the dtype of a key cannot be saved. Other keys are. A `TypeError`.
        StorageError: By `flush`: a directory is not a run, another process writes it, or the files of a key are
            damaged. An `OSError`.

    Where an experiment that is continued gets a run of a key that it has with another config only, a `LoggerWarning`
    says so.

    >>> import tempfile
    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> def f(x):
    ...     return lox.log({"x": x}, step=0)["x"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lox.loggers.SaveLogger(folder, name="first") as logger:
    ...         run = logger.init(jax.random.key(7), lr=0.1)
    ...         _ = logger.tap(f, run)(jnp.float32(1))
    ...     for name, logs in lox.load(folder).items():
    ...         print(name, logs["x"].tolist())
    first/lr=0.1,seed=7-bfc975 [1.0]
    """

    gathers = True

    @says_what_was_meant()
    def __init__(self, path: str | Path, *, durable: bool = False, **options: Any):
        self.path = Path(path)
        self._durable, self._files = durable, OpenFiles()
        self._path = self.path.absolute()  # Wherever the program goes later.
        self._writers: dict[str, RunWriter] = {}
        self._earlier: dict[tuple[int, ...], str] | None = None
        super().__init__(**options)
        self._kept_by(Files.at(path, "*/experiment.json"))

    @property
    def directory(self) -> Path:
        """Directory of the experiment, which is begun for that if no run has begun yet."""
        return self._path / self.experiment

    def start(self, run: Run) -> None:
        """See `Logger`."""
        about: dict[str, Any] = {"devices": Counter(device.device_kind for device in jax.local_devices())}
        if run.notes is not None:
            about["notes"] = run.notes
        resumed = self._experiment.is_resumed
        folder = self.directory
        if resumed and self._earlier is None:
            self._earlier = dict(_keys(folder))
        warn = self._warn if resumed else None
        writer = RunWriter(
            folder / run.name, run.key, run.config, run.identity, about, warn, self._files, self._durable
        )
        try:
            self._go_on(run, writer)
        except BaseException:
            writer.close()
            raise
        self._writers[run.name] = writer

    def _continue(self) -> None:
        """See `Logger`. Warns of runs that another process of this machine writes: they are refused to this one."""
        name = str(self._experiment.name)
        if living := [path for path in sorted((self._path / name).glob("*")) if is_written(path)]:
            self._warn(
                f"{self!r} continues {name!r}, but another process of this machine writes "
                f"{living[0]}{f' and {len(living) - 1} more runs' if living[1:] else ''}. Until it closes them, events "
                "that this process logs to these runs are refused and lost."
            )

    def _go_on(self, run: Run, writer: RunWriter) -> None:
        """Takes back the events of a run from `from_step` on; warns of a new run with the key of another one."""
        if writer.is_new:
            if self._earlier and (other := self._earlier.get(run.key)):
                self._earlier = {}
                self._warn(
                    f"{writer.path} is a new run of an experiment that is continued, in which {other} has the same key "
                    "and another config. Where the program goes on from a checkpoint, give the run the config that it "
                    "had."
                )
            return
        step = self._experiment.from_step
        if step is not None and (without := writer.set_aside(step, self._warn)):
            self._warn(f"Events of {without} of {writer.path} stay: they have no counter step, to go on from {step}.")
        run.last_step = writer.last_steps()

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        self._writers[run.name].describe(run.config)

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        self._writers[run.name].append(logs)

    def sync(self) -> None:
        """See `Logger`."""
        each(RunWriter.sync, self._writers.values())

    def finish(self, run: Run) -> None:
        """See `Logger`."""
        if run.name in self._writers:
            self._writers.pop(run.name).close()

    def __repr__(self) -> str:
        return f"SaveLogger({str(self.path)!r})"


def _keys(folder: Path) -> Iterator[tuple[tuple[int, ...], str]]:
    """The keys of runs that were saved, and their names; not of those that are damaged."""
    for name, there in runs(folder).items():
        with contextlib.suppress(StorageError, TypeError):
            yield tuple(read_manifest(there).get("key", ())), name
