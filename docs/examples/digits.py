"""Handwritten digits: four seeds at once, each with a run on disk, and a plot of what they logged.

    python docs/examples/digits.py --out digits.png

The training function is written for one seed. `vmap` makes four of it, and a logger keeps their logs apart.
"""

from __future__ import annotations

import argparse
import tempfile

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from sklearn.datasets import load_digits

import lox

SEEDS, STEPS, BATCH = 4, 300, 128
OPTIMIZER = optax.adam(3e-3)


def predict(params, images):
    """Logits of shape (images, 10)."""
    return jax.nn.relu(images @ params["hidden"]) @ params["output"]


def loss_fn(params, images, labels):
    """The mean cross entropy. The context around the call says which data and which step it is of."""
    logits = predict(params, images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    lox.log({"loss": loss, "accuracy": jnp.mean(logits.argmax(-1) == labels)})
    return loss


def train(key, images, labels, test_images, test_labels):
    """Trains a network with a hidden layer."""
    init_key, data_key = jax.random.split(key)
    hidden, output = jax.random.split(init_key)
    he_normal = jax.nn.initializers.he_normal()
    params = {"hidden": he_normal(hidden, (64, 32)), "output": he_normal(output, (32, 10))}

    def step(carry, i):
        params, state = carry
        batch = jax.random.choice(jax.random.fold_in(data_key, i), len(labels), (BATCH,), replace=False)
        with lox.context(prefix="train/", step=i):
            gradient = jax.grad(loss_fn)(params, images[batch], labels[batch])
            lox.log({"norm": optax.tree.norm(gradient)})
        updates, state = OPTIMIZER.update(gradient, state)
        params = optax.apply_updates(params, updates)
        with lox.context(prefix="test/", step=i):
            jax.lax.cond(i % 10 == 0, lambda: loss_fn(params, test_images, test_labels), lambda: jnp.float32(0))
        return (params, state), None

    return jax.lax.scan(step, (params, OPTIMIZER.init(params)), jnp.arange(STEPS))[0][0]


def main() -> None:
    """Trains, reads the runs back and draws them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", default="digits.png", help="the plot")
    out = parser.parse_args().out

    images, labels = load_digits(return_X_y=True)
    images, labels = jnp.float32(images / 16), jnp.int32(labels)
    data = images[360:], labels[360:], images[:360], labels[:360]

    with tempfile.TemporaryDirectory() as folder:
        with lox.loggers.SaveLogger(folder) as logger:

            def run(key):
                return logger.tap(train, logger.init(key, batch=BATCH), buffer=50)(key, *data)

            jax.block_until_ready(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), SEEDS)))
        logs = lox.load(logger.directory, stack=True)
        draw(logs, out)
        accuracy = logs["test/accuracy"][-1]
        print(f"{SEEDS} seeds, {len(logs['train/loss'])} steps: accuracy {accuracy.mean():.3f} ± {accuracy.std():.3f}")


def draw(logs, out):
    """Draws losses and accuracies over the steps: a line for the mean of the seeds, in a band of all."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for panel, name in zip(panels, ("loss", "accuracy"), strict=True):
        for part in ("train", "test"):
            values = np.asarray(logs[f"{part}/{name}"])  # (events, seeds)
            steps = logs.steps["step"][f"{part}/{name}"][:, 0]
            panel.fill_between(steps, values.min(1), values.max(1), alpha=0.25)
            panel.plot(steps, values.mean(1), label=part)
        panel.set(xlabel="step", ylabel=name)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_yscale("log")
    panels[1].legend(frameon=False)
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    main()
