"""Calling a spooled function again over calling the function itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks import programs, training
from benchmarks._present import returning
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate, done

Function = Callable[..., Any]


def measure() -> Iterator[Table]:
    trained = [training.digits(), training.transformer()]
    layers, sites = programs.straight_line(), programs.hundred_sites()
    yield Table(
        "Eager calls of a spooled function, over the function without a handler",
        ("program", "over", "g = spool(jit(f)); g(x)", "spool(jit(f))(x)", "jit(spool(f))(x)", "that, us"),
        [row for keys in (1, 10, 100) for row in again(keys)],
        "Target: 2 over jit(f). In the fourth column lox.spool is called anew each time. By hand is the jitted\n"
        "function that was written to return the same arrays in dicts: where there are many, making them takes\n"
        "more than the rest of the call, and the target is one over that function.",
    )
    yield Table(
        "Eager calls of a spooled function that is not jitted, over the function without a handler",
        ("program", "spool(f)(x)", "by hand", "spool(f)(x) over by hand", "noise", "more per log, us", "f(x), us"),
        [
            *(unjitted(f"{case.name}, a step", case.step.logging, None, case.step.args, 2, 1.15) for case in trained),
            *(unjitted(f"{case.name}, a scan of steps", case.logging, None, case.args, 2) for case in trained),
            unjitted("100 operations on scalars, which log once", *a_hundred(), (jnp.float32(1),), 1),
            unjitted(
                "1,000 calls of a jitted step, which log 3 keys and a step", *a_thousand(), (jnp.float32(1),), 1000
            ),
            unjitted("8 layers, which log 2 keys and a step each", layers.logging, layers.by_hand, layers.args, 8),
            unjitted("100 operations, each of which logs", sites.logging, sites.by_hand, sites.args, 100),
        ],
        "Targets: 1.15 for training steps, 1.3 over the function by hand, which keeps the values in lists and stacks\n"
        "them. Until all is computed. lox keeps references and stacks those that are alike in one call; what a call\n"
        "is about to donate is copied. Scans are compiled once.",
    )


def again(keys: int) -> Iterator[tuple]:
    @jax.jit
    def f(x):
        for key in range(keys):
            lox.log({f"key{key}": x + key})
        return x + 1

    @jax.jit
    def by_hand(x):
        return x + 1, {f"key{key}": (x + key)[None] for key in range(keys)}

    x = jnp.float32(1)
    once, inside = lox.spool(f), jax.jit(lox.spool(f))
    for function in (once, inside, by_hand):
        returning(function, x, events=keys)
    functions = [lambda: once(x), lambda: lox.spool(f)(x), lambda: inside(x), lambda: f(x), lambda: by_hand(x)]
    seconds = alternate(functions, rounds=200)
    for place, name in ((-2, "jit(f)"), (-1, "by hand")):
        base = seconds[:, place]
        targets = (2, None, None) if (name == "jit(f)") == (keys == 1) else (None, None, None)
        ratios = [Figure.of(seconds[:, each] / base, target) for each, target in enumerate(targets)]
        yield f"{keys} key{'s' if keys > 1 else ''}", name, *ratios, Figure.of(base * 1e6, digits=1)


def unjitted(
    name: str, f: Function, by_hand: Function | None, args: Any, logs: int, target: float | None = None
) -> tuple[Any, ...]:
    def plain(*args):
        return (f(*args),)

    returning(lox.spool(f), *args)
    calls = [done(function, *args) for function in (lox.spool(f), plain, plain, by_hand or plain)]
    spooled, base, again, returned = alternate(calls, rounds=50).T
    mine = [Figure.of(returned / base), Figure.of(spooled / returned, 1.3)] if by_hand else ["", ""]
    over = [Figure.of(spooled / base, target), *mine, Figure.of(again / base)]
    return name, *over, Figure.of(1e6 * (spooled - base) / logs), Figure.of(1e6 * base, digits=0)


def a_hundred() -> tuple[Function, Function]:
    def by_hand(x):
        for _ in range(100):
            x = jnp.sin(x)
        return x, {"x": x[None]}

    def f(x):
        for _ in range(100):
            x = jnp.sin(x)
        lox.log({"x": x})
        return x

    return f, by_hand


def a_thousand() -> tuple[Function, Function]:
    @jax.jit
    def step(x):
        return 0.5 * x + 1, {"loss": x * x, "norm": jnp.abs(x), "rate": x + 1}

    def by_hand(x):
        found = []
        for _ in range(1000):
            x, metrics = step(x)
            found.append(metrics)
        return x, (jax.tree.map(lambda *values: jnp.stack(values), *found), jnp.arange(1000))

    def f(x):
        for place in range(1000):
            x, metrics = step(x)
            lox.log(metrics, step=place)
        return x

    return f, by_hand


if __name__ == "__main__":
    main({"dispatch": measure})
