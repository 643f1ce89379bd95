"""Keys that are read beyond the end of those that a split made."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._randomness._key_arrays import is_key, key_shape
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

BEYOND = Kind(
    "LOX708",
    "error",
    "More random keys are taken than were split",
    "Split into as many keys as are used: keys = jax.random.split(key, 5) has keys[0] to keys[4].",
    "Each key that is taken of several is one of them.",
    "Constant places in arrays of keys were compared with their sizes.",
)


def beyond(audited: Audited) -> Iterator[Finding | Held]:
    """LOX708: the place of a key is not in the array of keys, and JAX takes the nearest one."""
    for step, location in audited.of("dynamic_slice"):
        if not is_users(location.file):
            continue
        for axis, (keys, start, width) in enumerate(_read(step)):
            size, place = keys.shape[axis], start.fact.range
            if place.low > size - width or place.high < 0:
                given = place.low if place.low > 0 else place.high - size
                nearest = size - width if given > 0 else 0
                yield BEYOND.at(
                    location,
                    f"Of {size} keys, this takes the one at [{given:.0f}], which is none of them: JAX takes the one "
                    f"at [{nearest}].",
                )
            elif place.number is not None:
                yield BEYOND.fine(location)


def _read(step: Step) -> list[tuple[Value, Value, int]]:
    """The array of keys that a step reads from, where it begins, and how wide: for each axis of the keys."""
    keys, *starts = step.inputs
    if not (is_key(keys.aval) or _is_data(keys)):
        return []
    widths = step.equation.params["slice_sizes"]
    return [(keys, start, width) for start, width, _ in zip(starts, widths, key_shape(keys.aval), strict=False)]


def _is_data(value: Value) -> bool:
    """Whether a value is the data of keys that were split just before."""
    return value.maker is not None and value.maker.equation.primitive in primitives("random_unwrap")


KINDS = (BEYOND,)
CHECKS = (beyond,)
