"""An audit finds nothing wrong in what people trust: JAX's own functions, optax, flax, equinox and our programs.

What it says of them nevertheless, and rightly, is listed in `EXPECTED` with the reason.
"""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.scipy.cluster.vq
import jax.scipy.optimize
import jax.scipy.sparse.linalg
import optax
import pytest
from flax import nnx
from jax import lax
from jax.experimental.ode import odeint

import lox
from benchmarks import programs, training
from lox.demo import training as demo

EXPECTED = {
    "benchmarks.programs.hundred_sites": {"LOX207": "A loop of Python makes a hundred layers."},
    "loss of jax.numpy.linalg.lstsq": {"LOX606": "The norm of residuals that are zero has no derivative."},
    "grad of jax.numpy.linalg.lstsq": {"LOX606": "The same, of a derivative that the program takes itself."},
    "benchmarks.programs.solver": {"LOX900": "What logs in a while_loop, lox.spool needs max_iters= for."},
}
"""The codes of what is found in a program, with the reason for which it is right."""

PROGRAMS = {}
"""By name, what makes a function, its arguments and the keywords of its audit."""


@pytest.fixture(autouse=True)
def promotion():
    with jax.numpy_dtype_promotion("standard"):  # What libraries compute needs it.
        yield


def program(make):
    """Registers what makes a function, its arguments and the keywords of its audit, by its name."""
    PROGRAMS[make.__name__.replace("_", " ")] = make
    return make


def functions(module, calls, grad=False):
    """Registers functions of a module, as far as this version has them, with the arguments of a call.

    Args:
        module: The module.
        calls: The arguments by the name of the function.
        grad: Whether it is audited for a derivative by the first argument too, and the derivative itself.
    """
    for name, (args, kwargs) in calls.items():
        fun = functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), module)
        if fun is not None:
            title = f"{module.__name__}.{name}"
            PROGRAMS[title] = functools.partial(_call, fun, args, kwargs)
            if grad:
                loss = functools.partial(_loss, fun, kwargs)
                PROGRAMS[f"loss of {title}"] = lambda loss=loss, args=args: (loss(), args, {"differentiate": "x"})
                PROGRAMS[f"grad of {title}"] = lambda loss=loss, args=args: (jax.value_and_grad(loss()), args, {})


def _call(fun, args, kwargs):
    return lambda *arrays: fun(*arrays, **kwargs), args, {}


def _loss(fun, kwargs):
    def loss(x, *rest):
        return sum(jnp.real(jnp.sum(result)) for result in jax.tree.leaves(fun(x, *rest, **kwargs)))

    return loss


def each(names, *args, **kwargs):
    """The same arguments for functions of several names."""
    return dict.fromkeys(names.split(), (args, kwargs))


def of(*args, **kwargs):
    """The arguments of a function."""
    return args, kwargs


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def i32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def c64(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.complex64)


def flags(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bool_)


KEY = jax.eval_shape(lambda: jax.random.key(0))
X, SQUARE, SCALAR, VECTOR, COUNTS = f32(4, 8), f32(5, 5), f32(), f32(6), i32(4, 8)


# -- JAX -----------------------------------------------------------------------------------------------------------

functions(
    jax.nn,
    each("celu elu gelu glu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid log_softmax", X)
    | each("logmeanexp logsumexp mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus", X)
    | each("sparse_sigmoid squareplus standardize swish tanh log1mexp", X)
    | each("dot_product_attention", f32(2, 6, 4, 8), f32(2, 6, 4, 8), f32(2, 6, 4, 8), is_causal=True)
    | each("scaled_dot_general", X, f32(3, 8), dimension_numbers=(((1,), (1,)), ((), ()))),
    grad=True,
)
functions(jax.nn, {"one_hot": of(i32(4), num_classes=10)})
functions(
    jax.nn.initializers,
    each("ones zeros", KEY, (4, 8)),
)
functions(
    jax.scipy.special,
    each("beta betaln kl_div rel_entr xlog1py xlogy boxcox boxcox1p gammainc gammaincc owens_t poch", X, X)
    | each("dawsn digamma entr erf erfc erfcinv erfcx erfinv exp1 expi expit fresnel gamma gammaln i0 i0e i1 i1e", X)
    | each("log_ndtr log_softmax logit logsumexp ndtr ndtri sici softmax spence factorial", X)
    | {
        "hyp1f1": of(X, X, X),
        "hyp2f1": of(X, X, X, X),
        "comb": of(X, X),
        "zeta": of(X, X),
        "wofz": of(c64(3)),
        "loggamma": of(X),
    },
    grad=True,
)
functions(
    jax.scipy.special,
    {
        "bernoulli": of(n=4),
        "gammasgn": of(X),
        "betainc": of(X, X, X),
        "bessel_jn": of(f32(3), v=4),
        "expn": of(2, X),
        "multigammaln": of(X, 3),
        "polygamma": of(1, X),
        "sph_harm_y": of(i32(3), i32(3), f32(3), f32(3), n_max=4),
    },
)


def densities(families, *args):
    """The arguments for the functions of distributions."""
    kinds = "logpdf pdf cdf logcdf sf logsf isf logpmf pmf".split()
    names = (f"{family}.{kind}" for family in families.split() for kind in kinds)
    return {
        name: of(*args) for name in names if hasattr(getattr(jax.scipy.stats, name.split(".")[0]), name.split(".")[1])
    }


functions(
    jax.scipy.stats,
    densities("cauchy expon gumbel_l gumbel_r laplace logistic norm", X)
    | densities("chi2 gamma gennorm pareto t vonmises wrapcauchy", X, X)
    | densities("beta", X, X, X)
    | densities("truncnorm", X, X, X),
    grad=True,
)
functions(
    jax.scipy.stats,
    densities("uniform", X)
    | densities("bernoulli geom poisson", COUNTS, X)
    | densities("binom nbinom", COUNTS, X, X)
    | densities("betabinom", COUNTS, X, X, X),
)
functions(
    jax.scipy.stats,
    {
        "dirichlet.logpdf": of(f32(3), f32(3)),
        "multinomial.logpmf": of(i32(3), 10, f32(3)),
        "multivariate_normal.logpdf": of(f32(4, 3), f32(3), f32(3, 3)),
        "poisson.entropy": of(X),
        "norm.ppf": of(X),
        "mode": of(X),
        "rankdata": of(X),
        "sem": of(X),
    },
)
functions(
    jax.scipy.linalg,
    each("cholesky cho_factor det eigh expm inv lu lu_factor polar qr schur sqrtm svd circulant toeplitz", SQUARE)
    | each("hessenberg block_diag", SQUARE)
    | {
        "cho_solve": of((SQUARE, False), f32(5)),
        "eigh_tridiagonal": of(f32(5), f32(4), eigvals_only=True),
        "expm_frechet": of(SQUARE, SQUARE),
        "lu_solve": of((SQUARE, i32(5)), f32(5)),
        "solve": of(SQUARE, f32(5)),
        "solve_triangular": of(SQUARE, f32(5), lower=True),
        "solve_sylvester": of(SQUARE, SQUARE, SQUARE),
        "companion": of(f32(5)),
        "convolution_matrix": of(f32(5), n=3),
        "fiedler": of(f32(5)),
        "fiedler_companion": of(f32(5)),
        "funm": of(SQUARE, func=jnp.exp),
        "hankel": of(f32(5)),
        "leslie": of(f32(5), f32(4)),
        "qr_multiply": of(SQUARE, SQUARE),
        "rsf2csf": of(SQUARE, SQUARE),
    }
    | each("dft hadamard helmert hilbert invhilbert invpascal pascal", n=4),
)
functions(
    jax.scipy.signal,
    each("convolve correlate fftconvolve", f32(32), f32(5))
    | each("convolve2d correlate2d", f32(8, 8), f32(3, 3))
    | each("stft welch", f32(256), nperseg=64)
    | {"csd": of(f32(256), f32(256), nperseg=64), "detrend": of(f32(32)), "istft": of(c64(33, 9), nperseg=64)},
)
functions(jax.scipy.ndimage, {"map_coordinates": of(f32(8, 8), [f32(5), f32(5)], order=1)}, grad=True)
functions(jax.scipy.fft, each("dct dctn idct idctn", f32(8, 8)))
functions(jax.scipy.integrate, each("trapezoid", f32(8)))
functions(jax.scipy.cluster.vq, each("vq", f32(20, 3), f32(4, 3)))
functions(jax.scipy.optimize, {"minimize": of(lambda x: jnp.sum((x - 1) ** 2), f32(3), method="BFGS")})
functions(jax.scipy.sparse.linalg, each("cg bicgstab gmres", SQUARE, f32(5)))
functions(
    jax.numpy.linalg,
    each("cholesky det diagonal eigh eigvalsh inv matrix_transpose pinv slogdet svdvals trace", SQUARE)
    | each("cross outer vecdot", f32(3), f32(3))
    | each("lstsq solve matmul tensordot", SQUARE, SQUARE)
    | {"matrix_power": of(SQUARE, n=3), "multi_dot": of([SQUARE, SQUARE, SQUARE])}
    | {"tensorinv": of(f32(6, 2, 3), ind=1), "tensorsolve": of(f32(6, 2, 3), f32(6))},
    grad=True,
)
functions(
    jax.numpy.linalg,
    each("cond eig eigvals matrix_norm matrix_rank norm qr svd vector_norm", SQUARE),
)
functions(
    jax.numpy.fft,
    each("fft fft2 fftn fftshift hfft ifft ifft2 ifftn ifftshift irfft irfft2 irfftn", c64(8, 8))
    | each("ihfft rfft rfft2 rfftn", f32(8, 8))
    | each("fftfreq rfftfreq", n=8),
)
functions(
    lax.linalg,
    each("cholesky eigh hessenberg lu qdwh qr schur svd tridiagonal eig", SQUARE)
    | {
        "cholesky_update": of(SQUARE, f32(5)),
        "householder_product": of(SQUARE, f32(5)),
        "lu_pivots_to_permutation": of(i32(5), permutation_size=5),
        "symmetric_product": of(SQUARE, SQUARE),
        "triangular_solve": of(SQUARE, SQUARE),
        "tridiagonal_solve": of(f32(5), f32(5), f32(5), f32(5, 2)),
    },
)
functions(
    jax.random,
    each("ball", KEY, d=3, shape=(4,))
    | each("bernoulli cauchy double_sided_maxwell exponential gumbel laplace logistic lognormal maxwell", KEY)
    | each("normal rademacher uniform bits split key_data clone", KEY)
    | each("rayleigh chisquare gamma loggamma geometric pareto poisson t wald", KEY, f32(4))
    | each("beta binomial f", KEY, f32(4), f32(4))
    | each("generalized_normal", KEY, 2.0, shape=(3,))
    | {
        "categorical": of(KEY, X),
        "choice": of(KEY, f32(10), shape=(3,), replace=False),
        "dirichlet": of(KEY, f32(4)),
        "double_sided_maxwell": of(KEY, 0.0, 1.0, shape=(3,)),
        "fold_in": of(KEY, i32()),
        "multinomial": of(KEY, f32(), f32(4)),
        "multivariate_normal": of(KEY, f32(3), f32(3, 3)),
        "orthogonal": of(KEY, n=3),
        "permutation": of(KEY, f32(10)),
        "randint": of(KEY, shape=(3,), minval=0, maxval=7),
        "triangular": of(KEY, 0.0, 0.5, 1.0, shape=(3,)),
        "truncated_normal": of(KEY, -1.0, 1.0, shape=(3,)),
        "weibull_min": of(KEY, 1.0, 2.0, shape=(3,)),
        "wrap_key_data": of(jax.ShapeDtypeStruct((2,), jnp.uint32)),
        "key": of(seed=0),
        "PRNGKey": of(seed=0),
    },
)
functions(jax.image, {"resize": of(f32(8, 8), shape=(4, 16), method="cubic")}, grad=True)
functions(jax.ops, each("segment_sum segment_max segment_min", f32(8), i32(8), num_segments=3), grad=True)
functions(jax.ops, each("segment_prod", f32(8), i32(8), num_segments=3))
functions(
    jnp,
    each("sum mean std var max min prod median ptp cumsum cumprod sort argsort argmax unwrap diff gradient", X)
    | each("nanmean nanstd nanmax cov corrcoef average exp log sqrt reciprocal sinc angle", X)
    | each("hypot arctan2 logaddexp maximum minimum fmod remainder power divide floor_divide heaviside copysign", X, X)
    | each("dot vdot inner outer convolve correlate polyval interp", f32(6), f32(6))
    | {
        "interp": of(f32(9), f32(5), f32(5)),
        "clip": of(X, 0, 1),
        "histogram": of(X, bins=5),
        "percentile": of(X, 30.0),
        "quantile": of(X, 0.3),
        "polyfit": of(f32(8), f32(8), deg=2),
        "einsum": of("ij,kj->ik", X, X),
        "linspace": of(SCALAR, SCALAR, num=5),
        "roll": of(X, 2),
        "searchsorted": of(f32(8), f32(3)),
        "digitize": of(f32(8), f32(3)),
        "unique": of(i32(8), size=5),
        "nonzero": of(X, size=5),
        "where": of(flags(4, 8), X, X),
        "bincount": of(i32(8), length=5),
        "take_along_axis": of(X, i32(4, 1), axis=1),
        "tril": of(SQUARE),
        "vander": of(f32(5)),
        "meshgrid": of(f32(5), f32(4)),
        "trapezoid": of(f32(5)),
        "apply_along_axis": of(jnp.sum, 0, X),
        "piecewise": of(f32(5), flags(2, 5), [0.0, 1.0, 2.0]),
        "select": of([flags(5), flags(5)], [f32(5), f32(5)]),
    },
)


@program
def initializers():
    makers = "glorot_normal glorot_uniform he_normal he_uniform lecun_normal lecun_uniform orthogonal normal uniform"
    made = [getattr(jax.nn.initializers, name)() for name in [*makers.split(), "truncated_normal"]]

    def init(key):
        return [initialize(key, (4, 8)) for key, initialize in zip(jax.random.split(key, len(made)), made, strict=True)]

    return init, (KEY,), {}


@program
def an_ordinary_differential_equation():
    def fall(params, start, times):
        def slope(state, time, params):
            position, speed = state
            return speed, -params["gravity"] - params["drag"] * speed

        positions, _ = odeint(slope, start, times, params)
        return jnp.mean(positions**2)

    args = {"gravity": SCALAR, "drag": SCALAR}, (SCALAR, SCALAR), f32(20)
    return jax.value_and_grad(fall), args, {"axes": {"times": ("time",)}}


@program
def a_custom_root():
    def root(a):
        def improve(f, x):
            return lax.while_loop(lambda x: jnp.abs(f(x)) > 1e-3, lambda x: x - f(x) / jax.grad(f)(x), x)

        return lax.custom_root(lambda x: x**3 - a, jnp.ones_like(a), improve, lambda g, y: y / g(1.0))

    return jax.value_and_grad(root), (SCALAR,), {}


@program
def a_custom_linear_solve():
    def solve(a, b):
        def by_cholesky(matvec, b):
            return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a @ a.T), b)

        return lax.custom_linear_solve(lambda x: a @ (a.T @ x), b, by_cholesky, symmetric=True).sum()

    return jax.grad(solve, (0, 1)), (SQUARE, f32(5)), {}


@program
def an_associative_scan():
    def discounted(rewards, discounts):
        def combine(later, earlier):
            (a, x), (b, y) = later, earlier
            return a * b, y + b * x

        return lax.associative_scan(combine, (discounts, rewards), reverse=True)[1]

    axes = {"rewards": ("time", "batch"), "discounts": ("time", "batch")}
    return discounted, (f32(16, 4), f32(16, 4)), {"axes": axes}


@program
def an_implicit_function_by_newton():
    @jax.custom_vjp
    def fixed_point(a):
        return lax.fori_loop(0, 20, lambda _, x: 0.5 * (x + a / x), jnp.ones_like(a))

    def forward(a):
        x = fixed_point(a)
        return x, x

    fixed_point.defvjp(forward, lambda x, bar: (bar / (2 * x),))
    return jax.vmap(jax.value_and_grad(fixed_point)), (f32(7),), {"axes": {"a": ("batch",)}}


@program
def a_hessian():
    def energy(x):
        return jnp.sum(jnp.tanh(x) ** 2) + jnp.prod(1 + x**2)

    return jax.hessian(energy), (f32(4),), {}


# -- optax ---------------------------------------------------------------------------------------------------------


def network(params, x):
    hidden = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return hidden @ params["out"]["kernel"] + params["out"]["bias"]


PARAMS = {
    "hidden": {"kernel": f32(8, 16), "bias": f32(16)},
    "out": {"kernel": f32(16, 3), "bias": f32(3)},
}
BATCH = f32(32, 8), i32(32)
BATCH_AXES = {"x": ("batch", "feature"), "y": ("batch",)}

OPTIMIZERS = {
    **{
        name: (lambda name=name: getattr(optax, name)(1e-3))
        for name in (
            "adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam"
            " nadamw novograd optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd sm3 yogi"
        ).split()
    },
    "sgd with momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=0),
    "adam that clips by the global norm": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)),
    "adam that clips by blocks": lambda: optax.chain(optax.clip_by_block_rms(1.0), optax.adam(1e-3)),
    "adam that clips adaptively": lambda: optax.chain(optax.adaptive_grad_clip(0.1), optax.adam(1e-3)),
    "adamw of a schedule": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000)),
    "sgd of a joined schedule": lambda: optax.sgd(
        optax.join_schedules([optax.linear_schedule(0.0, 1.0, 10), optax.exponential_decay(1.0, 10, 0.9)], [10])
    ),
    "adam with hyperparameters in its state": lambda: optax.inject_hyperparams(optax.adam)(
        optax.cosine_decay_schedule(1e-3, 100)
    ),
    "every second step": lambda: optax.MultiSteps(optax.adam(1e-3), every_k_schedule=2),
    "finite steps": lambda: optax.apply_if_finite(optax.adam(1e-3), max_consecutive_errors=3),
    "masked decay": lambda: optax.adamw(1e-3, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)),
    "a part of the parameters": lambda: optax.multi_transform(
        {"hidden": optax.adam(1e-3), "out": optax.sgd(0.1)}, {"hidden": "hidden", "out": "out"}
    ),
    "an average of the parameters": lambda: optax.chain(optax.sgd(0.1), optax.ema(0.99)),
    "noise": lambda: optax.chain(optax.add_noise(0.1, 0.9, 0), optax.sgd(0.1)),
    "a line search": lambda: optax.lbfgs(),
}


def _training(optimizer):
    optimizer = optimizer()

    def train_step(params, state, x, y):
        def loss_fn(params):
            return optax.softmax_cross_entropy_with_integer_labels(network(params, x), y).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        more = {}
        if isinstance(optimizer, optax.GradientTransformationExtraArgs):
            more = {"value": loss, "grad": grads, "value_fn": loss_fn}
        updates, state = optimizer.update(grads, state, params, **more)
        return optax.apply_updates(params, updates), state, loss

    return train_step, (PARAMS, jax.eval_shape(optimizer.init, PARAMS), *BATCH), {"axes": BATCH_AXES}


for _name, _optimizer in OPTIMIZERS.items():
    PROGRAMS[f"optax {_name}"] = functools.partial(_training, _optimizer)
    PROGRAMS[f"optax {_name}, init"] = lambda optimizer=_optimizer: (optimizer().init, (PARAMS,), {})

LOGITS, LABELS, CLASSES = f32(32, 10), i32(32), f32(32, 10)
functions(
    optax.losses,
    each("cosine_distance cosine_similarity hinge_loss huber_loss l2_loss log_cosh squared_error", LOGITS, CLASSES)
    | each(
        "sigmoid_binary_cross_entropy sigmoid_focal_loss softmax_cross_entropy poly_loss_cross_entropy", LOGITS, CLASSES
    )
    | each("kl_divergence kl_divergence_with_log_targets generalized_kl_divergence", LOGITS, CLASSES)
    | each("safe_softmax_cross_entropy ranking_softmax_loss perceptron_loss sparsemax_loss", LOGITS, CLASSES)
    | each("softmax_cross_entropy_with_integer_labels multiclass_hinge_loss", LOGITS, LABELS)
    | each("multiclass_perceptron_loss multiclass_sparsemax_loss ntxent", LOGITS, LABELS)
    | each("triplet_margin_loss", LOGITS, CLASSES, CLASSES)
    | each("dice_loss multiclass_generalized_dice_loss binary_dice_loss", f32(2, 8, 3), f32(2, 8, 3))
    | {"ctc_loss": of(f32(2, 12, 5), f32(2, 12), i32(2, 4), f32(2, 4)), "smooth_labels": of(CLASSES, alpha=0.1)},
    grad=True,
)
functions(
    optax.projections,
    each("projection_box", X, -1.0, 1.0)
    | each("projection_hypercube projection_l1_ball projection_l2_ball projection_linf_ball", X)
    | each("projection_l1_sphere projection_l2_sphere projection_non_negative", X)
    | each("projection_simplex", VECTOR),
)


@program
def optax_schedules():
    schedules = [
        optax.cosine_decay_schedule(1e-3, 100),
        optax.cosine_onecycle_schedule(100, 1e-3),
        optax.exponential_decay(1e-3, 100, 0.9, staircase=True),
        optax.linear_onecycle_schedule(100, 1e-3),
        optax.linear_schedule(0.0, 1e-3, 100),
        optax.piecewise_constant_schedule(1e-3, {10: 0.5, 20: 0.1}),
        optax.piecewise_interpolate_schedule("cosine", 1e-3, {10: 0.5, 20: 0.1}),
        optax.polynomial_schedule(1e-3, 1e-4, 2, 100),
        optax.sgdr_schedule([dict(init_value=0.0, peak_value=1.0, decay_steps=10, warmup_steps=2, end_value=0.1)] * 2),
        optax.warmup_constant_schedule(0.0, 1e-3, 10),
        optax.warmup_cosine_decay_schedule(0.0, 1e-3, 10, 100),
        optax.warmup_exponential_decay_schedule(0.0, 1e-3, 10, 100, 0.9),
    ]
    return lambda step: [schedule(step) for schedule in schedules], (i32(),), {}


@program
def optax_training_in_a_scan():
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def train(params, xs, ys):
        def loss_fn(params, x, y):
            return optax.sigmoid_binary_cross_entropy(network(params, x)[:, 0], y).mean()

        def update(carry, batch):
            params, state = carry
            loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        return lax.scan(update, (params, optimizer.init(params)), (xs, ys))

    axes = {"xs": ("step", "batch", "feature"), "ys": ("step", "batch")}
    return jax.jit(train), (PARAMS, f32(20, 32, 8), f32(20, 32)), {"axes": axes}


@program
def optax_training_of_many_seeds():
    optimizer = optax.adam(1e-3)

    def train(seeds, x, y):
        def of_seed(seed):
            first, second = jax.random.split(jax.random.key(seed))
            params = {
                "hidden": {"kernel": jax.random.normal(first, (8, 16)) / 8**0.5, "bias": jnp.zeros(16)},
                "out": {"kernel": jax.random.normal(second, (16, 3)) / 4, "bias": jnp.zeros(3)},
            }

            def loss_fn(params):
                return optax.huber_loss(network(params, x), y).mean()

            def update(_, carry):
                params, state = carry
                updates, state = optimizer.update(jax.grad(loss_fn)(params), state)
                return optax.apply_updates(params, updates), state

            params, _ = lax.fori_loop(0, 100, update, (params, optimizer.init(params)))
            return loss_fn(params)

        return jax.vmap(of_seed)(seeds)

    axes = {"seeds": ("seed",), "x": ("batch", "feature"), "y": ("batch", "output")}
    return train, (i32(5), f32(32, 8), f32(32, 3)), {"axes": axes}


@program
def optax_target_network():
    def update(online, target, step):
        soft = optax.incremental_update(online, target, 0.005)
        return optax.periodic_update(online, soft, step, 100)

    return update, (PARAMS, PARAMS, i32()), {}


# -- flax linen ----------------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(16)(x))
        return nn.Dense(3)(nn.LayerNorm()(x))


class Convolutional(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for features in (8, 16):
            x = nn.Conv(features, (3, 3), use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.Dropout(0.5, deterministic=not train)(x.reshape(len(x), -1))
        return nn.Dense(3)(nn.GroupNorm(num_groups=4)(x))


class Recurrent(nn.Module):
    cell: type

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.RNN(self.cell(16))(x)[:, -1])


class Bidirectional(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Bidirectional(nn.RNN(nn.LSTMCell(8)), nn.RNN(nn.LSTMCell(8)))(x).mean(1))


class Transformer(nn.Module):
    @nn.compact
    def __call__(self, tokens, train):
        x = nn.Embed(50, 16)(tokens) + self.param("places", nn.initializers.normal(0.02), (12, 16))
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            normed = nn.LayerNorm()(x)
            x += nn.MultiHeadDotProductAttention(4, dropout_rate=0.1, deterministic=not train)(normed, mask=mask)
            x += nn.Dense(16)(nn.gelu(nn.Dense(64)(nn.RMSNorm()(x))))
        return nn.Dense(3)(x[:, -1])


class Autoencoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.avg_pool(nn.swish(nn.Conv(4, (3, 3), strides=2)(x)), (2, 2), strides=(2, 2))
        x = nn.ConvTranspose(4, (3, 3), strides=(4, 4))(x)
        return nn.Conv(1, (3, 3))(x)


def linen(model, x, axes, *args):
    """An update of a linen model with all that it has: parameters, statistics, random numbers."""

    def train_step(variables, state, x, y, key):
        params, rest = variables["params"], {name: value for name, value in variables.items() if name != "params"}

        def loss_fn(params):
            logits, changed = model.apply({"params": params, **rest}, x, *args, rngs={"dropout": key}, mutable=[*rest])
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), (changed, logits)

        (loss, (changed, logits)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, state = OPTIMIZER.update(grads, state, params)
        accuracy = jnp.mean(logits.argmax(-1) == y)
        return {"params": optax.apply_updates(params, updates), **changed}, state, loss, accuracy

    rngs = {"params": KEY, "dropout": KEY}
    variables = jax.eval_shape(lambda rngs, x: model.init(rngs, x, *args), rngs, x)
    state = jax.eval_shape(OPTIMIZER.init, variables["params"])
    return train_step, (variables, state, x, i32(x.shape[0]), KEY), {"axes": {"x": axes, "y": ("batch",)}}


OPTIMIZER = optax.adam(1e-3)
IMAGES, SEQUENCES, TOKENS = f32(4, 8, 8, 3), f32(4, 12, 5), i32(4, 12)
LINEN = {
    "MLP": lambda: linen(Perceptron(), f32(32, 8), ("batch", "feature")),
    "CNN": lambda: linen(Convolutional(), IMAGES, ("batch", "height", "width", "channel"), True),
    "CNN that is not trained": lambda: linen(Convolutional(), IMAGES, ("batch", "height", "width", "channel"), False),
    "LSTM": lambda: linen(Recurrent(nn.LSTMCell), SEQUENCES, ("batch", "time", "feature")),
    "GRU": lambda: linen(Recurrent(nn.GRUCell), SEQUENCES, ("batch", "time", "feature")),
    "optimized LSTM": lambda: linen(Recurrent(nn.OptimizedLSTMCell), SEQUENCES, ("batch", "time", "feature")),
    "bidirectional LSTM": lambda: linen(Bidirectional(), SEQUENCES, ("batch", "time", "feature")),
    "transformer": lambda: linen(Transformer(), TOKENS, ("batch", "time"), True),
}
PROGRAMS |= {f"linen {name}": make for name, make in LINEN.items()}


@program
def linen_init():
    return lambda key, x: Transformer().init({"params": key}, x, False), (KEY, TOKENS), {}


@program
def linen_autoencoder():
    model = Autoencoder()

    def loss_fn(params, x):
        return optax.l2_loss(model.apply(params, x), x).mean()

    x = f32(4, 16, 16, 1)
    return jax.value_and_grad(loss_fn), (jax.eval_shape(model.init, KEY, x), x), {}


@program
def linen_scan_over_layers():
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.tanh(nn.Dense(8)(x)), None

    layers = nn.scan(nn.remat(Layer), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()

    def loss_fn(params, x):
        return jnp.mean(layers.apply(params, x, None)[0] ** 2)

    params = jax.eval_shape(lambda key, x: layers.init(key, x, None), KEY, X)
    return jax.value_and_grad(loss_fn), (params, X), {"axes": {"x": ("batch", "feature")}}


# -- flax nnx ------------------------------------------------------------------------------------------------------


class Layers(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.out(self.dropout(x.mean((1, 2))))


class Attention(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(50, 16, rngs=rngs)
        self.norm = nnx.LayerNorm(16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=rngs)
        self.out = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(tokens))
        return self.out(x[:, -1])


class Recurrence(nnx.Module):
    def __init__(self, rngs, cell):
        self.rnn = nnx.RNN(cell(5, 8, rngs=rngs))
        self.out = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.rnn(x)[:, -1])


def nnx_update(make, x, axes):
    """A jitted update of an nnx model."""

    @nnx.jit
    def train_step(model, optimizer, x, y):
        def loss_fn(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

        loss, grads = nnx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    def pure(structure, state, x, y):
        model, optimizer = nnx.merge(structure, state)
        loss = train_step(model, optimizer, x, y)
        return nnx.state((model, optimizer)), loss

    def start():
        model = make(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    structure, state = nnx.split(nnx.eval_shape(start))
    args = structure, state, x, i32(x.shape[0])
    return pure, args, {"axes": {"x": axes, "y": ("batch",)}}


NNX = {
    "CNN": lambda: nnx_update(Layers, IMAGES, ("batch", "height", "width", "channel")),
    "attention": lambda: nnx_update(Attention, TOKENS, ("batch", "time")),
    "LSTM": lambda: nnx_update(lambda rngs: Recurrence(rngs, nnx.LSTMCell), SEQUENCES, ("batch", "time", "feature")),
    "GRU": lambda: nnx_update(lambda rngs: Recurrence(rngs, nnx.GRUCell), SEQUENCES, ("batch", "time", "feature")),
}
PROGRAMS |= {f"nnx {name}": make for name, make in NNX.items()}


@program
def nnx_gradients():
    structure, state = nnx.split(nnx.eval_shape(lambda: Layers(nnx.Rngs(0))))

    def gradients(state, x):
        return nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(nnx.merge(structure, state))

    return gradients, (state, IMAGES), {"axes": {"x": ("batch", "height", "width", "channel")}}


# -- equinox -------------------------------------------------------------------------------------------------------


def equinox_update(make, x, axes):
    """An update of an equinox model of single inputs, over a batch."""
    model = eqx.filter_eval_shape(make, jax.random.key(0))
    state = eqx.filter_eval_shape(
        OPTIMIZER.init, eqx.filter(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    )

    @eqx.filter_value_and_grad
    def loss_fn(model, x, y):
        logits = jax.vmap(model)(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    @eqx.filter_jit
    def train_step(model, state, x, y):
        loss, grads = loss_fn(model, x, y)
        updates, state = OPTIMIZER.update(grads, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, loss

    return train_step, (model, state, x, i32(x.shape[0])), {"axes": {"x": axes, "y": ("batch",)}}


class Cells(eqx.Module):
    cell: eqx.Module
    out: eqx.nn.Linear

    def __init__(self, kind, key):
        first, second = jax.random.split(key)
        self.cell, self.out = kind(5, 8, key=first), eqx.nn.Linear(8, 3, key=second)

    def __call__(self, xs):
        state = jnp.zeros(8)
        if isinstance(self.cell, eqx.nn.LSTMCell):
            state = (state, state)
        state, _ = lax.scan(lambda state, x: (self.cell(x, state), None), state, xs)
        return self.out(jax.tree.leaves(state)[0])


class Convolution(eqx.Module):
    layers: list

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.layers = [
            eqx.nn.Conv2d(3, 8, 3, key=first),
            eqx.nn.MaxPool2d(2, 2),
            jax.nn.relu,
            eqx.nn.GroupNorm(2, 8),
            jnp.ravel,
            eqx.nn.Linear(72, 3, key=second),
        ]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Attending(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    norm: eqx.nn.LayerNorm
    out: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.attention, self.norm = eqx.nn.MultiheadAttention(2, 6, key=first), eqx.nn.LayerNorm(6)
        self.out = eqx.nn.Linear(6, 3, key=second)

    def __call__(self, x):
        x = x + self.attention(x, x, x)
        return self.out(jax.vmap(self.norm)(x).mean(0))


EQUINOX = {
    "MLP": lambda: equinox_update(lambda key: eqx.nn.MLP(8, 3, 16, 2, key=key), f32(32, 8), ("batch", "feature")),
    "CNN": lambda: equinox_update(Convolution, f32(4, 3, 8, 8), ("batch", "channel", "height", "width")),
    "LSTM": lambda: equinox_update(lambda key: Cells(eqx.nn.LSTMCell, key), SEQUENCES, ("batch", "time", "feature")),
    "GRU": lambda: equinox_update(lambda key: Cells(eqx.nn.GRUCell, key), SEQUENCES, ("batch", "time", "feature")),
    "attention": lambda: equinox_update(Attending, f32(4, 12, 6), ("batch", "time", "feature")),
}
PROGRAMS |= {f"equinox {name}": make for name, make in EQUINOX.items()}


@program
def equinox_gradients():
    def make(key):
        first, second = jax.random.split(key)
        return eqx.nn.Sequential(
            [
                eqx.nn.Linear(8, 4, key=first),
                eqx.nn.Dropout(0.1),
                eqx.nn.Lambda(jnp.tanh),
                eqx.nn.Linear(4, 3, key=second),
            ]
        )

    @eqx.filter_jit
    @eqx.filter_grad
    def gradients(model, x, key):
        return jnp.mean(jax.vmap(lambda x, key: model(x, key=key))(x, jax.random.split(key, len(x))) ** 2)

    model = eqx.filter_eval_shape(make, jax.random.key(0))
    return gradients, (model, f32(32, 8), KEY), {"axes": {"x": ("batch", "feature")}}


@program
def equinox_ensemble():
    @eqx.filter_vmap
    def make(key):
        return eqx.nn.MLP(8, 3, 16, 1, key=key)

    @eqx.filter_jit
    def predict(keys, x):
        return eqx.filter_vmap(lambda model, x: jax.vmap(model)(x), in_axes=(eqx.if_array(0), None))(make(keys), x)

    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 5))
    return predict, (keys, f32(32, 8)), {"axes": {"keys": ("member",), "x": ("batch", "feature")}}


@program
def equinox_dropout_and_batch_norm():
    class Model(eqx.Module):
        norm: eqx.nn.BatchNorm
        dropout: eqx.nn.Dropout

        def __init__(self):
            self.norm, self.dropout = eqx.nn.BatchNorm(8, "batch", mode="batch"), eqx.nn.Dropout(0.5)

        def __call__(self, x, state, key):
            x, state = self.norm(x, state)
            return self.dropout(x, key=key), state

    model, state = eqx.nn.make_with_state(Model)()

    def forward(x, key):
        keys = jax.random.split(key, len(x))
        out, _ = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(x, state, keys)
        return out.mean()

    return eqx.filter_grad(forward), (f32(32, 8), KEY), {"axes": {"x": ("batch", "feature")}}


# -- programs that log ---------------------------------------------------------------------------------------------


def digits():
    """The shapes of the sets of the demo."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), demo.load())


@program
def the_demo():
    return demo.train, (KEY, *digits(), 50), {}


@program
def the_demo_with_many_seeds():
    train = jax.vmap(functools.partial(demo.train, steps=50), in_axes=(0, None, None))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3))
    return lox.spool(jax.jit(train)), (keys, *digits()), {}


def _logging(make):
    found = make()
    return found.logging, found.args, {}


for _make in (*programs.ALL, *training.ALL):
    PROGRAMS[f"{_make.__module__}.{_make.__name__}"] = functools.partial(_logging, _make)


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_wrong_with_a_program_that_people_trust(name):
    fun, args, options = PROGRAMS[name]()
    found = lox.audit(fun, **options)(*args).at_least("warning")
    assert {finding.code for finding in found} == EXPECTED.get(name, {}).keys(), found
