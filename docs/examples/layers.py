"""Statistics of each layer of a flax model that has no log calls, and the trajectory of a solver under `jax.grad`.

    python docs/examples/layers.py

Neither program is edited. The model is trained with activations that explode and with some that do not.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import lox


class Network(nn.Module):
    """Six layers."""

    scale: float

    @nn.compact
    def __call__(self, x):
        """Apply them."""
        init = nn.initializers.variance_scaling(self.scale, "fan_in", "normal")
        for _ in range(5):
            x = nn.relu(nn.Dense(64, kernel_init=init)(x))
        return nn.Dense(1)(x)[:, 0]


def train(network, key, steps):
    """Trains a network on noise; returns its parameters."""
    x, y = jax.random.normal(key, (2, 32, 16))
    params = network.init(key, x)

    def loss(params):
        return jnp.mean((network.apply(params, x) - y[:, 0]) ** 2)

    def step(params, _):
        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), None

    return jax.lax.scan(step, params, length=steps)[0]


def newton(x):
    """The square root of x, by a fixed number of steps of Newton's method."""
    return jax.lax.scan(lambda guess, _: (0.5 * (guess + x / guess), None), x, length=6)[0]


def main() -> None:
    """Prints both."""
    for scale in (2.0, 0.5):
        watched = lox.watch(lambda key, scale=scale: train(Network(scale), key, 20), at="**/scan/**/Dense_*")
        _, logs = jax.jit(lox.spool(watched))(jax.random.key(0))
        forward = [key for key in logs if key.endswith("/std") and "backward" not in key]
        print(f"scale {scale}: std in the last step", *(f"{logs[key][-1]:.2f}" for key in forward))

    slope, logs = lox.spool(jax.grad(lox.watch(newton, at="scan")))(9.0)
    print(f"slope {slope:.4f}, guesses", *np.round(logs["scan/value"], 3))


if __name__ == "__main__":
    main()
