"""Logs on disk: what is written can be read, at any moment, whatever happens to the process, the disk or the files."""

import contextlib
import datetime
import hashlib
import itertools
import json
import math
import mmap
import os
import pathlib
import pickle
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_array_equal
from runs import name_of, saver

import lox
from lox._storage import RunWriter, _column
from lox._storage._column import Column, OpenFiles
from lox._storage._manifest import digest
from lox._storage._table import Table
from lox.loggers import MultiLogger, SaveLogger

RUN = name_of(7)
TABLE = "table-0"
TESTS = pathlib.Path(__file__).parent


def logs_of(values, **steps):
    values = {key: np.asarray(value) for key, value in values.items()}
    return lox.logdict(values, {name: {key: np.asarray(step) for key in values} for name, step in steps.items()})


def write(path, *parts, **options):
    with saver(path, **options) as logger:
        for part in parts:
            logger.log(logger.init(7), part)


def change(manifest, old, new):
    """Change the text of a manifest, of which the digest is right."""
    found = json.loads(manifest.read_text().replace(old, new))
    manifest.write_text(json.dumps(found | {"digest": digest(found.get("tables"))}))


def assert_plain_files(path):
    """Every column is an array that NumPy reads without pickle."""
    for file in pathlib.Path(path).rglob("*.npy"):
        np.load(file, mmap_mode="r" if file.stat().st_size > 128 else None, allow_pickle=False)


# -- what is written is read ---------------------------------------------------------------------------------------

DTYPES_OF_JAX = [name for name in dir(jnp) if getattr(getattr(getattr(jnp, name), "dtype", None), "isbuiltin", 0) == 2]


@pytest.mark.parametrize(
    "dtype",
    ["bool", "int8", "uint32", "int32", "float16", "float32", "complex64", *DTYPES_OF_JAX],
)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (0,), (3, 0, 2)])
def test_every_dtype_and_shape_comes_back(tmp_path, dtype, shape):
    values = np.arange(5 * int(np.prod(shape))).reshape(5, *shape).astype(dtype)
    lox.save(lox.logdict({"x": values}, {"step": {"x": jnp.arange(5)}}), tmp_path / "run")
    logs = lox.load(tmp_path / "run")
    assert logs["x"].dtype == values.dtype
    assert logs["x"].shape == values.shape and logs["x"].tobytes() == values.tobytes()
    assert_array_equal(logs.steps["step"]["x"], np.arange(5, dtype=np.int32))
    assert_plain_files(tmp_path)


def test_masks_and_counters_come_back(tmp_path):
    def f(xs):
        def each(x):
            lax.cond(x > 1, lambda: lox.log({"x": x}, step=3, episode=x)["x"], lambda: x)

        jax.vmap(each)(xs)

    _, logs = lox.spool(f, unify=True)(jnp.arange(4.0))
    lox.save(logs, tmp_path / "run", lr=0.5, name="Ada", layers=[8, 4], nothing=None)
    loaded = lox.load(tmp_path / "run")
    assert_array_equal(loaded["x"], logs["x"])
    assert_array_equal(loaded.mask["x"], logs.mask["x"])
    for name in ("step", "episode"):
        assert_array_equal(loaded.steps[name]["x"], logs.steps[name]["x"])
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    assert config == {"lr": 0.5, "name": "Ada", "layers": [8, 4], "nothing": None}


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # In one bit, the step goes back.
@pytest.mark.parametrize("dtype", DTYPES_OF_JAX)
def test_counters_of_every_dtype_come_back(tmp_path, dtype):
    steps = np.arange(2).astype(dtype)
    write(tmp_path, logs_of({"x": [0.5, 0.25]}, step=steps), logs_of({"x": [0.125]}, step=[3]))
    logs = lox.load(tmp_path)[RUN]
    assert logs.steps["step"]["x"].dtype == dtype
    assert logs.steps["step"]["x"].tobytes() == steps.tobytes()
    assert logs.steps["step"]["x#2"].tolist() == [3]
    assert_plain_files(tmp_path)


def test_arrays_of_the_other_byte_order_come_back(tmp_path):
    write(tmp_path, logs_of({"x": np.arange(3, dtype=">f8")}, step=np.arange(3, dtype=">i4")))
    logs = lox.load(tmp_path)[RUN]
    assert logs["x"].tolist() == logs.steps["step"]["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("max_iters", [3, 6])
def test_how_many_events_were_dropped_comes_back(tmp_path, max_iters):
    def halve(x):
        def body(x):
            lox.log({"x": x})
            return x / 2

        return lax.while_loop(lambda x: x > 1, body, x)

    for name, start in (("a", 50.0), ("b", 3.0)):
        with warnings.catch_warnings(action="ignore", category=lox.SpoolWarning):
            logs = lox.spool(halve, max_iters=max_iters)(start)[1]
        lox.save(logs, tmp_path / name)
    lox.save(logs_of({"x": np.float32([1.0])}), tmp_path / "c")
    runs = lox.load(tmp_path)
    dropped = {3: [3, 0], 6: [0, 0]}[max_iters]
    assert [runs[name].dropped["x"].item() for name in "ab"] == dropped and not runs["c"].dropped
    stacked = lox.load(tmp_path, stack=True)
    assert_array_equal(stacked.dropped["x"], np.int32([*dropped, 0]))


def test_how_many_events_of_each_lane_were_dropped_comes_back(tmp_path):
    dropped = np.int32([[1, 2, 3]])
    lox.save(lox.logdict({"x": np.ones((2, 1, 3))}, dropped={"x": dropped}), tmp_path / "a")
    assert_array_equal(lox.load(tmp_path / "a").dropped["x"], dropped)
    assert_array_equal(lox.load(tmp_path, stack=True).dropped["x"], dropped[None])


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("way", ["save", "log", "log in jit", "tap", "tap(buffer=2)", "tap in vmap"])
def test_typed_keys_come_back_as_their_data_and_implementation(tmp_path, way, impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)

    def f(keys):
        return lax.scan(lambda c, key: (c, lox.log({"key": key}, step=c)["key"]), 0, keys)[1]

    with saver(tmp_path) as logger:
        state = logger.init(7)
        if way == "save":
            lox.save(lox.logdict({"key": keys}), tmp_path / RUN)
        elif way == "log":
            logger.log(state, lox.logdict({"key": keys}))
        elif way == "log in jit":
            jax.jit(lambda keys: logger.log(state, lox.logdict({"key": keys})))(keys)
        elif way == "tap in vmap":
            jax.vmap(lambda seed, key: logger.tap(f, logger.init(seed))(key), (0, None))(
                jax.random.key_data(jax.random.split(jax.random.key(1), 2)), keys
            )
        else:
            logger.tap(f, state, buffer=2 if "buffer" in way else 1)(keys)
    runs = lox.load(tmp_path)
    assert len(runs) == (2 if way == "tap in vmap" else 1)
    for logs in runs.values():
        assert_array_equal(logs["key"], jax.random.key_data(keys))
        again = jax.random.wrap_key_data(logs["key"], impl=logs["key"].impl)
        assert again.dtype == keys.dtype and logs["key"][1:].impl == impl


def test_words_that_are_no_keys_are_told_from_keys(tmp_path):
    words = np.uint32([[1, 2]])
    write(tmp_path, logs_of({"x": words}), lox.logdict({"x": jax.random.wrap_key_data(words)}))
    logs = lox.load(tmp_path)[RUN]
    assert type(logs["x"]) is np.ndarray and logs["x#2"].impl == "threefry2x32"
    assert_array_equal(logs["x"], logs["x#2"])


def test_large_arrays_are_mapped_from_disk_and_small_ones_read(tmp_path):
    most = 2.0**13 if sys.version_info >= (3, 13) else 2.0**17  # Numbers of eight bytes that are read.
    counts = {"large": 2.0**18, "small": 2.0**10, "most": most, "more": most + 1}
    write(tmp_path, logs_of({key: np.arange(count) for key, count in counts.items()}))
    logs = lox.load(tmp_path)[RUN]
    for key, mapped in (("large", True), ("small", False), ("most", False), ("more", True)):
        base = logs[key]
        while isinstance(base, np.ndarray):
            assert not base.flags.writeable
            base = base.base
        assert isinstance(base, mmap.mmap) == mapped
        assert_array_equal(logs[key], np.arange(len(logs[key]), dtype=float))


@pytest.mark.integration
@pytest.mark.parametrize("stack", [False, True])
def test_runs_of_more_files_than_may_be_open_are_loaded(tmp_path, stack):
    large = 2**15 if sys.version_info >= (3, 13) else 9  # Which is mapped, and keeps no descriptor.
    for run in range(40):
        lox.save(
            logs_of({f"key{place}": np.zeros(large if run == place else 9) for place in range(10)}), tmp_path / str(run)
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 8, hard))
    try:
        logs = lox.load(tmp_path, stack=stack)
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(logs) == (10 if stack else 40)


def test_parts_are_one_after_the_other_also_after_a_restart(tmp_path):
    for start in range(3):
        write(tmp_path, logs_of({"x": [float(start)]}, step=[start]), logs_of({"x": [start + 0.5]}, step=[start]))
    logs = lox.load(tmp_path)[RUN]
    assert_array_equal(logs["x"], np.arange(0, 3, 0.5))
    assert_array_equal(logs.steps["step"]["x"], [0, 0, 1, 1, 2, 2])


def test_logs_are_not_saved_where_a_run_is(tmp_path):
    write(tmp_path, logs_of({"x": [1.0]}))
    with pytest.raises(lox.StorageError, match="is a run already"):
        lox.save(logs_of({"x": [2.0]}), tmp_path / RUN)


@pytest.mark.parametrize(
    "other",
    [logs_of({"x": [[1.0]]}), logs_of({"x": [1]}), logs_of({"x": [1.0]}, epoch=[1]), logs_of({"x": np.float32([1])})],
    ids=["shape", "dtype", "counters", "precision"],
)
def test_a_key_that_changes_goes_on_in_another_segment(tmp_path, other):
    write(tmp_path, logs_of({"x": [0.5, 0.25]}), other, logs_of({"x": [0.125]}))
    logs = lox.load(tmp_path)[RUN]
    assert_array_equal(logs["x"], [0.5, 0.25, 0.125])
    assert_array_equal(logs["x#2"], other["x"])
    assert logs["x#2"].dtype == other["x"].dtype
    assert_plain_files(tmp_path)


def test_keys_are_in_the_order_in_which_they_first_appeared(tmp_path):
    logs = lox.logdict({key: np.ones(count, np.float32) for key, count in (("z", 2), ("m", 3), ("a", 2))})
    lox.save(logs, tmp_path / "run")
    loaded = lox.load(tmp_path / "run")
    assert [*loaded] == [*lox.load(tmp_path, stack=True)] == ["z", "m", "a"]
    assert [*loaded.filter(["m", "a", "z"])] == [*loaded.slice(1)] == [*loaded.ungrouped()] == ["z", "m", "a"]
    assert [*loaded.reduce("mean")] == [*pickle.loads(pickle.dumps(loaded))] == ["z", "m", "a"]
    assert [*loaded.prefix("x/")] == ["x/z", "x/m", "x/a"]

    # Of a run that lox wrote without the order, it is that of the tables.
    file = tmp_path / "run" / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in manifest.items() if name != "keys"}))
    assert [*lox.load(tmp_path / "run")] == ["a", "z", "m"]
    file.write_text(json.dumps(manifest | {"keys": [["z"]]}))
    with pytest.raises(lox.StorageError, match="is damaged: its keys are no list of text"):
        lox.load(tmp_path / "run")


@pytest.mark.parametrize("at_once", [False, True])
def test_the_order_of_keys_does_not_depend_on_how_many_events_are_written_at_once(tmp_path, at_once):
    begun, go = threading.Event(), threading.Event()

    class Waiting(SaveLogger):
        def start(self, run):
            begun.set()
            assert go.wait(60)
            super().start(run)

    def log(logger, start, *keys):
        run = logger.init(7)
        for step in (start, start + 1):
            for key in keys:
                logger.log(run, {key: 1.0}, step=step)
                if not at_once:
                    logger.flush()

    if not at_once:
        go.set()
    with Waiting(tmp_path) as logger:
        logger.log(logger.init(7), {"first": 1.0})
        assert begun.wait(60)
        log(logger, 0, "z", "m", "y")
        go.set()
        logger.flush()
    assert [*lox.load(logger.directory)[RUN]] == ["first", "z", "m", "y"]
    tables = json.loads((logger.directory / RUN / "manifest.json").read_text())["tables"]
    assert len(tables) == (2 if at_once else 4)
    with SaveLogger(tmp_path, resume="latest") as logger:
        log(logger, 2, "a", "y", "z")
    assert [*lox.load(logger.directory)[RUN]] == ["first", "z", "m", "y", "a"]


def test_segments_take_the_names_of_no_other_key(tmp_path):
    parts = [np.array([1.5]), np.array([1]), np.array([[2, 2]])]
    write(tmp_path, *(logs_of({"x": part}) for part in parts), logs_of({"x#2": [100]}), logs_of({"x#2": [0.5]}))
    logs = lox.load(tmp_path)[RUN]
    expected = {"x": [1.5], "x#3": [1], "x#4": [[2, 2]], "x#2": [100], "x#2#2": [0.5]}
    assert {key: value.tolist() for key, value in logs.items()} == expected


def test_one_directory_for_each_lane(tmp_path):
    with saver(tmp_path) as logger:

        def run(key, x):
            def f(x):
                return lax.scan(lambda x, i: (lox.log({"x": x}, step=i)["x"] + 1, None), x, jnp.arange(4))[0]

            return logger.tap(f, logger.init(key, start=x), buffer=3)(x)

        keys = jax.random.split(jax.random.key(0), 64)
        jax.jit(jax.vmap(run))(keys, jnp.arange(64.0))
    loaded = lox.load(tmp_path)
    assert len(loaded) == 64
    for lane, key in enumerate(keys):
        name = name_of(key, start=lane)
        assert_array_equal(loaded[name]["x"], lane + np.arange(4.0, dtype=np.float32))
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        assert manifest["config"] == {"start": lane} and manifest["key"] == jax.random.key_data(key).tolist()


NAMES = r"""a/b .. ../../up /etc/x é 日本 Case case CASE a\b nul % %25 x@step x#2 x.0 - ~""".split()
NAMES += [" ", "a b", "x" * 500, "con"]


def test_keys_of_any_name_stay_in_the_directory_of_the_run(tmp_path):
    write(tmp_path / "runs", {key: float(place) for place, key in enumerate(NAMES)})
    logs = lox.load(tmp_path / "runs")[RUN]
    assert {key: logs[key].tolist() for key in logs} == {key: [place] for place, key in enumerate(NAMES)}
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    (files,) = [[path.name for path in folder.iterdir()] for folder in (tmp_path / "runs" / RUN).glob("table-*")]
    assert {name.startswith("@@") for name in files} == {True}  # Many small values are side by side.
    for key in NAMES:
        write(tmp_path / "apart", logs_of({key: np.zeros((1, 100))}))
    names = [path.name for path in (tmp_path / "apart" / RUN).rglob("*.npy") if not path.name.startswith("@@")]
    assert len({name.lower() for name in names}) == len(names) == len(NAMES)
    assert max(map(len, names)) < 200 and not {"con.npy", "nul.npy"} & {*names}


def test_keys_of_any_length_are_saved_in_files_whose_names_are_short_enough(tmp_path):
    """Capital letters and others that are escaped take three characters or more each."""
    for number, (sign, is_event) in enumerate(itertools.product("aAé", (True, False))):
        keys = [sign * length + end for length in (39, 40, 41, 97, 119, 120, 121, 250, 900) for end in ("", "b", "B")]
        logs = lox.logdict({key: np.arange(3.0) + place for place, key in enumerate(keys)})
        if not is_event:
            logs = lox.logdict(dict(logs), {"S" * 97: dict.fromkeys(keys, np.arange(3))})
        lox.save(logs, tmp_path / str(number))
        assert lox.load(tmp_path / str(number)) == logs
        assert all(len(each.name) <= 130 for each in (tmp_path / str(number)).rglob("*"))


@pytest.mark.integration
def test_ten_thousand_keys(tmp_path):
    write(tmp_path, logs_of({f"key{place}": [float(place)] for place in range(10_000)}))
    logs = lox.load(tmp_path)[RUN]
    assert len(logs) == 10_000 and logs["key9999"].tolist() == [9999.0]


def test_nan_and_infinity(tmp_path):
    values = [np.nan, np.inf, -np.inf]
    write(tmp_path, logs_of({"x": values}))
    assert_array_equal(lox.load(tmp_path)[RUN]["x"], values)


# -- several runs in one -------------------------------------------------------------------------------------------


def test_stacked_runs_are_those_of_a_vmap(tmp_path):
    def f(x):
        def step(x, i):
            lox.log({"x": x, "pair": jnp.stack([x, -x])}, step=2 * i)
            return x + 1, None

        return lax.scan(step, x, jnp.arange(3))[0]

    xs = jnp.arange(4.0)
    with saver(tmp_path) as logger:
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
        jax.vmap(lambda key, x: logger.tap(f, logger.init(key))(x))(keys, xs)
    names = ["".join(f"{word:08x}" for word in words) for words in keys.tolist()]
    stacked = lox.load(tmp_path, stack=True)
    _, spooled = lox.spool(jax.vmap(f))(xs[np.argsort(names)])
    assert jax.tree.structure(stacked) == jax.tree.structure(spooled.ungrouped())
    jax.tree.map(assert_array_equal, stacked, jax.tree.map(np.asarray, spooled.ungrouped()))


def test_runs_with_fewer_events_are_masked_out_where_they_have_none(tmp_path):
    for run, count in (("a", 1), ("b", 3), ("c", 2)):
        values = {"x": np.arange(count) + 0.5, "n": np.arange(count), "true": np.ones(count, bool)}
        values["half"] = jnp.ones((count, 2), jnp.bfloat16)
        values["complex"] = np.arange(count) * 1j
        values["key"] = jax.random.split(jax.random.key(1), count)
        steps = {"step": dict.fromkeys(("x", "n"), 10 * np.arange(count))}
        only = {f"only {run}": np.zeros(1)} if run != "c" else {}
        lox.save(lox.logdict(values | only, steps), tmp_path / run)
    lox.save(lox.logdict(), tmp_path / "d")
    logs = lox.load(tmp_path, stack=True)
    happened = np.array([[1, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 0]], bool)
    for key in ("x", "n", "true", "half", "key"):
        assert_array_equal(logs.mask[key], happened)
    assert_array_equal(logs["x"], np.where(happened, [[0.5], [1.5], [2.5]], np.nan))
    assert_array_equal(logs["complex"], np.where(happened, [[0], [1j], [2j]], np.nan))
    assert_array_equal(logs["n"], np.where(happened, [[0], [1], [2]], 0))
    assert_array_equal(logs.steps["step"]["x"], np.where(happened, [[0], [10], [20]], 0))
    assert_array_equal(logs["true"], happened)
    assert logs["half"].dtype == jnp.bfloat16 and np.isnan(logs["half"][0, 3].astype(np.float32)).all()
    assert logs["key"].shape == (3, 4, 2) and logs["key"].impl == "threefry2x32"
    assert_array_equal(logs["only a"], [[0, np.nan, np.nan, np.nan]])
    assert_array_equal(logs.mask["only b"], [[False, True, False, False]])


@pytest.mark.parametrize("masked, whole", ["ab", "ba"])
@pytest.mark.parametrize("count", [1, 2])
def test_masks_of_lanes_stack_with_runs_that_have_none(tmp_path, masked, whole, count):
    mask = np.array([[True, False]])
    lox.save(lox.logdict({"x": np.ones((1, 2, 3))}, {}, {"x": mask}), tmp_path / masked)
    lox.save(lox.logdict({"x": np.ones((count, 2, 3))}), tmp_path / whole)
    logs = lox.load(tmp_path, stack=True)
    assert logs["x"].shape == (count, 2, 2, 3)
    happened = {masked: [[True, False], [False, False]], whole: [[True, True], [True, True]]}
    for place, run in enumerate("ab"):
        assert_array_equal(logs.mask["x"][:, place], happened[run][:count])


def test_runs_whose_masks_are_of_other_batches_do_not_stack(tmp_path):
    for run, shape in (("a", (1, 2)), ("b", (1, 2, 3))):
        lox.save(lox.logdict({"x": np.ones((1, 2, 3))}, {}, {"x": np.ones(shape, bool)}), tmp_path / run)
    with pytest.raises(
        lox.StructureError, match=r"in batches of \[2\] .*in the run 'a', and .*in batches of \[2, 3\] "
    ):
        lox.load(tmp_path, stack=True)


def test_an_error_of_runs_that_do_not_stack_says_which_has_what(tmp_path):
    lox.save(lox.logdict({"x": np.ones((1, 2))}), tmp_path / "a")
    lox.save(lox.logdict({"x": np.ones((1, 2), int)}, {}, {"x": np.ones((1, 2), bool)}), tmp_path / "b")
    with pytest.raises(lox.StructureError, match=r"is float64.* in the run 'a', and int64.* in 'b'"):
        lox.load(tmp_path, stack=True)


def test_one_run_is_stacked_as_one_lane(tmp_path):
    write(tmp_path, logs_of({"x": [1.0, 2.0]}))
    for path in (tmp_path, tmp_path / RUN):
        logs = lox.load(path, stack=True)
        assert_array_equal(logs["x"], [[1.0], [2.0]])
        assert not logs.mask


@pytest.mark.parametrize(
    "other",
    [
        logs_of({"x": [[1.0]]}, step=[0]),
        logs_of({"x": [1]}, step=[0]),
        logs_of({"x": np.float32([1])}, step=[0]),
        logs_of({"x": [1.0]}),
        logs_of({"x": [1.0]}, step=[0], epoch=[0]),
        logs_of({"x": [1.0]}, step=[0.5]),
    ],
    ids=["shape", "dtype", "precision", "no counters", "counters", "counter's dtype"],
)
def test_runs_that_differ_in_a_key_do_not_stack_and_are_named(tmp_path, other):
    lox.save(logs_of({"x": [1.0]}, step=[0]), tmp_path / "first")
    lox.save(logs_of({"x": [2.0]}, step=[0]), tmp_path / "second")
    lox.save(other, tmp_path / "third")
    with pytest.raises(lox.StructureError) as raised:
        lox.load(tmp_path, stack=True)
    assert all(name in str(raised.value) for name in ("'x'", "'first'", "'third'", "float64[]"))


def test_keys_of_another_implementation_do_not_stack(tmp_path):
    lox.save(lox.logdict({"x": jax.random.split(jax.random.key(0, impl="rbg"), 1)}), tmp_path / "first")
    lox.save(lox.logdict({"x": np.zeros((1, 4), np.uint32)}), tmp_path / "second")
    with pytest.raises(lox.StructureError, match="data of rbg keys"):
        lox.load(tmp_path, stack=True)


def test_the_files_of_a_run_are_read_by_numpy_alone(tmp_path):
    """Small values of many keys of a dtype and shape are side by side; a name is that of its key, percent-encoded."""
    long = "long name " * 20
    keys = ["loss", "train/Loss", "a b", "é", "%", "step", long, "con", "lpt1"]
    data = {key: np.float32([place, 10 + place]) for place, key in enumerate(keys[:8])}  # So many have a file each.
    data |= {f"n{place}": np.int64([place, 20 + place]) for place in range(9)}
    data |= {f"row{place}": np.full((2, 15), place, np.float32) for place in range(9)}  # 60 bytes, and 64.
    data |= {f"big{place}": np.full((2, 16), place, np.float32) for place in range(9)}
    data |= {f"many{place}": np.uint16([place, place + 1]) for place in range(513)}
    data |= {key: np.ones((2, 2, 2)) for key in (keys[8], "LPT1", "x" * 120, "y" * 121)}
    data |= {"bits": np.array([1, 0.5], jnp.bfloat16)}
    data["rng"] = jax.random.key_data(jax.random.split(jax.random.key(0), 2))
    steps = {name: dict.fromkeys(data, np.int32([step, step + 1])) for name, step in (("step", 3), ("Epoch", 8))}
    logs = lox.logdict(data, steps)
    lox.save(logs, tmp_path / "run")
    with saver(tmp_path / "logged") as logger:
        logger.log(logger.init(7), logs)
    for folder in (tmp_path / "run" / TABLE, tmp_path / "logged" / RUN / TABLE):
        found = {file.name: np.load(file) for file in folder.iterdir()}
        blocks = {name: found.pop(name) for name in [*found] if name.startswith("@@values")}
        together = [["bits", *sorted(f"many{place}" for place in range(513))]]
        together += [sorted(f"{name}{place}" for place in range(9)) for name in ("n", "row")]
        parts = [[keys[start : start + 512] for start in range(0, len(keys), 512)] for keys in together]
        for place, of_block in enumerate(itertools.chain(*parts)):
            block = blocks.pop(f"@@values{place}.npy")
            expected = np.stack([data[key].view(np.uint16) if key == "bits" else data[key] for key in of_block], 1)
            assert block.dtype == expected.dtype and block.shape == expected.shape and (block == expected).all()
        assert not blocks
        order = found.pop("@@order.npy")
        assert order.tolist() == ([[2, 0]] if folder.parent.name == "run" else [])
        assert found.pop("@step.npy").tolist() == [3, 4] and found.pop("@%45poch.npy").tolist() == [8, 9]
        hashed = {}
        for key in (long, "y" * 121):
            digest_of = hashlib.sha256(key.encode()).hexdigest()[:24]
            hashed[f"{urllib.parse.quote(key).lower()[:80]}~{digest_of}.npy"] = data[key]
        assert {name for name in found if "~" in name} == hashed.keys()
        for name, array in hashed.items():
            assert_array_equal(found.pop(name), array)
        apart = {urllib.parse.unquote(name.removesuffix(".npy")): array for name, array in found.items()}
        assert apart.keys() == {*keys, "LPT1", "rng", "x" * 120, *(f"big{place}" for place in range(9))} - {long}
        assert {
            "%63on.npy",
            "%6cpt1.npy",
            "%4c%50%541.npy",
            "train%2f%4coss.npy",
            "%25.npy",
            "%c3%a9.npy",
            "a%20b.npy",
        } <= found.keys()
        for key, array in apart.items():
            assert array.dtype == data[key].dtype and array.tolist() == data[key].tolist()
        assert all(re.fullmatch(r"[a-z0-9_%-]+\.npy", name) for name in found)
    assert lox.load(tmp_path / "run") == lox.load(tmp_path / "logged")[RUN] == logs


def test_runs_are_found_by_their_paths_at_any_depth_and_what_was_taken_back_is_none(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    for place, name in enumerate(("b", "a/deep/er", "a/x.json", "b/eval/1", "z")):
        lox.save(logs_of({"x": [place]}), runs / name, number=place)
    lox.save(logs_of({"x": [9]}), runs / "b" / "aside-1")  # As where events were taken back.
    lox.save(logs_of({"x": [9]}), runs / "b" / ".hidden")
    lox.save(logs_of({"x": [5]}), runs / "aside-1")  # Of no run.
    lox.save(logs_of({"x": [6]}), runs / ".dot", number=6)
    (runs / "none" / "table-0").mkdir(parents=True)
    expected = {".dot": 6, "a/deep/er": 1, "a/x.json": 2, "aside-1": 5, "b": 0, "b/eval/1": 3, "z": 4}
    assert {name: logs["x"].tolist() for name, logs in lox.load(runs).items()} == {
        name: [number] for name, number in expected.items()
    }
    assert [*lox.load(runs)] == [*lox.load_config(runs)] == [*expected]
    assert lox.load_config(runs)["b/eval/1"] == {"number": 3} and lox.load_config(runs)["aside-1"] == {}
    assert lox.load(runs, stack=True)["x"].tolist() == [[*expected.values()]]
    monkeypatch.chdir(runs / "b")
    for path in (".", "../b", str(runs / "b"), runs / "b"):  # A run is read as one, whatever is in it.
        assert lox.load(path)["x"].tolist() == [0] and lox.load_config(path) == {"number": 0}
    assert lox.load("aside-1")["x"].tolist() == [9] and [*lox.load("eval")] == ["1"]
    monkeypatch.chdir(runs)
    assert [*lox.load("a")] == ["deep/er", "x.json"]


# -- faults --------------------------------------------------------------------------------------------------------

NURSERY = """
import os, signal, sys, warnings
import numpy as np
import lox
from runs import saver
warnings.simplefilter("ignore")  # Those of JAX, which the children alone use, of the fork.
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork() == 0:
        break
else:
    sys.exit()
runs, acknowledged = line.split()
acknowledged = os.open(acknowledged, os.O_WRONLY | os.O_CREAT)
logger = saver(runs)
state = logger.init(7)
for i in range(10**9):
    values = {"x": np.float32([i]), "wide": np.full((1, 64), i)}
    logger.log(state, lox.logdict(values, {"step": {key: np.int32([i]) for key in values}}))
    if i % 10 == 9:
        logger.flush()
        os.pwrite(acknowledged, b"%09d" % (i + 1), 0)
        if i == 9:
            print(os.getpid(), flush=True)
"""


@contextlib.contextmanager
def writers(path):
    """What starts a process that writes and writes, and returns it when it has written something."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", NURSERY], env=environment, **pipes) as nursery:

        def start():
            nursery.stdin.write(f"{path / 'runs'} {path / 'acknowledged'}\n")
            nursery.stdin.flush()
            return int(nursery.stdout.readline())

        yield start


def kill(process):
    os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(process, 0)
            time.sleep(1e-3)


@pytest.mark.integration
def test_killed_processes_lose_nothing_that_was_acknowledged(tmp_path):
    rng = np.random.default_rng(0)
    runs, acknowledged = tmp_path / "runs", 0
    with writers(tmp_path) as start:
        for killed in range(50):
            process = start()
            time.sleep(rng.uniform(0, 0.03))
            kill(process)
            acknowledged += int((tmp_path / "acknowledged").read_text())
            assert_plain_files(runs)
            logs = lox.load(runs)[RUN]
            assert len(logs["x"]) >= acknowledged and len(logs["wide"]) >= acknowledged
            for key in ("x", "wide"):
                values = logs[key].reshape(len(logs[key]), -1)[:, 0]
                assert_array_equal(values.astype(np.int32), logs.steps["step"][key])
                starts = np.flatnonzero(values == 0)
                assert len(starts) == killed + 1
                assert set(np.diff(values)[np.setdiff1d(np.arange(len(values) - 1), starts - 1)]) <= {1}
            acknowledged = min(len(logs["x"]), len(logs["wide"]))


def test_a_full_disk_is_an_error_and_leaves_whole_events(tmp_path):
    program = f"""
import resource, signal, sys, numpy as np, lox
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
sys.path.insert(0, {str(TESTS)!r})
from runs import saver
logger = saver({str(tmp_path)!r})
for i in range(1000):
    logger.log(logger.init(7), lox.logdict({{"x": np.full((1, 10), float(i))}}, {{"step": {{"x": np.int64([i])}}}}))
try:
    logger.flush()
except OSError as error:
    print(type(error).__name__, error.__notes__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
logger.log(logger.init(7), lox.logdict({{"x": np.full((1, 10), -1.0)}}, {{"step": {{"x": np.int64([-1])}}}}))
logger.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert "SaveLogger" in done.stdout and "OSError" in done.stdout
    logs = lox.load(tmp_path)[RUN]
    assert_array_equal(logs["x"][:, 0], logs.steps["step"]["x"].astype(float))
    assert logs["x"][-1, 0] == -1
    assert_plain_files(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError) as raised:
        write(tmp_path / "file" / "runs", logs_of({"x": [1.0]}))
    assert any("SaveLogger" in note for note in raised.value.__notes__)


def test_a_directory_that_is_deleted_underneath_is_an_error_and_other_runs_go_on(tmp_path):
    logger = saver(tmp_path)
    for seed in (7, 8):
        logger.log(logger.init(seed), logs_of({"x": [1.0]}))
    logger.flush()
    shutil.rmtree(tmp_path / RUN)
    for seed in (7, 8):
        logger.log(logger.init(seed), logs_of({"x": [2.0]}))
    with pytest.raises(lox.StorageError, match=f"{RUN} was removed, or moved"):
        logger.flush()
    logger.close()
    assert_array_equal(lox.load(tmp_path)[name_of(8)]["x"], [1.0, 2.0])


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.* has a problem with run:lox.LoggerWarning")
def test_two_processes_do_not_write_one_run(tmp_path):
    runs = tmp_path / "runs"
    with writers(tmp_path) as start:
        process = start()
        with (
            pytest.warns(lox.LoggerWarning, match="another process of this machine writes"),
            pytest.raises(lox.StorageError, match=f"is written by process {process}"),
        ):
            write(runs, logs_of({"x": [1.0]}))
        with pytest.warns(lox.LoggerWarning), saver(runs) as logger:  # Another run is no matter.
            logger.log(logger.init(8), logs_of({"x": [1.0]}))
        kill(process)
    write(runs, logs_of({"x": np.float32([-1])}, step=np.int32([10**9])))
    assert lox.load(runs)[RUN]["x"][-1] == -1


def claim_of(process, host=None, **more):
    """What says that a process writes a run."""
    return json.dumps({"process": process, "host": host or socket.gethostname(), "id": "another", **more})


def unreachable(process, signal):
    raise PermissionError


@pytest.mark.parametrize(
    "claim, kill, written",
    [
        (claim_of(os.getpid()), os.kill, True),
        (claim_of(1), unreachable, False),
        (claim_of(2**30), os.kill, True),
        (claim_of(os.getppid(), started="0"), os.kill, True),
        (claim_of(os.getppid(), boot="another"), os.kill, True),
        (claim_of(2**30, "elsewhere"), os.kill, False),
        ("", os.kill, True),
        ('{"process": 1', os.kill, True),
    ],
    ids=[
        "one of the same number",
        "another user's",
        "a dead one",
        "one whose number is in use again",
        "one before the machine was started again",
        "on another host",
        "torn at once",
        "torn",
    ],
)
def test_a_run_is_written_unless_a_process_that_may_live_writes_it(tmp_path, monkeypatch, claim, kill, written):
    monkeypatch.setattr(os, "kill", kill)
    run = tmp_path / RUN
    run.mkdir()
    (run / "owner.json").write_text(claim)
    if written:
        write(tmp_path, logs_of({"x": [1.0]}))
        assert_array_equal(lox.load(tmp_path)[RUN]["x"], [1.0])
    else:
        with pytest.raises(lox.StorageError, match="is written by process"):
            write(tmp_path, logs_of({"x": [1.0]}))
    assert [file.read_text() for file in run.glob("owner.json*")] == ([] if written else [claim])


def test_a_logger_gives_up_no_claim_but_its_own(tmp_path):
    with saver(tmp_path) as logger:
        logger.log(logger.init(7), logs_of({"x": [1.0]}))
        logger.flush()
        (tmp_path / RUN / "owner.json").write_text(claim_of(1))
    assert (tmp_path / RUN / "owner.json").read_text() == claim_of(1)


def test_a_logger_that_continues_an_experiment_closes_the_one_that_writes_it(tmp_path):
    with saver(tmp_path) as logger:
        run = logger.init(7)
        logger.log(run, logs_of({"x": [1.0]}))
        logger.flush()
        write(tmp_path, logs_of({"x": [2.0]}))
        with pytest.raises(lox.LogValueError, match="was closed"):
            logger.log(run, logs_of({"x": [3.0]}))
    assert_array_equal(lox.load(tmp_path)[RUN]["x"], [1.0, 2.0])


OTHER = '{"format": 99, "versions": {}, "config": {}, "tables": []}'


@pytest.mark.parametrize("text", ["{", "[" * 100_000, OTHER])
def test_a_damaged_manifest_is_an_error_that_names_it(tmp_path, text):
    write(tmp_path, logs_of({"x": [1.0]}))
    (tmp_path / RUN / "manifest.json").write_text(text)
    with pytest.raises(lox.StorageError, match="manifest.json"):
        lox.load(tmp_path)
    with pytest.raises(lox.StorageError, match="manifest.json"):
        write(tmp_path, logs_of({"x": [1.0]}))


def test_damaged_files_are_errors_that_name_them(tmp_path):
    write(tmp_path, logs_of({"x": [1.0]}))
    column, manifest = tmp_path / RUN / TABLE / "x.npy", tmp_path / RUN / "manifest.json"
    whole = column.read_bytes()
    for damaged in (b"", whole[:100], whole[:130], b"PK" + whole):
        column.write_bytes(damaged)
        with pytest.raises(lox.StorageError, match="x.npy is damaged"):
            lox.load(tmp_path)
    column.write_bytes(whole)
    manifest.write_text(manifest.read_text().replace('"arrays"', '"array"'))
    with pytest.raises(lox.StorageError, match="manifest.json is damaged: its tables are others than were written"):
        lox.load(tmp_path)


def test_what_is_no_directory_of_logs(tmp_path):
    with pytest.raises(lox.StorageError, match="has no run of lox in it"):
        lox.load(tmp_path)
    with pytest.raises(lox.StorageError, match="no directory"):
        lox.load(tmp_path / "absent")


def test_logs_beside_runs_would_hide_them(tmp_path):
    write(tmp_path, logs_of({"x": [1.0]}))
    with pytest.raises(lox.StorageError, match=f"has runs in it, such as .*{RUN}"):
        lox.save(logs_of({"x": [1.0]}), tmp_path)
    assert list(lox.load(tmp_path)) == [RUN]


@pytest.mark.parametrize("part", ["steps", "mask"])
def test_logs_that_do_not_fit_together_are_not_saved(tmp_path, part):
    values = {"steps": {"step": {"x": np.arange(2)}}, "mask": {"x": np.ones(2, bool)}}
    with pytest.raises(lox.LogDataError, match=r"of 'x' are not as many: \[2, 3\]"):
        lox.save(lox.logdict({"x": np.zeros(3)}, **{part: values[part]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_of_numbers_that_are_cut_and_do_not_increase_it_is_told_that_they_are_cut(tmp_path):
    with SaveLogger(tmp_path) as logger:
        run = logger.init(7)
        for value in (np.zeros(()), np.zeros(2), np.zeros(()), np.zeros(2), np.zeros(())):
            logger.log(run, {"x": value})
            logger.flush()
    file = min(tmp_path.rglob("@@order.npy"))
    numbers = np.load(file)
    numbers[1, 1] = numbers[0, 1]
    file.write_bytes((file.read_bytes()[: -numbers.nbytes] + numbers.tobytes())[:-8])
    with pytest.raises(lox.StorageError, match="is damaged: it has 2 whole entries of 3"):
        lox.load(tmp_path)


def test_what_stands_in_the_place_of_a_column_is_an_error(tmp_path):
    lox.save(logs_of({"x": [1.0]}), tmp_path / "run")
    column = tmp_path / "run" / TABLE / "x.npy"
    np.save(column, np.float32(1))
    with pytest.raises(lox.StorageError, match=r"x.npy is damaged: it does not begin as a column of float64\[\]"):
        lox.load(tmp_path)
    column.unlink()
    os.mkfifo(column)
    with pytest.raises(lox.StorageError, match="x.npy is damaged: it is no file"):
        lox.load(tmp_path)


def test_a_manifest_names_no_files_elsewhere(tmp_path):
    write(tmp_path / "runs", logs_of({"x": [1.0]}))
    manifest = tmp_path / "runs" / RUN / "manifest.json"
    change(manifest, '"table-0"', '"../table-0"')
    with pytest.raises(lox.StorageError, match="'../table-0' is no directory of a table"):
        lox.load(tmp_path / "runs")
    with pytest.raises(lox.StorageError, match="'../table-0' is no directory"):
        write(tmp_path / "runs", logs_of({"x": [2.0]}))
    assert not list(tmp_path.glob("*.npy"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda column, counter: os.truncate(column, os.path.getsize(column) - 16),
        lambda column, counter: os.truncate(column, 100),
        lambda column, counter: os.truncate(column, 0),
        lambda column, counter: column.unlink(),
        lambda column, counter: counter.unlink(),
        lambda column, counter: np.save(column, np.arange(4)),
        lambda column, counter: np.save(column, np.ones((4, 1))),
        lambda column, counter: np.save(column, np.ones((4,)).astype(np.float32)),
    ],
    ids=["truncated", "no header", "empty", "gone", "counter gone", "dtype", "shape", "precision"],
)
def test_a_damaged_table_stays_as_it_is_and_the_run_goes_on_after_its_whole_rows(tmp_path, request, damage):
    write(tmp_path, logs_of({"x": np.arange(4.0)}, step=range(4)))
    column, counter = tmp_path / RUN / TABLE / "x.npy", tmp_path / RUN / TABLE / "@step.npy"
    damage(column, counter)
    damaged = {file: file.read_bytes() for file in (column, counter) if file.exists()}
    whole = [0.0, 1.0] if "truncated" in request.node.name else []
    with pytest.raises(lox.StorageError, match='is damaged: .* damaged="prefix"'):
        lox.load(tmp_path)
    with pytest.warns(lox.StorageWarning, match="is damaged"):
        logs = lox.load(tmp_path, damaged="prefix")[RUN]
    assert logs["x"].tolist() == logs.steps["step"]["x"].tolist() == whole
    with pytest.warns(lox.LoggerWarning, match=f"is damaged: .* goes on with the {len(whole)} rows"):
        write(tmp_path, logs_of({"x": [4.0], "y": [1.0]}, step=[4]), logs_of({"x": [5.0]}, step=[5]))
    assert {file: file.read_bytes() for file in (column, counter) if file.exists()} == damaged
    logs = lox.load(tmp_path)[RUN]
    assert logs["x"].tolist() == logs.steps["step"]["x"].tolist() == [*whole, 4.0, 5.0]
    assert logs["y"].tolist() == [1.0]


def test_a_damaged_manifest_is_not_continued(tmp_path):
    write(tmp_path, logs_of({"x": [1.0]}))
    manifest = tmp_path / RUN / "manifest.json"
    for old, new in (('"arrays"', '"array"'), ('"float64"', '"float63"'), ('"config": {}', '"config": []')):
        whole = manifest.read_text()
        change(manifest, old, new)
        for act in (lambda: lox.load(tmp_path), lambda: write(tmp_path, logs_of({"x": [2.0]}))):
            with pytest.raises(lox.StorageError, match="manifest.json"):
                act()
        manifest.write_text(whole)
    assert_array_equal(lox.load(tmp_path)[RUN]["x"], [1.0])


@pytest.mark.parametrize("manifest", [b"", bytes(100)])
def test_a_run_whose_manifest_did_not_get_to_the_disk_begins_anew(tmp_path, manifest):
    write(tmp_path, logs_of({"x": [7.0]}, step=[7]))
    (tmp_path / RUN / "manifest.json").write_bytes(manifest)
    with pytest.raises(lox.StorageError, match="is damaged"):
        lox.load(tmp_path)
    with pytest.warns(lox.StorageWarning, match="is damaged"):
        assert not lox.load(tmp_path, damaged="prefix")[RUN]
    with pytest.warns(lox.LoggerWarning, match="after a power failure"):
        write(tmp_path, logs_of({"x": [1.0, 2.0]}, step=[1, 2]))
    logs = lox.load(tmp_path)[RUN]
    assert logs["x"].tolist() == logs.steps["step"]["x"].tolist() == [1, 2]


def test_a_run_killed_between_columns_is_continued_after_its_last_whole_event(tmp_path):
    write(tmp_path, logs_of({"x": [1.0]}, step=[1]))
    column = tmp_path / RUN / TABLE / "x.npy"
    before = column.read_bytes()
    write(tmp_path, logs_of({"x": [2.0, 3.0]}, step=[2, 3]))
    column.write_bytes(before + bytes(3))  # The data was begun, and the header still says one event.
    write(tmp_path, logs_of({"x": [4.0]}, step=[4]))
    logs = lox.load(tmp_path)[RUN]
    assert_array_equal(logs["x"], [1.0, 4.0])
    assert_array_equal(logs.steps["step"]["x"], [1, 4])


# -- saving as a whole ---------------------------------------------------------------------------------------------


def files_of(path):
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("way", ["save", "log"])
def test_other_files_in_the_directory_are_neither_changed_nor_in_the_way(tmp_path, way):
    run = tmp_path / RUN
    for folder in ("table-0", "table-2"):
        (run / folder).mkdir(parents=True)
        np.save(run / folder / "x.npy", np.arange(3.0))
    (run / "table-1").write_text("mine")
    before = files_of(run)
    logs = logs_of({"x": [1.0]}) | logs_of({"y": [2.0, 3.0]})
    if way == "save":
        lox.save(logs, run)
    else:
        write(tmp_path, logs)
    found = lox.load(run)
    assert {key: found[key].tolist() for key in found} == {"x": [1.0], "y": [2.0, 3.0]}
    after = files_of(run)
    assert before.items() <= after.items()
    names = {f"table-{n}/{key}.npy" for n, key in ((3, "x"), (3, "@@order"), (4, "y"), (4, "@@order"))}
    assert set(after) - set(before) == {*names, "manifest.json"}


NOT_SAVED = [np.array(["a"]), np.array([None]), np.array(["2026-01-01"], "M8[D]"), np.zeros(1, "i4,f4")]


@pytest.mark.parametrize("values", NOT_SAVED, ids=["text", "objects", "dates", "records"])
@pytest.mark.parametrize("part", ["value", "counter"])
def test_what_cannot_be_saved_is_an_error_before_anything_is_written(tmp_path, values, part):
    steps = {"step": {"note": values}} if part == "counter" else {}
    logs = lox.logdict({"loss": np.ones(1), "note": values if part == "value" else np.ones(1)}, steps)
    with pytest.raises(lox.LogDataError, match="'note' cannot be saved"):
        lox.save(logs, tmp_path / "run")
    assert not list(tmp_path.iterdir())
    with pytest.raises(lox.LogDataError, match="'note' cannot be saved") as raised:
        write(tmp_path, logs_of({"note": [0.5]}), logs, logs, logs_of({"note": [0.25]}))
    assert any("SaveLogger" in note for note in raised.value.__notes__)
    assert {key: array.tolist() for key, array in lox.load(tmp_path)[RUN].items()} == {
        "note": [0.5, 0.25],
        "loss": [1.0, 1.0],
    }


@pytest.mark.parametrize("there", [False, True])
def test_saving_that_fails_leaves_nothing(tmp_path, there):
    run = tmp_path / "run"
    if there:
        run.mkdir()
        (run / "mine").write_text("")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            lox.save(logs_of({"x": np.arange(3.0), "y": np.arange(10_000.0)}), run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.rglob("*")] == (["run", "mine"] if there else [])
    lox.save(logs_of({"x": np.arange(3.0)}), run)
    assert_array_equal(lox.load(run)["x"], np.arange(3.0))


@pytest.mark.parametrize("there", [False, True])
def test_saving_that_fails_at_its_end_leaves_nothing(tmp_path, monkeypatch, there):
    def full(path, manifest, **options):
        assert len(list(path.glob("table-0/*.npy"))) == 3
        raise OSError("disk full")

    run = tmp_path / "run"
    if there:
        run.mkdir()
        (run / "mine").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr("lox._storage._save.write_manifest", full)
        with pytest.raises(OSError, match="disk full"):
            lox.save(logs_of({"x": [1.0], "y": [2.0]}), run)
    assert [path.name for path in tmp_path.rglob("*")] == (["run", "mine"] if there else [])


@pytest.mark.integration
def test_saving_that_is_killed_leaves_no_run_and_is_done_again(tmp_path):
    program = f"""
import os, signal, numpy as np, lox
from lox._storage import _column
write = _column.Column.append
def killed(column, *args):
    if column.path.name == "y.npy":
        os.kill(os.getpid(), signal.SIGKILL)
    write(column, *args)
_column.Column.append = killed
lox.save(lox.logdict({{"x": np.arange(3.0), "y": np.arange(3.0)}}), {str(tmp_path / "run")!r})
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    with pytest.raises(lox.StorageError, match="has no run of lox"):
        lox.load(tmp_path)
    lox.save(logs_of({"x": [1.0], "y": [2.0]}), tmp_path / "run")
    assert {key: value.tolist() for key, value in lox.load(tmp_path / "run").items()} == {"x": [1.0], "y": [2.0]}


# -- what describes a run ------------------------------------------------------------------------------------------

DESCRIBED = {
    "time": (1795323536.0314765, 1795323536.0314765),
    "tokens": (10_000_000_000, 10_000_000_000),
    "huge": (2**100, 2**100),
    "int64": (np.int64(-(2**40)), -(2**40)),
    "uint64": (np.uint64(2**64 - 1), 2**64 - 1),
    "float64": (np.float64(0.1), 0.1),
    "float32": (np.float32(0.5), 0.5),
    "truth": (True, True),
    "numbers": (np.array([[0.1], [0.2]]), [[0.1], [0.2]]),
    "swapped": (np.array([0.1, 0.2], ">f8"), [0.1, 0.2]),
    "none of them": (np.zeros((0, 2)), []),
    "text": (np.str_("adam"), "adam"),
    "infinite": (float("inf"), float("inf")),
    "dtype": (jnp.bfloat16, "bfloat16"),
    "dtype of NumPy": (np.float32, "float32"),
    "instance of dtype": (np.dtype("int8"), "int8"),
    "nothing": (None, None),
}


@pytest.mark.parametrize("way", ["save", "log", "log in jit", "tap", "tap in jit", "tap in vmap"])
def test_what_describes_a_run_is_saved_as_given(tmp_path, way):
    given = {name: value for name, (value, _) in DESCRIBED.items()}
    logs = logs_of({"x": np.float32([1.0])})

    def tapped(seed):
        return logger.tap(lambda: lox.log({"x": 1.0}), logger.init(seed, **given))()

    with saver(tmp_path) as logger:
        if way == "save":
            lox.save(logs, tmp_path / RUN, **given)
        elif way == "log":
            logger.log(logger.init(7, **given), logs)
        elif way == "log in jit":
            jax.jit(lambda: logger.log(logger.init(7, **given), logs))()
        elif way == "tap":
            tapped(7)
        elif way == "tap in jit":
            jax.jit(tapped)(jax.random.key(7))
        else:
            jax.vmap(tapped)(jax.random.split(jax.random.key(7), 2))
    manifests = list(tmp_path.rglob("manifest.json"))
    assert len(manifests) == (2 if way == "tap in vmap" else 1)
    for manifest in manifests:
        config = json.loads(manifest.read_text())["config"]
        assert config == {name: expected for name, (_, expected) in DESCRIBED.items()}


def test_what_describes_saved_logs_may_be_nested(tmp_path):
    lox.save(
        lox.logdict(),
        tmp_path / "run",
        optimizer={"lr": np.float32(0.5), "shapes": [(1, np.int64(2))]},
        day=np.datetime64("2026-01-02"),
    )
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    assert config == {"optimizer": {"lr": 0.5, "shapes": [[1, 2]]}, "day": "2026-01-02"}


def test_what_describes_runs_is_read_back(tmp_path):
    for seed, rate in enumerate([0.1, math.nan]):
        with saver(tmp_path / "runs") as logger:
            logger.log(logger.init(seed, rate=rate, model={"width": 8}), logs_of({"x": [1.0]}))
    found = lox.load_config(tmp_path / "runs")
    assert found.keys() == lox.load(tmp_path / "runs").keys()
    assert repr(found[name_of(0, rate=0.1, model={"width": 8})]) == "{'model/width': 8, 'rate': 0.1}"
    assert (
        repr(lox.load_config(tmp_path / "runs" / name_of(1, rate=math.nan, model={"width": 8})))
        == "{'model/width': 8, 'rate': nan}"
    )
    with pytest.raises(lox.StorageError, match="no directory of runs"):
        lox.load_config(tmp_path / "nothing")


def test_another_experiment_in_a_run_is_said(tmp_path):
    def log(**config):
        with saver(tmp_path) as logger:
            logger.log(logger.init(7, name="mine", **config), logs_of({"x": [1.0]}))

    log(rate=0.1, nan=math.nan, shape=(2, 3), cell=jnp.tanh)
    log(rate=0.1, nan=math.nan, shape=[2, 3], cell=jnp.tanh, more="words")
    with pytest.warns(UserWarning, match="mine is a run already, with rate=0.1, and goes on with 0.5. If this is"):
        log(rate=0.5)
    assert lox.load_config(tmp_path / "mine")["rate"] == 0.5
    assert len(lox.load(tmp_path / "mine")["x"]) == 3


@pytest.mark.parametrize("logs", [{"x": 1}, None])
def test_what_is_no_logs(tmp_path, logs):
    with pytest.raises(lox.LogDataError, match="writes a lox.logdict"):
        lox.save(logs, tmp_path / "run")


def test_logs_inside_of_jit_are_not_saved_at_once(tmp_path):
    def f(x):
        lox.save(lox.spool(lambda x: lox.log({"x": x}))(x)[1], tmp_path / "run")

    with pytest.raises(lox.LogDataError, match="these are traced"):
        jax.jit(f)(1.0)


def test_a_sink_that_fails_leaves_the_files_whole(tmp_path):
    class Faulty(lox.loggers.Logger):
        def write(self, run, logs):
            raise RuntimeError("no")

    logger = MultiLogger(Faulty(), lox.loggers.SaveLogger(tmp_path), name="a")
    with pytest.raises(RuntimeError, match="no"), logger:
        logger.log(logger.init(7), logs_of({"x": [1.0]}))
    assert_array_equal(lox.load(tmp_path / "a")[RUN]["x"], [1.0])


def test_few_files_stay_open_and_none_of_a_logger_that_is_closed(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with saver(tmp_path) as logger:
        for step in range(2):
            for seed in range(50):
                logger.log(logger.init(seed), {f"key{place}": np.float32(step) for place in range(4)}, step=step)
            logger.flush()
        assert len(os.listdir("/proc/self/fd")) <= before + 64
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(logs["key3"].tolist() == [0, 1] for logs in lox.load(tmp_path).values())


def test_saving_that_fails_keeps_an_empty_directory_that_was_there_and_no_other(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("disk full")

    there, new = tmp_path / "there", tmp_path / "new"
    there.mkdir()
    monkeypatch.setattr(os, "rename", full)
    for folder in (there, new):
        with pytest.raises(OSError, match="disk full"):
            lox.save(logs_of({"x": [1.0]}), folder)
    assert list(tmp_path.iterdir()) == [there] and not list(there.iterdir())


def test_logs_are_not_saved_around_runs_at_any_depth(tmp_path):
    for depth in range(1, 4):
        folder = tmp_path / str(depth)
        lox.save(logs_of({"x": [1.0]}), folder.joinpath(*"abc"[:depth]))
        with pytest.raises(lox.StorageError, match="has runs in it"):
            lox.save(logs_of({"x": [2.0]}), folder)
        assert [logs["x"].tolist() for logs in lox.load(folder).values()] == [[1.0]]


def test_a_run_with_a_mask_is_stacked_beside_one_without_in_either_order(tmp_path):
    mask = np.array([[True, False], [True, True]])
    parts = {
        "masked": lox.logdict({"x": np.ones((2, 2))}, mask={"x": mask}),
        "whole": lox.logdict({"x": np.ones((2, 2))}),
    }
    for names in (["masked", "whole"], ["whole", "masked"]):
        folder = tmp_path / names[0]
        for place, name in enumerate(names):
            lox.save(parts[name], folder / str(place))
        logs = lox.load(folder, stack=True)
        assert_array_equal(logs.mask["x"][:, names.index("masked")], mask)
        assert logs.mask["x"][:, names.index("whole")].all()


def test_a_run_is_there_when_its_first_event_cannot_be_saved(tmp_path):
    with saver(tmp_path) as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.array(["text"])}))
        with pytest.raises(lox.LogDataError, match="cannot be saved"):
            logger.flush()
    assert [*lox.load(tmp_path)] == [RUN]


@pytest.mark.parametrize("short", ["x.npy", "@step.npy"])
def test_a_run_of_which_any_column_is_shorter_goes_on_after_its_last_whole_event(tmp_path, short):
    write(tmp_path, logs_of({"x": [1.0, 2.0, 3.0]}, step=[1, 2, 3]))
    column = tmp_path / RUN / TABLE / short
    column.write_bytes(column.read_bytes().replace(b" 3,)", b" 1,)"))  # Its header did not get to the disk.
    for events, more in (([1.0], [4.0, 5.0]), ([1.0, 4.0, 5.0], [6.0])):
        logs = lox.load(tmp_path)[RUN]
        assert_array_equal(logs["x"], events)
        assert_array_equal(logs.steps["step"]["x"], events)
        write(tmp_path, logs_of({"x": more}, step=np.int64(more)))


def test_the_order_of_counters_makes_no_other_key(tmp_path):
    logger = saver(tmp_path)
    run = logger.init(0)
    for steps in ({"a": 1, "b": 2}, {"b": 4, "a": 3}):
        arrays = {name: {"x": np.array([value])} for name, value in steps.items()}
        logger.log(run, lox.logdict({"x": np.float32([0])}, arrays))
    logger.close()
    (logs,) = [lox.load(path) for path in tmp_path.iterdir() if path.is_dir()]
    assert list(logs) == ["x"] and logs.steps["a"]["x"].tolist() == [1, 3]


def test_a_mask_that_is_ahead_of_its_values_is_read_as_far_as_these(tmp_path):
    lox.save(lox.logdict({"x": np.arange(3.0)}, mask={"x": np.array([True, False, True])}), tmp_path / "run")
    with OpenFiles() as files:
        Column.find(tmp_path / "run" / TABLE / "@@mask.npy", np.dtype(bool), ()).append(np.array([True]), files)
    logs = lox.load(tmp_path / "run")
    assert logs["x"].tolist() == [0, 1, 2] and logs.mask["x"].tolist() == [True, False, True]


def test_the_manifest_says_when_and_by_what_a_run_was_made(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    monkeypatch.setattr(sys, "argv", ["train.py", "--rate", "0.1"])
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    write(tmp_path / "runs", logs_of({"x": [1.0]}))
    lox.save(lox.logdict({"x": np.ones(1)}), tmp_path / "saved")
    for folder in (tmp_path / "runs" / RUN, tmp_path / "saved"):
        manifest = json.loads((folder / "manifest.json").read_text())
        assert before <= datetime.datetime.fromisoformat(manifest["time"]) <= datetime.datetime.now(datetime.UTC)
        assert (manifest["command"], manifest["commit"]) == (["train.py", "--rate", "0.1"], commit)
        assert set(manifest["versions"]) == {"python", "lox", "jax", "numpy"}
    manifest = json.loads((tmp_path / "runs" / RUN / "manifest.json").read_text())
    assert manifest["devices"] == {"cpu": jax.local_device_count()}


@pytest.mark.parametrize("path", ["", None])
def test_without_a_repository_or_git_a_manifest_names_no_commit(tmp_path, monkeypatch, path):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "train.py"), raising=False)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    write(tmp_path / "runs", logs_of({"x": [1.0]}))
    assert "commit" not in json.loads((tmp_path / "runs" / RUN / "manifest.json").read_text())


def test_a_run_that_goes_on_keeps_what_its_manifest_says(tmp_path, monkeypatch):
    write(tmp_path, logs_of({"x": [1.0]}))
    first = json.loads((tmp_path / RUN / "manifest.json").read_text())
    monkeypatch.setattr(sys, "argv", ["other.py"])
    write(tmp_path, logs_of({"x": [2.0]}))
    second = json.loads((tmp_path / RUN / "manifest.json").read_text())
    assert [second[name] for name in ("time", "command")] == [first[name] for name in ("time", "command")]


# -- distributions -------------------------------------------------------------------------------------------------


def counted(*edges):
    logs = lox.logdict({"x": jnp.array([0.5, 7.0])}, {"step": {"x": jnp.arange(2)}})
    return logs.reduce(lox.reductions.histogram(edges)) | logs.prefix("q/").reduce(lox.reductions.quantiles([0.1, 0.9]))


def test_saved_distributions_are_known_when_they_are_read(tmp_path):
    lox.save(counted(-math.inf, 0.1, 2), tmp_path / "a")
    with saver(tmp_path / "b") as logger:
        logger.log(logger.init(7), counted(-math.inf, 0.1, 2))
    found = [lox.load(tmp_path / "a"), *lox.load(tmp_path / "b").values()]
    for logs in found:
        assert logs.distributions == counted(-math.inf, 0.1, 2).distributions and len(logs.distributions) == 2
    assert lox.load(tmp_path, stack=True).distributions == found[0].distributions
    lox.save(counted(0, 1, 2), tmp_path / "c")
    assert lox.load(tmp_path, stack=True).distributions.keys() == {"q/x"}


def test_events_by_other_edges_are_another_key(tmp_path):
    memory = lox.loggers.MemoryLogger()
    with MultiLogger(lox.loggers.SaveLogger(tmp_path), memory) as logger:
        state = logger.init(7)
        for edges in ((0, 1), (0, 1), (0, 5)):
            logger.log(state, counted(*edges))
    [saved] = lox.load(tmp_path).values()
    for logs in (saved, memory[state]):
        assert [logs.distributions[key].edges for key in ("x", "x#2")] == [(0, 1), (0, 5)]
        assert logs["x"].tolist() == [[0, 1, 1]] * 2 and logs["x#2"].tolist() == [[0, 1, 1]]


@pytest.mark.integration
def test_events_of_other_batch_axes_are_another_key(tmp_path):
    memory, xs = lox.loggers.MemoryLogger(), jnp.arange(4.0).reshape(2, 2)
    masks = {"x": jnp.array([True, False]), "x#2": xs > 1}

    def f(x):
        for mask in masks.values():
            lox.log({"x": x}, where=mask)

    with MultiLogger(lox.loggers.SaveLogger(tmp_path), memory) as logger:
        states = [logger.init(seed) for seed in range(4)]
        for state in states[:3]:
            logger.log(state, {"y": 1.0})
        logger.tap(f, states[1])(xs)
        for mask in masks.values():
            logger.log(states[2], lox.spool(lambda x, mask: lox.log({"x": x}, where=mask))(xs, mask)[1])
        logger.log(states[3], {"y": 1.0})
    for saved in (list(lox.load(tmp_path).values()), [memory[state] for state in states]):
        assert [logs["y"].tolist() for logs in saved if "y" in logs] == [[1.0]] * 4
        for logs in saved[1:3]:
            assert {key: logs.mask[key][0].tolist() for key in masks} == {key: m.tolist() for key, m in masks.items()}


def test_a_manifest_with_a_damaged_distribution(tmp_path):
    lox.save(counted(0, 1), tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    for wrong in ({"name": "histogram", "edges": [1, 0]}, {"name": "x"}, {"name": "histogram", "x": 1}):
        manifest["tables"][0]["arrays"][1][4] = wrong
        manifest["digest"] = digest(manifest["tables"])
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(lox.StorageError, match="is damaged"):
            lox.load(tmp_path)


# -- tables ---------------------------------------------------------------------------------------------------------


def test_columns_of_one_log_call_are_one_row_after_a_kill_between_them(tmp_path):
    write(tmp_path, lox.spool(lambda: lox.log({"loss": 1.0, "accuracy": 1.0}, step=1))()[1])
    (table,) = (tmp_path / RUN).glob("table-*")
    write(tmp_path, {"loss": np.float32(2), "accuracy": np.float32(2)})
    before = {file: file.read_bytes() for file in table.iterdir()}
    write(tmp_path, lox.spool(lambda: lox.log({"loss": 3.0, "accuracy": 3.0}, step=3))()[1])
    for name in ("accuracy.npy", "@@order.npy"):
        (table / name).write_bytes(before[table / name])
    write(tmp_path, lox.spool(lambda: lox.log({"loss": 4.0, "accuracy": 4.0}, step=4))()[1])
    logs = lox.load(tmp_path)[RUN]
    assert logs["loss"].tolist() == logs["accuracy"].tolist() == logs.steps["step"]["loss"].tolist() == [1, 4]
    assert logs["loss#2"].tolist() == logs["accuracy#2"].tolist() == [2]
    assert logs.timelines == (("accuracy", "loss"), ("accuracy#2", "loss#2"))


def test_two_thousand_keys_of_one_log_call_are_a_handful_of_files(tmp_path):
    with saver(tmp_path) as logger:
        for step in range(2):
            logger.log(logger.init(7), {f"key{place}": step * place for place in range(2000)}, step=step)
    assert len([*tmp_path.rglob("*.npy")]) <= 6
    logs = lox.load(tmp_path)[RUN]
    assert [logs[f"key{place}"].tolist() for place in range(2000)] == [[0, place] for place in range(2000)]
    assert_plain_files(tmp_path)


def test_masks_that_come_and_go_are_two_tables(tmp_path):
    masks = np.random.default_rng(0).random((100, 3)) < 0.8
    with saver(tmp_path) as logger:
        for step, mask in enumerate(masks):
            logs = lox.logdict({"x": np.full((1, 3), step)}, {"step": {"x": np.int32([step])}}, {"x": mask[None]})
            logger.log(logger.init(7), logs)
            logger.flush()
    assert len([*(tmp_path / RUN).glob("table-*")]) <= 2
    logs = lox.load(tmp_path)[RUN]
    there = masks.any(1)
    assert_array_equal(logs.steps["step"]["x"], np.flatnonzero(there))
    assert_array_equal(logs.mask["x"], masks[there])


def test_a_key_of_several_log_calls_keeps_the_order_of_its_events(tmp_path):
    calls = [{"x": 0, "y": 0}, {"x": 0}, {"x": 0.5}, {"y": 0, "z": 0}]
    order = np.random.default_rng(0).integers(0, len(calls), 60)
    order[0] = 0
    for start in range(0, 60, 5):  # The program is begun again.
        with saver(tmp_path) as logger:
            for place in range(start, start + 5):
                values = {key: value + place for key, value in calls[order[place]].items()}
                logger.log(logger.init(7), values, step=place)
                if place % 3:
                    logger.flush()
    logs = lox.load(tmp_path)[RUN]
    expected = {"x": [0, 1], "x#2": [2], "y": [0, 3], "z": [3]}
    for key, those in expected.items():
        places = np.flatnonzero(np.isin(order, those))
        assert_array_equal(logs.steps["step"][key], places)
        assert_array_equal(logs[key], places + 0.5 * (key == "x#2"))


def test_what_a_killed_process_left_of_a_table_is_removed_by_the_next_one(tmp_path):
    write(tmp_path, {"x": 1.0})
    (tmp_path / RUN / f".{'0a' * 16}").mkdir()
    (tmp_path / RUN / ".mine").mkdir()
    write(tmp_path, {"x": 2.0})
    assert {path.name for path in (tmp_path / RUN).iterdir()} == {"table-0", "manifest.json", ".mine"}


@pytest.mark.parametrize(("of", "name"), [(Table, "look"), (Column, "find")])
def test_events_of_a_key_are_read_up_to_one_moment(tmp_path, monkeypatch, of, name):
    logger = saver(tmp_path)

    def log(place):
        logger.log(logger.init(7), {"x": place} | ({"y": place} if place % 2 else {}), step=place)
        logger.flush()

    for place in range(4):
        log(place)
    read, later = getattr(of, name), iter(range(4, 100))

    def read_while_it_is_written(*args):
        found = read(*args)
        for _ in range(3):
            log(next(later))
        return found

    monkeypatch.setattr(of, name, read_while_it_is_written)
    steps = lox.load(tmp_path)[RUN].steps["step"]["x"]
    monkeypatch.undo()
    logger.close()
    assert len(steps) >= 4
    assert_array_equal(steps, np.arange(len(steps)))


def test_a_count_is_within_a_line_of_the_cache_for_any_dtype_and_shape(tmp_path, monkeypatch):
    write_at = _column._write_at  # The system may write less than it is asked for.
    monkeypatch.setattr(
        _column, "_write_at", lambda file, data, at: write_at(file, np.frombuffer(data, np.uint8)[:50], at)
    )
    for place, (dtype, shape) in enumerate([("f4", ()), ("c16", (1,) * 20), ("b1", (1000, 1000, 0)), ("u2", (3,))]):
        path = tmp_path / f"{place}.npy"
        with OpenFiles() as files:
            column = Column.create(path, np.dtype(dtype), shape)
            for _ in range(3):
                column.append(np.zeros((4, *shape), dtype), files)
        text = path.read_bytes()
        assert text[64:88] == b"%24d" % 12
        assert np.load(path).shape == (12, *shape)
        assert Column.find(path, np.dtype(dtype), shape).count == 12


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on Windows")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_fork_does_not_write_to_a_run_of_its_parent(tmp_path):
    program = f"""
import os, sys
import numpy as np
import lox
sys.path.insert(0, {str(TESTS)!r})
from runs import saver
logger = saver({str(tmp_path)!r})
run = logger.init(7)
logger.log(run, {{"x": np.float32(1)}})
logger.flush()
if os.fork() == 0:
    try:
        logger.log(run, {{"x": np.float32(9)}})
        logger.flush()
    except Exception as error:
        os.write(1, str(error).encode())
    finally:
        os._exit(0)
os.wait()
logger.log(run, {{"x": np.float32(2)}})
logger.close()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "fork" in done.stdout, done
    assert lox.load(tmp_path)[RUN]["x"].tolist() == [1, 2]


def test_a_directory_that_is_made_again_gets_no_events_of_the_old_one(tmp_path):
    logger = saver(tmp_path)
    logger.log(logger.init(7), logs_of({"x": np.arange(1000.0)}))
    logger.flush()
    shutil.copytree(tmp_path / RUN, tmp_path / "copy")
    shutil.rmtree(tmp_path / RUN)
    (tmp_path / "copy").rename(tmp_path / RUN)
    logger.log(logger.init(7), logs_of({"x": [1.0]}))
    with pytest.raises(lox.StorageError, match="written by another process"):
        logger.close()
    assert_array_equal(lox.load(tmp_path)[RUN]["x"], np.arange(1000.0))


def test_a_file_that_is_removed_while_a_logger_writes_it_is_an_error(tmp_path):
    logger = saver(tmp_path)
    for value, other in ((1.0, False), (2.0, True), (3.0, False)):
        if other:  # Files of others are no matter.
            (tmp_path / RUN / TABLE / "notes").write_text("")
        logger.log(logger.init(7), logs_of({"x": [value]}))
        logger.flush()
    (tmp_path / RUN / TABLE / "x.npy").unlink()
    logger.log(logger.init(7), logs_of({"x": [4.0]}))
    with pytest.raises(lox.StorageError, match=r"x\.npy was removed"):
        logger.close()


def test_a_claim_without_hard_links(tmp_path, monkeypatch):
    def no_links(*paths):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    for _ in range(2):  # Experiments of one name have a number.
        with SaveLogger(tmp_path / "runs", name="a") as logger:
            logger.log(logger.init(7), {"x": 1.0})
    assert {name.partition("/")[0] for name in lox.load(tmp_path / "runs")} == {"a", "a-2"}
    write(tmp_path, logs_of({"x": [1.0]}))
    logger = saver(tmp_path)
    logger.log(logger.init(7), logs_of({"x": [2.0]}))
    logger.flush()
    with pytest.raises(lox.StorageError, match="is written by process"):
        RunWriter(tmp_path / RUN, (), {}, "other", {})
    logger.close()
    assert lox.load(tmp_path)[RUN]["x"].tolist() == [1, 2]


def test_runs_behind_links_are_found_once_and_manifests_of_others_are_none(tmp_path):
    write(tmp_path / "elsewhere", logs_of({"x": [1.0]}))
    runs = tmp_path / "runs"
    (runs / "web").mkdir(parents=True)
    (runs / "web" / "manifest.json").write_text('{"name": "an app"}')
    (runs / "b").symlink_to(tmp_path / "elsewhere" / RUN)
    (runs / "around").symlink_to(runs)
    lox.save(logs_of({"x": [2.0]}), runs / "z")
    (runs / "a").symlink_to(runs / "z")
    assert {name: logs["x"].tolist() for name, logs in lox.load(runs).items()} == {"b": [1.0], "z": [2.0]}


@pytest.mark.parametrize("owner", ["[]", "7", '{"process": "x"}', '{"process": -5, "host": null}', "\0" * 50])
def test_a_malformed_claim_does_not_count(tmp_path, owner):
    write(tmp_path, logs_of({"x": [1.0]}))
    (tmp_path / RUN / "owner.json").write_text(owner)
    write(tmp_path, logs_of({"x": [2.0]}))
    assert lox.load(tmp_path)[RUN]["x"].tolist() == [1, 2]


def test_a_durable_logger_has_its_events_on_the_disk_when_flush_returns(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))
    with SaveLogger(tmp_path, name="a", durable=True) as logger:
        run = logger.init(7)
        logger.log(run, {"x": 1.0})
        logger.flush()
        folder = tmp_path / "a" / RUN
        table = folder / TABLE
        names = {pathlib.Path(each).name.partition(".json")[0] for each in synced}
        assert names == {"x.npy", "@@order.npy", TABLE, RUN, "manifest"}
        assert {str(folder), str(table), str(table / "x.npy")} <= {*synced}
        synced.clear()
        logger.log(run, {"x": 2.0})
        logger.flush()
        assert str(table / "x.npy") in synced
    synced.clear()
    write(tmp_path / "b", {"x": 1.0})
    assert not synced


def test_what_becomes_of_damaged_runs_is_raise_or_prefix(tmp_path):
    with pytest.raises(lox.LogValueError, match='"raise" or "prefix"'):
        lox.load(tmp_path, damaged="ignore")


def test_of_tables_that_share_a_key_the_prefix_ends_where_the_first_is_damaged(tmp_path):
    with saver(tmp_path) as logger:
        for place in range(10):
            logger.log(logger.init(7), {"x": place} | ({"y": place} if place % 2 else {}), step=place)
            logger.log(logger.init(7), {"z": place})
            logger.flush()
    (table,) = [path.parent for path in tmp_path.rglob("y.npy")]
    os.truncate(table / "y.npy", os.path.getsize(table / "y.npy") - 5)  # Two of five.
    with pytest.warns(lox.StorageWarning, match="3 whole entries of 5"):
        logs = lox.load(tmp_path, damaged="prefix")[RUN]
    assert logs["x"].tolist() == [*range(7)] and logs["y"].tolist() == [1, 3, 5] and len(logs["z"]) == 10
    with pytest.warns(lox.LoggerWarning, match="goes on with the 3 rows"), saver(tmp_path) as logger:
        logger.log(logger.init(7), {"x": 10}, step=10)
        logger.log(logger.init(7), {"x": 11, "y": 11}, step=11)
    logs = lox.load(tmp_path)[RUN]
    assert logs["x"].tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 10, 11] and logs["y"].tolist() == [1, 3, 5, 11]


def test_a_file_that_another_took_the_place_of_is_refused_when_it_is_opened_again(tmp_path):
    """With more runs than files stay open."""
    with SaveLogger(tmp_path, name="a") as logger:
        runs = [logger.init(0, i=i) for i in range(70)]
        for run in runs:
            logger.log(run, {"loss": 1.0})
        logger.flush()
        file = logger.directory / runs[0].name / TABLE / "loss.npy"
        shutil.copy(file, tmp_path / "new")
        os.replace(tmp_path / "new", file)
        logger.log(runs[0], {"loss": 2.0})
        with pytest.raises(lox.StorageError, match="is another file"):
            logger.flush()


def test_counts_of_a_histogram_after_plain_ones_of_the_same_shape_are_another_array(tmp_path):
    spooled = lox.spool(lambda x: lox.log({"h": x})["h"], reduce=lox.reductions.histogram([0.0, 1.0, 2.0]))
    _, logs = spooled(jnp.float32(0.5))
    with saver(tmp_path) as logger:
        for each in ({"h": np.zeros(logs["h"].shape[1:], logs["h"].dtype)}, logs):
            logger.log(logger.init(7), each)
            logger.flush()
    found = lox.load(tmp_path)[RUN]
    assert (len(found["h"]), len(found["h#2"]), list(found.distributions)) == (1, 1, ["h#2"])


def test_stacked_runs_say_how_a_key_was_reduced_that_only_some_have(tmp_path):
    _, logs = lox.spool(lambda x: lox.log({"h": x})["h"], reduce=lox.reductions.quantiles((0.1, 0.9)))(jnp.float32(0.5))
    lox.save(logs, tmp_path / "one")
    lox.save(logs_of({"loss": [1.0]}), tmp_path / "two")
    assert list(lox.load(tmp_path, stack=True).distributions) == ["h"]


def test_a_run_goes_on_after_the_last_step_of_a_key_of_whichever_dtype(tmp_path):
    with SaveLogger(tmp_path, name="a") as logger:
        for step, loss in ((0, 2.0), (1, 1), (9, 0.5)):
            logger.log(logger.init(7), {"loss": loss}, step=step)
            logger.flush()
    with pytest.warns(lox.LoggerWarning, match="goes back"), SaveLogger(tmp_path, resume="a") as logger:
        logger.log(logger.init(7), {"loss": 3.0}, step=5)


def test_floats_that_describe_a_run_are_the_shortest_decimals_of_their_dtype(tmp_path):
    """Those that NumPy writes, for numbers of all sizes and digits."""
    bits = np.random.default_rng(0).integers(0, 2**32, 200, np.uint32)
    floats = np.concatenate([bits.view(np.float32), np.float32([1 / 3, 16777216, 1e-45, 3.4028235e38, 0.1, 1e10])])
    halves = np.arange(1, 2**16, 641).astype(np.uint16).view(np.float16)
    floats, halves = floats[np.isfinite(floats)], halves[np.isfinite(halves)]
    lox.save(logs_of({"x": [1.0]}), tmp_path / "run", floats=floats, halves=halves[:, None], one=floats[3])
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    assert config["floats"] == [float(str(each)) for each in floats] and config["one"] == config["floats"][3]
    assert config["halves"] == [[float(str(each))] for each in halves]
    assert_array_equal(np.float32(config["floats"]), floats)


def test_a_run_whose_manifest_is_that_of_something_else_is_an_error_and_not_left_out(tmp_path):
    for number, text in enumerate(["{}", "[]", "null", '{"format": 2, "config": {}, "tables": []}']):
        root = tmp_path / str(number)
        root.mkdir()
        write(root / "runs", logs_of({"x": [1.0]}))
        lox.save(logs_of({"x": [2.0]}), root / "runs" / "z")
        (root / "runs" / RUN / "manifest.json").write_text(text)
        for path in (root / "runs", root / "runs" / RUN):
            with pytest.raises(lox.StorageError, match=r"manifest\.json is no manifest of lox"):
                lox.load(path)
        with pytest.raises(lox.StorageError, match=r"manifest\.json is no manifest of lox"):
            write(root / "runs", logs_of({"x": [3.0]}))
        with pytest.warns(lox.StorageWarning, match=r"manifest\.json is no manifest of lox"):
            runs = lox.load(root / "runs", damaged="prefix")
        assert {name: {key: logs[key].tolist() for key in logs} for name, logs in runs.items()} == {
            RUN: {},
            "z": {"x": [2]},
        }
        # Where no table is beside it, it is that of an app.
        (root / "app").mkdir()
        (root / "app" / "manifest.json").write_text(text)
        with pytest.raises(
            lox.StorageError, match="app has a manifest.json that is not lox's. Give this one another path"
        ):
            lox.save(logs_of({"x": [1.0]}), root / "app")
        assert files_of(root / "app") == {"manifest.json": text.encode()}
        lox.save(logs_of({"x": [1.0]}), root / "app" / "run")
        assert [*lox.load(root / "app")] == ["run"]


def test_the_prefix_of_tables_that_share_keys_by_way_of_others_ends_before_the_first_event_that_is_lost(tmp_path):
    for damaged in range(5):
        root = tmp_path / str(damaged)
        root.mkdir()
        calls = ["xy", "zw", "yz", "x", "u"]
        with saver(root) as logger:
            for place in range(4 * len(calls)):
                logger.log(logger.init(7), dict.fromkeys(calls[place % len(calls)], np.int32(place)), step=place)
                logger.flush()
        tables = json.loads((root / RUN / "manifest.json").read_text())["tables"]
        (folder,) = (
            each["folder"]
            for each in tables
            if {name for kind, name, *_ in each["arrays"] if kind == "value"} == {*calls[damaged]}
        )
        column = root / RUN / folder / f"{calls[damaged][-1]}.npy"
        os.truncate(column, column.stat().st_size - 9)  # Three of four numbers are not whole.
        lost = len(calls) + damaged
        with pytest.warns(lox.StorageWarning, match="1 whole entries of 4"):
            logs = lox.load(root, damaged="prefix")[RUN]
        expected = {
            key: [
                place
                for place in range(4 * len(calls))
                if key in calls[place % len(calls)] and (place < lost or (key == "u") != (damaged == 4))
            ]
            for key in "xyzwu"
        }
        assert {key: logs[key].tolist() for key in logs} == expected
        assert {key: steps.tolist() for key, steps in logs.steps["step"].items()} == expected


def test_a_manifest_that_takes_the_place_of_one_with_tables_is_on_the_disk_before_it_does(tmp_path, monkeypatch):
    """Also that of a logger that is not durable: a file that a power failure left empty would lose all of them."""
    done, fsync, replace = [], os.fsync, os.replace

    def noted_fsync(file):
        done.append(f"sync {pathlib.Path(os.readlink(f'/proc/self/fd/{file}')).name.partition('.json')[0]}")
        fsync(file)

    def noted_replace(new, old):
        done.append(f"replace {pathlib.Path(old).name.partition('.json')[0]}")
        replace(new, old)

    with saver(tmp_path) as logger:
        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(os, "replace", noted_replace)
        for value in (1.0, [1.0, 2.0], 2.0, 3):
            logger.log(logger.init(7), {"x": np.asarray(value)})
            logger.flush()
        monkeypatch.undo()
    # So are the numbers of the rows of tables that share a key, which have no rows without them.
    later = ["sync @@order.npy", "sync manifest", "replace manifest", f"sync {RUN}"]
    assert [each for each, _ in itertools.groupby(done)] == ["replace manifest", *later, *later]


def test_rows_of_which_it_is_not_known_when_they_came_are_none_where_another_table_has_their_key(tmp_path):
    """As after a power failure that left their numbers out."""
    with saver(tmp_path) as logger:
        for place in range(6):
            logger.log(logger.init(7), {"x": place} | ({"y": place} if place % 2 else {}), step=place)
            logger.log(logger.init(7), {"z": place})
            logger.flush()
    file = tmp_path / RUN / TABLE / "@@order.npy"
    data = file.read_bytes()
    assert data[64:88] == b"%24d" % 3
    file.write_bytes(data[:64] + b"%24d" % 0 + data[88:])
    logs = lox.load(tmp_path)[RUN]
    assert {key: logs[key].tolist() for key in logs} == {"x": [1, 3, 5], "z": [*range(6)], "y": [1, 3, 5]}


def test_each_key_has_its_own_count_of_dropped_events(tmp_path):
    values = {name: np.arange(3.0) for name in "abc"}
    lox.save(lox.logdict(values, dropped={"a": np.int32(0), "b": np.int32(7)}), tmp_path / "run")
    assert {key: int(count) for key, count in lox.load(tmp_path / "run").dropped.items()} == {"a": 0, "b": 7}
