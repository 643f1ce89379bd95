"""``lox demo``: a training to look at."""

from __future__ import annotations

from pathlib import Path

from lox._extras import extra
from lox.commands._output import Failure


def demo(steps: int, seeds: int, out: Path) -> int:
    """Trains networks, shows what they logged and plots it to a file."""
    with extra("demo", "demo"):
        from lox.demo import run
    try:
        run(steps=steps, seeds=seeds, out=out)
    except OSError as error:
        raise Failure(f"demo could not write {out}: {error.strerror or error}") from error
    return 0
