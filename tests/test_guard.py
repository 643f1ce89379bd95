"""`lox.guard` and `lox.replay`: a call that fails is kept as a bundle, and runs again elsewhere."""

import concurrent.futures
import dataclasses
import enum
import functools
import gc
import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lox
from lox.__main__ import main
from lox._nonfinite._carries import is_bad
from lox._nonfinite._guard import _Guard


def train(x, rates):
    def step(x, rate):
        return x - rate * jnp.log(x), x

    return lax.scan(step, x, rates)


GOOD, BAD = np.float32([1.0, 1.0, 1.0, 1.0]), np.float32([1.0, 8.0, 1.0, 1.0])
X = np.float32([1.0, 2.0])


def calls(guarded, *arguments):
    """The results of calls, and what they warned of by the time that all were looked at."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        results = [guarded(*each) for each in arguments]
        lox.flush()
    return results, [str(each.message) for each in warned if each.category is lox.NonfiniteWarning]


def contents(bundle):
    return json.loads((bundle / "bundle.json").read_text())


# -- what fails --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_call_that_fails_is_written_warned_of_and_returned(tmp_path, transform):
    f = transform(train)
    results, warned = calls(lox.guard(f, bundle=tmp_path / "failed"), (X, GOOD), (X, BAD))
    jax.tree.map(np.testing.assert_array_equal, results, [f(X, GOOD), f(X, BAD)])
    (message,) = warned
    assert "train has NaN in the carry of a loop after iteration 2" in message
    assert f"The call is in {tmp_path / 'failed'}" in message and "lox.replay" in message
    assert sorted(each.name for each in (tmp_path / "failed").iterdir()) == [
        "args-0.npy",
        "args-1.npy",
        "bundle.json",
        *["carry-0.npy"] * (transform is jax.jit),
        "program.txt",
    ]
    np.testing.assert_array_equal(np.load(tmp_path / "failed" / "args-1.npy"), BAD)
    about = contents(tmp_path / "failed")
    assert about["iteration"] == 2 and about["function"].endswith(":train") and "jax" in about["versions"]


def test_the_bundle_has_the_carry_before_the_failing_iteration(tmp_path):
    calls(lox.guard(jax.jit(train), bundle=tmp_path / "failed"), (X, BAD))
    x = 2.0
    for rate in BAD[:2]:
        x -= rate * np.log(x)
    np.testing.assert_allclose(np.load(tmp_path / "failed" / "carry-0.npy"), [1.0, x], rtol=1e-5)


def test_the_warning_counts_iterations_of_a_backward_pass_as_a_report_does(tmp_path):
    """The derivative is infinite from iteration 117 on, counted backwards, and 0 * inf is NaN in iteration 20."""

    def product(w, factors):
        return lax.scan(lambda h, factor: (h * w * factor, None), 1.0, factors)[0]

    f = jax.jit(jax.grad(product, 1))
    factors = np.where(np.arange(130) >= 90, 1e3, 1.0).astype(np.float32)
    factors[20] = 0.0
    _, (message,) = calls(lox.guard(f, bundle=tmp_path / "failed"), (1.0, factors))
    assert "has NaN in the carry of a loop after iteration 20 of its backward pass. The call is in" in message
    report = lox.replay(tmp_path / "failed", f)
    assert report.iterations == (20,) and report.backward and report.infinities[0].iterations == (117,)


def test_a_partial_function_and_a_method_of_jitted_ones_have_a_last_good_carry(tmp_path):
    class Trainer:
        @functools.partial(jax.jit, static_argnums=(0, 2))
        def train(self, x, number):
            return train(x, BAD[: int(number)])

    for name, f in {"method": Trainer().train, "partial": functools.partial(Trainer.train, Trainer())}.items():
        _, (message,) = calls(lox.guard(f, bundle=tmp_path / name), (X, np.int32(4)))
        assert "without" not in message and len(contents(tmp_path / name)["carry"]) == 1


def test_a_carry_that_is_bad_and_dropped_fails(tmp_path):
    guarded = lox.guard(jax.jit(lambda x, rates: jnp.nan_to_num(train(x, rates)[0])), bundle=tmp_path / "failed")
    _, warned = calls(guarded, (X, BAD))
    assert len(warned) == 1 and not contents(tmp_path / "failed")["in_result"]


def test_a_result_that_is_bad_fails_without_a_loop(tmp_path):
    guarded = lox.guard(functools.partial(jax.jit(jnp.log)), bundle=tmp_path / "failed")
    _, (message,) = calls(guarded, (X,), (-X,))
    assert "jax.numpy:log has NaN in a result" in message
    assert contents(tmp_path / "failed")["iteration"] == -1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"])
def test_one_bad_element_anywhere_is_noticed(dtype):
    judge = {
        infinite: jax.jit(lambda x, infinite=infinite: is_bad([x], [True], infinite)) for infinite in (False, True)
    }
    bad = [np.nan, np.inf, -np.inf] + [complex(0, np.nan), complex(0, -np.inf)] * (dtype == "complex64")
    for size in (1, 3, 64, 67):
        good = np.linspace(-2, 2, size).astype(jnp.dtype(dtype))
        assert not any(function(good) for function in judge.values())
        for number in (value for value in bad if not np.isfinite(np.array(value).astype(good.dtype))):
            is_nan = bool(np.isnan(np.array(number).astype(good.dtype)))
            for place in {0, size // 2, size - 1}:
                x = good.copy()
                x[place] = number
                assert (bool(judge[False](x)), bool(judge[True](x))) == (is_nan, True), (number, size, place)
    assert not is_bad([np.zeros(0, jnp.dtype(dtype))], [True], True)


@pytest.mark.parametrize("axis_type", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_one_bad_element_of_an_array_that_is_spread_over_devices_is_noticed(axis_type):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(axis_type,))
    spread = jax.NamedSharding(mesh, jax.P("data"))
    for infinite, number in ((False, np.nan), (True, np.nan), (True, -np.inf)):
        judge = jax.jit(lambda x, infinite=infinite: is_bad([x], [True], infinite))
        assert not judge(jax.device_put(np.ones((8, 3), np.float32), spread))
        for row in range(8):
            x = np.ones((8, 3), np.float32)
            x[row, 1] = number
            assert judge(jax.device_put(x, spread)), (row, number)


@pytest.mark.parametrize("when", ["nan", "nonfinite"])
def test_infinite_values_fail_where_they_are_asked_for(tmp_path, when):
    def f(x):
        grown = lax.fori_loop(0, 100, lambda i, x: x * jnp.float32(10.0), x)
        best = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1]), (0, -jnp.inf))[1]
        return jnp.nan_to_num(grown), jnp.nan_to_num(best)

    _, warned = calls(lox.guard(jax.jit(f), bundle=tmp_path / "failed", when=when), (np.float32(3.0),))
    assert len(warned) == (when == "nonfinite")
    assert not warned or contents(tmp_path / "failed")["iteration"] == 38


def test_a_carry_of_a_loop_in_a_shard_map_that_is_bad_on_one_shard_fails(tmp_path):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(x):
        after = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + 0.0), (0, x))[1]
        return train(after, BAD)[0] > 1

    specs = {"mesh": mesh, "in_specs": jax.P("data"), "out_specs": jax.P("data")}
    for transform, check_vma in itertools.product((lambda f: f, jax.jit), (True, False)):
        f = transform(jax.shard_map(local, **specs, check_vma=check_vma))
        guarded, x = lox.guard(f, bundle=tmp_path / "failed"), np.ones(8, np.float32)
        assert calls(guarded, (x,))[1] == []
        x[5] = 2.0
        _, (message,) = calls(guarded, (x,))
        assert "has NaN in the carry of a loop after iteration 2." in message


@pytest.mark.parametrize("inside", ["function", "branch"])
def test_loops_in_functions_with_rules_and_branches_do_not_break_a_guard(tmp_path, inside):
    own = jax.custom_vjp(lambda x: train(x, BAD)[0])
    own.defvjp(lambda x: (own(x), x), lambda x, g: (g,))
    f = own if inside == "function" else lambda x: lax.cond(x[0] > 0, own, lambda x: x, x)
    guarded = lox.guard(jax.jit(f), bundle=tmp_path / "failed")
    assert calls(guarded, (np.float32([1.0, 1.0]),))[1] == []
    assert "the carry of a loop after iteration 2" in calls(guarded, (X,))[1][0]


def test_results_of_python_and_numpy_are_looked_at_as_they_are(tmp_path):
    big, nan = np.float64(1e300), float("nan")
    fine = [1e300, big, np.full(2, big), 1e300j, "text", None, jax.ShapeDtypeStruct((), jnp.float32), np.array(["a"])]
    for when in ("nan", "nonfinite"):
        guarded = lox.guard(lambda x, value: (x, value), bundle=tmp_path / "failed", when=when)
        assert calls(guarded, *((X, value) for value in fine))[1] == []
        assert calls(guarded, (X, np.ma.array([1.0, nan], mask=[False, True])))[1] == []
    for bad in (nan, complex(nan, 0), np.float64(nan), np.array([1.0, nan]), jnp.bfloat16(nan)):
        guarded = lox.guard(lambda x, value: (x, {"loss": value}), bundle=tmp_path / "failed")
        assert len(calls(guarded, (X, 1.0), (X, bad))[1]) == 1, bad
    assert len(calls(lox.guard(jax.jit(lambda x: (x, nan)), bundle=tmp_path / "failed"), (X,))[1]) == 1


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_logs_that_are_returned_fail_for_the_events_that_happened(tmp_path, transform, batched):
    def body(x, n):
        def inner(i, x):
            lox.log({"loss": jnp.log(x), "column": x[:, None]}, where=jnp.arange(3) < i, time=x[0] / 2)
            return x

        lox.log({"root": jnp.sqrt(x), "zero": 0 * x}, where=x > 0)
        return lax.fori_loop(0, n, inner, x)

    step = lox.spool(body, unify=True, max_iters=4)
    step = transform(jax.vmap(step, in_axes=(0, None)) if batched else step)
    fine, bad = np.float32([1.0, 2.0, -3.0]), np.float32([1.0, -2.0, 3.0])
    fine, bad = ([np.stack([fine, each]) for each in (fine, bad)]) if batched else (fine, bad)
    _, warned = calls(lox.guard(step, bundle=tmp_path / "failed"), (fine, 3))
    assert not warned and not lox.find_nonfinite(step)(fine, 3)
    _, warned = calls(lox.guard(step, bundle=tmp_path / "failed"), (bad, 2), (bad, 3))
    assert len(warned) == 1 and "Call 1 of " in warned[0]
    report = lox.find_nonfinite(step)(bad, 3)
    assert (report.primitive, report.iterations) == ("log", (2,)) and report.element == (1,)


def test_a_result_that_was_donated_inside_is_returned_as_it_is(tmp_path):
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)

    def f(x):
        doubled = x * 2
        return doubled, donating(doubled)

    ((gone, there),) = calls(lox.guard(f, bundle=tmp_path / "failed"), (jnp.array(X),))[0]
    assert gone.is_deleted() and there.tolist() == [3.0, 5.0]


@pytest.mark.parametrize("bad", [0, 1])
def test_an_eager_function_may_use_several_devices(tmp_path, bad):
    first, second = jax.devices()[:2]

    def f(x):
        on_both = [jax.device_put(x, first), jax.device_put(x, second)]
        rates = [BAD if place == bad else GOOD for place in range(2)]
        outs = [jax.jit(train)(jnp.copy(x), rate)[0] for x, rate in zip(on_both, rates, strict=True)]
        return [jnp.nan_to_num(out) for out in outs], on_both

    guarded = lox.guard(f, bundle=tmp_path / "failed")
    assert calls(guarded, (jnp.float32([1.0, 1.0]),))[1] == []
    ((outs, _),), (message,) = calls(guarded, (jnp.array(X),))
    assert [out.devices() for out in outs] == [{first}, {second}]
    assert "the carry of a loop after iteration 2" in message and not contents(tmp_path / "failed")["in_result"]


def test_a_guard_transfers_nothing_where_transfers_are_forbidden(tmp_path):
    x, rates = jnp.array(X), jnp.array(BAD)
    for f, when in itertools.product((train, jax.jit(train)), ("nan", "nonfinite")):
        guarded = lox.guard(f, bundle=tmp_path / "failed", when=when)
        with jax.transfer_guard("disallow"):
            f(x, rates)
            _, warned = calls(guarded, (x, rates))
        assert len(warned) == 1


def test_batch_elements_of_a_while_loop_that_are_done_do_not_fail(tmp_path):
    f = lambda x: lax.while_loop(lambda x: x > 1.0, lambda x: x - jnp.sqrt(x - 1.0) - 1.0, x)  # noqa: E731
    guarded = lox.guard(jax.jit(jax.vmap(f)), bundle=tmp_path / "failed")
    (result,), warned = calls(guarded, (np.float32([1.5, 40.0]),))
    assert warned == []
    np.testing.assert_array_equal(result, jax.vmap(f)(np.float32([1.5, 40.0])))


@pytest.mark.parametrize(
    "transform",
    [jax.vmap, lambda f: jax.jit(jax.vmap(f)), lambda f: jax.vmap(jax.jit(f))],
    ids=["vmap", "jit-vmap", "vmap-jit"],
)
def test_loops_of_branches_that_a_batch_element_does_not_take_do_not_fail(tmp_path, transform):
    again = lambda x, by: lax.fori_loop(0, 5, lambda i, x: x - by - 0.0 * jnp.sqrt(x), x)  # noqa: E731
    f = transform(lambda x: lax.cond(x > 4.0, again, lambda x, by: x, x, 0.5))
    guarded = lox.guard(f, bundle=tmp_path / "failed")
    assert calls(guarded, (np.float32([1.0, 5.0, 2.0]),))[1] == []
    assert len(calls(guarded, (np.float32([1.0, np.nan, 2.0]),))[1]) == 1


@pytest.mark.parametrize("inside", [lambda f: f, lambda f: lambda *args: lax.map(lambda _: f(*args), np.arange(2))])
def test_inside_of_jit_a_call_that_fails_is_written(tmp_path, inside):
    guarded = lox.guard(train, bundle=tmp_path / "failed")
    _, warned = calls(jax.jit(inside(guarded)), (X, GOOD), (X, BAD))
    assert len(warned) == 1 and contents(tmp_path / "failed")["iteration"] == 2


def test_inside_of_jit_each_iteration_that_fails_first_is_written(tmp_path):
    """No result of the call is bad: only the carry is, which the next iteration replaces."""

    def f(xs):
        return lax.scan(lambda c, x: (jnp.log(x), 2 * x), 0.0, xs)[1]

    def looped(xs):
        return lax.fori_loop(0, len(xs), lambda i, c: (jnp.log(xs[i]), c[1] + 1), (0.0, 0))[1]

    for name, fun in (("scan", f), ("fori", looped)):
        for place in range(2):
            folder = tmp_path / f"{name}-{place}"
            xs = jnp.ones(3).at[place].set(-1.0)
            _, warned = calls(jax.jit(lambda xs, g=lox.guard(fun, bundle=folder): g(xs)), (jnp.ones(3),), (xs,))
            assert len(warned) == 1 and contents(folder)["iteration"] == place
            assert not contents(folder)["in_result"]
            np.testing.assert_array_equal(np.load(folder / "args-0.npy"), xs)
            report = lox.replay(folder, fun)
            assert (report.primitive, report.iterations) == ("log", (place,))


def test_a_step_in_a_python_loop_is_kept_with_what_it_got(tmp_path):
    @jax.jit
    def step(state, rate):
        return {"x": state["x"] - rate * jnp.log(state["x"])}

    guarded, state = lox.guard(step, bundle=tmp_path / "failed"), {"x": X}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for rate in BAD:
            state = guarded(state, rate)
        lox.flush()
    assert len(warned) == 1 and not np.isfinite(state["x"]).all()
    report = lox.replay(tmp_path / "failed", step)
    assert (report.primitive, report.kind) == ("log", "nan")
    assert report.operands[0].min() < 0


HANDLERS = (
    lambda f, folder: lox.guard(f, bundle=folder / "failed"),
    lambda f, folder: lox.tap(f, lambda logs: None),
    lambda f, folder: lambda *args, **kwargs: lox.spool(f)(*args, **kwargs)[0],
)


def test_arguments_of_any_name_reach_the_function(tmp_path):
    names = ("args", "kwargs", "self", "fun", "state", "handler", "function", "channel", "labels", "more")
    for name, handle in itertools.product(names, HANDLERS):
        f = eval(f"lambda x, *, {name}: x - {name}")
        for function in (f, jax.jit(f)):
            np.testing.assert_array_equal(handle(function, tmp_path)(X, **{name: 2.0}), X - 2.0)


def test_a_jitted_function_with_compiler_options_is_compiled_with_them(tmp_path):
    options = {"xla_cpu_enable_fast_math": False}
    f = jax.jit(lambda x, n, *, y: jnp.log(x) * n + y, static_argnums=1, compiler_options=options)
    wrong = jax.jit(lambda x: jnp.log(x), compiler_options={"no_such_option": "on"})
    for handle in HANDLERS:
        np.testing.assert_array_equal(handle(f, tmp_path)(X, 3, y=X), f(X, 3, y=X))
        with pytest.raises(Exception, match="no_such_option"):
            handle(wrong, tmp_path)(X)


# -- a call does not wait ----------------------------------------------------------------------------------------------


def test_a_call_does_not_wait_for_the_verdict_on_those_before(tmp_path, monkeypatch):
    waited = []

    class NotReady:
        def is_ready(self):
            return False

        def __array__(self, dtype=None, copy=None):
            waited.append(self)
            return np.array([0, -1])

    monkeypatch.setattr(lox._nonfinite._guard, "_verdict", lambda *args: NotReady())
    guarded = lox.guard(lambda x: jnp.log(x), bundle=tmp_path / "failed")
    for _ in range(3):
        guarded(-X)
    assert not waited
    lox.flush()
    assert len(waited) == 3


def test_the_first_failing_call_is_kept_and_then_no_other(tmp_path):
    guarded = lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed")
    _, warned = calls(guarded, (X,), (-X,), (-2 * X,))
    assert len(warned) == 1
    assert calls(guarded, (-3 * X,))[1] == []
    np.testing.assert_array_equal(np.load(tmp_path / "failed" / "args-0.npy"), -X)
    assert [each.name for each in tmp_path.iterdir()] == ["failed"]


def test_a_call_of_a_function_that_is_dropped_is_looked_at(tmp_path):
    def script():
        lox.guard(jax.jit(train), bundle=tmp_path / "failed")(X, BAD)

    script()
    gc.collect()
    with pytest.warns(lox.NonfiniteWarning, match="train has NaN"):
        lox.flush()
    assert (tmp_path / "failed" / "bundle.json").exists()


def test_guards_that_are_dropped_are_let_go(tmp_path):
    for number in range(20):
        lox.guard(jax.jit(train), bundle=tmp_path / str(number))(X, GOOD)[0].block_until_ready()
    lox.flush()
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is _Guard and each._path.parent == tmp_path]


def test_a_bundle_is_never_overwritten(tmp_path):
    for _ in range(2):
        calls(lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed"), (-X,))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["failed", "failed-2"]


def test_a_bundle_that_cannot_be_written_whole_leaves_nothing_and_ends_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("disk full")

    guarded = lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed")
    monkeypatch.setattr(lox._nonfinite._bundle, "program", full)
    _, (message,) = calls(guarded, (-X,), (-X,))
    assert f"No bundle is written to {tmp_path / 'failed'}: OSError: disk full" in message
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    _, (message,) = calls(lox.guard(jax.jit(jnp.log), bundle=tmp_path / "file" / "failed"), (-X,))
    assert "No bundle is written" in message


def test_a_bundle_whose_writer_is_killed_is_not_there(tmp_path):
    code = PROGRAM.replace("import jax,", "import os, lox._nonfinite._bundle as bundle, jax,").replace(
        "if __name__", "bundle.program = lambda *args: os._exit(9)\nif __name__"
    )
    (tmp_path / "killed.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "killed.py"], cwd=tmp_path, env=environment).returncode == 9
    assert not (tmp_path / "failed").exists()
    calls(lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed"), (-X,))
    assert lox.replay(tmp_path / "failed", jnp.log).primitive == "log"


def test_a_function_that_may_have_effects_is_not_run_or_traced_again(tmp_path):
    runs, ref, rates = [], jax.new_ref(jnp.float32(0)), iter([GOOD, BAD, BAD, BAD, BAD])

    def eager(x):
        runs.append(x)
        return train(x, next(rates))[0]

    def calls_host(x):
        jax.experimental.io_callback(runs.append, None, x, ordered=True)
        return train(x, BAD)[0]

    def writes(x):
        ref[...] += 1.0
        return train(x, BAD)[0]

    def writes_argument(x, ref):
        ref[...] += 1.0
        return train(x, BAD)[0]

    def note(x):
        jax.debug.callback(runs.append, x)
        return x

    def prints(x):
        step = lambda x, rate: lax.cond(x[0] > 0, note, lambda x: x, x) - rate * jnp.log(x)  # noqa: E731
        lox.log({"x": x})
        return lax.scan(lambda x, rate: (jax.jit(step)(note(x), rate), None), note(x), BAD)[0]

    for number, (f, arguments, why) in enumerate(
        [
            (eager, (X,), "is not jitted"),
            (jax.jit(calls_host), (X,), "has effects"),
            (jax.jit(writes), (X,), "has effects"),
            (jax.jit(writes_argument), (X, ref), "has effects"),
            (jax.jit(prints), (X,), None),
        ]
    ):
        guarded, before = lox.guard(f, bundle=tmp_path / str(number)), len(runs)
        if f is eager:
            guarded(X)
        _, (message,) = calls(guarded, arguments)
        jax.effects_barrier()
        about = contents(tmp_path / str(number))
        assert len(about["carry"]) == (why is None)
        if why is None:
            assert message.endswith("4. Run it again with lox.replay.")
        else:
            assert f"without its last good carry: the function {why}, and so is not run again." in message
        assert len(runs) - before == {0: 2, 1: 1, 4: 9}.get(number, 0)
        program = (tmp_path / str(number) / "program.txt").read_text()
        assert bool(program) == (f is not eager) == (about["program"] is not None)
    assert float(ref[...]) == 2.0 and all(isinstance(each, (np.ndarray, jax.Array)) for each in runs)


def test_two_guarded_functions_with_one_path_have_a_bundle_each(tmp_path):
    first, second = (lox.guard(jax.jit(f), bundle=tmp_path / "failed") for f in (jnp.log, jnp.sqrt))
    calls(lambda x: (first(x), second(x)), (-X,))
    found = {contents(tmp_path / name)["function"] for name in ("failed", "failed-2")}
    assert found == {"jax.numpy:log", "jax.numpy:sqrt"}


def test_calls_of_several_threads_write_one_bundle(tmp_path):
    guarded = lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed")
    with warnings.catch_warnings(record=True), concurrent.futures.ThreadPoolExecutor(4) as threads:
        warnings.simplefilter("always")
        list(threads.map(lambda n: guarded(-X if n % 5 == 4 else X), range(40)))
        lox.flush()
    assert [each.name for each in tmp_path.iterdir()] == ["failed"]


def test_a_bundle_has_the_arguments_as_they_were_when_the_call_began(tmp_path):
    class Model:
        def __init__(self, w):
            self.w = w

    jax.tree_util.register_pytree_node(Model, lambda model: ([model.w], None), lambda _, leaves: Model(*leaves))
    buffer, state, model, ref = np.array(-X), {"w": jnp.array(-X)}, Model(jnp.array(-X)), jax.new_ref(jnp.float32(1))

    def forward(model):
        before, model.w = model.w, jnp.array(X)
        return jnp.log(before)

    def add(ref):
        ref[...] += 1.0
        return jnp.log(-ref[...])

    failing = {
        "buffer": (jnp.log, buffer, lambda: buffer.fill(1.0)),
        "state": (jax.jit(lambda state: jnp.log(state["w"])), state, lambda: state.update(w=jnp.array(X))),
        "model": (forward, model, lambda: None),
        "ref": (add, ref, lambda: None),
    }
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for name, (f, argument, change) in failing.items():
            lox.guard(f, bundle=tmp_path / name)(argument)
            change()
            lox.flush()
    assert len(warned) == 4
    for name in ("buffer", "state", "model"):
        np.testing.assert_array_equal(np.load(tmp_path / name / "args-0.npy"), -X)
    assert model.w.tolist() == X.tolist() and float(ref[...]) == 2.0
    assert contents(tmp_path / "ref")["arguments"] == [{"text": "Ref(1., dtype=float32)", "path": "args[0]"}]


# -- donation ----------------------------------------------------------------------------------------------------------


def test_donated_arguments_are_copied_and_still_donated(tmp_path):
    guarded = lox.guard(jax.jit(lambda x, y: (jnp.log(x), y), donate_argnums=0), bundle=tmp_path / "failed")
    x, y = jnp.array(-X), jnp.array(X)
    _, warned = calls(guarded, (x, y))
    assert len(warned) == 1 and x.is_deleted() and not y.is_deleted()
    np.testing.assert_array_equal(np.load(tmp_path / "failed" / "args-0.npy"), -X)


def test_without_copies_a_function_that_donates_is_refused(tmp_path):
    with pytest.raises(lox.LogValueError, match="donates arguments"):
        lox.guard(jax.jit(jnp.log, donate_argnums=0), bundle=tmp_path / "failed", keep=False)


def test_arguments_that_a_function_inside_has_donated_are_said_to_be_gone(tmp_path):
    inner = jax.jit(jnp.log, donate_argnums=0)
    guarded = lox.guard(lambda x: inner(x), bundle=tmp_path / "failed")
    _, (message,) = calls(guarded, (jnp.array(-X),))
    assert "Arguments of it were deleted since" in message and list(tmp_path.iterdir()) == []


def test_arguments_that_were_donated_to_a_later_call_are_said_to_be_deleted(tmp_path):
    guarded, x = lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed"), jnp.array(-X)
    guarded(x)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    _, (message,) = calls(lambda: None, ())
    assert "inside of it or in a later call: no bundle is written" in message and list(tmp_path.iterdir()) == []


# -- when it is written ------------------------------------------------------------------------------------------------


def test_an_interrupt_while_a_bundle_is_written_lets_a_later_one_be_written(tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    guarded = lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed")
    with monkeypatch.context() as patched:
        patched.setattr(lox._nonfinite._bundle, "program", interrupted)
        guarded(-X)
        with pytest.raises(KeyboardInterrupt):
            lox.flush()
    assert list(tmp_path.iterdir()) == []
    assert len(calls(guarded, (-X,))[1]) == 1 and (tmp_path / "failed" / "bundle.json").exists()


def test_a_bundle_is_written_with_the_types_of_64_bits_of_its_call(tmp_path):
    grown = lambda x: lax.scan(lambda x, _: (x * 1e30, None), x, length=20)[0]  # noqa: E731
    guarded = lox.guard(jax.jit(grown), bundle=tmp_path / "failed", when="nonfinite")
    with jax.enable_x64(True):
        guarded(np.float64(1.0))
    _, (message,) = calls(lambda: None, ())
    assert "after iteration 10." in message and "without" not in message
    np.testing.assert_allclose(np.load(tmp_path / "failed" / "carry-0.npy"), 1e300, rtol=1e-10)
    assert "float64" in (tmp_path / "failed" / "program.txt").read_text()


def test_of_many_bad_iterations_one_is_written(tmp_path, monkeypatch):
    threads = []

    class Thread(lox._nonfinite._guard.threading.Thread):
        def __init__(self, *args, **kwargs):
            threads.append(self)
            super().__init__(*args, **kwargs)

    guarded = lox.guard(lambda x: jnp.log(x), bundle=tmp_path / "failed")
    f = jax.jit(lambda x: lax.scan(lambda x, _: (guarded(x), None), x, length=50)[0])
    monkeypatch.setattr(lox._nonfinite._guard.threading, "Thread", Thread)
    assert len(calls(f, (-X[0],))[1]) == 1
    assert sum("_write" in each.name for each in threads) == 1


# -- replay ------------------------------------------------------------------------------------------------------------


def test_a_replay_goes_on_from_the_last_good_carry(tmp_path):
    calls(lox.guard(jax.jit(train), bundle=tmp_path / "failed"), (X, BAD))
    np.save(tmp_path / "failed" / "carry-0.npy", np.float32([1.0, -5.0]))
    report = lox.replay(tmp_path / "failed", train)
    assert report.iterations == (2,)
    np.testing.assert_array_equal(report.operands[0], [1.0, -5.0])


@pytest.mark.parametrize("batched", [False, True], ids=["single", "batch"])
def test_a_replay_tells_of_an_overflow_in_an_earlier_iteration(tmp_path, batched):
    """The product is infinite after iteration 38, and inf * 0 is NaN in iteration 40."""

    def f(factors):
        body = lambda c, x: ((c[0] * x, c[1] * 0.0 + c[0] - c[1]), None)  # noqa: E731
        return lax.scan(body, (1.0, 1.0), factors)[0]

    factors = np.full(60, 10.0, np.float32)
    if batched:
        f, factors = jax.vmap(f), np.stack([factors * np.float32(0.1), factors])
    calls(lox.guard(jax.jit(f), bundle=tmp_path / "failed"), (factors,))
    found, again = lox.find_nonfinite(f)(factors), lox.replay(tmp_path / "failed", f)
    assert [(each.primitive, each.iterations) for each in again.infinities] == [("mul", (38,))]
    assert again.iterations == (40,) and again.batch == ((1,) if batched else ()) and str(again) == str(found)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_replay_of_a_batch_names_the_element(tmp_path, transform):
    f = transform(jax.vmap(lambda x, rates: train(x, rates)[0], (0, None)))
    calls(lox.guard(f, bundle=tmp_path / "failed"), (np.float32([1.0, 2.0, 3.0]), BAD))
    report = lox.replay(tmp_path / "failed", f)
    assert (report.found, report.primitive, report.iterations, report.batch) == (True, "log", (2,), (1,))


@pytest.mark.parametrize("when", ["nan", "nonfinite"])
def test_a_batched_loop_is_replayed_with_its_element(tmp_path, when):
    def f(x, key):
        def step(carry, rate):
            x, n, key = carry
            key, own = jax.random.split(key)
            x = jnp.where(n == 2, jnp.log(x) if when == "nan" else x * jnp.float32(1e38), x)
            return (x + 0.0 * jax.random.normal(own), n + 1, key), None

        return lax.scan(step, (x, 0, key), length=4)[0]

    f = jax.jit(jax.vmap(f))
    x, keys = np.float32([1.0, -20.0]), jax.random.split(jax.random.key(0))
    assert len(calls(lox.guard(f, bundle=tmp_path / "failed", when=when), (x, keys))[1]) == 1
    report = lox.replay(tmp_path / "failed", f)
    primitive = {"nan": "log", "nonfinite": "mul"}[when]
    assert (report.primitive, report.iterations, report.batch) == (primitive, (2,), (1,))


def test_logs_and_taps_do_not_make_another_program(tmp_path):
    def f(x):
        lox.log({"x": x})
        return jnp.log(x)

    calls(lox.guard(jax.jit(lox.tap(f, lambda logs: None)), bundle=tmp_path / "failed"), (-X,))
    for function in (f, jnp.log, jax.jit(lox.tap(f, lambda logs: None))):
        assert lox.replay(tmp_path / "failed", function).primitive == "log"


def test_arguments_of_other_kinds_need_an_example(tmp_path):
    class Params:
        def __init__(self, w):
            self.w = w

    jax.tree_util.register_pytree_node(Params, lambda p: ((p.w,), None), lambda _, children: Params(*children))
    f = jax.jit(lambda params, name: jnp.log(params.w), static_argnums=1)
    calls(lox.guard(f, bundle=tmp_path / "failed"), (Params(-X), "a"))
    with pytest.raises(lox.LogValueError, match="give arguments of the same structure"):
        lox.replay(tmp_path / "failed", f)
    assert lox.replay(tmp_path / "failed", f, Params(X), "a").primitive == "log"
    apply = jax.jit(lambda f, x, scale: f(x) * scale.real, static_argnums=0)
    calls(lox.guard(apply, bundle=tmp_path / "other"), (jnp.log, -X, 1j))
    with pytest.raises(lox.LogValueError, match="give arguments of the same structure"):
        lox.replay(tmp_path / "other", apply)
    assert lox.replay(tmp_path / "other", apply, jnp.log, X, 1j).primitive == "log"
    with pytest.raises(lox.LogValueError, match=r"args\[1\] is 'b', in the bundle 'a'"):
        lox.replay(tmp_path / "failed", f, Params(X), "b")


class Moments(NamedTuple):
    mean: Any
    count: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: Any
    moments: Moments
    rate: float = dataclasses.field(default=0.1, metadata={"static": True})
    names: tuple = dataclasses.field(default=("a",), metadata={"static": True})


class Static(NamedTuple):
    f: Any


jax.tree_util.register_dataclass(Registered := dataclasses.make_dataclass("Registered", ["f", "w"]), ["w"], ["f"])


def _tree():
    moments = Moments({2: -X, 3: [None, (1, "text")]}, jnp.int32(3))
    return State(OrderedDict(z=-X, a={2: X, 1: 2.5}), moments, 0.5, ("b", 2))


def test_named_tuples_dataclasses_and_other_trees_need_no_example(tmp_path):
    got = []

    def f(state, others):
        got.append((state, others))
        return jnp.log(state.w["z"]) * state.rate

    guarded = lox.guard(f, bundle=tmp_path / "failed")
    calls(lambda tree: guarded(tree, (Moments(None, ()),)), (_tree(),))
    assert lox.replay(tmp_path / "failed", f).primitive == "log"
    expected = (_tree(), (Moments(None, ()),))
    for state in got:
        assert jax.tree.structure(state) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, got[-1], expected)
    assert got[-1][0].moments.mean[3][1] == (1, "text") and got[-1][0].names == ("b", 2)


def test_types_that_are_not_found_again_are_named_with_what_to_do(tmp_path, monkeypatch):
    class Local(NamedTuple):
        x: Any

    f = lambda tree: jnp.log(jax.tree.leaves(tree)[0])  # noqa: E731
    cases = {
        "local": (Local(-X), "has objects of .*Local, which its module has not under this name"),
        "function": (Registered(len, -X), "Registered, which its module|static data of the type builtin_function"),
        "changed": (Moments(-X, 1), f"objects of {__name__}:Moments, which is another type here"),
        "gone": (Static(-X), f"objects of {__name__}:Static, which is another type here"),
    }
    for name, (tree, _) in cases.items():
        calls(lox.guard(f, bundle=tmp_path / name), (tree,))
    monkeypatch.setattr(sys.modules[__name__], "Moments", NamedTuple("Moments", [("other", Any), ("count", Any)]))
    monkeypatch.delattr(sys.modules[__name__], "Static")
    for name, (tree, says) in cases.items():
        with pytest.raises(lox.LogValueError, match=f"{says}.*give arguments of the same structure.*--args"):
            lox.replay(tmp_path / name, f)
        assert lox.replay(tmp_path / name, f, tree).primitive == "log"


def test_keys_small_floats_and_nested_arguments_come_back_as_they_were(tmp_path):
    def f(inputs, scale):
        noise = jax.random.normal(inputs["key"], (3,)) + scale
        return jnp.log(-jnp.abs(noise)), inputs["small"][0]

    inputs = {"key": jax.random.key(1), "small": (jnp.bfloat16(2.5), None, [3])}
    calls(lox.guard(jax.jit(f), bundle=tmp_path / "failed"), (inputs, 0.5))
    report = lox.replay(tmp_path / "failed", f)
    expected = -np.abs(np.asarray(jax.random.normal(inputs["key"], (3,)) + 0.5))
    np.testing.assert_allclose(report.operands[0], expected, rtol=1e-6)


def test_another_program_is_refused_with_what_differs(tmp_path):
    calls(lox.guard(jax.jit(train), bundle=tmp_path / "failed"), (X, BAD))
    with pytest.raises(lox.LogValueError, match=r"is not the function of the bundle.*- scan float32\[2\]"):
        lox.replay(tmp_path / "failed", jax.jit(lambda x, rates: x * rates[0]))
    with pytest.raises(lox.LogValueError, match=r"args\[0\] is float32\[3\], in the bundle float32\[2\]"):
        lox.replay(tmp_path / "failed", train, np.zeros(3, np.float32), BAD)


def _sharded(axis_type, *shapes):
    """Arrays that are spread over all devices along their first axis, with -1 and 0 in them; numbers are copied."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(axis_type,))
    spec = lambda shape: P("data") if shape else P()  # noqa: E731
    make = lambda shape: np.float32(1.0) if not shape else np.arange(-1.0, shape[0] - 1.0, dtype=np.float32)  # noqa: E731
    return [jax.device_put(make(shape), NamedSharding(mesh, spec(shape))) for shape in shapes]


SHARDED = {
    "log": lambda w, x: jnp.log(x),
    "grad": lambda w, x: jax.grad(lambda w: jnp.mean(jnp.log(w * x)) * 0.0)(w),
    "scan": lambda w, x: lax.scan(lambda c, _: (c - jnp.log(x).sum() * 0.0, None), w, None, 3)[0],
    "spread carry": lambda w, x: lax.scan(lambda c, _: (jnp.log(c * w), None), x, None, 3)[0],
}


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_arrays_that_were_spread_over_devices_are_spread_again(tmp_path, axis_type):
    w, x = _sharded(axis_type, (), (4,))
    for name, function in SHARDED.items():
        f = jax.jit(function)
        calls(lox.guard(f, bundle=tmp_path / name), (w, x))
        found = lox.find_nonfinite(f)(w, x)
        assert found.found and str(lox.replay(tmp_path / name, f)) == str(found)
        assert str(lox.replay(tmp_path / name, f, w, x)) == str(found)
        with jax.set_mesh(x.sharding.mesh):
            assert str(lox.replay(tmp_path / name, f)) == str(found)
    got = []
    eager = lambda w, x: (got.append((w, x)), jnp.log(x))[1]  # noqa: E731
    calls(lox.guard(eager, bundle=tmp_path / "eager"), (w, x))
    lox.replay(tmp_path / "eager", eager)
    assert [each.sharding for each in got[-1]] == [w.sharding, x.sharding]


def test_a_bundle_of_more_devices_is_replayed_on_fewer_or_says_how_many_it_needs(tmp_path):
    (x,) = _sharded(AxisType.Explicit, (4,))
    both = {"fits": lambda x: jnp.log(x) * 2.0, "not": lambda x: jnp.log(x) + jnp.zeros(4, out_sharding=P("data"))}
    for name, f in both.items():
        with jax.set_mesh(x.sharding.mesh):
            calls(lox.guard(f, bundle=tmp_path / name), (x,))
        about = contents(tmp_path / name)
        assert about["arguments"][0]["sharding"]["devices"] == list(range(jax.device_count()))
        about["arguments"][0]["sharding"]["devices"][-1] = 7
        (tmp_path / name / "bundle.json").write_text(json.dumps(about))
    assert lox.replay(tmp_path / "fits", both["fits"]).primitive == "log"
    with pytest.raises(lox.LogValueError, match=f"were spread over 8 devices, and here are {jax.device_count()}"):
        lox.replay(tmp_path / "not", both["not"])


def _attention(q, k, v):
    return jnp.einsum("qk,kd->qd", jax.nn.softmax(jnp.einsum("qd,kd->qk", q, k)), v)


def _scaled(table, scale):
    return lambda q, k, v: lax.scan(lambda c, k: (c * scale + jnp.dot(k, table), None), q, k)[0] + jnp.log(v)


def _added(table):
    return lambda q, k, v: jnp.log(q + table.astype(np.float32)[:, None, None])


TABLE = np.arange(9, dtype=np.float32)
OTHERS = {
    "operands": (_attention, lambda q, k, v: _attention(k, q, v), "args[0]"),
    "operands of einsum": (lambda q, k, v: jnp.einsum("qd,kd->qk", q, k) @ v, lambda q, k, v: k @ q.T @ v, "args[1]"),
    "literal": (lambda q, k, v: jnp.log(q) + 0.1, lambda q, k, v: jnp.log(q) + 0.2, "0.2"),
    "literal in a loop": (_scaled(TABLE[:3], 0.5), _scaled(TABLE[:3], 0.25), "0.25"),
    "small constant": (_scaled(TABLE[:3], 0.5), _scaled(TABLE[1:4], 0.5), "1.0, 2.0, 3.0"),
    "large constant": (_added(TABLE), _added(np.append(TABLE[:8], 7)), "#"),
    "parameter": (lambda q, k, v: jnp.log(q).sum(0), lambda q, k, v: jnp.log(q).sum(1), "axes=(1)"),
    "result": (lambda q, k, v: (jnp.log(q), k), lambda q, k, v: (jnp.log(q), v), "args[2]"),
    "branch": (
        lambda q, k, v: lax.cond(q[0, 0] > 0, lambda q: q, jnp.log, q),
        lambda q, k, v: lax.cond(q[0, 0] > 0, lambda q: q + 0.0, jnp.log, q),
        "add",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_a_program_with_other_operands_constants_or_results_is_refused(tmp_path, case):
    function, other, shown = OTHERS[case]
    q = np.full((3, 3), -1.0, np.float32)
    calls(lox.guard(jax.jit(function), bundle=tmp_path / "failed"), (q, q, q * np.float32("nan")))
    assert lox.replay(tmp_path / "failed", jax.jit(function)).found
    with pytest.raises(lox.LogValueError, match=f"its operations differ, the first ones in - .*{re.escape(shown)}"):
        lox.replay(tmp_path / "failed", jax.jit(other))


def test_constants_of_another_platform_may_be_rounded_otherwise(tmp_path):
    f = jax.jit(lambda x: jnp.log(x) + TABLE.sum() * jnp.asarray(TABLE[:, None]))
    calls(lox.guard(f, bundle=tmp_path / "failed"), (-X,))
    program = tmp_path / "failed" / "program.txt"
    changed = re.sub("#[0-9a-f]{16}", "#" + "0" * 16, program.read_text())
    assert changed != program.read_text()
    program.write_text(changed)
    with pytest.raises(lox.LogValueError, match="its operations differ"):
        lox.replay(tmp_path / "failed", f)
    place = tmp_path / "failed" / "bundle.json"
    place.write_text(json.dumps(contents(tmp_path / "failed") | {"platform": "tpu"}))
    assert lox.replay(tmp_path / "failed", f).primitive == "log"


def test_what_is_no_bundle_or_damaged_is_an_error(tmp_path):
    with pytest.raises(lox.StorageError, match="is no bundle of lox.guard"):
        lox.replay(tmp_path, train)
    calls(lox.guard(jax.jit(train), bundle=tmp_path / "failed"), (X, BAD))
    (tmp_path / "failed" / "args-0.npy").write_bytes(b"")
    with pytest.raises(lox.StorageError, match="is damaged"):
        lox.replay(tmp_path / "failed", train)


PROGRAM = """
import jax, jax.numpy as jnp, lox, typing

@jax.jit
def train(x, rates):
    def step(x, rate):
        return x - rate * jnp.log(x), None
    return jax.lax.scan(step, x, rates)[0]

class State(typing.NamedTuple):
    x: typing.Any
    rates: typing.Any

@jax.jit
def of_state(state):
    return train(*state)

def arguments():
    return jnp.zeros(2), jnp.zeros(4)

if __name__ == "__main__":
    state = State(jnp.array([1.0, 2.0]), jnp.array([1.0, 8.0, 1.0, 1.0]))
    lox.guard(train, bundle="failed")(*state)
    lox.guard(of_state, bundle="of_state")(state)
"""


def test_a_bundle_of_one_process_is_replayed_in_another_by_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "guarded_program.py").write_text(PROGRAM)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "guarded_program.py"], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert "NonfiniteWarning" in done.stderr and (tmp_path / "failed").is_dir(), done.stderr
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--args", "guarded_program:arguments"]):
        assert main(["replay", "failed", "guarded_program:train", *more]) == 0
        out = capsys.readouterr().out
        assert out.startswith("NaN begins in log at guarded_program.py:7 (step), iteration 2")
    assert main(["replay", "of_state", "guarded_program:of_state"]) == 0
    assert capsys.readouterr().out.startswith("NaN begins in log at guarded_program.py:7 (step), iteration 2")
    assert main(["replay", "missing", "guarded_program:train"]) == 2
    assert capsys.readouterr().err == "lox: missing is no bundle of lox.guard: it has no bundle.json.\n"


def test_the_command_replay_says_where_nan_began_of_functions_and_of_guarded_ones(tmp_path, monkeypatch, capsys):
    program = (
        "import jax, jax.numpy as jnp, lox\n"
        "def step(x, scale):\n"
        "    return scale['a'] * jnp.log(x)\n"
        "def finite(x, scale):\n"
        "    return x\n"
        "def positional():\n"
        "    return jnp.zeros(()), {'a': jnp.zeros(())}\n"
        "class Steps:\n"
        "    guarded = staticmethod(lox.guard(step, bundle='unused'))\n"
    )
    (tmp_path / "replayed.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import replayed

    calls(lox.guard(replayed.step, bundle=tmp_path / "failed"), (np.float32(-1.0), {"a": np.float32(2.0)}))
    sys.path.remove(str(tmp_path))
    for more in ([], ["--args", "replayed:positional"]):
        assert main(["replay", str(tmp_path / "failed"), "replayed:step", *more]) == 0
        assert "replayed.py:3" in (printed := capsys.readouterr().out) and "log" in printed
    assert main(["replay", "failed", "replayed:Steps.guarded"]) == 0
    assert "replayed.py:3" in capsys.readouterr().out
    assert main(["replay", "failed", "replayed:finite"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("Not reproduced: ") and "which the bundle cannot compare" in printed.out
    assert printed.err == ""
    assert main(["replay", "nowhere", "replayed:step"]) == 2
    assert capsys.readouterr().err.startswith("lox: ")
    assert main(["replay", "failed", "replayed:absent"]) == 2
    assert capsys.readouterr().err == "lox: replayed has no absent\n"
    assert tmp_path.joinpath("failed").is_dir() and not tmp_path.joinpath("unused").exists()
    del sys.modules["replayed"]


TRANSPOSED = """
import jax, jax.numpy as jnp

def f(x):
    return jnp.log(x)

step = jax.jit(jax.vmap(f, out_axes=1))  # It transposes at no line of the program.
"""


def test_lines_of_what_has_started_the_command_are_no_lines_of_the_program(tmp_path):
    (tmp_path / "program.py").write_text(TRANSPOSED)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    guarded = (
        "import jax.numpy as jnp, lox, program; lox.guard(program.step, bundle='b')(-jnp.ones((2, 3))); lox.flush();"
        "print(lox.replay('b', program.step)); import runpy; sys = __import__('sys'); sys.argv[1:] = ['replay', 'b', "
        "'program:step']; jax = __import__('jax'); jax.clear_caches(); runpy.run_module('lox', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", guarded], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("NaN begins in ") == 2 and done.stdout.count("  then transpose") == 2
    assert "<string>" not in done.stdout and "<frozen" not in done.stdout, done.stdout


def test_a_number_is_shown_in_the_dtype_that_jax_computes_in():
    for f in (lambda x: jnp.log(x), jax.jit(lambda x: jnp.log(x))):
        (operand,) = lox.find_nonfinite(f)(-1.0).operands
        assert operand.dtype == np.float32
    (operand,) = lox.find_nonfinite(jnp.log)(np.float64(-1.0)).operands
    assert operand.dtype == np.float32


def test_the_exit_code_tells_what_is_finite_from_what_is_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "exit_codes.py").write_text(
        "import jax.numpy as jnp\nf, finite, other = jnp.log, lambda x: jnp.log(x), lambda x: jnp.sqrt(x)"
    )
    calls(lox.guard(jnp.log, bundle=tmp_path / "failed"), (-X,))
    monkeypatch.chdir(tmp_path)
    assert main(["replay", "failed", "exit_codes:f"]) == 0
    for refused in ("exit_codes:other", "exit_codes:missing", "no_module:f"):
        assert main(["replay", "failed", refused]) == 2 and capsys.readouterr().err.startswith("lox: ")
    np.save(tmp_path / "failed" / "args-0.npy", X)
    assert main(["replay", "failed", "exit_codes:finite"]) == 1
    assert capsys.readouterr().out.startswith("Not reproduced: ")


def test_the_warning_and_the_bundle_have_the_number_of_the_call(tmp_path):
    guarded = lox.guard(jax.jit(jnp.log), bundle=tmp_path / "failed")
    _, (message,) = calls(guarded, (X,), (X,), (-X,), (X,))
    assert message.startswith("Call 2 of ") and " has NaN in a result. " in message
    assert contents(tmp_path / "failed")["call"] == 2
    _, (message,) = calls(jax.jit(lox.guard(train, bundle=tmp_path / "inside")), (X, BAD))
    assert "Call" not in message and contents(tmp_path / "inside")["call"] is None


def test_the_report_has_the_first_bad_element():
    x = np.ones((2, 3), np.float32)
    x[1, 1:] = -1.0
    assert lox.find_nonfinite(jnp.log)(x).element == (1, 1)
    by_row = lox.find_nonfinite(jax.vmap(jnp.log, in_axes=1, out_axes=1))(x)
    assert (by_row.batch, by_row.element) == ((1,), (1,))
    assert lox.find_nonfinite(jnp.log)(np.float32(-1.0)).element == ()


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [jax.vmap, jax.grad], ids=["vmap", "grad"])
def test_a_guard_inside_of_a_transformation_is_an_error(tmp_path, transform):
    guarded = lox.guard(lambda x: jnp.log(x).sum(), bundle=tmp_path / "failed")
    with pytest.raises(lox.LogValueError, match=r"lox.guard\(jax.vmap\(f\), bundle=...\)"):
        transform(guarded)(X if transform is jax.vmap else X[0])


def test_vmap_of_a_function_with_a_guard_in_jit_is_an_error(tmp_path):
    in_branch = lambda f: lambda x: lax.cond(x > 0, f, lambda x: x, x)  # noqa: E731
    for around in (jax.jit, lambda f: jax.jit(in_branch(f)), lambda f: jax.grad(jax.jit(f))):
        function = around(lox.guard(lambda x: jnp.log(x), bundle=tmp_path / "failed"))
        with pytest.raises(lox.LogValueError, match=r"is in a function that jax.vmap maps.*lox.guard\(jax.vmap\(f\)"):
            jax.vmap(function)(X)
        assert calls(function, (X[0],))[1] == []
        np.testing.assert_allclose(jax.jacfwd(function)(X[1]), jax.grad(function)(X[1]))  # Which maps tangents alone.


def test_wrong_arguments_are_errors(tmp_path):
    with pytest.raises(lox.LogDataError, match="bundle= of lox.guard must be a path"):
        lox.guard(train, bundle=3)
    with pytest.raises(lox.LogValueError, match="when= of lox.guard must be one of 'nan', 'nonfinite'"):
        lox.guard(train, bundle=tmp_path, when="inf")
    with pytest.raises(lox.LogDataError, match="keep= of lox.guard must be a bool, got 'no'"):
        lox.guard(train, bundle=tmp_path, keep="no")


def test_a_path_that_no_new_directory_can_have_is_refused_when_the_guard_is_made():
    for bundle in ("", ".", "..", "a/..", "/", "n" * 201, "é" * 101, "a\0b"):
        with pytest.raises(lox.LogValueError, match="bundle= of lox.guard must be the path of a directory to make"):
            lox.guard(train, bundle=bundle)


def test_the_longest_name_is_written_where_the_guard_was_made(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    guarded = lox.guard(jnp.log, bundle="n" * 200)
    guarded(-X)
    monkeypatch.chdir(tmp_path / "other")
    _, (message,) = calls(lambda: None, ())
    assert str(tmp_path / ("n" * 200)) in message and (tmp_path / ("n" * 200) / "bundle.json").exists()


def test_a_guarded_function_is_searched_like_the_function(tmp_path):
    guarded = lox.guard(bundle=tmp_path / "failed")(jax.jit(train))
    assert lox.find_nonfinite(guarded)(X, BAD).iterations == (2,)
    assert guarded.__name__ == "train" and list(tmp_path.iterdir()) == []


def test_a_bundle_of_a_dict_is_replayed_whatever_the_order_of_its_keys(tmp_path):
    f = lambda params: jnp.log(params["w"]) + params["b"]  # noqa: E731
    calls(lox.guard(f, bundle=tmp_path / "failed"), ({"w": jnp.float32(-1), "b": jnp.float32(5)},))
    assert lox.replay(tmp_path / "failed", f).primitive == "log"


# -- what is in a bundle ---------------------------------------------------------------------------------------------


def two_loops(x, rates, *, scale, more):
    assert type(more["a"]) is tuple and type(more["b"]) is list
    x = lax.fori_loop(0, 3, lambda i, x: x + scale.astype(x.dtype), x)
    x, _ = lax.scan(lambda x, rate: (x - rate * jnp.log(x), None), x, rates)
    return lax.fori_loop(0, 2, lambda i, x: x * 2.0, x)


MORE = {"b": [True, None, 3], "a": (2.5, "text", 1j, {})}


def test_a_bundle_has_the_arguments_the_structure_and_the_loop_that_failed(tmp_path):
    jitted = jax.jit(functools.partial(two_loops, more=MORE))
    calls(lambda x, rates: lox.guard(jitted, bundle=tmp_path / "jit")(x, rates, scale=np.float16(-0.25)), (X, BAD))
    guarded = lox.guard(two_loops, bundle=tmp_path / "failed")
    _, (message,) = calls(lambda x, rates: guarded(x, rates, scale=np.float16(-0.25), more=MORE), (X, BAD))
    assert "two_loops has NaN in the carry of a loop after iteration 2." in message
    about = contents(tmp_path / "failed")
    assert about["format"] == 1 and about["function"] == f"{__name__}:two_loops"
    told = [about[name] for name in ("when", "loop", "iteration", "in_result", "process", "processes")]
    assert told == ["nan", -1, 2, True, 0, 1] and contents(tmp_path / "jit")["loop"] == 1
    assert about["arguments"] == [
        {"file": "args-0.npy", "dtype": "float32", "path": "args[0]"},
        {"file": "args-1.npy", "dtype": "float32", "path": "args[1]"},
        {"value": 2.5, "path": "kwargs['more']['a'][0]"},
        {"value": "text", "path": "kwargs['more']['a'][1]"},
        {"complex": [0.0, 1.0], "path": "kwargs['more']['a'][2]"},
        {"value": True, "path": "kwargs['more']['b'][0]"},
        {"value": 3, "path": "kwargs['more']['b'][2]"},
        {"file": "args-7.npy", "dtype": "float16", "scalar": "numpy", "path": "kwargs['scale']"},
    ]
    leaf = {"leaf": 0}
    of_a, of_b = {"tuple": [leaf, leaf, leaf, {"dict": {}}]}, {"list": [leaf, {"none": 0}, leaf]}
    kwargs = {"dict": {"more": {"dict": {"a": of_a, "b": of_b}}, "scale": leaf}}
    assert about["structure"] == {"tuple": [{"tuple": [leaf, leaf]}, kwargs]}
    carry = [{"file": f"carry-{place}.npy", "dtype": each} for place, each in enumerate(CARRIED)]
    assert about["carry"] == [] and contents(tmp_path / "jit")["carry"] == carry
    x = X.astype(np.float64) - 0.75
    for rate in BAD[:2]:
        x = x - rate * np.log(x)
    (carried,) = (np.load(tmp_path / "jit" / f"carry-{CARRIED.index('float32')}.npy"),)
    np.testing.assert_allclose(carried, x, rtol=1e-5)
    report = lox.replay(tmp_path / "failed", two_loops)
    assert (report.primitive, report.iterations) == ("log", (2,))
    np.testing.assert_allclose(report.operands[0], carried, rtol=1e-5)


CARRIED = ["float32"]


def test_a_replay_says_how_arguments_differ(tmp_path):
    f = lambda x, n, *, y, name, z=None: jnp.log(x) * n  # noqa: E731
    guarded = lox.guard(f, bundle=tmp_path / "failed")
    calls(lambda x: guarded(x, 2, y=np.ones((2, 1), np.int8), name="a", z=jax.random.key(0)), (-X,))
    same = {"y": np.zeros((2, 1), np.int8), "name": "a", "z": jax.random.key(1)}
    assert lox.replay(tmp_path / "failed", f, X, 2, **same).operands[0].tolist() == (-X).tolist()
    for args, kwargs, differs in (
        ((X, 3), same, ["args[1] is 3, in the bundle 2"]),
        ((X, 2), same | {"name": "b"}, ["kwargs['name'] is 'b', in the bundle 'a'"]),
        ((X, 2), same | {"y": np.zeros((1, 2), np.int8)}, ["kwargs['y'] is int8[1, 2], in the bundle int8[2, 1]"]),
        ((X, 2), same | {"y": 1}, ["kwargs['y'] is 1, in the bundle int8[2, 1]"]),
        ((X, X), same, [f"args[1] is {X!r}, in the bundle 2"]),
        (
            (X, 2),
            same | {"z": jax.random.key(0, impl="rbg")},
            ["kwargs['z'] is key<rbg>[], in the bundle key<threefry2x32>[]"],
        ),
        (
            (X, 2, 7),
            {"y": same["y"], "name": "a"},
            ["args[2] is not in the bundle", "kwargs['z'] is only in the bundle"],
        ),
    ):
        with pytest.raises(lox.LogValueError) as raised:
            lox.replay(tmp_path / "failed", f, *args, **kwargs)
        assert str(raised.value) == f"The arguments are not those of the bundle: {'; '.join(differs)}."
    with pytest.raises(lox.LogValueError) as raised:
        lox.replay(tmp_path / "failed", f, *range(7))
    assert str(raised.value).count(";") == 3 and "args[5]" in str(raised.value) and "args[6]" not in str(raised.value)


def test_a_bundle_of_another_format_or_jax_or_without_a_file_is_told(tmp_path):
    calls(lox.guard(jnp.log, bundle=tmp_path / "failed"), (-X,))
    place = tmp_path / "failed" / "bundle.json"
    about = contents(tmp_path / "failed")
    with pytest.raises(lox.LogValueError, match="is not the function of the bundle"):
        lox.replay(tmp_path / "failed", jnp.sqrt)
    place.write_text(json.dumps(about | {"versions": about["versions"] | {"jax": "0.1"}}))
    assert lox.replay(tmp_path / "failed", jnp.sqrt).primitive == "sqrt"  # Whose operations are not compared.
    for text, says in (
        (json.dumps(about | {"format": 2}), "is of format 2, and this lox reads 1."),
        ("{", "is damaged: JSONDecodeError: "),
        (json.dumps({"format": 1}), "is damaged: KeyError: 'arguments'"),
    ):
        place.write_text(text)
        with pytest.raises(lox.StorageError, match=says):
            lox.replay(tmp_path / "failed", jnp.log)
    place.write_text(json.dumps(about))
    (tmp_path / "failed" / "program.txt").unlink()
    with pytest.raises(lox.StorageError, match=r"failed is damaged: it has no program.txt\."):
        lox.replay(tmp_path / "failed", jnp.log)
    with pytest.raises(lox.StorageError, match=r"other is no bundle of lox.guard: it has no bundle.json\."):
        lox.replay(tmp_path / "other", jnp.log)


def test_a_loop_that_carries_something_else_than_the_bundle_is_refused(tmp_path):
    calls(lox.guard(jax.jit(train), bundle=tmp_path / "failed"), (X, BAD))
    about = contents(tmp_path / "failed")
    about["versions"]["jax"] = "0.1"  # So that operations are not compared.
    (tmp_path / "failed" / "bundle.json").write_text(json.dumps(about))

    def other(x, rates):
        return lax.scan(lambda carry, rate: ((carry[0] * rate, carry[1] + 1), None), (x[:1], 0), rates)

    line = other.__code__.co_firstlineno + 1
    with pytest.raises(lox.LogValueError) as raised:
        lox.replay(tmp_path / "failed", other)
    assert str(raised.value) == (
        f"The loop at {__file__}:{line} carries float32[1], int32[], and that of the bundle float32[2]: it is another "
        "program. Give the function that was guarded."
    )


def test_the_donated_argument_is_copied_however_it_is_named_and_passed(tmp_path):
    ways = [({"donate_argnums": (1,)}, False), ({"donate_argnames": ("y",)}, False)]
    ways += [({"donate_argnames": ("y",)}, True), ({"donate_argnums": (1,)}, True)]
    for number, (donates, by_name) in enumerate(ways):
        x, y = jnp.array(X), jnp.array(-X)
        f = jax.jit(lambda x, y: (jnp.log(y), x), **donates)
        guarded = lox.guard(f, bundle=tmp_path / f"failed{number}", when="nonfinite")
        call = (lambda x, y, guarded=guarded: guarded(x, y=y)) if by_name else guarded
        _, (message,) = calls(call, (x, y))
        assert "has inf or NaN in a result" in message and not x.is_deleted() and y.is_deleted()
        about = contents(tmp_path / f"failed{number}")
        assert [each["path"] for each in about["arguments"]] == ["args[0]", "kwargs['y']" if by_name else "args[1]"]
        np.testing.assert_array_equal(np.load(tmp_path / f"failed{number}" / "args-1.npy"), -X)
        assert about["when"] == "nonfinite" and about["in_result"]


def test_inside_of_jit_the_bundle_has_the_values_of_the_call_that_failed(tmp_path):
    def f(x, options, *, rates):
        return train(x * options["n"], rates)

    guarded, options = lox.guard(f, bundle=tmp_path / "failed"), {"name": "a", "n": 2, "none": None}
    outer = jax.jit(lambda xs, rates: lax.map(lambda each: guarded(each[0], options, rates=each[1]), (xs, rates)))
    xs, rates = np.stack([X, X + 1, X]), np.stack([GOOD, BAD, BAD])
    (found,), (message,) = calls(outer, (xs, rates))
    jax.tree.map(np.testing.assert_allclose, found, jax.vmap(lambda x, rates: f(x, options, rates=rates))(xs, rates))
    assert ":test_inside_of_jit_the_bundle_has_the_values_of_the_call_that_failed.<locals>.f has NaN in" in message
    about = contents(tmp_path / "failed")
    assert about["iteration"] == 2 and about["arguments"] == [
        {"file": "args-0.npy", "dtype": "float32", "path": "args[0]"},
        {"value": 2, "path": "args[1]['n']"},
        {"value": "a", "path": "args[1]['name']"},
        {"file": "args-3.npy", "dtype": "float32", "path": "kwargs['rates']"},
    ]
    np.testing.assert_array_equal(np.load(tmp_path / "failed" / "args-3.npy"), BAD)
    assert np.load(tmp_path / "failed" / "args-0.npy").tolist() in [X.tolist(), (X + 1).tolist()]
    report = lox.replay(tmp_path / "failed", f)
    assert (report.primitive, report.iterations) == ("log", (2,))


class _Model:
    def __init__(self, scale):
        self.scale = scale


class _Mode(enum.StrEnum):
    LOG = "log"


def _log_in_mode(mode, x):
    return jnp.log(x) if mode is _Mode.LOG else x


@pytest.mark.parametrize(
    ("f", "make", "is_whole"),
    [
        (lambda model, act, x: act(model.scale * jnp.log(x)), lambda: (_Model(2.0), jnp.tanh, -1.0), False),
        (jax.jit(_log_in_mode, static_argnums=0), lambda: (_Mode.LOG, -1.0), False),
        (lambda x, y: jnp.log(x) * y, lambda: (-1.0, float("nan")), True),
        (jax.jit(lambda w, x: jnp.log(w) * x), lambda: (jnp.asarray(-1.0), jnp.ones(3, jnp.bfloat16)), True),
        (jax.jit(lambda x, n: jnp.log(x) * float(n), static_argnums=1), lambda: (-1.0, np.int32(4)), True),
    ],
    ids=["objects and functions", "enumeration", "NaN", "weakly typed", "static number of NumPy"],
)
def test_arguments_of_all_kinds_replay_with_others_like_them(f, make, is_whole, tmp_path):
    calls(lox.guard(f, bundle=tmp_path / "failed"), make())
    found = [lox.replay(tmp_path / "failed", f, *make())]
    if is_whole:
        found += [lox.replay(tmp_path / "failed", f)]
    else:
        with pytest.raises(lox.LogValueError, match=r"has .* as args\[0\]"):
            lox.replay(tmp_path / "failed", f)
    assert all(report.primitive == "log" or report.argument == "args[1]" for report in found)
    if _Mode.LOG not in make():
        return
    with pytest.raises(lox.LogValueError, match=r"args\[0\] is 'log', in the bundle"):
        lox.replay(tmp_path / "failed", f, "log", -1.0)


def test_a_carry_that_began_with_infinity_in_some_elements_does_not_fail(tmp_path):
    f = jax.jit(lambda best, xs: jnp.isfinite(lax.scan(lambda c, x: (c.at[0].add(x), None), best, xs)[0]))
    guarded = lox.guard(f, bundle=tmp_path / "failed", when="nonfinite")
    assert calls(guarded, (jnp.array([0.0, -jnp.inf]), jnp.ones(3)))[1] == []


def test_an_error_of_a_function_that_is_replayed_on_as_many_devices_is_its_own(tmp_path):
    (x,) = _sharded(AxisType.Auto, (4,))
    calls(lox.guard(jnp.log, bundle=tmp_path / "failed"), (x,))

    def broken(x):
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        lox.replay(tmp_path / "failed", broken)
