"""Functions with rules of their own: `custom_jvp`, `custom_vjp` (also under `custom_root`), `custom_vmap`.

A handler that returns results adds those of the function's logs to its outputs. The rule then gives the derivative of
the outputs; the rule does not mention the logs, which have their true derivative. Other logs of the rule go to a
handler further out. A handler that acts where logs happen runs in the rules as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.api_util import debug_info
from jax.extend.linear_util import wrap_init

from lox import _compat
from lox._ambient import ambient
from lox._effect import emit, recording
from lox._events import NOWHERE, Event, Logs, Site, events, map_events
from lox._exceptions import UnsupportedPrimitiveError
from lox._handler import DropAll, Filter, Handler, Results, State, Stateful, Streamer, rule
from lox._logs_in import equations, events_in, logs_in, logs_of
from lox._select import Selection
from lox._trace import under

primitives = jex.core.primitives


class _Function:
    """A function with a rule, under a handler.

    What runs is recorded, and in the contexts, as where the function is called: rules run when the handler's own call,
    or the block of a context, may be over.
    The arguments are those of the function after the leaves of the state, since JAX runs rules later, when a value
    that was merely captured is gone.
    """

    def __init__(self, handler: Handler, structure: Any, fun: Callable[..., Any], recorded: bool | None = None):
        self.handler = handler
        self.structure = structure
        self.fun = fun
        self.held = structure.num_leaves
        self.recorded = recording.value if recorded is None else recorded
        self.around = ambient.value
        self.results_structure: Any = None

    def outs(self, *args: Any) -> Any:
        """The outputs of the function, under a filter."""
        return self._outs(False, *args)

    def outs_of_rule(self, *args: Any) -> Any:
        """The outputs of a rule that stands for the function, under a filter."""
        return self._outs(True, *args)

    def _outs(self, is_rule: bool, *args: Any) -> Any:
        with self._where_called(), self.handler.in_function(self._state(()), is_rule) as (handler, state):
            return under(handler, self.fun)(state, *args)[0]

    def backward(self, *args: Any) -> Any:
        """The outputs of the function, if it is the backward pass of another."""
        return self.run_backward(self.fun, (), *args)

    def with_results(self, *args: Any) -> tuple[list[Any], list[Any]]:
        """The outputs, and the leaves of the state after the function and of its logs."""
        with self._where_called(), self.handler.in_function(self._state(args), False) as (handler, state):
            outs, *results = under(handler, self.fun)(state, *args[self.held :])
        return list(outs), self._leaves(results)

    def results(self, *args: Any) -> list[Any]:
        """The leaves of the results of a handler that returns logs, apart from the outputs."""
        if self.results_structure is not None and not self.results_structure.num_leaves:
            return []

        def apart(*args: Any) -> list[Any]:
            return self.with_results(*args)[1]

        return under(DropAll(), apart)(None, *args)[0]  # What it leaves happens with the outputs.

    def derivative(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The leaves of the results, and their tangents.

        Raises:
            UnsupportedPrimitiveError: JAX does not differentiate the function in forward mode.
        """
        try:
            return jax.jvp(self.results, primals, tangents)
        except TypeError as error:
            jaxpr = self._jaxpr([jax.typeof(primal) for primal in primals[self.held :]])
            if all(eqn.primitive is not primitives.custom_vjp_call_p for eqn in equations(jaxpr)):
                raise
            logged = list(events_in(jaxpr))
            if not logged:  # So that the results do not depend on the arguments.
                held, args = tuple(primals[: self.held]), primals[self.held :]
                return jax.jvp(lambda *held: self.results(*held, *args), held, tuple(tangents[: self.held]))
            raise UnsupportedPrimitiveError(
                f"JAX has no forward-mode derivative of what is logged at {logged[0].site}: the log is in a function "
                "with a custom_jvp rule, which calls a function with a custom_vjp rule. Put the handler outside of the "
                "derivative, as in lox.spool(jax.jacfwd(f)), or remove the logs of that function with lox.strip."
            ) from error

    @contextlib.contextmanager
    def _where_called(self) -> Iterator[None]:
        with recording(self.recorded), ambient(self.around):
            yield

    def _state(self, args: Sequence[Any]) -> State:
        return jax.tree.unflatten(self.structure, args[: self.held])

    def _leaves(self, results: Any) -> list[Any]:
        leaves, self.results_structure = jax.tree.flatten(tuple(results))
        return leaves

    def _jaxpr(self, avals: Sequence[Any]) -> Any:
        with self._where_called():
            return _compat.trace(self.fun, avals, "lox")[0]

    def sites(self, avals: Sequence[Any]) -> frozenset[Site]:
        """The log calls of the function, for arguments of these abstract values."""
        if not self.handler.returns_logs:
            return frozenset()
        return frozenset(event.site for event in events_in(self._jaxpr(avals)))

    def run_rule(
        self, rule: Callable[..., Any], held: Sequence[Any], *args: Any, sites: frozenset[Site] = frozenset()
    ) -> tuple[Any, list[Any]]:
        """Run a rule that stands for the function.

        A handler that acts where logs happen runs in the rule. One that returns results has those of the logs at
        `sites` from the function itself; the other logs of the rule are left for a handler further out.

        Returns:
            The outputs, and the leaves of the results of a handler that acts where logs happen.
        """
        with self._where_called():  # Also if nobody hears of it: JAX remembers what it makes of a rule.
            if self.handler.returns_logs:
                handler, state = self.handler.detached(self._state(held), sites)
                return under(handler, rule)(state, *args)[0], []
            with self.handler.in_function(self._state(held), True) as (current, state):
                outs, *results = under(current, rule)(state, *args)
        return outs, self._leaves(results)

    def run_backward(self, rule: Callable[..., Any], held: Sequence[Any], *args: Any) -> Any:
        """Run the backward pass of the function, and return its outputs."""
        handler, state = self.handler.in_backward_rule(self._state(held))
        with self._where_called():
            return under(handler, rule)(state, *args)[0]

    def run_rule_beside(
        self,
        rule: Callable[..., Any],
        held: Sequence[Any],
        held_batched: Sequence[bool],
        sites: frozenset[Site],
        *args: Any,
    ) -> list[Any]:
        """Run a batching rule where the logs of the function, at `sites`, are taken from the function.

        Logs of the rule alone are of all batch elements. They go to the handler, where these agree in its state.
        """
        handler: Handler = self.handler
        state, differs = self._state(held), self._state(held_batched)
        if isinstance(handler, Streamer):
            (handler, state), (_, differs) = (handler.detached(each, frozenset()) for each in (state, differs))
        parts = handler.adds_axes or any(jax.tree.leaves(differs))
        # What happens to a part of the program for any batch element happens to a log of the whole batch.
        whole = handler.sees_tapped and not handler.adds_axes and not sites
        selection = getattr(handler, "selection", Selection())
        beside = _OfRule(sites, parts, selection, whole, handler.sees_tapped)
        state = jax.tree.map(lambda leaf, batched: _of_any(leaf) if batched else leaf, state, differs)
        with self._where_called():
            return under(handler, lambda *args: under(beside, rule)(None, *args)[0])(state, *args)[0]

    def leave(self, handler: Handler, state: State, leaves: Sequence[Any]) -> tuple[State, Logs]:
        """The state of the handler after the function, and the logs that were collected in it."""
        return handler.leave(state, *jax.tree.unflatten(self.results_structure, leaves))


def _of_any(leaf: Any) -> Any:
    """Of a condition for each batch element, whether it holds for any; of others, that of the first element."""
    return jnp.any(leaf, 0) if jnp.issubdtype(leaf.dtype, bool) else leaf[0]


def _traceless(fun: Any) -> Callable[..., Any]:
    """A flat function of JAX's, callable more than once, and after it as if it had not run."""

    def call(*args: Any) -> Any:
        try:
            return _compat.renewed(fun)(*args)
        finally:
            _compat.renew(fun)

    return call


class _Entered(NamedTuple):
    """The handler of a function with rules, and the leaves and the structure of its state there."""

    handler: Handler
    leaves: list[Any]
    structure: Any

    @property
    def is_static(self) -> bool:
        """True if the handler adds neither arguments nor results to the function."""
        return isinstance(self.handler, Filter) and not self.leaves


def _entered(handler: Handler, state: State, fun: Any, args: Sequence[Any]) -> _Entered:
    programs = []
    if isinstance(handler, (Stateful, Streamer)):
        programs = [_compat.trace(_traceless(fun), [jax.typeof(arg) for arg in args], "lox")[0]]
    inner, inside = handler.enter(state, programs, "rule")
    return _Entered(inner, *jax.tree.flatten(inside))


def _filtered(entered: _Entered, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Call a function under a filter without arrays, which runs in the function and in its rules."""
    rules = [name for name in ("fun", "jvp", "fwd", "bwd") if name in params]
    others = {name: value for name, value in params.items() if name not in rules}

    def run(name: str) -> Any:
        fun = params[name]
        function = _Function(entered.handler, entered.structure, _compat.renewed(fun))
        run = {"fun": function.outs, "bwd": function.backward}.get(name, function.outs_of_rule)
        return wrap_init(run, debug_info=fun.debug_info)

    outs = primitive.bind(*args, subfuns=tuple(map(run, rules)), **others)
    _compat.settle(*map(params.get, rules))
    return outs


def _keep_call(handler: Handler, outs: Sequence[Any]) -> None:
    """Keep a call where JAX splits a program by what is known: it forgets one without used outputs, logs or not."""
    if handler.sees_tapped:
        emit((Event({}, {}, mask=None, iteration_deps=tuple(outs[:1]), site=NOWHERE),))


# custom_jvp: args -> outs, (args, tangents) -> (outs, tangents)  becomes  (state, args) -> (outs, results), ...
@rule(primitives.custom_jvp_call_p)
def custom_jvp(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    entered = _entered(handler, state, params["fun"], args)
    if entered.is_static:
        return _filtered(entered, primitive, args, params), state, ()
    if not handler.sees_tapped:
        return _custom_jvp(handler, state, entered, args, params)
    # The outputs must not depend on the state of the handler: where JAX splits a program by what is known, it may keep
    # the rule of a function of known values only. So the function runs once for its outputs, once for its logs. The
    # first run is silent but recorded, since JAX traces a rule once and remembers it.
    outs = _filtered(_entered(DropAll(), None, params["fun"], args), primitive, args, params)
    _, state, logs = _custom_jvp(handler, state, entered, args, params)
    return outs, state, logs


def _custom_jvp(
    handler: Handler, state: State, entered: _Entered, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    inner, leaves, structure = entered
    primal = _Function(inner, structure, _compat.renewed(params["fun"]))
    logs = _Function(inner, structure, _traceless(params["fun"]))
    held = primal.held

    function = jax.custom_jvp(primal.with_results)

    def function_jvp(primals: Any, tangents: Any) -> Any:
        rule = _compat.renewed(params["jvp"])
        sites = logs.sites([jax.typeof(primal) for primal in primals[held:]])
        both, leaves = primal.run_rule(rule, primals[:held], *primals[held:], *tangents[held:], sites=sites)
        outs, outs_dot = both[: len(both) // 2], both[len(both) // 2 :]
        leaves_dot = [_compat.instantiate(_compat.zero_tangent(leaf)) for leaf in leaves]
        if inner.returns_logs:
            logs.results_structure = primal.results_structure
            leaves, leaves_dot = logs.derivative(tuple(primals), tuple(map(_compat.instantiate, tangents)))
            primal.results_structure = logs.results_structure
        return (list(outs), leaves), ([_compat.rule_zero(tangent) for tangent in outs_dot], leaves_dot)

    function.defjvp(function_jvp, symbolic_zeros=params["symbolic_zeros"])
    outs, leaves = function(*leaves, *args)
    _compat.settle(params["fun"], params["jvp"])
    return outs, *primal.leave(handler, state, leaves)


# custom_vjp: args -> outs  becomes  (state, args) -> (outs, results), with fwd and bwd to match
@rule(primitives.custom_vjp_call_p)
def custom_vjp(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    entered = _entered(handler, state, params["fun"], args)
    if entered.is_static:
        outs = _filtered(entered, primitive, args, params)
        _keep_call(handler, outs)
        return outs, state, ()
    inner, leaves, structure = entered
    primal = _Function(inner, structure, _compat.renewed(params["fun"]))
    logs = _Function(inner, structure, _traceless(params["fun"]))
    held = primal.held

    function = jax.custom_vjp(primal.with_results)
    # Symbolic zeros tell that nothing differentiates the logs; JAX has none under a shard_map.
    symbolic_zeros = params["symbolic_zeros"] or not jax.sharding.get_abstract_mesh().manual_axes

    def function_fwd(*pairs: Any) -> Any:
        values = [pair.value for pair in pairs] if symbolic_zeros else list(pairs)
        perturbed = [pair.perturbed for pair in pairs] if symbolic_zeros else [True] * len(pairs)
        flat = [item for pair in zip(values[held:], perturbed[held:], strict=True) for item in pair]
        sites = logs.sites([jax.typeof(value) for value in values[held:]])
        saved, leaves = primal.run_rule(_compat.renewed(params["fwd"]), values[:held], *flat, sites=sites)
        _, residual_tree, forwarded = params["out_trees"]()
        count = residual_tree.num_leaves - sum(position is not None for position in forwarded)
        if inner.returns_logs:
            logs.results_structure = primal.results_structure
            leaves = logs.results(*values)
            primal.results_structure = logs.results_structure
        return (list(saved[count:]), leaves), (list(saved[:count]), values)

    def function_bwd(saved: Any, cotangents: Any) -> Any:
        pruned, values = saved
        outs_bar, leaves_bar = cotangents
        _, _, forwarded = params["out_trees"]()
        remaining = iter(pruned)
        residuals = [next(remaining) if place is None else values[held + place] for place in forwarded]
        if not params["symbolic_zeros"]:
            outs_bar = [_compat.instantiate(bar) for bar in outs_bar]
        results = primal.run_backward(_compat.renewed(params["bwd"]), values[:held], *residuals, *outs_bar)
        bars = [None if _compat.is_zero(bar) else bar for bar in _compat.cotangents(results)]
        if inner.returns_logs and not all(map(_compat.is_zero, leaves_bar)):
            _, pull_back = jax.vjp(logs.results, *values)
            of_logs = pull_back([_compat.instantiate(bar) for bar in leaves_bar])
            bars = [_add(a, b) for a, b in zip(bars, of_logs[held:], strict=True)]
        return (*[None] * held, *bars)

    function.defvjp(function_fwd, function_bwd, symbolic_zeros=symbolic_zeros)
    outs, leaves = function(*leaves, *args)
    _keep_call(handler, outs)
    _compat.settle(params["fun"], params["fwd"])
    return outs, *primal.leave(handler, state, leaves)


# A HiPrim of jax 0.12, such as custom_root: args -> outs  becomes  a custom_jvp of what it stands for
@rule(_compat.high_p)
def high(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    def function(*args: Any) -> Any:
        return primitive.to_lojax(*args, **params)

    def function_jvp(*both: Any) -> list[Any]:
        primals, tangents = both[: len(both) // 2], both[len(both) // 2 :]
        moving = [place for place, tangent in enumerate(tangents) if not _compat.is_zero(tangent)]

        def moved(*values: Any) -> Any:
            at = dict(zip(moving, values, strict=True))
            return primitive.bind(*(at.get(place, primal) for place, primal in enumerate(primals)), **params)

        outs, outs_dot = jax.jvp(moved, [primals[place] for place in moving], [tangents[place] for place in moving])
        return [*outs, *outs_dot]

    flat = {
        name: wrap_init(f, debug_info=debug_info("lox", f, (), {}))
        for name, f in (("fun", function), ("jvp", function_jvp))
    }
    return custom_jvp(handler, state, primitives.custom_jvp_call_p, args, flat | {"symbolic_zeros": True})


def _add(first: Any, second: Any) -> Any:
    if second.dtype == jax.dtypes.float0:
        return first
    return second if first is None else first + second


@dataclasses.dataclass(frozen=True)
class _OfRule(Filter):
    """Leaves what a batching rule logs beside the logs of its function, if it is known how they are used.

    Attributes:
        sites: The log calls of the function, whose logs are taken from the function, for each batch element.
        refuses: Whether other logs are refused, since batch elements use them differently.
        selection: The logs that are refused.
        takes_whole: Whether logs of the whole batch, which have no batch axis, are left all the same.
        refuses_tapped: Whether logs on their way to a tap are refused as well.
    """

    sees_tapped = True

    sites: frozenset[Site]
    refuses: bool
    selection: Selection
    takes_whole: bool
    refuses_tapped: bool

    def handle(self, state: State, logs: Logs) -> Results:
        emit(self._others(logs, self.refuses))
        return state, ()

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return self._others(logs, self.refuses and self.refuses_tapped)

    def _others(self, logs: Logs, refuses: bool) -> Logs:
        logs = map_events(lambda event, _: None if event.site in self.sites else event, logs)
        for event in events(self.selection.split(logs)[0] if refuses else ()):
            if event.values and not (self.takes_whole and not event.batch_ndim):
                raise UnsupportedPrimitiveError(
                    f"A batching rule logs, at {event.site}, of a function that is called under a vmap whose batch "
                    "elements part: in a branch or loop, or in runs of their own. lox cannot tell for which of them "
                    "the rule runs. Log in the function rather than in its rule, or leave this log out with lox.strip."
                )
        return logs


# custom_vmap: args -> outs  becomes  (state, args) -> (outs, results)
# Batch elements may differ in the state, and in their logs by it: then each element's logs are those of the function,
# and the outputs come from the rule. A state that the function cannot change stays outside.
@rule(_compat.custom_vmap_p)
def custom_vmap(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    if isinstance(handler, Streamer) and not logs_in(params):
        outs, _, _ = custom_vmap(*handler.detached(state, frozenset()), primitive, args, params)
        return outs, state, ()
    inner, inside = handler.enter(state, [params["call"]], "rule")
    leaves, structure = jax.tree.flatten(inside)
    primal = _Function(inner, structure, _compat.as_fun(params["call"]))
    held = primal.held
    function = jax.custom_batching.custom_vmap(primal.with_results)

    @function.def_vmap
    def function_vmap(axis_size: int, in_batched: Sequence[bool], *args: Any) -> Any:
        out_batched: list[bool] = []

        def rule(*args: Any) -> list[Any]:
            if not any(in_batched[held:]):  # Only the state has the batch axis: JAX would not run the rule.
                outs = primitive.bind(*args, **params)
                out_batched[:] = [False] * len(outs)
                return outs
            unflatten = params["in_tree"].unflatten
            outs, batched = params["rule"](axis_size, unflatten(list(in_batched[held:])), *unflatten(list(args)))
            out_batched[:] = jax.tree.leaves(batched)
            return jax.tree.leaves(outs)

        # The logs of the rule are those of all batch elements; they happen where they do for any of them.
        held_args = args[:held]
        values = [_of_any(a) if batched else a for a, batched in zip(held_args, in_batched[:held], strict=True)]

        def one(*args: Any) -> list[Any]:
            return primal.results(*args) if inner.returns_logs else primal.with_results(*args)[1]

        if inner.returns_logs:
            outs, _ = primal.run_rule(rule, values, *args[held:], sites=primal.sites(_compat.in_avals(params["call"])))
        elif isinstance(inner, Streamer) or any(in_batched[:held]) or inner.adds_axes:
            sites = frozenset(event.site for logs, _ in logs_of(params["call"]) for event in events(logs))
            outs = primal.run_rule_beside(rule, held_args, in_batched[:held], sites, *args[held:])
            if not sites:
                return (outs, []), (out_batched, [])
        else:
            outs, leaves = primal.run_rule(rule, held_args, *args[held:])
            return (outs, leaves), (out_batched, [False] * len(leaves))
        in_axes = tuple(0 if batched else None for batched in in_batched)
        leaves = jax.vmap(one, in_axes=in_axes, axis_size=axis_size)(*args)
        return (outs, leaves), (out_batched, [True] * len(leaves))

    outs, leaves = function(*leaves, *args)
    return outs, *primal.leave(handler, state, leaves)
