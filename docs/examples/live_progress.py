"""A progress bar and a table that live while a jitted loop over several seeds runs.

    python docs/examples/live_progress.py

On a terminal the table is drawn in place; in a file or a pipe it is a line every few seconds. The device sends the
means of each 200 steps, so that watching costs little and skips nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import lox

STEPS, SEEDS = 20_000, 4


def train(key, logger):
    """Learns to fit a sine with random features, by one example after the other."""
    frequencies, phases = jax.random.normal(key, (2, 32))

    def predict(weights, x):
        return jnp.cos(frequencies * x + phases) @ weights / 6

    def step(weights, i):
        x = jax.random.uniform(jax.random.fold_in(key, i), minval=-3, maxval=3)
        loss, gradient = jax.value_and_grad(lambda weights: (predict(weights, x) - jnp.sin(x)) ** 2)(weights)
        lox.log({"loss": loss, "norm": jnp.linalg.norm(gradient)}, step=i)
        return weights - 0.1 * gradient, None

    def loop(weights):
        return jax.lax.scan(step, weights, jnp.arange(STEPS))[0]

    return logger.tap(loop, logger.init(key), reduce="mean", window=200)(jnp.zeros(32))


def main() -> None:
    """Trains all seeds at once and shows how they are doing."""
    keys = jax.random.split(jax.random.key(0), SEEDS)
    with lox.loggers.ConsoleLogger(progress={"step": STEPS}) as logger:
        weights = jax.jit(jax.vmap(lambda key: train(key, logger)))(keys)
    print(f"trained {len(weights)} networks")


if __name__ == "__main__":
    main()
