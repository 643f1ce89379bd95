"""`lox.watch`: statistics of each module of a transformer that has no log calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._present import returning
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate, done

Function = Callable[..., Any]
LAYERS, WIDTH, HEADS, LENGTH, BATCH, STEPS = 24, 64, 4, 64, 4, 10
PROGRAMS = ("alone", "watched", "watched, interval=10", "the same log calls by hand")
PROCESSES, ROUNDS = 4, 10
MODULES = ("norm", "attention", "mlp", "block", "model")


def measure() -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        command = [sys.executable, "-c", "from benchmarks.watching import tell; tell()"]
        told = [
            json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
            for _ in range(PROCESSES)
        ]
    seconds = {name: np.array([min(one["seconds"][name]) for one in told]) for name in PROGRAMS}
    tracing = {name: np.array([one["tracing"][name] for one in told]) for name in PROGRAMS}
    targets = {"watched": 1.10, "watched, interval=10": 1.02}
    yield Table(
        f"Statistics of each of {told[0]['points']} modules in {STEPS} steps of training a transformer of {LAYERS} "
        "layers",
        ("program", "over the program alone", "tracing over alone"),
        [
            (
                name,
                Figure.of(seconds[name] / seconds["alone"], target=targets.get(name)),
                Figure(float(np.median(tracing[name] / tracing["alone"]))),
            )
            for name in PROGRAMS
            if name != "alone"
        ],
        f"The least of {ROUNDS} rounds in each of {PROCESSES} processes, since what else the machine does only adds to "
        "it, and since two processes differ by some percent. A step alone takes "
        f"{np.median(seconds['alone']) / STEPS * 1e3:.1f} ms of processor time.",
    )


def tell() -> None:
    """Prints the times of each program in this process, as JSON."""
    params, tokens = initial(jax.random.key(0)), jax.random.normal(jax.random.key(1), (STEPS, BATCH, LENGTH, WIDTH))
    forward = lambda point: point.name in MODULES and not point.backward  # noqa: E731
    watched = lox.watch(train, at=forward)
    every, tenth = lox.spool(watched), lox.spool(watched, interval=STEPS)
    points = [point for point in lox.points(train)(params, tokens) if forward(point)]
    assert len(points) == 4 * LAYERS + LAYERS + 1 + 1, len(points)
    for spooled, events in ((every, STEPS), (tenth, 1)):
        _, logs = jax.eval_shape(returning(spooled, params, tokens), params, tokens)
        assert len(logs) == 5 * len(points) and {len(value.shape) and value.shape[0] for value in logs.values()} == {
            events
        }
    tracing, compiled = {}, []
    for name, fun in zip(PROGRAMS, (train, every, tenth, lox.spool(by_hand)), strict=True):
        started = time.perf_counter()
        lowered = jax.jit(lambda *args, fun=fun: fun(*args)).lower(params, tokens)
        tracing[name] = time.perf_counter() - started
        compiled.append(lowered.compile())
    assert [" conditional(" in program.as_text() for program in compiled] == [False, False, True, False]
    seconds = alternate([done(program, params, tokens) for program in compiled], ROUNDS)
    found = {"points": len(points), "tracing": tracing, "seconds": dict(zip(PROGRAMS, seconds.T.tolist(), strict=True))}
    print(json.dumps(found))


def initial(key: Any) -> list[dict[str, Any]]:
    """The parameters of all layers."""
    shapes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)}
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    keys = jax.random.split(key, (LAYERS, len(shapes)))
    return [
        {name: jax.random.normal(key, shape) / 8 for key, (name, shape) in zip(row, shapes.items(), strict=True)}
        for row in keys
    ]


def nothing(name: str, x: Any) -> Any:
    del name
    return x


def statistics(name: str, x: Any) -> Any:
    """Logs what `lox.watch` does by default."""
    lox.log({name: {"mean": x.mean(), "std": x.std(), "min": x.min(), "max": x.max()}})
    lox.log({name: {"nonfinite": (~jnp.isfinite(x)).sum()}})
    return x


def model(params: Any, x: Any, log: Callable[[str, Any], Any] = nothing) -> Any:
    def norm(x: Any) -> Any:
        with jax.named_scope("norm"):
            return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-3)

    with jax.named_scope("model"):
        for number, layer in enumerate(params):
            with jax.named_scope("block"):
                normed = log(f"{number}/norm", norm(x))
                with jax.named_scope("attention"):
                    split = lambda w, x=normed: jnp.reshape(x @ w, (*x.shape[:2], HEADS, -1))  # noqa: E731
                    q, k, v = map(split, (layer["q"], layer["k"], layer["v"]))
                    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4)
                    attended = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ layer["o"]
                x = x + log(f"{number}/attention", attended)
                normed = log(f"{number}/norm2", norm(x))
                with jax.named_scope("mlp"):
                    hidden = jax.nn.gelu(normed @ layer["up"]) @ layer["down"]
                x = log(f"{number}/block", x + log(f"{number}/mlp", hidden))
        return log("model", norm(x))


def train(params: Any, batches: Any, log: Callable[[str, Any], Any] = nothing) -> Any:
    def loss(params: Any, x: Any) -> Any:
        return jnp.mean((model(params, x, log) - jnp.roll(x, 1, 1)) ** 2)

    def step(params: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    return jax.lax.scan(step, params, batches)


def by_hand(params: Any, batches: Any) -> Any:
    return train(params, batches, statistics)


if __name__ == "__main__":
    main({"watching": measure})
