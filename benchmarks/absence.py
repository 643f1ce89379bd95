"""A function that logs while nobody listens, over the same function with its log calls deleted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks._present import logging as has_logs
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate


def measure() -> Iterator[Table]:
    yield Table(
        "jit(f) without a handler over f with its log calls deleted",
        ("program", "dispatch", "noise", "deleted", "jaxpr", "StableHLO", "optimized HLO"),
        [absent(name, make) for name, make in {"one operation": one_operation, "training": training}.items()],
        "Target: 1.00 within noise, which is the function with its logs deleted over another jit of it. The texts\n"
        "are compared as they are; that of the optimized HLO, in which source lines stand, without them.",
    )
    yield Table("An eager lox.log without a handler", ("call", "nanoseconds"), list(eager()), "Target: 1,000.")


def one_operation(log: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The cheapest call, of which dispatch is nearly all."""

    def f(x):
        log({"x": x})
        return x + 1

    return f, (jnp.float32(1),)


def training(log: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Logs in a loss under `grad`, under `vmap` in a `scan`, and in a branch of a `cond`."""

    def loss_of(weights, x):
        loss = jnp.sum(jnp.tanh(weights * x) ** 2)
        log({"loss": loss}, tags="metric")
        return loss

    def step(weights, x):
        grad = jax.grad(loss_of)(weights, x)
        log({"grad": grad})
        weights = jax.lax.cond(grad.sum() > 0, lambda: (log({"up": grad}), weights - grad)[1], lambda: weights)
        return weights, None

    def f(weights, xs):
        return jax.vmap(lambda weights: jax.lax.scan(step, weights, xs)[0])(weights)

    return f, (jnp.ones((2, 3)), jnp.ones((4, 3)))


def absent(name: str, make: Callable[..., Any]) -> tuple:
    logging, args = make(lox.log)
    deleted, again = (make(lambda *_, **__: None)[0] for _ in range(2))
    functions = [jax.jit(fun) for fun in (has_logs(logging, *args), deleted, again)]
    seconds = alternate([lambda fun=fun: fun(*args) for fun in functions], rounds=300)
    texts = [
        (
            str(jax.make_jaxpr(function)(*args)),
            function.lower(*args).as_text(),
            without_source_lines(function.lower(*args).compile().as_text()),
        )
        for function in functions[:2]
    ]
    same = ["equal" if a == b else "DIFFERENT" for a, b in zip(*texts, strict=True)]
    return (
        name,
        Figure.of(seconds[:, 0] / seconds[:, 1], digits=3),
        Figure.of(seconds[:, 2] / seconds[:, 1], digits=3),
        Figure.of(seconds[:, 1] * 1e6, digits=1),
        *same,
    )


def without_source_lines(hlo: str) -> str:
    """The text of an executable without metadata and without the tables of files that it refers to."""
    hlo = re.sub(r", metadata=\{[^}]*\}", "", hlo)
    return re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d.*\n)*", "\n", hlo)


def eager() -> Iterator[tuple]:
    x = jnp.float32(1)

    def nothing(data, *, tags=(), prefix="", **steps):
        return data

    calls = {
        'lox.log({"x": x})': lambda: lox.log({"x": x}),
        'lox.log({"x": x}, tags="t", step=3)': lambda: lox.log({"x": x}, tags="t", step=3),
        "a Python function that only returns its argument": lambda: nothing({"x": x}),
        "for comparison, an eager x + 1": lambda: x + 1,
    }
    seconds = alternate(list(calls.values()), rounds=100)
    for name, column in zip(calls, seconds.T, strict=True):
        target = 1_000 if name.startswith("lox.log") else None
        yield name, Figure.of(column * 1e9, target, digits=0)


if __name__ == "__main__":
    main({"absence": measure})
