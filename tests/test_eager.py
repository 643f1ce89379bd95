"""Logs of programs that run op by op: kept by reference, and stacked many at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import assert_array, assert_logs

import lox
from lox import _columns

SCALE = np.float32(0.5)


def halve(x):
    return x * SCALE


donating = jax.jit(halve, donate_argnums=0)
X = np.full(2, 8, np.float32)


def test_what_a_function_that_ran_before_donates_is_copied():
    for _ in range(3):  # JAX then dispatches without Python.
        donating(jnp.array(X))

    def f(x):
        for step in range(3):
            lox.log({"x": x, "same": x}, step=x[0])
            x = donating(x)
        return x

    for _ in range(2):
        _, logs = lox.spool(f)(jnp.array(X))
        values = np.float32([[8, 8], [4, 4], [2, 2]])
        assert_logs(logs, {"x": values, "same": values}, steps={"step": {"x": values[:, 0], "same": values[:, 0]}})


def test_a_counter_that_is_donated_is_copied():
    count = jax.jit(lambda step: step + 1, donate_argnums=0)

    def f(x):
        step = jnp.int32(0)
        for _ in range(3):
            lox.log({"x": x}, step=step)
            step = count(step)

    _, logs = lox.spool(f)(jnp.float32(1))
    assert logs.steps["step"]["x"].tolist() == [0, 1, 2]


def test_what_is_donated_with_other_arguments_that_are_not_is_copied():
    scaled = jax.jit(lambda x, by: x * by, donate_argnums=0)

    def f(x):
        for _ in range(3):
            lox.log({"x": x})
            x = scaled(x, SCALE)

    _, logs = lox.spool(f)(jnp.array(X))
    assert_logs(logs, {"x": np.float32([[8, 8], [4, 4], [2, 2]])})


@pytest.mark.parametrize("handlers", [lox.keep, lox.spool, lambda f: lox.tap(f, lambda logs: None)])
def test_a_donation_inside_of_other_handlers_is_seen(handlers):
    def f(x):
        lox.log({"x": x})
        return handlers(donating)(x)

    _, logs = lox.spool(f)(jnp.array(X))
    assert_logs(logs, {"x": [X]})


def test_what_is_put_on_a_device_and_given_away_is_copied():
    def f(x):
        lox.log({"x": x})
        same = jax.device_put(x, x.device)
        donating(same)
        lox.log({"x": x + 1 if not x.is_deleted() else jnp.array(X)})

    _, logs = lox.spool(f)(jnp.array(X))
    assert_array(logs["x"][0], X)


def aot(x):
    jax.jit(halve, donate_argnums=0).lower(x).compile()(x)


@pytest.mark.covering(2)
@pytest.mark.parametrize("delete", [aot, lambda x: x.delete()], ids=["compiled", "delete"])
@pytest.mark.parametrize(
    "options", [{}, {"interval": 2}, *({"reduce": name} for name in ("last", "sum", "mean", "min", "first"))], ids=str
)
@pytest.mark.parametrize("count", [1, 40, 600])
def test_what_was_deleted_unseen_is_an_error_that_names_the_log(delete, count, options):
    def f(x):
        for _ in range(count):
            lox.log({"x": x})
            other = x + 1
            delete(x)
            x = other

    with pytest.raises(
        lox.SpoolError, match=rf"test_eager.py:{f.__code__.co_firstlineno + 2} .* was deleted.*jnp.copy"
    ):
        lox.spool(f)(jnp.array(X))


@pytest.mark.parametrize("name", ["sum", "first"])
def test_what_was_deleted_before_a_loop_is_an_error_that_names_the_log(name):
    def f(x):
        def step(carry, y):
            lox.log({"x": y})
            return carry, None

        lox.log({"x": x})
        x.delete()
        for _ in range(2):
            jax.lax.scan(step, 0, jnp.ones((2, 2)))

    with pytest.raises(lox.SpoolError, match=rf"test_eager.py:{f.__code__.co_firstlineno + 5} .* was deleted"):
        lox.spool(f, reduce=name)(jnp.array(X))


def test_calls_with_a_key_each_and_shared_ones_are_stacked_a_few_at_a_time(monkeypatch):
    counts, joined = [], _columns._joined
    monkeypatch.setattr(_columns, "_joined", lambda *args: counts.append(len(args[1])) or joined(*args))

    def f(x):
        for place in range(200):
            lox.log({f"own{place}": x + place, f"shared{place % 2}": x + place}, step=place)

    _, logs = lox.spool(f)(jnp.float32(8))
    assert_array(logs["shared1"], 8.0 + np.arange(1, 200, 2))
    assert logs.steps["step"]["shared0"].tolist() == list(range(0, 200, 2))
    assert logs["own7"].tolist() == [15]
    assert counts and max(counts) <= _columns._OPERANDS


def test_keys_that_are_alike_share_what_is_compiled():
    def f(x):
        for place in range(30):
            lox.log({f"key{place}": x, "shared": x}, step=place)

    lox.spool(f)(jnp.arange(3))
    compiled = _columns._one_event._cache_size()
    lox.spool(lambda x: [lox.log({f"other{place}": x}, step=place) for place in range(30)])(jnp.arange(3))
    assert _columns._one_event._cache_size() <= compiled + 1


def test_a_copy_of_what_is_deleted_is_kept():
    def f(x):
        lox.log({"x": jnp.copy(x)})
        x.delete()

    assert_logs(lox.spool(f)(jnp.array(X))[1], {"x": [X]})


def test_arrays_of_numpy_are_those_of_the_time_of_the_log():
    def f():
        memory = np.zeros(128, np.float32)
        start = -memory.ctypes.data % 64 // 4  # JAX may take aligned memory as it is.
        buffer = memory[start : start + 64]
        for value in range(100):
            buffer[:] = value
            lox.log({"mean": buffer, "first": buffer[:1]}, step=buffer[0])
        buffer[:] = -1

    _, logs = lox.spool(f)()
    assert logs["mean"][:, 5].tolist() == logs["first"][:, 0].tolist() == list(range(100))
    assert logs.steps["step"]["mean"].tolist() == list(range(100))


@pytest.mark.parametrize("count", [31, 32, 33, 300, 2100])
def test_many_logs_keep_their_order(count):
    def f():
        for step in range(count):
            lox.log({"a": np.float32(step), "b": step}, step=step)
            if step % 7 == 0:
                lox.log({"seldom": -step})

    _, logs = lox.spool(f)()
    steps = np.arange(count)
    assert_logs(
        logs,
        {"a": steps.astype(np.float32), "b": steps, "seldom": -steps[::7]},
        steps={"step": {"a": steps, "b": steps}},
    )


def test_what_is_donated_after_each_of_many_logs_is_copied():
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    names = [f"x{number}" for number in range(3)]

    def f(x):
        for _ in range(150):
            for name in names:
                lox.log({name: x, "deep": {name: x[0]}})
            x = add(x)
        return x

    expected = np.repeat(np.arange(150, dtype=np.float32)[:, None], 4, 1)
    out, logs = lox.spool(f)(jnp.zeros(4))
    assert_array(out, np.full(4, 150, np.float32))
    assert_logs(logs, {name: expected for name in names} | {f"deep/{name}": expected[:, 0] for name in names})


def test_logs_of_one_key_by_several_calls_keep_their_order():
    """The calls are alike by turns, and so are stacked in several heaps."""
    expected, mixed = {"a": [], "b": []}, np.random.default_rng(0).integers(0, 4, 3000)

    def f():
        for step, kind in enumerate(mixed):
            keys = {0: "a", 1: "b", 2: "ab", 3: "b"}[int(kind)]
            data = {key: np.float32(step) for key in keys}
            lox.log(data) if kind != 3 else lox.log(data, tags=["other"])
            for key in keys:
                expected[key].append(step)

    _, logs = lox.spool(f)()
    assert_logs(logs, {key: np.float32(values) for key, values in expected.items()})


def test_logs_of_loops_and_branches_are_stacked_in_their_order():
    expected = []

    def scanned(x):
        return jax.lax.scan(lambda x, _: (lox.log({"x": x})["x"] + 1, None), x, length=3)[0]

    def f(x):
        for step in range(200):
            expected.extend([step, step, step + 1, step + 2])
            lox.log({"x": x + step})
            scanned(x + step)

    _, logs = lox.spool(f)(jnp.float32(0))
    assert_logs(logs, {"x": np.float32(expected)})


@pytest.mark.parametrize("options", [{"interval": 3}, {"reduce": "last"}, {"reduce": "sum"}], ids=str)
def test_options_on_many_logs(options):
    def f(x):
        for step in range(400):
            lox.log({"x": x}, step=step)
            x = donating(x) + 1

    whole = lox.spool(f)(jnp.array(X))[1]
    _, logs = lox.spool(f, **options)(jnp.array(X))
    if "interval" in options:
        assert_array(logs["x"], whole["x"][::3])
        assert logs.steps["step"]["x"].tolist() == list(range(0, 400, 3))
    else:
        assert_array(logs["x"], whole.reduce(options["reduce"])["x"], 1e-6)


def test_many_logs_under_vmap_and_of_derivatives():
    def f(x):
        for step in range(100):
            x = lox.log({"x": x}, step=step)["x"] * 0.5
        return x

    alone = lox.spool(f)(jnp.float32(8))[1]
    _, logs = lox.spool(jax.vmap(f))(jnp.float32([8, 8]))
    assert_array(logs["x"], np.stack([alone["x"]] * 2, 1))
    _, logs = jax.vmap(lox.spool(f))(jnp.float32([8, 8]))
    assert_array(logs["x"], np.stack([alone["x"]] * 2))
    _, logs = jax.grad(lambda x: lox.spool(f)(x), has_aux=True)(jnp.float32(8))
    assert logs == alone
    sums = jax.grad(lambda x: lox.spool(f)(x)[1]["x"].sum())(jnp.float32(8))
    assert sums == pytest.approx(2)


def test_logs_of_different_devices_are_refused_by_jax_as_by_hand():
    first, second = jax.devices()[:2]

    def f():
        lox.log({"x": jax.device_put(X, first)})
        lox.log({"x": jax.device_put(X, second)})

    with pytest.raises(ValueError, match="device"):
        lox.spool(f)()


def test_no_program_takes_as_many_arrays_as_there_are_logs():
    """Such a program would take seconds to compile."""

    def f():
        for step in range(2000):
            lox.log({"x": np.float32(step)}, step=jnp.int32(step))

    programs = []

    def spooled():
        _, logs = lox.spool(f)()
        return logs["x"]

    with pytest.MonkeyPatch.context() as patch:
        concatenate = jax.lax.concatenate
        patch.setattr(
            jax.lax, "concatenate", lambda arrays, axis: programs.append(len(arrays)) or concatenate(arrays, axis)
        )
        assert_array(spooled(), np.arange(2000, dtype=np.float32))
    assert 0 < max(programs) < 150


def test_memory_is_let_go():
    """What was stacked is not held any longer."""

    def f(x):
        for _ in range(1000):
            lox.log({"x": x})
            x = x + 1

    import gc

    gc.collect()
    before = len(jax.live_arrays())
    lox.spool(f)(jnp.float32(0))
    gc.collect()
    assert len(jax.live_arrays()) <= before + 2


def test_arrays_that_a_long_loop_logs_and_donates_stay_whatever_is_logged_between():
    step = jax.jit(lambda x: x + 1, donate_argnums=0)

    def f(x):
        for _ in range(300):
            lox.log({"x": x})
            x = step(x)
            for _ in range(2):
                lox.log({"y": x})
                x = x + 0
        return x

    _, logs = lox.spool(f)(jnp.zeros(3))
    np.testing.assert_array_equal(logs["x"][:, 0], np.arange(300))
    np.testing.assert_array_equal(logs["y"][:, 0], np.repeat(np.arange(1, 301), 2))
