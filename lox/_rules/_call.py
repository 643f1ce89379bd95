"""Primitives that call one jaxpr: `jit`, `checkpoint`, and JAX's plain calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._events import Node
from lox._handler import Handler, InPlace, has_log, logs_in, rule, under

primitives = jex.core.primitives


def discharge(handler: Handler, jaxpr: Any) -> tuple[Any, list[Any], Any]:
    """`jaxpr` under `handler`: its logs are further outputs.

    Returns:
        The jaxpr, the values to pass for its new leading inputs, and the structure of the nodes among its outputs.
    """
    if not handler.cacheable:
        return _discharge(jaxpr, handler, 0)
    # What the handler holds is an input as well, so that the result serves every handler that holds such arrays.
    held = handler.arrays()
    alike = handler.holding([jax.typeof(array) for array in held]) if held else handler
    for inner in _deeply_nested(jaxpr):
        _discharge_cached(inner, alike, len(held))
    discharged, consts, structure = _discharge_cached(jaxpr, alike, len(held))
    return discharged, [*consts, *held], structure


def _discharge(jaxpr: Any, handler: Handler, num_held: int) -> tuple[Any, list[Any], Any]:
    structure = None

    def with_nodes(*args: Any) -> list[Any]:
        nonlocal structure
        inner = handler.holding(args[:num_held]) if num_held else handler
        outs, nodes = under(inner, _compat.as_fun(jaxpr))(*args[num_held:])
        leaves, structure = jax.tree.flatten(nodes)
        return [*outs, *leaves]

    held = handler.arrays()[:num_held]
    discharged, consts = _compat.trace(with_nodes, [*held, *_compat.in_avals(jaxpr)], "lox")
    return discharged, consts, structure


_discharge_cached = _compat.weakref_lru_cache(_discharge)

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


def split_nodes(outs: Sequence[Any], structure: Any) -> tuple[list[Any], tuple[Any, ...]]:
    """Splits the outputs of a discharged jaxpr into those of the original one and the nodes."""
    count = len(outs) - structure.num_leaves
    return list(outs[:count]), jax.tree.unflatten(structure, outs[count:])


@dataclasses.dataclass(frozen=True)
class Varied(InPlace):
    """Marks logs as varying over the shards along some axes of the mesh."""

    axes: tuple[Any, ...]

    def replace(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return jax.tree.map(lambda leaf: _compat.vary_in_branch(leaf, self.axes), nodes)


def varied(jaxpr: Any, predicate: Any) -> Any:
    """A jaxpr that runs where a predicate says so: over shards that the predicate tells apart, its logs vary."""
    axes = _compat.varying_axes(predicate)
    return _discharge_cached(jaxpr, Varied(tuple(sorted(axes))), 0)[0] if axes and has_log(jaxpr) else jaxpr


def _call_rule(key: str, extend: Callable[[dict[str, Any], Any, int, int], dict[str, Any]]) -> Any:
    # call: args -> outs  becomes  (consts, args) -> (outs, nodes)
    def call(
        handler: Handler, primitive: Any, args: Sequence[Any], params: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        jaxpr, consts, structure = discharge(handler.shared(), params[key])
        params = extend(params, jaxpr, len(consts), structure.num_leaves)
        return split_nodes(primitive.bind(*consts, *args, **params), structure)

    return call


rule(primitives.jit_p)(_call_rule("jaxpr", _compat.extend_jit))
rule(primitives.remat_p)(_call_rule("jaxpr", _compat.extend_checkpoint))
rule(primitives.closed_call_p)(_call_rule("call_jaxpr", lambda params, jaxpr, *_: params | {"call_jaxpr": jaxpr}))
