"""Programs at the edges of what checks ask: exactly these codes are found in each."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

FOUR = np.ones(4, np.float32)
TABLE = np.ones((1, 4), np.float32)


def inner_products(weights, x, target):
    return jnp.einsum("bi,bi->b", weights, x) - target


def exponentials_of_no_positive_number(x):
    return jnp.maximum(x, 0) + jnp.log(1 + jnp.exp(jnp.where(x <= 0, x, -x)))


def indices_that_a_comparison_keeps_inside(x):
    i = jnp.arange(12)
    return x[jnp.where(i < 10, i, 0)]


def a_counter_that_falls(x):
    def body(left, row):
        left = left - jnp.int8(1)
        return left, row * left.astype(jnp.float32)

    return jax.lax.scan(body, jnp.int8(100), x)


def a_queue_that_outlives_the_call():
    seen = collections.deque(maxlen=10)

    def f(x):
        seen.append(x)
        return x + 1

    return f


def an_array_of_numpy_without_its_first_axis(x):
    return x + np.squeeze(TABLE)


def a_quotient_that_is_zero_by_zero_in_the_last_iteration(start):
    def body(total, i):
        total = total + i / (total + i)
        return total, total

    return start + jax.lax.scan(body, 0.0, jnp.arange(5.0), reverse=True)[0]


def a_logarithm_behind_a_bound_of_a_quotient(x):
    return jnp.where(x / 4 > 1, jnp.log(x - 4), 0.0).sum()


@jax.jit
def noise(key):
    first, key = jax.random.split(key)
    second, key = jax.random.split(key)
    return jax.random.normal(first) + jax.random.normal(second)


def the_last_key_of_a_jitted_function(key):
    one, other = jax.random.split(key)
    return noise(one) - jax.random.normal(other)


def rows_by_the_lengths_of_columns(x):
    return jax.lax.rsqrt((x**2).sum(axis=1)) * x


def infinity_minus_infinity(x, ok):
    a = jnp.where(ok, x, -jnp.inf) * jnp.abs(x)
    b = jnp.where(ok, x, -jnp.inf)
    return a - b


@pytest.mark.parametrize(
    ("fun", "args", "options", "found"),
    [
        (
            inner_products,
            (np.ones((4, 3)), np.ones((4, 3)), FOUR),
            {"axes": {"x": ("batch", None), "target": ("time",)}},
            ["LOX101"],
        ),
        (exponentials_of_no_positive_number, (FOUR,), {}, []),
        (indices_that_a_comparison_keeps_inside, (np.ones(10),), {}, []),
        (a_counter_that_falls, (np.ones(150),), {}, []),
        (a_queue_that_outlives_the_call(), (np.float32(1),), {}, ["LOX414"]),
        (an_array_of_numpy_without_its_first_axis, (FOUR,), {}, []),
        (a_quotient_that_is_zero_by_zero_in_the_last_iteration, (np.float32(1),), {}, []),
        (a_logarithm_behind_a_bound_of_a_quotient, (np.ones(3),), {"differentiate": "x"}, ["LOX607"]),
        (the_last_key_of_a_jitted_function, (jax.random.key(0),), {}, []),
        (rows_by_the_lengths_of_columns, (np.ones((4, 4)),), {}, ["LOX107"]),
        (infinity_minus_infinity, (np.ones(3), np.ones(3, bool)), {}, ["LOX808"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_audit_finds_these_codes_and_no_others(fun, args, options, found):
    report = lox.audit(fun, **options)(*jax.tree.map(jnp.asarray, args))
    assert [each.code for each in (*report.issues, *report.warnings)] == found
