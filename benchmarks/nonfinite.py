"""`lox.guard` and `lox.find_nonfinite` next to `checkify` and `jax_debug_nans`, on training with steps of some ms."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

import lox
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate, done

Function = Callable[..., Any]
WIDTH, LAYERS, BATCH, STEPS = 128, 6, 640, 20


def measure() -> Iterator[Table]:
    weights = [
        (jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5, jnp.zeros(WIDTH))
        for key in jax.random.split(jax.random.key(0), LAYERS)
    ]
    batches = jax.random.normal(jax.random.key(1), (STEPS, BATCH, WIDTH))
    folder = Path(tempfile.mkdtemp())
    alone, watched, training = jax.jit(step), jax.jit(only_loss), jax.jit(train)
    guards = {
        "results of a step": (alone, lox.guard(alone, bundle=folder / "step"), batches[0]),
        "the loss of a step": (watched, lox.guard(watched, bundle=folder / "loss"), batches[0]),
        "the carry of a scan": (training, lox.guard(training, bundle=folder / "train"), batches),
    }
    rows = []
    for name, (plain, guarded, inputs) in guards.items():
        noticing(guarded, weights, inputs)
        target = 1.03 if name == "the loss of a step" else 1.05
        fresh = lox.guard(plain, bundle=folder / "never")  # One that has failed runs unguarded.
        checked = jax.jit(checkify.checkify(plain, errors=checkify.float_checks))
        programs = [done(program, weights, inputs) for program in (plain, fresh, debugging(plain), checked)]
        base, ours, debugged, theirs = alternate(programs, rounds=40, sample=0.1).T
        steps = STEPS if plain is training else 1
        milliseconds = np.median(base) / steps * 1e3
        others = [Figure.of(each / base) for each in (debugged, theirs)]
        rows.append((name, f"{milliseconds:.1f} ms", Figure.of(ours / base, target=target), *others))
    yield Table(
        "Guarding training: processor time over that of the function alone",
        ("looked at", "a step alone", "lox.guard", "jax_debug_nans", "checkify, float_checks"),
        rows,
        "The guard of each was seen to notice a NaN before it was timed. jax_debug_nans looks at the results of each\n"
        "call, for which the caller waits, and not at the carry in a scan; the guard does not wait.",
    )
    bad = batches.at[STEPS // 2, 3, 5].set(jnp.inf)
    found = []
    for _ in range(3):
        started = time.perf_counter()
        report = lox.find_nonfinite(train)(weights, bad)
        found.append(time.perf_counter() - started)
    assert report.iterations == (STEPS // 2,), report
    started = time.perf_counter()
    jax.block_until_ready(training(weights, batches))
    plain_seconds = time.perf_counter() - started
    yield Table(
        f"Finding the origin in {STEPS} steps",
        ("lox.find_nonfinite", "seconds", "runs of the program"),
        [
            ("first time, with compilation", f"{found[0]:.2f}", f"{found[0] / plain_seconds:.0f}"),
            ("again", f"{min(found[1:]):.2f}", f"{min(found[1:]) / plain_seconds:.0f}"),
        ],
    )

    yield Table(
        "A search in a loop that fails at its end, and the replay of a guarded one: memory of the process",
        ("iterations", "peak after running the loop, MiB", "after the search", "after guard and replay"),
        [(f"{length:,}", *(f"{peak / 1024:.0f}" for peak in peaks(length))) for length in (10_000, 1_000_000)],
        "Target: a million iterations take what ten thousand do. The carry has 1,000 numbers: to keep that of each\n"
        "iteration would take 4 GB.",
    )


LONG = """
import sys, tempfile, warnings
import jax, jax.numpy as jnp, lox
length = int(sys.argv[1])

def peak():  # Not that of getrusage, which a process has from its parent.
    with open("/proc/self/status") as file:
        print(next(line.split()[1] for line in file if line.startswith("VmHWM")))

@jax.jit
def f(x):
    return jax.lax.fori_loop(0, length, lambda i, x: jnp.where(i == length - 3, jnp.log(-x), x * 1.0), x)

x = jnp.ones(1000)
jax.block_until_ready(f(x))
peak()
assert lox.find_nonfinite(f)(x).iterations == (length - 3,)
peak()
with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
    warnings.simplefilter("ignore")
    lox.guard(f, bundle=folder + "/failed")(x)
    lox.flush()
    assert lox.replay(folder + "/failed", f).iterations == (length - 3,)
peak()
"""


def peaks(length: int) -> list[int]:
    """The peak memory of a process that runs a loop, searches it, and replays it, after each of these, in KiB."""
    done = subprocess.run([sys.executable, "-c", LONG, str(length)], check=True, capture_output=True, text=True)
    return list(map(int, done.stdout.split()))


def debugging(program: Function) -> Function:
    """The program as it runs with `jax_debug_nans`."""

    def run(*args: Any) -> Any:
        with jax.debug_nans(True):
            return program(*args)

    return run


def noticing(guarded: Function, weights: Any, inputs: Any) -> None:
    """Fail where a guard does not notice a NaN among the inputs."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        guarded(weights, inputs.at[-1].set(jnp.nan))
        lox.flush()
    assert [each.category for each in warned] == [lox.NonfiniteWarning], "the guard has not noticed a NaN"


def net(weights: Any, x: Any) -> Any:
    for matrix, bias in weights:
        x = jnp.tanh(x @ matrix + bias)
    return x


def loss(weights: Any, x: Any) -> Any:
    return jnp.mean((net(weights, x) - 1.0) ** 2)


def step(weights: Any, x: Any) -> Any:
    value, gradient = jax.value_and_grad(loss)(weights, x)
    return jax.tree.map(lambda w, g: w - 1e-2 * g, weights, gradient), value


def only_loss(weights: Any, x: Any) -> Any:
    """A step that returns only the loss, so that the guard looks at nothing else."""
    weights, value = step(weights, x)
    return (value + 0.0 * sum(matrix.sum() for matrix, _ in weights),)


def train(weights: Any, xs: Any) -> Any:
    return jax.lax.scan(step, weights, xs)


if __name__ == "__main__":
    main({"nonfinite": measure})
