import jax
import jax.numpy as jnp

import lox


def standardized(x):
    return (x - x.mean()) / x.std()


@jax.jit
def train(key):
    def step(weight, key):
        x = jax.random.bernoulli(key, 0.3, (8,)).astype(float)  # A feature that is rarely there.
        gradient = jax.grad(lambda w: jnp.mean((w * standardized(x) - 1) ** 2))(weight)
        return weight - 0.1 * gradient, None

    return jax.lax.scan(step, jnp.float32(0), jax.random.split(key, 20))[0]


train_all = jax.vmap(train)

if __name__ == "__main__":
    keys = jax.random.split(jax.random.key(0), 3)
    print("NaN at the end:", jnp.isnan(train_all(keys)))
    print(lox.find_nonfinite(train_all)(keys))

    lox.guard(train_all, bundle="failed")(keys)  # In a training that runs all night.
