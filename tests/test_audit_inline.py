"""Comments that leave findings out, and what a project sets."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

import lox
from lox._audit._settings import Settings, read_settings

HEAD = "import jax\nimport jax.numpy as jnp\n\n"


@pytest.fixture
def audit(tmp_path):
    def run(source, *args, **options):
        file = tmp_path / f"program{len(list(tmp_path.iterdir()))}.py"
        file.write_text(HEAD + source)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return lox.audit(module.f, **options)(*args)

    return run


def codes(report):
    return [finding.code for finding in report.found]


KEY = jax.random.key(0)
TWICE = "def f(key):\n    return jax.random.normal(key) + jax.random.normal(key)"


def test_a_comment_leaves_out_the_findings_of_its_statement(audit):
    assert codes(audit(TWICE, KEY)) == ["LOX700"]
    report = audit(f"{TWICE}  # lox: ignore[LOX700]", KEY)
    assert not codes(report) and "LOX700" not in {finding.code for finding in report.verified}


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_statement_may_have_several_lines(audit, place):
    lines = ["    return (", "        jax.random.normal(key)", "        + jax.random.normal(key)", "    )"]
    lines[place] += "  # lox: ignore[LOX700]"
    assert not codes(audit("def f(key):\n" + "\n".join(lines), KEY))


def test_a_comment_is_about_its_own_statement_alone(audit):
    two = "def f(key):\n    a = jax.random.normal(key){}\n    return a + jax.random.normal(key){}"
    assert sorted(codes(audit(two.format("  # lox: ignore[LOX700]", ""), KEY))) == ["LOX001", "LOX700"]
    assert not codes(audit(two.format("", "  # lox: ignore[LOX700]"), KEY))


def test_a_comment_has_several_codes(audit):
    assert not codes(audit(f"{TWICE}  # why not  # lox: ignore[LOX700]", KEY)) == ["LOX700"]
    report = audit(f"{TWICE}  # lox: ignore[LOX700, LOX104]", KEY)
    assert codes(report) == ["LOX001"] and "LOX104 is ignored here" in report.warnings[0].message
    report = audit(f"{TWICE}  # lox: ignore[LOX104]  # lox: ignore[LOX700]", KEY)
    assert codes(report) == ["LOX001"] and "LOX104 is ignored here" in report.warnings[0].message


@pytest.mark.parametrize("comment", ["lox: ignore", "lox:ignore[]"])
def test_a_comment_without_a_code_ignores_nothing(audit, comment):
    assert sorted(codes(audit(f"{TWICE}  # {comment}", KEY))) == ["LOX001", "LOX700"]


def test_a_comment_that_ignores_nothing_is_found_in_what_was_traced_alone(audit):
    source = "def g(x):\n    return x  # lox: ignore[LOX700]\n\ndef f(x):\n    return x + 1{}"
    assert not codes(audit(source.format(""), 1.0))
    (finding,) = audit(source.format("  # lox: ignore[LOX700]"), 1.0).found
    assert (finding.code, finding.severity, finding.line) == ("LOX001", "warning", 8)
    assert finding.message == "LOX700 is ignored here, and was not found."
    assert not codes(audit(source.format("  # lox: ignore[LOX700]"), 1.0, ignore="LOX001"))


def test_a_string_is_no_comment(audit):
    source = "def f(key):\n    name = '# lox: ignore[LOX700]'; return jax.random.normal(key) + jax.random.normal(key)"
    assert codes(audit(source, KEY)) == ["LOX700"]


def test_a_beginning_of_codes_means_all_of_them():
    def f(key, x, y):
        return jax.random.normal(key) + jax.random.normal(key) + x - y

    labels = {"x": ("time", "batch"), "y": ("batch", "time")}
    args = KEY, jnp.ones((3, 3)), jnp.ones((3, 3))
    assert {"LOX101", "LOX700"} <= set(codes(lox.audit(f, axes=labels)(*args)))
    assert "LOX700" not in codes(lox.audit(f, axes=labels, ignore="LOX7")(*args))
    report = lox.audit(f, axes=labels)(*args)
    assert codes(report.only({"LOX101"})) == ["LOX101"] and "LOX101" not in codes(report.only(ignore={"LOX101"}))
    held = [each.code for each in report.verified]
    assert [each.code for each in report.only(ignore=held[:1]).verified] == held[1:]
    assert [each.code for each in report.only(select=held[:1]).verified] == held[:1]


def settings(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return read_settings(folder)


def test_settings_are_those_of_the_nearest_project_that_has_some(tmp_path):
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    settings(tmp_path, '[tool.lox.audit]\nignore = ["LOX7"]\nfail-on = "warning"\nselect = ["LOX1"]\nformat = "json"')
    assert read_settings(inner) == Settings(("LOX1",), ("LOX7",), "warning", "json")
    assert settings(tmp_path / "package", "[tool.other]\n") == Settings(("LOX1",), ("LOX7",), "warning", "json")
    assert settings(inner, "[tool.lox.audit]\n") == Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.lox.audit]\nignored = []", "has 'ignored', but the names are select, ignore, fail-on, format"),
        ("[tool.lox.audit]\nignore = 'LOX101'", "ignore takes a list of codes, got 'LOX101'"),
        ("[tool.lox.audit]\nignore = ['LOX999']", "lox.audit knows no LOX999"),
        ("[tool.lox.audit]\nfail-on = 'never'", "fail-on is one of 'error', 'warning', 'info', got 'never'"),
        ("[tool.lox.audit]\nformat = 3", "format is one of 'concise', .* got 3"),
        ("[tool.lox]\naudit = 3", "is no table"),
        ("[tool", "cannot be read"),
    ],
)
def test_wrong_settings_are_errors(tmp_path, text, message):
    with pytest.raises(lox.LogValueError, match=message):
        settings(tmp_path, text)
