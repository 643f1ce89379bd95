"""Training steps, random numbers, rules and compilation, from issues of public projects."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from unseen.case import Case, f32, i32, key, shapes_of

CASES = []
add = CASES.append


def norm_of(tree):
    return jnp.sqrt(sum(jnp.vdot(x, x) for x in jax.tree.leaves(tree)))


# The noise of private gradients.


def logistic(params, x, y):
    logit = jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]
    return jax.nn.softplus(jnp.where(y > 0, -logit, logit))


def clip_one(params, x, y):
    grads = jax.grad(logistic)(params, x, y)
    norm = norm_of(grads)
    return jax.tree.map(lambda g: g / jnp.maximum(1.0, norm), grads)


def private_step(params, x, y, rng):
    clipped = jax.vmap(clip_one, in_axes=(None, 0, 0))(params, x, y)
    summed = jax.tree.map(lambda g: g.sum(axis=0), clipped)
    noised = jax.tree.map(lambda g: g + 1.1 * jax.random.normal(rng, g.shape), summed)
    return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, noised)


def private_step_b(params, x, y, rng):
    clipped = jax.vmap(clip_one, in_axes=(None, 0, 0))(params, x, y)
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda g: g.sum(axis=0), clipped))
    keys = jax.random.split(rng, len(leaves))
    noised = [g + 1.1 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, structure.unflatten(noised))


def private_step_c(params, x, y, rng):
    clipped = jax.vmap(clip_one, in_axes=(None, 0, 0))(params, x, y)
    flat, unravel = ravel_pytree(jax.tree.map(lambda g: g.sum(axis=0), clipped))
    noised = unravel(flat + 1.1 * jax.random.normal(rng, flat.shape))
    return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, noised)


add(
    Case(
        "private gradients",
        "key reuse",
        private_step,
        (private_step_b, private_step_c),
        ({"w1": f32(5, 8), "b1": f32(8), "w2": f32(8)}, f32(16, 5), f32(16), key()),
        where="noised = jax.tree.map(lambda g: g + 1.1 * jax.random.normal(rng, g.shape), summed)",
        axes={"x": ("batch", None), "y": ("batch",)},
        source="jax#3646: one key for the noise of all parameters",
    )
)


# Patches that are masked.


def masked_autoencoder(params, opt_state, videos, rng):
    tx = optax.adam(1e-3)

    def loss_fn(params, patches, rng):
        hide = jax.random.bernoulli(jax.random.key(0), 0.75, patches.shape[:-1])
        x = jnp.where(hide[..., None], params["token"], patches @ params["in"])
        x = x + 0.01 * jax.random.normal(rng, x.shape)
        error = jnp.mean((jnp.tanh(x + x.mean(axis=1, keepdims=True)) @ params["out"] - patches) ** 2, axis=-1)
        return jnp.sum(error * hide) / jnp.maximum(hide.sum(), 1)

    def step(carry, x):
        params, opt_state = carry
        patches, rng = x
        loss, grads = jax.value_and_grad(loss_fn)(params, patches, rng)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.lax.scan(step, (params, opt_state), (videos, jax.random.split(rng, videos.shape[0])))


def masked_autoencoder_b(params, opt_state, videos, rng):
    tx = optax.adam(1e-3)

    def loss_fn(params, patches, rng):
        hiding, noise = jax.random.split(rng)
        hide = jax.random.bernoulli(hiding, 0.75, patches.shape[:-1])
        x = jnp.where(hide[..., None], params["token"], patches @ params["in"])
        x = x + 0.01 * jax.random.normal(noise, x.shape)
        error = jnp.mean((jnp.tanh(x + x.mean(axis=1, keepdims=True)) @ params["out"] - patches) ** 2, axis=-1)
        return jnp.sum(error * hide) / jnp.maximum(hide.sum(), 1)

    def step(carry, x):
        params, opt_state = carry
        patches, rng = x
        loss, grads = jax.value_and_grad(loss_fn)(params, patches, rng)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.lax.scan(step, (params, opt_state), (videos, jax.random.split(rng, videos.shape[0])))


def random_features_c(params, opt_state, videos, rng):
    tx = optax.adam(1e-3)
    frozen = jax.random.normal(jax.random.key(0), (videos.shape[-1], 8))

    def loss_fn(params, patches, rng):
        hide = jax.random.bernoulli(rng, 0.75, patches.shape[:-1])
        x = jnp.where(hide[..., None], params["token"], patches @ params["in"])
        wanted = jnp.cos(patches @ frozen)
        error = jnp.mean((jnp.tanh(x + x.mean(axis=1, keepdims=True)) - wanted) ** 2, axis=-1)
        return jnp.sum(error * hide) / jnp.maximum(hide.sum(), 1)

    def step(carry, x):
        params, opt_state = carry
        patches, rng = x
        loss, grads = jax.value_and_grad(loss_fn)(params, patches, rng)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.lax.scan(step, (params, opt_state), (videos, jax.random.split(rng, videos.shape[0])))


PATCHES = {"token": f32(8), "in": f32(12, 8), "out": f32(8, 12)}
add(
    Case(
        "masked patches",
        "key reuse",
        masked_autoencoder,
        (masked_autoencoder_b, random_features_c),
        lambda: (PATCHES, shapes_of(optax.adam(1e-3).init, PATCHES), f32(6, 4, 9, 12), key()),
        where="hide = jax.random.bernoulli(jax.random.key(0), 0.75, patches.shape[:-1])",
        axes={"videos": ("steps", "batch", "patches", None)},
        source="jasmine#239: the key of the mask is made anew in each step",
    )
)


# The noise of exploration.


class Policy(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.tanh(nn.Dense(3)(nn.relu(nn.Dense(16)(obs))))


policy = Policy()


def explore(params, obs, rng):
    def step(obs, rng):
        action = policy.apply(params, obs)
        noise = 0.1 * jax.random.normal(rng, (action.shape[-1],))
        action = jnp.clip(action + noise, -1.0, 1.0)
        after = obs + 0.05 * jnp.pad(action, ((0, 0), (0, obs.shape[-1] - 3)))
        return after, (obs, action, -jnp.sum(after**2, axis=-1))

    return jax.lax.scan(step, obs, jax.random.split(rng, 10))


def explore_b(params, obs, rng):
    def step(obs, rng):
        action = policy.apply(params, obs)
        noise = 0.1 * jax.random.normal(rng, action.shape)
        action = jnp.clip(action + noise, -1.0, 1.0)
        after = obs + 0.05 * jnp.pad(action, ((0, 0), (0, obs.shape[-1] - 3)))
        return after, (obs, action, -jnp.sum(after**2, axis=-1))

    return jax.lax.scan(step, obs, jax.random.split(rng, 10))


def explore_c(params, obs, rng):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(rng, len(leaves))
    moved = [p + 0.1 * jax.random.normal(k, p.shape) for p, k in zip(leaves, keys, strict=True)]
    noisy = structure.unflatten(moved)

    def step(obs, _):
        action = policy.apply(noisy, obs)
        after = obs + 0.05 * jnp.pad(action, ((0, 0), (0, obs.shape[-1] - 3)))
        return after, (obs, action, -jnp.sum(after**2, axis=-1))

    return jax.lax.scan(step, obs, None, length=10)


add(
    Case(
        "noise of exploration",
        "key shared by batch elements",
        explore,
        (explore_b, explore_c),
        lambda: (shapes_of(policy.init, jax.random.key(0), f32(1, 6)), f32(8, 6), key()),
        where="noise = 0.1 * jax.random.normal(rng, (action.shape[-1],))",
        axes={"obs": ("envs", None)},
        source="DDPG and TD3 moved to many environments: one draw for all of them",
    )
)


# Gradients that were clipped.


def train_regressor(params, opt_state, xs, ys):
    tx, clipper = optax.adamw(1e-3), optax.clip_by_global_norm(1.0)

    def step(carry, batch):
        params, opt_state = carry
        x, y = batch
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2))(params)
        clipped, _ = clipper.update(grads, clipper.init(params))
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (loss, norm_of(grads))

    return jax.lax.scan(step, (params, opt_state), (xs, ys))


def train_regressor_b(params, opt_state, xs, ys):
    tx, clipper = optax.adamw(1e-3), optax.clip_by_global_norm(1.0)

    def step(carry, batch):
        params, opt_state = carry
        x, y = batch
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2))(params)
        clipped, _ = clipper.update(grads, clipper.init(params))
        updates, opt_state = tx.update(clipped, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (loss, norm_of(grads))

    return jax.lax.scan(step, (params, opt_state), (xs, ys))


def train_regressor_c(params, opt_state, xs, ys):
    tx = optax.adamw(1e-3)

    def step(carry, batch):
        params, opt_state = carry
        x, y = batch
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y) ** 2))(params)
        norm = norm_of(grads)
        small = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
        updates, opt_state = tx.update(small, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (loss, norm_of(small))

    return jax.lax.scan(step, (params, opt_state), (xs, ys))


TWO = {"a": f32(7, 12), "b": f32(12, 2)}
add(
    Case(
        "clipped gradients",
        "result dropped",
        train_regressor,
        (train_regressor_b, train_regressor_c),
        lambda: (TWO, shapes_of(optax.adamw(1e-3).init, TWO), f32(5, 16, 7), f32(5, 16, 2)),
        where="clipped, _ = clipper.update(grads, clipper.init(params))\n"
        "        updates, opt_state = tx.update(grads, opt_state, params)",
        axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch", None)},
        source="training scripts with Optax: what was clipped is not what is applied",
    )
)


# The best member of an evolution.


def sphere(x):
    return jnp.sum((x - 0.3) ** 2, axis=-1)


def evolve(mean, rng):
    def generation(carry, rng):
        mean, best, best_fitness = carry
        noise = jax.random.normal(rng, (16, mean.shape[0]))
        population = mean + 0.1 * noise
        fitness = sphere(population)
        fitness = jnp.argsort(jnp.argsort(fitness)) / (fitness.shape[0] - 1) - 0.5
        mean = mean - 0.5 * fitness @ noise / 16
        winner = jnp.argmin(fitness)
        better = fitness[winner] < best_fitness
        best = jnp.where(better, population[winner], best)
        return (mean, best, jnp.minimum(best_fitness, fitness[winner])), fitness.mean()

    return jax.lax.scan(generation, (mean, mean, jnp.inf), jax.random.split(rng, 20))[0]


def evolve_b(mean, rng):
    def generation(carry, rng):
        mean, best, best_fitness = carry
        noise = jax.random.normal(rng, (16, mean.shape[0]))
        population = mean + 0.1 * noise
        fitness = sphere(population)
        ranks = jnp.argsort(jnp.argsort(fitness)) / (fitness.shape[0] - 1) - 0.5
        mean = mean - 0.5 * ranks @ noise / 16
        winner = jnp.argmin(fitness)
        better = fitness[winner] < best_fitness
        best = jnp.where(better, population[winner], best)
        return (mean, best, jnp.minimum(best_fitness, fitness[winner])), fitness.mean()

    return jax.lax.scan(generation, (mean, mean, jnp.inf), jax.random.split(rng, 20))[0]


add(
    Case(
        "best of ranks",
        "carry not used",
        evolve,
        (evolve_b,),
        (f32(6), key()),
        where="fitness = jnp.argsort(jnp.argsort(fitness)) / (fitness.shape[0] - 1) - 0.5",
        source="evosax#32: the best of centered ranks is always -0.5 and never replaced",
    )
)


# The rule of a cross entropy with a penalty.


Z_LOSS = 1e-2


@jax.custom_vjp
def z_cross_entropy(logits, labels):
    log_z = jax.nn.logsumexp(logits, axis=-1)
    taken = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return log_z - taken + Z_LOSS * log_z**2


def z_forward(logits, labels):
    log_z = jax.nn.logsumexp(logits, axis=-1)
    return z_cross_entropy(logits, labels), (logits, labels, log_z)


def z_backward(saved, ct):
    logits, labels, log_z = saved
    probs = jnp.exp(logits - log_z[..., None])
    grad = probs - jax.nn.one_hot(labels, logits.shape[-1])
    return ct[..., None] * grad, None


z_cross_entropy.defvjp(z_forward, z_backward)


@jax.custom_vjp
def z_cross_entropy_b(logits, labels):
    log_z = jax.nn.logsumexp(logits, axis=-1)
    taken = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return log_z - taken + Z_LOSS * log_z**2


def z_forward_b(logits, labels):
    log_z = jax.nn.logsumexp(logits, axis=-1)
    return z_cross_entropy_b(logits, labels), (logits, labels, log_z)


def z_backward_b(saved, ct):
    logits, labels, log_z = saved
    probs = jnp.exp(logits - log_z[..., None]) * (1.0 + 2.0 * Z_LOSS * log_z)[..., None]
    return ct[..., None] * (probs - jax.nn.one_hot(labels, logits.shape[-1])), None


z_cross_entropy_b.defvjp(z_forward_b, z_backward_b)


@jax.custom_vjp
def cross_entropy_c(logits, labels):
    taken = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - taken


def forward_c(logits, labels):
    return cross_entropy_c(logits, labels), (logits, labels)


def backward_c(saved, ct):
    logits, labels = saved
    return ct[..., None] * (jax.nn.softmax(logits) - jax.nn.one_hot(labels, logits.shape[-1])), None


cross_entropy_c.defvjp(forward_c, backward_c)


def token_loss(cross_entropy):
    def loss(params, x, labels):
        return cross_entropy(jnp.tanh(x @ params["w"]) @ params["out"], labels).mean()

    return loss


add(
    Case(
        "penalty of the normalizer",
        "custom rule",
        token_loss(z_cross_entropy),
        (token_loss(z_cross_entropy_b), token_loss(cross_entropy_c)),
        ({"w": f32(6, 8), "out": f32(8, 10)}, f32(3, 5, 6), i32(3, 5)),
        where="grad = probs - jax.nn.one_hot(labels, logits.shape[-1])",
        axes={"x": ("batch", "length", None), "labels": ("batch", "length")},
        differentiate="params",
        source="cross entropies with a z-loss in the manner of t5x: the rule forgets the penalty",
    )
)


# Noise of NumPy in a compiled step.


@jax.jit
def denoising_step(params, images, rng):
    t = jax.random.uniform(rng, (images.shape[0], 1))
    noise = np.random.normal(size=images.shape)

    def loss_fn(params):
        noised = jnp.sqrt(1.0 - t) * images + jnp.sqrt(t) * noise
        predicted = jnp.tanh(jnp.concatenate([noised, t], axis=-1) @ params["w"]) @ params["v"]
        return jnp.mean((predicted - noise) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), loss


@jax.jit
def denoising_step_b(params, images, rng):
    at, of = jax.random.split(rng)
    t = jax.random.uniform(at, (images.shape[0], 1))
    noise = jax.random.normal(of, images.shape)

    def loss_fn(params):
        noised = jnp.sqrt(1.0 - t) * images + jnp.sqrt(t) * noise
        predicted = jnp.tanh(jnp.concatenate([noised, t], axis=-1) @ params["w"]) @ params["v"]
        return jnp.mean((predicted - noise) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), loss


add(
    Case(
        "noise of NumPy",
        "state read by jit",
        denoising_step,
        (denoising_step_b,),
        ({"w": f32(13, 16), "v": f32(16, 12)}, f32(8, 12), key()),
        where="noise = np.random.normal(size=images.shape)",
        axes={"images": ("batch", None)},
        source="StackOverflow and JAX's sharp bits: np.random under jit draws once",
    )
)


# A posterior of more and more points.


@jax.jit
def posterior_mean(xs, ys, query):
    gram = jnp.exp(-0.5 * jnp.sum((xs[:, None] - xs[None]) ** 2, axis=-1)) + 1e-2 * jnp.eye(xs.shape[0])
    cross = jnp.exp(-0.5 * jnp.sum((query[:, None] - xs[None]) ** 2, axis=-1))
    return cross @ jnp.linalg.solve(gram, ys)


def regret(xs, ys, query):
    errors = []
    for n in range(4, xs.shape[0]):
        mean = posterior_mean(xs[:n], ys[:n], query)
        errors.append(jnp.abs(mean.max() - ys[n]))
    return jnp.stack(errors)


@jax.jit
def posterior_mean_b(xs, ys, keep, query):
    pairs = keep[:, None] & keep[None]
    gram = jnp.where(pairs, jnp.exp(-0.5 * jnp.sum((xs[:, None] - xs[None]) ** 2, axis=-1)), 0.0)
    gram = gram + jnp.diag(jnp.where(keep, 1e-2, 1.0))
    cross = jnp.exp(-0.5 * jnp.sum((query[:, None] - xs[None]) ** 2, axis=-1)) * keep
    return cross @ jnp.linalg.solve(gram, jnp.where(keep, ys, 0.0))


def regret_b(xs, ys, query):
    index = jnp.arange(xs.shape[0])
    error = lambda n: jnp.abs(posterior_mean_b(xs, ys, index < n, query).max() - ys[n])
    return jax.lax.map(error, index[4:])


add(
    Case(
        "points so far",
        "recompilation",
        regret,
        (regret_b,),
        (f32(24, 2), f32(24), f32(30, 2)),
        where="mean = posterior_mean(xs[:n], ys[:n], query)",
        axes={"xs": ("points", None), "ys": ("points",), "query": ("queries", None)},
        source="jax#817 and Bayesian optimization in JAX: each shape compiles anew",
    )
)


# Masks of integers.


def q_loss(params, target_params, obs, actions, rewards, dones, next_obs):
    dones = dones.astype(jnp.int32)
    next_q = jnp.max(next_obs @ target_params, axis=-1)
    targets = rewards + 0.99 * ~dones * next_q
    q = jnp.take_along_axis(obs @ params, actions[:, None], axis=-1)[:, 0]
    return jnp.mean(optax.huber_loss(q, targets))


def q_loss_b(params, target_params, obs, actions, rewards, dones, next_obs):
    dones = dones.astype(jnp.int32)
    next_q = jnp.max(next_obs @ target_params, axis=-1)
    targets = rewards + 0.99 * (1 - dones) * next_q
    q = jnp.take_along_axis(obs @ params, actions[:, None], axis=-1)[:, 0]
    return jnp.mean(optax.huber_loss(q, targets))


def q_loss_c(params, target_params, obs, actions, rewards, dones, next_obs):
    over = dones > 0
    next_q = jnp.max(next_obs @ target_params, axis=-1)
    targets = rewards + 0.99 * ~over * next_q
    q = jnp.take_along_axis(obs @ params, actions[:, None], axis=-1)[:, 0]
    return jnp.mean(optax.huber_loss(q, targets))


add(
    Case(
        "complement of integers",
        "dtype",
        q_loss,
        (q_loss_b, q_loss_c),
        (f32(6, 4), f32(6, 4), f32(16, 6), i32(16), f32(16), jax.ShapeDtypeStruct((16,), jnp.uint8), f32(16, 6)),
        where="targets = rewards + 0.99 * ~dones * next_q",
        axes={"obs": ("batch", None), "rewards": ("batch",), "dones": ("batch",)},
        differentiate="params",
        source="DQN scripts with flags of NumPy buffers: ~1 is -2",
    )
)


# Numbers of edges.


def distinct_edges(senders, receivers):
    number_of_nodes = 100_000
    ids = senders * number_of_nodes + receivers
    ordered = jnp.sort(ids)
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    back_s, back_r = ordered // number_of_nodes, ordered % number_of_nodes
    degree = jax.ops.segment_sum(first.astype(jnp.float32), back_r, number_of_nodes)
    return first.sum(), jnp.where(first, back_s, -1), degree[receivers]


def distinct_edges_b(senders, receivers):
    number_of_nodes = 100_000
    order = jnp.lexsort((receivers, senders))
    s, r = senders[order], receivers[order]
    first = jnp.concatenate([jnp.ones(1, bool), (s[1:] != s[:-1]) | (r[1:] != r[:-1])])
    degree = jax.ops.segment_sum(first.astype(jnp.float32), r, number_of_nodes)
    return first.sum(), jnp.where(first, s, -1), degree[receivers]


def distinct_edges_c(senders, receivers):
    number_of_nodes = 20_000
    ids = (senders % number_of_nodes) * number_of_nodes + receivers % number_of_nodes
    ordered = jnp.sort(ids)
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    back_s, back_r = ordered // number_of_nodes, ordered % number_of_nodes
    degree = jax.ops.segment_sum(first.astype(jnp.float32), back_r, number_of_nodes)
    return first.sum(), jnp.where(first, back_s, -1), degree[receivers % number_of_nodes]


add(
    Case(
        "distinct edges",
        "integer overflow",
        distinct_edges,
        (distinct_edges_b, distinct_edges_c),
        (i32(50), i32(50)),
        where="ids = senders * number_of_nodes + receivers\n",
        axes={"senders": ("edges",), "receivers": ("edges",)},
        source="pyscf-ipu#82: a product of indices does not fit int32",
    )
)


# Iterations of Sinkhorn.


def sinkhorn(x, y):
    cost = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)
    f, g = jnp.zeros(x.shape[0]), jnp.zeros(y.shape[0])
    for _ in range(200):
        f = -0.05 * jax.nn.logsumexp((g[None] - cost) / 0.05 - jnp.log(y.shape[0]), axis=1)
        g = -0.05 * jax.nn.logsumexp((f[:, None] - cost) / 0.05 - jnp.log(x.shape[0]), axis=0)
    return f.mean() + g.mean()


def sinkhorn_b(x, y):
    cost = jnp.sum((x[:, None] - y[None]) ** 2, axis=-1)

    def iterate(carry, _):
        f, g = carry
        f = -0.05 * jax.nn.logsumexp((g[None] - cost) / 0.05 - jnp.log(y.shape[0]), axis=1)
        g = -0.05 * jax.nn.logsumexp((f[:, None] - cost) / 0.05 - jnp.log(x.shape[0]), axis=0)
        return (f, g), None

    (f, g), _ = jax.lax.scan(iterate, (jnp.zeros(x.shape[0]), jnp.zeros(y.shape[0])), None, length=200)
    return f.mean() + g.mean()


add(
    Case(
        "iterations of sinkhorn",
        "unrolled loop",
        sinkhorn,
        (sinkhorn_b,),
        (f32(12, 2), f32(10, 2)),
        where="for _ in range(200):",
        axes={"x": ("points", None), "y": ("targets", None)},
        source="optimal transport by hand in JAX: a Python loop of iterations",
    )
)
