"""Compiles loops as loops over chunks of iterations. After each chunk the host is told how far the loop is."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import mlir

from lox import _compat
from lox._collect import Collect
from lox._events import Destination, Event, Logs
from lox._handler import Filter, Handler, State
from lox._leading_axes import where
from lox._logs_in import logs_of
from lox._progress._bars import BOARD, TO_LOOP
from lox._progress._report import Loop, report
from lox._rules._scan import operands
from lox._rules._while import split_args
from lox._trace import under

primitives = jex.core.primitives


class _OfLoop(Handler):
    """A handler of the bar of one loop: what is in loops, branches and rules inside is left as it is."""

    def concerns(self, primitive: Any, params: dict[str, Any]) -> bool:
        return primitive in _CALLS and super().concerns(primitive, params)


_CALLS = (primitives.jit_p, primitives.closed_call_p, primitives.remat_p)


@dataclasses.dataclass(frozen=True)
class _Own(_OfLoop, Filter):
    """Makes a plain log of the bar."""

    sees_tapped = True

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return logs

    def destination(self, to: Destination) -> Destination | None:
        return None if to == TO_LOOP else to


class _Take(_OfLoop, Collect):
    """Collects this log."""

    rules = {}


_TAKE = _Take("a loop with a progress bar")


Seen = tuple[Any, Any]
"""The number of the board, and the batch elements for which an iteration ran, or None for all."""


@dataclasses.dataclass(frozen=True)
class Bar:
    """The body of a loop that has a bar.

    Attributes:
        body: The body.
        seen: What an iteration tells, with abstract values in place of arrays.
        path: The path of the loop.
        elements: The number of batch elements that the loop is run for.
    """

    body: Any
    seen: Seen
    path: str
    elements: int

    def iterate(self, *args: Any) -> tuple[list[Any], Seen]:
        """Run an iteration; returns the outputs of the body, and what is seen."""
        outs, (bar, *_) = _iteration(self.body, *args)
        return outs, (bar.values[BOARD], bar.mask)

    def start(self) -> Seen:
        """Return what is seen before the first iteration: no board."""
        return jax.tree.map(_zeros, self.seen)


def _iteration(body: Any, *args: Any) -> tuple[list[Any], list[Any]]:
    own = lambda *args: under(_Own(), _compat.as_fun(body))(None, *args)[0]  # noqa: E731
    outs, _, logs = under(_TAKE, own)(None, *args)
    return outs, [log for log in logs if isinstance(log, Event)]


@_compat.weakref_lru_cache
def _bar_in(body: Any) -> Bar | None:
    """The bar of a loop with this body, if it has one."""
    if all(to != TO_LOOP for _, to in logs_of(body)):
        return None
    bars = _compat.abstract(lambda args: _iteration(body, *args)[1], _compat.in_avals(body))
    if not bars:
        return None
    bar, *_ = bars
    return Bar(body, (bar.values[BOARD], bar.mask), bar.site.path, math.prod(bar.values[BOARD].shape))


def _zeros(aval: Any) -> Any:
    """Zeros of an abstract value that may be one on shards: a loop is lowered where no mesh is set."""
    mesh = aval.sharding.mesh
    with contextlib.nullcontext() if mesh.empty else jax.sharding.use_abstract_mesh(mesh):
        return _compat.vary(_compat.zeros_like_aval(aval), sorted(_compat.varying_axes(aval)))


def _in_chunks(
    loop: Loop,
    seen: Seen,
    goes_on: Callable[[Any], Any],
    iterate: Callable[[Any, Any], tuple[Any, Seen]],
    values: Any,
) -> Any:
    """Run a loop in chunks of iterations.

    Args:
        loop: What is known of it.
        seen: What is seen before the first iteration.
        goes_on: Whether there is another iteration after some values, for each batch element where these part.
        iterate: A function of the values and of who goes on, which returns the values after an iteration, and what is
            seen.
        values: The values before the first iteration.

    Returns:
        The values after the last iteration.
    """

    def step(state: Any) -> Any:
        done, live, values, _ = state
        values, seen = iterate(values, live)
        return done + 1, goes_on(values), values, seen

    def chunk(state: Any) -> Any:
        run, size, live, values, seen = state
        within = lambda state: jnp.any(state[1]) & (state[0] < size)  # noqa: E731
        done, live, values, seen = jax.lax.while_loop(within, step, (jnp.int32(0), live, values, seen))
        run, size = report(loop, run, done, jnp.any(live), *seen)
        return run, size, live, values, seen

    before = jnp.int32(0), jnp.int32(1), goes_on(values), values, seen
    return jax.lax.while_loop(lambda state: jnp.any(state[2]), chunk, before)[3]


# scan: (consts, carry, xs) -> (carry, ys)  becomes  while: (index, (carry, ys)) -> (index, (carry, ys))
def _scan(bar: Bar, params: dict[str, Any], *args: Any) -> list[Any]:
    consts, init, xs = operands(args, params)
    length, unroll, reverse = params["length"], params["unroll"], params["reverse"]

    def iteration(index: Any, carry: Any, ys: Any) -> tuple[Any, Any, Any]:
        place = length - 1 - index if reverse else index
        slices = [jax.lax.dynamic_index_in_dim(x, place, keepdims=False) for x in xs]
        outs, seen = bar.iterate(*consts, *carry, *slices)
        pairs = zip(ys, outs[len(init) :], strict=True)
        ys = [jax.lax.dynamic_update_index_in_dim(buffer, y, place, 0) for buffer, y in pairs]
        return outs[: len(init)], ys, seen

    def iterate(values: Any, live: Any) -> Any:
        del live
        turn, carry, ys = values
        for place in range(unroll):
            carry, ys, seen = iteration(turn * unroll + place, carry, ys)
        return (turn + 1, carry, ys), seen

    turns, left = divmod(length, unroll)
    avals = _compat.out_avals(bar.body)[len(init) :]
    buffers = [_zeros(jex.core.unmapped_aval(length, 0, aval)) for aval in avals]
    goes_on = lambda values: values[0] < turns  # noqa: E731
    loop = Loop(bar.path, length, unroll, bar.elements)
    _, carry, ys = _in_chunks(loop, bar.start(), goes_on, iterate, (jnp.int32(0), list(init), buffers))
    for place in range(left):
        carry, ys, _ = iteration(jnp.int32(turns * unroll + place), carry, ys)
    return [*carry, *ys]


# while: (consts, carry) -> carry  becomes  while: (carry, predicate) -> (carry, predicate)
def _while(bar: Bar, params: dict[str, Any], *args: Any) -> list[Any]:
    cond_consts, body_consts, init = split_args(args, params)
    cond = _compat.as_fun(params["cond_jaxpr"])

    def iterate(carry: Any, live: Any) -> Any:
        new, seen = bar.iterate(*body_consts, *carry)
        return [where(live, *each) if live.shape else each[0] for each in zip(new, carry, strict=True)], seen

    def goes_on(carry: Any) -> Any:
        (predicate,) = cond(*cond_consts, *carry)
        return predicate

    loop = Loop(bar.path, None, 1, bar.elements)
    return _in_chunks(loop, bar.start(), goes_on, iterate, list(init))


def _is_loop(params: dict[str, Any]) -> bool:
    length = params.get("length")
    return "length" not in params or (isinstance(length, int) and params["unroll"] < length)


def _wrapped(lower: Callable[..., Any], body: str, run: Callable[..., list[Any]]) -> Callable[..., Any]:
    def lower_in_chunks(ctx: Any, *args: Any, **params: Any) -> Any:
        bar = _bar_in(params[body]) if _is_loop(params) else None
        if bar is None:
            return lower(ctx, *args, **params)
        return mlir.lower_fun(functools.partial(run, bar, params))(ctx, *args)

    return lower_in_chunks


@functools.cache
def begin() -> None:
    """Let loops with bars be compiled in chunks, from the first on."""
    _compat.need(_compat.Feature.LOWERING_RULES)
    _compat.wrap_lowering(primitives.scan_p, functools.partial(_wrapped, body="jaxpr", run=_scan))
    _compat.wrap_lowering(primitives.while_p, functools.partial(_wrapped, body="body_jaxpr", run=_while))
