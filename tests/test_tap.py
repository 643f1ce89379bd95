"""`lox.tap`: what arrives on the host is what happens, in the order in which it happens."""

import contextlib
import functools
import gc
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import Mesh, PartitionSpec
from reference import Journal, assert_array

import lox
from lox import _channel
from lox._logs_in import equations

P = PartitionSpec
X = 0.7
XS = np.float32([0.3, 1.7, 2.9])


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_tapped_function_takes_arguments_by_name(around):
    arrived = []
    around(lox.tap(lambda x, *, y: lox.log({"sum": x + y}), arrived.append))(1.0, y=2.0)
    lox.flush()
    assert_array(arrived[0]["sum"], np.float32([3]))


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves an error for the next."""
    yield
    lox.flush()


def plain(log, x):
    """A scan, a branch and two loops of unknown length, with logs of several keys."""
    log({"in": x}, i=-1)
    for i in range(5):
        log({"x": x}, i=i)
        log({"constant": 1.0})
        x = np.float32(np.sin(x) + 1)
        if x > 1.5:
            log({"large": x, "x": -x}, i=i)
        count = 0
        while count < int(x * 2):
            log({"count": count, "inner": x})
            count += 1
    log({"out": x})
    return x


def program(x):
    lox.log({"in": x}, i=-1)

    def step(x, i):
        lox.log({"x": x}, i=i)
        lox.log({"constant": 1.0})
        x = jnp.sin(x) + 1
        lax.cond(x > 1.5, lambda x: lox.log({"large": x, "x": -x}, i=i), lambda x: {"large": x, "x": -x}, x)
        bound = (x * 2).astype(int)
        lax.while_loop(lambda n: n < bound, lambda n: lox.log({"count": n, "inner": x})["count"] + 1, 0)
        return x, None

    x, _ = lax.scan(step, x, jnp.arange(5))
    lox.log({"out": x})
    return x


def tapped(make, **options):
    """What `make(tap)` returns, and what arrived."""
    arrived = []
    out = make(lambda f: lox.tap(f, arrived.append, **options))
    jax.block_until_ready(out)
    lox.flush()
    return out, arrived


def happened(arrived, lane=None):
    """The events by key and the counters of those that have some, of one lane of a batch."""
    events, counters = {}, {}
    for logs in arrived:
        assert logs.data
        for key, value in logs.items():
            assert isinstance(value, np.ndarray)
            mask = logs.mask.get(key, np.ones(value.shape[: 1 if lane is None else 2], bool))
            if key in logs.mask:
                assert not mask.all() and mask.reshape(len(mask), -1).any(1).all()
            steps = {name: values[key] for name, values in logs.steps.items() if key in values}
            if lane is not None:
                value, mask = value[:, lane], mask[:, lane]
                steps = {name: step[:, lane] for name, step in steps.items()}
            events.setdefault(key, []).extend(value[mask])
            for name, step in steps.items():
                counters.setdefault(name, {}).setdefault(key, []).extend(step[mask])
    return events, counters


def assert_arrived(arrived, *args, lane=None, run=plain, interval=1):
    journal = Journal()
    run(journal.log, *args)
    events, counters = happened(arrived, lane)
    assert sorted(key for key in events if events[key]) == sorted(journal.events)
    for key, values in journal.events.items():
        np.testing.assert_allclose(events[key], values[::interval], rtol=1e-5)
    for name, by_key in journal.steps.items():
        for key, values in by_key.items():
            assert [int(step) for step in counters[name][key]] == [int(step) for step in values][::interval]


buffers = pytest.mark.parametrize("buffer", [1, 2, 7, 1000])

ONE_LANE = {
    "eager": lambda tap: tap(program)(X),
    "tap of jit": lambda tap: tap(jax.jit(program))(X),
    "jit of tap": lambda tap: jax.jit(tap(program))(X),
    "tap of jit of jit": lambda tap: tap(jax.jit(lambda x: jax.jit(program)(x)))(X),
    "tap of checkpoint": lambda tap: tap(jax.checkpoint(program))(X),
    "strip of tap": lambda tap: lox.strip(tap(program))(X),
    "tap of spool": lambda tap: tap(lox.spool(program, max_iters=4, unify=True, keep_logs=True))(X),
}

DERIVATIVES = {
    "tap of grad": lambda tap, f: tap(jax.grad(f))(X),
    "grad of tap": lambda tap, f: jax.grad(tap(f))(X),
    "grad of jit of tap": lambda tap, f: jax.grad(jax.jit(tap(f)))(X),
    "jit of grad of jit of tap": lambda tap, f: jax.jit(jax.grad(jax.jit(tap(f))))(X),
    "tap of grad of checkpoint": lambda tap, f: tap(jax.grad(jax.checkpoint(f)))(X),
    "grad of checkpoint of tap": lambda tap, f: jax.grad(jax.checkpoint(tap(f)))(X),
    "tap of linearize": lambda tap, f: tap(lambda x: jax.linearize(f, x)[1](1.0))(X),
    "tap of vjp": lambda tap, f: tap(lambda x: jax.vjp(f, x)[1](1.0)[0])(X),
    "jvp of tap": lambda tap, f: jax.jvp(tap(f), (X,), (1.0,))[1],
}

LANES = {
    "tap of vmap": lambda tap, f: tap(jax.vmap(f))(XS),
    "vmap of tap": lambda tap, f: jax.vmap(tap(f))(XS),
    "vmap of jit of tap": lambda tap, f: jax.vmap(jax.jit(tap(f)))(XS),
    "jit of vmap of tap of jit": lambda tap, f: jax.jit(jax.vmap(tap(jax.jit(f))))(XS),
    "tap of jit of vmap of jit": lambda tap, f: tap(jax.jit(jax.vmap(jax.jit(f))))(XS),
}


@pytest.mark.covering(1)
@buffers
@pytest.mark.parametrize("composition", ONE_LANE)
def test_what_happens_arrives_in_order(composition, buffer):
    out, arrived = tapped(ONE_LANE[composition], buffer=buffer)
    assert_array(out[0] if isinstance(out, tuple) else out, plain(lambda data, **_: None, np.float32(X)), 1e-5)
    assert_arrived(arrived, np.float32(X))
    one_by_one = tapped(ONE_LANE[composition])[1]
    assert len(arrived) == -(-len(one_by_one) // buffer)


@pytest.mark.covering(1)
@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize("composition", DERIVATIVES)
def test_each_forward_event_arrives_once_and_derivatives_stay(composition, buffer):
    def f(x):
        return program(lax.stop_gradient(x)) * 0 + smooth(x)

    slope, arrived = tapped(lambda tap: DERIVATIVES[composition](tap, f), buffer=buffer)
    assert_array(slope, jax.grad(smooth)(X), 1e-5)
    assert_arrived([logs.filter(lambda key: not key.startswith("smooth")) for logs in arrived if outside(logs)], X)
    events, _ = happened([logs.filter(lambda key: key.startswith("smooth")) for logs in arrived if inside(logs)])
    assert len(events["smooth/constant"]) == 4
    np.testing.assert_allclose(events["smooth/x"], [X, *iterate(np.sin, X, 3)], rtol=1e-5)


def outside(logs):
    return any(not key.startswith("smooth") for key in logs)


def inside(logs):
    return any(key.startswith("smooth") for key in logs)


def iterate(function, x, times):
    found = []
    for _ in range(times):
        x = function(x)
        found.append(x)
    return found


def smooth(x):
    def step(x, _):
        lox.log({"smooth/x": x, "smooth/constant": 2.0})
        return jnp.sin(x), None

    return lax.scan(step, x, length=4)[0]


@pytest.mark.covering(1)
@buffers
@pytest.mark.parametrize("composition", LANES)
def test_each_lane_gets_its_own_events_and_all_lanes_one_call(composition, buffer):
    _, arrived = tapped(lambda tap: LANES[composition](tap, program), buffer=buffer)
    for lane, x in enumerate(XS):
        assert_arrived(arrived, x, lane=lane)


def test_one_event_of_many_lanes_is_one_call():
    _, arrived = tapped(lambda tap: jax.vmap(tap(lambda x: lox.log({"x": x})["x"]))(jnp.arange(64.0)))
    (logs,) = arrived
    assert_array(logs["x"], np.arange(64.0)[None])


@pytest.mark.covering(1)
@pytest.mark.parametrize("buffer", [1, 4])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_every_kth_event_of_a_key_arrives(around, buffer):
    _, arrived = tapped(lambda tap: around(tap(program))(X), interval=3, buffer=buffer)
    assert_arrived(arrived, np.float32(X), interval=3)
    _, arrived = tapped(lambda tap: around(tap(jax.vmap(program)))(XS), interval=3, buffer=buffer)
    for lane, x in enumerate(XS):
        assert_arrived(arrived, x, lane=lane, interval=3)


def test_what_is_skipped_or_not_selected_calls_nothing():
    calls = []
    f = lambda xs: lax.scan(lambda c, x: (lox.log({"x": x})["x"], None), 0.0, xs)[0]  # noqa: E731
    lox.tap(f, calls.append, interval=10)(jnp.arange(25.0))
    lox.flush()
    assert [logs["x"].item() for logs in calls] == [0.0, 10.0, 20.0]
    with pytest.warns(lox.SelectionWarning, match="'y' in argnames= of lox.tap"):
        text = jax.jit(lox.tap(f, calls.append, argnames="y")).lower(jnp.arange(25.0)).as_text()
    assert text == jax.jit(f).lower(jnp.arange(25.0)).as_text().replace("jit__lambda_", "jit__lambda_")


def test_a_buffer_hands_over_so_many_logs_at_a_time():
    f = lambda xs: lax.scan(lambda c, x: (lox.log({"x": x})["x"], None), 0.0, xs)[0]  # noqa: E731
    _, arrived = tapped(lambda tap: tap(f)(jnp.arange(10.0)), buffer=4)
    assert [logs["x"].tolist() for logs in arrived] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    _, arrived = tapped(lambda tap: tap(lambda xs: jax.vmap(f)(xs))(jnp.arange(6.0).reshape(2, 3)), buffer=2)
    assert [logs["x"].tolist() for logs in arrived] == [[[0, 3], [1, 4]], [[2, 5]]]


def two_scans(x):
    lox.log({"a": x})

    def inner(c, y):
        lox.log({"b": c + y}, step=y)
        lox.log({"other": y}, tags="unheard")
        lox.log({"a": c})
        return c + y, (c, y)

    def outer(c, ys):
        c, inside = lax.scan(inner, c, ys, reverse=True)
        return c / 2, (lox.log({"c": c})["c"], inside)

    x, out = lax.scan(outer, x, jnp.arange(33.0).reshape(11, 3))
    x, _ = jax.jit(lambda x: lax.scan(lambda c, _: (lox.log({"a": c})["a"] + 1, None), x, length=7))(x)
    return lox.log({"c": x})["c"], out


@pytest.mark.covering(1)
@pytest.mark.parametrize("buffer", [2, 3, 7, 14, 20, 30, 1000])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_sent_many_iterations_at_a_time(buffer, reverse):
    scan = functools.partial(lax.scan, reverse=reverse)

    def f(x):
        return scan(lambda c, y: (two_scans(c + y)[0] / 100, y), x, jnp.arange(5.0))

    expected, one_by_one = tapped(lambda tap: tap(f)(1.0), argnames=["a", "b", "c"])
    out, arrived = tapped(lambda tap: jax.jit(tap(f))(1.0), argnames=["a", "b", "c"], buffer=buffer)
    for got, want in zip(jax.tree.leaves(out), jax.tree.leaves(expected), strict=True):
        assert_array(got, want, 1e-6)
    for key in ("a", "b", "c"):
        values, wanted = ([logs[key] for logs in each if key in logs] for each in (arrived, one_by_one))
        assert_array(np.concatenate(values), np.concatenate(wanted), 1e-6)
    steps, wanted = ([logs.steps["step"]["b"] for logs in each if "b" in logs] for each in (arrived, one_by_one))
    assert_array(np.concatenate(steps), np.concatenate(wanted))
    assert max(sum(map(len, logs.values())) for logs in arrived) <= buffer
    assert len(arrived) < len(one_by_one) / max(buffer / 3, 1.2) + 2


@pytest.mark.covering(1)
@pytest.mark.parametrize("unroll", [1, 3, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [8, 11])
def test_what_a_scan_takes_and_returns_is_cut_like_its_logs(length, reverse, unroll):
    def f(x, ys, keys):
        def step(c, inputs):
            y, key = inputs
            lox.log({"x": c + y, "bits": jax.random.bits(key)})
            return c + y, (c, key)

        return lax.scan(step, x, (ys, keys), reverse=reverse, unroll=unroll)

    args = 1.0, jnp.arange(1.0, length + 1), jax.random.split(jax.random.key(0), length)
    (c, (before, keys)), arrived = tapped(lambda tap: tap(f)(*args), buffer=4)
    expected, (all_before, all_keys) = lox.strip(f)(*args)
    assert c == expected
    assert_array(before, all_before)
    assert (keys == all_keys).all()
    logs = lox.spool(f)(*args)[1]
    assert [len(each["x"]) for each in arrived] == [4] * (length // 4) + [3] * (length % 4 > 0)
    for key in logs:
        assert_array(np.concatenate([each[key] for each in arrived]), logs[key])


@pytest.mark.parametrize("length, sizes", [(1000, [250] * 4), (1023, [256, 256, 256, 255]), (512, [256] * 2)])
def test_a_long_scan_asks_for_nothing_at_each_iteration(length, sizes):
    def f(x):
        return lax.scan(lambda c, _: (lox.log({"x": c})["x"] + 1, None), x, length=length)[0]

    def conditions(jaxpr):
        return [eqn for eqn in equations(jaxpr) if eqn.primitive.name == "cond"]

    _, arrived = tapped(lambda tap: tap(f)(0.0), buffer=256)
    assert [len(logs["x"]) for logs in arrived] == sizes
    assert conditions(jax.make_jaxpr(lox.tap(f, print, buffer=256))(0.0)) == []
    # What may not happen is counted at each iteration, so that the buffer is full when it is sent.
    g = lambda x: lax.cond(x > 0, f, lambda x: x, x)  # noqa: E731
    maybe = lambda x: lax.scan(lambda c, _: (g(c), None), x, length=length)[0]  # noqa: E731
    assert conditions(jax.make_jaxpr(lox.tap(maybe, print, buffer=256 * length))(0.0))


def test_a_scan_whose_logs_may_not_happen_is_sent_when_the_buffer_is_full():
    def f(xs):
        def step(c, x):
            lax.cond(x > 1, lambda: lox.log({"x": x}), lambda: {"x": x})
            return c, None

        return lax.scan(step, 0, xs)[0]

    xs = jnp.arange(24) % 3  # Every third is logged.
    _, arrived = tapped(lambda tap: tap(jax.vmap(f))(jnp.stack([xs, xs])), buffer=4)
    assert [logs["x"].tolist() for logs in arrived] == [[[2, 2]] * 4] * 2


def test_logs_that_go_to_another_tap_leave_room_in_the_buffer():
    inner, outer = [], []

    def f(x):
        def step(c, i):
            lox.tap(lambda i: lox.log({"i": i}), inner.append)(i)
            return c + lox.log({"x": c})["x"], None

        return lax.scan(step, x, jnp.arange(12))[0]

    lox.tap(f, outer.append, buffer=4)(1.0)
    lox.flush()
    # The inner tap leaves what it takes for the outer one, too: two logs in each iteration.
    assert [logs["x"].tolist() for logs in outer] == np.reshape(2.0 ** np.arange(12), (6, 2)).tolist()
    assert [logs["i"].tolist() for logs in inner] == [[i] for i in range(12)]


def test_what_a_rule_logs_inside_of_a_gradient_fills_the_buffer():
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * lox.log({"x": x})["x"], None), lambda _, bar: (2 * bar,))

    def of_three(x):
        return lax.scan(lambda c, _: (double(c), None), x, length=3)[0]

    def f(x):
        return lax.scan(lambda c, _: (c + jax.grad(of_three)(c), None), x, length=8)[0]

    out, arrived = tapped(lambda tap: tap(f)(1.0), buffer=6)
    xs = [1.0 + 8 * i for i in range(8)]
    assert out == xs[-1] + 8
    logged = [x * 2.0**i for x in xs for i in range(3)]
    assert [logs["x"].tolist() for logs in arrived] == np.reshape(logged, (4, 6)).tolist()


def test_a_scan_around_one_of_symbolic_length_is_met_log_by_log():
    def f(x, ys):
        def step(c, _):
            return lax.scan(lambda c, y: (lox.log({"x": c})["x"] + y, None), c, ys)[0], None

        return lax.scan(step, x, length=5)[0]

    (length,) = jax.export.symbolic_shape("n")
    ys = jax.ShapeDtypeStruct((length,), jnp.float32)
    assert jax.eval_shape(lox.tap(f, print, buffer=4), jnp.float32(1), ys).shape == ()


@pytest.mark.parametrize("around", [jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.checkpoint(f))])
def test_a_scan_sent_in_chunks_keeps_its_derivative(around):
    def f(x):
        return lax.scan(lambda c, y: (lox.log({"x": jnp.sin(c) * y})["x"], None), x, jnp.arange(1.0, 24.0))[0]

    slope, arrived = tapped(lambda tap: around(tap(f))(0.5), buffer=5)
    assert_array(slope, jax.grad(lox.strip(f))(0.5), 1e-6)
    assert_array(np.concatenate([logs["x"] for logs in arrived]), lox.spool(f)(0.5)[1]["x"], 1e-6)
    lanes, arrived = tapped(lambda tap: jax.vmap(around(tap(f)))(jnp.array([0.5, 0.7])), buffer=5)
    assert_array(
        np.concatenate([logs["x"] for logs in arrived]), lox.spool(jax.vmap(f))(jnp.array([0.5, 0.7]))[1]["x"], 1e-6
    )
    assert_array(lanes[0], slope, 1e-6)


def test_logs_are_selected_and_prefixed():
    def f(x):
        lox.log({"a": x, "b": 2 * x}, tags="t")
        lox.log({"a": 3 * x})

    def keys(**options):
        return [sorted(logs) for logs in tapped(lambda tap: tap(f)(1.0), **options)[1]]

    assert keys(tags="t") == [["a", "b"]]
    assert keys(argnames="a") == [["a"], ["a"]]
    assert keys(tags="t", argnames="b", prefix="p/") == [["p/b"]]


def test_everything_that_can_be_logged_arrives():
    values = {
        "bool": np.array([True, False]),
        "bfloat16": jnp.arange(3, dtype=jnp.bfloat16),
        "complex": np.complex64([1 + 2j]),
        "empty": np.zeros((0, 3), np.float32),
        "int8": np.int8(3),
        "matrix": np.arange(6.0, dtype=np.float32).reshape(2, 3),
    }
    for buffer in (1, 2):
        _, (logs,) = tapped(lambda tap: jax.jit(tap(lambda values: lox.log(values)))(values), buffer=buffer)
        for key, value in values.items():
            assert_array(logs[key], np.asarray(value)[None])
    key = jax.random.key(3)
    _, (logs,) = tapped(lambda tap: tap(lambda key: lox.log({"key": key})["key"])(key))
    assert_array(logs["key"], np.asarray(jax.random.key_data(key))[None])


def test_what_arrives_stays_what_it_was():
    arrived = []
    f = jax.jit(lox.tap(lambda xs: lax.scan(lambda c, x: (lox.log({"x": x})["x"], None), xs[0], xs)[0], arrived.append))
    for start in range(3):
        f(jnp.arange(8.0).reshape(4, 2) + start)
    lox.flush()
    expected = [np.arange(8.0).reshape(4, 2)[row] + start for start in range(3) for row in range(4)]
    np.testing.assert_array_equal([logs["x"][0] for logs in arrived], expected)


def test_taps_within_taps_and_spools_around_them_see_the_same():
    inner, outer = [], []
    both = lox.tap(lox.tap(program, inner.append, buffer=3), outer.append)
    _, logs = lox.spool(jax.jit(both), max_iters=4, unify=True)(X)
    lox.flush()
    assert_arrived(inner, np.float32(X))
    assert_arrived(outer, np.float32(X))
    journal = Journal()
    plain(journal.log, np.float32(X))
    for key, values in journal.events.items():
        np.testing.assert_allclose(logs.valid(key), values, rtol=1e-5)


def test_what_a_rule_logs_arrives_when_it_runs():
    @jax.custom_vjp
    def f(x):
        return lox.log({"forward": x})["forward"]

    f.defvjp(lambda x: (f(x), None), lambda _, bar: (lox.log({"backward": bar})["backward"],))
    for buffer in (1, 5):
        for make in (
            lambda tap: tap(jax.grad(f))(X),
            lambda tap: jax.grad(tap(f))(X),
            lambda tap: jax.grad(jax.jit(tap(f)))(X),
        ):
            _, arrived = tapped(make, buffer=buffer)
            events, _ = happened(arrived)
            assert {key: len(values) for key, values in events.items()} == {"forward": 1, "backward": 1}


def test_the_order_holds_over_several_calls_and_functions():
    arrived = []
    first = lox.tap(jax.jit(lambda x: lox.log({"x": x})["x"]), arrived.append)
    second = jax.jit(lox.tap(lambda x: lox.log({"x": -x})["x"], arrived.append))
    for i in range(20):
        first(float(i))
        second(float(i))
        lox.tap(lambda x: lox.log({"x": x + 0.5})["x"], arrived.append)(float(i))
    lox.flush()
    assert [logs["x"].item() for logs in arrived] == [value for i in range(20) for value in (i, -i, i + 0.5)]


NOTHING = lambda x: lax.scan(lambda c, _: (lox.log({"never": c})["never"], None), x, length=0)[0]  # noqa: E731


@pytest.mark.exhaustive
@pytest.mark.parametrize("buffer", [1, 3])
def test_a_branch_that_only_some_lanes_take_logs_in_order(buffer):
    def plain(log, x, taken):
        if taken:
            log({"before": x})
            for i in range(3):
                log({"a": x + i})
                log({"b": x - i})
            log({"after": x})
        else:
            log({"a": x})

    def branch(x):
        lox.log({"before": x})
        NOTHING(x)
        lax.fori_loop(0, 3, lambda i, x: (lox.log({"a": x + i}), lox.log({"b": x - i}), x)[-1], x)
        lox.log({"after": x})

    def f(x, taken):
        return lax.cond(taken, branch, lambda x: [lox.log({"a": x}), None][1], x)

    xs, taken = jnp.float32([1, 2, 3]), jnp.array([True, False, True])
    for make in (
        lambda tap: tap(jax.vmap(f))(xs, taken),
        lambda tap: jax.vmap(tap(f))(xs, taken),
        lambda tap: jax.jit(tap(jax.vmap(jax.jit(f))))(xs, taken),
        lambda tap: lox.spool(tap(jax.vmap(f)), unify=True)(xs, taken),
    ):
        _, arrived = tapped(make, buffer=buffer)
        for lane in range(3):
            assert_arrived(arrived, xs[lane], taken[lane], lane=lane, run=plain)
    _, arrived = tapped(lambda tap: tap(jax.vmap(f))(xs, taken))
    order = [list(logs) for logs in arrived if logs.mask and next(iter(logs.mask.values()))[0, 0]]
    assert order == [["before"], *[["a"], ["b"]] * 3, ["after"]]


def test_no_lanes_are_no_events():
    for buffer in (1, 2):
        _, arrived = tapped(lambda tap: tap(jax.vmap(scan_of))(jnp.zeros((0, 3))), buffer=buffer)
        assert not arrived


def test_taps_work_where_jit_is_disabled():
    with jax.disable_jit():
        _, arrived = tapped(lambda tap: tap(jax.jit(program))(X))
    assert_arrived(arrived, np.float32(X))


@pytest.mark.parametrize("options", [{"buffer": 2}, {"buffer": 2, "interval": 2}])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_rules_that_log_nothing_do_not_disturb_a_buffer(options, around):
    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, bar: (2 * bar,))

    def f(x):
        return lax.scan(lambda x, i: (double(lox.log({"x": x}, i=i)["x"]), None), x, jnp.arange(3))[0]

    slope, arrived = tapped(lambda tap: tap(around(jax.grad(f)))(1.0), **options)
    assert slope == 8
    assert np.concatenate([logs["x"] for logs in arrived]).tolist() == [1.0, 2.0, 4.0][:: options.get("interval", 1)]


@pytest.mark.parametrize("buffer", [1, 2, 5])
def test_a_key_of_several_shapes_dtypes_or_counters_is_not_mixed(buffer):
    def f(x):
        for value, steps in ((x, {"i": 1}), (jnp.stack([x, x]), {"i": 2}), (jnp.int32(3), {"i": 3}), (x, {"j": 4})):
            lox.log({"a": value}, **steps)
        jax.vmap(lambda x: lox.log({"a": x}, i=5))(jnp.arange(2.0))

    _, arrived = tapped(lambda tap: jax.jit(tap(f))(1.0), buffer=buffer)
    found = [(value.tolist(), value.dtype.name) for logs in arrived for value in logs["a"]]
    assert found == [(1, "float32"), ([1, 1], "float32"), (3, "int32"), (1, "float32"), ([0, 1], "float32")]


@pytest.mark.parametrize("buffer", [1, 2])
def test_what_a_linear_solve_logs_arrives(buffer):
    def f(b):
        def matvec(x):
            return lox.log({"x": 2 * x})["x"]

        return lax.custom_linear_solve(matvec, b, lambda matvec, b: b / 2, symmetric=True)

    out, arrived = tapped(lambda tap: jax.jit(tap(f))(jnp.ones(2)), buffer=buffer)
    assert_array(out, np.float32([0.5, 0.5]))
    _, logs = lox.spool(f)(jnp.ones(2))
    assert sum(len(logs["x"]) for logs in arrived) == len(logs.data.get("x", ()))


@pytest.mark.parametrize("buffer", [1, 8])
def test_logs_around_and_in_a_linear_solve_arrive_in_their_order(buffer):
    def solve(matvec, b):
        lox.log({"x": 10 * b.sum()})
        lox.log({"x": 100 * b.sum()})
        return b / 2

    def f(b):
        for _ in range(3):
            lox.log({"x": b.sum()})
            b = lax.custom_linear_solve(lambda v: 2 * v, b, solve, symmetric=True)
            lox.log({"x": -b.sum()})
        return b

    expected = [value for each in (2.0, 1.0, 0.5) for value in (each, 10 * each, 100 * each, -each / 2)]
    for make in (lambda tap: tap(f), lambda tap: jax.jit(tap(f)), lambda tap: tap(jax.jit(f))):
        out, arrived = tapped(lambda tap, make=make: make(tap)(jnp.ones(2)), buffer=buffer)
        assert out.tolist() == [0.125, 0.125]
        assert [value for logs in arrived for value in logs["x"].tolist()] == expected


# -- shards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda tap, f: tap(f), lambda tap, f: tap(jax.jit(f)), lambda tap, f: jax.jit(tap(f))]
)
@pytest.mark.parametrize("buffer", [1, 3])
def test_each_event_of_a_sharded_program_arrives_once(make, buffer):
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    x = jax.device_put(jnp.arange(8.0), jax.NamedSharding(mesh, P("d")))

    def f(x):
        return lax.scan(lambda x, i: (lox.log({"x": x, "sum": x.sum()}, i=i)["x"] + 1, None), x, jnp.arange(3))[0]

    _, arrived = tapped(lambda tap: make(tap, f)(x), buffer=buffer)
    events, counters = happened(arrived)
    np.testing.assert_array_equal(events["x"], [np.arange(8.0) + i for i in range(3)])
    assert [int(i) for i in counters["i"]["sum"]] == [0, 1, 2]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("inside", [True, False], ids=["shard_map of tap", "tap of shard_map"])
def test_each_shard_sends_its_own_events_in_order(inside, check_vma):
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))

    def f(x):
        return lax.scan(lambda x, i: (lox.log({"x": x}, i=i)["x"] + 1, None), x, jnp.arange(3))[0]

    def make(tap):
        shard_map = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
        return (shard_map(tap(f)) if inside else tap(shard_map(f)))(jnp.arange(8.0))

    _, arrived = tapped(make)
    assert len(arrived) == 12
    for shard in range(4):
        events, counters = happened(arrived, lane=shard)
        np.testing.assert_array_equal(events["x"], [np.arange(8.0).reshape(4, 2)[shard] + i for i in range(3)])
        assert [int(i) for i in counters["i"]["x"]] == [0, 1, 2]


@pytest.mark.parametrize("way", ["jit of tap", "tap of jit", "eager"])
def test_other_ordered_effects_of_the_program_are_kept(way):
    called = []

    def f(x):
        lox.log({"x": x})
        jax.debug.callback(lambda x: called.append(float(x)), x, ordered=True)
        x = io_callback(lambda x: called.append(float(x)) or x + 1, jax.typeof(x), x, ordered=True)
        return lox.log({"x": x})["x"]

    def g(x):
        return lax.scan(lambda x, _: (f(x), None), x, length=2)[0]

    def make(tap):
        return {"jit of tap": jax.jit(tap(g)), "tap of jit": tap(jax.jit(g)), "eager": tap(g)}[way](jnp.float32(0))

    out, arrived = tapped(make)
    jax.effects_barrier()
    assert out == 2 and sorted(called) == [0, 0, 1, 1]
    np.testing.assert_array_equal(np.concatenate([logs["x"] for logs in arrived]), [0, 1, 1, 2])


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_buffer_lets_pass_what_shards_log_in_branches_and_loops(jit):
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    sharded = jax.shard_map(lambda x: lox.log({"shard": x})["shard"], mesh=mesh, in_specs=P("d"), out_specs=P("d"))

    def f(x):
        lox.log({"x": x})
        x = lax.cond(x.sum() > 0, sharded, lambda x: x, x)
        x = lax.scan(lambda x, _: (sharded(x), None), x, length=2)[0]
        return lox.log({"x": x})["x"]

    x = jnp.arange(4.0)
    _, arrived = tapped(lambda tap: tap(jit(f))(x), buffer=2)
    np.testing.assert_array_equal(np.concatenate([logs["x"] for logs in arrived if "x" in logs]), [x, x])
    of_shards = sorted(logs["shard"][logs.mask["shard"]].item() for logs in arrived if "shard" in logs)
    assert of_shards == sorted([*x.tolist()] * 3)


@pytest.mark.parametrize("inside", [False, True], ids=["tap of shard_map", "shard_map of tap"])
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_axis_of_a_batch_around_a_tap_comes_before_that_of_shards(jit, inside):
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))

    def make(tap):
        f = jax.vmap(lambda x: lox.log({"x": x}, step=x)["x"])
        shard_map = functools.partial(jax.shard_map, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        return jit(jax.vmap(shard_map(tap(f)) if inside else tap(shard_map(f))))(x)

    x = jnp.arange(24.0).reshape(3, 8)
    _, arrived = tapped(make)
    assert len(arrived) == 4
    for values in ([logs["x"] for logs in arrived], [logs.steps["step"]["x"] for logs in arrived]):
        assert {value.shape for value in values} == {(1, 3, 4, 2)}
        np.testing.assert_array_equal(np.nansum(values, 0)[0].reshape(3, 8), x)


def test_what_is_the_same_on_all_shards_arrives_once():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))

    def f(x):
        lox.log({"sum": lax.psum(x.sum(), "d")})
        return x

    _, arrived = tapped(
        lambda tap: tap(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(jnp.arange(8.0))
    )
    (logs,) = arrived
    assert_array(logs["sum"], [28.0])
    assert not logs.mask


def test_of_one_log_each_shard_sends_what_differs_and_one_what_is_the_same():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    f = jax.shard_map(
        lambda x: lox.log({"x": x, "sum": lax.psum(x, "d")})["x"], mesh=mesh, in_specs=P("d"), out_specs=P("d")
    )
    _, arrived = tapped(lambda tap: tap(f)(jnp.arange(4.0)))
    assert [logs["sum"].tolist() for logs in arrived if "sum" in logs] == [[[6.0]]]
    assert sorted(logs["x"][logs.mask["x"]].item() for logs in arrived if "x" in logs) == [0.0, 1.0, 2.0, 3.0]


def test_a_warning_says_that_shards_skip_nothing():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))

    def f(x):
        return lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=4)[0]

    sharded = jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    with pytest.warns(lox.TapWarning, match="skips nothing inside of a shard_map"):
        _, arrived = tapped(lambda tap: jax.jit(tap(sharded))(jnp.arange(4.0)), interval=2)
    assert len(arrived) == 16


# -- faults --------------------------------------------------------------------------------------------------------


def raiser(when):
    def callback(logs):
        if logs["x"].item() in when:
            raise OSError(f"no {logs['x'].item()}")
        callback.seen.append(logs["x"].item())

    callback.seen = []
    return callback


def scan_of(xs):
    return lax.scan(lambda c, x: (c + lox.log({"x": x})["x"], None), 0.0, xs)[0]


def test_an_error_of_a_callback_ends_nothing_and_is_raised_by_flush():
    callback = raiser({1.0, 3.0})
    out = lox.tap(scan_of, callback)(jnp.arange(5.0))
    assert out == 10
    with pytest.raises(OSError, match="no 1.0") as raised:
        lox.flush()
    assert callback.seen == [0.0, 2.0, 4.0]
    assert any(__file__ in note for note in raised.value.__notes__)
    assert any("1 more" in note for note in raised.value.__notes__)
    assert raised.traceback[-1].name == "callback"
    lox.flush()


def test_an_error_of_a_callback_of_the_program_itself_is_that_of_jax():
    def fail(x):
        raise OSError("disk full")

    def f(x):
        return lox.log({"x": jax.pure_callback(fail, jax.typeof(x), x)})["x"]

    with pytest.raises(jax.errors.JaxRuntimeError, match="disk full"):
        jax.block_until_ready(lox.tap(jax.jit(f), lambda logs: None)(jnp.float32(1)))


def test_flush_counts_the_errors_since_the_flush_before():
    for first, *others in ((0.0, 1.0, 3.0), (2.0,), (1.0, 4.0)):
        lox.tap(scan_of, raiser({first, *others}))(jnp.arange(5.0))
        with pytest.raises(OSError, match=f"no {first}") as raised:
            lox.flush()
        counts = [note.split()[2] for note in raised.value.__notes__ if "more errors" in note]
        assert counts == ([str(len(others))] if others else [])


def test_an_error_of_a_callback_can_be_a_warning_that_is_given_once():
    callback = raiser({1.0, 3.0})
    with pytest.warns(lox.TapWarning, match="no 1.0") as caught:
        assert lox.tap(scan_of, callback, on_error="warn")(jnp.arange(5.0)) == 10
        lox.flush()
    assert len([warning for warning in caught if warning.category is lox.TapWarning]) == 1
    assert callback.seen == [0.0, 2.0, 4.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lox.tap(scan_of, raiser({1.0, 3.0}), on_error="warn")(jnp.arange(5.0)) == 10
        with pytest.raises(lox.TapWarning, match="no 1.0"):
            lox.flush()


def test_two_threads_do_not_hear_each_other():
    heard = {0: [], 1: []}
    ready = threading.Barrier(2)

    def run(thread):
        f = jax.jit(lox.tap(scan_of, heard[thread].append))
        ready.wait()
        for _ in range(20):
            f(jnp.arange(10.0) + 100 * thread)
        lox.flush()

    threads = [threading.Thread(target=run, args=(thread,)) for thread in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for thread, logs in heard.items():
        assert [log["x"].item() for log in logs] == [100 * thread + i for _ in range(20) for i in range(10)]


def test_one_function_may_be_tapped_in_two_threads():
    arrived = []
    f = lox.tap(jax.jit(scan_of), arrived.append)
    threads = [threading.Thread(target=lambda: (f(jnp.arange(50.0)), lox.flush())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(log["x"].item() for log in arrived) == sorted(2 * list(range(50)))


def test_another_callback_compiles_nothing_anew():
    traces, arrived = [], {}

    @jax.jit
    def f(x):
        traces.append(x)
        return lox.log({"x": x})["x"]

    for name in "abc":
        arrived[name] = []
        lox.tap(f, arrived[name].append, prefix=name)(1.0)
    lox.flush()
    assert {name: [list(logs) for logs in found] for name, found in arrived.items()} == {
        name: [[f"{name}x"]] for name in "abc"
    }
    assert len(traces) == 1


ELSEWHERE = jax.jit(lambda x: lox.log_grad({"y": lox.log({"x": x})["x"] + 1})["y"])
"""A jitted function that outlives the taps on it."""


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda tap, f: tap(f),
        lambda tap, f: tap(jax.jit(f)),
        lambda tap, f: jax.jit(tap(f)),
        lambda tap, f: jax.jit(tap(lambda x: lax.fori_loop(0, 3, lambda _, x: f(x), x))),
        lambda tap, f: jax.jit(jax.vmap(tap(f), axis_size=2, in_axes=None)),
        lambda tap, f: jax.jit(jax.grad(tap(f))),
        lambda tap, f: jax.grad(tap(f)),
    ],
)
@pytest.mark.parametrize("fun", [lambda x: ELSEWHERE(x), lambda x: lox.log({"x": x})["x"] + 1], ids=["jitted", "new"])
def test_a_callback_lives_no_longer_than_its_tap_and_function(make, fun):
    class Callback:
        seen = 0

        def __call__(self, logs):
            Callback.seen += 1

    callback = Callback()
    alive = weakref.ref(callback)
    f = make(functools.partial(lox.tap, callback=callback), lambda x: fun(x))
    f(1.0)
    lox.flush()
    assert Callback.seen
    del callback, f
    gc.collect()
    lox.flush()
    gc.collect()
    assert alive() is None


def test_taps_that_are_gone_leave_nothing_behind():
    before = set(_channel._channels)
    for _ in range(5):
        lox.tap(lambda x: lox.log({"x": x})["x"], lambda logs: None)(1.0)
    gc.collect()
    lox.flush()
    assert set(_channel._channels) <= before and not _channel._closed


def test_what_is_on_its_way_when_a_tap_is_gone_finds_its_callback(monkeypatch):
    before = set(_channel._channels)
    lox.tap(lambda x: lox.log({"x": x})["x"], lambda logs: None)(1.0)
    gc.collect()
    (number,) = set(_channel._channels) - before
    found = []
    monkeypatch.setattr(jax, "effects_barrier", lambda: found.append(number in _channel._channels))
    lox.flush()
    assert found == [True]
    assert number not in _channel._channels


def test_callbacks_of_many_taps_are_let_go_without_a_flush():
    def callback(logs):
        arrived.append(logs["x"].item())

    arrived, alive = [], weakref.WeakSet()
    for i in range(200):
        own = functools.partial(callback)
        alive.add(own)
        lox.tap(lambda x: lox.log({"x": x})["x"], own)(float(i))
        del own
    gc.collect()
    assert len(alive) < 100
    lox.flush()
    assert arrived == list(range(200))


def test_a_compiled_function_keeps_the_callback_that_it_calls():
    arrived = []
    compiled = jax.jit(lox.tap(lambda x: lox.log({"x": x})["x"], arrived.append)).lower(1.0).compile()
    gc.collect()
    lox.flush()
    compiled(2.0)
    lox.flush()
    assert [logs["x"].item() for logs in arrived] == [2.0]


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


def test_what_was_sent_arrives_before_the_interpreter_exits():
    result = run_python(
        "import jax, lox, time\n"
        "def callback(logs):\n    time.sleep(0.01); print(logs['x'].item(), flush=True)\n"
        "f = jax.jit(lambda xs: jax.lax.scan(lambda c, x: (c, lox.log({'x': x})['x']), 0, xs))\n"
        "lox.tap(f, callback)(jax.numpy.arange(20.0))\n"
    )
    assert result.stdout.split() == [str(float(i)) for i in range(20)], result.stderr


@pytest.mark.integration
@pytest.mark.parametrize("options", ["", ", buffer=50"])
@pytest.mark.parametrize("wrap", ["f", "jax.jit(f)"])
def test_ctrl_c_ends_a_long_loop(wrap, options):
    code = (
        "import jax, lox, time\n"
        "def f(x):\n"
        "    return jax.lax.fori_loop(0, 10**8, lambda i, x: (lox.log({'x': x}), x + 1)[1], x)\n"
        "def callback(logs):\n    print('.', flush=True); time.sleep(0.001)\n"
        f"try:\n    jax.block_until_ready(lox.tap({wrap}, callback{options})(0.0))\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n"
        "lox.flush()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        for _ in range(3):
            assert it.stdout.readline() == ".\n"
        out, err = interrupted(it)
    assert it.returncode == 0 and out.endswith("interrupted\n"), err


def interrupted(process):
    """What a process still says that is interrupted: again, if it was while JAX is called by the garbage collector."""
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=30)
    process.kill()
    return process.communicate()


def test_a_slow_callback_loses_nothing():
    arrived = []

    def callback(logs):
        time.sleep(0.002)
        arrived.extend(logs["x"].tolist())

    for function in (lox.tap(scan_of, callback), lox.tap(jax.jit(scan_of), callback, buffer=7)):
        arrived.clear()
        for _ in range(3):
            function(jnp.arange(100.0))
        lox.flush()
        assert arrived == 3 * list(range(100))


def test_an_error_that_nobody_asked_for_is_printed_at_the_exit():
    result = run_python(
        "import lox\n"
        "def callback(logs):\n    raise OSError('disk full')\n"
        "def f(x):\n    lox.log({'x': x})\n    return x\n"
        "print(lox.tap(f, callback)(1.0))\n"
    )
    assert result.stdout == "1.0\n"
    assert "OSError: disk full" in result.stderr and "lox.flush()" in result.stderr


def test_without_a_callback_logs_are_printed(capfd):
    lox.tap(lambda x: lox.log({"x": x, "y": 2 * x}, step=3))(1.0)
    lox.flush()
    assert capfd.readouterr().out == "step=3  x=1.0  y=2.0\n"


def test_what_one_key_has_more_of_is_printed_as_well(capfd):
    def f(x):
        lox.log({"a": x, "b": 2 * x})
        lox.log({"a": x + 1})

    lox.tap(f, buffer=8)(jnp.arange(2.0)[1])
    lox.flush()
    assert capfd.readouterr().out == "a=1.0  b=2.0\na=2.0\n"


@pytest.mark.covering(1)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
@pytest.mark.parametrize("buffer", [1, 2, 3, 100])
def test_what_a_tap_sends_many_at_a_time_is_spooled_around_it_too(buffer, transform):
    sent = []
    xs = jnp.arange(12.0).reshape(2, 6) if transform is jax.vmap else jnp.arange(6.0)
    _, logs = lox.spool(transform(lox.tap(scan_of, sent.append, buffer=buffer)))(xs)
    _, alone = lox.spool(transform(scan_of))(xs)
    lox.flush()
    assert sent
    assert_array(logs["x"], alone["x"])


TO_CALL = "To call the function, write lox.tap(f)(x)."


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"buffer": 0}, "buffer must be a positive integer, got 0 of type int."),
        ({"interval": 1.5}, "interval must be a positive integer, got 1.5 of type float."),
        ({"interval": 2**31}, "interval must be less than 2**31, got 2147483648."),
        ({"prefix": 3}, "prefix must be a string, got 3 of type int."),
        ({"on_error": "stop"}, "on_error must be one of 'raise', 'warn', got 'stop'."),
        ({"callback": 3}, f"The callback of lox.tap must be callable, got 3. {TO_CALL}"),
        ({"callback": 0}, f"The callback of lox.tap must be callable, got 0. {TO_CALL}"),
        ({"callback": "print"}, "The callback of lox.tap must be callable, got 'print'."),
    ],
    ids=str,
)
def test_keywords_that_are_wrong(options, text):
    with pytest.raises(lox.LogValueError) as raised:
        lox.tap(program, **options)
    assert str(raised.value) == text


def test_functions_that_run_later_are_refused():
    def generator(x):
        yield lox.log({"x": x})

    async def coroutine(x):
        lox.log({"x": x})

    for fun in (generator, coroutine):
        for transform in (lox.tap, lox.spool, lox.strip):
            with pytest.raises(TypeError, match="generator or coroutine"):
                transform(fun)


def test_tap_is_a_decorator_and_keeps_the_name():
    @lox.tap(callback=lambda logs: None, buffer=2)
    def f(x):
        """Doc."""
        return lox.log({"x": x})["x"]

    assert (f.__name__, f.__doc__) == ("f", "Doc.")
    assert f(1.0) == 1.0


def in_sequence(end):
    def f(x):
        for i in range(8):
            lox.log({"a" if i % 3 else "b": x + i}, step=i)
        lox.log({"c": jnp.stack([x, x])})
        if end == "scan":
            lax.scan(lambda c, i: (lox.log({"a": x - 1}, step=i) and c, None), 0, jnp.arange(8, 11))
        elif end == "cond":
            lax.cond(x >= 0, lambda: lox.log({"a": x + 8}, step=8) and None, lambda: None)
        elif end == "other type":
            lox.log({"a": jnp.stack([x, x])})
        return x

    return f


SEQUENCES = {
    "eager": lambda tap, f: tap(f)(X),
    "tap of jit": lambda tap, f: tap(jax.jit(f))(X),
    "jit of tap": lambda tap, f: jax.jit(tap(f))(X),
    "grad of tap": lambda tap, f: jax.grad(tap(f))(X),
    "tap of grad": lambda tap, f: tap(jax.grad(f))(X),
    "vmap of tap": lambda tap, f: jax.vmap(tap(f))(XS),
    "tap of vmap": lambda tap, f: tap(jax.vmap(f))(XS),
}


@functools.cache
def what_arrives(buffer, end, composition):
    """The events by key, and how many calls brought them."""
    arrived = []
    SEQUENCES[composition](lambda f: lox.tap(f, arrived.append, buffer=buffer), in_sequence(end))
    lox.flush()
    found = {}
    for logs in arrived:
        for key, values in logs.items():
            counters = logs.steps.get("step", {}).get(key, [None] * len(values))
            mask = logs.mask.get(key, np.ones(len(values), bool))
            events = zip(values, counters, mask, strict=True)
            found.setdefault(key, []).extend(str(event) for event in events)
    return found, len(arrived)


@pytest.mark.covering(1)
@pytest.mark.parametrize("composition", SEQUENCES)
@pytest.mark.parametrize("end", ["nothing", "scan", "cond", "other type"])
@pytest.mark.parametrize("buffer", [2, 3, 8, 100])
def test_logs_in_sequence_wait_for_each_other(buffer, end, composition):
    one_by_one, most = what_arrives(1, end, composition)
    events, calls = what_arrives(buffer, end, composition)
    assert events == one_by_one
    if end in ("nothing", "cond") and composition != "grad of tap":
        assert calls == -(-most // buffer)


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, lambda f: lambda xs: jax.jvp(f, (xs,), (xs,))[0]])
def test_what_waits_may_be_donated_meanwhile(transform):
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    arrived = []

    def f(x):
        x = lox.log({"x": x + 1})["x"]
        return double(x)

    assert transform(lox.tap(f, arrived.append, buffer=4))(XS).tolist() == ((XS + 1) * 2).tolist()
    lox.flush()
    assert arrived[0]["x"].tolist() == [(XS + 1).tolist()]


def test_what_surely_happens_in_sequence_takes_no_branch():
    jaxpr = jax.make_jaxpr(lox.tap(in_sequence("nothing"), lambda logs: None, buffer=4))(X)
    assert "cond" not in str(jaxpr) and str(jaxpr).count("lox_log") == 3


@pytest.mark.covering(1)
@pytest.mark.parametrize("transform", [lambda f: f, lambda f: lambda x: jax.vmap(f)(x[None]), lox.keep])
@pytest.mark.parametrize("options", [{}, {"buffer": 2}, {"buffer": 5}, {"interval": 1, "buffer": 4}])
@pytest.mark.parametrize("loop", [0, 3])
def test_what_was_logged_eagerly_before_an_exception_arrives(transform, options, loop):
    arrived = []

    def f(x):
        if loop:
            lax.scan(lambda x, _: (lox.log({"x": x})["x"], None), x, length=loop)
        for i in range(3):
            lox.log({"x": x + i})
        raise KeyError("the function's own")

    with pytest.raises(KeyError, match="the function's own"):
        transform(lox.tap(f, arrived.append, **options))(jnp.float32(1))
    lox.flush()
    values = [value for logs in arrived for value in np.ravel(logs["x"]).tolist()]
    assert values == [1.0] * loop + [1.0, 2.0, 3.0]


def test_what_waits_in_a_buffer_arrives_when_the_program_is_interrupted():
    arrived = []

    def f(x):
        for i in range(3):
            lox.log({"x": x + i})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lox.tap(f, arrived.append, buffer=5)(jnp.float32(1))
    lox.flush()
    assert [logs["x"].tolist() for logs in arrived] == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize("options", [{}, {"ordered": False}, {"buffer": 4}], ids=str)
def test_on_cpu_a_call_returns_when_the_callbacks_have_run(options):
    arrived = []

    def callback(logs):
        time.sleep(0.05)
        arrived.append(logs)

    tapped = jax.jit(lox.tap(lambda x: lox.log({"x": x})["x"] + 1, callback, **options))
    for calls in range(1, 4):
        tapped(jnp.float32(calls))
        assert len(arrived) == calls  # Without a flush.
    lox.flush()


def test_what_an_empty_batch_logs_does_not_arrive_with_what_waits_beside_it():
    def f(xs, y):
        jax.vmap(lambda x: lox.log({"x": x}))(xs)
        lox.log({"y": y})

    arrived = []
    for transform in (lambda f: f, jax.jit):
        lox.tap(transform(f), arrived.append, buffer=2)(jnp.zeros(0), 1.0)
    lox.flush()
    assert [{key: values.tolist() for key, values in logs.items()} for logs in arrived] == [{"y": [1.0]}] * 2


def test_a_complex_event_that_did_not_happen_is_nan():
    def f(x):
        return lax.cond(x > 0, lambda x: lox.log({"z": lax.complex(0.0 * x, x)})["z"].real, lambda x: x, x)

    _, (logs,) = tapped(lambda tap: tap(jax.vmap(f))(jnp.array([1.0, -1.0])))
    assert logs["z"][0, 0] == 1j and np.isnan(logs["z"][0, 1])


@pytest.mark.parametrize("ordered", [True, False])
def test_on_accelerators_what_is_sent_in_order_is_computed_before_the_call(ordered, monkeypatch):
    """XLA for GPU aborts where an ordered call of the host takes a slice: a barrier keeps it from fusing the two."""
    from lox._compat import _lowering

    monkeypatch.setattr(_lowering, "_is_on_cpu", lambda ctx: False)
    heard = []

    def f(rows):
        return jax.lax.map(lambda row: lox.log({"row": row})["row"], rows)

    tapped = jax.jit(lox.tap(f, lambda logs: heard.extend(logs["row"].tolist()), ordered=ordered))
    rows = jnp.arange(6.0).reshape(3, 2)
    assert ("optimization_barrier" in tapped.lower(rows).as_text()) == ordered
    np.testing.assert_array_equal(tapped(rows), rows)
    lox.flush()
    assert sorted(heard) == rows.tolist()


def test_a_linearized_function_with_a_loop_calls_back_once():
    def f(x):
        def body(carry):
            lox.log({"x": carry[1]})
            return carry[0] + 1, carry[1] * 2

        return jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]

    arrived = []
    out, push = jax.linearize(lox.tap(f, lambda logs: arrived.append(logs["x"].item())), 1.0)
    assert (out, push(1.0)) == (8, 8)
    lox.flush()
    assert arrived == [1, 2, 4]


def test_errors_before_a_fork_are_raised_in_the_process_that_they_were_raised_in():
    result = run_python(
        "import os, warnings, lox, lox.loggers\n"
        "warnings.simplefilter('ignore')\n"
        "def callback(logs):\n    raise OSError('disk full')\n"
        "lox.tap(lambda x: lox.log({'x': x})['x'], callback)(1.0)\n"
        "child = os.fork()\n"
        "found = 'goes on'\n"
        "try:\n    lox.flush()\n"
        "except OSError as error:\n    found = error\n"
        "who = 'parent' if child else 'child'\n"
        "os.write(1, f'{who} {found}\\n'.encode())\n"
        "os.waitpid(child, 0) if child else os._exit(0)\n"
    )
    assert sorted(result.stdout.splitlines()) == ["child goes on", "parent disk full"]


def test_what_is_logged_while_a_function_is_compiled_is_logged_at_each_call():
    arrived = []

    @jax.jit
    @lox.tap(callback=lambda logs: arrived.append(logs["c"].item()))
    def f(x):
        with jax.ensure_compile_time_eval():
            lox.log({"c": 2.5})
        return x + 1

    for _ in range(3):
        f(1.0)
    lox.flush()
    assert arrived == [2.5] * 3


def test_events_of_several_calls_are_printed_each_with_its_counters(capfd):
    def f(x):
        lox.log({"a": x, "b": 2 * x}, step=1)
        lox.log({"c": jnp.stack([x, x])})
        lox.log({"a": x + 1, "b": x * 0}, step=2)
        lox.log({"d": x - 3}, epoch=7)

    lox.tap(jax.jit(f), buffer=8)(jnp.float32(1))
    lox.flush()
    assert capfd.readouterr().out == "step=1  a=1.0  b=2.0  c=[1. 1.]  epoch=7  d=-2.0\nstep=2  a=2.0  b=0.0\n"
    lox.tap(jax.jit(f), buffer=2)(jnp.float32(1))
    lox.flush()
    out = capfd.readouterr().out.splitlines()
    assert out == ["step=1  a=1.0  b=2.0  c=[1. 1.]", "step=2  a=2.0  b=0.0  epoch=7  d=-2.0"]


def test_what_did_not_happen_in_a_batch_element_arrives_as_nan_zero_or_false():
    def f(x):
        data = {
            "float": x,
            "half": x.astype(jnp.bfloat16),
            "int": x.astype(jnp.int8),
            "bool": x > 0,
            "pair": jnp.stack([x, -x]),
        }
        lox.log(data, where=x > 1, step=10 * x.astype(int), time=x / 2)

    _, (logs,) = tapped(lambda tap: tap(jax.vmap(f))(jnp.float32([3, 0, 2, 1])))
    happened = np.array([[True, False, True, False]])
    expected = {
        "float": np.float32([[3, np.nan, 2, np.nan]]),
        "half": np.array([[3, np.nan, 2, np.nan]], jnp.bfloat16),
        "int": np.int8([[3, 0, 2, 0]]),
        "bool": happened,
        "pair": np.float32([[[3, -3], [np.nan, np.nan], [2, -2], [np.nan, np.nan]]]),
    }
    assert logs.keys() == expected.keys()
    for key, value in expected.items():
        assert_array(logs[key], value)
        assert_array(logs.mask[key], happened)
        assert_array(logs.steps["step"][key], np.int32([[30, 0, 20, 0]]))
        assert_array(logs.steps["time"][key], np.float32([[1.5, np.nan, 1, np.nan]]))


@pytest.mark.parametrize("options", [{}, {"buffer": 3}, {"interval": 2}, {"interval": 3, "buffer": 4}], ids=str)
def test_what_some_elements_of_nested_batches_log_arrives_in_every_dtype_as_it_is_spooled(options):
    def f(x, y):
        def step(c, k):
            z = x + 2 * y + k
            data = {name: z.astype(name) for name in ("float16", "bfloat16", "float8_e5m2", "int8", "uint8", "uint32")}
            data |= {"bool": z > 4, "complex64": lax.complex(z, -x), "pair": jnp.stack([z, -z]), "none": jnp.zeros(0)}
            lox.log(data, where=(x + y + k) % 3 != 1, step=k, x=x)
            lax.cond(y > 1, lambda: lox.log({"int8": data["int8"]}, step=-k, x=y) and None, lambda: None)
            return c, None

        return lax.scan(step, 0, jnp.arange(5.0))[0]

    batched = jax.vmap(jax.vmap(f, (0, None)), (None, 0))
    args = jnp.float32([0, 1, 5]), jnp.float32([1, 3])
    _, arrived = tapped(lambda tap: jax.jit(tap(batched))(*args), **options)
    _, logs = lox.spool(batched, unify=True, interval=options.get("interval", 1))(*args)

    def events(logs, key, element):
        at = (slice(None), *element)
        there = np.asarray(logs.mask[key])[at] if key in logs.mask else slice(None)
        parts = (logs[key], logs.steps["step"][key], logs.steps["x"][key])
        return list(zip(*(np.asarray(part)[at][there].tolist() for part in parts), strict=True))

    for key in logs:
        has = [each for each in arrived if key in each]
        assert {each[key].dtype for each in has} == {logs[key].dtype}
        for element in np.ndindex(2, 3):
            assert [event for each in has for event in events(each, key, element)] == events(logs, key, element)
    assert len(events(logs, "int8", (1, 2))) > len(events(logs, "bool", (1, 2))) > 0


@pytest.mark.parametrize("buffer", [1, 3])
@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_events_of_a_key_in_a_batch_and_in_none_are_counted_apart(around, buffer):
    def f(xs):
        for factor in (1, 2, 3):
            lox.log({"x": xs[0] * factor})
            jax.vmap(lambda x, factor=factor: lox.log({"x": x * factor}))(xs)

    _, arrived = tapped(lambda tap: around(tap(f))(jnp.arange(3) + 1), interval=2, buffer=buffer)
    assert [value.tolist() for logs in arrived for value in logs["x"]] == [1, [1, 2, 3], 3, [3, 6, 9]]


def test_the_data_of_keys_says_what_they_are_of_however_they_arrive_and_are_cut():
    impl = "rbg"
    keys = jax.random.split(jax.random.key(3, impl=impl), 4)
    words = np.asarray(jax.random.key_data(keys))

    def f(keys):
        return lax.map(lambda key: lox.log({"key": key, "n": 1}, where=jax.random.bits(key) >= 0)["n"], keys)

    for buffer in (1, 3):
        _, arrived = tapped(lambda tap: jax.jit(tap(f))(keys), buffer=buffer)
        assert_array(np.concatenate([logs["key"] for logs in arrived]), words)
        for logs in arrived:
            for data in (logs["key"], logs.slice(1)["key"], logs.filter("key")["key"][0], logs.valid("key")):
                assert data.impl == impl
            assert not hasattr(logs["n"], "impl")
            assert jax.random.wrap_key_data(logs["key"], impl=logs["key"].impl).dtype == keys.dtype


def test_static_and_donated_arguments_may_be_counted_from_the_end():
    def f(*args):
        lox.log({"x": args[0]})
        return args[0] * args[-1]

    for places in ({"static_argnums": -1}, {"static_argnums": (1, -1)}, {"static_argnums": 2, "donate_argnums": -3}):
        jitted = jax.jit(f, **places)
        out, arrived = tapped(lambda tap, jitted=jitted: tap(jitted)(jnp.float32(2), 3, 4))
        assert (float(out), [logs["x"].tolist() for logs in arrived]) == (8, [[2]])
        assert float(lox.spool(jitted)(jnp.float32(2), 3, 4)[0]) == 8


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_distributions_are_known_by_their_keys_before_the_prefix(prefix):
    of = {"x": lox.reductions.histogram([0.0, 1.0]), "other": "mean"}

    def f(x):
        lox.log({"x": x, "other": x})
        return x

    _, arrived = tapped(lambda tap: tap(f)(0.5), reduce=of, prefix=prefix)
    assert [logs.distributions for logs in arrived if f"{prefix}x" in logs] == [{f"{prefix}x": of["x"]}]


def test_only_keys_that_are_reduced_arrive_as_their_reductions():
    def f(xs):
        def step(carry, x):
            lox.log({"a": x})
            lox.log({"b": x})
            return carry, None

        return lax.scan(step, 0, xs)[0]

    _, arrived = tapped(lambda tap: tap(f)(jnp.arange(3.0)), reduce={"a": "mean"})
    of = {key: [value for logs in arrived if key in logs for value in logs[key].tolist()] for key in ("a", "b")}
    assert of == {"a": [1], "b": [0, 1, 2]}


def test_rare_events_wait_in_a_buffer_with_others():
    arrived = []

    def step(c, i):
        lox.log({"rare": i}, where=i % 5 == 4)
        lox.log({"c": c}, where=i % 7 == 6)
        return c + 1, None

    tapped = lox.tap(lambda x: lax.scan(step, x, jnp.arange(40))[0], arrived.append, buffer=6)
    jax.jit(tapped)(0.0)
    lox.flush()
    rare = [logs.valid("rare") for logs in arrived if "rare" in logs]
    assert np.concatenate(rare).tolist() == [4, 9, 14, 19, 24, 29, 34, 39]
