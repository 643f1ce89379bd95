"""lox in several processes that `jax.distributed` connects: real ones, which talk through real sockets."""

import functools

import numpy as np
import pytest
from processes import told

PROGRAM = """
def loss(w, x):
    return jnp.mean((x @ w - 1) ** 2)

def of_shardings(w, x):
    def step(w, _):
        value, gradient = jax.value_and_grad(loss)(w, x)
        lox.log({"loss": value, "residuals": x @ w - 1})
        return w - 0.1 * gradient, None
    return jax.lax.scan(step, w, length=3)[0]

def of_shards(w, x):
    def local(w, x):
        def step(w, _):
            gradient = jax.lax.pmean(jax.grad(loss)(jax.lax.pcast(w, "data", to="varying"), x), "data")
            lox.log({"norm": jnp.sum(gradient**2), "own": jnp.mean(x @ w)})
            return w - 0.1 * gradient, None
        return jax.lax.scan(step, w, length=3)[0]
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)

def of_seeds(w, x):
    def run(seed):
        def step(c, _):
            lox.log({"c": c})
            return c * 0.5 + seed, None
        return jax.lax.scan(step, seed, length=2)[0]
    return jax.vmap(run)(x[:, 0])

def of_loops(w, x):
    def local(x):
        def body(c):
            lox.log({"kept": jax.lax.pmean(c, "data"), "alone": c})
            return 2 * c
        first = 1 + jnp.float32(jax.lax.axis_index("data"))
        return jax.lax.while_loop(lambda c: jax.lax.pmean(c, "data") < 10, body, first)
    return jax.shard_map(lambda x: local(x)[None], mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)

def of_parallel_map(w, x):
    def local(x):
        lox.log({"sum": jax.lax.psum(x, "d"), "part": x})
        return x
    per_process = 4 // count
    return jax.pmap(local, axis_name="d")(np.arange(per_process) + np.float32(per_process * process))

w, x = spread(np.ones(3, np.float32)), spread(np.arange(24, dtype=np.float32).reshape(8, 3) / 24, "data")
"""
SPOOL = (
    PROGRAM
    + """
logs = {}
for fun in (of_shardings, of_shards, of_seeds, of_loops):
    logs |= jax.jit(lox.spool(fun, max_iters=2))(w, x)[1].data
logs |= lox.spool(of_parallel_map)(w, x)[1].data
for key, value in logs.items():
    for shard in value.addressable_shards:
        index = [[axis.start, axis.stop] for axis in shard.index]
        tell(key=key, shape=value.shape, index=index, values=shard.data.tolist())
"""
)
TAP = (
    PROGRAM
    + """
arrived = []
def callback(logs):
    for key, value in logs.items():
        happened = logs.mask.get(key, np.ones(value.shape, bool))
        arrived.append({"key": key, "values": value.tolist(), "happened": np.asarray(happened).tolist()})

for fun in (of_shardings, of_shards, of_seeds, of_loops):
    jax.block_until_ready(jax.jit(lox.tap(fun, callback))(w, x))
    lox.flush()
jax.block_until_ready(lox.tap(of_parallel_map, callback)(w, x))
lox.flush()
for each in arrived:
    tell(**each)
"""
)
LAYOUTS = ((1, 4), (2, 2), (4, 1))
"""Processes, and devices of each."""

SHAPES = {
    "loss": (3,),
    "residuals": (3, 8),
    "norm": (3,),
    "own": (3, 4),
    "c": (2, 8),
    "kept": (2,),
    "alone": (2, 4),
    "sum": (1, 4),
    "part": (1, 4),
}
OF_SHARDS = ("own", "alone", "sum", "part")
"""What differs between shards, or might, as pmap does not tell."""


@functools.cache
def spooled(processes, devices):
    """The logs of the program, from the parts that the devices of each process have."""
    found = {}
    for each in (each for process in told(SPOOL, processes, devices) for each in process):
        array = found.setdefault(each["key"], np.full(each["shape"], np.nan))
        array[tuple(slice(*index) for index in each["index"])] = each["values"]
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_spooled_logs_are_global_arrays_and_the_same_however_devices_are_spread(layout):
    found = spooled(*layout)
    assert {key: array.shape for key, array in found.items()} == SHAPES
    assert found["sum"].tolist() == [[6.0] * 4] and found["kept"].tolist() == [2.5, 5.0]
    for key, array in spooled(*LAYOUTS[0]).items():
        np.testing.assert_allclose(found[key], array, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_tapped_arrives_once_in_one_of_the_processes(layout):
    by_process = told(TAP, *layout)
    for key, expected in spooled(*LAYOUTS[0]).items():
        events = [[each for each in process if each["key"] == key] for process in by_process]
        if (
            key not in OF_SHARDS
        ):  # What all devices share, and what is split by its sharding, arrives at the first process.
            assert not any(events[1:])
            np.testing.assert_allclose(np.concatenate([each["values"] for each in events[0]]), expected, rtol=1e-5)
            continue
        assert all(events)  # What differs between shards arrives where they are.
        of_shard = [[] for _ in range(4)]
        for each in (each for process in events for each in process):
            for _, shard in np.argwhere(each["happened"]):
                of_shard[shard].append(each["values"][0][shard])
        np.testing.assert_allclose(np.transpose(of_shard), expected, rtol=1e-5)
