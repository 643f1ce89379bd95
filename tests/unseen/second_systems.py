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
        axes={
            "steps/obs": ("time", "envs", None),
            "steps/reward": ("time", "envs"),
            "steps/terminated": ("time", "envs"),
            "steps/truncated": ("time", "envs"),
            "steps/final_obs": ("time", "envs", None),
            "last_obs": ("envs", None),
        },
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
        axes={
            "boards/stones": ("envs", None),
            "boards/turn": ("envs",),
            "boards/ended": ("envs",),
            "boards/reward": ("envs",),
        },
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


# Momenta of a Hamiltonian.


def hamiltonian(rng, position, variances):
    energy = lambda x: 0.5 * jnp.sum(x**2 / variances)
    kinetic = lambda p: 0.5 * jnp.sum(variances * p**2)

    def move(x, k):
        momentum_rng, accept_rng = jax.random.split(k)
        p0 = jnp.sqrt(variances) * jax.random.normal(momentum_rng, x.shape)

        def leap(_, state):
            x, p = state
            p = p - 0.05 * jax.grad(energy)(x)
            x = x + 0.1 * variances * p
            return x, p - 0.05 * jax.grad(energy)(x)

        y, p = jax.lax.fori_loop(0, 10, leap, (x, p0))
        change = energy(x) + kinetic(p0) - energy(y) - kinetic(p)
        accept = jnp.log(jax.random.uniform(accept_rng)) < change
        x = jnp.where(accept, y, x)
        return x, (x, accept)

    return jax.lax.scan(move, position, jax.random.split(rng, 40))


def hamiltonian_b(rng, position, variances):
    energy = lambda x: 0.5 * jnp.sum(x**2 / variances)
    kinetic = lambda p: 0.5 * jnp.sum(variances * p**2)

    def move(x, k):
        momentum_rng, accept_rng = jax.random.split(k)
        p0 = jax.random.normal(momentum_rng, x.shape) / jnp.sqrt(variances)

        def leap(_, state):
            x, p = state
            p = p - 0.05 * jax.grad(energy)(x)
            x = x + 0.1 * variances * p
            return x, p - 0.05 * jax.grad(energy)(x)

        y, p = jax.lax.fori_loop(0, 10, leap, (x, p0))
        change = energy(x) + kinetic(p0) - energy(y) - kinetic(p)
        accept = jnp.log(jax.random.uniform(accept_rng)) < change
        x = jnp.where(accept, y, x)
        return x, (x, accept)

    return jax.lax.scan(move, position, jax.random.split(rng, 40))


def hamiltonian_c(rng, position, variances):
    energy = lambda x: 0.5 * jnp.sum(x**2 / variances)
    kinetic = lambda v: 0.5 * jnp.sum(v**2 / variances)

    def move(x, k):
        velocity_rng, accept_rng = jax.random.split(k)
        v0 = jnp.sqrt(variances) * jax.random.normal(velocity_rng, x.shape)

        def leap(_, state):
            x, v = state
            v = v - 0.05 * variances * jax.grad(energy)(x)
            x = x + 0.1 * v
            return x, v - 0.05 * variances * jax.grad(energy)(x)

        y, v = jax.lax.fori_loop(0, 10, leap, (x, v0))
        change = energy(x) + kinetic(v0) - energy(y) - kinetic(v)
        accept = jnp.log(jax.random.uniform(accept_rng)) < change
        x = jnp.where(accept, y, x)
        return x, (x, accept)

    return jax.lax.scan(move, position, jax.random.split(rng, 40))


CASES.append(
    Case(
        "momenta",
        "scale inverted",
        hamiltonian,
        (hamiltonian_b, hamiltonian_c),
        lambda: (key(), f32(5), f32(5)),
        where="p0 = jnp.sqrt(variances) * jax.random.normal(momentum_rng, x.shape)",
        axes={"position": ("dims",), "variances": ("dims",)},
        source="numpyro#170 and samplers at hand: momenta by the inverse of the mass matrix",
    )
)


# A particle filter.


def filtered(rng, particles, log_weights, observations):
    def step(carry, inputs):
        particles, log_weights = carry
        k, observed = inputs
        pick_rng, move_rng = jax.random.split(k)
        ancestors = jax.random.categorical(pick_rng, log_weights, shape=log_weights.shape)
        particles = 0.9 * particles[ancestors] + 0.3 * jax.random.normal(move_rng, particles.shape)
        fit = -0.5 * jnp.sum((observed - particles) ** 2, axis=-1) / 0.25
        log_weights = log_weights + fit
        evidence = jax.nn.logsumexp(log_weights) - jnp.log(log_weights.shape[0])
        log_weights = log_weights - jax.nn.logsumexp(log_weights)
        estimate = jnp.exp(log_weights) @ particles
        return (particles, log_weights), (estimate, evidence)

    keys = jax.random.split(rng, observations.shape[0])
    return jax.lax.scan(step, (particles, log_weights), (keys, observations))


def filtered_b(rng, particles, log_weights, observations):
    def step(carry, inputs):
        particles, log_weights = carry
        k, observed = inputs
        pick_rng, move_rng = jax.random.split(k)
        ancestors = jax.random.categorical(pick_rng, log_weights, shape=log_weights.shape)
        particles = 0.9 * particles[ancestors] + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = -0.5 * jnp.sum((observed - particles) ** 2, axis=-1) / 0.25
        evidence = jax.nn.logsumexp(log_weights) - jnp.log(log_weights.shape[0])
        log_weights = log_weights - jax.nn.logsumexp(log_weights)
        estimate = jnp.exp(log_weights) @ particles
        return (particles, log_weights), (estimate, evidence)

    keys = jax.random.split(rng, observations.shape[0])
    return jax.lax.scan(step, (particles, log_weights), (keys, observations))


def filtered_c(rng, particles, log_weights, observations):
    def step(carry, inputs):
        particles, log_weights = carry
        k, observed = inputs
        pick_rng, move_rng = jax.random.split(k)
        few = jnp.exp(-jax.nn.logsumexp(2.0 * log_weights)) < 0.5 * log_weights.shape[0]
        ancestors = jax.random.categorical(pick_rng, log_weights, shape=log_weights.shape)
        particles = jnp.where(few, particles[ancestors], particles)
        log_weights = jnp.where(few, -jnp.log(log_weights.shape[0]), log_weights)
        particles = 0.9 * particles + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = log_weights - 0.5 * jnp.sum((observed - particles) ** 2, axis=-1) / 0.25
        evidence = jax.nn.logsumexp(log_weights)
        log_weights = log_weights - evidence
        return (particles, log_weights), (jnp.exp(log_weights) @ particles, evidence)

    keys = jax.random.split(rng, observations.shape[0])
    start = (particles, log_weights - jax.nn.logsumexp(log_weights))
    return jax.lax.scan(step, start, (keys, observations))


CASES.append(
    Case(
        "particle filter",
        "state out of date",
        filtered,
        (filtered_b, filtered_c),
        lambda: (key(), f32(60, 2), f32(60), f32(25, 2)),
        where="log_weights = log_weights + fit",
        axes={"particles": ("particles", None), "log_weights": ("particles",), "observations": ("time", None)},
        source="particle filters (pyro#2138 and others): weights are kept after resampling",
    )
)


# Pooling of graphs by attention.

POOL = {"w": f32(6, 12), "score": f32(12), "out": f32(12)}


def pooled_loss(params, nodes, graph_of, targets):
    graphs = targets.shape[0]
    h = jax.nn.elu(nodes @ params["w"])
    scores = jax.nn.leaky_relu(h @ params["score"])
    attention = jax.nn.softmax(scores)
    pooled = jax.ops.segment_sum(attention[:, None] * h, graph_of, graphs)
    return jnp.mean(optax.huber_loss(pooled @ params["out"], targets))


def pooled_loss_b(params, nodes, graph_of, targets):
    graphs = targets.shape[0]
    h = jax.nn.elu(nodes @ params["w"])
    scores = jax.nn.leaky_relu(h @ params["score"])
    top = jax.ops.segment_max(scores, graph_of, graphs)
    weights = jnp.exp(scores - jax.lax.stop_gradient(top)[graph_of])
    attention = weights / jax.ops.segment_sum(weights, graph_of, graphs)[graph_of]
    pooled = jax.ops.segment_sum(attention[:, None] * h, graph_of, graphs)
    return jnp.mean(optax.huber_loss(pooled @ params["out"], targets))


def pooled_loss_c(params, nodes, graph_of, targets):
    graphs = targets.shape[0]
    h = jax.nn.elu(nodes @ params["w"])
    mixture = jax.nn.softmax(params["score"])
    sizes = jax.ops.segment_sum(jnp.ones(nodes.shape[0]), graph_of, graphs)
    pooled = jax.ops.segment_sum(h * mixture, graph_of, graphs) / jnp.maximum(sizes, 1.0)[:, None]
    return jnp.mean(optax.huber_loss(pooled @ params["out"], targets))


CASES.append(
    Case(
        "pooling of graphs",
        "softmax axis",
        pooled_loss,
        (pooled_loss_b, pooled_loss_c),
        (POOL, f32(40, 6), i32(40), f32(4)),
        where="attention = jax.nn.softmax(scores)\n",
        axes={"nodes": ("nodes", None), "graph_of": ("nodes",), "targets": ("graphs",)},
        differentiate="params",
        source="spektral#302 and ports to jraph: a softmax over the nodes of all graphs",
    )
)


# Energies of a padded batch of graphs.


def molecules_loss(params, atoms, sizes, energies):
    spare = atoms.shape[0] - sizes.sum()
    all_sizes = jnp.concatenate([sizes, spare[None]])
    graphs = all_sizes.shape[0]
    graph_of = jnp.repeat(jnp.arange(graphs), all_sizes, total_repeat_length=atoms.shape[0])
    per_atom = jnp.tanh(atoms @ params["w"]) @ params["v"]
    predicted = jax.ops.segment_sum(per_atom, graph_of, graphs)
    predicted = jnp.delete(predicted, 1)
    return jnp.mean(((predicted - energies) / jnp.maximum(sizes, 1)) ** 2)


def molecules_loss_b(params, atoms, sizes, energies):
    spare = atoms.shape[0] - sizes.sum()
    all_sizes = jnp.concatenate([sizes, spare[None]])
    graphs = all_sizes.shape[0]
    graph_of = jnp.repeat(jnp.arange(graphs), all_sizes, total_repeat_length=atoms.shape[0])
    per_atom = jnp.tanh(atoms @ params["w"]) @ params["v"]
    predicted = jax.ops.segment_sum(per_atom, graph_of, graphs)
    predicted = jnp.delete(predicted, -1)
    return jnp.mean(((predicted - energies) / jnp.maximum(sizes, 1)) ** 2)


def molecules_loss_c(params, atoms, sizes, energies):
    spare = atoms.shape[0] - sizes.sum()
    all_sizes = jnp.concatenate([spare[None], sizes])
    graphs = all_sizes.shape[0]
    graph_of = jnp.repeat(jnp.arange(graphs), all_sizes, total_repeat_length=atoms.shape[0])
    per_atom = jnp.tanh(atoms @ params["w"]) @ params["v"]
    predicted = jax.ops.segment_sum(per_atom, graph_of, graphs)[1:]
    return jnp.mean(((predicted - energies) / jnp.maximum(sizes, 1)) ** 2)


CASES.append(
    Case(
        "padded molecules",
        "off by one",
        molecules_loss,
        (molecules_loss_b, molecules_loss_c),
        ({"w": f32(5, 12), "v": f32(12)}, f32(40, 5), i32(6), f32(6)),
        where="predicted = jnp.delete(predicted, 1)",
        axes={"atoms": ("atoms", None), "sizes": ("graphs",), "energies": ("graphs",)},
        differentiate="params",
        source="mlip#34: the graph of the padding is the last one",
    )
)


# Forces between neighbors.


def neighbors_of(positions, cutoff, capacity):
    count = positions.shape[0]
    gaps = jnp.sum((positions[:, None] - positions[None]) ** 2, axis=-1)
    close = (gaps < cutoff**2) & ~jnp.eye(count, dtype=bool)
    order = jnp.where(close, jnp.arange(count)[None, :], count)
    return jnp.sort(order, axis=1)[:, :capacity]


def soft_energy(positions, neighbors):
    apart = positions[:, None, :] - positions[neighbors]
    squared = jnp.sum(apart**2, axis=-1) + 1e-3
    return 0.5 * jnp.sum(jnp.exp(-squared))


def soft_energy_b(positions, neighbors):
    real = neighbors < positions.shape[0]
    delta = positions[:, None, :] - positions[neighbors]
    squared = jnp.sum(delta**2, axis=-1) + 1e-3
    return 0.5 * jnp.sum(jnp.where(real, jnp.exp(-squared), 0.0))


def soft_energy_c(positions, neighbors):
    away = jnp.full((1, positions.shape[1]), 1e4)
    padded = jnp.concatenate([positions, away])
    delta = positions[:, None, :] - padded[neighbors]
    squared = jnp.sum(delta**2, axis=-1) + 1e-3
    return 0.5 * jnp.sum(jnp.exp(-squared))


def relaxed(energy):
    def run(positions):
        def outer(x, _):
            neighbors = neighbors_of(x, 0.5, 10)

            def inner(x, _):
                value, slope = jax.value_and_grad(energy)(x, neighbors)
                return x - 0.01 * slope, value

            return jax.lax.scan(inner, x, None, length=5)

        return jax.lax.scan(outer, positions, None, length=4)

    return run


CASES.append(
    Case(
        "neighbors",
        "index out of range",
        relaxed(soft_energy),
        (relaxed(soft_energy_b), relaxed(soft_energy_c)),
        (f32(20, 3),),
        where="apart = positions[:, None, :] - positions[neighbors]",
        axes={"positions": ("particles", None)},
        source="jax-md#171: lists are padded by the number of particles, which clamps to the last one",
    )
)


# Metrics of an evaluation.


class Average(NamedTuple):
    total: jax.Array
    count: jax.Array


def add_values(average, values, mask):
    total = average.total + jnp.sum(values * mask)
    return Average(total, average.count + jnp.sum(mask))


def add_values_b(average, values, mask):
    mask = jnp.broadcast_to(mask, values.shape)
    return Average(average.total + jnp.sum(values * mask), average.count + jnp.sum(mask))


def add_values_c(average, values, mask):
    sums = jnp.sum(values, axis=-1, keepdims=True) / values.shape[-1]
    return Average(average.total + jnp.sum(sums * mask), average.count + jnp.sum(mask))


def evaluated(add):
    def run(params, images, labels, real):
        def batch(average, inputs):
            x, y, r = inputs
            logits = jnp.einsum("bd,dhc->bhc", x, params["heads"])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return add(average, losses, r[:, None]), None

        start = Average(jnp.float32(0.0), jnp.float32(0.0))
        average, _ = jax.lax.scan(batch, start, (images, labels, real))
        return average.total / jnp.maximum(average.count, 1.0)

    return run


CASES.append(
    Case(
        "averages of heads",
        "mean of means",
        evaluated(add_values),
        (evaluated(add_values_b), evaluated(add_values_c)),
        ({"heads": f32(8, 3, 4)}, f32(5, 12, 8), i32(5, 12, 3), f32(5, 12)),
        where="return Average(total, average.count + jnp.sum(mask))",
        axes={
            "images": ("steps", "batch", None),
            "labels": ("steps", "batch", "heads"),
            "real": ("steps", "batch"),
        },
        source="flax#5588: the mask is broadcast in the sum and not in the count",
    )
)


# Documents in one row.

PACKED = {"embed": f32(24, 16), "q": f32(16, 16), "k": f32(16, 16), "v": f32(16, 16), "out": f32(16, 24)}


def packed_loss(params, tokens, documents):
    h = params["embed"][tokens]
    length = tokens.shape[1]
    scores = jnp.einsum("bqd,bkd->bqk", h @ params["q"], h @ params["k"]) / 4.0
    causal = jnp.tril(jnp.ones((length, length), bool))
    scores = jnp.where(causal[None], scores, -1e30)
    h = h + jax.nn.softmax(scores, axis=-1) @ (h @ params["v"])
    logits = h[:, :-1] @ params["out"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    inside = documents[:, 1:] == documents[:, :-1]
    return jnp.sum(losses * inside) / jnp.maximum(inside.sum(), 1)


def packed_loss_b(params, tokens, documents):
    h = params["embed"][tokens]
    length = tokens.shape[1]
    scores = jnp.einsum("bqd,bkd->bqk", h @ params["q"], h @ params["k"]) / 4.0
    causal = jnp.tril(jnp.ones((length, length), bool))
    together = documents[:, :, None] == documents[:, None, :]
    scores = jnp.where(causal[None] & together, scores, -1e30)
    h = h + jax.nn.softmax(scores, axis=-1) @ (h @ params["v"])
    logits = h[:, :-1] @ params["out"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    inside = documents[:, 1:] == documents[:, :-1]
    return jnp.sum(losses * inside) / jnp.maximum(inside.sum(), 1)


CASES.append(
    Case(
        "documents in one row",
        "attention",
        packed_loss,
        (packed_loss_b,),
        (PACKED, i32(4, 20), i32(4, 20)),
        where="scores = jnp.where(causal[None], scores, -1e30)",
        axes={"tokens": ("batch", "length"), "documents": ("batch", "length")},
        differentiate="params",
        source="levanter (marin#7087) and other packed training: attention crosses documents",
    )
)


# Pieces of trajectories from a ring.


class Ring(NamedTuple):
    obs: jax.Array
    reward: jax.Array
    done: jax.Array
    cursor: jax.Array


def pieces(rng, ring, count, length):
    capacity = ring.obs.shape[0]
    begins = jax.random.randint(rng, (count,), 0, capacity)
    index = (begins[:, None] + jnp.arange(length)) % capacity
    return ring.obs[index], ring.reward[index], ring.done[index]


def pieces_b(rng, ring, count, length):
    capacity = ring.obs.shape[0]
    ages = jax.random.randint(rng, (count,), 0, capacity - length + 1)
    starts = ring.cursor + ages
    index = (starts[:, None] + jnp.arange(length)) % capacity
    return ring.obs[index], ring.reward[index], ring.done[index]


def from_ring(draw):
    def learn(rng, params, ring, steps):
        def step(carry, inputs):
            params, ring = carry
            k, (obs, reward, done) = inputs
            at = ring.cursor % ring.obs.shape[0]
            ring = Ring(
                ring.obs.at[at].set(obs), ring.reward.at[at].set(reward), ring.done.at[at].set(done), ring.cursor + 1
            )
            obs, reward, done = draw(k, ring, 8, 5)

            def loss_fn(p):
                values = jnp.tanh(obs @ p["w"]) @ p["v"]
                back = lambda g, inputs: (inputs[0] + 0.97 * (1.0 - inputs[1]) * g,) * 2
                scan_in = (reward[:, :-1].T, done[:, :-1].T)
                _, targets = jax.lax.scan(back, jax.lax.stop_gradient(values[:, -1]), scan_in, reverse=True)
                return jnp.mean((values[:, :-1].T - targets) ** 2)

            loss, grads = jax.value_and_grad(loss_fn)(params)
            return (jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), ring), loss

        keys = jax.random.split(rng, steps.reward.shape[0])
        return jax.lax.scan(step, (params, ring), (keys, (steps.obs, steps.reward, steps.done)))

    return learn


CASES.append(
    Case(
        "pieces of a ring",
        "off by one",
        from_ring(pieces),
        (from_ring(pieces_b),),
        lambda: (
            key(),
            {"w": f32(4, 12), "v": f32(12)},
            Ring(f32(60, 4), f32(60), f32(60), i32()),
            Ring(f32(30, 4), f32(30), f32(30), i32()),
        ),
        where="begins = jax.random.randint(rng, (count,), 0, capacity)",
        source="flashbax#50: samples cross the place of writing, and join the newest and the oldest steps",
    )
)


# Pairs of images and texts on several devices.

PAIRS = {"image": f32(10, 8), "text": f32(12, 8), "scale": f32()}


def paired_step(params, images, texts):
    def shard(images, texts):
        def loss_fn(p):
            left = images @ p["image"]
            right = texts @ p["text"]
            left = left / (jnp.linalg.norm(left, axis=-1, keepdims=True) + 1e-6)
            right = right / (jnp.linalg.norm(right, axis=-1, keepdims=True) + 1e-6)
            everyone = jax.lax.all_gather(right, "devices", tiled=True)
            logits = jnp.exp(p["scale"]) * left @ everyone.T
            labels = jnp.arange(left.shape[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.lax.pmean(loss, "devices"), jax.lax.pmean(grads, "devices")

    loss, grads = jax.vmap(shard, axis_name="devices", out_axes=None)(images, texts)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def paired_step_b(params, images, texts):
    def shard(images, texts):
        def loss_fn(p):
            left = images @ p["image"]
            right = texts @ p["text"]
            left = left / (jnp.linalg.norm(left, axis=-1, keepdims=True) + 1e-6)
            right = right / (jnp.linalg.norm(right, axis=-1, keepdims=True) + 1e-6)
            everyone = jax.lax.all_gather(right, "devices", tiled=True)
            logits = jnp.exp(p["scale"]) * left @ everyone.T
            labels = jnp.arange(left.shape[0]) + left.shape[0] * jax.lax.axis_index("devices")
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.lax.pmean(loss, "devices"), jax.lax.pmean(grads, "devices")

    loss, grads = jax.vmap(shard, axis_name="devices", out_axes=None)(images, texts)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def paired_step_c(params, images, texts):
    def shard(images, texts):
        def loss_fn(p):
            left = images @ p["image"]
            right = texts @ p["text"]
            left = left / (jnp.linalg.norm(left, axis=-1, keepdims=True) + 1e-6)
            right = right / (jnp.linalg.norm(right, axis=-1, keepdims=True) + 1e-6)
            logits = jnp.exp(p["scale"]) * left @ right.T
            own = jnp.arange(left.shape[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, own).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.lax.pmean(loss, "devices"), jax.lax.pmean(grads, "devices")

    loss, grads = jax.vmap(shard, axis_name="devices", out_axes=None)(images, texts)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


CASES.append(
    Case(
        "pairs on devices",
        "replicas",
        paired_step,
        (paired_step_b, paired_step_c),
        (PAIRS, f32(4, 6, 10), f32(4, 6, 12)),
        where="labels = jnp.arange(left.shape[0])\n",
        axes={"images": ("replicas", "batch", None), "texts": ("replicas", "batch", None)},
        source="contrastive training on devices (ICML2024-OT-CLIP#5): labels of the first device on each",
    )
)


# Clipping of gradients that are sharded.


def sharded_update(params, momentum, x, y):
    def shard(block, velocity, columns):
        def loss_fn(b):
            partial = columns @ b
            prediction = jax.lax.psum(jax.lax.stop_gradient(partial), "model")
            prediction = prediction + partial - jax.lax.stop_gradient(partial)
            return jnp.mean((prediction - y) ** 2)

        loss, grad = jax.value_and_grad(loss_fn)(block)
        norm = jnp.sqrt(jnp.sum(grad**2))
        grad = grad * jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        velocity = 0.9 * velocity + grad
        return block - 0.1 * velocity, velocity, loss

    params, momentum, losses = jax.vmap(shard, axis_name="model")(params, momentum, x)
    return params, momentum, losses[0]


def sharded_update_b(params, momentum, x, y):
    def shard(block, velocity, columns):
        def loss_fn(b):
            partial = columns @ b
            prediction = jax.lax.psum(jax.lax.stop_gradient(partial), "model")
            prediction = prediction + partial - jax.lax.stop_gradient(partial)
            return jnp.mean((prediction - y) ** 2)

        loss, grad = jax.value_and_grad(loss_fn)(block)
        norm = jnp.sqrt(jax.lax.psum(jnp.sum(grad**2), "model"))
        grad = grad * jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        velocity = 0.9 * velocity + grad
        return block - 0.1 * velocity, velocity, loss

    params, momentum, losses = jax.vmap(shard, axis_name="model")(params, momentum, x)
    return params, momentum, losses[0]


def sharded_update_c(params, momentum, x, y):
    def shard(block, velocity, columns):
        def loss_fn(b):
            partial = columns @ b
            prediction = jax.lax.psum(jax.lax.stop_gradient(partial), "model")
            prediction = prediction + partial - jax.lax.stop_gradient(partial)
            return jnp.mean((prediction - y) ** 2)

        loss, grad = jax.value_and_grad(loss_fn)(block)
        grad = jnp.clip(grad, -0.1, 0.1)
        velocity = 0.9 * velocity + grad
        return block - 0.1 * velocity, velocity, loss

    params, momentum, losses = jax.vmap(shard, axis_name="model")(params, momentum, x)
    return params, momentum, losses[0]


CASES.append(
    Case(
        "clipping of shards",
        "replicas not averaged",
        sharded_update,
        (sharded_update_b, sharded_update_c),
        (f32(4, 6), f32(4, 6), f32(4, 20, 6), f32(20)),
        where="norm = jnp.sqrt(jnp.sum(grad**2))",
        axes={"params": ("shards", None), "x": ("shards", "batch", None), "y": ("batch",)},
        source="torchtitan#766 and updates in shard_map: the norm of a shard is not that of the gradient",
    )
)
