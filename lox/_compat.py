"""Everything of JAX that has no public name, or another name in another version.

This is the only module that may import from ``jax._src`` or look at a JAX version. Each use says which public
name is missing. Supported: jax 0.10.2 and later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.extend as jex
import numpy as np
from jax._src import callback as _callback  # The sharding of a callback, and its primitives.
from jax._src import config as _config  # The switch of constant folding.
from jax._src import core as _core  # eval_trace (the eager trace) has no public name.
from jax._src import debugging as _debugging  # The primitives of jax.debug are not in jax.extend.
from jax._src import dispatch as _dispatch  # The jitted functions that stand for primitives in eager calls.
from jax._src import effects as _effects  # The sets of effect types that JAX's transformations allow.
from jax._src import pjit as _pjit  # Marker for an output whose sharding the compiler chooses.
from jax._src import pmap as _pmap  # How it finds out whether it is transformed.
from jax._src import util as _util  # weakref_lru_cache: a cache keyed by a jaxpr and the trace context.
from jax._src.ad_util import SymbolicZero as _SymbolicZero  # What custom rules get for a zero tangent.
from jax._src.ad_util import Zero as _Zero  # JAX's internal zero tangent.
from jax._src.ad_util import zeros_like_aval as _zeros_like_aval  # Zeros with the sharding of an abstract value.
from jax._src.custom_batching import custom_vmap_p as custom_vmap_p  # The primitive is not in jax.extend.
from jax._src.interpreters import ad as _ad  # primitive_linearizations and its fallback rule.
from jax._src.interpreters import batching as _batching  # batch_jaxpr, matchaxis.
from jax._src.interpreters import mlir as _mlir_rules  # The table of lowering rules.
from jax._src.interpreters import partial_eval as _pe  # dceable_effects, the rules of partial evaluation.
from jax._src.lax import lax as _lax  # Primitives that jax.extend does not list.
from jax._src.lax import parallel as _parallel  # The same.
from jax._src.random import prng as _prng  # The same.
from jax._src.shard_map import shard_map_p as shard_map_p  # The primitive is not in jax.extend.
from jax.api_util import debug_info as _debug_info
from jax.extend.linear_util import wrap_init as _wrap_init
from jax.interpreters import ad, batching
from jax.interpreters import mlir as _mlir

try:  # The container of flat outputs that shard_map's function returns; renamed in jax 0.11.
    from jax._src import flattree as _flattree
except ImportError:
    from jax._src.tree_util import FlatTree as _FlatTree

    _flatten, _pack = _FlatTree.flatten, _FlatTree.pack
else:
    _flatten, _pack = _flattree.flatten, _flattree.pack

Effect = jex.core.Effect
_UNLISTED = {
    "split": _lax,
    "stack": _lax,
    "unstack": _lax,
    "optimization_barrier": _lax,
    "random_wrap": _prng,
    "random_unwrap": _prng,
    "pure_callback": _callback,
    "io_callback": _callback,
    "debug_callback": _debugging,
    "debug_print": _debugging,
    "psum_invariant": _parallel,
    "all_gather_invariant": _parallel,
    "reduce_scatter": _parallel,
    "pvary": _core,
}
unlisted_primitives = {
    name: getattr(module, f"{name}_p") for name, module in _UNLISTED.items() if hasattr(module, f"{name}_p")
}
"""Primitives that `jax.extend.core.primitives` does not list, by name."""

_PjitFunction = type(jax.jit(lambda: None))
weakref_lru_cache = _util.weakref_lru_cache
cached_by_function = partial(_util.weakref_lru_cache, trace_context_in_key=False)


def allow_effect(effect_type: type, dceable_type: type) -> None:
    """Lets an effect pass through lowering, control flow, custom rules, checkpoint and partial evaluation.

    There is no public way to register an effect type but `mlir.lowerable_effects`.

    Args:
        effect_type: The class of the effect.
        dceable_type: A class whose ``isinstance`` says whether an effect may be removed as dead code now.
    """
    for allowed in (
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect_type)
    _pe.dceable_effects.add_type(dceable_type)


def order_effect(effect_type: type) -> None:
    """Makes JAX thread tokens through what has this effect, also on several devices."""
    _effects.ordered_effects.add_type(effect_type)
    _effects.shardable_ordered_effects.add_type(effect_type)


def cache_weakly(parameter_type: type) -> None:
    """Keeps JAX's cache of abstract evaluation from keeping parameters of this type alive.

    The set of such types has no public name.
    """
    _util.weakref_cache_key_types.add(parameter_type)


def staged() -> Any:
    """The context in which a primitive on constants is staged also under `jax.ensure_compile_time_eval`.

    The switch of constant folding has no public name.
    """
    return _config.eager_constant_folding(False)


def adopt_level(trace: Any, parent: Any) -> None:
    """Makes `trace`, which has no tracers of its own, count as `parent` where JAX tells levels of tracing apart.

    That is in the keys of jit's dispatch, and in libraries that refuse to mutate an object of another level. The
    reference by which JAX identifies the current trace has no public name.
    """
    trace._weakref = parent._weakref


def current_trace() -> Any:
    """The current trace, which stays in its place. The public way is to take it out."""
    return _core.trace_ctx.trace


def is_eager(trace: Any) -> bool:
    """Whether operations bound under `trace` run at once, with nothing to differentiate, batch or stage them."""
    return trace is _core.eval_trace


def runs_at_once(trace: Any) -> bool:
    """Whether operations bound under `trace` run at once, batched or differentiated or not, rather than being staged.

    That a trace refers to the one around it by this name is not documented.
    """
    staged = (_pe.DynamicJaxprTrace, type(None))
    while not is_eager(trace) and not isinstance(trace, staged):
        trace = getattr(trace, "parent_trace", None)
    return is_eager(trace)


def emit_callback(ctx: Any, callback: Callable[..., Any], operands: Sequence[Any], effect: Any) -> None:
    """Lowers to a call of Python without results, after what came before it when the effect is ordered.

    How JAX computes the sharding of a callback has no public name.

    Args:
        ctx: The context of the lowering.
        callback: Gets arrays of NumPy for the operands, and perhaps values before them, which it returns as a tuple.
        operands: The operands, lowered.
        effect: The effect of the equation.
    """
    ordered = effect in ctx.tokens_in.effects()
    token = ctx.tokens_in.get(effect) if ordered else None
    sharding = _callback._callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out)
    target = {"cpu": "cpu", "cuda": "gpu", "rocm": "gpu"}.get("".join(ctx.module_context.platforms))
    if sharding is None and target is not None:
        token = _emit_direct_callback(ctx, callback, operands, token, f"xla_ffi_python_{target}_callback")
    else:
        _, token, _ = _mlir.emit_python_callback(
            ctx,
            callback,
            token,
            list(operands),
            ctx.avals_in,
            ctx.avals_out,
            has_side_effect=True,
            returns_token=ordered,
            sharding=sharding,
        )
    if ordered:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(_mlir.TokenSet({effect: token})))


def lowering_of(primitive: Any) -> Callable[..., Any]:
    """The rule by which JAX lowers a primitive, on all platforms. The table of rules has no public name."""
    return _mlir_rules._lowerings[primitive].rule


def automatic_axes(ctx: Any) -> tuple[Any, ...]:
    """The axes of the mesh that stay automatic in the `shard_map` that is lowered, which has no public name."""
    context = ctx.module_context.axis_context
    if not hasattr(context, "manual_axes"):
        return ()
    return tuple(name for name in context.mesh.axis_names if name not in context.manual_axes)


CALLS_IN_ORDER_ON_SOME_AXES = jax.__version_info__ >= (0, 11)
"""Whether XLA compiles ordered calls of the host in a `shard_map` over some axes of a mesh, rather than abort."""


def num_devices(ctx: Any) -> int:
    """For how many devices a program is lowered, which has no public name."""
    context = ctx.module_context.axis_context
    return context.mesh.size if hasattr(context, "mesh") else context.num_devices


def _emit_direct_callback(
    ctx: Any, callback: Callable[..., Any], operands: Sequence[Any], token: Any, target: str
) -> Any:
    """What `emit_python_callback` does where it need not look at shardings and results, at half the cost of a call."""
    tokens = [] if token is None else [token]
    avals = [_core.abstract_token] * len(tokens)
    ctx.module_context.add_host_callback(callback)
    index = np.uint64(len(ctx.module_context.host_callbacks) - 1)
    within = dataclasses.replace(ctx, avals_in=[*avals, *ctx.avals_in], avals_out=avals)
    lower = jax.ffi.build_ffi_lowering_function(target, has_side_effect=True)
    results = lower(within, *tokens, *operands, index=index).results
    return results[0] if tokens else None


int32_scalar = jax.core.ShapedArray((), "int32")


# -- jaxprs ------------------------------------------------------------------------------------------------------


def is_jaxpr(value: Any) -> bool:
    """Whether `value` is a jaxpr, open or closed (one class from jax 0.11 on)."""
    return isinstance(value, (jex.core.Jaxpr, jex.core.ClosedJaxpr))


def open_jaxpr(jaxpr: Any) -> Any:
    """The equations, variables and effects of an open or closed jaxpr."""
    return jaxpr.jaxpr if hasattr(jaxpr, "jaxpr") else jaxpr


def as_fun(jaxpr: Any) -> Callable[..., list[Any]]:
    """The function of flat values that a jaxpr without free constants stands for."""
    consts = getattr(jaxpr, "consts", ())
    return lambda *args: jax.core.eval_jaxpr(open_jaxpr(jaxpr), consts, *args)


def in_avals(jaxpr: Any) -> list[Any]:
    return [v.aval for v in open_jaxpr(jaxpr).invars]


def out_avals(jaxpr: Any) -> list[Any]:
    return [v.aval for v in open_jaxpr(jaxpr).outvars]


def trace(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], name: str) -> tuple[Any, list[Any]]:
    """Traces a flat function to a jaxpr whose captured values are its leading inputs.

    `jax.make_jaxpr` takes shapes and dtypes only; abstract values also carry refs, shardings and varying axes.

    Returns:
        The jaxpr, closed and without constants, and the values to pass for its leading inputs.
    """
    wrapped = _wrap_init(fun, debug_info=_debug_info(name, fun, tuple(avals), {}))
    jaxpr, _, consts = _pe.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return _pe.close_jaxpr(_pe.convert_constvars_jaxpr(jaxpr)), list(consts)


def abstract(fun: Callable[[Any], Any], tree: Any) -> Any:
    """What `fun` returns for a pytree of abstract values, with abstract values in place of arrays.

    `jax.eval_shape` does the same for shapes and dtypes only.
    """
    avals, structure = jax.tree.flatten(tree)
    out_structure: Any = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_structure
        outs, out_structure = jax.tree.flatten(fun(jax.tree.unflatten(structure, leaves)))
        return outs

    jaxpr, _ = trace(flat, avals, "lox")
    return jax.tree.unflatten(out_structure, out_avals(jaxpr))


# -- parameters of primitives that lox extends ---------------------------------------------------------------------


def extend_jit(params: dict[str, Any], jaxpr: Any, new_ins: int, new_outs: int) -> dict[str, Any]:
    """The parameters of a `jit` equation whose jaxpr got leading inputs and trailing outputs.

    What is new is neither donated nor sharded by the user (the marker for that is not public).
    """
    unspecified = (_pjit.UNSPECIFIED,)
    return params | {
        "jaxpr": jaxpr,
        "in_shardings": unspecified * new_ins + tuple(params["in_shardings"]),
        "in_layouts": (None,) * new_ins + tuple(params["in_layouts"]),
        "donated_invars": (False,) * new_ins + tuple(params["donated_invars"]),
        "out_shardings": tuple(params["out_shardings"]) + unspecified * new_outs,
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
    ft_in = _pack(((_flattree.nones(new_consts), consts), carry, (xs, _flattree.nones(new_xs))))
    return params | {"jaxpr": jaxpr, "ft_in": ft_in}


def extend_checkpoint(params: dict[str, Any], jaxpr: Any, new_ins: int, new_outs: int) -> dict[str, Any]:
    """The parameters of a `checkpoint` equation whose jaxpr got leading inputs and trailing outputs."""
    del new_outs
    prevent_cse = params["prevent_cse"]
    if isinstance(prevent_cse, tuple):
        prevent_cse = (False,) * new_ins + prevent_cse
    return params | {"jaxpr": open_jaxpr(jaxpr), "prevent_cse": prevent_cse}


def extend_outputs(outputs: Any, new: list[Any], new_specs: list[Any]) -> Any:
    """What the function under a `shard_map` returned, with further values and their out_specs."""
    values, specs = outputs.unpack_aux()
    return _pack((values, _flatten(new))).with_aux((*specs, *new_specs))


def split_outputs(outputs: Any) -> tuple[Any, list[Any]]:
    """Undoes the packing of `extend_outputs`."""
    values, new = outputs.unpack()
    return values, list(new)


def varying_axes(value: Any) -> frozenset[Any]:
    """The manual mesh axes over which a value, concrete or abstract, varies (`vma` until jax 0.11, then in `mat`)."""
    aval = value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)
    if hasattr(aval, "mat"):
        return frozenset(aval.mat.varying)
    return frozenset(getattr(aval, "vma", ()))


def vary(value: Any, axes: Sequence[Any]) -> Any:
    """The value, marked as varying over these manual mesh axes (`pvary` until jax 0.11, then `pcast`)."""
    missing = tuple(name for name in axes if name not in varying_axes(value))
    if not missing:
        return value
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, missing, to="varying")
    return jax.lax.pvary(value, missing)


def vary_in_branch(value: Any, axes: Sequence[Any]) -> Any:
    """The same in a branch of a `cond`.

    JAX runs all branches when it batches the predicate, with operands that vary like it, which `pvary` refuses.
    """
    here = jax.sharding.get_abstract_mesh().manual_axes  # None where JAX lowers what was traced on shards.
    missing = [name for name in axes if name in here and name not in varying_axes(value)]
    return vary_p.bind(value, axes=tuple(missing)) if missing else value


def unvary(value: Any, axes: frozenset[Any]) -> Any:
    """The value, marked as varying over no more than these axes, although it does.

    JAX selects what finished lanes of a batched `while_loop` keep when types are checked already, and so does the
    same without telling: the type of such a loop may say that a value is the same on all shards when it is not.
    """
    return value if varying_axes(value) <= axes else unvary_p.bind(value, axes=axes)


def _varying_over(aval: Any, axes: frozenset[Any]) -> Any:
    sharding = aval.sharding.update(mesh=jax.sharding.get_abstract_mesh())
    if hasattr(aval, "mat"):
        return aval.update(sharding=sharding, manual_axis_type=aval.mat.update(varying=axes))
    return aval.update(sharding=sharding, vma=axes)


def _sum_over_new(cotangent: Any, value: Any, *, axes: tuple[Any, ...]) -> list[Any]:
    return [jax.lax.psum(cotangent, tuple(frozenset(axes) - varying_axes(value.aval)))]


def _identity(name: str, type_of: Callable[..., Any], transpose: Callable[..., Any]) -> Any:
    """A primitive that changes nothing but the type of a value."""
    primitive = jex.core.Primitive(name)
    primitive.def_impl(lambda value, **params: value)
    primitive.def_abstract_eval(type_of)
    _mlir.register_lowering(primitive, lambda ctx, value, **params: [value])
    batching.defvectorized(primitive)
    ad.deflinear2(primitive, transpose)
    return primitive


vary_p = _identity("lox_vary", lambda aval, *, axes: _varying_over(aval, varying_axes(aval).union(axes)), _sum_over_new)
unvary_p = _identity(
    "lox_unvary",
    lambda aval, *, axes: _varying_over(aval, varying_axes(aval) & axes),
    lambda cotangent, value, *, axes: [cotangent],
)


# -- flat functions of custom rules ----------------------------------------------------------------------------------


def renew(fun: Any) -> None:
    """Makes a flat function of JAX's as if it had not run; what it stores may be stored once."""
    for store in fun.stores:
        if store is not None:
            store.reset()


def renewed(fun: Any) -> Callable[..., Any]:
    """A flat function of JAX's, callable more than once."""

    def call(*args: Any) -> Any:
        renew(fun)
        return fun.call_wrapped(*args)

    return call


# -- zeros ---------------------------------------------------------------------------------------------------------


def zeros_like_aval(aval: Any) -> Any:
    """Zeros of an abstract value; typed keys get key data of zeros (jax 0.10 makes float0 of them)."""
    if not jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return _zeros_like_aval(aval)
    implementation = aval.dtype._impl
    data = jax.numpy.zeros((*aval.shape, *implementation.key_shape), "uint32")
    return jax.random.wrap_key_data(data, impl=implementation)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is a symbolic zero."""
    return isinstance(tangent, (_Zero, _SymbolicZero))


def zero_tangent(primal: Any) -> Any:
    """The symbolic zero among the tangents of a value."""
    return _Zero(jax.typeof(primal).to_tangent_aval())


def instantiate(tangent: Any) -> Any:
    """A tangent or cotangent as an array, also when it is a symbolic zero."""
    return zeros_like_aval(tangent.aval) if is_zero(tangent) else tangent


def rule_zero(tangent: Any) -> Any:
    """A tangent as a custom rule may return it: JAX's internal zero becomes the public symbolic one."""
    return _SymbolicZero(tangent.aval) if isinstance(tangent, _Zero) else tangent


def cotangents(result: Any) -> list[Any]:
    """What the flattened bwd function of a `custom_vjp` returned, without the backward-pass logs of jax 0.12."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], (list, tuple)):
        result, _ = result
    return list(result)


# -- the rule tables of JAX's transformations -----------------------------------------------------------------------

batchers = _batching.fancy_primitive_batchers
partial_eval_rules = _pe.custom_partial_eval_rules
dce_rules = _pe.dce_rules
checkpoint_rules = _pe.partial_eval_jaxpr_custom_rules
matchaxis = _batching.matchaxis


def prune(
    jaxpr: Any, used_outs: Sequence[bool], kept_ins: Sequence[bool], is_live: Callable[[Any], bool]
) -> tuple[Any, list[bool]]:
    """A closed jaxpr reduced to what these outputs need, and which of its inputs that is.

    Args:
        jaxpr: A closed jaxpr without constants.
        used_outs: Which outputs to compute.
        kept_ins: Which inputs to keep even if nothing needs them.
        is_live: Whether to keep an equation whose outputs nothing needs. (JAX's own elimination of dead code drops
            what has effects inside a `jit` on jax 0.10.)
    """
    given = open_jaxpr(jaxpr)
    outvars = [var for var, used in zip(given.outvars, used_outs, strict=True) if used]
    needed = set(_variables(outvars))
    eqns = []
    for eqn in reversed(given.eqns):
        if is_live(eqn) or not needed.isdisjoint(_variables(eqn.outvars)):
            eqns.append(eqn)
            needed.update(_variables(eqn.invars))
    used_ins = [kept or var in needed for var, kept in zip(given.invars, kept_ins, strict=True)]
    invars = [var for var, used in zip(given.invars, used_ins, strict=True) if used]
    debug = given.debug_info.with_unknown_names()
    return _pe.close_jaxpr(given.replace(invars=invars, outvars=outvars, eqns=eqns[::-1], debug_info=debug)), used_ins


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [atom for atom in atoms if isinstance(atom, jex.core.Var)]


def linearization(primitive: Any) -> Callable[..., Any]:
    """JAX's rule that linearizes a primitive; the table has no public name."""
    rule = _ad.primitive_linearizations.get(primitive)
    if rule is not None:
        return rule
    return lambda *args, **params: _ad.fallback_linearize_rule(primitive, *args, **params)


def set_linearization(primitive: Any, rule: Callable[..., Any]) -> None:
    _ad.primitive_linearizations[primitive] = rule


def shard_map_batching() -> Callable[..., Any]:
    """How `vmap` meets a `shard_map`, a method of a trace that has no public name."""
    return _batching.BatchTrace.process_shard_map


def set_shard_map_batching(rule: Callable[..., Any]) -> None:
    _batching.BatchTrace.process_shard_map = rule


def batch(jaxpr: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any]) -> None:
    """Runs a jaxpr batched, for its effects."""
    dests = [_batching.zero_if_mapped] * len(out_avals(jaxpr))
    batched, _ = _batching.batch_jaxpr_axes(jaxpr, axis_data, list(dims), dests)
    as_fun(batched)(*args)


def batched_outputs(jaxpr: Any, axis_data: Any, batched: Sequence[bool]) -> list[bool]:
    """Which outputs of a jaxpr are batched when these inputs are."""
    _, out = _batching.batch_jaxpr(jaxpr, axis_data, list(batched), False)
    return list(out)


# -- the dispatch of jitted functions ------------------------------------------------------------------------------


def share_fast_dispatch(runs_plainly: Callable[[Any, dict[str, Any]], bool]) -> None:
    """Lets JAX dispatch jitted functions as it does at top level where a trace of ours changes nothing.

    JAX keeps an executable for its fast path only if the eager trace itself was current at the first call. There is no
    public way to say that another one, which counts as the same level, is as good.

    Args:
        runs_plainly: Says of the current trace and the parameters of a `jit` whether it runs eagerly and unchanged.
    """
    run = _pjit._run_python_pjit

    def dispatch(p: Any, args_flat: Any, fun: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not runs_plainly(current_trace(), p.params):
            return run(p, args_flat, fun, args, kwargs)
        with jex.core.set_current_trace(_core.eval_trace):
            return run(p, args_flat, fun, args, kwargs)

    _pjit._run_python_pjit = dispatch


def let_pmap_run(is_eager_handler: Callable[[Any], bool]) -> None:
    """Lets `pmap` run as at top level under a trace of ours that is no more than that.

    Where there are several processes, a `pmap` that JAX transforms runs on the devices of one process, and one that is
    not on those of all. There is no public way to say that a trace transforms nothing.

    Args:
        is_eager_handler: Says so of a trace.
    """

    class Core:
        """The module that `pmap` asks."""

        def __getattr__(self, name: str) -> Any:
            return getattr(_core, name)

        def trace_state_clean(self) -> bool:
            return _core.trace_state_clean() or is_eager_handler(current_trace())

    _pmap.core = Core()  # type: ignore[assignment]


def run_compiled(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Runs the jitted function that JAX keeps for a primitive that is bound eagerly with these parameters.

    There is no public way to get at JAX's cache of them. They are jitted under `jax.disable_jit` as well.
    """
    with jax.disable_jit(False):
        return _dispatch.xla_primitive_callable(primitive, **params)(*args)


def is_top_level() -> bool:
    """Whether no transformation of JAX is in progress; the check has no public name."""
    return _core.trace_state_clean()


def is_jitted(fun: Any) -> bool:
    """Whether `fun` is what `jax.jit` returned."""
    return isinstance(fun, _PjitFunction)


def jit_options(fun: Any) -> tuple[tuple[str, Any], ...] | None:
    """How a jitted function reads its arguments, or None for one with shardings, layouts or a device of its own.

    A jitted function has no public attribute for its static and donated arguments.
    """
    info = fun._jit_info
    shardings = (*info.in_shardings_leaves, *info.out_shardings_leaves)
    layouts = (*info.in_layouts_leaves, *info.out_layouts_leaves)
    if info.device is not None or info.backend is not None:
        return None
    if any(value is not _pjit.UNSPECIFIED for value in shardings) or any(value is not None for value in layouts):
        return None
    names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames", "keep_unused")
    return tuple((name, getattr(info, name)) for name in names)
