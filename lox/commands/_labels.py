"""Labels of runs: what tells each run from the others in a directory."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lox._exceptions import StorageError
from lox._storage import read_manifest
from lox.commands._output import on_terminal
from lox.loggers._identity import DIGITS, LONGEST, scalars_of, seed_of


def shown(folders: Mapping[str, Path]) -> dict[str, str]:
    """The text that stands for each run: its label on a terminal, its name elsewhere, where programs need the path."""
    return labels(folders) if on_terminal() else {name: name for name in folders}


def labels(folders: Mapping[str, Path]) -> dict[str, str]:
    """Labels of runs: the experiment, the scalars of the config and the seed, each only where it differs between them.

    Two runs have two labels. Those that would be equal get digits of the identity, or are the whole name. A run that
    a user named keeps its name, and so does one that is alone or whose manifest cannot be read.

    Args:
        folders: The directories of the runs, by name: the path from the directory that they are in.
    """
    if len(folders) < 2:
        return {name: name for name in folders}
    choices = _choices(folders)
    found = {name: next(texts) for name, texts in choices.items()}
    while equal := {label for label, count in Counter(found.values()).items() if count > 1}:
        found |= {name: next(choices[name], name) for name, label in found.items() if label in equal}
    return found


@dataclasses.dataclass(frozen=True)
class _Made:
    """A run that a logger named.

    Attributes:
        seed: The seed, as in its name.
        digits: The end of its name, from the digits of the identity on.
        config: The scalars of its config, by name.
    """

    seed: str
    digits: str
    config: dict[str, Any]

    @classmethod
    def of(cls, name: str, folder: Path) -> _Made | None:
        """The run in a directory; None when a user named it or its manifest cannot be read."""
        try:
            manifest = read_manifest(folder)
        except (StorageError, OSError):
            return None
        words, identity = manifest.get("key"), manifest.get("run")
        if not isinstance(words, list) or not words or not all(isinstance(word, int) for word in words):
            return None
        seed, digits = seed_of(words), str(identity)[:DIGITS]
        _, is_made, rest = name.rpartition(f"{seed}-{digits}")
        config = {each: "None" if value is None else value for each, value in manifest["config"].items()}
        scalars = {each: value for each, value in config.items() if isinstance(value, (str, int, float))}
        return cls(seed, digits + rest, scalars) if is_made else None


def _choices(folders: Mapping[str, Path]) -> dict[str, Iterator[str]]:
    """The labels that each run may have, the shortest first, without those that others have."""
    made = {name: run for name, folder in folders.items() if (run := _Made.of(name, folder)) is not None}
    names = dict.fromkeys(each for run in made.values() for each in run.config)
    differing = [
        each
        for each in names
        if _differ(repr(run.config.get(each)) for run in made.values())  # It is faster than the text.
        and _differ(_text(run.config, [each]) for run in made.values())
    ]
    seeds_differ = _differ(run.seed for run in made.values())
    all_alike = len(made) == len(folders) and not differing and not seeds_differ
    experiments_differ = _differ(name.rpartition("/")[0] for name in folders)

    def choices(name: str) -> Iterator[str]:
        experiment, _, last = name.rpartition("/")
        within = f"{experiment}/" if experiments_differ and experiment else ""
        run = made.get(name)
        if run is None:
            yield within + last
        else:
            parts = [_text(run.config, differing), run.seed if seeds_differ else ""]
            own = ",".join(filter(None, parts)) or run.seed
            yield within.removesuffix("/") if all_alike and within else within + own
            yield f"{within}{own}-{run.digits}"
        yield name

    return {name: choices(name) for name in folders}


def _text(config: Mapping[str, Any], names: list[str]) -> str:
    return ",".join(scalars_of({each: config[each] for each in names if each in config}, LONGEST))


def _differ(texts: Iterator[str]) -> bool:
    return len({*texts}) > 1
