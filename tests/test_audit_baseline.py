"""What an audit reports beside a baseline: what is new, and which shapes changed."""

import importlib
import json
import linecache
import sys

import pytest

from lox.__main__ import main

PROGRAM = """
import jax
import jax.numpy as jnp

def draw(key):
    return jax.random.normal(key) + jax.random.normal(key)

def step(carry, x):
    return carry + x, carry

def f(key, xs):
    return draw(key), jax.lax.scan(step, jnp.zeros(xs.shape[1:]), xs)

def arguments():
    return jax.random.key(0), jnp.ones((5, 3))
"""


@pytest.fixture
def audit(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(source, *options):
        (tmp_path / "baselined.py").write_text(source)
        sys.modules.pop("baselined", None)
        importlib.invalidate_caches()
        linecache.checkcache()
        code = main(["audit", "baselined:f", "--args", "baselined:arguments", *options])
        printed = capsys.readouterr()
        return code, printed.out.splitlines(), printed.err

    yield run
    sys.modules.pop("baselined", None)


def test_what_is_known_is_not_reported(audit):
    assert audit(PROGRAM)[0] == 1
    assert audit(PROGRAM, "--write-baseline", "known.json")[0] == 0
    code, out, _ = audit(PROGRAM, "--baseline", "known.json")
    assert code == 0 and len(out) == 1 and out[0].startswith("f: nothing found")


def test_what_is_known_may_be_on_another_line(audit):
    audit(PROGRAM, "--write-baseline", "known.json")
    moved = PROGRAM.replace("def draw", "\n# A comment.\n\ndef draw")
    assert audit(moved, "--baseline", "known.json")[0] == 0
    assert audit(PROGRAM.replace("draw", "drawn"), "--baseline", "known.json")[0] == 1


def test_what_is_new_is_reported(audit):
    audit(PROGRAM, "--write-baseline", "known.json")
    twice = "jax.random.normal(key) * jax.random.normal(key)"
    more = PROGRAM.replace("return draw(key),", f"return draw(key), draw(key), {twice},")
    code, out, _ = audit(more, "--baseline", "known.json")
    assert code == 1 and any("LOX70" in line for line in out)
    assert not any(line.startswith("baselined.py:6:") and "LOX700" in line for line in out)


def test_one_more_of_a_kind_is_new(audit):
    audit(PROGRAM, "--write-baseline", "known.json")
    twice = PROGRAM.replace("return jax.random", "return jax.random.normal(key) + jax.random", 1)
    assert audit(twice, "--baseline", "known.json")[0] == 1


def test_shapes_that_changed_at_boundaries_are_said(audit):
    audit(PROGRAM, "--write-baseline", "known.json")
    wider = PROGRAM.replace("jnp.ones((5, 3))", "jnp.ones((5, 4))")
    code, out, _ = audit(wider, "--baseline", "known.json")
    assert code == 0
    changed = [line for line in out if "LOX002" in line]
    assert any("LOX002 carry of scan was float32[3], and is float32[4]" in line for line in changed)
    assert audit(wider, "--baseline", "known.json", "--fail-on", "info")[0] == 1
    assert not [line for line in audit(wider, "--baseline", "known.json", "--ignore", "LOX002")[1] if "LOX002" in line]


def test_a_loop_that_carries_more_than_before_is_said(audit):
    begun = PROGRAM.replace("def f(key, xs):", "def f(key, xs):\n    start = jnp.zeros(3)").replace(
        "jnp.zeros(xs.shape[1:])", "start"
    )
    audit(begun, "--write-baseline", "known.json")
    more = begun.replace("carry + x, carry", "(carry[0] + x, carry[1] * x), carry[1]")
    more = more.replace("start = jnp.zeros(3)", "start = (jnp.zeros(3), jnp.ones(3))")
    changed = [line for line in audit(more, "--baseline", "known.json")[1] if "LOX002" in line]
    assert any("scan has more or fewer values as carry than before." in line for line in changed)


def test_both_may_be_one_file(audit, tmp_path):
    audit(PROGRAM, "--write-baseline", "known.json")
    before = (tmp_path / "known.json").read_text()
    assert audit(PROGRAM, "--baseline", "known.json", "--write-baseline", "known.json")[0] == 0
    assert (tmp_path / "known.json").read_text() == before
    json.loads(before)


HUGE = ["[" * 100_000, '{"version": 1, "findings": [["a", "b", "c", 1e400]], "boundaries": []}']


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 9}', '{"version": 1, "findings": 3}'] + HUGE)
def test_a_file_that_is_no_baseline_is_an_error(audit, tmp_path, content):
    (tmp_path / "known.json").write_text(content)
    code, out, err = audit(PROGRAM, "--baseline", "known.json")
    assert code == 1 and not out and "known.json is no baseline of lox audit" in err


def test_a_baseline_that_is_missing_is_an_error(audit):
    code, out, err = audit(PROGRAM, "--baseline", "missing.json")
    assert code == 1 and not out and "missing.json" in err


def test_what_several_functions_share_is_known_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    helper = "import jax\ndef draw(key):\n    return jax.random.normal(key) + jax.random.normal(key)\n"
    one = "f = jax.jit(lambda key: draw(key))\nf(jax.random.key(0))\n"
    (tmp_path / "script.py").write_text(helper + one)
    assert main(["audit", "--write-baseline", "known.json", "--run", "script.py"]) == 0
    (tmp_path / "script.py").write_text(helper + one + "g = jax.jit(lambda key: 2 * draw(key))\ng(jax.random.key(0))\n")
    linecache.checkcache()
    assert main(["audit", "--baseline", "known.json", "--run", "script.py"]) == 0
    assert "2 functions: nothing found" in capsys.readouterr().out


def test_a_baseline_stays_when_functions_change_places(audit, tmp_path):
    one, rest = PROGRAM.split("def step")
    other = one.partition("def")[2].replace(" draw", "def other")
    rest = rest.replace("draw(key)", "(draw(jax.random.fold_in(key, 0)), other(jax.random.fold_in(key, 1)))")
    written = []
    for functions in (one + other, one.replace("draw", "other") + other.replace("other", "draw")):
        audit(f"{functions}def step{rest}", "--write-baseline", "known.json")
        written.append(json.loads((tmp_path / "known.json").read_text())["findings"])
    assert [function for _, function, *_ in written[0]] == ["draw", "other"] and written[0] == written[1]


def test_a_baseline_knows_as_many_findings_of_a_text_as_it_was_written_with(audit, tmp_path):
    line = "    total += jax.random.normal(key)\n"

    def program(times):
        start, rest = PROGRAM.split("def step")
        draw = f"def draw(key):\n    total = jax.random.normal(key)\n{line * times}    return total\n\n"
        return f"{start.partition('def draw')[0]}{draw}def step{rest}"

    first = program(1).splitlines().index(line.rstrip()) + 1
    lines = {times: audit(program(times))[1][:-1] for times in (1, 2, 3)}
    assert [len(found) for found in lines.values()] == [1, 2, 3]
    assert audit(program(2), "--write-baseline", "known.json")[0] == 0
    known = json.loads((tmp_path / "known.json").read_text())
    assert known["version"] == 1
    assert known["findings"] == [["LOX700", "draw", line.strip(), 2]]
    assert [(kind, role, types) for *_, kind, role, types in known["boundaries"] if kind == "scan"] == [
        ("scan", "carry", ["float32[3]"] * 2),
        ("scan", "each", ["float32[5, 3]"]),
        ("scan", "stacked", ["float32[5, 3]"]),
    ]
    assert [audit(program(times), "--baseline", "known.json")[0] for times in (1, 2, 3)] == [0, 0, 1]
    (new,) = [each for each in audit(program(3), "--baseline", "known.json")[1] if "LOX700" in each]
    assert new.startswith(f"baselined.py:{first + 2}:14 LOX700 The key 'key' is used here")
    changed = program(2).replace("jnp.ones((5, 3))", "jnp.ones((7, 4))")
    told = [each.partition(" LOX002 ")[2] for each in audit(changed, "--baseline", "known.json")[1] if "LOX002" in each]
    assert [each for each in told if "scan" in each] == [
        "carry of scan was float32[3], and is float32[4], and 1 more changed.",
        "each of scan was float32[5, 3], and is float32[7, 4].",
        "stacked of scan was float32[5, 3], and is float32[7, 4].",
    ]
