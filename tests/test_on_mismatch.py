"""`on_mismatch="split"`: events of one key that are not alike come back as keys of their own, in their order."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, reject
from jax import lax
from jax.sharding import PartitionSpec

import lox
from lox import testing

XS = jnp.arange(3.0)
KINDS = {
    "dtypes": lambda x: (jnp.float32(x), jnp.int32(x), jnp.float32(x + 1)),
    "shapes": lambda x: (jnp.full(2, x), x, jnp.full(2, x + 1)),
}


def split(fun, **options):
    return lox.spool(fun, on_mismatch="split", **options)


def note(x, key="a", **steps):
    lox.log({key: x}, **steps)
    return x


def values(logs):
    return {key: np.asarray(logs[key]).tolist() for key in logs}


def both(fun, *args, **options):
    """The logs, which are the same when it is compiled."""
    _, logs = split(fun, **options)(*args)
    _, compiled = jax.jit(split(fun, **options))(*args)
    assert logs == compiled
    return logs


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_numbered_in_the_order_of_the_program_and_the_events_of_each_stay_in_theirs(kind):
    def f(x):
        for each in KINDS[kind](x):
            note(each)

    logs = both(f, jnp.float32(1))
    first, second, third = KINDS[kind](jnp.float32(1))
    assert logs == lox.logdict({"a": jnp.stack([first, third]), "a#2": second[None]})
    with pytest.raises(lox.StructureError, match="on_mismatch='split'"):
        lox.spool(f)(jnp.float32(1))


def test_counters_and_batch_axes_tell_events_apart():
    def f(xs):
        jax.vmap(note)(xs)
        note(xs[0])
        note(xs[1], step=1)
        note(xs[2])

    logs = both(f, XS)
    assert values(logs) == {"a": [[0, 1, 2]], "a#2": [0, 2], "a#3": [1]}
    assert logs.steps["step"]["a#3"].tolist() == [1] and set(logs.steps["step"]) == {"a#3"}


def test_keys_that_are_logged_together_stay_so():
    def g(x):
        lox.log({"a": x, "b": 2 * x, "c": jnp.int32(1)}, step=x)

    def f(xs):
        jax.vmap(g)(xs)
        g(xs[1])

    logs = both(f, XS)
    assert logs.timelines == (("a", "b", "c"), ("a#2", "b#2", "c#2"))
    assert logs.steps["step"]["a#2"] is logs.steps["step"]["c#2"]


def test_a_name_that_is_logged_is_not_given_to_another():
    def f(x):
        note(x)
        note(jnp.int32(1))
        note(x, "a#2")
        note(jnp.ones(2))

    assert set(both(f, 1.0)) == {"a", "a#2", "a#3", "a#4"}
    assert both(f, 1.0)["a#2"].dtype == jnp.float32


def test_names_select_and_prefixes_are_put_before_numbers():
    def f(x):
        note(x)
        note(jnp.int32(2))
        note(x, "b")
        note(jnp.int32(3), "b")

    assert values(both(f, 1.0, argnames="a", prefix="p/")) == {"p/a": [1], "p/a#2": [2]}
    assert values(both(f, 1.0, reduce={"a": "last"})) == {"a": [1], "a#2": [2], "b": [1], "b#2": [3]}
    with pytest.warns(lox.SelectionWarning):
        both(f, 1.0, argnames="a#2")
    kept = []

    @lox.spool(on_mismatch="split")
    def outer(x):
        _, logs = split(f, argnames="a", keep_logs=True)(x)
        kept.append(list(logs))

    assert values(outer(1.0)[1]) == {"a": [1], "a#2": [2], "b": [1], "b#2": [3]} and kept == [["a", "a#2"]]


CONTROL = {
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 4)[0],
    "fori_loop": lambda f: lambda x: lax.fori_loop(0, 4, lambda _, c: f(c), x),
    "nested scans": lambda f: CONTROL["scan"](lambda x: lax.scan(lambda c, _: (f(c), None), x, None, 2)[0]),
    "cond": lambda f: lambda x: lax.cond(x > 0, f, lambda y: y, x),
    "cond in scan": lambda f: CONTROL["scan"](CONTROL["cond"](f)),
    "while_loop": lambda f: lambda x: lax.while_loop(lambda c: c < 5, f, x),
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2 * x])).sum(),
}
OPTIONS = {
    "stacked": {"unify": True, "max_iters": 6},
    "interval": {"unify": True, "max_iters": 6, "interval": 3},
    "max_events": {"unify": True, "max_events": 5},
    "mean": {"unify": True, "reduce": "mean"},
    "first": {"unify": True, "reduce": "first"},
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("control", CONTROL)
@pytest.mark.parametrize("around", ["nothing", "vmap", "grad"])
def test_it_is_as_if_each_type_had_a_key(control, options, around):
    """The keys that a person gives by hand to get the logs are those that the numbers make."""

    def program(keys):
        def f(x):
            note(x, keys[0])
            note(jnp.stack([x, x]), keys[1], step=x)
            note(x + 1, keys[2])
            note(jnp.int32(3), keys[3])
            return x + 1

        return CONTROL[control](f)

    def handled(keys):
        fun = split(program(keys), **OPTIONS[options])
        if around == "vmap":
            return jax.vmap(fun)
        return jax.grad(fun, has_aux=True) if around == "grad" and control != "while_loop" else fun

    at = jnp.float32([0.5, -1]) if around == "vmap" else jnp.float32(0.5)
    out, logs = handled("aaaa")(at)
    expected, by_hand = handled("abac")(at)
    assert (out == expected).all()
    renamed = {"a": "a", "a#2": "b", "a#3": "c"}
    assert {renamed[key] for key in logs} == set(by_hand)
    for key, name in renamed.items():
        np.testing.assert_array_equal(logs[key], by_hand[name])
        np.testing.assert_array_equal(logs.mask.get(key), by_hand.mask.get(name))
        np.testing.assert_array_equal(logs.dropped.get(key), by_hand.dropped.get(name))
    np.testing.assert_array_equal(logs.steps["step"]["a#2"], by_hand.steps["step"]["b"])


@pytest.mark.parametrize("options", OPTIONS)
def test_the_order_is_that_of_the_program_also_where_events_are_bounded(options):
    """A while_loop has its events in buffers, which are read last."""

    def f(x):
        x = lax.while_loop(lambda c: c < 3, lambda c: note(c) + 1, x)
        note(jnp.int32(7))
        return x

    logs = both(f, jnp.float32(0), **OPTIONS[options])
    assert logs["a"].dtype == jnp.float32 and logs["a#2"].tolist() == [7] and 7 not in logs["a"]


def test_branches_that_log_other_types_may_each_not_happen():
    def f(x):
        lax.cond(x > 0, lambda: (note(x), None)[1], lambda: (note(jnp.int32(2)), None)[1])

    logs = both(f, jnp.float32(1), unify=True)
    assert sorted(logs[key].dtype.name for key in logs) == ["float32", "int32"]
    assert sorted((logs[key].dtype.name, logs.mask[key].tolist()) for key in logs) == [
        ("float32", [True]),
        ("int32", [False]),
    ]
    with pytest.raises(lox.StructureError, match="branch 0 logs 'a' at"):
        split(f)(jnp.float32(1))


def test_a_map_in_batches_that_do_not_divide_the_length_is_one_key():
    def f(xs):
        note(xs[0])
        lax.map(note, xs, batch_size=2)

    logs = both(f, jnp.arange(1.0, 6.0))
    assert values(logs)["a"] == [1]
    assert logs.valid("a#2").tolist() == [1, 2, 3, 4, 5]


def test_two_calls_in_batches_of_two_sizes_are_one_key():
    def f(xs):
        jax.vmap(note)(xs)
        jax.vmap(lambda x: note(x))(xs[:2] + 5)

    logs = both(f, XS)
    assert list(logs) == ["a"] and logs.valid("a").tolist() == [0, 1, 2, 5, 6]


def test_custom_rules_and_their_derivatives():
    @jax.custom_vjp
    def square(x):
        note(x)
        note(jnp.int32(1))
        return x * x

    square.defvjp(lambda x: (square(x), x), lambda x, bar: (2 * x * bar,))

    def loss(x):
        y, logs = split(lambda x: jax.vmap(square)(jnp.stack([x, 2 * x])).sum() + square(x))(x)
        return y + 10 * logs["a"].sum() + 100 * logs["a#3"].sum(), logs

    gradient, logs = jax.grad(loss, has_aux=True)(3.0)
    assert gradient == 10 * 3 + 2 * 3 + 30 + 100
    assert {key: value.shape for key, value in logs.items()} == {"a": (1, 2), "a#2": (1, 2), "a#3": (1,), "a#4": (1,)}


def test_in_a_shard_map_and_outside_of_it():
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    sharded = {"mesh": mesh, "in_specs": PartitionSpec("i"), "out_specs": PartitionSpec("i")}

    def f(x):
        note(x[0])
        jax.shard_map(lambda x: note(x[0])[None], **sharded)(x)
        note(x[1])

    assert values(both(f, XS[:2])) == {"a": [0, 1], "a#2": [[0, 1]]}


@pytest.mark.parametrize("options", [{}, {"on_mismatch": "split"}, {"reduce": {"a": "count"}, "on_mismatch": "split"}])
def test_a_count_is_of_all_events_and_never_refuses(options):
    def f(xs):
        note(xs[0], step=1)
        jax.vmap(lambda x: note(x, step=2))(xs)
        jax.vmap(lambda x: jax.vmap(note)(jnp.stack([x, x])))(xs)
        lax.scan(lambda c, x: (c, note(jnp.int32(x))), None, xs)
        lax.cond(xs[0] == 0, lambda: (note(xs), None)[1], lambda: None)

    options = {"reduce": "count"} | options
    for fun in (lox.spool(f, unify=True, **options), jax.jit(lox.spool(f, unify=True, **options))):
        _, logs = fun(XS)
        assert values(logs) == {"a": [1 + 3 + 6 + 3 + 1]} and not logs.steps
    of_batch = jax.vmap(lox.spool(f, unify=True, **options))(jnp.stack([XS, XS + 1]))[1]
    assert of_batch["a"].tolist() == [[14], [13]]


def test_a_count_keeps_the_batch_axes_and_counters_that_all_events_have():
    def f(xs):
        jax.vmap(lambda x: note(x, step=2, other=1))(xs)
        jax.vmap(lambda x: note(jnp.int32(x), step=x))(xs)
        jax.vmap(lambda x: lax.cond(x > 0, lambda: (note(x, step=5 * x), None)[1], lambda: None))(xs)

    _, logs = lox.spool(f, unify=True, reduce="count")(XS)
    assert logs["a"].tolist() == [[2, 3, 3]]
    assert logs.steps["step"]["a"].tolist() == [[0, 5, 10]] and "other" not in logs.steps

    def g(xs):
        jax.vmap(lambda x: jax.vmap(lambda y: note(y, step=x))(jnp.stack([x, x])))(xs)
        jax.vmap(lambda x: note(x, step=x))(xs)

    _, logs = lox.spool(g, reduce="count")(XS)
    assert logs["a"].tolist() == [[3, 3, 3]] and not logs.steps


def test_what_is_not_an_option_is_refused():
    with pytest.raises(lox.LogValueError, match="on_mismatch"):
        lox.spool(on_mismatch="keep")


def rekeyed(part, **changes):
    """A program, or a part of it, in which each log call logs one value, under a key that is changed."""
    if isinstance(part, tuple):
        return tuple(rekeyed(each, **changes) for each in part)
    if isinstance(part, testing.Log):
        return dataclasses.replace(part, beside=(), **changes)
    if not dataclasses.is_dataclass(part):
        return part
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    return dataclasses.replace(part, **{name: rekeyed(value, **changes) for name, value in fields.items()})


def happened(logs):
    """All numbers that were logged, by dtype and counters, and by what follows the key where a value is nested."""
    found = {}
    for key in logs:
        nested = next((part for part in ("/twice", "/parts/0", "/parts/1") if part in key), "")
        counters = tuple(sorted(name for name, steps in logs.steps.items() if key in steps))
        numbers = np.asarray(logs.valid(key)).ravel()
        found.setdefault((nested, numbers.dtype.name, counters, "in/" in key), []).append(numbers)
    return {kind: np.sort(np.concatenate(parts).astype(complex).view(float)) for kind, parts in found.items()}


@pytest.mark.generated(8)
@pytest.mark.parametrize("options", [{"max_iters": 3}, {"max_events": 99}], ids=["stacked", "max_events"])
def test_of_a_program_with_one_key_nothing_is_lost(options, examples):
    """Its events are those of the program in which each type has a key."""

    constructs = [name for name in testing.CONSTRUCTS if name != "spool"]  # It would have to split as well.

    @examples
    @given(testing.programs(depth=2, length=2, constructs=constructs))
    def check(program):
        args = np.float32([0.25, -0.5]), np.int32(5)
        logs, expected = (
            jax.jit(split(rekeyed(program, **changes), unify=True, **options))(*args)[1]
            for changes in ({"key": "k", "prefix": ""}, {})
        )
        if not expected:
            reject()
        got, expected = happened(logs), happened(expected)
        assert got.keys() == expected.keys()
        for kind in expected:
            np.testing.assert_allclose(got[kind], expected[kind], rtol=1e-5, atol=1e-6)

    check()


# -- branches under vmap, long eager functions, counters --------------------------------------------------------------


def mixed(x):
    def branch(x):
        lox.log({"a": x, "b": x})
        lox.log({"a": x}, n=1)
        return x

    return lax.cond(x > 0, branch, lambda x: x, x)


def test_branches_that_a_batch_takes_both_may_log_types_that_handlers_tell_apart_or_leave_out():
    batched = jax.vmap(mixed)
    logs = both(batched, XS, unify=True)
    assert set(logs) == {"a", "a#2", "b"} and logs.valid("a#2").tolist() == logs.valid("a").tolist() == [1, 2]
    assert both(batched, XS, reduce="last", window=2)["a#2"].shape == (1, 3)
    assert lox.spool(batched, reduce="count")(XS)[1]["a"].tolist() == [[0, 2, 2]]
    for fun in (
        lox.spool(batched, argnames="b", unify=True),
        lox.spool(lox.keep(batched, argnames="b"), reduce="last"),
    ):
        assert list(fun(XS)[1]) == ["b"]
    with pytest.raises(lox.StructureError, match="on_mismatch='split'"):
        lox.spool(batched, unify=True)(XS)


def test_the_order_of_types_is_that_of_a_long_eager_function():
    def f():
        note(1)
        for number in range(300):
            note(float(number))
            if number % 2:
                note(jnp.zeros(2))

    _, logs = split(f)()
    assert {key: (value.shape, value.dtype.name) for key, value in logs.items()} == {
        "a": ((1,), "int32"),
        "a#2": ((300,), "float32"),
        "a#3": ((150, 2), "float32"),
    }


@pytest.mark.covering(1)
@pytest.mark.parametrize("second", [2.5, np.uint8(2)])
@pytest.mark.parametrize("control", ["Python", "scan", "cond", "while_loop"])
@pytest.mark.parametrize(
    "options", [{}, {"interval": 3}, {"max_events": 9}, {"reduce": "last"}, {"reduce": "first", "window": 2}], ids=str
)
def test_counters_of_one_name_have_one_dtype(second, control, options):
    def body(x):
        note(x, step=1)
        note(x, step=second)
        return x + 1

    def branches(x):
        return lax.cond(x > 0, lambda x: note(x, step=1), lambda x: note(x, step=second), x)

    fun = branches if control == "cond" else body if control == "Python" else CONTROL[control](body)
    bound = {} if "max_events" in options else {"max_iters": 8}
    dtype = jnp.float32 if second == 2.5 else jnp.int32
    for handled in (lox.spool(fun, **options, **bound), jax.jit(lox.spool(fun, **options, **bound))):
        logs = handled(jnp.float32(-1))[1]
        if not (control == "Python" and "interval" in options):  # The second event is not kept.
            assert logs.steps["step"]["a"].dtype == dtype
