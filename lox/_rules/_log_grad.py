"""`lox.log_grad`, whose log happens in a backward pass that may run when the handler's own call is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from lox import _compat
from lox._effect import recording
from lox._events import Logs
from lox._handler import Filter, Handler, State, rule
from lox._log_grad import Backward, log_grad_p
from lox._trace import under


@dataclasses.dataclass(frozen=True)
class Handled(Backward):
    """Logs a cotangent under a filter, whose state comes first among the values that are carried."""

    backward: Backward
    handler: Filter
    structure: Any

    def __call__(self, cotangent: Any, *residuals: Any) -> None:
        count = self.structure.num_leaves
        with recording(True):
            state = jax.tree.unflatten(self.structure, residuals[:count])
            under(self.handler, self.backward)(state, cotangent, *residuals[count:])


_compat.cache_weakly(Handled)


@rule(log_grad_p)
def log_grad(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    backward = handler.backward(state)
    if backward is None:
        return primitive.bind(*args, **params), state, ()
    value, *residuals = args
    leaves, structure = jax.tree.flatten(backward[1])
    params = params | {"backward": Handled(params["backward"], backward[0], structure)}
    return primitive.bind(value, *leaves, *residuals, **params), state, ()
