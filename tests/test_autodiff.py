"""Derivatives neither change logs nor are changed by them, and logs have derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.jet import jet
from reference import Journal, assert_array, assert_logs

import lox
from lox import _logged_names

X = 0.7
RTOL = 1e-5


def plain(log, x):
    """sin is applied three times; the loop also logs a constant."""
    log({"in": x})
    for i in range(3):
        log({"constant": 2.0})
        log({"x": x}, i=i)
        x = np.sin(x)
        log({"sin": x})
    log({"out": x})
    return x


def f(x):
    lox.log({"in": x})

    def step(x, i):
        lox.log({"constant": 2.0})
        lox.log({"x": x}, i=i)
        x = jnp.sin(x)
        lox.log({"sin": x})
        return x, None

    x, _ = lax.scan(step, x, jnp.arange(3))
    lox.log({"out": x})
    return x


def plain_slope(x):
    """The first and second derivative of three nested sines, by the chain rule."""
    first, second = 1.0, 0.0
    for _ in range(3):
        first, second = np.cos(x) * first, np.cos(x) * second - np.sin(x) * first**2
        x = np.sin(x)
    return first, second


def called_twice(f):
    """One function that pulls cotangents back, for two of them."""

    def slopes(x):
        _, pull = jax.vjp(f, x)
        return pull(jnp.float32(1))[0] + pull(jnp.float32(2))[0]

    return slopes


journal = Journal()
OUT = plain(journal.log, X)
SLOPE, CURVATURE = plain_slope(X)

derivatives = {
    "grad": (jax.grad, SLOPE),
    "value_and_grad": (jax.value_and_grad, (OUT, SLOPE)),
    "jvp": (lambda f: lambda x: jax.jvp(f, (x,), (jnp.float32(2),)), (OUT, 2 * SLOPE)),
    "vjp": (lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(2))[0], 2 * SLOPE),
    "vjp of the primal only": (lambda f: lambda x: jax.vjp(f, x)[0], OUT),
    "linearize": (lambda f: lambda x: jax.linearize(f, x)[1](jnp.float32(2)), 2 * SLOPE),
    "jacfwd": (jax.jacfwd, SLOPE),
    "jacrev": (jax.jacrev, SLOPE),
    "hessian": (jax.hessian, CURVATURE),
    "grad of grad": (lambda f: jax.grad(jax.grad(f)), CURVATURE),
    "grad of jit": (lambda f: jax.grad(jax.jit(f)), SLOPE),
    "grad of checkpoint": (lambda f: jax.grad(jax.checkpoint(f)), SLOPE),
    "jit of grad": (lambda f: jax.jit(jax.grad(f)), SLOPE),
    "vjp called twice": (called_twice, 3 * SLOPE),
}


def assert_once(logs, journal, rtol=RTOL):
    """Each event once, in order, possibly with an axis of basis vectors, along which it is the same."""
    assert sorted(logs) == sorted(journal.events)
    assert not logs.mask and not logs.dropped
    assert {name: sorted(counters) for name, counters in logs.steps.items()} == {
        name: sorted(counters) for name, counters in journal.steps.items()
    }
    for name, counters in journal.steps.items():
        for key, values in counters.items():
            found = np.asarray(logs.steps[name][key])
            assert_array(found, np.broadcast_to(column(values, found), found.shape))
    for key, values in journal.events.items():
        found = np.asarray(logs[key])
        assert len(found) == len(values)
        np.testing.assert_allclose(found, np.broadcast_to(column(values, found), found.shape), rtol)


def column(values, like):
    return np.asarray(values).reshape(-1, *[1] * (like.ndim - 1))


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", derivatives)
def test_every_derivative_logs_each_forward_event_once_and_stays_what_it_is(name, around):
    derivative, expected = derivatives[name]
    out, logs = around(lox.spool(derivative(f)))(jnp.float32(X))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, RTOL), out, expected)
    assert_once(logs, journal)


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "grad of jit"])
def test_derivatives_of_a_spooled_function_return_its_logs_as_auxiliary_output(name):
    transform = {
        "grad": lambda f: jax.grad(f, has_aux=True),
        "value_and_grad": lambda f: swapped(jax.value_and_grad(f, has_aux=True)),
        "jacfwd": lambda f: jax.jacfwd(f, has_aux=True),
        "jacrev": lambda f: jax.jacrev(f, has_aux=True),
        "grad of jit": lambda f: jax.grad(jax.jit(f), has_aux=True),
    }[name]
    for around in (lambda f: f, jax.jit):
        slope, logs = around(transform(lox.spool(f)))(jnp.float32(X))
        np.testing.assert_allclose(slope, SLOPE, RTOL)
        assert_once(logs, journal)


def swapped(value_and_grad):
    def call(x):
        (_, logs), slope = value_and_grad(x)
        return slope, logs

    return call


@pytest.mark.parametrize(
    "mapped",
    [jax.vmap(jax.grad(f)), jax.grad(lambda xs: jax.vmap(f)(xs).sum())],
    ids=["map of gradients", "gradient of a map"],
)
def test_under_vmap_and_grad_each_lane_logs_once(mapped):
    xs = (0.3, 0.7, 1.1)
    slopes, logs = lox.spool(mapped)(jnp.array(xs))
    for index, x in enumerate(xs):
        lane = Journal()
        plain(lane.log, x)
        np.testing.assert_allclose(slopes[index], plain_slope(x)[0], RTOL)
        assert_once(jax.tree.map(lambda array: array[:, index], logs), lane)


def test_gradients_in_a_scan_log_every_iteration_in_order():
    def train(x):
        def step(x, i):
            slope = jax.grad(lambda x: lox.log({"loss": (x - 3.0) ** 2}, i=i)["loss"])(x)
            lox.log({"slope": slope})
            return x - 0.25 * slope, None

        return lax.scan(step, x, jnp.arange(4))[0]

    expected, x = Journal(), 0.0
    for i in range(4):
        expected.log({"loss": (x - 3) ** 2}, i=i)
        slope = expected.log({"slope": 2 * (x - 3)})["slope"]
        x = x - 0.25 * slope
    for transform in (lambda f: f, jax.jit):
        out, logs = lox.spool(transform(train))(jnp.float32(0))
        assert out == x
        assert_logs(logs, expected.events, steps=expected.steps)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_invariant_log_in_a_differentiated_scan_happens_in_every_iteration(reverse):
    def g(x, y):
        def step(carry, i):
            # Each in a call of its own: one that depends on the iteration would keep the others with it.
            lox.log({"constant": 1.0})
            lox.log({"closed": y * y})
            lox.log({"index": i})
            return carry * y, None

        return lax.scan(step, x, jnp.arange(4), reverse=reverse)[0]

    for derivative in (jax.grad(g, 1), jax.jit(jax.grad(g, 1)), jax.grad(jax.checkpoint(g), 1)):
        slope, logs = lox.spool(derivative)(jnp.float32(1), jnp.float32(2))
        assert slope == 32
        order = [3, 2, 1, 0] if reverse else [0, 1, 2, 3]
        assert_logs(logs, {"constant": [1.0] * 4, "closed": [4.0] * 4, "index": order})


def test_a_loop_invariant_log_in_nested_differentiated_scans_happens_in_every_iteration():
    def g(x):
        def outer(x, i):
            def inner(x, j):
                lox.log({"constant": 1.0})
                lox.log({"i": i})
                lox.log({"j": j, "x": x})
                return 2 * x, None

            return lax.scan(inner, x, jnp.arange(2))[0], None

        return lax.scan(outer, x, jnp.arange(3))[0]

    slope, logs = lox.spool(jax.grad(g))(jnp.float32(1))
    assert slope == 64
    expected = {"constant": [1.0] * 6, "i": [0, 0, 1, 1, 2, 2], "j": [0, 1] * 3, "x": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]}
    assert_logs(logs, expected)


policies = {
    "none": {},
    "everything": {"policy": jax.checkpoint_policies.everything_saveable},
    "nothing": {"policy": jax.checkpoint_policies.nothing_saveable},
    "dots": {"policy": jax.checkpoint_policies.dots_saveable},
    "names": {"policy": jax.checkpoint_policies.save_only_these_names("saved")},
    "no cse prevention": {"prevent_cse": False},
    "static arguments": {"static_argnums": (1,)},
}


@pytest.mark.parametrize("policy", policies)
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_checkpoint_logs_once_with_any_policy(policy, around):
    @functools.partial(jax.checkpoint, **policies[policy])
    def g(x, mode="plain"):
        assert mode == "plain"
        y = checkpoint_name(jnp.sin(x), "saved")
        lox.log({"y": y})
        z = jnp.cos(y)
        lox.log({"z": z})
        return z * y

    args = ("plain",) if policy == "static arguments" else ()
    y, z = np.sin(X), np.cos(np.sin(X))
    slope = (z - y * np.sin(y)) * np.cos(X)
    found, logs = around(lox.spool(lambda x: jax.grad(lambda x: g(x, *args))(x)))(jnp.float32(X))
    np.testing.assert_allclose(found, slope, RTOL)
    assert_logs(logs, {"y": [y], "z": [z]}, rtol=RTOL)
    (out, tangent), logs = around(lox.spool(lambda x: jax.jvp(lambda x: g(x, *args), (x,), (jnp.float32(1),))))(
        jnp.float32(X)
    )
    np.testing.assert_allclose([out, tangent], [y * z, slope], RTOL)
    assert_logs(logs, {"y": [y], "z": [z]}, rtol=RTOL)
    found, logs = around(jax.grad(lox.spool(lambda x: g(x, *args)), has_aux=True))(jnp.float32(X))
    np.testing.assert_allclose(found, slope, RTOL)
    assert_logs(logs, {"y": [y], "z": [z]}, rtol=RTOL)


@pytest.mark.parametrize("kind", ["scan of checkpoint", "checkpoint of scan", "checkpoint of scan of checkpoint"])
def test_checkpoints_in_and_around_scans_log_once(kind):
    def step(x, i):
        lox.log({"x": x})
        lox.log({"i": i})
        lox.log({"constant": 2.0})
        return jnp.sin(x), None

    inner = step if kind == "checkpoint of scan" else jax.checkpoint(step)
    loop = lambda x: lax.scan(inner, x, jnp.arange(3))[0]  # noqa: E731
    g = loop if kind == "scan of checkpoint" else jax.checkpoint(loop)
    events = {"x": [X, np.sin(X), np.sin(np.sin(X))], "i": [0, 1, 2], "constant": [2.0] * 3}
    for transform in (lambda f: f, jax.jit):
        slope, logs = lox.spool(transform(jax.grad(g)))(jnp.float32(X))
        np.testing.assert_allclose(slope, SLOPE, RTOL)
        assert_logs(logs, events, rtol=RTOL)
        slopes, logs = lox.spool(transform(jax.vmap(jax.grad(g))))(jnp.array([X, X]))
        np.testing.assert_allclose(slopes, [SLOPE, SLOPE], RTOL)
        assert_logs(logs, {key: [[v, v] for v in values] for key, values in events.items()}, rtol=RTOL)


@pytest.mark.parametrize("derivative", [jax.grad, lambda f: jax.jacfwd(jax.jacrev(f))], ids=["grad", "hessian"])
def test_a_loop_invariant_log_of_a_custom_function_in_a_checkpointed_scan_happens_in_every_iteration(derivative):
    @jax.custom_jvp
    def tripled(y):
        return lox.log({"y": y})["y"]

    tripled.defjvp(lambda primals, tangents: (tripled(*primals), 3 * tangents[0]))

    @jax.checkpoint
    def g(x):
        y = jnp.cos(x)
        return lax.scan(lambda c, _: (c * jnp.sin(tripled(y)), None), x, None, length=4)[0]

    slope, logs = lox.spool(derivative(g))(X)
    assert_array(slope, derivative(lox.strip(g))(X), RTOL)
    assert logs["y"].shape[0] == 4
    assert_array(logs["y"].reshape(4, -1)[:, 0], np.full(4, np.cos(X), np.float32), RTOL)


@pytest.mark.parametrize("rule", ["jvp", "vjp"])
def test_logs_of_rules_alone_that_no_iteration_decides_happen_in_every_iteration(rule):
    """The function that has the rule logs nothing itself."""

    def log_alone(x):
        lox.log({"constant": jnp.float32(1)}, tags="rule")
        return 2 * x

    if rule == "jvp":
        g = jax.custom_jvp(lambda x: 2 * x)
        g.defjvp(lambda primals, tangents: (log_alone(*primals), 2 * tangents[0]))
    else:
        g = jax.custom_vjp(lambda x: 2 * x)
        g.defvjp(lambda x: (log_alone(x), None), lambda _, bar: (2 * bar,))

    def f(x):
        def outer(x, _):
            return lax.scan(lambda x, _: (g(x), None), x, length=4)[0], None

        return lax.scan(outer, x, length=3)[0]

    derivative = jax.value_and_grad
    for transformed in (derivative(f), jax.jit(derivative(f)), derivative(jax.jit(f)), derivative(jax.checkpoint(f))):
        out, logs = lox.spool(transformed)(jnp.float32(1))
        assert out == (2**12, 2**12)
        assert_logs(logs, {"constant": [1.0] * 12})
    out, logs = lox.spool(f)(jnp.float32(1))
    assert out == 2**12 and not logs


@pytest.mark.parametrize("inner", [lambda f: f, jax.checkpoint, jax.jit], ids=["plain", "checkpoint", "jit"])
def test_a_loop_in_a_rule_of_differentiation_logs_every_iteration(inner):
    def step(x, i):
        lox.log({"constant": 2.0})
        lox.log({"x": x, "i": i})
        return jnp.sin(x), None

    loop = inner(lambda x: lax.scan(step, x, jnp.arange(3))[0])
    g = jax.custom_jvp(loop)
    g.defjvp(lambda primals, tangents: jax.jvp(loop, primals, tangents))
    events = {"x": [X, np.sin(X), np.sin(np.sin(X))], "i": [0, 1, 2], "constant": [2.0] * 3}
    for transform in (lambda f: f, jax.jit):
        slope, logs = lox.spool(transform(jax.grad(g)))(jnp.float32(X))
        np.testing.assert_allclose(slope, SLOPE, RTOL)
        assert_logs(logs, events, rtol=RTOL)


@pytest.mark.parametrize("outer", [jax.checkpoint, lambda f: f], ids=["checkpoint", "plain"])
def test_a_loop_in_a_branch_logs_every_iteration_under_grad(outer):
    def step(x, i):
        lox.log({"constant": 2.0})
        lox.log({"x": x})
        return jnp.sin(x), None

    loop = lambda x: lax.scan(step, x, jnp.arange(3))[0]  # noqa: E731
    g = outer(lambda x: lax.cond(x > 0, loop, loop, x))
    slope, logs = lox.spool(jax.grad(g))(jnp.float32(X))
    np.testing.assert_allclose(slope, SLOPE, RTOL)
    assert_logs(logs, {"x": [X, np.sin(X), np.sin(np.sin(X))], "constant": [2.0] * 3}, rtol=RTOL)


def test_a_nested_checkpoint_logs_once():
    g = jax.checkpoint(lambda x: jnp.sin(jax.checkpoint(lambda x: lox.log({"cos": jnp.cos(x)})["cos"])(x)))
    slope, logs = lox.spool(jax.grad(g))(jnp.float32(X))
    np.testing.assert_allclose(slope, -np.cos(np.cos(X)) * np.sin(X), RTOL)
    assert_logs(logs, {"cos": [np.cos(X)]}, rtol=RTOL)


def test_logs_of_auxiliary_outputs_and_of_unused_values_stay():
    def g(x):
        lox.log({"unused": jnp.exp(x)})
        return x * x, lox.log({"aux": x + 1})["aux"]

    (slope, aux), logs = lox.spool(jax.grad(g, has_aux=True))(jnp.float32(X))
    np.testing.assert_allclose([slope, aux], [2 * X, X + 1], RTOL)
    assert_logs(logs, {"unused": [np.exp(X)], "aux": [X + 1]}, rtol=RTOL)


def test_only_the_differentiated_arguments_have_derivatives_and_all_are_logged():
    def g(x, n, tree):
        lox.log({"n": n, "tree": tree})
        return x * tree["a"]

    slope, logs = lox.spool(jax.grad(g))(jnp.float32(2), jnp.int32(3), {"a": jnp.float32(5)})
    assert slope == 5
    assert_logs(logs, {"n": [3], "tree/a": [5.0]})


def test_a_derivative_is_logged_where_it_is_computed():
    def g(x):
        slope = jax.grad(lambda x: x**3)(x)
        lox.log({"slope": slope})
        return slope

    curvature, logs = lox.spool(jax.grad(g))(jnp.float32(2))
    assert curvature == 12
    assert_logs(logs, {"slope": [12.0]})


def test_the_pullback_runs_no_log_again():
    def g(x):
        out, pull_back = jax.vjp(f, x)
        return pull_back(jnp.float32(1))[0], pull_back(jnp.float32(2))[0]

    (one, two), logs = lox.spool(g)(jnp.float32(X))
    np.testing.assert_allclose([one, two], [SLOPE, 2 * SLOPE], RTOL)
    assert_once(logs, journal)


def test_a_pullback_that_left_the_handler_still_works():
    pull_back, logs = lox.spool(lambda x: jax.vjp(f, x)[1])(jnp.float32(X))
    np.testing.assert_allclose(pull_back(jnp.float32(1))[0], SLOPE, RTOL)
    assert_once(logs, journal)


def test_a_transposed_linear_function_logs_nothing_of_its_forward_run():
    out = jax.linear_transpose(lambda x: 3 * x, jnp.float32(1))(jnp.float32(2))[0]
    found, logs = lox.spool(lambda y: jax.linear_transpose(lambda x: 3 * x, jnp.float32(1))(y)[0])(jnp.float32(2))
    assert found == out == 6
    assert_logs(logs, {})


# -- logs are values -----------------------------------------------------------------------------------------------


def logged(f, **options):
    return lambda x: lox.spool(f, **options)(x)[1]


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("inner", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "checkpoint"])
def test_the_derivative_of_a_log_is_its_true_derivative(inner, around):
    def g(x):
        lox.log({"square": x * x, "constant": 3.0})
        return jnp.exp(x)

    slope = around(jax.grad(lambda x: logged(inner(g))(x)["square"].sum()))(jnp.float32(X))
    np.testing.assert_allclose(slope, 2 * X, RTOL)
    slope = around(jax.grad(lambda x: logged(inner(g))(x)["constant"].sum()))(jnp.float32(X))
    assert slope == 0
    (out, logs), (tangent, logs_dot) = around(lambda x: jax.jvp(lox.spool(inner(g)), (x,), (jnp.float32(1),)))(
        jnp.float32(X)
    )
    np.testing.assert_allclose([out, tangent], [np.exp(X)] * 2, RTOL)
    np.testing.assert_allclose(logs_dot["square"], [2 * X], RTOL)


def test_the_derivative_of_logs_of_a_scan_is_that_of_every_event():
    weights = np.array([1.0, 10.0, 100.0], np.float32)
    expected, x, slope = 0.0, X, 1.0
    for weight in weights:
        slope, x = np.cos(x) * slope, np.sin(x)
        expected += weight * slope
    for transform in (lambda f: f, jax.jit, jax.checkpoint):
        found = jax.grad(lambda x: (logged(transform(f))(x)["sin"] * weights).sum())(jnp.float32(X))
        np.testing.assert_allclose(found, expected, RTOL)
    found = jax.jacfwd(lambda x: logged(f)(x)["out"])(jnp.float32(X))
    np.testing.assert_allclose(found, [SLOPE], RTOL)


def test_a_reduced_log_has_a_derivative_too():
    expected, x, slope = 0.0, X, 1.0
    for _ in range(3):
        slope, x = np.cos(x) * slope, np.sin(x)
        expected += slope / 3
    found = jax.grad(lambda x: logged(f, reduce="mean", argnames="sin")(x)["sin"][0])(jnp.float32(X))
    np.testing.assert_allclose(found, expected, RTOL)


def test_the_derivative_of_a_log_in_a_branch_is_that_of_the_branch():
    def g(x):
        return lax.cond(x > 1, lambda x: lox.log({"a": x**3})["a"], lambda x: lox.log({"a": 5 * x})["a"], x)

    for x, slope in ((2.0, 12.0), (0.5, 5.0)):
        assert jax.grad(lambda x: logged(g)(x)["a"][0])(jnp.float32(x)) == slope
    slopes = jax.grad(lambda xs: lox.spool(jax.vmap(g))(xs)[1]["a"].sum())(jnp.array([2.0, 0.5]))
    assert_array(slopes, [12.0, 5.0])


def test_a_masked_log_has_the_derivative_of_what_happened_and_none_otherwise():
    def g(x):
        return lax.cond(x > 1, lambda x: lox.log({"a": x**3})["a"], lambda x: x, x)

    def total(x):
        logs = logged(g, unify=True)(x)
        return jnp.where(logs.mask["a"], logs["a"], 0).sum()

    assert jax.grad(total)(jnp.float32(2)) == 12
    assert jax.grad(total)(jnp.float32(0.5)) == 0
    assert_array(jax.vmap(jax.grad(total))(jnp.array([2.0, 0.5])), [12.0, 0.0])


def test_the_derivative_of_a_log_under_vmap_is_that_of_each_lane():
    xs = np.array([0.3, 0.7], np.float32)
    found = jax.grad(lambda xs: (lox.spool(jax.vmap(f))(xs)[1]["in"] ** 2).sum())(xs)
    np.testing.assert_allclose(found, 2 * xs, RTOL)
    found = jax.grad(lambda xs: (jax.vmap(lox.spool(f))(xs)[1]["out"]).sum())(xs)
    np.testing.assert_allclose(found, [plain_slope(x)[0] for x in xs], RTOL)


def test_the_forward_derivative_of_a_log_in_a_while_loop():
    def g(x):
        def body(x):
            lox.log({"x": x})
            return x / 2

        return lax.while_loop(lambda x: x > 1, body, x)

    logs, logs_dot = jax.jvp(logged(g, max_iters=3), (jnp.float32(5),), (jnp.float32(1),))
    assert_array(logs["x"], [5.0, 2.5, 1.25])
    assert_array(logs_dot["x"], [1.0, 0.5, 0.25])


def test_a_loss_of_logs_can_be_trained_on():
    def g(w):
        lox.log({"activation": w * 2.0})
        return w

    def loss(w):
        out, logs = lox.spool(g)(w)
        return out * 3 + (logs["activation"] ** 2).sum()

    assert jax.grad(loss)(jnp.float32(1)) == 3 + 8
    slope, outer = lox.spool(jax.grad(lambda w: lox.log({"loss": loss(w)})["loss"]))(jnp.float32(1))
    assert slope == 11
    assert_logs(outer, {"loss": [7.0]})


def test_integers_keys_and_bools_in_logs_stop_no_derivative():
    def g(x, key):
        lox.log({"n": jnp.int32(3), "key": key, "positive": x > 0, "x": x})
        return x * x

    slope, logs = lox.spool(jax.grad(g))(jnp.float32(2), jax.random.key(0))
    assert slope == 4 and logs["n"].tolist() == [3] and logs["positive"].tolist() == [True]
    slope, logs = jax.grad(lox.spool(g), has_aux=True)(jnp.float32(2), jax.random.key(0))
    assert slope == 4 and logs["x"].tolist() == [2.0]


def test_the_gradient_of_a_tangent_of_a_loop_whose_tangent_stays_as_it_is():
    def loop(x):
        return lax.fori_loop(0, 2, lambda i, c: lox.log({"c": c})["c"] + i, x)

    def slope(x):
        return jax.jvp(loop, (x,), (1.0,))[0]

    out, logs = lox.spool(jax.grad(slope))(1.0)
    assert out == 1
    assert_logs(logs, {"c": [1.0, 1.0]})

    def around(x):
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, loop(c[1])), (0, x))[1]

    out, logs = lox.spool(lambda x: jax.linearize(around, x)[0], max_iters=2)(1.0)
    assert out == 3
    assert_array(logs.valid("c"), [1.0, 1.0, 2.0, 2.0])


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_log_of_a_value_that_is_transposed_does_not_happen(around):
    def f(x):
        (out,) = jax.linear_transpose(lambda y: (lox.log({"y": y}), 3 * y)[1], x)(1.0)
        return lox.log({"out": out})["out"]

    @jax.custom_jvp
    def g(x):
        return lox.log({"x": x})["x"]

    g.defjvp(lambda primals, tangents: (g(*primals), lox.log({"y": tangents[0]})["y"]))

    for function, keys in ((f, {"out": [3.0]}), (jax.grad(g), {"x": [X]})):
        with pytest.raises(lox.StructureError, match="which never gets a value"):
            around(lox.spool(function))(X)
        assert_logs(around(lox.spool(function, argnames=keys))(X)[1], keys)
        logs = around(lox.spool(function, unify=True))(X)[1]
        assert_logs(logs, keys | {"y": [np.nan]}, mask={"y": [False]})
    assert_logs(lox.spool(lambda x: jax.jvp(g, (x,), (2.0,))[0])(X)[1], {"x": [X], "y": [2.0]})


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("inside", [lambda f: f, jax.jit], ids=["", "jit"])
def test_jet_logs_the_primal_once(inside, around):
    def f(x):
        x = lox.log_grad({"x": x})["x"]
        lox.log({"x": x, "one": 1.0})
        return jnp.exp(x)

    series = around(lambda x: jet(inside(f), (x,), ((1.0, 0.0),)))
    (out, terms), logs = lox.spool(series)(jnp.float32(2))
    np.testing.assert_allclose([out, *terms], np.exp([2.0] * 3), rtol=1e-5)
    assert_logs(logs, {"x": [2.0], "one": [1.0]})
    heard = []
    lox.tap(series, lambda logs: heard.append(logs["x"].tolist()))(jnp.float32(2))
    lox.flush()
    assert heard == [[2.0]]


offloading = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["y"],
    offload_src="device",
    offload_dst="pinned_host",
)


@functools.partial(jax.checkpoint, policy=offloading)
def offloads(x):
    y = checkpoint_name(jnp.sin(x), "y")
    lox.log({"y": y}, tags=["offloaded"])
    return jnp.sin(y)


@pytest.mark.parametrize(
    "transform",
    [
        lambda handle: jax.jit(jax.grad(handle(offloads))),
        lambda handle: jax.jit(handle(jax.grad(offloads))),
        lambda handle: handle(jax.jit(jax.grad(offloads))),
        lambda handle: jax.jit(handle(jax.grad(over_layers))),
    ],
    ids=["jit(grad(tap))", "jit(tap(grad))", "tap(jit(grad))", "in a scan"],
)
def test_ordered_logs_in_a_checkpoint_that_offloads_are_refused_and_others_work(transform, monkeypatch):
    monkeypatch.setattr(_logged_names, "removed", set())  # A test before this one may have removed logs.
    x = jnp.float32(1)
    line = offloads.__wrapped__.__code__.co_firstlineno + 3
    with pytest.raises(lox.UnsupportedPrimitiveError, match=rf"(?s)test_autodiff.py:{line} .*ordered=False"):
        transform(lambda f: lox.tap(f, lambda logs: None))(x)

    expected = transform(lambda f: f)(x)
    arrived = []
    assert transform(lambda f: lox.tap(f, arrived.append, ordered=False))(x) == expected
    lox.flush()
    assert [logs["y"].shape for logs in arrived] == [(1,)] * len(arrived) and arrived
    with pytest.warns(lox.SelectionWarning, match="'other' in tags="):
        assert transform(lambda f: lox.tap(f, arrived.append, tags=["other"]))(x) == expected


def over_layers(x):
    return jax.lax.scan(lambda x, _: (offloads(x), None), x, None, length=2)[0]


def test_ordered_logs_in_a_checkpoint_that_may_offload_work_where_it_does_not():
    x = jnp.float32(1)
    arrived = []
    assert jax.jit(lox.tap(offloads, arrived.append))(x) == offloads(x)
    assert lox.tap(jax.grad(offloads), arrived.append)(x) == jax.grad(offloads)(x)
    lox.flush()
    assert [logs["y"].item() for logs in arrived] == [jnp.sin(x)] * 2
