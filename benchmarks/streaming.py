"""`lox.tap` over `jax.debug.callback(ordered=True)` that hands the same values to the same callback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate

EVENTS = 2_000
LANES = 64


def measure() -> Iterator[Table]:
    xs = jnp.ones(EVENTS)
    lanes = jnp.ones((LANES, EVENTS))
    by_jax = jax.jit(scan(lambda c: jax.debug.callback(lambda c: take({"c": c}), c, ordered=True)))
    tapped = scan(lambda c: lox.log({"c": c}))
    cases = {
        "buffer=1": (jax.jit(lox.tap(tapped, take)), xs, 1, 15),
        "buffer=1, ordered=False": (jax.jit(lox.tap(tapped, take, ordered=False)), xs, 1, None),
        "buffer=16": (jax.jit(lox.tap(tapped, take, buffer=16)), xs, 1, None),
        "buffer=256": (jax.jit(lox.tap(tapped, take, buffer=256)), xs, 1, 100),
        "interval=100": (jax.jit(lox.tap(tapped, take, interval=100)), xs, 1, None),
        f"vmap of {LANES}, buffer=1": (jax.jit(jax.vmap(lox.tap(tapped, take))), lanes, LANES, 500),
        f"vmap of {LANES}, buffer=256": (jax.jit(jax.vmap(lox.tap(tapped, take, buffer=256))), lanes, LANES, None),
    }
    calls = [arrived(by_jax, xs), *(arrived(function, args) for function, args, *_ in cases.values())]
    theirs, *ours = alternate(calls, rounds=20, sample=1e-3).T / EVENTS
    rows = []
    for (name, (_, _, each, target)), seconds in zip(cases.items(), ours, strict=True):
        times = Figure.of(theirs * each / seconds, digits=1)
        figure = f"{times}{'' if target is None else ' (target: ' + str(target) + ')'}"
        rows.append((name, figure, f"{np.median(seconds) / each * 1e6:.3f}"))
    yield Table(
        "jax.debug.callback(ordered=True) over lox.tap: an event of one lane in a scan",
        ("lox.tap", "times cheaper", "that, us"),
        rows,
        f"An event of jax.debug.callback costs {np.median(theirs) * 1e6:.1f} us. It cannot be ordered under vmap, and\n"
        "is compared there as it is outside. Processor time of all threads, until all has arrived.",
    )
    nothing = jax.jit(lox.tap(small, take, argnames="no such key"))
    plain, selected, again = alternate([lambda f=f: f(1.0) for f in (jax.jit(small), nothing, jax.jit(small))], 200).T
    yield Table(
        "jit(tap(f)) of which no log is selected, over jit(f)",
        ("dispatch", "noise"),
        [(Figure.of(selected / plain, digits=3), Figure.of(again / plain, digits=3))],
        "Target: 1.00 within noise.",
    )


def take(logs: Any) -> None:
    take.count += 1  # type: ignore[attr-defined]


take.count = 0  # type: ignore[attr-defined]


def small(x: Any) -> Any:
    return lox.log({"x": x})["x"] + 1


def scan(emit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def step(carry: Any, x: Any) -> tuple[Any, None]:
        carry = jnp.sin(carry) + x
        emit(carry)
        return carry, None

    return lambda xs: jax.lax.scan(step, 0.0, xs)[0]


def arrived(function: Callable[..., Any], *args: Any) -> Callable[[], None]:
    def call() -> None:
        jax.block_until_ready(function(*args))
        jax.effects_barrier()

    return call


if __name__ == "__main__":
    main({"streaming": measure})
