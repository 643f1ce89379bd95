"""What an audit says of loops beyond the programs of the corpus: the words, the lines, and what is left alone."""

import functools
import importlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import lox
from lox._audit._audited import Audited
from lox._audit._capture import capture
from lox._audit._follow import follow
from lox._audit._loops import origins, reached, read, scans

CODES = {f"LOX2{number:02}" for number in range(20)} | {"LOX106"}


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


def found(fun, *args, **options):
    return [finding for finding in lox.audit(fun, **options)(*args).at_least("info") if finding.code in CODES]


def first_scan(fun, *args):
    captured = capture(fun, args, {})
    program = follow(captured, {})
    return next(scans(Audited(fun, ((args, {}),), captured, program)))[0]


def scan_of_floats(x):
    return jax.lax.scan(lambda total, each: (total + each, total), jnp.zeros((), int), x)


def fori_of_floats(x):
    return jax.lax.fori_loop(0, 3, lambda i, total: total + x[i], jnp.zeros((), int))


def fori_of_floats_up_to_a_number(x):
    return jax.lax.fori_loop(0, x[0].astype(int), lambda i, total: total + x, 0.0)


def while_of_a_shorter_tuple(x):
    return jax.lax.while_loop(lambda state: state[0] < 3, lambda state: (state[0] + 1,), (0, x))


def scan_without_a_pair(x):
    return jax.lax.scan(lambda total, each: total + each, 0.0, x)


def map_of_two_lengths(x):
    return jax.lax.map(lambda pair: pair[0] + pair[1], (x, x[1:]))


@pytest.mark.parametrize(
    ("fun", "code", "words"),
    [
        (scan_of_floats, "LOX200", ["a scan", "int32[]", "float32[]"]),
        (fori_of_floats, "LOX200", ["a fori_loop", "component val", "int32[]", "float32[]"]),
        (fori_of_floats_up_to_a_number, "LOX200", ["a fori_loop", "component val", "float32[5]"]),
        (while_of_a_shorter_tuple, "LOX201", ["a while_loop", "tuple of length 2", "tuple of length 1"]),
        (scan_without_a_pair, "LOX201", ["float32[]", "(carry, output)"]),
        (map_of_two_lengths, "LOX202", ["5, 4"]),
    ],
)
def test_what_jax_refuses_of_a_loop_is_said_once_with_its_line_and_types(fun, code, words):
    (finding,) = lox.audit(fun)(jnp.ones(5)).issues
    assert (finding.code, finding.line) == (code, fun.__code__.co_firstlineno + 1)
    assert all(word in finding.message for word in words)
    assert "\n" not in finding.message and "<class" not in finding.message


def test_each_part_of_a_carry_that_changes_is_named():
    def both(x):
        step = lambda carry, each: ({"a": carry["a"] + each, "b": carry["b"] + x}, None)  # noqa: E731
        return jax.lax.scan(step, {"a": jnp.int32(0), "b": 0.0}, x)

    (finding,) = found(both, jnp.ones(5))
    assert "carry['a']" in finding.message and "carry['b']" in finding.message


def test_other_errors_of_the_same_types_are_not_about_loops():
    def raises(x):
        raise TypeError("the carry is not what it was")

    assert [finding.code for finding in lox.audit(raises)(jnp.ones(5)).issues] == ["LOX400"]


def test_a_loop_that_keeps_its_carry_is_verified():
    verified = lox.audit(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: x + 1, x))(jnp.ones(5)).verified
    assert "LOX200" in [each.code for each in verified]


def test_what_is_read_goes_through_functions_and_leaves_out_what_nothing_comes_of():
    @jax.jit
    def second(a, b):
        return b * 2

    def step(carry, at):
        unread, dead, alive = at
        _ = dead * 3
        return carry + second(unread, alive), None

    scan = first_scan(lambda x: jax.lax.scan(step, 0.0, (x, x + 1, x + 2)), jnp.ones(5))
    used = read(scan.body)
    assert [slice_ in used for _, slice_ in scan.xs] == [False, False, True]


def test_what_is_reached_keeps_the_results_of_a_function_apart():
    @jax.jit
    def swap(a, b):
        return b * 2, a * 2

    def step(carry, each):
        a, b = swap(*carry)
        return (a, b + each), None

    scan = first_scan(lambda x: jax.lax.scan(step, (0.0, 0.0), x), jnp.ones(5))
    (_, first, new), (_, second, other) = scan.carry
    assert new not in reached(scan.body, [first]) and other in reached(scan.body, [first])
    assert new in reached(scan.body, [second]) and other not in reached(scan.body, [second])


def test_origins_are_all_that_a_value_is_computed_from():
    scan = first_scan(lambda x: jax.lax.scan(lambda c, at: (c + at, None), 0.0, jnp.sin(x) * 2), jnp.ones(5))
    assert {"x"} == {value.name for value in origins([scan.xs[0][0]]) if value.name}


def test_a_condition_that_reads_a_ref_may_change():
    def counts(x):
        left = jax.new_ref(jnp.float32(3))

        def body(x):
            left[...] -= 1
            return x * 2

        return jax.lax.while_loop(lambda _: left[...] > 0, body, x)

    assert not found(counts, jnp.ones(3))


@pytest.mark.parametrize("name", ["done", "dones", "is_terminal", "terminated", "truncated", "reset"])
def test_an_unread_end_is_found_by_its_name(name):
    def returns(batch):
        def back(following, step):
            following = step["reward"] + 0.9 * following
            return following, following

        return jax.lax.scan(back, 0.0, batch, reverse=True)[1]

    assert [each.code for each in found(returns, {"reward": jnp.ones(5), name: jnp.zeros(5, bool)})] == ["LOX205"]
    assert not found(returns, {"reward": jnp.ones(5), "undone_work": jnp.zeros(5, bool)})


@pytest.mark.parametrize("mark", ["ended", "discount", "dones"])
def test_an_unread_end_is_left_alone_beside_another_mark_that_is_read(mark):
    def returns(batch):
        def back(following, step):
            following = step["reward"] + 0.9 * following * (1 - step[mark])
            return following, following

        return jax.lax.scan(back, 0.0, batch, reverse=True)[1]

    batch = {"reward": jnp.ones(5), mark: jnp.zeros(5, bool if mark == "ended" else float), "truncated": jnp.zeros(5)}
    assert not found(returns, batch)
    verified = {finding.code for finding in lox.audit(returns)(batch).verified}
    assert ("LOX205" in verified) == (mark == "dones")


@pytest.mark.parametrize(("shape", "carried"), [((), (4,)), ((), (4, 3)), ((4,), (3, 4)), ((4,), ())])
def test_an_unread_end_is_left_alone_where_the_carry_is_not_of_each_episode(shape, carried):
    def train(rewards, dones):
        def update(params, at):
            return params - 0.1 * jnp.tanh(params * at[0].mean()), None

        return jax.lax.scan(update, jnp.ones(carried), (rewards, dones))[0]

    assert not found(train, jnp.ones((5, *shape)), jnp.zeros((5, *shape), bool))


def test_a_loop_of_python_is_found_at_its_first_line_and_once():
    def simulate(x, v):
        for _ in range(30):
            x = x + 0.1 * v
            v = v - 0.1 * jnp.sin(x)
        return x

    (finding,) = found(simulate, 1.0, 1.0)
    assert (finding.code, finding.line) == ("LOX207", simulate.__code__.co_firstlineno + 1)
    assert "29 times or more" in finding.message  # The first iteration is on numbers of Python, and not the same.
    assert [each.line for each in found(jax.grad(jax.jit(simulate)), 1.0, 1.0)] == [finding.line]


def test_a_comprehension_over_parts_of_an_array_is_found():
    def outputs(x):
        return jnp.stack([jnp.sin(x[t]) + x[t] ** 2 for t in range(20)])

    (finding,) = found(outputs, jnp.ones((20, 3)))
    assert finding.code == "LOX207"


def test_a_loop_that_is_there_forwards_and_backwards_is_found_once():
    @jax.jit
    def simulate(x, v):
        for _ in range(30):
            x, v = x + 0.1 * v, v - 0.1 * x
        return x

    assert len(found(jax.grad(simulate), 1.0, 1.0)) == 1


def test_a_function_defined_in_a_loop_is_not_in_the_loop():
    def mapped(x):
        for _ in range(1):

            def part(i):
                return jnp.sin(x[i]) * 2 + 1

        return jnp.stack(jax.tree.map(part, list(range(30)))).sum()

    assert not found(mapped, jnp.ones((30, 3)))


def test_what_a_library_repeats_in_a_short_loop_is_left_alone():
    def mapped(x):
        for _ in range(2):
            part = lambda i: jnp.sin(x[i]) * 2 + 1  # noqa: E731  (it is called at once)
            x = jnp.stack(jax.tree.map(part, list(range(30))))
        return x

    def calls(x):
        def part(x, i):
            return jnp.sin(x[i]) * 2 + 1

        for _ in range(2):
            x = jnp.stack(jax.tree.map(functools.partial(part, x), list(range(30))))
        return x

    assert not found(mapped, jnp.ones((30, 3)))
    assert not found(calls, jnp.ones((30, 3)))


def test_a_loop_in_a_library_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "oscillators.py").write_text(
        "def simulate(x, v):\n    for _ in range(30):\n        x = x + 0.1 * v\n        v = v - 0.1 * x\n    return x\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    simulate = importlib.import_module("oscillators").simulate

    def twice(x, v):
        for _ in range(2):
            x = simulate(x, v)
        return x

    assert not found(twice, jnp.ones(3), jnp.ones(3))


def test_a_network_that_makes_its_parameters_in_a_loop_is_left_alone():
    class Tower(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(40):
                x = nn.relu(nn.Dense(6)(x)) + x
            return x

    assert not found(lambda x: Tower().init_with_output(jax.random.key(0), x)[0], jnp.ones((3, 6)))


@pytest.mark.parametrize(("labels", "codes"), [(("batch", "time"), ["LOX106"]), (("layer", "time"), []), (None, [])])
def test_a_recurrence_is_found_over_what_is_labelled_as_a_batch_of_times(labels, codes):
    def back(following, reward):
        following = reward + 0.9 * following
        return following, following

    def returns(rewards):
        return jax.lax.scan(back, jnp.zeros(7), rewards, reverse=True)[1]

    axes = {} if labels is None else {"rewards": labels}
    assert [each.code for each in found(returns, jnp.ones((5, 7)), axes=axes)] == codes
