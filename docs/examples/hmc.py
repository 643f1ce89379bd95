"""Hamiltonian Monte Carlo with blackjax: four chains at once, and what their kernel says of each step.

    python docs/examples/hmc.py

The kernel returns what it knows of a transition next to the new state, and a loop over it has to carry that outside.
Here the loop logs it: what is spooled has an axis for the chains, and what is only looked at is folded in the loop.
"""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp

import lox

CHAINS, WARMUP, STEPS = 4, 300, 1000


def log_density(position):
    """A banana: the second number follows the square of the first."""
    first, second = position
    return -0.5 * first**2 - 2 * (second - first**2) ** 2


def sample(key, start):
    """Finds a step size, then runs a chain; logs its positions and what became of each proposal."""
    warmup_key, chain_key = jax.random.split(key)
    warmup = blackjax.window_adaptation(blackjax.hmc, log_density, num_integration_steps=10)
    (state, parameters), _ = warmup.run(warmup_key, start, num_steps=WARMUP)
    lox.log({"step_size": parameters["step_size"]})
    kernel = blackjax.hmc(log_density, **parameters)

    def step(state, key):
        state, info = kernel.step(key, state)
        lox.log({"position": state.position})
        lox.log({"acceptance": info.acceptance_rate, "divergent": info.is_divergent, "energy": info.energy})
        return state, None

    return jax.lax.scan(step, state, jax.random.split(chain_key, STEPS))[0]


def split_r_hat(draws):
    """Gelman's and Rubin's statistic of draws of shape (steps, chains), with each chain cut in two."""
    halves = jnp.concatenate(jnp.split(draws, 2), axis=1)
    within, between = halves.var(0, ddof=1).mean(), halves.mean(0).var(ddof=1)
    return jnp.sqrt(1 + between / within)


def main() -> None:
    """Runs the chains, keeps the positions and folds the rest, and says what came of it."""
    keys = jax.random.split(jax.random.key(0), CHAINS)
    starts = jax.random.normal(jax.random.key(1), (CHAINS, 2))
    chains = jax.vmap(sample)

    watched = lox.spool(chains, argnames="position", keep_logs=True)
    folded = lox.spool(watched, argnames=["acceptance", "divergent", "step_size"], reduce="mean")
    (_, logs), statistics = jax.jit(folded)(keys, starts)

    print(f"positions {logs['position'].shape}: steps, chains, dimensions")
    for chain in range(CHAINS):
        size, rate, divergent = (statistics[key][0, chain] for key in ("step_size", "acceptance", "divergent"))
        print(f"  chain {chain}: step size {size:.3f}, acceptance {rate:.2f}, divergent {divergent:.3f}")
    mean = logs["position"].mean((0, 1))
    r_hat = [split_r_hat(logs["position"][..., place]) for place in range(2)]
    print(f"mean {mean[0]:.2f} {mean[1]:.2f} (0 and 1), R-hat {r_hat[0]:.3f} {r_hat[1]:.3f}")


if __name__ == "__main__":
    main()
