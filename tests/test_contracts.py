"""What lox assumes of JAX, and of flax, where it changes them or looks inside: each fails when that changes.

The message of each says what to look at in lox.
"""

import functools
import gc
import inspect
import weakref

import dispatch
import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import source_info_util
from jax.interpreters import ad, batching, mlir, partial_eval

import lox
from lox import _compat, _effect, _flax_probe, _shard_divergence
from lox._compat import _patches
from lox._compat import _tracebacks as tracebacks

primitives = jex.core.primitives
CHECKED = set()


def contract(patch):
    """Marks the test of a patch."""
    CHECKED.add(patch)
    return lambda test: test


def test_each_change_to_jax_has_a_contract():
    assert set(_compat.PATCHES) == CHECKED
    for patch in _compat.PATCHES.values():
        assert patch.changes and patch.purpose


def spy(calls, returned=None):
    """A wrapper that notes the arguments of each call."""

    def wrapper(original):
        def noted(*args, **params):
            calls.append((args, params))
            out = original(*args, **params)
            if returned is not None:
                returned.append(out)
            return out

        return noted

    return wrapper


class Strange(_compat.Effect):
    """An effect of which JAX has not been told."""


strange_p = jex.core.Primitive("strange")
strange_p.multiple_results = True
strange_p.def_effectful_abstract_eval(lambda *_: ([], {Strange()}))
ad.primitive_jvps[strange_p] = lambda primals, tangents: (strange_p.bind(*primals), [])
mlir.register_lowering(strange_p, lambda ctx, *args: [])


def strange(x):
    strange_p.bind(x)
    return jnp.sin(x)


@contract("allow_effect")
@pytest.mark.parametrize(
    "function",
    [
        lambda: jax.make_jaxpr(lambda x: jax.lax.cond(x > 0, strange, jnp.sin, x))(1.0),
        lambda: jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (strange(c), None), x, length=2))(1.0),
        lambda: jax.make_jaxpr(lambda x: jax.lax.while_loop(lambda c: c < 1, strange, x))(1.0),
        lambda: jax.make_jaxpr(jax.grad(jax.checkpoint(strange)))(1.0),
        lambda: jax.jit(strange).lower(1.0),
    ],
    ids=["cond", "scan", "while_loop", "checkpoint", "lowering"],
)
def test_jax_refuses_effects_that_are_not_in_its_sets(function):
    with pytest.raises((NotImplementedError, ValueError)) as caught:
        function()
    assert "ffects" in str(caught.value), (
        "JAX refuses effects in other words: lox._compat._patches.refusal recognizes its error by them"
    )


def test_an_effect_that_jax_refuses_is_an_error_of_lox_only_where_a_set_of_effects_is_missing(monkeypatch):
    loop = lox.spool(lambda x: jax.lax.scan(lambda c, _: (strange(lox.log({"c": c})["c"]), None), x, length=2)[0])
    with pytest.raises(NotImplementedError, match="ffects") as caught:
        loop(1.0)
    assert not isinstance(caught.value, lox.UnsupportedJaxError)
    sets = _patches._control_flow
    monkeypatch.delitem(vars(sets), "value", raising=False)
    monkeypatch.setattr(sets, "places", ("jax._src.nowhere:control_flow_allowed_effects",))
    with pytest.raises(lox.UnsupportedJaxError, match="no jax._src.nowhere.control_flow_allowed_effects"):
        loop(1.0)


def test_jax_drops_effects_silently_that_partial_evaluation_is_not_told_to_keep(monkeypatch):
    kept = _patches._kept.value

    def fun(x):
        def body(carry, _):
            lox.log({"carry": carry})
            return jnp.sin(carry), None

        return jax.lax.scan(body, x, length=3)[0]

    def count():
        return len(lox.spool(jax.grad(lambda x: fun(x)))(1.0)[1].get("carry", ()))

    assert count() == 3
    types = kept._effect_types - {_effect.LogEffect}
    monkeypatch.setattr(kept, "_effect_types", types)
    jax.clear_caches()
    try:
        assert count() == 0, (
            "JAX keeps what is not in partial_eval_kept_effects: lox may need it no longer. See "
            "lox._compat._patches.allow_effect"
        )
    finally:
        monkeypatch.undo()
        jax.clear_caches()


def test_dead_code_elimination_asks_whether_an_effect_is_dead_when_it_runs(monkeypatch):
    with _effect.recording(True):
        jaxpr = jax.make_jaxpr(lambda x: lox.log({"x": x})["x"] + 1)(1.0)
    opened = _compat.open_jaxpr(jaxpr)

    def logs():
        jax.clear_caches()
        pruned, _ = partial_eval.dce_jaxpr(opened, [True])
        return sum(eqn.primitive is _effect.log_p for eqn in pruned.eqns)

    assert logs() == 1
    monkeypatch.setattr(_effect, "probing", lambda: True)
    assert logs() == 0, (
        "JAX does not ask dceable_effects with isinstance, or remembers the answer: see lox._effect._DeadCodeType"
    )


@contract("order_effect")
def test_ordered_effects_have_tokens_that_other_effects_do_not_have():
    def text(ordered):
        return jax.jit(lox.tap(lambda x: lox.log({"x": x})["x"], print, ordered=ordered)).lower(1.0).as_text()

    assert "token" in text(True) and "token" not in text(False), (
        "JAX orders effects by other means than tokens: see lox._compat._patches.order_effect"
    )


@contract("cache_weakly")
def test_jax_lets_go_of_parameters_that_its_caches_are_to_refer_to_weakly():
    def trace():
        with _effect.recording(True):
            jaxpr = jax.make_jaxpr(lambda x: lox.log({"x": x})["x"])(1.0)
        return next(weakref.ref(eqn.params["layout"]) for eqn in jaxpr.eqns if eqn.primitive is _effect.log_p)

    layout = trace()
    gc.collect()
    assert layout() is None, "JAX's caches keep parameters alive: see lox._compat._patches.cache_weakly"


@contract("share_fast_dispatch")
def test_jitted_functions_are_dispatched_by_run_python_pjit_once(monkeypatch):
    calls = []
    owner = _patches._run_python.owner
    monkeypatch.setattr(owner, "_run_python_pjit", spy(calls)(owner._run_python_pjit))

    @jax.jit
    def fun(x):
        return x + 1

    lox.spool(lambda x: fun(x))(1.0)
    mine = [args for args, _ in calls if "fun" in args[2].__name__]
    assert len(mine) == 1 and "jaxpr" in mine[0][0].params, (
        "JAX no longer calls _run_python_pjit(p, ...) with p.params: see lox._compat._patches.share_fast_dispatch"
    )
    assert dispatch.slow_calls(lox.spool(lambda x: fun(x)), 1.0) == 0, (
        "a second call of a jitted function under a handler goes by way of Python: see "
        "lox._compat._patches.share_fast_dispatch and lox._compat._traces.adopt_level"
    )


@contract("wrap_tracing")
def test_jitted_functions_are_looked_up_by_infer_params(monkeypatch):
    calls, returned = [], []
    owner = _patches._infer.owner
    monkeypatch.setattr(owner, "_infer_params", spy(calls, returned)(owner._infer_params))

    @jax.jit
    def fun(x):
        return x + 1

    fun(1.0)
    mine = [found for (args, _), (found, *_) in zip(calls, returned, strict=True) if "fun" in args[0].__name__]
    assert len(mine) == 1 and "jaxpr" in mine[0].params, (
        "JAX no longer calls _infer_params(fun, ...), or it returns something else: see lox._context._infer"
    )


@contract("wrap_custom_vjp")
@pytest.mark.parametrize("differentiate", [jax.jvp, jax.linearize])
def test_differentiation_calls_process_custom_vjp_call_of_its_trace(monkeypatch, differentiate):
    calls = []
    for trace in (ad.JVPTrace, _patches._linearization()):
        monkeypatch.setattr(trace, "process_custom_vjp_call", spy(calls)(trace.process_custom_vjp_call))
    fun = jax.custom_vjp(lambda x: x)
    fun.defvjp(lambda x: (x, None), lambda _, bar: (bar,))
    jax.vjp(fun, 1.0) if differentiate is jax.linearize else jax.jacrev(jax.checkpoint(fun))(1.0)
    assert len(calls[0][0]) == 6 and set(calls[0][1]) == {"out_trees", "symbolic_zeros"}, (
        "JAX differentiates custom_vjp otherwise: see lox._context._save_for_bwd"
    )


def test_jax_tells_levels_of_tracing_by_what_a_trace_refers_to_itself_with():
    def state():
        return jex.core.get_opaque_trace_state(convention="flax")

    inside = []
    before = state()
    lox.spool(lambda x: inside.append(state()))(1.0)
    assert inside[0] == before, "JAX tells levels apart by other means: see lox._compat._traces.adopt_level"
    inside.clear()
    jax.make_jaxpr(lambda x: inside.append(state()))(1.0)
    assert inside[0] != before


@contract("wrap_gradients")
@pytest.mark.parametrize("derivative", [jax.grad, jax.jacrev])
def test_gradients_call_the_vjp_that_is_wrapped_with_a_function_of_what_they_differentiate_by(monkeypatch, derivative):
    calls = []
    names = inspect.unwrap(jax.value_and_grad).__globals__
    monkeypatch.setitem(names, "vjp", spy(calls)(names["vjp"]))
    fun = lambda x, y, z: x * y * z  # noqa: E731
    derivative(fun, (2, 0))(1.0, 2.0, 3.0)
    (((of_some, *primals), _),) = calls
    assert primals == [3.0, 1.0] and of_some(3.0, 1.0) == 6.0, (
        "JAX differentiates otherwise: see lox._compat._patches.wrap_gradients"
    )
    assert derivative is jax.jacrev or _compat.function_of_arguments(of_some) == (fun, (2, 0)), (
        "JAX makes functions of some arguments otherwise: see lox._compat._functions.function_of_arguments"
    )


def test_a_callable_that_is_no_function_of_jax_is_differentiated_by_all_of_its_arguments():
    fun = functools.partial(lambda f, x: f * x, 2.0)
    assert _compat.function_of_arguments(fun) == (fun, ())


@contract("let_programs_ask")
@pytest.mark.parametrize("asks", ["pmap", "set_mesh"])
def test_jax_asks_whether_a_program_is_transformed(monkeypatch, asks):
    calls = []
    owner = _patches._is_clean.owner
    monkeypatch.setattr(owner, "trace_state_clean", spy(calls)(owner.trace_state_clean))
    if asks == "pmap":
        jax.pmap(lambda x: x)(np.zeros((1, 1)))
    else:
        with jax.set_mesh(jax.make_mesh((1,), ("i",))):
            pass
    assert calls, f"{asks} asks otherwise whether it is transformed: see lox._compat._patches.let_programs_ask"


@contract("wrap_batching")
@pytest.mark.parametrize("primitive", [primitives.cond_p, primitives.while_p])
def test_vmap_calls_the_batching_rule_of_a_primitive(monkeypatch, primitive):
    calls, returned = [], []
    table = batching.fancy_primitive_batchers
    monkeypatch.setitem(table, primitive, spy(calls, returned)(table[primitive]))

    def fun(x):
        if primitive is primitives.cond_p:
            return jax.lax.cond(x > 0, jnp.sin, jnp.cos, x)
        return jax.lax.while_loop(lambda c: c < 1, lambda c: c + 1, x)

    jax.vmap(fun)(np.zeros(2, np.float32))
    ((axis, args, dims), params), (outs, out_dims) = calls[0], returned[0]
    named = {"branches"} if primitive is primitives.cond_p else {"cond_jaxpr", "cond_nconsts", "body_jaxpr"}
    assert axis.size == 2 and len(args) == len(dims) and len(outs) == len(out_dims) and named <= set(params), (
        "batching rules take or return something else: see lox._batching"
    )


@contract("wrap_batching")
def test_vmap_asks_the_batching_rule_of_a_custom_vmap_function_also_where_no_argument_is_batched(monkeypatch):
    calls = []
    table, primitive = batching.fancy_primitive_batchers, _compat.custom_vmap_p
    monkeypatch.setitem(table, primitive, spy(calls)(table[primitive]))
    fun = jax.custom_batching.custom_vmap(lambda x: x)
    fun.def_vmap(lambda size, batched, x: (x, batched[0]))
    jax.vmap(lambda x: x + fun(np.float32(1)))(np.zeros(2, np.float32))
    ((axis, args, dims), params) = calls[0]
    assert axis.size == 2 and list(dims) == [None] and len(args) == 1 and {"call", "rule", "in_tree"} <= set(params), (
        "vmap calls a custom_vmap function otherwise: see lox._batching._batch_custom_vmap"
    )


def shards():
    mesh = jax.make_mesh((2,), ("shard",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("shard")
    return lambda fun: jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)


@contract("wrap_shard_map_batching")
def test_vmap_meets_a_shard_map_by_a_method_of_its_trace(monkeypatch):
    calls = []
    trace = _patches._batch_trace.owner
    monkeypatch.setattr(trace, "process_shard_map", spy(calls)(trace.process_shard_map))
    jax.vmap(shards()(lambda x: x))(np.zeros((3, 2), np.float32))
    ((current, primitive, fun, args), params) = calls[0]
    assert isinstance(current, trace) and current.axis_data.size == 3 and callable(fun) and len(args) == 1, (
        "BatchTrace.process_shard_map takes something else: see lox._batching._batch_shard_map"
    )
    assert primitive is _compat.shard_map_p and {"mesh", "check_vma", "newly_manual_axes"} <= set(params), (
        "shard_map has other parameters: see lox._rules._shard_map"
    )


@contract("wrap_linearization")
def test_linearization_rules_return_the_linear_function_last(monkeypatch):
    calls, returned = [], []
    table = _patches._linearizations.value
    monkeypatch.setitem(table, primitives.scan_p, spy(calls, returned)(table[primitives.scan_p]))
    jax.linearize(lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=2), 1.0)
    ((_, nonzero, *primals), params), results = calls[0], returned[0]
    assert len(nonzero) == len(primals) and "jaxpr" in params and callable(results[-1]), (
        "linearization rules take or return something else: see lox._autodiff._linearize_scan"
    )


@contract("wrap_partial_evaluation")
def test_partial_evaluation_calls_the_rule_of_a_primitive(monkeypatch):
    calls = []
    table = partial_eval.custom_partial_eval_rules
    monkeypatch.setitem(table, primitives.while_p, spy(calls)(table[primitives.while_p]))

    def fun(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]

    jax.linearize(fun, 1.0)
    assert calls, "partial evaluation does not ask custom_partial_eval_rules: see lox._autodiff"
    (trace, *tracers), params = calls[0]
    known = [tracer.is_known() for tracer in tracers]
    assert True in known and False in known and "body_jaxpr" in params, "see lox._autodiff._partially_evaluate_while"
    assert all(tracer._trace is trace for tracer in tracers), "see lox._compat._traces.is_left_by"
    assert callable(trace.default_process_primitive) and callable(trace.new_const)


@contract("wrap_checkpoint_rule")
def test_checkpoint_splits_loops_by_a_rule_that_takes_the_equation_last(monkeypatch):
    calls, returned = [], []
    table = partial_eval.partial_eval_jaxpr_custom_rules
    monkeypatch.setitem(table, primitives.while_p, spy(calls, returned)(table[primitives.while_p]))

    @jax.checkpoint
    def fun(x):
        count = jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0.0)
        return jnp.sin(x * count)

    jax.make_jaxpr(jax.grad(fun))(1.0)
    assert calls, "checkpoint does not ask partial_eval_jaxpr_custom_rules: see lox._autodiff._recompute_while"
    (_, unknown, _, eqn), _ = calls[0]
    known, _, unknown_outs, *_ = returned[0]
    assert eqn.primitive is primitives.while_p and known.primitive is primitives.while_p, "see lox._autodiff"
    assert len(unknown) == len(eqn.invars) and len(unknown_outs) == len(eqn.outvars), "see lox._autodiff._known_while"


@contract("wrap_dead_code_elimination")
def test_the_rule_for_dead_code_in_a_checkpoint_takes_the_equation_last(monkeypatch):
    calls, returned = [], []
    table = partial_eval.dce_rules
    monkeypatch.setitem(table, primitives.remat_p, spy(calls, returned)(table[primitives.remat_p]))
    jaxpr = _compat.open_jaxpr(jax.make_jaxpr(jax.checkpoint(lambda x: (jnp.sin(x), jnp.cos(x))))(1.0))
    partial_eval.dce_jaxpr(jaxpr, [True, False])
    (used_outs, *_, eqn), _ = calls[0]
    used_ins, new = returned[0]
    assert used_outs == [True, False] and eqn.primitive is new.primitive is primitives.remat_p, (
        "see lox._autodiff._keep_logs"
    )
    assert list(used_ins) == [True]


@contract("wrap_lowering")
@pytest.mark.parametrize("primitive", [primitives.cond_p, primitives.while_p])
def test_what_is_registered_lowers_branches_and_loops(monkeypatch, primitive):
    seen = []
    monkeypatch.setattr(_shard_divergence._compat, "varying_axes", lambda aval: seen.append(aval) or frozenset())

    def fun(x):
        if primitive is primitives.cond_p:
            return jax.lax.cond(x > 0, jnp.sin, jnp.cos, x)
        return jax.lax.while_loop(lambda c: c < 1, lambda c: c + 1, x)

    jax.jit(fun).lower(1.0)
    assert seen, "JAX lowers by other rules than those in mlir._lowerings: see lox._shard_divergence"


def scanned(seen):
    """A module scanned by flax, which notes whether lox takes each trace of its body for a probe."""
    import flax.linen as nn

    class Body(nn.Module):
        @nn.compact
        def __call__(self, carry, x):
            seen.append(_flax_probe.probing())
            lox.log({"x": x})
            return nn.Dense(1)(carry) + x, x

    body = nn.scan(Body, variable_broadcast="params", split_rngs={"params": False})()
    xs = jnp.ones((3, 1))
    params = body.init(jax.random.key(0), jnp.ones(1), xs)
    seen.clear()
    return lambda: body.apply(params, jnp.ones(1), xs)


@pytest.mark.integration
def test_flax_traces_a_scanned_body_to_look_and_has_no_constants_until_then():
    seen = []
    apply = scanned(seen)
    _, logs = lox.spool(apply)()
    assert True in seen and seen[-1] is False, (
        "flax.core.axes_scan.scan_fn has no local constants_out, or has it before it has looked: see lox._flax_probe"
    )
    assert logs["x"].shape == (3, 1)


@pytest.mark.integration
def test_without_the_set_of_dead_effects_a_log_in_a_flax_scan_is_refused(monkeypatch):
    apply = scanned([])
    dead = _patches._dead
    monkeypatch.delitem(vars(dead), "value", raising=False)
    monkeypatch.setattr(dead, "places", ("jax._src.nowhere:dceable_effects",))
    with pytest.raises(lox.UnsupportedJaxError, match="flax.linen.scan"):
        lox.spool(apply)()


# The names by which the auditor knows functions of JAX.


def frames(function, *args):
    """The frames of JAX that lead to the equations of a function, also to those inside of others."""
    found = []

    def visit(jaxpr):
        for eqn in _compat.open_jaxpr(jaxpr).eqns:
            found.extend(eqn.source_info.traceback.frames)
            for value in eqn.params.values():
                if _compat.is_jaxpr(value):
                    visit(value)

    visit(jax.make_jaxpr(function)(*args))
    return found


def names(function, *args):
    return {frame.function_name for frame in frames(function, *args)}


def test_a_vmap_copies_results_by_a_function_that_the_auditor_knows():
    x = np.zeros(3, np.float32)
    found = names(lambda x, y: jax.vmap(lambda _: y)(x), x, 1.0)
    assert tracebacks.copies_result(found), "LOX310 (lox/_audit/_checks/_lanes/_vmap.py) no longer sees copies by vmap"


def test_a_psum_of_what_is_the_same_for_all_is_in_a_file_that_the_auditor_knows():
    x = np.zeros(3, np.float32)
    found = frames(lambda x, y: jax.vmap(lambda x: x + jax.lax.psum(y, "i"), axis_name="i")(x), x, 1.0)
    assert tracebacks.is_collective(frame.file_name for frame in found), (
        "LOX301 (lox/_audit/_checks/_lanes/_vmap.py) no longer sees psum"
    )


def test_special_functions_are_in_files_that_the_auditor_knows():
    found = frames(jax.scipy.special.log_ndtr, 1.0)
    assert tracebacks.is_of_scipy(frame.file_name for frame in found), (
        "LOX808 (lox/_audit/_checks/_numerics/_infinities.py) and LOX606 (_autodiff/_singular.py) tell of what special "
        "functions guard themselves"
    )
    assert not tracebacks.is_of_scipy(frame.file_name for frame in frames(jnp.sin, 1.0))


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev])
def test_jacobians_are_made_by_functions_that_the_auditor_knows(jacobian):
    assert tracebacks.is_jacobian(names(jacobian(lambda x: jnp.sin(x) * x), np.zeros(3, np.float32))), (
        "LOX703 (lox/_audit/_checks/_randomness/_draws.py) takes the directions of a Jacobian for batch elements"
    )
    assert not tracebacks.is_jacobian(names(jnp.sin, 1.0))


def test_what_vmap_returns_has_a_name_that_the_auditor_knows():
    assert any(map(tracebacks.maps, names(jax.vmap(jnp.sin), np.zeros(3, np.float32)))), (
        "LOX703 (lox/_audit/_checks/_randomness/_reuse.py) tells of the line that calls the vmap"
    )
    assert not any(map(tracebacks.maps, names(jnp.sin, 1.0)))


def test_jitted_functions_are_called_from_a_file_that_the_auditor_knows():
    found = frames(jax.jit(jnp.sin), 1.0)
    assert any(tracebacks.calls_jitted(frame.file_name) for frame in found), (
        "LOX700 and LOX705 (lox/_audit/_checks/_randomness/_reuse.py) no longer see what a jit was inlined to"
    )


def test_trees_are_mapped_in_a_file_that_transforms_nothing():
    found = frames(lambda x: jax.tree.map(jnp.sin, [x]), 1.0)
    mapping = {frame.file_name for frame in found if frame.function_name == "tree_map"}
    assert mapping and not any(map(tracebacks.transforms, mapping)), (
        "lox/_audit/_sources.py takes jax.tree.map for a transformation"
    )
    assert any(tracebacks.transforms(frame.file_name) for frame in frames(jax.vmap(jnp.sin), np.zeros(3, np.float32)))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("_getitem", lambda x, i: x[i]),
        ("dynamic_index_in_dim", lambda x, i: jax.lax.dynamic_index_in_dim(x, i)),
        ("dynamic_slice", lambda x, i: jax.lax.dynamic_slice(x, (i,), (1,))),
        ("dynamic_slice_in_dim", lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 1)),
    ],
)
def test_lookups_that_clamp_are_made_by_functions_that_the_auditor_knows(name, function):
    assert name in tracebacks.CLAMPING
    found = {tracebacks.function_of(each) for each in names(function, np.zeros(3, np.float32), 1)}
    assert name in found, "LOX203 (lox/_audit/_checks/_loops/_reads.py) no longer sees lookups that clamp"


def test_all_clamping_functions_have_a_canary():
    marks = test_lookups_that_clamp_are_made_by_functions_that_the_auditor_knows.pytestmark
    assert {name for name, _ in marks[0].args[1]} == tracebacks.CLAMPING


@pytest.mark.parametrize(
    ("known", "function"),
    [
        ("FILLING", lambda x: jnp.take(x, 1)),
        ("FILLING", lambda x: jnp.take_along_axis(x, jnp.array([1]), 0)),
        ("TAKING_LOGITS", lambda x: jax.random.categorical(jax.random.key(0), x)),
    ],
)
def test_what_takes_indices_and_logits_is_made_by_functions_that_the_auditor_knows(known, function):
    found = {tracebacks.function_of(each) for each in names(function, np.zeros(3, np.float32))}
    codes = {"FILLING": "LOX820", "TAKING_LOGITS": "LOX813"}
    assert found & getattr(tracebacks, known), f"{codes[known]} (lox/_audit/_checks/_numerics) no longer sees a call"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.at[1].set(0.0),
        lambda x: jax.ops.segment_sum(x, jnp.arange(3), 3),
        lambda x: jax.lax.dynamic_update_slice(x, x[:1], (1,)),
    ],
)
def test_writes_are_made_by_functions_that_the_auditor_knows(function):
    found = names(function, np.zeros(3, np.float32))
    assert any(map(tracebacks.writes_at, found)), "LOX820 (lox/_audit/_checks/_numerics/_indices.py) sees no writes"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("permutation", lambda key: jax.random.permutation(key, 3)),
        ("choice", lambda key: jax.random.choice(key, 3)),
        ("randint", lambda key: jax.random.randint(key, (), 0, 3)),
    ],
)
def test_draws_that_are_paired_on_purpose_are_made_by_functions_that_the_auditor_knows(name, function):
    assert name in tracebacks.PLACED_DRAWS
    found = {tracebacks.function_of(each) for each in names(function, jax.random.key(0))}
    assert name in found, "LOX700 and LOX705 (lox/_audit/_checks/_randomness/_reuse.py) report pairs that are meant"


@pytest.mark.parametrize(
    ("made", "function"),
    [
        (jax.random.PRNGKey, lambda: jax.random.PRNGKey(0)),
        (jax.random.split, lambda: jax.random.split(jax.random.key(0))),
        (jax.random.wrap_key_data, lambda: jax.random.wrap_key_data(np.zeros(2, np.uint32))),
    ],
)
def test_functions_of_random_keys_are_in_tracebacks_as_the_auditor_knows_them(made, function):
    jaxpr = _compat.open_jaxpr(jax.make_jaxpr(function)())
    codes = {code for eqn in jaxpr.eqns for code in eqn.source_info.traceback.raw_frames()[0]}
    assert tracebacks.code_of(made) in codes, "LOX706, LOX707 (lox/_audit/_checks/_randomness) no longer see keys made"


def test_name_stacks_have_transformations_that_the_auditor_knows():
    jaxpr = jax.make_jaxpr(jax.vmap(jax.grad(jnp.sin)))(np.zeros(3, np.float32))
    found = {tracebacks.transformations(eqn.source_info.name_stack.stack) for eqn in _compat.open_jaxpr(jaxpr).eqns}
    assert any(each[:2] == ("vmap", "jvp") for each in found), (
        "lox/_audit/_location.py no longer sees which transformations an equation went through"
    )


def test_what_a_checkpoint_computes_anew_is_marked_as_the_auditor_knows_it():
    jaxpr = jax.make_jaxpr(jax.grad(jax.checkpoint(lambda x: jnp.sqrt(x) ** 3)))(1.0)
    inside = [eqn for outer in jaxpr.eqns if "jaxpr" in outer.params for eqn in outer.params["jaxpr"].eqns]
    anew = [tracebacks.is_recomputed(eqn.source_info.name_stack) for eqn in inside]
    assert any(anew) and not all(anew), "LOX606 and LOX607 no longer see derivatives through jax.checkpoint"


@contract("observe_bind")
def test_programs_bind_primitives_by_the_method_of_their_class(monkeypatch):
    bound = []
    bind = jex.core.Primitive.bind
    monkeypatch.setattr(
        jex.core.Primitive, "bind", lambda self, *args, **kw: bound.append(self) or bind(self, *args, **kw)
    )

    def fun(x):
        x = jax.lax.scan(lambda c, _: (c + 1, None), x, length=2)[0]
        x = jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)
        x = jax.lax.cond(x > 0, lambda x: x, lambda x: -x, x)
        return jax.checkpoint(jax.nn.relu)(x)

    jax.make_jaxpr(jax.jit(fun))(1.0)
    names = {"scan_p", "while_p", "cond_p", "remat_p", "jit_p", "custom_jvp_call_p"}
    assert {getattr(primitives, name) for name in names} <= set(bound), "see lox._watch._observer"


@contract("observe_scopes")
def test_a_name_scope_is_a_context_manager_of_a_public_class_and_its_scopes_keep_their_identity(monkeypatch):
    manager = source_info_util.extend_name_stack
    entered, enter = [], manager.__enter__
    monkeypatch.setattr(manager, "__enter__", lambda self: entered.append(enter(self)) or entered[-1])

    def fun(x):
        with jax.named_scope("mine"):
            return jnp.sin(x) ** 2

    jaxpr = jax.make_jaxpr(jax.grad(fun))(1.0)
    (mine,) = [stack.stack[-1] for stack in entered if stack.stack[-1].name == "mine"]
    stacks = [eqn.source_info.name_stack for eqn in jaxpr.eqns]
    assert all(any(each is mine for each in stack.stack) for stack in stacks), "see lox._watch._backward"
    assert any("transpose" in tracebacks.transformations(stack.stack) for stack in stacks)


def test_a_loop_knows_what_it_has_taken_out_where_it_binds(monkeypatch):
    found, bind = [], jex.core.Primitive.bind

    def observed(self, *args, **params):
        if self in (primitives.scan_p, primitives.while_p):
            found.append([list(each) for each in tracebacks.taken_out(inspect.currentframe().f_back)])
        return bind(self, *args, **params)

    def fun(c, xs):
        c, _ = jax.lax.scan(lambda c, x: ((c[0], c[1] + 1), (c[1], x)), c, xs)
        return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: (c[0], c[1] + 1), c)

    monkeypatch.setattr(jex.core.Primitive, "bind", observed)
    jax.make_jaxpr(fun)((1.0, 2.0), jnp.arange(3.0))
    assert found[-2:] == [[[True, False], [None, 1]], [[True, False], []]], "lox.watch numbers values of loops by it"
