"""``lox audit``: the mistakes in a function, or in all functions that a script compiles."""

from __future__ import annotations

import dataclasses
import inspect
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lox import _audit
from lox._audit._baseline import Baseline, write_baseline
from lox._audit._capture import name_of
from lox._audit._content import at_least
from lox._audit._formats._concise import in_order
from lox._audit._formats._write import write
from lox._audit._recorder import Recorder, not_audited
from lox._audit._report import Report
from lox._audit._settings import Settings, read_settings
from lox._exceptions import LogValueError
from lox._text import encodable
from lox.commands._functions import arguments, find
from lox.commands._output import Failure, complain
from lox.commands._script import check, misplaced

WRONG_USAGE = 2
"""The exit code of a script whose arguments are wrong, as argparse has it."""


@dataclasses.dataclass(frozen=True)
class Choices:
    """The options of the reports; one that is None is as pyproject.toml says.

    Attributes:
        select: The codes or beginnings of codes that are reported.
        ignore: The codes that are not.
        fail_on: The severity from which on a finding makes the exit code 1.
        format: The format of reports.
        detail: The level of detail of the data flow of a full report.
        output: The file to write to; None for the standard output.
        baseline: A file with the findings that are known already.
        write_baseline: The file to write such findings to.
    """

    select: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    fail_on: str | None = None
    format: str | None = None
    detail: Any = "calls"
    output: Path | None = None
    baseline: Path | None = None
    write_baseline: Path | None = None

    def settings(self) -> Settings:
        """The choices, and what the project of the working directory wants for the rest."""
        found = read_settings(Path.cwd())
        named = ("select", "ignore", "fail_on", "format")
        given = {name: value for name in named if (value := getattr(self, name)) is not None}
        settings = dataclasses.replace(found, **given)
        settings.of(())  # Codes that are wrong are said before anything is run.
        return settings

    def known(self) -> Baseline | None:
        """The content of the baseline."""
        return None if self.baseline is None else Baseline(self.baseline)

    def resolved(self) -> Choices:
        """The same with the files of this folder, wherever the program goes."""
        files = {name: file.absolute() for name in ("output", "write_baseline") if (file := getattr(self, name))}
        return dataclasses.replace(self, **files)


def audit(
    function: str,
    factory: str | None,
    axes: Mapping[str, Sequence[str | None]],
    differentiate: Sequence[str],
    choices: Choices,
) -> int:
    """Prints the report of a function.

    Args:
        function: The function as ``package.module:name``.
        factory: The function that makes its arguments, likewise; without one, it is called without arguments.
        axes: As for `lox.audit`.
        differentiate: As for `lox.audit`.
        choices: What is reported, and how.

    Returns:
        The exit code.
    """
    settings, known = choices.settings(), choices.known()
    fun = find(function)
    args, kwargs = ((), {}) if factory is None else arguments(factory)
    try:
        report = _audit.audit(fun, axes=axes, differentiate=differentiate)(*args, **kwargs)
    except LogValueError:
        if factory is None:
            _refuse_to_guess(fun)
        raise
    return _conclude([report], choices, settings, known)


def audit_run(script: Sequence[str], choices: Choices) -> int:
    """Runs a script, and prints the reports of the functions that it compiles.

    Args:
        script: The file and its arguments, or "-m", a module and its arguments.
        choices: What is reported, and how.

    Returns:
        The exit code: that of the script if it is not 0.

    Raises:
        Failure: There is no such script.
    """
    settings, known, process = choices.settings(), choices.known(), os.getpid()
    check(script)
    choices = choices.resolved()  # The script may go to another folder.
    with Recorder() as recorder:
        code = _run(script)
        if os.getpid() != process:  # A fork ends here, and its parent audits.
            return code
        for thread in threading.enumerate():  # As Python does before it exits.
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        sys.stdout.flush()
        reports = recorder.reports(raised=code != 0)
    for line in not_audited(recorder.left_out):
        complain(line)
    if code == WRONG_USAGE and (options := misplaced(script)):
        complain(f"{' and '.join(options)} went to the script: options of lox audit come before --run")
    if not reports and not recorder.left_out:
        complain("no function that the script gives to jax.jit was compiled")
    wanted = reports or settings.format != "concise" or choices.output is not None
    found = _conclude(reports, choices, settings, known) if wanted else 0
    return code or found


def _conclude(reports: Sequence[Report], choices: Choices, settings: Settings, known: Baseline | None) -> int:
    """Writes reports as chosen, and gives the exit code."""
    reports = settings.of(reports)
    if choices.write_baseline is not None:
        write_baseline(choices.write_baseline, reports)
    if known is not None:
        reports = settings.of(known.new(reports))
    text = write(reports, settings.format, choices.detail).rstrip("\n")
    if choices.output is not None:
        choices.output.write_text(f"{text}\n", encoding="utf-8", errors="backslashreplace")
    elif text:
        print(encodable(text, sys.stdout.encoding))
    if choices.write_baseline is not None:
        return 0  # The findings are known from now on.
    return 1 if at_least(settings.fail_on, in_order(reports)) else 0


def _run(script: Sequence[str]) -> int:
    """Runs a script as ``python`` does, and gives its exit code."""
    as_module = script[0] == "-m"
    name, *arguments = script[1:] if as_module else script
    before = sys.argv, sys.path[:]
    sys.argv = [name, *arguments]
    sys.path.insert(0, os.getcwd() if as_module else str(Path(name).resolve().parent))
    try:
        if as_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(os.path.abspath(name), run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001  (Ctrl-C too: what was compiled before it is audited)
        told = traceback.TracebackException.from_exception(error)
        told.stack = traceback.StackSummary.from_list(
            [each for each in told.stack if each.filename != __file__ and "runpy" not in each.filename]
        )
        print("".join(told.format()), end="", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1  # As Python and shells have it.
    finally:
        sys.argv, sys.path[:] = before
    return 0


def _refuse_to_guess(fun: Callable[..., Any]) -> None:
    """Says which arguments a function needs, if it needs some."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # Of a builtin.
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in optional]
    if needed:
        listed = " and ".join(filter(None, (", ".join(needed[:-1]), needed[-1])))
        it = "it" if len(needed) == 1 else "them"
        raise Failure(f"{name_of(fun)} takes {listed}: give {it} with --args MODULE:FACTORY")
