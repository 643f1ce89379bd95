"""``LOX_AUDIT=1``: audits each function that a program compiles, and prints what it found when the program ends."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path


def begin() -> None:
    """Audits what is jitted from now on, as long as the process runs."""
    from lox._audit._formats._concise import concise
    from lox._audit._recorder import Recorder, not_audited
    from lox._audit._settings import read_settings
    from lox._exceptions import LogValueError

    try:
        settings = read_settings(Path.cwd())
    except (LogValueError, OSError) as error:  # Of settings of a project, a program does not fail.
        _say(f"LOX_AUDIT: nothing is audited: {error}")
        return
    recorder = Recorder().__enter__()
    process = os.getpid()

    def tell() -> None:
        if os.getpid() != process:  # A fork has what its parent compiled.
            return
        reports = settings.of(recorder.reports())
        if reports:
            _say(concise(reports))
        for line in not_audited(recorder.left_out):
            _say(line)

    atexit.register(tell)


def _say(text: str) -> None:
    if sys.stderr is not None:  # A daemon may have closed it.
        print(text, file=sys.stderr)
