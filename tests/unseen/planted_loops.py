"""Mistakes planted into loops, keys, mapped functions and what Python does, with right programs that look like them."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from unseen.case import Case, f32, flags, i32, key

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


LINEAR = {"w": f32(6), "b": f32()}


def mse(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


# Histogram in a loop.


def count_tokens(tokens):
    def body(i, counts):
        counts.at[tokens[i]].add(1)
        return counts

    return jax.lax.fori_loop(0, tokens.shape[0], body, jnp.zeros(50, jnp.int32))


def count_tokens_b(tokens):
    def body(i, counts):
        return counts.at[tokens[i]].add(1)

    return jax.lax.fori_loop(0, tokens.shape[0], body, jnp.zeros(50, jnp.int32))


def count_tokens_c(tokens):
    def body(i, carry):
        counts, repeats = carry
        seen = counts.at[tokens[i]].get() > 0
        return counts.at[tokens[i]].set(1), repeats + seen

    return jax.lax.fori_loop(0, tokens.shape[0], body, (jnp.zeros(50, jnp.int32), jnp.int32(0)))


plant(
    "histogram",
    "result dropped",
    count_tokens,
    (count_tokens_b, count_tokens_c),
    (i32(30),),
    where="counts.at[tokens[i]].add(1)\n        return counts",
    axes={"tokens": ("time",)},
)


# Momentum.


def heavy_ball(params, xs, ys, beta=0.9):
    def step(carry, batch):
        p, velocity = carry
        grads = jax.grad(mse)(p, *batch)
        moved = jax.tree.map(lambda v, g: beta * v + g, velocity, grads)
        p = jax.tree.map(lambda a, v: a - 0.1 * v, p, moved)
        return (p, velocity), None

    return jax.lax.scan(step, (params, jax.tree.map(jnp.zeros_like, params)), (xs, ys))[0]


def heavy_ball_b(params, xs, ys, beta=0.9):
    def step(carry, batch):
        p, velocity = carry
        grads = jax.grad(mse)(p, *batch)
        velocity = jax.tree.map(lambda v, g: beta * v + g, velocity, grads)
        p = jax.tree.map(lambda a, v: a - 0.1 * v, p, velocity)
        return (p, velocity), None

    return jax.lax.scan(step, (params, jax.tree.map(jnp.zeros_like, params)), (xs, ys))[0]


def heavy_ball_c(params, xs, ys, beta=0.9):
    def step(carry, batch):
        p, anchor = carry
        grads = jax.grad(mse)(p, *batch)
        pull = jax.tree.map(lambda a, c: 0.1 * (a - c), p, anchor)
        p = jax.tree.map(lambda a, g, d: a - 0.1 * (g + beta * d), p, grads, pull)
        return (p, anchor), None

    return jax.lax.scan(step, (params, params), (xs, ys))[0]


plant(
    "heavy ball",
    "carry not used",
    heavy_ball,
    (heavy_ball_b, heavy_ball_c),
    (LINEAR, f32(10, 16, 6), f32(10, 16)),
    where="p = jax.tree.map(lambda a, v: a - 0.1 * v, p, moved)\n        return (p, velocity), None",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
)


# Inner loops.


def adapt(params, support, query):
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)
    losses = []
    for _ in range(3):
        grads = jax.grad(mse)(params, *support)
        updates, fresh = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(mse(params, *query))
    return params, jnp.stack(losses)


def adapt_b(params, support, query):
    optimizer = optax.adam(1e-2)
    state = optimizer.init(params)
    losses = []
    for _ in range(3):
        grads = jax.grad(mse)(params, *support)
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(mse(params, *query))
    return params, jnp.stack(losses)


def adapt_c(params, support, query):
    optimizer = optax.sgd(1e-2)
    losses = []
    for _ in range(3):
        grads = jax.grad(mse)(params, *support)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        params = optax.apply_updates(params, updates)
        losses.append(mse(params, *query))
    return params, jnp.stack(losses)


plant(
    "inner loop",
    "result dropped",
    adapt,
    (adapt_b, adapt_c),
    (LINEAR, (f32(8, 6), f32(8)), (f32(8, 6), f32(8))),
    where="updates, fresh = optimizer.update(grads, state, params)",
)


# The step count of a schedule.


class Trainer(NamedTuple):
    params: dict
    step: jax.Array


def warmup(state, batch):
    lr = 0.1 * jnp.minimum(state.step / 100.0, 1.0)
    loss, grads = jax.value_and_grad(mse)(state.params, *batch)
    params = jax.tree.map(lambda p, g: p - lr * g, state.params, grads)
    return state._replace(params=params), loss


def warmup_b(state, batch):
    lr = 0.1 * jnp.minimum((state.step + 1) / 100.0, 1.0)
    loss, grads = jax.value_and_grad(mse)(state.params, *batch)
    params = jax.tree.map(lambda p, g: p - lr * g, state.params, grads)
    return Trainer(params, state.step + 1), loss


def warmup_c(state, batch):
    scale = 1.0 / jnp.maximum(state.step, 1)
    loss, grads = jax.value_and_grad(mse)(state.params, *batch)
    params = jax.tree.map(lambda p, g: p - scale * g, state.params, grads)
    return state._replace(params=params, step=state.step + 2), loss


def scanned(step):
    return lambda state, xs, ys: jax.lax.scan(step, state, (xs, ys))


plant(
    "warmup",
    "carry not used",
    scanned(warmup),
    (scanned(warmup_b), scanned(warmup_c)),
    (Trainer(LINEAR, i32()), f32(10, 16, 6), f32(10, 16)),
    where="return state._replace(params=params), loss",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
)


# Two draws.


def noisy_pairs(rng, x):
    left_rng, right_rng = jax.random.split(rng)
    left = x + 0.1 * jax.random.normal(left_rng, x.shape)
    right = x + 0.1 * jax.random.normal(left_rng, x.shape)
    return jnp.mean((left - right) ** 2), right_rng


def noisy_pairs_b(rng, x):
    left_rng, right_rng, rng = jax.random.split(rng, 3)
    left = x + 0.1 * jax.random.normal(left_rng, x.shape)
    right = x + 0.1 * jax.random.normal(right_rng, x.shape)
    return jnp.mean((left - right) ** 2), rng


def noisy_pairs_c(rng, x):
    noise = 0.1 * jax.random.normal(jax.random.fold_in(rng, 0), x.shape)
    extra = jax.random.normal(jax.random.fold_in(rng, 1), x.shape)
    return jnp.mean((x + noise + extra - (x - noise)) ** 2), jax.random.fold_in(rng, 2)


plant(
    "two views",
    "key reuse",
    noisy_pairs,
    (noisy_pairs_b, noisy_pairs_c),
    lambda: (key(), f32(20, 4)),
    where="right = x + 0.1 * jax.random.normal(left_rng, x.shape)",
    axes={"x": ("batch", None)},
)


# Branches.


def proposal(rng, x, wide):
    coarse = x + jax.random.normal(rng, x.shape)
    fine = x + 0.1 * jax.random.normal(rng, x.shape)
    swap = jax.random.uniform(rng) < 0.5
    return jnp.where(wide & swap, coarse, fine)


def proposal_b(rng, x, wide):
    coarse_rng, fine_rng, swap_rng = jax.random.split(rng, 3)
    coarse = x + jax.random.normal(coarse_rng, x.shape)
    fine = x + 0.1 * jax.random.normal(fine_rng, x.shape)
    return jnp.where(wide & (jax.random.uniform(swap_rng) < 0.5), coarse, fine)


def proposal_c(rng, x, wide):
    return jax.lax.cond(
        wide,
        lambda k: x + jax.random.normal(k, x.shape),
        lambda k: x + 0.1 * jax.random.t(k, 3.0, x.shape),
        rng,
    )


plant(
    "proposals",
    "key reuse",
    proposal,
    (proposal_b, proposal_c),
    lambda: (key(), f32(5), flags()),
    where="swap = jax.random.uniform(rng) < 0.5",
)


# Keys of a loop.


def noisy_descent(rng, params, x, y):
    def step(p, i):
        noise = jax.random.normal(rng, p["w"].shape)
        grads = jax.grad(mse)(p, x, y)
        return {"w": p["w"] - 0.1 * grads["w"] + 0.01 * noise, "b": p["b"] - 0.1 * grads["b"]}, i

    return jax.lax.scan(step, params, jnp.arange(30))[0]


def noisy_descent_b(rng, params, x, y):
    def step(p, k):
        kick = jax.random.normal(k, p["w"].shape)
        grads = jax.grad(mse)(p, x, y)
        return {"w": p["w"] - 0.1 * grads["w"] + 0.01 * kick, "b": p["b"] - 0.1 * grads["b"]}, None

    return jax.lax.scan(step, params, jax.random.split(rng, 30))[0]


def noisy_descent_c(rng, params, x, y):
    def step(carry, i):
        p, k = carry
        k, now = jax.random.split(k)
        kick = jax.random.normal(now, p["w"].shape)
        grads = jax.grad(mse)(p, x, y)
        return ({"w": p["w"] - 0.1 * grads["w"] + 0.01 * kick, "b": p["b"] - 0.1 * grads["b"]}, k), i

    return jax.lax.scan(step, (params, rng), jnp.arange(30))[0]


plant(
    "langevin steps",
    "key reuse",
    noisy_descent,
    (noisy_descent_b, noisy_descent_c),
    lambda: (key(), LINEAR, f32(16, 6), f32(16)),
    where='noise = jax.random.normal(rng, p["w"].shape)',
    axes={"x": ("batch", None), "y": ("batch",)},
)


# Noise of a batch.


def jitter(rng, images):
    return jax.vmap(lambda image: image + 0.1 * jax.random.normal(rng, image.shape))(images)


def jitter_b(rng, images):
    keys = jax.random.split(rng, images.shape[0])
    return jax.vmap(lambda k, image: image + 0.1 * jax.random.normal(k, image.shape))(keys, images)


def jitter_c(rng, images):
    return images + 0.1 * jax.random.normal(rng, images.shape)


def jitter_d(rng, images):
    return jax.vmap(
        lambda i, image: image + 0.1 * jax.random.normal(jax.random.fold_in(rng, i), image.shape),
    )(jnp.arange(images.shape[0]), images)


plant(
    "jitter",
    "key shared by batch elements",
    jitter,
    (jitter_b, jitter_c, jitter_d),
    lambda: (key(), f32(8, 10, 10)),
    where="return jax.vmap(lambda image: image + 0.1 * jax.random.normal(rng, image.shape))(images)",
    axes={"images": ("batch", "height", "width")},
)


# Dropout on shards.


def mesh():
    return jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])


def sharded_dropout(rng, x):
    def local(rng, x):
        mask = jax.random.bernoulli(rng, 0.8, x.shape)
        return jnp.where(mask, x / 0.8, 0.0)

    return jax.shard_map(local, mesh=mesh(), in_specs=(P(), P("data")), out_specs=P("data"))(rng, x)


def sharded_dropout_b(rng, x):
    def local(rng, x):
        own = jax.random.fold_in(rng, jax.lax.axis_index("data"))
        return jnp.where(jax.random.bernoulli(own, 0.8, x.shape), x / 0.8, 0.0)

    return jax.shard_map(local, mesh=mesh(), in_specs=(P(), P("data")), out_specs=P("data"))(rng, x)


def sharded_dropout_c(rng, x):
    def local(keep, x):
        return jnp.where(keep, x / 0.8, 0.0)

    keep = jax.random.bernoulli(rng, 0.8, x.shape)
    return jax.shard_map(local, mesh=mesh(), in_specs=(P("data"), P("data")), out_specs=P("data"))(keep, x)


plant(
    "dropout of shards",
    "key shared by batch elements",
    sharded_dropout,
    (sharded_dropout_b, sharded_dropout_c),
    lambda: (key(), f32(16, 8)),
    where="mask = jax.random.bernoulli(rng, 0.8, x.shape)",
    axes={"x": ("batch", None)},
)


# Gradients of replicas.


def data_parallel(params, x, y):
    def local(p, x, y):
        loss, grads = jax.value_and_grad(mse)(p, x, y)
        return jax.lax.pmean(loss, "replica"), jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)

    return jax.vmap(local, in_axes=(None, 0, 0), axis_name="replica")(params, x, y)


def data_parallel_b(params, x, y):
    def local(p, x, y):
        loss, grads = jax.lax.pmean(jax.value_and_grad(mse)(p, x, y), "replica")
        return loss, jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)

    return jax.vmap(local, in_axes=(None, 0, 0), axis_name="replica")(params, x, y)


def data_parallel_c(params, x, y):
    def local(p, x, y):
        total = lambda q: jnp.sum((x @ q["w"] + q["b"] - y) ** 2)
        loss, grads = jax.lax.psum(jax.value_and_grad(total)(p), "replica")
        count = jax.lax.psum(x.shape[0], "replica")
        return loss / count, jax.tree.map(lambda a, g: a - 0.1 * g / count, p, grads)

    return jax.vmap(local, in_axes=(None, 0, 0), axis_name="replica")(params, x, y)


plant(
    "data parallel",
    "replicas not averaged",
    data_parallel,
    (data_parallel_b, data_parallel_c),
    (LINEAR, f32(4, 8, 6), f32(4, 8)),
    where='return jax.lax.pmean(loss, "replica"), jax.tree.map(lambda a, g: a - 0.1 * g, p, grads)',
    axes={"x": ("replica", "batch", None), "y": ("replica", "batch")},
)


# Resets.


class Walker(NamedTuple):
    position: jax.Array
    age: jax.Array


def walk(state, move):
    position = state.position + move
    age = state.age + 1
    over = jnp.abs(position) > 3.0
    return Walker(jnp.where(over, 0.0, position), age), (position, age, over)


def walk_b(state, move):
    position = state.position + move
    age = state.age + 1
    over = jnp.abs(position) > 3.0
    return Walker(jnp.where(over, 0.0, position), jnp.where(over, 0, age)), (position, age, over)


def walk_c(state, move):
    position = jnp.clip(state.position + move, -3.0, 3.0)
    edge = jnp.abs(position) >= 3.0
    return Walker(position, state.age + edge), (position, state.age, edge)


def scan_moves(step):
    return lambda state, moves: jax.lax.scan(step, state, moves)


plant(
    "age of a walker",
    "done cuts a part",
    scan_moves(walk),
    (scan_moves(walk_b), scan_moves(walk_c)),
    (Walker(f32(6), i32(6)), f32(40, 6)),
    where="return Walker(jnp.where(over, 0.0, position), age), (position, age, over)",
    axes={"moves": ("time", "envs")},
)


def refresh(states, fresh, done):
    restart = jnp.any(done)
    return jax.tree.map(lambda a, b: jnp.where(restart, a, b), fresh, states)


def refresh_b(states, fresh, done):
    return jax.tree.map(lambda a, b: jnp.where(done, a, b), fresh, states)


def refresh_c(states, fresh, done):
    finished = jnp.all(done)
    return jax.tree.map(lambda a, b: jnp.where(finished, a, b), fresh, states), jnp.any(done)


plant(
    "refresh of walkers",
    "done cuts a part",
    refresh,
    (refresh_b, refresh_c),
    (Walker(f32(6), i32(6)), Walker(f32(6), i32(6)), flags(6)),
    where="restart = jnp.any(done)",
    axes={"states": ("envs",), "fresh": ("envs",), "done": ("envs",)},
)


def trace_values(rewards, dones, values, lam=0.8):
    def back(carry, x):
        r, d, v_next = x
        target = r + 0.95 * ((1 - lam) * v_next * (1 - d) + lam * carry)
        return target, target

    return jax.lax.scan(back, values[-1], (rewards, dones, values[1:]), reverse=True)[1]


def trace_values_b(rewards, dones, values, lam=0.8):
    def back(carry, x):
        r, d, v_next = x
        target = r + 0.95 * (1 - d) * ((1 - lam) * v_next + lam * carry)
        return target, target

    return jax.lax.scan(back, values[-1], (rewards, dones, values[1:]), reverse=True)[1]


def trace_values_c(rewards, dones, values, lam=0.8):
    def back(carry, x):
        r, d, v_next = x
        mix = 1.0 - d
        target = r + 0.95 * (mix * (1 - lam) * v_next + mix * lam * carry)
        return target, (target, d.sum())

    return jax.lax.scan(back, values[-1], (rewards, dones, values[1:]), reverse=True)[1]


plant(
    "lambda targets",
    "done cuts a part",
    trace_values,
    (trace_values_b, trace_values_c),
    (f32(20, 4), f32(20, 4), f32(21, 4)),
    where="target = r + 0.95 * ((1 - lam) * v_next * (1 - d) + lam * carry)",
    axes={"rewards": ("time", "envs"), "dones": ("time", "envs"), "values": ("time", "envs")},
)


# Mapped functions.


def energy(params, x):
    return jnp.tanh(x @ params["w"]).sum()


def score_matching(params, samples):
    def one(x):
        grad = jax.grad(energy, argnums=1)(params, x)
        lap = jnp.trace(jax.hessian(energy, argnums=1)(params, x))
        return 0.5 * jnp.sum(grad**2) + lap * jnp.mean(samples**2)

    return jax.vmap(one)(samples).mean()


def score_matching_b(params, samples):
    def one(x):
        grad = jax.grad(energy, argnums=1)(params, x)
        lap = jnp.trace(jax.hessian(energy, argnums=1)(params, x))
        return 0.5 * jnp.sum(grad**2) + lap * jnp.mean(x**2)

    return jax.vmap(one)(samples).mean()


def kernel_density(params, samples):
    def one(x):
        return jax.nn.logsumexp(-jnp.sum((samples - x) ** 2, axis=-1)) + energy(params, x)

    return jax.vmap(one)(samples).mean()


plant(
    "score matching",
    "vmap",
    score_matching,
    (score_matching_b, kernel_density),
    ({"w": f32(3, 8)}, f32(30, 3)),
    where="return 0.5 * jnp.sum(grad**2) + lap * jnp.mean(samples**2)",
    axes={"samples": ("batch", None)},
    differentiate="params",
)


def first_token(params, tokens):
    hidden = jnp.tanh(params["embed"][tokens] @ params["w"])
    return hidden[:, 0] @ params["out"]


def classify(params, tokens):
    def one(row):
        hidden = jnp.tanh(params["embed"][row] @ params["w"])
        return hidden[:, 0] @ params["out"]

    return jax.vmap(one)(tokens)


def classify_b(params, tokens):
    return jax.vmap(lambda row: jnp.tanh(params["embed"][row] @ params["w"])[0] @ params["out"])(tokens)


plant(
    "first token",
    "vmap",
    classify,
    (classify_b, first_token),
    ({"embed": f32(30, 8), "w": f32(8, 8), "out": f32(8)}, i32(4, 8)),
    where='return hidden[:, 0] @ params["out"]\n\n    return jax.vmap(one)(tokens)',
    axes={"tokens": ("batch", "length")},
)


def pair_scores(params, users, items):
    return jax.vmap(lambda u, i: u @ params["m"] @ i, in_axes=(0, 1))(users, items)


def pair_scores_b(params, users, items):
    return jax.vmap(lambda u, i: u @ params["m"] @ i)(users, items)


def pair_scores_c(params, users, items):
    return jax.vmap(lambda u: jax.vmap(lambda i: u @ params["m"] @ i)(items))(users)


plant(
    "users and items",
    "vmap",
    pair_scores,
    (pair_scores_b, pair_scores_c),
    ({"m": f32(8, 8)}, f32(8, 8), f32(8, 8)),
    where='return jax.vmap(lambda u, i: u @ params["m"] @ i, in_axes=(0, 1))(users, items)',
    axes={"users": ("batch", "user_features"), "items": ("batch", "item_features")},
)


# Python.


SETTINGS = {"scale": 1.0}
SCALE = 1.0


@jax.jit
def scaled(x):
    return x * SETTINGS["scale"]


def curriculum(x, y):
    SETTINGS["scale"] = SETTINGS["scale"] * 0.5 + 0.5
    return jnp.mean((scaled(x) - y) ** 2)


@jax.jit
def scaled_b(x, scale):
    return x * scale


def curriculum_b(x, y):
    return jnp.mean((scaled_b(x, 0.5) - y) ** 2)


@jax.jit
def scaled_c(x):
    return x * SCALE


def curriculum_c(x, y):
    parts = []
    for row in (x, y):
        parts.append(scaled_c(row))
    return jnp.mean((parts[0] - parts[1]) ** 2)


plant(
    "curriculum",
    "state read by jit",
    curriculum,
    (curriculum_b, curriculum_c),
    (f32(16), f32(16)),
    where='return x * SETTINGS["scale"]',
    axes={"x": ("batch",), "y": ("batch",)},
    calls=((f32(16), f32(16)),),
)


@functools.partial(jax.jit, static_argnames="activation")
def layer(params, x, activation):
    return activation(x @ params["w1"]) @ params["w2"]


def train_activation(params, x):
    total = 0.0
    for slope in (0.1, 0.2, 0.3):
        total = total + layer(params, x, activation=lambda z: jnp.maximum(z, 0.1 * z)).mean() * slope
    return total


def train_activation_b(params, x):
    total = 0.0
    for slope in (0.1, 0.2, 0.3):
        total = total + layer(params, x, activation=jax.nn.leaky_relu).mean() * slope
    return total


plant(
    "activation by lambda",
    "recompilation",
    train_activation,
    (train_activation_b,),
    ({"w1": f32(6, 16), "w2": f32(16, 1)}, f32(32, 6)),
    where="total = total + layer(params, x, activation=lambda z: jnp.maximum(z, 0.1 * z)).mean() * slope",
    axes={"x": ("batch", None)},
    calls=(({"w1": f32(6, 16), "w2": f32(16, 1)}, f32(32, 6)),),
)


@jax.jit
def prefix_mean(prefix):
    return jnp.tanh(prefix).mean(axis=0)


def running_means(x):
    return jnp.stack([prefix_mean(x[: i + 1]) for i in range(x.shape[0])])


def running_means_b(x):
    return jnp.cumsum(jnp.tanh(x), axis=0) / jnp.arange(1, x.shape[0] + 1)[:, None]


def running_means_c(x):
    return jnp.stack([prefix_mean(part) for part in jnp.split(x, 4)])


plant(
    "running means",
    "recompilation",
    running_means,
    (running_means_b, running_means_c),
    (f32(24, 3),),
    where="return jnp.stack([prefix_mean(x[: i + 1]) for i in range(x.shape[0])])",
    axes={"x": ("time", None)},
)


def euler(params, state):
    path = []
    for _ in range(300):
        state = state + 0.01 * jnp.tanh(state @ params)
        path.append(state)
    return jnp.stack(path)


def euler_b(params, state):
    def step(s, _):
        s = s + 0.01 * jnp.tanh(s @ params)
        return s, s

    return jax.lax.scan(step, state, None, length=300)[1]


def euler_c(params, state):
    path = []
    for _ in range(4):
        state = state + 0.01 * jnp.tanh(state @ params)
        path.append(state)
    return jnp.stack(path)


plant(
    "euler steps",
    "unrolled loop",
    euler,
    (euler_b, euler_c),
    (f32(5, 5), f32(5)),
    where="for _ in range(300):\n        state = state + 0.01 * jnp.tanh(state @ params)",
)


@functools.partial(jax.jit, donate_argnums=0)
def write_cache(cache, row, at):
    return cache.at[at].set(row)


def fill_cache(cache, rows):
    updated = write_cache(cache, rows[0], 0)
    drift = jnp.abs(updated - cache).max()
    return write_cache(updated, rows[1], 1), drift


def fill_cache_b(cache, rows):
    norm = jnp.abs(cache).max()
    updated = write_cache(cache, rows[0], 0)
    return write_cache(updated, rows[1], 1), norm


def fill_cache_c(cache, rows):
    cache = write_cache(cache, rows[0], 0)
    cache = write_cache(cache, rows[1], 1)
    return cache, jnp.abs(cache).max()


plant(
    "cache of rows",
    "donation",
    fill_cache,
    (fill_cache_b, fill_cache_c),
    (f32(10, 4), f32(2, 4)),
    where="drift = jnp.abs(updated - cache).max()",
)
