"""`window=k` with `reduce=`: each k events that happen become one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import lox

REDUCTIONS = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "count": len,
}


def note(x, key="a", **options):
    lox.log({key: x}, **options)
    return x


def windows(values, size):
    return [values[first : first + size] for first in range(0, len(values), size)]


def by_hand(fun, reduction, size, args, element=()):
    """The windows of the events that happened in a batch element, of key "a"."""
    _, logs = lox.spool(fun, unify=True, max_iters=8)(*args)
    events = logs["a"][(slice(None), *element)]
    happened = logs.mask.get("a", np.ones(len(events), bool))
    events = np.asarray(events)[np.asarray(happened[(slice(None), *element)] if happened.ndim > 1 else happened)]
    return [REDUCTIONS[reduction](window) for window in windows(events, size)]


CONTROL = {
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 7)[0],
    "nested scans": lambda f: CONTROL["scan"](lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 3)[0]),
    "two scans": lambda f: lambda x: CONTROL["scan"](f)(f(CONTROL["scan"](f)(x))),
    "reverse scan of jit": lambda f: (
        lambda x: lax.scan(lambda c, _: (jax.jit(f)(c), None), x, None, 5, reverse=True)[0]
    ),
    "cond": lambda f: lambda x: lax.cond(x > 0, f, lambda y: y, x),
    "cond in scan": lambda f: CONTROL["scan"](lambda x: lax.cond(x.astype(int) % 3 > 0, f, lambda y: y + 1, x)),
    "where in scan": lambda f: CONTROL["scan"](lambda x: note(note(x, where=x.astype(int) % 2 == 0)) + 1),
    "scan in cond in scan": lambda f: CONTROL["scan"](CONTROL["cond"](CONTROL["scan"](f))),
    "while_loop": lambda f: lambda x: lax.while_loop(lambda c: c < 5, f, x),
    "while_loop in scan": lambda f: CONTROL["scan"](lambda x: lax.while_loop(lambda c: c < 5, f, x) - 3),
    "scan in while_loop": lambda f: CONTROL["while_loop"](CONTROL["scan"](f)),
    "jit": lambda f: jax.jit(lambda x: f(jax.jit(CONTROL["scan"](f))(f(x)))),
    "checkpoint": lambda f: jax.checkpoint(CONTROL["scan"](f)),
    "Python": lambda f: lambda x: f(f(f(x))),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("control", CONTROL)
def test_each_window_is_that_of_the_events(control, reduction):
    size, compiled = 1 + len(control) % 3, len(reduction) % 2
    fun = CONTROL[control](lambda x: note(x) + 1)
    spooled = lox.spool(fun, reduce=reduction, window=size, max_iters=8)
    out, logs = (jax.jit(spooled) if compiled else spooled)(jnp.float32(0.5))
    assert out == fun(jnp.float32(0.5))
    np.testing.assert_allclose(logs.valid("a"), by_hand(fun, reduction, size, (jnp.float32(0.5),)), rtol=1e-6)
    if "a" not in logs.mask:
        assert len(logs["a"]) == len(logs.valid("a"))


@pytest.mark.covering(1)
@pytest.mark.parametrize("reduction", ["mean", "first", "count"])
@pytest.mark.parametrize("control", [name for name in CONTROL if name != "Python"])
@pytest.mark.parametrize("around", ["spool of vmap", "vmap of spool"])
def test_batch_elements_have_windows_of_their_own(control, reduction, around):
    fun = CONTROL[control](lambda x: note(x) + 1)
    xs = jnp.float32([0.5, -1.5, 3.0])

    def spooled(f):
        return lox.spool(f, reduce=reduction, window=2, max_iters=8)

    if around == "spool of vmap":
        out, logs = jax.jit(spooled(jax.vmap(fun)))(xs)
    else:
        out, logs = jax.jit(jax.vmap(spooled(fun)))(xs)
        logs = lox.logdict(
            {"a": logs["a"].swapaxes(0, 1)}, mask={key: m.swapaxes(0, 1) for key, m in logs.mask.items()}
        )
    np.testing.assert_array_equal(out, jax.vmap(fun)(xs))
    for place, x in enumerate(xs):
        happened = logs.mask["a"][:, place] if "a" in logs.mask else slice(None)
        np.testing.assert_allclose(
            logs["a"][:, place][happened], by_hand(fun, reduction, 2, (x,)), rtol=1e-6, err_msg=f"{place}"
        )


@pytest.mark.covering(1)
@pytest.mark.parametrize("reduction", ["mean", "sum", "min", "first", "last"])
@pytest.mark.parametrize("control", ["scan", "nested scans", "two scans", "jit", "checkpoint", "Python"])
def test_derivatives_of_windows_are_those_of_the_reduced_events(control, reduction):
    fun = CONTROL[control](lambda x: jnp.sin(note(x * x)))
    reduce = {"mean": jnp.mean, "sum": jnp.sum, "min": jnp.min}.get(reduction, REDUCTIONS[reduction])
    weights = jnp.arange(1.0, 20.0)

    def windowed(x):
        out, logs = lox.spool(fun, reduce=reduction, window=3)(x)
        return out + jnp.vdot(logs["a"], weights[: len(logs["a"])])

    def expected(x):
        out, logs = lox.spool(fun)(x)
        return out + sum(
            weight * reduce(window) for weight, window in zip(weights, windows(logs["a"], 3), strict=False)
        )

    for derive in (jax.grad, jax.jacfwd, lambda f: jax.jit(jax.grad(jax.checkpoint(f)))):
        np.testing.assert_allclose(derive(windowed)(0.7), derive(expected)(0.7), rtol=1e-5)


def test_custom_rules_and_shards_have_their_events_in_windows():
    @jax.custom_vjp
    def square(x):
        return note(x * x)

    square.defvjp(lambda x: (square(x), x), lambda x, bar: (2 * x * bar,))

    def f(x):
        return lax.scan(lambda c, _: (square(c), None), x, None, 5)[0] + square(x)

    def loss(x):
        out, logs = lox.spool(f, reduce="sum", window=4)(x)
        return out + 10 * logs["a"][1], logs["a"]

    (value, found), gradient = jax.value_and_grad(loss, has_aux=True)(0.9)
    powers = [0.9 ** (2.0**n) for n in range(1, 6)]
    np.testing.assert_allclose(found, [sum(powers[:4]), powers[4] + 0.81], rtol=1e-5)
    np.testing.assert_allclose(gradient, 11 * (32 * 0.9**31 + 2 * 0.9), rtol=1e-5)

    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    sharded = {"mesh": mesh, "in_specs": PartitionSpec("i"), "out_specs": PartitionSpec("i")}

    def on_shards(xs):
        return jax.shard_map(lambda x: lax.scan(lambda c, _: (note(c) + 1, None), x[0], None, 5)[0][None], **sharded)(
            xs
        )

    _, logs = jax.jit(lox.spool(on_shards, reduce="mean", window=2))(jnp.float32([0, 10]))
    assert logs["a"].tolist() == [[0.5, 10.5], [2.5, 12.5], [4, 14]]


def test_keys_that_are_logged_together_share_their_counters_and_those_of_the_last_event():
    def f():
        def step(c, _):
            lox.log({"a": c, "b": 2 * c}, step=c)
            lox.log({"c": c}, other=c)
            return c + 1, None

        lax.scan(step, 0, None, 5)
        lox.log({"c": 9}, other=9)

    _, logs = lox.spool(f, reduce={"a": "mean", "b": "max", "c": "first"}, window=2)()
    assert logs.timelines == (("a", "b"), ("c",))
    assert logs.steps["step"]["a"] is logs.steps["step"]["b"] and logs.steps["step"]["a"].tolist() == [1, 3, 4]
    assert logs["c"].tolist() == [0, 2, 4] and logs.steps["other"]["c"].tolist() == [0, 2, 4]


def test_keys_that_are_not_reduced_stay_as_they_are():
    def f(x):
        return lax.scan(lambda c, _: (note(note(c), "b") + 1, None), x, None, 5)[0]

    _, logs = lox.spool(f, reduce={"a": "mean"}, window=2, prefix="p/")(0.0)
    assert logs["p/a"].tolist() == [0.5, 2.5, 4] and logs["p/b"].tolist() == [0, 1, 2, 3, 4]


def test_no_events_are_no_windows():
    def f(xs):
        return lax.scan(lambda c, x: (c, note(x)), 0, xs)[1]

    for fun in (lox.spool(f, reduce="mean", window=2), jax.jit(lox.spool(f, reduce="mean", window=2))):
        assert fun(jnp.zeros((0, 3)))[1]["a"].shape == (0, 3)
    _, logs = lox.spool(lambda x: lax.cond(x > 0, note, lambda x: x, x), reduce="mean", window=2)(-1.0)
    assert not len(logs.valid("a"))


def test_events_beyond_a_bound_of_iterations_are_counted_as_dropped():
    def f(x):
        return lax.while_loop(lambda c: c < 10, lambda c: note(c) + 1, x)

    _, logs = lox.spool(f, reduce="sum", window=3, max_iters=4)(0.0)
    assert logs.valid("a").tolist() == [3, 3] and logs.dropped["a"] == 6
    with pytest.raises(lox.SpoolError, match="max_iters="):
        lox.spool(f, reduce="sum", window=3)(0.0)


def test_types_of_a_key_have_windows_of_their_own():
    def f(xs):
        def step(c, x):
            note(x)
            note(jnp.stack([x, x]))
            return c, None

        lax.scan(step, 0, xs)

    _, logs = lox.spool(f, reduce="sum", window=2, on_mismatch="split")(jnp.arange(3.0))
    assert logs["a"].tolist() == [1, 2] and logs["a#2"].tolist() == [[1, 1], [2, 2]]
    with pytest.raises(lox.StructureError, match="on_mismatch='split'"):
        lox.spool(f, reduce="sum", window=2)(jnp.arange(3.0))


def test_a_long_scan_takes_memory_for_its_windows():
    def f(xs):
        return lax.scan(lambda c, x: (c + 1, note(x).sum()), 0, xs)[0]

    xs = jax.ShapeDtypeStruct((10_000, 100), jnp.float32)
    compiled = jax.jit(lox.spool(f, reduce="mean", window=100)).lower(xs).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 10_000 * 100
    assert compiled.memory_analysis().output_size_in_bytes < 100 * 100 * 4 + 100


def tapped(fun, *args, compiled=True, **options):
    """What arrives of key "a", by call."""
    arrived = []
    fun = lox.tap(fun, arrived.append, **options)
    out = (jax.jit(fun) if compiled else fun)(*args)
    lox.flush()
    return out, arrived


@pytest.mark.covering(1)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("control", CONTROL)
def test_each_window_arrives_when_it_is_full_and_the_last_at_the_end(control, reduction):
    size, compiled = (1, 2, None)[len(control) % 3], len(reduction) % 2
    fun = CONTROL[control](lambda x: note(x) + 1)
    out, arrived = tapped(fun, jnp.float32(0.5), compiled=compiled, reduce=reduction, window=size)
    assert out == fun(jnp.float32(0.5))
    expected = by_hand(fun, reduction, size or 1000, (jnp.float32(0.5),))
    assert all(len(logs["a"]) == 1 and not logs.mask for logs in arrived)
    np.testing.assert_allclose([logs["a"][0] for logs in arrived], expected, rtol=1e-6)


@pytest.mark.parametrize("control", ["scan", "where in scan", "while_loop", "cond in scan"])
@pytest.mark.parametrize("around", [False, True])
def test_windows_of_batch_elements_arrive_when_each_is_full(control, around):
    fun = CONTROL[control](lambda x: note(x) + 1)
    xs = jnp.float32([0.5, -1.5, 3.0])
    arrived = []
    tap = lox.tap(fun if around else jax.vmap(fun), arrived.append, reduce="mean", window=2)
    jax.jit(jax.vmap(tap) if around else tap)(xs)
    lox.flush()
    for place, x in enumerate(xs):
        got = [logs["a"][0, place] for logs in arrived if "a" not in logs.mask or logs.mask["a"][0, place]]
        np.testing.assert_allclose(got, by_hand(fun, "mean", 2, (x,)), rtol=1e-6)


def test_what_is_not_reduced_arrives_as_it_is_and_all_goes_to_a_handler_further_out():
    def f(x):
        return lax.scan(lambda c, _: (note(note(c, step=c), "b") + 1, None), x, None, 5)[0]

    for options in ({}, {"buffer": 2}):
        arrived = []
        _, logs = jax.jit(lox.spool(lox.tap(f, arrived.append, reduce={"a": "sum"}, window=2, prefix="p/", **options)))(
            0.0
        )
        lox.flush()
        assert logs["a"].tolist() == logs["b"].tolist() == [0, 1, 2, 3, 4]
        sums = [(logs["p/a"].tolist(), logs.steps["step"]["p/a"].tolist()) for logs in arrived if "p/a" in logs]
        assert sums == [([1], [1]), ([5], [3]), ([4], [4])]
        assert np.concatenate([logs["p/b"] for logs in arrived if "p/b" in logs]).tolist() == [0, 1, 2, 3, 4]


def test_derivatives_and_custom_rules_leave_windows_and_values_as_they_are():
    @jax.custom_vjp
    def square(x):
        return note(x * x)

    square.defvjp(lambda x: (square(x), x), lambda x, bar: (2 * x * bar,))

    def f(x):
        return lax.scan(lambda c, _: (square(c), None), x, None, 5)[0]

    arrived = []
    gradient = jax.jit(jax.grad(lox.tap(f, arrived.append, reduce="sum", window=4)))(0.9)
    lox.flush()
    np.testing.assert_allclose(gradient, 32 * 0.9**31, rtol=1e-5)
    powers = [0.9 ** (2.0**n) for n in range(1, 6)]
    np.testing.assert_allclose([logs["a"][0] for logs in arrived], [sum(powers[:4]), powers[4]], rtol=1e-5)


def test_a_tap_says_where_it_cannot_count():
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    sharded = {"mesh": mesh, "in_specs": PartitionSpec("i"), "out_specs": PartitionSpec("i")}
    for check in (True, False):
        on_shards = jax.shard_map(lambda x: note(x), **sharded, check_vma=check)
        with pytest.raises(
            lox.UnsupportedPrimitiveError, match=r"reduce 'a', logged at .*shard_map|lox.spool\(reduce=\)"
        ):
            tapped(on_shards, jnp.zeros(2), reduce="sum")
        tapped(lambda x: note(on_shards(x), "b"), jnp.zeros(2), reduce={"b": "sum"})
    backward = jax.grad(lox.tap(lambda x: lox.log_grad({"x": x * x})["x"], print, reduce="sum"))
    with pytest.raises(lox.UnsupportedPrimitiveError, match="backward pass"):
        backward(1.0)


def test_what_was_not_sent_arrives_when_an_exception_ends_the_function():
    def f(x):
        note(x)
        note(x + 2)
        raise KeyError("stop")

    with pytest.raises(KeyError):
        tapped(f, 1.0, compiled=False, reduce="mean")
    arrived = []
    with pytest.raises(KeyError):
        lox.tap(f, arrived.append, reduce="mean")(1.0)
    lox.flush()
    assert [logs["a"].tolist() for logs in arrived] == [[2]]


def test_a_logger_gets_windows():
    logger = lox.loggers.MemoryLogger()
    f = CONTROL["scan"](lambda x: note(x) + 1)
    run = logger.init(jax.random.key(0))
    logger.tap(f, run, reduce="mean", window=3)(jnp.float32(0))
    logger.flush()
    (logs,) = (logger[run] for run in logger.runs)
    assert logs["a"].tolist() == [1, 4, 6]


@pytest.mark.parametrize("transform", [lox.spool, lambda **options: lox.tap(**options)], ids=["spool", "tap"])
def test_what_cannot_be_is_refused(transform):
    with pytest.raises(lox.LogValueError, match="reduce="):
        transform(window=2)
    with pytest.raises(lox.LogValueError, match="not both"):
        transform(reduce="mean", interval=2, window=2)
    for wrong in (0, -1, 2.5, True, "3"):
        with pytest.raises(lox.LogValueError, match="window"):
            transform(reduce="mean", window=wrong)
    with pytest.raises(lox.LogValueError, match="no reduction 'median'"):
        transform(reduce="median")


def test_a_tap_promotes_counters_and_says_why_it_cannot_reduce():
    def f():
        note(1.0, step=1)
        note(2.0, step=2.5)

    for compiled in (False, True):
        _, (logs,) = tapped(f, compiled=compiled, reduce="mean")
        assert logs["a"].tolist() == [1.5] and logs.steps["step"]["a"].tolist() == [2.5]
    with pytest.raises(
        lox.StructureError, match=r"'a' is logged as events with steps \[\] at .* and as events in a batch"
    ):
        lox.spool(lambda x: (note(x[0]), jax.vmap(note)(x)), reduce="count", window=2)(jnp.ones(3))


@pytest.mark.parametrize("kind", ["scan", "while"])
def test_a_loop_promotes_counters_of_a_window_that_began_before_it(kind):
    def f(xs):
        lox.log({"a": 1.0, "b": 1.0}, step=0, other=3)
        lox.log({"a": 3.0}, step=1, other=3)

        def body(i):
            lox.log({"a": xs[i]}, step=xs[i] / 2, other=3)
            return i + 1

        if kind == "scan":
            lax.scan(lambda i, _: (body(i), None), 0, None, length=len(xs))
        else:
            lax.while_loop(lambda i: i < len(xs), body, 0)

    xs = jnp.arange(3.0)
    options = {"max_iters": 3} if kind == "while" else {}
    for reduction, value in (("mean", np.mean), ("sum", np.sum), ("first", lambda x: x[0]), ("last", lambda x: x[-1])):
        for transform in (lambda f: f, jax.jit):
            _, logs = transform(lox.spool(f, reduce=reduction, window=3, **options))(xs)
            expected = [value([1.0, 3.0, 0.0]), value([1.0, 2.0])]
            np.testing.assert_allclose(logs.valid("a"), expected)
            assert logs.steps["step"]["a"].dtype == jnp.float32 and logs.steps["other"]["a"].dtype == jnp.int32
            chosen = {"first": [0, 0.5]}.get(reduction, [0, 1.0])
            assert logs.steps["step"]["a"].tolist() == chosen and logs.valid("b").tolist() == [1]


def test_a_while_loop_without_a_bound_says_that_windows_take_max_iters():
    fun = CONTROL["while_loop"](lambda x: note(x) + 1)
    for options in ({}, {"max_events": 5}):
        with pytest.raises(lox.SpoolError, match="With window=, give a bound with max_iters="):
            lox.spool(fun, reduce="mean", window=2, **options)(0.0)


def test_calls_of_a_jitted_function_share_a_program_wherever_they_begin_in_the_same_place_of_a_window():
    """The first call has no window before it; the others begin with a full one."""

    @jax.jit
    def six(x):
        return lax.scan(lambda c, _: (note(c) + 1, None), x, None, 6)[0]

    def f(x):
        for _ in range(5):
            x = six(x)
        return x

    spooled = lox.spool(f, reduce="sum", window=3)
    calls = [eqn for eqn in jax.make_jaxpr(spooled)(0.0).eqns if eqn.params.get("name") == "six"]
    assert len(calls) == 5 and len({id(eqn.params["jaxpr"]) for eqn in calls}) == 2
    assert spooled(0.0)[1]["a"].tolist() == [3 * first + 3 for first in range(0, 30, 3)]


def test_each_window_draws_a_sample_of_its_own():
    _, logs = lox.spool(
        lambda xs: lax.map(lambda x: lox.log({"x": x})["x"], xs), reduce=lox.reductions.reservoir(2, 0), window=10
    )(jnp.arange(40))
    assert len({tuple(row) for row in (logs["x"] % 10).tolist()}) > 1


@pytest.mark.parametrize("reduction", ["max", lox.reductions.topk(1), lox.reductions.quantiles(1.0)], ids=str)
def test_a_window_ends_where_it_is_full_in_one_batch_element_and_not_in_another(reduction):
    def f(k):
        def step(carry, i):
            lox.log({"x": jnp.float32(i)}, where=i >= k)
            return carry, None

        return jax.lax.scan(step, 0, jnp.arange(6))[0]

    _, logs = lox.spool(jax.vmap(f), reduce=reduction, window=2)(jnp.array([0, 1, 3]))
    elements = [[value for value in each if not np.isnan(value)] for each in np.asarray(logs["x"]).reshape(-1, 3).T]
    assert [np.round(each, 1).tolist() for each in elements] == [[1, 3, 5], [2, 4, 5], [4, 5]]
