"""Logs of a `while_loop`: those of the first iterations are written to a buffer, and further events are counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._collect import zeroed
from lox._columns import with_event_axes
from lox._events import Event, Logs, StackedEvents, map_events, narrow_mask
from lox._handler import Handler
from lox._rules._call import discharge, split_results
from lox._rules._while import Loop
from lox._sharding import put

Keys = tuple[str, ...]


# while: carry -> carry  becomes  (carry, buffers, dropped, index) -> (carry, buffers, dropped, index)
def bounded_while(collector: Handler, bound: int, loop: Loop, start: Sequence[Any]) -> tuple[list[Any], Logs]:
    """Run a loop, and collect the logs of its first iterations.

    Args:
        collector: The handler of an iteration.
        bound: The number of iterations.
        loop: The loop.
        start: The values before the first iteration.

    Returns:
        The outputs of the loop, and its logs, with the number of events of further iterations.
    """
    closed, captured = _compat.trace(loop.iterate, [jax.typeof(value) for value in start], "lox")
    discharged, more, structure = discharge(collector, None, closed)
    body = _compat.as_fun(discharged)
    _, _, like = split_results(_compat.out_avals(discharged), structure)

    def buffer(aval: Any) -> Any:  # With one more, for what is beyond the bound.
        return _compat.zeros_like_aval(jex.core.unmapped_aval(bound + 1, 0, aval))

    def iterate(carry: Any) -> Any:
        values, buffers, dropped, index = carry
        values, _, logs = split_results(body(*more, *captured, *values), structure)
        buffers = _written(buffers, map_events(zeroed, logs), jnp.minimum(index, bound))
        dropped = jax.tree.map(lambda sofar, new: sofar + jnp.where(index < bound, 0, new), dropped, _uncertain(logs))
        return values, buffers, dropped, index + 1

    none = jax.tree.map(_compat.zeros_like_aval, _compat.abstract(_uncertain, like))
    before = list(start), jax.tree.map(buffer, like), none, jnp.int32(0)
    outs, buffers, dropped, trips = jax.lax.while_loop(lambda carry: loop.goes_on(carry[0]), iterate, before)
    if not like:
        return loop.outs(outs), ()
    for keys, (number, batch) in _certain(like).items():
        dropped[keys] = jnp.full(batch, number * jnp.maximum(trips - bound, 0), jnp.int32)
    ran = jnp.arange(bound, dtype=jnp.int32) < trips

    def narrow(event: Event, depth: int) -> Event:
        # Loops inside the loop are stacked after its own axis, which is the first.
        shape = event.lengths(depth + 1 + event.batch_ndim)
        return narrow_mask(event, jax.lax.broadcast_in_dim(ran, shape, (0,)))

    events = map_events(narrow, jax.tree.map(lambda buffer: buffer[:bound], buffers))
    return loop.outs(outs), (StackedEvents(events, dropped, bound),)


def _written(buffers: Logs, logs: Logs, slot: Any) -> Logs:
    def write(buffer: Any, array: Any) -> Any:
        return put(buffer, array, slot)

    return jax.tree.map(write, buffers, logs)


def _uncertain(logs: Logs) -> dict[Keys, Any]:
    """The number of events of each timeline whose events may not happen, or that has some beyond a bound inside."""
    found = {}
    for each in with_event_axes(logs):
        if each.mask is not None or each.dropped is not None:
            number = 0 if each.dropped is None else each.dropped
            found[tuple(sorted(each.values))] = number + jnp.sum(each.happened(), axis=0, dtype=jnp.int32)
    return found


def _certain(like: Logs) -> dict[Keys, tuple[int, tuple[int, ...]]]:
    """The number of events of each other timeline, and the sizes of its batch axes."""
    found: dict[Keys, tuple[int, tuple[int, ...]]] = {}

    def note(logs: Logs) -> None:
        for each in with_event_axes(logs):
            if each.mask is None and each.dropped is None:
                found[tuple(sorted(each.values))] = jnp.shape(each.any_value())[0], each.batch(0)

    _compat.abstract(note, like)
    return found
