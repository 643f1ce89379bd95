"""The guides: their programs run, and their commands print what the pages say."""

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GUIDES = ROOT / "docs" / "guides"
PORTS = ROOT / "docs" / "examples" / "gymnax" / "ports"
PAGES = [page for page in sorted(GUIDES.glob("*.md")) if page.stem not in ("index", "ports")]


def blocks_of(page):
    """The fenced blocks of a page: what is behind the fence, and the text."""
    return re.findall(r"^```([^\n]+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def programs_of(page):
    return [name.removeprefix("{literalinclude} ") for name, _ in blocks_of(page) if name.startswith("{literalinc")]


def commands_of(page):
    """Each block of commands, with the text of the block behind it."""
    blocks = [(name, text) for name, text in blocks_of(page) if name in ("sh", "text")]
    assert [name for name, _ in blocks] == ["sh", "text"] * (len(blocks) // 2)
    return [(commands, printed) for (_, commands), (_, printed) in zip(blocks[::2], blocks[1::2], strict=True)]


def printed_by(commands, folder):
    """What commands print, as a reader enters them: on one device, with all optimizations."""
    of_tests = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "PYTEST_CURRENT_TEST", "XLA_FLAGS")
    environment = {name: value for name, value in os.environ.items() if name not in of_tests}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["bash", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def parts_of(line):
    """The words of a line and its decimals, in turn. Times and rates are those of the machine."""
    line = re.sub(r"\b[\d.]+(e[+-]\d+)?/s|\d+:\d\d:\d\d|\bin [\d.]+s\b", "TIME", line)
    parts = re.split(r"(-?\b\d+\.\d+(?:e[+-]?\d+)?\b)", " ".join(line.split()))
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]


def alike(found, expected):
    """Whether words are the same, and decimals nearly so: their last digits differ between versions of XLA."""
    if len(found) != len(expected) or found[::2] != expected[::2]:
        return False
    return found[1::2] == pytest.approx(expected[1::2], rel=0.01, abs=2e-4)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_guide_print_what_it_says(page, tmp_path):
    for program in programs_of(page):
        shutil.copy(GUIDES / program, tmp_path)
    assert programs_of(page) and commands_of(page)
    for commands, expected in commands_of(page):
        found = printed_by(commands, tmp_path).strip().splitlines()
        expected = expected.strip().splitlines()
        assert len(found) == len(expected), "\n".join(found)
        for line, wanted in zip(found, expected, strict=True):
            assert alike(parts_of(line), parts_of(wanted)), f"prints {line!r}, and the page says {wanted!r}"


def test_each_program_is_in_a_guide():
    shown = {program for page in PAGES for program in programs_of(page)}
    assert shown == {path.name for path in GUIDES.glob("*.py")}


def test_the_diffs_of_the_ports_are_those_of_their_programs():
    shown = [text for name, text in blocks_of(GUIDES / "ports.md") if name == "diff"]
    programs = {path.stem.removesuffix("_lox"): path for path in PORTS.glob("*_lox.py")}
    expected = []
    for name, with_lox in programs.items():
        lines = [path.read_text(encoding="utf-8").splitlines() for path in (PORTS / f"{name}.py", with_lox)]
        _, _, *diff = difflib.unified_diff(*lines, lineterm="", n=2)
        expected.append("\n".join(diff) + "\n")
    assert sorted(shown) == sorted(expected) and len(shown) == 5
