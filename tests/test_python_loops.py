"""Training in loops of Python: loggers take logs there without waiting for the device."""

import contextlib
import functools
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from reference import assert_array
from runs import name_of

import lox
from lox.loggers import Logger, MemoryLogger, MultiLogger

RUN = name_of(7)


@functools.cache
def busy():
    """A compiled function whose result is not there yet when it returns."""

    @jax.jit
    def work(x):
        return lax.fori_loop(0, 50, lambda _, x: jnp.tanh(x @ x), x)[:1, 0]

    x = jnp.ones((400, 400))
    jax.block_until_ready(work(x))
    return functools.partial(work, x)


def pending(function):
    """What a function returns for an array that is not there yet, and so is not there either."""
    while True:
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            if not (array := function(busy()())).is_ready():
                return array


@contextlib.contextmanager
def gated():
    """An array, `[3.0]`, that is computed when the block is over."""
    passed, late, here = threading.Event(), [], threading.get_ident()

    def wait(x):
        if threading.get_ident() != here and not passed.wait(60):
            late.append("something in the block waited for the device")
        return np.float32([3])

    @jax.jit
    def computed(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((1,), np.float32), x)

    try:
        yield pending(computed)
    finally:
        passed.set()
    assert not late


# -- nothing waits for the device ----------------------------------------------------------------------------------


def test_no_call_waits_for_the_device():
    logger = MemoryLogger()
    with gated() as array:
        state = logger.init(7, rate=array)
        logger.log(state, lox.logdict({"x": array}, {"step": {"x": np.array([5])}}))
        logger.spool(lambda x: lox.log({"y": x})["y"] + 1, state)(array)
        assert not array.is_ready()
    logger.flush()
    assert_array(logger[state]["x"], np.float32([3]))
    assert_array(logger[state]["y"], np.float32([[3]]))
    assert logger[state].steps["step"]["x"].tolist() == [5]
    assert_array(logger.runs[state.name].config["rate"], np.float32([3]))


def test_several_loggers_do_not_wait_either():
    first, second = MemoryLogger(), MemoryLogger()
    logger = MultiLogger(first, second)
    with gated() as array:
        logger.log(logger.init(7), lox.logdict({"x": array}))
        assert not array.is_ready()
    logger.flush()
    assert_array(first[RUN]["x"], np.float32([3]))
    assert_array(second[RUN]["x"], np.float32([3]))


@pytest.mark.parametrize("size", [10, 10_000], ids=["small", "large"])
@pytest.mark.parametrize("ready", [False, True], ids=["while it is computed", "when it is there"])
def test_an_array_that_is_donated_later_is_logged_as_it_was(ready, size):
    @functools.partial(jax.jit, donate_argnums=0)
    def overwrite(x):
        return x * 0 - 1

    logger, state, x = MemoryLogger(), MemoryLogger().init(7), jnp.zeros(size)
    for i in range(5):
        x = jnp.where(busy()() > 2, 0, x) + 10 * i  # 0, 9, 19, 29, ...: what was overwritten is -1.
        if ready:
            x.block_until_ready()
        logger.log(state, lox.logdict({"x": x}))
        x = overwrite(x)
    logger.flush()
    np.testing.assert_array_equal(logger[RUN]["x"], np.repeat([0, 9, 19, 29, 39], size))


def test_what_numpy_changes_later_is_logged_as_it_was():
    logger, values = MemoryLogger(), np.zeros(1)
    with gated() as array:
        state = logger.init(7)
        logger.log(state, lox.logdict({"x": array}))
        for i in range(3):
            values[:] = i
            logger.log(state, lox.logdict({"values": values}))
    logger.flush()
    np.testing.assert_array_equal(logger[RUN]["values"], np.arange(3))


def test_a_failed_computation_is_raised_by_flush():
    @jax.jit
    def too_large(x):
        return jnp.broadcast_to(x, (2**22, 2**23, 1)), x

    @jax.jit
    def computed(x):  # JAX waits for the failed program's own results for ever.
        return x + 1

    logger = MemoryLogger()
    state = logger.init(7)
    for ready in (False, True):
        array = pending(lambda x: computed(too_large(x)[1]))
        while ready and not array.is_ready():
            pass
        logger.log(state, lox.logdict({"x": array}))
        logger.log(state, lox.logdict({"y": np.ones(1)}))
        with pytest.raises(jax.errors.JaxRuntimeError, match="Out of memory") as raised:
            logger.flush()
        assert any("MemoryLogger()" in note for note in raised.value.__notes__)
    assert logger[RUN]["y"].tolist() == [1, 1]


def test_logs_of_several_devices_keys_and_dtypes_are_read():
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("device",))
    data = {
        "sharded": jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("device"))),
        "copied": jax.device_put(jnp.arange(2.0), NamedSharding(mesh, PartitionSpec())),
        "other": jax.device_put(jnp.arange(3), devices[-1]),
        "small": jnp.arange(3, dtype=jnp.bfloat16),
        "keys": jax.random.split(jax.random.key(0), 2),
        "numbers": np.arange(2, dtype=np.float64),
    }
    logger = MemoryLogger()
    logger.log(logger.init(7), lox.logdict(data))
    logger.flush()
    logs = logger[RUN]
    assert len(devices) > 1
    for key, value in data.items():
        expected = jax.random.key_data(value) if key == "keys" else value
        assert logs[key].dtype == expected.dtype
        np.testing.assert_array_equal(logs[key], np.asarray(expected))
    assert logs["keys"].impl == "threefry2x32"


def test_a_nan_is_logged_where_jax_looks_for_nan():
    logger, nan = MemoryLogger(), busy()() * np.nan
    with jax.debug_nans(True):
        logger.log(logger.init(7), lox.logdict({"x": nan}))
    logger.flush()
    assert_array(logger[RUN]["x"], np.float32([np.nan]))


def test_logging_beside_taps_does_not_deadlock():
    logger, state = MemoryLogger(room=4), MemoryLogger().init(7)
    taken = []

    @jax.jit
    def step(x):
        return lox.log({"tapped": x + busy()()})["tapped"]

    streamed, tapped = lox.tap(step, taken.append), logger.tap(step, state)
    for i in range(40):
        logger.log(state, lox.logdict({"x": (tapped if i % 2 else streamed)(jnp.float32([i]))}))
    logger.flush()
    assert len(taken) == 20 and len(logger[RUN]["tapped"]) == 20
    np.testing.assert_allclose(logger[RUN]["x"], np.arange(40) + np.asarray(busy()()), rtol=1e-6)


# -- plain values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_plain_values_are_logged_as_lox_log_does(jit):
    data = {
        "float": 0.5,
        "int": 3,
        "bool": True,
        "complex": 1 + 2j,
        "numpy": np.arange(2.0),
        "scalar": np.float64(0.25),
        "small": np.int8(3),
        "jax": jnp.arange(3),
        "weak": jnp.asarray(2.0) * 1.0,
        "nested": {"a": {"b": 1}, "layers": [1.0, {"w": np.ones((2, 2))}]},
    }
    _, expected = lox.spool(lambda: lox.log(data, step=4, rate=np.float64(0.5)))()
    logger = MemoryLogger()
    jit(lambda: logger.log(logger.init(7), data, step=4, rate=np.float64(0.5)))()
    logger.flush()
    assert set(logger[RUN]) == set(expected)
    for key, value in expected.items():
        assert_array(logger[RUN][key], value)
        for name in ("step", "rate"):
            assert_array(logger[RUN].steps[name][key], expected.steps[name][key])


def test_a_loop_logs_an_event_at_each_step():
    logger, w = MemoryLogger(), jnp.float32(1)
    run = logger.init(7)
    for i in range(5):
        w = w * 2
        logger.log(run, {"w": w, "parameters": {"half": w / 2}}, step=i)
    logger.flush()
    assert_array(logger[RUN]["w"], np.float32([2, 4, 8, 16, 32]))
    assert_array(logger[RUN]["parameters/half"], np.float32([1, 2, 4, 8, 16]))
    assert_array(logger[RUN].steps["step"]["w"], np.arange(5, dtype=np.int32))


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_plain_values_of_each_batch_element_are_of_its_run(jit):
    logger = MemoryLogger()

    def finish(key, value, step):
        logger.log(logger.init(key), {"return": value, "constant": 1}, step=step)

    jit(jax.vmap(finish, (0, 0, None)))(jax.random.split(jax.random.key(0), 3), jnp.arange(3.0), 7)
    logger.flush()
    assert [logs["return"].tolist() for logs in map(logger.__getitem__, logger.runs)] == [[0.0], [1.0], [2.0]]
    for name in logger.runs:
        assert logger[name]["constant"].tolist() == [1]
        assert logger[name].steps["step"]["return"].tolist() == [7]


@pytest.mark.parametrize("collected", [False, True], ids=["one event", "logs of spool"])
def test_another_handler_around_does_not_get_what_a_logger_logs(collected):
    logger = MemoryLogger()

    def f(x):
        logs = lox.logdict({"x": x[None]}) if collected else {"x": x}
        logger.log(logger.init(7), logs, step=2)
        return lox.log({"y": x})["y"]

    _, logs = lox.spool(f)(jnp.float32(1))
    logger.flush()
    assert set(logs) == {"y"}
    assert logger[RUN]["x"].tolist() == [1]
    assert logger[RUN].steps["step"]["x"].tolist() == [2]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_counters_of_a_call_are_of_all_events_and_those_that_logs_have_stay(jit):
    def f(x):
        lox.log({"counted": x}, step=5)
        lax.scan(lambda x, _: (lox.log({"plain": x, "square": x * x})["plain"] + 1, None), x, length=3)
        lax.cond(x > 5, lambda: lox.log({"rare": x})["rare"], lambda: x)

    logger = MemoryLogger()

    def run(x):
        _, logs = lox.spool(f, unify=True)(x)
        logger.log(logger.init(7), logs, step=jnp.int32(2), epoch=1)

    jit(run)(0.0)
    jit(run)(9.0)
    logger.flush()
    steps = logger[RUN].steps
    assert steps["step"]["counted"].tolist() == [5, 5]
    assert steps["step"]["plain"].tolist() == [2] * 6
    assert steps["epoch"]["counted"].tolist() == [1, 1]
    assert steps["epoch"]["square"].tolist() == [1] * 6
    assert steps["epoch"]["rare"].tolist() == [1] and logger[RUN]["rare"].tolist() == [9.0]


def test_counters_of_a_call_have_the_batch_axes_of_the_logs():
    _, logs = lox.spool(jax.vmap(lambda x: lox.log({"x": x}, step=x)))(jnp.arange(3.0))
    logger = MemoryLogger()
    logger.log(logger.init(7), logs, epoch=4)
    logger.flush()
    assert_array(logger[RUN].steps["epoch"]["x"], np.full((1, 3), 4, np.int32))


def test_an_event_gets_the_counters_of_the_context_around():
    logger = MemoryLogger()
    with gated() as array, lox.context(step=3, prefix="train/"):
        logger.log(logger.init(7), {"loss": array}, epoch=1)
        logger.log(logger.init(7), lox.logdict({"collected": array}), epoch=1)
    logger.flush()
    logs = logger[RUN]
    assert_array(logs["train/loss"], np.float32([[3]]))
    assert logs.steps["step"]["train/loss"].tolist() == [3] and logs.steps["epoch"]["train/loss"].tolist() == [1]
    assert set(logs) == {"train/loss", "collected"} and set(logs.steps["step"]) == {"train/loss"}


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "data, steps",
    [
        (3.0, {}),
        ({1: 2.0}, {}),
        ({"x": "text"}, {}),
        ({"x": None}, {}),
        ({"x": object()}, {}),
        ({"x": np.array(["text"])}, {}),
        ({"x": 2**40}, {}),
        ({"x": np.longdouble(1)}, {}),
        ({"a/b": 1, "a": {"b": 2}}, {}),
        ({"x": 1}, {"step": np.zeros(2)}),
        ({"x": 1}, {"step": "one"}),
        ({"x": 1}, {"step": True}),
        ({"x": 1}, {"every": 2}),
    ],
)
def test_what_lox_log_refuses_a_logger_refuses(jit, data, steps):
    def failing(function):
        try:
            function()
        except (TypeError, ValueError) as error:
            return type(error), str(error)
        return None

    logger = MemoryLogger()
    expected = failing(lambda: lox.spool(lambda: lox.log(data, **steps))())
    found = failing(jit(lambda: logger.log(logger.init(7), data, **steps)))
    if expected is None:
        assert found is None
        return
    assert found[0] is expected[0] and issubclass(found[0], (lox.LogDataError, lox.LogValueError))
    assert found[1].partition(", at ")[0] == expected[1].partition(", at ")[0].replace("lox.log ", "logger.log ")
    assert "test_python_loops.py" in found[1]


@pytest.mark.parametrize("name", ["tags", "prefix", "where"])
def test_what_is_a_keyword_of_lox_log_is_no_counter(name):
    logger = MemoryLogger()
    with pytest.raises(lox.LogValueError, match=f"logger.log takes no {name}="):
        logger.log(logger.init(7), {"x": 1}, **{name: 1})


# -- the thread of a logger ----------------------------------------------------------------------------------------


class Listing(Logger):
    """Lists what is done on its thread."""

    def __init__(self, calls, **options):
        super().__init__(**options)
        self.calls = calls

    def write(self, run, logs):
        self.calls += logs["x"].tolist()

    def sync(self):
        self.calls.append("sync")

    def finish(self, run):
        self.calls.append("finish")


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_logger_that_nothing_refers_to_writes_what_waits_and_ends_its_thread():
    class Gone(Listing):
        pass

    def cell():
        logger, run = Gone(calls), logger_state
        for i in range(3):
            logger.log(run, {"x": i})
        return weakref.ref(logger)

    calls, logger_state = [], MemoryLogger().init(7)
    with gated() as array:
        logger = Gone(calls)
        logger.log(logger_state, {"x": array[0]})
        logger = weakref.ref(logger)
        assert logger() is not None and threads("Gone")  # What waits keeps it.
    references = [logger, *(cell() for _ in range(3))]
    for thread in threads("Gone"):
        thread.join(60)
    gc.collect()
    assert not threads("Gone") and not any(reference() for reference in references)
    done = [call for call in calls if call != "sync"]
    assert sorted(done, key=str) == sorted([3, *[0, 1, 2] * 3, *["finish"] * 4], key=str)
    assert calls[-1] == "finish"


def test_a_logger_in_a_cycle_ends_its_thread_when_it_is_collected():
    class Cyclic(Listing):
        pass

    calls = []
    logger = Cyclic(calls)
    logger.itself = logger
    logger.log(logger.init(7), {"x": 1})
    logger.flush()
    (thread,) = threads("Cyclic")
    logger = None
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert calls[0] == 1 and calls[-2:] == ["sync", "finish"]


@pytest.mark.integration
def test_what_a_logger_that_is_gone_was_given_is_written_at_the_end_of_the_process():
    code = (
        "import time, numpy as np, lox\n"
        "class Slow(lox.loggers.Logger):\n"
        "    def write(self, run, logs):\n"
        "        time.sleep(0.2)\n"
        "        print(logs['x'].tolist())\n"
        "    def finish(self, run):\n"
        "        print('finished')\n"
        "def main():\n"
        "    logger = Slow()\n"
        "    run = logger.init(7)\n"
        "    for i in range(3):\n"
        "        logger.log(run, {'x': i})\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["[0]", "[1]", "[2]", "finished"], done.stderr


def test_the_thread_takes_many_events_at_a_time():
    calls = []
    logger = Listing(calls)
    run = logger.init(np.uint32([0, 7]))
    for i in range(1000):
        logger.log(run, {"x": i})
    logger.flush()
    assert [call for call in calls if call != "sync"] == list(range(1000))
    assert calls.count("sync") < 500


def test_an_interrupt_while_a_call_waits_for_room_loses_nothing_that_was_logged():
    logger = MemoryLogger(room=1)
    run = logger.init(7)
    with gated() as array, pytest.raises(KeyboardInterrupt):
        logger.log(run, {"x": array[0]})
        logger.log(run, {"x": 1.0})
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        for _ in range(10):
            logger.log(run, {"y": 1})
    logger.flush()
    assert logger[RUN]["x"].tolist() == [3, 1]


def test_keys_stay_in_the_order_in_which_they_are_logged():
    logger = MemoryLogger()
    logger.log(logger.init(7), {"b": 1, "a": {"d": 2, "c": 3}}, step=1, epoch=2)
    logger.log(logger.init(8), lox.logdict({"b": np.ones(1), "a": jnp.ones(1)}))
    logger.flush()
    assert [list(logger[run]) for run in logger.runs] == [["b", "a/d", "a/c"], ["b", "a"]]
    assert list(logger[RUN].steps) == ["step", "epoch"]


# -- every k-th call -----------------------------------------------------------------------------------------------


def step(x):
    return lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=2)[0]


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("way", ["tap", "spool"])
@pytest.mark.parametrize("every", [1, 3])
def test_each_kth_call_is_logged_from_the_first(jit, way, every):
    logger, x, traced = MemoryLogger(), jnp.float32(0), []

    def f(x):
        traced.append(1)
        return step(x)

    logged = getattr(logger, way)(jit(f), logger.init(7), every_calls=every)
    for _ in range(8):
        x = logged(x)
    logger.flush()
    assert x == 16
    assert logger[RUN]["x"].tolist() == [2 * call + i for call in range(0, 8, every) for i in range(2)]
    if jit is jax.jit:
        assert len(traced) <= 2


@pytest.mark.parametrize("way", ["tap", "spool"])
@pytest.mark.parametrize("options", [{}, {"argnames": "x"}, {"argnames": "y"}], ids=str)
def test_a_handler_around_gets_the_same_of_a_call_that_is_skipped(way, options):
    def f(x):
        lox.log({"y": x})
        return step(x)

    def loop(every):
        logger = MemoryLogger()
        logged = getattr(logger, way)(f, logger.init(7), every_calls=every, **options)
        return lox.spool(lambda x: [logged(x + i) for i in range(4)])(0.0)[1]

    assert loop(3) == loop(1)


@pytest.mark.parametrize("way", ["tap", "spool"])
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, lambda f: lambda x: lax.map(f, x)])
def test_calls_that_jax_traces_cannot_be_counted(way, transform):
    logger = MemoryLogger()
    logged = getattr(logger, way)(lambda x: lox.log({"x": x})["x"].sum(), logger.init(7), every_calls=2)
    with pytest.raises(lox.LogValueError, match=r"(?s)every_calls= counts .* interval=") as raised:
        transform(logged)(jnp.ones(3))
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("way", ["tap", "spool"])
@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
def test_a_number_of_calls_is_a_positive_integer(way, count):
    logger = MemoryLogger()
    with pytest.raises(lox.LogValueError, match="every_calls must be a positive integer"):
        getattr(logger, way)(step, logger.init(7), every_calls=count)


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lox.spool])
@pytest.mark.parametrize("way", ["tap", "log"])
def test_a_traced_program_logs_to_a_run_whose_config_is_not_there_yet(transform, way):
    logger = MemoryLogger()
    with gated() as late:
        run = logger.init(7, rate=late, other=jax.random.key(3))

        def logged(x):
            if way == "log":
                logger.log(run, {"x": x})
                return x
            return logger.tap(lambda x: lox.log({"x": x})["x"], run)(x)

        transform(logged)(1.0)
    logger.flush()
    assert [logger[name]["x"].tolist() for name in logger.runs] == [[1.0]]
