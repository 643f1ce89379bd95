"""Logs inside jaxprs: whether there are any, which, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._ambient import counter_p, handled_p
from lox._compat import _tracebacks
from lox._effect import LogEffect, TapEffect, log_p, received
from lox._events import Destination, Event, Logs, events
from lox._exceptions import UnsupportedPrimitiveError
from lox._late import is_late, late_jaxpr

WITH_RULES = {
    jex.core.primitives.custom_jvp_call_p,
    jex.core.primitives.custom_vjp_call_p,
    _compat.custom_vmap_p,
}
"""The primitives of functions with rules of their own, whose logs no jaxpr shows."""


def logs_in(params: dict[str, Any]) -> bool:
    """Say whether a log happens in a jaxpr among the parameters of a primitive.

    The effects of a jaxpr do not tell: some primitives, `pallas_call` for one, hide those of what they call.
    """
    return any(has_log(jaxpr) for jaxpr in jaxprs_in(params)) or any(
        isinstance(effect, LogEffect)
        for value in _compat.static_values(params)
        if not _compat.is_jaxpr(value)
        for effect in getattr(value, "effects", ())
    )


@_compat.weakref_lru_cache
def has_log(jaxpr: Any) -> bool:
    return any(
        eqn.primitive is log_p or logs_in(eqn.params) or (is_late(eqn.primitive) and any(_late_events_of(eqn)))
        for eqn in _compat.open_jaxpr(jaxpr).eqns
    )


def counters_in(params: dict[str, Any]) -> bool:
    """Say whether a log in a jaxpr among the parameters of a primitive waits for a counter from a context."""
    return any(_binds(jaxpr, counter_p) for jaxpr in jaxprs_in(params))


def handlers_in(params: dict[str, Any]) -> bool:
    """Say whether a handler ran where a jaxpr among the parameters of a primitive was made."""
    return any(_binds(jaxpr, handled_p) for jaxpr in jaxprs_in(params))


@_compat.weakref_lru_cache
def _binds(jaxpr: Any, primitive: Any) -> bool:
    return any(
        eqn.primitive is primitive or any(_binds(inner, primitive) for inner in jaxprs_in(eqn.params))
        for eqn in _compat.open_jaxpr(jaxpr).eqns
    )


_SIMPLE = {bool, int, float, str, type(None)}
"""Types of most parameters, which say at once that there is no jaxpr."""


def jaxprs_in(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of a primitive."""
    for value in _compat.static_values(params):
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if type(item) in _SIMPLE:
                continue
            if _compat.is_jaxpr(item):
                yield item
            elif _compat.is_jaxpr(getattr(item, "jaxpr", None)):
                yield item.jaxpr


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr and of the jaxprs inside it."""
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        yield eqn
        for inner in jaxprs_in(eqn.params):
            yield from equations(inner)


def logs_of(jaxpr: Any) -> Iterator[tuple[Logs, Destination | None]]:
    """The logs of a jaxpr and where they go, with abstract values in place of arrays."""
    for eqn in equations(jaxpr):
        if eqn.primitive is log_p:
            yield received([v.aval for v in eqn.invars], eqn.params)


def events_in(jaxpr: Any) -> Iterator[Event]:
    """The events of a jaxpr that wait for a handler, with abstract values in place of arrays."""
    for logs, to in logs_of(jaxpr):
        if to is None:
            yield from events(logs)


def has_rule(primitive: Any, params: dict[str, Any]) -> bool:
    """Say whether a primitive calls a function with a rule of its own, which may log though the function does not."""
    if primitive in WITH_RULES and "call_jaxpr" in params:
        return not _tracebacks.runs_no_other(_compat.open_jaxpr(params["call_jaxpr"]))
    return primitive in WITH_RULES or _compat.high_may_log(params)


def rules_in(params: dict[str, Any]) -> bool:
    """Say whether a function with a rule of its own is called in a jaxpr among the parameters of a primitive."""
    return any(_has_rule(jaxpr) for jaxpr in jaxprs_in(params))


@_compat.weakref_lru_cache
def _has_rule(jaxpr: Any) -> bool:
    return any(has_rule(eqn.primitive, eqn.params) or rules_in(eqn.params) for eqn in _compat.open_jaxpr(jaxpr).eqns)


def _late_events(primitive: Any, avals: Sequence[Any], params: dict[str, Any]) -> Iterator[Event]:
    """The events that wait for a handler in the function that a primitive stands for."""
    jaxpr = late_jaxpr(primitive, avals, params)
    if jaxpr is not None:
        yield from (event for event in events_in(jaxpr) if event.values)
        for eqn in equations(jaxpr):
            itself = eqn.primitive is primitive and all(eqn.params.get(name) is params[name] for name in params)
            if is_late(eqn.primitive) and not itself:
                yield from _late_events_of(eqn)


def _late_events_of(eqn: Any) -> Iterator[Event]:
    return _late_events(eqn.primitive, [var.aval for var in eqn.invars], eqn.params)


def refuse_late(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> None:
    for event in _late_events(primitive, [jax.typeof(arg) for arg in args], params):
        raise UnsupportedPrimitiveError(_without_rule(primitive, f" at {event.site}"))


def tapped_in(params: dict[str, Any]) -> bool:
    """Say whether a log on its way to a tap happens in a jaxpr among the parameters of a primitive."""
    return any(
        isinstance(effect, TapEffect) for jaxpr in jaxprs_in(params) for effect in _compat.open_jaxpr(jaxpr).effects
    )


def has_marks_alone(params: dict[str, Any]) -> bool:
    """Say whether all logs in the jaxprs among the parameters of a primitive are marks for `lox.watch`."""
    found = [to for jaxpr in jaxprs_in(params) for _, to in logs_of(jaxpr)]
    return bool(found) and not any(to is None or isinstance(to, Destination) for to in found)


def unsupported(primitive: Any, params: dict[str, Any]) -> str:
    found = [logs for jaxpr in jaxprs_in(params) for logs, _ in logs_of(jaxpr)]
    sites = [str(event.site) for logs in found for event in events(logs)]
    return _without_rule(primitive, f" at {sites[0]}" if sites else "")


def _without_rule(primitive: Any, where: str) -> str:
    return (
        f"lox has no rule for the primitive '{primitive}', inside which lox.log is called{where}. "
        f"Log outside of it, or run the function without this log: lox.strip(f)."
    )
