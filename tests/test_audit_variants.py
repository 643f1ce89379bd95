"""Small variants of mistakes, and near misses, each with exactly the findings that are due: codes, names and bounds."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import f32, flags, i32
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import lox


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def of(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)


class Options(dict):
    """The keywords of an audit."""


def check(*cases):
    """An audit of each function finds what stands before it, and nothing else.

    A finding is a code and words of its message in their order, with " ... " between those that do not follow each
    other; several are in a list, and "" is none.
    """
    differ = []
    for expected, fun, *args in cases:
        options = args.pop() if args and isinstance(args[-1], Options) else {}
        found = [f"{each.code} {each.message}" for each in lox.audit(fun, **options)(*args).found]
        wanted = [expected] if isinstance(expected, str) else expected
        wanted = [each for each in wanted if each]
        if len(found) != len(wanted) or not all(map(says, sorted(found), sorted(wanted))):
            differ.append((fun.__code__.co_firstlineno, wanted, found))
    assert not differ


def says(text, words):
    """Say whether a text begins with the first of some words, and has the others after it in their order."""
    first, *others = words.split(" ... ")
    if not text.startswith(first):
        return False
    place = len(first)
    for each in others:
        place = text.find(each, place)
        if place < 0:
            return False
        place += len(each)
    return True


U8, I8, X4, N4 = of(jnp.uint8, 4), of(jnp.int8, 4), f32(4), i32(4)


def _falls(x):
    def step(count, row):
        return count - jnp.where(row > 0, jnp.int8(1), jnp.int8(2)), row * count

    return jax.lax.scan(step, jnp.int8(0), x)[1]


def test_integers_that_wrap_around_are_told_from_those_that_fit_by_one():
    def count(add, start, length, dtype=jnp.int8):
        def fun(x):
            return jax.lax.scan(lambda c, row: (add(c), row * c), dtype(start), x)[1]

        return fun, f32(length)

    check(
        ("LOX801 'sub' of uint8 in [0, 127] and [1, 128] is in [-128, 126]", lambda x: x // 2 - (x // 2 + 1), U8),
        ("", lambda x, y: jnp.maximum(x, y) - jnp.minimum(x, y), U8, U8),
        ("LOX801 'sub' of uint8", lambda x, y: jnp.minimum(x, y) - jnp.maximum(x, y), U8, U8),
        ("", lambda x, y: jnp.where(x >= y, x - y, y - x), U8, U8),
        ("LOX801 'sub' of uint8", lambda x, y: jnp.where(x == y, x - y, 0), U8, U8),
        ("LOX801 'integer_pow' of uint8 in [0, 255] is in [0, 65025]", lambda x: x**2, U8),
        ("", lambda x: x * x, U8),
        ("LOX801 'mul' of uint8 in [2, 2] and [0, 255] is in [0, 510]", lambda x: 2 * x, U8),
        ("", lambda x: x * 1 + 1, U8),
        ("LOX801 'add' of uint8 in [0, 255] and [2, 2] is in [2, 257]", lambda x: x + 2, U8),
        ("", lambda x: jnp.cumsum(x.astype(jnp.int8), axis=1), flags(128, 127)),
        (
            "LOX801 'cumsum' of int8 in [0, 1] is in [0, 128]",
            lambda x: jnp.cumsum(x.astype(jnp.int8), 0),
            flags(128, 9),
        ),
        ("LOX801 128 numbers are added up in int8, which ends at -128 and 127", jnp.cumsum, of(jnp.int8, 128)),
        ("", lambda x: jnp.cumsum(x), of(jnp.int8, 127)),
        ("LOX801 128 products", lambda x, w: x @ w, of(jnp.int8, 2, 128), of(jnp.int8, 128, 3)),
        ("LOX801 Products of up to 16384", lambda x, w: x @ w, of(jnp.int8, 2, 2), of(jnp.int8, 2, 2)),
        ("", lambda x, w: x.astype(jnp.int8) @ w, flags(128, 127), of(jnp.int8, 127, 128)),
        ("", lambda x: jnp.cumsum(jnp.arange(100_000)) + x, i32()),
        ("", lambda x: jnp.arange(5, dtype=jnp.uint32) * jnp.uint32(2654435761) + x, of(jnp.uint32)),
        ("LOX801 'add' of uint32", lambda x: x * (jnp.arange(5, dtype=jnp.uint32) + jnp.uint32(2**32 - 1)), i32()),
    )
    check(
        ("", *count(lambda c: c + jnp.int8(1), 0, 127)),
        ("LOX801 A carry of int8 gets to 128 in 128 iterations", *count(lambda c: jnp.int8(1) + c, 0, 128)),
        ("", *count(lambda c: c + jnp.int8(3), 100, 9)),
        ("LOX801 A carry of int8 gets to 130 in 10 iterations", *count(lambda c: c + jnp.int8(3), 100, 10)),
        ("", *count(lambda c: c - jnp.int8(2), 0, 64)),
        ("LOX801 A carry of int8 gets to -130 in 65 iterations", *count(lambda c: c + jnp.int8(-2), 0, 65)),
        ("", *count(lambda c: jnp.int8(1) - c, 0, 1000)),
        ("", _falls, f32(64)),
        ("LOX801 A carry of int8 gets to -130 in 65 iterations", _falls, f32(65)),
        ("", *count(lambda c: c + jnp.uint8(1), 0, 255, jnp.uint8)),
        ("LOX801 A carry of uint8 gets to 256", *count(lambda c: c + jnp.uint8(1), 0, 256, jnp.uint8)),
    )


def test_conversions_between_integers_and_floats_are_told_from_those_that_keep_the_numbers():
    def write(how, value):
        return lambda x: getattr(jnp.zeros(5, int).at[1], how)(value(x))

    check(
        ("", lambda x: jnp.clip(x, -128.9, 5).astype(jnp.int8), X4),
        (
            "LOX802 float32 in [-129, 5] becomes int8, which ends at -128 and 127",
            lambda x: jnp.int8(jnp.clip(x, -129, 5)),
            X4,
        ),
        ("", lambda x: (x % 257 - 1).astype(jnp.uint8), N4),
        (
            "LOX802 int32 in [0, 256] becomes uint8, which ends at 0 and 255",
            lambda x: (x % 258 - 1).astype(jnp.uint8),
            N4,
        ),
        ("", lambda x: x + jnp.arange(128).astype(jnp.int8), of(jnp.int8, 128)),
        ("LOX802 int32 in [0, 128] becomes int8", lambda x: x * jnp.arange(129).astype(jnp.int8), f32(129)),
        ("", lambda x: x * jnp.arange(2049).astype(jnp.float16), of(jnp.float16, 2049)),
        (
            "LOX803 Integers in [0, 2049] become float16 ... only up to 2048",
            lambda x: x * jnp.arange(2050).astype(jnp.float16),
            of(jnp.float16, 2050),
        ),
        (
            "LOX803 Integers in [-299, 0] become bfloat16 ... only up to 256",
            lambda x: x * (jnp.arange(300) - 299).astype(jnp.bfloat16),
            of(jnp.bfloat16, 300),
        ),
        ("", lambda x: x.astype(jnp.int32).astype(jnp.bfloat16), of(jnp.int8, 4)),
        ("", lambda x: jnp.clip(x, 0, 255) ** 2, of(jnp.float16, 4)),
        (
            "LOX804 'integer_pow' of numbers in [0, 256] is in [0, 6.554e+04], and the largest float16 is 6.55e+04",
            lambda x: jnp.clip(x, 0, 256) ** 2,
            of(jnp.float16, 4),
        ),
        ("", lambda x: jnp.exp(jnp.clip(x, -20, 11)), of(jnp.float16, 4)),
        ("LOX804 'exp' of numbers in [-20, 12]", lambda x: jnp.exp(jnp.clip(x, -20, 12)), of(jnp.float16, 4)),
        ("", lambda x: jnp.exp2(jnp.clip(x, 0, 15)), of(jnp.float16, 4)),
        ("LOX804 'exp2' of numbers in [0, 16]", lambda x: jnp.exp2(jnp.clip(x, 0, 16)), of(jnp.float16, 4)),
    )
    check(
        (
            "LOX822 x[0] of shape () is of float32, and is written to an array of int32",
            write("set", lambda x: x[0]),
            X4,
        ),
        ("LOX822", write("add", lambda x: jnp.float32(0.5)), X4),
        ("LOX822", write("max", lambda x: jnp.where(x[0] > 0, 1.0, x[1])), X4),
        ("LOX822", write("min", lambda x: jnp.floor(x[0]) / 2), X4),
        ("", write("set", lambda x: 2.0 * jnp.round(x[0]) + jnp.ceil(x[1])), X4),
        ("", write("set", lambda x: jnp.where(x[0] > 0, 1.0, 2.0)), X4),
        ("", write("add", lambda x: jnp.float32(x[0] > 0)), X4),
        ("LOX822", lambda x: jnp.zeros(5, int).at[1:3].set(x[:2]), X4),
        ("", lambda x: jnp.zeros(5, int).at[1:3].set(jnp.sign(x[:2])), X4),
    )


def test_running_sums_are_long_from_a_number_of_terms_on():
    def run(step, length, dtype=jnp.bfloat16, start=0):
        return lambda x: jax.lax.scan(lambda c, row: (step(c, row), None), dtype(start), x)[0], of(dtype, length)

    half = of(jnp.bfloat16, 2041)
    check(
        ("", *run(lambda c, x: c + x, 255)),
        (
            "LOX805 A carry of a scan that adds up 256 numbers is in bfloat16: what is less than 1/256",
            *run(lambda c, x: x + c, 256),
        ),
        ("LOX805 ... 1/2048 of the sum is lost", *run(lambda c, x: c - x, 300, jnp.float16)),
        ("", *run(lambda c, x: x - c, 300)),
        ("LOX805", *run(lambda c, x: jnp.where(x > 0, 0, c + x), 300)),
        ("", *run(lambda c, x: c * x, 300)),
        (
            "LOX805 A cumsum of 256 numbers ... neighbours become equal",
            lambda x: jnp.cumsum(x, axis=1),
            of(jnp.bfloat16, 3, 256),
        ),
        ("", lambda x: jnp.cumsum(x, axis=0), of(jnp.bfloat16, 3, 256)),
        ("", lambda x: jax.lax.fori_loop(0, 2**24 - 1, lambda i, c: c + x, 0.0), f32()),
        (
            "LOX805 A carry of a scan that adds up 16777216 numbers is in float32",
            lambda x: jax.lax.fori_loop(0, 2**24, lambda i, c: c + x, 0.0),
            f32(),
        ),
        (
            "LOX805 A scatter-add of 2041 numbers into 8 places is in bfloat16, and 256 or more come to one",
            lambda x, i: jnp.zeros(8, x.dtype).at[i].add(x),
            half,
            i32(2041),
        ),
        ("", lambda x, i: jnp.zeros(8, x.dtype).at[i].add(x), of(jnp.bfloat16, 2040), i32(2040)),
        (
            "LOX805 A scatter-add of 256 numbers into 1 place is",
            lambda x, i: jnp.zeros(1, x.dtype).at[i].add(x),
            of(jnp.bfloat16, 256),
            i32(256),
        ),
        (
            "LOX805 A sum over windows of 256 numbers",
            lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (16, 16), (16, 16), "VALID"),
            of(jnp.bfloat16, 32, 32),
        ),
        (
            "",
            lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (15, 17), (15, 17), "VALID"),
            of(jnp.bfloat16, 32, 32),
        ),
    )


def test_exponentials_are_bounded_in_each_way_to_write_a_comparison():
    def power(exponent):
        return lambda x: jnp.log1p(jnp.exp(exponent(x)))

    bad = "LOX811 log(1 + exp(x)) is infinite where x of float32 is above 88.72"
    check(
        ("", power(lambda x: jnp.where(x < 0, x, -x)), X4),
        ("", power(lambda x: jnp.where(x > 0, -x, x)), X4),
        ("", power(lambda x: jnp.where(0 > x, x, -x)), X4),
        ("", power(lambda x: jnp.where(0 <= x, -x, x)), X4),
        (bad, power(lambda x: jnp.where(x > 0, x, -x)), X4),
        (bad, power(lambda x: jnp.where(x <= 0, -x, x)), X4),
        (bad, power(lambda x: jnp.where(0 < x, x, -x)), X4),
        (bad, power(lambda x: jnp.where(0 >= x, -x, x)), X4),
        ("", power(lambda x: -jnp.abs(x)), X4),
        (bad, power(lambda x: -x), X4),
        ("", power(lambda x: jnp.minimum(x, 88)), X4),
        (bad, power(lambda x: jnp.minimum(x, 89)), X4),
        ("", power(lambda x: jnp.where(x > jnp.clip(x[::-1], -5, 100), -x, 0)), X4),
        (bad, power(lambda x: jnp.where(x > jnp.clip(x[::-1], -100, 5), -x, 0)), X4),
        ("LOX811 log(1 + exp(x))", lambda x: jnp.log(jnp.exp(x) + 1), X4),
        (
            "LOX811 log(sum(exp(x))) is infinite where x of float32 is above 88.72",
            lambda x: jnp.log(0.5 * jnp.exp(x).sum() + 1e-6),
            X4,
        ),
        ("LOX811 log(sum(exp(x)))", lambda x: jnp.log2(jnp.exp(x).sum(0)), X4),
        ("", lambda x: jnp.log(jnp.exp(x - x.max()).sum()), X4),
        (
            "LOX810 exp(x) / sum(exp(x)) is NaN where x of float16 is above 11.09",
            lambda x: jnp.exp(x) / jnp.exp(x).sum(),
            of(jnp.float16, 4),
        ),
        ("LOX810", lambda x: jnp.exp(x) / jnp.maximum(jnp.exp(x).sum(-1, keepdims=True), 1e-6), f32(3, 4)),
        ("", lambda x: jnp.exp(-jnp.abs(x)) / jnp.exp(-jnp.abs(x)).sum(), X4),
        ("", lambda x, y: jnp.exp(x) / jnp.exp(y).sum(), X4, X4),
        ("LOX812 log(softmax(x)) is -inf", lambda x: jnp.log(jax.nn.softmax(x))[0], X4),
        ("LOX812", lambda x: jnp.log2(jax.nn.softmax(x)[..., 0]), f32(3, 4)),
        ("", lambda x: jnp.log(jax.nn.softmax(x) + 1e-8), X4),
    )


def test_logits_and_logarithms_of_what_was_squashed():
    soft, sig = jax.nn.softmax, jax.nn.sigmoid
    check(
        ("LOX813 A softmax takes logits, and gets the softmax of", lambda x: soft(soft(x)), X4),
        ("", lambda x: soft(sig(x)), X4),
        ("LOX813 A sigmoid takes logits, and gets the softmax of", lambda x: sig(soft(x)), X4),
        ("LOX813 A sigmoid takes logits, and gets the sigmoid of", lambda x: sig(-sig(x)), X4),
        ("LOX813 A log_softmax or logsumexp takes logits", lambda x: jax.nn.log_softmax(soft(x) * 2), X4),
        ("LOX813 A log_sigmoid or softplus takes logits, and gets the sigmoid", lambda x: jax.nn.softplus(sig(x)), X4),
        (
            "LOX813 jax.random.categorical takes logits, and gets the softmax",
            lambda k, x: jax.random.categorical(k, soft(x)),
            jax.random.key(0),
            X4,
        ),
        ("", lambda k, x: jax.random.categorical(k, jnp.log(soft(x) + 1e-8)), jax.random.key(0), X4),
        ("LOX813 A softmax takes", lambda x, m: soft(jnp.where(m, soft(x), -1e9)), X4, flags(4)),
        ("", lambda x, m: soft(jnp.where(m, soft(x), 5.0)), X4, flags(4)),
        (
            "LOX814 log(sigmoid(x)) is -inf, and its derivative infinite, where x is below -88.7",
            lambda x: jnp.log(sig(x)),
            X4,
        ),
        ("", lambda x: jnp.log(sig(jnp.clip(x, -88, 200))), X4),
        ("LOX814 log(sigmoid(x))", lambda x: jnp.log(sig(jnp.clip(x, -89, 0))), X4),
        ("LOX814 log(1 - sigmoid(x)) ... above 17.3", lambda x: jnp.log(1 - sig(x)), X4),
        ("", lambda x: jnp.log1p(-sig(jnp.clip(x, -200, 17))), X4),
        ("LOX814 log(1 - sigmoid(x))", lambda x: jnp.log1p(-sig(jnp.clip(x, -200, 18))), X4),
        ("LOX814 log(1 - softmax(x)) ... an element is more than 17.3", lambda x: jnp.log(1 - soft(x)), X4),
        ("LOX814 log(1 - tanh(x)**2) ... x is beyond 8.66", lambda x: jnp.log(1 - jnp.tanh(x) ** 2), X4),
        ("", lambda x: jnp.log(1 - jnp.tanh(jnp.clip(x, -8, 8)) ** 2), X4),
        ("LOX814 log(1 - tanh(x)**2)", lambda x: jnp.log(1 - jnp.square(jnp.tanh(jnp.clip(x, -9, 1)))), X4),
        ("", lambda x: jnp.log(2 - sig(x)), X4),
    )


def _product(mask, x, y):
    a = jnp.where(mask, x, -jnp.inf)
    b = jnp.where(mask, y, 0)
    return a * b


def test_infinities_that_meet_zeros_or_infinities_at_the_same_elements():
    inf = jnp.inf
    two = (X4, X4, flags(4))
    check(
        (
            "LOX808 'mul' of a and b is NaN where these are -inf and 0",
            lambda x, y, m: _product(m, x, y),
            *two,
        ),
        ("", lambda x, y, m: jnp.where(m, x, -inf) * jnp.where(m, 0, y), *two),
        ("LOX808 'mul' ... -inf and 0", lambda x, y, m: jnp.where(m, -inf, x) * jnp.where(m, 0, y), *two),
        ("LOX808 'mul' ... 0 and -inf", lambda x, y, m: (1 - m) * jnp.where(m, -inf, x), *two),
        ("", lambda x, y, m: m * jnp.where(m, -inf, x), *two),
        ("LOX808 'mul' ... -inf and 0", lambda x, y, m: jnp.where(~m, x, -inf) * ~m, *two),
        ("", lambda x, y, m: jnp.where(~m, x, -inf) * m, *two),
        ("LOX808 'sub' ... -inf and -inf", lambda x, y, m: jnp.where(m, x, -inf) - jnp.where(m, y, -inf), *two),
        ("", lambda x, y, m: jnp.where(m, x, -inf) + jnp.where(m, y, -inf), *two),
        ("LOX808 'add' ... -inf and inf", lambda x, y, m: jnp.where(m, x, -inf) + jnp.where(m, y, inf), *two),
        ("", lambda x, y, m: jnp.where(m, x, -inf) - jnp.where(m, y, inf), *two),
        ("LOX808 'div' ... inf and inf", lambda x, y, m: jnp.abs(jnp.where(m, x, -inf)) / jnp.where(m, y, inf), *two),
        ("LOX808 'div' ... 0 and 0", lambda x, y, m: jnp.where(m, x, 0) / jnp.where(m, y, 0), *two),
        ("LOX808 'mul' ... 0 and -inf", lambda x, y, m: jnp.exp(a := jnp.where(m, x, -inf)) * a, *two),
        ("", lambda x, y, m: jnp.where(m, jnp.exp(a := jnp.where(m, x, -inf)) * a, 0), *two),
        ("", lambda x, y, m: jnp.nan_to_num(jnp.where(m, x, -inf) * m), *two),
        ("LOX808 'mul' ... 0 and inf", lambda x, y, m: jnp.maximum(x, 0) * jnp.full(4, inf), *two),
    )
    logits, rows, columns = f32(3, 5), flags(3), flags(5)

    def soft(keep, axis=-1, value=-inf):
        return lambda x, r, c: jax.nn.softmax(jnp.where(keep(r, c), x, value), axis=axis)

    given = (logits, rows, columns)
    check(
        (
            "LOX809 The logits of a row are all -inf where r says so ... axis 1",
            soft(lambda r, c: r[:, None] & c),
            *given,
        ),
        ("LOX809 ... where c says so ... axis 0", soft(lambda r, c: r[:, None] & c, axis=0), *given),
        ("", soft(lambda r, c: c[None] & ~c), *given),
        ("", soft(lambda r, c: r[:, None] | c), *given),
        ("", soft(lambda r, c: r[:, None] & c, value=-1e30), *given),
        ("LOX809 ... where r says so", lambda x, r, c: jax.nn.softmax(x + jnp.where(r[:, None], 0, -inf)), *given),
        (
            "LOX809 A mask of constants makes all logits of row 0",
            lambda x: jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((4, 4), bool), -1), x, -inf)),
            f32(4, 4),
        ),
        ("", lambda x: jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((4, 4), bool)), x, -inf)), f32(4, 4)),
        (
            "LOX809 A mask of constants makes all logits of row 3",
            lambda x: jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((4, 4), bool), -1), x, -inf), axis=0),
            f32(4, 4),
        ),
        ("LOX808 What is divided by is made of constants, and is zero at [0]", lambda x: x / jnp.arange(4.0), X4),
        ("LOX808 ... zero at [1, 2]", lambda x: x / (jnp.arange(2.0)[:, None] + jnp.arange(3.0) - 3), f32(2, 3)),
        ("", lambda x: x / (jnp.arange(4.0) + 1), X4),
        ("", lambda x: (x / jnp.arange(4.0))[1:], X4),
        ("LOX808", lambda x: (x / jnp.arange(4.0))[:-1], X4),
        ("LOX808 ... zero at [2]", lambda x: x / jnp.concatenate([jnp.ones(2), jnp.zeros(2)]), X4),
        ("LOX808 ... zero at [3]", lambda x: x / jnp.sin(jnp.arange(3.0, -1, -1)), X4),
        ("", lambda x: x / jnp.cos(jnp.arange(4.0)), X4),
        ("", lambda x: 1 / (1 + x / jnp.arange(4.0)), X4),
        ("LOX808", lambda x: (1 + x / jnp.arange(4.0)) / 2, X4),
    )


def test_indices_are_compared_with_the_end_of_their_axis():
    x10, i, x2 = f32(10), i32(6), f32(4, 10)
    said = "LOX820 Element 10 along axis 0 of x of shape (10) is read: JAX reads what is last instead"
    check(
        ("", lambda x: x[jnp.arange(10)] + x[jnp.arange(9) + 1][0], x10),
        (said, lambda x: x[jnp.arange(10) + 1], x10),
        (said, lambda x: x[1 + jnp.arange(10)], x10),
        (said, lambda x: x[jnp.arange(12) - 1], x10),
        (said, lambda x, i: x[jnp.clip(i, 0, 10)], x10, i),
        ("", lambda x, i: x[jnp.clip(i, 0, 9)] + x[jnp.minimum(9, i)], x10, i),
        (said, lambda x, i: x[jnp.minimum(i, 10)], x10, i),
        (said, lambda x, i: x[i % 11], x10, i),
        ("", lambda x, i: x[i % 10], x10, i),
        (said, lambda x, i: x[jnp.where(i > 10, 0, i)], x10, i),
        ("", lambda x, i: x[jnp.where(i > 9, 0, i)] + x[jnp.where(i >= 10, 0, i)], x10, i),
        (said, lambda x, i: x[jnp.where(i >= 11, 0, i)], x10, i),
        (said, lambda x, i: x[jnp.where(i <= 10, i, 0)], x10, i),
        ("", lambda x, i: x[jnp.where(i < 10, i, 0)] + x[jnp.where(i <= 9, i, 0)], x10, i),
        (said, lambda x, y: x[jnp.argmax(y)], x10, f32(11)),
        ("", lambda x, y: x[jnp.argmin(y, axis=1)], x10, f32(11, 10)),
        ("LOX820 Element 10 along axis 1 of x of shape (4, 10)", lambda x: x[:, jnp.arange(11)], x2),
        ("", lambda x: x[:, jnp.arange(10)] + x[jnp.arange(4)], x2),
        (
            "LOX820 Element 10 along axis 0 of x of shape (10) is written: JAX leaves out",
            lambda x: x.at[jnp.arange(11)].set(0.0),
            x10,
        ),
        ("LOX820 The 3 elements from 8 on along axis 0 of x", lambda x: jax.lax.dynamic_slice(x, (8,), (3,)), x10),
        ("", lambda x: jax.lax.dynamic_slice(x, (7,), (3,)), x10),
        (
            "LOX820 jax.nn.one_hot of ... has 10 classes, and the index gets up to 10",
            lambda i: jax.nn.one_hot(i % 11, 10),
            i,
        ),
        ("", lambda i: jax.nn.one_hot(i % 10, 10), i),
    )
    check(("", lambda x: x.at[jnp.arange(11)].set(0.0, mode="drop"), x10))


def test_attention_is_normalized_scaled_and_masked_as_its_shapes_say():
    q, k, v, m = f32(5, 8), f32(7, 8), f32(7, 4), flags(5, 7)
    root, soft = np.sqrt(8).item(), jax.nn.softmax
    square = (f32(6, 8), f32(6, 8), f32(6, 4))

    def causal(keep):
        return lambda q, k, v: soft(jnp.where(keep(jnp.ones((6, 6), bool)), q @ k.T / root, -jnp.inf)) @ v

    check(
        ("", lambda q, k, v: soft(q @ k.T / root) @ v, q, k, v),
        (
            "LOX815 The weights of shape (5, 7) are normalized over axis 0, and their product with v sums over axis 1",
            lambda q, k, v: soft(q @ k.T / root, axis=0) @ v,
            q,
            k,
            v,
        ),
        ("", lambda q, k, v: soft(k @ q.T / root, axis=0).T @ v, q, k, v),
        (
            "LOX815 ... (7, 5) are normalized over axis 1 ... sums over axis 0",
            lambda q, k, v: soft(k @ q.T / root, axis=1).T @ v,
            q,
            k,
            v,
        ),
        (
            "LOX817 Scores that sum 8 products are multiplied by 2.828, the root of 8",
            lambda q, k, v: soft(q @ k.T * root) @ v,
            q,
            k,
            v,
        ),
        (
            "LOX817 Scores that sum 8 products are divided by the root of 8 twice",
            lambda q, k, v: soft((q / root) @ (k / root).T) @ v,
            q,
            k,
            v,
        ),
        ("LOX817 ... twice", lambda q, k, v: soft((q / root) @ k.T / root) @ v, q, k, v),
        ("", lambda q, k, v: soft(q @ k.T / 8) @ v, q, k, v),
        ("LOX817 ... divided by the root of 7", lambda q, k, v: soft(q @ k.T / np.sqrt(7).item()) @ v, q, k, v),
        ("LOX817 ... divided by the root of 5", lambda q, k, v: soft(q @ k.T / np.sqrt(5).item()) @ v, q, k, v),
        (
            "LOX816 A logit that is masked is 0, and keeps a weight",
            lambda q, k, v, m: soft(jnp.where(m, q @ k.T, 0)) @ v,
            q,
            k,
            v,
            m,
        ),
        (
            "LOX816 A logit that is masked is 1e-09",
            lambda q, k, v, m: soft(jnp.where(m, q @ k.T, 1e-9)) @ v,
            q,
            k,
            v,
            m,
        ),
        (
            "LOX816 A logit that is masked has -1e-09 added",
            lambda q, k, v, m: soft(q @ k.T + jnp.where(m, 0, -1e-9)) @ v,
            q,
            k,
            v,
            m,
        ),
        ("LOX816 A logit that is masked is 0", lambda q, k, v, m: soft(m * (q @ k.T)) @ v, q, k, v, m),
        ("", lambda q, k, v, m: soft(q @ k.T + (1 - m) * -1e9) @ v, q, k, v, m),
        (
            "LOX816 A mask is the same for all keys of a query",
            lambda q, k, v, m: soft(jnp.where(m[:, :1], q @ k.T, -1e9)) @ v,
            q,
            k,
            v,
            m,
        ),
        ("", lambda q, k, v, m: soft(jnp.where(m[:1], q @ k.T, -1e9)) @ v, q, k, v, m),
        ("LOX816 Weights are masked after the softmax", lambda q, k, v, m: (soft(q @ k.T) * m) @ v, q, k, v, m),
        (
            "LOX816 Weights are masked after the softmax",
            lambda q, k, v, m: jnp.where(m, soft(q @ k.T), 0) @ v,
            q,
            k,
            v,
            m,
        ),
        ("", lambda q, k, v, m: ((w := soft(q @ k.T) * m) / w.sum(-1, keepdims=True)) @ v, q, k, v, m),
    )
    check(
        ("", causal(jnp.tril), *square),
        ("LOX816 A mask of constants keeps keys after the query, and none", causal(jnp.triu), *square),
        ("LOX816 A causal mask keeps one key after each query", causal(lambda ones: jnp.tril(ones, 1)), *square),
        ("", causal(lambda ones: jnp.tril(ones, 2)), *square),
        ("LOX816 ... upside down", causal(lambda ones: jnp.triu(ones, -1)), *square),
        ("", causal(lambda ones: jnp.arange(6)[:, None] >= jnp.arange(6)), *square),
        ("LOX816 ... upside down", causal(lambda ones: jnp.arange(6)[:, None] <= jnp.arange(6)), *square),
        ("LOX816 A causal mask keeps one", causal(lambda ones: jnp.arange(6)[:, None] + 1 >= jnp.arange(6)), *square),
        (
            "LOX819 The mean that is subtracted from ... divided by 15",
            lambda x, m: (y := jnp.where(m[:, None], x, 0)) - y.mean(),
            f32(3, 5),
            flags(3),
        ),
        ("", lambda x, m: x - jnp.where(m[:, None], x, 0).sum() / m.sum(), f32(3, 5), flags(3)),
        ("LOX819 ... divided by 3", lambda x, m: (y := x * m[:, None]) - y.mean(0), f32(3, 5), flags(3)),
        ("", lambda x, m: (y := x * m[:, None]) - y.mean(1, keepdims=True), f32(3, 5), flags(3)),
    )


def test_heads_of_attention_are_split_off_and_merged_behind_the_sequence():
    def attend(split, merge):
        def fun(x, k, v):
            q = split(x)
            weights = jax.nn.softmax(jnp.einsum("htd,hsd->hts", q, k) / 2)
            return merge(jnp.einsum("hts,hsd->htd", weights, v)) * 2

        return fun

    def split(x):
        return x.reshape(6, 2, 4).swapaxes(0, 1)

    def merge(x):
        return x.swapaxes(0, 1).reshape(6, 8)

    given = f32(6, 8), f32(2, 6, 4), f32(2, 6, 4)
    mixed = "LOX103 Attention of several heads is reshaped from"
    check(
        ("", attend(split, merge), *given),
        (f"{mixed} (6, 8) to (2, 6, 4) ... split the last axis", attend(lambda x: x.reshape(2, 6, 4), merge), *given),
        (f"{mixed} (2, 6, 4) to (6, 8) ... bring the heads behind", attend(split, lambda x: x.reshape(6, 8)), *given),
        ("", attend(split, lambda x: x.reshape(12, 4)), *given),
        ("", attend(lambda x: x.reshape(6, 2, 4).transpose(1, 0, 2) * 3, merge), *given),
    )


def test_a_softmax_goes_over_the_classes_that_labels_choose_along():
    x, w, labels = f32(6, 8), f32(8, 4), i32(6)
    over = "LOX821 The log_softmax of shape (6, 4) goes over axis 0, ... along axis 1"

    def chosen(axis, choose):
        return lambda x, w, labels: choose(jax.nn.log_softmax(x @ w, axis=axis), labels)

    def rows(p, labels):
        return p[jnp.arange(6), labels].mean()

    check(
        ("", chosen(1, rows), x, w, labels),
        (over, chosen(0, rows), x, w, labels),
        (over, chosen(0, lambda p, y: jnp.take_along_axis(p, y[:, None], 1).mean()), x, w, labels),
        ("", chosen(-1, lambda p, y: jnp.take_along_axis(p, y[:, None], 1).mean()), x, w, labels),
        (over, chosen(0, lambda p, y: (p * jax.nn.one_hot(y, 4)).sum()), x, w, labels),
        ("", chosen(1, lambda p, y: (jax.nn.one_hot(y, 4) * p).sum()), x, w, labels),
        (
            "LOX821 The softmax of shape (6, 4) goes over its axis 0: batch",
            lambda x: jax.nn.softmax(x, axis=0),
            f32(6, 4),
            Options(axes={"x": ("batch", "class")}),
        ),
        ("", lambda x: jax.nn.softmax(x, axis=1), f32(6, 4), Options(axes={"x": ("batch", "class")})),
        ("", lambda x: jax.nn.softmax(x, axis=0), f32(6, 1), Options(axes={"x": ("batch", None)})),
        ("", lambda x: jax.nn.softmax(x, axis=0), f32(6, 4), Options(axes={"x": ("time", "class")})),
    )


# -- derivatives -----------------------------------------------------------------------------------------------------


def test_derivatives_are_infinite_where_the_end_of_a_range_is_reached():
    by = Options(differentiate="x")

    def at(fun, low, high):
        return lambda x: fun(jnp.clip(x, low, high)).sum()

    def said(name, number):
        return f"LOX606 The operand of '{name}' can be {number}, where its derivative is infinite, as it is in ["

    check(
        (said("sqrt", 0), at(jnp.sqrt, 0, 1), X4, by),
        ("", at(jnp.sqrt, 1e-6, 1), X4, by),
        (said("rsqrt", 0), at(jax.lax.rsqrt, 0, 5), X4, by),
        (said("log", 0), at(jnp.log, 0, 1), X4, by),
        ("", at(jnp.log, 0.5, 1), X4, by),
        (said("log1p", -1), at(jnp.log1p, -1, 1), X4, by),
        ("", at(jnp.log1p, -0.9, 1), X4, by),
        (said("asin", -1), at(jnp.arcsin, -1, 0.5), X4, by),
        (said("asin", 1), at(jnp.arcsin, 0.5, 1), X4, by),
        ("", at(jnp.arcsin, -0.9, 0.9), X4, by),
        (said("acos", 1), at(jnp.arccos, -0.5, 1), X4, by),
        (said("atanh", -1), at(jnp.arctanh, -1, 0), X4, by),
        (said("acosh", 1), at(jnp.arccosh, 1, 3), X4, by),
        (said("pow", 0), at(lambda x: x**0.5001, 0, 3), X4, by),
        ("", at(lambda x: x**1.5, 0, 3), X4, by),
        (said("sqrt", 0), lambda x: jnp.sqrt(jnp.square(x).sum()), X4, by),
        (said("sqrt", 0), lambda x: jnp.sqrt((x**2).sum(0) + (x * x).sum(0)), f32(4), by),
        ("", lambda x: jnp.sqrt((x**2).sum() + 1e-6), X4, by),
        ("", lambda x: jnp.sqrt(jnp.exp(x)).sum(), X4, by),
        (said("sqrt", 0), lambda x: jnp.sqrt(-jnp.clip(x, -4, 0)).sum(), X4, by),
        (said("sqrt", 0), lambda x: jnp.sqrt(3 - jnp.clip(x, -4, 3)).sum(), X4, by),
        ("", lambda x: jnp.sqrt(3.5 - jnp.clip(x, -4, 3)).sum(), X4, by),
        (said("sqrt", 0), lambda x: jnp.sqrt(jnp.maximum(x, 0) / 2).sum(), X4, by),
        (said("sqrt", 0), lambda x: jnp.sqrt(1 - jnp.tanh(x) ** 2).sum(), X4, by),
        ("", lambda x, y: jnp.sqrt(jnp.maximum(y, 0)).sum() + x.sum(), X4, X4, by),
        ("", lambda x: jnp.sqrt(jnp.maximum(x, 0)).sum(), X4),
    )


def test_a_choice_hides_a_value_that_is_not_finite_and_not_its_derivative():
    by = Options(differentiate="x")
    root, log, div = (f"LOX607 jnp.where leaves out '{name}' where it is not finite" for name in ("sqrt", "log", "div"))

    def chosen(ok, fun, turned=False):
        return lambda x, y: (jnp.where(ok(x, y), 0.0, fun(x)) if turned else jnp.where(ok(x, y), fun(x), 0.0)).sum()

    xy = (X4, X4)
    check(
        (root, chosen(lambda x, y: x > 0, jnp.sqrt), *xy, by),
        (root, chosen(lambda x, y: 0 < x, jnp.sqrt), *xy, by),
        (root, chosen(lambda x, y: x <= 0, jnp.sqrt, True), *xy, by),
        (root, chosen(lambda x, y: ~(x <= 0), jnp.sqrt), *xy, by),
        (root, chosen(lambda x, y: (x > 0) & (y > 0), jnp.sqrt), *xy, by),
        ("", chosen(lambda x, y: (x > 0) | (y > 0), jnp.sqrt), *xy, by),
        (root, chosen(lambda x, y: (x <= 0) | (y > 0), jnp.sqrt, True), *xy, by),
        ("", chosen(lambda x, y: (x <= 0) & (y > 0), jnp.sqrt, True), *xy, by),
        ("", chosen(lambda x, y: y > 0, jnp.sqrt), *xy, by),
        ("", chosen(lambda x, y: x > 0, lambda x: jnp.sqrt(jnp.where(x > 0, x, 1.0))), *xy, by),
        (log, chosen(lambda x, y: x != 0, jnp.log), *xy, by),
        (log, chosen(lambda x, y: x == 0, jnp.log, True), *xy, by),
        (log, chosen(lambda x, y: x > 1e-3, lambda x: jnp.log(x)), *xy, by),
        ("", chosen(lambda x, y: x > 5, lambda x: jnp.log(x)), *xy, by),
        (div, chosen(lambda x, y: jnp.abs(x) > 1e-6, lambda x: 1 / x), *xy, by),
        (div, chosen(lambda x, y: x**2 > 1e-6, lambda x: 1 / x), *xy, by),
        ("", chosen(lambda x, y: jnp.abs(x) < 1e-6, lambda x: 1 / x), *xy, by),
        (div, chosen(lambda x, y: x != 3, lambda x: 1 / (x - 3)), *xy, by),
        (div, chosen(lambda x, y: 3 - x != 0, lambda x: 1 / (2 * x - 6)), *xy, by),
        ("", chosen(lambda x, y: x != 3, lambda x: 1 / (x + 3)), *xy, by),
        ("", lambda x, y: jnp.where(x > 0, jnp.sqrt(x), jnp.nan).sum(), *xy, by),
        (root, lambda x, y: jax.grad(lambda x: jnp.where(x > 0, jnp.sqrt(x), 0.0).sum())(x), *xy),
        ("", lambda x, y: jax.grad(lambda x: jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0.0).sum())(x), *xy),
    )


def test_what_is_differentiated_by_what_and_where_it_is_lost():
    w = {"a": f32(3), "b": f32(3), "n": i32()}
    by = Options(differentiate="x")
    check(
        (
            "LOX600 'out', which is to be differentiated by 'x', has shape (4) and dtype float32",
            lambda x: x * 2,
            X4,
            by,
        ),
        (["LOX600 'out' ... has shape () and dtype int32", "LOX602"], lambda x: x.astype(int).sum(), X4, by),
        ("", lambda x: (x.sum(), x * 2), X4, by),
        ("LOX600 'out/0' ... has shape (4)", lambda x: (x * 2, x.sum()), X4, by),
        (
            "LOX601 'n' is of int32, which jax.grad refuses",
            lambda x, n: (x * n).sum(),
            X4,
            i32(),
            Options(differentiate=("x", "n")),
        ),
        (
            "LOX602 The derivative of 'out' by 'x' is zero: every path from it goes through 'round'",
            lambda x: jnp.round(x).sum(),
            X4,
            by,
        ),
        ("LOX602 ... goes through the comparison 'gt'", lambda x: jnp.where(x > 0, 1.0, 2.0).sum(), X4, by),
        ("LOX602 ... goes through a conversion to int32", lambda x: x.astype(int).astype(float).sum(), X4, by),
        ("LOX602 ... 'stop_gradient' ... or 'sign'", lambda x: (jax.lax.stop_gradient(x) + jnp.sign(x)).sum(), X4, by),
        ("", lambda x: (x + jnp.sign(x)).sum(), X4, by),
        ("LOX603 'out' does not depend on 'x'", lambda x, y: y.sum(), X4, X4, by),
        (
            "LOX604 The derivative by 'w/b' is zero, ... goes through the comparison 'lt'",
            lambda w: (w["a"] * (w["b"] < 0)).sum() * w["n"],
            w,
            Options(differentiate="w"),
        ),
        ("", lambda w: (w["a"] * jax.lax.stop_gradient(w["b"])).sum() * w["n"], w, Options(differentiate="w")),
        (
            "LOX605 The number of rounds of this 'while'",
            lambda x: jax.lax.while_loop(lambda x: x.sum() < 3, lambda x: x * 2, x).sum(),
            X4,
            by,
        ),
        ("", lambda x: jax.lax.fori_loop(0, 3, lambda i, x: x * 2, x).sum(), X4, by),
        ("LOX605 JAX has no derivative of 'pure_callback'", lambda x: jax.pure_callback(np.sin, X4, x).sum(), X4, by),
    )


def test_targets_of_a_loss_are_moved_where_nothing_stops_them():
    w, now, after, reward, done = f32(4), f32(9, 4), f32(9, 4), f32(9), f32(9)
    given, by, stop = (w, now, after, reward, done), Options(differentiate="w"), jax.lax.stop_gradient

    def loss(error, size=jnp.square):
        def fun(w, now, after, reward, done):
            return size(error(now @ w, after @ w, reward, done)).mean()

        return fun

    moved = "LOX610 The error squared here has the prediction, and in its target"
    check(
        (moved, loss(lambda v, n, r, d: r + 0.9 * n - v), *given, by),
        (moved, loss(lambda v, n, r, d: v - (r + 0.99 * (1 - d) * n)), *given, by),
        (moved, loss(lambda v, n, r, d: v - r - n * 0.8, jnp.abs), *given, by),
        (moved, loss(lambda v, n, r, d: r + 0.9 * n - v, lambda e: 0.5 * (e * e)), *given, by),
        ("", loss(lambda v, n, r, d: r + 0.9 * n - v, lambda e: e**3), *given, by),
        ("", loss(lambda v, n, r, d: r + 0.9 * stop(n) - v), *given, by),
        (moved, loss(lambda v, n, r, d: r + 0.9 * n - stop(v)), *given, by),
        ("", loss(lambda v, n, r, d: r + 0.5 * n - v), *given, by),
        ("", loss(lambda v, n, r, d: r + n - v), *given, by),
        ("", loss(lambda v, n, r, d: r + 0.9 * n - 3 * v), *given, by),
        ("", loss(lambda v, n, r, d: 0.9 * n - v), *given, by),
        ("", loss(lambda v, n, r, d: v - (r - 0.9 * n)), *given, by),
        ("", loss(lambda v, n, r, d: r + 0.9 * n + v), *given, by),
        (
            "LOX612 This error has now @ w on both sides, discounted and as it is",
            loss(lambda v, n, r, d: r + 0.9 * v - v),
            *given,
            by,
        ),
        (
            "LOX612 Both sides of this difference are the same computation ... it is zero",
            lambda w, x: ((x @ w) - (x @ w)).sum(),
            w,
            now,
            by,
        ),
        (
            "LOX612 Both sides of this quotient ... it is one",
            lambda w, x: (jnp.exp(x @ w) / jnp.exp(x @ w)).sum(),
            w,
            now,
            by,
        ),
        ("", lambda w, x: ((x @ w) - stop(x @ w)).sum(), w, now, by),
        ("", lambda w, x: (jnp.exp(x @ w) / jnp.exp(x[::-1] @ w)).sum(), w, now, by),
    )
    nets = {"critic": f32(4), "target_critic": f32(4)}
    check(
        (
            "LOX613 The loss has a derivative by 'p/target_critic', the slow copy of 'p/critic'",
            lambda p, x: (x @ p["critic"] - x @ p["target_critic"]).sum(),
            nets,
            now,
            Options(differentiate="p"),
        ),
        (
            "",
            lambda p, x: (x @ p["critic"] - stop(x @ p["target_critic"])).sum(),
            nets,
            now,
            Options(differentiate="p"),
        ),
        (
            "",
            lambda p, x: (x @ p["target_critic"]).sum() + 0 * stop(p["critic"]).sum(),
            nets,
            now,
            Options(differentiate="p/target_critic"),
        ),
    )


# -- axes ------------------------------------------------------------------------------------------------------------


def test_axes_that_meet_are_named_by_number_label_and_operation():
    tb, bt = ("time", "batch"), ("batch", "time")
    xy = Options(axes={"x": tb, "y": bt})
    x, y = f32(6, 6), f32(6, 6)

    def labelled(**axes):
        return Options(axes=axes)

    check(
        (
            "LOX101 Axis 0 of x of shape (6 time, 6 batch) is time, that of y ... is batch, and 'sub'",
            lambda x, y: x - y,
            x,
            y,
            xy,
        ),
        ("", lambda x, y: x - y.T, x, y, xy),
        (
            "LOX101 Axis 0 of y of shape (6 batch, 6 time) is batch, that of x ... is time, and 'max'",
            lambda x, y: jnp.maximum(y, x),
            x,
            y,
            xy,
        ),
        ("LOX101 ... and 'select_n'", lambda x, y: jnp.where(x > 0, 1.0, y), x, y, xy),
        (
            "LOX101 Axis 1 of x ... is batch, that of y ... is time, and 'concatenate'",
            lambda x, y: jnp.concatenate([x, y]),
            x,
            y,
            xy,
        ),
        ("LOX101 Axis 0 of x ... 'concatenate'", lambda x, y: jnp.concatenate([x, y], axis=1), x, y, xy),
        ("", lambda x, y: jnp.concatenate([x, y]), f32(6, 3), f32(4, 3), labelled(x=("time", "f"), y=("batch", "f"))),
        ("LOX101", lambda x, y: jax.jit(jax.vmap(jnp.subtract))(x, y), x, y, xy),
        (
            "LOX112 Of y ... one element along env is read",
            lambda x, y: x - y[:, :1],
            x,
            y,
            labelled(x=tb, y=("time", "env")),
        ),
        (
            "LOX102 A product of x ... and y ... over batch of the first, which is axis 1, and time ... axis 0",
            lambda x, y: x @ y,
            x,
            y,
            labelled(x=tb, y=tb),
        ),
        ("", lambda x, y: x @ y, x, y, xy),
        (
            "LOX102 ... goes along time of the first, which is axis 0, and batch of the second, which is axis 0",
            lambda x, y: jnp.einsum("ij,ij->i", x, y),
            x,
            y,
            labelled(x=("time", None), y=("batch", None)),
        ),
        (
            "LOX102 ... sums over f of the first, which is axis 2, and g of the second, which is axis 1",
            lambda x, y: x @ y,
            f32(5, 6, 4),
            f32(5, 4, 3),
            labelled(x=("b", "t", "f"), y=("b", "g", None)),
        ),
        (
            "LOX103 The axes time and batch of sizes [6, 4] are reshaped to [4, 6]: the axis of size 6 ... not time",
            lambda x: x.reshape(4, 6),
            f32(6, 4),
            labelled(x=tb),
        ),
        ("", lambda x: x.reshape(24).reshape(6, 4), f32(6, 4), labelled(x=tb)),
        (
            "LOX103 The axes time and batch of sizes [6, 4] are reshaped to [4, 6]",
            lambda x: x.reshape(24).reshape(4, 6),
            f32(6, 4),
            labelled(x=tb),
        ),
        ("", lambda x: x.reshape(2, 3, 4), f32(6, 4), labelled(x=tb)),
        (
            "LOX104 y of shape (6 batch) meets x of shape (6 batch, 1): every batch",
            lambda x, y: (x - y).mean(),
            f32(6, 1),
            f32(6),
            labelled(x=("batch", None), y=("batch",)),
        ),
        ("", lambda x, y: (x - y[:, None]).mean(), f32(6, 1), f32(6), labelled(x=("batch", None), y=("batch",))),
        (
            "LOX104 y of shape (6) meets x of shape (6, 1): of 6 elements each ... all 36 pairs are reduced",
            lambda x, y: ((x - y) ** 2).mean(),
            f32(6, 1),
            f32(6),
        ),
        ("", lambda x, y: ((x - y) ** 2).mean(1), f32(6, 1), f32(6)),
        ("", lambda x, y: ((x - y) ** 2).mean(), f32(6, 1), f32(5)),
        ("LOX104", lambda x, y: jnp.abs(x - y).sum((0, 1)), f32(6, 1), f32(6)),
        ("LOX104 ... of 5 elements each", lambda x, y: ((x - y) ** 2).mean((1, 2)), f32(5, 5, 1), f32(5, 5)),
        (
            "LOX104 x of shape (6, 4) is taken at i of shape (6) in each of its rows: every one of 6 rows",
            lambda x, i: x[:, i].mean(),
            f32(6, 4),
            i32(6),
        ),
        ("", lambda x, i: x[jnp.arange(6), i].mean(), f32(6, 4), i32(6)),
        ("", lambda x, i: x[:, i].mean(), f32(6, 4), i32(5)),
        ("", lambda x, i: x[:, i].mean(), f32(6, 6), i32(6)),
        ("", lambda x, i: x[:, i].mean(0), f32(6, 4), i32(6)),
    )


def test_reductions_recurrences_and_declarations_go_over_the_axes_that_are_said():
    tb = Options(axes={"x": ("time", "batch")})
    bt = Options(axes={"x": ("batch", "time")})
    x = f32(6, 4)

    def declared(fun, **axes):
        def inside(x):
            with lox.audit.expect(**axes):
                return fun(x)

        return inside

    check(
        (
            "LOX105 'mean' goes over time here, and expect(mean=...) says batch",
            declared(lambda x: x.mean(0), mean="batch"),
            x,
            tb,
        ),
        ("", declared(lambda x: x.mean(1), mean="batch"), x, tb),
        ("", declared(lambda x: x.mean(), mean=["batch", "time"]), x, tb),
        ("LOX105 'mean' goes over time", declared(lambda x: x.mean(), mean="batch"), x, tb),
        ("", declared(lambda x: x.sum(0), mean="batch"), x, tb),
        ("LOX105 'var' goes over time", declared(lambda x: jnp.std(x, axis=0), mean="batch"), x, tb),
        (
            [
                "LOX105 'argmax' goes over batch here, and expect(max=...) says time",
                "LOX112 The place of the largest ... over batch",
            ],
            declared(lambda x: x.argmax(1), max="time"),
            x,
            tb,
        ),
        ("LOX105 'min' goes over batch", declared(lambda x: x.min(-1), min="time"), x, tb),
        ("LOX105 'prod' goes over time", declared(lambda x: x.prod(0), prod="batch"), x, tb),
        (
            "LOX105 'cumsum' goes over b2",
            declared(lambda x: jnp.cumsum(x, 1), cumsum="time"),
            x,
            Options(axes={"x": ("time", "b2")}),
        ),
        ("LOX105 'sort' goes over time", declared(lambda x: jnp.sort(x, axis=0), sort="batch"), x, tb),
        ("LOX105 'getitem' goes over time", declared(lambda x: x[2], index="batch"), x, tb),
        ("", declared(lambda x: x[:, 2], index="batch"), x, tb),
        ("", declared(lambda x: x[1:3], index="batch"), x, tb),
        (
            "LOX105 'scan' goes over time",
            declared(lambda x: jax.lax.scan(lambda c, r: (c, r.sum()), 0, x), scan="batch"),
            x,
            tb,
        ),
        ("LOX106 'cumsum' goes over batch of x of shape (6 time, 4 batch)", lambda x: jnp.cumsum(x, axis=1), x, tb),
        ("", lambda x: jnp.cumsum(x, axis=0), x, tb),
        ("LOX106 'cumprod' goes over batch", lambda x: jnp.cumprod(x, axis=0), x, bt),
        ("", lambda x: jnp.cumsum(x > 0, axis=0), x, bt),
        ("", lambda x: jax.lax.cummax(x, axis=0), x, Options(axes={"x": ("batch", "feature")})),
        ("LOX106 A difference of neighbours goes over batch of x", lambda x: x[1:] - x[:-1], x, bt),
        ("", lambda x: x[:, 1:] - x[:, :-1], x, bt),
        (
            "LOX106 A scan goes over batch, and carries",
            lambda x: jax.lax.scan(lambda c, r: (0.9 * c + r, c), jnp.zeros(4), x)[1],
            x,
            bt,
        ),
        ("", lambda x: jax.lax.scan(lambda c, r: (0.9 * c + r, c), jnp.zeros(4), x)[1], x, tb),
        ("", lambda x: jax.lax.scan(lambda c, r: (0.9 * c + r, None), jnp.zeros(4), x)[0], x, bt),
    )
    check(
        (
            "LOX107 x of shape (5, 5) meets its own reduction over axis 1, of which axis 0 is left: that meets axis 1",
            lambda x: x / x.sum(1),
            f32(5, 5),
        ),
        ("", lambda x: x / x.sum(0), f32(5, 5)),
        ("", lambda x: x / x.sum(1, keepdims=True), f32(5, 5)),
        ("LOX110", lambda x: x / x.sum(1)[None], f32(5, 5)),
        ("", lambda x: x / x.sum(1)[None], f32(5, 5), Options(axes={"x": ("time", None)})),
        ("LOX107 ... over axis 1", lambda x: x - x.max(1), f32(5, 5)),
        ("LOX107", lambda x: x - x.mean(2), f32(5, 5, 5)),
        ("LOX110", lambda x: x + x.sum(1), f32(5, 5)),
        ("LOX107", lambda x: x * jax.lax.rsqrt((x**2).sum(1)), f32(5, 5)),
        ("LOX110", lambda x: x * (x**2).sum(1), f32(5, 5)),
        ("", lambda x, y: x / y.sum(1), f32(5, 5), f32(5, 5)),
        (["LOX110 In x and x.T", "LOX110 In s and s.sum(1)"], lambda x: (s := x + x.T) / s.sum(1), f32(5, 5)),
        (
            "LOX108 x - x.mean(axis=0) ... centered over axis 0 ... by its deviation over axis 1",
            lambda x: (x - x.mean(axis=0)) / x.std(axis=1, keepdims=True),
            f32(5, 6),
        ),
        ("", lambda x: (x - x.mean(axis=0)) / x.std(axis=0), f32(5, 6)),
        ("", lambda x: (x - x.mean(axis=0)) / x.std(keepdims=True), f32(5, 6)),
        ("", lambda x: (x - x.mean()) / x.std(axis=0), f32(5, 6)),
        ("LOX108", lambda x: (x - x.min(0)) / (x.max(1, keepdims=True) - x.min(1, keepdims=True)), f32(5, 6)),
        ("LOX109 x is squeezed without an axis", lambda x: jnp.squeeze(x) * 2, f32(1, 4)),
        ("LOX109 x is squeezed without an axis", lambda x: x.squeeze() * 2, f32(1, 4)),
        ("", lambda x: jnp.squeeze(x, 0) * x.squeeze(axis=0), f32(1, 4)),
        ("LOX110 In x and x.T, axis 0 of x meets axis 1: their size must be equal, as 5", lambda x: x + x.T, f32(5, 5)),
        ("", lambda x: x + x, f32(5, 5)),
        (
            "LOX103 An array of shape (4, 6) is reshaped to (6, 4), which are the same sizes in another order",
            lambda x: x.reshape(6, 4) * 2,
            f32(4, 6),
        ),
        ("", lambda x: x.T.reshape(6, 4) * 2, f32(4, 6)),
        ("", lambda x: x.reshape(6, -1) * 2, f32(4, 6)),
        ("", lambda x: x.reshape(3, 8) * 2, f32(4, 6)),
        ("LOX103 An array of shape (2, 4, 6) is reshaped to (2, 6, 4)", lambda x: x.reshape(2, 6, 4) * 2, f32(2, 4, 6)),
    )


def test_similarities_are_of_vectors_that_have_the_length_one_along_the_axis_that_is_summed():
    a, b = f32(6, 8), f32(7, 8)
    norm = jnp.linalg.norm

    def scores(one, other):
        return lambda a, b: jax.nn.softmax((a / one(a)) @ (b / other(b)).T / 0.1)

    def along(axis):
        return lambda x: norm(x, axis=axis, keepdims=True)

    check(
        ("", scores(along(1), along(1)), a, b),
        ("LOX111 A product of ... sums over axes 1 and 0, and the norms", scores(along(0), along(0)), a, b),
        ("LOX111 ... the norms that a / one(a) is divided by are over other axes", scores(along(0), along(1)), a, b),
        (
            "LOX111 ... the norms that (b / other(b)).T is divided by are over other axes",
            scores(along(1), along(0)),
            a,
            b,
        ),
        ("LOX111", scores(lambda x: jnp.sqrt((x**2).sum(0) + 1e-6), lambda x: jnp.maximum(along(0)(x), 1e-6)), a, b),
        ("LOX111", lambda a, b: jax.nn.softmax((a * jax.lax.rsqrt((a * a).sum(0))) @ (b / along(0)(b)).T), a, b),
        ("LOX111", lambda a, b: jax.nn.softmax((jax.lax.rsqrt((a * a).sum(0)) * a) @ (b / along(0)(b)).T), a, b),
        ("", scores(lambda x: norm(x), lambda x: norm(x)), a, b),
    )


# -- loops -----------------------------------------------------------------------------------------------------------


def test_what_scans_go_over_read_and_carry():
    x, y, w = f32(6, 4), f32(6, 4), f32(4)
    scan = jax.lax.scan
    xy = Options(axes={"x": ("time", None), "y": ("env", None)})
    check(
        (
            "LOX203 A scan goes over time of x of shape (6 time, 4), and over env of y of shape (6 env, 4)",
            lambda x, y: scan(lambda c, r: (c + r[0].sum() * r[1].sum(), None), 0.0, (x, y))[0],
            x,
            y,
            xy,
        ),
        (
            "",
            lambda x, y: scan(lambda c, r: (c + r[0].sum() * r[1].sum(), None), 0.0, (x, y))[0],
            x,
            y,
            Options(axes={"x": ("time", None), "y": ("time", "env")}),
        ),
        (
            "LOX204 The body of a scan over x of shape (6, 4) ... never the slice of shape (4,)",
            lambda x: scan(lambda c, r: (c + x.sum(), None), 0.0, x)[0],
            x,
        ),
        ("", lambda x: scan(lambda c, r: (c + x.sum() * r.sum(), None), 0.0, x)[0], x),
        (
            ["LOX206 The body of a while loop returns unchanged what its condition reads", "LOX208"],
            lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0], c[1] * 2), (0, x))[1],
            w,
        ),
        ("", lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1], w),
        (
            [
                "LOX206 The body of a while loop returns carry[1] unchanged ... it begins at inf",
                "LOX208 The body of a loop reads 'error' of its carry, which begins at inf",
            ],
            lambda x: jax.lax.while_loop(_goes_on, _improved, (0, jnp.inf, x))[2],
            w,
        ),
        (
            "LOX213 In its first iteration, a loop that counts from 0 divides by zero here",
            lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + x / i, jnp.zeros(4)),
            w,
        ),
        ("", lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + x / (i + 1), jnp.zeros(4)), w),
        ("", lambda x: jax.lax.fori_loop(1, 5, lambda i, c: c + x / i, jnp.zeros(4)), w),
        ("LOX213", lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + x / (1 - 0.9**i), jnp.zeros(4)), w),
        ("", lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + x / (1 - 0.9 ** (i + 1)), jnp.zeros(4)), w),
        ("", lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + jnp.where(i == 0, x, x / i), jnp.zeros(4)), w),
        ("LOX213", lambda x: scan(lambda c, i: (c * x / jnp.sqrt(i), None), x, jnp.arange(5.0))[0], w),
        ("", lambda x: scan(lambda c, i: (c * x / jnp.sqrt(i), None), x, jnp.arange(1.0, 5.0))[0], w),
        ("LOX213", lambda x: scan(lambda c, i: (0.9 * c + c / (i * x), None), x, jnp.arange(5))[0], w),
        ("", lambda x: scan(lambda c, i: (0.9 * c + c / (i * x), None), x, jnp.arange(1, 5))[0], w),
        (
            "LOX214 A mean of what a mask keeps is divided by a count of each iteration, and the 6 means",
            lambda x, m: _mean_of_means(x, m, 6),
            f32(6, 4, 3),
            flags(6, 4, 3),
        ),
        ("", lambda x, m: _mean_of_means(x, m, 5), f32(6, 4, 3), flags(6, 4, 3)),
    )
    check(
        (
            "LOX210 The body of a scan closes over x of shape (6, 4), and reads in iteration i nothing but element i",
            lambda x: scan(lambda c, i: (c + x[i], None), jnp.zeros(4), jnp.arange(6))[0],
            x,
        ),
        ("", lambda x: scan(lambda c, i: (c + x[i], None), jnp.zeros(4), jnp.arange(5))[0], x),
        ("", lambda x: scan(lambda c, i: (c + x[i] * x[0], None), jnp.zeros(4), jnp.arange(6))[0], x),
        ("", lambda x: scan(lambda c, i: (c + x[i + 1], None), jnp.zeros(4), jnp.arange(5))[0], x),
        (
            "LOX212 A loop of 6 iterations reads up to element 6 along axis 0 of x ... reads what is last",
            lambda x: jax.lax.fori_loop(0, 6, lambda i, c: c + x[i + 1], jnp.zeros(4)),
            x,
        ),
        ("", lambda x: jax.lax.fori_loop(0, 5, lambda i, c: c + x[i + 1], jnp.zeros(4)), x),
        (
            "LOX212 A loop of 7 iterations reads up to element 6",
            lambda x: jax.lax.fori_loop(0, 7, lambda i, c: c + x[i], jnp.zeros(4)),
            x,
        ),
        ("LOX212 ... up to element 6", lambda x: jax.lax.fori_loop(0, 4, lambda i, c: c + x[2 * i], jnp.zeros(4)), x),
        ("", lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c + x[2 * i + 1], jnp.zeros(4)), x),
        (
            "LOX212 A loop of 5 iterations reads up to elements 4 to 6 along axis 0",
            lambda x: jax.lax.fori_loop(
                0, 5, lambda i, c: c + jax.lax.dynamic_slice_in_dim(x, i, 3).sum(0), jnp.zeros(4)
            ),
            x,
        ),
        (
            "",
            lambda x: jax.lax.fori_loop(
                0, 4, lambda i, c: c + jax.lax.dynamic_slice_in_dim(x, i, 3).sum(0), jnp.zeros(4)
            ),
            x,
        ),
        (
            "LOX212 A loop of 7 iterations writes up to element 6 along axis 0 of",
            lambda x: jax.lax.fori_loop(0, 7, lambda i, c: c.at[i].set(1.0), x),
            x,
        ),
        ("", lambda x: jax.lax.fori_loop(0, 7, lambda i, c: c + jnp.where(i < 6, x[i], 0), jnp.zeros(4)), x),
        ("LOX207 A loop of Python is traced 16 times or more", _unrolled(16), f32(40)),
        ("", _unrolled(15), f32(40)),
    )
    check(("", lambda x: jax.lax.fori_loop(0, 7, lambda i, c: c.at[i].set(1.0, mode="drop"), x), x))


def _goes_on(carry):
    count, error, _ = carry
    return (count < 9) & (error > 1e-3)


def _improved(carry):
    count, error, x = carry
    return count + 1, error, x / 2


def _mean_of_means(x, mask, times):
    def step(total, row):
        x, mask = row
        return total + jnp.where(mask, x, 0).sum() / mask.sum(), None

    return jax.lax.scan(step, 0.0, (x, mask))[0] / times


def _unrolled(times):
    def fun(x):
        total = x[0]
        for i in range(times):
            total = jnp.tanh(total) * jnp.sin(total) + jnp.cos(x[i]) * total
        return total

    return fun


def test_returns_and_memories_stop_where_an_episode_ends():
    reward, value, done = f32(9), f32(9), f32(9)
    rollout = (reward, value, done)

    def back(step, reverse=True, start=(0.0, 0.0)):
        def fun(rewards, values, dones):
            def body(carry, at):
                reward, value, done = at
                advantage, next_value = carry
                new = step(advantage, next_value, reward, value, done)
                return (new, value), new

            return jax.lax.scan(body, start, (rewards, values, dones), reverse=reverse)[1]

        return fun

    leak = "LOX220 "
    check(
        ("", back(lambda a, n, r, v, d: r + 0.9 * n * (1 - d) - v + 0.8 * (1 - d) * a), *rollout),
        (
            leak + "carry[0] of a step at which an episode ends depends on carry[0] of the step after it",
            back(lambda a, n, r, v, d: r + 0.9 * n * (1 - d) - v + 0.8 * a),
            *rollout,
        ),
        (
            leak + "carry[0] of a step at which an episode ends depends on carry[1]",
            back(lambda a, n, r, v, d: r + 0.9 * n - v + 0.8 * (1 - d) * a),
            *rollout,
        ),
        (
            leak + "carry[0] ... depends on carry[0]",
            back(lambda a, n, r, v, d: r + 0.9 * n * (1 - d) - v + 0.8 * d * a),
            *rollout,
        ),
        ("", back(lambda a, n, r, v, d: jnp.where(d > 0, r - v, r + 0.9 * n - v + 0.8 * a)), *rollout),
        (leak, back(lambda a, n, r, v, d: jnp.where(d > 0, r + 0.9 * n - v + 0.8 * a, r - v)), *rollout),
        ("", back(lambda a, n, r, v, d: r + (0.9 * n + 0.8 * a) * jnp.logical_not(d) - v), *rollout),
        ("", back(lambda a, n, r, v, d: r + (0.9 * n + 0.8 * a) * (d == 0) - v), *rollout),
        (leak, back(lambda a, n, r, v, d: r + (0.9 * n + 0.8 * a) * (d == 1) - v), *rollout),
        ("LOX209", back(lambda a, n, r, v, d: r + 0.9 * a * (1 - d)), *rollout),
        ([leak, "LOX209"], back(lambda a, n, r, v, d: r * (1 - d) + 0.9 * a), *rollout),
        (
            ["LOX205 A scan gets dones with each step and does not read it", "LOX209"],
            back(lambda a, n, r, v, d: r + 0.9 * a),
            *rollout,
        ),
    )

    def forward(step):
        def fun(xs, done, w):
            def body(h, at):
                x, done = at
                h = step(h, x, done, w)
                return h, h

            return jax.lax.scan(body, jnp.zeros((3, 4)), (xs, done))[1]

        return fun

    given = f32(9, 3, 4), flags(9, 3), f32(4, 4)
    check(
        ("", forward(lambda h, x, done, w: jnp.tanh(jnp.where(done[:, None], 0, h) @ w + x)), *given),
        (
            "LOX221 A loop goes on with",
            forward(lambda h, x, done, w: jnp.tanh(jnp.where(done[:, None], h, 0) @ w + x)),
            *given,
        ),
        ("", forward(lambda h, x, done, w: jnp.tanh((h * ~done[:, None]) @ w + x)), *given),
        ("LOX221 A loop goes on with", forward(lambda h, x, done, w: jnp.tanh((h * done[:, None]) @ w + x)), *given),
        ("LOX222 A loop resets", forward(lambda h, x, done, w: jnp.where(done.any(), 0, jnp.tanh(h @ w + x))), *given),
        ("", forward(lambda h, x, done, w: jnp.where(done[:, None], 0, jnp.tanh(h @ w + x))), *given),
        ("LOX205", forward(lambda h, x, done, w: jnp.tanh(h @ w + x)), *given),
    )
    targets = (f32(9), f32(9), f32(9))

    def target(fun):
        def loss(reward, next_value, done):
            return fun(reward, next_value, done)

        return loss

    check(
        ("", target(lambda reward, next_value, done: reward + 0.99 * (1 - done) * next_value), *targets),
        (
            "LOX220 next_value is multiplied by done",
            target(lambda reward, next_value, done: reward + 0.99 * done * next_value),
            *targets,
        ),
        (
            "LOX220 next_value of the next state is added to reward also where an episode ends: done comes with it",
            target(lambda reward, next_value, done: reward + 0.99 * next_value),
            *targets,
        ),
        (
            "LOX220 1 - done multiplies reward together with next_value",
            target(lambda reward, next_value, done: (reward + 0.99 * next_value) * (1 - done)),
            *targets,
        ),
        ("", target(lambda reward, next_value, done: (reward + next_value) * (1 - done)), *targets),
        ("", target(lambda reward, next_value, done: reward + 1.0 * next_value), *targets),
        ("", target(lambda reward, next_value, done: reward + 0.79 * next_value), *targets),
        ("LOX220 next_value", target(lambda reward, next_value, done: reward + 0.8 * next_value), *targets),
    )


# -- batch elements and shards ---------------------------------------------------------------------------------------


def test_batch_elements_share_what_is_summed_looked_up_or_unread():
    x, w = f32(6, 4), f32(4)
    psum, pmean = jax.lax.psum, jax.lax.pmean

    def named(fun, in_axes=0):
        return lambda *args: jax.vmap(fun, in_axes, axis_name="b")(*args)

    check(
        (
            "LOX301 The sum over the 6 batch elements of vmap adds the same value for each",
            named(lambda x, w: x * psum(w.sum(), "b"), (0, None)),
            x,
            w,
        ),
        ("", named(lambda x, w: x * pmean(w.sum(), "b"), (0, None)), x, w),
        ("", named(lambda x, w: x * psum(x.sum(), "b"), (0, None)), x, w),
        ("", named(lambda x, w: x / psum(1, "b") + w, (0, None)), x, w),
        (
            [
                "LOX310 A result of shape () is the same for all 6 ... and x of shape (6, 4) is used nowhere",
                "LOX310 'a lambda' is mapped over x, which it does not read",
            ],
            lambda x, w: jax.vmap(lambda x: w.sum())(x),
            x,
            w,
        ),
        ("", lambda x, w: jax.vmap(lambda x: w.sum() * x.sum())(x), x, w),
        ("", lambda x, w: jax.vmap(lambda x: w.sum(), out_axes=None)(x), x, w),
        (
            "LOX313 'a lambda' is mapped over x, which it reads as a whole from around it, and it does not read 'row'",
            lambda x, w: jax.vmap(lambda row: (x * w).sum(1))(x),
            x,
            w,
        ),
        ("", lambda x, w: jax.vmap(lambda row: (row * w).sum() + x.sum())(x), x, w),
        ("", lambda x, w: jax.vmap(lambda row, w: row * w, (0, None))(x, w), x, w),
        (
            "LOX305 What is averaged over the 6 batch elements of vmap is a sum divided by a sum of each",
            named(lambda x, m: pmean((x * m).sum() / m.sum(), "b")),
            x,
            flags(6, 4),
        ),
        ("", named(lambda x, m: psum((x * m).sum(), "b") / psum(m.sum(), "b")), x, flags(6, 4)),
        (
            "LOX214 The means of 2 parts of one array are averaged, and have 1 to 5 elements",
            lambda x: (x[:1].mean() + x[1:].mean()) / 2,
            f32(6),
        ),
        ("", lambda x: (x[:3].mean() + x[3:].mean()) / 2, f32(6)),
        ("", lambda x: (x[:3].mean() + x[3:].mean()) / 2, f32(7)),
        (
            "LOX214 ... 3 parts ... 1 to 3 elements",
            lambda x: jnp.stack([x[:3].mean(), x[3:6].mean(), x[6:].mean()]).mean(),
            f32(7),
        ),
        (
            "LOX312 'mean' goes over batch in a direct call, and over time in a call under vmap, which maps over batch",
            lambda x: (_centered(x), jax.vmap(_centered)(x)),
            x,
            Options(axes={"x": ("batch", "time")}),
        ),
        (
            "",
            lambda x: (_centered(x), jax.vmap(_centered, 1, 1)(x)),
            x,
            Options(axes={"x": ("time", "batch")}),
        ),
        ("", lambda x: (_centered(x), _centered(x.T).T), x, Options(axes={"x": ("batch", "time")})),
        (
            "LOX311 Axis 0 of x of shape (6 agent, 4) is agent, and the indices that are taken for it go along env",
            lambda x, i: jax.vmap(lambda x, i: x[i])(x, i),
            x,
            i32(6),
            Options(axes={"x": ("agent", None), "i": ("env",)}),
        ),
        (
            "",
            lambda x, i: jax.vmap(lambda x, i: x[i])(x, i),
            x,
            i32(6),
            Options(axes={"x": ("env", None), "i": ("env",)}),
        ),
        ("LOX311", lambda x, i: x[jnp.arange(6), i], x, i32(6), Options(axes={"x": ("agent", None), "i": ("env",)})),
    )


def _centered(x):
    return x - x.mean(0)


# -- random keys -----------------------------------------------------------------------------------------------------


KEY = jax.eval_shape(lambda: jax.random.key(0))


def test_keys_are_used_once_each():
    normal, split, fold = jax.random.normal, jax.random.split, jax.random.fold_in
    scan = jax.lax.scan

    def twice(use, other):
        def fun(key):
            a = use(key)
            b = other(key)
            return a, b

        return fun

    check(
        ("LOX700 The key 'key' is used here and was used before in line", twice(normal, jax.random.uniform), KEY),
        ("LOX700", twice(normal, split), KEY),
        ("", twice(lambda key: normal(fold(key, 0)), lambda key: normal(fold(key, 1))), KEY),
        (
            "LOX700 The same fold_in of the key 'key' is used here and was used before",
            twice(lambda key: normal(fold(key, 1)), lambda key: jax.random.gamma(fold(key, 1), 2.0)),
            KEY,
        ),
        ("LOX700 ... on the same line", lambda key: normal(key) + jax.random.uniform(key), KEY),
        ("", lambda key: normal((k := split(key, 3))[0]) + normal(k[1]) + normal(k[2]), KEY),
        (
            "LOX700",
            lambda key: normal((k := split(key, 3))[0]) + jax.random.uniform(k[-3]) + normal(k[1]) + normal(k[2]),
            KEY,
        ),
        (
            "LOX702 Each iteration of scan[5] uses the key 'key'",
            lambda key: scan(lambda c, _: (c + normal(key), None), 0.0, None, 5)[0],
            KEY,
        ),
        ("", lambda key: scan(lambda c, _: (c + normal(key), None), 0.0, None, 1)[0], KEY),
        ("", lambda key: scan(lambda c, i: (c + normal(fold(key, i)), None), 0.0, jnp.arange(5))[0], KEY),
        ("LOX702", lambda key: scan(lambda c, i: (c + normal(fold(key, 3)), None), 0.0, jnp.arange(5))[0], KEY),
        ("", lambda key: scan(lambda c, k: (c + normal(k), None), 0.0, split(key, 5))[0], KEY),
        (
            "LOX702 Each iteration of scan[5] uses the key 'key'",
            lambda key: scan(_drawn_and_kept, key, None, 5)[1],
            KEY,
        ),
        (
            ["LOX706", "LOX700 Each iteration of scan[5] uses here a key that the one before has used"],
            lambda key: scan(_drawn_and_used, key, None, 5)[1],
            KEY,
        ),
        ("", lambda key: scan(_drawn_and_split, key, None, 5)[1], KEY),
        ("LOX703 4 batch elements use the same key", lambda key: jax.vmap(normal)(jnp.broadcast_to(key, (4,))), KEY),
        (
            "LOX703 All batch elements of a vmap draw from one key here, and use the numbers with data of their own",
            lambda key, x: jax.vmap(lambda x: x + normal(key, (3,)))(x),
            KEY,
            f32(4, 3),
        ),
        ("", lambda key, x: jax.vmap(lambda key, x: x + normal(key, (3,)))(split(key, 4), x), KEY, f32(4, 3)),
        ("", lambda key, x: x + normal(key, (3,)), KEY, f32(4, 3)),
        (
            "LOX704 <lambda> takes no key, and draws here from a key that is a constant",
            lambda x: x + normal(jax.random.key(0), (4,)),
            X4,
        ),
        ("", lambda x: x + normal(jax.random.key(x[0].astype(int)), (4,)), X4),
        ("LOX705 <lambda> uses the key 'key' here, and returns it as 'out/1'", lambda key: (normal(key), key), KEY),
        ("", lambda key: (normal((k := split(key))[0]), k[1]), KEY),
        ("LOX706 Nothing uses [1] of the 3 keys that this split makes", _all_but_the_second, KEY),
        ("", _all_but_the_first, KEY),
        (
            [
                "LOX700 A key",
                "LOX708 Of 3 keys, this takes the one at [3], which is none of them: JAX takes the one at [2]",
                "LOX820 Element 3 along axis 0",
            ],
            _beyond,
            KEY,
        ),
    )


def _drawn_and_kept(key, _):
    other, used = jax.random.split(key)
    return key, jax.random.normal(used)


def _drawn_and_used(key, _):
    used = jax.random.split(key)[0]
    return used, jax.random.normal(used)


def _drawn_and_split(key, _):
    key, used = jax.random.split(key)
    return key, jax.random.normal(used)


def _all_but_the_second(key):
    one, _other, third = jax.random.split(key, 3)
    return jax.random.normal(one) + jax.random.normal(third)


def _all_but_the_first(key):
    keys = jax.random.split(key, 3)
    return jax.random.normal(keys[1]) + jax.random.normal(keys[2])


def _beyond(key):
    keys = jax.random.split(key, 3)
    return jax.random.normal(keys[1]), jax.random.normal(keys[2]), jax.random.normal(keys[3])


# -- compilation, and what is lost -----------------------------------------------------------------------------------


def test_what_differs_between_calls_names_the_argument_and_both_values():
    def fun(x, n=1.0, flag=None):
        return x * 2

    static = jax.jit(fun, static_argnames="n")

    def calls(*each):
        return Options(calls=[*each])

    def of_call(dtype, *shape):
        return of(dtype, *shape)

    x = f32(3)
    check(
        ("", fun, x, calls((f32(3),))),
        (
            "LOX420 'x' is float32[3] in an earlier call, and is float32[4] in call 2: fun is traced again",
            fun,
            x,
            calls((f32(4),)),
        ),
        ("LOX421 'x' is float32[3] in an earlier call, and is int32[3] in call 2", fun, x, calls((i32(3),))),
        ("LOX421 'n' is a Python number (float32, weakly typed) ... and is float32[]", fun, x, 2.0, calls((x, f32()))),
        ("", fun, x, 2.0, calls((x, 3.0))),
        ("LOX421 'n' ... (int32, weakly typed)", fun, x, 2.0, calls((x, 3))),
        ("LOX422 'flag'", fun, x, 1.0, None, calls((x, 1.0, x))),
        ("LOX423 'n' is 2 in an earlier call, and is 3 in call 2: fun is traced again", static, x, 2, calls((x, 3))),
        ("", static, x, 2, calls((x, 2))),
        ("LOX420 ... in call 3", fun, x, calls((f32(3),), (f32(2, 3),))),
        ("LOX420 'x/a' is float32[3]", lambda x: x["a"] * 2, {"a": x}, calls(({"a": f32(4)},))),
        (
            "LOX422 'x/b' is missing in an earlier call, and is float32[3] in call 2",
            lambda x: x["a"] * 2,
            {"a": x},
            calls(({"a": x, "b": x},)),
        ),
        (
            "LOX422 'x/b' is float32[3] in an earlier call, and is missing in call 2",
            lambda x: x["a"] * 2,
            {"a": x, "b": x},
            calls(({"a": x},)),
        ),
    )
    big, small = np.zeros(2**22, np.float32), np.zeros(2**22 - 1, np.float32)
    step = jax.jit(lambda s, x: s + x, donate_argnums=0)

    def host(length):
        return lambda x: jax.lax.scan(_printed, x, None, length)[0]

    check(
        ("LOX416 An array of float32[4194304], which takes 16 MiB, is a constant", lambda x: x + big, f32(2**22)),
        ("", lambda x: x + small, f32(2**22 - 1)),
        ("LOX417 's' [4] is donated to '<lambda>' ... and 'mul' uses it again", lambda s, x: step(s, x) * s, X4, X4),
        ("LOX417 's' [4] ... and it is returned", lambda s, x: (step(s, x), s), X4, X4),
        ("LOX417 's' [4] ... and it is passed twice in the same call", lambda s: step(s, s), X4),
        ("", lambda s, x: step(s, x) * x, X4, X4),
        ("LOX415", host(100), f32()),
        ("", host(99), f32()),
        (
            "LOX415 ... of a while loop",
            lambda x: jax.lax.while_loop(lambda x: x < 3, lambda x: _printed(x, None)[0], x),
            f32(),
        ),
    )


def _printed(x, _):
    jax.debug.callback(np.sin, x)
    return x + 1, None


def test_what_a_statement_computes_and_drops_and_what_replaces_nothing():
    def dropped(x):
        x.at[0].set(1.0)
        return x * 2

    def kept(x):
        x = x.at[0].set(1.0)
        return x * 2

    def sorted_for_nothing(x):
        jnp.sort(x)
        return x * 2

    def old_state(state, x):
        new_state = state + x  # noqa: F841
        return state, x * 2

    def new_state_returned(state, x):
        new_state = state + x
        return new_state, x * 2

    def evaluate(state, x):
        new_state = state + x  # noqa: F841
        return state, x * 2

    def unread_mask(x):
        clipped = jnp.clip(x, 0, 1)  # noqa: F841
        return x * 2

    def again_from_the_old(x):
        for _ in range(3):
            y = x * 2 + 1
        return y

    def again_from_the_new(x):
        y = x
        for _ in range(3):
            y = y * 2 + 1
        return y

    def same_in_each(params, grads):
        for _ in range(3):
            new_params = params - grads
        return new_params

    def another_in_each(params, grads):
        for _ in range(3):
            params = params * 0.5
            new_params = params - grads
        return new_params

    @jax.jit
    def in_place(state):
        state["n"] = state["n"] + 1
        return state["x"] * 2

    @jax.jit
    def in_place_and_returned(state):
        state["n"] = state["n"] + 1
        return state

    @jax.jit
    def of_its_own(state):
        state = dict(state)
        state["n"] = state["n"] + 1
        return state["x"] * 2

    state = {"n": f32(), "x": X4}
    check(
        ("LOX430 x.at[0].set(...) returns a new value and changes nothing in place", dropped, X4),
        ("", kept, X4),
        ("LOX430 jnp.sort(...) returns a new value", sorted_for_nothing, X4),
        (
            "LOX431 Nothing reads 'new_state', ... from 'state', and 'old_state' returns 'state' as it was",
            old_state,
            X4,
            X4,
        ),
        ("", new_state_returned, X4, X4),
        ("", evaluate, X4, X4),
        ("LOX431 Nothing reads 'clipped', which is computed here from 'x', and 'x' is used after it", unread_mask, X4),
        ("", again_from_the_old, X4),
        ("", again_from_the_new, X4),
        (
            "LOX431 Each iteration of a loop computes 'new_params' from 'params', which no iteration changes",
            same_in_each,
            X4,
            X4,
        ),
        ("", another_in_each, X4, X4),
        (
            "LOX435 'state['n']' is assigned in a copy of the argument, which 'in_place' does not return",
            in_place,
            state,
        ),
        ("", in_place_and_returned, state),
        ("", of_its_own, state),
    )


def test_logs_in_loops_and_branches():
    scan, cond = jax.lax.scan, jax.lax.cond

    def log(**values):
        lox.log(values)

    def loop(length, what):
        def fun(x):
            def body(c, row):
                log(a=what(c, row))
                return c + row, None

            return scan(body, jnp.zeros(4), x)[0]

        return fun, f32(length, 4)

    def branches(one, other):
        def fun(x):
            def then(x):
                one(x)
                return x

            def otherwise(x):
                other(x)
                return x

            return cond(x.sum() > 0, then, otherwise, x)

        return fun

    def while_logged(x):
        def body(x):
            log(a=x)
            return x * 2

        return jax.lax.while_loop(lambda x: x.sum() < 9, body, x)

    def unlike(x):
        log(a=x)
        log(a=x[:2])
        return x

    check(
        ("", *loop(5, lambda c, row: c)),
        (
            "LOX905 'a' is the same in each iteration of the loop",
            lambda x: scan(lambda c, row: (log(a=x.sum()), (c + row, None))[1], jnp.zeros(4), x)[0],
            f32(5, 4),
        ),
        ("LOX900 'a' is logged in a while_loop", while_logged, X4),
        (
            "LOX901 The branches ... branch 0 logs none of these; branch 1 logs 'a'",
            branches(lambda x: log(a=x), lambda x: None),
            X4,
        ),
        ("LOX901 ... branch 0 logs 'b'; branch 1 logs 'a'", branches(lambda x: log(a=x), lambda x: log(b=x)), X4),
        ("", branches(lambda x: log(a=x), lambda x: log(a=-x)), X4),
        (
            "LOX901 ... branch 0 logs 'a'; branch 1 logs 'a' (2 events)",
            branches(lambda x: (log(a=x), log(a=x)), lambda x: log(a=x)),
            X4,
        ),
        (
            "LOX901 ... branch 0 logs 'a' (4 events); branch 1 logs 'a' (5 events)",
            branches(
                lambda x: scan(lambda c, r: (c, log(a=r)), 0, x), lambda x: scan(lambda c, r: (c, log(a=r)), 0, x[1:])
            ),
            f32(5),
        ),
        ("LOX902 'a' is float32[2] with no steps here, and float32[4] with no steps at", unlike, X4),
        (
            "LOX903 65,536 events of 'a' of float32[4096] are 1.0 GiB",
            lambda x: scan(lambda c, r: (c + 1, log(a=x * c)), 0.0, None, 65536)[0],
            f32(4096),
        ),
        ("", lambda x: scan(lambda c, r: (c + 1, log(a=x * c)), 0.0, None, 65535)[0], f32(4096)),
        (
            "LOX904 The tap of 'a' calls back 1,000 times, in a loop of about",
            lox.tap(lambda x: scan(lambda c, r: (c + r, log(a=c)), 0.0, x)[0], print),
            f32(1000),
        ),
        ("", lox.tap(lambda x: scan(lambda c, r: (c + r, log(a=c)), 0.0, x)[0], print), f32(999)),
    )


P, MESH = PartitionSpec, AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
GRID = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def test_what_shards_return_and_sum_is_told_by_axis_size_and_name():
    psum, pmean, stop = jax.lax.psum, jax.lax.pmean, jax.lax.stop_gradient

    def sharded(fun, ins=(P("data"), P()), outs=P(), mesh=MESH):
        return jax.shard_map(fun, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)

    x, w = f32(32, 8), f32(8)
    on_grid = (P("data", "model"), P("model"))
    check(
        (
            "LOX300 By its out_specs, ... the same along 'data', and is not: result 0 of shape (8,). It depends on x",
            sharded(lambda x, w: x.mean(0)),
            x,
            w,
        ),
        ("", sharded(lambda x, w: pmean(x.mean(0), "data")), x, w),
        ("", sharded(lambda x, w: x.mean(0), outs=P("data")), x, w),
        ("", sharded(lambda x, w: w * 2), x, w),
        ("LOX300 ... result 1 of shape (8,)", sharded(lambda x, w: (w, x.sum(0)), outs=(P(), P())), x, w),
        ("", sharded(lambda x, w: (w, x.sum(0)), outs=(P(), P("data"))), x, w),
        (
            "LOX300 ... depends on the index of the shard",
            sharded(lambda x, w: w * jax.lax.axis_index("data"), (P(), P())),
            x,
            w,
        ),
        ("LOX300 ... 'model'", sharded(lambda x, w: psum(x.sum(), "data"), on_grid, mesh=GRID), x, w),
        ("LOX300 ... 'data'", sharded(lambda x, w: psum(x.sum(), "model"), on_grid, mesh=GRID), x, w),
        ("", sharded(lambda x, w: psum(x.sum(), ("data", "model")), on_grid, mesh=GRID), x, w),
        ("", sharded(lambda x, w: jax.lax.pmax(x.sum(0), "data")), x, w),
        ("", sharded(lambda x, w: jax.lax.all_gather(x.sum(), "data")), x, w),
        (
            "LOX301 What is summed over the 4 shards along 'data' ... w of shape (8,). The result is 4 times that",
            sharded(lambda x, w: psum(x.sum(0), "data") + psum(w, "data")),
            x,
            w,
        ),
        ("", sharded(lambda x, w: psum(x.sum(0), "data") + pmean(w, "data")), x, w),
        (
            "LOX301 ... over the 2 shards along 'model'",
            sharded(
                lambda x, w: psum(x.sum(), ("data", "model")) + psum(psum(w.sum(), "model"), "model"),
                on_grid,
                mesh=GRID,
            ),
            x,
            w,
        ),
        (
            "LOX304 What psum or pmean returns is used nowhere, and what goes into it is used below",
            sharded(_dropped_mean, outs=P("data")),
            x,
            w,
        ),
        (
            "LOX305 What is averaged over the 4 shards along 'data' is a sum divided by a sum that differs",
            sharded(lambda x, m: pmean((x * m).sum() / m.sum(), "data"), (P("data"), P("data"))),
            x,
            x,
        ),
        ("", sharded(lambda x, m: psum((x * m).sum(), "data") / psum(m.sum(), "data"), (P("data"), P("data"))), x, x),
        ("", sharded(lambda x, m: pmean((x * m).sum() / psum(m.sum(), "data"), "data"), (P("data"), P("data"))), x, x),
        (
            "LOX709 What is drawn here comes from one key for all 4 shards along 'data'",
            sharded(lambda x, key: psum((x + jax.random.normal(key, x.shape)).sum(), "data")),
            x,
            KEY,
        ),
        ("", sharded(lambda x, key: psum((x + jax.random.normal(_own(key), x.shape)).sum(), "data")), x, KEY),
        ("", sharded(lambda x, key: psum((x + jax.random.normal(key, x.shape[1:])).sum(), "data")), x, KEY),
    )
    del stop


def _dropped_mean(x, w):
    mean = x.mean(0)
    jax.lax.pmean(mean, "data")
    return x - mean


def _own(key):
    return jax.random.fold_in(key, jax.lax.axis_index("data"))


def test_what_a_loop_carries_on_as_it_was_or_for_nothing():
    scan = jax.lax.scan
    xs, w = f32(6, 4), f32(4)

    def run(step, *start):
        return lambda xs, w: scan(step, tuple(each(w) for each in start), xs)

    def one_stays(c, x):
        return (c[0], c[1] + c[0] * x), c[1]

    def both_change(c, x):
        return (c[0] * 0.5, c[1] + c[0] * x), c[1]

    def two_stay(c, x):
        return (c[0], c[1], c[2] + c[1] * c[0] * x), c[2]

    def old_hidden(carry, x):
        h, y = carry
        new_h = jnp.tanh(h + x)
        return (h, y + new_h), y

    def new_hidden(carry, x):
        h, y = carry
        new_h = jnp.tanh(h + x)
        return (new_h, y + new_h), y

    def count_stays(carry, x):
        step, y = carry
        return (step, y + x / (1 + step)), y

    def count_goes_on(carry, x):
        step, y = carry
        return (step + 1, y + x / (1 + step)), y

    def previous_stays(carry, x):
        prev_x, y = carry
        return (prev_x, y + x - prev_x), y

    def previous_goes_on(carry, x):
        prev_x, y = carry
        return (x, y + x - prev_x), y

    def nothing_reads(carry, x):
        best, y = carry
        return (x * 2, y + x), y

    def something_reads(carry, x):
        best, y = carry
        return (jnp.maximum(best, x), y + x), y

    def flag_unread(carry, x):
        hit, y = carry
        return (hit | (x > 1).any(), y + x), y

    def same(w):
        return w

    def zero(w):
        return 0

    def last(fun):
        return lambda xs, w: fun(xs, w)[0][1]

    check(
        ("LOX208 The body of a loop returns c[0] of its carry as it got it", run(one_stays, same, jnp.sin), xs, w),
        ("", run(both_change, same, jnp.sin), xs, w),
        (
            "LOX208 The body of a loop returns c[0] and c[1] of its carry as it got them",
            run(two_stay, same, jnp.sin, jnp.cos),
            xs,
            w,
        ),
        (
            "LOX208 The body of a loop computes 'new_h' in line ... and returns 'h' of its carry as it got it",
            run(old_hidden, same, jnp.sin),
            xs,
            w,
        ),
        ("", run(new_hidden, same, jnp.sin), xs, w),
        (
            "LOX208 The body of a loop reads 'step' of its carry, which begins at 0, and returns it as it got it",
            run(count_stays, zero, jnp.sin),
            xs,
            w,
        ),
        ("", run(count_goes_on, zero, jnp.sin), xs, w),
        (
            "LOX208 The body of a loop reads 'prev_x' of its carry as that of the step before",
            run(previous_stays, same, jnp.sin),
            xs,
            w,
        ),
        ("", run(previous_goes_on, same, jnp.sin), xs, w),
        (
            "LOX209 A loop computes carry[0] of its carry anew in each iteration, and nothing",
            last(run(nothing_reads, same, jnp.sin)),
            xs,
            w,
        ),
        ("", run(nothing_reads, same, jnp.sin), xs, w),
        ("LOX209 A loop computes carry[0]", last(run(something_reads, same, jnp.sin)), xs, w),
        (
            "LOX209 A loop keeps in carry[0] of its carry whether something happened, and nothing reads it",
            last(run(flag_unread, lambda w: w[0] > 9, jnp.sin)),
            xs,
            w,
        ),
        ("", run(flag_unread, lambda w: w[0] > 9, jnp.sin), xs, w),
    )


def test_what_is_compiled_again_or_reads_what_changes():
    def again(times):
        def fun(x):
            for _ in range(times):
                x = jax.jit(lambda x: jnp.sin(x) + 1)(x)
            return x

        return fun

    def other_each_time(x):
        for i in range(4):
            x = jax.jit(lambda x: x[: 4 - i] + 1)(x)
        return x

    def growing(times):
        def fun(x):
            total = jax.jit(_summed)
            return [total(x[: i + 1]) for i in range(times)]

        return fun

    def constants(times):
        scaled = jax.jit(_scaled, static_argnames="by")

        def fun(x):
            for i in range(times):
                x = scaled(x, by=float(i + 2))
            return x

        return fun

    def frozen(x):
        rate = 1.0

        @jax.jit
        def step(x):
            return x * rate

        for _ in range(3):
            x = step(x)
            rate = rate * 0.5
        return x

    def passed(x):
        rate = 1.0

        @jax.jit
        def step(x, rate):
            return x * rate

        for _ in range(3):
            x = step(x, rate)
            rate = rate * 0.5
        return x

    check(
        ("LOX434 '<lambda>' is traced and compiled 3 times for equal arguments", again(3), X4),
        ("", again(2), X4),
        ("", other_each_time, X4),
        (
            "LOX420 '_summed' is traced and compiled 5 times ... 'x' has shape (1,), then (2,), up to (5,)",
            growing(5),
            f32(9),
        ),
        ("", growing(4), f32(9)),
        ("LOX423 '_scaled' is traced and compiled 5 times on this line, for each value of 'by'", constants(5), X4),
        ("", constants(4), X4),
        ("LOX433 'step' reads 'rate' once, while it is traced, and line", frozen, X4),
        ("", passed, X4),
    )


def _summed(x):
    return x.sum()


def _scaled(x, by):
    return x * by


def _decayed(loop):
    def fun(state):
        def body(state):
            new = {"norm": state["norm"] * 0.5, "rate": state["rate"]}
            state["rate"] = state["rate"] * 0.9
            return new

        return loop(body, state)

    return fun


def _mean_loss(count_from):
    def fun(losses, masks):
        def step(carry, batch):
            total, count = carry
            loss, mask = batch
            return (total + (loss * mask).sum() / mask.sum(), count + 1), None

        (total, count), _ = jax.lax.scan(step, (0.0, count_from), (losses, masks))
        return total / count

    return fun


def _ignored_together(x):
    print(x); return x.squeeze()  # fmt: skip # noqa: E702  # lox: ignore[LOX410, LOX109]


def test_variants_of_which_only_one_kind_is_a_mistake():
    def whole(condition):
        return lambda body, state: jax.lax.while_loop(condition, body, state)

    state = {"norm": f32(), "rate": f32()}
    array = f32(10, 32, 8)
    check(
        ("", lambda x: x - x.T, f32(1, 1)),
        ("LOX110", lambda x: x - x.T, f32(2, 2)),
        ("LOX103", lambda x: x.reshape(8, 16).sum(axis=1), i32(16, 8)),
        ("LOX103", lambda x: x.reshape(8, 16).sum(axis=1), f32(16, 8)),
        ("LOX103", lambda x: x.reshape(8, 16).sum(axis=1), of(jnp.uint8, 16, 8)),
        ("", lambda x: x.reshape(8, 16).any(axis=1), flags(16, 8)),
        ("LOX606", lambda x: jnp.arccos(jnp.clip(x, 0.0, 1.0)).sum(), X4, Options(differentiate="x")),
        ("LOX606", lambda x: jnp.arccos(jnp.clip(x, -1.0, 0.0)).sum(), X4, Options(differentiate="x")),
        ("", lambda x: jnp.arccos(jnp.clip(x, -0.5, 0.5)).sum(), X4, Options(differentiate="x")),
        ("LOX435", _decayed(whole(lambda state: state["norm"] > 1e-3)), state),
        ("LOX214", _mean_loss(0), array, array),
        ("LOX214", _mean_loss(0.0), array, array),
        ("", lambda counts, x: counts.at[0].set(jnp.ceil(x / 10)), i32(8), f32()),
        ("", lambda counts, x: counts.at[0].set(jnp.floor(x / 10)), i32(8), f32()),
        ("LOX822", lambda counts, x: counts.at[0].set(x / 10), i32(8), f32()),
        ("", _ignored_together, f32(16, 1)),
    )


# -- what few programs have ------------------------------------------------------------------------------------------


def _written_from(first, rows):
    ones = jnp.ones((rows, 4))
    return lambda i, c: jax.lax.dynamic_update_slice(c, ones, (i + first, 0))


def test_places_beyond_the_end_are_read_written_and_dropped_as_each_function_does():
    x = f32(6, 4)
    loop, zeros = jax.lax.fori_loop, jnp.zeros(4)
    at = "LOX212 A loop of "
    check(
        (
            at + "5 iterations writes up to elements 5 to 6 ... beyond the end, JAX writes over what is last instead.",
            lambda x: loop(0, 5, _written_from(1, 2), x),
            x,
        ),
        ("", lambda x: loop(0, 4, _written_from(1, 2), x), x),
        (
            at + "6 iterations writes up to elements 5 to 6 ... writes over what is last",
            lambda x: loop(0, 6, _written_from(0, 2), x),
            x,
        ),
        (
            at + "5 iterations writes up to elements 4 to 5 along axis 1",
            lambda x: loop(0, 5, lambda i, c: jax.lax.dynamic_update_slice_in_dim(c, jnp.ones((6, 2)), i, axis=1), x),
            x,
        ),
        (
            at + "6 iterations writes up to element 6 along axis 0 ... beyond the end, JAX writes nothing.",
            lambda x: loop(0, 6, lambda i, c: c.at[i + 1].add(x[i]), x),
            x,
        ),
        (
            at + "5 iterations writes up to element 4 along axis 1 ... writes nothing.",
            lambda x: loop(0, 5, lambda i, c: c.at[:, i].set(1.0), x),
            x,
        ),
        ("", lambda x: loop(0, 4, lambda i, c: c.at[:, i].set(1.0), x), x),
        (
            at + "7 iterations reads up to element 6 ... beyond the end, JAX reads what is last instead.",
            lambda x: loop(0, 7, lambda i, c: c + jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False), zeros),
            x,
        ),
        ("", lambda x: loop(0, 7, lambda i, c: c + jnp.where(i >= 6, 0, x[i]), zeros), x),
        (at + "7 iterations reads", lambda x: loop(0, 7, lambda i, c: c + jnp.where(i == 0, 0, x[i]), zeros), x),
        (at + "7 iterations reads", lambda x: loop(0, 7, lambda i, c: c + jax.jit(lambda x: x[i])(x), zeros), x),
        (
            at + "5 iterations reads up to element 4 along axis 1",
            lambda x: loop(0, 5, lambda i, c: c + x[1, i], 0.0),
            x,
        ),
        (
            at + "7 iterations reads up to element 6",
            lambda x: jax.lax.scan(lambda c, _: ((c[0] - 1, c[1] + x[c[0]]), None), (6, zeros), None, length=7)[0][1],
            x,
        ),
        (
            "",
            lambda x: jax.lax.scan(lambda c, _: ((c[0] - 1, c[1] + x[c[0]]), None), (5, zeros), None, length=6)[0][1],
            x,
        ),
        (
            at + "6 iterations reads up to element 6",
            lambda x: jax.lax.scan(lambda c, i: (c + x[i], None), zeros, 1 + jnp.arange(6))[0],
            x,
        ),
    )
    check(("", lambda x: loop(0, 7, lambda i, c: c + x.at[i].get(mode="clip"), zeros), x))


def test_values_of_the_next_step_that_are_read_at_an_index_stop_where_an_episode_ends():
    def back(step):
        def fun(rewards, values, dones):
            length = rewards.shape[0]

            def body(i, carry):
                advantage, out = carry
                t = length - 1 - i
                advantage = step(rewards[t], values[t], values[t + 1], dones[t], advantage)
                return advantage, out.at[t].set(advantage)

            return jax.lax.fori_loop(0, length, body, (0.0, jnp.zeros(length)))[1]

        return fun

    rollout = f32(9), f32(10), f32(9)
    of_next = "LOX220 ... of a step at which an episode ends depends on the next value of the step after it"
    of_advantage = "LOX220 carry[0] of a step at which an episode ends depends on carry[0] of the step after it"
    check(
        ("", back(lambda r, v, n, d, a: r + 0.9 * n * (1 - d) - v + 0.8 * (1 - d) * a), *rollout),
        ("", back(lambda r, v, n, d, a: r + (0.9 * n + 0.8 * a) * (1 - d) - v), *rollout),
        (of_next, back(lambda r, v, n, d, a: r + 0.9 * n - v + 0.8 * (1 - d) * a), *rollout),
        (of_next, back(lambda r, v, n, d, a: jnp.where(d > 0, r - v + n, r + 0.9 * n - v + 0.8 * a)), *rollout),
        (of_advantage, back(lambda r, v, n, d, a: r + 0.9 * n * (1 - d) - v + 0.8 * a), *rollout),
    )


def test_weights_and_flags_of_returns_without_a_scan():
    def associative(weights):
        def fun(rewards, dones):
            def add(one, other):
                return one[0] * other[0], other[1] + other[0] * one[1]

            given = weights(rewards, dones), rewards * (1 - dones)
            return jax.lax.associative_scan(add, given, reverse=True)[1]

        return fun

    rollout = f32(9), f32(9)
    full = jnp.full
    windows = f32(8, 5), f32(8, 5), f32(8)
    check(
        ("LOX220 An associative scan multiplies", associative(lambda r, d: full(r.shape, 0.9)), *rollout),
        (
            "LOX220 An associative scan multiplies",
            associative(lambda r, d: full(r.shape, 0.9) * 0.95 * jnp.ones(r.shape)),
            *rollout,
        ),
        ("LOX220 An associative scan", associative(lambda r, d: full(r.shape, 0.9) * jnp.exp(r[0])), *rollout),
        ("", associative(lambda r, d: 0.9 * (1 - d)), *rollout),
        ("", associative(lambda r, d: full(r.shape, 0.9) * r), *rollout),
        (
            "LOX220 rewards of 5 steps is added up along axis 1, and of dones the last one alone is read",
            lambda rewards, dones, value: (rewards * 0.9 ** jnp.arange(5) * 2).sum(1) + value * (1 - dones[:, -1]),
            *windows,
        ),
        (
            "",
            lambda rewards, dones, value: (rewards * (1 - dones)).sum(1) + value * (1 - dones[:, -1]),
            *windows,
        ),
        (
            "",
            lambda rewards, dones, value: (rewards * 0.9 ** jnp.arange(5)).sum(0).sum() + value * (1 - dones[:, -1]),
            *windows,
        ),
    )


def test_the_ends_of_what_is_clamped_multiplied_and_squared_are_reached():
    by = Options(differentiate="x")
    clamp, root = jax.lax.clamp, "LOX606 The operand of 'sqrt' can be 0"
    acos = "LOX606 The operand of 'acos' can be "
    first, last = slice(2), slice(2, None)
    check(
        (root, lambda x: jnp.sqrt(clamp(0.0, x, 5.0)).sum(), X4, by),
        ("", lambda x: jnp.sqrt(clamp(0.1, x, 5.0)).sum(), X4, by),
        ("", lambda x: jnp.sqrt(clamp(0.0, jnp.exp(x), 5.0)).sum(), X4, by),
        (root, lambda x: jnp.sqrt(5 - clamp(1.0, x, 5.0)).sum(), X4, by),
        ("", lambda x: jnp.sqrt(5 - clamp(1.0, -jnp.exp(x), 5.0)).sum(), X4, by),
        (acos + "-1", lambda x: jnp.arccos(clamp(-1.0, x, 0.5)).sum(), X4, by),
        (acos + "1", lambda x: jnp.arccos(clamp(-0.5, x, 1.0)).sum(), X4, by),
        ("", lambda x: jnp.arccos(clamp(-0.9, x, 0.9)).sum(), X4, by),
        (root, lambda x: jnp.sqrt(jnp.maximum(x, 0) * jnp.maximum(x[::-1], 0)).sum(), X4, by),
        (root, lambda x: jnp.sqrt(jnp.exp(x) * jnp.maximum(x[::-1], 0)).sum(), X4, by),
        ("", lambda x: jnp.sqrt(jnp.exp(x) * jnp.exp(x[::-1])).sum(), X4, by),
        (root, lambda x: jnp.sqrt(2 * x[first] ** 2 + x[last] ** 2).sum(), X4, by),
        (root, lambda x: jnp.sqrt(x[first] ** 2 + x[last] ** 2 + (3 * x[first]) ** 2).sum(), X4, by),
        (root, lambda x: jnp.sqrt(x[first] * x[first] + x[last] * x[last]).sum(), X4, by),
        ("", lambda x: jnp.sqrt(x[first] ** 2 + jnp.exp(x[last]) ** 2).sum(), X4, by),
        (root, lambda x: jnp.sqrt((jnp.concatenate([x, 2 * x]) ** 2).sum()), X4, by),
        (root, lambda x: jnp.sqrt((x.reshape(2, 2) ** 2).sum()), X4, by),
    )


def test_advantages_that_depend_on_parameters_are_found_in_each_way_to_write_a_log_probability():
    soft = jax.nn.softplus

    def loss(log_probability, stops):
        def fun(w, v, obs, action, returns):
            values = obs @ v
            values = jax.lax.stop_gradient(values) if stops else values
            return -(log_probability(obs @ w, action) * (returns - values)).mean() + ((obs @ v - returns) ** 2).mean()

        return fun

    given = f32(4), f32(4), f32(8, 4), f32(8), f32(8), Options(differentiate=("w", "v"))
    bad = "LOX611 A log probability is multiplied by an advantage"
    for log_probability in (
        lambda x, a: a * jax.nn.log_sigmoid(x) + (1 - a) * jax.nn.log_sigmoid(-x),
        lambda x, a: -a * soft(-x) - (1 - a) * soft(x),
        lambda x, a: jnp.log(a * jax.nn.sigmoid(x) + (1 - a) * (1 - jax.nn.sigmoid(x)) + 1e-6),
        lambda x, a: -((a - x) ** 2) / 2,
    ):
        check((bad, loss(log_probability, stops=False), *given), ("", loss(log_probability, stops=True), *given))


def _search(score, again, keeps):
    def fun(x, moves, w, v):
        def step(carry, move):
            best, least = carry
            candidate = best + move
            new = again(candidate, w, v)
            taken = jnp.where(new < least, candidate, best)
            return (taken, jnp.where(new < least, new, least) if keeps else least), new

        return jax.lax.scan(step, (x, score(x, w, v)), moves)

    return fun


def test_the_score_of_the_best_is_carried_on_with_it():
    given = f32(4), f32(6, 4), f32(4), f32(4)
    stays = "LOX208 The body of a loop compares with 'least' of its carry to decide what to take"
    check(
        (stays, _search(lambda x, w, v: jnp.tanh(x @ w), lambda x, w, v: jnp.tanh(x @ w), keeps=False), *given),
        ("", _search(lambda x, w, v: jnp.tanh(x @ w), lambda x, w, v: jnp.tanh(x @ w), keeps=True), *given),
    )


def test_statistics_over_a_batch_are_those_of_a_normalization_that_goes_over_features():
    def layer_norm(x):
        return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)

    def batch_norm(x):
        return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)

    def clipped(x):
        norm = jnp.sqrt((x**2).sum())
        return jnp.where(norm > 1, x / norm, x)

    x, batch = f32(6, 4), Options(axes={"x": ("batch", None)})
    check(
        (
            "LOX112 'layer_norm' takes the mean of x of shape (6 batch, 4) over batch, and not over the features",
            lambda x: layer_norm(x),
            x,
            batch,
        ),
        ("", lambda x: batch_norm(x), x, batch),
        ("", lambda x: layer_norm(x.T).T, x, batch),
        ("LOX112 The norm of", lambda x: x / jnp.sqrt((x**2).sum(0)), x, batch),
        ("", lambda x: x / jnp.sqrt((x**2).sum(1, keepdims=True)), x, batch),
        ("LOX112 The norm of", lambda x: clipped(x), f32(6), Options(axes={"x": ("batch",)})),
        ("", lambda x: x / jnp.sqrt((x**2).sum()), f32(6), Options(axes={"x": ("batch",)})),
    )


class State(NamedTuple):
    """Two arrays, and a step of training."""

    a: jax.Array
    b: jax.Array

    def apply_gradients(self, *, grads):
        return self._replace(a=self.a - grads)


KEPT = None


def test_new_states_that_are_dropped_and_tracers_that_stay_in_a_global_name():
    def replaced(state):
        state._replace(a=state.b * 2)
        return state

    def trained(state):
        state.apply_gradients(grads=state.b)
        return state

    def renamed(state):
        "a".replace("a", "b")
        return state

    def kept(state):
        state = state._replace(a=state.b * 2)
        return state

    def stays(state):
        global KEPT
        KEPT = state.a * 2
        return state

    def counts(state):
        global KEPT
        KEPT = len(state)
        return state

    state = State(X4, X4)
    check(
        ("LOX430 state._replace(...) returns a new value and changes nothing in place", replaced, state),
        ("LOX430 state.apply_gradients(...) returns a new value and changes nothing in place", trained, state),
        ("", renamed, state),
        ("", kept, state),
        ("LOX414 The global 'KEPT' holds a tracer after 'stays' was traced.", stays, state),
        ("", counts, state),
    )
