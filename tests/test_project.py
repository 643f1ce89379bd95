"""The project around the library: its code passes the checkers, and the examples of its pages run."""

import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
from page_code import blocks_of

import lox

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *(page for page in sorted(ROOT.glob("docs/**/*.md")) if not page.name.startswith("LOX"))]
CODE_WIDTH = 88  # What the site shows without a scroll bar.


@pytest.mark.parametrize("command", ["ruff check .", "ruff format --check .", "mypy"])
def test_checker_finds_nothing(command):
    done = subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_in_the_page_is_run_and_fits(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^ +```", text, re.MULTILINE), "An indented block of code is not run."
    languages = {language for language in re.findall(r"^```(\S+)", text, re.MULTILINE) if "py" in language.lower()}
    assert languages <= {"python"}, "The tests run blocks of `python`."
    for block in blocks_of(text):
        assert [line for line in block.code.splitlines() if len(line) > CODE_WIDTH] == []


def test_relative_links_of_pages_lead_somewhere():
    lead_nowhere = []
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
        lead_nowhere += [
            (page.relative_to(ROOT).as_posix(), link) for link in links if not (page.parent / link).exists()
        ]
    assert lead_nowhere == []


def test_readme_has_one_command_for_the_demo_and_one_for_the_tests():
    commands = re.findall(r"^python3 -m venv .*$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert [command.rpartition("&& ")[2] for command in commands] == [
        ".venv/bin/lox demo",
        ".venv/bin/python -m pytest",
    ]


def test_readme_begins_with_the_idea_the_command_that_installs_a_short_program_and_the_handlers():
    text = README.read_text(encoding="utf-8")
    first = text[: text.index("\n## ")]
    idea, install, program, table = (
        first.index(part) for part in ("Log from inside `jit`", "\npip install .", "```python", "| `lox.spool(f)` |")
    )
    assert idea < install < program < table
    (block,) = re.findall(r"^```python\n(.*?)^```", first, re.MULTILINE | re.DOTALL)
    assert len(list(filter(str.strip, block.splitlines()))) <= 12
    assert re.findall(r"^\| `([\w.]+)\(", first, re.MULTILINE) == ["lox.spool", "lox.tap", "logger.tap"]
    assert text[:table].count("\n") < 40
    assert text.count("\n") <= 120


def test_the_changelog_has_the_version():
    (newest, *_) = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest == lox.__version__


@pytest.mark.integration
def test_badges_say_what_the_project_says(tmp_path):
    runpy.run_path(str(ROOT / "docs/images/make.py"))["badges"](tmp_path)
    named = re.findall(r"!\[(.+)\]\((docs/images/badge-.+)\)\]", README.read_text(encoding="utf-8"))
    assert {Path(file).name for _, file in named} == {file.name for file in tmp_path.iterdir()}
    for name, file in named:
        for badge in ROOT / file, tmp_path / Path(file).name:
            texts = xml.etree.ElementTree.parse(badge).iterfind(".//{*}text")
            assert " ".join(dict.fromkeys(text.text for text in texts)) == name
