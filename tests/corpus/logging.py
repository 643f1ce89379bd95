"""What the log calls of the function would cost, or could not do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas

import lox
from corpus import f32, i32, right, wrong


def _swing(state, dt=0.01):
    """A step of a pendulum."""
    angle, speed = state
    return jnp.stack([angle + dt * speed, speed - dt * 9.81 * jnp.sin(angle)])


def _ignore(logs):
    del logs


# -- LOX900: loops without a bound ---------------------------------------------------------------------------------


@wrong("LOX900", f32(2))
def swings_until_it_rests(state):
    def step(state):
        lox.log({"energy": state[1] ** 2 / 2 - 9.81 * jnp.cos(state[0])})
        return 0.99 * _swing(state)

    return jax.lax.while_loop(lambda state: jnp.abs(state).max() > 1e-3, step, state)


@right("LOX900", f32(2))
def swings_until_it_rests_or_long_enough(state):
    @lox.spool(max_iters=1000)
    def simulate(state):
        def step(state):
            lox.log({"energy": state[1] ** 2 / 2 - 9.81 * jnp.cos(state[0])})
            return 0.99 * _swing(state)

        return jax.lax.while_loop(lambda state: jnp.abs(state).max() > 1e-3, step, state)

    return simulate(state)


@wrong("LOX900", f32(4, 2), i32(4))
def swings_of_several_lengths(states, lengths):
    @jax.jit
    def swing(state, length):
        def step(number, state):
            state = _swing(state)
            lox.log({"angle": state[0]}, step=number)
            return state

        return jax.lax.fori_loop(0, length, step, state)

    return jax.vmap(swing)(states, lengths)


@right("LOX900", f32(4, 2))
def swings_of_one_length(states):
    @jax.jit
    def swing(state):
        def step(number, state):
            state = _swing(state)
            lox.log({"angle": state[0]}, step=number)
            return state

        return jax.lax.fori_loop(0, 50, step, state)

    return jax.vmap(swing)(states)


@right("LOX900", f32(2))
def swings_until_it_rests_on_a_screen(state):
    @lox.tap(callback=_ignore)
    def simulate(state):
        def step(state):
            lox.log({"energy": state[1] ** 2 / 2 - 9.81 * jnp.cos(state[0])})
            return 0.99 * _swing(state)

        return jax.lax.while_loop(lambda state: jnp.abs(state).max() > 1e-3, step, state)

    return simulate(state)


# -- LOX901: branches ----------------------------------------------------------------------------------------------


@wrong("LOX901", f32(100, 4), f32(4))
def training_that_logs_an_evaluation_now_and_then(data, weights):
    def evaluate(weights):
        lox.log({"accuracy": (data @ weights > 0).mean()})
        return weights

    def step(weights, number):
        weights = 0.99 * weights
        return jax.lax.cond(number % 10 == 0, evaluate, lambda weights: weights, weights), None

    return jax.lax.scan(step, weights, jnp.arange(100))[0]


@right("LOX901", f32(100, 4), f32(4))
def training_that_logs_an_evaluation_with_a_mask(data, weights):
    def evaluate(weights):
        lox.log({"accuracy": (data @ weights > 0).mean()})
        return weights

    def train(weights):
        def step(weights, number):
            weights = 0.99 * weights
            return jax.lax.cond(number % 10 == 0, evaluate, lambda weights: weights, weights), None

        return jax.lax.scan(step, weights, jnp.arange(100))[0]

    return lox.spool(train, unify=True)(weights)


@wrong("LOX901", i32(), f32(3))
def policies_of_which_each_logs_its_own(which, obs):
    def greedy(obs):
        lox.log({"value": obs.max()})
        return obs.argmax()

    def random(obs):
        lox.log({"entropy": jnp.log(3.0), "value": obs.mean()})
        return jnp.argmax(jnp.sin(1e3 * obs))

    return jax.lax.switch(which, [greedy, random], obs)


@right("LOX901", i32(), f32(3))
def policies_that_log_the_same(which, obs):
    def greedy(obs):
        lox.log({"value": obs.max()})
        return obs.argmax()

    def random(obs):
        lox.log({"value": obs.mean()})
        return jnp.argmax(jnp.sin(1e3 * obs))

    return jax.lax.switch(which, [greedy, random], obs)


@wrong("LOX901", f32(8), f32(8))
def resets_of_many_environments(states, goals):
    def step(state, goal):
        def reset(state):
            lox.log({"final": state})
            return 0.0 * state

        return jax.lax.cond(state > goal, reset, lambda state: state + 1, state)

    return jax.vmap(step)(states, goals)


@right("LOX901", f32(8), f32(8))
def resets_of_many_environments_logged_after(states, goals):
    def step(state, goal):
        done = state > goal
        lox.log({"final": jnp.where(done, state, jnp.nan), "done": done})
        return jax.lax.cond(done, lambda state: 0.0 * state, lambda state: state + 1, state)

    return jax.vmap(step)(states, goals)


# -- LOX902: events of one key -------------------------------------------------------------------------------------


@wrong("LOX902", f32(32, 8), f32(8))
def losses_of_a_batch_and_of_all(batch, weights):
    losses = (batch @ weights) ** 2
    lox.log({"loss": losses})
    total = losses.mean()
    lox.log({"loss": total})
    return total


@right("LOX902", f32(32, 8), f32(8))
def losses_of_a_batch_and_of_all_under_two_keys(batch, weights):
    losses = (batch @ weights) ** 2
    lox.log({"losses": losses})
    total = losses.mean()
    lox.log({"loss": total})
    return total


@wrong("LOX902", f32(10, 4))
def training_with_counters_and_evaluation_without(data):
    def report(loss, **steps):
        lox.log({"loss": loss}, **steps)

    def step(weights, at):
        number, x = at
        report((x * weights).sum(), step=number)
        return weights - 0.1 * x, None

    weights, _ = jax.lax.scan(step, jnp.zeros(4), (jnp.arange(10), data))
    report((data @ weights).mean())
    return weights


@right("LOX902", f32(10, 4))
def training_and_evaluation_with_prefixes(data):
    def report(loss, prefix, **steps):
        lox.log({"loss": loss}, prefix=prefix, **steps)

    def step(weights, at):
        number, x = at
        report((x * weights).sum(), "train/", step=number)
        return weights - 0.1 * x, None

    weights, _ = jax.lax.scan(step, jnp.zeros(4), (jnp.arange(10), data))
    report((data @ weights).mean(), "evaluation/")
    return weights


@wrong("LOX902", f32(8, 3), f32(3))
def critics_logged_inside_and_outside_of_vmap(states, weights):
    def value(state):
        lox.log({"value": state @ weights})
        return state @ weights

    values = jax.vmap(value)(states)
    return values - value(states.mean(0))


@right("LOX902", f32(8, 3), f32(3))
def critics_logged_inside_of_vmap(states, weights):
    def value(state):
        lox.log({"value": state @ weights})
        return state @ weights

    values = jax.vmap(value)(states)
    return values - jax.vmap(value)(jnp.roll(states, 1))


# -- LOX903: memory ------------------------------------------------------------------------------------------------


@wrong("LOX903", f32(64, 84, 84), jax.random.key(0))
def rollout_that_logs_each_frame(frames, key):
    def step(frames, key):
        frames = frames + jax.random.normal(key, frames.shape)
        lox.log({"frames": frames}, tags="video")
        return frames, frames.mean()

    return jax.lax.scan(step, frames, jax.random.split(key, 2000))


@right("LOX903", f32(64, 84, 84), jax.random.key(0))
def rollout_that_logs_each_hundredth_frame(frames, key):
    @lox.spool(interval=100)
    def rollout(frames):
        def step(frames, key):
            frames = frames + jax.random.normal(key, frames.shape)
            lox.log({"frames": frames}, tags="video")
            return frames, frames.mean()

        return jax.lax.scan(step, frames, jax.random.split(key, 2000))

    return rollout(frames)


@wrong("LOX903", {"kernel": f32(1024, 1024), "bias": f32(1024)}, f32(1000, 1024))
def training_that_logs_all_gradients(params, data):
    def loss(params, x):
        return jnp.tanh(x @ params["kernel"] + params["bias"]).mean()

    def step(params, x):
        grads = jax.grad(loss)(params, x)
        lox.log({"grads": grads})
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), None

    return jax.lax.scan(step, params, data)[0]


@right("LOX903", {"kernel": f32(1024, 1024), "bias": f32(1024)}, f32(1000, 1024))
def training_that_logs_the_norm_of_gradients(params, data):
    def loss(params, x):
        return jnp.tanh(x @ params["kernel"] + params["bias"]).mean()

    def step(params, x):
        grads = jax.grad(loss)(params, x)
        lox.log({"grads": jax.tree.map(jnp.linalg.norm, grads)})
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), None

    return jax.lax.scan(step, params, data)[0]


# -- LOX904: taps --------------------------------------------------------------------------------------------------


@wrong("LOX904", f32(2))
def a_simulation_that_shows_each_step(state):
    @lox.tap(callback=_ignore)
    def simulate(state):
        def step(number, state):
            lox.log({"angle": state[0]}, step=number)
            return _swing(state)

        return jax.lax.fori_loop(0, 100_000, step, state)

    return simulate(state)


@right("LOX904", f32(2))
def a_simulation_that_shows_each_thousandth_step(state):
    @lox.tap(callback=_ignore, interval=1000)
    def simulate(state):
        def step(number, state):
            lox.log({"angle": state[0]}, step=number)
            return _swing(state)

        return jax.lax.fori_loop(0, 100_000, step, state)

    return simulate(state)


@right("LOX904", f32(2))
def a_simulation_that_shows_a_thousand_steps_at_a_time(state):
    @lox.tap(callback=_ignore, buffer=1000)
    def simulate(state):
        def step(number, state):
            lox.log({"angle": state[0]}, step=number)
            return _swing(state)

        return jax.lax.fori_loop(0, 100_000, step, state)

    return simulate(state)


@wrong("LOX904", f32(64))
def bandits_that_stream_each_reward(means):
    def episode(values, key):
        def pull(values, key):
            arm = jnp.argmax(values + 0.1 * jax.random.normal(key, values.shape))
            reward = means[arm]
            lox.log({"reward": reward})
            return values.at[arm].add(0.1 * (reward - values[arm])), None

        return jax.lax.scan(pull, values, jax.random.split(key, 200))

    def play(means):
        return jax.lax.scan(episode, jnp.zeros_like(means), jax.random.split(jax.random.key(0), 50))[0]

    return jax.jit(lox.tap(play, _ignore))(means)


@right("LOX904", f32(512, 512), f32(2000, 256, 512))
def training_that_streams_its_loss(weights, data):
    @lox.tap(callback=_ignore)
    def train(weights):
        def step(weights, batch):
            loss, grads = jax.value_and_grad(lambda weights: (batch @ weights).mean())(weights)
            lox.log({"loss": loss})
            return weights - 0.1 * grads, None

        return jax.lax.scan(step, weights, data)[0]

    return train(weights)


# -- LOX905: what is the same --------------------------------------------------------------------------------------


@wrong("LOX905", f32(4), f32(100, 4), f32())
def training_that_logs_its_rate_in_each_step(weights, data, rate):
    def step(weights, x):
        lox.log({"rate": rate})
        return weights - rate * x, None

    return jax.lax.scan(step, weights, data)[0]


@right("LOX905", f32(4), f32(100, 4), f32())
def training_that_logs_its_rate_once(weights, data, rate):
    lox.log({"rate": rate})

    def step(weights, x):
        lox.log({"loss": (weights * x).sum(), "rate": rate})
        lox.log({"samples": 1})
        return weights - rate * x, None

    return jax.lax.scan(step, weights, data)[0]


@wrong("LOX905", f32(4), f32(100, 4))
def training_that_logs_the_loss_of_the_first_weights(weights, data):
    @jax.jit
    def loss(weights):
        return (data @ weights).mean()

    def step(carry, x):
        start, now = carry
        lox.log({"loss": loss(start)})
        return (start, now - 0.1 * x), None

    return jax.lax.scan(step, (weights, weights), data)[0]


@right("LOX905", f32(4), f32(100, 4))
def training_that_logs_the_loss_of_its_weights(weights, data):
    @jax.jit
    def loss(weights):
        return (data @ weights).mean()

    def step(carry, x):
        start, now = carry
        lox.log({"loss": loss(now)})
        return (start, now - 0.1 * x), None

    return jax.lax.scan(step, (weights, weights), data)[0]


# -- LOX906: what lox has no rule for ------------------------------------------------------------------------------


def _square(x, out):
    out[...] = x[...] ** 2


def _square_and_log(x, out):
    out[...] = x[...] ** 2
    lox.log({"largest": out[...].max()})


def _run(kernel, x):
    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@wrong("LOX906", f32(64))
def energies_of_a_kernel_that_logs(x):
    return _run(_square_and_log, x).sum()


@right("LOX906", f32(64))
def energies_of_a_kernel_whose_result_is_logged(x):
    squares = _run(_square, x)
    lox.log({"largest": squares.max()})
    return squares.sum()


@right("LOX906", f32(64))
def energies_of_a_kernel_without_its_logs(x):
    return lox.strip(_run)(_square_and_log, x).sum()


@wrong("LOX906", f32(64))
def a_reduction_that_logs_what_it_joins(x):
    def join(a, b):
        lox.log({"a": a, "b": b})
        return jnp.hypot(a, b)

    return jax.lax.reduce(x, jnp.float32(0), join, (0,))
