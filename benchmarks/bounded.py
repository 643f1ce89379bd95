"""Events of loops of unknown length, bounded by their number: the cost of the buffer, and of its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import lox
from benchmarks._report import Figure, Table, main
from benchmarks._timing import alternate, done

Function = Callable[..., Any]
BOUND = 4096


def measure() -> Iterator[Table]:
    states = jnp.linspace(1.0, 2.0, 32)
    batch = jnp.stack([states * scale for scale in np.linspace(0.5, 1.5, 16)])
    yield Table(
        f"jit(spool(f, max_events={BOUND:,})) over f",
        ("program", "over f", "over max_events=64", "f, us", "events"),
        [
            running("implicit solver, two nested while_loops", solve, states, target=1.3),
            running("the same, vmap(spool(f))", solve, batch, jax.vmap),
            running("the same, spool(vmap(f))", jax.vmap(solve), batch),
            running("a cond around a while_loop, in a batch", jax.vmap(sometimes), batch, target=1.5),
        ],
        "Targets: 1.3 for the solver, 1.5 for the batched cond; 1.1 over a bound of 64, so that what is moved in an\n"
        "iteration does not grow with the bound.",
    )


def solve(state):
    """The implicit Euler method with Newton's. Both stop by themselves."""

    def slope(state):
        return -jnp.sin(state) * jnp.roll(state, 1)

    def step(carry):
        time, state = carry

        def newton(carry):
            number, guess, _ = carry
            residual = guess - state - 0.01 * slope(guess)
            change = jnp.linalg.solve(jax.jacfwd(lambda x: x - 0.01 * slope(x))(guess), residual)
            error = jnp.abs(change).max()
            lox.log({"error": error}, time=time, iteration=number)
            return number + 1, guess - change, error

        _, state, error = jax.lax.while_loop(lambda carry: carry[2] > 1e-5, newton, (0, state, jnp.inf))
        lox.log({"state": state.mean(), "last error": error}, time=time)
        return time + 0.01, state

    return jax.lax.while_loop(lambda carry: carry[0] < 1.0, step, (0.0, state))[1]


def sometimes(state):
    """Solves where a condition holds that differs between batch elements."""
    return jax.lax.cond(state[0] > 0.8, solve, lambda state: state, state)


def running(
    name: str, f: Function, x: Any, outer: Callable[[Function], Function] = lambda f: f, target: float | None = None
) -> tuple[Any, ...]:
    spooled, small = (outer(lox.spool(f, max_events=bound, unify=True)) for bound in (BOUND, 64))
    _, logs = jax.jit(spooled)(x)
    happened = int(np.sum(logs.mask["error"])) + int(np.sum(logs.dropped["error"]))
    if happened < 100:
        raise AssertionError(f"{name} logs {happened} errors, and is to log at least 100.")
    functions = [jax.jit(lambda x, fun=fun: jax.tree.leaves(fun(x))) for fun in (spooled, small, outer(f))]
    large, less, alone = alternate([done(function, x) for function in functions], rounds=30).T
    return (
        name,
        Figure.of(large / alone, target=target) if target else Figure.of(large / alone),
        Figure.of(large / less, target=1.1),
        Figure.of(alone * 1e6, digits=0),
        f"{happened:,}",
    )


if __name__ == "__main__":
    main({"bounded": measure})
