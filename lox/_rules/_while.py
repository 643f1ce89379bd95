"""`while_loop`, which is also `fori_loop` with dynamic bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._handler import Handler, events_in, has_log, rule, under
from lox._leading_axes import where
from lox._rules._call import discharge, split_nodes, varied

while_p = jex.core.primitives.while_p


# while: (cond_consts, body_consts, carry) -> carry
#     becomes  (..., ((carry, predicate), state, index)) -> ((carry, predicate), state, index)
# Where the condition logs, the predicate of the next iteration is computed at the end of this one, so that this is
# collected as well. So is a predicate with axes: it belongs to a batched loop, in which finished batch elements stand
# still.
@rule(while_p)
def while_loop(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    cond_consts, body_consts, init = split_args(args, params)
    (again,) = _compat.out_avals(params["cond_jaxpr"])
    cond_jaxpr, body_jaxpr = varied(params["cond_jaxpr"], again), varied(params["body_jaxpr"], again)
    chosen = handler.while_loops([*events_in(cond_jaxpr), *events_in(body_jaxpr)])
    loops = None if isinstance(chosen, Handler) else chosen
    handler = chosen if isinstance(chosen, Handler) else handler.inside()
    condition = _compat.as_fun(cond_jaxpr)
    types = [_compat.varying_axes(value) for value in init]

    def typed(values: Sequence[Any]) -> list[Any]:
        return [_compat.unvary(value, axes) for value, axes in zip(values, types, strict=True)]

    def split(values: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The carry, and the predicate where it is carried."""
        return values[: len(types)], values[len(types) :]

    def vary(value: Any) -> Any:  # What is selected by a predicate that varies over shards varies as well.
        return _compat.vary(value, sorted(_compat.varying_axes(predicate)))

    def iterate(*args: Any) -> list[Any]:
        carry, carried = split(args)
        new = _compat.as_fun(body_jaxpr)(*body_consts, *typed(carry))
        if not carried:
            return list(new)
        (predicate,) = carried
        if predicate.shape:
            new = [where(predicate, vary(a), b) for a, b in zip(new, carry, strict=True)]
        (again,) = condition(*cond_consts, *typed(new))
        return [*new, again & predicate]

    def goes_on(carry: Any) -> Any:
        values, predicate = split(carry[0])
        return jnp.any(*predicate) if predicate else condition(*cond_consts, *typed(values))[0]

    start, before = list(init), handler.arrays() if handler.carries else ()
    if has_log(cond_jaxpr) or again.shape:
        (predicate,), before = under(handler, condition)(*cond_consts, *init)
        if predicate.shape:
            start = [vary(value) for value in start]
        start.append(predicate)
    if handler.carries:

        def carrying(carry: Any) -> Any:
            values, held = carry
            return under(handler.holding(held), iterate)(*values)

        outs, held = jax.lax.while_loop(goes_on, carrying, (start, before))
        return typed(split(outs)[0]), held
    if loops is None:
        (outs,) = jax.lax.while_loop(goes_on, lambda carry: (under(handler, iterate)(*carry[0])[0],), (start,))
        return typed(split(outs)[0]), before

    avals = [jax.typeof(value) for value in start]
    closed, captured = _compat.trace(iterate, avals, "lox")
    discharged, more, structure = discharge(handler, closed)
    captured = [*more, *captured]
    _, shapes = split_nodes(_compat.out_avals(discharged), structure)

    def folding(carry: Any) -> Any:
        values, state, index = carry
        values, nodes = split_nodes(_compat.as_fun(discharged)(*captured, *values), structure)
        state, _ = loops.step(state, index, nodes)
        return values, state, index + 1

    outs, state, trips = jax.lax.while_loop(goes_on, folding, (start, loops.start(shapes), jnp.int32(0)))
    return typed(split(outs)[0]), handler.join([*before, *loops.finish(state, (), trips)])


def split_args(args: Sequence[Any], params: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The constants of the condition, those of the body, and the carry."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return args[:first], args[first:second], args[second:]
