"""Which run logs belong to: a key and a config, or a name, whatever the program around it."""

import dataclasses
import functools
import hashlib
import itertools
import json
import pickle
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from runs import name_of, saver, state

import lox
from lox.loggers import Logger, MemoryLogger, MultiLogger, SaveLogger, State, TensorBoardLogger, _state
from lox.loggers._identity import identity_of
from lox.loggers._state import labels

RUN = name_of(7)
RATES = [0.1 * 2**place for place in range(8)]
SEEDS = range(8)


def train(rate):
    def step(x, i):
        lox.log({"loss": x}, step=i)
        return x - rate * x, None

    return lax.scan(step, 1.0, jnp.arange(3))[0]


def losses(rate):
    return [(1 - np.float32(rate)) ** i for i in range(3)]


# -- a sweep -------------------------------------------------------------------------------------------------------


def sweep_in_vmap(logger, way):
    def one(seed, rate):
        return getattr(logger, way)(train, logger.init(seed, rate=rate, model={"name": "mlp", "width": 8}))(rate)

    rates, seeds = jnp.float32(RATES), jnp.arange(8)
    jax.jit(jax.vmap(jax.vmap(one, (0, None)), (None, 0)))(seeds, rates)


def sweep_in_python(logger, way):
    for seed, rate in itertools.product(SEEDS, RATES):
        state = logger.init(seed, {"model": {"width": 8, "name": "mlp"}}, rate=rate)
        getattr(logger, way)(train, state)(jnp.float32(rate))


def sweep_of_one_jitted_function(logger, way):
    run = jax.jit(lambda state, rate: getattr(logger, way)(train, state)(rate))
    for seed, rate in itertools.product(SEEDS, RATES):
        run(logger.init(jax.random.key(seed), rate=rate, model={"name": "mlp", "width": 8}), jnp.float32(rate))
    assert run._cache_size() == 1


def sweep_by_hand(logger, way):
    for seed, rate in itertools.product(SEEDS, RATES):
        _, logs = lox.spool(train)(jnp.float32(rate))
        logger.log(logger.init(np.int64(seed), rate=np.float32(rate), model={"name": "mlp", "width": 8}), logs)


@pytest.mark.covering(1)
@pytest.mark.parametrize("sweep", [sweep_in_vmap, sweep_in_python, sweep_of_one_jitted_function, sweep_by_hand])
@pytest.mark.parametrize("way", ["tap", "spool"])
def test_a_sweep_has_the_same_runs_in_a_vmap_and_in_a_python_loop(tmp_path, sweep, way):
    with saver(tmp_path) as logger:
        sweep(logger, way)
    found, configs = lox.load(tmp_path), lox.load_config(tmp_path)
    expected = {}
    for seed, rate in itertools.product(SEEDS, RATES):
        expected[name_of(seed, rate=rate, model={"name": "mlp", "width": 8})] = rate
    assert found.keys() == expected.keys() and len(found) == 64
    for name, rate in expected.items():
        np.testing.assert_allclose(found[name]["loss"], losses(rate), rtol=1e-6)
        assert configs[name] == {"rate": rate, "model/name": "mlp", "model/width": 8}


def test_names_and_identities_stay_what_they_are():
    seven = state(7, rate=np.float32(0.1), model={"name": "large model", "width": 8}, layers=[1, 2])
    assert seven.name == "layers.0=1,layers.1=2,model.name=large_model,model.width=8,rate=0.1,seed=7-5e2f0d"
    assert name_of(7) == "seed=7-941678"
    assert name_of(jax.random.split(jax.random.key(0))[0]) == "key=6b200159-cec2d9"


def test_a_run_is_named_by_as_much_of_its_config_as_there_is_room_for():
    texts = {
        "rate=0.1235,seed=7": {"rate": 0.1234567},
        "rate=0.0001,seed=7": {"rate": np.float32(1e-4)},
        "rate=1e-05,seed=7": {"rate": 1e-5},
        "n=999999999999,seed=7": {"n": 999_999_999_999},
        "n=1e+12,seed=7": {"n": 10**12},
        "n=-3,seed=7": {"n": -3.0},
        "n=inf,seed=7": {"n": np.inf},
        "n=nan,seed=7": {"n": np.nan},
        "n=0,seed=7": {"n": -0.0},
        "on=True,seed=7": {"on": True},
        "z=1j,seed=7": {"z": 1j},
        "model.width=8,seed=7": {"model": {"width": 8}},
        "a_b=1,c_d=2,seed=7": {"a b": 1, "c(d": 2},
        "_a=x_y.z,seed=7": {".a": "x y.z"},
        "_=_e,seed=7": {"é": "%e"},
        f"t={'a' * 16},seed=7": {"t": "a" * 17},
        "t=two_words__and_a,seed=7": {"t": "two words, and a third"},
        "t=of.sixteen.chars,seed=7": {"t": "of.sixteen.chars"},
        "t=more,seed=7": {"t": "of.sixteen.and.more"},
        "seed=7": {"none": None, "array": np.ones(3), "empty": ""},
        f"{'k' * 71}=1,seed=7": {"k" * 71: 1},
        "z=2,seed=7": {"k" * 72: 1, "z": 2},
        f"{'a' * 33}=1,{'b' * 35}=2,seed=7": {"a" * 33: 1, "b" * 35: 2, "c": 3},
        f"{'a' * 33}=1,c=3,seed=7": {"a" * 33: 1, "b" * 36: 2, "c": 3},
    }
    for text, config in texts.items():
        name = name_of(7, config)
        assert name.rpartition("-")[0] == text and len(text) <= 80
        assert re.fullmatch("[0-9a-f]{6}", name.rpartition("-")[2])
    for key, text in (
        (0, "seed=0"),
        (2**32 - 1, "seed=4294967295"),
        (np.uint32([1, 2]), "key=00000001"),
        (np.uint32([7, 7]), "key=00000007"),
        (np.uint32([0xCB7B94CB, 5]), "key=cb7b94cb"),
        (jax.random.key(7, impl="rbg"), "seed=7"),
        (np.uint32([0, 7, 0, 8]), "key=00000000"),
        (np.uint32([1, 7, 1, 7]), "key=00000001"),
    ):
        assert name_of(key).rpartition("-")[0] == text
    assert name_of(7, name="a-b_c.D+1") == "a-b_c.D+1"
    for title, start in (
        ("a/b", "a_b"),
        (".a", "_a"),
        ("é" * 90, "_" * 80),
        ("x" * 81, "x" * 80),
        ("a.JSON", "a.JSON"),
    ):
        name = name_of(7, name=title)
        assert name == f"{start}-{hashlib.sha256(json.dumps(['name', title]).encode()).hexdigest()[:6]}"


# -- what is one run -----------------------------------------------------------------------------------------------

EQUAL = {
    "floats of several widths": [0.1, np.float64(0.1), np.float32(0.1), jnp.float32(0.1), jnp.bfloat16(0.1)],
    "small floats": [1e-5, np.float32(1e-5), jnp.float32(0.00001)],
    "whole numbers": [1, 1.0, np.int8(1), jnp.uint32(1), np.float32(1)],
    "large whole numbers": [2**40, np.int64(2**40), float(2**40)],
    "zeros": [0.0, -0.0, 0],
    "not a number": [np.nan, jnp.float32(np.nan)],
    "infinity": [np.inf, np.float32(np.inf)],
    "truth values": [True, np.True_, jnp.array(True)],
    "complex numbers": [1j, np.complex64(1j)],
    "text": ["adam", np.str_("adam")],
    "arrays": [np.float32([1, 2]), jnp.float32([1, 2])],
    "lists": [[1, 2], (1, 2.0)],
    "nothing": [None, None],
    "mappings": [{"a": 1, "b": {"c": 2}}, {"b": {"c": 2}, "a": 1}],
    "functions": [jnp.tanh, "jax.numpy.tanh"],
    "sets": [{"a", "b", "c"}, frozenset("cab")],
}


@pytest.mark.parametrize("kind", EQUAL)
def test_values_that_are_equal_are_of_one_run(kind):
    assert len({name_of(7, value=value) for value in EQUAL[kind]}) == 1


def test_values_that_differ_are_of_different_runs():
    values = [1, 2, 0.1, np.nextafter(np.float32(0.1), np.float32(1)), True, "1", "True", None, "none", 1j, np.inf]
    values += [np.float32([1, 2]), np.float32([2, 1]), np.float32([[1, 2]]), np.int32([1, 2]), [1, 2], {"a": 1}, ""]
    values += [jax.random.key_data(jax.random.key(1)), -1, np.nan, "a b", "a_b", "a" * 99, "a" * 100]
    assert len({state(7, value=value)._describe().identity for value in values}) == len(values)
    assert name_of(7, a=1) != name_of(7, b=1) != name_of(8, b=1) != name_of(8)


def test_functions_and_classes_are_told_apart_by_their_names():
    values = [jax.nn.relu, jax.nn.silu, jax.nn.gelu, jnp.tanh, jnp.add, Logger, MemoryLogger]
    names = [name_of(7, value=value).rpartition("-")[0] for value in values]
    assert names == [
        f"value={name},seed=7" for name in "relu silu gelu jax.numpy.tanh _jnp.ufunc__add_ Logger MemoryLogger".split()
    ]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_what_has_no_text_of_its_own_describes_no_run(jit):
    partial = functools.partial(jax.nn.gelu, approximate=True)
    for value in (lambda: 0, object(), partial, jax.jit(jnp.tanh), [object()]):
        with pytest.raises(lox.LogDataError, match=r"The value 'model/value(/0)?' of a run .* cannot tell runs apart"):
            jit(lambda seed, value=value: state(seed, model={"value": value}))(7)


def test_a_name_alone_identifies_a_run():
    with MemoryLogger() as logger:
        for seed, rate in ((1, 0.1), (2, 0.5)):
            logger.log(logger.init(seed, name="baseline", rate=rate), lox.logdict({"x": np.float32([seed])}))
        logger.log(logger.init(1, rate=0.1), lox.logdict({"x": np.float32([3])}))
    assert list(logger.runs) == ["baseline", name_of(1, rate=0.1)]
    assert logger["baseline"]["x"].tolist() == [1, 2]
    assert logger.runs["baseline"].config["rate"] == 0.5


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # The step goes back.
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_notes_are_stored_and_do_not_identify(tmp_path, jit):
    with saver(tmp_path) as logger:
        for notes in ("first try", None, "another"):
            jit(lambda rate, notes=notes: logger.tap(train, logger.init(7, rate=rate, notes=notes))(rate))(0.1)
    assert len(lox.load(tmp_path)[name_of(7, rate=0.1)]["loss"]) == 9
    assert json.loads((tmp_path / name_of(7, rate=0.1) / "manifest.json").read_text())["notes"] == "first try"


def test_a_config_is_a_mapping_or_keywords_or_both():
    assert name_of(7, {"a": 1, "b": 2}) == name_of(7, {"b": 2}, a=1) == name_of(7, a=1, b=2)
    logger = MemoryLogger()
    with pytest.raises(lox.LogValueError, match="'a' is in the config and a keyword of init as well"):
        logger.init(7, {"a": 1}, a=1)
    with pytest.raises(
        lox.LogDataError, match="config= of init is a mapping from names to values, got 0.1 of type float"
    ):
        logger.init(7, 0.1)
    with pytest.raises(lox.LogDataError, match="name= of init is text, got 3 of type int"):
        logger.init(7, name=3)
    with pytest.raises(lox.LogDataError, match="notes= of init is text"):
        logger.init(7, notes=["a"])
    with pytest.raises(lox.LogValueError, match="name= of init is empty"):
        logger.init(7, name="")


def test_a_value_of_the_config_may_be_called_like_an_argument_of_init():
    logger = MemoryLogger()
    for call, name in (
        (lambda: logger.init(7, key=1), "key"),
        (lambda: logger.init(7, {}, config=1), "config"),
        (lambda: logger.init(7, config=1), "config"),
        (lambda: logger.init(7, name=1), "name"),
        (lambda: logger.init(7, notes=1), "notes"),
    ):
        with pytest.raises(lox.LogDataError, match=rf"goes into config={{'{name}': ...}}"):
            call()
    config = dict.fromkeys(["key", "config", "name", "notes", "self", "logger", "values"], 1)
    assert logger.init(7, self=1, logger=2).name == name_of(7, {"self": 1, "logger": 2})
    assert logger.init(key=7, config=config).name == name_of(7, config)


# -- on the way ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["tap", "spool"])
@pytest.mark.parametrize("rates", [[0.5, 0.5], [0.0, -0.0]])
def test_two_batch_elements_of_one_key_and_config_are_an_error(way, rates):
    logger = MemoryLogger()

    def one(rate):
        return getattr(logger, way)(lambda x: lox.log({"x": x})["x"], logger.init(7, rate=rate))(rate)

    jax.vmap(one)(jnp.array(rates))
    with pytest.raises(lox.LogDataError, match="Two batch elements log to one run. Give each a key or a config"):
        logger.flush()
    assert not logger.runs


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("buffer", [1, 4])
def test_logs_find_their_run_however_they_arrive(ordered, buffer):
    logger = MemoryLogger()

    def one(rate):
        return logger.tap(train, logger.init(7, rate=rate), ordered=ordered, buffer=buffer)(rate)

    jax.block_until_ready(jax.jit(jax.vmap(one))(jnp.array([0.1, 0.5])))
    logger.flush()
    for rate in (0.1, 0.5):
        np.testing.assert_allclose(sorted(logger[name_of(7, rate=rate)]["loss"]), sorted(losses(rate)), rtol=1e-6)
    if not ordered:  # What may arrive in any order may go back, which is no warning.
        jax.block_until_ready(jax.jit(jax.vmap(one))(jnp.array([0.1, 0.5])))
        logger.flush()


def labelled(state):
    """An event as it arrives from a program."""
    return lox.logdict({"x": np.ones(1)}, {name: {"x": np.uint32([word])} for name, word in labels(state).items()})


def test_logs_that_arrive_before_their_run_is_known_wait_for_it():
    logger = MemoryLogger()
    described = state(7, rate=0.1)
    logger._take(labelled(described))
    logger.flush()
    assert not logger.runs
    logger._learn(described._number, described._describe)
    logger.flush()
    assert logger[described]["x"].tolist() == [1]
    logger._take(labelled(state(8)))
    with pytest.raises(lox.LogValueError, match=r"does not write what arrived of \['x'\]: the key and config of"):
        logger.close()


def test_logs_whose_run_becomes_known_while_they_are_sorted_are_not_lost():
    class Late(dict):
        def __contains__(self, group):
            asked.append(group)
            return len(asked) > 2  # Once when it arrives and once when it is sorted, and then it is known.

    asked, described, logger = [], state(7, rate=0.1), MemoryLogger()
    logger._groups = Late({described._number: described._describe})
    logger._take(labelled(described))
    logger.flush()
    logger.flush()
    assert logger[described]["x"].tolist() == [1]


def test_what_describes_a_run_needs_no_room():
    class Slow(MemoryLogger):
        def write(self, run, logs):
            go_on.wait()
            super().write(run, logs)

    go_on = threading.Event()
    logger = Slow(room=1, overflow="drop")
    tapped = jax.jit(lambda rate: logger.tap(lambda x: lox.log({"x": x}), logger.init(7, rate=rate))(rate))
    for rate in (0.1, 0.2, 0.3, 0.4):
        jax.block_until_ready(tapped(rate))
    jax.effects_barrier()
    go_on.set()
    logger.flush()
    assert logger.dropped and set(logger.runs) <= {name_of(7, rate=rate) for rate in (0.1, 0.2, 0.3, 0.4)}
    tapped(0.4)
    logger.flush()
    assert logger[name_of(7, rate=0.4)]["x"][-1] == np.float32(0.4)


def test_a_run_begins_with_its_first_logs(tmp_path):
    with saver(tmp_path / "runs") as logger:
        state = logger.init(7, rate=0.1)
        jax.jit(logger.tap(lambda x: x + 1, state))(1.0)
        jax.jit(lambda rate: logger.tap(lambda x: x + 1, logger.init(7, rate=rate))(rate))(0.5)
        logger.flush()
        assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("way", ["tap", "spool", "log"])
def test_all_loggers_of_several_have_the_runs(way):
    first, second = MemoryLogger(), MemoryLogger()
    logger = MultiLogger(first, second)
    if way == "log":
        logger.log(logger.init(7, rate=0.1), lox.spool(train)(0.1)[1])
    else:
        getattr(logger, way)(train, logger.init(7, rate=0.1))(0.1)
    jax.vmap(lambda seed: getattr(logger, "tap")(train, logger.init(seed))(0.1))(jnp.arange(2))
    logger.close()
    for each in (first, second):
        assert set(each.runs) == {name_of(7, rate=0.1), name_of(0), name_of(1)}


@pytest.mark.filterwarnings("ignore::lox.LoggerWarning")  # The step goes back.
def test_a_state_may_leave_the_program_that_made_it():
    logger = MemoryLogger()
    made = jax.jit(lambda rate: logger.init(7, rate=rate))(0.1)
    assert made.name == name_of(7, rate=0.1)
    logger.tap(train, made)(0.1)
    logger.log(made, lox.spool(train)(0.1)[1])
    jax.jit(lambda state: logger.spool(train, state)(0.1))(made)
    logger.flush()
    assert {name: len(logger[name]["loss"]) for name in logger.runs} == {made.name: 9}


@pytest.mark.parametrize("transform", ["scan", "grad", "checkpoint", "cond", "while", "nested jit"])
def test_a_config_that_is_computed_inside_of_transformations(transform):
    logger = MemoryLogger()

    def one(rate):
        return logger.tap(lambda x: lox.log({"x": x})["x"], logger.init(7, rate=rate, text="a"))(rate * 2)

    if transform == "scan":
        jax.jit(lambda rates: lax.scan(lambda carry, rate: (carry, one(rate)), 0, rates))(jnp.array([0.25, 0.5]))
    elif transform == "grad":
        assert jax.grad(lambda rate: one(rate) ** 2)(0.25) == 2.0
        one(0.5)
    elif transform == "checkpoint":
        assert jax.grad(lambda rate: jax.checkpoint(one)(rate) ** 2)(0.25) == 2.0
        one(0.5)
    elif transform == "cond":
        jax.vmap(lambda rate: lax.cond(rate > 0.2, one, lambda rate: rate, rate))(jnp.array([0.125, 0.25, 0.5]))
    elif transform == "while":
        lax.while_loop(lambda rate: rate < 1, lambda rate: one(rate), 0.25)
    else:
        jax.jit(lambda: [jax.jit(one)(rate) for rate in (0.25, 0.5)])()
    logger.flush()
    found = {name: logger[name]["x"].tolist() for name in logger.runs}
    assert found == {name_of(7, rate=rate, text="a"): [rate * 2] for rate in (0.25, 0.5)}


def test_arrays_that_describe_runs_may_be_batched():
    logger = MemoryLogger()
    arrays = {
        "weights": jnp.arange(6.0).reshape(2, 3),
        "half": jnp.float16([0.1, 0.2]),
        "flag": jnp.array([True, False]),
    }
    arrays |= {"key": jax.random.split(jax.random.key(0)), "complex": jnp.array([1j, 2j]), "small": jnp.int8([-1, 1])}
    jax.jit(jax.vmap(lambda config: logger.tap(lambda: lox.log({"x": 1}), logger.init(7, config))()))(arrays)
    logger.flush()
    assert set(logger.runs) == {name_of(7, jax.tree.map(lambda leaf, i=i: leaf[i], arrays)) for i in range(2)}
    for run in logger.runs.values():
        assert run.config["weights"].shape == (3,) and run.config["flag"].dtype == bool


@pytest.mark.parametrize(
    "values",
    [
        jnp.float32([1, np.nextafter(np.float32(1), np.float32(2))]),
        jnp.float16([1, 2]),
        jnp.bfloat16([1, 2]),
        jnp.complex64([1 + 1j, 1 + 2j]),
        jnp.int8([-1, 1]),
        jnp.array([True, False]),
        jnp.float32([[1, 2], [2, 1]]),
        jax.random.key_data(jax.random.split(jax.random.key(0))),
        jax.random.split(jax.random.key(0)),
    ],
    ids=lambda values: f"{values.dtype}{list(values.shape)}",
)
def test_batch_elements_that_differ_in_one_value_have_a_run_each(values):
    logger = MemoryLogger()
    jax.vmap(lambda value: logger.tap(lambda: lox.log({"x": 1}), logger.init(7, value=value))())(values)
    logger.flush()
    assert {*logger.runs} == {name_of(7, value=value) for value in values} and len(logger.runs) == 2


def test_a_longer_name_has_more_of_the_identity():
    names = [*_state.stored_names([0, 7], {}, None, "0123456789abcdef" * 2)]
    assert names[0] == "seed=7-012345" and names[1] == "seed=7-0123456" and len(names[-1]) == len("seed=7-") + 32


def test_a_config_in_another_order_is_that_of_the_same_run():
    configs = {"rate": 0.1, "width": 8}, {"width": 8, "rate": 0.1}
    assert len({identity_of([0, 7], config) for config in configs}) == 1
    with MemoryLogger() as logger:
        for config in configs:
            logger.log(logger.init(7, **config), lox.logdict({"x": np.float32([1])}))
    assert len(logger.runs) == 1


def test_two_runs_whose_names_would_be_equal_have_longer_ones(monkeypatch):
    monkeypatch.setattr(_state, "stored_names", lambda words, *rest: iter(["a-1", f"a-1{words[1] + 2}"]))
    with MemoryLogger() as logger:
        for seed in range(2):
            logger.log(logger.init(seed), lox.logdict({"x": np.float32([seed])}))
    assert {name: logger[name]["x"].tolist() for name in logger.runs} == {"a-1": [0], "a-13": [1]}


@pytest.mark.parametrize("title", ["a/b", "..", "日本", "x" * 500, "a b", "con", ".hidden"])
def test_any_text_may_be_the_name_of_a_run(tmp_path, title):
    with saver(tmp_path) as logger:
        state = logger.init(7, name=title)
        logger.log(state, lox.logdict({"x": np.ones(1)}))
    assert list(lox.load(tmp_path)) == [state.name] and len(state.name) < 100
    assert state.name == name_of(8, name=title)


def test_a_run_may_have_the_name_of_a_file_of_its_experiment(tmp_path):
    titles = ["experiment.json", "Experiment.JSON", "tensorboard.json", "manifest.json", "owner.json", "con", "NUL.x"]
    with MultiLogger(SaveLogger(tmp_path), TensorBoardLogger(tmp_path), name="a") as logger:
        for title in titles:
            logger.log(logger.init(7, name=title), {"x": 1.0})
    names = [name_of(7, name=title) for title in titles]
    assert sorted(lox.load(tmp_path)) == sorted(f"a/{name}" for name in names)
    assert all(list((tmp_path / "a" / name).glob("events*")) for name in names)


def test_a_directory_of_another_run_is_not_continued(tmp_path):
    for seed in range(2):
        with saver(tmp_path) as logger:
            logger.log(logger.init(seed), lox.logdict({"x": np.ones(1)}))
    (tmp_path / name_of(0)).rename(tmp_path / "moved")
    (tmp_path / name_of(1)).rename(tmp_path / name_of(0))
    logger = saver(tmp_path)
    logger.log(logger.init(0), lox.logdict({"x": np.ones(1)}))
    with pytest.raises(lox.StorageError, match="is another run already"):
        logger.close()


def test_a_run_whose_start_fails_begins_later_under_its_name():
    class Failing(MemoryLogger):
        def start(self, run):
            tried.append(run.name)
            if len(tried) < 3:
                raise OSError("no disk")
            super().start(run)

    tried, logger = [], Failing()
    for i in range(4):
        logger.log(logger.init(7), {"x": i})
        try:
            logger.flush()
        except OSError:
            pass
    assert tried == 3 * [name_of(7)] and logger[name_of(7)]["x"].tolist() == [2, 3]


def test_a_sink_hears_of_a_run_what_describes_it():
    heard = []

    class Sink(Logger):
        def start(self, run):
            heard.append((run.name, run.key, run.notes, {**run.config}))

        def write(self, run, logs):
            heard.append(len(run.identity))

    with Sink() as logger:
        run: State = logger.init(7, rate=0.5, notes="try")
        logger.log(run, lox.logdict({"x": np.ones(1)}))
    assert heard == [(run.name, (0, 7), "try", {"rate": 0.5}), 32]


# -- states ----------------------------------------------------------------------------------------------------------


def log_x(x):
    return lox.log({"x": x})["x"]


@pytest.mark.parametrize(
    "configs",
    [
        [{"rate": jnp.float32(1)}, {"decay": jnp.float32(1)}],
        [{"a": jnp.zeros((2, 3))}, {"a": jnp.zeros((3, 2))}],
        [{"a": jnp.int32(1)}, {"a": jnp.array(True)}],
    ],
    ids=["names", "shapes", "dtypes"],
)
def test_configs_of_equal_bits_are_of_different_runs_in_jit(configs):
    logger = MemoryLogger()
    for place, config in enumerate(configs):
        jax.jit(lambda config, x: logger.tap(log_x, logger.init(7, config))(x))(config, place)
    logger.flush()
    assert [logger[run]["x"].tolist() for run in logger.runs] == [[0], [1]]


def test_a_state_that_is_changed_is_of_another_run():
    logger = MemoryLogger()
    first = logger.init(7, rate=0.1)
    second = dataclasses.replace(first, static=dataclasses.replace(first.static, title="second"))
    for place, run in enumerate((first, second)):
        logger.tap(log_x, run)(place)
        logger.log(run, {"x": 10 + place})
    logger.flush()
    assert sorted(logger[first]["x"].tolist()) == [0, 10] and sorted(logger["second"]["x"].tolist()) == [1, 11]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_a_pickled_state_may_be_read_in_another_process(monkeypatch, jit):
    logger = MemoryLogger()
    monkeypatch.setattr(_state, "_numbers", itertools.count(10**6))
    pickled = pickle.dumps(logger.init(8, rate=0.1))
    monkeypatch.setattr(_state, "_numbers", itertools.count(10**6))  # As those of another process.
    runs = [logger.init(7), pickle.loads(pickled)]
    for place, run in enumerate(runs):
        jit(lambda run, x: logger.tap(log_x, run)(x))(run, place)
        logger.log(run, {"x": 10 + place})
    logger.flush()
    assert [sorted(logger[run]["x"].tolist()) for run in runs] == [[0, 10], [1, 11]]


@pytest.mark.parametrize("key", [jax.random.key, jax.random.PRNGKey])
@pytest.mark.parametrize("way", ["tap", "spool", "log"])
def test_the_key_of_a_run_may_be_donated(key, way):
    logger, key = MemoryLogger(), key(7)
    run = logger.init(key)
    jax.jit(lambda key: jax.random.fold_in(key, 1), donate_argnums=0)(key)
    if way == "log":
        logger.log(run, {"x": 1})
    else:
        getattr(logger, way)(log_x, run)(1)
    logger.flush()
    assert logger[RUN]["x"].tolist() == [1]


def test_a_state_in_a_traced_program_leaks_nothing():
    logger = MemoryLogger()
    with jax.checking_leaks():
        jax.jit(lambda rate, x: logger.tap(log_x, logger.init(7, rate=rate))(x))(0.1, 1)
    logger.flush()
    assert logger[name_of(7, rate=0.1)]["x"].tolist() == [1]


def test_states_of_one_run_take_little_memory():
    logger = MemoryLogger()
    for step in range(10):
        logger.tap(log_x, logger.init(7, rate=0.1))(step)
    logger.flush()
    assert len(logger._groups) == 10 and len(set(map(id, logger._groups.values()))) == 1
    assert logger[name_of(7, rate=0.1)]["x"].tolist() == [*range(10)]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, jnp.bfloat16, jnp.float8_e4m3fn])
def test_the_largest_number_of_a_dtype_describes_a_run(tmp_path, dtype):
    largest = jnp.finfo(dtype).max
    with saver(tmp_path) as logger:
        logger.log(run := logger.init(7, clip=largest), {"x": 1})
    assert dtype(json.loads((tmp_path / run.name / "manifest.json").read_text())["config"]["clip"]) == largest


def test_integers_of_any_size_are_told_apart():
    numbers = [2**63, 2**64, 2**64 + 1, 2**70, 2**70 + 1, 10**120, 10**120 + 1, -(2**70)]
    assert len({state(7, n=n)._describe().identity for n in numbers}) == len(numbers)
    assert state(7, n=10**20)._describe().identity == state(7, n=1e20)._describe().identity


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
@pytest.mark.parametrize("value", [np.longdouble(3), np.clongdouble(3), np.timedelta64(3, "s")], ids=repr)
def test_numbers_that_jax_does_not_have_describe_a_run(jit, value):
    logger = MemoryLogger()
    jit(lambda x: logger.tap(log_x, logger.init(7, value=value))(x))(1)
    logger.flush()
    assert [logger[run]["x"].tolist() for run in logger.runs] == [[1]]


class Refusing(MemoryLogger):
    """Begins no run of the seed 7, and writes no event of 13."""

    tried = 0

    def start(self, run):
        if run.key == (0, 7):
            self.tried += 1
            raise ConnectionError("no network")
        super().start(run)

    def write(self, run, logs):
        if 13 in logs["x"]:
            raise ValueError("13")
        super().write(run, logs)


@pytest.mark.filterwarnings("always::lox.LoggerWarning")
def test_a_run_whose_start_fails_is_said_at_once_and_not_started_again_for_each_event():
    logger = Refusing()
    with pytest.warns(lox.LoggerWarning) as warned:
        for x in range(3):
            logger.log(logger.init(7), {"x": x, "y": x})
            logger.log(logger.init(8), {"x": x})
            logger._worker.wait()
    (message,) = [str(warning.message) for warning in warned]
    assert message == (
        f"Refusing() has a problem with run {RUN}: ConnectionError: no network. Its events are not written. It begins "
        "again after a flush has raised this error."
    )
    with pytest.raises(ConnectionError, match="no network") as raised:
        logger.flush()
    assert "Events of the run that were not written: 3." in raised.value.__notes__
    assert logger.tried == 1 and logger[name_of(8)]["x"].tolist() == [0, 1, 2]
    logger.log(logger.init(7), {"x": 3})
    with pytest.raises(ConnectionError) as raised:
        logger.close()
    assert "Events of the run that were not written: 1." in raised.value.__notes__ and logger.tried == 2


@pytest.mark.filterwarnings("always::lox.LoggerWarning")
def test_what_cannot_be_written_is_said_at_once_for_each_run_and_type_of_error():
    logger = Refusing()
    with pytest.warns(lox.LoggerWarning) as warned:
        for seed, x in [(8, 1), (8, 13), (8, 13), (9, 13), (8, 2)]:
            logger.log(logger.init(seed), {"x": x})
            logger._worker.wait()
    assert [str(warning.message) for warning in warned] == [
        f"Refusing() has a problem with run {name_of(seed)}: ValueError: 13. The next flush raises this error."
        for seed in (8, 9)
    ]
    with pytest.raises(ValueError, match="13"):
        logger.close()
    assert logger[name_of(8)]["x"].tolist() == [1, 2]


@pytest.mark.filterwarnings("always::lox.LoggerWarning")
def test_a_problem_is_told_in_one_line_with_the_run_that_has_it():
    class Failing(Logger):
        def write(self, run, logs):
            raise errors[logs["x"][0].item()]

        def sync(self):
            if failing:
                raise failing.pop()

        def __repr__(self):
            return "mine"

    errors = [
        OSError("disk full.\nAnd more."),
        OSError("disk full."),
        ValueError("a" * 600),
        KeyError("key"),
        ValueError(""),
    ]
    failing, logger = [], Failing()
    run, then = logger.init(7, name="first"), "The next flush raises this error."
    with pytest.warns(lox.LoggerWarning) as warned:
        for place in range(len(errors)):
            logger.log(run, {"x": place})
            logger._worker.wait()
        for error in (OSError("of no run"), TypeError("of no run..."), TypeError("again")):
            failing.append(error)
            logger.log(run, {"x": 0})
            logger._worker.wait(logger._sync)
        logger.log(logger.init(8, name="second"), {"x": 1})
        logger._worker.wait()
    assert [str(each.message) for each in warned] == [
        f"mine has a problem with run first: OSError: disk full. {then}",
        f"mine has a problem with run first: ValueError: {'a' * 500}. {then}",
        f"mine has a problem with run first: KeyError: 'key'. {then}",
        f"mine has a problem: TypeError: of no run. {then}",
        f"mine has a problem with run second: OSError: disk full. {then}",
    ]
    with pytest.raises(OSError, match="disk full") as raised:
        logger.close()
    assert "The error was raised by mine." in raised.value.__notes__
