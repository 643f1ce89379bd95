"""The memory of a loop whose logs are reduced or thinned out, by the number of its iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._present import returning
from benchmarks._report import Figure, Table, main, ratio
from benchmarks._timing import alternate, done

MANY = 1_000_000
FEW = 10
INTERVAL = 1000

Function = Callable[..., Any]


def measure() -> Iterator[Table]:
    loops = {
        "scan": (scan, scan_by_hand),
        "while_loop": (while_loop, while_by_hand),
        "scan of scan": (nested, nested_by_hand),
    }
    yield Table(
        f"Loops of {MANY:,} iterations whose logs are reduced",
        ("loop", f"bytes, over {FEW}", "bytes", "run time, over by hand", "over no logs", "by hand, ns a step"),
        [
            bounded(f"{name}, reduce={how!r}", loop, by_hand, how)
            for name, (loop, by_hand) in loops.items()
            for how in ("mean", "max")
        ],
        f"Targets: as many bytes of temporaries and outputs as with {FEW} iterations, and 1.1 times the run time of\n"
        "the loop that carries the same accumulator by hand.",
    )
    yield Table(
        f"A scan of {MANY:,}, of which every {INTERVAL}th event is kept",
        ("loop", "bytes, over a short one", "bytes", "by hand", "all events", "run time, over by hand", "over no logs"),
        [thinned()],
        "Targets: as many bytes as a scan of a hundredth of the length of which as many events are kept, and 1.1\n"
        "times the run time of what writes the same events to a buffer by hand.",
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


def accumulate(how: str, sofar, x):
    return sofar + x if how == "mean" else jnp.maximum(sofar, x)


def start(how: str):
    return 0.0 if how == "mean" else -jnp.inf


def result(how: str, sofar, length: int):
    return (sofar / length if how == "mean" else sofar)[None]


def folding(how: str) -> Callable[..., Any]:
    """The step of a scan that carries an accumulator."""

    def step(carry, _):
        x, sofar = carry
        x = advance(x)
        return (x, accumulate(how, sofar, x)), None

    return step


def scan_by_hand(length: int, how: str) -> Function:
    def f(x):
        (x, sofar), _ = jax.lax.scan(folding(how), (x, start(how)), length=length)
        return x, result(how, sofar, length)

    return f


def while_by_hand(length: int, how: str) -> Function:
    def step(carry):
        i, x, sofar = carry
        x = advance(x)
        return i + 1, x, accumulate(how, sofar, x)

    def f(x):
        _, x, sofar = jax.lax.while_loop(lambda carry: carry[0] < length, step, (0, x, start(how)))
        return x, result(how, sofar, length)

    return f


def nested_by_hand(length: int, how: str) -> Function:
    def f(x):
        inner = lambda carry, _: (jax.lax.scan(folding(how), carry, length=2)[0], None)  # noqa: E731
        (x, sofar), _ = jax.lax.scan(inner, (x, start(how)), length=length // 2)
        return x, result(how, sofar, length)

    return f


def bounded(name: str, loop: Callable[[int], Function], by_hand: Callable[[int, str], Function], how: str) -> tuple:
    many, few = (space(lox.spool(loop(length), reduce=how)) for length in (MANY, FEW))
    x = jnp.float32(1)
    some = jax.jit(lox.spool(loop(1000), reduce=how))(x)[1]["x"]
    np.testing.assert_allclose(some, jax.jit(by_hand(1000, how))(x)[1], rtol=1e-5)
    over_hand, over_none, nanoseconds = per_step(lox.spool(loop(MANY), reduce=how), by_hand(MANY, how), loop(MANY))
    return name, ratio(many, few, target=1.0), f"{many:,}", over_hand, over_none, nanoseconds


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
    mine, short = space(spooled), space(lox.spool(scan(MANY // 100), interval=INTERVAL // 100))
    over_hand, over_none, _ = per_step(spooled, by_hand, loop)
    sizes = [f"{size:,}" for size in (mine, space(by_hand), space(lox.spool(loop)))]
    return "scan", ratio(mine, short, target=1.0), *sizes, over_hand, over_none


def space(fun: Function) -> int:
    analysis = jax.jit(fun).lower(jnp.float32(1)).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


def per_step(spooled: Function, by_hand: Function, plain: Function) -> tuple[Figure, Figure, Figure]:
    """The run time of a spooled loop over that by hand and over one that logs nothing; that by hand in ns a step."""
    x = jnp.float32(1)
    for function in (spooled, by_hand):
        returning(function, x)
    calls = [done(jax.jit(lambda x, fun=fun: jax.tree.leaves(fun(x))), x) for fun in (spooled, by_hand, plain)]
    mine, theirs, none = alternate(calls, rounds=15).T
    return Figure.of(mine / theirs, target=1.1), Figure.of(mine / none), Figure.of(theirs / MANY * 1e9, digits=1)


if __name__ == "__main__":
    main({"memory": measure})
