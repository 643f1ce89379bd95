"""What an audit knows of the meaning of axes, and which mistakes it finds with that."""

import functools

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
        (lambda x: jax.vmap(lambda x, i: x[i])(x, jnp.zeros(T, int)), ("time", "feature")),
        (lambda x: jax.vmap(lambda i: lax.dynamic_slice_in_dim(x, i, 2))(jnp.arange(3)), (None, None, *TBF[1:])),
        (lambda x: jnp.ones((9, 2))[x.argmax(-1)], (*TB, None)),
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
        (lambda a, b: jnp.concatenate([a, b[:B]]), {"a": ("batch", "feature"), "b": ("time", "feature")}, []),
        (lambda a, b: jnp.hstack([a, b]), {"a": ("batch", "feature"), "b": ("batch", "time")}, []),
        (lambda a, b: jnp.stack([a, b[:B]]), {"a": ("batch", "feature"), "b": ("time", "feature")}, ["LOX101"]),
        (lambda a, b: jnp.concatenate([a, b], 1) + a[:, :1], {"a": ("batch", "feature"), "b": ("batch", "time")}, []),
        (lambda a: a.reshape(T, B, F).reshape(B, T, F), {"a": TBF}, ["LOX103"]),
        (lambda a: a.reshape(2, T, B // 2, F), {"a": TBF}, ["LOX103"]),
        (lambda a: jnp.pad(a, ((0, 0), (1, 0))).reshape(B + 1, T)[1:].reshape(T, B), {"a": TB}, []),
        (lambda a: jnp.concatenate([a[:, :1], a], 1).reshape(B + 1, T), {"a": TB}, []),
        (lambda a: (a[:, None] == a).sum(), {"a": ("batch",)}, []),
        (lambda a: jax.nn.sigmoid(a[:, None] - a).sum(), {"a": ("batch",)}, []),
        (lambda a, b: a.reshape(B, 1) - b, {"a": ("batch",), "b": ("batch",)}, []),
        (lambda a: a.reshape(T, 2, B // 2, F), {"a": TBF}, []),
        (lambda a: a.reshape(T // 3, 3 * B, F), {"a": TBF}, []),
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


def test_features_of_two_kinds_have_no_label_together():
    axes = {"a": ("batch", "feature"), "b": ("batch", "time")}
    assert labels(lambda a, b: jnp.concatenate([a, b], 1), **axes) == [("batch", None)]
    assert labels(lambda a: jnp.concatenate([a, jnp.ones((B, 2))], 1), a=("batch", "feature")) == [("batch", "feature")]


DECLARATIONS = (
    ("sum", lambda x: x.sum(0), True),
    ("sum", lambda x: jnp.nansum(x, 0), True),
    ("sum", lambda x: x.mean(0), False),
    ("sum", lambda x: x - x.std(0), False),
    ("mean", lambda x: jnp.mean(x, axis=0), True),
    ("mean", lambda x: x.mean(0), True),
    ("mean", lambda x: x.std(0), True),
    ("mean", lambda x: jax.jit(jnp.var, static_argnums=1)(x, 0), True),
    ("mean", lambda x: x.sum(0), False),
    ("mean", lambda x: jax.grad(lambda y: (x * y).sum())(jnp.ones(B)), False),
    ("max", lambda x: x.max(0), True),
    ("max", lambda x: jnp.argmax(x, 0), True),
    ("max", lambda x: jax.nn.softmax(x, 0), False),
    ("max", lambda x: jax.nn.logsumexp(x, 0), False),
    ("sum", lambda x: jax.nn.logsumexp(x, 0), False),
    ("min", lambda x: jnp.min(x, 0), True),
    ("prod", lambda x: jnp.prod(x, 0), True),
    ("cumsum", lambda x: jnp.cumsum(x, 0), True),
    ("sort", lambda x: jnp.sort(x, 0), True),
    ("sort", lambda x: jnp.argsort(x, 0), True),
    ("sort", lambda x: jnp.median(x, 0), False),
    ("scan", lambda x: lax.scan(lambda c, y: (c + y, c), x[0], x), True),
    ("scan", lambda x: lax.map(jnp.sin, x), False),
)


@pytest.mark.parametrize("place", range(len(DECLARATIONS)))
def test_a_declaration_is_about_calls_of_its_name(place):
    name, operation, found = DECLARATIONS[place]

    def fun(x):
        with lox.audit.expect(**{name: "other"}):
            return operation(x)

    assert codes(fun, x=TB) == (["LOX105"] if found else [])
    assert codes(jax.vmap(fun), x=("feature", *TB)) == (["LOX105"] if found else [])
    with lox.audit.expect(**{name: "time"}):
        assert codes(operation, x=TB) == []


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


def gaussian(x):
    low = x - jnp.max(x, 1, keepdims=True)
    return jnp.exp(low)


SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)
STATISTICS = {"LOX107", "LOX108"}


def statistics(fun, *args):
    report = lox.audit(fun)(*args or (SQUARE,))
    said = [*report.issues, *report.warnings], report.verified
    return [sorted({finding.code for finding in findings} & STATISTICS) for findings in said]


@pytest.mark.parametrize(
    ("fun", "wrong", "right"),
    [
        (lambda x: x / x.sum(1), ["LOX107"], []),
        (lambda x: x / x.sum(0), [], ["LOX107"]),
        (lambda x: x - x.max(1), ["LOX107"], []),
        (lambda x: x / (jnp.abs(x).sum(1) + 1e-6), ["LOX107"], []),
        (lambda x: x / jnp.linalg.norm(x, axis=1), ["LOX107"], []),
        (lambda x: x / jnp.linalg.norm(x, axis=1)[:, None], [], ["LOX107"]),
        (lambda x: x / x.sum(1)[None], [], []),  # Somebody wrote which axis it meets.
        (lambda x: x - jax.nn.logsumexp(x, 1), [], []),
        (lambda x: gaussian(x) / gaussian(x).sum(1), ["LOX107"], []),
        (lambda x: x / x.T.sum(1), [], []),
        (lambda x: x.sum(0) / x.sum(1), [], []),
        (lambda x: x / (x.sum(1) + x.sum(0)), [], []),
        (lambda x: x / (x * jnp.cumsum(x, 0)).sum(1), [], []),
        (lambda x: x - (x.sum(1)[:, None] + x.sum(1)[None]), [], []),
        (lambda x: x / lax.stop_gradient(x.sum(1)), ["LOX107"], []),
        (lambda x: x / x.astype(jnp.bfloat16).sum(1).astype(jnp.float32), ["LOX107"], []),
        (lambda x: x / jax.jit(lambda x: x.sum(1))(x), ["LOX107"], []),
        (lambda x: x / x.mean(), [], []),
        (lambda x: jax.vmap(lambda row: row / row.sum())(x), [], ["LOX107"]),
        (lambda x: lax.map(lambda m: m - m.mean(1), jnp.stack([x, x])), ["LOX107"], []),
        (lambda x: x.reshape(8, 1, 8) / x.sum(1).reshape(1, 8, 1), [], []),
        (lambda x: (x - x.mean(0)) / x.std(0), [], ["LOX107", "LOX108"]),
        (lambda x: (x - x.mean(0)) / x.std(1, keepdims=True), ["LOX108"], ["LOX107"]),
        (lambda x: (x - x.mean(0)) / x.std(1), ["LOX107"], []),  # One finding.
        (lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5), ["LOX108"], ["LOX107"]),
        (lambda x: (x - x.mean(0)) / (x.max(1, keepdims=True) - x.min(1, keepdims=True)), ["LOX108"], ["LOX107"]),
        (lambda x: (x - x.mean(0)) / jnp.abs(x).max(1, keepdims=True), [], ["LOX107"]),  # A scale, and no deviation.
        (lambda x: (x - x.mean(0)) / x.std(), [], ["LOX107"]),
        (lambda x: (x - x.mean()) / x.std(0), [], ["LOX107"]),
        (lambda x: jax.nn.standardize(x), [], ["LOX107"]),
        (lambda x: jax.nn.softmax(x), [], ["LOX107"]),
    ],
)
def test_reductions_meet_the_axes_that_they_are_of(fun, wrong, right):
    assert statistics(fun) == [wrong, right]


def test_statistics_say_which_axes_they_are_of():
    def normalized(obs):
        return (obs - obs.mean(0)) / obs.std(1, keepdims=True)

    (finding,) = lox.audit(normalized, axes={"obs": TB})(jnp.ones((T, B))).warnings
    assert finding.line == normalized.__code__.co_firstlineno + 1
    assert finding.message == (
        "obs - obs.mean(0) of shape (6 time, 4 batch) is centered over axis 0 (time), and divided by its deviation "
        "over axis 1 (batch)."
    )
    (finding,) = lox.audit(lambda weights: weights / weights.sum((0, 2)))(jnp.ones((3, 3, 3))).warnings
    assert finding.message == (
        "weights of shape (3, 3, 3) meets its own reduction over axes 0 and 2, of which axis 1 is left: that meets "
        "axis 2."
    )


def centered_twice(x):
    x = x - x.mean(0)
    x = x - x.mean(1, keepdims=True)
    return x / x.std(1, keepdims=True)


def centered_by_a_part(x):
    baseline = x[:, :4].mean(1, keepdims=True)
    return (x - baseline) / (x - baseline).std(0)


def neutral(x):
    x = x - x.mean(1, keepdims=True)
    return x / x.std(0)


def symmetric(x):
    x = x + x.T
    return x / x.sum(1)


def gram(x):
    x = x @ x.T
    return x / x.sum(1)


def of_critics(x):
    x = x - jnp.stack([x, 2 * x, 3 * x]).mean(0)
    return x / x.std(0)


def mixture(x):
    return jax.nn.softmax(x[0] - ((x[:, None] - x[:5]) ** 2).sum(-1)[:, :1], axis=0)


def by_last_axis_of_more(x):
    x = x - (x[:, :, None] * x[:, None]).sum(-1)
    return x / (x.std(0) + 1e-8)


@pytest.mark.parametrize(
    "fun",
    [
        centered_twice,
        centered_by_a_part,
        neutral,
        symmetric,
        gram,
        of_critics,
        mixture,
        by_last_axis_of_more,
        lambda x: jax.nn.softmax((x - x.mean(0)) / 0.04, axis=-1),
        lambda x: jax.nn.softmax(x - x.max(0), axis=1),
        lambda x: jax.vmap(lambda x: jax.nn.softmax(x - x.mean(0)))(jnp.stack([x, x])),
        lambda x: (x - x.mean(0)) / jnp.linalg.norm(x - x.mean(0), axis=1, keepdims=True),
    ],
)
def test_what_is_normalized_one_after_the_other_is_right(fun):
    assert statistics(fun)[0] == []


def test_a_reshape_keeps_the_axes_in_their_order():
    cube = jax.ShapeDtypeStruct((8, 8, 8), jnp.float32)
    assert statistics(lambda x: x / x.sum(0).reshape(1, 8, 8), cube) == [[], ["LOX107"]]
    assert statistics(lambda x: x / x.sum(2).reshape(8, 8, 1), cube) == [[], ["LOX107"]]
    assert statistics(lambda x: x / x.sum(2).reshape(1, 8, 8), cube) == [[], []]  # Somebody wrote it.


def test_long_chains_of_statistics_are_followed_for_so_long_and_no_longer():
    def fun(x):
        scale = x.sum(1)
        for _ in range(3000):
            scale = scale + 1
        for _ in range(3000):
            x = x * 2
        return x / scale

    assert statistics(fun) == [[], []]


INDEXED = (
    (lambda x: x[0], "time"),
    (lambda x: x[:, -1], "batch"),
    (lambda x: x[:, :, 1], "feature"),
    (lambda x: x[x.astype(int)[0, 0, 0]], "time"),
    (lambda x: lax.dynamic_index_in_dim(x, 2, 1), "batch"),
    (lambda x: jnp.take(x, 1, axis=2), "feature"),
)


@pytest.mark.parametrize("wrap", [lambda fun: fun, jax.jit])
@pytest.mark.parametrize(("index", "label"), INDEXED, ids=range(len(INDEXED)))
def test_an_index_into_another_axis_than_declared_is_found(index, label, wrap):
    def expecting(label):
        def fun(x):
            with lox.audit.expect(index=label):
                return wrap(index)(x)

        return fun

    assert codes(expecting("other"), x=TBF) == ["LOX105"]
    if index is not INDEXED[3][0]:  # That has an index of each axis.
        assert codes(expecting(label), x=TBF) == []


@pytest.mark.parametrize(
    "slices", [lambda x: x[1:], lambda x: x[:, ::2], lambda x: x[jnp.array([0, 2])], lambda x: x[..., None]]
)
def test_slices_are_no_indices(slices):
    def fun(x):
        with lox.audit.expect(index="other"):
            return slices(x)

    assert codes(fun, x=TBF) == []


def test_an_axis_of_length_one_that_is_repeated_is_not_the_axis_that_it_was():
    assert labels(lambda x: jnp.broadcast_to(x, (T, F)), x=("one", "feature")) == [(None, "feature")]
    report = lox.audit(lambda x, y: jnp.broadcast_to(x, (T, F)) + y, axes={"x": ("batch", None), "y": ("time", None)})
    assert not report(jnp.ones((1, F)), jnp.ones((T, F))).issues


def test_what_a_reshape_makes_of_an_axis_and_one_without_a_meaning_has_none():
    assert labels(lambda x: x.reshape(-1), x=("batch", None)) == [(None,)]
    assert labels(lambda x: x.reshape(-1), x=TB) == [("time*batch",)]


def test_windows_of_an_axis_that_a_lookup_takes_are_not_the_axis():
    def windows(x, starts):
        return jax.vmap(lambda start: lax.dynamic_slice(x, (start, 0), (2, B)))(starts.astype(int))

    assert labels(windows, x=TB, starts=("feature",)) == [("feature", None, "batch")]


def test_what_is_centered_over_more_axes_than_its_deviation_is_of_is_fine():
    def normalized(x, over, of_deviation):
        return (x - x.mean(over, keepdims=True)) / (x.std(of_deviation, keepdims=True) + 1e-8)

    for over, of_deviation, expected in (((0, 1), 0, []), (0, (0, 1), []), ((0, 1), 2, ["LOX108"])):
        report = lox.audit(lambda x, axes=(over, of_deviation): normalized(x, *axes))(jnp.ones((T, B, F)))
        assert [finding.code for finding in report.at_least("info")] == expected


def test_a_reshape_of_an_axis_without_a_meaning_is_nobodys_mistake():
    report = lox.audit(lambda a: a.reshape(4, 6), axes={"a": ("time", None)})(np.ones((6, 4), np.float32))
    assert report.found == ()


def test_norms_over_another_axis_are_found_where_calls_share_what_is_compiled():
    def similar(a, b, axis):
        unit = lambda x: x / jnp.maximum(jnp.linalg.norm(x, axis=axis, keepdims=True), 1e-6)  # noqa: E731
        return jax.nn.softmax(unit(a) @ unit(b).T)

    x = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    reports = [lox.audit(functools.partial(similar, axis=axis))(x, x) for axis in (0, 1, (0, 1))]
    assert [[finding.code for finding in report.warnings] for report in reports] == [["LOX111"], [], []]


def test_what_is_declared_around_the_call_of_an_audit_is_of_the_whole_function():
    def f(x):
        return jax.jit(lambda x: x.mean(axis=0))(x) + x.sum()

    x = jnp.ones((5, 7))
    for function in (f, jax.jit(f)):
        with lox.audit.expect(mean="batch"):
            report = lox.audit(function, axes={"x": ("time", "batch")})(x)
        assert [finding.code for finding in report.issues if finding.code == "LOX105"] == ["LOX105"]
        after = lox.audit(function, axes={"x": ("time", "batch")})(x)
        assert "LOX105" not in [finding.code for finding in after.issues]


def test_flattened_steps_and_neighbours_among_environments_are_found_without_labels():
    def rollout(key, weights):
        def step(state, key):
            keys = jax.random.split(key, 8)
            state = 0.9 * state + 0.1 * jax.vmap(lambda key: jax.random.normal(key, (3,)))(keys)
            return state, (state, state @ weights, -jnp.sum(state**2, -1))

        return jax.lax.scan(step, jnp.zeros((8, 3)), jax.random.split(key, 16))[1]

    def errors(key, weights, along_time):
        _, values, rewards = rollout(key, weights)
        if along_time:
            return rewards[:-1] + 0.99 * values[1:] - values[:-1]
        return rewards[:, :-1] + 0.99 * values[:, 1:] - values[:, :-1]

    def loss(key, weights, turns):
        states, _, rewards = rollout(key, weights)
        returns = rewards.T if turns else rewards
        return ((states.reshape(-1, 3) @ weights - returns.reshape(-1)) ** 2).mean()

    def codes(fun, wrong):
        report = lox.audit(lambda key, weights: fun(key, weights, wrong))(
            jax.random.key(0), jax.ShapeDtypeStruct((3,), jnp.float32)
        )
        return [each.code for each in report.at_least("warning")]

    assert [codes(errors, along) for along in (True, False)] == [[], ["LOX106"]]
    assert [codes(loss, turns) for turns in (False, True)] == [[], ["LOX101"]]


def test_means_that_scale_elements_single_elements_and_attention_over_a_batch_are_found():
    def weighted(w, x, y, weights, of_each):
        loss = (x @ w - y) ** 2
        return (weights * (loss if of_each else loss.mean())).mean()

    def bootstrapped(w, last, rewards, of_each):
        return rewards + 0.99 * ((last if of_each else last[0]) @ w)

    def attended(w, x, turns):
        x = x.swapaxes(0, 1) if turns else x
        return jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", x @ w, x) / 3.0, -1) @ x

    def similar(q, k, axis):
        q = q / jnp.linalg.norm(q, axis=-1, keepdims=True)
        k = k / jnp.linalg.norm(k, axis=axis, keepdims=True)
        return jax.nn.softmax(10 * q @ k.T, -1)

    def of(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    def codes(fun, *args, **axes):
        found = []
        for is_right in (True, False):
            names = fun.__code__.co_varnames[: len(args)]
            space = {}
            exec(f"def call({', '.join(names)}): return fun({', '.join(names)}, {is_right})", {"fun": fun}, space)
            report = lox.audit(space["call"], axes=axes or None)(*args)
            found.append([each.code for each in report.at_least("warning")])
        return found

    def normed(weights, obs, of_each):
        size = jnp.linalg.norm(obs, axis=-1, keepdims=True) if of_each else jnp.linalg.norm(obs)
        return jnp.tanh(obs / (1e-6 + size) @ weights)

    assert codes(normed, of(4, 2), of(16, 4), obs=("env", None)) == [[], ["LOX112"]]
    rows = {"x": ("batch", None), "y": ("batch",), "weights": ("batch",)}
    assert codes(weighted, of(4), of(32, 4), of(32), of(32), **rows) == [[], ["LOX112"]]
    last = {"last": ("env", None), "rewards": ("time", "env")}
    assert codes(bootstrapped, of(3), of(8, 3), of(20, 8), **last) == [[], ["LOX112"]]
    assert codes(attended, of(8, 8), of(12, 4, 8), x=("time", "batch", None)) == [[], ["LOX112"]]

    def first(x, of_each):  # The loop begins with the first element, and reads the others.
        summed = lambda x: jax.lax.scan(lambda sums, row: (sums + row, None), x[0], x)[0]  # noqa: E731
        return summed(x) if of_each else 2.0 * x[0]

    assert codes(first, of(16, 4), x=("batch", None)) == [[], ["LOX112"]]
    found = [lox.audit(lambda q, k, axis=axis: similar(q, k, axis))(of(16, 8), of(32, 8)) for axis in (-1, 0)]
    assert [[each.code for each in report.at_least("warning")] for report in found] == [[], ["LOX111"]]
