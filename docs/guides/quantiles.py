import jax
import jax.numpy as jnp

import lox


def train(key):
    def step(scale, key):
        activations = jax.nn.relu(scale * jax.random.normal(key, (256, 64)))
        lox.log({"activations": activations})
        return scale * 1.002, None

    return jax.lax.scan(step, jnp.float32(1), jax.random.split(key, 1000))[0]


key = jax.random.key(0)
quantiles = lox.reductions.quantiles([0.5, 0.9, 0.99], pool=True)  # Of all 256 x 64 elements together.
histogram = lox.reductions.histogram([0, 1, 2, 4, 8], pool=True)

_, logs = jax.jit(lox.spool(train, reduce=quantiles, window=250))(key)
print("50 %, 90 %, 99 % of each 250 steps:")
for row in logs["activations"]:
    print("  ", ", ".join(f"{quantile:.2f}" for quantile in row))

_, logs = jax.jit(lox.spool(train, reduce=histogram))(key)
print("below 0, 0 to 1, 1 to 2, 2 to 4, 4 to 8, above:", logs["activations"][0].tolist())
