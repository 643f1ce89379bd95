"""Kinds of arguments of command lines."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path


def whole(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def positive(text: str) -> float:
    """A number of more than 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of more than 0, got {text!r}")
    return value


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """A file that can be written, of a name that ends in one of these, or in anything.

    That it cannot is found out here rather than after the work that the file is for.
    """

    def parse(text: str) -> Path:
        path = Path(text)
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text} is a folder")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
        if suffixes and path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"must end in {' or '.join(suffixes)}, got {text!r}")
        return path

    return parse


def function(text: str) -> str:
    """The place of a function, as in ``package.module:name``."""
    module, _, name = text.partition(":")
    if not all(part.isidentifier() for path in (module, name) for part in path.split(".")):
        raise argparse.ArgumentTypeError(f"must be as in package.module:name, got {text!r}")
    return text


def audited(text: str) -> str:
    """The place of a function that is audited; what looks like a script is told how to run it."""
    if text.endswith(".py"):
        raise argparse.ArgumentTypeError(
            f"a script goes after --run: lox audit --run {text}; a function is as in package.module:name"
        )
    if text.isidentifier():
        raise argparse.ArgumentTypeError(
            f"must be as in package.module:name, got {text!r}; a script is run by --run FILE, a module by --run -m NAME"
        )
    return function(text)


def axes(text: str) -> tuple[str, tuple[str | None, ...]]:
    """Parse the names of the axes of an array, as in ``obs=time,batch,_``, where the last one has no name."""
    name, equals, labels = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be as in obs=time,batch,_, got {text!r}")
    return name, tuple(None if label in ("", "_") else label for label in labels.split(",")) if labels else ()


def codes(text: str) -> list[str]:
    """Codes of the auditor, or beginnings of codes, separated by commas."""
    return [each.strip().upper() for each in text.split(",") if each.strip()]
