import jax
import jax.numpy as jnp

import lox

ENVS, STEPS = 8, 200


def rollout(key):
    """Random walks. An episode ends where a walk leaves the interval from -5 to 5."""

    def step(carry, t):
        place, returns = carry
        place = place + jax.random.normal(jax.random.fold_in(key, t), (ENVS,))
        returns = returns - 1
        done = jnp.abs(place) > 5
        lox.log({"return": returns}, where=done, step=t)
        return (jnp.where(done, 0, place), jnp.where(done, 0, returns)), None

    return jax.lax.scan(step, (jnp.zeros(ENVS), jnp.zeros(ENVS)), jnp.arange(STEPS))[0]


key = jax.random.key(0)

# Keep the first 3 episodes of each environment.
_, logs = jax.jit(lox.spool(rollout, max_events=3))(key)
print("shape", logs["return"].shape, "kept", logs.mask["return"].sum(), "dropped", logs.dropped["return"].sum())
print("environment 0:", logs["return"][:, 0].tolist(), "at steps", logs.steps["step"]["return"][:, 0].tolist())

# One mean for each environment, in memory for one number each.
_, logs = jax.jit(lox.spool(rollout, reduce="mean"))(key)
print("mean returns:", ", ".join(f"{mean:.1f}" for mean in logs["return"][0]))

# A row for each step in which an episode ended, with a mask that says in which environments.
with lox.loggers.SaveLogger("runs", name="episodes") as logger:
    run = logger.init(key, envs=ENVS)
    jax.jit(logger.tap(rollout, run))(key)
logs = lox.load(logger.directory)[run.name]
returns, happened = logs["return"], logs.mask["return"]
print("steps in which an episode ended:", len(returns))
print("episodes of each environment:", happened.sum(0).tolist())
print("all of environment 1:", returns[happened[:, 1], 1].tolist())

# A curve for each environment: return/0, return/1 and so on. By default it is one curve, of their mean.
with lox.loggers.TensorBoardLogger("tensorboard", batch_as="each") as logger:
    jax.jit(logger.tap(rollout, logger.init(key, envs=ENVS)))(key)
