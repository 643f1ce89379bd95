"""`lox.log`: what it takes, what it returns, and that it is nothing without a handler."""

import collections
import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dispatch import slow_calls
from reference import assert_array, assert_logs, no_log

import lox

Pair = collections.namedtuple("Pair", ["first", "second"])


def spooled(data, **options):
    return lox.spool(lambda: lox.log(data, **options))()[1]


leaves = {
    "bool": (True, np.array([True])),
    "int": (3, np.array([3], np.int32)),
    "float": (2.5, np.array([2.5], np.float32)),
    "complex": (1 + 2j, np.array([1 + 2j], np.complex64)),
    "np.float32": (np.float32(2.5), np.array([2.5], np.float32)),
    "np.float64": (np.float64(2.5), np.array([2.5], np.float32)),
    "np.bool": (np.bool_(False), np.array([False])),
    "np.int64 array": (np.arange(3), np.array([[0, 1, 2]], np.int32)),
    "np.int8 array": (np.arange(3, dtype=np.int8), np.array([[0, 1, 2]], np.int8)),
    "np.uint16 matrix": (np.ones((2, 1), np.uint16), np.ones((1, 2, 1), np.uint16)),
    "np array without axes": (np.array(4.0), np.array([4.0], np.float32)),
    "np.float16": (np.float16(0.5), np.array([0.5], np.float16)),
    "jax array": (jnp.arange(4.0), np.arange(4.0, dtype=np.float32)[None]),
    "jax bfloat16": (jnp.ones(2, jnp.bfloat16), np.ones((1, 2), jnp.bfloat16)),
    "jax float8": (jnp.ones(2, jnp.float8_e4m3fn), np.ones((1, 2), jnp.float8_e4m3fn)),
    "jax complex": (jnp.array([1j]), np.array([[1j]], np.complex64)),
    "zero-size": (np.zeros((0, 3), np.float32), np.zeros((1, 0, 3), np.float32)),
    "weakly typed": (jnp.asarray(1.0), np.array([1.0], np.float32)),
}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("leaf", leaves)
def test_a_leaf_of_any_array_like_type_becomes_an_array_of_its_dtype(leaf, transform):
    value, expected = leaves[leaf]
    _, logs = lox.spool(transform(lambda: lox.log({"x": value}) and None))()
    assert isinstance(logs["x"], jax.Array)
    assert logs["x"].dtype == expected.dtype and not logs["x"].weak_type
    assert logs["x"].shape == expected.shape
    np.testing.assert_array_equal(np.asarray(logs["x"]), expected)


@pytest.mark.parametrize("make", [jax.random.key, lambda seed: jax.random.key(seed, impl="rbg")], ids=["fry", "rbg"])
def test_a_typed_prng_key_keeps_its_type(make):
    key = make(3)

    def f(keys):
        def step(carry, key):
            lox.log({"key": key})
            return carry, None

        return jax.lax.scan(step, 0, keys)

    keys = jax.random.split(key, 3)
    for logs in (lox.spool(f)(keys)[1], lox.spool(jax.jit(f))(keys)[1]):
        assert logs["key"].dtype == key.dtype and logs["key"].shape == (3,)
        np.testing.assert_array_equal(jax.random.key_data(logs["key"]), jax.random.key_data(keys))


def test_a_typed_prng_key_can_be_batched_masked_and_reduced():
    keys = jax.random.split(jax.random.key(0), 3)

    def f(key, x):
        jax.lax.cond(x > 0, lambda key: lox.log({"key": key}) and None, lambda key: None, key)

    _, logs = lox.spool(jax.vmap(f), unify=True)(keys, jnp.array([1, 0, 1]))
    assert logs["key"].shape == (1, 3)
    np.testing.assert_array_equal(logs.mask["key"], [[True, False, True]])
    np.testing.assert_array_equal(
        jax.random.key_data(logs["key"])[0, [0, 2]], jax.random.key_data(keys)[np.array([0, 2])]
    )
    _, logs = lox.spool(lambda: jax.lax.map(lambda key: lox.log({"key": key}) and 0, keys), reduce="last")()
    np.testing.assert_array_equal(jax.random.key_data(logs["key"][0]), jax.random.key_data(keys[2]))


def test_nested_mappings_flatten_to_keys_with_slashes():
    logs = spooled(
        {"a": {"b": {"c": 1}, "d": 2}, "e": types.MappingProxyType({"f": 3}), "g": [types.MappingProxyType({"h": 4})]}
    )
    assert_logs(logs, {"a/b/c": [1], "a/d": [2], "e/f": [3], "g/0/h": [4]})


def test_pytrees_flatten_to_keys_with_the_path_of_each_leaf():
    data = {"list": [1, {"x": 2}], "pair": Pair(3, (4,)), "deep": {"tuple": (5, 6)}}
    expected = {"list/0": [1], "list/1/x": [2], "pair/first": [3], "pair/second/0": [4], "deep/tuple/0": [5]}
    assert_logs(spooled(data), expected | {"deep/tuple/1": [6]})


def test_a_registered_dataclass_flattens_to_its_fields():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class State:
        weight: float
        bias: float

    assert_logs(spooled({"state": State(1.0, 2.0)}), {"state/weight": [1.0], "state/bias": [2.0]})


def test_an_object_that_knows_its_array_is_logged_as_that():
    class Wrapped:
        def __jax_array__(self):
            return jnp.arange(2)

    assert_logs(spooled({"x": Wrapped()}), {"x": [[0, 1]]})


def test_an_empty_mapping_logs_nothing():
    assert_logs(spooled({}), {})
    assert_logs(spooled({"a": {}, "b": []}), {})


def test_the_prefix_stands_before_every_key():
    assert_logs(spooled({"a": 1, "b": {"c": 2}}, prefix="train/"), {"train/a": [1], "train/b/c": [2]})


def test_steps_are_scalar_counters_of_each_key_of_the_call():
    logs = spooled({"a": 1.0, "b": np.ones(2)}, step=3, epoch=np.int8(1), time=jnp.float32(0.5))
    assert_logs(
        logs,
        {"a": [1.0], "b": [[1.0, 1.0]]},
        steps={
            "step": {"a": [3], "b": [3]},
            "epoch": {"a": np.array([1], np.int8), "b": np.array([1], np.int8)},
            "time": {"a": [0.5], "b": [0.5]},
        },
    )


@pytest.mark.parametrize(
    "tags", ["m", ["m"], ("n", "m"), iter(["m"]), {"m"}], ids=["str", "list", "tuple", "iterator", "set"]
)
def test_tags_are_a_name_or_any_iterable_of_names(tags):
    def f():
        lox.log({"x": 1}, tags=tags)
        lox.log({"y": 1}, tags="other")

    assert sorted(lox.spool(f, tags="m")()[1]) == ["x"]


@pytest.mark.parametrize(
    "handler", [lambda f: f, lox.strip, lambda f: lambda x: lox.spool(f)(x)[0]], ids=["none", "strip", "spool"]
)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_it_returns_the_very_data(handler, transform):
    same = []

    def f(x):
        data = {"x": x, "nested": {"y": 1}}
        same.append(lox.log(data) is data)
        return x

    transform(handler(f))(jnp.float32(1))
    assert same == [True]


def test_without_a_handler_the_arguments_are_not_looked_at():
    class Untouchable:
        def __getattribute__(self, name):
            raise AssertionError("looked at")

    data = Untouchable()
    assert lox.log(data, tags=data, prefix=data, step=data) is data


def program(log):
    """One program, with or without log calls; both have the same source lines."""

    def f(x):
        log({"x": x}, step=0)

        def step(carry, y):
            log({"carry": carry, "y": y}, tags="m")
            carry = jax.lax.cond(y > 1, lambda c: (log({"c": c}), c)[1], lambda c: 2 * c, carry)
            return carry, log({"out": carry * y})["out"]

        carry, ys = jax.lax.scan(step, x, jnp.arange(3.0))

        def body(c):
            log({"c": c})
            return c + 1

        carry = jax.lax.while_loop(lambda c: c < 5, body, carry)
        return jax.checkpoint(lambda c: jnp.sin(log({"c": c})["c"]))(carry) + ys.sum()

    return f


def grad(f):
    return jax.jacfwd(f)


@pytest.mark.optimized
@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, grad, jax.jit, jax.checkpoint], ids=lambda t: t.__name__)
def test_without_a_handler_jaxpr_and_compiled_program_are_those_without_log_calls(transform):
    x = jnp.ones(2) if transform is jax.vmap else jnp.float32(1)
    logging, silent = transform(program(lox.log)), transform(program(no_log))
    assert str(jax.make_jaxpr(logging)(x)) == str(jax.make_jaxpr(silent)(x))
    texts = [jax.jit(f).lower(x).compile().as_text() for f in (logging, silent)]
    assert texts[0] == texts[1]


@pytest.mark.optimized
def test_the_program_without_a_handler_stays_the_same_after_it_was_spooled():
    f = jax.jit(program(lox.log))
    x = jnp.float32(1)
    lox.spool(f, max_iters=3, unify=True)(x)
    silent = jax.jit(program(no_log))
    texts = [g.lower(x).compile().as_text() for g in (f, silent)]
    assert texts[0] == texts[1]
    assert not jax.make_jaxpr(f)(x).effects
    assert f(x) == silent(x)


def test_without_a_handler_a_jitted_function_is_dispatched_as_one_without_log_calls():
    assert slow_calls(jax.jit(program(lox.log)), jnp.float32(1)) == 0


def test_events_of_one_key_from_several_calls_come_in_the_order_of_the_program():
    def f(x):
        lox.log({"x": x, "other": x})
        lox.log({"x": x + 1})
        lox.log({"x": x + 2})
        return x

    assert_logs(lox.spool(f)(jnp.float32(1))[1], {"x": [1.0, 2.0, 3.0], "other": [1.0]})


def test_a_function_may_log_values_that_do_not_depend_on_its_arguments():
    def f(x):
        lox.log({"constant": 3.0})
        return x

    for transform in (lambda f: f, jax.jit):
        assert_logs(lox.spool(transform(f))(jnp.float32(1))[1], {"constant": [3.0]})
    assert_array(lox.spool(jax.vmap(f))(jnp.ones(2))[1]["constant"], [[3.0, 3.0]])


@pytest.mark.parametrize("value", [np.int64(2**31), np.int64([0, -(2**31) - 1]), np.uint64(2**32)])
def test_integers_of_64_bits_that_jax_would_cut_are_an_error(value):
    with pytest.raises(lox.LogDataError, match="does not hold all of its numbers"):
        lox.spool(lambda: lox.log({"x": value}))()
    if np.ndim(value) == 0:
        with pytest.raises(lox.LogDataError, match="for step 'step'"):
            lox.spool(lambda: lox.log({"x": 1}, step=value))()
        logger = lox.loggers.MemoryLogger()
        with pytest.raises(lox.LogDataError, match="logger.log got"):
            logger.log(logger.init(7), {"x": 1}, step=value)


@pytest.mark.parametrize("value", [np.int64(2**31 - 1), np.int64(-(2**31)), np.uint64(2**32 - 1), np.int64([])])
def test_integers_of_64_bits_that_have_room_in_32_are_logged(value):
    _, logs = lox.spool(lambda: lox.log({"x": value}))()
    assert logs["x"].tolist() == [value.tolist()]


def test_a_step_that_is_complex_is_an_error():
    with pytest.raises(lox.LogValueError, match="must be a scalar number, got complex64"):
        lox.spool(lambda: lox.log({"x": 1}, step=1j))()


def test_numbers_of_python_have_the_dtypes_that_jax_numpy_gives_them_in_both_modes():
    data = {"bool": True, "int": 2**31 - 1, "float": 0.1, "complex": 0.1j, "large": -1e300, "tiny": 1e-300}

    def f():
        lox.log(data, step=7, time=0.1)

    for x64 in (False, True):
        with jax.enable_x64(x64):
            _, logs = lox.spool(f)()
            for key, value in data.items():
                with np.errstate(over="ignore"):
                    expected = np.asarray(value).astype(jax.dtypes.canonicalize_dtype(np.asarray(value).dtype))
                assert logs[key].dtype == expected.dtype and logs[key].tolist() == [expected.item()]
            assert logs.steps["step"]["int"].dtype == (np.int64 if x64 else np.int32)
            assert logs.steps["time"]["int"].tolist() == [0.1 if x64 else float(np.float32(0.1))]
            assert lox.spool(lambda: lox.log({"x": -(2**31)}))()[1]["x"].tolist() == [-(2**31)]
    with jax.enable_x64(True):
        assert lox.spool(lambda: lox.log({"x": 2**40}))()[1]["x"].tolist() == [2**40]
