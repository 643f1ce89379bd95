"""Returns of episodes of 2,048 environments, logged where an episode ends.

    python docs/examples/episodes.py

Which environment is done when, only the run tells. `where=` makes each environment log its own return, and
`max_events=` bounds what is kept of each: the memory is that of 8 episodes, not of 1,000 steps. Quantiles take the
returns of all environments as one sample: those of each 250 steps in which an episode ended are a row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import lox

ENVIRONMENTS, STEPS, EPISODES = 2048, 1000, 8
QUANTILES = lox.reductions.quantiles([0.1, 0.5, 0.9], pool=True)


def rollout(key):
    """Random walks that begin anew where they leave the interval from -10 to 10; each step costs 1."""

    def step(carry, t):
        place, returns, episode = carry
        place = place + jax.random.normal(jax.random.fold_in(key, t), place.shape)
        returns = returns - 1
        done = jnp.abs(place) > 10
        lox.log({"return": returns}, where=done, step=t, episode=episode)
        return (jnp.where(done, 0, place), jnp.where(done, 0, returns), episode + done), None

    start = jnp.zeros(ENVIRONMENTS), jnp.zeros(ENVIRONMENTS), jnp.zeros(ENVIRONMENTS, jnp.int32)
    return jax.lax.scan(step, start, jnp.arange(STEPS))[0][2]


def main() -> None:
    """Runs all environments and says how their first episodes ended."""
    spooled = jax.jit(lox.spool(rollout, max_events=EPISODES))
    episodes, logs = spooled(jax.random.key(0))
    happened, dropped = logs.mask["return"], logs.dropped["return"]
    print(f"{episodes.sum()} episodes in {ENVIRONMENTS} environments: {happened.sum()} kept, {dropped.sum()} dropped")
    print(f"returns: mean {logs.valid('return').mean():.1f}, worst {logs.valid('return').min():.0f}")
    for place in range(3):
        steps, numbers = (logs.steps[name]["return"][:, place] for name in ("step", "episode"))
        kept = int(happened[:, place].sum())
        print(f"  environment {place}: episodes {numbers[:kept].tolist()} ended at steps {steps[:kept].tolist()}")
    every_step = jax.eval_shape(lox.spool(rollout), jax.random.key(0))[1]
    print(f"{size(logs) / 1e3:.0f} kB of logs; those of every step would be {size(every_step) / 1e6:.0f} MB")
    _, logs = jax.jit(lox.spool(rollout, reduce=QUANTILES, window=250))(jax.random.key(0))
    print("returns, of all environments: 10 %, median, 90 %")
    for step, row in zip(logs.steps["step"]["return"][logs.mask["return"]], logs.valid("return"), strict=True):
        print(f"  to step {step}: {', '.join(f'{each:.0f}' for each in row)}")


def size(logs):
    """The bytes of all arrays."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(logs))


if __name__ == "__main__":
    main()
