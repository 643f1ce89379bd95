"""Which process writes a run."""

from __future__ import annotations

import json
import os
import socket
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lox._exceptions import LoggerWarning, StorageError

OWNER = "owner.json"


def claim(path: Path, takes_over: bool = False) -> dict[str, Any]:
    """Claims a run for this process; a claim of a process that is gone does not count.

    Args:
        path: The directory of the run.
        takes_over: Whether the claim of a process on another machine does not count either, with a warning.

    Raises:
        StorageError: Another process writes the run, or another logger of this one.
    """
    mine = {"process": os.getpid(), "host": socket.gethostname(), "id": uuid.uuid4().hex}
    new = path / f"{OWNER}.{mine['id']}"
    new.write_text(json.dumps(mine))
    try:
        for _ in range(2):
            try:
                os.link(new, path / OWNER)  # Unlike a rename, it fails when there is one.
                return mine
            except FileExistsError:
                other = _owner(path)
                if other is not None and _lives(other, path, takes_over):
                    by = f"process {other['process']} on {other['host']}"
                    if (other["process"], other["host"]) == (mine["process"], mine["host"]):
                        by += ", which is this one"
                    raise StorageError(
                        f"{path} is written by {by}. Close that logger, or write to another path. "
                        f"If it is gone, delete {path / OWNER}."
                    ) from None
                (path / OWNER).unlink(missing_ok=True)
    finally:
        new.unlink(missing_ok=True)
    raise StorageError(f"{path} was claimed by another process just now.")


def release(path: Path, mine: dict[str, Any]) -> None:
    """Gives up a claim, if it is still there."""
    if _owner(path) == mine:
        (path / OWNER).unlink(missing_ok=True)


def _owner(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / OWNER).read_text())
    except (OSError, ValueError):
        return None


def holds(path: Path, mine: dict[str, Any]) -> bool:
    """Whether a claim was not taken over."""
    return _owner(path) in (mine, None)


def _lives(owner: Mapping[str, Any], path: Path, takes_over: bool) -> bool:
    if owner.get("host") != socket.gethostname():  # Nobody here can tell.
        if takes_over:
            by = f"process {owner.get('process')} on {owner.get('host')}"
            warnings.warn(
                f"{path} was written by {by}, and is continued here. If that process still runs, its logs are refused "
                "from now on.",
                LoggerWarning,
                stacklevel=2,
            )
        return not takes_over
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
