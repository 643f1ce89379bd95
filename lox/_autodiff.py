"""Differentiation of programs in which logs happen.

JAX's rules keep effects, so each forward event stays where it happened, once, with these exceptions, which the
wrappers here mend. They act only while a handler is in scope, and on programs that a tap has run.

- Linearizing a `scan`, also inside `checkpoint`, moves what does not depend on the iteration out of the loop. So
  each log is tied to its iteration: an `Anchor` adds the loop's counter to its operands.
- Linearizing a `while_loop` runs it once for the primal and once more, whole, for the tangent, and so does
  `checkpoint` for the backward pass. The second run must be silent.
- A trace that a library only looks at must not log.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import partial_eval

from lox import _compat
from lox._effect import heard, log_p, ordering, recording, transforming, without_logs
from lox._events import Event, Logs, Site, events, map_events
from lox._exceptions import UnsupportedPrimitiveError
from lox._flax_probe import probing
from lox._handler import DropAll, Filter, Handler, Rule, State
from lox._logs_in import equations, logs_in, logs_of, tapped_in
from lox._rules._call import discharge
from lox._rules._scan import operands, options, run_scan
from lox._rules._while import split_args
from lox._trace import under

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
primitives = jex.core.primitives
scan_p, while_p, remat_p = primitives.scan_p, primitives.while_p, primitives.remat_p


@dataclasses.dataclass(frozen=True)
class Anchor(Filter):
    """Ties each log to the iteration of the scan that it is in.

    Its state is the numbers of the current iterations of the scans around, outermost first.

    Attributes:
        enters: Whether the iterations of scans inside count as well.
    """

    sees_tapped = True
    enters: bool = False

    @property
    def rules(self) -> Mapping[Any, Rule]:  # type: ignore[override]
        return _numbered if self.enters else {}

    def rewrite(self, state: State, logs: Logs) -> Logs:
        def tie(event: Event, depth: int) -> Event:
            iteration_deps = tuple(jax.lax.broadcast(number, event.lengths(depth)) for number in state)
            return dataclasses.replace(event, iteration_deps=event.iteration_deps + iteration_deps)

        return map_events(tie, logs)


def _numbered_scan(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    del primitive
    consts, init, xs = operands(args, params)
    body = _compat.as_fun(params["jaxpr"])

    def iterate(carry: Any, number: Any, *values: Any) -> Any:
        return under(handler, body)((*state, number), *consts, *values)[0], carry, ()

    outs, _, _ = run_scan(iterate, (), init, xs, numbered=True, **options(params))
    return outs, state, ()


_numbered: Mapping[Any, Rule] = {scan_p: _numbered_scan}

_ANY_TRACE = object()
_hoisting: contextvars.ContextVar[Any] = contextvars.ContextVar("hoisting", default=None)
"""In the rules of a scan: the trace around it, and so that of partial evaluation in it that moves work out of it."""


@contextlib.contextmanager
def _in_scan(trace: Any) -> Iterator[None]:
    token = _hoisting.set(trace)
    try:
        yield
    finally:
        _hoisting.reset(token)


def _around() -> Any:
    with jex.core.take_current_trace() as trace:
        return trace


def _moves_out_of_scan(trace: Any) -> bool:
    around = _hoisting.get()
    return around is not None and (around is _ANY_TRACE or trace.parent_trace is around)


def _may_log(jaxpr: Any) -> bool:
    # The rules of custom derivatives log without a trace in the jaxpr of the function.
    silent = (primitives.custom_jvp_call_p, primitives.custom_vjp_call_p)
    return any(eqn.primitive is log_p or eqn.primitive in silent for eqn in equations(jaxpr))


@_compat.weakref_lru_cache
def _anchored(jaxpr: Any) -> tuple[Any, list[Any]]:
    """The body of a scan with its logs tied to its iterations.

    Returns:
        The body, which takes the number of the iteration last, and the values to pass for its new leading inputs.
    """
    body = _compat.as_fun(jaxpr)

    def numbered(*args: Any) -> Sequence[Any]:
        return under(Anchor(), body)((args[-1],), *args[:-1])[0]

    return _compat.trace(numbered, [*_compat.in_avals(jaxpr), _compat.int32_scalar], "lox")


def _anchor(params: dict[str, Any]) -> tuple[dict[str, Any], list[Any], Any]:
    """A scan whose logs are tied to its iterations: its parameters and what it takes before and after its operands."""
    body, captured = _anchored(params["jaxpr"])
    numbers = jnp.arange(params["length"], dtype=jnp.int32)
    return _compat.extend_scan(params, body, len(captured), 1), captured, numbers


def _linearize_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    def linearize(is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        if not _may_log(params["jaxpr"]):
            return original(is_vjp, nonzero, *primals, **params)
        params, captured, numbers = _anchor(params)
        zeros = [_compat.zero_tangent(value) for value in captured]
        nonzero = [*[False] * len(captured), *nonzero, False]
        with _in_scan(_around()):
            *results, linear = original(is_vjp, nonzero, *captured, *primals, numbers, **params)

        def tangent(*args: Any) -> Any:
            residuals, tangents = args[: -len(primals)], args[-len(primals) :]
            return linear(*residuals, *zeros, *tangents, _compat.zero_tangent(numbers))

        return *results, tangent

    return linearize


def _partially_evaluate_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    def partially_evaluate(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not _may_log(params["jaxpr"]):
            return original(trace, *tracers, **params)
        params, captured, numbers = _anchor(params)
        with _in_scan(_around()):
            return original(trace, *map(trace.new_const, captured), *tracers, trace.new_const(numbers), **params)

    return partially_evaluate


def _split_scan(original: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of a scan inside `checkpoint`, which evaluates its body partially for no other end than to hoist."""

    def split(*args: Any) -> Any:
        with _in_scan(_ANY_TRACE):
            return original(*args)

    return split


def _partially_evaluate_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    def partially_evaluate(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not logs_in(params):
            return original(trace, *tracers, **params)
        _refuse_offloading(trace, params)
        jaxpr, captured, _ = discharge(Anchor(enters=True), (), params["jaxpr"])
        params = _compat.extend_checkpoint(params, jaxpr, len(captured), 0)
        return original(trace, *map(trace.new_const, captured), *tracers, **params)

    return partially_evaluate


def _refuse_offloading(trace: Any, params: dict[str, Any]) -> None:
    """Raises UnsupportedPrimitiveError where JAX would fail to compile ordered logs and offloaded values together."""
    jaxpr = params["jaxpr"]
    if _compat.runs_at_once(trace) or not _offloads(jaxpr, params["policy"]):
        return
    site = next(_ordered_sites(jaxpr), None)
    if site is None:
        return
    raise UnsupportedPrimitiveError(
        f"JAX does not compile ordered callbacks in a program that offloads values to the host, as the policy of the "
        f"checkpoint does in which lox.log is called at {site}. Stream it in any order, lox.tap(f, ordered=False), or "
        "collect it with lox.spool."
    )


def _ordered_sites(jaxpr: Any) -> Iterator[Site]:
    """The sites of the logs that taps stream in order."""
    for logs, to in logs_of(jaxpr):
        taken = [logs] if to is not None else [selection.split(logs)[0] for selection in ordering.get()]
        if to is None or to.ordered:
            yield from (event.site for selected in taken for event in events(selected) if event.values)


def _offloads(jaxpr: Any, policy: Callable[..., Any] | None) -> bool:
    """Say whether a policy of `checkpoint` offloads a value: it names the target then (a private `Offloadable`)."""
    return policy is not None and any(
        hasattr(policy(eqn.primitive, *(var.aval for var in eqn.invars), **eqn.params), "dst")
        for eqn in equations(jaxpr)
    )


class _SilentStaging:
    """A trace of partial evaluation in which what is staged does not log."""

    def __init__(self, trace: Any):
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def default_process_primitive(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any]) -> Any:
        silent = {name: discharge(DropAll(), None, params[name])[0] for name in ("cond_jaxpr", "body_jaxpr")}
        return self._trace.default_process_primitive(primitive, tracers, params | silent)


def _logs(eqn: Any) -> bool:
    return eqn.primitive is log_p or logs_in(eqn.params)


def _known_while(eqn: Any, unknown_carry: Sequence[bool]) -> Any:
    """The loop reduced to the carried values that are known, with all its logs."""
    cond_consts, body_consts, carry = split_args(eqn.invars, eqn.params)
    known = [not unknown for unknown in unknown_carry]
    cond, cond_used = _compat.prune(eqn.params["cond_jaxpr"], [True], [False] * len(cond_consts) + known, _logs)
    body, body_used = _compat.prune(eqn.params["body_jaxpr"], known, [False] * len(body_consts) + known, _logs)
    cond_consts = [var for var, used in zip(cond_consts, cond_used, strict=False) if used]
    body_consts = [var for var, used in zip(body_consts, body_used, strict=False) if used]
    params = {
        "cond_jaxpr": cond,
        "cond_nconsts": len(cond_consts),
        "body_jaxpr": body,
        "body_nconsts": len(body_consts),
    }
    return eqn.replace(
        invars=[*cond_consts, *body_consts, *(var for var, kept in zip(carry, known, strict=True) if kept)],
        outvars=[var for var, kept in zip(eqn.outvars, known, strict=True) if kept],
        params=eqn.params | params,
    )


def _recompute_while(original: Callable[..., Any]) -> Callable[..., Any]:
    """Silence the part of a loop that `checkpoint` recomputes in the backward pass; the forward part logs."""

    def recompute(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        if not logs_in(eqn.params):
            return original(saveable, unknown, instantiated, eqn)
        silent = {name: discharge(DropAll(), None, eqn.params[name])[0] for name in ("cond_jaxpr", "body_jaxpr")}
        without = eqn.replace(params=eqn.params | silent, effects=without_logs(eqn.effects))
        known, staged, unknown_outs, *rest = original(saveable, unknown, instantiated, without)
        if known is None:  # The condition depends on what is not known yet: nothing runs forward.
            return None, eqn, unknown_outs, *rest
        return _known_while(eqn, unknown_outs), staged, unknown_outs, *rest

    return recompute


def _partially_evaluate_while(original: Callable[..., Any]) -> Callable[..., Any]:
    def partially_evaluate(trace: Any, *tracers: Any, **params: Any) -> Any:
        known = [tracer.is_known() for tracer in tracers]
        if not logs_in(params) or all(known) or not any(known):
            return original(trace, *tracers, **params)
        outs = original(_SilentStaging(trace), *tracers, **params)
        if all(_compat.is_left_by(trace, out) for out in outs):
            # Nothing ran now: what is staged is all there is, and logs.
            return trace.default_process_primitive(while_p, tracers, params)
        return outs

    return partially_evaluate


def _partially_evaluate_log(trace: Any, *tracers: Any, **params: Any) -> list[Any]:
    _compat.need(_compat.Feature.DERIVATIVES)
    if probing() and not transforming.value:
        _compat.need(_compat.Feature.FLAX_SCAN)
        return []
    if _moves_out_of_scan(trace):
        tracers = tuple(trace.instantiate_const(tracer) for tracer in tracers)
    return trace.default_process_primitive(log_p, tracers, params)


def _once(primitive: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    """The partial evaluation of a primitive in which logs happen: not moved out of a scan, and silent in a probe."""

    def partially_evaluate(trace: Any, *tracers: Any, **params: Any) -> Any:
        if not logs_in(params):
            return original(trace, *tracers, **params)
        _compat.need(_compat.Feature.DERIVATIVES)
        if _moves_out_of_scan(trace):
            return trace.default_process_primitive(primitive, [trace.instantiate_const(t) for t in tracers], params)
        if probing() and not transforming.value:
            params = {name: _silenced(value) for name, value in params.items()}
        return original(trace, *tracers, **params)

    return partially_evaluate


def _silenced(value: Any) -> Any:
    """A parameter of a primitive, without the logs of the jaxprs in it."""
    if isinstance(value, tuple) and any(_compat.is_jaxpr(item) for item in value):
        return tuple(map(_silenced, value))
    if not _compat.is_jaxpr(value):
        return value
    silent, _, _ = discharge(DropAll(), None, value)
    return _compat.open_jaxpr(silent) if value is _compat.open_jaxpr(value) else silent


def _keep_logs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Dead code elimination that keeps a `checkpoint` for its logs, which that of jax 0.10 drops without inputs."""

    def eliminate(used_outs: Sequence[bool], *rest: Any) -> Any:
        used_ins, new = original(used_outs, *rest)
        eqn = rest[-1]
        if new is None and logs_in(eqn.params) and not (probing() and not transforming.value):
            return [True] * len(eqn.invars), eqn
        return used_ins, new

    return eliminate


def _while_recording(wrapper: Wrapper) -> Wrapper:
    """Wraps a rule while a handler is in scope, and for programs with logs on their way to a tap."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = wrapper(original)

        def rule(*args: Any, **params: Any) -> Any:
            if not (recording.value and heard.value) and not tapped_in(params or args[-1].params):
                return original(*args, **params)
            # An effect in partial evaluation makes a reference cycle, which JAX's leak checker takes for a leak.
            with transforming(True), jax.check_tracer_leaks(False):
                return wrapped(*args, **params)

        return rule

    return wrap


def _unchanged(original: Callable[..., Any]) -> Callable[..., Any]:
    return original


def _register() -> None:
    linearizations = {scan_p: _linearize_scan}
    partial_evaluations = {
        scan_p: _partially_evaluate_scan,
        while_p: _partially_evaluate_while,
        remat_p: _partially_evaluate_checkpoint,
    }
    higher_order = (primitives.jit_p, primitives.cond_p, primitives.closed_call_p, scan_p, while_p, remat_p)
    for primitive in higher_order:
        _compat.wrap_linearization(primitive, _while_recording(linearizations.get(primitive, _unchanged)))
        evaluation = _while_recording(partial_evaluations.get(primitive, _unchanged))
        _compat.wrap_partial_evaluation(primitive, evaluation)
        _compat.wrap_partial_evaluation(primitive, functools.partial(_once, primitive))
    partial_eval.custom_partial_eval_rules[log_p] = _partially_evaluate_log
    _compat.wrap_dead_code_elimination(remat_p, _keep_logs)
    for primitive, wrapper in ((while_p, _recompute_while), (scan_p, _split_scan)):
        _compat.wrap_checkpoint_rule(primitive, _while_recording(wrapper))


_register()
