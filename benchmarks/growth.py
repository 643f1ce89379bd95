"""How cost grows: memory over events, `lox.tap` over batches, loggers over keys. (Tracing is in `tracing`.)"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks import memory
from benchmarks._present import calling as calling_host
from benchmarks._present import returning
from benchmarks._report import Curve, Figure, Table, main
from benchmarks._timing import alternate
from benchmarks.saving import logged, wandb_run
from benchmarks.streaming import arrived, scan, take

EVENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
BATCHES = (1, 4, 16, 64, 256, 1024)
KEYS = (1, 10, 100, 1000)

Call = Callable[[], Any]


def measure() -> Iterator[Table]:
    yield Table(
        "Bytes of temporaries and outputs of a jitted scan that logs a float32 at each step",
        ("events", *[f"{events:,}" for events in EVENTS]),
        [
            ("by hand", *map(_bytes, map(_by_hand, EVENTS))),
            ("lox.spool", *(_bytes(lox.spool(memory.scan(events))) for events in EVENTS)),
            ("lox.spool, interval=100", *(_bytes(lox.spool(memory.scan(events), interval=100)) for events in EVENTS)),
            ("lox.spool, reduce='mean'", *(_bytes(lox.spool(memory.scan(events), reduce="mean")) for events in EVENTS)),
        ],
        curve=Curve(EVENTS, "events", "bytes"),
    )
    yield Table(
        "Streaming a scan under vmap: microseconds per event and batch element",
        ("batch size", *map(str, BATCHES)),
        _by_size(BATCHES, _over_batches),
        "Processor time of all threads, until all has arrived. jax.debug.callback calls once for each batch element,\n"
        "and is not ordered.",
        Curve(BATCHES, "batch size", "us per event and batch element"),
    )
    with tempfile.TemporaryDirectory(prefix="lox-growth-", ignore_cleanup_errors=True) as folder:
        yield Table(
            "Loggers: microseconds per scalar of an event with so many keys",
            ("keys", *map(str, KEYS)),
            _by_size(KEYS, lambda keys: _over_keys(Path(folder) / str(keys), keys)),
            "From the call until all is written (for W&B: handed to its process).",
            Curve(KEYS, "keys", "us per scalar"),
        )


def _by_size(sizes: Sequence[int], make: Callable[[int], dict[str, tuple[Call, int]]]) -> list[tuple[Any, ...]]:
    """Rows of microseconds per unit of work, where `make` tells for a size what to call and how much work that is."""
    rows: dict[str, list[Figure]] = {}
    for size in sizes:
        calls = make(size)
        seconds = alternate([call for call, _ in calls.values()], rounds=5, sample=1e-3).T
        for (name, (_, work)), each in zip(calls.items(), seconds, strict=True):
            rows.setdefault(name, []).append(Figure.of(1e6 * each / work, digits=3))
    return [(name, *figures) for name, figures in rows.items()]


def _by_hand(events: int) -> Callable[[Any], Any]:
    def step(x: Any, _: Any) -> tuple[Any, Any]:
        x = memory.advance(x)
        return x, x

    return lambda start: jax.lax.scan(step, start, length=events)


def _bytes(f: Callable[[Any], Any]) -> Figure:
    returning(f, jnp.float32(0))
    analysis = jax.jit(f).lower(jnp.float32(0)).compile().memory_analysis()
    return Figure(analysis.temp_size_in_bytes + analysis.output_size_in_bytes, digits=0)


def _over_batches(batch: int) -> dict[str, tuple[Call, int]]:
    def over(f: Callable[[Any], Any], steps: int) -> tuple[Call, int]:
        xs = jnp.ones((batch, steps))
        return arrived(calling_host(jax.jit(jax.vmap(f)), xs), xs), batch * steps

    logging = scan(lambda c: lox.log({"c": c}))
    calling = scan(lambda c: jax.debug.callback(lambda c: take({"c": c}), c))
    return {
        "lox.tap": over(lox.tap(logging, take), 1_000),
        "lox.tap, buffer=256": over(lox.tap(logging, take, buffer=256), 10_000),
        "jax.debug.callback": over(calling, max(4, 200 // batch)),
    }


def _over_keys(folder: Path, keys: int) -> dict[str, tuple[Call, int]]:
    import tensorboardX

    folder.mkdir()
    events = max(2, 500 // keys)
    names = [f"key{key}" for key in range(keys)]
    step = {"step": dict.fromkeys(names, np.zeros(1, np.int32))}
    logs = lox.logdict({name: np.ones(1, np.float32) for name in names}, step)
    writer = tensorboardX.SummaryWriter(str(folder / "tensorboardX"))
    run = wandb_run(folder / "run")

    def through(logger: lox.loggers.Logger) -> Call:
        return logged(logger, [logs] * events, key=keys)  # A run of its own: W&B has one of each name in a process.

    def tensorboard() -> None:
        for _ in range(events):
            for name in names:
                writer.add_scalar(name, 1.0, 0)
        writer.flush()

    def weights_and_biases() -> None:
        for _ in range(events):
            run.log({**dict.fromkeys(names, 1.0), "step": 0})

    calls = {
        "SaveLogger": through(lox.loggers.SaveLogger(folder / "saved")),
        "TensorBoardLogger": through(lox.loggers.TensorBoardLogger(folder / "tensorboard")),
        "tensorboardX": tensorboard,
        "WandbLogger": through(lox.loggers.WandbLogger(init={"mode": "offline", "dir": folder})),
        "W&B": weights_and_biases,
    }
    return {name: (call, events * keys) for name, call in calls.items()}


if __name__ == "__main__":
    main({"growth": measure})
