"""`while_loop`, and `fori_loop` with dynamic bounds: refused, left out, bounded or reduced."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference import Journal, assert_array, assert_logs, lane

import lox

NAN = np.nan


def plain_halve(log, x):
    i = 0
    while x > 1:
        log({"x": x}, i=i)
        x, i = x / 2, i + 1
    return x


def halve(x):
    def body(carry):
        x, i = carry
        lox.log({"x": x}, i=i)
        return x / 2, i + 1

    return lax.while_loop(lambda carry: carry[0] > 1, body, (x, jnp.int32(0)))[0]


def logs_in_condition(x):
    def condition(x):
        lox.log({"c": x})
        return x > 1

    def body(x):
        lox.log({"x": x})
        return x / 2

    return lax.while_loop(condition, body, x)


transforms = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


@transforms
def test_max_iters_keeps_the_iterations_that_ran_and_masks_the_others(transform):
    out, logs = lox.spool(transform(halve), max_iters=4)(jnp.float32(5))
    assert out == 0.625
    assert_logs(
        logs,
        {"x": [5.0, 2.5, 1.25, NAN]},
        steps={"i": {"x": [0, 1, 2, 0]}},
        mask={"x": [1, 1, 1, 0]},
        dropped={"x": 0},
    )


@transforms
def test_max_iters_counts_the_events_it_drops(transform):
    out, logs = lox.spool(transform(halve), max_iters=2)(jnp.float32(20))
    assert out == 0.625
    assert_logs(logs, {"x": [20.0, 10.0]}, steps={"i": {"x": [0, 1]}}, mask={"x": [1, 1]}, dropped={"x": 3})


@transforms
def test_a_loop_that_does_not_run_logs_nothing(transform):
    out, logs = lox.spool(transform(halve), max_iters=2)(jnp.float32(1))
    assert out == 1
    assert logs.valid("x").shape == (0,)
    assert_logs(logs, {"x": [NAN, NAN]}, steps={"i": {"x": [0, 0]}}, mask={"x": [0, 0]}, dropped={"x": 0})


@transforms
def test_values_that_have_no_nan_are_filled_with_zero_or_false(transform):
    def f(n):
        def body(i):
            lox.log({"int": i + 7, "bool": i < 5, "complex": i.astype(jnp.complex64), "half": i.astype(jnp.bfloat16)})
            return i + 1

        return lax.while_loop(lambda i: i < n, body, jnp.int32(0))

    _, logs = lox.spool(transform(f), max_iters=2)(jnp.int32(1))
    mask = dict.fromkeys(["int", "bool", "complex", "half"], [1, 0])
    assert_logs(
        logs,
        {
            "int": [7, 0],
            "bool": [True, False],
            "complex": np.array([0, NAN], np.complex64),
            "half": np.array([0, NAN], jnp.bfloat16),
        },
        mask=mask,
        dropped=dict.fromkeys(mask, 0),
    )


def test_typed_keys_of_a_bounded_loop_are_those_of_the_iterations_that_ran():
    def f(key):
        def body(carry):
            i, key = carry
            lox.log({"key": key})
            return i + 1, jax.random.split(key)[0]

        return lax.while_loop(lambda carry: carry[0] < 2, body, (0, key))

    key = jax.random.key(0)
    _, logs = lox.spool(f, max_iters=3)(key)
    assert_array(logs.mask["key"], [True, True, False])
    expected = [jax.random.key_data(key), jax.random.key_data(jax.random.split(key)[0])]
    np.testing.assert_array_equal(jax.random.key_data(logs["key"])[:2], expected)


@transforms
def test_the_condition_logs_once_more_than_the_body(transform):
    out, logs = lox.spool(transform(logs_in_condition), max_iters=10)(jnp.float32(5))
    assert out == 0.625
    assert logs.valid("c").tolist() == [5.0, 2.5, 1.25, 0.625]
    assert logs.valid("x").tolist() == [5.0, 2.5, 1.25]


@transforms
def test_one_key_in_condition_and_body_interleaves_as_it_executes(transform):
    def f(x):
        def condition(x):
            lox.log({"k": x})
            return x > 1

        def body(x):
            lox.log({"k": -x})
            return x / 2

        return lax.while_loop(condition, body, x)

    journal, x = Journal(), 3.0
    journal.log({"k": x})
    while x > 1:
        journal.log({"k": -x})
        x = x / 2
        journal.log({"k": x})
    _, logs = lox.spool(transform(f), max_iters=4)(jnp.float32(3))
    assert logs.valid("k").tolist() == journal.events["k"]
    assert logs.dropped["k"] == 0


@transforms
def test_a_condition_that_is_false_at_once_logs_once(transform):
    _, logs = lox.spool(transform(logs_in_condition), max_iters=10)(jnp.float32(0.5))
    assert logs.valid("c").tolist() == [0.5]
    assert logs.valid("x").tolist() == []


reductions = {
    "mean": [(5.0 + 2.5 + 1.25) / 3],
    "sum": [8.75],
    "min": [1.25],
    "max": [5.0],
    "first": [5.0],
    "last": [1.25],
    "count": [3],
}


@pytest.mark.parametrize("reduction", reductions)
@transforms
def test_a_reduction_needs_no_bound(reduction, transform):
    out, logs = lox.spool(transform(halve), reduce=reduction)(jnp.float32(5))
    assert out == 0.625
    step = 0 if reduction == "first" else 2
    assert_logs(logs, {"x": reductions[reduction]}, steps={"i": {"x": [step]}}, mask={"x": [1]}, rtol=1e-6)


def test_a_reduction_of_no_events_is_masked_out():
    for reduction, value in {"mean": NAN, "min": NAN, "last": NAN, "sum": 0.0, "count": 0}.items():
        _, logs = lox.spool(halve, reduce=reduction)(jnp.float32(1))
        assert not logs.mask["x"][0]
        assert_array(logs["x"], [value])


def test_a_reduction_of_what_the_condition_logs_counts_every_check():
    _, logs = lox.spool(logs_in_condition, reduce="count")(jnp.float32(5))
    assert logs["c"].tolist() == [4] and logs["x"].tolist() == [3]


def test_reduced_keys_need_no_bound_and_the_others_do():
    def f(x):
        def body(x):
            lox.log({"x": x, "y": 2 * x})
            return x / 2

        return lax.while_loop(lambda x: x > 1, body, x)

    with pytest.raises(lox.SpoolError, match="'y' at"):
        lox.spool(f, reduce={"x": "max"})(jnp.float32(5))
    _, logs = lox.spool(f, reduce={"x": "max"}, max_iters=3)(jnp.float32(5))
    assert logs["x"].tolist() == [5.0]
    assert logs["y"].tolist() == [10.0, 5.0, 2.5]


@transforms
def test_an_unbounded_loop_is_refused(transform):
    with pytest.raises(lox.SpoolError):
        lox.spool(transform(halve))(jnp.float32(5))
    assert halve(jnp.float32(5)) == 0.625


def test_a_warning_leaves_out_the_logs_of_the_loop_and_no_others():
    def f(x):
        lox.log({"before": x})
        x = halve(x)
        lox.log({"after": x})
        return x

    with pytest.warns(lox.SpoolWarning, match="'x' at"):
        out, logs = lox.spool(f, on_while="warn")(jnp.float32(5))
    assert out == 0.625
    assert_logs(logs, {"before": [5.0], "after": [0.625]})


def test_with_a_bound_or_a_reduction_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lox.spool(halve, on_while="warn", max_iters=4)(jnp.float32(5))
        lox.spool(halve, on_while="warn", reduce="mean")(jnp.float32(5))
        lox.spool(halve, on_while="warn", argnames=())(jnp.float32(5))


@pytest.mark.filterwarnings("ignore:.* of lox.spool selects nothing:lox.SelectionWarning")
def test_a_filter_that_leaves_no_log_in_the_loop_needs_no_bound():
    for options in ({"argnames": "y"}, {"tags": "t"}, {"argnames": ()}):
        out, logs = lox.spool(halve, **options)(jnp.float32(5))
        assert out == 0.625
        assert_logs(logs, {})
    assert_logs(lox.spool(lox.strip(halve))(jnp.float32(5))[1], {})


@pytest.mark.filterwarnings("ignore:.* of lox.spool selects nothing:lox.SelectionWarning")
def test_what_a_filter_leaves_in_the_loop_goes_to_the_handler_around():
    (out, inner), outer = lox.spool(lox.spool(halve, argnames="y"), max_iters=4)(jnp.float32(5))
    assert out == 0.625
    assert_logs(inner, {})
    assert outer.valid("x").tolist() == [5.0, 2.5, 1.25]


@pytest.mark.parametrize(
    "spool",
    [lambda f, **options: lox.spool(jax.jit(f), **options), lambda f, **options: jax.jit(lox.spool(f, **options))],
    ids=["spool of jit", "jit of spool"],
)
def test_a_fori_loop_with_dynamic_bounds_is_a_while_loop(spool):
    def f(n):
        return lax.fori_loop(1, n, lambda i, total: total + lox.log({"i": i})["i"], 0)

    out, logs = spool(f, max_iters=5)(jnp.int32(4))
    assert out == 6
    assert_logs(logs, {"i": [1, 2, 3, 0, 0]}, mask={"i": [1, 1, 1, 0, 0]}, dropped={"i": 0})
    assert spool(f, reduce="sum")(jnp.int32(4))[1]["i"].tolist() == [6]
    with pytest.raises(lox.SpoolError):
        spool(f)(jnp.int32(4))


def test_a_fori_loop_with_concrete_bounds_is_a_scan():
    def f(n):
        return lax.fori_loop(1, n, lambda i, total: total + lox.log({"i": i})["i"], 0)

    assert_logs(lox.spool(f)(jnp.int32(4))[1], {"i": [1, 2, 3]})


@transforms
def test_a_loop_in_a_scan_has_a_buffer_for_each_iteration(transform):
    def f(xs):
        return lax.map(halve, xs)

    journal = Journal()
    out = [plain_halve(journal.log, x) for x in (5.0, 1.0, 20.0)]
    found, logs = lox.spool(transform(f), max_iters=4)(jnp.array([5.0, 1.0, 20.0]))
    assert found.tolist() == out
    assert logs["x"].shape == (12,)
    assert logs.mask["x"].tolist() == [True] * 3 + [False] * 5 + [True] * 4
    assert logs.valid("x").tolist() == [5.0, 2.5, 1.25, 20.0, 10.0, 5.0, 2.5]
    assert logs.dropped["x"] == 1
    _, logs = lox.spool(transform(f), reduce="sum")(jnp.array([5.0, 1.0, 20.0]))
    assert logs["x"].tolist() == [sum(journal.events["x"])]


@transforms
def test_a_scan_in_a_loop_logs_every_iteration_of_it(transform):
    def f(x):
        def body(x):
            lax.scan(lambda c, i: (lox.log({"k": c * 10 + i.astype(jnp.float32)}) and c, None), x, jnp.arange(2))
            return x - 1

        return lax.while_loop(lambda x: x > 0, body, x)

    _, logs = lox.spool(transform(f), max_iters=3)(jnp.float32(2))
    assert_logs(
        logs,
        {"k": [20.0, 21.0, 10.0, 11.0, NAN, NAN]},
        mask={"k": [1, 1, 1, 1, 0, 0]},
        dropped={"k": 0},
    )
    _, logs = lox.spool(transform(f), max_iters=1)(jnp.float32(3))
    assert_logs(logs, {"k": [30.0, 31.0]}, mask={"k": [1, 1]}, dropped={"k": 4})


@transforms
def test_a_loop_in_a_loop_logs_what_python_logs(transform):
    def f(x):
        def body(x):
            lox.log({"outer": x})
            halve(x)
            return x - 2

        return lax.while_loop(lambda x: x > 0, body, x)

    def plain(log, x):
        while x > 0:
            log({"outer": x})
            plain_halve(log, x)
            x = x - 2

    journal = Journal()
    plain(journal.log, 5.0)
    _, logs = lox.spool(transform(f), max_iters=3)(jnp.float32(5))
    assert logs.valid("outer").tolist() == journal.events["outer"]
    assert logs.valid("x").tolist() == journal.events["x"]
    assert logs["x"].shape == (9,)
    _, logs = lox.spool(transform(f), max_iters=2)(jnp.float32(5))
    assert logs.valid("x").tolist() == [5.0, 2.5, 3.0, 1.5]
    # One of the first iteration's, and none that the third logs.
    assert logs.dropped["x"] == 1 and logs.dropped["outer"] == 1


@transforms
def test_a_loop_in_a_branch_logs_where_the_branch_is_taken(transform):
    def f(x):
        return lax.cond(x > 3, halve, lambda x: x, x)

    _, logs = lox.spool(transform(f), max_iters=4, unify=True)(jnp.float32(5))
    assert logs.valid("x").tolist() == [5.0, 2.5, 1.25]
    _, logs = lox.spool(transform(f), max_iters=4, unify=True)(jnp.float32(2))
    assert logs.valid("x").tolist() == []
    assert logs.dropped["x"] == 0
    _, logs = lox.spool(transform(f), max_iters=2, unify=True)(jnp.float32(2))
    assert logs.dropped["x"] == 0


LANES = (5.0, 1.0, 20.0)


@transforms
def test_lanes_of_a_batched_loop_log_until_they_have_finished(transform):
    xs = jnp.array(LANES)
    out, logs = lox.spool(transform(jax.vmap(halve)), max_iters=6)(xs)
    assert logs["x"].shape == logs.mask["x"].shape == logs.steps["i"]["x"].shape == (6, 3)
    for index, x in enumerate(LANES):
        journal = Journal()
        assert out[index] == plain_halve(journal.log, x)
        assert lane(logs, "x", index).tolist() == journal.events.get("x", [])
        assert np.isnan(np.asarray(logs["x"])[~np.asarray(logs.mask["x"])]).all()
    assert_array(logs.dropped["x"], [0, 0, 0])


@transforms
def test_a_predicate_that_parts_batch_elements_from_the_second_iteration_on_ends_the_logs_of_each(transform):
    def f(x):
        def body(carry):
            a, b = carry
            lox.log({"a": a})
            return a + x, a

        return lax.while_loop(lambda carry: carry[1] < 3, body, (0.0, 0.0))[0]

    xs = (1.0, 2.0, 4.0)
    _, logs = lox.spool(transform(jax.vmap(f)), max_iters=8)(jnp.array(xs))
    for index, x in enumerate(xs):
        (a, b), logged = (0.0, 0.0), []
        while b < 3:
            logged.append(a)
            a, b = a + x, a
        assert lane(logs, "a", index).tolist() == logged


@transforms
def test_a_bound_drops_what_each_lane_logs_beyond_it(transform):
    for spooled in (
        lox.spool(transform(jax.vmap(halve)), max_iters=2),
        transform(jax.vmap(lox.spool(halve, max_iters=2), out_axes=(0, lox_axes()))),
    ):
        _, logs = spooled(jnp.array(LANES))
        assert_logs(
            logs,
            {"x": [[5.0, NAN, 20.0], [2.5, NAN, 10.0]]},
            steps={"i": {"x": [[0, 0, 0], [1, 0, 1]]}},
            mask={"x": [[1, 0, 1], [1, 0, 1]]},
            dropped={"x": [1, 0, 3]},
        )


def lox_axes():
    """Where `out_axes` puts the batch so that events come first; the counts of dropped ones have no event axis."""
    return lox.logdict({"x": 1}, {"i": {"x": 1}}, {"x": 1}, {"x": 0})


@transforms
def test_a_batched_condition_logs_for_lanes_that_still_run(transform):
    _, logs = lox.spool(transform(jax.vmap(logs_in_condition)), max_iters=6)(jnp.array(LANES))
    for index, x in enumerate(LANES):
        checked, ran = [x], []
        while x > 1:
            ran.append(x)
            x = x / 2
            checked.append(x)
        assert lane(logs, "c", index).tolist() == checked
        assert lane(logs, "x", index).tolist() == ran


@transforms
def test_a_batched_loop_is_reduced_lane_by_lane(transform):
    _, logs = lox.spool(transform(jax.vmap(halve)), reduce="sum")(jnp.array(LANES))
    assert_logs(
        logs,
        {"x": [[8.75, 0.0, 38.75]]},
        steps={"i": {"x": [[2, 0, 4]]}},
        mask={"x": [[1, 0, 1]]},
    )


def test_a_loop_whose_predicate_is_not_batched_runs_alike_in_every_lane():
    def f(x):
        def body(carry):
            i, x = carry
            lox.log({"x": x, "i": i})
            return i + 1, 2 * x

        return lax.while_loop(lambda carry: carry[0] < 2, body, (0, x))[1]

    _, logs = lox.spool(jax.vmap(f), max_iters=3)(jnp.array([1.0, 3.0]))
    assert_logs(
        logs,
        {"x": [[1.0, 3.0], [2.0, 6.0], [NAN, NAN]], "i": [[0, 0], [1, 1], [0, 0]]},
        mask=dict.fromkeys(["x", "i"], [[1, 1], [1, 1], [0, 0]]),
        dropped={"x": [0, 0], "i": [0, 0]},
    )


def test_forward_derivatives_of_a_loop_log_its_events_once():
    f = lambda x: halve(x)  # noqa: E731
    (out, tangent), logs = lox.spool(lambda x: jax.jvp(f, (x,), (jnp.float32(1),)), max_iters=4)(jnp.float32(5))
    assert out == 0.625 and tangent == 0.125
    assert logs.valid("x").tolist() == [5.0, 2.5, 1.25]
    for derivative in (jax.jacfwd(f), lambda x: jax.linearize(f, x)[1](jnp.float32(1))):
        out, logs = lox.spool(derivative, max_iters=4)(jnp.float32(5))
        assert out == 0.125
        assert logs.valid("x").reshape(-1).tolist() == [5.0, 2.5, 1.25]


@pytest.mark.parametrize("options", [{"max_events": 4}, {"max_iters": 4}], ids=str)
def test_forward_derivatives_of_a_loop_of_batch_elements_are_those_without_logs(options):
    bodies = [
        lambda i, y, x: (jnp.float32(3), y),
        lambda i, y, x: (2 * x, jnp.float32(1)),
        lambda i, y, x: (lax.stop_gradient(y) + i.astype(jnp.float32), y * y),
    ]
    begins = [lambda x: (x, jnp.float32(5)), lambda x: (jnp.float32(5), x)]
    xs, ns = jnp.float32([2, 3, 1.5]), jnp.array([0, 2, 1])
    for body, begin in itertools.product(bodies, begins):

        def f(x, n, body=body, begin=begin):
            def step(carry):
                i, y, z = carry
                lox.log({"y": y})
                y, z = body(i, z, x)
                return i + 1, y, z

            return lax.while_loop(lambda carry: carry[0] < n, step, (jnp.int32(0), *begin(x)))[1:]

        def derivative(f):
            return jax.vmap(lambda x, n: jax.jvp(lambda x: f(x, n), (x,), (jnp.float32(1),)))

        found = derivative(lambda x, n, f=f: lox.spool(f, **options)(x, n)[0])(xs, ns)
        jax.tree.map(np.testing.assert_array_equal, found, derivative(lox.strip(f))(xs, ns))


def test_reverse_derivatives_of_what_a_loop_does_not_depend_on_log_it_once():
    def f(x):
        stopped = halve(lax.stop_gradient(x))
        return x * stopped

    out, logs = lox.spool(jax.grad(f), max_iters=4)(jnp.float32(5))
    assert out == 0.625
    assert logs.valid("x").tolist() == [5.0, 2.5, 1.25]


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, lambda f: jax.vmap(f, in_axes=None, axis_size=2)])
def test_what_an_inner_loop_drops_in_a_dropped_iteration_counts_as_dropped(around):
    def loop(count, f, x):
        return lax.while_loop(lambda c: c[0] < count, lambda c: (c[0] + 1, f(c[1])), (0, x))[1]

    def f(x):
        return loop(3, lambda x: loop(4, lambda x: lox.log({"x": x})["x"] + 1, x), x)

    _, logs = around(lox.spool(f, max_iters=2))(0.0)
    assert np.ravel(logs.dropped["x"])[0] == 8


def test_what_loops_one_after_the_other_drop_of_one_key_is_summed():
    def f(x, counts):
        for count in counts:
            x = lax.fori_loop(0, count, lambda _, x: lox.log({"x": x})["x"] + 1, x)
        return x

    _, logs = jax.jit(lox.spool(f, max_iters=3))(0.0, (5, 2, 9))
    assert logs.dropped["x"] == (5 - 3) + 0 + (9 - 3)
    assert logs.valid("x").tolist() == [0, 1, 2, 5, 6, 7, 8, 9]


def test_a_branch_without_the_loop_counts_nothing_dropped_in_any_lane():
    def f(x, n):
        def loops(x, n):
            return lax.fori_loop(0, n, lambda i, x: lox.log({"x": x})["x"] + 1, x)

        return lax.cond(True, loops, lambda x, n: x, x, n)

    for spooled in (
        lox.spool(jax.vmap(f), max_iters=2, unify=True),
        lox.spool(jax.jit(jax.vmap(jax.jit(f))), max_iters=2, unify=True),
    ):
        _, logs = spooled(jnp.arange(3.0), jnp.array([2, 1, 3]))
        assert_logs(
            logs,
            {"x": np.float32([[0, 1, 2], [1, np.nan, 3]])},
            mask={"x": [[True, True, True], [True, False, True]]},
            dropped={"x": np.int32([0, 0, 1])},
        )


def test_a_log_after_a_loop_in_a_branch_keeps_how_many_events_the_loop_dropped():
    def f(n):
        def loop(n):
            lax.fori_loop(0, n, lambda i, c: lox.log({"x": i}) and c, 0)
            lox.log({"x": -1})

        lax.cond(n > 0, loop, lambda n: lox.log({"x": -2}) and None, n)

    g = jax.jit(lox.spool(f, unify=True, max_iters=2))
    for n, happened, dropped in ((0, [-2], 0), (1, [0, -1], 0), (5, [0, 1, -1], 3)):
        _, logs = g(n)
        assert logs.valid("x").tolist() == happened
        assert logs.dropped["x"] == dropped


@transforms
@pytest.mark.parametrize("carried", range(1, 6))
def test_a_predicate_that_batch_elements_part_after_several_iterations_ends_the_logs_of_each(carried, transform):
    def f(x):
        def body(carry):
            i, *values = carry
            lox.log({"i": i})
            return i + 1, values[0], *values[:-1]

        return lax.while_loop(lambda carry: carry[0] < carry[-1], body, (0, x, *[9] * carried))[0]

    xs = (carried, 7)
    _, logs = lox.spool(transform(jax.vmap(f)), max_iters=8)(jnp.array(xs))
    for index, x in enumerate(xs):
        assert lane(logs, "i", index).tolist() == list(range(x))


def test_a_handler_further_out_gets_the_logs_of_a_loop_that_one_further_in_warns_of():
    def f(x):
        return lax.while_loop(lambda x: x < 3, lambda x: lox.log({"x": x})["x"] + 1, x)

    arrived = []
    inner = lox.spool(f, on_while="warn", keep_logs=True)
    with pytest.warns(lox.SpoolWarning):
        _, logs = lox.tap(inner, lambda logs: arrived.append(logs["x"].item()))(0.0)
    lox.flush()
    assert arrived == [0.0, 1.0, 2.0] and not logs


@pytest.mark.parametrize("derivative", [jax.grad, lambda f: jax.jit(jax.grad(f))], ids=["grad", "jit of grad"])
def test_a_loop_that_a_checkpoint_runs_again_logs_once(derivative):
    @jax.checkpoint
    def f(x):
        return x * lax.while_loop(lambda i: i < 3, lambda i: lox.log({"i": i})["i"] + 1.0, jnp.float32(0))

    slope, logs = lox.spool(derivative(f), max_iters=3)(jnp.float32(2))
    assert slope == 3
    assert_array(logs["i"], np.float32([0, 1, 2]))


def test_a_predicate_that_is_batched_at_first_only_decides_for_each_batch_element():
    def f(x):
        return lax.while_loop(lambda x: x > 0, lambda x: (lox.log({"x": x}), jnp.float32(0))[1], x)

    _, logs = lox.spool(jax.vmap(f), max_iters=2)(jnp.float32([1, -1]))
    assert [lane(logs, "x", index).tolist() for index in range(2)] == [[1], []]


def test_a_log_that_says_where_needs_no_unify_in_a_loop_that_some_batch_elements_run():
    def f(x):
        loop = lambda x: lax.while_loop(lambda x: x < 4, lambda x: (lox.log({"x": x}, where=x > 1), x + 1)[1], x)  # noqa: E731
        return lax.cond(x > 0, loop, lambda x: x, x)

    _, logs = lox.spool(jax.vmap(f), max_iters=4)(jnp.float32([1, -1, 2]))
    assert [lane(logs, "x", index).tolist() for index in range(3)] == [[2, 3], [], [2, 3]]
