"""How cost grows: memory over events, `lox.tap` over lanes, loggers over keys. (Tracing is in `tracing`.)"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._report import Curve, Figure, Table, main
from benchmarks._timing import alternate
from benchmarks.streaming import arrived, take

EVENTS = (100, 1_000, 10_000, 100_000, 1_000_000)
LANES = (1, 4, 16, 64, 256, 1024)
KEYS = (1, 10, 100, 1000)

Call = Callable[[], Any]


def measure() -> Iterator[Table]:
    yield Table(
        "Bytes of temporaries and outputs of a jitted scan that logs a float32 at each step",
        ("events", *[f"{events:,}" for events in EVENTS]),
        [
            ("by hand", *map(_bytes, map(_by_hand, EVENTS))),
            ("lox.spool", *(_bytes(lox.spool(_scan(events))) for events in EVENTS)),
            ("lox.spool, interval=100", *(_bytes(lox.spool(_scan(events), interval=100)) for events in EVENTS)),
            ("lox.spool, reduce='mean'", *(_bytes(lox.spool(_scan(events), reduce="mean")) for events in EVENTS)),
        ],
        curve=Curve(EVENTS, "events", "bytes"),
    )
    yield Table(
        "Streaming a scan under vmap: microseconds per event and lane",
        ("lanes", *map(str, LANES)),
        _by_size(LANES, _over_lanes),
        "Processor time of all threads, until all has arrived. jax.debug.callback calls once for each lane, and is\n"
        "not ordered.",
        Curve(LANES, "lanes", "us per event and lane"),
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


def _step(carry: Any, x: Any) -> tuple[Any, None]:
    carry = jnp.sin(carry) + x
    lox.log({"carry": carry})
    return carry, None


def _scan(events: int) -> Callable[[Any], Any]:
    return lambda start: jax.lax.scan(lambda carry, _: _step(carry, 1.0), start, length=events)[0]


def _by_hand(events: int) -> Callable[[Any], Any]:
    def step(carry: Any, _: Any) -> tuple[Any, Any]:
        carry = jnp.sin(carry) + 1.0
        return carry, carry

    return lambda start: jax.lax.scan(step, start, length=events)


def _bytes(f: Callable[[Any], Any]) -> Figure:
    analysis = jax.jit(f).lower(jnp.float32(0)).compile().memory_analysis()
    return Figure(analysis.temp_size_in_bytes + analysis.output_size_in_bytes, digits=0)


def _over_lanes(lanes: int) -> dict[str, tuple[Call, int]]:
    def called(carry: Any, x: Any) -> tuple[Any, None]:
        carry = jnp.sin(carry) + x
        jax.debug.callback(lambda c: take({"carry": c}), carry)
        return carry, None

    def over(step: Any, steps: int, transform: Callable[[Any], Any]) -> tuple[Call, int]:
        mapped = jax.vmap(transform(lambda xs: jax.lax.scan(step, 0.0, xs)[0]))
        return arrived(jax.jit(mapped), jnp.ones((lanes, steps))), lanes * steps

    return {
        "lox.tap": over(_step, 1_000, lambda f: lox.tap(f, take)),
        "lox.tap, buffer=256": over(_step, 10_000, lambda f: lox.tap(f, take, buffer=256)),
        "jax.debug.callback": over(called, max(4, 200 // lanes), lambda f: f),
    }


def _over_keys(folder: Path, keys: int) -> dict[str, tuple[Call, int]]:
    os.environ["WANDB_SILENT"] = "true"
    import tensorboardX
    import wandb

    folder.mkdir()
    events = max(2, 500 // keys)
    names = [f"key{key}" for key in range(keys)]
    step = {"step": dict.fromkeys(names, np.zeros(1, np.int32))}
    logs = lox.logdict({name: np.ones(1, np.float32) for name in names}, step)
    writer = tensorboardX.SummaryWriter(str(folder / "tensorboardX"))
    run = wandb.init(mode="offline", dir=folder, reinit="create_new")

    def through(logger: lox.loggers.Logger) -> Call:
        state = logger.init(keys)  # A run of its own: W&B has one of each name in a process.

        def call() -> None:
            for _ in range(events):
                logger.log(state, logs)
            logger.flush()

        return call

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
        "WandbLogger": through(lox.loggers.WandbLogger(mode="offline", dir=folder)),
        "W&B": weights_and_biases,
    }
    return {name: (call, events * keys) for name, call in calls.items()}


if __name__ == "__main__":
    main({"growth": measure})
