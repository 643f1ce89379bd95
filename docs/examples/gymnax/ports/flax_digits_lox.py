import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import lox


class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.output = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        hidden = nnx.relu(self.hidden(x))
        lox.log({"dead": jnp.mean(hidden.max(0) == 0)})
        return self.output(self.dropout(hidden))


def loss_fn(model, images, labels):
    logits = model(images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    lox.log({"loss": loss, "accuracy": jnp.mean(logits.argmax(-1) == labels)})
    return loss


@nnx.jit
@lox.spool
def train_step(model, optimizer, images, labels):
    gradient = nnx.grad(loss_fn)(model, images, labels)
    lox.log({"norm": optax.tree.norm(gradient)})
    optimizer.update(model, gradient)


if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)
    images, labels = np.float32(images / 16), np.int32(labels)
    rng = np.random.default_rng(0)
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    with lox.loggers.SaveLogger("runs", name="digits") as logger:
        run = logger.init(0, rate=3e-3)
        for step in range(100):
            batch = rng.integers(len(labels), size=128)
            _, logs = train_step(model, optimizer, images[batch], labels[batch])
            logger.log(run, logs, step=step)
    history = lox.load(logger.directory)[run.name]
    print(f"accuracy {history['accuracy'][0]:.2f} to {history['accuracy'][-1]:.2f}, loss {history['loss'][-1]:.3f}")
    print(f"dead units {history['dead'][-1]:.2f}")
