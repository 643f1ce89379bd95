"""How many bytes logs take at scale, by arithmetic that is checked on what small cases take."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._report import Figure, Table, main

VALUE = 4
"""Bytes of a logged value, a float32."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A program that logs scalars in a scan, of which seeds are vmapped.

    Attributes:
        steps: Iterations of the scan.
        keys: Values that each iteration logs, by one call.
        seeds: Batch elements of the vmap.
        interval: Of how many events one is kept.
        reduced: Whether each key is reduced to one value.
        buffer: How many events a tap sends at a time.
    """

    steps: int
    keys: int
    seeds: int
    interval: int = 1
    reduced: bool = False
    buffer: int = 1

    @property
    def events(self) -> int:
        """How many events of a key are kept."""
        return 1 if self.reduced else math.ceil(self.steps / self.interval)

    @property
    def spooled(self) -> int:
        """Bytes of what `lox.spool` returns, over all devices."""
        return self.events * self.keys * self.seeds * VALUE

    @property
    def sent(self) -> int:
        """Bytes that a tap sends to the host."""
        return math.ceil(self.steps / self.interval) * self.keys * self.seeds * VALUE

    @property
    def calls(self) -> int:
        """How many times a tap calls the host."""
        return math.ceil(math.ceil(self.steps / self.interval) / self.buffer)

    @property
    def stored(self) -> int:
        """Bytes of the columns that `SaveLogger` and `lox.save` write, a file for each key and seed."""
        return self.seeds * self.keys * (HEADER + self.events * VALUE)


HEADER = 128
"""Bytes with which a file of NumPy begins."""

CASES = {
    "all events": Case(1000, 10, 8),
    "interval=10": Case(1000, 10, 8, interval=10),
    'reduce="last"': Case(1000, 10, 8, reduced=True),
    "buffer=64": Case(1000, 10, 8, buffer=64),
    "interval=7, buffer=16": Case(1000, 3, 5, interval=7, buffer=16),
}
LARGE = {
    "all events": Case(1_000_000, 1000, 1000),
    "interval=1,000": Case(1_000_000, 1000, 1000, interval=1000),
    'reduce="last"': Case(1_000_000, 1000, 1000, reduced=True),
    "buffer=512": Case(1_000_000, 1000, 1000, buffer=512),
    "interval=1,000, buffer=64": Case(1_000_000, 1000, 1000, interval=1000, buffer=64),
}


def measure() -> Iterator[Table]:
    yield Table(
        "What logs take over what is predicted",
        ("case", "spooled bytes", "sent bytes", "host calls", "stored bytes"),
        [_checked(name, case) for name, case in CASES.items()],
        "One is as predicted. What is sent, and the calls of the host, are those of lox.tap, which reduces nothing.\n"
        "Of what is stored, the manifests of runs come on top.",
    )
    yield Table(
        "A million steps that log a thousand keys, of a thousand seeds",
        ("case", "spooled", "spooled, of one seed", "tapped, of a step", "host calls", "stored"),
        [_predicted(name, case) for name, case in LARGE.items()],
        "By arithmetic. What is spooled is spread over devices as the seeds are.",
    )


def program(case: Case) -> Callable[[Any], Any]:
    """The function of one seed."""

    def run(x):
        def step(x, _):
            lox.log({f"key{each}": x + each for each in range(case.keys)})
            return x * 0.5, None

        return jax.lax.scan(step, x, length=case.steps)[0]

    return run


def _checked(name: str, case: Case) -> tuple[Any, ...]:
    seeds = jnp.arange(case.seeds, dtype=jnp.float32)
    sent = _sent(case, seeds)
    return (
        name,
        *(
            Figure(measured / predicted, target=1, digits=3)
            for measured, predicted in (
                (_spooled(case, seeds), case.spooled),
                (sum(sent), case.sent),
                (len(sent), case.calls),
                (_stored(case, seeds), case.stored),
            )
        ),
    )


def _options(case: Case) -> dict[str, Any]:
    return {"reduce": "last"} if case.reduced else {"interval": case.interval}


def _spooled(case: Case, seeds: jax.Array) -> int:
    """The bytes of the logs that a compiled program returns."""
    spooled = lox.spool(jax.vmap(program(case)), **_options(case))
    logs = jax.jit(lambda x: spooled(x)[1].data).lower(seeds).compile()
    return int(logs.memory_analysis().output_size_in_bytes) - 8 * case.keys  # A pointer for each array.


def _sent(case: Case, seeds: jax.Array) -> list[int]:
    """The bytes that each call of a tap gets."""
    found: list[int] = []

    def callback(logs: lox.logdict) -> None:
        found.append(sum(np.asarray(value).nbytes for value in logs.values()))

    tapped = lox.tap(jax.vmap(program(case)), callback, interval=case.interval, buffer=case.buffer)
    jax.block_until_ready(jax.jit(tapped)(seeds))
    lox.flush()
    return found


def _stored(case: Case, seeds: jax.Array) -> int:
    """The bytes of the columns of all runs."""
    with tempfile.TemporaryDirectory() as folder:
        with lox.loggers.SaveLogger(folder) as logger:

            def run(seed, x):
                return logger.spool(program(case), logger.init(seed), **_options(case))(x)

            jax.block_until_ready(jax.vmap(run)(jnp.arange(case.seeds), seeds))
        return sum(file.stat().st_size for file in Path(folder).rglob("*.npy"))


def _predicted(name: str, case: Case) -> tuple[Any, ...]:
    tapped = ("", "") if case.reduced else (_bytes(case.sent / case.steps), f"{case.calls:,}")  # Taps reduce nothing.
    return name, _bytes(case.spooled), _bytes(case.spooled / case.seeds), *tapped, _bytes(case.stored)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


if __name__ == "__main__":
    main({"scale": measure})
