"""Logs of values that a mesh is spread over: they stay where they are, and nothing is sent for them."""

import contextlib
import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lox

COLLECTIVES = re.compile(r"[ )](all-gather|all-reduce|reduce-scatter|collective-permute|all-to-all)(?:-start)?\(")
STEPS = 6


@pytest.fixture(params=["Auto", "Explicit"])
def arrays(request):
    """Weights that all devices have, and a batch that is spread over them."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(getattr(AxisType, request.param),))
    with jax.set_mesh(mesh) if request.param == "Explicit" else contextlib.nullcontext():
        w = jax.device_put(np.ones(3, np.float32), NamedSharding(mesh, P()))
        x = jax.device_put(np.arange(24, dtype=np.float32).reshape(8, 3) / 24, NamedSharding(mesh, P("data")))
        yield w, x


def collectives(fun, *args):
    """How often a compiled program has devices talk to each other, by what they do."""
    return Counter(COLLECTIVES.findall(jax.jit(fun).lower(*args).compile().as_text()))


def loss(w, x):
    return jnp.mean((x @ w - 1) ** 2)


def values(w, x):
    """A step of training, and what is to be known of it."""
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * gradient, {"loss": value, "residuals": x @ w - 1, "gradient": gradient}


def train(w, x):
    def step(w, _):
        w, logged = values(w, x)
        lox.log(logged)
        return w, None

    return jax.lax.scan(step, w, length=STEPS)[0]


def by_hand(w, x):
    return jax.lax.scan(lambda w, _: values(w, x), w, length=STEPS)


def spooled(fun, **options):
    def run(*args):
        out, logs = lox.spool(fun, **options)(*args)
        return out, logs.data

    return run


OPTIONS = ({}, {"interval": 2}, *({"reduce": how} for how in ("last", "mean", "max", "min", "sum")))


@pytest.mark.optimized
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_logs_keep_their_sharding_and_need_no_more_collectives_than_by_hand(arrays, options):
    expected = collectives(by_hand, *arrays)
    assert expected == {"all-reduce": 1}
    assert collectives(spooled(train, **options), *arrays) == expected
    _, logs = jax.jit(spooled(train, **options))(*arrays)
    mesh = arrays[0].sharding.mesh
    for key, axes in (("loss", 0), ("gradient", 1), ("residuals", 1)):
        spec = P(None, "data") if key == "residuals" else P()
        assert logs[key].sharding.is_equivalent_to(NamedSharding(mesh, spec), 1 + axes), key
        assert len(logs[key].addressable_shards) == 4


@pytest.mark.optimized
def test_logs_of_a_derivative_and_of_a_batch_are_spread_as_what_they_are_of(arrays):
    def batch(w, x):
        def of_one(x):
            lox.log({"prediction": x @ w})
            return (x @ w - 1) ** 2

        return jax.vmap(of_one)(x).mean()

    def by_hand(w, x):
        def of_one(x):
            return (x @ w - 1) ** 2, x @ w

        values, predictions = jax.vmap(of_one)(x)
        return values.mean(), predictions

    expected = collectives(jax.grad(by_hand, has_aux=True), *arrays)
    found = jax.grad(spooled(batch), has_aux=True)
    assert collectives(found, *arrays) == expected
    _, logs = jax.jit(found)(*arrays)
    assert logs["prediction"].shape == (1, 8)
    assert logs["prediction"].sharding.shard_shape((1, 8)) == (1, 2)


@pytest.mark.optimized
def test_logs_of_a_while_loop_are_spread_too(arrays):
    def descend(w, x):
        def step(state):
            count, w = state
            w, logged = values(w, x)
            lox.log(logged)
            return count + 1, w

        return jax.lax.while_loop(lambda state: state[0] < 4, step, (0, w))[1]

    found = collectives(spooled(descend, max_iters=STEPS), *arrays)
    assert found == collectives(by_hand, *arrays)
    _, logs = jax.jit(spooled(descend, max_iters=STEPS))(*arrays)
    assert logs["residuals"].sharding.shard_shape((STEPS, 8)) == (STEPS, 2)


def test_a_tap_gets_the_whole_of_what_is_spread(arrays):
    arrived = []
    out = jax.jit(lox.tap(train, arrived.append))(*arrays)
    lox.flush()
    np.testing.assert_allclose(out, by_hand(*arrays)[0], rtol=1e-5)
    residuals = np.concatenate([logs["residuals"] for logs in arrived])
    np.testing.assert_allclose(residuals, by_hand(*arrays)[1]["residuals"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transform", [lox.spool, lox.progress, lambda fun: lox.tap(fun, print)])
def test_a_program_sets_its_mesh_under_a_handler_as_without(transform):
    mesh = jax.make_mesh((4,), ("i",))

    def fun(x):
        with jax.set_mesh(mesh):
            return jax.jit(lambda x: jax.sharding.reshard(x + 1, P("i")))(x), jax.sharding.get_mesh()

    outs = transform(fun)(jnp.zeros(4))
    found, inside = outs[0] if transform is lox.spool else outs
    assert found.sharding.spec == P("i") and inside == mesh
    with pytest.raises(ValueError, match="outside of `jax.jit`"):
        transform(jax.jit(fun))(jnp.zeros(4))


@pytest.fixture(params=["mesh is set", "no mesh is set"])
def explicit(request):
    """A function that spreads both axes of an array over a mesh by its type."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh) if request.param == "mesh is set" else contextlib.nullcontext():
        yield lambda array: jax.device_put(array, NamedSharding(mesh, P("a", "b")))


def loops(x):
    """Logs of batch elements that part: in loops, before them and after them."""

    def element(row):
        lox.log({"m": row}, step=0)

        def step(row, number):
            lox.log({"m": row}, step=number, where=row.sum() > 0)
            return -row, None

        row, _ = jax.lax.scan(step, row, jnp.arange(1, 6))
        lox.log({"m": row * 2}, step=6)
        return row

    return jax.vmap(element)(x)


def batch(x):
    lox.log({"m": x}, where=x.sum(1) > 0, step=jnp.arange(8))
    return x


PLACES = np.sin(np.arange(32, dtype=np.float32) * 1.7).reshape(8, 4)
OWN = lox.reductions.Reduction(lambda like: jnp.zeros(like.shape), jnp.add, jnp.add, lambda state: jnp.sort(state))
WAYS = (
    {"interval": 2},
    {"max_events": 3},
    {"max_events": 12, "interval": 2},
    {"reduce": "std"},
    {"reduce": lox.reductions.quantiles([0.1, 0.5])},
    {"reduce": lox.reductions.histogram(np.linspace(-1, 1, 80), pool=True)},
    {"reduce": lox.reductions.topk(3, pool=True)},
    {"reduce": OWN, "window": 2},
    {"reduce": "first", "window": 3},
)


def assert_equal_logs(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_values_that_are_sharded_by_their_types_log_as_others_do(explicit, options):
    for program in (loops, batch):
        spool = jax.jit(lox.spool(program, **options))
        assert_equal_logs(spool(explicit(PLACES))[1], spool(PLACES)[1])


@pytest.mark.parametrize("options", ({"max_iters": 3}, {"max_iters": 5, "interval": 2}), ids=str)
def test_a_loop_of_values_that_are_sharded_by_their_types_logs_as_others_do(explicit, options):
    def program(x):
        def step(state):
            number, x = state
            jax.vmap(lambda row: lox.log({"m": row.sum()}, step=number))(x)
            return number + 1, x * 2

        return jax.lax.while_loop(lambda state: state[0] < 4, step, (0, x))[1]

    spool = jax.jit(lox.spool(program, **options))
    assert_equal_logs(spool(explicit(PLACES))[1], spool(PLACES)[1])


def test_a_key_may_have_events_that_are_sharded_and_others_that_are_not(explicit):
    def program(x):
        lox.log({"m": jnp.zeros((8, 4))})
        lox.log({"m": x}, where=jnp.any(x > 0))
        jax.lax.cond(x.sum() > 0, lambda x: lox.log({"m": x})["m"], lambda x: x, x)
        return x

    for options in ({"unify": True}, {"reduce": "last"}, {"max_events": 2, "unify": True}):
        spool = jax.jit(lox.spool(program, **options))
        assert_equal_logs(spool(explicit(PLACES))[1], spool(PLACES)[1])


def test_a_tap_of_values_that_are_sharded_by_their_types_gets_what_others_get(explicit):
    def arrived(x, **options):
        found = []
        jax.jit(lox.tap(loops, found.append, **options))(x)
        lox.flush()
        return found

    for options in ({"interval": 2}, {"buffer": 3}, {"reduce": "mean", "window": 2}):
        assert_equal_logs(arrived(explicit(PLACES), **options), arrived(PLACES, **options))
