"""A log that JAX compiles or runs before a handler can get it is an error that names its line, and never lost."""

import subprocess
import sys

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import mlir
from reference import assert_logs

import lox

X = jnp.float32(2)


def double(x):
    lox.log({"x": x})
    return 2 * x


LINE = double.__code__.co_firstlineno + 1

call_p = jex.core.Primitive("call_late")


@call_p.def_impl
def call_late(x, *, fun):
    return fun(x)


call_p.def_abstract_eval(lambda x, fun: x)
mlir.register_lowering(call_p, mlir.lower_fun(call_late, multiple_results=False))


def late(fun):
    """A function in the parameters of a primitive, which traces it when it is compiled, as those of lineax do."""
    return lambda x: call_p.bind(x, fun=fun)


@jax.custom_jvp
def custom(x):
    return double(x)


custom.defjvp(lambda primals, tangents: (custom(*primals), 2 * tangents[0]))

early = {
    "jit": jax.jit(double),
    "scan": lambda x: lax.scan(lambda x, _: (double(x), None), x, None, length=2)[0],
    "cond": lambda x: lax.cond(x > 0, double, double, x),
    "while": lambda x: lax.while_loop(lambda x: x < 9, double, x),
    "checkpoint": jax.checkpoint(double),
    "custom rule": custom,
}


def at_compile_time(fun):
    def call(x):
        with jax.ensure_compile_time_eval():
            return fun(jnp.float32(3)) + x

    return call


handlers = {
    "spool": lox.spool,
    "spool of jit": lambda f: lox.spool(jax.jit(f)),
    "jit of spool": lambda f: jax.jit(lox.spool(f)),
    "spool of scan": lambda f: lox.spool(lambda x: lax.scan(lambda x, _: (f(x), None), x, None, length=2)[0]),
    "tap": lambda f: lox.tap(f, lambda logs: None),
    "jit of tap": lambda f: jax.jit(lox.tap(f, lambda logs: None)),
}


def assert_refused(call, *args):
    with pytest.raises(lox.UnsupportedPrimitiveError) as raised:
        call(*args)
    assert f"{__file__}:{LINE} (double)" in str(raised.value) and "lox.strip" in str(raised.value)


@pytest.mark.parametrize("handler", ["spool", "spool of jit", "tap"])
def test_a_function_that_is_lowered_inside_a_handler_is_refused(handler):
    assert_refused(handlers[handler](lambda x: jax.jit(double).lower(x).compile()(x)), X)
    assert_refused(handlers[handler](lambda x: jax.export.export(jax.jit(double))(x).call(x)), X)


def test_a_function_that_is_lowered_with_its_handler_logs():
    out, logs = jax.jit(lox.spool(double)).lower(X).compile()(X)
    assert out == 4
    assert_logs(logs, {"x": [2.0]})


@pytest.mark.parametrize("program", early)
def test_what_is_evaluated_at_compile_time_inside_of_jit_is_refused(program):
    assert_refused(lox.spool(jax.jit(at_compile_time(early[program]))), X)


@pytest.mark.parametrize("program", ["jit", "scan", "cond"])
def test_what_is_evaluated_at_compile_time_inside_of_the_handler_alone_logs(program):
    events = {"jit": [3.0], "scan": [3.0, 6.0], "cond": [3.0]}[program]
    for handler in (lox.spool, lambda f: jax.jit(lox.spool(f))):
        assert_logs(handler(at_compile_time(early[program]))(X)[1], {"x": events})


@pytest.mark.parametrize("handler", handlers)
def test_a_primitive_that_calls_a_python_function_when_it_is_compiled_is_refused(handler):
    assert_refused(handlers[handler](late(double)), X)
    assert_refused(handlers[handler](late(late(double))), X)


def test_a_primitive_whose_python_function_has_its_own_handler_works():
    for transform in (lambda f: f, jax.jit):
        out, logs = lox.spool(transform(late(lox.strip(double))))(X)
        assert out == 4 and not logs
        assert lox.strip(transform(late(double)))(X) == 4
        out, logs = lox.spool(transform(late(lambda x: lox.spool(double)(x)[0])))(X)
        assert out == 4 and not logs


def test_a_primitive_that_evaluates_itself_is_none_that_calls_a_function():
    itself_p = jex.core.Primitive("itself")
    itself_p.def_impl(lambda x, **params: jax.jit(lambda x: itself_p.bind(x, **params))(x))
    itself_p.def_abstract_eval(lambda x, by: x)
    mlir.register_lowering(itself_p, mlir.lower_fun(lambda x, by: by * x, multiple_results=False))
    for handler in (lox.spool, lambda f: lox.spool(jax.jit(f))):
        out, logs = handler(lambda x: double(itself_p.bind(x, by=3)))(X)
        assert out == 12
        assert_logs(logs, {"x": [6.0]})


def test_a_primitive_that_runs_numpy_is_none_that_calls_a_function():
    negative_p = jex.core.Primitive("negative")
    negative_p.def_impl(lambda x: jnp.asarray(-np.asarray(x)))
    out, logs = lox.spool(lambda x: double(negative_p.bind(x)))(X)
    assert out == -4
    assert_logs(logs, {"x": [-2.0]})


def test_a_python_function_without_logs_runs_in_a_primitive_without_a_rule():
    def total(x):
        return double(lax.reduce(x, jnp.float32(0), lambda a, b: late(jnp.positive)(a + b), (0,)))

    out, logs = lox.spool(total)(jnp.arange(4, dtype=jnp.float32))
    assert out == 12
    assert_logs(logs, {"x": [6.0]})


def test_what_is_late_is_refused_from_the_first_import_on():
    program = """if True:
        import jax, lox
        def f(x):
            lox.log({"x": x})
            return x
        try:
            lox.spool(lambda x: jax.jit(f).lower(x).compile()(x))(1.0)
        except lox.UnsupportedPrimitiveError:
            print("refused")
    """
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "refused\n"
