"""A variational autoencoder: a scan of epochs in one jit, each of a scan of training and a scan of tests."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import lox

EPOCHS, TRAIN_BATCHES, TEST_BATCHES, BATCH, PIXELS, HIDDEN, LATENT = 4, 6, 3, 8, 12, 8, 2
optimizer = optax.sgd(0.001, 0.9)


def images(seed, count):
    """Stripes that begin anywhere."""
    rng = np.random.default_rng(seed)
    place = np.arange(PIXELS) + rng.integers(6, size=(count, BATCH, 1))
    return jnp.asarray(place % 6 < 3, jnp.float32)


TRAIN, TEST = images(0, TRAIN_BATCHES), images(1, TEST_BATCHES)


def start(key):
    def layer(key, inputs, outputs):
        return {"w": jax.random.normal(key, (inputs, outputs)) / jnp.sqrt(inputs), "b": jnp.zeros(outputs)}

    keys = jax.random.split(key, 4)
    params = {
        "encoder": layer(keys[0], PIXELS, HIDDEN),
        "latent": layer(keys[1], HIDDEN, 2 * LATENT),
        "decoder": layer(keys[2], LATENT, HIDDEN),
        "pixels": layer(keys[3], HIDDEN, PIXELS),
    }
    return params, optimizer.init(params)


def parts_of_elbo(params, key, x):
    """The negative logarithm of the likelihood and the divergence from the prior, as sums over a batch."""

    def apply(layer, x):
        return x @ params[layer]["w"] + params[layer]["b"]

    mean, log_scale = jnp.split(apply("latent", jax.nn.softplus(apply("encoder", x))), 2, -1)
    z = mean + jnp.exp(log_scale) * jax.random.normal(key, mean.shape)
    logits = apply("pixels", jax.nn.softplus(apply("decoder", z)))
    reconstruction = optax.sigmoid_binary_cross_entropy(logits, x).sum()
    divergence = 0.5 * jnp.sum(mean**2 + jnp.exp(2 * log_scale) - 2 * log_scale - 1)
    return reconstruction, divergence


# -- as it was -----------------------------------------------------------------------------------------------------


def train_and_return(params, opt_state, key):
    def loss_fn(params, key, x):
        reconstruction, divergence = parts_of_elbo(params, key, x)
        loss = reconstruction + divergence
        return loss, {"loss": loss, "divergence": divergence}

    def epoch(carry, key):
        def update(carry, batch):
            params, opt_state, total = carry
            (_, parts), gradient = jax.value_and_grad(loss_fn, has_aux=True)(params, *batch)
            updates, opt_state = optimizer.update(gradient, opt_state)
            return (optax.apply_updates(params, updates), opt_state, jax.tree.map(jnp.add, total, parts)), None

        def evaluate(total, batch):
            return jax.tree.map(jnp.add, total, loss_fn(params, *batch)[1]), None

        of_train, of_test = jax.random.split(key)
        zeros = {"loss": jnp.float32(0), "divergence": jnp.float32(0)}
        batches = (jax.random.split(of_train, TRAIN_BATCHES), TRAIN)
        (params, opt_state, train), _ = lax.scan(update, (*carry, zeros), batches)
        test, _ = lax.scan(evaluate, zeros, (jax.random.split(of_test, TEST_BATCHES), TEST))
        means = {
            "train": jax.tree.map(lambda total: total / TRAIN_BATCHES, train),
            "test": jax.tree.map(lambda total: total / TEST_BATCHES, test),
        }
        return (params, opt_state), means

    return lax.scan(epoch, (params, opt_state), jax.random.split(key, EPOCHS))[1]


def original():
    means = jax.device_get(jax.jit(train_and_return)(*start(jax.random.key(1)), jax.random.key(2)))
    return [{f"{part}/{name}": list(enumerate(means[part][name])) for part in means for name in means[part]}]


# -- with lox ------------------------------------------------------------------------------------------------------


def loss_fn(params, key, x):
    reconstruction, divergence = parts_of_elbo(params, key, x)
    loss = reconstruction + divergence
    lox.log({"loss": loss, "divergence": divergence})
    return loss


def fit(params, opt_state, key):
    def update(carry, batch):
        params, opt_state = carry
        updates, opt_state = optimizer.update(jax.grad(loss_fn)(params, *batch), opt_state)
        return (optax.apply_updates(params, updates), opt_state), None

    return lax.scan(update, (params, opt_state), (jax.random.split(key, TRAIN_BATCHES), TRAIN))[0]


def evaluate(params, key):
    lax.scan(lambda _, batch: (None, loss_fn(params, *batch)), None, (jax.random.split(key, TEST_BATCHES), TEST))


def ported(logger):
    run = logger.init(2, hidden=HIDDEN, latent=LATENT)

    @jax.jit
    def train(params, opt_state, key):
        def epoch(carry, numbered):
            number, key = numbered
            of_train, of_test = jax.random.split(key)
            carry, logs = lox.spool(fit, reduce="mean", prefix="train/")(*carry, of_train)
            logger.log(run, logs, step=number)
            _, logs = lox.spool(evaluate, reduce="mean", prefix="test/")(carry[0], of_test)
            logger.log(run, logs, step=number)
            return carry, None

        return lax.scan(epoch, (params, opt_state), (jnp.arange(EPOCHS), jax.random.split(key, EPOCHS)))[0]

    train(*start(jax.random.key(1)), jax.random.key(2))
    return [run]
