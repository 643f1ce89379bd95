"""Functions with rules of their own: `custom_jvp`, `custom_vjp` (also under `custom_root`), `custom_vmap`.

A handler that collects adds the logs of the function to its outputs; its rule then gives the outputs' derivative,
and the logs, which the rule says nothing of, have their true one. What a rule logs besides happens outside of what
the handler runs, and goes to a handler further out. A handler that works in place works in the rules as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
from jax.extend.linear_util import StoreException

from lox import _compat
from lox._effect import emit, recording
from lox._events import NOWHERE, Event, Site
from lox._exceptions import UnsupportedPrimitiveError
from lox._handler import Handler, Silence, equations, events_in, rule, under

primitives = jex.core.primitives


class _Function:
    """A function with a rule, under a handler.

    What runs is recorded as where the function is called, since rules run when the handler's own call may be over.
    The arguments are those of the function after the values that the handler holds, since JAX runs rules later, when
    a value that was merely captured is gone.
    """

    def __init__(self, handler: Handler, fun: Callable[..., Any], recorded: bool | None = None):
        self.handler = handler
        self.fun = fun
        self.held = len(handler.arrays())
        self.recorded = recording.value if recorded is None else recorded
        self.structure: Any = None

    def with_logs(self, *args: Any) -> tuple[list[Any], list[Any]]:
        """The outputs, and the leaves of the collected nodes."""
        handler = self.handler.holding(args[: self.held])
        with recording(self.recorded):
            outs, nodes = under(handler, self.fun)(*args[self.held :])
        leaves, self.structure = jax.tree.flatten(nodes)
        return list(outs), leaves

    def logs(self, *args: Any) -> list[Any]:
        """The leaves of the collected nodes, when they are wanted apart from the outputs."""
        if self.structure is not None and not self.structure.num_leaves:
            return []
        alone = _Function(self.handler.private(), self.fun, self.recorded)
        _, leaves = alone.with_logs(*args)
        self.structure = alone.structure
        return leaves

    def derivative(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The leaves of the collected nodes, and their tangents.

        Raises:
            UnsupportedPrimitiveError: JAX does not differentiate the function in forward mode.
        """
        try:
            return jax.jvp(self.logs, primals, tangents)
        except TypeError as error:
            jaxpr = self._jaxpr([jax.typeof(primal) for primal in primals[self.held :]])
            if all(eqn.primitive is not primitives.custom_vjp_call_p for eqn in equations(jaxpr)):
                raise
            site = next(iter(events_in(jaxpr))).site
            raise UnsupportedPrimitiveError(
                f"JAX has no forward-mode derivative of what is logged at {site}: the log is in a function with a "
                "custom_jvp rule, which calls a function with a custom_vjp rule. Compile the derivative with jax.jit, "
                "which leaves out derivatives of logs that nothing uses, or remove the log with lox.strip."
            ) from error

    def _jaxpr(self, avals: Sequence[Any]) -> Any:
        with recording(self.recorded):
            return _compat.trace(self.fun, avals, "lox")[0]

    def sites(self, avals: Sequence[Any]) -> frozenset[Site]:
        """Where the function logs, for arguments of these abstract values."""
        if not self.handler.collects:
            return frozenset()
        return frozenset(event.site for event in events_in(self._jaxpr(avals)))

    def run_rule(
        self, rule: Callable[..., Any], held: Sequence[Any], *args: Any, sites: frozenset[Site] = frozenset()
    ) -> tuple[Any, list[Any]]:
        """What a rule that stands for the function returns, with its logs left in place or to a handler further out.

        Of what the rule runs, the logs at `sites` are the function's, which are collected with it.

        Returns:
            The results, and the leaves of the nodes of a handler that works in place.
        """
        handler = self.handler.beside(sites) if self.handler.collects else self.handler.holding(held)
        with recording(self.recorded):  # Also if nobody hears of it: JAX remembers what it makes of a rule.
            results, nodes = under(handler, rule)(*args)
        leaves, structure = jax.tree.flatten(nodes)
        if not self.handler.collects:
            self.structure = structure
        return results, leaves

    def run_other(self, rule: Callable[..., Any], held: Sequence[Any], *args: Any) -> Any:
        """What a rule returns that does not stand for the function."""
        handler = self.handler
        handler = handler.beside(frozenset()) if handler.collects else handler.holding(held).detached()
        with recording(self.recorded):
            return under(handler, rule)(*args)[0]

    def nodes(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        return jax.tree.unflatten(self.structure, leaves)


def _traceless(fun: Any) -> Callable[..., Any]:
    """A flat function of JAX's, callable more than once, and after it as if it had not run."""

    def call(*args: Any) -> Any:
        try:
            return _compat.renewed(fun)(*args)
        finally:
            _compat.renew(fun)

    return call


def _settle(fun: Any, rule: Any) -> None:
    """Makes the function one that has not run, where its rule has: under several handlers both may have.

    What such a function stores may be stored by it or by its rule, not by both.
    """
    if _has_run(fun) and _has_run(rule):
        _compat.renew(fun)


def _has_run(fun: Any) -> bool:
    return any(_occupied(store) for store in fun.stores if store is not None)


def _occupied(store: Any) -> bool:
    try:
        store.val  # noqa: B018  (the only way to ask)
    except StoreException:
        return False
    return True


# custom_jvp: args -> outs, (args, tangents) -> (outs, tangents)  becomes  args -> (outs, nodes), (...) -> (...)
@rule(primitives.custom_jvp_call_p)
def custom_jvp(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    if not handler.mends:
        return _custom_jvp(handler, args, params)
    # The outputs must not depend on what the handler holds: where JAX splits a program by what is known, it may keep
    # the rule of a function of known values only. So the function runs once for its outputs, once for its logs. The
    # first run is silent but recorded, since JAX traces a rule once and remembers it.
    outs, _ = _custom_jvp(Silence(forward=True), args, params)
    _, nodes = _custom_jvp(handler, args, params)
    return outs, nodes


def _custom_jvp(handler: Handler, args: Sequence[Any], params: dict[str, Any]) -> tuple[list[Any], tuple[Any, ...]]:
    primal = _Function(handler, _compat.renewed(params["fun"]))
    logs = _Function(handler, _traceless(params["fun"]))
    held = primal.held

    function = jax.custom_jvp(primal.with_logs)

    def function_jvp(primals: Any, tangents: Any) -> Any:
        rule = _compat.renewed(params["jvp"])
        sites = logs.sites([jax.typeof(primal) for primal in primals[held:]])
        results, leaves = primal.run_rule(rule, primals[:held], *primals[held:], *tangents[held:], sites=sites)
        outs, outs_dot = results[: len(results) // 2], results[len(results) // 2 :]
        leaves_dot = [_compat.instantiate(_compat.zero_tangent(leaf)) for leaf in leaves]
        if handler.collects:
            logs.structure = primal.structure
            leaves, leaves_dot = logs.derivative(tuple(primals), tuple(map(_compat.instantiate, tangents)))
            primal.structure = logs.structure
        return (list(outs), leaves), ([_compat.rule_zero(tangent) for tangent in outs_dot], leaves_dot)

    function.defjvp(function_jvp, symbolic_zeros=params["symbolic_zeros"])
    outs, leaves = function(*handler.arrays(), *args)
    _settle(params["fun"], params["jvp"])
    return outs, primal.nodes(leaves)


# custom_vjp: args -> outs  becomes  args -> (outs, nodes), with fwd and bwd to match
@rule(primitives.custom_vjp_call_p)
def custom_vjp(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    primal = _Function(handler, _compat.renewed(params["fun"]))
    logs = _Function(handler, _traceless(params["fun"]))
    held = primal.held

    function = jax.custom_vjp(primal.with_logs)
    # Symbolic zeros tell that nothing differentiates the logs; JAX has none under a shard_map.
    symbolic_zeros = params["symbolic_zeros"] or not jax.sharding.get_abstract_mesh().manual_axes

    def function_fwd(*pairs: Any) -> Any:
        values = [pair.value for pair in pairs] if symbolic_zeros else list(pairs)
        perturbed = [pair.perturbed for pair in pairs] if symbolic_zeros else [True] * len(pairs)
        flat = [item for pair in zip(values[held:], perturbed[held:], strict=True) for item in pair]
        sites = logs.sites([jax.typeof(value) for value in values[held:]])
        results, leaves = primal.run_rule(_compat.renewed(params["fwd"]), values[:held], *flat, sites=sites)
        _, residual_tree, forwarded = params["out_trees"]()
        count = residual_tree.num_leaves - sum(position is not None for position in forwarded)
        if handler.collects:
            logs.structure = primal.structure
            leaves = logs.logs(*values)
            primal.structure = logs.structure
        return (list(results[count:]), leaves), (list(results[:count]), values)

    def function_bwd(saved: Any, cotangents: Any) -> Any:
        pruned, values = saved
        outs_bar, leaves_bar = cotangents
        _, _, forwarded = params["out_trees"]()
        remaining = iter(pruned)
        residuals = [next(remaining) if place is None else values[held + place] for place in forwarded]
        if not params["symbolic_zeros"]:
            outs_bar = [_compat.instantiate(bar) for bar in outs_bar]
        results = primal.run_other(_compat.renewed(params["bwd"]), values[:held], *residuals, *outs_bar)
        bars = [None if _compat.is_zero(bar) else bar for bar in _compat.cotangents(results)]
        if handler.collects and not all(map(_compat.is_zero, leaves_bar)):
            _, pull_back = jax.vjp(logs.logs, *values)
            of_logs = pull_back([_compat.instantiate(bar) for bar in leaves_bar])
            bars = [_add(a, b) for a, b in zip(bars, of_logs[held:], strict=True)]
        return (*[None] * held, *bars)

    function.defvjp(function_fwd, function_bwd, symbolic_zeros=symbolic_zeros)
    outs, leaves = function(*handler.arrays(), *args)
    if handler.mends:
        # Where JAX splits a program by what is known, it forgets a call whose outputs nothing uses, logs or not.
        emit((Event({}, {}, mask=None, iteration_deps=tuple(outs[:1]), site=NOWHERE),))
    _settle(params["fun"], params["fwd"])
    return outs, primal.nodes(leaves)


def _add(first: Any, second: Any) -> Any:
    if second.dtype == jax.dtypes.float0:
        return first
    return second if first is None else first + second


# custom_vmap: args -> outs  becomes  args -> (outs, nodes)
@rule(_compat.custom_vmap_p)
def custom_vmap(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    primal = _Function(handler, _compat.as_fun(params["call"]))
    held = primal.held
    function = jax.custom_batching.custom_vmap(primal.with_logs)

    @function.def_vmap
    def function_vmap(axis_size: int, in_batched: Sequence[bool], *args: Any) -> Any:
        out_batched: list[bool] = []

        def rule(*args: Any) -> list[Any]:
            unflatten = params["in_tree"].unflatten
            outs, batched = params["rule"](axis_size, unflatten(list(in_batched[held:])), *unflatten(list(args)))
            out_batched[:] = jax.tree.leaves(batched)
            return jax.tree.leaves(outs)

        # What the rule logs is of all batch elements; it happens where it does for any of them.
        values = [jnp.max(a, 0) if batched else a for a, batched in zip(args[:held], in_batched[:held], strict=True)]
        if not handler.collects:
            outs, leaves = primal.run_rule(rule, values, *args[held:])
            return (outs, leaves), (out_batched, [False] * len(leaves))
        outs, _ = primal.run_rule(rule, (), *args[held:], sites=primal.sites(_compat.in_avals(params["call"])))
        in_axes = tuple(0 if batched else None for batched in in_batched)
        leaves = jax.vmap(primal.logs, in_axes=in_axes, axis_size=axis_size)(*args)
        return (outs, leaves), (out_batched, [True] * len(leaves))

    outs, leaves = function(*handler.arrays(), *args)
    return outs, primal.nodes(leaves)
