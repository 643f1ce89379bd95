"""The pages of the documentation: their examples print what they say, and their pictures show what lox does."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import matplotlib
import pytest
from page_code import is_as_said, run

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *(page for page in sorted(ROOT.glob("docs/**/*.md")) if not page.name.startswith("LOX"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_of_the_page_prints_what_it_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    with jax.numpy_dtype_promotion("standard"):  # As readers have it, and libraries such as optax need it.
        for block, printed in run(page, text):
            assert is_as_said(block, printed), f"{page}:{block.line}: the code prints\n{printed}"
    if page.name == "quickstart.md":  # Its commands are about what its examples wrote.
        for command in re.findall(r"^lox (?!tail).*?(?=  #|$)", text, re.MULTILINE):
            subprocess.run([sys.executable, "-m", *shlex.split(command)], check=True, capture_output=True)


@pytest.mark.parametrize(
    "wrong",
    [
        "```python\nprint(1)\n```",
        "```python\nprint(1)\n```\n\n```text\n2\n```",
        "```python\nx = 1\n```\n\n```text\n1\n```",
        "```python\nprint(1)\n```\n\nBetween them.\n\n```text\n1\n```",
        "```python\nlox.spool(1)\n```\n\n```text\nNameError: another message\n```",
    ],
)
def test_a_page_that_says_something_else_is_noticed(wrong):
    assert not all(is_as_said(*each) for each in run(Path("page.md"), wrong))


def test_code_of_a_page_is_its_source_and_an_error_is_named(tmp_path):
    text = "```python\ndef f():\n    return 1\n```\n\n```python\nimport inspect\nprint(inspect.getsource(f))\n```"
    text += "\n\n```text\ndef f(): return 1\n```\n\n```python\n{}[3]\n```\n\n```text\nKeyError: 3\n```"
    assert [is_as_said(*each) for each in run(tmp_path / "page.md", text)] == [True, True, True]


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
