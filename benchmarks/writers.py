"""Writers by hand in a loop of Python, as their documentation advises, next to lox's loggers there and in a scan.

clu is measured where it is installed: it needs TensorFlow, which lox does not.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate
from benchmarks.saving import wandb_run

STEPS = 1_000
ROUNDS = 5
KEYS = ("loss", "norm", "rate")

Write = Callable[[int, dict[str, float]], None]
Loop = Callable[[], None]


def loss_of(w: Any, x: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ w) - x) ** 2)


def step(w: Any, i: Any) -> tuple[Any, dict[str, Any]]:
    """One step of a training, with the values of `KEYS`."""
    x = jnp.sin(i + jnp.arange(32 * 64).reshape(32, 64))
    loss, gradient = jax.value_and_grad(loss_of)(w, x)
    return w - 0.1 * gradient, {"loss": loss, "norm": jnp.linalg.norm(gradient), "rate": 1 / (1 + i)}


def logging(w: Any, i: Any) -> Any:
    w, values = step(w, i)
    lox.log(values, step=i)
    return w


def measure() -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="lox-writers-") as folder:
        yield _table(Path(folder))


def _table(folder: Path) -> Table:
    os.environ["WANDB_SILENT"] = "true"
    (folder / "wandb").mkdir()
    clients = {"csv": csv_by_hand(folder / "by-hand.csv"), "tensorboardX": tensorboard_by_hand(folder / "by-hand")}
    clients["wandb, offline"] = wandb_by_hand(folder / "client")
    if importlib.util.find_spec("clu") is not None:
        clients["clu SummaryWriter"] = clu_by_hand(folder / "clu")
    loggers = {
        "SaveLogger": lox.loggers.SaveLogger(folder / "save"),
        "TensorBoardLogger": lox.loggers.TensorBoardLogger(folder / "tensorboard"),
        "WandbLogger": lox.loggers.WandbLogger(init={"mode": "offline", "dir": folder / "wandb"}),
    }
    loops: dict[str, Loop] = {"no logs": _loop(lambda i, values: None, read=False)}
    loops["no logs, scan"] = _scan(lambda w, xs: jax.lax.scan(lambda w, i: (step(w, i)[0], None), w, xs)[0])
    loops |= {name: _loop(write, end) for name, (write, end) in clients.items()}
    for number, (name, logger) in enumerate(loggers.items()):
        loops[name] = _spooled(logger, number)
        loops[f"{name}, scan"] = _scan(_tapped(logger, number + 10), logger.flush)
    seconds = dict(zip(loops, alternate(list(loops.values()), ROUNDS, sample=1e-3).T, strict=True))
    of_step = {name: float(each.mean()) / STEPS * 1e6 for name, each in seconds.items()}
    rows = []
    for name, each in seconds.items():
        base = seconds["no logs, scan" if name.endswith("scan") else "no logs"]
        rows.append((name, Figure.of(each / base), Figure.of((each - base) / STEPS * 1e6, digits=0)))
    for logger in loggers.values():
        logger.close()
    return Table(
        f"A training of {STEPS:,} steps that writes {len(KEYS)} numbers in each",
        ("writer", "over the training without logs", "us more per step"),
        rows,
        f"A step takes {of_step['no logs']:,.0f} us in a loop and {of_step['no logs, scan']:,.0f} us in a scan.\n"
        "W&B writes in a process of its own as well, which is not counted.",
    )


def _loop(write: Write, end: Loop = lambda: None, read: bool = True) -> Loop:
    jitted = jax.jit(step)

    def run() -> None:
        w = jnp.eye(64)
        for i in range(STEPS):
            w, values = jitted(w, i)
            write(i, {key: float(value) for key, value in values.items()} if read else {})
        w.block_until_ready()
        end()

    return run


def _spooled(logger: lox.loggers.Logger, seed: int) -> Loop:
    run, jitted = logger.init(seed), jax.jit(lox.spool(logging))

    def loop() -> None:
        w = jnp.eye(64)
        for i in range(STEPS):
            w, logs = jitted(w, i)
            logger.log(run, logs)
        w.block_until_ready()
        logger.flush()

    return loop


def _tapped(logger: lox.loggers.Logger, seed: int) -> Callable[..., Any]:
    train = lambda w, xs: jax.lax.scan(lambda w, i: (logging(w, i), None), w, xs)[0]  # noqa: E731
    return logger.tap(train, logger.init(seed), buffer=256)


def _scan(train: Callable[..., Any], end: Loop = lambda: None) -> Loop:
    jitted = jax.jit(train)

    def run() -> None:
        jitted(jnp.eye(64), jnp.arange(STEPS)).block_until_ready()
        end()

    return run


def csv_by_hand(path: Path) -> tuple[Write, Loop]:
    file = path.open("w", newline="")
    rows = csv.DictWriter(file, ["step", *KEYS])
    rows.writeheader()
    return (lambda i, values: rows.writerow({"step": i, **values})), file.flush


def tensorboard_by_hand(path: Path) -> tuple[Write, Loop]:
    import tensorboardX

    writer = tensorboardX.SummaryWriter(str(path))

    def write(i: int, values: dict[str, float]) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, i)

    return write, writer.flush


def wandb_by_hand(path: Path) -> tuple[Write, Loop]:
    run, written = wandb_run(path), [0]

    def write(i: int, values: dict[str, float]) -> None:
        run.log(values, step=written[0])  # W&B drops what comes with a step that it has left behind.
        written[0] += 1

    return write, lambda: None


def clu_by_hand(path: Path) -> tuple[Write, Loop]:
    from clu import metric_writers

    writer = metric_writers.SummaryWriter(str(path))
    return writer.write_scalars, writer.flush


if __name__ == "__main__":
    main({"writers": measure})
