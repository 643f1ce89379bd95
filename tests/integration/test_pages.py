"""The pages of the documentation: their examples print what they say, and their pictures show what lox does."""

import contextlib
import doctest
import io
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import matplotlib
import pytest

ROOT = Path(__file__).parent.parent.parent
README = ROOT / "README.md"


@pytest.mark.parametrize("page", [README, *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda page: page.name)
def test_examples_of_the_page_print_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # All lines but those of the examples become empty, so that a failure names the page's own line.
    lines, in_example = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            in_example = line == "```python"
            line = ""
        lines.append(line if in_example else "")
    examples = doctest.DocTestParser().get_doctest("\n".join(lines), {}, page.name, str(page), 0)
    # Tracebacks are matched by the name of the exception; what messages say is tested elsewhere, word by word.
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    runner = doctest.DocTestRunner(optionflags=flags)
    printed = io.StringIO()
    with jax.numpy_dtype_promotion("standard"):  # As readers have it, and libraries such as optax need it.
        runner.run(examples, out=printed.write)
    assert runner.failures == 0, printed.getvalue()
    if page.name == "quickstart.md":  # Its commands are about what its examples wrote.
        for command in re.findall(r"^lox (?!tail).*?(?=  #|$)", page.read_text(encoding="utf-8"), re.MULTILINE):
            subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True, capture_output=True)


def test_readme_tour_prints_what_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict = {}
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, README, "exec"), names)
        said = re.findall(r"^print.*  # ([^:\n]+)", block, re.MULTILINE)
        assert [line for line in printed.getvalue().splitlines() if line in said] == said
    assert len(blocks) == 7
    assert (names["logs"]["loss"] < 1).all()


def test_pictures_show_what_lox_does(tmp_path):
    with matplotlib.rc_context():
        matplotlib.use("agg")
        runpy.run_path(str(ROOT / "docs/images/make.py"))["drawn"](tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert drawn
    for picture in drawn:  # Matplotlib has the text of a label as a comment beside its curves.
        texts = [
            re.findall(r"<!-- (.*) -->", file.read_text(encoding="utf-8"))
            for file in (picture, ROOT / "docs/images" / picture.name)
        ]
        assert texts[0] == texts[1] and texts[0], picture.name
