"""Programs that run in several processes, which `jax.distributed` connects on this machine."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRELUDE = """
import json, os, sys
import jax
jax.config.update("jax_num_cpu_devices", {devices})
jax.config.update("jax_cpu_collectives_implementation", "gloo")
if {count} > 1:
    jax.distributed.initialize("127.0.0.1:{port}", {count}, {process}, heartbeat_timeout_seconds={heartbeat})
import jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import lox
process, count = {process}, {count}
mesh = Mesh(np.array(jax.devices()), ("data",))

def spread(values, *axes):
    "A global array, of which each device has a part."
    values = np.asarray(values)
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, P(*axes)), lambda index: values[index])

def tell(**told):
    print("TOLD " + json.dumps(told), flush=True)

"""


class Processes:
    """Processes that run the same code, and what each of them tells.

    Attributes:
        running: The processes.
    """

    def __init__(self, code, count=2, devices=1, environment=(), heartbeat=100):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **dict(environment)}
        given = {"count": count, "devices": devices, "port": port, "heartbeat": heartbeat}
        self.running = [
            subprocess.Popen(
                [sys.executable, "-c", PRELUDE.format(process=each, **given) + code],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for each in range(count)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()

    def told(self, timeout=300):
        """What each process told, one after the other, when all have ended well."""
        found = []
        for process in self.running:
            out, error = process.communicate(timeout=timeout)
            assert process.returncode == 0, f"{out}\n{error}"
            lines = [line for line in out.splitlines() if line.startswith("TOLD ")]
            found.append([json.loads(line.removeprefix("TOLD ")) for line in lines])
        return found


def told(code, count=2, devices=1):
    """What each of several processes told that ran some code."""
    with Processes(code, count, devices) as processes:
        return processes.told()
