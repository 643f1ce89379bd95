"""`lox.watch` on programs of other people, which do not log."""

import blackjax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import lox

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def promotes():
    with jax.numpy_dtype_promotion("standard"):  # As libraries need.
        yield


def values_of(point, values):
    return {str(number): value for number, value in enumerate(values)}


def watched(fun, at="**", **options):
    """What a function returns, and the logs of its points, as a function of the arguments of it."""
    return lox.spool(lox.watch(fun, at=at, what=values_of), **options)


def assert_same(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def assert_close(found, expected, rtol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol, 1e-6), found, expected)


# -- flax ----------------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Dense(4)(x))
        return nn.Dense(2)(x)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True)(nn.Conv(2, (3, 3))(x))
        return MLP(name="head")(nn.avg_pool(nn.relu(x), (2, 2)).reshape(x.shape[0], -1))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=4)(y, y)
        return x + nn.Dense(4)(nn.gelu(nn.Dense(8)(nn.LayerNorm()(x))))


def _run_block(block, x, _):
    return block(x), None


class Layers(nn.Module):
    """Blocks in a loop of `nn.scan`, computed anew in the backward pass."""

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(
            nn.remat(_run_block),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=2,
        )
        return layers(Block(name="block"), x, None)[0]


def intermediates(model, params, x):
    """What each module returns, by its path."""
    _, found = model.apply(params, x, capture_intermediates=True, mutable="intermediates")
    leaves = jax.tree_util.tree_leaves_with_path(found["intermediates"])
    return {"/".join(key.key for key in path[:-2]): value for path, value in leaves}


@pytest.mark.parametrize(
    "model, x",
    [(MLP(), jnp.ones((2, 3))), (CNN(), jnp.ones((2, 4, 4, 1)))],
    ids=["MLP", "CNN"],
)
def test_modules_log_what_flax_captures_of_them(model, x):
    x = jax.random.normal(KEY, x.shape)
    params = model.init(KEY, x)
    name = type(model).__name__
    expected = {f"{name}/{path}/0".replace("//", "/"): value for path, value in intermediates(model, params, x).items()}
    for transform, check in ((lambda f: f, assert_same), (jax.jit, assert_close)):
        out, logs = transform(watched(model.apply))(params, x)
        check(out, transform(model.apply)(params, x))
        assert expected.keys() <= logs.keys()
        for key, value in expected.items():
            check(logs[key][0], value)


def test_layers_in_a_loop_log_as_the_layers_one_by_one():
    x = jax.random.normal(KEY, (1, 3, 4))
    model, block = Layers(), Block()
    params = model.init(KEY, x)

    def loss(params):
        return (model.apply(params, x) ** 2).sum()

    expected = []
    value = x
    for number in range(2):
        layer = {"params": jax.tree.map(lambda leaf: leaf[number], params["params"]["block"])}
        expected.append({path: each for path, each in intermediates(block, layer, value).items()})
        value = expected[-1][""]
    points = lambda point: point.kind != "primitive" and not point.obstacle  # noqa: E731
    (out, grads), logs = jax.jit(watched(jax.value_and_grad(loss), points))(params)
    assert_close((out, grads), jax.jit(jax.value_and_grad(loss))(params), 1e-4)
    for path in expected[0]:
        key = "/".join(filter(None, ["Layers/scan/block._run_block/block", path, "0"]))
        assert_close(logs[key], jnp.stack([each[path] for each in expected]))
    backward = {key.rpartition("/")[0] for key in logs if key.startswith("backward")}
    assert {"backward/Layers/scan", "backward/Layers/scan/block._run_block/block/Dense_0"} <= backward


def test_a_recurrent_network_logs_each_step():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.RNN(nn.LSTMCell(3))(x)

    x = jax.random.normal(KEY, (2, 5, 4))
    params = Network().init(KEY, x)
    out, logs = watched(Network().apply, "**/LSTMCell_0")(params, x)
    assert_same(out, Network().apply(params, x))
    assert any(np.allclose(jnp.moveaxis(value, 0, 1), out) for value in logs.values())


def test_functions_of_nnx_are_points():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    @nnx.jit
    def loss(model, x):
        return (model(x) ** 2).sum()

    x = jnp.ones((2, 3))
    out, logs = watched(lambda x: loss(model, x))(x)
    assert_same(out, loss(model, x))
    assert any(np.array_equal(value[0], out) for value in logs.values())  # Among the state of the model.


def test_blocks_of_nnx_in_a_loop_log_as_the_blocks_one_by_one():
    """A transformer of `nnx.scan` over layers, computed anew in the backward pass."""

    class NnxBlock(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.LayerNorm(4, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
            self.dense = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x):
            x = x + jax.named_scope("attention")(self.attention)(self.norm(x))
            return x + jax.named_scope("dense")(self.dense)(nnx.gelu(x))

    stack = nnx.split_rngs(splits=3)(nnx.vmap(NnxBlock, in_axes=0, out_axes=0))(nnx.Rngs(0))
    graph, params, rest = nnx.split(stack, nnx.Param, ...)
    x = jax.random.normal(KEY, (1, 3, 4))

    def loss(params):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        @nnx.remat
        def run(block, x):
            return block(x)

        return (run(nnx.merge(graph, params, rest), x) ** 2).sum()

    expected, value = [], x
    for number in range(3):
        block = nnx.merge(graph, *jax.tree.map(lambda leaf, number=number: leaf[number], (params, rest)))
        attended = value + block.attention(block.norm(value))
        dense = block.dense(nnx.gelu(attended))
        expected.append((attended - value, dense))
        value = attended + dense
    (out, grads), logs = jax.jit(watched(jax.value_and_grad(loss)))(params)
    assert_close((out, grads), jax.jit(jax.value_and_grad(loss))(params), 1e-4)
    for name, values in zip(("attention", "dense"), zip(*expected, strict=True), strict=True):
        (key,) = (key for key in logs if key.endswith(f"/{name}/0") and "backward" not in key)
        assert_close(logs[key], jnp.stack(values), 1e-4)
        assert any("backward" in key and f"/{name}/" in key for key in logs)


# -- training ------------------------------------------------------------------------------------------------------


def test_training_with_optax_is_watched_for_each_seed():
    model, x, y = MLP(), jax.random.normal(KEY, (8, 3)), jnp.ones((8, 2))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))

    def train(key):
        params = model.init(key, x)

        def step(carry, _):
            params, state = carry
            loss, grads = jax.value_and_grad(lambda params: ((model.apply(params, x) - y) ** 2).mean())(params)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        return jax.lax.scan(step, (params, optimizer.init(params)), None, length=3)[1]

    keys = jax.random.split(KEY, 2)
    expected = jax.jit(jax.vmap(train))(keys)
    at = ["scan/**/Dense_*", "scan"]
    out, logs = jax.jit(watched(jax.vmap(train), at))(keys)
    others = jax.jit(jax.vmap(watched(train, at)))(keys)[1]
    assert_close(out, expected)
    assert logs.keys() == others.keys() and "scan/MLP/Dense_2/0" in logs
    alone = jax.jit(watched(train, at))
    alone = [alone(key)[1] for key in keys]
    for key in logs:
        assert_close(logs[key], jnp.stack([each[key] for each in alone], 1), 1e-4)
        assert_close(others[key], jnp.moveaxis(logs[key], 1, 0), 1e-4)


# -- equinox -------------------------------------------------------------------------------------------------------


def test_layers_of_equinox_log_what_they_return():
    mlp = eqx.nn.MLP(3, 2, 4, 2, key=KEY)
    xs = jax.random.normal(KEY, (5, 3))
    run = eqx.filter_jit(lambda mlp, xs: jax.vmap(mlp)(xs))
    out, logs = watched(lambda xs: run(mlp, xs))(xs)
    assert_same(out, run(mlp, xs))
    values = xs
    for number, layer in enumerate(mlp.layers):
        values = jax.vmap(layer)(values)
        assert_close(logs[f"<lambda>/eqx.nn.MLP/eqx.nn.Linear{f'[{number}]' * bool(number)}/0"][0], values)
        values = jax.nn.relu(values)


@pytest.mark.parametrize("kind", ["lax", "bounded", "checkpointed"])
@pytest.mark.parametrize("tapped", [False, True], ids=["spool", "tap"])
def test_loops_of_equinox_log_the_iterations_that_happen(kind, tapped):

    def run(x):
        def step(carry):
            with jax.named_scope("step"):
                return carry[0] + 1, jnp.sin(carry[1]) + carry[1]

        return eqxi.while_loop(lambda carry: carry[0] < 5, step, (0, x), max_steps=16, kind=kind)[1]

    expected = [jnp.float32(0.3)]
    for _ in range(5):
        expected.append(jnp.sin(expected[-1]) + expected[-1])
    at = ["**/step", "**/lt"]
    if tapped:
        found = []

        def collect(logs):
            found.extend(float(values[0]) for key, values in logs.items() if key.endswith("step/0"))

        out = lox.tap(lox.watch(run, at=at, what=values_of), collect)(0.3)
        lox.flush()
    else:
        out, logs = watched(run, at, max_iters=16)(0.3)
        (key,) = (key for key in logs if key.endswith("step/0"))
        found = logs.valid(key)
    assert_same(out, run(0.3))
    assert_close(jnp.array(found), jnp.stack(expected[1:]))


# -- samplers and solvers ------------------------------------------------------------------------------------------


def test_a_chain_of_blackjax_logs_its_positions():
    sampler = blackjax.nuts(lambda x: -0.5 * jnp.sum(x**2), 0.5, jnp.ones(2))
    keys, start = jax.random.split(KEY, 4), sampler.init(jnp.array([1.0, -1.0]))

    def run(keys, state):
        return jax.lax.scan(lambda state, key: (sampler.step(key, state)[0],) * 2, state, keys)[1]

    states = jax.jit(run)(keys, start)
    found, logs = jax.jit(watched(run, "scan"))(keys, start)
    assert_close(found, states)
    assert_close([logs[f"scan/{number}"] for number in range(3)], list(states))


def test_a_python_loop_of_steps_of_blackjax_logs_each():
    sampler = blackjax.hmc(lambda x: -0.5 * jnp.sum(x**2), 0.5, jnp.ones(2), 3)
    step = jax.jit(sampler.step)

    def run(state):
        states = []
        for key in jax.random.split(KEY, 4):
            state = step(key, state)[0]
            states.append(state.position)
        return jnp.stack(states)

    start = sampler.init(jnp.array([1.0, -1.0]))
    out, logs = watched(run, "*")(start)
    assert_same(out, run(start))
    (name,) = {key.rpartition("/")[0] for key in logs}
    assert_same(logs[f"{name}/0"], out)


def test_chains_of_blackjax_log_as_each_alone():
    def run(key):
        sampler = blackjax.nuts(lambda x: -0.5 * jnp.sum(x**2), 0.5, jnp.ones(2))
        step = lambda state, key: (sampler.step(key, state)[0], None)  # noqa: E731
        return jax.lax.scan(step, sampler.init(jnp.array([1.0, -1.0])), jax.random.split(key, 4))[0]

    keys = jax.random.split(KEY, 2)
    at = lambda point: point.path == "scan" or point.path.endswith("while")  # noqa: E731
    states, logs = jax.jit(watched(jax.vmap(run), at, max_iters=8))(keys)
    assert_close(logs["scan/0"][-1], states.position)
    alone = jax.jit(watched(run, at, max_iters=8))
    for number, key in enumerate(keys):
        state, expected = alone(key)
        assert_close(state.position, states.position[number])
        assert logs.keys() == expected.keys()
        for name, values in logs.items():
            happened = logs.mask[name][:, number] if name in logs.mask else slice(None)
            assert_close(values[happened, number], expected.valid(name), 1e-4)


def test_the_adaptation_of_blackjax_is_watched_for_each_chain():
    def density(x):
        return -0.5 * jnp.sum((x / jnp.array([1.0, 3.0])) ** 2)

    def adapt(key):
        adaptation = blackjax.window_adaptation(blackjax.hmc, density, num_integration_steps=3)
        (state, parameters), _ = adaptation.run(key, jnp.array([1.0, -1.0]), 30)
        return state.position, parameters["step_size"], parameters["inverse_mass_matrix"]

    keys = jax.random.split(KEY, 2)
    out, logs = jax.jit(watched(jax.vmap(adapt), "**/scan", max_iters=64))(keys)
    assert_close(out, jax.jit(jax.vmap(adapt))(keys), 1e-4)
    positions = [values for key, values in logs.items() if key.startswith("scan/") and values.shape == (30, 2, 2)]
    assert any(np.allclose(values[-1], out[0], rtol=1e-5) for values in positions)
