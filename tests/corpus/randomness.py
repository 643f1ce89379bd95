"""Random keys that are used twice, or that iterations, lanes and calls share."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from corpus import f32, flags, i32, right, wrong

KEY = jax.eval_shape(lambda: jax.random.key(0))
OLD_KEY = jax.eval_shape(lambda: jax.random.PRNGKey(0))


def _dropout(key, x, rate=0.1):
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


@jax.jit
def _explored(key, action):
    return action + 0.1 * jax.random.normal(key, action.shape)


def _step(key, state, action):
    """A step of a simulation with noise."""
    return state + 0.1 * action + 0.01 * jax.random.normal(key, state.shape)


# One key for two things.


@wrong("LOX700", KEY)
def weights_and_biases_from_one_key(key):
    return {"w": jax.random.normal(key, (4, 8)), "b": jax.random.normal(key, (8,))}


@wrong("LOX700", OLD_KEY)
def weights_and_biases_from_one_old_key(key):
    w = jax.random.normal(key, (4, 8))
    b = jax.random.uniform(key, (8,))
    return w, b


@right("LOX700", KEY)
def weights_and_biases_from_a_split_key(key):
    for_w, for_b = jax.random.split(key)
    return {"w": jax.random.normal(for_w, (4, 8)), "b": jax.random.normal(for_b, (8,))}


@right("LOX700", OLD_KEY)
def weights_from_rows_of_old_keys(key):
    keys = jax.random.split(key, 4)
    first = jax.random.normal(keys[0], (4, 8))
    second = jax.random.normal(keys[-1], (8, 8))
    rest = [jax.random.normal(each, (8,)) for each in keys[1:3]]
    return first, second, rest


@wrong("LOX700", KEY, f32(16, 2))
def an_action_is_sampled_and_then_the_key_is_split(key, logits):
    action = jax.random.categorical(key, logits)
    key, for_reset = jax.random.split(key)
    return action, jax.random.uniform(for_reset, (16,)), key


@right("LOX700", KEY, f32(16, 2))
def the_key_is_split_and_then_an_action_is_sampled(key, logits):
    key, for_action, for_reset = jax.random.split(key, 3)
    action = jax.random.categorical(for_action, logits)
    return action, jax.random.uniform(for_reset, (16,)), key


@wrong("LOX700", KEY, f32(8, 3), f32(8, 3))
def policy_and_simulation_get_the_same_key(key, state, action):
    action = _explored(key, action)
    return _step(key, state, action)


@right("LOX700", KEY, f32(8, 3), f32(8, 3))
def policy_and_simulation_get_keys_by_fold_in(key, state, action):
    action = _explored(jax.random.fold_in(key, 0), action)
    return _step(jax.random.fold_in(key, 1), state, action)


@wrong("LOX700", KEY, f32(8, 3), f32(8, 3))
def policy_and_simulation_fold_the_same_number_into_the_key(key, state, action):
    action = _explored(jax.random.fold_in(key, 0), action)
    return _step(jax.random.fold_in(key, 0), state, action)


@wrong("LOX700", KEY, f32(8, 3))
def a_row_of_the_keys_that_were_mapped_over_is_used_again(key, x):
    keys = jax.random.split(key, 8)
    noisy = jax.vmap(_explored)(keys, x)
    return noisy, jax.random.permutation(keys[0], 8)


@right("LOX700", KEY, f32(8, 3))
def more_keys_than_are_mapped_over(key, x):
    keys = jax.random.split(key, 9)
    noisy = jax.vmap(_explored)(keys[:8], x)
    return noisy, jax.random.permutation(keys[8], 8)


@wrong("LOX700", KEY, f32(4))
def a_random_walk_that_carries_the_key_it_has_drawn_from(key, x):
    def step(carry, _):
        key, x = carry
        key, _ = jax.random.split(key)
        x = x + jax.random.normal(key, x.shape)
        return (key, x), x

    return jax.lax.scan(step, (key, x), None, length=10)[1]


@right("LOX700", KEY, f32(4))
def a_random_walk_that_carries_a_new_key(key, x):
    def step(carry, _):
        key, x = carry
        key, now = jax.random.split(key)
        x = x + jax.random.normal(now, x.shape)
        return (key, x), x

    return jax.lax.scan(step, (key, x), None, length=10)[1]


@wrong("LOX700", KEY, flags(), f32(4))
def a_branch_uses_the_key_that_is_used_after_it(key, done, state):
    def reset(state):
        return jax.random.uniform(key, state.shape)

    state = jax.lax.cond(done, reset, lambda state: state, state)
    return state + jax.random.normal(key, state.shape)


@right("LOX700", KEY, flags(16), f32(16, 4))
def each_branch_uses_the_key_in_its_way(key, done, state):
    def reset(key, state):
        return jax.random.uniform(key, state.shape)

    def go_on(key, state):
        return state + jax.random.normal(key, state.shape)

    def one(key, done, state):
        return jax.lax.cond(done, reset, go_on, key, state)

    return jax.vmap(one)(jax.random.split(key, 16), done, state)


@right("LOX700", KEY, f32(8), f32(4, 8))
def a_gradient_through_a_layer_that_is_computed_again(key, w, x):
    @jax.checkpoint
    def layer(w, x, key):
        return _dropout(key, jnp.tanh(x * w))

    def loss(w):
        first, second = jax.random.split(key)
        return jnp.square(layer(w, layer(w, x, first), second)).mean()

    return jax.grad(loss)(w)


# One key, twice for the same.


@wrong("LOX701", KEY, f32(32, 8), f32(8, 8), f32(8, 8))
def two_layers_with_the_same_dropout(key, x, first, second):
    x = _dropout(key, jax.nn.relu(x @ first))
    x = _dropout(key, jax.nn.relu(x @ second))
    return x.mean()


@right("LOX701", KEY, f32(32, 8), f32(8, 8), f32(8, 8))
def two_layers_with_dropouts_of_their_own(key, x, first, second):
    keys = iter(jax.random.split(key))
    x = _dropout(next(keys), jax.nn.relu(x @ first))
    x = _dropout(next(keys), jax.nn.relu(x @ second))
    return x.mean()


@wrong("LOX701", KEY, {"w": f32(3, 4), "v": f32(4, 3)})
def the_same_noise_on_each_parameter(key, params):
    return jax.tree.map(lambda p: p + 0.01 * jax.random.normal(key, p.shape), params)


@right("LOX701", KEY, {"w": f32(3, 4), "v": f32(4, 3)})
def noise_of_its_own_on_each_parameter(key, params):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))
    noisy = [p + 0.01 * jax.random.normal(each, p.shape) for p, each in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


@wrong("LOX701", OLD_KEY, f32(8, 3))
def two_steps_of_a_simulation_with_one_key(key, state):
    state = _step(key, state, jnp.ones((8, 3)))
    return _step(key, state, -jnp.ones((8, 3)))


@right("LOX701", KEY, f32(8, 3))
def two_evaluations_with_the_same_noise_on_purpose(key, state):
    up = _step(jax.random.clone(key), state, jnp.ones((8, 3)))
    down = _step(key, state, -jnp.ones((8, 3)))
    return up - down


def _two_layers(key):
    first, second = jax.random.split(key)
    return {"first": jax.random.normal(first, (3, 8)), "second": jax.random.normal(second, (8, 1))}


@wrong("LOX701", KEY)
def twin_critics_that_begin_alike(key):
    left_critic = _two_layers(key)
    right_critic = _two_layers(key)
    return {"left": left_critic, "right": right_critic}


@right("LOX701", KEY)
def a_target_network_that_begins_as_its_critic(key):
    critic = _two_layers(key)
    target_critic = dict(
        params=_two_layers(key),
        rate=0.005,
    )
    return {"critic": critic, "target_critic": target_critic}


@right("LOX701", KEY, f32(8), f32(4, 8))
def a_loss_and_its_gradient_with_the_same_dropout(key, w, x):
    def loss(w):
        return _dropout(key, x * w).mean()

    before = loss(w)
    gradient = jax.grad(loss)(w)
    return before, gradient


@right("LOX700", KEY, f32(64, 8), i32(64))
def a_batch_that_is_shuffled_with_its_labels(key, x, y):
    return jax.random.permutation(key, x), jax.random.permutation(key, y)


@wrong("LOX700", KEY, f32(64, 8), f32(64))
def a_batch_that_is_shuffled_and_gets_noise_by_one_key(key, x, y):
    shuffled = jax.random.permutation(key, x)
    return shuffled + 0.1 * jax.random.normal(key, x.shape), y


@wrong("LOX701", KEY, f32(8), f32(4, 8))
def a_gradient_and_its_product_with_the_hessian_with_one_dropout(key, w, x):
    def gradient(w):
        return jax.grad(lambda w: _dropout(key, jnp.tanh(x * w)).mean())(w)

    first = gradient(w)
    return first, jax.jvp(gradient, (w,), (first,))[1]


# One key for all iterations.


@wrong("LOX702", KEY, f32(4))
def a_random_walk_with_the_same_steps(key, x):
    def step(x, _):
        x = x + jax.random.normal(key, x.shape)
        return x, x

    return jax.lax.scan(step, x, None, length=10)[1]


@wrong("LOX702", KEY, f32(4))
def a_random_walk_that_forgets_to_carry_the_new_key(key, x):
    def step(carry, _):
        key, x = carry
        _, now = jax.random.split(key)
        return (key, x + jax.random.normal(now, x.shape)), x

    return jax.lax.scan(step, (key, x), None, length=10)[1]


@wrong("LOX702", OLD_KEY, f32(8, 3))
def a_simulation_whose_steps_fold_the_same_number_into_the_key(key, state):
    def body(_, state):
        return _step(jax.random.fold_in(key, 7), state, jnp.ones((8, 3)))

    return jax.lax.fori_loop(0, 20, body, state)


@wrong("LOX702", f32(8, 3))
def a_simulation_whose_steps_make_a_key_of_a_constant(state):
    def body(state, _):
        return _step(jax.random.key(1), state, jnp.ones((8, 3))), None

    return jax.lax.scan(body, state, None, length=5)[0]


@wrong("LOX702", KEY, f32(8, 3))
def a_search_that_samples_the_same_candidate(key, start):
    def worse(best):
        return jnp.sum(best**2) > 1e-3

    def body(best):
        candidate = _explored(key, best)
        return jnp.where(jnp.sum(candidate**2) < jnp.sum(best**2), candidate, best)

    return jax.lax.while_loop(worse, body, start)


@right("LOX702", KEY, f32(4))
def a_random_walk_over_keys(key, x):
    def step(x, key):
        x = x + jax.random.normal(key, x.shape)
        return x, x

    return jax.lax.scan(step, x, jax.random.split(key, 10))[1]


def _minibatch(key, data):
    return data[jax.random.choice(key, data.shape[0], (8,), replace=False)]


@right("LOX702", KEY, f32(64, 3))
def minibatches_beside_one_that_is_drawn_for_its_shape(key, data):
    def step(last, each):
        like = jnp.zeros_like(_minibatch(jax.random.key(0), data))
        batch = jax.lax.cond(last.sum() > 0, lambda: _minibatch(each, data), lambda: like)
        return batch, last.mean()

    return jax.lax.scan(step, data[:8], jax.random.split(key, 50))[1]


def _epoch(key, w, xs):
    """Steps with noise by the number of the batch."""

    def update(w, at):
        place, x = at
        return w - 0.1 * x * _dropout(jax.random.fold_in(key, place), w), None

    return jax.lax.scan(update, w, (jnp.arange(xs.shape[0]), xs))[0]


@wrong("LOX702", KEY, f32(8), f32(4, 8))
def epochs_that_fold_the_number_of_the_batch_alone_into_the_key(key, w, xs):
    return jax.lax.scan(lambda w, _: (_epoch(key, w, xs), None), w, length=3)[0]


@wrong("LOX702", KEY, f32(8), f32(4, 8))
def iterations_that_fold_the_same_range_into_the_key(key, w, xs):
    def step(_, w):
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(4) + 1)
        return w - 0.1 * jax.vmap(_dropout)(keys, xs).mean(0)

    return jax.lax.fori_loop(0, 20, step, w)


@right("LOX702", KEY, f32(8), f32(4, 8))
def epochs_that_fold_their_number_into_the_key_as_well(key, w, xs):
    return jax.lax.scan(lambda w, e: (_epoch(jax.random.fold_in(key, e), w, xs), None), w, jnp.arange(3))[0]


@right("LOX702", KEY, f32(8), f32(4, 8))
def epochs_that_count_their_batches_on(key, w, xs):
    def update(carry, x):
        w, place = carry
        return (w - 0.1 * x * _dropout(jax.random.fold_in(key, place), w), place + 1), None

    return jax.lax.scan(lambda carry, _: (jax.lax.scan(update, carry, xs)[0], None), (w, 0), length=3)[0][0]


@right("LOX702", KEY, f32(8), f32(4, 8))
def epochs_that_are_each_evaluated_with_the_same_noise(key, w, xs):
    def loss(w, at):
        place, x = at
        return w, jnp.square(_dropout(jax.random.fold_in(key, place), x) @ w)

    def epoch(w, _):
        losses = jax.lax.scan(loss, w, (jnp.arange(4), xs))[1]
        return w - 0.1 * jax.grad(lambda w: jnp.square(xs @ w).mean())(w), losses.mean()

    return jax.lax.scan(epoch, w, length=3)


@right("LOX702", OLD_KEY, f32(8, 3))
def a_simulation_whose_steps_fold_the_time_into_the_key(key, state):
    def body(time, state):
        return _step(jax.random.fold_in(key, time), state, jnp.ones((8, 3)))

    return jax.lax.fori_loop(0, 20, body, state)


@right("LOX702", KEY, f32(64, 8), f32(8))
def epochs_of_shuffled_batches(key, data, w):
    def loss(w, batch, key):
        return jnp.square(_dropout(key, batch * w)).mean()

    def epoch(carry, _):
        key, w = carry
        key, for_order, for_noise = jax.random.split(key, 3)
        batches = data[jax.random.permutation(for_order, 64)].reshape(4, 16, 8)

        def update(w, at):
            batch, key = at
            return w - 0.1 * jax.grad(loss)(w, batch, key), None

        w, _ = jax.lax.scan(update, w, (batches, jax.random.split(for_noise, 4)))
        return (key, w), None

    return jax.lax.scan(epoch, (key, w), None, length=3)[0]


@right("LOX702", KEY, f32(16, 4), f32(16))
def keys_that_are_indexed_by_the_time(key, state, reward):
    keys = jax.random.split(key, 20)

    def body(time, carry):
        state, reward = carry
        state = _step(keys[time], state, jnp.ones((16, 4)))
        return state, reward + state.sum(axis=1)

    return jax.lax.fori_loop(0, 20, body, (state, reward))


def _brownian(key, t):
    """A path that is the same whenever it is asked for: the time takes its way down a tree of keys."""
    key, first = jax.random.split(key)

    def halve(_, carry):
        key, start, end, left, right = carry
        key, earlier, later = jax.random.split(key, 3)
        middle = 0.5 * (start + end)
        value = 0.5 * (left + right) + 0.5 * jnp.sqrt(end - start) * jax.random.normal(key)
        down = t < middle
        key = jax.lax.cond(down, lambda: earlier, lambda: later)
        return key, *(
            jnp.where(down, *each) for each in ((start, middle), (middle, end), (left, value), (value, right))
        )

    start = key, jnp.zeros(()), jnp.ones(()), jnp.zeros(()), jax.random.normal(first)
    *_, left, right = jax.lax.fori_loop(0, 10, halve, start)
    return 0.5 * (left + right)


@right("LOX701", KEY, f32(), f32())
def an_increment_of_a_path_that_a_key_determines(key, start, end):
    return _brownian(key, end) - _brownian(key, start)


@right("LOX702", KEY, f32(32))
def steps_along_a_path_that_a_key_determines(key, times):
    return jax.lax.scan(lambda x, t: (x + 0.1 * _brownian(key, t), x), jnp.zeros(()), times)


@right("LOX702", KEY, f32(16, 4))
def a_key_of_a_split_that_is_chosen_by_the_time(key, rewards):
    def step(total, t):
        noise = jax.random.normal(jax.random.split(key, 16)[t], (4,))
        return total + rewards[t] * noise, None

    return jax.lax.scan(step, jnp.zeros(4), jnp.arange(16))[0]


def _initialized(key):
    first, second = jax.random.split(key)
    return {"w": jax.random.normal(first, (8, 4)), "v": jax.random.normal(second, (4,))}


@right("LOX702", KEY, f32(16, 8))
def gradients_that_start_at_zero_in_the_shape_of_parameters(key, xs):
    params = _initialized(key)

    def step(total, x):
        grads = jax.tree.map(jnp.zeros_like, _initialized(key))
        grads = {**grads, "v": grads["v"] + jnp.tanh(x @ params["w"])}
        return jax.tree.map(jnp.add, total, grads), None

    return jax.lax.scan(step, jax.tree.map(jnp.zeros_like, params), xs)[0]


@wrong("LOX702", KEY, f32(16))
def a_walk_with_the_same_steps_of_which_only_the_rewards_are_kept(key, goals):
    def step(x, goal):
        return x + jax.random.normal(key), -jnp.abs(x - goal)

    _, rewards = jax.lax.scan(step, jnp.zeros(()), goals)
    return rewards


# One key for all lanes.


@wrong("LOX703", KEY, f32(32, 8))
def a_dropout_that_is_the_same_for_each_example(key, x):
    return jax.vmap(lambda row: _dropout(key, row))(x).mean()


@wrong("LOX703", KEY, f32(16, 4))
def agents_that_explore_alike(key, logits):
    act = partial(jax.vmap, in_axes=(None, 0))(jax.random.categorical)
    return act(key, logits)


@wrong("LOX703", OLD_KEY, f32(16, 3), f32(16, 3))
def environments_with_the_same_noise(key, state, action):
    return jax.jit(jax.vmap(_step, in_axes=(None, 0, 0)))(key, state, action)


@wrong("LOX703", KEY, f32(16, 3), f32(16, 3))
def environments_with_copies_of_a_key(key, state, action):
    keys = jnp.broadcast_to(key, (16,))
    return jax.vmap(_step)(keys, state, action)


@wrong("LOX703", KEY, f32(16, 3))
def environments_that_scan_with_one_key(key, state):
    def rollout(state):
        def body(carry, _):
            key, state = carry
            key, now = jax.random.split(key)
            return (key, _step(now, state, jnp.ones(3))), None

        return jax.lax.scan(body, (key, state), None, length=5)[0][1]

    return jax.vmap(rollout)(state)


@wrong("LOX703", KEY, f32(16, 3), f32(16, 3))
def environments_of_which_two_get_the_same_key(key, state, action):
    keys = jax.random.split(key, 16)
    return jax.vmap(_step)(keys.at[3].set(keys[0]), state, action)


@wrong("LOX703", OLD_KEY, f32(16, 3), f32(16, 3))
def environments_with_a_row_of_old_keys_that_is_tiled(key, state, action):
    return jax.vmap(_step)(jnp.tile(key, (16, 1)), state, action)


@wrong("LOX703", KEY)
def an_ensemble_whose_members_are_the_same(key):
    return jax.vmap(lambda _: _initialized(key))(jnp.arange(5))


@wrong("LOX703", KEY, f32(32, 8))
def a_mask_of_the_second_half_that_is_the_same_for_each_example(key, x):
    def masked(row):
        kept = jax.random.bernoulli(key, 0.5, (4,))
        return row * jnp.concatenate([jnp.ones(4), kept.astype(jnp.float32)])

    return jax.vmap(masked)(x)


@wrong("LOX703", KEY, f32(32, 8))
def noise_on_some_features_that_is_the_same_for_each_example(key, x):
    return jax.vmap(lambda row: row.at[:2].add(0.1 * jax.random.normal(key, (2,))))(x)


@wrong("LOX703", KEY, f32(16, 3))
def simulations_with_the_same_noise_two_steps_late(key, state):
    def rollout(state):
        def body(carry, _):
            key, state, last, before = carry
            key, now = jax.random.split(key)
            return (key, state + before, jax.random.normal(now, (3,)), last), state

        return jax.lax.scan(body, (key, state, jnp.zeros(3), jnp.zeros(3)), length=8)[1]

    return jax.vmap(rollout)(state)


@right("LOX703", KEY, f32(16, 3), f32(16, 3))
def environments_with_keys_that_are_written_one_by_one(key, state, action):
    keys = jax.random.split(key, 16)
    for place in range(3):
        key, other = jax.random.split(jax.random.fold_in(key, place))
        keys = keys.at[place].set(other)
    return jax.vmap(_step)(keys, state, action)


@right("LOX703", KEY, f32(16, 3), f32(16, 3))
def pairs_of_environments_with_the_same_noise_on_purpose(key, state, action):
    keys = jax.random.split(key, 8)
    return jax.vmap(_step)(jnp.concatenate([keys, keys]), state, action)


@right("LOX703", KEY, f32(13, 3), f32(13, 3))
def environments_that_are_filled_up_to_a_multiple_of_eight(key, state, action):
    keys = jax.random.split(key, 13)
    keys = jnp.concatenate([keys, keys[:3]])
    state, action = (jnp.concatenate([x, x[:3]]) for x in (state, action))
    return jax.vmap(_step)(keys, state, action)[:13]


@right("LOX703", KEY, f32(5))
def a_sweep_that_returns_the_same_parameters(key, rates):
    return jax.vmap(lambda rate: (_initialized(key), rate))(rates)


@right("LOX703", KEY, f32(5), f32(32, 8), f32(32))
def a_sweep_that_starts_at_the_same_parameters(key, rates, x, y):
    def train(rate):
        def update(w, _):
            return w - rate * jax.grad(lambda w: jnp.square(x @ w - y).mean())(w), None

        return jax.lax.scan(update, jax.random.normal(key, (8,)), length=10)[0]

    return jax.vmap(train)(rates)


@right("LOX703", KEY, f32(16, 3), f32(16, 3))
def environments_with_keys_of_their_own(key, state, action):
    return jax.vmap(_step)(jax.random.split(key, 16), state, action)


@right("LOX703", OLD_KEY, f32(32, 8))
def a_dropout_of_a_batch(key, x):
    return jax.vmap(lambda key, row: _dropout(key, row))(jax.random.split(key, 32), x).mean()


@right("LOX703", KEY, f32(32, 8))
def a_random_projection_that_all_examples_share(key, x):
    def layer(row):
        return row + jnp.tanh(row @ jax.random.normal(key, (8, 8)))

    return jax.vmap(layer)(x)


@right("LOX703", KEY, f32(16, 3))
def environments_that_are_moved_by_one_number_each(key, state):
    def gust(key, state):
        return state + 0.1 * jax.random.normal(key)

    return jax.vmap(gust)(jax.random.split(key, 16), state)


@right("LOX703", KEY, f32(32, 8))
def noise_that_is_drawn_for_all_lanes_before(key, x):
    noise = jax.random.normal(key, (8,))
    return jax.vmap(lambda row: row + noise)(x)


@right("LOX703", KEY, f32(4, 16, 3))
def seeds_with_environments_each(key, state):
    def seed(key, state):
        return jax.vmap(_step, in_axes=(0, 0, None))(jax.random.split(key, 16), state, jnp.ones(3))

    return jax.vmap(seed)(jax.random.split(key, 4), state)


# One key for all calls.


@wrong("LOX704", f32(32, 8), f32(8, 8))
def a_layer_with_the_same_dropout_in_each_call(x, w):
    return _dropout(jax.random.key(0), x @ w)


@wrong("LOX704", f32(8, 3), f32(8, 3))
def a_step_of_a_simulation_with_a_constant_seed(state, action):
    key = jax.random.PRNGKey(42)
    return jax.jit(_step)(key, state, action)


@wrong("LOX704", f32(16, 4))
def an_action_that_is_sampled_with_a_constant_seed(logits):
    return jax.random.categorical(jax.random.key(3), logits, axis=-1)


@wrong("LOX704", KEY, f32(32, 8), f32(8, 8))
def two_layers_with_dropouts_of_which_one_has_a_constant_seed(key, x, w):
    x = _dropout(key, jax.nn.relu(x @ w))
    return _dropout(jax.random.key(0), jax.nn.relu(x @ w))


@wrong("LOX704", KEY, f32(32, 8))
def a_layer_that_takes_a_key_and_forgets_it(key, x):
    return _dropout(jax.random.key(0), x)


@right("LOX704", KEY, f32(32, 8), f32(8, 4))
def training_that_is_tested_with_constant_noise(key, x, w):
    w = w + 0.01 * jax.random.normal(key, w.shape)
    noise = jax.random.normal(jax.random.key(0), x.shape)
    return jnp.square((x + 0.1 * noise) @ w).mean()


@right("LOX704", KEY, f32(32, 8), f32(8, 8))
def a_layer_with_a_dropout_by_its_key(key, x, w):
    return _dropout(key, x @ w)


@right("LOX704", KEY, f32(32, 8))
def a_dropout_of_features_with_signs_that_never_change(key, x):
    signs = jax.random.rademacher(jax.random.key(0), (8,))
    return _dropout(key, x * signs)


@right("LOX704", f32(32, 8), f32(8))
def an_evaluation_with_the_same_seeds_in_each_call(x, w):
    keys = jax.random.split(jax.random.key(0), 3)
    return jax.vmap(lambda key: (_explored(key, x) * w).mean())(keys).mean()


@right("LOX704", f32(32, 8), f32(32))
def a_regression_that_starts_at_a_constant_seed(x, y):
    def loss(w):
        return jnp.square(x @ w - y).mean()

    w = 0.1 * jax.random.normal(jax.random.key(0), (8,))
    return jax.lax.fori_loop(0, 100, lambda _, w: w - 0.1 * jax.grad(loss)(w), w)


@right("LOX704", f32(32, 8), f32(32))
def a_regression_that_leaves_a_saddle_point_by_a_constant_step(x, y):
    def loss(w):
        return jnp.square(x @ w**2 - y).mean()

    w = 0.1 * jax.random.normal(jax.random.key(0), (8,))
    w = w - 0.1 * jax.grad(loss)(w)
    return w + jax.random.uniform(jax.random.key(1), (8,), minval=-0.01, maxval=0.01)


@right("LOX704", f32(32, 8), f32(8))
def training_that_makes_its_keys_of_one_seed(data, w):
    def loss(w, key):
        return jnp.square(_dropout(key, data * w)).mean()

    def update(w, key):
        return w - 0.1 * jax.grad(loss)(w, key), None

    return jax.lax.scan(update, w, jax.random.split(jax.random.key(0), 100))[0]


# A used key is returned.


@wrong("LOX705", {"key": KEY, "w": f32(8)}, f32(32, 8))
def a_training_step_that_forgets_to_renew_its_key(state, x):
    _, for_noise = jax.random.split(state["key"])

    def loss(w):
        return jnp.square(_dropout(for_noise, x * w)).mean()

    return {**state, "w": state["w"] - 0.1 * jax.grad(loss)(state["w"])}


@wrong("LOX705", OLD_KEY, f32(8, 3), f32(8, 3))
def a_simulation_that_returns_the_key_it_has_drawn_from(key, state, action):
    key, other = jax.random.split(key)
    state = _step(key, state, action) + _explored(other, action)
    return key, state


@right("LOX705", {"key": KEY, "w": f32(8)}, f32(32, 8))
def a_training_step_that_renews_its_key(state, x):
    key, for_noise = jax.random.split(state["key"])

    def loss(w):
        return jnp.square(_dropout(for_noise, x * w)).mean()

    return {**state, "key": key, "w": state["w"] - 0.1 * jax.grad(loss)(state["w"])}


@right("LOX705", jax.ShapeDtypeStruct((3,), KEY.dtype), f32(8))
def a_step_that_uses_the_first_of_several_keys(keys, x):
    return keys, _dropout(keys[0], x)


@right("LOX705", {"key": OLD_KEY, "step": jax.ShapeDtypeStruct((), jnp.int32), "w": f32(8)}, f32(32, 8))
def a_training_step_that_folds_its_number_into_the_key(state, x):
    key = jax.random.fold_in(state["key"], state["step"])

    def loss(w):
        return jnp.square(_dropout(key, x * w)).mean()

    gradient = jax.grad(loss)(state["w"])
    return {**state, "step": state["step"] + 1, "w": state["w"] - 0.1 * gradient}


# Keys that nothing uses.


@wrong("LOX706", KEY, f32(32, 8), f32(8, 8))
def a_layer_that_forgets_the_noise_of_its_input(key, x, w):
    for_noise, for_dropout = jax.random.split(key)
    return _dropout(for_noise, x @ w)


@wrong("LOX706", KEY, f32(8, 3), f32(8, 3))
def a_step_of_a_simulation_with_two_of_four_keys(key, state, action):
    keys = jax.random.split(key, 4)
    state = _step(keys[0], state, action)
    return _step(keys[2], state, action)


@wrong("LOX706", OLD_KEY, f32(8, 3))
def an_exploration_that_splits_its_key_and_forgets_it(key, action):
    jax.random.split(key, 8)
    return _explored(key, action)


@wrong("LOX706", KEY, f32(20, 8, 3))
def a_rollout_with_a_key_in_each_step_for_nothing(key, actions):
    def step(carry, action):
        key, state = carry
        key, for_step, for_reset = jax.random.split(key, 3)
        state = _step(for_step, state, action)
        return (key, state), state

    return jax.lax.scan(step, (key, jnp.zeros((8, 3))), actions)[1]


@right("LOX706", KEY, f32(4, 8))
def layers_that_carry_the_key_on_and_drop_it_after_the_last_one(key, x):
    for _ in range(3):
        key, now = jax.random.split(key)
        x = _dropout(now, x)
    return x


@right("LOX706", KEY, f32(4, 8))
def layers_that_carry_the_last_key_on(key, x):
    first, key = jax.random.split(key)
    x = _dropout(first, x)
    second, key = jax.random.split(key)
    return _dropout(second, x)


@right("LOX706", KEY, f32(16, 3))
def environments_with_a_key_each(key, state):
    keys = jax.random.split(key, 16)
    return jax.vmap(_step, in_axes=(0, 0, None))(keys, state, jnp.ones(3))


@right("LOX706", KEY, f32(3), f32(3))
def an_environment_that_takes_a_key_and_needs_none(key, state, action):
    def step(key, state, action):
        return state + 0.1 * action

    key, for_step = jax.random.split(key)
    return key, step(for_step, state, action)


@right("LOX706", OLD_KEY, f32(4, 8))
def old_keys_that_a_loop_takes_out_of_an_array(key, x):
    for row in jax.random.split(key, 3):
        x = _dropout(row, x)
    return x


@right("LOX706", KEY, jax.ShapeDtypeStruct((), jnp.int32), f32(4, 8))
def one_of_several_keys_by_the_number_of_the_device(key, device, x):
    return _dropout(jax.random.split(key, 8)[device], x)


# More keys than were split.


@wrong("LOX708", KEY, f32(32, 8), f32(8, 8))
def layers_of_which_the_last_takes_a_key_too_many(key, x, w):
    keys = jax.random.split(key, 3)
    for layer in range(4):
        x = _dropout(keys[layer], jax.nn.relu(x @ w))
    return x


@right("LOX708", KEY, f32(32, 8), f32(8, 8))
def layers_with_a_key_each(key, x, w):
    keys = jax.random.split(key, 4)
    for layer in range(4):
        x = _dropout(keys[layer], jax.nn.relu(x @ w))
    return x


@right("LOX708", OLD_KEY, f32(32, 8))
def layers_that_count_their_keys_from_the_end(key, x):
    keys = jax.random.split(key, 2)
    return _dropout(keys[-2], x) + _dropout(keys[-1], x)


# One key for all shards.

P = PartitionSpec
MESH = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))


def _on_shards(fun, in_specs, out_specs):
    return jax.shard_map(fun, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _averaged_step(key, w, x):
    gradient = jax.grad(lambda w: jnp.square(_dropout(key, x) @ w).mean())(w)
    return w - 0.1 * jax.lax.pmean(gradient, "data")


@wrong("LOX709", KEY, f32(8), f32(32, 8))
def a_step_on_shards_with_the_same_dropout(key, w, x):
    return _on_shards(_averaged_step, (P(), P(), P("data")), P())(key, w, x)


@wrong("LOX709", KEY, f32(8), f32(5, 32, 8))
def steps_on_shards_whose_keys_are_split_for_the_steps_alone(key, w, batches):
    def train(key, w, batches):
        keys = jax.random.split(key, 5)
        return jax.lax.scan(lambda w, at: (_averaged_step(at[0], w, at[1]), None), w, (keys, batches))[0]

    return _on_shards(train, (P(), P(), P(None, "data")), P())(key, w, batches)


@right("LOX709", KEY, f32(8), f32(32, 8))
def a_step_on_shards_that_fold_their_index_into_the_key(key, w, x):
    def step(key, w, x):
        return _averaged_step(jax.random.fold_in(key, jax.lax.axis_index("data")), w, x)

    return _on_shards(step, (P(), P(), P("data")), P())(key, w, x)


@right("LOX709", KEY, f32(8), f32(32, 8))
def a_step_on_shards_with_a_key_each(key, w, x):
    def step(keys, w, x):
        return _averaged_step(keys[0], w, x)

    return _on_shards(step, (P("data"), P(), P("data")), P())(jax.random.split(key, 4), w, x)


@right("LOX709", KEY, f32(4, 8), f32(32, 8))
def members_on_shards_with_the_same_dropout(key, w, x):
    def loss(key, w, x):
        return jnp.square(_dropout(key, x * w)).mean()[None]

    return _on_shards(loss, (P(), P("data"), P()), P("data"))(key, w, x)


@right("LOX709", KEY, f32(8), f32(32, 8))
def noise_of_the_features_of_all_shards_and_of_the_parameters(key, w, x):
    def loss(key, w, x):
        first, second = jax.random.split(key)
        w = w + 0.01 * jax.random.normal(second, w.shape)
        return jax.lax.pmean(jnp.square((x + jax.random.normal(first, (8,))) @ w).mean(), "data")

    return _on_shards(loss, (P(), P(), P("data")), P())(key, w, x)


@right("LOX709", KEY, f32(8), f32(32, 8))
def gradients_of_shards_that_get_the_same_noise_before_their_mean(key, w, x):
    def step(key, w, x):
        gradient = jax.grad(lambda w: jnp.square(x @ w).mean())(w)
        return w - jax.lax.pmean(gradient + jax.random.normal(key, gradient.shape), "data")

    return _on_shards(step, (P(), P(), P("data")), P())(key, w, x)


@right("LOX709", KEY, f32(32, 8))
def noise_that_is_drawn_for_all_shards_and_sliced(key, x):
    def loss(key, x):
        noise = jax.random.normal(key, (32, 8))
        own = jax.lax.dynamic_slice_in_dim(noise, 8 * jax.lax.axis_index("data"), 8)
        return jax.lax.pmean(jnp.square(x + own).mean(), "data")

    return _on_shards(loss, (P(), P("data")), P())(key, x)


# Keys of the old kind.


@wrong("LOX707", f32(32, 8))
def a_regression_that_starts_at_an_old_key(x):
    return x @ jax.random.normal(jax.random.PRNGKey(0), (8,))


@wrong("LOX707", OLD_KEY, f32(4, 8))
def a_dropout_by_an_old_key(key, x):
    return _dropout(key, x)


@wrong("LOX707", {"key": OLD_KEY, "w": f32(8)}, f32(32, 8))
def a_training_step_with_an_old_key_in_its_state(state, x):
    key, now = jax.random.split(state["key"])
    return {"key": key, "w": state["w"] - 0.1 * _dropout(now, x).mean(0)}


@right("LOX707", KEY, f32(4, 8))
def a_dropout_by_a_new_key(key, x):
    return _dropout(key, x)


@right("LOX707", KEY, jax.ShapeDtypeStruct((), jnp.int32))
def a_key_of_a_seed(key, seed):
    return jax.random.fold_in(key, seed), jax.random.key(seed)


@right("LOX707", KEY)
def the_data_of_a_key_for_a_checkpoint(key):
    return jax.random.key_data(key)


@right("LOX707", OLD_KEY, f32(4, 8))
def a_key_of_what_a_checkpoint_has(data, x):
    return _dropout(jax.random.wrap_key_data(data), x)


@right("LOX707", jax.ShapeDtypeStruct((2,), jnp.uint32))
def a_hash_of_two_words(words):
    return words[0] ^ (words[1] << 3)


@wrong("LOX703", jax.random.key(0), f32(8, 4))
def environments_that_all_begin_at_one_place(key, state):
    done = jnp.abs(state).max(-1) > 1
    return jnp.where(done[:, None], jax.random.uniform(key, (4,)), state)


@right("LOX703", jax.random.key(0), f32(8, 4))
def environments_that_begin_at_places_of_their_own(key, state):
    done = jnp.abs(state).max(-1) > 1
    return jnp.where(done[:, None], jax.random.uniform(key, (8, 4)), state)


@right("LOX703", jax.random.key(0), f32(8, 4), f32(8))
def tokens_that_one_random_vector_masks(key, tokens, chosen):
    return jnp.where(chosen[:, None] > 0, jax.random.normal(key, (4,)), tokens)


# Noise that lacks the axis of a batch.


@wrong("LOX703", KEY, f32(8, 50))
def tokens_that_all_sequences_choose_by_the_same_noise(key, logits):
    return jnp.argmax(logits / 0.8 + jax.random.gumbel(key, (50,)), axis=-1)


@wrong("LOX703", KEY, f32(16, 3))
def environments_that_all_explore_at_once(key, q):
    coin, other = jax.random.split(key)
    greedy = jnp.argmax(q, axis=-1)
    explores = jax.random.uniform(coin) < 0.1
    return jnp.where(explores, jax.random.randint(other, greedy.shape, 0, 3), greedy)


@right("LOX703", KEY, f32(8, 50), f32(16, 8, 12), axes={"logits": ("batch", None), "hidden": ("time", "batch", None)})
def noise_of_each_sequence_and_a_mask_for_all_of_its_steps(key, logits, hidden):
    first, second, third = jax.random.split(key, 3)
    chosen = jnp.argmax(logits + jax.random.gumbel(first, logits.shape), axis=-1)
    kept = jax.random.bernoulli(second, 0.9, hidden.shape[1:])
    weight = jax.random.beta(third, 0.2, 0.2)
    mixed = weight * logits + (1 - weight) * logits[::-1]
    return chosen, jnp.where(kept, hidden / 0.9, 0.0), mixed


# Proposals that are accepted by chance.


def _log_density(x):
    return -0.25 * jnp.sum(x**4) - jnp.sum(jnp.cos(3.0 * x))


@wrong("LOX710", jax.random.key(0), f32(3))
def a_walk_that_takes_no_logarithm_of_its_uniform_numbers(key, x):
    def step(x, key):
        move, accept = jax.random.split(key)
        proposal = x + 0.3 * jax.random.normal(move, x.shape)
        log_ratio = _log_density(proposal) - _log_density(x)
        return jnp.where(jax.random.uniform(accept) < log_ratio, proposal, x), x

    return jax.lax.scan(step, x, jax.random.split(key, 100))[1]


@wrong("LOX710", jax.random.key(0), f32(8, 3))
def walks_that_keep_their_density_and_accept_by_an_exponential_number(key, starts):
    def walk(key, x):
        def step(i, state):
            x, density, key = state
            key, move, accept = jax.random.split(key, 3)
            proposal = x + 0.3 * jax.random.normal(move, x.shape)
            new = _log_density(proposal)
            is_taken = new - density > jax.random.exponential(accept)
            return jnp.where(is_taken, proposal, x), jnp.where(is_taken, new, density), key

        return jax.lax.fori_loop(0, 100, step, (x, _log_density(x), key))[0]

    return jax.vmap(walk)(jax.random.split(key, 8), starts)


@wrong("LOX710", jax.random.key(0), f32(3))
def annealing_that_climbs_never(key, x):
    def energy(x):
        return -_log_density(x)

    def step(x, inputs):
        key, temperature = inputs
        move, accept = jax.random.split(key)
        proposal = x + 0.3 * jax.random.normal(move, x.shape)
        change = (energy(proposal) - energy(x)) / temperature
        return jnp.where(change < jnp.log(jax.random.uniform(accept)), proposal, x), change

    return jax.lax.scan(step, x, (jax.random.split(key, 100), jnp.geomspace(1.0, 0.01, 100)))


@right("LOX710", jax.random.key(0), f32(3))
def walks_that_accept_on_the_scale_of_the_ratio(key, x):
    def step(x, key):
        move, accept = jax.random.split(key)
        proposal = x + 0.3 * jax.random.normal(move, x.shape)
        log_ratio = _log_density(proposal) - _log_density(x)
        x = jnp.where(jnp.log(jax.random.uniform(accept)) < log_ratio, proposal, x)
        return x, jnp.exp(log_ratio)

    def by_rejection(x, key):
        move, reject = jax.random.split(key)
        proposal = x + 0.3 * jax.random.normal(move, x.shape)
        change = 0.5 * (_log_density(x) - _log_density(proposal))
        return jnp.where(change > jax.random.exponential(reject), x, proposal), change

    def by_chance(x, key):
        move, accept = jax.random.split(key)
        proposal = x + 0.3 * jax.random.normal(move, x.shape)
        chance = jnp.minimum(1.0, jnp.exp(_log_density(proposal) - _log_density(x)))
        return jnp.where(jax.random.uniform(accept) < chance, proposal, x), chance

    def by_energy(x, key):
        move, accept = jax.random.split(key)
        proposal = x + 0.3 * jax.random.normal(move, x.shape)
        change = -_log_density(proposal) + _log_density(x)
        return jnp.where(change <= jax.random.exponential(accept), proposal, x), change

    keys = jax.random.split(key, (4, 100))
    return [jax.lax.scan(each, x, own) for each, own in zip((step, by_rejection, by_chance, by_energy), keys)]


@right("LOX703", KEY, f32(3), f32(3, 3))
def sums_of_noise_that_rows_weigh(key, weights, transition):
    def step(state, noise):
        return transition @ state + jnp.outer(weights, noise), state

    return jax.lax.scan(step, jnp.zeros((3, 5)), jax.random.normal(key, (12, 5)))[1]


# The same random numbers on purpose.


def _waiting(rate, key):
    """The mean time that customers wait in a queue."""
    gaps = jax.random.exponential(key, (50,)) / rate

    def serve(wait, gap):
        wait = jnp.maximum(wait + 0.8 - gap, 0.0)
        return wait, wait

    return jax.lax.scan(serve, jnp.zeros(()), gaps)[1].mean()


@right("LOX701", KEY, f32())
def queues_of_two_rates_with_the_same_customers(key, rate):
    return _waiting(1.1 * rate, key) / _waiting(rate, key)


@right("LOX700", KEY, f32(), f32(), f32())
def two_orders_for_the_same_demand(key, little, much, price):
    demand = jax.random.gamma(key, 2.0, (64,))
    sold = jnp.minimum(demand, little)
    again = jax.random.gamma(key, 2.0, (64,))
    sold_of_much = jnp.minimum(again, much)
    return price * jnp.sum(sold) - price * jnp.sum(sold_of_much)


@right("LOX700", KEY, f32(4))
def antithetic_pairs_of_a_disturbance(key, x):
    up = jnp.exp(jnp.sin(x + 0.1 * jax.random.normal(key, x.shape)))
    down = jnp.exp(jnp.sin(x - 0.1 * jax.random.normal(key, x.shape)))
    return (up + down) / 2


@right("LOX700", KEY, f32(64, 3), i32(64))
def rows_and_labels_that_are_sorted_by_the_same_numbers(key, x, y):
    rows = jnp.argsort(jax.random.uniform(key, (64,)))
    places = jnp.argsort(jax.random.uniform(key, (64,)))
    return x[rows], y[places]


@right("LOX701", KEY, {"w": f32(8, 4), "v": f32(4, 3)}, f32(16, 8))
def the_derivative_of_each_output_with_one_dropout(key, params, x):
    def outputs(params):
        return (_dropout(key, x @ params["w"]) @ params["v"]).mean(0)

    return [jax.grad(lambda params, i=i: outputs(params)[i])(params) for i in range(3)]


@wrong("LOX701", KEY, f32(8, 4), f32(8, 4), f32(4, 4))
def pairs_of_a_contrast_with_one_dropout(key, x, y, w):
    return jnp.mean((_dropout(key, x) @ w) * (_dropout(key, y) @ w))


@wrong("LOX701", KEY, f32(8, 4), f32(4, 4))
def two_views_of_an_image_that_are_one(key, x, w):
    def view():
        return jnp.tanh((x + 0.1 * jax.random.normal(key, x.shape)) @ w)

    return jnp.mean((view() - view()) ** 2)


@wrong("LOX700", KEY, f32(3), f32(3))
def a_hunter_and_its_prey_that_start_with_the_same_noise(key, hunter, prey):
    hunter = hunter + 0.1 * jax.random.normal(key, (3,))
    prey = prey + 0.1 * jax.random.normal(key, (3,))
    return jnp.sum((hunter - prey) ** 2)


@right("LOX702", KEY, f32())
def an_order_that_is_best_for_the_same_thousand_days(key, order):
    def profit(order):
        demand = 10.0 + 2.0 * jax.random.normal(key, (1000,))
        return jnp.mean(5.0 * jnp.minimum(demand, order) - 3.0 * order)

    return jax.lax.fori_loop(0, 200, lambda _, order: order + 0.05 * jax.grad(profit)(order), order)


@right("LOX702", KEY, f32(4))
def a_descent_in_a_random_landscape(key, x):
    def step(x, _):
        waves = jax.random.normal(key, (16, 4))
        return x - 0.1 * jnp.cos(waves @ x) @ waves, None

    return jax.lax.scan(step, x, None, length=10)[0]


@wrong("LOX702", KEY, {"w": f32(8, 4), "v": f32(4, 8)}, f32(16, 8))
def codes_with_the_same_noise_in_each_step(key, params, x):
    def loss(params):
        h = x @ params["w"]
        return jnp.mean(((h + jax.random.normal(key, h.shape)) @ params["v"] - x) ** 2)

    def step(params, _):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params)), None

    return jax.lax.scan(step, params, None, length=10)[0]


# One random number or row for several on purpose.


@right("LOX703", KEY, f32(12))
def effects_of_schools_of_which_each_has_one(key, scores):
    keys = jax.random.split(key, 3)
    effects = [jnp.full((size,), jax.random.normal(each)) for each, size in zip(keys, (3, 4, 5), strict=True)]
    return scores + jnp.concatenate(effects)


@right("LOX703", KEY, f32(40, 6), f32(6, 4), f32(40, 4))
def a_change_of_a_bias_that_is_tried_on_all_rows(key, x, w, y):
    change = 0.1 * jax.random.normal(key, (4,))
    fitness = -jnp.mean((jnp.tanh(x @ w + change) - y) ** 2)
    return fitness * change


@wrong("LOX703", KEY, f32(40, 6), f32(6, 4))
def noise_on_outputs_that_all_rows_share(key, x, w):
    return jnp.tanh(x @ w) + 0.1 * jax.random.normal(key, (4,))


@right("LOX703", jax.random.key(0), f32(6, 2), axes={"boats": ("env", None)})
def boats_in_one_current(key, boats):
    def step(carry, key):
        boats, current = carry
        current = 0.99 * current + 0.1 * jax.random.normal(key, (2,))
        return (0.9 * boats + current, current), boats

    return jax.lax.scan(step, (boats, jnp.zeros(2)), jax.random.split(key, 30))[1]


@wrong("LOX703", jax.random.key(0), f32(6, 2), axes={"boats": ("env", None)})
def boats_that_all_have_the_same_gusts(key, boats):
    def step(boats, key):
        return 0.9 * boats + 0.1 * jax.random.normal(key, (2,)), boats

    return jax.lax.scan(step, boats, jax.random.split(key, 30))[1]


@right("LOX701", jax.random.key(0), {"w": f32(6, 8), "v": f32(4, 6)}, f32(10, 6))
def codes_with_noise_of_both_signs(key, params, x):
    mean, spread = jnp.split(x @ params["w"], 2, axis=-1)

    def error(sign):
        code = mean + sign * jnp.exp(spread) * jax.random.normal(key, mean.shape)
        return jnp.square(jnp.tanh(code) @ params["v"] - x).mean()

    return 0.5 * (error(1.0) + error(-1.0))


def _search(key, start):
    def step(best, key):
        tried = best + 0.1 * jax.random.normal(key, (8, *best.shape))
        return tried[jnp.argmin((tried**2).sum(-1))], None

    return jax.lax.scan(step, start, jax.random.split(key, 12))[0]


@wrong("LOX703", jax.random.key(0), f32(5))
def searches_of_which_all_are_one(key, start):
    found = jax.vmap(lambda number: _search(key, start))(jnp.arange(6))
    return found.mean(0), found.std(0)


@right("LOX703", jax.random.key(0), f32(5))
def searches_with_a_key_for_each(key, start):
    found = jax.vmap(lambda number: _search(jax.random.fold_in(key, number), start))(jnp.arange(6))
    return found.mean(0), found.std(0)


@right("LOX703", jax.random.key(0), f32(5))
def searches_from_several_starts(key, start):
    found = jax.vmap(lambda number: _search(key, start + number))(jnp.arange(6))
    return found.mean(0), found.std(0)


# Dropout that is turned off where it is trained.


def _classified(params, x, *, deterministic, rngs=None):
    if not deterministic:
        x = jnp.where(jax.random.bernoulli(rngs["dropout"], 0.9, x.shape), x / 0.9, 0.0)
    return x @ params["w"]


def _surprise(logits, label):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[:, None], axis=1).mean()


@wrong("LOX706", jax.random.key(0), {"w": f32(6, 3)}, f32(8, 6), i32(8))
def a_step_without_the_dropout_that_it_has_a_key_for(key, params, x, label):
    def loss(params):
        return _surprise(_classified(params, x, deterministic=True, rngs={"dropout": key}), label)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@right("LOX706", jax.random.key(0), {"w": f32(6, 3)}, f32(8, 6), i32(8))
def a_step_with_dropout(key, params, x, label):
    def loss(params):
        return _surprise(_classified(params, x, deterministic=False, rngs={"dropout": key}), label)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


@right("LOX706", jax.random.key(0), {"w": f32(6, 3)}, f32(8, 6), i32(8))
def a_test_without_the_dropout_that_it_has_a_key_for(key, params, x, label):
    return _surprise(_classified(params, x, deterministic=True, rngs={"dropout": key}), label)
