"""The options of an audit: what people give is checked before anything is traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lox._arguments import describe
from lox._audit._capture import name_of
from lox._exceptions import LogValueError

Axes = Mapping[str, Sequence[str | None]]
Call = tuple[Any, ...]


def read_axes(axes: Axes | None) -> Axes:
    """What the axes of arguments mean, by name.

    Raises:
        LogValueError: It is not a mapping from names to sequences of strings and None.
    """
    expected = 'a mapping from names of arguments to labels, as in {"obs": ("time", "batch", None)}'
    if axes is None:
        return {}
    if not isinstance(axes, Mapping):
        raise LogValueError(f"axes= takes {expected}, got {describe(axes)}.")
    for name, labels in axes.items():
        if not isinstance(name, str):
            raise LogValueError(f"axes= takes {expected}, got {describe(name)} in the place of a name.")
        if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence):
            raise LogValueError(
                f'axes= takes a label for each axis of {name!r}, as in ("time", "batch", None), got {describe(labels)}.'
            )
        for label in labels:
            if label is not None and not isinstance(label, str):
                raise LogValueError(f"axes= takes strings and None as labels of {name!r}, got {describe(label)}.")
    return axes


def read_calls(fun: Callable[..., Any], calls: Iterable[Call]) -> tuple[Call, ...]:
    """The arguments of further calls of a function.

    Raises:
        LogValueError: It is no iterable of tuples, or the function does not take so many arguments as one has.
    """
    expected = "tuples of positional arguments, as in calls=[(x, y), (x, z)]"
    if isinstance(calls, (str, bytes, Mapping)) or not isinstance(calls, Iterable):
        raise LogValueError(f"calls= takes {expected}, got {describe(calls)}.")
    found = []
    for place, each in enumerate(calls):
        if not isinstance(each, (tuple, list)):
            raise LogValueError(f"calls= takes {expected}, got {describe(each)} as calls[{place}].")
        check_that_it_takes(fun, tuple(each), {}, f"calls[{place}] has")
        found.append(tuple(each))
    return tuple(found)


def check_that_it_takes(fun: Callable[..., Any], args: Call, kwargs: Mapping[str, Any], what: str) -> None:
    """Raises an error that begins with `what` if a function does not take these arguments, as far as it tells.

    Raises:
        LogValueError: It does not.
    """
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):  # Of a builtin.
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        count = len(args) + len(kwargs)
        raise LogValueError(
            f"{what} {count} argument{'' if count == 1 else 's'}, and {name_of(fun)}{signature} does not take "
            f"{'it' if count == 1 else 'them'}: {error}."
        ) from None
