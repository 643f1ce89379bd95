"""Rollouts and episodes, from issues of public projects."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []
add = CASES.append

GAMMA = 0.99
LAMBDA = 0.9
T, N = 24, 6


# Targets of VDN.


def vdn_targets(rewards, dones, target_qs):
    team_q = target_qs.max(axis=-1).sum(axis=-1)

    def step(ret, x):
        reward, done, q = x
        mixed = LAMBDA * GAMMA * ret + reward + (1.0 - LAMBDA) * GAMMA * q
        ret = jnp.where(done, q, mixed)
        return ret, ret

    _, targets = jax.lax.scan(step, team_q[-1], (rewards[:-1], dones[:-1], team_q[1:]), reverse=True)
    return targets


def vdn_targets_b(rewards, dones, target_qs):
    team_q = target_qs.max(axis=-1).sum(axis=-1)

    def step(ret, x):
        reward, done, q = x
        mixed = LAMBDA * GAMMA * ret + reward + (1.0 - LAMBDA) * GAMMA * q
        ret = jnp.where(done, reward, mixed)
        return ret, ret

    _, targets = jax.lax.scan(step, team_q[-1], (rewards[:-1], dones[:-1], team_q[1:]), reverse=True)
    return targets


def vdn_targets_c(rewards, dones, target_qs):
    team_q = target_qs.max(axis=-1).sum(axis=-1)

    def step(ret, x):
        reward, done, q = x
        ret = reward + GAMMA * (1.0 - done) * (LAMBDA * ret + (1.0 - LAMBDA) * q)
        return ret, ret

    _, targets = jax.lax.scan(step, team_q[-1], (rewards[:-1], dones[:-1], team_q[1:]), reverse=True)
    return targets


add(
    Case(
        "targets of a team",
        "done cuts a part",
        vdn_targets,
        (vdn_targets_b, vdn_targets_c),
        (f32(T, N), flags(T, N), f32(T, N, 3, 5)),
        where="ret = jnp.where(done, q, mixed)",
        axes={
            "rewards": ("time", "envs"),
            "dones": ("time", "envs"),
            "target_qs": ("time", "envs", "agents", None),
        },
        source="JaxMARL#93: at the end of an episode the target is the next value and not the reward",
    )
)


# A pole on a cart, and what runs it.


class Pole(NamedTuple):
    x: jax.Array
    v: jax.Array
    t: jax.Array


def pole_reset(rng):
    return Pole(jax.random.uniform(rng, (2,), minval=-0.1, maxval=0.1), jnp.zeros(2), jnp.int32(0))


def pole_step(state, action):
    v = state.v + 0.02 * (jnp.where(action == 1, 1.0, -1.0) + 9.8 * jnp.sin(state.x))
    x = state.x + 0.02 * v
    t = state.t + 1
    terminated = jnp.abs(x[1]) > 0.3
    return Pole(x, v, t), 1.0 - x[0] ** 2, terminated, t >= 50


def observe(state):
    return jnp.concatenate([state.x, state.v])


def many(rng, number):
    return jax.random.split(rng, number)


class Step(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    done: jax.Array
    value: jax.Array


def collect(params, states, rng, steps):
    """A rollout whose `done` tells that the action of that step ended the episode."""

    def step(states, rng):
        act, again = jax.random.split(rng)
        obs = jax.vmap(observe)(states)
        action = jax.random.categorical(act, obs @ params["pi"])
        stepped, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        done = terminated | truncated
        fresh = jax.vmap(pole_reset)(many(again, done.shape[0]))
        pick = lambda a, b: jnp.where(done.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)
        states = jax.tree.map(pick, fresh, stepped)
        return states, Step(obs, action, reward, done.astype(jnp.float32), obs @ params["v"])

    return jax.lax.scan(step, states, jax.random.split(rng, steps))


def advantages_of_rollout(params, states, rng):
    states, traj = collect(params, states, rng, T)
    last_value = jax.vmap(observe)(states) @ params["v"]

    def step(carry, t):
        advantage, next_value, next_done = carry
        delta = t.reward + GAMMA * next_value * (1.0 - next_done) - t.value
        advantage = delta + GAMMA * LAMBDA * (1.0 - next_done) * advantage
        return (advantage, t.value, t.done), advantage

    start = (jnp.zeros_like(last_value), last_value, jnp.zeros_like(last_value))
    _, advantages = jax.lax.scan(step, start, traj, reverse=True)
    return states, advantages, advantages + traj.value


def advantages_of_rollout_b(params, states, rng):
    states, traj = collect(params, states, rng, T)
    last_value = jax.vmap(observe)(states) @ params["v"]

    def step(carry, t):
        advantage, next_value = carry
        delta = t.reward + GAMMA * next_value * (1.0 - t.done) - t.value
        advantage = delta + GAMMA * LAMBDA * (1.0 - t.done) * advantage
        return (advantage, t.value), advantage

    _, advantages = jax.lax.scan(step, (jnp.zeros_like(last_value), last_value), traj, reverse=True)
    return states, advantages, advantages + traj.value


POLES = Pole(f32(N, 2), f32(N, 2), i32(N))
LINEAR = {"pi": f32(4, 2), "v": f32(4)}
add(
    Case(
        "cut one step late",
        "done cuts a part",
        advantages_of_rollout,
        (advantages_of_rollout_b,),
        (LINEAR, POLES, key()),
        where="delta = t.reward + GAMMA * next_value * (1.0 - next_done) - t.value",
        axes={"states/x": ("envs", None), "states/t": ("envs",)},
        source="Mighty#126: advantages are cut one step too late",
    )
)


# Memory, reset where an episode terminates.


class Gated(nn.Module):
    features: int = 12

    @nn.compact
    def __call__(self, carry, obs):
        carry, y = nn.GRUCell(self.features)(carry, obs)
        return carry, nn.Dense(2)(y)


gated = Gated()


def recurrent_rollout(params, states, memory, rng):
    def step(carry, rng):
        states, memory = carry
        act, again = jax.random.split(rng)
        memory, logits = gated.apply(params, memory, jax.vmap(observe)(states))
        action = jax.random.categorical(act, logits)
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        over = terminated | truncated
        fresh = jax.vmap(pole_reset)(many(again, over.shape[0]))
        pick = lambda a, b: jnp.where(over.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)
        states = jax.tree.map(pick, fresh, states)
        memory = jnp.where(terminated[:, None], 0.0, memory)
        return (states, memory), (reward, over)

    return jax.lax.scan(step, (states, memory), jax.random.split(rng, T))


def recurrent_rollout_b(params, states, memory, rng):
    def step(carry, rng):
        states, memory = carry
        act, again = jax.random.split(rng)
        memory, logits = gated.apply(params, memory, jax.vmap(observe)(states))
        action = jax.random.categorical(act, logits)
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        over = terminated | truncated
        fresh = jax.vmap(pole_reset)(many(again, over.shape[0]))
        pick = lambda a, b: jnp.where(over.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)
        states = jax.tree.map(pick, fresh, states)
        memory = jnp.where(over[:, None], 0.0, memory)
        return (states, memory), (reward, over)

    return jax.lax.scan(step, (states, memory), jax.random.split(rng, T))


def recurrent_args():
    params = shapes_of(gated.init, jax.random.key(0), f32(N, 12), f32(N, 4))
    return params, POLES._replace(t=jnp.full(N, 40)), f32(N, 12), key()


add(
    Case(
        "memory after truncation",
        "done cuts a part",
        recurrent_rollout,
        (recurrent_rollout_b,),
        recurrent_args,
        where="memory = jnp.where(terminated[:, None], 0.0, memory)",
        axes={"states/x": ("envs", None), "memory": ("envs", None)},
        source="Mava#951: termination where termination or truncation is meant",
    )
)


# An evaluation of fixed length.


def evaluate(params, rng):
    states = jax.vmap(pole_reset)(many(rng, N))

    def step(states, _):
        action = jnp.argmax(jax.vmap(observe)(states) @ params["pi"], axis=-1)
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        return states, (reward, terminated | truncated)

    _, (rewards, dones) = jax.lax.scan(step, states, None, length=100)
    returns = rewards.sum(axis=0)
    lengths = jnp.argmax(dones, axis=0) + 1
    return {"return": returns.mean(), "length": lengths.mean()}


def evaluate_b(params, rng):
    states = jax.vmap(pole_reset)(many(rng, N))

    def step(states, _):
        action = jnp.argmax(jax.vmap(observe)(states) @ params["pi"], axis=-1)
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        return states, (reward, terminated | truncated)

    _, (rewards, dones) = jax.lax.scan(step, states, None, length=100)
    before = jnp.cumsum(dones, axis=0) - dones == 0
    returns = jnp.sum(rewards * before, axis=0)
    lengths = jnp.argmax(dones, axis=0) + 1
    return {"return": returns.mean(), "length": lengths.mean()}


def evaluate_c(params, rng):
    states = jax.vmap(pole_reset)(many(rng, N))

    def step(carry, _):
        states, alive, returns, lengths = carry
        action = jnp.argmax(jax.vmap(observe)(states) @ params["pi"], axis=-1)
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        returns, lengths = returns + alive * reward, lengths + alive
        return (states, alive * ~(terminated | truncated), returns, lengths), None

    carry = (states, jnp.ones(N), jnp.zeros(N), jnp.zeros(N))
    (_, _, returns, lengths), _ = jax.lax.scan(step, carry, None, length=100)
    return {"return": returns.mean(), "length": lengths.mean()}


add(
    Case(
        "rewards after the end",
        "done cuts a part",
        evaluate,
        (evaluate_b, evaluate_c),
        (LINEAR, key()),
        where="returns = rewards.sum(axis=0)",
        source="brax#43: rewards do not stop where an episode is done",
    )
)


# An action that is repeated.


def repeated_step(state, action):
    def once(state, _):
        state, reward, terminated, truncated = pole_step(state, action)
        return state, (reward, terminated | truncated)

    state, (rewards, dones) = jax.lax.scan(once, state, None, length=4)
    return state, rewards.sum(), dones[-1]


def repeated_step_b(state, action):
    def once(carry, _):
        state, over = carry
        stepped, reward, terminated, truncated = pole_step(state, action)
        state = jax.tree.map(lambda a, b: jnp.where(over, a, b), state, stepped)
        reward = jnp.where(over, 0.0, reward)
        return (state, over | terminated | truncated), reward

    (state, over), rewards = jax.lax.scan(once, (state, False), None, length=4)
    return state, rewards.sum(), over


def unroll(step):
    def run(states, actions, rng):
        def body(states, x):
            actions, rng = x
            states, reward, done = jax.vmap(step)(states, actions)
            fresh = jax.vmap(pole_reset)(many(rng, done.shape[0]))
            pick = lambda a, b: jnp.where(done.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)
            return jax.tree.map(pick, fresh, states), (reward, done)

        return jax.lax.scan(body, states, (actions, jax.random.split(rng, actions.shape[0])))

    return run


add(
    Case(
        "repeated action",
        "done cuts a part",
        unroll(repeated_step),
        (unroll(repeated_step_b),),
        (POLES, i32(T, N), key()),
        where="return state, rewards.sum(), dones[-1]",
        axes={"states/x": ("envs", None), "actions": ("time", "envs")},
        source="action repeat in the manner of brax: the last frame says whether the episode is done",
    )
)


# The flag of the first environment.


def vector_step(states, actions, rng):
    states, rewards, terminated, truncated = jax.vmap(pole_step)(states, actions)
    dones = terminated | truncated
    fresh = jax.vmap(pole_reset)(many(rng, actions.shape[0]))
    states = jax.tree.map(lambda a, b: jnp.where(dones[0], a, b), fresh, states)
    return states, rewards, dones


def vector_step_b(states, actions, rng):
    states, rewards, terminated, truncated = jax.vmap(pole_step)(states, actions)
    dones = terminated | truncated
    fresh = jax.vmap(pole_reset)(many(rng, actions.shape[0]))
    states = jax.vmap(lambda d, a, b: jax.tree.map(lambda x, y: jnp.where(d, x, y), a, b))(dones, fresh, states)
    return states, rewards, dones


add(
    Case(
        "flag of the first environment",
        "vmap",
        vector_step,
        (vector_step_b,),
        (POLES, i32(N), key()),
        where="states = jax.tree.map(lambda a, b: jnp.where(dones[0], a, b), fresh, states)",
        axes={"states/x": ("envs", None), "actions": ("envs",)},
        source="gymnax loops moved from one environment to many: the flag was that of one",
    )
)


# Advantages by environment, flattened with observations by time.


def one_gae(rewards, values, dones, last_value):
    def step(carry, x):
        advantage, next_value = carry
        reward, value, done = x
        delta = reward + GAMMA * next_value * (1.0 - done) - value
        advantage = delta + GAMMA * LAMBDA * (1.0 - done) * advantage
        return (advantage, value), advantage

    return jax.lax.scan(step, (jnp.zeros(()), last_value), (rewards, values, dones), reverse=True)[1]


def minibatches(traj, last_values, rng):
    gae = jax.vmap(one_gae, in_axes=(1, 1, 1, 0))
    advantages = gae(traj.reward, traj.value, traj.done, last_values)
    flat = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), traj)
    advantages = advantages.reshape(-1)
    order = jax.random.permutation(rng, advantages.shape[0])
    batch = jax.tree.map(lambda x: x[order].reshape((4, -1) + x.shape[1:]), (flat, advantages))
    return batch


def minibatches_b(traj, last_values, rng):
    gae = jax.vmap(one_gae, in_axes=(1, 1, 1, 0), out_axes=1)
    advantages = gae(traj.reward, traj.value, traj.done, last_values)
    flat = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), traj)
    advantages = advantages.reshape(-1)
    order = jax.random.permutation(rng, advantages.shape[0])
    batch = jax.tree.map(lambda x: x[order].reshape((4, -1) + x.shape[1:]), (flat, advantages))
    return batch


def minibatches_c(traj, last_values, rng):
    by_env = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), traj)
    advantages = jax.vmap(one_gae)(by_env.reward, by_env.value, by_env.done, last_values)
    flat = jax.tree.map(lambda x: x.reshape((-1,) + x.shape[2:]), (by_env, advantages))
    order = jax.random.permutation(rng, T * N)
    return jax.tree.map(lambda x: x[order].reshape((4, -1) + x.shape[1:]), flat)


ROLLOUT = Step(f32(T, N, 4), i32(T, N), f32(T, N), f32(T, N), f32(T, N))
ROLLOUT_AXES = {
    "traj/obs": ("time", "envs", None),
    "traj/action": ("time", "envs"),
    "traj/reward": ("time", "envs"),
    "traj/done": ("time", "envs"),
    "traj/value": ("time", "envs"),
}
add(
    Case(
        "advantages by environment",
        "time and environments exchanged",
        minibatches,
        (minibatches_b, minibatches_c),
        (ROLLOUT, f32(N), key()),
        where="gae = jax.vmap(one_gae, in_axes=(1, 1, 1, 0))\n",
        axes={**ROLLOUT_AXES, "last_values": ("envs",)},
        source="PureJaxRL-like scripts with rlax: vmap over axis 1 puts its output's axis first",
    )
)


# A recurrent network over a rollout.


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(16)(obs))
        x = nn.RNN(nn.GRUCell(16))(x)
        return nn.Dense(1)(x)[..., 0]


class RecurrentB(nn.Module):
    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(16)(obs))
        x = nn.RNN(nn.GRUCell(16), time_major=True)(x)
        return nn.Dense(1)(x)[..., 0]


class RecurrentC(nn.Module):
    @nn.compact
    def __call__(self, obs):
        x = nn.relu(nn.Dense(16)(obs.swapaxes(0, 1)))
        x = nn.RNN(nn.GRUCell(16))(x)
        return nn.Dense(1)(x)[..., 0].swapaxes(0, 1)


def value_regression(module):
    def loss(params, obs, rewards):
        values = module.apply(params, obs)
        back = lambda ret, r: (r + GAMMA * ret,) * 2
        returns = jax.lax.scan(back, jnp.zeros(rewards.shape[1]), rewards, reverse=True)[1]
        return jnp.mean((values - returns) ** 2)

    return loss


add(
    Case(
        "network over time",
        "time and environments exchanged",
        value_regression(Recurrent()),
        (value_regression(RecurrentB()), value_regression(RecurrentC())),
        lambda: (shapes_of(Recurrent().init, jax.random.key(0), f32(T, N, 4)), f32(T, N, 4), f32(T, N)),
        where="x = nn.relu(nn.Dense(16)(obs))\n        x = nn.RNN(nn.GRUCell(16))(x)",
        axes={"obs": ("time", "envs", None), "rewards": ("time", "envs")},
        differentiate="params",
        source="flax.linen.RNN takes batch-major inputs unless told: PPO with recurrence",
    )
)


# Rewards that are stored with the wrong observation.


def train_batch(params, states, last_reward, rng):
    def step(carry, rng):
        states, last_reward = carry
        obs = jax.vmap(observe)(states)
        action = jax.random.categorical(rng, obs @ params["pi"])
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        done = (terminated | truncated).astype(jnp.float32)
        return (states, reward), Step(obs, action, last_reward, done, obs @ params["v"])

    (states, last_reward), traj = jax.lax.scan(step, (states, last_reward), jax.random.split(rng, T))
    following = jnp.concatenate([traj.value[1:], (jax.vmap(observe)(states) @ params["v"])[None]])
    advantages = traj.reward + GAMMA * (1.0 - traj.done) * following - traj.value
    return states, last_reward, traj, advantages


def train_batch_b(params, states, last_reward, rng):
    def step(carry, rng):
        states, last_reward = carry
        obs = jax.vmap(observe)(states)
        action = jax.random.categorical(rng, obs @ params["pi"])
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        done = (terminated | truncated).astype(jnp.float32)
        return (states, reward), Step(obs, action, reward, done, obs @ params["v"])

    (states, last_reward), traj = jax.lax.scan(step, (states, last_reward), jax.random.split(rng, T))
    following = jnp.concatenate([traj.value[1:], (jax.vmap(observe)(states) @ params["v"])[None]])
    advantages = traj.reward + GAMMA * (1.0 - traj.done) * following - traj.value
    return states, last_reward, traj, advantages


def train_batch_c(params, states, last_reward, rng):
    def step(carry, rng):
        states, last_reward = carry
        obs = jax.vmap(observe)(states).at[:, 3].set(last_reward)
        action = jax.random.categorical(rng, obs @ params["pi"])
        states, reward, terminated, truncated = jax.vmap(pole_step)(states, action)
        done = (terminated | truncated).astype(jnp.float32)
        return (states, reward), Step(obs, action, reward, done, obs @ params["v"])

    (states, last_reward), traj = jax.lax.scan(step, (states, last_reward), jax.random.split(rng, T))
    final = jax.vmap(observe)(states).at[:, 3].set(last_reward)
    following = jnp.concatenate([traj.value[1:], (final @ params["v"])[None]])
    advantages = traj.reward + GAMMA * (1.0 - traj.done) * following - traj.value
    return states, last_reward, traj, advantages


add(
    Case(
        "rewards of the step before",
        "off by one",
        train_batch,
        (train_batch_b, train_batch_c),
        (LINEAR, POLES, f32(N), key()),
        where='Step(obs, action, last_reward, done, obs @ params["v"])',
        axes={"states/x": ("envs", None), "last_reward": ("envs",)},
        source="spinningup#50: each slot has the reward before its observation",
    )
)


# Returns of a storage whose advantages are empty.


@struct.dataclass
class Storage:
    obs: jax.Array
    rewards: jax.Array
    values: jax.Array
    dones: jax.Array
    advantages: jax.Array
    returns: jax.Array


def compute_gae(storage, next_value, next_done):
    values = jnp.concatenate([storage.values, next_value[None]])
    dones = jnp.concatenate([storage.dones, next_done[None]])

    def once(carry, x):
        next_done, value, next_value, reward = x
        delta = reward + GAMMA * next_value * (1.0 - next_done) - value
        advantage = delta + GAMMA * LAMBDA * (1.0 - next_done) * carry
        return advantage, advantage

    storage = storage.replace(advantages=jnp.zeros_like(storage.rewards))
    inputs = (dones[1:], values[:-1], values[1:], storage.rewards)
    _, advantages = jax.lax.scan(once, jnp.zeros_like(next_value), inputs, reverse=True)
    return storage.replace(advantages=advantages, returns=storage.advantages + storage.values)


def compute_gae_b(storage, next_value, next_done):
    values = jnp.concatenate([storage.values, next_value[None]])
    dones = jnp.concatenate([storage.dones, next_done[None]])

    def once(carry, x):
        next_done, value, next_value, reward = x
        delta = reward + GAMMA * next_value * (1.0 - next_done) - value
        advantage = delta + GAMMA * LAMBDA * (1.0 - next_done) * carry
        return advantage, advantage

    storage = storage.replace(advantages=jnp.zeros_like(storage.rewards))
    inputs = (dones[1:], values[:-1], values[1:], storage.rewards)
    _, advantages = jax.lax.scan(once, jnp.zeros_like(next_value), inputs, reverse=True)
    return storage.replace(advantages=advantages, returns=advantages + storage.values)


add(
    Case(
        "returns of a storage",
        "carry not used",
        compute_gae,
        (compute_gae_b,),
        (Storage(f32(T, N, 4), f32(T, N), f32(T, N), f32(T, N), f32(T, N), f32(T, N)), f32(N), f32(N)),
        where="returns=storage.advantages + storage.values",
        axes={"storage/rewards": ("time", "envs"), "storage/values": ("time", "envs"), "next_value": ("envs",)},
        source="cleanrl#337: the returns are of the advantages that were there before",
    )
)
