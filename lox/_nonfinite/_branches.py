"""The branches of a `cond` that `vmap` runs for all batch elements, also for those that do not take them.

What such a branch computes for an element that does not take it is dropped by a selection. A name scope marks what runs
in one, which all transformations of JAX keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat

marking = jax.make_user_context(False)
"""True while such branches are marked. It is in the keys of JAX's caches."""

_SCOPE = "lox_branch_of_a_batch"


def runs_for_all(stack: Any) -> bool:
    """Tell whether what has this name stack is in a branch that runs for all batch elements."""
    return any(each.name == _SCOPE for each in stack.stack)


def _marked(batch: Callable[..., Any]) -> Callable[..., Any]:
    def batching(axis_data: Any, args: Sequence[Any], dims: Sequence[Any], **params: Any) -> Any:
        if not marking.value or dims[0] is None or "branches_platforms" in params:
            return batch(axis_data, args, dims, **params)
        with jax.named_scope(_SCOPE):
            return batch(axis_data, args, dims, **params)

    return batching


_compat.wrap_batching(jex.core.primitives.cond_p, _marked)
