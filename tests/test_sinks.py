"""TensorBoard, Weights & Biases, MLflow and Trackio, as their own readers and files have it."""

import datetime
import functools
import hashlib
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from processes import ROOT
from runs import name_of
from sinks import Mlflow, TensorBoard, Trackio, Wandb
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event

import lox
from lox.loggers import (
    MemoryLogger,
    MlflowLogger,
    TrackioLogger,
    WandbLogger,
    _mlflow,
    _processes,
    _tensorboard,
    _wandb,
)
from lox.loggers._identity import identity_of

# MLflow's own, of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")

KEYS = jax.random.key_data(jax.random.split(jax.random.key(0), 2))
NAMES = [name_of(key, rate=place, author="Ada") for place, key in enumerate(KEYS)]
NAME = name_of(7)


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture
def tensorboard(tmp_path):
    return TensorBoard(tmp_path)


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    return Wandb(tmp_path)


@pytest.fixture
def no_network(monkeypatch):
    asked = []

    def getaddrinfo(*args, **kwargs):
        asked.append(args)
        raise OSError("there is no network")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield
    assert asked == []


@pytest.fixture
def mlflow(tmp_path, mlflow_store, no_network):
    return Mlflow(tmp_path, mlflow_store)


@pytest.fixture
def trackio(tmp_path, trackio_folder, no_network):
    return Trackio(tmp_path, trackio_folder)


@pytest.fixture(params=["tensorboard", "wandb", "mlflow", "trackio"])
def sink(request):
    return request.getfixturevalue(request.param)


def train(x):
    def step(x, i):
        lox.log({"train/loss": x, "accuracy": -x}, step=2 * i, epoch=i // 2)
        lox.log({"weights": jnp.stack([x, x + 1, jnp.nan])})
        return x + 1, None

    x = lax.scan(step, x, jnp.arange(3))[0]
    return lox.log({"end": x.astype(jnp.bfloat16)})["end"]


def run(logger):
    def one(words, x):
        return logger.tap(train, logger.init(words, rate=x, author="Ada"), buffer=2)(x)

    jax.jit(jax.vmap(one))(KEYS, jnp.arange(2.0))


def logged(sink, *parts, **options):
    """What a sink has of one run that logs these."""
    with sink.logger(**options) as logger:
        for part in parts:
            logger.log(logger.init(7), part if isinstance(part, lox.logdict) else lox.logdict(part))
    return sink


# -- all of them ---------------------------------------------------------------------------------------------------


def test_each_lane_has_a_run_of_its_own(sink):
    with sink.logger() as logger:
        run(logger)
    found = sink.numbers()
    assert set(found) == set(NAMES)
    for lane, name in enumerate(NAMES):
        assert found[name]["train/loss"] == [(2 * i, lane + i) for i in range(3)]
        assert found[name]["accuracy"] == [(2 * i, -(lane + i)) for i in range(3)]
        assert found[name]["epoch"] == [(2 * i, i // 2) for i in range(3)]
        assert found[name]["end"] == [(0, lane + 3)]


@pytest.mark.integration
def test_a_run_goes_on_where_it_was(sink):
    for start in (0, 10):
        steps = {"step": {"x": np.arange(start, start + 2)}}
        logged(sink, lox.logdict({"x": np.arange(2.0) + start}, steps))
    assert sink.numbers() == {NAME: {"x": [(0, 0), (1, 1), (10, 10), (11, 11)]}}


@pytest.mark.integration
def test_what_shards_log_of_one_run_is_apart_from_what_they_share_in_each_process(sink, monkeypatch):
    monkeypatch.setattr(_processes, "here", lambda: _processes.Here(0, 2, 2))
    mesh = jax.sharding.Mesh(jax.devices()[:2], "d")

    def program(x):
        lox.log({"own": x, "mean": lax.pmean(x, "d")})
        return x

    with sink.logger(processes="all") as logger:
        state = logger.init(7)
        of_shards = jax.shard_map(program, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))
        jax.block_until_ready(jax.jit(logger.tap(of_shards, state))(jnp.arange(2.0)))
    found = {name: {"own", "mean"} & set(keys) for name, keys in sink.numbers().items()}
    assert found == {f"{NAME}-process0": {"own"}, NAME: {"mean"}}


ODD = ["a b", "a_b", "a*b", "a//b", "a/", "/a", "//a", "a", "A", "..", "../a", "a/./b", "..a", "é", "模型", "a\nb"]
ODD += ["%61", "_x2a-", "a_x2a-b", "_x4*", "x.mean", "step", "time_", "x" * 300, "x" * 301, "a:b", "a b ", "."]
ODD += ["", "_x-", "event", "event_x-", "time", "_step", "_runtime", "_timestamp", "_wandb", "\ud800", "_x-_x-"]


@pytest.mark.integration
def test_every_key_is_kept_apart_from_the_others(sink):
    logged(sink, {key: np.float32([place]) for place, key in enumerate(ODD)})
    (found,) = sink.numbers().values()
    assert sorted(value for events in found.values() for _, value in events) == list(range(len(ODD)))
    assert len(found) == len(ODD)


@pytest.mark.integration
def test_a_key_and_a_counter_of_one_name_are_both_kept(sink):
    names = ["epoch", "event", "time"]
    data = {name: np.array([place]) for place, name in enumerate(["step", *names])}
    steps = {"step": np.array([10]), **{name: np.array([20 + place]) for place, name in enumerate(names)}}
    logged(sink, lox.logdict(data, {name: dict.fromkeys(data, step) for name, step in steps.items()}))
    found = sink.numbers()[NAME]
    assert sorted(events for (events,) in found.values()) == [(10, i) for i in (0, 1, 2, 3, 20, 21, 22)]
    assert found["epoch"] == [(10, 20)]


@pytest.mark.integration
def test_what_is_not_finite(sink):
    logged(sink, {"x": np.float32([np.nan, np.inf, -np.inf, 1])})
    largest = np.finfo(np.float64).max if isinstance(sink, Mlflow) else np.inf
    np.testing.assert_equal(sink.numbers()[NAME]["x"], [(0, np.nan), (1, largest), (2, -largest), (3, 1)])


@pytest.mark.integration
def test_a_key_whose_dtype_and_shape_change(sink):
    values = [np.int8([-3]), np.float16([0.5]), np.array([True]), np.ones((1, 2)), np.zeros((1, 0))]
    values += [np.full((1, 2), np.nan), np.float32([[[7]]]), np.ones(1, ml_dtypes.bfloat16)]
    logged(sink, *[{"x": value} for value in values])
    assert sink.numbers()[NAME]["x"] == [(0, -3), (1, 0.5), (2, 1), (6, 7), (7, 1)]


@pytest.mark.integration
def test_batch_elements_in_which_an_event_did_not_happen_are_no_part_of_a_histogram(sink):
    def log_if_positive(x, i):
        lax.cond(x > 0, lambda: (lox.log({"x": x, "two": jnp.array([x, -x])}, step=i), None)[1], lambda: None)

    def program(xs):
        def step(xs, i):
            jax.vmap(lambda x: log_if_positive(x, i))(xs)
            return xs - 5, None

        lax.scan(step, xs, jnp.arange(10, 13))

    with sink.logger(batch_as="histogram") as logger:
        logger.tap(program, logger.init(7))(jnp.array([0, 5, 12]))
    found = sink.ranges()[NAME]
    assert found["two"] == [(10, (-12, 12)), (11, (-7, 7)), (12, (-2, 2))]
    assert [step for step, _ in found["x"]] == [10, 11, 12]
    assert found["x"][0] == (10, (5, 12))
    assert "x" not in sink.numbers()[NAME]  # One element of several is no number.


@pytest.mark.integration
def test_a_batch_without_lanes_is_nothing(sink):
    def log(xs):
        jax.vmap(lambda x: lox.log({"x": x, "two": jnp.stack([x, x])}, step=x, epoch=3))(xs)
        lox.log({"y": jnp.sum(xs)})

    with sink.logger() as logger:
        logger.spool(log, logger.init(7))(jnp.zeros(0, jnp.int32))
    assert sink.numbers()[NAME] == {"y": [(0, 0)]}
    assert not any(sink.ranges().values())


# -- values with batch axes ----------------------------------------------------------------------------------------

DONE = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]], bool)
"""In which steps the episodes of three environments end."""
RETURNS = np.arange(12, dtype=np.float32).reshape(4, 3) ** 2


def act(returns, done, counted):
    """Logs the returns of the episodes that end, and two values of all environments."""

    def step(_, at):
        i, returns, done = at
        counters = {"step": 10 * i, "epoch": i} if counted else {}
        lox.log({"return": returns}, where=done, **counters)
        jax.vmap(lambda x: lox.log({"x": x, "pair": jnp.stack([x, -x])}, **counters))(returns)
        lox.log({"vector": returns})

    lax.scan(lambda *args: (step(*args), None), None, (jnp.arange(len(done)), returns, done))


def tapped(logger, state, *args, **options):
    logger.tap(act, state, **options)(*args)


def spooled(logger, state, *args, **options):
    logger.spool(act, state, unify=True, **options)(*args)


def batched(log):
    def log_two(logger, state, returns, done, counted):
        def one(words, returns):
            log(logger, logger.init(words), returns, done, counted)

        jax.jit(jax.vmap(one))(jnp.stack([jnp.uint32([0, 7]), jnp.uint32([0, 8])]), jnp.stack([returns, returns + 1]))

    return log_two


WAYS = {
    "tap": tapped,
    "tap, buffered": lambda *args: tapped(*args, buffer=3),
    "spool": spooled,
    "spool, in jit": lambda logger, state, returns, done, counted: jax.jit(
        lambda *args: spooled(logger, state, *args, counted)
    )(returns, done),
    "spool, in windows": lambda *args: spooled(*args, reduce="last", window=1),
    "spool, bounded": lambda *args: spooled(*args, max_events=9),
    "tap, in windows": lambda *args: tapped(*args, reduce="last", window=1),
    "tap, under vmap": batched(tapped),
    "spool, under vmap": batched(spooled),
}


def scalars(sink):
    """The numbers, without the statistics of arrays that MLflow has."""
    numbers = sink.numbers()[NAME]
    statistics = (".mean", ".std", ".min", ".max") if isinstance(sink, Mlflow) else ()
    return {key: events for key, events in numbers.items() if not key.endswith(statistics)}


def check_means(sink, done, counted):
    numbers, ranges = scalars(sink), sink.ranges()[NAME]
    ended = [i for i in range(len(done)) if done[i].any()]
    steps = [10 * i for i in ended] if counted else range(len(ended))
    expected = [(at, pytest.approx(RETURNS[i][done[i]].mean())) for at, i in zip(steps, ended, strict=True)]
    assert numbers["return"] == expected
    assert numbers["x"] == [(10 * i if counted else i, pytest.approx(RETURNS[i].mean())) for i in range(4)]
    assert numbers.keys() == ({"return", "x", "epoch"} if counted else {"return", "x"})
    assert ranges.keys() == {"pair", "vector"}
    for i, (step, (low, high)) in enumerate(ranges["pair"]):
        assert step == (10 * i if counted else i)
        assert (low, high) == (pytest.approx(-RETURNS[i].mean()), pytest.approx(RETURNS[i].mean()))
    for i, (_, (low, high)) in enumerate(ranges["vector"]):
        assert (low, high) == (RETURNS[i].min(), RETURNS[i].max())


@pytest.mark.covering(1)
@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_batch_inside_a_run_is_a_curve_of_its_means_with_or_without_a_counter(tensorboard, way, counted):
    # A bound and windows count the events of each batch element: the first of them may be of several steps.
    done = DONE if "windows" not in way and "bounded" not in way else np.ones_like(DONE)
    with tensorboard.logger() as logger:
        WAYS[way](logger, logger.init(7), RETURNS, done, counted)
    check_means(tensorboard, done, counted)


@pytest.mark.integration
@pytest.mark.parametrize("counted", [True, False])
def test_the_returns_of_episodes_that_end_are_a_curve(sink, counted):
    with sink.logger() as logger:
        tapped(logger, logger.init(7), RETURNS, DONE, counted)
    check_means(sink, DONE, counted)


def in_batch(values, steps=None, mask=None):
    """Logs of a key `x` in which the axes of the mask are batch axes."""
    steps = {name: {"x": step} for name, step in (steps or {}).items()}
    return lox.logdict({"x": values}, steps, {"x": np.ones(values.shape[:2], bool) if mask is None else mask})


@pytest.mark.integration
def test_a_mean_is_not_finite_where_an_element_in_which_the_event_happened_is_not(sink):
    values = np.float32([[1, np.nan], [1, np.nan], [1, np.inf], [np.inf, -np.inf], [-np.inf, 2], [1, 2]])
    mask = np.ones(values.shape, bool)
    mask[1, 1] = False
    largest = LARGEST if isinstance(sink, Mlflow) else np.inf
    expected = [np.nan, 1, largest, np.nan, -largest, 1.5]
    np.testing.assert_equal(logged(sink, in_batch(values, mask=mask)).numbers(), {NAME: {"x": [*enumerate(expected)]}})


@pytest.mark.integration
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[True, False]]), 0.5),
        (np.int8([[127, 126]]), 126.5),
        (np.uint8([[1, 2]]), 1.5),
        (np.uint64([[2**63, 2**63 + 2**42]]), 2**63 + 2**41),
        (np.ones((1, 2), ml_dtypes.bfloat16), 1),
        (np.float16([[60000, 60002]]), 60000),
        (np.int32([[7]]), 7),
        (np.int32([[[7], [8]]]), 7.5),
    ],
)
def test_a_mean_is_a_number_of_any_dtype(tensorboard, values, expected):
    assert logged(tensorboard, in_batch(values)).numbers() == {NAME: {"x": [(0, expected)]}}


@pytest.mark.integration
def test_each_batch_element_has_a_curve_at_its_own_counters(sink):
    values = np.arange(6.0).reshape(3, 2)
    steps = {"step": np.array([[0, 5], [1, 6], [2, 7]]), "epoch": np.array([[1, 2], [3, 4], [5, 6]])}
    mask = np.array([[True, False], [True, True], [False, True]])
    found = logged(sink, in_batch(values, steps, mask), batch_as="each").numbers()[NAME]
    assert {name: sorted(events) for name, events in found.items()} == {
        "x/0": [(0, 0), (1, 2)],
        "x/1": [(6, 3), (7, 5)],
        "epoch": [(0, 1), (1, 3), (6, 4), (7, 6)],
    }


@pytest.mark.integration
def test_curves_of_batch_elements_without_a_counter_have_the_numbers_of_the_events(sink):
    def log(x, done):
        lox.log({"x": x}, where=done)
        jax.vmap(lambda y: jax.vmap(lambda z: lox.log({"y": z}))(y))(jnp.stack([x, x + 2]))
        lox.log({"vector": x})

    with sink.logger(batch_as="each") as logger:
        for i, done in enumerate([[True, True], [False, True], [True, False]]):
            logger.tap(log, logger.init(7))(jnp.array([0.0, 1.0]) + 10 * i, jnp.array(done))
        mask = np.array([[True, False], [False, True], [True, False]])
        logger.log(logger.init(7), in_batch(np.arange(6.0).reshape(3, 2), mask=mask))
    assert scalars(sink) == {
        "x/0": [(0, 0), (2, 20), (3, 0), (5, 4)],
        "x/1": [(0, 1), (1, 11), (4, 3)],
        **{f"y/{row}/{at}": [(i, 10 * i + 2 * row + at) for i in range(3)] for row in range(2) for at in range(2)},
    }
    assert sink.ranges()[NAME].keys() == {"vector"}


@pytest.mark.integration
def test_a_batch_element_and_a_key_of_its_name_are_kept_apart(sink):
    keys = ["x/1", "x/1_", "x/1__", "x/1/1", "x_", "/1", "", "x/", "a b/1", "x/1/", "x/é", "step", "project", "x.mean"]
    data = {key: np.float32([place]) for place, key in enumerate(keys)}
    count = len(keys)
    for place, key in enumerate(["x", "x/1", "", "step", "project", "x.mean", "x/", "a b"]):
        data[f"{key}"] = np.float32([[count + 2 * place, count + 2 * place + 1]])
    batched = {key: np.ones((1, 2), bool) for key, value in data.items() if value.ndim == 2}
    steps = {"x/0": dict.fromkeys(data, np.array([100]))}
    steps["x/0"] |= {key: np.full((1, 2), 100) for key in batched}
    found = logged(sink, lox.logdict(data, steps, batched), batch_as="each").numbers()[NAME]
    values = [value for events in found.values() for _, value in events if value != 100]
    assert sorted(values) == sorted(float(each) for value in data.values() for each in value.ravel())
    assert all(len(set(events)) == 1 for events in found.values())


@pytest.mark.integration
def test_too_many_batch_elements_for_a_curve_each_are_an_error_of_their_key_alone(sink):
    data = {"many": np.zeros((1, 513)), "some": np.zeros((1, 512)), "x": np.ones(1)}
    mask = {key: np.ones(data[key].shape, bool) for key in ("many", "some")}
    with pytest.raises(
        lox.LogDataError, match="'many' has 513 batch elements, .* draws a curve for 512 at most. .*mean"
    ):
        logged(sink, lox.logdict(data, {}, mask), batch_as="each")
    assert len(sink.numbers()[NAME]) == 513 and sink.numbers()[NAME]["x"] == [(0, 1)]


@pytest.mark.integration
def test_images_of_a_batch_stay_as_they_are(tensorboard):
    channels = np.random.default_rng(0).integers(0, 256, (1, 3, 4, 3)).astype(np.uint8)
    expected = channels[0]
    for name, batch_as in {"x": "mean", "x/0_": "each"}.items():
        key = name.removesuffix("_")
        logs = lox.logdict({key: channels}, {}, {key: np.ones((1, 3), bool)})
        found = logged(tensorboard, logs, images=[key], batch_as=batch_as).images()[NAME]
        np.testing.assert_array_equal(found[name][0][1][..., :3], expected)


def test_a_curve_for_each_batch_element_of_whatever_was_logged(tensorboard):
    """Of values with counters of each, with two batch axes and without counters, arrays, images and distributions."""
    done = np.array([[True, False], [True, True], [False, True]])
    steps = {"step": np.array([[0, 5], [1, 6], [2, 7]]), "epoch": np.array([[1, 2], [3, 4], [5, 6]])}
    of_two = np.array([[[1, 1, 0], [0, 1, 0]], [[1, 0, 1], [1, 1, 0]]], bool)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3)).astype(np.uint8)
    made_by = {"h": HISTOGRAM, "q": QUANTILES}

    def parts(start):
        values = np.arange(6.0).reshape(3, 2) + 100 * start
        yield in_batch(values, {name: step + 10 * start for name, step in steps.items()}, done)
        yield lox.logdict({"two/0": np.arange(12.0).reshape(2, 2, 3) + 100 * start}, {}, {"two/0": of_two})
        data = {"pair": np.array([[[1, 3 + start], [2, np.nan]]]), "pixels/0": pixels[start][None]}
        data |= {"h": np.uint32([COUNTS]), "q": np.array([[[0, 1, 2], [3, 4, 5 + start]]], np.float64)}
        masks = {key: np.ones((1, 3 if key == "pixels/0" else 2), bool) for key in data}
        yield lox.logdict(data, {}, masks, distributions=made_by)
        yield lox.logdict({"vector": np.array([[4.0, 5.0 + start]])})

    with tensorboard.logger(batch_as="each", images="pixels/0") as logger:
        for start in range(2):
            for part in parts(start):
                logger.log(logger.init(7), part)
            logger.flush()

    expected = {
        "x/0": [(0, 0), (1, 2), (10, 100), (11, 102)],
        "x/1": [(6, 3), (7, 5), (16, 103), (17, 105)],
        "epoch": [(0, 1), (1, 3), (6, 4), (7, 6), (10, 11), (11, 13), (16, 14), (17, 16)],
    }
    for place in range(2):
        for q, values in {"q0": [0, 3], "q0.5": [1, 4], "q1": [2, 5]}.items():
            last = [values[place] + (q == "q1") * place * start for start in range(2)]
            expected[f"q/{place}/{q}"] = [*enumerate(last)]
    for start, event, row, at in np.ndindex(2, 2, 2, 3):
        if of_two[event, row, at]:
            found = (2 * start + event, 6 * event + 3 * row + at + 100 * start)
            expected.setdefault(f"two/0_/{row}/{at}", []).append(found)
    assert "two/0_/1/2" not in expected  # It happened in no event.
    assert tensorboard.numbers() == {NAME: expected}
    assert tensorboard.ranges()[NAME] == {
        "pair/0": [(0, (1, 3)), (1, (1, 4))],
        "pair/1": [(0, (2, 2)), (1, (2, 2))],
        "vector": [(0, (4, 5)), (1, (4, 6))],
        "h/0": [(0, (-1, 4)), (1, (-1, 4))],
        "h/1": [(0, (4, 7)), (1, (4, 7))],
    }
    bins = tensorboard.bins()[NAME]
    assert bins["h/0"] == [(start, (COUNTS[0][:3], BINS[:4])) for start in range(2)]
    assert bins["h/1"] == [(start, (COUNTS[1][3:], BINS[3:])) for start in range(2)]
    images = tensorboard.images()[NAME]
    assert images.keys() == {"pixels/0_"} and [step for step, _ in images["pixels/0_"]] == [0, 1]
    for start, (_, image) in enumerate(images["pixels/0_"]):
        np.testing.assert_array_equal(image[..., :3], pixels[start])


def test_all_batch_elements_are_one_curve_of_whatever_was_logged(tmp_path):
    for batch_as in ("mean", "histogram"):
        check_one_curve(TensorBoard(tmp_path / batch_as), batch_as)


def check_one_curve(tensorboard, batch_as):
    """Checks values of which some did not happen, at the counters of the first element that did, and after others."""
    values = np.array([[[3, 1], [2, 8], [5, 0]], [[7, 9], [4, 6], [1, 2]], [[1, 2], [3, 4], [5, 6]]], np.float32)
    mask = np.array([[[0, 1], [1, 0], [1, 1]], [[0, 0], [0, 0], [0, 1]], [[1, 1], [1, 1], [1, 1]]], bool)
    step = np.arange(18).reshape(3, 3, 2)
    key = "x/0"  # That of a batch element, were it one.
    with tensorboard.logger(batch_as=batch_as, images="image") as logger:
        run = logger.init(7)
        for start in range(2):
            steps = {"step": {key: step + 20 * start}, "lr": {key: step / 2}}
            logger.log(run, lox.logdict({key: values}, steps, {key: mask}))
            arrays = {"arrays": values, "whole": values[:, 0], "bare": values[:, 0]}
            logger.log(run, lox.logdict(arrays, {}, {"arrays": mask[..., 0], "whole": np.ones((3, 2), bool)}))
            counts = np.uint32([[[1, 0, 2, 0], [3, 0, 0, 1]]])
            qs = np.float64([[[0, 1, 2], [4, 5, 8]]])
            of_batch = {"h": np.array([[True, False]]) if start else np.ones((1, 2), bool), "q": np.ones((1, 2), bool)}
            made_by = {"h": HISTOGRAM, "q": QUANTILES}
            logger.log(run, lox.logdict({"h": counts, "q": qs}, {}, of_batch, distributions=made_by))
            image = np.uint8([[[start, 7], [8, 9]]])
            logger.log(run, lox.logdict({"image": image}, {}, {"image": np.ones((1, 2), bool)}))
            logger.flush()
    there = [values[event][mask[event]] for event in range(3)]
    first = [step[event][mask[event]][0] for event in range(3)]
    assert first == [1, 11, 12]
    at = [each + 20 * start for start in range(2) for each in first]
    numbers, ranges = tensorboard.numbers()[NAME], tensorboard.ranges()[NAME]
    assert numbers["lr"] == [(each, first[place % 3] / 2) for place, each in enumerate(at)]
    assert tensorboard.bins()[NAME]["h"] == [(0, ([4, 0, 2, 1], BINS)), (1, ([1, 0, 2], BINS[:4]))]
    assert ranges.pop("bare") == [
        (3 * start + i, (row.min(), row.max())) for start in range(2) for i, row in enumerate(values[:, 0])
    ]
    assert ranges.pop("h") == [(0, (-1, 7)), (1, (-1, 4))]
    quantiles = {f"q/{name}": (low, high) for name, low, high in (("q0", 0, 4), ("q0.5", 1, 5), ("q1", 2, 8))}
    if batch_as == "mean":
        assert numbers.pop(key) == [(each, pytest.approx(there[place % 3].mean())) for place, each in enumerate(at)]
        assert numbers.pop("whole") == [(i, values[i % 3, 0].mean()) for i in range(6)]
        for name, ends in quantiles.items():
            assert numbers.pop(name) == [(start, sum(ends) / 2) for start in range(2)]
        lanes = [values[i, mask[i, :, 0]].mean(0) if mask[i, :, 0].any() else None for i in range(3)]
        found = [lane for lane in lanes if lane is not None] * 2
        assert ranges.pop("arrays") == [(i, (lane.min(), lane.max())) for i, lane in enumerate(found)]
    else:
        expected = [(each, (there[place % 3].min(), there[place % 3].max())) for place, each in enumerate(at)]
        assert ranges.pop(key) == expected
        of_whole = [(values[i % 3, 0].min(), values[i % 3, 0].max()) for i in range(6)]
        assert ranges.pop("whole") == [*enumerate(of_whole)]
        of_arrays = [values[i, mask[i, :, 0]] for i in (0, 2)] * 2
        assert ranges.pop("arrays") == [(i, (array.min(), array.max())) for i, array in enumerate(of_arrays)]
        for name, ends in quantiles.items():
            assert ranges.pop(name) == [(start, ends) for start in range(2)]
    assert numbers.keys() == {"lr"} and not ranges
    images = tensorboard.images()[NAME]["image"]
    assert [(step, image[..., 0].tolist()) for step, image in images] == [
        (start, [[start, 7], [8, 9]]) for start in range(2)
    ]


@pytest.mark.parametrize("logger", [MemoryLogger, WandbLogger])
def test_what_to_make_of_a_batch_is_one_of_three_words(logger):
    with pytest.raises(lox.LogValueError, match="batch_as must be one of 'mean', 'each', 'histogram', got 'sum'"):
        logger(batch_as="sum")


LARGEST = np.finfo(np.float64).max
ARRAYS = {
    "nearly equal": np.array([1, 1 + 2e-16]),
    "nearly equal float32": np.float32([1, 1.0000001]),
    "exploded": np.float32([1e25, -2e25]),
    "exploded and equal": np.full(2, 1e25, np.float32),
    "all floats": np.array([LARGEST, -LARGEST, 0]),
    "the largest float": np.full(3, LARGEST),
    "the smallest float": np.full(3, -LARGEST),
    "float16": np.full(3, 60000, np.float16),
    "bfloat16": np.full(3, 3e38, ml_dtypes.bfloat16),
    "subnormal": np.array([0, 5e-324]),
    "zeros": np.zeros(3),
    "large integers": np.array([2**63 - 1, -(2**63)]),
    "larger integers": np.array([2**64 - 1, 2**64 - 2], np.uint64),
    "booleans": np.array([True, True]),
    "some not finite": np.array([np.inf, 3e38, -np.inf, np.nan]),
}


@pytest.mark.integration
def test_arrays_of_any_numbers_are_written_and_what_is_beside_them(sink):
    nothing = {"nothing finite": np.array([np.inf, np.nan])}
    logged(sink, *[{name: array[None], "loss": np.ones(1)} for name, array in (ARRAYS | nothing).items()])
    (found,) = sink.ranges().values()
    found = {name.replace("_x20-", " "): events for name, events in found.items()}
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        ((step, (low, high)),) = found[name]
        finite = array[np.isfinite(array)].astype(np.float64)
        assert step == 0 and -LARGEST <= low <= finite.min() <= finite.max() <= high <= LARGEST
    assert sink.numbers()[NAME]["loss"] == [(i, 1) for i in range(len(ARRAYS) + 1)]


@pytest.mark.integration
def test_a_value_that_cannot_be_written_is_an_error_of_its_key_alone(sink):
    def log(x):
        row = jnp.stack([x, x])
        lox.log({"no image": row, "a": x, "z": lax.complex(x, x), "another": row, "b": row})
        lox.log({"c": x})

    with sink.logger(images=["no image", "another"]) as logger:
        for _ in range(2):
            jax.vmap(lambda words, x: logger.tap(log, logger.init(words))(x))(KEYS, jnp.arange(2.0))
            with pytest.raises(lox.LogDataError, match="'z' is complex") as raised:
                logger.flush()
            notes = "".join(raised.value.__notes__)
            assert "The image 'no image' must have the shape" in notes and "The image 'another'" in notes
    numbers, ranges = sink.numbers(), sink.ranges()
    for lane, key in enumerate(KEYS):
        name = name_of(key)
        assert numbers[name]["a"] == numbers[name]["c"] == [(0, lane), (1, lane)]
        assert [step for step, _ in ranges[name]["b"]] == [0, 1]


@pytest.mark.integration
def test_arrays_without_a_number_are_nothing(sink):
    logged(sink, {"empty": np.zeros((1, 0, 3)), "none": np.full((2, 3), np.nan)})
    logged(sink, {"x": np.ones(1)})
    assert sink.numbers() == {NAME: {"x": [(0, 1)]}}


@pytest.mark.integration
def test_steps_that_are_no_integers(sink):
    logged(sink, lox.logdict({"x": np.arange(2.0)}, {"step": {"x": np.float32([0.5, 2])}}))
    found = sink.numbers()[NAME]
    if isinstance(sink, Wandb):
        assert found == {"x": [(0.5, 0), (2, 1)]}
    else:
        name = "step_x-" if isinstance(sink, Trackio) else "step"
        assert found == {"x": [(0, 0), (1, 1)], name: [(0, 0.5), (1, 2)]}


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")
def test_steps_that_go_backwards(sink):
    logged(sink, lox.logdict({"x": np.arange(3.0)}, {"step": {"x": np.array([5, 3, 4])}}))
    assert sorted(sink.numbers()[NAME]["x"]) == [(3, 1), (4, 2), (5, 0)]


@pytest.mark.integration
def test_complex_numbers_are_an_error_that_says_what_to_log(sink):
    with pytest.raises(lox.LogDataError, match="'z' is complex") as raised:
        logged(sink, {"z": np.complex64([1j])})
    assert any(type(sink).__name__ in note for note in raised.value.__notes__)


@pytest.mark.integration
def test_threads_log_to_one_run_and_to_others(sink):
    with sink.logger() as logger:

        def log(seed):
            for i in range(10):
                logger.log(logger.init(seed), lox.logdict({"mine": np.float32([i])}))
                logger.log(logger.init(7), lox.logdict({f"of {seed}": np.float32([i])}))

        threads = [threading.Thread(target=log, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = sink.numbers()
    events = [(i, i) for i in range(10)]
    assert [found[name_of(seed)]["mine"] for seed in (1, 2)] == [events, events]
    assert list(found[NAME].values()) == [events, events]


@pytest.mark.integration
@pytest.mark.parametrize("end", ["", "__import__('time').sleep(0.4)", "1 / 0"])
def test_a_program_that_never_closes_its_logger_ends_in_peace(sink, end):
    """What a library does at the exit comes after what lox does."""
    positional, named = sink.arguments
    code = (
        "import numpy as np, lox\n"
        f"logger = lox.loggers.{sink.of.__name__}(*{positional}, name={sink.experiment!r}, **{named})\n"
        "logger.log(logger.init(7), lox.logdict({'x': np.ones(3)}))\n"
        f"{end}\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == ("1 /" in end)
    if "1 /" not in end:
        assert "Error" not in done.stderr, done.stderr
    assert "lox" not in done.stderr.split("ZeroDivisionError")[-1]
    assert sink.numbers()[NAME]["x"] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.integration
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_writes_runs_of_its_own_with_the_logger_of_its_parent(sink):
    positional, named = sink.arguments
    code = (
        "import multiprocessing, lox\n"
        f"logger = lox.loggers.{sink.of.__name__}(*{positional}, name={sink.experiment!r}, **{named})\n"
        "run = logger.init(7)\n"
        "logger.log(run, {'x': 1}, step=0)\n"
        "logger.flush()\n"  # The first start of a sink may take longer than a fork waits.
        "def child():\n"
        "    logger.log(logger.init(8), {'x': 2}, step=0)\n"
        "    logger.log(run, {'x': 3}, step=1)\n"
        "process = multiprocessing.get_context('fork').Process(target=child)\n"
        "process.start()\n"
        "process.join()\n"
        "logger.log(run, {'x': 4}, step=2)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "was begun by the process from which this one was forked" in done.stderr
    assert sink.numbers() == {NAME: {"x": [(0, 1), (2, 4)]}, name_of(8): {"x": [(0, 2)]}}


# -- experiments ---------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_an_experiment_that_goes_on_from_a_step(sink):
    """TensorBoard hides what is taken back; the others have a run of their own for what comes after it."""
    state = None
    for start, options in ((0, {}), (4, {"from_step": 4}), (4, {"from_step": 4}), (8, {})):
        with sink.logger(**options) as logger:
            state = logger.init(7, rate=0.5)
            for step in range(start, start + 4):
                logger.log(state, {"x": np.float32(10 * start + step)}, step=step)
    found = {name: {step: value for step, value in runs["x"]} for name, runs in sink.numbers().items()}
    first, second, last = ({step: 10 * start + step for step in range(start, start + 4)} for start in (0, 4, 8))
    if sink.of is lox.loggers.TensorBoardLogger:
        assert found == {state.name: first | second | last}
        assert len(sink.numbers()[state.name]["x"]) == 12
    else:
        further = {f"{state.name}-from4": second, f"{state.name}-from4-2": second | last}
        assert found == {state.name: first} | further
    if sink.of is WandbLogger:  # Which would join runs of one id.
        assert len(sink.files()) == 4 and len({file.stem for file in sink.files()}) == 3


@pytest.mark.integration
def test_experiments_of_one_name_are_apart(sink):
    positional, named = sink.arguments
    names = set()
    for place in range(3):
        with sink.of(*positional, **named, name=sink.experiment) as logger:
            logger.log(logger.init(7), {"x": np.float32(place)}, step=place)
        names.add(logger.experiment)
    assert names == {"tried", "tried-2", "tried-3"}
    with pytest.raises(lox.LogValueError, match="cannot continue 'tired'"):
        sink.of(*positional, **named, resume="tired").init(7)
    if sink.of is WandbLogger:
        assert [len(sink.rows(file)) for file in sink.files()] == [1, 1, 1]
    else:
        assert len(sink.numbers()[NAME]["x"]) == 1


@pytest.mark.integration
@pytest.mark.parametrize("wandb", ["WANDB_DIR", "dir", "settings"])
def test_sinks_are_where_the_program_was_when_the_loggers_were_made(tmp_path, wandb):
    given = {"WANDB_DIR": {}, "dir": {"dir": "w"}, "settings": {"settings": {"root_dir": "w"}}}[wandb]
    program = f"""
import os, lox
from lox.loggers import *
init = {{"mode": "offline", **{given!r}}}
of_mlflow = MlflowLogger("sqlite:///m.db"), MlflowLogger()
logger = MultiLogger(SaveLogger("s"), TensorBoardLogger("t"), WandbLogger(init=init), *of_mlflow, name="tried")
os.chdir("elsewhere")
with logger:
    logger.log(logger.init(7), {{"x": 1.0}}, step=0)
"""
    (tmp_path / "elsewhere").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": "sqlite:///of-environment.db"}
    environment |= {"WANDB_SILENT": "true", "WANDB_DIR": "w" if wandb == "WANDB_DIR" else "other"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, cwd=tmp_path, env=environment)
    assert not list((tmp_path / "elsewhere").iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "s", "t", "w", "m.db", "of-environment.db"}
    assert {path.name for path in (tmp_path / "w" / "wandb").iterdir()} > {"lox"}


@pytest.mark.integration
def test_trackio_needs_a_directory_that_stays_where_it_is(tmp_path):
    program = "import lox; lox.loggers.TrackioLogger('a')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRACKIO_DIR": "runs"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environment)
    assert "LogValueError: TRACKIO_DIR is 'runs', and" in done.stderr


def test_tensorboard_has_the_config_as_hyperparameters(tensorboard):
    with tensorboard.logger() as logger:
        logger.log(logger.init(7, rate=0.5, model="small"), {"x": 1.0})
    metadata = tensorboard.read(name_of(7, rate=0.5, model="small")).SummaryMetadata("_hparams_/session_start_info")
    assert b"rate" in metadata.plugin_data.content and b"small" in metadata.plugin_data.content


@pytest.mark.integration
def test_wandb_has_the_experiment_as_group_or_what_its_options_say(wandb):
    options = wandb.arguments[1]["init"]
    with wandb.logger() as logger:
        logger.log(logger.init(7), {"x": 1.0})
    with wandb.logger(init={**options, "id": "mine", "name": "my run", "tags": ["a"]}) as logger:
        logger.log(logger.init(8), {"x": 1.0})
        logger.flush()
        logger.log(logger.init(9), {"x": 1.0})
        with pytest.raises(lox.LogValueError, match="has one id= for W&B runs, 'mine'"):
            logger.flush()
    assert {name: group for name, (_, group, *_) in wandb.read().items()} == {NAME: "tried", "my run": "tried"}
    assert [file.stem for file in wandb.files()].count("run-mine") == 1


# -- distributions -------------------------------------------------------------------------------------------------

HISTOGRAM = lox.reductions.histogram([0, 1, 4])
QUANTILES = lox.reductions.quantiles([0, 0.5, 1])
COUNTS = [[1, 1, 2, 0], [0, 0, 0, 4]]
BINS = [-1, 0, 1, 4, 7]


def distributed(xs):
    def step(i, x):
        return i + 1, lox.log({"h": x, "q": x}, step=10 * i)["h"]

    return lax.scan(step, 0, xs)[1]


def ways_to_log(way, logger, state, xs):
    options = {"reduce": {"h": HISTOGRAM, "q": QUANTILES}, "window": 4}
    if way == "tap":
        logger.tap(distributed, state, **options)(xs)
    elif way == "spool":
        logger.spool(distributed, state, **options)(xs)
    elif way == "log":
        logger.log(state, lox.spool(distributed, **options)(xs)[1])
    elif way == "jit":
        jax.jit(lambda xs: logger.log(state, lox.spool(distributed, **options)(xs)[1]))(xs)
    else:
        parts = xs[:4], xs[4:]
        for part in parts:
            logs = lox.spool(distributed)(part)[1]
            steps = {key: step + 40 * (part is not parts[0]) for key, step in logs.steps["step"].items()}
            logs = lox.logdict(logs.data, {"step": steps})
            logger.log(state, logs.reduce({"h": HISTOGRAM, "q": QUANTILES}))


def test_distributions_are_known_however_they_are_logged(tensorboard):
    ways = ["tap", "spool", "log", "jit", "reduce"]
    xs = jnp.array([-2.0, 0.5, 1.0, 3.0, 4.0, 5.0, 6.0, 99.0])
    with tensorboard.logger() as logger:
        for way in ways:
            ways_to_log(way, logger, logger.init(7, name=way), xs)
    bins, numbers = tensorboard.bins(), tensorboard.numbers()
    for way in ways:
        assert bins[way] == {"h": [(30, (COUNTS[0][:3], BINS[:4])), (70, (COUNTS[1][3:], BINS[3:]))]}
        assert numbers[way].keys() == {"q/q0", "q/q0.5", "q/q1"}
        for name, expected in [("q/q0", [-2, 4]), ("q/q0.5", [0.5, 5]), ("q/q1", [3, 99])]:
            assert [step for step, _ in numbers[way][name]] == [30, 70]
            np.testing.assert_allclose([number for _, number in numbers[way][name]], expected, rtol=0.01)


@pytest.mark.integration
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_histogram_has_the_counts_and_edges_that_were_asked_for(request, name):
    sink = request.getfixturevalue(name)
    with sink.logger() as logger:
        ways_to_log("spool", logger, logger.init(7), jnp.array([-2.0, 0.5, 1.0, 3.0, 4.0, 5.0, 6.0, 99.0]))
    bins, steps = sink.bins()[NAME]["h"], [30, 70]
    assert bins == [(step, (counts, BINS)) for step, counts in zip(steps, COUNTS, strict=True)]
    assert [step for step, _ in sink.numbers()[NAME]["q/q0.5"]] == steps


@pytest.mark.integration
@pytest.mark.parametrize("batch_as", ["mean", "each", "histogram"])
def test_counts_of_batch_elements_and_of_elements_of_values_are_added_up(tensorboard, batch_as):
    run = jax.vmap(lambda x: lox.log({"h": jnp.stack([x, x + 1]), "q": x}, step=x.astype(int)))
    logs = lox.spool(run, reduce={"h": HISTOGRAM, "q": QUANTILES})(jnp.array([0.5, 3.0]))[1]
    logged(tensorboard, logs, batch_as=batch_as)
    bins, numbers = tensorboard.bins()[NAME], tensorboard.numbers()[NAME]
    if batch_as == "each":
        assert bins == {"h/0": [(0, ([1, 1], BINS[1:4]))], "h/1": [(3, ([1, 1], BINS[2:]))]}
        assert numbers.keys() == {f"q/{element}/{q}" for element in range(2) for q in ("q0", "q0.5", "q1")}
    else:
        assert bins.pop("h") == [(0, ([1, 2, 1], BINS[1:]))]
        names = {"q/q0", "q/q0.5", "q/q1"}
        assert (bins.keys() if batch_as == "histogram" else numbers.keys()) == names


@pytest.mark.integration
@pytest.mark.parametrize(
    ("edges", "counts", "expected", "ends"),
    [
        ([-np.inf, 0, np.inf], [0, 2, 3, 4], [2, 7], [-1, 0, 1]),
        ([8.0], [1, 2], [1, 2], [4, 8, 12]),
        ([-1e308, 1e308], [1, 2, 3], [1, 2, 3], [-np.finfo(float).max, -1e308, 1e308, np.finfo(float).max]),
    ],
)
def test_edges_are_finite_in_a_sink(trackio, edges, counts, expected, ends):
    made_by = {"h": lox.reductions.histogram(edges)}
    logged(trackio, lox.logdict({"h": np.uint32([counts])}, distributions=made_by))
    assert trackio.bins()[NAME]["h"] == [(0, (expected, ends))]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_neighbours_of_more_bins_than_a_sink_has_become_one(request, name):
    sink = request.getfixturevalue(name)
    made_by = {"h": lox.reductions.histogram(range(999))}
    logged(sink, lox.logdict({"h": np.arange(1000, dtype=np.uint32)[None]}, distributions=made_by))
    [(_, (counts, edges))] = sink.bins()[NAME]["h"]
    assert counts == [4 * i + 1 for i in range(500)] and edges == [*range(-1, 1001, 2)]


@pytest.mark.integration
def test_mlflow_estimates_quantiles_of_a_histogram(mlflow):
    counts = np.uint32([[0, 10, 0, 0], [5, 0, 0, 5], [0, 0, 0, 0]])
    logged(mlflow, lox.logdict({"h": counts}, distributions={"h": HISTOGRAM}))
    numbers = mlflow.numbers()[NAME]
    assert numbers["h/q0.1"][:2] == [(0, 0.1), (1, 0)]
    assert numbers["h/q0.5"][0] == (0, 0.5) and numbers["h/q0.9"][1] == (1, 4)
    assert np.isnan(numbers["h/q0.5"][2][1])


@pytest.mark.integration
def test_what_is_no_distribution_any_more_is_an_array_or_a_number(tensorboard):
    logs = lox.logdict({"h": jnp.array([[0.0, 1.0, 2.0, 5.0]])}).reduce(lox.reductions.histogram([2, 3], pool=True))
    halves = jax.tree.map(lambda counts: counts[:, :2], logs)
    total = jax.tree.map(lambda counts: counts.sum(-1), logs)
    logged(tensorboard, halves.prefix("halves/") | total.prefix("total/"))
    assert tensorboard.ranges()[NAME]["halves/h"] == [(0, (1, 2))]
    assert tensorboard.numbers()[NAME] == {"total/h": [(0, 4)]}


@pytest.mark.integration
def test_a_key_that_is_called_like_a_quantile_is_apart(tensorboard):
    logs = lox.logdict({"x": jnp.arange(3.0)}).reduce(QUANTILES)
    logged(tensorboard, logs | lox.logdict({"x/q1": np.array([7.0])}))
    assert tensorboard.numbers()[NAME]["x/q1"] == [(0, 7)]
    np.testing.assert_allclose(tensorboard.numbers()[NAME]["x/q1_"], [(0, 2)], rtol=0.01)


# -- images --------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_images_are_written_where_asked(sink):
    gray = np.linspace(0, 1, 12).reshape(1, 3, 4)
    color = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4)).astype(np.uint8)
    data = {
        "gray": gray.astype(np.float32),
        "in/one": gray[..., None].astype(ml_dtypes.bfloat16),
        "rgb": color[..., :3],
        "rgba": color,
        "wild": np.float32([[[-1, np.nan, 2, 0.5]]]),
        "mask": gray > 0.5,
        "none": gray,
    }
    found = logged(sink, data, images=[key for key in data if key != "none"]).images()[NAME]
    assert set(found) == data.keys() - {"none"}

    def opaque(levels):
        levels = levels.reshape(*levels.shape[:2], -1)
        return np.concatenate([np.broadcast_to(levels, (*levels.shape[:2], 3)), np.full_like(levels[..., :1], 255)], 2)

    expected = {
        "gray": [np.round(gray[0] * 255)],
        "in/one": [np.round(data["in/one"][0].astype(np.float32) * 255)],
        "rgb": color[..., :3],
        "wild": [np.array([[0, 0, 255, 128]])],
        "mask": [(gray[0] > 0.5) * 255],
    }
    for key, arrays in expected.items():
        np.testing.assert_array_equal([image for _, image in found[key]], [opaque(array) for array in arrays])
    np.testing.assert_array_equal([image for _, image in found["rgba"]], color)
    assert [step for step, _ in found["rgb"]] == [0, 1]


@pytest.mark.integration
def test_images_of_odd_keys_are_kept_apart(sink):
    odd = ["a*b", "a b", "a_x2a-b", "é", "../a", "a/b", "a//b", "x" * 200, "x" * 201]
    data = {key: np.full((1, 2, 2), place, np.uint8) for place, key in enumerate(odd)}
    found = logged(sink, data, images=odd).images()[NAME]
    assert sorted(image[0, 0, 0] for ((_, image),) in found.values()) == list(range(len(odd)))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 2), (2, 2, 3, 3), (0, 3), (2, 0, 3)])
def test_what_is_no_image_is_an_error(tensorboard, shape):
    with pytest.raises(lox.LogDataError, match=r"'x' must have the shape \(H, W\) or \(H, W, C\)"):
        logged(tensorboard, {"x": np.zeros((1, *shape))}, images="x")


def test_an_image_of_other_integers_is_an_error(tensorboard):
    with pytest.raises(lox.LogDataError, match="'x' must be of uint8, or of floats from 0 to 1, got int32"):
        logged(tensorboard, {"x": np.zeros((1, 2, 2), np.int32)}, images="x")


@pytest.mark.integration
def test_the_names_of_images_are_names(sink):
    with pytest.raises(lox.LogDataError, match="images must be a string or an iterable of strings"):
        sink.logger(images=3)


def test_tensorboard_has_images_of_every_kind_as_they_were_logged(tensorboard):
    rng = np.random.default_rng(0)
    gray, color = (
        rng.uniform(-0.2, 1.2, (2, 3, 4)).astype(np.float32),
        rng.integers(0, 256, (2, 3, 5, 4)).astype(np.uint8),
    )
    gray[0, 0] = [np.nan, np.inf, -np.inf, 0.999 / 255 * 1.5]
    data = {
        "gray": gray,
        "one channel": gray[..., None],
        "half": (gray[..., None] * np.ones(3, np.float32)).astype(np.float16),
        "truth": gray > 0.5,
        "bytes": color[..., 0],
        "bytes of one": color[..., :1],
        "rgb": color[..., :3],
        "rgba": color,
        "no image": gray,
    }
    found = logged(tensorboard, data, images=[key for key in data if key != "no image"]).images()[NAME]

    def level(number):
        number = 0.0 if np.isnan(number) else min(max(float(number), 0.0), 1.0)
        return int(number * 255 + 0.5)

    def expected(image):
        if image.dtype != np.uint8:
            image = np.vectorize(level, otypes=[np.uint8])(image.astype(np.float32))
        image = image[..., None] if image.ndim == 2 else image
        channels = np.broadcast_to(image[..., :3], (*image.shape[:2], 3))
        alpha = image[..., 3:] if image.shape[2] == 4 else np.full((*image.shape[:2], 1), 255)
        return np.concatenate([channels, alpha], 2)

    assert found.keys() == {key.replace(" ", "_x20-") for key in data} - {"no_x20-image"}
    for key in data.keys() - {"no image"}:
        images = found[key.replace(" ", "_x20-")]
        assert [step for step, _ in images] == [0, 1]
        np.testing.assert_array_equal([image for _, image in images], [expected(image) for image in data[key]], key)
    ends = tensorboard.ranges()[NAME]["no_x20-image"]
    assert ends == [
        (i, (image[np.isfinite(image)].min(), image[np.isfinite(image)].max())) for i, image in enumerate(gray)
    ]


# -- TensorBoard ---------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_tensorboard_has_histograms_and_what_describes_the_run(tensorboard):
    with tensorboard.logger() as logger:
        run(logger)
    for lane, name in enumerate(NAMES):
        events = tensorboard.read(name)
        histograms = events.Histograms("weights")
        assert [event.step for event in histograms] == [0, 1, 2]
        assert [event.histogram_value.num for event in histograms] == [2, 2, 2]  # What is finite.
        (config,) = events.Tensors("config/text_summary")
        text = config.tensor_proto.string_val[0].decode()
        assert f"| rate | {float(lane)} |" in text and "| author | Ada |" in text


@pytest.mark.integration
def test_tensorboard_goes_on_in_another_file_when_a_full_disk_has_room_again(tensorboard):
    code = (
        "import resource, signal, sys\n"
        "import numpy as np, lox\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "logger = lox.loggers.TensorBoardLogger(sys.argv[1], name='tried')\n"
        "state = logger.init(np.uint32([0, 7]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, unlimited[1]))\n"
        "logger.log(state, lox.logdict({'x': np.arange(2000.0)}))\n"
        "try:\n"
        "    logger.flush()\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)\n"
        "logger.log(state, lox.logdict({'x': np.arange(2.0)}))\n"
        "logger.close()\n"
    )
    command = [sys.executable, "-c", code, str(tensorboard.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "File too large\n", done.stderr
    torn, whole = sorted((tensorboard.path / tensorboard.experiment / NAME).iterdir())
    assert torn.stat().st_size <= 4096
    assert [event.step for event in EventFileLoader(str(whole)).Load() if event.HasField("summary")] == [2000, 2001]
    assert [(event.step, event.value) for event in tensorboard.read(NAME).Scalars("x")][-2:] == [(2000, 0), (2001, 1)]


@pytest.mark.integration
@pytest.mark.skipif(sys.platform == "win32", reason="this system has no such limit")
def test_tensorboard_has_more_runs_than_files_may_be_open(tensorboard):
    code = (
        "import resource, sys, lox\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))\n"
        "with lox.loggers.TensorBoardLogger(sys.argv[1], name=sys.argv[2]) as logger:\n"
        "    for step in range(2):\n"
        "        for seed in range(100):\n"
        "            logger.log(logger.init(seed), {'x': seed}, step=step)\n"
        "        logger.flush()\n"
    )
    command = [sys.executable, "-c", code, str(tensorboard.path), tensorboard.experiment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert tensorboard.numbers() == {name_of(seed): {"x": [(0, seed), (1, seed)]} for seed in range(100)}
    assert all(len(list((tensorboard.path / "tried" / name).iterdir())) == 1 for name in tensorboard.runs())


@pytest.mark.integration
def test_tensorboard_keeps_what_describes_the_run_apart_from_keys(tensorboard):
    with tensorboard.logger() as logger:
        logger.log(logger.init(7, rate=0.5), lox.logdict({"config/text_summary": np.ones(1)}))
    tags = tensorboard.read(name_of(7, rate=0.5)).Tags()
    assert (tags["tensors"], tags["scalars"]) == (["config/text_summary"], ["config/text_summary_x-"])


def test_histograms_of_tensorboard_have_the_sums_and_bins_of_the_numbers(tensorboard):
    arrays = {
        "mixed": np.array([-1.5, 0, 0.3, 0.3, 2e9, np.nan, np.inf, -1e-3, 7e-13]),
        "large": np.float32([1e25, -3e30, 2.0, -np.inf]),
        "equal": np.full(4, 2.5),
        "matrix": np.arange(-6, 6).reshape(3, 4),
        "bytes": np.uint8([200, 100, 255]),
    }
    steps = {"step": dict.fromkeys([*arrays, "h"], np.array([30]))}
    counts = np.uint32([[0, 3, 1, 2]])
    data = {name: array[None] for name, array in arrays.items()} | {"nothing": np.full((1, 2), np.nan), "h": counts}
    data["no counts"] = 0 * counts
    made_by = {"h": HISTOGRAM, "no counts": HISTOGRAM}
    logged(tensorboard, lox.logdict(data, steps, distributions=made_by))
    (file,) = (tensorboard.path / tensorboard.experiment / NAME).glob("*tfevents*")
    found = {}
    for event in map(Event.FromString, RawEventFileLoader(str(file)).Load()):
        for value in event.summary.value:
            if value.HasField("histo"):
                assert event.step == 30 and value.tag not in found
                found[value.tag] = value.histo
    assert found.keys() == arrays.keys() | {"h"}
    for name, array in arrays.items():
        numbers = np.sort(array[np.isfinite(array)].astype(np.float64).ravel())
        histogram = found[name]
        ends = (histogram.min, histogram.max, histogram.num)
        assert ends == (numbers[0], numbers[-1], len(numbers))
        assert (histogram.sum, histogram.sum_squares) == (
            pytest.approx(numbers.sum()),
            pytest.approx((numbers**2).sum()),
        )
        # Each number is in a bin that is no wider than a tenth of it, of the limits that TensorFlow has.
        limits, left = list(histogram.bucket_limit), list(numbers)
        for low, high, count in zip([-np.inf, *limits], limits, histogram.bucket, strict=False):
            inside, left = left[: int(count)], left[int(count) :]
            for number in inside:
                assert low <= number <= high
                assert high - low <= 0.1001 * abs(number) or abs(number) < 1e-12 or abs(number) > 1e20
        assert not left
    assert (found["h"].min, found["h"].max, found["h"].num) == (0, 7, 6)
    assert list(found["h"].bucket_limit) == BINS[1:] and list(found["h"].bucket) == [0, 3, 1, 2]
    middles = np.array([0.5, 0.5, 0.5, 2.5, 5.5, 5.5])
    assert (found["h"].sum, found["h"].sum_squares) == (middles.sum(), (middles**2).sum())
    assert not tensorboard.numbers()[NAME]


def test_tensorboard_has_what_describes_a_run_each_time_that_this_changes(tensorboard):
    with tensorboard.logger() as logger:
        first = logger.init(7, name="mine", rate=np.float32(0.1), model={"sizes": (8, 4)}, clip=None, notes="a | b")
        for run in (first, first, logger.init(7, name="mine", rate=0.25, on=True), logger.init(8, notes=None)):
            logger.log(run, {"x": 1.0}, step=5)
            logger.flush()
    events = tensorboard.read("mine")
    texts = [(event.step, event.tensor_proto.string_val[0].decode()) for event in events.Tensors("config/text_summary")]
    table = "| name | value |\n|---|---|\n"
    described = {"clip": None, "model/sizes/0": 8, "model/sizes/1": 4, "rate": 0.1}
    assert texts == [
        (0, table + "\n".join(f"| {name} | {value} |" for name, value in of.items()))
        for of in (described, described | {"rate": 0.25, "on": True})
    ]
    assert [event.tensor_proto.string_val for event in events.Tensors("notes/text_summary")] == [[b"a | b"]]
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert all(name in content for name in (b"model/sizes/0", b"rate"))
    assert tensorboard.numbers() == {"mine": {"x": [(5, 1)] * 3}, name_of(8): {"x": [(5, 1)]}}
    assert tensorboard.read(name_of(8)).Tags()["tensors"] == []
    tags = events.Tags()
    assert sorted(tags["tensors"]) == ["config/text_summary", "notes/text_summary"]


def test_tensorboard_writes_more_runs_than_it_has_open_and_hides_what_is_taken_back(tensorboard, monkeypatch):
    monkeypatch.setattr(_tensorboard, "OPEN", 2)
    seeds, before = range(5), len(os.listdir("/proc/self/fd"))
    for start, options in ((0, {}), (2, {"from_step": 2}), (9, {})):
        with tensorboard.logger(**options) as logger:
            for step in range(start, start + 4):
                for seed in seeds:
                    if (seed, start) != (4, 2):  # One is not continued.
                        logger.log(
                            logger.init(seed),
                            {"x": seed + 100 * start + step, "y": np.array([step, step + seed])},
                            step=step,
                        )
                logger.flush()
                assert len(os.listdir("/proc/self/fd")) <= before + 2
                # All of it is there for who reads, also of runs whose files were closed meanwhile.
                last = {name: of["x"][-1] for name, of in tensorboard.numbers().items()}
                assert last[name_of(3)] == (step, 3 + 100 * start + step)
        assert len(os.listdir("/proc/self/fd")) == before
    numbers, ranges = tensorboard.numbers(), tensorboard.ranges()
    for seed in seeds:
        events = [(step, 0) for step in range(2 if seed < 4 else 4)]
        events += [(step, 2) for step in range(2, 6)] * (seed < 4) + [(step, 9) for step in range(9, 13)]
        assert numbers[name_of(seed)]["x"] == [(step, seed + 100 * start + step) for step, start in events]
        assert ranges[name_of(seed)]["y"] == [(step, (step, step + seed)) for step, _ in events]
        files = [*(tensorboard.path / tensorboard.experiment / name_of(seed)).iterdir()]
        assert len(files) == (3 if seed < 4 else 2)


TAGS = {
    "train/loss": "train/loss",
    "a b": "a_x20-b",
    "a*b": "a_x2a-b",
    "a_x2a-b": "a_x5f-x2a-b",
    "_x4*": "_x4_x2a-",
    "_x-": "_x5f-x-",
    "": "_x-",
    "/a": "_x2f-a",
    "//a": "_x2f-_x2f-a",
    "a//b": "a//b",
    "a/": "a/",
    "..": "..",
    "é模": "é模",
    "a\nb": "a_xa-b",
    "\ud800": "_xd800-",
    "config/text_summary": "config/text_summary_x-",
    "config": "config",
    "step": "step",
    "epoch": "epoch_x-",
    "epoch_x-": "epoch_x5f-x-",
    "x" * 300: "x" * 300,
}
"""The tags of keys in TensorBoard, which knows letters, digits and a few other characters."""


def test_tensorboard_has_a_tag_for_each_key_and_counter_whatever_the_key_has(tensorboard):
    kinds = {
        "numbers": lambda i: [i],
        "arrays": lambda i: [[i, i + 1]],
        "images": lambda i: np.full((1, 2, 2), i, np.uint8),
    }
    for kind, made in kinds.items():
        images = TAGS if kind == "images" else ()
        with tensorboard.logger(images=images) as logger:
            run = logger.init(7, name=kind, rate=0.5)
            data = {key: np.asarray(made(place)) for place, key in enumerate(TAGS)}
            steps = {"step": np.array([10]), "epoch": np.array([3]), "a b": np.array([4])}
            logger.log(run, lox.logdict(data, {name: dict.fromkeys(data, step) for name, step in steps.items()}))
    tags = TAGS | {"a b": "a_x20-b_x-"}  # That of the counter.
    counters = {"epoch": [(10, 3)], "a_x20-b": [(10, 4)]}
    numbers = tensorboard.numbers()
    assert numbers.pop("numbers") == counters | {tags[key]: [(10, place)] for place, key in enumerate(TAGS)}
    assert numbers == {"arrays": counters, "images": counters}
    ranges = {name: found for name, found in tensorboard.ranges().items() if found}
    assert ranges == {"arrays": {tags[key]: [(10, (place, place + 1))] for place, key in enumerate(TAGS)}}
    (images,) = (found for found in tensorboard.images().values() if found)
    assert {tag: [(step, image[0, 0, 0]) for step, image in of_tag] for tag, of_tag in images.items()} == {
        tags[key]: [(10, place)] for place, key in enumerate(TAGS)
    }
    for name in kinds:
        assert tensorboard.read(name).Tags()["tensors"] == ["config/text_summary"]


# -- Weights & Biases ----------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_wandb_has_histograms_axes_and_what_describes_the_run(wandb):
    named = wandb.arguments[1]["init"] | {"project": "p", "group": "g", "config": {"model": "small"}}
    with wandb.logger(init=named) as logger:
        run(logger)
    found = wandb.read()
    assert set(found) == set(NAMES)
    for lane, name in enumerate(NAMES):
        config, group, axes, rows = found[name]
        assert group == "g"
        described = {key: config[key] for key in ("key", "rate", "author", "model")}
        assert described == {"key": KEYS[lane].tolist(), "rate": lane, "author": "Ada", "model": "small"}
        assert axes == {"train/loss": "step", "accuracy": "step", "weights": "event", "end": "event"}
        of_loss = [row for row in rows if "train/loss" in row]
        assert of_loss == [
            {"step": 2 * i, "epoch": i // 2, "train/loss": lane + i, "accuracy": -(lane + i)} for i in range(3)
        ]
        assert [row["event"] for row in rows if "bins" in row.get("weights", {})] == [0, 1, 2]
        assert [row for row in rows if "end" in row] == [{"event": 0, "end": lane + 3}]


@pytest.mark.integration
def test_a_file_of_wandb_is_read_up_to_where_it_is_written(wandb):
    with wandb.logger() as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.arange(20.0)}))
    (file,) = wandb.files()
    rows, whole = wandb.rows(file), file.read_bytes()
    assert rows == [{"event": i, "x": i} for i in range(20)]
    counts = []
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        counts.append(len(list(wandb._records(file))))
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] > len(rows)


@pytest.mark.integration
def test_wandb_has_steps_of_several_dtypes(wandb):
    steps = {"x": np.int32([1065353216]), "y": np.float32([1])}  # The same bits.
    logged(wandb, lox.logdict({"x": np.ones(1), "y": np.ones(1)}, {"step": steps}))
    assert wandb.numbers()[NAME] == {"x": [(1065353216, 1)], "y": [(1, 1)]}


@pytest.mark.integration
def test_wandb_has_an_axis_for_every_key(wandb):
    logged(wandb, {key: np.ones(1) for key in ODD})
    ((_, _, axes, rows),) = wandb.read().values()
    assert set().union(*rows) - set(axes) == {"event"} and set(axes.values()) == {"event"}


@pytest.mark.integration
def test_wandb_has_a_metric_for_each_axis_of_a_key(wandb):
    with wandb.logger() as logger:
        run = logger.init(7)
        for key, steps in (("x", {"step": 5}), ("x", {}), ("x#2", {}), ("x", {"step": 9}), ("x", {})):
            logger.log(run, {key: 1.0}, **steps)
            logger.flush()
    ((_, _, axes, rows),) = wandb.read().values()
    assert axes == {"x": "step", "x#2": "event", "x#2#2": "event"}
    found = [(key, row[axes[key]]) for row in rows for key in axes if key in row]
    assert found == [("x", 5), ("x#2", 1), ("x#2#2", 0), ("x", 9), ("x#2", 3)]


@pytest.mark.integration
def test_what_describes_a_wandb_run_is_kept_apart_from_what_wandb_says_of_it(wandb):
    with wandb.logger() as logger:
        logger.log(logger.init(7, {"key": 2}, _wandb=1), lox.logdict({"x": np.ones(1)}))
    config = wandb.read()[name_of(7, {"key": 2}, _wandb=1)][0]
    assert config["_wandb_x"] == 1 and config["_wandb"] != 1  # W&B strips hyphens.
    assert (config["key"], config["key_x"]) == ([0, 7], 2)


@pytest.mark.integration
def test_a_wandb_run_has_begun_when_log_returns_where_it_could_not_begin_at_the_exit(wandb, monkeypatch):
    monkeypatch.setattr(_wandb, "NO_THREADS_AT_EXIT", True)
    with wandb.logger() as logger:
        for seed in (7, 8):
            logger.log(logger.init(seed), {"x": 1.0})
            assert name_of(seed) in logger._wandb_runs


@pytest.mark.integration
def test_wandb_has_keys_that_are_logged_together_in_one_row(wandb):
    made_by = {"h": HISTOGRAM, "q": lox.reductions.quantiles([0.25, 1])}
    counts = {"h": np.uint32([[0, 3, 0, 1], [0, 0, 0, 0]]), "q": np.array([[1.0, 2], [3, 4]])}
    counted = lox.logdict(counts, {"step": dict.fromkeys(counts, np.array([8, 9]))}, distributions=made_by)
    with wandb.logger(images=["image", "im*"]) as logger:
        for logs, steps in (
            ({"loss": 0.5, "acc": np.int32(2), "epoch": 7.0, "a*b": np.nan}, {"step": 3, "epoch": 1}),
            ({"loss": 4.0}, {}),
            ({"loss": np.array([1, np.inf, 3]), "none": np.array([np.nan, np.inf])}, {"step": np.float32(4.5)}),
            ({"none": np.array([np.nan, np.inf])}, {"step": 6}),
            ({"image": np.zeros((2, 4, 3), np.uint8), "im*": np.zeros((2, 4)), "_step": 1}, {"step": 7}),
            (counted, {}),
            (in_batch(np.float32([[1, 2], [3, 5]]), mask=np.array([[True, True], [False, True]])), {}),
        ):
            logger.log(logger.init(7), logs, **steps)
            logger.flush()
    ((_, _, axes, rows),) = wandb.read().values()
    kinds = [{key: value["_type"] if isinstance(value, dict) else value for key, value in row.items()} for row in rows]
    expected = [
        {"step": 3, "epoch": 1, "loss": 0.5, "acc": 2, "epoch_x-": 7, "a_x2a-b": np.nan},
        {"event": 1, "loss#2": 4},
        {"step": 4.5, "loss": "histogram"},
        {"step": 7, "image": "image-file", "im_x2a-": "image-file", "_step_x-": 1},
        {"step": 8, "h": "histogram", "q/q0.25": 1, "q/q1": 2},
        {"step": 9, "q/q0.25": 3, "q/q1": 4},
        {"event": 0, "x": 1.5},
        {"event": 1, "x": 5},
    ]
    np.testing.assert_equal(kinds, expected)
    assert axes == {key: [*row][0] for row in expected for key in row if key not in ("step", "event", "epoch")}


@pytest.mark.integration
def test_wandb_has_a_run_for_each_restart_from_a_step_and_goes_on_with_it(wandb, tmp_path):
    def begun(sink=wandb, **options):
        before = sink.files()
        with WandbLogger(**sink.arguments[1], **options) as logger:
            for seed in (7, 8):
                logger.log(logger.init(seed), {"x": 1.0}, step=9)
        found = [run for file, run in sink.options().items() if file not in before]
        return sorted((run["name"], run["group"], run["id"]) for run in found)

    first = begun(name="tried")
    assert begun(resume="tried") == first
    fourth = begun(resume="tried", from_step=4)
    assert begun(resume="latest") == fourth
    others = [begun(resume="tried", from_step=4), begun(resume="tried", from_step=2)]
    others += [begun(name="tried"), begun(Wandb(tmp_path / "elsewhere"), name="tried")]
    expected = [("", "tried"), ("-from4", "tried"), ("-from4-2", "tried"), ("-from2", "tried"), ("", "tried-2")]
    found = [first, fourth, *others]
    for runs, (end, group) in zip(found, [*expected, ("", "tried")], strict=True):
        assert [run[:2] for run in runs] == sorted((f"{name_of(seed)}{end}", group) for seed in (7, 8))
    assert len({id for runs in found for *_, id in runs}) == 12


@pytest.mark.integration
def test_options_of_wandb_come_before_what_the_logger_says_of_the_run(wandb, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "of-environment")
    given = {"id": "own", "name": "my run", "group": "g", "project": "a b", "tags": ["a"]}
    of_all = {"notes": "of all", "config": {"model": "small", "rate": 9}}
    for name, init, notes in (("first", given, None), ("second", {}, "mine"), ("third", {}, None)):
        with WandbLogger(init=wandb.arguments[1]["init"] | of_all | init, name=name) as logger:
            logger.log(logger.init(7, name="mine", rate=0.5, notes=notes), {"x": 1.0})
            logger.flush()
            logger.log(logger.init(8, name="mine", rate=0.25, on=True), {"x": 2.0})
    begun = {run["group"]: run for run in wandb.options().values()}
    config = {"model": "small", "rate": 0.5, "key": [0, 7]}
    assert begun["g"] == given | of_all | {"config": config}
    for name, notes in (("second", "mine"), ("third", "of all")):
        assert begun[name] | {"name": "mine", "notes": notes, "tags": [], "config": config} == begun[name]
    assert len(begun) == 3 and len({run["id"] for run in begun.values()}) == 3
    for described, *_, rows in wandb.read().values():
        assert described | config | {"rate": 0.25, "on": True} == described
        assert rows == [{"event": 0, "x": 1}, {"event": 1, "x": 2}]
    cards = {path.relative_to(wandb.path / "wandb" / "lox").as_posix() for path in wandb.path.rglob("*/lox/*/*")}
    assert cards == {"a_x20-b/first.json", "of-environment/second.json", "of-environment/third.json"}
    with pytest.raises(TypeError, match=r"wandb.init has no argument projct=. Did you mean project=\?"):
        WandbLogger(init={"projct": "p"})


@pytest.mark.integration
def test_histograms_of_wandb_have_each_finite_number_in_its_bin(wandb):
    normal = np.random.default_rng(0).normal(size=500)
    arrays = ARRAYS | {"normal": normal, "integers": np.arange(-30, 31), "two": np.array([0, 64])}
    found = logged(wandb, {name: array[None] for name, array in arrays.items()}).bins()[NAME]
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        [(event, (counts, edges))] = found[name]
        numbers = np.sort(array[np.isfinite(array)].astype(np.float64))
        assert (event, len(counts), len(edges), sum(counts)) == (0, 64, 65, len(numbers)), name
        assert edges == sorted(set(edges)) and -LARGEST <= edges[0] and edges[-1] <= LARGEST, name
        left = list(numbers)
        for count, low, high in zip(counts, edges, edges[1:], strict=False):
            inside, left = left[:count], left[count:]
            assert all(low <= number <= high for number in inside), name
        if name in ("normal", "integers", "two"):
            assert (edges[0], edges[-1]) == (numbers[0], numbers[-1])
        elif name in ("zeros", "booleans", "float16"):
            assert (edges[0], edges[-1]) == (numbers[0] - 0.5, numbers[0] + 0.5)
    assert found["two"] == [(0, ([1, *[0] * 62, 1], [*range(65)]))]


class Given:
    """A run that W&B was asked for, and what it was given.

    Attributes:
        options: The keywords of `wandb.init`.
        rows: What was logged.
        axes: The metric and the axis of each definition.
        run: The run of W&B, with its `config`.
        ended: How often it was finished.
    """

    def __init__(self, options, run):
        self.options, self.run = options, run
        self.rows, self.axes, self.ended = [], [], 0


@pytest.fixture
def given(monkeypatch):
    """Notes all that lox gives to W&B, whose disabled mode starts no process."""
    import wandb
    from wandb.sdk.lib.noop_run import NoopRun

    found, init = {}, wandb.init

    @functools.wraps(init)
    def noted(**options):
        run = init(**options)
        found[id(run)] = Given(options, run)
        return run

    def ended(run):
        found[id(run)].ended += 1

    monkeypatch.setattr(wandb, "init", noted)
    monkeypatch.setattr(NoopRun, "log", lambda run, row: found[id(run)].rows.append(row))
    monkeypatch.setattr(
        NoopRun, "define_metric", lambda run, name, step_metric: found[id(run)].axes.append((name, step_metric))
    )
    monkeypatch.setattr(NoopRun, "finish", ended)
    return lambda: [*found.values()]


@pytest.fixture
def disabled(tmp_path):
    """Options of W&B that start no process."""
    return {"mode": "disabled", "dir": str(tmp_path)}


def test_wandb_is_given_a_row_for_each_step_and_an_axis_for_each_metric(given, disabled):
    from wandb import Histogram, Image

    made_by = {"h": HISTOGRAM, "q": lox.reductions.quantiles([0.25, 1]), "many": lox.reductions.histogram(range(999))}
    data = {"h": np.uint32([[0, 3, 0, 1], [0, 0, 0, 0]]), "q": np.array([[1.0, 2], [3, 4]])}
    of_steps = {"step": dict.fromkeys(data, np.array([8, 9]))}
    many = lox.logdict({"many": np.arange(1000, dtype=np.uint32)[None]}, distributions={"many": made_by.pop("many")})
    with WandbLogger(init=disabled, name="tried", images=["image", "im*"]) as logger:
        for logs, steps in (
            ({"loss": 0.5, "acc": np.int32(2), "epoch": 7.0, "a*b": np.nan, "\ud800": 1}, {"step": 3, "epoch": 1}),
            ({"loss": 4.0}, {}),
            ({"loss": np.array([1, np.inf, 3]), "none": np.array([np.nan, np.inf])}, {"step": np.float32(4.5)}),
            ({"none": np.array([np.nan, np.inf])}, {"step": 6}),
            ({"image": np.full((2, 4, 3), 7, np.uint8), "im*": np.zeros((2, 4)), "_step": 1}, {"step": 7}),
            ({"x#2": 1.0, "event": 2.0, "_runtime": 3.0, "_timestamp": 4.0, "_wandb": 5.0, "step": 6.0}, {"event": 4}),
            (lox.logdict(data, of_steps, distributions=made_by), {}),
            (many, {}),
            (in_batch(np.float32([[1, 2], [3, 5]]), mask=np.array([[True, True], [False, True]])), {}),
            ({"x": 2.0, "loss": 5.0}, {"step": 5}),
            ({"x#2": 3.0}, {"step": 0}),
        ):
            logger.log(logger.init(7), logs, **steps)
            logger.flush()

    def read(value):
        if isinstance(value, Histogram):
            return [np.asarray(part).tolist() for part in (value.histogram, value.bins)]
        return np.asarray(value.image).tolist() if isinstance(value, Image) else value

    (run,) = given()
    counts, edges = np.histogram([1.0, 3.0], 64)
    expected = [
        {"step": 3, "epoch": 1, "loss": 0.5, "acc": 2, "epoch_x-": 7, "a_x2a-b": np.nan, "_xd800-": 1},
        {"event": 1, "loss#2": 4},
        {"step": 4.5, "loss": [counts.tolist(), edges.tolist()]},
        {"step": 7, "image": np.full((2, 4, 3), 7).tolist(), "im_x2a-": np.zeros((2, 4)).tolist(), "_step_x-": 1},
        {"event": 0, "event_x-": 4, "x#2": 1}
        | {"event_x-_x-": 2, "_runtime_x-": 3, "_timestamp_x-": 4, "_wandb_x-": 5, "step_x-": 6},
        {"step": 8, "h": [[0, 3, 0, 1], BINS], "q/q0.25": 1, "q/q1": 2},
        {"step": 9, "q/q0.25": 3, "q/q1": 4},
        {"event": 0, "many": [[4 * i + 1 for i in range(500)], [*range(-1, 1001, 2)]]},
        {"event": 0, "x": 1.5},
        {"event": 1, "x": 5},
        {"step": 5, "x#3": 2, "loss": 5},
        {"step": 0, "x#2#2": 3},
    ]
    np.testing.assert_equal([{key: read(value) for key, value in row.items()} for row in run.rows], expected)
    assert run.ended == 1 and len(dict(run.axes)) == len(run.axes)
    assert dict(run.axes) == {
        key: [*row][0] for row in expected for key in row if key not in ("step", "event", "epoch", "event_x-")
    }


def test_wandb_is_asked_for_a_run_for_each_run_and_restart(given, disabled, tmp_path):
    def begun(*seeds, init=disabled, notes=None, **options):
        before = len(given())
        with WandbLogger(init=init, **options) as logger:
            for seed in seeds:
                for rate in (0.5, 0.25):
                    logger.log(logger.init(seed, {"key": 3}, name=f"r{seed}", rate=rate, notes=notes), {"x": rate})
                    logger.flush()
        new = given()[before:]
        assert all(run.ended == 1 and len(run.rows) == 2 for run in new)
        assert [run.run.config["rate"] for run in new] == [0.25] * len(seeds)
        return [run.options for run in new]

    first = begun(7, 8, name="tried", notes="why")
    again, fourth = begun(7, 8, resume="tried"), begun(7, 8, resume="tried", from_step=4)
    latest = begun(7, 8, resume="latest")
    others = [
        begun(7, 8, resume="tried", from_step=4),
        begun(7, 8, resume="tried", from_step=2),
        begun(7, 8, name="tried"),
    ]
    others.append(begun(7, 8, name="tried", init=disabled | {"dir": str(tmp_path / "elsewhere")}))
    ends = ["", "", "-from4", "-from4", "-from4-2", "-from2", "", ""]
    for place, (runs, end) in enumerate(zip([first, again, fourth, latest, *others], ends, strict=True)):
        config = {"rate": 0.5, "key_x-": 3}
        assert [run["config"] for run in runs] == [config | {"key": [0, seed]} for seed in (7, 8)]
        assert [run["name"] for run in runs] == [f"r7{end}", f"r8{end}"]
        assert {run["group"] for run in runs} == {"tried-2" if place == 6 else "tried"}
        assert {(run["mode"], run["resume"], run["reinit"]) for run in runs} == {("disabled", "allow", "create_new")}
        assert [run.get("notes") for run in runs] == (["why"] * 2 if runs is first else [None] * 2)
        assert all(re.fullmatch("[0-9a-f]{20}", run["id"]) for run in runs)
    ids = [[run["id"] for run in runs] for runs in (first, again, fourth, latest, *others)]
    assert ids[0] == ids[1] and ids[2] == ids[3] and len({id for of_runs in ids for id in of_runs}) == 12
    given_init = {"id": "mine", "name": "my run", "group": "g", "tags": ["a"], "notes": "all", "project": "p"}
    given_init |= {"config": {"model": "small", "rate": 9, "key": 1}}
    (run,) = begun(7, init=disabled | given_init, name="a")
    assert {name: run[name] for name in given_init} == given_init | {
        "config": {"model": "small", "rate": 0.5, "key": [0, 7], "key_x-": 3}
    }
    (run,) = begun(7, init=disabled | given_init, name="a", notes="own")
    assert run["notes"] == "own"
    with pytest.raises(lox.LogValueError, match="has one id= for W&B runs, 'mine', and gets logs of a second run"):
        begun(7, 8, init=disabled | given_init, name="a")


def test_the_files_of_wandb_are_where_its_options_said_when_the_logger_was_made(tmp_path, monkeypatch):
    import wandb

    for given_by in ("dir", "settings", "a mapping", "WANDB_DIR", "nothing", "both"):
        root = tmp_path / given_by
        root.mkdir()
        with monkeypatch.context() as patch:
            patch.chdir(root)
            patch.delenv("WANDB_DIR", raising=False)
            patch.delenv("WANDB_PROJECT", raising=False)
            init = {
                "dir": {"dir": "w", "project": "a b"},
                "settings": {"settings": wandb.Settings(root_dir="w"), "project": "a b"},
                "a mapping": {"settings": {"root_dir": "w"}},
                "both": {"dir": "w", "settings": {"root_dir": "other"}, "project": "a b"},
            }.get(given_by, {})
            if given_by in ("WANDB_DIR", "both"):
                patch.setenv("WANDB_DIR", "other" if given_by == "both" else "w")
                patch.setenv("WANDB_PROJECT", "of environment")
            if given_by == "nothing":
                init = {"settings": wandb.Settings(silent=True)}
            logger = WandbLogger(init=init)
            (root / "elsewhere").mkdir()
            patch.chdir(root / "elsewhere")
            folder = root if given_by == "nothing" else root / "w"
            projects = {"a mapping": "uncategorized", "nothing": "uncategorized", "WANDB_DIR": "of_x20-environment"}
            assert logger.experiment
            place = folder / "wandb" / "lox" / projects.get(given_by, "a_x20-b")
            assert [*root.rglob("*.json")] == [place / f"{logger.experiment}.json"] and logger._init["dir"] == str(
                folder
            )


@pytest.mark.parametrize("name", ["resume", "reinit"])
def test_keywords_that_are_those_of_the_logger_for_wandb(name):
    with pytest.raises(lox.LogValueError, match=f"its {name}= itself"):
        WandbLogger(init={name: "mine"})


# -- MLflow --------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_mlflow_has_statistics_of_arrays_and_what_describes_the_run(mlflow):
    with mlflow.logger(tags={"team": "red"}) as logger:
        run(logger)
    for lane, name in enumerate(NAMES):
        found = mlflow.runs()[name]
        assert found.data.params == {"rate": str(float(lane)), "author": "Ada"}
        tags = {key: found.data.tags[key] for key in ("lox.run", "key", "team")}
        identity = identity_of(KEYS[lane].tolist(), {"rate": lane, "author": "Ada"})
        assert tags == {"lox.run": identity, "key": json.dumps(KEYS[lane].tolist()), "team": "red"}
        assert found.info.status == "FINISHED"
        numbers = mlflow.numbers()[name]
        of_weights = {key: events for key, events in numbers.items() if key.startswith("weights")}
        values = [np.array([lane + i, lane + i + 1]) for i in range(3)]
        assert of_weights == {
            "weights.mean": [(i, value.mean()) for i, value in enumerate(values)],
            "weights.std": [(i, value.std()) for i, value in enumerate(values)],
            "weights.min": [(i, value.min()) for i, value in enumerate(values)],
            "weights.max": [(i, value.max()) for i, value in enumerate(values)],
        }


@pytest.mark.integration
def test_mlflow_keeps_each_of_many_equal_values_of_one_step(mlflow):
    """Also of those that are sent one after another: it takes equal ones of a millisecond for the same."""
    logs = lox.logdict({"x": np.ones(2000)}, {"step": {"x": np.zeros(2000, int)}})
    with mlflow.logger() as logger:
        state = logger.init(7)
        for _ in range(2):
            logger.log(state, logs)
            logger.flush()
    assert mlflow.numbers()[state.name]["x"] == [(0, 1.0)] * 4000


@pytest.mark.integration
def test_mlflow_keeps_statistics_apart_from_keys_that_end_like_them(mlflow):
    long = "x" * 250
    logged(mlflow, {"x": np.array([[1, 3]]), "x.mean": np.array([7]), long: np.array([[1, 3]])})
    found = mlflow.numbers()[NAME]
    assert (found["x.mean"], found["x_x2e-mean"]) == ([(0, 2)], [(0, 7)])
    assert len(found) == 9


@pytest.mark.integration
def test_mlflow_gets_many_metrics_and_params_in_several_calls(mlflow):
    with mlflow.logger() as logger:
        state = logger.init(7, **{f"p{i}": i for i in range(150)})
        logger.log(state, lox.logdict({"x": np.arange(2500.0)}))
    assert mlflow.numbers()[state.name]["x"] == [(i, i) for i in range(2500)]
    assert mlflow.runs()[state.name].data.params == {f"p{i}": str(i) for i in range(150)}


@pytest.mark.integration
def test_mlflow_keeps_events_that_are_equal(mlflow):
    logged(mlflow, lox.logdict({"x": np.ones(5)}, {"step": {"x": np.zeros(5, np.int32)}}))
    assert mlflow.numbers()[NAME]["x"] == [(0, 1)] * 5


@pytest.mark.integration
def test_what_params_of_mlflow_cannot_hold_is_in_an_artifact(mlflow):
    text = "long " * 2000
    first = {"text": text, "note*": "x"}
    for config in (first, {"rate": 0.5}, {"rate": 0.25}, {"rate": 0.5}):
        with mlflow.logger() as logger:
            logger.log(logger.init(7, name="mine", **config), lox.logdict({"x": np.ones(1)}))
            logger.log(logger.init(7, name="mine", later=1), lox.logdict({"x": np.ones(1)}))
        found = mlflow.runs()["mine"]
        file = mlflow.path / "artifacts" / found.info.run_id / "artifacts" / found.data.tags["lox.config"]
        assert json.loads(file.read_text()) == {**config, "later": 1}
    assert json.loads(min(file.parent.iterdir()).read_text()) == first
    assert found.data.params == {"text": text[:5999] + "…", "note_x2a-": "x", "rate": "0.5", "later": "1"}


@pytest.mark.integration
def test_what_describes_an_mlflow_run_now_is_in_its_newest_artifact(mlflow):
    with mlflow.logger() as logger:
        for rate in (0.5, 0.25, 0.5):
            logger.log(logger.init(7, name="mine", rate=rate), lox.logdict({"x": np.ones(1)}))
    found = mlflow.runs()["mine"]
    file = mlflow.path / "artifacts" / found.info.run_id / "artifacts" / found.data.tags["lox.config"]
    assert json.loads(file.read_text()) == {"rate": 0.5}


@pytest.mark.integration
def test_an_mlflow_run_whose_params_hold_everything_has_no_artifact(mlflow):
    for _ in range(2):
        with mlflow.logger() as logger:
            logger.log(logger.init(7, rate=0.5), lox.logdict({"x": np.ones(1)}))
    assert not (mlflow.path / "artifacts").exists()


@pytest.mark.integration
def test_an_mlflow_run_that_is_deleted_underneath_is_an_error_and_other_loggers_go_on(mlflow):
    memory = MemoryLogger()
    logger = mlflow.several(memory)
    for place in range(2):
        logger.log(logger.init(7), lox.logdict({"x": np.arange(2.0)}))
        if not place:
            logger.flush()
            mlflow.client.delete_run(mlflow.runs()[NAME].info.run_id)
    with pytest.raises(Exception, match="must be in the 'active' state") as raised:
        logger.flush()
    assert any("MlflowLogger" in note for note in raised.value.__notes__)
    with pytest.raises(Exception, match="must be in the 'active' state"):
        logger.close()
    assert memory[NAME]["x"].tolist() == [0, 1, 0, 1]


@pytest.mark.integration
def test_mlflow_gets_the_metrics_of_one_run_when_the_others_are_deleted(mlflow):
    words = jnp.stack([jnp.zeros(6, jnp.uint32), jnp.arange(6, dtype=jnp.uint32)], 1)
    logger = mlflow.logger()

    def log():
        jax.vmap(lambda words: logger.log(logger.init(words), lox.logdict({"x": jnp.ones(1)})))(words)
        logger.flush()

    log()
    for name, found in mlflow.runs().items():
        if name != name_of(5):
            mlflow.client.delete_run(found.info.run_id)
    with pytest.raises(Exception, match="must be in the 'active' state"):
        log()
    assert mlflow.numbers() == {name_of(5): {"x": [(0, 1), (1, 1)]}}
    with pytest.raises(Exception, match="must be in the 'active' state"):
        logger.close()


@pytest.mark.integration
def test_the_active_run_of_mlflow_is_the_users(mlflow, monkeypatch):
    import mlflow as module

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow.uri)
    mine = module.start_run(experiment_id=mlflow.id)
    same_store = mlflow.uri.replace("mlflow.db", "./mlflow.db")
    with MlflowLogger(same_store, mlflow.name) as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
    assert module.get_tracking_uri() == mlflow.uri
    assert module.active_run().info.run_id == mine.info.run_id
    module.log_metric("my own", 3)
    module.end_run()
    assert mlflow.client.get_run(mine.info.run_id).data.metrics == {"my own": 3}
    assert set(mlflow.numbers()[NAME]) == {"x"}


EQUAL = [5.0, 5.0, 6.0, 5.0]
"""Events of one step, of which MLflow would keep one of those that are equal."""


def test_mlflow_has_runs_of_experiments_with_what_describes_them_and_all_metrics(mlflow):
    text = "long " * 2000
    pixels = np.arange(8, dtype=np.uint8).reshape(2, 4)
    made_by = {"h": HISTOGRAM, "q": lox.reductions.quantiles([0.25])}
    for start, options in ((0, {}), (20, {"from_step": 20}), (40, {})):
        with mlflow.logger(tags={"team": "red"}, images="a*b", **options) as logger:
            run = logger.init(7, name="mine", rate=0.5, text=text, notes=None if start else "why")

            def log(*logs, **steps):
                for each in logs:
                    logger.log(run, each, **steps)
                logger.flush()

            log({"none": np.array([np.nan, np.inf])}, step=start)
            log({"loss": 0.5}, {"epoch": 7.0}, step=start + 3, epoch=1)
            log({"loss": 0.25, "x.mean": 9.0}, step=start + 3.5)
            log({"x": np.array([1.0, np.inf, 3.0, 8.0]), "loss": 4.0})
            log({"a*b": pixels}, step=start + 7)
            log(lox.logdict({"equal": np.array(EQUAL)}, {"step": {"equal": np.full(4, start)}}))
            counts = {"h": np.uint32([[0, 10, 0, 0]]), "q": np.float64([[3]])}
            log(lox.logdict(counts, {"step": dict.fromkeys(counts, np.array([start + 8]))}, distributions=made_by))
            (of_mlflow,) = [each for each in mlflow.runs().values() if each.info.status == "RUNNING"]
            if start == 40:
                log_of = {"rate": 0.25, "later": (1, 2)}
                logger.log(logger.init(7, name="mine", **log_of), {"loss": 1.0}, step=99)
    names = ["mine", "mine-from20"]
    runs, numbers = mlflow.runs(), mlflow.numbers()
    assert runs.keys() == {*names}
    (parent,) = [each for each in mlflow.client.search_runs([mlflow.id]) if "lox.experiment" in each.data.tags]
    assert (parent.info.run_name, parent.info.status) == ("tried", "FINISHED")
    card = json.loads(parent.data.tags["lox.experiment"])
    assert (card["name"], card["resumed"]) == ("tried", [20])
    identity = hashlib.sha256(json.dumps(["name", "mine"]).encode()).hexdigest()[:32]
    for name, starts in zip(names, ((0,), (20, 40)), strict=True):
        found, tags = runs[name], runs[name].data.tags
        assert found.info.status == "FINISHED" and found.info.run_id
        assert (tags["team"], tags["key"], tags["lox.run"]) == ("red", "[0, 7]", identity + name.removeprefix("mine"))
        assert tags["mlflow.parentRunId"] == parent.info.run_id
        assert tags.get("mlflow.note.content") == ("why" if name == "mine" else None)
        params = {"rate": "0.5", "text": text[:5999] + "…"}
        artifact = {"rate": 0.5, "text": text}
        if name != "mine":
            params |= {"later/0": "1", "later/1": "2"}
            artifact |= {"rate": 0.25, "later/0": 1, "later/1": 2}
        assert found.data.params == params
        file = mlflow.path / "artifacts" / found.info.run_id / "artifacts" / tags["lox.config"]
        assert json.loads(file.read_text()) == artifact
        expected = {
            "epoch": [(start + 3, 1) for start in starts],
            "epoch_x-": [(start + 3, 7) for start in starts],
            "loss": [each for start in starts for each in ((start + 3, 0.5), (1, 0.25), (2, 4))],
            "x_x2e-mean": [(0, 9) for start in starts],
            "step": [(event, start + 3.5) for start in starts for event in (0, 1)],
            "x.mean": [(0, 4) for _ in starts],
            "x.std": [(0, pytest.approx(np.std([1, 3, 8]))) for _ in starts],
            "x.min": [(0, 1) for _ in starts],
            "x.max": [(0, 8) for _ in starts],
            "equal": [(start, value) for start in starts for value in EQUAL],
            "h/q0.1": [(start + 8, pytest.approx(0.1)) for start in starts],
            "h/q0.5": [(start + 8, pytest.approx(0.5)) for start in starts],
            "h/q0.9": [(start + 8, pytest.approx(0.9)) for start in starts],
            "q/q0.25": [(start + 8, 3) for start in starts],
        }
        expected["loss"] += [(99, 1)] * (name != "mine")
        assert numbers[name] == expected
        images = mlflow.images()[name]
        assert {key: [step for step, _ in of_key] for key, of_key in images.items()} == {
            "a_x2a-b": [start + 7 for start in starts]
        }
        assert all(image[..., 0].tolist() == pixels.tolist() for _, image in images["a_x2a-b"])


def test_mlflow_has_each_experiment_whichever_page_of_its_answer_that_is_on(mlflow):
    """MLflow answers with a thousand runs at a time, and here with two."""

    def logged_by(step, **options):
        positional, named = mlflow.arguments
        with MlflowLogger(*positional, **named, **options) as logger:
            client = logger._client
            client.search_runs = functools.partial(client.search_runs, max_results=2)
            logger.log(logger.init(7), {"x": float(step)}, step=step)
        return logger.experiment

    names = [logged_by(place, name="tried") for place in range(3)]
    assert names == ["tried", "tried-2", "tried-3"]
    assert [logged_by(10, resume="tried-2"), logged_by(11, resume="latest")] == ["tried-2", "tried-2"]
    assert [logged_by(12, resume="tried"), logged_by(13, name="tried", resume="latest")] == ["tried", "tried"]
    # One whose card is damaged is the latest as well, until another goes on.
    assert logged_by(14, name="last") == "last"
    (last,) = mlflow.client.search_runs([mlflow.id], "attributes.run_name = 'last'")
    mlflow.client.set_tag(last.info.run_id, "lox.experiment", "{")
    with pytest.raises(lox.StorageError, match="The tag lox.experiment of the MLflow run .* cannot be read"):
        logged_by(15, resume="latest")
    assert [logged_by(15, resume="tried"), logged_by(16, resume="latest")] == ["tried", "tried"]
    found = {}
    for run in mlflow.client.search_runs([mlflow.id]):
        parent = run.data.tags.get("mlflow.parentRunId")
        if parent is not None:
            name = mlflow.client.get_run(parent).info.run_name
            assert name not in found and run.info.run_name == NAME
            found[name] = mlflow._history(run.info.run_id, "x")
    steps = {"tried": [0, 12, 13, 15, 16], "tried-2": [1, 10, 11], "tried-3": [2], "last": [14]}
    assert found == {name: [(step, step) for step in of] for name, of in steps.items()}


def test_a_param_of_mlflow_has_as_many_characters_as_one_may_have(mlflow):
    with mlflow.logger() as logger:
        logger.log(logger.init(7, name="whole", text="x" * 6000), {"x": 1.0})
        logger.log(logger.init(7, name="cut", text="x" * 6001), {"x": 1.0})
    runs = mlflow.runs()
    assert runs["whole"].data.params == {"text": "x" * 6000} and "lox.config" not in runs["whole"].data.tags
    assert runs["cut"].data.params == {"text": "x" * 5999 + "…"} and "lox.config" in runs["cut"].data.tags


def test_a_place_of_mlflow_is_one_from_where_the_program_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for uri, expected in (
        ("sqlite:///m.db", f"sqlite:///{tmp_path}/m.db"),
        ("sqlite:///sub/m.db", f"sqlite:///{tmp_path}/sub/m.db"),
        ("sqlite+pysqlite:///m.db", f"sqlite+pysqlite:///{tmp_path}/m.db"),
        ("sqlite:////there/m.db", "sqlite:////there/m.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///file:m?mode=memory&uri=true", "sqlite:///file:m?mode=memory&uri=true"),
        ("sqlite://", "sqlite://"),
        ("sqlite:///", "sqlite:///"),
        ("http://host:5000/a", "http://host:5000/a"),
        ("postgresql://host/a", "postgresql://host/a"),
    ):
        assert _mlflow._absolute(uri) == expected
        assert MlflowLogger(uri)._store.tracking_uri == expected
    assert _mlflow._absolute("runs").removeprefix("file://") == f"{tmp_path}/runs"


# -- Trackio -------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_trackio_has_histograms_and_what_describes_the_run(trackio):
    with trackio.logger(init={"group": "g", "config": {"model": "small"}}) as logger:
        run(logger)
    for lane, name in enumerate(NAMES):
        config = trackio.configs()[name]
        described = {key: config[key] for key in ("key", "rate", "author", "model", "_Group")}
        assert described == {"key": KEYS[lane].tolist(), "rate": lane, "author": "Ada", "model": "small", "_Group": "g"}
        of_weights = [(step, row["weights"]) for step, row in trackio.rows(name) if "weights" in row]
        assert [step for step, _ in of_weights] == [0, 1, 2]
        assert [sum(histogram["values"]) for _, histogram in of_weights] == [2, 2, 2]  # What is finite.


@pytest.mark.integration
def test_keys_that_are_columns_of_trackio_are_kept_apart_from_them(trackio):
    logged(trackio, {"x": np.zeros(1)})
    columns = [name for _, name, *_ in trackio._select("PRAGMA table_info(metrics)")]
    logged(trackio, {name: np.array([place + 1]) for place, name in enumerate(columns)})
    found = trackio.numbers()[NAME]
    assert not set(columns) & set(found)
    assert sorted(value for ((_, value),) in found.values()) == list(range(len(columns) + 1))


@pytest.mark.integration
def test_what_describes_a_trackio_run_is_kept_apart_from_what_trackio_says_of_it(trackio):
    with trackio.logger(init={"group": "g"}) as logger:
        logger.log(logger.init(7, {"key": 3}, _Group=1, _Created=2), lox.logdict({"x": np.ones(1)}))
    config = trackio.configs()[name_of(7, {"key": 3}, _Group=1, _Created=2)]
    assert (config["_Group"], config["_Group_x-"], config["_Created_x-"]) == ("g", 1, 2)
    assert (config["key"], config["key_x-"]) == ([0, 7], 3)


@pytest.mark.integration
def test_trackio_is_told_what_describes_a_run_later(trackio):
    with trackio.logger() as logger:
        for rate in (0.5, 0.25, 0.25):
            logger.log(logger.init(7, name="mine", rate=np.float64(rate)), lox.logdict({"x": np.ones(1)}))
    assert trackio.configs()["mine"]["rate"] == 0.25
    assert trackio.numbers()["mine"]["x"] == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.integration
def test_the_run_of_trackio_is_the_users(trackio):
    import trackio as module

    before = set(threading.enumerate())
    mine = module.init(project=trackio.project, name="mine", config={"a": 1}, embed=False, auto_log_cpu=False)
    of_trackio = set(threading.enumerate()) - before
    with trackio.logger() as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
        logger.flush()
        assert {thread.name for thread in set(threading.enumerate()) - before - of_trackio} == {"TrackioLogger"}
    module.log({"my own": 3})
    assert module.config["a"] == 1
    module.finish()
    assert mine.name == "mine"
    numbers = trackio.numbers()
    assert {name: dict(events) for name, events in numbers.items()} == {
        "mine": {"my own": [(0, 3)]},
        NAME: {"x": [(0, 1)]},
    }


@pytest.mark.integration
def test_trackio_has_written_when_flush_returns(trackio):
    with trackio.logger() as logger:
        for seed in range(64):
            logger.log(logger.init(seed), lox.logdict({"x": np.arange(3.0)}))
        logger.flush()
        assert [events["x"] for events in trackio.numbers().values()] == [[(0, 0), (1, 1), (2, 2)]] * 64


@pytest.mark.integration
def test_a_database_of_trackio_that_is_locked_is_an_error_and_other_loggers_go_on(trackio):
    memory = MemoryLogger()
    logger = trackio.several(memory)
    logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
    logger.flush()
    database = trackio.folder / f"{trackio.project}.db"
    database.rename(database.with_suffix(".away"))
    database.mkdir()
    logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
    with pytest.raises(sqlite3.OperationalError) as raised:
        logger.flush()
    assert any("TrackioLogger" in note for note in raised.value.__notes__)
    logger.close()
    assert memory[NAME]["x"].tolist() == [1, 1]


def test_a_name_that_trackio_does_not_take(trackio_folder):
    with pytest.raises(ValueError, match="not allowed"):
        TrackioLogger("registry-mine")


def test_trackio_has_the_rows_and_what_describes_the_run_as_they_were_said(trackio):
    pixels = np.arange(8, dtype=np.uint8).reshape(2, 4)
    made_by = {"h": HISTOGRAM, "q": lox.reductions.quantiles([0.25]), "many": lox.reductions.histogram(range(999))}
    init = {"config": {"model": "small", "rate": 9, "key": 3}}
    for start, options in ((0, {}), (20, {"from_step": 20}), (40, {"init": init | {"group": "g"}})):
        with trackio.logger(**({"init": init, "images": "image"} | options)) as logger:
            run = logger.init(7, {"key": 2, "_Created": 1}, rate=0.5, notes=None if start else "mine")

            def log(*logs, **steps):
                for each in logs:
                    logger.log(run, each, **steps)
                logger.flush()

            log({"none": np.array([np.nan, np.inf])}, step=start)
            log({"loss": 0.5}, {"epoch": 7.0, "time": 3}, step=start + 3, epoch=1, id=4)
            log({"loss": 0.25, "b": np.inf}, step=start + 3.5)
            log({"w": np.array([1.0, np.inf, 3.0]), "loss": 4.0})
            log({"image": pixels}, step=start + 7)
            counts = {"h": np.uint32([[0, 3, 0, 1], [0, 0, 0, 0]]), "q": np.float64([[1], [3]])}
            steps = {"step": dict.fromkeys(counts, np.array([8, 9]) + start)}
            log(lox.logdict(counts, steps, distributions={key: made_by[key] for key in counts}))
            many = {"many": np.arange(1000, dtype=np.uint32)[None]}
            log(lox.logdict(many, distributions={key: made_by[key] for key in many}))
            log(in_batch(np.float32([[1, 2], [3, 5]]), mask=np.array([[True, True], [False, True]])))
    names = [run.name, f"{run.name}-from20"]
    assert trackio.configs().keys() == {*names}
    for name, of_run in zip(names, ({"_Notes": "mine", "_Group": "tried"}, {"_Group": "g"}), strict=True):
        config = trackio.configs()[name]
        created = datetime.datetime.fromisoformat(config.pop("_Created"))
        assert abs(datetime.datetime.now(datetime.UTC) - created) < datetime.timedelta(minutes=5)
        own = {"model": "small", "rate": 0.5, "key": [0, 7], "key_x-": 2, "_Created_x-": 1}
        assert config == own | of_run

    def histogram_of(counts, edges):
        return {"_type": "trackio.histogram", "bins": pytest.approx(edges), "values": counts}

    counts, edges = np.histogram([1.0, 3.0], 64)
    expected = [
        (3, {"epoch": 1, "id_x-": 4, "loss": 0.5, "epoch_x-": 7, "time_x-": 3}),
        (1, {"step_x-": 3.5, "loss": 0.25}),
        (0, {"step_x-": 3.5, "b": "Infinity"}),
        (0, {"w": histogram_of(counts.tolist(), edges.tolist())}),
        (2, {"loss": 4}),
        (7, {"image": "an image"}),
        (8, {"q/q0.25": 1, "h": histogram_of([0, 3, 0, 1], BINS)}),
        (9, {"q/q0.25": 3}),
        (0, {"many": histogram_of([4 * i + 1 for i in range(500)], [*range(-1, 1001, 2)])}),
        (0, {"x": 1.5}),
        (1, {"x": 5}),
    ]
    counted = (0, 1, 2, 5, 6, 7)  # The rows whose step is the counter, or which have it.
    for name, starts in zip(names, ((0,), (20, 40)), strict=True):
        rows = []
        for start in starts:
            for place, (step, row) in enumerate(expected):
                if "step_x-" in row:
                    row = row | {"step_x-": row["step_x-"] + start}
                rows.append((step + start * (place in counted and "step_x-" not in row), row))
        found = [
            (step, {key: "an image" if key == "image" else value for key, value in row.items()})
            for step, row in trackio.rows(name)
        ]
        assert found == rows
        images = trackio.images()[name]["image"]
        assert [step for step, _ in images] == [7 + start for start in starts]
        assert all(image[..., 0].tolist() == pixels.tolist() for _, image in images)
    (card,) = trackio.folder.glob(f"lox/{trackio.project}/*.json")
    assert card.name == "tried.json" and json.loads(card.read_text())["resumed"] == [20]
    with pytest.raises(lox.LogDataError, match="init= of TrackioLogger"):
        TrackioLogger(trackio.project, init=3)
    with pytest.raises(lox.LogValueError, match="has group and config of trackio.init, got 'name'"):
        TrackioLogger(trackio.project, init={"name": "a"})


# -- runs that end underneath, and other processes -----------------------------------------------------------------


@pytest.mark.integration
def test_a_wandb_run_that_is_finished_underneath_is_an_error_and_other_sinks_go_on(wandb):
    memory = MemoryLogger()
    logger = wandb.several(memory)
    first = logger.loggers[0]
    logger.log(logger.init(7), lox.logdict({"x": np.arange(2.0)}))
    logger.flush()
    for each in first._wandb_runs.values():
        each.finish()
    logger.log(logger.init(7), lox.logdict({"x": np.arange(2.0)}))
    with pytest.raises(Exception, match="finished") as raised:
        logger.flush()
    assert any("WandbLogger" in note for note in raised.value.__notes__)
    logger.close()
    assert memory[NAME]["x"].tolist() == [0, 1, 0, 1]


@pytest.mark.integration
def test_an_experiment_whose_tag_in_mlflow_is_damaged_is_in_the_way_of_no_other(mlflow):
    positional, _ = mlflow.arguments
    for name in ("a", "b"):
        with MlflowLogger(*positional, name=name) as logger:
            logger.log(logger.init(7), {"x": 0.0}, step=0)
    (run,) = mlflow.client.search_runs([mlflow.id], "attributes.run_name = 'a'")
    mlflow.client.set_tag(run.info.run_id, "lox.experiment", "{")
    with pytest.raises(lox.StorageError, match="The tag lox.experiment of the MLflow run .* cannot be read"):
        MlflowLogger(*positional, resume="a").init(7)
    for options, experiment in (({"resume": "latest"}, "b"), ({"resume": "b"}, "b"), ({"name": "a"}, "a-2")):
        with MlflowLogger(*positional, **options) as logger:
            logger.log(logger.init(7), {"x": 1.0}, step=1)
        assert logger.experiment == experiment


@pytest.mark.integration
def test_an_mlflow_run_that_is_ended_underneath_goes_on(mlflow):
    with mlflow.logger() as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
        logger.flush()
        mlflow.client.set_terminated(mlflow.runs()[NAME].info.run_id)
        logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
    assert mlflow.numbers()[NAME]["x"] == [(0, 1), (1, 1)]


@pytest.mark.integration
def test_a_trackio_run_that_is_deleted_underneath_begins_again(trackio):
    import trackio as module

    with trackio.logger() as logger:
        logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
        logger.flush()
        (run,) = module.Api().runs(trackio.project)
        assert run.delete()
        logger.log(logger.init(7), lox.logdict({"x": np.ones(1)}))
    assert trackio.numbers()[NAME]["x"] == [(1, 1)]


@pytest.mark.integration
def test_another_process_continues_the_runs(mlflow, trackio):
    program = f"""
import numpy as np, lox
from lox.loggers import MlflowLogger, MultiLogger, TrackioLogger
both = MlflowLogger({mlflow.uri!r}, {mlflow.name!r}), TrackioLogger({trackio.project!r})
logger = MultiLogger(*both, resume="tried")
logger.log(logger.init(7), lox.logdict({{"x": np.array([5.0])}}, {{"step": {{"x": np.array([10])}}}}))
"""
    both = [logged(each, {"x": np.ones(1)}) for each in (mlflow, trackio)]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    assert [dict(each.numbers()) for each in both] == [{NAME: {"x": [(0, 1), (10, 5)]}}] * 2
