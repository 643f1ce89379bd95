"""`lox.find_nonfinite`: the line, the iteration, the batch element and the operands with which NaN begins."""

import concurrent.futures
import functools
import inspect
import linecache
from pathlib import Path

import faults
import faults_in_programs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from real_nan import CASES

import lox
from lox import _compat

find = lox.find_nonfinite


def source(report):
    """The text of the line that a report names."""
    return linecache.getline(report.file, report.line).strip()


def place(report):
    """What a report says of where NaN begins, but for the line."""
    return report.primitive, report.iterations, report.batch, report.backward


def array(*values):
    return jnp.array(values, jnp.float32)


# -- what is an origin -----------------------------------------------------------------------------------------------


def test_the_line_the_function_and_the_operands_of_the_first_nan_are_reported():
    def f(x):
        y = jnp.exp(x)
        z = jnp.log(x)
        return y + z

    report = find(f)(array(1.0, -2.0))
    assert report.found and report.kind == "nan" and place(report) == ("log", (), (), False)
    assert source(report) == "z = jnp.log(x)" and report.function == "f"
    np.testing.assert_array_equal(report.operands, [[1.0, -2.0]])
    assert [step.primitive for step in report.chain] == ["add"]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_nan_that_where_hides_is_no_origin_and_all_reports_it(transform):
    f = transform(lambda x: jnp.where(x > 0, jnp.log(x), 0.0))
    assert not find(f)(array(1.0, -2.0))
    report = find(f, all=True)(array(1.0, -2.0))
    assert report.primitive == "log" and report.others == ()
    report = find(lambda x: f(x) + 2.0 * jnp.sqrt(x), all=True)(array(1.0, -2.0))
    assert [each.primitive for each in (report, *report.others)] == ["log", "sqrt"]


def test_another_element_that_is_hidden_does_not_hide_an_origin():
    def f(x):
        hidden = jnp.log(x)
        y = hidden + jnp.sqrt(x - 2.0)
        return jnp.where(x < 0, 0.0, y)

    assert find(f)(array(-1.0, 1.0, 3.0)).primitive == "sqrt"


def test_unused_code_and_reductions_that_skip_nan_are_no_origins():
    def unused(x):
        jnp.log(x)
        return x

    assert not find(unused)(array(-1.0))
    assert not find(jax.jit(unused))(array(-1.0))
    assert find(jnp.nanmean)(array(1.0, jnp.nan)).found is False


def test_an_infinite_result_begins_where_the_operands_are_finite():
    report = find(lambda x: jnp.exp(x) * jnp.float32(2.0))(array(1.0, 100.0))
    assert (report.kind, report.primitive) == ("inf", "exp")


def test_nan_comes_before_inf_and_names_the_infinite_values_that_fed_it():
    def f(x):
        large = jnp.exp(x)
        also = x / jnp.zeros_like(x)
        return also, large - large

    report = find(f)(array(1.0, 100.0))
    assert (report.kind, report.primitive) == ("nan", "sub")
    assert [each.primitive for each in report.infinities] == ["exp"]


def test_an_argument_that_is_not_finite_is_an_origin_with_its_path_and_first_use():
    def f(params):
        return jnp.float32(2.0) * params["w"]

    report = find(f)({"w": array(1.0, jnp.nan), "b": array(1.0)})
    assert report.found and report.primitive is None
    assert report.argument == "args[0]['w']" and source(report) == 'return jnp.float32(2.0) * params["w"]'


def test_masks_of_infinities_that_the_program_writes_are_no_origins():
    assert not find(lambda x: jnp.where(x > 0, x, -jnp.inf))(array(1.0, -1.0))
    assert not find(lambda x: jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf)))(array(1.0, -1.0))
    report = find(lambda x: jax.nn.softmax(jnp.where(x > 0, x, -jnp.inf)))(array(-1.0, -1.0))
    assert report.primitive == "sub" and "masked" in str(report)


def test_nan_that_the_program_writes_comes_after_nan_that_it_computes():
    def f(x):
        def step(carry, i):
            x, seen = carry
            return (jnp.log(x), seen.at[i].set(jnp.nan)), None

        return lax.scan(step, (x, jnp.zeros(3)), jnp.arange(3))[0]

    assert find(jax.jit(f))(jnp.float32(-1.0)).primitive == "log"
    report = find(jax.jit(f))(jnp.float32(jnp.e**jnp.e))
    assert report.primitive is None and "a constant of the program" in str(report)


def test_an_index_beyond_the_end_is_the_origin_of_what_is_filled_in():
    report = find(lambda x: jnp.take(x, jnp.array([0, 7])))(array(1.0, 2.0))
    assert report.primitive == "gather" and "beyond the end" in str(report)


def test_elements_are_followed_through_what_moves_them():
    def f(x):
        first = jnp.log(x)
        second = jnp.sqrt(x)
        both = jnp.concatenate([first, second]).reshape(2, -1).T[::-1]
        return both[:, 1]

    assert find(f)(array(-1.0, 1.0)).primitive == "sqrt"


def test_elements_that_several_results_take_apart_are_followed_together():
    def f(x, order):
        r = jax.vmap(jnp.log)(x)
        return [r[number] for number in order]

    x = array(-1.0, -2.0, 3.0)
    for order, element in (((1, 0), 0), ((0, 1), 0), ((2, 1), 1), ((1, 2, 0), 0), ((0,), 0)):
        for each in all, jnp.stack:
            run = (
                (lambda x, order=order: f(x, order)) if each is all else (lambda x, order=order: jnp.stack(f(x, order)))
            )
            report = find(run)(x)
            assert place(report) == ("log", (), (element,), False), order
            assert report.operands == (x[element],)
    assert not find(lambda x: f(x, (2,)))(x)


# -- loops -----------------------------------------------------------------------------------------------------------


def train(x, rates):
    def step(x, rate):
        return x - rate * jnp.log(x), x

    return lax.scan(step, x, rates)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.vmap(f, (0, None)),
        lambda f: jax.jit(jax.vmap(f, (0, None))),
        lambda f: jax.vmap(jax.jit(f), (0, None)),
    ],
    ids=["vmap", "jit-vmap", "vmap-jit"],
)
def test_the_iteration_and_the_batch_element_are_reported(transform):
    report = find(transform(train))(array(1.0, 2.0, 2.0), array(1.0, 8.0, 1.0))
    assert place(report) == ("log", (2,), (1,), False)
    assert source(report) == "return x - rate * jnp.log(x), x"
    (operand,) = report.operands
    x = 2.0
    for rate in (1.0, 8.0):
        x -= rate * np.log(x)
    np.testing.assert_allclose(operand, x, rtol=1e-5)


def test_nested_loops_and_nested_batches_have_a_number_each():
    def inner(x):
        def outer(carry, i):
            def body(carry, j):
                return carry + jnp.where(j == 2, jnp.sqrt(x - i), 0.0), None

            carry, _ = lax.scan(body, carry, jnp.arange(4.0))
            return carry, None

        return lax.scan(outer, jnp.float32(0.0), jnp.arange(3.0))[0]

    xs = jnp.full((2, 3), 5.0).at[1, 2].set(0.5)
    report = find(jax.jit(jax.vmap(jax.vmap(inner))))(xs)
    assert place(report) == ("sqrt", (1, 2), (1, 2), False)


def test_batch_axes_are_told_in_the_order_of_the_vmaps_wherever_they_are():
    def f(x):
        return jax.vmap(lambda x: jnp.log(x).sum(), in_axes=1)(x)

    x = jnp.ones((3, 4, 2)).at[1, 3, 0].set(-1.0)
    report = find(jax.vmap(f, in_axes=2))(x)
    assert report.batch == (0, 3)
    np.testing.assert_array_equal(report.operands[0], [1.0, -1.0, 1.0])


def test_an_element_of_what_a_vmap_does_not_map_is_none():
    def f(x, y):
        return x + jnp.log(y)

    for transform in (lambda f: f, jax.jit):
        for axes, y, batch in (
            ((0, None), -1.0, (None,)),
            ((0, 0), array(1, 1, -1), (2,)),
            ((None, 0), array(1, -1, 1), (1,)),
        ):
            report = find(transform(jax.vmap(f, axes)))(1.0 if axes[0] is None else jnp.ones(3), y)
            assert place(report) == ("log", (), batch, False)
            np.testing.assert_array_equal(report.operands, [-1.0])
        for inner, outer, y, batch in (
            ((0, None), (None, 0), array(1, -1, 1), (1, None)),
            ((None, 0), (0, None), array(1, 1, -1), (None, 2)),
            ((0, None), (0, None), -1.0, (None, None)),
        ):
            x = jnp.ones([3] * ((inner[0] is not None) + (outer[0] is not None)))
            report = find(transform(jax.vmap(jax.vmap(f, inner), outer)))(x, y)
            assert place(report) == ("log", (), batch, False)


def test_what_a_scan_stacks_is_followed_to_its_iteration():
    report = find(lambda xs: lax.scan(lambda c, x: (c + x, jnp.log(x)), jnp.float32(0.0), xs)[1])(
        array(1.0, 2.0, -1.0, 3.0)
    )
    assert place(report) == ("log", (2,), (), False)
    report = find(lambda xs: lax.scan(lambda c, x: (c + x, jnp.log(x)), jnp.float32(0.0), xs, reverse=True)[1])(
        array(1.0, 2.0, -1.0, 3.0)
    )
    assert place(report) == ("log", (1,), (), False)


def test_a_carry_that_begins_infinite_is_not_bad_and_one_that_becomes_infinite_is():
    best = lambda xs: lax.scan(lambda best, x: (jnp.maximum(best, x), None), -jnp.inf, xs)[0]  # noqa: E731
    assert not find(best)(array(1.0, 2.0))
    grow = lambda x: lax.fori_loop(0, 100, lambda i, x: x * jnp.float32(10.0), x)  # noqa: E731
    report = find(grow)(jnp.float32(3.0))
    assert (report.kind, *place(report)) == ("inf", "mul", (38,), (), False)


def test_nan_of_overflow_names_the_iteration_in_which_it_overflowed():
    report = find(lambda x: lax.fori_loop(0, 100, lambda i, x: x * jnp.float32(10.0) - x, x))(jnp.float32(3.0))
    assert (report.kind, *place(report)) == ("nan", "sub", (40,), (), False)
    assert [(each.primitive, each.iterations) for each in report.infinities] == [("mul", (39,))]


def test_a_carry_that_is_bad_and_dropped_is_reported():
    f = lambda xs: jnp.nan_to_num(train(jnp.float32(2.0), xs)[0])  # noqa: E731
    assert find(f)(array(8.0, 1.0)).iterations == (1,)


def test_a_while_loop_that_nan_would_keep_running_for_ever_is_reported():
    def f(x):
        return lax.while_loop(lambda x: ~(x < 1e-3), lambda x: x - jnp.sqrt(x - 1.0), x)

    assert place(find(f)(jnp.float32(1.5))) == ("sqrt", (1,), (), False)
    assert place(find(jax.vmap(f))(array(1.5, 1.1))) == ("sqrt", (1,), (0,), False)


def test_a_batch_element_that_would_run_for_ever_stands_still():
    def f(x):
        again = lambda x: ~jnp.isfinite(x) | (jnp.floor(x).astype(jnp.int32) > 1)  # noqa: E731
        return lax.while_loop(again, lambda x: x - 1.0 - 0.0 * jnp.sqrt(10.0 - x), x)

    assert place(find(jax.vmap(f))(array(9.0, 12.0))) == ("sqrt", (0,), (1,), False)


def test_nan_in_the_condition_of_a_while_loop_is_an_origin_with_its_iteration():
    def f(x):
        return lax.while_loop(lambda x: jnp.sqrt(x) > 0.0, lambda x: x - 1.0, x)

    report = find(f)(jnp.float32(2.5))
    assert place(report) == ("sqrt", (3,), (), False) and "jnp.sqrt(x) > 0.0" in source(report)
    isnan = lambda x: lax.while_loop(lambda x: ~jnp.isnan(jnp.log(x)), lambda x: x - 1.0, x)  # noqa: E731
    assert not find(isnan)(jnp.float32(2.5))


def test_nan_in_what_a_condition_calls_is_an_origin_that_no_result_shows():
    @jax.jit
    def small(i, y):
        return (jnp.log(y) > 0) & (i < 3)

    @jax.jit
    def nested(i, y):
        return small(i, y) | small(i + 3, y)

    for condition in (small, nested, lambda i, y: lax.cond(i < 9, small, nested, i, y), jax.checkpoint(small)):

        def f(y, condition=condition):
            return lax.while_loop(lambda c: condition(*c), lambda c: (c[0] + 1, c[1] - 2), (0, y))[0]

        for transform in (lambda f: f, jax.jit):
            report = find(transform(f))(3.5)
            assert report.found and report.kind == "nan"
            assert place(report) == ("log", (2,), (), False) and source(report) == "return (jnp.log(y) > 0) & (i < 3)"
            assert report.operands == (np.float32(-0.5),)
            assert not find(transform(f))(9.5)


def test_nan_in_a_jitted_condition_of_a_while_loop_is_an_origin():
    below = jax.jit(lambda x: jnp.log(x - 3.0) < 1.0)
    report = find(lambda x: lax.while_loop(below, lambda x: x + 1.0, x))(jnp.float32(1.0))
    assert place(report) == ("log", (0,), (), False) and source(report).startswith("below =")


@pytest.mark.parametrize("subscripts", ["ijk,kl->ijl", "kl,ijk->lij", "bij,bjkl->bikl", "bijk,bk->bij", "k,kij->ij"])
@pytest.mark.parametrize("side", [0, 1])
def test_nan_of_either_operand_of_a_product_is_found_whatever_their_ranks(subscripts, side):
    sizes = dict(zip("bijkl", (2, 3, 4, 5, 6), strict=True))
    operands = [np.ones([sizes[axis] for axis in part]) for part in subscripts.split("->")[0].split(",")]
    at = tuple(size - 1 for size in operands[side].shape)
    operands[side][at] = -1

    def f(*operands):
        return jnp.einsum(subscripts, *(jnp.log(each) if i == side else each for i, each in enumerate(operands)))

    report = find(f)(*map(np.float32, operands))
    assert report.primitive == "log" and report.element == at


def test_batch_elements_of_a_while_loop_that_are_done_are_not_reported():
    f = lambda x: lax.while_loop(lambda x: x > 1.0, lambda x: x - jnp.sqrt(x - 1.0) - 1.0, x)  # noqa: E731
    assert not find(jax.vmap(f))(array(1.5, 40.0))


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap], ids=["alone", "vmap"])
def test_the_branch_that_is_taken_is_interpreted(transform):
    f = transform(lambda x: lax.cond(x > 0, jnp.log, lambda x: jnp.sqrt(x + 2.0), x))
    found = [find(f)(x) for x in (array(1.0, -3.0), array(1.0, -1.0))] if transform is jax.vmap else []
    found = found or [find(f)(jnp.float32(x)) for x in (-3.0, 1.0)]
    assert [report.primitive for report in found if report] == ["sqrt"]
    assert found[0].batch == ((1,) if transform is jax.vmap else ())


def test_a_loop_in_a_branch_that_a_batch_element_does_not_take_is_no_origin():
    def f(x):
        loop = lambda x: lax.fori_loop(0, 5, lambda i, x: x - 0.5 - 0.0 * jnp.sqrt(x), x)  # noqa: E731
        return lax.cond(x > 4.0, loop, lambda x: x, x)

    assert not find(jax.vmap(f))(array(1.0, 5.0, 2.0))
    report = find(jax.vmap(lambda x: lax.cond(x > 0.8, lambda x: f(x + 3.3), lambda x: f(x), x)))(array(0.1, 0.9, 1.0))
    assert not report
    again = lambda x: lax.fori_loop(0, 5, lambda i, x: x - 0.5 - 0.0 * jnp.sqrt(x), x)  # noqa: E731
    report = find(jax.vmap(lambda x: lax.cond(x > 1.6, again, lambda x: x, x)))(array(0.1, 0.9, 1.7))
    assert place(report) == ("sqrt", (4,), (2,), False)


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap], ids=["alone", "vmap"])
def test_a_loop_inside_of_another_that_nan_keeps_running_or_ends_is_found(transform):
    def endless(x, i):
        return lax.while_loop(lambda x: ~(x < 1e-3), lambda x: x - jnp.sqrt(x - jnp.where(i == 2, 9.0, 0.0)), x)

    def ended(x, i):
        return lax.while_loop(lambda x: jnp.sqrt(x + jnp.where(i == 2, 0.25, 0.5)) > 0, lambda x: x - 0.5, x)

    def f(inner):
        return lambda x: lax.fori_loop(0, 4, lambda i, x: 0.0 * inner(x, i) + 0.5, x)

    x = jnp.ones(2) if transform is jax.vmap else jnp.float32(1.0)
    batch = (0,) if transform is jax.vmap else ()
    assert place(find(transform(f(endless)))(x)) == ("sqrt", (2, 0), batch, False)
    assert place(find(transform(f(ended)))(x)) == ("sqrt", (2, 2), batch, False)


def branch_with_loop(loop):
    """A loop that only elements above 0 come to, which `vmap` runs for all."""
    return jax.vmap(lambda x: lax.cond(x > 0, loop, lambda x: x, x))


def ended(x):
    again = lambda carry: (carry[0] < 3) & ~(jnp.sqrt(carry[1]) > 9.0)  # noqa: E731
    return lax.while_loop(again, lambda carry: (carry[0] + 1, carry[1] - 2.0), (0, x))[1]


def endless(x):
    return lax.while_loop(lambda x: ~(jnp.sqrt(x) < 1.0), lambda x: x - 2.0, x)


@pytest.mark.parametrize("loop", [ended, endless])
def test_nan_in_a_condition_of_a_branch_is_that_of_elements_that_take_it(loop):
    f = branch_with_loop(loop)
    assert not find(f)(array(-5.0, -1.0))
    assert place(find(f)(array(-5.0, 1.5))) == ("sqrt", (1,), (1,), False)
    nested = jax.jit(lambda xs: lax.scan(lambda xs, _: (f(xs), None), xs, length=2)[0])
    assert not find(nested)(array(-5.0, -1.0))
    assert place(find(nested)(array(-5.0, 1.5))) == ("sqrt", (0, 1), (1,), False)


def test_a_loop_of_a_branch_that_begins_bad_is_reported_for_elements_that_take_it():
    f = branch_with_loop(lambda x: lax.fori_loop(0, 3, lambda i, y: y * 1.0, jnp.log(x - 2.0)))
    assert not find(f)(array(-5.0, 3.0))
    assert place(find(f)(array(-5.0, 1.5))) == ("log", (), (1,), False)


def test_under_vmap_a_carry_that_is_bad_for_a_while_is_reported():
    f = lambda x: lax.scan(lambda c, i: (jnp.where(i == 1, jnp.log(x), 1.0), None), x, jnp.arange(4))[0]  # noqa: E731
    assert place(find(jax.vmap(f))(array(1.0, -2.0))) == ("log", (1,), (1,), False)


@pytest.mark.parametrize("xs", [jnp.zeros((0, 3)), jnp.zeros((3, 0))], ids=["no iteration", "no element"])
def test_loops_over_nothing_are_run(xs):
    f = jax.jit(lambda x, xs: lax.scan(lambda c, y: (jnp.log(y).sum() + c, jnp.log(y)), x, xs))
    assert not find(f)(jnp.float32(1.0), xs)
    assert find(f)(jnp.float32(jnp.nan), xs).argument == "args[0]"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "complex64"])
def test_floats_of_all_kinds_are_looked_at(dtype):
    def f(x):
        def step(x, i):
            zero = jnp.where(i == 2, jnp.zeros_like(x), jnp.ones_like(x))
            return (x * zero / zero).astype(x.dtype), None

        return lax.scan(step, x, jnp.arange(4))[0]

    report = find(jax.jit(f))(jnp.ones(3).astype(dtype))
    assert place(report) == ("div", (2,), (), False) and f"{dtype}[3]" in str(report)


def test_integers_and_keys_are_carried_along():
    def f(x, key):
        def step(carry, _):
            n, key, x = carry
            key, own = jax.random.split(key)
            return (n + 1, key, jnp.where(n == 2, jnp.log(x), x + 0.0 * jax.random.normal(own))), None

        return lax.scan(step, (0, key, x), length=4)[0]

    report = find(jax.jit(jax.vmap(f)))(array(1.0, -2.0), jax.random.split(jax.random.key(0)))
    assert place(report) == ("log", (2,), (1,), False)


def test_reversed_unrolled_and_chunked_loops_have_their_iteration():
    stacked = lambda **how: lambda xs: lax.scan(lambda c, x: (c + x, jnp.log(x)), jnp.float32(0.0), xs, **how)  # noqa: E731
    xs = array(1.0, 2.0, 3.0, -4.0, 5.0)
    for unroll in (3, True):
        assert place(find(jax.jit(stacked(reverse=True, unroll=unroll)))(xs)) == ("log", (1,), (), False)
    chunked = find(jax.jit(lambda xs: lax.map(jnp.log, xs, batch_size=2)))(xs)
    assert place(chunked) == ("log", (1,), (1,), False)
    assert find(lambda xs: lax.associative_scan(lambda a, b: a / b, xs))(array(0.0, 0.0, 1.0)).primitive == "div"


def test_solvers_are_searched():
    solve = jax.jit(lambda a: jnp.linalg.solve(a, jnp.ones(2)))
    assert find(solve)(jnp.zeros((2, 2))).primitive == "triangular_solve"
    report = find(jax.vmap(jax.grad(lambda a: solve(a).sum())))(jnp.stack([jnp.eye(2), jnp.zeros((2, 2))]))
    assert (report.primitive, report.batch) == ("triangular_solve", (1,))

    def root(a):
        newton = lambda g, x: lax.fori_loop(0, 3, lambda i, x: x - 0.1 * g(x), x)  # noqa: E731
        return lax.custom_root(lambda x: jnp.log(x) - a, jnp.float32(-1.0), newton, lambda g, y: y / g(1.0))

    assert place(find(jax.jit(root))(jnp.float32(1.0))) == ("log", (0,), (), False)


# -- derivatives -----------------------------------------------------------------------------------------------------


def hidden(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_derivative_that_where_does_not_hide_names_the_forward_line(transform):
    report = find(transform(jax.grad(hidden)))(array(1.0, 0.0))
    assert place(report) == ("mul", (), (), True)
    assert source(report) == "return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()"
    assert [each.primitive for each in report.infinities] == ["div"] and "0 * inf" in str(report)


@pytest.mark.parametrize(
    "function",
    [
        jax.vmap(jax.grad(hidden)),
        jax.jit(jax.vmap(jax.grad(hidden))),
        jax.grad(lambda x: jax.vmap(hidden)(x).sum()),
        jax.jit(jax.grad(lambda x: jax.vmap(hidden)(x).sum())),
    ],
    ids=["vmap-grad", "jit-vmap-grad", "grad-vmap", "jit-grad-vmap"],
)
def test_a_backward_pass_knows_its_batch_element(function):
    report = find(function)(jnp.array([[1.0, 2.0], [1.0, 0.0], [3.0, 1.0]]))
    assert place(report) == ("mul", (), (1,), True)


def test_the_backward_pass_of_a_loop_has_the_iteration_that_it_differentiates():
    f = lambda w, xs: lax.scan(lambda c, x: (c + hidden(x * w), None), jnp.float32(0.0), xs)[0]  # noqa: E731
    report = find(jax.jit(jax.grad(f)))(jnp.float32(1.0), array(1.0, 0.0, 2.0, 3.0))
    assert place(report) == ("mul", (1,), (), True)
    assert source(report) == "return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()"


@jax.custom_vjp
def doubled(x):
    return jnp.float32(2.0) * x


doubled.defvjp(lambda x: (jnp.float32(2.0) * x, x), lambda x, cotangent: (cotangent * jnp.log(x),))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_backward_function_of_the_program_is_interpreted_where_it_runs(transform):
    assert not find(transform(doubled))(array(-1.0))
    report = find(transform(jax.vmap(jax.grad(doubled))))(array(1.0, -1.0))
    assert place(report) == ("log", (), (1,), True)


@jax.jit
def logarithm(x):
    return jnp.log(x)


def add_logarithm(carry, x):
    return carry + jnp.log(x), None


BACKWARD = {
    "operation": jnp.log,
    "jit": logarithm,
    "scan": lambda x: lax.scan(add_logarithm, jnp.zeros_like(x), x[None])[0],
    "cond": lambda x: lax.cond(x.sum() > 9, jnp.negative, jnp.log, x),
}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", BACKWARD)
def test_a_backward_function_that_two_lines_call_has_the_line_of_each(kind, transform):
    @jax.custom_vjp
    def double(x, sign):
        return 2.0 * x

    backward = lambda kept, cotangent: (cotangent * BACKWARD[kind](kept), 0.0)  # noqa: E731
    double.defvjp(lambda x, sign: (2.0 * x, jnp.asarray(x * sign)), backward)

    def twice(x, first, second):
        x = double(x, first)
        return double(x, second)

    search = find(transform(jax.grad(twice)))
    for signs, line in [((1.0, -1.0), "return double(x, second)"), ((-1.0, 1.0), "x = double(x, first)")]:
        report = search(jnp.float32(1.0), *signs)
        assert (report.primitive, report.backward, source(report)) == ("log", True, line)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("kind", BACKWARD)
def test_what_a_backward_function_has_called_first_has_its_own_lines_elsewhere(kind, transform):
    @jax.custom_vjp
    def double(x):
        return 2.0 * x

    double.defvjp(lambda x: (2.0 * x, x), lambda kept, cotangent: (cotangent * BACKWARD[kind](kept),))

    def doubled_before(x):
        return double(x)

    def forward(x):
        shifted = x - 2.0
        return BACKWARD[kind](shifted) * shifted

    call, own = "return BACKWARD[kind](shifted) * shifted", inspect.getsource(BACKWARD[kind])
    jax.clear_caches()
    assert source(find(transform(jax.grad(doubled_before)))(jnp.float32(-1.0))) == "return double(x)"
    for function in (forward, jax.grad(forward)):
        report = find(transform(function))(jnp.float32(1.0))
        assert report.primitive == "log"
        assert source(report) in (call, "return carry + jnp.log(x), None") or source(report) in own


def test_what_a_checkpoint_computes_again_has_the_line_of_the_forward_pass():
    def f(x):
        inner = jnp.sin(x)
        root = jnp.sqrt(inner)
        return (root * root).sum()

    report = find(jax.jit(jax.grad(jax.checkpoint(f))))(array(1.0, -1.0))
    assert place(report) == ("sqrt", (), (), False) and source(report) == "root = jnp.sqrt(inner)"


# -- shards ----------------------------------------------------------------------------------------------------------


def sharded(x):
    def f(x):
        def step(carry, limit):
            return carry + jnp.sqrt(x - limit).sum(), None

        zero = jnp.float32(0.0) * x.sum()
        total, _ = lax.scan(step, zero, jnp.arange(3.0))
        return lax.psum(total, "d")

    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    return jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P())(x)


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, lambda f: jax.jit(jax.grad(f))], ids=["eager", "jit", "grad"]
)
def test_loops_on_shards_have_iterations_and_the_shard(transform):
    report = find(transform(sharded))(array(3.0, 4.0, 3.0, 1.5))
    assert place(report) == ("sqrt", (2,), (), False) and report.shard == {"d": 1}


def test_a_shard_of_one_element_is_told_from_numbers_of_the_program():
    def f(x):
        y = jnp.where(x > 0, jnp.inf, x)
        return y - jnp.float32(jnp.inf) + 0.0 * y

    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    report = find(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=P("d")))(array(1.0))
    assert place(report) == ("sub", (), (), False) and report.infinities == ()
    assert str(report).splitlines()[4].startswith("  then add at") and str(report).splitlines()[4].endswith("shard_map")


def test_values_whose_sharding_is_part_of_their_type_are_followed_without_a_mesh_that_is_set():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    column = jax.device_put(array(1.0, 1.0, -1.0, 2.0)[:, None], NamedSharding(mesh, P("d")))
    on_shards = jax.shard_map(lambda x: jnp.log(x[:, 0]), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    report = find(jax.jit(on_shards))(column)
    assert place(report) == ("log", (), (), False) and report.shard == {"d": 2}
    slope = jax.jit(lambda w, x: jax.grad(lambda w: jnp.mean(jnp.sqrt(w * x)))(w))
    report = find(slope)(jax.device_put(jnp.float32(1.0), NamedSharding(mesh, P())), column * 0.0)
    assert report.kind == "nan" and report.backward and report.infinities[0].primitive == "div"


def test_shards_of_shards_have_both_numbers():
    def inner(x):
        return lax.psum(lax.fori_loop(0, 4, lambda i, x: jnp.where(i == 2, jnp.log(x), x * 1.0), x).sum(), "b")

    def outer(x):
        return lax.psum(jax.shard_map(inner, in_specs=P("b"), out_specs=P(), axis_names={"b"})(x), "a")

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    f = jax.shard_map(outer, mesh=mesh, in_specs=P("a"), out_specs=P(), axis_names={"a"})
    report = find(jax.jit(f))(array(1.0, 2.0, 3.0, -4.0, 5.0, 6.0, 7.0, 8.0))
    assert place(report) == ("log", (2,), (), False) and report.shard == {"a": 0, "b": 1}
    np.testing.assert_array_equal(report.operands[0], [3.0, -4.0])


def test_a_batch_of_a_function_on_shards_has_its_element():
    report = find(jax.vmap(sharded))(array(4.0, 3.0, 4.0, 3.0, 0.5, 3.0, 4.0, 3.0).reshape(2, 4))
    assert place(report) == ("sqrt", (1,), (1,), False) and report.shard == {"d": 0}


# -- programs that are run by Python -----------------------------------------------------------------------------------


def test_python_loops_around_jitted_steps_that_read_values_are_searched():
    @jax.jit
    def step(x, rate):
        return x - rate * jnp.log(x)

    def loop(x):
        for rate in (1.0, 8.0, 1.0):
            x = step(x, rate)
            if float(x) > 100:
                break
        return x

    report = find(loop)(jnp.float32(2.0))
    assert place(report) == ("log", (), (), False) and source(report) == "return x - rate * jnp.log(x)"


def test_arguments_and_results_of_all_kinds_are_taken():
    f = jax.jit(
        lambda tree, mode, *, n=1, none=None: {"y": jnp.log(tree["x"]) if mode == "log" else n, "none": none},
        static_argnums=1,
        static_argnames=("n", "none"),
    )
    assert find(f)({"x": array(-1.0), "none": None}, "log", n=3).primitive == "log"
    assert not find(lambda x: None)(array(-1.0)) and not find(jax.jit(lambda x: None))(array(-1.0))
    assert find(lambda x: jnp.log(x))(-1.0).primitive == "log"
    report = find(jax.jit(lambda x, rate: x * rate))(array(1.0), rate=float("nan"))
    assert report.argument == "kwargs['rate']"


def test_an_exception_of_the_function_ends_the_search_and_changes_nothing():
    def f(x):
        jnp.log(x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        find(f)(array(-1.0))
    assert find(jnp.log)(array(-1.0)).primitive == "log"


def test_searches_of_several_threads_do_not_meet():
    def search(number):
        f = lambda x: lax.fori_loop(0, 5, lambda i, x: jnp.where(i == number, jnp.log(x), x), x)  # noqa: E731
        return find(jax.jit(jax.vmap(f)))(array(1.0, -2.0))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert [place(each)[1:3] for each in threads.map(search, range(4))] == [((n,), (1,)) for n in range(4)]


def test_results_that_python_has_taken_out_of_jax_are_followed():
    assert find(lambda x: float(jnp.log(x)))(jnp.float32(-1.0)).primitive == "log"


def test_what_is_read_of_a_ref_begins_where_it_is_read():
    @jax.jit
    def f(x):
        ref = jax.new_ref(jnp.float32(0.0))
        ref[...] = jnp.log(x)
        return ref[...]

    assert source(find(f)(jnp.float32(-1.0))) == "return ref[...]"


def test_a_handler_in_the_function_may_be_the_first_of_the_process():
    @jax.jit
    def f(x):
        lox.log({"x": x})
        return jnp.log(x)

    _compat._params.unspecified.cache_clear()
    assert find(lambda x: lox.tap(f, lambda logs: None)(x))(array(-1.0)).primitive == "log"


HANDLERS = [
    ({"max_iters": 4}, ["eager"]),
    ({"max_iters": 4, "interval": 2}, ["jit"]),
    ({"max_events": 3}, ["jit"]),
    ({"max_events": 3, "interval": 2}, []),
    ({"reduce": "mean"}, ["jit"]),
    ({"reduce": "var", "window": 2, "max_iters": 4}, ["jit"]),
    ({"reduce": "last", "max_events": 2}, ["eager"]),
    ({"buffer": 4}, ["eager"]),
    ({"buffer": 3, "interval": 2}, ["jit"]),
    ({"window": 2, "reduce": "max"}, ["jit"]),
]
"""Options of handlers, and how a function with them is called by default."""


@pytest.mark.parametrize(
    ("options", "jitted"),
    [
        pytest.param(options, how == "jit", id=f"{options}-{how}", marks=[pytest.mark.exhaustive] * (how not in chosen))
        for options, chosen in HANDLERS
        for how in ("eager", "jit")
    ],
)
def test_what_a_handler_carries_for_events_that_did_not_happen_is_no_origin(options, jitted):
    def body(x, n):
        def outer(i, x):
            root = jnp.sqrt(x - 1.5)
            lox.log({"a": root}, where=x > 1.5, time=x[0])
            lax.cond(i == 1, lambda: lox.log({"b": x}) and None, lambda: None)
            jax.vmap(lambda y: lox.log({"g": y}, where=y > 9, time=jnp.log(-x[0])))(x)
            inner = lambda j, x: lox.log({"c": x, "d": jnp.log(x - 1)}, where=x > 1)["c"]  # noqa: E731
            return lax.fori_loop(0, n, inner, x)

        return lax.fori_loop(0, n, outer, x)

    def f(x, n):
        if set(options) & {"max_iters", "max_events"} or set(options) == {"reduce"}:
            x, _ = lox.spool(body, unify=True, **options)(x, n)
        else:
            x = lox.tap(body, lambda logs: None, **options)(x, n)
        return lax.scan(lambda c, _: (lox.log({"e": c, "f": jnp.log(-c)}, where=c > 9)["e"], None), x, length=3)[0]

    search = find(jax.jit(f) if jitted else f)
    for number in (0, 1, 3):
        assert not search(array(1.0, 2.0), jnp.int32(number))


def test_donated_arguments_stay_and_logs_are_dropped():
    @jax.jit
    def f(x):
        lox.log({"x": x})
        return jnp.log(x)

    calls = []
    tapped = lox.tap(jax.jit(f, donate_argnums=0), lambda logs: calls.append(logs))
    x = array(-1.0)
    assert find(tapped)(x).primitive == "log"
    assert not x.is_deleted() and calls == []


def test_a_search_changes_nothing_of_later_calls():
    f = jax.jit(lambda x: jnp.log(x) + 1.0)
    before = f.lower(array(-1.0)).as_text()
    find(f)(array(-1.0))
    assert f.lower(array(-1.0)).as_text() == before
    assert "lox_batch_axes" not in str(jax.make_jaxpr(jax.vmap(jnp.log))(array(1.0)))


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad, find], ids=["jit", "vmap", "grad", "search"])
def test_a_search_inside_of_a_transformation_is_an_error(transform):
    x = jnp.ones(1) if transform is jax.vmap else jnp.float32(1.0)
    with pytest.raises(lox.LogValueError, match=r"outside of jax.jit.*give it the transformed function"):
        transform(lambda x: find(jnp.log)(x).found * 1.0)(x)


def test_a_callback_that_would_run_again_is_an_error_with_its_line():
    def f(x):
        return jax.experimental.io_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), x)

    with pytest.raises(lox.LogValueError, match=r"test_nonfinite.py:\d+ would run again"):
        find(f)(jnp.float32(1.0))


def test_a_function_with_a_callback_in_it_is_refused_before_any_of_it_runs():
    called = []

    def f(x):
        jax.experimental.io_callback(called.append, None, x)
        return x - jnp.log(x)

    in_scan = lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=3)[0]  # noqa: E731
    in_while = lambda x: jax.lax.while_loop(lambda x: x > 0, lambda x: jax.jit(f)(x) - 1.0, x)  # noqa: E731
    in_branch = lambda x: jax.lax.cond(x > 0, jax.checkpoint(in_scan), lambda x: x, x)  # noqa: E731
    line = f.__code__.co_firstlineno + 1
    for function in (in_scan, in_while, jax.jit(in_branch)):
        with pytest.raises(lox.LogValueError, match=f"test_nonfinite.py:{line} would run again"):
            find(function)(jnp.float32(2.0))
        jax.effects_barrier()
        assert called == []


def test_what_is_no_function_is_an_error():
    with pytest.raises(lox.LogDataError, match="takes a function, got"):
        find(3)


# -- the story -------------------------------------------------------------------------------------------------------


def test_a_report_prints_a_short_story():
    text = str(find(jax.vmap(train, (0, None)))(array(1.0, 2.0), array(1.0, 8.0, 1.0)))
    lines = text.splitlines()
    assert lines[0].startswith("NaN begins in log at ") and lines[0].endswith(" (step), iteration 2, batch element 1")
    assert lines[1] == "    return x - rate * jnp.log(x), x"
    assert lines[2].startswith("  operand 0: float32[] -0.83")
    assert lines[3].startswith("  then mul at ")
    assert "below its domain" in lines[-1] and len(lines) == 5
    assert str(find(jnp.log)(array(1.0))) == "All results and carries are finite."


def test_a_product_of_zero_and_infinity_has_the_cure_of_what_became_infinite():
    report = find(lambda x: (x - x.mean()) * lax.rsqrt(jnp.var(x)))(jnp.ones(3))
    assert report.primitive == "mul" and "1 / sqrt(0) is infinite" in str(report)


# -- faults in generated programs, and programs as people write them --------------------------------------------------


@pytest.mark.parametrize("number", range(16))
def test_a_fault_at_a_random_place_of_a_random_program_is_found(number):
    wrong, fault = faults.check(number)
    assert not wrong, fault


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(16, 104))
def test_faults_at_more_random_places_are_found(number):
    wrong, fault = faults.check(number)
    assert not wrong, fault


@pytest.mark.parametrize("number", range(2))
def test_a_fault_in_a_program_of_the_laws_is_found(number):
    wrong, fault = faults_in_programs.check(number)
    assert not wrong, fault.source


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(2, 48))
def test_faults_in_more_programs_of_the_laws_are_found(number):
    wrong, fault = faults_in_programs.check(number)
    assert not wrong, fault.source


def test_faults_are_drawn_at_all_kinds_of_places():
    drawn = [faults.draw(number) for number in range(1000)]
    for name in ("condition", "cond", "checkpoint", "custom", "shards"):
        assert sum(name in fault.nest for fault in drawn) >= 100
    assert sum(fault.backward for fault in drawn) >= 100
    assert 250 <= sum(fault.hidden for fault in drawn) <= 350


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_program_that_fails_as_those_of_people_do(name):
    case = CASES[name]
    report = find(case.function)(*case.arguments)
    assert (report.kind, *place(report)) == (case.kind, case.primitive, case.iterations, case.batch, case.backward)
    assert case.text in source(report) and case.cure in str(report)


def test_a_loop_of_many_iterations_takes_the_memory_of_a_short_one():
    def f(length):
        return lambda x: lax.fori_loop(0, length, lambda i, x: jnp.where(i == length - 3, jnp.log(-x), x * 1.0), x)

    def bytes_of(length):
        before = {id(each) for each in jax.live_arrays()}
        report = find(f(length))(jnp.ones(100))
        assert report.iterations == (length - 3,)
        return sum(each.nbytes for each in jax.live_arrays() if id(each) not in before)

    assert bytes_of(100_000) <= bytes_of(1_000) + 1_000


def test_a_python_loop_of_finite_steps_keeps_nothing():
    step = jax.jit(lambda x: x * jnp.float32(0.5))
    alive = []

    def loop(x):
        for _ in range(50):
            x = step(x)
            alive.append(len(jax.live_arrays()))
        return jnp.log(-x - 1.0)

    assert find(loop)(jnp.ones(3)).primitive == "log"
    assert alive[-1] <= alive[5] + 2


def test_of_a_reversed_scan_the_failure_that_ran_first_is_the_origin():
    def f(xs):
        return lax.scan(lambda c, x: (c, jnp.log(x)), 0.0, xs, reverse=True)[1]

    report = lox.find_nonfinite(f)(array(1, -1, 1, 1, -2, 1))
    assert report.iterations == (1,) and report.operands[0] == -2


def test_of_two_results_of_one_iteration_the_first_is_the_origin_where_only_the_other_is_carried():
    def f(xs):
        def step(c, x):
            y = jnp.log(x)
            return c + jnp.sqrt(x), y

        return lax.scan(step, 0.0, xs)

    report = lox.find_nonfinite(f)(array(1, -1, 2))
    assert (report.primitive, report.iterations) == ("log", (1,))


def test_a_condition_that_asks_for_nan_is_no_comparison_of_it():
    """The origin is in the body, although the condition computes a NaN in an earlier iteration."""

    def f(x):
        def goes_on(state):
            return ~(jnp.isnan(jnp.log(2.5 - state[0])) & (state[0] > 7))

        def step(state):
            return state[0] + 1, jnp.where(state[0] == 5, jnp.sqrt(-state[1]), state[1])

        return lax.while_loop(goes_on, step, (0, x))[1]

    report = lox.find_nonfinite(f)(1.0)
    assert (report.primitive, report.iterations) == ("sqrt", (5,))


# -- what a report says ----------------------------------------------------------------------------------------------


def lines_of(report):
    """The lines of a report, without the directories of files."""
    return [
        line.replace(str(Path(__file__).parent) + "/", "").replace("tests/", "") for line in str(report).splitlines()
    ]


def at(function, text):
    """The file and the number of the line of a function that has a text."""
    lines, first = inspect.getsourcelines(function)
    (found,) = (number for number, line in enumerate(lines, first) if text in line)
    return f"test_nonfinite.py:{found}"


def long_story(x, scale):
    large = jnp.exp(x * scale)
    fed = large - large
    moved = jnp.negative(fed)
    y = jnp.tanh(moved)
    y = jnp.sin(y)
    y = jnp.cos(y)
    y = jnp.arctan(y)
    y = y * 2.0
    return y + 1.0


def test_a_report_shows_the_operands_what_fed_them_and_the_way_to_the_result():
    report = find(long_story)(array(-1.0, 50.0, -2.0, 0.5, 200.0, 3.0, 7.0, -0.25), 1.0)
    where = functools.partial(at, long_story)
    assert lines_of(report) == [
        f"NaN begins in sub at {where('fed = ')} (long_story), at [4]",
        "    fed = large - large",
        "  operand 0: float32[8] from 0.1353 to inf: 0.3679, 5.185e+21, 0.1353, 1.649, inf, 20.09, ...",
        "  operand 1: float32[8] from 0.1353 to inf: 0.3679, 5.185e+21, 0.1353, 1.649, inf, 20.09, ...",
        f"  fed by Inf begins in exp at {where('large = ')} (long_story), at [4]",
        f"  then neg at {where('moved = ')}, tanh at {where('jnp.tanh')}, sin at {where('jnp.sin')}, "
        f"cos at {where('jnp.cos')}, atan at {where('jnp.arctan')}, add at {where('y + 1.0')}",
        "  inf - inf: a row in which all is masked with -inf, or numbers that have overflowed before.",
    ]
    assert [step.primitive for step in report.chain] == ["neg", "tanh", "sin", "cos", "atan", "mul", "add"]
    assert [(each.kind, each.primitive, each.found) for each in report.infinities] == [("inf", "exp", True)]


EXCERPTS = {
    "float32[] -1": jnp.float32(-1.0),
    "float16[3] from -2 to 1: 1, -2, 0.5": jnp.array([1.0, -2.0, 0.5], jnp.float16),
    "bfloat16[2, 2] from -3 to 0.5: 0.5, -1, -2, -3": jnp.array([[0.5, -1], [-2, -3]], jnp.bfloat16),
    "float32[7] from -7 to 3: 3, -2, -7, 0.25, -1, 1, ...": array(3.0, -2.0, -7.0, 0.25, -1.0, 1.0, -4.0),
    "float32[6] from -6 to -1: -1, -2, -3, -4, -5, -6": -jnp.arange(1.0, 7.0),
}


def test_operands_of_all_kinds_are_shown_by_their_range_and_first_elements():
    for text, operand in EXCERPTS.items():
        assert lines_of(find(jnp.log)(operand))[2] == f"  operand 0: {text}"
    assert lines_of(find(lax.div)(jnp.array([1 + 1j, 0]), jnp.array([2j, 0])))[2:4] == [
        "  operand 0: complex64[2] from 0 to 1.414: 1+1j, 0+0j",
        "  operand 1: complex64[2] from 0 to 2: 0+2j, 0+0j",
    ]
    report = find(lax.pow)(array(0.0, 3.0), jnp.array([-1, 2]))
    assert lines_of(report)[2:4] == [
        "  operand 0: float32[2] from 0 to 3: 0, 3",
        "  operand 1: int32[2] from -1 to 2: -1, 2",
    ]


def test_all_origins_are_listed_in_the_order_in_which_they_ran():
    def f(x):
        root = jnp.sqrt(x)
        hidden = jnp.log(x)
        also = 1.0 / jnp.maximum(x, 0.0)
        written = jnp.where(x > 0, x, jnp.nan)
        return jnp.where(x > 0, root + hidden + also, 0.0), written

    report = find(f, all=True)(array(-1.0, 4.0))
    found = [(each.kind, each.primitive) for each in (report, *report.others)]
    assert found == [("nan", "sqrt"), ("nan", "log"), ("nan", None), ("inf", "div")]
    assert [line for line in lines_of(report) if line.startswith("also")] == [
        f"also: NaN begins in log at {at(f, 'hidden =')} (f), at [0]",
        "also: NaN is in a constant of the program" + lines_of(report)[-2].partition("program")[2],
        f"also: Inf begins in div at {at(f, 'also =')} (f), at [0]",
    ]
    alone = find(f)(array(-1.0, 4.0))
    assert (alone.primitive, alone.kind, alone.others) == (None, "nan", ())


CURES = [
    (jnp.log, 0.0, "inf", "log(0) is -inf: add a small number, or clip the operand from below."),
    (jnp.log2, -1.0, "nan", "The logarithm is of a number below its domain: clip the operand from below."),
    (lax.rsqrt, 0.0, "inf", "1 / sqrt(0) is infinite: add a small number."),
    (lambda x: x / (x - 1.0), 1.0, "inf", "Division by 0: add a small number to the divisor."),
    (jnp.sinh, 99.0, "inf", "The exponential overflows: subtract the maximum first, as `jax.nn.softmax` and "),
    (jnp.arccosh, 0.5, "nan", "The operand is outside of the domain: clip it."),
    (lambda x: x + x, 3e38, "inf", "The result is larger than the dtype holds: numbers grow without bound, or the "),
    (
        jax.grad(lambda x: 3.0 * jnp.log(x)),
        0.0,
        "inf",
        "The derivative of a logarithm, a root, a norm or a power is not finite at 0; ",
    ),
]


def test_each_origin_has_the_cure_that_fits_its_operands():
    for function, x, kind, cure in CURES:
        report = find(function)(jnp.float32(x))
        assert report.kind == kind and lines_of(report)[-1].startswith(f"  {cure}"), report


TRACED = {
    "sum of rows": lambda c: c.sum(1)[2],
    "running sum of rows": lambda c: jnp.cumsum(c, 1)[2],
    "matrix product": lambda c: (c @ jnp.ones((4, 5)))[2],
    "product of batches": lambda c: jnp.einsum("jbk,bk->bj", jnp.ones((2, 3, 4)), c)[2],
    "padding, reversal, transposition": lambda c: jnp.pad(c, 1)[:, ::-1].T[4, 3],
    "rows by indices": lambda c: jnp.take(c, jnp.array([2, 1, 0]), 0)[0],
}


def test_what_an_element_comes_from_is_followed_through_operations():
    """The root of one element is not a number, and before it the logarithm of another, which the result is not of."""
    x = jnp.full((3, 4), 9.0)
    for name, operation in TRACED.items():
        f = lambda x, y, operation=operation: operation(jnp.log(x) + jnp.sqrt(y))  # noqa: E731
        assert find(f)(x.at[0, 1].set(-1.0), x.at[2, 0].set(-1.0)).primitive == "sqrt", name
    rows = jax.vmap(lambda x, y: jnp.sort(jnp.log(x) + jnp.sqrt(y)))
    assert find(lambda x, y: rows(x, y)[2])(x.at[0, 1].set(-1.0), x.at[2, 0].set(-1.0)).primitive == "sqrt"


def test_what_an_element_comes_from_is_followed_on_shards_and_across_them():
    """Of each pair, what is at the first place of the first shard, and at the second place of the second."""
    mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
    for over, place in ((lambda z: z, 3), (lambda z: lax.psum(z, "d"), 1)):
        across = jax.shard_map(
            lambda x, y, over=over: over(jnp.log(x) + jnp.sqrt(y)),
            mesh=mesh,
            in_specs=P("d"),
            out_specs=P("d") if place == 3 else P(),
            check_vma=False,
        )
        report = find(lambda x, y, across=across, place=place: across(x, y)[place])(
            array(-1.0, 1.0, 1.0, 1.0), array(1.0, 1.0, 1.0, -1.0)
        )
        assert (report.primitive, report.shard) == ("sqrt", {"d": 1})
        np.testing.assert_array_equal(report.operands[0], [1.0, -1.0])


def test_an_argument_that_is_not_finite_is_reported_at_the_line_and_iteration_of_its_first_use():
    def f(x, params, *, rate):
        def step(x, _):
            x = x + params["w"][1]
            return x * rate, None

        return lax.scan(step, x, None, length=3)[0]

    good = {"w": [1.0, 2.0]}
    for args, kwargs, kind, argument, text in (
        ((1.0, {"w": [1.0, array(np.nan)[0]]}), {"rate": 2.0}, "nan", "args[1]['w'][1]", "x = x + params"),
        ((1.0, {"w": [1.0, array(np.inf)[0]]}), {"rate": 2.0}, "inf", "args[1]['w'][1]", "x = x + params"),
        ((1.0, good), {"rate": array(-np.inf)[0]}, "inf", "kwargs['rate']", "x * rate"),
        ((1.0, good), {"rate": float("nan")}, "nan", "kwargs['rate']", "x * rate"),
    ):
        report = find(f)(*args, **kwargs)
        found = (report.kind, report.primitive, report.argument, report.iterations, report.function, report.batch)
        assert found == (kind, None, argument, (0,), "step", ())
        assert f"{Path(report.file).name}:{report.line}" == at(f, text)
        what = {"nan": "NaN", "inf": "Inf"}[kind]
        assert lines_of(report)[0] == f"{what} is in {argument} at {at(f, text)} (step), iteration 0"
    assert not find(f)(1.0, good, rate=2.0)
    report = find(f)(array(np.nan)[0], good, rate=2.0)
    assert (report.argument, report.found) == ("args[0]", True)


def test_a_carry_in_a_branch_that_all_batch_elements_take_is_searched():
    def f(p, x):
        y = lax.cond(p, lambda x: lax.scan(lambda c, _: (jnp.log(c), None), x, length=4)[0], lambda x: x, x)
        return jnp.where(jnp.isnan(y), 0.0, y)

    found = lox.find_nonfinite(jax.vmap(f, (None, 0)))(True, jnp.array([2.0, 3.0]))
    assert found.found and found.primitive == "log"
