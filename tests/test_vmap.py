"""Each lane of a `vmap` logs what it would log alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from reference import assert_array, assert_logs, lane, pairs_of, with_options

import lox

transforms = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


def f(x):
    lox.log({"x": x, "constant": 1.0}, step=3)
    lox.log({"x": 2 * x}, step=4)
    return x


@transforms
def test_under_spool_the_batch_axis_follows_the_event_axis_of_every_value(transform):
    _, logs = lox.spool(transform(jax.vmap(f)))(jnp.array([1.0, 5.0, 7.0]))
    assert_logs(
        logs,
        {"x": [[1.0, 5.0, 7.0], [2.0, 10.0, 14.0]], "constant": [[1.0, 1.0, 1.0]]},
        steps={"step": {"x": [[3, 3, 3], [4, 4, 4]], "constant": [[3, 3, 3]]}},
    )


@transforms
def test_around_spool_the_batch_axis_is_where_out_axes_puts_it(transform):
    xs = jnp.array([1.0, 5.0, 7.0])
    _, logs = transform(jax.vmap(lox.spool(f)))(xs)
    assert_logs(
        logs,
        {"x": [[1.0, 2.0], [5.0, 10.0], [7.0, 14.0]], "constant": [[1.0], [1.0], [1.0]]},
        steps={"step": {"x": [[3, 4]] * 3, "constant": [[3]] * 3}},
    )
    _, logs = transform(jax.vmap(lox.spool(f), out_axes=(0, 1)))(xs)
    assert_array(logs["x"], [[1.0, 5.0, 7.0], [2.0, 10.0, 14.0]])
    assert_array(logs["constant"], [[1.0, 1.0, 1.0]])
    out, logs = transform(jax.vmap(lox.spool(lambda x: lox.log({"one": 1.0})["one"]), out_axes=(None, None)))(xs)
    assert_array(logs["one"], [1.0])


@pytest.mark.parametrize("in_axes", [(0, None), (1, 0), (-1, {"b": 0}), (None, 0)], ids=str)
def test_any_axis_may_be_mapped(in_axes):
    x = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    b = np.array([10.0, 20.0, 30.0], np.float32)

    def g(x, tree):
        lox.log({"x": x, "b": tree["b"]})
        return x.sum()

    rows = [x if in_axes[0] is None else np.take(x, i, in_axes[0]) for i in range(3)]
    biases = [b if in_axes[1] is None else b[i] for i in range(3)]
    _, logs = lox.spool(jax.vmap(g, in_axes=in_axes))(x, {"b": b})
    assert_logs(logs, {"x": [rows], "b": [biases]})
    _, logs = jax.vmap(lox.spool(g), in_axes=in_axes)(x, {"b": b})
    assert_logs(logs, {"x": [[row] for row in rows], "b": [[bias] for bias in biases]})


@transforms
def test_any_of_many_axes_may_be_mapped(transform):
    x = np.arange(120.0, dtype=np.float32).reshape(2, 3, 4, 5)

    def looped(x):
        lox.log({"x": x})
        return lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=2)[0]

    for axis in (0, 1, 2, 3, -2):
        elements = np.moveaxis(x, axis, 0)
        _, logs = lox.spool(transform(jax.vmap(looped, in_axes=axis)))(x)
        assert_logs(logs, {"x": np.stack([elements, elements, elements + 1])})
        _, logs = transform(jax.vmap(lox.spool(looped), in_axes=axis))(x)
        assert_logs(logs, {"x": np.stack([elements, elements, elements + 1], 1)})
        twice = np.moveaxis(elements, 3, 1)
        _, logs = lox.spool(transform(jax.vmap(jax.vmap(looped, in_axes=2), in_axes=axis)))(x)
        assert_logs(logs, {"x": np.stack([twice, twice, twice + 1])})


@transforms
def test_nested_maps_put_the_outer_batch_axis_first(transform):
    xs = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    _, logs = lox.spool(transform(jax.vmap(jax.vmap(f))))(xs)
    assert_array(logs["x"], [xs, 2 * xs])
    assert_array(logs["constant"], np.ones((1, 2, 3)))
    assert_array(logs.steps["step"]["x"], np.stack([np.full((2, 3), 3), np.full((2, 3), 4)]))
    _, logs = jax.vmap(lox.spool(jax.vmap(f)))(xs)
    assert_array(logs["x"], np.stack([np.stack([row, 2 * row]) for row in xs]))
    _, logs = lox.spool(jax.vmap(jax.vmap(f, in_axes=None, axis_size=3), in_axes=0))(xs[:, 0])
    assert_array(logs["x"][0], np.repeat(xs[:, :1], 3, axis=1))


@transforms
def test_a_loop_in_a_map_in_a_loop_keeps_one_event_axis(transform):
    def g(xs):
        def outer(carry, i):
            def one(x):
                lax.scan(lambda c, j: (lox.log({"k": x + 10 * i + j}) and c, None), 0, jnp.arange(2))
                return x

            return carry, jax.vmap(one)(xs)

        return lax.scan(outer, 0, jnp.arange(3))[1]

    _, logs = lox.spool(transform(g))(jnp.array([100, 200]))
    assert_logs(logs, {"k": [[lane + 10 * i + j for lane in (100, 200)] for i in range(3) for j in range(2)]})


@transforms
def test_collectives_over_the_mapped_axis_are_seen_by_every_lane(transform):
    def g(x):
        lox.log({"sum": lax.psum(x, "i"), "mean": lax.pmean(x, "i"), "index": lax.axis_index("i"), "x": x})
        return x

    xs = jnp.array([1.0, 2.0, 6.0])
    _, logs = lox.spool(transform(jax.vmap(g, axis_name="i")))(xs)
    assert_logs(logs, {"sum": [[9.0] * 3], "mean": [[3.0] * 3], "index": [[0, 1, 2]], "x": [[1.0, 2.0, 6.0]]})
    _, logs = transform(jax.vmap(lox.spool(g), axis_name="i"))(xs)
    assert_logs(logs, {"sum": [[9.0]] * 3, "mean": [[3.0]] * 3, "index": [[0], [1], [2]], "x": [[1.0], [2.0], [6.0]]})


@transforms
def test_collectives_in_loops_and_jitted_calls_work(transform):
    def g(x):
        def step(x, _):
            total = lax.psum(x, "i")
            lox.log({"total": total})
            return x + total, None

        return lax.scan(jax.jit(step), x, None, length=3)[0]

    xs, expected = np.array([1.0, 2.0], np.float32), []
    plain = xs.copy()
    for _ in range(3):
        expected.append([plain.sum()] * 2)
        plain = plain + plain.sum()
    out, logs = lox.spool(transform(jax.vmap(g, axis_name="i")))(xs)
    assert_array(out, plain)
    assert_logs(logs, {"total": np.array(expected, np.float32)})


@transforms
def test_an_axis_size_without_batched_inputs_still_gives_every_value_the_axis(transform):
    def g(x):
        lox.log({"x": x})
        lax.scan(lambda c, i: (lox.log({"i": i}) and c, None), 0, jnp.arange(2))
        return lax.cond(x > 1, lambda x: lox.log({"c": x})["c"], lambda x: lox.log({"c": -x})["c"], x)

    _, logs = lox.spool(transform(jax.vmap(g, in_axes=None, out_axes=None, axis_size=3)))(jnp.float32(2))
    assert_logs(logs, {"x": [[2.0] * 3], "i": [[0] * 3, [1] * 3], "c": [[2.0] * 3]})


def test_values_that_do_not_depend_on_the_batch_get_the_axis_in_every_primitive():
    def g(x):
        jax.jit(lambda: lox.log({"jit": 1.0}) and None)()
        jax.checkpoint(lambda y: lox.log({"checkpoint": 2.0})["checkpoint"] * y)(x)
        lax.scan(lambda c, i: (lox.log({"scan": i}) and c, None), 0, jnp.arange(2))
        lax.cond(x > 1, lambda: lox.log({"cond": 3.0}) and None, lambda: lox.log({"cond": 4.0}) and None)
        lax.while_loop(lambda i: i < 1, lambda i: lox.log({"while": i})["while"] + 1, 0)
        return x

    for transform in (lambda f: f, jax.jit):
        _, logs = lox.spool(transform(jax.vmap(g)), max_iters=1)(jnp.array([1.0, 2.0]))
        expected = {"jit": [[1.0] * 2], "checkpoint": [[2.0] * 2], "scan": [[0, 0], [1, 1]], "cond": [[4.0, 3.0]]}
        assert_logs(logs, expected | {"while": [[0, 0]]}, mask={"while": [[1, 1]]}, dropped={"while": [0, 0]})


def test_spmd_axis_name_shards_the_batch_axis_of_logs():
    mesh = Mesh(np.array(jax.devices()[:4]), ("d",))
    xs = np.arange(8.0, dtype=np.float32).reshape(4, 2)

    def g(x):
        x = lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(None)))
        lox.log({"x": x})
        return 2 * x

    for spooled in (
        jax.jit(lox.spool(jax.vmap(g, spmd_axis_name="d"))),
        lox.spool(jax.jit(jax.vmap(g, spmd_axis_name="d"))),
    ):
        out, logs = spooled(xs)
        assert_array(out, 2 * xs)
        assert_logs(logs, {"x": [xs]})
    with_scan = jax.vmap(lambda x: lax.scan(lambda c, i: (g(c), None), x, None, length=2)[0], spmd_axis_name="d")
    _, logs = jax.jit(lox.spool(with_scan))(xs)
    assert_logs(logs, {"x": [xs, 2 * xs]})


@transforms
def test_a_map_of_a_map_with_other_axes_logs_lane_by_lane(transform):
    xs = np.arange(12.0, dtype=np.float32).reshape(3, 4)

    def g(x, y):
        lox.log({"product": x * y})
        return x

    _, logs = lox.spool(transform(jax.vmap(jax.vmap(g, in_axes=(0, None)), in_axes=(1, 0))))(xs, xs[0])
    assert_logs(logs, {"product": [[[xs[j, i] * xs[0, i] for j in range(3)] for i in range(4)]]})


def test_filters_and_intervals_apply_to_events_not_lanes():
    def g(x):
        lax.scan(lambda c, i: (lox.log({"a": x + i, "b": i}) and c, None), 0, jnp.arange(5))

    xs = jnp.array([10, 20])
    _, logs = lox.spool(jax.vmap(g), argnames="a", interval=2)(xs)
    assert_logs(logs, {"a": [[10, 20], [12, 22], [14, 24]]})
    _, logs = lox.spool(jax.vmap(g), argnames="a", reduce="sum")(xs)
    assert_logs(logs, {"a": [[60, 110]]})


def test_an_interval_of_masked_events_counts_those_of_each_lane():
    def g(x):
        def step(c, i):
            lax.cond(i % x == 0, lambda i: lox.log({"i": i}) and None, lambda i: None, i)
            return c, None

        lax.scan(step, 0, jnp.arange(6))

    _, logs = lox.spool(jax.vmap(g), interval=2, unify=True)(jnp.array([1, 2, 3]))
    happened = {0: [0, 2, 4], 1: [0, 4], 2: [0]}
    for index, expected in happened.items():
        values, mask = np.asarray(logs["i"])[:, index], np.asarray(logs.mask["i"])[:, index]
        assert values[mask].tolist() == expected
    _, logs = lox.spool(jax.vmap(g), reduce="count")(jnp.array([1, 2, 3]))
    assert logs["i"].tolist() == [[6, 3, 2]]


def test_map_of_a_function_that_spools_inside_returns_its_logs_as_outputs():
    def g(x):
        out, logs = lox.spool(f, argnames="x")(x)
        lox.log({"last": logs["x"][-1]})
        return out, logs.slice(0, 1)

    (out, inner), logs = lox.spool(jax.vmap(g))(jnp.array([1.0, 5.0]))
    assert_array(inner["x"], [[1.0], [5.0]])
    assert_array(logs["last"], [[2.0, 10.0]])
    assert_array(logs["constant"], [[1.0, 1.0]])


def test_a_vectorized_function_logs_its_lanes():
    vectorized = jnp.vectorize(lambda x: lox.log({"x": x})["x"] * 2)
    out, logs = lox.spool(vectorized)(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
    assert_array(out, [[2.0, 4.0], [6.0, 8.0]])
    assert_logs(logs, {"x": [[[1.0, 2.0], [3.0, 4.0]]]})


def test_batches_of_two_sizes_of_one_key_are_refused_where_two_calls_log_them():
    def f(xs):
        jax.vmap(lambda x: lox.log({"a": x}))(xs)
        jax.vmap(lambda x: lox.log({"a": x + 10}))(xs[:2])

    def once(xs):
        for size in (3, 2):
            jax.vmap(lambda x: lox.log({"a": x}))(xs[:size])

    xs = jnp.arange(3.0)
    for transform in (lambda f: f, jax.jit):
        for spooled in (lox.spool(transform(f)), transform(lox.spool(f))):
            with pytest.raises(lox.StructureError, match="'a' is logged as .* in a batch of"):
                spooled(xs)
        together = transform(lox.spool(f, on_mismatch="split"))(xs)[1]  # It collects by type.
        np.testing.assert_array_equal(together["a"], [[0, 1, 2], [10, 11, np.nan]])
        np.testing.assert_array_equal(transform(lox.spool(once))(xs)[1]["a"], [[0, 1, 2], [0, 1, np.nan]])


def test_a_zero_size_batch_gives_logs_of_no_lanes():
    _, logs = lox.spool(jax.vmap(functools.partial(f)))(jnp.zeros(0))
    assert logs["x"].shape == (2, 0)


@pytest.mark.parametrize(
    "options", [{"max_iters": 3}, {"max_iters": 4}, {"reduce": "sum"}, {"reduce": "count"}], ids=str
)
def test_a_batch_inside_a_batched_while_loop_is_masked_as_a_whole(options):
    def f(x):
        def body(c):
            return jax.vmap(lambda y: lox.log({"y": y})["y"] + 1)(c)

        return lax.while_loop(lambda c: c[0] < 4, body, jnp.stack([x, x + 10, x + 20]))

    xs = jnp.array([1.0, 2.0, 9.0])
    _, logs = lox.spool(jax.vmap(f), **options)(xs)
    for index, x in enumerate(xs):
        _, alone = lox.spool(f, **options)(x)
        assert_array(logs["y"][:, index], alone["y"])
        assert_array(logs.mask["y"][:, index], alone.mask["y"])


def test_a_batch_inside_branches_that_log_one_key_with_different_tags_is_masked_as_a_whole():
    def f(x):
        def twice(y):
            lox.log({"y": y}, tags="s")
            lox.log({"y": y + 1}, tags="t")
            return y

        return lax.cond(x[0] > 0, jax.vmap(twice), jax.vmap(lambda y: lox.log({"y": y}, tags="t")["y"]), x)

    xs = jnp.array([[1.0, 2.0], [-2.0, -3.0], [3.0, 4.0]])
    for options in ({}, {"interval": 2}, {"tags": "t"}):
        _, logs = lox.spool(jax.vmap(f), unify=True, **options)(xs)
        for index, x in enumerate(xs):
            _, alone = lox.spool(f, unify=True, **options)(x)
            assert_array(lane(logs, "y", index), alone.valid("y").reshape(-1))
    _, logs = lox.spool(jax.vmap(f), tags="t")(xs)  # every branch logs it once
    assert_array(lane(logs, "y", 0), [2.0, 3.0])
    with pytest.raises(lox.StructureError, match="log different keys"):
        lox.spool(jax.vmap(f), tags="s")(xs)


def test_branches_of_a_batch_that_log_one_key_with_different_tags_are_not_alike():
    def f(x):
        return lax.cond(x > 0, lambda: lox.log({"x": x}, tags="a")["x"], lambda: lox.log({"x": x}, tags="b")["x"])

    with pytest.raises(lox.StructureError, match="log different keys"):
        lox.spool(jax.vmap(f), tags="a")(jnp.array([1.0, -1.0]))
    _, logs = lox.spool(jax.vmap(f), tags="a", unify=True)(jnp.array([1.0, -1.0]))
    assert logs.mask["x"].tolist() == [[True, False]]


SIZES = [(2, 1), (3, 2), (1, 3)]
GRID = np.arange(9, dtype=np.int32).reshape(3, 3)


def of_sizes(where):
    """Calls of one function in batches that grow and shrink along two axes, before, in and after a loop."""

    def line(x):
        lox.log({"a": x, "b": -x}, step=x + 1000, **({"where": x % 4 != 1} if where else {}))

    def f(xs):
        def calls(number, sizes):
            for place, (rows, columns) in enumerate(sizes):
                jax.vmap(jax.vmap(line))(xs[:rows, :columns] + 10 * place + 100 * number)

        calls(0, SIZES[:1])
        lax.scan(lambda c, number: (calls(number, SIZES), c)[::-1], 0, jnp.arange(1, 3))
        calls(3, SIZES)

    return f


def of_element(row, column, where):
    """The events of a batch element, by key, as pairs of a value and a counter."""
    xs = []
    for number, sizes in enumerate([SIZES[:1], SIZES, SIZES, SIZES]):
        places = [place for place, size in enumerate(sizes) if row < size[0] and column < size[1]]
        xs += [GRID[row, column] + 10 * place + 100 * number for place in places]
    return {key: [(f * x, x + 1000) for x in xs if not where or x % 4 != 1] for key, f in (("a", 1), ("b", -1))}


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, False),
        ({"interval": 2}, True),
        ({"max_events": 2}, True),
        ({"max_events": 2, "interval": 3}, True),
        ({"reduce": "sum"}, False),
        ({"reduce": "first"}, True),
        ({"reduce": "last"}, False),
        ({"reduce": "count"}, True),
        ({"reduce": "sum", "window": 2}, False),
        ({"reduce": "first", "window": 3}, True),
    ],
    ids=str,
)
def test_a_line_that_logs_in_batches_that_grow_and_shrink_has_each_element_in_its_place(options, where):
    _, logs = jax.jit(lox.spool(of_sizes(where), **options))(GRID)
    for element in np.ndindex(3, 3):
        for key, events in of_element(*element, where).items():
            bound = {} if key in logs.dropped else {"max_events": None}
            kept, dropped = with_options(events, **options | bound)
            assert pairs_of(logs, key, element) == kept, element
            assert not dropped or logs.dropped[key][element] == dropped


@pytest.mark.covering(1)
@transforms
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"buffer": 2},
        {"interval": 2},
        {"interval": 2, "buffer": 3},
        {"reduce": "sum"},
        {"reduce": "sum", "window": 2},
    ],
    ids=str,
)
def test_what_a_line_logs_in_batches_that_grow_and_shrink_arrives_element_by_element(options, transform):
    arrived = []
    transform(lox.tap(of_sizes(False), arrived.append, **options))(GRID)
    lox.flush()
    hand = {name: value for name, value in options.items() if name != "buffer"}
    for row, column in np.ndindex(3, 3):
        has = [logs for logs in arrived if row < logs["a"].shape[1] and column < logs["a"].shape[2]]
        for key, events in of_element(row, column, False).items():
            got = [event for logs in has for event in pairs_of(logs, key, (row, column))]
            assert got == with_options(events, **hand)[0], (row, column)
