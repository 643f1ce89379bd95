"""Environments, samplers, graphs, data and training on several devices: mistakes of projects, and right programs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key

CASES = []


# Ghosts that walk on free cells.


def ghost_moves(rng, walls, ghosts, hero):
    steps = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
    targets = jnp.clip(ghosts[:, None, :] + steps, 0, walls.shape[0] - 1)
    blocked = walls[targets[..., 0], targets[..., 1]]
    distance = jnp.sum(jnp.abs(targets - hero), axis=-1).astype(jnp.float32)
    cost = distance + blocked * jnp.inf
    noise = 0.1 * jax.random.uniform(rng, cost.shape)
    choice = jnp.argmin(cost + noise, axis=-1)
    moved = jnp.take_along_axis(targets, choice[:, None, None], axis=1)[:, 0]
    stuck = jnp.isinf(cost.min(axis=-1))
    return jnp.where(stuck[:, None], ghosts, moved), cost.min(axis=-1)


def ghost_moves_b(rng, walls, ghosts, hero):
    steps = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
    targets = jnp.clip(ghosts[:, None, :] + steps, 0, walls.shape[0] - 1)
    blocked = walls[targets[..., 0], targets[..., 1]]
    distance = jnp.sum(jnp.abs(targets - hero), axis=-1).astype(jnp.float32)
    cost = jnp.where(blocked > 0, 1e6, distance)
    noise = 0.1 * jax.random.uniform(rng, cost.shape)
    choice = jnp.argmin(cost + noise, axis=-1)
    moved = jnp.take_along_axis(targets, choice[:, None, None], axis=1)[:, 0]
    stuck = cost.min(axis=-1) >= 1e6
    return jnp.where(stuck[:, None], ghosts, moved), cost.min(axis=-1)


def ghost_moves_c(rng, walls, ghosts, hero):
    steps = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
    targets = jnp.clip(ghosts[:, None, :] + steps, 0, walls.shape[0] - 1)
    blocked = walls[targets[..., 0], targets[..., 1]]
    distance = jnp.sum(jnp.abs(targets - hero), axis=-1).astype(jnp.float32)
    cost = distance + blocked * 1e6
    noise = 0.1 * jax.random.uniform(rng, cost.shape)
    choice = jnp.argmin(cost + noise, axis=-1)
    moved = jnp.take_along_axis(targets, choice[:, None, None], axis=1)[:, 0]
    stuck = cost.min(axis=-1) >= 1e6
    return jnp.where(stuck[:, None], ghosts, moved), jnp.minimum(cost.min(axis=-1), 1e6)


CASES.append(
    Case(
        "ghosts",
        "NaN from masks",
        ghost_moves,
        (ghost_moves_b, ghost_moves_c),
        lambda: (key(), f32(9, 9), i32(4, 2), i32(2)),
        where="cost = distance + blocked * jnp.inf",
        axes={"ghosts": ("ghosts", None)},
        source="jumanji#241: a mask of zeros times infinity",
    )
)


# Tiles in a row that slide and merge.


class Row(NamedTuple):
    cells: jax.Array
    legal: jax.Array
    score: jax.Array


def slide(cells, action):
    line = jnp.where(action == 0, cells, cells[::-1])
    packed = line[jnp.argsort(line == 0)]
    joined = (packed[:-1] == packed[1:]) & (packed[:-1] > 0)
    first = jnp.argmax(joined)
    gain = jnp.where(joined.any(), packed[first] + 1, 0)
    merged = jnp.where(jnp.arange(packed.shape[0]) == first, packed + 1, packed)
    merged = jnp.where(jnp.arange(packed.shape[0]) == first + 1, 0, merged)
    packed = jnp.where(joined.any(), merged, packed)
    packed = packed[jnp.argsort(packed == 0)]
    return jnp.where(action == 0, packed, packed[::-1]), gain


def legal_slides(cells):
    return jnp.stack([jnp.any(slide(cells, a)[0] != cells) for a in range(2)])


def new_tile(rng, cells):
    place = jnp.argmax(jax.random.uniform(rng, cells.shape) * (cells == 0))
    return jnp.where(cells.min() == 0, cells.at[place].set(1), cells)


def row_step(state, action, rng):
    cells, gain = slide(state.cells, action)
    legal = legal_slides(cells)
    cells = jnp.where(state.legal[action], new_tile(rng, cells), cells)
    return Row(cells, legal, state.score + gain), ~legal.any()


def row_step_b(state, action, rng):
    cells, gain = slide(state.cells, action)
    cells = jnp.where(state.legal[action], new_tile(rng, cells), cells)
    legal = legal_slides(cells)
    return Row(cells, legal, state.score + gain), ~legal.any()


def row_step_c(state, action, rng):
    cells, gain = slide(state.cells, action)
    changed = legal_slides(state.cells)[action]
    cells = jnp.where(changed, new_tile(rng, cells), cells)
    after = legal_slides(cells)
    return Row(cells, after, state.score + gain), ~after.any()


def slides(step):
    def play(rng, state, actions):
        def body(state, inputs):
            action, k = inputs
            return step(state, action, k)

        return jax.lax.scan(body, state, (actions % 2, jax.random.split(rng, actions.shape[0])))

    return play


CASES.append(
    Case(
        "tiles in a row",
        "state out of date",
        slides(row_step),
        (slides(row_step_b), slides(row_step_c)),
        lambda: (key(), Row(i32(5), flags(2), i32()), i32(20)),
        where="legal = legal_slides(cells)\n    cells = jnp.where(state.legal[action]",
        axes={"actions": ("time",)},
        source="jumanji#144: legal moves of the board before the new tile",
    )
)


# Advantages where environments are reset within a step.


class Transition(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_obs: jax.Array


VALUE = {"w": f32(4, 16), "v": f32(16)}


def value_of(params, obs):
    return jnp.tanh(obs @ params["w"]) @ params["v"]


def limited_advantages(params, steps, last_obs):
    values = value_of(params, steps.obs)
    next_values = jnp.concatenate([values[1:], value_of(params, last_obs)[None]])
    discounts = 0.99 * (1.0 - steps.terminated)
    deltas = steps.reward + discounts * next_values - values

    def back(carry, inputs):
        delta, over = inputs
        carry = delta + 0.99 * 0.95 * (1.0 - over) * carry
        return carry, carry

    over = jnp.maximum(steps.terminated, steps.truncated)
    _, advantages = jax.lax.scan(back, jnp.zeros_like(values[0]), (deltas, over), reverse=True)
    return advantages, advantages + values


def limited_advantages_b(params, steps, last_obs):
    values = value_of(params, steps.obs)
    following = jnp.concatenate([values[1:], value_of(params, last_obs)[None]])
    following = jnp.where(steps.truncated > 0, value_of(params, steps.final_obs), following)
    discounts = 0.99 * (1.0 - steps.terminated)
    deltas = steps.reward + discounts * following - values

    def back(carry, inputs):
        delta, over = inputs
        carry = delta + 0.99 * 0.95 * (1.0 - over) * carry
        return carry, carry

    over = jnp.maximum(steps.terminated, steps.truncated)
    _, advantages = jax.lax.scan(back, jnp.zeros_like(values[0]), (deltas, over), reverse=True)
    return advantages, advantages + values


def limited_advantages_c(params, steps, last_obs):
    values = value_of(params, steps.obs)
    following = value_of(params, steps.final_obs).at[-1].set(value_of(params, last_obs))
    over = jnp.maximum(steps.terminated, steps.truncated)
    deltas = steps.reward + 0.99 * (1.0 - steps.terminated) * following - values

    def back(carry, inputs):
        delta, keep = inputs
        carry = delta + 0.99 * 0.95 * keep * carry
        return carry, carry

    _, advantages = jax.lax.scan(back, jnp.zeros_like(values[0]), (deltas, 1.0 - over), reverse=True)
    return advantages, advantages + values


CASES.append(
    Case(
        "advantages at a time limit",
        "done cuts a part",
        limited_advantages,
        (limited_advantages_b, limited_advantages_c),
        (VALUE, Transition(f32(25, 6, 4), f32(25, 6), f32(25, 6), f32(25, 6), f32(25, 6, 4)), f32(6, 4)),
        where="deltas = steps.reward + discounts * next_values - values",
        axes={"steps": ("time", "envs"), "last_obs": ("envs", None)},
        source="Stoix#142: the value after a truncation is that of the next episode",
    )
)


# Plans by the cross entropy method.


def plan(rng, params, state, horizon=8, members=32, elites=6):
    def returns_of(actions):
        def step(s, a):
            s = jnp.tanh(s @ params["a"] + a @ params["b"])
            return s, -jnp.sum((s - params["goal"]) ** 2) - 0.01 * jnp.sum(a**2)

        return jax.lax.scan(step, state, actions)[1].sum()

    def improve(carry, k):
        mean, std = carry
        samples = mean + std * jax.random.normal(k, (members, *mean.shape))
        returns = jax.vmap(returns_of)(samples)
        chosen = samples[jnp.argsort(returns)[:elites]]
        return (chosen.mean(axis=0), chosen.std(axis=0) + 0.05), returns.max()

    start = (jnp.zeros((horizon, 2)), jnp.ones((horizon, 2)))
    (mean, _), best = jax.lax.scan(improve, start, jax.random.split(rng, 5))
    return mean[0], best


def plan_b(rng, params, state, horizon=8, members=32, elites=6):
    def returns_of(actions):
        def step(s, a):
            s = jnp.tanh(s @ params["a"] + a @ params["b"])
            return s, -jnp.sum((s - params["goal"]) ** 2) - 0.01 * jnp.sum(a**2)

        return jax.lax.scan(step, state, actions)[1].sum()

    def improve(carry, k):
        mean, std = carry
        samples = mean + std * jax.random.normal(k, (members, *mean.shape))
        returns = jax.vmap(returns_of)(samples)
        chosen = samples[jnp.argsort(-returns)[:elites]]
        return (chosen.mean(axis=0), chosen.std(axis=0) + 0.05), returns.max()

    start = (jnp.zeros((horizon, 2)), jnp.ones((horizon, 2)))
    (mean, _), best = jax.lax.scan(improve, start, jax.random.split(rng, 5))
    return mean[0], best


def plan_c(rng, params, state, horizon=8, members=32, elites=6):
    def cost_of(actions):
        def step(s, a):
            s = jnp.tanh(s @ params["a"] + a @ params["b"])
            return s, jnp.sum((s - params["goal"]) ** 2) + 0.01 * jnp.sum(a**2)

        return jax.lax.scan(step, state, actions)[1].sum()

    def improve(carry, k):
        mean, std = carry
        samples = mean + std * jax.random.normal(k, (members, *mean.shape))
        costs = jax.vmap(cost_of)(samples)
        chosen = samples[jnp.argsort(costs)[:elites]]
        return (chosen.mean(axis=0), chosen.std(axis=0) + 0.05), costs.min()

    start = (jnp.zeros((horizon, 2)), jnp.ones((horizon, 2)))
    (mean, _), best = jax.lax.scan(improve, start, jax.random.split(rng, 5))
    return mean[0], best


CASES.append(
    Case(
        "plans",
        "sign inverted",
        plan,
        (plan_b, plan_c),
        lambda: (key(), {"a": f32(3, 3), "b": f32(2, 3), "goal": f32(3)}, f32(3)),
        where="chosen = samples[jnp.argsort(returns)[:elites]]",
        source="evosax#64: a search that minimizes is told returns",
    )
)


# The best member of a strategy.


class Strategy(NamedTuple):
    mean: jax.Array
    best: jax.Array
    best_fitness: jax.Array


def centered_ranks(fitness):
    ranks = jnp.argsort(jnp.argsort(fitness))
    return ranks / (fitness.shape[0] - 1.0) - 0.5


def generation(state, k, data):
    noise = jax.random.normal(k, (16, state.mean.shape[0]))
    members = state.mean + 0.1 * noise
    fitness = jax.vmap(lambda m: jnp.mean((data[:, :-1] @ m - data[:, -1]) ** 2))(members)
    fitness = centered_ranks(fitness)
    mean = state.mean - 0.5 * noise.T @ fitness / 16.0
    champion = jnp.argmin(fitness)
    better = fitness[champion] < state.best_fitness
    best = jnp.where(better, members[champion], state.best)
    return Strategy(mean, best, jnp.minimum(fitness[champion], state.best_fitness)), fitness.mean()


def generation_b(state, k, data):
    noise = jax.random.normal(k, (16, state.mean.shape[0]))
    members = state.mean + 0.1 * noise
    fitness = jax.vmap(lambda m: jnp.mean((data[:, :-1] @ m - data[:, -1]) ** 2))(members)
    mean = state.mean - 0.5 * noise.T @ centered_ranks(fitness) / 16.0
    champion = jnp.argmin(fitness)
    better = fitness[champion] < state.best_fitness
    best = jnp.where(better, members[champion], state.best)
    return Strategy(mean, best, jnp.minimum(fitness[champion], state.best_fitness)), fitness.mean()


def evolve(step):
    def run(rng, mean, data):
        start = Strategy(mean, mean, jnp.float32(jnp.inf))
        state, means = jax.lax.scan(lambda s, k: step(s, k, data), start, jax.random.split(rng, 20))
        return state.best, state.best_fitness, means

    return run


CASES.append(
    Case(
        "best member",
        "carry not used",
        evolve(generation),
        (evolve(generation_b),),
        lambda: (key(), f32(5), f32(40, 6)),
        where="fitness = centered_ranks(fitness)\n",
        axes={"data": ("batch", None)},
        source="evosax#32: with centered ranks the best fitness never changes",
    )
)


# Self-play from a board that was reset.


class Board(NamedTuple):
    stones: jax.Array
    turn: jax.Array
    ended: jax.Array
    reward: jax.Array


def fresh_board():
    return Board(jnp.zeros(9), jnp.int32(0), jnp.bool_(False), jnp.float32(0.0))


def place(board, action):
    sign = jnp.where(board.turn == 0, 1.0, -1.0)
    taken = board.stones[action] != 0
    stones = jnp.where(board.ended, board.stones, board.stones.at[action].set(sign))
    lines = stones.reshape(3, 3)
    won = jnp.any(jnp.abs(lines.sum(axis=0)) == 3) | jnp.any(jnp.abs(lines.sum(axis=1)) == 3)
    ended = board.ended | won | taken | jnp.all(stones != 0)
    reward = jnp.where(board.ended, 0.0, jnp.where(taken, -1.0, jnp.where(won, 1.0, 0.0)))
    return Board(stones, 1 - board.turn, ended, reward)


def self_play(rng, params, boards):
    def turn(boards, k):
        logits = boards.stones @ params["pi"]
        action = jax.random.categorical(k, logits)
        after = jax.vmap(place)(boards, action)
        fresh = jax.vmap(lambda _: fresh_board())(action)
        over = after.ended
        stones = jnp.where(over[:, None], fresh.stones, after.stones)
        following = after._replace(stones=stones, turn=jnp.where(over, 0, after.turn))
        return following, (boards.stones, action, after.reward, over)

    return jax.lax.scan(turn, boards, jax.random.split(rng, 30))


def self_play_b(rng, params, boards):
    def turn(boards, k):
        logits = boards.stones @ params["pi"]
        action = jax.random.categorical(k, logits)
        after = jax.vmap(place)(boards, action)
        fresh = jax.vmap(lambda _: fresh_board())(action)
        over = after.ended
        pick = lambda a, b: jnp.where(over.reshape(over.shape + (1,) * (a.ndim - 1)), a, b)
        following = jax.tree.map(pick, fresh, after)
        return following, (boards.stones, action, after.reward, over)

    return jax.lax.scan(turn, boards, jax.random.split(rng, 30))


CASES.append(
    Case(
        "self-play",
        "done cuts a part",
        self_play,
        (self_play_b,),
        lambda: (key(), {"pi": f32(9, 9)}, Board(f32(6, 9), i32(6), flags(6), f32(6))),
        where="following = after._replace(stones=stones, turn=jnp.where(over, 0, after.turn))",
        axes={"boards": ("envs",)},
        source="pgx#1315: a board that was reset keeps the flag of the last episode",
    )
)


# Minibatches of an epoch.

ACTOR = {"w": f32(5, 16), "pi": f32(16, 4), "v": f32(16)}


def clipped_loss(params, obs, actions, old, gains, returns):
    h = jnp.tanh(obs @ params["w"])
    log_pi = jax.nn.log_softmax(h @ params["pi"])
    taken = jnp.take_along_axis(log_pi, actions[:, None], axis=-1)[:, 0]
    ratio = jnp.exp(taken - old)
    policy = jnp.minimum(ratio * gains, jnp.clip(ratio, 0.8, 1.2) * gains)
    return -policy.mean() + 0.5 * jnp.mean((h @ params["v"] - returns) ** 2)


def one_epoch(params, opt_state, optimizer, data, order):
    size = order.shape[0] // 4
    for start in range(0, order.shape[0], size):
        rows = order[start : start + size]
        batch = jax.tree.map(lambda x: x[rows], data)
        loss, grads = jax.value_and_grad(clipped_loss)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return params, opt_state, loss


def one_epoch_b(params, opt_state, optimizer, data, order):
    size = order.shape[0] // 4
    for start in range(0, order.shape[0], size):
        rows = order[start : start + size]
        batch = jax.tree.map(lambda x: x[rows], data)
        loss, grads = jax.value_and_grad(clipped_loss)(params, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    return params, opt_state, loss


def one_epoch_c(params, opt_state, optimizer, data, order):
    rows = order[: order.shape[0] // 4]
    batch = jax.tree.map(lambda x: x[rows], data)
    loss, grads = jax.value_and_grad(clipped_loss)(params, *batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def all_epochs(epoch):
    def update(rng, params, obs, actions, old, gains, returns):
        optimizer = optax.adam(3e-4)
        state, losses = optimizer.init(params), []
        data = (obs, actions, old, gains, returns)
        for k in jax.random.split(rng, 3):
            order = jax.random.permutation(k, obs.shape[0])
            params, state, loss = epoch(params, state, optimizer, data, order)
            losses.append(loss)
        return params, jnp.stack(losses)

    return update


CASES.append(
    Case(
        "minibatches",
        "result dropped",
        all_epochs(one_epoch),
        (all_epochs(one_epoch_b), all_epochs(one_epoch_c)),
        lambda: (key(), ACTOR, f32(64, 5), i32(64), f32(64), f32(64), f32(64)),
        where="        return params, opt_state, loss\n",
        axes={"obs": ("batch", None), **{a: ("batch",) for a in ("actions", "old", "gains", "returns")}},
        source="ppo_jax#1: an epoch returns after its first minibatch",
    )
)


# Particles that are tempered.


def tempered(rng, particles, target_ess=0.5):
    likelihood = lambda x: -jnp.sum(jnp.abs(x - 1.0) ** 1.5, axis=-1)

    def ess(delta, values):
        log_w = -delta * values
        log_w = log_w - jax.nn.logsumexp(log_w)
        return jnp.exp(-jax.nn.logsumexp(2.0 * log_w)) / values.shape[0]

    def stage(carry, k):
        particles, beta = carry
        values = likelihood(particles)

        def halve(_, interval):
            low, high = interval
            middle = 0.5 * (low + high)
            enough = ess(middle, values) > target_ess
            return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

        delta, _ = jax.lax.fori_loop(0, 20, halve, (0.0, 1.0 - beta))
        pick_rng, move_rng = jax.random.split(k)
        chosen = jax.random.categorical(pick_rng, delta * values, shape=values.shape)
        moved = particles[chosen] + 0.1 * jax.random.normal(move_rng, particles.shape)
        return (moved, beta + delta), beta + delta

    return jax.lax.scan(stage, (particles, jnp.float32(0.0)), jax.random.split(rng, 8))


def tempered_b(rng, particles, target_ess=0.5):
    likelihood = lambda x: -jnp.sum(jnp.abs(x - 1.0) ** 1.5, axis=-1)

    def ess(delta, values):
        log_w = delta * values
        log_w = log_w - jax.nn.logsumexp(log_w)
        return jnp.exp(-jax.nn.logsumexp(2.0 * log_w)) / values.shape[0]

    def stage(carry, k):
        particles, beta = carry
        values = likelihood(particles)

        def halve(_, interval):
            low, high = interval
            middle = 0.5 * (low + high)
            enough = ess(middle, values) > target_ess
            return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

        delta, _ = jax.lax.fori_loop(0, 20, halve, (0.0, 1.0 - beta))
        pick_rng, move_rng = jax.random.split(k)
        chosen = jax.random.categorical(pick_rng, delta * values, shape=values.shape)
        moved = particles[chosen] + 0.1 * jax.random.normal(move_rng, particles.shape)
        return (moved, beta + delta), beta + delta

    return jax.lax.scan(stage, (particles, jnp.float32(0.0)), jax.random.split(rng, 8))


CASES.append(
    Case(
        "tempering",
        "sign inverted",
        tempered,
        (tempered_b,),
        lambda: (key(), f32(50, 3)),
        where="log_w = -delta * values",
        axes={"particles": ("particles", None)},
        source="blackjax#914: the step is chosen by weights of the wrong sign",
    )
)


# Step size and length of trajectories.


class Tuning(NamedTuple):
    step_size: jax.Array
    length: jax.Array


def tuned(rng, position, tuning):
    energy = lambda x: 0.5 * jnp.sum(x**2 * jnp.arange(1, x.shape[0] + 1))

    def once(carry, k):
        x, tuning = carry
        start_rng, accept_rng = jax.random.split(k)
        p0 = jax.random.normal(start_rng, x.shape)
        eps = tuning.length / 8.0

        def leap(_, state):
            x, p = state
            p = p - 0.5 * eps * jax.grad(energy)(x)
            x = x + eps * p
            return x, p - 0.5 * eps * jax.grad(energy)(x)

        y, p = jax.lax.fori_loop(0, 8, leap, (x, p0))
        rate = jnp.exp(jnp.minimum(0.0, energy(x) - energy(y) + 0.5 * jnp.sum(p0**2) - 0.5 * jnp.sum(p**2)))
        step_size = tuning.step_size * jnp.exp(0.1 * (rate - 0.8))
        tuning = tuning._replace(step_size=step_size)
        tuning = tuning._replace(length=tuning.length * step_size / tuning.step_size)
        x = jnp.where(jax.random.uniform(accept_rng) < rate, y, x)
        return (x, tuning), (x, rate)

    return jax.lax.scan(once, (position, tuning), jax.random.split(rng, 30))


def tuned_b(rng, position, tuning):
    energy = lambda x: 0.5 * jnp.sum(x**2 * jnp.arange(1, x.shape[0] + 1))

    def once(carry, k):
        x, tuning = carry
        start_rng, accept_rng = jax.random.split(k)
        p0 = jax.random.normal(start_rng, x.shape)
        eps = tuning.length / 8.0

        def leap(_, state):
            x, p = state
            p = p - 0.5 * eps * jax.grad(energy)(x)
            x = x + eps * p
            return x, p - 0.5 * eps * jax.grad(energy)(x)

        y, p = jax.lax.fori_loop(0, 8, leap, (x, p0))
        rate = jnp.exp(jnp.minimum(0.0, energy(x) - energy(y) + 0.5 * jnp.sum(p0**2) - 0.5 * jnp.sum(p**2)))
        step_size = tuning.step_size * jnp.exp(0.1 * (rate - 0.8))
        tuning = Tuning(step_size, tuning.length * step_size / tuning.step_size)
        x = jnp.where(jax.random.uniform(accept_rng) < rate, y, x)
        return (x, tuning), (x, rate)

    return jax.lax.scan(once, (position, tuning), jax.random.split(rng, 30))


CASES.append(
    Case(
        "length of trajectories",
        "carry not used",
        tuned,
        (tuned_b,),
        lambda: (key(), f32(4), Tuning(f32(), f32())),
        where="tuning = tuning._replace(length=tuning.length * step_size / tuning.step_size)",
        source="blackjax#940: a ratio of the new step size to itself",
    )
)


# Dual averaging.


class Averaging(NamedTuple):
    log_step: jax.Array
    log_average: jax.Array
    error: jax.Array
    count: jax.Array


def averaged_step(state, acceptance, mu, target=0.8):
    count = state.count + 1
    share = 1.0 / (count + 10.0)
    error = (1.0 - share) * state.error + share * (target - acceptance)
    log_step = mu - jnp.sqrt(count) / 0.05 * error
    weight = count**-0.75
    log_average = weight * log_step + (1.0 - weight) * state.log_step
    return Averaging(log_step, log_average, error, count), jnp.exp(log_step)


def averaged_step_b(state, acceptance, mu, target=0.8):
    count = state.count + 1
    share = 1.0 / (count + 10.0)
    error = (1.0 - share) * state.error + share * (target - acceptance)
    log_step = mu - jnp.sqrt(count) / 0.05 * error
    weight = count**-0.75
    log_average = weight * log_step + (1.0 - weight) * state.log_average
    return Averaging(log_step, log_average, error, count), jnp.exp(log_step)


def warm_up(step):
    def run(rng, x, first):
        log_density = lambda x: -0.5 * jnp.sum(x**2)

        def body(carry, k):
            x, state = carry
            move_rng, accept_rng = jax.random.split(k)
            y = x + jnp.exp(state.log_step) * jax.random.normal(move_rng, x.shape)
            acceptance = jnp.exp(jnp.minimum(0.0, log_density(y) - log_density(x)))
            x = jnp.where(jax.random.uniform(accept_rng) < acceptance, y, x)
            state, size = step(state, acceptance, jnp.log(10.0 * first))
            return (x, state), size

        log_first = jnp.log(first)
        start = Averaging(log_first, log_first, jnp.float32(0.0), jnp.float32(0.0))
        (x, state), sizes = jax.lax.scan(body, (x, start), jax.random.split(rng, 40))
        return x, jnp.exp(state.log_average), sizes

    return run


CASES.append(
    Case(
        "dual averaging",
        "carry not used",
        warm_up(averaged_step),
        (warm_up(averaged_step_b),),
        lambda: (key(), f32(3), f32()),
        where="log_average = weight * log_step + (1.0 - weight) * state.log_step",
        source="walnutpie#27: the average of steps is made from the last two steps",
    )
)
