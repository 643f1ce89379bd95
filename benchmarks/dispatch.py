"""Calling a spooled function again over calling the function itself."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

import lox
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate


def measure() -> Iterator[Table]:
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
        ("program", "spool(f)(x)", "f(x), us"),
        [unjitted()],
        "Target: 1.15.",
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
    functions = [lambda: once(x), lambda: lox.spool(f)(x), lambda: inside(x), lambda: f(x), lambda: by_hand(x)]
    seconds = alternate(functions, rounds=200)
    for place, name in ((-2, "jit(f)"), (-1, "by hand")):
        base = seconds[:, place]
        targets = (2, None, None) if (name == "jit(f)") == (keys == 1) else (None, None, None)
        ratios = [Figure.of(seconds[:, each] / base, target) for each, target in enumerate(targets)]
        yield f"{keys} key{'s' if keys > 1 else ''}", name, *ratios, Figure.of(base * 1e6, digits=1)


def unjitted() -> tuple:
    def f(x):
        for _ in range(100):
            x = jnp.sin(x)
        lox.log({"x": x})
        return x

    x = jnp.float32(1)
    spooled = lox.spool(f)
    seconds = alternate([lambda: spooled(x), lambda: f(x)], rounds=30)
    return (
        "100 operations, 1 key",
        Figure.of(seconds[:, 0] / seconds[:, 1], target=1.15),
        Figure.of(seconds[:, 1] * 1e6, digits=0),
    )


if __name__ == "__main__":
    main({"dispatch": measure})
