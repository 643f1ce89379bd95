"""Functions with rules of their own: `custom_jvp`, `custom_vjp` (also under `custom_root`), `custom_vmap`.

A handler that collects adds the logs of the function to its outputs; its rule then gives the outputs' derivative,
and the logs, which the rule says nothing of, have their true one. What a rule logs happens outside of what the
handler runs, and goes to a handler further out. A handler that works in place works in the rules as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._handler import Handler, outward, rule, under
from lox._rules._call import discharge

primitives = jex.core.primitives


def _renewed(fun: Any) -> Callable[..., Any]:
    """A flat function of JAX's, callable more than once: each call stores what the last one had stored."""

    def call(*args: Any) -> Any:
        _reset(fun)
        return fun.call_wrapped(*args)

    return call


def _reset(fun: Any) -> None:
    for store in fun.stores:
        if store is not None:
            store.reset()


class _Logs:
    """The logs of a function apart from its outputs, and their structure once it has run."""

    def __init__(self, handler: Handler, fun: Any):
        self.fun = fun
        self.run = under(handler, _renewed(fun))
        self.structure: Any = None

    def with_outputs(self, *args: Any) -> tuple[list[Any], list[Any]]:
        outs, nodes = self.run(*args)
        leaves, self.structure = jax.tree.flatten(nodes)
        return list(outs), leaves

    def alone(self, *args: Any) -> list[Any]:
        """The leaves of the logs; JAX expects the function not to have run when its rule does."""
        _, leaves = self.with_outputs(*args)
        _reset(self.fun)
        return leaves

    def never(self) -> bool:
        return self.structure is not None and not self.structure.num_leaves


# custom_jvp: args -> outs, (args, tangents) -> (outs, tangents)  becomes  args -> (outs, nodes), (...) -> (...)
@rule(primitives.custom_jvp_call_p)
def custom_jvp(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    logs, jvp = _Logs(handler, params["fun"]), _renewed(params["jvp"])

    @jax.custom_jvp
    def function(*args: Any) -> Any:
        return logs.with_outputs(*args)

    def function_jvp(primals: Any, tangents: Any) -> Any:
        if not handler.collects:
            outs, _ = under(handler, jvp)(*primals, *tangents)
        else:
            with outward(handler):
                outs = jvp(*primals, *tangents)
        half = len(outs) // 2
        outs_dot = [_compat.rule_zero(tangent) for tangent in outs[half:]]
        leaves, leaves_dot = [], []
        if handler.collects and not logs.never():
            leaves, leaves_dot = jax.jvp(logs.alone, tuple(primals), tuple(map(_compat.instantiate, tangents)))
        elif not handler.collects:
            logs.structure = jax.tree.structure(())
        return (list(outs[:half]), leaves), (outs_dot, leaves_dot)

    function.defjvp(function_jvp, symbolic_zeros=params["symbolic_zeros"])
    outs, leaves = function(*args)
    return outs, jax.tree.unflatten(logs.structure, leaves)


# custom_vjp: args -> outs  becomes  args -> (outs, nodes), with fwd and bwd to match
@rule(primitives.custom_vjp_call_p)
def custom_vjp(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    logs, fwd, bwd = _Logs(handler, params["fun"]), _renewed(params["fwd"]), _renewed(params["bwd"])

    @jax.custom_vjp
    def function(*args: Any) -> Any:
        return logs.with_outputs(*args)

    def run_rule(rule: Callable[..., Any], *args: Any) -> Any:
        if not handler.collects:
            return under(handler, rule)(*args)[0]
        with outward(handler):
            return rule(*args)

    def function_fwd(*pairs: Any) -> Any:
        values = [pair.value for pair in pairs]
        results = run_rule(fwd, *(item for pair in pairs for item in (pair.value, pair.perturbed)))
        _, residual_tree, forwarded = params["out_trees"]()
        count = residual_tree.num_leaves - sum(position is not None for position in forwarded)
        residuals, outs = list(results[:count]), list(results[count:])
        leaves: list[Any] = []
        if handler.collects and not logs.never():
            leaves = logs.alone(*values)
        elif not handler.collects:
            logs.structure = jax.tree.structure(())
        return (outs, leaves), (residuals, values)

    def function_bwd(saved: Any, cotangents: Any) -> Any:
        pruned, values = saved
        outs_bar, leaves_bar = cotangents
        _, _, forwarded = params["out_trees"]()
        remaining = iter(pruned)
        residuals = [next(remaining) if position is None else values[position] for position in forwarded]
        if not params["symbolic_zeros"]:
            outs_bar = [_compat.instantiate(bar) for bar in outs_bar]
        args_bar = _compat.cotangents(run_rule(bwd, *residuals, *outs_bar))
        args_bar = [None if _compat.is_zero(bar) else bar for bar in args_bar]
        if not all(map(_compat.is_zero, leaves_bar)):
            _, pull_back = jax.vjp(logs.alone, *values)
            of_logs = pull_back([_compat.instantiate(bar) for bar in leaves_bar])
            args_bar = [_add(a, b) for a, b in zip(args_bar, of_logs, strict=True)]
        return tuple(args_bar)

    function.defvjp(function_fwd, function_bwd, symbolic_zeros=True)
    outs, leaves = function(*args)
    return outs, jax.tree.unflatten(logs.structure, leaves)


def _add(first: Any, second: Any) -> Any:
    if first is None or second.dtype == jax.dtypes.float0:
        return None if second.dtype == jax.dtypes.float0 else second
    return first + second


# custom_vmap: args -> outs  becomes  args -> (outs, nodes)
@rule(_compat.custom_vmap_p)
def custom_vmap(
    handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], tuple[Any, ...]]:
    del primitive
    structure = None
    run = under(handler, _compat.as_fun(params["call"]))

    def with_nodes(*args: Any) -> tuple[list[Any], list[Any]]:
        nonlocal structure
        outs, nodes = run(*args)
        leaves, structure = jax.tree.flatten(nodes)
        return list(outs), leaves

    function = jax.custom_batching.custom_vmap(with_nodes)

    @function.def_vmap
    def function_vmap(axis_size: int, in_batched: Sequence[bool], *args: Any) -> Any:
        unflatten = params["in_tree"].unflatten
        rule = _Flat(params["rule"], axis_size, unflatten(in_batched), unflatten)
        if handler.collects:
            with outward(handler):
                outs = rule(*args)
            in_axes = tuple(0 if batched else None for batched in in_batched)
            _, leaves = jax.vmap(with_nodes, in_axes=in_axes, axis_size=axis_size)(*args)
        else:
            outs, leaves = under(handler, rule)(*args)[0], []
        return (outs, leaves), (rule.out_batched, [True] * len(leaves))

    outs, leaves = function(*args)
    return outs, jax.tree.unflatten(structure, leaves)


class _Flat:
    """A rule of `custom_vmap` on flat values, which remembers the outputs that it batched."""

    def __init__(self, rule: Any, axis_size: int, in_batched: Any, unflatten: Any):
        self.rule, self.axis_size, self.in_batched, self.unflatten = rule, axis_size, in_batched, unflatten
        self.out_batched: list[bool] = []

    def __call__(self, *args: Any) -> list[Any]:
        outs, out_batched = self.rule(self.axis_size, self.in_batched, *self.unflatten(args))
        self.out_batched = jax.tree.leaves(out_batched)
        return jax.tree.leaves(outs)
