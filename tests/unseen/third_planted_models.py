"""Models and simulations of our own, in each of which some mistakes were planted, one at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from unseen.case import Case, f32, i32, key, shapes_of


def init_mlp(rng, sizes):
    keys = jax.random.split(rng, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (m, n)) / np.sqrt(m), "b": jnp.zeros((n,))}
        for k, m, n in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def mlp(layers, x):
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


# A transformer decoder that writes with a cache of keys and values.

WRITER_BATCH, WRITER_LENGTH, WRITER_HEADS, WRITER_DIM, WRITER_VOCAB = 3, 20, 2, 8, 40
WRITER_WIDTH = WRITER_HEADS * WRITER_DIM


def writer_init(rng):
    keys = jax.random.split(rng, 5)
    return {
        "embed": 0.1 * jax.random.normal(keys[0], (WRITER_VOCAB, WRITER_WIDTH)),
        "position": 0.1 * jax.random.normal(keys[1], (WRITER_LENGTH, WRITER_WIDTH)),
        "qkv": jax.random.normal(keys[2], (WRITER_WIDTH, 3 * WRITER_WIDTH)) / np.sqrt(WRITER_WIDTH),
        "out": jax.random.normal(keys[3], (WRITER_WIDTH, WRITER_WIDTH)) / np.sqrt(WRITER_WIDTH),
        "mlp": init_mlp(keys[4], (WRITER_WIDTH, 32, WRITER_WIDTH)),
    }


def writer_embed(params, token, position):
    x = params["embed"][token] + params["position"][position]
    qkv = (x @ params["qkv"]).reshape(x.shape[0], 3, WRITER_HEADS, WRITER_DIM)
    return x, qkv[:, 0], qkv[:, 1], qkv[:, 2]


def writer_logits(params, x, mixed):
    x = x + mixed.reshape(x.shape) @ params["out"]
    x = x + mlp(params["mlp"], x)
    return x @ params["embed"].T


def writer_empty():
    return jnp.zeros((WRITER_BATCH, WRITER_LENGTH, WRITER_HEADS, WRITER_DIM))


def write(params, first, rng):
    def step(carry, inputs):
        token, keys, values = carry
        position, step_key = inputs
        x, q, k, v = writer_embed(params, token, position)
        keys = keys.at[:, position].set(k)
        values = values.at[:, position].set(v)
        scores = jnp.einsum("bhd,blhd->bhl", q, keys) / np.sqrt(WRITER_DIM)
        visible = jnp.arange(WRITER_LENGTH) <= position
        weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhl,blhd->bhd", weights, values)
        token = jax.random.categorical(step_key, writer_logits(params, x, mixed))
        return (token, keys, values), token

    start = (first, writer_empty(), writer_empty())
    _, tokens = jax.lax.scan(step, start, (jnp.arange(WRITER_LENGTH), jax.random.split(rng, WRITER_LENGTH)))
    return tokens.T


def write_over_whole_cache(params, first, rng):
    def step(carry, inputs):
        token, keys, values = carry
        position, step_key = inputs
        x, q, k, v = writer_embed(params, token, position)
        keys = keys.at[:, position].set(k)
        values = values.at[:, position].set(v)
        scores = jnp.einsum("bhd,blhd->bhl", q, keys) / np.sqrt(WRITER_DIM)
        weights = jax.nn.softmax(scores, axis=-1)
        mixed = jnp.einsum("bhl,blhd->bhd", weights, values)
        token = jax.random.categorical(step_key, writer_logits(params, x, mixed))
        return (token, keys, values), token

    start = (first, writer_empty(), writer_empty())
    _, tokens = jax.lax.scan(step, start, (jnp.arange(WRITER_LENGTH), jax.random.split(rng, WRITER_LENGTH)))
    return tokens.T


def write_by_weights(params, first, rng):
    def step(carry, inputs):
        token, keys, values = carry
        position, step_key = inputs
        x, q, k, v = writer_embed(params, token, position)
        keys = keys.at[:, position].set(k)
        values = values.at[:, position].set(v)
        scores = jnp.einsum("bhd,blhd->bhl", q, keys) / np.sqrt(WRITER_DIM)
        visible = (jnp.arange(WRITER_LENGTH) <= position).astype(scores.dtype)
        powers = jnp.exp(scores - scores.max(axis=-1, keepdims=True)) * visible
        weights = powers / (powers.sum(axis=-1, keepdims=True) + 1e-9)
        mixed = jnp.einsum("bhl,blhd->bhd", weights, values)
        token = jax.random.categorical(step_key, writer_logits(params, x, mixed))
        return (token, keys, values), token

    start = (first, writer_empty(), writer_empty())
    _, tokens = jax.lax.scan(step, start, (jnp.arange(WRITER_LENGTH), jax.random.split(rng, WRITER_LENGTH)))
    return tokens.T


def write_before_store(params, first, rng):
    def step(carry, inputs):
        token, keys, values = carry
        position, step_key = inputs
        x, q, k, v = writer_embed(params, token, position)
        new_keys = keys.at[:, position].set(k)
        new_values = values.at[:, position].set(v)
        scores = jnp.einsum("bhd,blhd->bhl", q, keys) / np.sqrt(WRITER_DIM)
        visible = jnp.arange(WRITER_LENGTH) <= position
        weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhl,blhd->bhd", weights, values)  # of the cache
        token = jax.random.categorical(step_key, writer_logits(params, x, mixed))
        return (token, new_keys, new_values), token

    start = (first, writer_empty(), writer_empty())
    _, tokens = jax.lax.scan(step, start, (jnp.arange(WRITER_LENGTH), jax.random.split(rng, WRITER_LENGTH)))
    return tokens.T


def write_self_apart(params, first, rng):
    def step(carry, inputs):
        token, keys, values = carry
        position, step_key = inputs
        x, q, k, v = writer_embed(params, token, position)
        past = jnp.einsum("bhd,blhd->bhl", q, keys) / np.sqrt(WRITER_DIM)
        past = jnp.where(jnp.arange(WRITER_LENGTH) < position, past, -1e9)
        own = jnp.sum(q * k, axis=-1, keepdims=True) / np.sqrt(WRITER_DIM)
        weights = jax.nn.softmax(jnp.concatenate([past, own], axis=-1), axis=-1)
        mixed = jnp.einsum("bhl,blhd->bhd", weights[..., :-1], values) + weights[..., -1:] * v
        token = jax.random.categorical(step_key, writer_logits(params, x, mixed))
        return (token, keys.at[:, position].set(k), values.at[:, position].set(v)), token

    start = (first, writer_empty(), writer_empty())
    _, tokens = jax.lax.scan(step, start, (jnp.arange(WRITER_LENGTH), jax.random.split(rng, WRITER_LENGTH)))
    return tokens.T


WRITER_ARGS = (shapes_of(writer_init, key()), i32(WRITER_BATCH), key())


# A block of a vision transformer.

VIT_SIDE, VIT_PATCH, VIT_HEADS, VIT_DIM, VIT_CLASSES = 12, 4, 3, 6, 10
VIT_WIDTH = VIT_HEADS * VIT_DIM


def vit_init(rng):
    keys = jax.random.split(rng, 5)
    return {
        "patch": init_mlp(keys[0], (VIT_PATCH * VIT_PATCH * 3, VIT_WIDTH)),
        "qkv": init_mlp(keys[1], (VIT_WIDTH, 3 * VIT_WIDTH)),
        "out": init_mlp(keys[2], (VIT_WIDTH, VIT_WIDTH)),
        "mlp": init_mlp(keys[3], (VIT_WIDTH, 40, VIT_WIDTH)),
        "head": init_mlp(keys[4], (VIT_WIDTH, VIT_CLASSES)),
    }


def layer_norm(x):
    mean = x.mean(axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(x.var(axis=-1, keepdims=True) + 1e-6)


def vit_patches(params, images):
    batch, side = images.shape[0], VIT_SIDE // VIT_PATCH
    cut = images.reshape(batch, side, VIT_PATCH, side, VIT_PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    return mlp(params["patch"], cut.reshape(batch, side * side, -1))


def vit_head_loss(params, x, mixed, labels):
    x = x + mlp(params["out"], mixed)
    x = x + mlp(params["mlp"], layer_norm(x))
    logits = mlp(params["head"], x.mean(axis=1))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def vit_loss(params, images, labels):
    x = vit_patches(params, images)
    batch, tokens, _ = x.shape
    q, k, v = jnp.split(mlp(params["qkv"], layer_norm(x)), 3, axis=-1)
    q = q.reshape(batch, tokens, VIT_HEADS, VIT_DIM).transpose(0, 2, 1, 3)
    k = k.reshape(batch, tokens, VIT_HEADS, VIT_DIM).transpose(0, 2, 1, 3)
    v = v.reshape(batch, tokens, VIT_HEADS, VIT_DIM).transpose(0, 2, 1, 3)
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(VIT_DIM), axis=-1)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, tokens, VIT_WIDTH)
    return vit_head_loss(params, x, mixed, labels)


def vit_loss_joined(params, images, labels):
    x = vit_patches(params, images)
    batch, tokens, _ = x.shape
    q, k, v = jnp.split(mlp(params["qkv"], layer_norm(x)), 3, axis=-1)
    q = q.reshape(batch, tokens, VIT_HEADS, VIT_DIM).transpose(0, 2, 1, 3)
    k = k.reshape(batch, tokens, VIT_HEADS, VIT_DIM).transpose(0, 2, 1, 3)
    v = v.reshape(batch, tokens, VIT_HEADS, VIT_DIM).transpose(0, 2, 1, 3)
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / np.sqrt(VIT_DIM), axis=-1)
    mixed = (weights @ v).reshape(batch, tokens, VIT_WIDTH)
    return vit_head_loss(params, x, mixed, labels)


def vit_loss_einsum(params, images, labels):
    x = vit_patches(params, images)
    batch, tokens, _ = x.shape
    qkv = mlp(params["qkv"], layer_norm(x)).reshape(batch, tokens, 3, VIT_HEADS, VIT_DIM)
    scores = jnp.einsum("bihd,bjhd->bhij", qkv[:, :, 0], qkv[:, :, 1]) / np.sqrt(VIT_DIM)
    mixed = jnp.einsum("bhij,bjhd->bihd", jax.nn.softmax(scores, axis=-1), qkv[:, :, 2])
    return vit_head_loss(params, x, mixed.reshape(batch, tokens, VIT_WIDTH), labels)


# A variational autoencoder, and one with a discrete code.

VAE_BATCH, VAE_PIXELS, VAE_LATENT, VAE_CODES = 16, 36, 4, 12


def vae_init(rng):
    encoder, decoder = jax.random.split(rng)
    return {
        "encoder": init_mlp(encoder, (VAE_PIXELS, 24, 2 * VAE_LATENT)),
        "decoder": init_mlp(decoder, (VAE_LATENT, 24, VAE_PIXELS)),
    }


def vae_example(params, image, rng):
    mean, log_var = jnp.split(mlp(params["encoder"], image), 2, axis=-1)
    latent = mean + jnp.exp(0.5 * log_var) * jax.random.normal(rng, mean.shape)
    logits = mlp(params["decoder"], latent)
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, image).sum(axis=-1)
    divergence = 0.5 * jnp.sum(jnp.exp(log_var) + mean**2 - 1.0 - log_var, axis=-1)
    return reconstruction + divergence


def vae_loss(params, images, rng):
    keys = jax.random.split(rng, images.shape[0])
    return jnp.mean(jax.vmap(vae_example, in_axes=(None, 0, 0))(params, images, keys))


def vae_loss_one_key(params, images, rng):
    return jnp.mean(jax.vmap(vae_example, in_axes=(None, 0, None))(params, images, rng))


def vae_loss_whole_batch(params, images, rng):
    return jnp.mean(vae_example(params, images, rng))


def dvae_init(rng):
    encoder, decoder = jax.random.split(rng)
    return {
        "encoder": init_mlp(encoder, (VAE_PIXELS, 24, VAE_CODES)),
        "decoder": init_mlp(decoder, (VAE_CODES, 24, VAE_PIXELS)),
    }


def dvae_loss(encoder, decoder, images, rng):
    logits = mlp(encoder, images)
    noise = jax.random.gumbel(rng, logits.shape)
    hard = jax.nn.one_hot(jnp.argmax(logits + noise, axis=-1), VAE_CODES)
    probs = jax.nn.softmax(logits)
    code = hard + probs - jax.lax.stop_gradient(probs)
    return optax.sigmoid_binary_cross_entropy(mlp(decoder, code), images).sum(axis=-1).mean()


def dvae_loss_hard(encoder, decoder, images, rng):
    logits = mlp(encoder, images)
    noise = jax.random.gumbel(rng, logits.shape)
    code = jax.nn.one_hot(jnp.argmax(logits + noise, axis=-1), VAE_CODES)
    return optax.sigmoid_binary_cross_entropy(mlp(decoder, code), images).sum(axis=-1).mean()


def dvae_loss_relaxed(encoder, decoder, images, rng):
    logits = mlp(encoder, images)
    noise = jax.random.gumbel(rng, logits.shape)
    code = jax.nn.softmax((logits + noise) / 0.7, axis=-1)
    return optax.sigmoid_binary_cross_entropy(mlp(decoder, code), images).sum(axis=-1).mean()


DVAE_PARAMS = shapes_of(dvae_init, key())


# Diffusion of points.

DIFFUSION_STEPS, DIFFUSION_BATCH, DIFFUSION_DIM = 100, 24, 5


def diffusion_init(rng):
    return init_mlp(rng, (DIFFUSION_DIM + 8, 32, 32, DIFFUSION_DIM))


def diffusion_kept():
    """The share of the signal's variance left after each of the steps."""
    return jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.05, DIFFUSION_STEPS))


def diffusion_model(params, x, steps):
    phases = steps[:, None] / DIFFUSION_STEPS * 2.0 ** jnp.arange(4)
    return mlp(params, jnp.concatenate([x, jnp.sin(phases), jnp.cos(phases)], axis=-1))


def diffusion_loss(params, x, rng):
    step_key, noise_key = jax.random.split(rng)
    steps = jax.random.randint(step_key, (x.shape[0],), 0, DIFFUSION_STEPS)
    kept = diffusion_kept()[steps][:, None]
    noise = jax.random.normal(noise_key, x.shape)
    noisy = jnp.sqrt(kept) * x + jnp.sqrt(1.0 - kept) * noise
    return jnp.mean((diffusion_model(params, noisy, steps) - noise) ** 2)


def diffusion_loss_from_one(params, x, rng):
    step_key, noise_key = jax.random.split(rng)
    steps = jax.random.randint(step_key, (x.shape[0],), 1, DIFFUSION_STEPS + 1)
    kept = jnp.take(diffusion_kept(), steps, axis=0)[:, None]
    noise = jax.random.normal(noise_key, x.shape)
    noisy = jnp.sqrt(kept) * x + jnp.sqrt(1.0 - kept) * noise
    return jnp.mean((diffusion_model(params, noisy, steps) - noise) ** 2)


def diffusion_loss_counted(params, x, rng):
    step_key, noise_key = jax.random.split(rng)
    steps = jax.random.randint(step_key, (x.shape[0],), 1, DIFFUSION_STEPS + 1)
    kept = jnp.concatenate([jnp.ones(1), diffusion_kept()])[steps][:, None]
    noise = jax.random.normal(noise_key, x.shape)
    noisy = jnp.sqrt(kept) * x + jnp.sqrt(1.0 - kept) * noise
    return jnp.mean((diffusion_model(params, noisy, steps) - noise) ** 2)


# Flow matching.

FLOW_BATCH, FLOW_DIM = 32, 3


def flow_init(rng):
    return init_mlp(rng, (FLOW_DIM + 1, 32, 32, FLOW_DIM))


def flow_velocity(params, x, t):
    return mlp(params, jnp.concatenate([x, t], axis=-1))


def flow_loss(params, data, rng):
    noise_key, time_key = jax.random.split(rng)
    noise = jax.random.normal(noise_key, data.shape)
    t = jax.random.uniform(time_key, (data.shape[0], 1))
    between = (1.0 - t) * noise + t * data
    errors = jnp.sum((flow_velocity(params, between, t) - (data - noise)) ** 2, axis=-1)
    weights = 1.0 / (1.1 - t[:, 0])
    return jnp.mean(weights * errors)


def flow_loss_all_weights(params, data, rng):
    noise_key, time_key = jax.random.split(rng)
    noise = jax.random.normal(noise_key, data.shape)
    t = jax.random.uniform(time_key, (data.shape[0], 1))
    between = (1.0 - t) * noise + t * data
    errors = jnp.sum((flow_velocity(params, between, t) - (data - noise)) ** 2, axis=-1)
    return jnp.mean(errors / (1.1 - t))


def flow_loss_weighted_squares(params, data, rng):
    noise_key, time_key = jax.random.split(rng)
    noise = jax.random.normal(noise_key, data.shape)
    t = jax.random.uniform(time_key, (data.shape[0], 1))
    between = (1.0 - t) * noise + t * data
    squares = (flow_velocity(params, between, t) - (data - noise)) ** 2
    return jnp.mean(jnp.sum(squares / (1.1 - t), axis=-1))


def flow_sample(params, rng):
    x = jax.random.normal(rng, (FLOW_BATCH, FLOW_DIM))

    def step(i, x):
        t = jnp.full((FLOW_BATCH, 1), i / 200)
        return x + flow_velocity(params, x, t) / 200

    return jax.lax.fori_loop(0, 200, step, x)


def flow_sample_listed(params, rng):
    x = jax.random.normal(rng, (FLOW_BATCH, FLOW_DIM))
    for i in range(200):
        t = jnp.full((FLOW_BATCH, 1), i / 200)
        x = x + flow_velocity(params, x, t) / 200
    return x


def flow_sample_midpoints(params, rng):
    x = jax.random.normal(rng, (FLOW_BATCH, FLOW_DIM))
    for i in range(4):
        early = jnp.full((FLOW_BATCH, 1), i / 4)
        middle = x + flow_velocity(params, x, early) / 8
        x = x + flow_velocity(params, middle, early + 1 / 8) / 4
    return x


FLOW_PARAMS = shapes_of(flow_init, key())


# A graph network.

GRAPH_NODES, GRAPH_EDGES, GRAPH_DIM = 14, 40, 6


def graph_init(rng):
    message, update, head = jax.random.split(rng, 3)
    return {
        "message": init_mlp(message, (2 * GRAPH_DIM, 16, GRAPH_DIM)),
        "update": init_mlp(update, (2 * GRAPH_DIM, 16, GRAPH_DIM)),
        "head": init_mlp(head, (GRAPH_DIM, 1)),
    }


def graph_messages(params, nodes, senders, receivers):
    return mlp(params["message"], jnp.concatenate([nodes[senders], nodes[receivers]], axis=-1))


def graph_loss(params, nodes, senders, receivers, targets):
    degree = jax.ops.segment_sum(jnp.ones(senders.shape), receivers, num_segments=GRAPH_NODES)
    for _ in range(2):
        messages = graph_messages(params, nodes, senders, receivers)
        total = jax.ops.segment_sum(messages, receivers, num_segments=GRAPH_NODES)
        mean = total / jnp.maximum(degree, 1.0)[:, None]
        nodes = nodes + mlp(params["update"], jnp.concatenate([nodes, mean], axis=-1))
    return jnp.mean((mlp(params["head"], nodes)[:, 0] - targets) ** 2)


def graph_loss_any_degree(params, nodes, senders, receivers, targets):
    degree = jax.ops.segment_sum(jnp.ones(senders.shape), receivers, num_segments=GRAPH_NODES)
    for _ in range(2):
        messages = graph_messages(params, nodes, senders, receivers)
        total = jax.ops.segment_sum(messages, receivers, num_segments=GRAPH_NODES)
        mean = total / degree[:, None]
        nodes = nodes + mlp(params["update"], jnp.concatenate([nodes, mean], axis=-1))
    return jnp.mean((mlp(params["head"], nodes)[:, 0] - targets) ** 2)


def graph_loss_self_counted(params, nodes, senders, receivers, targets):
    degree = 1.0 + jax.ops.segment_sum(jnp.ones(senders.shape), receivers, num_segments=GRAPH_NODES)
    for _ in range(2):
        messages = graph_messages(params, nodes, senders, receivers)
        total = nodes + jax.ops.segment_sum(messages, receivers, num_segments=GRAPH_NODES)
        average = total / degree[:, None]
        nodes = nodes + mlp(params["update"], jnp.concatenate([nodes, average], axis=-1))
    return jnp.mean((mlp(params["head"], nodes)[:, 0] - targets) ** 2)


# The Ising model, swept by a checkerboard.

ISING_SIDE = 32
ISING_BLACK = np.indices((ISING_SIDE, ISING_SIDE)).sum(axis=0) % 2 == 0


def ising_around(spins):
    return jnp.roll(spins, 1, 0) + jnp.roll(spins, -1, 0) + jnp.roll(spins, 1, 1) + jnp.roll(spins, -1, 1)


def ising_sweep(spins, beta, rng):
    for k, colour in zip(jax.random.split(rng), (ISING_BLACK, ~ISING_BLACK), strict=True):
        cost = 2.0 * (spins * ising_around(spins)).astype(jnp.float32)
        flip = jax.random.uniform(k, spins.shape) < jnp.exp(-beta * cost)
        spins = jnp.where(flip & colour, -spins, spins)
    return spins


def ising_start(rng):
    return jnp.where(jax.random.bernoulli(rng, 0.5, (ISING_SIDE, ISING_SIDE)), 1, -1).astype(jnp.int8)


def ising(beta, rng):
    start_key, sweep_key = jax.random.split(rng)

    def step(spins, k):
        spins = ising_sweep(spins, beta, k)
        wide = spins.astype(jnp.int32)
        energy = -jnp.vdot(wide, jnp.roll(wide, 1, 0) + jnp.roll(wide, 1, 1))
        return spins, energy / spins.size

    _, energies = jax.lax.scan(step, ising_start(start_key), jax.random.split(sweep_key, 100))
    return energies[50:].mean()


def ising_narrow(beta, rng):
    start_key, sweep_key = jax.random.split(rng)

    def step(spins, k):
        spins = ising_sweep(spins, beta, k)
        energy = -jnp.vdot(spins, jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1))
        return spins, energy / spins.size

    _, energies = jax.lax.scan(step, ising_start(start_key), jax.random.split(sweep_key, 100))
    return energies[50:].mean()


def ising_summed(beta, rng):
    start_key, sweep_key = jax.random.split(rng)

    def step(spins, k):
        spins = ising_sweep(spins, beta, k)
        bonds = spins * (jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1))
        energy = -jnp.sum(bonds, dtype=jnp.int32)
        return spins, energy / spins.size

    _, energies = jax.lax.scan(step, ising_start(start_key), jax.random.split(sweep_key, 100))
    return energies[50:].mean()


# Hamiltonian Monte Carlo for logistic regression.

HMC_ROWS, HMC_DIM, HMC_STEP = 60, 4, 0.05


def hmc_potential(theta, x, y):
    logits = x @ theta
    return jnp.sum(jax.nn.softplus(logits) - y * logits) + 0.5 * jnp.sum(theta**2)


def hmc_leapfrog(theta, momentum, x, y):
    slope = jax.grad(hmc_potential)

    def step(_, state):
        theta, momentum = state
        momentum = momentum - 0.5 * HMC_STEP * slope(theta, x, y)
        theta = theta + HMC_STEP * momentum
        return theta, momentum - 0.5 * HMC_STEP * slope(theta, x, y)

    return jax.lax.fori_loop(0, 10, step, (theta, momentum))


def hmc(start, x, y, rng):
    def step(theta, k):
        momentum_key, accept_key = jax.random.split(k)
        momentum = jax.random.normal(momentum_key, theta.shape)
        proposal, end = hmc_leapfrog(theta, momentum, x, y)
        before = hmc_potential(theta, x, y) + 0.5 * jnp.sum(momentum**2)
        after = hmc_potential(proposal, x, y) + 0.5 * jnp.sum(end**2)
        accept = jnp.log1p(-jax.random.uniform(accept_key)) < before - after
        theta = jnp.where(accept, proposal, theta)
        return theta, theta

    return jax.lax.scan(step, start, jax.random.split(rng, 200))[1]


def hmc_about_start(start, x, y, rng):
    def step(theta, k):
        momentum_key, accept_key = jax.random.split(k)
        momentum = jax.random.normal(momentum_key, start.shape)
        proposal, end = hmc_leapfrog(start, momentum, x, y)
        before = hmc_potential(start, x, y) + 0.5 * jnp.sum(momentum**2)
        after = hmc_potential(proposal, x, y) + 0.5 * jnp.sum(end**2)
        accept = jnp.log1p(-jax.random.uniform(accept_key)) < before - after
        theta = jnp.where(accept, proposal, start)
        return theta, theta

    return jax.lax.scan(step, start, jax.random.split(rng, 200))[1]


def independent_metropolis(start, x, y, rng):
    def surplus(theta):
        return 0.5 * jnp.sum((theta - start) ** 2) - hmc_potential(theta, x, y)

    def step(theta, k):
        proposal_key, accept_key = jax.random.split(k)
        proposal = start + jax.random.normal(proposal_key, start.shape)
        accept = jnp.log1p(-jax.random.uniform(accept_key)) < surplus(proposal) - surplus(theta)
        theta = jnp.where(accept, proposal, theta)
        return theta, theta

    return jax.lax.scan(step, start, jax.random.split(rng, 200))[1]


# A bootstrap particle filter of a stochastic volatility model.

PARTICLES, FILTER_TIME = 256, 30


def particle_log_weights(particles, y):
    return -0.5 * (y**2 * jnp.exp(-particles) + particles + np.log(2 * np.pi))


def particle_resample(particles, weights, rng):
    points = (jnp.arange(PARTICLES) + jax.random.uniform(rng)) / PARTICLES
    ancestors = jnp.searchsorted(jnp.cumsum(weights), points)
    return particles[jnp.clip(ancestors, 0, PARTICLES - 1)]


def particle_likelihood(persistence, scale, observations, rng):
    start_key, step_key = jax.random.split(rng)

    def step(carry, inputs):
        particles, total = carry
        y, k = inputs
        move_key, resample_key = jax.random.split(k)
        particles = persistence * particles + scale * jax.random.normal(move_key, (PARTICLES,))
        log_weights = particle_log_weights(particles, y)
        total = total + jax.nn.logsumexp(log_weights) - np.log(PARTICLES)
        particles = particle_resample(particles, jax.nn.softmax(log_weights), resample_key)
        return (particles, total), particles.mean()

    start = (scale * jax.random.normal(start_key, (PARTICLES,)), 0.0)
    (_, total), means = jax.lax.scan(step, start, (observations, jax.random.split(step_key, FILTER_TIME)))
    return total, means


def particle_likelihood_plain(persistence, scale, observations, rng):
    start_key, step_key = jax.random.split(rng)

    def step(carry, inputs):
        particles, total = carry
        y, k = inputs
        move_key, resample_key = jax.random.split(k)
        particles = persistence * particles + scale * jax.random.normal(move_key, (PARTICLES,))
        log_weights = particle_log_weights(particles, y)
        total = total + jnp.log(jnp.mean(jnp.exp(log_weights)))
        particles = particle_resample(particles, jax.nn.softmax(log_weights), resample_key)
        return (particles, total), particles.mean()

    start = (scale * jax.random.normal(start_key, (PARTICLES,)), 0.0)
    (_, total), means = jax.lax.scan(step, start, (observations, jax.random.split(step_key, FILTER_TIME)))
    return total, means


def particle_likelihood_shifted(persistence, scale, observations, rng):
    start_key, step_key = jax.random.split(rng)

    def step(carry, inputs):
        particles, total = carry
        y, k = inputs
        move_key, resample_key = jax.random.split(k)
        particles = persistence * particles + scale * jax.random.normal(move_key, (PARTICLES,))
        log_weights = particle_log_weights(particles, y)
        highest = jnp.max(log_weights)
        powers = jnp.exp(log_weights - highest)
        total = total + highest + jnp.log(jnp.mean(powers))
        particles = particle_resample(particles, powers / jnp.sum(powers), resample_key)
        return (particles, total), particles.mean()

    start = (scale * jax.random.normal(start_key, (PARTICLES,)), 0.0)
    (_, total), means = jax.lax.scan(step, start, (observations, jax.random.split(step_key, FILTER_TIME)))
    return total, means


# A Kalman filter and the smoother after it.

KALMAN_TIME, KALMAN_STATE, KALMAN_SEEN = 25, 4, 2
KALMAN_MOVE = np.eye(4, dtype=np.float32) + 0.1 * np.eye(4, k=2, dtype=np.float32)
KALMAN_LOOK = np.eye(2, 4, dtype=np.float32)
KALMAN_MOVE_NOISE = 0.01 * np.eye(4, dtype=np.float32)
KALMAN_LOOK_NOISE = 0.1 * np.eye(2, dtype=np.float32)


def kalman_predict(mean, cov):
    return KALMAN_MOVE @ mean, KALMAN_MOVE @ cov @ KALMAN_MOVE.T + KALMAN_MOVE_NOISE


def kalman_update(mean, cov, y):
    spread = KALMAN_LOOK @ cov @ KALMAN_LOOK.T + KALMAN_LOOK_NOISE
    gain = jnp.linalg.solve(spread, KALMAN_LOOK @ cov).T
    return mean + gain @ (y - KALMAN_LOOK @ mean), cov - gain @ spread @ gain.T


def kalman_back(later, inputs):
    later_mean, later_cov = later
    mean, cov, predicted_mean, predicted_cov = inputs
    gain = jnp.linalg.solve(predicted_cov, KALMAN_MOVE @ cov).T
    mean = mean + gain @ (later_mean - predicted_mean)
    cov = cov + gain @ (later_cov - predicted_cov) @ gain.T
    return (mean, cov), (mean, cov)


def kalman_forward(observations):
    """The filtered moments and those predicted for the same step from the one before."""

    def step(state, y):
        predicted_mean, predicted_cov = kalman_predict(*state)
        mean, cov = kalman_update(predicted_mean, predicted_cov, y)
        return (mean, cov), (mean, cov, predicted_mean, predicted_cov)

    return jax.lax.scan(step, (jnp.zeros(KALMAN_STATE), jnp.eye(KALMAN_STATE)), observations)[1]


def kalman_smooth(observations):
    means, covs, prior_means, prior_covs = kalman_forward(observations)
    inputs = (means[:-1], covs[:-1], prior_means[1:], prior_covs[1:])
    _, (earlier, _) = jax.lax.scan(kalman_back, (means[-1], covs[-1]), inputs, reverse=True)
    return jnp.concatenate([earlier, means[-1:]])


def kalman_smooth_aligned(observations):
    means, covs, prior_means, prior_covs = kalman_forward(observations)
    inputs = (means[:-1], covs[:-1], prior_means[:-1], prior_covs[:-1])
    _, (earlier, _) = jax.lax.scan(kalman_back, (means[-1], covs[-1]), inputs, reverse=True)
    return jnp.concatenate([earlier, means[-1:]])


def kalman_smooth_ahead(observations):
    def step(prior, y):
        mean, cov = kalman_update(*prior, y)
        ahead = kalman_predict(mean, cov)
        return ahead, (mean, cov, *ahead)

    first = kalman_predict(jnp.zeros(KALMAN_STATE), jnp.eye(KALMAN_STATE))
    means, covs, next_means, next_covs = jax.lax.scan(step, first, observations)[1]
    inputs = (means[:-1], covs[:-1], next_means[:-1], next_covs[:-1])
    _, (earlier, _) = jax.lax.scan(kalman_back, (means[-1], covs[-1]), inputs, reverse=True)
    return jnp.concatenate([earlier, means[-1:]])


# A neural differential equation, solved with steps that adapt.

ODE_DIM, ODE_END = 3, 2.0


def ode_init(rng):
    return init_mlp(rng, (ODE_DIM, 16, ODE_DIM))


def ode_trial(params, x, size):
    first = mlp(params, x)
    low = x + size * first
    high = x + 0.5 * size * (first + mlp(params, low))
    return low, high


def ode_loss(params, start, goal):
    def step(carry, _):
        x, t, wanted = carry
        size = jnp.minimum(wanted, ODE_END - t)
        low, high = ode_trial(params, x, size)
        error = jnp.sqrt(jnp.mean((high - low) ** 2) + 1e-12) / 1e-3
        accept = error <= 1.0
        factor = jnp.clip(0.9 / jnp.sqrt(error), 0.2, 5.0)
        x, t = jnp.where(accept, high, x), jnp.where(accept, t + size, t)
        return (x, t, jnp.clip(wanted * factor, 1e-3, 0.5)), None

    carry = (start, jnp.zeros(()), jnp.full((), 0.1))
    (x, _, _), _ = jax.lax.scan(step, carry, None, length=80)
    return jnp.mean((x - goal) ** 2)


def ode_loss_plain_norm(params, start, goal):
    def step(carry, _):
        x, t, wanted = carry
        size = jnp.minimum(wanted, ODE_END - t)
        low, high = ode_trial(params, x, size)
        error = jnp.linalg.norm(high - low) / (1e-3 * np.sqrt(ODE_DIM))
        accept = error <= 1.0
        factor = jnp.clip(0.9 / jnp.sqrt(error + 1e-6), 0.2, 5.0)
        x, t = jnp.where(accept, high, x), jnp.where(accept, t + size, t)
        return (x, t, jnp.clip(wanted * factor, 1e-3, 0.5)), None

    carry = (start, jnp.zeros(()), jnp.full((), 0.1))
    (x, _, _), _ = jax.lax.scan(step, carry, None, length=80)
    return jnp.mean((x - goal) ** 2)


def ode_loss_steps_given(params, start, goal):
    def step(carry, _):
        x, t, wanted = carry
        size = jnp.minimum(wanted, ODE_END - t)
        low, high = ode_trial(params, x, size)
        gap = jax.lax.stop_gradient(high - low)
        error = jnp.linalg.norm(gap) / (1e-3 * np.sqrt(ODE_DIM))
        accept = error <= 1.0
        factor = jnp.clip(0.9 / jnp.sqrt(error + 1e-6), 0.2, 5.0)
        x, t = jnp.where(accept, high, x), jnp.where(accept, t + size, t)
        return (x, t, jnp.clip(wanted * factor, 1e-3, 0.5)), None

    carry = (start, jnp.zeros(()), jnp.full((), 0.1))
    (x, _, _), _ = jax.lax.scan(step, carry, None, length=80)
    return jnp.mean((x - goal) ** 2)


# Molecular dynamics in a periodic box.

MD_ATOMS, MD_BOX, MD_DT = 27, 6.0, 0.002


def md_energy(positions):
    shift = positions[:, None] - positions[None, :]
    shift = shift - MD_BOX * jnp.round(shift / MD_BOX)
    squares = jnp.sum(shift**2, axis=-1) + MD_BOX**2 * jnp.eye(MD_ATOMS)
    inverse = 1.0 / squares**3
    pairs = 4.0 * (inverse**2 - inverse) * (1.0 - jnp.eye(MD_ATOMS))
    return 0.5 * jnp.sum(pairs)


def md_forces(positions):
    return -jax.grad(md_energy)(positions)


def md_run(positions, velocities):
    def step(state, _):
        positions, velocities, forces = state
        velocities = velocities + 0.5 * MD_DT * forces
        positions = jnp.mod(positions + MD_DT * velocities, MD_BOX)
        new_forces = md_forces(positions)
        velocities = velocities + 0.5 * MD_DT * new_forces
        return (positions, velocities, new_forces), md_energy(positions) + 0.5 * jnp.sum(velocities**2)

    state = (positions, velocities, md_forces(positions))
    (positions, velocities, _), energies = jax.lax.scan(step, state, None, length=300)
    return positions, velocities, energies


def md_run_first_forces(positions, velocities):
    def step(state, _):
        positions, velocities, forces = state
        half = velocities + 0.5 * MD_DT * forces
        positions = jnp.mod(positions + MD_DT * half, MD_BOX)
        new_forces = md_forces(positions)
        velocities = half + 0.5 * MD_DT * forces
        return (positions, velocities, new_forces), md_energy(positions) + 0.5 * jnp.sum(velocities**2)

    state = (positions, velocities, md_forces(positions))
    (positions, velocities, _), energies = jax.lax.scan(step, state, None, length=300)
    return positions, velocities, energies


def md_run_positions_first(positions, velocities):
    def step(state, _):
        positions, velocities = state
        positions = positions + 0.5 * MD_DT * velocities
        forces = md_forces(positions)
        velocities = velocities + MD_DT * forces
        positions = jnp.mod(positions + 0.5 * MD_DT * velocities, MD_BOX)
        return (positions, velocities), md_energy(positions) + 0.5 * jnp.sum(velocities**2)

    (positions, velocities), energies = jax.lax.scan(step, (positions, velocities), None, length=300)
    return positions, velocities, energies


# Beam search over a recurrent model.

BEAMS, BEAM_VOCAB, BEAM_WIDTH, BEAM_LENGTH = 4, 30, 12, 10


def beam_init(rng):
    embed, cell, head = jax.random.split(rng, 3)
    return {
        "embed": jax.random.normal(embed, (BEAM_VOCAB, BEAM_WIDTH)),
        "cell": init_mlp(cell, (2 * BEAM_WIDTH, BEAM_WIDTH)),
        "head": init_mlp(head, (BEAM_WIDTH, BEAM_VOCAB)),
    }


def beam_advance(params, hidden, tokens):
    return jnp.tanh(mlp(params["cell"], jnp.concatenate([hidden, params["embed"][tokens]], axis=-1)))


def beam_probabilities(params, hidden):
    return jax.nn.softmax(mlp(params["head"], hidden), axis=-1)


def beam_pick(scores, log_probs, hidden, written, position):
    totals = (scores[:, None] + log_probs).reshape(-1)
    scores, chosen = jax.lax.top_k(totals, BEAMS)
    parents, tokens = chosen // BEAM_VOCAB, chosen % BEAM_VOCAB
    return tokens, scores, hidden[parents], written[parents].at[:, position].set(tokens)


def beam_start():
    scores = jnp.where(jnp.arange(BEAMS) == 0, 0.0, -1e9)
    written = jnp.zeros((BEAMS, BEAM_LENGTH), jnp.int32)
    return jnp.zeros(BEAMS, jnp.int32), scores, jnp.zeros((BEAMS, BEAM_WIDTH)), written


def beam_search(params):
    def step(state, position):
        tokens, scores, hidden, written = state
        hidden = beam_advance(params, hidden, tokens)
        log_probs = jax.nn.log_softmax(mlp(params["head"], hidden), axis=-1)
        return beam_pick(scores, log_probs, hidden, written, position), None

    (_, scores, _, written), _ = jax.lax.scan(step, beam_start(), jnp.arange(BEAM_LENGTH))
    return written, scores


def beam_search_twice(params):
    def step(state, position):
        tokens, scores, hidden, written = state
        hidden = beam_advance(params, hidden, tokens)
        log_probs = jax.nn.log_softmax(beam_probabilities(params, hidden), axis=-1)
        return beam_pick(scores, log_probs, hidden, written, position), None

    (_, scores, _, written), _ = jax.lax.scan(step, beam_start(), jnp.arange(BEAM_LENGTH))
    return written, scores


def beam_search_by_log(params):
    def step(state, position):
        tokens, scores, hidden, written = state
        hidden = beam_advance(params, hidden, tokens)
        log_probs = jnp.log(jnp.maximum(beam_probabilities(params, hidden), 1e-9))
        return beam_pick(scores, log_probs, hidden, written, position), None

    (_, scores, _, written), _ = jax.lax.scan(step, beam_start(), jnp.arange(BEAM_LENGTH))
    return written, scores


# A conditional random field over tags.

CRF_BATCH, CRF_TIME, CRF_TAGS = 9, 15, 6


def crf_gold(emissions, transitions, tags):
    steps = jnp.take_along_axis(emissions, tags[:, None], axis=1)[:, 0]
    return jnp.sum(steps) + jnp.sum(transitions[tags[:-1], tags[1:]])


def crf_partition(emissions, transitions):
    def step(alpha, emission):
        alpha = jax.nn.logsumexp(alpha[:, None] + transitions, axis=0) + emission
        return alpha, None

    alpha, _ = jax.lax.scan(step, emissions[0], emissions[1:])
    return jax.nn.logsumexp(alpha)


def crf_partition_over_next(emissions, transitions):
    def step(alpha, emission):
        alpha = jax.nn.logsumexp(alpha[:, None] + transitions, axis=1) + emission
        return alpha, None

    alpha, _ = jax.lax.scan(step, emissions[0], emissions[1:])
    return jax.nn.logsumexp(alpha)


def crf_partition_turned(emissions, transitions):
    arriving = transitions.T

    def step(alpha, emission):
        return jax.nn.logsumexp(alpha[None, :] + arriving, axis=1) + emission, None

    alpha, _ = jax.lax.scan(step, emissions[0], emissions[1:])
    return jax.nn.logsumexp(alpha)


@jax.custom_vjp
def crf_partition_marginals(emissions, transitions):
    return crf_partition(emissions, transitions)


def crf_marginals_forward(emissions, transitions):
    value, marginals = jax.value_and_grad(crf_partition, argnums=(0, 1))(emissions, transitions)
    return value, marginals


def crf_marginals_backward(marginals, g):
    return jax.tree.map(lambda m: g * m, marginals)


crf_partition_marginals.defvjp(crf_marginals_forward, crf_marginals_backward)


@jax.custom_vjp
def crf_partition_stored(emissions, transitions):
    return crf_partition(emissions, transitions)


def crf_stored_backward(marginals, g):
    unary, pairs = marginals
    return unary, pairs


crf_partition_stored.defvjp(crf_marginals_forward, crf_stored_backward)


@jax.custom_jvp
def crf_partition_tangents(emissions, transitions):
    return crf_partition(emissions, transitions)


@crf_partition_tangents.defjvp
def crf_partition_tangents_rule(primals, tangents):
    value, marginals = jax.value_and_grad(crf_partition, argnums=(0, 1))(*primals)
    return value, jnp.vdot(marginals[0], tangents[0]) + jnp.vdot(marginals[1], tangents[1])


def crf_loss(weights, transitions, features, tags):
    emissions = features @ weights
    totals = jax.vmap(crf_partition, in_axes=(0, None))(emissions, transitions)
    return jnp.mean(totals - jax.vmap(crf_gold, in_axes=(0, None, 0))(emissions, transitions, tags))


def crf_loss_over_next(weights, transitions, features, tags):
    emissions = features @ weights
    totals = jax.vmap(crf_partition_over_next, in_axes=(0, None))(emissions, transitions)
    return jnp.mean(totals - jax.vmap(crf_gold, in_axes=(0, None, 0))(emissions, transitions, tags))


def crf_loss_turned(weights, transitions, features, tags):
    emissions = features @ weights
    totals = jax.vmap(crf_partition_turned, in_axes=(0, None))(emissions, transitions)
    return jnp.mean(totals - jax.vmap(crf_gold, in_axes=(0, None, 0))(emissions, transitions, tags))


def crf_loss_marginals(weights, transitions, features, tags):
    emissions = features @ weights
    totals = jax.vmap(crf_partition_marginals, in_axes=(0, None))(emissions, transitions)
    return jnp.mean(totals - jax.vmap(crf_gold, in_axes=(0, None, 0))(emissions, transitions, tags))


def crf_loss_stored(weights, transitions, features, tags):
    emissions = features @ weights
    totals = jax.vmap(crf_partition_stored, in_axes=(0, None))(emissions, transitions)
    return jnp.mean(totals - jax.vmap(crf_gold, in_axes=(0, None, 0))(emissions, transitions, tags))


def crf_loss_tangents(weights, transitions, features, tags):
    emissions = features @ weights
    totals = jax.vmap(crf_partition_tangents, in_axes=(0, None))(emissions, transitions)
    return jnp.mean(totals - jax.vmap(crf_gold, in_axes=(0, None, 0))(emissions, transitions, tags))


CRF_ARGS = (f32(8, CRF_TAGS), f32(CRF_TAGS, CRF_TAGS), f32(CRF_BATCH, CRF_TIME, 8), i32(CRF_BATCH, CRF_TIME))


# A mixture of Gaussians by expectation and maximisation.

MIX_POINTS, MIX_PARTS, MIX_DIM = 80, 5, 3


def mixture_joint(points, log_shares, means, log_vars):
    """Log joint densities, a row per point and a column per part."""
    squares = (points[:, None] - means) ** 2 / jnp.exp(log_vars)
    return log_shares - 0.5 * jnp.sum(squares + log_vars + np.log(2 * np.pi), axis=-1)


def mixture_maximise(points, duty):
    """The parameters that fit best; `duty` has a row per point."""
    mass = duty.sum(axis=0) + 1e-6
    means = duty.T @ points / mass[:, None]
    spread = jnp.einsum("nk,nkd->kd", duty, (points[:, None] - means) ** 2) / mass[:, None]
    return jnp.log(mass / mass.sum()), means, jnp.log(spread + 1e-4)


def mixture_fit(points, log_shares, means, log_vars):
    def step(params, _):
        joint = mixture_joint(points, *params)
        duty = jax.nn.softmax(joint, axis=1)
        return mixture_maximise(points, duty), jax.nn.logsumexp(joint, axis=1).mean()

    return jax.lax.scan(step, (log_shares, means, log_vars), None, length=50)


def mixture_fit_over_points(points, log_shares, means, log_vars):
    def step(params, _):
        joint = mixture_joint(points, *params)
        duty = jax.nn.softmax(joint, axis=0)
        return mixture_maximise(points, duty), jax.nn.logsumexp(joint, axis=1).mean()

    return jax.lax.scan(step, (log_shares, means, log_vars), None, length=50)


def mixture_fit_part_rows(points, log_shares, means, log_vars):
    def step(params, _):
        log_shares, means, log_vars = params
        squares = (points[None, :] - means[:, None]) ** 2 / jnp.exp(log_vars)[:, None]
        halves = 0.5 * jnp.sum(squares + log_vars[:, None] + np.log(2 * np.pi), axis=-1)
        by_part = log_shares[:, None] - halves
        duty = jax.nn.softmax(by_part, axis=0).T
        return mixture_maximise(points, duty), jax.nn.logsumexp(by_part, axis=0).mean()

    return jax.lax.scan(step, (log_shares, means, log_vars), None, length=50)


CASES = [
    Case(
        name="third-writer-whole-cache",
        family="attention",
        wrong=write_over_whole_cache,
        right=(write, write_by_weights),
        args=WRITER_ARGS,
        where="weights = jax.nn.softmax(scores, axis=-1)",
        planted=True,
    ),
    Case(
        name="third-writer-before-store",
        family="state out of date",
        wrong=write_before_store,
        right=(write, write_self_apart),
        args=WRITER_ARGS,
        where='mixed = jnp.einsum("bhl,blhd->bhd", weights, values)  # of the cache',
        planted=True,
    ),
    Case(
        name="third-vit-heads-joined",
        family="reshape for transpose",
        wrong=vit_loss_joined,
        right=(vit_loss, vit_loss_einsum),
        args=(shapes_of(vit_init, key()), f32(7, VIT_SIDE, VIT_SIDE, 3), i32(7)),
        where="mixed = (weights @ v).reshape(batch, tokens, VIT_WIDTH)",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-vae-one-key",
        family="key shared by batch elements",
        wrong=vae_loss_one_key,
        right=(vae_loss, vae_loss_whole_batch),
        args=(shapes_of(vae_init, key()), f32(VAE_BATCH, VAE_PIXELS), key()),
        where="return jnp.mean(jax.vmap(vae_example, in_axes=(None, 0, None))(params, images, rng))",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-discrete-vae-hard-code",
        family="no gradient",
        wrong=dvae_loss_hard,
        right=(dvae_loss, dvae_loss_relaxed),
        args=(DVAE_PARAMS["encoder"], DVAE_PARAMS["decoder"], f32(VAE_BATCH, VAE_PIXELS), key()),
        where="code = jax.nn.one_hot(jnp.argmax(logits + noise, axis=-1), VAE_CODES)",
        differentiate=("encoder", "decoder"),
        planted=True,
    ),
    Case(
        name="third-diffusion-steps-from-one",
        family="index out of range",
        wrong=diffusion_loss_from_one,
        right=(diffusion_loss, diffusion_loss_counted),
        args=(shapes_of(diffusion_init, key()), f32(DIFFUSION_BATCH, DIFFUSION_DIM), key()),
        where="kept = jnp.take(diffusion_kept(), steps, axis=0)[:, None]",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-flow-all-weights",
        family="(N,) meets (N, 1)",
        wrong=flow_loss_all_weights,
        right=(flow_loss, flow_loss_weighted_squares),
        args=(FLOW_PARAMS, f32(FLOW_BATCH, FLOW_DIM), key()),
        where="return jnp.mean(errors / (1.1 - t))",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-flow-sampler-loop",
        family="unrolled loop",
        wrong=flow_sample_listed,
        right=(flow_sample, flow_sample_midpoints),
        args=(FLOW_PARAMS, key()),
        where="        x = x + flow_velocity(params, x, t) / 200",
        planted=True,
    ),
    Case(
        name="third-graph-lonely-nodes",
        family="NaN from masks",
        wrong=graph_loss_any_degree,
        right=(graph_loss, graph_loss_self_counted),
        args=(
            shapes_of(graph_init, key()),
            f32(GRAPH_NODES, GRAPH_DIM),
            i32(GRAPH_EDGES),
            i32(GRAPH_EDGES),
            f32(GRAPH_NODES),
        ),
        where="mean = total / degree[:, None]",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-ising-narrow-energy",
        family="integer overflow",
        wrong=ising_narrow,
        right=(ising, ising_summed),
        args=(f32(), key()),
        where="energy = -jnp.vdot(spins, jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1))",
        planted=True,
    ),
    Case(
        name="third-hmc-about-start",
        family="carry not used",
        wrong=hmc_about_start,
        right=(hmc, independent_metropolis),
        args=(f32(HMC_DIM), f32(HMC_ROWS, HMC_DIM), f32(HMC_ROWS), key()),
        where="proposal, end = hmc_leapfrog(start, momentum, x, y)",
        planted=True,
    ),
    Case(
        name="third-particle-plain-mean",
        family="unstable logarithm",
        wrong=particle_likelihood_plain,
        right=(particle_likelihood, particle_likelihood_shifted),
        args=(f32(), f32(), f32(FILTER_TIME), key()),
        where="total = total + jnp.log(jnp.mean(jnp.exp(log_weights)))",
        axes={"observations": ("time",)},
        planted=True,
    ),
    Case(
        name="third-kalman-smoother-step",
        family="off by one",
        wrong=kalman_smooth_aligned,
        right=(kalman_smooth, kalman_smooth_ahead),
        args=(f32(KALMAN_TIME, KALMAN_SEEN),),
        where="inputs = (means[:-1], covs[:-1], prior_means[:-1], prior_covs[:-1])",
        axes={"observations": ("time", None)},
        planted=True,
    ),
    Case(
        name="third-ode-error-norm",
        family="NaN gradient",
        wrong=ode_loss_plain_norm,
        right=(ode_loss, ode_loss_steps_given),
        args=(shapes_of(ode_init, key()), f32(ODE_DIM), f32(ODE_DIM)),
        where="error = jnp.linalg.norm(high - low) / (1e-3 * np.sqrt(ODE_DIM))",
        differentiate="params",
        planted=True,
    ),
    Case(
        name="third-md-first-forces",
        family="state out of date",
        wrong=md_run_first_forces,
        right=(md_run, md_run_positions_first),
        args=(f32(MD_ATOMS, 3), f32(MD_ATOMS, 3)),
        where="velocities = half + 0.5 * MD_DT * forces",
        planted=True,
    ),
    Case(
        name="third-beam-probabilities",
        family="softmax twice",
        wrong=beam_search_twice,
        right=(beam_search, beam_search_by_log),
        args=(shapes_of(beam_init, key()),),
        where="log_probs = jax.nn.log_softmax(beam_probabilities(params, hidden), axis=-1)",
        planted=True,
    ),
    Case(
        name="third-crf-over-next-tag",
        family="wrong axis",
        wrong=crf_loss_over_next,
        right=(crf_loss, crf_loss_turned),
        args=CRF_ARGS,
        where="alpha = jax.nn.logsumexp(alpha[:, None] + transitions, axis=1) + emission",
        differentiate=("weights", "transitions"),
        planted=True,
    ),
    Case(
        name="third-crf-stored-marginals",
        family="custom rule",
        wrong=crf_loss_stored,
        right=(crf_loss_marginals, crf_loss_tangents),
        args=CRF_ARGS,
        where="return unary, pairs",
        differentiate=("weights", "transitions"),
        planted=True,
    ),
    Case(
        name="third-mixture-over-points",
        family="softmax axis",
        wrong=mixture_fit_over_points,
        right=(mixture_fit, mixture_fit_part_rows),
        args=(f32(MIX_POINTS, MIX_DIM), f32(MIX_PARTS), f32(MIX_PARTS, MIX_DIM), f32(MIX_PARTS, MIX_DIM)),
        where="duty = jax.nn.softmax(joint, axis=0)",
        axes={"points": ("sample", None)},
        planted=True,
    ),
]
