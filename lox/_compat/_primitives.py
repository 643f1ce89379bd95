"""Primitives that `jax.extend.core.primitives` does not list.

They have no public names as objects, but JAX's public tables of rules have them, by the names that jaxprs show.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
from jax.interpreters import ad, batching, partial_eval

Effect = jex.core.Effect


@functools.cache
def _with_rules() -> dict[str, Any]:
    """The primitives with a rule in a table of JAX's, by name."""
    tables = (batching.fancy_primitive_batchers, ad.primitive_jvps, partial_eval.dce_rules)
    return {primitive.name: primitive for table in reversed(tables) for primitive in table}


def primitive(name: str) -> Any:
    """The primitive of this name, or None where JAX has none: then no program has it, and no rule is needed."""
    return _with_rules().get(name)


def add_jet_rule(primitive: Any, rule: Callable[..., Any]) -> None:
    """Give a primitive a rule in `jax.experimental.jet`, which a version of JAX may not have."""
    try:
        from jax.experimental.jet import jet_rules
    except ImportError:
        return
    jet_rules[primitive] = rule


shard_map_p = primitive("shard_map")
custom_vmap_p = primitive("custom_vmap_call")
eval_p = primitive("eval_jaxpr")
"""Evaluates a jaxpr, as `custom_root` of jax 0.12 does with functions that it converted."""
high_p = primitive("call_hi_primitive")
"""Calls a `jax.experimental.hijax.HiPrim` (jax 0.12): an object with rules of its own, as `custom_root` makes one."""


def static_values(params: dict[str, Any]) -> list[Any]:
    """The parameters of a primitive, with those of a `HiPrim` among them: some are programs that it runs.

    A derivative of a `HiPrim`, before it is transposed, runs none.
    """
    found = params.get("_prim")
    if found is None:
        return list(params.values())
    return [found, *found.params.values()] if len(params) == 1 else []


def to_low(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """The function that JAX takes for a high-level primitive where that is not wanted, or None.

    Some primitives are high-level for some parameters only, and become themselves with others.
    """
    default = getattr(jex.core.Primitive, "to_lojax", None)
    found = getattr(primitive, "to_lojax", None)
    if getattr(found, "__func__", found) is default:
        return None
    return found if primitive.is_high(*map(jax.typeof, args), **params) else None


def high_may_log(params: dict[str, Any]) -> bool:
    """Tell whether a rule of the `HiPrim` among these parameters may log.

    It may if a user has written it, or gives functions to it. One that JAX cannot differentiate in forward mode, that
    is linear, or that has types of its own is left to JAX.
    """
    found = params.get("_prim")
    if found is None or len(params) > 1 or any(aval.is_high for aval in (*found.in_avals_flat, *found.out_avals_flat)):
        return False
    *kinds, _, _ = type(found).__mro__  # Without `HiPrim` and `object`.
    defined = {name for kind in kinds for name in vars(kind)}
    is_of_jax = type(found).__module__.startswith("jax.")
    return (
        "jvp" in defined
        and "transpose" not in defined
        and not (is_of_jax and not any(map(callable, found.params.values())))
    )


unlisted_primitives = {
    name: found
    for name in (
        "split",
        "stack",
        "unstack",
        "tile",
        "optimization_barrier",
        "random_wrap",
        "random_unwrap",
        "pure_callback",
        "io_callback",
        "debug_callback",
        "debug_print",
        "psum_invariant",
        "all_gather_invariant",
        "reduce_scatter",
        "pvary",
        "reshard",
    )
    if (found := primitive(name)) is not None
}
"""Those of which the auditor knows what they do, by name."""
