"""PPO on gymnax, wholly jitted and mapped over seeds, with a run of W&B and of TensorBoard for each seed.

    python docs/examples/gymnax/ppo.py --out runs

Needs the extra `gymnax`. Environments, rollouts, epochs and seeds are all inside of one compiled program, and the logs
leave it while it runs. W&B is offline: `wandb sync` uploads what is in the directory.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax

import lox

ENVS, TIME, UPDATES, EPOCHS, PARTS = 16, 64, 100, 4, 4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
OPTIMIZER = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-3))
ENV, ENV_PARAMS = gymnax.make("CartPole-v1")


class Sample(NamedTuple):
    """What is known of one step of one environment; in a rollout, arrays of shape (time, envs, ...)."""

    observation: Any
    action: Any
    log_probability: Any
    value: Any
    reward: Any
    done: Any


def init(key):
    """The parameters of a network for the policy and one for the value."""
    orthogonal = jax.nn.initializers.orthogonal
    (inputs,) = ENV.observation_space(ENV_PARAMS).shape

    def layers(key, outputs, scale):
        first, second, last = jax.random.split(key, 3)
        hidden = [orthogonal(2**0.5)(first, (inputs, 64)), orthogonal(2**0.5)(second, (64, 64))]
        return [*hidden, orthogonal(scale)(last, (64, outputs))]

    policy_key, value_key = jax.random.split(key)
    return {"policy": layers(policy_key, ENV.num_actions, 0.01), "value": layers(value_key, 1, 1.0)}


def network(params, observation):
    """The logits of actions, and the value, of one observation."""

    def apply(layers):
        hidden = observation
        for weights in layers[:-1]:
            hidden = jnp.tanh(hidden @ weights)
        return hidden @ layers[-1]

    return apply(params["policy"]), apply(params["value"])[0]


def train(key):
    """Trains an agent."""
    init_key, env_key, key = jax.random.split(key, 3)
    params = init(init_key)
    observations, states = jax.vmap(ENV.reset, in_axes=(0, None))(jax.random.split(env_key, ENVS), ENV_PARAMS)
    carry = (params, OPTIMIZER.init(params), observations, states, jnp.zeros(ENVS))
    return jax.lax.scan(update, carry, (jnp.arange(UPDATES), jax.random.split(key, UPDATES)))[0][0]


def update(carry, now):
    """A rollout and the epochs on it."""
    params, optimizer, observations, states, returns = carry
    number, key = now
    rollout_key, epochs_key = jax.random.split(key)

    def step(carry, key):
        observations, states, returns = carry
        action_key, env_key = jax.random.split(key)
        logits, values = jax.vmap(network, in_axes=(None, 0))(params, observations)
        actions = jax.random.categorical(action_key, logits)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], 1)[:, 0]
        after, states, rewards, terminated, truncated, _ = jax.vmap(ENV.step, in_axes=(0, 0, 0, None))(
            jax.random.split(env_key, ENVS), states, actions, ENV_PARAMS
        )
        dones = terminated | truncated
        returns = returns + rewards
        finished = jnp.where(dones, returns, 0.0)  # Of the episodes that end here.
        sample = Sample(observations, actions, chosen, values, rewards, dones)
        return (after, states, jnp.where(dones, 0.0, returns)), (sample, finished)

    (observations, states, returns), (rollout, finished) = jax.lax.scan(
        step, (observations, states, returns), jax.random.split(rollout_key, TIME)
    )
    _, last = jax.vmap(network, in_axes=(None, 0))(params, observations)
    advantages = estimates(rollout, last)
    samples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rollout, advantages, advantages + rollout.value))

    def part_of_epoch(carry, indices):
        params, optimizer = carry
        gradient = jax.grad(loss_fn)(params, *jax.tree.map(lambda x: x[indices], samples))
        changes, optimizer = OPTIMIZER.update(gradient, optimizer)
        lox.log({"gradient_norm": optax.tree.norm(gradient)}, tags=["optimizer"])
        return (optax.apply_updates(params, changes), optimizer), None

    def epoch(carry, key):
        indices = jax.random.permutation(key, ENVS * TIME).reshape(PARTS, -1)
        return jax.lax.scan(part_of_epoch, carry, indices)

    (params, optimizer), _ = jax.lax.scan(epoch, (params, optimizer), jax.random.split(epochs_key, EPOCHS))
    lox.log({"value": last.mean()}, tags=["agent"], step=number)
    ended = rollout.done.sum()
    mean_return = finished.sum() / jnp.maximum(ended, 1)
    lox.log({"episode_return": mean_return}, tags=["agent"], where=ended > 0, step=number)
    return (params, optimizer, observations, states, returns), None


def estimates(rollout, last):
    """Generalized advantage estimates, of shape (time, envs)."""

    def step(carry, sample):
        following, advantage = carry
        delta = sample.reward + GAMMA * following * (1 - sample.done) - sample.value
        advantage = delta + GAMMA * LAMBDA * (1 - sample.done) * advantage
        return (sample.value, advantage), advantage

    return jax.lax.scan(step, (last, jnp.zeros_like(last)), rollout, reverse=True)[1]


def loss_fn(params, samples, advantages, targets):
    """PPO's loss; logs its parts, from inside of the derivative."""
    logits, values = jax.vmap(network, in_axes=(None, 0))(params, samples.observation)
    log_probabilities = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probabilities, samples.action[:, None], 1)[:, 0]
    ratio = jnp.exp(chosen - samples.log_probability)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
    policy = -jnp.minimum(ratio * advantages, clipped * advantages).mean()
    value = jnp.mean((values - targets) ** 2)
    entropy = -(jnp.exp(log_probabilities) * log_probabilities).sum(-1).mean()
    lox.log(
        {"policy": policy, "value": value, "entropy": entropy, "clipped": jnp.mean(ratio != clipped)},
        prefix="loss/",
        tags=["optimizer"],
    )
    return policy + 0.5 * value - 0.01 * entropy


def main() -> None:
    """Trains all seeds at once; the loggers take the agents' progress, and the losses come back folded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", default="runs", help="the directory for both loggers")
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()

    wandb = lox.loggers.WandbLogger(init={"project": "ppo", "mode": "offline", "dir": options.out})
    with lox.loggers.MultiLogger(wandb, lox.loggers.TensorBoardLogger(f"{options.out}/tensorboard")) as logger:

        def run(seed):
            state = logger.init(seed, environment="CartPole-v1", envs=ENVS, updates=UPDATES)
            return logger.tap(train, state, tags="agent")(jax.random.key(seed))

        watched = lox.spool(jax.vmap(run), tags="optimizer", reduce="last")
        _, losses = jax.jit(watched)(jnp.arange(options.seeds))
    _, logs = jax.jit(lox.spool(train, argnames="episode_return"))(jax.random.key(0))
    returns = logs.valid("episode_return")
    print(f"{options.seeds} seeds; their last entropies {', '.join(f'{e:.2f}' for e in losses['loss/entropy'][0])}")
    print(f"the return of seed 0 went from {returns[:5].mean():.0f} to {returns[-5:].mean():.0f}")


if __name__ == "__main__":
    main()
