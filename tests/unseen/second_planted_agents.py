"""Mistakes planted into agents, their memories and their environments, with right programs that look like them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


# A recurrent agent on a line of lights.

RECURRENT = {"wx": f32(4, 12), "wh": f32(12, 12), "pi": f32(12, 3), "v": f32(12)}


class Step(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    done: jax.Array


def cell(params, h, x):
    h = jnp.tanh(x @ params["wx"] + h @ params["wh"])
    return h, h @ params["pi"], h @ params["v"]


def lights(state, action):
    position = jnp.clip(state + action - 1, 0, 9)
    done = position == 9
    return jnp.where(done, 0, position), jnp.where(done, 1.0, -0.01), done


def look(state):
    return jnp.stack([state / 9.0, state == 0, state > 4, jnp.cos(state)], axis=-1).astype(jnp.float32)


def recurrent_update(params, rng, states, hidden):
    def act(carry, k):
        state, h = carry
        obs = look(state)
        h, logits, _ = cell(params, h, obs)
        action = jax.random.categorical(k, logits)
        state, reward, done = lights(state, action)
        h = jnp.where(done[:, None], 0.0, h)
        return (state, h), Step(obs, action, reward, done)

    (states, last), steps = jax.lax.scan(act, (states, hidden), jax.random.split(rng, 20))

    def loss_fn(p):
        def replay(h, step):
            fresh = jnp.where(step.done[:, None], 0.0, h)
            h, logits, value = cell(p, fresh, step.obs)
            return h, (jax.nn.log_softmax(logits), value)

        _, (log_pi, values) = jax.lax.scan(replay, hidden, steps)
        taken = jnp.take_along_axis(log_pi, steps.action[..., None], axis=-1)[..., 0]
        gain = jax.lax.stop_gradient(steps.reward - values)
        return -jnp.mean(taken * gain) + jnp.mean((steps.reward - values) ** 2)

    grads = jax.grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), states, last


def recurrent_update_b(params, rng, states, hidden):
    def act(carry, k):
        state, h = carry
        obs = look(state)
        h, logits, _ = cell(params, h, obs)
        action = jax.random.categorical(k, logits)
        state, reward, done = lights(state, action)
        h = jnp.where(done[:, None], 0.0, h)
        return (state, h), Step(obs, action, reward, done)

    (states, last), steps = jax.lax.scan(act, (states, hidden), jax.random.split(rng, 20))

    def loss_fn(p):
        def replay(h, step):
            h, logits, value = cell(p, h, step.obs)
            h = jnp.where(step.done[:, None], 0.0, h)
            return h, (jax.nn.log_softmax(logits), value)

        _, (log_pi, values) = jax.lax.scan(replay, hidden, steps)
        taken = jnp.take_along_axis(log_pi, steps.action[..., None], axis=-1)[..., 0]
        gain = jax.lax.stop_gradient(steps.reward - values)
        return -jnp.mean(taken * gain) + jnp.mean((steps.reward - values) ** 2)

    grads = jax.grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), states, last


def recurrent_update_c(params, rng, states, hidden):
    def act(carry, k):
        state, h, starts = carry
        obs = look(state)
        h, logits, _ = cell(params, jnp.where(starts[:, None], 0.0, h), obs)
        action = jax.random.categorical(k, logits)
        state, reward, done = lights(state, action)
        return (state, h, done), Step(obs, action, reward, starts)

    begin = (states, hidden, jnp.zeros(states.shape, bool))
    (states, last, ended), steps = jax.lax.scan(act, begin, jax.random.split(rng, 20))

    def loss_fn(p):
        def replay(h, step):
            h = jnp.where(step.done[:, None], 0.0, h)
            h, logits, value = cell(p, h, step.obs)
            return h, (jax.nn.log_softmax(logits), value)

        _, (log_pi, values) = jax.lax.scan(replay, hidden, steps)
        taken = jnp.take_along_axis(log_pi, steps.action[..., None], axis=-1)[..., 0]
        gain = jax.lax.stop_gradient(steps.reward - values)
        return -jnp.mean(taken * gain) + jnp.mean((steps.reward - values) ** 2)

    grads = jax.grad(loss_fn)(params)
    last = jnp.where(ended[:, None], 0.0, last)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), states, last


plant(
    "lights",
    "done cuts a part",
    recurrent_update,
    (recurrent_update_b, recurrent_update_c),
    lambda: (RECURRENT, key(), i32(6), f32(6, 12)),
    where="fresh = jnp.where(step.done[:, None], 0.0, h)",
    axes={"states": ("envs",), "hidden": ("envs", None)},
)


# Time limits.

CRITIC = {"w1": f32(5, 24), "w2": f32(24)}


def worth(params, obs):
    return jnp.tanh(obs @ params["w1"]) @ params["w2"]


def limited_update(params, target_params, obs, rewards, next_obs, terminated, truncated):
    done = jnp.logical_or(terminated, truncated)
    targets = rewards + 0.99 * (1.0 - done) * worth(target_params, next_obs)

    def loss_fn(p):
        return optax.huber_loss(worth(p, obs), targets).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    params = jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads)
    return params, optax.incremental_update(params, target_params, 0.01), loss, done.mean()


def limited_update_b(params, target_params, obs, rewards, next_obs, terminated, truncated):
    done = jnp.logical_or(terminated, truncated)
    targets = rewards + 0.99 * (1.0 - terminated) * worth(target_params, next_obs)

    def loss_fn(p):
        return optax.huber_loss(worth(p, obs), targets).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    params = jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads)
    return params, optax.incremental_update(params, target_params, 0.01), loss, done.mean()


plant(
    "time limit",
    "done cuts a part",
    limited_update,
    (limited_update_b,),
    (CRITIC, CRITIC, f32(40, 5), f32(40), f32(40, 5), flags(40), flags(40)),
    where="targets = rewards + 0.99 * (1.0 - done) * worth(target_params, next_obs)",
    axes={
        "obs": ("batch", None),
        "rewards": ("batch",),
        "next_obs": ("batch", None),
        "terminated": ("batch",),
        "truncated": ("batch",),
    },
)


# Actions that are repeated.


class Cart(NamedTuple):
    x: jax.Array
    v: jax.Array
    done: jax.Array


def push(cart, force):
    v = cart.v + 0.05 * force
    x = cart.x + 0.05 * v
    out = jnp.abs(x) > 1.0
    moved = Cart(jnp.where(cart.done, cart.x, x), jnp.where(cart.done, cart.v, v), cart.done | out)
    return moved, 1.0 - x**2


def repeated(cart, force, repeats=4):
    def once(carry, _):
        cart, total = carry
        cart, reward = push(cart, force)
        return (cart, total + reward), None

    (cart, total), _ = jax.lax.scan(once, (cart, jnp.zeros_like(cart.x)), None, length=repeats)
    return cart, total


def repeated_b(cart, force, repeats=4):
    def once(carry, _):
        cart, total = carry
        over = cart.done
        cart, reward = push(cart, force)
        return (cart, total + jnp.where(over, 0.0, reward)), None

    (cart, total), _ = jax.lax.scan(once, (cart, jnp.zeros_like(cart.x)), None, length=repeats)
    return cart, total


def repeated_c(cart, force, repeats=4):
    def once(carry, _):
        cart, best = carry
        cart, reward = push(cart, force)
        return (cart, jnp.where(cart.done, best, jnp.maximum(best, reward))), None

    (cart, best), _ = jax.lax.scan(once, (cart, jnp.full_like(cart.x, -1.0)), None, length=repeats)
    return cart, best


def drive(repeat):
    def run(carts, forces):
        def step(carts, force):
            carts, total = repeat(carts, force)
            fresh = Cart(jnp.zeros_like(carts.x), jnp.zeros_like(carts.v), jnp.zeros_like(carts.done))
            over = carts.done
            carts = jax.tree.map(lambda a, b: jnp.where(over, a, b), fresh, carts)
            return carts, (total, over)

        return jax.lax.scan(step, carts, forces)

    return run


plant(
    "repeated pushes",
    "done cuts a part",
    drive(repeated),
    (drive(repeated_b), drive(repeated_c)),
    (Cart(f32(8), f32(8), flags(8)), f32(25, 8)),
    where="return (cart, total + reward), None",
    axes={"carts": ("envs",), "forces": ("time", "envs")},
)


# Mazes that change.


def new_maze(rng):
    goal_rng, wall_rng = jax.random.split(rng)
    return jax.random.randint(goal_rng, (2,), 0, 8), jax.random.bernoulli(wall_rng, 0.2, (8, 8))


def wander(rng, moves):
    rng, maze_rng = jax.random.split(rng)
    goal, walls = new_maze(maze_rng)

    def step(carry, move):
        place, goal, walls = carry
        target = jnp.clip(place + move, 0, 7)
        place = jnp.where(walls[target[0], target[1]], place, target)
        found = jnp.all(place == goal)
        next_goal, next_walls = new_maze(rng)
        goal = jnp.where(found, next_goal, goal)
        walls = jnp.where(found, next_walls, walls)
        return (jnp.where(found, 0, place), goal, walls), found

    start = (jnp.zeros(2, jnp.int32), goal, walls)
    (place, *_), found = jax.lax.scan(step, start, moves)
    return place, found.sum()


def wander_b(rng, moves):
    rng, maze_rng = jax.random.split(rng)
    goal, walls = new_maze(maze_rng)

    def step(carry, move):
        place, goal, walls, rng = carry
        target = jnp.clip(place + move, 0, 7)
        place = jnp.where(walls[target[0], target[1]], place, target)
        found = jnp.all(place == goal)
        rng, next_rng = jax.random.split(rng)
        next_goal, next_walls = new_maze(next_rng)
        goal = jnp.where(found, next_goal, goal)
        walls = jnp.where(found, next_walls, walls)
        return (jnp.where(found, 0, place), goal, walls, rng), found

    start = (jnp.zeros(2, jnp.int32), goal, walls, rng)
    (place, *_), found = jax.lax.scan(step, start, moves)
    return place, found.sum()


def wander_c(rng, moves):
    goal, walls = new_maze(rng)

    def step(place, move):
        target = jnp.clip(place + move, 0, 7)
        place = jnp.where(walls[target[0], target[1]], place, target)
        found = jnp.all(place == goal)
        return jnp.where(found, 0, place), found

    place, found = jax.lax.scan(step, jnp.zeros(2, jnp.int32), moves)
    return place, found.sum()


plant(
    "mazes",
    "key reuse",
    wander,
    (wander_b, wander_c),
    lambda: (key(), i32(60, 2)),
    where="next_goal, next_walls = new_maze(rng)",
    axes={"moves": ("time", None)},
)


# Scores of a population.


def population_scores(params, obs0, targets):
    def play(weights):
        def step(state, target):
            move = jnp.tanh(state @ weights)
            state = 0.9 * state + 0.3 * move
            gap = jnp.abs(state - target).max(axis=-1)
            return state, (1.0 - gap, (gap > 0.8).astype(jnp.float32))

        _, (rewards, dones) = jax.lax.scan(step, obs0, targets)
        alive = jnp.cumprod(1.0 - dones, axis=0)
        return jnp.sum(rewards * alive, axis=0).mean()

    return jax.vmap(play)(params)


def population_scores_b(params, obs0, targets):
    def play(weights):
        def step(state, target):
            move = jnp.tanh(state @ weights)
            state = 0.9 * state + 0.3 * move
            gap = jnp.abs(state - target).max(axis=-1)
            return state, (1.0 - gap, (gap > 0.8).astype(jnp.float32))

        _, (rewards, dones) = jax.lax.scan(step, obs0, targets)
        ended = jnp.cumsum(dones, axis=0) - dones
        alive = (ended == 0).astype(jnp.float32)
        return jnp.sum(rewards * alive, axis=0).mean()

    return jax.vmap(play)(params)


def population_scores_c(params, obs0, targets):
    def play(weights):
        def step(carry, target):
            state, alive = carry
            move = jnp.tanh(state @ weights)
            state = 0.9 * state + 0.3 * move
            gap = jnp.abs(state - target).max(axis=-1)
            done = (gap > 0.8).astype(jnp.float32)
            return (state, alive * (1.0 - done)), ((1.0 - gap) * alive, done)

        start = (obs0, jnp.ones(obs0.shape[0]))
        _, (rewards, dones) = jax.lax.scan(step, start, targets)
        return rewards.sum(axis=0).mean() + 0.1 * jnp.cumprod(1.0 - dones, axis=0).sum(axis=0).mean()

    return jax.vmap(play)(params)


plant(
    "scores of a population",
    "off by one",
    population_scores,
    (population_scores_b, population_scores_c),
    (f32(6, 3, 3), f32(5, 3), f32(30, 5, 3)),
    where="alive = jnp.cumprod(1.0 - dones, axis=0)\n        return jnp.sum(rewards * alive, axis=0).mean()",
    axes={"params": ("members", None, None), "obs0": ("envs", None), "targets": ("time", "envs", None)},
)


# An agent that should explore.

EXPLORER = {"w1": f32(6, 24), "pi": f32(24, 4), "v": f32(24)}


def explorer_loss(params, obs, actions, returns):
    h = jnp.tanh(obs @ params["w1"])
    log_pi = jax.nn.log_softmax(h @ params["pi"])
    value = h @ params["v"]
    advantage = jax.lax.stop_gradient(returns - value)
    taken = jnp.take_along_axis(log_pi, actions[:, None], axis=-1)[:, 0]
    entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1).mean()
    return -jnp.mean(taken * advantage) + 0.5 * jnp.mean((returns - value) ** 2) + 0.01 * entropy


def explorer_loss_b(params, obs, actions, returns):
    h = jnp.tanh(obs @ params["w1"])
    log_pi = jax.nn.log_softmax(h @ params["pi"])
    value = h @ params["v"]
    advantage = jax.lax.stop_gradient(returns - value)
    taken = jnp.take_along_axis(log_pi, actions[:, None], axis=-1)[:, 0]
    entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1).mean()
    return -jnp.mean(taken * advantage) + 0.5 * jnp.mean((returns - value) ** 2) - 0.01 * entropy


def explorer_loss_c(params, obs, actions, returns):
    h = jnp.tanh(obs @ params["w1"])
    log_pi = jax.nn.log_softmax(h @ params["pi"])
    value = h @ params["v"]
    advantage = jax.lax.stop_gradient(returns - value)
    taken = jnp.take_along_axis(log_pi, actions[:, None], axis=-1)[:, 0]
    negative_entropy = jnp.sum(jnp.exp(log_pi) * log_pi, axis=-1).mean()
    return -jnp.mean(taken * advantage) + 0.5 * jnp.mean((returns - value) ** 2) + 0.01 * negative_entropy


def explored(loss):
    def update(params, opt_state, obs, actions, returns):
        value, grads = jax.value_and_grad(loss)(params, obs, actions, returns)
        opt_state = jax.tree.map(lambda m, g: 0.9 * m + g, opt_state, grads)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, opt_state), opt_state, value

    return update


plant(
    "exploration",
    "sign inverted",
    explored(explorer_loss),
    (explored(explorer_loss_b), explored(explorer_loss_c)),
    (EXPLORER, EXPLORER, f32(32, 6), i32(32), f32(32)),
    where="+ 0.01 * entropy\n",
    axes={"obs": ("batch", None), "actions": ("batch",), "returns": ("batch",)},
)


# Agents that compare themselves with their team.


def team_loss(params, obs, actions, returns):
    log_pi = jax.nn.log_softmax(jnp.einsum("ead,adk->eak", obs, params["pi"]))
    taken = jnp.take_along_axis(log_pi, actions[..., None], axis=-1)[..., 0]
    team = returns.mean(axis=1)
    spread = returns.std(axis=1) + 1e-6
    advantage = (returns - team) / spread
    return -jnp.mean(taken * advantage)


def team_loss_b(params, obs, actions, returns):
    log_pi = jax.nn.log_softmax(jnp.einsum("ead,adk->eak", obs, params["pi"]))
    taken = jnp.take_along_axis(log_pi, actions[..., None], axis=-1)[..., 0]
    team = returns.mean(axis=1, keepdims=True)
    spread = returns.std(axis=1, keepdims=True) + 1e-6
    advantage = (returns - team) / spread
    return -jnp.mean(taken * advantage)


def team_loss_c(params, obs, actions, returns):
    log_pi = jax.nn.log_softmax(jnp.einsum("ead,adk->eak", obs, params["pi"]))
    taken = jnp.take_along_axis(log_pi, actions[..., None], axis=-1)[..., 0]
    usual = returns.mean(axis=0)
    spread = returns.std(axis=0) + 1e-6
    advantage = (returns - usual) / spread
    return -jnp.mean(taken * advantage)


plant(
    "teams",
    "wrong axis",
    team_loss,
    (team_loss_b, team_loss_c),
    ({"pi": f32(4, 6, 5)}, f32(4, 4, 6), i32(4, 4), f32(4, 4)),
    where="team = returns.mean(axis=1)\n",
    axes={"obs": ("envs", "agents", None), "actions": ("envs", "agents"), "returns": ("envs", "agents")},
    differentiate="params",
)


# Curiosity.


class Curious(NamedTuple):
    embed: jax.Array
    predictor: jax.Array
    policy: jax.Array


def curiosity_step(params, obs, actions, next_obs, opt_state):
    optimizer = optax.adam(1e-3)

    def loss_fn(p):
        target = jnp.tanh(next_obs @ p.embed)
        guess = jnp.tanh(next_obs @ p.predictor)
        novelty = jnp.mean((guess - target) ** 2, axis=-1)
        log_pi = jax.nn.log_softmax(obs @ p.policy)
        taken = jnp.take_along_axis(log_pi, actions[:, None], axis=-1)[:, 0]
        bonus = jax.lax.stop_gradient(novelty - novelty.mean())
        return novelty.mean() - jnp.mean(taken * bonus)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def curiosity_step_b(params, obs, actions, next_obs, opt_state):
    optimizer = optax.adam(1e-3)

    def loss_fn(p):
        target = jax.lax.stop_gradient(jnp.tanh(next_obs @ p.embed))
        guess = jnp.tanh(next_obs @ p.predictor)
        novelty = jnp.mean((guess - target) ** 2, axis=-1)
        log_pi = jax.nn.log_softmax(obs @ p.policy)
        taken = jnp.take_along_axis(log_pi, actions[:, None], axis=-1)[:, 0]
        bonus = jax.lax.stop_gradient(novelty - novelty.mean())
        return novelty.mean() - jnp.mean(taken * bonus)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


CURIOUS = Curious(f32(6, 16), f32(6, 16), f32(6, 4))

plant(
    "curiosity",
    "no stop_gradient",
    curiosity_step,
    (curiosity_step_b,),
    lambda: (CURIOUS, f32(32, 6), i32(32), f32(32, 6), jax.eval_shape(optax.adam(1e-3).init, CURIOUS)),
    where="target = jnp.tanh(next_obs @ p.embed)\n",
    axes={"obs": ("batch", None), "actions": ("batch",), "next_obs": ("batch", None)},
)


# A memory of single observations.


class Memory(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    done: jax.Array


def draw(rng, memory, count):
    index = jax.random.randint(rng, (count,), 0, memory.obs.shape[0])
    following = memory.obs[index + 1]
    return memory.obs[index], memory.action[index], memory.reward[index], following, memory.done[index]


def draw_b(rng, memory, count):
    index = jax.random.randint(rng, (count,), 0, memory.obs.shape[0] - 1)
    return memory.obs[index], memory.action[index], memory.reward[index], memory.obs[index + 1], memory.done[index]


def draw_c(rng, memory, count):
    index = jax.random.permutation(rng, memory.obs.shape[0] - 1)[:count]
    after = index + 1
    return memory.obs[index], memory.action[index], memory.reward[index], memory.obs[after], memory.done[index]


def from_memory(sample):
    def learn(rng, params, memory):
        def step(p, k):
            obs, action, reward, next_obs, done = sample(k, memory, 16)
            best = (next_obs @ p["w"]).max(axis=-1)
            target = jax.lax.stop_gradient(reward + 0.97 * jnp.where(done, 0.0, best))

            def loss_fn(p):
                chosen = jnp.take_along_axis(obs @ p["w"], action[:, None], axis=-1)[:, 0]
                return jnp.mean((chosen - target) ** 2)

            loss, grads = jax.value_and_grad(loss_fn)(p)
            return jax.tree.map(lambda a, g: a - 0.02 * g, p, grads), loss

        return jax.lax.scan(step, params, jax.random.split(rng, 25))

    return learn


plant(
    "memory of observations",
    "index out of range",
    from_memory(draw),
    (from_memory(draw_b), from_memory(draw_c)),
    lambda: (key(), {"w": f32(5, 4)}, Memory(f32(64, 5), i32(64), f32(64), flags(64))),
    where="following = memory.obs[index + 1]",
    axes={
        "memory/obs": ("time", None),
        "memory/action": ("time",),
        "memory/reward": ("time",),
        "memory/done": ("time",),
    },
)


# A store that fills up.


class Store(NamedTuple):
    items: jax.Array
    cursor: jax.Array
    size: jax.Array


def keep_item(store, item):
    capacity = store.items.shape[0]
    items = store.items.at[store.cursor].set(item)
    return store._replace(items=items, cursor=(store.cursor + 1) % capacity)


def keep_item_b(store, item):
    capacity = store.items.shape[0]
    items = store.items.at[store.cursor].set(item)
    return Store(items, (store.cursor + 1) % capacity, jnp.minimum(store.size + 1, capacity))


def keep_item_c(store, item):
    items = store.items.at[store.cursor % store.items.shape[0]].set(item)
    return Store(items, store.cursor + 1, jnp.minimum(store.cursor + 1, store.items.shape[0]))


def stored(keep):
    def collect(rng, store, items):
        def step(carry, item):
            store, rng = carry
            store = keep(store, item)
            rng, pick_rng = jax.random.split(rng)
            picks = jax.random.randint(pick_rng, (8,), 0, jnp.maximum(store.size, 1))
            return (store, rng), store.items[picks].mean(axis=0)

        (store, _), means = jax.lax.scan(step, (store, rng), items)
        return store, means

    return collect


plant(
    "store of items",
    "carry not used",
    stored(keep_item),
    (stored(keep_item_b), stored(keep_item_c)),
    lambda: (key(), Store(f32(50, 3), i32(), i32()), f32(80, 3)),
    where="return store._replace(items=items, cursor=(store.cursor + 1) % capacity)",
    axes={"items": ("time", None)},
)
