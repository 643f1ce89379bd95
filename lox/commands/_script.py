"""The script that `lox audit --run` is given, and hints where it is not one."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from lox.commands._output import Failure

OPTIONS = (
    "--select",
    "--ignore",
    "--format",
    "--full",
    "--detail",
    "--output",
    "--baseline",
    "--write-baseline",
    "--fail-on",
)
"""Options of `lox audit` that may stand beside `--run`."""


def check(script: Sequence[str]) -> None:
    """Check that there is something to run.

    Args:
        script: The file and its arguments, or "-m", a module and its arguments.

    Raises:
        Failure: There is no such file. It says what else may be meant.
    """
    name, *rest = script
    if name == "-m":
        if not rest:
            raise Failure("--run -m needs the name of a module, as in --run -m package.train")
        return
    if name.partition("=")[0] in OPTIONS:
        raise Failure(f"{name} comes before --run, as in: lox audit {name} ... --run train.py")
    if not Path(name).exists():
        raise Failure(f"there is no file {name} to run{_hint(name, rest)}")


def _hint(name: str, rest: Sequence[str]) -> str:
    if re.fullmatch(r"python[\d.]*", name) and rest:
        return f"; without {name}: --run {shlex.join(rest)}"
    if ":" in name:
        return f"; a function is audited without --run: lox audit {name}"
    if " " in name and Path(name.split()[0]).exists():
        return f"; its arguments go without quotes: --run {name}"
    if all(part.isidentifier() for part in name.split(".")) and not name.endswith(".py") and _is_module(name):
        return f"; a module is run with -m: --run -m {shlex.join([name, *rest])}"
    return ""


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except ValueError:  # Of a module that runs, such as __main__.
        return False


def misplaced(script: Sequence[str]) -> list[str]:
    """The options of `lox audit` among the arguments of a script, which are given to the script."""
    return [each for each in dict.fromkeys(each.partition("=")[0] for each in script[1:]) if each in OPTIONS]
