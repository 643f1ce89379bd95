"""Lanes and shards: `pmap`, what the types of JAX track, and what an audit does not claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import f32
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

import lox

P = PartitionSpec
MESH = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
W, X = f32(3), f32(8, 3)


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def codes(fun, *args, **options):
    return [finding.code for finding in lox.audit(fun, **options)(*args).at_least("warning")]


def sharded(fun, in_specs=(P(), P("data")), out_specs=P(), check=False, mesh=MESH):
    return jax.shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check)


def loss(w, x):
    return ((x @ w) ** 2).mean()


def mean_loss(w, x):
    return lax.pmean(loss(w, x), "data")


def test_of_pmap_a_result_without_an_axis_is_the_same_on_all_devices():
    def step(w, x, average):
        grads = jax.grad(loss)(w, x)
        return w - 0.1 * (lax.pmean(grads, "data") if average else grads)

    def train(w, x, average):
        parallel = jax.pmap(lambda w, x: step(w, x, average), axis_name="data", in_axes=(None, 0), out_axes=None)
        return parallel(w, x)

    assert codes(lambda w, x: train(w, x, False), W, f32(4, 8, 3)) == ["LOX300"]
    assert codes(lambda w, x: train(w, x, True), W, f32(4, 8, 3)) == []


def test_in_pmap_gradients_through_a_collective_are_not_summed_again():
    def gradient(w, x, reduce):
        step = lambda w, x: reduce(jax.grad(mean_loss)(w, x), "data")  # noqa: E731
        return jax.pmap(step, axis_name="data", in_axes=(None, 0), out_axes=None)(w, x)

    assert codes(lambda w, x: gradient(w, x, lax.psum), W, f32(4, 8, 3)) == ["LOX303"]
    assert codes(lambda w, x: gradient(w, x, lax.pmean), W, f32(4, 8, 3)) == []


@pytest.mark.parametrize(
    ("code", "check", "times", "gradient"),
    [
        ("LOX302", True, 4, lambda w, x: lax.pmean(jax.grad(loss)(w, x), "data")),
        ("LOX303", False, 4, lambda w, x: lax.psum(jax.grad(mean_loss)(w, x), "data")),
        ("LOX301", True, 4, lambda w, x: lax.psum(jax.grad(mean_loss)(w, x), "data")),
        ("", True, 1, lambda w, x: jax.grad(mean_loss)(w, x)),
        ("", True, 1, lambda w, x: lax.pmean(jax.grad(mean_loss)(w, x), "data")),
        ("", False, 1, lambda w, x: lax.pmean(jax.grad(loss)(w, x), "data")),
        ("", False, 1, lambda w, x: lax.pmean(jax.grad(mean_loss)(w, x), "data")),
    ],
)
def test_gradients_that_are_found_are_as_many_times_too_large_as_there_are_shards(code, check, times, gradient):
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",), axis_types=(AxisType.Auto,))
    w, x = jnp.arange(3.0), jnp.sin(jnp.arange(24.0)).reshape(8, 3)
    fun = sharded(gradient, check=check, mesh=mesh)
    assert codes(fun, w, x) == ([code] if code else [])
    np.testing.assert_allclose(fun(w, x), times * jax.grad(loss)(w, x), rtol=1e-5)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("reduce", [lax.psum, lax.pmean])
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        jax.grad,
        jax.hessian,
        lambda f: jax.jit(jax.value_and_grad(f)),
        lambda f: lambda w, x: jax.vmap(f, in_axes=(0, None))(jnp.stack([w, w]), x),
        lambda f: lambda w, x: lax.scan(lambda w, _: (w - jax.grad(f)(w, x), None), w, length=3)[0],
        lambda f: lambda w, x: jax.jvp(f, (w, x), (w, x)),
    ],
    ids=["plain", "grad", "hessian", "jit", "vmap", "scan", "jvp"],
)
def test_transformations_of_a_sharded_function_are_right(transform, reduce, check):
    fun = sharded(lambda w, x: reduce(loss(w, x), "data"), check=check)
    assert codes(transform(fun), W, X) == []


@pytest.mark.parametrize(
    "total",
    [
        lambda x: lax.all_gather(lax.psum_scatter(jnp.ones(4) * x.sum(), "data", tiled=True), "data", tiled=True),
        lambda x: lax.fori_loop(0, 3, lambda _, t: t + lax.psum(x.sum() * t, "data"), 0.0),
        lambda x: lax.while_loop(lambda t: t < 9, lambda t: t + lax.pmax(x.max(), "data"), 0.0),
        lambda x: lax.cond(lax.psum(x.sum(), "data") > 0, lambda: 1.0, lambda: 2.0),
        lambda x: lax.all_to_all(jnp.ones(4) * x.sum(), "data", 0, 0, tiled=True).sum(),
        lambda x: lax.psum(jnp.where(lax.axis_index("data") == 0, x.sum(), 0.0), "data"),
    ],
)
def test_what_was_reduced_in_other_ways_is_not_said_to_differ(total):
    assert codes(sharded(total, P("data")), X) == []


@pytest.mark.parametrize(
    "part",
    [
        lambda x: lax.fori_loop(0, 3, lambda _, t: t + x.sum(), 0.0),
        lambda x: lax.while_loop(lambda t: t < x.max(), lambda t: t + 1, 0.0),
        lambda x: lax.cond(x.sum() > 0, lambda: 1.0, lambda: 2.0),
        lambda x: lax.fori_loop(0, 3, lambda _, carry: (carry[1], x.sum()), (0.0, 0.0))[0],
        lambda x: jax.checkpoint(jnp.sum)(jnp.tanh(x)),
        lambda x: lax.psum(x.sum(), "data") + lax.axis_index("data"),
    ],
)
def test_what_differs_is_followed_through_control_flow(part):
    assert codes(sharded(part, P("data")), X) == ["LOX300"]


def test_what_a_reference_holds_is_not_known():
    def total(w, x):
        ref = jax.new_ref(w)
        ref[...] += x.mean(axis=0)
        return lax.psum(ref[...], "data")

    assert codes(sharded(total), W, X) == []


def test_a_carry_that_differs_after_the_first_iteration_is_summed_with_right():
    def run(w, x):
        def step(carry, row):
            return carry + row, 2 * lax.psum(carry, "data")

        return lax.scan(step, w, x)[1]

    assert codes(sharded(run), W, X) == []


def test_a_sum_within_a_jitted_function_may_be_divided_outside():
    total = jax.jit(lambda w: lax.psum(w, "data"))
    assert codes(sharded(lambda w, x: total(w) / 4 + lax.pmean(x.sum(), "data")), W, X) == []


def test_a_metric_of_a_loss_that_is_dropped_is_no_mistake():
    def step(w, x):
        def with_metrics(w):
            value = loss(w, x)
            return value, lax.pmean(value, "data")

        (value, _), grads = jax.value_and_grad(with_metrics, has_aux=True)(w)
        return w - lax.pmean(grads, "data"), lax.pmax(value, "data")

    assert codes(sharded(step), W, X) == []


def test_a_quotient_is_of_two_sums():
    assert codes(sharded(lambda x: lax.pmean(x.max() / x.sum(), "data"), P("data")), X) == []
    assert codes(sharded(lambda x: lax.pmean(x.sum() / (x**2).sum(), "data"), P("data")), X) == ["LOX305"]


@pytest.mark.parametrize(
    "lane",
    [
        lambda w, x: lax.pmean(w, "lane") * x,
        lambda w, x: lax.psum(jnp.ones(3), "lane") * x,
        lambda w, x: lax.psum(x, "lane") * w,
        lambda w, x: lax.pmax(w, "lane") * x,
        lambda w, x: jax.grad(lambda x: lax.psum(w * x, "lane").sum())(x),
    ],
)
def test_what_is_summed_over_lanes_is_not_always_multiplied(lane):
    assert codes(lambda w, xs: jax.vmap(lambda x: lane(w, x), axis_name="lane")(xs), W, f32(5, 3)) == []


def test_lanes_that_are_alike_by_constants_or_passed_through_are_no_mistake():
    assert codes(lambda w, xs: (w, jax.vmap(lambda x: jnp.ones(3) * 2 + jnp.cos(1.0))(xs)), W, f32(5, 3)) == []

    def passed(w, xs):
        scale = jnp.exp(w)
        return jax.vmap(lambda x: scale)(xs)

    assert codes(passed, W, f32(5, 3)) == []


def test_lanes_that_are_alike_are_no_matter_where_something_else_is_mapped_than_what_is_unused():
    def rollout(config, states, actions):
        def step(state, action):
            return {"state": state + action, "config": config, "bound": 2 * config, "time": 0.0}

        return jax.vmap(step)(states, actions)

    assert codes(rollout, f32(16), f32(16, 3), f32(16, 3)) == []
    assert codes(lambda spare, *args: rollout(*args), f32(16), f32(16), f32(16, 3), f32(16, 3)) == []


def test_a_mapped_argument_that_reaches_only_an_unused_argument_of_a_jitted_function_is_unused():
    lane = jax.jit(lambda x, w: (w**2).sum(), keep_unused=True)
    assert codes(lambda w, xs: jax.vmap(lane, in_axes=(0, None))(xs, w), W, f32(16, 3)) == ["LOX310"]


def total(x):
    return x.sum(0)


def moved(fun, **axes):
    sizes = {"batch": 4, "time": 5, None: 3}
    args = {name: f32(*map(sizes.get, labels)) for name, labels in axes.items()}
    report = lox.audit(fun, axes=axes)(**args)
    said = (report.at_least("info"), report.verified)
    return tuple([finding.message for finding in findings if finding.code == "LOX312"] for findings in said)


def test_a_line_that_goes_over_another_axis_under_vmap_is_told():
    found, _ = moved(lambda x, y: (total(x), jax.vmap(total)(y)), x=("batch",), y=("batch", "time"))
    assert found == [
        "'sum' goes over batch in a direct call, and over time in a call under vmap, which maps over batch."
    ]
    by_two = lambda x, y: (total(x), jax.vmap(total, 1)(y))  # noqa: E731
    assert moved(by_two, x=("batch",), y=("batch", "time"))[0] == []
    assert moved(by_two, x=("batch",), y=("batch", "time"))[1]
    assert moved(lambda x, y: (x.sum(0), jax.vmap(total)(y)), x=("batch",), y=("batch", "time"))[0] == []
    assert moved(lambda x, y: (total(x), total(y.T)), x=("batch",), y=("batch", "time"))[0] == []
    assert moved(lambda x, y: (total(x), jax.vmap(total)(y)), x=("batch",), y=(None, "time"))[0] == []
    assert moved(lambda x, y: (total(x), jax.vmap(total)(y)), x=(None,), y=("batch", "time"))[0] == []


def paired(fun, *labels):
    sizes = {"env": 4, "action": 4, "other": 4, "step": 3}
    args = [
        jax.ShapeDtypeStruct(tuple(map(sizes.get, each)), jnp.float32 if place == 0 else jnp.int32)
        for place, each in enumerate(labels)
    ]
    report = lox.audit(fun, axes=dict(zip("vab", labels, strict=False)))(*args)
    return tuple("LOX311" in [finding.code for finding in found] for found in (report.issues, report.verified))


EA, E = ("env", "action"), ("env",)


@pytest.mark.parametrize(
    ("fun", "right", "wrong"),
    [
        (lambda v, a: v[jnp.arange(4), a], EA, ("action", "env")),
        (lambda v, a: v[a, jnp.arange(4)], ("action", "env"), EA),
        (lambda v, a: v[jnp.arange(4, dtype=jnp.int16), a.astype(jnp.int8)], EA, ("action", "env")),
        (lambda v, a: v[jax.lax.iota(jnp.int32, 4), a + 1], EA, ("action", "env")),
        (lambda v, a: v[jnp.arange(4)[:, None], a[:, None]], EA, ("action", "env")),
        (lambda v, a: v.at[jnp.arange(4), a].add(1), EA, ("action", "env")),
        (lambda v, a: v.at[jnp.arange(4), a].set(0), EA, ("action", "env")),
    ],
)
def test_indices_that_count_pair_axes(fun, right, wrong):
    assert paired(fun, right, E) == (False, True)
    assert paired(fun, wrong, E) == (True, False)


@pytest.mark.parametrize(
    "fun",
    [
        lambda v, a: v[jnp.arange(4) + 1, a],
        lambda v, a: v[jnp.arange(4)[::-1], a],
        lambda v, a: v[jnp.arange(3), a[:3]],
        lambda v, a: v[jnp.where(a > 0, jnp.arange(4), 0), a],
        lambda v, a: v[lax.select(a > 0, jnp.zeros(4, int), jnp.arange(4)), a],
        lambda v, a: v[jnp.zeros(4, int), a],
        lambda v, a: v[a, a],
        lambda v, a: v[jnp.arange(4)[:, None], a[None]],  # Each element with each index.
    ],
)
def test_other_indices_pair_nothing(fun):
    assert paired(fun, ("action", "other"), E) == (False, False)


@pytest.mark.parametrize(
    ("found", "written"),
    [
        (1, lambda w, xs: jax.vmap(jax.value_and_grad(lambda w, x: (xs @ w).sum()), in_axes=(None, 0))(w, xs)),
        (1, lambda w, xs: jax.vmap(lambda x: lax.map(lambda row: row @ w, xs))(xs)),
        (0, lambda w, xs: jax.vmap(lambda w, x: (xs @ w).sum(), in_axes=(0, None))(jnp.stack([w, w]), xs)),
        (0, lambda w, xs: jax.vmap(lambda x: jax.vmap(lambda other: (x - other) @ w)(xs))(xs)),
        (0, lambda w, xs: jax.vmap(lambda _: (xs @ w).sum())(xs)),
    ],
    ids=["derivative", "loop", "shared", "pairs", "said"],
)
def test_a_mapped_function_reads_its_element_or_says_by_its_name_that_it_does_not(found, written):
    assert codes(written, W, f32(16, 3)).count("LOX313") == found


def test_of_several_calls_of_a_mapped_function_the_one_is_found_that_is_given_what_it_reads():
    def losses(w, xs, ys):
        @jax.vmap
        def loss(x, y):
            return (x @ w).sum() - xs.mean() - ys.mean() + 0 * y

        @jax.vmap
        def of_all(x, y):
            return (x @ w).sum() - ys.mean()

        return loss(xs, ys), of_all(xs, ys)

    findings = lox.audit(losses)(W, f32(16, 3), f32(16)).warnings
    assert ["ys" in finding.message and "of_all" in finding.message for finding in findings] == [True]


def summed_gradients(then=lambda grads: grads, also=lambda x: None, reduce=lax.psum, average=lax.pmean):
    """The codes of a step in parts that sums gradients and averages their loss."""

    def step(w, x):
        value, grads = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * then(reduce(grads, "data")), average(value, "data"), also(x)

    parts = jax.vmap(step, in_axes=(None, 0), out_axes=None, axis_name="data")
    return codes(parts, W, f32(4, 8, 3))


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, ["LOX307"]),
        ({"then": lambda grads: 3 * jnp.clip(grads, -1, 1)}, ["LOX307"]),
        ({"also": lambda x: lax.pmean(x.mean(axis=0), "data")}, ["LOX307"]),
        ({"also": lambda x: lax.psum(x.mean(axis=0), "data")}, []),
        ({"also": lambda x: lax.pmax(x.max(axis=0), "data")}, []),
        ({"then": lambda grads: grads / 4}, []),
        ({"then": lambda grads: grads * 0.25}, []),
        ({"then": lambda grads: grads / 8}, ["LOX307"]),
        ({"reduce": lambda grads, name: lax.psum(grads / lax.axis_size(name), name)}, []),
        ({"reduce": lax.pmean}, []),
        ({"average": lax.psum}, []),
    ],
    ids=["summed", "scaled", "means", "parts", "maxima", "divided", "times", "by eight", "before", "mean", "sums"],
)
def test_gradients_of_an_averaged_loss_are_summed_if_nothing_divides_them_by_the_number_of_shards(options, found):
    assert summed_gradients(**options) == found


def test_gradients_that_are_divided_by_a_number_that_is_not_known_may_be_averages():
    def step(w, x, count):
        value, grads = jax.value_and_grad(loss)(w, x)
        return w - 0.1 * lax.psum(grads, "data") / count, lax.pmean(value, "data")

    parts = jax.vmap(step, in_axes=(None, 0, None), out_axes=None, axis_name="data")
    assert codes(parts, W, f32(4, 8, 3), f32()) == []
