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

LONGEST = 10_000_000
MANY = 1_000_000
FEW = 10
STEPS, SIZE = 50, 65_536
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
        (
            "loop",
            f"bytes of {LONGEST:,} iterations, over {FEW}",
            "bytes",
            "run time, over by hand",
            "over no logs",
            "by hand, ns a step",
        ),
        [
            bounded(f"{name}, reduce={label}", loop, by_hand, how)
            for name, (loop, by_hand) in loops.items()
            for label, how in {"'mean'": "mean", "'max'": "max", "'std'": "std", **DISTRIBUTIONS}.items()
        ],
        f"Targets: as many bytes of temporaries and outputs as with {FEW} iterations, and 1.1 times the run time of\n"
        "the loop that carries the same accumulator by hand: for 'std' that of Welford, without compensation of what\n"
        "rounding takes; for quantiles and histogram the counts of the bins, to which each iteration adds one.",
    )
    yield Table(
        f"A scan of {STEPS} steps that each log an array of {SIZE:,}",
        ("reduce", "run time of the logs, us a step", "over mean, std, min and max"),
        list(pooled()),
        "Target: quantiles of all elements at most 3.5 times what the mean, std, min and max of the array take, which\n"
        'are computed and logged in each step and reduced by "mean"; of a part of the elements, less than these.',
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


QUANTILES = lox.reductions.quantiles([0.1, 0.5, 0.9])
EDGES = tuple(np.linspace(0, 2, 21).tolist())
HISTOGRAM = lox.reductions.histogram(EDGES)
DISTRIBUTIONS = {"quantiles([0.1, 0.5, 0.9])": QUANTILES, "histogram(20 bins)": HISTOGRAM}


def accumulate(how: Any, sofar, x):
    if how == "std":
        number, mean, squares = sofar
        distance = x - mean
        mean = mean + distance / (number + 1)
        return number + 1, mean, squares + distance * (x - mean)
    if how is QUANTILES:  # The sign, the exponent and six bits of the significand are the bin.
        return sofar.at[jax.lax.bitcast_convert_type(x, jnp.uint32) >> 17].add(1)
    if how is HISTOGRAM:
        return sofar.at[jnp.sum(x >= jnp.array(EDGES))].add(1)
    return sofar + x if how == "mean" else jnp.maximum(sofar, x)


def start(how: Any):
    if how == "std":
        return 0.0, 0.0, 0.0
    if how in (QUANTILES, HISTOGRAM):
        return jnp.zeros(2**15 if how is QUANTILES else len(EDGES) + 1, jnp.uint32)
    return 0.0 if how == "mean" else -jnp.inf


def result(how: Any, sofar, length: int):
    if how == "std":
        return jnp.sqrt(sofar[2] / length)[None]
    if how is QUANTILES:  # All numbers are positive.
        ranks = jnp.floor(jnp.array(QUANTILES.qs) * (length - 1))
        places = jnp.searchsorted(jnp.cumsum(sofar), ranks.astype(jnp.uint32), side="right")
        return jax.lax.bitcast_convert_type((places.astype(jnp.uint32) << 17) + (1 << 16), jnp.float32)[None]
    if how is HISTOGRAM:
        return sofar[None]
    return (sofar / length if how == "mean" else sofar)[None]


def folding(how: Any) -> Callable[..., Any]:
    """The step of a scan that carries an accumulator."""

    def step(carry, _):
        x, sofar = carry
        x = advance(x)
        return (x, accumulate(how, sofar, x)), None

    return step


def scan_by_hand(length: int, how: Any) -> Function:
    def f(x):
        (x, sofar), _ = jax.lax.scan(folding(how), (x, start(how)), length=length)
        return x, result(how, sofar, length)

    return f


def while_by_hand(length: int, how: Any) -> Function:
    def step(carry):
        i, x, sofar = carry
        x = advance(x)
        return i + 1, x, accumulate(how, sofar, x)

    def f(x):
        _, x, sofar = jax.lax.while_loop(lambda carry: carry[0] < length, step, (0, x, start(how)))
        return x, result(how, sofar, length)

    return f


def nested_by_hand(length: int, how: Any) -> Function:
    def f(x):
        inner = lambda carry, _: (jax.lax.scan(folding(how), carry, length=2)[0], None)  # noqa: E731
        (x, sofar), _ = jax.lax.scan(inner, (x, start(how)), length=length // 2)
        return x, result(how, sofar, length)

    return f


def bounded(name: str, loop: Callable[[int], Function], by_hand: Callable[[int, Any], Function], how: Any) -> tuple:
    many, few = (space(lox.spool(loop(length), reduce=how)) for length in (LONGEST, FEW))
    x = jnp.float32(1)
    some = jax.jit(lox.spool(loop(1000), reduce=how))(x)[1]["x"]
    np.testing.assert_allclose(some, jax.jit(by_hand(1000, how))(x)[1], rtol=1e-5)
    over_hand, over_none, nanoseconds = per_step(lox.spool(loop(MANY), reduce=how), by_hand(MANY, how), loop(MANY))
    return name, ratio(many, few, target=1.0), f"{many:,}", over_hand, over_none, nanoseconds


def pooled() -> Iterator[tuple]:
    """The time that logging a large array adds to each step of a scan."""

    def steps(note: Function) -> Function:
        def step(x, _):
            x = x * 0.99 + 0.01
            note(x)
            return x, None

        return lambda x: jax.lax.scan(step, x, length=STEPS)[0]

    def moments(x):
        lox.log({"mean": x.mean(), "std": x.std(), "min": x.min(), "max": x.max()})

    def whole(x):
        lox.log({"x": x})

    qs = (0.1, 0.5, 0.9)
    functions = {
        "mean, std, min and max of the array, 'mean'": lox.spool(steps(moments), reduce="mean"),
        "quantiles, pool=True": lox.spool(steps(whole), reduce=lox.reductions.quantiles(qs, pool=True)),
        "quantiles, pool=4096": lox.spool(steps(whole), reduce=lox.reductions.quantiles(qs, pool=4096)),
    }
    x = jnp.asarray(np.random.default_rng(0).normal(size=SIZE).astype(np.float32))
    for function in functions.values():
        returning(function, x)
    everything = [steps(lambda _: None), *functions.values()]
    calls = [done(jax.jit(lambda x, fun=fun: jax.tree.leaves(fun(x))), x) for fun in everything]
    seconds = alternate(calls, rounds=15)
    logs = (seconds[:, 1:] - seconds[:, :1]) / STEPS
    targets = (None, 3.5, 1.0)
    for place, (name, target) in enumerate(zip(functions, targets, strict=True)):
        over = "" if target is None else Figure.of(logs[:, place] / logs[:, 0], target=target)
        yield name, Figure.of(logs[:, place] * 1e6, digits=0), over


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
