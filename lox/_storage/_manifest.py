"""The manifest, in which a run describes itself."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lox._exceptions import StorageError
from lox._storage._column import sync
from lox._storage._origin import origin

MANIFEST = "manifest.json"
ASIDE = "aside-"
"""The prefix of the directories in a run that hold the events which were taken back."""
FORMAT = 2


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        StorageError: There is none, or it is damaged, or of another format.
    """
    file = path / MANIFEST
    try:
        manifest = json.loads(_text(path))
    except FileNotFoundError:
        raise StorageError(f"{path} is no run of lox: it has no {MANIFEST}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"{file} is damaged: {error}. The columns beside it are arrays of NumPy.") from error
    if not _is_of_lox(manifest):
        raise StorageError(f"{file} is no manifest of lox.")
    if manifest["format"] != FORMAT:
        raise StorageError(f"{file} is of format {manifest['format']!r}, and this lox reads {FORMAT}.")
    if not isinstance(manifest.get("tables"), list) or not isinstance(manifest.get("config"), dict):
        raise StorageError(f"{file} is damaged: it has no list of tables, or no config.")
    if manifest.get("digest") != digest(manifest["tables"]):
        raise StorageError(f"{file} is damaged: its tables are others than were written.")
    return manifest


def is_run(path: Path) -> bool:
    """Say whether a directory has the manifest of a run, which may be damaged, and not that of something else."""
    try:
        return _is_of_lox(json.loads(_text(path))) or any(path.glob("table-*"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, RecursionError):
        return True


def was_cut_off(path: Path) -> bool:
    """Say whether a power failure cut off the manifest of a run. No byte of a whole one is 0."""
    try:
        text = _text(path)
    except OSError:
        return False
    return not text or b"\0" in text


def write_manifest(path: Path, manifest: Mapping[str, Any], durable: bool = False) -> None:
    """Replaces the manifest of a run. Readers see the old one or the new one.

    Args:
        path: The directory of the run.
        manifest: The manifest.
        durable: Whether it is on the disk afterwards, and the names of the files beside it.
    """
    new = path / f"{MANIFEST}.{uuid.uuid4().hex}"
    try:
        with open(new, "w") as file:
            file.write(to_json({**manifest, "digest": digest(manifest["tables"])}))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(new, path / MANIFEST)
        if durable:
            sync(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def digest(tables: Any) -> str:
    """Return a hash that tells tables from others."""
    return hashlib.sha256(json.dumps(tables).encode()).hexdigest()[:16]


def to_json(value: Any) -> str:
    """Numbers, text, lists and mappings as JSON, and all else as its text."""
    return json.dumps(value, indent=1, default=str)


def new_manifest(key: Sequence[int], about: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a run that begins now.

    Args:
        key: The words of its PRNG key.
        about: Further entries, by name.
    """
    return {
        "format": FORMAT,
        **origin(),
        "versions": versions(),
        "key": list(key),
        **about,
        "config": {},
        "tables": [],
    }


def _text(path: Path) -> bytes:
    """The manifest of a run as it is in its file. Objects of paths cost more than to read it."""
    with open(os.path.join(path, MANIFEST), "rb", buffering=0) as file:
        return file.read()


def _is_of_lox(manifest: Any) -> bool:
    return isinstance(manifest, dict) and {"format", "versions", "config"} <= manifest.keys()


def versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name, package in (("lox", "jax-lox"), ("jax", "jax"), ("numpy", "numpy")):
        try:
            versions[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # It runs from a checkout.
            versions[name] = "unknown"
    return versions
