"""Chunks of iterations of scans that log regularly: the logs of a chunk are taken together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._collect import Collect
from lox._effect import log_p, received
from lox._events import Logs, StackedEvents, with_depths
from lox._logs_in import logs_in
from lox._rules._scan import operands, run_scan
from lox._select import Selection
from lox._trace import under

primitives = jex.core.primitives


@dataclasses.dataclass(frozen=True)
class CollectSelected(Collect):
    """Collects the selected logs and drops the others."""

    selection: Selection

    def collect(self, logs: Logs) -> Logs:
        return self.selection.split(logs)[0]


_WHERE = "a scan that is run in chunks"


def chunk_size(jaxpr: Any, length: Any, selection: Selection, buffer: int) -> int | None:
    """Return the number of iterations of a scan that fill a buffer, but for a remainder.

    Args:
        jaxpr: The body of the scan.
        length: The number of its iterations.
        selection: The logs that go to the buffer.
        buffer: The number of logs that it holds.

    Returns:
        The number, which divides the length where that costs at most a tenth more chunks; None when the buffer is not
        filled twice, or when it is not known before the program runs when it will be.
    """
    count = _logs_each_run(jaxpr, selection)
    if not count or count > buffer or not isinstance(length, int) or length * count < 2 * buffer:
        return None
    size = buffer // count
    divisor = next(divisor for divisor in range(size, 0, -1) if length % divisor == 0)
    return divisor if length / divisor <= 1.1 * math.ceil(length / size) else size


@_compat.weakref_lru_cache
def _logs_each_run(jaxpr: Any, selection: Selection) -> int | None:
    """Count the selected logs that a jaxpr makes, if these are the same whenever it runs.

    None when that depends on data, for logs of derivatives, and for those under other primitives than `jit` and `scan`.
    """
    total = 0
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        if eqn.primitive is log_p:
            logs, to = received([var.aval for var in eqn.invars], eqn.params)
            for event, depth in with_depths(selection.split(logs)[0] if to is None else ()):
                if event.mask is not None:
                    return None
                total += math.prod(event.lengths(depth)) if event.values else 0
        elif logs_in(eqn.params):
            if eqn.primitive not in (primitives.jit_p, primitives.scan_p):
                return None
            inside, times = _logs_each_run(eqn.params["jaxpr"], selection), eqn.params.get("length", 1)
            if inside is None or not isinstance(times, int):
                return None
            total += inside * times
    return total


# A scan becomes a scan of scans, each of which stacks the logs of a chunk, and a scan of the iterations left over.
def scan_in_chunks(
    selection: Selection, size: int, take: Callable[[Logs], None], args: Sequence[Any], params: dict[str, Any]
) -> list[Any]:
    """Run a scan whose logs are taken many iterations at a time.

    Args:
        selection: The logs that are taken; others are dropped.
        size: The number of iterations.
        take: Takes the logs of so many iterations, or of those that are left.
        args: The arguments of the scan.
        params: Its parameters.

    Returns:
        The outputs of the scan.
    """
    jaxpr = params["jaxpr"]
    consts, init, xs = operands(args, params)
    body = _compat.as_fun(jaxpr)

    def iterate(state: Any, number: Any, *values: Any) -> Any:
        del number
        outs, _, logs = under(CollectSelected(_WHERE, selection), body)(None, *consts, *values)
        return outs, state, logs

    def run(carry: Any, x: Any, length: int) -> tuple[list[Any], list[Any]]:
        unroll = min(params["unroll"], length)
        outs, _, logs = run_scan(iterate, (), carry, x, length=length, reverse=reverse, unroll=unroll)
        take((StackedEvents(logs, {}, length),) if logs else ())
        return outs[: len(init)], outs[len(init) :]

    length, reverse = params["length"], params["reverse"]
    count, left = divmod(length, size)
    if not left:
        parts = [x.reshape(count, size, *x.shape[1:]) for x in xs]
        carry, ys = jax.lax.scan(lambda carry, x: run(carry, x, size), list(init), parts, length=count, reverse=reverse)
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
    starts = jnp.arange(count, dtype=jnp.int32) * size + (left if reverse else 0)
    before: Any = (list(init), outputs)
    carry, _ = jax.lax.scan(lambda carry, start: (step(carry, start, size), None), before, starts, reverse=reverse)
    values, outputs = step(carry, 0 if reverse else length - left, left)
    return [*values, *outputs]
