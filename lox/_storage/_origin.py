"""The origin of a run: its time, command and commit."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def origin() -> dict[str, Any]:
    """The time, the command line, and, where the program is in a git repository, the commit."""
    commit = commit_of(_folder())
    found = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "command": [*sys.argv]}
    return found if commit is None else {**found, "commit": commit}


def _folder() -> str:
    """The directory of the program that runs; of an interactive one, the current directory."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.getcwd() if script is None else str(Path(script).resolve().parent)


@functools.lru_cache
def commit_of(folder: str) -> str | None:
    """The commit that is checked out where a directory is, if git can tell."""
    command = ["git", "-C", folder, "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
