"""`lox.tap` over `jax.debug.callback(ordered=True)` that hands the same values to the same callback."""

from __future__ import annotations

import collections
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._present import calling, returning, silent
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate

THEIR_EVENTS = 2_000
EVENTS = 20_000
LANES = 64
STEPS = 10_000
BUFFERS = (1, 64, 512)


def measure() -> Iterator[Table]:
    xs = jnp.ones(EVENTS)
    lanes = jnp.ones((EVENTS, LANES))
    by_jax = jax.jit(scan(lambda c: jax.debug.callback(lambda c: take({"c": c}), c, ordered=True)))
    tapped = scan(lambda c: lox.log({"c": c}))
    shared = jax.jit(tapped)
    cases = {
        "buffer=1": (jax.jit(lox.tap(tapped, take)), xs, 1, 15),
        "buffer=1, tap of jit": (lox.tap(shared, take), xs, 1, None),
        "buffer=1, ordered=False": (jax.jit(lox.tap(tapped, take, ordered=False)), xs, 1, None),
        "buffer=16": (jax.jit(lox.tap(tapped, take, buffer=16)), xs, 1, None),
        "buffer=256": (jax.jit(lox.tap(tapped, take, buffer=256)), xs, 1, 100),
        "interval=100": (jax.jit(lox.tap(tapped, take, interval=100)), xs, 1, None),
        f"vmap of {LANES}, buffer=1": (jax.jit(jax.vmap(lox.tap(tapped, take), in_axes=1)), lanes, LANES, 500),
        f"vmap of {LANES}, buffer=256": (
            jax.jit(jax.vmap(lox.tap(tapped, take, buffer=256), in_axes=1)),
            lanes,
            LANES,
            None,
        ),
    }
    calls = [
        arrived(calling(by_jax, jnp.ones(THEIR_EVENTS)), jnp.ones(THEIR_EVENTS)),
        *(arrived(calling(function, args), args) for function, args, *_ in cases.values()),
    ]
    theirs, *ours = alternate(calls, rounds=20, sample=1e-3).T
    theirs = theirs / THEIR_EVENTS
    rows = []
    for (name, (_, _, each, target)), seconds in zip(cases.items(), ours, strict=True):
        costs = seconds / (EVENTS * each)
        times = Figure.of(theirs / costs, target, digits=1, at_least=True)
        rows.append((name, times, target or "", f"{np.median(costs) * 1e6:.3f}"))
    yield Table(
        "jax.debug.callback(ordered=True) over lox.tap: an event of one batch element in a scan",
        ("lox.tap", "times cheaper", "target", "that, us"),
        rows,
        f"An event of jax.debug.callback costs {np.median(theirs) * 1e6:.1f} us. It cannot be ordered under vmap, and\n"
        "is compared there as it is outside. Processor time of all threads, until all has arrived.",
    )
    yield Table(
        "lox.tap over lox.spool: a scan of 10,000 steps",
        ("each step", *(f"buffer={size}" for size in BUFFERS), "by lox.spool, us a step"),
        [over_spool(name, width) for name, width in (("adds a number", 0), ("a layer of 512", 512))],
        "Target: 1.5 with buffer=512, of steps that take 10 us or more.",
    )
    nothing = jax.jit(lox.tap(small, take, argnames="no such key"))
    alike = [silent(function, 1.0) for function in (jax.jit(small), nothing, jax.jit(small))]
    plain, selected, again = alternate([lambda f=f: f(1.0) for f in alike], 200).T
    yield Table(
        "jit(tap(f)) of which no log is selected, over jit(f)",
        ("dispatch", "noise"),
        [(Figure.of(selected / plain, digits=3), Figure.of(again / plain, digits=3))],
        "Target: 1.00 within noise.",
    )
    yield Table(
        "Memory of a long run",
        ("lox.tap", "events", "arrived", "growth, MiB"),
        [_long_run(256, 10_000_000), _long_run(1, 1_000_000)],
        "Of all that the process holds, from after a tenth as many events.",
    )


def over_spool(name: str, width: int) -> tuple[Any, ...]:
    weights = jnp.eye(width)

    def step(x: Any, _: Any) -> tuple[Any, None]:
        x = jnp.tanh(x @ weights) if width else x + 1
        lox.log({"loss": x.sum()})
        return x, None

    def f(x: Any) -> Any:
        return jax.lax.scan(step, x, length=STEPS)[0]

    functions = [lox.spool(f), *(lox.tap(f, take, buffer=size) for size in BUFFERS)]
    x = jnp.ones(width) if width else jnp.float32(0)
    returning(functions[0], x, events=STEPS)
    jitted = [jax.jit(functions[0]), *(calling(jax.jit(function), x) for function in functions[1:])]
    spooled, *tapped = alternate([arrived(function, x) for function in jitted], rounds=10).T
    figures = [
        Figure.of(each / spooled, 1.5 if width and size == 512 else None)
        for size, each in zip(BUFFERS, tapped, strict=True)
    ]
    return name, *figures, Figure.of(1e6 * spooled / STEPS, digits=3)


def _long_run(buffer: int, events: int) -> tuple[Any, ...]:
    seen = 0

    def count(logs: Any) -> None:
        nonlocal seen
        seen += len(logs["x"])

    def run(n: Any) -> Any:
        return jax.lax.fori_loop(0, n, lambda i, x: lox.log({"x": jnp.sin(x)})["x"] + 1, 0.0)

    tapped = lox.tap(jax.jit(run), count, buffer=buffer)
    arrived(tapped, events // 10)()
    before = _resident()
    arrived(tapped, events)()
    if seen != events + events // 10:
        raise AssertionError(f"{seen:,} of {events + events // 10:,} events arrived.")
    grown = Figure((_resident() - before) / 2**20, target=1)
    return f"buffer={buffer}", f"{events:,}", f"{seen - events // 10:,}", grown


def _resident() -> int:
    """The bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


take = collections.deque[Any](maxlen=1).append


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
