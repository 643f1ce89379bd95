"""Primitives that call one jaxpr: `jit`, `checkpoint`, and JAX's plain calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex

from lox import _compat
from lox._events import Node
from lox._handler import Handler, InPlace, has_log, rule, under

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
