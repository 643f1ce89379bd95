"""``LOX_AUDIT=1``: audits each function that a program compiles, and prints what it found when the program ends."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path


def begin() -> None:
    """Audits what is jitted from now on, as long as the process runs."""
    from lox._audit._formats._concise import concise
    from lox._audit._recorder import Recorder
    from lox._audit._settings import read_settings

    settings = read_settings(Path.cwd())
    recorder = Recorder().__enter__()
    process = os.getpid()

    def tell() -> None:
        if os.getpid() != process:  # A fork has what its parent compiled.
            return
        reports = settings.of(recorder.reports())
        if reports:
            print(concise(reports), file=sys.stderr)

    atexit.register(tell)
