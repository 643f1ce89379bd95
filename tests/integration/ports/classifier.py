"""A classifier of flax nnx: a loop in Python over batches, with a jitted step, and tests in between."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import lox

EPOCHS, TEST_EVERY, BATCH, LABELS = 2, 3, 8, 3


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.last = nnx.Linear(8, LABELS, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


def start():
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.05, 0.9), wrt=nnx.Param)
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Average("accuracy"), loss=nnx.metrics.Average("loss"))
    return model, optimizer, metrics


def batches(seed, count):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        label = rng.integers(LABELS, size=BATCH)
        x = rng.normal(size=(BATCH, 4)) + label[:, None]
        yield {"x": x.astype(np.float32), "label": label.astype(np.int32)}


def train_batches():
    for epoch in range(EPOCHS):
        yield from batches(epoch, 5)


def held_out():
    return batches(100, 3)


def loss_and_accuracy(model, batch):
    logits = model(batch["x"])
    right = jnp.argmax(logits, -1) == batch["label"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    return loss.mean(), jnp.mean(right, dtype=jnp.float32)


# -- as it was -----------------------------------------------------------------------------------------------------


@nnx.jit
def train_step(model, optimizer, metrics, batch):
    (loss, accuracy), gradient = nnx.value_and_grad(loss_and_accuracy, has_aux=True)(model, batch)
    metrics.update(loss=loss, accuracy=accuracy)
    optimizer.update(model, gradient)
    return optax.tree.norm(gradient)


@nnx.jit
def evaluate(model, metrics, batch):
    loss, accuracy = loss_and_accuracy(model, batch)
    metrics.update(loss=loss, accuracy=accuracy)


@jax.numpy_dtype_promotion("standard")  # The metrics of flax divide by an integer.
def original():
    model, optimizer, metrics = start()
    history = {}

    def add(name, step, value):
        history.setdefault(name, []).append((step, float(value)))

    for step, batch in enumerate(train_batches()):
        model.train()
        add("grad_norm", step, train_step(model, optimizer, metrics, batch))
        if (step + 1) % TEST_EVERY == 0:
            for name, value in metrics.compute().items():
                add(f"train/{name}", step, value)
            metrics.reset()
            model.eval()
            for batch in held_out():
                evaluate(model, metrics, batch)
            for name, value in metrics.compute().items():
                add(f"test/{name}", step, value)
            metrics.reset()
    return [history]


# -- with lox ------------------------------------------------------------------------------------------------------


def loss_fn(model, batch):
    loss, accuracy = loss_and_accuracy(model, batch)
    lox.log({"loss": loss, "accuracy": accuracy})
    return loss


@nnx.jit
def update(model, optimizer, batch):
    gradient = nnx.grad(loss_fn)(model, batch)
    lox.log({"grad_norm": optax.tree.norm(gradient)})
    optimizer.update(model, gradient)


test = nnx.jit(loss_fn)


def ported(logger):
    model, optimizer, _ = start()
    run = logger.init(0, optimizer={"name": "sgd", "rate": 0.05})
    metrics = []
    for step, batch in enumerate(train_batches()):
        model.train()
        _, logs = lox.spool(update)(model, optimizer, batch)
        logger.log(run, logs.filter("grad_norm"), step=step)
        metrics.append(logs.filter(["loss", "accuracy"]))
        if (step + 1) % TEST_EVERY == 0:
            logger.log(run, mean(metrics).prefix("train/"), step=step)
            model.eval()
            tests = [lox.spool(test)(model, batch)[1] for batch in held_out()]
            logger.log(run, mean(tests).prefix("test/"), step=step)
            metrics = []
    return [run]


def mean(logs):
    return sum(logs[1:], start=logs[0]).reduce("mean")
