"""Other people's code logs too: flax, equinox, optax and jax-dataclasses, under their own transformations."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import jax_dataclasses as jdc
import numpy as np
import optax
import pytest
from flax import nnx
from flax.core import FrozenDict
from jax import lax
from reference import Journal, assert_array, assert_logs

import lox

RTOL = 1e-5
X = np.array([[0.5, -1.0], [2.0, 0.25]], np.float32)


# -- flax linen ----------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        x = nn.tanh(nn.Dense(2, name="dense")(x))
        lox.log({"constant": 2.0})
        lox.log({"norm": jnp.sum(x * x), "x": x})
        return x, jnp.sum(x)


class Stack(nn.Module):
    remat: bool = False
    depth: int = 3

    @nn.compact
    def __call__(self, x):
        layer = nn.remat(Layer) if self.remat else Layer
        layers = nn.scan(layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=self.depth)(
            name="layers"
        )
        x, sums = layers(x, None)
        lox.log({"sums": sums})
        return x


def plain_stack(log, kernels, biases, x):
    sums = []
    for kernel, bias in zip(kernels, biases, strict=True):
        x = np.tanh(x @ kernel + bias)
        log({"norm": np.sum(x * x), "x": x, "constant": 2.0})
        sums.append(np.sum(x))
    log({"sums": np.array(sums, np.float32)})
    return x


@pytest.fixture(scope="module", params=[False, True], ids=["scan", "scan of remat"])
def stack(request):
    model = Stack(request.param)
    params = model.init(jax.random.key(0), X)
    dense = params["params"]["layers"]["dense"]
    journal = Journal()
    out = plain_stack(journal.log, np.asarray(dense["kernel"]), np.asarray(dense["bias"]), X)
    return model, params, out, journal.events


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_linen_scan_over_layers_logs_each_layer(stack, transform):
    model, params, out, events = stack
    for apply in (lox.spool(transform(model.apply)), transform(lox.spool(model.apply))):
        found, logs = apply(params, X)
        np.testing.assert_allclose(found, out, RTOL)
        assert_logs(logs, events, rtol=RTOL)
    np.testing.assert_allclose(model.apply(params, X), out, RTOL)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_linen_scan_over_layers_logs_each_layer_once_under_grad(stack, transform):
    model, params, out, events = stack

    def loss(params):
        loss = jnp.sum(model.apply(params, X) ** 2)
        lox.log({"loss": loss})
        return loss

    expected = jax.grad(lambda params: jnp.sum(model.apply(params, X) ** 2))(params)
    total = {"loss": [np.sum(out**2)]}
    for g in (lox.spool(transform(jax.grad(loss))), transform(jax.grad(lox.spool(loss), has_aux=True))):
        found, logs = g(params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), found, expected)
        assert_logs(logs, events | total, rtol=RTOL)


def test_a_linen_model_is_initialized_under_a_handler_as_without_one(stack):
    model, params, _, _ = stack
    found, logs = lox.spool(model.init)(jax.random.key(0), X)
    jax.tree.map(np.testing.assert_array_equal, found, params)
    assert "norm" in logs


def test_a_batch_of_linen_models_logs_each_of_them(stack):
    model, params, _, events = stack
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, 0 * leaf]), params)
    _, logs = lox.spool(jax.vmap(model.apply, in_axes=(0, None)))(both, X)
    assert logs["norm"].shape == (3, 2)
    np.testing.assert_allclose(logs["norm"][:, 0], events["norm"], RTOL)
    assert_array(logs["norm"][:, 1], [0.0, 0.0, 0.0])


class Normalized(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(x)
        lox.log({"mean": x.mean()})
        return nn.Dropout(0.5, deterministic=not train)(x)


def test_linen_state_and_random_numbers_are_those_without_a_handler():
    model = Normalized()
    variables = model.init(jax.random.key(0), X, False)

    def apply(train):
        return model.apply(variables, X, train, mutable=["batch_stats"], rngs={"dropout": jax.random.key(1)})

    for train in (False, True):
        expected = apply(train)
        found, logs = lox.spool(apply)(train)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert logs["mean"].shape == (1,)


# -- flax nnx ------------------------------------------------------------------------------------------------------


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(2, 2, rngs=rngs)
        self.second = nnx.Linear(2, 1, rngs=rngs)
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        x = nnx.relu(self.first(x))
        lox.log({"hidden": x}, tags="layer")
        return self.second(x)


def plain_net(model, x):
    hidden = np.maximum(x @ np.asarray(model.first.kernel[...]) + np.asarray(model.first.bias[...]), 0)
    return hidden, hidden @ np.asarray(model.second.kernel[...]) + np.asarray(model.second.bias[...])


def test_an_nnx_model_logs_in_its_layers():
    model = Net(nnx.Rngs(0))
    hidden, out = plain_net(model, X)
    found, logs = lox.spool(model)(X)
    np.testing.assert_allclose(found, out, RTOL, 1e-6)
    assert_logs(logs, {"hidden": [hidden]}, rtol=RTOL)
    assert model.calls[...] == 1
    for f in (nnx.jit(lox.spool(lambda model, x: model(x))), lox.spool(nnx.jit(lambda model, x: model(x)))):
        found, logs = f(model, X)
        np.testing.assert_allclose(found, out, RTOL, 1e-6)
        assert_logs(logs, {"hidden": [hidden]}, rtol=RTOL)
    assert model.calls[...] == 3


def test_an_nnx_train_step_logs_loss_and_layers_once():
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def loss_fn(model, x):
        loss = jnp.mean(model(x) ** 2)
        lox.log({"loss": loss})
        return loss

    @nnx.jit
    def train_step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(loss_fn)(model, x)
        optimizer.update(model, grads)
        return loss

    for step in (lox.spool(train_step), nnx.jit(lox.spool(train_step))):
        hidden, out = plain_net(model, X)
        before = np.asarray(model.second.bias[...])
        loss, logs = step(model, optimizer, X)
        np.testing.assert_allclose(loss, np.mean(out**2), RTOL, 1e-6)
        assert_logs(logs, {"hidden": [hidden], "loss": [np.mean(out**2)]}, rtol=RTOL)
        np.testing.assert_allclose(model.second.bias[...], before - 0.1 * 2 * np.mean(out, 0), 1e-4, 1e-6)


# -- equinox -------------------------------------------------------------------------------------------------------


class Affine(eqx.Module):
    weight: jax.Array
    bias: jax.Array
    activation: callable = eqx.field(static=True)

    def __call__(self, x):
        y = self.activation(self.weight @ x + self.bias)
        lox.log({"y": y}, tags="layer")
        return y


@pytest.fixture
def affine():
    return Affine(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([0.5, -0.5]), jnp.tanh)


def plain_affine(x):
    return np.tanh(np.array([[1, 2], [3, 4]], np.float32) @ x + np.array([0.5, -0.5], np.float32))


def test_an_equinox_module_logs_under_filter_jit(affine):
    y = plain_affine(X[0])
    for f in (lox.spool(eqx.filter_jit(affine)), lox.spool(affine)):
        out, logs = f(X[0])
        np.testing.assert_allclose(out, y, RTOL)
        assert_logs(logs, {"y": [y]}, rtol=RTOL)
    out, logs = eqx.filter_jit(lox.spool(lambda model, x: model(x)))(affine, X[0])
    assert_logs(logs, {"y": [y]}, rtol=RTOL)


def test_an_equinox_module_logs_under_filter_vmap(affine):
    ys = np.stack([plain_affine(x) for x in X])

    def mapped(model, x):
        return eqx.filter_vmap(model)(x)

    for f in (lox.spool(eqx.filter_vmap(affine)), lambda x: lox.spool(eqx.filter_jit(mapped))(affine, x)):
        _, logs = f(X)
        assert_logs(logs, {"y": [ys]}, rtol=RTOL)
    _, logs = eqx.filter_jit(lox.spool(mapped))(affine, X)
    assert_logs(logs, {"y": [ys]}, rtol=RTOL)
    _, logs = eqx.filter_vmap(lox.spool(lambda x: affine(x)))(X)
    assert_logs(logs, {"y": ys[:, None]}, rtol=RTOL)


def test_an_equinox_module_logs_under_filter_grad(affine):
    y = plain_affine(X[0])

    def loss(model, x):
        return lox.log({"loss": jnp.sum(model(x))})["loss"]

    slope = (1 - y**2)[:, None] * X[0]
    for f in (
        lox.spool(eqx.filter_grad(loss)),
        lox.spool(eqx.filter_jit(eqx.filter_grad(loss))),
        eqx.filter_grad(lox.spool(loss), has_aux=True),
    ):
        grads, logs = f(affine, X[0])
        np.testing.assert_allclose(grads.weight, slope, 1e-4)
        assert_logs(logs, {"y": [y], "loss": [np.sum(y)]}, rtol=RTOL)


def test_an_equinox_checkpoint_and_while_loop_log(affine):
    def f(model, x):
        def body(x):
            return eqx.filter_checkpoint(model)(x)

        return eqx.internal.while_loop(lambda x: jnp.sum(x) < 10, body, x, max_steps=3, kind="checkpointed")

    _, logs = lox.spool(f, reduce="count")(affine, X[0])
    assert logs["y"].tolist() == [3]


# -- optax ---------------------------------------------------------------------------------------------------------


def logged_updates():
    def update(updates, state, params=None):
        lox.log({"update": updates["w"]}, step=state)
        return updates, state + 1

    return optax.GradientTransformation(lambda params: jnp.int32(0), update)


def plain_training(log, w, steps):
    for step in range(steps):
        loss = float((w - 3) ** 2)
        log({"loss": loss})
        update = 2 * (w - 3)
        log({"update": update}, step=step)
        w = w - 0.125 * update
    return w


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_an_optax_loop_logs_losses_and_updates(transform):
    optimizer = optax.chain(logged_updates(), optax.sgd(0.125))

    def loss_fn(params):
        return lox.log({"loss": (params["w"] - 3.0) ** 2})["loss"]

    def train(params):
        def step(carry, _):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss_fn)(params), state, params)
            return (optax.apply_updates(params, updates), state), None

        return lax.scan(step, (params, optimizer.init(params)), None, length=4)[0][0]

    journal = Journal()
    w = plain_training(journal.log, 1.0, 4)
    params, logs = lox.spool(transform(train))({"w": jnp.float32(1)})
    assert params["w"] == w
    assert_logs(logs, journal.events, steps=journal.steps)
    _, logs = lox.spool(transform(jax.vmap(train)))({"w": jnp.array([1.0, 5.0])})
    other = Journal()
    plain_training(other.log, 5.0, 4)
    both = {key: np.stack([journal.events[key], other.events[key]], 1).astype(np.float32) for key in journal.events}
    assert_logs(logs, both, steps={"step": {"update": [[i, i] for i in range(4)]}})


def test_an_optax_transformation_with_branches_logs_the_updates_that_were_applied():
    optimizer = optax.MultiSteps(optax.chain(logged_updates(), optax.sgd(0.125)), every_k_schedule=2)

    def train(params):
        def step(carry, gradient):
            params, state = carry
            updates, state = optimizer.update({"w": gradient}, state, params)
            return (optax.apply_updates(params, updates), state), None

        return lax.scan(step, (params, optimizer.init(params)), jnp.array([1.0, 3.0, 5.0, 7.0]))[0][0]

    with jax.numpy_dtype_promotion("standard"):  # What optax computes needs it.
        params, logs = lox.spool(train, unify=True)({"w": jnp.float32(0)})
    assert params["w"] == -1.0
    # The mean gradient of each pair.
    assert logs.valid("update").tolist()[-1] == 6.0
    assert 2.0 in logs.valid("update").tolist()


def test_a_line_search_logs_each_evaluation():
    optimizer = optax.lbfgs()

    def value(w):
        return lox.log({"value": jnp.sum((w - 3.0) ** 2)})["value"]

    def train(w):
        state = optimizer.init(w)
        value_and_grad = optax.value_and_grad_from_state(value)
        for _ in range(2):
            loss, grad = value_and_grad(w, state=state)
            updates, state = optimizer.update(grad, state, w, value=loss, grad=grad, value_fn=lox.strip(value))
            w = optax.apply_updates(w, updates)
        return w

    expected = jax.jit(train)(jnp.zeros(2))
    out, logs = lox.spool(jax.jit(train), reduce="first")(jnp.zeros(2))
    np.testing.assert_allclose(out, expected, RTOL)
    assert logs["value"].tolist() == [18.0]


# -- lox.log_grad --------------------------------------------------------------------------------------------------


def test_log_grad_logs_the_gradients_of_networks():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = lox.log_grad({"hidden": nn.Dense(3)(x)})["hidden"]
            return nn.Dense(1)(jnp.tanh(x)).sum()

    network, x = Network(), jnp.ones((2, 4))
    parameters = network.init(jax.random.key(0), x)
    loss = lambda p: network.apply(lox.log_grad({"p": p})["p"], x)  # noqa: E731
    slopes, logs = lox.spool(jax.jit(jax.grad(loss)))(parameters)
    assert logs["grad/hidden"].shape == (1, 2, 3)
    for path, slope in jax.tree_util.tree_leaves_with_path(slopes):
        key = "grad/p/" + jax.tree_util.keystr(path, simple=True, separator="/")
        assert_array(logs[key], slope[None], 1e-6)

    model = eqx.nn.Linear(4, 2, key=jax.random.key(1))

    def of_model(model):
        arrays, rest = eqx.partition(model, eqx.is_array)
        return jax.vmap(eqx.combine(lox.log_grad({"m": arrays})["m"], rest))(x).sum()

    slopes, logs = lox.spool(eqx.filter_grad(of_model))(model)
    assert_array(logs["grad/m/weight"], slopes.weight[None])


def test_log_grad_returns_a_frozen_dict_of_flax_as_it_was():
    data = FrozenDict({"a": FrozenDict({"b": jnp.float32(2)}), "c": (jnp.float32(3), 1.5)})

    def f(data):
        new = lox.log_grad(data)
        assert jax.tree.structure(new) == jax.tree.structure(data)
        return new["a"]["b"] * new["c"][0]

    _, logs = lox.spool(jax.grad(f))(data)
    assert {key: value.tolist() for key, value in logs.items()} == {"grad/a/b": [3.0], "grad/c/0": [2.0]}


# -- jax-dataclasses -----------------------------------------------------------------------------------------------


@jdc.pytree_dataclass
class Descent:
    x: jax.Array
    rate: jdc.Static[float]


def descend(state, _=None):
    lox.log({"x": state.x})
    with jdc.copy_and_mutate(state) as state:
        state.x = state.x - state.rate * 2 * state.x
    return state, None


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_dataclass_that_a_scan_carries_logs_its_fields(transform):
    x, journal = X, Journal()
    for _ in range(3):
        journal.log({"x": x})
        x = x - np.float32(0.25) * 2 * x

    def f(state):
        return lax.scan(descend, state, length=3)[0]

    state = Descent(jnp.asarray(X), 0.25)
    for run in (lox.spool(transform(f)), transform(lox.spool(f))):
        found, logs = run(state)
        assert jax.tree.structure(found) == jax.tree.structure(state)
        np.testing.assert_allclose(found.x, x, RTOL)
        assert_logs(logs, journal.events, rtol=RTOL)
