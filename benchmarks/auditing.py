"""What `lox.audit` takes beside tracing, how that grows, and which mistakes of the corpus it finds."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from corpus import cases

import lox
from benchmarks import programs, training
from benchmarks._report import Curve, Figure, Table, main, slope
from benchmarks._timing import stopwatch

EQUATIONS = (10, 1_000, 10_000)
MOST = 3  # How many times the time of tracing an audit may take.
LINEAR = 1.15  # The largest exponent that passes for linear, for the noise.
ROUNDS = 9
WRONG, RIGHT = 80, 60  # At least so many programs of the corpus.

Function = Callable[..., Any]


def measure() -> Iterator[Table]:
    yield Table(
        "lox.audit(f)(x) of straight programs over jax.make_jaxpr(f)(x)",
        ("equations", *[f"{count:,}" for count in EQUATIONS], "exponent", "with the text", "of tracing"),
        [_growing(name, make) for name, make in STRAIGHT.items()],
        "Each time a function that JAX has not traced before. The exponent k is that of cost = c * equations**k\n"
        f"between the two larger sizes: up to {LINEAR} passes for linear. Beside it is that of str(lox.audit(f)(x)),\n"
        "and that of tracing, JAX's own.",
        Curve(EQUATIONS, "equations", "of the time of tracing"),
    )
    yield Table(
        "lox.audit(f)(x) of programs that log",
        ("program", "over lox.sites(f)(x)", "over jax.make_jaxpr(f)(x)", "lox.audit in ms", "found"),
        [_program(make) for make in (*programs.ALL, *training.ALL)],
        f"{ROUNDS} rounds, each with a program that JAX has not traced before; the median with its quartiles.\n"
        "lox.sites traces log calls as well, which jax.make_jaxpr leaves out.",
    )
    yield Table(
        "Mistakes that lox.audit finds in the programs of tests/corpus",
        ("family", "wrong programs", "found", "right programs", "falsely alarmed"),
        _corpus(),
        "Found: the mistake with its code. Falsely alarmed: an error or a warning where there is no mistake.",
    )


def compare(actions: Sequence[Function], make: Callable[[], tuple[Function, Sequence[Any]]], rounds: int) -> np.ndarray:
    """Seconds that actions on a function take, each time on one that is made anew, shape `(rounds, actions)`.

    Args:
        actions: What takes a function, and returns what takes its arguments.
        make: Makes a function and its arguments.
        rounds: The number of rounds, after one that is not counted, in which JAX traces what libraries have jitted.
    """
    shuffle = random.Random(0).sample
    seconds = np.zeros((rounds + 1, len(actions)))
    for each in range(rounds + 1):
        for which in shuffle(range(len(actions)), len(actions)):
            fun, args = make()
            action = functools.partial(actions[which](fun), *args)
            gc.collect()
            gc.disable()
            seconds[each, which], _ = stopwatch(action)
            gc.enable()
    return seconds[1:]


def _growing(name: str, make: Callable[[int], Function]) -> tuple[Any, ...]:
    x, actions = jnp.ones(8), (jax.make_jaxpr, lox.audit, _text)
    measured = [
        compare(actions, lambda count=count: (make(count), [x]), ROUNDS if count < 10_000 else 5) for count in EQUATIONS
    ]
    ratios = [Figure.of(seconds[:, 1] / seconds[:, 0], MOST) for seconds in measured]
    tracing, auditing, texts = np.transpose([np.min(seconds, 0) for seconds in measured[1:]])
    larger = EQUATIONS[1:]
    return name, *ratios, slope(larger, auditing, LINEAR), slope(larger, texts, LINEAR), slope(larger, tracing)


def _text(fun: Function) -> Function:
    return lambda *args: str(lox.audit(fun)(*args))


def _program(make: Callable[[], programs.Program]) -> tuple[Any, ...]:
    def fresh() -> tuple[Function, Sequence[Any]]:
        program = make()
        return lambda *args: program.logging(*args), program.args

    seconds = compare((jax.make_jaxpr, lox.sites, lox.audit), fresh, ROUNDS)
    fun, args = fresh()
    codes = sorted({finding.code for finding in lox.audit(fun)(*args).at_least("warning")})
    ratios = Figure.of(seconds[:, 2] / seconds[:, 1], MOST), Figure.of(seconds[:, 2] / seconds[:, 0])
    return make.__name__, *ratios, Figure.of(1e3 * seconds[:, 2], digits=1), ", ".join(codes) or "nothing"


def _corpus() -> list[tuple[Any, ...]]:
    counts: dict[str, Counter[str]] = {}
    # Some programs print, which is their mistake.
    unseen = io.StringIO()
    with contextlib.redirect_stdout(unseen), contextlib.redirect_stderr(unseen), jax.numpy_dtype_promotion("standard"):
        for case in cases():
            count = counts.setdefault(case.family, Counter())
            report = case.report()
            count["wrong" if case.wrong else "right"] += 1
            count["found"] += case.wrong and case.code in {finding.code for finding in report.at_least("info")}
            count["alarmed"] += not case.wrong and bool(report.at_least("warning"))
    rows = [_recall(family, count) for family, count in counts.items()]
    return [*rows, _recall("all", sum(counts.values(), Counter()), WRONG, RIGHT)]


def _recall(name: str, count: Counter[str], wrong: int | None = None, right: int | None = None) -> tuple[Any, ...]:
    return (
        name,
        Figure(count["wrong"], target=wrong, digits=0, at_least=True),
        Figure(count["found"], target=count["wrong"], digits=0, at_least=True),
        Figure(count["right"], target=right, digits=0, at_least=True),
        Figure(count["alarmed"], target=0, digits=0),
    )


# -- straight programs -----------------------------------------------------------------------------------------------


def _sines(count: int) -> Function:
    """The cheapest operation to trace."""

    def f(x):
        for _ in range(count):
            x = jax.lax.sin(x)
        return x

    return f


def _arithmetic(count: int) -> Function:
    """What people write, a quarter of it an operation that JAX has jitted."""

    def f(x):
        for _ in range(count // 4):
            x = jnp.where(x > 0, 0.5 * x, x + 1)
        return x

    return f


def _layers(count: int) -> Function:
    """Layers of a network."""
    w = jnp.ones((8, 8))

    def f(x):
        for _ in range(count // 4):
            x = jnp.tanh(x @ w + 1) * 0.5
        return x

    return f


STRAIGHT = {"lax.sin": _sines, "jax.numpy": _arithmetic, "layers of a network": _layers}


if __name__ == "__main__":
    main({"auditing": measure})
