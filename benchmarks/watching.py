"""`lox.watch`: statistics of each module of a transformer that has no log calls."""

from __future__ import annotations

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
MODULES = ("norm", "attention", "mlp", "block", "model")


def measure() -> Iterator[Table]:
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
    seconds = {}
    compiled = []
    for name, fun in (
        ("alone", train),
        ("watched", every),
        ("each tenth step", tenth),
        ("by hand", lox.spool(by_hand)),
    ):
        started = time.perf_counter()
        lowered = jax.jit(lambda *args, fun=fun: fun(*args)).lower(params, tokens)
        seconds[name] = time.perf_counter() - started
        compiled.append(lowered.compile())
    assert [" conditional(" in program.as_text() for program in compiled] == [False, False, True, False]
    plain, each, tenths, hand = [done(program, params, tokens) for program in compiled]
    alone, each, hand = alternate([plain, each, hand], rounds=5).T
    again, tenths = alternate([plain, tenths], rounds=20).T  # A small difference needs more of them.
    traced = {name: Figure(value / seconds["alone"]) for name, value in seconds.items()}
    yield Table(
        f"Statistics of each of {len(points)} modules in {STEPS} steps of training a transformer of {LAYERS} layers",
        ("program", "over the program alone", "tracing over alone"),
        [
            ("watched", Figure.of(each / alone, target=1.10), traced["watched"]),
            (
                "watched, interval=10",
                Figure.of(tenths / again, target=1.02),
                traced["each tenth step"],
            ),
            ("the same log calls by hand", Figure.of(hand / alone), traced["by hand"]),
        ],
        f"A step alone takes {np.median(alone) / STEPS * 1e3:.1f} ms of processor time.",
    )


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
