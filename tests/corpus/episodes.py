"""Loops over several episodes: what goes on from one into the next."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import lox
from corpus import f32, flags, right, wrong

KEY = jax.random.key(0)


class Transition(NamedTuple):
    obs: Any
    reward: Any
    value: Any
    done: Any


ROLLOUT = Transition(f32(128, 8, 6), f32(128, 8), f32(128, 8), flags(128, 8))


# Returns.


@wrong("LOX220", ROLLOUT, f32(8))
def gae_that_bootstraps_from_the_next_episode(rollout, last_value):
    def back(carry, step):
        advantage, next_value = carry
        delta = step.reward + 0.99 * next_value - step.value
        advantage = delta + 0.99 * 0.95 * (1 - step.done) * advantage
        return (advantage, step.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), rollout, reverse=True)[1]


@wrong("LOX220", f32(128, 8), f32(129, 8), flags(128, 8))
def gae_whose_errors_reach_the_next_episode(rewards, values, dones):
    goes_on = 1.0 - dones
    deltas = rewards + 0.99 * values[1:] - values[:-1]

    def back(advantage, step):
        delta, on = step
        advantage = delta + 0.95 * 0.99 * on * advantage
        return advantage, advantage

    return jax.lax.scan(back, jnp.zeros(8), (deltas, goes_on), reverse=True)[1]


@wrong("LOX220", f32(128), flags(128))
def returns_at_counters_that_are_masked_too_late(rewards, dones):
    def body(i, carry):
        following, returns = carry
        t = rewards.shape[0] - 1 - i
        following = rewards[t] + 0.99 * following
        return following, returns.at[t].set(following * (1 - dones[t]))

    return jax.lax.fori_loop(0, rewards.shape[0], body, (0.0, jnp.zeros_like(rewards)))[1]


@wrong("LOX220", f32(128, 8), f32(128, 8))
def returns_that_stop_where_episodes_go_on(rewards, over):
    def back(following, step):
        reward, over = step
        following = reward + 0.99 * over * following
        return following, following

    with lox.audit.expect(done="over"):
        return jax.lax.scan(back, jnp.zeros(8), (rewards, over), reverse=True)[1]


@right("LOX220", ROLLOUT, f32(8), flags(8))
def gae_that_carries_the_flag_of_the_next_step(rollout, last_value, last_done):
    def back(carry, step):
        advantage, next_value, next_done = carry
        delta = step.reward + 0.99 * next_value * (1 - next_done) - step.value
        advantage = delta + 0.99 * 0.95 * (1 - next_done) * advantage
        return (advantage, step.value, step.done), advantage

    start = (jnp.zeros_like(last_value), last_value, last_done)
    return jax.lax.scan(back, start, rollout, reverse=True)[1]


@right("LOX220", f32(128, 8), f32(128, 8), f32(128, 8), flags(128, 8), flags(128, 8))
def gae_that_bootstraps_where_an_episode_is_cut_short(rewards, values, next_values, terminated, truncated):
    def back(advantage, step):
        reward, value, next_value, terminated, truncated = step
        delta = reward + 0.99 * next_value * (1 - terminated) - value
        advantage = delta + 0.95 * 0.99 * (1 - (terminated | truncated)) * advantage
        return advantage, advantage

    steps = (rewards, values, next_values, terminated, truncated)
    return jax.lax.scan(back, jnp.zeros(8), steps, reverse=True)[1]


@right("LOX220", ROLLOUT)
def losses_of_all_episodes_summed_up_backwards(rollout):
    def back(carry, step):
        following, loss = carry
        following = step.reward + 0.99 * jnp.where(step.done, 0.0, following)
        return (following, loss + (following - step.value) ** 2), None

    return jax.lax.scan(back, (jnp.zeros(8), jnp.zeros(8)), rollout, reverse=True)[0][1]


# Memories.


def _lstm(weights, cell, hidden, x):
    gates = jnp.concatenate([x, hidden], axis=-1) @ weights
    forget, write, new, out = jnp.split(gates, 4, axis=-1)
    cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(write) * jnp.tanh(new)
    return cell, jax.nn.sigmoid(out) * jnp.tanh(cell)


@wrong("LOX221", f32(20, 4, 6), flags(20, 4), f32(22, 64))
def lstm_whose_cell_is_never_reset(obs, resets, weights):
    def step(carry, at):
        cell, hidden = carry
        x, reset = at
        hidden = jnp.where(reset[:, None], 0.0, hidden)
        cell, hidden = _lstm(weights, cell, hidden, x)
        return (cell, hidden), hidden

    return jax.lax.scan(step, (jnp.zeros((4, 16)), jnp.zeros((4, 16))), (obs, resets))[1]


@wrong("LOX221", f32(20, 4, 6), f32(20, 4), f32(22, 64))
def lstm_whose_cell_is_not_multiplied_by_what_goes_on(obs, resets, weights):
    def step(carry, at):
        cell, hidden = carry
        x, reset = at
        keep = 1.0 - reset[:, None]
        cell, hidden = _lstm(weights, cell, hidden * keep, x)
        return (cell, hidden), hidden

    return jax.lax.scan(step, (jnp.zeros((4, 16)), jnp.zeros((4, 16))), (obs, resets))[1]


@right("LOX221", f32(20, 4, 6), f32(20, 4), f32(22, 64))
def lstm_that_is_multiplied_by_what_goes_on(obs, resets, weights):
    def step(carry, at):
        x, reset = at
        keep = 1.0 - reset[:, None]
        cell, hidden = (each * keep for each in carry)
        cell, hidden = _lstm(weights, cell, hidden, x)
        return (cell, hidden), hidden

    return jax.lax.scan(step, (jnp.zeros((4, 16)), jnp.zeros((4, 16))), (obs, resets))[1]


@wrong("LOX221", f32(8), Transition(f32(100, 8), f32(100), f32(100, 8), flags(100)))
def td_lambda_whose_trace_is_never_reset(weights, steps):
    def learn(carry, step):
        weights, trace = carry
        error = step.reward + 0.99 * (1 - step.done) * (step.value @ weights) - step.obs @ weights
        trace = 0.99 * 0.9 * trace + step.obs
        return (weights + 0.1 * error * trace, trace), error

    return jax.lax.scan(learn, (weights, jnp.zeros(8)), steps)


def _rollout(weights, onward, reset):
    """A rollout of a recurrent policy in eight environments, each of which is reset where its episode ends."""

    def step(carry, key):
        place, hidden, episode_return, returned, done = carry
        hidden = jnp.tanh(place[:, None] * weights + reset(hidden, done) @ onward)
        place = place + hidden.mean(axis=-1)
        done = jnp.abs(place) > 2
        place = jnp.where(done, jax.random.normal(key, place.shape), place)
        episode_return = episode_return - place**2
        returned = jnp.where(done, episode_return, returned)
        return (place, hidden, reset(episode_return, done), returned, done), returned

    start = (jnp.zeros(8), jnp.zeros((8, 16)), jnp.zeros(8), jnp.zeros(8), jnp.zeros(8, bool))
    return jax.lax.scan(step, start, jax.random.split(KEY, 100))[1]


@wrong("LOX221", f32(16), f32(16, 16))
def rollout_in_which_all_but_the_place_goes_on(weights, onward):
    return _rollout(weights, onward, lambda old, done: old)


@wrong("LOX221", f32(8, 3), f32(12))
def frames_of_the_episode_before(obs, weights):
    def step(carry, key):
        obs, frames = carry
        obs = obs + jnp.tanh(frames.reshape(8, -1) @ weights)[:, None]
        done = jnp.abs(obs).max(axis=-1) > 2
        obs = jnp.where(done[:, None], jax.random.normal(key, obs.shape), obs)
        frames = jnp.concatenate([frames[:, 1:], obs[:, None]], axis=1)
        return (obs, frames), done

    return jax.lax.scan(step, (obs, jnp.zeros((8, 4, 3))), jax.random.split(KEY, 100))[1]


@wrong("LOX221", f32(8), f32(8))
def environments_that_keep_their_speed(place, speed):
    def step(carry, key):
        place, speed = carry
        speed = speed - 0.1 * place
        place = place + 0.1 * speed
        done = jnp.abs(place) > 2
        return (jnp.where(done, jax.random.normal(key, place.shape), place), speed), done

    return jax.lax.scan(step, (place, speed), jax.random.split(KEY, 100))[1]


@right("LOX221", f32(20, 4, 6), flags(20, 4), f32(22, 64))
def lstm_that_is_reset(obs, resets, weights):
    def step(carry, at):
        x, reset = at
        cell, hidden = jax.tree.map(lambda h: jnp.where(reset[:, None], 0.0, h), carry)
        cell, hidden = _lstm(weights, cell, hidden, x)
        return (cell, hidden), hidden

    return jax.lax.scan(step, (jnp.zeros((4, 16)), jnp.zeros((4, 16))), (obs, resets))[1]


@right("LOX221", f32(16), f32(16, 16))
def rollout_in_which_all_of_an_episode_is_reset(weights, onward):
    def reset(old, done):
        return jnp.where(done.reshape(done.shape + (1,) * (old.ndim - 1)), 0.0, old)

    return _rollout(weights, onward, reset)


@right("LOX221", f32(8), Transition(f32(100, 8), f32(100), f32(100, 8), flags(100)))
def td_learning_with_momentum(weights, steps):
    def learn(carry, step):
        weights, momentum = carry
        error = step.reward + 0.99 * (1 - step.done) * (step.value @ weights) - step.obs @ weights
        momentum = 0.9 * momentum + error * step.obs
        return (weights + 0.1 * momentum, momentum), error

    return jax.lax.scan(learn, (weights, jnp.zeros(8)), steps)


@right("LOX221", f32(8))
def statistics_over_all_episodes(place):
    def step(carry, key):
        place, count, mean, total, before = carry
        place = place + jnp.tanh(mean - place)
        done = jnp.abs(place) > 2
        total = total - place**2
        returned = total - before
        count = count + 1
        mean = mean + (place.mean() - mean) / count
        place = jnp.where(done, jax.random.normal(key, place.shape), place)
        return (place, count, mean, total, jnp.where(done, total, before)), returned

    start = (place, 0.0, 0.0, jnp.zeros(8), jnp.zeros(8))
    return jax.lax.scan(step, start, jax.random.split(KEY, 100))[1]


# Resets of all environments.


def _environments(places, choose):
    def move(place, key):
        place = place + jax.random.normal(key)
        return place, -(place**2), jnp.abs(place) > 2

    def step(places, key):
        places, rewards, done = jax.vmap(move)(places, jax.random.split(key, 8))
        return choose(done, jax.vmap(jnp.zeros_like)(places), places), rewards

    return jax.lax.scan(step, places, jax.random.split(KEY, 100))[1]


@wrong("LOX222", f32(8))
def environments_that_all_start_anew(places):
    return _environments(places, lambda done, new, old: jnp.where(jnp.any(done), new, old))


@right("LOX222", f32(8))
def environments_that_start_anew_one_by_one(places):
    def choose(done, new, old):
        return jax.lax.cond(jnp.any(done), lambda: jnp.where(done, new, old), lambda: old)

    return _environments(places, choose)


# Where an episode is only cut short.


BATCH = {
    "obs": f32(64, 6),
    "next_obs": f32(64, 6),
    "reward": f32(64),
    "terminated": flags(64),
    "truncated": flags(64),
}


def _target(batch, weights, stop):
    next_values = jnp.max(jnp.tanh(batch["next_obs"] @ weights), axis=-1)
    with lox.audit.expect(done="terminated"):
        return batch["reward"] + 0.99 * next_values * (1 - stop)


@wrong("LOX223", BATCH, f32(6, 3))
def target_that_stops_at_a_time_limit(batch, weights):
    return _target(batch, weights, batch["terminated"] | batch["truncated"])


@right("LOX223", BATCH, f32(6, 3))
def target_that_stops_where_an_episode_terminates(batch, weights):
    return _target(batch, weights, batch["terminated"])


# Returns without a scan.


@wrong("LOX220", ROLLOUT, f32(129, 8))
def gae_by_an_associative_scan_whose_weights_go_on(rollout, values):
    goes_on = 1.0 - rollout.done
    deltas = rollout.reward + 0.99 * goes_on * values[1:] - values[:-1]
    weights = jnp.full_like(deltas, 0.99 * 0.95)
    return jax.lax.associative_scan(_linear, (weights, deltas), reverse=True)[1]


@right("LOX220", ROLLOUT)
def averages_and_returns_by_associative_scans(rollout):
    smoothed = jax.lax.associative_scan(_linear, (jnp.full((128, 8), 0.9), rollout.reward * rollout.done))[1]
    weights = jnp.where(rollout.done, 0.0, 0.99)
    return smoothed, jax.lax.associative_scan(_linear, (weights, rollout.reward), reverse=True)[1]


def _linear(before, after):
    (weight, added), (new_weight, new_added) = before, after
    return weight * new_weight, new_weight * added + new_added


@wrong("LOX220", f32(6, 8), flags(6, 8))
def returns_of_a_list_that_go_on(rewards, dones):
    following, returns = jnp.zeros(8), []
    for reward, done in zip(rewards[::-1], dones[::-1], strict=True):
        following = reward + 0.99 * following
        returns.insert(0, following * (1 - done))
    return jnp.stack(returns)


@right("LOX220", f32(6, 8), f32(7, 8), flags(6, 8))
def returns_and_totals_of_a_list(rewards, values, dones):
    following, total, returns = values[-1], jnp.zeros(8), []
    for t in reversed(range(6)):
        goes_on = 1.0 - dones[t]
        following = rewards[t] + 0.99 * (0.1 * values[t + 1] * goes_on + 0.9 * following * goes_on)
        total = total + rewards[t]
        returns.append(following)
    return jnp.stack(returns), total


# Flags that a rollout stores.


def _episodes(params, key, restarts=True):
    """Rewards and values of eight walks, the flags before and after each step, and the last ones."""

    def walk(place, action, key):
        place = place + action + jax.random.normal(key, place.shape)
        done = jnp.abs(place).max() > 3
        return jnp.where(done, 0.0, place) if restarts else place, -jnp.abs(place).sum(), done

    def act(carry, key):
        place, last_done = carry
        place, reward, done = jax.vmap(walk)(place, jnp.tanh(place * params), jax.random.split(key, 8))
        return (place, done), (reward, place @ params, last_done, done)

    start = jnp.zeros((8, 3)), jnp.zeros(8, bool)
    (_, last_done), rollout = jax.lax.scan(act, start, jax.random.split(key, 64))
    return *rollout, last_done


def _returns(rewards, values, dones):
    def back(following, step):
        reward, value, done = step
        following = reward + 0.99 * (1 - done) * (0.1 * value + 0.9 * following)
        return following, following

    return jax.lax.scan(back, jnp.zeros(8), (rewards, values, dones), reverse=True)[1]


def _returns_by_the_next_flag(rewards, values, dones, last_done):
    def back(carry, step):
        following, next_done = carry
        reward, value, done = step
        following = reward + 0.99 * (1 - next_done) * (0.1 * value + 0.9 * following)
        return (following, done), following

    return jax.lax.scan(back, (jnp.zeros(8), last_done), (rewards, values, dones), reverse=True)[1]


@wrong("LOX220", f32(3), KEY)
def returns_that_stop_at_the_flags_before_each_step(params, key):
    rewards, values, before, _, _ = _episodes(params, key)
    return _returns(rewards, values, before)


@wrong("LOX220", f32(3), KEY)
def returns_that_stop_at_the_flags_after_the_next_step(params, key):
    rewards, values, _, after, last_done = _episodes(params, key)
    return _returns_by_the_next_flag(rewards, values, after, last_done)


@right("LOX220", f32(3), KEY)
def returns_that_stop_where_episodes_end(params, key):
    rewards, values, before, after, last_done = _episodes(params, key)
    shifted = jnp.concatenate([before[1:], last_done[None]])
    return (
        _returns(rewards, values, after),
        _returns(rewards, values, shifted),
        _returns_by_the_next_flag(rewards, values, before, last_done),
    )


@wrong("LOX221", f32(3), KEY)
def walks_that_go_on_after_their_returns_stop(params, key):
    rewards, values, _, after, _ = _episodes(params, key, restarts=False)
    return _returns(rewards, values, after)


@right("LOX221", f32(3), KEY)
def walks_that_count_until_they_end(params, key):
    rewards, values, _, after, _ = _episodes(params, key, restarts=False)
    return _returns(rewards, values, after) * (jnp.cumsum(after, axis=0) - after == 0)


# Targets of single steps.


STEPS = {"obs": f32(32, 6), "reward": f32(32), "next_obs": f32(32, 6), "done": flags(32)}


@wrong("LOX220", f32(6, 3), STEPS)
def targets_that_go_on_where_episodes_end(weights, batch):
    next_q = (batch["next_obs"] @ weights).max(-1)
    target = batch["reward"] + 0.99 * next_q
    return ((batch["obs"] @ weights).max(-1) - jax.lax.stop_gradient(target)).mean()


@wrong("LOX220", f32(6, 3), STEPS)
def targets_that_go_on_only_where_episodes_end(weights, batch):
    next_q = (batch["next_obs"] @ weights).max(-1)
    return batch["reward"] + 0.99 * batch["done"] * next_q


@right("LOX220", f32(6, 3), {**STEPS, "discount": f32(32)})
def targets_that_another_flag_masks(weights, batch):
    next_q = (batch["next_obs"] @ weights).max(-1)
    return batch["reward"] + 0.99 * jax.lax.select(batch["discount"] > 0, next_q, jnp.zeros(32))


@right("LOX220", STEPS)
def rewards_with_a_bonus_for_the_next_state(batch):
    bonus = jnp.abs(batch["next_obs"]).sum(-1)
    return batch["reward"] + 0.9 * bonus


# What is put out where an episode ends.


@wrong("LOX221", f32(4, 24), f32(8, 24), f32(32, 8, 4), flags(32, 8))
def gru_that_is_reset_in_what_it_puts_out(into, onward, obs, dones):
    def step(hidden, at):
        x, done = at
        hidden = _gru(into, onward, hidden, x)
        return hidden, jnp.where(done[:, None], 0.0, hidden)

    return jax.lax.scan(step, jnp.zeros((8, 8)), (obs, dones))[1]


@right("LOX221", f32(4, 24), f32(8, 24), f32(32, 8, 4), flags(32, 8))
def gru_that_is_reset_after_it_is_put_out(into, onward, obs, dones):
    def step(hidden, at):
        x, done = at
        hidden = _gru(into, onward, hidden, x)
        return jnp.where(done[:, None], 0.0, hidden), hidden

    return jax.lax.scan(step, jnp.zeros((8, 8)), (obs, dones))[1]


def _gru(into, onward, hidden, x):
    reset, update, new = jnp.split(x @ into, 3, axis=-1)
    of_reset, of_update, of_new = jnp.split(hidden @ onward, 3, axis=-1)
    update = jax.nn.sigmoid(update + of_update)
    new = jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * of_new)
    return update * hidden + (1 - update) * new


def _walk(key, place, action):
    place = place + action + 0.1 * jax.random.normal(key, place.shape)
    done = jnp.abs(place).max() > 2
    return jnp.where(done, jnp.zeros(3), place), -jnp.sum(action**2), done


@wrong("LOX221", f32(3, 3))
def returns_put_out_at_ends_that_are_never_reset(policy):
    def step(carry, key):
        place, total = carry
        place, reward, done = _walk(key, place, policy @ place)
        total = total + reward
        return (place, total), jnp.where(done, total, jnp.nan)

    return jax.lax.scan(step, (jnp.zeros(3), 0.0), jax.random.split(KEY, 100))[1]


@wrong("LOX221", f32(3, 3))
def lengths_that_are_reset_before_they_are_put_out(policy):
    def step(carry, key):
        place, length = carry
        place, _, done = _walk(key, place, policy @ place)
        length = (length + 1) * (1 - done)
        return (place, length), jnp.where(done, length, -1)

    return jax.lax.scan(step, (jnp.zeros(3), 0), jax.random.split(KEY, 100))[1]


@right("LOX221", f32(3, 3))
def returns_and_lengths_put_out_at_ends(policy):
    def step(carry, key):
        place, total, length = carry
        place, reward, done = _walk(key, place, policy @ place)
        total, length = total + reward, length + 1
        out = jnp.where(done, total, jnp.nan), jnp.where(done, length, -1)
        return (place, total * (1 - done), length * (1 - done)), out

    return jax.lax.scan(step, (jnp.zeros(3), 0.0, 0), jax.random.split(KEY, 100))[1]


@wrong("LOX209", f32(3, 3))
def return_of_an_episode_that_goes_on_after_its_end(policy):
    def step(carry, key):
        place, total, over = carry
        place, reward, done = _walk(key, place, policy @ place)
        return (place, total + reward, over | done), None

    return jax.lax.scan(step, (jnp.zeros(3), 0.0, False), jax.random.split(KEY, 100))[0][1]


@right("LOX209", f32(3, 3))
def return_of_an_episode_until_its_end(policy):
    def step(carry, key):
        place, total, over = carry
        place, reward, done = _walk(key, place, policy @ place)
        return (place, total + reward * (1 - over), over | done), None

    return jax.lax.scan(step, (jnp.zeros(3), 0.0, False), jax.random.split(KEY, 100))[0][1]


@wrong("LOX205", f32(32, 16, 16), flags(32))
def stack_of_frames_that_goes_on(frames, dones):
    def step(stack, at):
        frame, _ = at
        stack = jnp.concatenate([stack[1:], frame[None]])
        return stack, stack

    return jax.lax.scan(step, jnp.zeros((4, 16, 16)), (frames, dones))[1]


@right("LOX205", f32(32, 16, 16), flags(32))
def frames_of_each_episode(frames, dones):
    def step(stack, at):
        frame, done = at
        stack = jnp.concatenate([stack[1:], frame[None]])
        return jnp.where(done, 0.0, stack), stack

    return jax.lax.scan(step, jnp.zeros((4, 16, 16)), (frames, dones))[1]


@wrong("LOX222", f32(4, 24), f32(8, 24), f32(32, 8, 4), flags(32, 8))
def gru_of_all_environments_that_one_end_resets(into, onward, obs, dones):
    def step(hidden, at):
        x, done = at
        hidden = jax.lax.cond(done.any(), jnp.zeros_like, lambda h: h, hidden)
        hidden = _gru(into, onward, hidden, x)
        return hidden, hidden

    return jax.lax.scan(step, jnp.zeros((8, 8)), (obs, dones))[1]


# Targets.


@wrong("LOX220", f32(4, 2), Transition(f32(64, 4), f32(64), f32(64, 4), flags(64)))
def target_without_the_reward_of_the_last_step(weights, batch):
    next_values = (batch.value @ weights).max(-1)
    return (batch.reward + 0.99 * next_values) * (1 - batch.done)


@wrong("LOX220", f32(32, 8), f32(32, 8), f32(32, 8), flags(32, 8))
def errors_that_are_zero_at_ends(rewards, values, next_values, terminated):
    return jnp.mean(((rewards + 0.99 * next_values - values) * (1.0 - terminated)) ** 2)


@right("LOX220", f32(32, 8), f32(32, 8), f32(32, 8), flags(32, 8), flags(32, 8))
def errors_of_steps_that_are_not_padded(rewards, values, next_values, terminated, valid):
    errors = (rewards + 0.99 * (1.0 - terminated) * next_values - values) * valid
    return jnp.sum(errors**2) / jnp.maximum(valid.sum(), 1)


@right("LOX220", f32(32, 8), f32(32, 8), f32(32, 8), flags(32, 8))
def errors_without_steps_between_episodes(rewards, values, next_values, last_done):
    return jnp.mean(((rewards + 0.99 * next_values - values) * (1.0 - last_done)) ** 2)


@wrong("LOX221", f32(3, 3))
def returns_of_a_wrapper_that_are_reset_before_they_are_kept(policy):
    def step(carry, key):
        place, total, last = carry
        place, reward, done = _walk(key, place, policy @ place)
        total = (total + reward) * (1 - done)
        last = last * (1 - done) + total * done
        return (place, total, last), last

    return jax.lax.scan(step, (jnp.zeros(3), 0.0, 0.0), jax.random.split(KEY, 100))[1]


@right("LOX221", f32(3, 3))
def returns_of_a_wrapper(policy):
    def step(carry, key):
        place, total, last = carry
        place, reward, done = _walk(key, place, policy @ place)
        last = last * (1 - done) + (total + reward) * done
        return (place, (total + reward) * (1 - done), last), last

    return jax.lax.scan(step, (jnp.zeros(3), 0.0, 0.0), jax.random.split(KEY, 100))[1]


class Step(NamedTuple):
    obs: Any
    reward: Any
    next_obs: Any
    terminated: Any
    truncated: Any


@wrong("LOX220", f32(5, 3), Step(f32(32, 5), f32(32), f32(32, 5), flags(32), flags(32)))
def target_that_reads_no_flag(weights, step):
    next_values = (step.next_obs @ weights).max(-1)
    return jnp.square(step.reward + 0.99 * next_values - (step.obs @ weights).max(-1)).mean()


@wrong("LOX221", f32(4))
def stack_of_places_that_keeps_the_last_episode(drift):
    def step(carry, key):
        place, stack = carry
        place = place + drift + 0.1 * jax.random.normal(key, (4,))
        done = jnp.abs(place).max() > 3
        place = jnp.where(done, 0.0, place)
        stack = jnp.roll(stack, -1, axis=0).at[-1].set(place)
        return (place, stack), stack

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros((3, 4))), jax.random.split(KEY, 50))[1]


@right("LOX221", f32(4))
def window_of_rewards_over_episodes(drift):
    def step(carry, key):
        place, rewards = carry
        place = place + drift + 0.1 * jax.random.normal(key, (4,))
        done = jnp.abs(place).max() > 3
        place = jnp.where(done, 0.0, place)
        rewards = jnp.roll(rewards, -1).at[-1].set(-jnp.square(place).sum())
        return (place, rewards), rewards.mean()

    return jax.lax.scan(step, (jnp.zeros(4), jnp.zeros(10)), jax.random.split(KEY, 50))[1]


@wrong("LOX220", f32(6, 16), f32(16), f32(32, 8, 6), f32(32, 8), flags(32, 8))
def returns_that_bootstrap_with_the_value_of_the_next_state(weights, head, next_obs, rewards, dones):
    def back(later, step):
        reward, value, done = step
        now = reward + 0.99 * (0.1 * value + 0.9 * (1 - done) * later)
        return now, now

    values = jnp.tanh(next_obs @ weights) @ head
    return jax.lax.scan(back, values[-1], (rewards, values, dones), reverse=True)[1]


@right("LOX220", f32(6, 16), f32(16), f32(32, 8, 6), f32(32, 8), flags(32, 8), flags(32, 8))
def returns_of_episodes_that_are_cut_short(weights, head, next_obs, rewards, terminated, truncated):
    def back(later, step):
        reward, value, end, cut = step
        now = reward + 0.99 * (1 - end) * (0.1 * value + 0.9 * jnp.where(cut, value, later))
        return now, now

    values = jnp.tanh(next_obs @ weights) @ head
    return jax.lax.scan(back, values[-1], (rewards, values, terminated, truncated), reverse=True)[1]


def _linear(one, other):
    return other[0] * one[0], other[0] * one[1] + other[1]


@wrong("LOX205", f32(16), f32(6, 16), f32(32, 8, 6), flags(32, 8))
def linear_memory_that_goes_on(decay, weights, obs, dones):
    decays = jax.nn.sigmoid(decay) * jnp.ones((32, 8, 16))
    return jax.lax.associative_scan(_linear, (decays, obs @ weights))[1]


@right("LOX205", f32(16), f32(6, 16), f32(32, 8, 6), flags(32, 8))
def linear_memory_of_each_episode(decay, weights, obs, dones):
    decays = jax.nn.sigmoid(decay) * (1.0 - dones[..., None])
    return jax.lax.associative_scan(_linear, (decays, obs @ weights))[1]


@right("LOX220", f32(6, 16), f32(16), f32(32, 8, 6), f32(32, 8), flags(32, 8))
def returns_of_a_task_without_an_end(weights, head, next_obs, rewards, truncated):
    def back(later, step):
        reward, value, cut = step
        now = reward + 0.99 * jnp.where(cut, value, 0.1 * value + 0.9 * later)
        return now, now

    values = jnp.tanh(next_obs @ weights) @ head
    return jax.lax.scan(back, values[-1], (rewards, values, truncated), reverse=True)[1]


@wrong("LOX220", f32(32, 8), f32(32, 8), f32(33, 8))
def a_window_of_rewards_whose_last_value_is_of_the_next_episode(rewards, dones, values):
    steps = rewards.shape[0] - 2
    target, alive = jnp.zeros((steps, 8)), jnp.ones((steps, 8))
    for k in range(3):
        target = target + 0.99**k * alive * rewards[k : k + steps]
        alive = alive * (1 - dones[k : k + steps])
    return target + 0.99**3 * values[3 : 3 + steps]


def _lambda_return(reward, value, goes_on, bootstrap):
    next_value = jnp.concatenate([value[1:], bootstrap[None]], 0)

    def back(later, at):
        inputs, goes_on = at
        now = inputs + 0.99 * goes_on * 0.95 * later
        return now, now

    return jax.lax.scan(back, bootstrap, (reward + 0.99 * 0.05 * next_value, goes_on), reverse=True)[1]


@wrong("LOX220", f32(16, 8), f32(16, 8), flags(16, 8))
def a_return_of_imagined_steps_that_goes_on_by_the_next_value(reward, value, terminal):
    goes_on = 1.0 - terminal.astype(jnp.float32)
    return _lambda_return(reward[:-1], value[:-1], goes_on[:-1], value[-1])


@wrong("LOX220", f32(32, 8), f32(32, 8), f32(32, 8), f32(8), f32(8))
def a_flag_of_the_next_step_that_is_carried_in_vain(reward, value, done, last_value, last_done):
    def back(carry, at):
        advantage, next_value, next_done = carry
        reward, value, done = at
        delta = reward + 0.99 * next_value * (1 - done) - value
        advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
        return (advantage, value, done), advantage

    start = (jnp.zeros_like(last_value), last_value, last_done)
    return jax.lax.scan(back, start, (reward, value, done), reverse=True)[1]


@wrong("LOX221", f32(64, 8), f32(64, 8))
def a_scale_of_rewards_by_a_return_that_never_ends(rewards, dones):
    def step(carry, at):
        total, variance = carry
        reward, done = at
        total = total * 0.99 + reward
        variance = 0.99 * variance + 0.01 * total.var()
        return (total, variance), (reward / jnp.sqrt(variance), done)

    return jax.lax.scan(step, (jnp.zeros(8), 1.0), (rewards, dones))[1]


# What is counted after an end, and what is reset at another one.


class Glider(NamedTuple):
    height: Any
    speed: Any
    landed: Any


def _glided(glider, lift):
    speed = 0.9 * glider.speed + lift
    height = glider.height + 0.1 * speed - 0.2
    return height, speed, height <= 0


@wrong("LOX220", Glider(f32(16), f32(16), flags(16)), f32(40, 16))
def gliders_that_score_after_they_landed(gliders, lifts):
    def glide(carry, lift):
        glider, score = carry
        height, speed, landed = _glided(glider, lift)
        over = glider.landed | landed
        score = score + 0.1 * jnp.abs(speed)
        height = jnp.where(glider.landed, glider.height, height)
        speed = jnp.where(glider.landed, glider.speed, speed)
        return (Glider(height, speed, over), score), None

    return jax.lax.scan(glide, (gliders, jnp.zeros(16)), lifts)[0]


@right("LOX220", Glider(f32(16), f32(16), flags(16)), f32(40, 16))
def gliders_that_score_until_they_land(gliders, lifts):
    def glide(carry, lift):
        glider, score = carry
        height, speed, landed = _glided(glider, lift)
        over = glider.landed | landed
        score = score + 0.1 * jnp.abs(speed) * (1 - glider.landed)
        height = jnp.where(glider.landed, glider.height, height)
        speed = jnp.where(glider.landed, glider.speed, speed)
        return (Glider(height, speed, over), score), None

    return jax.lax.scan(glide, (gliders, jnp.zeros(16)), lifts)[0]


@right("LOX220", Glider(f32(16), f32(16), flags(16)), f32(40, 16))
def gliders_whose_score_counts_while_they_fly(gliders, lifts):
    def glide(carry, lift):
        glider, score = carry
        height, speed, landed = _glided(glider, lift)
        height = jnp.where(glider.landed, glider.height, height)
        speed = jnp.where(glider.landed, glider.speed, speed)
        return (Glider(height, speed, glider.landed | landed), score + 0.1 * jnp.abs(speed)), None

    (gliders, score), _ = jax.lax.scan(glide, (gliders, jnp.zeros(16)), lifts)
    return jnp.where(gliders.landed, 0.0, score)


def _walked(place, hidden, weights):
    hidden = jnp.tanh(place @ weights["in"] + hidden @ weights["on"])
    place = place + 0.1 * jnp.tanh(hidden @ weights["out"])
    return place, hidden, jnp.abs(place).max(-1) > 2.0


_WALKER = {"in": f32(3, 10), "on": f32(10, 10), "out": f32(10, 3)}


@wrong("LOX221", _WALKER, f32(8, 3), f32(8, 10), flags(50, 8))
def walkers_that_remember_when_their_time_is_up(weights, places, hidden, truncated):
    def walk(carry, cut):
        places, hidden = carry
        places, hidden, terminated = _walked(places, hidden, weights)
        over = terminated | cut
        places = jnp.where(over[:, None], jnp.zeros_like(places), places)
        hidden = hidden * (1 - terminated[:, None])
        return (places, hidden), over

    return jax.lax.scan(walk, (places, hidden), truncated)


@right("LOX221", _WALKER, f32(8, 3), f32(8, 10), flags(50, 8))
def walkers_that_begin_anew_in_all(weights, places, hidden, truncated):
    def walk(carry, cut):
        places, hidden, falls = carry
        places, hidden, terminated = _walked(places, hidden, weights)
        over = terminated | cut
        places = jnp.where(over[:, None], jnp.zeros_like(places), places)
        hidden = hidden * (1 - over[:, None])
        return (places, hidden, jnp.where(terminated, 0, falls + 1)), (over, falls)

    return jax.lax.scan(walk, (places, hidden, jnp.zeros(8, int)), truncated)


# Returns of several steps, and of the last one.


@wrong("LOX224", f32(10, 32), f32(32, 6), f32(6))
def a_value_after_ten_steps_that_is_discounted_once(rewards, last, critic):
    weights = 0.95 ** jnp.arange(10)
    return (weights[:, None] * rewards).sum(0) + 0.95 * (last @ critic)


@right("LOX224", f32(10, 32), f32(32, 6), f32(6))
def a_value_after_ten_steps_that_is_discounted_ten_times(rewards, last, critic):
    weights = 0.95 ** jnp.arange(10)
    return (weights[:, None] * rewards).sum(0) + 0.95 * weights[-1] * (last @ critic)


@right("LOX224", f32(10, 32), f32(32))
def a_reward_before_the_discounted_ones(rewards, first):
    weights = 0.95 ** jnp.arange(10)
    return first + 0.95 * (weights[:, None] * rewards).sum(0)


@wrong("LOX220", f32(60, 4), flags(60, 4), f32(60, 4), f32(4))
def costs_that_are_left_out_at_the_end(rewards, dones, baselines, last):
    def back(total, at):
        reward, done, baseline = at
        total = jnp.where(done, 0.1 * baseline, reward + 0.9 * total)
        return total, total

    return jax.lax.scan(back, last, (rewards, dones, baselines), reverse=True)[1]


@right("LOX220", f32(60, 4), flags(60, 4), f32(60, 4), f32(4))
def costs_that_count_at_the_end(rewards, dones, baselines, last):
    def back(total, at):
        reward, done, baseline = at
        total = jnp.where(done, reward, reward + 0.9 * total)
        return total, total - baseline

    return jax.lax.scan(back, last, (rewards, dones, baselines), reverse=True)[1]


# A wrapper that keeps the return of the last episode that ended.


def _balanced(pole, force):
    """A step of a pole that gives one for each step in which it had not fallen before."""
    angle, speed, time = pole
    prev_terminal = (jnp.abs(angle) > 0.2) | (time >= 200)
    speed = speed + 0.05 * (angle + force)
    angle, time = angle + 0.05 * speed, time + 1
    done = (jnp.abs(angle) > 0.2) | (time >= 200)
    pole = jax.tree.map(lambda new, old: jnp.where(done, new, old), (0.01, 0.0, 0), (angle, speed, time))
    return pole, 1.0 - prev_terminal, done


@right("LOX221", f32(40))
def returns_of_episodes_that_a_wrapper_keeps(forces):
    def step(carry, force):
        pole, episode_return, returned = carry
        pole, reward, done = _balanced(pole, force)
        total = episode_return + reward
        returned = returned * (1 - done) + total * done
        return (pole, total * (1 - done), returned), returned

    return jax.lax.scan(step, ((0.01, 0.0, 0), jnp.zeros(()), jnp.zeros(())), forces)[1]


@right("LOX221", f32(40, 8))
def scores_of_games_that_a_wrapper_keeps(moves):
    def step(carry, move):
        place, score, finished = carry
        prev_done = place > 10
        place = place + jnp.abs(move)
        done = place > 10
        gained = jnp.where(prev_done, 0.0, 2.0)
        finished = jnp.where(done, score + gained, finished)
        return (jnp.where(done, 0.0, place), jnp.where(done, 0.0, score + gained), finished), (finished, done)

    return jax.lax.scan(step, (jnp.zeros(8), jnp.zeros(8), jnp.zeros(8)), moves)[1]


@wrong("LOX221", f32(40))
def returns_that_a_wrapper_keeps_after_their_reset(forces):
    def step(carry, force):
        pole, episode_return, returned = carry
        pole, reward, done = _balanced(pole, force)
        episode_return = (episode_return + reward) * (1 - done)
        returned = jnp.where(done, episode_return, returned)
        return (pole, episode_return, returned), returned

    return jax.lax.scan(step, ((0.01, 0.0, 0), jnp.zeros(()), jnp.zeros(())), forces)[1]


@wrong("LOX221", f32(40, 8), flags(40, 8))
def returns_without_the_last_reward(rewards, dones):
    def step(carry, now):
        running, last = carry
        reward, done = now
        last = jnp.where(done, running, last)
        running = jnp.where(done, 0.0, running + reward)
        return (running, last), last

    return jax.lax.scan(step, (jnp.zeros(8), jnp.zeros(8)), (rewards, dones))[1]


# What a rollout puts out, and what is computed of it later.


def _remembered(params, h, obs, reset):
    h = jnp.where(reset[:, None], 0.0, h)
    return jnp.tanh(h @ params["u"] + obs @ params["w"])


def _walks(params, key, obs):
    def step(carry, key):
        h, obs, first = carry
        h = _remembered(params, h, obs, first)
        moved = obs + jnp.tanh(h @ params["out"]) + 0.1 * jax.random.normal(key, obs.shape)
        done = jnp.abs(moved).max(-1) > 3.0
        return (h, jnp.where(done[:, None], 0.0, moved), done), (obs, first, done, -jnp.square(moved).sum(-1))

    start = jnp.zeros((obs.shape[0], 12)), obs, jnp.ones(obs.shape[0], bool)
    return jax.lax.scan(step, start, jax.random.split(key, 30))[1]


_WALKER = {"u": f32(12, 12), "w": f32(4, 12), "out": f32(12, 4), "value": f32(12)}


@wrong("LOX221", _WALKER, jax.random.key(0), f32(8, 4))
def values_with_a_memory_that_is_lost_before_the_last_step(params, key, start):
    walked, _, dones, rewards = _walks(params, key, start)

    def loss(params):
        def value(h, now):
            obs, done = now
            h = _remembered(params, h, obs, done)
            return h, h @ params["value"]

        _, values = jax.lax.scan(value, jnp.zeros((8, 12)), (walked, dones))
        return jnp.square(values - rewards).mean()

    return jax.value_and_grad(loss)(params)


@right("LOX221", _WALKER, jax.random.key(0), f32(8, 4))
def values_with_a_memory_that_is_reset_at_the_first_step(params, key, start):
    walked, firsts, _, rewards = _walks(params, key, start)

    def loss(params):
        def value(h, now):
            obs, first = now
            h = _remembered(params, h, obs, first)
            return h, h @ params["value"]

        _, values = jax.lax.scan(value, jnp.zeros((8, 12)), (walked, firsts))
        return jnp.square(values - rewards).mean()

    return jax.value_and_grad(loss)(params)


@right("LOX221", _WALKER, jax.random.key(0), f32(8, 4))
def values_with_a_memory_that_is_reset_after_the_last_step(params, key, start):
    walked, _, dones, rewards = _walks(params, key, start)

    def value(h, now):
        obs, done = now
        h = jnp.tanh(h @ params["u"] + obs @ params["w"])
        return jnp.where(done[:, None], 0.0, h), h @ params["value"]

    _, values = jax.lax.scan(value, jnp.zeros((8, 12)), (walked, dones))
    return jnp.square(values - rewards).mean()


def _drives(policy, key, cars, limit):
    def step(carry, key):
        cars, age = carry
        moved = cars + jnp.tanh(cars @ policy)[:, None] + 0.1 * jax.random.normal(key, cars.shape)
        age, crashed = age + 1, moved[:, 0] > 2.0
        over = crashed | (age > limit)
        following = jnp.where(over[:, None], 0.0, moved)
        return (following, jnp.where(over, 0, age)), (cars, moved, following, crashed, over, moved[:, 1])

    return jax.lax.scan(step, (cars, jnp.zeros(cars.shape[0], jnp.int32)), jax.random.split(key, 40))[1]


@wrong("LOX220", f32(3), f32(3), jax.random.key(0), f32(8, 3))
def targets_of_a_drive_that_begins_after_a_time_limit(value, policy, key, cars):
    was, _, following, crashed, _, rewards = _drives(policy, key, cars, 10)
    targets = rewards + 0.97 * (1.0 - crashed) * (following @ value)
    return jnp.square(was @ value - jax.lax.stop_gradient(targets)).mean()


@right("LOX220", f32(3), f32(3), jax.random.key(0), f32(8, 3))
def targets_of_where_a_drive_is_cut_short(value, policy, key, cars):
    was, moved, _, crashed, _, rewards = _drives(policy, key, cars, 10)
    targets = rewards + 0.97 * (1.0 - crashed) * (moved @ value)
    return jnp.square(was @ value - jax.lax.stop_gradient(targets)).mean()


@right("LOX220", f32(3), f32(3), jax.random.key(0), f32(8, 3))
def targets_that_end_at_a_time_limit(value, policy, key, cars):
    was, _, following, _, over, rewards = _drives(policy, key, cars, 10)
    targets = rewards + 0.97 * (1.0 - over) * (following @ value)
    return jnp.square(was @ value - jax.lax.stop_gradient(targets)).mean()


@right("LOX220", f32(3), f32(3), jax.random.key(0), f32(8, 3))
def targets_that_take_the_state_before_a_time_limit(value, policy, key, cars):
    was, moved, following, crashed, over, rewards = _drives(policy, key, cars, 10)
    ahead = jnp.where(over, moved @ value, following @ value)
    targets = rewards + 0.97 * (1.0 - crashed) * ahead
    return jnp.square(was @ value - jax.lax.stop_gradient(targets)).mean()


@wrong("LOX220", f32(64, 8), f32(64, 8), f32(64, 8))
def returns_of_three_steps_whatever_ends(rewards, dones, values):
    total = sum(0.97**k * rewards[k : 61 + k] for k in range(3))
    return total + 0.97**3 * (1.0 - dones[2:63]) * values[3:]


@right("LOX220", f32(64, 8), f32(64, 8), f32(64, 8))
def returns_of_three_steps_until_one_ends(rewards, dones, values):
    going, total = jnp.ones_like(rewards[:61]), jnp.zeros_like(rewards[:61])
    for k in range(3):
        total += 0.97**k * going * rewards[k : 61 + k]
        going *= 1.0 - dones[k : 61 + k]
    return total + 0.97**3 * going * values[3:]


@right("LOX220", f32(64, 8), f32(64, 8), f32(64, 8))
def returns_of_one_step(rewards, dones, values):
    return rewards[:-1] + 0.97 * (1.0 - dones[:-1]) * values[1:]


# Recurrent networks beside returns.


def _gains(rewards, dones):
    def back(ahead, now):
        reward, done = now
        ahead = reward + 0.98 * (1.0 - done) * ahead
        return ahead, ahead

    return jax.lax.scan(back, jnp.zeros(8), (rewards, dones), reverse=True)[1]


_RECURRENT = {"u": f32(12, 12), "w": f32(4, 12), "value": f32(12)}


@wrong("LOX221", _RECURRENT, f32(30, 8, 4), f32(30, 8), f32(30, 8), differentiate="params")
def values_by_a_memory_of_all_episodes(params, obs, rewards, dones):
    def step(h, x):
        h = jnp.tanh(h @ params["u"] + x @ params["w"])
        return h, h @ params["value"]

    values = jax.lax.scan(step, jnp.zeros((8, 12)), obs)[1]
    return jnp.square(values - _gains(rewards, dones)).mean()


@right("LOX221", _RECURRENT, f32(30, 8, 4), f32(30, 8), f32(30, 8), differentiate="params")
def values_by_a_memory_of_each_episode(params, obs, rewards, dones):
    def step(h, now):
        x, done = now
        h = jnp.tanh(h @ params["u"] + x @ params["w"])
        return h * (1.0 - done)[:, None], h @ params["value"]

    values = jax.lax.scan(step, jnp.zeros((8, 12)), (obs, dones))[1]
    return jnp.square(values - _gains(rewards, dones)).mean()


@right("LOX221", _RECURRENT, f32(30, 8, 4), f32(30, 8), f32(30, 8), differentiate="params")
def values_by_a_memory_that_reads_where_episodes_end(params, obs, rewards, dones):
    def step(h, now):
        x, done = now
        h = jnp.tanh(h @ params["u"] + x @ params["w"] + done[:, None])
        return h, h @ params["value"]

    values = jax.lax.scan(step, jnp.zeros((8, 12)), (obs, dones))[1]
    return jnp.square(values - _gains(rewards, dones)).mean()


@right("LOX221", f32(8))
def scores_of_games_that_are_not_begun_again(place):
    def step(carry, _):
        place, t, alive, score = carry
        place, t = 0.9 * place + 0.1, t + 1
        truncated = t >= 20
        return (place, t, alive * ~truncated, score + alive * place), None

    start = place, jnp.zeros(8, jnp.int32), jnp.ones(8), jnp.zeros(8)
    return jax.lax.scan(step, start, None, 50)[0][3]
