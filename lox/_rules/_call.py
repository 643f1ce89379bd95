"""Primitives that call one jaxpr: `jit`, `checkpoint`, and JAX's plain calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._events import Logs
from lox._handler import Filter, Handler, State, rule
from lox._logs_in import has_log, logs_in
from lox._trace import under

primitives = jex.core.primitives


def discharge(handler: Handler, state: State, jaxpr: Any) -> tuple[Any, list[Any], Any]:
    """`jaxpr` under `handler`: the state after it and its logs are further outputs.

    Returns:
        The jaxpr, the values to pass for its new leading inputs, and the structure of the new outputs.
    """
    leaves, structure = jax.tree.flatten(state)
    avals = tuple(jax.typeof(leaf) for leaf in leaves)
    for inner in _deeply_nested(jaxpr):
        _discharge(inner, handler, structure, avals)
    discharged, consts, results = _discharge(jaxpr, handler, structure, avals)
    return discharged, [*consts, *leaves], results


def discharge_from(handler: Handler, structure: Any, avals: tuple[Any, ...], jaxpr: Any) -> tuple[Any, Any]:
    """The same from a state of this structure with these abstract values: the jaxpr, and the new outputs' structure."""
    discharged, _, results = _discharge(jaxpr, handler, structure, avals)
    return discharged, results


@_compat.weakref_lru_cache
def _discharge(jaxpr: Any, handler: Handler, structure: Any, avals: tuple[Any, ...]) -> tuple[Any, list[Any], Any]:
    results = None

    def with_results(*args: Any) -> list[Any]:
        nonlocal results
        state = jax.tree.unflatten(structure, args[: len(avals)])
        outs, after, logs = under(handler, _compat.as_fun(jaxpr))(state, *args[len(avals) :])
        leaves, results = jax.tree.flatten((after, logs))
        return [*outs, *leaves]

    discharged, consts = _compat.trace(with_results, [*avals, *_compat.in_avals(jaxpr)], "lox")
    return _compat.named_as(discharged, jaxpr), consts, results


_DEEP = 16


@_compat.weakref_lru_cache
def _deeply_nested(jaxpr: Any) -> tuple[Any, ...]:
    """The jitted functions with logs in a jaxpr, innermost first, if they are nested deeply; else none.

    Discharged in this order, each finds what it calls in the cache. From the outside in, each level would take 15
    frames of Python's stack, more than JAX takes to differentiate it.
    """
    levels = [{jaxpr: None}]
    while levels[-1]:
        eqns = (eqn for outer in levels[-1] for eqn in _compat.open_jaxpr(outer).eqns)
        inner = (eqn.params["jaxpr"] for eqn in eqns if eqn.primitive is primitives.jit_p and logs_in(eqn.params))
        levels.append(dict.fromkeys(inner))
    return tuple(inner for level in levels[:0:-1] for inner in level) if len(levels) > _DEEP else ()


def split_results(outs: Sequence[Any], structure: Any) -> tuple[list[Any], State, Logs]:
    """Split the outputs of a discharged jaxpr into those of the original one, the state after it and its logs."""
    count = len(outs) - structure.num_leaves
    return list(outs[:count]), *jax.tree.unflatten(structure, outs[count:])


@dataclasses.dataclass(frozen=True)
class Varied(Filter):
    """Marks logs as varying over the shards along some axes of the mesh."""

    sees_tapped = True

    axes: tuple[Any, ...]

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return jax.tree.map(lambda leaf: _compat.vary_in_branch(leaf, self.axes), logs)


def varied(jaxpr: Any, predicate: Any) -> Any:
    """A jaxpr that runs where a predicate says so: over shards that the predicate tells apart, its logs vary."""
    axes = _compat.varying_axes(predicate)
    return discharge(Varied(tuple(sorted(axes))), None, jaxpr)[0] if axes and has_log(jaxpr) else jaxpr


def _call_rule(key: str, extend: Callable[[dict[str, Any], Any, int, int], dict[str, Any]]) -> Any:
    # call: args -> outs  becomes  (consts, state, args) -> (outs, state, logs)
    def call(
        handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
    ) -> tuple[Any, State, Logs]:
        inner, inside = handler.enter(state, [params[key]], "call")
        jaxpr, operands, structure = discharge(inner, inside, params[key])
        params = extend(params, jaxpr, len(operands), structure.num_leaves)
        outs, after, logs = split_results(primitive.bind(*operands, *args, **params), structure)
        return outs, *handler.leave(state, after, logs)

    return call


rule(primitives.jit_p)(_call_rule("jaxpr", _compat.extend_jit))
rule(primitives.remat_p)(_call_rule("jaxpr", _compat.extend_checkpoint))
rule(primitives.closed_call_p)(_call_rule("call_jaxpr", lambda params, jaxpr, *_: params | {"call_jaxpr": jaxpr}))
