"""The pictures of the pages, drawn of logs that were made: each function is one."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import lox


def scan() -> None:
    """One key in two nested loops, and another one before them."""

    def f(x: Any) -> Any:
        def outer(x: Any, i: Any) -> Any:
            lox.log({"outer": i})
            return jax.lax.scan(inner, x, i + jnp.arange(3))

        def inner(x: Any, i: Any) -> Any:
            lox.log({"inner": i})
            return x, None

        return jax.lax.scan(outer, x, 10 * jnp.arange(2))[0]

    _, logs = lox.spool(f)(0)
    _, axes = plt.subplots(2, 1, figsize=(6, 1.9), layout="constrained")
    _cells(axes[0], 'logs["outer"]', logs, "outer", width=6)
    _cells(axes[1], 'logs["inner"]', logs, "inner", width=6)


def vmap() -> None:
    """Batch elements, as `spool(vmap(f))` has them and as `vmap(spool(f))` does."""

    def f(x: Any) -> Any:
        def step(x: Any, _: Any) -> Any:
            lox.log({"x": x})
            return x + 1, None

        return jax.lax.scan(step, x, length=4)[0]

    xs = jnp.array([0, 10, 20])
    _, axes = plt.subplots(1, 2, figsize=(7, 2.2), layout="constrained")
    _cells(axes[0], "spool(vmap(f))", lox.spool(jax.vmap(f))(xs)[1], "x", names=("batch elements", "events"))
    _cells(axes[1], "vmap(spool(f))", jax.vmap(lox.spool(f))(xs)[1], "x", names=("events", "batch elements"))


def cond() -> None:
    """Batch elements that take different branches: a mask tells which events happened."""
    _, logs = lox.spool(jax.vmap(_branch), unify=True)(jnp.array([0, 11, 20]))
    _, axes = plt.subplots(1, 1, figsize=(3.6, 2.2), layout="constrained")
    _cells(axes, 'logs["even"], and its mask', logs, "even", names=("batch elements", "events"))


def tap() -> None:
    """What the calls of a callback get, with a buffer and without."""
    calls: list[tuple[str, lox.logdict]] = []
    options: dict[str, dict[str, Any]] = {"": {}, "buffer=3": {"buffer": 3}}
    for name, option in options.items():
        arrived: list[lox.logdict] = []
        jax.block_until_ready(lox.tap(jax.vmap(_branch), arrived.append, **option)(jnp.array([0, 11, 20])))
        lox.flush()
        calls += [(f"{name}\ncall {i}", logs) for i, logs in enumerate(arrived)]
    widths = [len(logs["even"]) for _, logs in calls]
    _, axes = plt.subplots(1, len(calls), figsize=(8, 2.0), layout="constrained", width_ratios=widths)
    for place, (title, logs) in zip(axes, calls, strict=True):
        _cells(place, title, logs, "even", names=("", ""))


def thin() -> None:
    """The events that `interval` and `reduce` leave."""

    def f(xs: Any) -> Any:
        return jax.lax.map(lambda x: lox.log({"x": x})["x"], xs)

    options: list[dict[str, Any]] = [{}, {"interval": 2}, {"reduce": "max"}]
    _, axes = plt.subplots(len(options), 1, figsize=(4, 2.7), layout="constrained")
    for place, option in zip(axes, options, strict=True):
        _, logs = lox.spool(f, **option)(jnp.array([3, 1, 4, 1, 5, 9]))
        _cells(place, ", ".join(f"{name}={value!r}" for name, value in option.items()) or "without", logs, "x", width=6)


def remove() -> None:
    """The keys that `strip` and `keep` leave."""

    def f(xs: Any) -> Any:
        return jax.lax.map(lambda x: lox.log({"loss": x, "norm": 10 * x}), xs)

    _, axes = plt.subplots(2, 3, figsize=(7, 1.9), layout="constrained")
    functions = {"f": f, "strip": lox.strip(f, argnames="norm"), "keep": lox.keep(f, argnames="norm")}
    for column, (name, function) in zip(axes.T, functions.items(), strict=True):
        _, logs = lox.spool(function)(jnp.arange(3))
        for place, key in zip(column, ("loss", "norm"), strict=True):
            if key in logs:
                _cells(place, f'{name}: "{key}"', logs, key)
            else:
                place.set_axis_off()


def log_grad() -> None:
    """The order of the forward pass and that of the backward pass."""

    def loss(xs: Any) -> Any:
        def step(total: Any, inputs: Any) -> Any:
            i, x = inputs
            lox.log({"x": x})
            return total + i * lox.log_grad({"x": x})["x"], None

        return jax.lax.scan(step, 0.0, (jnp.arange(4.0), xs))[0]

    _, logs = lox.spool(jax.grad(loss))(10 * jnp.arange(4.0))
    _, axes = plt.subplots(2, 1, figsize=(4, 1.9), layout="constrained")
    _cells(axes[0], 'logs["x"]', logs, "x", width=4)
    _cells(axes[1], 'logs["grad/x"]', logs, "grad/x", width=4)


def quickstart() -> None:
    """The losses of four seeds."""

    def train(key: Any) -> Any:
        def step(w: Any, i: Any) -> Any:
            x = jax.random.normal(jax.random.fold_in(key, i), (16, 3))
            loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - x.sum(-1)) ** 2))(w)
            lox.log({"loss": loss}, step=i)
            return w - 0.05 * gradient, None

        return jax.lax.scan(step, jnp.zeros(3), jnp.arange(50))[0]

    keys = jax.random.split(jax.random.key(0), 4)
    _, logs = jax.jit(lox.spool(jax.vmap(train)))(keys)
    _, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
    axes.semilogy(logs.steps["step"]["loss"], logs["loss"])
    axes.set(xlabel="step", ylabel="loss")
    axes.spines[["top", "right"]].set_visible(False)


def watch_layers() -> None:
    """The activations of each layer of a network without log calls, as the example of layers trains it."""
    layers = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "layers.py"))
    _, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained", sharey=True)
    for place, scale in zip(axes, (2.0, 0.5), strict=True):
        train = lambda key, scale=scale: layers["train"](layers["Network"](scale), key, 60)  # noqa: E731
        watched = lox.watch(train, at=lambda point: point.name.startswith("Dense") and not point.backward)
        _, logs = jax.jit(lox.spool(watched))(jax.random.key(0))
        for key in (key for key in logs if key.startswith("scan/") and key.endswith("/std")):
            place.semilogy(logs[key], label=key.split("/")[-2])
        place.set(title=f"weights of scale {scale:g}", xlabel="step of training")
        place.title.set_fontsize(10)
        place.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("std of activations")
    axes[1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def watch_solver() -> None:
    """The guesses of a solver without log calls, for a batch of problems: each has as many as it takes."""

    def newton(x: Any) -> Any:
        step = lambda guess: 0.5 * (guess + x / guess)  # noqa: E731
        return jax.lax.while_loop(lambda guess: abs(guess**2 - x) > 1e-3, step, x)

    xs = jnp.array([2.0, 10.0, 100.0, 1000.0])
    _, logs = lox.spool(jax.vmap(lox.watch(newton, at="while")), max_iters=16)(xs)
    _, axes = plt.subplots(figsize=(5, 2.6), layout="constrained")
    for number, x in enumerate(xs):
        happened = logs.mask["while/value"][:, number]
        guesses = logs["while/value"][happened, number]
        axes.semilogy(range(1, len(guesses) + 1), guesses, "o-", ms=4, label=f"root of {x:g}")
    axes.set(xlabel="iteration", ylabel="guess")
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _branch(x: Any) -> Any:
    """Counts, and logs even numbers."""

    def step(x: Any, _: Any) -> Any:
        jax.lax.cond(x % 2 == 0, lambda: lox.log({"even": x})["even"], lambda: x)
        return x + 1, None

    return jax.lax.scan(step, x, length=4)[0]


def _cells(
    axes: Any, title: str, logs: lox.logdict, key: str, names: tuple[str, str] = ("", "events"), width: int = 0
) -> None:
    """Draws an array of one or two axes as cells with their values; what is masked out is empty."""
    values = np.atleast_2d(logs[key].T).T
    mask = np.broadcast_to(np.atleast_2d(logs.mask[key].T).T if key in logs.mask else True, values.shape)
    axes.pcolormesh(~mask.T, cmap=plt.matplotlib.colors.ListedColormap(["#dbe9f6", "#f4f4f4"]), edgecolor="white", lw=3)
    for (row, column), value in np.ndenumerate(values):
        axes.text(row + 0.5, column + 0.5, value if mask[row, column] else "–", ha="center", va="center", fontsize=9)
    axes.set(
        title=title,
        xlabel=names[1] and f"{names[1]}: axis 0",
        ylabel=names[0] and f"{names[0]}: axis 1",
        xticks=[],
        yticks=[],
        xlim=(0, max(width, len(values))),
    )
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.spines[:].set_visible(False)
    axes.title.set_fontsize(10)
