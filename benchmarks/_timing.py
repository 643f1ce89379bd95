"""Times functions side by side, so that what else the machine does strikes all of them alike.

All times are processor time of this process, over all its threads: on a busy machine, clocks mostly measure how long
others ran in between.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Call = Callable[[], Any]


def alternate(functions: Sequence[Call], rounds: int, sample: float = 2e-3) -> np.ndarray:
    """Seconds per call, shape `(rounds, functions)`.

    A round times a sample of each function, then of each in reverse order, and takes the mean: a machine that slows
    down steadily slows all of them alike. Each round has another order: what comes first has been seen to run faster.
    Where a sample is of several calls, one before brings the function back into the processor's caches.

    Args:
        functions: What to call. They return when their work is done.
        rounds: The number of rounds.
        sample: How many seconds one sample is to take.
    """
    calls = [_calls_within(function, sample) for function in functions]
    shuffle = random.Random(0).sample
    seconds = np.zeros((rounds, len(functions)))
    with _no_collection():
        for each in range(rounds):
            order = shuffle(range(len(functions)), len(functions))
            for which in [*order, *reversed(order)]:
                function, count = functions[which], calls[which]
                if count > 1:
                    function()
                started = time.process_time()
                for _ in range(count):
                    function()
                seconds[each, which] += (time.process_time() - started) / (2 * count)
    return seconds


def alternate_cold(functions: Sequence[Callable[[], Sequence[float]]], rounds: int) -> np.ndarray:
    """What each function measures of itself when JAX has cached nothing, shape `(rounds, functions, figures)`.

    Args:
        functions: What to call once in each round, in turns from the first and from the last.
        rounds: The number of rounds, after one that is not counted: the first use of an operation imports code.
    """
    found = []
    for each in range(rounds + 1):
        results: dict[int, Sequence[float]] = {}
        order = range(len(functions))
        for which in order if each % 2 else reversed(order):
            jax.clear_caches()
            with _no_collection():
                results[which] = functions[which]()
        found.append([results[which] for which in order])
    return np.array(found[1:])


def done(fun: Callable[..., Any], *args: Any) -> Call:
    """Calls `fun` and waits for its first array: all that one executable computes is there at the same time."""

    def call() -> None:
        jax.tree.leaves(fun(*args)[0])[0].block_until_ready()

    return call


def stopwatch(action: Callable[[], Any]) -> tuple[float, Any]:
    """The seconds that `action` took, and what it returned."""
    started = time.process_time()
    result = action()
    return time.process_time() - started, result


def _calls_within(function: Call, seconds: float) -> int:
    function()
    once = min(stopwatch(function)[0] for _ in range(3))
    return max(1, round(seconds / once))


class _no_collection:
    """Python's garbage collector runs before, not during."""

    def __enter__(self) -> None:
        gc.collect()
        gc.disable()

    def __exit__(self, *_: Any) -> None:
        gc.enable()
