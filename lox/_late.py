"""Primitives of other libraries that are Python functions, which JAX traces when it compiles them.

The program in which such a primitive stands does not show what happens in it, and when it is compiled the handler's own
call may be over. So they are traced beforehand, to look for logs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from lox import _compat


@functools.cache
def is_late(primitive: Any) -> bool:
    """Tell whether a primitive may be a Python function: one that neither JAX nor lox evaluates."""
    evaluate = primitive.impl
    while isinstance(evaluate, functools.partial):
        evaluate = evaluate.func
    return str(getattr(evaluate, "__module__", "jax")).partition(".")[0] not in ("jax", "jaxlib", "lox")


def late_jaxpr(primitive: Any, avals: Sequence[Any], params: dict[str, Any]) -> Any:
    """The jaxpr that a primitive stands for, or None where it is not a function that JAX can trace."""

    def evaluate(*args: Any) -> list[Any]:
        outs = primitive.impl(*args, **params)
        return list(outs) if primitive.multiple_results else [outs]

    try:
        return _compat.trace(evaluate, avals, "lox")[0]
    except Exception:  # noqa: BLE001  (a function of NumPy's arrays, for one, which does not log either)
        return None
