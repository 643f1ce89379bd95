"""What an audit says of results that are dropped, and of states that are lost."""

import functools
import importlib

import jax
import jax.numpy as jnp
import optax
import pytest
from corpus import f32, i32

import lox


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def found(fun, *args, least="warning"):
    return [finding.code for finding in lox.audit(fun)(*args).at_least(least)]


X = jnp.ones((4, 3))


def moved(state, action):
    return state + action, -jnp.abs(state).sum()


def checked(x):
    assert x.shape
    return x * 2


def test_a_result_that_is_dropped_by_mistake_is_told_from_what_is_called_for_its_effect():
    def updates(x):
        x.at[0].set(1.0)
        return x

    def computes(x):
        jnp.sort(x)
        return x

    def checks(x):
        checked(x)
        jax.tree.map(lambda leaf: jax.debug.print("{}", leaf + 1), {"x": x})
        jax.block_until_ready(x)
        return x

    findings = [lox.audit(fun)(jnp.ones(3)).at_least("warning") for fun in (updates, computes, checks)]
    assert [[(each.code, each.severity) for each in found] for found in findings] == [
        [("LOX430", "error")],
        [("LOX430", "warning")],
        [],
    ]


def test_a_branch_that_is_not_run_drops_nothing():
    def step(x, debug=False):
        if debug:
            x.at[0].set(1.0)
        return x * 2

    assert not found(step, X)


def test_what_is_returned_decides():
    def step(state, x, keep):
        new_state = state + x
        if keep:
            return new_state, x.sum()
        return state, x.sum()

    def old(state, x):
        new_state = state + x  # noqa: F841
        return state, x.sum()

    assert found(old, X, X) == ["LOX431"]
    assert not found(functools.partial(step, keep=False), X, X)


def test_a_loop_of_python_that_ends_early_may_begin_anew_in_each_iteration():
    def searched(x, stops):
        new_x = x
        for k in range(3):
            new_x = x * 0.5**k
            if stops:
                break
        return new_x

    def anew(x):
        for k in range(3):
            new_x = x * 0.5**k
        return new_x

    def mutated(states):
        for _ in range(3):
            new_x = states[0] * 2
            states.append(new_x)
        return new_x

    assert found(anew, X) == ["LOX431"]
    assert not found(functools.partial(searched, stops=False), X)
    assert not found(lambda x: mutated([x]), X)


def test_an_evaluation_may_drop_a_new_state():
    def apply(params, state, x, train):
        return x * params, state * 0.5 if train else state

    def evaluate(params, state, x):
        out, new_state = apply(params, state, x, train=True)
        return state, out

    def step(params, state, x):
        out, new_state = apply(params, state, x, train=False)
        return state, out

    assert not found(evaluate, X, X, X) and not found(step, X, X, X)


def test_what_a_name_or_del_says_is_dropped_on_purpose_is_left_alone():
    def step(state, x):
        new_state = jnp.tanh(state + x)
        del new_state
        _next_state = jnp.cos(state + x)
        return state, x

    assert not found(step, X, X)


def test_a_lookahead_and_an_inner_adaptation_carry_the_old_state_and_are_only_noted():
    def looks(state, actions):
        def value(carry, action):
            state, key = carry
            key, own = jax.random.split(key)
            next_state, reward = moved(state, action + jax.random.normal(own))
            return (state, key), reward + next_state.sum()

        return jax.lax.scan(value, (state, jax.random.key(0)), actions)[1]

    def adapts(params, tasks):
        def adapt(carry, task):
            params, total = carry
            new_params = params - 0.1 * jax.grad(lambda p: jnp.square(p - task).sum())(params)
            return (params, total + jnp.square(new_params - task).sum()), None

        return jax.lax.scan(adapt, (params, 0.0), tasks)[0][1]

    for fun in (looks, adapts):
        assert not found(fun, jnp.ones(3), X)
        assert found(fun, jnp.ones(3), X, least="info") == ["LOX208"]


def test_a_rollout_that_carries_the_old_environment_with_the_new_observation_is_found():
    def rollout(env_state, actions):
        def step(carry, action):
            env_state, obs = carry
            new_env_state, reward = moved(env_state, action + obs)
            return (env_state, new_env_state * 2), reward

        return jax.lax.scan(step, (env_state, jnp.zeros(3)), actions)

    assert found(rollout, jnp.ones(3), X) == ["LOX208"]


class Model:
    def __init__(self):
        self.scale, self.rate, self.offset = 2.0, 0.1, None

    @functools.partial(jax.jit, static_argnums=0)
    def scaled(self, x):
        return x * self.scale

    @functools.partial(jax.jit, static_argnums=0)
    def centered(self, x):
        return x - self.offset

    @functools.partial(jax.jit, static_argnums=0)
    def stepped(self, x):
        return x * self.rate

    def fit(self, x):
        self.offset = x.mean()
        return self

    def grow(self):
        self.scale = self.scale * 2

    def set_rate(self, rate):
        self.rate = rate

    def eager(self, x):
        return x * self.scale


def test_an_attribute_is_frozen_where_it_is_compiled_and_changes_after_it_began():
    model = Model().fit(jnp.ones(3))
    assert found(lambda x: model.scaled(x), X) == ["LOX433"]
    assert not found(lambda x: model.centered(x), X)  # It is fitted once.
    assert not found(model.eager, X)
    assert found(lambda x: model.stepped(x), X, least="info") == ["LOX433"] and not found(lambda x: model.stepped(x), X)


def made():
    return jax.jit(lambda x: x * 2)


LAYERS = [made() for _ in range(4)]


def test_functions_that_were_made_before_are_compiled_once_each():
    def network(x):
        for layer in LAYERS:
            x = layer(x)
        return x

    def again(x):
        for _ in range(4):
            x = made()(x)
        return x

    assert not found(network, X)
    assert found(again, X) == ["LOX434"]


@functools.partial(jax.jit, static_argnums=1)
def power(x, times):
    return x**times


def test_a_static_number_that_changes_makes_another_program():
    def powers(x):
        return sum(power(x, times) for times in range(2, 7))

    assert "LOX434" not in found(powers, X)


def loss_of(apply):
    def loss(params):
        out, updates = apply(params)
        return jnp.square(out).mean(), updates

    return loss


def test_the_statistics_of_a_flax_model_are_lost_in_training_alone():
    nn = pytest.importorskip("flax.linen")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dense(1)(nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x)))

    model = Network()
    variables = model.init(jax.random.key(0), X, train=True)

    def step(params, stats, x, keep):
        def apply(params):
            return model.apply({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])

        (loss, updates), grads = jax.value_and_grad(loss_of(apply), has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, (updates["batch_stats"] if keep else stats), loss

    def evaluate(params, stats, x, train):
        out, _ = model.apply({"params": params, "batch_stats": stats}, x, train=train, mutable=["batch_stats"])
        return out

    params, stats = variables["params"], variables["batch_stats"]
    for keep, codes in ((True, []), (False, ["LOX432"])):
        assert found(functools.partial(step, keep=keep), params, stats, X) == codes
        assert not found(functools.partial(evaluate, train=keep), params, stats, X)


def test_the_statistics_of_a_second_pass_may_be_dropped():
    nn = pytest.importorskip("flax.linen")
    model = nn.BatchNorm(use_running_average=False)
    variables = model.init(jax.random.key(0), X)

    def step(params, stats, real, fake):
        def apply(params):
            out, updates = model.apply({"params": params, "batch_stats": stats}, real, mutable=["batch_stats"])
            other, _ = model.apply({"params": params, "batch_stats": stats}, fake, mutable=["batch_stats"])
            return out - other, updates

        (_, updates), grads = jax.value_and_grad(loss_of(apply), has_aux=True)(params)
        return grads, updates

    assert not found(step, variables["params"], variables["batch_stats"], X, X)


@pytest.mark.parametrize(("keep", "codes"), [(True, []), (False, ["LOX432"])])
def test_the_state_of_an_equinox_model_is_lost_where_the_old_one_is_returned(keep, codes):
    eqx = pytest.importorskip("equinox")

    class Network(eqx.Module):
        norm: eqx.nn.BatchNorm

        def __call__(self, x, state):
            return self.norm(x, state)

    with jax.numpy_dtype_promotion("standard"):
        make = eqx.nn.make_with_state(lambda: Network(eqx.nn.BatchNorm(3, axis_name="batch", mode="ema")))
        model, state = make()

    def step(model, state, x):
        arrays, static = eqx.partition(model, eqx.is_inexact_array)

        def apply(arrays):
            batched = jax.vmap(eqx.combine(arrays, static), axis_name="batch", in_axes=(0, None), out_axes=(0, None))
            return batched(x, state)

        (loss, after), grads = jax.value_and_grad(loss_of(apply), has_aux=True)(arrays)
        return grads, (after if keep else state), loss

    assert found(step, model, state, X) == codes


def test_a_module_of_nnx_keeps_its_statistics_under_its_own_jit_alone():
    nnx = pytest.importorskip("flax.nnx")

    class Network(nnx.Module):
        def __init__(self):
            self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return jnp.square(self.norm(x)).mean()

    def step(model, x):
        return nnx.grad(lambda model: model(x))(model)

    assert not found(step, Network(), X) and not found(nnx.jit(step), Network(), X)
    assert found(jax.jit(step), Network(), X) == ["LOX432"]


def test_an_old_optimizer_state_is_found_by_its_value_and_may_be_chosen():
    optimizer = optax.adam(1e-3)

    def step(params, state, x, choose):
        loss, grads = jax.value_and_grad(lambda params: jnp.square(x @ params).mean())(params)
        made = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, made[0])
        if choose:
            return params, jax.tree.map(lambda new, old: jnp.where(loss > 0, new, old), made[1], state)
        return params, state

    params = jnp.ones(3)
    state = optimizer.init(params)
    assert found(functools.partial(step, choose=False), params, state, X) == ["LOX432"]
    assert not found(functools.partial(step, choose=True), params, state, X)


def test_a_dict_that_a_plain_function_changes_for_its_caller_is_left_alone():
    def update(state, x):
        state["p"] = state["p"] - x
        state["unused"] = state["p"] * 2

    def step(state, x):
        update(state, x)
        return state["p"]

    assert not found(step, {"p": X}, X)
    assert not found(jax.jit(step), {"p": X}, X)


def test_dropout_with_a_key_that_is_the_same_in_each_call_is_found_and_parameters_are_left_alone():
    nn = pytest.importorskip("flax.linen")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Dense(3)(x + self.param("position", nn.initializers.normal(0.02), x.shape))
            return nn.Dropout(0.5, deterministic=False)(x)

    model = Network()
    params = model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, X)

    def fixed(params, x):
        return model.apply(params, x, rngs={"dropout": jax.random.key(0)})

    def counted(params, x, step):
        return model.apply(params, x, rngs={"dropout": jax.random.fold_in(jax.random.key(0), step)})

    def begin(x):
        return model.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, x)

    assert found(fixed, params, X) == ["LOX704"]
    assert not found(counted, params, X, jnp.int32(3))
    assert not found(begin, X)


def test_what_is_computed_twice_alike_and_combined_is_found():
    def contrastive(similarities, axis):
        labels = jnp.arange(8)
        one = -jax.nn.log_softmax(similarities, axis=1)[labels, labels].mean()
        other = -jax.nn.log_softmax(similarities, axis=axis)[labels, labels].mean()
        return (one + other) / 2

    def errors(rewards, values, start):
        return rewards + 0.99 * values[start : start + 32] - values[:32]

    def next_tokens(embedding, out, tokens, start):
        hidden = jnp.cumsum(embedding[tokens], axis=1) @ out
        logs, labels = jax.nn.log_softmax(hidden[:, :-1]), tokens[:, start : start + 19]
        return -jnp.take_along_axis(logs, labels[..., None], -1).mean()

    def summed(x, times):
        total = jnp.zeros(())
        for _ in range(times):
            total = total + jnp.tanh(x).sum()
        return total

    def codes(fun, *args):
        return [each.code for each in lox.audit(fun)(*args).at_least("warning")]

    assert [codes(lambda x, axis=axis: contrastive(x, axis), f32(8, 8)) for axis in (0, 1)] == [[], ["LOX612"]]
    of = f32(32, 8), f32(33, 8)
    assert [codes(lambda r, v, at=at: errors(r, v, at), *of) for at in (1, 0)] == [[], ["LOX612"]]
    of = f32(50, 16), f32(16, 50), i32(8, 20)
    assert [codes(lambda *args, at=at: next_tokens(*args, at), *of) for at in (1, 0)] == [[], ["LOX612"]]
    assert codes(lambda x: summed(x, 2), f32(8)) == []
    assert codes(lambda average, x: 0.99 * average + 0.01 * x - average, f32(8), f32(8)) == []


def test_a_momentum_that_is_handed_back_and_a_state_that_stands_in_a_loop_of_python_are_found():
    def _clip(gradients):
        norm = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(gradients)))
        return jax.tree.map(lambda each: each / jnp.maximum(1.0, norm), gradients), norm

    def gradients_that_are_clipped_in_vain(params, x, y):
        gradients = jax.grad(lambda p: ((x @ p["w"] + p["b"] - y) ** 2).mean())(params)
        clipped, norm = _clip(gradients)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), norm

    def noise_at_the_factor_of_one_step(x, noise, t, betas):
        alphas = 1.0 - betas
        alpha_bar = jnp.cumprod(alphas)  # noqa: F841
        scale = alphas[t][:, None]
        return jnp.sqrt(scale) * x + jnp.sqrt(1 - scale) * noise

    def kept(state, gradient):
        params, mom = state["params"], state["mom"]
        mom2 = 0.9 * mom + gradient
        params = params - 0.1 * mom2
        return {"params": params, "mom": mom2}

    def lost(state, gradient):
        params, mom = state["params"], state["mom"]
        mom2 = 0.9 * mom + gradient
        params = params - 0.1 * mom2
        return {"params": params, "mom": mom}

    def goes_on(weights, hidden, x):
        outputs = []
        for t in range(3):
            hidden_new = jnp.tanh(x[t] + hidden @ weights)
            outputs.append(hidden_new)
            hidden = hidden_new
        return outputs, hidden

    def stands_still(weights, hidden, x):
        outputs = []
        for t in range(3):
            hidden_new = jnp.tanh(x[t] + hidden @ weights)
            outputs.append(hidden_new)
        return outputs, hidden

    def codes(fun, *args):
        return [each.code for each in lox.audit(fun)(*args).at_least("warning")]

    state = {"params": f32(8), "mom": f32(8)}
    assert [codes(fun, state, f32(8)) for fun in (kept, lost)] == [[], ["LOX431"]]
    of = f32(8, 8), f32(5, 8), f32(3, 5, 8)
    assert [codes(fun, *of) for fun in (goes_on, stands_still)] == [[], ["LOX431"]]
    regression = {"w": f32(8), "b": f32()}, f32(16, 8), f32(16)
    assert codes(gradients_that_are_clipped_in_vain, *regression) == ["LOX431"]
    assert codes(noise_at_the_factor_of_one_step, f32(64, 8), f32(64, 8), i32(64), f32(100)) == ["LOX431"]


def test_what_a_function_of_a_library_does_besides_is_not_known(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "samplers.py").write_text(
        "def handle(value, told=[]):\n    told.append(value)\n    return value\n\n\n"
        "def sample(x):\n    return handle(2 * x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    sample = importlib.import_module("samplers").sample

    def own(x):
        return 2 * x

    def model(x):
        sample(x)
        return x + 1

    def drops(x):
        own(x)
        return x + 1

    assert (found(model, jnp.ones(3)), found(drops, jnp.ones(3))) == ([], ["LOX430"])


def test_a_moving_average_of_which_much_is_kept_or_nothing_known_is_right():
    def follows(rate):
        def step(params, target, x):
            grads = jax.grad(lambda p: jnp.square(x @ p - x @ target).mean())(params)
            params = params - 0.1 * grads
            return params, rate * target + (1 - rate) * params

        return step

    args = f32(8), f32(8), f32(16, 8)
    assert [found(follows(rate), *args) for rate in (0.01, 0.04, 0.5, 0.96, 1.0)] == [
        ["LOX436"],
        ["LOX436"],
        [],
        [],
        [],
    ]
    assert found(lambda rate, *args: follows(rate)(*args), f32(), *args) == []
    assert found(lambda params, target: 0.01 * params + 0.99 * target, f32(8), f32(8)) == []
