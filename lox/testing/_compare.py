"""The first difference between what was logged and what should have been."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._arguments import untyped
from lox._logdict import logdict

Lane = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Happened:
    """One event in one batch element.

    Attributes:
        value: What was logged.
        steps: The counters, by name.
    """

    value: Any
    steps: dict[str, Any]


Events = Mapping[str, Mapping[Lane, Sequence[Happened]]]
"""By key and batch element, the events in the order in which they happen."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """The results and logs of a function.

    Attributes:
        out: The results.
        events: By key and batch element, the events in the order in which they happen. A batch element is named by
            its number in each batch, outermost first.
    """

    out: Any
    events: Events


def events(logs: logdict, depths: Mapping[str, int]) -> dict[str, dict[Lane, list[Happened]]]:
    """Return the events that happened, by key and batch element.

    Args:
        logs: The logs.
        depths: The number of batch axes, by key.

    Returns:
        For each key and batch element, the events that happened, in order.
    """
    found: dict[str, dict[Lane, list[Happened]]] = {}
    for key, value in logs.items():
        steps = {name: np.asarray(of[key]) for name, of in logs.steps.items() if key in of}
        value = on_host(value)
        lanes = value.shape[1 : 1 + depths[key]]
        mask = np.asarray(logs.mask[key]) if key in logs.mask else np.ones((len(value), *lanes))
        found[key] = {
            lane: [
                Happened(value[(at, *lane)], {name: step[(at, *lane)].item() for name, step in steps.items()})
                for at in range(len(value))
                if mask[(at, *lane)]
            ]
            for lane in itertools.product(*map(range, lanes))
        }
    return found


def on_host(value: Any) -> np.ndarray:
    """An array of NumPy; of typed PRNG keys, their data."""
    return np.asarray(untyped(value) if isinstance(value, jax.Array) else value)


def difference(expected: Events, got: Events, tolerance: float) -> str | None:
    """Return the first difference: the key, the event, the batch element, the expected value and the actual one.

    Args:
        expected: The expected events.
        got: The actual ones.
        tolerance: The relative and absolute difference that rounding may make.

    Returns:
        A sentence, or None if they are the same.
    """
    return next(_differences(expected, got, tolerance), None)


def _differences(expected: Events, got: Events, tolerance: float) -> Iterator[str]:
    for key in sorted({*expected, *got}):
        theirs, ours = expected.get(key, {}), got.get(key, {})
        for lane in sorted({*theirs, *ours}):
            where = f"key {key!r}" + (f", batch element {lane}" if lane else "")
            want, have = theirs.get(lane, []), ours.get(lane, [])
            for place, (one, other) in enumerate(zip(want, have, strict=False)):
                if one.steps != other.steps:
                    yield f"{where}, event {place}: expected the counters {one.steps}, got {other.steps}"
                if not same(one.value, other.value, tolerance):
                    yield f"{where}, event {place}: expected {one.value}, got {other.value}"
            if len(want) != len(have):
                yield f"{where}: expected {len(want)} events, got {len(have)}"


def same(expected: Any, got: Any, tolerance: float) -> bool:
    """Compare two arrays: they are the same if their shapes are, and their values within rounding.

    Args:
        expected: The expected array.
        got: The actual one.
        tolerance: The relative and absolute difference that rounding may make.

    Returns:
        True if shapes are equal and values are within `tolerance`. NaN is equal to NaN.
    """
    expected, got = on_host(expected), on_host(got)
    if expected.shape != got.shape:
        return False
    if not jnp.issubdtype(got.dtype, jnp.inexact):
        return bool(np.array_equal(expected, got))
    rounding = max(tolerance, 8 * float(jnp.finfo(got.dtype).eps))
    wide = np.complex128 if np.iscomplexobj(got) else np.float64
    return bool(np.allclose(expected.astype(wide), got.astype(wide), rounding, rounding, equal_nan=True))
