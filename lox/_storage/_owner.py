"""The process that writes a run."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lox._exceptions import StorageError
from lox._storage._put import put

OWNER = "owner.json"

_claims: set[str] = set()
"""The claims of this process. One that is gone may have had its number."""


class Claim:
    """Says that this process writes a run; a claim of a process that is gone does not count.

    Args:
        path: The directory of the run.
        warn: Takes a message when a claim of a process on another machine is taken over. Without it, such a claim
            counts.

    Raises:
        StorageError: Another process writes the run, or another logger of this one.
    """

    def __init__(self, path: Path, warn: Callable[[str], None] | None = None):
        self._file, self._process = path / OWNER, os.getpid()
        self._name = str(self._file)  # The system is asked for it at every event.
        self._says: dict[str, Any] = {
            "process": self._process,
            "started": _started(self._process),
            "boot": _boot(),
            "host": socket.gethostname(),
            "id": uuid.uuid4().hex,
        }
        new = path / f"{OWNER}.{self._says['id']}"
        new.write_text(json.dumps(self._says))
        try:
            for _ in range(2):
                if put(new, self._file):
                    _claims.add(self._says["id"])
                    self._is = _identity(os.stat(self._file))
                    return
                other = _owner(path)
                if other is not None and _lives(other, path, warn):
                    by = f"process {other['process']} on {other['host']}"
                    if (other["process"], other["host"]) == (self._process, self._says["host"]):
                        by += ", which is this one"
                    raise StorageError(
                        f"{path} is written by {by}. Close that logger, or write to another path. "
                        f"If it is gone, delete {self._file}."
                    )
                self._file.unlink(missing_ok=True)
        finally:
            new.unlink(missing_ok=True)
        raise StorageError(f"{path} was claimed by another process just now.")

    def check(self) -> None:
        """Checks that the run is this process's to write.

        Raises:
            StorageError: It is not, since the directory is gone or another one, another process has taken over the
                run, or this is a copy of the process that claimed it.
        """
        try:
            if os.getpid() == self._process and _identity(os.stat(self._name)) == self._is:
                return
        except FileNotFoundError:
            raise StorageError(
                f"{self._file} is gone: {self._file.parent} was removed, or moved, while a logger writes it."
            ) from None
        if os.getpid() != self._process:
            raise StorageError(
                f"{self._file.parent} is written by process {self._process}, of which this one is a fork. Make a "
                "logger, or a run by another key or name, in each process."
            )
        raise StorageError(f"{self._file.parent} is written by another process now, which continues the experiment.")

    def release(self) -> None:
        """Gives up the claim, if it is still there."""
        if _owner(self._file.parent) == self._says and os.getpid() == self._process:
            self._file.unlink(missing_ok=True)


def is_written(path: Path) -> bool:
    """Say whether another process of this machine writes a run."""
    owner = _owner(path)
    return owner is not None and owner["process"] != os.getpid() and _lives(owner, path, lambda _: None)


def _owner(path: Path) -> dict[str, Any] | None:
    """The claim in a directory; None where there is none, or no whole one."""
    for _ in range(10):
        try:
            text = (path / OWNER).read_text()
        except (OSError, ValueError):
            return None
        if text:
            break
        time.sleep(0.01)  # Somebody writes it.
    try:
        found = json.loads(text)
        is_whole = type(found.get("process")) is int and found["process"] > 0 and isinstance(found.get("host"), str)
        return found if is_whole else None
    except (AttributeError, ValueError, RecursionError):
        return None


def _identity(found: os.stat_result) -> Any:
    """Identify a file among those of its name. Numbers of files are used again, but not at the same time."""
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _started(process: int) -> str | None:
    """Return the start time of a process of this machine, in a unit of its own, if the system has it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _boot() -> str | None:
    """Identify this start of the machine, where the system says so."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _lives(owner: dict[str, Any], path: Path, warn: Callable[[str], None] | None) -> bool:
    process = owner["process"]
    if owner["host"] != socket.gethostname():  # Nobody here can tell.
        if warn is not None:
            by = f"process {process} on {owner['host']}"
            warn(f"{path} was written by {by}, and is continued here. If that still runs, its logs are refused now.")
        return warn is None
    if process == os.getpid():
        return owner.get("id") in _claims
    if owner.get("boot") not in (None, _boot()):
        return False
    if owner.get("started") not in (None, _started(process)):
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
