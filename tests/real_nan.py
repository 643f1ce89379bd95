"""Programs that fail as those of people do, each with where it does: what `lox.find_nonfinite` is to say.

`@fails(primitive, text, ...)` says the primitive, and a part of the line that it is in.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

CASES = {}


@dataclasses.dataclass(frozen=True)
class Case:
    """A program that fails, and what is to be said of it."""

    function: Callable
    arguments: tuple
    primitive: str
    text: str
    iterations: tuple
    batch: tuple
    backward: bool
    kind: str
    cure: str


def fails(primitive, text, *arguments, iterations=(), batch=(), backward=False, kind="nan", cure=""):
    """Registers a program."""

    def register(function):
        name = function.__name__
        CASES[name] = Case(function, arguments, primitive, text, iterations, batch, backward, kind, cure)
        return function

    return register


def array(*values):
    return jnp.array(values, jnp.float32)


@fails("sub", "jnp.exp(scores - scores.max", array(-1.0, -2.0, -3.0), cure="masked")
def softmax_of_a_row_that_is_all_masked(x):
    scores = jnp.where(x > 0, x, -jnp.inf)
    weights = jnp.exp(scores - scores.max())
    return weights / weights.sum()


@fails("mul", "jnp.sqrt(jnp.sum(x**2))", array(0.0, 0.0), backward=True, cure="0 * inf")
@jax.grad
def norm_at_zero_under_grad(x):
    return jnp.sqrt(jnp.sum(x**2))


@fails("log", "-(labels * jnp.log(p)", array(60.0, -120.0), array(0.0, 1.0), kind="inf", cure="clip")
def log_of_a_probability_that_is_rounded_to_zero(logits, labels):
    p = 1.0 / (1.0 + jnp.exp(-jnp.maximum(logits, -100.0)))
    p = p.astype(jnp.float16).astype(jnp.float32)
    return -(labels * jnp.log(p)).sum()


@fails("mul", "jnp.log(p)", array(30.0), array(1.0), cure="")
def zero_times_the_log_of_zero(logits, labels):
    p = jax.nn.sigmoid(-10.0 * logits)
    p = p.astype(jnp.float16).astype(jnp.float32)
    return ((1.0 - labels) * jnp.log(p)).sum()


@fails("dot_general", "hidden @ weights", jnp.full((2, 2), 1e3, jnp.float32), kind="inf", iterations=(11,))
def recurrent_network_that_explodes(weights):
    def step(hidden, _):
        return hidden @ weights, None

    return lax.scan(step, array(1.0, 1.0), None, length=20)[0]


@fails("convert_element_type", ".astype(jnp.float16)", array(300.0, 400.0), kind="inf", cure="dtype")
def overflow_of_mixed_precision(x):
    return (x * x).astype(jnp.float16).sum()


@fails("div", "(x - x.mean()) / x.std()", array(2.0, 2.0, 2.0), cure="0 / 0")
def division_by_a_standard_deviation_of_zero(x):
    return (x - x.mean()) / x.std()


@fails("mul", "jnp.where(x > 0, jnp.sqrt(x), 0.0)", array(1.0, 0.0), backward=True, cure="0 * inf")
@jax.grad
def root_that_where_hides_only_forward(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0).sum()


@fails("div", "return up / down", array(1.0, 0.0), array(2.0, 0.0), cure="0 / 0")
def zero_over_zero(up, down):
    return up / down


@fails("sqrt", "jnp.sqrt(jnp.mean(x**2) - jnp.mean(x) ** 2)", array(1234.567, 1234.567, 1234.567), cure="variance")
def variance_that_is_rounded_below_zero(x):
    return jnp.sqrt(jnp.mean(x**2) - jnp.mean(x) ** 2)


@fails("exp", "jnp.log(jnp.sum(jnp.exp(x)))", array(1.0, 200.0), kind="inf", cure="maximum")
def logsumexp_by_hand(x):
    return jnp.log(jnp.sum(jnp.exp(x)))


@fails("acos", "jnp.arccos(cosine)", array(1.0, 0.0), cure="domain")
def angle_of_vectors_whose_cosine_is_rounded_above_one(x):
    cosine = jnp.dot(x, x) * 1.0000002
    return jnp.arccos(cosine)


@fails("cholesky", "jnp.linalg.cholesky(covariance)", array(1.0, 2.0), cure="positive definite")
def cholesky_of_a_singular_matrix(x):
    covariance = jnp.outer(x, x) - 0.01 * jnp.eye(2)
    return jnp.linalg.cholesky(covariance)


@fails("gather", "table[ids]", jnp.ones((4, 2), jnp.float32), jnp.array([1, 9]), cure="beyond the end")
def lookup_beyond_the_end(table, ids):
    return table.at[ids].get(mode="fill").sum() + jnp.take(table, ids, axis=0, mode="fill").sum()  # table[ids]


@fails("log", "jnp.log(ratio)", array(1.0, 1.0), array(0.5, -0.5), batch=(1,), cure="domain")
def importance_ratio_of_one_environment(old, new):
    def one(old, new):
        ratio = new / old
        return jnp.log(ratio)

    return jax.vmap(one)(old, new).sum()


@fails("div", "g / jnp.sqrt(v)", array(1.0, 0.0), iterations=(0,), cure="0 / 0")
def adaptive_steps_without_epsilon(scale):
    def step(carry, _):
        x, v = carry
        g = jax.grad(lambda x: (scale * x**2).sum())(x)
        v = 0.9 * v + 0.1 * g**2
        return (x - 0.1 * g / jnp.sqrt(v), v), None

    return lax.scan(step, (array(1.0, 1.0), array(0.0, 0.0)), None, length=5)[0]


@fails("log", "x * jnp.log(x)", array(1.5, 2.0), iterations=(2,), batch=(1,), cure="domain")
@jax.vmap
def entropy_step_that_leaves_the_simplex(x):
    return lax.fori_loop(0, 5, lambda i, x: x - 0.9 * x * jnp.log(x) - 0.6, x)


@fails("sqrt", "jnp.sqrt(gap)", jnp.float32(2.5), iterations=(3,), cure="root")
def solver_whose_test_is_nan(x):
    def goes_on(x):
        gap = x
        return jnp.sqrt(gap) > 1e-3

    return lax.while_loop(goes_on, lambda x: x - 1.0, x)


@fails("pow", "x**p", array(-8.0), cure="")
def fractional_power_of_a_negative_number(x):
    p = jnp.float32(1.0 / 3.0)
    return x**p


@fails("sub", "large - large", array(1.0, 3e38), cure="inf - inf")
def difference_of_numbers_that_have_overflowed(x):
    large = x * 10.0
    return (large - large).sum()


@fails("mul", "jnp.where(x == 0, 0.0, x**0.5", array(0.0, 4.0), backward=True)
@jax.jit
@jax.grad
def power_at_zero_that_where_hides_only_forward(x):
    return jnp.where(x == 0, 0.0, x**0.5 * 1.0).sum()


@fails("log", "jnp.log(mean)", jnp.array([[1.0, 1.0], [-3.0, 1.0]], jnp.float32), batch=(1,), cure="domain")
@jax.jit
@jax.vmap
def log_of_a_mean_under_checkpoint(x):
    def inner(x):
        mean = x.mean()
        return jnp.log(mean)

    return jax.checkpoint(inner)(x)
