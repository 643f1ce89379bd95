"""Reductions: what they compute, to the precision of their dtype, over any loop and any dtype."""

import dataclasses
import functools
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference import assert_logs

import lox
from lox import _reduce
from lox._events import NOWHERE
from lox._reductions import REDUCTIONS

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint32", "bool", "complex64")


def over_scan(xs):
    lax.scan(lambda c, x: (lox.log({"x": x}) and c, None), 0, xs)


def over_scans(xs):
    lax.scan(lambda c, row: (over_scan(row), None), None, xs.reshape(4, -1))


def over_while(xs):
    lax.fori_loop(0, jnp.int32(len(xs)), lambda i, c: lox.log({"x": xs[i]}) and c, 0)


def over_steps(xs):
    for x in xs:
        lox.log({"x": x})


def over_branches(xs):
    """Some surely happen, some do not at all."""

    def step(carry, x):
        lox.log({"x": x})
        lax.cond(x == x, lambda: None, lambda: lox.log({"x": x}) and None)
        return carry, None

    lax.scan(step, 0, xs)


OF_ALL = {
    "first": lambda xs: xs[0],
    "last": lambda xs: xs[-1],
    **{how: getattr(jnp, how) for how in ("mean", "sum", "min", "max", "std", "var")},
}
"""Each reduction as a function of all events at once."""

LOOPS = (over_scan, over_scans, over_while, over_steps, over_branches)
loops = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)


def reduced(loop, how, xs, transform=jax.jit):
    return transform(lox.spool(loop, reduce=how, unify=True))(xs)[1]["x"][0]


def every(fun):
    """A function that returns what each of the reductions makes of the logs of `fun`, compiled as one program."""
    return lambda xs: {how: lox.spool(fun, reduce=how, unify=True)(xs)[1] for how in REDUCTIONS}


@pytest.mark.optimized
@pytest.mark.parametrize("loop", [over_scan, over_scans, over_while])
@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("spread", [0, 0.1])
def test_ten_million_events_are_added_as_precisely_as_they_are_logged(loop, how, spread):
    xs = np.random.default_rng(0).normal(0.1, spread, 10_000_000).astype(np.float32)
    want = getattr(np, how)(xs, dtype=np.float64)
    assert np.float32(reduced(loop, how, jnp.asarray(xs))) == pytest.approx(want, rel=2e-7)


@pytest.mark.optimized
@pytest.mark.parametrize("loop", [over_scan, over_while])
@pytest.mark.parametrize(("mean", "std"), [(0, 1), (1e3, 1), (-1e-30, 1e-15), (3, 0)], ids=str)
def test_the_spread_of_ten_million_events_is_as_precise(loop, mean, std):
    xs = np.random.default_rng(0).normal(mean, std, 10_000_000).astype(np.float32)
    for how in ("var", "std"):
        want = getattr(np, how)(xs, dtype=np.float64)
        assert np.float32(reduced(loop, how, jnp.asarray(xs))) == pytest.approx(want, rel=1e-6, abs=0)


@pytest.mark.optimized
def test_short_scans_in_a_long_one_are_added_as_precisely():
    def inner(x, _):
        return lox.log({"x": x})["x"] * 0 + x, None

    def outer(x, _):
        return lax.scan(inner, x, None, length=2)

    x = np.float32(0.1)
    _, logs = lox.spool(jax.jit(lambda x: lax.scan(outer, x, None, length=500_000)[0]), reduce="sum")(x)
    assert logs["x"][0] == pytest.approx(np.float64(x) * 1_000_000, rel=2e-7)


@pytest.mark.covering(1)
@loops
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_of_every_dtype_are_those_of_the_full_logs(loop, dtype):
    xs = jnp.asarray(np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 4, 12)).astype(dtype)
    found, (_, full) = jax.jit(every(loop))(xs), jax.jit(lox.spool(over_scan))(xs)
    for how in REDUCTIONS:
        got, want = found[how]["x"][0], full.reduce(how)["x"][0]
        assert got.dtype == want.dtype
        np.testing.assert_allclose(*(np.asarray(x).astype(np.complex64) for x in (got, want)), rtol=1e-6)


@pytest.mark.covering(1)
@loops
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", ["min", "max"])
def test_the_least_of_a_dtype_is_its_own_maximum(loop, dtype, how):
    least, most = -np.inf, np.inf
    if dtype == "bool":
        least, most = False, True
    elif jnp.issubdtype(dtype, jnp.integer):
        least, most = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    elif dtype == "float8_e4m3fn":  # Has no infinity.
        least, most = jnp.finfo(dtype).min, jnp.finfo(dtype).max
    xs = jnp.full(4, least if how == "max" else most, dtype)
    assert reduced(loop, how, xs) == xs[0]


@loops
@pytest.mark.parametrize(
    "values",
    [[1, np.inf, 2, 3], [1, np.nan, 2, 3], [np.inf, -np.inf, 1, 2], [-np.inf, 1, 2, 3], [3e38, 3e38, -3e38, 1]],
    ids=str,
)
def test_what_is_not_finite_reduces_as_numpy_reduces_it(loop, values):
    xs = np.asarray(values, np.float32)
    found = jax.jit(every(loop))(jnp.asarray(xs))
    with np.errstate(all="ignore"):
        for how in ("std", "var"):
            np.testing.assert_array_equal(found[how]["x"][0], np.nan)
        for how in ("mean", "sum", "min", "max"):
            want = functools.reduce(np.add, xs) if how in ("mean", "sum") else getattr(np, how)(xs)
            np.testing.assert_array_equal(found[how]["x"][0], want / 4 if how == "mean" else want)


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f])
def test_an_infinite_sum_is_no_nan(transform):
    with jax.debug_nans(True):
        assert reduced(over_scan, "mean", jnp.array([1.0, np.inf]), transform) == np.inf
        assert reduced(over_steps, "sum", jnp.array([1.0, np.inf]), transform) == np.inf
        assert reduced(over_steps, "std", jnp.array([1.0, 3.0]), transform) == 1


@pytest.mark.covering(1)
@loops
@pytest.mark.parametrize("how", ["mean", "sum", "min", "max", "first", "last", "std", "var"])
def test_the_derivative_of_a_reduction_is_that_of_the_same_of_the_full_logs(loop, how):
    xs = jnp.array([1.0, 3.0, 2.0, -1.0])
    full = jax.grad(lambda xs: OF_ALL[how](lox.spool(over_scan)(xs)[1]["x"]))(xs)
    if loop is not over_while:  # Which has no reverse mode.
        np.testing.assert_allclose(jax.grad(functools.partial(reduced, loop, how))(xs), full, rtol=1e-6)
    np.testing.assert_allclose(jax.jacfwd(functools.partial(reduced, loop, how))(xs), full, rtol=1e-6)


@pytest.mark.covering(1)
@loops
@pytest.mark.parametrize("how", ["std", "var"])
def test_the_spread_of_equal_events_is_zero_and_so_is_its_derivative(loop, how):
    for xs in (jnp.full(4, 0.1), jnp.full(4, 3e30)):
        value, derivative = jax.value_and_grad(lambda xs: reduced(over_scan, how, xs))(xs)
        assert value == reduced(loop, how, xs) == 0
        assert derivative.tolist() == [0] * len(xs)


def averaged(xs, decay):
    """The moving average by hand."""
    average, *rest = xs
    for x in rest:
        average = decay * average + (1 - decay) * x
    return average


@loops
@pytest.mark.parametrize("decay", [0, 0.9])
def test_a_moving_average_is_that_of_the_loop_by_hand_and_so_is_its_derivative(loop, decay):
    xs = jnp.array([[1.0, 3.0], [2.0, -1.0], [0.0, 8.0], [5.0, 5.0]])
    if loop in (over_scans, over_branches):
        xs = xs[:, 0]
    how, want = lox.reductions.ewma(decay), averaged(xs, decay)
    np.testing.assert_allclose(reduced(loop, how, xs), want, rtol=1e-6)
    np.testing.assert_allclose(lox.spool(over_scan)(xs)[1].reduce(how)["x"][0], want, rtol=1e-6)
    slopes = jax.jacfwd(functools.partial(reduced, loop, how))(xs)
    np.testing.assert_allclose(slopes, jax.jacfwd(lambda xs: averaged(xs, decay))(xs), rtol=1e-6)


def test_a_moving_average_starts_anew_in_each_window_and_batch_element():
    def f(xs):
        return lax.map(lambda x: lox.log({"x": x}, where=x > 0)["x"], xs)

    xs = np.array([[1, -2, 3, 4, 5], [-1, 7, 2, -3, -1], [-1, -1, -1, -1, -1]], np.float32)
    how = lox.reductions.ewma(0.5)
    _, logs = jax.vmap(lox.spool(f, reduce=how))(xs)
    np.testing.assert_allclose(logs["x"][:, 0], [4.0, 4.5, np.nan])
    _, logs = jax.vmap(lox.spool(f, reduce={"x": how}, window=2))(xs)
    windows = [row[happened].tolist() for row, happened in zip(logs["x"], logs.mask["x"], strict=True)]
    assert windows == [[2, 4.5], [4.5], []]
    heard = []
    lox.tap(f, lambda logs: heard.extend(logs["x"]), reduce=how, window=2)(xs[0])
    lox.flush()
    assert heard == [2, 4.5]


def test_infinity_stays_in_a_moving_average_and_nan_is_not_made_of_it():
    with jax.debug_nans(True):
        for first in (np.inf, 1.0):
            xs = jnp.full(3000, 1.0).at[0].set(first)  # So many that the weight of the first one is 0.
            assert reduced(over_scan, lox.reductions.ewma(0.9), xs) == pytest.approx(first)
            assert lox.spool(over_scan)(xs)[1].reduce(lox.reductions.ewma(0.9))["x"] == pytest.approx(first)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if not name.startswith("float8")])
def test_a_moving_average_has_the_dtype_of_a_mean(dtype):
    xs = jnp.arange(4).astype(dtype)
    found = reduced(over_scan, lox.reductions.ewma(0.5), xs)
    assert found.dtype == jnp.mean(xs).dtype
    np.testing.assert_allclose(np.asarray(found, complex), averaged(np.asarray(xs, complex), 0.5), rtol=1e-2)


def test_all_64_bits_of_floats_are_reduced_where_jax_has_them():
    rows = 1e3 + np.random.default_rng(0).normal(size=(5, 2))
    found = {"real": rows[:, 0], "complex": rows @ [1, 2j]}
    of = {how: getattr(np, how) for how in ("mean", "sum", "std", "var")}
    of |= {"first": lambda xs: xs[0], "last": lambda xs: xs[-1], lox.reductions.ewma(0.9): lambda xs: averaged(xs, 0.9)}
    wants = {(kind, how): reduce(xs) for kind, xs in found.items() for how, reduce in of.items()}

    def f(found):
        lax.map(lambda x: lox.log({f"{kind} {how}": x[kind] for kind, how in wants}) and None, found)

    with jax.enable_x64(True):
        reduce = {f"{kind} {how}": how for kind, how in wants}
        _, logs = lox.spool(f, reduce=reduce)(jax.tree.map(jnp.asarray, found))
        for (kind, how), want in wants.items():
            assert logs[f"{kind} {how}"].dtype == want.dtype
            np.testing.assert_allclose(logs[f"{kind} {how}"], [want], rtol=1e-12)


@pytest.mark.parametrize("decay", [1, -0.1, "a", True, float("nan"), 1 - 1e-12, None], ids=str)
def test_a_decay_is_a_number_below_1(decay):
    with pytest.raises(lox.LogValueError, match=rf"from 0 to less than 1 \(in float32\), got {decay!r}"):
        lox.reductions.ewma(decay)


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f])
def test_a_batch_has_the_spread_of_each_element(transform):
    """Only events that happened count, and each element of the values has its own spread."""

    def f(x):
        lox.log({"x": x, "pair": jnp.stack([x, 3 * x])}, where=x > 0)
        return x

    def over(xs):
        return lax.map(f, xs)

    xs = np.array([[1, 2, -1, 4], [-1, 3, -2, -3], [-1, -1, -1, -1]], np.float32)
    logs = transform(jax.vmap(lox.spool(over, reduce="var")))(jnp.asarray(xs))[1]
    wants = [np.var([1, 2, 4]), 0, np.nan]
    np.testing.assert_allclose(logs["x"][:, 0], wants, rtol=1e-6)
    np.testing.assert_allclose(logs["pair"][:, 0], np.stack([wants, np.multiply(9, wants)], -1), rtol=1e-6)
    assert logs.mask["x"][:, 0].tolist() == [True, True, False]


def test_the_spread_of_complex_numbers_is_real():
    xs = jnp.array([1 + 2j, 3 - 1j, 0.5j])
    found = reduced(over_scan, "var", xs)
    assert found.dtype == jnp.float32 and found == pytest.approx(np.var(np.asarray(xs)))


def test_events_that_surely_and_that_maybe_happen_are_counted_together():
    def f(xs):
        def step(carry, x):
            lox.log({"x": x}, step=carry)
            lax.cond(x > 1, lambda: lox.log({"x": -x}, step=-carry) and None, lambda: None)
            return carry + 1, None

        lax.scan(step, 0, xs)

    events = [0.0, 1.0, 2.0, -2.0, 3.0, -3.0]
    wants = {how: float(of_all(jnp.asarray(events))) for how, of_all in OF_ALL.items()} | {"count": 6}
    for how, want in wants.items():
        logs = jax.jit(lox.spool(f, reduce=how, unify=True))(jnp.arange(4.0))[1]
        assert logs["x"].tolist() == [pytest.approx(want)]
        assert logs.steps["step"]["x"].tolist() == [0 if how == "first" else -3]
        assert not logs.mask


@pytest.mark.parametrize("how", REDUCTIONS)
def test_a_loop_of_no_iterations_has_no_event(how):
    logs = jax.jit(lox.spool(over_scan, reduce=how))(jnp.zeros((0, 2)))[1]
    assert logs.mask["x"].tolist() == [False]
    zeros = how in ("sum", "count")
    assert np.array_equal(logs["x"], np.zeros((1,) if how == "count" else (1, 2)) + (0 if zeros else np.nan), True)


def test_more_events_than_fit_into_the_dtype_of_a_count_are_refused():
    def f():
        lax.scan(lambda c, _: (over_scan(jnp.zeros(2**16)), None), None, length=2**16)

    assert jax.eval_shape(lox.spool(f, reduce="mean"))[1]["x"].shape == (1,)
    with pytest.raises(lox.LogValueError, match="4,294,967,296 events"):
        jax.eval_shape(lox.spool(f, reduce="count"))


def test_the_first_of_more_events_than_an_int32_counts_is_the_first():
    """A loop, seen from an iteration before which the number of events wraps around to a negative number."""
    mask = jnp.asarray(True)
    event = _reduce.lift(REDUCTIONS["first"], jnp.float32(2), mask, {}, NOWHERE, 0)
    none = _reduce.empty_in_loop(jax.tree.map(jax.typeof, event))
    sofar = _reduce.merge(none, _reduce.lift(REDUCTIONS["first"], jnp.float32(1), mask, {}, NOWHERE, 0))
    sofar = dataclasses.replace(sofar, maybe=jnp.int32(-(2**31)))
    assert _reduce.merge(sofar, event).state == 1


def rows(inner):
    """A scan, in each iteration of which `inner` logs the values of a row, and may have others as well."""
    return lambda xs: lax.scan(lambda c, row: (inner(row), None), None, xs)[0]


@jax.custom_jvp
def customized(row):
    over_scan(row)
    return 1.0


customized.defjvp(lambda primals, _: (customized(*primals), 0.0))


def shards(fun):
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(fun, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())


NESTS = {
    "a scan": rows(over_scan),
    "a reverse scan": rows(
        lambda row: lax.scan(lambda c, x: (lox.log({"x": x}) and c, None), 0, row, reverse=True) and None
    ),
    "a scan of scans": rows(lambda row: rows(over_scan)(row.reshape(2, -1))),
    "two scans": rows(lambda row: (over_scan(row[:1]), over_scan(row[1:])) and None),
    "a scan among logs": rows(lambda row: (over_steps(row[:1]), over_scan(row[1:3]), over_steps(row[3:])) and None),
    "no iterations": rows(lambda row: (over_scan(row[:0]), over_steps(row)) and None),
    "other keys": rows(lambda row: (over_scan(row), lox.log({"y": row[0]})) and None),
    "two keys in two scans": rows(
        lambda row: (over_scan(row), lax.map(lambda x: lox.log({"y": x})["y"], row)) and None
    ),
    "a jitted scan": rows(jax.jit(over_scan)),
    "a checkpointed scan": rows(jax.checkpoint(over_scan)),
    "a scan in a custom rule": rows(lambda row: [customized(row)] and None),
    "a scan in a branch": rows(lambda row: lax.cond(row[0] > 0, over_scan, over_scan, row)),
    "a scan in one branch": rows(lambda row: lax.cond(row[0] > 0, over_scan, lambda row: None, row)),
    "a while_loop": rows(over_while),
    "a scan in a while_loop": lambda xs: lax.fori_loop(0, jnp.int32(len(xs)), lambda i, c: over_scan(xs[i]), None),
    "a scan in a while_loop in a scan": rows(
        lambda row: lax.fori_loop(0, row[0].astype(int), lambda i, c: over_scan(row), None)
    ),
    "lanes": rows(jax.vmap(over_scan, axis_size=4)),
    "a scan on shards": rows(shards(lambda row: (over_scan(row), None)[1])),
    "on shards": shards(lambda xs: rows(over_scan)(xs)),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("nest", NESTS)
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(f))], ids=["jit", "vmap", "both"])
def test_loops_in_loops_reduce_as_all_their_events_do(nest, transform):
    xs = jnp.asarray(np.random.default_rng(1).integers(-3, 4, (6, 4)), jnp.float32)
    if nest == "lanes":
        xs = jnp.stack([xs, -xs, xs + 1], -1).reshape(6, 4, 3)
    if transform is not jax.jit:
        xs = jnp.stack([xs, xs[::-1]])

    def full(xs):
        logs = lox.spool(NESTS[nest], max_iters=6, unify=True)(xs)[1]
        return {how: logs.reduce(how) for how in REDUCTIONS}

    found, expected = transform(every(NESTS[nest]))(xs), transform(full)(xs)
    for how in REDUCTIONS:
        assert set(found[how]) == set(expected[how])
        for key in found[how]:
            values = found[how][key], expected[how][key]
            if how == "count":  # Of which each lane of the program has its own.
                values = np.unique(values[0]), np.unique(values[1])
            np.testing.assert_allclose(*values, rtol=1e-6)


def test_a_sum_that_jax_numpy_does_not_have_is_refused_at_its_line():
    line = over_scan.__code__.co_firstlineno + 1
    with pytest.raises(lox.LogValueError, match=f"no 'sum' of int4, logged at .*test_reduce.py:{line} "):
        lox.spool(over_scan, reduce="sum")(jnp.ones(2, "int4"))


@pytest.mark.parametrize("keywords", [{"reduce": "last"}, {"interval": 1}], ids=str)
def test_constants_of_a_compiled_program_are_logged_like_other_values(keywords):
    """True and False are Python's own in a jaxpr."""

    @jax.jit
    def constants():
        lox.log({"bool": jnp.asarray(True), "int": jnp.int32(2), "float": jnp.float32(0.5)}, step=jnp.int32(7))

    _, logs = lox.spool(constants, **keywords)()
    steps = {"step": {key: [7] for key in ("bool", "int", "float")}}
    assert_logs(logs, {"bool": [True], "int": [2], "float": [0.5]}, steps=steps)


def test_a_log_in_a_branch_that_jax_transposes_is_reduced_to_nothing():
    def triple(x):
        lox.log({"x": x})
        return 3 * x

    def transposed(y):
        return lax.cond(y > 0, lambda y: jax.linear_transpose(triple, 1.0)(y)[0], lambda y: y, y)

    out, logs = lox.spool(transposed, reduce="sum")(jnp.float32(2))
    assert out == 6
    assert_logs(logs, {"x": [0.0]}, mask={"x": [False]})


def test_as_many_events_as_an_int32_holds_are_counted_and_one_more_is_refused():
    def f(length):
        lax.scan(lambda c, _: (lox.log({"x": 1.0}) and c, None), 0, None, length=length)

    program = jax.make_jaxpr(lambda: lox.spool(f, reduce="count")(2**31 - 1)[1]["x"])()
    assert str(2**31 - 1) in str(program)
    with pytest.raises(lox.LogValueError, match="2,147,483,648 events"):
        jax.make_jaxpr(lambda: lox.spool(f, reduce="count")(2**31)[1]["x"])()


@pytest.mark.parametrize("transform", [jax.jit, lambda f: f])
def test_events_of_branches_of_which_one_has_more_are_each_reduced_once(transform):
    branches = [[1.0, 2.0, 6.0], [5.0], [3.0, 4.0]]

    def f(index):
        lax.switch(index, [functools.partial(over_steps, xs) for xs in branches])

    for how, of in {"count": len, "sum": np.sum, "mean": np.mean, "last": lambda xs: xs[-1]}.items():
        found = transform(lox.spool(f, reduce=how))
        assert [found(index)[1]["x"].tolist() for index in range(3)] == [[of(xs)] for xs in branches]


def test_what_is_not_reduced_of_a_reversed_scan_is_in_the_order_in_which_it_happens():
    def f(xs):
        lax.scan(lambda c, x: (lox.log({"x": x, "last": x}) and c, None), 0, xs, reverse=True)

    _, logs = lox.spool(f, reduce={"last": "last"})(jnp.arange(3))
    assert logs["x"].tolist() == [2, 1, 0]
    assert logs["last"].tolist() == [0]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_reduction_in_a_loop_has_no_key_of_a_log_that_does_not_happen(transform):
    """The matrix of a linear solver logs where the solver multiplies by it: this one does not."""

    def f(xs):
        def step(carry, x):
            def solve(matvec, b):
                return lox.log({"solved": b / 2})["solved"]

            return carry, lax.custom_linear_solve(
                lambda v: lox.log({"times": 2 * v})["times"], x, solve, symmetric=True
            )

        return lax.scan(step, 0.0, xs)[1]

    _, logs = transform(lox.spool(f, reduce="mean"))(jnp.arange(4.0))
    assert_logs(logs, {"solved": [0.75]})


def test_a_scan_of_symbolic_length_counts_its_events():
    def f(xs):
        return lax.scan(lambda c, x: (lox.log({"x": x}) and c, None), 0, xs)[0]

    shape = jax.export.symbolic_shape("n")
    counted = jax.jit(lambda xs: lox.spool(f, reduce="count")(xs)[1]["x"])
    exported = jax.export.export(counted)(jax.ShapeDtypeStruct(shape, jnp.float32))
    assert exported.call(jnp.arange(5.0)).tolist() == [5]


def test_a_mean_counts_events_that_say_where_and_those_of_a_loop_after_them():
    def f(xs):
        def outer(c, x):
            lox.log({"x": x}, where=x > 1)
            return lax.scan(lambda c, x: (c, lox.log({"x": x}) and None), c, jnp.float32([1, 2]))[0], None

        return lax.scan(outer, 0.0, xs)[0]

    _, logs = lox.spool(f, reduce="mean")(jnp.float32([0, 4, 8]))
    assert logs["x"].tolist() == [(4 + 8 + 3 * (1 + 2)) / 8]


def test_a_sum_of_small_integers_has_64_bits_where_jax_has():
    def f():
        for i in range(3):
            lox.log({"n": jnp.array([2**30, i], jnp.int32)})

    summed = lambda: lox.spool(f, reduce="sum")()[1]["n"].tolist()  # noqa: E731
    assert summed() == [[3 * 2**30 - 2**32, 3]]
    with jax.enable_x64(True):
        assert summed() == [[3 * 2**30, 3]]


def test_equal_elements_of_a_pool_are_in_the_order_of_their_events_also_in_a_logdict():
    xs, steps = jnp.float32([[1, 2, 2], [2, 2, 0], [2, 1, 2]]), np.arange(3)
    logs = lox.logdict({"x": xs, "y": -xs}, {"step": {"x": steps, "y": steps}})
    kept = logs.reduce(lox.reductions.topk(4, pool=True)).steps["step"]
    assert {key: kept[key].tolist() for key in kept} == {"x": [[0, 0, 1, 1]], "y": [[1, 0, 2, 0]]}


def test_keys_of_one_log_call_have_masks_of_their_own_reductions():
    def f(x, happens):
        lox.log({"a": x, "b": x, "c": x}, where=happens, step=x)

    pooled = lox.reductions.quantiles(0.5, pool=True)
    x, happens = jnp.float32([1, 2, 3]), jnp.array([True, False, True])
    for how in ("mean", "last", lox.reductions.quantiles(0.5)):
        for spool in (lox.spool(f, reduce={"a": how, "b": pooled, "c": how}), lox.spool(f, reduce={"b": pooled})):
            for run in (spool, jax.jit(spool)):
                _, logs = run(x, happens)
                masks = {key: logs.mask[key].tolist() for key in sorted(logs)}
                assert masks == {"a": [[True, False, True]], "b": [True], "c": [[True, False, True]]}
                np.testing.assert_allclose(logs["b"], [1], rtol=0.01)
                np.testing.assert_allclose(np.ravel(logs["a"]), [1, np.nan, 3], rtol=0.01)
                np.testing.assert_array_equal(logs["a"], logs["c"])


ROWS = np.float32(
    [[1, -2, 3, 0], [2, 3, -1, 1], [0, 1, 2, -3], [-3, 1, 3, 2], [2, -1, 0, 1], [3, 2, 1, 2], [1, 0, 2, 1]]
)
HAPPENED = (
    np.array([[0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 0]]) > 0
)
"""No event of the first element, all of the second, some of the third, and one of the last."""


def of_dtype(x, dtype):
    """Small numbers in a dtype, below zero where it has such."""
    if dtype == "complex64":
        return lax.complex(x, -2 * x)
    return x > 0 if dtype == "bool" else (jnp.abs(x) if dtype.startswith("uint") else x).astype(dtype)


def masked(kind, dtype):
    """A function that logs, under the name of each reduction, the rows of an array where a mask is true."""

    def note(x, step, **where):
        lox.log(dict.fromkeys(REDUCTIONS, of_dtype(x, dtype)), step=step, **where)

    def column(xs, happened):
        def step(i, now):
            lax.cond(now[1], lambda: note(now[0], i), lambda: None)
            return i + 1, None

        lax.scan(step, 0, (xs, happened))

    def rows(xs, happened):
        def step(i):
            note(xs[i], i, where=happened[i])
            return i + 1

        if kind == "while":
            lax.while_loop(lambda i: i < jnp.int32(len(xs)), step, 0)
        elif kind == "Python":
            list(map(step, range(len(xs))))
        else:
            lax.scan(lambda i, _: (step(i), None), 0, length=len(xs))

    return jax.vmap(column, in_axes=1) if kind == "branch" else rows


KINDS = itertools.cycle(["scan", "while", "Python", "branch", "window", "logs"])


@pytest.mark.parametrize(("dtype", "kind"), list(zip([*DTYPES, "uint8"], KINDS, strict=False)))
def test_reductions_of_what_happened_in_each_element_are_those_of_numpy_in_every_dtype(dtype, kind):
    how = {name: name for name in REDUCTIONS}
    if kind == "logs":
        _, logs = jax.jit(lox.spool(masked(kind, dtype)))(ROWS, HAPPENED)
        logs = logs.reduce(how)
    else:
        options = {"window": 9} if kind == "window" else {}
        _, logs = jax.jit(lox.spool(masked(kind, dtype), reduce=how, **options))(ROWS, HAPPENED)
    exact = lambda x: np.asarray(x).astype(np.complex64).astype(complex)  # noqa: E731
    numbers = exact(of_dtype(jnp.asarray(ROWS), dtype))
    for name in REDUCTIONS:
        got = logs[name]
        like = jnp.zeros(1, jnp.int32 if name == "count" else dtype)
        assert got.dtype == (getattr(jnp, name)(like) if name in ("mean", "sum", "std", "var") else like).dtype
        assert logs.mask[name].tolist() == [[False, True, True, True]] and got.shape == (1, 4)
        steps = logs.steps["step"][name]
        if kind != "window":
            is_zero = name in ("sum", "count") or not jnp.issubdtype(got.dtype, jnp.inexact)
            np.testing.assert_array_equal(exact(got)[0, 0].real, 0 if is_zero else np.nan)
        tolerance = max(1e-6, float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.inexact) else 0)
        for column in (1, 2, 3):
            (places,) = np.nonzero(HAPPENED[:, column])
            events = numbers[places, column]
            want = {"first": events[0], "last": events[-1], "count": len(events)}.get(name)
            if want is None:
                want = getattr(np, name)(events)
            np.testing.assert_allclose(exact(got)[0, column], want, rtol=tolerance, atol=1e-6)
            assert steps[0, column] == places[0 if name == "first" else -1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_mean_of_many_small_floats_is_exact(dtype):
    xs = jnp.full(5000, 100, dtype)
    _, logs = lox.spool(lambda xs: jax.lax.scan(lambda c, x: (c, lox.log({"x": x})["x"]), 0, xs), reduce="mean")(xs)
    assert logs["x"].dtype == dtype and logs["x"].tolist() == [100]


@pytest.mark.parametrize(("how", "step"), [("first", 0), ("last", 3)])
def test_logs_that_are_reduced_to_one_event_have_its_counter(how, step):
    def f(xs):
        return lax.scan(lambda i, x: (i + 1, lox.log({"x": x}, step=i)["x"]), 0, xs)[1]

    logs = lox.spool(f)(jnp.arange(5.0, 9.0))[1].reduce(how)
    assert logs["x"].tolist() == [5.0 + step] and logs.steps["step"]["x"].tolist() == [step]
