"""`lox.progress`: bars for loops of programs that have none."""

import io
import re
import threading
import time
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from rich.console import Console

import lox
from lox._progress import _board, _display
from lox._progress._board import Board
from lox._progress._names import Names
from lox._progress._report import Loop


@pytest.fixture
def told(monkeypatch):
    """What loops tell the host, as it comes: the loop, the run, the iterations since, and how many elements go on."""
    told = []
    report = Board.report

    def noted(self, loop, number, done, live):
        number, size = report(self, loop, number, done, live)
        told.append((loop, number, done, live))
        return number, size

    monkeypatch.setattr(Board, "report", noted)
    return told


@pytest.fixture
def each(monkeypatch):
    """Lets loops tell how far they are after each iteration."""
    monkeypatch.setattr(_board, "LONGEST", 1)


def runs_of(told):
    """Of each run, in the order in which they began: the path of the loop, and the number of iterations."""
    counts = {}
    for loop, run, done, *_ in told:
        path, count = counts.get(run, (loop.path, 0))
        counts[run] = path, count + done * loop.unroll
    return [counts[run] for run in sorted(counts)]


def bitwise(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def close(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, 1e-5, 1e-6), found, expected)


# -- programs that have no bars ------------------------------------------------------------------------------------


def scanned(x):
    def step(c, i):
        c = jnp.tanh(c * 0.9 + i)
        return c, {"double": c * 2, "index": i}

    return jax.lax.scan(step, x, jnp.arange(7.0))


def reverse(x):
    return jax.lax.scan(lambda c, i: (jnp.sin(c + i), c), x, jnp.arange(7.0), reverse=True)


def unrolled(x):
    return jax.lax.scan(lambda c, i: (jnp.sin(c + i), c * i), x, jnp.arange(7.0), unroll=3)


def mapped(x):
    return jax.lax.map(lambda y: jnp.sin(y) * x, jnp.arange(5.0))


def collatz(x):
    """The number of steps differs between batch elements."""
    n = (jnp.abs(x) * 10).astype(jnp.int32) + 1
    even = lambda n: n // 2  # noqa: E731
    odd = lambda n: 3 * n + 1  # noqa: E731
    step = lambda s: (jnp.where(s[0] % 2 == 0, even(s[0]), odd(s[0])), s[1] + 1, jnp.sin(s[2]))  # noqa: E731
    return jax.lax.while_loop(lambda s: s[0] > 1, step, (n, 0, x))


def steps_of_collatz(x):
    n, steps = int(abs(x) * 10) + 1, 0
    while n > 1:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def counted(x):
    return jax.lax.fori_loop(0, 6, lambda i, c: jnp.cos(c) + i.astype(c.dtype), x)


def nested(x):
    def step(c, i):
        c = jax.lax.fori_loop(0, 3, lambda _, c: jnp.sin(c), c)
        return jax.lax.while_loop(lambda c: c < 1, lambda c: c + 0.5, c), i

    return jax.lax.scan(step, x, jnp.arange(4.0))


def rematerialized(x):
    return scanned(jax.checkpoint(lambda x: scanned(x)[0])(x))


@jax.custom_jvp
def with_rule(x):
    return scanned(x)[0]


with_rule.defjvp(lambda primals, tangents: (with_rule(*primals), jnp.cos(primals[0]) * tangents[0]))


@jax.custom_vjp
def with_backward_rule(x):
    return scanned(x)[0]


with_backward_rule.defvjp(
    lambda x: (with_backward_rule(x), x), lambda x, g: (jax.lax.fori_loop(0, 4, lambda _, g: g * jnp.cos(x), g),)
)


def in_branch(x):
    return jax.lax.cond(x > 0, lambda x: scanned(x)[0], lambda x: counted(x), x)


def several(x):
    return in_branch(scanned(x)[0]) + with_rule(x) + jnp.sum(mapped(x))


PROGRAMS = [scanned, reverse, unrolled, mapped, counted, rematerialized, with_rule, in_branch, several]
TRANSFORMS = {
    "f": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "jit of vmap": lambda f: jax.jit(jax.vmap(f)),
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
}


def total(fun):
    return lambda x: sum(leaf.sum() for leaf in jax.tree.leaves(fun(x)))


DERIVATIVES = {
    "grad": lambda f: jax.grad(total(f)),
    "jit of grad": lambda f: jax.jit(jax.grad(total(f))),
    "jvp": lambda f: lambda x: jax.jvp(total(f), (x,), (1.0,)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(total(f))),
    "grad of jit": lambda f: jax.grad(total(jax.jit(f))),
}
X = {False: 0.7, True: jnp.array([0.3, -0.7, 1.1])}


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("how", [*TRANSFORMS, *DERIVATIVES])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.covering(1)
def test_results_and_derivatives_are_those_of_the_function(program, how, where, told):
    transform, x = (TRANSFORMS | DERIVATIVES)[how], jnp.asarray(X["vmap" in how])
    expected = transform(program)(x)
    found = lox.progress(transform(program))(x) if where == "outside" else transform(lox.progress(program))(x)
    (close if "jit" in how else bitwise)(found, expected)
    assert told and not told[-1][3]


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize(
    ("program", "how"),
    [(collatz, how) for how in TRANSFORMS]
    + [(nested, how) for how in (*TRANSFORMS, "jvp")]
    + [(with_backward_rule, how) for how in (*TRANSFORMS, "grad", "jit of grad", "vmap of grad", "grad of jit")],
)
@pytest.mark.covering(1)
def test_so_are_those_of_programs_that_are_differentiated_in_one_way_only(program, how, where, told):
    test_results_and_derivatives_are_those_of_the_function(program, how, where, told)


def test_derivatives_of_derivatives_are_those_of_the_function(told):
    slope = lambda f: jax.grad(lambda x: f(x)[0])  # noqa: E731
    expected = jax.hessian(lambda x: scanned(x)[0])(0.7)
    bitwise(jax.hessian(lambda x: lox.progress(scanned)(x)[0])(0.7), expected)
    bitwise(lox.progress(jax.hessian(lambda x: scanned(x)[0]))(0.7), expected)
    bitwise(slope(lambda x: (slope(lox.progress(scanned))(x),))(0.7), slope(lambda x: (slope(scanned)(x),))(0.7))
    assert told


# -- which loops, and how far they are -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "runs"),
    [
        (scanned, [("scan", 7)]),
        (reverse, [("scan", 7)]),
        (mapped, [("scan", 5)]),
        (counted, [("scan", 6)]),
        (collatz, [("while", steps_of_collatz(0.7))]),
        (nested, [("scan", 4)]),
        (rematerialized, [("scan", 7), ("scan[1]", 7)]),
        (with_rule, [("scan", 7)]),
        (in_branch, [("cond/scan[1]", 7)]),
        (several, [("scan", 7), ("cond/scan[1]", 7), ("scan[1]", 7), ("scan[2]", 5)]),
    ],
)
def test_each_outermost_loop_tells_all_of_its_iterations(program, runs, told):
    for fun in (lox.progress(program), jax.jit(lox.progress(program))):
        told.clear()
        fun(jnp.float32(0.7))
        assert sorted(runs_of(told)) == sorted(runs)


def test_a_loop_of_a_jitted_function_has_its_name_and_is_the_same_in_a_python_loop(told):
    @jax.jit
    def step(x):
        with jax.named_scope("inside"):
            return scanned(x)[0]

    def train(x):
        for _ in range(3):
            x = step(x)
        return x

    x = jnp.float32(0.7)
    bitwise(lox.progress(train)(x), train(x))
    assert runs_of(told) == [("step/inside/scan", 7)] * 3


def test_the_rest_of_an_unrolled_loop_counts(told, monkeypatch):
    boards = []
    monkeypatch.setattr(_board, "_boards", types.SimpleNamespace(add=boards.append))
    lox.progress(unrolled)(0.7)
    (row,) = boards[0]._rows
    assert row.run.count == 7 and row.run.is_over and runs_of(told) == [("scan", 6)]


def test_a_fully_unrolled_loop_is_none(told):
    lox.progress(lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, length=4, unroll=4))(0.7)
    lox.progress(lambda x: jax.lax.scan(lambda c, _: (c + 1, None), x, length=0))(0.7)
    lox.progress(lambda x: jax.lax.while_loop(lambda c: c < 0, lambda c: c + 1, x))(0.7)
    assert not told


def test_a_batched_while_loop_tells_for_how_many_elements_it_runs(told, each):
    x = jnp.array([0.3, -0.7, 1.1, 0.3])
    steps = list(map(steps_of_collatz, x))
    goes_on = [sum(count > turn for count in steps) for turn in range(1, max(steps) + 1)]
    for fun in (
        lox.progress(jax.vmap(collatz)),
        jax.vmap(lox.progress(collatz)),
        jax.jit(jax.vmap(lox.progress(collatz))),
    ):
        told.clear()
        bitwise(fun(x), jax.vmap(collatz)(x))
        assert [live for *_, live in told] == goes_on
        assert {loop.elements for loop, *_ in told} == {4}


def test_elements_of_several_vmaps_are_counted(told, each):
    x = jnp.array([[0.3, -0.7, 1.1], [0.5, 0.6, -0.3]])
    steps = [steps_of_collatz(each) for each in x.ravel()]
    fun = jax.vmap(jax.vmap(collatz))
    for watched in (lox.progress(fun), jax.vmap(lox.progress(jax.vmap(collatz)))):
        told.clear()
        bitwise(watched(x), fun(x))
        assert told[1][3] == sum(count > 2 for count in steps) and {loop.elements for loop, *_ in told} == {6}


def test_nested_loops_have_bars_when_a_label_names_them(told):
    lox.progress(nested, label={"scan/scan": "inner"})(0.7)
    assert sorted(runs_of(told)) == [("scan", 4)] + [("scan/scan", 3)] * 4


def test_the_forward_pass_has_bars_and_the_backward_pass_where_it_is_inside(told):
    jax.grad(lox.progress(with_backward_rule))(0.7)
    assert runs_of(told) == [("rule/scan", 7), ("backward/rule/scan", 4)]
    told.clear()
    jax.grad(total(lox.progress(scanned)))(0.7)
    assert runs_of(told) == [("scan", 7)]
    told.clear()
    lox.progress(jax.grad(total(scanned)))(0.7)
    assert runs_of(told) == [("scan", 7), ("backward/scan", 7)]


@pytest.mark.parametrize("how", ["grad", "jit of grad", "vmap of grad"])
def test_what_checkpoint_recomputes_has_no_bar(how, told):
    DERIVATIVES[how](lox.progress(rematerialized))(jnp.asarray(X["vmap" in how]))
    assert runs_of(told) == [("scan", 7), ("scan[1]", 7)]


# -- pace ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("first", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
def test_a_loop_tells_twice_a_second_and_seldom_enough_whatever_an_iteration_takes(first, second, monkeypatch):
    """The clock is one of the test; the time of an iteration changes after five seconds."""
    if not 1 / 101 < second / first < 101:
        second = first
    now, turns, calls, longest, run, size = 0.0, 0, 0, 0.0, 0, 1
    monkeypatch.setattr(_board, "time", types.SimpleNamespace(perf_counter=lambda: now))
    board = Board(Names.of(None, None), 10)
    loop = Loop("scan", 10**9 + 7, 1, 1)
    while now < 10:
        began = now
        before = min(size, max(int((5 - now) / first), 0))
        now += before * first + (size - before) * second + 2e-5
        turns, calls = turns + size, calls + 1
        run, size = board.report(loop, run, size, 1)
        longest = max(longest, now - began)
    assert longest <= max(0.35, 1.01 * second)  # Half a second where others use a third of the processor.
    assert calls <= 10 * 33 * 10 * 1.1 + 20  # Ten seconds, of 33 chunks in each of ten updates a second.
    assert board._rows[0].run.count == turns


def test_a_quick_loop_calls_the_host_a_few_times(told):
    lox.progress(lambda x: jax.lax.fori_loop(0, 100_003, lambda i, x: x + i, x))(0)
    assert runs_of(told) == [("scan", 100_003)]
    assert len(told) < 1000


# -- together with what else there is ------------------------------------------------------------------------------


def logging(x):
    def step(c, i):
        lox.log({"c": c}, step=i)
        return jax.lax.while_loop(lambda c: lox.log({"p": c})["p"] < 3, lambda c: c + 1, c), c

    return jax.lax.scan(step, x, jnp.arange(4))


def test_logs_are_those_of_the_function(told):
    found, expected = [], []
    lox.tap(logging, lambda logs: expected.append(str(logs)))(0.7)
    lox.flush()
    for fun in (
        lox.tap(lox.progress(logging), lambda logs: found.append(str(logs))),
        lox.progress(lox.tap(logging, lambda logs: found.append(str(logs)))),
        jax.jit(lox.tap(lox.progress(jax.jit(logging)), lambda logs: found.append(str(logs)))),
    ):
        told.clear(), found.clear()
        fun(0.7)
        lox.flush()
        assert found == expected and [count for _, count in runs_of(told)] == [4]


def test_a_while_loop_with_logs_in_its_condition_logs_each_once(told):
    fun = lambda x: jax.lax.while_loop(lambda c: lox.log({"p": c})["p"] < 5, lambda c: c + 1, x)  # noqa: E731
    found = []
    lox.progress(lox.tap(fun, lambda logs: found.append(logs["p"].item())))(1)
    lox.flush()
    assert found == [1, 2, 3, 4, 5] and runs_of(told) == [("while", 4)]


def test_spools_and_watchers_inside_and_outside_see_what_they_see_alone(told):
    fun = lambda x: jax.lax.scan(lambda c, _: (lox.log({"c": c})["c"] + 1, None), x, length=4)  # noqa: E731
    for spooled in (
        lox.spool(lox.progress(fun)),
        lox.progress(lox.spool(fun)),
        lox.spool(lox.progress(fun), reduce="sum"),
    ):
        bitwise(spooled(0.0)[1].data["c"].sum(), np.float32(6))
    for watched in (lox.watch(lox.progress(scanned), at="scan"), lox.progress(lox.watch(scanned, at="scan"))):
        bitwise(lox.spool(watched)(0.7)[1]["scan/value"], scanned(0.7)[1]["double"] / 2)
    assert [point.path for point in lox.points(lox.progress(several))(0.7)] == [
        point.path for point in lox.points(several)(0.7)
    ]
    lox.progress(lox.strip(lox.progress(scanned)))(0.7)
    assert {path for path, _ in runs_of(told)} == {"scan"} and len(runs_of(told)) > 5


def test_functions_that_log_run_without_a_handler(told):
    bitwise(lox.progress(logging)(0.7), logging(0.7))
    assert runs_of(told) == [("scan", 4)]


def test_without_it_programs_are_what_they_were():
    text = jax.jit(several).lower(0.7).as_text()
    lox.progress(several)(0.7)
    jax.clear_caches()
    assert jax.jit(several).lower(0.7).as_text() == text


def test_checkify_finds_what_it_finds_alone(told):
    fun = lambda x: jax.lax.scan(lambda c, _: (jnp.log(c), None), x, length=3)[0]  # noqa: E731
    expected, _ = checkify.checkify(fun, errors=checkify.float_checks)(0.5)
    for checked in (
        checkify.checkify(lox.progress(fun), errors=checkify.float_checks),
        lox.progress(checkify.checkify(fun, errors=checkify.float_checks)),
    ):
        error, _ = checked(0.5)
        assert error.get().split("nan")[0] == expected.get().split("nan")[0]
    assert told


def test_keys_references_and_donated_arrays_go_through(told):
    keys = jax.random.split(jax.random.key(0), 5)

    def draw(keys):
        return jax.lax.scan(lambda k, key: (jax.random.fold_in(key, 1), jax.random.normal(k)), keys[0], keys)[1]

    bitwise(lox.progress(draw)(keys), draw(keys))

    def refers(x):
        ref = jax.new_ref(x)

        def step(c, i):
            ref[...] += i
            return c + 1, None

        return jax.lax.scan(step, x, jnp.arange(6.0))[0], ref[...]

    bitwise(lox.progress(refers)(0.7), refers(0.7))
    bitwise(jax.jit(lox.progress(refers))(0.7), refers(0.7))
    donates = jax.jit(scanned, donate_argnums=0)
    bitwise(lox.progress(donates)(jnp.array([0.7, 0.1])), jax.jit(scanned)(jnp.array([0.7, 0.1])))
    assert len(runs_of(told)) == 4


def test_shards_have_one_bar(told):
    mesh = Mesh(np.array(jax.devices()[:4]), "i")
    x = jnp.arange(8.0)

    def mean(x):
        step = lambda c, i: (jnp.sin(c) + jax.lax.pmean(c, "i") + i, c.sum())  # noqa: E731
        return jax.lax.scan(step, x, jnp.arange(5.0))[0]

    def wait(x):
        return jax.lax.while_loop(lambda c: jax.lax.pmean(c.sum(), "i") < 50, lambda c: c + 1, x)

    for fun in (mean, wait):
        sharded = jax.shard_map(fun, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        for how in (lox.progress(sharded), jax.jit(lox.progress(sharded)), lox.progress(jax.jit(sharded))):
            told.clear()
            close(how(x), jax.jit(sharded)(x))
            assert len(runs_of(told)) == 1 and not told[-1][3]


def test_arrays_on_several_devices_go_through(told):
    mesh = Mesh(np.array(jax.devices()[:4]), "i")
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("i")))
    found = jax.jit(lox.progress(scanned))(x)
    close(found, jax.jit(scanned)(x))
    assert found[0].sharding.is_equivalent_to(x.sharding, 1) and runs_of(told) == [("scan", 7)]


def test_a_function_is_traced_once_for_all_calls(told):
    traced = []

    @jax.jit
    def fun(x):
        traced.append(x)
        return scanned(x)

    outer = jax.jit(lox.progress(fun))
    inner = lox.progress(fun)
    for _ in range(3):
        outer(0.7), inner(0.7)
    assert len(traced) == 1 and len(runs_of(told)) == 6


def test_threads_tell_of_their_own_runs(told):
    fun = lox.progress(jax.jit(lambda x: jax.lax.fori_loop(0, 20_011, lambda i, x: jnp.sin(x) + i, x)))
    threads = [threading.Thread(target=fun, args=(float(x),)) for x in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs_of(told) == [("<lambda>/scan", 20_011)] * 4


# -- arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"total": "many"}, TypeError, "total= of lox.progress must be a number of iterations, got 'many'"),
        ({"total": True}, TypeError, "total= of lox.progress must be a number"),
        ({"total": 0}, ValueError, "total= of lox.progress must be positive, got 0"),
        ({"total": {1: 2}}, TypeError, "takes patterns of paths of loops, got 1"),
        ({"label": 3}, TypeError, "label= of lox.progress must be a string, got 3"),
        ({"label": {"scan": None}}, TypeError, "label= of lox.progress must be a string, got None"),
        ({"refresh": "often"}, TypeError, "refresh= of lox.progress must be a number"),
        ({"refresh": 0}, ValueError, "refresh= of lox.progress must be positive, got 0"),
        ({"refresh": float("nan")}, ValueError, "refresh= of lox.progress must be positive, got nan"),
        ({"refresh": float("inf")}, ValueError, "refresh= of lox.progress must be positive, got inf"),
        ({"refresh": True}, TypeError, "refresh= of lox.progress must be a number, got True"),
        ({"title": "x"}, TypeError, "title"),
    ],
)
def test_wrong_arguments_are_errors_that_say_so(options, error, says):
    with pytest.raises(error, match=says):
        lox.progress(scanned, **options)
    with pytest.raises(TypeError, match="lox transforms functions"):
        lox.progress(3)


def test_a_pattern_that_matches_no_loop_warns_once():
    fun = lox.progress(scanned, label={"while": "x"}, total={"scan": 7, "scan/while": 3})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fun(0.7)
        fun(0.7)
    assert [str(each.message).partition(":")[0] for each in caught] == [
        "'while' in label= of lox.progress selects nothing",
        "'scan/while' in total= of lox.progress selects nothing",
    ]
    assert all(each.category is lox.SelectionWarning and each.filename == __file__ for each in caught)


def test_it_is_a_decorator_and_keeps_metadata():
    @lox.progress(label="x", total=9)
    def fun(x):
        """Says what it does."""
        return x + 1

    assert fun.__name__ == "fun" and fun.__doc__ == "Says what it does." and fun(1) == 2


# -- what is shown -------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch, capsys):
    """Shows bars at once, also in tests; returns what was printed on standard error."""
    monkeypatch.setattr(_board, "DELAY", 0.0)
    monkeypatch.setattr(_board, "_is_quiet", lambda: False)
    return lambda: capsys.readouterr().err


def test_tests_are_quiet(monkeypatch, capsys):
    monkeypatch.setattr(_board, "DELAY", 0.0)
    lox.progress(scanned)(0.7)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_lines_say_how_far_a_loop_is(shown):
    lox.progress(scanned, label="training")(0.7)
    assert shown().splitlines()[-1].startswith("training 7/7 (100%)")
    lox.progress(jax.vmap(collatz), total=20)(jnp.array([0.3, 0.7]))
    assert shown().splitlines()[-1].startswith("while 3, ")
    lox.progress(jax.vmap(scanned), label={"scan": "batch"})(jnp.array([0.3, 0.7]))
    assert "batch 7/7 (100%)" in (text := shown()) and "2 elements" in text


def test_elements_that_end_together_are_not_said_to_be_done(shown):
    fun = lambda x: jax.lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, x))[1]  # noqa: E731
    for how in (jax.vmap(fun), lambda x: jax.lax.cond(x.sum() > 0, jax.vmap(fun), jnp.cos, x)):
        lox.progress(how)(jnp.array([0.3, 0.7]))
        assert shown().splitlines()[-1].endswith("/s, 2 elements")
    lox.progress(jax.vmap(collatz))(jnp.array([0.3, 0.7]))
    assert shown().splitlines()[-1].endswith("/s, 2/2 elements done")


def test_a_loop_that_runs_again_has_one_bar(shown):
    step = jax.jit(lambda x: scanned(x)[0])

    def train(x):
        for _ in range(5):
            x = step(x)
        return x

    lox.progress(train)(jnp.float32(0.7))
    last = shown().splitlines()[-1]
    assert last.count("/scan 7/7") == 1 and last.endswith("run 5")


def test_each_loop_has_a_line_of_its_own(shown):
    lox.progress(lambda x: scanned(scanned(x)[0])[0])(jnp.float32(0.7))
    ends = [line.partition(",")[0] for line in shown().splitlines() if " 7/7 " in line]
    assert ends == ["scan 7/7 (100%)", "scan[1] 7/7 (100%)"]


def test_a_line_that_has_not_changed_is_printed_once(shown, monkeypatch):
    monkeypatch.setattr(_display, "SECONDS", 0.0)

    def wait(i):
        time.sleep(0.05)
        return i

    def fun(x):
        step = lambda c, i: (c, io_callback(wait, jax.ShapeDtypeStruct((), jnp.int32), i))  # noqa: E731
        return jax.lax.scan(step, scanned(x)[0], jnp.arange(8))

    lox.progress(fun, refresh=1000)(jnp.float32(0.7))
    lines = shown().splitlines()
    assert len(set(lines)) == len(lines) and sum(line.startswith("scan 7/7") for line in lines) == 1
    assert lines[-1].startswith("scan[1] 8/8 (100%)")


def test_a_number_beyond_the_total_is_shown():
    board = Board(Names.of(2, None), 10)
    display = _display.Display(board.names)
    run, _ = board.report(Loop("while", None, 1, 1), 0, 3, 1)
    display.update(board._rows)
    assert display.line().startswith("while 3/2 (150%)")
    board.report(Loop("while", None, 1, 1), run, 1, 0)
    display.update(board._rows)
    assert display.line().startswith("while 4, ")
    display.close()


def test_loops_of_one_label_are_told_apart_by_their_paths(shown):
    lox.progress(rematerialized, label="training")(0.7)
    ends = [line.partition(",")[0] for line in shown().splitlines() if " 7/7 " in line]
    assert ends[-2:] == ["training scan 7/7 (100%)", "training scan[1] 7/7 (100%)"]


def test_the_runs_of_one_loop_have_its_label():
    board = Board(Names.of(None, {"a": "training", "b": "training", "c": "testing"}), 10)
    for path in ("c", "c", "a", "b"):
        board.report(Loop(path, 10, 1, 1), 0, 3, 1)
    display = _display.Display(board.names)
    rows = {row.run.loop.path: row for row in board._rows}
    labels = display._labels([rows["c"], rows["c"], rows["a"], rows["b"]])
    assert labels == ["testing", "testing", "training a", "training b"]
    display.close()


def test_a_label_is_shown_as_it_is(shown):
    lox.progress(scanned, label="[red]x\n\x1b[2J[/red]")(0.7)
    assert "[red]x\\n\\x1b[2J[/red] 7/7" in shown()


@pytest.mark.parametrize("part", ["__init__", "update", "close"])
def test_a_display_that_fails_warns_once_and_the_program_goes_on(part, shown, monkeypatch):
    def fails(self, *args):
        raise OSError("no space on the screen")

    monkeypatch.setattr(_display.Display, part, fails)
    fun = lox.progress(scanned)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            bitwise(fun(0.7), scanned(0.7))
    (warning,) = caught
    assert warning.category is lox.ProgressWarning and "no space on the screen" in str(warning.message)


def test_where_warnings_are_errors_flush_raises_that_the_display_failed(shown, monkeypatch):
    monkeypatch.setattr(_display.Display, "update", lambda self, rows: 1 / 0)
    bitwise(lox.progress(scanned)(0.7), scanned(0.7))
    with pytest.raises(lox.ProgressWarning, match="ZeroDivisionError"):
        lox.flush()


def test_a_report_that_fails_never_ends_the_program(monkeypatch):
    monkeypatch.setattr(Board, "report", lambda *args: 1 / 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bitwise(lox.progress(scanned)(0.7), scanned(0.7))
    (warning,) = caught
    assert warning.category is lox.ProgressWarning and "'scan'" in str(warning.message)


def test_a_loop_that_an_exception_ends_leaves_its_bar_and_the_next_call_has_another(shown, each, told):
    fails = [True]

    def check(i):
        if i == 3 and fails:
            raise OSError("disk full")
        return i

    @lox.progress
    def fun(x):
        step = lambda c, i: (c + io_callback(check, jax.ShapeDtypeStruct((), jnp.int32), i), None)  # noqa: E731
        return jax.lax.scan(step, x, jnp.arange(6))[0]

    with pytest.raises(Exception, match="disk full"):
        jax.block_until_ready(fun(0))
    assert "scan 3/6 (50%)" in shown().splitlines()[-1]
    fails.clear()
    assert fun(0) == 15
    assert shown().splitlines()[-1].startswith("scan 6/6 (100%)") and len(runs_of(told)) == 2


def test_two_functions_show_their_bars_at_once(shown):
    def run(label):
        lox.progress(jax.jit(lambda x: jax.lax.fori_loop(0, 7, lambda _, x: x + 1, x)), label=label)(0)

    threads = [threading.Thread(target=run, args=(label,)) for label in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = shown()
    assert "one 7/7 (100%)" in text and "two 7/7 (100%)" in text


def test_runs_of_one_loop_at_once_have_a_bar_each():
    board, loop = Board(Names.of(None, None), 10), Loop("scan", 5, 1, 1)
    one, _ = board.report(loop, 0, 1, 1)
    other, _ = board.report(loop, 0, 1, 1)
    board.report(loop, other, 4, 0)
    board.report(loop, 0, 2, 1)
    assert [(row.run.count, row.run.is_over, row.runs) for row in board._rows] == [(1, False, 1), (2, False, 2)]
    board.report(loop, one, 4, 0)
    assert [(row.run.count, row.run.is_over) for row in board._rows] == [(5, True), (2, False)]


def test_bars_are_closed_when_no_loop_runs_any_more(shown):
    fun = jax.jit(lox.progress(scanned))  # The call itself is not seen.
    fun(0.7)
    deadline = time.monotonic() + 20
    text = ""
    while "scan 7/7 (100%)" not in text and time.monotonic() < deadline:
        time.sleep(0.01)
        text += shown()
    assert "scan 7/7 (100%)" in text
    while any(thread.name == "lox.progress" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [thread for thread in threading.enumerate() if thread.name == "lox.progress"]


# -- programs that make it hard ------------------------------------------------------------------------------------


def test_a_condition_with_effects_is_checked_once_for_each_iteration(told, each):
    checked = []

    def goes_on(c):
        io_callback(lambda c: checked.append(int(c)), None, c)
        return c < 5

    fun = lambda x: jax.lax.while_loop(goes_on, lambda c: c + 1, x)  # noqa: E731
    for how in (lox.progress(fun), jax.jit(lox.progress(fun))):
        checked.clear(), told.clear()
        assert how(1) == 5
        jax.effects_barrier()
        assert sorted(checked) == [1, 2, 3, 4, 5] and runs_of(told) == [("while", 4)]


def test_effects_in_the_body_happen_once_for_each_iteration(told, each):
    happened = []

    def step(c, i):
        jax.debug.callback(lambda i: happened.append(int(i)), i)
        return c + i, i

    for fun in (
        lambda x: jax.lax.scan(step, x, jnp.arange(4)),
        lambda x: jax.lax.while_loop(lambda s: s[1] < 4, lambda s: (step(*s)[0], s[1] + 1), (x, 0)),
    ):
        happened.clear(), told.clear()
        assert jax.jit(lox.progress(fun))(0)[0] == 6
        jax.effects_barrier()
        assert sorted(happened) == [0, 1, 2, 3] and len(told) == 4


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_loops_and_empty_batches_have_the_results_of_the_function(length, told):
    loop = lambda x: jax.lax.scan(lambda c, i: (c * i, c + i), x, jnp.ones(length))  # noqa: E731
    wait = lambda x: jax.lax.while_loop(lambda c: c < length, lambda c: c + 1, x)  # noqa: E731
    x = jnp.ones(length)
    bitwise(lox.progress(loop)(2.0), loop(2.0))
    bitwise(jax.grad(lambda x: lox.progress(loop)(x)[0])(2.0), jax.grad(lambda x: loop(x)[0])(2.0))
    bitwise(lox.progress(wait)(0), wait(0))
    bitwise(lox.progress(jax.vmap(loop))(x), jax.vmap(loop)(x))
    bitwise(lox.progress(jax.vmap(wait))(x), jax.vmap(wait)(x))


@pytest.mark.parametrize("unroll", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_loop_counts_and_stacks_whatever_its_direction_and_unrolling(unroll, reverse, told):
    def fun(x):
        return jax.lax.scan(lambda c, i: (jnp.sin(c + i), c * i), x, jnp.arange(7.0), reverse=reverse, unroll=unroll)

    bitwise(lox.progress(fun)(0.7), fun(0.7))
    close(jax.grad(total(jax.jit(lox.progress(fun))))(0.7), jax.grad(total(fun))(0.7))
    assert {count for _, count in runs_of(told)} == ({7 // unroll * unroll} if unroll < 7 else set())


def test_lengths_of_64_bits_go_through(told):
    with jax.enable_x64(True):
        wait = lambda n: jax.lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * 2), (jnp.int64(0), 1.0))  # noqa: E731
        bitwise(lox.progress(wait)(jnp.int64(5)), wait(jnp.int64(5)))
        bitwise(lox.progress(scanned)(0.7), scanned(0.7))
        long = lambda x: jax.lax.fori_loop(0, 2**32, lambda i, c: c + i, x)  # noqa: E731
        jax.jit(lox.progress(long)).lower(0).compile()
    assert runs_of(told) == [("while", 5), ("scan", 7)]


def test_shards_whose_loops_differ_in_length_have_the_bar_of_the_first(told):
    mesh = Mesh(np.array(jax.devices()[:4]), "i")
    wait = lambda x: jax.lax.while_loop(lambda c: c.sum() < 5, lambda c: c + 1, x)  # noqa: E731
    for fun, steps in ((wait, 5), (jax.vmap(lambda x: wait(x[None])[0]), 5)):
        sharded = jax.jit(jax.shard_map(fun, mesh=mesh, in_specs=P("i"), out_specs=P("i")))
        for how in (lox.progress(sharded), jax.jit(lox.progress(sharded))):
            told.clear()
            bitwise(how(jnp.arange(4.0)), sharded(jnp.arange(4.0)))
            assert [count for _, count in runs_of(told)] == [steps]


def test_two_of_them_show_one_bar_and_a_program_that_is_not_run_none(told):
    bitwise(lox.progress(lox.progress(scanned))(0.7), scanned(0.7))
    assert runs_of(told) == [("scan", 7)]
    told.clear()
    jax.eval_shape(lox.progress(scanned), 0.7)
    compiled = jax.jit(lox.progress(scanned)).lower(0.7).compile()
    bitwise(lox.progress(jax.jit(scanned).lower(0.7).compile())(0.7), jax.jit(scanned)(0.7))
    assert not told
    close(compiled(0.7), scanned(0.7))
    assert runs_of(told) == [("scan", 7)]


def test_a_nested_bar_counts_for_the_batch_elements_that_go_on(told):
    def fun(x):
        inner = lambda s: jax.lax.while_loop(lambda c: c < x + s[0], lambda c: c + 1, 0)  # noqa: E731
        return jax.lax.while_loop(lambda s: s[0] < x, lambda s: (s[0] + 1, inner(s)), (0, 0))

    x = jnp.array([1, 4, 2])
    bitwise(jax.vmap(lox.progress(fun, label={"while/while": "inner"}))(x), jax.vmap(fun)(x))
    assert sorted(runs_of(told)) == [("while", 4), *(("while/while", each) for each in (4, 5, 6, 7))]


def test_a_callback_that_raises_leaves_the_loop_and_its_bar_alone(told):
    def fails(logs):
        raise OSError("disk full")

    fun = lambda x: jax.lax.scan(lambda c, _: (lox.log({"c": c})["c"] + 1, None), x, length=4)[0]  # noqa: E731
    for how in (lox.progress(lox.tap(fun, fails)), lox.tap(lox.progress(fun), fails)):
        assert how(0) == 4
        with pytest.raises(OSError, match="disk full"):
            lox.flush()
    assert runs_of(told) == [("scan", 4)] * 2


def test_a_search_for_a_nan_finds_what_it_finds_alone(told):
    fun = lambda x: jax.lax.scan(lambda c, _: (jnp.log(c), None), x, length=3)[0]  # noqa: E731
    alone, found = lox.find_nonfinite(fun)(0.5), lox.find_nonfinite(lox.progress(fun))(0.5)
    assert (found.primitive, found.iterations) == (alone.primitive, alone.iterations) == ("log", (1,))


def test_a_forked_process_has_no_loops_and_waits_for_no_thread():
    board, loop = Board(Names.of(None, None), 10), Loop("scan", 5, 1, 1)
    board.report(loop, 0, 1, 1)
    assert board._lock.acquire()  # As another thread may, when the process is forked.
    _board._begin_all()
    assert not board._rows
    board.report(loop, 0, 1, 1)
    board.close()
    assert board._rows[0].run.count == 1


def test_a_line_has_the_count_the_rate_the_time_that_is_left_and_the_elements(monkeypatch):
    now = 0.0
    clock = types.SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(_board, "time", clock)
    monkeypatch.setattr(_display, "time", clock)
    names = Names.of({"b/while": 40, "**": 5000}, {"a/*": "first", "**/scan": "second", "c/while": "\tthird"})
    board, display = Board(names, 10), _display.Display(names)
    loops = [Loop("a/scan", 200, 4, 1), Loop("b/while", None, 1, 1200, parts=True), Loop("c/while", None, 1, 3)]
    runs = [0, 0, 0]

    def shown(*told):
        for place, (done, live) in enumerate(told):
            runs[place], _ = board.report(loops[place], runs[place], done, live)
        display.update(board._rows)
        return display.line().splitlines()

    assert shown((3, 1), (0, 1200), (1000, 3)) == [
        "first 12/200 (6%)",
        "b/while 0/40 (0%), 0/1,200 elements done",
        "\\tthird 1,000/5,000 (20%), 3 elements",
    ]
    now = 2.0
    assert shown((12, 1), (10, 400), (1000, 3)) == [
        "first 60/200 (30%), 24/s, 0:00:06 left",
        "b/while 10/40 (25%), 5/s, 800/1,200 elements done",
        "\\tthird 2,000/5,000 (40%), 500/s, 0:00:06 left, 3 elements",
    ]
    now = 10.0
    assert shown((35, 0), (25, 1), (1500, 0)) == [
        "first 200/200 (100%), 20/s",
        "b/while 35/40 (88%), 3.125/s, 0:00:02 left, 1,199/1,200 elements done",
        "\\tthird 3,500, 350/s, 3 elements",
    ]
    runs[0] = 0
    now = 11.0
    assert shown((1, 1))[0] == "first 4/200 (2%), run 2"
    now = 13.0
    assert shown((4, 1))[0] == "first 20/200 (10%), 8/s, 0:00:23 left, run 2"
    display.close()


def test_labels_give_nested_loops_bars_and_totals_do_not(told):
    for options, paths in (
        ({"total": {"scan/scan": 3, "scan": 4}}, {"scan"}),
        ({"label": {"scan/while": "x"}}, {"scan", "scan/while"}),
        ({"label": {"*/*": "x"}}, {"scan", "scan/scan", "scan/while"}),
        ({"label": {"**": "x"}, "total": {"**/while": 3}}, {"scan", "scan/scan", "scan/while"}),
    ):
        told.clear()
        lox.progress(nested, **options)(0.7)
        assert {path for path, _ in runs_of(told)} == paths
        assert sum(path == "scan/scan" for path, _ in runs_of(told)) == 4 * ("scan/scan" in paths)


def test_a_function_without_loops_says_so_of_its_patterns():
    with pytest.warns(lox.SelectionWarning, match="label= of lox.progress selects nothing: the function has no loops."):
        lox.progress(jnp.sin, label={"x": "y"})(0.7)
    with pytest.warns(lox.SelectionWarning, match="it is none of the loops of the function: 'cond/scan', 'cond/scan"):
        lox.progress(in_branch, total={"x": 3})(0.7)


def test_a_table_has_the_bar_the_count_the_rate_and_the_times_of_each_loop(monkeypatch):
    """The time of a loop goes on while it runs, also beyond its total, and stays what it was when it ends."""
    now, runs = 0.0, [0, 0, 0, 0]
    clock = types.SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(_board, "time", clock)
    monkeypatch.setattr(_display, "time", clock)
    names = Names.of({"b/while": 40, "d/while": 2}, {"a/*": "[red]\tfirst"})
    board, display = Board(names, 10), _display.Display(names)
    loops = [Loop("a/scan", 200, 4, 1), Loop("b/while", None, 1, 1200, parts=True), Loop("c/while", None, 1, 3)]
    loops.append(Loop("d/while", None, 1, 1))

    def cells(*told):
        for place, (done, live) in enumerate(told):
            runs[place], _ = board.report(loops[place], runs[place], done, live)
        display.update(board._rows)
        console = Console(file=io.StringIO(), width=200)
        console.print(display.table(5))
        rows = [(re.sub("[━╸╺]", " ", line).split(), line.count("━")) for line in console.file.getvalue().splitlines()]
        return [row if "c/while" in row else [*row, bars] for row, bars in rows]  # The bar of an unknown total moves.

    assert cells((3, 1), (0, 1200), (1000, 3), (1, 1)) == [
        ["[red]\\tfirst", "12/200", "0:00:00", "-:--:--", 2],
        ["b/while", "0/40", "0:00:00", "-:--:--", "0/1,200", "elements", "done", 0],
        ["c/while", "1,000", "0:00:00", "3", "elements"],
        ["d/while", "1/2", "0:00:00", "-:--:--", 20],
    ]
    now = 2.0
    assert cells((12, 1), (10, 400), (1000, 3), (2, 1)) == [
        ["[red]\\tfirst", "60/200", "24/s", "0:00:02", "0:00:06", 12],
        ["b/while", "10/40", "5/s", "0:00:02", "-:--:--", "800/1,200", "elements", "done", 10],
        ["c/while", "2,000", "500/s", "0:00:02", "3", "elements"],
        ["d/while", "3/2", "1.5/s", "0:00:02", "-:--:--", 30],
    ]
    now = 10.0
    assert cells((35, 0), (25, 1), (1500, 0), (1, 1)) == [
        ["[red]\\tfirst", "200/200", "20/s", "0:00:10", "0:00:00", 40],
        ["b/while", "35/40", "3.125/s", "0:00:10", "0:00:02", "1,199/1,200", "elements", "done", 35],
        ["c/while", "3,500", "350/s", "0:00:10", "0:00:00", "3", "elements"],
        ["d/while", "4/2", "0.4/s", "0:00:10", "-:--:--", 32],
    ]
    runs[0], now = 0, 14.0
    assert cells((1, 1))[0] == ["[red]\\tfirst", "4/200", "0:00:00", "-:--:--", "run", "2", 0]
    now = 16.0
    assert cells((4, 1))[0][:5] == ["[red]\\tfirst", "20/200", "8/s", "0:00:02", "0:00:23"]
    assert cells()[2][2:4] == ["350/s", "0:00:10"] and cells()[3][3] == "0:00:16"


@pytest.mark.parametrize("depth", [2, 3])
def test_loops_in_loops_have_no_bars(told, each, depth):
    def nested(x, depth):
        step = (lambda x: nested(x, depth - 1)) if depth > 1 else jnp.sin
        return jax.lax.scan(lambda c, _: (step(c), None), x, length=3)[0]

    jax.jit(lox.progress(lambda x: nested(x, depth)))(jnp.ones(2)).block_until_ready()
    assert {loop.path for loop, *_ in told} == {"scan"}
