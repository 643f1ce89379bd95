import blackjax
import jax
import jax.numpy as jnp

import lox


def log_density(x):
    return -0.5 * jnp.sum(x**2)


kernel = blackjax.nuts(log_density, step_size=0.3, inverse_mass_matrix=jnp.ones(8))


def sample(key):
    def step(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    return jax.lax.scan(step, kernel.init(jnp.zeros(8)), jax.random.split(key, 30_000))[1]


chains = jax.jit(jax.vmap(sample))
draws = lox.progress(chains, label="NUTS")(jax.random.split(jax.random.key(0), 4))
print(draws.shape, f"standard deviation {draws.std():.2f}")
