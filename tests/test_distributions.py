"""Quantiles, histograms and reductions of one's own: exact where they say so, and however the events are grouped."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.experimental import checkify
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from test_reduce import LOOPS, over_scan, over_scans, over_steps, over_while, reduced
from tiers import generates

import lox
import lox.testing
from lox import _bins, _largest
from lox._distributions import in_bins
from lox.reductions import Reduction, ewma, histogram, quantiles, reservoir, topk

QS = (0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.999, 1)
COARSE = quantiles(QS, 0.2)
"""Has fewer bins, and so takes less time."""

loops = pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
random = np.random.default_rng(0)
slow = functools.partial(pytest.param, marks=pytest.mark.exhaustive)
SUBNORMAL = np.arange(1, 4001, dtype=np.uint32).view(np.float32)


def mixed():
    parts = [
        SUBNORMAL[::40],
        -SUBNORMAL[::40],
        [0.0, -0.0] * 9,
        [np.inf, -np.inf, np.nan] * 20,
        random.normal(size=900),
    ]
    return random.permutation(np.concatenate(parts))


STREAMS = {
    "constant": np.full(1000, -0.1),
    "zeros": np.zeros(1000),
    "normal": random.normal(size=1000),
    "30 orders of magnitude": 10 ** random.uniform(-15, 15, 1000) * random.choice([-1, 1], 1000),
    "all orders of magnitude": 10 ** random.uniform(-44, 38.5, 1000),
    "subnormal": SUBNORMAL,
    "infinities": random.permutation(np.repeat([np.inf, -np.inf, 1], [300, 200, 500])),
    "one number and NaN": random.permutation(np.repeat([np.nan, 3], [999, 1])),
    "two values far apart": random.permutation(np.repeat([1e-30, 1e30], [501, 499])),
    "mixed": mixed(),
}


def lower(values, qs):
    """NumPy's quantiles, for whatever NumPy cannot subtract as well."""
    values = np.sort(values[~np.isnan(values)])
    return values[[int(np.floor(q * (len(values) - 1))) for q in qs]]


def wanted_of(how, values):
    """The result of a histogram or of quantiles, by NumPy: counts, or the middle of the bin of each quantile."""
    values = np.asarray(values).reshape(-1)
    if isinstance(how, _bins.Histogram):
        return np.histogram(values, [-np.inf, *how.edges, np.inf])[0]
    ranks = [int(np.ceil(q * 2**32)) * (len(values) - 1) >> 32 for q in how.qs]
    return np.asarray(middles(np.sort(values)[ranks], how.relative_error))


@functools.partial(jax.jit, static_argnums=1)
def middles(values, error):
    bins = quantiles(0.5, error)._bins(values.dtype)
    return bins.value_of(bins.bin_of(values))


def assert_near(found, wanted, error):
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    is_exact = ~np.isfinite(wanted) | (wanted == 0)
    np.testing.assert_array_equal(found[is_exact], wanted[is_exact])
    found, wanted = found[~is_exact], wanted[~is_exact]
    assert np.all(np.abs(found - wanted) <= error * np.abs(wanted)), (found, wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e5m2", "int32", "bool"])
@pytest.mark.parametrize("error", [0.01, 0.0005])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.covering(1)
def test_quantiles_are_within_their_relative_error(stream, error, dtype):
    with np.errstate(all="ignore"):
        xs = np.nan_to_num(STREAMS[stream], posinf=3, neginf=-3) if dtype in ("int32", "bool") else STREAMS[stream]
        xs = (np.clip(xs, -(2**31), 2**31 - 200) if dtype == "int32" else xs).astype(dtype)
    found = of_scan(error)(jnp.asarray(xs))[1]["x"][0]
    assert found.dtype == jnp.mean(jnp.zeros(1, dtype)).dtype
    assert_near(found, lower(xs.astype(np.float64), QS), error)


@functools.cache
def of_scan(error):
    return jax.jit(lox.spool(over_scan, reduce=quantiles(QS, error), unify=True))


def test_quantiles_of_float64():
    with jax.enable_x64(True):
        xs = np.concatenate([10 ** random.uniform(-300, 300, 500), np.arange(100, dtype=np.uint64).view(np.float64)])
        found = reduced(over_scan, quantiles(QS, 0.001), jnp.asarray(xs))
        assert found.dtype == jnp.float64
        assert_near(found, lower(xs, QS), 0.001)


@pytest.mark.parametrize("depth", [0, 3, 7])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_bins_of_all_numbers_are_in_their_order(dtype, depth):
    bins = _bins.FloatBins(jnp.dtype(dtype), depth)
    every = np.arange(2**16, dtype=np.uint16).view(jnp.dtype(dtype))

    @jax.jit
    def all_of(every):
        places = bins.bin_of(every)
        return places, bins.value_of(places), every.astype(jnp.float32)

    places, middles, exact = map(np.asarray, all_of(every))
    assert (places[np.isnan(exact)] == bins.number).all()
    places, middles, exact = (each[~np.isnan(exact)] for each in (places, middles, exact))
    order = np.argsort(exact)
    assert (np.diff(places[order]) >= 0).all() and places.min() == 0 and places.max() == bins.number - 1
    assert_near(middles, exact, 2.0 ** -(depth + 1))
    of_infinity = places[np.isinf(exact)]
    assert (np.bincount(places)[of_infinity] == 1).all()


@pytest.mark.covering(1)
@loops
@pytest.mark.parametrize("how", [COARSE, histogram(np.linspace(-1, 1, 9))], ids=["quantiles", "histogram"])
def test_it_is_the_same_in_every_loop(loop, how):
    xs = random.normal(size=24 if loop is over_steps else 240).astype(np.float32)
    np.testing.assert_array_equal(reduced(loop, how, jnp.asarray(xs)), wanted_of(how, xs))


@pytest.mark.parametrize("how", [COARSE, histogram(np.linspace(-1, 1, 9))], ids=["quantiles", "histogram"])
def test_it_is_the_same_of_logs(how):
    xs = random.normal(size=240).astype(np.float32)

    @jax.jit
    def of_logs(xs):
        masked = lox.spool(lambda xs: lax.map(lambda x: lox.log({"x": x}, where=x > 0)["x"], xs))(xs)[1]
        return [logs.reduce(how)["x"][0] for logs in (lox.spool(over_scan)(xs)[1], masked)]

    found, of_masked = of_logs(xs)
    np.testing.assert_array_equal(found, wanted_of(how, xs))
    np.testing.assert_array_equal(of_masked, wanted_of(how, xs[xs > 0]))


def in_branches(xs):
    """Events of one branch, of several, of none, of a loop in a branch, and of a function in it."""

    def step(carry, x):
        note = functools.partial(lox.log, {"x": x})
        lax.switch(
            (jnp.abs(x) * 10).astype(jnp.int32) % 5,
            [
                lambda: None,
                lambda: note() and None,
                lambda: jax.jit(lambda: (note(), note()) and None)(),
                lambda: over_scan(jnp.full(3, x)),
                lambda: lax.cond(x > 0, lambda: note() and None, lambda: None),
            ],
        )
        return carry, None

    lax.scan(step, 0, xs)


def of_branches(xs):
    kinds = (np.abs(xs) * np.float32(10)).astype(np.int32) % 5
    return np.repeat(xs, np.choose(kinds, [0, 1, 2, 3, xs > 0]))


@pytest.mark.parametrize("how", [COARSE, histogram(np.linspace(-1, 1, 9))], ids=["quantiles", "histogram"])
def test_branches_return_their_events(how):
    xs = random.normal(size=(3, 200)).astype(np.float32)
    wanted = np.stack([wanted_of(how, of_branches(row)) for row in xs])

    @jax.jit
    def each(xs):
        alone = reduced(in_branches, how, xs[0])
        inside = jax.vmap(lambda xs: reduced(in_branches, how, xs))(xs)
        return alone, inside, reduced(jax.vmap(in_branches), how, xs)

    for found, expected in zip(each(xs), (wanted[0], wanted, wanted), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_batched_branch_does_not_select_a_state():
    """Each of 100,000 elements would take as long as all bins of its own."""

    def f(x):
        return lax.scan(lambda c, x: (lax.cond(x > 0, lambda: lox.log({"x": x}) and 1, lambda: 0), None), 0, x)[0]

    jaxpr = jax.make_jaxpr(lox.spool(jax.vmap(f), reduce=quantiles(0.5), unify=True))(jnp.zeros((4, 10)))
    bins = _bins.FloatBins(jnp.dtype("float32"), 6).number
    (loop,) = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan"]
    large = [eqn for eqn in loop.params["jaxpr"].jaxpr.eqns if any(bins in out.aval.shape for out in eqn.outvars)]
    assert {eqn.primitive.name for eqn in large} <= {"scatter-add", "scatter_add", "jit", "pjit"}


@pytest.mark.parametrize(
    "how", [slow(quantiles((0.1, 0.5), 0.2)), histogram([-1, 0, 1])], ids=["quantiles", "histogram"]
)
def test_each_batch_element_and_window_is_by_itself(how):
    def f(xs):
        return lax.map(lambda x: lox.log({"x": x}, where=x > -1, i=1)["x"], xs)

    xs = np.asarray(random.normal(size=(3, 50)), np.float32)
    xs[1] = -2

    @jax.jit
    def spooled(xs):
        whole = jax.vmap(lox.spool(f, reduce=how))(xs)[1], lox.spool(jax.vmap(f), reduce=how)(xs)[1]
        in_windows = lox.spool(f, reduce=how, window=7)
        return whole, jax.vmap(in_windows)(xs)[1], in_windows(xs[0])[1]

    whole, in_windows, of_first = spooled(xs)
    for logs in whole:
        found = logs["x"].reshape(3, -1)
        for place in (0, 2):
            np.testing.assert_array_equal(found[place], wanted_of(how, xs[place][xs[place] > -1]))
        assert np.all(np.isnan(found[1]) if found.dtype == np.float32 else found[1] == 0)
    rest = xs[0][xs[0] > -1]
    wanted = [wanted_of(how, rest[first : first + 7]) for first in range(0, len(rest), 7)]
    np.testing.assert_array_equal(in_windows["x"][0][in_windows.mask["x"][0]], wanted)
    np.testing.assert_array_equal(of_first.valid("x"), wanted)
    for tapped in (f, jax.jit(f)):
        heard = []
        lox.tap(tapped, lambda logs, heard=heard: heard.extend(logs["x"]), reduce=how, window=7)(xs[0])
        lox.flush()
        np.testing.assert_array_equal(heard, wanted)


EDGES = {
    "a few": [-1, 0, 0.1, 3],
    "one": [0],
    "many": np.linspace(-3, 3, 101),
    "infinite": [-np.inf, 0, np.inf],
    "beyond all floats": [-1e300, -1e39, 1e39, 1e300],
    "beyond all integers": [-(2**40), -(2**31), -0.5, 200.5, 2**31, 2**40],
    "between floats": [0.1 + 1e-10, 0.1 + 2e-10, 1 + 1e-9],
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "int8", "bool"])
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.covering(1)
def test_a_histogram_counts_as_it_says(edges, dtype):
    values = [-128, -2, -1, -0.5, -0.0, 0, 0.1, 0.5, 1, 1.000001, 2, 3, 127, 200, 255, 3e38, -3e38, np.inf, -np.inf, 7]
    with np.errstate(all="ignore"):
        xs = np.asarray(values, np.float32)
        if dtype not in ("float32", "bfloat16"):
            xs = np.clip(xs, *((0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max - 127)))
        xs = xs.astype(dtype)
    found = reduced(over_scan, histogram(EDGES[edges]), jnp.asarray(xs))
    exact, bins = xs.astype(np.float64), np.asarray([-np.inf, *EDGES[edges], np.inf])
    wanted = [int(np.sum((low <= exact) & (exact < high))) for low, high in zip(bins, bins[1:], strict=False)]
    wanted[-1] += int(np.sum(exact == np.inf))
    if np.isneginf(EDGES[edges][0]):
        wanted[0] = 0
    assert found.dtype == jnp.uint32
    assert found.tolist() == wanted


def test_edges_that_are_integers_are_exact():
    with jax.enable_x64(True):
        xs = jnp.asarray([2**53, 2**53 + 1, 2**53 + 2, 0, -1, 2**61])
        edges = [-(2**61), 0, 1, 2**53 + 1, 2**53 + 2, 2**61]
        assert reduced(over_scan, histogram(edges), xs).tolist() == [0, 1, 1, 1, 1, 1, 1]
        assert reduced(over_scan, histogram(edges), xs.astype(jnp.float64)).tolist() == [0, 1, 1, 2, 0, 1, 1]
    assert reduced(over_scan, histogram([-8, 0, 7]), jnp.array([1, 2, -3, 7], "int4")).tolist() == [0, 1, 2, 1]
    assert reduced(over_scan, histogram([0, 255]), jnp.array([0, 254, 255], "uint8")).tolist() == [0, 2, 1]


def test_nan_is_in_no_bin():
    assert reduced(over_scan, histogram([0, 1]), jnp.array([np.nan, 0.5, np.nan])).tolist() == [0, 1, 0]


@pytest.mark.parametrize(("edge", "width"), [(0, 1), (0.5, 1), (-8, 4)])
def test_the_two_bins_at_a_single_edge_are_shown_with_a_width(edge, width):
    counts, edges = in_bins(histogram([edge]), np.array([[1, 2]]))
    assert counts.tolist() == [[1, 2]] and edges.tolist() == [edge - width, edge, edge + width]


@pytest.mark.parametrize("number", [1, 2, 20])
def test_a_bin_that_is_full_counts_no_more(number):
    how, most = histogram([0]), 2**32 - 1

    @jax.jit
    def found(values, state, almost):
        full = how.add(almost, values, None, ())
        states = (
            how.add(state, values, None, ()),
            how.join(state, state, 0),
            how.add(state, values, jnp.zeros(number, bool), ()),
            full,
            how.add(full, values, None, ()),
            how.add(how.add(almost, -1 - values, None, ()), values, None, ()),
        )
        return [counts.number for counts in states]

    values = np.zeros(number, np.float32)
    counts = found(values, counts_of(5, most - 1), counts_of(5, most - number))
    wanted = [[5, most], [10, most], [5, most - 1], [5, most], [5, most], [5 + number, most]]
    assert [each.tolist() for each in counts] == wanted


def counts_of(*numbers):
    return _bins.Counts(np.uint32(numbers), np.uint32(max(numbers)))


def of_counts(how, numbers, counts):
    """The quantiles where each of these numbers was counted so often, of shape (batch, numbers)."""

    @jax.jit
    def value(numbers, counts):
        state = jnp.zeros((len(counts), how.bins(jnp.float32)), jnp.uint32).at[:, how.bin_of(numbers)].set(counts)
        return how.value(_bins.Counts(state, None), (), jnp.float32, 1)

    return value(np.float32(numbers), np.uint32(counts))


def test_a_quantile_of_a_bin_that_is_full_is_not_known():
    found = of_counts(quantiles([0.5]), [3], [[2**32 - 2], [2**32 - 1]])
    np.testing.assert_allclose(found, [[3], [np.nan]], rtol=0.01)


def test_more_numbers_than_a_word_counts_are_in_order():
    """The counts of 2**33 numbers are made by hand: nothing can log so many in a test."""
    found = of_counts(quantiles(QS), [1, 2, 4, 8], [[2**31] * 4])
    np.testing.assert_allclose(found, [[1, 1, 1, 1, 2, 8, 8, 8]], rtol=0.01)


@generates(15)
@given(st.floats(0, 1), st.integers(1, 2**60))
def test_ranks_of_two_words_are_exact(q, number):
    words = _bins.Words(*(np.uint32([each]) for each in (number >> 32, number & 0xFFFFFFFF)))
    high, low = _bins._rank((q,), words)
    part = int(np.ceil(np.float64(q) * 2**32))
    assert (int(high[0]) << 32) + int(low[0]) == part * (number - 1) >> 32


@pytest.mark.parametrize("bins", [1, 2, 3, 4, 7, 9, 16, 24, 39, 40])
def test_the_bin_of_a_rank_is_that_of_the_sum_of_all_bins(bins):
    """Some counts are so large that their sum takes two words; many are 0."""
    drawn = np.random.default_rng(bins)
    counts = drawn.choice([0, 0, 1, 5, 2**16, 2**31, 2**32 - 2], (20, bins)).astype(np.uint32)
    counts[:, 0] += np.uint32(1)
    qs = (0, *drawn.random(3).tolist(), 0.5, 1)
    wanted = []
    for row in counts:
        total = np.cumsum(row.astype(object))
        ranks = [int(np.ceil(np.float64(q) * 2**32)) * (int(total[-1]) - 1) >> 32 for q in qs]
        wanted.append([sum(bool(each <= rank) for each in total) for rank in ranks])
    assert jax.jit(_bins._bins_of_ranks, static_argnums=1)(counts, qs).tolist() == wanted


def test_a_thousand_quantiles_are_those_one_by_one():
    xs = jnp.asarray(random.normal(size=500).astype(np.float32))
    qs = np.linspace(0, 1, 1000)
    assert_near(reduced(over_scan, quantiles(qs, 0.1), xs), lower(np.asarray(xs), qs), 0.1)


def log(x):
    lox.log({"x": x})


@pytest.mark.parametrize("how", [slow(quantiles), functools.partial(lambda _, **more: histogram([0, 5, 50], **more))])
def test_all_elements_of_a_value_can_be_the_sample(how):
    pooled = how(QS, pool=True)

    @jax.jit
    def found(xs):
        of_all = [reduced(over_scan, pooled, xs), reduced(over_while, pooled, xs)]
        of_all.append(lox.spool(over_scan)(xs)[1].reduce(pooled)["x"][0])
        return of_all, lox.spool(jax.vmap(over_scan), reduce=pooled)(xs.reshape(2, 3, 4, 5))[1]["x"]

    xs = random.normal(size=(6, 4, 5)).astype(np.float32) * 10
    of_all, batched = found(xs)
    for each in of_all:
        np.testing.assert_array_equal(each, wanted_of(pooled, xs))
    np.testing.assert_array_equal(batched[0], [wanted_of(pooled, xs[:3]), wanted_of(pooled, xs[3:])])
    assert jax.eval_shape(lox.spool(log, reduce=pooled), np.zeros((0, 3)))[1]["x"].shape == batched[0, 1][None].shape


ROWS, COLUMNS = random.normal(size=(3, 10, 4, 2)).astype(np.float32), random.random((3, 10, 4)) < 0.4
COLUMNS[0, :5], COLUMNS[1] = False, False


def finished(in_branch):
    """A loop that logs four elements where each is done, with a counter for the four and one for each."""

    def f(rows, done):
        def step(i, row):
            x, happened = row

            def note():
                lox.log({"x": x, "y": x[:, 0]}, where=happened, step=i, place=i * 10 + jnp.arange(4))

            if in_branch == "one of two":
                lax.cond(jnp.any(happened), note, lambda: None)
            else:
                lax.cond(i % 2 == 0, note, note) if in_branch else note()
            return i + 1, None

        lax.scan(step, 0, (rows, done))

    return f


@pytest.mark.parametrize("in_branch", [slow(False), True])
def test_the_elements_of_where_are_one_sample(in_branch):
    """Each loop has a result for itself, which has the counters of the last element of which an event happened."""
    how, fun = {"x": quantiles(QS, pool=True), "y": histogram([-1, 0, 1], pool=True)}, finished(in_branch)

    @jax.jit
    def spooled(*batch):
        return jax.vmap(lox.spool(fun, reduce=how))(*batch)[1], lox.spool(jax.vmap(fun), reduce=how)(*batch)[1]

    for logs in spooled(ROWS, COLUMNS):
        for loop in range(3):
            x, y = logs["x"].reshape(3, -1)[loop], logs["y"].reshape(3, -1)[loop]
            happened = ROWS[loop][COLUMNS[loop]]
            assert logs.mask["x"].reshape(3)[loop] == logs.mask["y"].reshape(3)[loop] == bool(len(happened))
            if len(happened):
                np.testing.assert_array_equal(x, wanted_of(how["x"], happened))
                rows, columns = np.nonzero(COLUMNS[loop])
                assert logs.steps["step"]["x"].reshape(3)[loop] == rows[-1]
                assert logs.steps["place"]["y"].reshape(3)[loop] == rows[-1] * 10 + columns[-1]
            np.testing.assert_array_equal(y, wanted_of(how["y"], happened[:, 0]))


@pytest.mark.parametrize("in_branch", [False, "one of two"])
def test_windows_of_where_count_calls_in_which_an_element_happened(in_branch):
    fun, how = finished(in_branch), histogram([-1, 0, 1], pool=True)
    rows, done = ROWS[0], COLUMNS[0]
    calls = np.flatnonzero(done.any(axis=1))
    wanted = []
    for first in range(0, len(calls), 2):
        window = calls[first : first + 2]
        happened = rows[window][done[window]][:, 0]
        wanted.append(np.histogram(happened, [-np.inf, -1, 0, 1, np.inf])[0].tolist())

    @jax.jit
    def spooled(rows, done):
        windows = lox.spool(fun, argnames="y", reduce=how, window=2)(rows, done)[1]
        return windows, lox.spool(fun, argnames="y", reduce=topk(2, pool=True), unify=True)(rows, done)[1]

    windows, logs = spooled(rows, done)
    assert windows.valid("y").tolist() == wanted
    heard = []
    lox.tap(fun, lambda logs: heard.extend(logs["y"].tolist()), argnames="y", reduce=how, window=2)(rows, done)
    lox.flush()
    assert heard == wanted
    values, places = largest(np.where(done, rows[..., 0], -np.inf).reshape(-1), 2)
    assert logs["y"][0].tolist() == values.tolist()
    assert logs.steps["place"]["y"][0].tolist() == (places // 4 * 10 + places % 4).tolist()


def test_a_part_of_the_elements_is_the_same_part_of_each_event():
    how = histogram(np.arange(1, 1001), pool=50)
    xs = np.broadcast_to(np.arange(1, 1001, dtype=np.float32), (5, 1000))
    found, of_one = jax.jit(lambda xs: (reduced(over_scan, how, xs), reduced(over_scan, how, xs[:1])))(xs)
    assert sorted(set(found.tolist())) == [0, 5] and sum(found.tolist()) == 250
    np.testing.assert_array_equal(of_one, found // 5)
    assert sum(reduced(over_scan, histogram([0], pool=5000), jnp.asarray(xs)).tolist()) == 5000


def test_a_single_quantile_has_no_axis():
    def shape_of(how):
        return jax.eval_shape(functools.partial(reduced, over_scan, how), np.zeros((101, 3), np.float32)).shape

    assert shape_of(quantiles(0.5)) == (3,)
    assert shape_of(quantiles([0.5])) == (3, 1)


def test_memory_does_not_grow_with_the_number_of_events():
    def bytes_of(number):
        spooled = lox.spool(lambda: lax.fori_loop(0, number, lambda i, c: lox.log({"x": c})["x"] + 1, 0.0), reduce=HOWS)
        return jax.jit(spooled).lower().compile().memory_analysis().temp_size_in_bytes

    assert bytes_of(10) == bytes_of(10_000_000)


HOWS = quantiles((0.1, 0.9))


def test_a_state_that_is_too_large_is_refused_with_its_size_and_place():
    message = (
        r"The state of reduce=lox.reductions.quantiles\(\[0.5\]\) takes 135 MiB for events of shape \(10, 100\), "
        r"logged at .*test_distributions.py:\d+ \(log\); 64 MiB is the most. pool=True takes"
    )
    for fun in (log, over_scan):
        values = jnp.zeros((10, 100)) if fun is log else jnp.zeros((3, 10, 100))
        with pytest.raises(lox.LogValueError, match=message if fun is log else "takes 135 MiB"):
            lox.spool(fun, reduce=quantiles([0.5]))(values)
        jax.eval_shape(lox.spool(fun, reduce=quantiles([0.5], pool=True)), values)
    with pytest.raises(lox.LogValueError, match=r"of shape \(\) in a batch of \(2000,\)"):
        jax.eval_shape(lox.spool(jax.vmap(over_scan), reduce=quantiles([0.5])), np.zeros((2000, 2), np.float32))
    large = Reduction(np.zeros(2**24 + 1, np.float32), lambda s, x: s + x, jnp.add, jnp.sum)
    with pytest.raises(lox.LogValueError, match="takes 64 MiB"):
        jax.eval_shape(lox.spool(log, reduce=large), 1.0)
    with pytest.raises(lox.LogValueError, match="and a larger relative_error= takes less"):
        jax.eval_shape(lox.spool(log, reduce=quantiles([0.5], 1e-6)), 1.0)
    jax.eval_shape(lox.spool(log, reduce="mean"), np.zeros(2**25, np.int8))


def test_quantiles_are_numbers_from_0_to_1():
    for qs in [-0.1, 1.1, [], [[0.5]], "a", "0.5", None, True, [0.5, np.nan], [0.5, "b"]]:
        with pytest.raises(lox.LogValueError, match=r"quantiles takes a number from 0 to 1 or a sequence of them, got"):
            quantiles(qs)


def test_a_relative_error_is_a_number():
    for error in [0, 1, 1e-7, "a", None, True, np.nan]:
        with pytest.raises(lox.LogValueError, match=r"relative_error of .* is a number from 1e-6 to less than 1, got"):
            quantiles(0.5, error)


def test_edges_are_numbers_in_order():
    assert histogram([-(2**70), 0, 2**71]).edges == (-(2**70), 0, 2**71)
    for edges in [
        [],
        [1, 1],
        [2, 1],
        [np.nan],
        [0, np.nan],
        [np.nan, 0],
        [-np.inf, np.inf],
        "a",
        None,
        3,
        [[0, 1]],
        ["b"],
        [0, 10**400],
    ]:
        with pytest.raises(lox.LogValueError, match=r"histogram takes one or more numbers, each larger than the one"):
            histogram(edges)


def test_a_pool_is_all_elements_or_a_number_of_them():
    for pool in [0, -1, 1.5, None, "all"]:
        with pytest.raises(lox.LogValueError, match=r"pool= of lox.reductions.histogram takes True, False or a number"):
            histogram([0], pool=pool)


@pytest.mark.parametrize("how", [quantiles(0.5), histogram([0])], ids=["quantiles", "histogram"])
def test_what_has_no_order_is_refused(how):
    with pytest.raises(lox.LogValueError, match=r"There is no lox.reductions.* of complex64, logged at .*\(log\)"):
        lox.spool(log, reduce=how)(1j)
    with pytest.raises(lox.LogValueError, match=r"takes numbers, got key<fry> logged at"):
        lox.spool(log, reduce=how)(jax.random.key(0))


def test_objects_are_written_as_they_are_made():
    assert repr(quantiles([0.5, 1], 0.02, pool=True)) == (
        "lox.reductions.quantiles([0.5, 1.0], relative_error=0.02, pool=True)"
    )
    assert repr(quantiles(0.5)) == "lox.reductions.quantiles(0.5)"
    assert repr(histogram([0, 1])) == "lox.reductions.histogram([0, 1])"
    assert repr(histogram(range(9), pool=7)) == "lox.reductions.histogram([0, ..., 8], pool=7)"


@pytest.mark.parametrize("how", [COARSE, histogram([0, 1])], ids=["quantiles", "histogram"])
def test_no_checker_of_jax_objects(how):
    xs = jnp.array([1.0, np.inf, 3.0])
    errors, found = checkify.checkify(functools.partial(reduced, over_scan, how), errors=checkify.all_checks)(xs[::2])
    errors.throw()
    np.testing.assert_array_equal(found, wanted_of(how, xs[::2]))
    for loop in (over_scan, over_steps):
        with jax.debug_nans(True):
            reduced(loop, how, xs, lambda f: f)
        with jax.checking_leaks():
            jax.eval_shape(functools.partial(reduced, loop, how), xs)
            if how is not COARSE:
                reduced(loop, how, xs, lambda f: f)


def test_quantiles_are_constants_for_derivatives_and_the_rest_keeps_its_own():
    def f(xs):
        out, logs = lox.spool(over_scan, reduce={"x": quantiles(0.5, 0.2)})(xs)
        return jnp.sum(logs["x"]) + jnp.sum(xs**2)

    xs = jnp.array([1.0, 2.0, 3.0])
    for slopes in jax.jit(lambda xs: (jax.grad(f)(xs), jax.jacfwd(f)(xs)))(xs):
        np.testing.assert_array_equal(slopes, 2 * xs)


@pytest.mark.parametrize("how", [quantiles(QS), histogram([0, 1, 2])], ids=["quantiles", "histogram"])
def test_shards_have_an_axis(how):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    xs = random.normal(size=24).astype(np.float32)
    sharded = jax.shard_map(
        lambda xs: over_scan(xs) or over_branches_of(xs),
        mesh=mesh,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec(),
    )
    found = jax.jit(lox.spool(sharded, reduce=how, unify=True))(xs)[1]["x"][0]
    for shard, rows in zip(found, xs.reshape(2, 12), strict=True):
        np.testing.assert_array_equal(shard, wanted_of(how, np.concatenate([rows, rows[rows > 0]])))


def over_branches_of(xs):
    def step(carry, x):
        lax.cond(x > 0, lambda: lox.log({"x": x}) and None, lambda: None)
        return carry, None

    lax.scan(step, 0, xs)


SUM = Reduction(lambda event: jnp.zeros(event.shape, event.dtype), lambda s, x: s + x, jnp.add, lambda s: s)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "how",
    [*(quantiles(0.5, 0.2, pool=pool) for pool in (False, True)), histogram([10]), topk(2), topk(2, pool=True)]
    + [reservoir(2, 0), ewma(0.5), SUM],
    ids=str,
)
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("around", ["scan", "branches", "batch", "no loop"])
def test_shardings_in_types_stay(around, window, how):
    functions = {
        "scan": over_scan,
        "branches": lambda xs: lax.map(lambda x: lax.cond(x.sum() > 0, lambda: log(x), lambda: None), xs),
        "batch": jax.vmap(over_scan, in_axes=1),
        "no loop": log,
    }
    fun = lox.spool(functions[around], reduce=how, window=window, unify=True)
    xs = jnp.arange(40.0).reshape(10, 4)
    _, wanted = fun(xs)
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        sharded = jax.device_put(xs, NamedSharding(mesh, PartitionSpec(None, "d")))
        for spooled in (fun, jax.jit(fun)):
            np.testing.assert_allclose(np.asarray(spooled(sharded)[1]["x"]), wanted["x"], rtol=1e-6)
        if around == "scan" and how is not SUM and not how.pool:
            assert "d" in jax.typeof(jax.jit(fun)(sharded)[1]["x"]).sharding.spec


# -- reductions of one's own -----------------------------------------------------------------------------------------

MEAN = Reduction(
    init=lambda event: (jnp.zeros(event.shape, event.dtype), jnp.int32(0)),
    step=lambda state, x: (state[0] + x, state[1] + 1),
    merge=lambda first, second: (first[0] + second[0], first[1] + second[1]),
    finish=lambda state: state[0] / state[1].astype(jnp.float32),
)


@loops
def test_a_reduction_of_ones_own_is_that_of_all_events(loop):
    xs = jnp.asarray(random.normal(size=24).astype(np.float32))
    np.testing.assert_allclose(reduced(loop, MEAN, xs), jnp.mean(xs), rtol=1e-5)
    np.testing.assert_allclose(lox.spool(over_scan)(xs)[1].reduce(MEAN)["x"][0], jnp.mean(xs), rtol=1e-5)
    if loop is not over_while:
        np.testing.assert_allclose(jax.grad(functools.partial(reduced, loop, MEAN))(xs), np.full(24, 1 / 24), rtol=1e-5)


def test_a_reduction_of_ones_own_has_batch_elements_windows_and_masks():
    def f(xs):
        return lax.map(lambda x: lox.log({"x": jnp.stack([x, -x])}, where=x > 0)["x"], xs)

    xs = np.array([[1, -2, 3, 4, 5], [-1, 7, 2, -3, -1], [-1, -1, -1, -1, -1]], np.float32)

    @jax.jit
    def spooled(xs):
        whole = jax.vmap(lox.spool(f, reduce=MEAN))(xs)[1]["x"], lox.spool(jax.vmap(f), reduce=MEAN)(xs)[1]["x"]
        in_branch = jax.vmap(lox.spool(in_branches, reduce=MEAN, unify=True))(xs / 8)[1]["x"][:, 0]
        return whole, jax.vmap(lox.spool(f, reduce={"x": MEAN}, window=3))(xs)[1], in_branch

    whole, logs, in_branch = spooled(xs)
    for found in whole:
        np.testing.assert_allclose(found.reshape(3, 2)[:, 0], [3.25, 4.5, np.nan])
    windows = [row[happened, 1].tolist() for row, happened in zip(logs["x"], logs.mask["x"], strict=True)]
    np.testing.assert_allclose(windows[0], [-8 / 3, -5], rtol=1e-6)
    assert windows[1:] == [[-4.5], []]
    np.testing.assert_allclose(in_branch[:2], [np.mean(of_branches(row / 8)) for row in xs[:2]], rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": ()}, r"The state of lox.reductions.Reduction\(step=.*\) has no arrays: init is \(\)"),
        ({"step": lambda s, x: s[0]}, r"step of .* returns a state of float32\[\], but init is one of \('float32"),
        ({"step": lambda s, x: (s[0], s[0])}, r"step of .* returns a state of \('float32\[\]', 'float32\[\]'\)"),
        ({"merge": lambda a, b: (a[0][None], a[1])}, r"merge of .* returns a state of \('float32\[1\]', 'int32\[\]'\)"),
        (
            {"init": ("text",)},
            r"The state of lox.reductions.Reduction\(step=.*\) is an array or a tree of arrays, got \('text'",
        ),
        ({"finish": lambda state: state}, r"finish of .* returns an array, got \("),
    ],
)
def test_a_function_that_returns_something_else_is_named(changes, message):
    broken = dataclasses.replace(MEAN, **changes)
    with pytest.raises(lox.LogValueError, match=message):
        reduced(over_scans, broken, jnp.arange(8.0))
        lox.spool(lambda xs: over_scan(xs) or over_scan(xs), reduce=broken)(jnp.arange(8.0))


EVENTS = np.asarray(random.normal(size=(9, 2)), np.float32)


@pytest.mark.parametrize(
    "how",
    [
        "mean",
        slow("std"),
        "first",
        "count",
        slow(COARSE),
        slow(histogram([0])),
        slow(topk(3)),
        MEAN,
    ],
    ids=str,
)
def test_a_reduction_is_found_to_be_as_described(how):
    lox.testing.check_reduction(how, EVENTS)


LAST = Reduction(
    init=(0.0, False),
    step=lambda state, x: (x, jnp.asarray(True)),
    merge=lambda first, second: jax.tree.map(lambda a, b: jnp.where(second[1], b, a), first, second),
    finish=lambda state: state[0],
)


@pytest.mark.parametrize(
    ("broken", "grouping"),
    [
        (Reduction(0.0, lambda state, x: state / 2 + x, jnp.add, lambda state: state), "a function of two loops"),
        (Reduction(0.0, lambda state, x: x, lambda first, second: second, lambda state: state), "of 9 and 0 events"),
        (LAST, "in the opposite order"),
    ],
)
def test_a_reduction_that_depends_on_the_grouping_is_found(broken, grouping):
    with pytest.raises(AssertionError, match=grouping):
        lox.testing.check_reduction(broken, EVENTS[:, 0])


def test_an_ordered_reduction_may_depend_on_the_order():
    lox.testing.check_reduction(dataclasses.replace(LAST, ordered=True), EVENTS[:, 0])


def test_fewer_than_two_events_check_nothing():
    with pytest.raises(ValueError, match="at least 2 events"):
        lox.testing.check_reduction("mean", [1.0])
    with pytest.raises(ValueError, match="tolerance must be a number of at least 0, got nan"):
        lox.testing.check_reduction("mean", [1.0, 2.0], tolerance=float("nan"))


# -- the largest values ----------------------------------------------------------------------------------------------


def numbered(loop):
    """A loop that logs its values with their place as counter, and in which events come that do not happen."""

    def f(xs):
        def note(place):
            lox.log({"x": xs[place]}, place=place)

        if loop == "scan":
            lax.scan(lambda c, place: (c, note(place)), None, jnp.arange(len(xs)))
        elif loop == "where in nested scans":

            def step(place, _):
                lox.log({"x": xs[place]}, place=place, where=place >= 0)
                lox.log({"x": xs[place]}, place=-place, where=place < 0)
                return place + 1, None

            lax.scan(lambda c, _: lax.scan(step, c, None, 2), 0, None, len(xs) // 2)
        elif loop == "branches":

            def branch(place):
                lax.cond(place % 4 < 2, lambda: (note(place), note(place + 1)) and None, lambda: over_pair(place))
                return place + 2

            def over_pair(place):
                lax.scan(lambda c, place: (c, note(place)), None, place + jnp.arange(2))

            lax.while_loop(lambda place: place < len(xs), branch, 0)
        else:
            for place in range(len(xs)):
                note(jnp.int32(place))

    return f


def largest(xs, k):
    """The values and places of the largest elements, NaN as the least ones, for NumPy."""
    exact = np.asarray(xs, np.float64)
    order = np.lexsort((np.where(np.isnan(exact), 0, -exact), np.isnan(exact)))[:k]
    return exact[order], order


@pytest.mark.covering(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("loop", ["scan", "where in nested scans", "branches", "Python"])
def test_the_largest_values_come_with_their_counters(loop, k, dtype):
    xs = np.float32([3, -2, 3, 0, 7, -128, 127, 7, 1, 0, 2, 127])
    xs = (np.clip(xs, 0, None) if dtype in ("uint8", "bool") else xs).astype(dtype)
    if dtype in ("float32", "bfloat16"):
        xs[[1, 3, 5]] = np.nan, -np.inf, np.inf
    wanted, places = largest(xs, k)
    spooled = lox.spool(numbered(loop), reduce=topk(k), unify=True)
    compiled = jax.jit(lambda xs: (spooled(xs)[1], lox.spool(numbered("scan"))(xs)[1].reduce(topk(k))))
    for logs in (*compiled(xs), *([spooled(jnp.asarray(xs))[1]] if loop == "Python" else [])):
        assert logs["x"].shape == logs.mask["x"].shape == logs.steps["place"]["x"].shape == (1, k)
        assert logs["x"].dtype == xs.dtype
        happened = logs.mask["x"][0]
        assert happened.tolist() == [place < len(xs) for place in range(k)]
        np.testing.assert_array_equal(np.asarray(logs["x"][0][happened], np.float64), wanted)
        assert logs.steps["place"]["x"][0][happened].tolist() == places.tolist()


def test_the_largest_of_each_element_batch_and_window():
    xs = random.normal(size=(3, 8, 2)).astype(np.float32)
    fun = numbered("scan")

    @jax.jit
    def spooled(xs):
        whole = lox.spool(jax.vmap(fun), reduce=topk(2))(xs)[1], jax.vmap(lox.spool(fun, reduce=topk(2)))(xs)[1]
        pooled = lox.spool(fun, reduce=topk(2, pool=True))(xs[0])[1]
        return whole, pooled, jax.vmap(lox.spool(fun, reduce=topk(2), window=5))(xs[:, :, 0])[1]

    whole, logs, batch = spooled(xs)
    for each in whole:
        for row, column in np.ndindex(3, 2):
            wanted, places = largest(xs[row, :, column], 2)
            np.testing.assert_array_equal(each["x"].reshape(3, 2, 2)[row, column], np.float32(wanted))
            assert each.steps["place"]["x"].reshape(3, 2, 2)[row, column].tolist() == places.tolist()
    wanted, places = largest(xs[0].reshape(-1), 2)
    assert (logs["x"][0].tolist(), logs.steps["place"]["x"][0].tolist()) == (wanted.tolist(), (places // 2).tolist())
    heard = []
    lox.tap(fun, heard.append, reduce=topk(2), window=5)(jnp.asarray(xs[0, :, 0]))
    lox.flush()
    _, logs = lox.spool(fun, reduce=topk(2), window=5)(jnp.asarray(xs[0, :, 0]))
    for window, first in enumerate((0, 5)):
        wanted, places = largest(xs[0, first : first + 5, 0], 2)
        for each in (
            heard[window],
            logs.slice(window, window + 1),
            jax.tree.map(lambda x: x[0], batch).slice(window, window + 1),
        ):
            assert each["x"][0].tolist() == wanted.tolist()
            assert each.steps["place"]["x"][0].tolist() == (places + first).tolist()


def test_a_window_of_fewer_events_than_are_kept_says_so():
    heard = []
    lox.tap(numbered("scan"), heard.append, reduce=topk(3), window=2)(jnp.float32([5, 7, 1]))
    lox.flush()
    _, logs = lox.spool(numbered("scan"), reduce=topk(3), window=2)(jnp.float32([5, 7, 1]))
    for windows in ([logs.slice(0, 1), logs.slice(1, 2)], heard):
        assert [each.mask["x"][0].tolist() for each in windows] == [[True, True, False], [True, False, False]]
        np.testing.assert_array_equal(
            np.concatenate([each["x"] for each in windows]), [[7, 5, np.nan], [1] + 2 * [np.nan]]
        )


def test_the_derivative_of_the_largest_is_that_of_their_events():
    def f(xs):
        return jnp.sum(lox.spool(numbered("scan"), reduce=topk(2))(xs)[1]["x"] ** 2)

    xs = jnp.array([1.0, 5.0, 3.0])
    assert jax.grad(f)(xs).tolist() == [0, 10, 6]
    assert jax.jacfwd(f)(xs).tolist() == [0, 10, 6]


def test_counters_of_several_dtypes_and_shards_have_their_largest_values():
    def f(xs):
        lox.log({"x": xs[0]}, i=1)
        lox.log({"x": xs[1]}, i=2.5)
        over = lambda c, x: (c, lox.log({"x": x}, i=3) and None)  # noqa: E731
        lax.scan(over, None, xs)

    _, logs = lox.spool(f, reduce=topk(3))(jnp.array([1.0, 4.0]))
    assert (logs["x"].tolist(), logs.steps["i"]["x"].tolist()) == ([[4, 4, 1]], [[2.5, 3, 1]])
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    sharded = jax.shard_map(numbered("scan"), mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())
    _, logs = jax.jit(lox.spool(sharded, reduce=topk(2)))(jnp.float32([3, 5, 4, 1, 9, 0]))
    assert (logs["x"][0].tolist(), logs.steps["place"]["x"][0].tolist()) == ([[5, 4], [9, 1]], [[1, 2], [1, 0]])


def test_as_many_are_kept_as_a_number_says():
    for k in (0, -1, 1.5, True, None, "a"):
        with pytest.raises(lox.LogValueError, match=r"lox.reductions.topk takes a number of at least 1, got"):
            topk(k)
    with pytest.raises(lox.LogValueError, match=r"There is no lox.reductions.topk\(2, pool=True\) of complex64"):
        lox.spool(log, reduce=topk(2, pool=True))(1j)


# -- a random sample -------------------------------------------------------------------------------------------------


def drawn(number, k, seed, before=0):
    """The numbers of the events that are drawn, in order, from the formula."""
    hashes = hashed(np.uint32(before) + np.arange(64, dtype=np.uint32), reservoir(k, seed).seed)[:number]
    return np.argsort(np.asarray(hashes))[::-1][:k]


hashed = jax.jit(_largest._hash, static_argnums=1)


@pytest.mark.parametrize("loop", ["scan", "where in nested scans", "branches", "Python"])
def test_a_sample_is_the_same_in_every_loop(loop):
    xs = jnp.asarray(random.normal(size=(40, 2)).astype(np.float32))
    for spooled in (lox.spool(numbered(loop), reduce=reservoir(6, 3), unify=True), lambda xs: (None, of_all(xs))):
        _, logs = spooled(xs)
        places = drawn(40, 6, 3)
        assert logs.steps["place"]["x"][0].tolist() == [places.tolist()] * 2
        np.testing.assert_array_equal(logs["x"][0], xs[places].T)
        assert logs.mask["x"].all()


@jax.jit
def of_all(xs):
    return lox.spool(numbered("scan"))(xs)[1].reduce(reservoir(6, 3))


def test_a_sample_goes_on_with_the_numbers_of_what_was_before():
    """In loops, functions and branches one after the other, in loops in them, and in windows."""

    def f(xs):
        over_scan(xs[:5])
        jax.jit(over_scans)(xs[5:13])
        lax.cond(xs[0] > -9, over_scan, lambda xs: None, xs[13:20])
        jax.jit(lambda xs: over_scan(xs[:3]) or lax.cond(xs[0] > 9, over_scan, lambda xs: over_scan(xs[:2]), xs))(
            xs[20:]
        )
        over_while(xs[25:])

    xs = random.normal(size=30).astype(np.float32)
    happened = np.concatenate([xs[:23], xs[20:22], xs[25:]])
    spooled = lox.spool(f, reduce=reservoir(4, 1), unify=True)

    @jax.jit
    def compiled(xs):
        windows = lox.spool(over_scan, reduce=reservoir(2, 1), window=10)(xs)[1]
        return spooled(xs)[1], jax.vmap(spooled)(jnp.stack([xs, -xs, xs + 1]))[1], windows

    alone, batched, logs = compiled(xs)
    for found in (spooled(jnp.asarray(xs))[1]["x"][0], alone["x"][0], batched["x"][0, 0]):
        np.testing.assert_array_equal(found, happened[drawn(30, 4, 1)])
    for window, found in enumerate(logs["x"]):
        np.testing.assert_array_equal(found, xs[10 * window + drawn(10, 2, 1, before=10 * window)])


def test_a_sample_of_a_batch_element_goes_on_in_a_branch_with_the_number_of_its_own_events():
    def log(row):
        lox.log({"x": row}, where=jnp.ones(3, bool))

    def f(xs):
        log(xs[0])
        lax.cond(xs[1, 0] > -9, lambda: lax.scan(lambda _, row: (_, log(row)), None, xs[1:]), lambda: (None, None))

    xs = jnp.asarray(random.normal(size=(12, 3)).astype(np.float32))
    _, logs = lox.spool(f, reduce=reservoir(4, 1), unify=True)(xs)
    np.testing.assert_array_equal(logs["x"][0], xs.T[:, drawn(12, 4, 1)])


def test_a_sample_goes_on_where_batch_elements_part():
    """In branches of a batched predicate, which return their logs stacked, also inside a loop that differs."""

    def f(x):
        def iterate(carry):
            i, x = carry
            lax.cond((x[0] + i) % 2 == 0, over_scan, lambda x: lox.log({"x": x[1]}) and None, x)
            lox.log({"x": x[0]})
            return i + 1, x

        lox.log({"x": x[0]})
        lax.while_loop(lambda carry: carry[0] < x[0], iterate, (0, x))
        jax.jit(lambda x: lax.cond(x[0] > 1, over_scan, lambda x: over_scan(x) or over_scan(x), x))(x)
        lox.log({"x": x[2]})

    def events(x):
        found = [x[0]]
        for i in range(int(x[0])):
            found += [*(x if (x[0] + i) % 2 == 0 else x[1:2]), x[0]]
        return np.array([*found, *x, *(x if x[0] <= 1 else ()), x[2]])

    @jax.jit
    def spooled(batch):
        outside = lox.spool(jax.vmap(f), reduce=reservoir(4, 1), unify=True)(batch)[1]["x"][0]
        return outside, jax.vmap(lox.spool(f, reduce=reservoir(4, 1), unify=True))(batch)[1]["x"][:, 0]

    batch = np.float32([[1, 8, 9], [2, 18, 19], [5, 28, 29]])
    for found in spooled(batch):
        for own, each in zip(batch, found, strict=True):
            happened = events(own)
            np.testing.assert_array_equal(each, happened[drawn(len(happened), 4, 1)])


def test_a_sample_goes_on_in_batches_of_other_sizes():
    def log(x):  # Events of one call may be in batches of several sizes.
        lox.log({"x": x})

    def scan(x):
        lax.scan(lambda c, x: (c, log(x)), None, x)

    def f(xs):
        of_all = lambda x: lax.cond(xs[0, 0] >= 0, scan, lambda x: None, x)  # noqa: E731
        of_each = lambda x: lax.cond(x[0] >= 0, scan, lambda x: None, x)  # noqa: E731
        for over in (scan, lambda x: log(x[0]), of_all, of_each):
            lax.map(over, xs, batch_size=2)
            jax.vmap(over)(xs[:3])

    xs = np.arange(15, dtype=np.float32).reshape(5, 3)
    _, logs = jax.jit(lox.spool(f, reduce=reservoir(4, 1), unify=True))(xs)
    for element, found in enumerate(logs["x"][0]):
        rows = np.concatenate([xs[element::2] if element < 2 else xs[:0], xs[element : element + 1]])
        happened = np.concatenate([rows[:, :number].reshape(-1) for number in (3, 1, 3, 3)])
        np.testing.assert_array_equal(found, happened[drawn(len(happened), 4, 1)])


def test_events_that_are_not_alike_are_refused_before_they_are_numbered():
    def f(xs):
        lox.log({"x": xs})
        over_scan(xs[:, 0])

    with pytest.raises(lox.StructureError, match="Events of one key must be alike"):
        lox.spool(f, reduce=reservoir(2, 1))(jnp.ones((3, 2)))


def test_a_sample_in_a_shard_map_is_that_of_its_first_events_or_refused():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    shards = jax.shard_map(over_scan, mesh=mesh, in_specs=PartitionSpec("data"), out_specs=PartitionSpec())
    xs = jnp.arange(12.0)
    _, logs = jax.jit(lox.spool(shards, reduce=reservoir(3, 1)))(xs)
    np.testing.assert_array_equal(logs["x"][0], xs.reshape(2, 6)[:, drawn(6, 3, 1)])
    for again in (
        lambda xs: (shards(xs), shards(xs)) and None,
        lambda xs: lax.scan(lambda c, xs: (c, shards(xs)), None, xs.reshape(3, 4)),
    ):
        with pytest.raises(lox.UnsupportedPrimitiveError, match="it is in a shard_map, where nobody knows how many"):
            jax.jit(lox.spool(again, reduce=reservoir(3, 1)))(xs)


@pytest.mark.exhaustive
def test_each_event_has_the_same_chance():
    """So have pairs of events, and other keys draw others."""
    counts = np.zeros((12, 12))
    for seed in range(4000):
        places = drawn(12, 3, seed)
        counts[np.ix_(places, places)] += 1
    expected = np.where(np.eye(12), 4000 * 3 / 12, 4000 * 3 / 12 * 2 / 11)
    assert np.abs((counts - expected) / np.sqrt(expected)).max() < 4
    first = [tuple(drawn(12, 1, seed)) for seed in range(4000)]
    assert np.corrcoef(np.ravel(first[:-1]), np.ravel(first[1:]))[0, 1] == pytest.approx(0, abs=0.05)


@pytest.mark.exhaustive
def test_the_elements_of_an_event_are_drawn_together_or_pooled():
    xs = jnp.asarray(random.normal(size=(20, 3)).astype(np.float32))
    _, logs = lox.spool(numbered("scan"), reduce=reservoir(4, jax.random.key(5)))(xs)
    places = logs.steps["place"]["x"][0]
    assert (places == places[:1]).all()
    np.testing.assert_array_equal(logs["x"][0], xs[places[0]].T)
    _, logs = lox.spool(numbered("scan"), reduce=reservoir(4, 2, pool=True))(xs)
    np.testing.assert_array_equal(logs["x"][0], xs.reshape(-1)[drawn(60, 4, 2)])
    assert logs.steps["place"]["x"][0].tolist() == (drawn(60, 4, 2) // 3).tolist()
    lox.testing.check_reduction(reservoir(4, 2, pool=True), EVENTS)
    _, logs = lox.spool(log, reduce=reservoir(2, 2))(1j)
    np.testing.assert_array_equal(logs["x"][0], [1j, np.nan])


def test_keys_of_jax_and_integers_are_told_apart():
    seeds = [reservoir(1, key).seed for key in (0, 1, 2**32, 2**64, jax.random.key(3), jax.random.PRNGKey(4))]
    assert len(set(seeds)) == len(seeds)
    assert reservoir(1, jax.random.key(1)) == reservoir(1, 1) == reservoir(1, np.uint8(1)) != reservoir(1, 2)
    for key in (-1, 1.5, None, "a", True, jnp.zeros(2)):
        with pytest.raises(
            lox.LogValueError, match=r"The key of lox.reductions.reservoir is an integer of at least 0 or"
        ):
            reservoir(1, key)
    with pytest.raises(lox.LogValueError, match="It has to be known when the function is traced"):
        jax.jit(lambda key: reservoir(1, key))(jax.random.key(0))
    with pytest.raises(lox.LogValueError, match="reservoir takes a number of at least 1, got 0"):
        reservoir(0, 1)


def test_a_sample_of_events_in_a_custom_rule_is_refused():
    @jax.custom_jvp
    def f(x):
        return lox.log({"x": x})["x"]

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"'x', logged at .* cannot be reduced by .*reservoir\(2\)"):
        lox.spool(lambda xs: lax.map(f, xs), reduce=reservoir(2, 0))(jnp.ones(3))


def test_events_that_say_where_do_not_hide_those_in_the_same_branch_that_do_not():
    def f(xs):
        def even(x):
            lox.log({"x": x})
            return lox.log({"x": x + 100}, where=x > 2)["x"]

        return lax.scan(lambda c, x: (lax.cond(x % 2 == 0, even, lambda x: x, x), None), 0.0, xs)[0]

    _, logs = lox.spool(f, reduce=histogram([50.0]))(jnp.arange(6.0))
    assert logs["x"].tolist() == [[3, 1]]


def of_arrays(*shapes):
    """A reduction whose state is of arrays of these shapes."""
    return Reduction(
        lambda event: tuple(map(jnp.zeros, shapes)), *[lambda state, *_: state] * 2, lambda state: state[0]
    )


SIZES = [
    (topk(2**24), 1.0, ""),
    (topk(2**24 + 2**18), 1.0, "takes 65 MiB for events of shape ()"),
    (topk(2**23 + 2**18), np.zeros(4, np.float16), "takes 66 MiB for events of shape (4,)"),
    (topk(2**23 + 2**18, pool=True), np.zeros((4, 2), np.float16), ""),
    (reservoir(2**23, 1), np.zeros((3, 1), np.float32), "takes 96 MiB for events of shape (3, 1)"),
    (histogram(range(2**10 - 1)), np.zeros((2, 2**13)), ""),
    (histogram(range(2**10)), np.zeros((2, 2**13)), "takes 64 MiB for events of shape (2, 8192)"),
    (quantiles(0.5), np.zeros(400, np.int8), ""),
    (quantiles(0.5), np.zeros(500, np.int8), "MiB for events of shape (500,)"),
    (of_arrays((2**12, 2**11), 2**23), 1.0, ""),
    (of_arrays((2**12, 2**11), 2**23 + 2**18), 1.0, "takes 65 MiB for events of shape ()"),
]


def test_the_size_of_a_state_is_that_of_its_arrays_and_may_be_just_as_many_bytes_as_are_allowed():
    for how, event, text in SIZES:
        refused = pytest.raises(lox.LogValueError) if text else contextlib.nullcontext()
        with refused as raised:
            jax.eval_shape(lox.spool(log, reduce=how), event)
        assert not text or text in str(raised.value)
    with pytest.raises(lox.LogValueError, match=r"takes 66 MiB for events of shape \(3,\) in a batch of \(2, 11\)"):
        jax.eval_shape(lox.spool(jax.vmap(jax.vmap(log)), reduce=topk(2**18)), np.zeros((2, 11, 3), np.float32))


def test_arguments_at_their_limits_and_numbers_of_numpy_are_taken():
    assert repr(histogram(range(5))) == "lox.reductions.histogram([0, 1, 2, 3, 4])"
    assert repr(histogram(range(6))) == "lox.reductions.histogram([0, ..., 5])"
    assert repr(quantiles(np.float32(0.25), 1e-6, pool=np.int8(3))) == (
        "lox.reductions.quantiles(0.25, relative_error=1e-06, pool=3)"
    )
    assert repr(quantiles([0, 1], 0.999)) == "lox.reductions.quantiles([0.0, 1.0], relative_error=0.999)"
    assert repr(topk(np.int16(3), pool=np.True_)) == "lox.reductions.topk(3, pool=True)"
    assert repr(reservoir(1, 2**40)) == "lox.reductions.reservoir(1)" and repr(ewma(0)) == "lox.reductions.ewma(0.0)"
    assert reservoir(1, 2**40).seed == (2**8, 0) and reservoir(1, 2**64 + 5).seed == (1, 0, 5)
    assert topk(3) == topk(np.int64(3)) != topk(3, pool=3) and hash(topk(3)) == hash(topk(np.int64(3)))
    assert quantiles(0.5) != quantiles([0.5]) != quantiles([0.5], 0.02) and histogram([0]) == histogram((0,))
    x = jnp.float32([4, 1, 3, 2, 0])
    assert reduced(over_scan, quantiles([0, 1, 0.5]), x).tolist() == pytest.approx([0, 4, 2], rel=0.01)


@pytest.mark.parametrize("size", [3, 12])
def test_of_equal_values_the_first_ones_are_kept_however_many_come_at_once(size):
    def f(xs):
        def step(i, x):
            lox.log({"x": x}, step=i)
            return i + 1, None

        return lax.scan(step, 0, xs)[0]

    _, logs = lox.spool(f, reduce=topk(3, pool=True))(jnp.ones((4, size)))
    assert logs["x"].tolist() == [[1, 1, 1]] and logs.steps["step"]["x"].tolist() == [[0, 0, 0]]
