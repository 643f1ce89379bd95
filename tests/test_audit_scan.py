"""What an audit says of loops beyond the programs of the corpus: the words, the lines, and what is left alone."""

import functools
import importlib
import inspect

import jax
import jax.numpy as jnp
import pytest
from corpus import cases

import lox
from lox._audit._audited import Audited
from lox._audit._capture import capture
from lox._audit._follow import follow
from lox._audit._loops import origins, reached, scans
from lox._audit._needs import read

CODES = {f"LOX2{number:02}" for number in range(20)} | {"LOX106"}

NEW = {f"LOX{number}" for number in range(208, 213)}


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


@pytest.mark.parametrize("mark", ["over", "discount", "dones"])
def test_an_unread_end_is_left_alone_beside_another_mark_that_is_read(mark):
    def returns(batch):
        def back(following, step):
            following = step["reward"] + 0.9 * following * (1 - step[mark])
            return following, following

        return jax.lax.scan(back, 0.0, batch, reverse=True)[1]

    batch = {"reward": jnp.ones(5), mark: jnp.zeros(5, bool if mark == "over" else float), "truncated": jnp.zeros(5)}
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
    assert "30 times or more" in finding.message  # The first iteration is on numbers of Python, and not the same.
    assert [each.line for each in found(jax.grad(jax.jit(simulate)), 1.0, 1.0)] == [finding.line]


@pytest.mark.parametrize(("results", "count"), [(14, 1), (15, 0)])
def test_a_loop_of_python_that_returns_what_half_of_its_iterations_make_is_left_alone(results, count):
    def simulate(x, v):
        kept = []
        for _ in range(30):
            x = x + 0.1 * v
            v = v - 0.1 * jnp.sin(x)
            kept.append(x)
        return kept[-results:]

    assert len(found(simulate, 1.0, 1.0)) == count


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


@pytest.mark.integration
def test_a_network_that_makes_its_parameters_in_a_loop_is_left_alone():
    import flax.linen as nn

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


def codes(fun, *args, **options):
    return [each.code for each in found(fun, *args, **options)]


@pytest.mark.parametrize("case", [c for c in cases() if c.code in NEW and not c.wrong], ids=lambda case: case.name)
def test_in_a_right_program_there_is_not_even_a_note_of_the_code_that_it_resembles(case):
    assert case.code not in {finding.code for finding in case.report().at_least("info")}


def recurrence(x, weights):
    def step(carry, each):
        hidden, fixed = carry
        return (jnp.tanh(hidden @ fixed + each), fixed), None

    return jax.lax.scan(step, (x[0], weights), x)[0][0]


@pytest.mark.parametrize(
    "around",
    [lambda f: f, jax.jit, lambda f: lambda x, w: jax.vmap(f, (0, None))(x[None], w)],
    ids=["alone", "jit", "vmap"],
)
def test_what_a_loop_returns_as_it_got_it_is_named_at_the_line_of_the_loop(around):
    (finding,) = found(around(recurrence), jnp.ones((5, 3)), jnp.eye(3))
    assert (finding.code, finding.line) == ("LOX208", recurrence.__code__.co_firstlineno + 5)
    assert finding.message == "The body of a loop returns carry[1] of its carry as it got it."


def test_what_is_returned_through_a_checkpoint_is_returned_as_it_was():
    body = jax.checkpoint(lambda c, each: ((jnp.tanh(c[0] @ c[1] + each), c[1]), None))
    assert codes(lambda x, w: jax.lax.scan(body, (x[0], w), x)[0][0], jnp.ones((5, 3)), jnp.eye(3)) == ["LOX208"]


def test_a_whole_carry_that_stays_is_found_only_where_it_is_read():
    outputs = lambda x, w: jax.lax.scan(lambda c, each: (c, c @ each), w, x)[1]  # noqa: E731
    nothing = lambda x, w: jax.lax.scan(lambda c, each: (c, w @ each), x[0], x)[1]  # noqa: E731
    assert codes(outputs, jnp.ones((5, 3)), jnp.eye(3)) == ["LOX208"]
    assert codes(nothing, jnp.ones((5, 3)), jnp.eye(3)) == []


@pytest.mark.parametrize(
    ("start", "step"),
    [
        ({"h": 0.0, "w": 2.0}, lambda c, each: {"h": c["h"] * c["w"] + each, "w": c["w"]}),
        ((0.0, {"h": 0.0, "w": 2.0}), lambda c, each: (c[0] + each, {"h": c[1]["h"] + each, "w": c[1]["w"]})),
        ((0.0, jax.random.key(0)), lambda c, each: (c[0] + jax.random.uniform(c[1]), c[1])),
        ((0.0, jax.random.PRNGKey(0)), lambda c, each: (c[0] + jax.random.uniform(c[1]), c[1])),
    ],
    ids=["dict", "part of a tuple", "key", "old key"],
)
def test_parts_of_a_structure_and_keys_may_stay(start, step):
    assert not found(lambda x: jax.lax.scan(lambda c, each: (step(c, each), None), start, x)[0], jnp.ones(5))


def test_a_loop_of_a_batch_that_ends_at_different_times_is_left_alone():
    def power(x, times):
        def double(i, x):
            lox.log({"x": x}, step=i)
            return x * 2

        return jax.lax.fori_loop(0, times, double, x)

    assert not found(jax.vmap(power), jnp.ones(4), jnp.arange(4))


def both(x):
    def step(state, each):
        total, average, count = state
        return (total + each, 0.9 * average + each, count + 1), total

    return jax.lax.scan(step, (0.0, 0.0, 0), x)


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda carry, ys: ys, ["state[1]"]),
        (lambda carry, ys: carry[0], ["state[1]"]),
        (lambda carry, ys: carry[1], ["state[0]"]),
        (lambda carry, ys: carry[2], ["state[0] and state[1]"]),
        (lambda carry, ys: (carry[0], carry[1]), []),
        (lambda carry, ys: 0, []),
    ],
    ids=["outputs", "total", "average", "count", "both", "nothing"],
)
def test_what_is_carried_for_nothing_is_found_by_what_is_used_of_the_loop(use, expected):
    findings = found(lambda x: use(*both(x)), jnp.ones(5))
    assert [each.code for each in findings] == ["LOX209"] * len(expected)
    assert all(f"computes {name} of its carry" in each.message for each, name in zip(findings, expected, strict=True))


@pytest.mark.parametrize(
    ("new", "severities"),
    [
        (lambda velocity, start, push: 0.9 * start + push, ["warning"]),
        (lambda velocity, start, push: 0.9 * velocity + push, []),
        (lambda velocity, start, push: 0.9 * start + 0.1 * velocity + push, []),
    ],
    ids=["from the start", "from the carry", "from both"],
)
def test_a_velocity_that_each_iteration_computes_from_the_first_one_is_a_warning(new, severities):
    def moved(position, start):
        def step(i, state):
            position, velocity = state
            velocity = new(velocity, start, jnp.sin(position))
            return position + velocity, velocity

        return jax.lax.fori_loop(0, 5, step, (position, start))

    findings = [each for each in found(moved, jnp.ones(3), jnp.ones(3)) if each.code == "LOX209"]
    assert [each.severity for each in findings] == severities
    assert all("computes state[1] from the value that it had before the loop" in each.message for each in findings)


@pytest.mark.parametrize(("times", "severities"), [(5, ["warning"]), (4, [])])
def test_the_last_of_some_gradients_that_is_divided_by_their_number_is_a_warning(times, severities):
    def averaged(x):
        total, last = jax.lax.scan(lambda state, x: ((state[0] + x, 2 * x), None), (jnp.zeros(3), jnp.zeros(3)), x)[0]
        return total / 5, last / times

    findings = [each for each in found(averaged, jnp.ones((5, 3))) if each.code == "LOX209"]
    assert [each.severity for each in findings] == severities


@pytest.mark.parametrize(("of_first", "severities"), [(True, ["warning"]), (False, [])])
def test_residuals_of_the_first_one_are_a_warning_though_another_value_begins_as_they_do(of_first, severities):
    def solved(matrix, target):
        def step(state, _):
            x, residual, direction, size = state
            along = matrix @ direction
            length = size / (direction @ along)
            residual = (target if of_first else residual) - length * along
            new = residual @ residual
            return (x + length * direction, residual, residual + new / size * direction, new), None

        return jax.lax.scan(step, (jnp.zeros(5), target, target, target @ target), None, 5)[0][0]

    findings = [each for each in found(solved, jnp.eye(5), jnp.ones(5)) if each.code == "LOX209"]
    assert [each.severity for each in findings] == severities


@pytest.mark.parametrize(("is_read", "severities"), [(False, ["warning"]), (True, [])])
def test_a_mask_of_numbers_that_nothing_reads_is_a_warning(is_read, severities):
    def total(rewards):
        def step(carry, reward):
            total, valid = carry
            return (total + (reward * valid if is_read else reward), valid * (1 - (total > 3))), None

        return jax.lax.scan(step, (0.0, 1.0), rewards)[0][0]

    findings = [each for each in found(total, jnp.ones(9)) if each.code == "LOX209"]
    assert [each.severity for each in findings] == severities


def test_two_values_that_only_read_each_other_are_read_by_nothing():
    def step(c, each):
        return (c[0] + each, c[1] + c[2], c[2] - c[1]), None

    (finding,) = found(lambda x: jax.lax.scan(step, (0.0, 1.0, 2.0), x)[0][0], jnp.ones(5))
    assert "computes c[1] and c[2] of its carry" in finding.message


def test_what_a_ref_is_set_to_is_read():
    def total(x):
        seen = jax.new_ref(jnp.float32(0))

        def step(c, each):
            seen[...] = c[1]
            return (c[0] + each, c[1] * 2), None

        return jax.lax.scan(step, (0.0, 1.0), x)[0][0] + seen[...]

    assert not found(total, jnp.ones(5))


def counting(x):
    def step(total, t):
        return total + x[t], None

    return jax.lax.scan(step, jnp.zeros(3), jnp.arange(5))[0]


@pytest.mark.parametrize(
    "around",
    [
        lambda f: f,
        jax.jit,
        lambda f: lambda x: jax.vmap(f)(x[None]),
        lambda f: jax.grad(lambda x: f(x).sum()),
        lambda f: jax.grad(lambda x: jax.vmap(jax.jit(f))(x[None]).sum()),
    ],
    ids=["alone", "jit", "vmap", "grad", "grad of vmap of jit"],
)
def test_an_array_that_is_read_at_the_counter_is_found_once_at_the_line_of_the_scan(around):
    (finding,) = found(around(counting), jnp.ones((5, 3)))
    assert (finding.code, finding.line) == ("LOX210", counting.__code__.co_firstlineno + 4)


@pytest.mark.parametrize(
    ("read", "times"),
    [
        (lambda x, t: x[t] + x[t - 1], 5),
        (lambda x, t: x[t] + x.sum(), 5),
        (lambda x, t: x[:, t], 3),
        (lambda x, t: x[t, 0], 5),
        (lambda x, t: x[2 * t // 2], 5),
    ],
    ids=["two", "all", "second axis", "part", "computed"],
)
def test_an_array_that_cannot_be_scanned_as_it_is_is_left_alone(read, times):
    def total(x):
        return jax.lax.scan(lambda c, t: (c + read(x, t).sum(), None), 0.0, jnp.arange(times))[0]

    assert codes(total, jnp.ones((5, 3))) == []


@pytest.mark.parametrize(
    ("counter", "expected"),
    [
        (lambda: jnp.arange(5), ["LOX210"]),
        (lambda: jnp.arange(5).astype(jnp.int16), ["LOX210"]),
        (lambda: jnp.arange(1, 5), []),
        (lambda: jnp.arange(1, 6), ["LOX212"]),
        (lambda: jnp.arange(4), []),
        (lambda: jnp.arange(5)[::-1], []),
    ],
    ids=["all", "another type", "late", "too late", "shorter", "backwards"],
)
def test_the_counter_has_to_go_over_all_of_the_array_in_order(counter, expected):
    total = lambda x: jax.lax.scan(lambda c, t: (c + x[t], None), 0.0, counter())[0]  # noqa: E731
    assert codes(total, jnp.ones(5)) == expected
    assert "LOX210" not in codes(total, jnp.ones(5, int))


def test_windows_of_an_array_are_no_slices_of_it():
    def total(x):
        step = lambda c, t: (c + jax.lax.dynamic_slice_in_dim(x, t, 2).sum(), None)  # noqa: E731
        return jax.lax.scan(step, 0.0, jnp.arange(5))[0]

    assert codes(total, jnp.ones(5)) == ["LOX212"]


@pytest.mark.parametrize(("is_reversed", "expected"), [(False, ["LOX210"]), (True, [])])
def test_a_carried_counter_of_a_scan_that_goes_backwards_does_not_go_backwards(is_reversed, expected):
    def total(x):
        step = lambda c, _: ((c[0] + x[c[1]], c[1] + 1), None)  # noqa: E731
        return jax.lax.scan(step, (0.0, 0), None, length=5, reverse=is_reversed)[0][0]

    assert codes(total, jnp.ones(5)) == expected


@pytest.mark.parametrize(
    ("length", "expected"), [(128, 0), (127, 0), (129, 0), (64, 0), (16, 1), (17, 1), (100, 1), (256, 1)]
)
def test_a_scan_that_is_declared_to_go_over_time_is_about_as_long_or_goes_over_parts_of_it(length, expected):
    def decay(x):
        with lox.audit.expect(scan="time"):
            return jax.lax.scan(lambda c, _: (0.9 * c, c), x[0], None, length=length)[1]

    findings = found(decay, jnp.ones((128, 16)), axes={"x": ("time", "env")})
    assert [each.code for each in findings] == ["LOX211"] * expected
    assert all(f"has {length} iterations" in each.message and "128" in each.message for each in findings)
    assert all(("as many as env" in each.message) == (length == 16) for each in findings)
    assert not found(decay, jnp.ones((128, 16)), axes={"x": (None, "env")})


def test_a_scan_over_chosen_steps_of_time_is_right():
    def late(x):
        with lox.audit.expect(scan="time"):
            return jax.lax.scan(lambda c, t: (c + x[:, t], None), jnp.zeros(16), jnp.arange(8, x.shape[1]))[0]

    assert not found(late, jnp.ones((16, 24)), axes={"x": ("env", "time")})


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_length_of_another_axis_is_told_but_where_it_is_that_of_this_one_or_steps_are_chosen(is_chosen):
    def between(x):
        with lox.audit.expect(scan="time"):
            return jax.lax.scan(lambda c, _: (0.9 * c, c), x[0], None, length=16)[1]

    def back(x):
        step = lambda c, t: (c + x[t], None)  # noqa: E731
        carried = lambda c, _: ((c[0] + x[c[1]], c[1] + 1), None)  # noqa: E731
        with lox.audit.expect(scan="time"):
            if is_chosen:
                return jax.lax.scan(step, x[0], jnp.arange(16))[0]
            return jax.lax.scan(carried, (x[0], 0), None, length=16)[0][0]

    assert not found(between, jnp.ones((17, 16)), axes={"x": ("time", "env")})
    findings = [each.code for each in found(back, jnp.ones((128, 16)), axes={"x": ("time", "env")})]
    assert findings == ([] if is_chosen else ["LOX211"])


def test_a_scan_over_what_may_be_anything_is_not_compared_with_its_declaration():
    def total(x, parts):
        with lox.audit.expect(scan="time"):
            return jax.lax.scan(lambda c, part: (c + part, None), x[0], parts)[0]

    assert not found(total, jnp.ones((128, 16)), jnp.ones((50, 16)), axes={"x": ("time", "env")})


@pytest.mark.parametrize(
    ("times", "read", "words"),
    [
        (6, lambda x, i: x[i], "6 iterations reads up to element 5 along axis 0 of x of shape (5, 3)"),
        (5, lambda x, i: x[i + 1], "element 5"),
        (5, lambda x, i: jax.lax.dynamic_index_in_dim(x, i + 1, keepdims=False), "element 5"),
        (4, lambda x, i: x[0, i], "element 3 along axis 1"),
        (5, lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 2), "elements 4 to 5"),
        (6, jax.jit(lambda x, i: x[i]), "element 5"),
        (5, lambda x, i: x[i], ""),
        (4, lambda x, i: x[i + 1], ""),
        (4, lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 2), ""),
        (9, lambda x, i: x[jnp.clip(i, 0, 4)], ""),
        (9, lambda x, i: x[i // 2], ""),
        (9, lambda x, i: jax.lax.cond(i < 5, lambda: x[i], lambda: x[0]), ""),
        (9, lambda x, i: jnp.where(i < 5, x[i], 0), ""),
        (9, lambda x, i: x.at[i].get(mode="clip"), ""),
        (9, lambda x, i: jnp.take(x, i, axis=0, mode="clip"), ""),
        (5, lambda x, i: x[i - 1], ""),
    ],
)
@pytest.mark.parametrize("batched", [False, True])
def test_what_is_read_beyond_the_end_is_found_at_its_line(times, read, words, batched):
    def total(x):
        return jax.lax.fori_loop(0, times, lambda i, c: c + read(x, i).sum(), 0.0)

    findings = found(jax.vmap(total) if batched else total, jnp.ones((2, 5, 3)) if batched else jnp.ones((5, 3)))
    assert [each.code for each in findings] == ["LOX212"] * bool(words)
    assert batched or all(words in each.message for each in findings)
    lines = {total.__code__.co_firstlineno + 1, inspect.unwrap(read).__code__.co_firstlineno} if findings else set()
    assert {each.line for each in findings} <= lines


def test_a_loop_with_a_mask_may_read_beyond_the_end():
    def total(x, mask):
        step = lambda c, at: (c + jnp.where(at[1], x[at[0]], 0), None)  # noqa: E731
        return jax.lax.scan(step, 0.0, (jnp.arange(8), mask))[0]

    assert not found(total, jnp.ones(5), jnp.ones(8, bool))
    assert codes(total, jnp.ones(5), jnp.ones(8, int)) == ["LOX212"]


def test_loops_that_a_library_makes_are_left_alone():
    def several(x):
        return jax.lax.map(lambda i: x[i], jnp.arange(8)), jnp.searchsorted(x, x), jax.lax.associative_scan(jnp.add, x)

    assert not found(several, jnp.ones(5))


@pytest.mark.parametrize("function", [counting, recurrence])
def test_loops_in_what_is_installed_are_left_alone(function):
    installed = {"jax": jax, "jnp": jnp}
    exec(compile(inspect.getsource(function), "/python/site-packages/library/loops.py", "exec"), installed)
    args = (jnp.ones((5, 3)), jnp.eye(3))[: function.__code__.co_argcount]
    assert found(function, *args) and not found(installed[function.__name__], *args)


def test_what_is_read_leaves_out_what_only_a_dropped_result_of_a_function_needs():
    @jax.jit
    def two(a, b):
        return a * 2, b * 2

    def step(total, at):
        used, _ = two(*at)
        return total + used, None

    scan = first_scan(lambda x: jax.lax.scan(step, 0.0, (x, x + 1)), jnp.ones(5))
    assert [slice_ in read(scan.body) for _, slice_ in scan.xs] == [True, False]


def test_what_a_loop_returns_and_never_reads_is_no_waste():
    def last(x):
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(x * c[0])), (0, x))[1]

    assert not [each for each in found(last, jnp.ones(3)) if each.code == "LOX209"]


def test_an_array_of_integers_that_nothing_reads_is_told_and_a_counter_is_not():
    def f(xs, shape):
        def step(carry, x):
            total, seen = carry
            return (total + x, seen + 1), None

        return jax.lax.scan(step, (0.0, jnp.zeros(shape, int)), xs)[0][0]

    codes = {
        shape: [each.code for each in found(lambda xs, shape=shape: f(xs, shape), jnp.ones(3))] for shape in ((), (3,))
    }
    assert codes == {(): [], (3,): ["LOX209"]}


@pytest.mark.parametrize("shape", [(2,), (4, 2)])
def test_the_data_of_keys_that_nothing_reads_is_not_told(shape):
    def f(xs):
        def step(carry, x):
            total, data = carry
            return (total + x, data + jnp.uint32(1)), None

        return jax.lax.scan(step, (0.0, jnp.zeros(shape, jnp.uint32)), xs)[0][0]

    assert found(f, jnp.ones(3)) == []


SURE = (
    "average_of_which_no_step_reads_the_last",
    "best_that_stays_infinite",
    "bias_correction_of_the_first_step",
    "descent_by_the_gradient_at_the_start",
    "leapfrog_that_kicks_the_first_momentum",
    "metropolis_that_compares_with_the_first_density",
    "return_of_an_episode_that_goes_on_after_its_end",
    "wave_whose_step_before_stays_the_first",
    "gru_of_all_environments_that_one_end_resets",
)


@pytest.mark.parametrize("case", [case for case in cases() if case.name in SURE], ids=lambda case: case.name)
def test_what_is_carried_by_mistake_is_a_warning_and_not_a_note(case):
    assert case.code in case.found


def test_what_a_loop_compares_with_or_begins_at_zero_and_never_changes_is_found():
    def search(key, target, keeps):
        def step(carry, key):
            best, least = carry
            x = jax.random.normal(key, (3,))
            value = jnp.sum((x - target) ** 2)
            better = value < least
            return (jnp.where(better, x, best), jnp.where(better, value, least) if keeps else least), None

        start = jnp.zeros(3), jnp.sum((jnp.zeros(3) - target) ** 2)
        return jax.lax.scan(step, start, jax.random.split(key, 50))[0]

    def decode(table, out, hidden, goes_on):
        def step(carry, _):
            hidden, token = carry
            hidden = jnp.tanh(table[token] + hidden)
            following = jnp.argmax(hidden @ out, -1)
            return (hidden, following if goes_on else token), following

        return jax.lax.scan(step, (hidden, jnp.zeros(4, jnp.int32)), None, length=10)[1]

    def advantages(rewards, values, last, goes_on):
        def back(carry, at):
            advantage, later = carry
            reward, value = at
            advantage = reward + 0.99 * later - value + 0.9 * advantage
            return (advantage, value if goes_on else later), advantage

        return jax.lax.scan(back, (jnp.zeros_like(last), last), (rewards, values), reverse=True)[1]

    def codes(fun, *args):
        return [each.code for each in lox.audit(fun)(*args).at_least("warning")]

    of_search = jax.random.key(0), jnp.ones(3)
    of_decode = jnp.ones((20, 8)), jnp.ones((8, 20)), jnp.ones((4, 8))
    of_advantages = jnp.ones((20, 8)), jnp.ones((20, 8)), jnp.ones(8)
    for fun, args in ((search, of_search), (decode, of_decode), (advantages, of_advantages)):
        assert codes(lambda *args, fun=fun: fun(*args, True), *args) == []
        assert codes(lambda *args, fun=fun: fun(*args, False), *args) == ["LOX208"]


def test_new_values_of_residuals_densities_and_counts_that_a_loop_carries_on_as_they_were_are_found():
    def conjugate_gradients_with_the_first_residual(a, b):
        def step(carry, _):
            x, r, p, rs = carry
            ap = a @ p
            alpha = rs / (p @ ap)
            x, r = x + alpha * p, r - alpha * ap
            rs_new = r @ r
            return (x, r, r + (rs_new / rs) * p, rs), None

        return jax.lax.scan(step, (jnp.zeros_like(b), b, b, b @ b), None, length=20)[0][0]

    def a_chain_that_keeps_the_density_of_its_start(key, x, data):
        def density(x):
            return -0.5 * jnp.sum((data - x) ** 2)

        def step(carry, key):
            x, before = carry
            first, second = jax.random.split(key)
            proposal = x + 0.1 * jax.random.normal(first, x.shape)
            x = jnp.where(jnp.log(jax.random.uniform(second)) < density(proposal) - before, proposal, x)
            return (x, before), x

        return jax.lax.scan(step, (x, density(x)), jax.random.split(key, 50))[1]

    def a_rate_that_never_decays(params, count, x, y):
        def step(carry, batch):
            params, count = carry
            gradient = jax.grad(lambda p: jnp.mean((batch[0] @ p - batch[1]) ** 2))(params)
            return (params - 0.1 * (1 - count / 1000) * gradient, count), None

        return jax.lax.scan(step, (params, count), (x, y))[0]

    def warned(fun, *args):
        return [each.code for each in lox.audit(fun)(*args).at_least("warning")]

    batches = jnp.ones((5, 16, 4)), jnp.ones((5, 16))
    assert warned(conjugate_gradients_with_the_first_residual, jnp.eye(10), jnp.ones(10)) == ["LOX208"]
    of_chain = jax.random.key(0), jnp.ones(3), jnp.ones((20, 3))
    assert warned(a_chain_that_keeps_the_density_of_its_start, *of_chain) == ["LOX208"]
    assert warned(a_rate_that_never_decays, jnp.ones(4), jnp.int32(0), *batches) == ["LOX208"]
