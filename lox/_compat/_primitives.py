"""Primitives that `jax.extend.core.primitives` does not list.

They have no public names as objects, but JAX's public tables of rules have them, by the names that jaxprs show.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

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

unlisted_primitives = {
    name: found
    for name in (
        "split",
        "stack",
        "unstack",
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
