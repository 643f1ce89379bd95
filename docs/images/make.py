"""Makes the pictures of the README, by the examples: `python docs/images/make.py`."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jax
import rich.console

import lox

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"


def console() -> None:
    """What the console shows of the example of live progress, at its end."""
    example = runpy.run_path(str(EXAMPLES / "live_progress.py"))
    screen = rich.console.Console(record=True, force_terminal=True, width=92, file=io.StringIO())
    with lox.loggers.ConsoleLogger(progress={"step": example["STEPS"]}, console=screen) as logger:
        train = jax.jit(jax.vmap(lambda key: example["train"](key, logger)))
        jax.block_until_ready(train(jax.random.split(jax.random.key(0), example["SEEDS"])))
        logger.flush()
        screen.export_text(clear=True)  # The frames until now. Closing the logger draws the last one.
    picture = screen.export_svg(title="lox.loggers.ConsoleLogger", unique_id="console")
    (HERE / "console.svg").write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL), encoding="utf-8")


def main() -> None:
    """Makes all."""
    console()
    subprocess.run([sys.executable, str(EXAMPLES / "digits.py"), "--out", str(HERE / "digits.png")], check=True)


if __name__ == "__main__":
    main()
