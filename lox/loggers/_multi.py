"""Several loggers at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lox import _channel
from lox._exceptions import LogDataError, LogValueError
from lox._misspelt import says_what_was_meant
from lox._run_all import each
from lox.loggers._experiment import Experiment
from lox.loggers._logger import Logger
from lox.loggers._state import Description


def _each_until_interrupted(act: Callable[[Logger], None], loggers: Iterable[Logger]) -> None:
    """Does something with all loggers, and then raises what was raised first. An interrupt keeps it from the rest."""
    interrupts: list[KeyboardInterrupt] = []

    def unless_interrupted(logger: Logger) -> None:
        if not interrupts:
            try:
                act(logger)
            except KeyboardInterrupt as interrupt:
                interrupts.append(interrupt)
                raise

    each(unless_interrupted, loggers)


class MultiLogger(Logger):
    """Write logs to several loggers, each with a thread of its own.

    One that fails does not keep the others from what they get. Options such as `batch_as` are those of each logger.

    Args:
        *loggers: The loggers. Closing this one closes them.
        name: The name of their experiment, which is one for all of them, as for `Logger`.
        resume: The experiment that they continue, as for `Logger`.
        from_step: The step from which they continue it, as for `Logger`.

    Raises:
        LogDataError: One of them is none. A `TypeError`.
        LogValueError: One of them was given a name or an experiment to continue, or has begun one; or it is in a
            MultiLogger already. A `ValueError`.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> first, second = lox.loggers.MemoryLogger(), lox.loggers.MemoryLogger()
    >>> logger = lox.loggers.MultiLogger(first, second)
    >>> run = logger.init(7)
    >>> logger.log(run, lox.logdict({"x": jnp.arange(2)}))
    >>> logger.flush()
    >>> first[run.name]["x"].tolist(), second[run.name]["x"].tolist()
    ([0, 1], [0, 1])
    """

    @says_what_was_meant()
    def __init__(
        self, *loggers: Logger, name: str | None = None, resume: str | None = None, from_step: int | None = None
    ):
        for logger in loggers:
            if not isinstance(logger, Logger):
                raise LogDataError(f"A MultiLogger takes loggers, got {logger!r} of type {type(logger).__name__}.")
        super().__init__(name=name, resume=resume, from_step=from_step)
        self.loggers = loggers
        self._experiment.owner = "the MultiLogger"
        for place, logger in enumerate(loggers):
            if logger._is_of_several or any(logger is other for other in loggers[:place]):
                raise LogValueError(
                    f"{logger!r} is in a MultiLogger already: it would get each log twice, or those of two "
                    "experiments. Make another logger."
                )
            logger._check_may_write_for(self._experiment)
        for logger in loggers:
            logger._is_of_several = True
            logger._write_for(self._experiment)

    def _shares(self) -> bool:
        """See `Logger`."""
        return any(logger._shares() for logger in self.loggers)

    def _continue(self) -> None:
        """See `Logger`."""
        each(lambda logger: logger._continue(), self.loggers)

    def _write_for(self, experiment: Experiment) -> None:
        """See `Logger`."""
        super()._write_for(experiment)
        for logger in self.loggers:
            logger._write_for(experiment)

    def _refuse_run_of_parent(self, identity: str) -> None:
        """See `Logger`."""
        for logger in self.loggers:
            logger._refuse_run_of_parent(identity)

    def _deliver(self, act: Callable[..., None], *args: Any) -> None:
        """See `Logger`."""
        for logger in self.loggers:
            try:
                logger._deliver(act, *args)
            except Exception as error:  # noqa: BLE001  (the next one gets the logs as well)
                error.add_note(f"The error was raised by {logger!r}.")
                _channel.keep(error)

    def _learn(self, group: int, describe: Callable[[], Description]) -> None:
        """See `Logger`."""
        for logger in self.loggers:
            logger._learn(group, describe)

    def flush(self) -> None:
        """See `Logger`."""
        _each_until_interrupted(lambda logger: logger.flush(), self.loggers)

    def close(self) -> None:
        """See `Logger`."""
        try:
            _each_until_interrupted(lambda logger: logger.close(), self.loggers)
        except KeyboardInterrupt:
            self._let_go()
            raise
        finally:
            super().close()

    def _let_go(self) -> None:
        """See `Logger`."""
        super()._let_go()
        for logger in self.loggers:
            logger._let_go()

    @property
    def dropped(self) -> int:
        """Number of deliveries that its loggers dropped because there was no room."""
        return sum(logger.dropped for logger in self.loggers)

    def __repr__(self) -> str:
        return f"MultiLogger({', '.join(map(repr, self.loggers))})"
