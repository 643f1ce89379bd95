"""Names and patterns of names, such as ``"loss"``, ``"train/*"`` and ``"**/norm"``.

In a pattern, `*` stands for any characters but slashes, and `**` for any characters. `**/` at the start of a part also
stands for nothing: ``"**/norm"`` matches ``"norm"``. All other characters stand for themselves.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable

_WILDCARD = re.compile(r"(?:(?<=/)|^)\*\*/|\*+")


def translated(pattern: str) -> str:
    """The regular expression of a pattern."""
    parts, start = [], 0
    for found in _WILDCARD.finditer(pattern):
        wildcard = "[^/]*" if found[0] == "*" else "(?:.*/)?" if found[0] == "**/" else ".*"
        parts += [re.escape(pattern[start : found.start()]), wildcard]
        start = found.end()
    return "".join([*parts, re.escape(pattern[start:])])


@functools.lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(translated(pattern), re.DOTALL)


def is_pattern(name: str) -> bool:
    """Say whether a name has wildcards."""
    return "*" in name


def matches(pattern: str, name: str) -> bool:
    """Say whether a name, or a pattern, stands for this name.

    >>> [matches("train/*", name) for name in ("train/loss", "train/grad/norm", "loss")]
    [True, False, False]
    >>> [matches("**/norm", name) for name in ("norm", "train/grad/norm", "train/norm/max")]
    [True, True, False]
    """
    return pattern == name or (is_pattern(pattern) and _expression(pattern).fullmatch(name) is not None)


def first_match(patterns: Collection[str], name: str) -> str | None:
    """Return the name itself where it is among the patterns, else the first that matches it, else None."""
    return name if name in patterns else next((each for each in patterns if matches(each, name)), None)


@dataclasses.dataclass(frozen=True)
class Patterns:
    """A set of names, some of which are given by patterns."""

    names: frozenset[str]

    def __contains__(self, name: str) -> bool:
        return name in self.names or any(matches(pattern, name) for pattern in self.names)

    def isdisjoint(self, names: Iterable[str]) -> bool:
        """Say whether none of these names is in the set."""
        return not any(name in self for name in names)


Names = frozenset[str] | Patterns


def names_of(patterns: Iterable[str]) -> Names:
    """Return a set with the names that match, which is a `frozenset` where no pattern has wildcards."""
    patterns = frozenset(patterns)
    return Patterns(patterns) if any(map(is_pattern, patterns)) else patterns


def in_order(names: Names | None) -> tuple[str, ...]:
    """Return the names and patterns of a set, sorted; none for None."""
    return tuple(sorted(names.names if isinstance(names, Patterns) else names or ()))
