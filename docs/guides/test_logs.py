import jax
import jax.numpy as jnp
import numpy as np

import lox
from lox import testing


def train(weight, xs):
    def step(weight, now):
        i, x = now
        loss = (weight - x) ** 2
        lox.log({"loss": loss}, tags="metric", step=i)
        lox.log({"large": loss}, where=loss > 1, step=i)
        return weight - 0.5 * (weight - x), None

    return jax.lax.scan(step, weight, (jnp.arange(len(xs)), xs))[0]


def test_each_step_logs_its_loss():
    xs = np.float32([1, 3, 3])
    _, logs = jax.jit(lox.spool(train))(0.0, xs)
    assert list(logs) == ["large", "loss"]
    np.testing.assert_allclose(logs["loss"], [1, 6.25, 1.5625])
    assert logs.steps["step"]["loss"].tolist() == [0, 1, 2]


def test_only_large_losses_are_logged_as_large():
    _, logs = lox.spool(train)(0.0, np.float32([1, 3, 3]))
    np.testing.assert_allclose(logs.valid("large"), [6.25, 1.5625])


def test_one_call_logs_one_value_for_each_batch():
    [loss, large] = lox.sites(train)(jnp.float32(0), jax.ShapeDtypeStruct((1000,), "float32"))
    assert (loss.keys, loss.count, loss.bytes) == (("loss",), "1,000", 8000)
    assert large.count == "at most 1,000"


def test_logs_are_the_same_under_jit_and_vmap():
    first_few = lambda claims: claims[:4]  # noqa: E731
    report = testing.check(train, jnp.float32(0), jnp.ones(3), laws=[testing.jit, testing.vmap], choose=first_few)
    assert report.kept == ("jit", "vmap")
