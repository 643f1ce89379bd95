"""What an audit knows of the meaning of axes, and which mistakes it finds with that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from lox._audit._capture import capture
from lox._audit._follow import follow

T, B, F = 6, 4, 3
SHAPES = {"time": T, "batch": B, "feature": F, None: 5, "one": 1}


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def program(fun, **axes):
    """The program of a function of arrays whose axes are so labelled."""
    arrays = {name: jnp.ones([SHAPES[label] for label in labels]) for name, labels in axes.items()}
    labels = {name: [None if label == "one" else label for label in labels] for name, labels in axes.items()}
    captured = capture(fun, (), arrays)
    if captured.error:
        raise captured.error
    return follow(captured, labels)


def labels(fun, **axes):
    """The labels of what a function returns."""
    return [
        tuple(None if label is None else str(label) for label in v.fact.labels) for v in program(fun, **axes).outputs
    ]


def found(fun, **axes):
    """The issues of a function of arrays whose axes are so labelled."""
    arrays = {name: jnp.ones([SHAPES[label] for label in labels]) for name, labels in axes.items()}
    labels = {name: [None if label == "one" else label for label in labels] for name, labels in axes.items()}
    return lox.audit(fun, axes=labels)(**arrays).issues


def codes(fun, **axes):
    return sorted({finding.code for finding in found(fun, **axes)})


def convolved(signal, kernel):
    return lax.conv_general_dilated(signal, kernel, (1,), "SAME")


TB = ("time", "batch")
TBF = ("time", "batch", "feature")


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda x: x * 2 + 1, TBF),
        (lambda x: jnp.where(x > 0, x, 0), TBF),
        (lambda x: x.transpose(2, 0, 1), ("feature", "time", "batch")),
        (lambda x: jnp.moveaxis(x, 0, 1), ("batch", "time", "feature")),
        (lambda x: x.mean(0), ("batch", "feature")),
        (lambda x: x.max(-1), TB),
        (lambda x: x.argmax(1), ("time", "feature")),
        (lambda x: x.std(axis=(0, 1), keepdims=True), (None, None, "feature")),
        (lambda x: x[0], ("batch", "feature")),
        (lambda x: x[:, 0], ("time", "feature")),
        (lambda x: x[1:], TBF),
        (lambda x: x[::-1], TBF),
        (lambda x: x[:, jnp.array([0, 2])], ("time", None, "feature")),
        (lambda x: x[:, None], ("time", None, "batch", "feature")),
        (lambda x: x.reshape(T * B, F), ("time*batch", "feature")),
        (lambda x: x.reshape(-1, F).reshape(T, B, F), TBF),
        (lambda x: x.reshape(T, B, F, 1), (*TBF, None)),
        (lambda x: x @ jnp.ones((F, 7)), (*TB, None)),
        (lambda x: jnp.einsum("tbf,tbg->bfg", x, x), ("batch", "feature", "feature")),
        (lambda x: jnp.concatenate([x, x], 1), TBF),
        (lambda x: jnp.stack([x, x]), (None, *TBF)),
        (lambda x: jnp.cumsum(x, 0), TBF),
        (lambda x: jnp.sort(x, 0), TBF),
        (lambda x: jnp.pad(x, 1), TBF),
        (lambda x: x.at[0].set(0), TBF),
        (lambda x: jnp.split(x, 2, 1)[0], TBF),
        (lambda x: lax.top_k(x, 2)[0], TBF),
        (lambda x: jax.nn.softmax(x), TBF),
        (lambda x: jax.nn.one_hot(x.argmax(-1), F), (*TB, None)),
        (lambda x: jnp.take_along_axis(x, x.argmax(-1, keepdims=True), -1), (*TB, None)),
        (lambda x: lax.scan(lambda c, x: (c + x, x.sum(-1)), jnp.zeros((B, F)), x)[1], TB),
        (lambda x: lax.scan(lambda c, x: (c + x, c), x[0], x)[0], ("batch", "feature")),
        (lambda x: jax.vmap(lambda x: x.sum(0))(x), ("time", "feature")),
        (lambda x: jax.vmap(lambda x: x.sum(0), 1, 1)(x), ("feature", "batch")),
        (lambda x: jax.jit(lambda x: x.T)(x), ("feature", "batch", "time")),
        (lambda x: jax.checkpoint(lambda x: x.T)(x), ("feature", "batch", "time")),
        (lambda x: lax.cond(x.sum() > 0, lambda x: x, lambda x: -x, x), TBF),
        (lambda x: lax.cond(x.sum() > 0, lambda x: x.mean(0), lambda x: x[0], x), ("batch", "feature")),
        (lambda x: lax.while_loop(lambda x: x.sum() > 0, lambda x: x - 1, x), TBF),
        (lambda x: jax.grad(lambda x: (x**2).sum())(x), TBF),
        (lambda x: jnp.linalg.cholesky(x @ x.transpose(0, 2, 1)), (None,) * 3),
        (
            lambda x: lax.conv_general_dilated(x.transpose(1, 2, 0), jnp.ones((7, F, 3)), (1,), "SAME"),
            ("batch", None, "time"),
        ),
    ],
)
def test_labels_go_where_their_axes_go(fun, expected):
    assert labels(fun, x=TBF) == [expected]


def gae(reward, value):
    def step(carry, x):
        reward, value = x
        carry = reward + 0.9 * carry - value
        return carry, carry

    return lax.scan(step, jnp.zeros(reward.shape[1:]), (reward, value), reverse=True)[1]


@pytest.mark.parametrize(
    ("fun", "axes", "expected"),
    [
        # In pairs: a mistake, and what looks like it and is none.
        (lambda a, b: a.T[:B, :B] + b[:B, :B], {"a": TB, "b": TB}, ["LOX101"]),
        (lambda a, b: a.T[:B, :B] + b[:B, :B].T, {"a": TB, "b": TB}, []),
        (lambda a, b: jnp.where(a[:B] > 0, a[:B], b.T[:, :B]), {"a": TB, "b": TB}, ["LOX101"]),
        (lambda a, b: jnp.where(a > 0, a, b[:T]), {"a": TB, "b": TB}, []),
        (lambda a, b: jnp.concatenate([a[:B], b.T[:, :B]]), {"a": TB, "b": TB}, ["LOX101"]),
        (lambda a, b: jnp.concatenate([a, b]), {"a": TB, "b": TB}, []),
        (lambda a, b: a @ b, {"a": ("feature", "batch"), "b": ("time", "feature")}, ["LOX400"]),
        (lambda a, b: a[:, :3] @ b[:3], {"a": TB, "b": ("feature", None)}, ["LOX102"]),
        (lambda a, b: a @ b, {"a": ("batch", "feature"), "b": ("feature", None)}, []),
        (lambda a: jnp.einsum("ij,ik->jk", a, a), {"a": TB}, []),
        (lambda a: a.reshape(B, T), {"a": TB}, ["LOX103"]),
        (lambda a: a.reshape(T * B).reshape(B, T), {"a": TB}, ["LOX103"]),
        (lambda a: a.reshape(B, T, F), {"a": TBF}, ["LOX103"]),
        (lambda a: a.T.reshape(B, T), {"a": TB}, []),
        (lambda a: a.reshape(T * B).reshape(T, B), {"a": TB}, []),
        (lambda a: a.reshape(T * B, F).reshape(T, B, F), {"a": TBF}, []),
        (lambda a: a.reshape(T // 2, 2, B), {"a": TB}, []),
        (lambda a, b: (a - b).mean(), {"a": ("batch",), "b": ("batch", "one")}, ["LOX104"]),
        (lambda a, b: (a * jnp.log(b)).mean(), {"a": ("batch", "one"), "b": ("batch",)}, ["LOX104"]),
        (lambda a, b: (a - b[:, 0]).mean(), {"a": ("batch",), "b": ("batch", "one")}, []),
        (lambda a: jnp.exp(-((a[:, None] - a[None]) ** 2)), {"a": ("batch",)}, []),
        (lambda a: jnp.outer(a, a), {"a": ("batch",)}, []),
        (lambda a, b: jnp.where(a > 0, a, b), {"a": ("batch",), "b": ("batch", "one")}, ["LOX104"]),
        (lambda a, b: jnp.where(a > 0, a, b[:, 0]), {"a": ("batch",), "b": ("batch", "one")}, []),
        (lambda a, b: a[:, None] + b, {"a": ("batch",), "b": ("batch", "one")}, []),
        (lambda a, b: a[None] + b, {"a": ("batch",), "b": ("batch", "one")}, []),  # Somebody wrote what crosses.
        (lambda a, b: a - b.mean(0), {"a": TB, "b": TB}, []),
        (lambda reward, value: gae(reward, value), {"reward": TB, "value": TB}, []),
        (lambda reward, value: gae(reward[:B], value.T[:, :B]), {"reward": TB, "value": TB}, ["LOX101", "LOX203"]),
    ],
)
def test_mistakes_are_found_and_what_looks_like_them_is_not(fun, axes, expected):
    assert codes(fun, **axes) == expected


def test_a_finding_says_what_is_where():
    def scale(a, b):
        return a[:B] * b.T[:, :B]

    (finding,) = found(scale, a=TB, b=TB)
    assert (finding.code, finding.severity, finding.file) == ("LOX101", "error", __file__)
    assert finding.line == scale.__code__.co_firstlineno + 1
    assert "is time" in finding.message and "is batch" in finding.message and "'mul'" in finding.message
    assert "transpose" in finding.suggestion


def test_labels_that_do_not_fit_are_refused_by_name():
    captured = capture(lambda obs, params: obs, (np.zeros((2, 3)), {"w": np.zeros(3)}), {})
    with pytest.raises(lox.LogValueError, match=r"axes= gives 'obs' 1 labels, \('time',\), but its shape is \(2, 3\)"):
        follow(captured, {"obs": ("time",)})
    with pytest.raises(lox.LogValueError, match=r"axes= names 'observations', but .* are 'obs', 'params/w'"):
        follow(captured, {"observations": ("time", "batch")})
    assert follow(captured, {"params/w": ("feature",)}).inputs[1].fact.labels == ("feature",)
