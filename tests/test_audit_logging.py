"""What an audit says of log calls is what `lox.spool` does with them."""

import functools

import jax
import jax.numpy as jnp
import pytest
from corpus import cases, f32
from hypothesis import given
from tiers import generates

import lox
from lox import testing

REFUSED = ("LOX900", "LOX901", "LOX902", "LOX906")
CASES = [case for case in cases() if case.family == "logging"]
WITHOUT_TAPS = [construct for construct in testing.CONSTRUCTS if construct != "tap"]


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def refuses(fun, *args):
    """Whether `lox.spool` refuses the logs of a function."""
    try:
        jax.eval_shape(lambda *args: lox.spool(fun)(*args)[1].data, *args)
    except (lox.SpoolError, lox.StructureError, lox.UnsupportedPrimitiveError):
        return True
    return False


def found(fun, *args):
    report = lox.audit(fun)(*args)
    return {finding.code for finding in (*report.issues, *report.warnings)}


@pytest.mark.parametrize("case", [c for c in CASES if c.code in REFUSED], ids=lambda case: case.name)
def test_spool_refuses_what_is_found_wrong_and_nothing_else(case):
    assert refuses(case.fun, *case.args) == (case.wrong or "on_a_screen" in case.name)


@generates(25)
@given(testing.programs(depth=2, length=2, constructs=WITHOUT_TAPS))
def test_of_random_programs_spool_refuses_those_in_which_something_is_found(program):
    args = f32(3), jax.ShapeDtypeStruct((), jnp.int32)
    assert refuses(program, *args) == bool(found(program, *args) & set(REFUSED))


@pytest.mark.parametrize("case", [case for case in CASES if not case.wrong], ids=lambda case: case.name)
def test_what_is_right_is_not_mentioned(case):
    assert case.code not in found(case.fun, *case.args)


def test_memory_is_what_the_largest_logs_take_beyond_the_budget():
    def fun(xs):
        def step(carry, x):
            lox.log({"small": x})
            lox.log({"large": jnp.outer(x, x)}, step=0)
            lox.log({"larger": jnp.outer(x, jnp.concatenate([x, x]))})
            return carry, None

        return jax.lax.scan(step, 0.0, xs)[0]

    report = lox.audit(fun)(f32(200, 1000))
    (finding,) = (finding for finding in report.warnings if finding.code == "LOX903")
    assert finding.line == fun.__code__.co_firstlineno + 4
    assert finding.message == "200 events of 'larger' of float32[1000, 2000] are 1.5 GiB."
    report = lox.audit(fun)(f32(300, 1000))
    lines = [finding.line - fun.__code__.co_firstlineno for finding in report.warnings if finding.code == "LOX903"]
    assert lines == [4, 3]
    assert "LOX903" in {finding.code for finding in lox.audit(fun)(f32(50, 1000)).verified}


def test_a_tap_in_a_short_or_branching_loop_is_not_called_too_often():
    def simulate(length, log_each):
        def step(number, x):
            if log_each:
                lox.log({"x": x})
            else:
                jax.lax.cond(number % 1000 == 0, lambda: lox.log({"x": x}) and None, lambda: None)
            return 0.5 * x

        return lambda x: lox.tap(lambda x: jax.lax.fori_loop(0, length, step, x), print)(x)

    assert "LOX904" in found(simulate(1000, True), f32())
    assert "LOX904" not in found(simulate(999, True), f32())
    assert "LOX904" not in found(simulate(10_000, False), f32())


def test_a_tap_of_every_tenth_iteration_or_beside_much_work_is_not_called_too_often():
    def simulate(inner, **options):
        def step(number, x):
            lox.log({"x": x})
            return jax.lax.fori_loop(0, inner, lambda _, x: 0.5 * x, x)

        return lambda x: lox.tap(lambda x: jax.lax.fori_loop(0, 2000, step, x), print, **options)(x)

    assert "LOX904" in found(simulate(10), f32())
    assert "LOX904" not in found(simulate(200_000), f32())
    assert "LOX904" not in found(simulate(10, interval=10), f32())


def test_events_of_loops_in_branches_are_counted():
    def fun(x, length):
        def log(x):
            return jax.lax.fori_loop(0, length, lambda _, x: 2 * lox.log({"x": x})["x"], x)

        def log_twice(x):
            return lox.log({"x": lox.log({"x": x})["x"] + 1})["x"]

        return jax.lax.cond(x > 0, log, log_twice, x)

    for length in (1, 2, 3):
        fixed = functools.partial(fun, length=length)
        assert ("LOX901" in found(fixed, f32())) == refuses(fixed, f32()) == (length != 2)


def test_events_of_branches_that_lanes_choose_are_like_others():
    def fun(xs):
        def one(x):
            return lox.log({"x": x})["x"]

        def either(x):
            return jax.lax.cond(x > 0, one, lambda x: one(one(x)), x)

        return jax.vmap(one)(xs), jax.vmap(either)(xs)

    assert "LOX902" not in found(fun, f32(3))
    assert "LOX901" in found(fun, f32(3))


def test_what_differs_only_in_branches_of_branches_is_said_there():
    def fun(x, y):
        def inner(x):
            return jax.lax.cond(y > 0, lambda x: lox.log({"b": x})["b"], lambda x: x, x)

        return jax.lax.cond(x > 0, inner, lambda x: lox.log({"b": -x})["b"], x)

    report = lox.audit(fun)(f32(), f32())
    lines = [finding.line - fun.__code__.co_firstlineno for finding in report.warnings if finding.code == "LOX901"]
    assert lines == [2]


def test_a_log_in_a_primitive_without_a_rule_is_an_error_at_its_line():
    def fun(x):
        def join(a, b):
            lox.log({"a": a})
            return jax.lax.cond(a > b, lambda: lox.log({"b": b})["b"], lambda: a)

        return jax.jit(lambda x: jax.lax.reduce(x, jnp.float32(0), join, (0,)))(x)

    issues = lox.audit(fun)(f32(8)).issues
    assert [issue.line - fun.__code__.co_firstlineno for issue in issues] == [2, 3]
    assert [issue.message for issue in issues] == [
        f"'{key}' is logged inside of 'reduce', for which lox has no rule." for key in "ab"
    ]
    assert "LOX906" in {finding.code for finding in lox.audit(lox.log)({"x": f32()}).verified}


def test_a_function_without_logs_is_not_looked_at():
    codes = {finding.code for finding in lox.audit(jnp.sin)(f32(3)).verified}
    assert not any(code.startswith("LOX9") for code in codes)


def test_a_log_with_where_is_no_branch_that_logs_differently():
    def f(x):
        jax.lax.cond(x > 1, lambda x: lox.log({"x": x}, where=x > 2)["x"], lambda x: x, x)
        lox.log({"y": x}, where=x > 0)

    assert "LOX901" not in {finding.code for finding in lox.audit(f)(1.0).issues}
