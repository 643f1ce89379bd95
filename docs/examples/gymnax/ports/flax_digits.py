import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits


class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.output = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        return self.output(self.dropout(nnx.relu(self.hidden(x))))


def loss_fn(model, images, labels):
    logits = model(images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, jnp.mean(logits.argmax(-1) == labels)


@nnx.jit
def train_step(model, optimizer, images, labels):
    (loss, accuracy), gradient = nnx.value_and_grad(loss_fn, has_aux=True)(model, images, labels)
    optimizer.update(model, gradient)
    return {"loss": loss, "accuracy": accuracy, "norm": optax.tree.norm(gradient)}


if __name__ == "__main__":
    images, labels = load_digits(return_X_y=True)
    images, labels = np.float32(images / 16), np.int32(labels)
    rng = np.random.default_rng(0)
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    history = {"loss": [], "accuracy": [], "norm": []}
    for _ in range(100):
        batch = rng.integers(len(labels), size=128)
        metrics = train_step(model, optimizer, images[batch], labels[batch])
        for name, value in metrics.items():
            history[name].append(float(value))  # Waits for the device in each step.
    print(f"accuracy {history['accuracy'][0]:.2f} to {history['accuracy'][-1]:.2f}, loss {history['loss'][-1]:.3f}")
