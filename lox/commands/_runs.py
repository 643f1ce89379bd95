"""The runs that a command is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from lox._exceptions import StorageError
from lox._logdict import logdict
from lox._patterns import matches
from lox._storage import read_run, runs
from lox.commands._output import Failure, complain


class Runs:
    """The runs in a directory that can be read.

    Args:
        path: The directory of a run, or one with runs in it.

    Attributes:
        failed: Whether one could not be read, or something else was not done that was asked for.

    Raises:
        Failure: There are none.
    """

    def __init__(self, path: Path):
        self.folders = runs(path)
        self.failed = False
        if not self.folders:
            raise Failure(f"{path} has no run of lox in it")

    def __iter__(self) -> Iterator[tuple[str, logdict]]:
        for name, folder in self.folders.items():
            try:
                logs = read_run(folder)
            except (StorageError, OSError) as error:
                self.fail(str(error))
                continue
            yield name, logs

    def fail(self, message: str) -> None:
        """Says what was not done. The command goes on."""
        self.failed = True
        complain(message)

    @property
    def exit_code(self) -> int:
        """The exit code of a command that has done what it could."""
        return 1 if self.failed else 0


class Selection:
    """The keys that a command is asked for: names, or patterns such as ``"train/*"``; all when there are none."""

    def __init__(self, patterns: Sequence[str]):
        self._missing = dict.fromkeys(patterns)
        self._patterns = patterns

    def of(self, logs: logdict) -> list[str]:
        """The keys of logs that were asked for, in the order in which they were, then in that of the logs."""
        if not self._patterns:
            return list(logs)
        found = {}
        for pattern in self._patterns:
            keys = [pattern] if pattern in logs else [key for key in logs if matches(pattern, key)]
            found.update(dict.fromkeys(keys))
            if keys:
                self._missing.pop(pattern, None)
        return list(found)

    def report(self, all_runs: Runs) -> None:
        """Says which were in no run."""
        for pattern in self._missing:
            all_runs.fail(f"no run has the key {pattern!r}")
