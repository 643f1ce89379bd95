"""Calls of Python in compiled programs, and the target that a program is lowered for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import numpy as np
from jax.interpreters import mlir

from lox._compat._names import Feature, private

_callback_sharding = private(
    "jax._src.callback:_callback_op_sharding",
    purpose="to tell the compiler which devices call the host",
    needed_for=Feature.TAP_ON_DEVICES,
)

CALLS_IN_ORDER_ON_SOME_AXES = jax.__version_info__ >= (0, 11)
"""True if XLA compiles ordered calls of the host in a `shard_map` over some axes of a mesh, rather than abort."""


_CALLBACKS = frozenset({"jax._src.callback", "jax._src.debugging"})


def calls_host(module: str) -> bool:
    """Tell whether functions of a module of JAX call Python functions from programs that run.

    Where these modules have other names, a log in such a function is refused as one that comes too late.
    """
    return module in _CALLBACKS


def emit_callback(ctx: Any, callback: Callable[..., Any], operands: Sequence[Any], effect: Any) -> None:
    """Lower to a call of Python without results, after what came before it when the effect is ordered.

    Args:
        ctx: The context of the lowering.
        callback: Gets arrays of NumPy for the operands, and perhaps values before them, which it returns as a tuple.
        operands: The operands, lowered.
        effect: The effect of the equation.
    """
    ordered = effect in ctx.tokens_in.effects()
    token = ctx.tokens_in.get(effect) if ordered else None
    if ordered and not _is_on_cpu(ctx):
        operands = _apart(ctx, operands)
    _, token = _emit(ctx, callback, operands, token)
    if ordered:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))


def emit_call(ctx: Any, callback: Callable[..., Any], operands: Sequence[Any]) -> Sequence[Any]:
    """Lower to a call of Python with results, and without an effect of JAX.

    Args:
        ctx: The context of the lowering.
        callback: Gets arrays of NumPy for the operands, and returns a tuple of them for the results.
        operands: The operands, lowered.
    """
    return _emit(ctx, callback, operands, None)[0]


def _emit(ctx: Any, callback: Callable[..., Any], operands: Sequence[Any], token: Any) -> tuple[Sequence[Any], Any]:
    """Emit a call of Python; returns its results, and the token after it if there is one before it."""
    if _is_on_cpu(ctx) and getattr(ctx.module_context.axis_context, "num_devices", None) == 1:  # JAX would name it.
        results = _emit_direct_callback(ctx, callback, operands, token, "xla_ffi_python_cpu_callback")
        return (results, None) if token is None else (results[1:], results[0])
    results, token, _ = mlir.emit_python_callback(
        ctx,
        callback,
        token,
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=token is not None,
        sharding=_sharding(ctx),
    )
    return results, token


def _is_on_cpu(ctx: Any) -> bool:
    return tuple(ctx.module_context.platforms) == ("cpu",)


def _apart(ctx: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The operands, computed before the call: XLA for GPU aborts when it fuses a slice into one that has a token."""
    within = dataclasses.replace(ctx, avals_out=ctx.avals_in, tokens_in=mlir.TokenSet(), tokens_out=None)
    return mlir.lower_fun(lambda *arrays: jax.lax.optimization_barrier(arrays))(within, *operands)


def _sharding(ctx: Any) -> Any:
    context = ctx.module_context.axis_context
    if not _callback_sharding.found and not hasattr(context, "mesh") and num_devices(ctx) == 1:
        return None  # There is one device to call from.
    return _callback_sharding.value(context, None, ctx.avals_out)


def _emit_direct_callback(
    ctx: Any, callback: Callable[..., Any], operands: Sequence[Any], token: Any, target: str
) -> Sequence[Any]:
    """Emit what `emit_python_callback` does, but for shardings, at half the cost of a call; a token comes first."""
    tokens = [] if token is None else [token]
    avals = [_abstract_token()] * len(tokens)
    ctx.module_context.add_host_callback(callback)
    index = np.uint64(len(ctx.module_context.host_callbacks) - 1)
    within = dataclasses.replace(ctx, avals_in=[*avals, *ctx.avals_in], avals_out=[*avals, *ctx.avals_out])
    lower = jax.ffi.build_ffi_lowering_function(target, has_side_effect=True)
    return lower(within, *tokens, *operands, index=index).results


@functools.cache
def _abstract_token() -> Any:
    """The abstract value of all tokens, which JAX tells by its identity."""
    return jex.core.primitives.create_token_p.abstract_eval()[0]


def automatic_axes(ctx: Any) -> tuple[Any, ...]:
    """The axes of the mesh that stay automatic in the `shard_map` that is lowered, which has no public name."""
    context = ctx.module_context.axis_context
    if not hasattr(context, "manual_axes"):
        return ()
    return tuple(name for name in context.mesh.axis_names if name not in context.manual_axes)


def num_devices(ctx: Any) -> int:
    """The number of devices for which a program is lowered, which has no public name."""
    context = ctx.module_context.axis_context
    return context.mesh.size if hasattr(context, "mesh") else context.num_devices
