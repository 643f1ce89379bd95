"""`lox.progress` beside the bars of jax-tqdm, BlackJAX and numpyro, on one loop. Needs the extra `gymnax`."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._report import Figure, Table, main
from benchmarks._timing import stopwatch
from lox._extras import extra

with extra("gymnax", "benchmarks.bars"):
    import blackjax
    import jax_tqdm
    import jaxtap  # noqa: F401
    import numpyro.util

Function = Callable[..., Any]
ITERATIONS, OPERATIONS, WIDTH, ELEMENTS, ROUNDS = 120_011, 60, 64, 4, 5
"""A prime number of iterations of a few us each, and the size of the carry, alone or of all batch elements together."""


def measure() -> Iterator[Table]:
    yield Table(
        f"Bars of a loop of {ITERATIONS:,} iterations, over the same loop without a bar",
        ("bar", "alone", "us an iteration", f"under a vmap of {ELEMENTS}", "us an iteration of all"),
        [(name, *_figures(*pair(False)), *_figures(*pair(True))) for name, pair in BARS.items()],
        "All bars write to a file, and each call of each of them is checked to show iterations until the last ones.\n"
        "The loop of numpyro runs batch elements as it runs vectorized chains: vmap is inside, around an iteration.",
    )
    yield Table("A vmap around the loop of numpyro", ("bar", "outcome"), [("numpyro, fori_collect", _refusal())])


def body(c: Any, i: Any) -> tuple[Any, Any]:
    for _ in range(OPERATIONS):
        c = jnp.tanh(c * 0.99 + i * 1e-6)
    return c, c.sum()


def scan(x: Any, step: Function = body) -> Any:
    return jax.lax.scan(step, x, jnp.arange(ITERATIONS))[1]


def start(batched: bool) -> Any:
    """The carry, which is as large under a vmap."""
    return jnp.full((ELEMENTS, WIDTH // ELEMENTS) if batched else WIDTH, 0.5)


Pair = tuple[Function, Function]
"""The loop without a bar, and with it, as functions without arguments."""


def of_lox(batched: bool) -> Pair:
    return _called(_jitted(scan, batched), batched), _called(lox.progress(_jitted(scan, batched)), batched)


def of_jax_tqdm(batched: bool) -> Pair:
    with_bar = functools.partial(scan, step=jax_tqdm.scan_tqdm(ITERATIONS)(body))
    return _called(_jitted(scan, batched), batched), _called(_jitted(with_bar, batched), batched)


def of_blackjax(batched: bool) -> Pair:
    call = _called(_jitted(scan, batched), batched)

    def with_bar() -> Any:
        with blackjax.progress_bar():
            return call()

    return _called(_jitted(scan, batched), batched), with_bar


def of_numpyro(batched: bool) -> Pair:
    iterate = _mapped(lambda state: (body(*state)[0], state[1] + 1), batched)
    count = jnp.zeros(ELEMENTS if batched else (), jnp.int32)

    def collect(bar: bool) -> Any:
        return numpyro.util.fori_collect(0, ITERATIONS, iterate, (start(batched), count), _sums, progbar=bar)

    return functools.partial(collect, False), functools.partial(collect, True)


BARS: dict[str, Callable[[bool], Pair]] = {
    "lox.progress": of_lox,
    "jax-tqdm, scan_tqdm": of_jax_tqdm,
    "BlackJAX, progress_bar": of_blackjax,
    "numpyro, fori_collect": of_numpyro,
}


def _sums(state: Any) -> Any:
    return state[0].sum(-1)


def _mapped(fun: Function, batched: bool) -> Function:
    return jax.vmap(fun) if batched else fun


def _jitted(fun: Function, batched: bool) -> Function:
    """Jit a function of its own: JAX traces a function once, with a bar or without."""
    return jax.jit(_mapped(lambda x: fun(x), batched))


def _called(fun: Function, batched: bool) -> Function:
    return functools.partial(fun, start(batched))


def _figures(plain: Function, with_bar: Function) -> tuple[Figure, str]:
    """Time a pair in turns: the processor time with the bar over that without, and that without."""
    seconds = []
    for turn in range(ROUNDS + 1):
        (alone, expected), (shown, found) = stopwatch(lambda: _done(plain)[0]), stopwatch(lambda: _shown(with_bar))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        if turn:  # The first one compiles.
            seconds.append((alone, shown))
    alone, shown = np.array(seconds).T
    return Figure.of(shown / alone), f"{np.median(alone) / ITERATIONS * 1e6:.1f}"


def _done(fun: Function) -> tuple[Any, str]:
    """Return what a function returns, and the text that its calls of the host write to standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as screen:
        out = jax.block_until_ready(fun())
        jax.effects_barrier()
    return out, screen.getvalue()


def _shown(fun: Function) -> Any:
    """Return what a function with a bar returns.

    Raises:
        AssertionError: Its bar showed fewer than two numbers of iterations, or not the last tenth of them.
    """
    out, text = _done(fun)
    counts = {int(each.replace(",", "")) for each in re.findall(rf"([\d,]+)/(?:{ITERATIONS}|{ITERATIONS:,})\b", text)}
    if len(counts) < 2 or max(counts) < 0.9 * ITERATIONS:
        raise AssertionError(f"The bar showed {sorted(counts)} of {ITERATIONS} iterations: {text[-1000:]!r}")
    return out


def _refusal() -> str:
    fun = lambda x: numpyro.util.fori_collect(  # noqa: E731
        0, 100, lambda x: body(x, 0)[0], x, jnp.sum, num_chains=ELEMENTS, progbar=True
    )
    try:
        _done(lambda: jax.jit(jax.vmap(fun))(start(True)))
    except NotImplementedError as error:
        return f"refused: {error}"
    return "runs"


if __name__ == "__main__":
    main({"bars": measure})
