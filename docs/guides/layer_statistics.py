import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import lox


class Network(nn.Module):
    """A network without log calls, as from a library."""

    @nn.compact
    def __call__(self, x):
        for width in (32, 32, 32):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(1)(x)[:, 0]


network = Network()


def train(params, x, y):
    def step(params, _):
        gradient = jax.grad(lambda params: jnp.mean((network.apply(params, x) - y) ** 2))(params)
        return jax.tree.map(lambda p, g: p - 0.05 * g, params, gradient), None

    return jax.lax.scan(step, params, length=100)[0]


def statistics(point, values):
    if point.backward:  # The gradients of the layer's bias, weights and input.
        return {"gradient": optax.tree.norm(values)}
    return {"std": values[0].std(), "negative": jnp.mean(values[0] < 0)}


x = jax.random.normal(jax.random.key(0), (64, 8))
params = network.init(jax.random.key(1), x)
watched = lox.watch(train, at="scan/**/Dense_*", what=statistics)
_, logs = jax.jit(lox.spool(watched, interval=99))(params, x, jnp.sin(x.sum(-1)))

for key in sorted(logs):
    first, last = logs[key]
    print(f"{key:38} step 0: {first:.4f}   step 99: {last:.4f}")
