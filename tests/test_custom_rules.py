"""Functions with derivative, solver and batching rules of their own keep them; what runs is what logs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.experimental import hijax
from reference import assert_array, assert_logs

import lox

X = 1.3
RTOL = 1e-5


@jax.custom_vjp
def straight_through(x):
    lox.log({"rounded": jnp.round(x)})
    return jnp.round(x)


straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, bar: (bar,))


@jax.custom_jvp
def forward_straight_through(x):
    lox.log({"rounded": jnp.round(x)})
    return jnp.round(x)


forward_straight_through.defjvp(lambda primals, tangents: (forward_straight_through(*primals), tangents[0]))

compositions = {
    "grad of spool": lambda f: jax.grad(lox.spool(f), has_aux=True),
    "spool of grad": lambda f: lox.spool(jax.grad(f)),
    "jit of grad of spool": lambda f: jax.jit(jax.grad(lox.spool(f), has_aux=True)),
    "grad of jit of spool": lambda f: jax.grad(jax.jit(lox.spool(f)), has_aux=True),
    "grad of spool of jit": lambda f: jax.grad(lox.spool(jax.jit(f)), has_aux=True),
    "spool of jit of grad": lambda f: lox.spool(jax.jit(jax.grad(f))),
    "spool of grad of jit": lambda f: lox.spool(jax.grad(jax.jit(f))),
    "jit of spool of grad": lambda f: jax.jit(lox.spool(jax.grad(f))),
    "spool of grad of checkpoint": lambda f: lox.spool(jax.grad(jax.checkpoint(f))),
    "grad of spool of checkpoint": lambda f: jax.grad(lox.spool(jax.checkpoint(f)), has_aux=True),
    "grad of checkpoint of spool": lambda f: jax.grad(jax.checkpoint(lox.spool(f)), has_aux=True),
    "grad of spool of strip of nothing": lambda f: jax.grad(lox.spool(lox.strip(f, argnames=())), has_aux=True),
    "spool of keep of grad": lambda f: lox.spool(lox.keep(jax.grad(f))),
    "spool of grad of keep": lambda f: lox.spool(jax.grad(lox.keep(f))),
    "grad of spool with unify": lambda f: jax.grad(lox.spool(f, unify=True), has_aux=True),
    "grad of spool of jit of keep": lambda f: jax.grad(lox.spool(jax.jit(lox.keep(f))), has_aux=True),
    "grad in spool of spool": lambda f: lambda x: lox.spool(jax.grad(lox.spool(f), has_aux=True))(x)[0],
}


@pytest.mark.parametrize("composition", compositions)
@pytest.mark.parametrize("rounding", [straight_through, forward_straight_through], ids=["vjp", "jvp"])
def test_a_straight_through_estimator_stays_one(rounding, composition):
    slope, logs = compositions[composition](lambda x: rounding(x) * 3)(jnp.float32(X))
    assert slope == 3
    assert_logs(logs, {"rounded": [1.0]})


@pytest.mark.covering(1)
@pytest.mark.parametrize("composition", compositions)
@pytest.mark.parametrize("rounding", [straight_through, forward_straight_through], ids=["vjp", "jvp"])
def test_a_straight_through_estimator_in_a_scan_stays_one_and_logs_every_iteration(rounding, composition):
    def f(x):
        return lax.scan(lambda x, _: (rounding(x) * 2.0, None), x, None, length=3)[0]

    slope, logs = compositions[composition](f)(jnp.float32(X))
    assert slope == 8
    assert_logs(logs, {"rounded": [1.0, 2.0, 4.0]})


@pytest.mark.parametrize("composition", [name for name in compositions if "grad of spool" in name])
def test_a_program_whose_logs_are_outputs_has_no_effect_of_logging_left(composition):
    def f(x):
        return lax.scan(lambda x, _: (lax.cond(x > 0, straight_through, jnp.sin, x), None), x, None, length=3)[0]

    derivative = compositions[composition](lox.strip(f) if "unify" not in composition else f)
    assert not jax.make_jaxpr(derivative)(jnp.float32(X)).effects
    f = lambda x: lax.scan(lambda x, _: (straight_through(x) * 2.0, None), x, None, length=3)[0]  # noqa: E731
    assert not jax.make_jaxpr(compositions[composition](f))(jnp.float32(X)).effects
    assert not jax.make_jaxpr(compositions[composition](lambda x: lax.map(f, x[None])[0]))(jnp.float32(X)).effects


@pytest.mark.parametrize("first", compositions)
def test_a_rule_that_ran_where_nobody_hears_its_logs_is_not_remembered_without_them(first):
    rounding = jax.custom_vjp(lambda x: lox.log({"rounded": jnp.round(x)})["rounded"])
    rounding.defvjp(lambda x: (rounding(x), None), lambda _, bar: (bar,))
    f = lambda x: lax.cond(x > 0, rounding, rounding, x)  # noqa: E731
    compositions[first](f)(jnp.float32(X))
    assert_logs(lox.spool(jax.grad(f))(jnp.float32(X))[1], {"rounded": [1.0]})
    assert jax.jit(jax.grad(f))(jnp.float32(X)) == 1


def logs_in_its_rule(kind):
    """A function that doubles and whose derivative or batching rule logs, and nothing else."""
    if kind == "jvp":
        f = jax.custom_jvp(lambda x: 2 * x)
        f.defjvp(lambda primals, tangents: (2 * lox.log({"rule": primals[0]})["rule"], 2 * tangents[0]))
    elif kind == "vjp":
        f = jax.custom_vjp(lambda x: 2 * x)
        f.defvjp(lambda x: (2 * lox.log({"rule": x})["rule"], None), lambda _, bar: (2 * bar,))
    else:
        f = jax.custom_batching.custom_vmap(lambda x: 2 * x)
        f.def_vmap(lambda size, batched, x: (2 * lox.log({"rule": x})["rule"], batched[0]))
    return f


@pytest.mark.covering(1)
@pytest.mark.parametrize("inside", [lambda f: f, jax.jit], ids=["", "jit"])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_what_a_derivative_rule_alone_logs_in_a_branch_is_masked_where_batch_elements_do_not_take_it(
    kind, around, inside
):
    f = inside(logs_in_its_rule(kind))
    branch = lambda x: lax.cond(x > 0, f, lambda x: x, x)  # noqa: E731
    xs = jnp.array([-1.0, -2.0, 3.0])
    slope = around(jax.grad(lambda xs: jax.vmap(branch)(xs).sum()))
    slopes, logs = lox.spool(slope, unify=True)(xs)
    assert_array(slopes, [1.0, 1.0, 2.0])
    assert_logs(logs, {"rule": [[np.nan, np.nan, 3.0]]}, mask={"rule": [[False, False, True]]})
    heard = []
    lox.tap(slope, lambda logs: heard.append(logs.valid("rule").tolist()))(xs)
    lox.flush()
    assert heard == [[3.0]]
    with pytest.raises(lox.StructureError, match="unify=True"):
        lox.spool(slope)(xs)


def test_what_a_derivative_rule_alone_logs_in_a_loop_is_masked_where_batch_elements_have_finished():
    f = logs_in_its_rule("jvp")

    def loop(n):
        return lax.while_loop(lambda carry: carry[0] < n, lambda carry: (carry[0] + 1, f(carry[1])), (0, 1.0 * n))[1]

    ns = jnp.array([1, 2])
    tangent = lambda ns: jax.jvp(lambda x: jax.vmap(loop)(x), (ns,), (ns,))  # noqa: E731
    _, logs = lox.spool(tangent, max_iters=2)(ns.astype(float))
    assert_logs(
        logs,
        {"rule": [[1.0, 2.0], [np.nan, 4.0]]},
        mask={"rule": [[True, True], [False, True]]},
        dropped={"rule": [0, 0]},
    )


def test_what_a_batching_rule_alone_logs_in_a_branch_happens_where_any_batch_element_takes_it():
    branch = lambda x: lax.cond(x > 0, logs_in_its_rule("vmap"), lambda x: x, x)  # noqa: E731
    for xs, happens in (([-1.0, 2.0], True), ([-1.0, -2.0], False)):
        _, logs = lox.spool(jax.vmap(branch), unify=True)(jnp.array(xs))
        assert logs.mask["rule"].tolist() == [happens]


rule_alone = {
    "jit": jax.jit,
    "scan": lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: lax.cond(x > 0, f, f, x),
    "checkpoint": jax.checkpoint,
}


@pytest.mark.parametrize("around", rule_alone)
def test_a_rule_that_logs_alone_inside_of_another_primitive_is_heard_by_a_tap_inside_of_grad(around):
    f = jax.custom_vjp(lambda x: x * 1)

    def forward(x):
        lox.log({"forward": x})
        return x * 1, None

    f.defvjp(forward, lambda _, bar: (bar,))
    heard = []
    tapped = lox.tap(rule_alone[around](f), lambda logs: heard.append(logs["forward"].item()))
    assert jax.grad(tapped)(jnp.float32(X)) == 1
    lox.flush()
    np.testing.assert_allclose(heard, [X], RTOL)
    slope, logs = jax.grad(lox.spool(rule_alone[around](f)), has_aux=True)(jnp.float32(X))
    assert slope == 1 and not logs


@pytest.mark.parametrize("rounding", [straight_through, forward_straight_through], ids=["vjp", "jvp"])
def test_a_straight_through_estimator_under_vmap_stays_one(rounding):
    xs = jnp.array([1.3, 2.6])
    f = lambda x: rounding(x) * 3  # noqa: E731
    slopes, logs = lox.spool(jax.vmap(jax.grad(f)))(xs)
    assert_array(slopes, [3.0, 3.0])
    assert_logs(logs, {"rounded": [[1.0, 3.0]]})
    slopes, logs = jax.vmap(jax.grad(lox.spool(f), has_aux=True))(xs)
    assert_array(slopes, [3.0, 3.0])
    assert_logs(logs, {"rounded": [[1.0], [3.0]]})
    slopes, logs = jax.grad(lambda xs: sum_out(lox.spool(jax.vmap(f))(xs)), has_aux=True)(xs)
    assert_array(slopes, [3.0, 3.0])
    assert_logs(logs, {"rounded": [[1.0, 3.0]]})


def sum_out(result):
    out, logs = result
    return out.sum(), logs


@pytest.mark.parametrize(
    "handler", [lox.strip, lox.keep, lox.strip(argnames="rounded")], ids=["strip", "keep", "argnames"]
)
@pytest.mark.parametrize("rounding", [straight_through, forward_straight_through], ids=["vjp", "jvp"])
def test_a_straight_through_estimator_without_its_logs_stays_one(rounding, handler):
    for f in (jax.grad(handler(rounding)), handler(jax.grad(rounding)), jax.jit(jax.grad(handler(jax.jit(rounding))))):
        assert f(jnp.float32(X)) == 1


@pytest.mark.parametrize(
    "function", [jax.nn.relu, jax.nn.relu6, jax.nn.silu, jax.numpy.linalg.norm], ids=lambda f: f.__name__
)
def test_rules_of_functions_that_do_not_log_are_kept(function):
    def f(x):
        lox.log({"x": x})
        return function(x)

    for x in (0.0, 1.5):
        x = jnp.full(3, x)
        expected = jax.jacrev(function)(x)
        np.testing.assert_array_equal(jax.jacrev(lox.spool(f), has_aux=True)(x)[0], expected)
        np.testing.assert_array_equal(lox.spool(jax.jacrev(f))(x)[0], expected)
        np.testing.assert_array_equal(jax.jit(jax.jacrev(lox.strip(f)))(x), expected)


def test_a_jvp_rule_logs_when_it_runs_and_the_function_does_not():
    @jax.custom_jvp
    def f(x):
        lox.log({"function": x})
        return x * x

    @f.defjvp
    def f_jvp(primals, tangents):
        lox.log({"rule": primals[0]})
        return primals[0] ** 2, 5 * tangents[0]

    assert_logs(lox.spool(f)(jnp.float32(2))[1], {"function": [2.0]})
    for transform in (lambda f: f, jax.jit):
        (out, tangent), logs = lox.spool(transform(lambda x: jax.jvp(f, (x,), (jnp.float32(1),))))(jnp.float32(2))
        assert out == 4 and tangent == 5
        assert_logs(logs, {"rule": [2.0]})
        slope, logs = lox.spool(transform(jax.grad(f)))(jnp.float32(2))
        assert slope == 5
        assert_logs(logs, {"rule": [2.0]})


def test_logs_that_have_no_derivative_in_forward_mode_are_refused_unless_nothing_asks_for_it():
    @jax.custom_jvp
    def calls_one_with_a_vjp_rule(x):
        return straight_through(x)

    calls_one_with_a_vjp_rule.defjvp(lambda primals, tangents: (jnp.round(*primals), 2 * tangents[0]))

    def derivative(x):
        return jax.jvp(lambda x: lox.spool(calls_one_with_a_vjp_rule)(x)[0], (x,), (x,))[1]

    assert jax.jit(derivative)(jnp.float32(3)) == 6
    line = straight_through.__wrapped__.__code__.co_firstlineno + 2
    for transform in (lambda f: f, jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        with pytest.raises(lox.UnsupportedPrimitiveError, match=f"test_custom_rules.py:{line} .*handler outside"):
            transform(derivative)(jnp.full(2, 3.0))
    assert lox.spool(jax.jacfwd(calls_one_with_a_vjp_rule))(jnp.float32(3))[0] == 2


@pytest.mark.parametrize("options", [{}, {"reduce": "sum"}], ids=["stacked", "reduced"])
def test_without_its_logs_a_function_with_both_rules_has_its_forward_derivative_under_a_handler(options):
    @jax.custom_jvp
    def f(x):
        return straight_through(x)

    f.defjvp(lambda primals, tangents: (jnp.round(*primals), 2 * tangents[0]))
    assert jax.jacfwd(lambda x: lox.spool(lox.strip(f), **options)(x)[0])(jnp.float32(3)) == 2


def test_a_jvp_rule_is_linearized():
    slope, logs = lox.spool(lambda x: jax.linearize(forward_straight_through, x)[1](jnp.float32(2)))(jnp.float32(X))
    assert slope == 2
    assert_logs(logs, {"rounded": [1.0]})


def test_a_jvp_rule_per_argument_is_kept():
    @jax.custom_jvp
    def f(x, y):
        lox.log({"product": x * y})
        return x * y

    f.defjvps(lambda t, out, x, y: 10 * t, lambda t, out, x, y: 20 * t)
    for g in (lox.spool(jax.grad(f, (0, 1))), jax.grad(lox.spool(f), (0, 1), has_aux=True)):
        slopes, logs = g(jnp.float32(2), jnp.float32(3))
        assert slopes == (10, 20)
        assert_logs(logs, {"product": [6.0]})


def scaled_back():
    @jax.custom_vjp
    def f(x):
        lox.log({"function": x})
        return x * x

    def fwd(x):
        lox.log({"fwd": x})
        return x * x, x

    def bwd(x, bar):
        lox.log({"bwd": bar, "residual": x})
        return (7 * bar,)

    f.defvjp(fwd, bwd)
    return f


def test_forward_and_backward_functions_log_when_they_run():
    f = scaled_back()
    assert_logs(lox.spool(f)(jnp.float32(2))[1], {"function": [2.0]})
    expected = {"fwd": [2.0], "bwd": [3.0], "residual": [2.0]}
    g = lambda x: 3 * f(x)  # noqa: E731
    for transform in (jax.grad(g), jax.jit(jax.grad(g)), jax.grad(jax.jit(g))):
        slope, logs = lox.spool(transform)(jnp.float32(2))
        assert slope == 21
        assert_logs(logs, expected)


def test_backward_functions_in_a_scan_log_in_the_order_in_which_they_run():
    f = scaled_back()
    loop = lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=3)[0]  # noqa: E731
    for transform in (lambda f: f, jax.jit):
        slope, logs = lox.spool(transform(jax.grad(loop)))(jnp.float32(2))
        assert slope == 343
        assert_logs(
            logs,
            {"fwd": [2.0, 4.0, 16.0], "bwd": [1.0, 7.0, 49.0], "residual": [16.0, 4.0, 2.0]},
        )


def test_a_backward_function_under_vmap_logs_each_lane():
    f = scaled_back()
    slopes, logs = lox.spool(jax.vmap(jax.grad(lambda x: 3 * f(x))))(jnp.array([2.0, 5.0]))
    assert_array(slopes, [21.0, 21.0])
    assert_logs(logs, {"fwd": [[2.0, 5.0]], "bwd": [[3.0, 3.0]], "residual": [[2.0, 5.0]]})


def test_what_a_rule_logs_outside_of_the_spooled_function_goes_to_the_handler_around():
    f = scaled_back()
    (slope, inner), outer = lox.spool(jax.grad(lox.spool(f), has_aux=True))(jnp.float32(2))
    assert slope == 7
    assert_logs(inner, {"function": [2.0]})
    assert_logs(outer, {"fwd": [2.0], "bwd": [1.0], "residual": [2.0]})
    slope, inner = jax.grad(lox.spool(f), has_aux=True)(jnp.float32(2))
    assert slope == 7
    assert_logs(inner, {"function": [2.0]})


def test_the_log_of_a_function_with_a_rule_has_its_true_derivative():
    f = scaled_back()

    @jax.custom_jvp
    def g(x):
        lox.log({"function": x})
        return x * x

    g.defjvp(lambda primals, tangents: (g(*primals), 7 * tangents[0]))
    for function in (f, g):
        for transform in (lambda f: f, jax.jit):
            of_log = jax.grad(transform(lambda x: lox.spool(function)(x)[1]["function"].sum() * 10))
            assert of_log(jnp.float32(2)) == 10
            of_both = jax.grad(
                transform(lambda x: (lambda out, logs: out + logs["function"].sum() * 10)(*lox.spool(function)(x)))
            )
            assert of_both(jnp.float32(2)) == 17


def test_arguments_that_are_not_differentiated_may_be_functions_and_strings():
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0, 2))
    def apply(function, x, name):
        lox.log({name: function(x)})
        return function(x)

    def bwd(function, name, residual, bar):
        lox.log({f"{name}/bar": bar})
        return (residual * bar,)

    apply.defvjp(lambda function, x, name: (apply(function, x, name), 2 * x), bwd)
    f = lambda x: 3 * apply(jnp.sin, x, "sine")  # noqa: E731
    for transform in (lambda f: f, jax.jit):
        slope, logs = lox.spool(transform(jax.grad(f)))(jnp.float32(X))
        np.testing.assert_allclose(slope, 6 * X, RTOL)
        assert_logs(logs, {"sine": [np.sin(X)], "sine/bar": [3.0]}, rtol=RTOL)
        slope, logs = jax.grad(transform(lox.spool(f)), has_aux=True)(jnp.float32(X))
        np.testing.assert_allclose(slope, 6 * X, RTOL)
        assert_logs(logs, {"sine": [np.sin(X)]}, rtol=RTOL)


def test_static_arguments_of_a_jvp_rule_are_kept():
    @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
    def f(x, power):
        lox.log({"power": float(power)})
        return x**power

    f.defjvp(lambda power, primals, tangents: (f(primals[0], power), 100.0 * power * tangents[0]))
    for g in (lox.spool(jax.grad(f)), jax.grad(lox.spool(f), has_aux=True)):
        slope, logs = g(jnp.float32(2), 3)
        assert slope == 300
        assert_logs(logs, {"power": [3.0]})


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_symbolic_zeros_reach_the_rule(around):
    seen = []

    @jax.custom_vjp
    def f(x, y):
        lox.log({"x": x, "y": y})
        return x * y, x + y

    def fwd(x, y):
        seen.append((x.perturbed, y.perturbed))
        return f(x.value, y.value), (x.value, y.value)

    def bwd(residuals, bars):
        seen.append(tuple(isinstance(bar, SymbolicZero) for bar in bars))
        x, y = residuals
        return bars[0] * y, bars[0] * x

    f.defvjp(fwd, bwd, symbolic_zeros=True)
    for g in (lox.spool(jax.grad(lambda x: f(x, 3.0)[0])), jax.grad(lox.spool(lambda x: f(x, 3.0)[0]), has_aux=True)):
        seen.clear()
        slope, logs = around(g)(jnp.float32(2))
        assert slope == 3
        assert_logs(logs, {"x": [2.0], "y": [3.0]})
        assert seen == [(True, False), (False, True)]


def test_symbolic_zeros_reach_a_jvp_rule():
    seen = []

    @jax.custom_jvp
    def f(x, y):
        lox.log({"x": x})
        return x * y

    def rule(primals, tangents):
        seen.append(tuple(isinstance(tangent, SymbolicZero) for tangent in tangents))
        return f(*primals), tangents[0] * primals[1]

    f.defjvp(rule, symbolic_zeros=True)
    for g in (lox.spool(jax.grad(f)), jax.grad(lox.spool(f), has_aux=True)):
        seen.clear()
        slope, logs = g(jnp.float32(2), jnp.float32(3))
        assert slope == 3
        assert_logs(logs, {"x": [2.0]})
        assert seen == [(False, True)]


def test_a_custom_gradient_closes_over_what_it_needs():
    @jax.custom_gradient
    def f(x):
        lox.log({"x": x})
        return x * x, lambda bar: bar * 11

    for g in (lox.spool(jax.grad(f)), lox.spool(jax.jit(jax.grad(f)))):
        slope, logs = g(jnp.float32(2))
        assert slope == 11
        assert_logs(logs, {"x": [2.0]})


def test_a_function_with_a_rule_that_closes_over_a_tracer_keeps_it():
    def outer(y):
        @jax.custom_jvp
        def f(x):
            lox.log({"sum": x + y})
            return x + y

        f.defjvp(lambda primals, tangents: (f(*primals), 4 * tangents[0]))
        return jax.grad(f)(y * 2)

    for transform in (lambda f: f, jax.jit):
        slope, logs = transform(lox.spool(outer))(jnp.float32(1))
        assert slope == 4
        assert_logs(logs, {"sum": [3.0]})


def test_rules_in_branches_are_kept():
    f = lambda x: lax.cond(x > 0, straight_through, lambda x: straight_through(2 * x), x)  # noqa: E731
    for x, slope, rounded in ((1.3, 1.0, 1.0), (-1.2, 2.0, -2.0)):
        for g in (lox.spool(jax.grad(f)), jax.grad(lox.spool(f), has_aux=True)):
            found, logs = g(jnp.float32(x))
            assert found == slope
            assert_logs(logs, {"rounded": [rounded]})


# -- solvers -------------------------------------------------------------------------------------------------------


def square_root(x):
    def solve(f, guess):
        def step(y, i):
            lox.log({"y": y}, i=i)
            return y - f(y) / (2 * y), None

        return lax.scan(step, guess, jnp.arange(6))[0]

    return lax.custom_root(lambda y: y * y - x, jnp.float32(1), solve, lambda g, y: y / g(jnp.float32(1)))


def plain_square_root(x):
    y, ys = 1.0, []
    for _ in range(6):
        ys.append(y)
        y = y - (y * y - x) / (2 * y)
    return y, ys


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_root_finder_logs_its_iterations_and_keeps_its_implicit_derivative(around):
    out, ys = plain_square_root(2.0)
    steps = {"i": {"y": list(range(6))}}
    found, logs = around(lox.spool(square_root))(jnp.float32(2))
    np.testing.assert_allclose(found, out, RTOL)
    assert_logs(logs, {"y": ys}, steps=steps, rtol=RTOL)
    for g in (lox.spool(jax.grad(square_root)), jax.grad(lox.spool(square_root), has_aux=True)):
        slope, logs = around(g)(jnp.float32(2))
        np.testing.assert_allclose(slope, 0.5 / np.sqrt(2), RTOL)
        assert_logs(logs, {"y": ys}, steps=steps, rtol=RTOL)


def root_by_while(log_in):
    """A square root whose iterations JAX cannot differentiate in reverse mode, unless it logs in the solver."""

    def log(place, value):
        if place == log_in:
            lox.log({"value": value})

    def root(x):
        def function(y):
            log("function", y)
            return y * y - x

        def solve(f, y):
            def step(y):
                log("solver", y)
                return y - 0.3 * f(y)

            if log_in in ("function", "solver"):  # A number of times that a spool can know.
                return lax.fori_loop(0, 20, lambda i, y: step(y), y)
            return lax.while_loop(lambda y: jnp.abs(f(y)) > 1e-5, step, y)

        def tangent_solve(g, y):
            log("tangent", y)
            return y / g(jnp.float32(1))

        log("outside", x)
        return lax.custom_root(function, jnp.float32(1.5), solve, tangent_solve)

    return root


@pytest.mark.covering(1)
@pytest.mark.parametrize("log_in", ["nothing", "outside", "function", "solver", "tangent"])
@pytest.mark.parametrize(
    "handle",
    [
        lambda f: lambda x: lox.spool(f)(x)[0],
        lambda f: lambda x: lox.spool(f, reduce="mean")(x)[0],
        lambda f: lox.tap(f, callback=lambda *_: None),
        lambda f: lox.tap(lox.strip(f), callback=lambda *_: None),
    ],
    ids=["spool", "reduce", "tap", "strip"],
)
def test_under_a_handler_the_derivative_of_a_root_is_that_of_custom_root(handle, log_in):
    root = root_by_while(log_in)
    x, expected = jnp.float32(2), 0.5 / np.sqrt(2)
    for slope in (
        jax.grad(handle(root))(x),
        jax.grad(handle(jax.jit(root)))(x),
        jax.jit(jax.grad(handle(root)))(x),
        jax.vmap(jax.grad(handle(root)))(x[None])[0],
        jax.grad(lambda x: jax.vmap(handle(root))(x[None])[0])(x),
        jax.jvp(handle(root), (x,), (jnp.ones_like(x),))[1],
    ):
        np.testing.assert_allclose(slope, expected, 1e-4)


def test_a_primitive_of_jax_that_cannot_log_stays_in_the_program():
    def search(x):
        return jnp.searchsorted(lox.log({"x": jnp.arange(3, dtype=jnp.float32) * x})["x"], x)

    plain, handled = (jax.make_jaxpr(lox.spool(fun))(jnp.float32(1)) for fun in (lox.strip(search), search))
    programs = [[str(eqn) for eqn in jaxpr.eqns if "searchsorted" in str(eqn)] for jaxpr in (plain, handled)]
    assert programs[0] == programs[1] != []
    assert jax.__version_info__ < (0, 12) or "SearchSorted" in programs[0][0]


@pytest.mark.skipif(not hasattr(hijax, "HiPrim"), reason="JAX has no HiPrim before 0.12")
def test_a_high_level_primitive_of_a_library_keeps_its_derivative():
    class Reverse(hijax.HiPrim):  # Its derivative is 7, so that the test sees which one is used.
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x):
            return jnp.sin(x)

        def vjp_fwd(self, nonzero, x):
            return self(x), ()

        def vjp_bwd_retval(self, residuals, out_bar):
            return (7 * out_bar,)

    class Forward(Reverse):
        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp

        def jvp(self, primals, tangents):
            return self(*primals), 7 * tangents[0]

    for kind in (Reverse, Forward):

        def fun(x, kind=kind):
            return kind(jax.typeof(x))(lox.log({"x": x})["x"])

        for around in (lambda f: f, jax.jit):
            slope, logs = jax.grad(lox.spool(around(fun)), has_aux=True)(jnp.float32(2))
            assert slope == 7
            assert_logs(logs, {"x": [2.0]})


def test_lanes_of_a_root_finder_log_their_own_iterations():
    xs = (2.0, 5.0)
    out, logs = lox.spool(jax.vmap(square_root))(jnp.array(xs))
    for index, x in enumerate(xs):
        expected, ys = plain_square_root(x)
        np.testing.assert_allclose(out[index], expected, RTOL)
        np.testing.assert_allclose(logs["y"][:, index], ys, RTOL)
    slopes, logs = lox.spool(jax.vmap(jax.grad(square_root)))(jnp.array(xs))
    np.testing.assert_allclose(slopes, 0.5 / np.sqrt(xs), RTOL)
    assert logs["y"].shape == (6, 2)


MATRIX = np.array([[4.0, 1.0], [1.0, 3.0]], np.float32)


def solved(b, log=lox.log):
    def solve(matvec, b):
        log({"b": b})
        return jnp.linalg.solve(MATRIX, b)

    return lax.custom_linear_solve(lambda x: MATRIX @ x, b, solve, symmetric=True)


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_linear_solver_logs_when_it_solves(around):
    b = np.array([1.0, 2.0], np.float32)
    out, logs = around(lox.spool(solved))(b)
    np.testing.assert_allclose(out, np.linalg.solve(MATRIX, b), RTOL)
    assert_logs(logs, {"b": [b]})
    bs = np.stack([b, 2 * b, 3 * b])
    out, logs = around(lox.spool(jax.vmap(solved)))(bs)
    np.testing.assert_allclose(out, np.linalg.solve(MATRIX, bs.T).T, RTOL)
    assert_logs(logs, {"b": [bs]})
    out, logs = around(jax.vmap(lox.spool(solved)))(bs)
    assert_logs(logs, {"b": bs[:, None]})


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_linear_solver_keeps_its_derivative(around):
    b = np.array([1.0, 2.0], np.float32)
    jacobian = np.linalg.inv(MATRIX)
    for derivative in (jax.jacfwd, jax.jacrev):
        found, logs = around(derivative(lox.spool(solved), has_aux=True))(b)
        np.testing.assert_allclose(found, jacobian, RTOL)
        assert_logs(logs, {"b": [b]})
        found = around(derivative(lox.strip(solved)))(b)
        np.testing.assert_allclose(found, jacobian, RTOL)


def test_a_differentiated_linear_solver_logs_each_time_it_solves():
    b, v = np.array([1.0, 2.0], np.float32), np.array([1.0, 0.0], np.float32)
    slope, logs = lox.spool(jax.grad(lambda b: jnp.vdot(v, solved(b))))(b)
    np.testing.assert_allclose(slope, np.linalg.solve(MATRIX, v), RTOL)
    assert_logs(logs, {"b": [b, v]})


def test_a_linear_solver_that_solves_for_a_batch_of_cotangents_needs_keys_of_its_own():
    with pytest.raises(lox.StructureError, match=r"float32\[2\] in a batch of 2"):
        lox.spool(jax.jacrev(solved))(np.array([1.0, 2.0], np.float32))


def test_a_solver_in_a_scan_logs_every_iteration():
    def f(b):
        return lax.scan(lambda b, _: (solved(b), None), b, None, length=3)[0]

    b, bs = np.array([1.0, 2.0], np.float32), []
    expected = b
    for _ in range(3):
        bs.append(expected)
        expected = np.linalg.solve(MATRIX, expected)
    out, logs = lox.spool(f)(b)
    np.testing.assert_allclose(out, expected, RTOL)
    assert_logs(logs, {"b": np.array(bs)}, rtol=RTOL)


def test_conjugate_gradients_log_what_their_operator_computes():
    def matvec(x):
        lox.log({"x": x})
        return MATRIX @ x

    b = np.array([1.0, 2.0], np.float32)
    out, logs = lox.spool(lambda b: jax.scipy.sparse.linalg.cg(matvec, b, maxiter=5)[0], reduce="count")(b)
    np.testing.assert_allclose(out, np.linalg.solve(MATRIX, b), 1e-3)
    assert logs["x"][0] >= 2


# -- custom_vmap ---------------------------------------------------------------------------------------------------


def doubled():
    @jax.custom_batching.custom_vmap
    def f(x):
        lox.log({"function": x})
        return 2 * x

    @f.def_vmap
    def rule(axis_size, in_batched, x):
        lox.log({"rule": x, "size": axis_size})
        return 2 * x + 1000, in_batched[0]

    return f


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_batching_rule_is_kept_and_logs_when_it_runs(around):
    f = doubled()
    out, logs = around(lox.spool(f))(jnp.float32(2))
    assert out == 4
    assert_logs(logs, {"function": [2.0]})
    out, logs = around(lox.spool(jax.vmap(f)))(jnp.array([1.0, 2.0]))
    assert_array(out, [1002.0, 1004.0])
    assert_logs(logs, {"rule": [[1.0, 2.0]], "size": [2]})


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_batching_rule_around_a_spooled_function_is_kept(around):
    f = doubled()
    out, logs = around(jax.vmap(lox.spool(f)))(jnp.array([1.0, 2.0]))
    assert_array(out, [1002.0, 1004.0])
    assert_logs(logs, {"function": [[1.0], [2.0]]})
    (out, inner), outer = lox.spool(around(jax.vmap(lox.spool(f))))(jnp.array([1.0, 2.0]))
    assert_logs(inner, {"function": [[1.0], [2.0]]})
    assert_logs(outer, {"rule": [[1.0, 2.0]], "size": [2]})
    out = around(jax.vmap(lox.strip(f)))(jnp.array([1.0, 2.0]))
    assert_array(out, [1002.0, 1004.0])


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_batching_rule_around_a_tapped_function_logs_to_the_tap(around):
    arrived = []
    out = around(jax.vmap(lox.tap(doubled(), arrived.append)))(jnp.array([1.0, 2.0]))
    lox.flush()
    assert_array(out, [1002.0, 1004.0])
    (logs,) = arrived
    assert_logs(logs, {"rule": [[1.0, 2.0]], "size": [2]})


def test_a_sequential_map_logs_lane_after_lane():
    f = jax.custom_batching.sequential_vmap(lambda x: lox.log({"x": x})["x"] * 2)
    out, logs = lox.spool(jax.vmap(f))(jnp.array([1.0, 2.0, 3.0]))
    assert_array(out, [2.0, 4.0, 6.0])
    assert_logs(logs, {"x": [1.0, 2.0, 3.0]})


def logged(x):
    return lox.log({"a": x})["a"]


def with_batching_rule(fun, rule=None):
    """A function whose batching rule is the function for each batch element, or another rule."""
    f = jax.custom_batching.custom_vmap(fun)
    f.def_vmap(lambda size, batched, x: ((rule or jax.vmap(fun))(x), True))
    return f


def tapped_alone(f, x, **options):
    heard = []
    lox.tap(f, lambda logs: heard.extend(logs.valid("a").tolist()), **options)(x)
    lox.flush()
    return heard


def elements(calls, size):
    """What each batch element has logged, of calls of a tap around or inside of a vmap of this size."""
    found = [[] for _ in range(size)]
    for logs in calls:
        values, mask = np.asarray(logs["a"]), logs.mask.get("a")
        assert values.shape[1:] == (size,)
        for event, happened in zip(values, np.ones_like(values, bool) if mask is None else mask, strict=True):
            for element in np.flatnonzero(happened):
                found[element].append(event[element].item())
    return found


silent = with_batching_rule(lambda x: x)
recorded = with_batching_rule(logged)

batched_programs = {
    "a function that does not log": lambda n: silent(logged(n)),
    "a function that logs": recorded,
    "both": lambda n: recorded(silent(logged(n))) + 0 * logged(2 * n),
    "jit": lambda n: jax.jit(recorded)(logged(n)),
    "cond": lambda n: lax.cond(n % 2 == 0, lambda n: n, recorded, n),
    "cond before": lambda n: recorded(lax.cond(n % 2 == 0, lambda n: n, logged, n)),
    "while": lambda n: lax.while_loop(
        lambda s: s[0] < s[2], lambda s: (s[0] + 1, recorded(s[1]) + 10, s[2]), (0, n, n)
    )[1],
    "while of what is not batched": lambda n: lax.while_loop(
        lambda s: s[0] < s[1], lambda s: (s[0] + 1 + 0 * recorded(s[0]), s[1]), (0, n)
    )[0],
    "scan": lambda n: lax.scan(lambda c, x: (recorded(silent(c + x)), None), n, jnp.arange(3))[0],
    "not batched": lambda n: logged(n) + 0 * recorded(jnp.int32(5)),
    "nested": lambda n: jax.vmap(recorded)(jnp.arange(2) + n).sum() * 0 + with_batching_rule(lambda n: recorded(n))(n),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"interval": 2}, {"interval": 2, "buffer": 3}])
@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", batched_programs)
def test_a_tap_gets_of_each_batch_element_what_it_logs_alone_through_batching_rules(name, around, where, options):
    f, ns, calls = batched_programs[name], jnp.array([1, 4, 3]), []
    if name == "nested":  # Which has another batch axis.
        f = with_batching_rule(lambda n: recorded(n))
    if where == "inside":
        out = around(jax.vmap(lox.tap(f, calls.append, **options)))(ns)
    else:
        out = around(lox.tap(jax.vmap(f), calls.append, **options))(ns)
    lox.flush()
    assert_array(out, jax.vmap(f)(ns))
    assert elements(calls, 3) == [tapped_alone(f, n, **options) for n in ns]


@pytest.mark.parametrize("name", batched_programs)
def test_a_reduction_over_each_batch_element_is_that_of_the_element_alone_through_batching_rules(name):
    f, ns = batched_programs[name], jnp.array([1, 4, 3])
    if name == "nested":
        f = with_batching_rule(lambda n: recorded(n))
    for reduction in ("count", "sum"):
        alone = [tapped_alone(f, n) for n in ns]
        expected = [len(events) if reduction == "count" else sum(events) for events in alone]
        got = lox.spool(jax.vmap(f), reduce=reduction)(ns)[1]["a"]
        assert jnp.broadcast_to(got, (1, 3)).tolist() == [expected]
        got = jax.vmap(lox.spool(f, reduce=reduction))(ns)[1]["a"]
        assert jnp.broadcast_to(got, (3, 1))[:, 0].tolist() == expected


@pytest.mark.parametrize("options", [{}, {"buffer": 3}])
@pytest.mark.parametrize("name", sorted(set(batched_programs) - {"nested"}))
def test_a_logger_gets_each_batch_element_in_its_own_run_through_batching_rules(name, options):
    f, ns = batched_programs[name], jnp.array([1, 4, 3])
    with lox.loggers.MemoryLogger() as logger:
        jax.vmap(lambda seed, n: logger.tap(f, logger.init(seed), **options)(n))(jnp.arange(3), ns)
        logger.flush()
        found = {logger.runs[run].key[1]: logger[run]["a"].tolist() for run in logger.runs if "a" in logger[run]}
    expected = {place: events for place, n in enumerate(ns) if (events := tapped_alone(f, n))}
    assert found == expected


def test_an_unbatched_call_in_two_vmaps_has_the_axes_of_both():
    f = lambda x: jax.vmap(lambda y: recorded(x) + y)(jnp.arange(2))  # noqa: E731
    xs, calls = jnp.array([1, 2, 3]), []
    _, logs = lox.spool(jax.vmap(f))(xs)
    assert logs["a"].tolist() == [[[1, 1], [2, 2], [3, 3]]]
    lox.tap(jax.vmap(f), calls.append)(xs)
    lox.flush()
    assert [call["a"].tolist() for call in calls] == [[[[1, 1], [2, 2], [3, 3]]]]
    calls.clear()
    jax.vmap(lox.tap(f, calls.append, buffer=2))(xs)
    lox.flush()
    assert [call["a"].tolist() for call in calls] == [[[[1, 1], [2, 2], [3, 3]]]]


@pytest.mark.parametrize("fun", [lambda x: x, logged], ids=["silent", "logging"])
def test_what_a_batching_rule_logs_of_each_element_besides_is_refused_where_elements_part(fun):
    rule = lambda xs: jax.vmap(lambda x: lox.log({"rule": x})["rule"])(xs)  # noqa: E731
    f = with_batching_rule(fun, rule)
    xs = jnp.array([1, 4, 3])
    parted = {
        "cond": lambda n: lax.cond(n % 2 == 0, lambda n: n, f, n),
        "while": lambda n: lax.while_loop(lambda s: s[0] < s[1], lambda s: (s[0] + 1, f(s[1])), (0, n))[0],
    }
    for program in parted.values():
        for handler in (lambda f: lox.tap(f, print), lambda f: lox.tap(f, print, buffer=2), spool_counts):
            with pytest.raises(lox.UnsupportedPrimitiveError, match="test_custom_rules.py:[0-9]+"):
                handler(jax.vmap(program))(xs)
    with lox.loggers.MemoryLogger() as logger, pytest.raises(lox.UnsupportedPrimitiveError, match="runs of their own"):
        jax.vmap(lambda seed, n: logger.tap(f, logger.init(seed))(n))(jnp.arange(3), xs)


def spool_counts(f):
    return lox.spool(f, reduce="count")


def test_a_buffered_tap_inside_of_a_vmap_gets_what_only_a_batching_rule_logs():
    f = with_batching_rule(lambda x: x, lambda xs: lox.log({"rule": xs})["rule"])
    calls = []
    jax.vmap(lox.tap(lambda x: f(logged(x)), calls.append, buffer=3))(jnp.array([1, 2]))
    lox.flush()
    found = sorted((key, value.tolist()) for logs in calls for key, value in logs.items())
    assert found == [("a", [[1, 2]]), ("rule", [[1, 2]])]


@jax.custom_jvp
def halved_jvp(x):
    lox.log({"x": x})
    return x


halved_jvp.defjvp(lambda primals, tangents: (halved_jvp(*primals), tangents[0] / 2))


@jax.custom_vjp
def halved_vjp(x):
    lox.log({"x": x})
    return x


def halved_bwd(_, bar):
    lox.log({"bar": bar})
    return (bar / 2,)


halved_vjp.defvjp(lambda x: (halved_vjp(x), None), halved_bwd)


@pytest.mark.filterwarnings("ignore:'none' in tags=:lox.SelectionWarning")
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("halved", [halved_jvp, halved_vjp], ids=["jvp", "vjp"])
def test_a_handler_inside_a_gradient_takes_and_leaves_each_event_once(halved, around):
    own = {"bar": [1.0]} if halved is halved_vjp else {}

    def passed(**options):
        inner = lox.spool(halved, **options)
        return lox.spool(around(jax.grad(lambda x: inner(x)[0])))(jnp.float32(X))

    for slope, logs in (passed(tags="none"), passed(keep_logs=True)):
        assert slope == 0.5
        assert_logs(logs, {"x": [X]} | own)
    (slope, inner), outer = lox.spool(around(jax.grad(lox.spool(halved), has_aux=True)))(jnp.float32(X))
    assert slope == 0.5
    assert_logs(inner, {"x": [X]})
    assert_logs(outer, own)


@pytest.mark.filterwarnings("ignore:'none' in tags=:lox.SelectionWarning")
def test_a_handler_inside_a_gradient_hears_nothing_of_a_function_that_its_rule_does_not_run():
    @jax.custom_jvp
    def f(x):
        lox.log({"x": x})
        return 2 * x

    f.defjvp(lambda primals, tangents: (2 * primals[0], 2 * tangents[0]))
    inner = lox.spool(f, tags="none")
    _, logs = lox.spool(jax.grad(lambda x: inner(x)[0]))(X)
    assert_logs(logs, {})


@pytest.mark.parametrize("halved", [halved_jvp, halved_vjp], ids=["jvp", "vjp"])
def test_a_rule_that_logs_for_some_lanes_only_is_refused_when_it_cannot_be_told_which(halved):
    def f(xs):
        return jax.vmap(lambda x: lax.cond(x > 1, halved, lambda x: x, x))(xs).sum()

    xs = jnp.array([1.0, 2.0])
    if halved is halved_vjp:
        with pytest.raises(lox.UnsupportedPrimitiveError, match="cannot tell for which of them the rule runs"):
            lox.spool(jax.grad(f), unify=True)(xs)
    else:
        slopes, logs = lox.spool(jax.grad(f), unify=True)(xs)
        assert_array(slopes, [1.0, 0.5])
        assert_logs(logs, {"x": [[np.nan, 2.0]]}, mask={"x": [[False, True]]})


@pytest.mark.parametrize("halved", [halved_jvp, halved_vjp], ids=["jvp", "vjp"])
def test_a_function_whose_result_nothing_uses_logs_in_every_iteration_of_a_differentiated_scan(halved):
    def f(x):
        def step(x, _):
            halved(lax.stop_gradient(x))
            return jnp.sin(x), None

        return lax.scan(step, x, length=3)[0]

    for function in (f, jax.checkpoint(f)):
        slope, logs = lox.spool(jax.grad(function))(X)
        assert_array(slope, jax.grad(f)(X), RTOL)
        assert_logs(logs, {"x": [X, np.sin(X), np.sin(np.sin(X))]}, rtol=RTOL)


@pytest.mark.parametrize("derivative", [jax.grad, lambda f: jax.grad(jax.grad(f))], ids=["once", "twice"])
def test_functions_with_rules_inside_functions_with_rules_log_in_every_iteration(derivative):
    @jax.custom_jvp
    def outer(x):
        return halved_vjp(x)

    outer.defjvp(lambda primals, tangents: (outer(*primals), tangents[0]))

    def f(x):
        return lax.scan(lambda x, _: (outer(x), None), x, length=2)[0]

    _, logs = lox.spool(derivative(f), argnames="x")(X)
    assert_logs(logs, {"x": [X, X]}, rtol=RTOL)


@pytest.mark.parametrize("inside", [lambda f: f, jax.jit])
def test_what_only_a_forward_rule_logs_in_a_scan_happens_in_each_iteration(inside):
    @jax.custom_vjp
    def double(x):
        return 2 * x

    def forward(x):
        lox.log({"x": x})
        return 2 * x, None

    double.defvjp(forward, lambda _, bar: (2 * bar,))

    def f(w):  # What is logged is the same in each iteration.
        return lax.scan(lambda c, _: (1.5 * c + double(w), None), w, None, length=3)[0]

    _, logs = lox.spool(jax.grad(inside(f)))(1.0)
    assert_logs(logs, {"x": [1.0] * 3})
    arrived = []
    lox.tap(jax.grad(inside(f)), arrived.append)(1.0)
    lox.flush()
    assert [each["x"].tolist() for each in arrived] == [[1.0]] * 3


def test_a_loop_on_a_tangent_in_a_checkpoint_logs():
    @jax.custom_jvp
    def f(x):
        return x

    @f.defjvp
    def rule(primals, tangents):
        (tangent,) = tangents
        up = lax.while_loop(lambda c: c < tangent, lambda c: lox.log({"c": c})["c"] + 1, 0 * tangent)
        return *primals, up

    def g(x, tangent):
        return jax.linearize(jax.checkpoint(f), x)[1](tangent)

    out, logs = lox.spool(g, max_iters=4)(1.0, 3.0)
    assert out == 3
    assert logs.valid("c").tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("outside", [lambda f: f, jax.jit])
@pytest.mark.parametrize("options", [{"buffer": 1}, {"buffer": 4}])
def test_what_a_backward_function_logs_as_the_function_does_arrives_once(options, outside):
    def log(x):
        lox.log({"x": x})

    @jax.custom_vjp
    def double(x):
        log(x)
        return 2 * x

    def forward(x):
        log(x)
        return 2 * x, None

    def backward(_, bar):
        log(-bar)
        return (2 * bar,)

    double.defvjp(forward, backward)
    arrived = []
    f = lox.tap(lambda x: double(double(x)), arrived.append, **options)
    assert outside(jax.grad(f))(3.0) == 4
    lox.flush()
    assert sum((each["x"].tolist() for each in arrived), []) == [3.0, 6.0, -1.0, -2.0]


def test_one_of_several_logs_of_a_function_with_a_rule_carries_its_derivative():
    @jax.custom_vjp
    def f(x):
        lox.log({"a": x**2, "b": 3 * x, "c": jnp.sin(x)})
        return x

    f.defvjp(lambda x: (f(x), x), lambda x, bar: (bar,))
    for key, expected in {"a": 1.4, "b": 3.0, "c": np.cos(0.7)}.items():
        slope = jax.grad(lambda x, key=key: lox.spool(f)(x)[1][key].sum())(0.7)
        assert_array(slope, expected, rtol=1e-6)
