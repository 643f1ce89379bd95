"""Short text, for tables and lines of a terminal."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

LEVELS = "▁▂▃▄▅▆▇█"
NOT_FINITE = "×"


def number(value: Any) -> str:
    """A number with four digits that tell something, in scientific notation where it is very large or small.

    >>> number(0.25), number(1234567.0), number(-2e-7), number(1234567), number(float("nan"))
    ('0.25', '1.235e+06', '-2e-07', '1234567', 'nan')
    """
    value = np.asarray(value)
    if value.dtype.kind in "iub":
        return str(value.item())
    if value.dtype.kind != "c":
        value = value.astype(np.float64)
    return f"{value.item():.4g}"


def visible(text: str) -> str:
    r"""Text on one line: characters that control terminals or separate are escaped.

    >>> visible("a\tb"), visible("loss")
    ('a\\tb', 'loss')
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def encodable(text: str, encoding: str | None) -> str:
    r"""Text in which the characters that an encoding has not got are escaped.

    >>> encodable("1 ± 2", "ascii")
    '1 \\xb1 2'
    """
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def sparkline(values: Any, width: int = 20) -> str:
    """A line of numbers as bars of text, with a cross where one is not finite.

    Args:
        values: The numbers, shape `(n,)`. Each character is the mean of the same number of them, but for rounding.
        width: How many characters there are at most.

    >>> sparkline([0, 1, 2, 3, 2, 1, 0])
    '▁▃▆█▆▃▁'
    >>> sparkline([1.0, float("nan"), 2.0]), sparkline([5, 5]), sparkline([])
    ('▁×█', '▁▁', '')
    """
    numbers = np.asarray(values).astype(np.float64)
    parts = [part for part in np.array_split(numbers, min(width, len(numbers)) or 1) if len(part)]
    with np.errstate(over="ignore", invalid="ignore"):
        means = np.array([part.mean() for part in parts])
    there = means[np.isfinite(means)]
    if not len(there):
        return NOT_FINITE * len(means)
    low, high = there.min(), there.max()
    span = max(high / 2 - low / 2, np.finfo(np.float64).tiny)  # Halves do not overflow.
    return "".join(
        LEVELS[round((mean / 2 - low / 2) / span * (len(LEVELS) - 1))] if np.isfinite(mean) else NOT_FINITE
        for mean in means
    )


def as_html(plain: str) -> str:
    """Text on one line that what reads HTML, such as Markdown, shows as it is.

    >>> as_html("<lambda>")
    '&lt;lambda&gt;'
    """
    return html.escape(" ".join(plain.splitlines()), quote=False)


def aligned(fields: Sequence[str], widths: Sequence[int]) -> str:
    """Fields in columns."""
    return "  ".join(field.ljust(width) for field, width in zip(fields, widths, strict=True)).rstrip()


def columns(rows: Sequence[Sequence[str]], widest: int = 60) -> list[str]:
    """Rows as lines with aligned columns, of which longer fields stick out.

    >>> columns([("a", "bcd"), ("ef", "g")])
    ['a   bcd', 'ef  g']
    """
    widths = [min(widest, max(map(len, column))) for column in zip(*rows, strict=True)]
    return [aligned(row, widths) for row in rows]
