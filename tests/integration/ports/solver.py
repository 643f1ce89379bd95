"""An ODE solved with an adaptive step, in a while loop with a bound of steps, for several parameters in a vmap."""

import jax
import jax.numpy as jnp
from jax import lax

import lox

DAMPINGS = jnp.array([0.5, 2.0, 5.0])
END, MOST, TOLERANCE = 2.0, 64, 1e-2


def slope(damping, y):
    """The derivative of van der Pol's oscillator."""
    return jnp.stack([y[1], damping * (1 - y[0] ** 2) * y[1] - y[0]])


def attempt(damping, t, y, size):
    """A step by Heun's method with Euler's as its estimate of the error, and the size of the step after it."""
    size = jnp.minimum(size, END - t)
    first = slope(damping, y)
    second = slope(damping, y + size * first)
    new = y + size * (first + second) / 2
    error = jnp.max(jnp.abs(size * (second - first) / 2) / (TOLERANCE * (1 + jnp.abs(new))))
    factor = jnp.clip(0.9 / jnp.sqrt(jnp.maximum(error, 1e-6)), 0.2, 5.0)
    return size, new, error, size * factor


def start():
    return jnp.float32(0), jnp.array([2.0, 0.0]), jnp.float32(0.5)


# -- as it was -----------------------------------------------------------------------------------------------------


def solve_and_save(damping):
    """Solves, and returns the number of attempts, and what is of each in buffers."""

    def body(carry):
        number, t, y, size, saved = carry
        size, new, error, following = attempt(damping, t, y, size)
        accepted = error <= 1
        t, y = jnp.where(accepted, t + size, t), jnp.where(accepted, new, y)
        now = {"size": size, "error": error, "accepted": accepted, "t": t, "y": y}
        saved = jax.tree.map(lambda buffer, value: buffer.at[number].set(value), saved, now)
        return number + 1, t, y, following, saved

    t, y, size = start()
    one = {"size": size, "error": size, "accepted": jnp.bool(False), "t": t, "y": y}
    saved = jax.tree.map(lambda value: jnp.zeros((MOST, *value.shape), value.dtype), one)
    number, *_, saved = lax.while_loop(
        lambda carry: (carry[1] < END) & (carry[0] < MOST), body, (jnp.int32(0), t, y, size, saved)
    )
    return number, saved


def original():
    numbers, saved = jax.device_get(jax.jit(jax.vmap(solve_and_save))(DAMPINGS))
    runs = []
    for place, number in enumerate(numbers):
        of_run = {name: values[place, :number] for name, values in saved.items()}
        curves = {name: list(enumerate(of_run[name])) for name in ("size", "error")}
        accepted = of_run["accepted"].nonzero()[0]
        curves["t"] = [(step, of_run["t"][step]) for step in accepted]
        curves["position"] = [(step, of_run["y"][step, 0]) for step in accepted]
        curves["velocity"] = [(step, of_run["y"][step, 1]) for step in accepted]
        runs.append(curves)
    return runs


# -- with lox ------------------------------------------------------------------------------------------------------


def solve(damping):
    def body(carry):
        number, t, y, size = carry
        size, new, error, following = attempt(damping, t, y, size)
        accepted = error <= 1
        lox.log({"size": size, "error": error}, step=number)
        t, y = jnp.where(accepted, t + size, t), jnp.where(accepted, new, y)
        lox.log({"t": t, "position": y[0], "velocity": y[1]}, where=accepted, step=number)
        return number + 1, t, y, following

    return lax.while_loop(lambda carry: (carry[1] < END) & (carry[0] < MOST), body, (jnp.int32(0), *start()))


def ported(logger):
    def run(damping):
        return logger.spool(solve, logger.init(0, damping=damping), max_events=MOST)(damping)

    jax.jit(jax.vmap(run))(DAMPINGS)
    return [logger.init(0, damping=damping) for damping in DAMPINGS]
