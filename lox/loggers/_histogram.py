"""Numbers as a histogram."""

from __future__ import annotations

import numpy as np

BINS = 64
"""Number of bins of a histogram, as in W&B and Trackio themselves."""


def histogram(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count the numbers in each of `BINS` bins of one width, from the smallest number to the largest.

    Around numbers that are all equal, or too near to each other for so many bins, the bins are wider.

    Args:
        numbers: Finite numbers of `float64`, one or more.

    Returns:
        The counts, and the `BINS + 1` edges of the bins.

    >>> counts, edges = histogram(np.array([1e25, 1e25]))
    >>> counts.sum(), edges[0] < 1e25 < edges[-1]
    (np.int64(2), np.True_)
    """
    ends = np.array([numbers.min(), numbers.max()])
    room = 4 * BINS * np.spacing(np.abs(ends / 2).max())  # Halves, for the range of all floats is no float.
    if ends[1] / 2 - ends[0] / 2 < room:
        with np.errstate(over="ignore"):
            ends = np.nan_to_num(ends + max(room, 0.5) * np.array([-1, 1]))
    part = np.linspace(0, 1, BINS + 1)
    return np.histogram(numbers, ends[0] * (1 - part) + ends[1] * part)
