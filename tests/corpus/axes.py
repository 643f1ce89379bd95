"""Axes that mean one thing where another is meant."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

import lox
from corpus import f32, flags, i32, right, wrong

TIME_BATCH = ("time", "batch")


def _gae(rewards, values, discount=0.99, decay=0.95):
    """Advantages of a rollout, (time, batch)."""

    def back(carry, at):
        advantage, next_value = carry
        reward, value = at
        advantage = reward + discount * next_value - value + discount * decay * advantage
        return (advantage, value), advantage

    zero = jnp.zeros(rewards.shape[1])
    return jax.lax.scan(back, (zero, zero), (rewards, values), reverse=True)[1]


@wrong("LOX101", f32(64, 64), f32(64, 64), axes={"returns": TIME_BATCH, "values": ("batch", "time")})
def advantages_of_transposed_values(returns, values):
    return returns - values


@right("LOX101", f32(64, 64), f32(64, 64), axes={"returns": TIME_BATCH, "values": ("batch", "time")})
def advantages_of_values_that_are_turned(returns, values):
    return returns - values.T


@wrong("LOX101", f32(32, 32), f32(32, 32), axes={"rewards": TIME_BATCH, "values": ("batch", "time")})
def gae_of_values_whose_batch_is_scanned(rewards, values):
    return _gae(rewards, values)


@right("LOX101", f32(32, 16), f32(32, 16), axes={"rewards": TIME_BATCH, "values": TIME_BATCH})
def gae(rewards, values):
    return _gae(rewards, values)


@wrong("LOX102", f32(8, 16), f32(16, 4), axes={"x": ("batch", "time"), "w": ("feature", None)})
def a_layer_over_time_instead_of_features(x, w):
    return jnp.tanh(x @ w)


@right("LOX102", f32(8, 16), f32(16, 4), axes={"x": ("batch", "feature"), "w": ("feature", None)})
def a_layer_over_features(x, w):
    return jnp.tanh(x @ w)


@wrong("LOX103", f32(16, 8, 3), axes={"obs": (*TIME_BATCH, "feature")})
def batch_first_by_reshape(obs):
    return obs.reshape(8, 16, 3).mean(axis=1)


@right("LOX103", f32(16, 8, 3), axes={"obs": (*TIME_BATCH, "feature")})
def batch_first_by_swapping_axes(obs):
    return obs.swapaxes(0, 1).mean(axis=1)


@wrong("LOX103", f32(4, 6, 8), axes={"x": ("batch", "time", "feature")})
def heads_that_are_split_in_the_wrong_place(x):
    return x.reshape(4, 2, 6, 4)


@wrong("LOX103", f32(2, 32, 32, 3), axes={"pictures": ("batch", "row", "column", "channel")})
def channels_first_by_reshape(pictures):
    return pictures.reshape(2, 3, 32, 32)


@right("LOX103", f32(4, 6, 8), axes={"x": ("batch", "time", "feature")})
def heads_that_are_split_and_brought_first(x):
    return x.reshape(4, 6, 2, 4).swapaxes(1, 2)


@right("LOX103", f32(16, 5, 6), axes={"obs": (*TIME_BATCH, "feature")})
def observations_of_two_steps_together(obs):
    return obs.reshape(8, 2 * 5, 6).mean(axis=-1)


@right("LOX101", f32(32, 4), f32(32, 4), axes={"obs": ("batch", "observation"), "action": ("batch", "action")})
def a_critic_of_observations_and_actions(obs, action):
    return jnp.concatenate([obs, action], axis=-1) @ jnp.ones((8, 1))


@wrong("LOX104", f32(8, 1), f32(16, 8), f32(16))
def squared_error_of_a_column_and_a_row(weights, inputs, targets):
    return jnp.mean((inputs @ weights - targets) ** 2)


@wrong("LOX104", f32(8, 4), f32(16, 8), i32(16), f32(16), differentiate="weights")
def masked_error_of_the_values_of_actions(weights, observations, actions, returns):
    values = jnp.take_along_axis(observations @ weights, actions[:, None], axis=1)
    advantages = returns - values
    ratios = jnp.exp(observations[:, 0])
    return jnp.minimum(ratios * advantages, jnp.clip(ratios, 0.8, 1.2) * advantages).mean()


@right("LOX104", f32(16, 1), f32(16), f32(16, 16))
def error_of_features_of_as_many_frequencies_as_times(times, frequencies, targets):
    return jnp.mean((jnp.sin(times * frequencies) - targets) ** 2)


@right("LOX104", f32(16))
def mean_distance_of_all_pairs(positions):
    return jnp.abs(positions[:, None] - positions).mean()


@wrong("LOX104", f32(32), f32(32, 1), axes={"target": ("batch",), "prediction": ("batch", None)})
def squared_error_of_a_column(target, prediction):
    return ((target - prediction) ** 2).mean()


@right("LOX104", f32(32), f32(32, 1), axes={"target": ("batch",), "prediction": ("batch", None)})
def squared_error_of_a_squeezed_column(target, prediction):
    return ((target - prediction[:, 0]) ** 2).mean()


@right("LOX104", f32(16, 2), axes={"positions": ("agent", None)})
def distances_of_all_pairs(positions):
    def distance(a, b):
        return jnp.abs(a - b).sum()

    return jax.vmap(lambda a: jax.vmap(lambda b: distance(a, b))(positions))(positions)


@wrong("LOX104", f32(64, 1), f32(64), axes={"values": ("batch", None), "returns": ("batch",)}, differentiate="values")
def a_value_loss_of_a_critic_with_a_last_axis(values, returns):
    errors = jax.lax.stop_gradient(returns) - values
    return 0.5 * jnp.square(errors).mean()


@wrong("LOX105", f32(20, 8), axes={"obs": TIME_BATCH})
def normalization_over_time(obs):
    with lox.audit.expect(mean="batch"):
        return obs - obs.mean(axis=0, keepdims=True)


@right("LOX105", f32(20, 8), axes={"obs": TIME_BATCH})
def normalization_over_the_batch(obs):
    with lox.audit.expect(mean="batch"):
        return obs - obs.mean(axis=1, keepdims=True)


@wrong("LOX105", f32(8, 20, 4), axes={"obs": ("batch", "time", None)})
def the_first_observation_of_a_function_that_is_mapped_already(obs):
    def start(obs):
        with lox.audit.expect(index="batch"):
            return obs[0].mean()

    return jax.vmap(start)(obs)


@right("LOX105", f32(8, 20, 4), axes={"obs": ("batch", "time", None)})
def the_first_observation_of_each_sequence(obs):
    def start(obs):
        with lox.audit.expect(index="time"):
            return obs[0].mean()

    return jax.vmap(start)(obs)


@wrong("LOX105", f32(32, 32), f32(32, 32), axes={"rewards": ("env", "time"), "values": ("env", "time")})
def discounted_returns_over_environments(rewards, values):
    def back(later, at):
        now = at[0] + 0.99 * later
        return now, now - at[1]

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(back, jnp.zeros(32), (rewards, values), reverse=True)[1]


@right("LOX105", f32(32, 32), f32(32, 32), axes={"rewards": ("env", "time"), "values": ("env", "time")})
def discounted_returns_over_time(rewards, values):
    def back(later, at):
        now = at[0] + 0.99 * later
        return now, now - at[1]

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(back, jnp.zeros(32), (rewards.T, values.T), reverse=True)[1].T


# What an array is reduced to, and meets again.


@wrong("LOX107", f32(16, 16))
def attention_that_is_normalized_over_queries(scores):
    weights = jnp.exp(scores - scores.max())
    return weights / weights.sum(axis=-1)


@right("LOX107", f32(16, 16))
def attention_that_is_normalized_over_keys(scores):
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@wrong("LOX107", f32(64, 64), f32(64, 8))
def a_random_walk_that_leaves_by_the_wrong_degree(adjacency, features):
    degree = jnp.maximum(adjacency.sum(axis=1), 1.0)
    for _ in range(2):
        features = (adjacency / degree) @ features
    return features


@right("LOX107", f32(64, 64), f32(64, 8))
def a_random_walk(adjacency, features):
    degree = jnp.maximum(adjacency.sum(axis=1, keepdims=True), 1.0)
    for _ in range(2):
        features = (adjacency / degree) @ features
    return features


@wrong("LOX107", f32(4, 12, 12))
def pictures_that_are_each_centered_by_row_and_not_by_column(pictures):
    return jax.vmap(lambda picture: picture - picture.mean(axis=1))(pictures)


@right("LOX107", f32(4, 12, 12))
def pictures_that_are_each_centered_by_column(pictures):
    return jax.vmap(lambda picture: picture - picture.mean(axis=0))(pictures)


@right("LOX107", f32(20, 20))
def distances_that_are_centered_twice(distances):
    squared = distances**2
    return squared - squared.mean(axis=0) - squared.mean(axis=0)[:, None] + squared.mean()


@right("LOX107", f32(20, 20))
def doubly_stochastic_costs(logits):
    plan = jnp.exp(logits)

    def normalize(plan, _):
        plan = plan / plan.sum(axis=1, keepdims=True)
        return plan / plan.sum(axis=0), None

    return jax.lax.scan(normalize, plan, length=10)[0]


@wrong("LOX108", f32(128, 16))
def observations_whose_deviation_is_of_each_row(obs):
    return (obs - obs.mean(axis=0)) / (obs.std(axis=1, keepdims=True) + 1e-8)


@wrong("LOX108", f32(32, 20, 8))
def a_batch_normalization_with_the_variance_of_layer_normalization(x):
    mean = x.mean(axis=(0, 1), keepdims=True)
    variance = jnp.mean((x - x.mean(axis=-1, keepdims=True)) ** 2, axis=-1, keepdims=True)
    return (x - mean) * 0.9 / jnp.sqrt(variance + 1e-5)


@wrong("LOX108", f32(50, 6))
def features_between_zero_and_one_of_two_axes(x):
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    return (x - x.min(axis=0)) / (high - low)


@right("LOX108", f32(128, 16))
def observations_that_are_normalized(obs):
    return (obs - obs.mean(axis=0)) / (obs.std(axis=0) + 1e-8)


@right("LOX108", f32(32, 100, 3))
def clouds_of_points_with_one_scale_for_all_axes(points):
    centered = points - points.mean(axis=1, keepdims=True)
    return centered / (centered.std(axis=(1, 2), keepdims=True) + 1e-6)


@right("LOX108", f32(256, 32))
def embeddings_that_are_centered_and_have_length_one(x):
    centered = x - x.mean(axis=0)
    return centered / jnp.linalg.norm(centered + 1e-6, axis=1, keepdims=True)


@right("LOX108", f32(32, 20, 8), f32(8), f32(8))
def a_layer_normalization(x, scale, offset):
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + offset


@wrong("LOX109", f32(16, 1))
def a_loss_that_squeezes_all_axes_of_size_1(values):
    return jnp.mean(values.squeeze() ** 2)


@right("LOX109", f32(16, 1))
def a_loss_that_squeezes_the_last_axis(values):
    return jnp.mean(values.squeeze(-1) ** 2)


@wrong("LOX109", f32(16, 1))
def predictions_squeezed_by_a_function(values):
    return jnp.squeeze(values)


@right("LOX109", f32(16, 1))
def predictions_squeezed_by_a_function_along_an_axis(values):
    return jnp.squeeze(values, axis=1)


@wrong("LOX110", f32(64, 64))
def differences_to_the_transposed(obs):
    return obs - obs.T


@right("LOX110", f32(64, 64))
def differences_to_the_mean(obs):
    return obs - obs.mean(0)


@wrong("LOX110", f32(64, 64))
def powers(transition):
    return transition @ transition


@right("LOX110", f32(64, 64))
def covariance(x):
    return x.T @ x


# Axes whose meaning nobody writes.


def _rollout(key, envs, steps):
    """Rewards and values of a random walk, (steps, envs)."""
    key, first = jax.random.split(key)
    states = jax.vmap(lambda key: jax.random.normal(key, (3,)))(jax.random.split(first, envs))

    def step(carry, _):
        states, key = carry
        key, now = jax.random.split(key)
        move = jax.vmap(lambda state, key: 0.9 * state + jax.random.normal(key, (3,)))
        moved = move(states, jax.random.split(now, envs))
        return (moved, key), (moved.sum(-1), states[:, 0])

    return jax.lax.scan(step, (states, key), None, steps)[1]


@wrong("LOX106", jax.random.key(0))
def gae_over_the_environments_that_a_program_makes(key):
    rewards, values = _rollout(key, 8, 16)
    return _gae(rewards.T, values.T).mean()


@right("LOX106", jax.random.key(0))
def gae_over_the_steps_that_a_program_makes(key):
    rewards, values = _rollout(key, 8, 16)
    return _gae(rewards, values).mean()


@wrong("LOX106", jax.random.key(0))
def returns_summed_over_environments(key):
    rewards, _ = _rollout(key, 8, 16)
    return jnp.cumsum(rewards, axis=1)[-1]


@wrong("LOX103", jax.random.key(0))
def steps_reshaped_to_environments(key):
    rewards, _ = _rollout(key, 8, 16)
    return rewards.reshape(8, 16).mean(0)


@right("LOX103", jax.random.key(0))
def steps_and_environments_in_minibatches(key):
    rewards, _ = _rollout(key, 8, 16)
    return rewards.reshape(-1).reshape(4, 32).mean(1)


@wrong("LOX101", jax.random.key(0))
def rewards_minus_values_of_the_other_order(key):
    rewards, values = _rollout(key, 8, 8)
    return (rewards - values.T).mean()


@right("LOX101", jax.random.key(0))
def rewards_minus_the_mean_of_each_environment(key):
    rewards, values = _rollout(key, 8, 8)
    return (rewards - values - rewards.mean(0)).mean()


# Heads of attention.


def _attention(queries, keys, values):
    scores = jnp.einsum("bhqd,bhkd->bhqk", queries, keys) / jnp.sqrt(queries.shape[-1])
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), values)


@wrong("LOX103", f32(2, 10, 32), f32(32, 96))
def heads_that_are_parts_of_the_sequence(x, to_all):
    heads = [each.reshape(2, 4, 10, 8) for each in jnp.split(x @ to_all, 3, axis=-1)]
    return _attention(*heads).swapaxes(1, 2).reshape(x.shape)


@wrong("LOX103", f32(2, 10, 32), f32(32, 96))
def heads_that_are_merged_before_they_are_behind_the_sequence(x, to_all):
    heads = [each.reshape(2, 10, 4, 8).swapaxes(1, 2) for each in jnp.split(x @ to_all, 3, axis=-1)]
    return _attention(*heads).reshape(x.shape)


@right("LOX103", f32(2, 10, 32), f32(32, 96), f32(16, 64))
def heads_and_windows_of_a_sequence(x, to_all, sequence):
    heads = [each.reshape(2, 10, 4, 8).swapaxes(1, 2) for each in jnp.split(x @ to_all, 3, axis=-1)]
    windows = sequence.reshape(1, 4, 4, 64)
    return _attention(*heads).swapaxes(1, 2).reshape(x.shape), _attention(*[windows] * 3).reshape(16, 64)


# Arrays that meet the inverse of their own size.


@wrong("LOX107", f32(16, 16), f32(16))
def a_layer_norm_without_keepdims(x, gain):
    x = x - x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(axis=-1) + 1e-6) * gain


@right("LOX107", f32(16, 16), f32(16), f32(16, 16))
def a_layer_norm_and_a_graph_that_is_normalized(x, gain, adjacency):
    x = x - x.mean(axis=-1, keepdims=True)
    degree = jax.lax.rsqrt(adjacency.sum(axis=1) + 1e-6)
    return x * jax.lax.rsqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * gain, adjacency * degree * degree[:, None]


# LOX111: lengths along another axis.


def _contrast(ours, others):
    similar = ours @ others.T / 0.1
    return -jnp.diagonal(jax.nn.log_softmax(similar, axis=-1)).mean()


def _unit(x, axis):
    return x / jnp.linalg.norm(x, axis=axis, keepdims=True)


@wrong("LOX111", f32(16, 12), f32(16, 12))
def a_contrastive_loss_of_embeddings_that_are_normalized_over_the_batch(ours, others):
    return _contrast(_unit(ours, 0), _unit(others, 0))


@right("LOX111", f32(16, 12), f32(16, 12))
def a_contrastive_loss_of_embeddings(ours, others):
    return _contrast(_unit(ours, 1), _unit(others, 1))


@right("LOX111", f32(16, 12), f32(12, 4))
def features_of_length_one_that_are_compared_or_go_into_a_layer(x, w):
    features = _unit(x, 0)
    standardized = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    products = features.T @ features, features @ features.T, features @ w, standardized @ standardized.T
    return products, jax.nn.softmax(_unit(x, 1) @ _unit(w, 0))


@wrong("LOX101", jax.random.key(0))
def values_and_returns_that_are_flattened_in_different_orders(key):
    rewards, values = _rollout(key, 8, 5)
    returns = jnp.cumsum(rewards[::-1], axis=0)[::-1].T.reshape(-1)
    order = jax.random.permutation(jax.random.key(1), 40)
    errors = jnp.take(values.reshape(-1), order).reshape(4, 10)[0] - jnp.take(returns, order).reshape(4, 10)[0]
    return (errors**2).mean()


@right("LOX101", jax.random.key(0))
def values_and_returns_that_are_taken_at_their_own_places(key):
    rewards, values = _rollout(key, 8, 5)
    returns = jnp.cumsum(rewards[::-1], axis=0)[::-1].T.reshape(-1)
    step, env = jnp.arange(5), jnp.array([1, 3, 0, 2, 2])
    return ((values.reshape(-1)[step * 8 + env] - returns[env * 5 + step]) ** 2).mean()


# Axes that nobody named.


def _walks(key, policy):
    begin, steps = jax.random.split(key)

    def step(place, key):
        moved = jax.vmap(lambda key, place: place + 0.1 * jax.random.normal(key, (4,)))(
            jax.random.split(key, 16), place
        )
        return moved, (place, -jnp.square(place @ policy).sum(-1), jnp.abs(moved).max(-1) > 2)

    begin = jax.vmap(lambda key: jax.random.uniform(key, (4,)))(jax.random.split(begin, 16))
    return jax.lax.scan(step, begin, jax.random.split(steps, 16))[1]


@wrong("LOX101", jax.random.key(0), f32(4, 4))
def returns_of_steps_taken_for_those_of_environments(key, policy):
    _, rewards, ends = _walks(key, policy)
    return (rewards.sum(axis=1) * ends[-1]).sum()


@wrong("LOX101", jax.random.key(0), f32(4, 4))
def last_environment_taken_for_the_last_step(key, policy):
    places, rewards, _ = _walks(key, policy)
    return rewards[-1] + 0.99 * places[:, -1].sum(-1)


@right("LOX101", jax.random.key(0), f32(4, 4))
def returns_of_environments_that_ended(key, policy):
    places, rewards, ends = _walks(key, policy)
    return (rewards.sum(axis=0) * ends[-1]).sum() + (rewards.mean(1) - rewards.max(1)).sum() + places[-1].sum()


@right("LOX101", jax.random.key(0))
def noise_of_keys_that_are_scanned(key):
    keys = jax.random.split(key, 16)
    steps = jax.lax.scan(lambda x, key: (x + jax.random.normal(key), x), 0.0, keys)[1]
    return steps + jax.vmap(jax.random.uniform)(jax.random.split(jax.random.fold_in(key, 1), 16))


@wrong("LOX106", jax.random.key(0), f32(4, 4))
def mask_that_runs_over_environments(key, policy):
    _, rewards, ends = _walks(key, policy)
    return (rewards * jnp.cumprod(1 - ends, axis=1)).sum(0).mean()


@wrong("LOX106", jax.random.key(0), f32(4, 4))
def speed_from_one_environment_to_the_next(key, policy):
    places, _, _ = _walks(key, policy)
    return jnp.square(jnp.diff(places, axis=1)).mean()


@right("LOX106", jax.random.key(0), f32(4, 4))
def mask_and_speed_over_time(key, policy):
    places, rewards, ends = _walks(key, policy)
    speed = jnp.square(jnp.diff(places, axis=0)).mean()
    return (rewards * jnp.cumprod(1 - ends, axis=0)).sum(0).mean() + speed


@wrong("LOX104", f32(64, 4), f32(4, 1), f32(64))
def cross_entropy_of_a_column(x, weights, labels):
    return optax.sigmoid_binary_cross_entropy(x @ weights, labels).mean()


@wrong("LOX104", f32(8, 8), f32(8, 8, 1))
def advantages_of_a_network_with_a_last_axis(rewards, values):
    return jnp.square(rewards - values).mean()


@right("LOX104", f32(64, 4), f32(4, 1), f32(64))
def cross_entropy_of_an_array(x, weights, labels):
    return optax.sigmoid_binary_cross_entropy((x @ weights)[:, 0], labels).mean()


@right("LOX104", f32(8, 8), f32(8, 8, 1))
def advantages_without_a_last_axis(rewards, values):
    return jnp.square(rewards - values[..., 0]).mean()


@wrong("LOX101", jax.random.key(0), f32(4, 4))
def last_places_of_a_rollout_and_rewards_of_its_last_environment(key, policy):
    begin, steps = jax.random.split(key)

    def step(places, key):
        noise = jax.vmap(lambda key: jax.random.normal(key, (4,)))(jax.random.split(key, 16))
        places = places + jnp.tanh(places @ policy) + 0.1 * noise
        return places, -jnp.square(places).sum(-1)

    begin = jax.vmap(lambda key: jax.random.uniform(key, (4,)))(jax.random.split(begin, 16))
    last, rewards = jax.lax.scan(step, begin, jax.random.split(steps, 16))
    return (last.sum(-1) + rewards[:, -1]).mean()


@wrong("LOX104", f32(40, 6), f32(6, 1), f32(40))
def residuals_of_a_column_that_are_flattened(x, weights, y):
    residuals = (y - x @ weights).ravel()
    return jnp.dot(residuals, residuals)


@wrong("LOX104", f32(40, 6), f32(40))
def sums_that_keep_their_axis(x, y):
    return jnp.mean(jnp.square(x).sum(1, keepdims=True) * y)


@right("LOX104", f32(40, 6), f32(40))
def similarities_of_sums(x, y):
    apart = x.sum(1, keepdims=True) - x.sum(1)[None, :]
    return (jnp.exp(-jnp.square(apart)) * y[:, None] * y[None]).mean()


@wrong("LOX103", f32(8, 28, 28, 3))
def images_whose_channels_are_reshaped_to_the_front(images):
    return images.reshape(8, 3, 28, 28).mean((2, 3))


@wrong("LOX103", f32(12, 5), f32(5, 12))
def steps_by_environments_reshaped_to_environments_by_steps(rewards, values):
    return jnp.square(rewards.reshape(5, 12) - values).mean()


@right("LOX103", f32(8, 28, 28, 3), f32(12, 5))
def images_whose_channels_are_moved_and_minibatches(images, steps):
    minibatches = steps.reshape(5, -1)
    return jnp.moveaxis(images, -1, 1).mean((2, 3)), minibatches.mean(1)


@right("LOX103", jax.random.key(0))
def noise_that_is_reshaped(key):
    return jax.random.normal(key, (12, 5)).reshape(5, 12)


@wrong("LOX112", f32(4, 3), f32(32, 4), f32(32), f32(32), axes={"n": ("batch", None), "r": ("batch",), "d": ("batch",)})
def a_target_with_the_largest_value_of_all_states(weights, n, r, d):
    scaled = n / (jnp.linalg.norm(n, axis=-1, keepdims=True) + 1e-6)
    return r + 0.99 * (1 - d) * jnp.max(scaled @ weights)


@right("LOX112", f32(4, 3), f32(32, 4), f32(32), axes={"obs": ("batch", None), "errors": ("batch",)})
def statistics_of_a_batch_that_normalize_it(weights, obs, errors):
    obs = (obs - obs.mean(0)) / jnp.sqrt(obs.var(0) + 1e-5)
    values = obs @ weights
    largest = values.max()
    priorities = jnp.abs(errors) / jnp.abs(errors).max()
    size = jnp.linalg.norm(errors)
    return jnp.exp(values - largest).sum(), jnp.argmax(values, axis=-1), priorities, jnp.maximum(size, 1.0)


@wrong("LOX104", f32(4, 1), f32(4, 1), f32(20, 4), f32(20))
def likelihood_of_a_column_of_means(to_mean, to_scale, x, y):
    return -jax.scipy.stats.norm.logpdf(y, x @ to_mean, jnp.exp(x @ to_scale)).mean()


@wrong("LOX104", f32(4, 1), f32(20, 4), flags(20))
def sum_of_a_column_where_a_flag_is_set(weights, x, valid):
    return jnp.where(valid, (x @ weights) ** 2, 0.0).sum()


@right("LOX104", f32(4, 1), f32(4, 1), f32(20, 4), f32(20), flags(20))
def likelihood_of_means_where_a_flag_is_set(to_mean, to_scale, x, y, valid):
    losses = -jax.scipy.stats.norm.logpdf(y, (x @ to_mean)[:, 0], jnp.exp(x @ to_scale)[:, 0])
    pairs = jnp.where(valid[None, :], (x @ to_mean) * y[None, :], 0.0)
    return jnp.where(valid, losses, 0.0).sum() + pairs.sum()


def _surface(params, x):
    return jnp.tanh(x[:, None] @ params["hidden"]) @ params["out"]


@wrong("LOX104", {"hidden": f32(1, 8), "out": f32(8, 1)}, f32(20), axes={"x": ("points",)})
def residual_of_a_column_and_slopes(params, x):
    slope = jax.vmap(jax.grad(lambda x: _surface(params, x[None])[0, 0]))(x)
    return jnp.mean((_surface(params, x) * slope - 1.0) ** 2)


@right("LOX104", {"hidden": f32(1, 8), "out": f32(8, 1)}, f32(20), axes={"x": ("points",)})
def residual_of_values_and_slopes(params, x):
    slope = jax.vmap(jax.grad(lambda x: _surface(params, x[None])[0, 0]))(x)
    return jnp.mean((_surface(params, x)[:, 0] * slope - 1.0) ** 2)


# -- LOX113: means of images ---------------------------------------------------------------------------------------


def _convolved(x, w):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


@wrong("LOX113", f32(2, 16, 16, 3), f32(3, 3, 3, 8), f32(8, 10))
def logits_of_a_mean_over_columns_and_channels(images, w, out):
    pooled = jax.nn.relu(_convolved(images, w)).mean(axis=(2, 3))
    return pooled[:, :8] @ out


@right("LOX113", f32(2, 16, 16, 3), f32(3, 3, 3, 8), f32(8, 10))
def logits_of_a_mean_over_places_after_norms(images, w, out):
    x = _convolved(images, w)
    x = (x - x.mean(axis=(1, 2, 3), keepdims=True)) * jax.lax.rsqrt(x.var(axis=(1, 2, 3), keepdims=True) + 1e-5)
    x = x - x.mean(axis=-1, keepdims=True)
    return jax.nn.relu(x).mean(axis=(1, 2)) @ out


@wrong("LOX104", f32(), f32(25, 3), f32(25))
def likelihood_by_a_kernel_of_each_point_with_itself(scale, x, y):
    kernel = jax.vmap(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2) / scale))(x, x)
    covariance = kernel + 0.1 * jnp.eye(25)
    return y @ jnp.linalg.solve(covariance, y) + jnp.linalg.slogdet(covariance)[1]


@wrong("LOX104", f32(30, 4), f32(30))
def ridge_whose_squares_are_those_of_the_columns_alone(x, y):
    squares = jnp.einsum("ni,ni->i", x, x)
    factor = jax.scipy.linalg.cho_factor(squares + 1e-3 * jnp.eye(4))
    return jax.scipy.linalg.cho_solve(factor, x.T @ y)


@right("LOX104", f32(), f32(25, 3), f32(25), f32(30, 4))
def likelihood_by_a_kernel_of_all_pairs_and_slopes_by_differences(scale, x, y, points):
    kernel = jax.vmap(lambda a: jax.vmap(lambda b: jnp.exp(-jnp.sum((a - b) ** 2) / scale))(x))(x)
    covariance = kernel + 0.1 * jnp.eye(25)
    around = jax.vmap(lambda p: jnp.sin(p + 1e-2 * jnp.eye(4)).sum(-1))(points)
    noisy = jnp.linalg.cholesky(kernel + jnp.diag(y**2) + (0.1 + y**2) * jnp.eye(25))
    return y @ jnp.linalg.solve(covariance, y) + jnp.linalg.slogdet(covariance)[1], around, noisy


# -- LOX103: axes that were merged, and are split in another order -----------------------------------------------------

PERCEPTRON = {"in": f32(6, 16), "bias": f32(16), "out": f32(16, 4)}


def _perceptron(params, x):
    return jax.nn.relu(x @ params["in"] + params["bias"]) @ params["out"]


@wrong("LOX103", PERCEPTRON, {"red": f32(10, 6), "blue": f32(10, 6)}, jax.random.key(0))
def actions_of_agents_that_are_split_by_environment(params, obs, key):
    rows = jnp.concatenate([obs["red"][None], obs["blue"][None]]).reshape(20, 6)
    actions = jax.random.categorical(key, _perceptron(params, rows)).reshape(10, 2)
    return {name: actions[:, place] for place, name in enumerate(obs)}


@wrong("LOX103", PERCEPTRON, f32(32, 8, 6), f32(32, 8))
def values_of_rows_that_were_turned(params, obs, returns):
    rows = jnp.swapaxes(obs, 0, 1).reshape(-1, 6)
    values = jax.vmap(lambda row: _perceptron(params, row).max())(rows)
    return jnp.mean((values.reshape(32, 8) - returns) ** 2)


@wrong("LOX103", f32(3, 5, 12), f32(12, 7))
def frames_of_films_in_another_order(films, weights):
    count, frames, features = films.shape
    pixels = jnp.einsum("nf,fo->no", films.reshape(count * frames, features), weights)
    normal = (pixels - pixels.mean(axis=-1, keepdims=True)) / (pixels.std(axis=-1, keepdims=True) + 1e-6)
    return normal.reshape(frames, count, 7).mean(axis=0)


@right("LOX103", PERCEPTRON, {"red": f32(10, 6), "blue": f32(10, 6)}, jax.random.key(0))
def actions_of_agents_that_are_split_by_agent(params, obs, key):
    rows = jnp.stack([obs["red"], obs["blue"]]).reshape(20, 6)
    actions = jax.random.categorical(key, _perceptron(params, rows)).reshape(2, 10)
    return dict(zip(obs, actions, strict=True))


@right("LOX103", PERCEPTRON, f32(32, 8, 6), f32(32, 8))
def values_of_rows_that_are_turned_back(params, obs, returns):
    rows = jnp.swapaxes(obs, 0, 1).reshape(-1, 6)
    values = jax.vmap(lambda row: _perceptron(params, row).max())(rows)
    return jnp.mean((values.reshape(8, 32).T - returns) ** 2)


@right("LOX103", PERCEPTRON, f32(32, 8, 6), jax.random.key(0))
def rows_that_are_shuffled_into_as_many_parts(params, obs, key):
    rows = jax.random.permutation(key, obs.reshape(256, 6))
    return jax.lax.map(lambda part: _perceptron(params, part).mean(), rows.reshape(8, 32, 6))


@right("LOX103", PERCEPTRON, f32(32, 8, 6))
def rows_in_as_many_parts_as_there_are_environments(params, obs):
    num_minibatches = 8
    rows = obs.reshape(-1, 6)
    parts = rows.reshape(num_minibatches, rows.shape[0] // num_minibatches, 6)
    return jax.lax.map(lambda part: _perceptron(params, part).mean(), parts)


# -- LOX101: axes that were merged in another order --------------------------------------------------------------------


@wrong("LOX101", PERCEPTRON, [f32(10, 6)] * 3, f32(10, 6))
def agents_one_after_another_beside_states_that_are_repeated(params, obs, state):
    rows = jnp.concatenate(obs)
    states = jnp.repeat(state, len(obs), axis=0)
    return _perceptron(params, rows) - jax.nn.relu(states @ params["in"])[:, :4]


@wrong("LOX101", PERCEPTRON, f32(32, 8, 6), f32(32, 8), differentiate="params")
def errors_of_rows_that_were_turned(params, obs, returns):
    rows = obs.swapaxes(0, 1).reshape(-1, 6)
    return jnp.square(_perceptron(params, rows).max(axis=-1) - returns.reshape(-1)).mean()


@right("LOX101", PERCEPTRON, [f32(10, 6)] * 3, f32(10, 6))
def agents_one_after_another_beside_states_of_each(params, obs, state):
    rows = jnp.concatenate(obs)
    states = jnp.tile(state, (len(obs), 1))
    return _perceptron(params, rows) - jax.nn.relu(states @ params["in"])[:, :4]


@right("LOX101", PERCEPTRON, f32(32, 8, 6), f32(32, 8), differentiate="params")
def errors_of_rows_that_were_turned_with_their_returns(params, obs, returns):
    rows, wanted = obs.swapaxes(0, 1).reshape(-1, 6), returns.T.reshape(-1)
    return jnp.square(_perceptron(params, rows).max(axis=-1) - wanted).mean()


@right("LOX101", f32(5), f32(7))
def all_pairs_one_after_another(one, other):
    return jnp.repeat(one, 7) * jnp.tile(other, 5), jnp.tile(one, 7) + jnp.repeat(other, 5)


@right("LOX104", f32(16, 4), f32(4, 1), f32(16), axes={"x": ("batch", None), "wanted": ("batch",)})
def order_of_all_pairs_of_a_batch(x, w, wanted):
    scores = x @ w
    gaps = scores - jnp.squeeze(scores, -1)
    return jnp.mean(jax.nn.softplus(-gaps * jnp.sign(wanted[:, None] - wanted)))


# Two labels of one set of things.


@right("LOX101", f32(9, 9), f32(9), axes={"distance": ("rows", "columns"), "weight": ("columns",)})
def distances_that_are_made_symmetric(distance, weight):
    distance = (distance + distance.T) / 2
    near = jnp.exp(-distance) * weight
    pull = jax.nn.logsumexp(near.sum(axis=1) - distance, axis=1)
    return pull * weight


@right(
    "LOX101",
    f32(6, 6),
    f32(6),
    f32(6),
    axes={"flow": ("senders", "receivers"), "sent": ("senders",), "got": ("receivers",)},
)
def what_towns_gain_from_one_another(flow, sent, got):
    net = flow - jnp.transpose(flow)
    return net.sum(axis=0) + (got - sent)


@wrong(
    "LOX101",
    f32(6, 6),
    f32(6),
    f32(6),
    axes={"flow": ("senders", "receivers"), "sent": ("senders",), "got": ("receivers",)},
)
def what_is_sent_less_what_others_got(flow, sent, got):
    return flow.sum(axis=0) + (got - sent)


# Sums over a batch beside sums for each of its elements.


_COUPLING = {"w": f32(3, 3), "shift": f32(6)}


def _likelihood(params, x, volume):
    left, right = jnp.split(x, 2, axis=-1)
    scale = jnp.tanh(left @ params["w"])
    x = jnp.concatenate([left, right * jnp.exp(scale)], axis=-1) - params["shift"]
    return -jnp.mean(jnp.sum(-0.5 * x**2, axis=-1) + volume(scale))


@wrong("LOX112", _COUPLING, f32(16, 6), axes={"x": ("batch", None)})
def volumes_of_all_in_the_likelihood_of_each(params, x):
    return _likelihood(params, x, jnp.sum)


@right("LOX112", _COUPLING, f32(16, 6), axes={"x": ("batch", None)})
def volumes_of_each_in_its_likelihood(params, x):
    return _likelihood(params, x, lambda scale: jnp.sum(scale, axis=-1))


@right("LOX112", _COUPLING, f32(16, 6), axes={"x": ("batch", None)})
def likelihoods_with_a_penalty_of_the_weights(params, x):
    return _likelihood(params, x, lambda scale: 0.1 * jnp.sum(params["w"] ** 2) + jnp.sum(scale, axis=-1))
