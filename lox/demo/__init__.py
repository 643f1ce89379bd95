"""The program of ``lox demo``: several networks learn to read digits in one jitted program, and log how it goes.

`training` is plain JAX with log calls where the values are; `report` draws logs. This module collects them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import lox
from lox.demo import report, training


def run(steps: int, seeds: int, out: Path) -> None:
    """Trains `seeds` networks for `steps` steps, prints what was logged and plots it.

    Args:
        steps: Number of updates of each network.
        seeds: Number of networks that are trained side by side.
        out: The PNG file that the plot is written to.

    Raises:
        OSError: The plot could not be written.
    """
    console = Console()
    train_set, test_set = training.load()
    keys = jax.random.split(jax.random.key(0), seeds)
    train_all = jax.vmap(functools.partial(training.train, steps=steps), in_axes=(0, None, None))

    def call(fun: Callable[..., Any]) -> Any:
        return jax.block_until_ready(jax.jit(fun)(keys, train_set, test_set))

    console.rule("lox.sites: what the program logs, before it runs")
    print(lox.sites(train_all)(keys, train_set, test_set))

    console.rule("lox.spool: the logs, as arrays")
    started = time.perf_counter()
    _, logs = call(lox.spool(train_all))
    seconds = time.perf_counter() - started
    console.print(report.over_time(logs))
    console.print(f"{seeds} networks, {steps} steps, {seconds:.1f} s with compilation, {report.size(logs)} of logs")

    console.rule("lox.spool(reduce=...): the same, reduced inside the loop")
    _, means = call(lox.spool(train_all, tags="metric", reduce="mean"))
    _, lasts = call(lox.spool(train_all, tags="metric", reduce="last"))
    console.print(report.reduced(mean=means, last=lasts))
    console.print(f"{report.size(means)} of logs each, whatever the number of steps")

    console.rule("the plot")
    report.plot(logs).savefig(out, format="png")
    console.print(f"written to {out}", soft_wrap=True)
