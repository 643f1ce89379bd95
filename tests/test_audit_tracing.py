"""What an audit says of functions that JAX refuses to trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._audit._capture import capture


def decides(x):
    if x.sum() > 0:
        return x
    return -x


def repeats(x):
    while x[0] > 0:
        x = x - 1
    return x


def counts(x):
    return jnp.zeros(x[0].astype(int))


def indexes(x):
    return [1, 2, 3][x[0].astype(int)]


def asks_numpy(x):
    return np.sin(x)


def selects(x):
    return x[x > 0].sum()


def converts(x):
    return float(x[0])


def divides(x):
    return {}["missing"]


@pytest.mark.parametrize(
    ("fun", "code", "line"),
    [
        (decides, "LOX401", 1),
        (repeats, "LOX401", 1),
        (counts, None, 1),
        (indexes, "LOX402", 1),
        (asks_numpy, "LOX403", 1),
        (selects, "LOX404", 1),
        (converts, "LOX405", 1),
        (divides, "LOX400", 1),
    ],
)
def test_what_a_function_raises_while_traced_is_found_at_its_line(fun, code, line):
    (finding,) = lox.audit(fun)(jnp.ones(3)).issues
    assert finding.code == code or (code is None and finding.code in ("LOX400", "LOX402", "LOX405"))
    assert (finding.file, finding.line) == (__file__, fun.__code__.co_firstlineno + line)
    assert finding.severity == "error" and finding.suggestion


def test_the_line_is_the_innermost_one_of_the_user():
    def calls(x):
        return jax.jit(jax.vmap(decides))(x[None])

    (finding,) = lox.audit(calls)(jnp.ones(3)).issues
    assert finding.line == decides.__code__.co_firstlineno + 1


def test_of_a_function_that_raises_nothing_nothing_is_found():
    report = lox.audit(jnp.sin)(jnp.ones(3))
    assert not report.issues and "LOX400" in [finding.code for finding in report.verified]


def test_with_static_arguments_the_same_function_is_fine():
    assert capture(lambda x, double: 2 * x if double else x, (jnp.ones(3), True), {}).error is None
