"""`lox.log`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from lox._arguments import read_event
from lox._effect import emit, recording

Data = TypeVar("Data")


def log(data: Data, *, tags: str | Iterable[str] = (), prefix: str = "", **steps: Any) -> Data:
    """Logs `data` here, for the handler in scope, and returns it unchanged.

    A handler (`lox.spool`, `lox.keep`, ...) decides what becomes of the log. Without one, nothing happens: no
    operation runs or is traced, and the arguments are not looked at.

    Args:
        data: A mapping from key to a pytree of array-likes of any shape and dtype. Nested mappings and pytrees
            flatten to keys such as ``"grads/w"`` and ``"layers/0"``.
        tags: A name or names by which handlers can select this log.
        prefix: Put before every key.
        **steps: Named scalar counters of the event, such as ``step=i, episode=e``.

    Returns:
        `data`.

    Raises:
        LogDataError: `data`, a key, a leaf or a tag has the wrong type. A `TypeError`.
        LogValueError: Two keys are equal after flattening, or a step is not a scalar. A `ValueError`.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> @lox.spool
    ... def f(x):
    ...     lox.log({"x": x, "stats": {"max": x.max()}}, step=3)
    ...     return 2 * x
    >>> _, logs = f(jnp.arange(3.0))
    >>> sorted(logs), logs["x"].shape
    (['stats/max', 'x'], (1, 3))
    """
    if recording.value:
        event = read_event("lox.log", data, tags, prefix, steps)
        if event.values:
            emit((event,))
    return data
