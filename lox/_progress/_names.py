"""The labels and totals of bars, by patterns of the paths of their loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from lox._arguments import describe
from lox._exceptions import LogDataError, LogValueError
from lox._watch._points import matches_path

T = TypeVar("T")
OfLoops = tuple[tuple[str | None, T], ...]
"""Values by patterns of paths of loops; None stands for all loops."""


@dataclasses.dataclass(frozen=True)
class Names:
    """The options of `lox.progress` for each loop.

    Attributes:
        totals: The numbers of their iterations.
        labels: The text before their bars.
    """

    totals: OfLoops[int]
    labels: OfLoops[str]

    @classmethod
    def of(cls, total: Any, label: Any) -> Names:
        """Read `total=` and `label=` of `lox.progress`.

        Raises:
            LogDataError: One is of the wrong type. A `TypeError`.
            LogValueError: A total is not positive. A `ValueError`.
        """
        totals, labels = _of_loops(total), _of_loops(label)
        for pattern, each in (*totals, *labels):
            if not isinstance(pattern, str | None):
                raise LogDataError(f"lox.progress takes patterns of paths of loops, got {describe(pattern)}.")
            del each
        for _, count in totals:
            if isinstance(count, bool) or not hasattr(count, "__index__"):
                raise LogDataError(f"total= of lox.progress must be a number of iterations, got {describe(count)}.")
            if count.__index__() < 1:
                raise LogValueError(f"total= of lox.progress must be positive, got {count}.")
        for _, text in labels:
            if not isinstance(text, str):
                raise LogDataError(f"label= of lox.progress must be a string, got {describe(text)}.")
        return cls(tuple((pattern, count.__index__()) for pattern, count in totals), labels)

    def nested(self) -> tuple[str, ...]:
        """The patterns that select nested loops as well."""
        return tuple(pattern for pattern, _ in self.labels if pattern is not None)

    def patterns(self) -> Iterator[tuple[str, str]]:
        """The keywords of `lox.progress` with each of their patterns."""
        for keyword, given in (("total", self.totals), ("label", self.labels)):
            for pattern, _ in given:
                if pattern is not None:
                    yield keyword, pattern

    def total(self, path: str) -> int | None:
        """The number of iterations of a loop, if it is given."""
        return _first(self.totals, path)

    def label(self, path: str) -> str:
        """The text before the bar of a loop."""
        return _first(self.labels, path) or path


def _of_loops(given: Any) -> OfLoops[Any]:
    if given is None:
        return ()
    return tuple(given.items()) if isinstance(given, Mapping) else ((None, given),)


def _first(given: OfLoops[T], path: str) -> T | None:
    return next((value for pattern, value in given if pattern is None or matches_path(pattern, path)), None)
