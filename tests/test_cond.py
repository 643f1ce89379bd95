"""`cond` and `switch` log as Python's `if` does."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference import assert_array, assert_logs, lane

import lox

NAN = np.nan
transforms = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


def logs(**data):
    """A branch that logs its argument times these factors."""

    def branch(x):
        lox.log({key: x * factor for key, factor in data.items()})
        return x

    return branch


def alike(x):
    return lax.cond(x > 1, logs(a=2), logs(a=-1), x)


def unlike(x):
    return lax.cond(x > 1, logs(a=2, b=3), logs(a=-1, c=4), x)


@transforms
def test_branches_with_the_same_keys_need_no_mask(transform):
    for x, expected in {0.5: -0.5, 1.5: 3.0}.items():
        assert_logs(lox.spool(transform(alike))(jnp.float32(x))[1], {"a": [expected]})


@transforms
def test_the_branches_of_a_switch_log_as_the_one_that_is_taken(transform):
    def f(i, x):
        return lax.switch(i, [logs(a=1, b=10), logs(b=20, a=2), logs(a=3, b=30)], x)

    for i, (a, b) in enumerate([(1, 10), (2, 20), (3, 30), (3, 30)]):  # Beyond the last branch is the last.
        assert_logs(lox.spool(transform(f))(jnp.int32(i), jnp.float32(1))[1], {"a": [float(a)], "b": [float(b)]})


def test_branches_that_log_the_same_keys_in_another_order_are_alike():
    def f(x):
        def first(x):
            lox.log({"a": x})
            lox.log({"b": 2 * x})

        def second(x):
            lox.log({"b": 3 * x})
            lox.log({"a": 4 * x})

        lax.cond(x > 1, first, second, x)

    assert_logs(lox.spool(f)(jnp.float32(2))[1], {"a": [2.0], "b": [4.0]})
    assert_logs(lox.spool(f)(jnp.float32(1))[1], {"a": [4.0], "b": [3.0]})


@transforms
def test_unlike_branches_are_refused(transform):
    with pytest.raises(lox.StructureError):
        lox.spool(transform(unlike))(jnp.float32(2))


@transforms
def test_unify_masks_what_a_branch_does_not_log(transform):
    for x, values in {2.0: {"a": 4.0, "b": 6.0, "c": NAN}, 0.5: {"a": -0.5, "b": NAN, "c": 2.0}}.items():
        out, found = lox.spool(transform(unlike), unify=True)(jnp.float32(x))
        assert out == x
        happened = {key: [not np.isnan(value)] for key, value in values.items()}
        mask = {"b": happened["b"], "c": happened["c"]}
        assert_logs(found, {key: [value] for key, value in values.items()}, mask=mask)


@transforms
def test_one_branch_that_logs_nothing_is_masked_out(transform):
    def f(x):
        return lax.cond(x > 1, logs(a=2), lambda x: x, x)

    assert_logs(lox.spool(transform(f), unify=True)(jnp.float32(2))[1], {"a": [4.0]}, mask={"a": [1]})
    assert_logs(lox.spool(transform(f), unify=True)(jnp.float32(1))[1], {"a": [NAN]}, mask={"a": [0]})


def test_loops_in_loops_of_branches_that_log_with_other_tags_have_a_mask_for_each_batch_element():
    def nested(tag):
        def step(c, _):
            lox.log({"a": c}, tags=tag)
            return c + 1, None

        return lambda x: lax.scan(lambda c, _: (lax.scan(step, c, length=2)[0], None), x, length=3)[0]

    def f(p, x):
        return lax.cond(p, nested("s"), nested("t"), x)

    _, logs = lox.spool(jax.vmap(f), unify=True, tags="s")(jnp.array([True, False]), jnp.array([0.0, 10.0]))
    assert_logs(logs, {"a": [[i, NAN] for i in range(6)]}, mask={"a": [[1, 0]] * 6})


@transforms
def test_unify_gives_a_key_as_many_slots_as_the_branch_with_most_events(transform):
    def f(x):
        def three(x):
            lax.scan(lambda c, i: (lox.log({"a": i}) and c, None), 0, jnp.arange(3))

        lax.cond(x > 1, three, lambda x: lox.log({"a": jnp.int32(9)}) and None, x)

    assert_logs(lox.spool(transform(f), unify=True)(jnp.float32(2))[1], {"a": [0, 1, 2]}, mask={"a": [1, 1, 1]})
    assert_logs(lox.spool(transform(f), unify=True)(jnp.float32(1))[1], {"a": [9, 0, 0]}, mask={"a": [1, 0, 0]})


def test_fills_are_nan_zero_and_false_and_counters_are_filled_too():
    def f(x):
        def branch(x):
            lox.log({"float": x, "int": jnp.int8(3), "bool": True, "complex": 1j}, step=7)

        lax.cond(x > 1, branch, lambda x: None, x)

    keys = ["float", "int", "bool", "complex"]
    _, found = lox.spool(f, unify=True)(jnp.float32(0))
    events = {"float": [NAN], "int": np.zeros(1, np.int8), "bool": [False], "complex": np.array([NAN], np.complex64)}
    assert_logs(found, events, steps={"step": dict.fromkeys(keys, [0])}, mask=dict.fromkeys(keys, [0]))
    _, found = lox.spool(f, unify=True)(jnp.float32(2))
    events = {"float": [2.0], "int": np.full(1, 3, np.int8), "bool": [True], "complex": np.array([1j], np.complex64)}
    assert_logs(found, events, steps={"step": dict.fromkeys(keys, [7])}, mask=dict.fromkeys(keys, [1]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"argnames": "a"}, {"a": [4.0]}), ({"argnames": ()}, {}), ({"tags": "t"}, {})],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:'t' in tags=:lox.SelectionWarning")
@transforms
def test_a_filter_that_leaves_no_unlike_key_makes_branches_fine(options, expected, transform):
    assert_logs(lox.spool(transform(unlike), **options)(jnp.float32(2))[1], expected)


def test_strip_makes_branches_alike():
    assert_logs(lox.spool(lox.strip(unlike, argnames=["b", "c"]))(jnp.float32(2))[1], {"a": [4.0]})
    assert_logs(lox.spool(lox.keep(unlike, argnames="a"))(jnp.float32(2))[1], {"a": [4.0]})


def test_an_inner_spool_leaves_unlike_keys_to_the_outer_one():
    (_, inner), outer = lox.spool(lox.spool(unlike, argnames="a"), unify=True)(jnp.float32(2))
    assert_logs(inner, {"a": [4.0]})
    assert_logs(outer, {"b": [6.0], "c": [NAN]}, mask={"b": [1], "c": [0]})


def test_a_reduction_needs_alike_branches_no_more_than_unify():
    for x, expected in {2.0: {"a": 1, "b": 1, "c": 0}, 0.5: {"a": 1, "b": 0, "c": 1}}.items():
        _, found = lox.spool(unlike, reduce="count")(jnp.float32(x))
        assert {key: found[key].tolist() for key in found} == {key: [n] for key, n in expected.items()}


def test_a_large_state_is_that_of_branches_of_which_one_says_where_it_logs():
    def f(x):
        note = functools.partial(lox.log, {"x": x})
        lax.cond(x > 2, lambda: note(where=x > 3) and None, lambda: note() and None)

    _, logs = lox.spool(functools.partial(lax.map, f), reduce=lox.reductions.histogram([2, 3]))(
        jnp.float32([1, 2, 3, 4])
    )
    assert logs["x"].tolist() == [[1, 1, 1]]


@transforms
def test_nested_branches_log_where_all_of_them_are_taken(transform):
    def f(x):
        return lax.cond(x > 1, lambda x: lax.cond(x > 2, logs(a=1), logs(b=1), x), logs(a=10), x)

    expected = {0.5: {"a": 5.0}, 1.5: {"b": 1.5}, 3.0: {"a": 3.0}}
    for x, values in expected.items():
        _, found = lox.spool(transform(f), unify=True)(jnp.float32(x))
        assert {key: found.valid(key).tolist() for key in found} == {"a": [], "b": []} | {
            key: [value] for key, value in values.items()
        }


@transforms
def test_branches_in_a_scan_log_the_iterations_that_took_them(transform):
    def f(xs):
        return lax.map(lambda x: lax.cond(x > 1, logs(a=2), lambda x: x, x), xs)

    _, found = lox.spool(transform(f), unify=True)(jnp.array([0.0, 2.0, 1.0, 3.0]))
    assert_logs(found, {"a": [NAN, 4.0, NAN, 6.0]}, mask={"a": [0, 1, 0, 1]})
    assert found.valid("a").tolist() == [4.0, 6.0]


def test_a_key_inside_and_outside_of_a_branch_is_masked_only_inside():
    def f(x):
        lox.log({"a": x})
        lax.cond(x > 1, logs(a=2), lambda x: x, x)
        lox.log({"a": -x})

    _, found = lox.spool(f, unify=True)(jnp.float32(0.5))
    assert_logs(found, {"a": [0.5, NAN, -0.5]}, mask={"a": [1, 0, 1]})


@transforms
def test_a_batched_predicate_logs_only_the_branch_each_lane_takes(transform):
    xs = jnp.array([0.5, 2.0, 3.0])
    for spooled, axis in (
        (lox.spool(transform(jax.vmap(unlike)), unify=True), 1),
        (transform(jax.vmap(lox.spool(unlike, unify=True))), 0),
    ):
        _, found = spooled(xs)
        assert "a" not in found.mask
        events = {"a": [-0.5, 4.0, 6.0], "b": [NAN, 6.0, 9.0], "c": [2.0, NAN, NAN]}
        mask = {"b": [0, 1, 1], "c": [1, 0, 0]}
        place = lambda values, axis=axis: np.expand_dims(values, 1 - axis)  # noqa: E731
        assert_logs(
            found,
            {key: place(values) for key, values in events.items()},
            mask={key: place(values) for key, values in mask.items()},
        )


def test_a_batched_switch_logs_only_the_branch_each_lane_takes():
    def f(i, x):
        return lax.switch(i, [logs(a=1), logs(b=2), logs(a=3, b=4)], x)

    _, found = lox.spool(jax.vmap(f), unify=True)(jnp.array([0, 1, 2, 2]), jnp.array([1.0, 2.0, 3.0, 4.0]))
    assert [lane(found, "a", i).tolist() for i in range(4)] == [[1.0], [], [9.0], [12.0]]
    assert [lane(found, "b", i).tolist() for i in range(4)] == [[], [4.0], [12.0], [16.0]]


def test_a_batched_predicate_of_unlike_branches_is_refused_as_an_unbatched_one():
    with pytest.raises(lox.StructureError, match="branch 0 logs"):
        lox.spool(jax.vmap(unlike))(jnp.array([0.5, 2.0]))
    with pytest.raises(lox.StructureError, match="branch 0 logs"):
        lox.spool(lambda xs: lax.map(jax.vmap(unlike), xs))(jnp.ones((2, 2)))


def test_a_batched_operand_of_an_unbatched_predicate_logs_one_branch():
    _, found = lox.spool(jax.vmap(lambda p, x: lax.cond(p, logs(a=2), logs(a=3), x), in_axes=(None, 0)))(
        True, jnp.array([1.0, 2.0])
    )
    assert_logs(found, {"a": [[2.0, 4.0]]})


@transforms
def test_twice_batched_predicates_log_lane_by_lane(transform):
    xs = np.array([[0.5, 2.0], [3.0, 1.0], [0.0, 4.0]], np.float32)
    _, found = lox.spool(transform(jax.vmap(jax.vmap(unlike))), unify=True)(jnp.array(xs))
    large = xs > 1
    assert_logs(
        found,
        {
            "a": np.where(large, 2 * xs, -xs)[None],
            "b": np.where(large, 3 * xs, np.float32(NAN))[None],
            "c": np.where(large, np.float32(NAN), 4 * xs)[None],
        },
        mask={"b": large[None], "c": ~large[None]},
    )


def test_the_derivative_of_a_branch_logs_once():
    for x, value, slope, a in ((2.0, 4.0, 4.0, 4.0), (0.5, 0.5, 1.0, -0.5)):

        def f(x):
            return lax.cond(x > 1, lambda x: logs(a=2)(x) * x, logs(a=-1), x)

        (out, derivative), found = lox.spool(jax.value_and_grad(f))(jnp.float32(x))
        assert (out, derivative) == (value, slope)
        assert_logs(found, {"a": [a]})
    (_, derivative), found = lox.spool(jax.vmap(jax.value_and_grad(f)))(jnp.array([2.0, 0.5]))
    assert_array(derivative, [4.0, 1.0])
    assert_logs(found, {"a": [[4.0, -0.5]]})


def test_python_branches_on_concrete_values_are_no_branches_of_jax():
    def f(x):
        if x > 1:
            lox.log({"large": x})
        else:
            lox.log({"small": x})

    assert_logs(lox.spool(f)(jnp.float32(2))[1], {"large": [2.0]})
    assert_logs(lox.spool(f)(jnp.float32(1))[1], {"small": [1.0]})


def test_a_predicate_may_be_a_python_or_numpy_value():
    for predicate, expected in ((True, 2.0), (np.bool_(False), -1.0), (np.int32(1), 2.0)):
        _, found = lox.spool(lambda x: lax.cond(predicate, logs(a=2), logs(a=-1), x))(jnp.float32(1))
        assert_logs(found, {"a": [expected]})


def test_select_is_no_branch_and_logs_both_sides():
    def f(x):
        return jnp.where(x > 1, logs(a=2)(x), logs(b=3)(x))

    assert_logs(lox.spool(f)(jnp.float32(2))[1], {"a": [4.0], "b": [6.0]})


def test_platform_dependent_logs_the_branch_of_the_platform():
    def f(x):
        return lax.platform_dependent(x, cpu=logs(a=2), default=logs(a=-1))

    assert_logs(lox.spool(f)(jnp.float32(1))[1], {"a": [2.0]})
    assert_logs(lox.spool(jax.jit(f))(jnp.float32(1))[1], {"a": [2.0]})
    assert_logs(lox.spool(jax.vmap(f))(jnp.arange(2.0))[1], {"a": [[0.0, 2.0]]})


def tagged(*tags):
    """A branch that logs one key once for each tag, a greater value each time."""

    def branch(x):
        for place, tag in enumerate(tags):
            lox.log({"b": x + place}, tags=tag)
        return x

    return branch


@transforms
def test_events_of_one_key_keep_their_order_whatever_tags_they_carry(transform):
    def f(x):
        return lax.cond(x > 0, tagged("t", "u"), tagged("u", "t"), x)

    def g(x):
        return lax.cond(x > 0, tagged((), "t", ()), lambda x: x, x)

    assert_logs(transform(lox.spool(f))(1.0)[1], {"b": [1.0, 2.0]})
    assert_logs(transform(lox.spool(f))(-1.0)[1], {"b": [-1.0, 0.0]})
    assert_logs(transform(lox.spool(f, interval=2))(1.0)[1], {"b": [1.0]})
    assert_logs(transform(lox.spool(g, unify=True))(1.0)[1], {"b": [1.0, 2.0, 3.0]}, mask={"b": [True] * 3})


@pytest.mark.parametrize("tag", [None, "t", "u"])
def test_events_of_one_key_keep_their_order_and_tags_in_every_lane(tag):
    def f(x):
        return lax.cond(x > 0, tagged("t", "u", "t"), tagged("u", "t", "t"), x)

    xs = jnp.array([1.0, -1.0])
    expected = [
        [x + place for place, name in enumerate(tags) if tag in (None, name)]
        for x, tags in ((1.0, "tut"), (-1.0, "utt"))
    ]
    for transform in (lambda f: lox.spool(jax.vmap(f), tags=tag), lambda f: lox.spool(jax.vmap(jax.jit(f)), tags=tag)):
        logs = transform(f)(xs)[1]
        for index, values in enumerate(expected):
            assert_array(lane(logs, "b", index), np.float32(values))


@pytest.mark.parametrize(
    "transform", [lambda f: lox.spool(jax.vmap(f), unify=True), lambda f: lox.spool(f, unify=True)]
)
def test_a_branch_may_hold_a_loop_without_iterations(transform):
    def empty(x):
        return lax.scan(lambda x, y: (lox.log({"b": x})["b"], y), x, jnp.zeros(0))[0]

    def f(x):
        return lax.cond(jnp.sum(x) > 0, empty, lambda x: x, x)

    out, logs = transform(f)(jnp.array([1.0, -1.0]))
    assert_array(out, [1.0, -1.0])
    assert logs["b"].shape == logs.mask["b"].shape + logs["b"].shape[logs.mask["b"].ndim :]
    assert logs["b"].shape[0] == 0 and logs.valid("b").size == 0


def test_unify_masks_an_event_of_a_nested_branch_beside_a_branch_with_as_many_events():
    def f(p, q):
        def first(q):
            lox.log({"x": 1})
            lax.cond(q, lambda: lox.log({"x": 2})["x"], lambda: 0)

        def second(q):
            lox.log({"x": 3})
            lox.log({"x": 4})

        lax.cond(p, first, second, q)

    g = jax.jit(lox.spool(f, unify=True))
    assert_logs(g(True, False)[1], {"x": [1, 0]}, mask={"x": [1, 0]})
    assert_logs(g(True, True)[1], {"x": [1, 2]}, mask={"x": [1, 1]})
    assert_logs(g(False, False)[1], {"x": [3, 4]}, mask={"x": [1, 1]})


def test_unify_gives_a_key_as_many_slots_as_nested_loops_in_a_branch_have_iterations():
    def f(p):
        def step(c, i):
            lox.log({"x": i})
            return c, None

        def nested():
            lax.scan(lambda c, _: lax.scan(step, c, jnp.arange(3)), 0, None, length=2)

        lax.cond(p, nested, lambda: lax.scan(step, 0, jnp.arange(4)) and None)

    g = jax.jit(lox.spool(f, unify=True))
    assert_logs(g(True)[1], {"x": [0, 1, 2] * 2}, mask={"x": [1] * 6})
    assert_logs(g(False)[1], {"x": [0, 1, 2, 3, 0, 0]}, mask={"x": [1] * 4 + [0] * 2})


def test_a_batched_predicate_of_branches_that_differ_in_the_iterations_of_a_loop_is_refused_whatever_the_tags():
    def branch(count):
        def logs(x):
            lax.scan(lambda c, i: (lox.log({"x": x + i}, tags="inner") and c, None), 0, jnp.arange(count))
            lox.log({"x": x}, tags="outer")

        return logs

    f = jax.vmap(lambda x: lax.cond(x > 0, branch(2), branch(3), x))
    with pytest.raises(lox.StructureError):
        lox.spool(f)(jnp.array([1, -1]))
    _, found = lox.spool(f, unify=True)(jnp.array([1, -1]))
    assert lane(found, "x", 0).tolist() == [1, 2, 1]
    assert lane(found, "x", 1).tolist() == [-1, 0, 1, -1]


@pytest.mark.parametrize("other", [lambda branch: lambda x: x, lambda branch: lambda x: branch(-x)], ids=["no", "both"])
def test_a_mask_of_one_event_of_a_branch_outlives_another_event_of_its_key(other):
    def branch(x):
        lax.cond(x > 3, lambda: lox.log({"a": x}) and None, lambda: None)
        lox.log({"a": 10 * x})
        return x

    spooled = jax.jit(lox.spool(lambda x: lax.cond(x > 1, branch, other(branch), x), unify=True))
    for x, expected in ((2.0, [20.0]), (4.0, [4.0, 40.0])):
        assert_array(spooled(x)[1].valid("a"), expected)


def test_branches_that_log_as_many_events_in_another_order_are_not_padded():
    def one(x):
        lox.log({"a": x})
        lox.log({"b": x + 1})

    def other(x):
        lox.log({"b": x})
        lox.log({"a": -x})

    spooled = lox.spool(lambda x: lax.cond(x > 0, one, other, x))
    assert "concatenate" not in str(jax.make_jaxpr(spooled)(1.0))
    assert_logs(spooled(-1.0)[1], {"a": [1.0], "b": [-1.0]})


def test_where_keys_have_several_tags_the_iterations_of_nested_loops_in_a_branch_count():
    def step(c, i):
        return lox.log({"x": c + i})["x"], None

    def three(x):
        return lax.scan(step, x, jnp.arange(3.0))[0]

    def six(x):
        return lax.scan(lambda c, _: (three(c), None), x, length=2)[0]

    with pytest.raises(lox.StructureError, match="'x'"):
        lox.spool(lambda x: lax.cond(x > 0, six, three, x))(1.0)


def test_branches_with_the_same_tags_for_a_key_are_as_one_branch():
    def branch(sign):
        def log(x):
            lox.log({"a": sign * x}, tags="first")
            return lox.log({"a": 10 * sign * x}, tags="second")["a"]

        return log

    _, logs = lox.spool(jax.vmap(lambda x: lax.cond(x > 0, branch(1), branch(-1), x)))(jnp.float32([1, 2, -1]))
    assert_logs(logs, {"a": [[1.0, 2.0, 1.0], [10.0, 20.0, 10.0]]})
