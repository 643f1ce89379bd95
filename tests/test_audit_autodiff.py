"""What an audit says of derivatives is what JAX does; and where it says nothing, nothing was computed or known."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import cases
from jax import lax

import lox

CASES = {code: [case for case in cases() if case.code == code] for code in (f"LOX{n}" for n in range(600, 616))}
X = jax.ShapeDtypeStruct((3,), jnp.float32)


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def of(code, wrong):
    return [pytest.param(case, id=case.name) for case in CASES[code] if case.wrong is wrong]


def asked(code, wrong):
    """Those whose derivative is asked for: the others take it themselves."""
    return [each for each in of(code, wrong) if "differentiate" in each.values[0].options]


def arrays(case, fill):
    """Arguments for a program: floats by a function of a generator and a shape, integers zeros, keys of any seed.

    Flags are by chance, and none is set in the first row.
    """
    generator = np.random.default_rng(0)

    def array(like):
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if like.dtype == bool:
            return jnp.asarray(generator.random(like.shape) < 0.5).at[:1].set(False)
        real = jnp.issubdtype(like.dtype, jnp.floating)
        return jnp.asarray(fill(generator, like.shape) if real else np.zeros(like.shape), like.dtype)

    return jax.tree.map(array, case.args)


def places(case):
    """The numbers of the arguments that a program is differentiated by."""
    names = case.options.get("differentiate", ())
    names = (names,) if isinstance(names, str) else names
    return tuple(list(inspect.signature(case.fun).parameters).index(name) for name in names) or (0,)


def value_and_gradient(case, args, transform=lambda fun: fun):
    """The loss, and the derivative by what the program is audited for."""

    def loss(*args):
        result = case.fun(*args)
        return result[0] if isinstance(result, tuple) else result

    value, gradient = transform(jax.value_and_grad(loss, places(case)))(*args)
    return value, jax.tree.leaves(gradient)


def gradient(case, fill, transform=lambda fun: fun):
    return value_and_gradient(case, arrays(case, fill), transform)[1]


def is_infinite(case, fill):
    return not all(np.isfinite(each).all() for each in gradient(case, fill))


def is_infinite_with_gaps(case, fill):
    """Whether data with one NaN in each array give a finite loss and a derivative that is not finite."""

    def with_gap(array):
        is_real = jnp.issubdtype(array.dtype, jnp.floating)
        return array.at[(0,) * array.ndim].set(jnp.nan) if is_real else array

    args = arrays(case, fill)
    args = [arg if i in places(case) else jax.tree.map(with_gap, arg) for i, arg in enumerate(args)]
    value, derivatives = value_and_gradient(case, args)
    return np.isfinite(value) and not all(np.isfinite(each).all() for each in derivatives)


def result(case, fill):
    return case.fun(*arrays(case, fill))


def normal(generator, shape):
    return generator.normal(size=shape)


def equal(value):
    return lambda generator, shape: np.full(shape, value)


FILLS = [
    normal,
    lambda generator, shape: 1000 * generator.normal(size=shape),
    *(equal(value) for value in (0, 1, -1, 30, -300)),
]


@pytest.mark.parametrize("case", [*of("LOX600", True), *of("LOX601", True)])
def test_jax_refuses_to_differentiate_what_is_no_scalar_or_by_what_is_not_real(case):
    with pytest.raises(TypeError):
        gradient(case, normal)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [*asked("LOX602", True), *asked("LOX603", True)])
def test_derivatives_that_are_cut_off_are_zero(case):
    assert not all(np.any(each) for each in gradient(case, normal))


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", asked("LOX602", False))
def test_derivatives_that_are_not_cut_off_are_not_zero(case):
    assert all(np.any(each) for each in gradient(case, normal))


@pytest.mark.parametrize("case", [*of("LOX605", True), *of("LOX609", True)])
def test_jax_raises_where_a_step_has_no_derivative_or_its_rule_is_wrong(case):
    with pytest.raises((TypeError, ValueError)):
        gradient(case, normal, jax.jit)


@pytest.mark.parametrize("case", [*of("LOX605", False), *of("LOX609", False)])
def test_jax_differentiates_what_has_derivatives(case):
    assert gradient(case, normal)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", [*of("LOX606", True), *of("LOX607", True)])
def test_derivatives_that_are_said_to_be_infinite_are(case):
    assert any(is_infinite(case, fill) for fill in FILLS) or is_infinite_with_gaps(case, normal)


# Right since nothing in the program says that a value gets to where the derivative is infinite.
NOT_KEPT_FINITE = {
    "logarithm_of_an_argument",
    "a_signal_and_noise_by_a_level_between_zero_and_one",  # Zero only by rounding: a sigmoid of more than 17 is one.
    "balls_that_repel_each_other",  # Zero only where two balls are in one place.
    "directions_of_what_a_network_makes_of_sounds",  # Zero only where no unit of the network is active.
}
KEPT_FINITE = [case for case in (*of("LOX606", False), *of("LOX607", False)) if case.id not in NOT_KEPT_FINITE]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", KEPT_FINITE)
def test_derivatives_that_are_kept_finite_are_wherever_the_result_is(case):
    finite = [fill for fill in FILLS if all(np.isfinite(each).all() for each in jax.tree.leaves(result(case, fill)))]
    assert finite
    assert all(np.isfinite(each).all() for fill in finite for each in gradient(case, fill))


@pytest.mark.parametrize("name", sorted(NOT_KEPT_FINITE))
def test_derivatives_that_are_not_kept_finite_are_where_nothing_is_extreme(name):
    (case,) = [each.values[0] for each in of("LOX606", False) if each.id == name]
    assert all(np.isfinite(each).all() for each in gradient(case, lambda *args: np.abs(normal(*args))))


def findings(fun, *args, differentiate="x"):
    return lox.audit(fun, differentiate=differentiate)(*args).at_least("warning")


def codes(fun, *args, **kwargs):
    return {finding.code for finding in findings(fun, *args, **kwargs)}


def test_a_cut_is_named_with_its_line():
    def loss(x, y):
        chosen = jnp.argmax(x)
        return y[chosen]

    (finding,) = findings(loss, X, X)
    assert finding.code == "LOX602" and "'x'" in finding.message and "'argmax'" in finding.message
    assert finding.line == inspect.getsourcelines(loss)[1] + 1


def test_a_cut_is_followed_through_loops_branches_and_calls():
    def stop(x):
        return lax.stop_gradient(x)

    wraps = {
        "jit": jax.jit,
        "checkpoint": jax.checkpoint,
        "vmap": jax.vmap,
        "scan": lambda f: lambda x: lax.scan(lambda c, y: (c + f(y).sum(), None), 0.0, x)[0],
        "carry": lambda f: lambda x: lax.scan(lambda c, _: (jax.tree.map(f, c), None), x, length=2)[0],
        "while": lambda f: lambda x: lax.while_loop(lambda c: c.sum() > 1, lambda c: f(c), f(x)),
        "cond": lambda f: lambda x: lax.cond(x[0] > 0, f, lambda x: f(-x), x),
    }
    for name, wrap in wraps.items():
        expected = set() if name == "carry" else {"LOX602"}  # A scan of no steps would return what it got.
        assert codes(lambda x, wrap=wrap: jnp.sum(wrap(stop)(x)), X) == expected, name
        smooth = codes(lambda x, wrap=wrap: jnp.sum(wrap(lambda x: jnp.sin(x))(x)), X)
        assert smooth == ({"LOX605"} if name == "while" else set()), name


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_what_a_loop_carries_is_followed_from_one_round_to_the_next(loop):
    def moved(carry):
        return carry[0], carry[0], carry[1], carry[3] + 1

    def loss(x):
        carry = x, jnp.zeros(3), jnp.zeros(3), 0
        if loop == "scan":
            carry, _ = lax.scan(lambda carry, _: (moved(carry), None), carry, length=3)
        else:
            carry = lax.while_loop(lambda carry: carry[3] < 3, moved, carry)
        return jnp.sum(carry[2])

    assert codes(loss, X) == (set() if loop == "scan" else {"LOX605"})


def test_what_one_call_of_a_function_gets_is_not_what_another_gets():
    @jax.jit
    def twice(x):
        return 2 * x

    def loss(x, y):
        return jnp.sum(twice(y)) + 0 * jnp.sum(jnp.round(twice(x)))

    assert codes(loss, X, X) == {"LOX602"}
    assert codes(loss, X, X, differentiate="y") == set()


def test_what_is_sorted_by_keys_has_no_derivative_by_them():
    def loss(x, y):
        keys, values = lax.sort((x, y), num_keys=1)
        return jnp.sum(values * jnp.arange(3.0)) + 0 * jnp.sum(lax.stop_gradient(keys))

    assert codes(loss, X, X, differentiate="x") == {"LOX602"}
    assert codes(loss, X, X, differentiate="y") == set()
    slopes = jax.grad(loss, (0, 1))(jnp.array([2.0, 3.0, 1.0]), jnp.zeros(3))
    assert [slope.tolist() for slope in slopes] == [[0, 0, 0], [1, 2, 0]]


def test_a_straight_through_estimator_is_said_to_be_right():
    report = lox.audit(lambda x: jnp.sum(x + lax.stop_gradient(jnp.round(x) - x)), differentiate="x")(X)
    assert not report.at_least("warning")
    assert "LOX602" in {each.code for each in report.verified}


def test_of_a_function_that_raises_nothing_is_said_about_derivatives():
    def loss(x):
        raise ValueError("no")

    assert codes(loss, X) == {"LOX400"}


def test_a_result_with_names_may_be_differentiated_by_any_of_them():
    def losses(actor, critic, x):
        return {"actor": jnp.sum(actor * x), "critic": jnp.sum(critic * x)}

    assert codes(losses, X, X, X, differentiate=("actor", "critic")) == set()


def test_arguments_beside_are_not_looked_at():
    assert codes(lambda x, y: jnp.sum(x) + jnp.linalg.norm(y) + jnp.sum(jnp.round(y)), X, X) == set()
    assert codes(lambda x, y: jnp.sum(x) + jnp.linalg.norm(y), X, X, differentiate="y") == {"LOX606"}


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.sqrt(jnp.sum(x / jnp.sqrt(jnp.sum(x**2) + 1.0)) ** 2 + 1e-6),
        lambda x: jnp.sqrt(jnp.sum(jnp.concatenate([jnp.cos(x), jnp.sin(x)]) ** 2)),
        lambda x: jnp.sqrt(jnp.sum(jax.nn.softmax(x) ** 2)),
        lambda x: jnp.sqrt(x[0] ** 2 + (1 - x[0]) ** 2),
        lambda x: jnp.sqrt(jnp.sum((x / optax_norm(x)) ** 2)),
        lambda x: jnp.sqrt(jax.nn.relu(x)).sum(),
        lambda x: jnp.sqrt(jax.nn.sigmoid(x)).sum(),
        lambda x: jnp.log(jnp.sum(jnp.abs(x))),
        lambda x: jnp.log(jnp.sum(jnp.exp(x - x.max()))),
        lambda x: (jnp.maximum(x, 0) ** 1.5).sum(),
        lambda x: jnp.arcsin(x).sum() + jnp.sqrt(1 - x**2).sum(),
        lambda x: jnp.sqrt(1 + (jnp.sin(x) * jnp.cos(x)) ** 3).sum(),
        lambda x: jnp.sqrt(jnp.abs(x) ** -2).sum(),
    ],
    ids=range(13),
)
def test_of_values_that_may_not_get_where_a_derivative_is_infinite_nothing_is_said(fun):
    assert not codes(fun, X) & {"LOX606", "LOX607"}


def optax_norm(x):
    return jnp.sqrt(jnp.maximum(jnp.sum(x**2), 1e-9))


def test_ends_are_seen_through_calls_and_changes_of_shape():
    @jax.jit
    def squares(x):
        return (x**2)[:, None]

    assert codes(lambda x: jnp.sqrt(squares(x).T.reshape(-1)).sum(), X) == {"LOX606"}
    assert codes(lambda x: jnp.sqrt(x @ x), X) == {"LOX606"}
    assert codes(lambda x: jnp.arctanh(jnp.clip(x, -1, 1)).sum(), X) == {"LOX606"}
    assert codes(lambda x: jnp.log(1 - jax.nn.sigmoid(x)).sum(), X) == {"LOX606", "LOX814"}


@pytest.mark.parametrize("condition", ["x > 0", "0 < x", "~(x <= 0)", "(x > 0) & (x < 9)", "x >= 1e-6", "x != 0"])
def test_a_guard_is_known_by_what_it_keeps_out(condition):
    def loss(x):
        return jnp.where(eval(condition), jnp.log(x), 0.0).sum()

    def turned(x):
        return jnp.where(~(eval(condition)), 0.0, jnp.log(x)).sum()

    assert codes(loss, X) == codes(turned, X) == {"LOX607"}


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.where(x < 1, x, jnp.sqrt(x)),
        lambda x: jnp.where(x - 1 > 0, jnp.log(x - 1), 0.0),
        lambda x: jnp.where(2 > x, jnp.sqrt(4 - 2 * x), 0.0),
        lambda x: jnp.where(jnp.abs(x) < 1, jnp.sqrt(1 - x**2), 0.0),
        lambda x: jnp.where(x * x < 0.5, jnp.arcsin(x), x),
        lambda x: (lambda y: jnp.where(y > 3, jnp.log(y), 0.0))(jnp.maximum(x, 0)),
    ],
)
def test_a_guard_may_compare_another_number_or_a_function_of_the_operand(fun):
    assert codes(lambda x: fun(x).sum(), X) == {"LOX607"}


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 0.4),
        lambda x: jnp.where(x > 1, jnp.sqrt(x + 1), x),
        lambda x: jnp.where(x < 5, jnp.sqrt(x), 0.0),
        lambda x: (lambda y: jnp.where(y > 3, jnp.log(y), 0.0))(jax.nn.relu(x)),
        lambda x: jnp.where(jnp.abs(x) > 2, 1 / x, 0.5),
    ],
)
def test_a_condition_far_from_what_is_infinite_is_no_guard(fun):
    assert codes(lambda x: fun(x).sum(), X) == set()


@pytest.mark.parametrize("condition", ["x >= 0", "x > 5", "jnp.roll(x, 1) > 0", "(x > 0) | (x < -9)"])
def test_a_condition_on_something_else_is_no_guard(condition):
    assert codes(lambda x: jnp.where(eval(condition), jnp.log(x), 0.0).sum(), X) == set()


def test_a_choice_of_nan_hides_nothing():
    count = jax.ShapeDtypeStruct((), jnp.int32)
    assert codes(lambda x, n: jnp.where(n > 0, jnp.sum(x) / n, jnp.nan), X, count) == set()
    assert codes(lambda x, n: jnp.where(n > 0, jnp.sum(x) / n, 0.0), X, count) == {"LOX607"}


def ruled(primal, backward):
    fun = jax.custom_vjp(primal)
    fun.defvjp(lambda *args: (primal(*args), args), backward)
    return fun


def test_a_rule_is_not_run_where_its_function_or_the_rule_does_more_than_compute():
    ran = []

    def callback(x):
        ran.append(x)
        return x

    def hosted(x):
        return 2 * jax.pure_callback(callback, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def logged(kept, bar):
        jax.debug.callback(ran.append, bar[0])
        return (3 * bar,)

    assert codes(ruled(hosted, lambda kept, bar: (3 * bar,)), X, differentiate=None) == set()
    assert codes(ruled(lambda x: 2 * x, logged), X, differentiate=None) == set()
    assert not ran


def test_a_log_in_a_rule_is_not_made():
    def primal(x):
        return 2 * x

    def backward(kept, bar):
        lox.log({"bar": bar[0]})
        return (3 * bar,)

    fun = ruled(primal, backward)
    _, logs = lox.spool(lambda: codes(fun, X, differentiate=None))()
    assert not logs


def test_a_rule_of_a_library_is_not_run():
    source = "import jax\nran = []\n@jax.custom_jvp\ndef double(x):\n    return 2 * x\n"
    source += "@double.defjvp\ndef rule(p, t):\n    ran.append(1)\n    return 2 * p[0], 3 * t[0]\n"
    for file, expected in (("/a/site-packages/library.py", set()), ("/a/program.py", {"LOX608"})):
        names = {}
        exec(compile(source, file, "exec"), names)
        assert codes(names["double"], X, differentiate=None) == expected
        assert bool(names["ran"]) is bool(expected)


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x, y, z: (z - jnp.tanh(x @ w) - 0.9 * jnp.tanh(y @ w)) ** 2,
        lambda w, x, y, z: (z + jnp.tanh(x @ w) + 0.9 * jnp.tanh(y @ w)) ** 2,
        lambda w, x, y, z: (jnp.tanh(x @ w) - 0.5 * jnp.tanh(y @ w) - z) ** 2,
        lambda w, x, y, z: ((z - jnp.tanh(x @ w))[1:] - 0.9 * (z - jnp.tanh(x @ w))[:-1]) ** 2,
        lambda w, x, y, z: (jnp.tanh(x @ w) - (0.95 * z + 0.05 * jnp.tanh(x @ w))) ** 2,
        lambda w, x, y, z: (jnp.tanh(x @ w) - 0.9 * jax.lax.stop_gradient(jnp.tanh(y @ w)) - z) ** 2,
        lambda w, x, y, z: jax.nn.log_softmax(x @ w) * (y @ w),
        lambda w, x, y, z: jax.nn.log_softmax(x @ w) * (z - jax.nn.softmax(x @ w)),
        lambda w, x, y, z: jax.nn.logsumexp(x @ w) * (z - y @ w),
        lambda w, x, y, z: jnp.exp(jnp.tanh(x @ w) - jnp.tanh(y @ w)),
    ],
    ids=range(10),
)
def test_errors_and_products_that_look_like_those_of_reinforcement_learning_are_not_reported(loss):
    wide = jax.ShapeDtypeStruct((8, 3), jnp.float32)
    args = X, wide, wide, jax.ShapeDtypeStruct((8,), jnp.float32)
    assert codes(lambda w, x, y, z: loss(w, x, y, z).mean(), *args, differentiate="w") == set()


def test_rules_are_compared_with_their_functions_where_one_asks_for_it():
    def loops(x):
        return lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x)

    def endless(x):
        return lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    def found(primal, backward, size=3):
        report = lox.audit(ruled(primal, backward), check_rules=True)(jax.ShapeDtypeStruct((size,), jnp.float32))
        return [each.severity for each in report.at_least("info") if each.code == "LOX615"]

    def doubled(kept, bar):
        return (2 * bar,)

    assert found(lambda x: jnp.sin(x), lambda kept, bar: (bar * jnp.cos(kept[0]),)) == []
    assert found(loops, lambda kept, bar: jax.vjp(loops, *kept)[1](bar)) == []
    assert found(lambda x: jnp.sin(x), doubled, 5000) == found(loops, doubled) == ["error"]
    assert found(lambda x: jnp.round(x), doubled) == ["warning"]
    assert found(lambda x: x, lambda kept, bar: (-bar,)) == found(endless, doubled) == ["info"]
    assert found(lambda x: jnp.sin(x), doubled, 20_000) == ["info"]


def test_a_rule_of_integers_is_not_compared():
    @jax.custom_jvp
    def double(n):
        return 2 * n

    double.defjvp(lambda primals, tangents: (double(*primals), tangents[0]))
    report = lox.audit(double, check_rules=True)(jnp.arange(3))
    (finding,) = [each for each in report.at_least("info") if each.code == "LOX615"]
    assert finding.severity == "info" and "it takes no real numbers" in finding.message
    assert "LOX615" not in {each.code for each in report.verified}


def test_rules_with_side_effects_are_not_compared():
    ran = []

    def logged(kept, bar):
        jax.debug.callback(ran.append, bar[0])
        return (3 * bar,)

    report = lox.audit(ruled(lambda x: 2 * x, logged), check_rules=True)(X)
    assert [each.severity for each in report.at_least("info") if each.code == "LOX615"] == ["info"]
    assert not ran


def test_a_rule_that_needs_what_is_around_it_is_left_alone():
    def outer(x, scale):
        @jax.custom_jvp
        def scaled(x):
            return 2 * x

        @scaled.defjvp
        def rule(primals, tangents):
            return scaled(*primals), scale * tangents[0]

        return jnp.sum(scaled(x))

    assert codes(outer, X, jax.ShapeDtypeStruct((), jnp.float32)) == set()
    named = ruled(lambda x: 2 * x, lambda kept, bar: (lax.psum(bar, "shards"),))
    mesh, spec = jax.sharding.Mesh(jax.devices()[:1], ("shards",)), jax.P("shards")
    sharded = jax.shard_map(named, mesh=mesh, in_specs=spec, out_specs=spec)
    assert codes(sharded, X, differentiate=None) == set()


def test_a_rule_of_a_function_that_is_too_large_or_loops_is_not_tried():
    def loops(x):
        return lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x)

    large = jax.ShapeDtypeStruct((5000,), jnp.float32)
    wrong = ruled(lambda x: jnp.sin(x), lambda kept, bar: (bar * 2,))
    assert codes(wrong, X, differentiate=None) == {"LOX608"}
    assert codes(wrong, large, differentiate=None) == set()
    assert codes(ruled(loops, lambda kept, bar: (bar * 2,)), X, differentiate=None) == set()


@pytest.mark.parametrize(
    ("primal", "backward"),
    [
        (lambda x, y: x * y, lambda kept, bar: (bar * kept[1], bar * kept[0])),
        (lambda x, y: x * y, lambda kept, bar: (bar * kept[1], None)),
        (lambda x, y: jnp.sign(x) * y * 2, lambda kept, bar: (2 * bar * kept[1], 2 * bar * kept[0])),
        (lambda x, y: jnp.where(x >= x.max(), x, 0.0) + y, lambda kept, bar: (bar, bar)),
        (lambda x, y: (x, y)[0], lambda kept, bar: (0.1 * bar, bar * 0)),
        (lambda x, y: jnp.linalg.norm(x) * y, lambda kept, bar: ((bar * kept[1]).sum() * kept[0], None)),
    ],
    ids=["right", "by one argument", "estimator", "largest", "identity", "for vectors of length one"],
)
def test_rules_that_are_right_or_meant_so_are_not_reported(primal, backward):
    wide = jax.ShapeDtypeStruct((16,), jnp.float32)
    assert codes(ruled(primal, backward), wide, wide, differentiate=None) == set()


def test_what_calls_contain_beyond_a_number_of_operations_is_taken_as_differentiable(monkeypatch):
    monkeypatch.setattr("lox._audit._dependence._MOST", 0)
    assert codes(lambda x: jnp.sum(jax.jit(lax.stop_gradient)(x)), X) == set()


def test_odd_arguments_are_passed_over():
    def loss(x, key, ref):
        return jnp.sum(x * jax.random.normal(key, x.shape) + ref[...])

    def run(x, key):
        return loss(x, key, jax.new_ref(jnp.zeros(3)))

    assert codes(run, X, jax.eval_shape(lambda: jax.random.key(0))) == set()


def codes_of(fun):
    report = lox.audit(fun, differentiate="x")(X)
    return {finding.code for finding in (*report.issues, *report.warnings)}


@pytest.mark.parametrize("fun", [jax.nn.sigmoid, jax.nn.softmax, jnp.exp])
def test_a_bound_at_the_end_of_a_range_that_is_only_approached_clips_nothing(fun):
    assert codes_of(lambda x: jnp.sqrt(fun(x)).sum()) == set()
    assert codes_of(lambda x: jnp.sqrt(jnp.maximum(fun(x), 0)).sum()) == set()
    assert codes_of(lambda x: jnp.sqrt(jnp.maximum(x, 0)).sum()) == {"LOX606"}


def test_a_product_with_a_negative_number_is_zero_where_the_other_end_is_reached():
    assert codes_of(lambda x: jnp.sqrt(-3.0 * jnp.minimum(x, 0)).sum()) == {"LOX606"}
    assert codes_of(lambda x: jnp.sqrt(3.0 * jnp.maximum(x, 0)).sum()) == {"LOX606"}


def test_a_logarithm_of_a_softmax_is_told_once():
    report = lox.audit(lambda x: jnp.log(jax.nn.softmax(x)).sum(), differentiate="x")(jnp.ones(8))
    assert [finding.code for finding in report.warnings] == ["LOX812"]


def found_in(fun, *args):
    report = lox.audit(fun)(*args)
    return [(finding.code, finding.line) for finding in (*report.issues, *report.warnings)]


def line_of(fun, number):
    return inspect.getsourcelines(inspect.unwrap(fun))[1] + number


def rounded_loss(w, x):
    return jnp.sum(jnp.round(w * x))


def in_a_scan(w, x):
    return lax.scan(lambda w, x: (w - jax.grad(rounded_loss)(w, x), None), w, jnp.stack([x, x]))[0]


ROUNDED = {
    "jit": jax.jit(lambda w, x: w - jax.grad(rounded_loss)(w, x)),
    "vmap": lambda w, x: jax.vmap(jax.grad(rounded_loss), (None, 0))(w, jnp.stack([x, x])),
    "aux": lambda w, x: jax.value_and_grad(lambda w: (rounded_loss(w, x), "a text"), has_aux=True)(w)[1],
    "argnums": lambda w, x: jax.grad(rounded_loss, argnums=1)(x, w),
    "scan": in_a_scan,
    "checkpoint": lambda w, x: jax.grad(jax.checkpoint(rounded_loss))(w, x),
    "cond": lambda w, x: lax.cond(x[0] > 0, jax.grad(rounded_loss), lambda w, x: w, w, x),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_a_program_differentiates_is_checked_at_each_audit(name):
    for _ in range(2):  # JAX traces a jitted function once.
        assert found_in(ROUNDED[name], X, X) == [("LOX602", line_of(rounded_loss, 1))]


def test_what_a_gradient_is_taken_by_has_its_name():
    def loss(x, params):
        return jnp.sum(jnp.sign(params["w"]) * x)

    [finding] = lox.audit(lambda x, w: jax.grad(loss, argnums=1)(x, {"w": w}))(X, X).issues
    assert "by 'params/w' is zero" in finding.message


def test_a_loss_that_ignores_what_it_is_differentiated_by_is_reported_where_the_gradient_is_taken():
    def update(w, x):
        gradient = jax.grad(lambda _: jnp.sum((w * x) ** 2))(w)
        return w - gradient

    assert found_in(update, X, X) == [("LOX603", line_of(update, 1))]


def test_a_loss_that_can_be_traced_once_or_keeps_what_it_computes_is_audited_as_before():
    once, kept = iter([1.0]), []

    def used_up(w):
        return w - jax.grad(lambda w: jnp.sum(w**2) * next(once))(w)

    def leaking(w, x):
        kept.clear()
        gradient = jax.grad(lambda w: jnp.sum(jnp.round(w)) * (kept.append(x * 2) or 1))(w)
        return w - gradient + kept[0]

    assert found_in(used_up, X) == []
    assert {code for code, _ in found_in(leaking, X, X)} <= {"LOX413", "LOX414", "LOX602"}


def test_a_gradient_through_memory_is_not_followed():
    def update(w, x):
        def loss(w):
            ref = jax.new_ref(jnp.zeros(3))
            lax.fori_loop(0, 3, lambda i, _: ref.__setitem__(..., ref[...] * 0.5 + w * x), None)
            return (ref[...] ** 2).sum()

        return w - jax.grad(loss)(w)

    assert found_in(update, X, X) == []


def test_jacobians_and_gradients_without_an_audit_are_as_before():
    assert found_in(lambda w: jax.jacrev(jnp.round)(w), X) == []
    assert jax.grad(lambda w: jnp.sum(w**2))(jnp.ones(3)).tolist() == [2, 2, 2]


def places_of(case):
    names = case.options["differentiate"]
    names = (names,) if isinstance(names, str) else names
    return tuple(list(inspect.signature(case.fun).parameters).index(name) for name in names)


def descent(fun, places):
    """A program that follows the derivative of a function by some of its arguments for some iterations."""

    def run(*args):
        def iteration(moved, _):
            given = dict(enumerate(args)) | dict(zip(places, moved, strict=True))
            loss, slope = jax.value_and_grad(fun, places)(*given.values())
            return jax.tree.map(lambda x, by: (x - 0.1 * by).astype(x.dtype), moved, slope), loss

        return lax.scan(iteration, tuple(args[place] for place in places), length=3)

    return run


IN_BRANCHES = {"the_length_of_a_vector_in_a_branch_that_takes_zero", "a_root_in_a_branch_of_something_else"}
"""Programs whose derivatives are in branches, of which it is not said if a program takes them itself."""
INFINITE = [
    case
    for case in (*of("LOX606", True), *of("LOX606", False), *of("LOX607", True), *of("LOX607", False))
    if case.id not in IN_BRANCHES
]


@pytest.mark.parametrize("case", INFINITE)
def test_of_a_derivative_that_a_program_takes_itself_the_same_is_said(case):
    asked = case.found & {"LOX606", "LOX607"}
    for within in (descent(case.fun, places_of(case)), descent(jax.jit(case.fun), places_of(case))):
        assert codes(within, *case.args, differentiate=()) & {"LOX606", "LOX607"} == asked


def test_functions_of_jax_scipy_guard_their_own_poles():
    def update(x):
        return x - jax.grad(lambda x: jax.scipy.stats.gamma.cdf(x, 2.0).sum())(x)

    assert found_in(update, X) == []


@pytest.mark.parametrize("transform", [jax.checkpoint, lambda fun: lambda *x: jax.vmap(fun)(*x).sum()])
def test_derivatives_that_a_program_takes_are_seen_through_transformations(transform):
    def guarded(x):
        return jnp.where(x > 0, jnp.log(x), 0.0).sum()

    def safe(x):
        return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), 0.0).sum()

    x = jax.ShapeDtypeStruct((4, 3), jnp.float32)
    assert codes(jax.grad(transform(guarded)), x, differentiate=()) == {"LOX607"}
    assert codes(jax.grad(transform(lambda x: jnp.linalg.norm(x))), x, differentiate=()) == {"LOX606"}
    assert codes(jax.grad(transform(safe)), x, differentiate=()) == set()


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: (jnp.mean((x * w) ** 2), jnp.linalg.norm(w)),
        lambda w, x: (jnp.mean((x * w) ** 2 / lax.stop_gradient(jnp.linalg.norm(w * x))), None),
        lambda w, x: (jnp.mean(w * jnp.sqrt(jnp.sum(x**2))), None),
        lambda w, x: (jnp.mean(w * (x - x.mean()) / (x.std() + 1e-6)), None),
        lambda w, x: (jnp.mean(w * jnp.where(x > 0, jnp.log(x), 0.0)), None),
        lambda w, x: (jnp.mean(jnp.where(x != 0, jnp.where(x != 0, w, 0.0) / x, 0.0)), None),
        lambda w, x: (jnp.mean(jnp.arcsin(0.5 * jnp.tanh(w))), None),
    ],
    ids=range(7),
)
def test_what_a_program_does_not_differentiate_is_not_looked_at(loss):
    def update(w, x):
        slope, aux = jax.grad(loss, has_aux=True)(w, x)
        return w - slope / jnp.linalg.norm(slope), aux

    assert codes(update, X, X, differentiate=()) == set()
