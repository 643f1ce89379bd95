import jax
import jax.numpy as jnp

import lox


def train(weights, batches):
    def step(weights, now):
        i, x = now
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - x.sum(-1)) ** 2))(weights)
        lox.log({"loss": loss, "grad_norm": jnp.linalg.norm(gradient)}, step=i)
        return weights - 0.02 * gradient, None

    return jax.lax.scan(step, weights, (jnp.arange(len(batches)), batches))[0]


weights = jnp.zeros(3)
batches = jax.random.normal(jax.random.key(0), (100, 64, 3))

# Every event, as arrays on the device.
_, logs = jax.jit(lox.spool(train))(weights, batches)
print("every event:", logs["loss"].shape, "last loss", f"{logs['loss'][-1]:.4f}")

# Every 25th event.
_, logs = jax.jit(lox.spool(train, interval=25))(weights, batches)
print("every 25th:", logs.steps["step"]["loss"].tolist())

# One value for each 25 events, reduced inside the loop.
_, logs = jax.jit(lox.spool(train, reduce={"loss": "mean", "grad_norm": "max"}, window=25))(weights, batches)
print("means of 25:", ", ".join(f"{loss:.4f}" for loss in logs["loss"]))


# Streamed to the host while the loop runs.
def show(logs):
    print(f"  step {logs.steps['step']['loss'][0]}: loss {logs['loss'][0]:.4f}")


print("streamed:")
jax.jit(lox.tap(train, show, argnames="loss", interval=50))(weights, batches)
lox.flush()
