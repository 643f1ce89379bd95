import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import lox

CHECKPOINT = pathlib.Path("checkpoint.npz")
crash_at = int(sys.argv[1]) if len(sys.argv) > 1 else None


@jax.jit
@lox.spool
def update(weight):
    lox.log({"loss": (weight - 3) ** 2})
    return weight - 0.2 * (weight - 3)


weight, start = jnp.float32(0), 0
if CHECKPOINT.exists():
    saved = np.load(CHECKPOINT)
    weight, start = jnp.asarray(saved["weight"]), int(saved["step"])
print("start at step", start)

with lox.loggers.SaveLogger("runs", name="job", resume="latest", from_step=start) as logger:
    run = logger.init(0, rate=0.2)
    for step in range(start, 12):
        if step == crash_at:
            print("crash at step", step)
            sys.exit()
        weight, logs = update(weight)
        logger.log(run, logs, step=step)
        if (step + 1) % 5 == 0:
            logger.flush()  # The logs reach at least as far as the checkpoint.
            np.savez(CHECKPOINT, weight=weight, step=step + 1)

logs = lox.load(logger.directory)[run.name]
print("steps", logs.steps["step"]["loss"].tolist())
