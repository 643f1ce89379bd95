"""Edges of what an audit says of dtypes, and that what JAX and libraries do is not mentioned."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import cases, f32, flags

import lox

CASES = [case for case in cases() if case.family == "numerics"]


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def of(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)


def found(fun, *args):
    report = lox.audit(fun)(*args)
    assert "LOX400" not in {issue.code for issue in report.issues}  # Of what raises, little is looked at.
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
        (np.array([2**40, 1], np.uint64), "1099511627776 wraps around to 0"),
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


OF_OTHER_ARGUMENTS = {"dot_product_attention", "one_hot", "get_scaled_dot_general_config"}
OF_OTHER_ARGUMENTS |= {"scaled_dot_general", "scaled_matmul"}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_functions_of_jax_nn_are_not_mentioned(dtype):
    x = of(dtype, 8, 16)
    public = {name: fun for name, fun in vars(jax.nn).items() if not name.startswith("_") and callable(fun)}
    functions = [fun for name, fun in public.items() if name not in OF_OTHER_ARGUMENTS and not inspect.isclass(fun)]
    functions += [jax.scipy.special.logsumexp, jax.scipy.special.entr]
    functions += [lambda x: jax.scipy.special.xlogy(x, x), lambda x: jnp.logaddexp(x, x)]
    assert len(functions) > 30
    for fun in functions:

        def called(x, fun=fun):
            return fun(x)

        def differentiated(x, fun=fun):
            return jax.grad(lambda x: fun(x).astype(jnp.float32).sum())(x)

        assert not found(called, x) | found(differentiated, x), fun


def test_integers_of_jax_are_not_mentioned():
    def fun(key, table, small):
        chosen = jax.random.randint(key, (5,), 0, 100_000), jax.random.randint(key, (5,), 0, 200, jnp.uint8)
        shuffled = jax.random.permutation(key, 100_000), jax.random.choice(key, 100_000, (3,))
        noise = jax.random.normal(key, (300,), jnp.bfloat16), jax.random.bits(key, (3,), jnp.uint8)
        return chosen, shuffled, noise, table[small], table.at[small, 0].add(1.0), jnp.linspace(0, 1, 9)[small]

    for dtype, size in ((jnp.int8, 100), (jnp.uint8, 200)):
        assert not found(fun, jax.random.key(0), of(jnp.float32, size, size), of(dtype, 3))


@pytest.mark.integration
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


def messages(code, fun, *args):
    return [each.message for each in lox.audit(fun)(*args).warnings if each.code == code]


def adds(places, indices, updates, **options):
    """A function that adds updates to zeros of a shape, at indices of a shape, and its arguments."""

    def fun(at, values):
        return jnp.zeros(places, values.dtype).at[at].add(values, **options)

    return fun, of(jnp.int32, *indices), of(jnp.bfloat16, *updates)


ROWS = jax.lax.ScatterDimensionNumbers((1,), (), (0,))
SCATTERED = {
    "255 into one place": (adds((1,), (255,), (255,)), None),
    "256 into one place": (adds((1,), (256,), (256,)), "of 256 numbers into 1 place is in bfloat16: "),
    "512 into two places": (adds((2,), (512,), (512,)), "512 numbers into 2 places is in bfloat16, and 256 or more"),
    "510 into two places": (adds((2,), (510,), (510,)), None),
    "511 into two places": (adds((2,), (511,), (511,)), "511 numbers into 2 places is in bfloat16, and 256 or more"),
    "rows": (adds((2, 9), (512,), (512, 9)), "512 numbers into 2 places"),
    "all at other places": (adds((2,), (512,), (512,), unique_indices=True), None),
    "a large row at one place": (adds((5, 999), (), (999,)), None),
    "as a batch": ((jax.vmap(adds((2,), (), ())[0]), of(jnp.int32, 9, 512), of(jnp.bfloat16, 9, 512)), "512 numbers"),
    "a large batch": ((jax.vmap(adds((2,), (), ())[0]), of(jnp.int32, 999, 9), of(jnp.bfloat16, 999, 9)), None),
    "windows": (
        (
            lambda at, values: jax.lax.scatter_add(jnp.zeros(10, values.dtype), at, values, ROWS),
            of(jnp.int32, 300, 1),
            of(jnp.bfloat16, 300, 10),
        ),
        "300 numbers into 1 place is",
    ),
    "counts of integers": ((lambda at: jnp.zeros(1, jnp.int32).at[at].add(1), of(jnp.int32, 999)), None),
}


@pytest.mark.parametrize("name", SCATTERED)
def test_how_many_numbers_are_added_at_one_place(name):
    (fun, *args), expected = SCATTERED[name]
    found = messages("LOX805", fun, *args)
    assert [expected in message for message in found] == ([True] if expected else [])


@pytest.mark.parametrize(("dtype", "end"), [(jnp.bfloat16, 256), (jnp.float16, 2048)])
def test_sums_that_are_said_to_stall_do(dtype, end):
    """What is not said to stall, such as a sum, a product or a cumsum, has float32 inside or adds up in pairs."""
    ones = jnp.ones(8192, dtype)
    nowhere = jnp.zeros(8192, jnp.int32)
    window = (1, 64, 64, 1)

    def scattered(x):
        return jnp.zeros(1, dtype).at[nowhere].add(x)[0]

    def shared(x):
        return jax.grad(lambda w: jax.lax.scan(lambda c, x: (c, w * x), None, x)[1].sum())(jnp.ones((), dtype))

    def pooled(x):
        return jax.lax.reduce_window(x[:4096].reshape(window), 0.0, jax.lax.add, window, window, "VALID")[0, 0, 0, 0]

    # A CPU without float16 of its own adds up each row of a window in a register of float32, so that 64 rows are exact.
    of_pooled = {end, 4096} if dtype == jnp.float16 else {end}
    for fun, stalls_at in ((scattered, {end}), (shared, {end}), (pooled, of_pooled)):
        assert float(jax.jit(fun)(ones)) in stalls_at
        (message,) = messages("LOX805", fun, ones)
        assert message.endswith(f"a count stops at {end}.")
    for fun in (jnp.sum, lambda x: jax.lax.reduce_sum(x, (0,)), lambda x: x @ x):
        assert jax.jit(fun)(ones) == 8192
        assert not messages("LOX805", fun, ones)
    (message,) = messages("LOX805", lambda x: jnp.cumsum(x), ones)
    assert jax.jit(jnp.cumsum)(ones)[-1] == 8192 and "stops" not in message
    assert (jnp.diff(jax.jit(jnp.cumsum)(ones)) == 0).any() and message.endswith("neighbours become equal.")


BF16, TWO = of(jnp.bfloat16, 4, 3), np.float32(2)
WIDENING = {
    "times": lambda x: x * TWO,
    "times, from the left": lambda x: TWO * x,
    "over": lambda x: x / np.sqrt(8),
    "under": lambda x: 1 / TWO / x,
    "power": lambda x: x**TWO,
    "base": lambda x: TWO**x,
    "multiply": lambda x: jnp.multiply(x, TWO),
    "maximum": lambda x: jnp.maximum(x, TWO),
    "where": lambda x: jnp.where(x > 0, x, TWO),
    "clip": lambda x: jnp.clip(x, -TWO, TWO),
    "a number of jax": lambda x: x + jnp.float32(0.5),
    "an array without axes": lambda x: x + jnp.zeros(()),
    "a root of a number of jax": lambda x: x / jnp.sqrt(jnp.float32(8)),
    "vmap": jax.vmap(lambda x: x * TWO),
    "where in vmap": jax.vmap(lambda x: jnp.where(x > 0, x, TWO)),
    "jit": jax.jit(lambda x: x * TWO),
    "checkpoint": jax.checkpoint(lambda x: x * TWO),
    "jvp": lambda x: jax.jvp(lambda x: x * TWO, (x,), (x,)),
    "grad": jax.grad(lambda x: (x * TWO).sum().astype(jnp.float32)),
    "scan": lambda x: jax.lax.map(lambda row: row * TWO, x),
}
NOT_WIDENING = {
    "a number of Python": lambda x: x * 2.0,
    "a number of Python in where": lambda x: jnp.where(x > 0, x, -1e9),
    "an item": lambda x: x * TWO.item(),
    "astype": lambda x: x.astype(jnp.float32) * TWO,
    "convert_element_type": lambda x: jax.lax.convert_element_type(x, jnp.float32) * TWO,
    "asarray": lambda x: jnp.asarray(x, jnp.float32) * TWO,
    "converted back": lambda x: (x * TWO).astype(jnp.bfloat16),
    "where that is converted back": lambda x: jnp.where(x > 0, x, TWO).astype(jnp.bfloat16),
    "compared": lambda x: x > TWO,
    "an array": lambda x: x * jnp.ones(3),
    "one number of an array": lambda x: x[0, 0] * TWO,
    "integers": lambda x: x * (jnp.arange(3) * TWO).astype(x.dtype),
    "an argument": jax.jit(lambda x, scale: x * scale),
    "mean and variance": lambda x: (x.mean(), x.var(), jnp.std(x), jax.nn.standardize(x)),
}


@pytest.mark.parametrize("name", WIDENING)
def test_a_scalar_that_widens_an_array(name):
    (message,) = messages("LOX807", WIDENING[name], BF16)
    assert "is a float32 here, and makes float32[" in message and " of bfloat16[" in message
    if name != "grad":
        assert jax.tree.leaves(jax.eval_shape(WIDENING[name], BF16))[0].dtype == jnp.float32


@pytest.mark.parametrize("name", NOT_WIDENING)
def test_what_widens_nothing_or_on_purpose(name):
    args = (BF16, of(jnp.float32)) if name == "an argument" else (BF16,)
    assert not messages("LOX807", NOT_WIDENING[name], *args)


def test_what_widens_is_told_at_its_line_and_once():
    def fun(x):
        x = x + 1.0
        return jnp.where(x > 0, x / np.sqrt(8), TWO)

    (finding,) = lox.audit(fun)(BF16).warnings
    assert (finding.code, finding.line) == ("LOX807", fun.__code__.co_firstlineno + 2)
    assert finding.message.startswith("2.828 is a float32 here, and makes float32[4,3] of bfloat16[4,3]: ")


def test_numbers_that_leave_an_array_its_type_are_verified():
    assert "LOX807" in {each.code for each in lox.audit(lambda x: x * jnp.bfloat16(2))(BF16).verified}


def test_with_64_bits_a_scalar_of_numpy_widens_32():
    with jax.enable_x64(True):
        (message,) = messages("LOX807", lambda x: x * np.sqrt(8), FLOATS)
        assert "makes float64[4] of float32[4]" in message
        assert not messages("LOX807", lambda x: x * 2.5 * jnp.pi, FLOATS)


WRITTEN = """
def times(x):
    return x * np.float32(2)

def chosen(x):
    return jnp.where(x > 0, x, np.float32(2))
"""


@pytest.mark.parametrize("module", [jax, pytest])
@pytest.mark.parametrize("name", ["times", "chosen"])
def test_what_jax_and_libraries_widen_is_theirs(name, module):
    def written(file):
        names = {"np": np, "jnp": jnp}
        exec(compile(WRITTEN, file, "exec"), names)
        return names[name]

    library, own = written(module.__file__), written("own.py")
    assert not messages("LOX807", lambda x: library(x) + 1, BF16)
    assert messages("LOX807", lambda x: own(x) + 1, BF16)


def test_a_softmax_of_a_mask_that_is_as_good_as_infinite_is_finite():
    mask, x = jax.ShapeDtypeStruct((4, 4), jnp.bool_), jax.ShapeDtypeStruct((4, 4), jnp.float32)
    for fun in (
        lambda mask, x: jax.nn.softmax(jnp.where(mask, 0.0, -1e9)),
        lambda mask, x: jax.nn.logsumexp(jnp.where(mask, 10 * jnp.tanh(x), -1e9)),
        lambda mask, x: jax.nn.log_softmax(jnp.where(mask, jnp.tanh(x), -1e9), axis=0),
    ):
        assert not lox.audit(fun)(mask, x).at_least("warning")
    found = lox.audit(lambda mask, x: jnp.exp(jnp.where(mask, 200 * jnp.tanh(x), -1e9)))(mask, x).at_least("warning")
    assert [each.code for each in found] == ["LOX804"]


@pytest.mark.parametrize(
    "run",
    [
        lambda f, x: jax.lax.fori_loop(0, 3, lambda _, x: f(x), x),
        lambda f, x: jax.lax.cond(x[0] > 0, f, lambda x: x - 1, x),
    ],
)
def test_what_a_loop_or_branch_returns_may_be_bounded(run):
    def f(x):
        return jnp.log(jnp.sum(jnp.exp(run(lambda x: x - x.max(), x))))

    assert found(f, FLOATS) == set()
    assert found(lambda x: jnp.log(jnp.sum(jnp.exp(x))), FLOATS) == {"LOX811"}


def test_a_widened_array_of_which_only_one_other_use_is_narrowed_is_widened():
    def f(x):
        y = x * np.sqrt(np.float32(8))
        return y.astype(jnp.bfloat16), y.sum()

    with jax.numpy_dtype_promotion("standard"):
        assert messages("LOX807", f, BF16)


def test_special_functions_take_care_of_their_own_infinities():
    assert found(jax.grad(lambda x: jax.scipy.special.exp1(x).sum()), jnp.ones(3)) == set()


LABELS = of(jnp.int32, 32)


@pytest.mark.parametrize(
    "choose",
    [
        lambda p, labels: jnp.take_along_axis(p, labels[:, None], axis=1),
        lambda p, labels: jax.vmap(lambda row, label: row[label])(p, labels),
        lambda p, labels: (jax.nn.one_hot(labels, 10) * p).sum(axis=-1),
        lambda p, labels: ((labels[:, None] == jnp.arange(10)) * p).sum(axis=-1),
    ],
)
def test_labels_choose_among_the_classes_of_a_row_in_each_way(choose):
    @jax.jit
    def network(w, x):
        return x @ w["out"].astype(x.dtype) + w["bias"]

    def likelihood(axis):
        def fun(w, x, labels):
            return choose(-jnp.log(jax.nn.softmax(network(w, x), axis=axis) + 1e-6), labels)

        return fun

    w = {"out": of(jnp.float16, 16, 10), "bias": of(jnp.float32, 10)}
    assert found(likelihood(0), w, of(jnp.float32, 32, 16), LABELS) == {"LOX821"}
    assert found(likelihood(1), w, of(jnp.float32, 32, 16), LABELS) == set()


@pytest.mark.parametrize(
    "fun",
    [
        lambda w, x, labels: jax.nn.softmax(x @ w, axis=0)[:, 2],
        lambda w, x, labels: jax.nn.softmax(x @ w, axis=0)[:, labels[0]],
        lambda w, x, labels: jax.nn.softmax(x @ w, axis=0)[jnp.arange(32), jnp.arange(32) % 10],
        lambda w, x, labels: jax.nn.softmax(x @ w, axis=0) * jax.nn.one_hot(labels[0], 10),
        lambda w, x, labels: jax.vmap(lambda x, label: jax.nn.softmax(x @ w, axis=0)[label])(x, labels),
        lambda w, x, labels: jax.nn.softmax(x.reshape(4, 8, 16) @ w, axis=0)[:, jnp.arange(8), labels[:8]],
        lambda w, x, labels: jax.nn.softmax(x @ jnp.tanh(x[:10]).T, axis=0)[jnp.arange(32), labels],
    ],
    ids=range(7),
)
def test_a_softmax_over_what_has_no_labels_of_its_own_may_be_meant(fun):
    assert found(fun, of(jnp.float32, 16, 10), of(jnp.float32, 32, 16), LABELS) == set()


def test_floats_without_fractions_may_be_written_to_integers():
    def counts(x, places, flags):
        whole = jnp.zeros(4, int).at[places].add(1.0 - flags.astype(jnp.float32))
        return whole.at[places].max(jnp.round(10 * x)), whole.at[2].set(-1.0)

    args = of(jnp.float32, 32), LABELS, of(jnp.bool_, 32)
    assert found(counts, *args) == set()
    assert found(lambda x, places, _: jnp.zeros(4, int).at[places].max(10 * x), *args) == {"LOX822"}


def _warned(fun, *args):
    return [finding.code for finding in lox.audit(fun)(*args).warnings if finding.severity == "warning"]


def test_weights_of_one_attention_are_masked_late_and_of_another_early():
    def attention(queries, keys, values, valid, early):
        scores = jnp.einsum("bqd,bkd->bqk", queries, keys) / 4
        values = jax.nn.softmax(scores, axis=-1) @ values
        scores = jnp.where(valid[:, None], scores, -1e9) if early else scores
        return (jax.nn.softmax(scores, axis=-1) * valid[:, None]) @ values

    of = f32(2, 6, 16), f32(2, 6, 16), f32(2, 6, 3), flags(2, 6)
    assert _warned(lambda *args: attention(*args, True), *of) == []
    assert _warned(lambda *args: attention(*args, False), *of) == ["LOX816"]


@pytest.mark.parametrize(
    ("expected", "largest"),
    [
        (["LOX816"], lambda x, w, b, mask: jnp.max((x @ w + b) * mask[..., None], axis=1)),
        (["LOX816"], lambda x, w, b, mask: jnp.argmax(jnp.where(mask[..., None], x @ w, 0), axis=1)),
        ([], lambda x, w, b, mask: jnp.max((x @ w + b) * mask[..., None], axis=-1)),
        ([], lambda x, w, b, mask: jnp.max(jnp.einsum("bif,bjf->bij", x, x) * mask[:, None], axis=-1)),
        ([], lambda x, w, b, mask: jnp.max(jnp.where(x @ w > 0, x @ w, 0), axis=1)),
    ],
    ids=["bias", "argmax", "features", "similarities", "positive"],
)
def test_a_maximum_of_masked_outputs_of_a_layer_is_found_along_the_axis_of_the_mask(expected, largest):
    assert _warned(largest, f32(4, 10, 8), f32(8, 16), f32(16), flags(4, 10)) == expected


def test_indices_of_two_counters_of_limited_numbers_and_below_the_first_are_found():
    def biases(table, limit):
        places = jnp.arange(24)[None, :] - jnp.arange(24)[:, None] + 16
        return table[jnp.clip(places, 0, limit)] if limit else table[places]

    def binned(table, x, most):
        return table[jnp.clip((jnp.clip(x, -1, 1) + 1) / 2 * 10, 0, most).astype(jnp.int32)]

    def before(table, x, start):
        def step(x, t):
            return x * (table[t - 1] if start else jnp.where(t > 0, table[t - 1], 1.0)), None

        return jax.lax.scan(step, x, jnp.arange(50)[::-1])[0]

    table = f32(32), f32(10), f32(50)
    assert _warned(lambda table: biases(table, 0), table[0]) == ["LOX820"]
    assert _warned(lambda table: biases(table, 31), table[0]) == []
    assert _warned(lambda table, x: binned(table, x, 10), table[1], f32(5)) == ["LOX820"]
    assert _warned(lambda table, x: binned(table, x, 9), table[1], f32(5)) == []
    assert _warned(lambda table, x: before(table, x, True), table[2], f32(5)) == ["LOX212"]
    assert _warned(lambda table, x: before(table, x, False), table[2], f32(5)) == []


def test_logits_of_a_masked_version_masks_of_floats_and_weights_of_a_graph_are_followed():
    def act(key, logits, legal, as_masked):
        masked = jnp.where(legal, logits, -1e9)
        action = jax.random.categorical(key, masked if as_masked else logits)
        return action, jnp.take_along_axis(jax.nn.log_softmax(masked), action[:, None], 1)

    def attend(queries, keys, values, mask, adds):
        scores = jnp.einsum("bqd,bkd->bqk", queries, keys) / 4
        mask = mask[:, None, :]
        return jax.nn.softmax(scores - 1e9 * (1 - mask) if adds else scores * mask) @ values

    def of_neighbours(x, weights, one, other, adjacency, axis):
        h = x @ weights
        scores = jnp.where(adjacency, (h @ one)[:, None] + (h @ other), -1e9)
        return jax.nn.softmax(scores, axis=axis) @ h

    of = jax.random.key(0), f32(16, 9), flags(16, 9)
    assert [_warned(lambda *args, on=on: act(*args, on), *of) for on in (True, False)] == [[], ["LOX816"]]
    of = f32(2, 6, 16), f32(2, 6, 16), f32(2, 6, 3), f32(2, 6)
    masked = [
        _warned(lambda queries, keys, values, mask, on=on: attend(queries, keys, values, mask, on), *of)
        for on in (True, False)
    ]
    assert masked == [[], ["LOX816"]]
    of = f32(40, 10), f32(10, 16), f32(16), f32(16), flags(40, 40)
    over = [_warned(lambda *args, axis=axis: of_neighbours(*args, axis), *of) for axis in (1, 0)]
    assert over == [[], ["LOX815"]]


def test_a_mean_over_padding_is_found_where_nothing_counts_what_is_kept():
    def loss(errors, mask, counts):
        kept = errors * mask[:, 1:].astype(jnp.float32)
        return kept.sum() / mask[:, 1:].sum() if counts else kept.mean()

    of = f32(8, 19), flags(8, 20)
    found = [_warned(lambda errors, mask, on=on: loss(errors, mask, on), *of) for on in (True, False)]
    assert found == [[], ["LOX819"]]
    assert _warned(lambda errors, chosen: (errors * chosen).mean(), f32(8, 19), flags(8, 19)) == []
