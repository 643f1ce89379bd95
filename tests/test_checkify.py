"""`checkify` reports the errors of the program and no others, whatever lox adds to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify

import lox

XS = jnp.arange(1, 7, dtype=jnp.float32).reshape(2, 3) * jnp.array([[1, -1, 1]], jnp.float32)
"""Two batch elements."""

REDUCE = ("mean", "sum", "std", "var", "min", "max", "first", "last", "count")
"""The reductions, which are also keys."""


def right(x):
    """Logs in a branch and a loop in a branch, also of infinite values, whose differences are NaN."""

    def positive(x):
        lox.log({"x": x, "z": lax.complex(x, x), **dict.fromkeys(REDUCE, x)}, n=jnp.int32(1))
        return jnp.log(x)

    def loop(x):
        def body(carry):
            i, x = carry
            lox.log({"in loop": x, "mean": x, "last": x}, n=i)
            return i + 1, x / 2

        return lax.while_loop(lambda carry: carry[0] < 5, body, (jnp.int32(0), x))[1]

    def step(total, x):
        infinite = jnp.where(x > 1, -jnp.inf, x)
        lox.log({"y": total, "infinite": infinite, "infinitely spread": infinite})
        total = total + lax.cond(x > 0, positive, lambda x: 0 * x, x)
        return lax.cond(x > 2, loop, lambda x: x, total), None

    return lax.scan(step, 0.0, x)[0]


def wrong(x):
    """Errors of the program's own, in what it logs."""

    def step(total, x):
        lax.cond(x > 2, lambda: lox.log({"x": jnp.log(-x), "mean": x})["x"], lambda: x)
        return total, lox.log({"y": total / jnp.floor(x / 9)})["y"]

    return lax.scan(step, 1.0, x)[1].sum()


KEYWORDS = {
    "interval": {"argnames": ("z", "in loop", "y"), "unify": True, "max_iters": 3, "interval": 2},
    "reduce": {
        "unify": True,
        "max_iters": 9,
        "reduce": {name: name for name in REDUCE} | {"infinite": "sum", "infinitely spread": "var"},
    },
}


def checked(fun):
    """The function under all checks; it returns the error, too."""
    return checkify.checkify(fun, errors=checkify.all_checks)


def unchecked(fun):
    return lambda *args: (None, fun(*args))


def plain(fun):
    """The function without a handler, and no logs in place of those that spool returns."""
    return lambda *args: (fun(*args), lox.logdict())


def inside(results):
    """The error, result and logs, of spool outside of checkify."""
    (error, out), logs = results
    return error, out, logs


def outside(results):
    error, (out, logs) = results
    return error, out, logs


def derivative(fun):
    """The derivative along ones."""
    return lambda x: jax.jvp(fun, (x,), (jnp.ones_like(x),))[1]


def derivative_and_logs(spooled):
    def run(x):
        _, out_dot, logs = jax.jvp(spooled, (x,), (jnp.ones_like(x),), has_aux=True)
        return out_dot, logs

    return run


ORDERS = {
    "checkify(spool)": lambda check, spool, f: outside(check(spool(f))(XS[0])),
    "checkify(jvp(spool))": lambda check, spool, f: outside(check(derivative_and_logs(spool(f)))(XS[0])),
    "checkify(vmap(spool))": lambda check, spool, f: outside(check(jax.vmap(spool(f)))(XS)),
    "checkify(spool(vmap))": lambda check, spool, f: outside(check(spool(jax.vmap(f)))(XS)),
    "vmap(checkify(spool))": lambda check, spool, f: outside(jax.vmap(check(spool(f)))(XS)),
    "spool(checkify(jit))": lambda check, spool, f: inside(spool(check(jax.jit(f)))(XS[0])),
    "jit(spool(checkify))": lambda check, spool, f: inside(jax.jit(spool(check(f)))(XS[0])),
    "spool(checkify(jvp))": lambda check, spool, f: inside(spool(check(derivative(f)))(XS[0])),
    "spool(checkify(vmap))": lambda check, spool, f: inside(spool(check(jax.vmap(f)))(XS)),
    "spool(vmap(checkify))": lambda check, spool, f: inside(spool(jax.vmap(check(f)))(XS)),
    "vmap(spool(checkify))": lambda check, spool, f: inside(jax.vmap(spool(check(f)))(XS)),
}


QUICK = ("checkify(spool)", "checkify(vmap(spool))", "spool(checkify(vmap))")


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "order", [order if order in QUICK else pytest.param(order, marks=pytest.mark.exhaustive) for order in ORDERS]
)
@pytest.mark.filterwarnings("ignore:.* of lox.spool selects nothing")
@pytest.mark.parametrize("keywords", KEYWORDS)
@pytest.mark.parametrize("fun", [right, wrong])
def test_checkify_says_of_a_spooled_function_what_it_says_of_the_function(fun, keywords, order):
    def spool(f):
        return lox.spool(f, **KEYWORDS[keywords])

    run = ORDERS[order]
    expected_error, expected, _ = run(checked, plain, fun)
    error, out, logs = run(checked, spool, fun)
    assert error.get() == expected_error.get()
    np.testing.assert_array_equal(out, expected)
    _, _, expected_logs = run(unchecked, spool, fun)
    jax.tree.map(np.testing.assert_array_equal, logs, expected_logs)
