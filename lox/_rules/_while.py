"""`while_loop`, which is also `fori_loop` with dynamic bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._handler import Handler, events_in, has_log, rule, under
from lox._lanes import where
from lox._rules._call import discharge, split_nodes, varied

while_p = jex.core.primitives.while_p


# while: (cond_consts, body_consts, carry) -> carry
#     becomes  (..., (carry, predicate, state, index)) -> (carry, predicate, state, index)
# The predicate of the next iteration is computed at the end of this one, so that what the condition logs is
# collected as well. A predicate with axes belongs to a batched loop, in which finished lanes stand still.
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
    condition = under(handler, _compat.as_fun(cond_jaxpr))
    cond_logs = has_log(cond_jaxpr)

    types = [_compat.varying_axes(value) for value in init]

    def typed(values: Sequence[Any]) -> list[Any]:
        return [_compat.unvary(value, axes) for value, axes in zip(values, types, strict=True)]

    def iterate(*args: Any) -> list[Any]:
        carry, predicate = args[:-1], args[-1]
        new = _compat.as_fun(body_jaxpr)(*body_consts, *typed(carry))
        if predicate.shape:
            new = [where(predicate, vary(a), b) for a, b in zip(new, carry, strict=True)]
        (again,) = _compat.as_fun(cond_jaxpr)(*cond_consts, *typed(new))
        return [*new, again & predicate]

    if loops is None and not handler.carries and not cond_logs and not _compat.out_avals(cond_jaxpr)[0].shape:
        body = under(handler, _compat.as_fun(body_jaxpr))
        outs = jax.lax.while_loop(
            lambda carry: _compat.as_fun(cond_jaxpr)(*cond_consts, *carry)[0],
            lambda carry: list(body(*body_consts, *carry)[0]),
            list(init),
        )
        return list(outs), ()

    (predicate,), before = condition(*cond_consts, *init)

    def vary(value: Any) -> Any:  # What is selected by a predicate that varies over shards varies as well.
        return _compat.vary(value, sorted(_compat.varying_axes(predicate)))

    if predicate.shape:
        init = [vary(value) for value in init]
    if handler.carries:

        def carrying(carry: Any) -> Any:
            values, predicate, held = carry
            (*values, predicate), held = under(handler.holding(held), iterate)(*values, predicate)
            return values, predicate, held

        outs, _, held = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), carrying, (list(init), predicate, before))
        return typed(outs), held
    if loops is None:

        def plain(carry: Any) -> Any:
            *values, predicate = under(handler, iterate)(*carry[0], carry[1])[0]
            return values, predicate

        outs, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), plain, (list(init), predicate))
        return typed(outs), before

    avals = [jax.typeof(value) for value in (*init, predicate)]
    closed, captured = _compat.trace(iterate, avals, "lox")
    discharged, more, structure = discharge(handler, closed)
    captured = [*more, *captured]
    shapes = jax.tree.unflatten(structure, _compat.out_avals(discharged)[len(avals) :])

    def folding(carry: Any) -> Any:
        values, predicate, state, index = carry
        outs = _compat.as_fun(discharged)(*captured, *values, predicate)
        (*values, again), nodes = split_nodes(outs, structure)
        state, _ = loops.step(state, index, nodes)
        return values, again, state, index + 1

    start = (list(init), predicate, loops.start(shapes), jnp.int32(0))
    outs, _, state, trips = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), folding, start)
    return typed(outs), handler.join([*before, *loops.finish(state, (), trips)])


def split_args(args: Sequence[Any], params: dict[str, Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """The constants of the condition, those of the body, and the carry."""
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    return args[:first], args[first:second], args[second:]
