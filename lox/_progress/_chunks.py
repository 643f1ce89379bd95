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
"""The number of the board, and the batch elements for which an iteration runs, or None for all."""


@dataclasses.dataclass(frozen=True)
class Bar:
    """The body of a loop that has a bar.

    Attributes:
        body: The body.
        seen: What an iteration tells, with abstract values in place of arrays.
        look: The function of the arguments of the body that tells it without an iteration; None if there is none.
        path: The path of the loop.
        elements: The number of batch elements that the loop is run for.
    """

    body: Any
    seen: Seen
    look: Callable[..., Seen] | None
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
    sites: list[Any] = []
    structure: Any = None

    def seen(*args: Any) -> list[Any]:
        nonlocal structure
        for bar in _iteration(body, *args)[1][:1]:
            sites.append(bar.site)
            leaves, structure = jax.tree.flatten((bar.values[BOARD], bar.mask))
            return leaves
        return []

    jaxpr, captured = _compat.trace(seen, _compat.in_avals(body), "lox")
    if not sites:
        return None
    avals = jax.tree.unflatten(structure, _compat.out_avals(jaxpr))
    (site,) = sites
    part, look = _compat.without_unused(jaxpr), None
    if not any(eqn.effects for eqn in _compat.open_jaxpr(part).eqns):
        look = lambda *args: jax.tree.unflatten(structure, _compat.as_fun(part)(*captured, *args))  # noqa: E731
    return Bar(body, avals, look, site.path, math.prod(avals[0].shape))


def _zeros(aval: Any) -> Any:
    """Zeros of an abstract value that may be one on shards: a loop is lowered where no mesh is set."""
    mesh = aval.sharding.mesh
    with contextlib.nullcontext() if mesh.empty else jax.sharding.use_abstract_mesh(mesh):
        return _compat.vary(_compat.zeros_like_aval(aval), sorted(_compat.varying_axes(aval)))


@dataclasses.dataclass(frozen=True)
class _Steps:
    """A loop as functions of its values, which see nothing of its bar.

    Attributes:
        length: The number of iterations, if it is known.
        goes_on: Whether there is another iteration after some values, for each batch element where these part; None
            where the number of iterations tells.
        iterate: A function of the number of an iteration and of the values before it, which returns those after it.
            The number is from the start of the loop if the length is known, else from that of the chunk.
        look: What is seen where an iteration of this number is to come.
    """

    length: int | None
    goes_on: Callable[[Any], Any] | None
    iterate: Callable[[Any, Any], Any]
    look: Callable[[Any, Any], Seen]


def _in_chunks(loop: Loop, steps: _Steps, values: Any) -> Any:
    """Run a loop in chunks of iterations. An iteration is as it was: what the bar needs is computed after a chunk.

    Args:
        loop: What is known of it.
        steps: The loop.
        values: The values before the first iteration.

    Returns:
        The values after the last iteration.
    """
    length = steps.length
    index = jnp.int32 if length is None or length < 2**31 else jax.dtypes.canonicalize_dtype(jnp.int64)

    def goes_on(turn: Any, values: Any) -> Any:
        return turn < length if steps.goes_on is None else jnp.any(steps.goes_on(values))

    def chunk(state: Any) -> Any:
        answer, turn, values = state
        size = answer[1]
        first = turn if length is not None else jnp.int32(0)
        end = first + (size if length is None else jnp.minimum(size.astype(index), length - first))
        within = lambda state: (state[0] < end) & goes_on(*state)  # noqa: E731
        step = lambda state: (state[0] + 1, steps.iterate(*state))  # noqa: E731
        turn, values = jax.lax.while_loop(within, step, (first, values))
        done = (turn - first).astype(jnp.int32)
        answer = report(loop, answer[0], done, goes_on(turn, values), *steps.look(turn, values))
        return answer, turn, values

    before = jnp.array([0, 1], jnp.int32), jnp.zeros((), index), values
    return jax.lax.while_loop(lambda state: goes_on(*state[1:]), chunk, before)[2]


def _carrying(
    length: int | None,
    goes_on: Callable[[Any], Any] | None,
    iterate: Callable[[Any, Any, Any], tuple[Any, Seen]],
    values: Any,
    seen: Seen,
) -> tuple[_Steps, Any]:
    """A loop that carries who goes on and what is seen: a test with effects happens once for each iteration.

    Args:
        length: As in `_Steps`.
        goes_on: As there.
        iterate: A function of a number of an iteration, of values, and of who goes on, which returns the values after
            the iteration, and what is seen.
        values: The values before the first iteration.
        seen: What is seen then.

    Returns:
        The loop, and what it carries before the first iteration, which is the values and more.
    """
    test = goes_on or (lambda values: None)

    def step(turn: Any, state: Any) -> Any:
        values, seen = iterate(turn, *state[:2])
        return values, test(values), seen

    again = goes_on and (lambda state: state[1])
    return _Steps(length, again, step, lambda turn, state: state[2]), (values, test(values), seen)


# scan: (consts, carry, xs) -> (carry, ys)  becomes  while: (index, (carry, ys)) -> (index, (carry, ys))
def _scan(bar: Bar, params: dict[str, Any], *args: Any) -> list[Any]:
    consts, init, xs = operands(args, params)
    length, unroll, reverse = params["length"], params["unroll"], params["reverse"]

    def place_of(index: Any) -> Any:
        return length - 1 - index if reverse else index

    def given(index: Any, carry: Any) -> list[Any]:
        return [*consts, *carry, *(_item(x, place_of(index)) for x in xs)]

    def iteration(index: Any, carry: Any, ys: Any) -> tuple[Any, Any, Seen]:
        outs, seen = bar.iterate(*given(index, carry))
        ys = [_with_item(buffer, y, place_of(index)) for buffer, y in zip(ys, outs[len(init) :], strict=True)]
        return outs[: len(init)], ys, seen

    def iterate(turn: Any, values: Any, live: Any) -> tuple[Any, Seen]:
        del live
        carry, ys = values
        for place in range(unroll):
            carry, ys, seen = iteration(turn * unroll + place if unroll > 1 else turn, carry, ys)
        return (carry, ys), seen

    turns, left = divmod(length, unroll)
    avals = _compat.out_avals(bar.body)[len(init) :]
    values: Any = list(init), [_zeros(jex.core.unmapped_aval(length, 0, aval)) for aval in avals]
    if (look := bar.look) is not None:
        plain = lambda turn, values: iterate(turn, values, None)[0]  # noqa: E731
        steps = _Steps(turns, None, plain, lambda turn, values: look(*given(turn * unroll, values[0])))
        carry, ys = _in_chunks(Loop(bar.path, length, unroll, bar.elements), steps, values)
    else:
        steps, values = _carrying(turns, None, iterate, values, bar.start())
        carry, ys = _in_chunks(Loop(bar.path, length, unroll, bar.elements), steps, values)[0]
    for index in range(turns * unroll, length):
        carry, ys, _ = iteration(jnp.int32(index), carry, ys)
    return [*carry, *ys]


def _item(array: Any, place: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(array, place, keepdims=False, allow_negative_indices=False)


def _with_item(array: Any, item: Any, place: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(array, item, place, 0, allow_negative_indices=False)


# while: (consts, carry) -> carry  becomes  while: (count, carry) -> (count, carry)
def _while(bar: Bar, params: dict[str, Any], *args: Any) -> list[Any]:
    cond_consts, body_consts, init = split_args(args, params)
    cond = _compat.as_fun(params["cond_jaxpr"])

    def iterate(turn: Any, carry: Any, live: Any) -> tuple[Any, Seen]:
        del turn
        outs, seen = bar.iterate(*body_consts, *carry)
        return [where(live, *each) if live.shape else each[0] for each in zip(outs, carry, strict=True)], seen

    def goes_on(carry: Any) -> Any:
        (predicate,) = cond(*cond_consts, *carry)
        return predicate

    loop = Loop(bar.path, None, 1, bar.elements, parts=bar.seen[1] is not None)
    values: Any = list(init)
    if (look := bar.look) is None or _compat.open_jaxpr(params["cond_jaxpr"]).effects:
        return _in_chunks(loop, *_carrying(None, goes_on, iterate, values, bar.start()))[0]
    plain = lambda turn, carry: iterate(turn, carry, goes_on(carry))[0]  # noqa: E731
    return _in_chunks(loop, _Steps(None, goes_on, plain, lambda turn, carry: look(*body_consts, *carry)), values)


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
