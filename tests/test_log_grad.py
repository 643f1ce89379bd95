"""`lox.log_grad`: the cotangent of a value is logged where a backward pass computes it, and nothing else changes."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from reference import assert_array

import lox

P = PartitionSpec
W = 0.7
WS = np.float32([0.3, 0.7])
STEPS = 4


def watch(key, value, **steps):
    return lox.log_grad({key: value}, **steps)[key]


def chain(w, watch=watch):
    def step(c, i):
        return jnp.sin(watch("c", c, step=i)) * w, None

    return lax.scan(step, w, jnp.arange(STEPS))[0]


def plain(w):
    return chain(w, lambda key, value, **steps: value)


def cotangents(w):
    """The cotangents of what `chain` watches, in the order of the backward pass, by the chain rule."""
    carried, found, bar = [w], [], 1.0
    for _ in range(STEPS):
        carried.append(np.sin(carried[-1]) * w)
    for c in carried[-2::-1]:
        bar = bar * np.cos(c) * w
        found.append(bar)
    return np.float32(found)


GRADIENTS = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "grad of checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "grad of jit of checkpoint of jit": lambda f: jax.grad(jax.jit(jax.checkpoint(jax.jit(f)))),
    "jacrev": jax.jacrev,
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0)[0],
    "value_and_grad": lambda f: lambda x: jax.value_and_grad(f)(x)[1],
    "linear_transpose of linearize": lambda f: lambda x: jax.linear_transpose(jax.linearize(f, x)[1], x)(1.0)[0],
}


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_the_cotangents_are_those_of_the_chain_rule_in_the_order_of_the_backward_pass(gradient):
    slope, logs = lox.spool(GRADIENTS[gradient](chain))(W)
    assert_array(slope, GRADIENTS[gradient](plain)(W), 1e-5)
    events = logs["grad/c"].reshape(STEPS)  # jacrev maps over a basis of one vector.
    np.testing.assert_allclose(events, cotangents(W), rtol=1e-5)
    assert logs.steps["step"]["grad/c"].reshape(STEPS).tolist() == [3, 2, 1, 0]


@pytest.mark.covering(1)
@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize("inside", [True, False], ids=["grad of tap", "tap of grad"])
@pytest.mark.parametrize("gradient", [name for name in GRADIENTS if name != "jacrev"])
def test_a_tap_hears_of_them_from_within_and_from_around_the_gradient(gradient, inside, buffer):
    arrived = []
    tap = functools.partial(lox.tap, callback=arrived.append, buffer=buffer)
    transform = GRADIENTS[gradient]
    slope = transform(tap(chain))(W) if inside else tap(transform(chain))(W)
    lox.flush()
    assert_array(slope, transform(plain)(W), 1e-5)
    np.testing.assert_allclose(np.concatenate([logs["grad/c"] for logs in arrived]), cotangents(W), rtol=1e-5)
    assert [int(step) for logs in arrived for step in logs.steps["step"]["grad/c"]] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "make",
    [
        lambda f: lox.spool(jax.vmap(jax.grad(f))),
        lambda f: lox.spool(jax.grad(lambda ws: jax.vmap(f)(ws).sum())),
        lambda f: lox.spool(jax.jit(jax.grad(lambda ws: jax.jit(jax.vmap(f))(ws).sum()))),
        lambda f: lox.spool(jax.grad(lambda ws: jax.checkpoint(jax.vmap(f))(ws).sum())),
    ],
)
def test_each_lane_has_its_own(make):
    _, logs = make(chain)(WS)
    np.testing.assert_allclose(logs["grad/c"], np.stack([cotangents(w) for w in WS], 1), rtol=1e-5)
    assert logs.steps["step"]["grad/c"].tolist() == [[3, 3], [2, 2], [1, 1], [0, 0]]


def test_what_all_lanes_share_has_one_cotangent():
    xs = jnp.arange(3.0)
    f = lambda w, x: watch("w", w) * x  # noqa: E731
    _, logs = lox.spool(jax.grad(lambda w: jax.vmap(f, (None, 0))(w, xs).sum()))(2.0)
    assert_array(logs["grad/w"], np.float32([3]))
    _, logs = lox.spool(jax.vmap(jax.grad(f), (None, 0)))(2.0, xs)
    assert_array(logs["grad/w"], np.float32([[0, 1, 2]]))


def test_lanes_log_nothing_of_branches_they_do_not_take():
    def f(x, large):
        return lax.cond(large, lambda x: watch("x", x) ** 2, jnp.sin, x)

    xs, large = jnp.float32([1, 2, 3]), jnp.array([True, False, True])
    for make in (
        lambda f: jax.vmap(jax.grad(f)),
        lambda f: jax.grad(lambda xs, large: jax.vmap(f)(xs, large).sum()),
        lambda f: jax.jit(jax.grad(lambda xs, large: jax.vmap(f)(xs, large).sum())),
    ):
        _, logs = lox.spool(make(f), unify=True)(xs, large)
        assert_array(logs.mask["grad/x"], np.array([[True, False, True]]))
        np.testing.assert_allclose(logs.valid("grad/x"), [2, 6])
        with pytest.raises(lox.StructureError, match=r"test_log_grad\.py"):
            lox.spool(make(f))(xs, large)
    arrived = []
    jax.grad(lambda xs, large: jax.vmap(lox.tap(f, arrived.append))(xs, large).sum())(xs, large)
    lox.flush()
    (logs,) = arrived
    assert_array(logs.mask["grad/x"], np.array([[True, False, True]]))
    assert_array(logs["grad/x"], np.float32([[2, np.nan, 6]]))


def test_a_branch_that_is_not_taken_sends_nothing():
    arrived = []
    f = lox.tap(lambda x: lax.cond(x > 0, lambda x: watch("x", x) ** 2, jnp.sin, x), arrived.append)
    for x in (-1.0, 3.0):
        jax.jit(jax.grad(f))(x)
    lox.flush()
    assert [logs["grad/x"].tolist() for logs in arrived] == [[6.0]]


@pytest.mark.parametrize(
    "run",
    [
        lambda f: f(W),
        lambda f: jax.jit(f)(W),
        lambda f: jax.jvp(f, (W,), (1.0,)),
        lambda f: jax.jacfwd(f)(W),
        lambda f: jax.linearize(f, W)[1](1.0),
        lambda f: jax.vmap(f)(WS),
        lambda f: jax.grad(lambda x: x + lax.stop_gradient(f(x)))(W),
        lambda f: jax.grad(lambda x: f(lax.stop_gradient(x)) + x)(W),
    ],
)
def test_nothing_is_logged_where_nothing_comes_back_to_the_value(run):
    results, logs = lox.spool(lambda: run(chain))()
    assert not logs.data
    np.testing.assert_allclose(results, run(plain), rtol=1e-6)


@pytest.mark.parametrize(
    "transform",
    [
        jax.hessian,
        lambda f: jax.grad(jax.grad(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
        lambda f: jax.jit(jax.grad(lambda x: jax.jvp(f, (x,), (1.0,))[1])),
        lambda f: jax.grad(jax.checkpoint(jax.grad(f))),
    ],
)
def test_second_derivatives_stay_what_they_are(transform):
    assert_array(lox.spool(transform(chain))(W)[0], transform(plain)(W), 1e-5)


def test_a_derivative_of_a_derivative_logs_for_each_backward_pass():
    f = lambda x: watch("x", x) ** 3  # noqa: E731
    _, logs = lox.spool(jax.grad(jax.grad(f)))(2.0)
    assert logs["grad/x"].tolist() == [12.0, 12.0]  # 3x^2, then 6x
    _, logs = lox.spool(jax.grad(lambda x: jax.jvp(f, (x,), (1.0,))[1]))(2.0)
    assert logs["grad/x"].tolist() == [12.0]  # 6x, and nothing for the tangent
    _, logs = lox.spool(jax.hessian(f))(2.0)
    assert logs["grad/x"].reshape(-1).tolist() == [12.0]


def test_values_that_do_not_depend_on_a_batch_stay_so():
    out, _ = lox.spool(jax.vmap(lambda x, y: (watch("x", x), y), in_axes=(None, 0), out_axes=(None, 0)))(
        jnp.float32(1), WS
    )
    assert out[0].shape == ()


def test_a_backward_pass_that_outlives_the_handler_does_not_log():
    (_, pull_back), _ = lox.spool(lambda x: jax.vjp(chain, x))(W)
    assert not jax.make_jaxpr(pull_back)(1.0).effects


def test_what_is_logged_is_no_weaker_typed_than_a_log():
    _, logs = lox.spool(jax.grad(lambda x: 2 * watch("x", x)))(1.0)
    assert logs["grad/x"].tolist() == [2.0] and not logs["grad/x"].weak_type


def test_without_a_handler_nothing_is_traced():
    data = {"x": object()}
    assert lox.log_grad(data) is data
    assert str(jax.make_jaxpr(jax.grad(chain))(W)) == str(jax.make_jaxpr(jax.grad(plain))(W))


@pytest.mark.parametrize(
    "data",
    [
        {"a": {"b": jnp.float32(2)}, "c": [jnp.float32(3), jnp.int32(1)]},
        collections.OrderedDict(c=(jnp.float32(3), 1.5), a=collections.defaultdict(float, b=jnp.float32(2))),
    ],
)
def test_the_data_comes_back_as_it_was(data):
    def f(data):
        new = lox.log_grad(data)
        assert jax.tree.structure(new) == jax.tree.structure(data)
        assert type(jax.tree.leaves(new)[-1]) is type(jax.tree.leaves(data)[-1])
        return new["a"]["b"] * new["c"][0]

    _, logs = lox.spool(jax.grad(f, allow_int=True))(data)
    assert {key: value.tolist() for key, value in logs.items()} == {"grad/a/b": [3.0], "grad/c/0": [2.0]}


def test_it_is_selected_tagged_prefixed_and_stripped_as_logs_are():
    def f(x):
        y = lox.log_grad({"y": 2 * x}, tags="t", prefix="d/", i=3)["y"]
        return lox.log_grad({"z": 3 * y})["z"]

    def keys(handler):
        return sorted(lox.spool(handler)(1.0)[1])

    assert keys(jax.grad(f)) == ["d/y", "grad/z"]
    assert keys(jax.grad(lox.strip(f, tags="t"))) == ["grad/z"]
    assert keys(jax.grad(lox.keep(f, tags="t"))) == ["d/y"]
    assert keys(lox.strip(jax.grad(f), argnames="grad/z")) == ["d/y"]
    assert lox.spool(jax.grad(f), tags="t")(1.0)[1].steps["i"]["d/y"].tolist() == [3]


def test_a_spool_within_the_gradient_leaves_it_to_one_around():
    def f(x):
        return watch("x", lox.log({"y": x**2})["y"])

    def loss(x):
        out, logs = lox.spool(f, argnames="y")(x)
        return out + 0 * logs["y"].sum()

    _, logs = lox.spool(jax.grad(loss))(3.0)
    assert logs["grad/x"].tolist() == [1.0]
    assert jax.jit(jax.grad(loss))(3.0) == 6


def test_shards_log_their_own():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    f = jax.shard_map(lambda x: watch("x", x) ** 2, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    _, logs = lox.spool(jax.grad(lambda x: f(x).sum()))(jnp.arange(8.0))
    assert_array(logs["grad/x"], 2 * np.arange(8, dtype=np.float32).reshape(1, 4, 2))
    arrived = []
    jax.grad(lambda x: lox.tap(f, arrived.append)(x).sum())(jnp.arange(8.0))
    lox.flush()
    seen = sorted(value for logs in arrived for value in logs["grad/x"][logs.mask["grad/x"]].ravel().tolist())
    assert seen == [2.0 * i for i in range(8)]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([1.0], "lox.log_grad takes a mapping from key to arrays"),
        ({"x": None}, "lox.log_grad got None for key 'x'"),
        ({"x": "text"}, "lox.log_grad takes array-likes, got 'text' of type str for key 'grad/x'"),
        ({1: 1.0}, "lox.log_grad takes string keys"),
    ],
)
def test_data_that_is_wrong(data, text):
    with pytest.raises(lox.LogDataError) as raised:
        lox.spool(lambda: lox.log_grad(data))()
    assert text in str(raised.value) and "test_log_grad.py" in str(raised.value)


def test_what_all_lanes_share_is_an_event_of_each_where_they_have_other_counters():
    def f(w):
        factors = jnp.arange(3.0)
        return jax.vmap(lambda x, i: x * lox.log_grad({"w": w}, step=i)["w"])(factors, jnp.arange(3)).sum()

    _, logs = lox.spool(jax.grad(f))(2.0)
    assert_array(logs["grad/w"], [[3.0, 3.0, 3.0]])  # The sum over the batch.
    assert_array(logs.steps["step"]["grad/w"], np.arange(3, dtype=np.int32)[None])


def test_a_value_whose_cotangent_a_rule_leaves_out_logs_nothing_and_gets_no_cotangent():
    @jax.custom_vjp
    def blocked(x):
        return 2 * x

    blocked.defvjp(lambda x: (2 * x, None), lambda kept, bar: (None,))
    found, logs = lox.spool(jax.grad(lambda w: blocked(watch("w", 3 * w)) + 3 * w))(2.0)
    assert_array(found, np.float32(3))
    assert not logs


def test_cotangents_of_complex_values_are_logged():
    def f(z):
        return jnp.real(watch("z", z) ** 2)

    expected = jax.grad(f)(jnp.complex64(1 + 2j))
    found, logs = lox.spool(jax.grad(f))(jnp.complex64(1 + 2j))
    assert_array(logs["grad/z"], [expected])
    assert_array(found, expected)
