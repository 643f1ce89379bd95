"""What lox says when something is wrong, word by word: what, where in the user's program, and what to do."""

import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas

import lox
from lox._text import columns

FILE = __file__


def site(function, number=0):
    """The place of a call of `lox.log` in a function: file, line and name."""
    lines, start = inspect.getsourcelines(function)
    calls = [start + offset for offset, line in enumerate(lines) if "lox.log(" in line]
    return f"{FILE}:{calls[number]} ({function.__name__})"


def message(error, call, *args):
    with pytest.raises(error) as raised:
        call(*args)
    return str(raised.value)


class Odd:
    def __repr__(self):
        return "Odd()"


bad_data = {
    "an array": (
        jnp.zeros(2),
        "lox.log takes a mapping from key to arrays, got Array([0., 0.], dtype=float32) of type ArrayImpl, at {}. "
        'Write lox.log({{"name": value}}).',
    ),
    "a number": (
        1.5,
        'lox.log takes a mapping from key to arrays, got 1.5 of type float, at {}. Write lox.log({{"name": value}}).',
    ),
    "no data": (
        None,
        "lox.log takes a mapping from key to arrays, got None of type NoneType, at {}. "
        'Write lox.log({{"name": value}}).',
    ),
    "a key that is no string": ({1: 2.0}, "lox.log takes string keys, got 1 of type int under 'the top', at {}."),
    "a nested key that is no string": (
        {"a": {(1, 2): 2.0}},
        "lox.log takes string keys, got (1, 2) of type tuple under 'a/', at {}.",
    ),
    "None": ({"a": {"b": None}}, "lox.log got None for key 'a/b', at {}. Leave the key out instead."),
    "None in a list": ({"a": [{"b": None}]}, "lox.log got None for key 'a/0/b', at {}. Leave the key out instead."),
    "a string": ({"a": "text"}, "lox.log takes array-likes, got 'text' of type str for key 'a', at {}."),
    "an object": ({"a": Odd()}, "lox.log takes array-likes, got Odd() of type Odd for key 'a', at {}."),
    "an object in a list": (
        {"a": [1.0, Odd()]},
        "lox.log takes array-likes, got Odd() of type Odd for key 'a/1', at {}.",
    ),
    "a set": ({"a": {1}}, "lox.log takes array-likes, got {{1}} of type set for key 'a', at {}."),
    "a long text": (
        {"a": "x" * 100},
        "lox.log takes array-likes, got '" + "x" * 56 + "... of type str for key 'a', at {}.",
    ),
    "an array of objects": (
        {"a": np.array([None])},
        "lox.log got array([None], dtype=object) of type ndarray for key 'a', at {}: ",
    ),
    "an integer of 64 bits": ({"a": 2**40}, "lox.log got 1099511627776 of type int for key 'a', at {}: "),
    "an array of strings": (
        {"a": np.array("b")},
        "lox.log got array('b', dtype='<U1') of type ndarray for key 'a', at {}: ",
    ),
}


@pytest.mark.parametrize("kind", bad_data)
def test_data_that_cannot_be_logged(kind):
    data, expected = bad_data[kind]

    def f():
        lox.log(data)

    found = message(lox.LogDataError, lox.spool(f))
    expected = expected.format(site(f))
    assert found.startswith(expected) if expected.endswith(": ") else found == expected
    assert message(TypeError, lox.spool(jax.jit(f))) == found
    assert message(TypeError, lox.sites(f)) == found


def test_keys_that_clash_after_flattening():
    def f():
        lox.log({"a/b": 1.0, "a": {"b": 2.0}}, prefix="p/")

    expected = f"lox.log got two values for the key 'p/a/b' after flattening, at {site(f)}."
    assert message(lox.LogValueError, lox.spool(f)) == expected
    assert message(ValueError, lox.spool(f)) == expected


@pytest.mark.parametrize(
    ("step", "described"), [(jnp.zeros(3), "float32[3]"), (np.ones((1, 1), np.int32), "int32[1, 1]"), (True, "bool[]")]
)
def test_a_step_that_is_no_scalar_number(step, described):
    def f():
        lox.log({"a": 1.0}, episode=step)

    expected = f"The step 'episode' of lox.log must be a scalar number, got {described}, at {site(f)}."
    assert message(lox.LogValueError, lox.spool(f)) == expected


def test_a_step_that_is_no_array():
    def f():
        lox.log({"a": 1.0}, episode="first")

    expected = f"lox.log takes array-likes, got 'first' of type str for step 'episode', at {site(f)}."
    assert message(lox.LogDataError, lox.spool(f)) == expected


MEANT = {
    "tag": "tags= gives a log its tags",
    "argnames": "argnames= of the handler selects keys, as in lox.spool(f, argnames=...)",
    "every": "interval= of lox.spool and lox.tap takes every k-th event",
    "interval": "interval= of lox.spool and lox.tap takes every k-th event",
    "reduce": "reduce= of lox.spool reduces events",
    "mask": "where= says whether the event happens",
    "when": "where= says whether the event happens",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_counter_that_is_a_misspelt_keyword(name):
    def f(x):
        lox.log({"a": x}, **{name: 1})

    def g(x):
        return lox.log_grad({"a": x}, step=0, **{name: 1})["a"]

    expected = f"lox.log got a counter named {name!r}, at {site(f)}: {MEANT[name]}. Give a counter another name."
    assert message(lox.LogValueError, lox.spool(f), jnp.float32(1)) == expected
    found = message(ValueError, lox.spool(jax.grad(g)), jnp.float32(1))
    assert found.startswith(f"lox.log_grad got a counter named {name!r}, at {FILE}:")
    assert name in lox.log.__doc__ and name in lox.log_grad.__doc__
    assert f(jnp.float32(1)) is None


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["a", 3], "tags must be strings, got 3 of type int, at {}."),
        (3, "tags must be a string or an iterable of strings, got 3 of type int, at {}."),
        (None, "tags must be a string or an iterable of strings, got None of type NoneType, at {}."),
    ],
)
def test_tags_that_are_no_strings(tags, expected):
    def f():
        lox.log({"a": 1.0}, tags=tags)

    assert message(lox.LogDataError, lox.spool(f)) == expected.format(site(f))


@pytest.mark.parametrize("transformation", [lox.spool, lox.strip, lox.keep], ids=lambda t: t.__name__)
def test_selections_that_are_no_names(transformation):
    f = lambda: None  # noqa: E731
    assert message(lox.LogDataError, lambda: transformation(f, argnames=3)) == (
        "argnames must be a string or an iterable of strings, got 3 of type int."
    )
    assert message(lox.LogDataError, lambda: transformation(f, argnames=["a", None])) == (
        "argnames must be strings, got None of type NoneType."
    )
    assert message(lox.LogDataError, lambda: transformation(tags=[b"a"])) == (
        "tags must be strings, got b'a' of type bytes."
    )


@pytest.mark.parametrize("transformation", [lox.spool, lox.strip, lox.keep], ids=lambda t: t.__name__)
def test_what_is_no_function(transformation):
    assert message(TypeError, lambda: transformation(3)) == "lox transforms functions, got 3 of type int."


@pytest.mark.parametrize("reduce", ["median", {"a": "median"}], ids=str)
def test_an_unknown_reduction(reduce):
    assert message(lox.LogValueError, lambda: lox.spool(lambda: None, reduce=reduce)) == (
        "There is no reduction 'median': reduce= takes one of 'mean', 'sum', 'std', 'var', 'min', 'max', 'first', "
        "'last', 'count', an object of lox.reductions, or a mapping to them."
    )


@pytest.mark.parametrize("name", ["interval", "max_iters"])
@pytest.mark.parametrize(
    ("value", "described"),
    [(0, "0 of type int"), (-1, "-1 of type int"), (1.5, "1.5 of type float"), (True, "True of type bool")],
)
def test_an_interval_or_bound_that_is_no_positive_integer(name, value, described):
    assert message(lox.LogValueError, lambda: lox.spool(lambda: None, **{name: value})) == (
        f"{name} must be a positive integer, got {described}."
    )


def test_an_unknown_way_with_while_loops():
    assert message(lox.LogValueError, lambda: lox.spool(lambda: None, on_while="ignore")) == (
        "on_while must be one of 'error', 'warn', got 'ignore'."
    )


@pytest.mark.parametrize("interval", [1, 2])
def test_a_reduction_with_an_interval(interval):
    assert message(lox.LogValueError, lambda: lox.spool(lambda: None, reduce="mean", interval=interval)) == (
        "lox.spool takes reduce= or interval=, not both."
    )


def test_a_prefix_that_is_no_string():
    assert message(lox.LogValueError, lambda: lox.spool(lambda: None, prefix=3)) == (
        "prefix must be a string, got 3 of type int."
    )


def test_a_prefix_of_a_log_that_is_no_string():
    def f():
        lox.log({"a": 1.0}, prefix=3)

    assert message(lox.LogDataError, lox.spool(f)) == f"prefix must be a string, got 3 of type int, at {site(f)}."


def test_values_of_points_that_are_none():
    def program(x):
        return jax.lax.scan(lambda x, _: (2 * x, None), x, length=2)[0]

    def what(point, values):
        return given

    place = f"{FILE}:{inspect.getsourcelines(what)[1]} (what)"
    for given, expected in [
        (3, "what= of lox.watch must return a mapping or None, got 3 of type int for 'scan', at {}."),
        ({"a": None}, "lox.watch got None for key 'a', at {}. Leave the key out instead."),
        ({"a": "text"}, "lox.watch takes array-likes, got 'text' of type str for key 'scan/a', at {}."),
    ]:
        found = message(lox.LogDataError, lox.spool(lox.watch(program, at="scan", what=what)), 1.0)
        assert found == expected.format(place)


def test_a_reduction_of_what_is_no_number():
    def f(key):
        lox.log({"a": key})

    for reduction in ("mean", "sum", "min", "max"):
        assert message(lox.LogValueError, lox.spool(f, reduce=reduction), jax.random.key(0)) == (
            f"reduce='{reduction}' takes numbers, got key<fry> logged at {site(f)}."
        )


def large(x):
    lox.log({"a": x, "b": x})


def small(x):
    lox.log({"a": x})
    lox.log({"a": x, "c": x})


def twice(x):
    lox.log({"b": x})


MISMATCH = "The branches of a cond or switch log different keys, so that some events may not happen:\n"
MENDS = "give one of them another key or a prefix, or have lox.spool return them apart, with on_mismatch='split'."
WAYS = (
    "\nLog the same keys in every branch, use unify=True to get these events with a mask, or leave the keys out with "
    "argnames= or tags=."
)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_branches_that_log_different_keys(transform):
    def f(x):
        lax.cond(x > 1, large, small, x)

    # Branch 0 of a cond is the one for False.
    expected = (
        f"{MISMATCH}  branch 0 logs 'a' (2 events) at {site(small)}, 'c' at {site(small, 1)}\n"
        f"  branch 1 logs 'a' at {site(large)}, 'b' at {site(large)}{WAYS}"
    )
    assert message(lox.StructureError, lox.spool(transform(f)), jnp.float32(1)) == expected
    assert message(ValueError, lox.spool(transform(jax.vmap(f))), jnp.ones(2)) == expected
    assert message(lox.StructureError, jax.vmap(lox.spool(transform(f))), jnp.ones(2)) == expected


def test_a_switch_with_a_branch_that_logs_nothing():
    def f(i, x):
        lax.switch(i, [lambda x: None, twice, twice], x)

    expected = (
        f"{MISMATCH}  branch 0 logs nothing\n  branch 1 logs 'b' at {site(twice)}\n  branch 2 logs 'b' at "
        f"{site(twice)}{WAYS}"
    )
    assert message(lox.StructureError, lox.spool(f), jnp.int32(1), jnp.float32(1)) == expected


def test_branches_that_log_one_key_with_different_shapes():
    def wide(x):
        lox.log({"a": jnp.stack([x, x])}, i=1)

    def narrow(x):
        lox.log({"a": x}, i=1)

    def f(x):
        lax.cond(x > 1, wide, narrow, x)

    expected = (
        f"The branches of a cond or switch log the key 'a' differently: as float32[] with steps ['i'] at "
        f"{site(narrow)}, and as float32[2] with steps ['i'] at {site(wide)}. Events of one key must be alike: "
        f"{MENDS}"
    )
    assert message(lox.StructureError, lox.spool(f), jnp.float32(1)) == expected
    assert message(lox.StructureError, lox.spool(f, unify=True), jnp.float32(1)) == expected


def test_branches_that_log_one_key_with_different_counters():
    def counted(x):
        lox.log({"a": x}, i=1)

    def uncounted(x):
        lox.log({"a": x})

    def f(x):
        lax.cond(x > 1, counted, uncounted, x)

    expected = (
        f"The branches of a cond or switch log the key 'a' differently: as float32[] with steps [] at "
        f"{site(uncounted)}, and as float32[] with steps ['i'] at {site(counted)}. Events of one key must be alike: "
        f"{MENDS}"
    )
    assert message(lox.StructureError, lox.spool(f, unify=True), jnp.float32(1)) == expected


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [
        (1.0, np.ones(2, np.float32), ("float32[]", "float32[2]")),
        (1.0, 1, ("float32[]", "int32[]")),
        (np.ones((2, 3), np.int8), np.ones((3, 2), np.int8), ("int8[2, 3]", "int8[3, 2]")),
    ],
    ids=["shape", "dtype", "order of axes"],
)
def test_one_key_with_two_shapes_or_dtypes(first, second, kinds):
    def f():
        lox.log({"a": first})
        lax.scan(lambda c, _: (lox.log({"a": second}) and c, None), 0, None, length=2)

    with pytest.raises(lox.StructureError) as raised:
        lox.spool(f)()
    here, there = site(f), site(f, 1).replace("(f)", "(<lambda>)")
    assert str(raised.value) == (
        f"The key 'a' is logged as {kinds[0]} at {here} and as {kinds[1]} at {there}. Events of one key must be alike: "
        f"{MENDS}"
    )
    with pytest.raises(lox.StructureError) as raised:
        lox.spool(f, reduce="last")()
    assert str(raised.value) == (
        f"The key 'a' is logged as {kinds[0]} with steps [] at {here} and as {kinds[1]} with steps [] at {there}. "
        f"Events of one key must be alike: {MENDS}"
    )


def test_one_key_with_different_counters():
    def f():
        lox.log({"a": 1.0}, i=1, j=2)
        lox.log({"a": 1.0})

    expected = (
        f"The key 'a' is logged with the steps i, j at {site(f)} and with no steps at {site(f, 1)}. Events of one key "
        f"must have the same counters: {MENDS}"
    )
    assert message(lox.StructureError, lox.spool(f)) == expected


def test_the_error_is_about_the_key_that_differs():
    def f():
        lox.log({"a": 1.0, "b": 1.0})
        lox.log({"a": 2.0, "b": jnp.ones(2)})

    expected = (
        f"The key 'b' is logged as float32[] at {site(f)} and as float32[2] at {site(f, 1)}. Events of one key must be "
        f"alike: {MENDS}"
    )
    assert message(lox.StructureError, lox.spool(f)) == expected


def test_one_key_in_a_batch_and_outside_of_it():
    def f(xs):
        lox.log({"a": xs[0]})
        jax.vmap(inside)(xs)

    expected = (
        f"The key 'a' is logged as float32[] at {site(f)} and as float32[] in a batch of 3 at {site(inside)}. "
        f"Events of one key must be alike: {MENDS}"
    )
    assert message(lox.StructureError, lox.spool(f), jnp.ones(3)) == expected


def test_one_line_that_logs_one_key_with_two_types():
    def f(xs):
        for each in (xs, jnp.int32(1)):
            lox.log({"a": each})

    expected = (
        f"The key 'a' is logged as float32[2] at {site(f)} and as int32[] at {site(f)}. Events of one key must be "
        f"alike: {MENDS}"
    )
    assert message(lox.StructureError, lox.spool(f), jnp.ones(2)) == expected


@pytest.mark.parametrize("transform", [jax.jit, jax.grad, lambda f: lambda x: jax.vmap(f)(x[None])])
def test_a_key_with_a_traced_value_in_its_name(transform):
    seen = []

    def f(x):
        seen.append(str(x))
        lox.log({"a": {f"layer{x}": 1.0}})
        return x

    found = message(lox.LogDataError, lox.spool(transform(f)), jnp.float32(1))
    assert found == (
        f"lox.log got the key {f'a/layer{seen[-1]}'!r}, which has the text of a traced value in it, at {site(f)}. "
        f"Keys are part of the program, and values are known when it runs: log it as a counter, as step=i."
    )


def test_a_key_that_speaks_of_tracers():
    assert list(lox.spool(lambda: lox.log({"Tracer/bullet": 1.0}))()[1]) == ["Tracer/bullet"]


def test_a_logger_as_a_callback():
    assert message(lox.LogValueError, lox.tap, inside, lox.loggers.MemoryLogger()) == (
        "The callback of lox.tap must be callable, got MemoryLogger(). A logger has a tap of its own: "
        "logger.tap(f, run)."
    )


def test_valid_events_of_traced_logs():
    def f(x):
        return lox.spool(inside)(x)[1].valid("a")

    assert message(lox.LogValueError, jax.jit(f), 1.0) == (
        "valid('a') inside of a function that JAX traces: how many events happened is known when it has run. Call it "
        "on the logs that the function returns, or use logs.mask with jnp.where."
    )


def inside(x):
    lox.log({"a": x})


def body(carry):
    i, x = carry
    lox.log({"i": i, "x": x})
    return i + 1, x


def looped(x):
    return lax.while_loop(lambda carry: carry[0] < 3, body, (0, x))[1]


UNBOUNDED = (
    "lox.spool cannot return logs from a while_loop (or a fori_loop whose bounds are not static), of which the number "
    "of iterations is not known: {}. Give a bound with max_events= or max_iters=, reduce them with reduce=, leave them "
    "out with on_while='warn' or with argnames= or tags=, or log in a scan or a fori_loop with static bounds."
)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_a_log_in_a_while_loop(transform):
    x = jnp.ones(2)
    where = f"'i' at {site(body)}, 'x' at {site(body)}"
    assert message(lox.SpoolError, lox.spool(transform(looped)), x) == UNBOUNDED.format(where)
    assert message(ValueError, lox.spool(transform(looped), argnames="i"), x) == UNBOUNDED.format(
        f"'i' at {site(body)}"
    )


def test_a_log_in_the_condition_of_a_while_loop():
    def condition(x):
        lox.log({"c": x})
        return x < 3

    found = message(lox.SpoolError, lox.spool(lambda x: lax.while_loop(condition, lambda x: x + 1, x)), jnp.float32(1))
    assert found == UNBOUNDED.format(f"'c' at {site(condition)}")


def test_a_warning_about_a_log_in_a_while_loop_is_given_once_and_at_the_log():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            lox.spool(looped, on_while="warn", argnames="x")(jnp.float32(1))
    assert [str(warning.message) for warning in caught] == [
        "Logs were left out. " + UNBOUNDED.format(f"'x' at {site(body)}")
    ]
    assert caught[0].category is lox.SpoolWarning
    assert f"{caught[0].filename}:{caught[0].lineno} (body)" == site(body)


def kernel(x_ref, o_ref):
    lox.log({"x": x_ref[...]})
    o_ref[...] = 2 * x_ref[...]


def in_a_kernel(x):
    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


@pytest.mark.parametrize("handler", [lox.spool, lambda f: lox.spool(lox.keep(f))], ids=["spool", "spool of keep"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_log_under_a_primitive_without_a_rule(transform, handler):
    expected = (
        f"lox has no rule for the primitive 'pallas_call', inside which lox.log is called at {site(kernel)}. Log "
        f"outside of it, or run the function without this log: lox.strip(f)."
    )
    spooled = lox.spool(handler(transform(in_a_kernel)))
    assert message(lox.UnsupportedPrimitiveError, spooled, jnp.ones(2)) == expected
    assert message(NotImplementedError, spooled, jnp.ones(2)) == expected
    np.testing.assert_array_equal(in_a_kernel(jnp.ones(2)), [2.0, 2.0])


def test_the_way_out_of_a_primitive_without_a_rule_works():
    for f in (lox.strip(in_a_kernel), lox.spool(lambda x: lox.strip(in_a_kernel)(x))):
        out = f(jnp.ones(2))
        np.testing.assert_array_equal(out[0] if isinstance(out, tuple) else out, [2.0, 2.0])


def test_every_error_is_one_of_lox_and_a_builtin_one():
    kinds = {
        lox.LogDataError: TypeError,
        lox.LogValueError: ValueError,
        lox.SpoolError: ValueError,
        lox.StructureError: ValueError,
        lox.UnsupportedPrimitiveError: NotImplementedError,
    }
    for error, builtin in kinds.items():
        assert issubclass(error, lox.LoxError) and issubclass(error, builtin)
    for warning in (lox.SelectionWarning, lox.SpoolWarning, lox.TapWarning):
        assert issubclass(warning, UserWarning)


def test_an_error_names_the_users_line_also_through_a_decorated_function():
    @lox.spool
    @lox.strip(argnames="other")
    def f():
        lox.log(3)

    assert f"{FILE}:{inspect.getsourcelines(f)[1] + 3} (f)" in message(lox.LogDataError, f)


def test_a_log_of_nothing_needs_no_rule_of_the_primitive_that_it_is_under():
    def nothing(x_ref, o_ref):
        lox.log({"x": {}})
        o_ref[...] = 2 * x_ref[...]

    def f(x):
        return pallas.pallas_call(nothing, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)

    out, logs = lox.spool(f)(jnp.ones(2))
    np.testing.assert_array_equal(out, [2.0, 2.0])
    assert not logs


def test_columns_are_as_wide_as_their_fields_up_to_a_limit():
    rows = [("a", "b"), ("cde", "f")]
    assert columns(rows) == ["a    b", "cde  f"]
    assert columns(rows, widest=2) == ["a   b", "cde  f"]


def test_values_of_up_to_sixty_characters_are_shown_whole():
    for length, shown in ((58, "'" + 58 * "x" + "'"), (59, "'" + 56 * "x" + "...")):

        def f(length=length):
            lox.log({"a": "x" * length})

        expected = f"lox.log takes array-likes, got {shown} of type str for key 'a', at {site(f)}."
        assert message(lox.LogDataError, lox.spool(f)) == expected


def test_numbers_at_their_limits_are_taken():
    for options in ({"interval": 2**31 - 1}, {"max_events": np.int64(1)}, {"reduce": "sum", "window": np.uint8(1)}):
        assert lox.spool(inside, **options)(1.0)[1]["a"].tolist() == [1.0]
    for name in ("interval", "max_events", "max_iters"):
        assert message(lox.LogValueError, lambda name=name: lox.spool(inside, **{name: 2**31})) == (
            f"{name} must be less than 2**31, got 2147483648."
        )
    assert message(lox.LogValueError, lambda: lox.context(where=1)).startswith(
        "lox.context takes no where=, which is of a log call, at "
    )


def test_branches_of_which_one_logs_a_key_with_other_tags_are_told_with_all_their_events():
    def tagged(x):
        lox.log({"a": x}, tags="t")
        lax.fori_loop(0, 3, lambda i, x: lox.log({"a": x, "b": x})["a"], x)

    def untagged(x):
        lox.log({"a": x})

    def f(x):
        lax.cond(x > 1, tagged, untagged, x)

    lines, start = inspect.getsourcelines(tagged)
    expected = (
        f"{MISMATCH}  branch 0 logs 'a' at {site(untagged)}\n"
        f"  branch 1 logs 'a' (4 events) at {site(tagged)}, 'b' (3 events) at {FILE}:{start + 2} (<lambda>){WAYS}"
    )
    for transform in (lambda f: f, jax.jit):
        assert message(lox.StructureError, lox.spool(transform(f)), jnp.float32(1)) == expected
