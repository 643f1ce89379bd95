"""Keys that are logged together share their counters, masks and counts of dropped events."""

import copy
import itertools
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from reference import REDUCE, assert_logs, pairs_of, with_options

import lox
from lox._notebook import line

XS = jnp.arange(6.0)


def together(x, **steps):
    """A call that logs two keys with a counter, after one that logs another key."""
    lox.log({"alone": -x})
    return lox.log({"a": x, "b": 2 * x}, **steps)["a"]


def scanned(xs, body=together):
    def step(total, x):
        return total + body(x, step=x.astype(jnp.int32)), None

    return lax.scan(step, 0.0, xs)[0]


def looped(xs):
    def step(carry):
        i, total = carry
        return i + 1, total + together(xs[i], step=i)

    return lax.while_loop(lambda carry: carry[0] < 4, step, (0, 0 * xs[0]))[1]


def branched(xs):
    def body(x, **steps):
        return lax.cond(x < 3, lambda x: together(x, **steps), lambda x: x, x)

    return scanned(xs, body)


def in_python(xs):
    return sum(together(x, step=place) for place, x in enumerate(xs))


def with_rule(xs):
    @jax.custom_vjp
    def f(x):
        return together(x, step=0)

    f.defvjp(lambda x: (f(x), x), lambda x, bar: (bar,))
    return jax.grad(lambda xs: jax.vmap(f)(xs).sum())(xs)


PROGRAMS = {
    "scan": (scanned, {}),
    "reversed": (lambda xs: lax.map(lambda x: together(x, step=0), xs), {}),
    "nested": (lambda xs: lax.map(scanned, jnp.stack([xs, xs])), {}),
    "python loop": (in_python, {}),
    "while": (looped, {"max_iters": 2}),
    "while, reduced": (looped, {"reduce": "mean"}),
    "branches": (branched, {"unify": True}),
    "branches, reduced": (branched, {"reduce": "max"}),
    "branches, every second": (branched, {"unify": True, "interval": 2}),
    "every second": (scanned, {"interval": 2}),
    "every second in Python": (in_python, {"interval": 2}),
    "reduced": (scanned, {"reduce": "last"}),
    "reduced in Python": (in_python, {"reduce": {"a": "mean", "b": "sum"}}),
    "batch": (jax.vmap(scanned, in_axes=1), {}),
    "branches of a batch": (jax.vmap(branched, in_axes=1), {"unify": True}),
    "derivative": (jax.grad(scanned), {}),
    "checkpoint": (jax.grad(jax.checkpoint(scanned)), {}),
    "custom rule": (with_rule, {}),
    "jit": (jax.jit(scanned), {}),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_keys_of_one_call_share_the_arrays_of_their_counters_and_masks(name, transform):
    function, options = PROGRAMS[name]
    xs = jnp.stack([XS, XS + 1], axis=1) if "batch" in name else XS
    _, logs = transform(lox.spool(function, **options))(xs)
    assert logs.timelines == (("a", "b"), ("alone",))
    assert logs.steps["step"]["a"] is logs.steps["step"]["b"]
    expected = 3 + 1  # The values and one counter.
    for of in (logs.mask, logs.dropped):
        assert ("a" in of) == ("alone" in of)
        if "a" in of:
            assert of["a"] is of["b"]
            expected += 2
    assert len(jax.tree.leaves(logs)) == expected
    for key in logs:
        _, alone = transform(lox.spool(function, argnames=key, **options))(xs)
        jax.tree.map(np.testing.assert_array_equal, logs.filter(key), alone)


def test_the_counters_of_the_first_event_are_not_those_of_the_last():
    _, logs = lox.spool(scanned, reduce={"a": "first", "b": "last"})(XS)
    assert ("a",) in logs.timelines and ("b",) in logs.timelines
    assert [logs.steps["step"][key].item() for key in "ab"] == [0, 5]


def test_a_key_that_is_also_logged_alone_is_no_part_of_the_timeline():
    def f(x):
        lox.log({"a": x, "b": x, "c": x}, step=0)
        lox.log({"a": x}, step=1)

    assert lox.spool(f)(1.0)[1].timelines == (("a",), ("b", "c"))
    assert lox.spool(f, argnames=["b", "c"])(1.0)[1].timelines == (("b", "c"),)
    # It may be that the event which tells them apart is not kept.
    _, logs = lox.spool(lambda xs: lax.map(f, xs), interval=2)(XS)
    assert_logs(
        logs,
        {"a": XS.repeat(2)[::2], "b": XS[::2], "c": XS[::2]},
        steps={"step": {"a": [0] * 6, "b": [0] * 3, "c": [0] * 3}},
    )


@pytest.mark.parametrize("unlike", [lambda x: together(x, step=1), lambda x: lox.log({"b": x}, step=2)["b"]])
def test_a_branch_that_logs_one_of_them_tells_them_apart(unlike):
    def f(x):
        return lax.cond(x > 1, lambda x: lox.log({"a": x, "b": x}, step=0)["a"], unlike, x)

    for x in (0.0, 2.0):
        _, logs = lox.spool(f, unify=True)(jnp.float32(x))
        same = "alone" in logs
        assert (("a", "b") in logs.timelines) == same
        assert logs.valid("b").tolist() == [2 * x if x < 1 and same else x]
        assert logs.valid("a").tolist() == ([x] if same or x > 1 else [])


def test_the_timelines_do_not_depend_on_the_order_of_keys_and_lines():
    def f(x):
        lox.log({"a": x, "b": x}, step=0)
        lox.log({"c": x})

    def g(x):
        lox.log({"c": x})
        lox.log({"b": x, "a": x}, step=0)

    (_, first), (_, second) = lox.spool(f)(1.0), jax.jit(lox.spool(g))(1.0)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    assert first.timelines == second.timelines == (("a", "b"), ("c",))
    assert jax.tree.map(lambda a, b: (a - b).item(), first, second)["b"] == 0


def test_they_pass_through_jax():
    _, logs = lox.spool(scanned)(XS)
    assert jax.jit(lambda logs: logs)(logs).timelines == logs.timelines
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), logs, logs)
    row = jax.vmap(lambda logs: logs)(stacked)
    assert row.steps["step"]["a"] is row.steps["step"]["b"] and row["a"].shape == (2, 6)
    chosen = lax.cond(True, lambda logs: logs, lambda logs: jax.tree.map(jnp.zeros_like, logs), logs)
    assert chosen == logs
    last, each = lax.scan(lambda carry, _: (carry, carry), logs, length=2)
    assert last == logs and each.timelines == logs.timelines
    joined = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), logs, logs)
    assert joined == logs + logs and joined.timelines == (logs + logs).timelines


def test_a_callback_gets_them():
    got = []
    for buffer, interval in [(1, 1), (4, 1), (4, 2), (1, 2)]:
        lox.tap(scanned, got.append, buffer=buffer, interval=interval)(XS)
    lox.flush()
    having = [logs for logs in got if "a" in logs]
    assert len(having) > 12
    for logs in having:
        assert ("a", "b") in logs.timelines
        assert logs.steps["step"]["a"] is logs.steps["step"]["b"]


def test_what_differs_between_shards_has_counters_of_its_own():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))

    def f(x):
        lox.log({"whole": 1.0, "also": 2.0, "part": x.sum(), "other": x.max()}, step=3)
        return x

    _, logs = lox.spool(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(jnp.arange(4.0))
    assert logs.timelines == (("also", "whole"), ("other", "part"))
    assert logs["part"].shape == (1, 2) and logs["whole"].shape == (1,)
    _, logs = lox.spool(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")), reduce="mean")(jnp.arange(4.0))
    assert logs.timelines == (("also", "whole"), ("other", "part"))
    assert logs["part"].tolist() == [[1.0, 5.0]]


def test_a_bounded_loop_of_shards_counts_what_is_dropped_once():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(lambda x: looped(jnp.tile(x, 3))[None], mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    _, logs = lox.spool(f, max_iters=3)(jnp.arange(4.0))
    assert logs.dropped["a"] is logs.dropped["b"] and logs.dropped["a"].tolist() == [1, 1]


# -- the container -------------------------------------------------------------------------------------------------


def made(a=3, step="step", **more):
    """Two keys of a timeline, and one of another."""

    @lox.spool
    def f(xs):
        return lax.map(lambda x: lox.log({"a": x, "b": -x} | more, **{step: x.astype(int)})["a"], xs)

    return f(jnp.arange(float(a)))[1]


def test_a_logdict_made_by_hand_has_a_timeline_for_each_key():
    shared = np.arange(2)
    logs = lox.logdict({"a": shared, "b": shared}, {"step": {"a": shared, "b": shared}})
    assert logs.timelines == (("a",), ("b",))
    assert len(jax.tree.leaves(logs)) == 4


@pytest.mark.parametrize(
    "operation",
    [
        lambda logs: logs.filter(["a", "b"]),
        lambda logs: logs.prefix("train/"),
        lambda logs: logs.slice(1),
        lambda logs: logs.reduce("mean"),
        lambda logs: logs + logs,
        lambda logs: logs | lox.logdict({"other": jnp.zeros(1)}),
        lambda logs: jax.tree.map(lambda leaf: leaf + 1, logs),
        copy.deepcopy,
        lambda logs: pickle.loads(pickle.dumps(logs)),
    ],
)
def test_operations_keep_timelines(operation):
    logs = operation(made())
    keys = [key for key in logs if key != "other"]
    assert tuple(sorted(keys)) in logs.timelines
    counters = [logs.steps["step"][key] for key in keys]
    assert counters[0] is counters[1]
    assert operation(made()) == operation(made().ungrouped())


def test_a_sum_has_keys_together_that_are_so_in_both():
    first, second = made(c=jnp.float32(1)), made(2) | lox.logdict({"c": jnp.ones(1)}, {"step": {"c": jnp.ones(1, int)}})
    assert (first + second).timelines == (("a", "b"), ("c",))
    assert (second + first).timelines == (("a", "b"), ("c",))
    assert (first + second)["a"].tolist() == [0, 1, 2, 0, 1]


def test_a_union_takes_a_key_from_the_second_and_leaves_the_rest_together():
    logs = made(c=jnp.float32(1)) | lox.logdict({"c": jnp.zeros(1)})
    assert logs.timelines == (("a", "b"), ("c",))
    assert "c" not in logs.steps["step"]


def test_logs_are_equal_however_they_are_grouped():
    logs = made()
    assert logs == logs.ungrouped() and logs.ungrouped() == logs
    assert logs.timelines != logs.ungrouped().timelines
    assert logs != made(4) and logs != made(step="other")


def test_saved_logs_are_equal(tmp_path):
    logs = made()
    lox.save(logs, tmp_path)
    assert lox.load(tmp_path) == logs


def test_errors_of_trees_that_do_not_match_name_the_form_that_does():
    logs = made()
    other = lox.logdict(dict(logs.data), dict(logs.steps))
    with pytest.raises(ValueError, match=r"ungrouped\(\)"):
        jax.tree.map(jnp.add, logs, other)
    with pytest.raises(TypeError, match=r"ungrouped\(\)"):
        lax.cond(True, lambda: logs, lambda: other)
    total = jax.tree.map(jnp.add, logs.ungrouped(), other.ungrouped())
    assert total["a"].tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "change",
    [
        lambda logs: logs.data.update(a=1),
        lambda logs: logs.steps["step"].pop("a"),
        lambda logs: logs.steps.__setitem__("step", {}),
        lambda logs: logs.mask.setdefault("a", 1),
        lambda logs: logs.dropped.clear(),
        lambda logs: logs.steps.__delitem__("step"),
        lambda logs: logs.steps["step"].__ior__({"a": 1}),
    ],
)
def test_its_mappings_cannot_be_changed(change):
    logs = made()
    with pytest.raises(TypeError, match="cannot be changed"):
        change(logs)
    assert logs == made()


def test_it_has_no_attributes_that_can_be_set():
    with pytest.raises(AttributeError, match="cannot be changed"):
        made().data = {}


@pytest.mark.parametrize("part", ["mask", "dropped", "steps"])
def test_by_hand_what_belongs_to_no_key_is_refused(part):
    of = {"b": np.zeros(1, bool)}
    with pytest.raises(lox.LogValueError, match="'b'"):
        lox.logdict({"a": np.zeros(1)}, **{part: {"step": of} if part == "steps" else of})


def test_its_mappings_are_pytrees():
    logs = made()
    assert jax.tree.map(jnp.sum, logs.data)["a"] == 3
    assert sorted(jax.jit(lambda logs: logs.steps)(logs)["step"]) == ["a", "b"]


def test_a_notebook_shows_a_table():
    logs = made() | lox.logdict({"<b>": np.array([[1.0, 3.0], [5.0, np.nan]])})
    shown = logs._repr_html_()
    assert shown.count("<tr>") == 1 + 3 and "&lt;b&gt;" in shown and "<b>" not in shown
    assert "<td>a</td><td>float32</td><td>[]</td><td>3</td><td>2</td><td>▁▄█</td>" in shown
    assert "<table>" in lox.logdict()._repr_html_()
    assert jax.jit(lambda logs: len(logs._repr_html_()))(made()) > 100
    keys = lox.logdict({"key": jax.random.split(jax.random.key(0), 2)})
    assert "key&lt;fry&gt;" in keys._repr_html_()
    assert "<td>0</td>" in lox.logdict({"none": np.zeros((0, 2)), "no lanes": np.zeros((2, 0))})._repr_html_()


@pytest.mark.parametrize("start", [-9.0, 0.0, 5.0])
def test_a_line_of_numbers_goes_from_the_smallest_to_the_largest(start):
    assert line(start + np.arange(3)) == "▁▄█"


def test_a_notebook_has_a_row_for_each_key_with_what_is_known_of_it():
    wave = np.float32(np.round(50 * np.sin(np.arange(100.0))))
    wave[7] = np.nan
    mask = np.array([[True, False], [False, False], [False, True], [True, True]])
    data = {
        "wave": wave,
        "lanes": np.array([[1.5, 99], [99, 99], [99, 2.25], [-4, 8]]),
        "vector & <b>": np.int8([[1, 2], [3, 6]]),
        "z": np.complex64([3 + 4j, 0]),
        "equal": np.full(3, 1e300),
        "huge": np.array([-1e308, 1e308, 0]),
        "never": np.array([np.nan, np.inf]),
        "none": np.zeros((0, 2)),
        "nothing": np.zeros((2, 0)),
        "small": np.array([0.5, 1234567.0]),
    }
    logs = lox.logdict(data, {"step": {"lanes": np.arange(8).reshape(4, 2)}}, {"lanes": mask})

    def bars(numbers):
        shown = (
            [numbers[round(place * (len(numbers) - 1) / 23)] for place in range(24)] if len(numbers) > 24 else numbers
        )
        finite = [number for number in map(float, shown) if np.isfinite(number)]
        low, high = min(finite, default=0) / 2, max(finite, default=0) / 2
        height = lambda number: int((number / 2 - low) / ((high - low) or 1) * 7)  # noqa: E731
        return "".join("▁▂▃▄▅▆▇█"[height(float(n))] if np.isfinite(n) else " " for n in shown)

    assert len(bars(wave)) == 24
    expected = {
        "wave": ("float32", "[]", "100", f"{wave[-1]:.6g}", bars(wave)),
        "lanes": ("float64", "[2]", "3", "2", bars([1.5, 2.25, 2])),
        "vector &amp; &lt;b&gt;": ("int8", "[2]", "2", "4.5", bars([1.5, 4.5])),
        "z": ("complex64", "[]", "2", "0", bars([5, 0])),
        "equal": ("float64", "[]", "3", "1e+300", "▁▁▁"),
        "huge": ("float64", "[]", "3", "0", "▁█▄"),
        "never": ("float64", "[]", "2", "inf", "  "),
        "none": ("float64", "[2]", "0", "", ""),
        "nothing": ("float64", "[0]", "2", "nan", "  "),
        "small": ("float64", "[]", "2", "1.23457e+06", "▁█"),
    }
    head = "".join(f"<th>{name}</th>" for name in ("key", "dtype", "shape", "events", "last", ""))
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in (key, *cells))}</tr>" for key, cells in expected.items()
    )
    assert logs._repr_html_() == f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    # Of what is no array of events, it is told what it is.
    odd = {
        "means": (
            lambda leaf: np.float64(leaf.mean()) if leaf.dtype != bool else leaf,
            ["float64", "", "", "1.875", ""],
        ),
        "text": (lambda leaf: "<a>", ["str", "", "", "&lt;a&gt;", ""]),
        "shapes": (lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), ["float64", "[2]", "4", "", ""]),
        "mask of numbers": (lambda leaf: leaf.astype(float), ["float64", "[2]", "4", "", ""]),
        "steps of others": (lambda leaf: leaf[:1] if leaf.dtype == int else leaf, ["float64", "[2]", "4", "", ""]),
    }
    for name, (change, cells) in odd.items():
        shown = jax.tree.map(change, logs.filter("lanes"))._repr_html_()
        if name == "means":
            cells = [*cells[:3], str(np.float64(data["lanes"].mean())), ""]
        assert re.findall("<td>(.*?)</td>", shown) == ["lanes", *cells], name


# -- counters of batches -------------------------------------------------------------------------------------------


def counted(i, j):
    def step(x, k):
        lox.log({"a": x, "b": x}, i=i, j=j, k=k, two=2)
        return x + 1, None

    return lax.scan(step, 0.0, jnp.arange(3))[0]


BATCHES = {
    "inner first": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0)), (5, 4)),
    "inner last": (lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None)), (4, 5)),
    "one": (lambda f: jax.vmap(f, (0, 0)), (4,)),
    "only the outer": (lambda f: jax.vmap(jax.vmap(f, (None, None), axis_size=2), (0, 0)), (4, 2)),
    "only the inner": (lambda f: jax.vmap(jax.vmap(f, (0, 0)), (None, None), axis_size=2), (2, 4)),
}
OPTIONS = [{}, {"interval": 2}, {"reduce": "last"}, {"reduce": "first"}]


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_counters_have_the_batch_axes_of_their_events(name, options):
    batched, shape = BATCHES[name]
    i = jnp.arange(4)
    j = jnp.arange(5) if 5 in shape else jnp.arange(4)
    out, logs = lox.spool(batched(counted), **options)(i, j)
    _, inside = batched(lox.spool(counted, **options))(i, j)
    inside = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, len(shape), 0), inside)
    assert logs["a"].shape[1:] == out.shape == shape
    jax.tree.map(np.testing.assert_array_equal, logs, inside)
    for counter in logs.steps.values():
        assert counter["a"].shape == logs["a"].shape


@pytest.mark.covering(1)
@pytest.mark.parametrize("buffer", [1, 2])
@pytest.mark.parametrize("interval", [1, 2])
@pytest.mark.parametrize("name", BATCHES)
def test_counters_that_arrive_have_the_batch_axes_of_their_events(name, interval, buffer):
    batched, shape = BATCHES[name]
    i = jnp.arange(4)
    j = jnp.arange(5) if 5 in shape else jnp.arange(4)
    _, expected = lox.spool(batched(counted), interval=interval)(i, j)
    got = []
    lox.tap(batched(counted), got.append, interval=interval, buffer=buffer)(i, j)
    lox.flush()
    arrived = got[0]
    for logs in got[1:]:
        arrived = arrived + logs
    assert arrived == expected


# -- keys that share some calls, each under every handler ------------------------------------------------------------


def by_turns(xs, flags):
    """Keys that are logged together by some calls and apart by others, of which some surely happen and some may not."""
    lox.log({"a": xs[0], "b": 2 * xs[0]}, step=-1)

    def step(c, inputs):
        i, x, flag = inputs
        lox.log({"a": x, "b": -x}, step=i)
        lox.log({"b": 10 * x, "c": c}, step=i, where=flag)
        lax.cond(x > 2, lambda: lox.log({"a": -c, "c": c + 0.5}, step=i) and None, lambda: None)
        return c + 1, None

    c, _ = lax.scan(step, xs[1], (jnp.arange(len(xs)), xs, flags))
    lox.log({"c": c}, step=99)
    return c


def by_turns_in_python(xs, flags):
    """The events of each key, as pairs of a value and a counter."""
    found = {"a": [], "b": [], "c": []}

    def log(step, **data):
        for key, value in data.items():
            found[key].append((float(value), int(step)))

    log(-1, a=xs[0], b=2 * xs[0])
    c = xs[1]
    for i, (x, flag) in enumerate(zip(xs, flags, strict=True)):
        log(i, a=x, b=-x)
        if flag:
            log(i, b=10 * x, c=c)
        if x > 2:
            log(i, a=-c, c=c + 0.5)
        c = c + 1
    log(99, c=c)
    return found


LANES = np.float32([[3, 1, 2.5, 0, 5], [1, 2, 0.5, 7, 2], [9, 0, 3, 4, 1]])
FLAGS = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)


AROUND = itertools.cycle(["spool of vmap", "vmap of spool", "vmap of spool of jit"])
OPTIONS = [
    *({"unify": True, "interval": interval} for interval in (1, 2, 3)),
    *({"unify": True, "max_events": bound, "interval": interval} for bound, interval in ((3, 1), (2, 2), (50, 3))),
    *({"reduce": reduce} for reduce in REDUCE),
    *({"reduce": reduce, "window": window} for reduce, window in (("mean", 2), ("first", 3), ("max", 1))),
]


@pytest.mark.parametrize(("options", "around"), list(zip(OPTIONS, AROUND, strict=False)), ids=str)
def test_keys_that_share_calls_by_turns_have_the_events_of_a_python_loop_with_every_option(options, around):
    if around == "spool of vmap":
        _, logs = jax.jit(lox.spool(jax.vmap(by_turns), **options))(LANES, FLAGS)
    else:
        fun = jax.jit(by_turns) if around.endswith("jit") else by_turns
        _, logs = jax.jit(jax.vmap(lox.spool(fun, **options)))(LANES, FLAGS)
        logs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1) if leaf.ndim > 1 else leaf, logs)
    assert set(logs.dropped) == (set("abc") if "max_events" in options else set())
    for lane, (xs, flags) in enumerate(zip(LANES, FLAGS, strict=True)):
        for key, events in by_turns_in_python(xs, flags).items():
            kept, dropped = with_options(events, **options)
            np.testing.assert_allclose(pairs_of(logs, key, (lane,)), kept, rtol=1e-6, err_msg=f"{key} {lane}")
            if key in logs.dropped:
                assert logs.dropped[key][lane] == dropped


@pytest.mark.parametrize(
    ("options", "jitted"),
    [
        ({"interval": 2, "buffer": 7}, True),
        ({"interval": 3}, False),
        ({"buffer": 3}, True),
        ({"reduce": "mean"}, False),
        ({"reduce": "sum", "window": 2}, True),
        ({"reduce": "first", "window": 3}, False),
    ],
    ids=str,
)
def test_keys_that_share_calls_by_turns_arrive_as_the_events_of_a_python_loop(options, jitted):
    arrived = []
    fun = lox.tap(jax.vmap(by_turns), arrived.append, **options)
    (jax.jit(fun) if jitted else fun)(LANES, FLAGS)
    lox.flush()
    hand = {name: value for name, value in options.items() if name != "buffer"}
    for lane, (xs, flags) in enumerate(zip(LANES, FLAGS, strict=True)):
        for key, events in by_turns_in_python(xs, flags).items():
            got = [event for each in arrived if key in each for event in pairs_of(each, key, (lane,))]
            np.testing.assert_allclose(got, with_options(events, **hand)[0], rtol=1e-6, err_msg=f"{key} {lane}")
