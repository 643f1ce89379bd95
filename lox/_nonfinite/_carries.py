"""The handler by which a guarded function notes the first iteration of an outermost loop whose carry is bad."""

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

from lox import _compat
from lox._effect import emit
from lox._events import Logs, Site
from lox._handler import DropAll, Filter, Results, Rule, State, Stateful
from lox._logs_in import jaxprs_in
from lox._nonfinite._branches import runs_for_all
from lox._nonfinite._record import is_float
from lox._rules._scan import operands, options, run_scan
from lox._rules._while import Loop

_listed = jex.core.primitives
_LOOPS = frozenset({_listed.scan_p, _listed.while_p})


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


@_compat.weakref_lru_cache
def _has_loop(jaxpr: Any) -> bool:
    """Tell whether a jaxpr runs a loop, itself or in functions that it calls."""
    eqns = _compat.open_jaxpr(jaxpr).eqns
    return any(
        eqn.primitive in _LOOPS or (eqn.primitive is _listed.jit_p and any(map(_has_loop, jaxprs_in(eqn.params))))
        for eqn in eqns
    )


def _began_finite(handler: Any, values: Sequence[Any]) -> list[Any]:
    return [jnp.isfinite(each).all() if handler.infinite and is_float(each) else True for each in values]


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

    outs, (first, _), _ = run_scan(iterate, (state, jnp.int32(0)), init, xs, **options(params))
    return outs, first, ()


# while: (consts, carry) -> carry  becomes  (consts, (carry, first, number)) -> carry, first
def _while(
    handler: Any, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    del primitive
    loop = Loop(args, params)
    start, state, _ = loop.start(handler, state)
    began = _began_finite(handler, loop.init)

    def iterate(carried: Any) -> Any:
        values, first, trip = carried
        values = loop.iterate(*values)
        bad = is_bad(values[: len(began)], began, handler.infinite)
        return values, handler.noted(first, trip, bad), trip + 1

    values, first, _ = jax.lax.while_loop(
        lambda carried: loop.goes_on(carried[0]), iterate, (start, state, jnp.int32(0))
    )
    return loop.outs(values), first, ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carries(Stateful):
    """Its state is the first iteration of an outermost loop after which the carry is bad; -1 if there is none.

    Attributes:
        infinite: Whether infinite values count.
    """

    rules: ClassVar[Mapping[Any, Rule]] = {_listed.scan_p: _scan, _listed.while_p: _while}

    forward: bool = True
    infinite: bool

    def concerns(self, primitive: Any, params: dict[str, Any]) -> bool:
        if runs_for_all(source_info.current_name_stack()):
            return False  # Its carry may be bad for batch elements that do not take the branch it is in.
        return primitive in _LOOPS or (primitive is _listed.jit_p and _has_loop(params["jaxpr"]))

    def handle(self, state: State, logs: Logs) -> Results:
        emit(logs)
        return state, ()

    def detached(self, state: State, sites: frozenset[Site]) -> tuple[Filter, State]:
        return DropAll(), None

    def noted(self, state: State, trip: Any, bad: Any) -> State:
        """The state after an iteration."""
        return jnp.where((state < 0) & bad, trip, state)
