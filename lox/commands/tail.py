"""``lox tail``: logs as they are written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from lox._exceptions import StorageError
from lox._storage import read_run, runs
from lox._text import number
from lox.commands._labels import shown
from lox.commands._output import Stream, complain
from lox.commands._series import Series

Row = tuple[str, str, str, str]


def tail(path: Path, events: int, interval: float) -> int:
    """Prints the last events of each key, and then every event that comes, until it is interrupted."""
    stream, follower = Stream(), Follower(path)
    stream.write(follower.new(events))
    while True:
        time.sleep(interval)
        stream.write(follower.new())


class Follower:
    """Reads again and again what is new in a directory of runs."""

    def __init__(self, path: Path):
        self._path = path
        self._seen: dict[tuple[str, str], int] = {}
        self._labels: dict[str, str] = {}
        self._complaints: set[str] = set()

    def new(self, latest: int | None = None) -> Iterator[Row]:
        """The events since the last time, or only the latest of each key."""
        folders = runs(self._path)
        if folders.keys() != self._labels.keys():  # What differs between them may be something else now.
            self._labels = shown(folders)
        for name, folder in folders.items():
            try:
                logs = read_run(folder)
            except (StorageError, OSError) as error:  # It may be well again the next time.
                if str(error) not in self._complaints:
                    self._complaints.add(str(error))
                    complain(str(error))
                continue
            found: list[tuple[bool, float, Row]] = []
            for key in logs:
                count, seen = len(logs[key]), self._seen.get((name, key), 0)
                self._seen[name, key] = count
                if count == seen:
                    continue
                start = 0 if count < seen else seen  # The run was made anew.
                series = Series.of(logs, key, start if latest is None else max(start, count - latest))
                for place, step in enumerate(series.steps):
                    value = "-" if series.values is None else number(series.values[place])
                    row = self._labels[name], key, f"{series.counter} {number(step)}", value
                    found.append((series.counter == "event", float(step), row))
            for *_, row in sorted(found, key=lambda each: each[:2]):
                yield row
