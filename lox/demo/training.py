"""A training loop that logs from inside ``grad`` inside ``scan``; nothing is passed out by hand."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import lox

PIXELS, HIDDEN, CLASSES = 64, 64, 10
BATCH_SIZE = 128
HISTOGRAM_BINS = 41
HISTOGRAM_RANGE = (-1.0, 1.0)
OPTIMIZER = optax.sgd(0.03, momentum=0.9)

Params = dict[str, dict[str, jax.Array]]


class Digits(NamedTuple):
    """Handwritten digits of 8 by 8 pixels."""

    images: jax.Array  # (n, 64) float32, from 0 to 1
    labels: jax.Array  # (n,) int32


class State(NamedTuple):
    """The state that an update takes and returns."""

    params: Params
    opt_state: optax.OptState


def load() -> tuple[Digits, Digits]:
    """The digits that ship with scikit-learn: 1437 to learn from and 360 to test with."""
    images, labels = load_digits(return_X_y=True)
    train_images, test_images, train_labels, test_labels = train_test_split(
        np.float32(images / 16), np.int32(labels), test_size=0.2, random_state=0
    )
    return Digits(train_images, train_labels), Digits(test_images, test_labels)


def init(key: jax.Array) -> State:
    """A network with one hidden layer, and its optimizer."""
    he_normal = jax.nn.initializers.he_normal()
    hidden_key, output_key = jax.random.split(key)
    params = {
        "hidden": {"weights": he_normal(hidden_key, (PIXELS, HIDDEN)), "bias": jnp.zeros(HIDDEN)},
        "output": {"weights": he_normal(output_key, (HIDDEN, CLASSES)), "bias": jnp.zeros(CLASSES)},
    }
    return State(params, OPTIMIZER.init(params))


def predict(params: Params, images: jax.Array) -> jax.Array:
    """The logits, of shape (n, 10), for images of shape (n, 64)."""
    hidden, output = params["hidden"], params["output"]
    activations = jax.nn.relu(images @ hidden["weights"] + hidden["bias"])
    return activations @ output["weights"] + output["bias"]


def loss_fn(params: Params, digits: Digits, step: jax.Array, prefix: str) -> jax.Array:
    """The mean cross entropy; logs it together with the accuracy."""
    logits = predict(params, digits.images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, digits.labels).mean()
    accuracy = jnp.mean(logits.argmax(axis=-1) == digits.labels)
    lox.log({"loss": loss, "accuracy": accuracy}, tags=["metric"], prefix=prefix, step=step)
    return loss


def histogram(weights: jax.Array) -> jax.Array:
    """Count the weights in each bin, of shape (HISTOGRAM_BINS,)."""
    counts, _ = jnp.histogram(weights, bins=HISTOGRAM_BINS, range=HISTOGRAM_RANGE)
    return counts


def train(key: jax.Array, train_set: Digits, test_set: Digits, steps: int) -> Params:
    """Trains one network by minibatch descent; returns its parameters."""
    init_key, batch_key = jax.random.split(key)

    def update(state: State, step: jax.Array) -> tuple[State, None]:
        rows = jax.random.choice(jax.random.fold_in(batch_key, step), len(train_set.labels), (BATCH_SIZE,))
        batch = Digits(train_set.images[rows], train_set.labels[rows])
        grads = jax.grad(loss_fn)(state.params, batch, step, "train/")
        updates, opt_state = OPTIMIZER.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)

        # Evaluated for its logs only: without a handler, the compiler removes it as dead code.
        loss_fn(params, test_set, step, "test/")
        norms = {layer: optax.tree.norm(grad) for layer, grad in grads.items()}
        lox.log({"grad_norm": norms}, tags=["gradient"], step=step)
        histograms = {layer: histogram(values["weights"]) for layer, values in params.items()}
        lox.log({"weights": histograms}, tags=["histogram"], step=step)
        return State(params, opt_state), None

    state, _ = jax.lax.scan(update, init(init_key), jnp.arange(steps))
    return state.params
