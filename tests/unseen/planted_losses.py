"""Mistakes planted into losses, masks and gradients, with right programs that look like them."""

import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


MLP = {"w1": f32(6, 16), "w2": f32(16, 1)}


def mlp(params, x):
    return jnp.tanh(x @ params["w1"]) @ params["w2"]


# Sample weights.


def survival_loss(params, x, times, censored):
    log_rate = mlp(params, x)
    nll = jnp.exp(log_rate) * times - log_rate * (1.0 - censored)
    return nll.mean()


def survival_loss_b(params, x, times, censored):
    log_hazard = mlp(params, x)[:, 0]
    nll = jnp.exp(log_hazard) * times - log_hazard * (1.0 - censored)
    return nll.mean()


def ranking_loss(params, x, times, censored):
    risk = mlp(params, x)
    before = (times[:, None] < times[None, :]) & (censored[:, None] < 0.5)
    gap = risk - risk[:, 0][None, :]
    return jnp.sum(jnp.where(before, jax.nn.softplus(-gap), 0.0)) / jnp.maximum(before.sum(), 1)


plant(
    "hazards",
    "(N,) meets (N, 1)",
    survival_loss,
    (survival_loss_b, ranking_loss),
    (MLP, f32(50, 6), f32(50), f32(50)),
    where="nll = jnp.exp(log_rate) * times - log_rate * (1.0 - censored)",
    axes={"x": ("batch", None), "times": ("batch",), "censored": ("batch",)},
    differentiate="params",
)


# Errors of a time series.


def coverage(params, x, y):
    mean = mlp(params, x)
    inside = jnp.abs(mean - y) < 0.2
    return inside.mean(), jnp.mean(jnp.square(mean.squeeze(-1) - y))


def coverage_b(params, x, y):
    center = mlp(params, x).squeeze(-1)
    inside = jnp.abs(center - y) < 0.2
    return inside.mean(), jnp.mean(jnp.square(center - y))


def kernel_matrix(params, x, y):
    z = mlp(params, x)
    gram = jnp.exp(-jnp.square(z - z[:, 0]))
    return gram @ y / x.shape[0], jnp.mean(jnp.square(z.squeeze(-1) - y))


plant(
    "interval coverage",
    "(N,) meets (N, 1)",
    coverage,
    (coverage_b, kernel_matrix),
    (MLP, f32(60, 6), f32(60)),
    where="inside = jnp.abs(mean - y) < 0.2",
    axes={"x": ("batch", None), "y": ("batch",)},
)


# Bootstrap of a value function.


def td_zero(params, obs, reward, next_obs):
    value = mlp(params, obs)[:, 0]
    following = mlp(params, next_obs)[:, 0]
    return jnp.mean(optax.huber_loss(value, reward + 0.9 * following))


def td_zero_b(params, obs, reward, next_obs):
    value = mlp(params, obs)[:, 0]
    following = jax.lax.stop_gradient(mlp(params, next_obs)[:, 0])
    return jnp.mean(optax.huber_loss(value, reward + 0.9 * following))


def latent_consistency(params, obs, reward, next_obs):
    value = mlp(params, obs)[:, 0]
    reward_head = mlp(params, next_obs)[:, 0]
    return jnp.mean(optax.huber_loss(value, reward)) + jnp.mean(optax.huber_loss(reward_head, 0.9 * reward))


plant(
    "td zero",
    "no stop_gradient",
    jax.grad(td_zero),
    (jax.grad(td_zero_b), jax.grad(latent_consistency)),
    (MLP, f32(32, 6), f32(32), f32(32, 6)),
    where="following = mlp(params, next_obs)[:, 0]\n    return jnp.mean(optax.huber_loss",
    axes={"obs": ("batch", None), "reward": ("batch",), "next_obs": ("batch", None)},
)


# The prediction is stopped and not the target.


def frozen(params, target_params, x, noise):
    student = jax.lax.stop_gradient(mlp(params, x + noise))
    teacher = mlp(target_params, x)
    return jnp.mean((student - teacher) ** 2)


def frozen_b(params, target_params, x, noise):
    student = mlp(params, x + noise)
    tutor = jax.lax.stop_gradient(mlp(target_params, x))
    return jnp.mean((student - tutor) ** 2)


def frozen_c(params, target_params, x, noise):
    features = jax.lax.stop_gradient(jnp.tanh(x @ target_params["w1"]))
    student = mlp(params, x + noise)
    return jnp.mean((student - features @ target_params["w2"]) ** 2)


plant(
    "student and teacher",
    "no gradient",
    jax.grad(frozen),
    (jax.grad(frozen_b), jax.grad(frozen_c)),
    (MLP, MLP, f32(32, 6), f32(32, 6)),
    where="student = jax.lax.stop_gradient(mlp(params, x + noise))",
    axes={"x": ("batch", None), "noise": ("batch", None)},
)


# Straight-through.


def quantize_loss(params, x):
    z = jnp.tanh(x @ params["w1"])
    levels = jnp.round(z * 4.0) / 4.0
    return jnp.mean((levels @ params["w2"]) ** 2)


def quantize_loss_b(params, x):
    z = jnp.tanh(x @ params["w1"])
    rounded = jnp.round(z * 4.0) / 4.0
    return jnp.mean(((z + jax.lax.stop_gradient(rounded - z)) @ params["w2"]) ** 2)


def quantize_loss_c(params, x):
    z = jnp.tanh(x @ params["w1"])
    z = z + (jnp.tanh(4.0 * z) - z)
    error = jnp.abs(jax.lax.stop_gradient(jnp.round(z) - z)).mean()
    return jnp.mean((z @ params["w2"]) ** 2) + 0.1 * error


plant(
    "quantized code",
    "no gradient",
    jax.grad(quantize_loss),
    (jax.grad(quantize_loss_b), jax.grad(quantize_loss_c)),
    ({"w1": f32(6, 16), "w2": f32(16, 1)}, f32(32, 6)),
    where="levels = jnp.round(z * 4.0) / 4.0",
    axes={"x": ("batch", None)},
)


# The loss is an accuracy.


def accuracy_loss(params, x, labels):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    hits = jnp.argmax(logits, axis=-1) == labels
    return 1.0 - jnp.mean(hits.astype(jnp.float32))


def accuracy_loss_b(params, x, labels):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def accuracy_loss_c(params, x, labels):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    wrong_ones = (jnp.argmax(logits, axis=-1) != labels).astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.mean(losses * (0.5 + wrong_ones))


CLASSIFIER = {"w1": f32(6, 16), "w2": f32(16, 5)}
plant(
    "error rate",
    "no gradient",
    jax.grad(accuracy_loss),
    (jax.grad(accuracy_loss_b), jax.grad(accuracy_loss_c)),
    (CLASSIFIER, f32(32, 6), i32(32)),
    where="hits = jnp.argmax(logits, axis=-1) == labels",
    axes={"x": ("batch", None), "labels": ("batch",)},
)


# Softmax over examples.


def routed(params, x, labels):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    probs = jax.nn.softmax(logits, axis=0)
    picked = jnp.take_along_axis(probs, labels[:, None], axis=1)[:, 0]
    return -jnp.mean(jnp.log(picked + 1e-9))


def routed_b(params, x, labels):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    chances = jax.nn.softmax(logits, axis=1)
    picked = jnp.take_along_axis(chances, labels[:, None], axis=1)[:, 0]
    return -jnp.mean(jnp.log(picked + 1e-9))


def slots(params, x, labels):
    logits = (jnp.tanh(x @ params["w1"]) @ params["w2"]).T
    assignment = jax.nn.softmax(logits, axis=0)
    assignment = assignment / jnp.sum(assignment, axis=1, keepdims=True)
    return jnp.mean((assignment @ x) ** 2) * jnp.mean(labels >= 0)


plant(
    "class probabilities",
    "softmax axis",
    routed,
    (routed_b, slots),
    (CLASSIFIER, f32(32, 6), i32(32)),
    where="probs = jax.nn.softmax(logits, axis=0)",
    axes={"x": ("batch", None), "labels": ("batch",)},
    differentiate="params",
)


# Attention whose einsum is transposed.


def pooling(params, x, queries):
    keys = x @ params["k"]
    scores = jnp.einsum("bsd,btd->bst", keys, queries) / jnp.sqrt(keys.shape[-1])
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bst,bsd->btd", weights, x @ params["v"])


def pooling_b(params, x, queries):
    keys = x @ params["k"]
    scores = jnp.einsum("bsd,btd->bst", keys, queries) / jnp.sqrt(keys.shape[-1])
    attention = jax.nn.softmax(scores, axis=1)
    return jnp.einsum("bst,bsd->btd", attention, x @ params["v"])


def pooling_c(params, x, queries):
    keys = x @ params["k"]
    scores = jnp.einsum("btd,bsd->bts", queries, keys) / jnp.sqrt(keys.shape[-1])
    attention = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bts,bsd->btd", attention, x @ params["v"])


plant(
    "pooling by attention",
    "softmax axis",
    pooling,
    (pooling_b, pooling_c),
    ({"k": f32(12, 8), "v": f32(12, 8)}, f32(3, 20, 12), f32(3, 5, 8)),
    where="weights = jax.nn.softmax(scores, axis=-1)",
    axes={"x": ("batch", "source", None), "queries": ("batch", "target", None)},
)


# Distillation.


def distill(params, teacher_logits, x, temperature=2.0):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    soft = jax.nn.softmax(logits / temperature)
    target = jax.nn.softmax(teacher_logits / temperature)
    return optax.softmax_cross_entropy(soft, target).mean()


def distill_b(params, teacher_logits, x, temperature=2.0):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    target = jax.nn.softmax(teacher_logits / temperature)
    return optax.softmax_cross_entropy(logits / temperature, target).mean()


def distill_c(params, teacher_logits, x, temperature=2.0):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    log_soft = jax.nn.log_softmax(logits / temperature)
    target = jax.nn.softmax(teacher_logits / temperature)
    return -jnp.mean(jnp.sum(target * log_soft, axis=-1)) - jnp.mean(jnp.sum(target * jnp.log(target + 1e-9), -1))


plant(
    "distillation",
    "softmax twice",
    distill,
    (distill_b, distill_c),
    (CLASSIFIER, f32(32, 5), f32(32, 6)),
    where="return optax.softmax_cross_entropy(soft, target).mean()",
    axes={"x": ("batch", None), "teacher_logits": ("batch", "classes")},
    differentiate="params",
)


# Gates.


def gated(params, x):
    gate = jax.nn.sigmoid(x @ params["w1"])
    mixed = jax.nn.sigmoid(gate) * jnp.tanh(x @ params["w1"])
    return jnp.mean((mixed @ params["w2"]) ** 2)


def gated_b(params, x):
    gate = jax.nn.sigmoid(x @ params["w1"])
    return jnp.mean(((gate * jnp.tanh(x @ params["w1"])) @ params["w2"]) ** 2)


def gated_c(params, x):
    hidden = jax.nn.sigmoid(x @ params["w1"])
    out = jax.nn.sigmoid(hidden @ params["w2"])
    return jnp.mean(out**2)


plant(
    "gate",
    "softmax twice",
    gated,
    (gated_b, gated_c),
    (MLP, f32(32, 6)),
    where='mixed = jax.nn.sigmoid(gate) * jnp.tanh(x @ params["w1"])',
    axes={"x": ("batch", None)},
    differentiate="params",
)


# log of softmax.


def kl_to_prior(params, x, prior):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    q = jax.nn.softmax(logits * 10.0)
    return jnp.mean(jnp.sum(q * (jnp.log(q) - jnp.log(prior + 1e-6)), axis=-1))


def kl_to_prior_b(params, x, prior):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    log_q = jax.nn.log_softmax(logits * 10.0)
    return jnp.mean(jnp.sum(jnp.exp(log_q) * (log_q - jnp.log(prior + 1e-6)), axis=-1))


def kl_to_prior_c(params, x, prior):
    q = jax.nn.softplus(x @ params["w1"] @ params["w2"]) + 1e-3
    q = q / q.sum(axis=-1, keepdims=True)
    return jnp.mean(jnp.sum(q * (jnp.log(q) - jnp.log(prior + 1e-6)), axis=-1))


plant(
    "divergence from a prior",
    "unstable logarithm",
    kl_to_prior,
    (kl_to_prior_b, kl_to_prior_c),
    (CLASSIFIER, f32(32, 6), f32(5)),
    where="q = jax.nn.softmax(logits * 10.0)",
    axes={"x": ("batch", None)},
    differentiate="params",
)


# log(1 + exp).


def logistic(params, x, y):
    margin = y * mlp(params, x)[:, 0]
    return jnp.mean(jnp.log(1.0 + jnp.exp(-margin)))


def logistic_b(params, x, y):
    margin = y * mlp(params, x)[:, 0]
    return jnp.mean(jax.nn.softplus(-margin))


def logistic_c(params, x, y):
    margin = jnp.clip(y * mlp(params, x)[:, 0], -20.0, 20.0)
    return jnp.mean(jnp.log1p(jnp.exp(-margin)))


plant(
    "logistic margin",
    "unstable logarithm",
    logistic,
    (logistic_b, logistic_c),
    (MLP, f32(32, 6), f32(32)),
    where="return jnp.mean(jnp.log(1.0 + jnp.exp(-margin)))",
    axes={"x": ("batch", None), "y": ("batch",)},
    differentiate="params",
)


# Normalized weights of particles.


def reweigh(log_weights, particles):
    weights = jnp.exp(log_weights)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return jnp.einsum("np,npd->nd", weights, particles), jnp.log(weights.mean(axis=-1))


def reweigh_b(log_weights, particles):
    posterior = jax.nn.softmax(log_weights, axis=-1)
    evidence = jax.nn.logsumexp(log_weights, axis=-1) - jnp.log(log_weights.shape[-1])
    return jnp.einsum("np,npd->nd", posterior, particles), evidence


def reweigh_c(log_weights, particles):
    top = jax.lax.stop_gradient(log_weights.max(axis=-1, keepdims=True))
    raw = jnp.exp(log_weights - top)
    total = raw.sum(axis=-1, keepdims=True)
    return jnp.einsum("np,npd->nd", raw / total, particles), (jnp.log(total) + top)[:, 0]


plant(
    "importance weights",
    "unstable logarithm",
    reweigh,
    (reweigh_b, reweigh_c),
    (f32(8, 100), f32(8, 100, 3)),
    where="weights = weights / weights.sum(axis=-1, keepdims=True)",
    axes={"log_weights": ("batch", "particles"), "particles": ("batch", "particles", None)},
)


# Roots.


def speed_penalty(params, x):
    step = mlp(params, x[1:]) - mlp(params, x[:-1])
    lengths = jnp.sqrt(jnp.sum(step**2, axis=-1))
    return lengths.mean()


def speed_penalty_b(params, x):
    step = mlp(params, x[1:]) - mlp(params, x[:-1])
    return jnp.sqrt(jnp.sum(step**2, axis=-1) + 1e-8).mean()


def speed_penalty_c(params, x):
    step = mlp(params, x[1:]) - mlp(params, x[:-1])
    return jnp.sum(step**2, axis=-1).mean() + jnp.sqrt(1.0 + jnp.sum(params["w1"] ** 2))


plant(
    "lengths of steps",
    "NaN gradient",
    jax.grad(speed_penalty),
    (jax.grad(speed_penalty_b), jax.grad(speed_penalty_c)),
    (MLP, f32(20, 6)),
    where="lengths = jnp.sqrt(jnp.sum(step**2, axis=-1))",
    axes={"x": ("time", None)},
)


# Angles.


def angle_loss(params, a, b):
    u, v = a @ params["rot"], b
    cos = jnp.sum(u * v, -1) / (jnp.sqrt(jnp.sum(u**2, -1) + 1e-8) * jnp.sqrt(jnp.sum(v**2, -1) + 1e-8))
    angle = jnp.arccos(jnp.clip(cos, -1.0, 1.0))
    return jnp.mean(angle)


def angle_loss_b(params, a, b):
    u, v = a @ params["rot"], b
    cos = jnp.sum(u * v, -1) / (jnp.sqrt(jnp.sum(u**2, -1) + 1e-8) * jnp.sqrt(jnp.sum(v**2, -1) + 1e-8))
    return jnp.mean(jnp.arccos(jnp.clip(cos, -1.0 + 1e-6, 1.0 - 1e-6)))


def angle_loss_c(params, a, b):
    u, v = a @ params["rot"], b
    dots = jnp.sum(u * v, -1)
    return jnp.mean(1.0 - jnp.clip(dots, -1.0, 1.0))


plant(
    "geodesic distance",
    "NaN gradient",
    angle_loss,
    (angle_loss_b, angle_loss_c),
    ({"rot": f32(3, 3)}, f32(20, 3), f32(20, 3)),
    where="angle = jnp.arccos(jnp.clip(cos, -1.0, 1.0))",
    axes={"a": ("batch", None), "b": ("batch", None)},
    differentiate="params",
)


# where.


def clipped_log(params, x):
    rate = jax.nn.relu(mlp(params, x))
    score = jnp.where(rate > 0, jnp.log(rate), -10.0)
    return jnp.mean(score)


def clipped_log_b(params, x):
    rate = jax.nn.relu(mlp(params, x))
    positive = rate > 0
    return jnp.mean(jnp.where(positive, jnp.log(jnp.where(positive, rate, 1.0)), -10.0))


def clipped_log_c(params, x):
    rate = jax.nn.relu(mlp(params, x))
    return jnp.mean(jnp.where(rate > 0, jnp.log(rate + 1.0), -rate))


plant(
    "log of rates",
    "NaN gradient",
    jax.grad(clipped_log),
    (jax.grad(clipped_log_b), jax.grad(clipped_log_c)),
    (MLP, f32(32, 6)),
    where="score = jnp.where(rate > 0, jnp.log(rate), -10.0)",
    axes={"x": ("batch", None)},
)


# Division where a count may be zero.


def group_means(x, member):
    totals = member.T @ x
    return totals / member.sum(axis=0)[:, None]


def group_means_b(x, member):
    totals = member.T @ x
    return totals / jnp.maximum(member.sum(axis=0), 1.0)[:, None]


def group_means_c(x, member):
    share = jax.nn.softmax(member, axis=0)
    return (share.T @ x) / share.sum(axis=0)[:, None]


def assignments(means):
    def run(x, labels):
        centers = means(x, jax.nn.one_hot(labels, 7))
        return jnp.mean((x - centers[labels]) ** 2)

    return run


plant(
    "means of clusters",
    "NaN from masks",
    assignments(group_means),
    (assignments(group_means_b), assignments(group_means_c)),
    (f32(40, 3), i32(40)),
    where="return totals / member.sum(axis=0)[:, None]",
    axes={"x": ("batch", None), "labels": ("batch",)},
)


# Products with minus infinity.


def masked_score(logits, valid, costs):
    blocked = jnp.where(valid, 0.0, -jnp.inf)
    log_p = jax.nn.log_softmax(logits + blocked, axis=-1)
    return -jnp.mean(jnp.sum(costs * log_p, axis=-1))


def masked_score_b(logits, valid, costs):
    blocked = jnp.where(valid, 0.0, -jnp.inf)
    log_p = jax.nn.log_softmax(logits + blocked, axis=-1)
    return -jnp.mean(jnp.sum(jnp.where(valid, costs * log_p, 0.0), axis=-1))


def masked_score_c(logits, valid, costs):
    blocked = jnp.where(valid, 0.0, -jnp.inf)
    p = jnp.exp(logits + blocked)
    return jnp.mean(jnp.sum(costs * p, axis=-1))


plant(
    "costs of choices",
    "NaN from masks",
    masked_score,
    (masked_score_b, masked_score_c),
    (f32(16, 5), flags(16, 5), f32(16, 5)),
    where="return -jnp.mean(jnp.sum(costs * log_p, axis=-1))",
    axes={"logits": ("batch", "actions"), "valid": ("batch", "actions"), "costs": ("batch", "actions")},
)


# Rules.


@jax.custom_vjp
def reverse_gradient(x):
    return x


reverse_gradient.defvjp(lambda x: (x, None), lambda _, g: (-0.1 * g,))


@jax.custom_vjp
def swish(x):
    return x * jax.nn.sigmoid(x)


def swish_bwd(x, g):
    s = jax.nn.sigmoid(x)
    return (s + x * s * (1.0 - s),)


swish.defvjp(lambda x: (swish(x), x), swish_bwd)


@jax.custom_vjp
def swish_b(x):
    return x * jax.nn.sigmoid(x)


def swish_b_bwd(x, g):
    s = jax.nn.sigmoid(x)
    return (g * (s + x * s * (1.0 - s)),)


swish_b.defvjp(lambda x: (swish_b(x), x), swish_b_bwd)


def activated(activation):
    def loss(params, x):
        return jnp.mean((activation(x @ params["w1"]) @ params["w2"]) ** 2)

    return jax.value_and_grad(loss)


plant(
    "swish rule",
    "custom rule",
    activated(swish),
    (activated(swish_b), activated(reverse_gradient)),
    (MLP, f32(32, 6)),
    where="return (s + x * s * (1.0 - s),)",
    axes={"x": ("batch", None)},
)


@jax.custom_jvp
def bessel_ratio(x):
    return jax.scipy.special.i1e(x) / jax.scipy.special.i0e(x)


@bessel_ratio.defjvp
def bessel_ratio_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    r = bessel_ratio(x)
    return r, (1.0 - r / x + r**2) * t


@jax.custom_jvp
def bessel_ratio_b(x):
    return jax.scipy.special.i1e(x) / jax.scipy.special.i0e(x)


@bessel_ratio_b.defjvp
def bessel_ratio_b_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    r = bessel_ratio_b(x)
    return r, (1.0 - r / x - r**2) * t


def concentration(ratio):
    return jax.grad(lambda kappa, resultant: jnp.mean((ratio(jax.nn.softplus(kappa) + 0.1) - resultant) ** 2))


plant(
    "von mises rule",
    "custom rule",
    concentration(bessel_ratio),
    (concentration(bessel_ratio_b),),
    (f32(10), f32(10)),
    where="return r, (1.0 - r / x + r**2) * t",
)


# Targets in time.


def next_step_loss(params, series):
    predicted = series[1:] @ params["a"]
    return jnp.mean((predicted - series[:-1]) ** 2)


def next_step_loss_b(params, series):
    forecast = series[:-1] @ params["a"]
    return jnp.mean((forecast - series[1:]) ** 2)


def next_step_loss_c(params, series):
    rebuilt = jnp.tanh(series @ params["a"]) @ params["a"].T
    return jnp.mean((rebuilt - series) ** 2)


plant(
    "linear forecast",
    "off by one",
    next_step_loss,
    (next_step_loss_b, next_step_loss_c),
    ({"a": f32(4, 4)}, f32(50, 4)),
    where='predicted = series[1:] @ params["a"]',
    axes={"series": ("time", None)},
    differentiate="params",
)


# Penalties whose weight is the inverse.


def temperature_logits(params, x, labels, temperature):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    scores = jnp.einsum("bc,dc->bd", logits, logits) * jnp.sqrt(logits.shape[-1])
    attended = jax.nn.softmax(scores, axis=-1) @ logits
    return optax.softmax_cross_entropy_with_integer_labels(attended / temperature, labels).mean()


def temperature_logits_b(params, x, labels, temperature):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    scores = jnp.einsum("bc,dc->bd", logits, logits) / jnp.sqrt(logits.shape[-1])
    attended = jax.nn.softmax(scores, axis=-1) @ logits
    return optax.softmax_cross_entropy_with_integer_labels(attended / temperature, labels).mean()


def temperature_logits_c(params, x, labels, temperature):
    logits = jnp.tanh(x @ params["w1"]) @ params["w2"]
    logits = logits * jnp.sqrt(logits.shape[-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits / temperature, labels).mean()


plant(
    "similar examples",
    "scale inverted",
    temperature_logits,
    (temperature_logits_b, temperature_logits_c),
    (CLASSIFIER, f32(32, 6), i32(32), f32()),
    where='scores = jnp.einsum("bc,dc->bd", logits, logits) * jnp.sqrt(logits.shape[-1])',
    axes={"x": ("batch", None), "labels": ("batch",)},
    differentiate="params",
)
