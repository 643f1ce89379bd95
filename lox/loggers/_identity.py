"""The identity of a run: its name, or its key and its config, as the host computes it from their values."""

from __future__ import annotations

import decimal
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox._host_values import shortest
from lox._storage import is_of_device

DIGITS = 6
"""Number of hexadecimal digits of the identity in a stored name, unless two names are then equal."""
EXACT = decimal.Context(decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
"""The precision of decimals, whatever the program has set."""
LONGEST = 80
"""Largest number of characters in a stored name, without these digits."""
LONGEST_TEXT = 16
"""Largest number of characters of a text of the config in a stored name."""


def identity_of_title(title: str) -> str:
    """The identity of a run that was given a name, as 32 hexadecimal digits."""
    return _digest(["name", title])


def identity_of(words: Sequence[int], config: Mapping[str, Any]) -> str:
    """The identity of a run by its key and config, as 32 hexadecimal digits.

    Equal numbers are equal whatever their dtypes: a number counts as the shortest decimal that its own dtype tells
    from others. Arrays count by dtype, shape and bytes.

    Args:
        words: The data of the run's PRNG key.
        config: Numbers, arrays of NumPy and text, by name.

    >>> identity_of([0, 7], {"rate": np.float32(0.1)}) == identity_of([0, 7], {"rate": 0.1})
    True
    """
    return _digest([[*words], sorted((name, _text(value)) for name, value in config.items())])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _text(value: Any) -> str:
    """A value of a config as text: that of other kinds and other values differs."""
    if isinstance(value, str):
        return f"text {value}"
    if value is None:
        return "none"
    if isinstance(value, int):  # One that NumPy may have no dtype for.
        return f"number {_decimal(value)}"
    array = np.asarray(value)
    if array.ndim:
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return f"array {array.dtype.name} {array.shape} {digest}"
    if array.dtype == bool:
        return f"bool {array.item()}"
    parts = (array.real, array.imag) if array.dtype.kind == "c" else (array,)
    return " ".join(["number", *(str(_decimal(part)) for part in parts)])


def _decimal(number: Any) -> decimal.Decimal:
    """A number as the shortest decimal that its own dtype tells from others."""
    found = decimal.Decimal(number if isinstance(number, int) else repr(shortest(number)))
    if found == 0:
        return decimal.Decimal()  # -0.0 is 0.
    return found.normalize(EXACT) if found.is_finite() else found


def stored_names(words: Sequence[int], config: Mapping[str, Any], name: str | None, identity: str) -> Iterator[str]:
    """Names by which a run may be stored, the best first: a longer one is for a run that would share it with another.

    >>> next(stored_names([0, 7], {"model/width": 8, "rate": np.float32(0.1)}, None, "0123456789abcdef" * 2))
    'model.width=8,rate=0.1,seed=7-012345'
    """
    if name is not None:
        readable = _safe(name, LONGEST)
        # Files of lox beside the runs end so.
        if readable == name and not name.lower().endswith(".json") and not is_of_device(name):
            yield name
    else:
        seed = seed_of(words)
        readable = ",".join([*scalars_of(config, LONGEST - len(seed)), seed])
    for digits in range(DIGITS, len(identity) + 1):
        yield f"{readable}-{identity[:digits]}"


def seed_of(words: Sequence[int]) -> str:
    """The seed of a PRNG key, or the first word of one that was not made from a seed.

    >>> seed_of([0, 7]), seed_of([0xcb7b94cb, 5])
    ('seed=7', 'key=cb7b94cb')
    """
    half = len(words) // 2
    if half > 1 and words[:half] == words[half:]:  # The implementation rbg has it twice.
        words = words[:half]
    return f"key={words[0]:08x}" if any(words[:-1]) else f"seed={words[-1]}"


def scalars_of(config: Mapping[str, Any], room: int) -> Iterator[str]:
    """The scalars of a config, as many as there is room for, in characters.

    >>> list(scalars_of({"model/width": 8, "rate": np.float32(0.1), "shape": np.ones(3)}, 80))
    ['model.width=8', 'rate=0.1']
    """
    for name, value in config.items():
        scalar = _scalar(value)
        part = f"{_safe(name.replace('/', '.'), LONGEST)}={scalar}"
        if scalar and len(part) < room:
            room -= len(part) + 1
            yield part


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        is_dotted = re.fullmatch(r"[\w.]+", value) and len(value) > LONGEST_TEXT
        return _safe(value.rpartition(".")[2] if is_dotted else value, LONGEST_TEXT)
    if value is None or np.ndim(value):
        return ""
    if np.asarray(value).dtype.kind in "bc":
        return _safe(str(np.asarray(value)), LONGEST_TEXT)
    number = _decimal(value)
    whole = number == number.to_integral_value() and abs(number) < 10**12
    return str(int(number)) if whole else f"{float(number):.4g}"


def _safe(text: str, longest: int) -> str:
    """Text that every file system and service takes in a name."""
    return re.sub(r"^\.|[^\w.+-]|[^\x00-\x7f]", "_", text)[:longest]
