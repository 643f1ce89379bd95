"""A logger for Weights & Biases."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Collection, Iterable
from typing import Any

from lox._exceptions import LogValueError
from lox._extras import extra
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant, unexpected
from lox.loggers._histogram import histogram
from lox.loggers._images import keys_of_images
from lox.loggers._logger import Logger
from lox.loggers._names import UNWRITABLE, escaped
from lox.loggers._rows import described, rows
from lox.loggers._run import Run

REFUSED = rf"{UNWRITABLE}|\*"
"""What W&B cannot write, and what stands for other keys in it."""
RESERVED = ("step", "event", "_step", "_runtime", "_timestamp", "_wandb")
"""The axes, and what W&B writes itself."""
RESERVED_OF_CONFIG = ("_wandb",)

_starting = threading.Lock()
"""Two threads do not begin runs at once."""


class WandbLogger(Logger):
    """Logs each run to a W&B run of its own. Needs the extra `wandb`.

    The W&B run has the run's identity as its id, so that the same key and config continue it, and the run's name and
    config. Numbers become metrics over the counter `step`, in whatever order they come, or over `event`, their number,
    where none was logged; other counters are metrics as well. Arrays become histograms of what is finite in them,
    unless nothing is. Values with batch axes become their mean, or what `batch_as` says. The character `*` is written
    as its code point: `_x2a-`. A key that W&B or the logger has a use of its own for, as "_step" and "event", or that
    is the name of one of its counters, gets `_x-` at its end.

    Args:
        images: Keys whose values are images: shape `(H, W)` or `(H, W, C)` with 1, 3 or 4 channels, of `uint8`, or of
            floats from 0 to 1.
        room: As for `Logger`.
        overflow: As for `Logger`.
        processes: As for `Logger`.
        batch_as: As for `Logger`.
        **init: Keywords of `wandb.init`, such as `project`, `group` and `mode`. Its `id`, `resume` and `reinit` are
            the logger's.

    Raises:
        ImportError: wandb is not installed.
        LogDataError: `images` is not a name or an iterable of names. A `TypeError`.
        LogValueError: `init` has a keyword that is the logger's. A `ValueError`.
    """

    gathers = True

    @says_what_was_meant(first="project")
    def __init__(
        self,
        *,
        images: str | Iterable[str] = (),
        room: int = 1024,
        overflow: Any = "wait",
        processes: Any = None,
        batch_as: Any = "mean",
        **init: Any,
    ):
        with extra("wandb", "WandbLogger"):
            import wandb
        for name in ("id", "resume", "reinit"):
            if name in init:
                raise LogValueError(f"WandbLogger gives each run its {name}= itself.")
        known = inspect.signature(wandb.init).parameters
        for name in init:
            if name not in known and all(each.kind != each.VAR_KEYWORD for each in known.values()):
                own = ("images", "room", "overflow", "processes", "batch_as")
                raise TypeError(unexpected("WandbLogger", name, [*own, *known]))
        self._wandb, self._init, self._images = wandb, init, keys_of_images(images)
        self._wandb_runs: dict[str, Any] = {}
        self._defined: set[tuple[str, str]] = set()
        super().__init__(room=room, overflow=overflow, processes=processes, batch_as=batch_as)

    def start(self, run: Run) -> None:
        """See `Logger`."""
        config = {**(self._init.get("config") or {}), "key": list(run.key), **_config(run)}
        notes = {} if run.notes is None else {"notes": run.notes}
        options = {"name": run.name} | self._init | notes | {"config": config}
        with _starting:
            self._wandb_runs[run.name] = self._wandb.init(
                id=run.identity, resume="allow", reinit="create_new", **options
            )

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        self._wandb_runs[run.name].config.update(_config(run), allow_val_change=True)

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        wandb_run = self._wandb_runs[run.name]
        for row in rows(run, logs, self._images, batch_as=self.batch_as):
            axis = "step" if row.counted else "event"
            counters = {_name(name): number for name, number in row.counters.items()}
            of_keys: dict[str, Any] = dict(row.numbers)
            of_keys |= {key: self._wandb.Histogram(np_histogram=histogram(array)) for key, array in row.arrays.items()}
            of_keys |= {key: self._wandb.Image(image) for key, image in row.images.items()}
            values = {_name(key, counters): value for key, value in of_keys.items()}
            for name in values:
                if (run.name, name) not in self._defined:
                    self._defined.add((run.name, name))
                    wandb_run.define_metric(name, step_metric=axis)
            if values:
                wandb_run.log({axis: row.step, **counters, **values})

    def finish(self, run: Run) -> None:
        """See `Logger`."""
        if run.name in self._wandb_runs:
            self._wandb_runs.pop(run.name).finish()


def _name(key: str, counters: Collection[str] = ()) -> str:
    return escaped(key, REFUSED, reserved={*RESERVED, *counters})


def _config(run: Run) -> dict[str, Any]:
    config = described(run)
    return {escaped(name, UNWRITABLE, reserved=RESERVED_OF_CONFIG): value for name, value in config.items()}
