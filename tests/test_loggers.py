"""Loggers: the runs that logs belong to, and how they get to the thread that writes them."""

import contextlib
import copy
import dataclasses
import itertools
import pickle
import subprocess
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from reference import assert_array
from runs import name_of

import lox
from lox import _channel
from lox._deliver import DEVICES
from lox._run_all import each
from lox.loggers import Logger, MemoryLogger, MultiLogger, _processes, _state, _writing
from lox.loggers._histogram import histogram
from lox.loggers._names import escaped
from lox.loggers._rows import rows
from lox.loggers._run import Run
from lox.loggers._state import labels

jits = pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
ways = pytest.mark.parametrize("way", ["tap", "spool"])
SEVEN = name_of(7)


def keys(count=3):
    return jax.random.split(jax.random.key(0), count)


def walk(x):
    """Logs three numbers, of which those over 2 once more."""

    def step(x, i):
        lox.log({"x": x}, step=i)
        lax.cond(x > 2, lambda: lox.log({"large": {"x": x}})["large"]["x"], lambda: x)
        return x + 1, None

    return lax.scan(step, x, jnp.arange(3))[0]


def logging(logger, way, f, **config):
    """A function of a key and an argument, of a run of its own."""

    def g(key, *args):
        state = logger.init(key, **config)
        options = {"unify": True} if way == "spool" else {}
        return getattr(logger, way)(f, state, **options)(*args)

    return g


# -- runs ----------------------------------------------------------------------------------------------------------


@jits
@ways
def test_each_lane_is_a_run_with_its_own_events(jit, way):
    logger = MemoryLogger()
    out = jit(jax.vmap(logging(logger, way, walk)))(keys(), jnp.arange(3.0))
    logger.flush()
    assert_array(out, [3.0, 4.0, 5.0])
    assert set(logger.runs) == {*map(name_of, keys())}
    for lane, name in enumerate(map(name_of, keys())):
        values = lane + np.arange(3.0)
        logs = logger[name]
        assert_array(logs["x"], values)
        assert_array(logs.steps["step"]["x"], np.arange(3, dtype=np.int32))
        large = values[values > 2]
        assert_array(logs["large/x"], large) if large.size else assert_absent(logs, "large/x")
        assert not logs.mask


def assert_absent(logs, key):
    assert key not in logs


@jits
@ways
@pytest.mark.parametrize("transform", ["one", "vmap of one", "nested vmap", "scan", "grad", "inside of jit"])
def test_transformations_around_a_logger(jit, way, transform):
    logger = MemoryLogger()
    g = logging(logger, way, lambda x: lox.log({"x": x})["x"] ** 2)
    if transform == "one":
        jit(g)(keys(1)[0], 1.0)
        expected = [[1.0]]
    elif transform == "vmap of one":
        jit(jax.vmap(g))(keys(1), jnp.ones(1))
        expected = [[1.0]]
    elif transform == "nested vmap":
        jit(jax.vmap(jax.vmap(g)))(keys(6).reshape(2, 3), jnp.arange(6.0).reshape(2, 3))
        expected = [[float(i)] for i in range(6)]
    elif transform == "scan":
        jit(lambda key: lax.scan(lambda x, _: (g(key, x) + 1, None), 0.0, length=3))(keys(1)[0])
        expected = [[0.0, 1.0, 2.0]]
    elif transform == "grad":
        assert_array(jit(jax.grad(g, argnums=1))(keys(1)[0], 3.0), 6.0)
        expected = [[3.0]]
    else:
        jit(lambda key: jax.jit(g)(key, 1.0) + jax.jit(g)(key, 1.0))(keys(1)[0])
        expected = [[1.0, 1.0]]
    logger.flush()
    assert sorted(logger[run]["x"].tolist() for run in logger.runs) == expected


@jits
@ways
def test_a_batch_inside_of_a_run_is_an_axis_of_its_values(jit, way):
    def f(xs):
        return jax.vmap(lambda x: lax.cond(x > 1, lambda: lox.log({"x": x})["x"], lambda: x))(xs)

    logger = MemoryLogger()
    jit(jax.vmap(logging(logger, way, f)))(keys(2), jnp.arange(6.0).reshape(2, 3))
    logger.flush()
    first, second = (logger[name] for name in map(name_of, keys(2)))
    assert_array(first["x"], [[np.nan, np.nan, 2.0]])
    assert_array(first.mask["x"], [[False, False, True]])
    assert_array(second["x"], [[3.0, 4.0, 5.0]])
    assert not second.mask


def test_a_step_is_that_of_the_first_lane_in_which_the_event_happened():
    steps = []

    class Steps(Logger):
        def write(self, run, logs):
            steps.append((run.steps(logs, "x").tolist(), run.steps(logs, "y").tolist()))

    def f(xs, i):
        def log_one(x):
            lax.cond(x > 1, lambda: lox.log({"x": x}, step=i + x), lambda: {"x": x})
            lox.log({"y": x})

        jax.vmap(log_one)(xs)

    with Steps() as logger:
        for i in range(2):
            logger.tap(f, logger.init(7), buffer=2)(jnp.array([0, 2, 3]), 10 * i)
    assert steps == [([2], [0]), ([12], [1])]


def batches(xs):
    """Logs with every number of batch axes, with and without a counter and a mask."""
    jax.vmap(lambda x: lox.log({"x": x, "pair": jnp.stack([x, x])}))(xs)
    jax.vmap(lambda x: lox.log({"counted": x}, step=3))(xs)
    jax.vmap(lambda x: jax.vmap(lambda y: lox.log({"two": y}))(jnp.stack([x, x])))(xs)
    lox.log({"where": xs}, where=xs > 1)
    lox.log({"everywhere": xs}, where=xs > -1)
    lox.log({"vector": xs, "number": jnp.sum(xs)})
    return jnp.sum(xs)


BATCH_AXES = {"x": 1, "pair": 1, "counted": 1, "two": 2, "where": 1, "everywhere": 1, "vector": 0, "number": 0}


@jits
@ways
@pytest.mark.parametrize("around", ["nothing", "vmap", "grad", "scan"])
def test_a_run_says_how_many_batch_axes_the_values_have_that_are_written(jit, way, around):
    found = []

    class Axes(Logger):
        def write(self, run, logs):
            assert run.batch_ndim.keys() == logs.keys()
            assert not any(name.startswith("\0") for name in logs.steps)
            found.extend(run.batch_ndim.items())

    around = {
        "nothing": lambda f: lambda keys, xs: f(keys[0], xs),
        "vmap": lambda f: lambda keys, xs: jax.vmap(f, in_axes=(0, None))(keys, xs),
        "grad": lambda f: lambda keys, xs: jax.grad(f, argnums=1)(keys[0], xs),
        "scan": lambda f: lambda keys, xs: lax.scan(lambda x, key: (x + f(key, xs), None), 0.0, keys),
    }[around]
    with Axes() as logger:
        jit(around(logging(logger, way, batches)))(keys(2), jnp.arange(3.0))
    assert set(found) == set(BATCH_AXES.items())


def test_the_batch_axes_of_collected_logs_are_those_of_their_counters_and_masks():
    found = {}

    class Axes(Logger):
        def write(self, run, logs):
            found.update(run.batch_ndim)

    _, logs = lox.spool(batches)(jnp.arange(3.0))
    with Axes() as logger:
        logger.log(logger.init(7), logs)
    assert found == BATCH_AXES | {"x": 0, "pair": 0, "two": 0}


@jits
@pytest.mark.parametrize("batch_as", ["mean", "each", "histogram"])
def test_a_logger_that_keeps_arrays_keeps_what_spool_returns(jit, batch_as, tmp_path):
    everything = {"argnames": [key for key in BATCH_AXES if key != "where" and key != "everywhere"]}
    for options in (everything, {"argnames": "where"}):
        _, expected = lox.spool(batches, **options)(jnp.arange(3.0))
        memory = MemoryLogger(batch_as=batch_as)
        saver = lox.loggers.SaveLogger(tmp_path / str(len(expected)), batch_as=batch_as)
        with MultiLogger(memory, saver) as logger:
            jit(logger.spool(batches, logger.init(7), **options))(jnp.arange(3.0))
        kept, saved = memory[SEVEN], lox.load(saver.directory)[SEVEN]
        assert kept == saved == expected


def test_handlers_further_out_hear_of_no_batch_axes():
    with MemoryLogger() as logger:
        _, logs = lox.spool(logger.spool(batches, logger.init(7), keep_logs=True))(jnp.arange(3.0))
        _, alone = lox.spool(batches)(jnp.arange(3.0))
    assert logs == alone and set(logs.steps) == {"step"}


def test_what_shards_have_of_their_own_has_a_batch_axis_of_shards():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    found = []

    class Axes(Logger):
        def write(self, run, logs):
            found.extend(run.batch_ndim.items())

    def f(x):
        lox.log({"own": jnp.sum(x), "same": jnp.float32(1)})
        jax.vmap(lambda x: lox.log({"x": x}))(x)
        return x

    g = jax.shard_map(f, mesh=mesh, in_specs=PartitionSpec("d"), out_specs=PartitionSpec("d"))
    with Axes() as logger:
        jax.jit(lambda x: logger.tap(g, logger.init(7))(x))(jnp.arange(4.0))
        jax.jit(lambda x: logger.spool(g, logger.init(7))(x))(jnp.arange(4.0))
    assert set(found) == {("own", 1), ("same", 0), ("x", 2)}


@jits
def test_what_describes_a_run_may_differ_by_lane_and_be_traced(jit):
    logger = MemoryLogger()

    def g(key, lr):
        state = logger.init(key, lr=lr, optimizer={"name": "adam", "nesterov": None}, layers=[8, 4])
        return logger.tap(walk, state)(lr)

    jit(jax.vmap(g))(keys(), jnp.arange(3.0))
    logger.flush()
    for lane, key in enumerate(keys()):
        described = {"lr": lane, "optimizer": {"name": "adam", "nesterov": None}, "layers": [8, 4]}
        config = logger.runs[name_of(key, described)].config
        assert (config["lr"], config["layers/0"], config["layers/1"]) == (lane, 8, 4)
        assert (config["optimizer/name"], config["optimizer/nesterov"]) == ("adam", None)


def test_init_touches_no_host_and_is_a_pytree():
    logger = MemoryLogger()
    state = jax.jit(lambda key: logger.init(key, lr=0.5))(jax.random.key(0))
    assert [leaf.shape for leaf in jax.tree.leaves(state)] == [(2,), (2,)]
    assert not logger.runs
    assert_array(jax.vmap(logger.init)(keys()).words, jax.random.key_data(keys()))


def test_a_state_is_a_frozen_dataclass_whose_leaves_have_names():
    state = MemoryLogger().init(7, lr=0.5, model="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.words = ()
    other = dataclasses.replace(state, static=dataclasses.replace(state.static, texts=(("model", "b"),)))
    assert state.static.texts == (("model", "a"),) and other.words is state.words
    plain = dataclasses.replace(state, words=7, config={})  # Arrays compare one by one.
    assert plain == dataclasses.replace(plain) != dataclasses.replace(plain, words=8)
    paths, _ = jax.tree.flatten_with_path(state)
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [".words", ".config['lr']"]


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # A function that is called again begins at step 0 again.
def test_states_of_different_numbers_are_of_one_structure():
    logger, traced = MemoryLogger(), []

    @jax.jit
    def train(state, x):
        traced.append(x)
        return logger.tap(walk, state)(x)

    states = [logger.init(seed, lr=lr, model="a") for seed, lr in ((0, 0.1), (1, 1e-300))]
    assert len({jax.tree.structure(state) for state in states}) == 1
    assert hash(jax.tree.structure(states[0])) == hash(jax.tree.structure(states[1]))
    assert jax.tree.structure(logger.init(0, lr=0.1, model="b")) != jax.tree.structure(states[0])
    for state in states:
        train(state, 1.0)
    assert len(traced) == 1
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    jax.vmap(train)(stacked, jnp.ones(2))
    _, (carried, _) = lax.scan(lambda state, x: (state, (state, train(state, x))), states[0], jnp.ones(2))
    assert jax.tree.structure(carried) == jax.tree.structure(states[0])
    lax.cond(True, lambda: states[0], lambda: states[1])
    logger.flush()
    assert [run.config["lr"].item() for run in logger.runs.values()] == [0.1, 1e-300]
    assert [len(logger[name]["x"]) for name in logger.runs] == [12, 6]


@jits
def test_numbers_that_describe_a_run_are_kept_or_traced(jit):
    logger = MemoryLogger()
    jit(jax.vmap(lambda key, lr: logging(logger, "tap", walk, lr=lr, decay=0.1)(key, lr)))(
        keys(2), jnp.float32([0.1, 0.2])
    )
    logger.flush()
    found = [(run.config["lr"].item(), run.config["decay"].item()) for run in logger.runs.values()]
    assert found == [(np.float32(0.1).item(), 0.1), (np.float32(0.2).item(), 0.1)]


@jits
def test_what_describes_a_run_in_64_bits_of_jax_is_kept(jit):
    logger = MemoryLogger()
    with jax.enable_x64(True):
        jit(jax.vmap(lambda key, lr: logging(logger, "tap", walk, lr=lr, decay=0.1)(key, lr)))(
            keys(1), jnp.array([0.3])
        )
        logger.flush()
    (run,) = logger.runs.values()
    assert (run.config["lr"], run.config["decay"]) == (0.3, 0.1)


@pytest.mark.parametrize("config", [{"a/b": 1, "a": {"b": 2}}, {"a/b": "text", "a": {"b": 2}}])
def test_two_values_of_one_name_that_describe_a_run_are_an_error(config):
    with pytest.raises(lox.LogValueError, match="called 'a/b' after"):
        MemoryLogger().init(7, **config)


@pytest.mark.parametrize(
    "key", [7, np.int64(7), np.array(7), jnp.int32(7), jax.random.key(7), jax.random.PRNGKey(7), np.uint32([0, 7])]
)
def test_a_run_is_named_by_a_key_or_a_seed(key):
    logger = MemoryLogger()
    logger.log(logger.init(key), lox.logdict({"x": np.arange(2)}))
    logger.flush()
    assert list(logger.runs) == [SEVEN]


def test_memory_keeps_events_of_one_key_that_differ_apart():
    logger = MemoryLogger()
    parts = [
        lox.logdict({"x": np.float32([1]), "y": np.float32([5])}),
        lox.logdict({"x": np.float32([2])}, {"step": {"x": np.int32([20])}}),
        lox.logdict({"x": np.ones((1, 2), np.float32), "x#2": np.float32([6])}),
        lox.logdict({"x": np.float32([3])}),
        lox.logdict({"x": np.float32([4])}, {"step": {"x": np.int32([40])}}),
    ]
    for part in parts:
        logger.log(logger.init(7), part)
    logger.flush()
    logs = logger[SEVEN]
    assert {key: values.tolist() for key, values in logs.items()} == {
        "x": [1, 3],
        "y": [5],
        "x#2": [6],
        "x#3": [2, 4],
        "x#4": [[1, 1]],
    }
    assert logs.steps["step"].keys() == {"x#3"} and logs.steps["step"]["x#3"].tolist() == [20, 40]


def test_seeds_may_be_traced():
    logger = MemoryLogger()
    jax.jit(jax.vmap(lambda seed: logger.tap(walk, logger.init(seed))(0.0)))(jnp.arange(7, 9))
    logger.flush()
    assert sorted(logger.runs) == sorted(map(name_of, (7, 8)))


def test_a_key_of_another_implementation_names_a_run():
    logger = MemoryLogger()
    logger.tap(walk, logger.init(jax.random.key(7, impl="rbg")))(0.0)
    logger.flush()
    (name,) = logger.runs
    assert name == name_of(jax.random.key(7, impl="rbg")) and name.startswith("seed=7-")


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # As above.
def test_the_same_key_is_the_same_run():
    logger = MemoryLogger()
    for start in (0.0, 10.0):
        logger.tap(walk, logger.init(7))(start)
    logger.flush()
    assert_array(logger[SEVEN]["x"], [0.0, 1.0, 2.0, 10.0, 11.0, 12.0])


@ways
def test_lanes_of_one_run_are_an_error_that_says_what_to_do(way):
    logger = MemoryLogger()
    state = logger.init(0)
    options = {"unify": True} if way == "spool" else {}
    jax.vmap(getattr(logger, way)(walk, state, **options))(jnp.arange(2.0))
    with pytest.raises(lox.LogDataError, match="Give each a key or a config of its own"):
        logger.flush()


@ways
def test_handlers_further_out_hear_what_they_would_hear_without_a_logger(way):
    logger = MemoryLogger()
    g = logging(logger, way, walk, lr=0.5)
    _, logs = lox.spool(jax.vmap(g), unify=True)(keys(), jnp.arange(3.0))
    assert set(logs) == (set() if way == "spool" else {"x", "large/x"})
    assert set(logs.steps) == (set() if way == "spool" else {"step"})
    logger.flush()
    assert len(logger.runs) == 3


@pytest.mark.parametrize("options", [{"buffer": 2}, {"interval": 2}, {"buffer": 2, "interval": 2}, {"prefix": "p/"}])
def test_options_of_tap(options):
    logger = MemoryLogger()
    state = logger.init(7)
    jax.jit(logger.tap(walk, state, **options))(0.0)
    logger.flush()
    values = np.arange(3.0, dtype=np.float32)[:: options.get("interval", 1)]
    assert_array(logger[SEVEN][options.get("prefix", "") + "x"], values)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"argnames": "x"}, [0.0, 1.0, 2.0]),
        ({"argnames": "x", "reduce": "mean"}, [1.0]),
        ({"interval": 2, "argnames": "x"}, [0.0, 2.0]),
    ],
)
def test_options_of_spool(options, expected):
    logger = MemoryLogger()
    jax.jit(logger.spool(walk, logger.init(7), **options))(0.0)
    logger.flush()
    assert set(logger[SEVEN]) == {"x"}
    assert_array(logger[SEVEN]["x"], expected)


def test_what_a_bounded_loop_dropped_is_said():
    logger = MemoryLogger()

    def f(n):
        return lax.while_loop(lambda i: i < n, lambda i: lox.log({"i": i})["i"] + 1, 0)

    jax.jit(logger.spool(f, logger.init(7), max_iters=2))(jnp.int32(5))
    with pytest.raises(lox.SpoolWarning, match=r"3 events of 'i' of run seed=7-\w+ were dropped"):
        logger.flush()
    assert logger[SEVEN]["i"].tolist() == [0, 1]


@pytest.mark.filterwarnings("ignore::lox.SpoolWarning")
def test_what_bounded_loops_dropped_is_added_up():
    logger = MemoryLogger()
    run = logger.init(7)

    def f(n):
        return lax.while_loop(lambda i: i < n, lambda i: lox.log({"i": i})["i"] + 1, 0)

    for count in (5, 7):
        logger.log(run, lox.spool(f, max_events=2)(count)[1])
        logger.flush()
    assert logger[run]["i"].tolist() == [0, 1, 0, 1]
    assert logger[run].dropped["i"] == 3 + 5


def test_a_logger_that_was_writing_when_its_process_was_forked_takes_nothing_in_the_child():
    logger = MemoryLogger()
    logger._forked(is_whole=False)
    with pytest.raises(lox.LogValueError, match="was still writing 5 s after"):
        logger.log(logger.init(7), {"x": 1})


def test_shards_log_to_one_run():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    logger = MemoryLogger()

    def f(x):
        return lax.scan(lambda x, i: (lox.log({"x": x}, step=i)["x"] + 1, None), x, jnp.arange(3))[0]

    spec = PartitionSpec("d")
    g = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
    jax.jit(lambda key, x: logger.tap(g, logger.init(key))(x))(jax.random.key(7), jnp.arange(8.0))
    logger.flush()
    logs = logger[SEVEN]
    assert logs["x"].shape == (12, 4, 2)  # Each shard sends its own, of which a mask tells.
    for shard in range(4):
        mine = logs.mask["x"][:, shard]
        assert_array(logs["x"][mine][:, shard], np.arange(8.0).reshape(4, 2)[shard] + np.arange(3.0)[:, None])


def test_a_key_logged_once_more_in_every_event_of_a_batch_of_many_runs():
    logger = MemoryLogger()
    lanes = 256
    jax.jit(jax.vmap(logging(logger, "tap", walk)))(keys(lanes), jnp.arange(float(lanes)))
    logger.flush()
    assert len(logger.runs) == lanes
    for lane, key in enumerate(keys(lanes)):
        assert_array(logger[name_of(key)]["x"], lane + np.arange(3.0, dtype=np.float32))


def test_counters_of_a_call_are_those_of_keys_that_have_none_of_the_name():
    for jit in (lambda f: f, jax.jit):
        check_counters_of_a_call(jit)


def check_counters_of_a_call(jit):
    """Checks them also along the batch axes of a key, of which its other counters and its mask tell."""
    mask = np.array([[True, False], [True, True]])
    data = {
        "own": jnp.arange(2.0),
        "bare": jnp.arange(4.0).reshape(2, 2),
        "masked": jnp.ones((2, 2)),
        "lanes": jnp.ones((2, 2)),
    }
    steps = {"step": {"own": jnp.array([5, 6])}, "epoch": {"lanes": jnp.array([[1, 2], [3, 4]])}}
    logs = lox.logdict(data, steps, {"masked": jnp.asarray(mask)})
    logger = MemoryLogger()
    run = logger.init(7)
    jit(lambda logs, step: logger.log(run, logs, step=step, lr=0.5))(logs, jnp.int32(9))
    jit(lambda: logger.log(run, {"one": 1.0, "two": 2.0}, lr=np.float32(0.25)))()
    logger.flush()
    found = logger[run]
    assert {name: {key: step.tolist() for key, step in of.items()} for name, of in found.steps.items()} == {
        "step": {"own": [5, 6], "bare": [9, 9], "masked": [[9, 9], [9, 9]], "lanes": [[9, 9], [9, 9]]},
        "epoch": {"lanes": [[1, 2], [3, 4]]},
        "lr": {
            "own": [0.5, 0.5],
            "bare": [0.5, 0.5],
            "masked": [[0.5, 0.5], [0.5, 0.5]],
            "lanes": [[0.5, 0.5], [0.5, 0.5]],
            "one": [0.25],
            "two": [0.25],
        },
    }
    assert {key: of.tolist() for key, of in found.mask.items()} == {"masked": mask.tolist()}
    assert {*found} == {*data, "one", "two"} and found["bare"].tolist() == [[0, 1], [2, 3]]
    for name in ("tags", "prefix", "where"):
        with pytest.raises(lox.LogValueError, match=f"logger.log takes no {name}=, which is of lox.log"):
            logger.log(run, {"x": 1}, **{name: 1, "zzz": 2})


def test_several_loggers_that_fail_are_flushed_and_closed_and_named(tmp_path):
    class Noted(Logger):
        def __init__(self, number):
            super().__init__()
            self.number, self.calls = number, []

        def write(self, run, logs):
            self.calls.append(logs["x"].tolist())
            raise OSError(f"no {self.number % 3}")

        def finish(self, run):
            self.calls.append(run.name)

        def __repr__(self):
            return f"Noted({self.number})"

    loggers = [Noted(number) for number in range(5)]
    logger = MultiLogger(*loggers[:2], MultiLogger(*loggers[2:]), name="a")
    assert repr(logger) == "MultiLogger(Noted(0), Noted(1), MultiLogger(Noted(2), Noted(3), Noted(4)))"
    run = logger.init(7)
    for place in range(2):
        logger.log(run, {"x": place})
        with pytest.warns(lox.LoggerWarning) if not place else contextlib.nullcontext():
            with pytest.raises(OSError) as raised:
                logger.flush()
        notes = raised.value.__notes__
        assert str(raised.value)[:3] == "no " and notes[0].startswith("The error was raised by Noted(")
    with contextlib.suppress(OSError):
        logger.close()
    assert [inner.calls for inner in loggers] == [[[0], [1], SEVEN]] * 5
    for closed in (logger, *loggers):
        with pytest.raises(lox.LogValueError, match="was closed"):
            closed.log(run, {"x": 1})
    memory, saver, board = MemoryLogger(), lox.loggers.SaveLogger("a/b"), lox.loggers.TensorBoardLogger("c")
    console = lox.loggers.ConsoleLogger({"step": 3})
    assert [*map(repr, (memory, saver, board, console, lox.loggers.ConsoleLogger()))] == [
        "MemoryLogger()",
        "SaveLogger('a/b')",
        "TensorBoardLogger('c')",
        "ConsoleLogger({'step': 3})",
        "ConsoleLogger()",
    ]


@pytest.mark.filterwarnings("always::lox.TapWarning")
def test_a_process_that_is_not_the_first_writes_nothing_and_says_so_once(monkeypatch):
    found = {}
    for word in (None, "first", "all"):
        for devices in (4, 1):
            monkeypatch.setattr(_processes, "here", lambda devices=devices: _processes.Here(1, 2, devices))
            monkeypatch.setattr(_processes.Processes, "shares", lambda self: False)  # As after all have agreed.
            logger = MemoryLogger(processes=word)
            run = logger.init(7)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always", lox.TapWarning)
                for _ in range(2):
                    logger.log(run, {"y": 1.0})
                    logger.flush()
                # As of a program of two devices.
                steps = {name: {"x": np.uint32([word])} for name, word in labels(run).items()}
                logger._learn(run._number, run._describe)
                logger._take(lox.logdict({"x": np.ones(1)}, steps | {DEVICES: {"x": np.array([2])}}))
                try:
                    logger.flush()
                except lox.LogValueError as error:
                    found[word, devices] = str(error)
            found.setdefault((word, devices), [str(each.message) for each in warned])
            written = [*logger[run]] if logger.runs else []
            assert written == (["y", "x"] if word == "all" else [])
    says = (
        f"MemoryLogger() does not write what process 1 of 2 logs to run {SEVEN}, since the first process writes. Say "
        'that all processes log the same with processes="first", or let each write its own with processes="all".'
    )
    assert found[None, 4] == [says, says]  # Some of several devices may be those of another process.
    assert found["first", 4] == [says] and found["all", 4] == found["all", 1] == []
    for word in (None, "first"):
        assert "it arrives where the first device of the program's mesh is" in found[word, 1]


# -- wrong use -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["seed", 1.5, None, np.zeros(2), True])
def test_what_is_no_key(key):
    with pytest.raises(lox.LogDataError, match="A run has a PRNG key"):
        MemoryLogger().init(key)


@pytest.mark.parametrize("seed", [2**32, -(2**31) - 1])
def test_a_seed_that_jax_would_cut(seed):
    with pytest.raises(lox.LogDataError, match=f"32 bits unless jax_enable_x64 is set, got {seed}"):
        MemoryLogger().init(seed)


def test_several_keys_at_once():
    with pytest.raises(lox.LogDataError, match="an array of keys of shape"):
        MemoryLogger().init(keys())


@ways
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_state_of_several_keys(way, count):
    logger = MemoryLogger()
    states = jax.vmap(logger.init)(keys(count))
    with pytest.raises(lox.LogDataError, match=f"an array of keys of shape \\({count},\\)"):
        getattr(logger, way)(jax.vmap(walk), states)
    with pytest.raises(lox.LogDataError, match="an array of keys of shape"):
        logger.log(states, lox.logdict({"x": np.zeros(1)}))


def test_values_without_an_axis_of_events():
    logger = MemoryLogger()
    with pytest.raises(lox.LogDataError, match="first axis, and the values of 'x' have none"):
        logger.log(logger.init(0), lox.logdict({"x": np.float32(1)}))


def test_a_counter_of_a_call_may_have_the_name_of_a_key():
    logger = MemoryLogger()
    logger.log(logger.init(np.uint32([0, 7])), lox.logdict({"x": np.ones(2)}), x=3)
    logger.flush()
    assert logger[SEVEN].steps["x"]["x"].tolist() == [3, 3]


def test_a_logger_that_was_not_initialized():
    class Mine(Logger):
        def __init__(self):
            self.mine = 1

    with pytest.raises(lox.LogValueError, match=r"Mine.__init__ must call super\(\).__init__\(\)"):
        Mine().tap(walk, Mine().init(0))


@pytest.mark.parametrize("name", ["_run_of", "_runs", "dropped", "tap"])
def test_attributes_of_a_logger_that_are_taken(name):
    class Mine(Logger):
        def __init__(self):
            vars(self)[name] = 1
            super().__init__()

    with pytest.raises(lox.LogValueError, match=f"Mine sets the attribute '{name}', which lox.loggers.Logger has"):
        Mine()


def test_without_a_state():
    with pytest.raises(lox.LogDataError, match="needs the state of a run"):
        MemoryLogger().tap(walk)
    with pytest.raises(lox.LogDataError, match="needs the state of a run"):
        MemoryLogger().log(jax.random.key(0), lox.logdict())


def test_what_is_no_logs():
    logger = MemoryLogger()
    with pytest.raises(lox.LogDataError, match="logger.log takes a mapping from key to arrays, got 1.0 of type float"):
        logger.log(logger.init(0), 1.0)


def test_a_logger_as_decorator():
    logger = MemoryLogger()

    @jax.jit
    @logger.tap(run=logger.init(7), argnames="x")
    def f(x):
        return walk(x)

    f(0.0)
    logger.flush()
    assert_array(logger[SEVEN]["x"], [0.0, 1.0, 2.0])


def test_a_closed_logger_takes_no_logs():
    with MemoryLogger() as logger:
        f = logger.tap(walk, logger.init(7))
        f(0.0)
    assert_array(logger[SEVEN]["x"], [0.0, 1.0, 2.0])
    f(0.0)
    with pytest.raises(lox.LogValueError, match="was closed"):
        lox.flush()
    logger.close()
    with pytest.raises(lox.LogValueError, match=r"^MemoryLogger\(\) was closed, and can be given no more logs.$"):
        logger.tap(walk, logger.init(7))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("of", [MemoryLogger, lambda: MultiLogger(MemoryLogger())])
def test_a_logger_is_not_copied(copied, of):
    with of() as logger, pytest.raises(lox.LogDataError, match="cannot be copied or pickled"):
        copied(logger)


def test_the_name_of_a_state_is_that_of_its_run():
    logger = MemoryLogger()
    for key in (7, jax.random.key(3), jax.random.key(0, impl="rbg"), jax.random.PRNGKey(-1)):
        state = logger.init(key)
        logger.log(state, lox.logdict({"x": np.zeros(1)}))
        logger.flush()
        assert state.name == list(logger.runs)[-1]
    states = jax.vmap(logger.init)(jax.random.split(jax.random.key(0), 2))
    for call in (lambda: states.name, lambda: jax.jit(lambda state: state.name)(state)):
        with pytest.raises(lox.LogValueError, match="A run has a name outside of jit and vmap"):
            call()


def test_a_run_may_be_described_by_typed_keys():
    logger = MemoryLogger()
    logger.log(logger.init(7, noise=jax.random.key(3)), {"x": 1.0})
    logger.flush()
    (run,) = logger.runs.values()
    assert_array(np.asarray(run.config["noise"]), np.uint32([0, 3]))


def test_a_large_array_that_several_devices_have_can_be_donated_when_it_was_logged():
    mesh = Mesh(np.array(jax.devices()), "d")
    weights = jax.device_put(jnp.arange(8000.0), jax.NamedSharding(mesh, PartitionSpec())).block_until_ready()
    logger = MemoryLogger()
    run = logger.init(7)
    logger.log(run, {"weights": weights})
    jax.jit(lambda x: -x, donate_argnums=0)(weights).block_until_ready()
    assert weights.is_deleted()
    logger.flush()
    assert_array(logger[run]["weights"], np.arange(8000, dtype=np.float32)[None])


def test_nothing_is_synced_after_it_was_finished():
    calls = []

    class Noted(Logger):
        def write(self, run, logs):
            calls.append("write")

        def sync(self):
            calls.append("sync")

        def finish(self, run):
            calls.append("finish")

    for _ in range(20):
        with Noted() as logger:
            logger.tap(walk, logger.init(7))(0.0)
        assert calls.count("finish") == 1
        assert calls[-2:] == ["sync", "finish"]
        calls.clear()


# -- threads and faults --------------------------------------------------------------------------------------------


def counting(length):
    return lambda x: lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=length)[0]


class Slow(Logger):
    def __init__(self, **options):
        super().__init__(**options)
        self.values = []
        self.go_on = threading.Event()

    def write(self, run, logs):
        self.go_on.wait()
        self.values += logs["x"].tolist()


def test_a_program_waits_for_room():
    logger = Slow(room=2)
    done = threading.Event()

    def run():
        logger.tap(
            lambda x: lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=20)[0], logger.init(0)
        )(0.0)
        jax.effects_barrier()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.5)
    assert not done.is_set()
    logger.go_on.set()
    thread.join()
    logger.flush()
    assert logger.values == [float(i) for i in range(20)] and logger.dropped == 0


def test_what_finds_no_room_is_dropped_and_counted_when_asked():
    loggers = [Slow(room=2, overflow="drop") for _ in range(2)]
    for logger in loggers:
        for i in range(10):
            logger.log(logger.init(0), lox.logdict({"x": np.float32([i])}))
        logger.go_on.set()
        logger.flush()
        assert logger.dropped == 10 - len(logger.values) and 2 <= len(logger.values) <= 3
    assert MultiLogger(*loggers).dropped == sum(logger.dropped for logger in loggers)


class Faulty(Logger):
    def write(self, run, logs):
        raise OSError("disk full")


def test_one_logger_that_fails_keeps_nothing_from_the_others():
    good = MemoryLogger()
    logger = MultiLogger(Faulty(), good)
    logger.tap(walk, logger.init(7))(0.0)
    with pytest.raises(OSError, match="disk full") as raised:
        logger.flush()
    assert any("Faulty()" in note for note in raised.value.__notes__)
    assert_array(good[SEVEN]["x"], [0.0, 1.0, 2.0])
    logger.flush()


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_thread_does_not_end_that_of_a_logger(raised):
    values = []

    class Quitter(Logger):
        def write(self, run, logs):
            if logs["x"] == 1:
                raise raised("disk full")
            values.extend(logs["x"])

    logger = Quitter()
    for i in range(3):
        logger.log(logger.init(0), lox.logdict({"x": np.float32([i])}))
    with pytest.raises(raised, match="disk full"):
        logger.flush()
    assert values == [0.0, 2.0]
    logger.close()


def test_two_threads_each_log_to_their_run():
    logger, switches = MemoryLogger(), sys.getswitchinterval()
    states = [logger.init(np.uint32([0, run])) for run in (1, 2)]

    def work(run):
        for _ in range(500):
            logger.log(states[run - 1], lox.logdict({"x": np.float32([run])}))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(run,)) for run in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switches)
    logger.flush()
    for run in (1, 2):
        assert_array(logger[name_of(run)]["x"], np.full(500, float(run)))


def test_what_was_logged_may_be_written_over():
    for size in (1, 400, 600, 5000):  # Up to some size arrays are copied as bytes.
        logger = MemoryLogger()
        values, steps, event = np.zeros(size), np.zeros(size, int), np.zeros((2, size), np.float32)
        state = logger.init(np.uint32([0, 7]))
        for i in range(5):
            values[:], steps[:], event[:] = i, 10 * i, i
            logger.log(state, lox.logdict({"x": values}, {"step": {"x": steps}}))
            logger.log(state, {"event": event, "view": event.T})
        values[:], steps[:], event[:] = 9, 9, 9
        logger.flush()
        logs = logger[SEVEN]
        np.testing.assert_array_equal(logs["x"], np.repeat(np.arange(5), size))
        np.testing.assert_array_equal(logs.steps["step"]["x"], np.repeat(10 * np.arange(5), size))
        for key in ("event", "view"):
            np.testing.assert_array_equal(logs[key][:, 0, 0], np.arange(5))
            assert (logs[key] == logs[key][:, :1, :1]).all()


@pytest.mark.parametrize("end", ["flush", "close"])
def test_flush_and_close_end_while_other_threads_log(end):
    finished = []

    class Counting(Logger):
        def __init__(self):
            super().__init__(room=2)
            self.count = 0

        def write(self, run, logs):
            assert not finished
            self.count += 1
            time.sleep(1e-3)

        def finish(self, run):
            finished.append(run.name)

    logger, accepted, gone_on = Counting(), [], threading.Event()
    state = logger.init(np.uint32([0, 7]))

    def work():
        try:
            while not gone_on.is_set() or end == "close":
                logger.log(state, lox.logdict({"x": np.ones(1)}))
                accepted.append(1)
        except lox.LogValueError:
            assert logger._worker.stopped

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    closers = [threading.Thread(target=getattr(logger, end), daemon=True) for _ in range(3)]
    for thread in closers:
        thread.start()
    for thread in closers:
        thread.join(30)
        assert not thread.is_alive()
    gone_on.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    logger.close()
    assert logger.count == len(accepted) and finished == [SEVEN]


def test_a_logger_may_log_to_itself_without_room():
    class Echo(Logger):
        def __init__(self):
            super().__init__(room=1)
            self.values = []

        def write(self, run, logs):
            self.values.extend(logs["x"].tolist())
            for value in logs["x"]:
                if value < 3:
                    self.log(state, lox.logdict({"x": np.array([value + 1])}))
                    self.log(state, lox.logdict({"x": np.array([10.0])}))

    logger = Echo()
    state = logger.init(np.uint32([0, 7]))
    logger.log(state, lox.logdict({"x": np.zeros(1)}))
    logger.close()
    assert logger.values == [0, 1, 10, 2, 10, 3, 10]


def test_waiting_for_all_loggers_while_others_are_made():
    class Changing(list):
        def __iter__(self):
            if not attempts:
                attempts.append(1)
                raise RuntimeError("Set changed size during iteration")
            return super().__iter__()

    attempts = []
    assert _channel.members(Changing([1, 2])) == [1, 2] and attempts


def test_flush_of_lox_waits_for_loggers_too():
    logger = Slow()
    logger.tap(counting(3), logger.init(7))(0.0)
    threading.Timer(0.3, logger.go_on.set).start()
    lox.flush()
    assert logger.values == [0.0, 1.0, 2.0]


def test_flush_syncs_what_arrives_meanwhile_though_other_logs_always_wait(monkeypatch):
    calls, enough = [], threading.Event()

    class Endless(Logger):
        def write(self, run, logs):
            calls.append("write")
            if not enough.is_set():
                self.log(state, logs)

        def sync(self):
            calls.append("sync")

    logger = Endless()
    state = logger.init(7)
    arriving = [lambda: logger.log(state, lox.logdict({"x": np.ones(1)}))]
    monkeypatch.setattr(jax, "effects_barrier", lambda: arriving and arriving.pop()())
    logger.flush()
    assert calls[0] == "write" and "sync" in calls
    enough.set()
    logger.close()


def test_a_logger_syncs_ten_times_a_second_while_other_logs_always_wait():
    calls, enough = [], threading.Event()

    class Endless(Logger):
        def write(self, run, logs):
            calls.append(("write", time.monotonic()))
            if not enough.is_set():
                self.log(state, logs)

        def sync(self):
            calls.append(("sync", time.monotonic()))
            if sum(name == "sync" for name, _ in calls) == 3:
                enough.set()

    logger = Endless()
    state = logger.init(7)
    logger.log(state, {"x": 1.0})
    assert enough.wait(30)
    logger.close()
    times = [at for name, at in calls if name == "sync"][:3]
    assert calls[0][0] == "write" and all(later - at >= 0.1 for at, later in itertools.pairwise(times))


def test_flush_waits_for_the_last_log():
    logger = Slow()
    logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
    threading.Timer(0.1, logger.go_on.set).start()
    lox.flush()
    assert logger.values == [1.0]


class Diary(Logger):
    """Notes what is done on its thread, where the first write waits until it may go on, and what fails there."""

    def __init__(self):
        super().__init__()
        self.calls, self.fails = [], ""
        self.go_on = threading.Event()
        self.state = self.init(7)

    def give(self):
        self.log(self.state, lox.logdict({"x": np.ones(1)}))

    def note(self, call):
        self.calls.append(call)
        if self.fails == call:
            raise OSError(f"no {call}")

    def write(self, run, logs):
        self.go_on.wait()
        self.note("write")

    def sync(self):
        self.note("sync")

    def finish(self, run):
        self.note("finish")


def test_a_logger_syncs_when_no_more_logs_wait():
    logger = Diary()
    for _ in range(5):
        logger.give()
    logger.go_on.set()
    lox.flush()
    assert logger.calls == ["write"] * 5 + ["sync"]
    logger.close()


def test_what_comes_after_the_flush_of_close_is_synced_before_the_end():
    class Late(Diary):
        def flush(self):
            super().flush()
            self.give()

        def write(self, run, logs):
            while not self._worker.stopped:
                time.sleep(1e-3)
            self.note("write")

    logger = Late()
    logger.close()
    assert logger.calls == ["write", "sync", "finish"]


def test_flush_and_close_raise_what_syncing_and_finishing_raise():
    logger = Diary()
    logger.go_on.set()
    logger.give()
    logger.flush()
    for fails, end in (("sync", logger.flush), ("finish", logger.close)):
        logger.fails = fails
        with pytest.raises(OSError, match=f"no {fails}"):
            end()


def test_flush_syncs_though_it_raises():
    def fails(logs):
        raise OSError("no callback")

    logger = Diary()
    logger.go_on.set()
    logger.give()
    logger.flush()
    logger.calls.clear()
    lox.tap(counting(1), fails)(0.0)
    with pytest.raises(OSError, match="no callback"):
        logger.flush()
    assert "sync" in logger.calls
    logger.close()


@pytest.mark.parametrize("end", ["flush", "close"])
def test_a_logger_may_flush_and_close_itself(end):
    class Ending(Diary):
        def write(self, run, logs):
            super().write(run, logs)
            getattr(self, end)()

    logger = Ending()
    logger.go_on.set()
    logger.give()
    closer = threading.Thread(target=logger.close, daemon=True)
    closer.start()
    closer.join(10)
    assert not closer.is_alive()
    assert [call for call in logger.calls if call != "sync"] == ["write", "finish"]
    lox.flush()


def test_a_buffer_of_several_keys_arrives_whole():
    def f(x):
        def step(x, i):
            lox.log({"x": x}, step=i)
            lox.log({"y": jnp.stack([x, x])})
            return x + 1, None

        return lax.scan(step, x, jnp.arange(5))[0]

    logger = MemoryLogger()
    jax.jit(logger.tap(f, logger.init(7), buffer=4))(0.0)
    logger.flush()
    logs = logger[SEVEN]
    assert_array(logs["x"], np.arange(5.0))
    assert_array(logs["y"], np.stack([np.arange(5.0)] * 2, 1))


def test_an_error_inside_of_with_is_the_one_that_is_raised():
    with pytest.raises(KeyError, match="mine") as raised, Faulty() as logger:
        logger.tap(walk, logger.init(7))(0.0)
        raise KeyError("mine")
    assert any("disk full" in note for note in raised.value.__notes__)


def test_threads_log_to_runs_of_their_own_in_order():
    logger = MemoryLogger()

    def run(seed):
        f = jax.jit(
            logger.tap(
                lambda x: lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=50)[0], logger.init(seed)
            )
        )
        f(float(seed * 100))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.flush()
    for seed in range(4):
        assert_array(logger[name_of(seed)]["x"], seed * 100 + np.arange(50.0, dtype=np.float32))


def test_what_waits_at_the_end_of_the_process_is_written():
    program = """
import time, jax.numpy as jnp, lox
class Printer(lox.loggers.Logger):
    def write(self, run, logs):
        time.sleep(0.05)
        print(logs["x"].tolist(), flush=True)
    def finish(self, run):
        print("finished", run.name, flush=True)
logger = Printer()
for i in range(5):
    logger.tap(lambda x: lox.log({"x": x}), logger.init(7))(jnp.float32(i))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split("\n") == ["[0.0]", "[1.0]", "[2.0]", "[3.0]", "[4.0]", f"finished {SEVEN}", ""]


def test_a_closed_logger_has_no_thread():
    before = set(threading.enumerate())
    first, second = lox.loggers.MemoryLogger(), lox.loggers.MemoryLogger()
    with lox.loggers.MultiLogger(first, second) as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.zeros(1)}))
    first.flush()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("around", [lambda f: f, jax.jit])
def test_a_key_may_have_the_name_of_its_counter(around):
    with MemoryLogger() as logger:
        spooled = logger.spool(lambda x: lox.log({"step": x, "data": 2 * x}, step=3)["step"], logger.init(7))
        around(spooled)(jnp.float32(1))
    logs = logger[SEVEN]
    assert (logs["step"].tolist(), logs["data"].tolist()) == ([1], [2])
    assert {key: step.tolist() for key, step in logs.steps["step"].items()} == {"step": [3], "data": [3]}


def test_a_histogram_of_equal_numbers_is_one_wide():
    for number in (0.0, 1.0, -3.0):
        counts, edges = histogram(np.full(5, number))
        assert counts.sum() == 5
        np.testing.assert_array_equal(edges[[0, -1]], [number - 0.5, number + 0.5])


def test_a_name_that_a_sink_takes_is_no_longer_than_it_may_be_and_of_one_key():
    for longest in (40, 250):
        keys = ["k" * length + end for length in (longest - 1, longest, longest + 50) for end in "ab"]
        names = [escaped(key, r"[^\w-]", longest) for key in keys]
        assert len(set(names)) == len(names)
        assert max(map(len, names)) == longest
        assert names[:2] == keys[:2]


def test_a_seed_has_as_many_bits_as_a_key_takes():
    logger = MemoryLogger()
    for seed in (2**31, 2**32 - 1, -(2**31)):
        logger.init(seed)
    for seed in (2**32, -(2**31) - 1):
        with pytest.raises(lox.LogDataError, match="A seed has 32 bits"):
            logger.init(seed)


def test_counters_in_another_order_are_those_of_one_key():
    logger = MemoryLogger()
    run = logger.init(0)
    for names in (("epoch", "step"), ("step", "epoch")):
        logger.log(run, lox.logdict({"x": np.zeros(1)}, {name: {"x": np.zeros(1, np.int32)} for name in names}))
    logger.flush()
    assert {key: len(values) for key, values in logger[run.name].items()} == {"x": 2}


def test_an_unsigned_step_is_a_step():
    logs = lox.logdict({"x": np.arange(2.0)}, {"step": {"x": np.array([3, 5], np.uint32)}})
    assert [(row.step, row.counted) for row in rows(Run((0,)), logs, whole=True)] == [(3, True), (5, True)]


def test_rows_go_on_where_the_run_is_and_leave_out_what_is_complex():
    found, logs = [], lox.logdict({"a": np.ones(1, complex), "b": np.ones((2, 1)), "c": np.zeros((2, 3))})
    with pytest.raises(lox.LogDataError, match="'a' is complex"):
        for row in rows(Run((0,), seen={"b": 5, "c": 5}), logs):
            found.append((row.step, row.numbers, list(row.arrays)))
    assert found == [(5, {"b": 1}, ["c"]), (6, {"b": 1}, ["c"])]


def test_a_run_in_which_no_event_of_a_key_happened_does_not_have_it():
    logger = MemoryLogger()

    def f(key, x):
        def logging(x):
            return lax.cond(x > 0, lambda x: lox.log({"x": x})["x"], lambda x: x, x)

        return logger.tap(logging, logger.init(key))(x)

    jax.vmap(f)(jax.random.split(jax.random.key(0), 2), jnp.array([1.0, -1.0]))
    logger.flush()
    assert [list(logger[run]) for run in logger.runs] == [["x"]]


def test_of_several_errors_the_first_is_raised_with_the_others_in_notes_once_each():
    def fail(error):
        done.append(error)
        if error is not None:
            raise error

    done, errors = [], [OSError("no 1"), OSError("no 2"), ValueError("no 2"), OSError("no 2"), None, OSError("no 1")]
    with pytest.raises(OSError, match="no 1") as raised:
        each(fail, [None, *errors])
    assert raised.value is errors[0] and done == [None, *errors]
    assert raised.value.__notes__ == [
        "Another one raised OSError: no 2",
        "Another one raised ValueError: no 2",
        "Another one raised OSError: no 1",
    ]


def test_matrices_of_a_batch_inside_a_run_are_written():
    def f(x):
        lox.log({"product": jnp.outer(x, x)})

    xs = np.arange(6, dtype=np.float32).reshape(3, 2)
    with MemoryLogger() as logger:
        logger.tap(jax.vmap(f), logger.init(7))(xs)
        logger.flush()
        assert_array(logger[SEVEN]["product"], np.stack([np.outer(x, x) for x in xs])[None])


class Gathering(Logger):
    """Notes what it is given, from when it may go on."""

    gathers = True

    def __init__(self, **options):
        super().__init__(**options)
        self.written, self.seen, self.go_on = [], [], threading.Event()
        self._worker.do(self.go_on.wait)

    def write(self, run, logs):
        self.seen.append(dict(run.seen))
        self.written.append((run.name, {key: value.tolist() for key, value in logs.items()}))
        if "faulty" in logs:
            raise OSError("no")


def test_a_logger_that_gathers_gets_many_events_of_all_keys_at_a_time():
    logger = Gathering()
    runs = [logger.init(seed) for seed in range(2)]
    for i in range(5):
        for run in runs:
            logger.log(run, {"a": i}, step=i)
            logger.log(run, {"b": float(i), "c": i})
    logger.go_on.set()
    logger.flush()
    events = {"a": [*range(5)], "b": [float(i) for i in range(5)], "c": [*range(5)]}
    assert logger.written == [(run.name, events) for run in runs]
    logger.log(runs[0], {"a": 7}, step=7)
    logger.flush()
    assert logger.written[2:] == [(runs[0].name, {"a": [7]})]
    assert logger.seen == [{}, {}, {"a": 5, "b": 5, "c": 5}]


def test_gathered_events_of_a_key_keep_their_order_where_they_differ():
    logger, run = Gathering(), MemoryLogger().init(7)
    for values in ({"x": 1, "y": 1}, {"x": 2}, {"y": 3}, {"x": 4.0}, {"x": 5.0}, {"x": 6}, {"y": [7, 8]}, {"y": [9]}):
        logger.log(run, {key: np.asarray(value, np.asarray(value).dtype) for key, value in values.items()})
    logger.go_on.set()
    logger.flush()
    found = {key: [event for _, logs in logger.written for event in logs.get(key, ())] for key in "xy"}
    assert found == {"x": [1, 2, 4, 5, 6], "y": [1, 3, [7, 8], [9]]}


def test_an_error_of_gathered_events_keeps_nothing_from_other_runs():
    logger = Gathering()
    for seed, key in ((1, "x"), (2, "faulty"), (3, "x")):
        logger.log(logger.init(seed), {key: seed})
    logger.go_on.set()
    with pytest.raises(OSError, match="no"):
        logger.flush()
    assert [name for name, _ in logger.written] == [name_of(seed) for seed in (1, 2, 3)]


def test_what_is_gathered_is_written_when_it_is_much(monkeypatch):
    monkeypatch.setattr(_writing, "GATHERED", 3)
    logger = Gathering()
    run = logger.init(7)
    for i in range(7):
        logger.log(run, {"x": i})
    logger.go_on.set()
    logger.close()
    assert [logs["x"] for _, logs in logger.written] == [[0, 1, 2], [3, 4, 5], [6]]


def test_whatever_is_gathered_each_key_has_the_events_in_the_order_in_which_they_were_logged():
    class Wholes(Gathering):
        def write(self, run, logs):
            batch_ndim = {key: run.batch_ndim[key] for key in logs}
            self.written.append((run.name, batch_ndim, logs))

    class EachAlone(Wholes):
        gathers = False

    def events(written):
        """The events of each run and key, with their counters, and the elements in which they happened."""
        found = {}
        for name, batch_ndim, logs in written:
            for key, values in logs.items():
                mask = logs.mask.get(key, np.ones(values.shape[: 1 + batch_ndim[key]], bool))
                for i, value in enumerate(values):
                    steps = {name: of[key][i].tolist() for name, of in logs.steps.items() if key in of}
                    impl = getattr(values, "impl", None)
                    event = (value.dtype, impl, value.tolist(), steps, mask[i].tolist(), logs.distributions.get(key))
                    found.setdefault((name, key), []).append(event)
        return found

    rng = np.random.default_rng(0)
    lengths = iter(rng.integers(1, 4, 1000))

    def masked(data, mask):
        n = next(lengths)
        return lox.logdict({key: np.stack([value] * n) for key, value in data.items()}, {}, {"x": np.stack([mask] * n)})

    def sometimes(x):
        lox.log({"w": x}, epoch=x)
        return lax.cond(x > 1, lambda: lox.log({"x": x})["x"], lambda: x)

    quantiles = [lox.reductions.quantiles([q]) for q in (0.5, 0.9)]
    kinds = [
        lambda i: {"x": np.float32(i) if i % 2 else i},
        lambda i: {"x": i, "y": [i, i]},
        lambda i: {"y": [i], "z": jnp.full((2, 2), i)},
        lambda i: {"z": jax.random.key(i)},
        lambda i: {"x": jnp.bfloat16(i), "z": jax.random.key(i, impl="rbg")},
        lambda i: lox.logdict({"x": jnp.arange(next(lengths)) + i}),
        lambda i: lox.logdict({"x": np.arange(2), "y": np.arange(3) + i}, {"epoch": {"x": np.arange(2)}}),
        lambda i: lox.spool(sometimes, unify=True)(jnp.float32(i % 3))[1],
        lambda i: lox.spool(lambda x: lox.log({"q": x}), reduce=quantiles[i % 2])(jnp.float32(i))[1],
        lambda i: masked({"x": np.float32([i, i])}, np.array([True, True])),
        lambda i: masked({"x": np.float32([i, i])}, np.array([False, True])),
        lambda i: masked({"x": np.float32([[i, i]] * 2)}, np.array([False, True])),
        lambda i: masked({"x": np.float32([[i, i]] * 2)}, np.array([[False, True], [True, False]])),
    ]
    alone, gathering = EachAlone(), Wholes()
    states = [alone.init(seed) for seed in (0, 1, 0)]
    kind = kinds[0]
    for i in range(200):
        counters = {"epoch": i} if rng.random() < 0.3 else {}
        kind = kinds[rng.integers(len(kinds))] if rng.random() < 0.5 else kind  # So that some can be joined.
        state, logs = states[rng.integers(3)], kind(i)
        for logger in (alone, gathering):
            logger.log(state, logs, **counters)
    for logger in (alone, gathering):
        logger.go_on.set()
    for logger in (alone, gathering):
        logger.close()
    assert len(gathering.written) < len(alone.written)
    assert events(gathering.written) == events(alone.written)


ARRAYS = {
    "a number": lambda i: jnp.float32(i),
    "truth values": lambda i: jnp.arange(2) < i,
    "several sizes": lambda i: jnp.full(2 + i // 2, i),
    "no elements": lambda i: np.zeros((2, 0)),
    "more than is copied": lambda i: jnp.full(5000, i),
    "a small float": lambda i: jnp.bfloat16([i, 0.5]),
    "an array with gaps": lambda i: np.arange(i, i + 12).reshape(3, 4).T[::2],
    "bytes in another order": lambda i: np.array([i, 7], ">i4"),
    "an array in columns": lambda i: np.asfortranarray(np.arange(i, i + 4).reshape(2, 2)),
    "keys": lambda i: jax.random.split(jax.random.key(i)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("counters", [np.array, list], ids=["arrays", "lists"])
def test_arrays_of_any_kind_are_gathered_as_they_are(array, counters):
    class Values(Gathering):
        def write(self, run, logs):
            steps = logs.steps["step"]["x"]
            self.written += [(value.tolist(), step) for value, step in zip(logs["x"], steps.tolist(), strict=True)]

    logger, run, expected = Values(), MemoryLogger().init(7), []
    for i in range(4):
        events = jnp.atleast_1d(array(i)) if isinstance(array(i), jax.Array) else array(i)
        steps = counters([10_000 * i + place for place in range(len(events))])
        logger.log(run, lox.logdict({"x": events, "y": np.ones(len(events))}, {"step": {"x": steps}}), epoch=i)
        values = jax.random.key_data(events) if jnp.issubdtype(events.dtype, jax.dtypes.prng_key) else events
        expected += zip(values.tolist(), list(steps), strict=True)
    logger.go_on.set()
    logger.close()
    assert logger.written == expected


def test_gathered_events_keep_their_batch_axes_and_masks():
    class Axes(Gathering):
        def write(self, run, logs):
            self.written.append((dict(run.batch_ndim), {key: logs.mask[key].tolist() for key in logs.mask}))

    logger, run = Axes(), MemoryLogger().init(7)
    for mask in ([[True, True]], [[True, False]]):
        logger.log(run, lox.logdict({"x": np.ones((1, 2))}, {}, {"x": np.array(mask)}))
    logger.log(run, lox.logdict({"x": np.ones((1, 2))}))
    logger.go_on.set()
    logger.close()
    assert logger.written == [({"x": 1}, {"x": [[True, True], [True, False]]}), ({"x": 0}, {})]


def test_what_each_run_of_a_batch_gets_says_how_it_was_reduced():
    logger = MemoryLogger()

    def one(seed, x):
        reduce = {"h": lox.reductions.quantiles((0.1, 0.9))}
        return logger.tap(lambda x: lox.log({"h": x})["h"], logger.init(seed), reduce=reduce)(x)

    jax.vmap(one)(jnp.arange(2), jnp.arange(2.0))
    logger.flush()
    assert [list(logger[run].distributions) for run in logger.runs] == [["h"], ["h"]]


def test_a_step_that_goes_back_is_said_of_a_batch_element_whose_last_event_was_another_ones():
    logger = MemoryLogger()
    run = logger.init(0)

    def log(steps):
        mask = jnp.array([[True, True], [False, True]])
        logger.log(run, lox.logdict({"r": jnp.ones((2, 2))}, {"step": {"r": jnp.array(steps)}}, {"r": mask}))
        logger.flush()

    log([[5, 5], [6, 6]])
    with pytest.warns(lox.LoggerWarning, match="goes back from 5 to 3"):
        log([[3, 7], [8, 8]])


def test_runs_that_one_program_begins_with_other_configs_are_apart():
    logger = MemoryLogger()

    @jax.jit
    def f(key, x):
        for activation in ("relu", "tanh"):
            logger.log(logger.init(key, activation=activation), {"x": x})

    f(jax.random.key(0), 1.0)
    logger.flush()
    assert sorted(name.partition(",")[0] for name in logger.runs) == ["activation=relu", "activation=tanh"]
    assert all(len(logger[run]["x"]) == 1 for run in logger.runs)


def test_runs_whose_configs_differ_in_text_alone_are_told_apart_in_a_traced_program():
    def loss(x):
        return lox.log({"x": x})["x"]

    for values in (
        ({"activation": "relu"}, {"activation": "tanh"}),
        ({"a": None}, {"a": True}),
        ({"a": "1"}, {"b": "1"}),
    ):
        logger = MemoryLogger()

        @jax.jit
        def f(key, x, logger=logger, values=values):
            for number, config in enumerate(values):
                x = logger.tap(loss, logger.init(key, **config))(x + number)
            return x

        for seed in range(2):
            f(jax.random.key(seed), jnp.float32(seed))
        logger.flush()
        expected = {
            logger.init(seed, **config).name: [seed + n] for seed in range(2) for n, config in enumerate(values)
        }
        assert len(expected) == 4
        assert {name: logger[name]["x"].tolist() for name in logger.runs if len(logger[name])} == expected


def test_counters_of_calls_that_log_whole_logs_are_those_of_all_their_events(tmp_path):
    def f(xs):
        lox.log({"y": xs[0]})
        return lax.map(lambda x: lox.log({"x": x}, i=x)["x"], xs)

    _, logs = lox.spool(f)(jnp.arange(2.0))
    memory = MemoryLogger()
    with lox.loggers.SaveLogger(tmp_path, name="e") as saving:
        for logger in (memory, saving):
            run = logger.init(0)
            for epoch in range(3):
                logger.log(run, logs, epoch=epoch, rate=epoch / 2)
    for found in (memory[run.name], lox.load(tmp_path / "e" / run.name)):
        assert found["x"].tolist() == [0, 1] * 3 and found["y"].tolist() == [0] * 3
        steps = {name: {key: found.steps[name][key].tolist() for key in found.steps[name]} for name in found.steps}
        assert steps == {
            "epoch": {"x": [0, 0, 1, 1, 2, 2], "y": [0, 1, 2]},
            "rate": {"x": [0, 0, 0.5, 0.5, 1, 1], "y": [0, 0.5, 1]},
            "i": {"x": [0, 1] * 3},
        }


@pytest.mark.parametrize("whole", [False, True])
def test_rows_have_keys_of_equal_counters_together_and_the_events_of_each_in_order(whole):
    """Counters are equal by their names, dtypes and values; where a step is none, the number of the event is one."""
    one, integers, floats = np.float32([1]), np.array([3, 5, 5], np.int32), np.array([3, 5, 5], np.float32)
    counters = {
        "a": {},
        "b": {"step": integers},
        "c": {"step": integers.astype(np.int64)},
        "d": {"step": floats},
        "e": {"step": integers, "epoch": integers},
        "f": {"epoch": integers},
        "g": {},
        "h": {"step": integers},
        "i": {"epoch": integers, "step": integers},
        "j": {"step": integers[:2]},
        "k": {"step": floats.view(np.int32)},
        "l": {"step": floats},
        "m": {},
        "n": {"step": one},
        "o": {"step": one.view(np.int32)},
        "p": {"step": integers + 1},
    }
    length = {key: len(next(iter(of.values()), integers)) for key, of in counters.items()}
    data = {key: np.arange(length[key]) + 10 * place for place, key in enumerate(counters)}
    steps = {name: {key: of[name] for key, of in counters.items() if name in of} for name in ("step", "epoch")}
    run = Run((0,), seen={"a": 4, "f": 4, "m": 4, "d": 4})
    groups = {}
    for key, of in counters.items():
        counted = "step" in of and not (whole and of["step"].dtype.kind == "f")
        number = () if counted else (run.seen.get(key, 0),)
        named = sorted((name, step.dtype.name, tuple(step.tolist())) for name, step in of.items())
        groups.setdefault((*named, *number, length[key]), []).append((key, counted))
    expected = []
    for group in groups.values():
        for event in range(length[group[0][0]]):
            key, counted = group[0]
            own = {name: of[key][event].item() for name, of in steps.items() if key in of}
            step = own.pop("step") if counted else run.seen.get(key, 0) + event
            expected.append((step, counted, own, {key: data[key][event].item() for key, _ in group}))
    found = [
        (row.step, row.counted, row.counters, row.numbers) for row in rows(run, lox.logdict(data, steps), whole=whole)
    ]
    assert found == expected
    together = [{key for key, _ in group} for group in groups.values() if len(group) > 1]
    assert together == [{"a", "m"}, {"b", "h"}, {"d", "l"}, {"e", "i"}] if not whole else len(together) == 3


NUMBERS = {
    "nearly equal": [1, 1 + 2e-16],
    "near": [1, 1 + 1e-9],
    "neighbours": [1e25, np.nextafter(1e25, 2e25)],
    "two hundred apart": [1e25, 1e25 + 200 * np.spacing(1e25)],
    "large and equal": [1e25, 1e25],
    "all floats": [np.finfo(float).max, -np.finfo(float).max, 0],
    "the largest float": [np.finfo(float).max] * 3,
    "the smallest float": [-np.finfo(float).max],
    "subnormal": [0, 5e-324],
    "whole numbers": [*range(-30, 31)],
    "the edges": [*range(65)],
    "normal": np.random.default_rng(0).normal(size=500),
    "large": 1e300 * np.random.default_rng(1).normal(size=50),
    "skewed": [1e-9, 2e-9, 5.0],
}


def test_a_histogram_has_each_number_in_a_bin_of_one_width():
    for numbers in map(np.float64, NUMBERS.values()):
        counts, edges = histogram(numbers)
        assert (len(counts), len(edges), counts.sum()) == (64, 65, len(numbers))
        assert np.isfinite(edges).all() and (np.diff(edges) > 0).all()
        left = sorted(numbers.tolist())
        for count, low, high in zip(counts, edges, edges[1:], strict=False):
            inside, left = left[:count], left[count:]
            assert all(low <= number <= high for number in inside)
        halves = edges / 2  # Whose differences are finite.
        np.testing.assert_allclose(np.diff(halves), (halves[-1] - halves[0]) / 64, rtol=0.6)
        apart = numbers.max() / 2 - numbers.min() / 2
        if apart > 1e-12 * np.abs(numbers).max():
            assert (edges[0], edges[-1]) == (numbers.min(), numbers.max())
        elif np.abs(numbers).max() < 1e10:
            assert (edges[0], edges[-1]) == (numbers.min() - 0.5, numbers.max() + 0.5)


def test_the_labels_of_a_run_are_its_number_however_many_came_before():
    for number in (0, 1, 2**31, 2**32 - 1, 2**32, 2**33 + 5, 2**45 - 1):
        state = MemoryLogger().init(7)
        vars(state)["_number"] = number
        words = [word.item() for _, word in sorted(labels(state).items())]
        assert len(words) == 2 and _state.number_of(words) == number
