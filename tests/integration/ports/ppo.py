"""PPO in one jit: a scan of updates over environments in a vmap, and a vmap over seeds."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import lox

SEEDS, ENVIRONMENTS, STEPS, UPDATES, EPOCHS, MINIBATCHES = 2, 4, 8, 5, 2, 2
LONGEST, DISCOUNT, TRACE, CLIP = 9, 0.97, 0.9, 0.2


class Walk(NamedTuple):
    """A place on a line, to be kept near 0 by steps to the left and to the right."""

    place: jax.Array
    time: jax.Array

    @property
    def observation(self):
        return jnp.stack([self.place, self.time.astype(jnp.float32) / LONGEST], -1)


def begin(key):
    return Walk(jax.random.uniform(key, minval=-1.0), jnp.int32(0))


def move(key, walk, action):
    noise, start = jax.random.split(key)
    place = walk.place + action.astype(jnp.float32) - 0.5 + 0.3 * jax.random.normal(noise)
    time = walk.time + 1
    done = (jnp.abs(place) > 2) | (time == LONGEST)
    walk = jax.tree.map(lambda new, old: jnp.where(done, new, old), begin(start), Walk(place, time))
    return walk, 1 - jnp.abs(place), done


class ActorCritic(nn.Module):
    @nn.compact
    def __call__(self, x):
        hidden = nn.tanh(nn.Dense(8)(x))
        return nn.Dense(2)(hidden), nn.Dense(1)(hidden)[..., 0]


network = ActorCritic()
optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.02, 0.9))


class Transition(NamedTuple):
    observation: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


def start(key):
    """The parameters, the state of the optimizer, the environments, and a key."""
    of_network, of_walks, key = jax.random.split(key, 3)
    params = network.init(of_network, jnp.zeros(2))
    return params, optimizer.init(params), jax.vmap(begin)(jax.random.split(of_walks, ENVIRONMENTS)), key


def act(params, walk, key):
    logits, value = network.apply(params, walk.observation)
    action = jax.random.categorical(key, logits)
    return action, log_prob_of(logits, action), value


def log_prob_of(logits, action):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def advantages_of(batch, last):
    def back(carry, step):
        advantage, following = carry
        going = 1 - step.done.astype(jnp.float32)
        error = step.reward + DISCOUNT * following * going - step.value
        advantage = error + DISCOUNT * TRACE * going * advantage
        return (advantage, step.value), advantage

    return lax.scan(back, (jnp.zeros_like(last), last), batch, reverse=True)[1]


def minibatches_of(key, *arrays):
    order = jax.random.permutation(key, STEPS * ENVIRONMENTS)

    def split(array):
        flat = array.reshape(STEPS * ENVIRONMENTS, *array.shape[2:])
        return flat[order].reshape(MINIBATCHES, -1, *array.shape[2:])

    return jax.tree.map(split, arrays)


def losses(params, batch, advantages):
    logits, value = network.apply(params, batch.observation)
    ratio = jnp.exp(log_prob_of(logits, batch.action) - batch.log_prob)
    scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    actor = -jnp.minimum(ratio * scaled, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * scaled).mean()
    critic = jnp.mean((value - batch.value - advantages) ** 2)
    entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), -1).mean()
    return actor + 0.5 * critic - 0.01 * entropy, {"actor": actor, "critic": critic, "entropy": entropy}


# -- as it was -----------------------------------------------------------------------------------------------------


class Logged(NamedTuple):
    """An environment that adds up the rewards of its episode."""

    walk: Walk
    total: jax.Array
    length: jax.Array


def move_and_say(key, logged, action):
    walk, reward, done = move(key, logged.walk, action)
    total, length = logged.total + reward, logged.length + 1
    info = {"return": total, "length": length, "done": done}
    return Logged(walk, jnp.where(done, 0, total), jnp.where(done, 0, length)), reward, done, info


def train_and_return(key):
    """Trains, and returns what it logs as stacked arrays: of each step, and of each update."""
    params, opt_state, walks, key = start(key)
    zeros = jnp.zeros(ENVIRONMENTS)

    def update(carry, _):
        def step(carry, _):
            params, logged, key = carry
            key, of_action, of_move = jax.random.split(key, 3)
            action, log_prob, value = act(params, logged.walk, of_action)
            keys = jax.random.split(of_move, ENVIRONMENTS)
            after, reward, done, info = jax.vmap(move_and_say)(keys, logged, action)
            transition = Transition(logged.walk.observation, action, log_prob, value, reward, done)
            return (params, after, key), (transition, info)

        params, opt_state, logged, key = carry
        (params, logged, key), (batch, info) = lax.scan(step, (params, logged, key), None, STEPS)
        advantages = advantages_of(batch, network.apply(params, logged.walk.observation)[1])

        def epoch(carry, _):
            def minibatch(carry, batch):
                params, opt_state = carry
                (_, parts), gradient = jax.value_and_grad(losses, has_aux=True)(params, *batch)
                updates, opt_state = optimizer.update(gradient, opt_state)
                return (optax.apply_updates(params, updates), opt_state), parts

            *carry, key = carry
            key, of_order = jax.random.split(key)
            carry, parts = lax.scan(minibatch, tuple(carry), minibatches_of(of_order, batch, advantages))
            return (*carry, key), parts

        (params, opt_state, key), parts = lax.scan(epoch, (params, opt_state, key), None, EPOCHS)
        return (params, opt_state, logged, key), (info, jax.tree.map(jnp.mean, parts))

    logged = Logged(walks, zeros, zeros.astype(jnp.int32))
    return lax.scan(update, (params, opt_state, logged, key), None, UPDATES)[1]


def original():
    infos, parts = jax.device_get(jax.jit(jax.vmap(train_and_return))(keys()))
    return [curves_of(*jax.tree.map(lambda array: array[seed], (infos, parts))) for seed in range(SEEDS)]


def curves_of(infos, parts):
    """Curves over steps of all environments: means over the episodes that end, and losses of updates."""
    curves = {"episode/return": [], "episode/length": []}
    done = infos["done"].reshape(-1, ENVIRONMENTS)
    for number, ended in enumerate(done):
        if ended.any():
            for name in ("return", "length"):
                values = infos[name].reshape(-1, ENVIRONMENTS)[number]
                curves[f"episode/{name}"].append((number * ENVIRONMENTS, np.mean(values[ended])))
    for name, values in parts.items():
        curves[f"loss/{name}"] = [(update * STEPS * ENVIRONMENTS, value) for update, value in enumerate(values)]
    return curves


# -- with lox ------------------------------------------------------------------------------------------------------


def move_and_log(key, logged, action):
    walk, reward, done = move(key, logged.walk, action)
    total, length = logged.total + reward, logged.length + 1
    lox.log({"episode": {"return": total, "length": length}}, where=done)
    return Logged(walk, jnp.where(done, 0, total), jnp.where(done, 0, length)), reward, done


def loss_fn(params, batch, advantages):
    loss, parts = losses(params, batch, advantages)
    lox.log({"loss": parts})
    return loss


def train(key):
    params, opt_state, walks, key = start(key)
    zeros = jnp.zeros(ENVIRONMENTS)

    def update(carry, number):
        def step(carry, i):
            params, logged, key = carry
            key, of_action, of_move = jax.random.split(key, 3)
            action, log_prob, value = act(params, logged.walk, of_action)
            keys = jax.random.split(of_move, ENVIRONMENTS)
            with lox.context(step=(number * STEPS + i) * ENVIRONMENTS):
                after, reward, done = jax.vmap(move_and_log)(keys, logged, action)
            return (params, after, key), Transition(logged.walk.observation, action, log_prob, value, reward, done)

        params, opt_state, logged, key = carry
        (params, logged, key), batch = lax.scan(step, (params, logged, key), jnp.arange(STEPS))
        advantages = advantages_of(batch, network.apply(params, logged.walk.observation)[1])

        def epoch(carry, _):
            def minibatch(carry, batch):
                params, opt_state = carry
                updates, opt_state = optimizer.update(jax.grad(loss_fn)(params, *batch), opt_state)
                return (optax.apply_updates(params, updates), opt_state), None

            *carry, key = carry
            key, of_order = jax.random.split(key)
            carry, _ = lax.scan(minibatch, tuple(carry), minibatches_of(of_order, batch, advantages))
            return (*carry, key), None

        with lox.context(step=number * STEPS * ENVIRONMENTS):
            (params, opt_state, key), _ = lax.scan(epoch, (params, opt_state, key), None, EPOCHS)
        return (params, opt_state, logged, key), None

    logged = Logged(walks, zeros, zeros.astype(jnp.int32))
    return lax.scan(update, (params, opt_state, logged, key), jnp.arange(UPDATES))[0][0]


def ported(logger):
    def run(key):
        tapped = logger.tap(train, logger.init(key, clip=CLIP), reduce={"loss/*": "mean"}, window=EPOCHS * MINIBATCHES)
        return tapped(key)

    jax.jit(jax.vmap(run))(keys())
    return [logger.init(key, clip=CLIP) for key in keys()]


def keys():
    return jax.random.split(jax.random.key(0), SEEDS)
