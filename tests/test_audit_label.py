"""`lox.audit.label`: axes that a program makes itself get their meaning where they are made."""

import jax
import jax.numpy as jnp
import pytest

import lox


def labelled(fun, *args):
    """The axes of the results of a function, as an audit knows them."""
    return [value.axes for value in lox.audit(fun)(*args).program.outputs]


def made(key):
    return lox.audit.label(jax.random.normal(key, (6, 4)), ("time", "env"))


@pytest.fixture
def key():
    return jax.random.key(0)


def test_without_an_audit_the_program_is_the_same(key):
    x = jnp.ones((2, 3))
    assert lox.audit.label(x, ("time", None)) is x
    assert str(jax.make_jaxpr(made)(key)) == str(jax.make_jaxpr(lambda key: jax.random.normal(key, (6, 4)))(key))


def test_labels_are_followed_from_there(key):
    assert labelled(lambda key: made(key).T, key) == ["4 env, 6 time"]


def test_axes_of_vmap_are_beside_those_that_are_labelled(key):
    keys = jax.random.split(key, 3)
    assert labelled(jax.vmap(made), keys) == ["3, 6 time, 4 env"]
    in_the_middle = jax.vmap(lambda x: lox.audit.label(x, ("time", "env")), in_axes=1, out_axes=2)
    assert labelled(in_the_middle, jnp.ones((6, 3, 4))) == ["6 time, 4 env, 3"]


def test_labels_are_there_under_transformations(key):
    def loss(x):
        return (lox.audit.label(x, ("time", "env")) ** 2).sum()

    report = lox.audit(jax.jit(jax.grad(loss)))(jnp.ones((6, 4)))
    assert report.error is None
    assert labelled(jax.grad(loss), jnp.ones((6, 4))) == ["6 time, 4 env"]
    assert labelled(lambda x: jax.lax.scan(lambda c, x: (c, lox.audit.label(x, ("env",))), 0, x)[1], jnp.ones((6, 4)))


def test_a_pytree_has_the_labels_of_its_arrays(key):
    tree = {"a": jnp.ones((6, 4)), "b": jnp.ones((2, 3))}
    assert labelled(lambda tree: lox.audit.label(tree, ("time", None)), tree) == ["6 time, 4", "2 time, 3"]


def test_none_leaves_what_is_known(key):
    assert labelled(lambda key: lox.audit.label(made(key), (None, "lane")), key) == ["6 time, 4 lane"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (("time",), "1 labels"),
        ("ab", "a label for each axis"),
        (3, "a label for each axis"),
        ((1, 2), "strings and None"),
    ],
)
def test_other_labels_are_refused_with_and_without_an_audit(axes, message):
    with pytest.raises(lox.LogValueError, match=message):
        lox.audit.label(jnp.ones((2, 3)), axes)


def test_labels_survive_repetition_and_carries_that_begin_as_zeros():
    x = jax.ShapeDtypeStruct((6, 4), jnp.float32)
    axes = {"x": ("time", "env")}

    def of(fun):
        return [value.axes for value in lox.audit(fun, axes=axes)(x).program.outputs]

    def summed(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x), (0, jnp.zeros(x.shape)))[1]

    assert of(lambda x: jnp.repeat(x, 3, axis=0)) == ["18 time, 4 env"]
    assert of(lambda x: jnp.tile(x, (1, 3))) == ["6 time, 12 env"]
    assert of(summed) == ["6 time, 4 env"]
    assert of(lambda x: jax.lax.cond(x.sum() > 0, lambda x: x, jnp.zeros_like, x)) == ["6 time, 4 env"]
