"""Transformers, graphs and samplers of tokens, from issues of public projects."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from unseen.case import Case, f32, i32, key, shapes_of

CASES = []
add = CASES.append


# Rotary embeddings.


def rotate(x, positions):
    half = x.shape[-1] // 2
    freqs = 10000.0 ** (-jnp.arange(half) / half)
    angles = positions[:, None] * freqs
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def causal_attention(q, k, v):
    length = q.shape[1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)


def rotary_block(params, x):
    batch, length, _ = x.shape
    q, k, v = ((x @ params[n]).reshape(batch, length, 4, 8) for n in ("q", "k", "v"))
    q = rotate(q, jnp.arange(q.shape[-2]))
    k = rotate(k, jnp.arange(k.shape[-2]))
    return x + causal_attention(q, k, v).reshape(batch, length, -1) @ params["o"]


def rotary_block_b(params, x):
    batch, length, _ = x.shape
    q, k, v = ((x @ params[n]).reshape(batch, length, 4, 8) for n in ("q", "k", "v"))
    over_heads = jax.vmap(rotate, in_axes=(2, None), out_axes=2)
    q = over_heads(q, jnp.arange(length))
    k = over_heads(k, jnp.arange(length))
    return x + causal_attention(q, k, v).reshape(batch, length, -1) @ params["o"]


def rotary_block_c(params, x):
    batch, length, _ = x.shape
    q, k, v = ((x @ params[n]).reshape(batch, length, 4, 8).swapaxes(1, 2) for n in ("q", "k", "v"))
    q = rotate(q, jnp.arange(q.shape[-2])).swapaxes(1, 2)
    k = rotate(k, jnp.arange(k.shape[-2])).swapaxes(1, 2)
    return x + causal_attention(q, k, v.swapaxes(1, 2)).reshape(batch, length, -1) @ params["o"]


SQUARE = {n: f32(32, 32) for n in ("q", "k", "v", "o")}
add(
    Case(
        "rotation by head",
        "attention",
        rotary_block,
        (rotary_block_b, rotary_block_c),
        (SQUARE, f32(2, 10, 32)),
        where="q = rotate(q, jnp.arange(q.shape[-2]))\n",
        axes={"x": ("batch", "length", None)},
        source="open_lm#4: positions along the axis of heads",
    )
)


# Several documents in one sequence.


def packed_layer(params, x, segment_ids):
    batch, length, dim = x.shape
    start = segment_ids != jnp.pad(segment_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    index = jnp.arange(length)
    positions = index - jax.lax.cummax(jnp.where(start, index, 0), axis=1)
    x = x + params["pos"][positions]
    q, k, v = (x @ params[n] for n in ("q", "k", "v"))
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(dim)
    mask = index[:, None] >= index[None, :]
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return x + jnp.einsum("bqk,bkd->bqd", weights, v) @ params["o"]


def packed_layer_b(params, x, segment_ids):
    batch, length, dim = x.shape
    start = segment_ids != jnp.pad(segment_ids, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    index = jnp.arange(length)
    positions = index - jax.lax.cummax(jnp.where(start, index, 0), axis=1)
    x = x + params["pos"][positions]
    q, k, v = (x @ params[n] for n in ("q", "k", "v"))
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(dim)
    mask = (index[:, None] >= index[None, :]) & (segment_ids[:, :, None] == segment_ids[:, None, :])
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return x + jnp.einsum("bqk,bkd->bqd", weights, v) @ params["o"]


add(
    Case(
        "packed documents",
        "attention",
        packed_layer,
        (packed_layer_b,),
        ({**SQUARE, "pos": f32(64, 32)}, f32(2, 12, 32), i32(2, 12)),
        where="mask = index[:, None] >= index[None, :]\n",
        axes={"x": ("batch", "length", None), "segment_ids": ("batch", "length")},
        source="levanter#827, WrinkleFree-Monorepo#53: positions restart, attention goes on into other documents",
    )
)


# Padding that masks queries.


class Encoder(nn.Module):
    dim: int = 32

    @nn.compact
    def __call__(self, tokens):
        keep = tokens > 0
        x = nn.Embed(50, self.dim)(tokens)
        batch, length, _ = x.shape
        q, k, v = (nn.Dense(self.dim)(x).reshape(batch, length, 4, -1) for _ in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        scores = jnp.where(keep[:, None, :, None], scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores, axis=-1)
        x = x + nn.Dense(self.dim)(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, -1))
        return nn.Dense(3)(x[:, 0])


class EncoderB(nn.Module):
    dim: int = 32

    @nn.compact
    def __call__(self, tokens):
        keep = tokens > 0
        x = nn.Embed(50, self.dim)(tokens)
        batch, length, _ = x.shape
        q, k, v = (nn.Dense(self.dim)(x).reshape(batch, length, 4, -1) for _ in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        scores = jnp.where(keep[:, None, None, :], scores, jnp.finfo(scores.dtype).min)
        weights = jax.nn.softmax(scores, axis=-1)
        x = x + nn.Dense(self.dim)(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, -1))
        return nn.Dense(3)(x[:, 0])


class EncoderC(nn.Module):
    dim: int = 32

    @nn.compact
    def __call__(self, tokens):
        keep = tokens > 0
        x = nn.Embed(50, self.dim)(tokens)
        batch, length, _ = x.shape
        q, k, v = (nn.Dense(self.dim)(x).reshape(batch, length, 4, -1) for _ in range(3))
        scores = jnp.einsum("bqhd,bkhd->bhkq", q, k) / np.sqrt(q.shape[-1])
        scores = jnp.where(keep[:, None, :, None], scores, jnp.finfo(jnp.float32).min)
        attention = jax.nn.softmax(scores, axis=-2)
        x = x + nn.Dense(self.dim)(jnp.einsum("bhkq,bkhd->bqhd", attention, v).reshape(batch, length, -1))
        return nn.Dense(3)(x[:, 0])


def classify(module):
    def loss(params, tokens, labels):
        logits = module.apply(params, tokens)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


add(
    Case(
        "padding of queries",
        "attention",
        classify(Encoder()),
        (classify(EncoderB()), classify(EncoderC())),
        lambda: (shapes_of(Encoder().init, jax.random.key(0), i32(4, 9)), i32(4, 9), i32(4)),
        where="scores = jnp.where(keep[:, None, :, None], scores, jnp.finfo(scores.dtype).min)",
        axes={"tokens": ("batch", "length"), "labels": ("batch",)},
        differentiate="params",
        source="ports of BERT to Flax, maxtext#5198: which side of the scores the padding masks",
    )
)


# Padding, by PyTorch's convention.


def pool_by_attention(params, tokens):
    x = params["embedding"][tokens]
    padding = tokens == 0
    scores = jnp.tanh(x @ params["w"]) @ params["u"]
    scores = jnp.where(padding, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1)
    pooled = jnp.sum(weights[..., None] * x, axis=1)
    return pooled @ params["out"]


def pool_by_attention_b(params, tokens):
    x = params["embedding"][tokens]
    padding = tokens == 0
    scores = jnp.tanh(x @ params["w"]) @ params["u"]
    scores = jnp.where(padding, -1e9, scores)
    weights = jax.nn.softmax(scores, axis=-1)
    pooled = jnp.sum(weights[..., None] * x, axis=1)
    return pooled @ params["out"]


add(
    Case(
        "attention to padding",
        "attention",
        pool_by_attention,
        (pool_by_attention_b,),
        ({"embedding": f32(40, 16), "w": f32(16, 16), "u": f32(16), "out": f32(16, 3)}, i32(4, 11)),
        where="scores = jnp.where(padding, scores, -1e9)",
        axes={"tokens": ("batch", "length")},
        source="ports of key_padding_mask, which is True where PyTorch ignores a key",
    )
)


# A mask that multiplies scores.


class TinyGPT(nn.Module):
    vocab: int = 40
    dim: int = 24

    @nn.compact
    def __call__(self, tokens):
        length = tokens.shape[1]
        x = (
            nn.Embed(self.vocab, self.dim)(tokens)
            + self.param("pos", nn.initializers.normal(0.02), (16, self.dim))[:length]
        )
        q, k, v = jnp.split(nn.Dense(3 * self.dim)(nn.LayerNorm()(x)), 3, axis=-1)
        causal = jnp.tril(jnp.ones((length, length)))
        scores = jnp.einsum("btd,bsd->bts", q, k) * self.dim**-0.5 * causal
        x = x + nn.softmax(scores, axis=-1) @ v
        return nn.Dense(self.vocab)(nn.LayerNorm()(x))


class TinyGPTB(nn.Module):
    vocab: int = 40
    dim: int = 24

    @nn.compact
    def __call__(self, tokens):
        length = tokens.shape[1]
        x = (
            nn.Embed(self.vocab, self.dim)(tokens)
            + self.param("pos", nn.initializers.normal(0.02), (16, self.dim))[:length]
        )
        q, k, v = jnp.split(nn.Dense(3 * self.dim)(nn.LayerNorm()(x)), 3, axis=-1)
        causal = jnp.tril(jnp.ones((length, length)))
        scores = jnp.einsum("btd,bsd->bts", q, k) * self.dim**-0.5
        x = x + nn.softmax(scores, axis=-1, where=causal > 0) @ v
        return nn.Dense(self.vocab)(nn.LayerNorm()(x))


class LinearGPTC(nn.Module):
    vocab: int = 40
    dim: int = 24

    @nn.compact
    def __call__(self, tokens):
        length = tokens.shape[1]
        x = (
            nn.Embed(self.vocab, self.dim)(tokens)
            + self.param("pos", nn.initializers.normal(0.02), (16, self.dim))[:length]
        )
        q, k, v = jnp.split(nn.Dense(3 * self.dim)(nn.LayerNorm()(x)), 3, axis=-1)
        lower = jnp.tril(jnp.ones((length, length)))
        weights = jnp.einsum("btd,bsd->bts", nn.softmax(q), nn.softmax(k)) * lower
        x = x + weights / weights.sum(axis=-1, keepdims=True) @ v
        return nn.Dense(self.vocab)(nn.LayerNorm()(x))


def next_tokens(module):
    def loss(params, tokens):
        logits = module.apply(params, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return loss


add(
    Case(
        "mask times scores",
        "attention",
        next_tokens(TinyGPT()),
        (next_tokens(TinyGPTB()), next_tokens(LinearGPTC())),
        lambda: (shapes_of(TinyGPT().init, jax.random.key(0), i32(3, 9)), i32(3, 10)),
        where='scores = jnp.einsum("btd,bsd->bts", q, k) * self.dim**-0.5 * causal',
        axes={"tokens": ("batch", "length")},
        differentiate="params",
        source="small transformers in Flax: a score of 0 is no -inf",
    )
)


# Grouped queries.


def grouped_attention(params, x):
    batch, length, _ = x.shape
    q = (x @ params["q"]).reshape(batch, length, 8, 4)
    k = (x @ params["k"]).reshape(batch, length, 2, 4)
    v = (x @ params["v"]).reshape(batch, length, 2, 4)
    k = jnp.tile(k, (1, 1, 4, 1))
    v = jnp.repeat(v, 4, axis=2)
    return causal_attention(q, k, v).reshape(batch, length, -1) @ params["o"]


def grouped_attention_b(params, x):
    batch, length, _ = x.shape
    q = (x @ params["q"]).reshape(batch, length, 8, 4)
    k = (x @ params["k"]).reshape(batch, length, 2, 4)
    v = (x @ params["v"]).reshape(batch, length, 2, 4)
    k = jnp.repeat(k, 4, axis=2)
    v = jnp.repeat(v, 4, axis=2)
    return causal_attention(q, k, v).reshape(batch, length, -1) @ params["o"]


def grouped_attention_c(params, x):
    batch, length, _ = x.shape
    q = (x @ params["q"]).reshape(batch, length, 4, 2, 4)
    k = (x @ params["k"]).reshape(batch, length, 2, 4)
    v = (x @ params["v"]).reshape(batch, length, 2, 4)
    tile = lambda a: jnp.tile(a, (1, 1, 4, 1))
    q = q.reshape(batch, length, 8, 4)
    return causal_attention(q, tile(k), tile(v)).reshape(batch, length, -1) @ params["o"]


add(
    Case(
        "grouped queries",
        "reshape for transpose",
        grouped_attention,
        (grouped_attention_b, grouped_attention_c),
        ({"q": f32(32, 32), "k": f32(32, 8), "v": f32(32, 8), "o": f32(32, 32)}, f32(2, 7, 32)),
        where="k = jnp.tile(k, (1, 1, 4, 1))",
        axes={"x": ("batch", "length", None)},
        source="ports of Llama to JAX: tile where repeat is meant",
    )
)


# Attention on a graph.


class Graph(NamedTuple):
    nodes: jax.Array
    senders: jax.Array
    receivers: jax.Array


def gat_layer(params, graph):
    h = graph.nodes @ params["w"]
    sent, received = h[graph.senders], h[graph.receivers]
    logits = jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1) @ params["a"], 0.2)
    weights = jax.nn.softmax(logits, axis=0)
    messages = sent * weights[:, None]
    return jax.nn.elu(jax.ops.segment_sum(messages, graph.receivers, graph.nodes.shape[0]))


def gat_layer_b(params, graph):
    h = graph.nodes @ params["w"]
    count = graph.nodes.shape[0]
    sent, received = h[graph.senders], h[graph.receivers]
    logits = jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1) @ params["a"], 0.2)
    top = jax.ops.segment_max(logits, graph.receivers, count)
    e = jnp.exp(logits - top[graph.receivers])
    weights = e / jax.ops.segment_sum(e, graph.receivers, count)[graph.receivers]
    messages = sent * weights[:, None]
    return jax.nn.elu(jax.ops.segment_sum(messages, graph.receivers, count))


def gat_layer_c(params, graph):
    h = graph.nodes @ params["w"]
    count = graph.nodes.shape[0]
    sent, received = h[graph.senders], h[graph.receivers]
    logits = jax.nn.leaky_relu(jnp.concatenate([sent, received], axis=-1) @ params["a"], 0.2)
    gates = jax.nn.sigmoid(logits)
    total = jax.ops.segment_sum(gates, graph.receivers, count)
    mixed = jax.ops.segment_sum(sent * gates[:, None], graph.receivers, count)
    return jax.nn.elu(mixed / jnp.maximum(total, 1e-6)[:, None])


add(
    Case(
        "attention of a graph",
        "softmax axis",
        gat_layer,
        (gat_layer_b, gat_layer_c),
        ({"w": f32(6, 8), "a": f32(16)}, Graph(f32(10, 6), i32(30), i32(30))),
        where="weights = jax.nn.softmax(logits, axis=0)",
        axes={"graph/nodes": ("nodes", None), "graph/senders": ("edges",), "graph/receivers": ("edges",)},
        source="graph-learn#26: softmax over all edges and not over those of one node",
    )
)


# A router of experts.


def route(params, x):
    tokens = x.reshape(-1, x.shape[-1])
    gates = jax.nn.softmax(tokens @ params["router"], axis=-1)
    top, chosen = jax.lax.top_k(gates, 2)
    top = jax.nn.softmax(top, axis=-1)
    hidden = jax.nn.silu(jnp.einsum("td,edf->tef", tokens, params["up"]))
    outs = jnp.einsum("tef,efd->ted", hidden, params["down"])
    picked = jnp.take_along_axis(outs, chosen[..., None], axis=1)
    return x + jnp.sum(top[..., None] * picked, axis=1).reshape(x.shape)


def route_b(params, x):
    tokens = x.reshape(-1, x.shape[-1])
    top, chosen = jax.lax.top_k(tokens @ params["router"], 2)
    top = jax.nn.softmax(top, axis=-1)
    hidden = jax.nn.silu(jnp.einsum("td,edf->tef", tokens, params["up"]))
    outs = jnp.einsum("tef,efd->ted", hidden, params["down"])
    picked = jnp.take_along_axis(outs, chosen[..., None], axis=1)
    return x + jnp.sum(top[..., None] * picked, axis=1).reshape(x.shape)


def route_c(params, x):
    tokens = x.reshape(-1, x.shape[-1])
    gates = jax.nn.softmax(tokens @ params["router"], axis=-1)
    top, chosen = jax.lax.top_k(gates, 2)
    top = top / top.sum(axis=-1, keepdims=True)
    hidden = jax.nn.silu(jnp.einsum("td,edf->tef", tokens, params["up"]))
    outs = jnp.einsum("tef,efd->ted", hidden, params["down"])
    picked = jnp.take_along_axis(outs, chosen[..., None], axis=1)
    return x + jnp.sum(top[..., None] * picked, axis=1).reshape(x.shape)


add(
    Case(
        "router of experts",
        "softmax twice",
        route,
        (route_b, route_c),
        ({"router": f32(12, 6), "up": f32(6, 12, 20), "down": f32(6, 20, 12)}, f32(2, 5, 12)),
        where='gates = jax.nn.softmax(tokens @ params["router"], axis=-1)\n'
        "    top, chosen = jax.lax.top_k(gates, 2)\n    top = jax.nn.softmax(top, axis=-1)",
        axes={"x": ("batch", "length", None)},
        source="mixtures of experts in JAX: weights of probabilities and not of logits",
    )
)


# Tokens drawn from probabilities.


def generate(params, first, temperature, rng):
    def step(token, rng):
        h = jnp.tanh(params["embedding"][token] @ params["w"])
        logits = h @ params["embedding"].T
        probs = jax.nn.softmax(logits / temperature, axis=-1)
        token = jax.random.categorical(rng, probs)
        return token, token

    return jax.lax.scan(step, first, jax.random.split(rng, 20))[1].T


def generate_b(params, first, temperature, rng):
    def step(token, rng):
        h = jnp.tanh(params["embedding"][token] @ params["w"])
        logits = h @ params["embedding"].T
        token = jax.random.categorical(rng, logits / temperature)
        return token, token

    return jax.lax.scan(step, first, jax.random.split(rng, 20))[1].T


def generate_c(params, first, temperature, rng):
    def step(token, rng):
        h = jnp.tanh(params["embedding"][token] @ params["w"])
        probs = jax.nn.softmax(h @ params["embedding"].T / temperature, axis=-1)
        kept = jnp.where(probs > 0.1 * probs.max(axis=-1, keepdims=True), probs, 0.0)
        token = jax.random.categorical(rng, jnp.log(kept))
        return token, token

    return jax.lax.scan(step, first, jax.random.split(rng, 20))[1].T


add(
    Case(
        "tokens from probabilities",
        "softmax twice",
        generate,
        (generate_b, generate_c),
        ({"embedding": f32(30, 12), "w": f32(12, 12)}, i32(5), f32(), key()),
        where="token = jax.random.categorical(rng, probs)\n",
        axes={"first": ("batch",)},
        source="samplers of tokens in JAX: categorical takes logits",
    )
)


# Targets by roll.


def lm_loss(params, tokens, mask):
    x = params["embedding"][tokens]
    h = jax.lax.associative_scan(jnp.add, x, axis=1) / (1.0 + jnp.arange(tokens.shape[1]))[:, None]
    logits = jnp.tanh(h @ params["w"]) @ params["embedding"].T
    targets = jnp.roll(tokens, -1, axis=1)
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return jnp.sum(nll * mask) / jnp.maximum(mask.sum(), 1.0)


def lm_loss_b(params, tokens, mask):
    x = params["embedding"][tokens]
    h = jax.lax.associative_scan(jnp.add, x, axis=1) / (1.0 + jnp.arange(tokens.shape[1]))[:, None]
    logits = jnp.tanh(h @ params["w"]) @ params["embedding"].T
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.sum(nll * mask[:, 1:]) / jnp.maximum(mask[:, 1:].sum(), 1.0)


def lm_loss_c(params, tokens, mask):
    x = params["embedding"][tokens]
    h = jax.lax.associative_scan(jnp.add, x, axis=1) / (1.0 + jnp.arange(tokens.shape[1]))[:, None]
    logits = jnp.tanh(h @ params["w"]) @ params["embedding"].T
    targets = jnp.roll(tokens, -1, axis=1)
    counted = jnp.roll(mask, -1, axis=1).at[:, -1].set(0.0)
    nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return jnp.sum(nll * counted) / jnp.maximum(counted.sum(), 1.0)


add(
    Case(
        "targets by roll",
        "off by one",
        lm_loss,
        (lm_loss_b, lm_loss_c),
        ({"embedding": f32(30, 12), "w": f32(12, 12)}, i32(4, 9), f32(4, 9)),
        where="targets = jnp.roll(tokens, -1, axis=1)\n    nll",
        axes={"tokens": ("batch", "length"), "mask": ("batch", "length")},
        differentiate="params",
        source="marin#8171: masks and targets that are rolled past the last position",
    )
)


# Positions in bfloat16.


def embed_positions(params, x):
    x = x.astype(jnp.bfloat16)
    batch, length, _ = x.shape
    inverse = 10000.0 ** (-jnp.arange(0, 8, 2) / 8)
    angles = jnp.arange(length, dtype=x.dtype)[:, None] * inverse.astype(x.dtype)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = jnp.split(x @ params.astype(x.dtype), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def embed_positions_b(params, x):
    x = x.astype(jnp.bfloat16)
    batch, length, _ = x.shape
    inverse = 10000.0 ** (-jnp.arange(0, 8, 2) / 8)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * inverse
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    a, b = jnp.split(x @ params.astype(x.dtype), 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


add(
    Case(
        "positions in bfloat16",
        "dtype",
        embed_positions,
        (embed_positions_b,),
        (f32(16, 8), f32(1, 1024, 16)),
        where="angles = jnp.arange(length, dtype=x.dtype)[:, None] * inverse.astype(x.dtype)",
        axes={"x": ("batch", "length", None)},
        source="rotary embeddings in half precision: positions over 256 collide",
    )
)


# A cache of keys and values.


class Cache(NamedTuple):
    k: jax.Array
    v: jax.Array
    index: jax.Array


def decode(params, cache, token):
    def step(carry, _):
        cache, token = carry
        x = params["embedding"][token]
        k = jax.lax.dynamic_update_slice_in_dim(cache.k, (x @ params["k"])[:, None], cache.index, axis=1)
        v = jax.lax.dynamic_update_slice_in_dim(cache.v, (x @ params["v"])[:, None], cache.index, axis=1)
        scores = jnp.einsum("bd,bsd->bs", x @ params["q"], k) / np.sqrt(x.shape[-1])
        scores = jnp.where(jnp.arange(k.shape[1]) <= cache.index, scores, -1e9)
        x = x + jnp.einsum("bs,bsd->bd", jax.nn.softmax(scores), v)
        token = jnp.argmax(x @ params["embedding"].T, axis=-1)
        return (cache._replace(v=v, index=cache.index + 1), token), token

    return jax.lax.scan(step, (cache, token), None, length=12)


def decode_b(params, cache, token):
    def step(carry, _):
        cache, token = carry
        x = params["embedding"][token]
        k = jax.lax.dynamic_update_slice_in_dim(cache.k, (x @ params["k"])[:, None], cache.index, axis=1)
        v = jax.lax.dynamic_update_slice_in_dim(cache.v, (x @ params["v"])[:, None], cache.index, axis=1)
        scores = jnp.einsum("bd,bsd->bs", x @ params["q"], k) / np.sqrt(x.shape[-1])
        scores = jnp.where(jnp.arange(k.shape[1]) <= cache.index, scores, -1e9)
        x = x + jnp.einsum("bs,bsd->bd", jax.nn.softmax(scores), v)
        token = jnp.argmax(x @ params["embedding"].T, axis=-1)
        return (Cache(k, v, cache.index + 1), token), token

    return jax.lax.scan(step, (cache, token), None, length=12)


add(
    Case(
        "cache of keys",
        "result dropped",
        decode,
        (decode_b,),
        (
            {"embedding": f32(30, 16), "q": f32(16, 16), "k": f32(16, 16), "v": f32(16, 16)},
            Cache(f32(3, 20, 16), f32(3, 20, 16), i32()),
            i32(3),
        ),
        where="return (cache._replace(v=v, index=cache.index + 1), token), token",
        axes={"cache/k": ("batch", "length", None), "token": ("batch",)},
        source="decoders by hand: the updated keys are not handed on",
    )
)
