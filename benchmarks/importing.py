"""What `import lox` adds to `import jax`, and `lox.loggers` to that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks._report import Figure, Table, main

ROUNDS = 15


def measure() -> Iterator[Table]:
    rows = [
        ("import lox after import jax", *milliseconds("import jax", "import lox", target=50)),
        ("lox.loggers after that", *milliseconds("import lox", "lox.loggers", target=40)),
    ]
    yield Table(
        "Importing",
        ("what", "ms", "before it, ms"),
        rows,
        "Targets: 50 for lox, 40 for its loggers. Processor time, of a new process each.",
    )


def milliseconds(before: str, measured: str, target: float) -> tuple[Figure, Figure]:
    """How long a process takes for one thing after another, and for the one before."""
    clock = "time.process_time()"
    code = f"import time; a = {clock}; {before}; b = {clock}; {measured}; print(b - a, {clock} - b)"
    command = [sys.executable, "-c", code]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(ROUNDS + 1):  # The first one may write what the others read, and is not counted.
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        times.append([1e3 * float(seconds) for seconds in done.stdout.split()])
    first, then = np.array(times[1:]).T
    return Figure.of(then, target, digits=0), Figure.of(first, digits=0)


if __name__ == "__main__":
    main({"importing": measure})
