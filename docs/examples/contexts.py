"""A model whose logs get the step, the epoch and the phase of the training from the loops around it.

    python docs/examples/contexts.py

The model logs its loss and knows nothing of steps. The step is compiled once, with its tap inside: the counters of
`lox.context` are inputs. In the second part a whole epoch is compiled, and the counter is that of the scan.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import lox

EPOCHS, STEPS = 2, 5


def loss_fn(weights, x):
    """Squared error of a linear model, logged."""
    loss = jnp.mean((x @ weights - 1.0) ** 2)
    lox.log({"loss": loss})
    return loss


def update(weights, x):
    """A step of gradient descent."""
    return weights - 0.1 * jax.grad(loss_fn)(weights, x)


def show(logs):
    """Prints each loss with its counters."""
    for key, values in logs.items():
        counters = ", ".join(f"{name} {of[key].item()}" for name, of in logs.steps.items() if key in of)
        print(f"{key:10} {values.item():.4f}  {counters}")


def main() -> None:
    """Trains twice, in a Python loop and in a scan."""
    batches = jax.random.normal(jax.random.key(0), (STEPS, 8, 3))

    step = jax.jit(lox.tap(update, show))
    evaluate = jax.jit(lox.tap(loss_fn, show))
    weights = jnp.zeros(3)
    for epoch in range(EPOCHS):
        with lox.context(epoch=epoch):
            for i, x in enumerate(batches):
                with lox.context(step=i, prefix="train/"):
                    weights = step(weights, x)
            with lox.context(prefix="test/"):
                evaluate(weights, batches[0])
    lox.flush()

    @jax.jit
    @lox.spool
    def train(weights):
        def body(weights, batch):
            i, x = batch
            with lox.context(step=i, prefix="train/"):
                return update(weights, x), None

        return jax.lax.scan(body, weights, (jnp.arange(STEPS), batches))[0]

    _, logs = train(jnp.zeros(3))
    print("steps of the scan:", logs.steps["step"]["train/loss"].tolist())


if __name__ == "__main__":
    main()
