"""What a run says of itself."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lox._exceptions import StorageError
from lox._storage._origin import origin

MANIFEST = "manifest.json"
ASIDE = "aside-"
"""The prefix of the directories in a run that hold the events which were taken back."""
FORMAT = 1


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        StorageError: There is none, or it is damaged, or of a later format.
    """
    file = path / MANIFEST
    try:
        manifest = json.loads(file.read_text())
    except FileNotFoundError:
        raise StorageError(f"{path} is no run of lox: it has no {MANIFEST}.") from None
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{file} is damaged: {error}. The columns beside it are arrays of NumPy.") from error
    if not isinstance(manifest, dict) or not all(
        isinstance(manifest.get(part), dict) for part in ("columns", "config")
    ):
        raise StorageError(f"{file} is no manifest of lox.")
    if manifest.get("format", 0) > FORMAT:
        raise StorageError(f"{file} is of format {manifest['format']}, and this lox reads up to {FORMAT}.")
    return manifest


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Replaces the manifest of a run. Readers see the old one or the new one."""
    new = path / f"{MANIFEST}.{uuid.uuid4().hex}"
    try:
        new.write_text(to_json(manifest))
        os.replace(new, path / MANIFEST)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def to_json(value: Any) -> str:
    """Numbers, text, lists and mappings as JSON, and all else as its text."""
    return json.dumps(value, indent=1, default=str)


def new_manifest(key: Sequence[int], about: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a run that begins now.

    Args:
        key: The words of its PRNG key.
        about: What else to say of it, by name.
    """
    of_run = {"key": list(key), **about, "config": {}}
    return {"format": FORMAT, **origin(), "versions": _versions(), **of_run, "columns": {}, "dropped": {}}


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name, package in (("lox", "jax-lox"), ("jax", "jax"), ("numpy", "numpy")):
        try:
            versions[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # It runs from a checkout.
            versions[name] = "unknown"
    return versions
