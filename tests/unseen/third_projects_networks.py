"""Mistakes of projects that train networks, written anew."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.train_state import TrainState
from jax.flatten_util import ravel_pytree

from unseen.case import Case, f32, flags, i32, key, shapes_of


def layer(inputs: int, outputs: int):
    return {"w": f32(inputs, outputs), "b": f32(outputs)}


def dense(p, x):
    return x @ p["w"] + p["b"]


class Classifier(nn.Module):
    classes: int = 10
    width: int = 32

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(self.width)(x))
        return nn.Dense(self.classes)(x)


# Fit, then score on held-out data.


def fit_score_wrong(params, images, labels, test_images, test_labels):
    model = Classifier()
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    def train_step(state, batch):
        def loss_fn(p):
            logits = state.apply_fn({"params": p}, batch[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    state, losses = jax.lax.scan(train_step, state, (images, labels))
    test_logits = state.apply_fn({"params": params}, test_images)
    accuracy = jnp.mean(jnp.argmax(test_logits, axis=-1) == test_labels)
    return losses, accuracy


def fit_score_right(params, images, labels, test_images, test_labels):
    model = Classifier()
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    def train_step(state, batch):
        def loss_fn(p):
            logits = state.apply_fn({"params": p}, batch[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    state, losses = jax.lax.scan(train_step, state, (images, labels))
    test_logits = state.apply_fn({"params": state.params}, test_images)
    accuracy = jnp.mean(jnp.argmax(test_logits, axis=-1) == test_labels)
    return losses, accuracy


def fit_score_gain(params, images, labels, test_images, test_labels):
    """How far the parameters went, and what that brought."""
    model = Classifier()
    tx = optax.adam(1e-3)

    def loss_fn(p, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply({"params": p}, x), y).mean()

    def train_step(carry, batch):
        p, opt_state = carry
        loss, grads = jax.value_and_grad(loss_fn)(p, *batch)
        updates, opt_state = tx.update(grads, opt_state, p)
        return (optax.apply_updates(p, updates), opt_state), loss

    (trained, _), losses = jax.lax.scan(train_step, (params, tx.init(params)), (images, labels))
    before = loss_fn(params, test_images, test_labels)
    return losses, before - loss_fn(trained, test_images, test_labels)


# Statistics of a normalization.


class NormalizedNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Dense(24)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(4)(nn.relu(x))


class LayeredNet(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool):
        return nn.Dense(4)(nn.relu(nn.LayerNorm()(nn.Dense(24)(x))))


def norm_epoch_wrong(params, batch_stats, images, labels):
    net, tx = NormalizedNet(), optax.sgd(0.1)

    def train_step(carry, batch):
        params, batch_stats = carry

        def loss_fn(p):
            variables = {"params": p, "batch_stats": batch_stats}
            logits, _ = net.apply(variables, batch[0], train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, _ = tx.update(grads, tx.init(params))
        return (optax.apply_updates(params, updates), batch_stats), loss

    (params, batch_stats), losses = jax.lax.scan(train_step, (params, batch_stats), (images, labels))
    predictions = net.apply({"params": params, "batch_stats": batch_stats}, images[0], train=False)
    return predictions, losses


def norm_epoch_right(params, batch_stats, images, labels):
    net, tx = NormalizedNet(), optax.sgd(0.1)

    def train_step(carry, batch):
        params, batch_stats = carry

        def loss_fn(p):
            variables = {"params": p, "batch_stats": batch_stats}
            logits, changed = net.apply(variables, batch[0], train=True, mutable=["batch_stats"])
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()
            return loss, changed["batch_stats"]

        (loss, batch_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, _ = tx.update(grads, tx.init(params))
        return (optax.apply_updates(params, updates), batch_stats), loss

    (params, batch_stats), losses = jax.lax.scan(train_step, (params, batch_stats), (images, labels))
    predictions = net.apply({"params": params, "batch_stats": batch_stats}, images[0], train=False)
    return predictions, losses


def norm_epoch_frozen(params, batch_stats, images, labels):
    """Tunes a pretrained network with its statistics as they are."""
    net, tx = NormalizedNet(), optax.sgd(0.1)

    def train_step(params, batch):
        def loss_fn(p):
            logits = net.apply({"params": p, "batch_stats": batch_stats}, batch[0], train=False)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, _ = tx.update(grads, tx.init(params))
        return optax.apply_updates(params, updates), loss

    params, losses = jax.lax.scan(train_step, params, (images, labels))
    predictions = net.apply({"params": params, "batch_stats": batch_stats}, images[0], train=False)
    return predictions, losses


def norm_args():
    net = NormalizedNet()
    variables = shapes_of(lambda k, x: net.init(k, x, train=True), key(), f32(2, 12))
    return variables["params"], variables["batch_stats"], f32(7, 16, 12), i32(7, 16)


# Moments of an optimizer in a scan.


def autoencoder_loss(params, x):
    code = nn.gelu(dense(params["encoder"], x))
    return jnp.mean(jnp.sum((dense(params["decoder"], code) - x) ** 2, axis=-1))


def moments_wrong(params, batches):
    tx = optax.adamw(1e-3, weight_decay=1e-4)

    def step(carry, x):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(autoencoder_loss)(params, x)
        updates, new_opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), loss

    (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), batches)
    return params, losses


def moments_right(params, batches):
    tx = optax.adamw(1e-3, weight_decay=1e-4)

    def step(carry, x):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(autoencoder_loss)(params, x)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, opt_state), loss

    (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), batches)
    return params, losses


def moments_plain(params, batches):
    """Gradient descent keeps nothing."""
    tx = optax.sgd(1e-2)
    opt_state = tx.init(params)

    def step(params, x):
        loss, grads = jax.value_and_grad(autoencoder_loss)(params, x)
        updates, _ = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), loss

    return jax.lax.scan(step, params, batches)


# Dropout in a loop of training.


class DropNet(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic: bool = False):
        x = nn.relu(nn.Dense(32)(x))
        x = nn.Dropout(0.2, deterministic=deterministic)(x)
        return nn.Dense(3)(x)


def drop_loop_wrong(params, rng, xs, ys):
    model, tx = DropNet(), optax.adam(1e-3)
    rng, dropout_rng = jax.random.split(rng)

    def step(carry, batch):
        params, opt_state = carry

        def loss_fn(p):
            logits = model.apply({"params": p}, batch[0], rngs={"dropout": dropout_rng})
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.lax.scan(step, (params, tx.init(params)), (xs, ys))[1]


def drop_loop_right(params, rng, xs, ys):
    model, tx = DropNet(), optax.adam(1e-3)

    def step(carry, batch):
        params, opt_state, rng = carry
        rng, step_rng = jax.random.split(rng)

        def loss_fn(p):
            logits = model.apply({"params": p}, batch[0], rngs={"dropout": step_rng})
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state, rng), loss

    return jax.lax.scan(step, (params, tx.init(params), rng), (xs, ys))[1]


def drop_loop_folded(params, rng, xs, ys):
    model, tx = DropNet(), optax.adam(1e-3)

    def step(carry, inputs):
        params, opt_state = carry
        index, x, y = inputs
        rngs = {"dropout": jax.random.fold_in(rng, index)}

        def loss_fn(p):
            logits = model.apply({"params": p}, x, rngs=rngs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    return jax.lax.scan(step, (params, tx.init(params)), (jnp.arange(xs.shape[0]), xs, ys))[1]


def drop_args():
    params = shapes_of(lambda k, x: DropNet().init(k, x, deterministic=True)["params"], key(), f32(1, 8))
    return params, key(), f32(12, 16, 8), i32(12, 16)


# Dropout of examples one by one.


def drop_each_wrong(params, rng, x, y):
    def one(example, target, rng):
        hidden = nn.relu(dense(params["hidden"], example))
        keep = jax.random.bernoulli(rng, 0.9, hidden.shape)
        hidden = jnp.where(keep, hidden / 0.9, 0.0)
        return optax.softmax_cross_entropy_with_integer_labels(dense(params["out"], hidden), target)

    return jax.vmap(one, in_axes=(0, 0, None))(x, y, rng).mean()


def drop_each_right(params, rng, x, y):
    def one(example, target, rng):
        hidden = nn.relu(dense(params["hidden"], example))
        keep = jax.random.bernoulli(rng, 0.9, hidden.shape)
        hidden = jnp.where(keep, hidden / 0.9, 0.0)
        return optax.softmax_cross_entropy_with_integer_labels(dense(params["out"], hidden), target)

    return jax.vmap(one)(x, y, jax.random.split(rng, x.shape[0])).mean()


def drop_each_weights(params, rng, x, y):
    """Drops weights, which all examples of a batch share."""
    keep = jax.random.bernoulli(rng, 0.9, params["hidden"]["w"].shape)
    weights = jnp.where(keep, params["hidden"]["w"] / 0.9, 0.0)

    def one(example, target):
        hidden = nn.relu(example @ weights + params["hidden"]["b"])
        return optax.softmax_cross_entropy_with_integer_labels(dense(params["out"], hidden), target)

    return jax.vmap(one)(x, y).mean()


# Padding of a batch of sentences.


def project_heads(p, x):
    return jnp.einsum("btd,dhk->bhtk", x, p)


def encoder_padding_wrong(params, x, real):
    q, k, v = (project_heads(params[n], x) for n in ("q", "k", "v"))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(real[:, None, :, None], scores, -1e9)
    mixed = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return x + mixed.reshape(x.shape)


def encoder_padding_right(params, x, real):
    q, k, v = (project_heads(params[n], x) for n in ("q", "k", "v"))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    scores = jnp.where(real[:, None, None, :], scores, -1e9)
    mixed = jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores, axis=-1), v)
    return x + mixed.reshape(x.shape)


def encoder_padding_both(params, x, real):
    q, k, v = (project_heads(params[n], x) for n in ("q", "k", "v"))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    pairs = nn.make_attention_mask(real, real, dtype=jnp.bool_)
    weights = jax.nn.softmax(jnp.where(pairs, scores, -1e9), axis=-1)
    mixed = jnp.einsum("bhqk,bhkd->bqhd", weights, v)
    return x + jnp.where(real[..., None], mixed.reshape(x.shape), 0.0)


# What weights sum to one over.


def mixing_wrong(params, x):
    q, k, v = (x @ params[n] for n in ("q", "k", "v"))
    scores = jnp.einsum("bid,bjd->bij", q, k) * x.shape[-1] ** -0.5
    weights = nn.softmax(scores, axis=1)
    x = x + jnp.einsum("bij,bjd->bid", weights, v)
    return x + nn.gelu(x @ params["up"]) @ params["down"]


def mixing_right(params, x):
    q, k, v = (x @ params[n] for n in ("q", "k", "v"))
    scores = jnp.einsum("bid,bjd->bij", q, k) * x.shape[-1] ** -0.5
    weights = nn.softmax(scores, axis=2)
    x = x + jnp.einsum("bij,bjd->bid", weights, v)
    return x + nn.gelu(x @ params["up"]) @ params["down"]


def mixing_slots(params, x):
    """Queries compete for keys, and the weights are made one over keys after."""
    q, k, v = (x @ params[n] for n in ("q", "k", "v"))
    scores = jnp.einsum("bid,bjd->bij", q, k) * x.shape[-1] ** -0.5
    share = nn.softmax(scores, axis=-2) + 1e-8
    share = share / share.sum(axis=-1, keepdims=True)
    x = x + jnp.einsum("bij,bjd->bid", share, v)
    return x + nn.gelu(x @ params["up"]) @ params["down"]


# A mask that multiplies.


def causal_product_wrong(params, x):
    q, k, v = jnp.split(dense(params["qkv"], x), 3, axis=-1)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1])))
    scores = q @ jnp.swapaxes(k, 1, 2) / jnp.sqrt(q.shape[-1])
    attended = jax.nn.softmax(scores * mask, axis=-1) @ v
    return x + dense(params["out"], attended)


def causal_product_right(params, x):
    q, k, v = jnp.split(dense(params["qkv"], x), 3, axis=-1)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), dtype=jnp.bool_))
    scores = q @ jnp.swapaxes(k, 1, 2) / jnp.sqrt(q.shape[-1])
    attended = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(x.dtype).min), axis=-1) @ v
    return x + dense(params["out"], attended)


def causal_product_linear(params, x):
    """Attention without a softmax."""
    q, k, v = jnp.split(dense(params["qkv"], x), 3, axis=-1)
    q, k = nn.elu(q) + 1.0, nn.elu(k) + 1.0
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1])))
    scores = (q @ jnp.swapaxes(k, 1, 2)) * mask
    attended = (scores @ v) / scores.sum(axis=-1, keepdims=True)
    return x + dense(params["out"], attended)


# Pooling of documents that may be empty.


def pool_wrong(params, words, present, label):
    hidden = nn.tanh(dense(params["hidden"], words))
    scores = dense(params["score"], hidden)[..., 0]
    weights = jax.nn.softmax(jnp.where(present, scores, -jnp.inf), axis=-1)
    pooled = jnp.einsum("bt,btd->bd", weights, hidden)
    logits = dense(params["out"], pooled)[..., 0]
    return optax.sigmoid_binary_cross_entropy(logits, label).mean()


def pool_right(params, words, present, label):
    hidden = nn.tanh(dense(params["hidden"], words))
    scores = dense(params["score"], hidden)[..., 0]
    weights = jax.nn.softmax(jnp.where(present, scores, -1e9), axis=-1) * present
    pooled = jnp.einsum("bt,btd->bd", weights, hidden)
    logits = dense(params["out"], pooled)[..., 0]
    return optax.sigmoid_binary_cross_entropy(logits, label).mean()


def pool_first(params, words, present, label):
    """The first token is always there."""
    hidden = nn.tanh(dense(params["hidden"], words))
    scores = dense(params["score"], hidden)[..., 0]
    seen = present.at[:, 0].set(True)
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    pooled = jnp.einsum("bt,btd->bd", weights, hidden)
    logits = dense(params["out"], pooled)[..., 0]
    return optax.sigmoid_binary_cross_entropy(logits, label).mean()


# A loss of decisions.


def decision_wrong(params, x, y):
    logits = dense(params["out"], nn.relu(dense(params["hidden"], x)))
    predicted = jnp.argmax(logits, axis=-1).astype(jnp.float32)
    return jnp.mean((predicted - y) ** 2)


def decision_right(params, x, y):
    logits = dense(params["out"], nn.relu(dense(params["hidden"], x)))
    expected = nn.softmax(logits) @ jnp.arange(logits.shape[-1], dtype=jnp.float32)
    return jnp.mean((expected - y) ** 2)


def decision_through(params, x, y):
    """Decides forwards, and has the gradient of the expectation."""
    logits = dense(params["out"], nn.relu(dense(params["hidden"], x)))
    expected = nn.softmax(logits) @ jnp.arange(logits.shape[-1], dtype=jnp.float32)
    hard = jnp.argmax(logits, axis=-1).astype(jnp.float32)
    value = expected + jax.lax.stop_gradient(hard - expected)
    return jnp.mean((value - y) ** 2)


# A rule for a step function.


@jax.custom_vjp
def binarize(x):
    return jnp.sign(x)


def binarize_forward(x):
    return jnp.sign(x), x


def binarize_backward(x, g):
    return (jnp.where(jnp.abs(x) <= 1.0, 1.0, 0.0),)


binarize.defvjp(binarize_forward, binarize_backward)


@jax.custom_vjp
def binarize_mended(x):
    return jnp.sign(x)


binarize_mended.defvjp(
    lambda x: (jnp.sign(x), x),
    lambda x, g: (jnp.where(jnp.abs(x) <= 1.0, g, jnp.zeros_like(g)),),
)


@jax.custom_vjp
def reverse_gradient(x):
    return x


reverse_gradient.defvjp(lambda x: (x, None), lambda _, g: (jax.tree.map(jnp.negative, g),))


def binary_loss_wrong(params, x, y):
    hidden = binarize(dense(params["hidden"], x))
    logits = dense(params["out"], hidden)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def binary_loss_right(params, x, y):
    hidden = binarize_mended(dense(params["hidden"], x))
    logits = dense(params["out"], hidden)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def binary_loss_domain(params, x, y):
    """Features are to say nothing of the domain `y`."""
    hidden = reverse_gradient(nn.tanh(dense(params["hidden"], x)))
    logits = dense(params["out"], hidden)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


# Two views of an image.


def cosine(a, b):
    a = a / jnp.sqrt(jnp.sum(a**2, axis=-1, keepdims=True) + 1e-6)
    b = b / jnp.sqrt(jnp.sum(b**2, axis=-1, keepdims=True) + 1e-6)
    return jnp.sum(a * b, axis=-1)


def views_wrong(params, target_params, view1, view2):
    z1, z2 = (dense(params["encoder"], v) for v in (view1, view2))
    p1, p2 = (dense(params["predictor"], nn.relu(z)) for z in (z1, z2))
    similarity = 0.5 * (cosine(p1, z2) + cosine(p2, z1))
    return -jnp.mean(similarity)


def views_right(params, target_params, view1, view2):
    z1, z2 = (dense(params["encoder"], v) for v in (view1, view2))
    p1, p2 = (dense(params["predictor"], nn.relu(z)) for z in (z1, z2))
    z1, z2 = jax.lax.stop_gradient((z1, z2))
    return -0.5 * jnp.mean(cosine(p1, z2) + cosine(p2, z1))


def views_momentum(params, target_params, view1, view2):
    p1, p2 = (dense(params["predictor"], nn.relu(dense(params["encoder"], v))) for v in (view1, view2))
    t1, t2 = (dense(target_params["encoder"], v) for v in (view1, view2))
    return -0.5 * jnp.mean(cosine(p1, t2) + cosine(p2, t1))


# Gradients of pieces of a batch, with padded tokens.


def token_losses(params, tokens, targets):
    hidden = nn.gelu(dense(params["hidden"], params["table"][tokens]))
    return optax.softmax_cross_entropy_with_integer_labels(dense(params["out"], hidden), targets)


def accumulate_wrong(params, tokens, targets, weights):
    def loss_fn(p, piece):
        losses = token_losses(p, piece[0], piece[1])
        return jnp.sum(losses * piece[2]) / jnp.maximum(jnp.sum(piece[2]), 1.0)

    def add(total, piece):
        grads = jax.grad(loss_fn)(params, piece)
        return jax.tree.map(jnp.add, total, grads), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    total, _ = jax.lax.scan(add, zeros, (tokens, targets, weights))
    mean_grads = jax.tree.map(lambda g: g / tokens.shape[0], total)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, mean_grads)


def accumulate_right(params, tokens, targets, weights):
    def loss_fn(p, piece):
        return jnp.sum(token_losses(p, piece[0], piece[1]) * piece[2])

    def add(total, piece):
        grads, count = total
        grads = jax.tree.map(jnp.add, grads, jax.grad(loss_fn)(params, piece))
        return (grads, count + jnp.sum(piece[2])), None

    zeros = jax.tree.map(jnp.zeros_like, params), jnp.zeros(())
    (total, count), _ = jax.lax.scan(add, zeros, (tokens, targets, weights))
    return jax.tree.map(lambda p, g: p - 0.1 * g / jnp.maximum(count, 1.0), params, total)


def accumulate_full(params, tokens, targets, weights):
    """Nothing is padded, so all pieces have as many tokens."""

    def loss_fn(p, piece):
        return jnp.mean(token_losses(p, piece[0], piece[1]))

    def add(total, piece):
        return jax.tree.map(jnp.add, total, jax.grad(loss_fn)(params, piece)), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (tokens, targets))
    return jax.tree.map(lambda p, g: p - 0.1 * g / tokens.shape[0], params, total)


# Energies of molecules.


def readout(params, nodes, senders, receivers, molecule, molecules):
    hidden = nn.silu(dense(params["embed"], nodes))
    messages = nn.silu(dense(params["message"], hidden[senders]))
    hidden = hidden + jax.ops.segment_sum(messages, receivers, num_segments=nodes.shape[0])
    pooled = jax.ops.segment_sum(hidden, molecule, num_segments=molecules)
    return dense(params["energy"], pooled)


def energy_wrong(params, nodes, senders, receivers, molecule, energy):
    predicted = readout(params, nodes, senders, receivers, molecule, energy.shape[0])
    error = predicted - energy
    return jnp.mean(jnp.abs(error))


def energy_right(params, nodes, senders, receivers, molecule, energy):
    predicted = readout(params, nodes, senders, receivers, molecule, energy.shape[0])
    return jnp.mean(jnp.abs(predicted[:, 0] - energy))


def energy_pairs(params, nodes, senders, receivers, molecule, energy):
    """Only differences between molecules are known."""
    predicted = readout(params, nodes, senders, receivers, molecule, energy.shape[0])[:, 0]
    apart = predicted[:, None] - predicted[None, :]
    known = energy[:, None] - energy[None, :]
    return jnp.mean(jnp.abs(apart - known))


# Outputs that are probabilities.


class ProbabilityNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), strides=2)(x))
        x = nn.Dense(10)(x.mean(axis=(1, 2)))
        return nn.softmax(x)


class LogitNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), strides=2)(x))
        return nn.Dense(10)(x.mean(axis=(1, 2)))


def digits_wrong(params, images, labels):
    outputs = ProbabilityNet().apply({"params": params}, images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits=outputs, labels=labels).mean()
    return loss, jnp.mean(outputs.argmax(-1) == labels)


def digits_right(params, images, labels):
    logits = LogitNet().apply({"params": params}, images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, jnp.mean(logits.argmax(-1) == labels)


def digits_distilled(params, images, labels):
    """The network teaches itself at a higher temperature, beside the labels."""
    logits = LogitNet().apply({"params": params}, images)
    soft = jax.lax.stop_gradient(nn.softmax(logits / 2.0))
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss + 0.1 * optax.softmax_cross_entropy(logits, soft).mean(), jnp.mean(logits.argmax(-1) == labels)


def digits_args():
    params = shapes_of(lambda k, x: LogitNet().init(k, x)["params"], key(), f32(1, 14, 14, 1))
    return params, f32(20, 14, 14, 1), i32(20)


# A critic of real and made samples.


def critic_score(params, x):
    return dense(params["out"], nn.leaky_relu(dense(params["hidden"], x), 0.2))[..., 0]


def adversary_wrong(params, real, fake):
    d_real = nn.sigmoid(critic_score(params, real))
    d_fake = nn.sigmoid(critic_score(params, fake))
    return -jnp.mean(jnp.log(d_real)) - jnp.mean(jnp.log(1.0 - d_fake))


def adversary_right(params, real, fake):
    real_logit, fake_logit = critic_score(params, real), critic_score(params, fake)
    return -jnp.mean(nn.log_sigmoid(real_logit)) - jnp.mean(nn.log_sigmoid(-fake_logit))


def adversary_clipped(params, real, fake):
    d_real = jnp.clip(nn.sigmoid(critic_score(params, real)), 1e-6, 1.0 - 1e-6)
    d_fake = jnp.clip(nn.sigmoid(critic_score(params, fake)), 1e-6, 1.0 - 1e-6)
    return -jnp.mean(jnp.log(d_real) + jnp.log1p(-d_fake))


# Heads of a projection.


def split_heads_wrong(params, x):
    batch, time, width = x.shape
    heads = 4
    q, k, v = ((x @ params[n]).reshape(batch, heads, time, width // heads) for n in ("q", "k", "v"))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(width // heads)
    mask = jnp.tril(jnp.ones((time, time), dtype=jnp.bool_))
    out = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1) @ v
    return out.swapaxes(1, 2).reshape(batch, time, width) @ params["o"]


def split_heads_right(params, x):
    batch, time, width = x.shape
    heads = 4
    q, k, v = ((x @ params[n]).reshape(batch, time, heads, width // heads).swapaxes(1, 2) for n in ("q", "k", "v"))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(width // heads)
    mask = jnp.tril(jnp.ones((time, time), dtype=jnp.bool_))
    out = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1) @ v
    return out.swapaxes(1, 2).reshape(batch, time, width) @ params["o"]


def split_heads_windows(params, x):
    """Attends within windows of four, one head."""
    batch, time, width = x.shape
    windows = time // 4
    q, k, v = ((x @ params[n]).reshape(batch, windows, 4, width) for n in ("q", "k", "v"))
    scores = jnp.einsum("bwqd,bwkd->bwqk", q, k) / jnp.sqrt(width)
    out = jax.nn.softmax(scores, axis=-1) @ v
    return out.reshape(batch, time, width) @ params["o"]


# Gradients of single examples, made private.


def single_loss(params, x, y):
    prediction = dense(params["out"], nn.tanh(dense(params["hidden"], x)))[..., 0]
    return jnp.mean((prediction - y) ** 2)


def clip_tree(grads):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)) + 1e-12)
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / norm), grads)


def private_wrong(params, rng, x, y):
    grads = jax.vmap(jax.grad(single_loss), in_axes=(None, 0, None))(params, x, y)
    clipped = jax.vmap(clip_tree)(grads)
    mean = jax.tree.map(lambda g: g.mean(axis=0), clipped)
    flat, shape = ravel_pytree(mean)
    noise = 0.1 * jax.random.normal(rng, flat.shape)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, shape(flat + noise))


def private_right(params, rng, x, y):
    grads = jax.vmap(jax.grad(single_loss), in_axes=(None, 0, 0))(params, x, y)
    clipped = jax.vmap(clip_tree)(grads)
    mean = jax.tree.map(lambda g: g.mean(axis=0), clipped)
    flat, shape = ravel_pytree(mean)
    noise = 0.1 * jax.random.normal(rng, flat.shape)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, shape(flat + noise))


def private_members(params, rng, x, y):
    """An ensemble, each member on all of the data."""
    offsets = 0.01 * jax.random.normal(rng, (5,))
    members = jax.vmap(lambda o: jax.tree.map(lambda p: p + o, params))(offsets)
    grads = jax.vmap(jax.grad(single_loss), in_axes=(0, None, None))(members, x, y)
    return jax.tree.map(lambda p, g: p - 0.05 * g, members, grads)


# A step counted by Python.


@partial(jax.jit, static_argnames=("step",))
def warm_update(params, x, step):
    rate = 1e-2 * min(1.0, (step + 1) / 5)
    grads = jax.grad(autoencoder_loss)(params, x)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


@jax.jit
def warm_update_traced(params, x, step):
    rate = 1e-2 * jnp.minimum(1.0, (step + 1) / 5)
    grads = jax.grad(autoencoder_loss)(params, x)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


@partial(jax.jit, static_argnames=("train",))
def warm_update_flag(params, x, train):
    grads = jax.grad(autoencoder_loss)(params, x)
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads) if train else params


def warmup_wrong(params, batches):
    for step in range(8):
        params = warm_update(params, batches[step], step=step)
    return params


def warmup_right(params, batches):
    for step in range(8):
        params = warm_update_traced(params, batches[step], jnp.int32(step))
    return params


def warmup_flag(params, batches):
    for step in range(8):
        params = warm_update_flag(params, batches[step], train=step < 6)
    return params


# The next token.


class CharModel(nn.Module):
    vocabulary: int = 30

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(self.vocabulary, 16)(tokens)
        mask = nn.make_causal_mask(tokens)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
        x = x + nn.Dense(16)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(x))))
        return nn.Dense(self.vocabulary)(x)


def next_token_wrong(params, tokens):
    logits = CharModel().apply({"params": params}, tokens)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
    real = (tokens != 0).astype(jnp.float32)
    return jnp.sum(losses * real) / jnp.maximum(jnp.sum(real), 1.0)


def next_token_right(params, tokens):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = CharModel().apply({"params": params}, inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    real = (targets != 0).astype(jnp.float32)
    return jnp.sum(losses * real) / jnp.maximum(jnp.sum(real), 1.0)


def next_token_begun(params, tokens):
    """Inputs begin by a token of their own, so each predicts the token at its place."""
    inputs = jnp.pad(tokens, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    logits = CharModel().apply({"params": params}, inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits=logits, labels=tokens)
    weights = (tokens != 0).astype(jnp.float32)
    return jnp.sum(losses * weights) / jnp.maximum(jnp.sum(weights), 1.0)


def next_token_args():
    params = shapes_of(lambda k, t: CharModel().init(k, t)["params"], key(), i32(1, 18))
    return params, i32(6, 18)


# Noise and time of a diffusion.


def diffusion_wrong(params, rng, images):
    alphas = jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.02, 100))
    t = jax.random.randint(rng, (images.shape[0],), 0, 100)
    noise = jax.random.normal(rng, images.shape)
    a = alphas[t][:, None]
    noisy = jnp.sqrt(a) * images + jnp.sqrt(1.0 - a) * noise
    time = (t / 100.0)[:, None]
    hidden = nn.silu(dense(params["hidden"], jnp.concatenate([noisy, time], axis=-1)))
    return jnp.mean((dense(params["out"], hidden) - noise) ** 2)


def diffusion_right(params, rng, images):
    t_rng, noise_rng = jax.random.split(rng)
    alphas = jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.02, 100))
    t = jax.random.randint(t_rng, (images.shape[0],), 0, 100)
    noise = jax.random.normal(noise_rng, images.shape)
    a = alphas[t][:, None]
    noisy = jnp.sqrt(a) * images + jnp.sqrt(1.0 - a) * noise
    time = (t / 100.0)[:, None]
    hidden = nn.silu(dense(params["hidden"], jnp.concatenate([noisy, time], axis=-1)))
    return jnp.mean((dense(params["out"], hidden) - noise) ** 2)


def diffusion_spread(params, rng, images):
    """Times are spread evenly over the batch; only the noise is drawn."""
    alphas = jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.02, 100))
    t = jnp.linspace(0, 99, images.shape[0]).astype(jnp.int32)
    noise = jax.random.normal(rng, images.shape, images.dtype)
    a = alphas[t][:, None]
    noisy = jnp.sqrt(a) * images + jnp.sqrt(1.0 - a) * noise
    time = (t / 100.0)[:, None]
    hidden = nn.silu(dense(params["hidden"], jnp.concatenate([noisy, time], axis=-1)))
    return jnp.mean((dense(params["out"], hidden) - noise) ** 2)


# A module with statistics, split and merged.


class Running(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(6, 12, rngs=rngs)
        self.norm = nnx.BatchNorm(12, rngs=rngs)
        self.outer = nnx.Linear(12, 2, rngs=rngs)

    def __call__(self, x):
        return self.outer(nnx.relu(self.norm(self.inner(x))))


def merged_wrong(xs, ys):
    graph, params, rest = nnx.split(Running(nnx.Rngs(0)), nnx.Param, ...)

    def step(params, batch):
        def loss_fn(p):
            model = nnx.merge(graph, p, rest, copy=True)
            return jnp.mean((model(batch[0]) - batch[1]) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    params, losses = jax.lax.scan(step, params, (xs, ys))
    model = nnx.merge(graph, params, rest)
    model.eval()
    return model(xs[0]), losses


def merged_right(xs, ys):
    graph, params, others = nnx.split(Running(nnx.Rngs(0)), nnx.Param, ...)

    def step(carry, batch):
        params, others = carry

        def loss_fn(p):
            model = nnx.merge(graph, p, others, copy=True)
            loss = jnp.mean((model(batch[0]) - batch[1]) ** 2)
            return loss, nnx.split(model, nnx.Param, ...)[2]

        (loss, others), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        return (jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), others), loss

    (params, others), losses = jax.lax.scan(step, (params, others), (xs, ys))
    model = nnx.merge(graph, params, others)
    model.eval()
    return model(xs[0]), losses


class Plain(nnx.Module):
    def __init__(self, rngs):
        self.inner = nnx.Linear(6, 12, rngs=rngs)
        self.norm = nnx.LayerNorm(12, rngs=rngs)
        self.outer = nnx.Linear(12, 2, rngs=rngs)

    def __call__(self, x):
        return self.outer(nnx.relu(self.norm(self.inner(x))))


def merged_layers(xs, ys):
    graph, params, others = nnx.split(Plain(nnx.Rngs(0)), nnx.Param, ...)

    def step(params, batch):
        def loss_fn(p):
            return jnp.mean((nnx.merge(graph, p, others, copy=True)(batch[0]) - batch[1]) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

    params, losses = jax.lax.scan(step, params, (xs, ys))
    return nnx.merge(graph, params, others)(xs[0]), losses


# Positions of a long sequence in half precision.


def rotate(x, cos, sin):
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rotary_wrong(params, x):
    x = x.astype(jnp.bfloat16)
    q, k = (x @ params[n].astype(jnp.bfloat16) for n in ("q", "k"))
    frequencies = 10000.0 ** (-jnp.arange(q.shape[-1] // 2, dtype=jnp.float32) / (q.shape[-1] // 2))
    positions = jnp.arange(x.shape[1], dtype=jnp.bfloat16)
    angles = positions[:, None] * frequencies.astype(jnp.bfloat16)
    q, k = (rotate(y, jnp.cos(angles), jnp.sin(angles)) for y in (q, k))
    return jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=jnp.float32)


def rotary_right(params, x):
    x = x.astype(jnp.bfloat16)
    q, k = (x @ params[n].astype(jnp.bfloat16) for n in ("q", "k"))
    frequencies = 10000.0 ** (-jnp.arange(q.shape[-1] // 2, dtype=jnp.float32) / (q.shape[-1] // 2))
    angles = jnp.arange(x.shape[1], dtype=jnp.float32)[:, None] * frequencies
    cos, sin = jnp.cos(angles).astype(jnp.bfloat16), jnp.sin(angles).astype(jnp.bfloat16)
    q, k = (rotate(y, cos, sin) for y in (q, k))
    return jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=jnp.float32)


def rotary_block(params, x):
    """Attends within blocks of 64, whose positions half precision can hold."""
    x = x.astype(jnp.bfloat16).reshape(-1, 64, x.shape[-1])
    q, k = (x @ params[n].astype(jnp.bfloat16) for n in ("q", "k"))
    frequencies = 10000.0 ** (-jnp.arange(q.shape[-1] // 2, dtype=jnp.float32) / (q.shape[-1] // 2))
    places = jnp.arange(64, dtype=jnp.bfloat16)
    angles = places[:, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles).astype(jnp.bfloat16), jnp.sin(angles).astype(jnp.bfloat16)
    q, k = (rotate(y, cos, sin) for y in (q, k))
    return jnp.einsum("bqd,bkd->bqk", q, k, preferred_element_type=jnp.float32)


# Positions past the end of their table.


def positions_wrong(params, tokens):
    x = params["words"][tokens] + params["places"][jnp.arange(tokens.shape[1])]
    mask = nn.make_causal_mask(tokens)[:, 0]
    scores = jnp.where(mask, x @ jnp.swapaxes(x, 1, 2) / jnp.sqrt(x.shape[-1]), -1e9)
    x = x + nn.softmax(scores) @ dense(params["value"], x)
    return x @ params["words"].T


def positions_right(params, tokens):
    tokens = tokens[:, -params["places"].shape[0] :]
    x = params["words"][tokens] + params["places"][jnp.arange(tokens.shape[1]), :]
    mask = nn.make_causal_mask(tokens)[:, 0]
    scores = jnp.where(mask, x @ jnp.swapaxes(x, 1, 2) / jnp.sqrt(x.shape[-1]), -1e9)
    x = x + nn.softmax(scores) @ dense(params["value"], x)
    return x @ params["words"].T


def positions_bucket(params, tokens):
    """Far positions share the last row."""
    last = params["places"].shape[0] - 1
    x = params["words"][tokens] + params["places"][jnp.minimum(jnp.arange(tokens.shape[1]), last)]
    mask = nn.make_causal_mask(tokens)[:, 0]
    scores = jnp.where(mask, x @ jnp.swapaxes(x, 1, 2) / jnp.sqrt(x.shape[-1]), -1e9)
    x = x + nn.softmax(scores) @ dense(params["value"], x)
    return x @ params["words"].T


AUTOENCODER = {"encoder": layer(20, 6), "decoder": layer(6, 20)}


def fit_args():
    params = shapes_of(lambda k, x: Classifier().init(k, x)["params"], key(), f32(1, 18))
    return params, f32(9, 16, 18), i32(9, 16), f32(40, 18), i32(40)


CASES = [
    Case(
        name="third_fit_score",
        family="state out of date",
        wrong=fit_score_wrong,
        right=(fit_score_right, fit_score_gain),
        args=fit_args,
        where='test_logits = state.apply_fn({"params": params}, test_images)',
        source="google/flax pull request 3982",
    ),
    Case(
        name="third_norm_epoch",
        family="result dropped",
        wrong=norm_epoch_wrong,
        right=(norm_epoch_right, norm_epoch_frozen),
        args=norm_args,
        where='logits, _ = net.apply(variables, batch[0], train=True, mutable=["batch_stats"])',
        source="google/flax issues 3602 and 1489",
    ),
    Case(
        name="third_moments",
        family="carry not used",
        wrong=moments_wrong,
        right=(moments_right, moments_plain),
        args=(AUTOENCODER, f32(15, 12, 20)),
        where="updates, new_opt_state = tx.update(grads, opt_state, params)",
        source="google-deepmind/optax issues 424 and 1036",
    ),
    Case(
        name="third_drop_loop",
        family="key reuse",
        wrong=drop_loop_wrong,
        right=(drop_loop_right, drop_loop_folded),
        args=drop_args,
        where='logits = model.apply({"params": p}, batch[0], rngs={"dropout": dropout_rng})',
        source="google/flax pull request 2593",
    ),
    Case(
        name="third_drop_each",
        family="key shared by batch elements",
        wrong=drop_each_wrong,
        right=(drop_each_right, drop_each_weights),
        args=({"hidden": layer(9, 30), "out": layer(30, 4)}, key(), f32(16, 9), i32(16)),
        where="return jax.vmap(one, in_axes=(0, 0, None))(x, y, rng).mean()",
        differentiate="params",
        source="networks of single examples, as equinox has them, under vmap",
    ),
    Case(
        name="third_encoder_padding",
        family="attention",
        wrong=encoder_padding_wrong,
        right=(encoder_padding_right, encoder_padding_both),
        args=({"q": f32(24, 4, 6), "k": f32(24, 4, 6), "v": f32(24, 4, 6)}, f32(3, 12, 24), flags(3, 12)),
        where="scores = jnp.where(real[:, None, :, None], scores, -1e9)",
        source="discussions of google/flax on masks of attention",
    ),
    Case(
        name="third_mixing",
        family="softmax axis",
        wrong=mixing_wrong,
        right=(mixing_right, mixing_slots),
        args=(
            {"q": f32(16, 16), "k": f32(16, 16), "v": f32(16, 16), "up": f32(16, 32), "down": f32(32, 16)},
            f32(16, 16, 16),
        ),
        where="weights = nn.softmax(scores, axis=1)",
        source="attention ported from another framework",
    ),
    Case(
        name="third_causal_product",
        family="attention",
        wrong=causal_product_wrong,
        right=(causal_product_right, causal_product_linear),
        args=({"qkv": layer(24, 36), "out": layer(12, 24)}, f32(4, 10, 24)),
        where="attended = jax.nn.softmax(scores * mask, axis=-1) @ v",
        source="small transformers of blogs",
    ),
    Case(
        name="third_pool",
        family="NaN from masks",
        wrong=pool_wrong,
        right=(pool_right, pool_first),
        args=(
            {"hidden": layer(10, 14), "score": layer(14, 1), "out": layer(14, 1)},
            f32(8, 20, 10),
            flags(8, 20),
            f32(8),
        ),
        where="weights = jax.nn.softmax(jnp.where(present, scores, -jnp.inf), axis=-1)",
        differentiate="params",
        source="allenai/allennlp issue 890; tracel-ai/burn pull request 4697",
    ),
    Case(
        name="third_decision",
        family="no gradient",
        wrong=decision_wrong,
        right=(decision_right, decision_through),
        args=({"hidden": layer(12, 32), "out": layer(32, 5)}, f32(20, 12), f32(20)),
        where="predicted = jnp.argmax(logits, axis=-1).astype(jnp.float32)",
        differentiate="params",
        source="google-deepmind/dm-haiku issue 442",
    ),
    Case(
        name="third_binary_loss",
        family="custom rule",
        wrong=binary_loss_wrong,
        right=(binary_loss_right, binary_loss_domain),
        args=({"hidden": layer(12, 32), "out": layer(32, 5)}, f32(20, 12), i32(20)),
        where="return (jnp.where(jnp.abs(x) <= 1.0, 1.0, 0.0),)",
        differentiate="params",
        source="straight-through estimators in discussions of JAX; jax-ml/jax issue 3213",
    ),
    Case(
        name="third_views",
        family="no stop_gradient",
        wrong=views_wrong,
        right=(views_right, views_momentum),
        args=(
            {"encoder": layer(16, 8), "predictor": layer(8, 8)},
            {"encoder": layer(16, 8), "predictor": layer(8, 8)},
            f32(32, 16),
            f32(32, 16),
        ),
        where="similarity = 0.5 * (cosine(p1, z2) + cosine(p2, z1))",
        differentiate="params",
        source="SimSiam in flax",
    ),
    Case(
        name="third_accumulate",
        family="mean of means",
        wrong=accumulate_wrong,
        right=(accumulate_right, accumulate_full),
        args=(
            {"table": f32(40, 8), "hidden": layer(8, 16), "out": layer(16, 40)},
            i32(4, 6, 11),
            i32(4, 6, 11),
            f32(4, 6, 11),
        ),
        where="mean_grads = jax.tree.map(lambda g: g / tokens.shape[0], total)",
        source="meta-pytorch/torchtune pull request 1875; ServiceNow/Fast-LLM pull request 426",
    ),
    Case(
        name="third_energy",
        family="(N,) meets (N, 1)",
        wrong=energy_wrong,
        right=(energy_right, energy_pairs),
        args=(
            {"embed": layer(5, 16), "message": layer(16, 16), "energy": layer(16, 1)},
            f32(30, 5),
            i32(70),
            i32(70),
            i32(30),
            f32(6),
        ),
        where="error = predicted - energy",
        differentiate="params",
        source="IntelLabs/matsciml pull request 347",
    ),
    Case(
        name="third_digits",
        family="softmax twice",
        wrong=digits_wrong,
        right=(digits_right, digits_distilled),
        args=digits_args,
        where="loss = optax.softmax_cross_entropy_with_integer_labels(logits=outputs, labels=labels).mean()",
        differentiate="params",
        source="questions on losses that do not fall, of users who come from Keras",
    ),
    Case(
        name="third_adversary",
        family="unstable logarithm",
        wrong=adversary_wrong,
        right=(adversary_right, adversary_clipped),
        args=({"hidden": layer(8, 20), "out": layer(20, 1)}, f32(24, 8), f32(24, 8)),
        where="return -jnp.mean(jnp.log(d_real)) - jnp.mean(jnp.log(1.0 - d_fake))",
        differentiate="params",
        source="GANs in JAX whose loss becomes NaN",
    ),
    Case(
        name="third_split_heads",
        family="reshape for transpose",
        wrong=split_heads_wrong,
        right=(split_heads_right, split_heads_windows),
        args=({"q": f32(32, 32), "k": f32(32, 32), "v": f32(32, 32), "o": f32(32, 32)}, f32(3, 12, 32)),
        where='q, k, v = ((x @ params[n]).reshape(batch, heads, time, width // heads) for n in ("q", "k", "v"))',
        source="transformers written by hand",
    ),
    Case(
        name="third_private",
        family="vmap",
        wrong=private_wrong,
        right=(private_right, private_members),
        args=({"hidden": layer(6, 10), "out": layer(10, 1)}, key(), f32(14, 6), f32(14)),
        where="grads = jax.vmap(jax.grad(single_loss), in_axes=(None, 0, None))(params, x, y)",
        source="google/flax pull request 306 and private training in JAX",
    ),
    Case(
        name="third_warmup",
        family="recompilation",
        wrong=warmup_wrong,
        right=(warmup_right, warmup_flag),
        args=(AUTOENCODER, f32(8, 12, 20)),
        where="params = warm_update(params, batches[step], step=step)",
        source="google-research/big_vision pull request 8; jax-ml/jax issue 4274",
    ),
    Case(
        name="third_next_token",
        family="off by one",
        wrong=next_token_wrong,
        right=(next_token_right, next_token_begun),
        args=next_token_args,
        where="losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)",
        differentiate="params",
        source="small language models, whose loss falls to zero at once",
    ),
    Case(
        name="third_diffusion",
        family="key reuse",
        wrong=diffusion_wrong,
        right=(diffusion_right, diffusion_spread),
        args=({"hidden": layer(37, 24), "out": layer(24, 36)}, key(), f32(10, 36)),
        where="noise = jax.random.normal(rng, images.shape)",
        differentiate="params",
        source="DDPM in JAX; blackjax-devs/blackjax issue 53",
    ),
    Case(
        name="third_merged",
        family="result dropped",
        wrong=merged_wrong,
        right=(merged_right, merged_layers),
        args=(f32(6, 10, 6), f32(6, 10, 2)),
        where="model = nnx.merge(graph, p, rest, copy=True)",
        source="discussions of google/flax on nnx.split in functions of JAX",
    ),
    Case(
        name="third_rotary",
        family="dtype",
        wrong=rotary_wrong,
        right=(rotary_right, rotary_block),
        args=({"q": f32(16, 16), "k": f32(16, 16)}, f32(2, 1024, 16)),
        where="positions = jnp.arange(x.shape[1], dtype=jnp.bfloat16)",
        source="rotary embeddings in half precision, as mended in several models",
    ),
    Case(
        name="third_positions",
        family="index out of range",
        wrong=positions_wrong,
        right=(positions_right, positions_bucket),
        args=({"words": f32(50, 12), "places": f32(24, 12), "value": layer(12, 12)}, i32(3, 40)),
        where='x = params["words"][tokens] + params["places"][jnp.arange(tokens.shape[1])]',
        source="jax-ml/jax issue 3493 and sequences longer than a table of positions",
    ),
]
