"""`lox.loggers.SaveLogger` next to other savers: events per second, growth, reading, and streaming over collecting."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._present import calling
from benchmarks._report import Figure, Table, main, slope
from benchmarks._timing import alternate, stopwatch
from lox._storage import RunWriter
from lox.loggers._gathering import joined

EVENTS = 2_000
CHUNKS = 100
CHUNK = {f"key{place}": (256, 8) for place in range(5)}
MEGABYTES = sum(4 * np.prod(shape) for shape in CHUNK.values()) / 1e6
STEPS = 100_000
FLUSHED = 1_000
KEYS = 2_000
ALTERNATIONS = (1_000, 2_000, 4_000, 8_000)


def measure() -> Iterator[Table]:
    folder = Path(tempfile.mkdtemp(prefix="lox-saving-"))
    try:
        yield _scalars(folder)
        yield _chunks(folder)
        yield _flushed(folder)
        yield _flushed_every(folder)
        yield _growth(folder)
        yield _files(folder)
        yield _alternation(folder)
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


def _flushed(folder: Path) -> Table:
    savers = {
        "the writing of SaveLogger": _writing(folder / "written", 1),
        "SaveLogger, log and flush": _flushing(lox.loggers.SaveLogger(folder / "flushed"), 1),
        "SQLite, a transaction for each event": _sqlite(folder / "flushed.sqlite", 1),
        "JSON lines, flushed": _json_lines(folder / "flushed.jsonl", 1),
    }
    rows = _per_event(savers, 20)
    note = (
        "Each survives a killed process and not a power cut: SQLite with journal_mode=WAL and synchronous=OFF. A flush "
        "of a logger waits for its thread."
    )
    return Table("A scalar with a step, flushed after each event", ("saver", "us per event", "target"), rows, note)


def _flushed_every(folder: Path) -> Table:
    savers = {
        "the writing of SaveLogger": _writing(folder / "written-every", FLUSHED),
        "SaveLogger, log and flush": _flushing(lox.loggers.SaveLogger(folder / "every"), FLUSHED),
        "SQLite, a transaction for so many": _sqlite(folder / "every.sqlite", FLUSHED),
        "JSON lines, flushed after so many": _json_lines(folder / "every.jsonl", FLUSHED),
    }
    rows = _per_event(savers, 5)
    note = "The writing is what the thread of the logger does: events become arrays, and these are appended."
    return Table(f"Flushed after {FLUSHED:,} events", ("saver", "us per event", "target"), rows, note)


def _per_event(savers: dict[str, Callable[[], None]], target: float) -> list[tuple[Any, ...]]:
    seconds = alternate(list(savers.values()), rounds=5, sample=1e-3).T
    targets = [target, *[None] * (len(savers) - 1)]
    return [
        (name, Figure.of(each / FLUSHED * 1e6, goal), goal or "")
        for name, each, goal in zip(savers, seconds, targets, strict=True)
    ]


def _growth(folder: Path) -> Table:
    events = [lox.logdict({"loss": np.float32([i])}) for i in range(EVENTS)]
    short, long = (lox.loggers.SaveLogger(folder / name) for name in ("short", "long"))
    logged(long, [lox.logdict({"loss": np.arange(200_000, dtype=np.float32)})] * 5)()
    few, many = alternate([logged(short, events), logged(long, events)], rounds=10, sample=1e-3).T
    short.close()
    long.close()
    path = folder / "long"
    scalars = np.arange(10**6, dtype=np.float32)
    at_once = lox.logdict({"loss": scalars}, {"step": {"loss": np.arange(10**6, dtype=np.int32)}})
    once = lox.loggers.SaveLogger(folder / "once")

    def read() -> None:
        (logs,) = lox.load(path).values()
        np.asarray(logs["loss"]).sum()

    def numpy() -> None:
        np.save(folder / "once.npy", scalars)
        np.save(folder / "steps.npy", at_once.steps["step"]["loss"])

    reading, writing, saving = alternate([read, logged(once, [at_once]), numpy], rounds=10).T
    once.close()
    rows = [
        ("an event after 10^6 events over one after 10", Figure.of(many / few, 1.1), 1.1),
        ("reading and summing 10^6 scalars, ms", Figure.of(reading * 1e3, 2), 2),
        ("10^6 scalars with steps in one call of log, ms", Figure.of(writing * 1e3, 15), 15),
        ("the same by two calls of numpy.save, ms", Figure.of(saving * 1e3), ""),
    ]
    return Table("As a run grows", ("what", "figure", "target"), rows)


def _files(folder: Path) -> Table:
    alike = {f"key{place}": np.float32([0]) for place in range(KEYS)}
    kinds: tuple[np.ndarray, ...] = (np.float32([0]), np.int32([0]), np.zeros((1, 8), np.float32), np.ones(1, bool))
    mixed = {f"key{place}": kinds[place % len(kinds)] for place in range(KEYS)}
    rows: list[tuple[Any, ...]] = []
    for name, values in (("float32 scalars", alike), ("of 4 dtypes and shapes", mixed)):
        logger = lox.loggers.SaveLogger(folder / name)
        counters = {"step": dict.fromkeys(values, np.zeros(1, np.int32))}
        seconds, _ = stopwatch(logged(logger, [lox.logdict(values, counters)]))
        (more,) = alternate([logged(logger, [lox.logdict(values, counters)])], rounds=5, sample=1e-3).T
        logger.close()
        rows.append((name, Figure(_columns(folder / name), None, 8, 0), 8, Figure(seconds), Figure.of(more * 1e3)))
    columns = ("keys", "files", "target", "seconds of the first event", "ms of each later one")
    return Table(f"{KEYS:,} keys of one log call", columns, rows)


def _alternation(folder: Path) -> Table:
    """Masked and unmasked events in turns, as of `where=` where an event happens in all batch elements now and then."""
    values = {"return": np.ones((1, 3), np.float32)}
    counters = {"step": {"return": np.zeros((1, 3), np.int32)}}
    pair = [lox.logdict(values, counters), lox.logdict(values, counters, {"return": np.array([[True, False, True]])})]
    files, seconds = [], []
    for count in ALTERNATIONS:
        with lox.loggers.SaveLogger(folder / f"alternating{count}") as logger:
            seconds.append(stopwatch(logged(logger, pair * (count // 2)))[0])
        files.append(_columns(folder / f"alternating{count}"))
    rows = [
        ("files", *(Figure(number, digits=0) for number in files), slope(ALTERNATIONS, files, 0.1), 0.1),
        ("seconds", *map(Figure, seconds), slope(ALTERNATIONS, seconds, 1.2), 1.2),
    ]
    columns = ("what", *(f"{count:,}" for count in ALTERNATIONS), "exponent", "target")
    return Table("Masked and unmasked events in turns", columns, rows, "1 is linear in the number of events.")


def _columns(path: Path) -> int:
    """The number of files of arrays in a directory."""
    return sum(1 for _ in path.rglob("*.npy"))


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


def _scalars_with_steps() -> list[lox.logdict]:
    return [lox.logdict({"loss": np.float32([i])}, {"step": {"loss": np.array([i], np.int32)}}) for i in range(FLUSHED)]


def _writing(path: Path, every: int) -> Callable[[], None]:
    """Writes events as the thread of a `SaveLogger` does, so many at a time."""
    writer, events = RunWriter(path, (0,), {}, "run", {}), _scalars_with_steps()

    def run() -> None:
        for start in range(0, FLUSHED, every):
            for logs in joined(events[start : start + every]):
                writer.append(logs)
            writer.sync()

    return run


def _flushing(logger: lox.loggers.Logger, every: int) -> Callable[[], None]:
    """Logs events one at a time, with a flush after each of so many."""
    events = _scalars_with_steps()
    state = logger.init(0)

    def run() -> None:
        for i, event in enumerate(events, 1):
            logger.log(state, event)
            if i % every == 0:
                logger.flush()

    return run


def _sqlite(path: Path, every: int) -> Callable[[], None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE events (step INTEGER, loss REAL)")

    def run() -> None:
        for i in range(FLUSHED):
            if i % every == 0:
                connection.execute("BEGIN")
            connection.execute("INSERT INTO events VALUES (?, ?)", (i, float(i)))
            if (i + 1) % every == 0:
                connection.execute("COMMIT")

    return run


def _json_lines(path: Path, every: int) -> Callable[[], None]:
    file = path.open("w")

    def run() -> None:
        for i in range(FLUSHED):
            file.write(json.dumps({"step": i, "loss": float(i)}) + "\n")
            if (i + 1) % every == 0:
                file.flush()

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
