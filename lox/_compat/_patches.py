"""The changes that lox makes to JAX, each with its purpose.

JAX has no hook for most of these. Each is made once, when lox is imported or what needs it is first used, and only
where JAX has what is changed.
`tests/test_contracts.py` has a test for each, which fails when JAX no longer behaves as the change assumes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.extend as jex
import jax.extend.source_info_util
from jax.interpreters import ad, batching, mlir, partial_eval

from lox._compat._names import Feature, need, private
from lox._compat._traces import current_trace, eagerly
from lox._exceptions import LoxError, UnsupportedJaxError

Function = TypeVar("Function", bound=Callable[..., Any])
Rule = Callable[..., Any]
Wrapper = Callable[[Rule], Rule]


@dataclasses.dataclass(frozen=True)
class Patch:
    """A change that lox makes to JAX.

    Attributes:
        changes: The part of JAX that is changed.
        purpose: The reason for the change.
        required: Whether logs would be lost, doubled or refused without it; otherwise things are only slower.
    """

    changes: str
    purpose: str
    required: bool


PATCHES: dict[str, Patch] = {}
"""All changes, by the name of the function that makes them."""


def _patch(changes: str, purpose: str, *, required: bool) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        PATCHES[function.__name__] = Patch(changes, purpose, required)
        return function

    return register


# The sets of effect types that JAX consults. Only that of effects that can be lowered is public.
_control_flow = private(
    "jax._src.effects:control_flow_allowed_effects",
    purpose="to let logs stay inside loops and branches",
    needed_for=Feature.CONTROL_FLOW,
    has="add_type",
)
_custom_rules = private(
    "jax._src.effects:custom_derivatives_allowed_effects",
    purpose="to let logs stay inside functions with derivative rules of their own",
    needed_for=Feature.CUSTOM_RULES,
    has="add_type",
)
_checkpoint = private(
    "jax._src.effects:remat_allowed_effects",
    purpose="to let logs stay inside jax.checkpoint",
    needed_for=Feature.CHECKPOINT,
    has="add_type",
)
_kept = private(
    "jax._src.effects:partial_eval_kept_effects",
    purpose="to keep logs that no output depends on, which JAX would drop without a word",
    needed_for=Feature.DERIVATIVES,
    has="add_type",
)
_dead = private(
    "jax._src.interpreters.partial_eval:dceable_effects",
    purpose="to leave logs out of a trace that flax throws away",
    needed_for=Feature.FLAX_SCAN,
    has="add_type",
)
_ordered = private(
    "jax._src.effects:ordered_effects",
    purpose="to have logs arrive in order",
    needed_for=Feature.ORDERED_TAP,
    has="add_type",
)
_shardable = private(
    "jax._src.effects:shardable_ordered_effects",
    purpose="to have logs arrive in order from several devices",
    needed_for=Feature.ORDERED_TAP,
    has="add_type",
)


@_patch("the sets of effects that JAX allows or removes", "logs stay where they happen", required=True)
def allow_effect(effect_type: type, dceable_type: type) -> None:
    """Let an effect pass through lowering, control flow, custom rules, checkpoint and partial evaluation.

    Args:
        effect_type: The class of the effect.
        dceable_type: A class whose ``isinstance`` says whether an effect may be removed as dead code now.
    """
    mlir.lowerable_effects.add_type(effect_type)
    for allowed in (_control_flow, _custom_rules, _checkpoint, _kept):
        if allowed.found:
            allowed.value.add_type(effect_type)
    if _dead.found:
        _dead.value.add_type(dceable_type)


def refusal(error: BaseException) -> UnsupportedJaxError | None:
    """The error to raise for JAX's own, where JAX refused logs since a set of effects could not be found."""
    if isinstance(error, NotImplementedError) and not isinstance(error, LoxError) and "ffects" in str(error):
        for allowed in (_control_flow, _custom_rules, _checkpoint):
            if not allowed.found:
                return allowed.missing()
    return None


@_patch("the sets of effects that JAX orders", "what a tap sends arrives in order", required=True)
def order_effect(effect_type: type) -> None:
    """Make JAX thread tokens through what has this effect, also on several devices."""
    if _ordered.found and _shardable.found:
        _ordered.value.add_type(effect_type)
        _shardable.value.add_type(effect_type)


_weak_keys = private(
    "jax._src.util:weakref_cache_key_types",
    purpose="to let go of what a program logged and where to when the program is gone",
    otherwise="JAX's caches keep it until they are full.",
    has="add",
)


@_patch("the types of parameters that JAX's caches refer to weakly", "JAX lets go of logs and taps", required=False)
def cache_weakly(parameter_type: type) -> None:
    """Keep JAX's cache of abstract evaluation from keeping parameters of this type alive."""
    if _weak_keys.found:
        _weak_keys.value.add(parameter_type)


# The rules of JAX's transformations. Their tables are public but for those of linearization and lowering.
_linearizations = private(
    "jax._src.interpreters.ad:primitive_linearizations",
    purpose="to keep the logs of a scan in their iterations when it is linearized",
    needed_for=Feature.DERIVATIVES,
    has="__setitem__",
)
_fallback_linearization = private(
    "jax._src.interpreters.ad:fallback_linearize_rule",
    purpose="to switch off the check for leaked tracers, which logs confuse, while a loop or checkpoint is linearized",
    otherwise="jax.checking_leaks may report leaks that are none.",
    has="__call__",
)
_lowerings = private(
    "jax.interpreters.mlir:_lowerings",
    purpose="to refuse to compile a branch that only some shards come to, where the first one is to send a log",
    needed_for=Feature.LOWERING_RULES,
)
_batch_trace = private(
    "jax._src.interpreters.batching:BatchTrace.process_shard_map",
    purpose="to tell the batch axis of a vmap from those of shards inside",
    needed_for=Feature.VMAPPED_SHARDS,
)


@_patch(
    "the batching of cond, while_loop and custom_vmap", "each batch element logs what it would log alone", required=True
)
def wrap_batching(primitive: Any, wrapper: Wrapper) -> None:
    """Wrap JAX's rule that batches a primitive."""
    batching.fancy_primitive_batchers[primitive] = wrapper(batching.fancy_primitive_batchers[primitive])


@_patch("BatchTrace.process_shard_map", "logs get their axis for shards before that of the vmap around", required=True)
def wrap_shard_map_batching(wrapper: Wrapper) -> None:
    """Wrap the method by which a `vmap` meets a `shard_map`."""
    if _batch_trace.found:
        _batch_trace.owner.process_shard_map = wrapper(_batch_trace.value)


@_patch("the linearization of programs with logs", "the logs of a scan stay in their iterations", required=True)
def wrap_linearization(primitive: Any, wrapper: Wrapper) -> None:
    """Wrap JAX's rule that linearizes a primitive, or what JAX does for one without such a rule."""
    if not _linearizations.found:
        return
    rule = _linearizations.value.get(primitive)
    if rule is None and _fallback_linearization.found:
        fallback = _fallback_linearization.value
        rule = lambda *args, **params: fallback(primitive, *args, **params)  # noqa: E731
    if rule is not None:
        _linearizations.value[primitive] = wrapper(rule)


@_patch("the partial evaluation of programs with logs", "each log happens once, in the forward part", required=True)
def wrap_partial_evaluation(primitive: Any, wrapper: Wrapper) -> None:
    """Wrap JAX's rule that evaluates a primitive partially, if it has one."""
    rules = partial_eval.custom_partial_eval_rules
    if primitive in rules:
        rules[primitive] = wrapper(rules[primitive])


@_patch("the partial evaluation of loops in checkpoint", "what is recomputed does not log again", required=True)
def wrap_checkpoint_rule(primitive: Any, wrapper: Wrapper) -> None:
    """Wrap JAX's rule that splits a primitive inside `checkpoint` into what runs forward and what is recomputed."""
    rules = partial_eval.partial_eval_jaxpr_custom_rules
    rules[primitive] = wrapper(rules[primitive])


@_patch("the dead code elimination of checkpoint", "a checkpoint is kept for its logs (jax 0.10)", required=True)
def wrap_dead_code_elimination(primitive: Any, wrapper: Wrapper) -> None:
    """Wrap JAX's rule that removes dead code inside a primitive, and the primitive with it."""
    partial_eval.dce_rules[primitive] = wrapper(partial_eval.dce_rules[primitive])


@_patch(
    "the lowering of cond and loops",
    "a tap on shards that may lose logs is not compiled, and loops with a progress bar are compiled in chunks",
    required=True,
)
def wrap_lowering(primitive: Any, wrapper: Wrapper) -> None:
    """Wrap the rule by which JAX lowers a primitive, on all platforms."""
    if _lowerings.found:
        mlir.register_lowering(primitive, wrapper(_lowerings.value[primitive].rule))


@_patch("Primitive.bind", "lox.watch sees the operations of programs that do not log", required=True)
def observe_bind(wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Wrap the method by which programs bind primitives.

    Returns:
        A function that undoes it, unless it was wrapped again since.
    """
    before = jex.core.Primitive.bind
    wrapped = wrapper(before)
    jex.core.Primitive.bind = wrapped  # type: ignore[method-assign]

    def undo() -> None:
        if jex.core.Primitive.bind is wrapped:
            jex.core.Primitive.bind = before  # type: ignore[method-assign]

    return undo


@_patch("extend_name_stack", "lox.watch sees where name scopes begin and end", required=True)
def observe_scopes(enters: Callable[[Any, Any], None], leaves: Callable[[Any, bool], None]) -> None:
    """Call functions where a name scope is entered and left.

    The class is public as `jax.extend.source_info_util.extend_name_stack`; that it is a class is not documented.

    Args:
        enters: Gets the context manager and the scope.
        leaves: Gets the context manager, and whether no exception leaves it.
    """
    manager: Any = jax.extend.source_info_util.extend_name_stack
    enter, leave = manager.__enter__, manager.__exit__

    @functools.wraps(enter)
    def entering(self: Any) -> Any:
        stack = enter(self)
        enters(self, stack.stack[-1])
        return stack

    @functools.wraps(leave)
    def leaving(self: Any, kind: Any, *rest: Any) -> Any:
        try:
            leaves(self, kind is None)
        finally:  # An error of lox's leaves no scope open.
            left = leave(self, kind, *rest)
        return left

    manager.__enter__, manager.__exit__ = entering, leaving


_run_python = private(
    "jax._src.pjit:_run_python_pjit",
    purpose="to let jitted functions that do not log be dispatched under a handler as without one",
    otherwise="They are dispatched to more slowly.",
    has="__call__",
)


@_patch("_run_python_pjit", "jitted functions that do not log are as fast under a handler as without", required=False)
def share_fast_dispatch(
    runs_plainly: Callable[[Any, dict[str, Any]], bool],
    around: Callable[[dict[str, Any]], contextlib.AbstractContextManager[Any]],
) -> None:
    """Let JAX dispatch jitted functions as it does at top level where a trace of ours changes nothing.

    JAX keeps an executable for its fast path only if the eager trace itself was current at the first call. There is no
    public way to say that another one, which counts as the same level, is as good.

    Args:
        runs_plainly: Says of the current trace and the parameters of a `jit` whether it runs eagerly and unchanged.
        around: The context of JAX in which a `jit` of these parameters runs.
    """
    if not _run_python.found:
        return
    run = _run_python.value

    def dispatch(p: Any, *args: Any, **kwargs: Any) -> Any:
        params = getattr(p, "params", None)
        if params is None:
            return run(p, *args, **kwargs)
        with eagerly() if runs_plainly(current_trace(), params) else contextlib.nullcontext(), around(params):
            return run(p, *args, **kwargs)

    _run_python.owner._run_python_pjit = dispatch


_infer = private(
    "jax._src.pjit:_infer_params",
    purpose="to trace a jitted function that does not log no more often for the contexts it is called in",
    otherwise="It is traced and compiled once more for each set of names in a lox.context.",
    has="__call__",
)


@_patch("_infer_params", "jitted functions that do not log are not traced again in a lox.context", required=False)
def wrap_tracing(wrapper: Wrapper) -> None:
    """Wrap the function that looks a jitted function up for its arguments, or traces it.

    It takes the function first, and returns what it found, which has the parameters of the `jit`, first.
    """
    if _infer.found:
        original = _infer.value
        _infer.owner._infer_params = wrapper(original)


@functools.cache
@_patch("process_custom_vjp_call of JVPTrace and LinearizeTrace", "bwd is in the contexts of its call", required=True)
def wrap_custom_vjp(wrapper: Wrapper) -> None:
    """Wrap the method by which differentiation meets a `custom_vjp`, once: at the first use of what needs it."""
    traces: tuple[Any, ...] = (ad.JVPTrace, _linearization())
    for trace in traces:
        trace.process_custom_vjp_call = wrapper(trace.process_custom_vjp_call)


@functools.cache
@_patch("the vjp that jax.value_and_grad calls", "an audit sees what a program differentiates", required=False)
def wrap_gradients(replace: Callable[[Any, tuple[Any, ...], bool], Any]) -> None:
    """Let a function be replaced before `jax.grad` and its like differentiate it, once: at the first audit.

    There is no hook for this; `jax.vjp` itself stays as it is.

    Args:
        replace: Gets a function of what it is differentiated by alone, these values, and whether it has other results;
            and returns the function to differentiate.
    """
    names = getattr(inspect.unwrap(jax.value_and_grad), "__globals__", {})
    original = jax.vjp
    if names.get("vjp") is not original:
        return

    def vjp(fun: Any, *primals: Any, has_aux: bool = False, **options: Any) -> Any:
        return original(replace(fun, primals, has_aux), *primals, has_aux=has_aux, **options)

    names["vjp"] = vjp


def _linearization() -> Any:
    """The class of the traces that linearize, which has no public name."""
    found = []

    def fun(x: Any) -> Any:
        found.append(type(current_trace()))
        return x

    jax.eval_shape(lambda x: jax.linearize(fun, x)[0], jax.ShapeDtypeStruct((), "float32"))
    return found[0]


_is_clean = private(
    "jax._src.core:trace_state_clean",
    purpose="to let pmap run on all processes, and jax.set_mesh and libraries, under a handler as without",
    needed_for=Feature.PMAP,
    has="__call__",
)
_ASK_FOR_THE_PROGRAM = frozenset({"jax._src.sharding_impls", "jax._src.pmap"})
"""The modules of JAX that ask so to tell the program that it is transformed."""


@_patch("trace_state_clean", "pmap, jax.set_mesh and libraries run under a handler as without one", required=True)
def let_programs_ask(is_eager_handler: Callable[[Any], bool]) -> None:
    """Let programs that ask whether JAX transforms them hear of no trace of ours that is no more than top level.

    Where they are transformed, `jax.set_mesh` raises, a `pmap` of several processes runs on the devices of one, and
    libraries keep nothing for the next call. Other modules of JAX ask to know where operations go, which is to a trace
    of ours as to any. There is no public way to say that a trace transforms nothing.

    Args:
        is_eager_handler: Says of a trace that it is one of ours, at top level.
    """
    if not _is_clean.found:
        return
    is_clean = _is_clean.value

    @functools.wraps(is_clean)
    def trace_state_clean() -> bool:
        if is_clean():
            return True
        asks = sys._getframe(1).f_globals.get("__name__", "")
        if asks.startswith("jax.") and asks not in _ASK_FOR_THE_PROGRAM:
            return False
        return is_eager_handler(current_trace())

    _is_clean.owner.trace_state_clean = trace_state_clean


def check_processes() -> None:
    """Raise `UnsupportedJaxError` where a `pmap` under a handler would run on the devices of this process alone."""
    if not _is_clean.found and jax.process_count() > 1:
        need(Feature.PMAP)
