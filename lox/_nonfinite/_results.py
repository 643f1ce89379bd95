"""The values that a function returns, as far as they are of its program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._logdict import logdict


def values_of(outs: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of what a function returns, each with a mask of the elements that its program has computed.

    The mask is None where these are all. A logdict has NaN in place of events that did not happen.
    """
    for part in jax.tree.leaves(outs, is_leaf=_is_logs):
        for timeline in part._timelines if _is_logs(part) else ():
            for value in (*timeline.values.values(), *timeline.steps.values()):
                yield value, None if timeline.mask is None else _mask_of(timeline.mask, value)
        if not _is_logs(part):
            yield part, None


def _is_logs(part: Any) -> bool:
    return isinstance(part, logdict)


def _mask_of(mask: Any, value: Any) -> Any:
    """The mask of the elements of a value by that of its events, which may be of parts of them."""
    extra = tuple(range(np.ndim(value), np.ndim(mask)))
    mask = jnp.any(mask, axis=extra) if extra else mask
    return jnp.broadcast_to(mask.reshape(mask.shape + (1,) * (np.ndim(value) - mask.ndim)), np.shape(value))
