"""Reductions with parameters, for `reduce=` of `lox.spool`, `lox.tap` and `lox.logdict.reduce`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lox._exceptions import LogValueError
from lox._reductions import Ewma, Reducer

__all__ = ["ewma"]


def ewma(decay: float) -> Reducer[Any]:
    """The exponentially weighted moving average after the last event.

    It starts at the first event; each further event `x` makes `decay * average + (1 - decay) * x` of it, in each
    element of the value and of the batch. Its derivative is the true one. Its dtype is that of a mean.

    Args:
        decay: The weight of what was before, from 0 to less than 1. The average is mostly that of the last
            `1 / (1 - decay)` events.

    Raises:
        lox.LogValueError: It is not such a number.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(xs):
    ...     return jax.lax.map(lambda x: lox.log({"loss": x})["loss"], xs)
    >>> _, logs = lox.spool(f, reduce=lox.reductions.ewma(0.5))(jnp.array([8.0, 0.0, 4.0]))
    >>> logs["loss"]
    Array([4.], dtype=float32)
    """
    try:
        number = float(decay)
    except (TypeError, ValueError):
        number = np.nan
    if isinstance(decay, bool) or not 0 <= number < 1 or np.float32(number) == 1:
        raise LogValueError(f"The decay of lox.reductions.ewma is a number from 0 to less than 1, got {decay!r}.")
    return Ewma(number)
