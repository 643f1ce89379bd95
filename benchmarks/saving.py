"""`lox.loggers.SaveLogger` next to other savers: events per second, growth, reading, and streaming over collecting."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._present import calling
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate

EVENTS = 2_000
CHUNKS = 100
CHUNK = {f"key{place}": (256, 8) for place in range(5)}
MEGABYTES = sum(4 * np.prod(shape) for shape in CHUNK.values()) / 1e6
STEPS = 100_000


def measure() -> Iterator[Table]:
    folder = Path(tempfile.mkdtemp(prefix="lox-saving-"))
    try:
        yield _scalars(folder)
        yield _chunks(folder)
        yield _growth(folder)
        yield _streaming(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _scalars(folder: Path) -> Table:
    events = [
        lox.logdict({"loss": np.float32([i])}, {"step": {"loss": np.array([i], np.int32)}}) for i in range(EVENTS)
    ]
    savers = {
        "SaveLogger": logged(lox.loggers.SaveLogger(folder / "scalars"), events),
        "tensorboardX": _tensorboard(folder / "tensorboard"),
        "W&B offline": _wandb(folder / "wandb"),
        "pickle, rewritten every 100": _pickled(folder / "scalars.pickle"),
    }
    seconds = alternate(list(savers.values()), rounds=5, sample=1e-3).T
    rows = []
    for name, each in zip(savers, seconds, strict=True):
        target = 50_000 if name == "SaveLogger" else None
        rows.append((name, Figure.of(EVENTS / each, target, digits=0, at_least=True), target or ""))
    return Table("Scalars with a step, one at a time", ("saver", "events per second", "target"), rows)


def _chunks(folder: Path) -> Table:
    values = {key: np.ones((1, *shape), np.float32) for key, shape in CHUNK.items()}
    steps = {"step": {key: np.zeros(1, np.int32) for key in CHUNK}}
    chunks = [lox.logdict(values, steps)] * CHUNKS

    def pickled() -> None:
        found = []
        for chunk in chunks:
            found.append(chunk.data)
            if len(found) % 10 == 0:
                (folder / "chunks.pickle").write_bytes(pickle.dumps(found))

    savers = {
        "SaveLogger": logged(lox.loggers.SaveLogger(folder / "chunks"), chunks),
        "tensorboardX, as histograms": _tensorboard_histograms(folder / "tensorboard-chunks", values),
        "W&B offline, as histograms": _wandb_histograms(folder / "wandb-chunks", values),
        "pickle, rewritten every 10": pickled,
    }
    seconds = alternate(list(savers.values()), rounds=5, sample=1e-3).T
    rows = [
        (name, Figure.of(CHUNKS / each, digits=0), Figure.of(CHUNKS * MEGABYTES / each, digits=0))
        for name, each in zip(savers, seconds, strict=True)
    ]
    return Table("Chunks of 5 keys of (256, 8) float32", ("saver", "chunks per second", "MB per second"), rows)


def _growth(folder: Path) -> Table:
    events = [lox.logdict({"loss": np.float32([i])}) for i in range(EVENTS)]
    short, long = (lox.loggers.SaveLogger(folder / name) for name in ("short", "long"))
    logged(long, [lox.logdict({"loss": np.arange(200_000, dtype=np.float32)})] * 5)()
    few, many = alternate([logged(short, events), logged(long, events)], rounds=10, sample=1e-3).T
    short.close()
    long.close()
    path = folder / "long"

    def read() -> None:
        (logs,) = lox.load(path).values()
        np.asarray(logs["loss"]).sum()

    (reading,) = alternate([read], rounds=10).T
    rows = [
        ("an event after 10^6 events over one after 10", Figure.of(many / few, 1.1), 1.1),
        ("reading 10^6 scalars, ms", Figure.of(reading * 1e3, 50), 50),
    ]
    return Table("As a run grows", ("what", "figure", "target"), rows)


def _streaming(folder: Path) -> Table:
    rows: list[tuple[Any, ...]] = []
    for name, width, target in (
        ("adds a number", 0, ""),
        ("a layer of 128, 1 us", 128, ""),
        ("of 512, 10 us", 512, 1.5),
    ):
        streamed, collected = _scan_saved(folder / f"streaming{width}", width)
        over = Figure.of(streamed / collected, target or None)
        rows.append((name, Figure.of(streamed * 1e3), Figure.of(collected * 1e3), over, target))
    columns = ("each step", "tap(buffer=256), ms", "spool, ms", "tap over spool", "target")
    return Table(f"A scan of {STEPS:,} steps, saved", columns, rows)


def _scan_saved(path: Path, width: int) -> Any:
    weights = jnp.eye(width)

    def step(x: Any, i: Any) -> tuple[Any, None]:
        x = jnp.tanh(x @ weights) if width else x + 1
        lox.log({"loss": x.sum()}, step=i)
        return x, None

    def scan(x: Any) -> Any:
        return jax.lax.scan(step, x, jnp.arange(STEPS))[0]

    start = jnp.ones(width) if width else jnp.float32(0)
    with lox.loggers.SaveLogger(path) as logger:
        state = logger.init(0)

        def done(function: Callable[[Any], Any]) -> Callable[[], None]:
            def run() -> None:
                jax.block_until_ready(function(start))
                logger.flush()

            return run

        tapped, spooled = jax.jit(logger.tap(scan, state, buffer=256)), jax.jit(logger.spool(scan, state))
        both = [done(calling(function, start)) for function in (tapped, spooled)]
        return alternate(both, rounds=5, sample=1e-3).T


def logged(logger: lox.loggers.Logger, logs: Sequence[lox.logdict], key: int = 0) -> Callable[[], None]:
    """Hands all logs to a logger, as those of one run, and waits until they are written."""
    state = logger.init(key)

    def run() -> None:
        for each in logs:
            logger.log(state, each)
        logger.flush()

    return run


def _tensorboard(path: Path) -> Callable[[], None]:
    import tensorboardX

    writer = tensorboardX.SummaryWriter(str(path))

    def run() -> None:
        for i in range(EVENTS):
            writer.add_scalar("loss", float(i), i)
        writer.flush()

    return run


def _tensorboard_histograms(path: Path, values: dict[str, np.ndarray]) -> Callable[[], None]:
    import tensorboardX

    writer = tensorboardX.SummaryWriter(str(path))

    def run() -> None:
        for i in range(CHUNKS):
            for key, array in values.items():
                writer.add_histogram(key, array, i)
        writer.flush()

    return run


def wandb_run(path: Path) -> Any:
    """A run of W&B's own, offline."""
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    path.mkdir()
    return wandb.init(mode="offline", dir=path, reinit="create_new")


def _wandb(path: Path) -> Callable[[], None]:
    run = wandb_run(path)

    def log() -> None:
        for i in range(EVENTS):
            run.log({"loss": float(i), "step": i})

    return log


def _wandb_histograms(path: Path, values: dict[str, np.ndarray]) -> Callable[[], None]:
    import wandb

    run = wandb_run(path)

    def log() -> None:
        for i in range(CHUNKS):
            run.log({key: wandb.Histogram(array) for key, array in values.items()} | {"step": i})

    return log


def _pickled(path: Path) -> Callable[[], None]:
    def run() -> None:
        found = []
        for i in range(EVENTS):
            found.append((i, float(i)))
            if i % 100 == 99:
                path.write_bytes(pickle.dumps(found))

    return run


if __name__ == "__main__":
    main({"saving": measure})
