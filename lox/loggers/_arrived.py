"""Logs that have arrived on the host, and the runs that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from lox._deliver import DEVICES, INNER, LABEL, SHARDED
from lox._exceptions import LogDataError
from lox._logdict import distributions_of, logdict
from lox.loggers._state import number_of

SEVERAL_OF_ONE = (
    "Two batch elements log to one run. Give each a key or a config of its own: "
    "vmap(lambda key, x: logger.tap(f, logger.init(key))(x))(jax.random.split(key, n), xs)."
)


class Arrived(NamedTuple):
    """The origin of logs.

    Attributes:
        devices: The number of devices of their program; 0 when they come from none.
        axis: The axis of shards; 0 when there is none.
        shard: The number of the shard, where each has runs of its own.
        differs: Whether other shards may have other logs.
    """

    devices: int = 0
    axis: int = 0
    shard: int | None = None
    differs: bool = False


def arrived(logs: logdict) -> Arrived:
    """Return the origin of logs with labels."""
    devices, place = _label(logs, DEVICES), _label(logs, SHARDED)
    if place is None:
        return Arrived(devices or 0)
    return Arrived(devices or 0, max(place, 0), None if place > 0 else -1 - place, True)


def _label(logs: logdict, name: str) -> int | None:
    """The label of this name, if there is one, which is the same for all logs."""
    return next((int(label.flat[0]) for label in logs.steps.get(name, {}).values()), None)


def by_group(logs: logdict) -> Iterator[tuple[int, logdict]]:
    """Takes logs with labels apart into those of each group, that is, of each run.

    An event of a run has no axes of batches around its logger, and a mask that says whether it happened in the batch
    element. The label of its batch axes inside stays among its counters.

    Raises:
        LogDataError: Two batch elements are of one run. A `TypeError`.
    """
    names = sorted(name for name in logs.steps if name.startswith(LABEL) and name[len(LABEL) :].isdigit())
    counters = {name: of for name, of in logs.steps.items() if name == INNER or not name.startswith(LABEL)}
    words_of, made = logs.steps[names[0]], distributions_of(logs)
    if not logs.mask and all(words_of[key].ndim == 1 for key in logs.data):  # There is one run, and all happened.
        key = next(iter(logs.data))
        run = number_of([logs.steps[name][key][0].item() for name in names])
        yield run, logdict(logs.data, counters, distributions=made)
        return
    axis = arrived(logs).axis
    runs: dict[int, tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]] = {}
    for key, value in logs.items():
        words = np.stack([logs.steps[name][key] for name in names], -1)  # (events, *batch, words)
        found = set()
        for element in np.ndindex(words.shape[1:-1]):
            run = number_of(words[(0, *element)].tolist())
            if run in found:
                raise LogDataError(SEVERAL_OF_ONE)
            found.add(run)
            here: tuple[Any, ...] = (slice(None), *element)
            if axis:
                here = (*here[:axis], slice(None), *here[axis:])
            of_value, of_steps = value[here], {name: of[key][here] for name, of in counters.items() if key in of}
            data, steps, mask = runs.setdefault(run, ({}, {}, {}))
            if key in logs.mask:
                happened = logs.mask[key][here]
                if not happened.any():
                    continue
                mask[key] = happened
            data[key] = of_value
            for name, step in of_steps.items():
                steps.setdefault(name, {})[key] = step
    for run, (data, steps, mask) in runs.items():
        if data:
            yield run, logdict(data, steps, mask, distributions={key: made[key] for key in data if key in made})
