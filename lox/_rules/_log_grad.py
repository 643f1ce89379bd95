"""`lox.log_grad`, whose log happens in a backward pass that may run when the handler's own call is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from lox import _compat
from lox._effect import recording
from lox._handler import Handler, rule, under
from lox._log_grad import Backward, log_grad_p


@dataclasses.dataclass(frozen=True)
class Handled(Backward):
    """What becomes of a cotangent under a handler, the values of which come first among those that are carried."""

    backward: Backward
    handler: Handler

    def __call__(self, cotangent: Any, *residuals: Any) -> None:
        held = len(self.handler.arrays())
        with recording(True):
            log = under(self.handler.holding(residuals[:held]), self.backward)
            log(cotangent, *residuals[held:])


_compat.cache_weakly(Handled)


@rule(log_grad_p)
def log_grad(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    backward = handler.backward()
    if backward is None:
        return primitive.bind(*args, **params), handler.join(())
    value, *residuals = args
    held = backward.arrays()
    alike = backward.holding([jax.typeof(array) for array in held])
    params = params | {"backward": Handled(params["backward"], alike)}
    return primitive.bind(value, *held, *residuals, **params), handler.join(())
