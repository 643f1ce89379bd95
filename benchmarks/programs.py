"""Programs that log, each beside the one that returns the same arrays and was written by hand.

What is written by hand is what one writes who knows JAX well: values leave a scan as its `ys`, a differentiated
function through `has_aux`, a vmap by `out_axes`. Both return `(out, logs)`, where the logs by hand are a tuple of
dicts: the events by key and the counters, and, where there are any, the masks and the counts of what was dropped, as
`lox.logdict` has them. A counter that all keys share is returned once, as a person would, and not once for each key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a program that logs, to be called eagerly, with its arguments."""

    logging: Callable[..., Any]
    args: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """A function that logs and the one written by hand.

    Attributes:
        name: The name.
        logging: The function that logs.
        by_hand: The one written by hand.
        args: The arguments of both.
        options: Keywords of `lox.spool`.
        step: One step of it, if it is a loop.
        events: How many events happen of a key, where that depends on the arguments.
    """

    name: str
    logging: Callable[..., Any]
    by_hand: Callable[..., Any]
    args: tuple[Any, ...]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: Step | None = None
    events: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def spooled(self) -> Callable[..., Any]:
        return lox.spool(self.logging, **self.options)

    def check(self) -> None:
        """Raises an AssertionError unless both return the same arrays, finite ones, of as many events as expected."""
        out, logs = jax.jit(self.spooled)(*self.args)
        expected, (data, counters, *more) = jax.jit(self.by_hand)(*self.args)
        shared = {
            name: counter if isinstance(counter, Mapping) else dict.fromkeys(logs.steps[name], counter)
            for name, counter in counters.items()
        }
        for key in logs:
            np.testing.assert_array_equal(np.isfinite(logs.valid(key)), True)
        happened = {key: int(np.sum(logs.mask[key])) for key in self.events}
        np.testing.assert_equal(happened, dict(self.events))
        # Two programs may be fused differently, and then round differently.
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, strict=True),
            (out, logs.ungrouped()),
            (expected, lox.logdict(data, shared, *more)),
        )


def straight_line() -> Program:
    """Eight layers, of which each logs the norm and the mean of its activations."""

    def layer(x, w):
        return jnp.tanh(x @ w)

    def f(x, ws):
        for i, w in enumerate(ws):
            x = layer(x, w)
            lox.log({"norm": jnp.linalg.norm(x), "mean": x.mean()}, layer=i)
        return x

    def by_hand(x, ws):
        norms, means = [], []
        for w in ws:
            x = layer(x, w)
            norms.append(jnp.linalg.norm(x))
            means.append(x.mean())
        return x, ({"norm": jnp.stack(norms), "mean": jnp.stack(means)}, {"layer": jnp.arange(len(ws))})

    x, *ws = jax.random.normal(jax.random.key(0), (9, 64, 64))
    return Program("straight line", f, by_hand, (x, [w / 8 for w in ws]))


def scan() -> Program:
    """A scan of 100,000 scalars, which logs one of them with its index."""

    def update(total, x):
        return jnp.sin(total) + x

    def f(xs):
        def step(total, ix):
            total = update(total, ix[1])
            lox.log({"total": total}, step=ix[0])
            return total, None

        return jax.lax.scan(step, 0.0, (jnp.arange(xs.size), xs))[0]

    def by_hand(xs):
        def step(total, ix):
            total = update(total, ix[1])
            return total, (total, ix[0])

        out, (totals, steps) = jax.lax.scan(step, 0.0, (jnp.arange(xs.size), xs))
        return out, ({"total": totals}, {"step": {"total": steps}})

    return Program("scan of 100,000", f, by_hand, (jnp.linspace(0, 1, 100_000),))


def scan_of_vectors() -> Program:
    """A scan of 10,000 that logs 256 floats at each step."""

    def f(x, rate):
        def step(x, _):
            x = x + rate * jnp.cos(x)
            lox.log({"x": x})
            return x, None

        return jax.lax.scan(step, x, length=10_000)[0]

    def by_hand(x, rate):
        def step(x, _):
            x = x + rate * jnp.cos(x)
            return x, x

        x, xs = jax.lax.scan(step, x, length=10_000)
        return x, ({"x": xs}, {})

    return Program("vectors", f, by_hand, (jnp.linspace(0, 1, 256), 0.1))


def _nested(xs):
    """A scan around a scan, both of which log."""

    def inner(total, x):
        total = jnp.sin(total) + x
        lox.log({"total": total})
        return total, None

    def outer(total, row):
        total, _ = jax.lax.scan(inner, total, row)
        lox.log({"row": total})
        return total, None

    return jax.lax.scan(outer, 0.0, xs)[0]


def nested_scans() -> Program:
    """A scan of 100 around a scan of 100, both of which log."""

    def by_hand(xs):
        def inner(total, x):
            total = jnp.sin(total) + x
            return total, total

        def outer(total, row):
            total, totals = jax.lax.scan(inner, total, row)
            return total, (totals, total)

        out, (totals, rows) = jax.lax.scan(outer, 0.0, xs)
        return out, ({"total": totals.reshape(-1), "row": rows}, {})

    return Program("nested scans", _nested, by_hand, (jnp.linspace(0, 1, 10_000).reshape(100, 100),))


def _add(sofar, x):
    """A sum, with what rounding took from it beside it (Kahan): ten million steps cost a plain one its third digit.

    An infinite event leaves nothing to add later, which would be NaN.
    """
    total, lost = sofar
    x += lost
    new = total + x
    return new, jnp.where(jnp.isfinite(new), x - (new - total), 0)


def reduced_nested_scans() -> Program:
    """The same, of which the largest and the mean of what each key logs are kept."""

    def by_hand(xs):
        def inner(carry, x):
            total, largest = carry
            total = jnp.sin(total) + x
            return (total, jnp.maximum(largest, total)), None

        def outer(carry, row):
            total, largest, sofar = carry
            (total, largest), _ = jax.lax.scan(inner, (total, largest), row)
            return (total, largest, _add(sofar, total)), None

        (out, largest, sofar), _ = jax.lax.scan(outer, (0.0, -jnp.inf, (0.0, 0.0)), xs)
        return out, ({"total": largest[None], "row": (sum(sofar) / len(xs))[None]}, {})

    args = (jnp.linspace(0, 1, 10_000).reshape(100, 100),)
    return Program("nested scans, reduced", _nested, by_hand, args, {"reduce": {"total": "max", "row": "mean"}})


def hundred_sites() -> Program:
    """A hundred log calls, each with a key of its own."""

    def f(x, w):
        for i in range(100):
            x = jnp.tanh(x @ w)
            lox.log({f"mean{i}": x.mean()})
        return x

    def by_hand(x, w):
        means = {}
        for i in range(100):
            x = jnp.tanh(x @ w)
            means[f"mean{i}"] = x.mean()[None]
        return x, (means, {})

    return Program("100 sites", f, by_hand, tuple(jax.random.normal(jax.random.key(0), (2, 32, 32)) / 5))


def vmap_of_scan() -> Program:
    """64 batch elements of a scan of 1,000."""

    def f(x, rate):
        def step(x, _):
            x = x + rate * jnp.cos(x)
            lox.log({"x": x, "square": x * x})
            return x, None

        return jax.lax.scan(step, x, length=1000)[0]

    def by_hand(x, rate):
        def step(x, _):
            x = x + rate * jnp.cos(x)
            return x, {"x": x, "square": x * x}

        x, logs = jax.lax.scan(step, x, length=1000)
        return x, (logs, {})

    args = jnp.linspace(-1, 1, 64), 0.1
    return Program(
        "vmap of scan",
        jax.vmap(f, in_axes=(0, None)),
        jax.vmap(by_hand, in_axes=(0, None), out_axes=(0, 1)),
        args,
    )


def _network() -> tuple[Any, Any]:
    keys = jax.random.split(jax.random.key(0), 4)
    weights = {"hidden": jax.random.normal(keys[0], (8, 32)) / 3, "out": jax.random.normal(keys[1], (32, 1)) / 6}
    x = jax.random.normal(keys[2], (300, 32, 8))
    return weights, (x, jnp.sin(x.sum(-1, keepdims=True)))


def _forward(weights, x):
    hidden = jnp.tanh(x @ weights["hidden"])
    return hidden, hidden @ weights["out"]


def _descend(weights, grads):
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


def _norm(tree):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)))


def grad_in_scan() -> Program:
    """Training: a scan over 300 updates that logs in the loss, which is differentiated, and in the update."""

    def loss_of(weights, x, y):
        hidden, predicted = _forward(weights, x)
        loss = jnp.mean((predicted - y) ** 2)
        lox.log({"loss": loss, "activation": jnp.abs(hidden).mean()})
        return loss

    def f(weights, batches):
        def update(weights, batch):
            step, (x, y) = batch
            _, grads = jax.value_and_grad(loss_of)(weights, x, y)
            lox.log({"grad_norm": _norm(grads)}, step=step)
            return _descend(weights, grads), None

        return jax.lax.scan(update, weights, (jnp.arange(300), batches))[0]

    def loss_by_hand(weights, x, y):
        hidden, predicted = _forward(weights, x)
        loss = jnp.mean((predicted - y) ** 2)
        return loss, {"loss": loss, "activation": jnp.abs(hidden).mean()}

    def by_hand(weights, batches):
        def update(weights, batch):
            step, (x, y) = batch
            (_, logs), grads = jax.value_and_grad(loss_by_hand, has_aux=True)(weights, x, y)
            return _descend(weights, grads), (logs | {"grad_norm": _norm(grads)}, step)

        weights, (logs, steps) = jax.lax.scan(update, weights, (jnp.arange(300), batches))
        return weights, (logs, {"step": {"grad_norm": steps}})

    return Program("grad in scan", f, by_hand, _network())


def grad_of_scan() -> Program:
    """The gradient through 300 steps of a recurrence that logs in each."""

    def advance(weights, state, x):
        return jnp.tanh(state @ weights + x)

    def f(weights, state, xs):
        def step(state, x):
            state = advance(weights, state, x)
            lox.log({"mean": state.mean(), "largest": jnp.abs(state).max()})
            return state, None

        return jnp.sum(jax.lax.scan(step, state, xs)[0] ** 2)

    def by_hand(weights, state, xs):
        def step(state, x):
            state = advance(weights, state, x)
            return state, {"mean": state.mean(), "largest": jnp.abs(state).max()}

        state, logs = jax.lax.scan(step, state, xs)
        return jnp.sum(state**2), (logs, {})

    keys = jax.random.split(jax.random.key(1), 3)
    args = (
        jax.random.normal(keys[0], (32, 32)) / 6,
        jax.random.normal(keys[1], (16, 32)),
        jax.random.normal(keys[2], (300, 16, 32)),
    )
    return Program("grad of scan", jax.grad(f), jax.grad(by_hand, has_aux=True), args)


def reduced_scan() -> Program:
    """A scan of 10,000, of which only the mean of what it logs is kept."""

    def f(xs):
        def step(total, x):
            total = jnp.sin(total) + x
            lox.log({"total": total})
            return total, None

        return jax.lax.scan(step, 0.0, xs)[0]

    def by_hand(xs):
        def step(carry, x):
            total, sofar = carry
            total = jnp.sin(total) + x
            return (total, _add(sofar, total)), None

        (out, sofar), _ = jax.lax.scan(step, (0.0, (0.0, 0.0)), xs)
        return out, ({"total": (sum(sofar) / xs.size)[None]}, {})

    return Program("mean over scan", f, by_hand, (jnp.linspace(0, 1, 10_000),), {"reduce": "mean"})


def solver() -> Program:
    """Newton's method for a cubic root, 39 iterations of a `while_loop` of unknown length, of which 64 may be kept."""

    def improve(x, a):
        return x - (x**3 - a) / (3 * x**2)

    def f(a):
        def step(carry):
            i, x, _ = carry
            new = improve(x, a)
            error = jnp.abs(new - x)
            lox.log({"error": error}, step=i)
            return i + 1, new, error

        return jax.lax.while_loop(lambda carry: carry[2] > 1e-6 * carry[1], step, (0, a, a))[1]

    def by_hand(a):
        def step(carry):
            i, x, _, errors, steps = carry
            new = improve(x, a)
            error = jnp.abs(new - x)
            slot = jnp.minimum(i, 64)  # The last one is for all that do not fit, so that checkify finds no error.
            return i + 1, new, error, errors.at[slot].set(error), steps.at[slot].set(i)

        start = 0, a, a, jnp.zeros(65), jnp.zeros(65, int)
        trips, x, _, errors, steps = jax.lax.while_loop(lambda carry: carry[2] > 1e-6 * carry[1], step, start)
        happened, dropped = jnp.arange(64) < trips, jnp.maximum(trips - 64, 0)
        errors, steps = jnp.where(happened, errors[:64], jnp.nan), jnp.where(happened, steps[:64], 0)
        return x, ({"error": errors}, {"step": {"error": steps}}, {"error": happened}, {"error": dropped})

    return Program("while_loop solver", f, by_hand, (jnp.float32(1e9),), {"max_iters": 64}, events={"error": 39})


ALL = (
    straight_line,
    scan,
    scan_of_vectors,
    nested_scans,
    reduced_nested_scans,
    hundred_sites,
    vmap_of_scan,
    grad_in_scan,
    grad_of_scan,
    reduced_scan,
    solver,
)
