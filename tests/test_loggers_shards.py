"""Loggers in a `shard_map`: the runs of its lanes and of its shards, and logs that differ between these."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from runs import name_of

import lox
from lox.loggers import MemoryLogger, _processes

SHARDS = 4
KEYS = np.arange(2 * SHARDS, dtype=np.uint32).reshape(SHARDS, 2)
NAMES = [name_of(key) for key in KEYS]
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


def check_two_runs(logger):
    """Checks that two lanes have a run each, in which all shards are."""
    assert sorted(logger.runs) == sorted(NAMES[:2])
    for name in NAMES[:2]:
        assert by_shard(logger[name], "own") == EXPECTED
        assert logger[name]["mean"].tolist() == [1.5, 2.5]


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
    names = [name_of(key, rate=x) for key, x in zip(KEYS, XS, strict=True)]
    assert sorted(logger.runs) == sorted(names)
    for place, name in enumerate(names):
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
    logs = logger[name_of(7)]
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
    check_two_runs(logger)


def test_lanes_around_shards_have_runs_each_with_an_axis_of_shards(mesh, logger):
    def one(key, xs):
        return logger.tap(on_shards(mesh, lambda x: train(x[0])[None], P("d")), logger.init(key))(xs)

    jax.block_until_ready(jax.jit(jax.vmap(one, in_axes=(0, None)))(KEYS[:2], XS))
    logger.flush()
    check_two_runs(logger)


def test_lanes_inside_of_a_run_follow_its_shards(mesh, logger):
    def per_shard(xs):
        return jax.vmap(train)(xs[0] + jnp.array([0.0, 10.0]))

    tapped = logger.tap(on_shards(mesh, per_shard, P("d")), logger.init(7))
    jax.block_until_ready(tapped(XS))
    logger.flush()
    logs = logger[name_of(7)]
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
    logs = logger[name_of(7)]
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
    assert by_shard(logger[name_of(7)], "one") == [[(1, shard)] for shard in range(SHARDS)]


def test_each_device_of_a_parallel_map_is_a_shard_of_the_run(logger):
    mapped = jax.pmap(lambda x: logger.log(logger.init(7), lox.spool(train)(x)[1]), axis_name="d")
    jax.block_until_ready(mapped(XS))
    logger.flush()
    assert by_shard(logger[name_of(7)], "own") == EXPECTED


@pytest.mark.parametrize("check_vma", [True, False])
def test_shards_of_one_config_are_of_one_run_and_those_of_others_have_a_run_each(mesh, logger, check_vma):
    def per_shard(rate, x):
        state = logger.init(7, rate=rate, wide=np.int64(2**40))
        return logger.tap(train, state)(x[0])[None]

    jax.block_until_ready(on_shards(mesh, lambda x: per_shard(1.0, x), P("d"), check_vma=check_vma)(XS))
    logger.flush()
    name = name_of(7, rate=1, wide=2**40)
    assert list(logger.runs) == [name] and by_shard(logger[name], "own") == EXPECTED
    config = logger.runs[name].config
    assert config["rate"].tolist() == 1 and config["wide"].tolist() == 2**40
    jax.block_until_ready(on_shards(mesh, lambda x: per_shard(x[0] + 2, x), P("d"))(XS))
    logger.flush()
    for place, rate in enumerate(XS + 2):
        assert logger[name_of(7, rate=rate, wide=2**40)]["own"].tolist() == [place, place + 1]


def test_shards_that_compute_one_config_apart_are_an_error(mesh, logger):
    def per_shard(x):
        return logger.tap(train, logger.init(7, rate=x[0] * 0))(x[0])[None]

    jax.block_until_ready(on_shards(mesh, per_shard, P("d"))(XS))
    with pytest.raises(lox.LogValueError, match=f"Two shards of a shard_map log to run {name_of(7, rate=0)}"):
        logger.flush()


@pytest.mark.filterwarnings("ignore:.* does not write what process")
@pytest.mark.parametrize("of_each", [False, True])
def test_what_differs_between_shards_is_refused_by_a_process_that_is_not_the_first(mesh, logger, monkeypatch, of_each):
    monkeypatch.setattr(_processes, "here", lambda: _processes.Here(process=1, processes=2, devices=SHARDS))

    def per_shard(key, x):
        return logger.tap(train, logger.init(key[0] if of_each else 7))(x[0])[None]

    jax.block_until_ready(on_shards(mesh, per_shard, P("d"), P("d"))(KEYS, XS))
    with pytest.raises(lox.LogValueError, match="it differs between the shards of a shard_map"):
        logger.flush()


def test_two_shards_with_one_key_that_do_not_tell_so_are_an_error(mesh, logger):
    def per_shard(key, x):
        return logger.tap(train, logger.init(key[0]))(x[0])[None]

    jax.block_until_ready(on_shards(mesh, per_shard, P("d"), P("d"))(KEYS[[0, 0, 1, 1]], XS))
    with pytest.raises(lox.LogValueError, match="Two shards of a shard_map log to run"):
        logger.flush()


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", [{"buffer": 2}, {"interval": 2}, {"interval": 2, "buffer": 3}])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.filterwarnings("ignore:interval= of lox.tap skips nothing:lox._exceptions.TapWarning")
def test_a_buffer_goes_past_shards_of_which_it_is_not_known_what_differs(mesh, options, around, parallel):
    def local(x):
        return lox.log({"x": x})["x"]

    if parallel:
        mapped = jax.pmap(local)
    else:
        mapped = jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=False)

    def f(xs):
        lox.log({"sum": xs.sum()})
        out = mapped(xs)
        lox.log({"sum": 2 * xs.sum()})
        lox.log({"sum": 3 * xs.sum()})
        return out

    arrived = []
    assert lox.tap(around(f), arrived.append, **options)(XS).tolist() == XS.tolist()
    lox.flush()
    sums = [value for logs in arrived if "sum" in logs for value in logs["sum"].tolist()]
    assert sums == ([6, 18] if "interval" in options else [6, 12, 18])
    assert sorted(value for logs in arrived if "x" in logs for value in logs.valid("x").flat) == XS.tolist()


def in_cond(f, x):
    return lax.cond(x > 1, f, lambda x: x, x)


def in_while(f, x):
    return lax.while_loop(lambda c: c < 3, lambda c: f(c) + 1, x)


@pytest.mark.covering(1)
@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("options", [{}, {"buffer": 3}])
@pytest.mark.parametrize("part", [in_cond, in_while])
def test_what_a_tap_in_a_branch_that_shards_take_apart_would_lose_is_refused(mesh, part, options, jitted):
    def tapped(f):
        inner = lox.tap(f, lambda logs: arrived.extend(logs.valid("v").tolist()), **options)
        around = jax.jit if jitted else lambda f: f
        return around(jax.shard_map(lambda x: part(inner, x[0])[None], mesh=mesh, in_specs=P("d"), out_specs=P("d")))

    arrived = []
    jax.block_until_ready(tapped(lambda x: lox.log({"v": x})["v"])(XS))  # Of each shard that comes there.
    lox.flush()
    assert sorted(arrived) == ([2, 3] if part is in_cond else [0, 1, 1, 2, 2, 2])
    with pytest.raises(lox.UnsupportedPrimitiveError, match="to which perhaps others come alone"):
        tapped(lambda x: (lox.log({"v": jnp.float32(5)}), x)[1])(XS)


@pytest.mark.parametrize("part", [in_cond, in_while])
def test_a_tap_in_a_branch_that_shards_take_together_has_what_they_share_once(mesh, part):
    def f(x):
        return (lox.log({"v": jnp.float32(5)}), x)[1]

    def per_shard(x):
        return part(lox.tap(f, lambda logs: arrived.extend(logs["v"].tolist())), lax.pmean(x[0], "d"))

    arrived = []
    jax.block_until_ready(jax.jit(jax.shard_map(per_shard, mesh=mesh, in_specs=P("d"), out_specs=P()))(XS))
    lox.flush()
    assert arrived == ([5] if part is in_cond else [5, 5])


def test_a_tap_on_shards_of_a_batch_that_is_split_over_others_is_refused():
    grid = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))

    def f(x):
        return lox.log({"v": x})["v"]

    def of_all(f, around=lambda f: f):
        sharded = jax.shard_map(f, mesh=grid, in_specs=P("b"), out_specs=P("b"))
        return around(jax.vmap(jax.jit(sharded), spmd_axis_name="a"))(XS.reshape(2, 2))

    with pytest.raises(lox.UnsupportedPrimitiveError, match="tap.vmap.f, spmd_axis_name"):
        of_all(lox.tap(f, lambda logs: None))
    arrived = []
    of_all(f, lambda mapped: lox.tap(mapped, lambda logs: arrived.extend(logs.valid("v").flat)))
    lox.flush()
    assert sorted(arrived) == XS.tolist()
