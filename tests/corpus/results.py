"""Results that are computed and lost, and states in whose place the old ones go on."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

import lox
from corpus import f32, flags, i32, right, wrong

OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
PARAMS = {"w": f32(8, 4), "b": f32(4)}
OPT_STATE = jax.eval_shape(OPTIMIZER.init, PARAMS)
RATE = 0.005


class Training(NamedTuple):
    params: Any
    opt_state: Any
    step: Any


def _loss(params, x):
    return jnp.square(x @ params["w"] + params["b"]).mean()


def _polyak(target, params):
    return jax.tree.map(lambda old, new: (1 - RATE) * old + RATE * new, target, params)


def _check_shapes(params, x):
    assert params["w"].shape[0] == x.shape[-1]
    return x.shape


@wrong("LOX430", f32(64, 4), i32(), f32(4))
def a_replay_buffer_that_is_set_in_place(buffer, position, observation):
    buffer.at[position].set(observation)
    return buffer, (position + 1) % buffer.shape[0]


@wrong("LOX430", PARAMS, OPT_STATE, f32(32, 8))
def a_train_step_that_does_not_assign_the_new_params(params, opt_state, x):
    loss, grads = jax.value_and_grad(_loss)(params, x)
    updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
    optax.apply_updates(params, updates)
    return params, opt_state, loss


@wrong("LOX430", f32(32))
def a_median_of_an_array_that_is_sorted_in_place(x):
    x.sort()
    return x[x.shape[0] // 2]


@wrong("LOX430", PARAMS, PARAMS)
def a_target_network_that_a_call_is_to_update(params, target):
    _polyak(target, params)
    return _loss(target, jnp.ones((1, 8))) - _loss(params, jnp.ones((1, 8)))


@right("LOX430", f32(64, 4), i32(), f32(4), PARAMS)
def statements_that_are_called_for_what_they_do(buffer, position, observation, params):
    _check_shapes(params, jnp.ones((1, 8)))
    jax.tree.map(lambda leaf: jax.debug.print("{}", leaf.mean()), params)
    lox.log({"observation": jnp.mean(observation)})
    jax.lax.cond(position == 0, lambda: jax.debug.print("the buffer is full"), lambda: None)
    written = []
    written.append(buffer.at[position].set(observation))
    return written[0]


@wrong("LOX431", Training(PARAMS, OPT_STATE, i32()), f32(32, 8))
def a_train_step_that_keeps_the_old_state_of_its_optimizer(state, x):
    grads = jax.grad(_loss)(state.params, x)
    updates, opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    return state._replace(params=params, step=state.step + 1)


@wrong("LOX431", PARAMS, OPT_STATE, f32(10, 32, 8))
def an_epoch_that_drops_the_state_of_its_optimizer(params, opt_state, batches):
    def step(carry, x):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(_loss)(params, x)
        updates, _ = OPTIMIZER.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.lax.scan(step, (params, opt_state), batches)


@wrong("LOX431", f32(16), f32(50, 16))
def a_filter_that_returns_its_old_mean(mean, observations):
    def step(mean, observation):
        new_mean = mean + 0.1 * (observation - mean)  # noqa: F841
        return mean, jnp.square(observation - mean).sum()

    return jax.lax.scan(step, mean, observations)


@wrong("LOX431", PARAMS, f32(10, 32, 8))
def an_epoch_that_returns_the_params_that_it_began_with(params, batches):
    def step(params, x):
        loss, grads = jax.value_and_grad(_loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    _, losses = jax.lax.scan(step, params, batches)
    return params, losses.mean()


@wrong("LOX431", PARAMS, OPT_STATE, f32(3, 32, 8))
def steps_that_each_begin_with_the_first_state_of_the_optimizer(params, opt_state, batches):
    for x in batches:
        grads = jax.grad(_loss)(params, x)
        updates, new_opt_state = OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params, new_opt_state


@wrong("LOX431", PARAMS, f32(32, 8), f32(32, 8))
def an_adaptation_that_takes_each_step_from_the_first_params(params, x, y):
    adapted = params
    for _ in range(3):
        grads = jax.grad(_loss)(params, x)
        adapted = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return _loss(adapted, y)


@right("LOX431", PARAMS, f32(10, 32, 8))
def losses_after_one_step_for_each_task(params, tasks):
    total = 0.0
    for x in tasks:
        new_params = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(_loss)(params, x))
        total = total + _loss(new_params, x)
    return total / len(tasks), new_params


@right("LOX431", f32(4))
def a_simulation_that_returns_its_beginning_and_its_path(start):
    def step(position, _):
        position = position - 0.1 * jax.grad(lambda x: jnp.sum(x**4))(position)
        return position, position

    _, path = jax.lax.scan(step, start, None, length=10)
    return start, path


@right("LOX431", PARAMS, f32(10, 32, 8), f32(5))
def rates_that_are_each_tried_from_the_same_params(params, batches, rates):
    def attempt(params, rate):
        def step(params, x):
            loss, grads = jax.value_and_grad(_loss)(params, x)
            return jax.tree.map(lambda p, g: p - rate * g, params, grads), loss

        _, losses = jax.lax.scan(step, params, batches)
        return params, losses[-1]

    return rates[jax.lax.scan(attempt, params, rates)[1].argmin()]


@right("LOX431", Training(PARAMS, OPT_STATE, i32()), f32(32, 8))
def a_train_step_that_replaces_all_that_is_new(state, x):
    grads = jax.grad(_loss)(state.params, x)
    updates, new_opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
    new_params = optax.apply_updates(state.params, updates)
    new_state = Training(new_params, new_opt_state, state.step + 1)
    return new_state, _loss(state.params, x)


@right("LOX431", f32(4), f32(5, 4))
def a_search_that_tries_each_action_in_the_same_state(state, actions):
    def value(state, action):
        next_state, reward = state + action, -jnp.abs(state).sum()
        return state, reward + 0.9 * next_state.sum()

    return jax.lax.scan(value, state, actions)[1].argmax()


@wrong("LOX432", PARAMS, PARAMS, f32(32, 8))
def a_train_step_that_loses_its_average(params, ema_params, x):
    grads = jax.grad(_loss)(params, x)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    averaged = _polyak(ema_params, params)  # noqa: F841
    return params, ema_params


@wrong("LOX432", PARAMS, OPT_STATE, f32(32, 8))
def a_train_step_that_takes_one_part_of_an_update(params, opt_state, x):
    grads = jax.grad(_loss)(params, x)
    updates = OPTIMIZER.update(grads, opt_state, params)[0]
    return optax.apply_updates(params, updates), opt_state


@right("LOX432", PARAMS, OPT_STATE, f32(32, 8))
def a_train_step_that_skips_what_is_not_finite(params, opt_state, x):
    loss, grads = jax.value_and_grad(_loss)(params, x)
    updates, new_opt_state = OPTIMIZER.update(grads, opt_state, params)
    new = optax.apply_updates(params, updates), new_opt_state
    return jax.tree.map(lambda new, old: jnp.where(jnp.isfinite(loss), new, old), new, (params, opt_state))


@right("LOX432", f32(16), f32(32, 16))
def an_evaluation_with_the_mean_of_the_batch(mean, x):
    batch_mean = x.mean(0)
    averaged = 0.9 * mean + 0.1 * batch_mean  # noqa: F841
    return jnp.square(x - batch_mean).mean()


@wrong("LOX432", PARAMS, PARAMS, f32(32, 8))
def a_train_step_that_evaluates_its_average_and_returns_the_old_one(params, average, x):
    grads = jax.grad(_loss)(params, x)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    followed = _polyak(average, params)
    return params, average, _loss(followed, x)


@wrong("LOX432", f32(8), f32(8), f32(50, 16, 8))
def a_velocity_that_a_loop_carries_unchanged(weights, velocity, batches):
    def step(carry, batch):
        weights, velocity = carry
        gradient = jax.grad(lambda w: jnp.square(batch @ w - 1).mean())(weights)
        ahead = 0.9 * velocity + 0.1 * gradient
        return (weights - 0.1 * ahead, velocity), None

    return jax.lax.scan(step, (weights, velocity), batches)[0][0]


@right("LOX432", f32(8), f32(50, 16, 8))
def a_velocity_that_a_loop_carries_on(weights, batches):
    def step(carry, batch):
        weights, velocity = carry
        gradient = jax.grad(lambda w: jnp.square(batch @ w - 1).mean())(weights)
        velocity = 0.9 * velocity + 0.1 * gradient
        return (weights - 0.1 * velocity, velocity), None

    return jax.lax.scan(step, (weights, jnp.zeros(8)), batches)[0][0]


def _toward_target(weights, target, x, reward):
    goal = reward + 0.9 * jnp.tanh(x @ target)
    gradient = jax.grad(lambda w: jnp.square(jnp.tanh(x @ w) - goal).mean())(weights)
    return weights - 0.1 * gradient


@wrong("LOX436", f32(8), f32(8), f32(50, 16, 8), f32(50, 16))
def a_target_that_follows_at_once(weights, target, batches, rewards):
    def step(carry, batch):
        weights, target = carry
        weights = _toward_target(weights, target, *batch)
        return (weights, RATE * target + (1 - RATE) * weights), None

    return jax.lax.scan(step, (weights, target), (batches, rewards))[0]


@wrong("LOX436", PARAMS, PARAMS, f32(32, 8))
def an_update_of_a_target_whose_arguments_are_exchanged(params, target, x):
    grads = jax.grad(lambda p: jnp.square(x @ p["w"] - x @ target["w"]).mean() + _loss(p, x))(params)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, optax.incremental_update(target, params, RATE)


@right("LOX436", f32(8), f32(8), f32(50, 16, 8), f32(50, 16))
def a_target_that_follows_slowly(weights, target, batches, rewards):
    def step(carry, batch):
        weights, target = carry
        weights = _toward_target(weights, target, *batch)
        return (weights, (1 - RATE) * target + RATE * weights), None

    return jax.lax.scan(step, (weights, target), (batches, rewards))[0]


@right("LOX436", PARAMS, PARAMS, f32(32, 8))
def a_target_that_follows_the_parameters_before_the_step(params, target, x):
    grads = jax.grad(lambda p: jnp.square(x @ p["w"] - x @ target["w"]).mean() + _loss(p, x))(params)
    target = optax.incremental_update(params, target, RATE)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), target


@right("LOX436", f32(8), f32(16, 8), f32(16))
def labels_that_are_smoothed(weights, x, labels):
    smooth = 0.98 * labels + 0.02 * 0.5
    gradient = jax.grad(lambda w: jnp.square(x @ w - smooth).mean())(weights)
    return weights - 0.1 * gradient, smooth


@wrong("LOX435", {"params": f32(8), "step": i32()}, f32(32, 8))
@jax.jit
def a_jitted_step_that_changes_a_dict_of_its_caller(state, x):
    loss, grads = jax.value_and_grad(lambda params: jnp.square(x @ params).mean())(state["params"])
    state["params"] = state["params"] - 0.1 * grads
    state["step"] += 1
    return loss


@wrong("LOX435", f32(8), f32(100))
def a_count_that_each_step_begins_anew(position, noise):
    def step(carry, jump):
        carry["count"] += 1
        return {"position": carry["position"] + jump, "count": 0}, carry["position"].sum()

    return jax.lax.scan(step, {"position": position, "count": 0}, noise)


@right("LOX435", {"params": f32(8), "step": i32()}, {"x": f32(32, 8)})
@jax.jit
def a_jitted_step_that_returns_the_dict_that_it_changes(state, batch):
    batch["x"] = batch["x"] / 255.0
    state["params"] = state["params"] - 0.1 * jax.grad(lambda p: jnp.square(batch["x"] @ p).mean())(state["params"])
    state["step"] += 1
    return state


# New values that nothing reads.


@wrong("LOX431", f32(32, 32))
def edges_of_which_only_the_last_is_set(u):
    v = u.at[0, :].set(0.0)
    v = u.at[-1, :].set(0.0)
    return v


@right("LOX431", f32(32, 32))
def edges_that_are_set_one_after_another(u):
    v = u.at[0, :].set(0.0)
    v = v.at[-1, :].set(0.0)
    return v


@right("LOX431", f32(32, 32))
def two_boundaries_of_one_field(u):
    v = u.at[0, :].set(0.0)
    cold = v.sum()
    v = u.at[0, :].set(1.0)
    return v.sum() - cold


@wrong("LOX431", f32(8), f32(16, 8), f32(16))
def gradients_that_are_clipped_for_nothing(weights, x, y):
    gradients = jax.grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
    norm = jnp.sqrt(jnp.sum(gradients**2))
    clipped = gradients * jnp.minimum(1.0, 1.0 / (norm + 1e-6))  # noqa: F841
    return weights - 0.1 * gradients, norm


@wrong("LOX431", f32(16, 4), f32(16))
def inputs_whose_shuffled_order_is_not_used(x, y):
    order = jax.random.permutation(jax.random.key(0), 16)
    shuffled_x = x[order]  # noqa: F841
    shuffled_y = y[order]
    return (x * shuffled_y[:, None]).mean()


@right("LOX431", f32(8), f32(16, 8), f32(16))
def gradients_that_are_clipped(weights, x, y):
    gradients = jax.grad(lambda w: ((x @ w - y) ** 2).mean())(weights)
    norm = jnp.sqrt(jnp.sum(gradients**2))
    clipped = gradients * jnp.minimum(1.0, 1.0 / (norm + 1e-6))
    return weights - 0.1 * clipped, jnp.abs(gradients).max()


def update_moments(moments, x):
    mean, var, count = moments
    size, delta = x.shape[0], x.mean(0) - mean
    total = count + size
    spread = var * count + x.var(0) * size + delta**2 * count * size / total
    return mean + delta * size / total, spread / total, total


@wrong("LOX431", (f32(8), f32(8), f32()), f32(16, 8))
def moments_that_are_updated_and_returned_as_they_were(moments, x):
    now = update_moments(moments, x)
    scaled = (x - now[0]) / jnp.sqrt(now[1] + 1e-8)
    return moments, scaled


@right("LOX431", (f32(8), f32(8), f32()), f32(16, 8))
def moments_that_are_updated(moments, x):
    now = update_moments(moments, x)
    scaled = (x - now[0]) / jnp.sqrt(now[1] + 1e-8)
    return now, scaled, moments


@wrong("LOX431", f32(8, 8))
def a_diagonal_that_is_forgotten(a):
    b = a.at[jnp.diag_indices(8)].set(1.0)
    b = a + a.T
    return b


@wrong("LOX431", f32(32, 6), flags(32), f32(6, 8), f32(8, 8))
def a_state_whose_reset_is_not_used(inputs, begins, into, onward):
    def step(hidden, at):
        x, begin = at
        started = jnp.where(begin, 0.0, hidden)  # noqa: F841
        hidden = jnp.tanh(x @ into + hidden @ onward)
        return hidden, hidden

    return jax.lax.scan(step, jnp.zeros(8), (inputs, begins))[1]


@right("LOX431", f32(32, 6), flags(32), f32(6, 8), f32(8, 8))
def a_state_that_is_reset(inputs, begins, into, onward):
    def step(hidden, at):
        x, begin = at
        started = jnp.where(begin, 0.0, hidden)
        hidden = jnp.tanh(x @ into + started @ onward)
        return hidden, hidden

    return jax.lax.scan(step, jnp.zeros(8), (inputs, begins))[1]


@wrong("LOX431", f32(8), f32(8), f32(8), f32(8), f32())
def a_second_moment_that_is_used_and_not_kept(params, gradient, m, v, t):
    def adam(params, m, v):
        new_m = 0.9 * m + 0.1 * gradient
        new_v = 0.999 * v + 0.001 * gradient**2
        return params - 0.1 * (new_m / (1 - 0.9**t)) / (jnp.sqrt(new_v / (1 - 0.999**t)) + 1e-8), new_m, v

    return adam(params, m, v)


@right("LOX431", {"w": f32(8), "b": f32()}, f32(16, 8), f32(8), f32(8))
def new_moments_beside_the_old_ones_and_a_size_that_nothing_reads(params, x, m, v):
    new_m = 0.9 * m + 0.1 * params["w"]
    new_v = 0.999 * v + 0.001 * params["w"] ** 2
    size = x.shape[0]  # noqa: F841
    _largest = x.max(0)
    drift = jnp.abs(new_v - v)
    return new_m, (v, new_v), drift, x.mean(0)


def _squared_error(critic, x, y):
    return jnp.square(x @ critic - y).mean()


@wrong("LOX431", f32(8), f32(8), f32(16, 8), f32(16))
def a_second_critic_that_gets_the_gradient_of_the_first(first, second, x, y):
    loss, grads = jax.value_and_grad(_squared_error)(first, x, y)
    other_loss, other_grads = jax.value_and_grad(_squared_error)(second, x, y)
    return first - 0.1 * grads, second - 0.1 * grads, loss + other_loss


@right("LOX431", f32(8), f32(8), f32(16, 8), f32(16))
def critics_with_gradients_of_their_own_and_one_that_is_only_evaluated(first, second, x, y):
    evaluated = jax.value_and_grad(_squared_error)
    loss, grads = evaluated(first, x, y)
    other_loss, _grads = evaluated(second, x, y)
    return first - 0.1 * grads, second, loss + other_loss


@wrong("LOX431", PARAMS, f32(5, 32, 8))
def a_training_whose_optimizer_starts_anew_each_time(params, batches):
    opt_state = OPTIMIZER.init(params)

    def step(params, x):
        loss, grads = jax.value_and_grad(_loss)(params, x)
        updates, _ = OPTIMIZER.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), loss

    return jax.lax.scan(step, params, batches)


@right("LOX431", PARAMS, f32(5, 32, 8))
def trainings_that_keep_their_optimizer_or_have_no_state(params, batches):
    opt_state, plain = OPTIMIZER.init(params), optax.sgd(0.1)
    nothing = plain.init(params)

    def step(carry, x):
        params, others = carry
        grads = jax.grad(_loss)(params, x)
        updates, _ = plain.update(grads, plain.init(params))
        of_one, _ = OPTIMIZER.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), others), optax.tree.norm(of_one)

    slopes = jax.vmap(lambda x: jax.grad(_loss)(params, x))(batches)

    def along(params, slope):
        updates, _ = plain.update(slope, nothing)
        return optax.apply_updates(params, updates), None

    return jax.lax.scan(step, (params, 0.0), batches), jax.lax.scan(along, params, slopes)


@wrong("LOX431", f32(64, 8), f32(64))
def a_regression_whose_centred_inputs_are_left_aside(x, y):
    centred = x - x.mean(axis=0)  # noqa: F841
    return jnp.linalg.solve(x.T @ x, x.T @ y)


# -- LOX437: loops that end in their first iteration ---------------------------------------------------------------


@wrong("LOX437", f32(4), f32(6, 4))
def an_epoch_that_returns_after_its_first_batch(w, batches):
    for x in batches:
        w = w - 0.1 * jax.grad(lambda w: jnp.sum((x * w) ** 2))(w)
        return w


@right("LOX437", f32(4), f32(6, 4))
def an_epoch_that_returns_at_its_end_and_a_search(w, batches):
    def first_long(rows):
        for row in rows:
            if row.shape[0] > 2:
                return row

    for x in batches:
        w = w - 0.1 * jax.grad(lambda w: jnp.sum((x * w) ** 2))(w)
    return w + first_long(batches)


@wrong("LOX612", f32(), f32(64), f32(50, 64))
def a_volume_that_is_scaled_by_a_ratio_of_the_new_size_to_itself(size, volume, pressures):
    def expand(carry, pressure):
        size, volume = carry
        size = size * (1 + 0.01 * pressure.mean())
        volume = volume * size / size
        return (size, volume), volume.sum()

    return jax.lax.scan(expand, (size, volume), pressures)


@right("LOX612", f32(), f32(64), f32(50, 64))
def a_volume_that_is_scaled_by_a_ratio_of_the_new_size_to_the_old_one(size, volume, pressures):
    def expand(carry, pressure):
        before, volume = carry
        size = before * (1 + 0.01 * pressure.mean())
        moved = volume * size
        weights = jnp.abs(volume) + 1e-3
        scaled = weights[:, None] * jnp.outer(pressure, pressure) / weights
        return (size, moved / before), moved / size + scaled.sum()

    return jax.lax.scan(expand, (size, volume), pressures)


def _similarities(params, images, texts):
    one, other = images @ params["image"], texts @ params["text"]
    norms = [jnp.sqrt(jnp.square(each).sum(-1, keepdims=True) + 1e-8) for each in (one, other)]
    return 10.0 * (one / norms[0]) @ (other / norms[1]).T


@wrong("LOX612", {"image": f32(12, 8), "text": f32(9, 8)}, f32(32, 12), f32(32, 9), differentiate="params")
def matches_of_images_with_texts_twice(params, images, texts):
    scores = _similarities(params, images, texts)
    of_images = jnp.trace(jax.nn.log_softmax(scores, axis=1))
    of_texts = jnp.trace(jax.nn.log_softmax(scores))
    return -(of_images + of_texts) / 64


@right("LOX612", {"image": f32(12, 8), "text": f32(9, 8)}, f32(32, 12), f32(32, 9), differentiate="params")
def matches_of_images_with_texts_and_of_texts_with_images(params, images, texts):
    scores = _similarities(params, images, texts)
    of_images = jnp.trace(jax.nn.log_softmax(scores, axis=1))
    of_texts = jnp.trace(jax.nn.log_softmax(scores.T, axis=1))
    return -(of_images + of_texts) / 64


# -- LOX431: what a loop trained, and what goes on in its place --------------------------------------------------------


def _fitted(params, batches):
    def fit(carry, x):
        params, opt_state = carry
        loss, slope = jax.value_and_grad(_loss)(params, x)
        updates, opt_state = OPTIMIZER.update(slope, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.lax.scan(fit, (params, OPTIMIZER.init(params)), batches)


@wrong("LOX431", PARAMS, f32(10, 32, 8), f32(6, 32, 8))
def losses_of_tests_with_the_first_parameters(params, batches, tests):
    _, losses = _fitted(params, batches)
    return losses, jax.lax.map(lambda x: _loss(params, x), tests)


@wrong("LOX431", f32(8, 4), f32(10, 32, 8), f32(32, 8))
def outputs_of_weights_before_they_were_fitted(weights, batches, x):
    def fit(state, batch):
        fitted, total = state
        loss, slope = jax.value_and_grad(lambda w: jnp.square(batch @ w).mean())(fitted)
        return (fitted - 0.1 * slope, total + loss), None

    (_, total), _ = jax.lax.scan(fit, (weights, 0.0), batches)
    return jnp.tanh(x @ weights), total


@right("LOX431", PARAMS, f32(10, 32, 8), f32(6, 32, 8))
def losses_of_tests_before_and_after(params, batches, tests):
    (fitted, _), losses = _fitted(params, batches)
    return losses, [jax.lax.map(lambda x, p=each: _loss(p, x), tests).mean() for each in (params, fitted)]


@right("LOX431", PARAMS, f32(10, 32, 8), f32(10, 32, 8))
def losses_of_two_orders_of_the_data(params, batches, others):
    return [_fitted(params, each)[1] for each in (batches, others)]


@wrong("LOX431", f32(6), f32(40, 6))
def scales_by_statistics_that_are_not_carried(mean, rows):
    def normalize(stats, row):
        new_stats = 0.9 * stats + jnp.abs(row)
        return stats, row / (new_stats + 1e-6)

    return jax.lax.scan(normalize, mean, rows)


@right("LOX431", f32(6), f32(40, 6))
def scales_by_statistics_that_are_carried(mean, rows):
    def normalize(stats, row):
        new_stats = 0.9 * stats + jnp.abs(row)
        return new_stats, row / (stats + 1e-6)

    return jax.lax.scan(normalize, mean, rows)


@right("LOX431", PARAMS, f32(12), f32(32, 8))
def losses_of_steps_of_several_sizes(params, sizes, x):
    slope = jax.grad(_loss)(params, x)

    def probe(params, size):
        new_params = jax.tree.map(lambda p, g: p - size * g, params, slope)
        return params, _loss(new_params, x)

    return jax.lax.scan(probe, params, sizes)[1]


# New values that are read by their names.


@right("LOX431", f32(8), f32(8), f32(8))
def a_step_that_logs_all_its_variables(params, momentum, gradient):
    new_momentum = 0.9 * momentum + gradient
    told = {name: jnp.linalg.norm(value) for name, value in locals().items()}
    return params - 0.1 * gradient, momentum, told


@right("LOX431", f32(16), f32(16))
def a_filter_that_hands_its_variables_to_a_plot(mean, observation):
    next_mean = mean + 0.1 * (observation - mean)  # noqa: F841
    drawn = dict(vars())
    return mean, drawn["next_mean"].sum()


# Loops of Python that hand on only a part.


def _decoded(params, h, word):
    return jnp.tanh(h @ params["u"] + word @ params["w"])


_DECODER = {"u": f32(12, 12), "w": f32(5, 12), "out": f32(12, 5)}


@wrong("LOX431", _DECODER, f32(12), f32(5))
def words_that_follow_without_a_memory(params, h, word):
    words = []
    for _ in range(4):
        decoded = _decoded(params, h, word)
        word = jax.nn.softmax(decoded @ params["out"])
        words.append(word)
    return jnp.stack(words)


@right("LOX431", _DECODER, f32(12), f32(5))
def words_that_follow_by_memory(params, h, word):
    words = []
    for _ in range(4):
        h = _decoded(params, h, word)
        word = jax.nn.softmax(h @ params["out"])
        words.append(word)
    return jnp.stack(words)


@right("LOX431", _DECODER, f32(12), f32(5))
def words_beside_each_other(params, h, word):
    words = []
    for place in range(4):
        decoded = _decoded(params, h, jnp.roll(word, place))
        words.append(jax.nn.softmax(decoded @ params["out"]))
    return jnp.stack(words)


def _squared(w, x, y):
    return ((x @ w - y) ** 2).mean()


@wrong("LOX431", {"left": f32(5), "right": f32(5)}, f32(8, 5), f32(8))
def legs_that_both_learn_what_one_does(legs, x, y):
    values = {}
    for name in legs:
        values[name], gradient = jax.value_and_grad(_squared)(legs[name], x, y)
    return {name: leg - 0.1 * gradient for name, leg in legs.items()}, values


@right("LOX431", {"left": f32(5), "right": f32(5)}, f32(8, 5), f32(8))
def legs_of_which_each_learns(legs, x, y):
    values, gradients = {}, {}
    for name in legs:
        values[name], gradients[name] = jax.value_and_grad(_squared)(legs[name], x, y)
    return {name: leg - 0.1 * gradients[name] for name, leg in legs.items()}, values


@right("LOX431", f32(5), f32(8, 5), f32(8))
def a_leg_that_learns_in_rounds(leg, x, y):
    for _ in range(3):
        gradient = jax.grad(_squared)(leg, x, y)
        leg = leg - 0.1 * gradient
    return leg, jnp.square(gradient).sum()


@wrong("LOX431", (f32(5), f32(5)), f32(8, 5), f32(8))
def legs_of_which_the_second_learns_from_the_first(legs, x, y):
    first, gradient = jax.value_and_grad(_squared)(legs[0], x, y)
    second, _ = jax.value_and_grad(_squared)(legs[1], x, y)
    return [leg - 0.1 * gradient for leg in legs], first + second


@right("LOX431", f32(5), f32(8, 5), f32(8))
def a_leg_whose_value_after_a_step_is_told(leg, x, y):
    before, gradient = jax.value_and_grad(_squared)(leg, x, y)
    moved = leg - 0.1 * gradient
    after, _ = jax.value_and_grad(_squared)(moved, x, y)
    return moved, before - after


@wrong("LOX431", f32(5), f32(5), f32(3, 8, 5), f32(3, 8))
def a_slow_leg_that_is_moved_once(leg, slow, x, y):
    for i in range(3):
        leg = leg - 0.1 * jax.grad(_squared)(leg, x[i], y[i])
        moved = optax.incremental_update(leg, slow, 0.01)
    return leg, moved


@right("LOX431", f32(5), f32(5), f32(3, 8, 5), f32(3, 8))
def a_slow_leg_that_is_moved_in_each_step(leg, slow, x, y):
    for i in range(3):
        leg = leg - 0.1 * jax.grad(_squared)(leg, x[i], y[i])
        slow = optax.incremental_update(leg, slow, 0.01)
    return leg, slow


# -- LOX438: arguments in another order ------------------------------------------------------------------------------


def _advantages(rewards, values, discount):
    following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
    return rewards + discount * following - values


def _adadelta(gradient, distance, squares):
    squares = 0.9 * squares + 0.1 * gradient**2
    return -gradient * jnp.sqrt(distance + 1e-6) / jnp.sqrt(squares + 1e-6)


def _drifted(position, velocity, dt):
    return position + dt * velocity, velocity - dt * position


def _divergence(p, q):
    return jnp.sum(jax.nn.softmax(p) * (jax.nn.log_softmax(p) - jax.nn.log_softmax(q)))


def _trend_error(level, slope, observed):
    places = jnp.arange(observed.shape[0])
    return jnp.square(level + slope * places - observed).mean()


def _gap(start, end):
    return end - start


def _mixed(source, target):
    return source + 0.5 * (target - source) * jax.nn.sigmoid(source)


def _squared_error_of(predicted, observed):
    return jnp.square(predicted - observed).mean()


@wrong("LOX438", f32(32), f32(32), f32(32))
def a_policy_loss_whose_advantages_take_the_values_for_the_rewards(log_probs, rewards, values):
    advantages = _advantages(values, rewards, 0.99)
    return -(log_probs * jax.lax.stop_gradient(advantages)).mean()


@wrong("LOX438", {"w": f32(4), "b": f32()}, {"w": f32(4), "b": f32()}, {"w": f32(4), "b": f32()})
def steps_of_a_tree_whose_arguments_are_one_further(grads, distance, squares):
    steps = jax.tree.map(_adadelta, distance, squares, grads)
    return jax.tree.map(lambda step: 0.1 * step, steps)


@wrong("LOX438", f32(16, 3), f32(16, 3))
def particles_whose_velocity_drifts(position, velocity):
    for _ in range(3):
        position, velocity = jax.vmap(_drifted, in_axes=(0, 0, None))(velocity, position, 0.1)
    return position


@wrong("LOX438", {"level": f32(), "slope": f32()}, f32(16))
def a_trend_whose_slope_is_taken_for_its_level(trend, observed):
    value_and_slopes = jax.value_and_grad(_trend_error, argnums=(0, 1))
    error, slopes = value_and_slopes(trend["slope"], trend["level"], observed)
    return error, slopes


@right("LOX438", f32(32), f32(32), f32(32))
def a_policy_loss_whose_advantages_are_in_order(log_probs, rewards, values):
    advantages = _advantages(rewards, values, 0.99)
    return -(log_probs * jax.lax.stop_gradient(advantages)).mean()


@right("LOX438", f32(8), f32(8))
def a_divergence_of_both_sides(p, q):
    return _divergence(p, q) + _divergence(q, p)


@right("LOX438", f32(8), f32(8))
def a_divergence_of_the_reverse_side(p, q):
    return _divergence(q, p)


@right("LOX438", {"start": f32(6), "end": f32(6)}, {"start": f32(6), "end": f32(6)})
def pauses_between_two_notes(first, second):
    pause = _gap(first["end"], second["start"])
    return jnp.maximum(pause, 0.0)


@right("LOX438", f32(8), f32(8))
def a_cycle_there_and_back(source, target):
    there = _mixed(source, target)
    back = _mixed(target, source)
    return jnp.abs(there - back).mean()


@right("LOX438", f32(8), f32(8))
def an_error_that_is_the_same_from_both_sides(observed, predicted):
    error = _squared_error_of(observed, predicted)
    return jnp.sqrt(error)


def _bent(previous, current, following):
    return previous - 2 * current + following


@right("LOX438", f32(8), f32(8), f32(8))
def a_bend_of_the_next_place(current, following, outermost):
    bend = _bent(current, following, outermost)
    return 0.5 * bend
