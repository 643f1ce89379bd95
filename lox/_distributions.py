"""Histograms and quantiles, which a reduction has made of events, as files, sinks and pictures have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lox._bins import Histogram, Quantiles
from lox.reductions import histogram, quantiles

Distribution = Histogram | Quantiles

QS = (0.1, 0.5, 0.9)
"""The quantiles that stand for a histogram where numbers are drawn."""

MOST = 512
"""The most bins that W&B and Trackio take."""

_MAKERS: dict[str, Callable[..., Any]] = {"histogram": histogram, "quantiles": quantiles}


def as_json(distribution: Distribution) -> dict[str, Any]:
    """The arguments of a distribution, as a manifest has them."""
    fields = {name: value for name, value in dataclasses.asdict(distribution).items() if name != "is_single"}
    return {"name": distribution.name, **fields}


def from_json(found: Mapping[str, Any]) -> Any:
    """The distribution of these arguments.

    Raises:
        KeyError: There is no distribution of this name.
        TypeError: There is no such argument.
        ValueError: An argument is no number that it can be.
    """
    arguments = dict(found)
    return _MAKERS[arguments.pop("name")](**arguments)


def in_bins(distribution: Histogram, counts: np.ndarray, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The counts of a histogram, and finite edges of its bins.

    The first and the last bin, which have no outer edge, are as wide as the bins next to them. Bins at infinite edges
    are parts of their neighbours.

    Args:
        distribution: The histogram.
        counts: Shape `(..., bins)`.
        most: How many bins there may be. Neighbours become one where there are more.

    Returns:
        The counts and the edges. There is one edge more than there are counts.

    >>> import lox
    >>> counts, edges = in_bins(lox.reductions.histogram([0, 1, 10]), np.array([1, 2, 3, 4]))
    >>> counts.tolist(), edges.tolist()
    ([1, 2, 3, 4], [-1.0, 0.0, 1.0, 10.0, 19.0])
    """
    edges = np.array([float(edge) for edge in distribution.edges])
    if edges[0] == -np.inf:
        counts, edges = _as_one(counts, 0), edges[1:]
    if edges[-1] == np.inf:
        counts, edges = _as_one(counts, counts.shape[-1] - 2), edges[:-1]
    if len(edges) > 1:
        with np.errstate(over="ignore"):
            ends = [edges[0] - (edges[1] - edges[0]), edges[-1] + (edges[-1] - edges[-2])]
        edges = np.nan_to_num([ends[0], *edges, ends[1]])
    else:
        width = max(1.0, abs(edges[0]) / 2)
        edges = np.array([edges[0] - width, edges[0], edges[0] + width])
    number = counts.shape[-1]
    if most is not None and number > most:
        starts = np.arange(0, number, -(-number // most))
        return np.add.reduceat(counts, starts, axis=-1), edges[[*starts, number]]
    return counts, edges


def _as_one(counts: np.ndarray, place: int) -> np.ndarray:
    """The counts with those of a bin and the next one added up."""
    return np.add.reduceat(counts, [bin for bin in range(counts.shape[-1]) if bin != place + 1], axis=-1)


def estimated(distribution: Histogram, counts: np.ndarray, qs: tuple[float, ...] = QS) -> np.ndarray:
    """Quantiles of histograms, as if the numbers in each bin were spread evenly.

    Numbers beyond the outermost edges count as these.

    Args:
        distribution: The histogram.
        counts: Shape `(events, bins)`.
        qs: Which quantiles.

    Returns:
        Shape `(events, qs)`, NaN where nothing was counted.

    >>> import lox
    >>> estimated(lox.reductions.histogram([0, 1, 2]), np.array([[0, 1, 1, 0], [0, 0, 0, 5]])).tolist()
    [[0.2, 1.0, 1.8], [2.0, 2.0, 2.0]]
    """
    counts, edges = in_bins(distribution, counts)
    if len(edges) > 2:
        edges[0], edges[-1] = edges[1], edges[-2]
    found = np.full((len(counts), len(qs)), np.nan)
    for quantiles_of, of_bins in zip(found, counts.astype(np.float64), strict=True):
        (there,) = np.nonzero(of_bins)
        if len(there):
            upto = np.cumsum(of_bins[there])
            ranks = upto[-1] * np.array(qs)
            places = np.minimum(np.searchsorted(upto, ranks), len(there) - 1)
            bins = there[places]
            part = (ranks - (upto[places] - of_bins[bins])) / of_bins[bins]
            quantiles_of[:] = edges[bins] * (1 - part) + edges[bins + 1] * part
    return found


def middle(qs: Sequence[float]) -> int:
    """The place of the quantile that is nearest to the median."""
    return int(np.argmin(np.abs(np.subtract(qs, 0.5))))


def name_of(q: float) -> str:
    """The name of a quantile, such as "q0.5", "q1" and "q1e-07": no other number has the same."""
    return f"q{float(q)!r}".removesuffix(".0")
