"""The parameters of primitives that lox extends by inputs and outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from lox._compat._jaxprs import open_jaxpr
from lox._compat._names import Feature, private

# The container of flat values in which shard_map's function returns its results, and since jax 0.11 the parameters of
# a scan count its operands.
_flatten = private(
    "jax._src.flattree:flatten",
    "jax._src.tree_util:FlatTree.flatten",
    purpose="to return logs from a shard_map",
    needed_for=Feature.SHARDS,
)
_pack = private(
    "jax._src.flattree:pack",
    "jax._src.tree_util:FlatTree.pack",
    purpose="to return logs from a shard_map, and to give a scan further operands",
    needed_for=Feature.SHARDS,
)
_nones = private(
    "jax._src.flattree:nones",
    purpose="to give a scan of jax 0.11 or later further operands",
    needed_for=Feature.SCAN_DERIVATIVES,
)


@functools.cache
def unspecified() -> Any:
    """The marker of an input or output of a jitted function that the user has not given a sharding."""
    with jax.disable_jit(False):
        number = jax.ShapeDtypeStruct((), jnp.float32)
        eqn, *_ = jax.make_jaxpr(jax.jit(jnp.negative))(number).eqns  # A search adds equations.
    return eqn.params["out_shardings"][0]


def extend_jit(params: dict[str, Any], jaxpr: Any, new_ins: int, new_outs: int) -> dict[str, Any]:
    """The parameters of a `jit` equation whose jaxpr got leading inputs and trailing outputs.

    What is new is neither donated nor sharded by the user.
    """
    marker = (unspecified(),)
    return params | {
        "jaxpr": jaxpr,
        "in_shardings": marker * new_ins + tuple(params["in_shardings"]),
        "in_layouts": (None,) * new_ins + tuple(params["in_layouts"]),
        "donated_invars": (False,) * new_ins + tuple(params["donated_invars"]),
        "out_shardings": tuple(params["out_shardings"]) + marker * new_outs,
        "out_layouts": tuple(params["out_layouts"]) + (None,) * new_outs,
    }


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """The number of constants and of carried values among the operands of a `scan` (`ft_in` from jax 0.11 on)."""
    if "ft_in" in params:
        consts, carry, _ = params["ft_in"].unpack()
        return len(list(consts)), len(list(carry))
    return params["num_consts"], params["num_carry"]


def extend_scan(params: dict[str, Any], jaxpr: Any, new_consts: int, new_xs: int) -> dict[str, Any]:
    """The parameters of a `scan` equation whose body got leading constants and trailing scanned inputs."""
    if "ft_in" not in params:
        return params | {"jaxpr": jaxpr, "num_consts": params["num_consts"] + new_consts}
    consts, carry, xs = params["ft_in"].unpack()
    nones = _nones.value
    ft_in = _pack.value(((nones(new_consts), consts), carry, (xs, nones(new_xs))))
    return params | {"jaxpr": jaxpr, "ft_in": ft_in}


def extend_checkpoint(params: dict[str, Any], jaxpr: Any, new_ins: int, new_outs: int) -> dict[str, Any]:
    """The parameters of a `checkpoint` equation whose jaxpr got leading inputs and trailing outputs."""
    del new_outs
    prevent_cse = params["prevent_cse"]
    if isinstance(prevent_cse, tuple):
        prevent_cse = (False,) * new_ins + prevent_cse
    return params | {"jaxpr": open_jaxpr(jaxpr), "prevent_cse": prevent_cse}


def extend_outputs(outputs: Any, new: list[Any], new_specs: list[Any]) -> Any:
    """Add values and their out_specs to what the function under a `shard_map` returned."""
    values, specs = outputs.unpack_aux()
    return _pack.value((values, _flatten.value(new))).with_aux((*specs, *new_specs))


def map_outputs(function: Callable[[Any], Any], outputs: Any) -> Any:
    """Map what a primitive with several results returned; a `shard_map` returns a tree of JAX's own."""
    return list(map(function, outputs)) if isinstance(outputs, (list, tuple)) else outputs.map(function)


def split_outputs(outputs: Any) -> tuple[Any, list[Any]]:
    """Undo the packing of `extend_outputs`."""
    values, new = outputs.unpack()
    return values, list(new)
