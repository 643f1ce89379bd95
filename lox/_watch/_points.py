"""Points of a program, their paths, and patterns of paths."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from lox._arguments import describe, names
from lox._exceptions import LogDataError
from lox._patterns import translated

Kind = Literal["scan", "while", "cond", "call", "scope", "primitive"]
"""The kinds of points."""

LOOPS = ("scan", "while")
"""The kinds of points that are loops."""

Numbers = tuple[tuple[str, int], ...]
"""By name, how many parts of that name come before in the same parent."""


class Part(NamedTuple):
    """A part of a path.

    Attributes:
        name: Its name.
        number: Its number among those of the same name in the same parent.
        of: "scope" for a name scope, "scope of pass" for one that a backward function of the program opens, "call" for
            a loop, a branch or a jitted function, "rule" for a rule that runs in place of a function, "pass" for a
            backward pass, "" for another.
        home: Of a name scope, a loop, a branch or a jitted function: identifies the traced function that runs it; 0
            where none is traced.
    """

    name: str
    number: int
    of: Literal["", "scope", "scope of pass", "call", "rule", "pass"] = ""
    home: int = 0

    @property
    def is_scope(self) -> bool:
        """True if it is a name scope."""
        return self.of in ("scope", "scope of pass")

    @property
    def is_pass(self) -> bool:
        """True if it is a backward pass."""
        return self.of == "pass"

    @property
    def is_in_stack(self) -> bool:
        """True if it is in name stacks, so that it has the number of the forward pass in a backward pass."""
        return self.of in ("scope", "call", "rule")

    def after(self, before: Before) -> Part:
        """The part after others in its parent. A backward pass may be further inside than what it is of."""
        if before.home and before.home == self.home:
            return self
        return self._replace(number=self.number + dict(before.numbers).get(self.name, 0))


class Before(NamedTuple):
    """What comes before the parts in something that is no part of paths.

    Attributes:
        numbers: By name, how many parts come before.
        home: Identifies the traced function that runs it; 0 where none is traced.
    """

    numbers: Numbers = ()
    home: int = 0


BACKWARD = Part("backward", 0, "pass")
"""The part of a path that the first backward pass in its parent is in."""


RULE = Part("rule", 0, "rule")
"""The part of a path that a rule of a function is in, if it runs in place of the function."""


def is_backward(parts: Iterable[Part]) -> bool:
    """Tell whether a path leads into a backward pass."""
    return any(part.is_pass for part in parts)


WHOLE = Part("", -1)
"""Before a path that comes from a function with rules of its own, and is whole from what is around that on.

It is there once for each such function that it comes through.
"""


@dataclasses.dataclass(frozen=True)
class Point:
    """A place in a program whose values can be logged.

    Attributes:
        path: The functions of `jit`, name scopes, loops and branches around it, and itself, joined by slashes. The n-th
            of a name within its parent is ``name[n]``, and the first is ``name``.
        kind: "scan", "while", "cond", "call" (of a function under `jit`), "scope" or "primitive".
        name: The last part of its path, without a number.
        file: The file of the line that runs it, outside JAX.
        line: That line.
        function: The function that this line is in.
        backward: Whether it is in a backward pass.
        obstacle: What keeps it from being watched; "" where nothing does.
    """

    path: str
    kind: Kind
    name: str
    file: str
    line: int
    function: str
    backward: bool = False
    obstacle: str = ""


class Points(list[Point]):
    """A list of points that prints as a table."""

    def __str__(self) -> str:
        if not self:
            return "no points"
        rows = [("path", "kind", "line"), *map(_row, self)]
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])

    __repr__ = __str__


def _row(point: Point) -> tuple[str, str, str]:
    note = f" (cannot be watched: {point.obstacle})" if point.obstacle else ""
    return point.path, point.kind, f"{point.file}:{point.line}{note}"


def path_of(parts: Iterable[Part]) -> str:
    """The path of some parts as text.

    >>> path_of([Part("scan", 1), Part("while", 0)])
    'scan[1]/while'
    """
    return "/".join(f"{part.name}[{part.number}]" if part.number else part.name for part in parts)


def relative(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """A path without what says that it is whole."""
    return tuple(itertools.dropwhile(lambda part: part == WHOLE, parts))


@dataclasses.dataclass(frozen=True)
class Selector:
    """The points that are selected: by patterns of their paths, or by a predicate.

    Attributes:
        patterns: The patterns.
        predicate: The predicate; None where there are patterns.
    """

    patterns: tuple[str, ...] = ()
    predicate: Callable[[Point], Any] | None = None

    @classmethod
    def of(cls, at: Any) -> Selector:
        """Read `at=` of `lox.watch`.

        Raises:
            LogDataError: It is neither a pattern, nor patterns, nor a function. A `TypeError`.
        """
        if callable(at):
            return cls(predicate=at)
        if not isinstance(at, Iterable):
            raise LogDataError(f"at= of lox.watch must be a pattern, patterns or a function, got {describe(at)}.")
        return cls(tuple(dict.fromkeys(names(at, "at= of lox.watch", ""))))

    def __contains__(self, point: Point) -> bool:
        if self.predicate is not None:
            return bool(self.predicate(point))
        return any(self.matched(point))

    def matched(self, point: Point) -> list[str]:
        """The patterns that match a point."""
        return [each for each in self.patterns if matches(each, point)]

    def operations(self) -> Operations:
        """The operations that may be selected: a pattern has to name one, without a wildcard."""
        return Operations(frozenset(each.rpartition("/")[2] for each in self.patterns), self.predicate is not None)


class Operations(NamedTuple):
    """The operations that are marked: loops, jitted functions and name scopes, and others by name.

    Attributes:
        names: The names of the operations whose results are marked.
        all: Whether the results of all are.
        unheard: Whether operations are marked also where no handler gets logs.
    """

    names: frozenset[str] = frozenset()
    all: bool = False
    unheard: bool = False

    def __or__(self, others: Operations) -> Operations:
        return Operations(self.names | others.names, self.all or others.all, self.unheard or others.unheard)

    def has(self, name: str) -> bool:
        """Tell whether results of operations of this name are marked."""
        return self.all or name in self.names


def matches(pattern: str, point: Point) -> bool:
    """Tell whether a pattern matches a point; a part without a number stands for all numbers.

    >>> scan = Point("net/scan[1]", "scan", "scan", "f.py", 1, "f")
    >>> [matches(pattern, scan) for pattern in ("net/scan", "net/scan[1]", "net/*[0]", "**/scan")]
    [True, True, False, True]
    """
    if point.kind == "primitive" and pattern.rpartition("/")[2] != point.name:
        return False
    return matches_path(pattern, point.path)


def matches_path(pattern: str, path: str) -> bool:
    """Tell whether a pattern matches the path of a point that is no primitive."""
    return pattern == path or _expression(pattern).fullmatch(path) is not None


@functools.lru_cache(maxsize=4096)
def _expression(pattern: str) -> re.Pattern[str]:
    parts = pattern.split("/")
    *before, last = [
        "(?:.*/)?" if part == "**" and number < len(parts) - 1 else _part(part) for number, part in enumerate(parts)
    ]
    return re.compile("".join(part if part == "(?:.*/)?" else f"{part}/" for part in before) + last, re.DOTALL)


def _part(part: str) -> str:
    """The regular expression of a part: one without a number stands for all numbers, and [0] for none."""
    if part.endswith("[0]"):
        return rf"(?![^/]*\[\d+\](?:/|$)){translated(part.removesuffix('[0]'))}"
    return translated(part) if re.search(r"\[\d+\]$", part) else rf"{translated(part)}(?:\[\d+\])?"
