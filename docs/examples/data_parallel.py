"""Data-parallel training that logs the same on one device, on several, and in several processes.

    python docs/examples/data_parallel.py
    python docs/examples/data_parallel.py --devices 4
    python docs/examples/data_parallel.py --devices 2 --processes 2

Nothing about logging depends on where it runs: each event is written once. The devices are the host's CPU, split; with
`--processes` the program starts itself so often, as a cluster's launcher would.
"""

from __future__ import annotations

import argparse
import functools
import socket
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import lox

OPTIMIZER = optax.adam(3e-3)
BATCH = 256
EPOCHS = 10


def main() -> None:
    """Trains, or starts the processes that do."""
    options = arguments()
    out = options.out or tempfile.mkdtemp()
    if options.processes > 1 and options.process is None:
        start_processes(options.processes, f"--out={out}")
        return
    jax.config.update("jax_num_cpu_devices", options.devices)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{options.port}", options.processes, options.process)

    mesh = Mesh(np.array(jax.devices()), "data")
    params = init(jax.random.key(0))
    state = OPTIMIZER.init(params)
    everywhere = NamedSharding(mesh, P())
    params, state = jax.tree.map(lambda array: placed(array, everywhere), (params, state))
    images, labels = (placed(array, NamedSharding(mesh, P(None, "data"))) for array in batches())

    with lox.loggers.SaveLogger(out) as logger:
        run = logger.init(0, batch=BATCH, devices=jax.device_count(), processes=jax.process_count())
        params, state = jax.jit(logger.tap(train, run))(params, state, images, labels)
    if jax.process_index() == 0:
        losses = lox.load(logger.directory)[run.name]["loss"]
        print(f"{jax.device_count()} devices, {len(losses)} steps: loss {losses[0]:.4f} to {losses[-1]:.4f}, in {out}")


def train(params, state, images, labels):
    """Updates by one batch after the other. Their examples are spread over devices, which this does not show."""

    def update(carry, batch):
        params, state, step = carry
        (loss, accuracy), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params, *batch)
        lox.log({"loss": loss, "accuracy": accuracy, "norm": optax.tree.norm(gradients)}, step=step)
        updates, state = OPTIMIZER.update(gradients, state)
        return (optax.apply_updates(params, updates), state, step + 1), None

    def epoch(carry, _):
        return jax.lax.scan(update, carry, (images, labels))

    (params, state, _), _ = jax.lax.scan(epoch, (params, state, 0), length=EPOCHS)
    return params, state


def loss_fn(params, images, labels):
    """The mean cross entropy, and the accuracy, of a batch of shape (examples, 64)."""
    hidden = jax.nn.relu(images @ params["hidden"])
    logits = hidden @ params["output"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, jnp.mean(logits.argmax(-1) == labels)


def init(key):
    """The weights of a network with a hidden layer."""
    hidden, output = jax.random.split(key)
    he_normal = jax.nn.initializers.he_normal()
    return {"hidden": he_normal(hidden, (64, 64)), "output": he_normal(output, (64, 10))}


def batches():
    """The handwritten digits that ship with scikit-learn, of shape (batches, examples, 64), and their labels."""
    images, labels = load_digits(return_X_y=True)
    count = len(labels) // BATCH
    images, labels = np.float32(images / 16)[: count * BATCH], np.int32(labels)[: count * BATCH]
    return images.reshape(count, BATCH, 64), labels.reshape(count, BATCH)


def placed(array, sharding):
    """An array on the devices of all processes, each of which has the whole of it on its host."""
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, functools.partial(array.__getitem__))


def start_processes(count: int, *more: str) -> None:
    """Runs this program in several processes on this machine."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *sys.argv, f"--port={port}", *more]
    running = [subprocess.Popen([*command, f"--process={process}"]) for process in range(count)]
    try:
        sys.exit(max(process.wait() for process in running))
    finally:
        for process in running:
            process.kill()


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1, help="of each process")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", help="the directory for the run; a new one by default")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
