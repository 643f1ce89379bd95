"""`lox.progress`: bars for loops of programs that have none."""

import os
import re
import subprocess
import sys
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._progress import _board, _display
from lox._progress._board import Board


@pytest.fixture
def told(monkeypatch):
    """What loops tell the host, as it comes: the loop, the run, the iterations since, and how many elements go on."""
    told = []
    report = Board.report

    def noted(self, loop, number, done, live):
        number, size = report(self, loop, number, done, live)
        told.append((loop, number, done, live))
        return number, size

    monkeypatch.setattr(Board, "report", noted)
    return told


def runs_of(told):
    """Of each run, in the order in which they began: the path of the loop, and the number of iterations."""
    counts = {}
    for loop, run, done, *_ in told:
        path, count = counts.get(run, (loop.path, 0))
        counts[run] = path, count + done * loop.unroll
    return [counts[run] for run in sorted(counts)]


def bitwise(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def close(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, 1e-5, 1e-6), found, expected)


# -- programs that have no bars ------------------------------------------------------------------------------------


def scanned(x):
    def step(c, i):
        c = jnp.tanh(c * 0.9 + i)
        return c, {"double": c * 2, "index": i}

    return jax.lax.scan(step, x, jnp.arange(7.0))


def reverse(x):
    return jax.lax.scan(lambda c, i: (jnp.sin(c + i), c), x, jnp.arange(7.0), reverse=True)


def unrolled(x):
    return jax.lax.scan(lambda c, i: (jnp.sin(c + i), c * i), x, jnp.arange(7.0), unroll=3)


def mapped(x):
    return jax.lax.map(lambda y: jnp.sin(y) * x, jnp.arange(5.0))


def collatz(x):
    """The number of steps differs between batch elements."""
    n = (jnp.abs(x) * 10).astype(jnp.int32) + 1
    even = lambda n: n // 2  # noqa: E731
    odd = lambda n: 3 * n + 1  # noqa: E731
    step = lambda s: (jnp.where(s[0] % 2 == 0, even(s[0]), odd(s[0])), s[1] + 1, jnp.sin(s[2]))  # noqa: E731
    return jax.lax.while_loop(lambda s: s[0] > 1, step, (n, 0, x))


def steps_of_collatz(x):
    n, steps = int(abs(x) * 10) + 1, 0
    while n > 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def counted(x):
    return jax.lax.fori_loop(0, 6, lambda i, c: jnp.cos(c) + i.astype(c.dtype), x)


def nested(x):
    def step(c, i):
        c = jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), c)
        return jax.lax.while_loop(lambda c: c < 1, lambda c: c + 0.5, c), i

    return jax.lax.scan(step, x, jnp.arange(4.0))


def rematerialized(x):
    return scanned(jax.checkpoint(lambda x: scanned(x)[0])(x))


@jax.custom_jvp
def with_rule(x):
    return scanned(x)[0]


with_rule.defjvp(lambda primals, tangents: (with_rule(*primals), jnp.cos(primals[0]) * tangents[0]))


@jax.custom_vjp
def with_backward_rule(x):
    return scanned(x)[0]


with_backward_rule.defvjp(
    lambda x: (with_backward_rule(x), x), lambda x, g: (jax.lax.fori_loop(0, 4, lambda _, g: g * jnp.cos(x), g),)
)


def in_branch(x):
    return jax.lax.cond(x > 0, lambda x: scanned(x)[0], lambda x: counted(x), x)


def several(x):
    return in_branch(scanned(x)[0]) + with_rule(x) + jnp.sum(mapped(x))


PROGRAMS = [scanned, reverse, unrolled, mapped, counted, rematerialized, with_rule, in_branch, several]
TRANSFORMS = {
    "f": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
}


def total(fun):
    return lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(fun(x)))


DERIVATIVES = {
    "grad": lambda f: jax.grad(total(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(total(f))),
    "jvp": lambda f: lambda x: jax.jvp(total(f), (x,), (1.0,)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(total(f))),
    "grad of jit": lambda f: jax.grad(total(jax.jit(f))),
}
X = {False: 0.7, True: jnp.array([0.3, -0.7, 1.1])}


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("how", [*TRANSFORMS, *DERIVATIVES])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.covering(2)
def test_results_and_derivatives_are_those_of_the_function(program, how, where, told):
    transform, x = (TRANSFORMS | DERIVATIVES)[how], jnp.asarray(X["vmap" in how])
    expected = transform(program)(x)
    found = lox.progress(transform(program))(x) if where == "outside" else transform(lox.progress(program))(x)
    (close if "jit" in how else bitwise)(found, expected)
    assert told and not told[-1][3]


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize(
    ("program", "how"),
    [(collatz, how) for how in TRANSFORMS]
    + [(nested, how) for how in (*TRANSFORMS, "jvp")]
    + [(with_backward_rule, how) for how in (*TRANSFORMS, "grad", "jit of grad", "vmap of grad", "grad of jit")],
)
@pytest.mark.covering(1)
def test_so_are_those_of_programs_that_are_differentiated_in_one_way_only(program, how, where, told):
    test_results_and_derivatives_are_those_of_the_function(program, how, where, told)
