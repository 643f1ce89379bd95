"""What an audit looks for, a module for each family."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lox._audit._checks import _axes
from lox._audit._findings import Finding
from lox._audit._program import Block

Check = Callable[[Block], Iterator[Finding]]

ALL: tuple[Check, ...] = (_axes.meeting, _axes.contracted, _axes.reshaped, _axes.crossed)
