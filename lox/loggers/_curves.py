"""Events with batch axes as curves: one of all batch elements, or one of each."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from lox._bins import Histogram, Quantiles
from lox._distributions import QS, estimated, name_of
from lox._exceptions import LogDataError
from lox._host_values import PlainEvents, along
from lox._logdict import logdict
from lox.loggers._run import Run

BatchAs = Literal["mean", "each", "histogram"]

EVENT = ""
"""The name of the counter with the number of each event in the run, for curves that leave events out."""

MOST = 512
"""Largest number of batch elements of a key with curves of their own."""


def curves(
    run: Run, logs: logdict, key: str, batch_as: BatchAs, is_image: bool = False, with_histograms: bool = False
) -> Iterator[tuple[str, PlainEvents]]:
    """The curves of one key, by name.

    Args:
        run: The run.
        logs: Its logs.
        key: The key.
        batch_as: "mean", for one curve of the means over the batch elements in which the event happened, at the
            counters of the first of them; "each", for a curve of each batch element, called `"key/0"`, or `"key/0/1"`
            where there are two batch axes; "histogram", for the events as they are.
        is_image: Whether the values are images, which stay as they are.
        with_histograms: Whether histograms stay what they are, one of all elements, and of all batch elements unless
            each is apart. Without it, they become estimates of quantiles.

    Quantiles become a curve for each, called `"key/q0.5"`, or `"key/0/q0.5"`.

    Raises:
        LogDataError: There are too many batch elements for "each". A `TypeError`.
    """
    events = PlainEvents.of(logs, key, run.batch_ndim.get(key, 0))
    if is_image or events.distribution is None:
        yield from _of_batch(run, key, events, batch_as, is_image)
        return
    if 0 in events.batch:  # It happened in none.
        return
    number = run.seen.get(key, 0) + np.arange(len(events.values))
    if isinstance(events.distribution, Histogram) and batch_as != "each":
        of_batch = [(key, _of_all(events, events.counts()))]
    else:
        of_batch = [*_of_batch(run, key, events, batch_as, False)]
    for name, each in of_batch:
        if EVENT not in each.steps:
            each = dataclasses.replace(each, steps=each.steps | {EVENT: along(number, each.happened.shape)})
        if isinstance(each.distribution, Histogram):
            each = dataclasses.replace(each, values=each.counts())
            if with_histograms:
                yield name, each
            else:
                yield from _of_quantiles(run, logs, name, each, QS, estimated(each.distribution, each.values))
        elif isinstance(each.distribution, Quantiles):
            yield from _of_quantiles(run, logs, name, each, each.distribution.qs, each.values)


def _of_quantiles(
    run: Run, logs: logdict, name: str, events: PlainEvents, qs: Sequence[float], values: np.ndarray
) -> Iterator[tuple[str, PlainEvents]]:
    for place, q in enumerate(qs):
        curve = f"{name}/{name_of(q)}"
        while curve in logs or curve in run.seen:  # It is another key.
            curve += "_"
        yield curve, dataclasses.replace(events, values=values[..., place], distribution=None)


def _of_batch(
    run: Run, key: str, events: PlainEvents, batch_as: BatchAs, is_image: bool
) -> Iterator[tuple[str, PlainEvents]]:
    if batch_as == "each" and is_image:  # Its events are counted by the key, which may have another name.
        number = along(run.seen.get(key, 0) + np.arange(len(events.values)), events.happened.shape)
        yield _with_mark(key), dataclasses.replace(events, steps=events.steps | {EVENT: number})
    elif batch_as == "each":
        yield from _of_each(run, key, events)
    elif batch_as == "histogram" or is_image or 0 in events.batch:
        yield key, events
    else:
        yield key, _of_all(events, events.means())


def _of_all(events: PlainEvents, values: np.ndarray) -> PlainEvents:
    """The events with values of all batch elements, at the counters of the first of them."""
    steps = {name: events.counter(name) for name in events.steps}
    return dataclasses.replace(events, values=values, steps=steps, happened=np.ones(len(values), bool))


def _of_each(run: Run, key: str, events: PlainEvents) -> Iterator[tuple[str, PlainEvents]]:
    count = math.prod(events.batch)
    if count > MOST:
        raise LogDataError(
            f'{key!r} has {count:,} batch elements, and batch_as="each" draws a curve for {MOST} at most. With '
            'batch_as="mean" it is one curve, of their mean, and with "histogram" a histogram.'
        )
    name = _with_mark(key)
    for element in np.ndindex(events.batch):
        (there,) = np.nonzero(events.happened[:, *element])
        if len(there):
            steps = {counter: step[there, *element] for counter, step in events.steps.items()}
            yield (
                "/".join([name, *map(str, element)]),
                dataclasses.replace(
                    events,
                    values=events.values[there, *element],
                    steps=steps | {EVENT: run.seen.get(key, 0) + there},
                    happened=np.ones(len(there), bool),
                ),
            )


def _with_mark(key: str) -> str:
    """The key as no batch element is called, for each key another one.

    >>> _with_mark("layers"), _with_mark("layers/0"), _with_mark("layers/0_")
    ('layers', 'layers/0_', 'layers/0__')
    """
    return re.sub(r"(/[0-9]+_*)\Z", r"\1_", key)
