import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

CHAINS = 3


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(slope * x, noise), obs=y)


def sample(key, x, y):
    mcmc = MCMC(
        NUTS(model),
        num_warmup=100,
        num_samples=100,
        num_chains=CHAINS,
        chain_method="vectorized",
    )
    mcmc.run(key, x, y)
    return mcmc.get_samples(group_by_chain=True)


if __name__ == "__main__":
    x = jnp.linspace(-1, 1, 50)
    y = 2 * x + 0.3 * jax.random.normal(jax.random.key(0), x.shape)
    draws = sample(jax.random.key(1), x, y)
    for chain in range(CHAINS):
        print(f"chain {chain}: slope {draws['slope'][chain].mean():.2f}, noise {draws['noise'][chain].mean():.2f}")
