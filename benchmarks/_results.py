"""The figures that are stored: a file for each machine, with the tables of each benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def file_of(machine: Mapping[str, str]) -> Path:
    """The file of the folder for a machine."""
    return FOLDER / f"{machine['device'].lower().replace(' ', '-')}.json"


def store(path: Path, machine: Mapping[str, str], tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Adds tables to a file, in the place of those of the same benchmarks that are there of the same machine."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    if {name: stored.get(name) for name in machine} != machine:
        stored = {}
    benchmarks = stored.get("benchmarks", {}) | tables
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**machine, "benchmarks": benchmarks}, indent=1) + "\n")


def stored() -> Iterator[tuple[str, dict[str, Any]]]:
    """The machines of the folder: the name of the file, and what it holds."""
    for path in sorted(FOLDER.glob("*.json")):
        yield path.stem, json.loads(path.read_text())
