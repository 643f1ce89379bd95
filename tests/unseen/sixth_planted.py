"""Mistakes planted into whole programs of learning and science, with right programs that look like them."""

import functools
from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


def dense(params, x):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    return h @ params["w2"] + params["b2"]


def dense_of(inputs, width, outputs):
    return {"w1": f32(inputs, width), "b1": f32(width), "w2": f32(width, outputs), "b2": f32(outputs)}


# Critics of soft actor-critic.


def squashed(policy, rng, obs):
    mean, log_std = jnp.split(dense(policy, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    noise = jax.random.normal(rng, mean.shape)
    raw = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    log_prob -= 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), log_prob.sum(axis=-1)


def soft_critics(critics, targets, policy, rng, obs, actions, rewards, dones, next_obs):
    next_actions, log_prob = squashed(policy, rng, next_obs)
    pair = jnp.concatenate([next_obs, next_actions], axis=-1)
    next_q = jnp.minimum(dense(targets["q1"], pair), dense(targets["q2"], pair))
    backup = rewards[:, None] + 0.99 * (1.0 - dones[:, None]) * (next_q - 0.2 * log_prob)
    backup = jax.lax.stop_gradient(backup)
    taken = jnp.concatenate([obs, actions], axis=-1)
    first, second = dense(critics["q1"], taken), dense(critics["q2"], taken)
    return jnp.mean((first - backup) ** 2) + jnp.mean((second - backup) ** 2)


def soft_critics_b(critics, targets, policy, rng, obs, actions, rewards, dones, next_obs):
    next_actions, log_prob = squashed(policy, rng, next_obs)
    pair = jnp.concatenate([next_obs, next_actions], axis=-1)
    next_q = jnp.minimum(dense(targets["q1"], pair), dense(targets["q2"], pair))
    backup = rewards[:, None] + 0.99 * (1.0 - dones[:, None]) * (next_q - 0.2 * log_prob[:, None])
    backup = jax.lax.stop_gradient(backup)
    taken = jnp.concatenate([obs, actions], axis=-1)
    first, second = dense(critics["q1"], taken), dense(critics["q2"], taken)
    return jnp.mean((first - backup) ** 2) + jnp.mean((second - backup) ** 2)


def soft_critics_c(critics, targets, policy, rng, obs, actions, rewards, dones, next_obs):
    next_actions, log_prob = squashed(policy, rng, next_obs)
    pair = jnp.concatenate([next_obs, next_actions], axis=-1)
    next_q = jnp.minimum(dense(targets["q1"], pair), dense(targets["q2"], pair))[:, 0]
    backup = jax.lax.stop_gradient(rewards + 0.99 * (1.0 - dones) * (next_q - 0.2 * log_prob))
    taken = jnp.concatenate([obs, actions], axis=-1)
    first, second = dense(critics["q1"], taken)[:, 0], dense(critics["q2"], taken)[:, 0]
    # Every sample against every other: critics should also order the batch as the targets do.
    order = jnp.sign(backup[:, None] - backup)
    ranks = jax.nn.relu(0.1 - order * (first[:, None] - first)) * jnp.abs(order)
    return jnp.mean((first - backup) ** 2) + jnp.mean((second - backup) ** 2) + 0.01 * jnp.mean(ranks)


plant(
    "critics with entropy",
    "broadcasting",
    soft_critics,
    (soft_critics_b, soft_critics_c),
    lambda: (
        {"q1": dense_of(8, 16, 1), "q2": dense_of(8, 16, 1)},
        {"q1": dense_of(8, 16, 1), "q2": dense_of(8, 16, 1)},
        dense_of(6, 16, 4),
        key(),
        f32(10, 6),
        f32(10, 2),
        f32(10),
        flags(10),
        f32(10, 6),
    ),
    where="(next_q - 0.2 * log_prob)\n    backup = jax",
    axes={"obs": ("batch", None), "rewards": ("batch",), "dones": ("batch",)},
    differentiate="critics",
)


# A clipped policy with Gaussian actions.


def column_log_prob(mean, log_std, actions):
    z = (actions - mean) * jnp.exp(-log_std)
    terms = -0.5 * z**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    return terms.sum(axis=-1, keepdims=True)


def clipped_policy(params, obs, actions, old_log_probs, advantages):
    mean = dense(params["policy"], obs)
    log_probs = column_log_prob(mean, params["log_std"], actions)
    ratio = jnp.exp(log_probs - old_log_probs)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate = jnp.minimum(ratio * scaled, jnp.clip(ratio, 0.8, 1.2) * scaled)
    entropy = jnp.sum(params["log_std"] + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e))
    return -surrogate.mean() - 0.01 * entropy


def clipped_policy_b(params, obs, actions, old_log_probs, advantages):
    mean = dense(params["policy"], obs)
    log_probs = column_log_prob(mean, params["log_std"], actions)
    ratio = jnp.exp(log_probs.squeeze(-1) - old_log_probs)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    surrogate = jnp.minimum(ratio * scaled, jnp.clip(ratio, 0.8, 1.2) * scaled)
    entropy = jnp.sum(params["log_std"] + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e))
    return -surrogate.mean() - 0.01 * entropy


def clipped_policy_c(params, obs, actions, old_log_probs, advantages):
    mean = dense(params["policy"], obs)
    log_probs = column_log_prob(mean, params["log_std"], actions)
    ratio = jnp.exp(log_probs - old_log_probs.reshape(-1, 1))
    scaled = ((advantages - advantages.mean()) / (advantages.std() + 1e-8))[:, None]
    surrogate = jnp.minimum(ratio * scaled, jnp.clip(ratio, 0.8, 1.2) * scaled)
    entropy = jnp.sum(params["log_std"] + 0.5 * jnp.log(2.0 * jnp.pi * jnp.e))
    return -surrogate.mean() - 0.01 * entropy


plant(
    "clipped gaussian policy",
    "broadcasting",
    clipped_policy,
    (clipped_policy_b, clipped_policy_c),
    ({"policy": dense_of(5, 16, 3), "log_std": f32(3)}, f32(24, 5), f32(24, 3), f32(24), f32(24)),
    where="ratio = jnp.exp(log_probs - old_log_probs)\n",
    axes={"obs": ("batch", None), "old_log_probs": ("batch",), "advantages": ("batch",)},
    differentiate="params",
)


# Values of taken actions.


def taken_values(params, frozen, obs, actions, rewards, dones, next_obs):
    best = dense(params, next_obs).argmax(axis=-1)
    after = jax.vmap(lambda q, a: q[a])(dense(frozen, next_obs), best)
    targets = jax.lax.stop_gradient(rewards + 0.97 * (1.0 - dones) * after)
    q = jnp.take_along_axis(dense(params, obs), actions[:, None], axis=1)
    errors = optax.huber_loss(q - targets)
    return errors.mean()


def taken_values_b(params, frozen, obs, actions, rewards, dones, next_obs):
    best = dense(params, next_obs).argmax(axis=-1)
    after = jax.vmap(lambda q, a: q[a])(dense(frozen, next_obs), best)
    targets = jax.lax.stop_gradient(rewards + 0.97 * (1.0 - dones) * after)
    q = jnp.take_along_axis(dense(params, obs), actions[:, None], axis=1)[:, 0]
    errors = optax.huber_loss(q - targets)
    return errors.mean()


def taken_values_c(params, frozen, obs, actions, rewards, dones, next_obs):
    best = dense(params, next_obs).argmax(axis=-1, keepdims=True)
    after = jnp.take_along_axis(dense(frozen, next_obs), best, axis=1)
    targets = jax.lax.stop_gradient(rewards[:, None] + 0.97 * (1.0 - dones[:, None]) * after)
    q = jnp.take_along_axis(dense(params, obs), actions[:, None], axis=1)
    return optax.huber_loss(q - targets).mean()


def taken_values_d(params, frozen, obs, actions, rewards, dones, next_obs):
    best = dense(params, next_obs).argmax(axis=-1)
    after = jax.vmap(lambda q, a: q[a])(dense(frozen, next_obs), best)
    targets = jax.lax.stop_gradient(rewards + 0.97 * (1.0 - dones) * after)
    chosen = actions[:, None] == jnp.arange(4)
    return optax.huber_loss(jnp.sum(dense(params, obs) * chosen, axis=-1) - targets).mean()


plant(
    "values of taken actions",
    "broadcasting",
    taken_values,
    (taken_values_b, taken_values_c, taken_values_d),
    (dense_of(5, 12, 4), dense_of(5, 12, 4), f32(16, 5), i32(16), f32(16), flags(16), f32(16, 5)),
    where="axis=1)\n    errors = optax.huber_loss(q - targets)",
    axes={"obs": ("batch", None), "actions": ("batch",), "rewards": ("batch",), "dones": ("batch",)},
    differentiate="params",
)


# Evidence of a Gaussian process.


def covariance(params, x):
    gaps = (x[:, None, :] - x[None, :, :]) * jnp.exp(-params["log_scale"])
    kernel = jnp.exp(params["log_height"] - 0.5 * jnp.sum(gaps**2, axis=-1))
    return kernel + (jnp.exp(params["log_noise"]) + 1e-4) * jnp.eye(x.shape[0])


def evidence(params, x, y):
    kernel = covariance(params, x)
    trend = x @ params["slope"] + params["offset"]
    residual = y - trend
    factor = jnp.linalg.cholesky(kernel)
    white = jax.scipy.linalg.solve_triangular(factor, residual, lower=True)
    return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(factor)))


def evidence_b(params, x, y):
    kernel = covariance(params, x)
    trend = x @ params["slope"] + params["offset"]
    residual = y - trend[:, 0]
    factor = jnp.linalg.cholesky(kernel)
    white = jax.scipy.linalg.solve_triangular(factor, residual, lower=True)
    return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(factor)))


def evidence_c(params, x, y):
    kernel = covariance(params, x)
    trend = x @ params["slope"] + params["offset"]
    residual = y[:, None] - trend
    factor = jnp.linalg.cholesky(kernel)
    white = jax.scipy.linalg.solve_triangular(factor, residual, lower=True)
    return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(factor)))


def variogram(params, x, y):
    kernel = covariance(params, x)
    residual = y - (x @ params["slope"])[:, 0] - params["offset"]
    seen = 0.5 * (residual[:, None] - residual) ** 2
    expected = jnp.diag(kernel)[:, None] - kernel
    return jnp.mean((seen - expected) ** 2)


plant(
    "evidence of a process",
    "broadcasting",
    evidence,
    (evidence_b, evidence_c, variogram),
    (
        {"slope": f32(3, 1), "offset": f32(), "log_scale": f32(3), "log_height": f32(), "log_noise": f32()},
        f32(14, 3),
        f32(14),
    ),
    where="residual = y - trend\n",
    axes={"x": ("points", None), "y": ("points",)},
    differentiate="params",
)


# Memory of an agent.


def learn_from(params, batch):
    def loss(p):
        after = jax.lax.stop_gradient(dense(p, batch["next_obs"]).max(axis=-1))
        q = jax.vmap(lambda row, a: row[a])(dense(p, batch["obs"]), batch["actions"])
        return jnp.mean((q - batch["rewards"] - 0.95 * after) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value


def remember_and_learn(params, memory, cursor, steps, rng):
    capacity = memory["obs"].shape[0]
    slots = (cursor + jnp.arange(steps["obs"].shape[0])) % capacity
    filled = dict(memory)
    filled["obs"] = memory["obs"].at[slots].set(steps["obs"])
    filled["actions"] = memory["actions"].at[slots].set(steps["actions"])
    filled["rewards"].at[slots].set(steps["rewards"])
    filled["next_obs"] = memory["next_obs"].at[slots].set(steps["next_obs"])
    picks = jax.random.randint(rng, (8,), 0, capacity)
    params, value = learn_from(params, jax.tree.map(lambda x: x[picks], filled))
    return params, filled, (cursor + slots.shape[0]) % capacity, value


def remember_and_learn_b(params, memory, cursor, steps, rng):
    capacity = memory["obs"].shape[0]
    slots = (cursor + jnp.arange(steps["obs"].shape[0])) % capacity
    filled = dict(memory)
    filled["obs"] = memory["obs"].at[slots].set(steps["obs"])
    filled["actions"] = memory["actions"].at[slots].set(steps["actions"])
    filled["rewards"] = memory["rewards"].at[slots].set(steps["rewards"])
    filled["next_obs"] = memory["next_obs"].at[slots].set(steps["next_obs"])
    picks = jax.random.randint(rng, (8,), 0, capacity)
    params, value = learn_from(params, jax.tree.map(lambda x: x[picks], filled))
    return params, filled, (cursor + slots.shape[0]) % capacity, value


def remember_and_learn_c(params, memory, cursor, steps, rng):
    capacity = memory["obs"].shape[0]
    slots = (cursor + jnp.arange(steps["obs"].shape[0])) % capacity
    filled = dict(memory)

    def write(name):
        filled[name] = filled[name].at[slots].set(steps[name])

    for name in steps:
        write(name)
    picks = jax.random.randint(rng, (8,), 0, capacity)
    params, value = learn_from(params, jax.tree.map(lambda x: x[picks], filled))
    return params, filled, (cursor + slots.shape[0]) % capacity, value


def transitions_of(count):
    return {"obs": f32(count, 4), "actions": i32(count), "rewards": f32(count), "next_obs": f32(count, 4)}


plant(
    "memory of an agent",
    "dropped result",
    remember_and_learn,
    (remember_and_learn_b, remember_and_learn_c),
    lambda: (dense_of(4, 8, 4), transitions_of(20), i32(), transitions_of(12), key()),
    where='filled["rewards"].at[slots].set(steps["rewards"])',
)


# A variational autoencoder, fitted in a scan.

momentum = optax.adam(1e-2)


def bound(params, images, rng):
    mean, log_var = jnp.split(dense(params["encoder"], images), 2, axis=-1)
    log_var = jnp.clip(log_var, -6.0, 6.0)
    code = mean + jnp.exp(0.5 * log_var) * jax.random.normal(rng, mean.shape)
    fit = optax.sigmoid_binary_cross_entropy(dense(params["decoder"], code), images).sum(axis=-1)
    spread = 0.5 * jnp.sum(jnp.exp(log_var) + mean**2 - 1.0 - log_var, axis=-1)
    return jnp.mean(fit + spread)


def fit_codes(params, batches, rng):
    def step(carry, inputs):
        params, opt_state = carry
        images, step_key = inputs
        loss, grads = jax.value_and_grad(bound)(params, images, step_key)
        updates, new_state = momentum.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    keys = jax.random.split(rng, batches.shape[0])
    (params, _), losses = jax.lax.scan(step, (params, momentum.init(params)), (batches, keys))
    return params, losses


def fit_codes_b(params, batches, rng):
    def step(carry, inputs):
        params, opt_state = carry
        images, step_key = inputs
        loss, grads = jax.value_and_grad(bound)(params, images, step_key)
        updates, new_state = momentum.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), new_state), loss

    keys = jax.random.split(rng, batches.shape[0])
    (params, _), losses = jax.lax.scan(step, (params, momentum.init(params)), (batches, keys))
    return params, losses


def fit_codes_c(params, batches, rng):
    def step(carry, inputs):
        params, opt_state = carry
        images, step_key = inputs
        loss, grads = jax.value_and_grad(bound)(params, images, step_key)
        updates, new_state = momentum.update(grads, opt_state, params)
        moved = optax.apply_updates(params, updates)
        better = bound(moved, images, step_key) < loss
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), (moved, new_state), (params, opt_state))
        return kept, loss

    keys = jax.random.split(rng, batches.shape[0])
    (params, _), losses = jax.lax.scan(step, (params, momentum.init(params)), (batches, keys))
    return params, losses


def fit_codes_d(params, batches, rng):
    plain = optax.sgd(1e-3)
    opt_state = plain.init(params)  # Without momentum there is nothing to remember.

    def step(params, inputs):
        images, step_key = inputs
        loss, grads = jax.value_and_grad(bound)(params, images, step_key)
        updates, _ = plain.update(grads, opt_state)
        return optax.apply_updates(params, updates), loss

    return jax.lax.scan(step, params, (batches, jax.random.split(rng, batches.shape[0])))


plant(
    "autoencoder in a scan",
    "dropped result",
    fit_codes,
    (fit_codes_b, fit_codes_c, fit_codes_d),
    lambda: ({"encoder": dense_of(12, 8, 6), "decoder": dense_of(3, 8, 12)}, f32(5, 6, 12), key()),
    where="return (optax.apply_updates(params, updates), opt_state), loss",
    axes={"batches": ("steps", "batch", None)},
)


# Statistics of batches.


class Digits(nn.Module):
    @nn.compact
    def __call__(self, images, train):
        h = nn.Conv(4, (3, 3), strides=2)(images)
        h = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(h))
        return nn.Dense(5)(h.mean(axis=(1, 2)))


digits = Digits()


def learn_digits(variables, images, labels):
    def loss(params):
        state = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, changed = digits.apply(state, images, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changed

    (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], grads)
    return {**variables, "params": params}, value


def learn_digits_b(variables, images, labels):
    def loss(params):
        state = {"params": params, "batch_stats": variables["batch_stats"]}
        logits, changed = digits.apply(state, images, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changed

    (value, changed), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], grads)
    return {"params": params, "batch_stats": changed["batch_stats"]}, value


def learn_digits_c(variables, images, labels):
    """Tunes a network whose statistics stay those of the large data set."""

    def loss(params):
        logits = digits.apply({**variables, "params": params}, images, train=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = jax.value_and_grad(loss)(variables["params"])
    params = jax.tree.map(lambda p, g: p - 0.1 * g, variables["params"], grads)
    return {"params": params, "batch_stats": variables["batch_stats"]}, value


plant(
    "statistics of digits",
    "dropped result",
    learn_digits,
    (learn_digits_b, learn_digits_c),
    lambda: (
        shapes_of(lambda: digits.init(jax.random.key(0), jnp.zeros((2, 8, 8, 1)), train=True)),
        f32(6, 8, 8, 1),
        i32(6),
    ),
    where='return {**variables, "params": params}, value',
    axes={"images": ("batch", None, None, None), "labels": ("batch",)},
)


# A diffusion model with averaged weights.


def noise_error(params, images, rng):
    time_key, noise_key = jax.random.split(rng)
    time = jax.random.uniform(time_key, (images.shape[0], 1))
    noise = jax.random.normal(noise_key, images.shape)
    noisy = jnp.cos(0.5 * jnp.pi * time) * images + jnp.sin(0.5 * jnp.pi * time) * noise
    return jnp.mean((dense(params, jnp.concatenate([noisy, time], axis=-1)) - noise) ** 2)


def diffusion_step(state, images, rng):
    value, grads = jax.value_and_grad(noise_error)(state["params"], images, rng)
    updates, opt_state = momentum.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    optax.incremental_update(params, state["average"], 0.01)
    return {"params": params, "average": state["average"], "opt": opt_state}, value


def diffusion_step_b(state, images, rng):
    value, grads = jax.value_and_grad(noise_error)(state["params"], images, rng)
    updates, opt_state = momentum.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    average = optax.incremental_update(params, state["average"], 0.01)
    return {"params": params, "average": average, "opt": opt_state}, value


def diffusion_step_c(state, images, rng):
    value, grads = jax.value_and_grad(noise_error)(state["params"], images, rng)
    updates, opt_state = momentum.update(grads, state["opt"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    average = jax.lax.cond(
        opt_state[0].count % 10 == 0,
        lambda: optax.incremental_update(params, state["average"], 0.1),
        lambda: state["average"],
    )
    return {"params": params, "average": average, "opt": opt_state}, value


def diffusion_state():
    params = dense_of(10, 16, 9)
    return {"params": params, "average": params, "opt": shapes_of(momentum.init, params)}


plant(
    "averaged diffusion model",
    "dropped result",
    diffusion_step,
    (diffusion_step_b, diffusion_step_c),
    lambda: (diffusion_state(), f32(8, 9), key()),
    where='    optax.incremental_update(params, state["average"], 0.01)\n    return',
    axes={"images": ("batch", None)},
)


# Values under a soft policy.


def soft_values(params, obs, actions, rewards, dones, next_obs):
    q = jax.vmap(lambda row, a: row[a])(dense(params, obs), actions)
    ahead = dense(params, next_obs)
    policy = jax.nn.softmax(ahead / 0.5, axis=-1)
    target = rewards + 0.99 * (1.0 - dones) * jnp.sum(policy * ahead, axis=-1)
    return jnp.mean((q - target) ** 2)


def soft_values_b(params, obs, actions, rewards, dones, next_obs):
    q = jax.vmap(lambda row, a: row[a])(dense(params, obs), actions)
    ahead = jax.lax.stop_gradient(dense(params, next_obs))
    policy = jax.nn.softmax(ahead / 0.5, axis=-1)
    target = rewards + 0.99 * (1.0 - dones) * jnp.sum(policy * ahead, axis=-1)
    return jnp.mean((q - target) ** 2)


def soft_values_c(params, obs, actions, rewards, dones, next_obs):
    held = jax.tree.map(jax.lax.stop_gradient, params)

    def error(row, action, reward, done, following):
        ahead = dense(held, following)
        after = jnp.vdot(jax.nn.softmax(ahead / 0.5), ahead)
        return dense(params, row)[action] - reward - 0.99 * (1.0 - done) * after

    return jnp.mean(jax.vmap(error)(obs, actions, rewards, dones, next_obs) ** 2)


plant(
    "values under a soft policy",
    "stop_gradient",
    soft_values,
    (soft_values_b, soft_values_c),
    (dense_of(4, 12, 4), f32(12, 4), i32(12), f32(12), flags(12), f32(12, 4)),
    where="ahead = dense(params, next_obs)\n    policy = jax.nn.softmax(ahead / 0.5, axis=-1)",
    axes={"obs": ("batch", None), "rewards": ("batch",), "dones": ("batch",)},
    differentiate="params",
)


# An actor and a critic with a shared body.


def shared_body(params, obs):
    h = jnp.tanh(obs @ params["body"])
    return jax.nn.log_softmax(h @ params["policy"]), (h @ params["value"])[:, 0]


def actor_critic(params, obs, actions, returns):
    log_policy, values = shared_body(params, obs)
    log_probs = jax.vmap(lambda row, a: row[a])(log_policy, actions)
    advantages = returns - values
    policy_loss = -jnp.mean(log_probs * advantages)
    value_loss = jnp.mean(advantages**2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1))
    return policy_loss + 0.5 * value_loss - 0.01 * entropy


def actor_critic_b(params, obs, actions, returns):
    log_policy, values = shared_body(params, obs)
    log_probs = jax.vmap(lambda row, a: row[a])(log_policy, actions)
    advantages = returns - values
    policy_loss = -jnp.mean(log_probs * jax.lax.stop_gradient(advantages))
    value_loss = jnp.mean(advantages**2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1))
    return policy_loss + 0.5 * value_loss - 0.01 * entropy


def actor_critic_c(params, obs, actions, returns):
    log_policy, values = shared_body(params, obs)
    log_probs = jax.vmap(lambda row, a: row[a])(log_policy, actions)
    baseline = jax.lax.stop_gradient(values)
    weights = jnp.exp(jnp.clip((returns - baseline) / 0.5, -5.0, 3.0))
    return -jnp.mean(log_probs * weights) + 0.5 * jnp.mean((returns - values) ** 2)


plant(
    "actor and critic with one body",
    "stop_gradient",
    actor_critic,
    (actor_critic_b, actor_critic_c),
    ({"body": f32(5, 12), "policy": f32(12, 4), "value": f32(12, 1)}, f32(20, 5), i32(20), f32(20)),
    where="policy_loss = -jnp.mean(log_probs * advantages)",
    axes={"obs": ("batch", None), "returns": ("batch",)},
    differentiate="params",
)


# Codes from a book.


def nearest_codes(book, z):
    distances = jnp.sum((z[:, None, :] - book[None, :, :]) ** 2, axis=-1)
    return book[jnp.argmin(distances, axis=-1)]


def codebook_loss(params, images):
    z = dense(params["encoder"], images)
    codes = nearest_codes(params["book"], z)
    passed = z + (codes - z)
    fit = jnp.mean((dense(params["decoder"], passed) - images) ** 2)
    pulled = jnp.mean((codes - jax.lax.stop_gradient(z)) ** 2)
    committed = jnp.mean((jax.lax.stop_gradient(codes) - z) ** 2)
    return fit + pulled + 0.25 * committed


def codebook_loss_b(params, images):
    z = dense(params["encoder"], images)
    codes = nearest_codes(params["book"], z)
    passed = z + jax.lax.stop_gradient(codes - z)
    fit = jnp.mean((dense(params["decoder"], passed) - images) ** 2)
    pulled = jnp.mean((codes - jax.lax.stop_gradient(z)) ** 2)
    committed = jnp.mean((jax.lax.stop_gradient(codes) - z) ** 2)
    return fit + pulled + 0.25 * committed


def codebook_loss_c(params, images):
    z = dense(params["encoder"], images)
    logits = -jnp.sum((z[:, None, :] - params["book"][None, :, :]) ** 2, axis=-1)
    soft = jax.nn.softmax(logits, axis=-1)
    hard = jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1])
    mixed = (soft + jax.lax.stop_gradient(hard - soft)) @ params["book"]
    return jnp.mean((dense(params["decoder"], mixed) - images) ** 2)


plant(
    "codes from a book",
    "stop_gradient",
    codebook_loss,
    (codebook_loss_b, codebook_loss_c),
    ({"encoder": dense_of(9, 10, 3), "decoder": dense_of(3, 10, 9), "book": f32(6, 3)}, f32(10, 9)),
    where="passed = z + (codes - z)\n",
    axes={"images": ("batch", None)},
    differentiate="params",
)


# The first word of a sentence.


def shifted(tokens, first):
    start = jnp.full((tokens.shape[0], 1), first, tokens.dtype)
    return jnp.concatenate([start, tokens[:, :-1]], axis=1)


def running_mean(h):
    counts = jnp.arange(1, h.shape[1] + 1, dtype=h.dtype)
    return jnp.cumsum(h, axis=1) / counts[None, :, None]


def sentence_loss(params, tokens):
    words = params["embed"].shape[0]
    inputs = shifted(tokens, words)
    h = running_mean(params["embed"][inputs])
    h = jnp.tanh(h @ params["mix"])
    logits = h @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


def sentence_loss_b(params, tokens):
    words = params["embed"].shape[0]
    table = jnp.pad(params["embed"], ((0, 1), (0, 0)))
    h = running_mean(table[shifted(tokens, words)])
    h = jnp.tanh(h @ params["mix"])
    logits = h @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


def sentence_loss_c(params, tokens):
    words = params["embed"].shape[0]
    inputs = shifted(tokens, words)
    looked = params["embed"].at[inputs].get(mode="fill", fill_value=0.0)
    h = running_mean(looked)
    h = jnp.tanh(h @ params["mix"])
    logits = h @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()


plant(
    "first word",
    "index out of range",
    sentence_loss,
    (sentence_loss_b, sentence_loss_c),
    ({"embed": f32(11, 8), "mix": f32(8, 8)}, i32(5, 7)),
    where='h = running_mean(params["embed"][inputs])',
    axes={"tokens": ("batch", "time")},
    differentiate="params",
)


# Deep networks, made and tried.


def thin(rng, h, rate):
    return jnp.where(jax.random.bernoulli(rng, 1.0 - rate, h.shape), h / (1.0 - rate), 0.0)


def try_network(rng, x, depth=3, width=16):
    keys = jax.random.split(rng, 2 * depth)
    h = x
    for i in range(depth):
        w = jax.random.normal(keys[2 * i], (h.shape[-1], width)) / jnp.sqrt(h.shape[-1])
        h = thin(keys[2 * i + 1], jax.nn.relu(h @ w), 0.1)
    head = jax.random.normal(keys[2 * depth], (width, 3)) / jnp.sqrt(width)
    return jax.nn.log_softmax(h @ head)


def try_network_b(rng, x, depth=3, width=16):
    keys = jax.random.split(rng, 2 * depth + 1)
    h = x
    for i in range(depth):
        w = jax.random.normal(keys[2 * i], (h.shape[-1], width)) / jnp.sqrt(h.shape[-1])
        h = thin(keys[2 * i + 1], jax.nn.relu(h @ w), 0.1)
    head = jax.random.normal(keys[-1], (width, 3)) / jnp.sqrt(width)
    return jax.nn.log_softmax(h @ head)


def try_network_c(rng, x, depth=3, width=16):
    keys = jax.random.split(rng, 2 * depth)
    h = x
    for i in range(depth):
        w = jax.random.normal(keys[2 * i], (h.shape[-1], width)) / jnp.sqrt(h.shape[-1])
        h = jax.nn.relu(h @ w)
        h = thin(keys[2 * i + 1], h, 0.1) if i < depth - 1 else h
    head = jax.random.normal(keys[-1], (width, 3)) / jnp.sqrt(width)
    return jax.nn.log_softmax(h @ head)


plant(
    "keys of a deep network",
    "index out of range",
    try_network,
    (try_network_b, try_network_c),
    lambda: (key(), f32(6, 5)),
    where="head = jax.random.normal(keys[2 * depth], (width, 3))",
)


# Returns with bootstraps at each step.


def mixed_returns(params, obs, rewards, dones):
    steps = rewards.shape[0]
    values = dense(params, obs[:-1])[..., 0]
    held = jax.lax.stop_gradient(values)

    def back(i, carry):
        ahead, targets = carry
        t = steps - 1 - i
        mixed = 0.1 * held[t + 1] + 0.9 * ahead
        ahead = rewards[t] + 0.99 * (1.0 - dones[t]) * mixed
        return ahead, targets.at[t].set(ahead)

    _, targets = jax.lax.fori_loop(0, steps, back, (held[-1], jnp.zeros_like(rewards)))
    return jnp.mean((values - targets) ** 2)


def mixed_returns_b(params, obs, rewards, dones):
    steps = rewards.shape[0]
    values = dense(params, obs)[..., 0]
    held = jax.lax.stop_gradient(values)

    def back(i, carry):
        ahead, targets = carry
        t = steps - 1 - i
        mixed = 0.1 * held[t + 1] + 0.9 * ahead
        ahead = rewards[t] + 0.99 * (1.0 - dones[t]) * mixed
        return ahead, targets.at[t].set(ahead)

    _, targets = jax.lax.fori_loop(0, steps, back, (held[-1], jnp.zeros_like(rewards)))
    return jnp.mean((values[:-1] - targets) ** 2)


def mixed_returns_c(params, obs, rewards, dones):
    steps = rewards.shape[0] - 1
    values = dense(params, obs[:-1])[..., 0]
    held = jax.lax.stop_gradient(values)

    def back(i, carry):
        ahead, targets = carry
        t = steps - 1 - i
        mixed = 0.1 * held[t + 1] + 0.9 * ahead
        ahead = rewards[t] + 0.99 * (1.0 - dones[t]) * mixed
        return ahead, targets.at[t].set(ahead)

    _, targets = jax.lax.fori_loop(0, steps, back, (held[-1], jnp.zeros_like(rewards[:-1])))
    return jnp.mean((values[:-1] - targets) ** 2)


plant(
    "returns with bootstraps",
    "index out of range",
    mixed_returns,
    (mixed_returns_b, mixed_returns_c),
    (dense_of(4, 8, 1), f32(13, 3, 4), f32(12, 3), flags(12, 3)),
    where="mixed = 0.1 * held[t + 1] + 0.9 * ahead\n        ahead = rewards[t] + 0.99 * (1.0 - dones[t]) * mixed\n"
    "        return ahead, targets.at[t].set(ahead)\n\n"
    "    _, targets = jax.lax.fori_loop(0, steps, back, (held[-1], jnp.zeros_like(rewards)))\n"
    "    return jnp.mean((values - targets) ** 2)",
    axes={"obs": ("time", "env", None), "rewards": ("time", "env"), "dones": ("time", "env")},
)


# Random crops.


def cropped(rng, image, size=12):
    top, left = jax.random.randint(rng, (2,), 0, jnp.array(image.shape[:2]))
    return jax.lax.dynamic_slice(image, (top, left, 0), (size, size, image.shape[-1]))


def cropped_b(rng, image, size=12):
    top, left = jax.random.randint(rng, (2,), 0, jnp.array(image.shape[:2]) - size + 1)
    return jax.lax.dynamic_slice(image, (top, left, 0), (size, size, image.shape[-1]))


def cropped_c(rng, image, size=12):
    rows, columns, channels = image.shape
    around = jnp.pad(image, ((0, size), (0, size), (0, 0)), mode="wrap")
    top, left = jax.random.randint(rng, (2,), 0, jnp.array([rows, columns]))
    return jax.lax.dynamic_slice(around, (top, left, 0), (size, size, channels))


def classify_crops(crop):
    def loss(params, images, labels, rng):
        keys = jax.random.split(rng, images.shape[0])
        crops = jax.vmap(crop)(keys, images)
        patches = crops.reshape(crops.shape[0], 3, 4, 3, 4, -1).transpose(0, 1, 3, 2, 4, 5)
        h = jnp.tanh(patches.reshape(crops.shape[0], 9, -1) @ params["patch"])
        logits = h.max(axis=1) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


plant(
    "crops of twelve pixels",
    "index out of range",
    classify_crops(cropped),
    (classify_crops(cropped_b), classify_crops(cropped_c)),
    lambda: ({"patch": f32(48, 10), "out": f32(10, 4)}, f32(5, 16, 16, 3), i32(5), key()),
    where="top, left = jax.random.randint(rng, (2,), 0, jnp.array(image.shape[:2]))\n",
    axes={"images": ("batch", None, None, None), "labels": ("batch",)},
    differentiate="params",
)


# Generalised advantages in an update of a policy.


def smoothed(rewards, dones, values, last):
    after = jnp.concatenate([values[1:], last[None]])
    deltas = rewards + 0.99 * after * (1.0 - dones) - values

    def back(running, delta):
        running = delta + 0.99 * 0.95 * running
        return running, running

    return jax.lax.scan(back, jnp.zeros_like(last), deltas, reverse=True)[1]


def smoothed_b(rewards, dones, values, last):
    after = jnp.concatenate([values[1:], last[None]])
    alive = 1.0 - dones
    deltas = rewards + 0.99 * after * alive - values

    def back(running, inputs):
        delta, on = inputs
        running = delta + 0.99 * 0.95 * on * running
        return running, running

    return jax.lax.scan(back, jnp.zeros_like(last), (deltas, alive), reverse=True)[1]


def smoothed_c(rewards, dones, values, last):
    discounts = 0.99 * (1.0 - dones)

    def back(ahead, inputs):
        reward, discount, value, following = inputs
        ahead = reward + discount * (0.05 * following + 0.95 * ahead)
        return ahead, ahead - value

    after = jnp.concatenate([values[1:], last[None]])
    return jax.lax.scan(back, last, (rewards, discounts, values, after), reverse=True)[1]


def policy_update(advantages_of):
    def update(params, obs, actions, rewards, dones, last_obs):
        values = dense(params["value"], obs)[..., 0]
        last = dense(params["value"], last_obs)[..., 0]
        advantages = advantages_of(rewards, dones, values, last)
        targets = advantages + values
        old = jax.nn.log_softmax(dense(params["policy"], obs))
        old = jnp.take_along_axis(old, actions[..., None], axis=-1)[..., 0]

        def loss(p):
            new = jax.nn.log_softmax(dense(p["policy"], obs))
            ratio = jnp.exp(jnp.take_along_axis(new, actions[..., None], axis=-1)[..., 0] - old)
            gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
            return jnp.mean((dense(p["value"], obs)[..., 0] - targets) ** 2) - jnp.mean(gain)

        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value

    return update


episodes = {"obs": ("time", "env", None), "rewards": ("time", "env"), "dones": ("time", "env")}

plant(
    "smoothed advantages",
    "episodes",
    policy_update(smoothed),
    (policy_update(smoothed_b), policy_update(smoothed_c)),
    (
        {"policy": dense_of(4, 8, 4), "value": dense_of(4, 8, 1)},
        f32(11, 3, 4),
        i32(11, 3),
        f32(11, 3),
        flags(11, 3),
        f32(3, 4),
    ),
    where="def back(running, delta):\n        running = delta + 0.99 * 0.95 * running",
    axes=episodes,
)


# A policy with memory.


def gated(params, h, x):
    both = jnp.concatenate([x, h], axis=-1)
    z, r = jax.nn.sigmoid(both @ params["z"]), jax.nn.sigmoid(both @ params["r"])
    n = jnp.tanh(jnp.concatenate([x, r * h], axis=-1) @ params["n"])
    return (1.0 - z) * h + z * n


def to_go(rewards, dones):
    def back(ahead, inputs):
        reward, done = inputs
        ahead = reward + 0.98 * (1.0 - done) * ahead
        return ahead, ahead

    return jax.lax.scan(back, jnp.zeros_like(rewards[0]), (rewards, dones), reverse=True)[1]


def remembering(params, obs, actions, rewards, dones):
    def step(h, x):
        h = gated(params, h, x)
        return h, h @ params["out"]

    start = jnp.zeros((obs.shape[1], params["out"].shape[0]))
    _, logits = jax.lax.scan(step, start, obs)
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    returns = to_go(rewards, dones)
    return -jnp.mean(log_probs * (returns - returns.mean()))


def remembering_b(params, obs, actions, rewards, dones):
    def step(h, inputs):
        x, done = inputs
        h = gated(params, h, x)
        return jnp.where(done[:, None], 0.0, h), h @ params["out"]

    start = jnp.zeros((obs.shape[1], params["out"].shape[0]))
    _, logits = jax.lax.scan(step, start, (obs, dones))
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    returns = to_go(rewards, dones)
    return -jnp.mean(log_probs * (returns - returns.mean()))


def remembering_c(params, obs, actions, rewards, dones):
    begins = jnp.concatenate([jnp.ones_like(dones[:1]), dones[:-1]])

    def step(h, inputs):
        x, begin = inputs
        h = gated(params, h * (1.0 - begin[:, None]), x)
        return h, h @ params["out"]

    start = jnp.zeros((obs.shape[1], params["out"].shape[0]))
    _, logits = jax.lax.scan(step, start, (obs, begins))
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    returns = to_go(rewards, dones)
    return -jnp.mean(log_probs * (returns - returns.mean()))


plant(
    "policy with memory",
    "episodes",
    remembering,
    (remembering_b, remembering_c),
    (
        {"z": f32(11, 8), "r": f32(11, 8), "n": f32(11, 8), "out": f32(8, 4)},
        f32(10, 3, 3),
        i32(10, 3),
        f32(10, 3),
        flags(10, 3),
    ),
    where="def step(h, x):\n        h = gated(params, h, x)\n        return h, h @ params",
    axes=episodes,
    differentiate="params",
)


# Worlds that begin again.


def swung(params, state, rng):
    logits = dense(params, state)
    actions = jax.random.categorical(rng, logits)
    place, speed = state[:, 0], state[:, 1]
    speed = speed + 0.2 * (actions - 0.5) - 0.05 * jnp.sin(place)
    place = place + 0.1 * speed
    return jnp.stack([place, speed], axis=-1), actions, jnp.abs(place) > 1.0


def swing(params, state, rng):
    def step(state, step_key):
        act_key, reset_key = jax.random.split(step_key)
        moved, actions, done = swung(params, state, act_key)
        fresh = jax.random.uniform(reset_key, moved.shape, minval=-0.05, maxval=0.05)
        state = jnp.where(done.any(), fresh, moved)
        return state, (moved, actions, done)

    return jax.lax.scan(step, state, jax.random.split(rng, 30))


def swing_b(params, state, rng):
    def step(state, step_key):
        act_key, reset_key = jax.random.split(step_key)
        moved, actions, done = swung(params, state, act_key)
        fresh = jax.random.uniform(reset_key, moved.shape, minval=-0.05, maxval=0.05)
        state = jnp.where(done[:, None], fresh, moved)
        return state, (moved, actions, done)

    return jax.lax.scan(step, state, jax.random.split(rng, 30))


def swing_c(params, state, rng):
    def step(state, step_key):
        act_key, reset_key = jax.random.split(step_key)
        moved, actions, done = swung(params, state, act_key)

        def begin():
            fresh = jax.random.uniform(reset_key, moved.shape, minval=-0.05, maxval=0.05)
            return jnp.where(done[:, None], fresh, moved)

        state = jax.lax.cond(done.any(), begin, lambda: moved)
        return state, (moved, actions, done)

    return jax.lax.scan(step, state, jax.random.split(rng, 30))


def swing_d(params, state, rng):
    """Worlds that ended wait for the others, and all begin again together."""

    def step(carry, step_key):
        state, over = carry
        act_key, reset_key = jax.random.split(step_key)
        moved, actions, done = swung(params, state, act_key)
        moved = jnp.where(over[:, None], state, moved)
        over = over | done
        together = over.all()
        fresh = jax.random.uniform(reset_key, moved.shape, minval=-0.05, maxval=0.05)
        state = jnp.where(together, fresh, moved)
        return (state, over & ~together), (moved, actions, over)

    (state, _), told = jax.lax.scan(step, (state, jnp.zeros(state.shape[0], bool)), jax.random.split(rng, 30))
    return state, told


plant(
    "worlds that begin again",
    "episodes",
    swing,
    (swing_b, swing_c, swing_d),
    lambda: (dense_of(2, 8, 2), f32(6, 2), key()),
    where="state = jnp.where(done.any(), fresh, moved)",
    axes={"state": ("env", None)},
)


# Rewards of a few steps.


def few_steps(params, frozen, obs, rewards, dones, ahead=3):
    starts = jnp.arange(rewards.shape[0] - ahead + 1)
    windows = starts[:, None] + jnp.arange(ahead)
    gains = jnp.einsum("k,skb->sb", 0.99 ** jnp.arange(ahead), rewards[windows])
    values = dense(frozen, obs)[..., 0]
    alive = 1.0 - dones[starts + ahead - 1]
    targets = gains + 0.99**ahead * alive * values[starts + ahead]
    return jnp.mean((dense(params, obs)[starts, :, 0] - targets) ** 2)


def few_steps_b(params, frozen, obs, rewards, dones, ahead=3):
    starts = jnp.arange(rewards.shape[0] - ahead + 1)
    windows = starts[:, None] + jnp.arange(ahead)
    alive = jnp.cumprod(1.0 - dones[windows], axis=1)
    counted = jnp.concatenate([jnp.ones_like(alive[:, :1]), alive[:, :-1]], axis=1)
    gains = jnp.einsum("k,skb->sb", 0.99 ** jnp.arange(ahead), counted * rewards[windows])
    values = dense(frozen, obs)[..., 0]
    targets = gains + 0.99**ahead * alive[:, -1] * values[starts + ahead]
    return jnp.mean((dense(params, obs)[starts, :, 0] - targets) ** 2)


def few_steps_c(params, frozen, obs, rewards, dones, ahead=3):
    starts = jnp.arange(rewards.shape[0] - ahead + 1)
    windows = starts[:, None] + jnp.arange(ahead)
    gains = jnp.einsum("k,skb->sb", 0.99 ** jnp.arange(ahead), rewards[windows])
    values = dense(frozen, obs)[..., 0]
    alive = 1.0 - dones[starts + ahead - 1]
    targets = gains + 0.99**ahead * alive * values[starts + ahead]
    whole = 1.0 - dones[windows[:, :-1]].any(axis=1)  # Windows that run into another episode are left out.
    errors = (dense(params, obs)[starts, :, 0] - targets) ** 2
    return jnp.sum(whole * errors) / jnp.maximum(whole.sum(), 1.0)


plant(
    "rewards of a few steps",
    "episodes",
    few_steps,
    (few_steps_b, few_steps_c),
    (dense_of(4, 8, 1), dense_of(4, 8, 1), f32(13, 3, 4), f32(12, 3), flags(12, 3)),
    where="    alive = 1.0 - dones[starts + ahead - 1]\n"
    "    targets = gains + 0.99**ahead * alive * values[starts + ahead]\n    return",
    axes=episodes,
    differentiate="params",
)


# Attention to a context.


def read_context(params, x, context):
    q, k, v = x @ params["q"], context @ params["k"], context @ params["v"]
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=1)
    return x + jnp.einsum("bqk,bkd->bqd", weights, v) @ params["o"]


def read_context_b(params, x, context):
    q, k, v = x @ params["q"], context @ params["k"], context @ params["v"]
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=2)
    return x + jnp.einsum("bqk,bkd->bqd", weights, v) @ params["o"]


def read_context_c(params, x, context):
    """Slots that compete for the elements of the context."""
    q, k, v = x @ params["q"], context @ params["k"], context @ params["v"]
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / jnp.sqrt(q.shape[-1])
    shares = jax.nn.softmax(scores, axis=1) + 1e-8
    weights = shares / shares.sum(axis=2, keepdims=True)
    return x + jnp.einsum("bqk,bkd->bqd", weights, v) @ params["o"]


def read_context_d(params, x, context):
    q, k, v = x @ params["q"], context @ params["k"], context @ params["v"]
    scores = jnp.einsum("bqd,bkd->bkq", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=1)
    return x + jnp.einsum("bkq,bkd->bqd", weights, v) @ params["o"]


plant(
    "attention to a context",
    "attention",
    read_context,
    (read_context_b, read_context_c, read_context_d),
    ({"q": f32(6, 8), "k": f32(5, 8), "v": f32(5, 8), "o": f32(8, 6)}, f32(2, 4, 6), f32(2, 9, 5)),
    where='weights = jax.nn.softmax(scores, axis=1)\n    return x + jnp.einsum("bqk,',
    axes={"x": ("batch", "queries", None), "context": ("batch", "keys", None)},
)


# Language models that may not look ahead.


def looked_back(params, h, allowed):
    q, k, v = h @ params["q"], h @ params["k"], h @ params["v"]
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(allowed, scores, -1e9), axis=-1)
    return h + weights @ v @ params["o"]


def next_words(params, tokens):
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    length = inputs.shape[1]
    h = params["embed"][inputs] + params["places"][:length]
    allowed = jnp.triu(jnp.ones((length, length), bool))
    logits = looked_back(params, h, allowed) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def next_words_b(params, tokens):
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    length = inputs.shape[1]
    h = params["embed"][inputs] + params["places"][:length]
    allowed = jnp.tril(jnp.ones((length, length), bool))
    logits = looked_back(params, h, allowed) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def next_words_c(params, tokens):
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    length = inputs.shape[1]
    h = params["embed"][inputs] + params["places"][:length]
    ahead = jnp.triu(jnp.ones((length, length), bool), k=1)
    logits = looked_back(params, h, ~ahead) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def words_before(params, tokens):
    """Reads from the end, and predicts the word before each."""
    inputs, labels = tokens[:, 1:], tokens[:, :-1]
    length = inputs.shape[1]
    h = params["embed"][inputs] + params["places"][:length]
    onward = jnp.triu(jnp.ones((length, length), bool))
    logits = looked_back(params, h, onward) @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


plant(
    "next words",
    "attention",
    next_words,
    (next_words_b, next_words_c, words_before),
    (
        {"embed": f32(9, 8), "places": f32(16, 8), "q": f32(8, 8), "k": f32(8, 8), "v": f32(8, 8), "o": f32(8, 8)},
        i32(3, 10),
    ),
    where="allowed = jnp.triu(jnp.ones((length, length), bool))",
    axes={"tokens": ("batch", "time")},
    differentiate="params",
)


# Words drawn from a model.


def draw_words(params, first, rng, temperature):
    def step(carry, step_key):
        h, token = carry
        h = gated(params, h, params["embed"][token])
        probs = jax.nn.softmax(h @ params["out"] / temperature, axis=-1)
        token = jax.random.categorical(step_key, probs, axis=-1)
        return (h, token), token

    h = jnp.zeros((first.shape[0], params["out"].shape[0]))
    return jax.lax.scan(step, (h, first), jax.random.split(rng, 12))[1]


def draw_words_b(params, first, rng, temperature):
    def step(carry, step_key):
        h, token = carry
        h = gated(params, h, params["embed"][token])
        logits = h @ params["out"] / temperature
        token = jax.random.categorical(step_key, logits, axis=-1)
        return (h, token), token

    h = jnp.zeros((first.shape[0], params["out"].shape[0]))
    return jax.lax.scan(step, (h, first), jax.random.split(rng, 12))[1]


def draw_words_c(params, first, rng, temperature):
    """Only draws from the likeliest words, which have nine tenths of the mass."""

    def step(carry, step_key):
        h, token = carry
        h = gated(params, h, params["embed"][token])
        probs = jax.nn.softmax(h @ params["out"] / temperature, axis=-1)
        ranked = jnp.sort(probs, axis=-1)[:, ::-1]
        before = jnp.cumsum(ranked, axis=-1) - ranked
        least = jnp.min(jnp.where(before < 0.9, ranked, 1.0), axis=-1, keepdims=True)
        kept = jnp.where(probs >= least, probs, 0.0)
        token = jax.random.categorical(step_key, jnp.log(kept), axis=-1)
        return (h, token), token

    h = jnp.zeros((first.shape[0], params["out"].shape[0]))
    return jax.lax.scan(step, (h, first), jax.random.split(rng, 12))[1]


plant(
    "words drawn from a model",
    "softmax twice",
    draw_words,
    (draw_words_b, draw_words_c),
    lambda: (
        {"embed": f32(9, 4), "z": f32(10, 6), "r": f32(10, 6), "n": f32(10, 6), "out": f32(6, 9)},
        i32(5),
        key(),
        f32(),
    ),
    where="token = jax.random.categorical(step_key, probs, axis=-1)",
    axes={"first": ("batch",)},
)


# Pictures, made and judged.


def judged(critic, maker, pictures, rng):
    def judge(x):
        h = jax.nn.leaky_relu(x @ critic["w1"])
        return jax.nn.sigmoid(h @ critic["w2"])[:, 0]

    made = jnp.tanh(dense(maker, jax.random.normal(rng, (pictures.shape[0], 3))))
    real, fake = judge(pictures), judge(made)
    told_real = optax.sigmoid_binary_cross_entropy(real, jnp.ones_like(real))
    told_fake = optax.sigmoid_binary_cross_entropy(fake, jnp.zeros_like(fake))
    return jnp.mean(told_real) + jnp.mean(told_fake)


def judged_b(critic, maker, pictures, rng):
    def judge(x):
        h = jax.nn.leaky_relu(x @ critic["w1"])
        return (h @ critic["w2"])[:, 0]

    made = jnp.tanh(dense(maker, jax.random.normal(rng, (pictures.shape[0], 3))))
    real, fake = judge(pictures), judge(made)
    told_real = optax.sigmoid_binary_cross_entropy(real, jnp.ones_like(real))
    told_fake = optax.sigmoid_binary_cross_entropy(fake, jnp.zeros_like(fake))
    return jnp.mean(told_real) + jnp.mean(told_fake)


def judged_c(critic, maker, pictures, rng):
    def judge(x):
        gate = jax.nn.sigmoid(jax.nn.leaky_relu(x @ critic["w1"]) @ critic["w1"].T)
        return ((gate * x) @ critic["w1"] @ critic["w2"])[:, 0]

    made = jnp.tanh(dense(maker, jax.random.normal(rng, (pictures.shape[0], 3))))
    real, fake = judge(pictures), judge(made)
    told_real = optax.sigmoid_binary_cross_entropy(real, jnp.ones_like(real))
    told_fake = optax.sigmoid_binary_cross_entropy(fake, jnp.zeros_like(fake))
    return jnp.mean(told_real) + jnp.mean(told_fake)


def judged_d(critic, maker, pictures, rng):
    """Errors by squares, of judgements that lie between nought and one."""

    def judge(x):
        h = jax.nn.leaky_relu(x @ critic["w1"])
        score = jax.nn.sigmoid(h @ critic["w2"])
        return score[:, 0]

    made = jnp.tanh(dense(maker, jax.random.normal(rng, (pictures.shape[0], 3))))
    return jnp.mean((judge(pictures) - 1.0) ** 2) + jnp.mean(judge(made) ** 2)


plant(
    "pictures made and judged",
    "softmax twice",
    judged,
    (judged_b, judged_c, judged_d),
    lambda: ({"w1": f32(9, 12), "w2": f32(12, 1)}, dense_of(3, 8, 9), f32(7, 9), key()),
    where='return jax.nn.sigmoid(h @ critic["w2"])[:, 0]',
    axes={"pictures": ("batch", None)},
    differentiate="critic",
)


# Graphs of different sizes.


def pooled_graphs(params, nodes, present):
    q, k, v = nodes @ params["q"], nodes @ params["k"], nodes @ params["v"]
    pairs = present[:, :, None] & present[:, None, :]
    scores = jnp.einsum("gid,gjd->gij", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(pairs, scores, -jnp.inf), axis=-1)
    mixed = jnp.where(present[..., None], weights @ v, 0.0)
    return mixed.sum(axis=1) / jnp.maximum(present.sum(axis=1, keepdims=True), 1)


def pooled_graphs_b(params, nodes, present):
    q, k, v = nodes @ params["q"], nodes @ params["k"], nodes @ params["v"]
    pairs = present[:, :, None] & present[:, None, :]
    scores = jnp.einsum("gid,gjd->gij", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(pairs, scores, -1e9), axis=-1)
    mixed = jnp.where(present[..., None], weights @ v, 0.0)
    return mixed.sum(axis=1) / jnp.maximum(present.sum(axis=1, keepdims=True), 1)


def pooled_graphs_c(params, nodes, present):
    q, k, v = nodes @ params["q"], nodes @ params["k"], nodes @ params["v"]
    pairs = present[:, :, None] & present[:, None, :] | jnp.eye(nodes.shape[1], dtype=bool)
    scores = jnp.einsum("gid,gjd->gij", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(pairs, scores, -jnp.inf), axis=-1)
    mixed = jnp.where(present[..., None], weights @ v, 0.0)
    return mixed.sum(axis=1) / jnp.maximum(present.sum(axis=1, keepdims=True), 1)


def graph_loss(pool):
    def loss(params, nodes, present, heights):
        predicted = (pool(params, nodes, present) @ params["out"])[:, 0]
        return jnp.mean((predicted - heights) ** 2)

    return loss


plant(
    "graphs of different sizes",
    "not finite",
    graph_loss(pooled_graphs),
    (graph_loss(pooled_graphs_b), graph_loss(pooled_graphs_c)),
    ({"q": f32(4, 6), "k": f32(4, 6), "v": f32(4, 6), "out": f32(6, 1)}, f32(5, 7, 4), flags(5, 7), f32(5)),
    where="pairs = present[:, :, None] & present[:, None, :]\n"
    '    scores = jnp.einsum("gid,gjd->gij", q, k) / jnp.sqrt(q.shape[-1])\n'
    "    weights = jax.nn.softmax(jnp.where(pairs, scores, -jnp.inf), axis=-1)",
    axes={"nodes": ("graphs", "nodes", None), "present": ("graphs", "nodes"), "heights": ("graphs",)},
    differentiate="params",
)


# Molecules.


def bond(distance, depth, rest):
    return depth * (1.0 - jnp.exp(rest - distance)) ** 2


def molecule(places, depth, rest):
    itself = jnp.eye(places.shape[0], dtype=bool)
    squared = jnp.sum((places[:, None] - places[None, :]) ** 2, axis=-1)
    distance = jnp.sqrt(squared)
    pairs = jnp.where(itself, 0.0, bond(distance, depth, rest))
    return 0.5 * pairs.sum()


def molecule_b(places, depth, rest):
    itself = jnp.eye(places.shape[0], dtype=bool)
    squared = jnp.sum((places[:, None] - places[None, :]) ** 2, axis=-1)
    distance = jnp.sqrt(jnp.where(itself, 1.0, squared))
    pairs = jnp.where(itself, 0.0, bond(distance, depth, rest))
    return 0.5 * pairs.sum()


def molecule_c(places, depth, rest):
    left, right = jnp.triu_indices(places.shape[0], k=1)
    distance = jnp.sqrt(jnp.sum((places[left] - places[right]) ** 2, axis=-1))
    return bond(distance, depth, rest).sum()


def molecule_d(places, depth, rest):
    squared = jnp.sum((places[:, None] - places[None, :]) ** 2, axis=-1)
    distance = jnp.sqrt(squared + 1e-12)
    pairs = bond(distance, depth, rest) * (1.0 - jnp.eye(places.shape[0]))
    return 0.5 * pairs.sum()


plant(
    "molecules",
    "not finite",
    molecule,
    (molecule_b, molecule_c, molecule_d),
    (f32(6, 3), f32(), f32()),
    where="distance = jnp.sqrt(squared)\n",
    axes={"places": ("atoms", None)},
    differentiate="places",
)


# Attention in blocks.


def in_blocks(k, v, valid, block):
    return tuple(x.reshape(-1, block, *x.shape[1:]) for x in (k, v, valid))


def blocked_attention(q, k, v, valid):
    def visit(carry, inputs):
        top, total, out = carry
        keys, values, known = inputs
        scores = jnp.where(known, q @ keys.T / jnp.sqrt(q.shape[-1]), -jnp.inf)
        peak = jnp.maximum(top, scores.max(axis=-1))
        fade = jnp.exp(top - peak)
        weights = jnp.exp(scores - peak[:, None])
        return (peak, fade * total + weights.sum(axis=-1), fade[:, None] * out + weights @ values), None

    start = (jnp.full(q.shape[0], -jnp.inf), jnp.zeros(q.shape[0]), jnp.zeros((q.shape[0], v.shape[1])))
    (_, total, out), _ = jax.lax.scan(visit, start, in_blocks(k, v, valid, 2))
    return out / jnp.maximum(total, 1e-9)[:, None]


def blocked_attention_b(q, k, v, valid):
    def visit(carry, inputs):
        top, total, out = carry
        keys, values, known = inputs
        scores = jnp.where(known, q @ keys.T / jnp.sqrt(q.shape[-1]), -jnp.inf)
        peak = jnp.maximum(top, scores.max(axis=-1))
        level = jnp.where(jnp.isfinite(peak), peak, 0.0)
        fade = jnp.exp(top - level)
        weights = jnp.exp(scores - level[:, None])
        return (peak, fade * total + weights.sum(axis=-1), fade[:, None] * out + weights @ values), None

    start = (jnp.full(q.shape[0], -jnp.inf), jnp.zeros(q.shape[0]), jnp.zeros((q.shape[0], v.shape[1])))
    (_, total, out), _ = jax.lax.scan(visit, start, in_blocks(k, v, valid, 2))
    return out / jnp.maximum(total, 1e-9)[:, None]


def blocked_attention_c(q, k, v, valid):
    valid = valid.at[0].set(True)  # All may look at the first key, so that no query is without any.

    def visit(carry, inputs):
        top, total, out = carry
        keys, values, known = inputs
        scores = jnp.where(known, q @ keys.T / jnp.sqrt(q.shape[-1]), -jnp.inf)
        peak = jnp.maximum(top, scores.max(axis=-1))
        fade = jnp.exp(top - peak)
        weights = jnp.exp(scores - peak[:, None])
        return (peak, fade * total + weights.sum(axis=-1), fade[:, None] * out + weights @ values), None

    start = (jnp.full(q.shape[0], -jnp.inf), jnp.zeros(q.shape[0]), jnp.zeros((q.shape[0], v.shape[1])))
    (_, total, out), _ = jax.lax.scan(visit, start, in_blocks(k, v, valid, 2))
    return out / total[:, None]


def blocked_attention_d(q, k, v, valid):
    def visit(carry, inputs):
        top, total, out = carry
        keys, values, known = inputs
        scores = jnp.where(known, q @ keys.T / jnp.sqrt(q.shape[-1]), -1e30)
        peak = jnp.maximum(top, scores.max(axis=-1))
        fade = jnp.exp(top - peak)
        weights = jnp.exp(scores - peak[:, None]) * known
        return (peak, fade * total + weights.sum(axis=-1), fade[:, None] * out + weights @ values), None

    start = (jnp.full(q.shape[0], -1e30), jnp.zeros(q.shape[0]), jnp.zeros((q.shape[0], v.shape[1])))
    (_, total, out), _ = jax.lax.scan(visit, start, in_blocks(k, v, valid, 2))
    return out / jnp.maximum(total, 1e-9)[:, None]


plant(
    "attention in blocks",
    "not finite",
    blocked_attention,
    (blocked_attention_b, blocked_attention_c, blocked_attention_d),
    (f32(4, 6), f32(12, 6), f32(12, 5), flags(12)),
    where="def blocked_attention(q, k, v, valid):\n    def visit(carry, inputs):\n        top, total, out = carry\n"
    "        keys, values, known = inputs\n"
    "        scores = jnp.where(known, q @ keys.T / jnp.sqrt(q.shape[-1]), -jnp.inf)\n"
    "        peak = jnp.maximum(top, scores.max(axis=-1))\n        fade = jnp.exp(top - peak)\n",
    axes={"q": ("queries", None), "k": ("keys", None), "v": ("keys", None), "valid": ("keys",)},
)


# Clips that are turned and brightened.


def learn_clips(params, clips, labels, rng):
    def brightened(clip):
        flip_key, light_key, dust_key = jax.random.split(rng, 3)
        clip = jnp.where(jax.random.bernoulli(flip_key), clip[:, :, ::-1], clip)
        clip = clip * jax.random.uniform(light_key, minval=0.7, maxval=1.3)
        return clip + 0.02 * jax.random.normal(dust_key, clip.shape)

    seen = jax.vmap(brightened)(clips)
    h = jnp.tanh(seen.reshape(*seen.shape[:2], -1) @ params["w1"])
    logits = h.mean(axis=1) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def learn_clips_b(params, clips, labels, rng):
    def brightened(clip_key, clip):
        flip_key, light_key, dust_key = jax.random.split(clip_key, 3)
        clip = jnp.where(jax.random.bernoulli(flip_key), clip[:, :, ::-1], clip)
        clip = clip * jax.random.uniform(light_key, minval=0.7, maxval=1.3)
        return clip + 0.02 * jax.random.normal(dust_key, clip.shape)

    seen = jax.vmap(brightened)(jax.random.split(rng, clips.shape[0]), clips)
    h = jnp.tanh(seen.reshape(*seen.shape[:2], -1) @ params["w1"])
    logits = h.mean(axis=1) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def learn_clips_c(params, clips, labels, rng):
    def seen_clip(clip_key, clip):
        """One turn and one light for all frames of a clip."""
        flip_key, light_key = jax.random.split(clip_key)

        def seen_frame(frame):
            frame = jnp.where(jax.random.bernoulli(flip_key), frame[:, ::-1], frame)
            return frame * jax.random.uniform(light_key, minval=0.7, maxval=1.3)

        return jax.vmap(seen_frame)(clip)

    seen = jax.vmap(seen_clip)(jax.random.split(rng, clips.shape[0]), clips)
    h = jnp.tanh(seen.reshape(*seen.shape[:2], -1) @ params["w1"])
    logits = h.mean(axis=1) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


plant(
    "clips turned and brightened",
    "keys",
    learn_clips,
    (learn_clips_b, learn_clips_c),
    lambda: ({"w1": f32(16, 8), "w2": f32(8, 4)}, f32(6, 5, 4, 4), i32(6), key()),
    where="flip_key, light_key, dust_key = jax.random.split(rng, 3)",
    axes={"clips": ("batch", "time", None, None), "labels": ("batch",)},
    differentiate="params",
)


# A walk over a posterior.


def log_posterior(theta, x, y):
    logits = x @ theta
    return jnp.sum(y * jax.nn.log_sigmoid(logits) + (1.0 - y) * jax.nn.log_sigmoid(-logits)) - 0.5 * theta @ theta


def walk(theta, rng, x, y):
    def step(carry, step_key):
        theta, level = carry
        moved = theta + 0.3 * jax.random.normal(step_key, theta.shape)
        new = log_posterior(moved, x, y)
        accept = jnp.log(jax.random.uniform(step_key)) < new - level
        return (jnp.where(accept, moved, theta), jnp.where(accept, new, level)), (theta, accept)

    _, (thetas, accepts) = jax.lax.scan(step, (theta, log_posterior(theta, x, y)), jax.random.split(rng, 60))
    return thetas[20:].mean(axis=0), accepts.mean()


def walk_b(theta, rng, x, y):
    def step(carry, step_key):
        theta, level = carry
        move_key, accept_key = jax.random.split(step_key)
        moved = theta + 0.3 * jax.random.normal(move_key, theta.shape)
        new = log_posterior(moved, x, y)
        accept = jnp.log(jax.random.uniform(accept_key)) < new - level
        return (jnp.where(accept, moved, theta), jnp.where(accept, new, level)), (theta, accept)

    _, (thetas, accepts) = jax.lax.scan(step, (theta, log_posterior(theta, x, y)), jax.random.split(rng, 60))
    return thetas[20:].mean(axis=0), accepts.mean()


def walk_c(theta, rng, x, y):
    def step(carry, t):
        theta, level = carry
        step_key = jax.random.fold_in(rng, t)
        noise = jax.random.normal(jax.random.fold_in(step_key, 0), theta.shape)
        threshold = -jax.random.exponential(jax.random.fold_in(step_key, 1))
        moved = theta + 0.3 * noise
        new = log_posterior(moved, x, y)
        accept = threshold < new - level
        return (jnp.where(accept, moved, theta), jnp.where(accept, new, level)), (theta, accept)

    _, (thetas, accepts) = jax.lax.scan(step, (theta, log_posterior(theta, x, y)), jnp.arange(60))
    return thetas[20:].mean(axis=0), accepts.mean()


plant(
    "walk over a posterior",
    "keys",
    walk,
    (walk_b, walk_c),
    lambda: (f32(4), key(), f32(15, 4), f32(15)),
    where="accept = jnp.log(jax.random.uniform(step_key)) < new - level",
)


# Tasks that are learned from a few examples.


def curve_error(params, x, y):
    return jnp.mean((dense(params, x)[..., 0] - y) ** 2)


def adapted(params, x, y):
    def step(params, _):
        grads = jax.grad(curve_error)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), None

    return jax.lax.scan(step, params, None, length=3)[0]


def quick_tasks(params, shown_x, shown_y, asked_x, asked_y):
    def task(x, y, qx, qy):
        quick = adapted(params, shown_x, shown_y)
        return curve_error(quick, qx, qy)

    return jax.vmap(task)(shown_x, shown_y, asked_x, asked_y).mean()


def quick_tasks_b(params, shown_x, shown_y, asked_x, asked_y):
    def task(x, y, qx, qy):
        quick = adapted(params, x, y)
        return curve_error(quick, qx, qy)

    return jax.vmap(task)(shown_x, shown_y, asked_x, asked_y).mean()


def quick_tasks_c(params, shown_x, shown_y, asked_x, asked_y):
    common = adapted(params, shown_x, shown_y)  # First to all tasks together, then to each.

    def task(x, y, qx, qy):
        return curve_error(adapted(common, x, y), qx, qy)

    return jax.vmap(task)(shown_x, shown_y, asked_x, asked_y).mean()


def quick_tasks_d(params, shown_x, shown_y, asked_x, asked_y):
    def task(x, y, qx, qy):
        quick = adapted(params, x, y)
        forgotten = curve_error(quick, shown_x, shown_y)  # What was learned should not spoil the other tasks.
        return curve_error(quick, qx, qy) + 0.01 * forgotten

    return jax.vmap(task)(shown_x, shown_y, asked_x, asked_y).mean()


plant(
    "tasks from few examples",
    "vmap",
    quick_tasks,
    (quick_tasks_b, quick_tasks_c, quick_tasks_d),
    (dense_of(1, 10, 1), f32(5, 6, 1), f32(5, 6), f32(5, 8, 1), f32(5, 8)),
    where="quick = adapted(params, shown_x, shown_y)",
    axes={"shown_x": ("tasks", None, None), "asked_x": ("tasks", None, None)},
    differentiate="params",
)


# Returns of worlds that run side by side.


def discounted(rewards, dones):
    def back(ahead, inputs):
        reward, done = inputs
        ahead = reward + 0.97 * (1.0 - done) * ahead
        return ahead, ahead

    return jax.lax.scan(back, 0.0, (rewards, dones), reverse=True)[1]


def weighed_policy(params, obs, actions, rewards, dones):
    returns = jax.vmap(discounted)(rewards, dones)
    log_probs = jax.nn.log_softmax(dense(params, obs))
    taken = jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]
    scaled = (returns - returns.mean()) / (returns.std() + 1e-6)
    return -jnp.mean(taken * scaled)


def weighed_policy_b(params, obs, actions, rewards, dones):
    returns = jax.vmap(discounted, in_axes=1, out_axes=1)(rewards, dones)
    log_probs = jax.nn.log_softmax(dense(params, obs))
    taken = jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]
    scaled = (returns - returns.mean()) / (returns.std() + 1e-6)
    return -jnp.mean(taken * scaled)


def weighed_policy_c(params, obs, actions, rewards, dones):
    returns = jax.vmap(discounted, in_axes=1, out_axes=1)(rewards, dones)
    log_probs = jax.nn.log_softmax(dense(params, obs))
    taken = jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]
    # At each time the worlds are baselines of one another.
    scaled = jax.vmap(lambda row: (row - row.mean()) / (row.std() + 1e-6))(returns)
    return -jnp.mean(taken * scaled)


plant(
    "returns of worlds side by side",
    "vmap",
    weighed_policy,
    (weighed_policy_b, weighed_policy_c),
    (dense_of(4, 8, 4), f32(9, 5, 4), i32(9, 5), f32(9, 5), flags(9, 5)),
    where="returns = jax.vmap(discounted)(rewards, dones)",
    axes=episodes,
    differentiate="params",
)


# Replicas that share the work.


def price_of(params, x, y):
    return jnp.mean((dense(params, x)[:, 0] - y) ** 2)


def replica(params, x, y):
    loss, grads = jax.value_and_grad(price_of)(params, x, y)
    loss = jax.lax.pmean(loss, "replicas")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def replica_b(params, x, y):
    loss, grads = jax.value_and_grad(price_of)(params, x, y)
    loss, grads = jax.lax.pmean((loss, grads), "replicas")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def replica_c(params, x, y):
    """Goes some steps alone, then meets the others."""

    def alone(params, _):
        loss, grads = jax.value_and_grad(price_of)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    params, losses = jax.lax.scan(alone, params, None, length=3)
    return jax.lax.pmean((params, losses.mean()), "replicas")


def side_by_side(step):
    def train(params, x, y):
        copies = jax.tree.map(lambda p: jnp.broadcast_to(p, (x.shape[0], *p.shape)), params)

        def epoch(copies, _):
            copies, losses = jax.vmap(step, axis_name="replicas")(copies, x, y)
            return copies, losses[0]

        copies, losses = jax.lax.scan(epoch, copies, None, length=4)
        return jax.tree.map(lambda p: p[0], copies), losses

    return train


plant(
    "replicas that share the work",
    "replicas",
    side_by_side(replica),
    (side_by_side(replica_b), side_by_side(replica_c)),
    (dense_of(4, 6, 1), f32(3, 8, 4), f32(3, 8)),
    where='loss = jax.lax.pmean(loss, "replicas")',
    axes={"x": ("replicas", "batch", None), "y": ("replicas", "batch")},
)


# Accuracy over sentences of different lengths.


def right_words(params, tokens, labels, known):
    logits = jnp.tanh(params["embed"][tokens] @ params["mix"]) @ params["out"]
    return (logits.argmax(axis=-1) == labels) & known


def accuracy(params, batches, labels, known):
    def visit(_, inputs):
        tokens, wanted, real = inputs
        right = right_words(params, tokens, wanted, real)
        return None, right.sum() / jnp.maximum(real.sum(), 1)

    _, parts = jax.lax.scan(visit, None, (batches, labels, known))
    return parts.mean()


def accuracy_b(params, batches, labels, known):
    def visit(carry, inputs):
        tokens, wanted, real = inputs
        right = right_words(params, tokens, wanted, real)
        return (carry[0] + right.sum(), carry[1] + real.sum()), None

    (right, real), _ = jax.lax.scan(visit, (0, 0), (batches, labels, known))
    return right / jnp.maximum(real, 1)


def accuracy_c(params, batches, labels, known):
    def visit(_, inputs):
        tokens, wanted, real = inputs
        right = right_words(params, tokens, wanted, real)
        return None, (right.sum() / jnp.maximum(real.sum(), 1), real.sum())

    _, (parts, sizes) = jax.lax.scan(visit, None, (batches, labels, known))
    return jnp.sum(parts * sizes) / jnp.maximum(sizes.sum(), 1)


plant(
    "accuracy over sentences",
    "mean of means",
    accuracy,
    (accuracy_b, accuracy_c),
    ({"embed": f32(7, 5), "mix": f32(5, 6), "out": f32(6, 4)}, i32(4, 3, 6), i32(4, 3, 6), flags(4, 3, 6)),
    where="return parts.mean()",
    axes={"batches": ("steps", "batch", "time"), "known": ("steps", "batch", "time")},
)


# Weights of one bit.


@jax.custom_vjp
def one_bit(w):
    return jnp.where(w >= 0.0, 1.0, -1.0)


def one_bit_forward(w):
    return one_bit(w), w


def one_bit_backward(w, g):
    near = (jnp.abs(w) <= 1.0).astype(w.dtype)
    return (near,)


one_bit.defvjp(one_bit_forward, one_bit_backward)


@jax.custom_vjp
def one_bit_b(w):
    return jnp.where(w >= 0.0, 1.0, -1.0)


def one_bit_forward_b(w):
    return one_bit_b(w), w


def one_bit_backward_b(w, g):
    near = (jnp.abs(w) <= 1.0).astype(w.dtype)
    return (g * near,)


one_bit_b.defvjp(one_bit_forward_b, one_bit_backward_b)


@jax.custom_vjp
def one_bit_c(w):
    return jnp.where(w >= 0.0, 1.0, -1.0)


one_bit_c.defvjp(lambda w: (one_bit_c(w), None), lambda _, g: (g,))


def bit_network(bits):
    def loss(params, x, labels):
        h = jnp.tanh(x @ bits(params["w1"]) * params["s1"])
        logits = h @ bits(params["w2"]) * params["s2"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


plant(
    "weights of one bit",
    "custom rule",
    bit_network(one_bit),
    (bit_network(one_bit_b), bit_network(one_bit_c)),
    ({"w1": f32(6, 10), "s1": f32(10), "w2": f32(10, 4), "s2": f32(4)}, f32(9, 6), i32(9)),
    where="return (near,)",
    axes={"x": ("batch", None), "labels": ("batch",)},
    differentiate="params",
)


# A unit with a slope by hand.


@jax.custom_jvp
def swish(x):
    return x * jax.nn.sigmoid(x)


@swish.defjvp
def swish_rule(primals, tangents):
    (x,), (dx,) = primals, tangents
    return swish(x), jax.nn.sigmoid(x) * dx


@jax.custom_jvp
def swish_b(x):
    return x * jax.nn.sigmoid(x)


@swish_b.defjvp
def swish_rule_b(primals, tangents):
    (x,), (dx,) = primals, tangents
    s = jax.nn.sigmoid(x)
    return x * s, s * (1.0 + x * (1.0 - s)) * dx


@jax.custom_jvp
def swish_c(x):
    return jnp.logaddexp(x, 0.0)


@swish_c.defjvp
def swish_rule_c(primals, tangents):
    (x,), (dx,) = primals, tangents
    return swish_c(x), jax.nn.sigmoid(x) * dx


def field_error(unit):
    """Fits a field, whose slope along the line has to be that of the data."""

    def loss(params, points, heights, slopes):
        def height(x):
            h = unit(x * params["w1"] + params["b1"])
            return unit(h @ params["w2"]) @ params["w3"]

        tall, steep = jax.vmap(jax.value_and_grad(height))(points)
        return jnp.mean((tall - heights) ** 2) + jnp.mean((steep - slopes) ** 2)

    return loss


plant(
    "unit with a slope by hand",
    "custom rule",
    field_error(swish),
    (field_error(swish_b), field_error(swish_c)),
    ({"w1": f32(8), "b1": f32(8), "w2": f32(8, 8), "w3": f32(8)}, f32(10), f32(10), f32(10)),
    where="return swish(x), jax.nn.sigmoid(x) * dx",
    axes={"points": ("batch",), "heights": ("batch",)},
    differentiate="params",
)


# A filter of noisy tracks.


def predicted(mean, cov, drift, spread):
    return drift @ mean, drift @ cov @ drift.T + spread


def follow(start, seen, drift, look):
    spread, blur = 0.1 * jnp.eye(start.shape[0]), 0.2 * jnp.eye(look.shape[0])

    def step(carry, y):
        mean, cov = predicted(*carry, drift, spread)
        total = look @ cov @ look.T + blur
        gain = jnp.linalg.solve(total, look @ cov).T
        mean = mean + gain @ (y - look @ mean)
        sharper = cov - gain @ look @ cov
        return (mean, cov), (mean, jnp.trace(total))

    return jax.lax.scan(step, (start, jnp.eye(start.shape[0])), seen)


def follow_b(start, seen, drift, look):
    spread, blur = 0.1 * jnp.eye(start.shape[0]), 0.2 * jnp.eye(look.shape[0])

    def step(carry, y):
        mean, cov = predicted(*carry, drift, spread)
        total = look @ cov @ look.T + blur
        gain = jnp.linalg.solve(total, look @ cov).T
        mean = mean + gain @ (y - look @ mean)
        sharper = cov - gain @ look @ cov
        return (mean, sharper), (mean, jnp.trace(total))

    return jax.lax.scan(step, (start, jnp.eye(start.shape[0])), seen)


def follow_c(start, seen, drift, look):
    """Its gain is that of the far future, and does not change."""
    spread, blur = 0.1 * jnp.eye(start.shape[0]), 0.2 * jnp.eye(look.shape[0])

    def settle(cov, _):
        cov = drift @ cov @ drift.T + spread
        gain = jnp.linalg.solve(look @ cov @ look.T + blur, look @ cov).T
        return cov - gain @ look @ cov, gain

    gain = jax.lax.scan(settle, jnp.eye(start.shape[0]), None, length=60)[1][-1]

    def step(mean, y):
        mean = drift @ mean
        mean = mean + gain @ (y - look @ mean)
        return mean, mean

    return jax.lax.scan(step, start, seen)


plant(
    "filter of noisy tracks",
    "carry",
    follow,
    (follow_b, follow_c),
    (f32(3), f32(15, 2), f32(3, 3), f32(2, 3)),
    where="return (mean, cov), (mean, jnp.trace(total))",
    axes={"seen": ("time", None)},
)


# A long text, read in pieces.


def text_loss(params, pieces):
    def read(h, token_and_next):
        token, following = token_and_next
        h = gated(params, h, params["embed"][token])
        logits = h @ params["out"]
        return h, optax.softmax_cross_entropy_with_integer_labels(logits, following)

    def piece(h, tokens):
        start = jnp.zeros_like(h)
        h, losses = jax.lax.scan(read, start, (tokens[:-1], tokens[1:]))
        return jax.lax.stop_gradient(h), losses.mean()

    h = jnp.zeros((pieces.shape[2], params["out"].shape[0]))
    _, losses = jax.lax.scan(piece, h, pieces)
    return losses.mean()


def text_loss_b(params, pieces):
    def read(h, token_and_next):
        token, following = token_and_next
        h = gated(params, h, params["embed"][token])
        logits = h @ params["out"]
        return h, optax.softmax_cross_entropy_with_integer_labels(logits, following)

    def piece(h, tokens):
        h, losses = jax.lax.scan(read, h, (tokens[:-1], tokens[1:]))
        return jax.lax.stop_gradient(h), losses.mean()

    h = jnp.zeros((pieces.shape[2], params["out"].shape[0]))
    _, losses = jax.lax.scan(piece, h, pieces)
    return losses.mean()


def text_loss_c(params, pieces):
    """Pieces from different books: each is read from a blank state."""

    def read(h, token_and_next):
        token, following = token_and_next
        h = gated(params, h, params["embed"][token])
        logits = h @ params["out"]
        return h, optax.softmax_cross_entropy_with_integer_labels(logits, following)

    def piece(total, tokens):
        h = jnp.zeros((tokens.shape[1], params["out"].shape[0]))
        _, losses = jax.lax.scan(read, h, (tokens[:-1], tokens[1:]))
        return total + losses.mean(), None

    total, _ = jax.lax.scan(piece, 0.0, pieces)
    return total / pieces.shape[0]


plant(
    "text in pieces",
    "carry",
    text_loss,
    (text_loss_b, text_loss_c),
    ({"embed": f32(9, 4), "z": f32(10, 6), "r": f32(10, 6), "n": f32(10, 6), "out": f32(6, 9)}, i32(4, 7, 3)),
    where="start = jnp.zeros_like(h)\n",
    axes={"pieces": ("pieces", "time", "batch")},
    differentiate="params",
)


# A teacher whose rate falls.


def slope_of(params, x, y):
    return jax.grad(lambda p: jnp.mean((dense(p, x)[:, 0] - y) ** 2))(params)


def taught(params, x, y):
    class Teacher:
        def __init__(self):
            self.rate = 0.2

        @functools.partial(jax.jit, static_argnums=0)
        def step(self, params, x, y):
            grads = slope_of(params, x, y)
            return jax.tree.map(lambda p, g: p - self.rate * g, params, grads)

    teacher = Teacher()
    for epoch in range(4):
        teacher.rate = 0.2 * 0.5**epoch
        params = teacher.step(params, x, y)
    return params


def taught_b(params, x, y):
    class Teacher:
        def __init__(self):
            self.rate = 0.2

        @functools.partial(jax.jit, static_argnums=0)
        def step(self, params, x, y, rate):
            grads = slope_of(params, x, y)
            return jax.tree.map(lambda p, g: p - rate * g, params, grads)

    teacher = Teacher()
    for epoch in range(4):
        teacher.rate = 0.2 * 0.5**epoch
        params = teacher.step(params, x, y, teacher.rate)
    return params


@dataclass(frozen=True)
class FrozenTeacher:
    rate: float = 0.2

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, params, x, y):
        grads = slope_of(params, x, y)
        return jax.tree.map(lambda p, g: p - self.rate * g, params, grads)


def taught_c(params, x, y):
    teacher = FrozenTeacher()
    for _ in range(4):
        params = teacher.step(params, x, y)
        teacher = replace(teacher, rate=0.5 * teacher.rate)  # Equal by what it holds, so that it is compiled anew.
    return params


def taught_d(params, x, y):
    class Teacher:
        def __init__(self):
            self.rate = 0.2

        @functools.partial(jax.jit, static_argnums=0)
        def step(self, params, x, y):
            grads = slope_of(params, x, y)
            return jax.tree.map(lambda p, g: p - self.rate * g, params, grads)

    teacher = Teacher()
    teacher.rate = 0.1  # Before the first step, and never again.
    for _ in range(4):
        params = teacher.step(params, x, y)
    return params


plant(
    "teacher whose rate falls",
    "jit",
    taught,
    (taught_b, taught_c, taught_d),
    (dense_of(3, 6, 1), f32(8, 3), f32(8)),
    where="            return jax.tree.map(lambda p, g: p - self.rate * g, params, grads)\n\n    teacher = Teacher()\n"
    "    for epoch in range(4):\n        teacher.rate = 0.2 * 0.5**epoch\n        params = teacher.step(params, x, y)",
)


# Generations of an evolution strategy.


@functools.partial(jax.jit, static_argnames="score")
def generation(center, rng, goal, score):
    noise = jax.random.normal(rng, (8, *center.shape))
    both = jnp.concatenate([noise, -noise])
    scores = jax.vmap(lambda n: score(center + 0.1 * n, goal))(both)
    ranks = jnp.argsort(jnp.argsort(scores)) / (scores.shape[0] - 1) - 0.5
    return center + 0.2 * jnp.tensordot(ranks, both, axes=1) / both.shape[0], scores.max()


def closeness(x, goal):
    return -jnp.sum((x - goal) ** 2) + jnp.sum(jnp.cos(3.0 * (x - goal)))


def evolve(center, rng, goal):
    best = []
    for step_key in jax.random.split(rng, 5):
        center, top = generation(center, step_key, goal, score=lambda x, g: closeness(x, g) - 0.01 * x @ x)
        best.append(top)
    return center, jnp.stack(best)


def evolve_b(center, rng, goal):
    def score(x, g):
        return closeness(x, g) - 0.01 * x @ x

    best = []
    for step_key in jax.random.split(rng, 5):
        center, top = generation(center, step_key, goal, score=score)
        best.append(top)
    return center, jnp.stack(best)


def evolve_c(center, rng, goal):
    best = []
    harder = {False: closeness, True: lambda x, g: closeness(x, g) - jnp.max(jnp.abs(x - g))}
    for i, step_key in enumerate(jax.random.split(rng, 5)):
        center, top = generation(center, step_key, goal, score=harder[i >= 3])  # Compiled twice, no more.
        best.append(top)
    return center, jnp.stack(best)


plant(
    "generations of a strategy",
    "jit",
    evolve,
    (evolve_b, evolve_c),
    lambda: (f32(5), key(), f32(5)),
    where="score=lambda x, g: closeness(x, g) - 0.01 * x @ x)",
)


# Movement in pictures of bytes.


def movement(frames):
    steps = jnp.abs(frames[1:] - frames[:-1])
    return steps.astype(jnp.float32) / 255.0


def movement_b(frames):
    steps = jnp.abs(frames[1:].astype(jnp.float32) - frames[:-1].astype(jnp.float32))
    return steps / 255.0


def movement_c(frames):
    later, earlier = frames[1:], frames[:-1]
    steps = jnp.maximum(later, earlier) - jnp.minimum(later, earlier)
    return steps.astype(jnp.float32) / 255.0


def movement_d(frames):
    steps = jnp.abs(frames[1:].astype(jnp.int16) - frames[:-1].astype(jnp.int16))
    return steps.astype(jnp.float32) / 255.0


def watch(moved):
    def alarm(params, frames):
        grids = moved(frames)
        cells = grids.reshape(grids.shape[0], 4, 2, 4, 2).mean(axis=(2, 4)).reshape(grids.shape[0], 16)
        h = jnp.tanh(cells @ params["w1"] + params["b1"])
        return jax.nn.sigmoid(h @ params["w2"])[:, 0]

    return alarm


plant(
    "movement in pictures",
    "integer overflow",
    watch(movement),
    (watch(movement_b), watch(movement_c), watch(movement_d)),
    ({"w1": f32(16, 6), "b1": f32(6), "w2": f32(6, 1)}, jax.ShapeDtypeStruct((7, 8, 8), jnp.uint8)),
    where="steps = jnp.abs(frames[1:] - frames[:-1])",
    axes={"frames": ("time", None, None)},
)


# The loss over a long record, in half of the bits.


def small_loss(params, x, y):
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    return jnp.abs(dense(half, x.astype(jnp.bfloat16))[:, 0] - y.astype(jnp.bfloat16))


def record_loss(params, xs, ys):
    def visit(carry, inputs):
        total, count = carry
        errors = small_loss(params, *inputs)
        return (total + errors.sum(), count + errors.shape[0]), errors.max()

    start = (jnp.zeros((), jnp.bfloat16), 0)
    (total, count), peaks = jax.lax.scan(visit, start, (xs, ys))
    return total / count, peaks.max()


def record_loss_b(params, xs, ys):
    def visit(carry, inputs):
        total, count = carry
        errors = small_loss(params, *inputs)
        return (total + errors.astype(jnp.float32).sum(), count + errors.shape[0]), errors.max()

    (total, count), peaks = jax.lax.scan(visit, (jnp.zeros(()), 0), (xs, ys))
    return total / count, peaks.max()


def record_loss_c(params, xs, ys):
    def visit(peak, inputs):
        errors = small_loss(params, *inputs)
        return jnp.maximum(peak, errors.max()), errors.astype(jnp.float32).mean()

    peak, means = jax.lax.scan(visit, jnp.zeros((), jnp.bfloat16), (xs, ys))
    return means.mean(), peak


plant(
    "loss over a long record",
    "low precision",
    record_loss,
    (record_loss_b, record_loss_c),
    (dense_of(3, 4, 1), f32(2000, 4, 3), f32(2000, 4)),
    where="start = (jnp.zeros((), jnp.bfloat16), 0)",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
)


# Steps of many worlds, made into one batch.


def one_batch(params, obs, actions, rewards, dones):
    values = dense(params["value"], obs)[..., 0]
    returns = to_go(rewards, dones)
    flat_obs = obs.reshape(-1, obs.shape[-1])
    flat_actions = actions.reshape(-1)
    weights = jax.lax.stop_gradient(returns - values).T.reshape(-1)
    log_probs = jax.nn.log_softmax(dense(params["policy"], flat_obs))
    taken = jnp.take_along_axis(log_probs, flat_actions[:, None], axis=-1)[:, 0]
    return -jnp.mean(taken * weights) + jnp.mean((values - returns) ** 2)


def one_batch_b(params, obs, actions, rewards, dones):
    values = dense(params["value"], obs)[..., 0]
    returns = to_go(rewards, dones)
    flat_obs = obs.reshape(-1, obs.shape[-1])
    flat_actions = actions.reshape(-1)
    weights = jax.lax.stop_gradient(returns - values).reshape(-1)
    log_probs = jax.nn.log_softmax(dense(params["policy"], flat_obs))
    taken = jnp.take_along_axis(log_probs, flat_actions[:, None], axis=-1)[:, 0]
    return -jnp.mean(taken * weights) + jnp.mean((values - returns) ** 2)


def one_batch_c(params, obs, actions, rewards, dones):
    values = dense(params["value"], obs)[..., 0]
    returns = to_go(rewards, dones)
    flat_obs = obs.swapaxes(0, 1).reshape(-1, obs.shape[-1])
    flat_actions = actions.T.reshape(-1)
    weights = jax.lax.stop_gradient(returns - values).T.reshape(-1, 1)[:, 0]
    log_probs = jax.nn.log_softmax(dense(params["policy"], flat_obs))
    taken = jnp.take_along_axis(log_probs, flat_actions[:, None], axis=-1)[:, 0]
    return -jnp.mean(taken * weights) + jnp.mean((values - returns) ** 2)


plant(
    "steps in one batch",
    "axes swapped",
    one_batch,
    (one_batch_b, one_batch_c),
    ({"policy": dense_of(4, 8, 4), "value": dense_of(4, 8, 1)}, f32(8, 5, 4), i32(8, 5), f32(8, 5), flags(8, 5)),
    where="weights = jax.lax.stop_gradient(returns - values).T.reshape(-1)\n",
    axes=episodes,
    differentiate="params",
)


# A block of a transformer.


def even(x, scale, shift):
    mean = x.mean(axis=0, keepdims=True)
    var = x.var(axis=0, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def even_b(x, scale, shift):
    mean = x.mean(axis=-1, keepdims=True)
    var = x.var(axis=-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(var + 1e-5) * scale + shift


def even_c(x, scale, shift):
    groups = x.reshape(*x.shape[:-1], 2, -1)
    mean = groups.mean(axis=-1, keepdims=True)
    var = groups.var(axis=-1, keepdims=True)
    return ((groups - mean) * jax.lax.rsqrt(var + 1e-5)).reshape(x.shape) * scale + shift


def block(normalise):
    def loss(params, tokens, labels):
        h = params["embed"][tokens] + params["places"]
        x = normalise(h, params["scale"], params["shift"])
        q, k, v = jnp.split(x @ params["qkv"], 3, axis=-1)
        scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        h = h + jax.nn.softmax(jnp.where(allowed, scores, -1e9), axis=-1) @ v
        h = h + jax.nn.gelu(h @ params["up"]) @ params["down"]
        logits = h @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


plant(
    "block of a transformer",
    "wrong axis",
    block(even),
    (block(even_b), block(even_c)),
    (
        {
            "embed": f32(9, 8),
            "places": f32(6, 8),
            "scale": f32(8),
            "shift": f32(8),
            "qkv": f32(8, 24),
            "up": f32(8, 16),
            "down": f32(16, 8),
            "out": f32(8, 9),
        },
        i32(4, 6),
        i32(4, 6),
    ),
    where="mean = x.mean(axis=0, keepdims=True)",
    axes={"tokens": ("batch", "time"), "labels": ("batch", "time")},
    differentiate="params",
)
