"""Runs a function under a handler: the trace that meets every primitive, and the table of rules.

JAX keeps one current trace. A `HandlerTrace` in its place sees each primitive that the function binds, with the
caller's own values: there are no tracers, concrete arrays stay concrete. A log goes to the handler, a primitive in
whose jaxprs logs happen goes to its rule, all else is bound in the trace around.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import jax
import jax.extend as jex

from lox import _compat
from lox._eager import CHUNK, check_alive, copied, may_delete, stacked
from lox._effect import Listener, LogEffect, TapEffect, emit, heard, in_place, log_p, received
from lox._events import Destination, Event, Node, Site, events, with_values
from lox._exceptions import UnsupportedPrimitiveError
from lox._late import is_late, late_jaxpr


class Loops(Protocol):
    """How a handler puts together the nodes that each iteration of a loop collects."""

    def start(self, nodes: Any) -> Any:
        """The carry before the first iteration, from the shapes of one iteration's nodes."""

    def step(self, carry: Any, index: Any, nodes: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The carry after iteration `index`, and what a scan is to stack of the nodes."""

    def finish(self, carry: Any, stacked: tuple[Any, ...], trips: Any) -> tuple[Any, ...]:
        """The nodes of the whole loop, after `trips` iterations (an int when known)."""


class ScannedLoops(Loops, Protocol):
    """The same for a scan."""

    def within(self, handler: Any, carry: Any) -> Handler:
        """The handler of an iteration, before which the carry is this."""


class Chunks(Protocol):
    """How a handler meets the logs of many iterations of a loop at a time.

    Attributes:
        size: The number of iterations.
        collect: The handler of these, whose nodes are their logs.
    """

    @property
    def size(self) -> int: ...

    @property
    def collect(self) -> Handler: ...

    def begin(self) -> Chunks:
        """The same after what waits from before the loop was met."""

    def take(self, nodes: tuple[Any, ...]) -> None:
        """Meets the logs of so many iterations, or of those that are left."""

    def arrays(self) -> tuple[Any, ...]:
        """What the handler holds after the loop."""


class Handler:
    """What becomes of logs. A handler that returns no nodes leaves or drops each log in its place.

    Attributes:
        forward: Whether a handler further out wants the logs that this one leaves.
        cacheable: Whether equal handlers are interchangeable, so that what was traced under one serves another.
        collects: Whether `receive` returns nodes at all.
        carries: Whether the nodes of a program are the arrays that the handler holds after it.
        mends: Whether it mends what JAX does to a program, and so acts on what taps have taken as well.
        foresees: Whether `before` needs the jaxpr of a function that a custom rule is for.
        keeps_order_by_key: Whether nodes may change places that have no key in common.
    """

    forward: bool = False
    cacheable: bool = True
    collects: bool = False
    carries: bool = False
    mends: bool = False
    foresees: bool = False
    keeps_order_by_key: bool = True

    def receive(self, nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        """Meets logs; returns the nodes that it collects, and emits those that it leaves."""
        raise NotImplementedError

    def replace(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """The logs that a handler which works in place puts instead of these."""
        raise NotImplementedError

    def meet(self, nodes: tuple[Node, ...]) -> tuple[Handler, tuple[Any, ...]]:
        """`receive`, with the handler of what comes after."""
        return self, self.receive(nodes)

    def shared(self) -> Handler:
        """The handler in a function that is compiled once for all its callers."""
        return self

    def detached(self) -> Handler:
        """The handler where its arrays cannot be carried on."""
        return self

    def on_shards(self) -> Handler:
        """The handler on shards of which it is not known what differs, where its arrays cannot be changed."""
        return self

    def backward(self) -> Handler | None:
        """The handler of what a backward pass logs for this part of the program; None to leave that alone."""
        return None

    def append(self, nodes: list[Any], new: tuple[Any, ...]) -> None:
        """Adds the nodes that were collected next to those before."""
        nodes.extend(new)

    def join(self, nodes: Sequence[Any]) -> tuple[Any, ...]:
        """The nodes of a sequence of logs."""
        return tuple(nodes)

    def iterations(self, length: int) -> Any:
        """The numbers of a scan's iterations, shape `(length,)`, when each is to run under `iteration(number)`."""
        return None

    def iteration(self, index: Any) -> Handler:
        """The handler of one iteration of a scan."""
        raise NotImplementedError

    def arrays(self) -> tuple[Any, ...]:
        """The values that the handler holds. A rule that JAX runs later gets them as arguments of its own."""
        return ()

    def holding(self, arrays: Sequence[Any]) -> Handler:
        """The same handler with these values instead of its own."""
        return self

    def abandon(self) -> None:
        """Does what is still to be done for logs that have happened when an exception ends the function."""

    def private(self) -> Handler:
        """The same handler, of whose logs no handler further out hears."""
        return self

    def beside(self, sites: frozenset[Site]) -> Handler:
        """What a rule runs under when the logs at `sites` are collected anyway, with the function that it is for."""
        raise NotImplementedError

    def inside(self) -> Handler:
        """The handler inside a loop or branch, where it is not known how many events came before."""
        return self

    def after(self, nodes: list[Any]) -> tuple[Handler, list[Any]]:
        """The handler of what comes after these nodes, and the nodes as far as they are settled by then."""
        return self, nodes

    def before(self, primitive: Any, params: dict[str, Any]) -> Handler:
        """The handler before a primitive with these parameters."""
        return self

    def chunks(self, jaxpr: Any, length: Any) -> Chunks | None:
        """How to meet the logs of a scan's body many iterations at a time; None to meet each as it happens."""
        return None

    def scan_loops(self, length: int) -> ScannedLoops | None:
        """How to collect over a loop whose length is known; None to stack each iteration's nodes."""
        return None

    def while_loops(self, found: Sequence[Event]) -> Loops | Handler:
        """How to collect over a loop of unknown length, or another handler to run its body under."""
        raise NotImplementedError

    def branches(self, nodes: Sequence[tuple[Any, ...]]) -> Sequence[Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
        """For each branch, given the nodes' shapes of all, how to make its nodes of one structure with the others'."""
        raise NotImplementedError


class Rule(Protocol):
    """How a primitive runs under a handler: returns its outputs and the nodes that were collected in it."""

    def __call__(
        self, handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]: ...


rules: dict[Any, Rule] = {}

_compiled = {jex.core.primitives.scan_p, jex.core.primitives.while_p, jex.core.primitives.cond_p}
"""The primitives that JAX compiles where they are bound eagerly, once for the same jaxpr."""


_with_rules = {
    jex.core.primitives.custom_jvp_call_p,
    jex.core.primitives.custom_vjp_call_p,
    _compat.custom_vmap_p,
}
"""The primitives of functions with rules of their own, whose logs no jaxpr shows."""


def rule(*primitives: Any) -> Callable[[Rule], Rule]:
    """Registers the rule of one or several primitives."""

    def register(function: Rule) -> Rule:
        for primitive in primitives:
            if primitive is None:  # This JAX has no such primitive.
                continue
            if primitive in rules:
                raise ValueError(f"{primitive} already has a rule")
            rules[primitive] = function
        return function

    return register


class HandlerTrace(Listener):
    """Runs primitives in the trace around it, and logs through a handler."""

    __slots__ = ("parent_trace", "handler", "nodes", "runs_at_once", "held", "room")

    def __init__(self, parent: Any, handler: Handler):
        super().__init__()
        _compat.adopt_level(self, parent)
        self.parent_trace = parent
        self.handler = handler
        self.nodes: list[Any] = []
        self.runs_at_once = _compat.runs_at_once(self)
        self.held: set[int] = set()
        """Which arrays the nodes refer to that are not copies, where operations run at once."""
        self.room = 8 * CHUNK

    def stage_value(self, val: Any) -> Any:
        return self.parent_trace.stage_value(val)

    def process_primitive(self, primitive: Any, args: Any, params: Any, /) -> Any:
        if primitive is log_p:
            self.hear(*received(args, params))
            return []
        with jex.core.set_current_trace(self.parent_trace):
            if self.held and may_delete(primitive, params):
                self.nodes = copied(self.nodes, [arg for arg in args if id(arg) in self.held])
            if not logs_in(params) and not self.may_ask_rule(primitive, params):
                if is_late(primitive):
                    _refuse_late(primitive, args, params)
                return primitive.bind(*args, **params)
            return self.apply(primitive, args, params)

    def hear(self, nodes: tuple[Node, ...], to: Destination | None) -> None:
        with jex.core.set_current_trace(self.parent_trace):
            if self.handler.collects and self.runs_at_once:
                for event in nodes:
                    arrays = (*event.values.values(), *event.steps.values()) if isinstance(event, Event) else ()
                    self.held.update(map(id, arrays or jax.tree.leaves(event)))
            if not self.handler.mends:
                nodes = with_values(nodes)
            if to is None:
                self.handler, collected = self.handler.meet(nodes)
                self.collect(collected)
            else:
                emit(self.handler.replace(nodes) if self.handler.mends else nodes, to)

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, args: Any, /, *, symbolic_zeros: bool) -> Any:
        return self.call(primitive, fun, args, {"jvp": jvp, "symbolic_zeros": symbolic_zeros})

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, args: Any, /, *, out_trees: Any, symbolic_zeros: bool
    ) -> Any:
        params = {"fwd": fwd, "bwd": bwd, "out_trees": out_trees, "symbolic_zeros": symbolic_zeros}
        return self.call(primitive, fun, args, params)

    def process_shard_map(self, primitive: Any, fun: Any, args: Any, /, **params: Any) -> Any:
        with jex.core.set_current_trace(self.parent_trace):
            return self.apply(primitive, args, {"fun": fun, **params})

    def process_call(self, primitive: Any, fun: Any, args: Any, params: Any, /) -> Any:
        """Call primitives of jax 0.10, which mean nothing but the call."""
        del primitive, params
        with jex.core.set_current_trace(self):
            return fun.call_wrapped(*args)

    def call(self, primitive: Any, fun: Any, args: Any, params: dict[str, Any]) -> Any:
        if _compat.is_eager(self.parent_trace):  # Nothing can differentiate this call: its rules will not be asked for.
            with jex.core.set_current_trace(self):
                return fun.call_wrapped(*args)
        with jex.core.set_current_trace(self.parent_trace):
            foreseen = None
            if self.handler.foresees:
                jaxpr, _ = _compat.trace(_compat.renewed(fun), [jax.typeof(arg) for arg in args], "lox")
                _compat.renew(fun)
                foreseen = {"fun": jaxpr}
            return self.apply(primitive, args, {"fun": fun, **params}, foreseen)

    def apply(self, primitive: Any, args: Any, params: Any, foreseen: dict[str, Any] | None = None) -> Any:
        if primitive not in rules:
            raise UnsupportedPrimitiveError(unsupported(primitive, params))
        if primitive in _compiled and self.runs_at_once:  # A rule makes of it what is new at each call.
            with jex.core.set_current_trace(self):
                return _compat.run_compiled(primitive, args, params)
        self.handler = self.handler.before(primitive, foreseen or params)
        handler, self.nodes = self.handler.after(self.nodes)
        with _hearing(heard.value if not handler.collects else handler.forward):
            outs, nodes = rules[primitive](handler, primitive, args, dict(params))
        if self.handler.carries:
            self.handler = self.handler.holding(jax.lax.stop_gradient(nodes))
        else:
            self.collect(nodes)
        return outs

    def may_ask_rule(self, primitive: Any, params: Any) -> bool:
        """Whether JAX may run a rule in a primitive that logs though the function that it is for does not."""
        return primitive in rules and not self.is_eager() and (primitive in _with_rules or rules_in(params))

    def is_eager(self) -> bool:
        """Whether operations run at once, with nothing but handlers around."""
        around = self.parent_trace
        return _compat.is_eager(around) or (isinstance(around, HandlerTrace) and around.is_eager())

    def close(self) -> None:
        """Lets go of all values: rules of differentiation outlive the trace they were made in, and refer to it."""
        self.parent_trace, self.nodes = None, []

    def collect(self, nodes: tuple[Any, ...]) -> None:
        self.handler.append(self.nodes, nodes)
        if self.held and len(self.nodes) >= self.room:
            self.stack()

    def collected(self) -> tuple[Any, ...]:
        """The nodes of the whole function."""
        try:
            if self.held:
                self.stack()
            return self.handler.join(self.nodes)
        except (RuntimeError, ValueError):
            check_alive(self.nodes)
            raise

    def stack(self) -> None:
        """Puts nodes that are alike into one, so that many take little time to put together in the end."""
        if len(self.nodes) > CHUNK and self.handler.keeps_order_by_key:
            try:
                self.nodes = stacked(self.nodes)
            except (RuntimeError, ValueError):
                check_alive(self.nodes)
                raise
            self.room = max(self.room, 2 * len(self.nodes))


def _hearing(hears: bool) -> contextlib.AbstractContextManager[Any]:
    """The context in which `heard` is this; one that is not changed costs nothing."""
    return contextlib.nullcontext() if heard.value == hears else heard(hears)


def _runs_plainly(trace: Any, params: dict[str, Any]) -> bool:
    # JAX does not ask again. So a handler that collects sees each call that donates: one may be of what was logged.
    if not isinstance(trace, HandlerTrace) or not trace.is_eager() or logs_in(params):
        return False
    return in_place.value or not any(params["donated_invars"])


_compat.share_fast_dispatch(_runs_plainly)
_compat.let_pmap_run(lambda trace: isinstance(trace, HandlerTrace) and trace.is_eager())


def under(handler: Handler, fun: Callable[..., Any]) -> Callable[..., tuple[Any, tuple[Any, ...]]]:
    """`fun`, run under `handler` in whatever trace is current; it also returns the nodes that were collected."""

    def run(*args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        _compat.check_processes()
        with jex.core.take_current_trace() as parent:
            trace = HandlerTrace(parent, handler)
            try:
                with jex.core.set_current_trace(trace), _hearing(handler.collects or heard.value):
                    outs = fun(*args, **kwargs)
                with jex.core.set_current_trace(parent):
                    return outs, trace.collected()
            except BaseException as error:
                if _compat.runs_at_once(parent):
                    with jex.core.set_current_trace(parent):
                        trace.handler.abandon()
                refused = _compat.refusal(error)
                if refused is not None:
                    raise refused from error
                raise
            finally:
                trace.close()

    return run


class InPlace(Handler):
    """A handler that replaces each log by other logs in the same place, and collects nothing."""

    forward = True

    def receive(self, nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        emit(self.replace(nodes))
        return ()

    def while_loops(self, found: Sequence[Event]) -> Handler:
        return self

    def branches(self, nodes: Sequence[tuple[Any, ...]]) -> Sequence[Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
        return [tuple for _ in nodes]


@dataclasses.dataclass(frozen=True)
class Silence(InPlace):
    """Drops every log."""

    mends = True
    forward: bool = False

    def replace(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return ()


# -- logs inside jaxprs --------------------------------------------------------------------------------------------


def logs_in(params: dict[str, Any]) -> bool:
    """Whether a log happens in a jaxpr among the parameters of a primitive.

    The effects of a jaxpr do not tell: some primitives, `pallas_call` for one, hide those of what they call.
    """
    return any(has_log(jaxpr) for jaxpr in jaxprs_in(params)) or any(
        isinstance(effect, LogEffect)
        for value in params.values()
        if not _compat.is_jaxpr(value)
        for effect in getattr(value, "effects", ())
    )


@_compat.weakref_lru_cache
def has_log(jaxpr: Any) -> bool:
    return any(
        eqn.primitive is log_p or logs_in(eqn.params) or (is_late(eqn.primitive) and any(_late_events_of(eqn)))
        for eqn in _compat.open_jaxpr(jaxpr).eqns
    )


def jaxprs_in(params: dict[str, Any]) -> Iterator[Any]:
    """The jaxprs among the parameters of a primitive."""
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
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


def logs_of(jaxpr: Any) -> Iterator[tuple[tuple[Node, ...], Any]]:
    """The logs of a jaxpr and where they go, with abstract values in place of arrays."""
    for eqn in equations(jaxpr):
        if eqn.primitive is log_p:
            yield received([v.aval for v in eqn.invars], eqn.params)


def events_in(jaxpr: Any) -> Iterator[Event]:
    """The events of a jaxpr that wait for a handler, with abstract values in place of arrays."""
    for nodes, to in logs_of(jaxpr):
        if to is None:
            yield from events(nodes)


def rules_in(params: dict[str, Any]) -> bool:
    """Whether a function with a rule of its own is called in a jaxpr among the parameters of a primitive."""
    return any(_has_rule(jaxpr) for jaxpr in jaxprs_in(params))


@_compat.weakref_lru_cache
def _has_rule(jaxpr: Any) -> bool:
    return any(eqn.primitive in _with_rules or rules_in(eqn.params) for eqn in _compat.open_jaxpr(jaxpr).eqns)


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


def _refuse_late(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> None:
    for event in _late_events(primitive, [jax.typeof(arg) for arg in args], params):
        raise UnsupportedPrimitiveError(_without_rule(primitive, f" at {event.site}"))


def tapped_in(params: dict[str, Any]) -> bool:
    """Whether a log on its way to a tap happens in a jaxpr among the parameters of a primitive."""
    return any(
        isinstance(effect, TapEffect) for jaxpr in jaxprs_in(params) for effect in _compat.open_jaxpr(jaxpr).effects
    )


def unsupported(primitive: Any, params: dict[str, Any]) -> str:
    found = [nodes for jaxpr in jaxprs_in(params) for nodes, _ in logs_of(jaxpr)]
    sites = [str(event.site) for nodes in found for event in events(nodes)]
    return _without_rule(primitive, f" at {sites[0]}" if sites else "")


def _without_rule(primitive: Any, where: str) -> str:
    return (
        f"lox has no rule for the primitive '{primitive}', inside which lox.log is called{where}. "
        f"Log outside of it, or run the function without this log: lox.strip(f)."
    )
