"""The page of each code, which the distribution has beside the package."""

from __future__ import annotations

from pathlib import Path

from lox._audit._checks import KNOWN
from lox._exceptions import LogValueError

_SHIPPED = Path(__file__).parent / "pages"
_IN_CHECKOUT = Path(__file__).parents[2] / "docs" / "audit"


def page(code: str) -> str:
    """The page of a code, as Markdown.

    Raises:
        LogValueError: There is no such code.
    """
    if code not in KNOWN:
        raise LogValueError(f"lox.audit knows no {code}; `lox explain` lists all codes.")
    folder = _SHIPPED if _SHIPPED.is_dir() else _IN_CHECKOUT
    return (folder / f"{code}.md").read_text(encoding="utf-8")
