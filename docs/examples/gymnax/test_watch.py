"""`lox.watch` on programs of libraries that want an older JAX than the newest: diffrax and numpyro."""

import diffrax
import jax
import jax.numpy as jnp
import lineax
import numpy as np
import numpyro
import optimistix
import ppo
import pytest

import lox


@pytest.fixture(autouse=True)
def promotes():
    with jax.numpy_dtype_promotion("standard"):  # As these libraries need.
        yield


def values_of(point, values):
    return {str(number): value for number, value in enumerate(values)}


def watched(fun, at="**", **options):
    """What a function returns, and the logs of its points, as a function of the arguments of it."""
    return lox.spool(lox.watch(fun, at=at, what=values_of), **options)


def assert_close(found, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), found, expected)


@pytest.mark.parametrize(
    "adjoint", [diffrax.DirectAdjoint(), diffrax.RecursiveCheckpointAdjoint()], ids=["direct", "recursive"]
)
def test_the_derivative_of_a_solver_of_diffrax_is_that_without_a_watcher(adjoint):
    def solve(y):
        terms = diffrax.ODETerm(lambda t, y, args: -(y**2))
        return diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.25, y, adjoint=adjoint, max_steps=8).ys[0]

    out, logs = watched(jax.value_and_grad(solve), lambda point: point.kind in ("scan", "while"), max_iters=16)(1.0)
    assert_close(out, jax.value_and_grad(solve)(1.0))
    assert logs


def test_a_solver_of_diffrax_logs_each_evaluation():
    def field(t, y, args):
        with jax.named_scope("field"):
            return -y

    def solve(y):
        terms, adjoint = diffrax.ODETerm(field), diffrax.DirectAdjoint()
        return diffrax.diffeqsolve(
            terms, diffrax.Euler(), 0.0, 1.0, 0.25, y, adjoint=adjoint, max_steps=4, throw=False
        ).ys

    out, logs = watched(solve, "**/field")(1.0)
    assert_close(out, solve(1.0))
    (key,) = logs
    assert_close(logs.valid(key), -(0.75 ** jnp.arange(4)))


def test_chains_of_numpyro_log_their_loops_and_stay_what_they_are():
    def model(y):
        mean = numpyro.sample("mean", numpyro.distributions.Normal(0, 5))
        numpyro.sample("y", numpyro.distributions.Normal(mean, 1), obs=y)

    def run(key, method):
        kernel = numpyro.infer.NUTS(model)
        mcmc = numpyro.infer.MCMC(
            kernel, num_warmup=4, num_samples=4, num_chains=2, chain_method=method, progress_bar=False
        )
        mcmc.run(key, jnp.ones(3))
        return mcmc.get_samples()["mean"]

    for method in ("sequential", "vectorized"):
        out, logs = watched(run, "**/scan", max_iters=1024)(jax.random.PRNGKey(0), method)
        assert_close(out, run(jax.random.PRNGKey(0), method))
        assert logs


def test_a_model_of_numpyro_logs_its_loops():
    def model(y):
        numpyro.sample(
            "y", numpyro.distributions.Normal(numpyro.sample("mu", numpyro.distributions.Normal(0, 5))), obs=y
        )

    def run(key):
        guide = numpyro.infer.autoguide.AutoNormal(model)
        svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.1), numpyro.infer.Trace_ELBO())
        return svi.run(key, 4, jnp.ones(3), progress_bar=False).losses

    out, logs = watched(run)(jax.random.PRNGKey(0))
    assert_close(out, run(jax.random.PRNGKey(0)))
    assert logs and all(len(values) for values in logs.values())


@pytest.mark.parametrize("adjoint", [diffrax.BacksolveAdjoint(), diffrax.ForwardMode()], ids=["backsolve", "forward"])
def test_the_derivatives_of_adaptive_solvers_are_those_without_a_watcher(adjoint):
    def field(t, y, args):
        with jax.named_scope("field"):
            return -(y**2) * args

    def solve(y):
        controller = diffrax.PIDController(1e-4, 1e-4)
        options = {"adjoint": adjoint, "stepsize_controller": controller, "max_steps": 64}
        return diffrax.diffeqsolve(diffrax.ODETerm(field), diffrax.Tsit5(), 0.0, 1.0, None, y, 2.0, **options).ys[0]

    if isinstance(adjoint, diffrax.ForwardMode):
        derived = lambda y: jax.jvp(solve, (y,), (1.0,))  # noqa: E731
    else:
        derived = jax.value_and_grad(solve)
    fields = lambda point: point.name == "field" and not point.obstacle  # noqa: E731
    out, logs = watched(derived, fields, max_events=500)(1.0)
    assert_close(out, derived(1.0))
    assert logs and all(len(logs.valid(key)) for key in logs)


@pytest.mark.parametrize("transform", ["alone", "vmap", "grad"])
def test_a_root_finder_of_optimistix_logs_its_iterations(transform):
    def solve(target):
        weights = jnp.array([[1.0, 0.2], [0.1, 1.0]])
        residuals = lambda y, args: jnp.tanh(y @ weights) - args  # noqa: E731
        solver = optimistix.Newton(1e-5, 1e-5)
        return optimistix.root_find(residuals, solver, jnp.zeros(2), target, max_steps=8).value

    target = jnp.array([0.3, -0.2])
    both = lambda target: (solve(target).sum(), solve(target))  # noqa: E731
    fun = {"alone": solve, "vmap": jax.vmap(solve), "grad": jax.grad(both, has_aux=True)}[transform]
    target = jnp.stack([target, 2 * target]) if transform == "vmap" else target
    out, logs = watched(fun, "root_find/**/while", max_iters=8)(target)
    assert_close(out, fun(target))
    out = out[1] if transform == "grad" else out
    (key,) = [key for key in logs if key.startswith("root_find/") and key.endswith("while/3")]
    assert key == ("root_find/rule[1]/while/3" if transform == "grad" else "root_find/while/3")
    iterates, happened = logs[key], logs.mask[key]
    last = happened.sum(0) - 1  # The last iterate is what is returned.
    assert_close(jnp.take_along_axis(iterates, last[None, ..., None], 0)[0], out)


SOLVERS = {
    "root_find": (optimistix.root_find, optimistix.Newton(1e-3, 1e-3)),
    "least_squares": (optimistix.least_squares, optimistix.LevenbergMarquardt(1e-3, 1e-3)),
}


@pytest.mark.parametrize(("find", "solver"), SOLVERS.values(), ids=SOLVERS.keys())
def test_the_derivative_of_a_solver_of_optimistix_may_be_of_a_function_with_points(find, solver):
    def residual(y, target):
        with jax.named_scope("residual"):
            return y * y - target

    def solve(target):
        return find(residual, solver, jnp.float32(1.5), target, max_steps=8).value

    fun, target = jax.jit(jax.grad(solve)), jnp.float32(2)
    fits = lambda point: point.name == "residual" and not point.obstacle  # noqa: E731
    out, logs = watched(fun, fits, max_iters=8)(target)
    assert_close(out, fun(target))
    (key,) = [key for key in logs if key.endswith("/while/residual/0")]
    assert abs(logs.valid(key)[-1]) < 1e-2


@pytest.mark.parametrize("solver", [lineax.LU(), lineax.GMRES(1e-3, 1e-3)], ids=["LU", "GMRES"])
def test_what_a_linear_solver_of_lineax_computes_for_a_derivative_is_not_taken_for_cotangents(solver):
    matrix = jnp.array([[3.0, 1.0], [5.0, 2.0]])

    def solve(scale):
        apply = jax.named_scope("apply")(lambda x: scale * matrix @ x)
        operator = lineax.FunctionLinearOperator(apply, jax.ShapeDtypeStruct((2,), jnp.float32))
        return lineax.linear_solve(operator, jnp.array([1.0, 2.0]), solver).value.sum()

    fun = jax.jit(jax.grad(solve))
    found = [point for point in lox.points(fun)(3.0) if point.backward and point.name == "apply"]
    assert found and all("a library computes other values" in point.obstacle for point in found)
    with pytest.raises(lox.UnsupportedPrimitiveError, match="a library computes other values"):
        watched(fun, "**/backward/**/apply")(3.0)
    out, _ = watched(fun, lambda point: not point.obstacle and not point.backward, max_iters=4)(3.0)
    assert_close(out, fun(3.0))


def test_a_training_of_ppo_is_watched_for_each_seed(monkeypatch):
    for name, value in {"ENVS": 4, "TIME": 8, "UPDATES": 2, "PARTS": 2}.items():
        monkeypatch.setattr(ppo, name, value)
    keys = jax.random.split(jax.random.key(0), 2)
    train = jax.vmap(ppo.train)
    expected = jax.jit(train)(keys)
    out, logs = jax.jit(watched(train, "scan", reduce="last", tags="watch"))(keys)
    assert_close(out, expected)
    for number, params in enumerate(jax.tree.leaves(out)):  # The carry begins with them.
        assert_close(logs[f"scan/{number}"][0], params)
