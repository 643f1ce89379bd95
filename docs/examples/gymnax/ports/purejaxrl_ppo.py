from typing import Any, NamedTuple

import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import optax
from gymnax.wrappers import LogWrapper

ENVS, STEPS, UPDATES, EPOCHS, MINIBATCHES = 8, 64, 25, 4, 4
GAMMA, LAMBDA, CLIP, SEEDS = 0.99, 0.95, 0.2, 2


class ActorCritic(nn.Module):
    actions: int

    @nn.compact
    def __call__(self, x):
        actor, critic = (nn.tanh(nn.Dense(64)(nn.tanh(nn.Dense(64)(x)))) for _ in range(2))
        return nn.Dense(self.actions)(actor), nn.Dense(1)(critic)[..., 0]


class Transition(NamedTuple):
    obs: Any
    action: Any
    log_prob: Any
    value: Any
    reward: Any
    done: Any
    info: Any


env, env_params = gymnax.make("CartPole-v1")
env = LogWrapper(env)
network = ActorCritic(env.num_actions)
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))


def log_prob_of(logits, action):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def train(key):
    key, env_key, init_key = jax.random.split(key, 3)
    obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(env_key, ENVS), env_params)
    params = network.init(init_key, obs)

    def update(carry, _):
        params, opt_state, obs, env_state, key = carry

        def env_step(carry, key):
            obs, env_state = carry
            act_key, env_key = jax.random.split(key)
            logits, value = network.apply(params, obs)
            action = jax.random.categorical(act_key, logits)
            keys = jax.random.split(env_key, ENVS)
            after, env_state, reward, terminated, truncated, info = jax.vmap(env.step, (0, 0, 0, None))(
                keys, env_state, action, env_params
            )
            done = terminated | truncated
            return (after, env_state), Transition(obs, action, log_prob_of(logits, action), value, reward, done, info)

        key, rollout_key, epochs_key = jax.random.split(key, 3)
        (obs, env_state), batch = jax.lax.scan(env_step, (obs, env_state), jax.random.split(rollout_key, STEPS))

        def gae(carry, now):
            advantage, following = carry
            delta = now.reward + GAMMA * following * (1 - now.done) - now.value
            advantage = delta + GAMMA * LAMBDA * (1 - now.done) * advantage
            return (advantage, now.value), advantage

        _, last = network.apply(params, obs)
        _, advantages = jax.lax.scan(gae, (jnp.zeros(ENVS), last), batch, reverse=True)

        def loss_fn(params, batch, advantages):
            logits, value = network.apply(params, batch.obs)
            ratio = jnp.exp(log_prob_of(logits, batch.action) - batch.log_prob)
            scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            actor_loss = -jnp.minimum(ratio * scaled, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * scaled).mean()
            value_loss = jnp.mean((value - batch.value - advantages) ** 2)
            entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1).mean()
            return actor_loss + 0.5 * value_loss - 0.01 * entropy, (actor_loss, value_loss, entropy)

        def minibatch_step(carry, minibatch):
            params, opt_state = carry
            (_, parts), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params, *minibatch)
            updates, opt_state = optimizer.update(gradient, opt_state)
            return (optax.apply_updates(params, updates), opt_state), parts

        def epoch(carry, key):
            order = jax.random.permutation(key, ENVS * STEPS).reshape(MINIBATCHES, -1)
            minibatches = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[order], (batch, advantages))
            return jax.lax.scan(minibatch_step, carry, minibatches)

        (params, opt_state), parts = jax.lax.scan(epoch, (params, opt_state), jax.random.split(epochs_key, EPOCHS))
        metrics = {
            "return": batch.info["returned_episode_returns"],
            "ended": batch.info["returned_episode"],
            "losses": jax.tree.map(jnp.mean, parts),
        }
        return (params, opt_state, obs, env_state, key), metrics

    carry, metrics = jax.lax.scan(update, (params, optimizer.init(params), obs, env_state, key), length=UPDATES)
    return carry[0], metrics


if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), SEEDS)
    params, metrics = jax.jit(jax.vmap(train))(keys)
    for seed in range(SEEDS):
        returns = metrics["return"][seed][metrics["ended"][seed]]
        actor_loss, value_loss, entropy = (part[seed, -1] for part in metrics["losses"])
        print(f"seed {seed}: returns {returns[:20].mean():.0f} to {returns[-20:].mean():.0f}, entropy {entropy:.2f}")
