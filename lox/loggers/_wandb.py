"""A logger for Weights & Biases."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import sys
import threading
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from lox._arguments import keywords
from lox._distributions import MOST
from lox._exceptions import LogDataError, LogValueError
from lox._extras import extra
from lox._logdict import logdict
from lox._misspelt import says_what_was_meant, unexpected
from lox.loggers._cards import Files
from lox.loggers._histogram import histogram
from lox.loggers._images import keys_of_images
from lox.loggers._logger import Logger
from lox.loggers._names import UNWRITABLE, escaped
from lox.loggers._rows import described, rows
from lox.loggers._run import Run
from lox.loggers._state import State

REFUSED = rf"{UNWRITABLE}|\*"
"""Pattern of what W&B cannot write, and of what stands for other keys in it."""
RESERVED = ("step", "event", "_step", "_runtime", "_timestamp", "_wandb")
"""The axes, and what W&B writes itself."""
RESERVED_OF_CONFIG = ("key", "_wandb")
"""The key of the run, and what W&B writes itself."""

NO_THREADS_AT_EXIT = (3, 12) <= sys.version_info < (3, 12, 2)
"""True if Python starts no threads, which a run needs, once the program has ended: only these two versions do so."""

_starting = threading.Lock()
"""Two threads do not begin runs at once."""


class WandbLogger(Logger):
    """Write each run to a W&B run of its own. Needs the extra `wandb`.

    The experiment is the group of its W&B runs, which have the names and configs of the runs. W&B takes nothing back:
    with `from_step`, runs go on as further W&B runs, whose names end in "-from4" for the step 4. Files in the directory
    `wandb/lox` say which experiments there are.

    Numbers become metrics over the counter `step`, in whatever order they come, or over `event`, their number, where
    none was logged. A key that is logged with `step` and without is two metrics; the second one is called
    "loss#2". Other counters are metrics as well. Arrays become histograms of what is finite in them, unless
    nothing is. Values with batch axes become their mean, or what `batch_as` says. What `lox.reductions.histogram` made
    is a histogram of its bins, and quantiles are a metric each, `KEY/q0.5`. The character `*` is written as its code
    point: `_x2a-`. A key that W&B or the logger reserves, as "_step" and "event", or that is the name
    of one of its counters, gets `_x-` at its end.

    Args:
        init: Keywords of `wandb.init`, such as `project`, `tags` and `mode`. Its `group` and `name` replace those of
            the experiment and of the runs, and `id` is for a logger of one run; `resume` and `reinit` are the logger's.
        images: Keys whose values are images: shape `(H, W)` or `(H, W, C)` with 1, 3 or 4 channels, of `uint8`, or of
            floats from 0 to 1.
        **options: As for `Logger`.

    Raises:
        ImportError: wandb is not installed.
        LogDataError: `init` is not a mapping, or has a keyword that `wandb.init` does not have; or `images` is not a
            name or an iterable of names. A `TypeError`.
        LogValueError: `init` has a keyword that is the logger's; or, by `flush`, an `id` for several runs. A
            `ValueError`.
    """

    gathers = True

    @says_what_was_meant(first="init")
    def __init__(self, *, init: Mapping[str, Any] | None = None, images: str | Iterable[str] = (), **options: Any):
        with extra("wandb", "WandbLogger"):
            import wandb
        self._init = keywords(init, "init= of WandbLogger", "wandb.init")
        for name in ("resume", "reinit"):
            if name in self._init:
                raise LogValueError(f"WandbLogger gives each run its {name}= itself.")
        known = inspect.signature(wandb.init).parameters
        for name in self._init:
            if name not in known and all(each.kind != each.VAR_KEYWORD for each in known.values()):
                raise LogDataError(unexpected("wandb.init", name, list(known)))
        self._wandb, self._images = wandb, keys_of_images(images)
        self._wandb_runs: dict[str, Any] = {}
        self._of_parent: dict[str, Any] = {}
        self._begun: set[int] = set()
        self._metrics: dict[str, dict[tuple[str, str], str]] = {}
        super().__init__(**options)
        folder = self._init.get("dir") or _folder(self._init.get("settings")) or os.environ.get("WANDB_DIR") or "."
        self._init["dir"] = folder = str(Path(folder).expanduser().absolute())  # Wherever the program goes later.
        project = self._init.get("project") or os.environ.get("WANDB_PROJECT") or "uncategorized"
        self._kept_by(Files.at(Path(folder) / "wandb" / "lox" / escaped(str(project), r"[^\w.-]"), "*.json"))

    def log(self, run: State, logs: Mapping[str, Any], /, **steps: Any) -> None:
        """See `Logger`. On Python 3.12.0 and 3.12.1, the first call for a run waits until W&B has begun it."""
        super().log(run, logs, **steps)
        if NO_THREADS_AT_EXIT and run._number not in self._begun:
            self._begun.add(run._number)
            self._worker.wait(self._sync)

    def start(self, run: Run) -> None:
        """See `Logger`."""
        card = self._card
        name = f"{run.name}{card.suffix}"
        of_run = hashlib.sha256(f"{card.token} {run.identity} {card.suffix}".encode()).hexdigest()[:20]
        if "id" in self._init and self._wandb_runs:
            raise LogValueError(
                f"{self!r} has one id= for W&B runs, {self._init['id']!r}, and gets logs of a second run."
            )
        config = {**(self._init.get("config") or {}), "key": list(run.key), **_config(run)}
        notes = {} if run.notes is None else {"notes": run.notes}
        options = {"id": of_run, "name": name, "group": card.name} | self._init | notes | {"config": config}
        with _starting:
            self._wandb_runs[run.name] = self._wandb.init(resume="allow", reinit="create_new", **options)

    def describe(self, run: Run) -> None:
        """See `Logger`."""
        self._wandb_runs[run.name].config.update(_config(run), allow_val_change=True)

    def write(self, run: Run, logs: logdict) -> None:
        """See `Logger`."""
        wandb_run = self._wandb_runs[run.name]
        for row in rows(run, logs, self._images, batch_as=self.batch_as, most_bins=MOST):
            axis = "step" if row.counted else "event"
            counters = {_name(name): number for name, number in row.counters.items()}
            of_keys: dict[str, Any] = dict(row.numbers)
            of_keys |= {key: self._wandb.Histogram(np_histogram=histogram(array)) for key, array in row.arrays.items()}
            of_keys |= {key: self._wandb.Histogram(np_histogram=bins) for key, bins in row.histograms.items()}
            of_keys |= {key: self._wandb.Image(image) for key, image in row.images.items()}
            values = {self._metric(run, _name(key, counters), axis): value for key, value in of_keys.items()}
            if values:
                wandb_run.log({axis: row.step, **counters, **values})

    def _metric(self, run: Run, name: str, axis: str) -> str:
        """The metric of a key over an axis. W&B draws a metric over one axis: over another one, it has a number."""
        metrics = self._metrics.setdefault(run.name, {})
        if (name, axis) not in metrics:
            numbered = itertools.chain([name], (f"{name}#{number}" for number in itertools.count(2)))
            metrics[name, axis] = next(each for each in numbered if each not in metrics.values())
            self._wandb_runs[run.name].define_metric(metrics[name, axis], step_metric=axis)
        return metrics[name, axis]

    def _forked(self, is_whole: bool) -> None:
        """See `Logger`. W&B knows by itself that it is in another process."""
        super()._forked(is_whole)
        self._of_parent |= self._wandb_runs  # W&B ends a run when nothing refers to it.
        self._wandb_runs, self._metrics = {}, {}

    def finish(self, run: Run) -> None:
        """See `Logger`."""
        if run.name in self._wandb_runs:
            self._wandb_runs.pop(run.name).finish()


def _folder(settings: Any) -> str | None:
    """The directory that settings of W&B were given."""
    if settings is None or isinstance(settings, Mapping):
        return (settings or {}).get("root_dir")
    return settings.root_dir if "root_dir" in settings.model_fields_set else None


def _name(key: str, counters: Collection[str] = ()) -> str:
    return escaped(key, REFUSED, reserved={*RESERVED, *counters})


def _config(run: Run) -> dict[str, Any]:
    config = described(run)
    return {escaped(name, UNWRITABLE, reserved=RESERVED_OF_CONFIG): value for name, value in config.items()}
