"""`where=`: a log call that says itself where its event happens equals a `cond` around it under `unify=True`."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import lox

XS = np.float32([1, -2, 3, -4, 5])


def log_where(happens, value, **steps):
    lox.log({"x": value, "twice": 2 * value}, where=happens, **steps)


def log_in_cond(happens, value, **steps):
    def log(value, steps):
        lox.log({"x": value, "twice": 2 * value}, **steps)

    jax.lax.cond(happens, log, lambda value, steps: None, value, steps)


def scanned(log):
    def step(total, x):
        log(x > 0, x * total, step=total.astype(int))
        return total + 1, None

    return lambda xs: jax.lax.scan(step, jnp.float32(1), xs)[0]


def reversed_scan(log):
    def step(total, x):
        log((x > 0) & (total > 1), x)
        return total + 1, x

    return lambda xs: jax.lax.scan(step, jnp.float32(0), xs, reverse=True)[0]


def in_branch(log):
    def f(xs):
        jax.lax.cond(xs.sum() > 2, lambda x: log(x > 0, x, step=3), lambda x: None, xs[0])
        return xs.sum()

    return f


def in_branches_that_differ(log):
    def one(x):
        log(x > 0, x)

    def two(x):
        log(x > 1, x)
        log(x > 2, x + 1)

    return lambda xs: [jax.lax.switch(i, [one, two, lambda x: None], xs[i]) for i in range(3)] and xs.sum()


def in_checkpoint(log):
    @jax.checkpoint
    def body(x):
        log(x > 0, jnp.sin(x))
        return jnp.sin(x)

    return lambda xs: jax.lax.scan(lambda total, x: (total + body(x), None), jnp.float32(0), xs)[0]


def in_custom_vjp(log):
    @jax.custom_vjp
    def g(x):
        log(x > 0, x)
        return jnp.sin(x)

    def forward(x):
        log(x > 1, x)
        return jnp.sin(x), x

    g.defvjp(forward, lambda x, bar: (bar * 3 * jnp.cos(x),))
    return lambda xs: jax.lax.scan(lambda total, x: (total + g(x), None), jnp.float32(0), xs)[0]


def in_map(log):
    def each(x):
        log(x > 0, x)
        return x

    return lambda xs: jax.lax.map(each, xs, batch_size=2).sum()


PROGRAMS = [scanned, reversed_scan, in_branch, in_branches_that_differ, in_checkpoint, in_custom_vjp, in_map]
COMPOSITIONS = {
    "spool": lambda f, **how: lox.spool(f, **how)(XS)[1],
    "jit of spool": lambda f, **how: jax.jit(lox.spool(f, **how))(XS)[1],
    "spool of jit": lambda f, **how: lox.spool(jax.jit(f), **how)(XS)[1],
    "spool of vmap": lambda f, **how: lox.spool(jax.vmap(f), **how)(np.stack([XS, -XS]))[1],
    "vmap of spool": lambda f, **how: jax.vmap(lox.spool(f, **how))(np.stack([XS, -XS]))[1],
    "spool of grad": lambda f, **how: lox.spool(jax.grad(f), **how)(XS)[1],
    "spool of vmap of grad": lambda f, **how: lox.spool(jax.vmap(jax.grad(f)), **how)(np.stack([XS, -XS]))[1],
    "interval": lambda f, **how: jax.jit(lox.spool(f, interval=2, **how))(XS)[1],
    "sum": lambda f, **how: jax.jit(lox.spool(f, reduce="sum", **how))(XS)[1],
    "first, last": lambda f, **how: jax.jit(lox.spool(f, reduce={"x": "first", "twice": "last"}, **how))(XS)[1],
    "count of a batch": lambda f, **how: lox.spool(jax.vmap(f), reduce="count", **how)(np.stack([XS, -XS]))[1],
}


def shown(logs):
    """The logs with NaN as text, so that NaN equals NaN."""
    of = lambda part: {key: np.asarray(value).astype(str).tolist() for key, value in part.items()}  # noqa: E731
    return of(logs), of(logs.mask), {name: of(steps) for name, steps in logs.steps.items()}


@pytest.mark.covering(1)
@pytest.mark.parametrize("how", COMPOSITIONS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_log_with_where_is_the_log_in_a_cond_and_needs_no_unify(program, how):
    collected = COMPOSITIONS[how]
    expected = collected(program(log_in_cond), unify=True)
    assert shown(collected(program(log_where))) == shown(expected)
    assert expected.mask or how == "count of a batch"


@pytest.mark.parametrize("how", [lambda f, to: lox.tap(f, to), lambda f, to: jax.jit(lox.tap(f, to, buffer=2))])
@pytest.mark.parametrize("program", [scanned, in_branches_that_differ, in_checkpoint])
def test_a_tap_gets_the_events_that_happen_and_no_call_for_others(program, how):
    def arrived(log, f=lambda f: f, xs=XS):
        found = []
        how(f(program(log)), found.append)(xs)
        lox.flush()
        return list(map(shown, found))

    assert arrived(log_where) == arrived(log_in_cond) != []
    assert arrived(log_where, xs=-abs(XS)) == []
    batch = np.stack([XS, -XS])
    assert arrived(log_where, jax.vmap, batch) == arrived(log_in_cond, jax.vmap, batch) != []


def episodes(returns, done, steps):
    def step(number, now):
        lox.log({"return": now[0]}, where=now[1], step=now[2], episode=number)
        return number + now[1].astype(int), None

    jax.lax.scan(step, jnp.zeros(returns.shape[1], jnp.int32), (returns, done, steps))


def test_axes_of_where_are_batch_axes_of_the_event_which_each_element_has_or_not():
    rng = np.random.default_rng(0)
    returns, done = rng.normal(size=(6, 4, 2)).astype(np.float32), rng.random((6, 4)) < 0.4
    before = np.cumsum(done, 0) - done
    _, logs = jax.jit(lox.spool(episodes))(returns, done, np.arange(6))
    assert logs["return"].shape == (6, 4, 2)
    np.testing.assert_array_equal(logs.mask["return"], done)
    np.testing.assert_array_equal(logs["return"], np.where(done[..., None], returns, np.nan))
    np.testing.assert_array_equal(logs.steps["episode"]["return"], np.where(done, before, 0))
    np.testing.assert_array_equal(logs.steps["step"]["return"], np.where(done, np.arange(6)[:, None], 0))

    _, logs = jax.jit(lox.spool(episodes, reduce={"return": "sum"}))(returns, done, np.arange(6))
    np.testing.assert_allclose(logs["return"][0], np.where(done[..., None], returns, 0).sum(0), rtol=1e-6)

    _, logs = jax.jit(lox.spool(episodes, interval=2))(returns, done, np.arange(6))
    for env in range(4):
        kept = np.asarray(logs["return"])[np.asarray(logs.mask["return"])[:, env], env]
        np.testing.assert_array_equal(kept, returns[done[:, env], env][::2])


def test_axes_of_where_come_after_those_of_vmaps():
    returns = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    done = returns % 5 == 0

    def f(returns, done):
        lox.log({"return": returns}, where=done, step=7)

    _, logs = lox.spool(jax.vmap(f))(returns, done)
    assert logs["return"].shape == logs.steps["step"]["return"].shape == (1, 2, 3, 4)
    np.testing.assert_array_equal(logs["return"][0], np.where(done, returns, np.nan))
    _, logs = jax.vmap(lox.spool(f), in_axes=(0, None))(returns, done[0])
    np.testing.assert_array_equal(logs["return"][:, 0], np.where(done[:1], returns, np.nan))


def test_in_a_shard_map_the_mask_varies_as_the_values_do():
    mesh = jax.make_mesh((2,), ("d",), (jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")

    def f(x):
        lox.log({"same": 1.0}, where=x[0] > 0)
        lox.log({"each": x}, where=x > 2)
        return x

    _, logs = jax.jit(lox.spool(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)))(jnp.float32([-1, 2, 3, 4]))
    assert logs.mask["same"].tolist() == [[False, True]]
    assert logs.mask["each"].tolist() == [[[False, False], [True, True]]]
    assert logs.valid("each").tolist() == [3.0, 4.0]


@pytest.mark.parametrize("where", [False, True, np.bool_(True), np.array(False), jnp.asarray(True)])
def test_any_boolean_gives_an_event_with_a_mask(where):
    _, logs = lox.spool(lambda: lox.log({"x": 1.0}, where=where, step=2))()
    assert logs.mask["x"].tolist() == [bool(where)] and logs.steps["step"]["x"].tolist() == [2 * bool(where)]


def test_branches_whose_other_logs_differ_still_need_unify():
    def both(x):
        lox.log({"x": x}, where=x > 0)
        lox.log({"y": x})

    def f(x):
        jax.lax.cond(x > 1, both, lambda x: None, x)

    with pytest.raises(lox.StructureError, match="branch 1 logs 'y' at"):
        lox.spool(f)(2.0)
    _, logs = lox.spool(f, argnames="x")(2.0)
    assert logs["x"].tolist() == [2.0]
    _, logs = lox.spool(f, unify=True)(0.0)
    assert (logs.mask["x"].tolist(), logs.mask["y"].tolist()) == ([False], [False])


def test_one_branch_may_log_with_where_what_the_other_logs_besides():
    def one(x):
        lox.log({"x": x})
        lox.log({"x": 10 * x}, where=x > 1)

    def other(x):
        lox.log({"x": -x})

    def f(x):
        jax.lax.cond(x > 0, one, other, x)

    for x, expected in ((2.0, [2.0, 20.0]), (0.5, [0.5]), (-1.0, [1.0])):
        _, logs = jax.jit(lox.spool(f))(x)
        assert logs.valid("x").tolist() == expected


def test_a_log_of_a_value_that_jax_transposes_is_refused_with_where_too():
    @jax.custom_jvp
    def f(x):
        return x**2

    @f.defjvp
    def rule(primals, tangents):
        lox.log({"t": tangents[0]}, where=primals[0] > 0)
        return primals[0] ** 2, 2 * primals[0] * tangents[0]

    with pytest.raises(lox.StructureError, match="never gets a value"):
        lox.spool(jax.grad(f))(1.0)


def test_the_cotangents_of_elements_are_logged_where_where_is_true():
    def loss(w, x):
        hidden = lox.log_grad({"hidden": w * x}, where=x > 1, step=jnp.arange(3))["hidden"]
        return jnp.sum(hidden**2)

    x = np.float32([0, 1, 2])
    slope, logs = lox.spool(jax.grad(loss))(2.0, x)
    assert slope == jax.grad(lambda w: jnp.sum((w * x) ** 2))(2.0)
    assert logs.mask["grad/hidden"].tolist() == [[False, False, True]] and logs.valid("grad/hidden").tolist() == [8.0]
    assert logs.steps["step"]["grad/hidden"].tolist() == [[0, 0, 2]]
    _, logs = lox.spool(jax.vmap(jax.grad(loss), (None, 0)))(2.0, np.stack([x, x + 1]))
    assert logs.mask["grad/hidden"].tolist() == [[[False, False, True], [False, True, True]]]


def test_nan_where_nothing_happened_reaches_no_check_and_no_derivative():
    def f(x):
        lox.log({"x": x / 0.0}, where=x > 0, step=x)
        return x

    def total(x):
        _, logs = lox.spool(f, reduce="sum")(x)
        return logs["x"].sum()

    assert total(jnp.float32(-1)) == 0.0
    errors = checkify.nan_checks | checkify.index_checks

    def g(xs):
        def step(total, x):
            safe = jnp.where(x > 0, x, 1.0)
            lox.log({"root": jnp.sqrt(safe)}, where=x > 0)
            return total + x, None

        return jax.lax.scan(step, 0.0, xs)[0]

    for options in ({}, {"interval": 2}, {"reduce": "mean"}):
        error, _ = checkify.checkify(jax.jit(lox.spool(g, **options)), errors)(XS)
        assert error.get() is None
    slopes = jax.grad(lambda xs: jnp.nansum(lox.spool(g)(xs)[1]["root"]))(XS)
    np.testing.assert_allclose(slopes, np.where(XS > 0, 0.5 / np.sqrt(np.abs(XS)), 0), rtol=1e-6)


def test_where_nothing_happened_there_is_nan_or_zero_where_jax_debugs_nan():
    for dtype, debug in itertools.product(["float16", "float32", "complex64", "int32", "bool"], [False, True]):

        def f(x):
            lox.log({"x": x}, where=jnp.real(x).astype(jnp.float32) > 2)
            return x

        x = jnp.asarray(np.array([1, 3, 0]).astype(dtype))
        happened = np.real(np.asarray(x)).astype(np.float32) > 2
        fill = np.nan if jnp.issubdtype(x.dtype, jnp.inexact) and not debug else 0
        expected = np.where(happened, np.asarray(x), fill)
        for spooled in (lox.spool(f), lox.spool(jax.jit(f)), jax.jit(lox.spool(f))):
            with jax.debug_nans(debug):
                _, logs = spooled(x)
            assert logs["x"].dtype == dtype and logs.mask["x"].tolist() == [happened.tolist()]
            np.testing.assert_array_equal(np.real(logs["x"][0]), np.real(expected))
            np.testing.assert_array_equal(np.imag(logs["x"][0]), np.zeros(3))


@pytest.mark.parametrize(
    "where, error, message",
    [
        (1, lox.LogDataError, r"must be boolean, got int32\[\], at .*Write a comparison"),
        (jnp.ones(2), lox.LogDataError, r"must be boolean, got float32\[2\]"),
        ("yes", lox.LogDataError, "got 'yes' of type str for where"),
        (jnp.ones(2, bool), lox.LogValueError, r"shape \[2\] and the key '(grad/)?x' the shape \[3\]"),
        (jnp.ones((3, 1), bool), lox.LogValueError, r"shape \[3, 1\] and the key '(grad/)?x' the shape \[3\]"),
    ],
)
def test_what_is_no_mask_of_the_values_is_refused_with_both_shapes_and_the_line(where, error, message):
    for log in (lox.log, lox.log_grad):
        with pytest.raises(error, match=f"{message}"):
            lox.spool(functools.partial(log, {"x": jnp.ones(3)}, where=where))()


def test_a_counter_has_the_shape_of_where_or_none():
    with pytest.raises(lox.LogValueError, match=r"a number for each element of where=, of shape \[3\], got int32\[2\]"):
        lox.spool(lambda: lox.log({"x": jnp.ones(3)}, where=jnp.ones(3, bool), step=jnp.arange(2)))()
    with pytest.raises(lox.LogValueError, match=r"must be a scalar number, got int32\[3\]"):
        lox.spool(lambda: lox.log({"x": jnp.ones(3)}, step=jnp.arange(3)))()


def test_sites_say_that_such_events_may_not_happen():
    (site,) = lox.sites(lambda x: lox.log({"x": x}, where=x > 0))(1.0)
    assert site.count == "at most 1" and not site.exact
