"""What an audit knows of values: never more than is so, and as much as people rely on."""

import math

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax import lax
from tiers import generates

from lox import _compat, testing
from lox._audit._capture import capture
from lox._audit._facts import ANY, Interval, of_constant, unknown
from lox._audit._walk import Walk
from lox._effect import log_p
from lox._handler import DropAll
from lox._logs_in import jaxprs_in
from lox._trace import under

P = jex.core.primitives
RNG = np.random.default_rng(0)


def block_of(fun, args, facts):
    found = capture(fun, args, {})
    assert found.error is None, found.error
    return Walk().block(found.name, found.jaxpr, facts, found.arguments), found.jaxpr


def check_holds(value, array):
    """What is known of a value is so of what it is."""
    assert len(value.fact.labels) == np.ndim(array)
    if jnp.issubdtype(jax.typeof(array).dtype, jax.dtypes.extended):
        return
    numbers = np.asarray(array)
    if numbers.dtype.kind == "c" or numbers.dtype == jax.dtypes.float0:  # Of tangents of integers.
        assert value.fact.range == ANY
        return
    numbers = numbers.astype(float)
    numbers = numbers[~np.isnan(numbers)]
    slack = 1e-5 * max(
        [1.0, *(abs(end) for end in (value.fact.range.low, value.fact.range.high) if math.isfinite(end))]
    )
    assert np.all(numbers >= value.fact.range.low - slack), (value.maker, value.fact, numbers.min())
    assert np.all(numbers <= value.fact.range.high + slack), (value.maker, value.fact, numbers.max())


def run(block, jaxpr, arrays):
    """Runs a block step by step, and checks at each what is known of its values."""
    known = dict(zip(block.inputs, arrays, strict=True))
    opened = _compat.open_jaxpr(jaxpr)
    consts = dict(zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=True))
    environment = {**consts, **dict(zip(opened.invars, arrays, strict=True))}

    def read(atom):
        return atom.val if isinstance(atom, jex.core.Literal) else environment[atom]

    for value, array in known.items():
        check_holds(value, array)
    for step in block.steps:
        equation = step.equation
        inputs = [read(atom) for atom in equation.invars]
        for value, array in zip(step.inputs, inputs, strict=True):
            check_holds(value, array)
        if equation.primitive is log_p:
            continue
        outputs = run_inside(step, inputs)
        if outputs is None:
            outputs = alone(equation, opened, inputs)
        for var, value, array in zip(equation.outvars, step.outputs, outputs, strict=True):
            environment[var] = array
            check_holds(value, array)
    return [read(atom) for atom in opened.outvars]


def alone(equation, jaxpr, inputs):
    """What an equation of a jaxpr gives."""
    if not list(jaxprs_in(equation.params)):
        outputs = equation.primitive.bind(*inputs, **equation.params)
        return outputs if equation.primitive.multiple_results else [outputs]
    pairs = zip(equation.invars, inputs, strict=True)
    given = {atom: array for atom, array in pairs if not isinstance(atom, jex.core.Literal)}
    jaxpr = jaxpr.replace(constvars=[], invars=[*given], outvars=equation.outvars, eqns=[equation])
    return jax.jit(_compat.as_fun(jex.core.ClosedJaxpr(jaxpr, [])))(*given.values())


def run_inside(step, inputs):
    """Runs what a step runs, so that it is checked as well; the results of a call."""
    params, primitive = step.equation.params, step.equation.primitive
    if primitive is P.cond_p:
        index = int(np.clip(inputs[0], 0, len(params["branches"]) - 1))
        return run(step.blocks[index], params["branches"][index], inputs[1:])
    inner = list(jaxprs_in(params))
    if primitive not in (P.scan_p, P.while_p, _compat.shard_map_p) and len(inner) == 1:
        return run(step.blocks[0], inner[0], inputs)
    if primitive is P.scan_p:
        consts, carries = _compat.scan_counts(params)
        carry, xs = inputs[consts : consts + carries], inputs[consts + carries :]
        for i in reversed(range(params["length"])) if params["reverse"] else range(params["length"]):
            arrays = [*inputs[:consts], *carry, *(x[i] for x in xs)]
            run(step.blocks[0], params["jaxpr"], arrays)
            carry = _compat.as_fun(params["jaxpr"])(*arrays)[:carries]
    if primitive is P.while_p:
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        carry = inputs[second:]
        while jnp.any(_compat.as_fun(params["cond_jaxpr"])(*inputs[:first], *carry)[0]):
            arrays = [*inputs[first:second], *carry]
            run(step.blocks[1], params["body_jaxpr"], arrays)
            carry = _compat.as_fun(params["body_jaxpr"])(*arrays)
    return None


def check(fun, *args):
    """Runs a function both with arguments of which all is known and with others of which nothing is."""
    arrays = [jnp.asarray(arg) for arg in args]
    exact = [of_constant(array) for array in arrays]
    for facts in (exact, [unknown(jax.typeof(array)) for array in arrays]):
        block, jaxpr = block_of(fun, args, facts)
        under(DropAll(), run)(None, block, jaxpr, arrays)


UNARY = (
    *(jnp.exp, jnp.log, jnp.log1p, jnp.tanh, jnp.sinh, jnp.cosh, jnp.arctan, jnp.cbrt, jnp.floor, jnp.ceil, jnp.round),
    *(jnp.sign, lax.erf, lax.logistic, jnp.sqrt, lax.rsqrt, jnp.sin, jnp.cos, jnp.abs, jnp.square, jnp.negative),
    *(lambda x: x**3, lambda x: x**-2, lambda x: x**-1, lambda x: x**4, jnp.cumsum, jnp.cumprod, lax.cummax, jnp.sum),
    *(jnp.max, jnp.argmax, jnp.mean, jnp.var, jnp.sort, jnp.argsort, jnp.diff, jnp.median, jnp.isnan, jnp.bool_),
    *(jnp.int8, jnp.uint8, jnp.int32, jnp.float16, lambda x: jnp.clip(x, -1, 1), lambda x: x[::-1], lambda x: x[1:3]),
    *(lambda x: x[jnp.array([0, 2, 99])], lambda x: x.at[1].set(9.0), lambda x: jnp.pad(x, 2), jnp.fft.fft),
    *(lambda x: x.reshape(2, 3).T, lambda x: x[:, None] * x, lambda x: x @ x, lambda x: jnp.where(x > 0, x, 0)),
    *(jax.nn.softmax, jax.nn.log_softmax, jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jax.nn.standardize),
    *(lambda x: jax.nn.one_hot(jnp.argmax(x), 3), jax.nn.logsumexp, lambda x: jax.lax.top_k(x, 2), lambda x: x % 1.5),
    *(lambda x: jnp.cumsum(jnp.clip(x, 1, 2)), lambda x: jnp.cumprod(jnp.clip(x, 2, 3))),
    *(lambda x: x - x.max(), lambda x: x / x.sum(), lambda x: jnp.exp(x) / jnp.exp(x).sum(), lambda x: x // 2),
    *(lambda x: x[jnp.clip(jnp.int32(x), 0, 5)], lambda x: jnp.where(jnp.arange(6) < 6, x, 9), lambda x: x.std()),
    *(lambda x: jnp.where(jnp.sum(x * 0) >= 0, jnp.tanh(x), 5), lambda x: jnp.where(jnp.arange(6) > 2, x, 9)),
    *(lambda x: (x - 1) * (x - 1), lambda x: (x * jnp.exp(x)) * (x * jnp.exp(x)), lambda x: (x - 1) * (x + 1)),
    *(lambda x: x.at[jnp.int32([0, 99])].get(mode="fill", fill_value=1e4), lambda x: jnp.int8(x)[jnp.int32([0, 99])]),
    *(lambda x: jnp.maximum(x, 0) - jnp.minimum(x, 3), lambda x: jnp.concatenate([x, x + 5]), lambda x: x * x - 2 * x),
)


@pytest.mark.parametrize("place", range(len(UNARY)))
def test_ranges_hold_whatever_a_function_does(place):
    with jax.numpy_dtype_promotion("standard"):
        for x in (RNG.normal(size=6), np.arange(6.0) - 2, np.zeros(6), 50 * RNG.normal(size=6), RNG.uniform(0, 1, 6)):
            check(UNARY[place], np.float32(x))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "bool"])
@pytest.mark.parametrize(
    "operate", [lambda x: x + x, lambda x: x * x, lambda x: -x, lambda x: x // 3, lambda x: x.sum()]
)
def test_ranges_of_integers_hold_where_they_wrap_around(dtype, operate):
    with jax.numpy_dtype_promotion("standard"):
        if dtype == "bool":
            check(lambda x: operate(x.astype(int)), np.array([True, False]))
        else:
            info = np.iinfo(dtype)
            check(operate, np.array([info.min, info.max, 0, 1, info.max // 2], dtype))


@generates(10)
@given(testing.programs(depth=2, length=3))
def test_ranges_hold_in_random_programs(program):
    with jax.numpy_dtype_promotion("standard"):
        check(program, np.float32(0.5), np.int32(3))


def test_what_people_rely_on_is_known():
    def facts_of(fun, *args):
        block, _ = block_of(fun, args, [unknown(jax.typeof(arg)) for arg in args])
        return [value.fact.range for value in block.outputs]

    x = np.zeros((4, 3), np.float32)
    assert facts_of(jax.nn.sigmoid, x) == facts_of(jax.nn.softmax, x) == [Interval(0, 1)]
    assert facts_of(lambda x: jax.nn.softmax(x, axis=0), x) == [Interval(0, 1)]
    assert facts_of(jnp.tanh, x) == facts_of(lambda x: jnp.clip(x, -1, 1), x) == [Interval(-1, 1)]
    assert facts_of(jax.nn.relu, x) == [Interval(0, math.inf)]
    assert facts_of(lambda x: jax.nn.one_hot(x.argmax(-1), 3), x) == [Interval(0, 1)]
    assert facts_of(lambda x: x.argmax(-1), x) == [Interval(0, 2)]
    assert facts_of(lambda x: x.astype(jnp.float32) / 255, np.zeros(3, np.uint8)) == [Interval(0, 1)]


def test_what_is_read_at_an_index_is_known_by_where_it_may_be():
    def range_of(fun, *args):
        block, _ = block_of(fun, args, [unknown(jax.typeof(arg)) for arg in args])
        return block.outputs[0].fact.range

    def filled(x, i, value=7):
        return jnp.tanh(x).at[i].get(mode="fill", fill_value=value, wrap_negative_indices=False)

    x, i = np.zeros(256, np.float32), np.zeros(2, np.uint8)
    assert range_of(filled, x, i) == Interval(-1, 1)
    assert range_of(filled, x[1:], i) == range_of(filled, x, i.astype(np.int8)) == Interval(-1, 7)
    assert range_of(lambda x, i: filled(x, i, np.nan), x[1:], i) == Interval(-1, 1)
    assert range_of(lambda x, i: jnp.tanh(x).at[i].get(mode="clip"), x[1:], i) == Interval(-1, 1)
    # Without a value to fill in, it is the largest integer.
    half = lambda n, i: (n // 2).at[i].get(mode="fill")  # noqa: E731
    assert range_of(half, np.zeros(255, np.uint8), i) == Interval(0, 255)
    assert range_of(half, np.zeros(256, np.uint8), i) == Interval(0, 127)


def test_the_maximum_of_nothing_is_not_known():
    block, _ = block_of(
        lambda x: lax.reduce(jnp.tanh(x), -np.float32(np.inf), lax.max, (0,)),
        [np.zeros((0, 3), np.float32)],
        [unknown(jax.core.ShapedArray((0, 3), np.float32))],
    )
    assert block.outputs[0].fact.range == ANY


def test_what_is_compared_is_known_where_it_is_sure():
    def range_of(fun, *args):
        block, _ = block_of(fun, args, [unknown(jax.typeof(arg)) for arg in args])
        return block.outputs[0].fact.range

    x, n = np.zeros(4, np.float32), np.zeros(4, np.uint8)
    assert [range_of(fun, n) for fun in (lambda n: n < 255, lambda n: n <= 255)] == [Interval(0, 1), Interval(1, 1)]
    assert range_of(lambda n: n.astype(int) >= 300, n) == Interval(0, 0)
    assert range_of(lambda n: n.astype(int) > 7, n) == Interval(0, 1)
    assert range_of(lambda x: jnp.tanh(x) <= 1, x) == Interval(0, 1)  # Not if it is NaN.
    assert range_of(lambda x: jnp.where(jnp.int32(3) > 2, jnp.tanh(x), x), x) == Interval(-1, 1)
    assert range_of(lambda x: x.var(), x).low == 0
    assert range_of(lambda x: (x - 1) * (x - 1), x) == Interval(0, math.inf)
    assert range_of(lambda x: (x - 1) * (x - 2), x) == ANY


def test_remainders_have_the_sign_of_what_is_divided():
    def range_of(fun, *args):
        block, _ = block_of(fun, args, [unknown(jax.typeof(arg)) for arg in args])
        return block.outputs[0].fact.range

    assert range_of(lambda: lax.rem(jnp.arange(10), jnp.int32(7))) == Interval(0, 6)
    assert range_of(lambda: lax.rem(jnp.arange(10) - 9, jnp.int32(7))) == Interval(-6, 0)
    assert range_of(lambda: lax.rem(jnp.arange(10) - 5, jnp.int32(7))) == Interval(-6, 6)


def test_what_goes_to_other_devices_has_the_range_that_it_had():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        block, _ = block_of(
            lambda x: jax.reshard(jnp.tanh(x), jax.sharding.PartitionSpec("d")),
            (jax.ShapeDtypeStruct((4,), jnp.float32),),
            [unknown(jax.core.ShapedArray((4,), jnp.float32))],
        )
    assert block.outputs[0].fact.range == Interval(-1, 1)


ENDS = [(-3, -1), (-2, 0), (-2, 5), (0, 4), (1, 6)]
"""Ranges on both sides of zero, up to it and over it."""

OF_ONE = {
    "neg": (jnp.negative, np.negative),
    "abs": (jnp.abs, np.abs),
    "square": (jnp.square, np.square),
    "cube": (lambda x: x**3, lambda x: x**3),
    "fourth_power": (lambda x: x**4, lambda x: x**4),
    "product_with_itself": (lambda x: (x + 1) * (x + 1), lambda x: (x + 1) ** 2),
    "exp": (jnp.exp, np.exp),
    "exp2": (jnp.exp2, np.exp2),
    "expm1": (jnp.expm1, np.expm1),
    "tanh": (jnp.tanh, np.tanh),
    "sinh": (jnp.sinh, np.sinh),
    "asinh": (jnp.arcsinh, np.arcsinh),
    "atan": (jnp.arctan, np.arctan),
    "cbrt": (jnp.cbrt, np.cbrt),
    "erf": (lax.erf, np.vectorize(math.erf)),
    "logistic": (lax.logistic, lambda x: 1 / (1 + np.exp(-x))),
    "sign": (jnp.sign, np.sign),
    "floor": (lambda x: jnp.floor(x / 2), lambda x: np.floor(x / 2)),
    "ceil": (lambda x: jnp.ceil(x / 2), lambda x: np.ceil(x / 2)),
    "truncated": (lambda x: (x / 2).astype(int), lambda x: np.trunc(x / 2)),
    "in_8_bits": (lambda x: x.astype(jnp.int8), lambda x: x),
    "transposed": (lambda x: x.reshape(3, 2).T[::-1], lambda x: x),
    "sum": (lambda x: x.sum(), lambda x: 6 * x),
    "sum_of_rows": (lambda x: x.reshape(2, 3).sum(1), lambda x: 3 * x),
    "mean": (lambda x: x.mean(), lambda x: x),
    "cumsum": (jnp.cumsum, lambda x: np.concatenate([x, 6 * x])),
    "inner_product_with_two": (lambda x: x @ jnp.full(6, 2.0), lambda x: 12 * x),
    "concatenated": (lambda x: jnp.concatenate([x, jnp.full(2, 9.0)]), lambda x: np.append(x, 9)),
    "padded": (lambda x: jnp.pad(x, 1, constant_values=-7), lambda x: np.append(x, -7)),
    "written_to": (lambda x: lax.dynamic_update_slice(x, jnp.full(2, 8.0), (1,)), lambda x: np.append(x, 8)),
    "chosen": (lambda x: jnp.where(x > 0, x, 7.5), lambda x: np.append(x, 7.5)),
    "surely_chosen": (lambda x: jnp.where(jnp.int32(1) > 2, 9.0, x), lambda x: x),
    "clamped": (lambda x: lax.clamp(-1.0, x, 3.0), lambda x: np.clip(x, -1, 3)),
    "less_the_largest": (lambda x: x - x.max(), lambda x: np.array([x.min() - x.max(), 0])),
    "sorted": (jnp.sort, lambda x: x),
    "part": (lambda x: jnp.split(x, 2)[1], lambda x: x),
}
OF_TWO = {
    "add": (jnp.add, np.add),
    "sub": (jnp.subtract, np.subtract),
    "mul": (jnp.multiply, np.multiply),
    "max": (jnp.maximum, np.maximum),
    "min": (jnp.minimum, np.minimum),
    "product_of_sums": (lambda x, y: x @ y, lambda x, y: 6 * x * y),
    "comparison": (lambda x, y: x.astype(int) < y.astype(int), lambda x, y: x < y),
    "comparison_with_the_bound": (lambda x, y: x.astype(int) >= y.astype(int), lambda x, y: x >= y),
    "both": (lambda x, y: (x.astype(int) > -1) & (y.astype(int) <= 0), lambda x, y: (x > -1) & (y <= 0)),
    "either": (lambda x, y: (x.astype(int) > 0) | ~(y.astype(int) < 1), lambda x, y: (x > 0) | (y >= 1)),
}


def test_ranges_are_no_wider_than_what_operations_give():
    """Of operations that get to both ends of what interval arithmetic says, over numbers in small ranges."""
    x = jax.ShapeDtypeStruct((6,), jnp.float32)

    def computed(x, y):
        ones = [jnp.clip(x, *ends) for ends in ENDS]
        others = [jnp.clip(y, *ends) for ends in ENDS]
        of_one = {name: [fun(each) for each in ones] for name, (fun, _) in OF_ONE.items()}
        pairs = [(one, other) for one in ones for other in others]
        return of_one, {name: [fun(*pair) for pair in pairs] for name, (fun, _) in OF_TWO.items()}

    def oracle():
        numbers = [np.arange(low, high + 1.0) for low, high in ENDS]
        pairs = [np.meshgrid(one, other) for one in numbers for other in numbers]
        of_one = {name: [fun(each) for each in numbers] for name, (_, fun) in OF_ONE.items()}
        return of_one, {name: [fun(*pair) for pair in pairs] for name, (_, fun) in OF_TWO.items()}

    with jax.numpy_dtype_promotion("standard"):
        block, _ = block_of(computed, (x, x), [unknown(jax.core.ShapedArray(x.shape, x.dtype))] * 2)
        names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(oracle())[0]]
    ends = [(float(np.min(each)), float(np.max(each))) for each in jax.tree.leaves(oracle())]
    found = [(value.fact.range.low, value.fact.range.high) for value in block.outputs]
    differ = [each for each in zip(names, found, ends, strict=True) if not np.allclose(each[1], each[2], rtol=1e-6)]
    assert not differ


def test_ranges_of_quotients_powers_remainders_and_places_are_known():
    def ranges(*funs):
        args = [jax.ShapeDtypeStruct((4, 6), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.int32)]
        facts = [unknown(jax.core.ShapedArray(each.shape, each.dtype)) for each in args]
        with jax.numpy_dtype_promotion("standard"):
            block, _ = block_of(lambda x, n: [fun(x, n) for fun in funs], args, facts)
        return [(value.fact.range.low, value.fact.range.high) for value in block.outputs]

    def whole(x, low, high):
        return jnp.clip(x, low, high)[:, 0].astype(int)

    inf = math.inf
    assert ranges(
        lambda x, n: jnp.clip(x, -3, 6) / jnp.clip(x, 2, 3),
        lambda x, n: jnp.clip(x, -3, 6) / jnp.clip(x, -3, -2),
        lambda x, n: jnp.clip(x, 1, 6) / jnp.clip(x, 0, 3),
        lambda x, n: jnp.clip(x, -1, 6) / jnp.clip(x, 0, 3),
        lambda x, n: jnp.clip(x, 1, 6) / jnp.clip(x, -1, 3),
        lambda x, n: jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True),
        lambda x, n: lax.div(whole(x, -7, 9), jnp.int32(2)),
        lambda x, n: lax.rem(whole(x, -70, 90), jnp.int32(7)),
        lambda x, n: lax.rem(whole(x, 0, 90), jnp.int32(-7)),
        lambda x, n: whole(x, -70, 90) % 7,
        lambda x, n: whole(x, -70, 90) % -7,
        lambda x, n: n % 1,
    ) == [
        (-1.5, 3),
        (-3, 1.5),
        (0, inf),
        (-inf, inf),
        (-inf, inf),
        (0, 1),
        (-3, 4),
        (-6, 6),
        (0, 6),
        (0, 6),
        (-6, 0),
        (0, 0),
    ]
    assert ranges(
        lambda x, n: jnp.clip(x, 1, 2) ** -1,
        lambda x, n: jnp.clip(x, -2, 4) ** -2,
        lambda x, n: jnp.clip(x, -2, 4) ** -1,
        lambda x, n: jnp.clip(x, -4, -2) ** -2,
        lambda x, n: jnp.clip(x, 0, 4) ** -1,
        lambda x, n: jnp.clip(x, -4, 0) ** -2,
        lambda x, n: jnp.sqrt(jnp.clip(x, -4, 9)),
        lambda x, n: jnp.log2(jnp.clip(x, 0, 8)),
        lambda x, n: jnp.sin(x),
        lambda x, n: x.argmax(1),
        lambda x, n: x.argmin(0),
        lambda x, n: lax.iota(int, 5),
        lambda x, n: jnp.tanh(x).at[n].get(mode="fill", fill_value=3),
        lambda x, n: jnp.tanh(x).at[whole(x, 0, 3)].get(mode="fill", fill_value=3, wrap_negative_indices=False),
        lambda x, n: jnp.tanh(x).at[whole(x, 0, 4)].get(mode="fill", fill_value=3, wrap_negative_indices=False),
        lambda x, n: jnp.clip(x, 0, 200).astype(jnp.uint8) + jnp.uint8(55),
        lambda x, n: jnp.clip(x, 0, 200).astype(jnp.uint8) + jnp.uint8(56),
        lambda x, n: whole(x, -5, 5).astype(jnp.uint32),
    ) == [
        *(
            (0.5, 1),
            (0, inf),
            (-inf, inf),
            (0.0625, 0.25),
            (-inf, inf),
            (0, inf),
            (0, 3),
            (-inf, 3),
            (-1, 1),
            (0, 5),
            (0, 3),
            (0, 4),
        ),
        *((-1, 3), (-1, 1), (-1, 3), (55, 255), (0, 255), (0, inf)),
    ]


def test_what_a_loop_carries_is_known_where_its_ends_stay():
    def ranges(*funs):
        x = jax.ShapeDtypeStruct((5,), jnp.float32)
        with jax.numpy_dtype_promotion("standard"):
            block, _ = block_of(
                lambda x: [fun(x) for fun in funs], (x,), [unknown(jax.core.ShapedArray(x.shape, x.dtype))]
            )
        return [(value.fact.range.low, value.fact.range.high) for value in block.outputs]

    inf = math.inf
    assert ranges(
        lambda x: lax.scan(lambda c, x: (c + jnp.abs(x), None), 2.0, x)[0],
        lambda x: lax.scan(lambda c, x: (c - 1, None), 2.0, x)[0],
        lambda x: lax.scan(lambda c, x: (jnp.minimum(c + 1, 9), c), 0.0, x)[0],
        lambda x: lax.scan(lambda c, x: (jnp.tanh(x), c), 0.0, x)[0],
        lambda x: lax.scan(lambda c, x: (jnp.tanh(x), c), 4.0, x)[1],
        lambda x: lax.scan(lambda c, x: (jnp.tanh(x), c), 4.0, x[:0])[0],
        lambda x: lax.while_loop(lambda c: c < 9, lambda c: jnp.float32(7), 3.0),
        lambda x: lax.cond(x[0] > 0, lambda: 2.0, lambda: 5.0),
        lambda x: lax.cond(x[0] > 0, jnp.tanh, jnp.exp, x),
        lambda x: lax.switch(jnp.int32(x[0]), [lambda: 2.0, lambda: -5.0, lambda: 1.0]),
    ) == [(2, inf), (-inf, 1), (1, 9), (-1, 1), (-1, 4), (-1, 4), (3, 7), (2, 5), (-1, inf), (-5, 2)]
