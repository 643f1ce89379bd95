"""The call in which a loop tells the host how far it is, and gets the length of its next chunk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from lox import _compat
from lox._channel import failed, find


@dataclasses.dataclass(frozen=True)
class Loop:
    """What is known of a loop when it is compiled.

    Attributes:
        path: Its path.
        length: The number of its iterations; None if it is not known.
        unroll: How many of them count as one where it is unrolled.
        elements: The number of batch elements that it is run for.
        parts: Whether batch elements end after different numbers of iterations.
    """

    path: str
    length: int | None
    unroll: int
    elements: int
    parts: bool = False


LONGEST = 2**30
"""The most iterations of a chunk."""

report_p = jex.core.Primitive("lox_report")
"""Tells the host how far a loop is."""


def report(loop: Loop, run: Any, done: Any, goes_on: Any, board: Any, live: Any) -> Any:
    """Tell the host how far a loop is.

    Args:
        loop: The loop.
        run: The number of this run of it; 0 where it has begun just now.
        done: The number of iterations since the last report; of an unrolled loop, that of their groups.
        goes_on: Whether there are further ones.
        board: The number of the board that shows it, for each batch element.
        live: For which batch elements these are; None for all.

    Returns:
        An array of the number of the run, and of that of the iterations of the next chunk, or of their groups.
    """
    count = jnp.int32(loop.elements) if live is None else jnp.sum(live, dtype=jnp.int32)
    count = jnp.where(goes_on, jnp.maximum(count, 1), 0)
    told = jnp.stack([jnp.max(board, initial=0), run, done, count])  # One array is sooner read than four.
    return report_p.bind(told, loop=loop)


@report_p.def_abstract_eval
def _answer(told: Any, *, loop: Loop) -> Any:
    del told, loop
    return jax.core.ShapedArray((2,), jnp.int32)


def _receiver(loop: Loop) -> Callable[..., tuple[Any]]:
    def receive(told: Any) -> tuple[Any]:
        board, run, done, live = told.tolist()
        receiver, answer = None, (run, LONGEST)
        try:
            if board:
                receiver = find(board)
                answer = receiver.report(loop, run, done, live)
        except BaseException as error:  # noqa: BLE001
            failed(receiver, error, f"the loop {loop.path!r}")
        return (np.array(answer, np.int32),)

    return receive


def _lower_report(ctx: Any, told: Any, *, loop: Loop) -> Any:
    return _compat.emit_call(ctx, _receiver(loop), [told])


mlir.register_lowering(report_p, _lower_report, cacheable=False)
