"""What a finding says: its place in the user's program, the names of arrays, what was found and expected, and why."""

import jax
import jax.numpy as jnp
import optax
from corpus import f32

import lox
from lox._audit._checks import KINDS
from lox._audit._formats._write import write

TIME_BATCH = ("time", "batch")


def only(report, code):
    (found,) = [finding for finding in report.found if finding.code == code]
    return found


def column_of(finding):
    with open(finding.file) as file:
        line = file.read().splitlines()[finding.line - 1]
    return line[finding.column - 1 :]


def test_one_broadcast_is_one_finding_with_the_names_of_both_arrays():
    def update(params, x, y):
        predicted = x @ params["w"]
        return ((predicted - y) ** 2).mean()

    report = lox.audit(update, axes={"x": ("batch", None), "y": ("batch",)})({"w": f32(8, 1)}, f32(64, 8), f32(64))
    (finding,) = report.found
    assert finding.code == "LOX104"
    assert finding.message.startswith("y of shape (64 batch) meets predicted of shape (64 batch, 1): every batch of")


def test_arrays_are_called_by_their_source_where_they_have_no_name():
    def f(rewards, values):
        return jnp.stack([rewards + 1, jnp.exp(values.T)])

    report = lox.audit(f, axes={"rewards": TIME_BATCH, "values": TIME_BATCH})(f32(8, 8), f32(8, 8))
    message = only(report, "LOX101").message
    assert "rewards + 1" in message and "jnp.exp(values.T)" in message


def test_what_a_loop_closes_over_has_its_name_of_outside():
    def f(targets, xs):
        def step(total, x):
            return total + ((x - targets) ** 2).mean(), None

        return jax.lax.scan(step, 0.0, xs)[0]

    report = lox.audit(f, axes={"targets": ("batch",), "xs": ("time", "batch", None)})(f32(8), f32(3, 8, 1))
    assert only(report, "LOX104").message.startswith("targets of shape (8 batch) meets x of shape (8 batch, 1)")


def test_derivatives_do_not_take_the_names_of_values():
    def loss(w, x, y):
        predicted = jnp.tanh(x @ w)
        return ((predicted - y) ** 2).mean()

    report = lox.audit(jax.grad(loss), axes={"x": ("batch", None), "y": ("batch",)})(f32(8, 1), f32(64, 8), f32(64))
    assert "y of shape (64 batch) meets predicted of shape (64 batch, 1)" in only(report, "LOX104").message


def test_the_place_is_an_expression():
    def f(é, b):
        return (é * 2) + (é + b)

    finding = only(lox.audit(f, axes={"é": TIME_BATCH, "b": TIME_BATCH[::-1]})(f32(8, 8), f32(8, 8)), "LOX101")
    assert column_of(finding).startswith("é + b)") or column_of(finding).startswith("(é * 2)")
    assert finding.where == f"{__file__}:{finding.line}:{finding.column}"
    assert finding.function.endswith("f") and finding.source == "return (é * 2) + (é + b)"


def test_the_line_is_the_users_and_never_a_librarys():
    def train(params, gradients):
        return optax.apply_updates(params, gradients)

    labels = {"params": TIME_BATCH, "gradients": TIME_BATCH[::-1]}
    finding = only(lox.audit(train, axes=labels)(f32(8, 8), f32(8, 8)), "LOX101")
    assert finding.file == __file__ and column_of(finding).startswith("optax.apply_updates(")
    assert (
        "optax" in finding.library
        and f"In {finding.library}." in lox.audit(train, axes=labels)(f32(8, 8), f32(8, 8)).to_full()
    )


def test_a_library_that_is_audited_itself_has_its_own_lines():
    labels = {"params": TIME_BATCH, "updates": TIME_BATCH[::-1]}
    finding = only(lox.audit(optax.apply_updates, axes=labels)(f32(8, 8), f32(8, 8)), "LOX101")
    assert "optax" in finding.file and not finding.library


def test_the_line_of_an_exception_in_a_library_is_the_users():
    def train(params, state):
        return optax.adam(0.1).update(params, state)

    finding = lox.audit(train)(f32(3), (1, 2, 3)).issues[0]
    assert finding.file == __file__ and "optax" in finding.library


def test_found_and_expected_are_apart():
    def f(obs):
        with lox.audit.expect(mean="batch"):
            return obs.mean(0)

    finding = only(lox.audit(f, axes={"obs": TIME_BATCH})(f32(8, 4)), "LOX105")
    assert (finding.found, finding.expected) == ("time", "batch")
    text = lox.audit(f, axes={"obs": TIME_BATCH})(f32(8, 4)).to_full()
    assert "    Found: time\n    Expected: batch\n" in text


def test_a_scan_over_environments_whose_carry_has_time_is_an_error():
    def gae(rewards):
        def back(later, reward):
            now = reward + 0.99 * later
            return now, now

        return jax.lax.scan(back, jnp.zeros(rewards.shape[1]), rewards, reverse=True)[1]

    assert only(lox.audit(gae, axes={"rewards": ("env", "time")})(f32(8, 8)), "LOX106").severity == "error"
    assert not lox.audit(gae, axes={"rewards": ("time", "env")})(f32(8, 8)).issues


def test_one_operation_over_a_wrong_axis_is_one_finding():
    def gae(rewards):
        with lox.audit.expect(scan="time"):
            return jax.lax.scan(lambda a, r: (a + r, a + r), jnp.zeros(rewards.shape[1]), rewards)[1]

    assert [each.code for each in lox.audit(gae, axes={"rewards": ("env", "time")})(f32(8, 8)).found] == ["LOX105"]


def test_what_is_said_once_is_said_once_of_several_functions():
    def one(key):
        return jax.random.normal(key)

    def two(key):
        return jax.random.uniform(key)

    reports = [lox.audit(fun)(jax.random.PRNGKey(0)) for fun in (one, two)]
    assert [[each.code for each in report.found] for report in reports] == [["LOX707"], ["LOX707"]]
    text = write(reports, "concise", "calls")
    assert text.count("LOX707") == 1
    assert f"2 functions: 1 note; {sum(len(each.verified) for each in reports)} checks passed" in text


def test_what_holds_has_a_reason():
    assert [kind.code for kind in KINDS.values() if bool(kind.holds) != kind.reasoning.endswith(".")] == []


def test_the_report_says_how_it_was_checked():
    report = lox.audit(lambda x: x + x, axes={"x": TIME_BATCH})(f32(3, 4))
    (held,) = [each for each in report.verified if each.code == "LOX101"]
    assert held.reasoning == KINDS["LOX101"].reasoning
    assert held.reasoning in report.to_full() and held.reasoning in report.to_markdown()


def test_what_holds_in_several_lines_is_said_of_the_first():
    def f(x):
        first = jax.nn.softmax(x)
        return first + jax.nn.softmax(2 * x)

    (held,) = [each for each in lox.audit(f)(f32(4)).verified if each.code == "LOX810"]
    assert "(2 lines)" in held.message and held.line == f.__code__.co_firstlineno + 1
