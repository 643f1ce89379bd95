"""`lox.progress` on programs of libraries that want an older JAX than the newest: diffrax and numpyro."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest

import lox
from lox._progress._board import Board


@pytest.fixture(autouse=True)
def promotes():
    with jax.numpy_dtype_promotion("standard"):  # As these libraries need.
        yield


@pytest.fixture
def loops(monkeypatch):
    """The loops that tell how far they are, with the number of iterations of each."""
    loops = {}
    report = Board.report

    def noted(self, loop, number, done, live):
        loops[loop] = loops.get(loop, 0) + done
        return report(self, loop, number, done, live)

    monkeypatch.setattr(Board, "report", noted)
    return loops


def samples(method, transform, chains=2, runs=1):
    """What `mcmc.run` draws under a transform, in its last run."""

    def model(y):
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0, 5))
        numpyro.sample("y", numpyro.distributions.Normal(mean, 1), obs=y)

    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model),
        num_warmup=4,
        num_samples=4,
        num_chains=chains,
        chain_method=method,
        progress_bar=False,
    )
    run, y = transform(mcmc.run), jnp.ones(3)
    for number in range(runs):
        run(jax.random.PRNGKey(number), y)
    return mcmc.get_samples()["mean"]


@pytest.mark.parametrize(("method", "chains", "runs"), [("sequential", 2, 1), ("vectorized", 2, 2)])
def test_chains_of_numpyro_have_a_bar_and_run_again(method, chains, runs, loops):
    expected = samples(method, lambda run: run, chains, runs)
    np.testing.assert_allclose(samples(method, lox.progress, chains, runs), expected, 1e-5, 1e-6)
    count = sum(count for loop, count in loops.items() if loop.length == 8)
    assert count == 8 * runs * (chains if method == "sequential" else 1)


@pytest.mark.parametrize("transform", ["alone", "vmap"])
def test_a_solver_of_diffrax_has_a_bar(transform, loops):
    def solve(y):
        controller = diffrax.PIDController(1e-4, 1e-4)
        term = diffrax.ODETerm(lambda t, y, args: -(y**2))
        return diffrax.diffeqsolve(term, diffrax.Tsit5(), 0.0, 1.0, None, y, stepsize_controller=controller).ys[0]

    fun, y = (jax.vmap(solve), jnp.array([0.5, 1.0, 3.0])) if transform == "vmap" else (solve, jnp.float32(1.0))
    fun = jax.jit(fun)
    np.testing.assert_allclose(lox.progress(fun, total=64)(y), fun(y), 1e-5, 1e-6)
    (loop,) = loops
    assert loop.length is None and loop.elements == y.size and loops[loop] > 3
