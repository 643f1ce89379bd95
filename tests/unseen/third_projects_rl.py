"""Mistakes of projects of reinforcement learning, written anew."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key, shapes_of


def layer(inputs: int, outputs: int):
    return {"w": f32(inputs, outputs), "b": f32(outputs)}


def dense(p, x):
    return x @ p["w"] + p["b"]


class Trunk(nn.Module):
    width: int = 32

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(self.width)(x))
        return nn.tanh(nn.Dense(self.width)(x))


class ValueHead(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return jnp.squeeze(nn.Dense(1)(Trunk()(obs)), axis=-1)


class ColumnValueHead(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.Dense(1)(Trunk()(obs))


class QuantileHead(nn.Module):
    quantiles: int = 8

    @nn.compact
    def __call__(self, obs):
        return nn.Dense(self.quantiles)(Trunk()(obs))


# Clipped critic loss after a head that squeezes.


def critic_clip_wrong(params, obs, old_values, returns):
    values = ValueHead().apply({"params": params}, obs)
    clipped = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    losses = jnp.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * losses.mean()


def critic_clip_right(params, obs, old_values, returns):
    values = ValueHead().apply({"params": params}, obs)
    clipped = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    returns = returns[:, 0]
    losses = jnp.maximum(jnp.square(values - returns), jnp.square(clipped - returns))
    return 0.5 * losses.mean()


def critic_clip_column(params, obs, old_values, returns):
    values = ColumnValueHead().apply({"params": params}, obs)
    old_values = old_values[:, None]
    clipped = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    losses = jnp.maximum(jnp.square(values - returns), jnp.square(clipped - returns))
    return 0.5 * losses.mean()


# Soft target with a column of log probabilities.


def squashed_sample(rng, actor, obs, keepdims):
    mean, log_std = jnp.split(dense(actor, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    noise = jax.random.normal(rng, mean.shape)
    pre = mean + jnp.exp(log_std) * noise
    log_prob = -0.5 * (noise**2 + 2.0 * log_std + jnp.log(2.0 * jnp.pi))
    log_prob = log_prob - 2.0 * (jnp.log(2.0) - pre - jax.nn.softplus(-2.0 * pre))
    return jnp.tanh(pre), jnp.sum(log_prob, axis=-1, keepdims=keepdims)


def q_value(q, obs, action):
    hidden = nn.relu(dense(q["hidden"], jnp.concatenate([obs, action], axis=-1)))
    return dense(q["out"], hidden)[..., 0]


def soft_target_wrong(q, target_q, actor, rng, obs, action, reward, next_obs, terminated):
    next_action, next_log_prob = squashed_sample(rng, actor, next_obs, keepdims=True)
    soft_value = q_value(target_q, next_obs, next_action) - 0.2 * next_log_prob
    backup = reward + 0.99 * (1.0 - terminated) * soft_value
    return jnp.mean((q_value(q, obs, action) - jax.lax.stop_gradient(backup)) ** 2)


def soft_target_right(q, target_q, actor, rng, obs, action, reward, next_obs, terminated):
    next_action, next_log_prob = squashed_sample(rng, actor, next_obs, keepdims=False)
    soft = q_value(target_q, next_obs, next_action) - 0.2 * next_log_prob
    backup = reward + 0.99 * (1.0 - terminated) * soft
    return jnp.mean((q_value(q, obs, action) - jax.lax.stop_gradient(backup)) ** 2)


def soft_target_column(q, target_q, actor, rng, obs, action, reward, next_obs, terminated):
    next_action, next_log_prob = squashed_sample(rng, actor, next_obs, keepdims=True)
    next_q = q_value(target_q, next_obs, next_action)[:, None]
    soft = jnp.squeeze(next_q - 0.2 * next_log_prob, axis=1)
    backup = reward + 0.99 * (1.0 - terminated) * soft
    return jnp.mean((q_value(q, obs, action) - jax.lax.stop_gradient(backup)) ** 2)


# Two critics, one gradient.


def twin_step_wrong(q1, q2, opt1, opt2, obs, action, target):
    tx = optax.adam(3e-4)

    def loss(q):
        return jnp.mean((q_value(q, obs, action) - target) ** 2)

    loss1, grad1 = jax.value_and_grad(loss)(q1)
    loss2, grad2 = jax.value_and_grad(loss)(q2)
    updates1, opt1 = tx.update(grad1, opt1, q1)
    updates2, opt2 = tx.update(grad1, opt2, q2)
    q1 = optax.apply_updates(q1, updates1)
    q2 = optax.apply_updates(q2, updates2)
    return q1, q2, opt1, opt2, 0.5 * (loss1 + loss2)


def twin_step_right(q1, q2, opt1, opt2, obs, action, target):
    tx = optax.adam(3e-4)

    def loss(q):
        return jnp.mean((q_value(q, obs, action) - target) ** 2)

    loss1, grad1 = jax.value_and_grad(loss)(q1)
    loss2, grad2 = jax.value_and_grad(loss)(q2)
    updates1, opt1 = tx.update(grad1, opt1, q1)
    updates2, opt2 = tx.update(grad2, opt2, q2)
    q1 = optax.apply_updates(q1, updates1)
    q2 = optax.apply_updates(q2, updates2)
    return q1, q2, opt1, opt2, 0.5 * (loss1 + loss2)


def twin_step_joint(q1, q2, opt1, opt2, obs, action, target):
    tx = optax.adam(3e-4)

    def loss(both):
        errors = [jnp.mean((q_value(q, obs, action) - target) ** 2) for q in both]
        return sum(errors), errors

    (_, errors), (grad1, grad2) = jax.value_and_grad(loss, has_aux=True)((q1, q2))
    updates1, opt1 = tx.update(grad1, opt1, q1)
    updates2, opt2 = tx.update(grad2, opt2, q2)
    return optax.apply_updates(q1, updates1), optax.apply_updates(q2, updates2), opt1, opt2, 0.5 * sum(errors)


def twin_args():
    q = {"hidden": layer(9, 24), "out": layer(24, 1)}
    opt = shapes_of(optax.adam(3e-4).init, q)
    return q, q, opt, opt, f32(16, 6), f32(16, 3), f32(16)


# A slow copy that is not slow.


def soft_copy_wrong(online, target, opt_state, obs, action, target_value):
    tx = optax.adam(1e-3)
    tau = 0.005
    grads = jax.grad(lambda q: jnp.mean((q_value(q, obs, action) - target_value) ** 2))(online)
    updates, opt_state = tx.update(grads, opt_state)
    online = optax.apply_updates(online, updates)
    target = jax.tree.map(lambda t, o: tau * t + (1.0 - tau) * o, target, online)
    return online, target, opt_state


def soft_copy_right(online, target, opt_state, obs, action, target_value):
    tx = optax.adam(1e-3)
    tau = 0.005
    grads = jax.grad(lambda q: jnp.mean((q_value(q, obs, action) - target_value) ** 2))(online)
    updates, opt_state = tx.update(grads, opt_state)
    online = optax.apply_updates(online, updates)
    target = jax.tree.map(lambda t, o: (1.0 - tau) * t + tau * o, target, online)
    return online, target, opt_state


def soft_copy_decay(online, target, opt_state, obs, action, target_value):
    tx = optax.adam(1e-3)
    decay = 0.995
    grads = jax.grad(lambda q: jnp.mean((q_value(q, obs, action) - target_value) ** 2))(online)
    updates, opt_state = tx.update(grads, opt_state)
    online = optax.apply_updates(online, updates)
    target = jax.tree.map(lambda t, o: decay * t + (1.0 - decay) * o, target, online)
    return online, target, opt_state


def soft_copy_args():
    q = {"hidden": layer(9, 24), "out": layer(24, 1)}
    return q, q, shapes_of(optax.adam(1e-3).init, q), f32(16, 6), f32(16, 3), f32(16)


# Temporal differences computed ahead of the loop.


def multistep_wrong(reward, done, values):
    gamma, lam = 0.99, 0.95
    deltas = reward + gamma * values[1:] - values[:-1]

    def body(carry, inputs):
        delta, ended = inputs
        carry = delta + gamma * lam * (1.0 - ended) * carry
        return carry, carry

    _, advantages = jax.lax.scan(body, jnp.zeros_like(values[0]), (deltas, done), reverse=True)
    return advantages, advantages + values[:-1]


def multistep_right(reward, done, values):
    gamma, lam = 0.99, 0.95
    discount = gamma * (1.0 - done)
    deltas = reward + discount * values[1:] - values[:-1]

    def body(carry, inputs):
        delta, d = inputs
        carry = delta + d * lam * carry
        return carry, carry

    _, advantages = jax.lax.scan(body, jnp.zeros_like(values[0]), (deltas, discount), reverse=True)
    return advantages, advantages + values[:-1]


def multistep_zeroed(reward, done, values):
    gamma, lam = 0.99, 0.95
    alive = 1.0 - done
    following = alive * values[1:]
    deltas = reward + gamma * following - values[:-1]

    def body(carry, inputs):
        delta, alive_t = inputs
        carry = delta + alive_t * (gamma * lam * carry)
        return carry, carry

    _, advantages = jax.lax.scan(body, jnp.zeros_like(values[0]), (deltas, alive), reverse=True)
    return advantages, advantages + values[:-1]


# Episodes that end by a time limit.


def timeout_target_wrong(params, target_params, obs, action, reward, next_obs, terminated, truncated):
    done = jnp.logical_or(terminated, truncated)
    q = dense(params["out"], nn.relu(dense(params["hidden"], obs)))
    chosen = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    next_q = dense(target_params["out"], nn.relu(dense(target_params["hidden"], next_obs)))
    target = reward + 0.99 * jnp.where(done, 0.0, next_q.max(axis=-1))
    return optax.huber_loss(chosen, jax.lax.stop_gradient(target)).mean()


def timeout_target_right(params, target_params, obs, action, reward, next_obs, terminated, truncated):
    q = dense(params["out"], nn.relu(dense(params["hidden"], obs)))
    chosen = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    next_q = dense(target_params["out"], nn.relu(dense(target_params["hidden"], next_obs)))
    target = reward + 0.99 * jnp.where(terminated, 0.0, next_q.max(axis=-1))
    return optax.huber_loss(chosen, jax.lax.stop_gradient(target)).mean()


def timeout_target_skipped(params, target_params, obs, action, reward, next_obs, terminated, truncated):
    """Leaves out the steps of a time limit, whose next observation is of the next episode."""
    q = dense(params["out"], nn.relu(dense(params["hidden"], obs)))
    chosen = jnp.take_along_axis(q, action[:, None], axis=1)[:, 0]
    next_q = dense(target_params["out"], nn.relu(dense(target_params["hidden"], next_obs)))
    target = reward + 0.99 * jnp.where(terminated, 0.0, next_q.max(axis=-1))
    weight = jnp.logical_not(truncated).astype(jnp.float32)
    losses = optax.huber_loss(chosen, jax.lax.stop_gradient(target))
    return jnp.sum(losses * weight) / jnp.maximum(jnp.sum(weight), 1.0)


# An environment that begins again by itself.


def pendulum_reset(rng):
    angle, speed = jax.random.uniform(rng, (2,), minval=-0.5, maxval=0.5)
    state = {"angle": angle, "speed": speed, "time": jnp.int32(0)}
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed]), state


def pendulum_step(state, action):
    speed = state["speed"] + 0.05 * (10.0 * jnp.sin(state["angle"]) + 3.0 * action)
    angle = state["angle"] + 0.05 * speed
    state = {"angle": angle, "speed": speed, "time": state["time"] + 1}
    done = (jnp.abs(angle) > 2.0) | (state["time"] >= 200)
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed]), state, -(angle**2), done


def auto_reset_wrong(policy, rng):
    def step(carry, rng):
        obs, state = carry
        action = jnp.tanh(obs @ policy)
        next_obs, state, reward, done = pendulum_step(state, action)
        reset_obs, _ = pendulum_reset(rng)
        next_obs = jnp.where(done, reset_obs, next_obs)
        return (next_obs, state), (obs, action, reward, done)

    rng, first = jax.random.split(rng)
    return jax.lax.scan(step, pendulum_reset(first), jax.random.split(rng, 64))[1]


def auto_reset_right(policy, rng):
    def step(carry, rng):
        obs, state = carry
        action = jnp.tanh(obs @ policy)
        next_obs, next_state, reward, done = pendulum_step(state, action)
        begun = pendulum_reset(rng)
        carry = jax.tree.map(lambda a, b: jnp.where(done, a, b), begun, (next_obs, next_state))
        return carry, (obs, action, reward, done)

    rng, first = jax.random.split(rng)
    return jax.lax.scan(step, pendulum_reset(first), jax.random.split(rng, 64))[1]


def auto_reset_frozen(policy, rng):
    """Goes on past the end and weighs the rest by zero."""

    def step(carry, _):
        obs, state, over = carry
        action = jnp.tanh(obs @ policy)
        next_obs, state, reward, done = pendulum_step(state, action)
        return (next_obs, state, over | done), (obs, action, jnp.where(over, 0.0, reward), done)

    obs, state = pendulum_reset(rng)
    return jax.lax.scan(step, (obs, state, jnp.bool_(False)), length=64)[1]


# Returns of finished episodes for the log.


def episode_log_wrong(reward, done):
    def step(carry, inputs):
        running, last = carry
        r, ended = inputs
        total = running + r
        last = jnp.where(ended, running, last)
        running = jnp.where(ended, 0.0, total)
        return (running, last), last

    start = jnp.zeros_like(reward[0])
    _, finished = jax.lax.scan(step, (start, start), (reward, done))
    return finished


def episode_log_right(reward, done):
    def step(carry, inputs):
        running, last = carry
        r, ended = inputs
        total = running + r
        last = jnp.where(ended, total, last)
        running = jnp.where(ended, 0.0, total)
        return (running, last), last

    start = jnp.zeros_like(reward[0])
    _, finished = jax.lax.scan(step, (start, start), (reward, done))
    return finished


def episode_log_before(reward, done):
    """`done` says that the observation before the step was the last."""

    def step(carry, inputs):
        running, last = carry
        r, ended_before = inputs
        last = jnp.where(ended_before, running, last)
        running = jnp.where(ended_before, 0.0, running) + r
        return (running, last), last

    start = jnp.zeros_like(reward[0])
    before = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]], axis=0)
    _, finished = jax.lax.scan(step, (start, start), (reward, before))
    return finished


# A recurrent policy replayed for the update.


def gru_like(p, hidden, x):
    both = jnp.concatenate([hidden, x], axis=-1)
    gate = jax.nn.sigmoid(dense(p["gate"], both))
    return (1.0 - gate) * hidden + gate * jnp.tanh(dense(p["new"], both))


def replay_wrong(params, obs, action, done, advantage, old_log_prob):
    def cell(hidden, inputs):
        x, reset = inputs
        hidden = jnp.where(reset[:, None], 0.0, hidden)
        hidden = gru_like(params, hidden, x)
        return hidden, dense(params["policy"], hidden)

    hidden = jnp.zeros((obs.shape[1], 16))
    _, logits = jax.lax.scan(cell, hidden, (obs, done))
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()


def replay_right(params, obs, action, done, advantage, old_log_prob):
    def cell(hidden, inputs):
        x, reset = inputs
        hidden = jnp.where(reset[:, None], 0.0, hidden)
        hidden = gru_like(params, hidden, x)
        return hidden, dense(params["policy"], hidden)

    hidden = jnp.zeros((obs.shape[1], 16))
    begins = jnp.concatenate([jnp.ones_like(done[:1]), done[:-1]], axis=0)
    _, logits = jax.lax.scan(cell, hidden, (obs, begins))
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()


def replay_after(params, obs, action, done, advantage, old_log_prob):
    def cell(hidden, inputs):
        x, ended = inputs
        hidden = gru_like(params, hidden, x)
        return jnp.where(ended[:, None], 0.0, hidden), dense(params["policy"], hidden)

    hidden = jnp.zeros((obs.shape[1], 16))
    _, outputs = jax.lax.scan(cell, hidden, (obs, done))
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(outputs), action[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage).mean()


# Advantages by a counted loop.


def counted_gae_wrong(reward, done, value):
    length = reward.shape[0]

    def body(i, carry):
        advantages, running = carry
        t = length - 1 - i
        following = value[t + 1]
        delta = reward[t] + 0.99 * following * (1.0 - done[t]) - value[t]
        running = delta + 0.99 * 0.95 * (1.0 - done[t]) * running
        return advantages.at[t].set(running), running

    advantages, _ = jax.lax.fori_loop(0, length, body, (jnp.zeros_like(reward), jnp.zeros(reward.shape[1])))
    return advantages


def counted_gae_right(reward, done, value):
    length = reward.shape[0] - 1

    def body(i, carry):
        advantages, running = carry
        t = length - 1 - i
        delta = reward[t] + 0.99 * value[t + 1] * (1.0 - done[t]) - value[t]
        running = delta + 0.99 * 0.95 * (1.0 - done[t]) * running
        return advantages.at[t].set(running), running

    start = jnp.zeros_like(reward[:-1]), jnp.zeros(reward.shape[1])
    advantages, _ = jax.lax.fori_loop(0, length, body, start)
    return advantages


def counted_gae_padded(reward, done, value):
    """The horizon ends every episode."""
    length = reward.shape[0]
    padded = jnp.concatenate([value, jnp.zeros_like(value[:1])], axis=0)

    def body(i, carry):
        advantages, running = carry
        t = length - 1 - i
        delta = reward[t] + 0.99 * padded[t + 1] * (1.0 - done[t]) - padded[t]
        running = delta + 0.99 * 0.95 * (1.0 - done[t]) * running
        return advantages.at[t].set(running), running

    advantages, _ = jax.lax.fori_loop(0, length, body, (jnp.zeros_like(reward), jnp.zeros(reward.shape[1])))
    return advantages


# A ring of transitions that batches do not divide.


def ring_insert_wrong(storage, position, batches):
    capacity = storage.shape[0]

    def insert(carry, batch):
        storage, position = carry
        storage = jax.lax.dynamic_update_slice_in_dim(storage, batch, position, axis=0)
        position = (position + batch.shape[0]) % capacity
        return (storage, position), None

    (storage, position), _ = jax.lax.scan(insert, (storage, position), batches)
    return storage, position


def ring_insert_right(storage, position, batches):
    capacity = storage.shape[0]

    def insert(carry, batch):
        storage, position = carry
        rows = (position + jnp.arange(batch.shape[0])) % capacity
        storage = storage.at[rows].set(batch)
        position = (position + batch.shape[0]) % capacity
        return (storage, position), None

    (storage, position), _ = jax.lax.scan(insert, (storage, position), batches)
    return storage, position


def ring_insert_rolled(storage, position, batches):
    capacity = storage.shape[0]

    def insert(carry, batch):
        storage, position = carry
        over = jnp.maximum(0, position + batch.shape[0] - capacity)
        storage = jnp.roll(storage, -over, axis=0)
        position = position - over
        storage = jax.lax.dynamic_update_slice(storage, batch, (position, 0))
        return (storage, position + batch.shape[0]), None

    (storage, position), _ = jax.lax.scan(insert, (storage, position), batches)
    return storage, position


# Keys for tasks and for resets.


def meta_reset_wrong(rng, num_envs=12):
    rng, _rng1, _rng2 = jax.random.split(rng, 3)
    ruleset_rng = jax.random.split(rng, num_envs)
    reset_rng = jax.random.split(rng, num=num_envs)
    goals = jax.vmap(lambda k: jax.random.uniform(k, (2,), minval=-1.0))(ruleset_rng)
    positions = jax.vmap(lambda k: jax.random.uniform(k, (2,), minval=-1.0))(reset_rng)
    return goals, positions, _rng1


def meta_reset_right(rng, num_envs=12):
    rng, _rng1, _rng2 = jax.random.split(rng, 3)
    ruleset_rng = jax.random.split(_rng1, num_envs)
    reset_rng = jax.random.split(_rng2, num_envs)
    goals = jax.vmap(lambda k: jax.random.uniform(k, (2,), minval=-1.0))(ruleset_rng)
    positions = jax.vmap(lambda k: jax.random.uniform(k, (2,), minval=-1.0))(reset_rng)
    return goals, positions, rng


def meta_reset_folded(rng, num_envs=12):
    ruleset_rng = jax.random.split(jax.random.fold_in(rng, 0), num_envs)
    reset_rng = jax.random.split(jax.random.fold_in(rng, 1), num_envs)
    goals = jax.vmap(lambda k: jax.random.uniform(k, (2,), minval=-1.0))(ruleset_rng)
    positions = jax.vmap(lambda k: jax.random.uniform(k, (2,), minval=-1.0))(reset_rng)
    return goals, positions, jax.random.fold_in(rng, 2)


# One key for all environments of a step.


def windy_step(rng, state, action):
    position, velocity = state
    wind = 0.1 * jax.random.normal(rng, velocity.shape)
    velocity = 0.9 * velocity + 0.1 * action + wind
    return (position + velocity, velocity), -jnp.sum(position**2)


def windy_rollout_wrong(rng, position, velocity, actions):
    batched = jax.vmap(windy_step, in_axes=(None, 0, 0))

    def step(carry, action):
        state, rng = carry
        rng, step_rng = jax.random.split(rng)
        state, reward = batched(step_rng, state, action)
        return (state, rng), reward

    _, rewards = jax.lax.scan(step, ((position, velocity), rng), actions)
    return rewards.sum(axis=0)


def windy_rollout_right(rng, position, velocity, actions):
    batched = jax.vmap(windy_step)

    def step(carry, action):
        state, rng = carry
        rng, step_rng = jax.random.split(rng)
        state, reward = batched(jax.random.split(step_rng, position.shape[0]), state, action)
        return (state, rng), reward

    _, rewards = jax.lax.scan(step, ((position, velocity), rng), actions)
    return rewards.sum(axis=0)


def windy_rollout_one(rng, position, velocity, actions):
    """Draws the wind of all environments at once."""

    def step(carry, action):
        (position, velocity), rng = carry
        rng, step_rng = jax.random.split(rng)
        velocity = 0.9 * velocity + 0.1 * action + 0.1 * jax.random.normal(step_rng, velocity.shape)
        return ((position + velocity, velocity), rng), -jnp.sum(position**2, axis=-1)

    _, rewards = jax.lax.scan(step, ((position, velocity), rng), actions)
    return rewards.sum(axis=0)


# Distributional target of the same network.


def categorical_loss_wrong(params, obs, action, reward, next_obs, discount):
    atoms = jnp.linspace(-10.0, 10.0, 21)

    def logits(x):
        return dense(params["out"], nn.relu(dense(params["hidden"], x))).reshape(x.shape[0], 4, 21)

    rows = jnp.arange(obs.shape[0])
    next_probs = jax.nn.softmax(logits(next_obs), axis=-1)
    best = jnp.argmax(next_probs @ atoms, axis=-1)
    support = jnp.clip(reward[:, None] + discount[:, None] * atoms, -10.0, 10.0)
    near = jnp.clip(1.0 - jnp.abs(support[:, None, :] - atoms[None, :, None]) / 1.0, 0.0, 1.0)
    projected = jnp.einsum("bij,bj->bi", near, next_probs[rows, best])
    return optax.softmax_cross_entropy(logits(obs)[rows, action], projected).mean()


def categorical_loss_right(params, obs, action, reward, next_obs, discount):
    atoms = jnp.linspace(-10.0, 10.0, 21)

    def logits(x):
        return dense(params["out"], nn.relu(dense(params["hidden"], x))).reshape(x.shape[0], 4, 21)

    rows = jnp.arange(obs.shape[0])
    next_probs = jax.nn.softmax(logits(next_obs), axis=-1)
    best = jnp.argmax(next_probs @ atoms, axis=-1)
    support = jnp.clip(reward[:, None] + discount[:, None] * atoms, -10.0, 10.0)
    near = jnp.clip(1.0 - jnp.abs(support[:, None, :] - atoms[None, :, None]) / 1.0, 0.0, 1.0)
    spread = jax.lax.stop_gradient(jnp.einsum("bij,bj->bi", near, next_probs[rows, best]))
    return optax.softmax_cross_entropy(logits(obs)[rows, action], spread).mean()


def categorical_loss_frozen(params, obs, action, reward, next_obs, discount):
    atoms = jnp.linspace(-10.0, 10.0, 21)
    frozen = jax.lax.stop_gradient(params)

    def logits(p, x):
        return dense(p["out"], nn.relu(dense(p["hidden"], x))).reshape(x.shape[0], 4, 21)

    rows = jnp.arange(obs.shape[0])
    next_probs = jax.nn.softmax(logits(frozen, next_obs), axis=-1)
    best = jnp.argmax(next_probs @ atoms, axis=-1)
    support = jnp.clip(reward[:, None] + discount[:, None] * atoms, -10.0, 10.0)
    near = jnp.clip(1.0 - jnp.abs(support[:, None, :] - atoms[None, :, None]) / 1.0, 0.0, 1.0)
    spread = jnp.einsum("bij,bj->bi", near, next_probs[rows, best])
    return optax.softmax_cross_entropy(logits(params, obs)[rows, action], spread).mean()


# Actor and critic of one loss.


class ActorCritic(nn.Module):
    actions: int = 5

    @nn.compact
    def __call__(self, obs):
        x = Trunk()(obs)
        return nn.Dense(self.actions)(x), nn.Dense(1)(x)[..., 0]


def a2c_wrong(params, obs, action, returns):
    logits, value = ActorCritic().apply({"params": params}, obs)
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    advantage = returns - value
    actor_loss = -jnp.mean(chosen * advantage)
    critic_loss = jnp.mean(jnp.square(returns - value))
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return actor_loss + 0.5 * critic_loss - 0.01 * entropy


def a2c_right(params, obs, action, returns):
    logits, value = ActorCritic().apply({"params": params}, obs)
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    advantage = jax.lax.stop_gradient(returns - value)
    policy_loss = -jnp.mean(chosen * advantage)
    critic_loss = jnp.mean(jnp.square(returns - value))
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return policy_loss + 0.5 * critic_loss - 0.01 * entropy


def a2c_baseline(params, obs, action, returns):
    logits, value = ActorCritic().apply({"params": params}, obs)
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, action[..., None], axis=-1)[..., 0]
    advantage = returns - jnp.mean(returns)
    policy_loss = -jnp.mean(chosen * advantage)
    critic_loss = jnp.mean(jnp.square(returns - value))
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return policy_loss + 0.5 * critic_loss - 0.01 * entropy


# Policy and temperature of one loss.


def temperature_wrong(params, q, rng, obs):
    action, log_pi = squashed_sample(rng, params["actor"], obs, keepdims=False)
    alpha = jnp.exp(params["log_alpha"])
    actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_pi - q_value(q, obs, action))
    alpha_loss = -jnp.mean(alpha * (log_pi + -3.0))
    return actor_loss + alpha_loss, {"alpha": alpha, "entropy": -log_pi.mean()}


def temperature_right(params, q, rng, obs):
    action, log_pi = squashed_sample(rng, params["actor"], obs, keepdims=False)
    alpha = jnp.exp(params["log_alpha"])
    actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_pi - q_value(q, obs, action))
    alpha_loss = -jnp.mean(alpha * jax.lax.stop_gradient(log_pi - 3.0))
    return actor_loss + alpha_loss, {"alpha": alpha, "entropy": -log_pi.mean()}


def temperature_apart(params, q, rng, obs):
    action, log_pi = squashed_sample(rng, params["actor"], obs, keepdims=False)
    alpha = jnp.exp(params["log_alpha"])
    gap = jax.lax.stop_gradient(jnp.mean(log_pi) - 3.0)
    actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_pi - q_value(q, obs, action))
    return actor_loss - params["log_alpha"] * gap, {"alpha": alpha, "entropy": -log_pi.mean()}


# A rollout made flat for minibatches.


def flatten_rollout_wrong(params, obs, action, advantage):
    flat_obs = jnp.swapaxes(obs, 0, 1).reshape(-1, obs.shape[-1])
    flat_action = jnp.swapaxes(action, 0, 1).reshape(-1)
    flat_advantage = advantage.reshape(-1)
    log_probs = jax.nn.log_softmax(dense(params, flat_obs))
    chosen = jnp.take_along_axis(log_probs, flat_action[:, None], axis=1)[:, 0]
    return -jnp.mean(chosen * flat_advantage)


def flatten_rollout_right(params, obs, action, advantage):
    flat_obs = jnp.swapaxes(obs, 0, 1).reshape(-1, obs.shape[-1])
    flat_action = jnp.swapaxes(action, 0, 1).reshape(-1)
    flat_weight = jnp.swapaxes(advantage, 0, 1).reshape(-1)
    log_probs = jax.nn.log_softmax(dense(params, flat_obs))
    chosen = jnp.take_along_axis(log_probs, flat_action[:, None], axis=1)[:, 0]
    return -jnp.mean(chosen * flat_weight)


def flatten_rollout_plain(params, obs, action, advantage):
    flat_obs = obs.reshape(-1, obs.shape[-1])
    log_probs = jax.nn.log_softmax(dense(params, flat_obs))
    chosen = jnp.take_along_axis(log_probs, action.reshape(-1)[:, None], axis=1)[:, 0]
    return -jnp.mean(chosen * advantage.reshape(-1))


# Agents stacked for one network.


def team_actions_wrong(params, obs_red, obs_blue, obs_green):
    batch = jnp.stack([obs_red, obs_blue, obs_green])
    agents, envs, features = batch.shape
    logits = dense(params, batch.reshape(agents * envs, features))
    chosen = jnp.argmax(logits, axis=-1)
    per_env = chosen.reshape(envs, agents)
    return {"red": per_env[:, 0], "blue": per_env[:, 1], "green": per_env[:, 2]}


def team_actions_right(params, obs_red, obs_blue, obs_green):
    batch = jnp.stack([obs_red, obs_blue, obs_green])
    agents, envs, features = batch.shape
    logits = dense(params, batch.reshape(agents * envs, features))
    per_env = jnp.argmax(logits, axis=-1).reshape(agents, envs).T
    return {"red": per_env[:, 0], "blue": per_env[:, 1], "green": per_env[:, 2]}


def team_actions_inner(params, obs_red, obs_blue, obs_green):
    batch = jnp.stack([obs_red, obs_blue, obs_green], axis=1)
    envs, agents, features = batch.shape
    logits = dense(params, batch.reshape(envs * agents, features))
    per_env = jnp.argmax(logits, axis=-1).reshape(envs, agents)
    return {"red": per_env[:, 0], "blue": per_env[:, 1], "green": per_env[:, 2]}


# Statistics of observations within a rollout.


def merge_statistics(stats, batch):
    mean, m2, count = stats
    n = batch.shape[0]
    batch_mean = batch.mean(axis=0)
    delta = batch_mean - mean
    total = count + n
    m2 = m2 + jnp.sum((batch - batch_mean) ** 2, axis=0) + delta**2 * count * n / total
    return mean + delta * n / total, m2, total


def normalized_rollout_wrong(policy, mean, m2, count, observations):
    def step(stats, obs):
        new_stats = merge_statistics(stats, obs)
        scale = jnp.sqrt(new_stats[1] / new_stats[2] + 1e-6)
        action = jnp.tanh(((obs - new_stats[0]) / scale) @ policy)
        return stats, action

    stats, actions = jax.lax.scan(step, (mean, m2, count), observations)
    return actions, stats


def normalized_rollout_right(policy, mean, m2, count, observations):
    def step(stats, obs):
        stats = merge_statistics(stats, obs)
        scale = jnp.sqrt(stats[1] / stats[2] + 1e-6)
        action = jnp.tanh(((obs - stats[0]) / scale) @ policy)
        return stats, action

    stats, actions = jax.lax.scan(step, (mean, m2, count), observations)
    return actions, stats


def normalized_rollout_after(policy, mean, m2, count, observations):
    """Keeps the statistics through the rollout, and merges them at the end."""
    scale = jnp.sqrt(m2 / count + 1e-6)

    def step(carry, obs):
        return carry, jnp.tanh(((obs - mean) / scale) @ policy)

    _, actions = jax.lax.scan(step, None, observations)
    return actions, merge_statistics((mean, m2, count), observations.reshape(-1, observations.shape[-1]))


# Entropy of a policy with actions that are not allowed.


def masked_entropy_wrong(params, obs, allowed, action, advantage):
    logits = dense(params["out"], nn.tanh(dense(params["hidden"], obs)))
    logits = jnp.where(allowed, logits, -jnp.inf)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    return -jnp.mean(chosen * advantage + 0.01 * entropy)


def masked_entropy_right(params, obs, allowed, action, advantage):
    logits = dense(params["out"], nn.tanh(dense(params["hidden"], obs)))
    logits = jnp.where(allowed, logits, -1e9)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0]
    spread = -jnp.sum(jnp.exp(log_probs) * jnp.where(allowed, log_probs, 0.0), axis=-1)
    return -jnp.mean(chosen * advantage + 0.01 * spread)


def masked_entropy_chosen(params, obs, allowed, action, advantage):
    """No entropy: only allowed actions are read."""
    logits = dense(params["out"], nn.tanh(dense(params["hidden"], obs)))
    logits = jnp.where(allowed.at[jnp.arange(obs.shape[0]), action].set(True), logits, -1e9)
    log_probs = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0]
    return -jnp.mean(chosen * advantage)


# Probabilities given where logits are asked for.


def act_wrong(params, rng, obs):
    def step(rng, x):
        rng, act_rng = jax.random.split(rng)
        probs = jax.nn.softmax(dense(params, x), axis=-1)
        action = jax.random.categorical(act_rng, probs, axis=-1)
        log_prob = jnp.log(jnp.take_along_axis(probs, action[:, None], axis=-1)[:, 0])
        return rng, (action, log_prob)

    return jax.lax.scan(step, rng, obs)[1]


def act_right(params, rng, obs):
    def step(rng, x):
        rng, act_rng = jax.random.split(rng)
        log_probs = jax.nn.log_softmax(dense(params, x), axis=-1)
        action = jax.random.categorical(act_rng, log_probs, axis=-1)
        return rng, (action, jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0])

    return jax.lax.scan(step, rng, obs)[1]


def act_choice(params, rng, obs):
    def step(rng, x):
        rng, act_rng = jax.random.split(rng)
        probs = jax.nn.softmax(dense(params, x), axis=-1)
        pick = jax.vmap(lambda k, p: jax.random.choice(k, p.shape[0], p=p))
        action = pick(jax.random.split(act_rng, x.shape[0]), probs)
        log_probs = jax.nn.log_softmax(dense(params, x), axis=-1)
        return rng, (action, jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0])

    return jax.lax.scan(step, rng, obs)[1]


# An agent whose jitted method reads what changes.


class GreedyAgent:
    def __init__(self):
        self.epsilon = 1.0

    @partial(jax.jit, static_argnums=0)
    def act(self, rng, q_values):
        explore_rng, action_rng = jax.random.split(rng)
        explore = jax.random.uniform(explore_rng, q_values.shape[:1]) < self.epsilon
        random_action = jax.random.randint(action_rng, q_values.shape[:1], 0, q_values.shape[1])
        return jnp.where(explore, random_action, jnp.argmax(q_values, axis=-1))


class GreedyAgentGiven:
    def __init__(self):
        self.epsilon = 1.0

    @partial(jax.jit, static_argnums=0)
    def act(self, rng, q_values, epsilon):
        explore_rng, action_rng = jax.random.split(rng)
        explore = jax.random.uniform(explore_rng, q_values.shape[:1]) < epsilon
        random_action = jax.random.randint(action_rng, q_values.shape[:1], 0, q_values.shape[1])
        return jnp.where(explore, random_action, jnp.argmax(q_values, axis=-1))


def decay_wrong(rng, q_values):
    agent = GreedyAgent()
    actions = []
    for _ in range(4):
        rng, act_rng = jax.random.split(rng)
        actions.append(agent.act(act_rng, q_values))
        agent.epsilon = max(0.05, 0.5 * agent.epsilon)
    return jnp.stack(actions)


def decay_right(rng, q_values):
    agent = GreedyAgentGiven()
    actions = []
    for _ in range(4):
        rng, act_rng = jax.random.split(rng)
        actions.append(agent.act(act_rng, q_values, agent.epsilon))
        agent.epsilon = max(0.05, 0.5 * agent.epsilon)
    return jnp.stack(actions)


class GreedyAgentFixed:
    def __init__(self, exploration):
        self.exploration = exploration

    @partial(jax.jit, static_argnums=0)
    def act(self, rng, q_values):
        explore_rng, action_rng = jax.random.split(rng)
        explore = jax.random.uniform(explore_rng, q_values.shape[:1]) < self.exploration
        random_action = jax.random.randint(action_rng, q_values.shape[:1], 0, q_values.shape[1])
        return jnp.where(explore, random_action, jnp.argmax(q_values, axis=-1))


def decay_fixed(rng, q_values):
    agent = GreedyAgentFixed(0.1)
    actions = []
    for _ in range(4):
        rng, act_rng = jax.random.split(rng)
        actions.append(agent.act(act_rng, q_values))
    return jnp.stack(actions)


# Learners on devices and batches of environments.


def learner_loss(params, obs, target):
    return jnp.mean((dense(params["out"], nn.relu(dense(params["hidden"], obs)))[..., 0] - target) ** 2)


def learners_wrong(params, obs, target):
    tx = optax.sgd(0.01)

    def update(params, obs, target):
        grads = jax.grad(learner_loss)(params, obs, target)
        grads = jax.lax.pmean(grads, axis_name="batch")
        updates, _ = tx.update(grads, tx.init(params))
        return optax.apply_updates(params, updates)

    per_device = jax.vmap(update, in_axes=(None, 0, 0), axis_name="batch", out_axes=None)
    return jax.vmap(per_device, axis_name="device")(params, obs, target)


def learners_right(params, obs, target):
    tx = optax.sgd(0.01)

    def update(params, obs, target):
        grads = jax.grad(learner_loss)(params, obs, target)
        grads = jax.lax.pmean(jax.lax.pmean(grads, axis_name="batch"), axis_name="device")
        updates, _ = tx.update(grads, tx.init(params))
        return optax.apply_updates(params, updates)

    per_device = jax.vmap(update, in_axes=(None, 0, 0), axis_name="batch", out_axes=None)
    return jax.vmap(per_device, axis_name="device")(params, obs, target)


def learners_seeds(params, obs, target):
    """Each row of parameters is an experiment of its own."""
    tx = optax.sgd(0.01)

    def train(params, obs, target):
        loss = lambda p: jnp.mean(jax.vmap(learner_loss, in_axes=(None, 0, 0))(p, obs, target))
        updates, _ = tx.update(jax.grad(loss)(params), tx.init(params))
        return optax.apply_updates(params, updates)

    return jax.vmap(train)(params, obs, target)


# Frames as bytes.


def motion_wrong(params, frames, previous):
    moved = frames - previous
    x = moved.astype(jnp.float32) / 255.0
    x = nn.relu(nn.Conv(8, (3, 3), strides=2).apply({"params": params["conv"]}, x))
    return dense(params["out"], x.reshape(x.shape[0], -1))


def motion_right(params, frames, previous):
    x = (frames.astype(jnp.float32) - previous.astype(jnp.float32)) / 255.0
    x = nn.relu(nn.Conv(8, (3, 3), strides=2).apply({"params": params["conv"]}, x))
    return dense(params["out"], x.reshape(x.shape[0], -1))


def motion_flags(params, frames, previous):
    x = (frames != previous).astype(jnp.float32)
    x = nn.relu(nn.Conv(8, (3, 3), strides=2).apply({"params": params["conv"]}, x))
    return dense(params["out"], x.reshape(x.shape[0], -1))


def motion_args():
    frames = jax.ShapeDtypeStruct((5, 12, 16, 3), jnp.uint8)
    conv = shapes_of(lambda k, x: nn.Conv(8, (3, 3), strides=2).init(k, x)["params"], key(), f32(5, 12, 16, 3))
    return {"conv": conv, "out": layer(6 * 8 * 8, 4)}, frames, frames


# A rate that should fall over the updates.


def annealed_wrong(params, opt_state, gradients):
    epochs, minibatches, updates = 4, 8, 50

    def schedule(count):
        done = count // (minibatches * epochs * updates)
        return 2.5e-4 * (1.0 - done)

    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule, eps=1e-5))

    def step(carry, grads):
        params, opt_state = carry
        change, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, change), opt_state), None

    return jax.lax.scan(step, (params, opt_state), gradients)[0]


def annealed_right(params, opt_state, gradients):
    epochs, minibatches, updates = 4, 8, 50

    def schedule(count):
        return 2.5e-4 * (1.0 - (count // (minibatches * epochs)) / updates)

    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule, eps=1e-5))

    def step(carry, grads):
        params, opt_state = carry
        change, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, change), opt_state), None

    return jax.lax.scan(step, (params, opt_state), gradients)[0]


def annealed_stairs(params, opt_state, gradients):
    def schedule(count):
        return 2.5e-4 * 0.5 ** (count // 400)

    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(schedule, eps=1e-5))

    def step(carry, grads):
        params, opt_state = carry
        change, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, change), opt_state), None

    return jax.lax.scan(step, (params, opt_state), gradients)[0]


def annealed_args():
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(lambda count: 1e-3 + 0.0 * count, eps=1e-5))
    params = layer(6, 3)
    return params, shapes_of(tx.init, params), {"w": f32(10, 6, 3), "b": f32(10, 3)}


def critic_args():
    params = shapes_of(lambda k, x: ValueHead().init(k, x)["params"], key(), f32(1, 11))
    return params, f32(24, 11), f32(24), f32(24, 1)


def a2c_args():
    params = shapes_of(lambda k, x: ActorCritic().init(k, x)["params"], key(), f32(1, 7))
    return params, f32(20, 6, 7), i32(20, 6), f32(20, 6)


Q = {"hidden": layer(9, 24), "out": layer(24, 1)}
DISCRETE = {"hidden": layer(6, 20), "out": layer(20, 4)}

CASES = [
    Case(
        name="third_critic_clip",
        family="(N,) meets (N, 1)",
        wrong=critic_clip_wrong,
        right=(critic_clip_right, critic_clip_column),
        args=critic_args,
        where="losses = jnp.maximum((values - returns) ** 2, (clipped - returns) ** 2)",
        differentiate="params",
        source="RLinf/RLinf issue 1568",
    ),
    Case(
        name="third_soft_target",
        family="(N,) meets (N, 1)",
        wrong=soft_target_wrong,
        right=(soft_target_right, soft_target_column),
        args=(Q, Q, layer(6, 6), key(), f32(32, 6), f32(32, 3), f32(32), f32(32, 6), f32(32)),
        where="soft_value = q_value(target_q, next_obs, next_action) - 0.2 * next_log_prob",
        differentiate="q",
        source="SAC in JAX after CleanRL, whose log probabilities keep an axis",
    ),
    Case(
        name="third_twin_step",
        family="result dropped",
        wrong=twin_step_wrong,
        right=(twin_step_right, twin_step_joint),
        args=twin_args,
        where="updates2, opt2 = tx.update(grad1, opt2, q2)",
        source="Toni-SM/skrl issue 425",
    ),
    Case(
        name="third_soft_copy",
        family="sign or scale inverted",
        wrong=soft_copy_wrong,
        right=(soft_copy_right, soft_copy_decay),
        args=soft_copy_args,
        where="target = jax.tree.map(lambda t, o: tau * t + (1.0 - tau) * o, target, online)",
        source="questions on polyak averages of target networks",
    ),
    Case(
        name="third_multistep",
        family="done cuts a part",
        wrong=multistep_wrong,
        right=(multistep_right, multistep_zeroed),
        args=(f32(32, 8), f32(32, 8), f32(33, 8)),
        where="deltas = reward + gamma * values[1:] - values[:-1]",
        axes={"reward": ("time", "env"), "done": ("time", "env"), "values": ("time", "env")},
        source="EdanToledo/Stoix issue 142; thu-ml/tianshou issue 869",
    ),
    Case(
        name="third_timeout_target",
        family="done cuts a part",
        wrong=timeout_target_wrong,
        right=(timeout_target_right, timeout_target_skipped),
        args=(DISCRETE, DISCRETE, f32(48, 6), i32(48), f32(48), f32(48, 6), flags(48), flags(48)),
        where="target = reward + 0.99 * jnp.where(done, 0.0, next_q.max(axis=-1))",
        differentiate="params",
        source="instadeepai/Mava issue 951",
    ),
    Case(
        name="third_auto_reset",
        family="done cuts a part",
        wrong=auto_reset_wrong,
        right=(auto_reset_right, auto_reset_frozen),
        args=(f32(3), key()),
        where="next_obs = jnp.where(done, reset_obs, next_obs)",
        source="luchris429/purejaxrl issue 31; wrappers that reset by themselves",
    ),
    Case(
        name="third_episode_log",
        family="state out of date",
        wrong=episode_log_wrong,
        right=(episode_log_right, episode_log_before),
        args=(f32(40, 6), flags(40, 6)),
        where="last = jnp.where(ended, running, last)",
        axes={"reward": ("time", "env"), "done": ("time", "env")},
        source="LogWrapper of gymnax and its copies",
    ),
    Case(
        name="third_replay",
        family="off by one",
        wrong=replay_wrong,
        right=(replay_right, replay_after),
        args=(
            {"gate": layer(22, 16), "new": layer(22, 16), "policy": layer(16, 4)},
            f32(24, 8, 6),
            i32(24, 8),
            flags(24, 8),
            f32(24, 8),
            f32(24, 8),
        ),
        where="_, logits = jax.lax.scan(cell, hidden, (obs, done))",
        axes={"obs": ("time", "env", None), "action": ("time", "env"), "done": ("time", "env")},
        differentiate="params",
        source="LARG/jax-aht pull request 115; bold-lab-ai/JaxMARL pull request 127",
    ),
    Case(
        name="third_counted_gae",
        family="index out of range",
        wrong=counted_gae_wrong,
        right=(counted_gae_right, counted_gae_padded),
        args=(f32(16, 4), f32(16, 4), f32(16, 4)),
        where="following = value[t + 1]",
        axes={"reward": ("time", "env"), "done": ("time", "env"), "value": ("time", "env")},
        source="jax-ml/jax issue 1451 and GAE ported from a loop of NumPy",
    ),
    Case(
        name="third_ring_insert",
        family="index out of range",
        wrong=ring_insert_wrong,
        right=(ring_insert_right, ring_insert_rolled),
        args=(f32(100, 5), i32(), f32(20, 12, 5)),
        where="storage = jax.lax.dynamic_update_slice_in_dim(storage, batch, position, axis=0)",
        source="adaptive-intelligent-robotics/QDax issue 71",
    ),
    Case(
        name="third_meta_reset",
        family="key reuse",
        wrong=meta_reset_wrong,
        right=(meta_reset_right, meta_reset_folded),
        args=(key(),),
        where="reset_rng = jax.random.split(rng, num=num_envs)",
        source="dunnolab/xland-minigrid issue 42",
    ),
    Case(
        name="third_windy_rollout",
        family="key shared by batch elements",
        wrong=windy_rollout_wrong,
        right=(windy_rollout_right, windy_rollout_one),
        args=(key(), f32(10, 2), f32(10, 2), f32(25, 10, 2)),
        where="batched = jax.vmap(windy_step, in_axes=(None, 0, 0))",
        source="questions on vmap over environments of gymnax",
    ),
    Case(
        name="third_categorical_loss",
        family="no stop_gradient",
        wrong=categorical_loss_wrong,
        right=(categorical_loss_right, categorical_loss_frozen),
        args=({"hidden": layer(6, 20), "out": layer(20, 84)}, f32(18, 6), i32(18), f32(18), f32(18, 6), f32(18)),
        where='projected = jnp.einsum("bij,bj->bi", near, next_probs[rows, best])',
        differentiate="params",
        source="C51 ported to JAX without a target network",
    ),
    Case(
        name="third_a2c",
        family="no stop_gradient",
        wrong=a2c_wrong,
        right=(a2c_right, a2c_baseline),
        args=a2c_args,
        where="advantage = returns - value",
        axes={"obs": ("time", "env", None), "action": ("time", "env"), "returns": ("time", "env")},
        differentiate="params",
        source="actor-critic tutorials of flax with one loss",
    ),
    Case(
        name="third_temperature",
        family="no stop_gradient",
        wrong=temperature_wrong,
        right=(temperature_right, temperature_apart),
        args=({"actor": layer(6, 6), "log_alpha": f32()}, Q, key(), f32(32, 6)),
        where="alpha_loss = -jnp.mean(alpha * (log_pi + -3.0))",
        differentiate="params",
        source="mani-skill/ManiSkill issue 899; young-geng/JaxCQL issue 3",
    ),
    Case(
        name="third_flatten_rollout",
        family="time and environments exchanged",
        wrong=flatten_rollout_wrong,
        right=(flatten_rollout_right, flatten_rollout_plain),
        args=(layer(6, 4), f32(16, 16, 6), i32(16, 16), f32(16, 16)),
        where="flat_advantage = advantage.reshape(-1)",
        axes={"obs": ("time", "env", None), "action": ("time", "env"), "advantage": ("time", "env")},
        differentiate="params",
        source="minibatches of PPO after the port to stable-baselines order",
    ),
    Case(
        name="third_team_actions",
        family="reshape for transpose",
        wrong=team_actions_wrong,
        right=(team_actions_right, team_actions_inner),
        args=(layer(10, 5), f32(8, 10), f32(8, 10), f32(8, 10)),
        where="per_env = chosen.reshape(envs, agents)",
        source="batchify and unbatchify of JaxMARL",
    ),
    Case(
        name="third_normalized_rollout",
        family="carry not used",
        wrong=normalized_rollout_wrong,
        right=(normalized_rollout_right, normalized_rollout_after),
        args=(f32(5, 2), f32(5), f32(5), f32(), f32(30, 9, 5)),
        where="new_stats = merge_statistics(stats, obs)",
        source="NormalizeVecObservation of purejaxrl, written into a scan",
    ),
    Case(
        name="third_masked_entropy",
        family="NaN from masks",
        wrong=masked_entropy_wrong,
        right=(masked_entropy_right, masked_entropy_chosen),
        args=(DISCRETE, f32(14, 6), flags(14, 4), i32(14), f32(14)),
        where="entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)",
        differentiate="params",
        source="masks of actions in distrax and jumanji agents; AgileRL/AgileRL pull request 489",
    ),
    Case(
        name="third_act",
        family="softmax twice",
        wrong=act_wrong,
        right=(act_right, act_choice),
        args=(layer(7, 4), key(), f32(15, 6, 7)),
        where="action = jax.random.categorical(act_rng, probs, axis=-1)",
        source="questions on jax.random.categorical",
    ),
    Case(
        name="third_decay",
        family="state read by jit",
        wrong=decay_wrong,
        right=(decay_right, decay_fixed),
        args=(key(), f32(9, 5)),
        where="explore = jax.random.uniform(explore_rng, q_values.shape[:1]) < self.epsilon",
        source="agents as classes with static self; FAQ of JAX on jit of methods",
    ),
    Case(
        name="third_learners",
        family="replicas not averaged",
        wrong=learners_wrong,
        right=(learners_right, learners_seeds),
        args=(
            {"hidden": {"w": f32(2, 6, 12), "b": f32(2, 12)}, "out": {"w": f32(2, 12, 1), "b": f32(2, 1)}},
            f32(2, 4, 10, 6),
            f32(2, 4, 10),
        ),
        where='grads = jax.lax.pmean(grads, axis_name="batch")',
        source="learners of Mava and Stoix, which average over two axes",
    ),
    Case(
        name="third_motion",
        family="integer overflow",
        wrong=motion_wrong,
        right=(motion_right, motion_flags),
        args=motion_args,
        where="moved = frames - previous",
        source="differences of frames of Atari as uint8",
    ),
    Case(
        name="third_annealed",
        family="dtype",
        wrong=annealed_wrong,
        right=(annealed_right, annealed_stairs),
        args=annealed_args,
        where="done = count // (minibatches * epochs * updates)",
        source="linear_schedule of purejaxrl with its brackets misplaced",
    ),
]
