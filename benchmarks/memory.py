"""The memory of a loop whose logs are reduced or thinned out, by the number of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._report import Figure, Table, main, ratio
from benchmarks._timing import alternate, done

MANY = 1_000_000
FEW = 10
INTERVAL = 1000

Function = Callable[..., Any]


def measure() -> Iterator[Table]:
    loops = {"scan": scan, "while_loop": while_loop, "scan of scan": nested}
    yield Table(
        f"Bytes of temporaries and outputs: {MANY:,} iterations over {FEW}",
        ("loop", "ratio", f"{MANY:,}", f"{FEW}", "no logs", "step, over no logs", "ns per step"),
        [bounded(f"{name}, reduce={how!r}", loop, how) for name, loop in loops.items() for how in ("mean", "max")],
        "Target: 1. The step is the run time of an iteration over that of one in the loop without logs.",
    )
    yield Table(
        f"Bytes of temporaries and outputs: a scan of {MANY:,}, of which every {INTERVAL}th event is kept",
        ("loop", "over by hand", "over events kept", "bytes", "by hand", "all events", "step, over no logs"),
        [thinned()],
        "Target: 1.02 over what writes the same events to a buffer by hand.",
    )


def advance(x):
    return jnp.sin(x) + 1


def scan(length: int) -> Function:
    def step(x, _):
        x = advance(x)
        lox.log({"x": x})
        return x, None

    return lambda x: jax.lax.scan(step, x, length=length)[0]


def while_loop(length: int) -> Function:
    def step(carry):
        i, x = carry
        x = advance(x)
        lox.log({"x": x})
        return i + 1, x

    return lambda x: jax.lax.while_loop(lambda carry: carry[0] < length, step, (0, x))[1]


def nested(length: int) -> Function:
    inner = scan(2)
    return lambda x: jax.lax.scan(lambda x, _: (inner(x), None), x, length=length // 2)[0]


def bounded(name: str, loop: Callable[[int], Function], reduction: str) -> tuple:
    many, few = (space(lox.spool(loop(length), reduce=reduction)) for length in (MANY, FEW))
    step, nanoseconds = per_step(lox.spool(loop(MANY), reduce=reduction), loop(MANY))
    return name, ratio(many, few, target=1.0), f"{many:,}", f"{few:,}", f"{space(loop(MANY)):,}", step, nanoseconds


def thinned() -> tuple:
    loop = scan(MANY)
    spooled = lox.spool(loop, interval=INTERVAL)

    def by_hand(x):
        def step(carry, _):
            i, x, buffer = carry
            x = advance(x)
            slot = jnp.where(i % INTERVAL == 0, i // INTERVAL, MANY)
            return (i + 1, x, buffer.at[slot].set(x, mode="drop")), None

        buffer = jnp.zeros(-(-MANY // INTERVAL))
        (_, x, buffer), _ = jax.lax.scan(step, (0, x, buffer), length=MANY)
        return x, buffer

    x = jnp.float32(1)
    np.testing.assert_allclose(jax.jit(spooled)(x)[1]["x"], jax.jit(by_hand)(x)[1], rtol=1e-5)
    mine, theirs = space(spooled), space(by_hand)
    kept = 4 * -(-MANY // INTERVAL)
    step, _ = per_step(spooled, loop)
    every = f"{space(lox.spool(loop)):,}"
    return "scan", ratio(mine, theirs, target=1.02), ratio(mine, kept), f"{mine:,}", f"{theirs:,}", every, step


def space(fun: Function) -> int:
    analysis = jax.jit(fun).lower(jnp.float32(1)).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def per_step(spooled: Function, plain: Function) -> tuple[Figure, Figure]:
    """The run time of a spooled loop over that of the plain one, and the latter in nanoseconds per step."""
    x = jnp.float32(1)
    calls = [done(jax.jit(lambda x, fun=fun: jax.tree.leaves(fun(x))), x) for fun in (spooled, plain)]
    seconds = alternate(calls, rounds=15)
    return Figure.of(seconds[:, 0] / seconds[:, 1]), Figure.of(seconds[:, 1] / MANY * 1e9, digits=1)


if __name__ == "__main__":
    main({"memory": measure})
