"""Loops: what they carry, what they go over, and what they should not do."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import lox
from corpus import f32, flags, i32, right, wrong


class Transition(NamedTuple):
    obs: Any
    action: Any
    reward: Any
    value: Any
    done: Any


def transitions(*shape):
    return Transition(f32(*shape, 6), i32(*shape), f32(*shape), f32(*shape), flags(*shape))


# A carry that changes its type.


@wrong("LOX200", f32(100, 3))
def running_total_that_starts_as_integers(measurements):
    def add(total, measurement):
        return total + measurement, total

    return jax.lax.scan(add, jnp.zeros(3, int), measurements)


@wrong("LOX200", f32(20, 4, 8), f32(8, 16), f32(16, 16))
def recurrent_state_that_starts_without_its_batch(tokens, into, onward):
    def cell(state, token):
        hidden = jnp.tanh(token @ into + state["hidden"] @ onward)
        return {"hidden": hidden, "count": state["count"] + 1}, hidden

    @jax.jit
    def encode(tokens):
        return jax.lax.scan(cell, {"hidden": jnp.zeros(16), "count": 0}, tokens)[1]

    return jax.grad(lambda tokens: encode(tokens).sum())(tokens)


@wrong("LOX200", f32(5), f32(5, 5))
def power_iteration_whose_eigenvalue_is_a_vector(vector, matrix):
    def advance(state):
        steps, vector, _ = state
        product = matrix @ vector
        return steps + 1, product / jnp.linalg.norm(product), vector * product

    return jax.lax.while_loop(lambda state: state[0] < 50, advance, (0, vector, 0.0))[2]


@wrong("LOX200", f32(4))
def decay_of_half_precision_by_full_rates(state):
    rates = jnp.linspace(0.9, 1.0, 4)

    def substep(_, state):
        return state * rates

    return jax.lax.fori_loop(0, 10, substep, state.astype(jnp.bfloat16))


@right("LOX200", f32(100, 3))
def running_total_that_starts_like_what_it_adds(measurements):
    def add(total, measurement):
        return total + measurement, total

    return jax.lax.scan(add, jnp.zeros(3), measurements)


@right("LOX200", f32(100, 3))
def running_total_that_starts_as_a_python_number(measurements):
    total, count = 0, 0
    return jax.lax.scan(lambda c, x: ((c[0] + x.sum(), c[1] + 1), None), (total, count), measurements)


@right("LOX200", f32(4))
def decay_of_half_precision_that_is_cast_back(state):
    rates = jnp.linspace(0.9, 1.0, 4)

    def substep(_, state):
        return (state * rates).astype(state.dtype)

    return jax.lax.fori_loop(0, 10, substep, state.astype(jnp.bfloat16))


# A body that returns another structure.


@wrong("LOX201", f32(50), f32(2))
def simulation_whose_step_forgets_the_velocity(forces, start):
    def step(state, force):
        position, velocity = state
        velocity = velocity + 0.1 * force
        return position + 0.1 * velocity, position

    return jax.lax.scan(step, (start, jnp.zeros(2)), forces)


@wrong("LOX201", f32(50), f32(2))
def simulation_whose_step_adds_a_key(forces, start):
    def step(state, force):
        velocity = state["velocity"] + 0.1 * force
        return {"position": state["position"] + 0.1 * velocity, "velocity": velocity, "force": force}, None

    return jax.lax.scan(step, {"position": start, "velocity": jnp.zeros(2)}, forces)[0]


@wrong("LOX201", f32(50))
def moving_average_whose_body_returns_one_value(prices):
    return jax.lax.scan(lambda mean, price: 0.9 * mean + 0.1 * price, 0.0, prices)


@right("LOX201", f32(50), f32(2))
def simulation_whose_step_returns_its_state(forces, start):
    def step(state, force):
        position, velocity = state
        velocity = velocity + 0.1 * force
        return (position + 0.1 * velocity, velocity), position

    return jax.lax.scan(step, (start, jnp.zeros(2)), forces)


# Arrays of different lengths.


@wrong("LOX202", f32(128, 8), f32(129, 8))
def returns_over_one_value_too_many(rewards, values):
    def back(following, at):
        reward, value = at
        following = reward + 0.99 * following
        return following, following - value

    return jax.lax.scan(back, jnp.zeros(8), (rewards, values), reverse=True)[1]


@wrong("LOX202", f32(64, 10))
def updates_over_more_steps_than_there_are_batches(batches):
    def update(weights, batch):
        return weights - 0.1 * jax.grad(lambda w: ((batch @ w) ** 2).mean())(weights), None

    return jax.lax.scan(update, jnp.ones(10), batches, length=100)[0]


@right("LOX202", f32(128, 8), f32(129, 8))
def returns_with_the_last_value_to_start_from(rewards, values):
    def back(following, at):
        reward, value = at
        following = reward + 0.99 * following
        return following, following - value

    return jax.lax.scan(back, values[-1], (rewards, values[:-1]), reverse=True)[1]


# Axes of different meaning.


@wrong("LOX203", f32(32, 32), f32(32, 32), axes={"rewards": ("time", "batch"), "resets": ("batch", "time")})
def counts_since_a_reset_of_another_batch(rewards, resets):
    def step(counts, at):
        reward, reset = at
        counts = jnp.where(reset.mean() > 0, 0, counts + 1)
        return counts, reward.max()

    return jax.lax.scan(step, 0, (rewards, resets))


@wrong("LOX203", f32(16, 16, 4), f32(16, 3), axes={"frames": ("batch", "time", None), "commands": ("time", None)})
def commands_in_step_with_the_batch(frames, commands):
    return jax.lax.map(lambda pair: pair[0].mean() + pair[1].sum(), (frames, commands))


@right("LOX203", f32(16, 16, 4), f32(16, 3), axes={"frames": ("batch", "time", None), "commands": ("time", None)})
def commands_in_step_with_the_frames(frames, commands):
    return jax.lax.map(lambda pair: pair[0].mean() + pair[1].sum(), (frames.swapaxes(0, 1), commands))


@right("LOX203", f32(16, 16, 4), f32(16), axes={"frames": ("time", "batch", None)})
def frames_with_numbers_that_nobody_labelled(frames, weights):
    return jax.lax.map(lambda pair: pair[0].mean() * pair[1], (frames, weights))


# The whole array, where its slice is meant.


@wrong("LOX204", f32(100))
def discounted_return_of_all_rewards_in_each_step(rewards):
    def step(total, reward):
        return 0.99 * total + rewards.sum(), total

    return jax.lax.scan(step, 0.0, rewards, reverse=True)


@wrong("LOX204", f32(10, 32, 4), f32(10, 32))
def training_on_all_batches_in_each_step(inputs, targets):
    def loss(weights, x, y):
        return ((x @ weights - y) ** 2).mean()

    @jax.jit
    def train(inputs, targets):
        def step(weights, batch):
            x, y = batch
            gradient = jax.grad(loss)(weights, inputs, targets)
            return weights - 0.1 * gradient, loss(weights, inputs[0], y)

        return jax.lax.scan(step, jnp.zeros(4), (inputs, targets))

    return train(inputs, targets)


@right("LOX204", f32(100))
def discounted_return_of_one_reward_in_each_step(rewards):
    def step(total, reward):
        return 0.99 * total + reward / (1 + rewards.std()), total

    return jax.lax.scan(step, 0.0, rewards, reverse=True)


@right("LOX204", f32(40, 3))
def distances_of_each_point_to_all(points):
    return jax.lax.map(lambda point: jnp.linalg.norm(points - point, axis=-1), points)


@right("LOX204", f32(12, 16), f32(16, 16))
def attention_of_each_token_to_all(tokens, weights):
    def attend(_, token):
        scores = jax.nn.softmax(tokens @ (weights @ token))
        return None, scores @ tokens

    return jax.lax.scan(attend, None, tokens)[1]


@right("LOX204", f32(10, 32, 4))
def training_that_reports_the_loss_on_the_first_batch(inputs):
    def step(weights, batch):
        return weights - 0.1 * batch.mean(axis=0), (inputs[0] @ weights).mean()

    return jax.lax.scan(step, jnp.zeros(4), inputs)


# Over the end of an episode.


def _advantages(trajectory, last_value, goes_on):
    """Advantages of a rollout, (time, batch)."""

    def back(carry, step):
        advantage, next_value = carry
        on = goes_on(step)
        delta = step.reward + 0.99 * next_value * on - step.value
        advantage = delta + 0.99 * 0.95 * on * advantage
        return (advantage, step.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), trajectory, reverse=True)[1]


@wrong("LOX205", transitions(128, 8), f32(8))
def gae_without_the_ends_of_episodes(trajectory, last_value):
    return _advantages(trajectory, last_value, lambda step: 1.0)


@wrong("LOX205", f32(128), f32(128), flags(128))
def returns_of_one_environment_without_its_ends(rewards, values, dones):
    @jax.jit
    def returns(rewards, dones):
        def back(following, at):
            reward, _ = at
            following = reward + 0.99 * following
            return following, following

        return jax.lax.scan(back, 0.0, (rewards, dones), reverse=True)[1]

    return returns(rewards, dones) - values


@wrong("LOX205", f32(20, 4, 6), flags(20, 4), f32(6, 16), f32(16, 16))
def recurrent_policy_that_is_never_reset(obs, resets, into, onward):
    def cell(hidden, at):
        x, reset = at
        hidden = jnp.tanh(x @ into + hidden @ onward)
        return hidden, hidden

    def loss(into):
        return (jax.lax.scan(cell, jnp.zeros((4, 16)), (obs, resets))[1] ** 2).mean()

    return jax.value_and_grad(loss)(into)


@wrong("LOX205", {"reward": f32(8, 128), "terminated": flags(8, 128)})
def returns_of_each_environment_without_its_ends(batch):
    def returns(batch):
        def back(following, step):
            following = step["reward"] + 0.99 * following
            return following, following

        return jax.lax.scan(back, jnp.float32(0), batch, reverse=True)[1]

    return jax.vmap(returns)(batch)


@right("LOX205", transitions(128, 8), f32(8))
def gae_that_stops_at_the_ends_of_episodes(trajectory, last_value):
    return _advantages(trajectory, last_value, lambda step: 1.0 - step.done)


@right("LOX205", f32(20, 4, 6), flags(20, 4), f32(6, 16), f32(16, 16))
def recurrent_policy_that_is_reset(obs, resets, into, onward):
    def loss(into):
        def cell(hidden, at):
            x, reset = at
            hidden = jnp.where(reset[:, None], 0.0, hidden)
            hidden = jnp.tanh(x @ into + hidden @ onward)
            return hidden, hidden

        return (jax.lax.scan(cell, jnp.zeros((4, 16)), (obs, resets))[1] ** 2).mean()

    return jax.value_and_grad(loss)(into)


@right("LOX205", transitions(4, 32), f32(4, 32), f32(6, 32), f32(32))
def updates_over_minibatches_that_hold_more_than_is_needed(minibatches, advantages, weights, bias):
    def loss(params, batch, advantages):
        weights, bias = params
        return (jnp.tanh(batch.obs @ weights + bias).mean(axis=-1) * advantages).mean()

    def update(params, minibatch):
        gradient = jax.grad(loss)(params, *minibatch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, gradient), None

    return jax.lax.scan(update, (weights, bias), (minibatches, advantages))[0]


@right("LOX205", transitions(128, 8))
def reward_of_a_rollout_whatever_its_episodes(trajectory):
    return jax.lax.scan(lambda total, step: (total + step.reward, None), jnp.zeros(8), trajectory)[0]


@right("LOX205", transitions(128, 8))
def the_best_reward_of_a_rollout_whatever_its_episodes(trajectory):
    return jax.lax.scan(lambda best, step: (jnp.maximum(best, step.reward), None), jnp.zeros(8), trajectory)[0]


@right("LOX205", transitions(128, 8), f32(8))
def returns_with_discounts_that_are_zero_at_the_ends(trajectory, last_value):
    on = 0.99 * (1.0 - trajectory.done)

    def back(following, at):
        step, on = at
        following = step.reward + on * following
        return following, following

    return jax.lax.scan(back, last_value, (trajectory, on), reverse=True)[1]


# A loop that does not end.


@wrong("LOX206", f32(3))
def gradient_descent_that_does_not_count(x):
    def step(state):
        i, x = state
        return i, x - 0.1 * jax.grad(lambda x: (x**2).sum())(x)

    return jax.lax.while_loop(lambda state: state[0] < 100, step, (0, x))[1]


@wrong("LOX206", f32(3), f32())
def bisection_that_asks_for_the_first_error(x, error):
    @jax.jit
    def solve(x):
        return jax.lax.while_loop(lambda x: error > 1e-3, lambda x: x / 2, x)

    return solve(x)


@right("LOX206", f32(3))
def gradient_descent_that_counts(x):
    def step(state):
        i, x = state
        return i + 1, x - 0.1 * jax.grad(lambda x: (x**2).sum())(x)

    return jax.lax.while_loop(lambda state: state[0] < 100, step, (0, x))[1]


@right("LOX206", f32(3), f32())
def halving_until_it_is_small(x, limit):
    return jax.vmap(lambda x: jax.lax.while_loop(lambda x: x > limit, lambda x: x / 2, x))(x)


# Loops of Python.


@wrong("LOX207", f32(64, 8, 6), f32(6, 16), f32(16, 16))
def recurrent_network_in_a_loop_of_python(inputs, into, onward):
    hidden, states = jnp.zeros((8, 16)), []
    for t in range(inputs.shape[0]):
        hidden = jnp.tanh(inputs[t] @ into + hidden @ onward)
        states.append(hidden)
    return jnp.stack(states)


def _cell(hidden, x, into, onward):
    return jnp.tanh(x @ into + hidden @ onward)


@wrong("LOX207", f32(64, 8, 6), f32(6, 16), f32(16, 16))
def recurrent_network_whose_cell_is_called_from_a_loop(inputs, into, onward):
    hidden = jnp.zeros((8, 16))
    for x in inputs:
        hidden = _cell(hidden, x, into, onward)
    return hidden


@wrong("LOX207", f32(2), f32(2))
def simulation_in_a_loop_of_python(position, velocity):
    @jax.jit
    def simulate(position, velocity):
        for _ in range(100):
            velocity = velocity - 0.01 * position
            position = position + 0.01 * velocity
        return position

    return jax.grad(lambda p: simulate(p, velocity).sum())(position)


@right("LOX207", f32(64, 8, 6), f32(6, 16), f32(16, 16))
def recurrent_network_in_a_scan(inputs, into, onward):
    def cell(hidden, x):
        hidden = _cell(hidden, x, into, onward)
        return hidden, hidden

    return jax.lax.scan(cell, jnp.zeros((8, 16)), inputs)[1]


@right("LOX207", [(f32(16, 16), f32(16))] * 24, f32(8, 16))
def network_of_many_layers(layers, x):
    for weights, bias in layers:
        x = x + jax.nn.relu(x @ weights + bias) / (1 + jnp.abs(x).mean())
    return x


@right("LOX207", jax.random.key(0))
def parameters_of_many_layers(key):
    layers = []
    for _ in range(20):
        key, of_layer = jax.random.split(key)
        layers.append({"weights": jax.random.normal(of_layer, (16, 16)) / 4, "bias": jnp.zeros(16)})
    return layers


@right("LOX207", [f32(16, 16)] * 40, [f32(16, 16)] * 40)
def momentum_of_many_parameters(params, gradients):
    for _ in range(3):
        params = jax.tree.map(lambda p, g: p - 0.1 * g / (1 + jnp.abs(g)), params, gradients)
    return params


@right("LOX207", f32(2), f32(2))
def a_few_substeps_in_a_loop_of_python(position, velocity):
    for _ in range(4):
        velocity = velocity - 0.01 * position
        position = position + 0.01 * velocity
    return position, velocity


# A carry that never changes.


@wrong("LOX208", f32(50, 32, 4), f32(50, 32))
def momentum_that_is_never_updated(inputs, targets):
    def step(state, batch):
        weights, momentum = state
        x, y = batch
        gradient = jax.grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
        weights = weights - 0.1 * (0.9 * momentum + gradient)
        return (weights, momentum), None

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), (inputs, targets))[0][0]


@wrong("LOX208", f32(), f32(), f32())
def oscillator_that_carries_its_stiffness(position, velocity, stiffness):
    @jax.jit
    def simulate(position, velocity):
        def substep(_, state):
            position, velocity, stiffness = state
            velocity = velocity - 0.01 * stiffness * position
            return position + 0.01 * velocity, velocity, stiffness

        return jax.lax.fori_loop(0, 100, substep, (position, velocity, stiffness))[:2]

    return simulate(position, velocity)


@wrong("LOX208", f32(6), f32(6, 6))
def power_iteration_that_returns_the_old_vector(vector, matrix):
    def advance(state):
        steps, vector, value = state
        product = matrix @ vector
        return steps + 1, vector, jnp.linalg.norm(product)

    return jax.lax.while_loop(lambda state: state[0] < 50, advance, (0, vector, jnp.float32(0)))


@wrong("LOX208", f32(16), f32(50, 16), f32(16, 16))
def a_network_that_stacks_its_new_state_and_carries_the_old_one(hidden, inputs, weights):
    def step(hidden, x):
        new_hidden = jnp.tanh(x + hidden @ weights)
        return hidden, new_hidden

    return jax.lax.scan(step, hidden, inputs)[1]


@wrong("LOX208", f32(4), f32(50, 4))
def a_schedule_of_a_step_that_is_not_counted(params, gradients):
    def update(state, gradient):
        rate = 0.1 / (1 + state["step"])
        return {**state, "params": state["params"] - rate * gradient}, rate

    return jax.lax.scan(update, {"params": params, "step": 0}, gradients)


@right("LOX208", f32(50, 32, 4), f32(50, 32))
def momentum_that_is_updated(inputs, targets):
    def step(state, batch):
        weights, momentum = state
        x, y = batch
        momentum = 0.9 * momentum + jax.grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
        return (weights - 0.1 * momentum, momentum), None

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), (inputs, targets))[0][0]


@right("LOX208", f32(), f32(), f32())
def oscillator_that_closes_over_its_stiffness(position, velocity, stiffness):
    def substep(_, state):
        position, velocity = state
        velocity = velocity - 0.01 * stiffness * position
        return position + 0.01 * velocity, velocity

    return jax.lax.fori_loop(0, 100, substep, (position, velocity))


class Learner(NamedTuple):
    weights: Any
    rate: Any


@right("LOX208", Learner(f32(4), f32()), f32(50, 32, 4))
def learner_whose_rate_is_a_part_of_it(learner, inputs):
    def step(learner, x):
        gradient = jax.grad(lambda w: ((x @ w) ** 2).mean())(learner.weights)
        return learner._replace(weights=learner.weights - learner.rate * gradient), None

    return jax.lax.scan(step, learner, inputs)[0]


@right("LOX208", f32(50, 4), f32(4, 4))
def outputs_for_which_nothing_is_carried(inputs, weights):
    return jax.lax.scan(lambda nothing, x: (nothing, jnp.tanh(x @ weights)), 0, inputs)[1]


@right("LOX208", f32(50), f32(4))
def best_so_far_that_changes_at_times(scores, start):
    def step(state, score):
        best, at = state
        return (jnp.maximum(best, score), jnp.where(score > best, at + 1, at)), None

    return jax.lax.scan(step, (-jnp.inf, start), scores)[0]


@right("LOX208", f32(16), f32(50, 16), flags(50))
def a_network_that_carries_its_new_state_until_an_episode_ends(hidden, inputs, done):
    def step(carry, x):
        hidden, count = carry
        new_hidden = jnp.tanh(x[0] + hidden)
        return (jnp.where(x[1], 0.0, new_hidden), count + 1), new_hidden / (count + 1)

    return jax.lax.scan(step, (hidden, 0), (inputs, done))[1]


# A carry that nothing reads.


@wrong("LOX209", f32(50, 32, 4), f32(50, 32))
def training_that_averages_its_loss_for_nobody(inputs, targets):
    def step(state, batch):
        weights, average = state
        x, y = batch
        loss, gradient = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
        return (weights - 0.1 * gradient, 0.9 * average + 0.1 * loss), None

    weights, _ = jax.lax.scan(step, (jnp.zeros(4), jnp.float32(0)), (inputs, targets))[0]
    return weights


@wrong("LOX209", f32(), f32())
def oscillator_whose_energy_is_summed_and_dropped(position, velocity):
    def substep(_, state):
        position, velocity, energy = state
        velocity = velocity - 0.01 * position
        return position + 0.01 * velocity, velocity, energy + velocity**2 + position**2

    return jax.lax.fori_loop(0, 100, substep, (position, velocity, jnp.float32(0)))[:2]


@wrong("LOX209", f32(6), f32(6, 6))
def power_iteration_that_does_not_ask_for_its_error(vector, matrix):
    @jax.jit
    def solve(vector):
        def advance(state):
            steps, vector, error = state
            product = matrix @ vector
            new = product / (1 + jnp.abs(product).max())
            return steps + 1, new, jnp.abs(new - vector).max()

        return jax.lax.while_loop(lambda state: state[0] < 50, advance, (0, vector, jnp.float32(jnp.inf)))[1]

    return solve(vector)


@wrong("LOX209", f32(3), f32(10, 4), f32(3, 4), f32(3, 3))
def recurrent_network_that_begins_anew_in_each_step(start, inputs, into, onward):
    def cell(hidden, x):
        hidden = jnp.tanh(into @ x + onward @ start)
        return hidden, hidden

    return jax.lax.scan(cell, start, inputs)


@wrong("LOX209", f32(4), f32(5, 32, 4), f32(5, 32))
def accumulated_gradients_of_which_only_the_last_is_kept(weights, inputs, targets):
    def add(carry, batch):
        total, _gradients = carry
        x, y = batch
        loss, gradients = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
        return (total + loss, gradients), None

    (total, gradients), _ = jax.lax.scan(add, (jnp.float32(0), jnp.zeros(4)), (inputs, targets))
    return total / 5, weights - 0.1 * gradients / 5


@right("LOX209", f32(5))
def halved_steps_that_each_begin_at_the_same_point(start):
    direction = jax.grad(lambda x: ((x - 1) ** 2).sum())(start)

    def halve(state):
        size, _ = state
        return size / 2, start - size / 2 * direction

    return jax.lax.while_loop(lambda state: state[0] > 0.1, halve, (jnp.float32(2), start))


@right("LOX209", f32(4), f32())
def implicit_step_that_is_iterated_to_a_fixed_point(position, time):
    def iterate(_, state):
        before, _ = state
        return position + 0.1 * jnp.sin(before), time + 0.1

    return jax.lax.fori_loop(0, 4, iterate, (position, time))


@right("LOX209", f32(50, 32, 4), f32(50, 32))
def training_that_logs_its_average_loss(inputs, targets):
    def step(state, batch):
        weights, average = state
        x, y = batch
        loss, gradient = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
        average = 0.9 * average + 0.1 * loss
        lox.log({"loss": average})
        return (weights - 0.1 * gradient, average), None

    return jax.lax.scan(step, (jnp.zeros(4), jnp.float32(0)), (inputs, targets))[0][0]


@right("LOX209", f32(), f32())
def oscillator_whose_energy_is_returned(position, velocity):
    def substep(_, state):
        position, velocity, energy = state
        velocity = velocity - 0.01 * position
        return position + 0.01 * velocity, velocity, energy + velocity**2 + position**2

    return jax.lax.fori_loop(0, 100, substep, (position, velocity, jnp.float32(0)))


@right("LOX209", f32(6), f32(6, 6))
def power_iteration_that_asks_for_its_error(vector, matrix):
    def advance(state):
        vector, error = state
        product = matrix @ vector
        new = product / (1 + jnp.abs(product).max())
        return new, jnp.abs(new - vector).max()

    return jax.lax.while_loop(lambda state: state[1] > 1e-3, advance, (vector, jnp.float32(jnp.inf)))[0]


@right("LOX209", f32(50, 3))
def sums_with_a_count_of_steps(inputs):
    def step(state, x):
        total, count = state
        return (total + x, count + 1), None

    return jax.lax.scan(step, (jnp.zeros(3), 0), inputs)[0][0]


@right("LOX209", f32(50, 3))
def velocity_that_moves_what_is_put_out(forces):
    def step(state, force):
        position, velocity = state
        velocity = velocity + 0.1 * force
        return (position + 0.1 * velocity, velocity), position

    return jax.lax.scan(step, (jnp.zeros(3), jnp.zeros(3)), forces)[1]


# An array that is read at the counter.


@wrong("LOX210", f32(64, 8, 6), f32(6, 16), f32(16, 16))
def recurrent_network_that_counts_its_inputs(inputs, into, onward):
    def loss(into):
        def step(hidden, t):
            return _cell(hidden, inputs[t] * 2, into, onward), None

        return jax.lax.scan(step, jnp.zeros((8, 16)), jnp.arange(inputs.shape[0]))[0].sum()

    return jax.grad(loss)(into)


@wrong("LOX210", f32(100, 2), f32(2))
def simulation_that_counts_its_forces(forces, start):
    def step(state, _):
        position, velocity, t = state
        velocity = velocity + 0.1 * jax.lax.dynamic_index_in_dim(forces, t, keepdims=False)
        return (position + 0.1 * velocity, velocity, t + 1), position

    return jax.lax.scan(step, (start, jnp.zeros(2), 0), None, length=100)


@wrong("LOX210", f32(4, 100))
def returns_of_each_environment_that_count_its_rewards(rewards):
    def returns(rewards):
        def back(following, t):
            following = rewards[t] + 0.99 * following
            return following, following

        return jax.lax.scan(back, 0.0, jnp.arange(100), reverse=True)[1]

    return jax.vmap(returns)(rewards)


@right("LOX210", f32(64, 8, 6), f32(6, 16), f32(16, 16))
def recurrent_network_that_scans_its_inputs(inputs, into, onward):
    step = lambda hidden, x: (_cell(hidden, x, into, onward), None)  # noqa: E731
    return jax.lax.scan(step, jnp.zeros((8, 16)), inputs)[0]


@right("LOX210", f32(100))
def differences_of_one_element_and_the_next(prices):
    def step(total, t):
        return total + (prices[t + 1] - prices[t]) ** 2, total

    return jax.lax.scan(step, 0.0, jnp.arange(99))


@right("LOX210", f32(100, 3), i32(100))
def gradient_steps_in_an_order(samples, order):
    return jax.lax.scan(lambda mean, t: (0.9 * mean + 0.1 * samples[t], None), jnp.zeros(3), order)[0]


@right("LOX210", f32(100, 3))
def sum_in_a_loop_without_results(samples):
    return jax.lax.fori_loop(0, 100, lambda i, total: total + samples[i], jnp.zeros(3))


@right("LOX210", f32(40, 3))
def distances_of_the_points_to_each(points):
    def step(nearest, i):
        return nearest, jnp.linalg.norm(points - points[i], axis=-1).sum()

    return jax.lax.scan(step, None, jnp.arange(40))[1]


# A scan over a counter that is declared to go over time.


@wrong("LOX211", f32(128, 16), axes={"rewards": ("time", "env")})
def returns_over_as_many_steps_as_there_are_environments(rewards):
    def back(state, _):
        following, t = state
        following = rewards[t] + 0.99 * following
        return (following, t - 1), following

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(back, (jnp.zeros(16), 127), None, length=rewards.shape[1])


@wrong("LOX211", f32(16, 16), axes={"rewards": ("env", "time")})
def returns_that_count_environments(rewards):
    def back(following, t):
        following = rewards[t] + 0.99 * following
        return following, following

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(back, jnp.zeros(16), jnp.arange(16), reverse=True)[1]


@wrong("LOX211", f32(200, 3), f32(3), jax.random.key(0), axes={"observed": ("time", None)})
@lox.audit.expect(scan="time")
def simulation_of_another_length_than_what_was_observed(observed, start, key):
    def step(state, key):
        state = 0.9 * state + jax.random.normal(key, (3,))
        return state, state

    states = jax.lax.scan(step, start, jax.random.split(key, 120))[1]
    return states.mean(), observed.mean()


@right("LOX211", f32(128, 16), axes={"rewards": ("time", "env")})
def returns_over_as_many_steps_as_there_are(rewards):
    def back(following, t):
        following = rewards[t] + 0.99 * following
        return following, following

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(back, jnp.zeros(16), jnp.arange(rewards.shape[0]), reverse=True)[1]


@right("LOX211", f32(128, 16), axes={"rewards": ("time", "env")})
def steps_over_time_in_substeps(rewards):
    def step(state, reward):
        state = jax.lax.scan(lambda state, _: (0.9 * state + reward, None), state, None, length=5)[0]
        return state, state

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(step, jnp.zeros(16), rewards)[1]


@right("LOX211", f32(128, 16), axes={"prices": ("time", "asset")})
def returns_between_the_prices(prices):
    def step(wealth, t):
        wealth = wealth * prices[t + 1] / prices[t]
        return wealth, wealth

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(step, jnp.ones(16), jnp.arange(127))[1]


@right("LOX211", f32(200, 3), f32(3), axes={"observed": ("time", None)})
def simulation_of_a_length_of_its_own(observed, start):
    states = jax.lax.scan(lambda state, _: (0.9 * state, state), start, None, length=120)[1]
    return states.mean(), observed.mean()


@right("LOX211", f32(128, 16), axes={"rewards": ("time", "env")})
def means_of_parts_of_time(rewards):
    def step(total, part):
        return total + jax.lax.dynamic_slice_in_dim(rewards, 16 * part, 16).mean(axis=0), None

    with lox.audit.expect(scan="time"):
        return jax.lax.scan(step, jnp.zeros(16), jnp.arange(8))[0]


# Beyond the end of an array.


@wrong("LOX212", f32(128), f32(128))
def errors_with_the_next_value_of_the_last_step(rewards, values):
    def step(total, t):
        error = rewards[t] + 0.99 * values[t + 1] - values[t]
        return total + error**2, error

    return jax.lax.scan(step, 0.0, jnp.arange(128))


@wrong("LOX212", f32(64, 3), f32(3))
def simulation_of_more_steps_than_there_are_forces(forces, state):
    return jax.lax.fori_loop(0, 100, lambda i, state: 0.9 * state + forces[i], state)


@wrong("LOX212", f32(8, 100), f32(5))
def moving_average_with_windows_over_the_end(series, weights):
    def smooth(series):
        def step(t, _):
            return t + 1, jax.lax.dynamic_slice_in_dim(series, t, 5) @ weights

        return jax.lax.scan(step, 0, None, length=series.shape[0])[1]

    return jax.vmap(smooth)(series)


@right("LOX212", f32(128), f32(129))
def errors_with_one_value_more(rewards, values):
    def step(total, t):
        error = rewards[t] + 0.99 * values[t + 1] - values[t]
        return total + error**2, error

    return jax.lax.scan(step, 0.0, jnp.arange(128))


@right("LOX212", f32(64, 3), f32(3))
def simulation_that_goes_on_with_the_last_force(forces, state):
    return jax.lax.fori_loop(0, 100, lambda i, state: 0.9 * state + forces[jnp.minimum(i, 63)], state)


@right("LOX212", f32(64, 3), f32(3))
def simulation_whose_forces_begin_again(forces, state):
    return jax.lax.fori_loop(0, 100, lambda i, state: 0.9 * state + forces[i % 64], state)


@right("LOX212", f32(64, 3), f32(3))
def simulation_without_forces_at_the_end(forces, state):
    return jax.lax.fori_loop(0, 100, lambda i, s: 0.9 * s + jnp.where(i < 64, forces[i], 0), state)


@right("LOX212", f32(64, 3), f32(3))
def simulation_that_fills_in_forces(forces, state):
    return jax.lax.fori_loop(0, 100, lambda i, s: 0.9 * s + forces.at[i].get(mode="fill", fill_value=0), state)


# A division by a counter that begins at zero.


@wrong("LOX213", f32(8), f32(50, 8))
def adam_that_corrects_its_bias_by_the_steps_before(weights, gradients):
    def step(state, inputs):
        weights, mean, square = state
        t, gradient = inputs
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        corrected, scale = mean / (1 - 0.9**t), square / (1 - 0.999**t)
        return (weights - 1e-3 * corrected / (jnp.sqrt(scale) + 1e-8), mean, square), None

    start = (weights, jnp.zeros(8), jnp.zeros(8))
    return jax.lax.scan(step, start, (jnp.arange(50), gradients))[0][0]


@wrong("LOX213", f32(50, 3))
def average_that_counts_after_it_divides(measurements):
    def add(state, measurement):
        mean, count = state
        return (mean + (measurement - mean) / count, count + 1), None

    return jax.lax.scan(add, (jnp.zeros(3), 0), measurements)[0][0]


@wrong("LOX213", f32(4), f32(4))
def subgradients_with_a_rate_that_begins_infinite(weights, gradient):
    @jax.jit
    def step(i, weights):
        return weights - gradient / jnp.sqrt(1.0 * i)

    return jax.lax.fori_loop(0, 100, step, weights)


@right("LOX213", f32(8), f32(50, 8))
def adam_that_corrects_its_bias_by_its_steps(weights, gradients):
    def step(state, inputs):
        weights, mean, square = state
        t, gradient = inputs
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        corrected, scale = mean / (1 - 0.9**t), square / (1 - 0.999**t)
        return (weights - 1e-3 * corrected / (jnp.sqrt(scale) + 1e-8), mean, square), None

    start = (weights, jnp.zeros(8), jnp.zeros(8))
    return jax.lax.scan(step, start, (jnp.arange(1, 51), gradients))[0][0]


@right("LOX213", f32(50, 3))
def average_that_leaves_out_where_it_would_divide_by_zero(measurements):
    def add(state, measurement):
        mean, count = state
        change = jnp.where(count > 0, (measurement - mean) / count, measurement)
        return (mean + change, count + 1), None

    return jax.lax.scan(add, (jnp.zeros(3), 0), measurements)[0][0]


@right("LOX213", f32(4), f32(4))
def warmup_whose_other_branch_is_infinite_at_first(weights, gradient):
    def step(i, weights):
        t = 1.0 * i
        return weights - gradient * jnp.minimum(1 / jnp.sqrt(t), t * 0.1)

    return jax.lax.fori_loop(0, 100, step, weights)


def _filtered(transitions, likelihoods):
    def step(predicted, t):
        filtered = predicted * likelihoods[t]
        filtered = filtered / (filtered.sum() + 1e-8)
        return filtered @ transitions[t], filtered

    return jax.lax.scan(step, jnp.ones(3) / 3, jnp.arange(10))


@wrong("LOX212", f32(9, 3, 3), f32(10, 3))
def a_filter_that_returns_a_prediction_after_the_last_transition(transitions, likelihoods):
    return _filtered(transitions, likelihoods)


@right("LOX212", f32(9, 3, 3), f32(10, 3))
def a_filter_that_drops_the_prediction_after_the_last_transition(transitions, likelihoods):
    return _filtered(transitions, likelihoods)[1]


@right("LOX212", f32(8, 100), f32(5))
def moving_average_of_what_is_padded(series, weights):
    def smooth(series):
        padded = jnp.pad(series, (0, 4))
        step = lambda t, _: (t + 1, jax.lax.dynamic_slice_in_dim(padded, t, 5) @ weights)  # noqa: E731
        return jax.lax.scan(step, 0, None, length=series.shape[0])[1]

    return jax.vmap(smooth)(series)


# LOX214: means of means.


def _accumulated(params, batches, loss):
    def step(total, batch):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, *batch)), None

    grads = jax.lax.scan(step, jnp.zeros_like(params), batches)[0]
    return params - 0.1 * grads / 4


def _masked_errors(w, x, y, mask):
    return (x @ w - y) ** 2 * mask


SEQUENCES = (f32(4, 2, 16, 8), f32(4, 2, 16), flags(4, 2, 16))


@wrong("LOX214", f32(8), SEQUENCES)
def gradients_of_masked_means_that_are_accumulated(w, batches):
    def loss(w, x, y, mask):
        return _masked_errors(w, x, y, mask).sum() / jnp.maximum(mask.sum(), 1)

    return _accumulated(w, batches, loss)


@right("LOX214", f32(8), SEQUENCES)
def gradients_of_masked_sums_that_are_divided_by_one_count(w, batches):
    count = batches[2].sum()
    return _accumulated(w, batches, lambda w, x, y, mask: 4 * _masked_errors(w, x, y, mask).sum() / count)


@right("LOX214", f32(8), (f32(4, 16, 8), f32(4, 16), flags(4, 16)))
def gradients_of_means_of_one_sequence_after_the_other(w, sequences):
    return _accumulated(w, sequences, lambda w, x, y, mask: _masked_errors(w, x, y, mask).sum() / mask.sum())


@right("LOX214", f32(8), SEQUENCES)
def gradients_of_means_of_each_sequence(w, batches):
    def loss(w, x, y, mask):
        return (_masked_errors(w, x, y, mask).sum(-1) / mask.sum(-1)).mean()

    return _accumulated(w, batches, loss)


# LOX216: gradients that are summed.


def _in_parts(w, batches, divide=lambda grads: grads, mean=jnp.mean):
    def step(total, batch):
        loss, grads = jax.value_and_grad(lambda w, x, y: jnp.mean((x @ w - y) ** 2))(w, *batch)
        return jax.tree.map(jnp.add, total, grads), loss

    grads, losses = jax.lax.scan(step, jnp.zeros_like(w), batches)
    return w - 0.1 * divide(grads), mean(losses)


@wrong("LOX216", f32(8), (f32(4, 16, 8), f32(4, 16)))
def a_step_of_micro_batches_that_adds_up_gradients(w, batches):
    return _in_parts(w, batches)


@wrong("LOX216", f32(8), f32(4, 16, 8), f32(4, 16))
def a_step_whose_loss_is_added_up_and_divided(w, x, y):
    def add(i, totals):
        loss, grads = jax.value_and_grad(lambda w: jnp.mean((x[i] @ w - y[i]) ** 2))(w)
        return totals[0] + loss, totals[1] + grads

    loss, grads = jax.lax.fori_loop(0, 4, add, (0.0, jnp.zeros_like(w)))
    return w - 0.1 * grads, loss / 4


@right("LOX216", f32(8), (f32(4, 16, 8), f32(4, 16)))
def a_step_of_micro_batches_that_divides_what_it_added_up(w, batches):
    return _in_parts(w, batches, divide=lambda grads: grads / 4)


@right("LOX216", f32(8), (f32(4, 16, 8), f32(4, 16)))
def a_step_of_micro_batches_that_adds_up_gradients_and_losses(w, batches):
    return _in_parts(w, batches, mean=jnp.sum)


@right("LOX216", f32(8), f32(4, 16, 8), f32(4, 16))
def a_step_whose_gradients_are_divided_in_the_loop(w, x, y):
    def add(total, batch):
        loss, grads = jax.value_and_grad(lambda w, x, y: jnp.mean((x @ w - y) ** 2))(w, *batch)
        return total + grads / x.shape[0], loss

    grads, losses = jax.lax.scan(add, jnp.zeros_like(w), (x, y))
    return w - 0.1 * grads, losses.mean()


# What a body reads in place of its carry.


@wrong("LOX209", f32(8), f32(8))
def leapfrog_that_kicks_the_first_momentum(position, momentum):
    def step(state, _):
        position, _momentum = state[0], state[1]
        half = momentum - 0.05 * jnp.sin(position)
        position = position + 0.1 * half
        return (position, half - 0.05 * jnp.sin(position)), position

    return jax.lax.scan(step, (position, momentum), None, 10)


@right("LOX209", f32(8), f32(8))
def leapfrog(position, momentum):
    def step(state, _):
        position, momentum = state
        half = momentum - 0.05 * jnp.sin(position)
        position = position + 0.1 * half
        return (position, half - 0.05 * jnp.sin(position)), position

    return jax.lax.scan(step, (position, momentum), None, 10)


@wrong("LOX209", f32(8, 4), f32(8), f32(4))
def descent_by_the_gradient_at_the_start(x, y, weights):
    def loss(weights):
        return ((x @ weights - y) ** 2).mean()

    def step(current, _):
        return current - 0.1 * jax.grad(loss)(weights), loss(current)

    return jax.lax.scan(step, weights, None, 100)


@right("LOX209", f32(8, 4), f32(8), f32(4))
def descent_with_reduced_variance(x, y, weights):
    gradient = jax.grad(lambda w, x, y: (x @ w - y) ** 2)
    full = jax.vmap(gradient, (None, 0, 0))(weights, x, y).mean(0)

    def step(current, at):
        return current - 0.1 * (gradient(current, *at) - gradient(weights, *at) + full), None

    return jax.lax.scan(step, weights, (x, y))[0]


@right("LOX209", f32(4), f32(4, 4))
def descent_that_is_pulled_to_its_start(weights, matrix):
    def step(current, _):
        return current - 0.1 * (matrix @ current + 0.1 * (current - weights)), None

    return jax.lax.scan(step, weights, None, 50)[0]


@wrong("LOX209", f32(50))
def average_of_which_no_step_reads_the_last(xs):
    start = jnp.zeros(())

    def step(average, x):
        average = 0.9 * start + 0.1 * x
        return average, average

    return jax.lax.scan(step, start, xs)[1]


@right("LOX209", f32(50, 4))
def outputs_of_which_the_last_is_kept(xs):
    def step(last, x):
        last = jnp.tanh(x)
        return last, last

    last, outputs = jax.lax.scan(step, jnp.zeros(4), xs)
    return last - outputs.mean(0)


@wrong("LOX208", f32(64))
def metropolis_that_compares_with_the_first_density(place):
    def density(place):
        return -0.5 * (place**2).sum()

    def step(state, key):
        place, energy = state
        walk, accept = jax.random.split(key)
        candidate = place + 0.1 * jax.random.normal(walk, place.shape)
        better = jnp.log(jax.random.uniform(accept, minval=1e-6)) < density(candidate) - energy
        return (jnp.where(better, candidate, place), energy), place

    return jax.lax.scan(step, (place, density(place)), jax.random.split(jax.random.key(0), 100))[1]


@right("LOX206", f32(6), f32(6, 6))
def relaxation_that_compares_with_the_first_residual(x, matrix):
    def step(state):
        x, first, count = state
        residual = matrix @ x
        return x - 0.1 * residual, first, count + 1

    def goes_on(state):
        x, first, count = state
        return (jnp.linalg.norm(matrix @ x) > 1e-3 * first) & (count < 100)

    return jax.lax.while_loop(goes_on, step, (x, jnp.linalg.norm(matrix @ x), 0))[0]


@wrong("LOX208", f32(50, 4))
def best_that_stays_infinite(points):
    def step(state, point):
        best, at = state
        score = jnp.abs(point).sum()
        return (best, jnp.where(score < best, point, at)), score

    return jax.lax.scan(step, (jnp.inf, jnp.zeros(4)), points)


@wrong("LOX208", f32(20, 4))
def bias_correction_of_the_first_step(gradients):
    def step(state, gradient):
        weights, mean, count = state
        mean = 0.9 * mean + 0.1 * gradient
        return (weights - 0.1 * mean / (1 - 0.9**count), mean, count), None

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(4), 1), gradients)[0][0]


@wrong("LOX206", f32(3))
def iteration_whose_error_is_never_computed(x):
    def goes_on(state):
        return (state[1] > 1e-6) & (state[2] < 100)

    return jax.lax.while_loop(goes_on, lambda state: (jnp.cos(state[0]), state[1], state[2] + 1), (x, jnp.inf, 0))[0]


@right("LOX206", f32(3))
def iteration_with_its_tolerance_in_its_state(x):
    def goes_on(state):
        return (state[1] > state[3]) & (state[2] < 100)

    def step(state):
        x, _, count, tolerance = state
        new = jnp.cos(x)
        return new, jnp.abs(new - x).max(), count + 1, tolerance

    return jax.lax.while_loop(goes_on, step, (x, jnp.inf, 0, 1e-6))[0]


# Counters that go beyond what is there.


@wrong("LOX212", f32(10), f32(20))
def sums_written_beyond_the_end(total, xs):
    return jax.lax.fori_loop(0, 20, lambda i, total: total.at[i].set(xs[i]), total)


@right("LOX212", f32(10), f32(20))
def sums_of_which_those_beyond_the_end_are_dropped(total, xs):
    return jax.lax.fori_loop(0, 20, lambda i, total: total.at[i].set(xs[i], mode="drop"), total)


@wrong("LOX212", f32(1000, 4))
def chunks_of_which_the_last_is_not_whole(x):
    def add(total, chunk):
        return total + jax.lax.dynamic_slice(x, (chunk * 96, 0), (96, 4)).sum(), None

    return jax.lax.scan(add, 0.0, jnp.arange(11))[0]


@right("LOX212", f32(960, 4))
def chunks_that_are_whole(x):
    def add(total, chunk):
        return total + jax.lax.dynamic_slice(x, (chunk * 96, 0), (96, 4)).sum(), None

    return jax.lax.scan(add, 0.0, jnp.arange(10))[0]


@right("LOX212", f32(1000, 4))
def chunks_of_which_the_last_is_masked(x):
    def add(total, chunk):
        start = jnp.minimum(chunk * 96, 1000 - 96)
        rows = jax.lax.dynamic_slice(x, (start, 0), (96, 4))
        return total + jnp.where((start + jnp.arange(96))[:, None] >= chunk * 96, rows, 0.0).sum(), None

    return jax.lax.scan(add, 0.0, jnp.arange(11))[0]


@wrong("LOX208", f32(32, 32), f32(32, 32))
def wave_whose_step_before_stays_the_first(now, before):
    def step(state, _):
        now, previous = state
        spread = jnp.roll(now, 1, 0) + jnp.roll(now, -1, 0) - 2 * now
        return (2 * now - previous + 0.1 * spread, previous), now.sum()

    return jax.lax.scan(step, (now, before), None, 10)


@right("LOX208", f32(32, 32), f32(32, 32))
def wave(now, before):
    def step(state, _):
        now, previous = state
        spread = jnp.roll(now, 1, 0) + jnp.roll(now, -1, 0) - 2 * now
        return (2 * now - previous + 0.1 * spread, now), now.sum()

    return jax.lax.scan(step, (now, before), None, 10)


@right("LOX209", f32(10))
def diffusion_that_is_drawn_to_its_start(start):
    def step(x, key):
        return x - 0.01 * (x - jnp.tanh(start)) + 0.1 * jax.random.normal(key, x.shape), x

    return jax.lax.scan(step, start, jax.random.split(jax.random.key(0), 9))[1]


# Loops that are differentiated, or run for each element of a batch.


@wrong("LOX209", f32(10, 2), f32(12, 2))
def gradient_of_transport_that_begins_anew(points, others):
    def distance(points):
        costs, start = ((points[:, None] - others) ** 2).sum(-1), jnp.zeros(12)

        def step(potentials, _):
            first = -0.1 * jax.nn.logsumexp((start - costs) / 0.1, axis=1)
            second = -0.1 * jax.nn.logsumexp((first[:, None] - costs) / 0.1, axis=0)
            return (first, second), None

        first, second = jax.lax.scan(step, (jnp.zeros(10), start), None, 10)[0]
        return (jnp.exp((first[:, None] + second - costs) / 0.1) * costs).sum()

    return jax.grad(distance)(points)


@right("LOX209", f32(10, 2), f32(12, 2))
def gradient_of_transport(points, others):
    def distance(points):
        costs = ((points[:, None] - others) ** 2).sum(-1)

        def step(potentials, _):
            first = -0.1 * jax.nn.logsumexp((potentials[1] - costs) / 0.1, axis=1)
            second = -0.1 * jax.nn.logsumexp((first[:, None] - costs) / 0.1, axis=0)
            return (first, second), None

        first, second = jax.lax.scan(step, (jnp.zeros(10), jnp.zeros(12)), None, 10)[0]
        return (jnp.exp((first[:, None] + second - costs) / 0.1) * costs).sum()

    return jax.grad(distance)(points)


def _adapted(gradient, weights, x, y):
    def step(_, current):
        return current - 0.1 * gradient(weights, current, x, y)

    return jax.lax.fori_loop(0, 5, step, weights)


@wrong("LOX209", f32(4), f32(6, 8, 4), f32(6, 8))
def tasks_adapted_by_the_first_gradient(weights, xs, ys):
    def gradient(weights, _, x, y):
        return jax.grad(lambda w: (jnp.tanh(x @ w - y) ** 2).mean())(weights)

    return jax.vmap(lambda x, y: _adapted(gradient, weights, x, y))(xs, ys)


@right("LOX209", f32(4), f32(6, 8, 4), f32(6, 8))
def tasks_adapted_step_by_step(weights, xs, ys):
    def gradient(start, current, x, y):
        return jax.grad(lambda w: (jnp.tanh(x @ w - y) ** 2).mean() + 0.1 * ((w - start) ** 2).sum())(current)

    return jax.vmap(lambda x, y: _adapted(gradient, weights, x, y))(xs, ys)


# What is the same in each iteration.


def _regression_loss(weights, x, y):
    return jnp.square(jnp.tanh(x @ weights) - y).mean()


@wrong("LOX215", f32(8), f32(30, 16, 8), f32(30, 16), f32(40, 8), f32(40))
def a_validation_of_the_weights_before_the_training(start, batches, targets, x_held_out, y_held_out):
    def step(weights, batch):
        gradient = jax.grad(_regression_loss)(weights, *batch)
        return weights - 0.1 * gradient, _regression_loss(start, x_held_out, y_held_out)

    return jax.lax.scan(step, start, (batches, targets))


@right("LOX215", f32(8), f32(30, 16, 8), f32(30, 16), f32(40, 8), f32(40))
def a_validation_in_each_step(start, batches, targets, x_held_out, y_held_out):
    def step(weights, batch):
        gradient = jax.grad(_regression_loss)(weights, *batch)
        weights = weights - 0.1 * gradient
        return weights, _regression_loss(weights, x_held_out, y_held_out)

    return jax.lax.scan(step, start, (batches, targets))


@right("LOX215", f32(8), f32(30, 16, 8), f32(30, 16))
def a_loss_of_each_batch_before_and_in_the_training(start, batches, targets):
    def step(weights, batch):
        loss, gradient = jax.value_and_grad(_regression_loss)(weights, *batch)
        return weights - 0.1 * gradient, loss - _regression_loss(start, *batch)

    return jax.lax.scan(step, start, (batches, targets))


@right("LOX215", f32(8), f32(40, 8))
def a_policy_that_is_kept_near_the_one_it_began_with(start, x):
    def step(weights, _):
        gradient = jax.grad(lambda w: jnp.square(x @ w - x @ start).mean() - (x @ w).mean())(weights)
        return weights - 0.1 * gradient, jnp.square(weights - start).sum()

    return jax.lax.scan(step, start, length=30)


# A new value that is computed, read or not, and not carried on.


class Trail(NamedTuple):
    places: Any
    heights: Any
    length: Any


def _lifted(places, heights, place, count):
    passed = jnp.arange(places.shape[0]) <= count
    distances = jnp.square(places - place).sum(-1)
    return jnp.where(passed, heights * jnp.exp(-distances), 0.0).sum()


@wrong("LOX208", f32(9), f32(9), f32(9))
def pull_of_the_first_step(x, v, stiffness):
    def pull(x):
        return -stiffness * jnp.tanh(x) - 0.1 * x**3

    def step(carry, _):
        x, v, force = carry
        x = x + 0.1 * v + 0.005 * force
        new = pull(x)
        v = v + 0.05 * (force + new)
        return (x, v, force), jnp.sum(v**2)

    (x, v, _), energy = jax.lax.scan(step, (x, v, pull(x)), None, length=60)
    return x, v, energy


@right("LOX208", f32(9), f32(9), f32(9))
def pull_of_each_step(x, v, stiffness):
    def pull(x):
        return -stiffness * jnp.tanh(x) - 0.1 * x**3

    def step(carry, _):
        x, v, force = carry
        x = x + 0.1 * v + 0.005 * force
        new = pull(x)
        v = v + 0.05 * (force + new)
        return (x, v, new), jnp.sum(v**2)

    (x, v, _), energy = jax.lax.scan(step, (x, v, pull(x)), None, length=60)
    return x, v, energy


@right("LOX209", f32(9), f32(9))
def drift_of_the_energy(x, v):
    def energy(x, v):
        return 0.5 * v**2 + 0.5 * jnp.sin(x) ** 2

    def step(carry, _):
        x, v, first = carry
        v = v - 0.1 * jnp.sin(x)
        x = x + 0.1 * v
        return (x, v, first), jnp.max(jnp.abs(energy(x, v) - first))

    return jax.lax.scan(step, (x, v, energy(x, v)), None, length=60)[1]


@wrong("LOX208", f32(12), f32(12, 12))
def residual_of_the_first_guess(b, matrix):
    def step(_, carry):
        x, residual, least = carry
        x = x + 0.1 * jnp.tanh(residual) * b
        left = b - matrix @ x
        return x, residual, jnp.minimum(least, jnp.sum(left**2))

    start = jnp.ones_like(b) + b
    return jax.lax.fori_loop(0, 40, step, (start, b - matrix @ start, jnp.sum(b**2)))


@wrong("LOX208", f32(2), Trail(f32(40, 2), f32(40), i32()))
def hills_whose_places_are_not_carried_on(place, trail):
    def step(carry, _):
        place, trail = carry
        places = trail.places.at[trail.length].set(place)
        heights = trail.heights.at[trail.length].set(jnp.sin(place).sum())
        slope = jax.grad(lambda at: _lifted(places, heights, at, trail.length))(place)
        return (place - 0.1 * slope, trail._replace(heights=heights, length=trail.length + 1)), place

    return jax.lax.scan(step, (place, trail), None, length=30)


@right("LOX208", f32(2), Trail(f32(40, 2), f32(40), i32()))
def hills_whose_places_are_carried_on(place, trail):
    def step(carry, _):
        place, trail = carry
        places = trail.places.at[trail.length].set(place)
        heights = trail.heights.at[trail.length].set(jnp.sin(place).sum())
        slope = jax.grad(lambda at: _lifted(places, heights, at, trail.length))(place)
        return (place - 0.1 * slope, Trail(places, heights, trail.length + 1)), place

    return jax.lax.scan(step, (place, trail), None, length=30)


@right("LOX208", f32(12), f32(12), f32(12))
def inputs_that_are_replaced_one_by_one(inputs, others, weights):
    def replace(state, other):
        replaced = state["inputs"].at[state["place"]].set(other)
        change = jnp.tanh(replaced @ weights) - jnp.tanh(state["inputs"] @ weights)
        changes = state["changes"].at[state["place"]].set(change)
        return state | {"changes": changes, "place": state["place"] + 1}, None

    return jax.lax.scan(replace, {"inputs": inputs, "changes": jnp.zeros(12), "place": 0}, others)[0]["changes"]


class Search(NamedTuple):
    point: Any
    radius: Any
    failures: Any


def _value(point):
    return jnp.cos(3 * point).sum() + jnp.square(point).sum()


@wrong("LOX208", Search(f32(5), f32(), i32()), f32(60, 5))
def a_search_whose_radius_is_computed_in_vain(search, directions):
    def look(search, direction):
        candidate = search.point + search.radius * direction
        better = _value(candidate) < _value(search.point)
        point = jnp.where(better, candidate, search.point)
        failures = jnp.where(better, 0, search.failures + 1)
        radius = jnp.where(failures > 3, 0.5 * search.radius, search.radius)
        radius = jnp.where(better, 1.2 * search.radius, radius)
        return Search(point, search.radius, failures), better

    return jax.lax.scan(look, search, directions)


@right("LOX208", Search(f32(5), f32(), i32()), f32(60, 5))
def a_search_whose_radius_stays(search, directions):
    def look(search, direction):
        radius = jnp.minimum(search.radius, jnp.abs(search.point).max())
        candidate = search.point + radius * direction
        better = _value(candidate) < _value(search.point)
        point = jnp.where(better, candidate, search.point)
        return Search(point, search.radius, jnp.where(better, 0, search.failures + 1)), better

    return jax.lax.scan(look, search, directions)


class Songs(NamedTuple):
    features: Any
    next: Any
    filled: Any


def _mean_of_heard(features, count):
    is_heard = jnp.arange(features.shape[0]) < count
    return jnp.where(is_heard[:, None], features, 0.0).sum(0) / jnp.maximum(count, 1)


@wrong("LOX208", Songs(f32(100, 6), i32(), i32()), f32(70, 6))
def songs_that_are_heard_and_not_counted(songs, played):
    def hear(songs, song):
        features = songs.features.at[songs.next].set(song)
        songs = songs._replace(features=features, next=(songs.next + 1) % 100)
        return songs, song @ _mean_of_heard(features, songs.filled)

    return jax.lax.scan(hear, songs, played)


@right("LOX208", Songs(f32(100, 6), i32(), i32()), f32(70, 6))
def songs_that_are_heard_and_counted(songs, played):
    def hear(songs, song):
        features = songs.features.at[songs.next].set(song)
        songs = Songs(features, (songs.next + 1) % 100, jnp.minimum(songs.filled + 1, 100))
        return songs, song @ _mean_of_heard(features, songs.filled)

    return jax.lax.scan(hear, songs, played)


@right("LOX208", Songs(f32(100, 6), i32(), i32()), f32(70, 6), jax.random.key(0))
def songs_of_which_as_many_as_there_is_room_are_drawn(songs, played, key):
    def hear(carry, song):
        songs, key = carry
        key, own = jax.random.split(key)
        features = songs.features.at[songs.next].set(song)
        drawn = features[jax.random.randint(own, (4,), 0, songs.filled)]
        return (songs._replace(features=features, next=(songs.next + 1) % songs.filled), key), drawn.mean(0)

    return jax.lax.scan(hear, (songs, key), played)


# An average that does not go on.


class Iterates(NamedTuple):
    now: Any
    average: Any
    step: Any


@wrong("LOX209", Iterates(f32(8), f32(8), f32()), f32(200, 8))
def iterates_of_which_the_last_two_are_averaged(iterates, gradients):
    def descend(iterates, gradient):
        step = iterates.step + 1
        now = iterates.now - gradient / jnp.sqrt(step)
        weight = 2 / (step + 2)
        average = weight * now + (1 - weight) * iterates.now
        return Iterates(now, average, step), now.mean()

    return jax.lax.scan(descend, iterates, gradients)


@right("LOX209", Iterates(f32(8), f32(8), f32()), f32(200, 8))
def iterates_that_are_averaged(iterates, gradients):
    def descend(iterates, gradient):
        step = iterates.step + 1
        now = iterates.now - gradient / jnp.sqrt(step)
        weight = 2 / (step + 2)
        average = weight * now + (1 - weight) * iterates.average
        return Iterates(now, average, step), now.mean()

    return jax.lax.scan(descend, iterates, gradients)


@right("LOX209", f32(8), f32(200, 8))
def a_place_between_the_last_two(place, velocities):
    def move(carry, velocity):
        place, _ = carry
        moved = place + 0.1 * velocity
        return (moved, 0.25 * moved + 0.75 * place), None

    return jax.lax.scan(move, (place, place), velocities)[0]


# Weights after resampling.


def _weather(key, states, log_weights, temperature):
    draw, move = jax.random.split(key)
    chosen = jax.random.categorical(draw, log_weights, shape=log_weights.shape)
    states = states[chosen] + jax.random.normal(move, states.shape)
    return states, -jnp.abs(states.sum(-1) - temperature)


@wrong("LOX225", f32(80, 3), f32(80), f32(30), jax.random.key(0))
def forecasts_that_are_drawn_by_weights_of_all_days(states, log_weights, temperatures, key):
    def day(carry, at):
        states, log_weights = carry
        states, fit = _weather(at[0], states, log_weights, at[1])
        log_weights = jax.nn.log_softmax(log_weights + fit)
        return (states, log_weights), jnp.exp(log_weights) @ states

    keys = jax.random.split(key, temperatures.shape[0])
    return jax.lax.scan(day, (states, log_weights), (keys, temperatures))[1]


@right("LOX225", f32(80, 3), f32(80), f32(30), jax.random.key(0))
def forecasts_that_are_drawn_by_weights_of_the_day(states, log_weights, temperatures, key):
    def day(carry, at):
        states, log_weights = carry
        states, fit = _weather(at[0], states, log_weights, at[1])
        log_weights = jax.nn.log_softmax(fit)
        return (states, log_weights), jnp.exp(log_weights) @ states

    keys = jax.random.split(key, temperatures.shape[0])
    return jax.lax.scan(day, (states, log_weights), (keys, temperatures))[1]


@right("LOX225", f32(80, 3), f32(80), f32(30), jax.random.key(0))
def forecasts_that_are_drawn_where_few_weigh_much(states, log_weights, temperatures, key):
    def day(carry, at):
        (states, log_weights), (key, temperature) = carry, at
        few = 1 / jnp.square(jax.nn.softmax(log_weights)).sum() < 40
        drawn, _ = _weather(key, states, log_weights, temperature)
        states = jnp.where(few, drawn, states)
        log_weights = jnp.where(few, 0.0, log_weights) - jnp.abs(states.sum(-1) - temperature)
        return (states, log_weights), jax.nn.softmax(log_weights) @ states

    keys = jax.random.split(key, temperatures.shape[0])
    return jax.lax.scan(day, (states, log_weights), (keys, temperatures))[1]


@right("LOX225", f32(8), f32(100, 8), jax.random.key(0))
def preferences_by_which_an_arm_is_drawn(preferences, rewards, key):
    def pull(carry, at):
        preferences, counts = carry
        key, reward = at
        arm = jax.random.categorical(key, preferences)
        change = 0.1 * reward[arm] * (jax.nn.one_hot(arm, 8) - jax.nn.softmax(preferences))
        return (preferences + change, counts.at[arm].add(1.0)), counts[arm]

    keys = jax.random.split(key, rewards.shape[0])
    return jax.lax.scan(pull, (preferences, jnp.zeros(8)), (keys, rewards))


# What is carried with weights of moves between states.


@wrong("LOX226", f32(20, 5), f32(5, 5))
def best_paths_that_never_change_their_state(scores, moves):
    def step(best, score):
        return jnp.max(best[:, None] + moves, axis=1) + score, best.argmax()

    return jax.lax.scan(step, scores[0], scores[1:])


@right("LOX226", f32(20, 5), f32(5, 5))
def best_paths_between_states(scores, moves):
    def step(best, score):
        through = best[:, None] + moves
        return jnp.max(through, axis=0) + score, through.argmax(axis=0)

    return jax.lax.scan(step, scores[0], scores[1:])


@wrong("LOX226", f32(8, 20, 5), f32(5, 5))
def beliefs_about_the_weather_that_are_never_mixed(likelihoods, moves):
    def filtered(likelihood):
        def day(belief, seen):
            belief = jnp.sum(belief[:, None] * moves, axis=-1) * seen
            return belief / belief.sum(), belief

        return jax.lax.scan(day, jnp.full(5, 0.2), likelihood)[1]

    return jax.vmap(filtered)(likelihoods)


@right("LOX226", f32(20, 5), f32(5, 5), f32(30, 4))
def beliefs_from_both_sides_and_points_that_repel(likelihoods, moves, points):
    def ahead(belief, seen):
        belief = jnp.einsum("i,ij->j", belief, moves) * seen
        return belief / belief.sum(), belief

    def back(after, seen):
        after = jnp.sum(moves * (after * seen)[None, :], axis=1)
        return after / after.sum(), after

    def repel(points, _):
        offsets = points[:, None] - points[None]
        return points + 0.1 * jnp.sum(offsets * jnp.exp(-jnp.square(offsets).sum(-1, keepdims=True)), axis=1), None

    first, last = jnp.full(5, 0.2), jnp.ones(5)
    both = jax.lax.scan(ahead, first, likelihoods)[1] * jax.lax.scan(back, last, likelihoods, reverse=True)[1]
    return both, jax.lax.scan(repel, points, length=10)[0]


@wrong("LOX228", f32(5), f32(5, 5), f32(20, 5))
def beliefs_of_a_filter_whose_moves_add_up_by_columns(start, logits, likelihoods):
    moves = jax.nn.softmax(logits, axis=0)

    def day(belief, seen):
        belief = (belief @ moves) * seen
        return belief, jnp.log(belief.sum())

    return jax.lax.scan(day, jax.nn.softmax(start), likelihoods)[1]


@right("LOX228", f32(5), f32(5, 5), f32(20, 5))
def beliefs_of_a_filter_whose_moves_add_up_by_rows(start, logits, likelihoods):
    moves = jax.nn.softmax(logits, axis=1)

    def day(belief, seen):
        belief = (belief @ moves) * seen
        return belief, jnp.log(belief.sum())

    return jax.lax.scan(day, jax.nn.softmax(start), likelihoods)[1]


@wrong("LOX228", f32(5, 5), f32(16, 20, 5))
def likelihoods_of_sequences_from_any_state(logits, scores):
    log_moves = jax.nn.log_softmax(logits)

    def of_sequence(scores):
        def step(log_alpha, score):
            return jax.nn.logsumexp(log_alpha[None, :] + log_moves, axis=1) + score, None

        start = jnp.full(5, -jnp.log(5.0)) + scores[0]
        return jax.nn.logsumexp(jax.lax.scan(step, start, scores[1:])[0])

    return jax.vmap(of_sequence)(scores)


@right("LOX228", f32(5), f32(5, 5), f32(20, 5), f32(5))
def likelihoods_from_the_end_and_values_of_states(start, logits, likelihoods, rewards):
    moves = jax.nn.softmax(logits, axis=1)

    def back(after, seen):
        return moves @ (after * seen), None

    def evaluate(values, _):
        return rewards + 0.9 * moves @ values, None

    first = jax.lax.scan(back, jnp.ones(5), likelihoods, reverse=True)[0]
    return jnp.sum(jax.nn.softmax(start) * first), jax.lax.scan(evaluate, jnp.zeros(5), length=50)[0]


# Attention to what iterations wrote before.


def _heads(params, x):
    return x @ params["q"], x @ params["k"], x @ params["v"]


HEADS = {"q": f32(8, 8), "k": f32(8, 8), "v": f32(8, 8)}


@wrong("LOX230", HEADS, f32(4, 8))
def words_that_attend_before_their_own_key_is_in_the_cache(params, x):
    def word(i, carry):
        x, keys, values = carry
        q, k, v = _heads(params, x)
        scores = jnp.einsum("bd,bld->bl", q, keys) / jnp.sqrt(8.0)
        weights = jax.nn.softmax(jnp.where(jnp.arange(16)[None, :] < i + 1, scores, -jnp.inf))
        x = jnp.tanh(x + jnp.einsum("bl,bld->bd", weights, values))
        keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, i, 0))
        values = jax.lax.dynamic_update_slice(values, v[:, None], (0, i, 0))
        return x, keys, values

    return jax.lax.fori_loop(0, 16, word, (x, jnp.zeros((4, 16, 8)), jnp.zeros((4, 16, 8))))[0]


@wrong("LOX230", HEADS, f32(20, 8))
def a_sequence_that_reads_the_values_of_the_step_before(params, xs):
    def read(cache, inputs):
        keys, values = cache["k"], cache["v"]
        i, x = inputs
        q, k, v = _heads(params, x)
        keys = keys.at[i].set(k)
        logits = jnp.where(jnp.arange(20) > i, -1e9, keys @ q / jnp.sqrt(8.0))
        mixed = jax.nn.softmax(logits) @ values
        return {"k": keys, "v": values.at[i].set(v)}, mixed

    empty = {"k": jnp.zeros((20, 8)), "v": jnp.zeros((20, 8))}
    return jax.lax.scan(read, empty, (jnp.arange(20), xs))[1]


@right("LOX230", HEADS, f32(20, 8))
def sequences_that_attend_to_what_is_written(params, xs):
    def now(cache, inputs):
        i, x = inputs
        q, k, v = _heads(params, x)
        cache = {"k": cache["k"].at[i].set(k), "v": cache["v"].at[i].set(v)}
        logits = jnp.where(jnp.arange(20) > i, -1e9, cache["k"] @ q / jnp.sqrt(8.0))
        return cache, jax.nn.softmax(logits) @ cache["v"]

    def before(cache, inputs):
        i, x = inputs
        q, k, v = _heads(params, x)
        logits = jnp.where(jnp.arange(20) < i, cache["k"] @ q / jnp.sqrt(8.0), -1e9)
        mixed = jax.nn.softmax(logits) @ cache["v"]
        return {"k": cache["k"].at[i].set(k), "v": cache["v"].at[i].set(v)}, v + mixed

    empty, places = {"k": jnp.zeros((20, 8)), "v": jnp.zeros((20, 8))}, jnp.arange(20)
    return jax.lax.scan(now, empty, (places, xs))[1], jax.lax.scan(before, empty, (places, xs))[1]


@wrong("LOX816", HEADS, f32(4, 8))
def words_that_attend_to_the_empty_end_of_the_cache(params, x):
    def word(i, carry):
        x, keys, values = carry
        q, k, v = _heads(params, x)
        keys = jax.lax.dynamic_update_slice(keys, k[:, None], (0, i, 0))
        values = jax.lax.dynamic_update_slice(values, v[:, None], (0, i, 0))
        weights = jax.nn.softmax(jnp.einsum("bd,bld->bl", q, keys) / jnp.sqrt(8.0))
        return jnp.tanh(x + jnp.einsum("bl,bld->bd", weights, values)), keys, values

    return jax.lax.fori_loop(0, 16, word, (x, jnp.zeros((4, 16, 8)), jnp.zeros((4, 16, 8))))[0]


@right("LOX816", HEADS, f32(20, 8), f32(20, 8), f32(20, 8))
def a_memory_that_is_full_from_the_start_and_biases_of_distance(params, xs, keys, values):
    def replace(cache, inputs):
        i, x = inputs
        q, k, v = _heads(params, x)
        keys, values = cache[0].at[i].set(k), cache[1].at[i].set(v)
        return (keys, values), jax.nn.softmax(keys @ q / jnp.sqrt(8.0)) @ values

    def biased(cache, inputs):
        i, x = inputs
        q, k, v = _heads(params, x)
        keys, values = cache[0].at[i].set(k), cache[1].at[i].set(v)
        bias = jnp.where(jnp.arange(20) <= i, -0.1 * (i - jnp.arange(20)), -1e9)
        return (keys, values), jax.nn.softmax(keys @ q / jnp.sqrt(8.0) + bias) @ values

    inputs, empty = (jnp.arange(20), xs), (jnp.zeros((20, 8)), jnp.zeros((20, 8)))
    return jax.lax.scan(replace, (keys, values), inputs)[1], jax.lax.scan(biased, empty, inputs)[1]


# Integrators.


def _pull(x):
    return -x - 0.1 * x**3


@wrong("LOX232", f32(12, 3), f32(12, 3))
def oscillators_that_are_kicked_twice_by_the_old_forces(x, v):
    def step(_, state):
        x, v, force = state["x"], state["v"], state["force"]
        x = x + 0.02 * v + 0.0002 * force
        return {"x": x, "v": v + 0.01 * (force + force), "force": _pull(x)}

    return jax.lax.fori_loop(0, 100, step, {"x": x, "v": v, "force": _pull(x)})


@wrong("LOX232", f32(12, 3), f32(12, 3), f32(12, 1), f32())
def masses_that_are_kicked_twice_by_the_old_forces(x, v, mass, dt):
    def step(carry, _):
        x, v, acceleration = carry
        v = v + 0.5 * dt * acceleration
        x = x + dt * v
        new_acceleration = _pull(x) / mass
        v = v + 0.5 * dt * acceleration
        return (x, v, new_acceleration), jnp.sum(mass * v**2)

    return jax.lax.scan(step, (x, v, _pull(x) / mass), length=100)[1]


@right("LOX232", f32(12, 3), f32(12, 3), f32())
def masses_that_are_kicked_by_both_forces(x, v, dt):
    gravity = jnp.array([0.0, 0.0, -9.8])

    def step(carry, _):
        x, v, acceleration = carry
        half = v + 0.5 * dt * acceleration
        x = x + dt * half
        new_acceleration = _pull(x)
        return (x, half + 0.5 * dt * new_acceleration, new_acceleration), jnp.sum(v**2)

    def fall(carry, _):
        x, v = carry
        v = v + 0.5 * dt * gravity
        x = x + dt * v
        v = v + 0.5 * dt * gravity
        return (x, v), x + x

    return jax.lax.scan(step, (x, v, _pull(x)), length=100)[1], jax.lax.scan(fall, (x, v), length=100)[1]


# -- LOX212: loops that count down -------------------------------------------------------------------------------------


@wrong("LOX212", f32(16, 16), f32(16))
def substitution_from_the_last_row(upper, right_side):
    last = right_side.shape[0] - 1

    def row(i, x):
        at = last - i
        return x.at[at].set((right_side[at] - upper[at, at + 1] * x[at + 1]) / upper[at, at])

    return jax.lax.fori_loop(0, last + 1, row, jnp.zeros(16))


@wrong("LOX212", f32(24, 8), f32(24, 8), f32(24, 8))
def returns_of_a_counter_that_is_turned(rewards, values, going_on):
    def back(later, i):
        t = rewards.shape[0] - i
        later = rewards[t] + 0.99 * going_on[t] * (0.05 * values[t] + 0.95 * later)
        return later, later

    return jax.lax.scan(back, values[-1], jnp.arange(24))[1]


@right("LOX212", f32(16, 16), f32(16))
def substitution_from_the_row_before_the_last(upper, right_side):
    last = right_side.shape[0] - 1

    def row(i, x):
        at = last - i
        return x.at[at].set((right_side[at] - upper[at, at + 1] * x[at + 1]) / upper[at, at])

    start = jnp.zeros(16).at[last].set(right_side[last] / upper[last, last])
    return jax.lax.fori_loop(1, last + 1, row, start)


@right("LOX212", f32(24, 8), f32(25, 8), f32(24, 8))
def returns_with_a_value_after_the_last(rewards, values, going_on):
    def back(i, carry):
        later, returns = carry
        t = rewards.shape[0] - 1 - i
        later = rewards[t] + 0.99 * going_on[t] * (0.05 * values[t + 1] + 0.95 * later)
        return later, returns.at[t].set(later)

    return jax.lax.fori_loop(0, 24, back, (values[-1], jnp.zeros((24, 8))))[1]


# -- LOX217: parts that overlap ----------------------------------------------------------------------------------------


def _fitted_to(weights, x):
    return weights - 0.1 * jax.grad(lambda w: jnp.square(x @ w).mean())(weights)


@wrong("LOX217", f32(8), f32(640, 8))
def minibatches_that_begin_one_row_later(weights, x):
    size = 64

    def fit(i, weights):
        return _fitted_to(weights, jax.lax.dynamic_slice_in_dim(x, i, size))

    return jax.lax.fori_loop(0, x.shape[0] // size, fit, weights)


@wrong("LOX217", f32(5), f32(3, 96))
def windows_of_signals_by_a_carried_counter(taps, signals):
    def window(i, _):
        part = jax.lax.dynamic_slice(signals, (0, i), (3, 12))
        return i + 1, jnp.abs(jnp.fft.rfft(part)).mean() * taps.sum()

    return jax.lax.scan(window, 0, None, length=signals.shape[1] // 12)[1]


@right("LOX217", f32(8), f32(640, 8))
def minibatches_that_begin_where_others_end(weights, x):
    size = 64

    def fit(i, weights):
        return _fitted_to(weights, jax.lax.dynamic_slice_in_dim(x, i * size, size))

    return jax.lax.fori_loop(0, x.shape[0] // size, fit, weights)


@right("LOX217", f32(12), f32(96))
def windows_at_each_place(taps, signal):
    def window(i, _):
        return i + 1, jax.lax.dynamic_slice(signal, (i,), (12,)) @ taps

    return jax.lax.scan(window, 0, None, length=signal.shape[0] - 11)[1]


def _moved(key, places):
    return places + 0.1 * jax.random.normal(key, places.shape)


@wrong("LOX431", f32(50, 2), f32(30), jax.random.key(0))
def places_that_go_on_although_others_were_drawn(places, signals, key):
    def step(carry, now):
        (places, logits), (key, signal) = carry, now
        drawing, moving = jax.random.split(key)
        drawn = places[jax.random.categorical(drawing, logits, shape=logits.shape)]
        places = _moved(moving, places)
        logits = -jnp.square(places.sum(-1) - signal)
        return (places, logits), (jax.nn.softmax(logits) @ places, drawn.std(0))

    keys = jax.random.split(key, signals.shape[0])
    return jax.lax.scan(step, (places, jnp.zeros(50)), (keys, signals))[1]


@right("LOX431", f32(50, 2), f32(30), jax.random.key(0))
def places_that_were_drawn_go_on(places, signals, key):
    def step(carry, now):
        (places, logits), (key, signal) = carry, now
        drawing, moving = jax.random.split(key)
        drawn = places[jax.random.categorical(drawing, logits, shape=logits.shape)]
        places = _moved(moving, drawn)
        logits = -jnp.square(places.sum(-1) - signal)
        return (places, logits), (jax.nn.softmax(logits) @ places, drawn.std(0))

    keys = jax.random.split(key, signals.shape[0])
    return jax.lax.scan(step, (places, jnp.zeros(50)), (keys, signals))[1]


@right("LOX431", f32(50, 2), f32(30), jax.random.key(0))
def places_that_keep_their_weights_and_are_drawn_for_a_report(places, signals, key):
    def step(carry, now):
        (places, logits), (key, signal) = carry, now
        drawing, moving = jax.random.split(key)
        drawn = places[jax.random.categorical(drawing, logits, shape=logits.shape)]
        places = _moved(moving, places)
        logits = jax.nn.log_softmax(logits - jnp.square(places.sum(-1) - signal))
        return (places, logits), drawn

    keys = jax.random.split(key, signals.shape[0])
    return jax.lax.scan(step, (places, jnp.zeros(50)), (keys, signals))[1]


# Divisors in the first iteration.


@wrong("LOX213", f32(20, 4))
def means_of_all_before_the_first(xs):
    def step(carry, x):
        total, count = carry
        mean = total / count
        return (total + x, count + 1.0), x - mean

    return jax.lax.scan(step, (jnp.zeros(4), 0.0), xs)[1]


@wrong("LOX213", f32(20, 4))
def averages_without_their_bias_before_the_first(xs):
    def step(carry, x):
        average, i = carry
        smooth = average / (1.0 - 0.9**i)
        return (0.9 * average + 0.1 * x, i + 1), x - smooth

    return jax.lax.scan(step, (jnp.zeros(4), 0), xs)[1]


@right("LOX213", f32(20, 4))
def means_of_all_up_to_now(xs):
    def step(carry, x):
        total, count = carry
        total, count = total + x, count + 1.0
        return (total, count), x - total / count

    return jax.lax.scan(step, (jnp.zeros(4), 0.0), xs)[1]


@right("LOX213", f32(20, 4))
def means_of_all_before_with_a_first_one_of_zero(xs):
    def step(carry, x):
        total, count = carry
        mean = jnp.where(count > 0, total / jnp.where(count > 0, count, 1.0), 0.0)
        return (total + x, count + 1.0), x - mean

    return jax.lax.scan(step, (jnp.zeros(4), 0.0), xs)[1]


@right("LOX213", f32(20, 4))
def means_of_all_before_the_first_that_are_limited(xs):
    def step(carry, x):
        total, count = carry
        return (total + x, count + 1.0), x - total / jnp.maximum(count, 1.0)

    return jax.lax.scan(step, (jnp.zeros(4), 0.0), xs)[1]
