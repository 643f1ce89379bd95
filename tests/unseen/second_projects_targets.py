"""Losses and targets, from issues of public projects."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from unseen.case import Case, f32, i32, key, shapes_of

CASES = []
add = CASES.append

GAMMA = 0.99
B = 32


# The clipped loss of a value head.


class PolicyValue(nn.Module):
    actions: int = 5

    @nn.compact
    def __call__(self, obs):
        h = nn.tanh(nn.Dense(32)(obs))
        return nn.Dense(self.actions)(h), nn.Dense(1)(h)


policy_value = PolicyValue()


class Minibatch(NamedTuple):
    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    returns: jax.Array


def ppo_loss(params, batch):
    logits, value = policy_value.apply(params, batch.obs)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.action[:, None], axis=1)[:, 0]
    ratio = jnp.exp(log_prob - batch.log_prob)
    actor = -jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 0.8, 1.2) * batch.advantage).mean()
    clipped = batch.value + jnp.clip(value - batch.value, -0.2, 0.2)
    critic = jnp.maximum((value - batch.returns) ** 2, (clipped - batch.returns) ** 2)
    return actor + 0.5 * critic.mean()


def ppo_loss_b(params, batch):
    logits, value = policy_value.apply(params, batch.obs)
    value = value[:, 0]
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.action[:, None], axis=1)[:, 0]
    ratio = jnp.exp(log_prob - batch.log_prob)
    actor = -jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 0.8, 1.2) * batch.advantage).mean()
    near = batch.value + jnp.clip(value - batch.value, -0.2, 0.2)
    critic = jnp.maximum((value - batch.returns) ** 2, (near - batch.returns) ** 2)
    return actor + 0.5 * critic.mean()


def ppo_loss_c(params, batch):
    logits, value = policy_value.apply(params, batch.obs)
    log_prob = jax.nn.log_softmax(logits)[jnp.arange(logits.shape[0]), batch.action]
    ratio = jnp.exp(log_prob - batch.log_prob)
    actor = -jnp.minimum(ratio * batch.advantage, jnp.clip(ratio, 0.8, 1.2) * batch.advantage).mean()
    old, target = batch.value[:, None], batch.returns[:, None]
    critic = jnp.maximum((value - target) ** 2, (old + jnp.clip(value - old, -0.2, 0.2) - target) ** 2)
    return actor + 0.5 * critic.mean()


def ppo_args():
    params = shapes_of(policy_value.init, jax.random.key(0), f32(1, 8))
    return params, Minibatch(f32(B, 8), i32(B), f32(B), f32(B), f32(B), f32(B))


add(
    Case(
        "clipped values",
        "(N,) meets (N, 1)",
        ppo_loss,
        (ppo_loss_b, ppo_loss_c),
        ppo_args,
        where="clipped = batch.value + jnp.clip(value - batch.value, -0.2, 0.2)",
        axes={"batch/obs": ("batch", None), "batch/value": ("batch",), "batch/returns": ("batch",)},
        differentiate="params",
        source="RLinf#1568, Mighty#126: values (B, 1) against returns (B,)",
    )
)


# Accuracy of a binary classifier.


class Detector(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(24)(x))
        return nn.Dense(1)(x)


detector = Detector()
detector_tx = optax.adam(1e-3)


def detector_step(params, opt_state, x, labels):
    def loss_fn(p):
        logits = detector.apply(p, x)
        return optax.sigmoid_binary_cross_entropy(logits, labels[:, None]).mean(), logits

    (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = detector_tx.update(grads, opt_state)
    accuracy = jnp.mean((logits > 0.0) == (labels > 0.5))
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "accuracy": accuracy}


def detector_step_b(params, opt_state, x, labels):
    def loss_fn(p):
        logits = detector.apply(p, x)
        return optax.sigmoid_binary_cross_entropy(logits, labels[:, None]).mean(), logits

    (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = detector_tx.update(grads, opt_state)
    accuracy = jnp.mean((logits[:, 0] > 0.0) == (labels > 0.5))
    return optax.apply_updates(params, updates), opt_state, {"loss": loss, "accuracy": accuracy}


def detector_args():
    params = shapes_of(detector.init, jax.random.key(0), f32(1, 10))
    return params, shapes_of(detector_tx.init, params), f32(B, 10), f32(B)


add(
    Case(
        "accuracy of one logit",
        "(N,) meets (N, 1)",
        detector_step,
        (detector_step_b,),
        detector_args,
        where="accuracy = jnp.mean((logits > 0.0) == (labels > 0.5))",
        axes={"x": ("batch", None), "labels": ("batch",)},
        source="binary classifiers in Flax: a head of one column compared with a vector of labels",
    )
)


# The residual of Burgers' equation.


def field(params, t, x):
    h = jnp.stack([t, x], axis=-1)
    for w, b in params[:-1]:
        h = jnp.tanh(h @ w + b)
    w, b = params[-1]
    return h @ w + b


def burgers_loss(params, t, x):
    scalar = lambda t, x: field(params, t, x)[0]
    u_t = jax.vmap(jax.grad(scalar, argnums=0))(t, x)
    u_x = jax.vmap(jax.grad(scalar, argnums=1))(t, x)
    u_xx = jax.vmap(jax.grad(jax.grad(scalar, argnums=1), argnums=1))(t, x)
    u = field(params, t, x)
    residual = u_t + u * u_x - 0.01 / np.pi * u_xx
    return jnp.mean(residual**2)


def burgers_loss_b(params, t, x):
    scalar = lambda t, x: field(params, t, x)[0]
    u_t = jax.vmap(jax.grad(scalar, argnums=0))(t, x)
    u_x = jax.vmap(jax.grad(scalar, argnums=1))(t, x)
    u_xx = jax.vmap(jax.grad(jax.grad(scalar, argnums=1), argnums=1))(t, x)
    u = jax.vmap(scalar)(t, x)
    residual = u_t + u * u_x - 0.01 / np.pi * u_xx
    return jnp.mean(residual**2)


MLP = [(f32(2, 16), f32(16)), (f32(16, 16), f32(16)), (f32(16, 1), f32(1))]
add(
    Case(
        "burgers residual",
        "(N,) meets (N, 1)",
        burgers_loss,
        (burgers_loss_b,),
        (MLP, f32(20), f32(20)),
        where="u = field(params, t, x)\n",
        axes={"t": ("points",), "x": ("points",)},
        differentiate="params",
        source="physics-informed networks in JAX: u keeps the column of the last layer",
    )
)


# The weight of the critic in TD3+BC.


class Actor(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.tanh(nn.Dense(3)(nn.relu(nn.Dense(32)(obs))))


class Critic(nn.Module):
    @nn.compact
    def __call__(self, obs, action):
        x = jnp.concatenate([obs, action], axis=-1)
        return nn.Dense(1)(nn.relu(nn.Dense(32)(x)))[..., 0]


actor_net, critic_net = Actor(), Critic()


def td3_bc_loss(actor_params, critic_params, obs, actions):
    pi = actor_net.apply(actor_params, obs)
    q = critic_net.apply(critic_params, obs, pi)
    weight = 2.5 / jnp.mean(jnp.abs(q))
    return -weight * q.mean() + jnp.mean((pi - actions) ** 2)


def td3_bc_loss_b(actor_params, critic_params, obs, actions):
    pi = actor_net.apply(actor_params, obs)
    q = critic_net.apply(critic_params, obs, pi)
    weight = jax.lax.stop_gradient(2.5 / jnp.mean(jnp.abs(q)))
    return -weight * q.mean() + jnp.mean((pi - actions) ** 2)


def td3_bc_loss_c(actor_params, critic_params, obs, actions):
    pi = actor_net.apply(actor_params, obs)
    q = critic_net.apply(critic_params, obs, pi)
    scale = jnp.mean(jnp.abs(critic_net.apply(critic_params, obs, actions)))
    return -2.5 / scale * q.mean() + jnp.mean((pi - actions) ** 2)


def td3_bc_args():
    rng = jax.random.key(0)
    actor = shapes_of(actor_net.init, rng, f32(1, 6))
    return actor, shapes_of(critic_net.init, rng, f32(1, 6), f32(1, 3)), f32(B, 6), f32(B, 3)


add(
    Case(
        "weight of the critic",
        "no stop_gradient",
        td3_bc_loss,
        (td3_bc_loss_b, td3_bc_loss_c),
        td3_bc_args,
        where="weight = 2.5 / jnp.mean(jnp.abs(q))",
        axes={"obs": ("batch", None), "actions": ("batch", None)},
        differentiate="actor_params",
        source="acme#219: the factor of TD3-BC is a constant",
    )
)


# Implicit Q-learning in one loss.


class IqlParams(NamedTuple):
    value: dict
    critic: dict


class Values(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.Dense(1)(nn.relu(nn.Dense(32)(obs)))[..., 0]


value_net = Values()


class Transitions(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    mask: jax.Array
    next_obs: jax.Array


def iql_loss(params, target_critic, batch):
    q = critic_net.apply(target_critic, batch.obs, batch.action)
    v = value_net.apply(params.value, batch.obs)
    diff = q - v
    value_loss = jnp.mean(jnp.where(diff > 0, 0.8, 0.2) * diff**2)
    next_v = value_net.apply(params.value, batch.next_obs)
    backup = batch.reward + GAMMA * batch.mask * next_v
    critic_loss = jnp.mean((critic_net.apply(params.critic, batch.obs, batch.action) - backup) ** 2)
    return value_loss + critic_loss


def iql_loss_b(params, target_critic, batch):
    q = critic_net.apply(target_critic, batch.obs, batch.action)
    v = value_net.apply(params.value, batch.obs)
    diff = q - v
    value_loss = jnp.mean(jnp.where(diff > 0, 0.8, 0.2) * diff**2)
    next_v = jax.lax.stop_gradient(value_net.apply(params.value, batch.next_obs))
    backup = batch.reward + GAMMA * batch.mask * next_v
    critic_loss = jnp.mean((critic_net.apply(params.critic, batch.obs, batch.action) - backup) ** 2)
    return value_loss + critic_loss


def iql_args():
    rng = jax.random.key(0)
    critic = shapes_of(critic_net.init, rng, f32(1, 6), f32(1, 3))
    params = IqlParams(shapes_of(value_net.init, rng, f32(1, 6)), critic)
    return params, critic, Transitions(f32(B, 6), f32(B, 3), f32(B), f32(B), f32(B, 6))


add(
    Case(
        "implicit q-learning",
        "no stop_gradient",
        iql_loss,
        (iql_loss_b,),
        iql_args,
        where="next_v = value_net.apply(params.value, batch.next_obs)\n",
        axes={"batch/obs": ("batch", None), "batch/reward": ("batch",), "batch/mask": ("batch",)},
        differentiate="params",
        source="JAX-CORL and ports of IQL: one loss for both networks",
    )
)


# An actor in imagination, whose actions are sampled.


class Imagined(NamedTuple):
    policy: jax.Array
    dynamics: jax.Array
    reward: jax.Array


def imagination_loss(policy, model, start, rng):
    def step(state, rng):
        logits = state @ policy
        action = jax.nn.one_hot(jax.random.categorical(rng, logits), logits.shape[-1])
        state = jnp.tanh(jnp.concatenate([state, action], axis=-1) @ model.dynamics)
        return state, state @ model.reward

    _, rewards = jax.lax.scan(step, start, jax.random.split(rng, 15))
    discounts = GAMMA ** jnp.arange(15)
    return -jnp.mean(jnp.sum(discounts[:, None] * rewards, axis=0))


def imagination_loss_b(policy, model, start, rng):
    def step(state, rng):
        logits = state @ policy
        probs = jax.nn.softmax(logits)
        sample = jax.nn.one_hot(jax.random.categorical(rng, logits), logits.shape[-1])
        straight = sample + probs - jax.lax.stop_gradient(probs)
        state = jnp.tanh(jnp.concatenate([state, straight], axis=-1) @ model.dynamics)
        return state, state @ model.reward

    _, rewards = jax.lax.scan(step, start, jax.random.split(rng, 15))
    discounts = GAMMA ** jnp.arange(15)
    return -jnp.mean(jnp.sum(discounts[:, None] * rewards, axis=0))


def imagination_loss_c(policy, model, start, rng):
    def step(state, rng):
        logits = state @ policy
        index = jax.random.categorical(rng, logits)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), index[:, None], axis=-1)[:, 0]
        after = jnp.concatenate([state, jax.nn.one_hot(index, logits.shape[-1])], axis=-1) @ model.dynamics
        state = jax.lax.stop_gradient(jnp.tanh(after))
        return state, (state @ model.reward, log_prob)

    _, (rewards, log_probs) = jax.lax.scan(step, start, jax.random.split(rng, 15))
    back = lambda ret, r: (r + GAMMA * ret,) * 2
    returns = jax.lax.scan(back, jnp.zeros(rewards.shape[1]), rewards, reverse=True)[1]
    return -jnp.mean(log_probs * jax.lax.stop_gradient(returns - returns.mean()))


add(
    Case(
        "actor in imagination",
        "no gradient",
        imagination_loss,
        (imagination_loss_b, imagination_loss_c),
        (f32(8, 4), Imagined(f32(8, 4), f32(12, 8), f32(8)), f32(16, 8), key()),
        where="action = jax.nn.one_hot(jax.random.categorical(rng, logits), logits.shape[-1])",
        axes={"start": ("batch", None)},
        differentiate="policy",
        source="navix#152: the actor's loss went through a sampled discrete action",
    )
)


# The bonus of entropy.


def a2c_loss(params, obs, actions, targets):
    logits, values = policy_value.apply(params, obs)
    values = values.squeeze(-1)
    log_probs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_probs, actions[:, None], axis=-1).squeeze(-1)
    advantages = jax.lax.stop_gradient(targets - values)
    policy_loss = -jnp.mean(taken * advantages)
    value_loss = jnp.mean((values - targets) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return policy_loss + 0.5 * value_loss + 0.01 * entropy


def a2c_loss_b(params, obs, actions, targets):
    logits, values = policy_value.apply(params, obs)
    values = values.squeeze(-1)
    log_probs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_probs, actions[:, None], axis=-1).squeeze(-1)
    advantages = jax.lax.stop_gradient(targets - values)
    policy_loss = -jnp.mean(taken * advantages)
    value_loss = jnp.mean((values - targets) ** 2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return policy_loss + 0.5 * value_loss - 0.01 * entropy


def a2c_loss_c(params, obs, actions, targets):
    logits, values = policy_value.apply(params, obs)
    values = values.squeeze(-1)
    log_probs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_probs, actions[:, None], axis=-1).squeeze(-1)
    advantages = jax.lax.stop_gradient(targets - values)
    policy_loss = -jnp.mean(taken * advantages)
    value_loss = jnp.mean((values - targets) ** 2)
    negentropy = jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return policy_loss + 0.5 * value_loss + 0.01 * negentropy


def a2c_args():
    return shapes_of(policy_value.init, jax.random.key(0), f32(1, 8)), f32(B, 8), i32(B), f32(B)


add(
    Case(
        "entropy is minimized",
        "sign or scale inverted",
        a2c_loss,
        (a2c_loss_b, a2c_loss_c),
        a2c_args,
        where="return policy_loss + 0.5 * value_loss + 0.01 * entropy",
        axes={"obs": ("batch", None), "actions": ("batch",), "targets": ("batch",)},
        differentiate="params",
        source="actor-critic scripts in Flax: the bonus has the sign of a cost",
    )
)


# The log-probability of a squashed Gaussian.


def squashed_sample(params, obs, rng):
    h = jax.nn.relu(obs @ params["w"])
    mean, log_std = h @ params["mean"], jnp.clip(h @ params["log_std"], -20.0, 2.0)
    pre = mean + jnp.exp(log_std) * jax.random.normal(rng, mean.shape)
    action = jnp.tanh(pre)
    gaussian = -0.5 * ((pre - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_prob = jnp.sum(gaussian - jnp.log(1.0 - action**2), axis=-1)
    return action, log_prob


def squashed_sample_b(params, obs, rng):
    h = jax.nn.relu(obs @ params["w"])
    mean, log_std = h @ params["mean"], jnp.clip(h @ params["log_std"], -20.0, 2.0)
    pre = mean + jnp.exp(log_std) * jax.random.normal(rng, mean.shape)
    gaussian = -0.5 * ((pre - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    squash = 2.0 * (jnp.log(2.0) - pre - jax.nn.softplus(-2.0 * pre))
    return jnp.tanh(pre), jnp.sum(gaussian - squash, axis=-1)


def squashed_sample_c(params, obs, rng):
    h = jax.nn.relu(obs @ params["w"])
    mean, log_std = h @ params["mean"], jnp.clip(h @ params["log_std"], -20.0, 2.0)
    pre = mean + jnp.exp(log_std) * jax.random.normal(rng, mean.shape)
    action = jnp.tanh(pre)
    gaussian = -0.5 * ((pre - mean) / jnp.exp(log_std)) ** 2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    return action, jnp.sum(gaussian - jnp.log(1.0 - action**2 + 1e-6), axis=-1)


def sac_actor(sample):
    def loss(params, critic, alpha, obs, rng):
        action, log_prob = sample(params, obs, rng)
        q = jnp.concatenate([obs, action], axis=-1) @ critic
        return jnp.mean(alpha * log_prob - q)

    return loss


SQUASHED = {"w": f32(6, 32), "mean": f32(32, 3), "log_std": f32(32, 3)}
add(
    Case(
        "squashed gaussian",
        "unstable logarithm",
        sac_actor(squashed_sample),
        (sac_actor(squashed_sample_b), sac_actor(squashed_sample_c)),
        (SQUASHED, f32(9), f32(), f32(B, 6), key()),
        where="log_prob = jnp.sum(gaussian - jnp.log(1.0 - action**2), axis=-1)",
        axes={"obs": ("batch", None)},
        differentiate="params",
        source="distrax#216, cleanrl#300: log-probabilities of saturated actions",
    )
)


# Returns of several steps.


def n_step_loss(params, target_params, obs, actions, rewards, dones, last_obs):
    steps = rewards.shape[0]
    discounts = GAMMA ** jnp.arange(steps)
    alive = jnp.cumprod(1.0 - dones, axis=0)
    before = jnp.concatenate([jnp.ones_like(alive[:1]), alive[:-1]])
    returns = jnp.sum(discounts[:, None] * before * rewards, axis=0)
    bootstrap = jnp.max(last_obs @ target_params, axis=-1)
    target = returns + GAMMA * alive[-1] * bootstrap
    q = jnp.take_along_axis(obs @ params, actions[:, None], axis=-1)[:, 0]
    return jnp.mean((q - jax.lax.stop_gradient(target)) ** 2)


def n_step_loss_b(params, target_params, obs, actions, rewards, dones, last_obs):
    steps = rewards.shape[0]
    discounts = GAMMA ** jnp.arange(steps)
    alive = jnp.cumprod(1.0 - dones, axis=0)
    before = jnp.concatenate([jnp.ones_like(alive[:1]), alive[:-1]])
    returns = jnp.sum(discounts[:, None] * before * rewards, axis=0)
    bootstrap = jnp.max(last_obs @ target_params, axis=-1)
    target = returns + GAMMA**steps * alive[-1] * bootstrap
    q = jnp.take_along_axis(obs @ params, actions[:, None], axis=-1)[:, 0]
    return jnp.mean((q - jax.lax.stop_gradient(target)) ** 2)


add(
    Case(
        "bootstrap after n steps",
        "sign or scale inverted",
        n_step_loss,
        (n_step_loss_b,),
        (f32(6, 4), f32(6, 4), f32(B, 6), i32(B), f32(5, B), f32(5, B), f32(B, 6)),
        where="target = returns + GAMMA * alive[-1] * bootstrap",
        axes={
            "obs": ("batch", None),
            "actions": ("batch",),
            "rewards": ("time", "batch"),
            "dones": ("time", "batch"),
            "last_obs": ("batch", None),
        },
        differentiate="params",
        source="SocialRobot#8: the bootstrap is discounted once and not n times",
    )
)


# Advantages of sequences that are padded.


def sequence_loss(logits, tokens, old_log_probs, advantages, mask):
    log_probs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    lengths = jnp.maximum(mask.sum(axis=1), 1.0)
    ratio = jnp.exp(jnp.sum((taken - old_log_probs) * mask, axis=1) / lengths)
    weight = advantages.mean(axis=1)
    surrogate = jnp.minimum(ratio * weight, jnp.clip(ratio, 0.8, 1.2) * weight)
    return -surrogate.mean()


def sequence_loss_b(logits, tokens, old_log_probs, advantages, mask):
    log_probs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
    lengths = jnp.maximum(mask.sum(axis=1), 1.0)
    ratio = jnp.exp(jnp.sum((taken - old_log_probs) * mask, axis=1) / lengths)
    weight = jnp.sum(advantages * mask, axis=1) / lengths
    surrogate = jnp.minimum(ratio * weight, jnp.clip(ratio, 0.8, 1.2) * weight)
    return -surrogate.mean()


add(
    Case(
        "advantages of padding",
        "mean of means",
        sequence_loss,
        (sequence_loss_b,),
        (f32(4, 12, 20), i32(4, 12), f32(4, 12), f32(4, 12), f32(4, 12)),
        where="weight = advantages.mean(axis=1)",
        axes={
            "logits": ("batch", "length", None),
            "tokens": ("batch", "length"),
            "advantages": ("batch", "length"),
            "mask": ("batch", "length"),
        },
        differentiate="logits",
        source="AReaL#1346: padding enters the advantage of a sequence",
    )
)
