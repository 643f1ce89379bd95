"""`lox.loggers.SaveLogger` next to other savers: events per second, growth, reading, and streaming over collecting."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
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
        "SaveLogger": _saved(folder / "scalars", events),
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

    savers = {"SaveLogger": _saved(folder / "chunks", chunks), "pickle, rewritten every 10": pickled}
    seconds = alternate(list(savers.values()), rounds=5, sample=1e-3).T
    rows = [
        (name, Figure.of(CHUNKS / each, digits=0), Figure.of(CHUNKS * MEGABYTES / each, digits=0))
        for name, each in zip(savers, seconds, strict=True)
    ]
    return Table("Chunks of 5 keys of (256, 8) float32", ("saver", "chunks per second", "MB per second"), rows)


def _growth(folder: Path) -> Table:
    events = [lox.logdict({"loss": np.float32([i])}) for i in range(EVENTS)]
    short, long = (lox.loggers.SaveLogger(folder / name) for name in ("short", "long"))
    states = [short.init(0), long.init(0)]
    for _ in range(5):
        long.log(states[1], lox.logdict({"loss": np.arange(200_000, dtype=np.float32)}))
    long.flush()

    def append(logger: lox.loggers.SaveLogger, state: Any) -> Callable[[], None]:
        def run() -> None:
            for event in events:
                logger.log(state, event)
            logger.flush()

        return run

    few, many = alternate([append(short, states[0]), append(long, states[1])], rounds=10, sample=1e-3).T
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
    def scan(x: Any) -> Any:
        return jax.lax.scan(lambda c, i: (lox.log({"loss": c}, step=i)["loss"] + 1, None), x, jnp.arange(STEPS))[0]

    logger = lox.loggers.SaveLogger(folder / "streaming")
    state = logger.init(0)
    tapped = jax.jit(logger.tap(scan, state, buffer=256))
    spooled = jax.jit(logger.spool(scan, state))

    def done(function: Callable[[Any], Any]) -> Callable[[], None]:
        def run() -> None:
            jax.block_until_ready(function(0.0))
            logger.flush()

        return run

    as_it_runs, at_the_end = alternate([done(tapped), done(spooled)], rounds=10, sample=1e-3).T
    logger.close()
    rows = [
        ("tap(buffer=256), ms", Figure.of(as_it_runs * 1e3), ""),
        ("spool, ms", Figure.of(at_the_end * 1e3), ""),
        ("tap over spool", Figure.of(as_it_runs / at_the_end, 1.5), 1.5),
    ]
    return Table(f"A scan of {STEPS:,} steps, saved", ("what", "figure", "target"), rows)


def _saved(path: Path, logs: list[lox.logdict]) -> Callable[[], None]:
    logger = lox.loggers.SaveLogger(path)
    state = logger.init(0)

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


def _wandb(path: Path) -> Callable[[], None]:
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    path.mkdir()
    run = wandb.init(mode="offline", dir=path)

    def log() -> None:
        for i in range(EVENTS):
            run.log({"loss": float(i), "step": i})

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
