"""The handler by which a guarded function notes the first iteration of an outermost loop whose carry is bad.

Its state is a tuple with the first bad iteration, or -1, of the loops so far: one number for each set of devices that
loops have run on, where Python runs a function op by op, and else one for all.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.extend as jex
import jax.extend.source_info_util as source_info
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from lox import _compat
from lox._effect import emit
from lox._events import Logs, Site
from lox._handler import DropAll, Filter, Handler, Inside, Results, Rule, State, Stateful
from lox._logs_in import jaxprs_in
from lox._nonfinite._branches import runs_for_all
from lox._nonfinite._record import is_float
from lox._rules._scan import operands, options, run_scan
from lox._rules._while import Loop
from lox._trace import under

_listed = jex.core.primitives
_LOOPS = frozenset({_listed.scan_p, _listed.while_p})
_CALLS = frozenset({_listed.jit_p, _compat.shard_map_p})


def is_bad(values: Sequence[Any], began_finite: Sequence[Any], infinite: bool) -> Any:
    """Tell whether one of some values has a NaN or, if that counts, is infinite and began finite."""
    flags = [jnp.bool_(False)]
    for value, began in zip(values, began_finite, strict=True):
        if is_float(value) and np.size(value):
            flags.append(_any(jnp.isnan(value) | jnp.isinf(value) & began if infinite else jnp.isnan(value)))
    return functools.reduce(jnp.logical_or, flags)


def _any(flags: Any) -> Any:
    """The `any` of flags, which XLA finds three times as fast on a CPU if it is the largest of small integers.

    The largest of the values themselves is no way to find NaN: where an array is spread over devices, the largest of
    what each has may drop it.
    """
    return jnp.max(flags.astype(jnp.uint8)) > 0


def devices_of(array: Any) -> Any:
    """The devices of an array, such that a jitted function takes arrays of equal ones together; None of a tracer."""
    if isinstance(array, jax.core.Tracer):
        return None
    mesh = getattr(array.sharding, "mesh", None)
    return frozenset(array.sharding.device_set) if mesh is None else tuple(mesh.devices.flat)


@functools.partial(jax.jit, inline=True)
def earlier(first: Any, other: Any) -> Any:
    """The first bad iteration of one loop and of a loop after it."""
    return jnp.where(first < 0, other, first)


def _joined(state: State, more: State) -> State:
    found = {devices_of(first): first for first in state}
    for first in more:
        devices = devices_of(first)
        found[devices] = earlier(found[devices], first) if devices in found else first
    return tuple(found.values())


@_compat.weakref_lru_cache
def _has_loop(jaxpr: Any) -> bool:
    """Tell whether a jaxpr runs a loop, itself or in functions that it calls."""
    eqns = _compat.open_jaxpr(jaxpr).eqns
    return any(
        eqn.primitive in _LOOPS or (eqn.primitive in _CALLS and any(map(_has_loop, jaxprs_in(eqn.params))))
        for eqn in eqns
    )


def _began_finite(handler: Any, values: Sequence[Any]) -> list[Any]:
    return [jnp.isfinite(each).all() if handler.infinite and is_float(each) else True for each in values]


def _start(carry: Sequence[Any]) -> tuple[Any, Any]:
    """The first bad iteration and the number of the next one, carried beside a carry and varying over its shards."""
    axes = sorted(frozenset[Any]().union(*map(_compat.varying_axes, carry)))
    return _compat.vary(jnp.int32(-1), axes), _compat.vary(jnp.int32(0), axes)


# scan: (consts, carry, xs) -> (carry, ys)  becomes  (consts, (carry, (first, number)), xs) -> (carry, ys), first
def _scan(
    handler: Any, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    del primitive
    consts, init, xs = operands(args, params)
    body, began = _compat.as_fun(params["jaxpr"]), _began_finite(handler, init)

    def iterate(carried: Any, _: Any, *values: Any) -> tuple[Sequence[Any], Any, Any]:
        first, trip = carried
        outs = body(*consts, *values)
        bad = is_bad(outs[: len(init)], began, handler.infinite)
        return outs, (handler.noted(first, trip, bad), trip + 1), ()

    outs, (first, _), _ = run_scan(iterate, _start(init), init, xs, **options(params))
    return outs, _joined(state, (first,)), ()


# while: (consts, carry) -> carry  becomes  (consts, (carry, first, number)) -> carry, first
def _while(
    handler: Any, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    del primitive
    loop = Loop(args, params)
    start, _, _ = loop.start(handler, ())
    began = _began_finite(handler, loop.init)

    def iterate(carried: Any) -> Any:
        values, first, trip = carried
        values = loop.iterate(*values)
        bad = is_bad(values[: len(began)], began, handler.infinite)
        return values, handler.noted(first, trip, bad), trip + 1

    values, first, _ = jax.lax.while_loop(lambda carried: loop.goes_on(carried[0]), iterate, (start, *_start(start)))
    return loop.outs(values), _joined(state, (first,)), ()


# shard_map: args -> outs  becomes  args -> (outs, firsts), with the first bad iteration of each shard
def _shard_map(
    handler: Any, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    fun = params.pop("fun")
    manual = tuple(name for name in params["mesh"].axis_names if name in params["newly_manual_axes"])

    def with_first(*args: Any) -> Any:
        outs, state, _ = under(handler, fun)((), *args)
        firsts = [jax.lax.expand_dims(_compat.vary(first, manual), (0,)) for first in state]
        return _compat.extend_outputs(outs, firsts, [PartitionSpec(manual)] * len(firsts))

    outs, firsts = _compat.split_outputs(primitive.bind(*args, subfuns=(with_first,), **params))
    return outs, _joined(state, tuple(map(_of_shards, firsts))), ()


@functools.partial(jax.jit, inline=True)
def _of_shards(firsts: Any) -> Any:
    return firsts.astype(jnp.uint32).min().astype(jnp.int32)  # -1 is the largest.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carries(Stateful):
    """Its state has the first iteration of an outermost loop after which the carry is bad; -1 if there is none.

    Attributes:
        infinite: Whether infinite values count.
    """

    rules: ClassVar[Mapping[Any, Rule]] = {
        _listed.scan_p: _scan,
        _listed.while_p: _while,
        _compat.shard_map_p: _shard_map,
    }

    forward: bool = True
    infinite: bool

    def concerns(self, primitive: Any, params: dict[str, Any]) -> bool:
        if runs_for_all(source_info.current_name_stack()):
            return False  # Its carry may be bad for batch elements that do not take the branch it is in.
        return primitive in _LOOPS or (primitive is _listed.jit_p and _has_loop(params["jaxpr"]))

    def enter(self, state: State, programs: Sequence[Any], inside: Inside) -> tuple[Handler, State]:
        # Programs do not get what was before, which may be on other devices. All branches return as many numbers.
        return self, () if inside == "call" else (jnp.int32(-1),)

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        return _joined(state, after or ()), ()

    def handle(self, state: State, logs: Logs) -> Results:
        emit(logs)
        return state, ()

    def detached(self, state: State, sites: frozenset[Site]) -> tuple[Filter, State]:
        return DropAll(), None

    def noted(self, first: Any, trip: Any, bad: Any) -> Any:
        """The first bad iteration, after an iteration."""
        return jnp.where((first < 0) & bad, trip, first)
