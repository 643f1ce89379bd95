"""`jit` inside, around and between handlers; what is traced, donated and sharded."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dispatch import slow_calls
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from reference import assert_logs

import lox


def f(x):
    lox.log({"x": x}, step=1)
    y = x * 2
    lox.log({"y": y})
    return y


EXPECTED = {"x": [1.5], "y": [3.0]}
STEPS = {"step": {"x": [1]}}


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: jax.jit(lox.spool(f)),
        lambda f: lox.spool(jax.jit(f)),
        lambda f: jax.jit(lox.spool(jax.jit(f))),
        lambda f: lox.spool(jax.jit(jax.jit(f))),
        lambda f: lox.spool(lambda x: jax.jit(f)(x)),
        lambda f: jax.jit(jax.jit(lox.spool(f))),
    ],
)
def test_jit_anywhere_changes_no_log(transform):
    out, logs = transform(f)(jnp.float32(1.5))
    assert out == 3.0
    assert_logs(logs, EXPECTED, steps=STEPS)


def test_a_jitted_function_called_twice_logs_twice():
    inner = jax.jit(f)
    _, logs = lox.spool(lambda x: inner(inner(x)))(jnp.float32(1.5))
    assert_logs(logs, {"x": [1.5, 3.0], "y": [3.0, 6.0]}, steps={"step": {"x": [1, 1]}})


def test_spool_of_a_jitted_function_does_not_trace_again():
    traced = []

    @jax.jit
    def g(x):
        traced.append(x)
        return f(x)

    spooled = lox.spool(g)
    for value in (1.0, 2.0, 3.0):
        out, logs = spooled(jnp.float32(value))
        assert out == 2 * value
        assert_logs(logs, {"x": [value], "y": [2 * value]}, steps=STEPS)
    assert len(traced) == 1
    spooled(jnp.ones(3))
    spooled(jnp.zeros(3))
    assert len(traced) == 2


def test_every_new_spool_of_one_jitted_function_reuses_what_was_traced():
    traced = []

    @jax.jit
    def g(x):
        traced.append(x)
        return f(x)

    for value in (1.0, 2.0, 3.0):
        assert_logs(lox.spool(g)(jnp.float32(value))[1], {"x": [value], "y": [2 * value]}, steps=STEPS)
    assert len(traced) == 1


def test_jit_of_a_spooled_function_does_not_trace_again():
    traced = []

    def g(x):
        traced.append(x)
        return f(x)

    spooled = jax.jit(lox.spool(g))
    for value in (1.0, 2.0):
        assert_logs(spooled(jnp.float32(value))[1], {"x": [value], "y": [2 * value]}, steps=STEPS)
    assert len(traced) == 1


def test_a_jitted_function_inside_a_spooled_one_is_not_traced_again():
    traced = []

    @jax.jit
    def inner(x):
        traced.append(x)
        return f(x)

    spooled = lox.spool(lambda x: inner(x) + 1)
    for value in (1.0, 2.0, 3.0):
        assert_logs(spooled(jnp.float32(value))[1], {"x": [value], "y": [2 * value]}, steps=STEPS)
    assert len(traced) == 1


@pytest.mark.parametrize(
    "handler",
    [
        lox.spool,
        lox.strip,
        lambda f: lox.spool(lox.strip(f)),
        lambda f: lox.spool(lox.spool(f, argnames="other")),
        lambda f: lox.spool(f, interval=2),
        lambda f: lox.tap(f, lambda logs: None, argnames="none"),
        lambda f: lox.spool(jax.tree_util.Partial(f)),
    ],
)
@pytest.mark.filterwarnings("ignore:'(other|none)' in argnames=:lox.SelectionWarning")
def test_eager_operations_are_dispatched_at_once_while_a_handler_listens(handler):
    helper = jax.jit(lambda x: x * 2 + 1)

    def quiet(x):
        for _ in range(10):
            x = jnp.sin(helper(x)) + x
        return x

    def logs(x):
        lox.log({"x": x})
        return jnp.cos(quiet(x))

    x = jnp.float32(1)
    nothing = slow_calls(handler(lambda x: x), x)
    assert slow_calls(quiet, x) == 0
    assert slow_calls(handler(quiet), x) == nothing
    assert slow_calls(handler(logs), x) == nothing


def test_a_jitted_function_that_logs_is_heard_at_every_call_between_eager_operations():
    helper, inner = jax.jit(lambda x: x * 2), jax.jit(f)

    def loop(x):
        for _ in range(3):
            x = jnp.sin(helper(inner(helper(x))))
        return x

    spooled = lox.spool(loop)
    for _ in range(3):
        out, logs = spooled(jnp.float32(0.5))
        assert len(logs["x"]) == len(logs["y"]) == 3
    np.testing.assert_allclose(out, loop(jnp.float32(0.5)))


def test_a_jitted_function_is_traced_once_with_logs_and_once_without():
    traced = []

    @jax.jit
    def g(x):
        traced.append(x)
        return f(x)

    for _ in range(2):
        g(jnp.float32(1))
        lox.spool(g)(jnp.float32(1))
        lox.strip(g)(jnp.float32(1))
    assert len(traced) == 2


def test_a_nested_jit_stays_a_call_that_is_compiled_once():
    @jax.jit
    def inner(x):
        lox.log({"x": x})
        return jnp.sin(x)

    def outer(x):
        return inner(inner(inner(x)))

    text = jax.jit(lox.spool(outer)).lower(jnp.float32(1)).as_text()
    assert text.count("func.func private @inner") == 1
    assert text.count("call @inner") == 3
    assert text.count("sine") == 1


def test_several_spools_with_other_options_of_one_jitted_function_do_not_mix():
    g = jax.jit(f)
    x = jnp.float32(1.5)
    for _ in range(2):
        assert_logs(lox.spool(g)(x)[1], EXPECTED, steps=STEPS)
        assert_logs(lox.spool(g, argnames="y")(x)[1], {"y": [3.0]})
        assert_logs(lox.spool(g, prefix="p/")(x)[1], {"p/x": [1.5], "p/y": [3.0]}, steps={"step": {"p/x": [1]}})
        assert_logs(lox.spool(lox.strip(g))(x)[1], {})
        assert g(x) == 3.0


def test_static_arguments_stay_static():
    @functools.partial(jax.jit, static_argnums=(1,), static_argnames=("mode",))
    def g(x, n, *, mode="plain"):
        for i in range(n):
            lox.log({mode: x + i})
        return x if mode == "plain" else -x

    x = jnp.float32(1)
    assert_logs(lox.spool(g)(x, 2)[1], {"plain": [1.0, 2.0]})
    out, logs = lox.spool(g)(x, 3, mode="other")
    assert out == -1
    assert_logs(logs, {"other": [1.0, 2.0, 3.0]})
    jitted = jax.jit(lox.spool(g), static_argnums=(1,), static_argnames="mode")
    assert_logs(jitted(x, 2, mode="jit")[1], {"jit": [1.0, 2.0]})


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": ["n"]}], ids=str)
def test_a_static_argument_may_be_passed_by_position_or_by_name(options):
    @functools.partial(jax.jit, **options)
    def g(x, n):
        for i in range(n):
            lox.log({"x": x + i})
        return x

    x = jnp.float32(1)
    for spooled in (
        lox.spool(g),
        lox.spool(lambda *args, **kwargs: g(*args, **kwargs)),
        jax.jit(lox.spool(g), **options),
    ):
        assert_logs(spooled(x, 2)[1], {"x": [1.0, 2.0]})
        assert_logs(spooled(x, n=3)[1], {"x": [1.0, 2.0, 3.0]})


def test_keyword_arguments_and_pytrees_are_passed_on():
    @jax.jit
    def g(tree, *, scale=2.0, shift=None):
        lox.log({"tree": tree})
        return scale * tree["a"][0] + (0 if shift is None else shift["by"])

    tree = {"a": [jnp.float32(1), jnp.float32(2)]}
    assert lox.spool(g)(tree)[0] == 2
    out, logs = lox.spool(g)(tree, scale=3.0, shift={"by": jnp.float32(5)})
    assert out == 8
    assert_logs(logs, {"tree/a/0": [1.0], "tree/a/1": [2.0]})


def test_a_donated_argument_is_donated_and_what_was_logged_of_it_is_not():
    g = jax.jit(lambda x: (lox.log({"x": x}), x + 1)[1], donate_argnums=0)
    for transform in (lambda g: lox.spool(g), lambda g: lox.spool(lambda x: g(x))):
        x = jnp.arange(4.0)
        x.block_until_ready()
        out, logs = transform(g)(x)
        assert x.is_deleted()
        np.testing.assert_array_equal(out, [1, 2, 3, 4])
        assert_logs(logs, {"x": [[0.0, 1.0, 2.0, 3.0]]})
    for buffer, f in itertools.product((1, 2), (g, lambda x: g(x))):
        arrived, x = [], jnp.arange(4.0)
        np.testing.assert_array_equal(lox.tap(f, arrived.append, buffer=buffer)(x), [1, 2, 3, 4])
        lox.flush()
        assert x.is_deleted()
        np.testing.assert_array_equal(arrived[0]["x"], [[0, 1, 2, 3]])


@pytest.mark.covering(1)
@pytest.mark.parametrize("donated", [1, 0])
@pytest.mark.parametrize(
    "handled",
    [
        lambda f: lox.spool(f, max_events=4),
        lambda f: lox.spool(f, interval=2),
        lambda f: lox.tap(f, lambda logs: None, buffer=3),
    ],
    ids=["max_events", "interval", "buffer"],
)
def test_the_argument_that_is_donated_is_the_one_that_the_program_names(handled, donated):
    shift = jnp.ones(64)

    def f(*args):
        lox.log({"x": args[donated].sum()}, where=args[0].sum() >= 0)
        return args[donated] + shift, args[1 - donated].sum()

    jitted, args = jax.jit(f, donate_argnums=donated), (jnp.zeros(64), jnp.zeros(64))
    handled(lambda *args: jitted(*args))(*args)
    lox.flush()
    assert [x.is_deleted() for x in args] == [place == donated for place in range(2)]


def test_donation_inside_a_jitted_program_changes_no_log():
    inner = jax.jit(lambda x: (lox.log({"x": x}), x + 1)[1], donate_argnums=0)
    _, logs = jax.jit(lox.spool(lambda x: inner(2 * x)))(jnp.float32(1))
    assert_logs(logs, {"x": [2.0]})


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:4]), ("d",))


def test_shardings_of_a_jitted_function_stay_and_logs_have_theirs(mesh):
    sharded = NamedSharding(mesh, PartitionSpec("d"))
    replicated = NamedSharding(mesh, PartitionSpec())

    @functools.partial(jax.jit, in_shardings=sharded, out_shardings=(sharded, replicated))
    def g(x):
        lox.log({"x": 2 * x, "sum": x.sum()})
        return x + 1, x.sum()

    x = np.arange(8.0, dtype=np.float32)
    for transform in (lambda g: lox.spool(g), lambda g: jax.jit(lox.spool(g)), lambda g: lox.spool(lambda x: g(x))):
        (out, total), logs = transform(g)(x)
        assert out.sharding.is_equivalent_to(sharded, 1)
        assert total.sharding.is_equivalent_to(replicated, 0)
        assert logs["x"].sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "d")), 2)
        assert_logs(logs, {"x": [2 * x], "sum": [28.0]})


def test_sharded_arguments_give_logs_with_their_sharding(mesh):
    x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("d")))

    def g(x):
        def step(carry, _):
            lox.log({"x": carry, "sum": carry.sum()})
            return carry + 1, None

        return jax.lax.scan(step, x, None, length=3)[0]

    expected = [np.arange(8.0, dtype=np.float32) + i for i in range(3)]
    for transform in (lambda g: jax.jit(lox.spool(g)), lambda g: lox.spool(jax.jit(g))):
        _, logs = transform(g)(x)
        assert_logs(logs, {"x": expected, "sum": [28.0, 36.0, 44.0]})
        assert logs["x"].sharding.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "d")), 2)


def test_a_jitted_function_keeps_its_name_in_the_compiled_program():
    @jax.jit
    def recognisable(x):
        return f(x)

    text = jax.jit(lambda x: lox.spool(recognisable)(x)).lower(jnp.float32(1)).as_text()
    assert "call @recognisable(" in text


def test_the_wrapped_function_keeps_its_name_and_documentation():
    def documented(x):
        """What it does."""
        return x

    for transformed in (lox.spool(documented), lox.strip(documented), lox.keep(documented), lox.sites(documented)):
        assert transformed.__name__ == "documented"
        assert transformed.__doc__ == "What it does."
        assert transformed.__wrapped__ is documented


def test_the_ahead_of_time_stages_of_jit_work():
    compiled = jax.jit(lox.spool(f)).lower(jnp.float32(1.5)).compile()
    out, logs = compiled(jnp.float32(1.5))
    assert out == 3.0
    assert_logs(logs, EXPECTED, steps=STEPS)
    assert jax.eval_shape(lox.spool(f), jnp.float32(1))[1]["x"].shape == (1,)


X = np.float32(2)


def nested(depth):
    """Jitted functions that call each other, each of which logs."""

    def add_one(x):
        lox.log({"x": x})
        return x + 1

    def around(inner):
        def outer(x):
            lox.log({"x": x})
            return inner(x) + 1

        return jax.jit(outer)

    fun = jax.jit(add_one)
    for _ in range(depth - 1):
        fun = around(fun)
    return fun


@pytest.mark.parametrize("transform", [lox.spool, lambda f: jax.jit(lox.spool(f))], ids=["spool", "jit(spool)"])
def test_spool_reaches_into_nested_jits_deeper_than_jax_differentiates(transform):
    out, logs = transform(nested(90))(X)
    assert out == X + 90
    assert_logs(logs, {"x": [X] * 90})


def test_reductions_reach_as_deep():
    _, logs = lox.spool(nested(90), reduce="sum")(X)
    assert_logs(logs, {"x": [90 * X]})


def test_derivatives_of_spool_reach_into_nested_jits_as_deep_as_those_of_the_function():
    _, logs = jax.grad(lox.spool(nested(70)), has_aux=True)(X)
    assert_logs(logs, {"x": [X] * 70})


def test_tap_reaches_as_deep():
    arrived = []
    assert lox.tap(nested(90), lambda logs: arrived.extend(logs["x"].tolist()))(X) == X + 90
    lox.flush()
    assert arrived == [X] * 90


@pytest.mark.covering(1)
@pytest.mark.parametrize("options", [("in_shardings",), ("out_shardings",), ("in_shardings", "out_shardings")])
@pytest.mark.parametrize("handler", [lox.spool, lox.tap, lox.strip], ids=["spool", "tap", "strip"])
def test_one_sharding_of_a_jitted_function_is_kept_without_the_other(handler, options):
    sharded = NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec("x"))
    f = jax.jit(lambda x: 2 * lox.log({"x": x})["x"], **dict.fromkeys(options, sharded))
    handled = handler(f, lambda logs: None) if handler is lox.tap else handler(f)
    out = handled(np.arange(8.0, dtype=np.float32))
    assert (out[0] if handler is lox.spool else out).sharding == sharded


@pytest.mark.parametrize("handled", [lox.spool, lox.strip, lambda f: lox.tap(f, lambda logs: None)])
def test_an_argument_that_a_handled_function_donates_is_gone(handled):
    x = jnp.arange(1024.0)
    handled(jax.jit(lambda x: lox.log({"x": x + 1})["x"], donate_argnums=0))(x)
    lox.flush()
    assert x.is_deleted()
