import jax
import jax.numpy as jnp


def loss_fn(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)


@jax.jit
def step(weights, x, y):
    return weights - 0.1 * jax.grad(loss_fn)(weights, x, y)


if __name__ == "__main__":
    weights = jnp.zeros((3, 1))
    for i in range(3):
        x = jax.random.normal(jax.random.key(i), (64, 3))
        y = x.sum(-1)  # Of shape (64,), where x @ weights has shape (64, 1).
        weights = step(weights, x, y)
