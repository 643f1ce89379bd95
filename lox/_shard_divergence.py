"""Branches and loops that the shards of a `shard_map` take apart, with a tap inside them.

A tap has the first shard send what is the same on all. It cannot know that only some of them come to it, since JAX
traces a branch without saying what it depends on. When the branch is lowered that is known.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax.extend.core import primitives

from lox import _compat
from lox._channel import Channel
from lox._deliver import channel_p
from lox._events import events
from lox._exceptions import UnsupportedPrimitiveError
from lox._logs_in import equations, jaxprs_in, logs_of


def _guard(lower: Callable[..., Any], what: str) -> Callable[..., Any]:
    def guarded(ctx: Any, *args: Any, **params: Any) -> Any:
        decides = params["cond_jaxpr"].out_avals[0] if "cond_jaxpr" in params else ctx.avals_in[0]
        apart = _compat.varying_axes(decides)
        for jaxpr in jaxprs_in(params) if apart else ():
            _check(jaxpr, apart, what)
        return lower(ctx, *args, **params)

    return guarded


def _check(jaxpr: Any, apart: frozenset[Any], what: str) -> None:
    # What a tap from outside holds was logged where all shards came, and it is the first one's to send.
    begins = any(eqn.primitive is channel_p for eqn in equations(jaxpr))
    for logs, to in logs_of(jaxpr):
        if to is None or apart.isdisjoint(to.first) or not (begins or isinstance(to.channel, Channel)):
            continue
        raise UnsupportedPrimitiveError(
            f"The log at {next(events(logs)).site} is the same on all shards of a shard_map, of which the first sends "
            f"it, and is in a {what} to which perhaps others come alone. Apply lox.tap, or the logger, around the "
            f"{what} rather than inside of it, or log what differs between shards."
        )


_compat.wrap_lowering(primitives.cond_p, functools.partial(_guard, what="cond"))
_compat.wrap_lowering(primitives.while_p, functools.partial(_guard, what="while_loop"))
