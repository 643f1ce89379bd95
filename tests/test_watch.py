"""`lox.watch`: events of programs that do not log."""

import contextlib
import dataclasses
import inspect
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.extend
import jax.interpreters.mlir
import jax.numpy as jnp
import numpy as np
import pytest

import lox


def values_of(point, values):
    """Logs all values of a point as they are."""
    return {str(number): value for number, value in enumerate(values)}


def same(found, expected):
    """Tell whether two trees are bitwise equal."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    return len(found) == len(expected) and all(map(np.array_equal, found, expected, (True,) * len(found)))


# -- a program that does not log, and the same with log calls -------------------------------------------------------


def dense(weights, x):
    with jax.named_scope("dense"):
        return jnp.tanh(x @ weights)


def net(params, x):
    with jax.named_scope("net"):
        for weights in params:
            x = dense(weights, x)
        return x.sum()


def net_with_logs(params, x):
    for number, weights in enumerate(params):
        x = jnp.tanh(x @ weights)
        lox.log({f"net/dense{f'[{number}]' if number else ''}/0": x})
    return x.sum()


def steps(x):
    """A loop in a loop, of which the inner one ends where its values say."""

    def step(x, _):
        x = jax.lax.while_loop(lambda c: jnp.abs(c**2 - 2) > 1e-3, lambda c: 0.5 * (c + 2 / c), x + 1)
        return x, x * 2

    return jax.lax.scan(step, x, None, length=3)


def steps_with_logs(x):
    def step(x, _):
        def iterate(c):
            c = 0.5 * (c + 2 / c)
            lox.log({"scan/while/0": c})
            return c

        x = jax.lax.while_loop(lambda c: jnp.abs(c**2 - 2) > 1e-3, iterate, x + 1)
        lox.log({"scan/0": x})
        return x, x * 2

    return jax.lax.scan(step, x, None, length=3)


def train(params, xs):
    """Training: derivatives of a checkpointed network in a scan."""

    @jax.jit
    def step(params, x):
        value, grads = jax.value_and_grad(jax.checkpoint(net))(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return jax.lax.scan(step, params, xs)


PARAMS = [jnp.linspace(-1, 1, 9).reshape(3, 3), jnp.linspace(0.2, -0.5, 9).reshape(3, 3)]
X = jnp.linspace(-2, 2, 6).reshape(2, 3)
XS = jnp.stack([X, 2 * X, X - 1, -X])


def spooled(fun, *args, **options):
    return lox.spool(fun, **options)(*args)


# -- it is as if the log calls were written in the program -----------------------------------------------------------

TRANSFORMED = {
    "as it is": lambda f: f,
    "jit": jax.jit,
    "grad": jax.grad,
    "value_and_grad of jit": lambda f: jax.value_and_grad(jax.jit(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "jvp": lambda f: lambda *args: jax.jvp(f, args, args),
    "linearize": lambda f: lambda *args: jax.linearize(f, *args)[1](*args),
    "jacrev": jax.jacrev,
    "jacfwd": jax.jacfwd,
}


@pytest.mark.parametrize("name", TRANSFORMED)
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_scopes_log_as_if_the_calls_were_written_in_the_program(name, outside):
    transform = TRANSFORMED[name]
    dense = lambda point: point.name == "dense" and not point.obstacle  # noqa: E731
    watch = lambda f: lox.watch(f, at=dense, what=values_of)  # noqa: E731
    fun = watch(transform(net)) if outside else transform(watch(net))
    out, logs = spooled(fun, PARAMS, X)
    expected, by_hand = spooled(transform(net_with_logs), PARAMS, X)
    assert same(out, expected)
    forward = {key: value for key, value in logs.items() if "backward" not in key}
    if outside and "jit" in name:  # The jitted function is a part of the paths.
        forward = {key.removeprefix("net/"): value for key, value in forward.items()}
    assert forward.keys() == by_hand.keys()
    for key, value in by_hand.items():
        assert np.array_equal(forward[key], value), key


@pytest.mark.parametrize("name", ["as it is", "jit"])
def test_loops_log_their_carry_as_if_the_calls_were_written_in_them(name):
    watched = TRANSFORMED[name](lox.watch(steps, at=["scan", "scan/while"], what=values_of))
    out, logs = spooled(watched, 1.0, max_iters=9)
    expected, by_hand = spooled(TRANSFORMED[name](steps_with_logs), 1.0, max_iters=9)
    assert same(out, expected) and logs == by_hand


@pytest.mark.parametrize("order", ["vmap(watch)", "watch(vmap)", "watch(jit(vmap))", "jit(watch(vmap))"])
def test_each_batch_element_has_its_own_events(order):
    watch = lambda f: lox.watch(f, at=["**/scan", "**/while"], what=values_of)  # noqa: E731
    xs = jnp.array([1.0, 30.0, 900.0])
    fun = {
        "vmap(watch)": jax.vmap(watch(steps)),
        "watch(vmap)": watch(jax.vmap(steps)),
        "watch(jit(vmap))": watch(jax.jit(jax.vmap(steps))),
        "jit(watch(vmap))": jax.jit(watch(jax.vmap(steps))),
    }[order]
    out, logs = spooled(fun, xs, max_iters=16)
    expected, by_hand = spooled(jax.vmap(steps_with_logs), xs, max_iters=16)
    part = "steps/" if order == "watch(jit(vmap))" else ""
    assert logs.keys() == {part + key for key in by_hand}
    for key in by_hand:
        assert np.allclose(logs.valid(part + key), by_hand.valid(key)), key
        masks = [each.mask.get(name) for each, name in ((logs, part + key), (by_hand, key))]
        assert np.array_equal(*masks)
    assert all(map(np.allclose, jax.tree.leaves(out), jax.tree.leaves(expected)))


def test_training_is_watched_from_the_outside():
    watched = lox.watch(train, at=lambda point: point.name == "dense", what=values_of)
    (params, losses), logs = spooled(watched, PARAMS, XS)
    expected, by_hand = spooled(lambda params, xs: _train_with_logs(params, xs), PARAMS, XS)
    assert same((params, losses), expected)
    for key, value in by_hand.items():
        assert np.array_equal(logs[f"scan/step/{key}"], value), key
    backward = [key for key in logs if "backward" in key]
    assert {key.rpartition("/")[0] for key in backward} == {
        "scan/step/backward/net/dense",
        "scan/step/backward/net/dense[1]",
    }


def _train_with_logs(params, xs):
    @jax.jit
    def step(params, x):
        value, grads = jax.value_and_grad(jax.checkpoint(net_with_logs))(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return jax.lax.scan(step, params, xs)


def test_the_backward_pass_of_a_scope_gives_the_cotangents_that_leave_it():
    _, logs = spooled(lox.watch(jax.jit(jax.grad(net)), at="**/backward/**/dense", what=values_of), PARAMS, X)
    grads = jax.grad(net)(PARAMS, X)
    hidden = jnp.tanh(X @ PARAMS[0])
    into_second = jax.grad(lambda hidden: jnp.tanh(hidden @ PARAMS[1]).sum())(hidden)
    second = [logs[f"net/backward/net/dense[1]/{number}"][0] for number in range(2)]
    assert np.allclose(second[0], grads[1], rtol=1e-5) and np.allclose(second[1], into_second, rtol=1e-5)
    assert np.allclose(logs["net/backward/net/dense/0"][0], grads[0], rtol=1e-5)


LAYERS = {
    "as it is": lambda f: f,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda f: lambda x, w: jax.lax.scan(lambda x, _: (f(x, w), None), x, None, length=2)[0],
    "cond": lambda f: lambda x, w: jax.lax.cond(x.sum() > -9, lambda x: f(x, w), lambda x: x, x),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("loops", [False, True], ids=["once", "scan"])
def test_a_backward_pass_has_the_paths_of_the_forward_one(name, loops):
    layer = LAYERS[name](lambda x, weights: dense(weights, x))

    def loss(weights, x):
        with jax.named_scope("net"):
            if loops:
                x = jax.lax.scan(lambda x, weights: (layer(x, weights), None), x, weights)[0]
            else:
                x = layer(x, weights[0])
            return x.sum()

    def step(weights, x):
        with jax.named_scope("outer"):
            return jax.grad(loss)(weights, x)

    around = {"scan": "scan/", "cond": "cond/", "jit": "<lambda>/"}.get(name, "")
    inside = f"net/{'scan/' * loops}{around}"
    for fun in (step, jax.jit(step)):
        points = lox.points(fun)(jnp.stack(PARAMS), X)
        assert len({point.path for point in points}) == len(points)
        paths = {point.path.removeprefix("step/"): point.backward for point in points if not point.obstacle}
        assert not paths[f"outer/{inside}dense"]
        if fun is not step or loops or name != "as it is":  # Else JAX transposes operation by operation.
            assert paths.pop(f"outer/backward/{inside}dense")
        for path in [path for path in paths if paths[path]]:
            assert path in {"outer/backward/net", *(f"outer/backward/{path}" for path in (inside[:-1], "net/scan"))}


@pytest.mark.parametrize("layer", ["loop", "scopes"])
def test_what_a_checkpoint_computes_anew_is_no_point(layer):
    """Events happen in the forward pass, and the backward pass has those of its own, each in its own place."""

    def loop(x):
        return jax.lax.scan(lambda x, _: (2 * jnp.sin(x), None), x, length=3)[0]

    def scopes(x):
        return scoped("s", jnp.cos)(scoped("s", jnp.sin)(x))

    fun = jax.jit({"loop": loop, "scopes": scopes}[layer])
    inside = {"loop": ["", "/scan"], "scopes": ["", "/s", "/s[1]"]}[layer]
    parts = ["", *(f"/{layer}{number}{part}" for number in ("", "[1]") for part in inside)]
    expected = [f"{start}<lambda>{part}" for start in ("", "backward/") for part in parts]
    grad = jax.grad(jax.jit(lambda x: jax.checkpoint(lambda x: fun(fun(x)))(x).sum()))
    assert sorted(point.path for point in lox.points(grad)(X)) == sorted(expected)
    _, logs = spooled(lox.watch(grad, at="**", what=values_of), X)
    assert {key.rpartition("/")[0] for key in logs} == set(expected)


AROUND_A_RULE = {
    "scan": lambda f: lambda x: jax.lax.scan(lambda x, _: (f(x), None), x, length=2)[0],
    "cond": lambda f: lambda x: jax.lax.cond(x > 0, f, lambda x: x, x),
    "fun": jax.jit,
    "layer": lambda f: scoped("layer", f),
    "": jax.checkpoint,
}


def watched(fun):
    """The function with all its points watched but primitives, and those that cannot be."""
    return lox.watch(fun, at=lambda point: not point.obstacle and point.kind != "primitive", what=values_of)


DERIVED = {"grad": lambda f: jax.grad(f), "grad of jit": lambda f: jax.grad(jax.jit(f))}


@pytest.mark.parametrize("around", AROUND_A_RULE)
@pytest.mark.parametrize("derived", DERIVED.values(), ids=list(DERIVED))
def test_a_backward_rule_has_one_path_where_the_watch_is_inside_or_outside_of_the_derivative(around, derived):
    @jax.custom_vjp
    def fun(x):
        return jnp.sin(x)

    def bwd(x, bar):
        return (scoped("slope", jnp.multiply)(jnp.cos(x), bar),)

    fun.defvjp(lambda x: (fun(x), x), bwd)
    program = AROUND_A_RULE[around](fun if around == "fun" else lambda x: scoped("after", jnp.negative)(fun(x)))
    grad, logs = spooled(derived(watched(program)), jnp.float32(0.5))
    assert same(grad, derived(program)(jnp.float32(0.5)))
    (key,) = (key for key in logs if "slope" in key)
    assert key == "/".join(filter(None, ["backward", around, "rule/slope/0"]))
    assert len(logs[key]) == (2 if around == "scan" else 1)
    _, outside = spooled(watched(jax.grad(program)), jnp.float32(0.5))
    assert same(outside[key], logs[key])


@pytest.mark.parametrize("around", AROUND_A_RULE)
def test_a_point_of_a_tangent_that_jax_transposes_has_no_events_wherever_the_watch_is(around):
    fun = jax.custom_jvp(lambda x: scoped("primal", jnp.sin)(x))
    fun.defjvp(
        lambda primals, tangents: (fun(*primals), scoped("slope", jnp.multiply)(jnp.cos(primals[0]), tangents[0]))
    )
    program = AROUND_A_RULE[around](fun)
    grad, logs = spooled(jax.grad(watched(program)), jnp.float32(0.5))
    assert same(grad, jax.grad(program)(jnp.float32(0.5)))
    assert logs and "slope" not in str(list(logs))
    for transform in (lambda f: f, jax.jit):
        _, outside = spooled(watched(transform(jax.grad(program))), jnp.float32(0.5))
        assert not outside.mask or all(np.all(mask) for mask in outside.mask.values())
        assert all("backward/" in key and key.count("slope") == 1 for key in outside if "slope" in key)
        assert not any(f"{around}/{around}" in key for key in outside if around)


@pytest.mark.parametrize("name", ["shard_map", "linear_solve"])
def test_a_rule_that_no_state_can_be_threaded_through_keeps_the_path_around(name):
    fun = jax.custom_jvp(lambda x: scoped("point", jnp.sin)(x))
    fun.defjvp(lambda primals, tangents: (fun(*primals), jnp.cos(primals[0]) * tangents[0]))

    def program(x):
        if name == "linear_solve":
            return jax.lax.custom_linear_solve(lambda v: 2 * v, x, lambda _, b: fun(b) / 2, lambda _, b: b / 2)
        mesh, spec = jax.sharding.Mesh(jax.devices()[:1], ("shards",)), jax.sharding.PartitionSpec("shards")
        return jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)

    assert [point.path for point in lox.points(jax.jit(program))(jnp.ones(2))] == ["program/point", "program"]


def test_the_loops_of_a_backward_function_are_what_its_lines_say():
    @jax.custom_vjp
    def fun(x):
        return jnp.sin(x)

    def bwd(x, bar):
        def step(carry):
            with jax.named_scope("body"):
                return carry[0] + 1, carry[1] * jnp.cos(x)

        with jax.named_scope("solve"):
            return (jax.lax.while_loop(lambda carry: carry[0] < 2, step, (jnp.int32(0), bar))[1],)

    fun.defvjp(lambda x: (fun(x), x), bwd)

    def loss(x):
        with jax.named_scope("net"):
            return fun(x)

    for transform in (lambda f: f, jax.jit):
        watched = lox.watch(transform(jax.grad(loss)), at="**/body", what=values_of)
        out, logs = spooled(watched, 0.5, max_iters=4)
        (key,) = (key.removeprefix("loss/") for key in logs)
        assert key == "backward/net/rule/solve/while/body/0"
        values = logs.valid(*logs)
        assert np.allclose(values, [np.cos(0.5), np.cos(0.5) ** 2]) and np.allclose(out, values[-1])


def test_a_loop_in_a_backward_pass_is_one():
    def loss(x):
        return jnp.sum(jax.lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=4)[0] ** 2)

    found = lox.points(jax.grad(loss))(2.0)
    assert [(point.path, point.backward) for point in found] == [("scan", False), ("backward/scan", True)]
    grad, logs = spooled(lox.watch(jax.grad(loss), at="**", what=values_of), 2.0)
    assert grad == jax.grad(loss)(2.0) and {len(values) for values in logs.values()} == {4}


def test_custom_rules_log_what_runs():
    @jax.custom_vjp
    def double(x):
        with jax.named_scope("primal"):
            return 2 * x

    def fwd(x):
        with jax.named_scope("fwd"):
            return 2 * x, x

    def bwd(x, bar):
        with jax.named_scope("bwd"):
            return (2 * bar + 0 * x,)

    double.defvjp(fwd, bwd)

    @jax.custom_jvp
    def triple(x):
        with jax.named_scope("primal"):
            return 3 * x

    @triple.defjvp
    def rule(primals, tangents):
        with jax.named_scope("rule"):
            return 3 * primals[0], 3 * tangents[0]

    for transform in (lambda f: f, jax.jit):
        paths = lambda f: {point.path.removeprefix("fun/") for point in lox.points(f)(jnp.float32(1))} - {"fun"}  # noqa: E731
        fun = transform(lambda x: double(x))
        assert "primal" in str(paths(fun)) and "fwd" not in str(paths(fun))
        assert {"fwd", "bwd"} <= {path.split("/")[-1] for path in paths(transform(jax.grad(fun)))}
        fun = transform(lambda x: triple(x))
        assert "primal" in str(paths(fun)) and "rule" not in str(paths(fun))
        derived = str(paths(transform(lambda x: jax.jvp(fun, (x,), (x,)))))
        assert "rule" in derived and "primal" not in derived


@pytest.mark.parametrize("has_log_in_rule", [False, True])
@pytest.mark.parametrize("derivative", ["custom_jvp", "custom_vjp"])
def test_a_derivative_around_the_handler_runs_custom_rules(derivative, has_log_in_rule):
    """The rule and the function, for its logs, run both under the handlers."""

    def sine(x):
        with jax.named_scope("rule") if has_log_in_rule else contextlib.nullcontext():
            return jnp.sin(x)

    fun = getattr(jax, derivative)(lambda x: scoped("primal", jnp.sin)(x))
    if derivative == "custom_jvp":
        fun.defjvp(lambda primals, tangents: (sine(*primals), 3 * tangents[0]))
    else:
        fun.defvjp(lambda x: (sine(x), None), lambda _, bar: (3 * bar,))
    for handled in (lox.watch(lambda x: fun(x), at="**", what=values_of), lox.context(prefix="in/")(lambda x: fun(x))):
        grad, logs = jax.grad(lox.spool(handled), has_aux=True)(jnp.float32(0.5))
        assert grad == 3
        assert list(map(float, logs.valid(*logs) if logs else [])) == [float(jnp.sin(0.5))] * len(logs)


@pytest.mark.parametrize("place", ["inside", "around"])
def test_functions_with_rules_that_call_each_other_are_traced_a_few_times(place):
    runs = 0

    def nested(depth):
        if depth == 0:

            def sine(x):
                nonlocal runs
                runs += 1
                return scoped("sine", jnp.sin)(x)

            return sine
        inner = nested(depth - 1)
        fun = jax.custom_jvp(lambda x: inner(x))
        fun.defjvp(lambda primals, tangents: jax.jvp(inner, primals, tangents))
        return fun

    def count(depth):
        nonlocal runs
        runs, fun = 0, lox.watch(nested(depth), at="**")
        _, logs = spooled(jax.grad(fun), 0.5) if place == "inside" else jax.grad(lox.spool(fun), has_aux=True)(0.5)
        assert list(logs) == [(depth * "rule/" if place == "inside" else "") + "sine/value"]
        return runs

    assert count(8) - count(7) == count(7) - count(6) <= 2  # Not a multiple.


# -- paths ----------------------------------------------------------------------------------------------------------


def test_equal_names_are_numbered_in_their_parent():
    def fun(x):
        for _ in range(2):
            x = dense(PARAMS[0], x)
        x = jax.lax.scan(lambda c, _: (c + 1, None), x, length=2)[0]
        x = jax.lax.scan(lambda c, _: (dense(PARAMS[0], c), None), x, length=2)[0]
        return jax.checkpoint(lambda x: dense(PARAMS[0], x))(x)

    paths = [point.path for point in lox.points(fun)(X)]
    assert paths == ["dense", "dense[1]", "scan", "scan[1]/dense", "scan[1]", "dense[2]"]
    assert [point.path.removeprefix("fun/") for point in lox.points(jax.jit(fun))(X)] == [*paths, "fun"]


def test_what_python_runs_again_from_the_same_line_is_the_same_point():
    step = jax.jit(lambda x: dense(PARAMS[0], x))

    def run(x, start=step):
        x = start(x)
        for _ in range(3):
            x = step(x)
        return x

    for fun in (run, jax.jit(run)):
        logs = spooled(lox.watch(fun, at="**/dense", what=values_of), X)[1]
        assert sorted(len(values) for values in logs.values()) == [1, 3]


def test_functions_of_jax_are_no_parts_of_paths():
    def fun(x):
        x = jnp.where(x > 0, x, x.var())
        x = jax.nn.relu(x) + jax.random.gamma(jax.random.key(0), 1.0 + x**2)
        x = x + jax.random.poisson(jax.random.key(0), 1.0 + x**2).astype(float)
        return jax.scipy.linalg.expm(jnp.einsum("ij,kj->ik", x, jnp.sort(jax.nn.softmax(x))))

    assert [point.path for point in lox.points(jax.jit(fun))(X)] == ["fun"]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_what_jax_does_with_an_operation_is_not_of_the_program(transform):
    """Functions of JAX that the program calls, JAX calls in rules of derivatives and to compile as well."""

    def fun(x):
        x = jax.nn.softmax(jax.nn.gelu(jnp.abs(x)))
        return jnp.where(x > 0, x, x.var()).sum()

    def paths(f):
        return {key.rpartition("/")[0] for key in spooled(lox.watch(f, at=lambda point: True, what=values_of), X)[1]}

    alone = paths(transform(fun))
    forward = {path for path in paths(transform(jax.grad(fun))) if not path.startswith("backward")}
    assert {path for path in forward if "backward" not in path} >= alone and "fun/cumsum" not in alone
    assert paths(lambda x: transform(fun)(x)) == alone


def test_branches_belong_to_their_cond():
    def fun(x):
        return jax.lax.cond(x.sum() > 0, lambda x: dense(PARAMS[0], x), lambda x: dense(PARAMS[1], x) * 2, x)

    assert {point.path for point in lox.points(fun)(X)} == {"cond/dense", "cond/dense[1]", "cond"}
    watched = lox.watch(fun, at="**", what=values_of)
    for x, happens in ((X + 1, "cond/dense[1]/0"), (X - 1, "cond/dense/0")):
        out, logs = spooled(watched, x, unify=True)
        assert logs.keys() == {"cond/dense/0", "cond/dense[1]/0", "cond/0"}
        found = {key for key in logs if logs.valid(key).size}
        assert found == {happens, "cond/0"} and np.array_equal(logs["cond/0"][0], out)


def test_a_choice_between_platforms_is_no_point():
    """JAX makes a cond of it where it does not know the platform, and runs a branch where it does."""

    def fun(x):
        inner = scoped("inner", jnp.sin)
        return inner(jax.lax.platform_dependent(inner(x), cpu=inner, default=scoped("inner", jnp.cos)))

    at_once = spooled(lox.watch(fun, at="**"), 1.0)[1]
    jitted = spooled(lox.watch(jax.jit(fun), at="fun/**"), 1.0)[1]
    assert list(at_once) == ["inner/value", "inner[1]/value", "inner[2]/value"]
    assert [f"fun/{key}" for key in at_once] == list(jitted)
    assert same(dict(at_once), dict(jitted))
    forward = ["fun/inner", "fun/inner[1]", "fun/inner[2]"]
    backward = ["fun/backward/inner[2]", "fun/backward/inner[1]", "fun/backward/inner"]
    assert [point.path for point in lox.points(jax.jit(jax.grad(fun)))(1.0)] == [*forward, *backward, "fun"]


def test_the_condition_of_a_loop_comes_before_its_body():
    def fun(x):
        return jax.lax.while_loop(lambda x: dense(PARAMS[0], x).sum() < 3, lambda x: dense(PARAMS[1], x) + 1, x)

    assert [point.path for point in lox.points(fun)(X)] == ["while/dense", "while/dense[1]", "while"]
    logs = spooled(lox.watch(fun, at="**", what=values_of), X, max_iters=8)[1]
    assert len(logs.valid("while/dense/0")) == len(logs.valid("while/dense[1]/0")) + 1


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_branches_need_not_have_the_same_points(transform):
    def step(x, _):
        return jax.lax.cond(x.sum() > 0, lambda x: dense(PARAMS[0], x), lambda x: x + 1, x), None

    def with_logs(x, _):
        def branch(x):
            x = dense(PARAMS[0], x)
            lox.log({"scan/cond/dense/0": x})
            return x

        return jax.lax.cond(x.sum() > 0, branch, lambda x: x + 1, x), None

    def run(step):
        return lambda x: jax.lax.scan(step, x, None, length=4)[0]

    out, logs = spooled(transform(lox.watch(run(step), at="**/dense", what=values_of)), XS)
    expected, by_hand = spooled(transform(run(with_logs)), XS, unify=True)
    assert same(out, expected) and logs == by_hand and logs.mask


def test_patterns_match_parts_with_any_number():
    def fun(x):
        for _ in range(3):
            with jax.named_scope("outer"):
                x = dense(PARAMS[0], x)
        return x

    def paths(at):
        return {key.removesuffix("/0") for key in spooled(lox.watch(fun, at=at, what=values_of), X)[1]}

    assert paths("outer/dense") == paths("*/dense") == {"outer/dense", "outer[1]/dense", "outer[2]/dense"}
    assert paths("outer[1]/dense") == {"outer[1]/dense"}
    assert paths("**") == paths("outer/dense") | paths("outer")
    assert paths(lambda point: point.name == "outer") == {"outer", "outer[1]", "outer[2]"}


def test_primitives_are_selected_by_their_names():
    logs = spooled(lox.watch(jax.jit(net), at="**/dot_general", what=values_of), PARAMS, X)[1]
    assert set(logs) == {"net/net/dense/dot_general/0", "net/net/dense[1]/dot_general/0"}
    assert np.allclose(logs["net/net/dense/dot_general/0"][0], X @ PARAMS[0])


def test_the_function_of_a_reduction_is_no_part_of_the_program():
    def fun(x):
        x = jax.grad(lambda x: x.at[0].multiply(2.0)[jnp.array([0, 1, 1])].sum())(x)
        x = x + jax.lax.reduce_window(x, 1.0, lambda a, b: a * b, (2, 1), (1, 1), "same")
        return jax.lax.reduce(x, 0.0, lambda a, b: 2.0 * a + b, (1,))

    reductions = {"scatter-add", "reduce", "reduce_window"}
    for at, expected in (
        (lambda point: False, set()),
        (lambda point: True, reductions),
        (["**/scatter-add", "**/reduce"], {"scatter-add", "reduce"}),
        ("**", set()),
    ):
        out, logs = spooled(lox.watch(jax.jit(fun), at=at, what=values_of), X)
        assert same(out, jax.jit(fun)(X))
        assert reductions & {key.split("/")[-2] for key in logs} == expected


def test_functions_of_jax_that_others_call_are_not_of_the_program():
    """JAX traces `jnp.less` once: for the program, for `what`, or for a library that JAX asks for a rule."""

    def fun(x):
        return jax.lax.scan(lambda x, _: (jnp.where(jnp.less(x, 2), x + 1, x), None), x, None, length=3)[0]

    def what(point, values):
        return {"all": jnp.less(jnp.float32(values[0]), 2)}

    for transform in (lambda f: f, jax.jit):
        watched = lox.watch(transform(fun), at=["**/lt", "**/scan"], what=what)
        found = []
        lox.tap(watched, lambda logs: found.extend(logs))(XS)
        lox.flush()
        assert [key.removeprefix("fun/") for key in found] == ["scan/lt/all", "scan/all"] * 3
        logs = spooled(watched, XS[0])[1]
        assert all(key.removeprefix("fun/") in ("scan/lt/all", "scan/all") for key in logs)


def test_a_pattern_that_matches_nothing_warns_once():
    watched = lox.watch(net, at=["**/dense", "**/Dense"])
    with pytest.warns(lox.SelectionWarning, match=r"'\*\*/Dense' in at= of lox.watch selects nothing.*net/dense"):
        spooled(watched, PARAMS, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spooled(watched, PARAMS, X)


# -- what is logged -------------------------------------------------------------------------------------------------


def test_statistics_are_logged_by_default():
    def fun(x):
        with jax.named_scope("array"):
            x = x * jnp.array([1.0, jnp.nan, jnp.inf])
        with jax.named_scope("scalar"):
            return x[0] + 1

    logs = spooled(lox.watch(fun, at="**"), jnp.array([1.0, 2.0, 3.0]))[1]
    assert set(logs) == {"array/mean", "array/std", "array/min", "array/max", "array/nonfinite", "scalar/value"}
    assert logs["array/nonfinite"].tolist() == [2] and logs["scalar/value"].tolist() == [2.0]


def test_statistics_of_several_values_have_their_numbers():
    def fun(x):
        return jax.lax.scan(lambda c, _: ((c[0] + 1, c[1] * 2), None), (0, x), length=2)[0]

    logs = spooled(lox.watch(fun, at="scan"), X)[1]
    assert logs["scan/0"].tolist() == [1, 2] and np.allclose(logs["scan/1/max"], [4, 8])


def test_what_gets_the_values_of_one_batch_element_and_may_return_none():
    shapes = set()

    def what(point, values):
        shapes.add(values[0].shape)
        return {"norm": jnp.linalg.norm(values[0])} if point.name == "net" else None

    logs = spooled(jax.vmap(lox.watch(net, at="**", what=what), (None, 0)), PARAMS, XS)[1]
    assert logs["net/norm"].shape == (1, 4) and set(logs) == {"net/norm"} and shapes == {(), (2, 3)}


def test_tags_and_a_prefix_are_those_of_the_logs():
    watched = lox.watch(net, at="net", tags="mine", prefix="model/")
    assert set(spooled(watched, PARAMS, X, tags="mine")[1]) == {"model/net/value"}
    with pytest.warns(lox.SelectionWarning, match="'other' in tags="):
        assert not spooled(watched, PARAMS, X, tags="other")[1]


def test_a_map_logs_what_it_returns():
    _, logs = spooled(lox.watch(lambda xs: jax.lax.map(jnp.sum, xs), at="scan"), XS)
    assert np.allclose(logs["scan/value"], XS.sum((1, 2)))


def carried(loop, log):
    """A loop that carries four values. Its body returns the first and the last of them unchanged."""

    def step(c, x=None):
        c = (c[0], c[1] + 1, c[2] * 2, c[3])
        log({f"{loop}/{number}": value for number, value in enumerate(c)})
        return c, (x, c[0])

    def fun(x):
        start = X * x, x, jnp.float32(1), x
        if loop == "scan":
            return jax.lax.scan(step, start, XS)
        return jax.lax.while_loop(lambda c: c[1] < 3, lambda c: step(c)[0], start)

    return fun


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_values_that_a_loop_returns_unchanged_have_their_numbers(loop):
    """JAX takes them out of the loop."""
    for transform, x in ((lambda f: f, 1.0), (jax.jit, 1.0), (jax.vmap, jnp.arange(3.0))):
        watched = lox.watch(transform(carried(loop, lambda _: None)), at=f"**/{loop}", what=values_of)
        out, logs = spooled(watched, x, max_iters=4)
        expected, by_hand = spooled(transform(carried(loop, lox.log)), x, max_iters=4)
        assert same(out, expected) and len(by_hand) == 4
        assert {key.removeprefix("fun/") for key in logs} == set(by_hand)
        assert same(dict(logs), dict(by_hand))


def test_outputs_that_a_scan_gets_have_their_numbers():
    scan = lambda xs: jax.lax.scan(lambda c, x: (c, (x[1], x[1] * 2, c, x[0])), X, xs)[1]  # noqa: E731
    outs, logs = spooled(lox.watch(scan, at="scan", what=values_of), (XS, -XS))
    assert same([logs[f"scan/{number}"] for number in range(4)], outs)


# -- handlers -------------------------------------------------------------------------------------------------------


def test_without_a_handler_nothing_is_watched():
    watched = lox.watch(train, at="**")
    plain = jax.jit(train).lower(PARAMS, XS).as_text()
    assert jax.jit(watched).lower(PARAMS, XS).as_text().replace("watched", "train") == plain.replace("watched", "train")


def test_a_tap_gets_the_events_in_their_order():
    seen = []
    out = lox.tap(lox.watch(train, at="**/dense"), lambda logs: seen.extend(logs))(PARAMS, XS)
    lox.flush()
    assert all(map(np.allclose, jax.tree.leaves(out), jax.tree.leaves(train(PARAMS, XS))))
    means = [key for key in seen if key.endswith("/mean") and "backward" not in key]
    assert means == ["scan/step/net/dense/mean", "scan/step/net/dense[1]/mean"] * 4


def test_logs_of_the_function_stay_and_handlers_in_it_get_no_points():
    def fun(x):
        lox.log({"mine": x})
        with jax.named_scope("scope"):
            x = x + 1
        y, logs = lox.spool(lambda x: dense(jnp.eye(1), lox.log({"inner": x + 1})["inner"][None]))(x)
        return y, logs

    (_, inner), logs = spooled(lox.watch(fun, at="**"), jnp.float32(1))
    assert set(inner) == {"inner"} and {"mine", "scope/value", "dense/mean"} <= set(logs)


def test_a_watched_function_in_a_watched_function_logs_for_both():
    inner = lox.watch(net, at="net", prefix="inner/")
    logs = spooled(lox.watch(jax.jit(lambda p, x: inner(p, x)), at="**/dense[1]"), PARAMS, X)[1]
    assert {key.rpartition("/")[0] for key in logs} == {"inner/net", "<lambda>/net/dense[1]"}


def test_reductions_and_intervals_are_of_the_events():
    watched = lox.watch(train, at="**/net", what=values_of)
    full = spooled(watched, PARAMS, XS)[1]
    logs = spooled(watched, PARAMS, XS, reduce={"scan/step/net/0": "mean"})[1]
    assert np.allclose(logs["scan/step/net/0"], full["scan/step/net/0"].mean())
    logs = spooled(watched, PARAMS, XS, interval=2)[1]
    assert np.array_equal(logs["scan/step/net/0"], full["scan/step/net/0"][::2])


def test_it_works_where_the_function_cannot_be_traced():
    def fun(x, name):
        assert name == "a string"
        for _ in range(int(x)):  # Python needs the value.
            x = jax.jit(jnp.sin)(x) + dense(jnp.eye(1), x[None])[0]
        return x if x > 0 else -x

    out, logs = spooled(lox.watch(fun, at="dense*"), jnp.float32(2), "a string")
    assert out == fun(jnp.float32(2), "a string") and set(logs) == {
        f"dense{number}/{name}" for number in ("", "[1]") for name in ("mean", "std", "min", "max", "nonfinite")
    }


def test_an_exception_leaves_nothing_behind():
    def fun(x):
        with jax.named_scope("outer"):
            if x.sum() > 0:
                raise RuntimeError("mine")
            return dense(PARAMS[0], x)

    watched = lox.watch(fun, at="**")
    with pytest.raises(RuntimeError, match="mine"):
        spooled(watched, X + 1)
    assert {key.rpartition("/")[0] for key in spooled(watched, X - 1)[1]} == {"outer/dense", "outer"}


def test_a_point_that_cannot_be_watched_raises_and_says_why():
    batched = jax.jit(jax.vmap(jax.grad(net), (None, 0)))
    found = {point.path: point.obstacle for point in lox.points(batched)(PARAMS, XS)}
    assert "batched" in found["net/backward/net/dense"] and not found["net/net/dense"]
    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"net/backward/net/dense.*batched.*jax.vmap\(jax.jit"):
        spooled(lox.watch(batched, at="**/backward/**"), PARAMS, XS)
    assert spooled(lox.watch(batched, at="net/net/dense"), PARAMS, XS)[1]


@pytest.mark.parametrize("layer", ["jit", "scan", "checkpoint", "cond"])
def test_backward_passes_of_a_batch_cannot_be_watched_whatever_they_are_in(layer):
    def loss(weights, x):
        return LAYERS[layer](lambda x, weights: dense(weights, x))(x, weights).sum()

    fun = jax.grad(lambda weights, xs: jax.vmap(loss, (None, 0))(weights, xs).mean())
    for transform in (lambda f: f, jax.jit):
        backward = [point for point in lox.points(transform(fun))(PARAMS[0], X) if point.backward]
        assert backward and all(point.obstacle for point in backward)
        forward = lox.watch(transform(fun), at=lambda point: not point.obstacle)
        assert any(key.endswith("dense/std") for key in spooled(forward, PARAMS[0], X)[1])


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.vmap], ids=["alone", "jit", "vmap"])
def test_a_backward_pass_in_no_jaxpr_is_a_point_that_cannot_be_watched(around):
    step = lambda x: jax.grad(lambda x: dense(PARAMS[0], x).sum())(x)  # noqa: E731
    found = []
    around(lambda x: found.append({point.path: point.obstacle for point in lox.points(step)(x)}))(X)
    assert list(found[0]) == ["dense", "backward/dense"] and "jax.jit(f)" in found[0]["backward/dense"]
    assert spooled(around(lox.watch(step, at="dense")), X)[1]
    with pytest.raises(lox.UnsupportedPrimitiveError, match=r"backward/dense.*put jax.jit inside lox.watch"):
        spooled(around(lox.watch(step, at="**/dense")), X)
    assert len(spooled(around(lox.watch(jax.jit(step), at="**/dense")), X)[1]) > 5


def test_the_first_of_a_name_is_selected_by_its_number():
    def fun(x):
        return dense(PARAMS[1], dense(PARAMS[0], x))

    for at, paths in (("dense[0]", {"dense"}), ("dense[1]", {"dense[1]"}), ("dense", {"dense", "dense[1]"})):
        assert {key.rpartition("/")[0] for key in spooled(lox.watch(fun, at=at), X)[1]} == paths


def test_errors_of_what_name_the_point():
    with pytest.raises(IndexError) as raised:
        spooled(lox.watch(dense, at="dense", what=lambda point, values: {"x": values[1]}), PARAMS[0], X)
    assert "for 1 values of 'dense'" in raised.value.__notes__[0]
    assert not str(jax.extend.source_info_util.current_name_stack())  # The scope is left all the same.


@pytest.mark.parametrize(("pattern", "meant"), [("**/dens", "**/dense"), ("net/**/dense", "**/dense")])
def test_a_misspelt_pattern_gets_the_one_that_was_meant(pattern, meant):
    with pytest.warns(lox.SelectionWarning, match=re.escape(f"Did you mean '{meant}'")):
        spooled(lox.watch(dense, at=pattern), PARAMS[0], X)


def test_a_pattern_that_selects_nothing_is_not_the_one_that_was_meant():
    with pytest.warns(lox.SelectionWarning, match="selects nothing") as warned:
        spooled(lox.watch(dense, at=["dense/**", "**/tanh"]), PARAMS[0], X)
    assert "Did you mean 'dense/**'" not in str(warned[0].message)


@pytest.mark.parametrize("of", [lox.strip, lambda f: lox.strip(f, tags="debug"), lox.keep], ids=["all", "some", "keep"])
def test_a_function_whose_logs_are_removed_is_watched_all_the_same(of):
    def fun(x):
        lox.log({"x": x}, tags="debug")
        return jax.lax.scan(lambda c, _: (c + 1, None), x, length=2)[0]

    logs = spooled(lox.watch(of(fun), at="scan"), jnp.float32(0))[1]
    assert {key: values.tolist() for key, values in logs.items() if key != "x"} == {"scan/value": [1, 2]}
    assert not spooled(lox.strip(lox.watch(fun, at="scan")), jnp.float32(0))[1]


@pytest.mark.parametrize("at", ["while", lambda point: point.kind == "while"], ids=["pattern", "function"])
def test_the_condition_of_a_loop_in_a_context_has_no_counters_of_points_that_are_not_selected(at):
    def fun(x):
        with lox.context(step=1):
            return jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)

    logs = spooled(lox.watch(fun, at=at), jnp.float32(0), max_iters=3)[1]
    np.testing.assert_array_equal(logs.valid("while/value"), [1, 2, 3])


def test_what_runs_while_jax_traces_cannot_be_watched():
    def fun(x):
        with jax.ensure_compile_time_eval():
            three = jax.lax.scan(lambda c, _: (c + 1, None), jnp.float32(jnp.less(1, 2)), None, length=2)[0]
        return jnp.where(jnp.less(x, three), x, 0)

    found = {point.path: point.obstacle for point in lox.points(jax.jit(fun))(X)}
    assert "ensure_compile_time_eval" in found["fun/scan"]
    with pytest.raises(lox.UnsupportedPrimitiveError, match="ensure_compile_time_eval"):
        spooled(lox.watch(jax.jit(fun), at="**/scan"), X)
    watched = lox.watch(jax.jit(fun), at=lambda point: point.name == "lt" and not point.obstacle, what=values_of)
    out, logs = spooled(watched, X)
    assert same(out, fun(X)) and np.array_equal(logs["fun/lt[1]/0"], [X < 3])


def test_what_python_runs_in_place_of_jax_is_said_to_be_unseen():
    watched = lox.watch(steps, at="scan")
    spooled(watched, 1.0)
    with jax.disable_jit():
        with pytest.warns(lox.SelectionWarning, match=r"jax\.disable_jit, Python runs loops"):
            spooled(watched, 1.0)
        with pytest.warns(lox.SelectionWarning, match=r"jax\.disable_jit, Python runs loops"):
            assert lox.points(steps)(1.0) == []


@pytest.mark.parametrize(
    "options", [{"at": 3}, {"at": None}, {"at": "**", "what": 3}, {"at": "**", "tags": 3}, {"at": "**", "prefix": 3}]
)
def test_arguments_of_the_wrong_type_are_refused(options):
    with pytest.raises(TypeError, match="lox.watch"):
        lox.watch(net, **options)


compared_p = jax.extend.core.Primitive("compared")
compared_p.def_impl(lambda x, *, jaxpr, same: jax.core.eval_jaxpr(jaxpr, (), x)[0])
compared_p.def_abstract_eval(lambda aval, **params: aval)


def test_a_primitive_without_a_rule_keeps_its_jaxprs():
    """A library may compare them with others that it keeps, as equinox does."""

    def lowered(context, x, *, jaxpr, same):
        assert same(jaxpr)
        return jax.interpreters.mlir.lower_fun(lambda x: jax.core.eval_jaxpr(jaxpr, (), x)[0], False)(context, x)

    jax.interpreters.mlir.register_lowering(compared_p, lowered)

    def fun(x):
        def inner(x):
            with jax.named_scope("inner"):
                return jnp.sin(x)

        jaxpr = jax.make_jaxpr(inner)(x).jaxpr
        with jax.named_scope("outer"):
            return compared_p.bind(x, jaxpr=jaxpr, same=lambda other: other is jaxpr) * 2

    listed = {point.path: bool(point.obstacle) for point in lox.points(jax.jit(fun))(X)}
    assert listed == {"fun/outer/inner": True, "fun/outer": False, "fun": False}
    out, logs = spooled(lox.watch(jax.jit(fun), at="**/outer", what=values_of), X)
    assert same(out, jax.jit(fun)(X)) and same(logs["fun/outer/0"][0], out)


# -- compositions ---------------------------------------------------------------------------------------------------


def scoped(name, fun):
    return jax.named_scope(name)(fun)


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, bar: (scoped("bwd", lambda: jnp.cos(x) * bar)(),))


@pytest.mark.parametrize(
    ("transform", "paths"),
    [
        (lambda f: jax.grad(f), ["backward/rule/bwd", "backward/rule[1]/bwd"]),
        (lambda f: jax.jit(jax.grad(f)), ["f/backward/rule/bwd", "f/backward/rule[1]/bwd"]),
        (lambda f: jax.grad(jax.checkpoint(f)), ["backward/rule/bwd", "backward/rule[1]/bwd"]),
        (
            lambda f: jax.grad(lambda x: jax.lax.scan(lambda c, _: (sine(c), None), x, length=2)[0]),
            ["backward/scan/rule/bwd"],
        ),
        (lambda f: lambda x: jax.lax.map(jax.grad(sine), jnp.stack([x, x]))[1], ["scan/backward/rule/bwd"]),
    ],
    ids=["grad", "jit of grad", "checkpoint", "grad of scan", "scan of grad"],
)
def test_a_scope_in_a_bwd_rule_is_one_point_in_the_backward_pass(transform, paths):
    def f(x):
        return sine(sine(x))

    watched = lox.watch(transform(f), at="**/bwd", what=values_of)
    grad, logs = spooled(watched, jnp.float32(0.5))
    assert grad == transform(f)(jnp.float32(0.5))
    assert sorted(logs) == [f"{path}/0" for path in paths]
    assert sum(map(len, logs.values())) == 2
    assert grad == logs[f"{paths[0]}/0"][-1]


def test_batching_rules_of_the_program_are_watched():
    @jax.custom_batching.custom_vmap
    def double(x):
        return scoped("alone", lambda: 2 * x)()

    @double.def_vmap
    def rule(size, batched, x):
        return scoped("batch", lambda: 2 * x)(), batched[0]

    for fun in (jax.vmap(double), jax.jit(jax.vmap(double)), jax.vmap(jax.jit(double))):
        logs = spooled(lox.watch(fun, at="**", what=values_of), X)[1]
        found = [key for key in logs if key.endswith("batch/0")]
        assert len(found) == 1 and "alone" not in str(logs) and np.allclose(logs[found[0]], 2 * X)


@pytest.mark.parametrize("at", ["**/scope", lambda point: point.name == "scope"])
def test_what_lox_and_jax_bind_is_no_point(at):
    def fun(x):
        lox.log({"mine": x})
        return jax.lax.scan(lambda c, _: (scoped("scope", lambda: jnp.where(c > 0, c, c + 1))(), None), x, length=2)[0]

    fun = jax.vmap(fun)
    seen = []
    lox.tap(lox.watch(fun, at=at, what=values_of), lambda logs: seen.extend(logs))(X[0])
    lox.flush()
    assert seen == ["mine"] + ["scan/scope/0"] * 2
    assert not [point for point in lox.points(fun)(X[0]) if point.kind == "primitive"]


def test_what_may_call_functions_of_the_program():
    layer = jax.jit(lambda x: scoped("layer", lambda: jnp.sin(x))())

    def fun(x):
        return layer(scoped("first", lambda: x + 1)())

    logs = spooled(lox.watch(fun, at="**", what=lambda _, values: {"v": layer(values[0])}), jnp.float32(1))[1]
    assert set(logs) == {"first/v", "<lambda>/v", "<lambda>/layer/v"}


def test_what_of_an_inner_watch_is_no_result_of_a_scope_around():
    inner = lox.watch(scoped("inner", jnp.sin), at="inner", what=lambda _, values: {"v": 100 * values[0]})
    logs = spooled(lox.watch(scoped("outer", inner), at="outer", what=values_of), jnp.float32(1))[1]
    assert logs["outer/0"][0] == jnp.sin(1.0) and logs["outer/inner/v" if "outer/inner/v" in logs else "inner/v"].shape


def test_a_function_that_is_compiled_apart_cannot_be_watched():
    def fun(x):
        compiled = jax.jit(scoped("apart", jnp.sin)).lower(x).compile()
        return scoped("here", lambda: x + 1)() + compiled(x)

    x = jnp.float32(1)
    (apart, here) = lox.points(fun)(x)
    assert apart.name == "apart" and "lower" in apart.obstacle and not here.obstacle
    assert set(spooled(lox.watch(fun, at="here", what=values_of), x)[1]) == {"here/0"}
    with pytest.raises(lox.UnsupportedPrimitiveError, match="apart"):
        spooled(lox.watch(fun, at="**"), x)


def test_scopes_that_decorate_functions_are_points_wherever_jax_calls_these():
    double = scoped("scope", lambda x: 2 * x)
    for transform in (jax.jit, jax.vmap, jax.checkpoint, lambda f: jax.jit(jax.named_call(f, name="outer"))):
        assert "scope" in [point.name for point in lox.points(transform(double))(X)]


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.vmap(jax.grad(f)))])
def test_scopes_that_jax_opens_around_functions_of_its_own_are_no_points(transform):
    """As `jnp.einsum` does."""

    def attend(x):
        x = x.reshape(-1, 3, 2, 2)
        return jax.nn.dot_product_attention(x, x, x).sum()

    paths = [point.path for point in lox.points(transform(attend))(jnp.ones((1, 12)))]
    assert not paths or paths == ["attend"]


def test_functions_of_jax_that_the_program_decorates_are_points():
    relu = scoped("scope", jax.nn.relu)
    assert [point.path for fun in (relu, jax.vmap(relu)) for point in lox.points(fun)(X)] == ["scope", "scope"]


def test_points_of_a_function_that_logs():
    logging = scoped("scope", lambda x: lox.log({"x": x})["x"] + 1)
    assert [point.path for point in lox.points(logging)(jnp.float32(1))] == ["scope"]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int4", "bool", "bfloat16", "float8_e4m3fn", "complex64"])
def test_statistics_of_every_type_under_strict_promotion(dtype):
    fun = scoped("scope", lambda x: jnp.flip(x))
    _, logs = spooled(lox.watch(fun, at="scope"), jnp.array([0, 1, 1, 0]).astype(dtype))
    assert [float(logs[f"scope/{name}"][0]) for name in ("mean", "std", "min", "max")] == [0.5, 0.5, 0, 1]


def test_shards_log_as_if_the_calls_were_written_in_their_function():
    mesh = jax.sharding.Mesh(jax.devices()[:2], "i")
    spec = jax.sharding.PartitionSpec("i")

    def shards(fun):
        return jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)

    def with_logs(x):
        lox.log({"scope/0": jnp.sin(x)})
        return x

    fun, x = scoped("scope", jnp.sin), jnp.arange(4.0)
    for transform in (shards, lambda f: jax.jit(shards(f)), lambda f: jax.pmap(f, devices=jax.devices()[:2])):
        y = x if transform is shards else x.reshape(2, 2) if "pmap" in transform.__code__.co_names else x
        (found,) = spooled(lox.watch(transform(fun), at="**/scope", what=values_of), y)[1].values()
        (expected,) = spooled(transform(with_logs), y)[1].values()
        assert np.array_equal(found, expected) and found.size == 4


def _on_shards(fun):
    mesh, spec = jax.sharding.Mesh(jax.devices()[:2], "i"), jax.sharding.PartitionSpec("i")
    return jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_points_in_a_condition_that_differs_between_shards_differ_as_well(transform):
    """Those of the first test, which runs before the loop, and those in the loop."""

    def countdown(x, n):
        def goes_on(carry):
            with jax.named_scope("test"):
                jnp.arange(2) + 1
            return carry < n[0]

        return x + jax.lax.while_loop(goes_on, lambda carry: carry + 1, 0)

    watched = lox.watch(transform(_on_shards(countdown)), at="**/test", what=values_of)
    _, logs = lox.spool(watched, max_iters=4)(jnp.zeros(2), jnp.array([1, 3]))
    assert list(logs.values()) == [logs["".join(logs)]] and logs["".join(logs)].shape == (5, 2, 2)
    np.testing.assert_array_equal(logs.mask["".join(logs)].sum(0), [2, 4])


def _scoped_sine(x):
    with jax.named_scope("layer"):
        return jnp.sin(2 * x)


def _with_forward_rule(fun):
    """A function with a rule for its derivative, which is twice what it is."""
    ruled = jax.custom_jvp(lambda x: fun(x))
    ruled.defjvp(lambda primals, tangents: (fun(*primals), 4 * jnp.cos(2 * primals[0]) * tangents[0]))
    return ruled


def _with_backward_rule(fun, inside):
    """The sine of a function with a rule for its backward pass, in which another function runs twice."""
    ruled = jax.custom_vjp(lambda x: fun(x))
    ruled.defvjp(lambda x: (fun(x), x), lambda x, bar: (inside(bar) * inside(2 * bar),))
    return ruled


_sine_on_shards = _on_shards(_scoped_sine)


@pytest.mark.covering(1)
@pytest.mark.parametrize("batched", [False, True], ids=["grad", "vmap of grad"])
@pytest.mark.parametrize(
    "fun",
    [
        _sine_on_shards,
        lambda x: _sine_on_shards(2 * _sine_on_shards(x)),
        _on_shards(lambda x: jax.grad(lambda y: jnp.sin(2 * y).sum())(x)),
        _on_shards(_with_forward_rule(_scoped_sine)),
        _on_shards(_with_backward_rule(_scoped_sine, _with_forward_rule(_scoped_sine))),
        _with_backward_rule(_scoped_sine, _with_forward_rule(lambda x: 3 * jnp.sin(2 * x))),
        _with_backward_rule(_scoped_sine, _on_shards(lambda x: 3 * jnp.sin(2 * x))),
        jax.vmap(_sine_on_shards, in_axes=None, out_axes=-1, axis_size=2),
    ],
    ids=["shards", "shards twice", "derivative", "forward rule", "backward rule", "rules", "rule on shards", "vmap"],
)
def test_operations_of_a_backward_pass_have_the_same_paths_at_once_and_in_a_jitted_function(fun, batched):
    """Those of functions with rules, and of shards, are numbered with those of what runs them."""

    def derived(x):
        return jax.grad(lambda x: 2 * fun(2 * x).sum())(x)

    fun_of_batch = jax.vmap(derived) if batched else derived
    x = jnp.arange(8.0).reshape(4, 2) if batched else jnp.arange(2.0)

    at = lambda point: point.backward and point.kind == "primitive" and not point.obstacle  # noqa: E731
    at_once = spooled(lox.watch(fun_of_batch, at=at, what=values_of), x)[1]
    jitted = spooled(lox.watch(jax.jit(fun_of_batch), at=at, what=values_of), x)[1]
    assert len(at_once) > 5 and set(at_once) == {key.removeprefix("derived/") for key in jitted}
    for key, values in jitted.items():
        assert len(values) == 1
        np.testing.assert_allclose(at_once[key.removeprefix("derived/")], values, rtol=1e-6)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_scope_on_shards_gives_the_cotangents_that_leave_it(transform):
    x = jnp.arange(4.0)
    derived = transform(jax.grad(lambda x: 3 * _sine_on_shards(x).sum()))
    out, logs = spooled(lox.watch(derived, at="**/backward/layer", what=values_of), x)
    (values,) = logs.values()
    np.testing.assert_allclose(values.reshape(-1), 6 * jnp.cos(2 * x), rtol=1e-6)
    np.testing.assert_allclose(out, 6 * jnp.cos(2 * x), rtol=1e-6)


def test_what_jax_computes_where_nobody_watches_is_not_of_the_program():
    """`jnp.ones_like` of an array on several devices slices arrays of its own, in a callback."""
    fun = _on_shards(lambda x: jnp.ones_like(x) * x)
    x = jnp.arange(4.0)
    out, _ = lox.spool(lox.watch(fun, at=lambda point: not point.obstacle))(x)
    np.testing.assert_array_equal(out, x)


@pytest.mark.parametrize("outside", [False, True], ids=["jit", "jit of vmap"])
def test_the_backward_pass_of_a_scope_that_maps_its_values_is_watched(outside):
    """A vmap in the scope: its axis is one of the program. One around is no axis of an event."""

    def net(weights, x):
        for _ in range(2):
            with jax.named_scope("layer"):
                x = jax.vmap(lambda row: jnp.tanh(weights @ row))(x)
        return x

    weights, x = jnp.eye(3) / 2, jnp.arange(6.0).reshape(2, 3) / 6
    first = net(weights, x)
    derived = jax.grad(lambda x: net(weights, x).sum())
    at = lambda point: point.backward and point.name == "layer" and not point.obstacle  # noqa: E731
    if outside:
        _, logs = lox.spool(lox.watch(jax.jit(jax.vmap(derived)), at=at, what=values_of))(jnp.stack([x, x * 0]))
        assert not logs
        return
    out, logs = lox.spool(lox.watch(jax.jit(derived), at=at, what=values_of))(x)
    assert first.shape == out.shape
    (outer,) = (logs[key] for key in logs if "layer[1]" in key)
    np.testing.assert_allclose(outer[0], (1 - first**2) @ weights, rtol=1e-6)
    (inner,) = (logs[key] for key in logs if "layer[1]" not in key)
    np.testing.assert_allclose(inner[0], out, rtol=1e-6)


def test_a_scope_that_is_never_left_gives_its_results_to_the_one_around():
    def steps(x):
        with jax.named_scope("inner"):
            yield x + 1
            yield x + 2

    def fun(x):
        with jax.named_scope("outer"):
            unfinished = steps(x)
            x = 2 * next(unfinished)
        return x

    watched = lox.watch(fun, at="**", what=values_of)
    with ThreadPoolExecutor(1) as thread:  # JAX keeps the scope as long as the thread.
        out, logs = thread.submit(spooled, watched, jnp.float32(1)).result()
    assert list(logs) == ["outer/0"] and logs["outer/0"][0] == out == 4


@pytest.mark.parametrize("jitted", ["", "inside", "outside"])
def test_contexts_add_to_points_as_to_log_calls(jitted):
    def program(step):
        def fun(x):
            def body(c, i):
                with lox.context(step=i, prefix="in/", tags="mine"):
                    return step(c), None

            return jax.lax.scan(body, x, jnp.arange(3))[0]

        return fun

    def with_log(x):
        return lox.log({"scan/scope/0": jnp.sin(x)})["scan/scope/0"]

    def run(fun):
        fun = jax.jit(lox.spool(fun, tags="mine")) if jitted == "outside" else lox.spool(fun, tags="mine")
        return lox.context(episode=7, prefix="out/")(fun)(jnp.float32(1))

    step = scoped("scope", jnp.sin)
    watched = lox.watch(program(jax.jit(step) if jitted == "inside" else step), at="**/scope", what=values_of)
    (out, logs), (expected, by_hand) = run(watched), run(program(with_log))
    assert same(out, expected) and logs == by_hand and logs.steps["episode"]["out/in/scan/scope/0"].tolist() == [7] * 3


def test_a_context_adds_to_the_point_of_a_jitted_function_that_has_none_in_it():
    call = jax.jit(lambda x: x + 1)
    fun = lox.context(prefix="in/", tags="mine", epoch=3)(lambda x: call(x))
    _, logs = lox.spool(lox.watch(fun, at="**", what=values_of), tags="mine")(jnp.float32(1))
    assert list(logs) == ["in/<lambda>/0"] and logs.steps["epoch"]["in/<lambda>/0"].tolist() == [3]


def test_a_pullback_that_is_called_when_the_watch_is_over_logs_nothing():
    (out, pull_back), logs = spooled(
        lox.watch(lambda x: jax.vjp(sine, x), at=lambda point: point.name == "bwd"), jnp.float32(1)
    )
    assert not logs and pull_back(out) == jax.jit(pull_back)(out) == (jnp.cos(1.0) * out,)


def test_a_function_is_compiled_once_however_often_it_is_watched(caplog):
    """In each call of a loop in Python that watches the function anew, with its backward pass, too."""
    step = jax.jit(jax.value_and_grad(net))

    def run():
        return spooled(lox.watch(step, at=["**/dense", "**/net"]), PARAMS, X)[1]

    assert len(run()) > 20
    with jax.log_compiles():
        run()
        run()
    assert "Compiling" not in caplog.text


@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["as it is", "grad"])
def test_a_tap_in_a_function_whose_points_are_not_selected_gets_its_events(transform):
    seen = []

    @jax.jit
    def fun(x):
        with jax.named_scope("scope"):
            x = jnp.sin(x)
        lox.tap(lambda x: lox.log({"mine": x})["mine"], lambda logs: seen.append(logs["mine"].tolist()))(x)
        return x

    spooled(lox.watch(lambda x: transform(fun)(x), at=lambda point: False), jnp.float32(0))
    lox.flush()
    assert seen == [[0.0]]


def test_the_points_of_a_watched_function_are_not_its_primitives():
    for at in ("**/tanh", lambda point: point.kind != "scope"):
        assert [point.path for point in lox.points(lox.watch(net, at=at))(PARAMS, X)] == [
            "net/dense",
            "net/dense[1]",
            "net",
        ]


def test_a_watch_around_another_sees_points_that_the_other_does_not():
    def f(x):
        return jax.lax.scan(lambda c, _: (c + 1, None), jnp.tanh(x), length=2)[0]

    inner = lox.watch(f, at="scan", what=values_of, prefix="inner/")
    _, logs = spooled(lox.watch(lambda x: inner(x), at="**/tanh", what=values_of, prefix="outer/"), jnp.float32(0))
    assert {key: values.tolist() for key, values in logs.items()} == {"inner/scan/0": [1, 2], "outer/tanh/0": [0]}


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_watch_in_another_selects_operations_of_which_the_other_has_none(transform):
    def inner(x):
        return jnp.sin(jnp.cos(x)) + 1

    def f(xs):
        y = lox.watch(inner, at="sin", prefix="inner/")(jnp.exp(xs[0]))
        y = lox.watch(jnp.cos, at="cos", prefix="second/")(y)
        return jax.lax.scan(lambda c, x: (c + jnp.tanh(x), None), y, xs)[0]

    xs = jnp.arange(3.0)
    cos = float(jnp.cos(1.0))
    sin = float(jnp.sin(cos))
    for at, outer in (("scan", ["scan/value"]), ("exp", ["exp/value"]), (["scan", "exp"], ["exp/value", "scan/value"])):
        out, logs = lox.spool(transform(lox.watch(f, at=at)))(xs)
        assert sorted(logs) == sorted([*outer, "inner/sin/value", "second/cos/value"])
        np.testing.assert_allclose(logs["inner/sin/value"], [sin], rtol=1e-6)
        np.testing.assert_allclose(logs["second/cos/value"], [np.cos(sin + 1)], rtol=1e-6)
        np.testing.assert_allclose(out, f(xs), rtol=1e-6)


def test_each_branch_with_a_loop_has_a_number_also_the_third():
    def f(i, x):
        loops = [lambda x, by=by: jax.lax.scan(lambda c, _: (c + by, None), x, length=2)[0] for by in (1, 10, 100)]
        return jax.lax.switch(i, loops, x)

    paths = ["cond/scan", "cond/scan[1]", "cond/scan[2]"]
    assert [point.path for point in lox.points(f)(2, 0.0)] == [*paths, "cond"]
    _, logs = spooled(lox.watch(f, at="cond/scan", what=values_of), 2, 0.0)
    assert [logs.valid(f"{path}/0").tolist() for path in paths] == [[], [], [100, 200]]


# -- what points and their logs say of themselves --------------------------------------------------------------------


def of_all_kinds(x):
    @jax.jit
    def call(x):
        return jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, x)

    with jax.named_scope("scope"):
        x = x + 1
    x = jax.lax.cond(x > 0, lambda x: call(x), jnp.cos, x)
    return jax.lax.scan(lambda c, _: (call(c), None), x, None, length=2)[0]


def line_of(function, text):
    """The number of the line of a function that has a text."""
    lines, first = inspect.getsourcelines(function)
    (found,) = (number for number, line in enumerate(lines, first) if text in line)
    return found


KINDS = {
    "scope": ("scope", "with jax.named_scope", "of_all_kinds"),
    "cond/call/while": ("while", "while_loop", "call"),
    "cond/call": ("call", "jax.lax.cond", "<lambda>"),
    "cond": ("cond", "jax.lax.cond", "of_all_kinds"),
    "scan/call/while": ("while", "while_loop", "call"),
    "scan/call": ("call", "jax.lax.scan", "<lambda>"),
    "scan": ("scan", "jax.lax.scan", "of_all_kinds"),
}


def test_a_point_says_its_kind_name_line_and_function():
    expected = [
        (path, kind, path.split("/")[-1], __file__, line_of(of_all_kinds, text), function, False, "")
        for path, (kind, text, function) in KINDS.items()
    ]
    assert [dataclasses.astuple(point) for point in lox.points(of_all_kinds)(jnp.float32(1))] == expected
    found = []
    spooled(lox.watch(of_all_kinds, at=found.append), jnp.float32(1), max_iters=4)
    primitives = {(point.path, point.name) for point in found if point.kind == "primitive"}
    assert primitives >= {("scope/add", "add"), ("cond/call/while/lt", "lt"), ("cond/cos", "cos")}


def test_points_print_as_a_table():
    batched = jax.jit(jax.vmap(jax.grad(lambda x: scoped("a", jnp.sin)(x))))
    points = lox.points(batched)(X[0])
    (backward,) = (point for point in points if point.backward)
    rows = [
        (point.path, point.kind, f"{__file__}:{point.line}")
        if point is not backward
        else (point.path, point.kind, f"{__file__}:{point.line} (cannot be watched: {point.obstacle})")
        for point in points
    ]
    widths = [max(map(len, column)) for column in zip(*rows, ("path", "kind", "line"), strict=True)]
    header, rule, *lines = str(points).splitlines()
    assert [header, *lines] == [
        f"{path:{widths[0]}}  {kind:{widths[1]}}  {line}" for path, kind, line in [("path", "kind", "line"), *rows]
    ]
    assert rule == "-" * max(map(len, lines)) and len(rows) == 3 and backward.obstacle
    assert repr(points) == str(points) and str(lox.points(jnp.sin)(1.0)) == "no points"


PATTERNS = {
    "outer": {"outer", "outer[1]"},
    "outer[0]": {"outer"},
    "outer[0]/a": {"outer/a", "outer/a[1]"},
    "outer/a[0]": {"outer/a", "outer[1]/a"},
    "outer[0]/a[1]": {"outer/a[1]"},
    "*": {"outer", "outer[1]", "scan"},
    "**/a": {"outer/a", "outer/a[1]", "outer[1]/a", "scan/a", "scan/scan/a"},
    "a": set(),
    "scan/**": {"scan/a", "scan/scan", "scan/scan/a"},
    "scan/**/a": {"scan/a", "scan/scan/a"},
    "**/sc*/a": {"scan/a", "scan/scan/a"},
    "scan/*/a": {"scan/scan/a"},
    "**/sin": {f"{path}/sin" for path in ("outer/a", "outer/a[1]", "outer[1]/a", "scan/a", "scan/scan/a")},
    "**/s*n": {"scan", "scan/scan"},
}


def test_each_pattern_selects_the_points_that_it_says():
    a = scoped("a", jnp.sin)

    def fun(x):
        x = scoped("outer", lambda x: a(a(x)))(x)
        x = scoped("outer", a)(x)

        def step(x, _):
            return jax.lax.scan(lambda x, _: (a(x), None), a(x), None, length=2)

        return jax.lax.scan(step, x, None, length=2)[0]

    for pattern, expected in PATTERNS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", lox.SelectionWarning)
            _, logs = spooled(lox.watch(fun, at=["nothing", pattern], what=values_of), jnp.float32(0.5))
        assert {key.removesuffix("/0") for key in logs} == expected, pattern
        assert all(len(logs[key]) == 4 for key in logs if "scan/scan/" in key)


def test_what_gets_all_values_of_a_call_in_their_order():
    many = jax.jit(lambda x: tuple(x + number for number in range(12)))
    _, logs = spooled(lox.watch(lambda x: many(x), at="<lambda>", what=values_of), jnp.float32(0))
    assert {key: value.tolist() for key, value in logs.items()} == {f"<lambda>/{n}": [n] for n in range(12)}
    with pytest.raises(ZeroDivisionError) as raised:
        spooled(lox.watch(lambda x: many(x), at="<lambda>", what=lambda point, values: 1 // 0), jnp.float32(0))
    assert raised.value.__notes__[0].endswith("for 12 values of '<lambda>'.")


def test_statistics_of_values_of_all_kinds():
    floats = np.float32([1, np.nan, -np.inf, 3])
    halves, integers = jnp.array([1, 2, 6], jnp.bfloat16), np.int16([-5, 2, 2, 9])
    flags, complexes = np.array([True, True, False]), np.complex64([3 + 4j, 0, -1j])
    values = (
        jax.random.key(0),
        floats,
        np.zeros((0, 3)),
        halves,
        integers,
        flags,
        complexes,
        np.int8(7),
        np.float32(2),
    )
    fun = jax.jit(lambda *values: values)
    _, logs = spooled(lox.watch(lambda *values: fun(*values), at="<lambda>"), *values)
    found = {key.removeprefix("<lambda>/"): value[0] for key, value in logs.items()}
    expected = {"7": np.int8(7), "8": np.float32(2)}
    for number, array, of in ((1, floats, floats), (3, halves, halves), (4, integers, integers), (5, flags, flags)):
        precise = np.asarray(of, np.float32)
        with np.errstate(all="ignore"):
            expected |= {f"{number}/mean": precise.mean(), f"{number}/std": precise.std()}
        expected |= {f"{number}/min": np.asarray(array).min(), f"{number}/max": np.asarray(array).max()}
    sizes = np.float32([5, 0, 1])
    expected |= {"6/mean": sizes.mean(), "6/std": sizes.std(), "6/min": sizes.min(), "6/max": sizes.max()}
    expected |= {"1/nonfinite": np.int32(2), "3/nonfinite": np.int32(0), "6/nonfinite": np.int32(0)}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == value.dtype, key
        np.testing.assert_allclose(np.float32(found[key]), np.float32(value), rtol=1e-6, err_msg=key)
    _, logs = spooled(lox.watch(lambda *values: fun(*values), at="<lambda>"), jax.random.key(0), np.int8(7))
    assert list(logs) == ["<lambda>/1"]
    with jax.enable_x64(True):
        _, logs = spooled(lox.watch(scoped("x", jnp.negative), at="x"), jnp.array([1.0, 1 + 1e-12]))
        assert logs["x/mean"].dtype == np.float64 and 4e-13 < logs["x/std"][0] < 6e-13


def test_a_watched_point_is_a_site_of_its_line_tags_and_number_of_events():
    watched = lox.watch(of_all_kinds, at=["scope", "scan", "cond/call"], what=values_of, tags=["t", "u"], prefix="p/")
    sites = lox.sites(lox.context(tags="around", prefix="c/")(watched))(jnp.float32(1))
    assert [(site.keys, site.path, site.count, site.tags, site.file, site.line) for site in sites] == [
        (("c/p/scope/0",), "", "1", ("around", "t", "u"), __file__, line_of(of_all_kinds, "with jax.named_scope")),
        (
            ("c/p/cond/call/0",),
            "cond[1]",
            "at most 1",
            ("around", "t", "u"),
            __file__,
            line_of(of_all_kinds, "jax.lax.cond"),
        ),
        (("c/p/scan/0",), "scan[2]", "2", ("around", "t", "u"), __file__, line_of(of_all_kinds, "jax.lax.scan")),
    ]
    (site,) = lox.sites(lox.watch(of_all_kinds, at="scan"))(jnp.float32(1))
    assert (site.keys, site.tags, site.bytes) == (("scan/value",), ("watch",), 8)


def test_what_is_no_function_of_a_line_is_refused_at_the_line_of_the_point():
    class What:
        def __call__(self, point, values):
            return 3

    with pytest.raises(lox.LogDataError) as raised:
        spooled(lox.watch(of_all_kinds, at="scan", what=What()), 1.0)
    line = line_of(of_all_kinds, "jax.lax.scan")
    assert str(raised.value).endswith(f"for 'scan', at {__file__}:{line} (of_all_kinds).")


def test_a_function_without_points_or_of_many_says_so_of_a_pattern_that_matches_none():
    with pytest.warns(
        lox.SelectionWarning, match="'x' in at= of lox.watch selects nothing: the function has no points."
    ):
        spooled(lox.watch(jnp.sin, at="x"), 1.0)
    with pytest.warns(lox.SelectionWarning, match=r"it is none of the points of the function: 'cond', 'cond/call', "):
        spooled(lox.watch(of_all_kinds, at="x"), 1.0, max_iters=4)


def test_a_scope_that_an_exception_leaves_is_no_point():
    def f(x):
        with contextlib.suppress(ValueError), jax.named_scope("attempt"):
            x = jnp.sin(x)
            raise ValueError
        return x

    assert lox.points(f)(1.0) == []
