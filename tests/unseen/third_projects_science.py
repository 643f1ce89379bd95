"""Mistakes of projects of simulation, inference and evolution, written anew."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.special import logsumexp
from jax.scipy.stats import norm

from unseen.case import Case, f32, i32, key


def layer(inputs: int, outputs: int):
    return {"w": f32(inputs, outputs), "b": f32(outputs)}


def dense(p, x):
    return x @ p["w"] + p["b"]


# The residual of a partial differential equation.


def field(params, t, x):
    hidden = jnp.tanh(dense(params["first"], jnp.stack([t, x], axis=-1)))
    hidden = jnp.tanh(dense(params["second"], hidden))
    return dense(params["out"], hidden)


def burgers_wrong(params, t, x, u0, x0):
    u_point = lambda t, x: field(params, t, x)[0]
    u_t = jax.vmap(jax.grad(u_point, 0))(t, x)
    u_x = jax.vmap(jax.grad(u_point, 1))(t, x)
    u_xx = jax.vmap(jax.grad(jax.grad(u_point, 1), 1))(t, x)
    u = field(params, t, x)
    residual = u_t + u * u_x - 0.01 * u_xx
    start = jax.vmap(u_point)(jnp.zeros_like(x0), x0) - u0
    return jnp.mean(residual**2) + jnp.mean(start**2)


def burgers_right(params, t, x, u0, x0):
    u_point = lambda t, x: field(params, t, x)[0]
    u_t = jax.vmap(jax.grad(u_point, 0))(t, x)
    u_x = jax.vmap(jax.grad(u_point, 1))(t, x)
    u_xx = jax.vmap(jax.grad(jax.grad(u_point, 1), 1))(t, x)
    left_over = u_t + jax.vmap(u_point)(t, x) * u_x - 0.01 * u_xx
    start = jax.vmap(u_point)(jnp.zeros_like(x0), x0) - u0
    return jnp.mean(left_over**2) + jnp.mean(start**2)


def burgers_grid(params, t, x, u0, x0):
    """Collocates on the product of times and places."""
    u_point = lambda t, x: field(params, t, x)[0]

    def residual_at(t, x):
        u_t, u_x = jax.grad(u_point, (0, 1))(t, x)
        return u_t + u_point(t, x) * u_x - 0.01 * jax.grad(jax.grad(u_point, 1), 1)(t, x)

    left_over = jax.vmap(jax.vmap(residual_at, (None, 0)), (0, None))(t, x)
    start = jax.vmap(u_point)(jnp.zeros_like(x0), x0) - u0
    return jnp.mean(left_over**2) + jnp.mean(start**2)


# A Bernoulli likelihood.


def logistic_density_wrong(theta, design, outcomes):
    logits = design @ theta["slope"] + theta["intercept"]
    log_lik = outcomes * jax.nn.log_sigmoid(logits) + (1.0 - outcomes) * jax.nn.log_sigmoid(-logits)
    log_prior = norm.logpdf(theta["slope"]).sum() + norm.logpdf(theta["intercept"], scale=5.0)
    return log_lik.sum() + log_prior


def logistic_density_right(theta, design, outcomes):
    logits = design @ theta["slope"] + theta["intercept"]
    y = jnp.ravel(outcomes)
    log_lik = y * jax.nn.log_sigmoid(logits) + (1.0 - y) * jax.nn.log_sigmoid(-logits)
    log_prior = norm.logpdf(theta["slope"]).sum() + norm.logpdf(theta["intercept"], scale=5.0)
    return log_lik.sum() + log_prior


def logistic_density_items(theta, design, outcomes):
    """Each outcome under each of a few thresholds, averaged over them."""
    logits = design @ theta["slope"] + theta["intercept"]
    thresholds = jnp.linspace(-1.0, 1.0, 5)
    shifted = logits[:, None] - thresholds
    log_lik = outcomes * jax.nn.log_sigmoid(shifted) + (1.0 - outcomes) * jax.nn.log_sigmoid(-shifted)
    log_prior = norm.logpdf(theta["slope"]).sum() + norm.logpdf(theta["intercept"], scale=5.0)
    return log_lik.mean(axis=1).sum() + log_prior


# Electrostatic energy of all pairs.


def coulomb_wrong(positions, charges):
    offsets = positions[:, None, :] - positions[None, :, :]
    distances = jnp.sqrt(jnp.sum(offsets**2, axis=-1))
    products = charges[:, None] * charges[None, :]
    other = ~jnp.eye(positions.shape[0], dtype=bool)
    return 0.5 * jnp.sum(jnp.where(other, products / distances, 0.0))


def coulomb_right(positions, charges):
    offsets = positions[:, None, :] - positions[None, :, :]
    other = ~jnp.eye(positions.shape[0], dtype=bool)
    squares = jnp.where(other, jnp.sum(offsets**2, axis=-1), 1.0)
    products = charges[:, None] * charges[None, :]
    return 0.5 * jnp.sum(jnp.where(other, products / jnp.sqrt(squares), 0.0))


def coulomb_indices(positions, charges):
    first, second = np.triu_indices(positions.shape[0], k=1)
    squares = jnp.sum((positions[first] - positions[second]) ** 2, axis=-1)
    return jnp.sum(charges[first] * charges[second] / jnp.sqrt(squares + 1e-12))


# The angle between rotations.


def rotation_matrix(v):
    x, y, z = v
    skew = jnp.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return jax.scipy.linalg.expm(skew)


def pose_loss_wrong(pose, target):
    relative = rotation_matrix(pose["turn"]).T @ target["rotation"]
    cosine = jnp.clip((jnp.trace(relative) - 1.0) / 2.0, -1.0, 1.0)
    angle = jnp.arccos(cosine)
    return angle**2 + jnp.sum((pose["shift"] - target["shift"]) ** 2)


def pose_loss_right(pose, target):
    relative = rotation_matrix(pose["turn"]).T @ target["rotation"]
    cosine = jnp.clip((jnp.trace(relative) - 1.0) / 2.0, -1.0 + 1e-6, 1.0 - 1e-6)
    return jnp.arccos(cosine) ** 2 + jnp.sum((pose["shift"] - target["shift"]) ** 2)


def pose_loss_chord(pose, target):
    chord = rotation_matrix(pose["turn"]) - target["rotation"]
    return 0.5 * jnp.sum(chord**2) + jnp.sum((pose["shift"] - target["shift"]) ** 2)


# Means of groups that may have no members.


def group_effects_wrong(effects, values, present):
    counts = present.sum(axis=1)
    means = (values * present).sum(axis=1) / counts
    return jnp.sum((means - effects) ** 2 * (counts > 0)) + 0.1 * jnp.sum(effects**2)


def group_effects_right(effects, values, present):
    counts = present.sum(axis=1)
    means = (values * present).sum(axis=1) / jnp.maximum(counts, 1.0)
    return jnp.sum((means - effects) ** 2 * (counts > 0)) + 0.1 * jnp.sum(effects**2)


def group_effects_shrunk(effects, values, present):
    """A prior of one observation at zero in each group."""
    totals = jnp.where(present > 0, values, 0.0).sum(axis=1)
    means = totals / (present.sum(axis=1) + 1.0)
    return jnp.sum((means - effects) ** 2) + 0.1 * jnp.sum(effects**2)


# The clock of a simulation.


def drive_wrong(amplitude, phase):
    step_ns = 1_000_000
    ticks = jnp.arange(4096, dtype=jnp.int32)
    elapsed_ns = ticks * step_ns
    seconds = elapsed_ns.astype(jnp.float32) * 1e-9
    signal = amplitude[:, None] * jnp.sin(2.0 * jnp.pi * 5.0 * seconds + phase[:, None])
    return signal.sum(axis=0)


def drive_right(amplitude, phase):
    ticks = jnp.arange(4096, dtype=jnp.int32)
    seconds = ticks.astype(jnp.float32) * 1e-3
    signal = amplitude[:, None] * jnp.sin(2.0 * jnp.pi * 5.0 * seconds + phase[:, None])
    return signal.sum(axis=0)


def drive_jitter(amplitude, phase):
    """Jitters the clock by a hash, whose products are meant to wrap."""
    ticks = jnp.arange(4096, dtype=jnp.uint32)
    hashed = (ticks * jnp.uint32(2654435761)) ^ (ticks >> 16)
    jitter = hashed.astype(jnp.float32) / 2.0**32
    seconds = (ticks.astype(jnp.float32) + jitter) * 1e-3
    return (amplitude[:, None] * jnp.sin(2.0 * jnp.pi * 5.0 * seconds + phase[:, None])).sum(axis=0)


# A random walk of Metropolis.


def banana(x):
    return -0.5 * (x[0] ** 2 / 4.0 + (x[1] + 0.25 * x[0] ** 2) ** 2)


def walk_wrong(rng, start):
    def step(x, rng):
        proposal = x + 0.5 * jax.random.normal(rng, x.shape)
        log_ratio = banana(proposal) - banana(x)
        accept = jnp.log(jax.random.uniform(rng)) < log_ratio
        return jnp.where(accept, proposal, x), (x, accept)

    _, (samples, accepted) = jax.lax.scan(step, start, jax.random.split(rng, 200))
    return samples, accepted.mean()


def walk_right(rng, start):
    def step(x, rng):
        move_rng, accept_rng = jax.random.split(rng)
        proposal = x + 0.5 * jax.random.normal(move_rng, x.shape)
        log_ratio = banana(proposal) - banana(x)
        accept = jnp.log(jax.random.uniform(accept_rng)) < log_ratio
        return jnp.where(accept, proposal, x), (x, accept)

    _, (samples, accepted) = jax.lax.scan(step, start, jax.random.split(rng, 200))
    return samples, accepted.mean()


def walk_drawn(rng, start):
    """All draws of a step are parts of one."""

    def step(x, draws):
        proposal = x + 0.5 * draws[:-1]
        log_ratio = banana(proposal) - banana(x)
        accept = norm.logcdf(draws[-1]) < log_ratio
        return jnp.where(accept, proposal, x), (x, accept)

    draws = jax.random.normal(rng, (200, start.shape[0] + 1))
    _, (samples, accepted) = jax.lax.scan(step, start, draws)
    return samples, accepted.mean()


# Acceptance against an exponential draw.


def langevin_wrong(rng, start):
    def step(x, rng):
        noise_rng, accept_rng = jax.random.split(rng)
        drift = jax.grad(banana)
        there = x + 0.05 * drift(x) + jnp.sqrt(0.1) * jax.random.normal(noise_rng, x.shape)
        forward = -jnp.sum((there - x - 0.05 * drift(x)) ** 2) / 0.2
        backward = -jnp.sum((x - there - 0.05 * drift(there)) ** 2) / 0.2
        log_accept = banana(there) - banana(x) + backward - forward
        threshold = jax.random.exponential(accept_rng)
        x = jnp.where(log_accept > threshold, there, x)
        return x, x

    return jax.lax.scan(step, start, jax.random.split(rng, 100))[1]


def langevin_right(rng, start):
    def step(x, rng):
        noise_rng, accept_rng = jax.random.split(rng)
        drift = jax.grad(banana)
        there = x + 0.05 * drift(x) + jnp.sqrt(0.1) * jax.random.normal(noise_rng, x.shape)
        forward = -jnp.sum((there - x - 0.05 * drift(x)) ** 2) / 0.2
        backward = -jnp.sum((x - there - 0.05 * drift(there)) ** 2) / 0.2
        log_accept = banana(there) - banana(x) + backward - forward
        log_threshold = -jax.random.exponential(accept_rng)
        x = jnp.where(log_accept > log_threshold, there, x)
        return x, x

    return jax.lax.scan(step, start, jax.random.split(rng, 100))[1]


def langevin_plain(rng, start):
    """Without acceptance, by short steps."""

    def step(x, rng):
        x = x + 0.005 * jax.grad(banana)(x) + jnp.sqrt(0.01) * jax.random.normal(rng, x.shape)
        return x, x

    return jax.lax.scan(step, start, jax.random.split(rng, 100))[1]


# A pendulum by many small steps.


def swing(state, length):
    angle, speed = state
    return jnp.stack([speed, -9.81 / length * jnp.sin(angle)])


def simulate_wrong(length, state):
    states = []
    for _ in range(200):
        k1 = swing(state, length)
        k2 = swing(state + 0.005 * k1, length)
        state = state + 0.01 * k2
        states.append(state)
    return jnp.stack(states)


def simulate_right(length, state):
    def step(state, _):
        k1 = swing(state, length)
        k2 = swing(state + 0.005 * k1, length)
        state = state + 0.01 * k2
        return state, state

    return jax.lax.scan(step, state, length=200)[1]


def simulate_stages(length, state):
    """Four stages are few, and differ."""

    def step(state, _):
        slopes = []
        for fraction in (0.0, 0.5, 0.5, 1.0):
            at = state + 0.01 * fraction * slopes[-1] if slopes else state
            slopes.append(swing(at, length))
        state = state + 0.01 / 6.0 * (slopes[0] + 2.0 * slopes[1] + 2.0 * slopes[2] + slopes[3])
        return state, state

    return jax.lax.scan(step, state, length=200)[1]


# Ranks of fitness in an evolution strategy.


def rastrigin(x):
    return 10.0 * x.shape[-1] + jnp.sum(x**2 - 10.0 * jnp.cos(2.0 * jnp.pi * x), axis=-1)


def evolve_wrong(rng, mean):
    def generation(mean, rng):
        noise = jax.random.normal(rng, (32, mean.shape[0]))
        fitness = rastrigin(mean + 0.1 * noise)
        ranks = jnp.argsort(fitness)
        shaped = ranks / (fitness.shape[0] - 1) - 0.5
        gradient = shaped @ noise / (fitness.shape[0] * 0.1)
        return mean - 0.05 * gradient, fitness.min()

    return jax.lax.scan(generation, mean, jax.random.split(rng, 40))


def evolve_right(rng, mean):
    def generation(mean, rng):
        noise = jax.random.normal(rng, (32, mean.shape[0]))
        fitness = rastrigin(mean + 0.1 * noise)
        ranks = jnp.argsort(jnp.argsort(fitness))
        shaped = ranks / (fitness.shape[0] - 1) - 0.5
        gradient = shaped @ noise / (fitness.shape[0] * 0.1)
        return mean - 0.05 * gradient, fitness.min()

    return jax.lax.scan(generation, mean, jax.random.split(rng, 40))


def evolve_elite(rng, mean):
    """The mean of the best quarter, the best weighing most."""
    weights = jnp.log(8.5) - jnp.log(jnp.arange(1.0, 9.0))
    weights = weights / weights.sum()

    def generation(mean, rng):
        population = mean + 0.1 * jax.random.normal(rng, (32, mean.shape[0]))
        fitness = rastrigin(population)
        order = jnp.argsort(fitness)
        return weights @ population[order[:8]], fitness.min()

    return jax.lax.scan(generation, mean, jax.random.split(rng, 40))


# Evidence by a particle filter.


def evidence_wrong(rng, particles, observations):
    def step(particles, inputs):
        rng, y = inputs
        move_rng, pick_rng = jax.random.split(rng)
        particles = 0.9 * particles + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = norm.logpdf(y, particles, 0.05)
        log_mean = jnp.log(jnp.mean(jnp.exp(log_weights)))
        picked = jax.random.categorical(pick_rng, log_weights, shape=particles.shape)
        return particles[picked], log_mean

    rngs = jax.random.split(rng, observations.shape[0])
    return jax.lax.scan(step, particles, (rngs, observations))[1].sum()


def evidence_right(rng, particles, observations):
    def step(particles, inputs):
        rng, y = inputs
        move_rng, pick_rng = jax.random.split(rng)
        particles = 0.9 * particles + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = norm.logpdf(y, particles, 0.05)
        log_mean = logsumexp(log_weights) - jnp.log(particles.shape[0])
        picked = jax.random.categorical(pick_rng, log_weights, shape=particles.shape)
        return particles[picked], log_mean

    rngs = jax.random.split(rng, observations.shape[0])
    return jax.lax.scan(step, particles, (rngs, observations))[1].sum()


def evidence_shifted(rng, particles, observations):
    def step(particles, inputs):
        rng, y = inputs
        move_rng, pick_rng = jax.random.split(rng)
        particles = 0.9 * particles + 0.3 * jax.random.normal(move_rng, particles.shape)
        log_weights = norm.logpdf(y, particles, 0.05)
        top = jax.lax.stop_gradient(log_weights.max())
        log_mean = top + jnp.log(jnp.mean(jnp.exp(log_weights - top)))
        picked = jax.random.categorical(pick_rng, log_weights, shape=particles.shape)
        return particles[picked], log_mean

    rngs = jax.random.split(rng, observations.shape[0])
    return jax.lax.scan(step, particles, (rngs, observations))[1].sum()


# An ensemble Kalman filter.


def ensemble_update_wrong(ensemble, observed, rng):
    anomalies = ensemble - ensemble.mean(axis=1)
    covariance = anomalies.T @ anomalies / (ensemble.shape[0] - 1)
    noise = 0.1 * jax.random.normal(rng, ensemble.shape)
    gain = jnp.linalg.solve(covariance + 0.01 * jnp.eye(observed.shape[0]), covariance).T
    return ensemble + (observed + noise - ensemble) @ gain.T


def ensemble_update_right(ensemble, observed, rng):
    anomalies = ensemble - ensemble.mean(axis=0)
    covariance = anomalies.T @ anomalies / (ensemble.shape[0] - 1)
    noise = 0.1 * jax.random.normal(rng, ensemble.shape)
    gain = jnp.linalg.solve(covariance + 0.01 * jnp.eye(observed.shape[0]), covariance).T
    return ensemble + (observed + noise - ensemble) @ gain.T


def ensemble_update_fields(ensemble, observed, rng):
    """Each member is a field whose own mean is of no interest."""
    fields = ensemble - ensemble.mean(axis=1, keepdims=True)
    anomalies = fields - fields.mean(axis=0)
    covariance = anomalies.T @ anomalies / (ensemble.shape[0] - 1)
    noise = 0.1 * jax.random.normal(rng, ensemble.shape)
    gain = jnp.linalg.solve(covariance + 0.01 * jnp.eye(observed.shape[0]), covariance).T
    return ensemble + (observed + noise - ensemble) @ gain.T


# The matrix of a Gaussian process.


def rbf(theta, a, b):
    return jnp.exp(theta["log_scale"]) * jnp.exp(-0.5 * jnp.sum((a - b) ** 2) / jnp.exp(theta["log_length"]))


def marginal_wrong(theta, x, y):
    gram = jax.vmap(lambda a, b: rbf(theta, a, b))(x, x)
    covariance = gram + jnp.exp(theta["log_noise"]) * jnp.eye(x.shape[0])
    factor = jnp.linalg.cholesky(covariance)
    solved = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    return 0.5 * jnp.sum(solved**2) + jnp.sum(jnp.log(jnp.diag(factor)))


def marginal_right(theta, x, y):
    gram = jax.vmap(lambda a: jax.vmap(lambda b: rbf(theta, a, b))(x))(x)
    covariance = gram + jnp.exp(theta["log_noise"]) * jnp.eye(x.shape[0])
    factor = jnp.linalg.cholesky(covariance)
    solved = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    return 0.5 * jnp.sum(solved**2) + jnp.sum(jnp.log(jnp.diag(factor)))


def marginal_independent(theta, x, y):
    """Only the variances of the points."""
    variance = jax.vmap(lambda a: rbf(theta, a, a))(x) + jnp.exp(theta["log_noise"])
    return 0.5 * jnp.sum(y**2 / variance) + 0.5 * jnp.sum(jnp.log(variance))


# Heat with fixed ends.


def heat_wrong(conductivity, temperature):
    def step(u, _):
        flow = conductivity * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        u = u + jnp.pad(0.1 * flow, 1, mode="edge")
        u.at[0].set(1.0).at[-1].set(0)
        return u, u.mean()

    return jax.lax.scan(step, temperature, length=50)


def heat_right(conductivity, temperature):
    def step(u, _):
        flow = conductivity * (u[2:] - 2.0 * u[1:-1] + u[:-2])
        u = u + jnp.pad(0.1 * flow, 1, mode="edge")
        u = u.at[0].set(1.0).at[-1].set(0.0)
        return u, u.mean()

    return jax.lax.scan(step, temperature, length=50)


def heat_ring(conductivity, temperature):
    """A ring has no ends."""

    def step(u, _):
        flow = jnp.pad(conductivity, (1, 1), mode="wrap") * (jnp.roll(u, -1) - 2.0 * u + jnp.roll(u, 1))
        u = u + 0.1 * flow
        return u, u.mean()

    return jax.lax.scan(step, temperature, length=50)


# Velocity Verlet.


def spring_forces(positions):
    stretch = jnp.diff(positions, axis=0)
    pull = jnp.pad(stretch, ((0, 1), (0, 0))) - jnp.pad(stretch, ((1, 0), (0, 0)))
    return 4.0 * pull - 0.1 * positions**3


def verlet_wrong(positions, velocities):
    def step(carry, _):
        x, v = carry
        force = spring_forces(x)
        x = x + 0.02 * v + 0.5 * 0.02**2 * force
        new_force = spring_forces(x)
        v = v + 0.5 * 0.02 * (force + force)
        return (x, v), 0.5 * jnp.sum(v**2)

    return jax.lax.scan(step, (positions, velocities), length=100)


def verlet_right(positions, velocities):
    def step(carry, _):
        x, v = carry
        force = spring_forces(x)
        x = x + 0.02 * v + 0.5 * 0.02**2 * force
        new_force = spring_forces(x)
        v = v + 0.5 * 0.02 * (force + new_force)
        return (x, v), 0.5 * jnp.sum(v**2)

    return jax.lax.scan(step, (positions, velocities), length=100)


def verlet_kept(positions, velocities):
    """Keeps the forces between steps."""

    def step(carry, _):
        x, v, force = carry
        v = v + 0.5 * 0.02 * force
        x = x + 0.02 * v
        force = spring_forces(x)
        v = v + 0.5 * 0.02 * force
        return (x, v, force), 0.5 * jnp.sum(v**2)

    return jax.lax.scan(step, (positions, velocities, spring_forces(positions)), length=100)


# The root of an equation, differentiated implicitly.


def kepler_residual(anomaly, eccentricity, mean_anomaly):
    return anomaly - eccentricity * jnp.sin(anomaly) - mean_anomaly


def kepler_newton(eccentricity, mean_anomaly):
    def improve(_, anomaly):
        slope = 1.0 - eccentricity * jnp.cos(anomaly)
        return anomaly - kepler_residual(anomaly, eccentricity, mean_anomaly) / slope

    return jax.lax.fori_loop(0, 12, improve, mean_anomaly)


@jax.custom_vjp
def kepler(eccentricity, mean_anomaly):
    return kepler_newton(eccentricity, mean_anomaly)


def kepler_forward(eccentricity, mean_anomaly):
    anomaly = kepler_newton(eccentricity, mean_anomaly)
    return anomaly, (anomaly, eccentricity)


def kepler_backward(saved, g):
    anomaly, eccentricity = saved
    scaled = g / (1.0 - eccentricity * jnp.cos(anomaly))
    return -scaled * jnp.sin(anomaly), scaled


kepler.defvjp(kepler_forward, kepler_backward)


@jax.custom_vjp
def kepler_mended(eccentricity, mean_anomaly):
    return kepler_newton(eccentricity, mean_anomaly)


def kepler_mended_backward(saved, g):
    anomaly, eccentricity = saved
    scaled = g / (1.0 - eccentricity * jnp.cos(anomaly))
    return scaled * jnp.sin(anomaly), scaled


kepler_mended.defvjp(kepler_forward, kepler_mended_backward)


@jax.custom_jvp
def kepler_forwards(eccentricity, mean_anomaly):
    return kepler_newton(eccentricity, mean_anomaly)


@kepler_forwards.defjvp
def kepler_forwards_jvp(primals, tangents):
    eccentricity, _ = primals
    anomaly = kepler_forwards(*primals)
    pushed = jnp.sin(anomaly) * tangents[0] + tangents[1]
    return anomaly, pushed / (1.0 - eccentricity * jnp.cos(anomaly))


def orbit_wrong(eccentricity, times, radii):
    anomaly = jax.vmap(kepler)(jnp.broadcast_to(eccentricity, times.shape), times)
    return jnp.mean((1.0 - eccentricity * jnp.cos(anomaly) - radii) ** 2)


def orbit_right(eccentricity, times, radii):
    anomaly = jax.vmap(kepler_mended)(jnp.broadcast_to(eccentricity, times.shape), times)
    return jnp.mean((1.0 - eccentricity * jnp.cos(anomaly) - radii) ** 2)


def orbit_forwards(eccentricity, times, radii):
    anomaly = jax.vmap(kepler_forwards)(jnp.broadcast_to(eccentricity, times.shape), times)
    return jnp.mean((1.0 - eccentricity * jnp.cos(anomaly) - radii) ** 2)


# An epidemic of which the rates are fitted.


def epidemic_wrong(rates, rng, infected, contacts, curve):
    def day(state, rng):
        catch_rng, heal_rng = jax.random.split(rng)
        pressure = contacts @ state
        caught = jax.random.bernoulli(catch_rng, 1.0 - jnp.exp(-rates["infect"] * pressure))
        healed = jax.random.bernoulli(heal_rng, jax.nn.sigmoid(rates["heal"]), state.shape)
        state = jnp.where(state > 0, 1.0 - healed, caught.astype(jnp.float32))
        return state, state.mean()

    _, simulated = jax.lax.scan(day, infected, jax.random.split(rng, curve.shape[0]))
    return jnp.mean((simulated - curve) ** 2)


def epidemic_right(rates, rng, infected, contacts, curve):
    def relaxed(rng, p):
        p = jnp.clip(p, 1e-4, 1.0 - 1e-4)
        noise = jax.random.logistic(rng, p.shape)
        return jax.nn.sigmoid((jnp.log(p) - jnp.log1p(-p) + noise) / 0.3)

    def day(state, rng):
        catch_rng, heal_rng = jax.random.split(rng)
        pressure = contacts @ state
        caught = relaxed(catch_rng, 1.0 - jnp.exp(-rates["infect"] * pressure))
        healed = relaxed(heal_rng, jnp.broadcast_to(jax.nn.sigmoid(rates["heal"]), state.shape))
        state = state * (1.0 - healed) + (1.0 - state) * caught
        return state, state.mean()

    _, simulated = jax.lax.scan(day, infected, jax.random.split(rng, curve.shape[0]))
    return jnp.mean((simulated - curve) ** 2)


def epidemic_expected(rates, rng, infected, contacts, curve):
    """The mean field; only who is seen is drawn."""
    seen = jax.random.bernoulli(rng, 0.5, infected.shape).astype(jnp.float32)

    def day(state, _):
        caught = 1.0 - jnp.exp(-rates["infect"] * (contacts @ state))
        state = state * (1.0 - jax.nn.sigmoid(rates["heal"])) + (1.0 - state) * caught
        return state, jnp.sum(state * seen) / jnp.maximum(seen.sum(), 1.0)

    _, simulated = jax.lax.scan(day, infected, length=curve.shape[0])
    return jnp.mean((simulated - curve) ** 2)


# Chains side by side.


def leapfrog(x, p):
    p = p + 0.05 * jax.grad(banana)(x)
    x = x + 0.1 * p
    return x, p + 0.05 * jax.grad(banana)(x)


def hamiltonian_step(rng, x):
    momentum_rng, accept_rng = jax.random.split(rng)
    p = jax.random.normal(momentum_rng, x.shape)
    there, q = jax.lax.fori_loop(0, 10, lambda _, c: leapfrog(*c), (x, p))
    change = banana(there) - 0.5 * q @ q - banana(x) + 0.5 * p @ p
    return jnp.where(jnp.log(jax.random.uniform(accept_rng)) < change, there, x)


def chains_wrong(rng, starts):
    def sweep(positions, rng):
        positions = jax.vmap(lambda x: hamiltonian_step(rng, x))(positions)
        return positions, positions

    return jax.lax.scan(sweep, starts, jax.random.split(rng, 50))[1]


def chains_right(rng, starts):
    def sweep(positions, rng):
        rngs = jax.random.split(rng, positions.shape[0])
        positions = jax.vmap(hamiltonian_step)(rngs, positions)
        return positions, positions

    return jax.lax.scan(sweep, starts, jax.random.split(rng, 50))[1]


def chains_whole(rng, starts):
    """Each chain has a key, and goes all its way by itself."""

    def chain(rng, start):
        def advance(x, rng):
            x = hamiltonian_step(rng, x)
            return x, x

        return jax.lax.scan(advance, start, jax.random.split(rng, 50))[1]

    return jax.vmap(chain)(jax.random.split(rng, starts.shape[0]), starts)


# Receivers padded by minus one.


def gather_forces_wrong(positions, senders, receivers):
    offsets = positions[senders] - positions[receivers]
    pull = offsets * jnp.exp(-jnp.sum(offsets**2, axis=-1, keepdims=True))
    return jnp.zeros_like(positions).at[receivers].add(pull)


def gather_forces_right(positions, senders, receivers):
    real = (receivers >= 0)[:, None]
    first, second = jnp.maximum(senders, 0), jnp.maximum(receivers, 0)
    offsets = positions[first] - positions[second]
    pull = offsets * jnp.exp(-jnp.sum(offsets**2, axis=-1, keepdims=True))
    return jnp.zeros_like(positions).at[second].add(jnp.where(real, pull, 0.0))


def gather_forces_extra(positions, senders, receivers):
    """Padding meets a row of its own, the last, that is left out after."""
    padded = jnp.concatenate([positions, jnp.zeros_like(positions[:1])], axis=0)
    offsets = padded[senders] - padded[receivers]
    pull = offsets * jnp.exp(-jnp.sum(offsets**2, axis=-1, keepdims=True))
    return jnp.zeros_like(padded).at[receivers].add(pull)[:-1]


SENDERS = np.array([0, 1, 1, 2, 3, 4, 0, 0, 0], dtype=np.int32)
RECEIVERS = np.array([1, 0, 2, 1, 4, 3, 4, -1, -1], dtype=np.int32)


# A hidden Markov model.


def hidden_wrong(theta, observations):
    log_initial = jax.nn.log_softmax(theta["initial"])
    log_move = jax.nn.log_softmax(theta["move"], axis=0)
    log_emit = jax.nn.log_softmax(theta["emit"], axis=1)

    def step(log_alpha, symbol):
        log_alpha = logsumexp(log_alpha[:, None] + log_move, axis=0) + log_emit[:, symbol]
        return log_alpha, None

    log_alpha, _ = jax.lax.scan(step, log_initial + log_emit[:, observations[0]], observations[1:])
    return -logsumexp(log_alpha)


def hidden_right(theta, observations):
    log_initial = jax.nn.log_softmax(theta["initial"])
    log_move = jax.nn.log_softmax(theta["move"], axis=1)
    log_emit = jax.nn.log_softmax(theta["emit"], axis=1)

    def step(log_alpha, symbol):
        log_alpha = logsumexp(log_alpha[:, None] + log_move, axis=0) + log_emit[:, symbol]
        return log_alpha, None

    log_alpha, _ = jax.lax.scan(step, log_initial + log_emit[:, observations[0]], observations[1:])
    return -logsumexp(log_alpha)


def hidden_columns(theta, observations):
    """Columns are where a move begins."""
    log_initial = jax.nn.log_softmax(theta["initial"])
    log_to_from = jax.nn.log_softmax(theta["move"], axis=0)
    log_emit = jax.nn.log_softmax(theta["emit"], axis=1)

    def step(log_alpha, symbol):
        return logsumexp(log_to_from + log_alpha, axis=1) + log_emit[:, symbol], None

    log_alpha, _ = jax.lax.scan(step, log_initial + log_emit[:, observations[0]], observations[1:])
    return -logsumexp(log_alpha)


# Settings that a jitted step reads.


def settle_wrong(positions):
    settings = {"temperature": 1.0}

    @jax.jit
    def relax(x):
        energy = lambda x: jnp.sum(x**2 / settings["temperature"]) + jnp.sum(jnp.cos(3.0 * x))
        return x - 0.05 * jax.grad(energy)(x)

    for temperature in (1.0, 0.5, 0.25):
        settings["temperature"] = temperature
        for _ in range(3):
            positions = relax(positions)
    return positions


def settle_right(positions):
    @jax.jit
    def relax(x, temperature):
        energy = lambda x: jnp.sum(x**2 / temperature) + jnp.sum(jnp.cos(3.0 * x))
        return x - 0.05 * jax.grad(energy)(x)

    for temperature in (1.0, 0.5, 0.25):
        for _ in range(3):
            positions = relax(positions, temperature)
    return positions


def settle_constant(positions):
    constants = {"stiffness": 2.0}

    @jax.jit
    def relax(x):
        energy = lambda x: jnp.sum(constants["stiffness"] * x**2) + jnp.sum(jnp.cos(3.0 * x))
        return x - 0.05 * jax.grad(energy)(x)

    for _ in range(9):
        positions = relax(positions)
    return positions


# Variational inference by a sampled bound.


def bound_wrong(q, rng, design, y):
    eps = jax.random.normal(rng, (10, design.shape[1]))
    weights = q["mean"] + jnp.exp(q["log_scale"]) * eps
    log_lik = norm.logpdf(y, weights @ design.T, 0.5).sum(axis=1)
    entropy = jnp.sum(q["log_scale"])
    log_prior = norm.logpdf(weights).sum(axis=1)
    return -jnp.mean(log_lik + log_prior) + entropy


def bound_right(q, rng, design, y):
    eps = jax.random.normal(rng, (10, design.shape[1]))
    weights = q["mean"] + jnp.exp(q["log_scale"]) * eps
    log_lik = norm.logpdf(y, weights @ design.T, 0.5).sum(axis=1)
    entropy = jnp.sum(q["log_scale"])
    log_prior = norm.logpdf(weights).sum(axis=1)
    return -(jnp.mean(log_lik + log_prior) + entropy)


def bound_closed(q, rng, design, y):
    """The divergence in closed form."""
    eps = jax.random.normal(rng, (10, design.shape[1]))
    weights = q["mean"] + jnp.exp(q["log_scale"]) * eps
    log_lik = norm.logpdf(y, weights @ design.T, 0.5).sum(axis=1)
    divergence = 0.5 * jnp.sum(jnp.exp(2.0 * q["log_scale"]) + q["mean"] ** 2 - 1.0 - 2.0 * q["log_scale"])
    return divergence - jnp.mean(log_lik)


# Parameters shared by the fit of several series.


def series_fit_wrong(params, inputs, outputs):
    tx = optax.adam(1e-2)

    def loss(p, x, y):
        return jnp.mean((jnp.tanh(dense(p["hidden"], x)) @ p["read"] - y) ** 2)

    def epoch(carry, _):
        params, opt_state = carry
        grads = jax.grad(loss)(params, inputs, outputs)
        updates, opt_state = tx.update(grads, opt_state, params)
        optax.apply_updates(params, updates)
        return (params, opt_state), loss(params, inputs, outputs)

    (params, _), losses = jax.lax.scan(epoch, (params, tx.init(params)), length=20)
    return params, losses


def series_fit_right(params, inputs, outputs):
    tx = optax.adam(1e-2)

    def loss(p, x, y):
        return jnp.mean((jnp.tanh(dense(p["hidden"], x)) @ p["read"] - y) ** 2)

    def epoch(carry, _):
        params, opt_state = carry
        grads = jax.grad(loss)(params, inputs, outputs)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates=updates)
        return (params, opt_state), loss(params, inputs, outputs)

    (params, _), losses = jax.lax.scan(epoch, (params, tx.init(params)), length=20)
    return params, losses


def series_fit_reservoir(params, inputs, outputs):
    """Only the readout is fitted; the rest stays as it was drawn."""
    tx = optax.adam(1e-2)
    states = jnp.tanh(dense(params["hidden"], inputs))

    def loss(read):
        return jnp.mean((states @ read - outputs) ** 2)

    def epoch(carry, _):
        read, opt_state = carry
        value, grads = jax.value_and_grad(loss)(read)
        updates, opt_state = tx.update(grads, opt_state, read)
        return (optax.apply_updates(read, updates=updates), opt_state), value

    (read, _), losses = jax.lax.scan(epoch, (params["read"], tx.init(params["read"])), length=20)
    return {**params, "read": read}, losses


FIELD = {"first": layer(2, 16), "second": layer(16, 16), "out": layer(16, 1)}
GAUSSIAN = {"log_scale": f32(), "log_length": f32(), "log_noise": f32()}

CASES = [
    Case(
        name="third_burgers",
        family="(N,) meets (N, 1)",
        wrong=burgers_wrong,
        right=(burgers_right, burgers_grid),
        args=(FIELD, f32(40), f32(40), f32(15), f32(15)),
        where="residual = u_t + u * u_x - 0.01 * u_xx",
        differentiate="params",
        source="networks of physics; Photon-AI-Research/NeuralSolvers issue 20",
    ),
    Case(
        name="third_logistic_density",
        family="(N,) meets (N, 1)",
        wrong=logistic_density_wrong,
        right=(logistic_density_right, logistic_density_items),
        args=({"slope": f32(7), "intercept": f32()}, f32(100, 7), f32(100, 1)),
        where="log_lik = outcomes * jax.nn.log_sigmoid(logits) + (1.0 - outcomes) * jax.nn.log_sigmoid(-logits)",
        differentiate="theta",
        source="pyro-ppl/numpyro issue 1230",
    ),
    Case(
        name="third_coulomb",
        family="NaN gradient",
        wrong=coulomb_wrong,
        right=(coulomb_right, coulomb_indices),
        args=(f32(9, 3), f32(9)),
        where="distances = jnp.sqrt(jnp.sum(offsets**2, axis=-1))",
        differentiate="positions",
        source="jax-ml/jax issue 654; jax-md/jax-md pull request 63",
    ),
    Case(
        name="third_pose_loss",
        family="NaN gradient",
        wrong=pose_loss_wrong,
        right=(pose_loss_right, pose_loss_chord),
        args=({"turn": f32(3), "shift": f32(3)}, {"rotation": f32(3, 3), "shift": f32(3)}),
        where="angle = jnp.arccos(cosine)",
        differentiate="pose",
        source="questions on arccos of a clipped cosine; gbionics/jaxsim pull request 319",
    ),
    Case(
        name="third_group_effects",
        family="NaN from masks",
        wrong=group_effects_wrong,
        right=(group_effects_right, group_effects_shrunk),
        args=(f32(12), f32(12, 20), f32(12, 20)),
        where="means = (values * present).sum(axis=1) / counts",
        differentiate="effects",
        source="jax-ml/jax issue 347; groups without members in hierarchical models",
    ),
    Case(
        name="third_drive",
        family="integer overflow",
        wrong=drive_wrong,
        right=(drive_right, drive_jitter),
        args=(f32(6), f32(6)),
        where="elapsed_ns = ticks * step_ns",
        source="integers of 32 bits by default; times in nanoseconds",
    ),
    Case(
        name="third_walk",
        family="key reuse",
        wrong=walk_wrong,
        right=(walk_right, walk_drawn),
        args=(key(), f32(2)),
        where="accept = jnp.log(jax.random.uniform(rng)) < log_ratio",
        source="blackjax-devs/blackjax issue 53 and samplers written by hand",
    ),
    Case(
        name="third_langevin",
        family="sign or scale inverted",
        wrong=langevin_wrong,
        right=(langevin_right, langevin_plain),
        args=(key(), f32(2)),
        where="threshold = jax.random.exponential(accept_rng)",
        source="lollcat/fab-jax pull request 14",
    ),
    Case(
        name="third_simulate",
        family="unrolled loop",
        wrong=simulate_wrong,
        right=(simulate_right, simulate_stages),
        args=(f32(), f32(2)),
        where="for _ in range(200):",
        source="FAQ of JAX on slow compilation; jax-ml/jax pull request 4830",
    ),
    Case(
        name="third_evolve",
        family="permutation for ranks",
        wrong=evolve_wrong,
        right=(evolve_right, evolve_elite),
        args=(key(), f32(6)),
        where="ranks = jnp.argsort(fitness)",
        source="centred ranks of evolution strategies, by one argsort",
    ),
    Case(
        name="third_evidence",
        family="unstable logarithm",
        wrong=evidence_wrong,
        right=(evidence_right, evidence_shifted),
        args=(key(), f32(64), f32(30)),
        where="log_mean = jnp.log(jnp.mean(jnp.exp(log_weights)))",
        source="particle filters and importance weights written by hand",
    ),
    Case(
        name="third_ensemble_update",
        family="wrong axis",
        wrong=ensemble_update_wrong,
        right=(ensemble_update_right, ensemble_update_fields),
        args=(f32(20, 20), f32(20), key()),
        where="anomalies = ensemble - ensemble.mean(axis=1)",
        axes={"ensemble": ("member", "state"), "observed": ("state",)},
        source="data assimilation with as many members as variables",
    ),
    Case(
        name="third_marginal",
        family="vmap",
        wrong=marginal_wrong,
        right=(marginal_right, marginal_independent),
        args=(GAUSSIAN, f32(25, 3), f32(25)),
        where="gram = jax.vmap(lambda a, b: rbf(theta, a, b))(x, x)",
        differentiate="theta",
        source="questions on kernel matrices by vmap",
    ),
    Case(
        name="third_heat",
        family="result dropped",
        wrong=heat_wrong,
        right=(heat_right, heat_ring),
        args=(f32(30), f32(32)),
        where="u.at[0].set(1.0).at[-1].set(0)",
        source="The Sharp Bits on updates of arrays",
    ),
    Case(
        name="third_verlet",
        family="state out of date",
        wrong=verlet_wrong,
        right=(verlet_right, verlet_kept),
        args=(f32(12, 3), f32(12, 3)),
        where="v = v + 0.5 * 0.02 * (force + force)",
        source="integrators of molecular dynamics written by hand",
    ),
    Case(
        name="third_orbit",
        family="custom rule",
        wrong=orbit_wrong,
        right=(orbit_right, orbit_forwards),
        args=(f32(), f32(18), f32(18)),
        where="return -scaled * jnp.sin(anomaly), scaled",
        differentiate="eccentricity",
        source="implicit differentiation written by hand; jax-ml/jax issue 3213",
    ),
    Case(
        name="third_epidemic",
        family="no gradient",
        wrong=epidemic_wrong,
        right=(epidemic_right, epidemic_expected),
        args=({"infect": f32(), "heal": f32()}, key(), f32(40), f32(40, 40), f32(15)),
        where="caught = jax.random.bernoulli(catch_rng, 1.0 - jnp.exp(-rates[",
        differentiate="rates",
        source="jax-ml/jax issue 17555",
    ),
    Case(
        name="third_chains",
        family="key shared by batch elements",
        wrong=chains_wrong,
        right=(chains_right, chains_whole),
        args=(key(), f32(8, 2)),
        where="positions = jax.vmap(lambda x: hamiltonian_step(rng, x))(positions)",
        source="several chains of a sampler by vmap",
    ),
    Case(
        name="third_gather_forces",
        family="index out of range",
        wrong=gather_forces_wrong,
        right=(gather_forces_right, gather_forces_extra),
        args=(f32(5, 3), SENDERS, RECEIVERS),
        where="return jnp.zeros_like(positions).at[receivers].add(pull)",
        source="jax-ml/jax pull request 5342 and issue 7538; AI-Hypercomputer/accelerator-agents pull request 100",
    ),
    Case(
        name="third_hidden",
        family="softmax axis",
        wrong=hidden_wrong,
        right=(hidden_right, hidden_columns),
        args=({"initial": f32(6), "move": f32(6, 6), "emit": f32(6, 9)}, i32(25)),
        where='log_move = jax.nn.log_softmax(theta["move"], axis=0)',
        differentiate="theta",
        source="hidden Markov models after two books with different conventions",
    ),
    Case(
        name="third_settle",
        family="state read by jit",
        wrong=settle_wrong,
        right=(settle_right, settle_constant),
        args=(f32(10),),
        where='energy = lambda x: jnp.sum(x**2 / settings["temperature"]) + jnp.sum(jnp.cos(3.0 * x))',
        source="The Sharp Bits on pure functions",
    ),
    Case(
        name="third_bound",
        family="sign or scale inverted",
        wrong=bound_wrong,
        right=(bound_right, bound_closed),
        args=({"mean": f32(5), "log_scale": f32(5)}, key(), f32(30, 5), f32(30)),
        where="return -jnp.mean(log_lik + log_prior) + entropy",
        differentiate="q",
        source="variational inference by hand; blackjax-devs/blackjax issue 914 on signs",
    ),
    Case(
        name="third_series_fit",
        family="result dropped",
        wrong=series_fit_wrong,
        right=(series_fit_right, series_fit_reservoir),
        args=({"hidden": layer(4, 12), "read": f32(12, 2)}, f32(30, 4), f32(30, 2)),
        where="optax.apply_updates(params, updates)",
        source="loops of optax in which the parameters stay as they were",
    ),
]
