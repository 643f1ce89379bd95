"""``lox replay``: where NaN began in a call that `lox.guard` has kept."""

from __future__ import annotations

import sys
from pathlib import Path

from lox._nonfinite import replay as run_again
from lox._text import encodable
from lox.commands._functions import arguments, find, running


def replay(bundle: Path, function: str, factory: str | None) -> int:
    """Prints the report of a bundle.

    Args:
        bundle: The directory of the bundle.
        function: The function that was guarded, as ``package.module:name``.
        factory: The function that makes arguments of the same structure, likewise.

    Returns:
        The exit code: 1 where nothing is found.
    """
    fun = find(function)
    args, kwargs = ((), {}) if factory is None else arguments(factory)
    with running(f"calling {function}"):
        report = run_again(bundle, fun, *args, **kwargs)
    print(encodable(str(report), sys.stdout.encoding))
    return 0 if report.found else 1
