"""Nothing that JAX caches is changed, nothing leaks, and functions need no more than they need without lox."""

import gc
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from reference import assert_array, assert_logs

import lox
from lox._trace import HandlerTrace


def program(x):
    lox.log({"in": x})

    def step(x, i):
        lox.log({"constant": 1.0})
        lox.log({"x": x}, i=i)
        return jax.checkpoint(lambda x: lox.log({"sin": jnp.sin(x)})["sin"])(x), None

    x, _ = lax.scan(step, x, jnp.arange(2))
    return lax.cond(x > 0, lambda x: lox.log({"c": x})["c"], lambda x: lox.log({"c": -x})["c"], x)


handlers = {
    "spool": lox.spool,
    "strip": lox.strip,
    "keep": lox.keep,
    "sites": lox.sites,
    "spool of grad": lambda f: lox.spool(jax.grad(f)),
    "spool of vmap": lambda f: lambda x: lox.spool(jax.vmap(f))(x[None]),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("handler", handlers)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f))])
def test_a_function_is_the_same_before_and_after_a_handler_ran_it(handler, transform):
    def f(x):
        return program(x)

    x = jnp.float32(0.5)
    g = transform(f)
    before = str(jax.make_jaxpr(g)(x)), g(x)
    handlers[handler](g if handler in ("spool", "strip", "keep", "sites") else f)(x)
    after = str(jax.make_jaxpr(g)(x)), g(x)
    assert before == after
    assert "log" not in after[0]


@pytest.mark.parametrize(
    ("transform", "x"),
    [
        (lambda f: f, jnp.float32(0.5)),
        (jax.grad, jnp.float32(0.5)),
        (jax.vmap, jnp.full(2, 0.5)),
        (jax.checkpoint, jnp.float32(0.5)),
    ],
    ids=["plain", "grad", "vmap", "checkpoint"],
)
def test_a_function_that_a_handler_ran_first_is_without_logs_after_it(transform, x):
    f = jax.jit(transform(lambda x: program(x)))
    lox.spool(f)(x)
    assert not jax.make_jaxpr(f)(x).effects
    assert "log" not in str(jax.make_jaxpr(f)(x))


def test_two_threads_never_see_each_others_logs():
    barrier = threading.Barrier(3)
    f = jax.jit(program)
    results, errors = {}, []

    def worker(name, run):
        try:
            barrier.wait()
            results[name] = [run(jnp.float32(i / 10)) for i in range(20)]
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    spooled, filtered = lox.spool(f), lox.spool(f, argnames="in")
    threads = [
        threading.Thread(target=worker, args=("all", lambda x: sorted(spooled(x)[1]))),
        threading.Thread(target=worker, args=("in", lambda x: filtered(x)[1]["in"].tolist())),
        threading.Thread(target=worker, args=("plain", lambda x: bool(jax.make_jaxpr(f)(x).effects))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert results["all"] == [["c", "constant", "in", "sin", "x"]] * 20
    assert results["in"] == [[np.float32(i / 10)] for i in range(20)]
    assert results["plain"] == [False] * 20


def test_a_thread_that_starts_inside_a_handler_is_outside_of_it():
    effects = []

    def f(x):
        def other():
            effects.append(jax.make_jaxpr(lambda y: lox.log({"y": y})["y"])(jnp.float32(1)).effects)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        lox.log({"x": x})
        return x

    assert_logs(lox.spool(f)(jnp.float32(2))[1], {"x": [2.0]})
    assert effects == [set()]


leak_free = {
    "spool": lambda f: lox.spool(f),
    "spool of jit": lambda f: lox.spool(jax.jit(f)),
    "jit of spool": lambda f: jax.jit(lox.spool(f)),
    "spool of grad": lambda f: lox.spool(jax.grad(f)),
    "grad of spool": lambda f: jax.grad(lox.spool(f), has_aux=True),
    "spool of vmap": lambda f: lambda x: lox.spool(jax.vmap(f))(jnp.stack([x, x])),
    "vmap of spool": lambda f: lambda x: jax.vmap(lox.spool(f))(jnp.stack([x, x])),
    "strip": lox.strip,
    "sites": lox.sites,
}


@pytest.mark.parametrize("name", leak_free)
def test_no_tracer_leaks(name):
    with jax.checking_leaks():
        leak_free[name](lambda x: program(x))(jnp.float32(0.5))


@pytest.mark.parametrize("name", ["spool", "spool of grad", "grad of spool", "jit of spool", "vmap of spool"])
def test_what_jax_remembers_of_a_function_with_a_rule_holds_no_logs(name):
    @jax.custom_vjp
    def double(x):
        return lox.log({"x": 2 * x})["x"]

    double.defvjp(lambda x: (double(x), None), lambda _, bar: (2 * bar,))

    def f(x):
        return lax.scan(lambda x, _: (double(x), None), x, length=5)[0].sum()

    logged = leak_free[name](f)(jnp.ones((3, 7)))
    del logged
    gc.collect()
    assert [array.shape for array in jax.live_arrays() if array.shape[-2:] == (3, 7)] == []
    assert [trace for trace in gc.get_objects() if isinstance(trace, HandlerTrace) and trace.parent_trace] == []


def test_options_of_jax_are_respected():
    with jax.enable_x64(True):
        _, logs = lox.spool(jax.jit(program))(jnp.float64(0.5))
        assert logs["in"].dtype == logs["sin"].dtype == jnp.float64
        _, logs = lox.spool(lambda: lox.log({"int": 1, "float": 1.0, "complex": 1j}))()
        assert [logs[key].dtype.name for key in ("int", "float", "complex")] == ["int64", "float64", "complex128"]
    with jax.disable_jit():
        _, logs = lox.spool(jax.jit(program))(jnp.float32(0.5))
    assert logs["in"].tolist() == [0.5] and len(logs["x"]) == 2
    with jax.debug_nans(True):
        lox.spool(jax.jit(program))(jnp.float32(0.5))


@pytest.mark.parametrize(
    "options",
    [
        {"max_iters": 2},
        {"max_iters": 4, "interval": 2},
        {"max_events": 4},
        {"max_events": 2, "interval": 2},
        {"max_iters": 4, "reduce": "sum", "window": 2},
        {"reduce": {"a": "std", "b": lox.reductions.reservoir(2, 0)}},
        {"buffer": 3, "interval": 2},
    ],
    ids=str,
)
def test_logs_of_32_bits_have_the_same_types_where_jax_has_64(options):
    def f(x):
        def body(i, x):
            lox.log({"a": x}, where=x > 1, step=i)
            lax.cond(x > 2, lambda: lox.log({"b": x}, step=i) and None, lambda: None)
            return i + jnp.int32(1), x + jnp.float32(1)

        i, x = lax.while_loop(lambda at: at[1] < 4, lambda at: body(*at), (jnp.int32(0), x))
        floats = jnp.arange(9, dtype=jnp.float32)
        lax.cond(x > 4, lambda: lax.map(lambda x: lox.log({"many": x}) and None, floats), lambda: None)
        return lax.scan(body, i, floats)[1]

    def types():
        each = jax.vmap(f)
        handled = lox.tap(each, print, **options) if "buffer" in options else lox.spool(each, unify=True, **options)
        return jax.eval_shape(handled, jax.ShapeDtypeStruct((3,), jnp.float32))

    expected = types()
    with jax.enable_x64(True):
        assert types() == expected


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: lox.spool(jax.vmap(f), max_iters=4, unify=True),
        lambda f: jax.vmap(lox.spool(f, max_iters=4, unify=True)),
    ],
)
def test_loops_of_lanes_are_compiled_and_log_without_jit_too(transform):
    def f(x):
        x = lax.while_loop(lambda x: x < 3, lambda x: lox.log({"x": x})["x"] + 1, x)
        return lax.cond(x > 0, lambda x: lox.log({"end": x})["end"], lambda x: x, x)

    expected = transform(f)(jnp.arange(3.0))
    with jax.disable_jit():
        jax.tree.map(assert_array, transform(f)(jnp.arange(3.0)), expected)


def test_half_precision_values_stay_so_under_strict_promotion():
    def f(x):
        lox.log({"x": x, "n": jnp.int8(1)}, i=jnp.uint8(3))
        return lax.cond(x > 0, lambda x: lox.log({"c": x})["c"], lambda x: x, x)

    for options in ({"unify": True}, {"unify": True, "interval": 2}, {"reduce": "mean"}, {"reduce": "sum"}):
        _, logs = lox.spool(jax.vmap(f), **options)(jnp.ones(2, jnp.bfloat16))
        assert logs["x"].dtype == logs["c"].dtype == jnp.bfloat16


def test_python_branches_on_concrete_values_and_any_arguments_work():
    def f(x, mode, callback, nothing, *, scale=None):
        if mode == "double" and x > 1 and nothing is None:
            x = 2 * x
        for _ in range(int(x)):
            lox.log({"x": callback(x)})
        return x if scale is None else x * float(scale)

    out, logs = lox.spool(f)(jnp.float32(2), "double", jnp.sqrt, None, scale=np.float64(0.5))
    assert out == 2
    assert_logs(logs, {"x": [2.0] * 4})
    assert lox.strip(f)(3, "plain", abs, None) == 3


def test_concrete_values_stay_concrete_and_of_their_type():
    seen = []

    def f(x, n, flag):
        seen.append((type(x), type(n), type(flag)))
        y = jnp.sin(x)
        seen.append(float(y))
        return lox.log({"y": y})["y"]

    lox.spool(f)(np.float32(0), 3, True)
    assert seen == [(np.float32, int, bool), 0.0]


def test_closed_over_tracers_are_logged():
    def outer(x):
        def inner(y):
            lox.log({"sum": x + y, "x": x})
            return y

        _, logs = lox.spool(inner)(2 * x)
        return logs

    for transform in (lambda f: f, jax.jit, jax.checkpoint):
        logs = transform(outer)(jnp.float32(1))
        assert_logs(logs, {"sum": [3.0], "x": [1.0]})
    assert_array(jax.vmap(outer)(jnp.array([1.0, 2.0]))["sum"], [[3.0], [6.0]])
    assert jax.grad(lambda x: outer(x)["sum"][0])(jnp.float32(1)) == 3
    _, totals = lax.scan(lambda c, x: (c, outer(x)["sum"][0]), 0, jnp.array([1.0, 2.0]))
    assert_array(totals, [3.0, 6.0])


def test_closed_over_tracers_of_every_transformation_around_reach_a_jitted_function():
    def f(x, y):
        inner = jax.jit(lambda z: lox.log({"all": x + y + z})["all"])
        return lax.scan(lambda c, z: (c + inner(z), None), jnp.float32(0), jnp.arange(2.0))[0]

    def g(x):
        return jax.vmap(lambda y: jax.grad(f)(x, y))(jnp.array([10.0, 20.0]))

    for transform in (lambda f: f, jax.jit):
        _, logs = lox.spool(transform(g))(jnp.float32(100))
        assert_logs(logs, {"all": [[110.0, 120.0], [111.0, 121.0]]})


def test_compile_time_evaluation_is_logged_as_the_program_around_it():
    def f(x):
        with jax.ensure_compile_time_eval():
            table = jnp.arange(3.0) * 2
            lox.log({"table": table})
            assert float(table[1]) == 2
        return lox.log({"x": x})["x"]

    for transform in (lambda f: f, jax.jit):
        _, logs = lox.spool(transform(f))(jnp.float32(1))
        assert_logs(logs, {"table": [[0.0, 2.0, 4.0]], "x": [1.0]})

    def loop(x):
        return lax.scan(lambda c, i: (f(c), None), x, None, length=2)[0]

    _, logs = lox.spool(jax.jit(loop))(jnp.float32(1))
    assert_logs(logs, {"table": [[0.0, 2.0, 4.0]] * 2, "x": [1.0, 1.0]})


def test_named_scopes_and_named_calls_are_kept():
    @jax.named_call
    def called(x):
        return lox.log({"called": jnp.sin(x)})["called"]

    def f(x):
        with jax.named_scope("my_scope"):
            y = jnp.cos(x)
            lox.log({"y": y})
        return called(y)

    _, logs = lox.spool(f)(jnp.float32(0))
    assert_logs(logs, {"y": [1.0], "called": [np.sin(np.float32(1))]}, rtol=1e-6)
    assert "my_scope" in jax.jit(lox.spool(f)).lower(jnp.float32(0)).compile().as_text()


class Stop(Exception):
    pass


@pytest.mark.parametrize("handler", [lox.spool, lox.strip, lox.keep, lox.sites], ids=lambda h: h.__name__)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, jax.vmap, jax.grad], ids=["eager", "jit", "vmap", "grad"])
def test_an_exception_leaves_no_state_behind(handler, transform):
    def f(x):
        lox.log({"x": x})
        lax.scan(lambda c, _: (raising(c), None), x, None, length=2)

    def raising(x):
        lox.log({"inner": x})
        raise Stop

    x = jnp.ones(2) if transform is jax.vmap else jnp.float32(1)
    with pytest.raises(Stop):
        handler(transform(f))(x)
    assert not jax.make_jaxpr(program)(jnp.float32(1)).effects
    assert lox.log(object()) is not None
    assert_logs(lox.spool(lambda: lox.log({"after": 1}))()[1], {"after": [1]})


def test_an_error_of_lox_leaves_no_state_behind():
    with pytest.raises(lox.LogDataError):
        lox.spool(lambda: lox.log(3))()
    with pytest.raises(lox.StructureError):
        lox.spool(jax.jit(lambda x: (lox.log({"a": x}), lox.log({"a": x[None]}))))(jnp.float32(1))
    assert not jax.make_jaxpr(program)(jnp.float32(1)).effects
    assert_logs(lox.spool(lambda: lox.log({"after": 1}))()[1], {"after": [1]})


def test_a_generator_and_a_recursive_function_can_log():
    def countdown(n):
        lox.log({"n": n})
        return n if n == 0 else countdown(n - 1)

    assert_logs(lox.spool(countdown)(3)[1], {"n": [3, 2, 1, 0]})


def test_a_spooled_function_inside_a_spooled_function_consumes_its_logs():
    inner = lox.spool(lambda x: lox.log({"inner": x})["inner"])

    def outer(x):
        out, logs = inner(x)
        lox.log({"outer": logs["inner"][0] + 1})
        return out

    for transform in (lambda f: f, jax.jit):
        _, logs = lox.spool(transform(outer))(jnp.float32(1))
        assert_logs(logs, {"outer": [2.0]})


def test_callbacks_and_other_effects_run_as_often_as_without_a_handler():
    called = []

    def f(x):
        def step(x, _):
            jax.debug.callback(lambda x: called.append(float(x)), x, ordered=True)
            lox.log({"x": x})
            return x + 1, None

        return lax.scan(step, x, None, length=3)[0]

    for run in (f, lox.spool(f), jax.jit(lox.spool(f)), lox.spool(jax.jit(f)), lox.strip(f)):
        called.clear()
        jax.block_until_ready(run(jnp.float32(0)))
        jax.effects_barrier()
        assert called == [0.0, 1.0, 2.0]


def test_refs_are_written_once():
    def f(x):
        ref = jax.new_ref(jnp.zeros(()))

        def step(c, x):
            ref[...] += x
            lox.log({"x": x, "sum": ref[...]})
            return c, None

        lax.scan(step, 0, x)
        return ref[...]

    for transform in (lambda f: lox.spool(jax.jit(f)), lambda f: jax.jit(lox.spool(f)), lox.spool):
        out, logs = transform(f)(jnp.array([1.0, 2.0]))
        assert out == 3
        assert_logs(logs, {"x": [1.0, 2.0], "sum": [1.0, 3.0]})


@pytest.mark.parametrize("options", [{}, {"reduce": "max"}, {"interval": 2}], ids=str)
@pytest.mark.parametrize("between", [lambda f: f, lox.keep, lambda f: jax.vmap(f, axis_size=1, in_axes=None)])
@pytest.mark.parametrize("around", [lambda f: f, jax.vmap])
def test_what_was_logged_may_be_donated(options, between, around):
    halve = jax.jit(lambda x: x / 2, donate_argnums=0)

    def f(x):
        for _ in range(3):
            lox.log({"x": x})
            x = halve(x)
        return x

    # Of a strong type: what is logged of a weak one is another array anyway.
    _, logs = around(lox.spool(between(f), **options))(jnp.full((1, 2), 8, jnp.float32))
    expected = {"": [8.0, 4.0, 2.0], "reduce": [8.0], "interval": [8.0, 2.0]}["".join(options)]
    assert np.ravel(logs["x"]).tolist() == np.repeat(expected, 2).tolist()


def test_lox_makes_no_nan_while_jax_looks_for_one():
    def f(x):
        y = lax.while_loop(lambda y: y < x, lambda y: lox.log({"while": y})["while"] + 1, 0.0)
        return lax.cond(x > 0, lambda: lox.log({"cond": y})["cond"], lambda: x)

    for x in (2.0, -2.0):
        for options in ({"max_iters": 3}, *({"reduce": name} for name in ("mean", "max", "last"))):
            expected = lox.spool(f, unify=True, **options)(x)[1]
            with jax.debug_nans(True):
                logs = lox.spool(f, unify=True, **options)(x)[1]
            assert expected.mask.keys() == logs.mask.keys() == {"while", "cond"}
            for key, mask in expected.mask.items():
                assert_array(logs.mask[key], mask)
                assert_array(logs[key], np.where(mask, expected[key], 0.0))


def log_on_host(x):
    lox.log({"host": x})
    return np.asarray(x)


CALLBACKS = {
    "pure_callback": lambda x: jax.pure_callback(log_on_host, jax.typeof(x), x),
    "io_callback": lambda x: io_callback(log_on_host, jax.typeof(x), x, ordered=True),
    "debug.callback": lambda x: jax.debug.callback(lambda x: log_on_host(x) and None, x) or x,
    "tap": lambda x: lox.tap(
        lambda x: lox.log({"tapped": x})["tapped"], lambda logs: log_on_host(logs["tapped"]) and None
    )(x),
}


@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_log_in_a_function_that_the_program_calls_on_the_host_goes_to_nobody(name, transform):
    f = transform(CALLBACKS[name])
    for handled in (lox.spool(f), transform(lox.spool(f)), lox.spool(f, argnames=())):
        out, logs = handled(jnp.float32(3))
        jax.effects_barrier()
        lox.flush()
        assert out == 3
        assert "host" not in logs


def parts_batch_elements(x):
    """Logs in a branch, in a loop and outside, after how many events differs between batch elements."""

    def halve(x):
        lox.log({"x": x}, n=jnp.int32(1))
        return x / 2

    lax.cond(x > 2, lambda: halve(x), lambda: x)
    x = lax.scan(lambda x, _: (halve(x), lox.log({"y": x})), x, None, length=3)[0]
    return lax.while_loop(lambda x: x > 0.1, halve, x)


@pytest.mark.parametrize(
    "handle",
    [
        lambda f, arrived: lox.spool(f, unify=True, max_iters=2, interval=2),
        lambda f, arrived: lox.spool(f, reduce={"x": "mean", "y": "last"}),
        lambda f, arrived: lox.tap(f, arrived.append, interval=2, buffer=3),
    ],
    ids=["interval", "reduce", "tap"],
)
def test_a_program_that_may_not_promote_ranks_logs_the_same(handle):
    xs = jnp.array([3.0, 5.0, 1.0])
    results = []
    for promotion in ("allow", "raise"):
        arrived = []
        with jax.numpy_rank_promotion(promotion):
            out = handle(jax.vmap(parts_batch_elements), arrived)(xs)
            lox.flush()
        results.append((out, arrived))
    allowed, raised = results
    jax.tree.map(np.testing.assert_array_equal, raised, allowed)


def test_what_a_loop_in_python_logs_and_donates_is_there_however_many_other_logs_there_are():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)

    def run(x):
        for i in range(100):
            lox.log({"a": i})
            lox.log({"b": i})
            lox.log({"x": x})
            x = step(x)
        return x

    _, logs = lox.spool(run)(jnp.zeros(4))
    assert logs["x"][:, 0].tolist() == [*range(100)]
