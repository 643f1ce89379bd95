"""Keys that are logged together, over programs by hand that return the counters that they share once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._present import returning
from benchmarks._report import Figure, Table, main, ratio
from benchmarks._timing import alternate, alternate_cold, done, stopwatch

Function = Callable[..., Any]
LENGTH = 100_000


def measure() -> Iterator[Table]:
    yield Table(
        "jit(spool(f)) of one log call with a step, over the function by hand that returns the step once",
        ("program", "run time", "noise", "bytes returned", "temporary memory", "trace and compile", "by hand"),
        [
            *(running(f"scan of 100,000, {keys} keys", *scan(keys)) for keys in (1, 5, 20, 200)),
            *(running(f"64 batch elements, {keys} keys", *scan(keys, batch=64)) for keys in (1, 5)),
            running("4,096 batch elements, a cond that logs", *branches(), options={"unify": True}, target=1.1),
            running("one call of 1,000 keys", *straight(1000)),
        ],
        "Targets: 1.05 run time, 1.1 for the cond; 1.01 bytes; 1.25 to trace and compile. Noise is the function by\n"
        "hand over another compilation of itself.",
    )
    yield Table(
        "Eager calls of spool(jit(f)) with a step, over the jitted function by hand",
        ("program", "over by hand", "by hand, us"),
        [eager(keys) for keys in (3, 10, 100)],
        "Target: 1.2.",
    )


def scan(keys: int, batch: int | None = None) -> tuple[Function, Function, Any]:
    """A scan whose iterations log some keys with a step."""
    length = LENGTH if batch is None else LENGTH // 100

    def values(x):
        return {f"key{place}": x + place for place in range(keys)}

    def f(x):
        def step(x, i):
            lox.log(values(x), step=i)
            return 0.5 * x + 1, None

        return jax.lax.scan(step, x, jnp.arange(length))[0]

    def by_hand(x):
        def step(x, i):
            return 0.5 * x + 1, (values(x), i)

        return jax.lax.scan(step, x, jnp.arange(length))

    if batch is None:
        return f, by_hand, jnp.float32(0)
    return jax.vmap(f), jax.vmap(by_hand, out_axes=(0, 1)), jnp.arange(float(batch))


def branches() -> tuple[Function, Function, Any]:
    """A batch of scans whose iterations log two keys in a cond."""

    def iteration(x):
        return 0.5 * x + 1

    def f(x):
        def step(x, i):
            def report(x):
                lox.log({"x": x, "square": x * x}, step=i)

            jax.lax.cond(jnp.sin(x) > 0, report, lambda x: None, x)
            return iteration(x), None

        return jax.lax.scan(step, x, jnp.arange(100))[0]

    def by_hand(x):
        def step(x, i):
            def report(x):
                return {"x": x, "square": x * x}, i, True

            def nothing(x):
                return {"x": jnp.nan, "square": jnp.nan}, 0, False

            return iteration(x), jax.lax.cond(jnp.sin(x) > 0, report, nothing, x)

        return jax.lax.scan(step, x, jnp.arange(100))

    return jax.vmap(f), jax.vmap(by_hand, out_axes=(0, 1)), jnp.linspace(0, 9, 4096)


def straight(keys: int) -> tuple[Function, Function, Any]:
    """One call that logs many keys."""

    def values(x):
        return {f"key{place}": jnp.sin(x + place) for place in range(keys)}

    def f(x):
        lox.log(values(x), step=x.astype(int))
        return x

    def by_hand(x):
        return x, (jax.tree.map(lambda value: value[None], values(x)), x.astype(int)[None])

    return f, by_hand, jnp.float32(1)


def running(
    name: str, f: Function, by_hand: Function, x: Any, options: dict[str, Any] | None = None, target: float = 1.05
) -> tuple[Any, ...]:
    spooled = lox.spool(f, **(options or {}))
    check(spooled, by_hand, x)
    flat = [jax.jit(lambda x, fun=fun: jax.tree.leaves(fun(x))) for fun in (spooled, by_hand, by_hand)]
    returned, mine, again = alternate([done(function, x) for function in flat], rounds=100).T
    compiled = [function.lower(x).compile().memory_analysis() for function in flat[:2]]

    def stages(fun: Function) -> list[float]:
        return [stopwatch(lambda: jax.jit(fun).lower(x).compile())[0]]

    seconds = alternate_cold([lambda: stages(spooled), lambda: stages(by_hand)], rounds=5)[:, :, 0]
    return (
        name,
        Figure.of(returned / mine, target=target, digits=3),
        Figure.of(again / mine, digits=3),
        ratio(*(each.output_size_in_bytes for each in compiled), target=1.01),
        ratio(*(each.temp_size_in_bytes for each in compiled)),
        Figure.of(seconds[:, 0] / seconds[:, 1], target=1.25),
        f"{np.median(mine) * 1e6:,.0f} us, {np.median(seconds[:, 1]) * 1e3:,.0f} ms to compile",
    )


def check(spooled: Function, by_hand: Function, x: Any) -> None:
    """Raise an AssertionError unless both return the same arrays."""
    out, logs = jax.jit(spooled)(x)
    expected, (values, step, *mask) = jax.jit(by_hand)(x)
    np.testing.assert_allclose(out, expected, rtol=1e-5)
    for key, value in values.items():
        np.testing.assert_allclose(logs[key], value, rtol=1e-5)
        np.testing.assert_array_equal(logs.steps["step"][key], step)
        if mask:
            np.testing.assert_array_equal(logs.mask[key], *mask)
    assert len(jax.tree.leaves(logs)) == len(values) + 1 + len(mask)


def eager(keys: int) -> tuple[Any, ...]:
    @jax.jit
    def f(x):
        lox.log({f"key{key}": x + key for key in range(keys)}, step=x)
        return x + 1

    @jax.jit
    def by_hand(x):
        return x + 1, ({f"key{key}": (x + key)[None] for key in range(keys)}, x[None])

    x = jnp.float32(1)
    spooled = lox.spool(f)
    for function in (spooled, by_hand):
        returning(function, x, events=keys)
    mine, other = alternate([lambda: spooled(x), lambda: by_hand(x)], rounds=200).T
    return f"{keys} keys", Figure.of(mine / other, target=1.2), Figure.of(other * 1e6, digits=1)


if __name__ == "__main__":
    main({"timelines": measure})
