"""A solver with an adaptive step, in a `while_loop`: the error of each step, also of those that were rejected.

    python docs/examples/solver.py

How many steps it takes is not known before it has run. Three ways to hear of them: as they happen, the first n of them,
and folded into one number.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import lox

TOLERANCE = 1e-5


def solve(field, state, end):
    """Integrates d state / dt = field(state) from 0 to `end` by Heun's method; its error is taken to be Euler's."""

    def unfinished(carry):
        time, _, _ = carry
        return time < end

    def step(carry):
        time, state, size = carry
        size = jnp.minimum(size, end - time)
        slope = field(state)
        euler = state + size * slope
        heun = state + size * (slope + field(euler)) / 2
        error = jnp.abs(heun - euler).max()
        accepted = error <= TOLERANCE
        lox.log({"error": error, "size": size, "accepted": accepted}, time=time)
        factor = jnp.clip(0.9 * jnp.sqrt(TOLERANCE / jnp.maximum(error, 1e-12)), 0.2, 5.0)
        return jnp.where(accepted, time + size, time), jnp.where(accepted, heun, state), size * factor

    return jax.lax.while_loop(unfinished, step, (jnp.float32(0), state, jnp.float32(0.1)))[1]


def pendulum(state):
    """The angle and the speed of a pendulum."""
    angle, speed = state
    return jnp.stack([speed, -jnp.sin(angle)])


def main() -> None:
    """Solves it, in each of the ways, and for several beginnings at once."""
    start, end = jnp.array([1.0, 0.0]), jnp.float32(5)

    sizes: list[float] = []
    jax.jit(lox.tap(solve, lambda logs: sizes.extend(logs["size"]), argnames="size"), static_argnums=0)(
        pendulum, start, end
    )
    lox.flush()
    print(f"as they happen: {len(sizes)} steps, the smallest {min(sizes):.5f}")

    _, logs = jax.jit(lox.spool(solve, max_events=5000), static_argnums=0)(pendulum, start, end)
    accepted = logs.valid("accepted")
    dropped = logs.dropped["accepted"].item()
    print(f"the first 5000: {accepted.sum()} accepted, {(~accepted).sum()} rejected, {dropped} did not fit")

    _, logs = jax.jit(lox.spool(solve, reduce={"error": "max", "size": "mean", "accepted": "count"}), static_argnums=0)(
        pendulum, start, end
    )
    print(f"folded: the largest error {logs['error'].item():.2g}, of {logs['accepted'].item()} steps")

    starts = jnp.stack([jnp.linspace(0.5, 3, 4), jnp.zeros(4)], 1)
    spooled = lox.spool(jax.vmap(lambda start: solve(pendulum, start, end)), max_events=5000)
    _, logs = jax.jit(spooled)(starts)
    steps = np.asarray(logs.mask["error"]).sum(0)
    print(f"four at once: {', '.join(map(str, steps))} steps, which differ, and each batch element has its own")


if __name__ == "__main__":
    main()
