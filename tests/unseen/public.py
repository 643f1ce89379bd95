"""Functions of public libraries, which are taken to be right: each finding in them is read by hand."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from unseen.case import f32, flags, i32, key

PUBLIC: dict[str, Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]] = {}
"""By name, functions that import their library and return a callable and its arguments."""


def public(name):
    def keep(make):
        PUBLIC[name] = make
        return make

    return keep


TREE = {"w": f32(8, 4), "b": f32(4)}


def optimizer(make):
    def build():
        import optax

        transformation = make(optax)
        state = jax.eval_shape(transformation.init, TREE)
        return lambda grads, state, params: transformation.update(grads, state, params), (TREE, state, TREE)

    return build


OPTIMIZERS = {
    "adam": lambda optax: optax.adam(1e-3),
    "adamw": lambda optax: optax.adamw(1e-3),
    "lamb": lambda optax: optax.lamb(1e-3),
    "lion": lambda optax: optax.lion(1e-3),
    "adafactor": lambda optax: optax.adafactor(1e-3),
    "rmsprop": lambda optax: optax.rmsprop(1e-3),
    "shampoo-like chain": lambda optax: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)),
    "MultiSteps": lambda optax: optax.MultiSteps(optax.adam(1e-3), every_k_schedule=4),
    "schedule": lambda optax: optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 1.0, 10, 100)),
    "radam": lambda optax: optax.radam(1e-3),
}
for _name, _make in OPTIMIZERS.items():
    PUBLIC[f"optax.{_name}"] = optimizer(_make)


def loss(name, *args):
    def build():
        import optax

        function = getattr(optax, name) if hasattr(optax, name) else getattr(optax.losses, name)
        return lambda *arrays: function(*arrays).mean(), args

    PUBLIC[f"optax.{name}"] = build


loss("softmax_cross_entropy", f32(8, 5), f32(8, 5))
loss("softmax_cross_entropy_with_integer_labels", f32(8, 5), i32(8))
loss("sigmoid_binary_cross_entropy", f32(8), f32(8))
loss("huber_loss", f32(8), f32(8))
loss("ctc_loss", f32(2, 10, 6), f32(2, 10), i32(2, 4), f32(2, 4))
loss("cosine_distance", f32(8, 5), f32(8, 5))
loss("kl_divergence", f32(8, 5), f32(8, 5))
loss("hinge_loss", f32(8), f32(8))


def linen(name, make, *inputs, **options):
    def build():
        import flax.linen as nn

        module = make(nn)
        params = jax.eval_shape(lambda *xs: module.init(jax.random.key(0), *xs, **options), *inputs)
        return lambda params, *xs: module.apply(params, *xs, **options), (params, *inputs)

    PUBLIC[f"flax.linen.{name}"] = build


linen("Dense", lambda nn: nn.Dense(4), f32(2, 8))
linen("Conv", lambda nn: nn.Conv(4, (3, 3)), f32(2, 8, 8, 3))
linen("ConvTranspose", lambda nn: nn.ConvTranspose(4, (3, 3), (2, 2)), f32(2, 8, 8, 3))
linen("LayerNorm", lambda nn: nn.LayerNorm(), f32(2, 8))
linen("GroupNorm", lambda nn: nn.GroupNorm(2), f32(2, 4, 8))
linen("BatchNorm evaluating", lambda nn: nn.BatchNorm(use_running_average=True), f32(2, 8))
linen("Embed", lambda nn: nn.Embed(10, 4), i32(2, 5))
linen("MultiHeadDotProductAttention", lambda nn: nn.MultiHeadDotProductAttention(2), f32(2, 5, 8))
linen("RNN of LSTM", lambda nn: nn.RNN(nn.LSTMCell(4)), f32(2, 5, 8))
linen("RNN of GRU, lengths", lambda nn: nn.RNN(nn.GRUCell(4)), f32(2, 5, 8))
linen("SpectralNorm", lambda nn: nn.SpectralNorm(nn.Dense(4)), f32(2, 8), update_stats=False)
linen("WeightNorm", lambda nn: nn.WeightNorm(nn.Dense(4)), f32(2, 8))


@public("flax.linen.BatchNorm training")
def _():
    import flax.linen as nn

    module = nn.BatchNorm(use_running_average=False)
    variables = jax.eval_shape(module.init, jax.random.key(0), f32(4, 8))
    return lambda variables, x: module.apply(variables, x, mutable=["batch_stats"]), (variables, f32(4, 8))


@public("flax.linen.Dropout")
def _():
    import flax.linen as nn

    module = nn.Dropout(0.5, deterministic=False)
    return lambda x, rng: module.apply({}, x, rngs={"dropout": rng}), (f32(4, 8), key())


@public("flax.nnx.MultiHeadAttention")
def _():
    from flax import nnx

    model = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)
    return lambda state, x: nnx.merge(graph, state)(x), (state, f32(2, 5, 8))


def eqx_layer(name, make, *inputs):
    def build():
        import equinox as eqx

        layer = make(eqx.nn, jax.random.key(0))
        arrays, static = eqx.partition(layer, eqx.is_array)
        return lambda arrays, *xs: eqx.combine(arrays, static)(*xs), (arrays, *inputs)

    PUBLIC[f"equinox.nn.{name}"] = build


eqx_layer("MLP", lambda nn, rng: nn.MLP(4, 2, 16, 2, key=rng), f32(4))
eqx_layer("MultiheadAttention", lambda nn, rng: nn.MultiheadAttention(2, 8, key=rng), f32(5, 8), f32(6, 8), f32(6, 8))
eqx_layer("LSTMCell", lambda nn, rng: nn.LSTMCell(4, 8, key=rng), f32(4), (f32(8), f32(8)))
eqx_layer("GRUCell", lambda nn, rng: nn.GRUCell(4, 8, key=rng), f32(4), f32(8))
eqx_layer("LayerNorm", lambda nn, rng: nn.LayerNorm(8), f32(8))
eqx_layer("RotaryPositionalEmbedding", lambda nn, rng: nn.RotaryPositionalEmbedding(8), f32(5, 8))
eqx_layer("Conv2d", lambda nn, rng: nn.Conv2d(3, 4, 3, key=rng), f32(3, 8, 8))


def log_density(x):
    return -0.5 * jnp.sum(x**2)


def sampler(name, make):
    def build():
        import blackjax

        algorithm = make(blackjax)
        state = jax.eval_shape(algorithm.init, f32(3))
        return algorithm.step, (key(), state)

    PUBLIC[f"blackjax.{name}"] = build


sampler("hmc", lambda b: b.hmc(log_density, 0.1, jnp.ones(3), 5))
sampler("nuts", lambda b: b.nuts(log_density, 0.1, jnp.ones(3), max_num_doublings=4))
sampler("mala", lambda b: b.mala(log_density, 0.1))
sampler("random walk", lambda b: b.normal_random_walk(log_density, jnp.eye(3)))


@public("numpyro.Normal.log_prob")
def _():
    import numpyro.distributions as dist

    return lambda loc, scale, x: dist.Normal(loc, scale).log_prob(x).sum(), (f32(4), f32(4), f32(4))


@public("numpyro.Dirichlet.sample")
def _():
    import numpyro.distributions as dist

    return lambda rng, c: dist.Dirichlet(c).sample(rng, (3,)), (key(), f32(4))


@public("numpyro.MultivariateNormal.log_prob")
def _():
    import numpyro.distributions as dist

    return lambda m, t, x: dist.MultivariateNormal(m, scale_tril=t).log_prob(x), (f32(3), f32(3, 3), f32(5, 3))


@public("numpyro.infer.SVI.update")
def _():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", 10):
            numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    svi = SVI(model, autoguide.AutoNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.key(0), jnp.ones((10, 3)), jnp.ones(10))
    return svi.update, (state, f32(10, 3), f32(10))


@public("numpyro.infer.log_density")
def _():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.util import log_density as density

    def model(x):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        numpyro.sample("x", dist.StudentT(3.0, mu, 1.0), obs=x)

    return lambda mu, x: density(model, (x,), {}, {"mu": mu})[0], (f32(), f32(20))


@public("diffrax.diffeqsolve Tsit5")
def _():
    import diffrax

    def solve(y0, rate):
        term = diffrax.ODETerm(lambda t, y, args: -args * y)
        control = diffrax.PIDController(rtol=1e-4, atol=1e-6)
        saved = diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 8))
        return diffrax.diffeqsolve(
            term, diffrax.Tsit5(), 0.0, 1.0, 0.1, y0, args=rate, saveat=saved, stepsize_controller=control
        ).ys

    return solve, (f32(3), f32())


@public("diffrax.diffeqsolve Euler, noise")
def _():
    import diffrax

    def solve(y0, rng):
        path = diffrax.VirtualBrownianTree(0.0, 1.0, 1e-2, shape=(3,), key=rng)
        terms = diffrax.MultiTerm(
            diffrax.ODETerm(lambda t, y, args: -y),
            diffrax.ControlTerm(lambda t, y, args: 0.1 * jnp.eye(3), path),
        )
        return diffrax.diffeqsolve(terms, diffrax.Euler(), 0.0, 1.0, 0.1, y0).ys

    return solve, (f32(3), key())


@public("lineax.linear_solve LU")
def _():
    import lineax as lx

    return lambda a, b: lx.linear_solve(lx.MatrixLinearOperator(a), b, lx.LU()).value, (f32(4, 4), f32(4))


@public("lineax.linear_solve CG")
def _():
    import lineax as lx

    def solve(a, b):
        operator = lx.MatrixLinearOperator(a @ a.T + jnp.eye(4), lx.positive_semidefinite_tag)
        return lx.linear_solve(operator, b, lx.CG(1e-5, 1e-5)).value

    return solve, (f32(4, 4), f32(4))


@public("optimistix.root_find Newton")
def _():
    import optimistix as optx

    def solve(y0, a):
        return optx.root_find(lambda y, args: y**3 + y - args, optx.Newton(1e-5, 1e-5), y0, args=a).value

    return solve, (f32(3), f32(3))


@public("optimistix.minimise BFGS")
def _():
    import optimistix as optx

    def solve(y0, a):
        return optx.minimise(lambda y, args: jnp.sum((y - args) ** 2), optx.BFGS(1e-5, 1e-5), y0, args=a).value

    return solve, (f32(3), f32(3))


@public("optimistix.least_squares LevenbergMarquardt")
def _():
    import optimistix as optx

    def solve(y0, x, y):
        residual = lambda p, args: p[0] * jnp.exp(-p[1] * args[0]) - args[1]
        return optx.least_squares(residual, optx.LevenbergMarquardt(1e-4, 1e-4), y0, args=(x, y)).value

    return solve, (f32(2), f32(20), f32(20))


@public("jaxopt.LBFGS")
def _():
    import jaxopt

    solver = jaxopt.LBFGS(lambda p, x: jnp.sum((x @ p - 1.0) ** 2), maxiter=10, jit=True)
    return lambda p, x: solver.run(p, x).params, (f32(3), f32(10, 3))


@public("jaxopt.projection_simplex")
def _():
    import jaxopt

    return jaxopt.projection.projection_simplex, (f32(6),)


@public("distrax.Categorical entropy")
def _():
    import distrax

    return lambda logits: distrax.Categorical(logits=logits).entropy().mean(), (f32(8, 5),)


@public("distrax.MultivariateNormalDiag sample_and_log_prob")
def _():
    import distrax

    def sample(rng, loc, scale):
        return distrax.MultivariateNormalDiag(loc, scale).sample_and_log_prob(seed=rng)

    return sample, (key(), f32(8, 3), f32(8, 3))


@public("distrax.Transformed tanh")
def _():
    import distrax

    def log_prob(loc, scale, x):
        bijector = distrax.Block(distrax.Tanh(), 1)
        return distrax.Transformed(distrax.MultivariateNormalDiag(loc, scale), bijector).log_prob(x)

    return log_prob, (f32(8, 3), f32(8, 3), f32(8, 3))


def haiku_module(name, make, *inputs):
    def build():
        import haiku as hk

        transformed = hk.transform(lambda *xs: make(hk)(*xs))
        params = jax.eval_shape(transformed.init, jax.random.key(0), *inputs)
        return lambda params, rng, *xs: transformed.apply(params, rng, *xs), (params, key(), *inputs)

    PUBLIC[f"haiku.{name}"] = build


haiku_module("nets.MLP", lambda hk: hk.nets.MLP([16, 4]), f32(2, 8))
haiku_module(
    "MultiHeadAttention",
    lambda hk: hk.MultiHeadAttention(2, 4, w_init=hk.initializers.RandomNormal()),
    *[f32(5, 8)] * 3,
)
haiku_module(
    "LSTM over time", lambda hk: lambda x: hk.dynamic_unroll(hk.LSTM(4), x, hk.LSTM(4).initial_state(2)), f32(7, 2, 8)
)
haiku_module("LayerNorm", lambda hk: hk.LayerNorm(-1, True, True), f32(2, 8))


@public("rlax.truncated_generalized_advantage_estimation")
def _():
    import rlax

    def gae(rewards, discounts, values):
        return jax.vmap(rlax.truncated_generalized_advantage_estimation, (1, 1, None, 1), 1)(
            rewards, discounts, 0.95, values
        )

    return gae, (f32(20, 4), f32(20, 4), f32(21, 4))


@public("rlax.vtrace")
def _():
    import rlax

    return rlax.vtrace, (f32(20), f32(20), f32(20), f32(20), f32(20))


@public("rlax.double_q_learning")
def _():
    import rlax

    def error(q, a, r, d, qv, qs):
        return jnp.mean(jax.vmap(rlax.double_q_learning)(q, a, r, d, qv, qs) ** 2)

    return error, (f32(8, 4), i32(8), f32(8), f32(8), f32(8, 4), f32(8, 4))


@public("rlax.clipped_surrogate_pg_loss")
def _():
    import rlax

    return lambda ratio, adv: rlax.clipped_surrogate_pg_loss(ratio, adv, 0.2), (f32(32), f32(32))


@public("gymnax CartPole rollout")
def _():
    import gymnax

    env, env_params = gymnax.make("CartPole-v1")

    def rollout(rng):
        reset_rng, rng = jax.random.split(rng)
        obs, state = env.reset(reset_rng, env_params)

        def step(carry, k):
            state, obs = carry
            act_rng, step_rng = jax.random.split(k)
            action = env.action_space(env_params).sample(act_rng)
            obs, state, reward, done, *_ = env.step(step_rng, state, action, env_params)
            return (state, obs), (reward, done)

        return jax.lax.scan(step, (state, obs), jax.random.split(rng, 30))[1]

    return rollout, (key(),)


@public("gymnax Pendulum step")
def _():
    import gymnax

    env, env_params = gymnax.make("Pendulum-v1")

    def one(rng, action):
        k1, k2 = jax.random.split(rng)
        _, state = env.reset(k1, env_params)
        return env.step(k2, state, action, env_params)

    return jax.vmap(one), (jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8)), f32(8, 1))


@public("chex.dataclass step")
def _():
    import chex

    @chex.dataclass
    class State:
        x: chex.Array
        n: chex.Array

    def run(state, xs):
        return jax.lax.scan(lambda s, x: (State(x=s.x + x, n=s.n + 1), s.x), state, xs)

    return run, (State(x=f32(3), n=i32()), f32(10, 3))


@public("jax.nn.dot_product_attention")
def _():
    def attend(q, k, v, mask):
        return jax.nn.dot_product_attention(q, k, v, mask=mask)

    return attend, (f32(2, 5, 2, 8), f32(2, 6, 2, 8), f32(2, 6, 2, 8), flags(2, 2, 5, 6))


@public("jax.scipy.optimize.minimize")
def _():
    from jax.scipy.optimize import minimize

    return lambda x: minimize(lambda y: jnp.sum((y - 1.0) ** 2), x, method="BFGS").x, (f32(3),)


@public("jax.experimental.ode.odeint")
def _():
    from jax.experimental.ode import odeint

    return lambda y0: odeint(lambda y, t: -y, y0, jnp.linspace(0.0, 1.0, 5)), (f32(3),)
