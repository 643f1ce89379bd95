"""Which process writes a run."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lox._exceptions import StorageError

OWNER = "owner.json"

_claims: set[str] = set()
"""The claims of this process. One that is gone may have had its number."""


def claim(path: Path, warn: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Claims a run for this process; a claim of a process that is gone does not count.

    Args:
        path: The directory of the run.
        warn: Takes what to say where a claim of a process on another machine is taken over. Without it, such a claim
            counts.

    Raises:
        StorageError: Another process writes the run, or another logger of this one.
    """
    process = os.getpid()
    mine: dict[str, Any] = {
        "process": process,
        "started": _started(process),
        "host": socket.gethostname(),
        "id": uuid.uuid4().hex,
    }
    new = path / f"{OWNER}.{mine['id']}"
    new.write_text(json.dumps(mine))
    try:
        for _ in range(2):
            try:
                os.link(new, path / OWNER)  # Unlike a rename, it fails when there is one.
                _claims.add(mine["id"])
                return mine
            except FileExistsError:
                other = _owner(path)
                if other is not None and _lives(other, path, warn):
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


def is_written(path: Path) -> bool:
    """Say whether another process of this machine writes a run."""
    owner = _owner(path)
    return owner is not None and owner.get("process") != os.getpid() and _lives(owner, path, lambda _: None)


def holds(path: Path, mine: dict[str, Any]) -> bool:
    """Say whether a claim still counts, since no other process has taken over the run."""
    return _owner(path) in (mine, None)


def _started(process: int) -> str | None:
    """When a process of this machine started, in a unit of its own, where the system says so."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _lives(owner: Mapping[str, Any], path: Path, warn: Callable[[str], None] | None) -> bool:
    if owner.get("host") != socket.gethostname():  # Nobody here can tell.
        if warn is not None:
            by = f"process {owner.get('process')} on {owner.get('host')}"
            warn(f"{path} was written by {by}, and is continued here. If that still runs, its logs are refused now.")
        return warn is None
    if owner.get("process") == os.getpid():
        return owner.get("id") in _claims
    if owner.get("started") is not None and owner["started"] != _started(int(owner["process"])):
        return False
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
