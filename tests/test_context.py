"""`lox.context`: `context(step=i)(f)` logs what `f` with `step=i` written at each of its log calls logs."""

import asyncio
import concurrent.futures
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dispatch import slow_calls
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import lox
from lox import _compat
from lox._ambient import ambient

P = PartitionSpec
X = 0.7
CONTEXT = {"prefix": "train/", "tags": ["t"]}


def written(log, steps):
    """A log call with everything written at it that the context adds."""

    def call(data, *, tags=(), prefix="", **own):
        if log is lox.log_grad:
            prefix = prefix or "grad/"
        return log(data, tags=[*CONTEXT["tags"], *tags], prefix=CONTEXT["prefix"] + prefix, **steps | own)

    return call


# -- the law: programs, transformations, places and handlers -------------------------------------------------------


def straight(log, watch):
    def f(x):
        log({"x": x, "deep": {"y": x * x}}, tags="own")
        log({"own": x}, step=100, other=x)
        return watch({"s": jnp.sin(x)})["s"]

    return f


def jitted(log, watch):
    @jax.jit
    def inner(x):
        log({"inner": x})
        return jnp.cos(x)

    @jax.jit
    def f(x):
        log({"x": x})
        return inner(inner(x)) * inner(x)

    return f


def looped(log, watch):
    def f(x):
        def step(c, i):
            log({"c": c}, i=i)
            c = watch({"c": c}, i=i)["c"]
            return jnp.sin(c), c

        return jnp.sum(lax.scan(step, x, jnp.arange(3))[1])

    return f


def branching(log, watch):
    def yes(x):
        log({"yes": x})
        return x * x

    def f(x):
        return lax.cond(x > 0.5, yes, lambda x: log({"no": x})["no"], x)

    return f


def rematerialized(log, watch):
    def f(x):
        def step(c, i):
            log({"c": c}, i=i)
            return jnp.sin(watch({"c": jnp.sin(c)})["c"]), None

        return jax.checkpoint(lambda x: lax.scan(step, jnp.sin(x), jnp.arange(2))[0])(x)

    return f


def with_jvp_rule(log, watch):
    @jax.custom_jvp
    def g(x):
        log({"g": x})
        return jnp.sin(x)

    @g.defjvp
    def rule(primals, tangents):
        log({"rule": primals[0]})
        return g(*primals), tangents[0] * 2.0

    return lambda x: g(x) * x


def with_vjp_rule(log, watch):
    @jax.custom_vjp
    def g(x):
        log({"g": x})
        return jnp.sin(x)

    def fwd(x):
        log({"fwd": x})
        return g(x), x

    def bwd(x, bar):
        log({"bwd": bar})
        return (bar * 3.0 * x,)

    g.defvjp(fwd, bwd)
    return lambda x: jax.jit(g)(x) * g(x)


def batched(log, watch):
    def element(x):
        log({"element": x})
        return lax.cond(x > 1.0, lambda x: log({"large": x})["large"], jnp.sin, x)

    return lambda x: jnp.sum(jax.vmap(element)(x * jnp.arange(1.0, 4.0)))


def differentiated(log, watch):
    def loss(x):
        log({"loss": x})
        return watch({"z": jnp.sin(x)})["z"] ** 2

    return lambda x: jax.grad(jax.jit(loss))(x) + jax.jit(jax.grad(loss))(x)


def masked(log, watch):
    def f(x):
        log({"many": x * jnp.arange(3.0)}, where=jnp.arange(3) != 1)
        return watch({"x": x * jnp.arange(3.0)}, where=jnp.arange(3) > 0)["x"].sum()

    return f


def filtered(log, watch):
    def f(x):
        log({"a": x, "b": x}, tags="own")
        return jnp.sin(x)

    def both(x):
        kept = lox.keep(f, argnames="train/a")(x)
        return kept + jax.jit(lox.strip(f, tags="t"))(x) + lox.strip(f, argnames="a")(x)

    return both


PROGRAMS = [
    straight,
    jitted,
    looped,
    branching,
    rematerialized,
    with_jvp_rule,
    with_vjp_rule,
    batched,
    differentiated,
    filtered,
    masked,
]

# Of a function of x that returns a value and auxiliary arrays.
TRANSFORMATIONS = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, 2.0 * x])),
    "grad": lambda f: jax.grad(f, has_aux=True),
    "jit of grad of jit": lambda f: jax.jit(jax.grad(jax.jit(f), has_aux=True)),
    "vmap of jit of grad": lambda f: lambda x: jax.vmap(jax.jit(jax.grad(f, has_aux=True)))(jnp.stack([x, 2.0 * x])),
    "scan": lambda f: lambda x: lax.scan(lambda c, _: (c * 0.5, f(c)), x, None, length=2)[1],
}


class Arrived(list):
    """What the callbacks of taps got."""

    def logs(self):
        lox.flush()
        return [contents(logs) for logs in self]


def tapped(arrived, **options):
    return lambda f: lox.tap(lambda x: (f(x), ()), arrived.append, **options)


HANDLERS = {
    "spool": lambda arrived: lox.spool(unify=True),
    "spool of a selection": lambda arrived: lox.spool(unify=True, argnames=["train/x", "train/c", "train/grad/c"]),
    "spool with interval": lambda arrived: lox.spool(unify=True, interval=2, tags="t"),
    "spool with reduce": lambda arrived: lox.spool(reduce="last"),
    "tap": lambda arrived: tapped(arrived),
    "tap with buffer": lambda arrived: tapped(arrived, buffer=3, tags="t"),
    "tap with interval": lambda arrived: tapped(arrived, interval=2),
}

# `f` logs, `around` puts it in the context, `T` transforms, `H` handles.
PLACES = {
    "handler around the context": lambda f, around, T, H: H(lambda x: T(lambda x: (around(f)(x), ()))(x)),
    "handler around a transformation in the context": lambda f, around, T, H: H(around(T(lambda x: (f(x), ())))),
    "context around the handler": lambda f, around, T, H: around(H(T(lambda x: (f(x), ())))),
    "context around a transformation of the handler": lambda f, around, T, H: around(T(H(f))),
    "jit of the context around a transformation of the handler": (
        lambda f, around, T, H: jax.jit(around(T(H(jax.jit(f)))))
    ),
}


def contents(logs):
    """All that is in logs, as NumPy has it; anything else as it is."""
    if not isinstance(logs, lox.logdict):
        return logs
    steps = {name: dict(counters) for name, counters in logs.steps.items()}
    return jax.tree.map(np.asarray, [dict(logs), steps, dict(logs.mask), dict(logs.dropped)])


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.asarray(one).dtype == np.asarray(other).dtype
        np.testing.assert_array_equal(one, other)


def outcome(program, log, watch, around, transformation, place, handler):
    arrived = Arrived()
    function = place(program(log, watch), around, transformation, handler(arrived))
    out = jax.tree.map(contents, function(X), is_leaf=lambda node: isinstance(node, lox.logdict))
    return out, arrived.logs()


CASES = [
    pytest.param(
        program,
        transformation,
        list(PLACES)[(row + column) % len(PLACES)],
        list(HANDLERS)[(row + 2 * column) % len(HANDLERS)],
        marks=[] if column == row % len(TRANSFORMATIONS) else pytest.mark.exhaustive,
        id=f"{program.__name__}-{transformation}",
    )
    for row, program in enumerate(PROGRAMS)
    for column, transformation in enumerate(TRANSFORMATIONS)
]


@pytest.mark.filterwarnings("ignore::lox.SelectionWarning")
@pytest.mark.parametrize(("program", "transformation", "place", "handler"), CASES)
def test_a_context_logs_what_the_function_logs_with_it_written_at_each_log_call(
    program, transformation, place, handler
):
    parts = (TRANSFORMATIONS[transformation], PLACES[place], HANDLERS[handler])
    steps = {"step": 3, "rate": 0.5}
    log, watch = written(lox.log, steps), written(lox.log_grad, steps)
    expected = outcome(program, log, watch, lambda f: f, *parts)
    found = outcome(program, lox.log, lox.log_grad, lox.context(**CONTEXT, **steps), *parts)
    assert_same(found, expected)


# -- counters that are traced ---------------------------------------------------------------------------------------


def note(x, key="x"):
    lox.log({key: x})
    return x


def counters(logs, key="x"):
    return {name: np.asarray(of[key]).tolist() for name, of in logs.steps.items() if key in of}


def test_in_the_body_of_a_loop_a_traced_counter_is_that_of_the_iteration():
    def step(x, i):
        with lox.context(step=i):
            jax.jit(note)(x)
        note(x, "after the block")
        return x + 1.0, None

    @lox.spool(max_iters=3)
    def train(x):
        with lox.context(epoch=7, prefix="train/"):
            x, _ = lax.scan(step, x, jnp.arange(2))
        with lox.context(prefix="while/"):
            return lax.while_loop(lambda x: x < 4.0, lambda x: step(x, x)[0], x)

    _, logs = train(0.0)
    assert counters(logs, "train/x") == {"epoch": [7, 7], "step": [0, 1]}
    assert counters(logs, "train/after the block") == {"epoch": [7, 7]}
    assert counters(logs, "while/x")["step"][:2] == [2.0, 3.0]


def test_under_vmap_each_batch_element_has_its_counter_and_what_is_shared_is_that_of_all():
    def element(i, x):
        with lox.context(seed=i):
            return jax.jit(note)(x)

    def batch(x):
        with lox.context(step=5):
            return jax.vmap(element, (0, None))(jnp.arange(3), x)

    _, logs = lox.spool(batch)(1.0)
    assert counters(logs) == {"seed": [[0, 1, 2]], "step": [[5, 5, 5]]}
    _, logs = jax.vmap(lambda i: lox.context(seed=i)(lox.spool(jax.jit(note)))(1.0))(jnp.arange(3))
    assert counters(logs) == {"seed": [[0], [1], [2]]}


def test_a_counter_may_depend_on_what_is_differentiated_and_changes_no_derivative():
    def f(x):
        with lox.context(rate=x * 2.0, step=jnp.int32(1)):
            return jnp.sin(jax.jit(note)(x))

    slope, logs = lox.spool(jax.jit(jax.grad(f)))(X)
    np.testing.assert_allclose(slope, np.cos(X), rtol=1e-6)
    assert counters(logs)["rate"] == pytest.approx([2 * X])


def test_on_shards_a_counter_that_differs_is_that_of_the_shard():
    mesh = Mesh(jax.devices()[:2], ("d",))

    def shard(x):
        with lox.context(shard=lax.axis_index("d")):
            return jax.jit(note)(x)

    fun = jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    _, logs = lox.spool(lox.context(step=3)(fun))(jnp.arange(4.0))
    assert counters(logs) == {"shard": [[0, 1]], "step": [[3, 3]]}
    _, logs = lox.context(step=3)(jax.jit(lox.spool(fun)))(jnp.arange(4.0))
    assert counters(logs) == {"shard": [[0, 1]], "step": [[3, 3]]}


# -- values are inputs ----------------------------------------------------------------------------------------------


class Traced:
    """A function that logs and counts how often it is traced."""

    def __init__(self, logs=True):
        self.count = 0
        self.logs = logs
        self.__name__ = "traced"

    def __call__(self, x):
        self.count += 1
        if self.logs:
            lox.log({"x": x})
        return x * 2.0


@pytest.fixture
def compilations():
    """What JAX compiles."""
    found = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/jaxpr_to_mlir_module_duration":
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.clear_event_listeners()


COMPILED = {
    "jit of tap": lambda f, arrived: jax.jit(lox.tap(f, arrived.append)),
    "jit of tap with buffer": lambda f, arrived: jax.jit(lox.tap(f, arrived.append, buffer=2)),
    "tap of jit": lambda f, arrived: lox.tap(jax.jit(f), arrived.append),
    "jit of jit of spool": lambda f, arrived: jax.jit(jax.jit(lox.spool(f))),
    "spool of jit": lambda f, arrived: lox.spool(jax.jit(f)),
    "grad of jit of tap": lambda f, arrived: jax.grad(jax.jit(lox.tap(f, arrived.append))),
}


@pytest.mark.parametrize("compiled", COMPILED)
def test_another_value_neither_traces_nor_compiles_and_other_names_trace_once(compiled, compilations):
    traced, arrived = Traced(), []
    fun = COMPILED[compiled](traced, arrived)
    found = []

    def call(**steps):
        with lox.context(**steps):
            out = fun(X)
        lox.flush()
        logs = out[1] if isinstance(out, tuple) else arrived[-1]
        found.append({name: values[0] for name, values in counters(logs).items()})

    fun(X)  # Compiled before, outside of all contexts.
    before = traced.count
    call(step=0)
    first = traced.count
    assert first - before <= 1
    call(step=1)  # What runs eagerly around is compiled by now.
    steps = (2, jnp.int32(3), 4)
    compilations.clear()
    for step in steps:
        call(step=step)
    assert traced.count == first and not compilations
    call(other=1)
    assert traced.count <= first + 1
    call(step=7)
    assert traced.count <= first + 1
    assert found == [*({"step": i} for i in range(5)), {"other": 1}, {"step": 7}]
    fun(X)
    assert traced.count <= first + 1


def test_a_function_first_called_in_a_context_runs_the_handler_once():
    traced, arrived = Traced(), []
    fun = jax.jit(lox.tap(traced, arrived.append))
    for i in range(3):
        with lox.context(step=i):
            fun(X)
    lox.flush()
    assert traced.count == 1 and [counters(logs)["step"] for logs in arrived] == [[0], [1], [2]]


@pytest.mark.parametrize("around", [lambda f: f, lox.spool], ids=["without a handler", "under a handler"])
def test_a_function_that_does_not_log_is_neither_traced_nor_compiled_again(around, compilations):
    traced = Traced(logs=False)
    fun = jax.jit(traced)

    @around
    def train():
        fun(X)
        jnp.sin(jnp.float32(X))
        compilations.clear()
        for i in range(3):
            with lox.context(step=i, prefix=f"{i}/"):
                fun(X)
                jnp.sin(jnp.float32(X))

    train()
    assert traced.count == 1 and not compilations


def test_a_function_that_does_not_log_is_dispatched_to_at_once():
    fun = jax.jit(Traced(logs=False))
    donating = jax.jit(Traced(logs=False), donate_argnums=0)
    with lox.context(step=1):
        assert slow_calls(fun, X) == 0
        for _ in range(2):
            donating(jnp.zeros(()))

    def call(x):
        with lox.context(step=2):
            return fun(x)

    assert slow_calls(call, X) == 0


def test_what_a_jitted_function_donates_is_donated_in_contexts_too():
    f = jax.jit(lambda x, y: lox.log({"x": x + 1, "y": y})["x"], donate_argnums=0)
    for steps in ({}, {"step": 7}, {"step": 7, "rate": 0.5}):
        x, y = jnp.zeros(3) + 1, jnp.ones(3)
        with lox.context(**steps):
            _, logs = lox.spool(lambda x, y: f(x, y))(x, y)
        assert logs["x"].tolist() == [[2, 2, 2]] and counters(logs) == {name: [steps[name]] for name in steps}
        assert x.is_deleted() and not y.is_deleted()


def test_without_a_handler_a_block_adds_nothing_to_a_program():
    def body(x):
        y = jax.nn.relu(note(x)) * jax.jit(jnp.sin)(x)
        return lax.scan(lambda c, _: (jax.checkpoint(jnp.sin)(c), c), y, None, length=2)[0]

    def fun(i, x):
        with lox.context(step=i * 2, rate=0.5, prefix="a/"):
            return jax.grad(body)(x) + body(x)

    def without(i, x):
        i * 2
        return jax.grad(body)(x) + body(x)

    texts = [re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(f)(1, X))) for f in (fun, without)]
    assert texts[0] == texts[1]
    assert jax.jit(fun).lower(1, X).as_text() == jax.jit(without).lower(1, X).as_text().replace("without", "fun")


def test_a_function_with_rules_is_differentiated_by_them():
    """On jax 0.12, those of `custom_root` are in a primitive that JAX evaluates under a trace that does not want it."""

    def root(x):
        def solve(f, y):
            return lax.while_loop(lambda y: jnp.abs(f(y)) > 1e-5, lambda y: y - 0.3 * f(y), y)

        return lax.custom_root(lambda y: y * y - x, jnp.float32(1.5), solve, lambda g, y: y / g(jnp.float32(1)))

    slope = jax.grad(lox.context(step=1)(root))(jnp.float32(2.0))
    np.testing.assert_allclose(slope, 0.5 / np.sqrt(2.0), rtol=1e-4)


def test_a_body_that_two_functions_share_gets_the_counter_in_both():
    def body(x, _):
        return x, lox.spool(note)(x)[1]

    def loop(x):
        return lax.scan(body, x, None, length=2)[1]

    jax.jit(loop)(X)
    shares = jax.jit(lambda x: loop(x))
    with lox.context(step=3):
        assert counters(shares(X)) == {"step": [[3], [3]]}
        assert counters(loop(X)) == {"step": [[3], [3]]}


# -- what a context says --------------------------------------------------------------------------------------------


def test_contexts_nest_and_what_is_nearer_to_the_log_call_counts():
    @lox.context(prefix="a/", tags="t", step=1, only=0)
    def fun(x):
        with lox.context(prefix="b/", tags=["u", "t"], step=2.5):
            lox.log({"x": x}, prefix="c/", tags="v")
            lox.log({"y": x}, step=9)
        lox.log({"z": x})

    _, logs = lox.spool(fun)(X)
    assert sorted(logs) == ["a/b/c/x", "a/b/y", "a/z"]
    assert [counters(logs, key) for key in sorted(logs)] == [
        {"step": [2.5], "only": [0]},
        {"step": [9], "only": [0]},
        {"step": [1], "only": [0]},
    ]
    site, *_ = lox.sites(fun)(X)
    assert site.tags == ("t", "u", "v") and set(site.steps) == {"step", "only"} and site.file == __file__


def test_a_nearer_counter_of_another_dtype_counts_in_what_was_compiled_before_the_handler():
    @lox.spool(reduce="last")
    @jax.jit
    def spooled(xs):
        return lax.map(lambda x: lox.log({"x": x})["x"], xs)

    def nested(values):
        if not values:
            return jax.jit(spooled)(jnp.arange(3.0))
        with lox.context(step=values[0], **{f"only{len(values)}": -len(values)}):
            return nested(values[1:])

    for values in [(1, 2.5), (2.5, 1), (1, 2.5, 3)]:
        _, logs = nested(values)
        found = logs.steps["step"]["x"]
        assert found.tolist() == [values[-1]] and found.dtype == jax.dtypes.canonicalize_dtype(type(values[-1]))
        others = {f"only{number}": [-number] for number in range(1, 1 + len(values))}
        assert counters(logs) == {"step": [values[-1]]} | others
        assert logs["x"].tolist() == [2]


def test_selections_inside_see_what_contexts_around_add():
    f = lox.context(prefix="b/", tags="u")(note)
    with lox.context(prefix="a/", tags="t"):
        assert list(lox.spool(f, argnames="a/b/x")(X)[1]) == ["a/b/x"]
        assert list(lox.spool(jax.jit(f), tags="t")(X)[1]) == ["a/b/x"]
        assert list(jax.jit(lox.spool(f, reduce={"a/b/x": "last"}))(X)[1]) == ["a/b/x"]
        with pytest.warns(lox.SelectionWarning, match="'b/x'.*selects nothing.*'a/b/x'"):
            assert not lox.spool(f, argnames="b/x")(X)[1]
        assert not lox.spool(lox.strip(jax.jit(f), tags="t"))(X)[1]
    assert list(lox.spool(lox.keep(f, tags="u"))(X)[1]) == ["b/x"]


def test_a_context_serves_many_times_and_decorates_as_other_transformations_do():
    here = lox.context(step=1, prefix="a/")

    @here
    def f(x):
        """Doc."""
        with here:
            return note(x)

    assert f.__name__ == "f" and f.__doc__ == "Doc."
    for _ in range(2):
        assert list(lox.spool(f)(X)[1]) == ["a/a/x"]
    with pytest.raises(TypeError, match="generator"):
        here(generator)


def test_loggers_write_logs_in_a_context_and_leave_logs_that_are_there_already():
    ready = lox.logdict({"mine": jnp.array([1.0])})

    def step(key, x):
        state = logger.init(key)
        logger.log(state, ready)
        return logger.tap(note, state)(x)

    with lox.loggers.MemoryLogger() as logger:
        with lox.context(step=3, prefix="a/"):
            jax.jit(step)(jax.random.key(0), X)
            logger.log(logger.init(jax.random.key(0)), ready)
        logger.flush()
        (run,) = logger.runs
        assert sorted(logger[run]) == ["a/x", "mine"] and counters(logger[run], "a/x") == {"step": [3]}
        assert logger[run]["mine"].tolist() == [1.0, 1.0] and counters(logger[run], "mine") == {}


# -- where a block begins and ends ----------------------------------------------------------------------------------


def steps_now():
    return counters(lox.spool(note)(X)[1])


def nothing_is_left():
    return steps_now() == {} and ambient.value is None and _compat.is_top_level()


def generator():
    with lox.context(step=1):
        yield steps_now()
        yield


def test_what_was_before_is_restored_when_an_exception_leaves_a_block():
    def fails(x):
        with lox.context(step=2):
            raise KeyError(x)

    with lox.context(step=1):
        with pytest.raises(KeyError):
            fails(X)
        with pytest.raises(KeyError):
            jax.jit(lambda x: lox.tap(fails)(x))(X)
        assert steps_now() == {"step": [1]}
    assert nothing_is_left()


def test_threads_do_not_see_the_contexts_of_others():
    found, ready = {}, threading.Barrier(2)
    shared = lox.context(prefix="a/")
    spooled = jax.jit(lox.spool(note))

    def work(name):
        found[name, "started"] = steps_now()
        with shared, lox.context(step=name):
            ready.wait()
            for _ in range(20):
                found.setdefault(name, []).append(counters(spooled(X)[1], "a/x"))
            ready.wait()

    with lox.context(step=7):
        threads = [threading.Thread(target=work, args=(name,)) for name in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found[0, "started"] == found[1, "started"] == {}
    assert [found[name] for name in (0, 1)] == [[{"step": [name]}] * 20 for name in (0, 1)]


def test_one_context_in_several_threads_is_left_in_any_order_of_threads():
    """A small letter is a thread that enters the block, a large one the thread that leaves the block."""
    context = lox.context(step=3)
    with concurrent.futures.ThreadPoolExecutor(1) as one, concurrent.futures.ThreadPoolExecutor(1) as other:
        for order in ("abAB", "abBA", "aabABA", "abbBAB"):
            depths = {"a": 0, "b": 0}
            for letter in order:
                thread = one if letter in "aA" else other
                if letter.islower():
                    thread.submit(context.__enter__).result()
                else:
                    thread.submit(context.__exit__, None, None, None).result()
                depths[letter.lower()] += 1 if letter.islower() else -1
                found = [each.submit(steps_now).result() for each in (one, other)]
                assert found == [{"step": [3]} if depths[name] else {} for name in "ab"], order
        assert one.submit(nothing_is_left).result() and other.submit(nothing_is_left).result()


def test_a_generator_may_open_a_block_that_it_closes_in_order():
    assert list(generator())[0] == {"step": [1]}
    assert nothing_is_left()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_block_that_is_left_out_of_order_raises_at_its_exit():
    running = generator()
    next(running)
    with pytest.raises(lox.ContextError, match="another order"), lox.context(step=2):
        with pytest.raises(lox.ContextError, match="generator"):
            list(running)
    assert nothing_is_left()

    running = generator()
    with pytest.raises(lox.ContextError, match="another order"), lox.context(step=2):
        next(running)
    assert nothing_is_left()
    with pytest.raises(lox.ContextError):
        running.close()
    assert nothing_is_left()


def test_a_block_of_a_generator_that_a_traced_function_leaves_open_raises():
    def opening():
        with lox.context(step=1):
            yield

    running = opening()
    jax.jit(lambda x: (next(running), x)[1])(X)
    with pytest.raises(lox.ContextError):
        running.close()
    assert nothing_is_left()


def test_coroutines_that_await_in_blocks_raise():
    async def task(step):
        with lox.context(step=step):
            await asyncio.sleep(0)

    async def both():
        return await asyncio.gather(task(1), task(2), return_exceptions=True)

    assert [type(error) for error in asyncio.run(both())] == [lox.ContextError] * 2
    assert nothing_is_left()


# -- derivatives ----------------------------------------------------------------------------------------------------


def test_log_grad_and_bwd_rules_have_the_context_of_the_forward_call():
    @jax.custom_vjp
    def square(x):
        return x * x

    def bwd(x, bar):
        lox.log({"bwd": bar})
        return (2.0 * x * bar,)

    square.defvjp(lambda x: (x * x, x), bwd)

    def loss(x):
        y = lox.log_grad({"y": square(x)})["y"]
        return jax.checkpoint(lambda y: jnp.sin(lox.log_grad({"z": jnp.sin(y)})["z"]))(y)

    def f(x):
        with lox.context(step=1, prefix="a/"):
            _, back = jax.vjp(loss, x)
            _, compiled = jax.vjp(jax.jit(loss), x)
        with lox.context(step=2, prefix="b/"):
            back(1.0)
        return compiled(1.0)

    for handled in (lox.spool(f), jax.jit(lox.spool(f)), lox.spool(jax.jit(f))):
        _, logs = handled(X)
        assert sorted(logs) == ["a/bwd", "a/grad/y", "a/grad/z"]
        assert all(counters(logs, key) == {"step": [1, 1]} for key in logs)


@pytest.mark.parametrize("compiled", [False, True])
def test_rules_that_call_their_own_function_have_the_context_in_all_orders_of_derivatives(compiled):
    @jax.custom_vjp
    def square(x):
        return note(x * x)

    square.defvjp(lambda x: (square(x), x), lambda x, bar: (2.0 * x * bar,))
    third = lox.context(step=3)(lambda x: x * square(x))
    derivative, expected = third, [3.0, 6.0, 6.0]  # Of x ** 3, in 0.5 these are exact.
    for order, scale in enumerate((0.25, 0.5, 1.0)):
        derivative = jax.grad(jax.jit(derivative) if compiled else derivative)
        for handled in (lox.spool(derivative), jax.jit(lox.spool(derivative))):
            out, logs = handled(0.5)
            assert out == expected[order] * scale
            assert set(counters(logs)["step"]) == {3}


def test_a_handler_in_a_custom_rule_has_the_context_or_raises():
    arrived = []
    tapped = lox.tap(lambda x: note(x), arrived.append)
    square = jax.custom_vjp(tapped)
    square.defvjp(lambda x: (tapped(x), x), lambda x, bar: (tapped(bar),))
    around = lox.context(step=1)
    for fun in (
        around(jax.grad(square)),
        around(jax.jit(jax.grad(square))),
        jax.grad(around(square)),
        jax.jit(jax.grad(around(square))),
        jax.grad(jax.jit(around(jax.jit(square)))),
    ):
        arrived.clear()
        fun(X)
        lox.flush()
        assert [counters(logs) for logs in arrived] == [{"step": [1]}] * 2

    only_bwd = jax.custom_vjp(lambda x: x * x)
    only_bwd.defvjp(lambda x: (x * x, x), lambda x, bar: (tapped(bar),))
    arrived.clear()
    around(jax.grad(only_bwd))(X)
    lox.flush()
    assert [counters(logs) for logs in arrived] == [{"step": [1]}]
    for fun in (jax.grad(around(only_bwd)), jax.jit(jax.grad(around(only_bwd))), jax.grad(around(jax.jit(only_bwd)))):
        with pytest.raises(lox.ContextError, match="rule of a custom_jvp or custom_vjp"):
            fun(X)


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", [None, "mean"])
def test_a_key_with_and_without_a_counter_of_a_context_is_refused_with_its_name(reduce):
    def fun(x):
        note(x)
        with lox.context(step=1):
            note(x)

    with pytest.raises(lox.StructureError, match=r"gets 'step' from a lox\.context around it"):
        lox.spool(fun, reduce=reduce)(X)


@pytest.mark.parametrize(
    "fun",
    [
        lambda tapped: jax.jit(tapped).lower(X),
        lambda tapped: jax.export.export(jax.jit(tapped))(X),
        lambda tapped: jax.jit(lambda x: (_at_compile_time(tapped), x)[1])(X),
    ],
    ids=["lower", "export", "ensure_compile_time_eval"],
)
def test_where_a_counter_cannot_reach_a_log_there_is_an_error(fun):
    tapped = lox.tap(note, lambda logs: None)
    with lox.context(step=1), pytest.raises(lox.ContextError, match="counter 'step' of a lox.context has no value"):
        fun(tapped)
    assert nothing_is_left()


def _at_compile_time(tapped):
    with jax.ensure_compile_time_eval():
        tapped(jnp.float32(X))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"step": "a"}, lox.LogDataError, "step 'step'"),
        ({"step": np.zeros(2)}, lox.LogValueError, r"scalar number, got float\d\d\[2\]"),
        ({"step": True}, lox.LogValueError, "scalar number, got bool"),
        ({"tag": 1}, lox.LogValueError, "tags"),
        ({"where": True}, lox.LogValueError, "no where="),
        ({"prefix": 1}, lox.LogDataError, "prefix must be a string"),
        ({"tags": [1]}, lox.LogDataError, "tags must be strings"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message) as caught:
        lox.context(**arguments)
    assert "test_context.py" in str(caught.value)


def test_nothing_leaks_and_operations_may_run_one_by_one():
    def train(x):
        def step(x, i):
            with lox.context(step=i):
                return jax.jit(note)(x), None

        return jax.grad(lambda x: lax.scan(step, x, jnp.arange(2))[0])(x)

    with jax.checking_leaks():
        assert counters(lox.spool(train)(X)[1]) == {"step": [0, 1]}
        with lox.context(other=1):
            assert counters(jax.jit(lox.spool(train))(X)[1]) == {"step": [0, 1], "other": [1, 1]}
    with jax.disable_jit():
        assert counters(lox.spool(train)(X)[1]) == {"step": [0, 1]}


def _taps_backward(received):
    """A function that logs in its bwd rule alone, where a tap hears of it."""

    @jax.custom_vjp
    def fun(x):
        return jnp.sin(x)

    def bwd(residuals, out_bar):
        lox.tap(lambda g: lox.log({"g": g}), callback=lambda logs: received.append(logs))(out_bar)
        return (out_bar,)

    fun.defvjp(lambda x: (jnp.sin(x), None), bwd)
    return fun


@pytest.mark.parametrize(
    "program",
    [
        lambda context, fun: jax.jit(context(jax.jit(fun))),
        lambda context, fun: jax.jit(context(jax.jit(jax.jit(fun)))),
        lambda context, fun: jax.jit(context(lambda x: lax.scan(lambda x, _: (fun(x), None), x, None, 2)[0])),
        lambda context, fun: lambda x: lax.scan(lambda x, _: (context(jax.jit(fun))(x), None), x, None, 2)[0],
        lambda context, fun: jax.jit(context(lambda x: lax.cond(x > 0, fun, lambda x: x, x))),
        lambda context, fun: jax.jit(context(jax.checkpoint(fun))),
    ],
    ids=["jit", "jit in jit", "scan", "scan around", "cond", "checkpoint"],
)
def test_a_rule_that_runs_a_handler_after_the_block_is_refused_wherever_it_is(program):
    received = []
    fun = _taps_backward(received)
    with pytest.raises(lox.ContextError, match="after the block"):
        jax.grad(program(lox.context(step=1), fun))(X)
    assert not received
    jax.grad(program(lambda f: f, fun))(X)
    lox.flush()
    assert received
    assert not any(logs.steps for logs in received)


@pytest.mark.parametrize("reraised", [False, True])
@pytest.mark.parametrize(
    "inside", [lambda f: f, jax.jit, lambda f: lambda x: lax.scan(lambda x, _: (f(x), None), x, None, 1)[0]]
)
def test_a_function_that_catches_all_exceptions_gets_its_counter(inside, reraised):
    received = []

    def fun(x):
        try:
            lox.tap(note, callback=lambda logs: received.append(logs))(x)
        except:  # noqa: E722
            if reraised:
                raise ValueError("an error") from None
        return x * 2

    jitted = jax.jit(inside(fun))
    for _ in range(2):
        assert lox.context(step=3)(jitted)(X) == X * 2
    lox.flush()
    assert [int(logs.steps["step"]["x"][0]) for logs in received] == [3, 3]
    assert jitted(X) == X * 2
    lox.flush()
    assert len(received) == 3
    assert not received[-1].steps


def test_a_rule_that_catches_all_exceptions_does_not_lose_a_counter():
    @jax.custom_vjp
    def fun(x):
        return x * 2

    def bwd(residuals, out_bar):
        try:
            lox.tap(note, callback=lambda logs: None)(out_bar)
        except:  # noqa: E722
            pass
        return (out_bar,)

    fun.defvjp(lambda x: (x * 2, None), bwd)
    with pytest.raises(lox.ContextError, match="after the block"):
        jax.grad(lox.context(step=1)(fun))(X)
