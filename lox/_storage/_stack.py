"""Runs next to each other in one array for each key."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import dtypes

from lox._exceptions import StructureError
from lox._keys import impl_of, key_data
from lox._logdict import logdict


def stacked(runs: Mapping[str, logdict]) -> logdict:
    """The logs of several runs, which have an axis of their own after that of events.

    Events that a run has not got are masked out.

    Raises:
        StructureError: Runs differ in the shape, dtype, counters or batch of a key.
    """
    data, mask, dropped = {}, {}, {}
    steps: dict[str, dict[str, Any]] = {}
    for key in dict.fromkeys(key for logs in runs.values() for key in logs):
        layout = _layout(runs, key)
        counts = [len(logs[key]) if key in logs else 0 for logs in runs.values()]
        data[key] = _side_by_side([logs.data.get(key) for logs in runs.values()], max(counts))
        if layout.impl is not None:
            data[key] = key_data(data[key], layout.impl)
        for name, _ in layout.counters:
            of_runs = [logs.steps[name][key] if key in logs else None for logs in runs.values()]
            steps.setdefault(name, {})[key] = _side_by_side(of_runs, max(counts))
        if layout.lanes is not None or len(set(counts)) > 1:
            all_there = [np.ones((count, *(layout.lanes or ())), bool) for count in counts]
            mask[key] = _side_by_side(
                [logs.mask.get(key, there) for logs, there in zip(runs.values(), all_there, strict=True)], max(counts)
            )
        if any(key in logs.dropped for logs in runs.values()):
            of_runs = [logs.dropped[key][None] if key in logs.dropped else None for logs in runs.values()]
            dropped[key] = _side_by_side(of_runs, 1)[0]
    first = {key: each for logs in list(runs.values())[::-1] for key, each in logs.distributions.items()}
    of_all = {
        key: each
        for key, each in first.items()
        if all(logs.distributions.get(key) == each for logs in runs.values() if key in logs)
    }
    return logdict(data, steps, mask, dropped, of_all)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The properties of a key that runs must agree on. The batch axes are those of its mask, where a run has one."""

    dtype: str
    impl: str | None
    shape: tuple[int, ...]
    counters: tuple[tuple[str, str], ...]
    lanes: tuple[int, ...] | None

    def __str__(self) -> str:
        counters = ", ".join(f"{name} ({dtype})" for name, dtype in self.counters) or "none"
        keys = "" if self.impl is None else f" (data of {self.impl} keys)"
        lanes = "" if self.lanes is None else f" in batches of {list(self.lanes)}"
        return f"{self.dtype}{list(self.shape)}{keys}{lanes} with the counters {counters}"


def _layout(runs: Mapping[str, logdict], key: str) -> _Layout:
    first_run, first = "", None
    for run, logs in runs.items():
        if key not in logs:
            continue
        value = logs[key]
        counters = sorted((name, of[key].dtype.name) for name, of in logs.steps.items() if key in of)
        lanes = logs.mask[key].shape[1:] if key in logs.mask else None
        layout = _Layout(value.dtype.name, impl_of(value), value.shape[1:], tuple(counters), lanes)
        if first is None:
            first_run, first = run, layout
            continue
        if None in (first.lanes, layout.lanes):
            lanes = layout.lanes if first.lanes is None else first.lanes
            first, layout = (dataclasses.replace(each, lanes=lanes) for each in (first, layout))
        if layout != first:
            raise StructureError(
                f"Runs cannot be stacked: the key {key!r} is {first} in the run {first_run!r}, and {layout} in "
                f"{run!r}. Load them without stack=True, or keep what differs in other keys."
            )
    if first is None:
        raise KeyError(key)
    return first


def _side_by_side(arrays: Sequence[np.ndarray | None], count: int) -> np.ndarray:
    """Arrays side by side in one that is blank where they have no entry."""
    like = next(array for array in arrays if array is not None)
    blank = np.nan if dtypes.issubdtype(like.dtype, np.inexact) else 0
    lanes = np.full((count, len(arrays), *like.shape[1:]), blank, like.dtype)
    for place, array in enumerate(arrays):
        if array is not None:
            lanes[: len(array), place] = array
    return lanes
