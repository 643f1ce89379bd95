"""Learning programs of our own, in each of which some mistakes were planted, one at a time."""

from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from unseen.case import Case, f32, i32, key, shapes_of

GAMMA = 0.99
LAMBDA = 0.95


def init_mlp(rng, sizes):
    keys = jax.random.split(rng, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) / np.sqrt(m), "b": jnp.zeros((n,))}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp(layers, x):
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


# PPO with generalised advantage estimation.

PPO_TIME, PPO_ENVS, PPO_OBS, PPO_ACTIONS = 16, 6, 5, 3
PPO_MINIBATCHES = 4
ppo_optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))


def ppo_init(rng):
    actor, critic = jax.random.split(rng)
    return {
        "actor": init_mlp(actor, (PPO_OBS, 32, PPO_ACTIONS)),
        "critic": init_mlp(critic, (PPO_OBS, 32, 1)),
    }


def ppo_loss(params, obs, actions, old_log_probs, advantages, returns):
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[:, None], axis=-1)[:, 0]
    ratio = jnp.exp(log_probs - old_log_probs)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    policy_loss = -jnp.mean(jnp.minimum(ratio * scaled, clipped * scaled))
    value_loss = jnp.mean((mlp(params["critic"], obs)[:, 0] - returns) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1))
    return policy_loss + 0.5 * value_loss - 0.01 * entropy


def ppo_loss_bonus(params, obs, actions, old_log_probs, advantages, returns):
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[:, None], axis=-1)[:, 0]
    ratio = jnp.exp(log_probs - old_log_probs)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    policy_loss = -jnp.mean(jnp.minimum(ratio * scaled, clipped * scaled))
    value_loss = jnp.mean((mlp(params["critic"], obs)[:, 0] - returns) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1))
    return policy_loss + 0.5 * value_loss + 0.01 * entropy


def ppo_loss_negative_entropy(params, obs, actions, old_log_probs, advantages, returns):
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[:, None], axis=-1)[:, 0]
    ratio = jnp.exp(log_probs - old_log_probs)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 0.8, 1.2)
    policy_loss = jnp.mean(jnp.maximum(-ratio * scaled, -clipped * scaled))
    value_loss = jnp.mean((mlp(params["critic"], obs)[:, 0] - returns) ** 2)
    negative_entropy = jnp.mean(jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1))
    return policy_loss + 0.5 * value_loss + 0.01 * negative_entropy


def ppo_epochs(params, opt_state, batch, rng):
    size = PPO_TIME * PPO_ENVS

    def minibatch(carry, part):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(ppo_loss)(params, *part)
        updates, opt_state = ppo_optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    def epoch(carry, epoch_key):
        order = jax.random.permutation(epoch_key, size)
        shuffled = jax.tree.map(lambda x: x[order].reshape((PPO_MINIBATCHES, -1) + x.shape[1:]), batch)
        return jax.lax.scan(minibatch, carry, shuffled)

    (params, opt_state), losses = jax.lax.scan(epoch, (params, opt_state), jax.random.split(rng, 3))
    return params, opt_state, losses.mean()


def flatten_two(x):
    return x.reshape((-1,) + x.shape[2:])


def ppo_update(params, opt_state, obs, actions, old_log_probs, rewards, dones, last_obs, rng):
    values = mlp(params["critic"], obs)[..., 0]
    last_value = mlp(params["critic"], last_obs)[..., 0]

    def step(carry, inputs):
        advantage, next_value = carry
        reward, value, done = inputs
        delta = reward + GAMMA * next_value * (1.0 - done) - value
        advantage = delta + GAMMA * LAMBDA * (1.0 - done) * advantage
        return (advantage, value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    _, advantages = jax.lax.scan(step, start, (rewards, values, dones), reverse=True)
    returns = advantages + values
    batch = jax.tree.map(flatten_two, (obs, actions, old_log_probs, advantages, returns))
    return ppo_epochs(params, opt_state, batch, rng)


def ppo_update_trace(params, opt_state, obs, actions, old_log_probs, rewards, dones, last_obs, rng):
    values = mlp(params["critic"], obs)[..., 0]
    last_value = mlp(params["critic"], last_obs)[..., 0]

    def step(carry, inputs):
        advantage, next_value = carry
        reward, value, done = inputs
        delta = reward + GAMMA * next_value * (1.0 - done) - value
        advantage = delta + GAMMA * LAMBDA * advantage
        return (advantage, value), advantage

    start = (jnp.zeros_like(last_value), last_value)
    _, advantages = jax.lax.scan(step, start, (rewards, values, dones), reverse=True)
    returns = advantages + values
    batch = jax.tree.map(flatten_two, (obs, actions, old_log_probs, advantages, returns))
    return ppo_epochs(params, opt_state, batch, rng)


def ppo_update_discounts(params, opt_state, obs, actions, old_log_probs, rewards, dones, last_obs, rng):
    values = mlp(params["critic"], obs)[..., 0]
    last_value = mlp(params["critic"], last_obs)[..., 0]
    discounts = GAMMA * (1.0 - dones)
    next_values = jnp.concatenate([values[1:], last_value[None]])
    deltas = rewards + discounts * next_values - values

    def step(advantage, inputs):
        delta, discount = inputs
        advantage = delta + discount * LAMBDA * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(step, jnp.zeros_like(last_value), (deltas, discounts), reverse=True)
    returns = advantages + values
    batch = jax.tree.map(flatten_two, (obs, actions, old_log_probs, advantages, returns))
    return ppo_epochs(params, opt_state, batch, rng)


def trajectory_advantages(rewards, values, dones, last_value):
    """Advantages of one environment's steps."""

    def step(carry, inputs):
        advantage, next_value = carry
        reward, value, done = inputs
        delta = reward + GAMMA * next_value * (1.0 - done) - value
        advantage = delta + GAMMA * LAMBDA * (1.0 - done) * advantage
        return (advantage, value), advantage

    _, advantages = jax.lax.scan(step, (jnp.zeros(()), last_value), (rewards, values, dones), reverse=True)
    return advantages


def ppo_update_columns(params, opt_state, obs, actions, old_log_probs, rewards, dones, last_obs, rng):
    values = mlp(params["critic"], obs)[..., 0]
    last_value = mlp(params["critic"], last_obs)[..., 0]
    advantages = jax.vmap(trajectory_advantages, in_axes=(1, 1, 1, 0))(rewards, values, dones, last_value)
    flat_advantages = advantages.reshape(-1)
    returns = flat_advantages + values.reshape(-1)
    batch = (flatten_two(obs), actions.reshape(-1), old_log_probs.reshape(-1), flat_advantages, returns)
    return ppo_epochs(params, opt_state, batch, rng)


def ppo_update_env_major(params, opt_state, obs, actions, old_log_probs, rewards, dones, last_obs, rng):
    obs, actions, old_log_probs, rewards, dones = jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1), (obs, actions, old_log_probs, rewards, dones)
    )
    values = mlp(params["critic"], obs)[..., 0]
    last_value = mlp(params["critic"], last_obs)[..., 0]
    advantages = jax.vmap(trajectory_advantages)(rewards, values, dones, last_value).reshape(-1)
    returns = advantages + values.reshape(-1)
    batch = (flatten_two(obs), actions.reshape(-1), old_log_probs.reshape(-1), advantages, returns)
    return ppo_epochs(params, opt_state, batch, rng)


PPO_PARAMS = shapes_of(ppo_init, key())
PPO_ARGS = (
    PPO_PARAMS,
    shapes_of(ppo_optimizer.init, PPO_PARAMS),
    f32(PPO_TIME, PPO_ENVS, PPO_OBS),
    i32(PPO_TIME, PPO_ENVS),
    f32(PPO_TIME, PPO_ENVS),
    f32(PPO_TIME, PPO_ENVS),
    f32(PPO_TIME, PPO_ENVS),
    f32(PPO_ENVS, PPO_OBS),
    key(),
)
PPO_AXES = {
    "obs": ("time", "env", None),
    "actions": ("time", "env"),
    "old_log_probs": ("time", "env"),
    "rewards": ("time", "env"),
    "dones": ("time", "env"),
    "last_obs": ("env", None),
}


# DQN with a replay buffer.

DQN_OBS, DQN_ACTIONS, DQN_CAPACITY, DQN_BATCH = 4, 3, 128, 32
dqn_optimizer = optax.adam(1e-3)


def dqn_init(rng):
    return init_mlp(rng, (DQN_OBS, 24, 24, DQN_ACTIONS))


def dqn_loss(params, target_params, obs, actions, rewards, next_obs, dones):
    chosen = jnp.take_along_axis(mlp(params, obs), actions[:, None], axis=1)[:, 0]
    best = jnp.argmax(mlp(params, next_obs), axis=1)
    next_q = jnp.take_along_axis(mlp(target_params, next_obs), best[:, None], axis=1)[:, 0]
    targets = rewards + GAMMA * (1.0 - dones) * next_q
    return jnp.mean(optax.huber_loss(chosen, targets))


def dqn_loss_online(params, target_params, obs, actions, rewards, next_obs, dones):
    chosen = jnp.take_along_axis(mlp(params, obs), actions[:, None], axis=1)[:, 0]
    best = jnp.argmax(mlp(target_params, next_obs), axis=1)
    next_q = jnp.take_along_axis(mlp(params, next_obs), best[:, None], axis=1)[:, 0]
    targets = rewards + GAMMA * (1.0 - dones) * next_q
    return jnp.mean(optax.huber_loss(chosen, targets))


def dqn_loss_online_stopped(params, target_params, obs, actions, rewards, next_obs, dones):
    frozen = jax.lax.stop_gradient(params)
    chosen = jnp.take_along_axis(mlp(params, obs), actions[:, None], axis=1)[:, 0]
    best = jnp.argmax(mlp(target_params, next_obs), axis=1)
    next_q = jnp.take_along_axis(mlp(frozen, next_obs), best[:, None], axis=1)[:, 0]
    targets = rewards + GAMMA * (1.0 - dones) * next_q
    return jnp.mean(optax.huber_loss(chosen, targets))


def dqn_loss_take(params, target_params, obs, actions, rewards, next_obs, dones):
    chosen = jnp.take(mlp(params, obs), actions, axis=1)
    best = jnp.argmax(mlp(params, next_obs), axis=1)
    next_q = jnp.take_along_axis(mlp(target_params, next_obs), best[:, None], axis=1)[:, 0]
    targets = rewards + GAMMA * (1.0 - dones) * next_q
    return jnp.mean(optax.huber_loss(chosen, targets))


def dqn_loss_mapped_take(params, target_params, obs, actions, rewards, next_obs, dones):
    chosen = jax.vmap(lambda q, a: jnp.take(q, a, axis=0))(mlp(params, obs), actions)
    best = jnp.argmax(mlp(params, next_obs), axis=1)
    next_q = jnp.take_along_axis(mlp(target_params, next_obs), best[:, None], axis=1)[:, 0]
    targets = rewards + GAMMA * (1.0 - dones) * next_q
    return jnp.mean(optax.huber_loss(chosen, targets))


def dqn_environment(state, action, rng):
    """A noisy cart of sorts: the next state, the reward and whether it left the track."""
    force = action.astype(jnp.float32) - 1.0
    position, speed, angle, turn = state
    turn = turn + 0.05 * jnp.sin(angle) - 0.03 * force
    speed = speed + 0.02 * force
    moved = jnp.stack([position + speed, speed, angle + turn, turn]) + 0.01 * jax.random.normal(rng, (4,))
    done = jnp.abs(moved[0]) > 2.4
    return moved, 1.0 - jnp.abs(moved[2]), done


def dqn_learn(params, target_params, opt_state, buffer, filled, rng):
    rows = jax.random.randint(rng, (DQN_BATCH,), 0, filled)
    batch = jax.tree.map(lambda x: x[rows], buffer)
    grads = jax.grad(dqn_loss)(params, target_params, *batch)
    updates, opt_state = dqn_optimizer.update(grads, opt_state)
    params = optax.apply_updates(params, updates)
    return params, optax.incremental_update(params, target_params, 0.005), opt_state


def dqn_empty_buffer():
    return (
        jnp.zeros((DQN_CAPACITY, DQN_OBS)),
        jnp.zeros((DQN_CAPACITY,), jnp.int32),
        jnp.zeros((DQN_CAPACITY,)),
        jnp.zeros((DQN_CAPACITY, DQN_OBS)),
        jnp.zeros((DQN_CAPACITY,)),
    )


def dqn_train(params, opt_state, rng):
    def step(carry, step_key):
        params, target_params, opt_state, buffer, count, state = carry
        explore_key, action_key, env_key, sample_key = jax.random.split(step_key, 4)
        greedy = jnp.argmax(mlp(params, state))
        random = jax.random.randint(action_key, (), 0, DQN_ACTIONS)
        action = jnp.where(jax.random.uniform(explore_key) < 0.1, random, greedy).astype(jnp.int32)
        moved, reward, done = dqn_environment(state, action, env_key)
        slot = count % DQN_CAPACITY
        row = (state, action, reward, moved, done.astype(jnp.float32))
        buffer = jax.tree.map(lambda store, x: store.at[slot].set(x), buffer, row)
        filled = jnp.minimum(count + 1, DQN_CAPACITY)
        params, target_params, opt_state = dqn_learn(params, target_params, opt_state, buffer, filled, sample_key)
        state = jnp.where(done, jnp.zeros(DQN_OBS), moved)
        return (params, target_params, opt_state, buffer, count + 1, state), reward

    carry = (params, params, opt_state, dqn_empty_buffer(), jnp.int32(0), jnp.zeros(DQN_OBS))
    carry, rewards = jax.lax.scan(step, carry, jax.random.split(rng, 1000))
    return carry[0], rewards.mean()


def dqn_train_growing(params, opt_state, rng):
    def step(carry, step_key):
        params, target_params, opt_state, buffer, count, state = carry
        explore_key, action_key, env_key, sample_key = jax.random.split(step_key, 4)
        greedy = jnp.argmax(mlp(params, state))
        random = jax.random.randint(action_key, (), 0, DQN_ACTIONS)
        action = jnp.where(jax.random.uniform(explore_key) < 0.1, random, greedy).astype(jnp.int32)
        moved, reward, done = dqn_environment(state, action, env_key)
        row = (state, action, reward, moved, done.astype(jnp.float32))
        buffer = jax.tree.map(lambda store, x: store.at[count].set(x), buffer, row)
        filled = jnp.minimum(count + 1, DQN_CAPACITY)
        params, target_params, opt_state = dqn_learn(params, target_params, opt_state, buffer, filled, sample_key)
        state = jnp.where(done, jnp.zeros(DQN_OBS), moved)
        return (params, target_params, opt_state, buffer, count + 1, state), reward

    carry = (params, params, opt_state, dqn_empty_buffer(), jnp.int32(0), jnp.zeros(DQN_OBS))
    carry, rewards = jax.lax.scan(step, carry, jax.random.split(rng, 1000))
    return carry[0], rewards.mean()


def dqn_train_head(params, opt_state, rng):
    def step(carry, step_key):
        params, target_params, opt_state, buffer, head, filled, state = carry
        explore_key, action_key, env_key, sample_key = jax.random.split(step_key, 4)
        greedy = jnp.argmax(mlp(params, state))
        random = jax.random.randint(action_key, (), 0, DQN_ACTIONS)
        action = jnp.where(jax.random.uniform(explore_key) < 0.1, random, greedy).astype(jnp.int32)
        moved, reward, done = dqn_environment(state, action, env_key)
        row = (state, action, reward, moved, done.astype(jnp.float32))
        buffer = jax.tree.map(lambda store, x: store.at[head].set(x), buffer, row)
        head = jnp.where(head + 1 == DQN_CAPACITY, 0, head + 1)
        filled = jnp.minimum(filled + 1, DQN_CAPACITY)
        params, target_params, opt_state = dqn_learn(params, target_params, opt_state, buffer, filled, sample_key)
        state = jnp.where(done, jnp.zeros(DQN_OBS), moved)
        return (params, target_params, opt_state, buffer, head, filled, state), reward

    carry = (params, params, opt_state, dqn_empty_buffer(), jnp.int32(0), jnp.int32(0), jnp.zeros(DQN_OBS))
    carry, rewards = jax.lax.scan(step, carry, jax.random.split(rng, 1000))
    return carry[0], rewards.mean()


DQN_PARAMS = shapes_of(dqn_init, key())
DQN_LOSS_ARGS = (
    DQN_PARAMS,
    DQN_PARAMS,
    f32(DQN_BATCH, DQN_OBS),
    i32(DQN_BATCH),
    f32(DQN_BATCH),
    f32(DQN_BATCH, DQN_OBS),
    f32(DQN_BATCH),
)


# Soft actor-critic.

SAC_OBS, SAC_ACTIONS, SAC_BATCH, SAC_ROWS = 7, 2, 20, 300


def sac_init_actor(rng):
    return init_mlp(rng, (SAC_OBS, 32, 2 * SAC_ACTIONS))


def sac_init_critics(rng):
    return [init_mlp(k, (SAC_OBS + SAC_ACTIONS, 32, 1)) for k in jax.random.split(rng)]


def sac_sample(actor, obs, rng):
    mean, log_std = jnp.split(mlp(actor, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    raw = mean + jnp.exp(log_std) * jax.random.normal(rng, mean.shape)
    log_prob = -0.5 * ((raw - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    squash = 2.0 * (np.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(log_prob - squash, axis=-1)


def sac_q(critic, obs, action):
    return mlp(critic, jnp.concatenate([obs, action], axis=-1))


def sac_soft_value(critics, actor, log_alpha, obs, rng):
    action, log_prob = sac_sample(actor, obs, rng)
    lowest = jnp.minimum(sac_q(critics[0], obs, action), sac_q(critics[1], obs, action))[:, 0]
    return lowest - jnp.exp(log_alpha) * log_prob


def sac_critic_loss(critics, target_critics, actor, log_alpha, obs, actions, rewards, next_obs, dones, rng):
    next_value = sac_soft_value(target_critics, actor, log_alpha, next_obs, rng)
    targets = jax.lax.stop_gradient(rewards + GAMMA * (1.0 - dones) * next_value)
    first = sac_q(critics[0], obs, actions).squeeze(-1)
    second = sac_q(critics[1], obs, actions).squeeze(-1)
    return jnp.mean((first - targets) ** 2 + (second - targets) ** 2)


def sac_critic_loss_column(critics, target_critics, actor, log_alpha, obs, actions, rewards, next_obs, dones, rng):
    next_value = sac_soft_value(target_critics, actor, log_alpha, next_obs, rng)
    targets = jax.lax.stop_gradient(rewards + GAMMA * (1.0 - dones) * next_value)
    estimates = [sac_q(critic, obs, actions) for critic in critics]
    return sum(jnp.mean((estimate - targets) ** 2) for estimate in estimates)


def sac_critic_loss_all_columns(critics, target_critics, actor, log_alpha, obs, actions, rewards, next_obs, dones, rng):
    next_value = sac_soft_value(target_critics, actor, log_alpha, next_obs, rng)[:, None]
    backup = rewards[:, None] + GAMMA * (1.0 - dones[:, None]) * next_value
    backup = jax.lax.stop_gradient(backup)
    values = [sac_q(critic, obs, actions) for critic in critics]
    return sum(jnp.mean((value - backup) ** 2) for value in values)


def sac_policy_loss(actor, log_alpha, critics, obs, rng):
    action, log_prob = sac_sample(actor, obs, rng)
    lowest = jnp.minimum(sac_q(critics[0], obs, action), sac_q(critics[1], obs, action))[:, 0]
    alpha = jnp.exp(log_alpha)
    policy_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_prob - lowest)
    surplus = jax.lax.stop_gradient(log_prob - SAC_ACTIONS)
    return policy_loss - jnp.mean(alpha * surplus)


def sac_policy_loss_frozen(actor, log_alpha, critics, obs, rng):
    action, log_prob = sac_sample(actor, obs, rng)
    lowest = jnp.minimum(sac_q(critics[0], obs, action), sac_q(critics[1], obs, action))[:, 0]
    alpha = jax.lax.stop_gradient(jnp.exp(log_alpha))
    policy_loss = jnp.mean(alpha * log_prob - lowest)
    surplus = jax.lax.stop_gradient(log_prob - SAC_ACTIONS)
    return policy_loss - jnp.mean(alpha * surplus)


def sac_policy_loss_logarithm(actor, log_alpha, critics, obs, rng):
    action, log_prob = sac_sample(actor, obs, rng)
    lowest = jnp.minimum(sac_q(critics[0], obs, action), sac_q(critics[1], obs, action))[:, 0]
    temperature = jax.lax.stop_gradient(jnp.exp(log_alpha))
    policy_loss = jnp.mean(temperature * log_prob - lowest)
    surplus = jax.lax.stop_gradient(log_prob - SAC_ACTIONS)
    return policy_loss - jnp.mean(log_alpha * surplus)


def sac_critic_step(critics, target_critics, actor, log_alpha, batch, rng):
    grads = jax.grad(sac_critic_loss)(critics, target_critics, actor, log_alpha, *batch, rng)
    critics = jax.tree.map(lambda p, g: p - 3e-4 * g, critics, grads)
    return critics, optax.incremental_update(critics, target_critics, 0.005)


def sac_train(critics, target_critics, actor, log_alpha, replay, rng):
    def step(carry, step_key):
        critics, target_critics = carry
        row_key, noise_key = jax.random.split(step_key)
        rows = jax.random.randint(row_key, (SAC_BATCH,), 0, SAC_ROWS)
        batch = jax.tree.map(lambda x: x[rows], replay)
        return sac_critic_step(critics, target_critics, actor, log_alpha, batch, noise_key), None

    carry, _ = jax.lax.scan(step, (critics, target_critics), jax.random.split(rng, 40))
    return carry


def sac_train_once_split(critics, target_critics, actor, log_alpha, replay, rng):
    draw_key, noise_key = jax.random.split(rng)

    def step(carry, _):
        critics, target_critics = carry
        chosen = jax.random.randint(draw_key, (SAC_BATCH,), 0, SAC_ROWS)
        batch = jax.tree.map(lambda x: x[chosen], replay)
        return sac_critic_step(critics, target_critics, actor, log_alpha, batch, noise_key), None

    carry, _ = jax.lax.scan(step, (critics, target_critics), None, length=40)
    return carry


def sac_train_folded(critics, target_critics, actor, log_alpha, replay, rng):
    base_key, base_noise_key = jax.random.split(rng)

    def step(i, carry):
        critics, target_critics = carry
        picked = jax.random.randint(jax.random.fold_in(base_key, i), (SAC_BATCH,), 0, SAC_ROWS)
        batch = jax.tree.map(lambda x: x[picked], replay)
        noise_key = jax.random.fold_in(base_noise_key, i)
        return sac_critic_step(critics, target_critics, actor, log_alpha, batch, noise_key)

    return jax.lax.fori_loop(0, 40, step, (critics, target_critics))


SAC_ACTOR = shapes_of(sac_init_actor, key())
SAC_CRITICS = shapes_of(sac_init_critics, key())


def sac_rows(n):
    return (f32(n, SAC_OBS), f32(n, SAC_ACTIONS), f32(n), f32(n, SAC_OBS), f32(n))


# IMPALA's loss with V-trace.

IMPALA_OBS, IMPALA_ACTIONS = 6, 4


def impala_init(rng):
    actor, critic = jax.random.split(rng)
    return {
        "actor": init_mlp(actor, (IMPALA_OBS, 24, IMPALA_ACTIONS)),
        "critic": init_mlp(critic, (IMPALA_OBS, 24, 1)),
    }


def vtrace_targets(values, bootstrap, rewards, discounts, rho):
    """Targets of the values, all with time first."""
    next_values = jnp.concatenate([values[1:], bootstrap[None]])
    deltas = rho * (rewards + discounts * next_values - values)

    def step(correction, inputs):
        delta, discount, trace = inputs
        correction = delta + discount * trace * correction
        return correction, correction

    _, corrections = jax.lax.scan(step, jnp.zeros_like(bootstrap), (deltas, discounts, rho), reverse=True)
    return values + corrections


def impala_loss(params, obs, actions, behaviour, rewards, dones, last_obs):
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    values = mlp(params["critic"], obs)[..., 0]
    bootstrap = jax.lax.stop_gradient(mlp(params["critic"], last_obs)[..., 0])
    rho = jax.lax.stop_gradient(jnp.minimum(1.0, jnp.exp(log_probs - behaviour)))
    discounts = GAMMA * (1.0 - dones)
    fixed = jax.lax.stop_gradient(values)
    vs = vtrace_targets(fixed, bootstrap, rewards, discounts, rho)
    next_vs = jnp.concatenate([vs[1:], bootstrap[None]])
    advantages = rho * (rewards + discounts * next_vs - fixed)
    return jnp.mean(0.5 * (values - vs) ** 2 - log_probs * advantages)


def impala_loss_same_step(params, obs, actions, behaviour, rewards, dones, last_obs):
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    values = mlp(params["critic"], obs)[..., 0]
    bootstrap = jax.lax.stop_gradient(mlp(params["critic"], last_obs)[..., 0])
    rho = jax.lax.stop_gradient(jnp.minimum(1.0, jnp.exp(log_probs - behaviour)))
    discounts = GAMMA * (1.0 - dones)
    fixed = jax.lax.stop_gradient(values)
    vs = vtrace_targets(fixed, bootstrap, rewards, discounts, rho)
    advantages = rho * (rewards + discounts * vs - fixed)
    return jnp.mean(0.5 * (values - vs) ** 2 - log_probs * advantages)


def impala_loss_extended(params, obs, actions, behaviour, rewards, dones, last_obs):
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    values = mlp(params["critic"], jnp.concatenate([obs, last_obs[None]]))[..., 0]
    rho = jax.lax.stop_gradient(jnp.minimum(1.0, jnp.exp(log_probs - behaviour)))
    discounts = GAMMA * (1.0 - dones)
    fixed = jax.lax.stop_gradient(values)
    vs = vtrace_targets(fixed[:-1], fixed[-1], rewards, discounts, rho)
    after = jnp.concatenate([vs, fixed[-1:]])[1:]
    advantages = rho * (rewards + discounts * after - fixed[:-1])
    return jnp.mean(0.5 * (values[:-1] - vs) ** 2 - log_probs * advantages)


def swap_two(x):
    return jnp.swapaxes(x, 0, 1)


def impala_learner(params, obs, actions, behaviour, rewards, dones, last_obs):
    obs, actions, behaviour = swap_two(obs), swap_two(actions), swap_two(behaviour)
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    values = mlp(params["critic"], obs)[..., 0]
    bootstrap = jax.lax.stop_gradient(mlp(params["critic"], last_obs)[..., 0])
    rho = jax.lax.stop_gradient(jnp.minimum(1.0, jnp.exp(log_probs - behaviour)))
    rewards, discounts = swap_two(rewards), GAMMA * (1.0 - swap_two(dones))
    fixed = jax.lax.stop_gradient(values)
    vs = vtrace_targets(fixed, bootstrap, rewards, discounts, rho)
    next_vs = jnp.concatenate([vs[1:], bootstrap[None]])
    advantages = rho * (rewards + discounts * next_vs - fixed)
    return jnp.mean(0.5 * (values - vs) ** 2 - log_probs * advantages)


def impala_learner_half_swapped(params, obs, actions, behaviour, rewards, dones, last_obs):
    obs, actions, behaviour = swap_two(obs), swap_two(actions), swap_two(behaviour)
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    values = mlp(params["critic"], obs)[..., 0]
    bootstrap = jax.lax.stop_gradient(mlp(params["critic"], last_obs)[..., 0])
    rho = jax.lax.stop_gradient(jnp.minimum(1.0, jnp.exp(log_probs - behaviour)))
    rewards, discounts = swap_two(rewards), GAMMA * (1.0 - dones)
    fixed = jax.lax.stop_gradient(values)
    vs = vtrace_targets(fixed, bootstrap, rewards, discounts, rho)
    next_vs = jnp.concatenate([vs[1:], bootstrap[None]])
    advantages = rho * (rewards + discounts * next_vs - fixed)
    return jnp.mean(0.5 * (values - vs) ** 2 - log_probs * advantages)


def impala_learner_mapped(params, obs, actions, behaviour, rewards, dones, last_obs):
    log_policy = jax.nn.log_softmax(mlp(params["actor"], obs))
    log_probs = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    values = mlp(params["critic"], obs)[..., 0]
    bootstrap = jax.lax.stop_gradient(mlp(params["critic"], last_obs)[..., 0])
    rho = jax.lax.stop_gradient(jnp.minimum(1.0, jnp.exp(log_probs - behaviour)))
    discounts = GAMMA * (1.0 - dones)
    fixed = jax.lax.stop_gradient(values)
    vs = jax.vmap(vtrace_targets)(fixed, bootstrap, rewards, discounts, rho)
    next_vs = jnp.concatenate([vs[:, 1:], bootstrap[:, None]], axis=1)
    advantages = rho * (rewards + discounts * next_vs - fixed)
    return jnp.mean(0.5 * (values - vs) ** 2 - log_probs * advantages)


def impala_args(first, second, envs):
    return (
        shapes_of(impala_init, key()),
        f32(first, second, IMPALA_OBS),
        i32(first, second),
        f32(first, second),
        f32(first, second),
        f32(first, second),
        f32(envs, IMPALA_OBS),
    )


# A recurrent policy whose memory is cleared where episodes start.

GRU_TIME, GRU_ENVS, GRU_OBS, GRU_WIDTH, GRU_ACTIONS = 12, 16, 5, 16, 3
gru_cell = nn.GRUCell(features=GRU_WIDTH)


def gru_init(rng):
    cell, head = jax.random.split(rng)
    return {
        "cell": gru_cell.init(cell, jnp.zeros((1, GRU_WIDTH)), jnp.zeros((1, GRU_OBS))),
        "head": init_mlp(head, (GRU_WIDTH, GRU_ACTIONS)),
    }


def policy_gradient(head, features, actions, advantages):
    log_policy = jax.nn.log_softmax(mlp(head, features))
    log_probs = jnp.take_along_axis(log_policy, actions[..., None], axis=-1)[..., 0]
    return -jnp.mean(log_probs * advantages)


def gru_loss(params, obs, resets, actions, advantages, start):
    def step(hidden, inputs):
        x, reset = inputs
        hidden = jnp.where(reset[:, None] > 0, 0.0, hidden)
        return gru_cell.apply(params["cell"], hidden, x)

    _, features = jax.lax.scan(step, start, (obs, resets))
    return policy_gradient(params["head"], features, actions, advantages)


def gru_loss_from_start(params, obs, resets, actions, advantages, start):
    def step(hidden, inputs):
        x, reset = inputs
        hidden = jnp.where(reset[:, None] > 0, 0.0, start)
        return gru_cell.apply(params["cell"], hidden, x)

    _, features = jax.lax.scan(step, start, (obs, resets))
    return policy_gradient(params["head"], features, actions, advantages)


def gru_loss_reset_to_start(params, obs, resets, actions, advantages, start):
    def step(hidden, inputs):
        x, reset = inputs
        hidden = jnp.where(reset[:, None] > 0, start, hidden)
        return gru_cell.apply(params["cell"], hidden, x)

    _, features = jax.lax.scan(step, start, (obs, resets))
    return policy_gradient(params["head"], features, actions, advantages)


def gru_loss_flat_mask(params, obs, resets, actions, advantages, start):
    def step(hidden, inputs):
        x, reset = inputs
        hidden = hidden * (1.0 - reset)
        return gru_cell.apply(params["cell"], hidden, x)

    _, features = jax.lax.scan(step, start, (obs, resets))
    return policy_gradient(params["head"], features, actions, advantages)


def gru_loss_mapped(params, obs, resets, actions, advantages, start):
    def unroll(xs, begins, memory):
        def step(memory, inputs):
            x, begin = inputs
            memory = memory * (1.0 - begin)
            return gru_cell.apply(params["cell"], memory, x)

        return jax.lax.scan(step, memory, (xs, begins))[1]

    features = jax.vmap(unroll, in_axes=(1, 1, 0), out_axes=1)(obs, resets, start)
    return policy_gradient(params["head"], features, actions, advantages)


GRU_ARGS = (
    shapes_of(gru_init, key()),
    f32(GRU_TIME, GRU_ENVS, GRU_OBS),
    f32(GRU_TIME, GRU_ENVS),
    i32(GRU_TIME, GRU_ENVS),
    f32(GRU_TIME, GRU_ENVS),
    f32(GRU_ENVS, GRU_WIDTH),
)
GRU_AXES = {
    "obs": ("time", "env", None),
    "resets": ("time", "env"),
    "actions": ("time", "env"),
    "advantages": ("time", "env"),
    "start": ("env", None),
}


# Evolution strategies with mirrored noise.

ES_HALF, ES_DIM, ES_SIGMA = 10, 33, 0.1


def es_fitness(theta, rng):
    """The return of a linear controller on a noisy double integrator."""
    gains = theta[:3]

    def step(state, noise):
        position, speed = state
        force = gains[0] * position + gains[1] * speed + gains[2] + theta[3:] @ jnp.sin(position * jnp.arange(30.0))
        speed = speed + 0.1 * jnp.tanh(force) + 0.01 * noise
        position = position + 0.1 * speed
        return (position, speed), -(position**2) - 0.1 * speed**2

    start = (jnp.ones(()), jnp.zeros(()))
    return jax.lax.scan(step, start, jax.random.normal(rng, (50,)))[1].sum()


def es_ranks(fitness):
    ranks = jnp.argsort(jnp.argsort(fitness))
    return ranks / (fitness.shape[0] - 1) - 0.5


def es_step(theta, rng):
    noise_key, rollout_key = jax.random.split(rng)
    half = jax.vmap(lambda k: jax.random.normal(k, (ES_DIM,)))(jax.random.split(noise_key, ES_HALF))
    noise = jnp.concatenate([half, -half])
    keys = jax.random.split(rollout_key, 2 * ES_HALF)
    utility = es_ranks(jax.vmap(es_fitness)(theta + ES_SIGMA * noise, keys))
    plus, minus = utility.reshape(2, ES_HALF)
    direction = (plus - minus) @ half / (2 * ES_HALF * ES_SIGMA)
    return theta + 0.05 * direction


def es_step_one_draw(theta, rng):
    noise_key, rollout_key = jax.random.split(rng)
    half = jax.vmap(lambda _: jax.random.normal(noise_key, (ES_DIM,)))(jnp.arange(ES_HALF))
    noise = jnp.concatenate([half, -half])
    keys = jax.random.split(rollout_key, 2 * ES_HALF)
    utility = es_ranks(jax.vmap(es_fitness)(theta + ES_SIGMA * noise, keys))
    plus, minus = utility.reshape(2, ES_HALF)
    direction = (plus - minus) @ half / (2 * ES_HALF * ES_SIGMA)
    return theta + 0.05 * direction


def es_step_folded(theta, rng):
    noise_key, rollout_key = jax.random.split(rng)
    half = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(noise_key, i), (ES_DIM,)))(jnp.arange(ES_HALF))
    noise = jnp.concatenate([half, -half])
    keys = jax.random.split(rollout_key, 2 * ES_HALF)
    utility = es_ranks(jax.vmap(es_fitness)(theta + ES_SIGMA * noise, keys))
    plus, minus = utility.reshape(2, ES_HALF)
    direction = (plus - minus) @ half / (2 * ES_HALF * ES_SIGMA)
    return theta + 0.05 * direction


def es_step_pairs(theta, rng):
    noise_key, rollout_key = jax.random.split(rng)
    half = jax.random.normal(noise_key, (ES_HALF, ES_DIM))
    noise = jnp.concatenate([half, -half])
    keys = jax.random.split(rollout_key, 2 * ES_HALF)
    utility = es_ranks(jax.vmap(es_fitness)(theta + ES_SIGMA * noise, keys))
    pairs = utility.reshape(ES_HALF, 2)
    direction = (pairs[:, 0] - pairs[:, 1]) @ half / (2 * ES_HALF * ES_SIGMA)
    return theta + 0.05 * direction


def es_step_interleaved(theta, rng):
    noise_key, rollout_key = jax.random.split(rng)
    half = jax.random.normal(noise_key, (ES_HALF, ES_DIM))
    noise = jnp.stack([half, -half], axis=1).reshape(2 * ES_HALF, ES_DIM)
    keys = jax.random.split(rollout_key, 2 * ES_HALF)
    utility = es_ranks(jax.vmap(es_fitness)(theta + ES_SIGMA * noise, keys))
    couples = utility.reshape((ES_HALF, 2))
    direction = (couples[:, 0] - couples[:, 1]) @ half / (2 * ES_HALF * ES_SIGMA)
    return theta + 0.05 * direction


# Learning without labels: BYOL and SimSiam.

SSL_BATCH, SSL_PIXELS, SSL_WIDTH = 24, 48, 16
ssl_optimizer = optax.adamw(1e-3)


def ssl_init(rng):
    encoder, predictor = jax.random.split(rng)
    return {
        "encoder": init_mlp(encoder, (SSL_PIXELS, 32, SSL_WIDTH)),
        "predictor": init_mlp(predictor, (SSL_WIDTH, 8, SSL_WIDTH)),
    }


def ssl_views(images, rng):
    noise_key, mask_key = jax.random.split(rng)
    noisy = images + 0.1 * jax.random.normal(noise_key, (2, *images.shape))
    return noisy * jax.random.bernoulli(mask_key, 0.8, noisy.shape)


def cosine(a, b):
    a = a / jnp.sqrt(jnp.sum(a**2, axis=-1, keepdims=True) + 1e-8)
    b = b / jnp.sqrt(jnp.sum(b**2, axis=-1, keepdims=True) + 1e-8)
    return jnp.sum(a * b, axis=-1)


def byol_loss(online, target, images, rng):
    first, second = ssl_views(images, rng)
    loss = 0.0
    for seen, other in ((first, second), (second, first)):
        prediction = mlp(online["predictor"], mlp(online["encoder"], seen))
        goal = jax.lax.stop_gradient(mlp(target["encoder"], other))
        loss += jnp.mean(2.0 - 2.0 * cosine(prediction, goal))
    return loss


def byol_step(online, target, opt_state, images, rng):
    loss, grads = jax.value_and_grad(byol_loss)(online, target, images, rng)
    updates, opt_state = ssl_optimizer.update(grads, opt_state, online)
    new_online = optax.apply_updates(online, updates)
    new_target = optax.incremental_update(new_online, target, 0.004)
    return new_online, new_target, opt_state, loss


def byol_step_before(online, target, opt_state, images, rng):
    loss, grads = jax.value_and_grad(byol_loss)(online, target, images, rng)
    updates, opt_state = ssl_optimizer.update(grads, opt_state, online)
    new_online = optax.apply_updates(online, updates)
    new_target = optax.incremental_update(online, target, 0.004)
    return new_online, new_target, opt_state, loss


def byol_step_rebound(online, target, opt_state, images, rng):
    loss, grads = jax.value_and_grad(byol_loss)(online, target, images, rng)
    updates, opt_state = ssl_optimizer.update(grads, opt_state, online)
    online = optax.apply_updates(online, updates)
    target = optax.incremental_update(online, target, step_size=0.004)
    return online, target, opt_state, loss


def byol_step_fast(online, target, opt_state, images, rng):
    loss, grads = jax.value_and_grad(byol_loss)(online, target, images, rng)
    updates, opt_state = ssl_optimizer.update(grads, opt_state, online)
    online = optax.apply_updates(online, updates)
    target = optax.incremental_update(online, target, 0.996)
    return online, target, opt_state, loss


def byol_step_decay(online, target, opt_state, images, rng):
    loss, grads = jax.value_and_grad(byol_loss)(online, target, images, rng)
    updates, opt_state = ssl_optimizer.update(grads, opt_state, online)
    online = optax.apply_updates(online, updates)
    target = jax.tree.map(lambda old, new: 0.996 * old + (1.0 - 0.996) * new, target, online)
    return online, target, opt_state, loss


def simsiam_loss(params, images, rng):
    first, second = ssl_views(images, rng)
    z1, z2 = mlp(params["encoder"], first), mlp(params["encoder"], second)
    p1, p2 = mlp(params["predictor"], z1), mlp(params["predictor"], z2)
    z1, z2 = jax.lax.stop_gradient((z1, z2))
    return -0.5 * jnp.mean(cosine(p1, z2) + cosine(p2, z1))


def simsiam_loss_both_sides(params, images, rng):
    first, second = ssl_views(images, rng)
    z1, z2 = mlp(params["encoder"], first), mlp(params["encoder"], second)
    p1, p2 = mlp(params["predictor"], z1), mlp(params["predictor"], z2)
    return -0.5 * jnp.mean(cosine(p1, z2) + cosine(p2, z1))  # both views


def simclr_loss(params, images, rng):
    first, second = ssl_views(images, rng)
    z1, z2 = mlp(params["encoder"], first), mlp(params["encoder"], second)
    p1, p2 = mlp(params["predictor"], z1), mlp(params["predictor"], z2)
    similarity = cosine(p1[:, None], p2[None, :]) / 0.2
    positives = jnp.diag(similarity)
    return jnp.mean(
        jax.nn.logsumexp(similarity, axis=0) + jax.nn.logsumexp(similarity, axis=1) - 2.0 * positives,
    )


SSL_PARAMS = shapes_of(ssl_init, key())
BYOL_ARGS = (SSL_PARAMS, SSL_PARAMS, shapes_of(ssl_optimizer.init, SSL_PARAMS), f32(SSL_BATCH, SSL_PIXELS), key())


# A classifier with batch normalisation, by flax and by hand over replicas.

NORM_BATCH, NORM_INPUT, NORM_WIDTH, NORM_CLASSES = 32, 12, 20, 5
norm_optimizer = optax.sgd(0.05, momentum=0.9)


class NormNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(NORM_WIDTH)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(NORM_CLASSES)(nn.relu(x))


norm_net = NormNet()


def norm_init(rng):
    variables = norm_net.init(rng, jnp.zeros((1, NORM_INPUT)), train=False)
    return variables["params"], variables["batch_stats"]


def norm_step(params, batch_stats, opt_state, x, labels):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": batch_stats}
        logits, updated = norm_net.apply(variables, x, train=True, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, updated["batch_stats"]

    (loss, new_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = norm_optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), new_stats, opt_state, loss


def norm_step_forgetful(params, batch_stats, opt_state, x, labels):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": batch_stats}
        logits, _ = norm_net.apply(variables, x, train=True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = norm_optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), batch_stats, opt_state, loss


def norm_step_frozen(params, batch_stats, opt_state, x, labels):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": batch_stats}
        logits = norm_net.apply(variables, x, train=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = norm_optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), batch_stats, opt_state, loss


def sync_norm(x, running):
    """Normalises over the replicas' batches; also the new running statistics."""

    def replica(x):
        mean = jax.lax.pmean(jnp.mean(x, axis=0), "replica")
        var = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=0), "replica")
        return (x - mean) / jnp.sqrt(var + 1e-5), mean, var

    y, mean, var = jax.vmap(replica, axis_name="replica", out_axes=(0, None, None))(x)
    return y, {"mean": 0.9 * running["mean"] + 0.1 * mean, "var": 0.9 * running["var"] + 0.1 * var}


def sync_norm_own_centre(x, running):
    """Normalises over the replicas' batches; also the new running statistics."""

    def replica(x):
        mean = jax.lax.pmean(jnp.mean(x, axis=0), "replica")
        var = jax.lax.pmean(jnp.var(x, axis=0), "replica")
        return (x - mean) / jnp.sqrt(var + 1e-5), mean, var

    y, mean, var = jax.vmap(replica, axis_name="replica", out_axes=(0, None, None))(x)
    return y, {"mean": 0.9 * running["mean"] + 0.1 * mean, "var": 0.9 * running["var"] + 0.1 * var}


def sync_norm_two_parts(x, running):
    """Normalises over the replicas' batches; also the new running statistics."""

    def replica(x):
        own = jnp.mean(x, axis=0)
        mean = jax.lax.pmean(own, "replica")
        within = jax.lax.pmean(jnp.var(x, axis=0), axis_name="replica")
        var = within + jax.lax.pmean((own - mean) ** 2, "replica")
        return (x - mean) / jnp.sqrt(var + 1e-5), mean, var

    y, mean, var = jax.vmap(replica, axis_name="replica", out_axes=(0, None, None))(x)
    return y, {"mean": 0.9 * running["mean"] + 0.1 * mean, "var": 0.9 * running["var"] + 0.1 * var}


NORM_PARAMS, NORM_STATS = shapes_of(norm_init, key())
NORM_ARGS = (
    NORM_PARAMS,
    NORM_STATS,
    shapes_of(norm_optimizer.init, NORM_PARAMS),
    f32(NORM_BATCH, NORM_INPUT),
    i32(NORM_BATCH),
)


# Generative adversarial networks.

GAN_BATCH, GAN_LATENT, GAN_DATA = 40, 6, 10


def gan_init_generator(rng):
    return init_mlp(rng, (GAN_LATENT, 24, GAN_DATA))


def gan_init_critic(rng):
    return init_mlp(rng, (GAN_DATA, 24, 1))


def relu_mlp(layers, x):
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def gan_critic_loss(critic, generator, real, rng):
    latents = jax.random.normal(rng, (real.shape[0], GAN_LATENT))
    fake = jax.lax.stop_gradient(mlp(generator, latents))
    real_logits = relu_mlp(critic, real)[:, 0]
    fake_logits = relu_mlp(critic, fake)[:, 0]
    real_loss = -jax.nn.log_sigmoid(real_logits)
    fake_loss = -jax.nn.log_sigmoid(-fake_logits)
    return jnp.mean(real_loss) + jnp.mean(fake_loss)


def gan_critic_loss_probabilities(critic, generator, real, rng):
    latents = jax.random.normal(rng, (real.shape[0], GAN_LATENT))
    fake = jax.lax.stop_gradient(mlp(generator, latents))
    real_score = jax.nn.sigmoid(relu_mlp(critic, real)[:, 0])
    fake_score = jax.nn.sigmoid(relu_mlp(critic, fake)[:, 0])
    return -jnp.mean(jnp.log(real_score) + jnp.log(1.0 - fake_score))


def gan_critic_loss_guarded(critic, generator, real, rng):
    latents = jax.random.normal(rng, (real.shape[0], GAN_LATENT))
    fake = jax.lax.stop_gradient(mlp(generator, latents))
    real_score = jnp.clip(jax.nn.sigmoid(relu_mlp(critic, real)[:, 0]), 1e-5, 1.0 - 1e-5)
    fake_score = jnp.clip(jax.nn.sigmoid(relu_mlp(critic, fake)[:, 0]), 1e-5, 1.0 - 1e-5)
    real_loss, fake_loss = -jnp.log(real_score), -jnp.log(1.0 - fake_score)
    return jnp.mean(real_loss + fake_loss)


def wgan_critic_loss(critic, generator, real, rng):
    latent_key, mix_key = jax.random.split(rng)
    fake = jax.lax.stop_gradient(mlp(generator, jax.random.normal(latent_key, (real.shape[0], GAN_LATENT))))
    mix = jax.random.uniform(mix_key, (real.shape[0], 1))
    between = mix * real + (1.0 - mix) * fake
    slopes = jax.vmap(jax.grad(lambda x: relu_mlp(critic, x)[0]))(between)
    norms = jnp.sqrt(jnp.sum(slopes**2, axis=-1) + 1e-12)
    penalty = jnp.mean((norms - 1.0) ** 2)
    return jnp.mean(relu_mlp(critic, fake)) - jnp.mean(relu_mlp(critic, real)) + 10.0 * penalty


def wgan_critic_loss_plain_root(critic, generator, real, rng):
    latent_key, mix_key = jax.random.split(rng)
    fake = jax.lax.stop_gradient(mlp(generator, jax.random.normal(latent_key, (real.shape[0], GAN_LATENT))))
    mix = jax.random.uniform(mix_key, (real.shape[0], 1))
    between = mix * real + (1.0 - mix) * fake
    slopes = jax.vmap(jax.grad(lambda x: relu_mlp(critic, x)[0]))(between)
    norms = jnp.sqrt(jnp.sum(slopes**2, axis=-1))
    penalty = jnp.mean((norms - 1.0) ** 2)
    return jnp.mean(relu_mlp(critic, fake)) - jnp.mean(relu_mlp(critic, real)) + 10.0 * penalty


def wgan_critic_loss_squared(critic, generator, real, rng):
    latent_key, mix_key = jax.random.split(rng)
    fake = jax.lax.stop_gradient(mlp(generator, jax.random.normal(latent_key, (real.shape[0], GAN_LATENT))))
    mix = jax.random.uniform(mix_key, (real.shape[0], 1))
    between = mix * real + (1.0 - mix) * fake
    slopes = jax.vmap(jax.grad(lambda x: relu_mlp(critic, x)[0]))(between)
    penalty = jnp.mean(jnp.sum(slopes**2, axis=-1))
    return jnp.mean(relu_mlp(critic, fake)) - jnp.mean(relu_mlp(critic, real)) + 10.0 * penalty


GAN_ARGS = (shapes_of(gan_init_critic, key()), shapes_of(gan_init_generator, key()), f32(GAN_BATCH, GAN_DATA), key())


# Contrastive learning of images and texts over replicas.

CLIP_IMAGE, CLIP_TEXT, CLIP_WIDTH, CLIP_BATCH = 30, 18, 8, 16
clip_mesh = Mesh(np.array(jax.devices()[:1]), ("replica",))


def clip_init(rng):
    image, text = jax.random.split(rng)
    return {
        "image": init_mlp(image, (CLIP_IMAGE, 24, CLIP_WIDTH)),
        "text": init_mlp(text, (CLIP_TEXT, 24, CLIP_WIDTH)),
        "scale": jnp.zeros(()),
    }


def clip_similarity(params, images, texts):
    a = mlp(params["image"], images)
    b = mlp(params["text"], texts)
    a = a / jnp.sqrt(jnp.sum(a**2, axis=-1, keepdims=True) + 1e-8)
    b = b / jnp.sqrt(jnp.sum(b**2, axis=-1, keepdims=True) + 1e-8)
    return jnp.exp(params["scale"]) * a @ b.T


def clip_loss(params, images, texts):
    logits = clip_similarity(params, images, texts)
    image_loss = -jnp.mean(jnp.diag(jax.nn.log_softmax(logits, axis=1)))
    text_loss = -jnp.mean(jnp.diag(jax.nn.log_softmax(logits, axis=0)))
    return 0.5 * (image_loss + text_loss)


def clip_loss_one_way(params, images, texts):
    logits = clip_similarity(params, images, texts)
    image_loss = -jnp.mean(jnp.diag(jax.nn.log_softmax(logits, axis=1)))
    text_loss = -jnp.mean(jnp.diag(jax.nn.log_softmax(logits, axis=-1)))
    return 0.5 * (image_loss + text_loss)


def clip_loss_transposed(params, images, texts):
    logits = clip_similarity(params, images, texts)
    labels = jnp.arange(logits.shape[0])
    image_loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    text_loss = optax.softmax_cross_entropy_with_integer_labels(logits.T, labels).mean()
    return 0.5 * (image_loss + text_loss)


def clip_step(params, images, texts):
    @partial(
        jax.shard_map,
        mesh=clip_mesh,
        in_specs=(P(), P("replica"), P("replica")),
        out_specs=(P(), P()),
        check_vma=False,
    )
    def replica(params, images, texts):
        loss, grads = jax.value_and_grad(clip_loss)(params, images, texts)
        grads = jax.lax.pmean(grads, "replica")
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, jax.lax.pmean(loss, "replica")

    return replica(params, images, texts)


def clip_step_own_gradients(params, images, texts):
    @partial(
        jax.shard_map,
        mesh=clip_mesh,
        in_specs=(P(), P("replica"), P("replica")),
        out_specs=(P(), P()),
        check_vma=False,
    )
    def replica(params, images, texts):
        loss, grads = jax.value_and_grad(clip_loss)(params, images, texts)
        new_params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return new_params, jax.lax.pmean(loss, "replica")

    return replica(params, images, texts)


def clip_step_averaged_params(params, images, texts):
    @partial(
        jax.shard_map,
        mesh=clip_mesh,
        in_specs=(P(), P("replica"), P("replica")),
        out_specs=(P(), P()),
        check_vma=False,
    )
    def replica(params, images, texts):
        loss, grads = jax.value_and_grad(clip_loss)(params, images, texts)
        moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return jax.lax.pmean((moved, loss), "replica")

    return replica(params, images, texts)


CLIP_ARGS = (shapes_of(clip_init, key()), f32(CLIP_BATCH, CLIP_IMAGE), f32(CLIP_BATCH, CLIP_TEXT))


# Bandits.

ARMS = 9


def bandit_greedy(true_means, rng):
    def step(carry, step_key):
        means, counts = carry
        coin_key, arm_key, reward_key = jax.random.split(step_key, 3)
        explore = jax.random.uniform(coin_key) < 0.1
        arm = jnp.where(explore, jax.random.randint(arm_key, (), 0, ARMS), jnp.argmax(means))
        reward = true_means[arm] + jax.random.normal(reward_key)
        counts = counts.at[arm].add(1.0)
        means = means.at[arm].add((reward - means[arm]) / counts[arm])
        return (means, counts), reward

    start = (jnp.zeros(ARMS), jnp.zeros(ARMS))
    (means, _), rewards = jax.lax.scan(step, start, jax.random.split(rng, 500))
    return means, rewards.mean()


def bandit_one_coin(true_means, rng):
    def step(carry, step_key):
        means, counts = carry
        act_key, reward_key = jax.random.split(step_key)
        explore = jax.random.uniform(act_key) < 0.1
        arm = jnp.where(explore, jax.random.randint(act_key, (), 0, ARMS), jnp.argmax(means))
        reward = true_means[arm] + jax.random.normal(reward_key)
        counts = counts.at[arm].add(1.0)
        means = means.at[arm].add((reward - means[arm]) / counts[arm])
        return (means, counts), reward

    start = (jnp.zeros(ARMS), jnp.zeros(ARMS))
    (means, _), rewards = jax.lax.scan(step, start, jax.random.split(rng, 500))
    return means, rewards.mean()


def bandit_two_branches(true_means, rng):
    def step(carry, step_key):
        means, counts = carry
        coin_key, act_key, reward_key = jax.random.split(step_key, 3)
        explore = jax.random.uniform(coin_key) < 0.1
        arm = jax.lax.cond(
            explore,
            lambda k: jax.random.randint(k, (), 0, ARMS),
            lambda k: jnp.argmax(means + 1e-6 * jax.random.uniform(k, (ARMS,))).astype(jnp.int32),
            act_key,
        )
        reward = true_means[arm] + jax.random.normal(reward_key)
        counts = counts.at[arm].add(1.0)
        means = means.at[arm].add((reward - means[arm]) / counts[arm])
        return (means, counts), reward

    start = (jnp.zeros(ARMS), jnp.zeros(ARMS))
    (means, _), rewards = jax.lax.scan(step, start, jax.random.split(rng, 500))
    return means, rewards.mean()


class EpsilonPlayer:
    """Plays greedily but for a share of the rounds that shrinks."""

    def __init__(self):
        self.epsilon = 1.0

    @partial(jax.jit, static_argnums=0)
    def choose(self, means, rng):
        coin_key, arm_key = jax.random.split(rng)
        explore = jax.random.uniform(coin_key) < self.epsilon
        return jnp.where(explore, jax.random.randint(arm_key, (), 0, ARMS), jnp.argmax(means))


class EpsilonArgumentPlayer:
    """Plays greedily but for a share of the rounds that shrinks."""

    def __init__(self):
        self.epsilon = 1.0

    @partial(jax.jit, static_argnums=0)
    def choose(self, means, epsilon, rng):
        coin_key, arm_key = jax.random.split(rng)
        explore = jax.random.uniform(coin_key) < epsilon
        return jnp.where(explore, jax.random.randint(arm_key, (), 0, ARMS), jnp.argmax(means))


@dataclass(frozen=True)
class FixedPlayer:
    """Plays greedily but for a fixed share of the rounds."""

    share: float = 0.1

    @partial(jax.jit, static_argnums=0)
    def choose(self, means, rng):
        coin_key, arm_key = jax.random.split(rng)
        explore = jax.random.uniform(coin_key) < self.share
        return jnp.where(explore, jax.random.randint(arm_key, (), 0, ARMS), jnp.argmax(means))


def bandit_season(true_means, rng):
    player = EpsilonArgumentPlayer()
    means, counts = jnp.zeros(ARMS), jnp.zeros(ARMS)
    for round_key in jax.random.split(rng, 5):
        choice_key, reward_key = jax.random.split(round_key)
        arm = player.choose(means, player.epsilon, choice_key)
        counts = counts.at[arm].add(1.0)
        reward = true_means[arm] + jax.random.normal(reward_key)
        means = means.at[arm].add((reward - means[arm]) / counts[arm])
        player.epsilon *= 0.9
    return means, counts


def bandit_season_attribute(true_means, rng):
    player = EpsilonPlayer()
    means, counts = jnp.zeros(ARMS), jnp.zeros(ARMS)
    for round_key in jax.random.split(rng, 5):
        choice_key, reward_key = jax.random.split(round_key)
        arm = player.choose(means, choice_key)
        counts = counts.at[arm].add(1.0)
        reward = true_means[arm] + jax.random.normal(reward_key)
        means = means.at[arm].add((reward - means[arm]) / counts[arm])
        player.epsilon *= 0.9
    return means, counts


def bandit_season_fixed(true_means, rng):
    player = FixedPlayer()
    means, counts = jnp.zeros(ARMS), jnp.zeros(ARMS)
    for round_key in jax.random.split(rng, 5):
        choice_key, reward_key = jax.random.split(round_key)
        arm = player.choose(means, choice_key)
        counts = counts.at[arm].add(1.0)
        reward = true_means[arm] + jax.random.normal(reward_key)
        means = means.at[arm].add((reward - means[arm]) / counts[arm])
    return means, counts


# A small language model, trained by gradients gathered over parts of a batch.

LM_PARTS, LM_BATCH, LM_TIME, LM_VOCAB, LM_WIDTH = 8, 4, 11, 50, 16


def lm_init(rng):
    embed, head = jax.random.split(rng)
    return {
        "embed": 0.1 * jax.random.normal(embed, (LM_VOCAB, LM_WIDTH)),
        "head": init_mlp(head, (LM_WIDTH, 32, LM_VOCAB)),
    }


def lm_token_losses(params, tokens):
    x = params["embed"][tokens[:, :-1]]
    steps = jnp.arange(1, x.shape[1] + 1)[:, None]
    context = jnp.cumsum(x, axis=1) / steps
    return optax.softmax_cross_entropy_with_integer_labels(mlp(params["head"], context), tokens[:, 1:])


def lm_loss(params, tokens, mask):
    """The mean over the tokens that count, of all parts together."""

    def part(totals, inputs):
        part_tokens, part_mask = inputs
        losses = lm_token_losses(params, part_tokens)
        return (totals[0] + jnp.sum(losses * part_mask), totals[1] + jnp.sum(part_mask)), None

    (total, count), _ = jax.lax.scan(part, (0.0, 0.0), (tokens, mask))
    return total / jnp.maximum(count, 1.0)


def lm_loss_parts(params, tokens, mask):
    """The mean over the tokens that count, of all parts together."""

    def part(total, inputs):
        part_tokens, part_mask = inputs
        losses = lm_token_losses(params, part_tokens)
        return total + jnp.sum(losses * part_mask) / jnp.maximum(jnp.sum(part_mask), 1.0), None

    total, _ = jax.lax.scan(part, 0.0, (tokens, mask))
    return total / LM_PARTS


def lm_loss_weighted(params, tokens, mask):
    """The mean over the tokens that count, of all parts together."""

    def part(total, inputs):
        part_tokens, part_mask = inputs
        losses = lm_token_losses(params, part_tokens)
        count = jnp.sum(part_mask)
        mean = jnp.sum(losses * part_mask) / jnp.maximum(count, 1.0)
        return total + mean * count, None

    total, _ = jax.lax.scan(part, 0.0, (tokens, mask))
    return total / jnp.maximum(jnp.sum(mask), 1.0)


def lm_gather(params, tokens):
    def part(total, part_tokens):
        grads = jax.grad(lambda p: lm_token_losses(p, part_tokens).mean())(params)
        return jax.tree.map(lambda t, g: t + g, total, grads), None

    total = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    total, _ = jax.lax.scan(part, total, tokens)
    return jax.tree.map(lambda p, g: p - 0.01 * g / tokens.shape[0], params, total)


def lm_gather_short(params, tokens):
    def part(total, part_tokens):
        grads = jax.grad(lambda p: lm_token_losses(p, part_tokens).mean())(params)
        return jax.tree.map(lambda t, g: t + g.astype(t.dtype), total, grads), None

    total = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)
    total, _ = jax.lax.scan(part, total, tokens)
    return jax.tree.map(lambda p, g: p - 0.01 * g / tokens.shape[0], params, total)


def lm_gather_short_forward(params, tokens):
    small = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)

    def part(total, part_tokens):
        grads = jax.grad(lambda p: lm_token_losses(p, part_tokens).astype(jnp.float32).mean())(small)
        return jax.tree.map(lambda t, g: t + g.astype(jnp.float32), total, grads), None

    total = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
    total, _ = jax.lax.scan(part, total, tokens)
    return jax.tree.map(lambda p, g: p - 0.01 * g / tokens.shape[0], params, total)


def lm_descend(params, tokens, rate):
    grads = jax.grad(lambda p: lm_token_losses(p, tokens).mean())(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


@jax.jit
def lm_step(params, tokens, step):
    return lm_descend(params, tokens, 0.1 / jnp.sqrt(1.0 + step))


@partial(jax.jit, static_argnames="step")
def lm_step_static(params, tokens, step):
    return lm_descend(params, tokens, 0.1 / jnp.sqrt(1.0 + step))


@partial(jax.jit, static_argnames="warmup")
def lm_step_warmup(params, tokens, step, warmup):
    rate = 0.1 * jnp.minimum(1.0, (step + 1) / warmup)
    return lm_descend(params, tokens, rate)


def lm_fit(params, tokens):
    for step in range(LM_PARTS):
        params = lm_step(params, tokens[step], step)
    return params


def lm_fit_static(params, tokens):
    for step in range(LM_PARTS):
        params = lm_step_static(params, tokens[step], step)
    return params


def lm_fit_warmup(params, tokens):
    for step in range(LM_PARTS):
        params = lm_step_warmup(params, tokens[step], step, warmup=4)
    return params


LM_PARAMS = shapes_of(lm_init, key())


# Model-agnostic meta-learning of sine waves.

MAML_TASKS, MAML_SHOTS, MAML_INPUT = 8, 8, 2


def maml_init(rng):
    return init_mlp(rng, (MAML_INPUT, 20, 20, 1))


def maml_error(params, x, y):
    return jnp.mean((mlp(params, x)[:, 0] - y) ** 2)


def maml_task(params, support_x, support_y, query_x, query_y):
    for _ in range(2):
        grads = jax.grad(maml_error)(params, support_x, support_y)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
    return maml_error(params, query_x, query_y)


def maml_loss(params, support_x, support_y, query_x, query_y):
    losses = jax.vmap(maml_task, in_axes=(None, 0, 0, 0, 0))(params, support_x, support_y, query_x, query_y)
    return losses.mean()


def maml_loss_shots(params, support_x, support_y, query_x, query_y):
    losses = jax.vmap(maml_task, in_axes=(None, 1, 1, 0, 0))(params, support_x, support_y, query_x, query_y)
    return losses.mean()


def maml_loss_moved(params, support_x, support_y, query_x, query_y):
    shots_first = jax.tree.map(swap_two, (support_x, support_y))
    losses = jax.vmap(maml_task, (None, 1, 1, 0, 0))(params, *shots_first, query_x, query_y)
    return losses.mean()


def maml_task_unused(params, support_x, support_y, query_x, query_y):
    adapted = params
    for _ in range(2):
        grads = jax.grad(maml_error)(adapted, support_x, support_y)
        jax.tree.map(lambda p, g: p - 0.05 * g, adapted, grads)
    return maml_error(adapted, query_x, query_y)


def maml_loss_unused(params, support_x, support_y, query_x, query_y):
    losses = jax.vmap(maml_task_unused, in_axes=(None, 0, 0, 0, 0))(params, support_x, support_y, query_x, query_y)
    return losses.mean()


def maml_task_first_order(params, support_x, support_y, query_x, query_y):
    adapted = params
    for _ in range(2):
        grads = jax.lax.stop_gradient(jax.grad(maml_error)(adapted, support_x, support_y))
        adapted = jax.tree.map(lambda p, g: p - 0.05 * g, adapted, grads)
    return maml_error(adapted, query_x, query_y)


def maml_loss_first_order(params, support_x, support_y, query_x, query_y):
    losses = jax.vmap(maml_task_first_order, in_axes=(None, 0, 0, 0, 0))(params, support_x, support_y, query_x, query_y)
    return losses.mean()


def maml_args(tasks, shots, queries):
    return (
        shapes_of(maml_init, key()),
        f32(tasks, shots, MAML_INPUT),
        f32(tasks, shots),
        f32(tasks, queries, MAML_INPUT),
        f32(tasks, queries),
    )


CASES = [
    Case(
        name="third-ppo-trace-past-done",
        family="done cuts a part",
        wrong=ppo_update_trace,
        right=(ppo_update, ppo_update_discounts),
        args=PPO_ARGS,
        where="advantage = delta + GAMMA * LAMBDA * advantage",
        axes=PPO_AXES,
        planted=True,
    ),
    Case(
        name="third-ppo-flattened-by-env",
        family="time and environments exchanged",
        wrong=ppo_update_columns,
        right=(ppo_update, ppo_update_env_major),
        args=PPO_ARGS,
        where="advantages = jax.vmap(trajectory_advantages, in_axes=(1, 1, 1, 0))(rewards, values, dones, last_value)",
        axes=PPO_AXES,
        planted=True,
    ),
    Case(
        name="third-ppo-entropy-sign",
        family="sign or scale inverted",
        wrong=ppo_loss_bonus,
        right=(ppo_loss, ppo_loss_negative_entropy),
        args=(PPO_PARAMS, f32(48, PPO_OBS), i32(48), f32(48), f32(48), f32(48)),
        where="return policy_loss + 0.5 * value_loss + 0.01 * entropy",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-dqn-live-target",
        family="no stop_gradient",
        wrong=dqn_loss_online,
        right=(dqn_loss, dqn_loss_online_stopped),
        args=DQN_LOSS_ARGS,
        where="next_q = jnp.take_along_axis(mlp(params, next_obs), best[:, None], axis=1)[:, 0]",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-dqn-take-columns",
        family="wrong axis",
        wrong=dqn_loss_take,
        right=(dqn_loss, dqn_loss_mapped_take),
        args=DQN_LOSS_ARGS,
        where="chosen = jnp.take(mlp(params, obs), actions, axis=1)",
        axes={"obs": ("batch", None), "actions": ("batch",), "rewards": ("batch",)},
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-dqn-full-buffer",
        family="index out of range",
        wrong=dqn_train_growing,
        right=(dqn_train, dqn_train_head),
        args=(DQN_PARAMS, shapes_of(dqn_optimizer.init, DQN_PARAMS), key()),
        where="buffer = jax.tree.map(lambda store, x: store.at[count].set(x), buffer, row)",
        planted=True,
    ),
    Case(
        name="third-sac-critic-column",
        family="(N,) meets (N, 1)",
        wrong=sac_critic_loss_column,
        right=(sac_critic_loss, sac_critic_loss_all_columns),
        args=(SAC_CRITICS, SAC_CRITICS, SAC_ACTOR, f32(), *sac_rows(SAC_BATCH), key()),
        where="return sum(jnp.mean((estimate - targets) ** 2) for estimate in estimates)",
        differentiate="critics",
        planted=True,
    ),
    Case(
        name="third-sac-frozen-temperature",
        family="no gradient",
        wrong=sac_policy_loss_frozen,
        right=(sac_policy_loss, sac_policy_loss_logarithm),
        args=(SAC_ACTOR, f32(), SAC_CRITICS, f32(SAC_BATCH, SAC_OBS), key()),
        where="alpha = jax.lax.stop_gradient(jnp.exp(log_alpha))",
        differentiate=("actor", "log_alpha"),
        planted=True,
    ),
    Case(
        name="third-sac-same-rows",
        family="key reuse",
        wrong=sac_train_once_split,
        right=(sac_train, sac_train_folded),
        args=(SAC_CRITICS, SAC_CRITICS, SAC_ACTOR, f32(), sac_rows(SAC_ROWS), key()),
        where="chosen = jax.random.randint(draw_key, (SAC_BATCH,), 0, SAC_ROWS)",
        planted=True,
    ),
    Case(
        name="third-impala-advantage-step",
        family="off by one",
        wrong=impala_loss_same_step,
        right=(impala_loss, impala_loss_extended),
        args=impala_args(15, 7, 7),
        where="advantages = rho * (rewards + discounts * vs - fixed)",
        axes={"obs": ("time", "env", None), "rewards": ("time", "env"), "dones": ("time", "env")},
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-impala-dones-unswapped",
        family="time and environments exchanged",
        wrong=impala_learner_half_swapped,
        right=(impala_learner, impala_learner_mapped),
        args=impala_args(16, 16, 16),
        where="rewards, discounts = swap_two(rewards), GAMMA * (1.0 - dones)",
        axes={
            "obs": ("env", "time", None),
            "actions": ("env", "time"),
            "behaviour": ("env", "time"),
            "rewards": ("env", "time"),
            "dones": ("env", "time"),
            "last_obs": ("env", None),
        },
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-gru-from-start",
        family="carry not used",
        wrong=gru_loss_from_start,
        right=(gru_loss, gru_loss_reset_to_start),
        args=GRU_ARGS,
        where="hidden = jnp.where(reset[:, None] > 0, 0.0, start)",
        axes=GRU_AXES,
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-gru-flat-mask",
        family="wrong axis",
        wrong=gru_loss_flat_mask,
        right=(gru_loss, gru_loss_mapped),
        args=GRU_ARGS,
        where="hidden = hidden * (1.0 - reset)",
        axes=GRU_AXES,
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-es-one-draw",
        family="key shared by batch elements",
        wrong=es_step_one_draw,
        right=(es_step, es_step_folded),
        args=(f32(ES_DIM), key()),
        where="half = jax.vmap(lambda _: jax.random.normal(noise_key, (ES_DIM,)))(jnp.arange(ES_HALF))",
        planted=True,
    ),
    Case(
        name="third-es-mirrored-pairs",
        family="reshape for transpose",
        wrong=es_step_pairs,
        right=(es_step, es_step_interleaved),
        args=(f32(ES_DIM), key()),
        where="pairs = utility.reshape(ES_HALF, 2)",
        planted=True,
    ),
    Case(
        name="third-byol-average-of-old",
        family="state out of date",
        wrong=byol_step_before,
        right=(byol_step, byol_step_rebound),
        args=BYOL_ARGS,
        where="new_target = optax.incremental_update(online, target, 0.004)",
        planted=True,
    ),
    Case(
        name="third-byol-decay-as-step",
        family="sign or scale inverted",
        wrong=byol_step_fast,
        right=(byol_step, byol_step_decay),
        args=BYOL_ARGS,
        where="target = optax.incremental_update(online, target, 0.996)",
        planted=True,
    ),
    Case(
        name="third-simsiam-both-sides",
        family="no stop_gradient",
        wrong=simsiam_loss_both_sides,
        right=(simsiam_loss, simclr_loss),
        args=(SSL_PARAMS, f32(SSL_BATCH, SSL_PIXELS), key()),
        where="return -0.5 * jnp.mean(cosine(p1, z2) + cosine(p2, z1))  # both views",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-batch-norm-forgetful",
        family="result dropped",
        wrong=norm_step_forgetful,
        right=(norm_step, norm_step_frozen),
        args=NORM_ARGS,
        where='logits, _ = norm_net.apply(variables, x, train=True, mutable=["batch_stats"])',
        planted=True,
    ),
    Case(
        name="third-sync-norm-variance",
        family="mean of means",
        wrong=sync_norm_own_centre,
        right=(sync_norm, sync_norm_two_parts),
        args=(f32(4, 18, 7), {"mean": f32(7), "var": f32(7)}),
        where='var = jax.lax.pmean(jnp.var(x, axis=0), "replica")',
        axes={"x": ("replica", "batch", None)},
        planted=True,
    ),
    Case(
        name="third-gan-log-of-sigmoid",
        family="unstable logarithm",
        wrong=gan_critic_loss_probabilities,
        right=(gan_critic_loss, gan_critic_loss_guarded),
        args=GAN_ARGS,
        where="return -jnp.mean(jnp.log(real_score) + jnp.log(1.0 - fake_score))",
        differentiate="critic",
        planted=True,
    ),
    Case(
        name="third-wgan-penalty-root",
        family="NaN gradient",
        wrong=wgan_critic_loss_plain_root,
        right=(wgan_critic_loss, wgan_critic_loss_squared),
        args=GAN_ARGS,
        where="norms = jnp.sqrt(jnp.sum(slopes**2, axis=-1))",
        differentiate="critic",
        planted=True,
    ),
    Case(
        name="third-clip-own-gradients",
        family="replicas not averaged",
        wrong=clip_step_own_gradients,
        right=(clip_step, clip_step_averaged_params),
        args=CLIP_ARGS,
        where="new_params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)",
        planted=True,
    ),
    Case(
        name="third-clip-one-way",
        family="softmax axis",
        wrong=clip_loss_one_way,
        right=(clip_loss, clip_loss_transposed),
        args=CLIP_ARGS,
        where="text_loss = -jnp.mean(jnp.diag(jax.nn.log_softmax(logits, axis=-1)))",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-bandit-one-coin",
        family="key reuse",
        wrong=bandit_one_coin,
        right=(bandit_greedy, bandit_two_branches),
        args=(f32(ARMS), key()),
        where="arm = jnp.where(explore, jax.random.randint(act_key, (), 0, ARMS), jnp.argmax(means))",
        planted=True,
    ),
    Case(
        name="third-bandit-epsilon-attribute",
        family="state read by jit",
        wrong=bandit_season_attribute,
        right=(bandit_season, bandit_season_fixed),
        args=(f32(ARMS), key()),
        where="explore = jax.random.uniform(coin_key) < self.epsilon",
        planted=True,
    ),
    Case(
        name="third-lm-mean-of-parts",
        family="mean of means",
        wrong=lm_loss_parts,
        right=(lm_loss, lm_loss_weighted),
        args=(LM_PARAMS, i32(LM_PARTS, LM_BATCH, LM_TIME), f32(LM_PARTS, LM_BATCH, LM_TIME - 1)),
        where="return total + jnp.sum(losses * part_mask) / jnp.maximum(jnp.sum(part_mask), 1.0), None",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-lm-short-accumulator",
        family="dtype",
        wrong=lm_gather_short,
        right=(lm_gather, lm_gather_short_forward),
        args=(LM_PARAMS, i32(512, LM_BATCH, LM_TIME)),
        where="total = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.bfloat16), params)",
        planted=True,
    ),
    Case(
        name="third-lm-static-step",
        family="recompilation",
        wrong=lm_fit_static,
        right=(lm_fit, lm_fit_warmup),
        args=(LM_PARAMS, i32(LM_PARTS, LM_BATCH, LM_TIME)),
        where='@partial(jax.jit, static_argnames="step")',
        planted=True,
    ),
    Case(
        name="third-maml-over-shots",
        family="vmap",
        wrong=maml_loss_shots,
        right=(maml_loss, maml_loss_moved),
        args=maml_args(MAML_TASKS, MAML_SHOTS, 12),
        where="jax.vmap(maml_task, in_axes=(None, 1, 1, 0, 0))(params, support_x, support_y, query_x, query_y)",
        axes={
            "support_x": ("task", "shot", None),
            "support_y": ("task", "shot"),
            "query_x": ("task", "query", None),
            "query_y": ("task", "query"),
        },
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-maml-no-adaptation",
        family="result dropped",
        wrong=maml_loss_unused,
        right=(maml_loss, maml_loss_first_order),
        args=maml_args(6, 5, 10),
        where="        jax.tree.map(lambda p, g: p - 0.05 * g, adapted, grads)",
        differentiate="params",
        planted=True,
    ),
]
