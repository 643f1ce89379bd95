"""Recurrences that go over another axis than that of time."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from corpus import f32, flags, right, wrong

ENVS_TIME = ("env", "time")
ROLLOUT = {"rewards": ENVS_TIME, "values": ENVS_TIME, "dones": ENVS_TIME}


def _gae(rewards, values, dones):
    """Advantages of rewards, values and ends of episodes, of which time is the first axis."""

    def back(carry, at):
        advantage, next_value = carry
        reward, value, done = at
        delta = reward + 0.99 * next_value * (1 - done) - value
        advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
        return (advantage, value), advantage

    zeros = jnp.zeros(rewards.shape[1:])
    return jax.lax.scan(back, (zeros, zeros), (rewards, values, dones), reverse=True)[1]


@wrong("LOX106", f32(8, 128), f32(8, 128), flags(8, 128), axes=ROLLOUT)
def gae_of_which_environments_come_first(rewards, values, dones):
    return _gae(rewards, values, dones)


@wrong("LOX106", f32(8, 128), f32(8, 128), flags(8, 128), axes=ROLLOUT)
def gae_that_is_mapped_over_time(rewards, values, dones):
    return jax.jit(jax.vmap(_gae, in_axes=1, out_axes=1))(rewards, values, dones)


@wrong("LOX106", f32(128, 8), axes={"rewards": ("time", "batch")})
def rewards_to_go_over_the_batch(rewards):
    return jnp.cumsum(rewards[:, ::-1], axis=-1)[:, ::-1]


@right("LOX106", f32(8, 128), f32(8, 128), flags(8, 128), axes=ROLLOUT)
def gae_with_time_brought_first(rewards, values, dones):
    return _gae(rewards.T, values.T, dones.T).T


@right("LOX106", f32(8, 128), f32(8, 128), flags(8, 128), axes=ROLLOUT)
def gae_of_each_environment(rewards, values, dones):
    return jax.vmap(_gae)(rewards, values, dones)


@right("LOX106", f32(128, 8), axes={"rewards": ("time", "batch")})
def rewards_to_go_over_time(rewards):
    return jnp.cumsum(rewards[::-1], axis=0)[::-1]


@right("LOX106", f32(64, 128, 4), f32(4), axes={"sequences": ("batch", "time", "feature")})
def updates_on_one_sequence_after_the_other(sequences, weights):
    def update(state, sequence):
        weights, momentum = state
        errors, gradient = jax.vmap(jax.value_and_grad(lambda w, x: (x @ w) ** 2), (None, 0))(weights, sequence)
        momentum = 0.9 * momentum + gradient.mean(axis=0)
        return (weights - 0.1 * momentum, momentum), errors

    return jax.lax.scan(update, (weights, jnp.zeros(4)), sequences)


@right("LOX106", f32(64, 128), axes={"returns": ("batch", "time")})
def mean_over_the_batch_one_by_one(returns):
    def add(mean, at):
        number, sequence = at
        return mean + (sequence - mean) / (number + 1), None

    return jax.lax.scan(add, jnp.zeros(128), (jnp.arange(64.0), returns))[0]


@wrong("LOX106", f32(8, 128), axes={"inputs": ("agent", "time")})
def states_before_each_step_of_which_agents_come_first(inputs):
    return jax.lax.scan(lambda state, now: (0.9 * state + now, state), jnp.zeros(128), inputs)[1]


@right("LOX106", f32(128, 8), axes={"inputs": ("time", "agent")})
def states_before_each_step(inputs):
    return jax.lax.scan(lambda state, now: (0.9 * state + now, state), jnp.zeros(8), inputs)[1]
