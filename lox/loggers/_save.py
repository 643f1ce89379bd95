"""A logger that appends to files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import jax

from lox import _transform
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant
from lox._storage import RunWriter
from lox.loggers._logger import Logger
from lox.loggers._run import Run


class SaveLogger(Logger):
    """Appends the logs of each run to a directory of its own, which `lox.load` reads at any time, also after a crash.

    Args:
        path: The directory for the directories of runs.
        existing: What to do with a run that is there already: "continue" it, or "error".
        **options: As for `Logger`.

    Raises:
        LogDataError: By `flush`: the dtype of a key cannot be saved. Other keys are. A `TypeError`.
        StorageError: By `flush`: a directory is no run, another process writes it, or the files of a key are damaged.
            An `OSError`.

    >>> import tempfile
    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> def f(x):
    ...     return lox.log({"x": x}, step=0)["x"]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with lox.loggers.SaveLogger(folder) as logger:
    ...         run = logger.init(jax.random.key(7), lr=0.1)
    ...         _ = logger.tap(f, run)(jnp.float32(1))
    ...     lox.load(folder)[run.name]["x"].tolist()
    [1.0]
    """

    gathers = True

    @says_what_was_meant()
    def __init__(self, path: str | Path, *, existing: Literal["continue", "error"] = "continue", **options: Any):
        self.path = Path(path)
        self._must_be_new = _transform.choice("existing", existing, ("continue", "error")) == "error"
        self._writers: dict[str, RunWriter] = {}
        super().__init__(**options)

    def start(self, run: Run) -> None:
        """See `Logger`."""
        about: dict[str, Any] = {"devices": Counter(device.device_kind for device in jax.local_devices())}
        if run.notes is not None:
            about["notes"] = run.notes
        self._writers[run.name] = RunWriter(
            self.path / run.name, run.key, run.config, run.identity, about, self._must_be_new
        )

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        self._writers[run.name].describe(run.config)

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        self._writers[run.name].append([logs])

    def finish(self, run: Run) -> None:
        """See `Logger`."""
        if run.name in self._writers:
            self._writers.pop(run.name).close()

    def __repr__(self) -> str:
        return f"SaveLogger({str(self.path)!r})"
