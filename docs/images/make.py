"""Makes the pictures of the pages, and the badges of the README: `python docs/images/make.py`."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import anybadge
import jax
import matplotlib
import matplotlib.pyplot as plt
import rich.console

import lox

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
ROOT = HERE.parent.parent


def badges(folder: Path = HERE) -> None:
    """What pyproject.toml says that lox needs, and its license."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = dict(dependency.split(">=") for dependency in project["dependencies"])
    python = project["requires-python"].removeprefix(">=")
    facts = {"Python": f"{python} or later", "jax": f"{needed['jax']} or later", "license": project["license"]}
    for name, fact in facts.items():
        badge = anybadge.Badge(name, fact, default_color="#3b75af")
        badge.write_badge(str(folder / f"badge-{name.lower()}.svg"), overwrite=True)


def drawn(folder: Path = HERE) -> None:
    """What the functions of pictures.py draw."""
    pictures = runpy.run_path(str(HERE / "pictures.py"))
    with matplotlib.rc_context({"svg.hashsalt": "lox"}):
        for name, draw in pictures.items():
            if isinstance(draw, types.FunctionType) and name[0] != "_":
                draw()
                plt.savefig(folder / f"{name}.svg", metadata={"Date": None})
                plt.close()


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
    badges()
    drawn()
    console()
    subprocess.run([sys.executable, str(EXAMPLES / "digits.py"), "--out", str(HERE / "digits.png")], check=True)


if __name__ == "__main__":
    main()
