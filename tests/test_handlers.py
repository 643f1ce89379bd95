"""The contract of handlers: what the core asks of one, and what it says of one that does not keep to it."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox
from lox import _compat, _transform
from lox._collect import of_logs, unify_branches
from lox._columns import with_event_axes
from lox._effect import recording
from lox._events import events
from lox._exceptions import HandlerError
from lox._handler import Collector, Filter, Stateful, Streamer
from lox._logs_in import events_in
from lox._select import Selecting, Selection


@dataclasses.dataclass(frozen=True)
class Uses(Filter):
    """Notes the use that each primitive makes of its programs."""

    seen: list = dataclasses.field(default_factory=list, compare=False)

    def rewrite(self, state, logs):
        return logs

    def enter(self, state, programs, inside):
        self.seen.append(inside)
        return self, state


def test_a_handler_is_told_a_branch_from_a_loop_a_call_and_a_function_with_rules():
    @jax.custom_jvp
    def ruled(x):
        return lox.log({"x": x})["x"]

    ruled.defjvp(lambda primals, tangents: (primals[0], tangents[0]))

    def body(x):
        return lox.log({"x": x})["x"] + 1

    uses = {
        "call": jax.jit(body),
        "loop": lambda x: lax.fori_loop(0, 3, lambda _, x: body(x), x),
        "branch": lambda x: lax.cond(x > 0, body, lambda x: x, x),
        "rule": ruled,
    }
    found = {}
    for use, program in uses.items():
        handler = Uses()
        jax.make_jaxpr(lambda x, f=program, h=handler: _transform.run(h, None, f, (x,), {})[0])(jnp.float32(1))
        found[use] = set(handler.seen)
    assert found == {use: {use} for use in uses}


@dataclasses.dataclass(frozen=True, kw_only=True)
class All(Collector):
    """Collects all logs, and has no rule for any primitive."""

    def collect(self, logs):
        return logs

    def unify_branches(self, branches):
        return of_logs(unify_branches([logs for _, logs in branches]))

    def detached(self, state, sites):
        raise AssertionError


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seen:
    """Whether there was a log, which is known while the program is traced."""

    any: bool = dataclasses.field(default=False, metadata={"static": True})


class First(All):
    """Collects the first log."""

    def join(self, state, logs):
        return (state, ()) if state.any or not logs else (Seen(True), logs[:1])


def run(handler, state, fun, *args):
    """The result, the state and the logs of a function under a handler."""
    return _transform.run(handler, state, fun, args, {})


def doublings(x):
    def condition(x):
        lox.log({"c": x})
        return x < 8

    return lax.while_loop(condition, lambda x: 2 * x, x)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_collector_without_a_rule_for_while_refuses_the_loops_that_it_collects_from(transform):
    message = "All collects the log at .*test_handlers.py:.* a while_loop .* number of iterations is not known"
    with pytest.raises(lox.UnsupportedPrimitiveError, match=message):
        run(All(forward=False), None, transform(doublings), jnp.float32(1))
    out, _, logs = run(All(forward=False), None, transform(lox.strip(doublings)), jnp.float32(1))
    assert (out, logs) == (8, ())


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_the_first_test_of_a_loop_is_joined_once(transform):
    out, state, logs = run(First(forward=False), Seen(), transform(doublings), jnp.float32(1))
    (event,) = events(logs)
    assert (out, state, event.values) == (8, Seen(True), {"c": 1})


@pytest.mark.parametrize("kind", [Collector, Stateful, Streamer])
def test_a_kind_says_which_methods_a_handler_must_have(kind):
    class Lacking(kind):
        def handle(self, state, logs):
            return state, ()

        def collect(self, logs):
            return logs

        def unify_branches(self, branches):
            return [lambda results: results for _ in branches]

    with pytest.raises(TypeError, match="abstract.*detached"):
        Lacking(forward=False)

    class Whole(Lacking):
        def detached(self, state, sites):
            raise AssertionError

    with pytest.raises(TypeError, match="forward"):
        Whole()
    assert Whole(forward=True).returns_logs == (kind is not Streamer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count(Selecting, Stateful):
    """Counts the events of each selected key that happened."""

    def handle(self, state, logs):
        for each in with_event_axes(self.taken(logs)):
            axes = sorted(_compat.varying_axes(each.any_value()))
            number = jnp.sum(_compat.vary_in_branch(each.happened(), axes), dtype=jnp.int32)
            state = state | {key: state.get(key, 0) + number for key in each.values}
        return state, ()

    def enter(self, state, programs, inside):
        found = [event for program in programs for event in events_in(program)]
        keys = {key for event in found for key in event.values if self.selection.has(key, event.site.tags)}
        return self, dict.fromkeys(sorted(keys), jnp.int32(0))

    def leave(self, state, after, collected, trips=1):
        return state | {key: state.get(key, 0) + jnp.sum(number) for key, number in after.items()}, ()


class CountByShards(Count):
    """Counts events that are the same on all shards once."""

    def by_shards(self, state, axes_of):
        return [(0, {key: number}) for key, number in state.items()]


def count(fun, kind=Count, **selection):
    def counted(*args):
        handler = kind(selection=Selection.of(selection.get("argnames"), None), forward=recording.value)
        out, numbers, _ = run(handler, {}, fun, *args)
        return out, {key: int(number) for key, number in numbers.items()}

    return counted


def test_a_handler_leaves_logs_in_loops_under_a_derivative_for_one_further_out():
    def f(x):
        def step(x, i):
            lox.log({"i": i})
            return jnp.sin(lox.log({"x": x})["x"]), None

        return lax.scan(step, x, jnp.arange(3))[0]

    found = []

    def counted(x):
        out, numbers = count(jax.grad(f), argnames="x")(x)
        found.append(numbers)
        return out

    assert list(lox.spool(counted)(jnp.float32(1))[1]["i"]) == [0, 1, 2]
    assert found == [{"x": 3}]


@pytest.mark.parametrize("kind, expected", [(Count, {"a": 8, "b": 8}), (CountByShards, {"a": 8, "b": 4})])
def test_a_handler_says_which_parts_of_its_state_get_an_axis_for_shards(kind, expected):
    def f(x):
        def step(x, _):
            lox.log({"a": x})
            lox.log({"b": jnp.float32(1)})
            return x + 1, None

        return lax.scan(step, x, None, length=4)[0]

    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(f, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))
    assert count(sharded, kind)(jnp.arange(4.0))[1] == expected


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grows(Stateful):
    """Adds to its state an array for each key that is logged."""

    def handle(self, state, logs):
        return state | {key: jnp.int32(1) for event in events(logs) for key in event.values}, ()

    def detached(self, state, sites):
        raise AssertionError


def test_a_handler_whose_state_has_another_structure_in_each_branch_is_named():
    def f(x):
        return lax.cond(x > 0, lambda: lox.log({"a": x})["a"], lambda: lox.log({"b": x})["b"])

    with pytest.raises(HandlerError, match=r"Grows in branch 0 of a cond .*'b'.*'a'.* `unify_branches`"):
        run(Grows(forward=False), {}, f, jnp.float32(1))


@pytest.mark.parametrize(
    "loop",
    [
        lambda body, x: lax.fori_loop(0, 3, lambda _, x: body(x), x),
        lambda body, x: lax.while_loop(lambda x: x < 3, body, x),
    ],
    ids=["scan", "while"],
)
def test_a_handler_that_adds_arrays_to_its_state_in_a_loop_is_named(loop):
    with pytest.raises(
        HandlerError, match=r"Grows goes into a loop .* none and .* with int32\[\] at \['a'\]\. .*`enter`"
    ):
        run(Grows(forward=False), {}, lambda x: loop(lambda x: lox.log({"a": x})["a"] + 1, x), jnp.float32(1))


class Renames(Grows):
    def handle(self, state, logs):
        return {key: jnp.int32(1) for event in events(logs) for key in event.values}, ()


def test_a_state_whose_arrays_change_places_in_a_loop_is_refused():
    with pytest.raises(
        HandlerError, match=r"int32\[\] at \['b'\] and comes out of an iteration with int32\[\] at \['a'\]"
    ):
        loop = lambda x: lax.fori_loop(0, 3, lambda _, x: lox.log({"a": x})["a"], x)  # noqa: E731
        run(Renames(forward=False), {"b": jnp.int32(0)}, loop, jnp.float32(1))
