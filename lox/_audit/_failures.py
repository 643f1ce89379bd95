"""Parts of an audit that fail themselves: each is reported as a finding, and the rest of the audit goes on."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held
from lox._audit._location import NOWHERE
from lox._audit._own_kinds import FAILED


def failure(part: str, error: Exception) -> Finding:
    """The finding that names a part of an audit that raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return FAILED.at(NOWHERE, f"{part} failed at {where} with {traceback.format_exception_only(error)[-1].strip()}")


@contextlib.contextmanager
def reported(part: str, failures: list[Finding]) -> Iterator[None]:
    """Adds a finding to the failures if a part of an audit raises."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  (whatever it is, the audit goes on)
        failures.append(failure(part, error))


def guarded(check: Any, audited: Audited) -> Iterator[Finding | Held]:
    """What a check finds; then, if it raises, the finding that says so."""
    failures: list[Finding] = []
    about = (check.__doc__ or "").partition("\n")[0]
    with reported(f"The check '{check.__name__}' ({about.rstrip('.')})", failures):
        yield from check(audited)
    yield from failures
