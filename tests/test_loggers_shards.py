"""Loggers in a `shard_map`: the runs of its lanes and of its shards, and logs that differ between these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import lox
from lox.loggers import MemoryLogger

SHARDS = 4
KEYS = np.arange(2 * SHARDS, dtype=np.uint32).reshape(SHARDS, 2)
NAMES = [f"{first:08x}{second:08x}" for first, second in KEYS]
XS = np.arange(SHARDS, dtype=np.float32)


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:SHARDS]), "d")


@pytest.fixture
def logger():
    with MemoryLogger() as logger:
        yield logger


def train(x):
    """Logs two events of what differs between shards and of what does not."""

    def step(x, i):
        lox.log({"own": x, "mean": lax.pmean(x, "d")}, step=i)
        return x + 1, None

    return lax.scan(step, x, jnp.arange(2))[0]


def on_shards(mesh, f, *specs, **options):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P("d"), **options))


def by_shard(logs, key):
    """The values of a key, and its counter, for each shard that has them."""
    found = [[] for _ in range(SHARDS)]
    for event, shard in np.argwhere(logs.mask[key]):
        found[shard].append((logs[key][event, shard].tolist(), logs.steps["step"][key][event, shard].item()))
    return found


EXPECTED = [[(x, 0), (x + 1, 1)] for x in XS.tolist()]


@pytest.mark.parametrize("mapped", [False, True])
def test_shards_whose_keys_differ_have_a_run_each(mesh, logger, mapped):
    def one(key, x):
        return logger.tap(train, logger.init(key, rate=x))(x)

    if mapped:
        per_shard = jax.vmap(one)
    else:

        def per_shard(keys, xs):
            return one(keys[0], xs[0])[None]

    jax.block_until_ready(on_shards(mesh, per_shard, P("d"), P("d"))(KEYS, XS))
    logger.flush()
    assert sorted(logger.runs) == NAMES
    for place, name in enumerate(NAMES):
        logs = logger[name]
        assert not logs.mask
        assert logs["own"].tolist() == [place, place + 1]
        assert logs["mean"].tolist() == [1.5, 2.5]
        assert logs.steps["step"]["own"].tolist() == [0, 1]
        assert logger.runs[name].config["rate"].item() == place


@pytest.mark.parametrize("check_vma", [True, False])
def test_shards_of_one_run_are_an_axis_of_it(mesh, logger, check_vma):
    tapped = logger.tap(on_shards(mesh, lambda x: train(x[0])[None], P("d"), check_vma=check_vma), logger.init(7))
    jax.block_until_ready(tapped(XS))
    logger.flush()
    logs = logger["0000000000000007"]
    assert by_shard(logs, "own") == EXPECTED
    if check_vma:
        assert logs["mean"].tolist() == [1.5, 2.5]


def test_lanes_on_shards_have_runs_each_with_an_axis_of_shards(mesh, logger):
    def one(key, x):
        return logger.tap(train, logger.init(key))(x)

    def per_shard(keys, xs):
        return jax.vmap(one, in_axes=(0, None))(keys, xs[0])

    jax.block_until_ready(on_shards(mesh, per_shard, P(), P("d"))(KEYS[:2], XS))
    logger.flush()
    assert sorted(logger.runs) == NAMES[:2]
    for name in NAMES[:2]:
        assert by_shard(logger[name], "own") == EXPECTED
        assert logger[name]["mean"].tolist() == [1.5, 2.5]


def test_lanes_around_shards_have_runs_each_with_an_axis_of_shards(mesh, logger):
    def one(key, xs):
        return logger.tap(on_shards(mesh, lambda x: train(x[0])[None], P("d")), logger.init(key))(xs)

    jax.block_until_ready(jax.jit(jax.vmap(one, in_axes=(0, None)))(KEYS[:2], XS))
    logger.flush()
    assert sorted(logger.runs) == NAMES[:2]
    for name in NAMES[:2]:
        assert by_shard(logger[name], "own") == EXPECTED
        assert logger[name]["mean"].tolist() == [1.5, 2.5]


def test_lanes_inside_of_a_run_follow_its_shards(mesh, logger):
    def per_shard(xs):
        return jax.vmap(train)(xs[0] + jnp.array([0.0, 10.0]))

    tapped = logger.tap(on_shards(mesh, per_shard, P("d")), logger.init(7))
    jax.block_until_ready(tapped(XS))
    logger.flush()
    logs = logger["0000000000000007"]
    assert logs["own"].shape[1:] == (SHARDS, 2)
    for shard in range(SHARDS):
        happened = logs.mask["own"][:, shard].all(-1)
        assert logs["own"][happened, shard].tolist() == [[shard, shard + 10], [shard + 1, shard + 11]]


@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("check_vma", [True, False])
def test_logs_that_are_written_on_shards_arrive_whole(mesh, logger, check_vma, branches):
    def f(x):
        if branches:
            lax.cond(x > 1, lambda: lox.log({"large": x}, step=5)["large"], lambda: x)
        return train(x)

    def per_shard(x):
        out, logs = lox.spool(f, unify=True)(x[0])
        logger.log(logger.init(7), logs)
        return out[None]

    jax.block_until_ready(on_shards(mesh, per_shard, P("d"), check_vma=check_vma)(XS))
    logger.flush()
    logs = logger["0000000000000007"]
    assert by_shard(logs, "own") == EXPECTED
    if branches:
        assert by_shard(logs, "large") == [[], [], [(2, 5)], [(3, 5)]]
    if check_vma:
        assert logs["mean"].tolist() == [1.5, 2.5]
        assert logs.steps["step"]["mean"].tolist() == [0, 1]


def test_counters_that_alone_differ_between_shards_arrive_with_their_values(mesh, logger):
    def per_shard(x):
        logs = lox.logdict({"one": jnp.ones(1)}, {"step": {"one": x.astype(int)}}, {}, {})
        logger.log(logger.init(7), logs)
        return x

    jax.block_until_ready(on_shards(mesh, per_shard, P("d"))(XS))
    logger.flush()
    assert by_shard(logger["0000000000000007"], "one") == [[(1, shard)] for shard in range(SHARDS)]


def test_each_device_of_a_parallel_map_is_a_shard_of_the_run(logger):
    mapped = jax.pmap(lambda x: logger.log(logger.init(7), lox.spool(train)(x)[1]), axis_name="d")
    jax.block_until_ready(mapped(XS))
    logger.flush()
    assert by_shard(logger["0000000000000007"], "own") == EXPECTED
