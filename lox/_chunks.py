"""Which scans log so regularly that many iterations can be met at a time, and how many."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._collect import Collect
from lox._effect import log_p, received
from lox._events import Node, with_depths
from lox._handler import logs_in
from lox._select import Selection

primitives = jex.core.primitives


@dataclasses.dataclass(frozen=True)
class CollectSelected(Collect):
    """Collects the selected logs and drops the others."""

    selection: Selection

    def receive(self, nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        return self.selection.split(nodes)[0]


def chunk_size(jaxpr: Any, length: Any, selection: Selection, buffer: int) -> int | None:
    """How many iterations of a scan fill a buffer, but for a remainder.

    Args:
        jaxpr: The body of the scan.
        length: The number of its iterations.
        selection: The logs that go to the buffer.
        buffer: How many it holds.

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
    """How many selected logs a jaxpr makes, if these are the same whenever it runs.

    None when that depends on data, for logs of derivatives, and for those under other primitives than `jit` and `scan`.
    """
    total = 0
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        if eqn.primitive is log_p:
            nodes, to = received([var.aval for var in eqn.invars], eqn.params)
            for event, depth in with_depths(selection.split(nodes)[0] if to is None else ()):
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
