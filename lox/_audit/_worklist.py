"""What is left to look at in a search."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Each = TypeVar("Each", bound=Hashable)


class Worklist(Generic[Each]):
    """Gives what a search is to look at, each once, the last that was added first; the search adds to it meanwhile.

    Args:
        start: Where the search begins.
        most: How many it looks at, at most.
    """

    def __init__(self, start: Iterable[Each], most: int) -> None:
        self._left = [*start]
        self._most = most

    def __iter__(self) -> Iterator[Each]:
        seen = set[Each]()
        while self._left and len(seen) < self._most:
            each = self._left.pop()
            if each not in seen:
                seen.add(each)
                yield each

    def add(self, new: Iterable[Each]) -> None:
        """Look at these too, unless they were looked at."""
        self._left += new
