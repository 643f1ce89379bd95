"""The values that a function returns, as far as they are of its program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._logdict import logdict


def values_of(outs: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of what a function returns, each with a mask of what its program has computed.

    The mask has the leading axes of the leaf; it is None where the program has computed all. A logdict has NaN in place
    of events that did not happen.
    """
    for part in jax.tree.leaves(outs, is_leaf=lambda part: isinstance(part, logdict)):
        if not isinstance(part, logdict):
            yield part, None
            continue
        for timeline in part._timelines:
            for value in (*timeline.values.values(), *timeline.steps.values()):
                yield value, None if timeline.mask is None else _mask_of(timeline.mask, value)


def _mask_of(mask: Any, value: Any) -> Any:
    """The mask of events for one of their arrays: a counter may be shared by the elements of the mask."""
    extra = tuple(range(np.ndim(value), np.ndim(mask)))
    return jnp.any(mask, axis=extra) if extra else mask
