"""`lox.logdict`: a frozen mapping and pytree with the operations on logs."""

import collections.abc
import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import assert_array, assert_logs

import lox


@pytest.fixture
def logs():
    """Three events of x with a counter, of which the second did not happen, and two of y."""
    return lox.logdict(
        {"x": jnp.array([1.0, jnp.nan, 3.0]), "y": jnp.array([[1, 2], [3, 4]])},
        {"i": {"x": jnp.array([10, 0, 30])}},
        {"x": jnp.array([True, False, True])},
        {"x": jnp.int32(2)},
    )


def test_it_is_a_mapping_from_key_to_events(logs):
    assert isinstance(logs, collections.abc.Mapping)
    assert list(logs) == ["x", "y"] and len(logs) == 2
    assert "x" in logs and "z" not in logs
    assert dict(logs).keys() == logs.keys() == {"x", "y"}
    assert logs.get("z") is None
    assert logs["y"].shape == (2, 2)
    assert len(lox.logdict()) == 0


def test_a_missing_key_names_those_there_are(logs):
    with pytest.raises(KeyError) as error:
        logs["z"]
    assert error.value.args == ("no events of the key 'z' were logged; the keys are: 'x', 'y'",)
    with pytest.raises(KeyError) as error:
        lox.logdict()["z"]
    assert error.value.args == ("no events of the key 'z' were logged; the keys are: none",)


def test_it_is_frozen_and_not_hashable(logs):
    with pytest.raises(AttributeError):
        logs.data = {}
    with pytest.raises(TypeError):
        logs["x"] = 1
    with pytest.raises(TypeError):
        hash(logs)


def test_it_is_a_pytree(logs):
    doubled = jax.tree.map(lambda leaf: leaf, logs)
    assert isinstance(doubled, lox.logdict)
    assert len(jax.tree.leaves(logs)) == 5
    out = jax.jit(lambda logs: logs.slice(1))(logs)
    assert_logs(
        out, {"x": [np.nan, 3.0], "y": [[3, 4]]}, steps={"i": {"x": [0, 30]}}, mask={"x": [0, 1]}, dropped={"x": 2}
    )
    carried, _ = jax.lax.scan(lambda c, _: (c, None), logs, None, length=2)
    assert carried["y"].tolist() == [[1, 2], [3, 4]]


def test_the_data_of_logs_of_the_same_keys_has_one_structure_in_whatever_order_they_were_logged():
    first, second = lox.logdict({"x": np.ones(2), "y": np.zeros(2)}), lox.logdict({"y": np.ones(2), "x": np.ones(2)})
    sums = jax.tree.map(lambda a, b: (a + b).tolist(), first.data, second.data)
    assert sums == {"x": [2, 2], "y": [1, 1]}


def test_two_are_equal_when_keys_shapes_dtypes_values_masks_and_steps_are():
    def make(x=(1.0, 2.0), key="x", steps=(0, 1), mask=None, dtype=jnp.float32):
        return lox.logdict(
            {key: jnp.array(x, dtype)}, {"i": {key: jnp.array(steps)}}, {} if mask is None else {key: jnp.array(mask)}
        )

    assert make() == make()
    others = [make(x=(1.0, 3.0)), make(key="y"), make(steps=(0, 2)), make(mask=(True, True)), make(dtype=jnp.float16)]
    others += [make(x=(1.0,)), lox.logdict(), {"x": 1}, None]
    for other in others:
        assert make() != other
    assert not make() == lox.logdict({"x": jnp.array([[1.0, 2.0]])}, {"i": {"x": jnp.array([0, 1])}})


def test_the_representation_shows_keys_dtypes_and_shapes(logs):
    assert repr(logs) == "logdict(x: float32[3], y: int32[2, 2])"
    assert repr(lox.logdict()) == "logdict()"


def test_a_sum_is_the_events_of_both_in_sequence(logs):
    other = lox.logdict({"x": jnp.array([4.0]), "z": jnp.array([5])}, {"i": {"x": jnp.array([40])}})
    assert_logs(
        logs + other,
        {"x": [1.0, np.nan, 3.0, 4.0], "y": [[1, 2], [3, 4]], "z": [5]},
        steps={"i": {"x": [10, 0, 30, 40]}},
        mask={"x": [1, 0, 1, 1]},
        dropped={"x": 2},
    )
    assert_logs(
        other + logs,
        {"x": [4.0, 1.0, np.nan, 3.0], "y": [[1, 2], [3, 4]], "z": [5]},
        steps={"i": {"x": [40, 10, 0, 30]}},
        mask={"x": [1, 1, 0, 1]},
        dropped={"x": 2},
    )
    assert (logs + lox.logdict())["y"].tolist() == [[1, 2], [3, 4]]
    assert (logs + logs).dropped["x"] == 4


def test_sums_under_jit_work(logs):
    assert jax.jit(lambda a, b: a + b)(logs, logs)["y"].shape == (4, 2)


def test_a_sum_of_unlike_events_is_refused(logs):
    with pytest.raises(lox.StructureError) as error:
        logs + lox.logdict({"y": jnp.array([1, 2])})
    assert str(error.value) == "The events of 'y' cannot be joined: int32[2, 2] and int32[2]."
    with pytest.raises(lox.StructureError) as error:
        logs + lox.logdict({"y": jnp.array([[1.0, 2.0]])})
    assert str(error.value) == "The events of 'y' cannot be joined: int32[2, 2] and float32[1, 2]."
    with pytest.raises(lox.StructureError) as error:
        logs + lox.logdict({"x": jnp.array([1.0])})
    assert str(error.value) == "The events of 'x' cannot be joined: their counters differ."
    masked = [
        lox.logdict({"x": jnp.ones((1, 2, 2))}, {}, {"x": jnp.ones((1, *lanes), bool)}) for lanes in [(2,), (2, 2)]
    ]
    with pytest.raises(lox.StructureError) as error:
        masked[0] + masked[1]
    assert str(error.value) == "The events of 'x' cannot be joined: batch axes of [1, 2] and [1, 2, 2] differ."
    made = [lox.logdict({"x": jnp.ones((1, 2))}, distributions={"x": lox.reductions.histogram([n])}) for n in (1, 2)]
    with pytest.raises(
        lox.StructureError, match=r"'x' cannot be joined: their distributions are lox.reductions.histogram\(\[1"
    ):
        made[0] + made[1]
    with pytest.raises(TypeError):
        logs + {"x": 1}


def test_a_union_takes_a_key_of_both_from_the_second(logs):
    other = lox.logdict({"x": jnp.array([7.0]), "z": jnp.array([8])}, {"j": {"x": jnp.array([1])}})
    assert_logs(logs | other, {"x": [7.0], "y": [[1, 2], [3, 4]], "z": [8]}, steps={"j": {"x": [1]}})
    assert_logs(
        other | logs,
        {"x": [1.0, np.nan, 3.0], "y": [[1, 2], [3, 4]], "z": [8]},
        steps={"i": {"x": [10, 0, 30]}},
        mask={"x": [1, 0, 1]},
        dropped={"x": 2},
    )
    with pytest.raises(TypeError):
        logs | {"x": 1}


def test_a_filter_keeps_keys_with_all_that_belongs_to_them(logs):
    with pytest.warns(lox.SelectionWarning, match="'absent' in argnames= of logdict.filter"):
        with_absent = logs.filter(["x", "absent"])
    for chosen in (logs.filter("x"), with_absent, logs.filter(lambda key: key == "x")):
        assert_logs(
            chosen, {"x": [1.0, np.nan, 3.0]}, steps={"i": {"x": [10, 0, 30]}}, mask={"x": [1, 0, 1]}, dropped={"x": 2}
        )
    assert_logs(logs.filter("y"), {"y": [[1, 2], [3, 4]]})
    assert_logs(logs.filter(()), {})


def test_a_prefix_renames_every_key(logs):
    assert_logs(
        logs.prefix("p/"),
        {"p/x": [1.0, np.nan, 3.0], "p/y": [[1, 2], [3, 4]]},
        steps={"i": {"p/x": [10, 0, 30]}},
        mask={"p/x": [1, 0, 1]},
        dropped={"p/x": 2},
    )


@pytest.mark.parametrize(
    "bounds", [(1,), (0, 2), (None, -1), (None, None, 2), (-2, None), (5, 9), (None, None, -1)], ids=str
)
def test_a_slice_cuts_the_event_axis_as_python_does(logs, bounds):
    found = logs.slice(*bounds)
    cut = slice(*bounds) if len(bounds) > 1 else slice(bounds[0], None)
    assert_logs(
        found,
        {"x": np.array([1.0, np.nan, 3.0], np.float32)[cut], "y": np.array([[1, 2], [3, 4]])[cut]},
        steps={"i": {"x": np.array([10, 0, 30])[cut]}},
        mask={"x": np.array([True, False, True])[cut]},
        dropped={"x": 2},
    )


def test_valid_are_the_events_that_happened(logs):
    assert isinstance(logs.valid("x"), np.ndarray)
    assert logs.valid("x").tolist() == [1.0, 3.0]
    assert logs.valid("y").tolist() == [[1, 2], [3, 4]]
    with pytest.raises(KeyError):
        logs.valid("z")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("happened", [None, [True, False, True]])
def test_valid_of_typed_keys_is_their_data(impl, happened):
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    mask = {} if happened is None else {"key": jnp.array(happened)}
    valid = lox.logdict({"key": keys}, {}, mask).valid("key")
    expected = np.asarray(jax.random.key_data(keys))
    np.testing.assert_array_equal(valid, expected if happened is None else expected[happened])
    assert valid.impl == impl
    assert jax.random.wrap_key_data(valid, impl=valid.impl).dtype == keys.dtype


def test_valid_of_a_batch_goes_event_by_event():
    logs = lox.logdict({"x": jnp.array([[1.0, 2.0], [3.0, 4.0]])}, {}, {"x": jnp.array([[True, False], [True, True]])})
    assert logs.valid("x").tolist() == [1.0, 3.0, 4.0]


reductions = {
    "mean": ([2.0], [30], [[2.0, 3.0]]),
    "sum": ([4.0], [30], [[4, 6]]),
    "min": ([1.0], [30], [[1, 2]]),
    "max": ([3.0], [30], [[3, 4]]),
    "first": ([1.0], [10], [[1, 2]]),
    "last": ([3.0], [30], [[3, 4]]),
    "count": ([2], [30], [2]),
}


@pytest.mark.parametrize("reduction", reductions)
def test_a_reduction_is_that_of_the_events_that_happened(logs, reduction):
    x, step, y = reductions[reduction]
    found = logs.reduce(reduction)
    assert_array(found["x"], x)
    assert_array(found["y"], y)
    assert_array(found.steps["i"]["x"], step)
    assert bool(found.mask.get("x", jnp.array([True]))[0])
    assert "y" not in found.mask


def test_a_reduction_of_some_keys_leaves_the_others(logs):
    found = logs.reduce({"y": "max"})
    assert_logs(
        found,
        {"x": [1.0, np.nan, 3.0], "y": [[3, 4]]},
        steps={"i": {"x": [10, 0, 30]}},
        mask={"x": [1, 0, 1]},
        dropped={"x": 2},
    )


def test_a_reduction_of_no_events_is_masked_out():
    logs = lox.logdict({"x": jnp.array([1.0, 2.0])}, {}, {"x": jnp.zeros(2, bool)})
    for reduction, value in {"mean": np.nan, "sum": 0.0, "max": np.nan, "last": np.nan, "count": 0}.items():
        found = logs.reduce(reduction)
        assert_array(found["x"], [value])
        assert found.mask["x"].tolist() == [False]
    empty = lox.logdict({"x": jnp.zeros((0, 2))})
    assert_array(empty.reduce("sum")["x"], [[0.0, 0.0]])
    assert np.isnan(empty.reduce("last")["x"]).all()


def test_an_unknown_reduction_is_refused(logs):
    with pytest.raises(lox.LogValueError, match="There is no reduction 'median'"):
        logs.reduce("median")
    with pytest.raises(lox.LogValueError, match="There is no reduction 'median'"):
        logs.reduce({"x": "median"})


def test_a_reduction_of_a_batch_is_lane_by_lane():
    logs = lox.logdict({"x": jnp.array([[1.0, 2.0], [3.0, 4.0]])}, {}, {"x": jnp.array([[True, False], [True, False]])})
    found = logs.reduce("sum")
    assert_logs(found, {"x": [[4.0, 0.0]]}, mask={"x": [[1, 0]]})


def test_to_pandas_is_a_long_table_of_the_events_that_happened(logs):
    table = logs.to_pandas()
    assert list(table.columns) == ["key", "event", "i", "axis_0", "value"]
    x = table[table["key"] == "x"]
    assert x["event"].tolist() == [0, 2]
    assert x["i"].tolist() == [10, 30]
    assert x["value"].tolist() == [1.0, 3.0]
    assert x["axis_0"].isna().all()
    y = table[table["key"] == "y"]
    assert y["event"].tolist() == [0, 0, 1, 1]
    assert y["axis_0"].tolist() == [0, 1, 0, 1]
    assert y["value"].tolist() == [1, 2, 3, 4]
    assert y["i"].isna().all()


def test_to_pandas_of_no_logs_is_an_empty_table():
    table = lox.logdict().to_pandas()
    assert len(table) == 0 and set(table.columns) == {"key", "event", "value"}


def test_to_pandas_of_a_batch_repeats_counters_along_further_axes():
    logs = lox.logdict({"x": jnp.arange(8.0).reshape(2, 2, 2)}, {"i": {"x": jnp.array([[5, 6], [7, 8]])}})
    table = logs.to_pandas()
    assert table["i"].tolist() == [5, 5, 6, 6, 7, 7, 8, 8]
    assert table["value"].tolist() == list(range(8))


def test_events_with_other_counters_are_not_joined_in_either_order():
    without = lox.logdict({"x": jnp.ones(2)})
    counted = lox.logdict({"x": jnp.ones(2)}, {"step": {"x": jnp.arange(2)}})
    for first, second in ((without, counted), (counted, without)):
        with pytest.raises(lox.StructureError, match="counters differ"):
            first + second


def test_a_reduction_keeps_how_many_events_were_dropped(logs):
    assert logs.reduce("sum").dropped["x"] == 2 and "y" not in logs.reduce("sum").dropped
    loop = lambda n: jax.lax.while_loop(lambda i: i < n, lambda i: lox.log({"a": i})["a"] + 1, 0)  # noqa: E731
    truncated = lox.spool(jax.vmap(loop), max_iters=2)(jnp.array([5, 1]))[1].reduce({"a": "first"})
    assert_array(truncated["a"], [[0, 0]])
    assert_array(truncated.dropped["a"], [3, 0])


@pytest.mark.parametrize(
    "leaf",
    [
        lambda leaf: None,
        lambda leaf: leaf.sharding,
        lambda leaf: "<text>",
        lambda leaf: 1.5,
        lambda leaf: leaf.mean(),
        np.asarray,
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        lambda leaf: leaf.ravel()[:1],
    ],
)
def test_a_logdict_of_any_leaves_shows_what_is_there(logs, leaf):
    mapped = jax.tree.map(leaf, logs)
    value = mapped["y"]
    shown = f"{value.dtype.name}{list(value.shape)}" if hasattr(value, "dtype") else repr(value)
    assert f"y: {shown})" in repr(mapped)
    table = mapped._repr_html_()
    assert "<td>y</td>" in table and "<text>" not in table
    assert isinstance(mapped == jax.tree.map(leaf, logs), bool)
    assert mapped != jax.tree.map(lambda leaf: "other", logs)


def test_logs_are_equal_where_the_same_happened():
    def f(happens, x):
        return jax.lax.cond(happens, lambda: lox.log({"a": x}, step=1)["a"], lambda: x)

    spooled = jax.jit(lox.spool(f, unify=True))
    missing = spooled(False, 1.0)[1]
    assert np.isnan(missing["a"][0])
    assert missing == missing
    assert missing == jax.tree.map(jnp.copy, missing)
    assert missing == spooled(False, 2.0)[1]
    assert missing == lox.logdict({"a": jnp.zeros(1)}, {"step": {"a": jnp.array([7])}}, missing.mask)
    assert missing != lox.logdict({"a": jnp.zeros(1)}, {"step": {"a": jnp.array([0])}})
    there = spooled(True, 1.0)[1]
    assert there != missing and there == spooled(True, 1.0)[1] and there != spooled(True, 2.0)[1]
    assert spooled(True, jnp.nan)[1] != spooled(True, jnp.nan)[1]
    batch = lambda x: lox.logdict({"a": x}, {}, {"a": jnp.array([[True, False]])})  # noqa: E731
    assert batch(jnp.array([[[1.0, 2.0], [3.0, 4.0]]])) == batch(jnp.array([[[1.0, 2.0], [5.0, jnp.nan]]]))
    assert batch(jnp.array([[[1.0, 2.0], [3.0, 4.0]]])) != batch(jnp.array([[[1.0, 0.0], [3.0, 4.0]]]))
    keys = lambda seed: lox.logdict({"k": jax.random.split(jax.random.key(seed), 2)}, mask={"k": jnp.zeros(2, bool)})  # noqa: E731
    assert keys(0) == keys(1)


def test_an_error_of_a_reduction_has_no_line_where_none_is_known():
    logs = lox.logdict({"a": jnp.array([1, 2], jnp.int4)})
    with pytest.raises(lox.LogValueError, match="no 'sum' of int4: convert"):
        logs.reduce("sum")
    with pytest.raises(lox.LogValueError, match="takes numbers, got key<fry>[.]$"):
        lox.logdict({"k": jax.random.split(jax.random.key(0), 2)}).reduce("sum")
    with pytest.raises(lox.LogValueError, match="of int4, logged at .*test_logdict.py:[0-9]+"):
        lox.spool(lambda x: lox.log({"a": x}), reduce="sum")(jnp.array(1, jnp.int4))


# -- distributions -------------------------------------------------------------------------------------------------

MADE_BY = {"h": lox.reductions.histogram([0, 1, 10]), "q": lox.reductions.quantiles([0.1, 0.5])}


def distributed(xs):
    return jax.lax.map(lambda x: lox.log({"h": x, "q": x, "x": x})["x"], xs)


def test_logs_know_what_made_their_distributions():
    xs = jnp.arange(6.0)
    arrived = []
    for window in (None, 4):
        assert lox.spool(distributed, reduce=MADE_BY, window=window)(xs)[1].distributions == MADE_BY
        reduce = {"q": MADE_BY["q"], "*": MADE_BY["h"]}
        lox.tap(distributed, arrived.append, reduce=reduce, prefix="q/", window=window)(xs)
    lox.flush()
    expected = {"q/h": MADE_BY["h"], "q/q": MADE_BY["q"], "q/x": MADE_BY["h"]}
    assert [logs.distributions for logs in arrived] == [{key: expected[key] for key in logs} for logs in arrived]
    assert {key for logs in arrived for key in logs} == expected.keys()
    # Other reductions make none.
    logs = lox.spool(distributed)(xs)[1].reduce(MADE_BY)
    assert logs.distributions == MADE_BY
    others = {"x": lox.reductions.quantiles(0.5), "h": "mean", "q": lox.reductions.topk(2)}
    assert logs.reduce(others).distributions == lox.logdict().distributions == {}


def test_operations_keep_distributions():
    logs = lox.spool(distributed, reduce=MADE_BY)(jnp.arange(6.0))[1]
    kept = {
        "slice": logs.slice(1),
        "or": logs.filter("h") | logs.filter("q"),
        "add": logs + logs,
        "ungrouped": logs.ungrouped(),
        "reduce": logs.reduce({"x": "mean"}),
        "tree.map": jax.tree.map(np.asarray, logs),
        "jit": jax.jit(lambda logs: logs)(logs),
        "vmap": jax.vmap(lambda logs: logs)(logs.filter(["h", "q"])),
        "scan": jax.lax.scan(lambda logs, _: (logs, None), logs, length=2)[0],
        "cond": jax.lax.cond(True, lambda: logs, lambda: jax.tree.map(jnp.zeros_like, logs)),
        "pickle": pickle.loads(pickle.dumps(logs)),
        "copy": copy.deepcopy(logs),
        "split": lox.spool(distributed, reduce=MADE_BY, on_mismatch="split")(jnp.arange(6.0))[1],
    }
    kept |= {f"reduce {name}": logs.reduce(name) for name in ("first", "last")}
    assert {name: of.distributions for name, of in kept.items()} == dict.fromkeys(kept, MADE_BY)
    numbers = logs.filter(["h", "q"])
    assert numbers.reduce("sum").distributions == {"h": MADE_BY["h"]} and not numbers.reduce("mean").distributions
    assert logs.filter("h").prefix("p/").distributions == {"p/h": MADE_BY["h"]}


def test_distributions_are_no_part_of_what_happened():
    logs = lox.logdict({"h": jnp.array([[1, 2]])}, distributions={"h": lox.reductions.histogram([0])})
    other = lox.logdict({"h": jnp.array([[1, 2]])}, distributions={"h": lox.reductions.histogram([5])})
    assert logs == other == lox.logdict({"h": jnp.array([[1, 2]])})
    assert (logs | other).distributions == other.distributions
    assert jax.jit(lambda logs: logs)(logs).distributions != jax.jit(lambda logs: logs)(other).distributions


def test_a_distribution_is_one_of_a_key():
    for wrong in ({"h": "mean"}, {"h": lox.reductions.quantiles(0.5)}, {"g": MADE_BY["h"]}):
        with pytest.raises(lox.LogValueError, match="distribution"):
            lox.logdict({"h": jnp.zeros((1, 4))}, distributions=wrong)


def test_a_notebook_shows_events_that_happened_in_some_batch_elements():
    step = {"step": {"a": jnp.array([[0, 0], [1, 1]])}}
    mask = {"a": jnp.array([[True, True], [False, True]])}
    html = lox.logdict({"a": jnp.float32([[1, 2], [3, 4]])}, step, mask)._repr_html_()
    assert re.findall("<td>(.*?)</td>", html)[3:5] == ["2", "4"]


def test_operations_keep_the_order_of_keys(tmp_path):
    """Of saved logs, which have keys with equal counters together."""
    order = ["z", "b", "y", "a", "c"]
    lox.save(lox.logdict({key: np.arange(2 + place % 2, dtype=np.int32) for place, key in enumerate(order)}), tmp_path)
    logs = lox.load(tmp_path)
    assert logs.timelines == (("a", "b"), ("c", "y", "z")) and list(logs) == list(logs.data) == order
    for same in (logs.slice(0), logs.ungrouped(), logs.reduce("last"), logs.reduce({"y": "sum"}), copy.deepcopy(logs)):
        assert list(same) == order
    assert list(pickle.loads(pickle.dumps(logs))) == order
    assert list(logs.prefix("p/")) == [f"p/{key}" for key in order]
    assert list(logs.filter(["a", "z", "y"])) == ["z", "y", "a"]
    assert repr(logs.filter(lambda key: key in "zac")) == "logdict(z: int32[2], a: int32[3], c: int32[2])"


def test_what_was_dropped_and_which_events_have_masks_are_part_of_what_happened():
    def made(**changes):
        parts = {"data": {"x": jnp.arange(3)}, "steps": {"i": {"x": jnp.arange(3)}}, "mask": {}, "dropped": {}}
        return lox.logdict(**parts | changes)

    bounded = made(dropped={"x": jnp.int32(2)}, mask={"x": jnp.array([True, True, False])})
    assert bounded == made(
        data={"x": jnp.array([0, 1, 9])}, dropped={"x": jnp.int32(2)}, mask={"x": jnp.array([True, True, False])}
    )
    others = [
        made(),
        made(dropped={"x": jnp.int32(3)}, mask={"x": jnp.array([True, True, False])}),
        made(dropped={"x": jnp.int32(2)}, mask={"x": jnp.array([True, False, True])}),
        made(dropped={"x": jnp.int32(2)}),
        made(mask={"x": jnp.array([True, True, False])}),
        made(dropped={"x": jnp.array([2])}, mask={"x": jnp.array([True, True, False])}),
        made(steps={}, dropped={"x": jnp.int32(2)}, mask={"x": jnp.array([True, True, False])}),
        made(steps={"j": bounded.steps["i"]}, dropped={"x": jnp.int32(2)}, mask=dict(bounded.mask)),
    ]
    for other in others:
        assert bounded != other and other != bounded and other == other


def test_sums_of_several_timelines_with_masks_counters_and_bounds_are_joined_key_by_key():
    rng = np.random.default_rng(0)

    def made(events, masked, bounded):
        of = lambda names, value: {key: value() for key in names}  # noqa: E731
        return lox.logdict(
            {
                "a": rng.random((events, 2, 3), np.float32),
                "b": rng.integers(9, size=(events, 2), dtype=np.int32),
                "c": rng.random(events, np.float32),
            },
            {"step": of("ab", lambda: rng.integers(9, size=(events, 2))), "t": of("c", lambda: np.arange(events))},
            of(masked, lambda: rng.random((events, 2)) < 0.5),
            of(bounded, lambda: rng.integers(9, size=2)),
        )

    parts = [made(3, "ab", "b"), made(1, "a", "ab"), made(0, "", ""), made(4, "b", "a")]
    total = sum(parts[1:], parts[0])
    for key in "abc":
        np.testing.assert_array_equal(total[key], np.concatenate([part[key] for part in parts]))
        (name,) = (name for name in ("step", "t") if key in parts[0].steps[name])
        np.testing.assert_array_equal(total.steps[name][key], np.concatenate([part.steps[name][key] for part in parts]))
        masks = [part.mask.get(key, np.ones((len(part["a"]), 2), bool)) for part in parts]
        assert (key in total.mask) == (key != "c")
        if key != "c":
            np.testing.assert_array_equal(total.mask[key], np.concatenate(masks))
            np.testing.assert_array_equal(total.dropped[key], sum(part.dropped.get(key, 0) for part in parts))
    assert set(total.steps) == {"step", "t"} and set(total.dropped) == {"a", "b"}
