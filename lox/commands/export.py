"""``lox export``: saved logs for other programs."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import dtypes

from lox._exceptions import LoxError
from lox._extras import extra
from lox._logdict import logdict
from lox._run_all import each
from lox._storage import read_manifest
from lox.commands._output import Failure
from lox.commands._runs import Runs
from lox.loggers import Logger, Run, TensorBoardLogger, WandbLogger
from lox.loggers._experiment import experiment_name

if TYPE_CHECKING:
    import pandas


def to_csv(path: Path, out: Path | None, wide: bool) -> int:
    """Writes a table of all runs as text, to a file or to the standard output."""
    runs = Runs(path)
    table = _table(runs, wide)
    if out is None:
        table.to_csv(sys.stdout, index=False)
    else:
        _replace(out, lambda file: table.to_csv(file, index=False))
    return runs.exit_code


def to_parquet(path: Path, out: Path, wide: bool) -> int:
    """Writes a table of all runs as Parquet."""
    with extra("parquet", "export"):
        import pyarrow  # noqa: F401  (pandas imports it)
    runs = Runs(path)
    table = _table(runs, wide)
    _replace(out, lambda file: table.to_parquet(file, index=False, engine="pyarrow"))
    return runs.exit_code


def to_tensorboard(path: Path, out: Path) -> int:
    """Writes a directory for TensorBoard for each run, in one for each experiment."""
    with extra("tensorboard", "export"):
        import tensorboardX  # noqa: F401  (the logger imports it)
    return _to_loggers(Runs(path), path, lambda name: TensorBoardLogger(out, name=name))


def to_wandb(path: Path, out: Path | None, offline: bool, project: str | None) -> int:
    """Logs each run to a W&B run of its own, in a group for each experiment."""
    with extra("wandb", "export"):
        import wandb  # noqa: F401  (the logger imports it)
    options: dict[str, Any] = {"mode": "offline" if offline else None, "dir": out, "project": project}
    given = {name: value for name, value in options.items() if value is not None}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    return _to_loggers(Runs(path), path, lambda name: WandbLogger(name=name, init=given))


def _table(runs: Runs, wide: bool) -> pandas.DataFrame:
    """The table of all runs, with a column that names them."""
    with extra("pandas", "export"):
        import pandas

    def tables() -> Iterator[pandas.DataFrame]:
        for name, logs in runs:
            try:
                table = _real(runs, name, logs).to_pandas(wide=wide)
                table = table.reset_index() if wide else table
                table.insert(0, "run", name)
            except (LoxError, ValueError) as error:
                runs.fail(f"{name}: {error}")
                continue
            yield table

    found = list(tables())
    if not found:
        raise Failure("there is nothing to export")
    return pandas.concat([table for table in found if len(table)] or found[:1], ignore_index=True)


def _replace(out: Path, write: Callable[[Path], None]) -> None:
    """Writes a file that is there as a whole or not at all, or into what is there and is none, such as a pipe."""
    out = out.resolve()  # What a link leads to is written, and the link stays.
    if out.exists() and not out.is_file():
        write(out)
        return
    new = out.with_name(f"{out.name}.{uuid.uuid4().hex}")
    try:
        write(new)
        new.replace(out)
    finally:
        new.unlink(missing_ok=True)


def _real(runs: Runs, name: str, logs: logdict) -> logdict:
    """Logs without the keys that are complex, which is said: files and sinks have no type for them."""
    complex_keys = [key for key in logs if dtypes.issubdtype(logs[key].dtype, np.complexfloating)]
    for key in complex_keys:
        runs.fail(f"{key!r} of {name} is complex, and is left out")
    return logs.filter(lambda key: key not in complex_keys) if complex_keys else logs


def _to_loggers(runs: Runs, path: Path, make: Callable[[str], Logger]) -> int:
    """Writes all runs to loggers: those in one directory are an experiment, which has its name."""
    loggers: dict[str, Logger] = {}
    for name, logs in runs:
        parent, _, title = name.rpartition("/")
        experiment = experiment_name(parent or path.resolve().name)
        try:
            if experiment not in loggers:
                loggers[experiment] = make(experiment)
            _write(loggers[experiment], runs, name, title, logs)
        except Exception as error:  # noqa: BLE001  (whatever a sink raises; the other runs go on)
            runs.fail(f"{name}: {error}")
    each(lambda logger: logger.close(), loggers.values())
    return runs.exit_code


def _write(logger: Logger, runs: Runs, name: str, title: str, logs: logdict) -> None:
    """Writes a run to a logger under this title."""
    manifest = read_manifest(runs.folders[name])
    run = Run(tuple(manifest["key"]), manifest["config"], name=title, identity=title, notes=manifest.get("notes"))

    def write(logger: Logger) -> None:
        logger._begin(run)
        logger._write_happened(run, _real(runs, name, logs))

    logger._deliver(write)
    logger.flush()
