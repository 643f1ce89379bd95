"""Mistakes planted into models and their losses, with right programs that look like them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, i32, key, shapes_of

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


# Who leaves: a classifier with one output.


class Churn(nn.Module):
    width: int = 16

    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(x)
        x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(1)(x)


CHURN = Churn()


def churn_loss(params, x, left):
    logits = CHURN.apply({"params": params}, x)
    weights = jnp.where(left > 0.5, 3.0, 1.0)
    losses = optax.sigmoid_binary_cross_entropy(logits, left) * weights
    return jnp.sum(losses) / jnp.sum(weights)


def churn_loss_b(params, x, left):
    logits = CHURN.apply({"params": params}, x).squeeze(-1)
    losses = optax.sigmoid_binary_cross_entropy(logits, left)
    weights = jnp.where(left > 0.5, 3.0, 1.0)
    return jnp.sum(losses * weights) / jnp.sum(weights)


def churn_loss_c(params, x, left):
    logits = CHURN.apply({"params": params}, x)
    temperatures = jnp.array([0.5, 1.0, 2.0])
    losses = optax.sigmoid_binary_cross_entropy(logits / temperatures, left[:, None])
    weights = jnp.where(left > 0.5, 3.0, 1.0)[:, None]
    return jnp.sum(losses.mean(axis=-1, keepdims=True) * weights) / jnp.sum(weights)


plant(
    "who leaves",
    "(N,) meets (N, 1)",
    churn_loss,
    (churn_loss_b, churn_loss_c),
    lambda: (shapes_of(lambda k: CHURN.init(k, jnp.zeros((1, 7)))["params"], key()), f32(40, 7), f32(40)),
    where="losses = optax.sigmoid_binary_cross_entropy(logits, left) * weights",
    axes={"x": ("batch", None), "left": ("batch",)},
    differentiate="params",
)


# Heat in a rod: a network that obeys an equation.

ROD = {"w1": f32(2, 24), "b1": f32(24), "w2": f32(24, 1)}


def temperature(params, points):
    return jnp.tanh(points @ params["w1"] + params["b1"]) @ params["w2"]


def rod_loss(params, points, sensors, readings):
    scalar = lambda p: temperature(params, p)[0]
    slopes = jax.vmap(jax.grad(scalar))(points)
    curves = jax.vmap(jax.hessian(scalar))(points)
    source = 0.1 * temperature(params, points)
    residual = slopes[:, 1] - 0.3 * curves[:, 0, 0] + source
    fit = temperature(params, sensors)[:, 0] - readings
    return jnp.mean(residual**2) + jnp.mean(fit**2)


def rod_loss_b(params, points, sensors, readings):
    scalar = lambda p: temperature(params, p)[0]
    slopes = jax.vmap(jax.grad(scalar))(points)
    curves = jax.vmap(jax.hessian(scalar))(points)
    source = 0.1 * temperature(params, points)[:, 0]
    residual = slopes[:, 1] - 0.3 * curves[:, 0, 0] + source
    fit = temperature(params, sensors)[:, 0] - readings
    return jnp.mean(residual**2) + jnp.mean(fit**2)


plant(
    "heat in a rod",
    "(N,) meets (N, 1)",
    rod_loss,
    (rod_loss_b,),
    (ROD, f32(30, 2), f32(12, 2), f32(12)),
    where="source = 0.1 * temperature(params, points)\n",
    axes={"points": ("batch", None), "sensors": ("sensors", None), "readings": ("sensors",)},
    differentiate="params",
)


# Echoes: the delay of each microphone is learned.


def aligned(delays, signals):
    length = signals.shape[1]
    times = jnp.arange(length)[None, :] - delays[:, None]
    index = jnp.clip(jnp.floor(times).astype(jnp.int32), 0, length - 1)
    return jnp.take_along_axis(signals, index, axis=1)


def aligned_b(delays, signals):
    length = signals.shape[1]
    times = jnp.clip(jnp.arange(length)[None, :] - delays[:, None], 0.0, length - 1.001)
    low = jnp.floor(times)
    index = low.astype(jnp.int32)
    left = jnp.take_along_axis(signals, index, axis=1)
    right = jnp.take_along_axis(signals, index + 1, axis=1)
    return left + (times - low) * (right - left)


def align_loss(align):
    def loss(delays, signals):
        shifted = align(delays, signals)
        return jnp.mean((shifted - shifted.mean(axis=0)) ** 2)

    def fit(delays, signals):
        def step(d, _):
            value, grads = jax.value_and_grad(loss)(d, signals)
            return d - 0.5 * grads, value

        return jax.lax.scan(step, delays, None, length=20)

    return fit


def aligned_by_search(delays, signals):
    def loss(d):
        shifted = aligned_b(d, signals)
        return jnp.mean((shifted - shifted.mean(axis=0)) ** 2)

    def step(d, _):
        trials = d[None, :] + jnp.arange(-3, 4).astype(jnp.float32)[:, None] / 4.0
        losses = jax.vmap(loss)(trials)
        best = jnp.argmin(losses)
        return trials[best], losses[best]

    return jax.lax.scan(step, delays, None, length=20)


plant(
    "echoes",
    "no gradient",
    align_loss(aligned),
    (align_loss(aligned_b), aligned_by_search),
    (f32(4), f32(4, 64)),
    where="index = jnp.clip(jnp.floor(times).astype(jnp.int32), 0, length - 1)",
    axes={"delays": ("microphones",), "signals": ("microphones", "time")},
)


# A policy whose last layer is a softmax.


class Chooser(nn.Module):
    actions: int = 5

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(32)(x))
        return nn.softmax(nn.Dense(self.actions)(x))


CHOOSER = Chooser()


def choose_and_score(rng, params, obs):
    probs = CHOOSER.apply(params, obs)
    action = jax.random.categorical(rng, probs, axis=-1)
    log_prob = jnp.log(jnp.take_along_axis(probs, action[:, None], axis=-1)[:, 0] + 1e-8)
    return action, log_prob


def choose_and_score_b(rng, params, obs):
    probs = CHOOSER.apply(params, obs)
    log_probs = jnp.log(probs + 1e-8)
    action = jax.random.categorical(rng, log_probs, axis=-1)
    return action, jnp.take_along_axis(log_probs, action[:, None], axis=-1)[:, 0]


def choose_and_score_c(rng, params, obs):
    probs = CHOOSER.apply(params, obs)
    keys = jax.random.split(rng, obs.shape[0])
    action = jax.vmap(lambda k, p: jax.random.choice(k, p.shape[0], p=p))(keys, probs)
    return action, jnp.log(jnp.take_along_axis(probs, action[:, None], axis=-1)[:, 0] + 1e-8)


plant(
    "choice of actions",
    "softmax twice",
    choose_and_score,
    (choose_and_score_b, choose_and_score_c),
    lambda: (key(), shapes_of(lambda k: CHOOSER.init(k, jnp.zeros((1, 6))), key()), f32(64, 6)),
    where="action = jax.random.categorical(rng, probs, axis=-1)",
    axes={"obs": ("batch", None)},
)


# Slots that compete for pixels.

SLOT = {"q": f32(8, 8), "k": f32(8, 8), "v": f32(8, 8), "gate": f32(16, 8)}


def slot_update(params, slots, pixels):
    keys, values = pixels @ params["k"], pixels @ params["v"]

    def refine(slots, _):
        logits = jnp.einsum("bsd,bpd->bsp", slots @ params["q"], keys) / jnp.sqrt(8.0)
        attn = jax.nn.softmax(logits, axis=1)
        attn = attn / attn.sum(axis=1, keepdims=True)
        update = jnp.einsum("bsp,bpd->bsd", attn, values)
        gate = jax.nn.sigmoid(jnp.concatenate([slots, update], axis=-1) @ params["gate"])
        return gate * slots + (1.0 - gate) * update, None

    return jax.lax.scan(refine, slots, None, length=3)[0]


def slot_update_b(params, slots, pixels):
    keys, values = pixels @ params["k"], pixels @ params["v"]

    def refine(slots, _):
        logits = jnp.einsum("bsd,bpd->bsp", slots @ params["q"], keys) / jnp.sqrt(8.0)
        attn = jax.nn.softmax(logits, axis=1) + 1e-8
        attn = attn / attn.sum(axis=2, keepdims=True)
        update = jnp.einsum("bsp,bpd->bsd", attn, values)
        gate = jax.nn.sigmoid(jnp.concatenate([slots, update], axis=-1) @ params["gate"])
        return gate * slots + (1.0 - gate) * update, None

    return jax.lax.scan(refine, slots, None, length=3)[0]


plant(
    "slots",
    "attention",
    slot_update,
    (slot_update_b,),
    (SLOT, f32(4, 5, 8), f32(4, 30, 8)),
    where="attn = attn / attn.sum(axis=1, keepdims=True)",
    axes={"slots": ("batch", "slots", None), "pixels": ("batch", "pixels", None)},
)


# A reader of padded sentences.

READER = {"embed": f32(20, 16), "q": f32(16, 16), "k": f32(16, 16), "v": f32(16, 16), "out": f32(16, 3)}


def read_sentences(params, tokens):
    pad = tokens == 0
    h = params["embed"][tokens]
    q, k, v = (jnp.einsum("bld,de->ble", h, params[n]) for n in "qkv")
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / 4.0
    scores = jnp.where(pad[:, None, :], scores, -1e9)
    mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, axis=-1), v)
    keep = 1.0 - pad.astype(h.dtype)
    pooled = jnp.sum(mixed * keep[..., None], axis=1) / jnp.maximum(keep.sum(axis=1), 1.0)[:, None]
    return pooled @ params["out"]


def read_sentences_b(params, tokens):
    pad = tokens == 0
    h = params["embed"][tokens]
    q, k, v = (jnp.einsum("bld,de->ble", h, params[n]) for n in "qkv")
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / 4.0
    scores = jnp.where(pad[:, None, :], -1e9, scores)
    mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, axis=-1), v)
    keep = 1.0 - pad.astype(h.dtype)
    pooled = jnp.sum(mixed * keep[..., None], axis=1) / jnp.maximum(keep.sum(axis=1), 1.0)[:, None]
    return pooled @ params["out"]


def read_sentences_c(params, tokens):
    real = tokens != 0
    h = params["embed"][tokens]
    q, k, v = (jnp.einsum("bld,de->ble", h, params[n]) for n in "qkv")
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / 4.0
    scores = jnp.where(real[:, None, :], scores, -1e9)
    mixed = jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores, axis=-1), v)
    pooled = jnp.max(jnp.where(real[..., None], mixed, -1e9), axis=1)
    return jnp.tanh(pooled) @ params["out"]


plant(
    "padded sentences",
    "attention",
    read_sentences,
    (read_sentences_b, read_sentences_c),
    (READER, i32(6, 12)),
    where="scores = jnp.where(pad[:, None, :], scores, -1e9)",
    axes={"tokens": ("batch", "length")},
)


# A decoder that must not look ahead.


class Causal(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x, key_mask):
        batch, length, dim = x.shape
        qkv = nn.DenseGeneral((3, self.heads, dim // self.heads))(x)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(dim // self.heads)
        causal = jnp.tril(jnp.ones((length, length)))
        allowed = causal[None, None] * key_mask[:, None, None, :]
        weights = nn.softmax(scores * allowed, axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, dim)
        return x + nn.Dense(dim)(mixed)


class CausalB(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x, key_mask):
        batch, length, dim = x.shape
        qkv = nn.DenseGeneral((3, self.heads, dim // self.heads))(x)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(dim // self.heads)
        causal = jnp.tril(jnp.ones((length, length)))
        allowed = causal[None, None] * key_mask[:, None, None, :]
        weights = nn.softmax(scores - 1e9 * (1.0 - allowed), axis=-1)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, dim)
        return x + nn.Dense(dim)(mixed)


class CausalC(nn.Module):
    heads: int = 2

    @nn.compact
    def __call__(self, x, key_mask):
        batch, length, dim = x.shape
        qkv = nn.DenseGeneral((3, self.heads, dim // self.heads))(x)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(dim // self.heads)
        causal = jnp.tril(jnp.ones((length, length)))
        allowed = causal[None, None] * key_mask[:, None, None, :]
        kernel = jnp.exp(scores - scores.max(axis=-1, keepdims=True)) * allowed
        weights = kernel / (kernel.sum(axis=-1, keepdims=True) + 1e-6)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, dim)
        return x + nn.Dense(dim)(mixed)


def decode(layer):
    def run(params, x, key_mask):
        h = layer.apply(params, x, key_mask)
        return nn.LayerNorm(use_scale=False, use_bias=False).apply({}, h)

    return run


plant(
    "decoder layer",
    "attention",
    decode(Causal()),
    (decode(CausalB()), decode(CausalC())),
    lambda: (
        shapes_of(lambda k: Causal().init(k, jnp.zeros((1, 10, 8)), jnp.ones((1, 10))), key()),
        f32(3, 10, 8),
        f32(3, 10),
    ),
    where="weights = nn.softmax(scores * allowed, axis=-1)",
    axes={"x": ("batch", "length", None), "key_mask": ("batch", "length")},
)


# Actions squashed by a tanh.

SQUASH = {"mean": f32(6, 2), "log_std": f32(2)}


def squashed_sample(rng, params, obs):
    mean = obs @ params["mean"]
    std = jnp.exp(jnp.clip(params["log_std"], -5.0, 2.0))
    raw = mean + std * jax.random.normal(rng, mean.shape)
    action = jnp.tanh(raw)
    log_prob = -0.5 * ((raw - mean) / std) ** 2 - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi)
    log_prob = log_prob - jnp.log(1.0 - action**2)
    return action, log_prob.sum(axis=-1)


def squashed_sample_b(rng, params, obs):
    mean = obs @ params["mean"]
    std = jnp.exp(jnp.clip(params["log_std"], -5.0, 2.0))
    raw = mean + std * jax.random.normal(rng, mean.shape)
    action = jnp.tanh(raw)
    log_prob = -0.5 * ((raw - mean) / std) ** 2 - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi)
    log_prob = log_prob - 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return action, log_prob.sum(axis=-1)


def squashed_sample_c(rng, params, obs):
    mean = obs @ params["mean"]
    std = jnp.exp(jnp.clip(params["log_std"], -5.0, 2.0))
    raw = mean + std * jax.random.normal(rng, mean.shape)
    action = jnp.tanh(raw)
    log_prob = -0.5 * ((raw - mean) / std) ** 2 - jnp.log(std) - 0.5 * jnp.log(2 * jnp.pi)
    log_prob = log_prob - jnp.log(1.0 - action**2 + 1e-6)
    return action, log_prob.sum(axis=-1)


def entropy_of(sample):
    def loss(params, obs, rng):
        action, log_prob = sample(rng, params, obs)
        return jnp.mean(0.2 * log_prob + jnp.sum(action**2, axis=-1))

    return loss


plant(
    "squashed actions",
    "unstable logarithm",
    entropy_of(squashed_sample),
    (entropy_of(squashed_sample_b), entropy_of(squashed_sample_c)),
    lambda: (SQUASH, f32(50, 6), key()),
    where="log_prob = log_prob - jnp.log(1.0 - action**2)\n",
    axes={"obs": ("batch", None)},
    differentiate="params",
)


# Features that must vary.

ENCODER = {"w1": f32(10, 32), "w2": f32(32, 16)}


def encode(params, x):
    return jnp.maximum(jnp.maximum(x @ params["w1"], 0.0) @ params["w2"], 0.0)


def varied_loss(params, left, right):
    za, zb = encode(params, left), encode(params, right)
    invariance = jnp.mean((za - zb) ** 2)
    spread = 0.0
    for z in (za, zb):
        centered = z - z.mean(axis=0)
        spread = spread + jnp.mean(jax.nn.relu(1.0 - jnp.sqrt(jnp.mean(centered**2, axis=0))))
    return 25.0 * invariance + 25.0 * spread


def varied_loss_b(params, left, right):
    za, zb = encode(params, left), encode(params, right)
    invariance = jnp.mean((za - zb) ** 2)
    spread = 0.0
    for z in (za, zb):
        centered = z - z.mean(axis=0)
        spread = spread + jnp.mean(jax.nn.relu(1.0 - jnp.sqrt(jnp.mean(centered**2, axis=0) + 1e-4)))
    return 25.0 * invariance + 25.0 * spread


def varied_loss_c(params, left, right):
    za, zb = encode(params, left), encode(params, right)
    invariance = jnp.mean((za - zb) ** 2)
    spread = 0.0
    for z in (za, zb):
        variance = jnp.mean((z - z.mean(axis=0)) ** 2, axis=0)
        spread = spread + jnp.mean(jax.nn.relu(1.0 - variance))
    deviation = jax.lax.stop_gradient(jnp.sqrt(jnp.var(za, axis=0))).mean()
    return 25.0 * invariance / (1.0 + deviation) + 25.0 * spread


plant(
    "features that vary",
    "NaN gradient",
    varied_loss,
    (varied_loss_b, varied_loss_c),
    (ENCODER, f32(32, 10), f32(32, 10)),
    where="jnp.mean(jax.nn.relu(1.0 - jnp.sqrt(jnp.mean(centered**2, axis=0))))",
    axes={"left": ("batch", None), "right": ("batch", None)},
    differentiate="params",
)


# Stations that did not report.

WEATHER = {"w": f32(8, 5), "b": f32(5)}


def weather_step(params, x, readings):
    observed = ~jnp.isnan(readings)

    def loss_fn(p):
        predicted = jnp.tanh(x @ p["w"] + p["b"])
        errors = jnp.where(observed, (predicted - readings) ** 2, 0.0)
        return jnp.sum(errors) / jnp.maximum(observed.sum(), 1)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


def weather_step_b(params, x, readings):
    observed = ~jnp.isnan(readings)
    known = jnp.where(observed, readings, 0.0)

    def loss_fn(p):
        predicted = jnp.tanh(x @ p["w"] + p["b"])
        errors = (predicted - known) ** 2
        return jnp.sum(errors * observed) / jnp.maximum(observed.sum(), 1)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


def weather_step_c(params, x, readings):
    observed = ~jnp.isnan(readings)

    def loss_fn(p):
        predicted = jnp.tanh(x @ p["w"] + p["b"])
        errors = jnp.where(observed, predicted - readings, 0.0) ** 2
        return jnp.sum(errors) / jnp.maximum(observed.sum(), 1)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), loss


plant(
    "silent stations",
    "NaN from masks",
    weather_step,
    (weather_step_b, weather_step_c),
    (WEATHER, f32(24, 8), f32(24, 5)),
    where="errors = jnp.where(observed, (predicted - readings) ** 2, 0.0)",
    axes={"x": ("time", None), "readings": ("time", "stations")},
)
