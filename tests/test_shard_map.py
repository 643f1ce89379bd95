"""`shard_map` and `pmap`: what is the same on all shards appears once, what varies has an axis for them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from reference import assert_array, assert_logs

import lox

P = PartitionSpec
XS = np.arange(8.0, dtype=np.float32)
SHARDS = XS.reshape(4, 2)
transforms = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:4]), ("d",))


@pytest.fixture(scope="module")
def grid():
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))


def sharded(mesh, f, in_specs=P("d"), out_specs=P("d"), **options):
    return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, **options)


def f(x):
    lox.log({"x": x, "sum": lax.psum(x.sum(), "d"), "constant": 2.0}, step=5)
    return 2 * x


EXPECTED = {"x": [SHARDS], "sum": [28.0], "constant": [2.0]}
STEPS = {"step": {"x": [[5] * 4], "sum": [5], "constant": [5]}}


@transforms
def test_a_value_that_varies_gets_a_shard_axis_and_one_that_does_not_appears_once(mesh, transform):
    out, logs = lox.spool(transform(sharded(mesh, f)))(XS)
    assert_array(out, 2 * XS)
    assert_logs(logs, EXPECTED, steps=STEPS)
    out, logs = transform(lox.spool(sharded(mesh, f)))(XS)
    assert_logs(logs, EXPECTED, steps=STEPS)


@transforms
def test_without_tracking_what_varies_every_value_gets_the_shard_axis(mesh, transform):
    _, logs = lox.spool(transform(sharded(mesh, f, check_vma=False)), argnames=["x", "sum"])(XS)
    assert_logs(logs, {"x": [SHARDS], "sum": [[28.0] * 4]}, steps={"step": {"x": [[5] * 4], "sum": [[5] * 4]}})


@transforms
def test_events_of_a_loop_on_shards_come_in_order(mesh, transform):
    def g(x):
        def step(x, i):
            lox.log({"x": x, "i": i})
            return x + 1, None

        return lax.scan(step, x, jnp.arange(3))[0]

    _, logs = lox.spool(transform(sharded(mesh, g)))(XS)
    assert_logs(logs, {"x": [SHARDS, SHARDS + 1, SHARDS + 2], "i": [0, 1, 2]})


@transforms
def test_a_sharded_function_in_a_loop_logs_every_iteration(mesh, transform):
    inner = sharded(mesh, f)

    def g(x):
        return lax.scan(lambda x, _: (inner(x), None), x, None, length=2)[0]

    _, logs = lox.spool(transform(g), argnames=["x", "sum"])(XS)
    assert_logs(
        logs,
        {"x": [SHARDS, 2 * SHARDS], "sum": [28.0, 56.0]},
        steps={"step": {"x": [[5] * 4] * 2, "sum": [5, 5]}},
    )


@transforms
def test_a_branch_that_shards_take_apart_is_masked_shard_by_shard(mesh, transform):
    def g(x):
        total = x.sum()
        return lax.cond(total > 8, lambda x: lox.log({"x": x})["x"], lambda x: x, x)

    _, logs = lox.spool(transform(sharded(mesh, g)), unify=True)(XS)
    large = SHARDS.sum(1) > 8
    assert_array(logs.mask["x"], [large])
    assert_array(logs["x"], [np.where(large[:, None], SHARDS, np.float32(np.nan))])


@transforms
def test_a_loop_that_shards_run_differently_often_is_bounded_shard_by_shard(mesh, transform):
    def g(x):
        def body(i):
            lox.log({"i": i})
            return i + 1

        n = lax.axis_index("d")
        return x + lax.while_loop(lambda i: i < n, body, 0 * n)

    out, logs = lox.spool(transform(sharded(mesh, lambda x: g(x.astype(jnp.int32)))), max_iters=2)(XS)
    assert_array(out, XS.astype(np.int32) + np.arange(4, dtype=np.int32).repeat(2))
    ran = [[i < n for n in range(4)] for i in range(2)]
    assert_logs(
        logs,
        {"i": [[0, 0, 0, 0], [0, 0, 1, 1]]},
        mask={"i": ran},
        dropped={"i": [0, 0, 0, 1]},
    )


def test_two_mesh_axes_give_one_axis_of_the_shards_that_differ(grid):
    def g(x):
        lox.log({"both": x, "a": lax.psum(x, "b"), "b": lax.psum(x, "a"), "none": lax.psum(x, ("a", "b"))})
        return x

    x = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    _, logs = lox.spool(sharded(grid, g, P("a", "b"), P("a", "b")))(x)
    assert_logs(
        logs,
        {
            "both": [x.reshape(4, 1, 1)],
            "a": [x.sum(1).reshape(2, 1, 1)],
            "b": [x.sum(0).reshape(2, 1, 1)],
            "none": [[[x.sum()]]],
        },
    )


def test_axes_that_stay_automatic_give_no_axis(grid):
    def g(x):
        lox.log({"x": x})
        return x * 2

    x = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    partly = jax.jit(sharded(grid, g, P("a"), P("a"), axis_names={"a"}))
    out, logs = lox.spool(partly)(x)
    assert_array(out, 2 * x)
    assert_logs(logs, {"x": [x.reshape(2, 1, 2)]})


@pytest.mark.parametrize("ordered", [True, False])
def test_a_tap_on_shards_of_some_axes_gets_each_event_once(grid, ordered):
    def f(x):
        def step(x, _):
            lox.log({"own": x.sum(), "mean": lax.pmean(x.sum(), "a")})
            return x + 1, None

        return lax.scan(step, x, length=2)[0]

    arrived = []
    partly = jax.jit(sharded(grid, f, P("a"), P("a"), axis_names={"a"}))
    tapped = lox.tap(partly, arrived.append, ordered=ordered)
    if ordered and jax.__version_info__ < (0, 11):
        with pytest.raises(lox.UnsupportedPrimitiveError, match="ordered=False"):
            tapped(jnp.arange(4.0))
        return
    assert tapped(jnp.arange(4.0)).tolist() == [2, 3, 4, 5]
    lox.flush()
    assert sorted(value for logs in arrived if "mean" in logs for value in logs["mean"].tolist()) == [3, 5]
    assert sorted(value for logs in arrived if "own" in logs for value in logs.valid("own").flat) == [1, 3, 5, 7]


def test_a_tap_gets_what_shards_of_two_axes_have_in_common_once(grid):
    def f(x):
        lox.log({"both": x.sum(), "a": lax.psum(x.sum(), "b"), "b": lax.psum(x.sum(), "a"), "none": 3.0})
        return x

    arrived = []
    jax.jit(lox.tap(sharded(grid, f, P("a", "b"), P("a", "b")), arrived.append))(jnp.arange(4.0).reshape(2, 2))
    lox.flush()
    expected = {"both": [0, 1, 2, 3], "a": [1, 5], "b": [2, 4], "none": [3]}
    for key, values in expected.items():
        assert sorted(v for logs in arrived if key in logs for v in logs.valid(key).ravel().tolist()) == values


@transforms
def test_the_shard_axis_follows_that_of_a_batch_of_the_sharded_function(mesh, transform):
    xs = np.stack([XS, 10 * XS, 100 * XS])
    _, logs = lox.spool(transform(jax.vmap(sharded(mesh, f))), argnames=["x", "sum"])(xs)
    assert_array(logs["x"], np.stack([SHARDS, 10 * SHARDS, 100 * SHARDS])[None])
    assert_array(logs["sum"], [[28.0, 280.0, 2800.0]])


@transforms
def test_a_batch_on_shards_follows_the_shard_axis(mesh, transform):
    def g(x):
        return jax.vmap(lambda y: lox.log({"y": y})["y"])(x)

    _, logs = lox.spool(transform(sharded(mesh, g)))(XS)
    assert_logs(logs, {"y": [SHARDS]})


@transforms
def test_the_gradient_of_a_sharded_function_logs_once(mesh, transform):
    def g(x):
        lox.log({"x": x})
        return lax.psum((x**2).sum(), "d")

    total = sharded(mesh, g, out_specs=P())
    slope, logs = lox.spool(transform(jax.grad(total)))(XS)
    assert_array(slope, 2 * XS)
    assert_logs(logs, {"x": [SHARDS]})
    slope, logs = transform(jax.grad(lox.spool(total), has_aux=True))(XS)
    assert_array(slope, 2 * XS)
    assert_logs(logs, {"x": [SHARDS]})
    of_logs = transform(jax.grad(lambda x: (lox.spool(total)(x)[1]["x"] ** 3).sum()))(XS)
    np.testing.assert_allclose(of_logs, 3 * XS**2)


@transforms
def test_a_gradient_on_shards_logs_once(mesh, transform):
    def g(x):
        def step(x, i):
            lox.log({"x": x, "i": i})
            return 2 * x, None

        return jax.grad(lambda x: lax.scan(step, x, jnp.arange(2))[0].sum())(x)

    slope, logs = lox.spool(transform(sharded(mesh, g)))(XS)
    assert_array(slope, np.full(8, 4.0))
    assert_logs(logs, {"x": [SHARDS, 2 * SHARDS], "i": [0, 1]})


def test_logs_spooled_on_the_shards_are_outputs_of_each(mesh):
    def g(x):
        out, logs = lox.spool(lambda x: lox.log({"x": x, "rest": x[0]})["x"] + 1, argnames="x")(x)
        return out, logs["x"][0]

    (out, x), logs = lox.spool(sharded(mesh, g, out_specs=(P("d"), P("d"))))(XS)
    assert_array(x, XS)
    assert_logs(logs, {"rest": [SHARDS[:, 0]]})


def test_a_reduced_value_that_does_not_vary_appears_once(mesh):
    def g(x):
        def step(x, i):
            lox.log({"x": x, "i": i})
            return x + 1, None

        return lax.scan(step, x, jnp.arange(5))[0]

    for reduction, x, i in (("last", SHARDS + 4, 4), ("min", SHARDS, 0), ("count", 5, 5)):
        _, logs = lox.spool(sharded(mesh, g), reduce=reduction)(XS)
        assert_logs(logs, {"x": [x], "i": [i]})


def test_filters_and_intervals_work_on_shards(mesh):
    def g(x):
        def step(x, i):
            lox.log({"x": x, "i": i})
            return x + 1, None

        return lax.scan(step, x, jnp.arange(5))[0]

    wrapped = sharded(mesh, g)
    assert_logs(lox.spool(wrapped, argnames="i")(XS)[1], {"i": [0, 1, 2, 3, 4]})
    assert_logs(lox.spool(wrapped, interval=2)(XS)[1], {"x": [SHARDS, SHARDS + 2, SHARDS + 4], "i": [0, 2, 4]})
    out, logs = lox.spool(lox.strip(wrapped))(XS)
    assert_array(out, XS + 5)
    assert_logs(logs, {})
    assert_logs(lox.spool(lox.keep(wrapped, argnames="i"))(XS)[1], {"i": [0, 1, 2, 3, 4]})


def test_one_key_on_shards_and_outside_of_them_is_refused(mesh):
    def g(x):
        lox.log({"x": x[:2]})
        return sharded(mesh, lambda x: lox.log({"x": x})["x"])(x)

    with pytest.raises(lox.StructureError, match=r"float32\[2\] in a batch of 4"):
        lox.spool(g)(XS)


def test_rules_of_derivatives_on_shards_are_kept(mesh):
    @jax.custom_vjp
    def straight_through(x):
        lox.log({"rounded": jnp.round(x)})
        return jnp.round(x)

    straight_through.defvjp(lambda x: (straight_through(x), None), lambda _, bar: (bar,))
    total = sharded(mesh, lambda x: lax.psum(straight_through(x).sum(), "d"), out_specs=P())
    for g in (lox.spool(jax.grad(total)), jax.grad(lox.spool(total), has_aux=True)):
        slope, logs = g(XS + 0.25)
        assert_array(slope, np.ones(8))
        assert_logs(logs, {"rounded": [SHARDS]})


@transforms
def test_a_checkpoint_on_shards_logs_once(mesh, transform):
    g = jax.checkpoint(lambda x: jnp.sin(lox.log({"x": x})["x"]))
    slope, logs = lox.spool(transform(jax.grad(lambda x: sharded(mesh, g)(x).sum())))(XS)
    np.testing.assert_allclose(slope, np.cos(XS), 1e-5)
    assert_logs(logs, {"x": [SHARDS]})


def test_without_a_handler_the_program_is_the_one_without_log_calls(mesh):
    silent = sharded(mesh, lambda x: (lax.psum(x.sum(), "d"), 2 * x)[1])
    assert jax.jit(sharded(mesh, f)).lower(XS).as_text().count("all_reduce") == jax.jit(silent).lower(
        XS
    ).as_text().count("all_reduce")
    assert_array(sharded(mesh, f)(XS), 2 * XS)


def test_a_parallel_map_logs_what_each_device_logs():
    mapped = jax.pmap(lambda x: lox.log({"x": x, "sum": lax.psum(x, "d")})["x"] * 2, axis_name="d")
    xs = np.arange(4.0, dtype=np.float32)
    out, logs = lox.spool(mapped)(xs)
    assert_array(out, 2 * xs)
    assert_array(logs["x"].reshape(-1), xs)
    assert logs["x"].shape[0] == 1
    assert set(np.asarray(logs["sum"]).reshape(-1).tolist()) == {6.0}
    assert_array(mapped(xs), 2 * xs)


def test_a_parallel_map_of_a_spooled_function_returns_its_logs():
    xs = np.arange(4.0, dtype=np.float32)
    mapped = jax.pmap(lox.spool(functools.partial(lambda x: lox.log({"x": x})["x"] * 2)))
    out, logs = mapped(xs)
    assert_array(out, 2 * xs)
    assert_array(logs["x"], xs[:, None])


@pytest.fixture(scope="module")
def explicit():
    return jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))


def scanned(x):
    return lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=3)[0]


def branched(x):
    return lax.cond(x.sum() > 0, lambda x: lox.log({"x": x})["x"], lambda x: x, x)


def looped(x):
    return lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, lox.log({"x": c[1]})["x"] + 1), (0, x))[1]


@pytest.mark.covering(1)
@transforms
@pytest.mark.parametrize("options", [{}, {"interval": 2}, {"reduce": "mean"}, {"reduce": "max"}, {"reduce": "last"}])
@pytest.mark.parametrize("f", [scanned, branched, looped])
def test_shardings_in_types_stay_with_every_option(explicit, f, options, transform):
    spooled = lox.spool(f, unify=True, max_iters=4, **options)
    _, expected = spooled(jnp.arange(1.0, 9.0))
    with jax.set_mesh(explicit):
        x = jax.device_put(jnp.arange(1.0, 9.0), jax.NamedSharding(explicit, P("d")))
        _, logs = transform(spooled)(x)
        _, batched = transform(lox.spool(jax.vmap(f), unify=True, max_iters=4, **options))(x)
    assert_logs(logs, {"x": np.asarray(expected["x"])}, mask=expected.mask, dropped=expected.dropped)
    assert logs["x"].sharding.spec == P(None, "d")
    assert_array(batched.valid("x").reshape(-1, 8), expected.valid("x"))


def test_a_batch_that_is_split_over_shards_is_one_axis(grid):
    def f(x):
        lox.log({"x": x, "sum": lax.psum(x.sum(), "b")})
        return x

    sharded = jax.shard_map(f, mesh=grid, in_specs=P("b"), out_specs=P("b"))
    xs = jnp.arange(8.0).reshape(2, 4)
    for options in ({}, {"spmd_axis_name": "a"}):
        for transform in (lambda f: f, jax.jit):
            _, logs = transform(lox.spool(jax.vmap(sharded, **options)))(xs)
            assert_logs(logs, {"x": [xs.reshape(2, 2, 2)], "sum": [xs.sum(1)]})
            _, logs = transform(lox.spool(jax.vmap(sharded, **options), reduce="mean"))(xs)
            assert_logs(logs, {"x": [xs.reshape(2, 2, 2)], "sum": [xs.sum(1)]})


@pytest.mark.covering(1)
@transforms
@pytest.mark.parametrize("kind", ["plain", "scan", "while", "vmap inside", "branch", "grad"])
def test_a_batch_around_a_shard_map_comes_before_the_shards(mesh, kind, transform):
    def body(x):
        if kind == "scan":
            return lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=2)[0]
        if kind == "while":
            return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, lox.log({"x": c[1]})["x"] + 1), (0, x))[1]
        return jax.vmap(lambda x: lox.log({"x": x})["x"])(x) if kind == "vmap inside" else lox.log({"x": x})["x"]

    def f(x):
        sharded = jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
        return lax.cond(x.sum() > 100, lambda x: x, sharded, x) if kind == "branch" else sharded(x)

    options = {"unify": True, "max_iters": 3}
    g = jax.grad(lambda x: f(x).sum()) if kind == "grad" else f
    xs = jnp.arange(16.0).reshape(2, 8)
    _, expected = jax.vmap(lox.spool(g, **options), out_axes=1)(xs)
    _, logs = transform(lox.spool(jax.vmap(g), **options))(xs)
    events = {key: np.asarray(value) for key, value in expected.items()}
    assert_logs(logs, events, mask=expected.mask, dropped={key: count.T for key, count in expected.dropped.items()})


@pytest.mark.covering(1)
@transforms
@pytest.mark.parametrize("batches", [1, 2])
def test_lanes_of_a_loop_on_shards_that_end_apart(mesh, batches, transform):
    def body(n):
        def step(c):  # The counter is the same on all shards, as far as types say.
            return c[0] + 1, lox.log({"i": c[0], "x": c[1]})["x"] + 1

        return lax.while_loop(lambda c: c[0] < n[0], step, (0, n[0] * 10))[1][None]

    f = sharded(mesh, body)
    trips = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4) % 3
    for _ in range(batches):
        f = jax.vmap(f)
    trips = trips if batches == 2 else trips[0]
    out, logs = lox.spool(transform(f), max_iters=2)(jnp.asarray(trips))
    assert_array(out, trips * 11)
    happened = np.stack([trips > 0, trips > 1])
    iteration = np.arange(2, dtype=np.int32).reshape(2, *[1] * trips.ndim)
    assert_array(logs.mask["x"], happened)
    assert_array(logs["i"], np.where(happened, iteration, 0))
    assert_array(logs["x"], np.where(happened, trips * 10 + iteration, 0))


@transforms
@pytest.mark.parametrize("check_vma", [True, False])
def test_lanes_on_shards_that_branch_apart_arrive_where_they_branch(mesh, check_vma, transform):
    def each(x):
        return lax.cond(x > 2, lambda x: lox.log({"x": x})["x"], lambda x: x, x)

    arrived = []
    f = sharded(mesh, jax.vmap(each), check_vma=check_vma)
    transform(lox.tap(f, arrived.append))(XS)
    lox.flush()
    assert sorted(value for logs in arrived for value in logs["x"][logs.mask["x"]]) == XS[XS > 2].tolist()


def in_a_branch(x, log):
    return lax.cond(x > 2, lambda: (log(), x)[1], lambda: x)


def in_a_branch_of_a_branch(x, log):
    return lax.switch(jnp.int32(1), [lambda: x, lambda: in_a_branch(x, log)])


def in_a_loop(x, log):
    return lax.while_loop(lambda i: i > 2, lambda i: (log(), i - 10)[1], x)


@pytest.mark.covering(1)
@transforms
@pytest.mark.parametrize("program", [in_a_branch, in_a_branch_of_a_branch, in_a_loop])
@pytest.mark.parametrize("batched", [False, True])
def test_shards_that_alone_reach_a_log_of_a_value_they_share_are_heard(mesh, program, batched, transform):
    def body(x):
        program(x.max(), lambda: lox.log({"one": jnp.float32(1)}, step=0))
        return x

    f, xs = sharded(mesh, body), jnp.arange(4.0)
    if batched:
        f, xs = jax.vmap(f), jnp.stack([xs, xs - 1])
    _, logs = transform(lox.spool(f, unify=True, max_iters=3))(xs)
    arrived = []
    transform(lox.tap(f, arrived.append))(xs)
    lox.flush()
    for each in [logs, *arrived]:
        happened = np.asarray(each.mask["one"])
        assert np.argwhere(happened.any(0)).tolist() == ([[0, 3]] if batched else [[3]])
        assert np.asarray(each["one"])[happened].tolist() == [1]
    assert len(arrived) == 1


@pytest.mark.covering(1)
@transforms
@pytest.mark.parametrize("program", [in_a_branch, in_a_branch_of_a_branch, in_a_loop])
def test_shards_that_alone_reach_a_log_leave_what_waits_in_a_buffer_alone(mesh, program, transform):
    def f(xs):
        lox.log({"before": xs})
        sharded(mesh, lambda x: [program(x.max(), lambda: lox.log({"one": jnp.float32(1)})), x][1])(xs)
        lox.log({"after": xs})

    arrived = []
    transform(lox.tap(f, arrived.append, buffer=10))(jnp.arange(4.0))
    lox.flush()
    assert sorted(key for logs in arrived for key in logs) == ["after", "before", "one"]


def doubling(x):
    def go_on(c):
        lox.log({"x": c[1]})
        return c[0] < 2

    return lax.while_loop(go_on, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]


def with_jvp(f):
    g = jax.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (g(*primals), tangents[0]))
    return g


def with_vjp(f):
    g = jax.custom_vjp(f)
    g.defvjp(lambda x: (f(x), None), lambda _, cotangent: (cotangent,))
    return g


def alternating(x, loop=doubling):
    lox.log({"x": x})
    x = loop(lox.log({"x": x + 1})["x"])
    return lox.log({"x": x + 1})["x"]


@pytest.mark.covering(1)
@transforms
@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize(
    "around", [lambda f: f, lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, length=2)[0]]
)
@pytest.mark.parametrize("loop", [doubling, with_jvp(doubling), with_vjp(doubling)], ids=["loop", "jvp", "vjp"])
def test_logs_before_in_and_after_a_loop_on_shards_of_a_batch_keep_their_order(mesh, loop, around, batches, transform):
    def expected(x):
        rounds = 1 if around(alternating) is alternating else 2
        events = []
        for _ in range(rounds):
            events += [x, x + 1, x + 1, 2 * (x + 1), 4 * (x + 1), 4 * (x + 1) + 1]
            x = events[-1]
        return np.stack(events)

    f = sharded(mesh, around(functools.partial(alternating, loop=loop)))
    xs = np.arange(8.0, dtype=np.float32)
    for _ in range(batches):
        f, xs = jax.vmap(f), np.stack([xs, xs + 10])
    _, logs = transform(lox.spool(f, unify=True, max_iters=3))(xs)
    values = expected(xs)
    shards = (*xs.shape[:-1], 4, 2)
    for lane in np.ndindex(shards[:-1]):
        happened = logs["x"][:, *lane][logs.mask["x"][:, *lane]]
        assert_array(happened, values.reshape(-1, *shards)[:, *lane])
    arrived = []
    transform(lox.tap(f, arrived.append))(xs)
    lox.flush()
    for lane in np.ndindex(shards[:-1]):
        all_there = np.ones((1, *shards[:-1]), bool)
        parts = [each["x"][:, *lane][each.mask.get("x", all_there)[:, *lane]] for each in arrived]
        assert_array(np.concatenate(parts), values.reshape(-1, *shards)[:, *lane])


def test_a_branch_on_shards_in_a_loop_whose_lanes_end_apart(mesh):
    def body(x, i):
        return lax.cond(x[0] % 2 == 1, lambda: lox.log({"x": x}, step=i)["x"], lambda: x)

    def f(x, trips):
        def step(carry):
            i, x = carry
            return i + 1, sharded(mesh, lambda x: body(x, i))(x)

        return lax.while_loop(lambda carry: carry[0] < trips, step, (0, x))

    arrived = []
    jax.vmap(lox.tap(f, arrived.append))(jnp.arange(8.0).reshape(2, 4), jnp.array([1, 2]))
    lox.flush()
    events = [(logs["x"][where], logs.steps["step"]["x"][where]) for logs in arrived for where in [logs.mask["x"]]]
    values = sorted(pair for value, step in events for pair in zip(value.ravel(), step.ravel(), strict=True))
    assert values == [(1, 0), (3, 0), (5, 0), (5, 1), (7, 0), (7, 1)]


@pytest.mark.parametrize("around", [lambda f: f, jax.checkpoint], ids=["", "checkpoint of"])
@pytest.mark.parametrize(
    "inside", [lambda f: f, lambda f: jax.checkpoint(jax.checkpoint(f))], ids=["scan", "scan of checkpoints"]
)
def test_a_loop_on_shards_in_a_differentiated_scan_logs_in_every_iteration(mesh, around, inside):
    def doubled(y, count):
        def body(carry):
            i, y = carry
            lox.log({"y": y[0]})
            return i + 1, 2 * y

        return lax.while_loop(lambda carry: carry[0] < count, body, (jnp.int32(0), y))[1]

    def f(x):
        on_shards = sharded(mesh, inside(lambda x, y, n: x * doubled(y, n)), in_specs=(P("d"), P("d"), P()))
        # JAX moves what does not depend on the iteration out of the scan, also what it finds on shards: of this loop,
        # which begins with the same values in each and ends by what the scan carries, it must move nothing.
        step = lambda carry, _: ((on_shards(carry[0], jnp.arange(4.0), carry[1]), carry[1] + 1), None)  # noqa: E731
        return lax.scan(step, (x, jnp.int32(0)), length=4)[0][0].sum()

    slope, logs = lox.spool(jax.grad(around(f)), max_iters=4)(jnp.ones(4))
    expected = [[2.0**i * y for y in range(4)] for count in range(4) for i in range(count)]
    assert_array(logs["y"][logs.mask["y"].all(1)], expected)
    assert_array(slope, [np.prod([2.0**count * y for count in range(4)]) for y in range(4)])


@transforms
def test_a_scan_of_nothing_on_shards_has_no_events(mesh, transform):
    def body(x):
        return lax.scan(lambda x, i: (lox.log({"x": x}, step=i)["x"], None), x, jnp.arange(0))[0]

    _, logs = transform(lox.spool(sharded(mesh, body)))(XS)
    assert np.asarray(logs["x"]).shape == (0, 4, 2)
    assert np.asarray(logs.steps["step"]["x"]).shape == (0, 4)


@pytest.mark.parametrize("reduce", ["last", "first", "mean", "count"])
def test_the_last_event_of_each_shard_in_a_loop_has_a_counter_of_its_own(mesh, reduce):
    def body(x):
        def step(carry, i):
            lox.log({"x": x[0] * i}, where=i >= x[0], step=i)
            return carry, None

        lax.scan(step, 0, jnp.arange(3.0))
        return x

    wants = {"last": [0, 2, 4, 4], "first": [0, 1, 4, 4], "mean": [0, 1.5, 4, 4], "count": [3, 2, 1, 1]}
    _, logs = jax.jit(lox.spool(sharded(mesh, body), reduce=reduce))(jnp.array([0.0, 0, 1, 1, 2, 2, 2, 2]))
    np.testing.assert_array_equal(logs["x"], [wants[reduce]])
    np.testing.assert_array_equal(logs.steps["step"]["x"], [[0, 1, 2, 2] if reduce == "first" else [2, 2, 2, 2]])


@pytest.mark.parametrize("around", [0, 1])
def test_a_reduction_on_shards_that_split_a_batch_is_refused_under_other_batches_as_well(grid, around):
    def f(x):
        return lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, lox.log({"x": c[1]})["x"]), (0, x))[1]

    sharded = jax.shard_map(f, mesh=grid, in_specs=P("b"), out_specs=P("b"), check_vma=False)
    batched = jax.vmap(sharded, spmd_axis_name="a")
    for _ in range(around):
        batched = jax.vmap(batched)
    with pytest.raises(lox.UnsupportedPrimitiveError, match="spmd_axis_name="):
        lox.spool(batched, reduce="sum")(jnp.zeros((*[3] * around, 2, 4)))


@transforms
def test_a_value_that_shards_share_has_the_counters_of_each(mesh, transform):
    def counted(x):
        lox.log({"sum": lax.psum(x.sum(), "d")}, step=lax.axis_index("d"))
        return x

    _, logs = lox.spool(transform(sharded(mesh, counted)))(XS)
    assert_logs(logs, {"sum": [[28.0] * 4]}, steps={"step": {"sum": [[0, 1, 2, 3]]}})


def logs_on_odd_shards(x):
    return lax.cond(lax.axis_index("d") % 2 == 1, lambda: lox.log({"a": x.sum()})["a"], lambda: x.sum())


def logs_as_often_as_its_shard(x):
    def iterate(carry):
        return carry[0] + 1, lox.log({"a": carry[1]})["a"]

    start = lax.axis_index("d") * 0, x.sum()
    return lax.while_loop(lambda carry: carry[0] < lax.axis_index("d"), iterate, start)[1]


def logs_once_more(x):
    lox.log({"a": x.sum()})
    return logs_on_odd_shards(x)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize(
    ("fun", "counts"),
    [(logs_on_odd_shards, [0, 1, 0, 1]), (logs_as_often_as_its_shard, [0, 1, 2, 3]), (logs_once_more, [1, 2, 1, 2])],
)
def test_a_reduction_counts_on_each_shard_what_happens_there_also_under_vmap(mesh, check_vma, fun, counts):
    g = sharded(mesh, lambda x: fun(x)[None], check_vma=check_vma)
    xs, happened = np.stack([XS, XS + 8]), np.array(counts) > 0
    parts = xs.reshape(2, 4, 2).sum(2)
    alone = lox.spool(g, reduce="count")(XS)[1]
    assert alone["a"].tolist() == [counts]
    for transform in (lambda f: f, jax.jit):
        batched = transform(lox.spool(jax.vmap(g), reduce="count"))(xs)[1]
        assert batched["a"].tolist() == [[counts] * 2]
        assert jax.vmap(lox.spool(g, reduce="count"))(xs)[1]["a"].tolist() == [[counts]] * 2
    twice = lox.spool(jax.vmap(jax.vmap(g)), reduce="count")(xs[None])[1]
    assert twice["a"].tolist() == [[[counts] * 2]]
    last = lox.spool(jax.vmap(g), reduce="last")(xs)[1]
    np.testing.assert_array_equal(last["a"], np.where(happened, parts, np.nan)[None])
    masks = [happened.tolist()] * 2
    assert (last.mask["a"].tolist() if not happened.all() else [masks]) == [masks]


def test_a_count_of_two_calls_on_shards_has_their_axis_before_that_of_a_vmap_inside(mesh):
    def each(x):
        lox.log({"x": x}, where=x > 0)
        lox.log({"x": jnp.stack([x, x])}, where=x > 2)
        return x

    _, logs = lox.spool(sharded(mesh, jax.vmap(each)), reduce="count")(XS)
    assert logs["x"].tolist() == [[[(x > 0) + (x > 2) for x in shard] for shard in SHARDS.tolist()]]


def test_a_tap_that_gathers_events_gives_those_before_a_function_on_a_shard_before_its_own():
    """Also where JAX does not track what varies, so that the buffer stays outside."""
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))

    def f(x):
        lox.log({"before": x.sum()})
        x = sharded(mesh, lambda x: lox.log({"inside": x})["inside"], check_vma=False)(x)
        lox.log({"after": x.sum()})
        return x

    arrived = []
    jax.jit(lox.tap(f, arrived.append, buffer=4))(XS)
    lox.flush()
    assert [key for logs in arrived for key in logs] == ["before", "inside", "after"]


def test_derivatives_of_a_replicated_value_that_a_branch_on_shards_logs_are_summed_over_shards():
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))
    def f(w, x):
        return lax.cond(
            x.sum() > -1, lambda x: (lox.log({"a": w * w}), x)[1], lambda x: (lox.log({"a": 0 * w}), x)[1], x
        )

    slope = jax.grad(lambda w, x: lox.spool(f)(w, x)[1]["a"].sum())
    assert jax.jit(slope)(3.0, jnp.arange(4.0)) == 12


@transforms
def test_what_does_not_vary_is_counted_on_the_shards_that_log_it(mesh, transform):
    def f(x):
        return lax.cond(x[0] % 2 == 1, lambda x: (lox.log({"five": jnp.float32(5)}), x)[1], lambda x: x, x)

    _, logs = lox.spool(transform(sharded(mesh, f)), reduce="count")(jnp.arange(4.0))
    assert logs["five"].tolist() == [[0, 1, 0, 1]]


def test_what_is_tapped_on_the_shards_of_a_grid_comes_from_each_place(grid):
    arrived = []

    def f(x):
        lox.log({"x": x.sum()})
        return x

    jax.jit(sharded(grid, lox.tap(f, arrived.append), P("a", "b"), P("a", "b")))(jnp.arange(4.0).reshape(2, 2))
    lox.flush()
    found = [(np.argwhere(~np.isnan(logs["x"])).tolist(), float(np.nansum(logs["x"]))) for logs in arrived]
    assert sorted(found) == [([[0, place]], float(place)) for place in range(4)]
