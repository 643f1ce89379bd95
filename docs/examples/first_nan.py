"""Where a training of several seeds first has a NaN: guarded while it runs, replayed, and mended.

    python docs/examples/first_nan.py

A policy is trained on advantages that are divided by their standard deviation. In one batch all rewards are equal.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import lox


def normalized(rewards):
    """Advantages of mean 0 and standard deviation 1."""
    advantages = rewards - rewards.mean()
    return advantages / advantages.std()


def normalized_safely(rewards):
    """The same, and 0 where all rewards are equal."""
    advantages = rewards - rewards.mean()
    return advantages / (advantages.std() + 1e-6)


def training(normalize):
    """A function of the parameters of all seeds and of batches that trains each seed."""

    def loss(params, batch):
        states, actions, rewards = batch
        chosen = jnp.take_along_axis(jax.nn.log_softmax(states @ params), actions[:, None], axis=1)[:, 0]
        return -jnp.mean(chosen * normalize(rewards))

    def train(params, batches):
        def step(params, batch):
            return params - 0.1 * jax.grad(loss)(params, batch), None

        return jax.lax.scan(step, params, batches)[0]

    return jax.jit(jax.vmap(train))


def main() -> None:
    """Trains 4 seeds for 50 steps, finds the NaN, and trains again without it."""
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(4, 50, 32)).astype(np.float32)
    rewards[2, 31] = 1.0
    actions = rng.integers(0, 3, size=(4, 50, 32)).astype(np.int32)
    batches = rng.normal(size=(4, 50, 32, 8)).astype(np.float32), actions, rewards
    params = np.zeros((4, 8, 3), np.float32)

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train = lox.guard(training(normalized), bundle=Path(folder) / "failed")
        train(params, batches)
        lox.flush()
        print(*(f"{each.category.__name__}: {str(each.message).partition('. ')[0]}" for each in warned))
        print(lox.replay(Path(folder) / "failed", train))

    mended = training(normalized_safely)
    print(lox.find_nonfinite(mended)(params, batches))


if __name__ == "__main__":
    main()
