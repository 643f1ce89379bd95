"""Mistakes that public projects made and mended, or asked about, in programs of our own."""

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []


def add(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


# Quantiles of the cost of a delivery.


def cost_quantiles(params, obs):
    h = jax.nn.relu(obs @ params["w1"] + params["b1"])
    out = h @ params["w2"] + params["b2"]
    return out.reshape(obs.shape[0], 4, -1)


def quantile_targets(params, obs, rewards, dones):
    following = cost_quantiles(params, obs)
    best = following.mean(axis=-1).argmax(axis=-1)
    chosen = jnp.take_along_axis(following, best[:, None, None], axis=1)[:, 0]
    targets = rewards[:, None] + 0.97 * (1.0 - dones)[:, None] * chosen
    return jax.lax.stop_gradient(targets)


def huber(errors):
    size = jnp.abs(errors)
    return jnp.where(size < 1.0, 0.5 * errors**2, size - 0.5)


def delivery_loss(params, old_params, obs, actions, rewards, next_obs, dones):
    quantiles = cost_quantiles(params, obs)[jnp.arange(obs.shape[0]), actions]
    targets = quantile_targets(old_params, next_obs, rewards, dones)
    errors = targets[:, None, :] - quantiles[:, :, None]
    count = quantiles.shape[-1]
    levels = (jnp.arange(count) + 0.5) / count
    tilt = jnp.abs(levels - (errors < 0.0))
    return (tilt * huber(errors)).mean(axis=-1).sum(axis=-1).mean()


def delivery_loss_b(params, old_params, obs, actions, rewards, next_obs, dones):
    quantiles = cost_quantiles(params, obs)[jnp.arange(obs.shape[0]), actions]
    targets = quantile_targets(old_params, next_obs, rewards, dones)
    errors = targets[:, None, :] - quantiles[:, :, None]
    count = quantiles.shape[-1]
    levels = (jnp.arange(count) + 0.5) / count
    tilt = jnp.abs(levels[:, None] - (errors < 0.0))
    return (tilt * huber(errors)).mean(axis=-1).sum(axis=-1).mean()


def delivery_loss_c(params, old_params, obs, actions, rewards, next_obs, dones):
    quantiles = cost_quantiles(params, obs)[jnp.arange(obs.shape[0]), actions]
    targets = quantile_targets(old_params, next_obs, rewards, dones)
    errors = targets[:, :, None] - quantiles[:, None, :]
    count = quantiles.shape[-1]
    levels = (jnp.arange(count) + 0.5) / count
    below = (errors < 0.0).astype(jnp.float32)
    per_level = (jnp.abs(levels - below) * huber(errors)).mean(axis=1)
    return per_level.sum(axis=-1).mean()


add(
    "quantiles of deliveries",
    "broadcast",
    delivery_loss,
    (delivery_loss_b, delivery_loss_c),
    lambda: (
        *({"w1": f32(6, 16), "b1": f32(16), "w2": f32(16, 20), "b2": f32(20)} for _ in range(2)),
        f32(12, 6),
        i32(12),
        f32(12),
        f32(12, 6),
        f32(12),
    ),
    where="tilt = jnp.abs(levels - (errors < 0.0))",
    axes={n: ("batch",) for n in ("actions", "rewards", "dones")}
    | {"obs": ("batch", None), "next_obs": ("batch", None)},
    differentiate="params",
    source="an issue of a repository of quantile regression DQN: a vector of levels meets a 3-d array of errors",
)


# A policy that sends elevators.


class ElevatorNet(nn.Module):
    floors: int = 5

    @nn.compact
    def __call__(self, obs):
        h = nn.tanh(nn.Dense(32)(2.0 * obs - 1.0))
        return nn.Dense(self.floors)(h), nn.Dense(1)(h)


def elevator_loss(params, obs, actions, returns):
    logits, value = ElevatorNet().apply(params, obs)
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, actions[:, None], axis=-1)[:, 0]
    gain = returns - jax.lax.stop_gradient(value)
    actor = -(chosen * gain).mean()
    critic = jnp.mean((value[:, 0] - returns) ** 2)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1).mean()
    return actor + 0.5 * critic - 0.01 * entropy


def elevator_loss_b(params, obs, actions, returns):
    logits, value = ElevatorNet().apply(params, obs)
    value = value.squeeze(-1)
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, actions[:, None], axis=-1)[:, 0]
    baseline = jax.lax.stop_gradient(value)
    gain = returns - baseline
    actor = -(chosen * gain).mean()
    critic = jnp.mean((value - returns) ** 2)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1).mean()
    return actor + 0.5 * critic - 0.01 * entropy


def elevator_loss_c(params, obs, actions, returns):
    logits, value = ElevatorNet().apply(params, obs)
    log_probs = jax.nn.log_softmax(logits)
    column = returns[:, None]
    gain = column - jax.lax.stop_gradient(value)
    picked = jax.nn.one_hot(actions, logits.shape[-1])
    actor = -(picked * log_probs * gain).sum(axis=-1).mean()
    critic = jnp.mean((value - column) ** 2)
    entropy = -(jnp.exp(log_probs) * log_probs).sum(axis=-1).mean()
    return actor + 0.5 * critic - 0.01 * entropy


add(
    "elevators",
    "broadcast",
    elevator_loss,
    (elevator_loss_b, elevator_loss_c),
    lambda: (shapes_of(ElevatorNet().init, key(), f32(1, 8)), f32(24, 8), i32(24), f32(24)),
    where="gain = returns - jax.lax.stop_gradient(value)",
    axes={"obs": ("batch", None), "actions": ("batch",), "returns": ("batch",)},
    differentiate="params",
    source="issues of the code of a book on reinforcement learning: the advantage has shape (128, 128)",
)


# A Gaussian process for the height of ground.


def ground_kernel(params, a, b):
    scaled_a, scaled_b = a / jnp.exp(params["length"]), b / jnp.exp(params["length"])
    squares = jnp.sum((scaled_a[:, None, :] - scaled_b[None, :, :]) ** 2, axis=-1)
    return jnp.exp(2.0 * params["scale"]) * jnp.exp(-0.5 * squares)


def ground_loss(params, sites, heights):
    trend = sites @ params["slope"] + params["level"]
    rest = heights - trend
    noise = jnp.exp(2.0 * params["noise"]) + 1e-4
    covariance = ground_kernel(params, sites, sites) + noise * jnp.eye(sites.shape[0])
    factor = jnp.linalg.cholesky(covariance)
    white = jax.scipy.linalg.solve_triangular(factor, rest, lower=True)
    return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(factor)))


def ground_loss_b(params, sites, heights):
    trend = sites @ params["slope"] + params["level"]
    rest = heights[:, 0] - trend
    noise = jnp.exp(2.0 * params["noise"]) + 1e-4
    covariance = ground_kernel(params, sites, sites) + noise * jnp.eye(sites.shape[0])
    factor = jnp.linalg.cholesky(covariance)
    white = jax.scipy.linalg.solve_triangular(factor, rest, lower=True)
    return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(factor)))


def ground_loss_c(params, sites, heights):
    rest = heights[:, 0] - sites @ params["slope"]
    between = rest[:, None] - rest
    count = sites.shape[0]
    sill = jnp.exp(2.0 * params["scale"]) + jnp.exp(2.0 * params["noise"])
    model = sill - ground_kernel(params, sites, sites)
    pairs = 1.0 - jnp.eye(count)
    misfit = pairs * (0.5 * between**2 - model) ** 2
    return misfit.sum() / (count * (count - 1)) + 1e-3 * params["level"] ** 2


add(
    "height of ground",
    "broadcast",
    ground_loss,
    (ground_loss_b, ground_loss_c),
    ({"slope": f32(2), "level": f32(), "length": f32(), "scale": f32(), "noise": f32()}, f32(18, 2), f32(18, 1)),
    where="rest = heights - trend",
    axes={"sites": ("sites", None), "heights": ("sites", None)},
    differentiate="params",
    source="questions about Gaussian processes in JAX: targets with a column meet a mean without one",
)


# Noise taken from spectra.


def denoise(params, noisy, sigma):
    h = jnp.concatenate([noisy / jnp.sqrt(1.0 + sigma**2), 0.25 * jnp.log(sigma)], axis=-1)
    h = jax.nn.silu(h @ params["w1"] + params["b1"])
    return noisy + sigma * (h @ params["w2"])


def spectra_loss(params, rng, clean):
    level_key, noise_key = jax.random.split(rng)
    sigma = jnp.exp(-1.2 + 1.2 * jax.random.normal(level_key, (clean.shape[0], 1)))
    noisy = clean + sigma * jax.random.normal(noise_key, clean.shape)
    errors = jnp.sum((denoise(params, noisy, sigma) - clean) ** 2, axis=-1)
    importance = (sigma**2 + 0.25) / (0.5 * sigma) ** 2
    return jnp.mean(importance * errors)


def spectra_loss_b(params, rng, clean):
    level_key, noise_key = jax.random.split(rng)
    sigma = jnp.exp(-1.2 + 1.2 * jax.random.normal(level_key, (clean.shape[0], 1)))
    noisy = clean + sigma * jax.random.normal(noise_key, clean.shape)
    errors = jnp.sum((denoise(params, noisy, sigma) - clean) ** 2, axis=-1)
    importance = (sigma**2 + 0.25) / (0.5 * sigma) ** 2
    return jnp.mean(importance[:, 0] * errors)


def spectra_loss_c(params, rng, clean):
    level_key, noise_key = jax.random.split(rng)
    levels = jnp.exp(jnp.linspace(-2.0, 1.0, 4))
    weights = (levels**2 + 0.25) / (0.5 * levels) ** 2
    noise = jax.random.normal(noise_key, (4, *clean.shape))

    def at_level(level, noise):
        sigma = jnp.full((clean.shape[0], 1), level)
        return jnp.sum((denoise(params, clean + sigma * noise, sigma) - clean) ** 2, axis=-1)

    errors = jax.vmap(at_level)(levels, noise)
    return jnp.mean(weights[:, None] * errors)


add(
    "noise of spectra",
    "broadcast",
    spectra_loss,
    (spectra_loss_b, spectra_loss_c),
    lambda: ({"w1": f32(11, 24), "b1": f32(24), "w2": f32(24, 10)}, key(), f32(16, 10)),
    where="return jnp.mean(importance * errors)",
    axes={"clean": ("batch", None)},
    differentiate="params",
    source="implementations of diffusion: noise levels keep an axis for the images, losses do not",
)


# A flow with a shock, by a network.


def velocity(params, point):
    h = jnp.tanh(params["w1"] @ point + params["b1"])
    h = jnp.tanh(params["w2"] @ h + params["b2"])
    return params["w3"] @ h


def slopes_of(params, points):
    scalar = lambda point: velocity(params, point)[0]
    first = jax.vmap(jax.grad(scalar))(points)
    second = jax.vmap(jax.hessian(scalar))(points)
    return first, second[:, 1, 1]


def shock_loss(params, points, starts, start_values):
    u = jax.vmap(velocity, in_axes=(None, 0))(params, points)
    first, u_xx = slopes_of(params, points)
    equation = first[:, 0] + u * first[:, 1] - 0.01 * u_xx
    start = jax.vmap(velocity, in_axes=(None, 0))(params, starts)[:, 0]
    return jnp.mean(equation**2) + 10.0 * jnp.mean((start - start_values) ** 2)


def shock_loss_b(params, points, starts, start_values):
    u = jax.vmap(velocity, in_axes=(None, 0))(params, points)[:, 0]
    first, u_xx = slopes_of(params, points)
    equation = first[:, 0] + u * first[:, 1] - 0.01 * u_xx
    start = jax.vmap(velocity, in_axes=(None, 0))(params, starts)[:, 0]
    return jnp.mean(equation**2) + 10.0 * jnp.mean((start - start_values) ** 2)


def shock_loss_c(params, points, starts, start_values):
    u = jax.vmap(velocity, in_axes=(None, 0))(params, points)
    first, u_xx = slopes_of(params, points)
    equation = first[:, :1] + u * first[:, 1:] - 0.01 * u_xx[:, None]
    start = jax.vmap(velocity, in_axes=(None, 0))(params, starts)
    return jnp.mean(equation**2) + 10.0 * jnp.mean((start - start_values[:, None]) ** 2)


add(
    "a shock",
    "broadcast",
    shock_loss,
    (shock_loss_b, shock_loss_c),
    (
        {"w1": f32(16, 2), "b1": f32(16), "w2": f32(16, 16), "b2": f32(16), "w3": f32(1, 16)},
        f32(20, 2),
        f32(12, 2),
        f32(12),
    ),
    where="u = jax.vmap(velocity, in_axes=(None, 0))(params, points)\n    first, u_xx = slopes_of(params, points)\n"
    "    equation = first[:, 0]",
    axes={"points": ("points", None), "starts": ("starts", None), "start_values": ("starts",)},
    differentiate="params",
    source="questions about physics-informed networks: u is (N, 1), its derivatives are (N,)",
)


# A rod with held ends.


def rod(profile, left, right, sources):
    def step(u, source):
        bend = jnp.zeros_like(u).at[1:-1].set(u[2:] - 2.0 * u[1:-1] + u[:-2])
        u = u + 0.2 * bend + 0.01 * source
        u.at[0].set(left)
        u.at[-1].set(right)
        return u, u.mean()

    return jax.lax.scan(step, profile, sources)


def rod_b(profile, left, right, sources):
    def step(u, source):
        bend = jnp.zeros_like(u).at[1:-1].set(u[2:] - 2.0 * u[1:-1] + u[:-2])
        u = u + 0.2 * bend + 0.01 * source
        u = u.at[0].set(left)
        u = u.at[-1].set(right)
        return u, u.mean()

    return jax.lax.scan(step, profile, sources)


def rod_c(profile, left, right, sources):
    def step(u, source):
        held = u.at[0].set(left).at[-1].set(right)
        bend = held[2:] - 2.0 * held[1:-1] + held[:-2]
        u = u.at[1:-1].add(0.2 * bend + 0.01 * source[1:-1])
        return u, held.mean()

    last, means = jax.lax.scan(step, profile, sources)
    return last.at[0].set(left).at[-1].set(right), means


add(
    "a rod with held ends",
    "dropped result",
    rod,
    (rod_b, rod_c),
    (f32(30), f32(), f32(), f32(40, 30)),
    where="        u.at[0].set(left)\n        u.at[-1].set(right)",
    axes={"sources": ("time", None)},
    source="questions on a forum: an array is not changed by .at[].set",
)


# A recommender of recipes.


def recipe_scores(params, users, recipes):
    return jnp.sum(params["users"][users] * params["recipes"][recipes], axis=-1) + params["bias"][recipes]


def recipe_loss(params, users, liked, other):
    gap = recipe_scores(params, users, liked) - recipe_scores(params, users, other)
    decay = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return -jax.nn.log_sigmoid(gap).mean() + 1e-5 * decay


def recommend(params, users, liked, other):
    tx = optax.adam(3e-3)

    def step(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(recipe_loss)(params, *batch)
        updates, _ = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), loss

    (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), (users, liked, other))
    return params, losses


def recommend_b(params, users, liked, other):
    tx = optax.adam(3e-3)

    def step(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(recipe_loss)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), loss

    (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), (users, liked, other))
    return params, losses


def recommend_c(params, users, liked, other):
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(3e-2))
    stateless = tx.init(params)

    def step(params, batch):
        loss, grads = jax.value_and_grad(recipe_loss)(params, *batch)
        updates, _ = tx.update(grads, stateless, params)
        return optax.apply_updates(params, updates), loss

    return jax.lax.scan(step, params, (users, liked, other))


add(
    "recipes",
    "dropped result",
    recommend,
    (recommend_b, recommend_c),
    ({"users": f32(4, 8), "recipes": f32(4, 8), "bias": f32(4)}, i32(10, 16), i32(10, 16), i32(10, 16)),
    where="updates, _ = tx.update(grads, opt_state, params)",
    axes={n: ("steps", "batch") for n in ("users", "liked", "other")},
    source="training loops whose optimizer state is not handed on; a mended step of a CLIP in JAX",
)


# Leaves of plants.


class LeafNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for width in (24, 16):
            x = nn.Dense(width)(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = nn.relu(x)
        return nn.Dense(4)(x)


def leaf_loss(params, stats, x, y):
    variables = {"params": params, "batch_stats": stats}
    logits, changed = LeafNet().apply(variables, x, train=True, mutable=["batch_stats"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    return loss, changed["batch_stats"]


def leaf_accuracy(params, stats, x, y):
    logits = LeafNet().apply({"params": params, "batch_stats": stats}, x, train=False)
    return jnp.mean(logits.argmax(axis=-1) == y)


def classify_leaves(variables, images, labels):
    params, stats = variables["params"], variables["batch_stats"]

    def step(params, batch):
        (loss, _), grads = jax.value_and_grad(leaf_loss, has_aux=True)(params, stats, *batch)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss

    params, losses = jax.lax.scan(step, params, (images, labels))
    return losses, leaf_accuracy(params, stats, images[0], labels[0]), params


def classify_leaves_b(variables, images, labels):
    def step(carry, batch):
        params, stats = carry
        (loss, stats), grads = jax.value_and_grad(leaf_loss, has_aux=True)(params, stats, *batch)
        return (jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), stats), loss

    start = variables["params"], variables["batch_stats"]
    (params, stats), losses = jax.lax.scan(step, start, (images, labels))
    return losses, leaf_accuracy(params, stats, images[0], labels[0]), params, stats


def classify_leaves_c(variables, images, labels):
    def step(carry, batch):
        params, stats = carry
        (_, _), climb = jax.value_and_grad(leaf_loss, has_aux=True)(params, stats, *batch)
        radius = 0.05 / (optax.global_norm(climb) + 1e-6)
        near = jax.tree.map(lambda p, g: p + radius * g, params, climb)
        (loss, stats), grads = jax.value_and_grad(leaf_loss, has_aux=True)(near, stats, *batch)
        return (jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), stats), loss

    start = variables["params"], variables["batch_stats"]
    (params, stats), losses = jax.lax.scan(step, start, (images, labels))
    return losses, leaf_accuracy(params, stats, images[0], labels[0]), params, stats


add(
    "leaves of plants",
    "dropped result",
    classify_leaves,
    (classify_leaves_b, classify_leaves_c),
    lambda: (
        shapes_of(functools.partial(LeafNet().init, train=False), key(), f32(1, 10)),
        f32(6, 20, 10),
        i32(6, 20),
    ),
    where="(loss, _), grads = jax.value_and_grad(leaf_loss, has_aux=True)(params, stats, *batch)",
    axes={"images": ("steps", "batch", None), "labels": ("steps", "batch")},
    source="a mended state of batch normalization in a library for single cells; discussions about mutable collections",
)


# Moments of what a robot sees.


class Moments(NamedTuple):
    count: jax.Array
    mean: jax.Array
    squares: jax.Array


def merged(moments, obs):
    size = obs.shape[0]
    gap = obs.mean(axis=0) - moments.mean
    total = moments.count + size
    mean = moments.mean + gap * size / total
    squares = moments.squares + obs.var(axis=0) * size + gap**2 * moments.count * size / total
    return total, mean, squares


def learn_moments(moments, obs):
    total, mean, squares = merged(moments, obs)
    moments._replace(count=total, mean=mean, squares=squares)
    return moments


def learn_moments_b(moments, obs):
    total, mean, squares = merged(moments, obs)
    return moments._replace(count=total, mean=mean, squares=squares)


def standard(moments, obs):
    deviation = jnp.sqrt(moments.squares / moments.count + 1e-4)
    return jnp.clip((obs - moments.mean) / deviation, -5.0, 5.0)


def walk(learn):
    def run(weights, obs):
        width = obs.shape[-1]
        start = Moments(jnp.float32(1.0), jnp.zeros(width), jnp.ones(width))

        def step(moments, obs):
            moments = learn(moments, obs)
            torques = jnp.tanh(standard(moments, obs) @ weights)
            return moments, torques.mean(axis=0)

        return jax.lax.scan(step, start, obs)

    return run


def walk_tested(weights, obs):
    width = obs.shape[-1]
    start = Moments(jnp.float32(1.0), jnp.zeros(width), jnp.ones(width))

    def step(moments, obs):
        moments = learn_moments_b(moments, obs)
        wide = moments._replace(squares=4.0 * moments.squares)
        torques = jnp.tanh(standard(moments, obs) @ weights)
        careful = jnp.tanh(standard(wide, obs) @ weights)
        return moments, (torques.mean(axis=0), careful.mean(axis=0))

    return jax.lax.scan(step, start, obs)


add(
    "moments of a robot",
    "dropped result",
    walk(learn_moments),
    (walk(learn_moments_b), walk_tested),
    (f32(7, 3), f32(12, 16, 7)),
    where="    moments._replace(count=total, mean=mean, squares=squares)\n    return moments",
    axes={"obs": ("time", "env", None)},
    source="wrappers that normalize observations in agents that run on the accelerator",
)


# Codes for patches of cloth.


def nearest_codes(codes, z):
    squares = jnp.sum(z**2, axis=-1, keepdims=True) - 2.0 * z @ codes.T + jnp.sum(codes**2, axis=-1)
    return squares.argmin(axis=-1), squares


def cloth_loss(params, patches):
    z = jnp.tanh(patches @ params["encoder"])
    index, _ = nearest_codes(params["codes"], z)
    coded = params["codes"][index]
    coded = z + jax.lax.stop_gradient(coded - z)
    book = jnp.mean((coded - jax.lax.stop_gradient(z)) ** 2)
    commit = jnp.mean((z - jax.lax.stop_gradient(coded)) ** 2)
    rebuilt = jax.nn.relu(coded @ params["d1"]) @ params["d2"]
    return jnp.mean((rebuilt - patches) ** 2) + book + 0.25 * commit


def cloth_loss_b(params, patches):
    z = jnp.tanh(patches @ params["encoder"])
    index, _ = nearest_codes(params["codes"], z)
    coded = params["codes"][index]
    book = jnp.mean((coded - jax.lax.stop_gradient(z)) ** 2)
    commit = jnp.mean((z - jax.lax.stop_gradient(coded)) ** 2)
    coded = z + jax.lax.stop_gradient(coded - z)
    rebuilt = jax.nn.relu(coded @ params["d1"]) @ params["d2"]
    return jnp.mean((rebuilt - patches) ** 2) + book + 0.25 * commit


def cloth_loss_c(params, patches):
    z = jnp.tanh(patches @ params["encoder"])
    index, squares = nearest_codes(params["codes"], z)
    soft = jax.nn.softmax(-squares, axis=-1)
    hard = jax.nn.one_hot(index, soft.shape[-1])
    shares = soft + jax.lax.stop_gradient(hard - soft)
    coded = shares @ params["codes"]
    commit = jnp.mean((coded - z) ** 2)
    rebuilt = jax.nn.relu(coded @ params["d1"]) @ params["d2"]
    return jnp.mean((rebuilt - patches) ** 2) + 0.25 * commit


add(
    "codes of cloth",
    "stop_gradient",
    cloth_loss,
    (cloth_loss_b, cloth_loss_c),
    ({"encoder": f32(12, 6), "codes": f32(10, 6), "d1": f32(6, 16), "d2": f32(16, 12)}, f32(20, 12)),
    where="coded = z + jax.lax.stop_gradient(coded - z)\n    book =",
    axes={"patches": ("batch", None)},
    differentiate="params",
    source="an issue of a VQ-VAE in JAX: the loss of the codes is computed after the straight-through line",
)


# A valve with a learned temperature.


def valve_action(params, rng, obs):
    h = jax.nn.relu(obs @ params["w1"])
    mean, spread = jnp.split(h @ params["w2"], 2, axis=-1)
    spread = jnp.exp(jnp.clip(spread, -4.0, 1.0))
    raw = mean + spread * jax.random.normal(rng, mean.shape)
    log_prob = jax.scipy.stats.norm.logpdf(raw, mean, spread)
    squash = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), (log_prob - squash).sum(axis=-1)


def valve_value(critic, obs, action):
    h = jax.nn.relu(jnp.concatenate([obs, action], axis=-1) @ critic["w1"])
    return (h @ critic["w2"])[:, 0]


def valve_loss(params, critic, rng, obs):
    action, log_prob = valve_action(params["policy"], rng, obs)
    temperature = jnp.exp(params["log_alpha"])
    value = valve_value(critic, obs, action)
    policy = jnp.mean(jax.lax.stop_gradient(temperature) * log_prob - value)
    target = -float(action.shape[-1])
    heat = jnp.mean(-temperature * (log_prob + target))
    return policy + heat


def valve_loss_b(params, critic, rng, obs):
    action, log_prob = valve_action(params["policy"], rng, obs)
    temperature = jnp.exp(params["log_alpha"])
    value = valve_value(critic, obs, action)
    policy = jnp.mean(jax.lax.stop_gradient(temperature) * log_prob - value)
    target = -float(action.shape[-1])
    heat = jnp.mean(-temperature * jax.lax.stop_gradient(log_prob + target))
    return policy + heat


def valve_step(learned, critic, rng, obs):
    def policy_loss(policy, log_alpha):
        action, log_prob = valve_action(policy, rng, obs)
        return jnp.mean(jnp.exp(log_alpha) * log_prob - valve_value(critic, obs, action)), log_prob

    def heat_loss(log_alpha, log_prob):
        return jnp.mean(-jnp.exp(log_alpha) * (log_prob - 2.0))

    grads, log_prob = jax.grad(policy_loss, has_aux=True)(learned["policy"], learned["log_alpha"])
    heat = jax.grad(heat_loss)(learned["log_alpha"], log_prob)
    policy = jax.tree.map(lambda p, g: p - 1e-2 * g, learned["policy"], grads)
    return {"policy": policy, "log_alpha": learned["log_alpha"] - 1e-2 * heat}


add(
    "a valve",
    "stop_gradient",
    valve_loss,
    (valve_loss_b, valve_step),
    lambda: (
        {"policy": {"w1": f32(5, 16), "w2": f32(16, 4)}, "log_alpha": f32()},
        {"w1": f32(7, 16), "w2": f32(16, 1)},
        key(),
        f32(14, 5),
    ),
    where="heat = jnp.mean(-temperature * (log_prob + target))",
    axes={"obs": ("batch", None)},
    differentiate="params",
    source="issues of baselines of soft actor-critic: the loss of the temperature reaches the policy",
)


# A shop that orders stock.


class StockNet(nn.Module):
    orders: int = 4

    @nn.compact
    def __call__(self, obs):
        h = nn.relu(nn.Dense(24)(obs))
        return nn.Dense(self.orders)(nn.relu(nn.Dense(24)(h)))


def taken(values, actions):
    return jnp.take_along_axis(values, actions[:, None], axis=-1)[:, 0]


def stock_loss(params, target_params, obs, actions, profits, next_obs, closed):
    net = StockNet()
    values = taken(net.apply(params, obs), actions)
    following = net.apply(params, next_obs).max(axis=-1)
    wanted = profits + 0.95 * (1.0 - closed) * following
    agreement = jnp.mean((net.apply(params, obs) - net.apply(target_params, obs)) ** 2)
    return optax.huber_loss(values, wanted).mean() + 1e-3 * agreement


def stock_loss_b(params, target_params, obs, actions, profits, next_obs, closed):
    net = StockNet()
    values = taken(net.apply(params, obs), actions)
    following = jax.lax.stop_gradient(net.apply(params, next_obs).max(axis=-1))
    wanted = profits + 0.95 * (1.0 - closed) * following
    agreement = jnp.mean((net.apply(params, obs) - net.apply(target_params, obs)) ** 2)
    return optax.huber_loss(values, wanted).mean() + 1e-3 * agreement


def stock_loss_c(params, target_params, obs, actions, profits, next_obs, closed):
    net = StockNet()
    values = taken(net.apply(params, obs), actions)
    choice = net.apply(params, next_obs).argmax(axis=-1)
    following = taken(net.apply(target_params, next_obs), choice)
    wanted = profits + 0.95 * (1.0 - closed) * following
    return optax.huber_loss(values, wanted).mean()


add(
    "orders of a shop",
    "stop_gradient",
    stock_loss,
    (stock_loss_b, stock_loss_c),
    lambda: (
        *(shapes_of(StockNet().init, key(), f32(1, 6)) for _ in range(2)),
        f32(18, 6),
        i32(18),
        f32(18),
        f32(18, 6),
        f32(18),
    ),
    where="following = net.apply(params, next_obs).max(axis=-1)\n",
    axes={n: ("batch",) for n in ("actions", "profits", "closed")}
    | {"obs": ("batch", None), "next_obs": ("batch", None)},
    differentiate="params",
    source="questions about Q-learning in JAX: the target is differentiated",
)


# A store of measurements.


class Store(NamedTuple):
    rows: jax.Array
    position: jax.Array
    size: jax.Array


def store_slice(store, chunk):
    capacity, count = store.rows.shape[0], chunk.shape[0]
    rows = jax.lax.dynamic_update_slice_in_dim(store.rows, chunk, store.position, axis=0)
    position = (store.position + count) % capacity
    return Store(rows, position, jnp.minimum(store.size + count, capacity))


def store_slice_b(store, chunk):
    capacity, count = store.rows.shape[0], chunk.shape[0]
    where = (store.position + jnp.arange(count)) % capacity
    rows = store.rows.at[where].set(chunk)
    position = (store.position + count) % capacity
    return Store(rows, position, jnp.minimum(store.size + count, capacity))


def store_slice_c(store, chunk):
    count = chunk.shape[0]
    capacity = store.rows.shape[0] // count * count
    kept = jax.lax.dynamic_update_slice_in_dim(store.rows, chunk, store.position, axis=0)
    position = (store.position + count) % capacity
    return Store(kept, position, jnp.minimum(store.size + count, capacity))


def stored(write):
    def run(rng, chunks):
        start = Store(jnp.zeros((50, chunks.shape[-1])), jnp.int32(0), jnp.int32(0))

        def step(store, inputs):
            chunk, step_key = inputs
            store = write(store, chunk)
            picks = jax.random.randint(step_key, (6,), 0, store.size)
            return store, store.rows[picks].mean(axis=0)

        return jax.lax.scan(step, start, (chunks, jax.random.split(rng, chunks.shape[0])))

    return run


add(
    "a store of measurements",
    "index out of range",
    stored(store_slice),
    (stored(store_slice_b), stored(store_slice_c)),
    lambda: (key(), f32(15, 8, 3)),
    where="rows = jax.lax.dynamic_update_slice_in_dim(store.rows, chunk, store.position, axis=0)",
    axes={"chunks": ("time", None, None)},
    source="an issue of a library for quality diversity: a slice at the end of the buffer replaces the newest rows",
)


# Names of towns, letter by letter.


def letters_loss(params, letters):
    table = params["letters"]
    first = jnp.full((letters.shape[0], 1), table.shape[0], dtype=letters.dtype)
    inputs = table[jnp.concatenate([first, letters[:, :-1]], axis=1)]

    def read(h, x):
        h = jnp.tanh(h @ params["u"] + x @ params["w"] + params["b"])
        return h, h @ params["out"]

    start = jnp.zeros((letters.shape[0], params["u"].shape[0]))
    _, logits = jax.lax.scan(read, start, inputs.swapaxes(0, 1))
    return optax.softmax_cross_entropy_with_integer_labels(logits, letters.T).mean()


def letters_loss_b(params, letters):
    table = params["letters"]
    first = jnp.full((letters.shape[0], 1), table.shape[0] - 1, dtype=letters.dtype)
    inputs = table[jnp.concatenate([first, letters[:, :-1]], axis=1)]

    def read(h, x):
        h = jnp.tanh(h @ params["u"] + x @ params["w"] + params["b"])
        return h, h @ params["out"]

    start = jnp.zeros((letters.shape[0], params["u"].shape[0]))
    _, logits = jax.lax.scan(read, start, inputs.swapaxes(0, 1))
    return optax.softmax_cross_entropy_with_integer_labels(logits, letters.T).mean()


def letters_loss_c(params, letters):
    table = params["letters"]
    nothing = jnp.full((letters.shape[0], 1), table.shape[0], dtype=letters.dtype)
    before = jnp.concatenate([nothing, letters[:, :-1]], axis=1)
    inputs = jnp.take(table, before, axis=0, mode="fill", fill_value=0.0)

    def read(h, x):
        h = jnp.tanh(h @ params["u"] + x @ params["w"] + params["b"])
        return h, h @ params["out"]

    start = jnp.zeros((letters.shape[0], params["u"].shape[0]))
    _, logits = jax.lax.scan(read, start, inputs.swapaxes(0, 1))
    return optax.softmax_cross_entropy_with_integer_labels(logits, letters.T).mean()


add(
    "names of towns",
    "index out of range",
    letters_loss,
    (letters_loss_b, letters_loss_c),
    ({"letters": f32(28, 8), "w": f32(8, 16), "u": f32(16, 16), "b": f32(16), "out": f32(16, 27)}, i32(9, 12)),
    where="first = jnp.full((letters.shape[0], 1), table.shape[0], dtype=letters.dtype)",
    axes={"letters": ("batch", "time")},
    differentiate="params",
    source="an issue of JAX: a table of embeddings that was too small for its words",
)


# Mazes with rules.


def new_maze(rules, rng):
    walls_key, start_key = jax.random.split(rng)
    walls = jax.random.uniform(walls_key, (6, 6)) < 0.3 * jax.nn.sigmoid(rules.mean())
    start = jax.random.randint(start_key, (2,), 0, 6)
    return walls.at[start[0], start[1]].set(False), start


def maze_reward(params, rules, walls, start):
    seen = jnp.concatenate([walls.reshape(-1).astype(jnp.float32), jax.nn.one_hot(start, 6).reshape(-1)])
    h = jnp.tanh(seen @ params["w1"])
    return jnp.dot(h @ params["w2"], rules)


def mazes(params, rng):
    rng, rules_rng, reset_rng = jax.random.split(rng, 3)
    rules_keys = jax.random.split(rng, 16)
    reset_keys = jax.random.split(rng, 16)
    rules = jax.vmap(lambda k: jax.random.normal(k, (4,)))(rules_keys)
    walls, starts = jax.vmap(new_maze)(rules, reset_keys)
    rewards = jax.vmap(maze_reward, in_axes=(None, 0, 0, 0))(params, rules, walls, starts)
    return rewards.mean(), rewards.std()


def mazes_b(params, rng):
    rules_rng, reset_rng = jax.random.split(rng)
    rules_keys = jax.random.split(rules_rng, 16)
    reset_keys = jax.random.split(reset_rng, 16)
    rules = jax.vmap(lambda k: jax.random.normal(k, (4,)))(rules_keys)
    walls, starts = jax.vmap(new_maze)(rules, reset_keys)
    rewards = jax.vmap(maze_reward, in_axes=(None, 0, 0, 0))(params, rules, walls, starts)
    return rewards.mean(), rewards.std()


def mazes_c(params, rng):
    rules_rng, reset_rng = jax.random.split(rng)
    rules = jax.random.normal(rules_rng, (4,))
    reset_keys = jax.random.split(reset_rng, 16)

    def score(params):
        walls, starts = jax.vmap(new_maze, in_axes=(None, 0))(rules, reset_keys)
        return jax.vmap(maze_reward, in_axes=(None, None, 0, 0))(params, rules, walls, starts)

    bolder = jax.tree.map(lambda p: 1.1 * p, params)
    gain = score(bolder) - score(params)
    return gain.mean(), gain.std()


add(
    "mazes with rules",
    "key reuse",
    mazes,
    (mazes_b, mazes_c),
    lambda: ({"w1": f32(48, 16), "w2": f32(16, 4)}, key()),
    where="rules_keys = jax.random.split(rng, 16)\n    reset_keys = jax.random.split(rng, 16)",
    source="an issue of a library of grid worlds: rules and resets take their keys from one key",
)


# Dreams about a pendulum.


def dreamt(model, policy, state, rng, length=8):
    def step(carry, _):
        state, rng = carry
        rng, act_rng, noise_rng = jax.random.split(rng, 3)
        action = jnp.tanh(state @ policy) + 0.1 * jax.random.normal(act_rng, (policy.shape[-1],))
        moved = jnp.tanh(jnp.concatenate([state, action]) @ model)
        state = state + 0.1 * moved + 0.01 * jax.random.normal(noise_rng, state.shape)
        return (state, rng), -jnp.sum(state**2)

    (state, _), rewards = jax.lax.scan(step, (state, rng), None, length)
    return state, rewards.sum()


def dreams(model, policy, starts, rng):
    def dream(carry, start):
        total, rng = carry
        rng, start_rng = jax.random.split(rng)
        begin = start + 0.05 * jax.random.normal(start_rng, start.shape)
        _, reward = dreamt(model, policy, begin, rng)
        return (total + reward, rng), reward

    return jax.lax.scan(dream, (0.0, rng), starts)[1]


def dreams_b(model, policy, starts, rng):
    def dream(carry, start):
        total, rng = carry
        rng, start_rng, dream_rng = jax.random.split(rng, 3)
        begin = start + 0.05 * jax.random.normal(start_rng, start.shape)
        _, reward = dreamt(model, policy, begin, dream_rng)
        return (total + reward, rng), reward

    return jax.lax.scan(dream, (0.0, rng), starts)[1]


def dreams_c(model, policy, starts, rng):
    start_base, dream_base = jax.random.split(rng)

    def dream(total, inputs):
        i, start = inputs
        noise = jax.random.normal(jax.random.fold_in(start_base, i), start.shape)
        _, reward = dreamt(model, policy, start + 0.05 * noise, jax.random.fold_in(dream_base, i))
        return total + reward, reward

    return jax.lax.scan(dream, 0.0, (jnp.arange(starts.shape[0]), starts))[1]


add(
    "dreams of a pendulum",
    "key reuse",
    dreams,
    (dreams_b, dreams_c),
    lambda: (f32(4, 3), f32(3, 1), f32(10, 3), key()),
    where="_, reward = dreamt(model, policy, begin, rng)",
    axes={"starts": ("dreams", None)},
    source="an issue of a framework of continual learning: the carried key also seeds the rollout",
)


# A ship followed by radar.


def ship_moves(rng, ships):
    turn = 0.1 * jax.random.normal(rng, (ships.shape[0],))
    heading = ships[:, 2] + turn
    step = 0.1 * jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)
    return jnp.concatenate([ships[:, :2] + step, heading[:, None]], axis=-1)


def ship_weights(ships, seen):
    squares = jnp.sum((ships[:, :2] - seen) ** 2, axis=-1)
    return jax.nn.log_softmax(-0.5 * squares / 0.04)


def radar(rng, ships, positions):
    def step(ships, inputs):
        step_rng, seen = inputs
        ships = ship_moves(step_rng, ships)
        logits = ship_weights(ships, seen)
        estimate = jnp.exp(logits) @ ships
        picks = jax.random.categorical(step_rng, logits, shape=(ships.shape[0],))
        return ships[picks], estimate

    rngs = jax.random.split(rng, positions.shape[0])
    return jax.lax.scan(step, ships, (rngs, positions))[1]


def radar_b(rng, ships, positions):
    def step(ships, inputs):
        step_rng, seen = inputs
        move_rng, pick_rng = jax.random.split(step_rng)
        ships = ship_moves(move_rng, ships)
        logits = ship_weights(ships, seen)
        estimate = jnp.exp(logits) @ ships
        picks = jax.random.categorical(pick_rng, logits, shape=(ships.shape[0],))
        return ships[picks], estimate

    rngs = jax.random.split(rng, positions.shape[0])
    return jax.lax.scan(step, ships, (rngs, positions))[1]


def radar_c(rng, ships, positions):
    count = ships.shape[0]

    def step(ships, inputs):
        step_rng, seen = inputs
        moved = ship_moves(jax.random.fold_in(step_rng, 0), ships)
        logits = ship_weights(moved, seen)
        estimate = jnp.exp(logits) @ moved
        offset = jax.random.uniform(jax.random.fold_in(step_rng, 1))
        places = (jnp.arange(count) + offset) / count
        picks = jnp.searchsorted(jnp.cumsum(jnp.exp(logits)), places)
        return moved[jnp.minimum(picks, count - 1)], estimate

    rngs = jax.random.split(rng, positions.shape[0])
    return jax.lax.scan(step, ships, (rngs, positions))[1]


add(
    "a ship on radar",
    "key reuse",
    radar,
    (radar_b, radar_c),
    lambda: (key(), f32(32, 3), f32(14, 2)),
    where="picks = jax.random.categorical(step_rng, logits, shape=(ships.shape[0],))",
    axes={"ships": ("particles", None), "positions": ("time", None)},
    source="filters with particles that move and resample with one key",
)


# Balloons in wind.


class Balloon(NamedTuple):
    place: jax.Array
    speed: jax.Array


def blown(rng, balloon, lift):
    gust = 0.3 * jax.random.normal(rng, (3,))
    push = jnp.concatenate([gust[:2], gust[2:] + lift])
    speed = 0.95 * balloon.speed + 0.1 * push
    return Balloon(balloon.place + 0.1 * speed, speed)


def fleet(rng, weights, places):
    def step(carry, _):
        balloons, rng = carry
        rng, wind_rng = jax.random.split(rng)
        lifts = jnp.tanh(balloons.place @ weights)
        balloons = jax.vmap(lambda balloon, lift: blown(wind_rng, balloon, lift))(balloons, lifts)
        return (balloons, rng), balloons.place[:, 2]

    start = Balloon(places, jnp.zeros_like(places))
    _, heights = jax.lax.scan(step, (start, rng), None, 25)
    return heights.mean(), heights.std(axis=1)


def fleet_b(rng, weights, places):
    def step(carry, _):
        balloons, rng = carry
        rng, wind_rng = jax.random.split(rng)
        wind_rngs = jax.random.split(wind_rng, places.shape[0])
        lifts = jnp.tanh(balloons.place @ weights)
        balloons = jax.vmap(blown)(wind_rngs, balloons, lifts)
        return (balloons, rng), balloons.place[:, 2]

    start = Balloon(places, jnp.zeros_like(places))
    _, heights = jax.lax.scan(step, (start, rng), None, 25)
    return heights.mean(), heights.std(axis=1)


def fleet_c(rng, weights, places):
    def step(balloons, step_rng):
        region_rng, own_rng = jax.random.split(step_rng)
        region = 0.3 * jax.random.normal(region_rng, (2,))
        lifts = jnp.tanh(balloons.place @ weights)

        def move(own_rng, balloon, lift):
            gust = region + 0.1 * jax.random.normal(own_rng, (2,))
            speed = 0.95 * balloon.speed + 0.1 * jnp.concatenate([gust, lift])
            return Balloon(balloon.place + 0.1 * speed, speed)

        balloons = jax.vmap(move)(jax.random.split(own_rng, places.shape[0]), balloons, lifts)
        return balloons, balloons.place[:, 2]

    start = Balloon(places, jnp.zeros_like(places))
    _, heights = jax.lax.scan(step, start, jax.random.split(rng, 25))
    return heights.mean(), heights.std(axis=1)


add(
    "balloons",
    "key shared by elements",
    fleet,
    (fleet_b, fleet_c),
    lambda: (key(), f32(3, 1), f32(12, 3)),
    where="balloons = jax.vmap(lambda balloon, lift: blown(wind_rng, balloon, lift))(balloons, lifts)",
    axes={"places": ("env", None)},
    source="vectorized environments whose step closes over one key",
)


# Whether a customer leaves.


def dropped(rng, h, rate):
    keep = jax.random.bernoulli(rng, 1.0 - rate, h.shape)
    return jnp.where(keep, h / (1.0 - rate), 0.0)


def leaving(params, x, rng):
    first_rng, second_rng = jax.random.split(rng)
    h = dropped(first_rng, jax.nn.relu(params["w1"] @ x + params["b1"]), 0.3)
    h = dropped(second_rng, jax.nn.relu(params["w2"] @ h + params["b2"]), 0.3)
    return params["w3"] @ h


def leaving_loss(params, rng, x, left):
    logits = jax.vmap(leaving, in_axes=(None, 0, None))(params, x, rng)
    return optax.sigmoid_binary_cross_entropy(logits, left).mean()


def leaving_loss_b(params, rng, x, left):
    rngs = jax.random.split(rng, x.shape[0])
    logits = jax.vmap(leaving, in_axes=(None, 0, 0))(params, x, rngs)
    return optax.sigmoid_binary_cross_entropy(logits, left).mean()


def leaving_loss_c(params, rng, x, left):
    rngs = jax.random.split(rng, x.shape[0])
    halves = x.reshape(x.shape[0], 2, -1)

    def read(params, halves, rng):
        mask = dropped(rng, jnp.ones(params["b1"].shape), 0.3)
        padded = jnp.pad(halves, ((0, 0), (0, halves.shape[-1])))
        h = jax.vmap(lambda half: mask * jax.nn.relu(params["w1"] @ half + params["b1"]))(padded)
        return params["w3"] @ jax.nn.relu(params["w2"] @ h.mean(axis=0) + params["b2"])

    logits = jax.vmap(read, in_axes=(None, 0, 0))(params, halves, rngs)
    return optax.sigmoid_binary_cross_entropy(logits, left).mean()


add(
    "customers who leave",
    "key shared by elements",
    leaving_loss,
    (leaving_loss_b, leaving_loss_c),
    lambda: (
        {"w1": f32(16, 8), "b1": f32(16), "w2": f32(12, 16), "b2": f32(12), "w3": f32(12)},
        key(),
        f32(20, 8),
        f32(20),
    ),
    where="logits = jax.vmap(leaving, in_axes=(None, 0, None))(params, x, rng)",
    axes={"x": ("batch", None), "left": ("batch",)},
    differentiate="params",
    source="discussions about dropout in libraries of modules for one example: one mask for the batch",
)


# A rover with memory.


class Step(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    first: jax.Array
    done: jax.Array


def remember(params, h, obs, reset):
    h = jnp.where(reset[:, None], 0.0, h)
    h = jnp.tanh(h @ params["u"] + obs @ params["w"])
    return h, h @ params["out"]


def rover_step(rng, obs, action, age):
    moved = obs + 0.1 * jax.random.normal(rng, obs.shape) + 0.1 * action[:, None]
    age = age + 1
    done = (jnp.abs(moved).max(axis=-1) > 2.0) | (age >= 5)
    reward = -jnp.sum(moved**2, axis=-1)
    return jnp.where(done[:, None], 0.0, moved), reward, done, jnp.where(done, 0, age)


def drive(params, rng, obs, length=12):
    count = obs.shape[0]

    def step(carry, step_rng):
        h, obs, age, first = carry
        act_rng, env_rng = jax.random.split(step_rng)
        h, logits = remember(params, h, obs, first)
        action = jax.random.categorical(act_rng, logits)
        following, reward, done, age = rover_step(env_rng, obs, action, age)
        return (h, following, age, done), Step(obs, action, reward, first, done)

    h = jnp.zeros((count, params["u"].shape[0]))
    start = h, obs, jnp.zeros(count, jnp.int32), jnp.ones(count, bool)
    _, steps = jax.lax.scan(step, start, jax.random.split(rng, length))
    return start[0], steps


def rover_returns(steps):
    def back(after, step):
        after = step.reward + 0.95 * jnp.where(step.done, 0.0, after)
        return after, after

    return jax.lax.scan(back, jnp.zeros(steps.reward.shape[1]), steps, reverse=True)[1]


def score_function(log_probs, steps):
    returns = rover_returns(steps)
    gains = returns - returns.mean()
    chosen = jnp.take_along_axis(log_probs, steps.action[..., None], axis=-1)[..., 0]
    return -jnp.mean(chosen * gains)


def rover_update(params, rng, obs):
    h, steps = drive(params, rng, obs)

    def loss(params):
        again = lambda h, step: remember(params, h, step.obs, step.done)
        _, logits = jax.lax.scan(again, h, steps)
        return score_function(jax.nn.log_softmax(logits), steps)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value


def rover_update_b(params, rng, obs):
    h, steps = drive(params, rng, obs)

    def loss(params):
        again = lambda h, step: remember(params, h, step.obs, step.first)
        _, logits = jax.lax.scan(again, h, steps)
        return score_function(jax.nn.log_softmax(logits), steps)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value


def rover_update_c(params, rng, obs):
    h, steps = drive(params, rng, obs)

    def loss(params):
        def again(h, step):
            h = jnp.tanh(h @ params["u"] + step.obs @ params["w"])
            return jnp.where(step.done[:, None], 0.0, h), h @ params["out"]

        _, logits = jax.lax.scan(again, h, steps)
        return score_function(jax.nn.log_softmax(logits), steps)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), value


add(
    "a rover with memory",
    "episode boundary",
    rover_update,
    (rover_update_b, rover_update_c),
    lambda: ({"w": f32(4, 12), "u": f32(12, 12), "out": f32(12, 3)}, key(), f32(6, 4)),
    where="again = lambda h, step: remember(params, h, step.obs, step.done)",
    axes={"obs": ("env", None)},
    source="issues of two libraries of multi-agent learning: the memory is reset by the wrong done",
)


# Advantages of a trader.


def trader_deltas(rewards, values, last_value, dones, gamma):
    following = jnp.concatenate([values[1:], last_value[None]])
    return rewards + gamma * following * (1.0 - dones) - values


def trader_advantages(rewards, values, last_value, dones):
    gamma, decay = 0.99, 0.95
    deltas = trader_deltas(rewards, values, last_value, dones, gamma)

    def back(advantage, delta):
        advantage = delta + gamma * decay * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(back, jnp.zeros_like(last_value), deltas, reverse=True)
    return advantages, advantages + values


def trader_advantages_b(rewards, values, last_value, dones):
    gamma, decay = 0.99, 0.95
    deltas = trader_deltas(rewards, values, last_value, dones, gamma)

    def back(advantage, inputs):
        delta, done = inputs
        advantage = delta + gamma * decay * (1.0 - done) * advantage
        return advantage, advantage

    _, advantages = jax.lax.scan(back, jnp.zeros_like(last_value), (deltas, dones), reverse=True)
    return advantages, advantages + values


def trader_advantages_c(rewards, values, last_value, dones):
    gamma, decay = 0.99, 0.95
    going = gamma * (1.0 - dones)
    following = jnp.concatenate([values[1:], last_value[None]])

    def back(target, inputs):
        reward, value, discount = inputs
        target = reward + discount * ((1.0 - decay) * value + decay * target)
        return target, target

    _, targets = jax.lax.scan(back, last_value, (rewards, following, going), reverse=True)
    return targets - values, targets


def trade(estimate):
    def loss(params, obs, last_obs, actions, rewards, dones):
        value = lambda x: jax.nn.relu(x @ params["v1"]) @ params["v2"]
        values = value(obs)
        fixed = jax.lax.stop_gradient((values, value(last_obs)))
        advantages, targets = estimate(rewards, *fixed, dones)
        means = obs @ params["policy"]
        log_probs = -0.5 * (actions - means) ** 2
        return -jnp.mean(log_probs * advantages) + 0.5 * jnp.mean((values - targets) ** 2)

    return loss


add(
    "a trader",
    "episode boundary",
    trade(trader_advantages),
    (trade(trader_advantages_b), trade(trader_advantages_c)),
    (
        {"v1": f32(5, 16), "v2": f32(16), "policy": f32(5)},
        f32(20, 6, 5),
        f32(6, 5),
        f32(20, 6),
        f32(20, 6),
        f32(20, 6),
    ),
    where="advantage = delta + gamma * decay * advantage",
    axes={
        "obs": ("time", "env", None),
        "last_obs": ("env", None),
        "actions": ("time", "env"),
        "rewards": ("time", "env"),
        "dones": ("time", "env"),
    },
    differentiate="params",
    source="a mended generalized advantage estimate: done cuts the bootstrap but not the sum",
)


# Scores of a game.


class Tally(NamedTuple):
    score: jax.Array
    length: jax.Array
    last_score: jax.Array
    last_length: jax.Array


def tallied(tally, reward, done):
    score, length = tally.score + reward, tally.length + 1
    return Tally(
        score=score,
        length=jnp.where(done, 0, length),
        last_score=jnp.where(done, score, tally.last_score),
        last_length=jnp.where(done, length, tally.last_length),
    )


def tallied_b(tally, reward, done):
    score, length = tally.score + reward, tally.length + 1
    return Tally(
        score=jnp.where(done, 0.0, score),
        length=jnp.where(done, 0, length),
        last_score=jnp.where(done, score, tally.last_score),
        last_length=jnp.where(done, length, tally.last_length),
    )


def tallied_c(tally, reward, done):
    total, length = tally.score + reward, tally.length + 1
    return Tally(
        score=total,
        length=length,
        last_score=jnp.where(done, total / length, tally.last_score),
        last_length=jnp.where(done, length, tally.last_length),
    )


def play(tally_step):
    def run(weights, rng, balls):
        count = balls.shape[0]

        def step(carry, step_rng):
            balls, tally = carry
            paddles = jnp.tanh(balls @ weights)
            moved = balls + 0.2 * jax.random.normal(step_rng, balls.shape)
            missed = jnp.abs(moved[:, 0] - paddles) > 1.0
            reward = 1.0 - jnp.abs(moved[:, 0] - paddles)
            tally = tally_step(tally, reward, missed)
            balls = jnp.where(missed[:, None], 0.0, moved)
            return (balls, tally), (tally.last_score.mean(), tally.last_length.mean())

        zeros, none = jnp.zeros(count), jnp.zeros(count, jnp.int32)
        start = balls, Tally(zeros, none, zeros, none)
        return jax.lax.scan(step, start, jax.random.split(rng, 40))[1]

    return run


add(
    "scores of a game",
    "episode boundary",
    play(tallied),
    (play(tallied_b), play(tallied_c)),
    lambda: (f32(2), key(), f32(8, 2)),
    where="score=score,\n",
    axes={"balls": ("env", None)},
    source="wrappers that log the returns of episodes in environments that reset themselves",
)


# A glider that is brought back.


class Flight(NamedTuple):
    obs: jax.Array
    ended_at: jax.Array
    following: jax.Array
    reward: jax.Array
    crashed: jax.Array
    done: jax.Array


def fly(policy, rng, gliders, limit):
    def step(carry, step_rng):
        gliders, age = carry
        air_rng, reset_rng = jax.random.split(step_rng)
        lift = jnp.tanh(gliders @ policy)
        moved = gliders + 0.1 * lift[:, None] + 0.1 * jax.random.normal(air_rng, gliders.shape)
        age = age + 1
        crashed = moved[:, 0] < -0.5
        done = crashed | (age >= limit)
        fresh = 0.1 * jax.random.normal(reset_rng, gliders.shape)
        following = jnp.where(done[:, None], fresh, moved)
        flight = Flight(gliders, moved, following, moved[:, 1], crashed, done)
        return (following, jnp.where(done, 0, age)), flight

    start = gliders, jnp.zeros(gliders.shape[0], jnp.int32)
    return jax.lax.scan(step, start, jax.random.split(rng, 20))[1]


def height_value(params, obs):
    return (jax.nn.relu(obs @ params["w1"] + params["b1"]) @ params["w2"])[..., 0]


def fit_value(target_of, limit=6):
    def run(params, policy, rng, gliders):
        flights = fly(policy, rng, gliders, limit)
        targets = target_of(params, flights)

        def step(params, _):
            loss = lambda p: jnp.mean((height_value(p, flights.obs) - targets) ** 2)
            value, grads = jax.value_and_grad(loss)(params)
            return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value

        return jax.lax.scan(step, params, None, 5)

    return run


def glider_target(params, flights):
    ahead = height_value(params, flights.following)
    return flights.reward + 0.97 * jnp.where(flights.crashed, 0.0, ahead)


def glider_target_b(params, flights):
    ahead = height_value(params, flights.ended_at)
    return flights.reward + 0.97 * jnp.where(flights.crashed, 0.0, ahead)


def glider_target_c(params, flights):
    ahead = height_value(params, flights.following)
    return flights.reward + 0.97 * jnp.where(flights.done, 0.0, ahead)


add(
    "gliders",
    "episode boundary",
    fit_value(glider_target),
    (fit_value(glider_target_b), fit_value(glider_target_c, limit=10**6)),
    lambda: ({"w1": f32(3, 16), "b1": f32(16), "w2": f32(16, 1)}, f32(3), key(), f32(8, 3)),
    where="ahead = height_value(params, flights.following)\n"
    "    return flights.reward + 0.97 * jnp.where(flights.crashed",
    axes={"gliders": ("env", None)},
    source="issues of two libraries of simulators: a time limit bootstraps from the state after the reset",
)


# Molecules in one batch.


def attention_pool(scores, atoms, owners, count):
    shares = jax.nn.softmax(scores)
    return jax.ops.segment_sum(shares[:, None] * atoms, owners, count)


def attention_pool_b(scores, atoms, owners, count):
    highest = jax.ops.segment_max(scores, owners, count)
    powers = jnp.exp(scores - highest[owners])
    shares = powers / jax.ops.segment_sum(powers, owners, count)[owners]
    return jax.ops.segment_sum(shares[:, None] * atoms, owners, count)


def attention_pool_c(scores, atoms, owners, count):
    powers = jnp.exp(scores - scores.max())
    totals = jax.ops.segment_sum(powers, owners, count)
    pooled = jax.ops.segment_sum(powers[:, None] * atoms, owners, count)
    return pooled / (totals[:, None] + 1e-9)


def solubility(pool):
    def loss(params, atoms, senders, receivers, owners, measured):
        h = jnp.tanh(atoms @ params["embed"])
        for layer in ("m1", "m2"):
            sent = jax.ops.segment_sum(h[senders] @ params[layer], receivers, h.shape[0])
            h = jnp.tanh(h + sent)
        scores = (h @ params["score"])[:, 0]
        pooled = pool(scores, h, owners, measured.shape[0])
        predicted = (pooled @ params["out"])[:, 0]
        return jnp.mean((predicted - measured) ** 2)

    return loss


add(
    "molecules in a batch",
    "normalization axis",
    solubility(attention_pool),
    (solubility(attention_pool_b), solubility(attention_pool_c)),
    (
        {"embed": f32(5, 12), "m1": f32(12, 12), "m2": f32(12, 12), "score": f32(12, 1), "out": f32(12, 1)},
        f32(24, 5),
        i32(40),
        i32(40),
        i32(24),
        f32(4),
    ),
    where="shares = jax.nn.softmax(scores)\n",
    axes={"atoms": ("atoms", None), "owners": ("atoms",), "measured": ("molecules",)},
    differentiate="params",
    source="an issue of a library of graph networks: pooling takes a softmax over the whole batch",
)


# A picture that is read by questions.


def read_regions(params, questions, regions):
    q = questions @ params["q"]
    k, v = regions @ params["k"], regions @ params["v"]
    scores = jnp.einsum("bqd,brd->bqr", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=1)
    return jnp.einsum("bqr,brd->bqd", weights, v)


def read_regions_b(params, questions, regions):
    q = questions @ params["q"]
    k, v = regions @ params["k"], regions @ params["v"]
    scores = jnp.einsum("bqd,brd->bqr", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(scores, axis=2)
    return jnp.einsum("bqr,brd->bqd", weights, v)


def read_regions_c(params, questions, regions):
    slots = questions
    k, v = regions @ params["k"], regions @ params["v"]
    for _ in range(2):
        q = slots @ params["q"]
        scores = jnp.einsum("bsd,brd->bsr", q, k) / jnp.sqrt(q.shape[-1])
        shares = jax.nn.softmax(scores, axis=1) + 1e-8
        shares = shares / shares.sum(axis=2, keepdims=True)
        slots = slots + jnp.einsum("bsr,brd->bsd", shares, v)
    return slots


def answers(read):
    def loss(params, questions, regions, labels):
        seen = read(params, questions, regions)
        h = jax.nn.relu(jnp.concatenate([questions, seen], axis=-1) @ params["w"])
        return optax.softmax_cross_entropy_with_integer_labels(h @ params["out"], labels).mean()

    return loss


add(
    "questions about pictures",
    "normalization axis",
    answers(read_regions),
    (answers(read_regions_b), answers(read_regions_c)),
    (
        {"q": f32(8, 8), "k": f32(10, 8), "v": f32(10, 8), "w": f32(16, 20), "out": f32(20, 4)},
        f32(5, 6, 8),
        f32(5, 9, 10),
        i32(5, 6),
    ),
    where="weights = jax.nn.softmax(scores, axis=1)",
    axes={
        "questions": ("batch", "questions", None),
        "regions": ("batch", "regions", None),
        "labels": ("batch", "questions"),
    },
    differentiate="params",
    source="mended softmaxes of attention in public repositories",
)


# Plans in a learned world.


def imagine(params, states, length=10):
    def step(state, _):
        action = jnp.tanh(state @ params["actor"])
        state = jnp.tanh(jnp.concatenate([state, action], axis=-1) @ params["world"])
        return state, state

    return jax.lax.scan(step, states, None, length)[1]


def plan_terms(params, path):
    rewards = (path @ params["reward"])[..., 0]
    values = (path @ params["value"])[..., 0]
    going = 0.97 * jax.nn.sigmoid((path @ params["going"])[..., 0])
    return rewards, values, going


def plan_loss(params, states):
    path = imagine(params, states)
    rewards, values, going = plan_terms(params, path)
    ahead = jnp.concatenate([jnp.ones_like(going[:1]), going[:-1]])
    weights = jax.lax.stop_gradient(jnp.cumprod(ahead, axis=1))
    targets = rewards[:-1] + going[:-1] * values[1:]
    return -jnp.mean(weights[:-1] * targets)


def plan_loss_b(params, states):
    path = imagine(params, states)
    rewards, values, going = plan_terms(params, path)
    ahead = jnp.concatenate([jnp.ones_like(going[:1]), going[:-1]])
    weights = jax.lax.stop_gradient(jnp.cumprod(ahead, axis=0))
    targets = rewards[:-1] + going[:-1] * values[1:]
    return -jnp.mean(weights[:-1] * targets)


def plan_loss_c(params, states):
    path = jnp.swapaxes(imagine(params, states), 0, 1)
    rewards, values, going = plan_terms(params, path)
    ahead = jnp.concatenate([jnp.ones_like(going[:, :1]), going[:, :-1]], axis=1)
    weights = jax.lax.stop_gradient(jnp.cumprod(ahead, axis=1))
    targets = rewards[:, :-1] + going[:, :-1] * values[:, 1:]
    return -jnp.mean(weights[:, :-1] * targets)


add(
    "plans in a learned world",
    "wrong axis",
    plan_loss,
    (plan_loss_b, plan_loss_c),
    (
        {
            "actor": f32(6, 2),
            "world": f32(8, 6),
            "reward": f32(6, 1),
            "value": f32(6, 1),
            "going": f32(6, 1),
        },
        f32(7, 6),
    ),
    where="weights = jax.lax.stop_gradient(jnp.cumprod(ahead, axis=1))\n    targets = rewards[:-1]",
    axes={"states": ("batch", None)},
    differentiate="params",
    source="a pull request of an implementation of Dreamer: discounts are multiplied along the batch",
)


# Calls of birds, of unequal length.


class CallEncoder(nn.Module):
    width: int = 16
    heads: int = 2

    def mask(self, present):
        return present[:, None, :, None]

    @nn.compact
    def __call__(self, x, present):
        x = nn.Dense(self.width)(x)
        for _ in range(2):
            h = nn.LayerNorm()(x)
            split = lambda h: h.reshape(*h.shape[:2], self.heads, -1)
            q, k, v = (split(nn.Dense(self.width)(h)) for _ in range(3))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
            weights = jax.nn.softmax(jnp.where(self.mask(present), scores, -1e9), axis=-1)
            seen = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(h.shape)
            x = x + nn.Dense(self.width)(seen)
        shown = present[..., None].astype(x.dtype)
        pooled = (x * shown).sum(axis=1) / jnp.maximum(shown.sum(axis=1), 1.0)
        return nn.Dense(4)(pooled)


class CallEncoderB(CallEncoder):
    def mask(self, present):
        return present[:, None, None, :]


class CallEncoderC(CallEncoder):
    def mask(self, present):
        return present[:, None, :, None] & present[:, None, None, :]


def bird_loss(encoder):
    def loss(params, calls, present, species):
        logits = encoder.apply(params, calls, present)
        return optax.softmax_cross_entropy_with_integer_labels(logits, species).mean()

    return loss


add(
    "calls of birds",
    "attention mask",
    bird_loss(CallEncoder()),
    (bird_loss(CallEncoderB()), bird_loss(CallEncoderC())),
    lambda: (
        shapes_of(CallEncoder().init, key(), f32(1, 12, 6), flags(1, 12)),
        f32(5, 12, 6),
        flags(5, 12),
        i32(5),
    ),
    where="return present[:, None, :, None]\n",
    axes={"calls": ("batch", "time", None), "present": ("batch", "time"), "species": ("batch",)},
    differentiate="params",
    source="a pull request of a speech model: a mask with exchanged axes",
)


# Moves of a chess player.


def normed(x):
    return x / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def chess_attention(q, k, v):
    causal = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def chess_attention_b(q, k, v):
    causal = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def chess_attention_c(q, k, v):
    unit = lambda x: x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-6)
    causal = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    scores = jnp.einsum("bqhd,bkhd->bhqk", unit(q), unit(k)) * jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def chess(attend, heads=2):
    def loss(params, moves):
        x = params["moves"][moves[:, :-1]]
        for layer in params["layers"]:
            h = normed(x)
            split = lambda y: y.reshape(*y.shape[:2], heads, -1)
            q, k, v = (split(h @ layer[name]) for name in ("q", "k", "v"))
            x = x + attend(q, k, v).reshape(x.shape) @ layer["o"]
            x = x + jax.nn.gelu(normed(x) @ layer["up"]) @ layer["down"]
        logits = normed(x) @ params["moves"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, moves[:, 1:]).mean()

    return loss


def chess_layer():
    return {n: f32(16, 16) for n in ("q", "k", "v", "o")} | {"up": f32(16, 32), "down": f32(32, 16)}


add(
    "moves of chess",
    "attention scale",
    chess(chess_attention),
    (chess(chess_attention_b), chess(chess_attention_c)),
    lambda: ({"moves": f32(30, 16), "layers": [chess_layer(), chess_layer()]}, i32(4, 10)),
    where='scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * jnp.sqrt(q.shape[-1])',
    axes={"moves": ("batch", "time")},
    differentiate="params",
    source="mended scales of attention in public repositories",
)


# Ions in a trap.


def ion_distances(places):
    gaps = places[:, None, :] - places[None, :, :]
    return jnp.sqrt(jnp.sum(gaps**2, axis=-1))


def trap_energy(places, charges):
    count = places.shape[0]
    distances = ion_distances(places)
    apart = ~jnp.eye(count, dtype=bool)
    pairs = jnp.where(apart, charges[:, None] * charges / (distances + 1e-3), 0.0)
    return 0.5 * pairs.sum() + 0.5 * jnp.sum(places**2)


def trap_energy_b(places, charges):
    count = places.shape[0]
    apart = ~jnp.eye(count, dtype=bool)
    squares = jnp.sum((places[:, None, :] - places[None, :, :]) ** 2, axis=-1)
    distances = jnp.sqrt(jnp.where(apart, squares, 1.0))
    pairs = jnp.where(apart, charges[:, None] * charges / (distances + 1e-3), 0.0)
    return 0.5 * pairs.sum() + 0.5 * jnp.sum(places**2)


def trap_energy_c(places, charges):
    first, second = jnp.triu_indices(places.shape[0], k=1)
    distances = jnp.sqrt(jnp.sum((places[first] - places[second]) ** 2, axis=-1))
    pairs = charges[first] * charges[second] / (distances + 1e-3)
    return pairs.sum() + 0.5 * jnp.sum(places**2)


def settle(energy):
    def run(places, charges):
        def step(carry, _):
            places, speeds = carry
            speeds = 0.98 * speeds - 0.01 * jax.grad(energy)(places, charges)
            places = places + 0.01 * speeds
            return (places, speeds), energy(places, charges)

        return jax.lax.scan(step, (places, jnp.zeros_like(places)), None, 30)

    return run


add(
    "ions that settle",
    "nan gradient",
    settle(trap_energy),
    (settle(trap_energy_b), settle(trap_energy_c)),
    (f32(7, 3), f32(7)),
    where="return jnp.sqrt(jnp.sum(gaps**2, axis=-1))",
    axes={"places": ("ions", None), "charges": ("ions",)},
    source="an issue of JAX: distances of all pairs, with the diagonal removed afterwards",
)


# Translations in small parts.


def translation_logits(params, words):
    h = params["words"][words]
    h = jnp.tanh(h @ params["w1"]) + h
    h = h + jnp.cumsum(h, axis=1) / jnp.arange(1, h.shape[1] + 1)[:, None]
    return h @ params["out"]


def translation_loss(params, words, wanted, present):
    losses = optax.softmax_cross_entropy_with_integer_labels(translation_logits(params, words), wanted)
    return jnp.sum(losses * present), jnp.sum(present)


def translate_step(params, words, wanted, present):
    def mean_loss(params, *part):
        total, count = translation_loss(params, *part)
        return total / jnp.maximum(count, 1.0)

    def one(grads, part):
        value, new = jax.value_and_grad(mean_loss)(params, *part)
        return jax.tree.map(jnp.add, grads, new), value

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, values = jax.lax.scan(one, zeros, (words, wanted, present))
    grads = jax.tree.map(lambda g: g / words.shape[0], grads)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), values.mean()


def translate_step_b(params, words, wanted, present):
    def one(carry, part):
        grads, totals, counts = carry
        (total, count), new = jax.value_and_grad(translation_loss, has_aux=True)(params, *part)
        return (jax.tree.map(jnp.add, grads, new), totals + total, counts + count), None

    start = jax.tree.map(jnp.zeros_like, params), 0.0, 0.0
    (grads, total, count), _ = jax.lax.scan(one, start, (words, wanted, present))
    count = jnp.maximum(count, 1.0)
    return jax.tree.map(lambda p, g: p - 0.1 * g / count, params, grads), total / count


def translate_step_c(params, words, wanted, present):
    everything = jnp.maximum(present.sum(), 1.0)

    def mean_loss(params, words, wanted, present):
        total, count = translation_loss(params, words, wanted, present)
        return total / (count + 1e-9)

    def one(grads, part):
        share = part[-1].sum() / everything
        value, new = jax.value_and_grad(mean_loss)(params, *part)
        return jax.tree.map(lambda a, b: a + share * b, grads, new), share * value

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, values = jax.lax.scan(one, zeros, (words, wanted, present))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), values.sum()


add(
    "translations in parts",
    "mean of means",
    translate_step,
    (translate_step_b, translate_step_c),
    ({"words": f32(20, 12), "w1": f32(12, 12), "out": f32(12, 20)}, i32(4, 6, 9), i32(4, 6, 9), f32(4, 6, 9)),
    where="return total / jnp.maximum(count, 1.0)\n",
    axes={n: ("parts", "batch", "time") for n in ("words", "wanted", "present")},
    source="pull requests of three libraries: accumulated gradients weight parts, not words",
)


# A thermostat with a limited heater.


@jax.custom_vjp
def limited(power):
    return jnp.clip(power, 0.0, 1.0)


def limited_forward(power):
    return limited(power), (power,)


def limited_backward(saved, g):
    (power,) = saved
    inside = (power >= 0.0) & (power <= 1.0)
    return (jnp.where(inside, 1.0, 0.1),)


limited.defvjp(limited_forward, limited_backward)


@jax.custom_vjp
def limited_b(power):
    return jnp.clip(power, 0.0, 1.0)


def limited_forward_b(power):
    return limited_b(power), (power,)


def limited_backward_b(saved, g):
    (power,) = saved
    inside = (power >= 0.0) & (power <= 1.0)
    return (jnp.where(inside, g, 0.1 * g),)


limited_b.defvjp(limited_forward_b, limited_backward_b)


@jax.custom_vjp
def calm(power):
    return power


def calm_forward(power):
    return power, None


def calm_backward(_, g):
    return (jnp.clip(g, -1.0, 1.0),)


calm.defvjp(calm_forward, calm_backward)


def limited_c(power):
    return jax.nn.sigmoid(4.0 * calm(power) - 2.0)


def thermostat(limit):
    def loss(params, outside, wanted):
        def step(room, inputs):
            cold, goal = inputs
            seen = jnp.stack([room, cold, goal])
            power = limit(jnp.tanh(seen @ params["w1"] + params["b1"]) @ params["w2"])
            room = room + 0.1 * (cold - room) + 0.3 * power
            return room, (room - goal) ** 2 + 0.05 * power

        _, costs = jax.lax.scan(step, outside[0], (outside, wanted))
        return costs.mean()

    return loss


add(
    "a thermostat",
    "custom rule",
    thermostat(limited),
    (thermostat(limited_b), thermostat(limited_c)),
    ({"w1": f32(3, 8), "b1": f32(8), "w2": f32(8)}, f32(24), f32(24)),
    where="return (jnp.where(inside, 1.0, 0.1),)",
    axes={"outside": ("time",), "wanted": ("time",)},
    differentiate="params",
    source="questions about custom rules: the backward function does not use the cotangent",
)


# Cars on a camera.


def moving(frames):
    change = frames[1:] - frames[:-1]
    return change.astype(jnp.float32) / 255.0


def moving_b(frames):
    change = frames[1:].astype(jnp.float32) - frames[:-1].astype(jnp.float32)
    return change / 255.0


def moving_c(frames):
    after, before = frames[1:], frames[:-1]
    change = jnp.where(after > before, after - before, before - after)
    return change.astype(jnp.float32) / 255.0


def count_cars(motion):
    def predict(params, frames):
        change = motion(frames)
        steps, rows, columns = change.shape
        blocks = change.reshape(steps, rows // 4, 4, columns // 4, 4).mean(axis=(2, 4))
        features = jnp.concatenate([blocks.reshape(steps, -1), jnp.abs(change).mean(axis=(1, 2))[:, None]], axis=-1)
        h = jax.nn.relu(features @ params["w1"] + params["b1"])
        return jax.nn.softplus(h @ params["w2"])[:, 0].mean()

    return predict


add(
    "cars on a camera",
    "integer overflow",
    count_cars(moving),
    (count_cars(moving_b), count_cars(moving_c)),
    (
        {"w1": f32(17, 16), "b1": f32(16), "w2": f32(16, 1)},
        jax.ShapeDtypeStruct((8, 16, 16), jnp.uint8),
    ),
    where="change = frames[1:] - frames[:-1]",
    axes={"frames": ("time", None, None)},
    source="issues and pull requests about images of 8 bits whose difference wraps",
)


# A whale followed by sound.


def whale_moves(rng, whales):
    return whales + 0.1 * whales[:, ::-1] * jnp.array([1.0, -1.0]) + 0.05 * jax.random.normal(rng, whales.shape)


def sound_likelihood(whales, heard):
    return -0.5 * (jnp.linalg.norm(whales + 1e-3, axis=-1) - heard) ** 2 / 0.01


def listen(rng, whales, sounds):
    count = whales.shape[0]

    def step(carry, inputs):
        whales, logits = carry
        rng, heard = inputs
        pick_rng, move_rng = jax.random.split(rng)
        parents = jax.random.categorical(pick_rng, logits, shape=(count,))
        survivors = whales[parents]
        moved = whale_moves(move_rng, whales)
        logits = sound_likelihood(moved, heard)
        spread = jnp.std(survivors, axis=0)
        return (moved, logits), (jax.nn.softmax(logits) @ moved, spread)

    start = whales, jnp.zeros(count)
    return jax.lax.scan(step, start, (jax.random.split(rng, sounds.shape[0]), sounds))[1]


def listen_b(rng, whales, sounds):
    count = whales.shape[0]

    def step(carry, inputs):
        whales, logits = carry
        rng, heard = inputs
        pick_rng, move_rng = jax.random.split(rng)
        parents = jax.random.categorical(pick_rng, logits, shape=(count,))
        survivors = whales[parents]
        moved = whale_moves(move_rng, survivors)
        logits = sound_likelihood(moved, heard)
        spread = jnp.std(survivors, axis=0)
        return (moved, logits), (jax.nn.softmax(logits) @ moved, spread)

    start = whales, jnp.zeros(count)
    return jax.lax.scan(step, start, (jax.random.split(rng, sounds.shape[0]), sounds))[1]


def listen_c(rng, whales, sounds):
    count = whales.shape[0]

    def step(carry, inputs):
        whales, logits = carry
        rng, heard = inputs
        moved = whale_moves(rng, whales)
        logits = logits + sound_likelihood(moved, heard)
        shares = jax.nn.softmax(logits)
        effective = 1.0 / jnp.sum(shares**2)
        return (moved, jax.nn.log_softmax(logits)), (shares @ moved, effective)

    start = whales, jnp.zeros(count)
    return jax.lax.scan(step, start, (jax.random.split(rng, sounds.shape[0]), sounds))[1]


add(
    "a whale",
    "value not handed on",
    listen,
    (listen_b, listen_c),
    lambda: (key(), f32(24, 2), f32(12)),
    where="moved = whale_moves(move_rng, whales)",
    axes={"whales": ("particles", None), "sounds": ("time",)},
    source="an issue of a library of probabilistic programs: the filter proposes from particles before resampling",
)


# A schedule of a long run.


def rate_of(update):
    frames = update * 4096 * 256
    fraction = 1.0 - frames / (4000 * 4096 * 256.0)
    return 3e-4 * jnp.maximum(fraction, 0.0)


def rate_of_b(update):
    fraction = 1.0 - update / 4000.0
    return 3e-4 * jnp.maximum(fraction, 0.0)


def rate_of_c(update):
    frames = update.astype(jnp.float32) * 4096 * 256
    fraction = 1.0 - frames / (4000 * 4096 * 256.0)
    return 3e-4 * jnp.maximum(fraction, 0.0)


def long_run(rate):
    def train(params, x, y):
        def step(params, update):
            loss = lambda p: jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"] - y) ** 2)
            value, grads = jax.value_and_grad(loss)(params)
            lr = rate(update)
            return jax.tree.map(lambda p, g: p - lr * g, params, grads), (value, lr)

        return jax.lax.scan(step, params, jnp.arange(4000))

    return train


add(
    "a long run",
    "integer overflow",
    long_run(rate_of),
    (long_run(rate_of_b), long_run(rate_of_c)),
    ({"w1": f32(3, 4), "w2": f32(4)}, f32(5, 3), f32(5)),
    where="frames = update * 4096 * 256",
    axes={"x": ("batch", None), "y": ("batch",)},
    source="issues of two libraries of simulators: the count of steps is beyond 32 bits",
)


# Kinds of clouds.


class CloudNet(nn.Module):
    def close(self, logits):
        return nn.softmax(logits)

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(32)(x))
        x = nn.LayerNorm()(nn.relu(nn.Dense(32)(x)))
        return self.close(nn.Dense(4)(x))


class CloudNetB(CloudNet):
    def close(self, logits):
        return logits


class CloudNetC(CloudNet):
    def close(self, logits):
        return nn.log_softmax(logits)


def clouds(net):
    def step(params, x, kinds):
        tx = optax.adamw(1e-3)

        def loss(params):
            scores = net.apply(params, x)
            value = optax.softmax_cross_entropy_with_integer_labels(scores, kinds).mean()
            return value, jnp.mean(scores.argmax(axis=-1) == kinds)

        (value, right), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = tx.update(grads, tx.init(params), params)
        return optax.apply_updates(params, updates), opt_state, value, right

    return step


add(
    "kinds of clouds",
    "softmax twice",
    clouds(CloudNet()),
    (clouds(CloudNetB()), clouds(CloudNetC())),
    lambda: (shapes_of(CloudNet().init, key(), f32(1, 9)), f32(16, 9), i32(16)),
    where="return nn.softmax(logits)\n",
    axes={"x": ("batch", None), "kinds": ("batch",)},
    source="questions about classifiers that do not learn: the network already ends in a softmax",
)


# Two judges of a crane.


def judge(params, obs, action):
    h = jax.nn.relu(jnp.concatenate([obs, action], axis=-1) @ params["w1"] + params["b1"])
    return (h @ params["w2"])[:, 0]


def crane_targets(judges, obs, action, rewards, dones):
    lower = jnp.minimum(judge(judges["one"], obs, action), judge(judges["two"], obs, action))
    return rewards + 0.98 * (1.0 - dones) * lower


def crane_step(judges, old, obs, action, rewards, next_obs, next_action, dones):
    targets = crane_targets(old, next_obs, next_action, rewards, dones)
    losses = {}
    for name in ("one", "two"):
        loss = lambda p: jnp.mean((judge(p, obs, action) - targets) ** 2)
        losses[name], grads = jax.value_and_grad(loss)(judges[name])
    moved = {n: jax.tree.map(lambda p, g: p - 0.01 * g, judges[n], grads) for n in judges}
    old = jax.tree.map(lambda o, p: 0.99 * o + 0.01 * p, old, moved)
    return moved, old, losses


def crane_step_b(judges, old, obs, action, rewards, next_obs, next_action, dones):
    targets = crane_targets(old, next_obs, next_action, rewards, dones)
    losses, grads = {}, {}
    for name in ("one", "two"):
        loss = lambda p: jnp.mean((judge(p, obs, action) - targets) ** 2)
        losses[name], grads[name] = jax.value_and_grad(loss)(judges[name])
    moved = jax.tree.map(lambda p, g: p - 0.01 * g, judges, grads)
    old = jax.tree.map(lambda o, p: 0.99 * o + 0.01 * p, old, moved)
    return moved, old, losses


def crane_step_c(judges, old, obs, action, rewards, next_obs, next_action, dones):
    targets = crane_targets(old, next_obs, next_action, rewards, dones)

    def total(judges):
        losses = {n: jnp.mean((judge(p, obs, action) - targets) ** 2) for n, p in judges.items()}
        return sum(losses.values()), losses

    (_, losses), grads = jax.value_and_grad(total, has_aux=True)(judges)
    moved = jax.tree.map(lambda p, g: p - 0.01 * g, judges, grads)
    old = jax.tree.map(lambda o, p: 0.99 * o + 0.01 * p, old, moved)
    return moved, old, losses


def crane_judges():
    return {name: {"w1": f32(7, 16), "b1": f32(16), "w2": f32(16, 1)} for name in ("one", "two")}


add(
    "two judges of a crane",
    "value not handed on",
    crane_step,
    (crane_step_b, crane_step_c),
    lambda: (crane_judges(), crane_judges(), f32(10, 5), f32(10, 2), f32(10), f32(10, 5), f32(10, 2), f32(10)),
    where="losses[name], grads = jax.value_and_grad(loss)(judges[name])",
    axes={n: ("batch", None) for n in ("obs", "action", "next_obs", "next_action")}
    | {"rewards": ("batch",), "dones": ("batch",)},
    source="an issue of a library of agents: both critics are updated with the gradient of one",
)
