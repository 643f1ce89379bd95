"""``lox replay``: where NaN began in a call that `lox.guard` has kept."""

from __future__ import annotations

import sys
from pathlib import Path

from lox._exceptions import LoxError
from lox._nonfinite import replay as run_again
from lox._text import encodable
from lox.commands._functions import arguments, find, running
from lox.commands._output import Failure, complain

REFUSED = 2
"""The exit code where the bundle, the function or the arguments are not those of the call, or a program fails."""


def replay(bundle: Path, function: str, factory: str | None) -> int:
    """Prints the report of a bundle.

    Args:
        bundle: The directory of the bundle.
        function: The function that was guarded, as ``package.module:name``.
        factory: The function that makes arguments of the same structure, likewise.

    Returns:
        The exit code: 1 where nothing is found, `REFUSED` where the call does not run again.
    """
    try:
        fun = find(function)
        args, kwargs = ((), {}) if factory is None else arguments(factory)
        with running(f"calling {function}"):
            report = run_again(bundle, fun, *args, **kwargs)
    except (Failure, LoxError, OSError) as error:
        complain(str(error))
        return REFUSED
    print(encodable(str(report), sys.stdout.encoding))
    return 0 if report.found else 1
