"""A logger for Weights & Biases."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from lox._exceptions import LogValueError
from lox._logdict import logdict
from lox.loggers._logger import Logger
from lox.loggers._rows import described, finite, rows
from lox.loggers._run import Run

_starting = threading.Lock()
"""Two threads do not begin runs at once."""


class WandbLogger(Logger):
    """Logs each run to a W&B run of its own. Needs the extra `wandb`.

    The W&B run has the run's name as its id, so that the same key continues it, and what describes the run as its
    config. Numbers become metrics over the counter `step`, in whatever order they come, or over `event`, their number,
    where none was logged; other counters are metrics as well. Arrays become histograms of what is finite in them.

    Args:
        room: As for `Logger`.
        overflow: As for `Logger`.
        **init: Keywords of `wandb.init`, such as `project`, `group` and `mode`. Its `id`, `resume` and `reinit` are
            the logger's.

    Raises:
        ImportError: wandb is not installed.
        LogValueError: `init` has a keyword that is the logger's. A `ValueError`.
    """

    def __init__(self, *, room: int = 1024, overflow: Any = "wait", **init: Any):
        try:
            import wandb
        except ImportError as error:
            error.add_note("WandbLogger needs wandb: pip install 'jax-lox[wandb]'.")
            raise
        for name in ("id", "resume", "reinit"):
            if name in init:
                raise LogValueError(f"WandbLogger gives each run its {name}= itself.")
        self._wandb, self._init = wandb, init
        self._wandb_runs: dict[str, Any] = {}
        self._defined: set[tuple[str, str]] = set()
        super().__init__(room=room, overflow=overflow)

    def start(self, run: Run) -> None:
        """See `Logger`."""
        config = self._init.get("config") or {}
        options = {"name": run.name} | self._init | {"config": {**config, "key": list(run.key), **described(run)}}
        with _starting:
            self._wandb_runs[run.name] = self._wandb.init(id=run.name, resume="allow", reinit="create_new", **options)

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        self._wandb_runs[run.name].config.update(described(run), allow_val_change=True)

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        wandb_run = self._wandb_runs[run.name]
        for row in rows(run, logs):
            axis = "step" if row.counted else "event"
            values = {}
            for key, value in row.values.items():
                if (run.name, key) not in self._defined:
                    self._defined.add((run.name, key))
                    wandb_run.define_metric(key, step_metric=axis)
                if np.size(value) == 1:
                    values[key] = np.reshape(value, ()).item()
                elif len(numbers := finite(value)):
                    values[key] = self._wandb.Histogram(numbers.tolist())
            if values:
                wandb_run.log({axis: row.step, **row.counters, **values})

    def finish(self, run: Run) -> None:
        """See `Logger`."""
        if run.name in self._wandb_runs:
            self._wandb_runs.pop(run.name).finish()
