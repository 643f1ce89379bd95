"""Ways of getting values out of a program, each over the function that returns them and was written by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen
from jax.experimental import io_callback

import lox
from benchmarks import programs, training
from benchmarks._present import calling, returning, silent
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate, stopwatch
from benchmarks.streaming import arrived, take

WAYS: dict[str, tuple[Callable[..., Any] | None, Callable[[Any], Any]]] = {
    "nothing": (lambda data: None, lambda f: f),
    "lox.tap": (None, lambda f: lox.tap(f, take)),
    "lox.tap, buffer=256": (None, lambda f: lox.tap(f, take, buffer=256)),
    "debug.callback": (lambda data: jax.debug.callback(take, data), lambda f: f),
    "debug.callback, ordered": (lambda data: jax.debug.callback(take, data, ordered=True), lambda f: f),
    "io_callback": (lambda data: io_callback(take, None, data), lambda f: f),
    "io_callback, ordered": (lambda data: io_callback(take, None, data, ordered=True), lambda f: f),
}
"""What is called in place of `lox.log`, and how the function is transformed."""
PATIENCE = 0.3  # Seconds: what takes longer is timed once.


def measure() -> Iterator[Table]:
    yield Table(
        "Ways of logging over the function that returns the same values and was written by hand: run time",
        ("program", "lox.spool", *WAYS, "by hand, us"),
        [row(make) for make in (*programs.ALL, *training.ALL)],
        "Of jitted functions, until all has arrived; what takes long was timed once. JAX orders no callbacks under\n"
        "vmap, and has none with effects in what it differentiates unless they are of jax.debug.",
    )
    yield Table(
        "A flax network of four layers that logs its activations, over the one that returns them: run time",
        ("lox.spool", "sow", "noise", "returned, us"),
        [sown()],
    )


def row(make: Callable[[], programs.Program]) -> tuple[Any, ...]:
    case = make()
    case.check()
    slow: dict[str, float] = {}
    calls = {
        "by hand": arrived(jax.jit(case.by_hand), *case.args),
        "lox.spool": arrived(jax.jit(case.spooled), *case.args),
    }
    for name, jitted in jitted_ways(make):
        call = arrived(jitted, *case.args)
        call()
        once, _ = stopwatch(call)
        if once > PATIENCE:
            slow[name] = once
        else:
            calls[name] = call
    seconds = alternate(list(calls.values()), rounds=10, sample=1e-3).T
    base = float(np.median(seconds[0]))
    figures = {name: Figure.of(each / seconds[0]) for name, each in zip(calls, seconds, strict=True)}
    figures |= {name: Figure(once / base) for name, once in slow.items()}
    return case.name, *(figures.get(name, "-") for name in ("lox.spool", *WAYS)), f"{1e6 * base:,.0f}"


def jitted_ways(make: Callable[[], programs.Program]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The jitted program of each way that JAX allows, with its name.

    Raises:
        AssertionError: A program calls the host less often than there are lines that log, or, without logging, at all.
    """
    args = make().args
    lines = len({(site.file, site.line) for site in lox.sites(make().logging)(*args)})
    for name, (emit, transform) in WAYS.items():
        # A program of its own for each, and a function of its own: JAX traces one once, also the body of a scan.
        jitted = jax.jit(transform(functools.partial(make().logging)))
        try:
            with mock.patch("lox.log", _logging(emit)) if emit else mock.patch("lox.log", lox.log):
                jitted.lower(*args)  # It is traced here.
        except (NotImplementedError, ValueError):
            continue
        if name == "nothing":
            silent(jitted, *args)
        else:
            calling(jitted, *args, least=1 if name.startswith("lox") else lines)
        yield name, jitted


def _logging(emit: Callable[..., Any]) -> Callable[..., Any]:
    def log(data: Any, *, prefix: str = "", tags: Any = (), **steps: Any) -> Any:
        emit({**data, **steps})
        return data

    return log


class Layers(linen.Module):
    """Four layers, of which each has its activations go somewhere."""

    way: str

    @linen.compact
    def __call__(self, x: Any) -> Any:
        returned = {}
        for layer in range(4):
            x = linen.relu(linen.Dense(64)(x))
            name = f"layer{layer}"
            if self.way == "sow":
                self.sow("intermediates", name, x)
            elif self.way == "log":
                lox.log({name: x})
            else:
                returned[name] = x[None]
        return x, returned


def sown() -> tuple[Any, ...]:
    x = jnp.ones((32, 64))
    params = Layers("").init(jax.random.key(0), x)
    returned, again = (jax.jit(Layers("").apply) for _ in range(2))
    spooled = jax.jit(lox.spool(Layers("log").apply))
    returning(spooled, params, x, events=4)
    sow = jax.jit(lambda params, x: Layers("sow").apply(params, x, mutable=["intermediates"]))
    functions = (returned, again, spooled, sow)
    # The same activations come out of each.
    found = [jax.tree.leaves(jax.jit(function)(params, x)[1]) for function in functions]
    for each in found:
        for one, other in zip(found[0], each, strict=True):
            np.testing.assert_allclose(np.reshape(one, other.shape), other, rtol=1e-5)
    base, noise, *others = alternate([arrived(function, params, x) for function in functions], rounds=50).T
    return *(Figure.of(column / base) for column in (*others, noise)), f"{1e6 * float(np.median(base)):,.0f}"


if __name__ == "__main__":
    main({"peers": measure})
