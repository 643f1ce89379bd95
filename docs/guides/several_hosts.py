import subprocess
import sys

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import lox


def train(weights, batches):
    def step(weights, now):
        i, x = now
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - x.sum(-1)) ** 2))(weights)
        lox.log({"loss": loss}, step=i)
        return weights - 0.02 * gradient, None

    return jax.lax.scan(step, weights, (jnp.arange(len(batches)), batches))[0]


def main(process, port):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # For CPUs only.
    jax.distributed.initialize(f"localhost:{port}", 2, process)
    mesh = Mesh(jax.devices(), "data")
    spread = NamedSharding(mesh, P(None, "data"))  # The examples of each batch, over the devices.
    batches = jax.jit(lambda: jax.random.normal(jax.random.key(0), (50, 64, 3)), out_shardings=spread)()

    with lox.loggers.SaveLogger("runs", name="hosts") as logger:  # All processes make the logger and the run.
        run = logger.init(0, rate=0.02)
        jax.jit(logger.tap(train, run))(jnp.zeros(3), batches)

    if jax.process_index() == 0:  # One process has written.
        logs = lox.load(logger.directory)[run.name]
        print(f"{jax.process_count()} processes, {len(logs['loss'])} events, last loss {logs['loss'][-1]:.4f}")


if len(sys.argv) > 1:
    main(*map(int, sys.argv[1:]))
else:  # On a cluster, the launcher starts the processes.
    from socket import socket

    with socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    processes = [subprocess.Popen([sys.executable, __file__, str(each), port]) for each in range(2)]
    sys.exit(max(process.wait() for process in processes))
