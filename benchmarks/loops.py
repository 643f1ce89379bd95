"""Loggers in a loop of Python that calls a small jitted step, next to the clients by hand with `float()`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks._present import calling
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate
from benchmarks.saving import wandb_run

STEPS = 1_000
KEYS = ("loss", "accuracy", "norm")
ROUNDS = 5
RUN, OTHER = "spooled", "mapping"

Loop = Callable[[], None]


@jax.jit
def plain(x: Any) -> Any:
    return x + 1, {"loss": x * 2, "accuracy": x * 3, "norm": x * 4}


@jax.jit
def logging(x: Any) -> Any:
    lox.log({"loss": x * 2, "accuracy": x * 3, "norm": x * 4})
    return x + 1


def measure() -> Iterator[Table]:
    folder = Path(tempfile.mkdtemp(prefix="lox-loops-"))
    try:
        yield _loops(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _loops(folder: Path) -> Table:
    os.environ["WANDB_SILENT"] = "true"
    loggers = {
        "SaveLogger": lox.loggers.SaveLogger(folder / "save"),
        "TensorBoardLogger": lox.loggers.TensorBoardLogger(folder / "tensorboard"),
        "WandbLogger": lox.loggers.WandbLogger(init={"mode": "offline", "dir": _made(folder / "wandb")}),
    }
    tensorboard, tensorboard_calls = _tensorboard(folder / "tensorboardX")
    wandb, wandb_calls = _wandb(folder / "client")
    tap_logger, memory = lox.loggers.MemoryLogger(), lox.loggers.MemoryLogger()
    loops = {
        "no logs": _loop(lambda x: plain(x)[0]),
        "float() of three values": _loop(_floats),
        "tensorboardX": tensorboard,
        "wandb, offline": wandb,
        **{name: _spooled(logger) for name, logger in loggers.items()},
        "SaveLogger, a mapping": _mapped(loggers["SaveLogger"]),
        "logger.tap to MemoryLogger": _tapped(tap_logger),
        "logger.tap(every_calls=100)": _tapped(memory, every_calls=100),
    }
    calls = dict.fromkeys(loops, 0)

    def counted(name: str) -> Loop:
        def run() -> None:
            calls[name] += 1
            loops[name]()

        return run

    seconds = dict(zip(loops, alternate([counted(name) for name in loops], ROUNDS, sample=1e-3).T, strict=True))
    extra = {name: (each - seconds["no logs"]) / STEPS * 1e6 for name, each in seconds.items()}
    _check(calls["tensorboardX"] * STEPS, tensorboard_calls)
    _check(calls["wandb, offline"] * STEPS, wandb_calls)
    _check(calls["logger.tap to MemoryLogger"] * STEPS, [len(tap_logger[RUN]["loss"])])
    _check(calls["logger.tap(every_calls=100)"] * STEPS // 100, [len(memory[RUN]["loss"])])
    for logger in (*loggers.values(), tap_logger, memory):
        logger.close()
    saved = lox.load(loggers["SaveLogger"].directory)
    _check(calls["SaveLogger"] * STEPS, [len(saved[RUN][key]) for key in KEYS])
    _check(calls["SaveLogger, a mapping"] * STEPS, [len(saved[OTHER][key]) for key in KEYS])
    against = {
        "SaveLogger": (None, 60),
        "SaveLogger, a mapping": (None, 60),
        "TensorBoardLogger": ("tensorboardX", 1),
        "WandbLogger": ("wandb, offline", 1),
        "logger.tap to MemoryLogger": ("float() of three values", 1),
        "logger.tap(every_calls=100)": ("float() of three values", 1),
    }
    rows: list[tuple[Any, ...]] = []
    for name, each in extra.items():
        other, target = against.get(name, (None, None))
        own = Figure.of(each, target if other is None else None, digits=0)
        ratio = "" if other is None else Figure.of(each / extra[other], target)
        rows.append((name, own, ratio, "" if target is None else f"{target} of {other}" if other else f"{target} us"))
    columns = ("what a step does besides", "us more than without logs", "over the client by hand", "target")
    return Table(f"A loop of {STEPS:,} calls of a small step that logs 3 keys", columns, rows)


def _check(expected: int, found: Sequence[int]) -> None:
    """Raise where something else was written than was logged.

    Raises:
        AssertionError: There are other numbers of events than expected.
    """
    if any(each != expected for each in found):
        raise AssertionError(f"{found} events were written, of {expected}.")


def _loop(step: Callable[[Any], Any], end: Loop = lambda: None) -> Loop:
    def run() -> None:
        x = jnp.float32(0)
        for _ in range(STEPS):
            x = step(x)
        x.block_until_ready()
        end()

    return run


def _floats(x: Any) -> Any:
    x, values = plain(x)
    for value in values.values():
        float(value)
    return x


def _spooled(logger: lox.loggers.Logger) -> Loop:
    run, spooled = logger.init(7, name=RUN), lox.spool(logging)

    def step(x: Any) -> Any:
        x, logs = spooled(x)
        logger.log(run, logs)
        return x

    return _loop(step, logger.flush)


def _mapped(logger: lox.loggers.Logger) -> Loop:
    run = logger.init(8, name=OTHER)

    def step(x: Any) -> Any:
        x, values = plain(x)
        logger.log(run, values)
        return x

    return _loop(step, logger.flush)


def _tapped(logger: lox.loggers.Logger, **options: Any) -> Loop:
    tapped = logger.tap(logging, logger.init(7, name=RUN), **options)
    if not options:
        calling(tapped, jnp.float32(0))
        logger.flush()
    return _loop(tapped, logger.flush)


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _tensorboard(path: Path) -> tuple[Loop, list[int]]:
    import tensorboardX

    writer, written = tensorboardX.SummaryWriter(str(path)), [0, 0, 0]

    def step(x: Any) -> Any:
        x, values = plain(x)
        for place, (key, value) in enumerate(values.items()):
            writer.add_scalar(key, float(value), written[place])
            written[place] += 1
        return x

    return _loop(step, writer.flush), written


def _wandb(path: Path) -> tuple[Loop, list[int]]:
    run, written = wandb_run(path), [0]

    def step(x: Any) -> Any:
        x, values = plain(x)
        run.log({key: float(value) for key, value in values.items()} | {"event": written[0]})
        written[0] += 1
        return x

    return _loop(step), written


if __name__ == "__main__":
    main({"loops": measure})
