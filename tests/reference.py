"""What programs are expected to log: plain Python notes it down, without lox."""

from __future__ import annotations

import numpy as np

# What JAX makes of the types of Python and NumPy without 64 bits.
CANONICAL = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


class Journal:
    """Notes the events of a plain Python program as they happen.

    >>> journal = Journal()
    >>> for i in range(3):
    ...     _ = journal.log({"i": i}, step=10 * i)
    >>> journal.events, journal.steps
    ({'i': [0, 1, 2]}, {'step': {'i': [0, 10, 20]}})
    """

    def __init__(self):
        self.events = {}
        self.steps = {}

    def log(self, data, **steps):
        for key, value in data.items():
            self.events.setdefault(key, []).append(value)
            for name, step in steps.items():
                self.steps.setdefault(name, {}).setdefault(key, []).append(step)
        return data


def no_log(data, **options):
    """Stands for `lox.log` in a program whose log calls are deleted."""
    return data


def assert_array(found, expected, rtol=0.0):
    """Same shape, same dtype as JAX makes of the expected one, same values within `rtol`, NaN where NaN is expected."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype.name == CANONICAL.get(expected.dtype.name, expected.dtype.name)
    np.testing.assert_allclose(found, expected.astype(found.dtype), rtol=rtol, atol=rtol, equal_nan=True)


def assert_logs(logs, events, *, steps=None, mask=None, dropped=None, rtol=0.0):
    """The logs hold exactly these events, counters, masks and counts of dropped events, and nothing else."""
    assert sorted(logs) == sorted(events)
    for key, values in events.items():
        assert_array(logs[key], values, rtol)
    assert {name: sorted(counters) for name, counters in logs.steps.items()} == {
        name: sorted(counters) for name, counters in (steps or {}).items()
    }
    for name, counters in (steps or {}).items():
        for key, values in counters.items():
            assert_array(logs.steps[name][key], values, rtol)
    assert sorted(logs.mask) == sorted(mask or {})
    for key, happened in (mask or {}).items():
        assert_array(logs.mask[key], np.asarray(happened, bool))
    assert sorted(logs.dropped) == sorted(dropped or {})
    for key, count in (dropped or {}).items():
        assert_array(logs.dropped[key], count)


def lane(logs, key, index, axis=1):
    """The events of a key that happened in one lane of a batch, whose axis is `axis` of every array."""
    values = np.take(np.asarray(logs[key]), index, axis)
    if key not in logs.mask:
        return values
    return values[np.take(np.asarray(logs.mask[key]), index, axis)]


REDUCE = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "count": len,
}


def with_options(events, unify=True, interval=1, max_events=None, reduce=None, window=None):
    """The events of a key as `lox.spool` returns them with these options. An event is a pair of a value and a counter.

    Returns:
        The pairs that it keeps, and how many it drops.
    """
    kept = events[::interval]
    if reduce is not None:
        size = window or max(len(events), 1)
        parts = [events[first : first + size] for first in range(0, len(events), size)]
        ends = [part[0 if reduce == "first" else -1] for part in parts]
        kept = [(REDUCE[reduce]([x for x, _ in part]), step) for part, (_, step) in zip(parts, ends, strict=True)]
    bound = len(kept) if max_events is None else max_events
    return kept[:bound], len(kept[bound:])


def pairs_of(logs, key, element=(), step="step"):
    """The events of a key that happened in a batch element, as pairs of a value and a counter."""
    values, steps = np.asarray(logs[key]), np.asarray(logs.steps[step][key])
    there = (slice(None), *element)
    mask = np.asarray(logs.mask.get(key, np.ones(values.shape[: 1 + len(element)], bool)))[there]
    return [(value.item(), step.item()) for value, step in zip(values[there][mask], steps[there][mask], strict=True)]
