"""Mistakes as they were made in public projects: samplers, simulations, linear algebra, signals and numbers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from unseen.case import Case, f32, i32, key

CASES = []


# A posterior of location and scale.


def normal_logdensity(position, observed):
    loc, log_scale = position
    scale = jnp.exp(log_scale)
    prior = jax.scipy.stats.norm.logpdf(loc, 0.0, 5.0) - scale
    return prior + jax.scipy.stats.norm.logpdf(observed, loc, scale).sum()


def normal_logdensity_b(position, observed):
    loc, log_scale = position
    scale = jnp.exp(log_scale)
    prior = jax.scipy.stats.norm.logpdf(loc, 0.0, 5.0) - scale + log_scale
    return prior + jax.scipy.stats.norm.logpdf(observed, loc, scale).sum()


def lognormal_logdensity(position, observed):
    loc, log_scale = position
    scale = jnp.exp(log_scale)
    prior = jax.scipy.stats.norm.logpdf(loc, 0.0, 5.0) + jax.scipy.stats.norm.logpdf(log_scale, 0.0, 1.0)
    return prior + jax.scipy.stats.norm.logpdf(observed, loc, scale).sum()


def random_walks(logdensity):
    def sample(rng, observed, start):
        def step(carry, rng):
            position, current = carry
            move_rng, accept_rng = jax.random.split(rng)
            proposal = position + 0.2 * jax.random.normal(move_rng, position.shape)
            proposed = logdensity(proposal, observed)
            accepted = jnp.log(jax.random.uniform(accept_rng)) < proposed - current
            position = jnp.where(accepted, proposal, position)
            current = jnp.where(accepted, proposed, current)
            return (position, current), (position, current)

        first = (start, logdensity(start, observed))
        return jax.lax.scan(step, first, jax.random.split(rng, 60))[1]

    return sample


CASES.append(
    Case(
        "posterior of location and scale",
        "formula",
        random_walks(normal_logdensity),
        (random_walks(normal_logdensity_b), random_walks(lognormal_logdensity)),
        lambda: (key(), f32(15), f32(2)),
        where="prior = jax.scipy.stats.norm.logpdf(loc, 0.0, 5.0) - scale\n",
        axes={"observed": ("data",)},
        source="github.com/blackjax-devs/blackjax/issues/750",
    )
)


# A process through noisy points.


class Process(NamedTuple):
    log_length: jax.Array
    log_amplitude: jax.Array
    log_noise: jax.Array


def matern(process, x, y):
    r = jnp.abs(x[:, None] - y[None, :]) / jnp.exp(process.log_length)
    return jnp.exp(2.0 * process.log_amplitude) * (1.0 + jnp.sqrt(3.0) * r) * jnp.exp(-jnp.sqrt(3.0) * r)


def process_evidence(process, x, y):
    obs_stddev = jnp.exp(process.log_noise)
    covariance = matern(process, x, x) + (obs_stddev + 1e-5) * jnp.eye(x.shape[0])
    chol = jnp.linalg.cholesky(covariance)
    alpha = jax.scipy.linalg.solve_triangular(chol, y, lower=True)
    return 0.5 * jnp.sum(alpha**2) + jnp.sum(jnp.log(jnp.diag(chol)))


def process_evidence_b(process, x, y):
    obs_stddev = jnp.exp(process.log_noise)
    covariance = matern(process, x, x) + (obs_stddev**2 + 1e-5) * jnp.eye(x.shape[0])
    chol = jnp.linalg.cholesky(covariance)
    alpha = jax.scipy.linalg.solve_triangular(chol, y, lower=True)
    return 0.5 * jnp.sum(alpha**2) + jnp.sum(jnp.log(jnp.diag(chol)))


def process_evidence_c(process, x, y):
    obs_variance = jnp.exp(process.log_noise)
    covariance = matern(process, x, x) + (obs_variance + 1e-5) * jnp.eye(x.shape[0])
    factor = jax.scipy.linalg.cho_factor(covariance, lower=True)
    return 0.5 * y @ jax.scipy.linalg.cho_solve(factor, y) + jnp.sum(jnp.log(jnp.diag(factor[0])))


CASES.append(
    Case(
        "process through noisy points",
        "formula",
        process_evidence,
        (process_evidence_b, process_evidence_c),
        (Process(f32(), f32(), f32()), f32(12), f32(12)),
        where="covariance = matern(process, x, x) + (obs_stddev + 1e-5) * jnp.eye(x.shape[0])",
        differentiate="process",
        source="github.com/thomaspinder/GPJax/issues/399",
    )
)


# A ladder of temperatures.


def effective_share(log_weights):
    normed = log_weights - jax.nn.logsumexp(log_weights)
    return jnp.exp(-jax.nn.logsumexp(2.0 * normed)) / log_weights.shape[0]


def next_increment(loglik, left, goal=0.6):
    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        enough = effective_share(-middle * loglik) > goal
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 25, halve, (jnp.zeros(()), left))
    return low


def next_increment_b(loglik, left, goal=0.6):
    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        enough = effective_share(middle * loglik) > goal
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 25, halve, (jnp.zeros(()), left))
    return low


def next_increment_c(loglik, left, goal=0.6):
    potential = -loglik

    def halve(_, bounds):
        low, high = bounds
        middle = 0.5 * (low + high)
        enough = effective_share(-middle * potential) > goal
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 25, halve, (jnp.zeros(()), left))
    return low


def tempered(increment):
    def run(rng, particles, center):
        def step(carry, rng):
            particles, temperature, evidence = carry
            loglik = -3.0 * jnp.abs(particles - center).sum(axis=-1) ** 1.5
            delta = increment(loglik, 1.0 - temperature)
            log_weights = delta * loglik
            evidence = evidence + jax.nn.logsumexp(log_weights) - jnp.log(log_weights.shape[0])
            pick_rng, move_rng = jax.random.split(rng)
            chosen = jax.random.categorical(pick_rng, log_weights, shape=log_weights.shape)
            moved = particles[chosen] + 0.05 * jax.random.normal(move_rng, particles.shape)
            return (moved, temperature + delta, evidence), delta

        first = (particles, jnp.zeros(()), jnp.zeros(()))
        return jax.lax.scan(step, first, jax.random.split(rng, 6))

    return run


CASES.append(
    Case(
        "ladder of temperatures",
        "formula",
        tempered(next_increment),
        (tempered(next_increment_b), tempered(next_increment_c)),
        lambda: (key(), f32(40, 3), f32(3)),
        where="enough = effective_share(-middle * loglik) > goal",
        source="github.com/blackjax-devs/blackjax/issues/914",
    )
)


# A path that doubles.


def energy(q, p):
    return 0.5 * jnp.sum(p**2) + 0.25 * jnp.sum(q**4)


def glide(q, p, step):
    p = p - 0.5 * step * q**3
    q = q + step * p
    return q, p - 0.5 * step * q**3


def expand_path(rng, q, depth=5):
    momentum_rng, rng = jax.random.split(rng)
    p = jax.random.normal(momentum_rng, q.shape)
    start = energy(q, p)

    def condition(loop):
        _, _, level, stop = loop[0], loop[1], loop[2], loop[3]
        return (level < depth) & ~stop

    def body(loop):
        state, chosen, level, _, rng = loop
        _, direction_rng, accept_rng = jax.random.split(rng, 3)
        direction = jnp.where(jax.random.bernoulli(direction_rng), 1.0, -1.0)
        state = jax.lax.fori_loop(0, 2**level, lambda _, s: glide(*s, 0.1 * direction), state)
        weight = jnp.exp(start - energy(*state))
        take = jax.random.uniform(accept_rng) < weight
        chosen = jnp.where(take, state[0], chosen)
        return state, chosen, level + 1, weight < 1e-3, rng

    return jax.lax.while_loop(condition, body, ((q, p), q, jnp.int32(0), jnp.bool_(False), rng))[1:4]


def expand_path_b(rng, q, depth=5):
    momentum_rng, rng = jax.random.split(rng)
    p = jax.random.normal(momentum_rng, q.shape)
    start = energy(q, p)

    def condition(loop):
        _, _, level, stop = loop[0], loop[1], loop[2], loop[3]
        return (level < depth) & ~stop

    def body(loop):
        state, chosen, level, _, rng = loop
        rng, direction_rng, accept_rng = jax.random.split(rng, 3)
        direction = jnp.where(jax.random.bernoulli(direction_rng), 1.0, -1.0)
        state = jax.lax.fori_loop(0, 2**level, lambda _, s: glide(*s, 0.1 * direction), state)
        weight = jnp.exp(start - energy(*state))
        take = jax.random.uniform(accept_rng) < weight
        chosen = jnp.where(take, state[0], chosen)
        return state, chosen, level + 1, weight < 1e-3, rng

    return jax.lax.while_loop(condition, body, ((q, p), q, jnp.int32(0), jnp.bool_(False), rng))[1:4]


def expand_path_c(rng, q, depth=5):
    rng, momentum_rng = jax.random.split(rng)
    p = jax.random.normal(momentum_rng, q.shape)
    start = energy(q, p)

    def body(level, loop):
        state, chosen, _ = loop
        direction_rng, accept_rng = jax.random.split(jax.random.fold_in(rng, level))
        direction = jnp.where(jax.random.bernoulli(direction_rng), 1.0, -1.0)
        state = jax.lax.fori_loop(0, 2**level, lambda _, s: glide(*s, 0.1 * direction), state)
        weight = jnp.exp(start - energy(*state))
        take = jax.random.uniform(accept_rng) < weight
        return state, jnp.where(take, state[0], chosen), weight

    _, chosen, weight = jax.lax.fori_loop(0, depth, body, ((q, p), q, jnp.ones(())))
    return chosen, weight


CASES.append(
    Case(
        "path that doubles",
        "keys",
        expand_path,
        (expand_path_b, expand_path_c),
        lambda: (key(), f32(4)),
        where="_, direction_rng, accept_rng = jax.random.split(rng, 3)",
        source="github.com/blackjax-devs/blackjax/issues/53",
    )
)


# Errors of a slope by resampling.


def slope(x, y):
    x, y = x - x.mean(), y - y.mean()
    return jnp.sum(x * y) / jnp.sum(x**2)


def resampled_slopes(rng, x, y, rounds=200):
    def once(i):
        rows = jax.random.randint(rng, x.shape, 0, x.shape[0])
        return slope(x[rows], y[rows])

    slopes = jax.vmap(once)(jnp.arange(rounds))
    return slopes.mean(), jnp.quantile(slopes, jnp.array([0.05, 0.95])), slopes.std()


def resampled_slopes_b(rng, x, y, rounds=200):
    def once(rng):
        rows = jax.random.randint(rng, x.shape, 0, x.shape[0])
        return slope(x[rows], y[rows])

    slopes = jax.vmap(once)(jax.random.split(rng, rounds))
    return slopes.mean(), jnp.quantile(slopes, jnp.array([0.05, 0.95])), slopes.std()


def slopes_of_powers(rng, x, y, rounds=200):
    powers = jnp.linspace(0.5, 2.0, rounds)

    def once(power):
        rows = jax.random.randint(rng, x.shape, 0, x.shape[0])
        return slope(x[rows] ** power, y[rows])

    slopes = jax.vmap(once)(powers)
    return powers[jnp.argmax(slopes)], slopes


CASES.append(
    Case(
        "errors of a slope",
        "keys",
        resampled_slopes,
        (resampled_slopes_b, slopes_of_powers),
        lambda: (key(), f32(30), f32(30)),
        where="def once(i):\n        rows = jax.random.randint(rng, x.shape, 0, x.shape[0])",
        source="questions about bootstrap with jax.vmap",
    )
)


# Variational guesses of parameters.


def stroke(guide, rng):
    return jax.tree.map(lambda m, s: m + jnp.exp(s) * jax.random.normal(rng, m.shape), guide["mean"], guide["log_std"])


def stroke_b(guide, rng):
    leaves, tree = jax.tree.flatten(guide["mean"])
    rngs = jax.tree.unflatten(tree, list(jax.random.split(rng, len(leaves))))
    return jax.tree.map(
        lambda r, m, s: m + jnp.exp(s) * jax.random.normal(r, m.shape), rngs, guide["mean"], guide["log_std"]
    )


def stroke_c(guide, rng):
    mean, unravel = ravel_pytree(guide["mean"])
    log_std, _ = ravel_pytree(guide["log_std"])
    return unravel(mean + jnp.exp(log_std) * jax.random.normal(rng, mean.shape))


def hierarchy_elbo(draw):
    def loss(guide, rng, groups, counts):
        def once(rng):
            z = draw(guide, rng)
            rate = jnp.exp(z["base"][groups] + 0.3 * z["tilt"][groups])
            likelihood = jnp.sum(counts * jnp.log(rate) - rate)
            prior = -0.5 * sum(jnp.sum(v**2) for v in jax.tree.leaves(z))
            return likelihood + prior

        entropy = sum(jnp.sum(s) for s in jax.tree.leaves(guide["log_std"]))
        return -(jax.vmap(once)(jax.random.split(rng, 8)).mean() + entropy)

    return loss


def guide_shapes():
    return {n: {"base": f32(5), "tilt": f32(5)} for n in ("mean", "log_std")}


CASES.append(
    Case(
        "variational guesses",
        "keys",
        hierarchy_elbo(stroke),
        (hierarchy_elbo(stroke_b), hierarchy_elbo(stroke_c)),
        lambda: (guide_shapes(), key(), i32(18), f32(18)),
        where="return jax.tree.map(lambda m, s: m + jnp.exp(s) * jax.random.normal(rng, m.shape), "
        'guide["mean"], guide["log_std"])',
        axes={"groups": ("data",), "counts": ("data",)},
        differentiate="guide",
        source="mean-field guides written with jax.tree.map",
    )
)


# A filter of states.


class Belief(NamedTuple):
    mean: jax.Array
    cov: jax.Array


def foresee(belief, model):
    return Belief(model["F"] @ belief.mean, model["F"] @ belief.cov @ model["F"].T + model["q"] * jnp.eye(3))


def innovation(prior, model, y):
    S = model["H"] @ prior.cov @ model["H"].T + model["r"] * jnp.eye(3)
    return y - model["H"] @ prior.mean, S, jnp.linalg.solve(S, model["H"] @ prior.cov).T


def correct(prior, model, y):
    residual, S, K = innovation(prior, model, y)
    return Belief(prior.mean + K @ residual, prior.cov - K * S @ K.T)


def correct_b(prior, model, y):
    residual, S, K = innovation(prior, model, y)
    return Belief(prior.mean + K @ residual, prior.cov - K @ S @ K.T)


def correct_c(prior, model, y):
    def read(belief, xs):
        row, value = xs
        seen = belief.cov @ row
        s = row @ seen + model["r"]
        k = seen / s
        return Belief(belief.mean + k * (value - row @ belief.mean), belief.cov - k[:, None] * s * k[None]), None

    return jax.lax.scan(read, prior, (model["H"], y))[0]


def filtered(correction):
    def run(model, observations):
        def step(belief, y):
            belief = correction(foresee(belief, model), model, y)
            return belief, (belief.mean, jnp.diag(belief.cov))

        return jax.lax.scan(step, Belief(jnp.zeros(3), jnp.eye(3)), observations)[1]

    return run


CASES.append(
    Case(
        "filter of states",
        "linear algebra",
        filtered(correct),
        (filtered(correct_b), filtered(correct_c)),
        ({"F": f32(3, 3), "H": f32(3, 3), "q": f32(), "r": f32()}, f32(9, 3)),
        where="return Belief(prior.mean + K @ residual, prior.cov - K * S @ K.T)",
        source="github.com/probml/JSL/pull/39",
    )
)


# Main directions of shapes.


def main_directions(points, count):
    centered = points - points.mean(axis=0)
    cov = centered.T @ centered / (points.shape[0] - 1)
    values, vectors = jnp.linalg.eigh(cov)
    order = jnp.argsort(values)[::-1]
    values, vectors = values[order], vectors[order]
    return values[:count], vectors[:count]


def main_directions_b(points, count):
    centered = points - points.mean(axis=0)
    cov = centered.T @ centered / (points.shape[0] - 1)
    values, vectors = jnp.linalg.eigh(cov)
    order = jnp.argsort(values)[::-1]
    return values[order][:count], vectors[:, order].T[:count]


def main_directions_c(points, count):
    centered = points - points.mean(axis=0)
    _, singular, vectors = jnp.linalg.svd(centered, full_matrices=False)
    values = singular**2 / (points.shape[0] - 1)
    order = jnp.argsort(values)[::-1]
    return values[order][:count], vectors[order][:count]


def shape_codes(directions_of):
    def codes(points, fresh):
        values, directions = directions_of(points, 3)
        scores = (fresh - points.mean(axis=0)) @ directions.T
        rebuilt = points.mean(axis=0) + scores @ directions
        error = jnp.linalg.norm(rebuilt - fresh, axis=-1)
        return jnp.sum(scores**2 / values, axis=-1), error

    return codes


CASES.append(
    Case(
        "main directions of shapes",
        "linear algebra",
        shape_codes(main_directions),
        (shape_codes(main_directions_b), shape_codes(main_directions_c)),
        (f32(40, 7), f32(6, 7)),
        where="values, vectors = values[order], vectors[order]",
        axes={"points": ("points", None), "fresh": ("points", None)},
        source="numpy.linalg.eigh, Stack Overflow",
    )
)


# Returns that move together.


def market_paths(rng, cov, drift, prices, steps=20):
    chol = jnp.linalg.cholesky(cov @ cov.T + 0.1 * jnp.eye(cov.shape[0]))

    def step(logs, rng):
        shocks = jax.random.normal(rng, logs.shape) @ chol
        logs = logs + 0.01 * drift + 0.1 * shocks
        return logs, logs

    first = jnp.broadcast_to(jnp.log(prices), (64, prices.shape[0]))
    _, logs = jax.lax.scan(step, first, jax.random.split(rng, steps))
    worth = jnp.exp(logs).sum(axis=-1)
    return jnp.quantile(worth[-1], 0.05), jnp.cov(logs[-1].T)


def market_paths_b(rng, cov, drift, prices, steps=20):
    chol = jnp.linalg.cholesky(cov @ cov.T + 0.1 * jnp.eye(cov.shape[0]))

    def step(logs, rng):
        shocks = jax.random.normal(rng, logs.shape) @ chol.T
        logs = logs + 0.01 * drift + 0.1 * shocks
        return logs, logs

    first = jnp.broadcast_to(jnp.log(prices), (64, prices.shape[0]))
    _, logs = jax.lax.scan(step, first, jax.random.split(rng, steps))
    worth = jnp.exp(logs).sum(axis=-1)
    return jnp.quantile(worth[-1], 0.05), jnp.cov(logs[-1].T)


def market_paths_c(rng, cov, drift, prices, steps=20):
    upper = jax.scipy.linalg.cholesky(cov @ cov.T + 0.1 * jnp.eye(cov.shape[0]), lower=False)

    def step(logs, rng):
        shocks = jax.random.normal(rng, logs.shape) @ upper
        logs = logs + 0.01 * drift + 0.1 * shocks
        return logs, logs

    first = jnp.broadcast_to(jnp.log(prices), (64, prices.shape[0]))
    _, logs = jax.lax.scan(step, first, jax.random.split(rng, steps))
    worth = jnp.exp(logs).sum(axis=-1)
    return jnp.quantile(worth[-1], 0.05), jnp.cov(logs[-1].T)


CASES.append(
    Case(
        "returns that move together",
        "linear algebra",
        market_paths,
        (market_paths_b, market_paths_c),
        lambda: (key(), f32(5, 5), f32(5), f32(5)),
        where="shocks = jax.random.normal(rng, logs.shape) @ chol\n",
        source="correlated normals, Stack Overflow",
    )
)


# Smoothed tracks.


def track_forward(model, observations):
    def step(carry, xs):
        mean, var = carry
        a, q, y = xs
        mean, var = a * mean, a**2 * var + q
        gain = var / (var + model["r"])
        mean, var = mean + gain * (y - mean), (1.0 - gain) * var
        return (mean, var), (mean, var)

    first = (jnp.zeros(observations.shape[1]), jnp.ones(observations.shape[1]))
    return jax.lax.scan(step, first, (model["a"], model["q"], observations))[1]


def track_smoother(model, observations):
    means, variances = track_forward(model, observations)

    def back(carry, xs):
        later_mean, later_var = carry
        mean, var, a, q = xs
        predicted = a**2 * var + q
        gain = var * a / predicted
        mean = mean + gain * (later_mean - a * mean)
        var = var + gain**2 * (later_var - predicted)
        return (mean, var), (mean, var)

    xs = (means[:-1], variances[:-1], model["a"][:-1], model["q"][:-1])
    _, smoothed = jax.lax.scan(back, (means[-1], variances[-1]), xs, reverse=True)
    return smoothed


def track_smoother_b(model, observations):
    means, variances = track_forward(model, observations)

    def back(carry, xs):
        later_mean, later_var = carry
        mean, var, a, q = xs
        predicted = a**2 * var + q
        gain = var * a / predicted
        mean = mean + gain * (later_mean - a * mean)
        var = var + gain**2 * (later_var - predicted)
        return (mean, var), (mean, var)

    xs = (means[:-1], variances[:-1], model["a"][1:], model["q"][1:])
    _, smoothed = jax.lax.scan(back, (means[-1], variances[-1]), xs, reverse=True)
    return smoothed


def track_smoother_c(model, observations):
    def step(carry, xs):
        mean, var = carry
        a, q, y = xs
        gain = var / (var + model["r"])
        mean, var = mean + gain * (y - mean), (1.0 - gain) * var
        return (a * mean, a**2 * var + q), (mean, var)

    first = (jnp.zeros(observations.shape[1]), jnp.ones(observations.shape[1]))
    _, (means, variances) = jax.lax.scan(step, first, (model["a"], model["q"], observations))

    def back(carry, xs):
        later_mean, later_var = carry
        mean, var, a, q = xs
        predicted = a**2 * var + q
        gain = var * a / predicted
        mean = mean + gain * (later_mean - a * mean)
        var = var + gain**2 * (later_var - predicted)
        return (mean, var), (mean, var)

    leaving = (means[:-1], variances[:-1], model["a"][:-1], model["q"][:-1])
    return jax.lax.scan(back, (means[-1], variances[-1]), leaving, reverse=True)[1]


CASES.append(
    Case(
        "smoothed tracks",
        "index",
        track_smoother,
        (track_smoother_b, track_smoother_c),
        ({"a": f32(11), "q": f32(11), "r": f32()}, f32(11, 4)),
        where='xs = (means[:-1], variances[:-1], model["a"][:-1], model["q"][:-1])',
        source="github.com/rlabbe/filterpy/issues/37",
    )
)


# Echoes of a room.


def echo(signal, response):
    n = signal.shape[-1]
    wet = jnp.fft.irfft(jnp.fft.rfft(signal) * jnp.fft.rfft(response, n), n)
    return wet[..., :n]


def echo_b(signal, response):
    n = signal.shape[-1]
    size = n + response.shape[-1] - 1
    wet = jnp.fft.irfft(jnp.fft.rfft(signal, size) * jnp.fft.rfft(response, size), size)
    return wet[..., :n]


def echo_loss(filtering):
    def loss(response, dry, recorded):
        wet = filtering(dry, response)
        error = wet - recorded
        roughness = jnp.mean(jnp.diff(response) ** 2)
        return jnp.mean(error**2) + 1e-3 * roughness

    return loss


def echo_c(signal, response):
    silence = response.shape[-1] - 1
    padded = jnp.pad(signal, ((0, 0), (silence, 0)))
    size = padded.shape[-1]
    wet = jnp.fft.irfft(jnp.fft.rfft(padded) * jnp.fft.rfft(response, size), size)
    return wet[..., silence:]


CASES.append(
    Case(
        "echoes of a room",
        "index",
        echo_loss(echo),
        (echo_loss(echo_b), echo_loss(echo_c)),
        (f32(9), f32(4, 32), f32(4, 32)),
        where="wet = jnp.fft.irfft(jnp.fft.rfft(signal) * jnp.fft.rfft(response, n), n)",
        axes={"response": ("time",), "dry": ("tracks", "time"), "recorded": ("tracks", "time")},
        differentiate="response",
        source="questions about convolution by FFT",
    )
)


# Charges that push one another.


def charge_distances(positions):
    gaps = positions[:, None] - positions[None, :]
    return jnp.sqrt(jnp.sum(gaps**2, axis=-1))


def charge_energy(positions, charges):
    r = charge_distances(positions)
    apart = ~jnp.eye(charges.shape[0], dtype=bool)
    terms = jnp.where(apart, charges[:, None] * charges[None, :] / r, 0.0)
    trap = 0.5 * jnp.sum(positions**2)
    return 0.5 * terms.sum() + trap


def charge_energy_b(positions, charges):
    gaps = positions[:, None] - positions[None, :]
    apart = ~jnp.eye(charges.shape[0], dtype=bool)
    r = jnp.sqrt(jnp.where(apart, jnp.sum(gaps**2, axis=-1), 1.0))
    terms = jnp.where(apart, charges[:, None] * charges[None, :] / r, 0.0)
    trap = 0.5 * jnp.sum(positions**2)
    return 0.5 * terms.sum() + trap


def charge_energy_c(positions, charges):
    i, j = jnp.triu_indices(charges.shape[0], k=1)
    r = jnp.sqrt(jnp.sum((positions[i] - positions[j]) ** 2, axis=-1))
    terms = jnp.where(r < 5.0, charges[i] * charges[j] / r, 0.0)
    return terms.sum() + 0.5 * jnp.sum(positions**2)


CASES.append(
    Case(
        "charges that push one another",
        "derivative",
        charge_energy,
        (charge_energy_b, charge_energy_c),
        (f32(7, 3), f32(7)),
        where="return jnp.sqrt(jnp.sum(gaps**2, axis=-1))",
        axes={"positions": ("particles", None), "charges": ("particles",)},
        differentiate="positions",
        source="github.com/jax-ml/jax/issues/654",
    )
)


# Heat in a plate.


def plate(params, point):
    h = jnp.tanh(point @ params["w1"] + params["b1"])
    return jnp.tanh(h @ params["w2"]) @ params["w3"]


def plate_residual(params, point, source):
    curvature = jax.hessian(plate, argnums=1)(params, point)
    return jnp.sum(curvature) + source


def plate_residual_b(params, point, source):
    curvature = jax.hessian(plate, argnums=1)(params, point)
    return jnp.trace(curvature) + source


def plate_residual_c(params, point, source):
    def along(direction):
        slope = lambda x: jax.jvp(lambda y: plate(params, y), (x,), (direction,))[1]
        return jax.jvp(slope, (point,), (direction,))[1]

    return jnp.sum(jax.vmap(along)(jnp.eye(point.shape[0]))) + source


def plate_loss(residual):
    def loss(params, inside, edge, sources):
        inner = jax.vmap(residual, in_axes=(None, 0, 0))(params, inside, sources)
        outer = jax.vmap(plate, in_axes=(None, 0))(params, edge)
        return jnp.mean(inner**2) + 10.0 * jnp.mean(outer**2)

    return loss


CASES.append(
    Case(
        "heat in a plate",
        "derivative",
        plate_loss(plate_residual),
        (plate_loss(plate_residual_b), plate_loss(plate_residual_c)),
        ({"w1": f32(2, 8), "b1": f32(8), "w2": f32(8, 8), "w3": f32(8)}, f32(20, 2), f32(6, 2), f32(20)),
        where="return jnp.sum(curvature) + source",
        differentiate="params",
        source="physics-informed networks in JAX",
    )
)


# Sketches of words.


def word_hashes(words, seeds):
    powers = 31 ** jnp.arange(words.shape[-1])
    base = jnp.sum(words * powers, axis=-1)
    return (base[:, None] * seeds[None, :]) % 1009


def word_hashes_b(words, seeds):
    def push(code, letter):
        return (code * 31 + letter) % 1009, None

    base, _ = jax.lax.scan(push, jnp.zeros(words.shape[0], jnp.int32), words.T[::-1])
    return (base[:, None] * seeds[None, :]) % 1009


def word_hashes_c(words, seeds):
    powers = 31 ** jnp.arange(4)
    half = words[:, :4] + words[:, 4:8]
    base = jnp.sum(half * powers, axis=-1) % 1009
    return (base[:, None] * seeds[None, :]) % 1009


def word_sketch(hashes):
    def sketch(words, seeds, weights):
        places = hashes(words, seeds)
        table = jnp.zeros((seeds.shape[0], 1009))
        rows = jnp.arange(seeds.shape[0])[None]
        table = table.at[rows, places].add(weights[:, None])
        return table, table[rows, places].min(axis=-1)

    return sketch


CASES.append(
    Case(
        "sketches of words",
        "dtype",
        word_sketch(word_hashes),
        (word_sketch(word_hashes_b), word_sketch(word_hashes_c)),
        lambda: (i32(20, 10), jnp.array([7, 101, 577]), f32(20)),
        where="powers = 31 ** jnp.arange(words.shape[-1])",
        axes={"words": ("words", "letters"), "seeds": ("seeds",), "weights": ("words",)},
        source="github.com/jax-ml/jax/issues/8604",
    )
)


# What moves in a film.


def film():
    return (jax.random.randint(jax.random.key(3), (6, 8, 9, 3), 0, 256).astype(jnp.uint8), f32())


def moving_parts(frames, threshold):
    grey = jnp.max(frames, axis=-1)
    change = jnp.abs(grey[1:] - grey[:-1])
    moving = change > 255.0 * threshold
    share = moving.mean(axis=(1, 2))
    return share, change.astype(jnp.float32).mean(axis=0)


def moving_parts_b(frames, threshold):
    grey = jnp.max(frames, axis=-1).astype(jnp.int32)
    change = jnp.abs(grey[1:] - grey[:-1])
    moving = change > 255.0 * threshold
    share = moving.mean(axis=(1, 2))
    return share, change.astype(jnp.float32).mean(axis=0)


def moving_parts_c(frames, threshold):
    grey = jnp.max(frames, axis=-1)
    change = jnp.maximum(grey[1:], grey[:-1]) - jnp.minimum(grey[1:], grey[:-1])
    moving = change > 255.0 * threshold
    share = moving.mean(axis=(1, 2))
    return share, change.astype(jnp.float32).mean(axis=0)


CASES.append(
    Case(
        "what moves in a film",
        "dtype",
        moving_parts,
        (moving_parts_b, moving_parts_c),
        film,
        where="grey = jnp.max(frames, axis=-1)\n    change = jnp.abs(grey[1:] - grey[:-1])",
        source="differences of images in eight bits",
    )
)


# Norms of sensors.


def sensor_scale(readings):
    mean = jnp.mean(readings, axis=0)
    var = jnp.mean(readings**2, axis=0) - mean**2
    return mean, jnp.sqrt(jnp.maximum(var, 0.0) + 1e-6)


def sensor_scale_b(readings):
    mean = jnp.mean(readings, axis=0)
    var = jnp.mean((readings - mean) ** 2, axis=0)
    return mean, jnp.sqrt(jnp.maximum(var, 0.0) + 1e-6)


def sensor_scale_c(readings):
    origin = readings[0]
    moved = readings - origin
    mean = jnp.mean(moved, axis=0)
    var = jnp.mean(moved**2, axis=0) - mean**2
    return origin + mean, jnp.sqrt(jnp.maximum(var, 0.0) + 1e-6)


def sensor_alarm(scale_of):
    def alarm(pressures, fresh):
        pascals = 101325.0 + 2.0 * pressures
        mean, std = scale_of(pascals)
        z = (101325.0 + 2.0 * fresh - mean) / std
        distance = jnp.sqrt(jnp.mean(z**2, axis=-1))
        return distance, distance > 3.0

    return alarm


CASES.append(
    Case(
        "norms of sensors",
        "numbers",
        sensor_alarm(sensor_scale),
        (sensor_alarm(sensor_scale_b), sensor_alarm(sensor_scale_c)),
        (f32(50, 6), f32(8, 6)),
        where="var = jnp.mean(readings**2, axis=0) - mean**2",
        source="github.com/patrick-kidger/equinox/pull/314",
    )
)


# Waves on a ring.


def ring_waves(amplitudes, viscosity, points=48, steps=25, dt=0.01):
    x = jnp.linspace(0.0, 2.0 * jnp.pi, points)
    k = jnp.fft.rfftfreq(points, 1.0 / points)
    modes = jnp.arange(1, amplitudes.shape[0] + 1)
    u = jnp.sum(amplitudes[:, None] * jnp.sin(modes[:, None] * x), axis=0)

    def step(u, _):
        slope = jnp.fft.irfft(1j * k * jnp.fft.rfft(u), points)
        spectrum = jnp.fft.rfft(u - dt * u * slope) / (1.0 + dt * viscosity * k**2)
        spectrum = jnp.where(k < points / 3, spectrum, 0.0)
        u = jnp.fft.irfft(spectrum, points)
        return u, jnp.mean(u**2)

    return jax.lax.scan(step, u, None, length=steps)


def ring_waves_b(amplitudes, viscosity, points=48, steps=25, dt=0.01):
    x = jnp.linspace(0.0, 2.0 * jnp.pi, points, endpoint=False)
    k = jnp.fft.rfftfreq(points, 1.0 / points)
    modes = jnp.arange(1, amplitudes.shape[0] + 1)
    u = jnp.sum(amplitudes[:, None] * jnp.sin(modes[:, None] * x), axis=0)

    def step(u, _):
        slope = jnp.fft.irfft(1j * k * jnp.fft.rfft(u), points)
        spectrum = jnp.fft.rfft(u - dt * u * slope) / (1.0 + dt * viscosity * k**2)
        spectrum = jnp.where(k < points / 3, spectrum, 0.0)
        u = jnp.fft.irfft(spectrum, points)
        return u, jnp.mean(u**2)

    return jax.lax.scan(step, u, None, length=steps)


def clamped_waves(amplitudes, viscosity, points=48, steps=25, dt=0.001):
    grid = jnp.linspace(0.0, jnp.pi, points)
    h = grid[1] - grid[0]
    modes = jnp.arange(1, amplitudes.shape[0] + 1)
    u = jnp.sum(amplitudes[:, None] * jnp.sin(modes[:, None] * grid), axis=0)

    def step(u, _):
        slope = jnp.gradient(u, h)
        inner = (u[2:] - 2.0 * u[1:-1] + u[:-2]) / h**2
        u = u.at[1:-1].add(dt * (viscosity * inner - u[1:-1] * slope[1:-1]))
        u = u.at[jnp.array([0, -1])].set(0.0)
        return u, jnp.mean(u**2)

    return jax.lax.scan(step, u, None, length=steps)


CASES.append(
    Case(
        "waves on a ring",
        "numbers",
        ring_waves,
        (ring_waves_b, clamped_waves),
        (f32(4), f32()),
        where="x = jnp.linspace(0.0, 2.0 * jnp.pi, points)\n",
        source="github.com/Ceyron/machine-learning-and-simulation/pull/6",
    )
)


# Particles that are drawn again.


def weather_filter(rng, observations, count=30):
    def step(carry, xs):
        particles, log_weights = carry
        rng, y = xs
        move_rng, pick_rng = jax.random.split(rng)
        particles = 0.9 * particles + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = log_weights + jax.scipy.stats.norm.logpdf(y, particles, 0.5)
        weights = jax.nn.softmax(log_weights)
        estimate = jnp.sum(weights * particles)
        poor = 1.0 / jnp.sum(weights**2) < 0.5 * count
        drawn = jax.random.categorical(pick_rng, log_weights, shape=(count,))
        particles = jnp.where(poor, particles[drawn], particles)
        return (particles, log_weights), estimate

    start_rng, rng = jax.random.split(rng)
    first = (jax.random.normal(start_rng, (count,)), jnp.zeros(count))
    return jax.lax.scan(step, first, (jax.random.split(rng, observations.shape[0]), observations))[1]


def weather_filter_b(rng, observations, count=30):
    def step(carry, xs):
        particles, log_weights = carry
        rng, y = xs
        move_rng, pick_rng = jax.random.split(rng)
        particles = 0.9 * particles + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = log_weights + jax.scipy.stats.norm.logpdf(y, particles, 0.5)
        weights = jax.nn.softmax(log_weights)
        estimate = jnp.sum(weights * particles)
        poor = 1.0 / jnp.sum(weights**2) < 0.5 * count
        drawn = jax.random.categorical(pick_rng, log_weights, shape=(count,))
        particles = jnp.where(poor, particles[drawn], particles)
        return (particles, jnp.where(poor, jnp.zeros(count), log_weights)), estimate

    start_rng, rng = jax.random.split(rng)
    first = (jax.random.normal(start_rng, (count,)), jnp.zeros(count))
    return jax.lax.scan(step, first, (jax.random.split(rng, observations.shape[0]), observations))[1]


def weather_ensemble(rng, observations, count=30):
    start_rng, rng = jax.random.split(rng)

    def step(carry, xs):
        particles, log_weights = carry
        rng, y = xs
        move_rng, pick_rng = jax.random.split(rng)
        particles = 0.9 * particles + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = log_weights + jax.scipy.stats.norm.logpdf(y, particles, 0.5)
        drawn = jax.random.categorical(pick_rng, log_weights, shape=(count,))
        return (particles, log_weights), particles[drawn].mean()

    first = (jax.random.normal(start_rng, (count,)), jnp.zeros(count))
    return jax.lax.scan(step, first, (jax.random.split(rng, observations.shape[0]), observations))[1]


CASES.append(
    Case(
        "particles that are drawn again",
        "state",
        weather_filter,
        (weather_filter_b, weather_ensemble),
        lambda: (key(), f32(14)),
        where="return (particles, log_weights), estimate",
        source="particle filters in JAX",
    )
)


# A pendulum of springs.


class Chain:
    def __init__(self, dt):
        self.dt = dt

    def force(self, stiffness, x):
        stretched = jnp.diff(x, axis=0, prepend=jnp.zeros((1, x.shape[1])))
        pull = stiffness[:, None] * stretched
        return jnp.pad(pull[1:], ((0, 1), (0, 0))) - pull - 0.2 * x**3

    def step(self, stiffness, state):
        x, v, f = state
        v = v + 0.5 * self.dt * f
        x = x + self.dt * v
        v = v + 0.5 * self.dt * f
        return x, v, self.force(stiffness, x)

    def run(self, stiffness, x, v):
        def body(state, _):
            state = self.step(stiffness, state)
            return state, state[0][-1]

        (x, v, _), path = jax.lax.scan(body, (x, v, self.force(stiffness, x)), None, length=80)
        return path, 0.5 * jnp.sum(v**2)


class ChainB(Chain):
    def step(self, stiffness, state):
        x, v, f = state
        v = v + 0.5 * self.dt * f
        x = x + self.dt * v
        f = self.force(stiffness, x)
        v = v + 0.5 * self.dt * f
        return x, v, f


class ChainC(Chain):
    def step(self, stiffness, state):
        x, v, f = state
        half = x + 0.5 * self.dt * v
        middle = v + 0.5 * self.dt * f
        f = self.force(stiffness, half)
        x = x + self.dt * middle
        v = v + self.dt * f
        return x, v, self.force(stiffness, x)


CASES.append(
    Case(
        "pendulum of springs",
        "state",
        Chain(0.1).run,
        (ChainB(0.1).run, ChainC(0.1).run),
        (f32(6), f32(6, 2), f32(6, 2)),
        where="v = v + 0.5 * self.dt * f\n        return x, v, self.force(stiffness, x)",
        axes={"stiffness": ("links",), "x": ("links", None), "v": ("links", None)},
        source="velocity Verlet written by hand",
    )
)


# Evidence of several models.


def bridge_means(log_target, log_proposal, draws):
    log_weights = log_target - log_proposal
    weights = jnp.exp(log_weights - jax.nn.logsumexp(log_weights))
    return jnp.einsum("mn,mnd->md", weights, draws), 1.0 / jnp.sum(weights**2, axis=-1)


def bridge_means_b(log_target, log_proposal, draws):
    log_weights = log_target - log_proposal
    weights = jnp.exp(log_weights - jax.nn.logsumexp(log_weights, axis=-1, keepdims=True))
    return jnp.einsum("mn,mnd->md", weights, draws), 1.0 / jnp.sum(weights**2, axis=-1)


def pooled_means(log_target, log_proposal, draws):
    log_weights = log_target - log_proposal
    shares = jnp.exp(log_weights - jax.nn.logsumexp(log_weights))
    pooled = jnp.einsum("mn,mnd->d", shares, draws)
    return pooled, 1.0 / jnp.sum(shares**2), shares.sum(axis=-1)


def model_evidence(means_of):
    def compare(rng, centers, data):
        log_normal = jax.scipy.stats.norm.logpdf
        noise = jax.random.normal(rng, (centers.shape[0], 40, data.shape[-1]))
        draws = data.mean(axis=0) + noise
        log_proposal = log_normal(noise).sum(axis=-1)
        log_prior = log_normal(draws, centers[:, None], 2.0).sum(axis=-1)
        log_likelihood = log_normal(data[:, None, None], draws, 1.0).sum(axis=(0, -1))
        return means_of(log_prior + log_likelihood, log_proposal, draws)

    return compare


CASES.append(
    Case(
        "evidence of several models",
        "mean",
        model_evidence(bridge_means),
        (model_evidence(bridge_means_b), model_evidence(pooled_means)),
        lambda: (key(), f32(4, 3), f32(10, 3)),
        where="weights = jnp.exp(log_weights - jax.nn.logsumexp(log_weights))",
        axes={"centers": ("models", None), "data": ("data", None)},
        source="importance sampling of several models",
    )
)


# Chains side by side.


def chains_step(logp, states, rng, scale):
    move_rng, accept_rng = jax.random.split(rng)
    proposals = states + scale * jax.random.normal(move_rng, states.shape)
    ratio = jax.vmap(logp)(proposals) - jax.vmap(logp)(states)
    accepted = jnp.log(jax.random.uniform(accept_rng, ratio.shape)) < ratio
    return jnp.where(accepted, proposals, states), accepted.mean()


def chains_step_b(logp, states, rng, scale):
    move_rng, accept_rng = jax.random.split(rng)
    proposals = states + scale * jax.random.normal(move_rng, states.shape)
    ratio = jax.vmap(logp)(proposals) - jax.vmap(logp)(states)
    accepted = jnp.log(jax.random.uniform(accept_rng, ratio.shape)) < ratio
    return jnp.where(accepted[:, None], proposals, states), accepted.mean()


def chains_step_c(logp, states, rng, scale):
    def one(state, rng):
        move_rng, accept_rng = jax.random.split(rng)
        proposal = state + scale * jax.random.normal(move_rng, state.shape)
        taken = jnp.log(jax.random.uniform(accept_rng)) < logp(proposal) - logp(state)
        return jnp.where(taken, proposal, state), taken

    states, taken = jax.vmap(one)(states, jax.random.split(rng, states.shape[0]))
    return states, taken.mean()


def chains(step):
    def sample(rng, states, precision):
        def logp(x):
            return -0.5 * x @ (precision @ precision.T + jnp.eye(x.shape[0])) @ x - 0.1 * jnp.sum(x**4)

        def body(states, rng):
            states, rate = step(logp, states, rng, 0.4)
            return states, (states.mean(axis=0), rate)

        return jax.lax.scan(body, states, jax.random.split(rng, 40))

    return sample


CASES.append(
    Case(
        "chains side by side",
        "broadcast",
        chains(chains_step),
        (chains(chains_step_b), chains(chains_step_c)),
        lambda: (key(), f32(4, 4), f32(4, 4)),
        where="return jnp.where(accepted, proposals, states), accepted.mean()",
        axes={"states": ("chains", None)},
        source="Metropolis samplers of several chains",
    )
)


# The loudest mode of a beam.


def loudest_mode(mass, stiffness, start, rounds=30):
    def body(_, state):
        v, value = state
        w = jnp.linalg.solve(mass, stiffness @ start)
        value = jnp.vdot(v, w) / jnp.vdot(v, v)
        return w / jnp.linalg.norm(w), value

    mode, value = jax.lax.fori_loop(0, rounds, body, (start / jnp.linalg.norm(start), jnp.zeros(())))
    return mode, jnp.sqrt(jnp.abs(value))


def loudest_mode_b(mass, stiffness, start, rounds=30):
    def body(_, state):
        v, value = state
        w = jnp.linalg.solve(mass, stiffness @ v)
        value = jnp.vdot(v, w) / jnp.vdot(v, v)
        return w / jnp.linalg.norm(w), value

    mode, value = jax.lax.fori_loop(0, rounds, body, (start / jnp.linalg.norm(start), jnp.zeros(())))
    return mode, jnp.sqrt(jnp.abs(value))


def pushed_beam(mass, stiffness, start, rounds=30):
    def body(_, state):
        u, _ = state
        w = jnp.linalg.solve(mass, stiffness @ start - stiffness @ u)
        u = u + 0.05 * (w - u)
        return u, jnp.vdot(start, u)

    return jax.lax.fori_loop(0, rounds, body, (jnp.zeros_like(start), jnp.zeros(())))


def beam(solve):
    def run(mass, stiffness, start):
        n = start.shape[0]
        return solve(mass @ mass.T + jnp.eye(n), stiffness @ stiffness.T + 0.1 * jnp.eye(n), start)

    return run


CASES.append(
    Case(
        "loudest mode of a beam",
        "loop",
        beam(loudest_mode),
        (beam(loudest_mode_b), beam(pushed_beam)),
        (f32(6, 6), f32(6, 6), f32(6)),
        where="w = jnp.linalg.solve(mass, stiffness @ start)\n",
        source="power iterations with fori_loop",
    )
)
