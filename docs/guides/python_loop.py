import jax
import jax.numpy as jnp

import lox


def loss_fn(weights, x):
    error = x @ weights - x.sum(-1)
    lox.log({"error": jnp.abs(error).max()})
    return jnp.mean(error**2)


@jax.jit
@lox.spool
def step(weights, x):
    loss, gradient = jax.value_and_grad(loss_fn)(weights, x)
    lox.log({"loss": loss, "grad_norm": jnp.linalg.norm(gradient)})
    return weights - 0.02 * gradient


weights = jnp.zeros(3)
with lox.loggers.SaveLogger("runs", name="python-loop") as logger:
    run = logger.init(0, rate=0.02)
    for i in range(50):
        x = jax.random.normal(jax.random.key(i), (64, 3))
        weights, logs = step(weights, x)
        logger.log(run, logs, step=i)  # Does not wait for the device.

logs = lox.load(logger.directory)[run.name]
print(sorted(logs))
print(f"loss {logs['loss'][0]:.3f} at step 0, {logs['loss'][-1]:.3f} at step {logs.steps['step']['loss'][-1]}")
