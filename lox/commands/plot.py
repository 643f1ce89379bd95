"""``lox plot``: curves of keys over steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._extras import extra
from lox._logdict import logdict
from lox.commands._labels import labels
from lox.commands._output import Failure, complain
from lox.commands._runs import Runs, Selection
from lox.commands._series import Series

Curves = dict[tuple[str, str], dict[str, Series]]
"""The events of runs, by key and counter, then by run."""

MOST_IN_LEGEND = 10
"""Largest number of runs in a legend. The colours of more are in order on a scale, as Matplotlib has ten of its own."""
MOST_ON_SCALE = 8
"""Largest number of names beside such a scale."""
LONGEST = 40
"""Largest number of characters of a name in a legend."""


def plot(path: Path, keys: Sequence[str], out: Path, lines: bool) -> int:
    """Draws each key over its steps: the mean of the runs in a band of their standard deviation, or a line for each.

    The x-axis is the counter `step`; without it, the only counter of the key, or the number of the event. A key that
    runs log with several counters has axes for each. Runs that log at another rate have a mean of their own.

    Distributions are the line of their median in a band from their lowest quantile to the highest one, for each run, or
    as the means of the runs.
    """
    with extra("plot", "plot"):
        import matplotlib.figure  # noqa: F401  (`picture` imports it)

    runs, selection = Runs(path), Selection(keys)
    curves: Curves = {}
    for run, logs in runs:
        for key in selection.of(logs):
            series = Series.of(logs, key, counters=_counters(logs, key))
            if series.values is None:
                runs.fail(f"{key!r} of {run} are PRNG keys, which are not drawn")
            elif len(series.values):
                curves.setdefault((key, series.counter), {})[run] = series
    selection.report(runs)
    if not curves:
        raise Failure("there is nothing to draw")
    keys = [*dict.fromkeys(key for key, _ in curves)]
    in_order = dict(sorted(curves.items(), key=lambda item: keys.index(item[0][0])))
    figure = picture(in_order, labels(runs.folders), lines)
    try:
        with np.errstate(all="ignore"):
            figure.savefig(out)
    except (ValueError, OverflowError) as error:
        raise Failure(f"matplotlib cannot draw these values: {error}") from error
    return runs.exit_code


def picture(curves: Curves, names: Mapping[str, str], lines: bool) -> Any:
    """A figure with axes for each key and counter.

    Args:
        curves: The events of each key and counter, by run.
        names: What stands for each run.
        lines: Whether there is a line for each run.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 1 + 3 * len(curves)), layout="constrained")
    places = figure.subplots(len(curves), squeeze=False).flat
    for axes, ((key, counter), of_runs) in zip(places, curves.items(), strict=True):
        axes.set_title(key, parse_math=False)
        axes.set_xlabel(counter, parse_math=False)
        if all(np.issubdtype(series.steps.dtype, np.integer) for series in of_runs.values()):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _draw_lines(axes, of_runs, names) if lines or len(of_runs) == 1 else _draw_bands(axes, of_runs)
        missing = sum(series.not_finite for series in of_runs.values())
        if missing:
            complain(f"{missing} values of {key!r} are not finite, and are left out")
    return figure


def _counters(logs: logdict, key: str) -> tuple[str, ...]:
    """The counters that may be the x-axis of a key: `step`, or one that is its only one."""
    there = [name for name, of in logs.steps.items() if key in of]
    return ("step", *there) if len(there) == 1 else ("step",)


def _draw_lines(axes: Any, of_runs: dict[str, Series], names: Mapping[str, str]) -> None:
    colors = _colors(axes, [_short(names[run]) for run in of_runs])
    for (run, series), color in zip(of_runs.items(), colors, strict=True):
        order = np.argsort(series.steps, kind="stable")
        values = np.asarray(series.values, np.float64)[order]
        label = _short(names[run])
        (line,) = axes.plot(series.steps[order], _finite(values), linewidth=1, color=color, label=label)
        if np.isfinite(values).sum() == 1:
            line.set_marker("o")
        if series.band is not None:
            _fill(axes, line, series.steps[order], *_finite(np.asarray(series.band, np.float64)[:, order]))
    if len(of_runs) <= MOST_IN_LEGEND:
        _draw_legend(axes)


def _colors(axes: Any, names: Sequence[str]) -> Any:
    """The colour of each run: those of Matplotlib, or of many runs those of a scale that is drawn with some names."""
    if len(names) <= MOST_IN_LEGEND:
        return [None] * len(names)
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    scale = ScalarMappable(Normalize(0, len(names) - 1), colormaps["viridis"])
    named = np.unique(np.linspace(0, len(names) - 1, MOST_ON_SCALE).round().astype(int))
    bar = axes.figure.colorbar(scale, ax=axes, ticks=named, label=f"{len(names)} runs in order")
    bar.ax.set_yticklabels([names[place] for place in named], parse_math=False, fontsize="small")
    return scale.to_rgba(np.arange(len(names)))


def _short(name: str) -> str:
    """A name that fits beside the curves: the beginning and the end of a long one."""
    return name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[-(LONGEST // 2 - 1) :]}"


def _draw_legend(axes: Any) -> None:
    for text in axes.legend(fontsize="small").get_texts():
        text.set_parse_math(False)


def _draw_bands(axes: Any, of_runs: dict[str, Series]) -> None:
    """Draws a line with a band for the runs of each rate: those with the same number of steps between two events."""
    rates = [_rate(series) for series in of_runs.values()]
    of_rates: dict[float | None, list[Series]] = {}
    for series, rate in zip(of_runs.values(), rates, strict=True):
        # A run with a single step has no rate, and goes with the others.
        joined = max(rates, key=rates.count) if len(np.unique(series.steps)) == 1 else rate
        of_rates.setdefault(joined, []).append(series)
    if len(of_rates) > MOST_IN_LEGEND:
        of_rates = {None: [*of_runs.values()]}
    kinds = {_draw_band(axes, found, rate, len(of_rates) > 1) for rate, found in of_rates.items()}
    if len(of_rates) > 1:
        _draw_legend(axes)
    axes.set_ylabel(f"{' or '.join(sorted(kinds))} of {len(of_runs)} runs")


def _rate(series: Series) -> float | None:
    """The difference between each two steps in order; None where it is not always the same."""
    steps = np.unique(series.steps)
    apart = np.unique(np.diff(steps))
    return float(apart[0]) if len(apart) == 1 else None


def _draw_band(axes: Any, found: Sequence[Series], rate: float | None, labelled: bool) -> str:
    """Draws the mean of runs in a band, and returns what it is."""
    steps, mean, deviation = over_runs(found)
    apart = "other steps" if rate is None else f"every {rate:g}"
    label = f"{apart} ({len(found)} run{'s' if len(found) > 1 else ''})" if labelled else None
    (line,) = axes.plot(steps, mean, linewidth=1, marker="o" if len(steps) == 1 else "", label=label)
    bands = [series.band for series in found if series.band is not None]
    if len(bands) == len(found):
        _fill(axes, line, steps, *(over_runs(_ends(found, bands, end))[1] for end in (0, 1)))
        return "mean quantiles"
    _fill(axes, line, steps, mean - deviation, mean + deviation)
    return "mean ± deviation"


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
