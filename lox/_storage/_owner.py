"""Which process writes a run."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lox._exceptions import StorageError

OWNER = "owner.json"


def claim(path: Path) -> dict[str, Any]:
    """Claims a run for this process; a claim of a process that is gone does not count.

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
                if other is not None and _lives(other):
                    by = f"process {other['process']} on {other['host']}"
                    if (other["process"], other["host"]) == (mine["process"], mine["host"]):
                        by += ", which is this one"
                    raise StorageError(
                        f"{path} is written by {by}. Close that logger, or give this run another key, config or path. "
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


def _lives(owner: Mapping[str, Any]) -> bool:
    if owner.get("host") != socket.gethostname():
        return True  # Nobody here can tell.
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
