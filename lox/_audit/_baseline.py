"""What was known of a program before: findings that are not new, and the shapes that its boundaries had."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lox._audit._findings import Finding
from lox._audit._formats._concise import in_order
from lox._audit._location import Location
from lox._audit._own_kinds import CHANGED
from lox._audit._report import Report
from lox._audit._stack import crossings
from lox._exceptions import LogValueError

VERSION = 1


class _Known(NamedTuple):
    """What identifies a finding, wherever its line is now."""

    code: str
    function: str
    source: str


class _Boundary(NamedTuple):
    """A place where a value goes into or comes out of a loop, a branch or a call."""

    audited: str
    function: str
    source: str
    kind: str
    role: str


def write_baseline(path: Path, reports: Sequence[Report]) -> None:
    """Writes what reports found, and the shapes at their boundaries."""
    findings = [[*known, count] for known, count in sorted(_findings(reports).items())]
    boundaries = [
        [*boundary, [type_ for type_, _ in found]]
        for boundary, found in sorted(_boundaries(reports).items(), key=lambda each: each[0])
    ]
    text = json.dumps({"version": VERSION, "findings": findings, "boundaries": boundaries}, indent=1)
    path.write_text(f"{text}\n", encoding="utf-8")


class Baseline:
    """The content of a file that `write_baseline` wrote.

    Raises:
        LogValueError: The file is none.
    """

    def __init__(self, path: Path) -> None:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise ValueError(f"its version is {content['version']!r}")
            self._findings = Counter({_Known(*known): int(count) for *known, count in content["findings"]})
            self._boundaries = {_Boundary(*place): tuple(types) for *place, types in content["boundaries"]}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise LogValueError(f"{path} is no baseline of lox audit: {error}") from error

    def new(self, reports: Sequence[Report]) -> list[Report]:
        """Reports with what the baseline has not: further findings, and boundaries of other shapes as findings."""
        left = Counter(self._findings)
        new = set()
        for finding in in_order(reports):  # What several audits find is one finding.
            left[_known(finding)] -= 1
            if left[_known(finding)] < 0:
                new.add(finding.identity)
        return [
            report.where(lambda finding: finding.identity in new).and_also(self._changed(report)) for report in reports
        ]

    def _changed(self, report: Report) -> Iterator[Finding]:
        for place, found in _boundaries([report]).items():
            before = self._boundaries.get(place)
            if before is None:
                continue
            if len(before) != len(found):
                yield CHANGED.at(found[-1][1], f"{place.kind} has more or fewer values as {place.role} than before.")
                continue
            differ = [(old, new, where) for old, (new, where) in zip(before, found, strict=True) if old != new]
            if differ:
                (old, new, where), more = differ[0], len(differ) - 1
                also = f", and {more} more changed" if more else ""
                yield CHANGED.at(
                    where,
                    f"{place.role} of {place.kind} was {old}, and is {new}{also}.",
                    found=new,
                    expected=old,
                )


def _findings(reports: Sequence[Report]) -> Counter[_Known]:
    return Counter(map(_known, in_order(reports)))


def _known(finding: Finding) -> _Known:
    return _Known(finding.code, finding.function, finding.source)


def _boundaries(reports: Sequence[Report]) -> dict[_Boundary, list[tuple[str, Location]]]:
    """The types outside the values that cross each boundary, without ranges, in order, each with its line."""
    found: dict[_Boundary, list[tuple[str, Location]]] = {}
    for report in reports:
        for crossing in crossings(report.program):
            user, kind = crossing.location.of_user, crossing.kind.partition("[")[0]
            place = _Boundary(report.name, user.function, user.code, kind, crossing.role)
            found.setdefault(place, []).append((crossing.outside.partition(" in ")[0], crossing.location))
    return found
