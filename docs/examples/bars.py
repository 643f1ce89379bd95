"""Progress bars for a sampler, a training and a solver that have none.

    python docs/examples/bars.py

On a terminal the bars are drawn in place; in a file or a pipe they are lines. No program is edited: `lox.progress`
finds their loops.
"""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

import lox

CHAINS, DRAWS, STEPS, SIZES = 4, 40_000, 30_000, (40, 60, 80)


def sample(key):
    """Draws from a banana with NUTS of BlackJAX."""

    def log_density(x):
        return -0.5 * x[0] ** 2 - 2 * (x[1] - x[0] ** 2) ** 2

    kernel = blackjax.nuts(log_density, 0.5, jnp.ones(2))

    def step(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    return jax.lax.scan(step, kernel.init(jnp.ones(2)), jax.random.split(key, DRAWS))[1]


class Network(nn.Module):
    """Two layers of flax."""

    @nn.compact
    def __call__(self, x):
        """Predicts a number."""
        return nn.Dense(1)(nn.tanh(nn.Dense(256)(x)))


@jax.jit
def train(key):
    """Fits a sine in one scan, with Adam of optax."""
    network, optimizer = Network(), optax.adam(1e-3)
    params = network.init(key, jnp.ones((1, 1)))

    def step(carry, key):
        params, state = carry
        x = jax.random.uniform(key, (128, 1), minval=-3, maxval=3)
        loss, gradient = jax.value_and_grad(lambda p: jnp.mean((network.apply(p, x) - jnp.sin(x)) ** 2))(params)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(params, updates), state), loss

    return jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(key, STEPS))[1]


def relax(size):
    """Sweeps over a grid until it is hot as far as `size`: the larger, the longer."""
    place = jnp.arange(96)

    def sweep(state):
        grid, _, sweeps = state
        mean = (jnp.roll(grid, 1, 0) + jnp.roll(grid, -1, 0) + jnp.roll(grid, 1, 1) + jnp.roll(grid, -1, 1)) / 4
        new = jnp.where((place == 0)[:, None], 1.0, jnp.where((place >= size)[:, None], 0.0, mean))
        return new, jnp.abs(new - grid).max(), sweeps + 1

    start = jnp.zeros((96, 96)), jnp.float32(1), 0
    return jax.lax.while_loop(lambda state: state[1] > 1e-6, sweep, start)[2]


def main() -> None:
    """Runs one after the other, and says what came of it."""
    keys = jax.random.split(jax.random.key(0), CHAINS)
    draws = lox.progress(jax.jit(jax.vmap(sample)), label="NUTS")(keys)
    print(f"mean {draws.mean((0, 1))[0]:.1f} {draws.mean((0, 1))[1]:.1f} (0 and 1)")

    losses = lox.progress(train)(jax.random.key(1))
    print(f"loss {losses[0]:.2f} to {losses[-1]:.5f}")

    sweeps = lox.progress(jax.jit(jax.vmap(relax)), label="heat")(jnp.array(SIZES))
    print(f"sweeps {' '.join(map(str, sweeps))}")


if __name__ == "__main__":
    main()
