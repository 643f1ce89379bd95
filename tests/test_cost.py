"""What lox costs where no clock is needed to tell: instructions, memory, calls of the host."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from benchmarks import programs, training
from lox import _compat
from lox._logs_in import jaxprs_in

pytestmark = pytest.mark.optimized


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):  # The programs are written as people write them.
        yield


@pytest.mark.parametrize(
    "make",
    [*programs.ALL, *(pytest.param(make, marks=pytest.mark.exhaustive) for make in training.ALL)],
    ids=lambda make: make.__name__,
)
def test_a_spooled_program_is_as_large_as_the_one_written_by_hand(make):
    case = make()
    case.check()
    spooled, by_hand = (jax.jit(fun).lower(*case.args).compile() for fun in (case.spooled, case.by_hand))
    instructions = [compiled.as_text().count(" = ") for compiled in (spooled, by_hand)]
    temporary = [compiled.memory_analysis().temp_size_in_bytes for compiled in (spooled, by_hand)]
    assert instructions[0] <= 1.02 * instructions[1]
    assert temporary[0] <= 1.02 * temporary[1]


def space(length, options):
    """The bytes of temporaries and outputs of a spooled scan."""

    def step(x, _):
        x = jnp.sin(x) + 1
        lox.log({"x": x})
        return x, None

    spooled = lox.spool(lambda x: jax.lax.scan(step, x, length=length)[0], **options)
    analysis = jax.jit(spooled).lower(1.0).compile().memory_analysis()
    return analysis.temp_size_in_bytes + analysis.output_size_in_bytes


@pytest.mark.parametrize("how", [{"reduce": "mean"}, {"reduce": "max"}, {"reduce": "last"}])
def test_memory_does_not_grow_with_the_length_of_a_loop(how):
    assert space(1_000_000, how) == space(10_000, how)


def test_memory_grows_with_the_events_that_are_kept():
    assert space(1_000_000, {"interval": 10_000}) == space(10_000, {"interval": 100})
    assert space(1_000_000, {"interval": 100}) > 10 * space(10_000, {"interval": 100})


@jax.jit
def _sorted(x):
    y = jnp.tanh(x @ x)
    lox.log({"smallest": jnp.sort(y.ravel())[:3], "y": y[0]})
    return y / 2


def _logs_what_is_large(size):
    """A scan that logs sums, and what a jitted function in it sorts."""

    def step(x, _):
        x = _sorted(x)
        total = x.sum()
        lox.log({"argsort": jnp.argsort(x.ravel())[0], "total": total})
        lox.log({"argsort": jnp.int32(1)})
        return x, total

    return lambda x: jax.lax.scan(step, x, None, length=7)


def _primitives(jaxpr, skipped="cond"):
    """The names of all primitives in a jaxpr that are not in one of this name."""
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        if eqn.primitive.name != skipped:
            for inner in map(_compat.open_jaxpr, jaxprs_in(eqn.params)):
                yield from _primitives(inner, skipped)


@pytest.mark.parametrize(
    ("size", "interval", "is_skipped"), [(80, 3, True), (80, 1, False), (80, 2, False), (4, 3, False)]
)
def test_what_only_skipped_logs_need_is_not_computed(size, interval, is_skipped):
    """Where it is much, and where each iteration may be skipped: two events of one key are never two skipped."""
    fun, x = _logs_what_is_large(size), jnp.eye(size) + 0.01
    spooled = lox.spool(fun, interval=interval)
    outside = set(_primitives(jax.make_jaxpr(spooled)(x).jaxpr))
    assert {"scan", "tanh", "reduce_sum"} < outside
    assert ("sort" in outside) is not is_skipped
    (out, found), (expected, logs) = jax.jit(spooled)(x), jax.jit(lox.spool(fun))(x)
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    for key, values in logs.items():
        np.testing.assert_array_equal(found[key], values[::interval])


@pytest.mark.parametrize("ordered", [False, True])
def test_side_effects_between_logs_that_are_skipped_happen_in_every_iteration(ordered):
    seen, printed = [], []

    def f(x):
        lox.log({"n": jnp.float32(-1)})

        def body(c, i):
            jax.debug.callback(lambda: seen.append(1), ordered=ordered)
            large = jnp.sin(c)
            jax.debug.callback(lambda i, value: printed.append((int(i), float(value))), i, large[0, 0], ordered=ordered)
            lox.log({"n": jnp.sum(large)})
            return c + 1, None

        return jax.lax.scan(body, x, jnp.arange(6))[0]

    x = jnp.ones((100, 100))
    out, logs = jax.jit(lox.spool(f, interval=3))(x)
    jax.effects_barrier()
    np.testing.assert_array_equal(out, 7 * x)
    sums = [1e4 * math.sin(number) for number in range(1, 7)]
    np.testing.assert_allclose(logs["n"], [-1, *sums][::3], rtol=1e-5)
    assert len(seen) == 6
    np.testing.assert_allclose(sorted(printed), [(i, math.sin(1 + i)) for i in range(6)], rtol=1e-5)


@functools.partial(jax.jit, static_argnums=1)
def _of_two_calls(x, number):
    """Logs in a jitted function that calls another; one result is a value that only logs need, one an argument."""
    spectrum = jnp.sort(jnp.cos(x).ravel())
    lox.log({f"least/{number}": spectrum[0]})
    lox.log({f"most/{number}": spectrum[-1], f"itself/{number}": x[0]})
    return _inner(x), spectrum, x, 3.0


@jax.jit
def _inner(x):
    lox.log({"each": jnp.sort(x, axis=1)[0, 0]})
    return jnp.tanh(x) / 2


def test_what_only_skipped_logs_need_is_in_some_parts_that_share_nothing():
    """In one conditional for each, so that no array waits for that of another, and nothing is computed twice."""

    def fun(x):
        def step(x, _):
            for number in range(12):
                x, spectrum, same, constant = _of_two_calls(x, number)
                lox.log({f"later/{number}": jnp.sort(spectrum + same[0, 0] + constant)[2]})
            return x, None

        return jax.lax.scan(step, x, None, length=7)

    x = jnp.cos(jnp.arange(1600.0)).reshape(40, 40)
    spooled = lox.spool(fun, interval=15)
    jaxpr = jax.make_jaxpr(spooled)(x).jaxpr
    names = list(_primitives(jaxpr, None))
    assert 3 <= names.count("cond") <= 5 and names.count("sort") == 36
    assert "sort" not in _primitives(jaxpr)
    (out, found), (expected, logs) = jax.jit(spooled)(x), jax.jit(lox.spool(fun))(x)
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    assert list(found) == list(logs)
    for key, values in logs.items():
        np.testing.assert_array_equal(found[key], values[::15])


@pytest.mark.parametrize("through_jit", [False, True])
def test_skipped_logs_compute_again_what_the_program_need_not_keep_in_memory(through_jit):
    """They take `y`, which is there in any case, and not what operations on its elements make of it."""

    def scaled(x):
        y = jnp.tanh(x @ x)
        scaled = (y - y.mean()) / (jnp.abs(y).max() + 1)
        lox.log({"smallest": jnp.sort(scaled.ravel())[0]})
        return scaled, y

    def fun(x):
        call = jax.jit(scaled) if through_jit else scaled
        return jax.lax.scan(lambda x, _: (call(x)[0] @ call(x)[1], None), x, None, length=6)

    x = jnp.cos(jnp.arange(6400.0)).reshape(80, 80)
    spooled = lox.spool(fun, interval=3)
    (scan,) = [eqn for eqn in jax.make_jaxpr(spooled)(x).eqns if eqn.primitive.name == "scan"]
    body = scan.params["jaxpr"].eqns
    sources = {var: eqn.primitive.name for eqn in body for var in eqn.outvars}
    taken = {
        sources[var] for eqn in body if eqn.primitive.name == "cond" for var in eqn.invars if var.aval.size == x.size
    }
    assert taken == {"jit" if through_jit else "tanh"}
    of_call = [eqn.params["jaxpr"].jaxpr for eqn in body if eqn.primitive.name == "jit" and through_jit]
    for call in of_call:
        sources = {var: eqn.primitive.name for eqn in call.eqns for var in eqn.outvars}
        assert all(sources[var] in ("tanh", "div") for var in call.outvars if var.aval.size == x.size)
    (out, found), (expected, logs) = jax.jit(spooled)(x), jax.jit(lox.spool(fun))(x)
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    np.testing.assert_allclose(found["smallest"], logs["smallest"][::3], rtol=1e-6)


def test_derivatives_of_logs_that_are_kept_are_right_where_others_are_not_computed():
    fun, x = _logs_what_is_large(80), jnp.eye(80) + 0.01
    loss = lambda spool: lambda x: sum(jnp.sum(value) for value in spool(x).values())  # noqa: E731
    kept = jax.grad(loss(lambda x: lox.spool(fun, argnames=["smallest", "y"], interval=3)(x)[1]))
    expected = jax.grad(
        loss(lambda x: {key: value[::3] for key, value in lox.spool(fun, argnames=["smallest", "y"])(x)[1].items()})
    )
    np.testing.assert_allclose(jax.jit(kept)(x), jax.jit(expected)(x), rtol=1e-6)
    spooled = lox.spool(fun, interval=3)
    batched, alone = jax.jit(lambda x: (jax.vmap(spooled)(jnp.stack([x, x / 2]))[1], spooled(x / 2)[1]))(x)
    for key, values in alone.items():
        np.testing.assert_allclose(batched[key][1], values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("buffer", [1, 7, 64, 1000])
def test_a_tap_calls_the_host_once_for_each_full_buffer(buffer):
    calls = []

    def f(x):
        def step(x, _):
            lox.log({"x": x})
            return x + 1, None

        return jax.lax.scan(step, x, length=500)[0]

    jax.jit(lox.tap(f, calls.append, buffer=buffer))(0.0)
    lox.flush()
    assert sum(len(logs["x"]) for logs in calls) == 500
    assert len(calls) <= math.ceil(1.1 * math.ceil(500 / buffer))


def test_a_scan_that_does_not_fill_a_buffer_twice_shares_it_with_the_logs_before():
    calls = []

    def f(x):
        lox.log({"x": x})

        def step(x, _):
            lox.log({"x": x})
            return x + 1, None

        return jax.lax.scan(step, x, length=13)[0]

    jax.jit(lox.tap(f, calls.append, buffer=10))(0.0)
    lox.flush()
    assert [len(logs["x"]) for logs in calls] == [10, 4]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [10_000, 10_007, 9_999])
def test_a_buffer_does_not_copy_what_a_scan_returns(length, reverse):
    """Whether or not the buffer divides the length, which may be prime."""

    def f(xs):
        def step(x, y):
            x = 0.5 * x + y
            lox.log({"x": x.mean()})
            return x, x

        return jax.lax.scan(step, jnp.zeros(100), xs, reverse=reverse)

    memory = []
    for function in (lox.tap(f, lambda logs: None, buffer=64), f):
        analysis = jax.jit(function).lower(jnp.ones((length, 100))).compile().memory_analysis()
        memory.append(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)
    assert memory[0] <= 1.02 * memory[1]


@pytest.mark.parametrize("buffer", [1, 100])
def test_a_logger_gets_all_lanes_in_one_call(buffer):
    calls = []

    class Counting(lox.loggers.MemoryLogger):
        def _deliver(self, act, *args):
            calls.append(act)
            super()._deliver(act, *args)

    def run(key, x):
        def step(x, _):
            lox.log({"x": x})
            return x + 1, None

        return logger.tap(lambda x: jax.lax.scan(step, x, length=200)[0], logger.init(key), buffer=buffer)(x)

    with Counting() as logger:
        jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 16), jnp.arange(16.0))
        lox.flush()
        assert len(calls) == 200 / buffer
        logger.flush()
        assert [len(logger[run]["x"]) for run in logger.runs] == [200] * 16


def step(x, _):
    lox.log({"x": x})
    return x + 1, None


def log_of(x):
    lox.log({"x": x})
    return x + 1


def log_before(x):
    lox.log({"x": x - 1})
    return x + 1


def below_ten(x):
    return x < 10


EAGER = {
    "logs": lambda x: log_of(log_before(log_of(x))),
    "scan": lambda x: jax.lax.scan(step, x, length=10)[0],
    "reverse scan": lambda x: jax.lax.scan(step, x, length=10, reverse=True)[0],
    "while_loop": lambda x: jax.lax.while_loop(below_ten, log_of, x),
    "cond": lambda x: jax.lax.cond(x > 0, log_of, log_before, x),
    "scan and logs": lambda x: log_of(jax.lax.scan(step, log_of(x), length=10)[0]),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("program", EAGER)
@pytest.mark.parametrize(
    "handled",
    [
        lambda f: lambda x: lox.spool(f, max_iters=10)(x[0]),
        lambda f: lambda x: lox.spool(f, reduce="mean")(x[0]),
        lambda f: lambda x: lox.tap(f, print_nothing)(x[0]),
        lambda f: lambda x: lox.tap(f, print_nothing, buffer=4)(x[0]),
        lambda f: lambda x: lox.tap(f, print_nothing, interval=2)(x[0]),
        lambda f: lambda x: lox.tap(f, print_nothing, interval=2, buffer=4)(x[0]),
        lambda f: lambda x: lox.keep(lox.spool(lox.tap(f, print_nothing), max_iters=10), tags="none")(x[0]),
        lambda f: jax.vmap(lox.spool(f, max_iters=10)),
        lambda f: lox.spool(jax.vmap(f), max_iters=10),
        lambda f: jax.vmap(lox.tap(f, print_nothing)),
        lambda f: jax.vmap(lox.tap(f, print_nothing, interval=2, buffer=4)),
        lambda f: lambda x: jax.jvp(lox.spool(f, max_iters=10), [x[0]], [x[0]]),
    ],
)
def test_what_is_compiled_for_an_eager_call_serves_the_next_one(program, handled, caplog):
    function, x = handled(EAGER[program]), jnp.arange(1.0, 4.0)

    def compiled():
        caplog.clear()
        with jax.log_compiles():
            jax.block_until_ready(function(x))
            lox.flush()
        return [record.message for record in caplog.records if "XLA compilation" in record.message]

    jax.clear_caches()
    assert compiled()
    assert not compiled()


def print_nothing(*_):
    """A callback."""


def operations(jaxpr):
    """How many there are in a program, those in its loops and branches included."""
    params = jax.tree.leaves([equation.params for equation in jaxpr.eqns], is_leaf=lambda value: hasattr(value, "eqns"))
    return len(jaxpr.eqns) + sum(operations(value) for value in params if hasattr(value, "eqns"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("how", [{}, {"reduce": "mean"}, {"interval": 3}, {"argnames": ()}], ids=str)
@pytest.mark.parametrize("one_key", [True, False])
@pytest.mark.parametrize("around", ["nothing", "scan", "cond", "vmap of cond", "grad of scan"])
def test_each_further_log_call_adds_as_many_operations_as_the_one_before(how, one_key, around):
    def added(sites):
        def f(x):
            for site in range(sites):
                lox.log({f"x{0 if one_key else site}": x})
            return x + 1

        wrapped = {
            "nothing": f,
            "scan": lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=10)[0],
            "cond": lambda x: jax.lax.cond(x > 0, f, f, x),
            "vmap of cond": lambda x: jax.vmap(lambda x: jax.lax.cond(x > 0, f, f, x))(jnp.full(3, x)),
            "grad of scan": jax.grad(lambda x: jax.lax.scan(lambda x, _: (f(x) * x, None), x, length=10)[0]),
        }[around]
        return operations(jax.make_jaxpr(lox.spool(wrapped, **how))(1.0).jaxpr)

    few, some, many = added(9), added(18), added(36)
    assert many - some == 2 * (some - few)


def test_a_handler_runs_the_body_of_a_loop_once(monkeypatch):
    """What a loop logs is told by its log calls: a reduction need not run it to see what it will hold."""
    ran = []
    as_fun = _compat.as_fun

    def counted(jaxpr):
        def run(*args):
            ran.extend(eqn for eqn in _compat.open_jaxpr(jaxpr).eqns if eqn.primitive.name == "sin")
            return as_fun(jaxpr)(*args)

        return run

    def f(xs):
        def step(total, x):
            lox.log({"total": total, "x": x}, step=x)
            return jnp.sin(total) + x, None

        return jax.lax.scan(step, 0.0, xs)[0]

    monkeypatch.setattr(_compat, "as_fun", counted)
    for options, handlers in (({}, 1), ({"reduce": "mean"}, 1), ({"reduce": {"total": "first"}}, 2)):
        ran.clear()
        jax.make_jaxpr(lox.spool(f, **options))(jnp.zeros(3))
        assert len(ran) == handlers, options


def test_a_tap_on_one_device_calls_the_host_directly():
    def f(x):
        return lox.log({"x": x})["x"]

    arrived = []
    tapped = jax.jit(lox.tap(f, arrived.append))
    text = tapped.lower(jnp.float32(2)).as_text()
    assert text.count("xla_ffi_python_cpu_callback") == 1 and "sharding" not in text
    tapped(jnp.float32(2))
    lox.flush()
    assert [logs["x"].tolist() for logs in arrived] == [[2.0]]


def test_events_before_a_loop_count_where_its_skipped_events_are_not_computed():
    def f(x):
        lox.log({"n": x.sum()})
        step = lambda x, i: (x, lox.log({"n": jnp.sum(jnp.abs(x * i))}) and None)  # noqa: E731
        return jax.lax.scan(step, x, jnp.arange(1.0, 6.0))[0]

    spooled = lox.spool(f, interval=3)
    assert "cond" in _primitives(jax.make_jaxpr(spooled)(jnp.ones(10_000)).jaxpr, None)
    assert jax.jit(spooled)(jnp.ones(10_000))[1]["n"].tolist() == [10_000, 30_000]


def test_keys_of_one_log_call_are_skipped_together_however_much_each_computes():
    def f(x):
        def step(x, i):
            lox.log({"a": jnp.sum(jnp.abs(x * i)), "b": jnp.max(jnp.abs(x) * i)})
            return x, None

        return jax.lax.scan(step, x, jnp.arange(6.0))[0]

    _, logs = jax.jit(lox.spool(f, interval=3))(jnp.ones(200_000))
    assert (logs["a"].tolist(), logs["b"].tolist()) == ([0, 600_000], [0, 3])


def test_skipped_logs_take_no_axes_of_size_1():
    """Compilers simplify those away, but not from what a conditional takes; a barrier keeps them from coming back."""

    def fun(x):
        def step(x, _):
            x = jnp.sin(x @ x)
            deviation = x.std(1, keepdims=True)
            lox.log({"smallest": jnp.sort((x / deviation).ravel())[0]})
            return x / deviation, None

        return jax.lax.scan(step, x, None, length=6)

    x = jnp.cos(jnp.arange(6400.0)).reshape(80, 80)
    spooled = lox.spool(fun, interval=3)
    (scan,) = [eqn for eqn in jax.make_jaxpr(spooled)(x).eqns if eqn.primitive.name == "scan"]
    body = scan.params["jaxpr"].eqns
    sources = {var: eqn.primitive.name for eqn in body for var in eqn.outvars}
    (cond,) = [eqn for eqn in body if eqn.primitive.name == "cond"]
    taken = {var.aval.shape: sources.get(var) for var in cond.invars if var.aval.size >= 80}
    assert set(taken) == {(80,), (80, 80)} and taken[(80,)] == "optimization_barrier"

    def derivative(fun):
        return jax.jit(jax.vmap(jax.grad(lambda x: fun(x)[0][0].sum())))

    xs = jnp.stack([x, x + 1])
    np.testing.assert_array_equal(derivative(spooled)(xs), derivative(lox.spool(fun))(xs))
    (out, found), (expected, logs) = jax.jit(spooled)(x), jax.jit(lox.spool(fun))(x)
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    np.testing.assert_array_equal(found["smallest"], logs["smallest"][::3])
