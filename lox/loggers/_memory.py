"""A logger that keeps everything, for tests and notebooks."""

from __future__ import annotations

import itertools
from typing import Any

from lox._concatenate import concatenated
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant
from lox.loggers._logger import Logger
from lox.loggers._run import Run
from lox.loggers._state import State


class MemoryLogger(Logger):
    """Keep the logs of each run in memory.

    Args:
        **options: As for `Logger`.

    Attributes:
        runs: The runs by name.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> logger = lox.loggers.MemoryLogger()
    >>> def f(key, x):
    ...     return logger.tap(lambda x: lox.log({"x": x})["x"], logger.init(key))(x)
    >>> _ = jax.vmap(f)(jax.random.split(jax.random.key(0), 2), jnp.arange(2.0))
    >>> logger.flush()
    >>> [logger[run]["x"].tolist() for run in logger.runs]
    [[0.0], [1.0]]
    """

    @says_what_was_meant()
    def __init__(self, **options: Any):
        super().__init__(**options)
        self.runs: dict[str, Run] = {}
        self._logs: dict[str, list[logdict]] = {}

    def start(self, run: Run) -> None:
        """See `Logger`."""
        self.runs[run.name] = run
        self._logs[run.name] = []

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        self._logs[run.name].append(logs)

    def __getitem__(self, run: str | State) -> logdict:
        """Return the logs of a run so far, laid out as `lox.spool` does.

        Events of a key that have another shape, dtype or other counters than the first ones, or have other batch axes
        or are of another distribution, go on as ``"key#2"``.

        Args:
            run: The name of the run, or its state, as `init` returns it.

        Returns:
            The logs of the run.

        Raises:
            KeyError: The run has no logs.
        """
        logs = [*self._logs[run.name if isinstance(run, State) else run]]
        return concatenated([part for each in logs for part in each._timelines], order=itertools.chain(*logs))
