"""`lox.log`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from lox._ambient import in_context
from lox._arguments import read_event
from lox._effect import emit, recording

Data = TypeVar("Data")


def log(data: Data, *, tags: str | Iterable[str] = (), prefix: str = "", where: Any = None, **steps: Any) -> Data:
    """Log `data` for the handler in scope, and return it unchanged.

    A handler (`lox.spool`, `lox.keep`, ...) decides what to do with the log. Without one, nothing happens: no
    operation runs or is traced, and the arguments are not looked at.

    Args:
        data: A mapping from key to a pytree of array-likes of any shape and dtype. Nested mappings and pytrees
            flatten to keys such as ``"grads/w"`` and ``"layers/0"``.
        tags: A name or names by which handlers can select this log.
        prefix: Put before every key.
        where: A boolean: the event happens only where it is true. With shape `()` it is one yes or no. Its shape may
            also be that of the first axes of every value: these become batch axes, as those of a `vmap` are, and each
            element has an event or none. Use it in place of a `cond` around the log. `lox.spool` returns such events
            with a mask, whatever the value is and without `unify=True`; a tap is called where any element is true.
        **steps: Named counters of the event, such as ``step=i, episode=e``: scalars, or of the shape of `where`.
            They cannot be named `tag`, `argnames`, `every`, `interval`, `reduce`, `mask` or `when`, which are taken for
            misspelt keywords.

    Returns:
        `data`.

    Raises:
        LogDataError: `data`, a key, a leaf, a tag or `where` has the wrong type. A `TypeError`.
        LogValueError: Two keys are equal after flattening, a value does not begin with the axes of `where`, or a
            counter has another shape than described or one of these names. A `ValueError`.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> @lox.spool
    ... def f(x):
    ...     lox.log({"x": x, "stats": {"max": x.max()}}, step=3)
    ...     return 2 * x
    >>> _, logs = f(jnp.arange(3.0))
    >>> sorted(logs), logs["x"].shape
    (['stats/max', 'x'], (1, 3))

    The returns of three environments, of those that are done:

    >>> def report(returns, done):
    ...     lox.log({"return": returns}, where=done)
    >>> _, logs = lox.spool(report)(jnp.array([5.0, 6.0, 7.0]), jnp.array([True, False, True]))
    >>> logs["return"].tolist(), logs.valid("return").tolist()
    ([[5.0, nan, 7.0]], [5.0, 7.0])
    """
    if recording.value:
        event = in_context(read_event("lox.log", data, tags, prefix, where, steps))
        if event.values:
            emit((event,))
    return data
