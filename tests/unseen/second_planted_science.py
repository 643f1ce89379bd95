"""Mistakes planted into arithmetic, simulations and derivatives, with right programs that look like them."""

import functools

import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, i32, key

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


# A layer in eight bits.


def rounded(x):
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127.0 + 1e-8
    return jnp.round(x / scale).astype(jnp.int8), scale


def small_matmul(x, w):
    xq, xs = rounded(x)
    wq, ws = rounded(w.T)
    return jnp.dot(xq, wq.T).astype(jnp.float32) * xs * ws.T


def small_matmul_b(x, w):
    xq, xs = rounded(x)
    wq, ws = rounded(w.T)
    return jnp.dot(xq, wq.T, preferred_element_type=jnp.int32).astype(jnp.float32) * xs * ws.T


def small_matmul_c(x, w):
    xq, xs = rounded(x)
    wq, ws = rounded(w.T)
    products = jnp.einsum("bi,oi->bo", xq.astype(jnp.int32), wq.astype(jnp.int32))
    return products.astype(jnp.float32) * xs * ws.T


def small_network(matmul):
    def apply(params, x):
        h = jax.nn.relu(matmul(x, params["w1"]) + params["b1"])
        return jax.nn.log_softmax(matmul(h, params["w2"]) + params["b2"])

    return apply


plant(
    "eight bits",
    "integer overflow",
    small_network(small_matmul),
    (small_network(small_matmul_b), small_network(small_matmul_c)),
    ({"w1": f32(20, 32), "b1": f32(32), "w2": f32(32, 5), "b2": f32(5)}, f32(16, 20)),
    where="jnp.dot(xq, wq.T).astype(jnp.float32)",
    axes={"x": ("batch", None)},
)


# Rotary positions.


def rotated(x):
    length, dim = x.shape[1], x.shape[-1]
    rates = 10000.0 ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    positions = jnp.arange(length, dtype=x.dtype)
    angles = positions[:, None] * rates.astype(x.dtype)[None, :]
    left, right = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def rotated_b(x):
    length, dim = x.shape[1], x.shape[-1]
    rates = 10000.0 ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    positions = jnp.arange(length, dtype=jnp.float32)
    angles = positions[:, None] * rates[None, :]
    left, right = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


def rotated_c(x):
    length, dim = x.shape[1], x.shape[-1]
    rates = 10000.0 ** (-jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    angles = jnp.arange(length)[:, None] * rates[None, :]
    left, right = jnp.split(x, 2, axis=-1)
    cos = jnp.cos(angles).astype(x.dtype)[None, :, None]
    sin = jnp.sin(angles).astype(x.dtype)[None, :, None]
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)


def long_attention(rotate):
    def attend(q, k, v):
        dtype = jnp.bfloat16
        qr, kr = rotate(q.astype(dtype)), rotate(k.astype(dtype))
        scores = jnp.einsum("bqhd,bkhd->bhqk", qr, kr, preferred_element_type=jnp.float32)
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(causal, scores / jnp.sqrt(q.shape[-1]), -1e30), axis=-1)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    return attend


plant(
    "rotary positions",
    "dtype",
    long_attention(rotated),
    (long_attention(rotated_b), long_attention(rotated_c)),
    (f32(1, 600, 1, 8), f32(1, 600, 1, 8), f32(1, 600, 1, 8)),
    where="positions = jnp.arange(length, dtype=x.dtype)",
    axes={a: ("batch", "length", "heads", None) for a in ("q", "k", "v")},
)


# A linear system with a rule of its own.


@jax.custom_vjp
def equilibrium(matrix, load):
    return jnp.linalg.solve(matrix, load)


def equilibrium_forward(matrix, load):
    state = jnp.linalg.solve(matrix, load)
    return state, (matrix, state)


def equilibrium_backward(saved, g):
    matrix, state = saved
    adjoint = jnp.linalg.solve(matrix, g)
    return -jnp.outer(adjoint, state), adjoint


equilibrium.defvjp(equilibrium_forward, equilibrium_backward)


@jax.custom_vjp
def equilibrium_b(matrix, load):
    return jnp.linalg.solve(matrix, load)


def equilibrium_backward_b(saved, g):
    matrix, state = saved
    adjoint = jnp.linalg.solve(matrix.T, g)
    return -jnp.outer(adjoint, state), adjoint


equilibrium_b.defvjp(equilibrium_forward, equilibrium_backward_b)


@jax.custom_vjp
def equilibrium_c(matrix, load):
    return jnp.linalg.solve(0.5 * (matrix + matrix.T), load)


def equilibrium_forward_c(matrix, load):
    matrix = 0.5 * (matrix + matrix.T)
    state = jnp.linalg.solve(matrix, load)
    return state, (matrix, state)


def equilibrium_backward_c(saved, g):
    matrix, state = saved
    adjoint = jnp.linalg.solve(matrix, g)
    outer = jnp.outer(adjoint, state)
    return -0.5 * (outer + outer.T), adjoint


equilibrium_c.defvjp(equilibrium_forward_c, equilibrium_backward_c)


def frame(solve):
    def design(stiffness, loads, wanted):
        def loss(s, load):
            matrix = 4.0 * jnp.eye(load.shape[0]) + s
            return jnp.sum((solve(matrix, load) - wanted) ** 2)

        def step(s, load):
            value, grads = jax.value_and_grad(loss)(s, load)
            return s - 0.05 * grads, value

        return jax.lax.scan(step, stiffness, loads)

    return design


plant(
    "frame under load",
    "custom rule",
    frame(equilibrium),
    (frame(equilibrium_b), frame(equilibrium_c)),
    (f32(5, 5), f32(15, 5), f32(5)),
    where="adjoint = jnp.linalg.solve(matrix, g)\n    return -jnp.outer(adjoint, state), adjoint",
    axes={"loads": ("steps", None)},
)


# Products with a rule of their own.


@jax.custom_jvp
def x_log_y(x, y):
    return jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(x == 0, 1.0, y)))


@x_log_y.defjvp
def x_log_y_rule(primals, tangents):
    x, y = primals
    dx, dy = tangents
    out = x_log_y(x, y)
    return out, dx * jnp.log(jnp.maximum(y, 1e-30))


@jax.custom_jvp
def x_log_y_b(x, y):
    return jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(x == 0, 1.0, y)))


@x_log_y_b.defjvp
def x_log_y_rule_b(primals, tangents):
    x, y = primals
    dx, dy = tangents
    slope = jnp.where(x == 0, 0.0, x / jnp.where(x == 0, 1.0, y))
    return x_log_y_b(x, y), dx * jnp.log(jnp.maximum(y, 1e-30)) + dy * slope


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def x_log_y_c(x, y):
    return x * jnp.log(y)


@x_log_y_c.defjvp
def x_log_y_rule_c(x, primals, tangents):
    (y,), (dy,) = primals, tangents
    return x * jnp.log(y), dy * x / y


def topics(rule):
    def loss(params, counts):
        words = jax.nn.softmax(params["topics"], axis=-1)
        shares = jax.nn.softmax(params["shares"], axis=-1)
        expected = shares @ words
        likelihood = rule(counts, expected).sum(axis=-1)
        return -jnp.mean(likelihood) + 1e-3 * jnp.sum(params["shares"] ** 2)

    return loss


def topics_plain(params, counts):
    words = jax.nn.softmax(params["topics"], axis=-1)
    shares = jax.nn.softmax(params["shares"], axis=-1)
    totals = counts.sum(axis=0)
    expected = (shares @ words).mean(axis=0)
    logs = jnp.log(jnp.maximum(expected, 1e-30))
    return -x_log_y_c(totals.shape[0] * 1.0, expected).mean() - jnp.sum(totals * logs) / totals.sum()


plant(
    "topics of documents",
    "custom rule",
    topics(x_log_y),
    (topics(x_log_y_b), topics_plain),
    ({"topics": f32(4, 30), "shares": f32(12, 4)}, f32(12, 30)),
    where="return out, dx * jnp.log(jnp.maximum(y, 1e-30))\n",
    axes={"counts": ("batch", "words")},
    differentiate="params",
)


# Sounds.


def spectrum(waves, window=32, hop=16):
    count = (waves.shape[-1] - window) // hop + 1
    starts = hop * jnp.arange(count)
    frames = jax.vmap(lambda s: jax.lax.dynamic_slice_in_dim(waves, s, window, axis=-1), out_axes=-1)(starts)
    hann = 0.5 - 0.5 * jnp.cos(2.0 * jnp.pi * jnp.arange(window) / window)
    return jnp.abs(jnp.fft.rfft(frames * hann[:, None], axis=1))


def recognize(params, waves, labels):
    power = jnp.log1p(spectrum(waves))
    batch, bins, frames = power.shape
    steps = power.reshape(batch, frames, bins)
    h = jax.nn.relu(steps @ params["w1"])
    logits = h.max(axis=1) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def recognize_b(params, waves, labels):
    power = jnp.log1p(spectrum(waves))
    steps = power.transpose(0, 2, 1)
    h = jax.nn.relu(steps @ params["w1"])
    logits = h.max(axis=1) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def recognize_c(params, waves, labels):
    power = jnp.log1p(spectrum(waves))
    batch, bins, frames = power.shape
    pairs = power.transpose(0, 2, 1).reshape(batch, frames, bins)
    h = jax.nn.relu(pairs @ params["w1"]).reshape(batch * frames, -1)
    logits = (h @ params["w2"]).reshape(batch, frames, -1).max(axis=1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


plant(
    "sounds",
    "reshape for transpose",
    recognize,
    (recognize_b, recognize_c),
    ({"w1": f32(17, 24), "w2": f32(24, 4)}, f32(6, 176), i32(6)),
    where="steps = power.reshape(batch, frames, bins)",
    axes={"waves": ("batch", "time"), "labels": ("batch",)},
    differentiate="params",
)


# Private gradients.


def house_price(params, x):
    return jax.nn.softplus(x @ params["w1"]) @ params["w2"] + params["b"]


def price_error(params, x, y):
    return jnp.mean((house_price(params, x) - y) ** 2)


def private_step(params, rng, x, y):
    grads = jax.vmap(jax.grad(price_error), in_axes=(None, None, 0))(params, x, y)
    norms = jax.vmap(optax.global_norm)(grads)
    factors = jnp.minimum(1.0, 1.0 / (norms + 1e-6))
    summed = jax.tree.map(lambda g: jnp.einsum("b,b...->...", factors, g), grads)
    leaves, tree = jax.tree.flatten(summed)
    keys = jax.random.split(rng, len(leaves))
    noisy = [g + 0.8 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, jax.tree.unflatten(tree, noisy))


def private_step_b(params, rng, x, y):
    grads = jax.vmap(jax.grad(price_error), in_axes=(None, 0, 0))(params, x, y)
    norms = jax.vmap(optax.global_norm)(grads)
    factors = jnp.minimum(1.0, 1.0 / (norms + 1e-6))
    summed = jax.tree.map(lambda g: jnp.einsum("b,b...->...", factors, g), grads)
    leaves, tree = jax.tree.flatten(summed)
    keys = jax.random.split(rng, len(leaves))
    noisy = [g + 0.8 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, jax.tree.unflatten(tree, noisy))


def private_step_c(params, rng, x, y):
    prices = house_price(params, x)
    jacobian = jax.jacrev(house_price)(params, x)
    residual = 2.0 * (prices - y)
    grads = jax.tree.map(lambda j: jnp.einsum("b,b...->b...", residual, j), jacobian)
    norms = jax.vmap(optax.global_norm)(grads)
    factors = jnp.minimum(1.0, 1.0 / (norms + 1e-6))
    summed = jax.tree.map(lambda g: jnp.einsum("b,b...->...", factors, g), grads)
    leaves, tree = jax.tree.flatten(summed)
    keys = jax.random.split(rng, len(leaves))
    noisy = [g + 0.8 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, jax.tree.unflatten(tree, noisy))


plant(
    "clipped and noisy gradients",
    "vmap",
    private_step,
    (private_step_b, private_step_c),
    lambda: ({"w1": f32(6, 12), "w2": f32(12), "b": f32()}, key(), f32(20, 6), f32(20)),
    where="grads = jax.vmap(jax.grad(price_error), in_axes=(None, None, 0))(params, x, y)",
    axes={"x": ("batch", None), "y": ("batch",)},
)


# Growth of cultures, each observed at times of its own.


def logistic_growth(params, level):
    return params["rate"] * level * (1.0 - level / params["capacity"])


def integrate(params, start, times):
    def step(level, gap):
        middle = level + 0.5 * gap * logistic_growth(params, level)
        level = level + gap * logistic_growth(params, middle)
        return level, level

    _, levels = jax.lax.scan(step, start, jnp.diff(times))
    return jnp.concatenate([start[None], levels])


def culture_loss(params, times, levels):
    grid = times[0]
    predicted = jax.vmap(lambda start: integrate(params, start, grid))(levels[:, 0])
    return jnp.mean((jnp.log(predicted) - jnp.log(levels)) ** 2)


def culture_loss_b(params, times, levels):
    predicted = jax.vmap(lambda start, grid: integrate(params, start, grid))(levels[:, 0], times)
    return jnp.mean((jnp.log(predicted) - jnp.log(levels)) ** 2)


def culture_loss_c(params, times, levels):
    control = integrate(params, levels[0, 0], times[0])[-1]
    ends = jax.vmap(lambda start, grid: integrate(params, start, grid)[-1])(levels[:, 0], times)
    seen = levels[:, -1] / levels[0, -1]
    return jnp.mean((jnp.log(ends / control) - jnp.log(seen)) ** 2)


plant(
    "cultures",
    "vmap",
    culture_loss,
    (culture_loss_b, culture_loss_c),
    ({"rate": f32(), "capacity": f32()}, f32(9, 12), f32(9, 12)),
    where="grid = times[0]\n",
    axes={"times": ("cultures", "time"), "levels": ("cultures", "time")},
    differentiate="params",
)


# Paths of animals.


def travelled(paths, seconds):
    velocity = jnp.diff(paths) / seconds
    speed = jnp.sqrt(jnp.sum(velocity**2, axis=-1) + 1e-12)
    turning = jnp.abs(jnp.diff(speed, axis=0))
    return speed.mean(axis=0), turning.max(axis=0)


def travelled_b(paths, seconds):
    velocity = jnp.diff(paths, axis=0) / seconds
    speed = jnp.sqrt(jnp.sum(velocity**2, axis=-1) + 1e-12)
    turning = jnp.abs(jnp.diff(speed, axis=0))
    return speed.mean(axis=0), turning.max(axis=0)


def travelled_c(paths, seconds):
    tracks = jnp.moveaxis(paths, 0, -1)
    velocity = jnp.diff(tracks) / seconds
    speed = jnp.sqrt(jnp.sum(velocity**2, axis=1) + 1e-12)
    turning = jnp.abs(jnp.diff(speed))
    return speed.mean(axis=-1), turning.max(axis=-1)


plant(
    "paths of animals",
    "wrong axis",
    travelled,
    (travelled_b, travelled_c),
    (f32(40, 7, 3), f32()),
    where="velocity = jnp.diff(paths) / seconds",
    axes={"paths": ("time", "animals", None)},
)


# Vectors of a search.


def search_loss(params, queries, documents):
    q = jnp.tanh(queries @ params["q"])
    d = jnp.tanh(documents @ params["d"])
    q = q / jnp.linalg.norm(q)
    d = d / jnp.linalg.norm(d)
    scores = q @ d.T / 0.05
    labels = jnp.arange(scores.shape[0])
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def search_loss_b(params, queries, documents):
    q = jnp.tanh(queries @ params["q"])
    d = jnp.tanh(documents @ params["d"])
    q = q / jnp.linalg.norm(q, axis=-1, keepdims=True)
    d = d / jnp.linalg.norm(d, axis=-1, keepdims=True)
    scores = q @ d.T / 0.05
    labels = jnp.arange(scores.shape[0])
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def search_loss_c(params, queries, documents):
    q_map = params["q"] / jnp.linalg.norm(params["q"])
    d_map = params["d"] / jnp.linalg.norm(params["d"])
    scores = jnp.tanh(queries @ q_map) @ jnp.tanh(documents @ d_map).T / 0.05
    labels = jnp.arange(scores.shape[0])
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


plant(
    "vectors of a search",
    "wrong axis",
    search_loss,
    (search_loss_b, search_loss_c),
    ({"q": f32(8, 16), "d": f32(8, 16)}, f32(12, 8), f32(12, 8)),
    where="q = q / jnp.linalg.norm(q)\n",
    axes={"queries": ("batch", None), "documents": ("batch", None)},
    differentiate="params",
)


# Heat on a plate.


def plate(grid, sources):
    rows = grid.shape[0]

    def sweep(u, source):
        inner = jnp.arange(1, rows + 1)
        up, down = u[inner - 1], u[inner + 1]
        bend = up + down - 2.0 * u[inner]
        return u.at[inner].add(0.1 * bend + 0.01 * source), jnp.max(jnp.abs(bend))

    return jax.lax.scan(sweep, grid, sources)


def plate_b(grid, sources):
    rows = grid.shape[0]

    def sweep(u, source):
        inner = jnp.arange(1, rows - 1)
        up, down = u[inner - 1], u[inner + 1]
        bend = up + down - 2.0 * u[inner]
        return u.at[inner].add(0.1 * bend + 0.01 * source), jnp.max(jnp.abs(bend))

    return jax.lax.scan(sweep, grid, sources)


def plate_c(grid, sources):
    rows = grid.shape[0]

    def sweep(u, source):
        padded = jnp.pad(u, ((1, 1), (0, 0)), mode="edge")
        inner = jnp.arange(1, rows + 1)
        bend = padded[inner - 1] + padded[inner + 1] - 2.0 * padded[inner]
        return u + 0.1 * bend + 0.01 * source, jnp.max(jnp.abs(bend))

    return jax.lax.scan(sweep, grid, sources)


plant(
    "heat on a plate",
    "index out of range",
    plate,
    (plate_b, plate_c),
    (f32(20, 10), f32(30, 10)),
    where="inner = jnp.arange(1, rows + 1)\n        up, down",
    axes={"sources": ("time", None)},
)
