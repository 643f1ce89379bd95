"""Tables and a plot of what the training logged. Its logs have the shape (steps, seeds, ...)."""

from __future__ import annotations

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

import lox
from lox.demo.training import HISTOGRAM_RANGE

SCALARS = ("train/loss", "test/loss", "test/accuracy", "grad_norm/hidden")


def size(logs: lox.logdict) -> str:
    """The memory that logs take."""
    return f"{sum(leaf.nbytes for leaf in jax.tree.leaves(logs)):,} bytes"


def over_time(logs: lox.logdict, rows: int = 8) -> Table:
    """One row per step, for a few steps: some scalars over the seeds."""
    table = Table("step", *SCALARS, title="mean ± deviation over seeds")
    steps = steps_of(logs, SCALARS[0])
    for event in np.unique(np.linspace(0, len(steps) - 1, rows).astype(int)):
        table.add_row(str(steps[event]), *(over_seeds(logs[key][event]) for key in SCALARS))
    return table


def reduced(**logs_by_reduction: lox.logdict) -> Table:
    """One row per key, one column per reduction: every reduced scalar, an array of shape (1, seeds)."""
    table = Table("key", *(f'reduce="{name}"' for name in logs_by_reduction), title="mean ± deviation over seeds")
    for key in next(iter(logs_by_reduction.values())):
        table.add_row(key, *(over_seeds(logs[key]) for logs in logs_by_reduction.values()))
    return table


def plot(logs: lox.logdict) -> Figure:
    """Losses, accuracies and gradient norms over the seeds, and the hidden weights of the first seed."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    loss, accuracy, norm, weights = figure.subplots(2, 2).flat
    draw(loss, logs, "train/loss", "test/loss")
    draw(accuracy, logs, "train/accuracy", "test/accuracy")
    draw(norm, logs, "grad_norm/hidden", "grad_norm/output")
    loss.set(title="loss", yscale="log")
    accuracy.set(title="accuracy")
    norm.set(title="gradient norm", yscale="log")

    counts = np.asarray(logs["weights/hidden"])[:, 0]  # (steps, seeds, bins) -> (steps, bins)
    extent = (0, len(counts), *HISTOGRAM_RANGE)
    image = weights.imshow(counts.T, aspect="auto", origin="lower", extent=extent, cmap="magma")
    weights.set(title="hidden weights of the first seed", xlabel="step", ylabel="weight")
    figure.colorbar(image, ax=weights, label="count")
    return figure


def draw(axes: Axes, logs: lox.logdict, *keys: str) -> None:
    """Draws each key over the steps: the mean of the seeds, in a band from the smallest to the largest."""
    for key in keys:
        steps, values = steps_of(logs, key), np.asarray(logs[key])
        (line,) = axes.plot(steps, values.mean(axis=1), linewidth=1, label=key)
        axes.fill_between(steps, values.min(axis=1), values.max(axis=1), color=line.get_color(), alpha=0.25, lw=0)
    axes.set(xlabel="step")
    axes.legend()


def steps_of(logs: lox.logdict, key: str) -> np.ndarray:
    """The steps at which a key was logged; all seeds log at the same ones."""
    return np.asarray(logs.steps["step"][key])[:, 0]


def over_seeds(values: jax.Array) -> str:
    """The mean and the standard deviation of one scalar over the seeds."""
    return f"{np.mean(values):.3f} ± {np.std(values):.3f}"
