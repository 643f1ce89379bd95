"""Attention, losses of classifiers, and numbers that become NaN."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []
add = CASES.append


# Attention over the queries.


class SelfAttention(nn.Module):
    heads: int = 4
    dim: int = 32

    @nn.compact
    def __call__(self, x):
        batch, length, _ = x.shape
        qkv = nn.Dense(3 * self.dim, use_bias=False)(x)
        q, k, v = jnp.split(qkv.reshape(batch, length, self.heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(causal, scores, -1e9)
        weights = jax.nn.softmax(scores, axis=2)
        out = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return nn.Dense(self.dim)(out.reshape(batch, length, -1))


class SelfAttentionB(nn.Module):
    heads: int = 4
    dim: int = 32

    @nn.compact
    def __call__(self, x):
        batch, length, _ = x.shape
        qkv = nn.Dense(3 * self.dim, use_bias=False)(x)
        q, k, v = jnp.split(qkv.reshape(batch, length, self.heads, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(causal, scores, -1e9)
        probs = jax.nn.softmax(scores, axis=-1)
        out = jnp.einsum("bhqk,bkhd->bqhd", probs, v)
        return nn.Dense(self.dim)(out.reshape(batch, length, -1))


def forward(module):
    def run(params, x):
        return module.apply(params, x)

    return run


add(
    Case(
        "softmax over queries",
        "attention",
        forward(SelfAttention()),
        (forward(SelfAttentionB()),),
        lambda: (shapes_of(SelfAttention().init, jax.random.key(0), jnp.zeros((1, 10, 32))), f32(2, 10, 32)),
        where="weights = jax.nn.softmax(scores, axis=2)",
        axes={"x": ("batch", "length", None)},
        source="attention from scratch in JAX: softmax over the wrong axis",
    )
)


# Softmax whose default axis is that of the heads after an einsum with the order changed.


def cross_attention(params, queries, context, context_mask):
    q = jnp.einsum("btd,dhk->bthk", queries, params["q"])
    k = jnp.einsum("bsd,dhk->bshk", context, params["k"])
    v = jnp.einsum("bsd,dhk->bshk", context, params["v"])
    logits = jnp.einsum("bthk,bshk->btsh", q, k) * q.shape[-1] ** -0.5
    logits = jnp.where(context_mask[:, None, :, None], logits, jnp.finfo(logits.dtype).min)
    attn = jax.nn.softmax(logits)
    mixed = jnp.einsum("btsh,bshk->bthk", attn, v)
    return jnp.einsum("bthk,hkd->btd", mixed, params["o"])


def cross_attention_b(params, queries, context, context_mask):
    q = jnp.einsum("btd,dhk->bthk", queries, params["q"])
    k = jnp.einsum("bsd,dhk->bshk", context, params["k"])
    v = jnp.einsum("bsd,dhk->bshk", context, params["v"])
    logits = jnp.einsum("bthk,bshk->btsh", q, k) * q.shape[-1] ** -0.5
    logits = jnp.where(context_mask[:, None, :, None], logits, jnp.finfo(logits.dtype).min)
    attn = jax.nn.softmax(logits, axis=2)
    mixed = jnp.einsum("btsh,bshk->bthk", attn, v)
    return jnp.einsum("bthk,hkd->btd", mixed, params["o"])


PROJ = {"q": f32(24, 4, 6), "k": f32(24, 4, 6), "v": f32(24, 4, 6), "o": f32(4, 6, 24)}
add(
    Case(
        "softmax over heads",
        "attention",
        cross_attention,
        (cross_attention_b,),
        (PROJ, f32(2, 7, 24), f32(2, 9, 24), flags(2, 9)),
        where="attn = jax.nn.softmax(logits)\n",
        axes={"queries": ("batch", "target", None), "context": ("batch", "source", None)},
        source="Perceiver-like ports: the default axis of softmax",
    )
)


# The scale is applied to the weights.


def head(q, k, v, mask):
    scores = q @ k.T
    scores = scores + jnp.where(mask, 0.0, -1e9)
    weights = jax.nn.softmax(scores, axis=-1) / jnp.sqrt(k.shape[-1])
    return weights @ v


def head_b(q, k, v, mask):
    scores = q @ k.T / jnp.sqrt(k.shape[-1])
    scores = scores + jnp.where(mask, 0.0, -1e9)
    return jax.nn.softmax(scores, axis=-1) @ v


def multi_head(one):
    def run(q, k, v, mask):
        return jax.vmap(jax.vmap(one, in_axes=(0, 0, 0, None)), in_axes=(0, 0, 0, 0))(q, k, v, mask)

    return run


add(
    Case(
        "scale after softmax",
        "attention",
        multi_head(head),
        (multi_head(head_b),),
        (f32(2, 4, 12, 8), f32(2, 4, 12, 8), f32(2, 4, 12, 8), flags(2, 12, 12)),
        where="weights = jax.nn.softmax(scores, axis=-1) / jnp.sqrt(k.shape[-1])",
        axes={"q": ("batch", "heads", "target", None), "k": ("batch", "heads", "source", None)},
        source="transformers from scratch: where the scale goes",
    )
)


# The mask is applied to probabilities.


def decoder_attention(params, x, pad):
    q, k, v = (x @ params[n] for n in "qkv")
    length = x.shape[1]
    mask = jnp.tril(jnp.ones((length, length))) * pad[:, None, :]
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k) / jnp.sqrt(q.shape[-1]), axis=-1)
    weights = weights * mask
    return jnp.einsum("bts,bsd->btd", weights, v) @ params["o"]


def decoder_attention_b(params, x, pad):
    q, k, v = (x @ params[n] for n in "qkv")
    length = x.shape[1]
    mask = jnp.tril(jnp.ones((length, length))) * pad[:, None, :]
    scores = jnp.einsum("btd,bsd->bts", q, k) / jnp.sqrt(q.shape[-1])
    weights = jax.nn.softmax(jnp.where(mask > 0, scores, -1e9), axis=-1)
    return jnp.einsum("bts,bsd->btd", weights, v) @ params["o"]


add(
    Case(
        "mask after softmax",
        "attention",
        decoder_attention,
        (decoder_attention_b,),
        ({n: f32(16, 16) for n in "qkvo"}, f32(3, 11, 16), f32(3, 11)),
        where="weights = weights * mask",
        axes={"x": ("batch", "length", None), "pad": ("batch", "length")},
        source="mini GPTs in JAX: weights that no longer sum to one",
    )
)


# Additive mask of -inf, doubled by a second mask.


def masked_scores(scores, valid):
    length = scores.shape[-1]
    neg = -jnp.inf
    causal = jnp.where(jnp.tril(jnp.ones((length, length), bool)), 0.0, neg)
    padding = jnp.where(valid[:, None, :], 0.0, neg)
    shifted = scores + causal + padding
    shifted = shifted - shifted.max(axis=-1, keepdims=True)
    e = jnp.exp(shifted)
    return e / e.sum(axis=-1, keepdims=True)


def masked_scores_b(scores, valid):
    length = scores.shape[-1]
    keep = jnp.tril(jnp.ones((length, length), bool)) & valid[:, None, :]
    e = jnp.where(keep, jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True))), 0.0)
    return e / jnp.maximum(e.sum(axis=-1, keepdims=True), 1e-9)


def attend(weigh):
    def run(q, k, v, valid):
        return jnp.einsum("bts,bsd->btd", weigh(jnp.einsum("btd,bsd->bts", q, k) / 4.0, valid), v)

    return run


add(
    Case(
        "rows without keys",
        "NaN from masks",
        attend(masked_scores),
        (attend(masked_scores_b),),
        (f32(2, 8, 16), f32(2, 8, 16), f32(2, 8, 16), flags(2, 8)),
        where="shifted = shifted - shifted.max(axis=-1, keepdims=True)",
        axes={"q": ("batch", "target", None), "valid": ("batch", "source")},
        source="tracel-ai/burn#4697, PyTorch safe softmax: rows in which all is masked",
    )
)


# Softmax twice.


class Classifier(nn.Module):
    classes: int = 10

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(64)(x))
        return nn.softmax(nn.Dense(self.classes)(x))


class ClassifierB(nn.Module):
    classes: int = 10

    @nn.compact
    def __call__(self, x):
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(64)(x))
        return nn.Dense(self.classes)(x)


def classifier_step(model):
    def train_step(params, images, labels):
        def loss_fn(p):
            logits = model.apply(p, images)
            one_hot = jax.nn.one_hot(labels, 10)
            return optax.softmax_cross_entropy(logits, one_hot).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        accuracy = jnp.mean(jnp.argmax(logits, -1) == labels)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss, accuracy

    return train_step


def image_args(model):
    return lambda: (
        shapes_of(model.init, jax.random.key(0), jnp.zeros((1, 14, 14, 1))),
        f32(32, 14, 14, 1),
        i32(32),
    )


add(
    Case(
        "softmax in the model",
        "softmax twice",
        classifier_step(Classifier()),
        (classifier_step(ClassifierB()),),
        image_args(Classifier()),
        where="return nn.softmax(nn.Dense(self.classes)(x))",
        axes={"images": ("batch", "height", "width", "channels"), "labels": ("batch",)},
        source="Flax discussions: a model that ends in softmax and a loss of logits",
    )
)


# Log-softmax after log-softmax in policy gradients.


def policy_log_probs(params, obs):
    logits = jnp.tanh(obs @ params["w1"]) @ params["w2"]
    return jax.nn.log_softmax(logits)


def entropy_bonus(params, obs, actions, advantages):
    pi = policy_log_probs(params, obs)
    probs = jax.nn.softmax(jnp.exp(pi))
    entropy = -jnp.sum(probs * jnp.log(probs + 1e-8), axis=-1)
    taken = jnp.take_along_axis(pi, actions[:, None], axis=-1)[:, 0]
    return -jnp.mean(taken * advantages + 0.01 * entropy)


def entropy_bonus_b(params, obs, actions, advantages):
    pi = policy_log_probs(params, obs)
    probs = jnp.exp(pi)
    entropy = -jnp.sum(probs * pi, axis=-1)
    taken = jnp.take_along_axis(pi, actions[:, None], axis=-1)[:, 0]
    return -jnp.mean(taken * advantages + 0.01 * entropy)


add(
    Case(
        "entropy of probabilities",
        "softmax twice",
        entropy_bonus,
        (entropy_bonus_b,),
        ({"w1": f32(6, 32), "w2": f32(32, 4)}, f32(64, 6), i32(64), f32(64)),
        where="probs = jax.nn.softmax(jnp.exp(pi))",
        axes={"obs": ("batch", None), "actions": ("batch",), "advantages": ("batch",)},
        differentiate="params",
        source="policy gradients in JAX: what is a logit and what a probability",
    )
)


# Sigmoid twice.


def link_scores(params, src, dst):
    h = jnp.concatenate([src, dst], axis=-1)
    h = jax.nn.relu(h @ params["w1"] + params["b1"])
    return jax.nn.sigmoid(h @ params["w2"])[:, 0]


def link_scores_b(params, src, dst):
    h = jnp.concatenate([src, dst], axis=-1)
    h = jax.nn.relu(h @ params["w1"] + params["b1"])
    return (h @ params["w2"])[:, 0]


def link_loss(score):
    def loss(params, src, dst, labels):
        return optax.sigmoid_binary_cross_entropy(score(params, src, dst), labels).mean()

    return jax.value_and_grad(loss)


LINK = {"w1": f32(20, 32), "b1": f32(32), "w2": f32(32, 1)}
add(
    Case(
        "sigmoid of scores",
        "softmax twice",
        link_loss(link_scores),
        (link_loss(link_scores_b),),
        (LINK, f32(40, 10), f32(40, 10), f32(40)),
        where='return jax.nn.sigmoid(h @ params["w2"])[:, 0]',
        axes={"src": ("batch", None), "dst": ("batch", None), "labels": ("batch",)},
        source="jraph link prediction users: sigmoid before sigmoid_binary_cross_entropy",
    )
)


# Discriminator's loss.


def discriminator(params, x):
    return jax.nn.leaky_relu(x @ params["w1"]) @ params["w2"]


def gan_loss(params, real, fake):
    p_real = jax.nn.sigmoid(discriminator(params, real))
    p_fake = jax.nn.sigmoid(discriminator(params, fake))
    return -jnp.mean(jnp.log(p_real)) - jnp.mean(jnp.log(1.0 - p_fake))


def gan_loss_b(params, real, fake):
    score_real = discriminator(params, real)
    score_fake = discriminator(params, fake)
    return -jnp.mean(jax.nn.log_sigmoid(score_real)) - jnp.mean(jax.nn.log_sigmoid(-score_fake))


add(
    Case(
        "discriminator",
        "unstable logarithm",
        lambda params, real, fake: jax.grad(gan_loss)(params, real, fake),
        (lambda params, real, fake: jax.grad(gan_loss_b)(params, real, fake),),
        ({"w1": f32(16, 32), "w2": f32(32, 1)}, f32(24, 16), f32(24, 16)),
        where="return -jnp.mean(jnp.log(p_real)) - jnp.mean(jnp.log(1.0 - p_fake))",
        axes={"real": ("batch", None), "fake": ("batch", None)},
        source="GANs and GAIL in JAX: log(1 - sigmoid)",
    )
)


# log(sum(exp)).


def mixture_log_prob(params, x):
    means, log_scales, logits = params["means"], params["log_scales"], params["logits"]
    z = (x[:, None, :] - means) / jnp.exp(log_scales)
    comp = jnp.sum(-0.5 * z**2 - log_scales - 0.5 * jnp.log(2 * jnp.pi), axis=-1)
    weights = jax.nn.log_softmax(logits)
    return jnp.log(jnp.sum(jnp.exp(comp + weights), axis=-1))


def mixture_log_prob_b(params, x):
    means, log_scales, logits = params["means"], params["log_scales"], params["logits"]
    z = (x[:, None, :] - means) / jnp.exp(log_scales)
    comp = jnp.sum(-0.5 * z**2 - log_scales - 0.5 * jnp.log(2 * jnp.pi), axis=-1)
    return jax.scipy.special.logsumexp(comp + jax.nn.log_softmax(logits), axis=-1)


def negative_log_likelihood(log_prob):
    def loss(params, x):
        return -jnp.mean(log_prob(params, x))

    return jax.value_and_grad(loss)


MIXTURE = {"means": f32(5, 3), "log_scales": f32(5, 3), "logits": f32(5)}
add(
    Case(
        "mixture density",
        "unstable logarithm",
        negative_log_likelihood(mixture_log_prob),
        (negative_log_likelihood(mixture_log_prob_b),),
        (MIXTURE, f32(100, 3)),
        where="return jnp.log(jnp.sum(jnp.exp(comp + weights), axis=-1))",
        axes={"x": ("batch", None)},
        source="mixture density networks in JAX: log of a sum of exponentials",
    )
)


# Pairwise distances.


def pair_energy(positions, charges):
    delta = positions[:, None, :] - positions[None, :, :]
    dist = jnp.sqrt(jnp.sum(delta**2, axis=-1))
    inv = jnp.where(jnp.eye(positions.shape[0], dtype=bool), 0.0, 1.0 / dist)
    return 0.5 * jnp.sum(charges[:, None] * charges[None, :] * inv)


def pair_energy_b(positions, charges):
    delta = positions[:, None, :] - positions[None, :, :]
    same = jnp.eye(positions.shape[0], dtype=bool)
    square = jnp.where(same, 1.0, jnp.sum(delta**2, axis=-1))
    inv = jnp.where(same, 0.0, 1.0 / jnp.sqrt(square))
    return 0.5 * jnp.sum(charges[:, None] * charges[None, :] * inv)


def forces(energy):
    def run(positions, charges):
        return -jax.grad(energy)(positions, charges)

    return run


add(
    Case(
        "coulomb forces",
        "NaN gradient",
        forces(pair_energy),
        (forces(pair_energy_b),),
        (f32(12, 3), f32(12)),
        where="dist = jnp.sqrt(jnp.sum(delta**2, axis=-1))",
        axes={"positions": ("particles", None), "charges": ("particles",)},
        source="jax#654, jax-md#63: distances of particles from themselves",
    )
)


# Norm of a residual that is zero at the start.


def lora_delta(params):
    return params["a"] @ params["b"]


def finetune_loss(params, base, x, y):
    pred = x @ (base + lora_delta(params))
    reg = jnp.linalg.norm(lora_delta(params))
    return jnp.mean((pred - y) ** 2) + 1e-4 * reg


def finetune_loss_b(params, base, x, y):
    pred = x @ (base + lora_delta(params))
    decay = jnp.sum(lora_delta(params) ** 2)
    return jnp.mean((pred - y) ** 2) + 1e-4 * decay


def finetune(loss):
    def run(rng, base, x, y):
        params = {"a": jax.random.normal(rng, (16, 2)) / 4.0, "b": jnp.zeros((2, 8))}

        def step(p, _):
            value, grads = jax.value_and_grad(loss)(p, base, x, y)
            return jax.tree.map(lambda w, g: w - 0.01 * g, p, grads), value

        return jax.lax.scan(step, params, None, length=20)

    return run


add(
    Case(
        "norm of a zero update",
        "NaN gradient",
        finetune(finetune_loss),
        (finetune(finetune_loss_b),),
        (key(), f32(16, 8), f32(32, 16), f32(32, 8)),
        where="reg = jnp.linalg.norm(lora_delta(params))",
        axes={"x": ("batch", None), "y": ("batch", None)},
        source="jax#3058, jax#4177: the norm's gradient at zero",
    )
)


# where after log.


def poisson_term(rate, counts):
    ll = counts * jnp.log(rate) - rate
    return jnp.where(rate > 0, ll, 0.0)


def poisson_term_b(rate, counts):
    safe = jnp.where(rate > 0, rate, 1.0)
    return jnp.where(rate > 0, counts * jnp.log(safe) - rate, 0.0)


def spike_loss(term):
    def loss(params, stimulus, counts):
        rate = jax.nn.relu(stimulus @ params["filters"] + params["bias"])
        return -jnp.mean(term(rate, counts))

    return lambda params, stimulus, counts: jax.grad(loss)(params, stimulus, counts)


add(
    Case(
        "rates of zero",
        "NaN gradient",
        spike_loss(poisson_term),
        (spike_loss(poisson_term_b),),
        ({"filters": f32(10, 4), "bias": f32(4)}, f32(50, 10), f32(50, 4)),
        where="ll = counts * jnp.log(rate) - rate",
        axes={"stimulus": ("time", None), "counts": ("time", "neurons")},
        source="jax#5798, jax#2630: where does not stop the gradient of the other branch",
    )
)


# Entropy with a mask of actions.


def masked_entropy(logits, legal):
    masked = jnp.where(legal, logits, -jnp.inf)
    log_p = jax.nn.log_softmax(masked)
    return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)


def masked_entropy_b(logits, legal):
    masked = jnp.where(legal, logits, -1e9)
    logp = jax.nn.log_softmax(masked)
    return -jnp.sum(jnp.where(legal, jnp.exp(logp) * logp, 0.0), axis=-1)


def game_policy_loss(entropy):
    def loss(params, obs, legal, target):
        logits = jnp.tanh(obs @ params["w1"]) @ params["w2"]
        ce = -jnp.sum(target * jax.nn.log_softmax(jnp.where(legal, logits, -1e9)), axis=-1)
        return jnp.mean(ce - 0.01 * entropy(logits, legal))

    return jax.grad(loss)


add(
    Case(
        "entropy of legal moves",
        "NaN from masks",
        game_policy_loss(masked_entropy),
        (game_policy_loss(masked_entropy_b),),
        ({"w1": f32(12, 32), "w2": f32(32, 7)}, f32(20, 12), flags(20, 7), f32(20, 7)),
        where="return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)",
        axes={"obs": ("batch", None), "legal": ("batch", "actions"), "target": ("batch", "actions")},
        source="action masks in pgx and Jumanji agents: 0 * -inf",
    )
)


# Cosine similarity of rows that may be padding.


def cosine(a, b):
    a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
    b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
    return a @ b.T


def cosine_b(a, b):
    unit = lambda v: v * jax.lax.rsqrt(jnp.sum(v**2, axis=-1, keepdims=True) + 1e-8)
    return unit(a) @ unit(b).T


def contrastive(similarity):
    def loss(params, images, texts, image_mask):
        zi = (images * image_mask[:, None]) @ params["image"]
        logits = similarity(zi, texts @ params["text"]) / 0.07
        return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.arange(logits.shape[0])).mean()

    return jax.grad(loss)


add(
    Case(
        "cosine of padding",
        "NaN gradient",
        contrastive(cosine),
        (contrastive(cosine_b),),
        ({"image": f32(24, 16), "text": f32(20, 16)}, f32(18, 24), f32(18, 20), f32(18)),
        where="a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)",
        axes={"images": ("batch", None), "texts": ("texts", None), "image_mask": ("batch",)},
        source="CLIP in JAX: rows of padding are normalized",
    )
)


# Mean over tokens that may be none.


def segment_pool(tokens, mask):
    total = jnp.sum(tokens * mask[..., None], axis=1)
    return total / mask.sum(axis=1, keepdims=True)


def segment_pool_b(tokens, mask):
    total = jnp.sum(tokens * mask[..., None], axis=1)
    return total / jnp.maximum(mask.sum(axis=1, keepdims=True), 1.0)


def sentence_loss(pool):
    def loss(params, ids, labels):
        mask = (ids != 0).astype(jnp.float32)
        pooled = pool(params["embed"][ids], mask)
        logits = pooled @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return jax.value_and_grad(loss)


add(
    Case(
        "pooling of nothing",
        "NaN from masks",
        sentence_loss(segment_pool),
        (sentence_loss(segment_pool_b),),
        ({"embed": f32(100, 16), "out": f32(16, 5)}, i32(8, 20), i32(8)),
        where="return total / mask.sum(axis=1, keepdims=True)",
        axes={"ids": ("batch", "length"), "labels": ("batch",)},
        source="sentence encoders in Flax: an empty sentence",
    )
)


# Targets of a language model.


def causal_block(params, x):
    length = x.shape[1]
    scores = jnp.einsum("btd,bsd->bts", x @ params["q"], x @ params["k"]) / jnp.sqrt(x.shape[-1])
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    return x + jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores, -1), x @ params["v"])


def lm_loss(params, tokens):
    x = params["embed"][tokens]
    logits = causal_block(params, x) @ params["embed"].T
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
    mask = (tokens > 0).astype(jnp.float32)
    return jnp.sum(losses * mask) / jnp.maximum(mask.sum(), 1.0)


def lm_loss_b(params, tokens):
    x = params["embed"][tokens[:, :-1]]
    logits = causal_block(params, x) @ params["embed"].T
    following = tokens[:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, following)
    mask = (following > 0).astype(jnp.float32)
    return jnp.sum(losses * mask) / jnp.maximum(mask.sum(), 1.0)


LM = {"embed": f32(64, 16), "q": f32(16, 16), "k": f32(16, 16), "v": f32(16, 16)}
add(
    Case(
        "tokens predict themselves",
        "off by one",
        jax.value_and_grad(lm_loss),
        (jax.value_and_grad(lm_loss_b),),
        (LM, i32(4, 16)),
        where="losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)",
        axes={"tokens": ("batch", "length")},
        source="nanoGPT ports: the targets are not shifted",
    )
)


# Layer norm over the batch.


class Block(eqx.Module):
    weight: jax.Array
    scale: jax.Array
    offset: jax.Array

    def __call__(self, x):
        mean = jnp.mean(x, axis=0, keepdims=True)
        var = jnp.var(x, axis=0, keepdims=True)
        normed = (x - mean) * jax.lax.rsqrt(var + 1e-6) * self.scale + self.offset
        return x + jax.nn.gelu(normed @ self.weight)


class BlockB(eqx.Module):
    weight: jax.Array
    scale: jax.Array
    offset: jax.Array

    def __call__(self, x):
        center = jnp.mean(x, axis=-1, keepdims=True)
        var = jnp.var(x, axis=-1, keepdims=True)
        normed = (x - center) * jax.lax.rsqrt(var + 1e-6) * self.scale + self.offset
        return x + jax.nn.gelu(normed @ self.weight)


def token_mixer(block):
    def run(weight, scale, offset, tokens):
        layer = block(weight, scale, offset)
        return jax.vmap(layer)(tokens)

    return run


add(
    Case(
        "layer norm of tokens",
        "wrong axis",
        token_mixer(Block),
        (token_mixer(BlockB),),
        (f32(32, 32), f32(32), f32(32), f32(4, 10, 32)),
        where="mean = jnp.mean(x, axis=0, keepdims=True)",
        axes={"tokens": ("batch", "length", "features")},
        source="Equinox transformers: layer norm under vmap over the tokens",
    )
)


# Heads.


def split_heads(x, heads):
    batch, length, dim = x.shape
    return x.reshape(batch, heads, length, dim // heads)


def split_heads_b(x, heads):
    batch, length, dim = x.shape
    return x.reshape(batch, length, heads, dim // heads).transpose(0, 2, 1, 3)


def merge_heads(x):
    batch, heads, length, dim = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * dim)


def mha(split):
    def run(params, x):
        q, k, v = (split(x @ params[n], 4) for n in "qkv")
        scores = jnp.einsum("bhtd,bhsd->bhts", q, k) / jnp.sqrt(q.shape[-1])
        out = jnp.einsum("bhts,bhsd->bhtd", jax.nn.softmax(scores, axis=-1), v)
        return merge_heads(out) @ params["o"]

    return run


add(
    Case(
        "split into heads",
        "reshape for transpose",
        mha(split_heads),
        (mha(split_heads_b),),
        ({n: f32(32, 32) for n in "qkvo"}, f32(2, 12, 32)),
        where="return x.reshape(batch, heads, length, dim // heads)",
        axes={"x": ("batch", "length", None)},
        source="multi-head attention by hand: heads by reshape alone",
    )
)
