"""`lox.progress`: loops with a bar beside the same loops without, and how often the bar moves whatever they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

import lox
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate, done
from lox._progress import _board

Function = Callable[..., Any]
ITERATIONS, OPERATIONS, WIDTH = 100_003, 30, 64
"""A prime number of iterations, of about 3 us each."""

SECONDS = 10.0
TIMES = ((1e-6, 1e-6), (1e-3, 1e-3), (1.0, 1.0), (1e-6, 1e-4), (1e-4, 1e-6), (1e-3, 1e-1))
"""The time of an iteration in the first and in the second half, in seconds."""


def measure() -> Iterator[Table]:
    x = jnp.ones(WIDTH)
    rows: list[tuple[Any, ...]] = []
    for name, loop in (("scan", scan), ("while_loop", wait), ("while_loop under vmap", jax.vmap(wait))):
        arg = jnp.stack([x, x / 2]) if "vmap" in name else x
        plain, with_bar = jax.jit(loop), jax.jit(lox.progress(loop))
        assert "callback" in with_bar.lower(arg).as_text() and "callback" not in plain.lower(arg).as_text()
        with mock.patch.object(_board, "_is_quiet", lambda: True):
            alone, quiet = alternate([done(plain, arg), done(with_bar, arg)], rounds=6).T
        again, shown = alternate([done(plain, arg), done(with_bar, arg)], rounds=6).T
        rows.append(
            (
                f"{name}, {np.median(alone) / ITERATIONS * 1e6:.1f} us an iteration",
                Figure.of(quiet / alone, target=1.02),
                Figure.of(shown / again, target=1.02),
            )
        )
    yield Table(
        f"Loops of {ITERATIONS:,} iterations with a bar, over the loops alone",
        ("loop", "nothing shown", "lines in a file"),
        rows,
        "The compiled programs with a bar call the host, and those without do not, which is checked.",
    )
    yield Table(
        f"How often a bar of a loop of about {SECONDS:.0f} s moves",
        ("iterations", "longest time between reports, s", "reports a second"),
        [_pace(kind, *each) for kind in ("scan", "while_loop") for each in TIMES],
        "The time of an iteration changes after half of the time. The lengths of scans are prime numbers. The clock is "
        "that of the wall: what else the machine does makes iterations longer.",
    )


def body(c: Any, i: Any) -> tuple[Any, Any]:
    for _ in range(OPERATIONS):
        c = jnp.tanh(c * 0.99 + i * 1e-6)
    return c, c.sum()


def scan(x: Any) -> Any:
    return jax.lax.scan(body, x, jnp.arange(float(ITERATIONS)))


def wait(x: Any) -> Any:
    """Runs for as many iterations as its first element says, which is known on the device only."""
    count = ITERATIONS - (x[0] * 1e-3).astype(jnp.int32)
    step = lambda s: (s[0] + 1, body(s[1], s[0].astype(jnp.float32))[0])  # noqa: E731
    return jax.lax.while_loop(lambda s: s[0] < count, step, (0, x))


def _pace(kind: str, first: float, second: float) -> tuple[Any, ...]:
    """The longest time between two reports of a loop, and their number in a second."""
    times: list[float] = []
    report = _board.Board.report

    def noted(*args: Any) -> Any:
        times.append(time.perf_counter())
        return report(*args)

    unit = _seconds_of_unit()
    units = [max(round(seconds / unit), 1) for seconds in (first, second)]
    half = [round(SECONDS / 2 / (count * unit)) for count in units]
    length = _prime_after(sum(half))

    def step(c: Any, i: Any) -> tuple[Any, None]:
        if max(first, second) >= 1e-2:  # The device sleeps, so that others may run.
            wanted = jnp.where(i < half[0], first, second).astype(jnp.float32)
            return c + io_callback(_sleep, jax.ShapeDtypeStruct((), jnp.float32), wanted), None
        count = jnp.where(i < half[0], *units)
        return jax.lax.fori_loop(0, count, lambda _, c: jnp.sin(c), c), None

    def loop(c: Any) -> Any:
        if kind == "scan":
            return jax.lax.scan(step, c, jnp.arange(length))[0]
        count = length + c.astype(jnp.int32) - 1  # It is known on the device only.
        return jax.lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, step(s[1], s[0])[0]), (0, c))[1]

    fun = jax.jit(lox.progress(loop))
    with mock.patch.object(_board.Board, "report", noted):
        compiled = fun.lower(jnp.float32(1)).compile()
        began = time.perf_counter()
        jax.block_until_ready(compiled(jnp.float32(1)))
    gaps = np.diff([began, *times])
    name = f"{first:g} s" if first == second else f"{first:g} s, then {second:g} s"
    return f"{kind}, {length:,} of {name}", f"{gaps.max():.2f}", f"{len(times) / (times[-1] - began):.0f}"


def _sleep(seconds: Any) -> Any:
    time.sleep(float(seconds))
    return np.float32(0)


def _seconds_of_unit() -> float:
    """The time of the smallest iteration."""
    count = 1_000_003
    fun = jax.jit(lambda c: jax.lax.fori_loop(0, count, lambda _, c: jnp.sin(c), c))
    jax.block_until_ready(fun(jnp.float32(1)))
    began = time.perf_counter()
    jax.block_until_ready(fun(jnp.float32(1)))
    return (time.perf_counter() - began) / count


def _prime_after(number: int) -> int:
    while any(number % divisor == 0 for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number


if __name__ == "__main__":
    main({"progress": measure})
