"""Makes the picture of `lox.progress` on a terminal: `python docs/images/bars.py`. Needs the extra `gymnax`.

It runs a program of each library on a pseudoterminal, and takes the frame that rich draws when it is midway.
"""

from __future__ import annotations

import io
import os
import pty
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffrax as solving
import jax
import jax.numpy as jnp
import numpyro as sampling
import rich.console
import rich.text

import lox

HERE = Path(__file__).parent
WIDTH = 106
ERASED = re.compile(rb"\r(?:\x1b\[\d*[AK])+")
"""Before each frame, rich erases the lines of the one before."""


def blackjax() -> None:
    """Four chains of NUTS."""
    sample = _example()["sample"]
    lox.progress(jax.jit(jax.vmap(sample)), label="NUTS")(jax.random.split(jax.random.key(0), 4))


def flax() -> None:
    """A training in one scan."""
    lox.progress(_example()["train"])(jax.random.key(1))


def while_loop() -> None:
    """A while_loop under vmap."""
    lox.progress(jax.jit(jax.vmap(_example()["relax"])), label="heat")(jnp.array([40, 60, 80]))


def numpyro() -> None:
    """Four vectorized chains."""

    def model() -> None:
        spread = sampling.sample("spread", sampling.distributions.HalfNormal(1))
        sampling.sample("x", sampling.distributions.Normal(0, spread))

    mcmc = sampling.infer.MCMC(
        sampling.infer.NUTS(model),
        num_warmup=1000,
        num_samples=60_000,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    lox.progress(mcmc.run, label="mcmc")(jax.random.key(2))


def diffrax() -> None:
    """A solver under vmap, of the Lorenz system from many places."""

    def slope(t: jax.Array, y: jax.Array, args: None) -> jax.Array:
        return jnp.stack([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    def solve(y0: jax.Array) -> jax.Array:
        steps, term = solving.PIDController(1e-4, 1e-4), solving.ODETerm(slope)
        return solving.diffeqsolve(
            term, solving.Tsit5(), 0.0, 200.0, None, y0, stepsize_controller=steps, max_steps=2**14
        ).ys[0]

    lox.progress(jax.jit(jax.vmap(solve)), total=5_000, label="diffeqsolve")(
        jax.random.normal(jax.random.key(3), (1024, 3))
    )


PROGRAMS: dict[Callable[[], None], str] = {
    blackjax: r"NUTS",
    flax: r"train",
    while_loop: r" [12]/3 elements done",
    numpyro: r"mcmc _fori",
    diffrax: r"1,024 elements",
}
"""The programs, and what the frame of each says that is taken."""


def _example() -> dict[str, Any]:
    return runpy.run_path(str(HERE.parent / "examples" / "bars.py"))


def frame(program: str, says: str) -> rich.text.Text:
    """The first frame that says so, after a fifth of the iterations."""
    outer, inner = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": "20"}
    command = [sys.executable, __file__, program]
    process = subprocess.Popen(command, env=environment, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    written = b""
    try:
        while True:
            try:
                written += os.read(outer, 65536)
            except OSError as error:  # The other end is closed.
                raise RuntimeError(f"{program} has ended, and no frame says {says!r}: {written[-3000:]!r}") from error
            for each in ERASED.split(written)[1:-1]:
                text = rich.text.Text.from_ansi(each.decode().replace("\r\n", "\n"))
                shares = re.findall(r" ([\d,]+)/([\d,]+) [\d.]", text.plain)
                done, of = (int(number.replace(",", "")) for number in (shares or [("1", "1")])[-1])
                if re.search(says, text.plain) and done >= of / 5:
                    return text
    finally:
        process.kill()
        process.wait()
        os.close(outer)


def main() -> None:
    """Makes the picture."""
    console = rich.console.Console(record=True, force_terminal=True, width=WIDTH, file=io.StringIO())
    for program, says in PROGRAMS.items():
        console.print(frame(program.__name__, says))
    picture = console.export_svg(title="lox.progress", unique_id="bars")
    (HERE / "bars.svg").write_text(re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    globals()[sys.argv[1]]() if sys.argv[1:] else main()
