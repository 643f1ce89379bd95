"""What lox costs, measured against the same program without logs and against the one written by hand.

    python -m benchmarks                  everything, as tables
    python -m benchmarks overhead memory  some of it
    python -m benchmarks --json out.json  the figures, too, for a program to read

| Module     | Question                                                                            |
|------------|-------------------------------------------------------------------------------------|
| `absence`  | What does `lox.log` cost when nobody listens?                                       |
| `overhead` | What does `jit(spool(f))` cost over the function that returns the same arrays?      |
| `dispatch` | What does calling a spooled function again cost over calling the function?          |
| `tracing`  | How does the time that spool adds to tracing grow with log sites and with nesting?  |
| `memory`   | Does the memory of `reduce=` and `interval=` depend on the number of steps?         |
| `streaming`| How much cheaper is an event of `lox.tap` than one of `jax.debug.callback`?         |

Each also runs alone: `python -m benchmarks.overhead`. Figures are ratios wherever they can be, of calls that
alternate in one process, so that they mean something on a machine that is busy with other work: the median over many
short rounds, and in brackets its quartiles. A figure past its target is marked with ``!``.
"""

import sys
from pathlib import Path

# The corpus is a module of that name, as under pytest, which puts the folder of a test on the path.
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
