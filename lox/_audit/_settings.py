"""What a project wants of its audits: the table ``[tool.lox.audit]`` of its pyproject.toml."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from lox._audit._checks import KNOWN
from lox._audit._content import Content
from lox._audit._findings import SEVERITIES
from lox._exceptions import LogValueError

Reported = TypeVar("Reported", bound=Content)

FORMATS = ("concise", "full", "json", "sarif", "github", "markdown", "mermaid")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is reported, and how.

    Attributes:
        select: The codes that are reported, or beginnings of codes, such as "LOX7"; empty for all.
        ignore: The codes that are not, likewise.
        fail_on: The severity from which on a finding makes the exit code 1.
        format: How reports are written.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = "error"
    format: str = "concise"

    def of(self, reports: Iterable[Reported]) -> list[Reported]:
        """Reports with the findings that are asked for."""
        select, ignore = expand(self.select), expand(self.ignore)
        return [report.only(select, ignore) for report in reports]


def expand(codes: Iterable[str]) -> frozenset[str]:
    """The codes that are meant by codes and beginnings of codes.

    Raises:
        LogValueError: One of them is neither.
    """
    found: set[str] = set()
    for each in codes:
        meant = {code for code in KNOWN if code.startswith(each)} if each.startswith("LOX") else set()
        if not meant:
            raise LogValueError(f"lox.audit knows no {each}; `lox explain` lists all codes.")
        found |= meant
    return frozenset(found)


def read_settings(folder: Path) -> Settings:
    """The settings of the project that a folder is in: of the nearest pyproject.toml that has any.

    Raises:
        LogValueError: They have a name or a value that lox does not know, or the file is no TOML.
    """
    for parent in (folder, *folder.parents):
        file = parent / "pyproject.toml"
        if not file.is_file():
            continue
        try:
            table: Any = tomllib.loads(file.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise LogValueError(f"{file} cannot be read: {error}") from error
        for name in ("tool", "lox", "audit"):
            table = table.get(name) if isinstance(table, Mapping) else table
        if table is not None:
            return _settings(table, f"[tool.lox.audit] of {file}")
    return Settings()


def _settings(table: Any, where: str) -> Settings:
    if not isinstance(table, Mapping):
        raise LogValueError(f"{where} is no table.")
    known = {each.name.replace("_", "-"): each.name for each in dataclasses.fields(Settings)}
    given: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            raise LogValueError(f"{where} has {name!r}, but the names are {', '.join(known)}.")
        if name in ("select", "ignore"):
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise LogValueError(f"{where}: {name} takes a list of codes, got {value!r}.")
            expand(value)
            given[known[name]] = tuple(value)
        else:
            allowed = SEVERITIES if name == "fail-on" else FORMATS
            if value not in allowed:
                raise LogValueError(f"{where}: {name} is one of {', '.join(map(repr, allowed))}, got {value!r}.")
            given[known[name]] = value
    return Settings(**given)
