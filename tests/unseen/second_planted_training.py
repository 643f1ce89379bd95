"""Mistakes planted into training loops and what they keep, with right programs that look like them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from unseen.case import Case, f32, i32, key

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


NET = {"w1": f32(8, 16), "b1": f32(16), "w2": f32(16, 3), "b2": f32(3)}


def net(params, x):
    h = jax.nn.gelu(x @ params["w1"] + params["b1"])
    return h @ params["w2"] + params["b2"]


def net_loss(params, x, y):
    return jnp.mean((net(params, x) - y) ** 2)


# Fine-tuning of the last layer.


def tune_head(params, xs, ys):
    optimizer = optax.adamw(3e-3, weight_decay=1e-4)
    frozen = {k: params[k] for k in ("w1", "b1")}

    def head_loss(head, x, y):
        return net_loss({**frozen, **head}, x, y)

    def step(carry, batch):
        head, opt_state = carry
        loss, grads = jax.value_and_grad(head_loss)(head, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, head)
        optax.apply_updates(head, updates)
        return (head, opt_state), (loss, optax.global_norm(updates))

    head = {k: params[k] for k in ("w2", "b2")}
    (head, _), (losses, norms) = jax.lax.scan(step, (head, optimizer.init(head)), (xs, ys))
    return {**frozen, **head}, losses, norms


def tune_head_b(params, xs, ys):
    optimizer = optax.adamw(3e-3, weight_decay=1e-4)
    frozen = {k: params[k] for k in ("w1", "b1")}

    def head_loss(head, x, y):
        return net_loss({**frozen, **head}, x, y)

    def step(carry, batch):
        head, opt_state = carry
        loss, grads = jax.value_and_grad(head_loss)(head, *batch)
        updates, opt_state = optimizer.update(grads, opt_state, head)
        head = optax.apply_updates(head, updates)
        return (head, opt_state), (loss, optax.global_norm(updates))

    head = {k: params[k] for k in ("w2", "b2")}
    (head, _), (losses, norms) = jax.lax.scan(step, (head, optimizer.init(head)), (xs, ys))
    return {**frozen, **head}, losses, norms


def tune_head_c(params, xs, ys):
    optimizer = optax.adamw(3e-3, weight_decay=1e-4)
    head = {k: params[k] for k in ("w2", "b2")}
    opt_state = optimizer.init(head)

    def probe(total, batch):
        loss, grads = jax.value_and_grad(lambda h: net_loss({**params, **h}, *batch))(head)
        updates, _ = optimizer.update(grads, opt_state, head)
        moved = optax.apply_updates(head, updates)
        return total + loss, optax.global_norm(jax.tree.map(jnp.subtract, moved, head))

    total, moves = jax.lax.scan(probe, 0.0, (xs, ys))
    return {"w2": head["w2"] * jnp.mean(moves)}, total + moves


plant(
    "tuning of the head",
    "result dropped",
    tune_head,
    (tune_head_b, tune_head_c),
    (NET, f32(12, 20, 8), f32(12, 20, 3)),
    where="        optax.apply_updates(head, updates)\n",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch", None)},
)


# Gradients that are clipped.


def clipped_epoch(params, xs, ys):
    clip = optax.clip_by_global_norm(1.0)
    momentum = optax.trace(decay=0.9)

    def step(carry, batch):
        params, clip_state, trace_state = carry
        loss, grads = jax.value_and_grad(net_loss)(params, *batch)
        clipped, clip_state = clip.update(grads, clip_state)
        updates, trace_state = momentum.update(grads, trace_state)
        params = jax.tree.map(lambda p, u: p - 0.05 * u, params, updates)
        return (params, clip_state, trace_state), loss

    start = (params, clip.init(params), momentum.init(params))
    (params, *_), losses = jax.lax.scan(step, start, (xs, ys))
    return params, losses


def clipped_epoch_b(params, xs, ys):
    clip = optax.clip_by_global_norm(1.0)
    momentum = optax.trace(decay=0.9)

    def step(carry, batch):
        params, clip_state, trace_state = carry
        loss, grads = jax.value_and_grad(net_loss)(params, *batch)
        grads, clip_state = clip.update(grads, clip_state)
        updates, trace_state = momentum.update(grads, trace_state)
        params = jax.tree.map(lambda p, u: p - 0.05 * u, params, updates)
        return (params, clip_state, trace_state), loss

    start = (params, clip.init(params), momentum.init(params))
    (params, *_), losses = jax.lax.scan(step, start, (xs, ys))
    return params, losses


plant(
    "clipping",
    "result dropped",
    clipped_epoch,
    (clipped_epoch_b,),
    (NET, f32(12, 20, 8), f32(12, 20, 3)),
    where="clipped, clip_state = clip.update(grads, clip_state)",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch", None)},
)


# Half precision with a scale of the loss.


class Half(NamedTuple):
    params: dict
    scale: jax.Array
    good_steps: jax.Array


def half_step(state, batch):
    x, y = batch

    def scaled(p):
        half = jax.tree.map(lambda a: a.astype(jnp.float16), p)
        return net_loss(half, x.astype(jnp.float16), y).astype(jnp.float32) * state.scale

    grads = jax.tree.map(lambda g: g / state.scale, jax.grad(scaled)(state.params))
    finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.05 * g, p), state.params, grads)
    good_steps = jnp.where(finite, state.good_steps + 1, 0)
    scale = jnp.where(good_steps >= 5, state.scale * 2.0, state.scale)
    scale = jnp.where(finite, scale, state.scale / 2.0)
    return Half(params, state.scale, good_steps % 5), finite


def half_step_b(state, batch):
    x, y = batch

    def scaled(p):
        half = jax.tree.map(lambda a: a.astype(jnp.float16), p)
        return net_loss(half, x.astype(jnp.float16), y).astype(jnp.float32) * state.scale

    grads = jax.tree.map(lambda g: g / state.scale, jax.grad(scaled)(state.params))
    finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.05 * g, p), state.params, grads)
    good_steps = jnp.where(finite, state.good_steps + 1, 0)
    scale = jnp.where(good_steps >= 5, state.scale * 2.0, state.scale)
    scale = jnp.where(finite, scale, state.scale / 2.0)
    return Half(params, scale, good_steps % 5), finite


def half_step_c(state, batch):
    x, y = batch

    def scaled(p):
        half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), p)
        return net_loss(half, x.astype(jnp.bfloat16), y).astype(jnp.float32) * state.scale

    grads = jax.tree.map(lambda g: g / state.scale, jax.grad(scaled)(state.params))
    finite = jnp.all(jnp.array([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]))
    params = jax.tree.map(lambda p, g: jnp.where(finite, p - 0.05 * g, p), state.params, grads)
    return Half(params, state.scale, state.good_steps + finite), finite


def in_epochs(step):
    return lambda state, xs, ys: jax.lax.scan(step, state, (xs, ys))


plant(
    "scale of a loss",
    "carry not used",
    in_epochs(half_step),
    (in_epochs(half_step_b), in_epochs(half_step_c)),
    (Half(NET, f32(), i32()), f32(12, 20, 8), f32(12, 20, 3)),
    where="return Half(params, state.scale, good_steps % 5), finite",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch", None)},
)


# Batch norm over replicas.


def synced_norm(x, gamma, beta):
    def shard(rows):
        mean = jax.lax.pmean(rows.mean(axis=0), "replica")
        var = jax.lax.pmean(rows.var(axis=0), "replica")
        return (rows - mean) / jnp.sqrt(var + 1e-5) * gamma + beta, mean, var

    y, mean, var = jax.vmap(shard, axis_name="replica")(x)
    return y, mean[0], var[0]


def synced_norm_b(x, gamma, beta):
    def shard(rows):
        mean = jax.lax.pmean(rows.mean(axis=0), "replica")
        var = jax.lax.pmean(((rows - mean) ** 2).mean(axis=0), "replica")
        return (rows - mean) / jnp.sqrt(var + 1e-5) * gamma + beta, mean, var

    y, mean, var = jax.vmap(shard, axis_name="replica")(x)
    return y, mean[0], var[0]


def synced_norm_c(x, gamma, beta):
    def shard(rows):
        first = jax.lax.pmean(rows.mean(axis=0), "replica")
        second = jax.lax.pmean((rows**2).mean(axis=0), "replica")
        var = jnp.maximum(second - first**2, 0.0)
        return (rows - first) / jnp.sqrt(var + 1e-5) * gamma + beta, first, var

    y, mean, var = jax.vmap(shard, axis_name="replica")(x)
    return y, mean[0], var[0]


plant(
    "statistics of replicas",
    "mean of means",
    synced_norm,
    (synced_norm_b, synced_norm_c),
    (f32(4, 10, 6), f32(6), f32(6)),
    where='var = jax.lax.pmean(rows.var(axis=0), "replica")',
    axes={"x": ("replicas", "batch", "features"), "gamma": ("features",), "beta": ("features",)},
)


# How sure a network is.


def with_dropout(params, x, rng):
    h = jax.nn.gelu(x @ params["w1"] + params["b1"])
    keep = jax.random.bernoulli(rng, 0.8, h.shape)
    h = jnp.where(keep, h / 0.8, 0.0)
    return jax.nn.softmax(h @ params["w2"] + params["b2"])


def uncertainty(rng, params, x):
    draws = jnp.stack([with_dropout(params, x, rng) for _ in range(8)])
    mean = draws.mean(axis=0)
    total = -jnp.sum(mean * jnp.log(mean + 1e-9), axis=-1)
    expected = -jnp.sum(draws * jnp.log(draws + 1e-9), axis=-1).mean(axis=0)
    return mean, total - expected


def uncertainty_b(rng, params, x):
    draws = jnp.stack([with_dropout(params, x, k) for k in jax.random.split(rng, 8)])
    mean = draws.mean(axis=0)
    total = -jnp.sum(mean * jnp.log(mean + 1e-9), axis=-1)
    expected = -jnp.sum(draws * jnp.log(draws + 1e-9), axis=-1).mean(axis=0)
    return mean, total - expected


def uncertainty_c(rng, params, x):
    shifts = jnp.linspace(-0.1, 0.1, 8)
    draws = jnp.stack([with_dropout(params, x + s, jax.random.fold_in(rng, i)) for i, s in enumerate(shifts)])
    return draws.mean(axis=0), draws.std(axis=0).sum(axis=-1)


plant(
    "draws of a dropout",
    "key reuse",
    uncertainty,
    (uncertainty_b, uncertainty_c),
    lambda: (key(), NET, f32(30, 8)),
    where="draws = jnp.stack([with_dropout(params, x, rng) for _ in range(8)])",
    axes={"x": ("batch", None)},
)


# Denoising.

DENOISER = {"w1": f32(3, 32), "w2": f32(32, 2)}


def denoise_step(params, rng, batch, alphas):
    t = jax.random.randint(rng, (batch.shape[0],), 0, alphas.shape[0])
    rng, noise_rng = jax.random.split(rng)
    noise = jax.random.normal(noise_rng, batch.shape)
    a = alphas[t][:, None]
    noisy = jnp.sqrt(a) * batch + jnp.sqrt(1.0 - a) * noise

    def loss_fn(p):
        inputs = jnp.concatenate([noisy, t[:, None] / alphas.shape[0]], axis=-1)
        return jnp.mean((jax.nn.silu(inputs @ p["w1"]) @ p["w2"] - noise) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), rng, loss


def denoise_step_b(params, rng, batch, alphas):
    rng, t_rng, noise_rng = jax.random.split(rng, 3)
    t = jax.random.randint(t_rng, (batch.shape[0],), 0, alphas.shape[0])
    noise = jax.random.normal(noise_rng, batch.shape)
    a = alphas[t][:, None]
    noisy = jnp.sqrt(a) * batch + jnp.sqrt(1.0 - a) * noise

    def loss_fn(p):
        inputs = jnp.concatenate([noisy, t[:, None] / alphas.shape[0]], axis=-1)
        return jnp.mean((jax.nn.silu(inputs @ p["w1"]) @ p["w2"] - noise) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), rng, loss


def denoising(step):
    def train(params, rng, batches, alphas):
        def body(carry, batch):
            p, k, loss = step(*carry, batch, alphas)
            return (p, k), loss

        return jax.lax.scan(body, (params, rng), batches)

    return train


plant(
    "times of a denoiser",
    "key reuse",
    denoising(denoise_step),
    (denoising(denoise_step_b),),
    lambda: (DENOISER, key(), f32(10, 16, 2), f32(50)),
    where="t = jax.random.randint(rng, (batch.shape[0],), 0, alphas.shape[0])",
    axes={"batches": ("steps", "batch", None)},
)


# Noise on the inputs.


def smoothed_train(params, xs, ys):
    @jax.jit
    def step(p, x, y):
        x = x + 0.1 * np.random.randn(*x.shape).astype(np.float32)
        loss, grads = jax.value_and_grad(net_loss)(p, x, y)
        return jax.tree.map(lambda a, g: a - 0.05 * g, p, grads), loss

    losses = []
    for i in range(xs.shape[0]):
        params, loss = step(params, xs[i], ys[i])
        losses.append(loss)
    return params, jnp.stack(losses)


def smoothed_train_b(params, xs, ys):
    @jax.jit
    def step(p, k, x, y):
        x = x + 0.1 * jax.random.normal(k, x.shape)
        loss, grads = jax.value_and_grad(net_loss)(p, x, y)
        return jax.tree.map(lambda a, g: a - 0.05 * g, p, grads), loss

    losses, rng = [], jax.random.key(0)
    for i in range(xs.shape[0]):
        params, loss = step(params, jax.random.fold_in(rng, i), xs[i], ys[i])
        losses.append(loss)
    return params, jnp.stack(losses)


def smoothed_train_c(params, xs, ys):
    shifts = np.linspace(-0.1, 0.1, xs.shape[-1]).astype(np.float32)

    @jax.jit
    def step(p, x, y):
        loss, grads = jax.value_and_grad(net_loss)(p, x + shifts, y)
        return jax.tree.map(lambda a, g: a - 0.05 * g, p, grads), loss

    losses = []
    for i in range(xs.shape[0]):
        params, loss = step(params, xs[i], ys[i])
        losses.append(loss)
    return params, jnp.stack(losses)


plant(
    "noise on inputs",
    "state read by jit",
    smoothed_train,
    (smoothed_train_b, smoothed_train_c),
    (NET, f32(6, 20, 8), f32(6, 20, 3)),
    where="x = x + 0.1 * np.random.randn(*x.shape).astype(np.float32)",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch", None)},
)


# Folds.


def cross_validate(params, xs, ys):
    scores = []
    for i in range(xs.shape[0]):
        step = jax.jit(lambda p, x, y: jax.tree.map(lambda a, g: a - 0.05 * g, p, jax.grad(net_loss)(p, x, y)))
        p = params
        for j in range(xs.shape[0]):
            if j != i:
                p = step(p, xs[j], ys[j])
        scores.append(net_loss(p, xs[i], ys[i]))
    return jnp.stack(scores)


def cross_validate_b(params, xs, ys):
    step = jax.jit(lambda p, x, y: jax.tree.map(lambda a, g: a - 0.05 * g, p, jax.grad(net_loss)(p, x, y)))
    scores = []
    for i in range(xs.shape[0]):
        p = params
        for j in range(xs.shape[0]):
            if j != i:
                p = step(p, xs[j], ys[j])
        scores.append(net_loss(p, xs[i], ys[i]))
    return jnp.stack(scores)


plant(
    "folds",
    "recompilation",
    cross_validate,
    (cross_validate_b,),
    (NET, f32(5, 20, 8), f32(5, 20, 3)),
    where="        step = jax.jit(lambda p, x, y",
    axes={"xs": ("folds", "batch", None), "ys": ("folds", "batch", None)},
)


# A kernel between examples.


def gram(x, length_scale):
    n = x.shape[0]
    matrix = jnp.zeros((n, n))
    for i in range(n):
        for j in range(n):
            gap = jnp.sum((x[i] - x[j]) ** 2)
            matrix = matrix.at[i, j].set(jnp.exp(-0.5 * gap / length_scale**2))
    return matrix


def gram_b(x, length_scale):
    gaps = jnp.sum((x[:, None, :] - x[None, :, :]) ** 2, axis=-1)
    return jnp.exp(-0.5 * gaps / length_scale**2)


def gram_c(x, length_scale):
    total = 0.0
    for power in (1, 2, 4):
        gaps = jnp.sum(jnp.abs(x[:, None, :] - x[None, :, :]) ** power, axis=-1)
        total = total + jnp.exp(-0.5 * gaps / length_scale**power)
    return total / 3.0


def process(kernel):
    def posterior(x, y, length_scale):
        k = kernel(x, length_scale) + 0.1 * jnp.eye(x.shape[0])
        chol = jnp.linalg.cholesky(k)
        alpha = jax.scipy.linalg.cho_solve((chol, True), y)
        return -0.5 * y @ alpha - jnp.sum(jnp.log(jnp.diag(chol)))

    return posterior


plant(
    "gram matrix",
    "unrolled loop",
    process(gram),
    (process(gram_b), process(gram_c)),
    (f32(16, 3), f32(16), f32()),
    where="for j in range(n):\n            gap = jnp.sum((x[i] - x[j]) ** 2)",
    axes={"x": ("batch", None), "y": ("batch",)},
)


# Words that are dropped.


def drop_words(rng, h, rate=0.3):
    keep = jax.random.bernoulli(rng, 1.0 - rate, h.shape[:2] + (1,))
    return h * keep * (1.0 - rate)


def drop_words_b(rng, h, rate=0.3):
    keep = jax.random.bernoulli(rng, 1.0 - rate, h.shape[:2] + (1,))
    return h * keep / (1.0 - rate)


def drop_words_c(rng, h, rate=0.3):
    drop = jax.random.bernoulli(rng, rate, h.shape[:2] + (1,))
    return jnp.where(drop, h.mean(axis=1, keepdims=True), h)


def sentences(drop):
    def loss(params, rng, ids, labels):
        h = drop(rng, params["embed"][ids])
        pooled = jnp.tanh(h.mean(axis=1) @ params["w"])
        return optax.softmax_cross_entropy_with_integer_labels(pooled @ params["out"], labels).mean()

    return loss


plant(
    "words that are dropped",
    "scale inverted",
    sentences(drop_words),
    (sentences(drop_words_b), sentences(drop_words_c)),
    lambda: ({"embed": f32(30, 16), "w": f32(16, 16), "out": f32(16, 4)}, key(), i32(12, 9), i32(12)),
    where="return h * keep * (1.0 - rate)",
    axes={"ids": ("batch", "length"), "labels": ("batch",)},
    differentiate="params",
)
