"""Runs a function under a handler: the trace that meets every primitive.

JAX keeps one current trace. A `HandlerTrace` in its place sees each primitive that the function binds, with the
caller's own values: there are no tracers, concrete arrays stay concrete. A log goes to the handler, a primitive in
whose jaxprs logs happen goes to its rule, all else is bound in the trace around.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex
from jax.extend.linear_util import wrap_init

from lox import _compat
from lox._ambient import ReadsContext, Search, ambient, resolving
from lox._compat import _tracebacks
from lox._eager import CHUNK, check_alive, copied, may_delete, reporting_deleted, stacked
from lox._effect import Listener, emit, heard, in_place, log_p, received, recording, watching
from lox._events import Destination, Log, Logs, with_values
from lox._exceptions import ContextError, UnsupportedPrimitiveError
from lox._handler import Filter, Handler, State, rules
from lox._late import is_late
from lox._logged_names import meeting, user_rules_in
from lox._logs_in import (
    counters_in,
    handlers_in,
    has_marks_alone,
    has_rule,
    logs_in,
    refuse_late,
    rules_in,
    unsupported,
)

_RULES = ("jvp", "fwd", "bwd")
"""The parameters with the rules of a function, in the order in which JAX gets them."""

_compiled = {jex.core.primitives.scan_p, jex.core.primitives.while_p, jex.core.primitives.cond_p}
"""The primitives that JAX compiles where they are bound eagerly, once for the same jaxpr."""


class HandlerTrace(Listener):
    """Runs primitives in the trace around it, and logs through a handler."""

    __slots__ = (
        "parent_trace",
        "handler",
        "state",
        "collected",
        "runs_at_once",
        "keeps",
        "held",
        "seen",
        "room",
        "met",
        "contexts",
    )

    def __init__(self, parent: Any, handler: Handler, state: State):
        super().__init__()
        _compat.adopt_level(self, parent)
        self.parent_trace = parent
        self.handler = handler
        self.state = state
        self.collected: list[Log] = []
        self.runs_at_once = _compat.runs_at_once(self)
        self.keeps = handler.returns_logs and self.runs_at_once
        """True if the logs refer to arrays of the program itself, which a later call may delete."""
        self.held: set[int] = set()
        """The identities of the arrays in the first logs that were collected, `seen` of them."""
        self.seen = 0
        self.room = 8 * CHUNK
        self.met = meeting.get()
        _compat.adopt_demands(self, parent)
        self.contexts = ambient.value
        """The settings of the contexts around, without those of the handler, if it is a context."""

    def stage_value(self, val: Any) -> Any:
        return self.parent_trace.stage_value(val)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        if primitive is log_p:
            self.hear(*received(args, params))
            return []
        with self.outside(primitive, params):
            if self.keeps and may_delete(primitive, params):
                self.keep_without(args)
            if not self.handler.concerns(primitive, params) and not self.may_ask_rule(primitive, params):
                if is_late(primitive):
                    refuse_late(primitive, args, params)
                if self.leaves_rules(primitive, params):
                    with self.without_values():
                        return self.apply_bound(primitive, args, params)
                return primitive.bind(*args, **params)
            return self.apply_bound(primitive, args, params)

    def hear(self, logs: Logs, to: Destination | None) -> None:
        if self.met is not None and to is None:
            self.met.meet(logs)
        with jex.core.set_current_trace(self.parent_trace):
            if not self.handler.sees_tapped:
                logs = with_values(logs)
            if to is None:
                try:
                    self.state, collected = self.handler.handle(self.state, logs)
                except RuntimeError:
                    self.check_alive()
                    raise
                self.collect(collected)
            elif self.handler.sees_tapped and isinstance(self.handler, Filter):
                emit(self.handler.rewrite(self.state, logs), self.handler.destination(to))
            else:
                emit(logs, to)

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, args: Any, /, *, symbolic_zeros: bool) -> Any:
        return self.call(primitive, fun, args, {"jvp": jvp, "symbolic_zeros": symbolic_zeros})

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, *, out_trees: Any, symbolic_zeros: bool
    ) -> Any:
        params = {"fwd": fwd, "bwd": bwd, "out_trees": out_trees, "symbolic_zeros": symbolic_zeros}
        return self.call(primitive, fun, args, params)

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        with self.outside(primitive, params):
            return self.apply(primitive, args, {"fun": fun, **params})

    def process_call(self, primitive: Any, fun: Any, args: Any, params: Any, /) -> Any:
        """Call primitives of jax 0.10, which mean nothing but the call."""
        del primitive, params
        with jex.core.set_current_trace(self):
            return fun.call_wrapped(*args)

    def call(self, primitive: Any, fun: Any, args: Any, params: dict[str, Any]) -> Any:
        if _tracebacks.runs_no_other(fun):
            others = {name: value for name, value in params.items() if name not in _RULES}
            functions = (fun, *(params[name] for name in _RULES if name in params))
            with jex.core.set_current_trace(self.parent_trace):
                return primitive.bind(*args, subfuns=functions, **others)
        if _compat.is_eager(self.parent_trace):  # Nothing can differentiate this call: its rules will not be asked for.
            with jex.core.set_current_trace(self):
                return fun.call_wrapped(*args)
        if self.handler.around is not None and not recording.value:
            with contextlib.suppress(ReadsContext):
                return self.call_unchanged(primitive, fun, args, params)
        with self.outside(primitive, params):
            return self.apply(primitive, args, {"fun": fun, **params})

    def call_unchanged(self, primitive: Any, fun: Any, args: Any, params: dict[str, Any]) -> Any:
        """Call a function with rules as without a context.

        Raises:
            ReadsContext: A handler runs in the function, whose logs get counters.
        """
        called = False
        rules = [name for name in _RULES if name in params]
        functions = [without_values(self.handler, each, lambda: called) for each in (fun, *map(params.get, rules))]
        others = {name: value for name, value in params.items() if name not in rules}
        with jex.core.set_current_trace(self.parent_trace):
            outs = primitive.bind(*args, subfuns=tuple(functions), **others)
        called = True
        _compat.settle(fun, params[rules[0]])
        return outs

    def outside(self, primitive: Any, params: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
        """The context of what the handler makes of a primitive, which happens outside it."""
        around = jex.core.set_current_trace(self.parent_trace)
        if self.handler.around is None:
            return around
        if not recording.value and (has_rule(primitive, params) or rules_in(params)):
            return around  # A handler that is in a rule has to tell that it is in a context.
        return _within(around, ambient(self.contexts))

    def apply_bound(self, primitive: Any, args: Any, params: Any) -> Any:
        """Apply a rule where the parameters are those of an equation: JAX can say what else it makes of them."""
        if self.rule_for(primitive) is None and (low := _compat.to_low(primitive, args, params)) is not None:
            with jex.core.set_current_trace(self):
                return low(*args, **params)
        return self.apply(primitive, args, params)

    def rule_for(self, primitive: Any) -> Any:
        return self.handler.rules.get(primitive) or rules.get(primitive)

    def apply(self, primitive: Any, args: Any, params: Any) -> Any:
        if self.met is not None:
            self.met.meet_primitive(primitive, params)
        rule = self.rule_for(primitive)
        if rule is None:
            if not has_marks_alone(params):
                raise UnsupportedPrimitiveError(unsupported(primitive, params))
            with jex.core.set_current_trace(self.parent_trace):
                return primitive.bind(*args, **params)
        if primitive in _compiled and self.runs_at_once:  # A rule makes of it what is new at each call.
            with jex.core.set_current_trace(self):
                return _compat.run_compiled(primitive, args, params)
        try:
            with _hearing(self.handler.forward if self.handler.returns_logs else heard.value):
                outs, self.state, collected = rule(self.handler, self.state, primitive, args, dict(params))
        except RuntimeError as error:
            if "deleted" in str(error):  # Not one of the program's own.
                self.check_alive()
            raise
        self.collect(collected)
        return outs

    def check_alive(self) -> None:
        """Raise SpoolError where operations run at once and an array of the state was deleted."""
        if self.runs_at_once:
            check_alive(self.state)

    def may_ask_rule(self, primitive: Any, params: Any) -> bool:
        """Tell whether JAX may run a rule in a primitive that logs though the function that it is for does not."""
        if self.handler.around is not None and not recording.value:
            return False
        return primitive in rules and not self.is_eager() and (has_rule(primitive, params) or rules_in(params))

    def leaves_rules(self, primitive: Any, params: dict[str, Any]) -> bool:
        """Tell whether a program has rules in it that JAX may run when the block of the context is over.

        Where the program is staged, a rule stays in it, to be run when the outer program is differentiated. Nothing
        hears of what it logs, but a handler in it needs the values of the context.
        """
        if self.handler.around is None or recording.value or primitive not in rules:
            return False
        return not _compat.runs_at_once(self.parent_trace) and user_rules_in(params)

    @contextlib.contextmanager
    def without_values(self) -> Iterator[None]:
        """The context in which functions with rules in programs refuse to run a handler later."""
        state, self.state = self.state, None
        try:
            yield
        finally:
            self.state = state

    def concerns(self, params: dict[str, Any]) -> bool:
        """Tell whether a `jit` of these parameters must run under the handler, or under one around."""
        if self.handler.concerns(jex.core.primitives.jit_p, params):
            return True
        around = self.parent_trace
        return isinstance(around, HandlerTrace) and around.concerns(params)

    def is_eager(self) -> bool:
        """Tell whether operations run at once, with nothing but handlers around."""
        around = self.parent_trace
        return _compat.is_eager(around) or (isinstance(around, HandlerTrace) and around.is_eager())

    def close(self) -> None:
        """Let go of all values: rules of differentiation outlive the trace they were made in, and refer to it."""
        self.parent_trace, self.state, self.collected, self.met = None, None, [], None

    def collect(self, logs: Logs) -> None:
        self.collected.extend(logs)
        if self.keeps and len(self.collected) >= self.room:
            self.stack(CHUNK)
            self.room = max(self.room, 2 * len(self.collected))

    def stack(self, least: int) -> None:
        """Put logs that are alike into one, if there are as many, so that all are put together fast in the end."""
        if len(self.collected) >= least:
            with reporting_deleted(self.collected):
                self.collected = stacked(self.collected, least)
            self.held, self.seen = set(), 0

    def keep_without(self, doomed: Sequence[Any]) -> None:
        """Keep copies in place of arrays that are about to be deleted."""
        self.held.update(map(id, jax.tree.leaves(self.collected[self.seen :])))
        self.seen = len(self.collected)
        held = self.held.union(map(id, jax.tree.leaves(self.state)))
        self.state, self.collected = copied((self.state, self.collected), [arg for arg in doomed if id(arg) in held])

    def results(self) -> tuple[State, Logs]:
        """The state after the function, but for one that is only read, and all logs that were collected."""
        if self.keeps:
            self.stack(2)
        return None if isinstance(self.handler, Filter) else self.state, tuple(self.collected)


def without_values(handler: Handler, fun: Any, is_late: Callable[[], bool]) -> Any:
    """A flat function of JAX's in a context, as it is without one, where nothing in it logs.

    Args:
        handler: The handler that the context is.
        fun: The function.
        is_late: Whether it is too late to call it with the values of the context, if a log in it needs them. If not,
            `ReadsContext` is raised then.
    """
    run = under(handler, _compat.renewed(fun))

    def call(*args: Any) -> Any:
        search = Search()
        token = resolving.set(search)
        outs = None
        try:
            outs = run(None, *args)[0]
        except BaseException:
            if not search.ended:
                raise
        finally:
            resolving.reset(token)
        if not search.ended:  # Also if the function has caught the exception.
            return outs
        if not is_late():
            raise ReadsContext
        raise ContextError(
            "A rule of a custom_jvp or custom_vjp function runs a handler, such as lox.tap, after the block of the "
            "lox.context is over in which the function was called. So its logs cannot get their counters. Apply the "
            "handler outside of the context."
        )

    return wrap_init(call, debug_info=fun.debug_info)


def _hearing(hears: bool) -> contextlib.AbstractContextManager[Any]:
    """The context in which `heard` is this; one that is not changed costs nothing."""
    return contextlib.nullcontext() if heard.value == hears else heard(hears)


@contextlib.contextmanager
def _within(*contexts: contextlib.AbstractContextManager[Any]) -> Iterator[None]:
    outer, inner = contexts
    with outer, inner:
        yield


def _inside(handler: Handler) -> contextlib.AbstractContextManager[Any]:
    """The context in which a function runs under a handler."""
    return contextlib.nullcontext() if handler.around is None else ambient(handler.around)


def is_outermost() -> bool:
    """Tell whether no transformation of JAX is in progress and no handler around, but for contexts."""
    if _compat.is_top_level():  # Quickly, since each call of a jitted function comes here.
        return True
    trace = _compat.current_trace()
    while isinstance(trace, HandlerTrace) and trace.handler.around is not None:
        trace = trace.parent_trace
    return _compat.is_eager(trace)


def is_called_from_python() -> bool:
    """Tell whether Python runs each call: no transformation of JAX is in progress, whatever handlers are around."""
    trace = _compat.current_trace()
    while isinstance(trace, HandlerTrace):
        trace = trace.parent_trace
    return _compat.is_eager(trace)


def reads_context(params: dict[str, Any]) -> bool:
    """Tell whether what the contexts around say is part of a jaxpr among the parameters of a primitive."""
    return counters_in(params) or handlers_in(params) or (recording.value and logs_in(params))


def _runs_plainly(trace: Any, params: dict[str, Any]) -> bool:
    if not isinstance(trace, HandlerTrace) or not trace.is_eager() or trace.concerns(params) or counters_in(params):
        return False
    if watching.value is not None:
        return False
    # JAX does not ask again. So a handler that collects sees each call that donates: one may be of what was logged.
    return in_place.value or not recording.value or not any(params["donated_invars"])


def _around_call(params: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """The context in which a jitted function is called: outside all contexts, where these do not matter to it."""
    if ambient.value is None or watching.value is not None or reads_context(params) or rules_in(params):
        return contextlib.nullcontext()
    return ambient(None)


_compat.share_fast_dispatch(_runs_plainly, _around_call)


def _is_eager_handler(trace: Any) -> bool:
    return isinstance(trace, HandlerTrace) and trace.is_eager()


_compat.let_programs_ask(_is_eager_handler)


def under(handler: Handler, fun: Callable[..., Any], finishes: bool = False) -> Callable[..., tuple[Any, State, Logs]]:
    """`fun`, run under `handler` in whatever trace is current.

    Args:
        handler: The handler.
        fun: The function.
        finishes: Whether the state is that of the function alone, so that the handler finishes at its end.

    Returns:
        A function of the state and of the arguments of `fun`, that returns the result of `fun`, the state after it
        (None for a filter) and the logs that were collected.
    """

    def run(state: State, /, *args: Any, **kwargs: Any) -> tuple[Any, State, Logs]:
        _compat.check_processes()
        with jex.core.take_current_trace() as parent:
            trace = HandlerTrace(parent, handler, state)
            try:
                with jex.core.set_current_trace(trace), _hearing(handler.returns_logs or heard.value), _inside(handler):
                    outs = fun(*args, **kwargs)
                with jex.core.set_current_trace(parent):
                    if finishes:
                        trace.state = handler.finish(trace.state)
                    return outs, *trace.results()
            except BaseException as error:
                if finishes and _compat.runs_at_once(parent):
                    with jex.core.set_current_trace(parent):
                        handler.finish(trace.state)
                refused = _compat.refusal(error)
                if refused is not None:
                    raise refused from error
                raise
            finally:
                trace.close()

    return run
