"""What an audit returns: findings, the sections of the report, and how it is written."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from rich.console import Console

import lox
from lox._audit._findings import SEVERITIES


def standardized(obs):
    with lox.audit.expect(mean="batch"):
        return obs - obs.mean(0)


def policy(params, obs, done):
    def step(h, x):
        obs, done = x
        h = jnp.where(done[:, None], 0.0, h)
        h = jnp.tanh(h @ params["u"] + obs @ params["w"])
        lox.log({"norm": jnp.abs(h).mean()})
        return h, h

    _, hs = lax.scan(step, jnp.zeros((16, 8)), (standardized(obs), done))
    return jax.nn.softmax(hs @ params["out"])


PARAMS = {"u": jnp.ones((8, 8)), "w": jnp.ones((4, 8)), "out": jnp.ones((8, 3))}
ARGS = (PARAMS, jax.ShapeDtypeStruct((32, 16, 4), jnp.float32), jax.ShapeDtypeStruct((32, 16), bool))
AXES = {"obs": ("time", "batch", "feature"), "done": ("time", "batch")}
SECTIONS = [
    "Issues found",
    "Warnings",
    "Verified correct",
    "End-to-end data flow",
    "Transformation stack",
    "Shape trace at boundaries",
]


@pytest.fixture(scope="module")
def report():
    return lox.audit(policy, axes=AXES)(*ARGS)


def test_issues_say_what_is_where_and_what_to_do(report):
    (issue,) = report.issues
    assert (issue.code, issue.severity, issue.file) == ("LOX105", "error", __file__)
    assert issue.line == standardized.__code__.co_firstlineno + 2
    assert issue.message == "'mean' goes over time here, and expect(mean=...) says batch."
    assert "swapaxes" in issue.suggestion and issue.page == "docs/audit/LOX105.md"


def test_what_was_checked_and_holds_is_there_with_its_reason(report):
    held = {finding.code: finding for finding in report.verified}
    assert held["LOX101"].message.startswith("Axes that meet element by element mean the same.")
    assert held["LOX101"].severity == "info" and "LOX105" not in held


@pytest.mark.parametrize("write", ["to_full", "to_markdown"])
def test_the_sections_are_in_order(report, write):
    text = getattr(report, write)()
    titles = re.findall(r"(?m)^(?:\d\.|##) (.*)$", text)
    assert titles == SECTIONS


def test_the_text_has_the_data_flow_and_the_finding(report):
    text = report.to_full("lines")
    assert "scan[32 time]" in text and "norm: float32[] in [0, 1]" in text
    assert f"LOX105 error {__file__}:" in text and text.startswith("Audit of policy: 1 error; ")
    assert "float32[32 time, 16 batch, 3] in [0, 1]" in text


def test_tables_of_markdown_have_as_many_cells_in_each_row(report):
    tables = re.findall(r"(?m)(?:^\|.*\n)+", report.to_markdown("equations"))
    assert len(tables) == 4
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1


def test_json_has_all_sections_as_objects(report):
    found = json.loads(report.to_json())
    assert list(found) == ["name", "issues", "warnings", "verified", "flow", "stack", "boundaries"]
    assert found["issues"] == [report.issues[0].to_dict()]
    fields = {"code", "severity", "message", "found", "expected", "file", "line", "column", "function", "library"}
    assert {*fields, "suggestion", "reasoning", "page"} == set(found["issues"][0])
    (scan,) = (row for row in found["flow"] if row["what"] == "scan[32 time]")
    assert {"obs", "done"} & set(scan["sources"]) and scan["file"] == __file__


def test_the_picture_has_an_edge_for_each_source(report):
    lines = report.to_mermaid("lines").splitlines()
    assert lines[0] == "flowchart TD"
    nodes = dict(re.findall(r'^    (n\d+)\["([^<"]*)', line)[0] for line in lines if "[" in line)
    edges = {(nodes[a], nodes[b]) for a, b in re.findall(r"(n\d+) --> (n\d+)", "\n".join(lines))}
    assert ("done", "scan[32 time]") in edges
    assert ("params/out", "return jax.nn.softmax(hs @ params['out'])") in edges


@pytest.mark.parametrize("write", ["to_full", "to_markdown", "to_json", "to_mermaid"])
def test_the_data_flow_has_more_rows_the_more_detail_is_asked_for(report, write):
    calls, lines, equations = (len(getattr(report, write)(detail)) for detail in ("calls", "lines", "equations"))
    assert calls < lines < equations
    with pytest.raises(lox.LogValueError, match="detail is one of 'calls', 'lines', 'equations', got 'all'"):
        getattr(report, write)("all")


def test_rich_prints_the_whole_report(report):
    console = Console(record=True, width=300)
    console.print(report)
    printed = [line.rstrip() for line in console.export_text().splitlines()]
    assert printed == [line.rstrip() for line in str(report).splitlines()]


def test_raise_for_raises_for_what_is_as_bad(report):
    for severity in SEVERITIES:
        with pytest.raises(lox.AuditError, match=r"(?s)The audit of policy found 1:.*LOX105 error .*goes over time"):
            report.raise_for(severity)
    with pytest.raises(lox.LogValueError, match="A severity is one of 'error', 'warning', 'info', got 'bad'"):
        report.raise_for("bad")
    lox.audit(jnp.sin)(1.0).raise_for("info")


def test_what_is_ignored_is_in_no_section():
    report = lox.audit(policy, axes=AXES, ignore=["LOX105", "LOX101"])(*ARGS)
    assert not report.issues
    assert {"LOX105", "LOX101"}.isdisjoint(finding.code for finding in report.verified)
    with pytest.raises(lox.LogValueError, match="lox.audit knows no LOX9999"):
        lox.audit(policy, ignore="LOX9999")


def test_a_function_that_raises_is_reported_as_far_as_it_came():
    def f(x):
        return jnp.sin(x) + PARAMS["weights"]

    report = lox.audit(f)(1.0)
    (issue,) = report.issues
    assert issue.code == "LOX400" and "weights" in issue.message and issue.line == f.__code__.co_firstlineno + 1
    assert "jnp.sin(x)" in report.to_full("lines")


@pytest.mark.parametrize("name", ["action", "par"])
def test_differentiate_names_an_argument(name):
    with pytest.raises(lox.LogValueError, match=f"differentiate= names {name!r}, but .* 'params/out'"):
        lox.audit(policy, differentiate=name)(*ARGS)


def test_only_functions_are_audited():
    with pytest.raises(TypeError, match="lox.audit takes a function, got 3 of type int"):
        lox.audit(3)


def test_expectations_mean_nothing_without_an_audit():
    x = jnp.ones((5, 7))
    assert str(jax.make_jaxpr(standardized)(x)) == str(jax.make_jaxpr(lambda obs: obs - obs.mean(0))(x))
    plain = jax.jit(standardized).lower(x).as_text(debug_info=True)
    assert "lox.audit.expect(" not in plain


def test_expectations_decorate_and_hold_in_what_is_called_under_jit():
    @jax.jit
    def scaled(x):
        return x / x.sum(1, keepdims=True)

    @lox.audit.expect(sum=("batch", "feature"))
    def outer(x):
        return scaled(x)

    scaled(jnp.ones((4, 4)))  # What was traced before has no declaration around.
    assert [f.code for f in lox.audit(outer, axes={"x": ("batch", "time")})(jnp.ones((4, 4))).issues] == ["LOX105"]
    assert not lox.audit(outer, axes={"x": ("time", "batch")})(jnp.ones((4, 4))).issues
    with pytest.raises(lox.LogValueError, match="lox.audit.expect knows scan, .* and not 'median'"):
        lox.audit.expect(median="time").__enter__()


def test_what_is_declared_in_a_jitted_function_comes_before_what_is_declared_around_its_call():
    @jax.jit
    def inner(x):
        with lox.audit.expect(mean="batch"):
            return x - x.mean(axis=1, keepdims=True)

    def outer(x):
        with lox.audit.expect(mean="time"):
            return inner(x) + x.mean(axis=0)

    assert not lox.audit(outer, axes={"x": ("time", "batch")})(jnp.ones((5, 7))).issues


def test_a_jitted_function_is_audited_with_what_is_declared_at_each_of_its_calls():
    scaled = jax.jit(lambda x: x / x.sum(1, keepdims=True))

    def outer(x):
        with lox.audit.expect(sum="time"):
            x = scaled(x)
        with lox.audit.expect(sum="batch"):
            return scaled(x)

    assert [f.code for f in lox.audit(outer, axes={"x": ("batch", "time")})(jnp.ones((4, 5))).issues] == ["LOX105"]
    assert [f.code for f in lox.audit(outer, axes={"x": ("time", "batch")})(jnp.ones((4, 5))).issues] == ["LOX105"]


def test_a_scan_over_another_axis_than_declared_is_found():
    def returns(rewards):
        with lox.audit.expect(scan="time"):
            return lax.scan(lambda c, r: (r + 0.9 * c, c), jnp.zeros(rewards.shape[1]), rewards, reverse=True)[1]

    (issue,) = lox.audit(returns, axes={"rewards": ("env", "time")})(jnp.ones((4, 9))).issues
    assert issue.code == "LOX105" and issue.message.startswith("'scan' goes over env here")
    report = lox.audit(returns, axes={"rewards": ("time", "env")})(jnp.ones((4, 9)))
    assert not report.issues and "LOX105" in [finding.code for finding in report.verified]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("obs", "axes= takes a mapping from names of arguments to labels, .* got 'obs' of type str"),
        (["obs"], "axes= takes a mapping .* got .* of type list"),
        ({1: ("time",)}, "axes= takes a mapping .* got 1 of type int in the place of a name"),
        ({"x": 5}, "axes= takes a label for each axis of 'x', .* got 5 of type int"),
        ({"x": "ab"}, "axes= takes a label for each axis of 'x', .* got 'ab' of type str"),
        ({"x": {"a", "b"}}, "axes= takes a label for each axis of 'x', .* of type set"),
        ({"x": (0, 1)}, "axes= takes strings and None as labels of 'x', got 0 of type int"),
        ({"x": ("a",)}, "axes= gives 'x' 1 labels"),
    ],
)
def test_axes_are_labels_by_name(axes, message):
    with pytest.raises(lox.LogValueError, match=message):
        lox.audit(lambda x: x, axes=axes)(jnp.ones((2, 2)))


@pytest.mark.parametrize("labels", [("a", None), ["a", None]])
def test_labels_are_a_tuple_or_a_list(labels):
    report = lox.audit(lambda x: x, axes={"x": labels})(jnp.ones((2, 2)))
    assert "2 a, 2" in report.to_full()


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (3, "calls= takes tuples of positional arguments, .* got 3 of type int"),
        ("ab", "calls= takes tuples of positional arguments, .* got 'ab' of type str"),
        ({}, "calls= takes tuples .* of type dict"),
        ([jnp.ones(3)], r"calls= takes tuples .* got Array.* as calls\[0\]"),
        ([(jnp.ones(3),), 3], r"calls= takes tuples .* got 3 of type int as calls\[1\]"),
        ([()], r"calls\[0\] has 0 arguments, and f\(x, y=.*\) does not take them: missing .* 'x'"),
        ([(1,), (1, 2, 3)], r"calls\[1\] has 3 arguments, and f\(.*\) does not take them: too many"),
    ],
)
def test_calls_are_tuples_of_arguments_that_the_function_takes(calls, message):
    def f(x, y=1):
        return x * y

    with pytest.raises(lox.LogValueError, match=message):
        lox.audit(f, calls=calls)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"lox.audit\(f\) is given 0 arguments, and f\(x, y=1\) does not take them: missing .* 'x'"),
        ((1, 2, 3), {}, r"lox.audit\(f\) is given 3 arguments, and f\(.*\) does not take them: too many positional"),
        ((), {"y": 1}, r"lox.audit\(f\) is given 1 argument, and f\(.*\) does not take it: missing .* 'x'"),
        ((1,), {"z": 1}, r"lox.audit\(f\) is given 2 arguments, and f\(.*\) does not take them: .* 'z'"),
    ],
)
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit, lox.spool], ids=["plain", "jit", "spool"])
def test_arguments_are_those_that_the_function_takes(args, kwargs, message, transform):
    def f(x, y=1):
        return x * y

    with pytest.raises(lox.LogValueError, match=message):
        lox.audit(transform(f))(*args, **kwargs)


def test_arguments_may_be_other_than_the_signature_of_what_is_wrapped_says():
    def f(x, key):
        return x + jax.random.normal(key, x.shape)

    @functools.wraps(f)
    def seeded(x):
        return f(x, jax.random.key(0))

    assert not lox.audit(seeded)(jnp.ones(3)).issues


def test_arguments_of_what_has_no_signature_that_can_be_read_are_an_issue():
    class Unreadable:
        __signature__ = 3

        def __call__(self, x):
            return x

    (issue,) = lox.audit(Unreadable())().issues
    assert issue.code == "LOX400" and "TypeError" in issue.message


def test_calls_of_a_builtin_and_of_defaults_are_fine():
    x = jnp.ones(3)
    assert not lox.audit(jnp.add, calls=[(x, x)])(x, x).warnings
    assert not lox.audit(lambda x, *more, y=1: x, calls=[[x], (x,)])(x).warnings


def added(first, *batches, scale=1.0, **options):
    return sum(batches, first) * scale


def test_arguments_beyond_those_with_names_have_the_name_of_all_and_a_number():
    x = jnp.ones(3)
    report = lox.audit(added)(x, x, {"w": x}["w"], scale=x)
    assert [value.name for value in report.program.inputs] == ["first", "batches/0", "batches/1", "scale"]
    assert [value.name for value in lox.audit(added)(x).program.inputs] == ["first"]
    trees = lox.audit(lambda *trees: trees[0]["w"])({"w": x}, (x, x))
    assert [value.name for value in trees.program.inputs] == ["trees/0/w", "trees/1/0", "trees/1/1"]


def test_the_name_of_all_means_each_of_them_but_for_what_has_its_own():
    x = jnp.ones(3)
    for axes in ({"batches/0": ("a",), "batches/1": ("b",)}, {"batches": ("a",), "batches/1": ("b",)}):
        report = lox.audit(added, axes=axes)(x, x, x)
        assert [finding.code for finding in report.issues] == ["LOX101"]
    assert not lox.audit(added, axes={"batches": ("a",)})(x, x, x).issues
    with pytest.raises(
        lox.LogValueError, match="axes= names 'batches/2', but .* are 'first', 'batches/0', 'batches/1'"
    ):
        lox.audit(added, axes={"batches/2": ("a",)})(x, x, x)


@pytest.mark.parametrize(("name", "unused"), [("b", False), ("b/1", True), ("b/0", False)])
def test_one_or_all_of_them_are_differentiated_by(name, unused):
    report = lox.audit(lambda *b: b[0].sum(), differentiate=name)(jnp.ones(3), jnp.ones(3))
    assert ("LOX603" in [finding.code for finding in report.warnings]) == unused


def test_names_of_arrays_mean_whole_names_and_the_longest_one_counts():
    def fun(w, w2, batch):
        return (w * w2["w"] * batch["x"] * batch["y"]).sum()

    args = jnp.ones(4), {"w": jnp.ones(4)}, {"x": jnp.ones(4), "y": jnp.ones(4)}
    labels = {"batch": ("time",), "batch/y": ("env",), "w2": ("time",)}
    report = lox.audit(fun, axes=labels, differentiate="w")(*args)
    assert [value.axes for value in report.program.inputs] == ["4", "4 time", "4 time", "4 env"]
    (found,) = report.found
    assert found.code == "LOX101" and "env" in found.message

    def unused(w, w2):
        return w2["w"].sum()

    told = {by: [each.message for each in lox.audit(unused, differentiate=by)(*args[:2]).found] for by in ("w", "w2")}
    assert told == {"w": ["'out' does not depend on 'w', and so its derivative by it is zero."], "w2": []}
    assert not lox.audit(lambda w, w2: w.sum(), differentiate="w")(*args[:2]).found
    with pytest.raises(lox.LogValueError, match="names 'w2/v', but the arrays .* are 'w', 'w2/w'"):
        lox.audit(unused, differentiate=["w", "w2/v"])(*args[:2])


def test_what_holds_is_counted_by_lines_and_left_out_where_anything_of_its_kind_is_found():
    def fun(key, x):
        one, other, third = jax.random.split(key, 3)
        a = jax.random.normal(one) + x
        b = jax.random.normal(other) + jax.random.uniform(third)
        return a * b

    def twice(key, x):
        return fun(key, x) + jax.random.normal(key)

    def holds(report, code):
        return [each.message for each in report.verified if each.code == code]

    key, x = jax.random.key(0), jnp.float32(1)
    assert holds(lox.audit(fun)(key, x), "LOX700") == ["Each random key is used once. (3 lines)"]
    report = lox.audit(twice)(key, x)
    assert [each.code for each in report.found] == ["LOX700"] and not holds(report, "LOX700")
    assert holds(report, "LOX400") == ["JAX traces the function."]
    assert all(each.severity == "info" and each.reasoning and not each.suggestion for each in report.verified)
