"""What is carried from step to step: optimizers, statistics, buffers, modules."""

from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from unseen.case import Case, f32, i32, key, shapes_of

CASES = []
add = CASES.append


# Replay buffer.


class Buffer(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    insert_at: jax.Array
    size: jax.Array


def push(buffer, obs, action, reward):
    capacity = buffer.obs.shape[0]
    at = buffer.insert_at % capacity
    buffer.obs.at[at].set(obs)
    return buffer._replace(
        action=buffer.action.at[at].set(action),
        reward=buffer.reward.at[at].set(reward),
        insert_at=buffer.insert_at + 1,
        size=jnp.minimum(buffer.size + 1, capacity),
    )


def push_b(buffer, obs, action, reward):
    capacity = buffer.obs.shape[0]
    at = buffer.insert_at % capacity
    return buffer._replace(
        obs=buffer.obs.at[at].set(obs),
        action=buffer.action.at[at].set(action),
        reward=buffer.reward.at[at].set(reward),
        insert_at=buffer.insert_at + 1,
        size=jnp.minimum(buffer.size + 1, capacity),
    )


def fill(push_one):
    def run(buffer, obs, actions, rewards):
        step = lambda b, x: (push_one(b, *x), None)
        return jax.lax.scan(step, buffer, (obs, actions, rewards))[0]

    return run


add(
    Case(
        "replay buffer",
        "result dropped",
        fill(push),
        (fill(push_b),),
        (Buffer(f32(100, 4), i32(100), f32(100), i32(), i32()), f32(10, 4), i32(10), f32(10)),
        where="buffer.obs.at[at].set(obs)\n",
        axes={"obs": ("time", None), "actions": ("time",), "rewards": ("time",)},
        source="replay buffers by hand; StackOverflow on .at[].set",
    )
)


# Board of a grid world.


class Grid(NamedTuple):
    cells: jax.Array
    agent: jax.Array
    score: jax.Array


MOVES = jnp.array([[0, 1], [1, 0], [0, -1], [-1, 0]])


def grid_step(state, action):
    target = jnp.clip(state.agent + MOVES[action], 0, state.cells.shape[0] - 1)
    found = state.cells[target[0], target[1]] == 2
    cells = state.cells.at[state.agent[0], state.agent[1]].set(0)
    jax.lax.cond(found, lambda c: c.at[target[0], target[1]].set(1), lambda c: c, cells)
    return Grid(cells, target, state.score + found), found.astype(jnp.float32)


def grid_step_b(state, action):
    target = jnp.clip(state.agent + MOVES[action], 0, state.cells.shape[0] - 1)
    found = state.cells[target[0], target[1]] == 2
    cells = state.cells.at[state.agent[0], state.agent[1]].set(0)
    cells = jax.lax.cond(found, lambda c: c.at[target[0], target[1]].set(1), lambda c: c, cells)
    return Grid(cells, target, state.score + found), found.astype(jnp.float32)


add(
    Case(
        "grid world",
        "result dropped",
        lambda state, actions: jax.lax.scan(grid_step, state, actions),
        (lambda state, actions: jax.lax.scan(grid_step_b, state, actions),),
        (Grid(i32(9, 9), i32(2), i32()), i32(12)),
        where="set(0)\n    jax.lax.cond(found",
        source="craftax- and minigrid-like environments: a cond as a statement",
    )
)


# Optimizer state.


def regression_loss(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2))


def run_epochs(params, opt_state, xs, ys):
    def epoch(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(regression_loss)(params, *batch)
        updates, new_opt_state = OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), loss

    (params, opt_state), losses = jax.lax.scan(epoch, (params, opt_state), (xs, ys))
    return params, opt_state, losses


def run_epochs_b(params, opt_state, xs, ys):
    def epoch(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(regression_loss)(params, *batch)
        updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), loss

    (params, opt_state), losses = jax.lax.scan(epoch, (params, opt_state), (xs, ys))
    return params, opt_state, losses


WEIGHTS = {"w": f32(6, 16), "v": f32(16, 2)}


def epoch_args():
    return WEIGHTS, shapes_of(OPTIMIZER.init, WEIGHTS), f32(10, 32, 6), f32(10, 32, 2)


add(
    Case(
        "adam state",
        "result dropped",
        run_epochs,
        (run_epochs_b,),
        epoch_args,
        where="updates, new_opt_state = OPTIMIZER.update(grads, opt_state, params)",
        axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch", None)},
        source="Optax discussions: moments that stay at zero",
    )
)


# Batch statistics.


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(8, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.relu(x).mean(axis=(1, 2))
        return nn.Dense(10)(x)


conv_net = ConvNet()


class TrainState(struct.PyTreeNode):
    step: jax.Array
    params: Any
    batch_stats: Any
    opt_state: Any


def conv_loss(params, batch_stats, images, labels):
    variables = {"params": params, "batch_stats": batch_stats}
    logits, updated = conv_net.apply(variables, images, train=True, mutable=["batch_stats"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, updated["batch_stats"]


def train_step(state, images, labels):
    grad_fn = jax.value_and_grad(conv_loss, has_aux=True)
    (loss, stats), grads = grad_fn(state.params, state.batch_stats, images, labels)
    updates, opt_state = optax.sgd(0.1, momentum=0.9).update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state), loss


def train_step_b(state, images, labels):
    grad_fn = jax.value_and_grad(conv_loss, has_aux=True)
    (loss, stats), grads = grad_fn(state.params, state.batch_stats, images, labels)
    updates, opt_state = optax.sgd(0.1, momentum=0.9).update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state, batch_stats=stats), loss


def conv_args():
    variables = shapes_of(lambda k: conv_net.init(k, jnp.zeros((1, 12, 12, 3)), train=True), jax.random.key(0))
    opt_state = shapes_of(optax.sgd(0.1, momentum=0.9).init, variables["params"])
    return TrainState(i32(), variables["params"], variables["batch_stats"], opt_state), f32(8, 12, 12, 3), i32(8)


add(
    Case(
        "batch statistics",
        "result dropped",
        train_step,
        (train_step_b,),
        conv_args,
        where="return state.replace(step=state.step + 1, params=params, opt_state=opt_state), loss",
        axes={"images": ("batch", "height", "width", None), "labels": ("batch",)},
        source="flax#2467: the old state is returned",
    )
)


# Average of weights.


class Averaged(NamedTuple):
    params: Any
    ema: Any
    step: jax.Array


def ema_step(state, x, y, decay=0.999):
    loss, grads = jax.value_and_grad(regression_loss)(state.params, x, y)
    params = jax.tree.map(lambda p, g: p - 1e-2 * g, state.params, grads)
    ema = jax.tree.map(lambda e, p: decay * e + (1 - decay) * p, state.ema, params)
    eval_loss = regression_loss(ema, x, y)
    return Averaged(params, state.ema, state.step + 1), (loss, eval_loss)


def ema_step_b(state, x, y, decay=0.999):
    loss, grads = jax.value_and_grad(regression_loss)(state.params, x, y)
    params = jax.tree.map(lambda p, g: p - 1e-2 * g, state.params, grads)
    ema = jax.tree.map(lambda e, p: decay * e + (1 - decay) * p, state.ema, params)
    eval_loss = regression_loss(ema, x, y)
    return Averaged(params, ema, state.step + 1), (loss, eval_loss)


def many_steps(step):
    def run(state, xs, ys):
        return jax.lax.scan(lambda s, b: step(s, *b), state, (xs, ys))

    return run


add(
    Case(
        "average of weights",
        "result dropped",
        many_steps(ema_step),
        (many_steps(ema_step_b),),
        (Averaged(WEIGHTS, WEIGHTS, i32()), f32(10, 32, 6), f32(10, 32, 2)),
        where="return Averaged(params, state.ema, state.step + 1), (loss, eval_loss)",
        axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch", None)},
        source="diffusion trainers in Flax: the average never moves",
    )
)


# Equinox batch norm.


class SmallNet(eqx.Module):
    lin1: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    lin2: eqx.nn.Linear

    def __init__(self, rng):
        k1, k2 = jax.random.split(rng)
        self.lin1 = eqx.nn.Linear(6, 16, key=k1)
        self.norm = eqx.nn.BatchNorm(16, axis_name="batch", mode="ema")
        self.lin2 = eqx.nn.Linear(16, 5, key=k2)

    def __call__(self, x, state):
        x, state = self.norm(self.lin1(x), state)
        return self.lin2(jax.nn.relu(x)), state


def eqx_loss(model, state, x, y):
    batched = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    logits, state = batched(x, state)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), state


def eqx_step(rng, xs, ys):
    model, state = eqx.nn.make_with_state(SmallNet)(rng)
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def step(carry, batch):
        params, state = carry
        loss_fn = lambda p: eqx_loss(eqx.combine(p, static), state, *batch)
        (loss, new_state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return (params, state), loss

    return jax.lax.scan(step, (params, state), (xs, ys))[1]


def eqx_step_b(rng, xs, ys):
    model, state = eqx.nn.make_with_state(SmallNet)(rng)
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def step(carry, batch):
        params, state = carry
        loss_fn = lambda p: eqx_loss(eqx.combine(p, static), state, *batch)
        (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return (params, state), loss

    return jax.lax.scan(step, (params, state), (xs, ys))[1]


add(
    Case(
        "equinox state",
        "result dropped",
        eqx_step,
        (eqx_step_b,),
        (key(), f32(5, 16, 6), i32(5, 16)),
        where="(loss, new_state), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)",
        axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
        source="Equinox BatchNorm issues: the state of the layer is not handed on",
    )
)


# Target network.


def soft_update(online, target, tau=0.005):
    return jax.tree.map(lambda o, t: tau * t + (1 - tau) * o, online, target)


def soft_update_b(online, target, tau=0.005):
    return jax.tree.map(lambda o, t: tau * o + (1 - tau) * t, online, target)


def q_learning(update):
    def run(params, target, obs, rewards, next_obs):
        def step(carry, batch):
            params, target = carry
            o, r, n = batch
            goal = r + 0.99 * jnp.max(jnp.tanh(n @ target["w"]) @ target["v"], axis=-1)
            loss_fn = lambda p: jnp.mean((jnp.max(jnp.tanh(o @ p["w"]) @ p["v"], axis=-1) - goal) ** 2)
            loss, grads = jax.value_and_grad(loss_fn)(params)
            params = jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)
            return (params, update(params, target)), loss

        return jax.lax.scan(step, (params, target), (obs, rewards, next_obs))

    return run


add(
    Case(
        "soft update",
        "scale inverted",
        q_learning(soft_update),
        (q_learning(soft_update_b),),
        (WEIGHTS, WEIGHTS, f32(20, 32, 6), f32(20, 32), f32(20, 32, 6)),
        where="return jax.tree.map(lambda o, t: tau * t + (1 - tau) * o, online, target)",
        axes={"obs": ("steps", "batch", None), "rewards": ("steps", "batch")},
        source="DDPG and SAC ports: tau on the wrong side",
    )
)


# Evaluation with the parameters of the start.


def fit_and_validate(rng, xs, ys, x_val, y_val):
    k1, k2 = jax.random.split(rng)
    init = {"w": jax.random.normal(k1, (6, 16)), "v": jax.random.normal(k2, (16, 2))}

    def step(params, batch):
        loss, grads = jax.value_and_grad(regression_loss)(params, *batch)
        params = jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads)
        val_loss = regression_loss(init, x_val, y_val)
        return params, (loss, val_loss)

    return jax.lax.scan(step, init, (xs, ys))


def fit_and_validate_b(rng, xs, ys, x_val, y_val):
    k1, k2 = jax.random.split(rng)
    init = {"w": jax.random.normal(k1, (6, 16)), "v": jax.random.normal(k2, (16, 2))}

    def step(params, batch):
        loss, grads = jax.value_and_grad(regression_loss)(params, *batch)
        params = jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads)
        return params, (loss, regression_loss(params, x_val, y_val))

    return jax.lax.scan(step, init, (xs, ys))


add(
    Case(
        "validation",
        "result dropped",
        fit_and_validate,
        (fit_and_validate_b,),
        (key(), f32(10, 32, 6), f32(10, 32, 2), f32(50, 6), f32(50, 2)),
        where="val_loss = regression_loss(init, x_val, y_val)",
        axes={"xs": ("steps", "batch", None), "x_val": ("validation", None)},
        source="flax#3982: evaluation reads the initial parameters",
    )
)


# Recurrent network that forgets.


class GRU(NamedTuple):
    wx: jax.Array
    wh: jax.Array
    b: jax.Array


def gru_cell(p, h, x):
    gates = x @ p.wx + h @ p.wh + p.b
    z, r, n = jnp.split(gates, 3, axis=-1)
    z = jax.nn.sigmoid(z)
    return (1 - z) * jnp.tanh(jax.nn.sigmoid(r) * n) + z * h


def encode(params, tokens):
    h0 = jnp.zeros((tokens.shape[1], 16))

    def step(h, x):
        out = gru_cell(params["gru"], h0, x)
        return out, out

    _, hs = jax.lax.scan(step, h0, params["embed"][tokens])
    return hs @ params["out"]


def encode_b(params, tokens):
    h0 = jnp.zeros((tokens.shape[1], 16))

    def step(h, x):
        h = gru_cell(params["gru"], h, x)
        return h, h

    _, hs = jax.lax.scan(step, h0, params["embed"][tokens])
    return hs @ params["out"]


def tagger(encoder):
    def loss(params, tokens, tags):
        logits = encoder(params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tags).mean()

    return jax.value_and_grad(loss)


TAGGER = {"embed": f32(50, 12), "gru": GRU(f32(12, 48), f32(16, 48), f32(48)), "out": f32(16, 5)}
add(
    Case(
        "tagger",
        "carry not used",
        tagger(encode),
        (tagger(encode_b),),
        (TAGGER, i32(20, 8), i32(20, 8)),
        where='out = gru_cell(params["gru"], h0, x)',
        axes={"tokens": ("time", "batch"), "tags": ("time", "batch")},
        source="RNNs by scan: the initial state is read in each step",
    )
)


# Best so far.


def random_search(rng, x, y, trials):
    def trial(carry, k):
        best_params, best_loss = carry
        k1, k2 = jax.random.split(k)
        params = {"w": jax.random.normal(k1, (6, 16)), "v": jax.random.normal(k2, (16, 2))}
        loss = regression_loss(params, x, y)
        better = loss < best_loss
        best_params = jax.tree.map(lambda a, b: jnp.where(better, a, b), params, best_params)
        return (best_params, best_loss), loss

    zeros = {"w": jnp.zeros((6, 16)), "v": jnp.zeros((16, 2))}
    return jax.lax.scan(trial, (zeros, jnp.inf), jax.random.split(rng, trials))


def random_search_b(rng, x, y, trials):
    def trial(carry, k):
        best_params, best_loss = carry
        k1, k2 = jax.random.split(k)
        params = {"w": jax.random.normal(k1, (6, 16)), "v": jax.random.normal(k2, (16, 2))}
        loss = regression_loss(params, x, y)
        better = loss < best_loss
        best_params = jax.tree.map(lambda a, b: jnp.where(better, a, b), params, best_params)
        return (best_params, jnp.minimum(loss, best_loss)), loss

    zeros = {"w": jnp.zeros((6, 16)), "v": jnp.zeros((16, 2))}
    return jax.lax.scan(trial, (zeros, jnp.inf), jax.random.split(rng, trials))


add(
    Case(
        "best of trials",
        "carry not used",
        lambda rng, x, y: random_search(rng, x, y, 30),
        (lambda rng, x, y: random_search_b(rng, x, y, 30),),
        (key(), f32(40, 6), f32(40, 2)),
        where="return (best_params, best_loss), loss",
        axes={"x": ("batch", None), "y": ("batch", None)},
        source="evolution strategies and checkpoints of the best: the best value is not kept",
    )
)


# Minibatches by dynamic slices.


def epoch_of_slices(params, xs, ys, batch_size=16):
    def body(i, carry):
        params, total = carry
        x = jax.lax.dynamic_slice_in_dim(xs, i, batch_size)
        y = jax.lax.dynamic_slice_in_dim(ys, i, batch_size)
        loss, grads = jax.value_and_grad(regression_loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), total + loss

    return jax.lax.fori_loop(0, xs.shape[0] // batch_size, body, (params, 0.0))


def epoch_of_slices_b(params, xs, ys, batch_size=16):
    def body(i, carry):
        params, total = carry
        x = jax.lax.dynamic_slice_in_dim(xs, i * batch_size, batch_size)
        y = jax.lax.dynamic_slice_in_dim(ys, i * batch_size, batch_size)
        loss, grads = jax.value_and_grad(regression_loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), total + loss

    return jax.lax.fori_loop(0, xs.shape[0] // batch_size, body, (params, 0.0))


add(
    Case(
        "slices of an epoch",
        "index out of range",
        epoch_of_slices,
        (epoch_of_slices_b,),
        (WEIGHTS, f32(128, 6), f32(128, 2)),
        where="x = jax.lax.dynamic_slice_in_dim(xs, i, batch_size)",
        axes={"xs": ("batch", None), "ys": ("batch", None)},
        source="sbx#21: start index i and not i * batch_size",
    )
)


# Sliding windows that leave the array.


def forecast_windows(series, window=12, horizon=3):
    length = series.shape[0]
    starts = jnp.arange(length - window + 1)
    take = lambda s: jax.lax.dynamic_slice_in_dim(series, s, window)
    inputs = jax.vmap(take)(starts)
    targets = jax.vmap(lambda s: series[s + window + jnp.arange(horizon)])(starts)
    return inputs, targets


def forecast_windows_b(series, window=12, horizon=3):
    length = series.shape[0]
    firsts = jnp.arange(length - window - horizon + 1)
    take = lambda s: jax.lax.dynamic_slice_in_dim(series, s, window)
    inputs = jax.vmap(take)(firsts)
    targets = jax.vmap(lambda s: series[s + window + jnp.arange(horizon)])(firsts)
    return inputs, targets


def forecast(windows):
    def loss(params, series):
        x, y = windows(series)
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    return jax.value_and_grad(loss)


add(
    Case(
        "forecast windows",
        "index out of range",
        forecast(forecast_windows),
        (forecast(forecast_windows_b),),
        ({"w": f32(12, 3), "b": f32(3)}, f32(100)),
        where="starts = jnp.arange(length - window + 1)",
        axes={"series": ("time",)},
        source="time series in JAX: the last windows are clamped",
    )
)


# Environment in which the state of the step before is used.


class Pendulum(NamedTuple):
    theta: jax.Array
    omega: jax.Array
    last_action: jax.Array


def pendulum_step(state, action):
    torque = jnp.clip(action, -2.0, 2.0)
    smooth = jnp.square(torque - state.last_action)
    omega = state.omega + (15.0 * jnp.sin(state.theta) + 3.0 * torque) * 0.05
    theta = state.theta + omega * 0.05
    cost = theta**2 + 0.1 * omega**2 + 0.01 * smooth
    return Pendulum(theta, omega, state.last_action), -cost


def pendulum_step_b(state, action):
    torque = jnp.clip(action, -2.0, 2.0)
    smooth = jnp.square(torque - state.last_action)
    omega = state.omega + (15.0 * jnp.sin(state.theta) + 3.0 * torque) * 0.05
    theta = state.theta + omega * 0.05
    cost = theta**2 + 0.1 * omega**2 + 0.01 * smooth
    return Pendulum(theta, omega, torque), -cost


add(
    Case(
        "last action",
        "carry not used",
        lambda state, actions: jax.lax.scan(pendulum_step, state, actions),
        (lambda state, actions: jax.lax.scan(pendulum_step_b, state, actions),),
        (Pendulum(f32(8), f32(8), f32(8)), f32(40, 8)),
        where="return Pendulum(theta, omega, state.last_action), -cost",
        axes={"actions": ("time", "envs")},
        source="brax and legged-gym ports: info['last_act'] stays at its start",
    )
)


# Gradient accumulation.


def accumulate(params, opt_state, xs, ys):
    def micro(grads, batch):
        loss, g = jax.value_and_grad(regression_loss)(params, *batch)
        return jax.tree.map(jnp.add, grads, g), loss

    grads, losses = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, params), (xs, ys))
    updates, opt_state = optax.sgd(1e-2).update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, losses.mean()


def accumulate_b(params, opt_state, xs, ys):
    def micro(grads, batch):
        loss, g = jax.value_and_grad(regression_loss)(params, *batch)
        return jax.tree.map(lambda a, b: a + b / xs.shape[0], grads, g), loss

    grads, losses = jax.lax.scan(micro, jax.tree.map(jnp.zeros_like, params), (xs, ys))
    updates, opt_state = optax.sgd(1e-2).update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, losses.mean()


def accumulate_args():
    return WEIGHTS, shapes_of(optax.sgd(1e-2).init, WEIGHTS), f32(8, 16, 6), f32(8, 16, 2)


add(
    Case(
        "gradient accumulation",
        "mean of means",
        accumulate,
        (accumulate_b,),
        accumulate_args,
        where="return jax.tree.map(jnp.add, grads, g), loss",
        axes={"xs": ("micro", "batch", None), "ys": ("micro", "batch", None)},
        source="distillKitPlus#5: gradients are summed over the micro-batches, the loss is averaged",
    )
)


# Beam search state.


def greedy_decode(params, prompt, steps):
    batch, length = prompt.shape
    tokens = jnp.concatenate([prompt, jnp.zeros((batch, steps), jnp.int32)], axis=1)
    finished = jnp.zeros(batch, bool)

    def body(i, carry):
        tokens, finished = carry
        context = params["embed"][jax.lax.dynamic_index_in_dim(tokens, i - 1, axis=1, keepdims=False)]
        next_token = jnp.argmax(jnp.tanh(context @ params["w"]) @ params["embed"].T, axis=-1).astype(jnp.int32)
        next_token = jnp.where(finished, 0, next_token)
        tokens = tokens.at[:, i].set(next_token)
        ended = finished | (next_token == 1)
        return tokens, finished

    return jax.lax.fori_loop(length, length + steps, body, (tokens, finished))


def greedy_decode_b(params, prompt, steps):
    batch, length = prompt.shape
    tokens = jnp.concatenate([prompt, jnp.zeros((batch, steps), jnp.int32)], axis=1)
    finished = jnp.zeros(batch, bool)

    def body(i, carry):
        tokens, finished = carry
        context = params["embed"][jax.lax.dynamic_index_in_dim(tokens, i - 1, axis=1, keepdims=False)]
        next_token = jnp.argmax(jnp.tanh(context @ params["w"]) @ params["embed"].T, axis=-1).astype(jnp.int32)
        next_token = jnp.where(finished, 0, next_token)
        tokens = tokens.at[:, i].set(next_token)
        return tokens, finished | (next_token == 1)

    return jax.lax.fori_loop(length, length + steps, body, (tokens, finished))


add(
    Case(
        "greedy decoding",
        "carry not used",
        lambda params, prompt: greedy_decode(params, prompt, 10),
        (lambda params, prompt: greedy_decode_b(params, prompt, 10),),
        ({"embed": f32(40, 16), "w": f32(16, 16)}, i32(4, 6)),
        where="ended = finished | (next_token == 1)",
        axes={"prompt": ("batch", "length")},
        source="t5x-like decoding: finished sequences go on",
    )
)
