"""Axes that mean one thing where another is meant."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import lox
from benchmarks.corpus import f32, right, wrong

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
