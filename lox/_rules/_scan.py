"""`scan`, which is also `lax.map` and `fori_loop` with static bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._events import StackedEvents
from lox._handler import Chunks, Handler, rule, under
from lox._rules._call import discharge, split_nodes

scan_p = jex.core.primitives.scan_p


@rule(scan_p)
def scan(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    num_consts, num_carry = _compat.scan_counts(params)
    operands = args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]
    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    return run_scan(handler, params["jaxpr"], *operands, **options)


# scan: (consts, carry, xs) -> (carry, ys)  becomes  (consts, carry, (xs, indices)) -> (carry, (ys, nodes))
#       or, when the handler collects into a carry or is one,  (consts, (carry, state), xs) -> ((carry, state), ys)
def run_scan(
    handler: Handler, jaxpr: Any, consts: Sequence[Any], init: Sequence[Any], xs: Sequence[Any], **options: Any
) -> tuple[list[Any], tuple[Any, ...]]:
    """Runs a scan under a handler; `options` are the length, direction and unrolling of `jax.lax.scan`."""
    num_carry, length = len(init), options["length"]
    if xs:  # They tell the length, also one that is symbolic, which cannot be passed.
        options = options | {"length": None}
    loops = handler.scan_loops(length)
    if loops is not None:
        handler = handler.inside()
        discharged, _, structure = discharge(handler, jaxpr)
        _, shapes = split_nodes(_compat.out_avals(discharged), structure)
        if shapes:

            def folding(carry: Any, x: Any) -> Any:
                values, state, index = carry
                discharged, captured, structure = discharge(loops.within(handler, state), jaxpr)
                outs = _compat.as_fun(discharged)(*captured, *consts, *values, *x)
                outs, nodes = split_nodes(outs, structure)
                state, stacked = loops.step(state, index, nodes)
                return (outs[:num_carry], state, index + 1), (outs[num_carry:], stacked)

            start = (list(init), loops.start(shapes), jnp.int32(0))
            (carry, state, _), (ys, stacked) = jax.lax.scan(folding, start, list(xs), **options)
            return [*carry, *ys], loops.finish(state, _in_order(stacked, options), length)

    chunks = handler.chunks(jaxpr, length)
    if chunks is not None:
        chunks = chunks.begin()
        return _in_chunks(chunks, jaxpr, consts, init, xs, **options | {"length": length}), chunks.arrays()

    if handler.carries:

        def carrying(carry: Any, x: Any) -> Any:
            values, held = carry
            outs, held = under(handler.holding(held), _compat.as_fun(jaxpr))(*consts, *values, *x)
            return (list(outs[:num_carry]), held), list(outs[num_carry:])

        (carry, held), ys = jax.lax.scan(carrying, (list(init), handler.arrays()), list(xs), **options)
        return [*carry, *ys], held

    indices = handler.iterations(length)

    def body(carry: Any, x: Any) -> Any:
        values, index = x
        inner = handler if index is None else handler.iteration(index)
        outs, nodes = under(inner, _compat.as_fun(jaxpr))(*consts, *carry, *values)
        return list(outs[:num_carry]), (list(outs[num_carry:]), nodes)

    carry, (ys, nodes) = jax.lax.scan(body, list(init), (list(xs), indices), **options)
    nodes = _in_order(nodes, options)
    return [*carry, *ys], (StackedEvents(nodes, {}, length),) if nodes else ()


# A scan becomes a scan of scans, each of which stacks the logs of a chunk, and a scan of the iterations left over.
def _in_chunks(
    chunks: Chunks, jaxpr: Any, consts: Sequence[Any], init: Sequence[Any], xs: Sequence[Any], **options: Any
) -> list[Any]:
    def run(carry: Any, x: Any, length: int) -> tuple[list[Any], list[Any]]:
        each = options | {"length": length, "unroll": min(options["unroll"], length)}
        outs, nodes = run_scan(chunks.collect, jaxpr, consts, carry, x, **each)
        chunks.take(nodes)
        return outs[: len(init)], outs[len(init) :]

    length, reverse = options["length"], options["reverse"]
    count, left = divmod(length, chunks.size)
    if not left:
        parts = [x.reshape(count, chunks.size, *x.shape[1:]) for x in xs]
        carry, ys = jax.lax.scan(
            lambda carry, x: run(carry, x, chunks.size), list(init), parts, length=count, reverse=reverse
        )
        return [*carry, *(y.reshape(length, *y.shape[2:]) for y in ys)]

    # Outputs are written to where they are to be: put together in the end, they would take twice the memory.
    def step(carry: Any, start: Any, size: int) -> Any:
        values, outputs = carry
        part = [jax.lax.dynamic_slice_in_dim(x, start, size) for x in xs]
        values, ys = run(values, part, size)
        pairs = zip(outputs, ys, strict=True)
        return values, [jax.lax.dynamic_update_slice_in_dim(output, y, start, 0) for output, y in pairs]

    avals = _compat.out_avals(jaxpr)[len(init) :]
    outputs = [_compat.zeros_like_aval(jex.core.unmapped_aval(length, 0, aval)) for aval in avals]
    starts = jnp.arange(count, dtype=jnp.int32) * chunks.size + (left if reverse else 0)
    before: Any = (list(init), outputs)
    carry, _ = jax.lax.scan(
        lambda carry, start: (step(carry, start, chunks.size), None), before, starts, reverse=reverse
    )
    values, outputs = step(carry, 0 if reverse else length - left, left)
    return [*values, *outputs]


def _in_order(nodes: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, ...]:
    # scan stacks by index; events come in the order in which they happened.
    return jax.tree.map(lambda leaf: jnp.flip(leaf, 0), nodes) if options["reverse"] else nodes
