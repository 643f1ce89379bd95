"""Edges of what an audit says of dtypes, and that what JAX and libraries do is not mentioned."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from benchmarks.corpus import cases

CASES = [case for case in cases() if case.family == "numerics"]


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def of(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)


def found(fun, *args):
    report = lox.audit(fun)(*args)
    numerics = (each.code for each in (*report.issues, *report.warnings) if each.code.startswith("LOX8"))
    return set(numerics)


@pytest.mark.parametrize("case", [case for case in CASES if not case.wrong], ids=lambda case: case.name)
def test_what_is_right_is_not_mentioned(case):
    assert case.code not in found(case.fun, *case.args)


X8, Y8 = of(jnp.uint8, 4), of(jnp.uint8, 4)
FLOATS = of(jnp.float32, 4)
EDGES = [
    ("a_sum_that_just_fits", lambda x: (x // 2) + 128, (X8,), set()),
    ("a_sum_that_just_does_not_fit", lambda x: (x // 2) + 129, (X8,), {"LOX801"}),
    ("a_difference_below_zero", lambda x: x - 1 - 1, (X8,), set()),  # It may be a counter.
    ("a_difference_of_pixels", lambda x, y: x - y, (X8, Y8), {"LOX801"}),
    ("a_mask", lambda x, y: x * y, (X8, Y8), set()),
    ("what_wraps_is_found_once", lambda x, y: (x + y) + 7, (X8, Y8), {"LOX801"}),
    ("signed_integers_of_a_library", lambda x, y: x * y + x, (of(jnp.int8, 4), of(jnp.int8, 4)), set()),
    ("an_index_of_32_bits", lambda x: jnp.arange(46342) * jnp.arange(46342) - x, (of(jnp.int32),), {"LOX801"}),
    ("an_index_that_fits", lambda x: jnp.arange(46341) * jnp.arange(46341) - x, (of(jnp.int32),), set()),
    ("minus_one_as_all_bits", lambda x: jnp.where(x > 0, 3, -1).astype(jnp.uint32), (of(jnp.int32, 4),), set()),
    ("128_as_int8", lambda x: jnp.clip(x, 0, 128).astype(jnp.int8), (of(jnp.float32, 4),), {"LOX802"}),
    ("127_as_int8", lambda x: jnp.clip(x, 0, 127.5).astype(jnp.int8), (of(jnp.float32, 4),), set()),
    ("a_remainder_as_int8", lambda x: (x % 100).astype(jnp.int8), (of(jnp.int32, 4),), set()),
    ("remainders_as_int8", jax.vmap(lambda x: (x % 128).astype(jnp.int8)), (of(jnp.int32, 4),), set()),
    ("a_larger_remainder_as_int8", lambda x: (x % 129).astype(jnp.int8), (of(jnp.int32, 4),), {"LOX802"}),
    ("a_negative_remainder_as_int8", lambda x: (x % -129).astype(jnp.int8), (of(jnp.int32, 4),), set()),
    ("powers_of_ten", lambda x: 10 ** (x % 10), (of(jnp.int32, 4),), set()),
    ("all_of_16_bits_as_8", lambda x: x.astype(jnp.int8), (of(jnp.int16, 4),), set()),
    ("257_numbers_in_bfloat16", lambda x: x * jnp.arange(257, dtype=x.dtype), (of(jnp.bfloat16, 257),), set()),
    ("258_numbers_in_bfloat16", lambda x: x * jnp.arange(258, dtype=x.dtype), (of(jnp.bfloat16, 258),), {"LOX803"}),
    ("promoted_to_float16", lambda x: x * jnp.arange(3000), (of(jnp.float16, 3000),), {"LOX803"}),
    ("samples_of_16_bits", lambda x: x.astype(jnp.bfloat16), (of(jnp.int16, 9),), set()),
    ("infinite_exp", lambda x: jnp.exp(jnp.clip(x, -90, 90)), (of(jnp.float32, 4),), {"LOX804"}),
    ("finite_exp", lambda x: jnp.exp(jnp.clip(x, -88, 88)), (of(jnp.float32, 4),), set()),
    ("infinity_as_the_largest_float", lambda x: jnp.tanh(x) + jnp.where(x > 0, 3e38, 0) * 2, (FLOATS,), set()),
    ("a_constant_as_float16", lambda x: x * jnp.asarray(5001).astype(jnp.float16), (of(jnp.float16, 4),), set()),
    ("a_mask_in_float16", lambda x: jnp.where(x, 0.0, -1e9).astype(jnp.float16), (of(jnp.bool_, 4),), set()),
    ("sum_of_255", lambda x: jnp.cumsum(x), (of(jnp.bfloat16, 255),), set()),
    ("sum_of_256", lambda x: jnp.cumsum(x), (of(jnp.bfloat16, 256),), {"LOX805"}),
]


@pytest.mark.parametrize(("fun", "args", "codes"), [edge[1:] for edge in EDGES], ids=[edge[0] for edge in EDGES])
def test_edges(fun, args, codes):
    assert found(fun, *args) == codes


def test_what_wraps_is_at_its_line_and_only_there():
    def fun(x, y):
        total = x + y
        return (total + 9) * 3

    (finding,) = lox.audit(fun)(X8, Y8).warnings
    assert finding.line == fun.__code__.co_firstlineno + 1
    assert finding.message.startswith("'add' of uint8 in [0, 255] and [0, 255] is in [0, 510]")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (np.array([2**31]), "2147483648 wraps around to -2147483648"),
        (np.array([1e39, 1.0]), "1e+39 becomes infinite"),
        (np.array([16777217.0, 5.0]), "16777217 becomes 16777216"),
        (np.array([[1e9 + 1, 0.5], [1e9 + 2, 0.5], [1e9 + 4, 0.5]]), "1000000001 becomes 1000000000"),
        (1e6 + np.arange(40) / 100, "such as 1000000.0 and 1000000.01"),
        (np.array([2**31 - 1, -(2**31)]), ""),
        (np.array([np.inf, np.nan, 16777216.0, 0.1]), ""),
        (np.zeros((0, 3)), ""),
        (np.float64(0.1), ""),
        (np.array([True]), ""),
    ],
)
def test_what_an_argument_loses(argument, message):
    findings = [finding for finding in lox.audit(lambda x: x)(argument).warnings if finding.code == "LOX800"]
    assert [message in finding.message for finding in findings] == ([True] if message else [])


def test_with_64_bits_arguments_lose_nothing():
    with jax.enable_x64(True):
        assert not found(lambda x: x, np.array([1e300, 16777217.0])) | found(lambda x: x, np.array([2**40]))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_functions_of_jax_nn_are_not_mentioned(dtype):
    x = of(dtype, 8, 16)
    functions = [fun for name, fun in vars(jax.nn).items() if not name.startswith("_") and callable(fun)]
    functions += [jax.scipy.special.logsumexp, jax.scipy.special.xlogy, jnp.logaddexp, jax.scipy.special.entr]
    seen = 0
    for fun in functions:
        if inspect.isclass(fun):
            continue

        def differentiated(x, fun=fun):
            return jax.grad(lambda x: fun(x).astype(jnp.float32).sum())(x)

        for each in (fun, differentiated):
            seen += not lox.audit(each)(x).issues
            assert not found(each, x), fun
    assert seen > 30


def test_integers_of_jax_are_not_mentioned():
    def fun(key, table, small):
        chosen = jax.random.randint(key, (5,), 0, 100_000), jax.random.randint(key, (5,), 0, 200, jnp.uint8)
        shuffled = jax.random.permutation(key, 100_000), jax.random.choice(key, 100_000, (3,))
        noise = jax.random.normal(key, (300,), jnp.bfloat16), jax.random.bits(key, (3,), jnp.uint8)
        return chosen, shuffled, noise, table[small], table.at[small, 0].add(1.0), jnp.linspace(0, 1, 9)[small]

    for dtype in (jnp.int8, jnp.uint8):
        assert not found(fun, jax.random.key(0), of(jnp.float32, 200, 200), of(dtype, 3))


def test_training_with_optax_and_flax_is_not_mentioned():
    import optax
    from flax import linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            x = nn.Embed(50_000, 32, dtype=jnp.bfloat16)(tokens)
            x = nn.MultiHeadDotProductAttention(4, dtype=jnp.bfloat16)(x, mask=nn.make_causal_mask(tokens))
            x = nn.RNN(nn.GRUCell(32, dtype=jnp.bfloat16))(nn.LayerNorm(dtype=jnp.bfloat16)(x))
            return nn.Dense(10, dtype=jnp.bfloat16)(x)

    model, optimizer = Model(), optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000))

    def train(key, tokens, labels):
        def loss(params, at):
            logits = model.apply(params, at[0]).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, at[1]).mean()

        def step(carry, at):
            params, state = carry
            updates, state = optimizer.update(jax.grad(loss)(params, at), state, params)
            return (optax.apply_updates(params, updates), state), None

        params = model.init(key, tokens[0])
        return jax.lax.scan(step, (params, optimizer.init(params)), (tokens, labels))[0]

    tokens = of(jnp.int32, 1000, 4, 512)
    report = lox.audit(train)(jax.random.key(0), tokens, tokens)
    assert not report.issues
    assert not found(train, jax.random.key(0), tokens, tokens)
