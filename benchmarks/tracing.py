"""How the time that spool adds to tracing grows with the number of log calls and with the depth of nesting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import lox
from benchmarks._present import logging, returning
from benchmarks._report import Curve, Figure, Table, main, slope
from benchmarks._timing import alternate_cold, stopwatch

SITES = (10, 100, 1000)
DEPTHS = (1, 2, 4, 8, 16, 30)
LINEAR = 1.15  # The largest exponent that passes for linear, for the noise.
FILTERED = "a key each, filtered out"
PATIENCE = 5  # Seconds that one trace may take; larger sizes are left out.

Function = Callable[..., Any]


def measure() -> Iterator[Table]:
    yield Table(
        "Tracing jit(spool(f)) with n log calls, less tracing f without a handler: microseconds per log call",
        ("logs", *[f"n = {n}" for n in SITES], "exponent", "of f", "over f"),
        [
            growing("by hand", SITES, lambda n: (_sites_by_hand(n), _sites(n)), target=None),
            growing("a key each", SITES, lambda n: (lox.spool(_sites(n)), _sites(n))),
            growing("one key", SITES, lambda n: (lox.spool(_sites(n, keys=1)), _sites(n))),
            growing("a key each, with a step", SITES, lambda n: (lox.spool(_sites(n, step=1)), _sites(n))),
            growing(FILTERED, SITES, lambda n: (lox.spool(_sites(n), argnames=()), _sites(n))),
            growing("a key each, reduce", SITES, lambda n: (lox.spool(_sites(n), reduce="sum"), _sites(n))),
            growing("one key, reduce", SITES, lambda n: (lox.spool(_sites(n, keys=1), reduce="sum"), _sites(n))),
            growing("a key each, interval", SITES, lambda n: (lox.spool(_sites(n), interval=10), _sites(n))),
            growing("one key, interval", SITES, lambda n: (lox.spool(_sites(n, keys=1), interval=10), _sites(n))),
            growing("a key each, in a scan", SITES, lambda n: (lox.spool(_scanned(_sites(n))), _scanned(_sites(n)))),
            growing("a key each, in a cond", SITES, lambda n: (lox.spool(_branched(_sites(n))), _branched(_sites(n)))),
            growing("a key each, under grad", SITES, lambda n: (lox.spool(jax.grad(_sites(n))), jax.grad(_sites(n)))),
        ],
        _note("n"),
        Curve(SITES, "log calls", "us per log call"),
    )
    yield Table(
        "Tracing jit(spool(f)) with a log d levels deep, less tracing f without a handler: microseconds per level",
        ("levels", *[f"d = {depth}" for depth in DEPTHS], "exponent", "of f", "over f"),
        [growing(name, DEPTHS, make) for name, make in _nestings()],
        _note("d"),
        Curve(DEPTHS, "levels", "us per level"),
    )


def growing(
    name: str,
    sizes: Sequence[int],
    make: Callable[[int], tuple[Function, Function]],
    target: float | None = LINEAR,
) -> tuple:
    """A row: what the first of two functions takes to trace beyond the second, by size.

    The exponents are those of the larger half of the sizes, where what is constant has little weight.
    """
    measured_one, plain_one = make(sizes[0])
    if name != FILTERED:
        returning(measured_one, jnp.float32(1))
    logging(plain_one, jnp.float32(1))
    extra: list[float] = []
    base: list[float] = []
    for size in sizes:
        if _too_long(extra):
            break
        functions = [lambda fun=fun: [_trace_time(fun)] for fun in make(size)]
        seconds = alternate_cold(functions, rounds=7 if size <= 10 else 3)[..., 0]
        measured, plain = seconds.min(axis=0)  # A difference of medians would be mostly noise.
        extra.append(float(measured - plain))
        base.append(float(plain))
    done = sizes[: len(extra)]
    half = len(sizes) // 2 if len(done) == len(sizes) else -2
    cells = [Figure(cost / size * 1e6, digits=0) for cost, size in zip(extra, done, strict=True)]
    missing = ["too long"] * (len(sizes) - len(done))
    exponents = (
        slope(done[half:], extra[half:], target) if min(extra[half:]) > 0 else "-",
        slope(done[half:], [seconds - base[0] for seconds in base[half:]]),
    )
    last = f"{1 + extra[-1] / base[-1]:.1f} ({done[-1]})"
    return name, *cells, *missing, *exponents, last


def _too_long(seconds: Sequence[float]) -> bool:
    """Whether the next size would run out of patience, if cost were exponential and sizes doubled."""
    return len(seconds) > 2 and seconds[-1] ** 3 > PATIENCE * seconds[-2] ** 2


def _note(size: str) -> str:
    return (
        f"The exponent k of cost = c * {size}**k, of the larger sizes: up to {LINEAR} passes for linear. Beside it is\n"
        f"that of tracing f, JAX's own. The last column is all of the time over that of f, at the size in brackets.\n"
        f"Of a few rounds, each with JAX's caches cleared, the fastest counts."
    )


def _trace_time(fun: Function) -> float:
    return stopwatch(lambda: jax.jit(fun).trace(jnp.float32(1)))[0]


# -- log calls in sequence ------------------------------------------------------------------------------------------


def _sites(n: int, keys: int | None = None, **steps: int) -> Function:
    def f(x):
        for i in range(n):
            x = jax.lax.sin(x)
            lox.log({f"key{i % (keys or n)}": x}, **steps)
        return x

    return f


def _sites_by_hand(n: int) -> Function:
    def f(x):
        logs = {}
        for i in range(n):
            x = jax.lax.sin(x)
            logs[f"key{i}"] = jax.lax.expand_dims(x, (0,))
        return x, logs

    return f


def _scanned(f: Function) -> Function:
    return lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=10)[0]


def _branched(f: Function) -> Function:
    return lambda x: jax.lax.cond(x > 0, f, lambda x: f(jax.lax.sin(x)), x)


# -- one log, deep inside ---------------------------------------------------------------------------------------------


def _leaf(x):
    lox.log({"x": x})
    return jax.lax.sin(x)


def _jit(f: Function) -> Function:
    return jax.jit(lambda x: f(jax.lax.sin(x)))


def _scan(f: Function) -> Function:
    return lambda x: jax.lax.scan(lambda x, _: (f(jax.lax.sin(x)), None), x, length=1)[0]


def _cond(f: Function) -> Function:
    return lambda x: jax.lax.cond(jnp.all(x > 0), lambda x: f(jax.lax.sin(x)), _leaf, x)


def _while(f: Function) -> Function:
    return lambda x: jax.lax.while_loop(lambda x: jnp.all(x < 0), lambda x: f(jax.lax.sin(x)), x)


def _checkpoint(f: Function) -> Function:
    return jax.checkpoint(lambda x: f(jax.lax.sin(x)))


def _nestings() -> Iterator[tuple[str, Callable[[int], tuple[Function, Function]]]]:
    levels = {"jit": _jit, "scan": _scan, "cond": _cond, "checkpoint": _checkpoint, "while_loop": _while}
    for name, level in levels.items():
        options = {"reduce": "sum"} if name == "while_loop" else {}
        yield name, _nesting(level, options, lambda f: f)
    yield "scan, reduce", _nesting(_scan, {"reduce": "sum"}, lambda f: f)
    yield "scan, interval", _nesting(_scan, {"interval": 10}, lambda f: f)
    yield "grad of scan", _nesting(_scan, {}, jax.grad)
    yield "grad of checkpoint", _nesting(_checkpoint, {}, jax.grad)
    yield "vmap of scan", _nesting(_scan, {}, _over_lanes)
    yield "vmap of cond", _nesting(_cond, {"unify": True}, _over_lanes)
    yield "vmap of while_loop, reduce", _nesting(_while, {"reduce": "sum"}, _over_lanes)


def _over_lanes(f: Function) -> Function:
    return lambda x: jax.vmap(f)(jnp.full(3, x))


def _nesting(
    level: Callable[[Function], Function], options: dict[str, Any], transform: Callable[[Function], Function]
) -> Callable[[int], tuple[Function, Function]]:
    def make(depth: int) -> tuple[Function, Function]:
        f = _leaf
        for _ in range(depth):
            f = level(f)
        f = transform(f)
        return lox.spool(f, **options), f

    return make


if __name__ == "__main__":
    main({"tracing": measure})
