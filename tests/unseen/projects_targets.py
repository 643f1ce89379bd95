"""Losses of reinforcement learning and regression: shapes that meet, and gradients of targets."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []
add = CASES.append


class Batch(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    next_obs: jax.Array
    done: jax.Array


def batch_of(size, action_shape=(3,)):
    return Batch(f32(size, 8), f32(size, *action_shape), f32(size), f32(size, 8), f32(size))


class Critic(nn.Module):
    hidden: int = 32

    @nn.compact
    def __call__(self, obs, action):
        x = jnp.concatenate([obs, action], axis=-1)
        x = nn.relu(nn.Dense(self.hidden)(x))
        x = nn.relu(nn.Dense(self.hidden)(x))
        return nn.Dense(1)(x)


class Policy(nn.Module):
    action_dim: int = 3

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(32)(obs))
        x = nn.tanh(nn.Dense(32)(x))
        return nn.tanh(nn.Dense(self.action_dim)(x))


class ActorCritic(nn.Module):
    action_dim: int = 4

    @nn.compact
    def __call__(self, obs):
        x = nn.tanh(nn.Dense(32)(obs))
        logits = nn.Dense(self.action_dim)(x)
        v = nn.tanh(nn.Dense(32)(obs))
        return logits, jnp.squeeze(nn.Dense(1)(v), -1)


class QNet(nn.Module):
    actions: int = 4

    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(32)(obs))
        return nn.Dense(self.actions)(x)


critic = Critic()
policy = Policy()
q_net = QNet()
actor_critic = ActorCritic()
GAMMA = 0.99


def critic_params():
    return shapes_of(critic.init, jax.random.key(0), jnp.zeros((1, 8)), jnp.zeros((1, 3)))


def policy_params():
    return shapes_of(policy.init, jax.random.key(0), jnp.zeros((1, 8)))


def q_params():
    return shapes_of(q_net.init, jax.random.key(0), jnp.zeros((1, 8)))


def ac_params():
    return shapes_of(actor_critic.init, jax.random.key(0), jnp.zeros((1, 8)))


# DDPG critic.


def ddpg_targets(target_actor, target_critic, batch):
    next_action = policy.apply(target_actor, batch.next_obs)
    next_q = critic.apply(target_critic, batch.next_obs, next_action).reshape(-1)
    return batch.reward + GAMMA * (1.0 - batch.done) * next_q


def ddpg_update(params, target_critic, target_actor, opt_state, batch):
    targets = ddpg_targets(target_actor, target_critic, batch)

    def loss_fn(p):
        q_values = critic.apply(p, batch.obs, batch.action)
        return ((q_values - targets) ** 2).mean(), q_values.mean()

    (loss, q_mean), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = optax.adam(3e-4).update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss, q_mean


def ddpg_update_b(params, target_critic, target_actor, opt_state, batch):
    targets = ddpg_targets(target_actor, target_critic, batch)

    def loss_fn(p):
        q_values = critic.apply(p, batch.obs, batch.action).reshape(-1)
        return jnp.mean((q_values - targets) ** 2), q_values.mean()

    (loss, q_mean), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = optax.adam(3e-4).update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss, q_mean


def ddpg_args():
    params = critic_params()
    return params, params, policy_params(), shapes_of(optax.adam(3e-4).init, params), batch_of(64)


add(
    Case(
        "ddpg critic",
        "(N,) meets (N, 1)",
        ddpg_update,
        (ddpg_update_b,),
        ddpg_args,
        where="return ((q_values - targets) ** 2).mean(), q_values.mean()",
        axes={"batch/reward": ("batch",), "batch/obs": ("batch", None)},
        source="CleanRL's JAX DDPG and its ports: the critic's last axis",
    )
)


# Gaussian PPO ratio.


def gaussian_log_prob(mean, log_std, action):
    var = jnp.exp(2 * log_std)
    per_dim = -0.5 * ((action - mean) ** 2 / var) - log_std - 0.5 * jnp.log(2 * jnp.pi)
    return per_dim.sum(axis=-1, keepdims=True)


def ppo_continuous(params, obs, actions, old_log_prob, advantages, clip_eps=0.2):
    mean = policy.apply(params["policy"], obs)
    log_prob = gaussian_log_prob(mean, params["log_std"], actions)
    ratio = jnp.exp(log_prob - old_log_prob)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    unclipped = ratio * advantages
    clipped = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps) * advantages
    return -jnp.minimum(unclipped, clipped).mean()


def ppo_continuous_b(params, obs, actions, old_log_prob, advantages, clip_eps=0.2):
    mean = policy.apply(params["policy"], obs)
    log_prob = gaussian_log_prob(mean, params["log_std"], actions)
    ratio = jnp.exp(log_prob - old_log_prob)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = advantages[:, None]
    surrogate = jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps) * gain
    return -jnp.minimum(ratio * gain, surrogate).mean()


add(
    Case(
        "gaussian ppo ratio",
        "(N,) meets (N, 1)",
        ppo_continuous,
        (ppo_continuous_b,),
        lambda: ({"policy": policy_params(), "log_std": f32(3)}, f32(128, 8), f32(128, 3), f32(128, 1), f32(128)),
        where="unclipped = ratio * advantages",
        axes={"obs": ("batch", None), "actions": ("batch", None), "advantages": ("batch",)},
        differentiate="params",
        source="DeepRL_Algorithms#13: shape of PPO advantages",
    )
)


# Linear regression on a feature matrix.


def predict(params, x):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return hidden @ params["w2"] + params["b2"]


def fit(params, xs, ys, lr=0.05):
    def mse(p):
        residual = predict(p, xs) - ys
        return jnp.mean(residual**2)

    def step(p, _):
        loss, grads = jax.value_and_grad(mse)(p)
        return jax.tree.map(lambda a, g: a - lr * g, p, grads), loss

    return jax.lax.scan(step, params, None, length=50)


def fit_b(params, xs, ys, lr=0.05):
    def mse(p):
        error = predict(p, xs)[:, 0] - ys
        return jnp.mean(error**2)

    def step(p, _):
        loss, grads = jax.value_and_grad(mse)(p)
        return jax.tree.map(lambda a, g: a - lr * g, p, grads), loss

    return jax.lax.scan(step, params, None, length=50)


REGRESSION = {"w1": f32(5, 16), "b1": f32(16), "w2": f32(16, 1), "b2": f32(1)}
add(
    Case(
        "regression residual",
        "(N,) meets (N, 1)",
        fit,
        (fit_b,),
        (REGRESSION, f32(100, 5), f32(100)),
        where="residual = predict(p, xs) - ys",
        axes={"xs": ("batch", "features"), "ys": ("batch",)},
        source="jax#2697: simple classification with MSE loss",
    )
)


# Quantile regression.


def huber(x, kappa=1.0):
    return jnp.where(jnp.abs(x) <= kappa, 0.5 * x**2, kappa * (jnp.abs(x) - 0.5 * kappa))


def quantile_loss(quantiles, targets):
    num = quantiles.shape[-1]
    taus = (jnp.arange(num) + 0.5) / num
    td = targets[:, None, :] - quantiles[:, :, None]
    weight = jnp.abs(taus - (td < 0).astype(jnp.float32))
    return (weight * huber(td)).sum(axis=1).mean()


def quantile_loss_b(quantiles, targets):
    num = quantiles.shape[-1]
    taus = ((jnp.arange(num) + 0.5) / num)[None, :, None]
    td = targets[:, None, :] - quantiles[:, :, None]
    pressure = jnp.abs(taus - (td < 0).astype(jnp.float32))
    return (pressure * huber(td)).sum(axis=1).mean()


add(
    Case(
        "quantile levels",
        "(N,) meets (N, 1)",
        quantile_loss,
        (quantile_loss_b,),
        (f32(32, 51), f32(32, 51)),
        where="weight = jnp.abs(taus - (td < 0).astype(jnp.float32))",
        axes={"quantiles": ("batch", "quantile"), "targets": ("batch", "target_quantile")},
        differentiate="quantiles",
        source="QR-DQN#1: the quantile levels broadcast along the targets' axis",
    )
)


# SAC actor with entropy.


def sample_action(params, obs, rng):
    mean = policy.apply(params, obs)
    noise = jax.random.normal(rng, mean.shape)
    action = jnp.tanh(mean + 0.1 * noise)
    log_prob = -0.5 * noise**2 - jnp.log(0.1) - jnp.log(1 - action**2 + 1e-6)
    return action, log_prob.sum(-1)


def soft_target(actor_params, critics, log_alpha, batch, rng):
    action, log_prob = sample_action(actor_params, batch.next_obs, rng)
    q1 = critic.apply(critics[0], batch.next_obs, action)
    q2 = critic.apply(critics[1], batch.next_obs, action)
    next_v = jnp.minimum(q1, q2) - jnp.exp(log_alpha) * log_prob
    return jax.lax.stop_gradient(batch.reward + GAMMA * (1 - batch.done) * next_v)


def soft_target_b(actor_params, critics, log_alpha, batch, rng):
    action, log_prob = sample_action(actor_params, batch.next_obs, rng)
    q1 = critic.apply(critics[0], batch.next_obs, action)[:, 0]
    q2 = critic.apply(critics[1], batch.next_obs, action)[:, 0]
    soft_v = jnp.minimum(q1, q2) - jnp.exp(log_alpha) * log_prob
    return jax.lax.stop_gradient(batch.reward + GAMMA * (1 - batch.done) * soft_v)


def sac_critic_grads(target):
    def run(params, actor_params, critics, log_alpha, batch, rng):
        goal = target(actor_params, critics, log_alpha, batch, rng)
        loss_fn = lambda p: jnp.mean((critic.apply(p, batch.obs, batch.action)[:, 0] - goal) ** 2)
        return jax.value_and_grad(loss_fn)(params)

    return run


def sac_args():
    params = critic_params()
    return params, policy_params(), (params, params), f32(), batch_of(256), key()


add(
    Case(
        "sac critic entropy",
        "(N,) meets (N, 1)",
        sac_critic_grads(soft_target),
        (sac_critic_grads(soft_target_b),),
        sac_args,
        where="next_v = jnp.minimum(q1, q2) - jnp.exp(log_alpha) * log_prob",
        axes={"batch/obs": ("batch", None), "batch/next_obs": ("batch", None), "batch/reward": ("batch",)},
        source="ray#6295, SAC performance fixes: fails silently if one is (N,) and not (N, 1)",
    )
)


# Prioritized replay weights.


class Sampled(NamedTuple):
    obs: jax.Array
    action: jax.Array
    target: jax.Array
    weights: jax.Array


def weighted_td(params, sampled):
    q = q_net.apply(params, sampled.obs)
    chosen = jnp.take_along_axis(q, sampled.action[:, None], axis=1)
    td = chosen - sampled.target[:, None]
    loss = jnp.mean(sampled.weights * jnp.square(td))
    return loss, jnp.abs(td)


def weighted_td_b(params, sampled):
    q = q_net.apply(params, sampled.obs)
    chosen = jnp.take_along_axis(q, sampled.action[:, None], axis=1)[:, 0]
    td = chosen - sampled.target
    loss = jnp.mean(sampled.weights * td**2)
    return loss, jnp.abs(td)


def per_step(params, opt_state, sampled):
    (loss, priorities), grads = jax.value_and_grad(weighted_td, has_aux=True)(params, sampled)
    updates, opt_state = optax.sgd(1e-3).update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss, priorities


def per_step_b(params, opt_state, sampled):
    (loss, priorities), grads = jax.value_and_grad(weighted_td_b, has_aux=True)(params, sampled)
    updates, opt_state = optax.sgd(1e-3).update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss, priorities


def per_args():
    params = q_params()
    return params, shapes_of(optax.sgd(1e-3).init, params), Sampled(f32(32, 8), i32(32), f32(32), f32(32))


add(
    Case(
        "replay weights",
        "(N,) meets (N, 1)",
        per_step,
        (per_step_b,),
        per_args,
        where="loss = jnp.mean(sampled.weights * jnp.square(td))",
        axes={"sampled/obs": ("batch", None), "sampled/weights": ("batch",), "sampled/target": ("batch",)},
        source="prioritized replay in Dopamine-like JAX agents: importance weights times (N, 1) errors",
    )
)


# Advantage weighted regression.


def value_of(params, obs):
    hidden = nn.relu(obs @ params["vw1"])
    return hidden @ params["vw2"]


def awr_policy_loss(params, obs, actions, returns, beta=3.0):
    advantage = returns - value_of(params, obs).squeeze()
    weight = jnp.minimum(jnp.exp(beta * jax.lax.stop_gradient(advantage)), 100.0)
    sq_err = jnp.sum((policy.apply(params["policy"], obs) - actions) ** 2, axis=-1)
    return jnp.mean(weight * sq_err)


def awr_policy_loss_a(params, obs, actions, returns, beta=3.0):
    advantage = returns - value_of(params, obs)
    weight = jnp.minimum(jnp.exp(beta * jax.lax.stop_gradient(advantage)), 100.0)
    sq_err = jnp.sum((policy.apply(params["policy"], obs) - actions) ** 2, axis=-1)
    return jnp.mean(weight * sq_err)


add(
    Case(
        "advantage weighted regression",
        "(N,) meets (N, 1)",
        awr_policy_loss_a,
        (awr_policy_loss,),
        lambda: (
            {"policy": policy_params(), "vw1": f32(8, 16), "vw2": f32(16, 1)},
            f32(64, 8),
            f32(64, 3),
            f32(64),
        ),
        where="advantage = returns - value_of(params, obs)\n",
        axes={"obs": ("batch", None), "actions": ("batch", None), "returns": ("batch",)},
        differentiate="params",
        source="A3C in Deep-RL-Hands-On#33, JAX-CORL: values without squeeze",
    )
)


# DQN whose target is made inside of the loss.


def dqn_loss(params, batch):
    q = q_net.apply(params, batch.obs)
    q_taken = jnp.take_along_axis(q, batch.action[:, None], axis=-1).squeeze(-1)
    q_next = q_net.apply(params, batch.next_obs).max(axis=-1)
    target = batch.reward + GAMMA * q_next * (1 - batch.done)
    return optax.l2_loss(q_taken, target).mean()


def dqn_loss_b(params, batch):
    q = q_net.apply(params, batch.obs)
    q_taken = jnp.take_along_axis(q, batch.action[:, None], axis=-1).squeeze(-1)
    q_next = q_net.apply(params, batch.next_obs).max(axis=-1)
    fixed = jax.lax.stop_gradient(batch.reward + GAMMA * q_next * (1 - batch.done))
    return optax.l2_loss(q_taken, fixed).mean()


def dqn_train(params, opt_state, batch):
    loss, grads = jax.value_and_grad(dqn_loss)(params, batch)
    updates, opt_state = optax.adam(1e-3).update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def dqn_train_b(params, opt_state, batch):
    loss, grads = jax.value_and_grad(dqn_loss_b)(params, batch)
    updates, opt_state = optax.adam(1e-3).update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def dqn_args():
    params = q_params()
    batch = Batch(f32(64, 8), i32(64), f32(64), f32(64, 8), f32(64))
    return params, shapes_of(optax.adam(1e-3).init, params), batch


add(
    Case(
        "dqn target",
        "no stop_gradient",
        dqn_train,
        (dqn_train_b,),
        dqn_args,
        where="target = batch.reward + GAMMA * q_next * (1 - batch.done)",
        axes={"batch/obs": ("batch", None), "batch/reward": ("batch",)},
        source="small JAX DQNs without a target network",
    )
)


# A2C with one network.


def a2c_loss(params, obs, actions, returns, vf_coef=0.5, ent_coef=0.01):
    logits, values = actor_critic.apply(params, obs)
    log_probs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0]
    advantages = returns - values
    policy_loss = -jnp.mean(taken * advantages)
    value_loss = jnp.mean(advantages**2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return policy_loss + vf_coef * value_loss - ent_coef * entropy


def a2c_loss_b(params, obs, actions, returns, vf_coef=0.5, ent_coef=0.01):
    logits, values = actor_critic.apply(params, obs)
    log_probs = jax.nn.log_softmax(logits)
    taken = jnp.take_along_axis(log_probs, actions[:, None], axis=1)[:, 0]
    advantages = returns - values
    pg_loss = -jnp.mean(taken * jax.lax.stop_gradient(advantages))
    value_loss = jnp.mean(advantages**2)
    entropy = -jnp.mean(jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1))
    return pg_loss + vf_coef * value_loss - ent_coef * entropy


def a2c_step(params, obs, actions, returns):
    return jax.grad(a2c_loss)(params, obs, actions, returns)


def a2c_step_b(params, obs, actions, returns):
    return jax.grad(a2c_loss_b)(params, obs, actions, returns)


add(
    Case(
        "a2c advantage",
        "no stop_gradient",
        a2c_step,
        (a2c_step_b,),
        lambda: (ac_params(), f32(40, 8), i32(40), f32(40)),
        where="policy_loss = -jnp.mean(taken * advantages)",
        axes={"obs": ("batch", None), "actions": ("batch",), "returns": ("batch",)},
        source="actor-critic examples of Haiku and Flax users",
    )
)


# VQ-VAE.


def nearest_code(codebook, z):
    distances = jnp.sum(z**2, -1, keepdims=True) - 2 * z @ codebook.T + jnp.sum(codebook**2, -1)
    return codebook[jnp.argmin(distances, axis=-1)]


def vqvae_loss(params, x, beta=0.25):
    z = jnp.tanh(x @ params["encoder"])
    quantized = nearest_code(params["codebook"], z)
    straight_through = z + jax.lax.stop_gradient(quantized - z)
    recon = straight_through @ params["decoder"]
    codebook_loss = jnp.mean((quantized - z) ** 2)
    commitment = jnp.mean((z - jax.lax.stop_gradient(quantized)) ** 2)
    return jnp.mean((recon - x) ** 2) + codebook_loss + beta * commitment


def vqvae_loss_b(params, x, beta=0.25):
    z = jnp.tanh(x @ params["encoder"])
    quantized = nearest_code(params["codebook"], z)
    straight_through = z + jax.lax.stop_gradient(quantized - z)
    recon = straight_through @ params["decoder"]
    embedding_loss = jnp.mean((quantized - jax.lax.stop_gradient(z)) ** 2)
    commitment = jnp.mean((z - jax.lax.stop_gradient(quantized)) ** 2)
    return jnp.mean((recon - x) ** 2) + embedding_loss + beta * commitment


VQ = {"encoder": f32(20, 6), "codebook": f32(64, 6), "decoder": f32(6, 20)}
add(
    Case(
        "vqvae codebook",
        "no stop_gradient",
        lambda params, x: jax.value_and_grad(vqvae_loss)(params, x),
        (lambda params, x: jax.value_and_grad(vqvae_loss_b)(params, x),),
        (VQ, f32(32, 20)),
        where="codebook_loss = jnp.mean((quantized - z) ** 2)",
        axes={"x": ("batch", None)},
        source="VQ-VAE ports in JAX: codebook and commitment terms",
    )
)


# SAC temperature in one loss.


class SacParams(NamedTuple):
    actor: dict
    log_alpha: jax.Array


def joint_sac_loss(params, critic_params, obs, rng, target_entropy=-3.0):
    action, log_prob = sample_action(params.actor, obs, rng)
    q = critic.apply(critic_params, obs, action)[:, 0]
    alpha = jnp.exp(params.log_alpha)
    actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_prob - q)
    alpha_loss = jnp.mean(-params.log_alpha * (log_prob + target_entropy))
    return actor_loss + alpha_loss


def joint_sac_loss_b(params, critic_params, obs, rng, target_entropy=-3.0):
    action, log_prob = sample_action(params.actor, obs, rng)
    q = critic.apply(critic_params, obs, action)[:, 0]
    alpha = jnp.exp(params.log_alpha)
    actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_prob - q)
    surplus = jax.lax.stop_gradient(log_prob + target_entropy)
    return actor_loss + jnp.mean(-params.log_alpha * surplus)


add(
    Case(
        "sac temperature",
        "no stop_gradient",
        joint_sac_loss,
        (joint_sac_loss_b,),
        lambda: (SacParams(policy_params(), f32()), critic_params(), f32(64, 8), key()),
        where="alpha_loss = jnp.mean(-params.log_alpha * (log_prob + target_entropy))",
        axes={"obs": ("batch", None)},
        differentiate="params",
        source="JaxCQL#3 and Dopamine: stop the gradient of the entropy in the temperature's loss",
    )
)


# Self-distillation with a momentum teacher.


def project(params, x):
    hidden = nn.gelu(x @ params["backbone"])
    z = hidden @ params["head"]
    return z * jax.lax.rsqrt(jnp.sum(z**2, axis=-1, keepdims=True) + 1e-6)


def simsiam_loss(params, view_a, view_b):
    za, zb = project(params, view_a), project(params, view_b)
    pa, pb = za @ params["predictor"], zb @ params["predictor"]
    sim = jnp.sum(pa * zb, axis=-1) + jnp.sum(pb * za, axis=-1)
    return -0.5 * jnp.mean(sim)


def simsiam_loss_b(params, view_a, view_b):
    za, zb = project(params, view_a), project(params, view_b)
    pa, pb = za @ params["predictor"], zb @ params["predictor"]
    za, zb = jax.lax.stop_gradient((za, zb))
    agreement = jnp.sum(pa * zb, axis=-1) + jnp.sum(pb * za, axis=-1)
    return -0.5 * jnp.mean(agreement)


SIAM = {"backbone": f32(32, 64), "head": f32(64, 16), "predictor": f32(16, 16)}
add(
    Case(
        "simsiam target branch",
        "no stop_gradient",
        lambda params, view_a, view_b: jax.grad(simsiam_loss)(params, view_a, view_b),
        (lambda params, view_a, view_b: jax.grad(simsiam_loss_b)(params, view_a, view_b),),
        (SIAM, f32(48, 32), f32(48, 32)),
        where="sim = jnp.sum(pa * zb, axis=-1) + jnp.sum(pb * za, axis=-1)",
        axes={"view_a": ("batch", None), "view_b": ("batch", None)},
        source="self-supervised learning in scenic-like code: collapse without a stopped branch",
    )
)


# n-step bootstrap target for a value function inside of a scan over epochs.


def value_fn(params, obs):
    return (jnp.tanh(obs @ params["w1"]) @ params["w2"])[..., 0]


def td_lambda_loss(params, obs, rewards, dones, lam=0.9):
    values = value_fn(params, obs)

    def back(carry, x):
        reward, done, next_value = x
        ret = reward + GAMMA * (1 - done) * ((1 - lam) * next_value + lam * carry)
        return ret, ret

    _, returns = jax.lax.scan(back, values[-1], (rewards, dones, values[1:]), reverse=True)
    return jnp.mean((returns - values[:-1]) ** 2)


def td_lambda_loss_b(params, obs, rewards, dones, lam=0.9):
    values = value_fn(params, obs)
    boot = jax.lax.stop_gradient(values)

    def back(carry, x):
        reward, done, next_value = x
        ret = reward + GAMMA * (1 - done) * ((1 - lam) * next_value + lam * carry)
        return ret, ret

    _, goals = jax.lax.scan(back, boot[-1], (rewards, dones, boot[1:]), reverse=True)
    return jnp.mean((goals - values[:-1]) ** 2)


def td_lambda_epochs(params, obs, rewards, dones):
    def epoch(p, _):
        loss, g = jax.value_and_grad(td_lambda_loss)(p, obs, rewards, dones)
        return jax.tree.map(lambda a, b: a - 1e-3 * b, p, g), loss

    return jax.lax.scan(epoch, params, None, 4)


def td_lambda_epochs_b(params, obs, rewards, dones):
    def epoch(p, _):
        loss, g = jax.value_and_grad(td_lambda_loss_b)(p, obs, rewards, dones)
        return jax.tree.map(lambda a, b: a - 1e-3 * b, p, g), loss

    return jax.lax.scan(epoch, params, None, 4)


add(
    Case(
        "lambda returns",
        "no stop_gradient",
        td_lambda_epochs,
        (td_lambda_epochs_b,),
        ({"w1": f32(8, 32), "w2": f32(32, 1)}, f32(33, 4, 8), f32(32, 4), f32(32, 4)),
        where="return jnp.mean((returns - values[:-1]) ** 2)",
        axes={"obs": ("time", "envs", None), "rewards": ("time", "envs"), "dones": ("time", "envs")},
        source="rlax-like lambda returns, Dreamer ports: the return carries a gradient",
    )
)


# Two critics, one gradient.


def twin_loss(params, batch, targets):
    q = critic.apply(params, batch.obs, batch.action)[:, 0]
    return jnp.mean((q - targets) ** 2)


def twin_update(critic_1, critic_2, batch, targets):
    loss_1, grads = jax.value_and_grad(twin_loss)(critic_1, batch, targets)
    loss_2, grads_2 = jax.value_and_grad(twin_loss)(critic_2, batch, targets)
    apply = lambda p, g: p - 1e-3 * g
    critic_1 = jax.tree.map(apply, critic_1, grads)
    critic_2 = jax.tree.map(apply, critic_2, grads)
    return critic_1, critic_2, loss_1 + loss_2


def twin_update_b(critic_1, critic_2, batch, targets):
    loss_1, grads_1 = jax.value_and_grad(twin_loss)(critic_1, batch, targets)
    loss_2, grads_2 = jax.value_and_grad(twin_loss)(critic_2, batch, targets)
    apply = lambda p, g: p - 1e-3 * g
    critic_1 = jax.tree.map(apply, critic_1, grads_1)
    critic_2 = jax.tree.map(apply, critic_2, grads_2)
    return critic_1, critic_2, loss_1 + loss_2


add(
    Case(
        "twin critics",
        "result dropped",
        twin_update,
        (twin_update_b,),
        lambda: (critic_params(), critic_params(), batch_of(32), f32(32)),
        where="critic_2 = jax.tree.map(apply, critic_2, grads)\n",
        axes={"targets": ("batch",)},
        source="skrl#425: one gradient updates both critics",
    )
)


# Bootstrap that ignores the end of an episode.


def double_q_target(online, target, batch):
    best = q_net.apply(online, batch.next_obs).argmax(axis=-1)
    next_q = q_net.apply(target, batch.next_obs)
    next_value = jnp.take_along_axis(next_q, best[:, None], axis=-1)[:, 0]
    return batch.reward + GAMMA * next_value


def double_q_target_b(online, target, batch):
    best = q_net.apply(online, batch.next_obs).argmax(axis=-1)
    next_q = q_net.apply(target, batch.next_obs)
    next_value = jnp.take_along_axis(next_q, best[:, None], axis=-1)[:, 0]
    return batch.reward + GAMMA * (1.0 - batch.done) * next_value


def double_dqn(make_target):
    def loss_fn(online, target, batch):
        goal = jax.lax.stop_gradient(make_target(online, target, batch))
        q = q_net.apply(online, batch.obs)
        taken = jnp.take_along_axis(q, batch.action[:, None], axis=-1)[:, 0]
        return jnp.mean(optax.huber_loss(taken, goal))

    return lambda online, target, batch: jax.value_and_grad(loss_fn)(online, target, batch)


add(
    Case(
        "double dqn bootstrap",
        "done cuts a part",
        double_dqn(double_q_target),
        (double_dqn(double_q_target_b),),
        lambda: (q_params(), q_params(), Batch(f32(64, 8), i32(64), f32(64), f32(64, 8), f32(64))),
        where="return batch.reward + GAMMA * next_value\n",
        axes={"batch/obs": ("batch", None), "batch/reward": ("batch",), "batch/done": ("batch",)},
        source="DQN ports: the bootstrap of terminal states",
    )
)


# Constant index past the end.


class EnvObs(NamedTuple):
    position: jax.Array
    velocity: jax.Array
    contact: jax.Array


def reward_terms(obs: EnvObs, action):
    forward = obs.velocity[0]
    height = obs.position[3]
    healthy = jnp.logical_and(height > 0.2, height < 1.0)
    control = jnp.sum(action**2)
    feet = jnp.where(obs.contact, 1.0, 0.0).sum()
    return forward + healthy - 1e-2 * control + 0.1 * feet, healthy


def reward_terms_b(obs: EnvObs, action):
    forward = obs.velocity[0]
    height = obs.position[1]
    healthy = jnp.logical_and(height > 0.2, height < 1.0)
    control = jnp.sum(action**2)
    feet = jnp.where(obs.contact, 1.0, 0.0).sum()
    return forward + healthy - 1e-2 * control + 0.1 * feet, healthy


def batched_reward(obs, action):
    return jax.vmap(reward_terms)(obs, action)


def batched_reward_b(obs, action):
    return jax.vmap(reward_terms_b)(obs, action)


add(
    Case(
        "height of the torso",
        "index out of range",
        batched_reward,
        (batched_reward_b,),
        (EnvObs(f32(16, 3), f32(16, 3), flags(16, 4)), f32(16, 8)),
        where="height = obs.position[3]",
        axes={"obs": ("envs", None), "action": ("envs", None)},
        source="brax and MJX environments: indices of qpos after the model changed",
    )
)
