"""``lox plot``: curves of keys over steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._extras import extra
from lox.commands._labels import labels
from lox.commands._output import Failure, complain
from lox.commands._runs import Runs, Selection
from lox.commands._series import Series


def plot(path: Path, keys: Sequence[str], out: Path, lines: bool) -> int:
    """Draws each key over its steps: the mean of the runs in a band of their standard deviation, or a line for each.

    Distributions are the line of their median in a band from their lowest quantile to the highest one, for each run, or
    as the means of the runs.
    """
    with extra("plot", "plot"):
        import matplotlib.figure  # noqa: F401  (`picture` imports it)

    runs, selection = Runs(path), Selection(keys)
    curves: dict[str, dict[str, Series]] = {}
    for run, logs in runs:
        for key in selection.of(logs):
            series = Series.of(logs, key)
            if series.values is None:
                runs.fail(f"{key!r} of {run} are PRNG keys, which are not drawn")
            elif len(series.values):
                curves.setdefault(key, {})[run] = series
    selection.report(runs)
    if not curves:
        raise Failure("there is nothing to draw")
    figure = picture(curves, labels(runs.folders), lines)
    try:
        with np.errstate(all="ignore"):
            figure.savefig(out)
    except (ValueError, OverflowError) as error:
        raise Failure(f"matplotlib cannot draw these values: {error}") from error
    return runs.exit_code


def picture(curves: Mapping[str, dict[str, Series]], names: Mapping[str, str], lines: bool) -> Any:
    """A figure with axes for each key.

    Args:
        curves: The events of each key, by run.
        names: What stands for each run.
        lines: Whether there is a line for each run.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1 + 3 * len(curves)), layout="constrained")
    for axes, (key, of_runs) in zip(figure.subplots(len(curves), squeeze=False).flat, curves.items(), strict=True):
        axes.set_title(key, parse_math=False)
        axes.set_xlabel(" or ".join(sorted({series.counter for series in of_runs.values()})))
        _draw_lines(axes, of_runs, names) if lines or len(of_runs) == 1 else _draw_band(axes, of_runs)
        missing = sum(series.not_finite for series in of_runs.values())
        if missing:
            complain(f"{missing} values of {key!r} are not finite, and are left out")
    return figure


def _draw_lines(axes: Any, of_runs: dict[str, Series], names: Mapping[str, str]) -> None:
    for run, series in of_runs.items():
        order = np.argsort(series.steps, kind="stable")
        values = np.asarray(series.values, np.float64)[order]
        (line,) = axes.plot(series.steps[order], _finite(values), linewidth=1, label=names[run])
        if np.isfinite(values).sum() == 1:
            line.set_marker("o")
        if series.band is not None:
            _fill(axes, line, series.steps[order], *_finite(np.asarray(series.band, np.float64)[:, order]))
    if len(of_runs) <= 10:
        for text in axes.legend().get_texts():
            text.set_parse_math(False)


def _draw_band(axes: Any, of_runs: dict[str, Series]) -> None:
    found = list(of_runs.values())
    steps, mean, deviation = over_runs(found)
    (line,) = axes.plot(steps, mean, linewidth=1, marker="o" if len(steps) == 1 else "")
    bands = [series.band for series in found if series.band is not None]
    if len(bands) == len(found):
        _fill(axes, line, steps, *(over_runs(_ends(found, bands, end))[1] for end in (0, 1)))
        axes.set_ylabel(f"mean quantiles of {len(of_runs)} runs")
    else:
        _fill(axes, line, steps, mean - deviation, mean + deviation)
        axes.set_ylabel(f"mean ± deviation of {len(of_runs)} runs")


def _ends(series: Sequence[Series], bands: Sequence[np.ndarray], end: int) -> list[Series]:
    return [dataclasses.replace(each, values=band[end]) for each, band in zip(series, bands, strict=True)]


def _finite(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def _fill(axes: Any, line: Any, steps: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Draws a band around a line; around one step, a bar."""
    if len(steps) == 1:
        axes.vlines(steps, low, high, color=line.get_color(), alpha=0.25)
    else:
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.25, linewidth=0)


def over_runs(series: Sequence[Series]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean and the standard deviation, at each step, of the values there that are finite."""
    values = np.concatenate([np.asarray(each.values, np.float64) for each in series])
    steps, place = np.unique(np.concatenate([each.steps for each in series]), return_inverse=True)
    finite = np.isfinite(values)
    count = np.bincount(place[finite], minlength=len(steps))
    with np.errstate(all="ignore"):
        mean = np.bincount(place[finite], values[finite], len(steps)) / count
        squares = np.bincount(place[finite], (values - mean[place])[finite] ** 2, len(steps))
        return steps, mean, np.sqrt(squares / count)
