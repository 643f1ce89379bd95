"""Random programs for as long as there is time, and a file for each that breaks a law."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lox.testing._check import check
from lox.testing._hypothesis import HealthCheck, given, settings
from lox.testing._hypothesis import seed as hypothesis_seed
from lox.testing._hypothesis import strategies as st
from lox.testing._laws import LAWS, Law
from lox.testing._program import Program
from lox.testing._strategy import programs
from lox.testing._subject import Claim, NothingToCheck

PROGRAMS_IN_ROUND = 20


@dataclasses.dataclass
class Tally:
    """The programs that were run so far.

    Attributes:
        programs: How many programs.
        claims: How many compositions of transformations.
        failures: The files that show what is broken.
    """

    programs: int = 0
    claims: int = 0
    failures: list[Path] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.programs:,} programs, {self.claims:,} claims, {len(self.failures)} broken"


def fuzz(
    *,
    seconds: float,
    seed: int = 0,
    depth: int = 3,
    length: int = 3,
    folder: str | Path = "lox-fuzz",
    laws: Sequence[Law] = LAWS,
    report: Callable[[str], None] = print,
) -> Tally:
    """Check laws on random programs, one claim of each law for each program, until the time is over.

    A program that breaks one is shrunk, and stored as a Python file that shows it when it is run.

    Args:
        seconds: How long to go on. Shrinking a program that breaks a law may take some minutes more.
        seed: Where to begin; another number gives other programs.
        depth: As for `programs`.
        length: As for `programs`.
        folder: Where to store programs. It is made.
        laws: Which laws, of `lox.testing.LAWS`.
        report: What to do with lines that tell how it goes.

    Returns:
        How much was run, and the files.

    >>> import lox.testing
    >>> tally = lox.testing.fuzz(seconds=1, depth=1, laws=[lox.testing.absence], report=lambda line: None)
    >>> tally.failures
    []
    """
    tally = Tally()
    Path(folder).mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    for number in itertools.count(seed):
        if time.monotonic() >= end:
            return tally
        current = _Round(tally, tuple(laws), end)
        try:
            current.run(number, depth, length)
        except Exception as error:  # noqa: BLE001  (whatever goes wrong is what it looks for)
            tally.failures.append(current.store(Path(folder), number, error))
            first = (str(error).splitlines() or [""])[0]
            report(f"{tally.failures[-1]}: {type(error).__name__}: {first}")
        report(f"seed {number}: {tally}")
        jax.clear_caches()
    raise AssertionError("numbers do not end")


@dataclasses.dataclass(frozen=True)
class _Attempt:
    """One law on one program."""

    program: Program
    lanes: tuple[tuple[Any, ...], ...]
    law: Law
    choice: int

    def choose(self, claims: Sequence[Claim]) -> list[Claim]:
        return [claims[self.choice % len(claims)]]

    def check(self) -> int:
        """Returns the number of claims that hold."""
        try:
            return check(self.program, *self.lanes[0], laws=[self.law], batch=self.lanes[1:], choose=self.choose).claims
        except NothingToCheck:  # A filter leaves no log, or the law says nothing of the program.
            return 0

    def source(self, error: Exception) -> str:
        """A Python file that does the same."""
        header = f"{type(error).__name__}: {error}\n\n{self.program.source}"
        lanes = ", ".join(f"(np.float32({x.tolist()}), np.int32({n}))" for x, n in self.lanes)
        return (
            f"{textwrap.indent(header, '# ', lambda line: True)}\n\n"
            "import jax\n"
            "import numpy as np\n\n"
            "from lox import testing\n"
            "from lox.testing import Branch, Call, Derivative, Log, Scan, Update, Vmap, While\n\n"
            f"if jax.device_count() < {jax.device_count()}:\n"
            f'    raise SystemExit("Set JAX_NUM_CPU_DEVICES={jax.device_count()}: it takes several devices.")\n'
            f"program = testing.Program({self.program.body!r})\n"
            f"batch = [{lanes}]\n"
            f"choose = lambda claims: [claims[{self.choice} % len(claims)]]\n"
            f"testing.check(program, *batch[0], laws=[testing.{self.law.__name__}], batch=batch[1:], choose=choose)\n"
        )


class _Round:
    """Some random programs, until one breaks a law."""

    def __init__(self, tally: Tally, laws: tuple[Law, ...], end: float):
        self.tally, self.laws, self.end = tally, laws, end
        self.last: _Attempt | None = None

    def run(self, number: int, depth: int, length: int) -> None:
        starts = st.tuples(*[st.integers(0, 6)] * 3)
        search = settings(
            max_examples=PROGRAMS_IN_ROUND,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        given_all = given(programs(depth=depth, length=length), starts, st.integers(0, 1000))
        hypothesis_seed(number)(search(given_all(self._check)))()

    def _check(self, program: Program, starts: tuple[int, ...], choice: int) -> None:
        if not self.last:
            if time.monotonic() >= self.end:
                return
            self.tally.programs += 1
        x = np.array([0.3, -0.5], np.float32)
        lanes = tuple((x * np.float32(1 - place / 2), np.int32(n)) for place, n in enumerate(starts))
        laws = (self.last.law,) if self.last else self.laws  # A smaller program is to break the same law.
        for law in laws:
            attempt = _Attempt(program, lanes, law, choice)
            try:
                claims = attempt.check()
            except Exception:
                self.last = attempt
                raise
            if not self.last:
                self.tally.claims += claims

    def store(self, folder: Path, number: int, error: Exception) -> Path:
        """Writes what failed last, which is the smallest."""
        if self.last is None:
            raise error
        path = folder / f"{self.last.law.__name__}_{number}.py"
        path.write_text(self.last.source(error))
        return path
