"""The paths of points, which are the same on all versions of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox

X = np.float32([0.3, -0.5, 1.5])
W = np.float32(np.eye(3) / 2)


def layer(w, x, name="layer"):
    with jax.named_scope(name):
        return jnp.tanh(x @ w)


@jax.jit
def jitted(x):
    return layer(W, x) * 2


def newton(x):
    return jax.lax.while_loop(lambda c: jnp.abs(c**2 - x) > 1e-3, lambda c: 0.5 * (c + x / c), x)


@jax.custom_jvp
def cube(x):
    with jax.named_scope("cube"):
        return x**3


@cube.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    with jax.named_scope("slope"):
        slope = 3 * x**2
    return cube(x), slope * dx


@jax.custom_vjp
def square(x):
    return x * x


def _square_fwd(x):
    with jax.named_scope("forward"):
        return x * x, x


def _square_bwd(x, ct):
    with jax.named_scope("backward_rule"):
        return (2 * x * ct,)


square.defvjp(_square_fwd, _square_bwd)


def scan_of_layers(x):
    return jax.lax.scan(lambda x, w: (layer(w, x), x.sum()), x, jnp.stack([W, W]))


def train(x):
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: (layer(w, x) ** 2).sum())(w)
        with jax.named_scope("update"):
            return w - 0.1 * gradient, loss

    return jax.lax.scan(step, W, jnp.stack([x, x]))


def solve(x):
    return jax.lax.custom_root(
        lambda y: y**3 - x,
        x,
        lambda f, x0: jax.lax.fori_loop(0, 5, lambda i, y: y - f(y) / (3 * y**2 + 1), x0),
        lambda g, y: y / g(jnp.ones_like(y)),
    )


def rooted(x):
    def residual(y):
        with jax.named_scope("square"):
            squared = y * y
        return squared - x

    def solve(f, y):
        return jax.lax.fori_loop(0, 5, lambda i, y: y - f(y) / (2 * y), y)

    return jax.lax.custom_root(residual, 1.0, solve, lambda g, y: y / g(1.0))


def shards(fun):
    mesh, spec = jax.sharding.Mesh(jax.devices()[:1], "i"), jax.sharding.PartitionSpec("i")
    return jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)


def sequence(x):
    for _ in range(2):
        x = layer(W, x, "first")
    x = layer(W, x, "second")
    return layer(W, x, "first")


def nested(x):
    with jax.named_scope("model"):
        with jax.named_scope("encoder"):
            x = layer(W, x)
        with jax.named_scope("decoder"):
            return layer(W, layer(W, x))


def branches(x):
    return jax.lax.switch(
        jnp.int32(x[0] > 0), [lambda x: layer(W, x, "off"), lambda x: layer(W, layer(W, x, "on"), "on")], x
    )


def recursive(x, depth=2):
    with jax.named_scope("tree"):
        return recursive(x / 2, depth - 1) + recursive(x * 2, depth - 1) if depth else x + 1


def python_loop(x):
    for _ in range(3):
        x = jitted(x)
    return x


def statistics(x):
    """Functions of JAX that are jitted, or loops, in its own files."""
    return jnp.var(x) + jnp.where(x > 0, x, 0).sum() + jax.nn.relu(x).sum() + jnp.median(x) + jnp.linalg.norm(x)


def search(x):
    return jnp.searchsorted(jnp.sort(x), 0.5), jax.random.normal(jax.random.key(0), (3,)), jnp.interp(x, x, x)


def two_whiles(x):
    def outer(carry):
        number, x = carry
        return number + 1, x + newton(x.sum() ** 2 + 2)

    return jax.lax.while_loop(lambda carry: carry[0] < 2, outer, (0, x))


def converted(x):
    """Functions that are jaxprs when they are called, one of them more than once."""
    one, consts = jax.closure_convert(lambda y: layer(W, layer(W, y)), x)
    loop, more = jax.closure_convert(lambda y: jax.lax.fori_loop(0, 2, lambda i, z: layer(W, z) + x, y), x)
    x = layer(W, x)
    for _ in range(2):
        x = one(x, *consts)
    with jax.named_scope("out"):
        return loop(one(x, *consts), *more)


def evaluated(x):
    @jax.custom_jvp
    def double(x):
        return layer(W, jax.lax.cond(x[0] > 0, jitted, lambda x: x, x)) * 2

    double.defjvp(lambda primals, tangents: (double(*primals), 2 * tangents[0]))
    jaxpr = jax.make_jaxpr(double)(x)
    return jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x)[0]


gradient = lambda fun: jax.grad(lambda x: jnp.sum(jax.tree.leaves(fun(x))[0]))  # noqa: E731

PROGRAMS = {
    "a scope": lambda: (functools.partial(layer, W), X),
    "scopes one after the other": lambda: (sequence, X),
    "scopes in scopes": lambda: (nested, X),
    "a recursion": lambda: (recursive, X),
    "a jitted function": lambda: (jitted, X),
    "a loop of Python": lambda: (python_loop, X),
    "a while_loop": lambda: (newton, np.float32(2)),
    "loops in loops": lambda: (two_whiles, X),
    "a scan over layers": lambda: (scan_of_layers, X),
    "a training": lambda: (train, X),
    "a jitted training": lambda: (jax.jit(train), X),
    "a map": lambda: (lambda x: jax.lax.map(lambda x: layer(W, x * jnp.ones(3)), x), X),
    "a fori_loop": lambda: (lambda x: jax.lax.fori_loop(0, 3, lambda i, x: layer(W, x), x), X),
    "a dynamic fori_loop": lambda: (
        jax.jit(lambda x: jax.lax.fori_loop(0, jnp.int32(x[2]), lambda i, x: layer(W, x), x)),
        X,
    ),
    "branches": lambda: (branches, X),
    "a vmap": lambda: (jax.vmap(functools.partial(layer, W)), np.stack([X, X])),
    "a vmap of a while_loop": lambda: (jax.vmap(newton), np.float32([2, 3])),
    "a vmap of branches": lambda: (jax.vmap(branches), np.stack([X, X])),
    "a checkpoint": lambda: (jax.checkpoint(nested), X),
    "the gradient of layers": lambda: (gradient(nested), X),
    "the gradient of a jitted function": lambda: (jax.jit(gradient(jitted)), X),
    "the gradient of a scan": lambda: (jax.jit(gradient(scan_of_layers)), X),
    "the gradient of a checkpoint": lambda: (jax.jit(gradient(jax.checkpoint(nested))), X),
    "a custom_jvp": lambda: (cube, X),
    "the gradient of a custom_jvp": lambda: (jax.jit(gradient(cube)), X),
    "a custom_vjp": lambda: (square, X),
    "the gradient of a custom_vjp": lambda: (jax.jit(gradient(square)), X),
    "a jvp": lambda: (lambda x: jax.jvp(nested, (x,), (x,)), X),
    "a custom_root": lambda: (solve, X),
    "the gradient of a custom_root": lambda: (jax.jit(jax.grad(rooted)), X[0]),
    "functions that are jaxprs": lambda: (converted, X),
    "a jaxpr": lambda: (evaluated, X),
    "a vmap of a jaxpr": lambda: (jax.vmap(evaluated), np.stack([X, X])),
    "shards": lambda: (shards(functools.partial(layer, W)), X),
    "statistics": lambda: (statistics, X),
    "other functions of JAX": lambda: (search, X),
}

NESTED = [
    "model/encoder/layer",
    "model/encoder",
    "model/decoder/layer",
    "model/decoder/layer[1]",
    "model/decoder",
    "model",
]
PATHS = {
    "a scope": ["layer"],
    "scopes one after the other": ["first", "first[1]", "second", "first[2]"],
    "scopes in scopes": NESTED,
    "a recursion": [
        "tree/tree/tree",
        "tree/tree/tree[1]",
        "tree/tree",
        "tree/tree[1]/tree",
        "tree/tree[1]/tree[1]",
        "tree/tree[1]",
        "tree",
    ],
    "a jitted function": ["jitted/layer", "jitted"],
    "a loop of Python": ["jitted/layer", "jitted"],
    "a while_loop": ["while"],
    "loops in loops": ["while/while", "while"],
    "a scan over layers": ["scan/layer", "scan"],
    "a training": ["scan/layer", "scan/backward/layer", "scan/update", "scan"],
    "a jitted training": ["train/scan/layer", "train/scan/backward/layer", "train/scan/update", "train/scan", "train"],
    "a map": ["scan/layer", "scan"],
    "a fori_loop": ["scan/layer", "scan"],
    "a dynamic fori_loop": ["<lambda>/while/layer", "<lambda>/while", "<lambda>"],
    "branches": ["cond/off", "cond/on", "cond/on[1]", "cond"],
    "a vmap": ["layer"],
    "a vmap of a while_loop": ["while"],
    "a vmap of branches": ["cond/off", "cond/on", "cond/on[1]", "cond"],
    "a checkpoint": NESTED,
    "the gradient of layers": [
        *NESTED,
        "backward/model",
        "backward/model/decoder",
        "backward/model/decoder/layer[1]",
        "backward/model/decoder/layer",
        "backward/model/encoder",
        "backward/model/encoder/layer",
    ],
    "the gradient of a jitted function": [
        "<lambda>/jitted/layer",
        "<lambda>/jitted",
        "<lambda>/backward/jitted/layer",
        "<lambda>/backward/jitted",
        "<lambda>",
    ],
    "the gradient of a scan": [
        "<lambda>/scan/layer",
        "<lambda>/scan",
        "<lambda>/backward/scan/layer",
        "<lambda>/backward/scan",
        "<lambda>",
    ],
    "the gradient of a checkpoint": [
        "<lambda>/model/encoder/layer",
        "<lambda>/model/encoder",
        "<lambda>/model/decoder/layer",
        "<lambda>/model/decoder/layer[1]",
        "<lambda>/model/decoder",
        "<lambda>/model",
        "<lambda>/backward/model/decoder/layer[1]",
        "<lambda>/backward/model/decoder/layer",
        "<lambda>/backward/model/decoder",
        "<lambda>/backward/model/encoder/layer",
        "<lambda>/backward/model/encoder",
        "<lambda>/backward/model",
        "<lambda>",
    ],
    "a custom_jvp": ["cube"],
    "the gradient of a custom_jvp": ["<lambda>/rule/slope", "<lambda>/rule/cube", "<lambda>"],
    "a custom_vjp": [],
    "the gradient of a custom_vjp": ["<lambda>/rule/forward", "<lambda>/backward/rule/backward_rule", "<lambda>"],
    "a jvp": NESTED,
    "a custom_root": ["scan"],
    "the gradient of a custom_root": [
        "rooted/rule/scan/square",
        "rooted/rule/scan",
        "rooted/rule/square",
        "rooted/rule/square[1]",
        "rooted",
    ],
    "functions that are jaxprs": [
        "layer",
        "layer[1]",
        "layer[2]",
        "out/layer",
        "out/layer[1]",
        "out/scan/layer",
        "out/scan",
        "out",
    ],
    "a jaxpr": ["cond/jitted/layer", "cond/jitted", "cond", "layer"],
    "a vmap of a jaxpr": ["cond/jitted/layer", "cond/jitted", "cond", "layer"],
    "shards": ["layer"],
    "statistics": [],
    "other functions of JAX": [],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_paths_of_a_program_are_the_same_on_all_versions(name):
    fun, *args = PROGRAMS[name]()
    points = lox.points(fun)(*map(jnp.asarray, args))
    assert [point.path for point in points] == PATHS[name]
    assert not any(point.obstacle for point in points if not point.path.startswith("backward/model"))
    again = lox.points(fun)(*map(jnp.asarray, args))  # JAX and lox have traced it before.
    assert [point.path for point in again] == PATHS[name]


def test_a_search_for_nan_before_does_not_change_the_points_of_a_jaxpr():
    """It observes what programs bind as well."""
    lox.points(jnp.sin)(1.0)
    lox.find_nonfinite(jnp.log)(1.0)
    assert [point.path for point in lox.points(evaluated)(jnp.asarray(X))] == PATHS["a jaxpr"]


def tangent(fun):
    return lambda x: jax.jvp(fun, (x,), (x,))


@pytest.mark.covering(1)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap, gradient, tangent, jax.checkpoint])
@pytest.mark.parametrize("fun", [nested, branches, scan_of_layers, jitted, shards(jitted)])
def test_a_jaxpr_of_a_program_has_the_events_of_the_program(fun, transform):
    def of_jaxpr(x):
        jaxpr, shape = jax.make_jaxpr(fun, return_shape=True)(x)
        outs = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, x)
        return jax.tree.unflatten(jax.tree.structure(shape), outs)

    def program(x):
        return fun(x)

    x = jnp.stack([X, X]) if transform is jax.vmap else jnp.asarray(X)
    select = lambda point: not point.backward and point.kind != "call"  # noqa: E731
    (out, logs), (expected, wanted) = (
        lox.spool(lox.watch(transform(each), at=select), unify=True)(x) for each in (of_jaxpr, program)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), out, expected)
    logs, wanted = (
        {key.partition("/")[2] if transform is jax.jit else key: value for key, value in found.items()}
        for found in (logs, wanted)
    )
    assert logs.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(logs[key], value, rtol=1e-6)
