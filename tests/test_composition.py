"""Programs x transformations x handlers: what each logs is what the same program in plain Python logs."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from reference import Journal, assert_array, lane, no_log

import lox

X = 1.5
XS = (0.5, 1.5, 2.5)
RTOL = 1e-5


@dataclasses.dataclass(frozen=True)
class Program:
    """A program with logs, written for JAX and in plain Python; both take what they log with and a number."""

    traced: Callable
    plain: Callable
    options: dict
    masked: frozenset
    forward: bool
    reverse: bool

    def logging(self):
        return functools.partial(self.traced, lox.log)

    def silent(self):
        return functools.partial(self.traced, no_log)

    def spool(self, fun, **options):
        return lox.spool(fun, **(self.options | options))

    def expected(self, x):
        journal = Journal()
        return self.plain(journal.log, x), journal.events


programs = {}


def program(plain, masked=(), forward=True, reverse=True, **options):
    """Registers a program; `forward` and `reverse` say whether such a derivative exists and runs the logs once."""

    def register(traced):
        programs[traced.__name__] = Program(traced, plain, options, frozenset(masked), forward, reverse)
        return traced

    return register


def plain_straight_line(log, x):
    log({"a": x})
    y = x * x
    log({"b": y, "a": y + 1})
    return y


@program(plain_straight_line)
def straight_line(log, x):
    log({"a": x})
    y = x * x
    log({"b": y, "a": y + 1})
    return y


def plain_loop(log, x, order=range(3), factor=0.5):
    for i in order:
        log({"a": x, "b": i}, step=i)
        x = factor * x + i
    return x


def loop_body(log, x, i):
    log({"a": x, "b": i}, step=i)
    return 0.5 * x + i.astype(jnp.float32)


@program(plain_loop)
def scan(log, x):
    return lax.scan(lambda x, i: (loop_body(log, x, i), None), x, jnp.arange(3))[0]


@program(lambda log, x: plain_loop(log, x, order=(2, 1, 0)))
def reversed_scan(log, x):
    return lax.scan(lambda x, i: (loop_body(log, x, i), None), x, jnp.arange(3), reverse=True)[0]


@program(lambda log, x: plain_loop(log, x, order=range(5)))
def unrolled_scan(log, x):
    return lax.scan(lambda x, i: (loop_body(log, x, i), None), x, jnp.arange(5), unroll=2)[0]


@program(plain_loop)
def fori_loop(log, x):
    return lax.fori_loop(0, 3, lambda i, x: loop_body(log, x, i), x)


def plain_map(log, x):
    for i in range(3):
        log({"a": x * i})
    return 3 * x


@program(plain_map)
def mapped_loop(log, x):
    def step(i):
        log({"a": x * i.astype(jnp.float32)})
        return x

    return lax.map(step, jnp.arange(3)).sum()


def plain_invariant(log, x):
    for _ in range(4):
        log({"a": 7.0})
        log({"b": x})
        x = np.sin(x)
    return x


@program(plain_invariant)
def scan_with_a_constant_log(log, x):
    def step(x, _):
        log({"a": 7.0})
        log({"b": x})
        return jnp.sin(x), None

    return lax.scan(step, x, None, length=4)[0]


def plain_closed_over(log, x):
    y = x
    for _ in range(3):
        log({"a": x * x})
        y = y * 0.5
    return y


@program(plain_closed_over)
def scan_with_a_log_of_what_it_closes_over(log, x):
    def step(y, _):
        log({"a": x * x})
        return y * 0.5, None

    return lax.scan(step, x, None, length=3)[0]


def plain_nested(log, x):
    for i in range(2):
        log({"b": i})
        for j in range(3):
            x = x * 0.5 + i
            log({"a": x, "b": 10 * i + j})
    return x


@program(plain_nested)
def nested_scans(log, x):
    def outer(x, i):
        log({"b": i})

        def inner(x, j):
            x = x * 0.5 + i.astype(jnp.float32)
            log({"a": x, "b": 10 * i + j})
            return x, None

        return lax.scan(inner, x, jnp.arange(3))[0], None

    return lax.scan(outer, x, jnp.arange(2))[0]


def plain_cond(log, x):
    if x > 1:
        log({"a": x})
        return 2 * x
    log({"a": -x})
    return x


@program(plain_cond)
def cond_with_the_same_keys(log, x):
    def large(x):
        log({"a": x})
        return 2 * x

    def small(x):
        log({"a": -x})
        return x

    return lax.cond(x > 1, large, small, x)


def plain_unlike_cond(log, x):
    if x > 1:
        log({"a": x, "c": x})
        log({"a": x + 1})
        return 2 * x
    log({"a": -x, "b": x})
    return x


@program(plain_unlike_cond, masked="abc", unify=True)
def cond_with_other_keys(log, x):
    def large(x):
        log({"a": x, "c": x})
        log({"a": x + 1})
        return 2 * x

    def small(x):
        log({"a": -x, "b": x})
        return x

    return lax.cond(x > 1, large, small, x)


def plain_switch_in_loop(log, x):
    for i in range(4):
        if i == 1:
            log({"a": x, "b": x})
        if i == 3:
            log({"a": 2 * x})
        x = x * 0.5 if i == 3 else x + 1 if i == 1 else x
    return x


@program(plain_switch_in_loop, masked="ab", unify=True)
def switch_in_a_scan(log, x):
    def one(x):
        log({"a": x, "b": x})
        return x + 1

    def two(x):
        log({"a": 2 * x})
        return x * 0.5

    def step(x, i):
        return lax.switch(jnp.array([0, 1, 0, 2])[i], [lambda x: x, one, two], x), None

    return lax.scan(step, x, jnp.arange(4))[0]


def plain_while(log, x):
    while x < 10:
        log({"a": x})
        x = 2 * x
    return x


@program(plain_while, masked="a", reverse=False, max_iters=6)
def while_loop(log, x):
    def body(x):
        log({"a": x})
        return 2 * x

    return lax.while_loop(lambda x: x < 10, body, x)


def plain_while_condition(log, x):
    log({"a": x})
    while x < 10:
        x = 2 * x
        log({"a": x})
    return x


@program(plain_while_condition, masked="a", reverse=False, max_iters=6)
def while_loop_that_logs_in_its_condition(log, x):
    def condition(x):
        log({"a": x})
        return x < 10

    return lax.while_loop(condition, lambda x: 2 * x, x)


def plain_while_in_scan(log, x):
    for i in range(2):
        y = x + i
        while y < 4:
            log({"a": y, "b": i})
            y = 2 * y
        x = x + 0.25 * y
    return x


@program(plain_while_in_scan, masked="ab", reverse=False, max_iters=4)
def while_loop_in_a_scan(log, x):
    def step(x, i):
        def body(y):
            log({"a": y, "b": i})
            return 2 * y

        y = lax.while_loop(lambda y: y < 4, body, x + i.astype(jnp.float32))
        return x + 0.25 * y, None

    return lax.scan(step, x, jnp.arange(2))[0]


def plain_while_in_cond(log, x):
    if x > 1:
        while x < 10:
            log({"a": x})
            x = 2 * x
    return x


@program(plain_while_in_cond, masked="a", reverse=False, max_iters=6, unify=True)
def while_loop_in_a_cond(log, x):
    def body(x):
        log({"a": x})
        return 2 * x

    return lax.cond(x > 1, lambda x: lax.while_loop(lambda x: x < 10, body, x), lambda x: x, x)


def plain_sine(log, x):
    log({"a": x})
    y = np.sin(x)
    log({"b": y})
    return y * x


def sine(log, x):
    log({"a": x})
    y = jnp.sin(x)
    log({"b": y})
    return y * x


@program(plain_sine)
def inner_jit(log, x):
    return jax.jit(functools.partial(sine, log))(x)


@program(plain_sine)
def inner_checkpoint(log, x):
    return jax.checkpoint(functools.partial(sine, log))(x)


def plain_sines(log, x):
    for _ in range(3):
        x = plain_sine(log, x)
    return x


@program(plain_sines)
def scan_of_checkpoint(log, x):
    return lax.scan(lambda x, _: (jax.checkpoint(functools.partial(sine, log))(x), None), x, None, length=3)[0]


@program(plain_sines)
def checkpoint_of_scan(log, x):
    return jax.checkpoint(lambda x: lax.scan(lambda x, _: (sine(log, x), None), x, None, length=3)[0])(x)


def plain_inner_grad(log, x):
    log({"a": x})
    log({"b": np.sin(x)})
    return np.sin(x) + x * np.cos(x)


@program(plain_inner_grad)
def inner_grad(log, x):
    return jax.grad(functools.partial(sine, log))(x)


def plain_inner_vmap(log, x):
    log({"a": np.array([x, x + 1]), "b": np.array([3.0, 3.0])})
    return 2 * x + 1


@program(plain_inner_vmap)
def inner_vmap(log, x):
    def one(y):
        log({"a": y, "b": 3.0})
        return y

    return jax.vmap(one)(x + jnp.arange(2.0)).sum()


def plain_custom(log, x):
    log({"a": x})
    return x * x


@program(plain_custom)
def custom_jvp(log, x):
    @jax.custom_jvp
    def square(x):
        log({"a": x})
        return x * x

    square.defjvp(lambda primals, tangents: (square(*primals), 3 * tangents[0]))
    return square(x)


@program(plain_custom, forward=False)
def custom_vjp(log, x):
    @jax.custom_vjp
    def square(x):
        log({"a": x})
        return x * x

    square.defvjp(lambda x: (square(x), None), lambda _, bar: (3 * bar,))
    return square(x)


def plain_custom_loop(log, x):
    for _ in range(3):
        log({"a": x})
        x = 0.5 * x
    return x


@program(plain_custom_loop, forward=False)
def custom_vjp_in_a_scan(log, x):
    @jax.custom_vjp
    def half(x):
        log({"a": x})
        return 0.5 * x

    half.defvjp(lambda x: (half(x), None), lambda _, bar: (3 * bar,))
    return lax.scan(lambda x, _: (half(x), None), x, None, length=3)[0]


def plain_solve(log, x):
    log({"a": x, "b": 1.0})
    return x / 4


# Its derivative is solved for by the same function, which then logs again.
@program(plain_solve, forward=False, reverse=False)
def custom_linear_solve(log, x):
    def solve(matvec, b):
        log({"a": b, "b": 1.0})
        return b / 4

    return lax.custom_linear_solve(lambda y: 4 * y, x, solve, transpose_solve=solve)


def plain_root(log, x):
    log({"a": x})
    return np.sqrt(x)


@program(plain_root)
def custom_root(log, x):
    def solve(f, guess):
        log({"a": guess})
        return jnp.sqrt(guess)

    return lax.custom_root(lambda y: y * y - x, x, solve, lambda g, y: y / g(1.0))


names = sorted(programs)
differentiable = sorted(name for name in names if programs[name].reverse)


def assert_events(case, logs, events, select=lambda logs, key: logs.valid(key)):
    """The events that happened are the expected ones; a mask stands only where events may not happen."""
    assert set(events) <= set(logs)
    assert set(logs.mask) == case.masked & set(logs)
    for key in logs:
        found = select(logs, key)
        expected = np.asarray(events.get(key, np.zeros((0, *found.shape[1:]), found.dtype)))
        assert_array(found, expected.astype(found.dtype), RTOL)


run_once = {
    "spool": lambda case, f: case.spool(f),
    "jit of spool": lambda case, f: jax.jit(case.spool(f)),
    "spool of jit": lambda case, f: case.spool(jax.jit(f)),
    "spool of checkpoint": lambda case, f: case.spool(jax.checkpoint(f)),
    "checkpoint of spool": lambda case, f: jax.checkpoint(case.spool(f)),
    "spool of cond": lambda case, f: case.spool(lambda x: lax.cond(x > 0, f, f, x)),
}
run_forward = {
    "spool of jvp": lambda case, f: case.spool(lambda x: jax.jvp(f, (x,), (jnp.float32(1),))[0]),
    "jvp of spool": lambda case, f: lambda x: jax.jvp(case.spool(f), (x,), (jnp.float32(1),))[0],
    "spool of linearize": lambda case, f: case.spool(lambda x: jax.linearize(f, x)[0]),
}


def logs_as_plain_python(name, transform):
    case = programs[name]
    out, events = case.expected(X)
    found, logs = transform(case, case.logging())(jnp.float32(X))
    np.testing.assert_allclose(found, out, RTOL)
    assert_events(case, logs, events)


@pytest.mark.covering(1)
@pytest.mark.parametrize("transformation", run_once)
@pytest.mark.parametrize("name", names)
def test_a_program_logs_what_plain_python_logs(name, transformation):
    logs_as_plain_python(name, run_once[transformation])


@pytest.mark.covering(1)
@pytest.mark.parametrize("transformation", run_forward)
@pytest.mark.parametrize("name", [name for name in names if programs[name].forward])
def test_a_program_logs_in_forward_mode_what_plain_python_logs(name, transformation):
    logs_as_plain_python(name, run_forward[transformation])


run_batch = {
    "vmap of spool": (0, lambda case, f: jax.vmap(case.spool(f))),
    "spool of vmap": (1, lambda case, f: case.spool(jax.vmap(f))),
    "jit of spool of vmap": (1, lambda case, f: jax.jit(case.spool(jax.vmap(f)))),
    "spool of vmap of jit": (1, lambda case, f: case.spool(jax.vmap(jax.jit(f)))),
    "vmap of spool of jit": (0, lambda case, f: jax.vmap(case.spool(jax.jit(f)))),
    "spool of vmap of checkpoint": (1, lambda case, f: case.spool(jax.vmap(jax.checkpoint(f)))),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("transformation", run_batch)
@pytest.mark.parametrize("name", names)
def test_each_lane_logs_what_plain_python_logs(name, transformation):
    case = programs[name]
    axis, transform = run_batch[transformation]
    out, logs = transform(case, case.logging())(jnp.array(XS, jnp.float32))
    for index, x in enumerate(XS):
        expected, events = case.expected(x)
        np.testing.assert_allclose(out[index], expected, RTOL)
        assert_events(case, logs, events, lambda logs, key, index=index: lane(logs, key, index, axis))


derivatives = {
    "spool of value_and_grad": lambda case, f: case.spool(jax.value_and_grad(f)),
    "value_and_grad of spool": lambda case, f: lambda x: auxiliary(jax.value_and_grad(case.spool(f), has_aux=True)(x)),
    "jit of spool of value_and_grad": lambda case, f: jax.jit(case.spool(jax.value_and_grad(f))),
    "spool of jit of value_and_grad": lambda case, f: case.spool(jax.jit(jax.value_and_grad(f))),
    "spool of value_and_grad of jit": lambda case, f: case.spool(jax.value_and_grad(jax.jit(f))),
    "spool of value_and_grad of checkpoint": lambda case, f: case.spool(jax.value_and_grad(jax.checkpoint(f))),
    "spool of vjp": lambda case, f: case.spool(lambda x: pulled_back(f, x)),
}


def auxiliary(result):
    (out, logs), derivative = result
    return (out, derivative), logs


def pulled_back(f, x):
    out, pull_back = jax.vjp(f, x)
    return out, pull_back(jnp.float32(1))[0]


@pytest.mark.covering(1)
@pytest.mark.parametrize("transformation", derivatives)
@pytest.mark.parametrize("name", differentiable)
def test_a_differentiated_program_logs_its_events_once_and_has_its_derivative(name, transformation):
    case = programs[name]
    (found, derivative), logs = derivatives[transformation](case, case.logging())(jnp.float32(X))
    out, events = case.expected(X)
    np.testing.assert_allclose(found, out, RTOL)
    np.testing.assert_allclose(derivative, jax.grad(case.silent())(jnp.float32(X)), RTOL)
    assert_events(case, logs, events)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", differentiable)
def test_each_lane_of_a_differentiated_program_logs_its_events_once(name):
    case = programs[name]
    (out, derivative), logs = case.spool(jax.vmap(jax.value_and_grad(case.logging())))(jnp.array(XS, jnp.float32))
    for index, x in enumerate(XS):
        expected, events = case.expected(x)
        np.testing.assert_allclose(out[index], expected, RTOL)
        np.testing.assert_allclose(derivative[index], jax.grad(case.silent())(jnp.float32(x)), RTOL)
        assert_events(case, logs, events, lambda logs, key, index=index: lane(logs, key, index))


@pytest.mark.parametrize("name", names)
def test_a_program_in_a_loop_logs_what_its_iterations_log(name):
    case = programs[name]
    f = case.logging()
    out, logs = case.spool(lambda xs: lax.map(f, xs))(jnp.array(XS, jnp.float32))
    journal = Journal()
    np.testing.assert_allclose(out, [case.plain(journal.log, x) for x in XS], RTOL)
    assert_events(case, logs, journal.events)


handlers = {
    "strip": (lox.strip, set("abc")),
    "strip of a": (lox.strip(argnames="a"), {"a"}),
    "keep of a": (lox.keep(argnames="a"), set("bc")),
    "spool of a": (lambda f: lambda *args: lox.spool(f, argnames="a", unify=True, max_iters=6)(*args)[0], {"a"}),
    "spool with keep_logs": (
        lambda f: lambda *args: lox.spool(f, keep_logs=True, unify=True, max_iters=6)(*args)[0],
        set(),
    ),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("handler", handlers)
@pytest.mark.parametrize("name", names)
def test_a_handler_removes_what_it_selects_and_nothing_else(name, handler):
    case = programs[name]
    transform, removed = handlers[handler]
    out, logs = case.spool(jax.jit(transform(case.logging())))(jnp.float32(X))
    expected, events = case.expected(X)
    np.testing.assert_allclose(out, expected, RTOL)
    assert not removed & set(logs)
    assert_events(case, logs, {key: values for key, values in events.items() if key not in removed})


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", names)
def test_a_filter_works_under_vmap_and_between_vmap_and_a_program(name):
    case = programs[name]
    keep_a = lox.keep(argnames="a")
    xs = jnp.array(XS, jnp.float32)
    for fun in (jax.vmap(keep_a(case.logging())), keep_a(jax.vmap(case.logging()))):
        _, logs = case.spool(fun)(xs)
        for index, x in enumerate(XS):
            _, events = case.expected(x)
            kept = {key: values for key, values in events.items() if key == "a"}
            assert_events(case, logs, kept, lambda logs, key, index=index: lane(logs, key, index))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", differentiable)
def test_a_filter_changes_no_derivative(name):
    case = programs[name]
    expected = jax.grad(case.silent())(jnp.float32(X))
    for strip in (lox.strip, lox.strip(argnames="a")):
        np.testing.assert_allclose(jax.grad(strip(case.logging()))(jnp.float32(X)), expected, RTOL)
        np.testing.assert_allclose(strip(jax.grad(case.logging()))(jnp.float32(X)), expected, RTOL)


@pytest.mark.covering(1)
@pytest.mark.parametrize("reduction", ["sum", "last"])
@pytest.mark.parametrize("name", names)
def test_a_reduction_is_that_of_the_events_that_happen(name, reduction):
    case = programs[name]
    _, events = case.expected(X)
    reduce = {"sum": sum, "last": lambda values: values[-1]}[reduction]
    _, logs = jax.jit(lox.spool(case.logging(), reduce=reduction))(jnp.float32(X))
    for key in logs:
        happened = key in events
        assert bool(logs.mask.get(key, jnp.array([True]))[0]) == happened
        if happened:
            np.testing.assert_allclose(logs[key][0], np.asarray(reduce(events[key])), RTOL)
    assert set(events) <= set(logs)


@pytest.mark.parametrize("name", names)
def test_an_interval_keeps_every_second_event_of_those_that_happen(name):
    case = programs[name]
    _, events = case.expected(X)
    _, logs = jax.jit(case.spool(case.logging(), interval=2))(jnp.float32(X))
    for key in logs:
        found = logs.valid(key)
        expected = np.asarray(events.get(key, [])[::2] or np.zeros((0, *found.shape[1:])))
        assert_array(found, expected.astype(found.dtype), RTOL)
    assert set(events) <= set(logs)


@pytest.mark.parametrize("name", names)
def test_a_program_without_a_handler_has_no_logs(name):
    case = programs[name]
    x = jnp.float32(X)
    with_logs, without = jax.jit(case.logging()).lower(x), jax.jit(case.silent()).lower(x)
    assert with_logs.as_text() == without.as_text()
    assert jax.make_jaxpr(case.logging())(x).effects == jax.make_jaxpr(case.silent())(x).effects
