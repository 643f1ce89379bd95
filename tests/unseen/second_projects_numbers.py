"""Masks, normalizations, indices and replicas, from issues of public projects."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from unseen.case import Case, f32, i32

CASES = []
add = CASES.append


# Softmax of the edges of each node, some of which are masked.


def neighbor_attention(params, nodes, senders, receivers, valid):
    count = nodes.shape[0]
    q, k, v = (nodes @ params[n] for n in ("q", "k", "v"))
    logits = jnp.sum(q[receivers] * k[senders], axis=-1)
    top = jax.ops.segment_max(jnp.where(valid > 0, logits, -1e9), receivers, count)
    e = jnp.exp(logits - top[receivers]) * valid
    total = jax.ops.segment_sum(e, receivers, count)
    weights = e / jnp.where(total > 0, total, 1.0)[receivers]
    return jax.ops.segment_sum(weights[:, None] * v[senders], receivers, count)


def neighbor_attention_b(params, nodes, senders, receivers, valid):
    count = nodes.shape[0]
    q, k, v = (nodes @ params[n] for n in ("q", "k", "v"))
    logits = jnp.where(valid > 0, jnp.sum(q[receivers] * k[senders], axis=-1), -1e9)
    top = jax.ops.segment_max(logits, receivers, count)
    e = jnp.exp(logits - top[receivers]) * valid
    total = jax.ops.segment_sum(e, receivers, count)
    weights = e / jnp.where(total > 0, total, 1.0)[receivers]
    return jax.ops.segment_sum(weights[:, None] * v[senders], receivers, count)


def neighbor_attention_c(params, nodes, senders, receivers, valid):
    count = nodes.shape[0]
    q, k, v = (nodes @ params[n] for n in ("q", "k", "v"))
    logits = jnp.sum(q[receivers] * k[senders], axis=-1)
    top = jax.ops.segment_max(jnp.where(valid > 0, logits, -1e9), receivers, count)
    shifted = jnp.where(valid > 0, logits - top[receivers], -jnp.inf)
    e = jnp.exp(shifted) * valid
    total = jax.ops.segment_sum(e, receivers, count)
    weights = e / jnp.where(total > 0, total, 1.0)[receivers]
    return jax.ops.segment_sum(weights[:, None] * v[senders], receivers, count)


add(
    Case(
        "masked neighbors",
        "NaN from masks",
        neighbor_attention,
        (neighbor_attention_b, neighbor_attention_c),
        ({n: f32(8, 8) for n in ("q", "k", "v")}, f32(10, 8), i32(40), i32(40), f32(40)),
        where="top = jax.ops.segment_max(jnp.where(valid > 0, logits, -1e9), receivers, count)\n    e = jnp.exp",
        axes={
            "nodes": ("nodes", None),
            "senders": ("edges",),
            "receivers": ("edges",),
            "valid": ("edges",),
        },
        source="deepmd-kit#5715: the maximum is of valid entries, the exponential of all, and inf * 0 is NaN",
    )
)


# Embeddings out of the table.


def masked_items_loss(params, items, labels):
    mask = items < params["table"].shape[0]
    x = jnp.take(params["table"], items, axis=0)
    x = (x - x.mean(axis=-1, keepdims=True)) * jax.lax.rsqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    x = jax.nn.relu((x * params["scale"] + params["bias"]) @ params["w"])
    x = jnp.where(mask[..., None], x, 0.0)
    pooled = x.sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)[:, None]
    logits = pooled @ params["out"]
    return jnp.mean(jax.nn.softplus(jnp.where(labels == 1, -logits, logits)))


def masked_items_loss_b(params, items, labels):
    mask = items < params["table"].shape[0]
    x = jnp.take(params["table"], jnp.where(mask, items, 0), axis=0)
    x = (x - x.mean(axis=-1, keepdims=True)) * jax.lax.rsqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    x = jax.nn.relu((x * params["scale"] + params["bias"]) @ params["w"])
    x = jnp.where(mask[..., None], x, 0.0)
    pooled = x.sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)[:, None]
    logits = pooled @ params["out"]
    return jnp.mean(jax.nn.softplus(jnp.where(labels == 1, -logits, logits)))


def masked_items_loss_c(params, items, labels):
    mask = items < params["table"].shape[0]
    x = jnp.take(params["table"], items, axis=0)
    x = jnp.where(mask[..., None], x, 0.0)
    x = (x - x.mean(axis=-1, keepdims=True)) * jax.lax.rsqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    x = jax.nn.relu((x * params["scale"] + params["bias"]) @ params["w"]) * mask[..., None]
    pooled = x.sum(axis=1) / jnp.maximum(mask.sum(axis=1), 1)[:, None]
    logits = pooled @ params["out"]
    return jnp.mean(jax.nn.softplus(jnp.where(labels == 1, -logits, logits)))


ITEMS = {"table": f32(3, 8), "scale": f32(8), "bias": f32(8), "w": f32(8, 8), "out": f32(8)}
add(
    Case(
        "items out of the table",
        "NaN from masks",
        masked_items_loss,
        (masked_items_loss_b, masked_items_loss_c),
        (ITEMS, i32(4, 7), i32(4)),
        where='x = jnp.take(params["table"], items, axis=0)\n    x = (x - x.mean',
        axes={"items": ("batch", "length"), "labels": ("batch",)},
        differentiate="params",
        source="jax#26328: NaN of masked embeddings comes back in the derivative",
    )
)


# Standard deviations of features.


def vicreg_loss(params, view_a, view_b):
    encode = lambda x: jax.nn.relu(x @ params["w"]) @ params["v"]
    a, b = encode(view_a), encode(view_b)
    invariance = jnp.mean((a - b) ** 2)
    std_a, std_b = jnp.sqrt(a.var(axis=0)), jnp.sqrt(b.var(axis=0))
    variance = jnp.mean(jax.nn.relu(1.0 - std_a)) + jnp.mean(jax.nn.relu(1.0 - std_b))
    centered = a - a.mean(axis=0)
    covariance = centered.T @ centered / (a.shape[0] - 1)
    off_diagonal = covariance * (1.0 - jnp.eye(a.shape[1]))
    return 25.0 * invariance + 25.0 * variance + jnp.sum(off_diagonal**2) / a.shape[1]


def vicreg_loss_b(params, view_a, view_b):
    encode = lambda x: jax.nn.relu(x @ params["w"]) @ params["v"]
    a, b = encode(view_a), encode(view_b)
    invariance = jnp.mean((a - b) ** 2)
    std_a, std_b = jnp.sqrt(a.var(axis=0) + 1e-4), jnp.sqrt(b.var(axis=0) + 1e-4)
    variance = jnp.mean(jax.nn.relu(1.0 - std_a)) + jnp.mean(jax.nn.relu(1.0 - std_b))
    centered = a - a.mean(axis=0)
    covariance = centered.T @ centered / (a.shape[0] - 1)
    off_diagonal = covariance * (1.0 - jnp.eye(a.shape[1]))
    return 25.0 * invariance + 25.0 * variance + jnp.sum(off_diagonal**2) / a.shape[1]


add(
    Case(
        "spread of features",
        "NaN gradient",
        vicreg_loss,
        (vicreg_loss_b,),
        ({"w": f32(10, 16), "v": f32(16, 6)}, f32(12, 10), f32(12, 10)),
        where="std_a, std_b = jnp.sqrt(a.var(axis=0)), jnp.sqrt(b.var(axis=0))",
        axes={"view_a": ("batch", None), "view_b": ("batch", None)},
        differentiate="params",
        source="ports of VICReg to JAX: a feature that is dead has no derivative of its standard deviation",
    )
)


# Instance normalization of a port.


def stylize(params, images):
    x = jax.lax.conv_general_dilated(images, params["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    mean = x.mean(axis=(2, 3), keepdims=True)
    var = x.var(axis=(2, 3), keepdims=True)
    x = (x - mean) * jax.lax.rsqrt(var + 1e-5)
    x = jax.nn.relu(x * params["scale"] + params["bias"])
    return jax.lax.conv_general_dilated(x, params["out"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def stylize_b(params, images):
    x = jax.lax.conv_general_dilated(images, params["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    mean = x.mean(axis=(1, 2), keepdims=True)
    var = x.var(axis=(1, 2), keepdims=True)
    x = (x - mean) * jax.lax.rsqrt(var + 1e-5)
    x = jax.nn.relu(x * params["scale"] + params["bias"])
    return jax.lax.conv_general_dilated(x, params["out"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def stylize_c(params, images):
    x = jnp.transpose(images, (0, 3, 1, 2))
    x = jax.lax.conv_general_dilated(x, params["conv"], (1, 1), "SAME", dimension_numbers=("NCHW", "HWIO", "NCHW"))
    center = x.mean(axis=(2, 3), keepdims=True)
    x = (x - center) * jax.lax.rsqrt(x.var(axis=(2, 3), keepdims=True) + 1e-5)
    x = jax.nn.relu(x * params["scale"][:, None, None] + params["bias"][:, None, None])
    return jax.lax.conv_general_dilated(x, params["out"], (1, 1), "SAME", dimension_numbers=("NCHW", "HWIO", "NHWC"))


add(
    Case(
        "statistics of an image",
        "wrong axis",
        stylize,
        (stylize_b, stylize_c),
        ({"conv": f32(3, 3, 3, 8), "scale": f32(8), "bias": f32(8), "out": f32(3, 3, 8, 3)}, f32(2, 10, 10, 3)),
        where="mean = x.mean(axis=(2, 3), keepdims=True)",
        axes={"images": ("batch", "height", "width", "channels")},
        source="ports of instance normalization from NCHW: the axes stay",
    )
)


# Noise levels of a scheduler.


class Schedule(NamedTuple):
    timesteps: jax.Array
    sigmas: jax.Array


def make_schedule(steps=20):
    betas = jnp.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    levels = jnp.sqrt((1.0 - jnp.cumprod(1.0 - betas)) / jnp.cumprod(1.0 - betas))
    timesteps = jnp.arange(0, 1000, 1000 // steps)[::-1]
    return Schedule(timesteps, jnp.append(levels[timesteps], 0.0))


def denoise(params, sample):
    schedule = make_schedule()

    def step(sample, t):
        sigma, following = schedule.sigmas[t], schedule.sigmas[t + 1]
        scaled = sample / jnp.sqrt(sigma**2 + 1.0)
        noise = jnp.tanh(scaled @ params["w"] + params["time"] * t / 1000.0)
        return sample + (following - sigma) * noise, None

    return jax.lax.scan(step, sample * schedule.sigmas[0], schedule.timesteps)[0]


def denoise_b(params, sample):
    schedule = make_schedule()

    def step(sample, x):
        i, t = x
        sigma, following = schedule.sigmas[i], schedule.sigmas[i + 1]
        scaled = sample / jnp.sqrt(sigma**2 + 1.0)
        noise = jnp.tanh(scaled @ params["w"] + params["time"] * t / 1000.0)
        return sample + (following - sigma) * noise, None

    index = jnp.arange(schedule.timesteps.shape[0])
    return jax.lax.scan(step, sample * schedule.sigmas[0], (index, schedule.timesteps))[0]


add(
    Case(
        "levels of noise",
        "index out of range",
        denoise,
        (denoise_b,),
        ({"w": f32(6, 6), "time": f32(6)}, f32(4, 6)),
        where="sigma, following = schedule.sigmas[t], schedule.sigmas[t + 1]",
        axes={"sample": ("batch", None)},
        source="diffusers#13556: a timestep of training is an index into the steps of inference",
    )
)


# Transitions that change with time.


def backward_messages(transitions, log_likelihoods):
    steps, states = log_likelihoods.shape

    def step(message, t):
        scaled = jnp.exp(log_likelihoods[t] - log_likelihoods[t].max()) * message
        before = transitions[t] @ scaled
        before = before / before.sum()
        return before, before

    _, messages = jax.lax.scan(step, jnp.ones(states), jnp.arange(1, steps), reverse=True)
    return jnp.concatenate([messages, jnp.ones((1, states))])


def backward_messages_b(transitions, log_likelihoods):
    steps, states = log_likelihoods.shape

    def step(message, t):
        scaled = jnp.exp(log_likelihoods[t] - log_likelihoods[t].max()) * message
        before = transitions[t - 1] @ scaled
        before = before / before.sum()
        return before, before

    _, messages = jax.lax.scan(step, jnp.ones(states), jnp.arange(1, steps), reverse=True)
    return jnp.concatenate([messages, jnp.ones((1, states))])


add(
    Case(
        "transitions of a chain",
        "index out of range",
        backward_messages,
        (backward_messages_b,),
        (f32(19, 4, 4), f32(20, 4)),
        where="before = transitions[t] @ scaled",
        source="dynamax#436: transitions that change with time are off by one in the backward filter",
    )
)


# Batch normalization over replicas.


def synced_loss(params, stats, x, y):
    mean = jax.lax.pmean(x.mean(axis=0), "replica")
    var = jax.lax.pmean(x.var(axis=0), "replica")
    h = (x - mean) * jax.lax.rsqrt(var + 1e-5) * params["scale"] + params["bias"]
    loss = jax.lax.pmean(jnp.mean((jax.nn.relu(h) @ params["w"] - y) ** 2), "replica")
    new_stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
    return loss, new_stats


def synced_loss_b(params, stats, x, y):
    mean = jax.lax.pmean(x.mean(axis=0), "replica")
    var = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=0), "replica")
    h = (x - mean) * jax.lax.rsqrt(var + 1e-5) * params["scale"] + params["bias"]
    loss = jax.lax.pmean(jnp.mean((jax.nn.relu(h) @ params["w"] - y) ** 2), "replica")
    new_stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
    return loss, new_stats


def synced_loss_c(params, stats, x, y):
    mean = jax.lax.pmean(x.mean(axis=0), "replica")
    var = jax.lax.pmean(jnp.mean(x**2, axis=0), "replica") - mean**2
    h = (x - mean) * jax.lax.rsqrt(jnp.maximum(var, 0.0) + 1e-5) * params["scale"] + params["bias"]
    loss = jax.lax.pmean(jnp.mean((jax.nn.relu(h) @ params["w"] - y) ** 2), "replica")
    new_stats = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": 0.9 * stats["var"] + 0.1 * var}
    return loss, new_stats


def over_replicas(loss):
    def run(params, stats, x, y):
        return jax.vmap(loss, in_axes=(None, None, 0, 0), out_axes=None, axis_name="replica")(params, stats, x, y)

    return run


STATS = {"mean": f32(6), "var": f32(6)}
add(
    Case(
        "variance of replicas",
        "replicas not averaged",
        over_replicas(synced_loss),
        (over_replicas(synced_loss_b), over_replicas(synced_loss_c)),
        ({"scale": f32(6), "bias": f32(6), "w": f32(6)}, STATS, f32(4, 8, 6), f32(4, 8)),
        where='var = jax.lax.pmean(x.var(axis=0), "replica")',
        axes={"x": ("replica", "batch", None), "y": ("replica", "batch")},
        source="synchronized batch normalization by hand: a mean of local variances",
    )
)
