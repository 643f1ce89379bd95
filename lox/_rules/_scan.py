"""`scan`, which is also `lax.map` and `fori_loop` with static bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._events import Logs, StackedEvents
from lox._handler import Handler, State, rule
from lox._rules._loop import InLoop

scan_p = jex.core.primitives.scan_p
Operands = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]


# scan: (consts, carry, xs) -> (carry, ys)  becomes  (consts, (carry, state), xs) -> ((carry, state), (ys, logs))
@rule(scan_p)
def scan(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    del primitive
    loop, body = InLoop(handler, state, [params["jaxpr"]]), _compat.as_fun(params["jaxpr"])
    consts, init, xs = operands(args, params)
    iterate: Iterate = lambda carry, index, *values: loop.run(carry, body, *consts, *values)  # noqa: E731
    outs, carry, logs = run_scan(iterate, loop.carry, init, xs, **options(params))
    return outs, *loop.leave(carry, (StackedEvents(logs, {}, params["length"]),) if logs else (), params["length"])


def operands(args: Sequence[Any], params: dict[str, Any]) -> Operands:
    """The constants, the carry and the scanned arrays among the arguments of a scan."""
    num_consts, num_carry = _compat.scan_counts(params)
    return args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]


def options(params: dict[str, Any]) -> dict[str, Any]:
    """The length, the direction and the unrolling of a scan, as `jax.lax.scan` takes them."""
    return {name: params[name] for name in ("length", "reverse", "unroll")}


Iterate = Callable[..., tuple[Sequence[Any], Any, Any]]
"""An iteration: takes the state, its number, the carry and the slices; returns the outputs, the state, and logs."""


def run_scan(
    iterate: Iterate, state: Any, init: Sequence[Any], xs: Sequence[Any], *, numbered: bool = False, **options: Any
) -> tuple[list[Any], Any, Any]:
    """Run a scan that carries a state and stacks logs.

    Args:
        iterate: An iteration.
        state: A pytree of arrays.
        init: The carry.
        xs: The scanned arrays.
        numbered: Whether iterations get their numbers, in the order of `xs`, rather than None.
        options: The length, the direction and the unrolling of `jax.lax.scan`.

    Returns:
        The outputs of the scan, the state, and the logs, stacked in the order in which they happened.
    """
    length, num_carry = options["length"], len(init)
    if xs:  # They tell the length, also one that is symbolic, which cannot be passed.
        options = options | {"length": None}
    numbers = jnp.arange(length, dtype=jnp.int32) if numbered else None

    def body(carry: Any, x: Any) -> Any:
        (values, state), (slices, index) = carry, x
        outs, state, logs = iterate(state, index, *values, *slices)
        return (list(outs[:num_carry]), state), (list(outs[num_carry:]), logs)

    (carry, state), (ys, logs) = jax.lax.scan(body, (list(init), state), (list(xs), numbers), **options)
    return [*carry, *ys], state, _in_order(logs, options["reverse"])


def _in_order(logs: Any, reverse: bool) -> Any:
    # scan stacks by index; events come in the order in which they happened.
    return jax.tree.map(lambda leaf: jnp.flip(leaf, 0), logs) if reverse else logs
