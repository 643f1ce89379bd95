"""The formats of reports."""

import json
import os
import re

import jax
import jax.numpy as jnp
import pytest
from corpus import f32

import lox
from lox._audit._findings import Kind
from lox._audit._formats._write import write
from lox._audit._location import Location
from lox._audit._settings import FORMATS


def update(params, x, y, key):
    predicted = x @ params["w"]
    noise = jax.random.normal(key) + jax.random.normal(key)
    return ((predicted - y) ** 2).mean() + noise


AXES = {"x": ("batch", None), "y": ("batch",)}
FIRST = update.__code__.co_firstlineno


@pytest.fixture(scope="module")
def report():
    return lox.audit(update, axes=AXES)({"w": f32(8, 1)}, f32(64, 8), f32(64), jax.random.PRNGKey(0))


def test_the_default_is_a_line_for_each_finding_and_one_for_all(report, monkeypatch):
    monkeypatch.chdir(os.path.dirname(__file__))
    lines = str(report).splitlines()
    assert lines == report.to_concise().splitlines()
    assert [re.match(r"test_audit_formats.py:(\d+):(\d+) (LOX\d+) \S", line).groups() for line in lines[:-1]] == [
        (str(FIRST + 2), "39", "LOX700"),
        (str(FIRST + 2), "13", "LOX707"),
        (str(FIRST + 3), "14", "LOX104"),
    ] or sorted(line.split()[1] for line in lines[:-1]) == ["LOX104", "LOX700", "LOX707"]
    assert re.fullmatch(r"update: 2 errors, 1 note; \d+ checks passed\.", lines[-1])


def test_files_elsewhere_have_their_whole_path(report, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(report).startswith(f"{__file__}:")


def test_where_nothing_is_found_one_line_says_so():
    assert re.fullmatch(r"sin: nothing found; \d+ checks passed\.", str(lox.audit(jnp.sin)(1.0)))


def test_annotations_of_github(report):
    lines = report.to_github().splitlines()
    assert len(lines) == 3
    error = next(line for line in lines if "LOX104" in line)
    assert re.match(rf"::error file=.*test_audit_formats\.py,line={FIRST + 3},col=14,title=LOX104::y of shape", error)
    assert any(line.startswith("::notice ") for line in lines)


def test_annotations_of_github_are_escaped(report):
    finding = Kind("LOX104", "warning", "", "").at(Location("a,b:c.py", 3), "100%\nof a, b: c")
    one = report.where(lambda _: False).and_also([finding])
    assert one.to_github() == "::warning file=a%2Cb%3Ac.py,line=3,title=LOX104::100%25%0Aof a, b: c"


def test_sarif_has_a_result_for_each_finding_and_a_rule_for_each_code(report):
    found = json.loads(report.to_sarif())
    assert found["version"] == "2.1.0" and len(found["runs"]) == 1
    driver, results = found["runs"][0]["tool"]["driver"], found["runs"][0]["results"]
    assert driver["name"] == "lox audit"
    assert [rule["id"] for rule in driver["rules"]] == ["LOX104", "LOX700", "LOX707"]
    assert {result["ruleId"]: result["level"] for result in results} == {
        "LOX104": "error",
        "LOX700": "error",
        "LOX707": "note",
    }
    for result in results:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"].endswith("tests/test_audit_formats.py")
        assert place["region"]["startLine"] > 0 and place["region"]["startColumn"] > 0


def test_a_file_elsewhere_is_a_uri(report, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for result in json.loads(report.to_sarif())["runs"][0]["results"]:
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].startswith("file:///")


def test_trees_of_parameters_are_one_row():
    params = {f"layer{i}": {"w": f32(8, 8), "b": f32(8)} for i in range(20)}

    def apply(params, x):
        def step(x, _):
            for i in range(20):
                x = jnp.tanh(x @ params[f"layer{i}"]["w"] + params[f"layer{i}"]["b"])
            return x, None

        return jax.lax.scan(step, x, length=3)[0]

    text = lox.audit(apply)(params, f32(4, 8)).to_full("calls")
    assert "40 arrays: 40 of float32" in text and "params/layer7" not in text
    assert len(text.splitlines()) < 80
    boundaries = text[text.index("Shape trace") :]
    assert "20 x float32[8, 8]" in boundaries and len(boundaries.splitlines()) < 20


@pytest.mark.parametrize("form", FORMATS)
def test_several_reports_are_one_text(report, form):
    other = lox.audit(jnp.sin)(1.0)
    text = write([report, other], form, "calls")
    assert text
    if form == "json":
        assert [each["name"] for each in json.loads(text)] == ["update", "sin"]
    if form == "concise":
        assert text.splitlines()[-1].startswith("2 functions: 2 errors, 1 note; ")
    assert write([report, report], "github", "calls") == report.to_github()


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_has_every_format(report, form):
    text = getattr(report, f"to_{form}")()
    if form == "json":
        assert json.loads(write([report], form, "calls")) == [json.loads(text)]
    else:
        assert write([report], form, "calls").strip() == text.strip()


def test_functions_of_jax_have_no_part_in_the_full_report():
    def f(key, x):
        noise = jax.random.normal(key, x.shape)
        return jax.lax.cond(x[0] > 0, lambda: x + noise, lambda: x)

    report = lox.audit(f)(jax.random.key(0), f32(3))
    text = report.to_full()
    assert "branch 0" in text and "branch 1" in text and "jit:_normal" not in text
    assert any(part["kind"] == "jit:_normal" for part in json.loads(report.to_json())["stack"])


def test_what_differs_at_a_boundary_is_counted():
    def f(xs):
        def step(carry, x):
            return carry, x

        return jax.lax.scan(step, 0.0, xs)[1]

    text = lox.audit(f)({f"x{i}": f32(5, 3) for i in range(9)} | {"y": f32(5)}).to_full()
    assert "9 x float32[5, 3]" in text and "9 x float32[3]" in text


def test_values_that_are_left_out_at_a_boundary_are_counted():
    def f(xs):
        return jax.lax.scan(lambda carry, xs: (carry, jax.tree.map(jnp.sum, xs)), 0.0, xs)[1]

    text = lox.audit(f)({f"x{i}": f32(5, min(i, 3) + 2) for i in range(8)}).to_full()
    assert " 5 more " in text and " 1 more " not in text
