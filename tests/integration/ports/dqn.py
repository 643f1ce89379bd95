"""DQN: a loop in Python over two environments in NumPy, with a jitted update, which logs every tenth step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import lox

STEPS, LEARN_AFTER, LEARN_EVERY, TARGET_EVERY, LOG_EVERY = 120, 32, 2, 20, 10
BATCH, DISCOUNT, LONGEST = 16, 0.97, 9
optimizer = optax.sgd(0.02, 0.9)


class Walk:
    """A place on a line, to be kept near 0 by steps to the left and to the right."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self):
        self.place, self.time, self.total = self.rng.uniform(-1, 1), 0, 0.0

    def step(self, action):
        self.action = action
        self.place += action - 0.5 + 0.3 * self.rng.normal()
        self.time += 1
        reward = 1 - abs(self.place)
        self.total += reward
        return reward, abs(self.place) > 2, self.time == LONGEST

    def observation(self):
        return np.array([self.place, self.time / LONGEST], np.float32)


class Replay:
    def __init__(self, size):
        self.rng, self.filled = np.random.default_rng(1), 0
        self.before, self.after = np.zeros((2, size, 2), np.float32)
        self.actions, self.rewards, self.dones = np.zeros(size, np.int32), *np.zeros((2, size), np.float32)

    def add(self, before, action, reward, after, done):
        for array, value in zip(self.arrays(), (before, action, reward, after, done), strict=True):
            array[self.filled] = value
        self.filled += 1

    def sample(self):
        chosen = self.rng.integers(self.filled, size=BATCH)
        return tuple(array[chosen] for array in self.arrays())

    def arrays(self):
        return self.before, self.actions, self.rewards, self.after, self.dones


def start(key):
    first, last = jax.random.split(key)
    params = {"first": jax.random.normal(first, (2, 8)), "last": jax.random.normal(last, (8, 2)) / 3}
    return params, params, optimizer.init(params)


@jax.jit
def q_values(params, observations):
    return jnp.tanh(observations @ params["first"]) @ params["last"]


def q_chosen(params, before, actions):
    return jnp.take_along_axis(q_values(params, before), actions[:, None], 1)[:, 0]


def targets_of(target, rewards, after, dones):
    return rewards + DISCOUNT * (1 - dones) * q_values(target, after).max(1)


def act(rng, params, observation, step):
    if rng.random() < 1 - 0.9 * step / STEPS:
        return int(rng.integers(2))
    return int(jnp.argmax(q_values(params, observation)))


class Actor:
    """The environments, and what was seen in them."""

    def __init__(self):
        self.walks, self.replay = [Walk(0), Walk(1)], Replay(2 * STEPS)
        self.rng = np.random.default_rng(2)

    def episodes(self, params, step):
        """Acts once in each environment; gives the return and the length of each episode that ends by that."""
        for walk in self.walks:
            before = walk.observation()
            reward, terminated, truncated = walk.step(act(self.rng, params, before, step))
            self.replay.add(before, walk.action, reward, walk.observation(), terminated)
            if terminated or truncated:
                yield walk.total, walk.time
                walk.reset()


# -- as it was -----------------------------------------------------------------------------------------------------


class Writer:
    """As that of TensorBoard."""

    def __init__(self):
        self.curves = {}

    def add_scalar(self, name, value, step):
        self.curves.setdefault(name, []).append((step, value))


@jax.jit
def update_and_return(params, target, opt_state, batch):
    before, actions, rewards, after, dones = batch
    targets = targets_of(target, rewards, after, dones)

    def loss_fn(params):
        chosen = q_chosen(params, before, actions)
        return jnp.mean((chosen - targets) ** 2), chosen.mean()

    (loss, chosen), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = optimizer.update(gradient, opt_state)
    return loss, chosen, optax.apply_updates(params, updates), opt_state


def original():
    writer, actor = Writer(), Actor()
    params, target, opt_state = start(jax.random.key(0))
    for step in range(STEPS):
        for total, length in actor.episodes(params, step):
            writer.add_scalar("charts/episodic_return", total, step)
            writer.add_scalar("charts/episodic_length", length, step)
        if step >= LEARN_AFTER:
            if step % LEARN_EVERY == 0:
                batch = actor.replay.sample()
                loss, chosen, params, opt_state = update_and_return(params, target, opt_state, batch)
                if step % LOG_EVERY == 0:
                    writer.add_scalar("losses/td_loss", float(loss), step)
                    writer.add_scalar("losses/q_values", float(chosen), step)
            if step % TARGET_EVERY == 0:
                target = params
    return [writer.curves]


# -- with lox ------------------------------------------------------------------------------------------------------


@jax.jit
def update(params, target, opt_state, batch):
    before, actions, rewards, after, dones = batch
    targets = targets_of(target, rewards, after, dones)

    def loss_fn(params):
        chosen = q_chosen(params, before, actions)
        loss = jnp.mean((chosen - targets) ** 2)
        lox.log({"losses": {"td_loss": loss, "q_values": chosen.mean()}})
        return loss

    updates, opt_state = optimizer.update(jax.grad(loss_fn)(params), opt_state)
    return optax.apply_updates(params, updates), opt_state


def ported(logger):
    run, actor = logger.init(0, discount=DISCOUNT), Actor()
    params, target, opt_state = start(jax.random.key(0))
    for step in range(STEPS):
        for total, length in actor.episodes(params, step):
            logger.log(run, {"charts": {"episodic_return": total, "episodic_length": length}}, step=step)
        if step >= LEARN_AFTER:
            if step % LEARN_EVERY == 0:
                (params, opt_state), logs = lox.spool(update)(params, target, opt_state, actor.replay.sample())
                if step % LOG_EVERY == 0:
                    logger.log(run, logs, step=step)
            if step % TARGET_EVERY == 0:
                target = params
    return [run]
