"""The keywords of `lox.spool`: each equals the same operation on the full logs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference import REDUCE, Journal, assert_array, assert_logs

import lox
from lox._rules import _call

N = 7
transforms = pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])


def plain(log):
    log({"x": -1.0}, i=-1)
    for i in range(N):
        log({"x": float(i), "n": i}, i=i)
        if i % 2 == 0:
            pass
        log({"x": i / 2}, i=i)
    log({"x": 99.0, "last": 1.0}, i=N)


def f(x=0.0):
    lox.log({"x": -1.0}, i=-1, tags="edge")

    def step(carry, i):
        lox.log({"x": i.astype(jnp.float32), "n": i}, i=i, tags=["loop", "first"])
        lox.log({"x": i.astype(jnp.float32) / 2}, i=i, tags=("loop", "second"))
        return carry, None

    lax.scan(step, 0, jnp.arange(N))
    lox.log({"x": 99.0, "last": 1.0}, i=N, tags=["edge", "end"])
    return x


def expected():
    journal = Journal()
    plain(journal.log)
    return journal


def test_all_logs_are_collected_by_default():
    assert_logs(lox.spool(f)()[1], expected().events, steps=expected().steps)
    assert_logs(lox.spool(f, argnames=None, tags=None)()[1], expected().events, steps=expected().steps)


selections = {
    "a name": ({"argnames": "n"}, ["n"]),
    "names": ({"argnames": ["n", "last"]}, ["n", "last"]),
    "a generator of names": ({"argnames": (name for name in ["n"])}, ["n"]),
    "an unknown name": ({"argnames": "m"}, []),
    "no name": ({"argnames": ()}, []),
    "no tag": ({"tags": []}, []),
    "an unknown tag": ({"tags": "t"}, []),
    "an empty string": ({"argnames": ""}, []),
}


@pytest.mark.filterwarnings("ignore:.* of lox.spool selects nothing:lox.SelectionWarning")
@pytest.mark.parametrize("selection", selections)
@transforms
def test_argnames_select_keys(selection, transform):
    options, keys = selections[selection]
    if selection == "a generator of names":
        options = {"argnames": (name for name in ["n"])}
    journal = expected()
    events = {key: journal.events[key] for key in keys}
    steps = {"i": {key: journal.steps["i"][key] for key in keys}} if keys else {}
    assert_logs(lox.spool(transform(f), **options)()[1], events, steps=steps)


@pytest.mark.filterwarnings("ignore:'missing' in tags=:lox.SelectionWarning")
@transforms
def test_tags_select_log_calls_that_carry_any_of_them(transform):
    first = [float(i) for i in range(N)]
    second = [i / 2 for i in range(N)]
    both = [value for pair in zip(first, second, strict=True) for value in pair]
    cases = {
        "edge": {"x": [-1.0, 99.0], "last": [1.0]},
        "end": {"x": [99.0], "last": [1.0]},
        "second": {"x": second},
        ("first", "second"): {"x": both, "n": list(range(N))},
        ("edge", "missing"): {"x": [-1.0, 99.0], "last": [1.0]},
        ("edge", "loop"): expected().events,
    }
    for tags, events in cases.items():
        _, logs = lox.spool(transform(f), tags=tags)()
        assert {key: logs[key].tolist() for key in logs} == events


def test_argnames_and_tags_must_both_match():
    _, logs = lox.spool(f, argnames=["x", "last"], tags="end")()
    assert {key: logs[key].tolist() for key in logs} == {"x": [99.0], "last": [1.0]}
    assert_logs(lox.spool(f, argnames="n", tags="edge")()[1], {})
    assert_logs(lox.spool(f, argnames=(), tags="edge")()[1], {})


def test_argnames_are_compared_to_whole_keys_after_flattening():
    def g():
        lox.log({"a": {"b": 1, "c": 2}}, prefix="p/")

    with pytest.warns(lox.SelectionWarning, match="'(a|c|p/a)' in argnames="):
        assert_logs(lox.spool(g, argnames=["p/a/b", "a", "c", "p/a"])()[1], {"p/a/b": [1]})


def test_the_prefix_is_put_before_keys_of_events_and_counters():
    _, logs = lox.spool(f, prefix="run/", argnames="n")()
    assert_logs(logs, {"run/n": list(range(N))}, steps={"i": {"run/n": list(range(N))}})
    _, logs = lox.spool(f, prefix="run/", argnames="n", reduce="sum")()
    assert logs["run/n"].tolist() == [21]


def test_the_prefix_is_put_before_keys_of_masks_and_counts():
    def g():
        lax.while_loop(lambda i: i < 3, lambda i: lox.log({"i": i})["i"] + 1, 0)

    _, logs = lox.spool(g, prefix="p/", max_iters=2)()
    assert_logs(logs, {"p/i": [0, 1]}, mask={"p/i": [1, 1]}, dropped={"p/i": 1})


def test_what_is_not_selected_is_passed_on():
    (_, inner), outer = lox.spool(lox.spool(f, argnames="n"))()
    journal = expected()
    assert_logs(inner, {"n": list(range(N))}, steps={"i": {"n": list(range(N))}})
    rest = {key: values for key, values in journal.events.items() if key != "n"}
    assert_logs(outer, rest, steps={"i": {key: journal.steps["i"][key] for key in rest}})


@transforms
def test_keep_logs_passes_on_everything(transform):
    journal = expected()
    for options in ({}, {"argnames": "n"}, {"reduce": "mean"}, {"interval": 3}):
        (_, inner), outer = lox.spool(transform(lox.spool(f, keep_logs=True, **options)))()
        assert_logs(outer, journal.events, steps=journal.steps)
        assert ("n" in inner) and (("x" in inner) == ("argnames" not in options))
    _, logs = lox.spool(f, keep_logs=True)()
    assert_logs(logs, journal.events, steps=journal.steps)


@transforms
def test_without_keep_logs_what_is_selected_is_consumed(transform):
    (_, _), outer = lox.spool(transform(lox.spool(f)))()
    assert_logs(outer, {})


@pytest.mark.parametrize("interval", [1, 2, 3, 5, 100])
@transforms
def test_an_interval_keeps_every_kth_event_of_each_key(interval, transform):
    journal = expected()
    _, logs = lox.spool(transform(f), interval=interval)()
    assert_logs(
        logs,
        {key: values[::interval] for key, values in journal.events.items()},
        steps={"i": {key: values[::interval] for key, values in journal.steps["i"].items()}},
    )


@pytest.mark.parametrize("interval", [2, 3, 4])
def test_an_interval_counts_events_across_loops_and_calls(interval):
    def traced(log):
        log({"k": -1})
        call = jax.jit(lambda i: log({"k": 1000 + i}) and None)

        def outer(carry, i):
            log({"k": 100 * i})
            lax.scan(lambda c, j: (log({"k": 100 * i + j + 1}) and c, None), 0, jnp.arange(2))
            call(i)
            return carry, None

        lax.scan(outer, 0, jnp.arange(3))
        log({"k": -2})

    journal = Journal()
    journal.log({"k": -1})
    for i in range(3):
        journal.log({"k": 100 * i})
        for j in range(2):
            journal.log({"k": 100 * i + j + 1})
        journal.log({"k": 1000 + i})
    journal.log({"k": -2})
    for transform in (lambda f: f, jax.jit):
        _, logs = lox.spool(transform(lambda: traced(lox.log)), interval=interval)()
        assert_logs(logs, {"k": journal.events["k"][::interval]})


@pytest.mark.parametrize("loops", [False, True])
def test_an_interval_compiles_a_jitted_step_of_an_eager_loop_a_bounded_number_of_times(loops):
    traced = []

    @jax.jit
    def step(x):
        traced.append(x)
        if loops:
            lax.scan(lambda c, j: (lox.log({"k": x + j}) and c, None), 0, jnp.arange(2))
        return lox.log({"k": x + 2})["k"] - 1

    def many():
        x = jnp.int32(0)
        for _ in range(20):
            x = step(x)

    discharged = []
    with pytest.MonkeyPatch.context() as patch:
        under = _call.under
        patch.setattr(_call, "under", lambda *args: discharged.append(args) or under(*args))
        _, logs = lox.spool(many, interval=3)()
    of_step = [i + k for i in range(20) for k in ((0, 1, 2) if loops else (2,))]
    assert_logs(logs, {"k": of_step[::3]})
    assert len(traced) == 1 and len(discharged) <= (3 if loops else 1)


def test_an_interval_of_a_call_in_which_events_may_not_happen_counts_those_before():
    @jax.jit
    def call(xs):
        def step(carry, x):
            lax.cond(x > 0, lambda: lox.log({"k": x}) and None, lambda: None)
            return carry, None

        lax.scan(step, 0, xs)

    def g(xs):
        for k in range(4):
            lox.log({"k": jnp.int32(-k)})
        call(xs)
        call(xs + 10)
        lox.log({"k": jnp.int32(99)})

    _, logs = lox.spool(g, interval=3, unify=True)(jnp.array([0, 1, 0, 2, 3]))
    events = [0, -1, -2, -3, 1, 2, 3, 10, 11, 10, 12, 13, 99]
    assert logs.valid("k").tolist() == events[::3]


def test_an_interval_of_events_in_alike_branches_counts_the_branch_that_was_taken():
    def g(xs):
        def step(carry, x):
            lax.cond(x > 1, lambda x: lox.log({"x": x}) and None, lambda x: lox.log({"x": -x}) and None, x)
            return carry, None

        lax.scan(step, 0, xs)

    _, logs = lox.spool(g, interval=2)(jnp.array([0.0, 2.0, 1.0, 3.0, 0.5]))
    assert_logs(logs, {"x": [0.0, -1.0, -0.5]})


def test_an_interval_begins_in_branches_that_log_loops_where_it_was_before_them():
    def f(x):
        def loop(x):
            return lax.scan(lambda x, i: (x, lox.log({"i": i})["i"]), x, jnp.arange(1, 8))[0]

        lox.log({"i": 0})
        return lax.cond(x > 0, loop, loop, x)

    _, logs = lox.spool(f, interval=3)(jnp.float32(1))
    assert_logs(logs, {"i": [*range(8)][::3]})


def test_an_interval_goes_on_in_a_jitted_loop_after_an_event_that_may_not_happen():
    loop = jax.jit(lambda x: lax.scan(lambda c, _: (c + 1, lox.log({"x": c})["x"]), x, None, 6)[0])

    def f(p):
        for i in range(4):
            lox.log({"x": jnp.int32(i)})
        lox.log({"x": jnp.int32(4)}, where=p)
        return loop(jnp.int32(5))

    assert lox.spool(f, interval=3)(jnp.bool_(True))[1].valid("x").tolist() == [0, 3, 6, 9]
    assert lox.spool(f, interval=3)(jnp.bool_(False))[1].valid("x").tolist() == [0, 3, 7, 10]


def test_an_interval_of_events_that_may_not_happen_counts_those_that_do():
    def g(xs):
        def step(carry, x):
            lax.cond(x > 1, lambda x: lox.log({"x": x}) and None, lambda x: None, x)
            return carry, None

        lox.log({"x": 100.0})
        lax.scan(step, 0, xs)
        lox.log({"x": 200.0})

    xs = [0.0, 2.0, 3.0, 1.0, 4.0, 5.0]
    happened = [100.0, *[x for x in xs if x > 1], 200.0]
    for interval in (2, 3):
        _, logs = lox.spool(g, interval=interval, unify=True)(jnp.array(xs))
        assert logs.valid("x").tolist() == happened[::interval]


def test_an_interval_keeps_a_key_without_events_in_branches():
    def none(x):
        return lax.scan(lambda x, _: (lox.log({"x": x})["x"], None), x, length=0)[0]

    _, logs = jax.jit(lox.spool(lambda x: lax.cond(x > 1, none, none, x), interval=2))(2.0)
    assert logs["x"].shape == (0,)


@pytest.mark.parametrize("before", range(4))
def test_an_interval_counts_a_key_through_branches_and_on_into_loops(before):
    def g(xs):
        for x in range(before):
            lox.log({"x": 10.0 + x})
        for x in xs:
            lax.cond(x > 0, lambda x: lox.log({"x": x}) and None, lambda x: None, x)
        lax.scan(lambda c, i: (lox.log({"x": 20 + i}) and c, None), 0, jnp.arange(3.0))

    transformed = {interval: jax.jit(lox.spool(g, interval=interval, unify=True)) for interval in (2, 3)}
    for xs in ([1.0, 2.0], [0.0, 2.0]):
        happened = [*(10.0 + x for x in range(before)), *(x for x in xs if x > 0), 20.0, 21.0, 22.0]
        for interval, spooled in transformed.items():
            assert spooled(xs)[1].valid("x").tolist() == happened[::interval]


@pytest.mark.parametrize("before", range(4))
def test_an_interval_has_room_for_all_events_that_may_happen(before):
    def g(xs):
        for x in range(before):
            lox.log({"x": 10.0 + x})
        for x in xs:
            lax.cond(x > 0, lambda x: lox.log({"x": x}) and None, lambda x: None, x)

    for count in range(1, 4):
        xs = [1.0, 2.0, 3.0][:count]
        _, logs = jax.jit(lox.spool(g, interval=3, unify=True))(xs)
        assert logs.valid("x").tolist() == [*(10.0 + x for x in range(before)), *xs][::3]


def test_what_an_interval_leaves_out_is_not_put_together_with_what_it_keeps():
    def g(x, count):
        for _ in range(count):
            lox.log({"x": x})

    for count in range(1, 7):
        program = jax.make_jaxpr(lox.spool(lambda x, count=count: g(x, count), interval=3))(0.0)
        assert str(program).count("concatenate") == (1 if count > 3 else 0)


def test_an_interval_of_a_bounded_loop_keeps_every_kth_iteration():
    def g():
        lax.while_loop(lambda i: i < 5, lambda i: lox.log({"i": i})["i"] + 1, 0)

    _, logs = lox.spool(g, interval=2, max_iters=8)()
    assert logs.valid("i").tolist() == [0, 2, 4]
    assert logs.dropped["i"] == 0


@pytest.mark.parametrize("reduction", REDUCE)
@transforms
def test_a_reduction_makes_the_events_of_each_key_one(reduction, transform):
    journal = expected()
    _, logs = lox.spool(transform(f), reduce=reduction)()
    assert sorted(logs) == sorted(journal.events)
    place = 0 if reduction == "first" else -1
    for key, values in journal.events.items():
        want = np.asarray([REDUCE[reduction](values)])
        if key != "n" and reduction != "count":
            want = want.astype(np.float32)
        if key == "n" and reduction == "mean":
            want = want.astype(np.float32)
        assert_array(logs[key], want, 1e-6)
        assert logs.steps["i"][key].tolist() == [journal.steps["i"][key][place]]
    assert not logs.mask


def test_a_mapping_reduces_only_its_keys():
    journal = expected()
    with pytest.warns(lox.SelectionWarning, match="'absent' in reduce= of lox.spool"):
        _, logs = lox.spool(f, reduce={"x": "max", "absent": "sum"})()
    events = {**journal.events, "x": [99.0]}
    assert_logs(logs, events, steps={"i": {**journal.steps["i"], "x": [N]}})


def test_reductions_of_arrays_are_elementwise():
    def g():
        lax.scan(lambda c, i: (lox.log({"v": jnp.stack([i, -i]), "b": i > 0}) and c, None), 0, jnp.arange(4))

    cases = {"sum": [6, -6], "max": [3, 0], "min": [0, -3], "first": [0, 0], "last": [3, -3]}
    for reduction, value in cases.items():
        _, logs = lox.spool(g, reduce=reduction, argnames="v")()
        assert_logs(logs, {"v": [value]})
    assert_logs(lox.spool(g, reduce="mean")()[1], {"v": [[1.5, -1.5]], "b": [0.75]})
    assert_logs(lox.spool(g, reduce="max", argnames="b")()[1], {"b": [True]})
    assert_logs(lox.spool(g, reduce="count")()[1], {"v": [4], "b": [4]})


def test_a_mean_of_many_half_precision_values_is_summed_with_more_precision():
    def g():
        one = jnp.bfloat16(1)
        lax.scan(lambda c, i: (lox.log({"one": one}) and c, None), 0, jnp.arange(1000))

    _, logs = lox.spool(g, reduce="sum")()
    assert logs["one"].dtype == jnp.bfloat16 and abs(float(logs["one"][0]) - 1000) <= 4
    assert_logs(lox.spool(g, reduce="mean")()[1], {"one": np.ones(1, jnp.bfloat16)})


def test_a_reduction_over_branches_counts_the_branch_that_was_taken():
    def g(xs):
        def step(carry, x):
            lax.cond(x > 1, lambda x: lox.log({"a": x}) and None, lambda x: lox.log({"b": x}) and None, x)
            return carry, None

        lax.scan(step, 0, xs)

    xs = jnp.array([0.0, 2.0, 3.0])
    _, logs = lox.spool(g, reduce="sum")(xs)
    assert {key: logs[key].tolist() for key in logs} == {"a": [5.0], "b": [0.0]}
    _, logs = lox.spool(g, reduce="max")(xs[:1])
    assert logs.mask["a"].tolist() == [False] and np.isnan(logs["a"][0])
    assert bool(logs.mask.get("b", jnp.array([True]))[0]) and logs["b"].tolist() == [0.0]


def loop_without_inputs(n):
    def g(x):
        def body(i, carry):
            lox.log({"x": carry}, i=i)
            return carry * 0.5

        return lax.fori_loop(0, n, body, x)

    return g


def while_steps(n):
    def g(x):
        def body(carry):
            i, x = carry
            lox.log({"x": x}, i=i)
            return i + 1, x * 0.5

        return lax.while_loop(lambda carry: carry[0] < n, body, (0, x))[1]

    return g


@pytest.mark.parametrize("reduction", ["mean", "max", "last", "count"])
@pytest.mark.parametrize("program", [loop_without_inputs, while_steps])
def test_the_memory_of_a_reduced_loop_does_not_grow_with_its_length(program, reduction):
    def memory(n):
        compiled = jax.jit(lox.spool(program(n), reduce=reduction)).lower(jnp.float32(1)).compile()
        analysis = compiled.memory_analysis()
        return analysis.temp_size_in_bytes, analysis.output_size_in_bytes

    assert memory(10) == memory(1_000_000)


def test_the_memory_of_thinned_logs_is_that_of_what_is_kept():
    def memory(n, interval):
        spooled = lox.spool(loop_without_inputs(n), interval=interval)
        analysis = jax.jit(spooled).lower(jnp.float32(1)).compile().memory_analysis()
        return analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    assert memory(1_000_000, 100_000) == memory(100, 10)
    assert memory(100_000, 1) >= 100_000 * 8


def test_a_reduced_loop_of_a_million_steps_runs():
    _, logs = jax.jit(lox.spool(loop_without_inputs(1_000_000), reduce="count"))(jnp.float32(1))
    assert logs["x"].tolist() == [1_000_000]


def test_spool_is_a_decorator_with_and_without_arguments():
    @lox.spool
    def g(x):
        return lox.log({"x": x})["x"]

    @lox.spool(prefix="p/")
    def h(x):
        return lox.log({"x": x})["x"]

    assert_logs(g(jnp.float32(1))[1], {"x": [1.0]})
    assert_logs(h(jnp.float32(1))[1], {"p/x": [1.0]})
    assert g.__name__ == "g" and h.__name__ == "h"


def test_a_method_and_a_callable_object_can_be_spooled():
    class Model:
        scale = 3.0

        @lox.spool
        def method(self, x):
            return lox.log({"x": self.scale * x})["x"]

        def __call__(self, x):
            return lox.log({"call": x})["call"]

    assert_logs(Model().method(jnp.float32(1))[1], {"x": [3.0]})
    assert_logs(lox.spool(Model())(jnp.float32(1))[1], {"call": [1.0]})


def test_spool_passes_any_arguments_and_results_through():
    def g(*args, name, flag=None, call=jnp.sin):
        lox.log({name: call(args[0])})
        return args, name, flag

    out, logs = lox.spool(g)(0.0, "text", None, name="key", call=jnp.cos)
    assert out == ((0.0, "text", None), "key", None)
    assert_logs(logs, {"key": [1.0]})


def test_true_is_no_interval_also_after_1_was_one():
    f = lambda x: lox.log({"x": x})["x"]  # noqa: E731
    lox.spool(f, interval=1)(1.0)
    with pytest.raises(lox.LogValueError, match="got True of type bool"):
        lox.spool(f, interval=True)(1.0)


def test_an_interval_counts_what_is_before_a_call_after_a_branch_in_it():
    @jax.jit
    def g(c, xs):
        lax.scan(lambda n, x: (n, lox.log({"b": x})["b"]), 0, xs)
        lox.log({"a": c})
        lax.cond(c > 0, lambda: lox.log({"a": c + 1})["a"], lambda: c)
        lox.log({"a": c + 2})
        lox.log({"a": c + 3})

    def f(c, xs, count):
        for i in range(count):
            lox.log({"a": jnp.float32(i)})
        g(c, xs)

    for count, c in ((5, 5.0), (4, 5.0), (5, -5.0), (6, 0.0), (0, 1.0)):
        events = [*range(count), c, *([c + 1] if c > 0 else []), c + 2, c + 3]
        for interval in (2, 3):
            _, logs = lox.spool(lambda c, xs, n=count: f(c, xs, n), interval=interval, unify=True)(c, jnp.arange(3.0))
            assert logs.valid("a").tolist() == events[::interval] and logs["b"].tolist() == [0, 1, 2][::interval]


def test_a_counter_that_a_kept_event_needs_is_computed_where_another_is_skipped():
    def f(xs):
        def body(c, x):
            number = (jnp.sin(jnp.arange(20000.0) * x) > 0).sum()
            lox.log({"a": x, "b": x}, number=number)
            lox.log({"b": x}, number=0)
            return c, None

        return lax.scan(body, 0, xs)[0]

    xs = jnp.arange(1.0, 5.0)
    _, every = lox.spool(f)(xs)
    _, logs = lox.spool(f, interval=2)(xs)
    assert logs["a"].tolist() == [1, 3] and logs["b"].tolist() == [1, 2, 3, 4]
    numbers = {key: value.tolist() for key, value in logs.steps["number"].items()}
    assert numbers == {key: value[::2].tolist() for key, value in every.steps["number"].items()}
    assert min(numbers["b"]) > 9000


def much(x, factor):
    """A number that takes so much to compute that a scan leaves it out where only a skipped event needs it."""
    return jnp.sum(jnp.arange(70_000, dtype=jnp.int32).reshape(1, -1, 1) * (x * factor) % 1009, dtype=jnp.int32)


@pytest.mark.parametrize(
    ("around", "interval"), [(lambda f: f, 2), (jax.jit, 3), (jax.vmap, 5)], ids=["eager", "jit", "vmap"]
)
def test_what_only_kept_events_need_is_what_it_is_without_an_interval(around, interval):
    """The timelines keep events in other iterations than each other, and had other numbers of events before."""

    def f(xs):
        lox.log({"a": 0}, step=0)
        lox.log({"a": 0}, step=0)
        lox.log({"d": 0, "e": 0}, step=0)

        def body(c, x):
            lox.log({"a": much(x, 1)}, step=x)
            lox.log({"b": much(x, 2)[None], "c": x})
            lox.log({"b": much(x, 3)[None]})
            lox.log({"d": much(x, 5), "e": much(x, 1) + c}, step=much(x, 7))
            return c + x, much(x, 11)

        return lax.scan(body, jnp.int32(0), xs, reverse=interval == 3)

    xs = jnp.arange(1, 8, dtype=jnp.int32)
    xs = jnp.stack([xs, xs[::-1] + 3]) if around is jax.vmap else xs
    expected, every = lox.spool(around(f))(xs)
    out, logs = lox.spool(around(f), interval=interval)(xs)
    jax.tree.map(np.testing.assert_array_equal, out, expected)
    for key in "abcde":
        np.testing.assert_array_equal(logs[key], every[key][::interval])
    for key in "ade":
        np.testing.assert_array_equal(logs.steps["step"][key], every.steps["step"][key][::interval])


EMPTY = [
    {},
    {"interval": 2},
    {"max_events": 2},
    *({"reduce": how} for how in ("mean", "var", "first", "last", "max", "count", lox.reductions.ewma(0.5))),
    {"reduce": lox.reductions.quantiles((0.1, 0.5), pool=True)},
    {"reduce": lox.reductions.histogram([0, 1])},
    {"reduce": lox.reductions.topk(4, pool=True)},
    {"reduce": "mean", "window": 2},
]


@pytest.mark.parametrize(
    ("options", "of"), list(zip(EMPTY, itertools.cycle(["value", "lanes"]), strict=False)), ids=str
)
def test_what_has_no_elements_has_the_axes_of_what_has_some(of, options):
    """Values without elements, masks without elements, and a batch without elements."""

    def f(xs):
        lox.log({"x": xs[0]}, step=9)

        def body(i, x):
            lox.log({"x": x}, step=i)
            lox.log({"each": x}, where=x > 0, step=i)
            lax.cond(i > 2, lambda: lox.log({"some": x}) and None, lambda: None)
            return i + 1, x

        return lax.scan(body, 0, xs)[1]

    fun = jax.jit(lox.spool(jax.vmap(f) if of == "lanes" else f, **options | {"unify": True}))
    some, none = (jnp.ones((size, 5, 11) if of == "lanes" else (5, size, 11)) for size in (7, 0))
    found = fun(none)[1]
    expected = jax.eval_shape(fun, some)[1]
    assert found.timelines == expected.timelines and jax.tree.structure(found) == jax.tree.structure(expected)
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert got.shape == tuple(0 if size == 7 else size for size in want.shape) and got.dtype == want.dtype


@pytest.mark.parametrize(
    "options",
    [
        {"interval": 3},
        {"max_events": 5, "interval": 3},
        {"reduce": "sum"},
        {"reduce": "sum", "window": 3},
    ],
    ids=str,
)
def test_more_calls_of_a_jitted_step_of_an_eager_loop_compile_no_more_programs(options):
    def discharged(calls):
        @jax.jit
        def step(x):
            lax.scan(lambda c, j: (lox.log({"k": x + j}) and c, None), 0, jnp.arange(2))
            return lox.log({"k": x + 2}, where=x > 3)["k"] - 1

        def many():
            x = jnp.int32(0)
            for _ in range(calls):
                x = step(x)

        found = []
        with pytest.MonkeyPatch.context() as patch:
            under = _call.under
            patch.setattr(_call, "under", lambda *args: found.append(args) or under(*args))
            lox.spool(many, **options)()
        return len(found)

    assert discharged(20) == discharged(10)
