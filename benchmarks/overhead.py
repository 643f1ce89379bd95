"""`jit(spool(f))` over the function that was written by hand to return the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import programs, training
from benchmarks._report import Figure, Table, main, ratio
from benchmarks._timing import alternate, alternate_cold, done, stopwatch


def measure() -> Iterator[Table]:
    cases = [make() for make in (*programs.ALL, *training.ALL)]
    for case in cases:
        case.check()
    yield Table(
        "jit(spool(f)) over the function written by hand: what runs",
        ("program", "run time", "with the logdict", "noise", "HLO instructions", "temporary memory", "by hand"),
        [running(case) for case in cases],
        "Targets: 1.03 run time, 1.02 instructions of the optimized HLO, 1.02 temporary memory. The run time is that\n"
        "of programs that return flat lists of arrays; that of the functions as they are also has what it takes\n"
        "Python to put the arrays into a logdict, or a dict by hand (see `dispatch`). Noise is the function by hand\n"
        "over another compilation of itself.",
    )
    yield Table(
        "jit(spool(f)) over the function written by hand: tracing and compiling",
        ("program", "trace and compile", "trace", "lower", "compile", "by hand"),
        [compiling(case) for case in cases],
        "Target: 1.2 of all together. JAX's caches are cleared before each round.",
    )


def running(case: programs.Program) -> tuple:
    functions = [jax.jit(fun) for fun in (case.spooled, case.by_hand)]
    compiled = [function.lower(*case.args).compile() for function in functions]
    flat = [_flat(fun) for fun in (case.spooled, case.by_hand, case.by_hand)]
    calls = [done(function, *case.args) for function in (*flat, *functions)]
    spooled, by_hand, again, spooled_tree, by_hand_tree = alternate(calls, rounds=200).T
    instructions = [executable.as_text().count(" = ") for executable in compiled]
    temporary = [executable.memory_analysis().temp_size_in_bytes for executable in compiled]
    return (
        case.name,
        Figure.of(spooled / by_hand, target=1.03, digits=3),
        Figure.of(spooled_tree / by_hand_tree, target=1.03, digits=3),
        Figure.of(again / by_hand, digits=3),
        ratio(*instructions, target=1.02),
        ratio(*temporary, target=1.02),
        f"{np.median(by_hand) * 1e6:,.0f} us, {instructions[1]} instructions, {temporary[1]:,} bytes",
    )


def _flat(fun: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(lambda *args: jax.tree.leaves(fun(*args)))


def compiling(case: programs.Program) -> tuple:
    def stages(fun: Callable[..., Any]) -> list[float]:
        trace, traced = stopwatch(lambda: jax.jit(fun).trace(*case.args))
        lower, lowered = stopwatch(traced.lower)
        compile, _ = stopwatch(lowered.compile)
        return [trace + lower + compile, trace, lower, compile]

    seconds = alternate_cold([lambda: stages(case.spooled), lambda: stages(case.by_hand)], rounds=9)
    ratios = seconds[:, 0] / seconds[:, 1]
    total, trace, *_ = np.median(seconds[:, 1], axis=0) * 1e3
    targets = (1.2, None, None, None)
    figures = [Figure.of(column, target=target) for column, target in zip(ratios.T, targets, strict=True)]
    return case.name, *figures, f"{total:,.0f} ms, of which tracing {trace:,.0f} ms"


if __name__ == "__main__":
    main({"overhead": measure})
