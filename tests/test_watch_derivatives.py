"""`lox.watch` in derivatives of derivatives: two points never have one path, and scopes keep their numbers."""

import contextlib
import functools
import re

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.experimental.ode import odeint

import lox

X = np.float32(0.7)


def layer(x):
    with jax.named_scope("layer"):
        return jnp.sin(x) * x * x


def slope(x):
    """The derivative of the layer."""
    return jnp.cos(x) * x * x + 2 * jnp.sin(x) * x


def values_of(point, values):
    """Logs all values of a point as they are."""
    return {str(number): value for number, value in enumerate(values)}


def on_shards(fun):
    mesh, spec = jax.sharding.Mesh(jax.devices()[:1], "i"), jax.sharding.PartitionSpec()
    return jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)


def with_jvp(fun):
    ruled = jax.custom_jvp(lambda x: fun(x))
    ruled.defjvp(lambda primals, tangents: jax.jvp(fun, primals, tangents))
    return ruled


def with_gradient(fun):
    """A function whose rule has a backward pass, and scopes that the function does not have."""

    def rule(primals, tangents):
        with jax.named_scope("slope"):
            return fun(*primals), jax.grad(fun)(*primals) * tangents[0]

    ruled = jax.custom_jvp(lambda x: fun(x))
    ruled.defjvp(rule)
    return ruled


def with_vjp(fun):
    ruled = jax.custom_vjp(lambda x: fun(x))
    ruled.defvjp(lambda x: jax.vjp(fun, x), lambda pullback, bar: pullback(bar))
    return ruled


def with_scopes(fun):
    """A function whose rules have scopes, and one of them a backward pass."""

    def forward(x):
        with jax.named_scope("forward"):
            return fun(x), x * 1

    def backward(x, bar):
        with jax.named_scope("layer"):
            return (bar * jax.grad(fun)(x),)

    ruled = jax.custom_vjp(lambda x: fun(x))
    ruled.defvjp(forward, backward)
    return ruled


def with_batching(fun):
    ruled = jax.custom_batching.custom_vmap(lambda x: fun(x))
    ruled.def_vmap(lambda size, batched, x: (jax.lax.map(fun, x), True))
    return ruled


def beside_calls(fun):
    """A function in scopes that are named as a loop and a jitted function beside it."""
    jitted = jax.jit(layer)

    def called(x):
        with jax.named_scope("scan"):
            before = jitted(x) * x
        looped = jax.lax.scan(lambda c, _: (fun(jnp.sin(c)), None), before, None, length=1)[0]
        with jax.named_scope("layer"):
            return jitted(jnp.cos(looped)) + jitted(x)

    return called


def twice(wrap):
    return lambda fun: lambda x: wrap(fun)(x) + wrap(fun)(3 * x)


def scoped(fun):
    def in_scope(x):
        with jax.named_scope("layer"):
            return fun(x)

    return in_scope


def of_jaxpr(fun):
    def converted(x):
        pure, captured = jax.closure_convert(fun, x)
        return pure(x, *captured) + pure(3 * x, *captured)

    return converted


PLAIN = lambda f: f  # noqa: E731

TRANSFORMS = {
    "grad": jax.grad,
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.ones(()))[0],
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones(()),))[1],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.ones(())),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "jit": jax.jit,
    "scope": scoped,
    "checkpoint": jax.checkpoint,
    "shards": on_shards,
    "custom_jvp": with_jvp,
    "gradient rule": with_gradient,
    "custom_vjp": with_vjp,
    "rules with scopes": with_scopes,
    "custom_vmap": with_batching,
    "jaxpr": of_jaxpr,
    "scan": lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: jax.lax.cond(x > -9, lambda x: f(x) + x, lambda x: jax.lax.stop_gradient(f(x)), x),
    "beside calls": beside_calls,
    "itself twice": twice(lambda f: f),
    "checkpoint twice": twice(jax.checkpoint),
    "shards twice": twice(on_shards),
    "jit twice": twice(jax.jit),
    "gradient rule twice": twice(with_gradient),
    "rules with scopes twice": twice(with_scopes),
    "checkpoint beside": lambda f: lambda x: f(x) + jax.checkpoint(f)(x),
    "checkpoint before": lambda f: lambda x: jax.checkpoint(f)(x) + f(x),
    "shards before": lambda f: lambda x: on_shards(f)(x) + f(x),
    "gradient rule before": lambda f: lambda x: with_gradient(f)(x) + f(x),
}


def program(names):
    """The layer under some transformations. The first one is applied first."""
    return functools.reduce(lambda fun, name: TRANSFORMS[name](fun), names, layer)


def events(fun, primitives=True):
    """The values of all points that can be watched, by path."""
    wanted = lambda point: not point.obstacle and (primitives or point.kind != "primitive")  # noqa: E731
    out, logs = lox.spool(lox.watch(fun, at=wanted, what=values_of), unify=True)(X)
    return out, {key: np.asarray(logs[key]) for key in logs}


def check(fun, primitives):
    """Check that a program whose loops have one iteration has one event of each point at most, and its results."""
    out, logs = events(fun, primitives)
    np.testing.assert_allclose(out, fun(X), rtol=1e-5)
    assert {key: len(values) for key, values in logs.items() if len(values) > 1} == {}


def paths(fun):
    return [point.path.removeprefix("<lambda>/") for point in lox.points(jax.jit(fun))(X)]


SECOND_DERIVATIVES = {
    "checkpoint": ("checkpoint", "grad", "grad"),
    "shards": ("shards", "grad", "grad"),
    "checkpoint in jit": ("checkpoint", "grad", "jit", "grad"),
    "gradients before shards": ("grad", "shards before", "grad"),
    "a Hessian beside a checkpoint": ("checkpoint beside", "jacrev", "grad"),
    "a Hessian on shards in a rule": ("shards", "hessian", "checkpoint beside", "custom_jvp"),
    "rules twice": ("gradient rule twice", "jit", "grad"),
    "rules in checkpoints": ("rules with scopes", "checkpoint twice", "grad"),
    "a derivative of a checkpoint in a rule": ("checkpoint", "rules with scopes", "vjp"),
    "a rule before a checkpoint": ("custom_jvp", "checkpoint beside", "grad"),
    "a linearized backward function": ("rules with scopes", "grad", "linearize"),
    "scopes named as calls": ("itself twice", "beside calls", "grad"),
    "scopes named as calls, with rules": ("rules with scopes", "beside calls", "grad"),
    "scopes named as calls, in a checkpoint": ("beside calls", "checkpoint twice", "grad"),
    "a rule of a rule": ("checkpoint before", "vjp", "custom_vjp", "vjp"),
}


@pytest.mark.parametrize("names", SECOND_DERIVATIVES.values(), ids=SECOND_DERIVATIVES.keys())
def test_no_two_points_have_one_path(names):
    check(program(names), primitives=True)
    check(jax.jit(program(names)), primitives=True)


@pytest.mark.exhaustive
@pytest.mark.generated(40)
def test_no_two_points_of_random_compositions_have_one_path(examples):
    runs = []

    @examples
    @given(st.lists(st.sampled_from(list(TRANSFORMS)), min_size=2, max_size=4), st.booleans(), st.booleans())
    def test(names, is_jitted, primitives):
        fun = jax.jit(program(names)) if is_jitted else program(names)
        with contextlib.suppress(Exception):  # Some are refused by JAX, as forward-mode derivatives of a custom_vjp.
            fun(X)
            runs.append(fun)
        if runs:
            check(runs.pop(), primitives)

    test()


@pytest.mark.parametrize("transform", [PLAIN, jax.jit, jax.checkpoint], ids=["eager", "jit", "checkpoint"])
def test_loops_and_jitted_functions_have_the_number_of_the_forward_pass_in_the_backward_pass(transform):
    """A scope of the same name beside them has another number."""
    jitted = jax.jit(layer)

    def fun(x):
        with jax.named_scope("layer"):
            x = jnp.cos(x)
        x = jitted(3 * jitted(x))
        with jax.named_scope("scan"):
            x = jnp.exp(x)
        return jax.lax.scan(lambda c, _: (jnp.cos(c), None), x, None, length=2)[0]

    grad = jax.grad(transform(fun))
    logs = events(grad, primitives=False)[1]
    start = "backward/fun/" if transform is jax.jit else "backward/"
    found = {key.removeprefix(start): values for key, values in logs.items() if key.startswith(start)}
    first = jnp.cos(X)
    second, last = layer(first), jnp.exp(layer(3 * layer(first)))
    after = np.sin(last) * np.sin(np.cos(last)) * last
    np.testing.assert_allclose(found["scan[1]/0"], [-np.sin(np.cos(last)), after / last], rtol=1e-5)
    np.testing.assert_allclose(found["layer[2]/0"], [after * slope(3 * second)], rtol=1e-5)
    np.testing.assert_allclose(found["layer[1]/0"], [after * slope(3 * second) * 3 * slope(first)], rtol=1e-5)
    if transform is not PLAIN:
        np.testing.assert_allclose(found["scan/0"], [after], rtol=1e-5)
        np.testing.assert_allclose(found["layer/0"], [grad(X)], rtol=1e-5)


@pytest.mark.parametrize("outside", [False, True], ids=["jit of grad", "grad of jit"])
@pytest.mark.parametrize("name", ["slope", "scan", "cond"])
def test_what_a_loop_of_python_runs_again_is_one_point_in_the_backward_pass(name, outside):
    body = lambda c, _: (jnp.sin(c), None)  # noqa: E731
    yes, no = (lambda x: jnp.sin(x)), (lambda x: x)
    run = {
        "slope": jax.jit(slope),
        "scan": lambda x: jax.lax.scan(body, x, None, length=1)[0],
        "cond": lambda x: jax.lax.cond(x > 0, yes, no, x),
    }[name]

    def loss(x):
        for _ in range(3):
            x = run(x)
        with jax.named_scope(name):
            return 5 * x

    logs = events(jax.grad(jax.jit(loss)) if outside else jax.jit(jax.grad(loss)), primitives=False)[1]
    start = "backward/loss" if outside else "loss/backward"
    counts = {key: len(values) for key, values in logs.items() if key.startswith(f"{start}/{name}")}
    assert counts == {f"{start}/{name}/0": 3, f"{start}/{name}[1]/0": 1}
    assert logs[f"{start}/{name}[1]/0"] == 5


def with_rule(backward):
    """The gradient of a function whose backward function is given. It gets the argument and the cotangent."""
    ruled = jax.custom_vjp(lambda x: x)
    ruled.defvjp(lambda x: (x, x), lambda x, bar: (backward(x, bar),))
    return jax.jit(jax.grad(lambda x: ruled(x)))


@pytest.mark.parametrize("name", ["fori_loop", "cond", "jit", "checkpoint"])
def test_a_pullback_in_a_loop_or_branch_of_a_backward_function_has_its_points(name):
    def backward(x, bar):
        _, pullback = jax.vjp(layer, x)
        pull = lambda bar: pullback(bar)[0]  # noqa: E731
        return {
            "fori_loop": lambda: jax.lax.fori_loop(0, 1, lambda _, bar: pull(bar), bar),
            "cond": lambda: jax.lax.cond(x > -9, pull, lambda bar: bar, bar),
            "jit": lambda: jax.jit(lambda bar: pull(bar))(bar),
            "checkpoint": lambda: jax.checkpoint(pull)(bar),
        }[name]()

    grad = with_rule(backward)
    out, logs = events(grad, primitives=False)
    np.testing.assert_allclose(out, slope(X), rtol=1e-5)
    (key,) = (key for key in logs if key.endswith("backward/layer/0") and logs[key].size)
    np.testing.assert_allclose(logs[key], [slope(X)], rtol=1e-5)
    listed = {point.path for point in lox.points(grad)(X) if not point.obstacle}
    assert {key.rpartition("/")[0] for key in logs} == listed


@pytest.mark.parametrize("name", ["grad", "jvp"])
def test_tangents_in_a_backward_function_are_not_taken_for_cotangents(name):
    grad = with_rule(lambda x, bar: bar * TRANSFORMS[name](jax.grad(layer))(x))
    found = {point.path: point.obstacle for point in lox.points(grad)(X)}
    assert "JAX differentiates this backward pass" in found["<lambda>/backward/rule/backward/layer"]


def test_a_scope_in_a_bwd_rule_is_apart_from_those_of_the_forward_pass():
    def f(x):
        with jax.named_scope("layer"):
            x = jnp.cos(x)
        return with_scopes(jnp.sin)(x)

    logs = events(jax.jit(jax.grad(f)), primitives=False)[1]
    found = {key.removeprefix("f/backward/"): values for key, values in logs.items() if "backward" in key}
    assert sorted(found) == ["layer/0", "rule/layer/0"]
    np.testing.assert_allclose(found["rule/layer/0"], [np.cos(np.cos(X))], rtol=1e-5)
    np.testing.assert_allclose(found["layer/0"], [-np.cos(np.cos(X)) * np.sin(X)], rtol=1e-5)


def test_each_backward_pass_of_a_second_derivative_has_its_part():
    """The first, then the second, which runs backwards through the first and through the forward pass."""
    jitted = jax.jit(lambda x: layer(x))
    found = paths(jax.grad(jax.grad(lambda x: jitted(x))))
    assert [path for path in found if path.endswith("/layer")] == [
        "<lambda>/layer",
        "backward/<lambda>/layer",
        "backward[1]/backward/<lambda>/layer",
        "backward[1]/<lambda>/layer",
    ]


@pytest.mark.parametrize("transform", [PLAIN, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("around", [jax.checkpoint, on_shards], ids=["checkpoint", "shards"])
def test_a_scope_has_the_same_number_in_its_backward_pass(around, transform):
    """Though some layers are in something that is no part of paths, and the backward pass ends with the first one."""

    def scopes(layers, transform):
        def fun(x):
            for number, wrap in enumerate(layers):
                x = wrap(lambda x, factor=number + 2.0: layer(factor * x))(x)
            return x

        return {key.removeprefix("fun/"): values for key, values in events(transform(jax.grad(fun)), False)[1].items()}

    expected = {
        key: values for key, values in scopes([PLAIN] * 3, jax.jit).items() if key.startswith(("layer", "back"))
    }
    assert len(expected) == 6
    for layers in ([around] * 3, [PLAIN, around, PLAIN], [around, PLAIN, around]):
        found = {key: values for key, values in scopes(layers, transform).items() if key in expected}
        assert set(found) == set(expected) if transform is jax.jit else set(found) <= set(expected)
        for key, values in found.items():
            np.testing.assert_allclose(values.ravel(), expected[key].ravel(), rtol=1e-5)


@pytest.mark.parametrize("around", [PLAIN, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_rules_that_run_in_place_of_functions_have_parts_of_their_own(around):
    """Also in the backward pass, where they have the same numbers."""

    @jax.custom_jvp
    def cube(x):
        return x**3

    @cube.defjvp
    def rule(primals, tangents):
        with jax.named_scope("slope"):
            slope = 3 * primals[0] ** 2
        with jax.named_scope("push"):
            return cube(*primals), slope * tangents[0]

    def fun(x):
        return around(lambda x: cube(x) + 5 * cube(3 * x))(x)

    logs = {
        re.sub(r"<lambda>/|fun/", "", key): values for key, values in events(jax.jit(jax.grad(fun)), False)[1].items()
    }
    slopes = {key: values.tolist() for key, values in logs.items() if "slope" in key or key.startswith("backward/rule")}
    x = float(X)
    expected = {
        "rule/slope/0": 3 * x**2,
        "rule[1]/slope/0": 27 * x**2,
        "backward/rule/push/0": 3 * x**2,
        "backward/rule[1]/push/0": 5 * 27 * x**2,
    }
    assert slopes.keys() == expected.keys()
    np.testing.assert_allclose([slopes[key][0] for key in expected], list(expected.values()), rtol=1e-5)


def test_scopes_of_branches_keep_their_numbers_where_another_branch_has_no_derivative():
    def constant(x):
        with jax.named_scope("branch"):
            return jax.lax.stop_gradient(jnp.cos(x))

    def varying(x):
        with jax.named_scope("branch"):
            return jnp.sin(x)

    fun = lambda x: jax.lax.switch(jnp.int32(x), [constant, varying], x)  # noqa: E731
    assert [path for path in paths(jax.grad(fun)) if "branch" in path] == [
        "cond/branch",
        "cond/branch[1]",
        "backward/cond/branch[1]",
    ]


def test_rules_in_two_branches_have_parts_of_their_own():
    ruled = with_gradient(lambda x: layer(x))
    fun = lambda x: jax.lax.cond(x > 0, ruled, lambda x: ruled(3 * x), x)  # noqa: E731
    found = paths(jax.grad(fun))
    assert {"cond/rule/slope/layer", "cond/rule[1]/slope/layer"} <= set(found)
    assert {"backward/cond/rule/slope", "backward/cond/rule[1]/slope"} <= set(found)


def test_each_run_of_a_jaxpr_has_a_backward_pass_of_its_own():
    logs = events(jax.jit(jax.grad(of_jaxpr(lambda x: layer(x)))), primitives=False)[1]
    np.testing.assert_allclose(logs["converted/backward/layer/0"], [slope(X)], rtol=1e-5)
    np.testing.assert_allclose(logs["converted/backward/layer[1]/0"], [slope(3 * X)], rtol=1e-5)


def test_a_scope_named_backward_is_no_backward_pass():
    def fun(x):
        with jax.named_scope("backward"):
            return jnp.sin(x)

    assert [(point.path, point.backward) for point in lox.points(jax.jit(jax.grad(fun)))(X)] == [
        ("fun/backward", False),
        ("fun/backward[1]/backward", True),
        ("fun", False),
    ]


ADDED_UP = {
    "before": (lambda fun: lambda x: 10 * x + fun(x), [1]),
    "after": (lambda fun: lambda x: fun(x) + 10 * x, [1]),
    "around": (lambda fun: lambda x: x + fun(x) * x + 10 * x, [X]),
    "of another": (lambda fun: lambda x: fun(x) + 2 * fun(x), [1, 2]),
}
"""Functions that use an argument of a layer elsewhere, and the cotangents of the layer's results."""


@pytest.mark.parametrize(("added", "bars"), ADDED_UP.values(), ids=ADDED_UP.keys())
@pytest.mark.parametrize("around", [PLAIN, jax.checkpoint, on_shards], ids=["plain", "checkpoint", "shards"])
def test_cotangents_that_come_from_elsewhere_are_not_of_a_scope(added, bars, around):
    """As in a residual network: JAX adds up the cotangents of a value in the scope of one of those that use it."""
    whole = lambda x: around(added(lambda x: layer(x)))(x + 0.0)  # noqa: E731
    logs = events(jax.jit(jax.grad(whole)), primitives=False)[1]
    found = {key.rpartition("backward/")[2]: values for key, values in logs.items() if "backward/layer" in key}
    assert len(found) == len(bars)
    for (_, values), bar in zip(sorted(found.items()), bars, strict=True):
        np.testing.assert_allclose(values.ravel(), [bar * slope(X)], rtol=1e-5)


@pytest.mark.parametrize(
    "around", [PLAIN, jax.checkpoint, on_shards, jax.jit], ids=["plain", "checkpoint", "shards", "jit"]
)
def test_cotangents_that_pass_through_a_scope_unchanged_leave_it(around):
    """JAX transposes a sum without an equation."""

    def block(w, b, x):
        with jax.named_scope("block"):
            return x + jnp.sin(w * x) + b

    def fun(w, b, x):
        return 3 * around(lambda *args: block(*args))(w, b, x)

    wanted = lambda point: point.backward and point.kind == "scope" and not point.obstacle  # noqa: E731
    watched = lox.watch(jax.jit(jax.grad(fun, (0, 1, 2))), at=wanted, what=values_of)
    gradients, logs = lox.spool(watched)(np.float32(0.5), np.float32(0.1), np.float32(2.0))
    np.testing.assert_allclose(sorted(float(np.ravel(each)[0]) for each in logs.values()), sorted(gradients), rtol=1e-5)


@pytest.mark.parametrize("transform", [PLAIN, jax.jit], ids=["eager", "jit"])
def test_the_loops_of_a_linear_solver_are_where_it_is_called(transform):
    def solve(matvec, b):
        return jax.lax.fori_loop(0, 2, lambda _, z: z + 0.4 * (b - matvec(z)), 0 * b)

    def fun(x):
        for name in ("first", "second"):
            with jax.named_scope(name):
                x = jax.lax.custom_linear_solve(lambda v: 2 * v, x, solve, symmetric=True)
        return x

    logs = events(transform(fun), primitives=False)[1]
    found = {key.removeprefix("fun/"): values.tolist() for key, values in logs.items() if "scan/1" in key}
    expected = {"first/scan/1": [0.4 * X, 0.48 * X], "second/scan/1": [0.192 * X, 0.2304 * X]}
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5)
    found = [point.path for point in lox.points(jax.jit(jax.grad(fun)))(X) if point.kind == "scan"]
    assert found == ["fun/first/scan", "fun/second/scan", "fun/backward/second/scan", "fun/backward/first/scan"]


@pytest.mark.parametrize("transform", [PLAIN, jax.jit], ids=["eager", "jit"])
def test_the_loop_of_a_root_finder_is_in_the_scope_of_its_call(transform):
    def solve(residual, guess):
        return jax.lax.fori_loop(0, 4, lambda _, x: x - residual(x) / (2 * x), guess)

    def fun(x):
        with jax.named_scope("layer"):
            return jax.lax.custom_root(lambda y: y**2 - x, x, solve, lambda g, y: y / g(jnp.ones_like(y)))

    for derived, path in ((fun, "layer/scan"), (jax.grad(fun), "layer/rule/scan")):
        logs = events(transform(derived), primitives=False)[1]
        scans = {key.removeprefix("fun/").removesuffix("/1"): values for key, values in logs.items() if "scan/1" in key}
        assert scans.keys() == {path}
        np.testing.assert_allclose(scans[path][-1], np.sqrt(X), rtol=1e-5)


@pytest.mark.parametrize("derived", [lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f))])
def test_each_call_of_a_jitted_function_has_its_own_part_in_a_backward_pass(derived):
    @jax.jit
    def inner(x):
        return jnp.sin(x)

    fun = derived(lambda x: inner(inner(x)))
    listed = [point.path for point in lox.points(fun)(X) if point.backward and point.name == "inner"]
    logs = lox.spool(lox.watch(fun, at="**/backward/**/inner", what=values_of))(X)[1]
    assert len(listed) == 2
    assert {key.rpartition("/")[0]: len(values) for key, values in logs.items()} == dict.fromkeys(listed, 1)


@pytest.mark.parametrize("at", ["**/layer", lambda point: point.kind == "scope"], ids=["pattern", "function"])
def test_a_checkpoint_in_a_jaxpr_that_the_program_evaluates_is_of_its_scope(at):
    def layer(x):
        with jax.named_scope("layer"):
            return jax.checkpoint(jnp.sin)(x) + 1

    @jax.jit
    def fun(x):
        converted, consts = jax.closure_convert(layer, x)
        return converted(x, *consts)

    logs = lox.spool(lox.watch(jax.grad(fun), at=at, what=values_of))(X)[1]
    found = {key: values.tolist() for key, values in logs.items()}
    expected = {"fun/layer/0": [np.sin(X) + 1], "backward/fun/layer/0": [np.cos(X)]}
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-5)


def test_each_call_of_a_pullback_is_a_backward_pass():
    def fun(x):
        _, pullback = jax.vjp(lambda x: layer(x), x)
        return pullback(jnp.float32(1))[0] + pullback(jnp.float32(2))[0]

    logs = events(jax.jit(fun), primitives=False)[1]
    np.testing.assert_allclose(logs["fun/backward/layer/0"], [slope(X)], rtol=1e-5)
    np.testing.assert_allclose(logs["fun/backward[1]/layer/0"], [2 * slope(X)], rtol=1e-5)


@pytest.mark.parametrize("transform", [PLAIN, jax.jit], ids=["eager", "jit"])
def test_scopes_in_the_functions_of_a_custom_gradient_are_numbered(transform):
    @jax.custom_gradient
    def sine(x):
        def backward(bar):
            with jax.named_scope("slope"):
                return bar * jnp.cos(x)

        return jnp.sin(x), backward

    logs = events(transform(jax.grad(lambda x: sine(sine(x)))), primitives=False)[1]
    found = {key.removeprefix("<lambda>/"): float(values[0]) for key, values in logs.items() if "slope" in key}
    last = np.cos(np.sin(X))
    expected = {"backward/rule[1]/slope/0": last, "backward/rule/slope/0": last * np.cos(X)}
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[key] for key in expected], list(expected.values()), rtol=1e-5)


UNCERTAIN = {
    "a derivative of a derivative": (jax.grad(jax.grad(layer)), "backward/layer", "JAX differentiates this"),
    "a tangent of a derivative": (
        lambda x: jax.jvp(jax.grad(layer), (x,), (x,)),
        "backward/layer",
        "JAX differentiates this",
    ),
    "a checkpoint": (
        jax.grad(jax.grad(jax.checkpoint(layer))),
        "backward[1]/backward/layer",
        "a jax.checkpoint computes values",
    ),
}


@pytest.mark.parametrize(("fun", "path", "obstacle"), UNCERTAIN.values(), ids=UNCERTAIN.keys())
def test_a_scope_whose_cotangents_are_not_told_from_other_values_cannot_be_watched(fun, path, obstacle):
    found = [point for point in lox.points(jax.jit(fun))(X) if point.path.partition("/")[2] == path]
    assert [point.obstacle.startswith(obstacle) for point in found] == [True]
    with pytest.raises(lox.UnsupportedPrimitiveError, match=obstacle):
        lox.spool(lox.watch(jax.jit(fun), at=f"*/{path}"))(X)


def test_the_first_pass_of_a_jitted_function_can_be_watched_where_it_is_differentiated():
    logs = events(jax.jit(jax.grad(jax.grad(jax.jit(layer)))), primitives=False)[1]
    np.testing.assert_allclose(logs["layer/backward/layer/layer/0"], [slope(X)], rtol=1e-5)


def _with_derivative(fun):
    ruled = jax.custom_jvp(lambda x: jax.grad(fun)(x))
    ruled.defjvps(lambda tangent, out, x: tangent)
    return ruled


IN_FUNCTIONS = {
    "shards": lambda f: on_shards(lambda x: jax.grad(f)(x)),
    "forward rule": _with_derivative,
    "backward rule": lambda f: with_vjp(jax.grad(f)),
}


@pytest.mark.parametrize("around", IN_FUNCTIONS.values(), ids=IN_FUNCTIONS.keys())
@pytest.mark.parametrize("transform", [PLAIN, jax.jit], ids=["eager", "jit"])
def test_a_backward_pass_in_a_function_that_jax_calls_needs_a_jitted_function(around, transform):
    """On shards or with rules: it is reported, and found where the function in the derivative is jitted."""

    def found(fun):
        points = lox.points(transform(around(fun)))(X)
        return {bool(point.obstacle) for point in points if point.backward and point.name == "layer"}

    assert found(lambda x: layer(x)) == {True}
    assert found(jax.jit(lambda x: layer(x))) == {False}


def test_a_backward_pass_in_the_condition_of_a_loop_is_seen():
    def fun(x):
        return jax.lax.while_loop(lambda c: jax.grad(lambda c: layer(c))(c) > 3, lambda c: c - 1, x)

    logs = lox.spool(lox.watch(jax.jit(fun), at="**/backward/layer", what=values_of), max_iters=4)(np.float32(2.0))[1]
    (values,) = (logs.valid(key) for key in logs)
    np.testing.assert_allclose(values, [slope(2.0)], rtol=1e-5)


@pytest.mark.parametrize(
    "grad",
    [jax.grad, lambda solve: jax.jit(jax.grad(solve)), lambda solve: jax.grad(jax.jit(solve))],
    ids=["eager", "jit", "of a jitted function"],
)
def test_the_backward_pass_of_a_linear_solver_cannot_be_watched(grad):
    def solve(b):
        return jax.lax.custom_linear_solve(
            lambda v: 2 * v, b, lambda _, b: jax.lax.fori_loop(0, 2, lambda _, z: z / 2 + b / 4, b), symmetric=True
        )

    found = {point.path.replace("solve/", ""): point.obstacle for point in lox.points(grad(solve))(X)}
    assert not found["scan"] and found["backward/scan"].startswith("a linear solver")
    with pytest.raises(lox.UnsupportedPrimitiveError, match="a linear solver"):
        lox.spool(lox.watch(grad(solve), at="**/backward/**/scan"))(X)


def test_names_of_scopes_are_told_from_numbers_and_paths():
    def fun(x):
        for name in ("a", "a[1]", "a", "a/b", "b", "0", "1st"):
            with jax.named_scope(name):
                x = jnp.sin(x)
        return x

    assert [point.path for point in lox.points(fun)(X)] == ["a", "a_1_", "a[1]", "a_b", "b", "_0", "1st"]


def test_names_of_scopes_are_told_from_numbers_of_results():
    @jax.jit
    def fun(x):
        with jax.named_scope("0"):
            x = jnp.sin(x)
        return x, 2 * x

    logs = lox.spool(lox.watch(fun, at="**"))(jnp.ones(2))[1]
    means = {key.removesuffix("/mean"): len(values) for key, values in logs.items() if key.endswith("/mean")}
    assert means == {"fun/_0": 1, "fun/0": 1, "fun/1": 1}


def test_what_jax_moves_out_of_a_loop_is_no_point_there():
    """As the factor in the backward pass of the body, which is the same in each iteration."""

    def fun(x):
        def scaled(x):
            with jax.named_scope("layer"):
                return 3 * jnp.sin(x)

        return jax.lax.scan(lambda c, _: (jax.grad(scaled)(c), None), x, length=2)[0]

    scopes = [path.removeprefix("fun/") for path in paths(jax.grad(fun)) if path.endswith("layer")]
    assert scopes[:2] == ["scan/layer", "scan/backward/layer"]
    assert all(path.startswith("backward/scan/") for path in scopes[2:])


def test_a_derivative_in_a_checkpoint_is_numbered_with_those_beside_it():
    plain = jax.grad(lambda x: layer(x))
    for first, last in ((plain, jax.checkpoint(plain)), (jax.checkpoint(plain), plain)):
        logs = events(jax.jit(lambda x, first=first, last=last: first(x) + last(3 * x)), primitives=False)[1]
        assert [key for key in sorted(logs) if "backward" in key] == [
            "<lambda>/backward/layer/0",
            "<lambda>/backward[1]/layer[1]/0",
        ]
        np.testing.assert_allclose(logs["<lambda>/backward/layer/0"], [slope(X)], rtol=1e-5)
        np.testing.assert_allclose(logs["<lambda>/backward[1]/layer[1]/0"], [slope(3 * X)], rtol=1e-5)


def test_a_derivative_on_shards_is_numbered_after_one_in_a_checkpoint():
    sharded = on_shards(jax.grad(lambda x: layer(x)))
    logs = events(lambda x: jax.checkpoint(sharded)(x) + sharded(3 * x))[1]
    assert {key.partition("/")[0] for key in logs} >= {"backward", "backward[1]"}
    assert all(len(values) == 1 for values in logs.values())


@pytest.mark.parametrize("around", [jax.checkpoint, with_jvp], ids=["checkpoint", "custom_jvp"])
def test_a_pullback_further_inside_has_the_numbers_of_its_forward_pass(around):
    def fun(x):
        first = layer(x)
        _, pullback = jax.vjp(layer, 2 * x)
        return around(lambda bar: layer(pullback(bar)[0]))(first)

    found = paths(fun)
    assert found == ["fun/layer", "fun/layer[1]", "fun/backward/layer[1]", "fun/layer[2]", "fun"]


def test_each_evaluation_of_a_jaxpr_keeps_its_passes_apart_in_another_derivative():
    def fun(x):
        converted, consts = jax.closure_convert(jax.grad(jax.checkpoint(layer)), x)
        return converted(x, *consts) + converted(2 * x, *consts)

    watched = lox.watch(jax.jit(jax.grad(fun)), at=lambda point: point.name == "mul" and not point.obstacle)
    logs = lox.spool(watched)(X)[1]
    found = {key.partition("/mul")[0] for key in logs}
    assert found > {f"fun/{path}" for path in ("backward[2]/backward/layer[1]", "backward[2]/backward[1]/layer")}
    assert all(len(values) == 1 for values in logs.values())


PASSES = {
    "in a checkpoint": jax.checkpoint(jax.grad(jnp.sin)),
    "in a function with rules": with_vjp(jax.grad(jnp.sin)),
    "in a jaxpr": lambda x: jax.closure_convert(jax.grad(jnp.sin), x)[0](x),
}


@pytest.mark.parametrize("first", PASSES.values(), ids=PASSES.keys())
def test_a_backward_pass_without_points_has_its_number_whatever_is_watched(first):
    def fun(x):
        return first(x) + jax.checkpoint(first)(x) + jax.grad(layer)(x)

    listed = [point.path for point in lox.points(jax.jit(fun))(X) if point.kind == "scope"]
    logs = lox.spool(lox.watch(jax.jit(fun), at=lambda point: point.kind == "scope", what=values_of))(X)[1]
    assert listed == ["fun/layer", "fun/backward[2]/layer"]
    assert list(logs) == [f"{path}/0" for path in listed]


def pulled(fun, around=PLAIN):
    def run(x):
        out, pullback = jax.vjp(fun, x)
        return around(lambda bar: pullback(bar)[0])(out)

    return run


BESIDE = {
    "a branch in a function with rules": lambda x: (
        pulled(layer)(x) + pulled(lambda x: jax.lax.cond(x > 0, layer, jnp.sin, x), with_jvp)(x)
    ),
    "a pullback of a pullback in a checkpoint": pulled(pulled(layer), jax.checkpoint),
}


@pytest.mark.parametrize("fun", BESIDE.values(), ids=BESIDE.keys())
def test_backward_passes_are_numbered_in_the_order_in_which_they_run_whatever_is_watched(fun):
    def is_scope(point):
        return point.kind == "scope" and not point.obstacle

    listed = [point.path for point in lox.points(jax.jit(fun))(X) if is_scope(point)]
    logs = lox.spool(lox.watch(jax.jit(fun), at=is_scope, what=lambda point, values: {"0": values[0]}))(X)[1]
    assert sorted(logs) == sorted(f"{path}/0" for path in listed)
    assert all(len(values) == 1 for values in logs.values())


def test_the_backward_function_of_a_solver_of_jax_is_a_program():
    """It runs functions in a derivative, but JAX transposes none of its lines."""

    @jax.jit
    def field(y, t, rate):
        return -rate * y

    def fun(rate):
        return odeint(field, X, jnp.linspace(0.0, 1.0, 3), rate).sum()

    logs = lox.spool(lox.watch(jax.grad(fun), at="backward/rule/scan/**/field", what=values_of), max_iters=400)(X)[1]
    counts = {key.removesuffix("/0"): len(values) for key, values in logs.items() if key.endswith("field/0")}
    counts |= {key.removesuffix("/0"): len(values) for key, values in logs.items() if key.endswith("]/0")}
    assert {path.removeprefix("backward/rule/scan/"): count for path, count in counts.items()} == {
        "field": 2,
        "field[1]": 2,
        "backward/field[1]": 2,
        "field[2]": 2,
        "backward[1]/field[2]": 2,
        "scan/while/scan/field": counts["backward/rule/scan/scan/while/scan/field"],
        "scan/while/scan/backward/field": counts["backward/rule/scan/scan/while/scan/field"],
    }


def test_each_run_of_a_residual_in_the_derivative_of_a_root_finder_is_a_point():
    def solve(residual, guess):
        return jax.lax.fori_loop(0, 4, lambda _, x: x - residual(x), guess)

    def fun(x):
        return jax.lax.custom_root(lambda y: layer(y) * layer(x), x, solve, lambda g, y: y / g(jnp.ones_like(y)))

    for derived, x in ((jax.grad(fun), X), (jax.vmap(jax.grad(fun)), np.stack([X, X])), (jax.grad(jax.jit(fun)), X)):
        at = lambda point: point.name == "layer" and not point.backward and "scan" not in point.path  # noqa: E731
        logs = lox.spool(lox.watch(derived, at=at, what=values_of))(x)[1]
        assert [key.rpartition("rule/")[2] for key in logs] == ["layer/0", "layer[1]/0", "layer[2]/0", "layer[3]/0"]
        assert all(len(values) == 1 for values in logs.values())


@pytest.mark.parametrize("transform", [PLAIN, jax.jit, lambda f: jax.jit(jax.grad(f))], ids=["eager", "jit", "grad"])
def test_the_tangents_of_linearize_are_no_events(transform):
    @jax.jit
    def square(x):
        return x * x

    def fun(x):
        out, slope = jax.linearize(lambda x: jax.lax.fori_loop(0, 2, lambda i, c: square(c), x), x)
        return out + slope(jnp.float32(0.5)) + slope(jnp.float32(2))

    logs = lox.spool(lox.watch(transform(fun), at=lambda point: not point.backward, what=values_of))(X)[1]
    logs = {key.removeprefix("fun/"): values for key, values in logs.items() if key not in ("fun/0", "add/0")}
    assert {key for key in logs if "square" in key} >= {"scan/square/0"}
    np.testing.assert_allclose(logs["scan/1"], [X**2, X**4], rtol=1e-5)
    assert not any("[1]" in key for key in logs if "scan" in key or "square" in key)
