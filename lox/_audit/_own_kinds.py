"""Kinds of findings about the audit itself, which no check looks for."""

from __future__ import annotations

from lox._audit._findings import Kind

FAILED = Kind(
    "LOX000",
    "warning",
    "A check of the audit failed",
    "This is a fault of lox, not of your program: please report it with this message and the program. All other checks "
    'ran; ignore="LOX000" leaves this out.',
)
UNUSED = Kind(
    "LOX001",
    "warning",
    "A comment that ignores nothing",
    "Remove the comment, or correct its code: # lox: ignore[LOX104], with several codes separated by commas. A comment "
    "is about the statement that it stands in, with all lines of that.",
)
CHANGED = Kind(
    "LOX002",
    "info",
    "A boundary has other shapes than in the baseline",
    "Check what relies on the shapes that were there before; then write the baseline anew with --write-baseline.",
)

OWN = (FAILED, UNUSED, CHANGED)
