"""Mistakes as they were made in public projects: networks, attention, losses, training loops and generative models."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key

CASES = []


# A loss of tokens.


def next_token_logits(params, tokens):
    h = params["embed"][tokens]
    h = h + jax.nn.gelu(jnp.cumsum(h, axis=1) @ params["mix"])
    return h @ params["embed"].T


def smoothed_nll(logits, targets, smoothing=0.1):
    logps = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(logps, targets[..., None], axis=-1).squeeze(-1)
    return (1.0 - smoothing) * nll - smoothing * logps.mean(axis=-1)


def token_loss(params, tokens, valid):
    losses = smoothed_nll(next_token_logits(params, tokens[:, :-1]), tokens[:, 1:])
    losses = jnp.where(valid[:, 1:], losses, 0.0)
    return jnp.mean(losses)


def token_loss_b(params, tokens, valid):
    losses = smoothed_nll(next_token_logits(params, tokens[:, :-1]), tokens[:, 1:])
    losses = jnp.where(valid[:, 1:], losses, 0.0)
    return losses.sum() / jnp.maximum(valid[:, 1:].sum(), 1)


def token_loss_c(params, tokens, valid):
    losses = smoothed_nll(next_token_logits(params, tokens[:, :-1]), tokens[:, 1:])
    counted = valid[:, 1:] / jnp.maximum(valid[:, 1:].sum(axis=1, keepdims=True), 1)
    return jnp.sum(losses * counted, axis=1).mean()


CASES.append(
    Case(
        "loss of tokens",
        "mean",
        token_loss,
        (token_loss_b, token_loss_c),
        ({"embed": f32(11, 8), "mix": f32(8, 8)}, i32(6, 10), flags(6, 10)),
        where="return jnp.mean(losses)",
        axes={"tokens": ("batch", "length"), "valid": ("batch", "length")},
        differentiate="params",
        source="github.com/NovaSky-AI/SkyRL/pull/462",
    )
)


# Small batches for a large one.


def caption_nll(params, image, words, weights):
    logits = jnp.tanh(image @ params["image"])[:, None] + params["words"][words]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits @ params["head"], words)
    return losses, weights


def accumulated_step(params, images, words, weights):
    def micro_loss(params, micro):
        losses, w = caption_nll(params, *micro)
        return jnp.sum(losses * w) / jnp.sum(w)

    def body(total, micro):
        grads = jax.grad(micro_loss)(params, micro)
        return jax.tree.map(jnp.add, total, grads), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(body, zeros, (images, words, weights))
    return jax.tree.map(lambda p, g: p - 0.3 * g / images.shape[0], params, total)


def accumulated_step_b(params, images, words, weights):
    def micro_loss(params, micro):
        losses, w = caption_nll(params, *micro)
        return jnp.sum(losses * w)

    def body(total, micro):
        grads = jax.grad(micro_loss)(params, micro)
        return jax.tree.map(jnp.add, total, grads), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(body, zeros, (images, words, weights))
    return jax.tree.map(lambda p, g: p - 0.3 * g / jnp.sum(weights), params, total)


def accumulated_step_c(params, images, words, weights):
    def micro_loss(params, micro):
        losses, w = caption_nll(params, *micro)
        return jnp.sum(losses * w) / jnp.sum(w), jnp.sum(w)

    def body(total, micro):
        grads, n = jax.grad(micro_loss, has_aux=True)(params, micro)
        return jax.tree.map(lambda t, g: t + n * g, total, grads), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(body, zeros, (images, words, weights))
    return jax.tree.map(lambda p, g: p - 0.3 * g / jnp.sum(weights), params, total)


CASES.append(
    Case(
        "small batches for a large one",
        "mean",
        accumulated_step,
        (accumulated_step_b, accumulated_step_c),
        (
            {"image": f32(5, 9), "words": f32(4, 9), "head": f32(9, 4)},
            f32(3, 8, 5),
            i32(3, 8, 6),
            f32(3, 8, 6),
        ),
        where="return jnp.sum(losses * w) / jnp.sum(w)\n",
        axes={
            "images": ("micro", "batch", None),
            "words": ("micro", "batch", "length"),
            "weights": ("micro", "batch", "length"),
        },
        source="github.com/ml-explore/mlx-lm/pull/1413",
    )
)


# Codes of a sequence of events.


def event_codes(params, rng, events):
    h = jnp.tanh(events @ params["enc"])
    mean, log_var = h @ params["mean"], h @ params["log_var"]
    z = mean + jnp.exp(0.5 * log_var) * jax.random.normal(rng, mean.shape)
    return mean, log_var, jnp.tanh(z @ params["dec"])


def event_elbo(params, rng, events, mask):
    mean, log_var, decoded = event_codes(params, rng, events)
    kl = (-0.5 * jnp.sum(1.0 + log_var - mean**2 - jnp.exp(log_var))) * mask
    error = jnp.sum((decoded - events) ** 2, axis=-1) * mask
    return jnp.sum(error + 0.1 * kl) / jnp.sum(mask)


def event_elbo_b(params, rng, events, mask):
    mean, log_var, decoded = event_codes(params, rng, events)
    kl = (-0.5 * jnp.sum(1.0 + log_var - mean**2 - jnp.exp(log_var), axis=-1)) * mask
    error = jnp.sum((decoded - events) ** 2, axis=-1) * mask
    return jnp.sum(error + 0.1 * kl) / jnp.sum(mask)


def event_elbo_c(params, rng, events, mask):
    mean, log_var, decoded = event_codes(params, rng, events)
    terms = 1.0 + log_var - mean**2 - jnp.exp(log_var)
    kl = -0.5 * jnp.sum(terms * mask[..., None])
    error = jnp.sum((decoded - events) ** 2 * mask[..., None])
    return (error + 0.1 * kl) / jnp.sum(mask)


CASES.append(
    Case(
        "codes of a sequence of events",
        "mean",
        event_elbo,
        (event_elbo_b, event_elbo_c),
        lambda: (
            {"enc": f32(4, 10), "mean": f32(10, 3), "log_var": f32(10, 3), "dec": f32(3, 4)},
            key(),
            f32(7, 9, 4),
            f32(7, 9),
        ),
        where="kl = (-0.5 * jnp.sum(1.0 + log_var - mean**2 - jnp.exp(log_var))) * mask",
        axes={"events": ("batch", "time", None), "mask": ("batch", "time")},
        differentiate="params",
        source="github.com/EDAPINENUT/GNTPP/issues/4",
    )
)


# Decoding with a cache.


class Cache(NamedTuple):
    k: jax.Array
    v: jax.Array
    index: jax.Array


def attend(q, k, v, mask):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)


def project(params, x, heads=2):
    batch, length, width = x.shape
    return tuple((x @ params[n]).reshape(batch, length, heads, width // heads) for n in "qkv")


def decode_step(params, cache, x):
    q, k, v = project(params, x)
    k = jax.lax.dynamic_update_slice_in_dim(cache.k, k, cache.index, axis=1)
    v = jax.lax.dynamic_update_slice_in_dim(cache.v, v, cache.index, axis=1)
    filled = jnp.arange(k.shape[1]) <= cache.index
    causal = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    out = attend(q, k, v, filled[None, None, None] & causal)
    return Cache(k, v, cache.index + 1), out.reshape(x.shape) @ params["out"]


def decode_step_b(params, cache, x):
    q, k, v = project(params, x)
    k = jax.lax.dynamic_update_slice_in_dim(cache.k, k, cache.index, axis=1)
    v = jax.lax.dynamic_update_slice_in_dim(cache.v, v, cache.index, axis=1)
    filled = jnp.arange(k.shape[1]) <= cache.index
    out = attend(q, k, v, filled[None, None, None])
    return Cache(k, v, cache.index + 1), out.reshape(x.shape) @ params["out"]


def decoded(step):
    def run(params, first, count=6):
        batch, width = first.shape
        empty = jnp.zeros((batch, 8, 2, width // 2))

        def body(carry, _):
            cache, x = carry
            cache, y = step(params, cache, x[:, None])
            x = jnp.tanh(x + y[:, 0])
            return (cache, x), x

        return jax.lax.scan(body, (Cache(empty, empty, jnp.int32(0)), first), None, length=count)[1]

    return run


def refined(params, first, count=6):
    x = jnp.stack([jnp.roll(first, i, axis=-1) for i in range(count)], axis=1)

    def body(x, _):
        q, k, v = project(params, x)
        causal = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
        return jnp.tanh(x + attend(q, k, v, causal).reshape(x.shape) @ params["out"]), None

    return jax.lax.scan(body, x, None, length=3)[0]


CASES.append(
    Case(
        "decoding with a cache",
        "attention",
        decoded(decode_step),
        (decoded(decode_step_b), refined),
        ({n: f32(6, 6) for n in ("q", "k", "v", "out")}, f32(4, 6)),
        where="causal = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))\n"
        "    out = attend(q, k, v, filled[None, None, None] & causal)",
        axes={"first": ("batch", None)},
        source="github.com/google/flax/pull/5592",
    )
)


# Heads of a layer.


def heads_of(x, n_heads):
    batch, length, width = x.shape
    return x.reshape(batch, n_heads, length, width // n_heads)


def heads_of_b(x, n_heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, n_heads, width // n_heads).transpose(0, 2, 1, 3)


def self_attention(split, params, x, n_heads=3):
    q, k, v = (split(x @ params[n], n_heads) for n in ("wq", "wk", "wv"))
    scores = q @ k.swapaxes(-1, -2) / jnp.sqrt(q.shape[-1])
    out = jax.nn.softmax(scores, axis=-1) @ v
    return out.transpose(0, 2, 1, 3).reshape(x.shape) @ params["wo"]


def encoder(split):
    def loss(params, x, labels):
        h = x + self_attention(split, params, x)
        h = h + jax.nn.gelu(h @ params["up"]) @ params["down"]
        logits = h.mean(axis=1) @ params["cls"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


def banded_encoder(params, x, labels):
    batch, length, width = x.shape
    bands = (x @ params["wq"]).reshape(batch, 2, length // 2, width)
    keys = (x @ params["wk"]).reshape(batch, 2, length // 2, width)
    values = (x @ params["wv"]).reshape(batch, 2, length // 2, width)
    scores = bands @ keys.swapaxes(-1, -2) / jnp.sqrt(width)
    h = x + (jax.nn.softmax(scores, axis=-1) @ values).reshape(x.shape) @ params["wo"]
    h = h + jax.nn.gelu(h @ params["up"]) @ params["down"]
    return optax.softmax_cross_entropy_with_integer_labels(h.mean(axis=1) @ params["cls"], labels).mean()


CASES.append(
    Case(
        "heads of a layer",
        "attention",
        encoder(heads_of),
        (encoder(heads_of_b), banded_encoder),
        (
            {
                **{n: f32(12, 12) for n in ("wq", "wk", "wv", "wo")},
                "up": f32(12, 20),
                "down": f32(20, 12),
                "cls": f32(12, 4),
            },
            f32(5, 8, 12),
            i32(5),
        ),
        where="return x.reshape(batch, n_heads, length, width // n_heads)",
        differentiate="params",
        source="attention written by hand, Stack Overflow",
    )
)


# Memory for a decoder.


def cross_attention(params, x, memory, memory_mask):
    q, k, v = x @ params["q"], memory @ params["k"], memory @ params["v"]
    logits = jnp.einsum("bqd,bkd->bqk", q, k) * q.shape[-1] ** -0.5
    logits = logits + memory_mask[:, None, :] * -1e9
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(logits), v) @ params["o"]


def cross_attention_b(params, x, memory, memory_mask):
    q, k, v = x @ params["q"], memory @ params["k"], memory @ params["v"]
    logits = jnp.einsum("bqd,bkd->bqk", q, k) * q.shape[-1] ** -0.5
    logits = logits + (1.0 - memory_mask[:, None, :]) * -1e9
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(logits), v) @ params["o"]


def translate(attention):
    def loss(params, source, lengths, target):
        memory_mask = jnp.arange(source.shape[1])[None] < lengths[:, None]
        memory = jnp.tanh(params["embed"][source])
        x = params["embed"][target[:, :-1]]
        x = x + attention(params, x, memory, memory_mask.astype(jnp.float32))
        losses = optax.softmax_cross_entropy_with_integer_labels(x @ params["embed"].T, target[:, 1:])
        return losses.mean()

    return loss


def translate_c(params, source, lengths, target):
    padding = (jnp.arange(source.shape[1])[None] >= lengths[:, None]).astype(jnp.float32)
    memory = jnp.tanh(params["embed"][source])
    x = params["embed"][target[:, :-1]]
    q, k, v = x @ params["q"], memory @ params["k"], memory @ params["v"]
    logits = jnp.einsum("bqd,bkd->bqk", q, k) * q.shape[-1] ** -0.5 + padding[:, None, :] * -1e9
    x = x + jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(logits), v) @ params["o"]
    return optax.softmax_cross_entropy_with_integer_labels(x @ params["embed"].T, target[:, 1:]).mean()


CASES.append(
    Case(
        "memory for a decoder",
        "attention",
        translate(cross_attention),
        (translate(cross_attention_b), translate_c),
        lambda: (
            {"embed": f32(4, 8), **{n: f32(8, 8) for n in ("q", "k", "v", "o")}},
            i32(6, 9),
            jnp.array([9, 4, 6, 2, 7, 5]),
            i32(6, 7),
        ),
        where="logits = logits + memory_mask[:, None, :] * -1e9",
        differentiate="params",
        source="questions about masks of attention",
    )
)


# Chat with a window.


def chat(params, prompt, rng, window=8, replies=6):
    length = prompt.shape[0]
    buffer = jnp.zeros((window, params["embed"].shape[1]))
    buffer = jax.lax.dynamic_update_slice(buffer, params["embed"][prompt], (0, 0))

    def body(carry, rng):
        buffer, token, index = carry
        x = params["embed"][token]
        buffer = jax.lax.dynamic_update_slice(buffer, x[None], (index, 0))
        seen = jnp.arange(window) <= index
        scores = jnp.where(seen, buffer @ (x @ params["q"]), -1e9)
        y = jax.nn.softmax(scores) @ buffer
        token = jax.random.categorical(rng, (x + y) @ params["embed"].T)
        return (buffer, token, index + 1), token

    first = (buffer, prompt[-1], jnp.int32(length))
    (buffer, _, _), tokens = jax.lax.scan(body, first, jax.random.split(rng, replies))
    return tokens, buffer


def chat_b(params, prompt, rng, window=8, replies=6):
    length = prompt.shape[0]
    buffer = jnp.zeros((window, params["embed"].shape[1]))
    buffer = jax.lax.dynamic_update_slice(buffer, params["embed"][prompt], (0, 0))

    def body(carry, rng):
        buffer, token, index = carry
        x = params["embed"][token]
        buffer = buffer.at[index % window].set(x)
        seen = jnp.arange(window) <= index
        scores = jnp.where(seen, buffer @ (x @ params["q"]), -1e9)
        y = jax.nn.softmax(scores) @ buffer
        token = jax.random.categorical(rng, (x + y) @ params["embed"].T)
        return (buffer, token, index + 1), token

    first = (buffer, prompt[-1], jnp.int32(length))
    (buffer, _, _), tokens = jax.lax.scan(body, first, jax.random.split(rng, replies))
    return tokens, buffer


def chat_c(params, prompt, rng, replies=6):
    window = prompt.shape[0] + replies
    buffer = jnp.zeros((window, params["embed"].shape[1])).at[: prompt.shape[0]].set(params["embed"][prompt])

    def body(i, carry):
        buffer, token, tokens = carry
        index = prompt.shape[0] + i
        x = params["embed"][token]
        buffer = jax.lax.dynamic_update_slice(buffer, x[None], (index, 0))
        scores = jnp.where(jnp.arange(window) <= index, buffer @ (x @ params["q"]), -1e9)
        y = jax.nn.softmax(scores) @ buffer
        token = jax.random.categorical(jax.random.fold_in(rng, i), (x + y) @ params["embed"].T)
        return buffer, token, tokens.at[i].set(token)

    first = (buffer, prompt[-1], jnp.zeros(replies, jnp.int32))
    buffer, _, tokens = jax.lax.fori_loop(0, replies, body, first)
    return tokens, buffer


CASES.append(
    Case(
        "chat with a window",
        "attention",
        chat,
        (chat_b, chat_c),
        lambda: ({"embed": f32(9, 5), "q": f32(5, 5)}, i32(5), key()),
        where="buffer = jax.lax.dynamic_update_slice(buffer, x[None], (index, 0))\n        seen",
        source="caches of language models that overflow",
    )
)


# Norm of pictures.


def picture_norm(x, gamma, beta, eps=1e-5):
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    var = x.var(axis=(0, 2, 3), keepdims=True)
    z = (x - mean) * jax.lax.rsqrt(var + eps)
    return z * gamma + beta


def picture_norm_b(x, gamma, beta, eps=1e-5):
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    var = x.var(axis=(0, 2, 3), keepdims=True)
    z = (x - mean) * jax.lax.rsqrt(var + eps)
    return z * gamma[:, None, None] + beta[:, None, None]


def picture_net(norm):
    def loss(params, images, labels):
        dims = ("NCHW", "OIHW", "NCHW")
        x = jax.lax.conv_general_dilated(images, params["conv"], (1, 1), "SAME", dimension_numbers=dims)
        x = jax.nn.relu(norm(x, params["gamma"], params["beta"]))
        logits = x.mean(axis=(2, 3)) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


def channels_last_net(params, images, labels):
    x = images.transpose(0, 2, 3, 1)
    kernel = params["conv"].transpose(2, 3, 1, 0)
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    z = (x - mean) * jax.lax.rsqrt(var + 1e-5)
    x = jax.nn.relu(z * params["gamma"] + params["beta"])
    logits = x.mean(axis=(1, 2)) @ params["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


CASES.append(
    Case(
        "norm of pictures",
        "broadcast",
        picture_net(picture_norm),
        (picture_net(picture_norm_b), channels_last_net),
        ({"conv": f32(8, 3, 3, 3), "gamma": f32(8), "beta": f32(8), "head": f32(8, 4)}, f32(6, 3, 8, 8), i32(6)),
        where="return z * gamma + beta",
        axes={"images": ("batch", "channels", "height", "width"), "labels": ("batch",)},
        differentiate="params",
        source="github.com/jax-ml/jax/issues/461",
    )
)


# Noise on rows of a table.


def cosine_alphas(steps):
    t = jnp.linspace(0.0, 1.0, steps + 1)
    f = jnp.cos((t + 0.008) / 1.008 * jnp.pi / 2.0) ** 2
    return jnp.clip(f[1:] / f[0], 1e-4, 0.9999)


def denoiser(params, x, t):
    angles = t[:, None] * jnp.exp(-jnp.arange(4.0))
    return jnp.tanh(x @ params["x"] + jnp.sin(angles) @ params["t"]) @ params["out"]


def table_diffusion(params, rng, rows):
    alphas = cosine_alphas(50)
    t_rng, noise_rng = jax.random.split(rng)
    t = jax.random.randint(t_rng, (rows.shape[0],), 0, 50)
    noise = jax.random.normal(noise_rng, rows.shape)
    noisy = jnp.sqrt(alphas[t]) * rows + jnp.sqrt(1.0 - alphas[t]) * noise
    return jnp.mean((denoiser(params, noisy, t) - noise) ** 2)


def table_diffusion_b(params, rng, rows):
    alphas = cosine_alphas(50)
    t_rng, noise_rng = jax.random.split(rng)
    t = jax.random.randint(t_rng, (rows.shape[0],), 0, 50)
    noise = jax.random.normal(noise_rng, rows.shape)
    level = alphas[t][:, None]
    noisy = jnp.sqrt(level) * rows + jnp.sqrt(1.0 - level) * noise
    return jnp.mean((denoiser(params, noisy, t) - noise) ** 2)


def table_diffusion_c(params, rng, rows):
    alphas = cosine_alphas(50)

    def of_row(rng, row):
        t_rng, noise_rng = jax.random.split(rng)
        t = jax.random.randint(t_rng, (), 0, 50)
        noise = jax.random.normal(noise_rng, row.shape)
        noisy = jnp.sqrt(alphas[t]) * row + jnp.sqrt(1.0 - alphas[t]) * noise
        return jnp.mean((denoiser(params, noisy[None], t[None])[0] - noise) ** 2)

    return jax.vmap(of_row)(jax.random.split(rng, rows.shape[0]), rows).mean()


CASES.append(
    Case(
        "noise on rows of a table",
        "broadcast",
        table_diffusion,
        (table_diffusion_b, table_diffusion_c),
        lambda: ({"x": f32(12, 16), "t": f32(4, 16), "out": f32(16, 12)}, key(), f32(12, 12)),
        where="noisy = jnp.sqrt(alphas[t]) * rows + jnp.sqrt(1.0 - alphas[t]) * noise",
        axes={"rows": ("batch", None)},
        differentiate="params",
        source="diffusion on tables in JAX",
    )
)


# Prices of flats.


class Flats:
    def __init__(self, squeeze):
        self.squeeze = squeeze

    def predict(self, params, x):
        h = jax.nn.silu(x @ params["w1"] + params["b1"])
        return h @ params["w2"] + params["b2"]

    def loss(self, params, x, y, weight):
        error = optax.huber_loss(self.squeeze(self.predict(params, x)), y)
        return jnp.sum(weight * error) / jnp.sum(weight)

    def fit(self, params, x, y, weight):
        optimizer = optax.adam(1e-2)

        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(self.loss)(params, x, y, weight)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(params, updates), state), value

        (params, _), values = jax.lax.scan(step, (params, optimizer.init(params)), None, length=5)
        return params, values


class FlatsA(Flats):
    def __init__(self):
        super().__init__(lambda p: p)

    def loss(self, params, x, y, weight):
        errors = optax.huber_loss(self.predict(params, x), y)
        return jnp.average(errors.mean(axis=0), weights=weight)


class FlatsC(Flats):
    def __init__(self):
        super().__init__(lambda p: p)

    def loss(self, params, x, y, weight):
        errors = optax.huber_loss(self.predict(params, x), jnp.atleast_2d(y).T)
        return jnp.average(errors.mean(axis=1), weights=weight)


CASES.append(
    Case(
        "prices of flats",
        "broadcast",
        FlatsA().fit,
        (Flats(lambda p: p[:, 0]).fit, FlatsC().fit),
        ({"w1": f32(6, 14), "b1": f32(14), "w2": f32(14, 1), "b2": f32(1)}, f32(21, 6), f32(21), f32(21)),
        where="errors = optax.huber_loss(self.predict(params, x), y)",
        axes={"x": ("batch", None), "y": ("batch",), "weight": ("batch",)},
        source="github.com/jax-ml/jax/issues/2697",
    )
)


# A stack of layers that drop out.


def drop(rng, x, rate):
    keep = jax.random.bernoulli(rng, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


def stack_apply(params, rng, x):
    def layer(h, p):
        h = h + drop(rng, jax.nn.gelu(h @ p["w"] + p["b"]), 0.25)
        return h, None

    h, _ = jax.lax.scan(layer, x, params["layers"])
    return h @ params["head"]


def stack_apply_b(params, rng, x):
    def layer(h, xs):
        p, rng = xs
        h = h + drop(rng, jax.nn.gelu(h @ p["w"] + p["b"]), 0.25)
        return h, None

    rngs = jax.random.split(rng, params["layers"]["w"].shape[0])
    h, _ = jax.lax.scan(layer, x, (params["layers"], rngs))
    return h @ params["head"]


def recurrent_apply(params, rng, x):
    rate = 0.25
    mask = jax.random.bernoulli(rng, 1.0 - rate, (x.shape[0], params["head"].shape[0])) / (1.0 - rate)

    def layer(h, p):
        h = h + mask * jax.nn.gelu(h @ p["w"] + p["b"])
        return h, None

    h, _ = jax.lax.scan(layer, x, params["layers"])
    return h @ params["head"]


def stack_loss(apply):
    def loss(params, rng, x, labels):
        logits = apply(params, rng, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


CASES.append(
    Case(
        "stack of layers that drop out",
        "keys",
        stack_loss(stack_apply),
        (stack_loss(stack_apply_b), stack_loss(recurrent_apply)),
        lambda: ({"layers": {"w": f32(5, 10, 10), "b": f32(5, 10)}, "head": f32(10, 4)}, key(), f32(9, 10), i32(9)),
        where='def layer(h, p):\n        h = h + drop(rng, jax.nn.gelu(h @ p["w"] + p["b"]), 0.25)',
        axes={"x": ("batch", None), "labels": ("batch",)},
        differentiate="params",
        source="github.com/google/flax/issues/4950",
    )
)


# A flow from noise to pictures.


def velocity(params, x, t):
    flat = x.reshape(x.shape[0], -1)
    h = jax.nn.silu(flat @ params["in"] + t[:, None] * params["time"])
    return (h @ params["out"]).reshape(x.shape)


def flow_matching(params, rng, images):
    t = jax.nn.sigmoid(jax.random.normal(rng, (images.shape[0],)))
    noise = jax.random.normal(rng, images.shape)
    s = t[:, None, None, None]
    x = (1.0 - s) * noise + s * images
    return jnp.mean((velocity(params, x, t) - (images - noise)) ** 2)


def flow_matching_b(params, rng, images):
    t_rng, noise_rng = jax.random.split(rng)
    t = jax.nn.sigmoid(jax.random.normal(t_rng, (images.shape[0],)))
    noise = jax.random.normal(noise_rng, images.shape)
    s = t[:, None, None, None]
    x = (1.0 - s) * noise + s * images
    return jnp.mean((velocity(params, x, t) - (images - noise)) ** 2)


def flow_consistency(params, rng, images):
    rng, t_rng = jax.random.split(rng)
    t = jax.random.uniform(t_rng, (images.shape[0],), maxval=0.9)

    def position(t):
        noise = jax.random.normal(rng, images.shape)
        s = t[:, None, None, None]
        return (1.0 - s) * noise + s * images

    here, there = position(t), position(t + 0.1)
    ahead = velocity(params, there, t + 0.1)
    return jnp.mean((velocity(params, here, t) - jax.lax.stop_gradient(ahead)) ** 2)


CASES.append(
    Case(
        "flow from noise to pictures",
        "keys",
        flow_matching,
        (flow_matching_b, flow_consistency),
        lambda: ({"in": f32(48, 20), "time": f32(20), "out": f32(20, 48)}, key(), f32(7, 4, 4, 3)),
        where="t = jax.nn.sigmoid(jax.random.normal(rng, (images.shape[0],)))\n"
        "    noise = jax.random.normal(rng, images.shape)",
        differentiate="params",
        source="diffusion tutorials in JAX",
    )
)


# Statistics of batches.


def batch_norm(p, stats, x, train):
    if train:
        mean, var = x.mean(axis=0), x.var(axis=0)
        stats = {
            "mean": 0.9 * stats["mean"] + 0.1 * mean,
            "var": 0.9 * stats["var"] + 0.1 * var,
        }
    else:
        mean, var = stats["mean"], stats["var"]
    return p["scale"] * (x - mean) / jnp.sqrt(var + 1e-5) + p["bias"], stats


def two_blocks(params, stats, x, train):
    h, first = batch_norm(params["bn1"], stats["bn1"], x @ params["w1"], train)
    h = jax.nn.relu(h)
    h, second = batch_norm(params["bn2"], stats["bn2"], h @ params["w2"], train)
    return jax.nn.relu(h) @ params["head"], {"bn1": first, "bn2": second}


def blocks_training(params, stats, images, labels, held_out):
    def loss(params, stats, x, y):
        logits, _ = two_blocks(params, stats, x, train=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, batch):
        params, stats = carry
        value, grads = jax.value_and_grad(loss)(params, stats, *batch)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        return (params, stats), value

    (params, stats), losses = jax.lax.scan(step, (params, stats), (images, labels))
    return losses, two_blocks(params, stats, held_out, train=False)[0]


def blocks_training_b(params, stats, images, labels, held_out):
    def loss(params, stats, x, y):
        logits, stats = two_blocks(params, stats, x, train=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), stats

    def step(carry, batch):
        params, stats = carry
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params, stats, *batch)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        return (params, stats), value

    (params, stats), losses = jax.lax.scan(step, (params, stats), (images, labels))
    return losses, two_blocks(params, stats, held_out, train=False)[0]


def blocks_finetuning(params, stats, images, labels, held_out):
    def loss(head, x, y):
        logits, _ = two_blocks({**params, "head": head}, stats, x, train=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(head, batch):
        value, grads = jax.value_and_grad(loss)(head, *batch)
        return head - 0.05 * grads, value

    head, losses = jax.lax.scan(step, params["head"], (images, labels))
    return losses, two_blocks({**params, "head": head}, stats, held_out, train=False)[0]


def norm_shapes(names, width):
    return {n: {k: f32(width) for k in names} for n in ("bn1", "bn2")}


CASES.append(
    Case(
        "statistics of batches",
        "state",
        blocks_training,
        (blocks_training_b, blocks_finetuning),
        (
            {"w1": f32(8, 12), "w2": f32(12, 12), "head": f32(12, 4), **norm_shapes(("scale", "bias"), 12)},
            norm_shapes(("mean", "var"), 12),
            f32(6, 16, 8),
            i32(6, 16),
            f32(5, 8),
        ),
        where="logits, _ = two_blocks(params, stats, x, train=True)",
        axes={"images": ("steps", "batch", None), "labels": ("steps", "batch"), "held_out": ("batch", None)},
        source="github.com/HomericIntelligence/Odyssey/issues/5532",
    )
)


# An optimizer of one's own.


class Momenta(NamedTuple):
    step: jax.Array
    mu: dict
    nu: dict


def own_adam(grads, state, lr=0.05, b1=0.9, b2=0.999):
    step = state.step + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * g**2, state.nu, grads)
    mu = jax.tree.map(lambda m: m / (1.0 - b1**step), mu)
    nu = jax.tree.map(lambda v: v / (1.0 - b2**step), nu)
    updates = jax.tree.map(lambda m, v: -lr * m / (jnp.sqrt(v) + 1e-8), mu, nu)
    return updates, Momenta(step, mu, nu)


def own_adam_b(grads, state, lr=0.05, b1=0.9, b2=0.999):
    step = state.step + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, grads)
    nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * g**2, state.nu, grads)
    mu_hat = jax.tree.map(lambda m: m / (1.0 - b1**step), mu)
    nu_hat = jax.tree.map(lambda v: v / (1.0 - b2**step), nu)
    updates = jax.tree.map(lambda m, v: -lr * m / (jnp.sqrt(v) + 1e-8), mu_hat, nu_hat)
    return updates, Momenta(step, mu, nu)


def own_amsgrad(grads, state, lr=0.05, b1=0.9, b2=0.999):
    step = state.step + 1
    mu = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state.mu, grads)
    nu = jax.tree.map(lambda v, g: jnp.maximum(b2 * v, g**2), state.nu, grads)
    mu_hat = optax.tree.bias_correction(mu, b1, step)
    updates = jax.tree.map(lambda m, v: -lr * m / (jnp.sqrt(v) + 1e-8), mu_hat, nu)
    return updates, Momenta(step, mu, nu)


def ridge_fit(rule):
    def fit(params, x, y):
        def loss(params):
            pred = jnp.tanh(x @ params["w"]) @ params["v"]
            return jnp.mean((pred - y) ** 2) + 1e-3 * optax.global_norm(params) ** 2

        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = rule(grads, state)
            return (optax.apply_updates(params, updates), state), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(step, (params, Momenta(jnp.int32(0), zeros, zeros)), None, length=12)

    return fit


CASES.append(
    Case(
        "optimizer of one's own",
        "state",
        ridge_fit(own_adam),
        (ridge_fit(own_adam_b), ridge_fit(own_amsgrad)),
        ({"w": f32(5, 9), "v": f32(9)}, f32(17, 5), f32(17)),
        where="mu = jax.tree.map(lambda m: m / (1.0 - b1**step), mu)\n"
        "    nu = jax.tree.map(lambda v: v / (1.0 - b2**step), nu)",
        source="github.com/frgfm/Holocron/issues/1",
    )
)


# An autoencoder of digits.


def digit_encoder(params, x):
    h = jnp.tanh(x @ params["enc"])
    return h @ params["mu"], h @ params["log_var"]


def digit_loss(reparametrize):
    def loss(params, rng, x):
        mu, log_var = digit_encoder(params, x)
        z = reparametrize(rng, mu, log_var)
        logits = jax.nn.relu(z @ params["dec"]) @ params["out"]
        recon = optax.sigmoid_binary_cross_entropy(logits, x).sum(axis=-1)
        kl = -0.5 * jnp.sum(1.0 + log_var - mu**2 - jnp.exp(log_var), axis=-1)
        return jnp.mean(recon + kl)

    return loss


def reparametrize(rng, mu, log_var):
    std = jnp.exp(log_var)
    return mu + std * jax.random.normal(rng, mu.shape)


def reparametrize_b(rng, mu, log_var):
    std = jnp.exp(0.5 * log_var)
    return mu + std * jax.random.normal(rng, mu.shape)


def log_std_loss(params, rng, x):
    mu, log_std = digit_encoder(params, x)
    std = jnp.exp(log_std)
    z = mu + std * jax.random.normal(rng, mu.shape)
    logits = jax.nn.relu(z @ params["dec"]) @ params["out"]
    recon = optax.sigmoid_binary_cross_entropy(logits, x).sum(axis=-1)
    kl = -0.5 * jnp.sum(1.0 + 2.0 * log_std - mu**2 - std**2, axis=-1)
    return jnp.mean(recon + kl)


CASES.append(
    Case(
        "autoencoder of digits",
        "formula",
        digit_loss(reparametrize),
        (digit_loss(reparametrize_b), log_std_loss),
        lambda: (
            {"enc": f32(30, 12), "mu": f32(12, 3), "log_var": f32(12, 3), "dec": f32(3, 12), "out": f32(12, 30)},
            key(),
            f32(8, 30),
        ),
        where="std = jnp.exp(log_var)\n    return mu + std * jax.random.normal(rng, mu.shape)",
        differentiate="params",
        source="github.com/keras-team/keras/issues/3283",
    )
)


# A classifier of sounds.


def sound_probs(params, x):
    h = jax.nn.relu(x @ params["w1"] + params["b1"])
    return jax.nn.softmax(h @ params["w2"] + params["b2"], axis=-1)


def sound_logits(params, x):
    h = jax.nn.relu(x @ params["w1"] + params["b1"])
    return h @ params["w2"] + params["b2"]


def sound_loss(params, x, labels):
    outputs = sound_probs(params, x)
    onehot = optax.smooth_labels(jax.nn.one_hot(labels, outputs.shape[-1]), 0.05)
    loss = optax.softmax_cross_entropy(outputs, onehot).mean()
    accuracy = jnp.mean(outputs.argmax(axis=-1) == labels)
    return loss, accuracy


def sound_loss_b(params, x, labels):
    logits = sound_logits(params, x)
    onehot = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.05)
    loss = optax.softmax_cross_entropy(logits, onehot).mean()
    accuracy = jnp.mean(logits.argmax(axis=-1) == labels)
    return loss, accuracy


def sound_loss_c(params, x, labels):
    probs = sound_probs(params, x)
    onehot = optax.smooth_labels(jax.nn.one_hot(labels, probs.shape[-1]), 0.05)
    loss = optax.softmax_cross_entropy(jnp.log(probs + 1e-7), onehot).mean()
    accuracy = jnp.mean(probs.argmax(axis=-1) == labels)
    return loss, accuracy


def sound_step(loss):
    def step(params, x, labels):
        (value, accuracy), grads = jax.value_and_grad(loss, has_aux=True)(params, x, labels)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value, accuracy

    return step


CASES.append(
    Case(
        "classifier of sounds",
        "formula",
        sound_step(sound_loss),
        (sound_step(sound_loss_b), sound_step(sound_loss_c)),
        ({"w1": f32(10, 16), "b1": f32(16), "w2": f32(16, 4), "b2": f32(4)}, f32(13, 10), i32(13)),
        where="loss = optax.softmax_cross_entropy(outputs, onehot).mean()",
        axes={"x": ("batch", None), "labels": ("batch",)},
        source="classifiers that end with a softmax",
    )
)


# Decay of weights.


def decayed_training(optimizer):
    def train(params, x, y):
        def loss(params):
            return jnp.mean((jax.nn.relu(x @ params["w"] + params["b"]) @ params["v"] - y) ** 2)

        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, _), values = jax.lax.scan(step, (params, optimizer.init(params)), None, length=20)
        return params, values[-1]

    return train


def weights_only(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


def late_decay():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.02, 5, 20)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.scale_by_learning_rate(schedule),
        optax.add_decayed_weights(0.01, mask=weights_only),
    )


def early_decay():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.02, 5, 20)
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(0.01, mask=weights_only),
        optax.scale_by_learning_rate(schedule),
    )


def detached_decay():
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.02, 5, 20)
    return optax.chain(
        optax.scale_by_adam(),
        optax.scale_by_learning_rate(schedule),
        optax.add_decayed_weights(-0.0005, mask=weights_only),
    )


CASES.append(
    Case(
        "decay of weights",
        "formula",
        decayed_training(late_decay()),
        (decayed_training(early_decay()), decayed_training(detached_decay())),
        ({"w": f32(7, 11), "b": f32(11), "v": f32(11)}, f32(19, 7), f32(19)),
        where="optax.scale_by_learning_rate(schedule),\n        optax.add_decayed_weights(0.01, mask=weights_only),",
        axes={"x": ("batch", None), "y": ("batch",)},
        source="github.com/FluxML/model-zoo/pull/303",
    )
)


# A language model of letters.


def letter_logits(params, letters):
    x = params["embed"][letters] + params["position"][: letters.shape[1]]
    scores = jnp.einsum("btd,bsd->bts", x @ params["q"], x @ params["k"]) / jnp.sqrt(x.shape[-1])
    causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    x = x + jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)) @ (x @ params["v"])
    return x @ params["head"]


def letters_loss(params, letters):
    logits = letter_logits(params, letters)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, letters)
    return losses[:, 1:].mean()


def letters_loss_b(params, letters):
    logits = letter_logits(params, letters)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], letters[:, 1:])
    return losses.mean()


def letters_loss_c(params, letters):
    shifted = jnp.pad(letters, ((0, 0), (1, 0)))[:, :-1]
    logits = letter_logits(params, shifted)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, letters)
    return losses.mean()


CASES.append(
    Case(
        "language model of letters",
        "index",
        letters_loss,
        (letters_loss_b, letters_loss_c),
        (
            {
                "embed": f32(6, 8),
                "position": f32(12, 8),
                **{n: f32(8, 8) for n in ("q", "k", "v")},
                "head": f32(8, 6),
            },
            i32(5, 12),
        ),
        where="losses = optax.softmax_cross_entropy_with_integer_labels(logits, letters)\n"
        "    return losses[:, 1:].mean()",
        differentiate="params",
        source="ports of minGPT",
    )
)


# Feelings of sentences.


def sentence_states(params, words):
    def cell(h, x):
        gates = x @ params["wx"] + h @ params["wh"] + params["b"]
        update, candidate = jnp.split(gates, 2, axis=-1)
        update = jax.nn.sigmoid(update)
        h = update * h + (1.0 - update) * jnp.tanh(candidate)
        return h, h

    x = params["embed"][words].swapaxes(0, 1)
    return jax.lax.scan(cell, jnp.zeros((words.shape[0], params["wh"].shape[0])), x)


def feelings(params, words, lengths, labels):
    h, _ = sentence_states(params, words)
    logits = h @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def feelings_b(params, words, lengths, labels):
    _, states = sentence_states(params, words)
    h = states[lengths - 1, jnp.arange(words.shape[0])]
    logits = h @ params["out"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def feelings_c(params, words, lengths, labels):
    missing = words.shape[1] - lengths
    aligned = jax.vmap(jnp.roll)(words, missing)
    x = params["embed"][aligned] * (jnp.arange(words.shape[1]) >= missing[:, None])[..., None]

    def cell(h, xs):
        x, inside = xs
        gates = x @ params["wx"] + h @ params["wh"] + params["b"]
        update, candidate = jnp.split(gates, 2, axis=-1)
        update = jax.nn.sigmoid(update)
        return jnp.where(inside[:, None], update * h + (1.0 - update) * jnp.tanh(candidate), h), None

    inside = jnp.arange(words.shape[1])[:, None] >= missing
    h = jnp.zeros((words.shape[0], params["wh"].shape[0]))
    h, _ = jax.lax.scan(cell, h, (x.swapaxes(0, 1), inside))
    return optax.softmax_cross_entropy_with_integer_labels(h @ params["out"], labels).mean()


CASES.append(
    Case(
        "feelings of sentences",
        "index",
        feelings,
        (feelings_b, feelings_c),
        lambda: (
            {"embed": f32(5, 6), "wx": f32(6, 14), "wh": f32(7, 14), "b": f32(14), "out": f32(7, 3)},
            i32(4, 10),
            jnp.array([3, 10, 6, 8]),
            jnp.array([0, 2, 1, 1]),
        ),
        where='h, _ = sentence_states(params, words)\n    logits = h @ params["out"]',
        axes={"words": ("batch", "length"), "lengths": ("batch",), "labels": ("batch",)},
        differentiate="params",
        source="padded sentences in recurrent networks",
    )
)


# Experts for tokens.


def run_experts(params, x, dispatch):
    h = jax.nn.relu(jnp.einsum("td,edh->teh", x, params["up"]))
    return jnp.einsum("te,teh,ehd->td", dispatch, h, params["down"])


def routed(params, x):
    gates = jax.nn.softmax(x @ params["router"], axis=-1)
    dispatch = jax.nn.one_hot(gates.argmax(axis=-1), gates.shape[-1])
    mixed = run_experts(params, x, dispatch)
    return x + mixed


def routed_b(params, x):
    gates = jax.nn.softmax(x @ params["router"], axis=-1)
    dispatch = jax.nn.one_hot(gates.argmax(axis=-1), gates.shape[-1])
    return x + run_experts(params, x, dispatch * gates)


def routed_c(params, x):
    gates = jax.nn.softmax(x @ params["router"], axis=-1)
    hard = jax.nn.one_hot(gates.argmax(axis=-1), gates.shape[-1])
    dispatch = hard + gates - jax.lax.stop_gradient(gates)
    return x + run_experts(params, x, dispatch)


def expert_loss(route):
    def loss(params, x, labels):
        logits = route(params, x) @ params["head"]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean()

    return loss


CASES.append(
    Case(
        "experts for tokens",
        "derivative",
        expert_loss(routed),
        (expert_loss(routed_b), expert_loss(routed_c)),
        (
            {"router": f32(8, 3), "up": f32(3, 8, 10), "down": f32(3, 10, 8), "head": f32(8, 4)},
            f32(15, 8),
            i32(15),
        ),
        where="mixed = run_experts(params, x, dispatch)",
        differentiate="params",
        source="switch layers written by hand",
    )
)


# Tokens out of masks.


def unmask_probs(params, tokens, mask):
    x = jnp.where(mask[..., None], params["blank"], params["embed"][tokens])
    h = jnp.tanh(x + x.mean(axis=1, keepdims=True) @ params["mix"])
    return jax.nn.softmax(h @ params["embed"].T, axis=-1)


def unmask_step(params, carry, t, steps):
    tokens, rng = carry
    rng, pick_rng, mask_rng = jax.random.split(rng, 3)
    share = (t + 1.0) / steps
    mask = jax.random.uniform(mask_rng, tokens.shape) < share
    probs = unmask_probs(params, tokens, mask)
    drawn = jax.random.categorical(pick_rng, jnp.log(probs))
    return (jnp.where(mask, drawn, tokens), rng), mask.mean()


def unmask(params, tokens, rng, steps=8):
    step = functools.partial(unmask_step, params, steps=steps)
    (tokens, _), shares = jax.lax.scan(step, (tokens, rng), jnp.arange(steps))
    return tokens, unmask_probs(params, tokens, jnp.zeros(tokens.shape, bool)), shares[-1]


def unmask_b(params, tokens, rng, steps=8):
    step = functools.partial(unmask_step, params, steps=steps)
    (tokens, _), shares = jax.lax.scan(step, (tokens, rng), jnp.arange(steps)[::-1])
    return tokens, unmask_probs(params, tokens, jnp.zeros(tokens.shape, bool)), shares[-1]


def corrupt(params, tokens, rng, steps=8):
    def step(carry, t):
        noisy, rng = carry
        rng, mask_rng, noise_rng = jax.random.split(rng, 3)
        mask = jax.random.uniform(mask_rng, tokens.shape) < (t + 1.0) / steps
        noisy = jnp.where(mask, jax.random.randint(noise_rng, tokens.shape, 0, params["embed"].shape[0]), noisy)
        probs = unmask_probs(params, noisy, mask)
        return (noisy, rng), -jnp.log(jnp.take_along_axis(probs, tokens[..., None], axis=-1)).mean()

    (noisy, _), losses = jax.lax.scan(step, (tokens, rng), jnp.arange(steps))
    return noisy, losses


CASES.append(
    Case(
        "tokens out of masks",
        "loop",
        unmask,
        (unmask_b, corrupt),
        lambda: ({"embed": f32(6, 9), "blank": f32(9), "mix": f32(9, 9)}, i32(4, 11), key()),
        where="(tokens, _), shares = jax.lax.scan(step, (tokens, rng), jnp.arange(steps))\n",
        source="github.com/nathan-barry/tiny-diffusion/issues/2",
    )
)


# Pictures and their captions.


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def paired_loss(params, images, texts):
    image = unit(jnp.tanh(images @ params["image"]))
    text = unit(jnp.tanh(texts @ params["text"]))
    sim = jnp.exp(params["scale"]) * jnp.einsum("id,jd->ij", image, text)
    labels = jnp.arange(sim.shape[0])
    loss_i = optax.softmax_cross_entropy_with_integer_labels(sim, labels).mean()
    loss_t = -jnp.diag(jax.nn.log_softmax(sim, axis=1)).mean()
    return (loss_i + loss_t) / 2.0


def paired_loss_b(params, images, texts):
    image = unit(jnp.tanh(images @ params["image"]))
    text = unit(jnp.tanh(texts @ params["text"]))
    sim = jnp.exp(params["scale"]) * jnp.einsum("id,jd->ij", image, text)
    labels = jnp.arange(sim.shape[0])
    loss_i = optax.softmax_cross_entropy_with_integer_labels(sim, labels).mean()
    loss_t = -jnp.diag(jax.nn.log_softmax(sim, axis=0)).mean()
    return (loss_i + loss_t) / 2.0


def paired_loss_c(params, images, texts):
    image = unit(jnp.tanh(images @ params["image"]))
    text = unit(jnp.tanh(texts @ params["text"]))
    sim = jnp.exp(params["scale"]) * jnp.einsum("id,jd->ij", image, text)
    loss_i = -jnp.diag(jax.nn.log_softmax(sim, axis=1)).mean()
    loss_t = -jnp.diag(jax.nn.log_softmax(sim.T, axis=1)).mean()
    return 0.5 * (loss_i + loss_t)


CASES.append(
    Case(
        "pictures and their captions",
        "axis",
        paired_loss,
        (paired_loss_b, paired_loss_c),
        ({"image": f32(20, 8), "text": f32(14, 8), "scale": f32()}, f32(9, 20), f32(9, 14)),
        where="loss_t = -jnp.diag(jax.nn.log_softmax(sim, axis=1)).mean()",
        axes={"images": ("batch", None), "texts": ("batch", None)},
        differentiate="params",
        source="github.com/lucidrains/DALLE-pytorch/issues/32",
    )
)
