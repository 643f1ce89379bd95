"""What a benchmark compares is in the programs that it times."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import lox
from benchmarks import programs, streaming
from benchmarks._present import calling, host_calls, logging, returning, silent


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


X = jnp.ones(4)


def test_a_program_that_jax_traced_before_without_callbacks_is_refused():
    emit = None

    def step(x, d):
        if emit is not None:
            emit(x)
        return x + d, None

    def make():
        return jax.jit(lambda xs: jax.lax.scan(step, 0.0, xs)[0])

    silent(make(), X)
    emit = lambda x: jax.debug.callback(streaming.take, x)  # noqa: E731
    with pytest.raises(AssertionError, match="has 0 calls of the host, and is to have at least 1"):
        calling(make(), X)


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit])
def test_calls_of_the_host_are_counted_in_what_was_compiled(jit):
    def f(x):
        jax.debug.callback(streaming.take, x)
        jax.debug.callback(streaming.take, x + 1, ordered=True)
        return lox.log({"x": x})["x"]

    assert host_calls(jit(f), X) == 2 and host_calls(jit(lox.tap(f, streaming.take)), X) == 3
    with pytest.raises(AssertionError, match="has 2 calls of the host, and is to have none"):
        silent(jit(f), X)
    with pytest.raises(AssertionError, match="at least 3"):
        calling(jit(f), X, least=3)


def test_a_function_that_returns_too_few_logs_or_logs_nothing_is_refused():
    assert returning(lox.spool(streaming.small), X) and logging(streaming.small, X)
    with pytest.raises(AssertionError, match="returns 0 logged values"):
        returning(lox.spool(lambda x: x), X)
    with pytest.raises(AssertionError, match="no log call"):
        logging(lambda x: x, X)


def test_the_solver_runs_39_iterations():
    solver = programs.solver()
    solver.check()
    with pytest.raises(AssertionError):
        dataclasses.replace(solver, events={"error": 38}).check()


def test_a_program_that_logs_nan_is_refused():
    solver = programs.solver()
    with pytest.raises(AssertionError):
        dataclasses.replace(solver, args=(jnp.float32(1e30),), events={}).check()


def test_by_hand_a_counter_is_returned_once():
    _, (_, counters) = jax.eval_shape(programs.straight_line().by_hand, *programs.straight_line().args)
    assert counters["layer"].shape == (8,)
