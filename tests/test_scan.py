"""`scan`, `fori_loop`, `lax.map` and `associative_scan` log as Python loops do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference import Journal, assert_logs

import lox


def plain(log, xs, total=0.0):
    for i, x in enumerate(xs):
        log({"total": total, "x": x}, i=i)
        total = total + x
    return total


def looped(xs, **options):
    def step(total, item):
        i, x = item
        lox.log({"total": total, "x": x}, i=i)
        return total + x, -x

    xs = jnp.asarray(xs, jnp.float32)
    return lax.scan(step, jnp.float32(0), (jnp.arange(len(xs)), xs), **options)


@pytest.mark.parametrize("unroll", [1, 2, 5, True])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_scan_logs_as_a_loop_however_far_it_is_unrolled(unroll, transform):
    journal = Journal()
    total = plain(journal.log, [1.0, 2.0, 3.0, 4.0, 5.0])
    (found, ys), logs = lox.spool(transform(lambda: looped([1, 2, 3, 4, 5], unroll=unroll)))()
    assert found == total
    np.testing.assert_array_equal(ys, [-1, -2, -3, -4, -5])
    assert_logs(logs, journal.events, steps=journal.steps)


@pytest.mark.parametrize("options", [{}, {"interval": 1}, {"argnames": ["total", "x"]}], ids=str)
@pytest.mark.parametrize("unroll", [1, 2])
def test_events_of_a_reversed_scan_come_in_execution_order(unroll, options):
    out, logs = lox.spool(lambda: looped([1, 2, 3], reverse=True, unroll=unroll), **options)()
    np.testing.assert_array_equal(out[1], [-1, -2, -3])
    assert_logs(
        logs, {"total": [0.0, 3.0, 5.0], "x": [3.0, 2.0, 1.0]}, steps={"i": {"total": [2, 1, 0], "x": [2, 1, 0]}}
    )


def test_a_reversed_scan_is_thinned_and_reduced_in_execution_order():
    _, logs = lox.spool(lambda: looped([1, 2, 3, 4], reverse=True), interval=3)()
    assert_logs(logs, {"total": [0.0, 9.0], "x": [4.0, 1.0]}, steps={"i": {"total": [3, 0], "x": [3, 0]}})
    _, logs = lox.spool(lambda: looped([1, 2, 3, 4], reverse=True), reduce="first")()
    assert_logs(logs, {"total": [0.0], "x": [4.0]}, steps={"i": {"total": [3], "x": [3]}})


def test_a_scan_of_no_iterations_logs_no_events_of_the_right_shape():
    _, logs = lox.spool(lambda: looped([]))()
    assert_logs(
        logs,
        {"total": np.zeros(0), "x": np.zeros(0)},
        steps={"i": {"total": np.zeros(0, int), "x": np.zeros(0, int)}},
    )


def test_a_scan_of_no_iterations_adds_nothing_to_the_events_around_it():
    def f():
        lox.log({"x": 5.0}, i=7)
        looped([])
        lox.log({"x": 6.0}, i=8)

    _, logs = lox.spool(f, argnames="x")()
    assert_logs(logs, {"x": [5.0, 6.0]}, steps={"i": {"x": [7, 8]}})


def test_a_scan_over_pytrees_logs_each_leaf():
    def f(carry, xs):
        def step(carry, x):
            lox.log({"carry": carry, "x": x})
            return {"a": carry["a"] + x[0], "b": (carry["b"][0] * 2,)}, {"y": x[1]}

        return lax.scan(step, carry, xs)

    carry = {"a": jnp.float32(0), "b": (jnp.ones(2),)}
    xs = (jnp.arange(3.0), jnp.arange(6).reshape(3, 2))
    (out, ys), logs = lox.spool(f)(carry, xs)
    assert out["a"] == 3 and ys["y"].shape == (3, 2)
    expected = {
        "carry/a": [0.0, 0.0, 1.0],
        "carry/b/0": [[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]],
        "x/0": [0.0, 1.0, 2.0],
        "x/1": [[0, 1], [2, 3], [4, 5]],
    }
    assert_logs(logs, expected)


def test_sites_in_one_body_with_one_key_take_turns():
    def f():
        def step(carry, i):
            lox.log({"k": i})
            lox.log({"k": 10 * i, "other": i})
            return carry, None

        return lax.scan(step, 0, jnp.arange(3))

    assert_logs(lox.spool(f)()[1], {"k": [0, 0, 1, 10, 2, 20], "other": [0, 1, 2]})


@pytest.mark.parametrize("inner_reverse", [False, True])
@pytest.mark.parametrize("outer_reverse", [False, True])
def test_nested_scans_flatten_into_one_event_axis_in_execution_order(outer_reverse, inner_reverse):
    def f():
        def outer(carry, i):
            lox.log({"k": 100 + i})

            def inner(carry, j):
                lox.log({"k": 10 * i + j}, i=i, j=j)
                return carry, None

            lax.scan(inner, 0, jnp.arange(3), reverse=inner_reverse)
            return carry, None

        return lax.scan(outer, 0, jnp.arange(2), reverse=outer_reverse)

    def two_levels():
        def outer(carry, i):
            def inner(carry, j):
                lox.log({"k": 10 * i + j}, i=i, j=j)
                return carry, None

            lax.scan(inner, 0, jnp.arange(3), reverse=inner_reverse)
            return carry, None

        return lax.scan(outer, 0, jnp.arange(2), reverse=outer_reverse)

    journal = Journal()
    for i in (1, 0) if outer_reverse else (0, 1):
        for j in (2, 1, 0) if inner_reverse else (0, 1, 2):
            journal.log({"k": 10 * i + j}, i=i, j=j)
    for transform in (lambda f: f, jax.jit):
        assert_logs(lox.spool(transform(two_levels))()[1], journal.events, steps=journal.steps)
    with pytest.raises(lox.StructureError, match="same counters"):
        lox.spool(f)()


def test_events_before_in_and_after_nested_loops_of_one_key_interleave_as_they_execute():
    def traced(log):
        log({"k": -1})

        def outer(carry, i):
            log({"k": 100 * i})
            lax.fori_loop(0, 2, lambda j, c: (log({"k": 100 * i + 10 * j + 1}), c)[1], 0)
            log({"k": 100 * i + 99})
            return carry, None

        lax.scan(outer, 0, jnp.arange(3))
        log({"k": -2})

    journal = Journal()
    journal.log({"k": -1})
    for i in range(3):
        journal.log({"k": 100 * i})
        for j in range(2):
            journal.log({"k": 100 * i + 10 * j + 1})
        journal.log({"k": 100 * i + 99})
    journal.log({"k": -2})
    for transform in (lambda f: f, jax.jit):
        assert_logs(lox.spool(transform(lambda: traced(lox.log)))()[1], journal.events)


def test_three_nested_scans_give_the_product_of_their_lengths():
    def f():
        def a(c, i):
            def b(c, j):
                def d(c, k):
                    lox.log({"k": 100 * i + 10 * j + k})
                    return c, None

                return lax.scan(d, c, jnp.arange(2))

            return lax.scan(b, c, jnp.arange(3))

        return lax.scan(a, 0, jnp.arange(4))

    expected = [100 * i + 10 * j + k for i in range(4) for j in range(3) for k in range(2)]
    assert_logs(lox.spool(f)()[1], {"k": expected})


def test_a_static_fori_loop_logs_as_range():
    def f(x):
        return lax.fori_loop(2, 6, lambda i, x: lox.log({"x": x + i})["x"], x)

    journal, x = Journal(), 0
    for i in range(2, 6):
        x = journal.log({"x": x + i})["x"]
    out, logs = lox.spool(f)(jnp.int32(0))
    assert out == x
    assert_logs(logs, journal.events)
    assert_logs(lox.spool(jax.jit(f))(jnp.int32(0))[1], journal.events)


FULL, REST = [[True, True], [True, True], [True, False]], [[0.0, 2.0], [4.0, 6.0], [8.0, np.nan]]

batched_maps = {
    "map": lambda f: lambda xs: lax.map(f, xs, batch_size=2),
    "jit": lambda f: jax.jit(lambda xs: lax.map(f, xs, batch_size=2)),
    "grad": lambda f: lambda xs: jax.grad(lambda xs: lax.map(f, xs, batch_size=2).sum())(xs),
}


@pytest.mark.parametrize("around", batched_maps)
def test_map_with_a_batch_size_that_does_not_divide_the_length_masks_the_rest(around):
    def f(x):
        return lox.log({"x": x * 2}, i=x.astype(int))["x"]

    _, logs = lox.spool(batched_maps[around](f))(jnp.arange(5.0))
    assert_logs(logs, {"x": REST}, steps={"i": {"x": [[0, 1], [2, 3], [4, 0]]}}, mask={"x": FULL})
    np.testing.assert_array_equal(logs.valid("x"), [0.0, 2.0, 4.0, 6.0, 8.0])
    _, logs = lox.spool(jax.vmap(batched_maps[around](f)))(jnp.arange(10.0).reshape(2, 5))
    assert logs["x"].shape == (3, 2, 2)
    np.testing.assert_array_equal(logs["x"][:, 0], REST)
    np.testing.assert_array_equal(logs.mask["x"][:, 1], FULL)


@pytest.mark.parametrize("around", batched_maps)
def test_map_with_a_batch_size_that_does_not_divide_the_length_reduces_each_place_of_the_batch(around):
    def f(x):
        lox.log({"mean": x, "last": x, "count": x, "max": -x, "masked": x}, i=x.astype(int))
        lax.cond(x > 2, lambda: lox.log({"branch": x}) and None, lambda: None)
        return x

    how = {name: name for name in ("mean", "last", "count", "max")} | {"branch": "sum", "masked": "min"}
    _, logs = lox.spool(batched_maps[around](f), reduce=how, unify=True)(jnp.arange(5.0))
    expected = {"mean": [[2, 2]], "last": [[4, 3]], "max": [[0, -1]], "masked": [[0, 1]], "branch": [[4, 3]]}
    last = {"i": {key: [[4, 3]] for key in ("mean", "last", "count", "max", "masked")}}
    assert_logs(
        logs,
        {"count": [[3, 2]]} | {key: np.float32(value) for key, value in expected.items()},
        steps=last,
        mask={"branch": [[True, True]]},
    )


def test_map_with_a_batch_size_that_does_not_divide_the_length_logs_in_a_scan_and_in_loops():
    def f(x):
        lax.fori_loop(0, 2, lambda i, x: lox.log({"x": x + i})["x"], x)
        lox.log({"key": jax.random.key(7)})
        return x

    _, logs = lox.spool(lambda xs: lax.scan(lambda c, _: (lax.map(f, c, batch_size=3), None), xs, None, length=2))(
        jnp.arange(4.0)
    )
    one = [[0, 1, 2], [1, 2, 3], [3, np.nan, np.nan], [4, np.nan, np.nan]]
    np.testing.assert_array_equal(logs["x"], [*one, *one])
    assert logs.valid("key").shape[0] == 8


@pytest.mark.parametrize("batch_size", [None, 2])
def test_map_logs_in_the_order_of_its_elements(batch_size):
    def f(xs):
        return lax.map(lambda x: lox.log({"x": x * 2})["x"], xs, batch_size=batch_size)

    out, logs = lox.spool(f)(jnp.arange(4.0))
    np.testing.assert_array_equal(out, [0, 2, 4, 6])
    # Elements that are mapped at once are lanes of one event.
    assert_logs(logs, {"x": [0.0, 2.0, 4.0, 6.0] if batch_size is None else [[0.0, 2.0], [4.0, 6.0]]})


def test_an_associative_scan_logs_each_call_of_its_function():
    def run(log, numpy, scan):
        def add(a, b):
            log({"sum": (a + b).sum()})
            return a + b

        return scan(add, numpy.arange(4, dtype=np.int32))

    def plain_scan(add, xs):
        if len(xs) < 2:
            return xs
        reduced = add(xs[:-1:2], xs[1::2])
        odd = plain_scan(add, reduced)
        even = add(odd[:-1], xs[2::2]) if len(xs) % 2 == 0 else add(odd, xs[2::2])
        out = np.zeros_like(xs)
        out[0], out[2::2], out[1::2] = xs[0], even, odd
        return out

    journal = Journal()
    expected = run(journal.log, np, plain_scan)
    out, logs = lox.spool(lambda: run(lox.log, jnp, lax.associative_scan))()
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(out, [0, 1, 3, 6])
    assert_logs(logs, {"sum": np.array(journal.events["sum"], np.int32)})


def test_a_loop_invariant_log_happens_in_every_iteration():
    def f(x):
        def step(carry, _):
            lox.log({"constant": 1.5, "closed": x * 2})
            return carry + 1, None

        return lax.scan(step, 0, None, length=3)[0]

    for transform in (lambda f: f, jax.jit):
        assert_logs(lox.spool(transform(f))(jnp.float32(2))[1], {"constant": [1.5] * 3, "closed": [4.0] * 3})


def test_a_scan_of_length_one_logs_one_event():
    assert_logs(
        lox.spool(lambda: looped([4]))()[1], {"total": [0.0], "x": [4.0]}, steps={"i": {"total": [0], "x": [0]}}
    )


def test_a_scan_that_logs_ref_values_logs_what_is_in_them():
    def f(x):
        ref = jax.new_ref(x)

        def step(carry, i):
            ref[...] = ref[...] + i.astype(jnp.float32)
            lox.log({"ref": ref[...]})
            return carry, None

        lax.scan(step, 0, jnp.arange(3))
        return ref[...]

    out, logs = lox.spool(jax.jit(f))(jnp.float32(1))
    assert out == 4
    assert_logs(logs, {"ref": [1.0, 2.0, 4.0]})


def test_a_scan_whose_length_is_a_symbol_can_be_exported():
    def f(xs):
        return lax.scan(lambda total, x: (lox.log({"total": total})["total"] + x, None), 0.0, xs)[0]

    (length,) = jax.export.symbolic_shape("n")
    xs = jnp.arange(5.0)
    for options in ({}, {"reduce": "mean"}, {"interval": 2}):
        spooled = lox.spool(f, **options)
        exported = jax.export.export(jax.jit(lambda xs, spooled=spooled: spooled(xs)[1].data))(
            jax.ShapeDtypeStruct((length,), jnp.float32)
        )
        assert exported.call(xs)["total"].tolist() == spooled(xs)[1]["total"].tolist()


def test_a_scan_without_iterations_logs_its_key_without_events_at_any_interval():
    def f(x, length=0):
        return lax.scan(lambda x, _: (lox.log({"x": x})["x"], None), x, length=length)[0]

    def nested(x):
        return lax.scan(lambda x, _: (f(x), None), x, length=3)[0]

    for function in (f, nested):
        assert_logs(lox.spool(function, interval=2)(jnp.float32(1))[1], {"x": np.zeros(0)})


def test_a_loop_that_goes_backwards_logs_vectors_as_they_are():
    def f(xs):
        return jax.lax.scan(lambda c, x: (c, lox.log({"x": x})["x"]), 0, xs, reverse=True)

    xs = jnp.arange(12.0).reshape(3, 2, 2)
    np.testing.assert_array_equal(lox.spool(f)(xs)[1]["x"], xs[::-1])
