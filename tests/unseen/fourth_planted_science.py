"""Mistakes planted into simulations, samplers, signals, graphs and language models, with right ones like them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


# Counts of birds, sampled.


def birds_density(theta, x, counts):
    rates = jnp.exp(x @ theta)
    likelihood = jnp.sum(counts * jnp.log(rates) - rates)
    return likelihood - 0.5 * jnp.sum(theta**2) / 4.0


def birds_chain(theta, x, counts, rng):
    def step(carry, step_rng):
        theta, density = carry
        proposal = theta + 0.1 * jax.random.normal(step_rng, theta.shape)
        proposed = birds_density(proposal, x, counts)
        accepted = jnp.log(jax.random.uniform(step_rng)) < proposed - density
        theta = jnp.where(accepted, proposal, theta)
        density = jnp.where(accepted, proposed, density)
        return (theta, density), (theta, accepted)

    start = (theta, birds_density(theta, x, counts))
    _, (thetas, accepted) = jax.lax.scan(step, start, jax.random.split(rng, 60))
    return thetas[20:].mean(axis=0), accepted.mean()


def birds_chain_b(theta, x, counts, rng):
    def step(carry, step_rng):
        theta, density = carry
        move_rng, accept_rng = jax.random.split(step_rng)
        proposal = theta + 0.1 * jax.random.normal(move_rng, theta.shape)
        proposed = birds_density(proposal, x, counts)
        accepted = jnp.log(jax.random.uniform(accept_rng)) < proposed - density
        theta = jnp.where(accepted, proposal, theta)
        density = jnp.where(accepted, proposed, density)
        return (theta, density), (theta, accepted)

    start = (theta, birds_density(theta, x, counts))
    _, (thetas, accepted) = jax.lax.scan(step, start, jax.random.split(rng, 60))
    return thetas[20:].mean(axis=0), accepted.mean()


def birds_fit_c(theta, x, counts, rng):
    """Counts can only be simulated: both sides of a difference see the same luck."""

    def misfit(theta, luck):
        rates = jnp.exp(x @ theta)
        simulated = rates + jnp.sqrt(rates) * jax.random.normal(luck, rates.shape)
        return jnp.mean((jnp.sqrt(jnp.maximum(simulated, 0.0) + 0.4) - jnp.sqrt(counts + 0.4)) ** 2)

    def step(theta, step_rng):
        side_rng, luck = jax.random.split(step_rng)
        side = jax.random.rademacher(side_rng, theta.shape, theta.dtype)
        above, below = misfit(theta + 0.05 * side, luck), misfit(theta - 0.05 * side, luck)
        theta = theta - 0.1 * side * (above - below) / 0.1
        return theta, above + below

    theta, misfits = jax.lax.scan(step, theta, jax.random.split(rng, 60))
    return theta, misfits.mean()


plant(
    "counts of birds",
    "key",
    birds_chain,
    (birds_chain_b, birds_fit_c),
    lambda: (f32(3), f32(25, 3), f32(25), key()),
    where="accepted = jnp.log(jax.random.uniform(step_rng)) < proposed - density",
    axes={"x": ("sites", None), "counts": ("sites",)},
)


# Grains in a well.


def well_force(x, depth):
    return -depth * x * (jnp.sum(x**2, axis=-1, keepdims=True) - 1.0)


def grains(x, depth, rng, dt=0.01):
    noise = jnp.sqrt(2.0 * dt)

    def step(i, carry):
        x, heat = carry
        kick = noise * jax.random.normal(rng, x.shape)
        moved = x + dt * well_force(x, depth) + kick
        heat = heat + jnp.sum((moved - x) ** 2, axis=-1)
        return moved, heat

    x, heat = jax.lax.fori_loop(0, 40, step, (x, jnp.zeros(x.shape[0])))
    return x, heat / 40, jnp.mean(jnp.sum(x**2, axis=-1))


def grains_b(x, depth, rng, dt=0.01):
    noise = jnp.sqrt(2.0 * dt)

    def step(i, carry):
        x, heat = carry
        kick = noise * jax.random.normal(jax.random.fold_in(rng, i), x.shape)
        moved = x + dt * well_force(x, depth) + kick
        heat = heat + jnp.sum((moved - x) ** 2, axis=-1)
        return moved, heat

    x, heat = jax.lax.fori_loop(0, 40, step, (x, jnp.zeros(x.shape[0])))
    return x, heat / 40, jnp.mean(jnp.sum(x**2, axis=-1))


def grains_c(x, depth, rng, dt=0.01):
    """The ground is rough, and stays as it was drawn while grains roll over it."""

    def step(i, carry):
        x, heat = carry
        waves = 3.0 * jax.random.normal(rng, (x.shape[-1], 6))
        slope = -jnp.sin(x @ waves) @ waves.T
        moved = x + dt * (well_force(x, depth) + 0.2 * slope)
        heat = heat + jnp.sum((moved - x) ** 2, axis=-1)
        return moved, heat

    x, heat = jax.lax.fori_loop(0, 40, step, (x, jnp.zeros(x.shape[0])))
    return x, heat / 40, jnp.mean(jnp.sum(x**2, axis=-1))


plant(
    "grains in a well",
    "key",
    grains,
    (grains_b, grains_c),
    lambda: (f32(11, 2), f32(), key()),
    where="kick = noise * jax.random.normal(rng, x.shape)",
)


# A regulator of a tank.


def tank_gains(drift, inputs, state_cost, input_cost, start):
    a = jnp.eye(drift.shape[0]) + 0.1 * drift
    b = 0.1 * inputs
    q, r = jnp.diag(state_cost), jnp.diag(input_cost)

    def backward(p, _):
        gain = jnp.linalg.solve(r + b.T @ p @ b, b.T @ p @ a)
        p = q + a @ p @ (a - b @ gain)
        return p, gain

    p, gains = jax.lax.scan(backward, q, None, length=15)
    return p, gains[::-1], a, b


def tank_gains_b(drift, inputs, state_cost, input_cost, start):
    a = jnp.eye(drift.shape[0]) + 0.1 * drift
    b = 0.1 * inputs
    q, r = jnp.diag(state_cost), jnp.diag(input_cost)

    def backward(p, _):
        gain = jnp.linalg.solve(r + b.T @ p @ b, b.T @ p @ a)
        p = q + a.T @ p @ (a - b @ gain)
        return p, gain

    p, gains = jax.lax.scan(backward, q, None, length=15)
    return p, gains[::-1], a, b


def tank_run(gains_of):
    def run(drift, inputs, state_cost, input_cost, start):
        _, gains, a, b = gains_of(drift, inputs, state_cost, input_cost, start)

        def forward(x, gain):
            u = -gain @ x
            return a @ x + b @ u, (x @ (state_cost * x) + u @ (input_cost * u), u)

        x, (costs, controls) = jax.lax.scan(forward, start, gains)
        return costs.sum(), controls

    return run


def tank_watch(drift, inputs, state_noise, input_noise, start):
    a = jnp.eye(drift.shape[0]) + 0.1 * drift
    c = inputs.T
    q, r = 0.1 * jnp.diag(state_noise), jnp.diag(input_noise)

    def forward(carry, _):
        x, p = carry
        p = q + a @ p @ a.T
        x = a @ x
        gain = jnp.linalg.solve(c @ p @ c.T + r, c @ p).T
        surprise = c @ (start - x)
        return (x + gain @ surprise, p - gain @ c @ p), surprise

    (x, p), surprises = jax.lax.scan(forward, (start, q), None, length=15)
    return jnp.trace(p), surprises


plant(
    "regulator of a tank",
    "transposed",
    tank_run(tank_gains),
    (tank_run(tank_gains_b), tank_watch),
    (f32(4, 4), f32(4, 2), f32(4), f32(2), f32(4)),
    where="p = q + a @ p @ (a - b @ gain)",
)


# Three stars.


def attraction(positions, masses):
    gaps = positions[None] - positions[:, None]
    squares = jnp.sum(gaps**2, axis=-1) + 0.05
    strength = masses[:, None] * masses[None] * squares**-1.5
    return jnp.einsum("ij,ijd->id", strength, gaps)


def stars(positions, velocities, masses, dt=0.02):
    def step(state, _):
        x, v = state
        v = v + dt * attraction(x, masses) / masses
        x = x + dt * v
        energy = 0.5 * jnp.sum(masses * jnp.sum(v**2, axis=-1))
        return (x, v), (x, energy)

    (x, v), (path, energy) = jax.lax.scan(step, (positions, velocities), None, length=50)
    return x, v, path, energy


def stars_b(positions, velocities, masses, dt=0.02):
    def step(state, _):
        x, v = state
        v = v + dt * attraction(x, masses) / masses[:, None]
        x = x + dt * v
        energy = 0.5 * jnp.sum(masses * jnp.sum(v**2, axis=-1))
        return (x, v), (x, energy)

    (x, v), (path, energy) = jax.lax.scan(step, (positions, velocities), None, length=50)
    return x, v, path, energy


def stars_c(positions, velocities, stiffness, dt=0.02):
    """Beads on a foundation whose stiffness is another along each direction of space."""

    def step(state, _):
        x, v = state
        force = -x * stiffness - 0.1 * v / stiffness
        v = v + dt * force
        x = x + dt * v
        energy = 0.5 * jnp.sum(v**2) + 0.5 * jnp.sum(stiffness * x**2)
        return (x, v), (x, energy)

    (x, v), (path, energy) = jax.lax.scan(step, (positions, velocities), None, length=50)
    return x, v, path, energy


plant(
    "three stars",
    "broadcast",
    stars,
    (stars_b, stars_c),
    (f32(3, 3), f32(3, 3), f32(3)),
    where="v = v + dt * attraction(x, masses) / masses\n",
    axes={"positions": ("stars", None), "velocities": ("stars", None), "masses": ("stars",)},
)


# The yield of fields, with Hamiltonian paths.


def yield_density(beta, x, y):
    residual = y - x @ beta
    likelihood = -0.5 * jnp.mean(residual**2) * y.shape[0] / 0.25
    return likelihood - 0.5 * jnp.sum(beta**2)


def yield_density_b(beta, x, y):
    residual = y[:, None] - x @ beta
    likelihood = -0.5 * jnp.mean(residual**2) * y.shape[0] / 0.25
    return likelihood - 0.5 * jnp.sum(beta**2)


def yield_density_c(beta, x, y):
    """A smooth function of one mixture of what was measured on the fields."""
    mixture = x @ beta
    gaps = mixture - mixture[:, 0]
    kernel = jnp.exp(-0.5 * gaps**2) + 0.1 * jnp.eye(y.shape[0])
    factor = jnp.linalg.cholesky(kernel)
    white = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
    return -0.5 * jnp.sum(white**2) - jnp.sum(jnp.log(jnp.diagonal(factor))) - 0.5 * jnp.sum(beta**2)


def yield_paths(density):
    def sample(beta, x, y, rng, size=0.03):
        slope = jax.grad(density)

        def leap(state, _):
            b, p = state
            p = p + 0.5 * size * slope(b, x, y)
            b = b + size * p
            return (b, p + 0.5 * size * slope(b, x, y)), None

        def step(b, step_rng):
            start_rng, accept_rng = jax.random.split(step_rng)
            p = jax.random.normal(start_rng, b.shape)
            (new, q), _ = jax.lax.scan(leap, (b, p), None, length=5)
            before = density(b, x, y) - 0.5 * jnp.sum(p**2)
            after = density(new, x, y) - 0.5 * jnp.sum(q**2)
            b = jnp.where(jnp.log(jax.random.uniform(accept_rng)) < after - before, new, b)
            return b, b

        return jax.lax.scan(step, beta, jax.random.split(rng, 15))

    return sample


plant(
    "yield of fields",
    "broadcast",
    yield_paths(yield_density),
    (yield_paths(yield_density_b), yield_paths(yield_density_c)),
    lambda: (f32(5, 1), f32(20, 5), f32(20), key()),
    where="residual = y - x @ beta\n",
)


# Noisy ascent on a posterior, by parts of the data.


def voter_likelihood(theta, x, y):
    logits = x @ theta
    return jnp.sum(y * jax.nn.log_sigmoid(logits) + (1.0 - y) * jax.nn.log_sigmoid(-logits))


def voter_prior(theta):
    return -0.5 * jnp.sum((theta / 2.0) ** 2)


def voters(theta, xs, ys, rng, size=1e-3):
    def step(theta, inputs):
        x, y, step_rng = inputs
        slope = jax.grad(voter_prior)(theta) + jax.grad(voter_likelihood)(theta, x, y)
        noise = jnp.sqrt(size) * jax.random.normal(step_rng, theta.shape)
        theta = theta + 0.5 * size * slope + noise
        return theta, theta

    theta, thetas = jax.lax.scan(step, theta, (xs, ys, jax.random.split(rng, xs.shape[0])))
    return theta, thetas.mean(axis=0), thetas.std(axis=0)


def voters_b(theta, xs, ys, rng, size=1e-3):
    def step(theta, inputs):
        x, y, step_rng = inputs
        slope = jax.grad(voter_prior)(theta) + xs.shape[0] * jax.grad(voter_likelihood)(theta, x, y)
        noise = jnp.sqrt(size) * jax.random.normal(step_rng, theta.shape)
        theta = theta + 0.5 * size * slope + noise
        return theta, theta

    theta, thetas = jax.lax.scan(step, theta, (xs, ys, jax.random.split(rng, xs.shape[0])))
    return theta, thetas.mean(axis=0), thetas.std(axis=0)


def voters_c(theta, xs, ys, rng, size=1e-3):
    """Data arrive part by part, and all that came so far is seen in each step."""
    here = jnp.arange(xs.shape[0])

    def step(theta, inputs):
        i, step_rng = inputs
        seen = jnp.where(here <= i, 1.0, 0.0)
        each = lambda t: seen @ jax.vmap(voter_likelihood, in_axes=(None, 0, 0))(t, xs, ys)
        climb = jax.grad(voter_prior)(theta) + jax.grad(each)(theta)
        noise = jnp.sqrt(size) * jax.random.normal(step_rng, theta.shape)
        theta = theta + 0.5 * size * climb + noise
        return theta, theta

    theta, thetas = jax.lax.scan(step, theta, (here, jax.random.split(rng, xs.shape[0])))
    return theta, thetas.mean(axis=0), thetas.std(axis=0)


plant(
    "opinions of voters",
    "scale",
    voters,
    (voters_b, voters_c),
    lambda: (f32(4), f32(12, 10, 4), f32(12, 10), key()),
    where="slope = jax.grad(voter_prior)(theta) + jax.grad(voter_likelihood)(theta, x, y)",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
)


# Many runs of a weather model drawn to what is observed.


def weather_step(state):
    ahead, behind, back = (jnp.roll(state, s, axis=-1) for s in (-1, 1, 2))
    return state + 0.02 * ((ahead - back) * behind - state + 8.0)


def weather_pull(members, anomalies, seen, places, rng):
    at_places = anomalies[:, places]
    count = members.shape[0] - 1
    across = anomalies.T @ at_places / count
    within = at_places.T @ at_places / count + 0.5 * jnp.eye(places.shape[0])
    gain = jnp.linalg.solve(within, across.T).T
    noisy = seen + jnp.sqrt(0.5) * jax.random.normal(rng, (members.shape[0], places.shape[0]))
    return members + (noisy - members[:, places]) @ gain.T


def weather(members, observed, places, rng):
    def cycle(members, inputs):
        seen, cycle_rng = inputs
        members = jax.lax.fori_loop(0, 4, lambda _, m: weather_step(m), members)
        anomalies = members - members.mean(axis=1, keepdims=True)
        members = weather_pull(members, anomalies, seen, places, cycle_rng)
        return members, members.std(axis=0).mean()

    return jax.lax.scan(cycle, members, (observed, jax.random.split(rng, observed.shape[0])))


def weather_b(members, observed, places, rng):
    def cycle(members, inputs):
        seen, cycle_rng = inputs
        members = jax.lax.fori_loop(0, 4, lambda _, m: weather_step(m), members)
        anomalies = members - members.mean(axis=0, keepdims=True)
        members = weather_pull(members, anomalies, seen, places, cycle_rng)
        return members, members.std(axis=0).mean()

    return jax.lax.scan(cycle, members, (observed, jax.random.split(rng, observed.shape[0])))


def weather_c(members, observed, places, rng):
    """The mean over the globe is kept by the physics, so only what differs from it is drawn to observations."""

    def cycle(members, inputs):
        seen, cycle_rng = inputs
        members = jax.lax.fori_loop(0, 4, lambda _, m: weather_step(m), members)
        level = members.mean(axis=1, keepdims=True)
        waves = members - level
        anomalies = waves - waves.mean(axis=0)
        waves = weather_pull(waves, anomalies, seen - seen.mean(), places, cycle_rng)
        return waves + level, waves.std(axis=0).mean()

    return jax.lax.scan(cycle, members, (observed, jax.random.split(rng, observed.shape[0])))


plant(
    "runs of a weather model",
    "wrong axis",
    weather,
    (weather_b, weather_c),
    lambda: (f32(9, 16), f32(5, 4), i32(4), key()),
    where="anomalies = members - members.mean(axis=1, keepdims=True)",
    axes={"members": ("members", "places"), "observed": ("time", None)},
)


# Goods moved at least cost.


def moved_goods(cost, supply, demand, blur=0.1):
    logs, logd = jnp.log(supply / supply.sum()), jnp.log(demand / demand.sum())

    def sweep(potentials, _):
        f, g = potentials
        f = blur * (logs - jax.nn.logsumexp((g - cost) / blur, axis=1))
        g = blur * (logd - jax.nn.logsumexp((f[:, None] - cost) / blur, axis=1))
        return (f, g), jnp.sum(f * jnp.exp(logs)) + jnp.sum(g * jnp.exp(logd))

    (f, g), values = jax.lax.scan(sweep, (jnp.zeros_like(supply), jnp.zeros_like(demand)), None, length=30)
    plan = jax.nn.softmax((f[:, None] + g - cost).ravel() / blur).reshape(cost.shape)
    return plan, jnp.sum(plan * cost), values


def moved_goods_b(cost, supply, demand, blur=0.1):
    logs, logd = jnp.log(supply / supply.sum()), jnp.log(demand / demand.sum())

    def sweep(potentials, _):
        f, g = potentials
        f = blur * (logs - jax.nn.logsumexp((g - cost) / blur, axis=1))
        g = blur * (logd - jax.nn.logsumexp((f[:, None] - cost) / blur, axis=0))
        return (f, g), jnp.sum(f * jnp.exp(logs)) + jnp.sum(g * jnp.exp(logd))

    (f, g), values = jax.lax.scan(sweep, (jnp.zeros_like(supply), jnp.zeros_like(demand)), None, length=30)
    plan = jax.nn.softmax((f[:, None] + g - cost).ravel() / blur).reshape(cost.shape)
    return plan, jnp.sum(plan * cost), values


def moved_goods_c(cost, supply, demand, blur=0.1):
    """Goods are exchanged among the same towns, so one potential serves both sides."""
    cost = 0.5 * (cost + cost.T)
    shares = supply + demand
    logs = jnp.log(shares / shares.sum())

    def sweep(f, _):
        once = blur * (logs - jax.nn.logsumexp((f - cost) / blur, axis=1))
        twice = blur * (logs - jax.nn.logsumexp((once - cost) / blur, axis=1))
        return 0.5 * (once + twice), 2.0 * jnp.sum(once * jnp.exp(logs))

    f, values = jax.lax.scan(sweep, jnp.zeros_like(supply), None, length=30)
    plan = jax.nn.softmax((f[:, None] + f - cost).ravel() / blur).reshape(cost.shape)
    return plan, jnp.sum(plan * cost), values


plant(
    "goods moved at least cost",
    "wrong axis",
    moved_goods,
    (moved_goods_b, moved_goods_c),
    (f32(7, 7), f32(7), f32(7)),
    where="g = blur * (logd - jax.nn.logsumexp((f[:, None] - cost) / blur, axis=1))",
    axes={"cost": ("sources", "sinks"), "supply": ("sources",), "demand": ("sinks",)},
)


# Ions in a trap.


def trap_energy(positions, charges, stiffness):
    gaps = positions[:, None] - positions[None]
    distance = jnp.sqrt(jnp.sum(gaps**2, axis=-1))
    apart = ~jnp.eye(charges.shape[0], dtype=bool)
    inverse = jnp.where(apart, 1.0 / distance, 0.0)
    repulsion = 0.5 * jnp.einsum("i,j,ij->", charges, charges, inverse)
    return repulsion + 0.5 * jnp.sum(stiffness * positions**2)


def trap_energy_b(positions, charges, stiffness):
    gaps = positions[:, None] - positions[None]
    apart = ~jnp.eye(charges.shape[0], dtype=bool)
    squares = jnp.where(apart, jnp.sum(gaps**2, axis=-1), 1.0)
    inverse = jnp.where(apart, 1.0 / jnp.sqrt(squares), 0.0)
    repulsion = 0.5 * jnp.einsum("i,j,ij->", charges, charges, inverse)
    return repulsion + 0.5 * jnp.sum(stiffness * positions**2)


def trap_energy_c(positions, charges, stiffness):
    gaps = positions[:, None] - positions[None]
    softened = jnp.sqrt(jnp.sum(gaps**2, axis=-1) + 0.01)
    apart = ~jnp.eye(charges.shape[0], dtype=bool)
    inverse = jnp.where(apart, 1.0 / softened, 0.0)
    repulsion = 0.5 * jnp.einsum("i,j,ij->", charges, charges, inverse)
    return repulsion + 0.5 * jnp.sum(stiffness * positions**2)


plant(
    "ions in a trap",
    "where derivative",
    trap_energy,
    (trap_energy_b, trap_energy_c),
    (f32(6, 3), f32(6), f32(3)),
    where="inverse = jnp.where(apart, 1.0 / distance, 0.0)",
    differentiate="positions",
)


# Where animals settle.


def settled(params, sites):
    score = jax.nn.relu(sites @ params["taste"] - 2.0 * params["least"])
    return score / (score.sum() + 1e-3)


def settling_loss(params, sites, seen):
    share = settled(params, sites)
    order = -jnp.sum(jnp.where(share > 0, share * jnp.log(share), 0.0))
    misfit = jnp.sum((share - seen / seen.sum()) ** 2)
    return misfit - 0.05 * order + 0.01 * jnp.sum(params["taste"] ** 2)


def settling_loss_b(params, sites, seen):
    share = settled(params, sites)
    present = share > 0
    order = -jnp.sum(jnp.where(present, share * jnp.log(jnp.where(present, share, 1.0)), 0.0))
    misfit = jnp.sum((share - seen / seen.sum()) ** 2)
    return misfit - 0.05 * order + 0.01 * jnp.sum(params["taste"] ** 2)


def settling_loss_c(params, sites, seen):
    share = settled(params, sites)
    order = -jnp.sum(jnp.where(share > 0, share * jnp.log(jnp.maximum(share, 1e-12)), 0.0))
    misfit = jnp.sum((share - seen / seen.sum()) ** 2)
    return misfit - 0.05 * order + 0.01 * jnp.sum(params["taste"] ** 2)


plant(
    "where animals settle",
    "where derivative",
    settling_loss,
    (settling_loss_b, settling_loss_c),
    ({"taste": f32(6), "least": f32()}, f32(30, 6), f32(30)),
    where="order = -jnp.sum(jnp.where(share > 0, share * jnp.log(share), 0.0))",
    differentiate="params",
)


# What moves before a camera.


def moving(frames, threshold):
    change = jnp.abs(frames[1:] - frames[:-1])
    moved = change.max(axis=-1) > threshold
    area = moved.mean(axis=(1, 2))
    rows = jnp.arange(frames.shape[1])[:, None]
    centre = jnp.sum(moved * rows, axis=(1, 2)) / jnp.maximum(moved.sum(axis=(1, 2)), 1)
    return area, centre, change.sum(axis=(1, 2, 3), dtype=jnp.int32)


def moving_b(frames, threshold):
    signed = frames.astype(jnp.int16)
    change = jnp.abs(signed[1:] - signed[:-1])
    moved = change.max(axis=-1) > threshold
    area = moved.mean(axis=(1, 2))
    rows = jnp.arange(frames.shape[1])[:, None]
    centre = jnp.sum(moved * rows, axis=(1, 2)) / jnp.maximum(moved.sum(axis=(1, 2)), 1)
    return area, centre, change.sum(axis=(1, 2, 3), dtype=jnp.int32)


def moving_c(frames, threshold):
    """A frame is new if its digest is: digests wrap as they please."""
    flat = frames.reshape(frames.shape[0], -1).astype(jnp.uint32)

    def absorb(digest, value):
        return (digest ^ value) * jnp.uint32(16777619), None

    digests, _ = jax.lax.scan(absorb, jnp.full(frames.shape[0], 2166136261, jnp.uint32), flat.T)
    new = digests[1:] != digests[:-1]
    return new.mean() > threshold, digests[1:] - digests[:-1]


plant(
    "what moves before a camera",
    "precision",
    moving,
    (moving_b, moving_c),
    (jax.ShapeDtypeStruct((6, 12, 10, 3), jnp.uint8), f32()),
    where="change = jnp.abs(frames[1:] - frames[:-1])",
    axes={"frames": ("time", None, None, None)},
)


# The delay between two microphones.


def whitened(spectra):
    return spectra / (jnp.abs(spectra) + 1e-6)


def sound_delay(left, right, rate):
    size = 2 * left.shape[-1]
    taper = jnp.hanning(left.shape[-1])
    across = jnp.fft.rfft(left * taper, size) * jnp.fft.rfft(right * taper, size)
    likeness = jnp.fft.irfft(whitened(across), size)
    lag = jnp.argmax(likeness, axis=-1)
    lag = jnp.where(lag > size // 2, lag - size, lag)
    return lag / rate, likeness.max(axis=-1)


def sound_delay_b(left, right, rate):
    size = 2 * left.shape[-1]
    taper = jnp.hanning(left.shape[-1])
    across = jnp.fft.rfft(left * taper, size) * jnp.conj(jnp.fft.rfft(right * taper, size))
    likeness = jnp.fft.irfft(whitened(across), size)
    lag = jnp.argmax(likeness, axis=-1)
    lag = jnp.where(lag > size // 2, lag - size, lag)
    return lag / rate, likeness.max(axis=-1)


def sound_delay_c(dry, room, rate):
    """The sound as it is heard in a room whose answer to a click was recorded."""
    size = 2 * dry.shape[-1]
    heard = jnp.fft.irfft(jnp.fft.rfft(dry, size) * jnp.fft.rfft(room, size), size)
    loudness = jnp.sqrt(jnp.mean(heard**2, axis=-1, keepdims=True) + 1e-9)
    peak = jnp.argmax(jnp.abs(heard), axis=-1)
    return peak / rate, jnp.max(heard / loudness, axis=-1)


plant(
    "delay of a sound",
    "transposed",
    sound_delay,
    (sound_delay_b, sound_delay_c),
    (f32(6, 48), f32(6, 48), f32()),
    where="across = jnp.fft.rfft(left * taper, size) * jnp.fft.rfft(right * taper, size)",
)


# Text drawn letter by letter.


def letter_state(params, h, letter):
    return jnp.tanh(params["embed"][letter] + h @ params["again"])


def letters(params, first, rng, temperature, length=16):
    def step(carry, step_rng):
        h, letter = carry
        h = letter_state(params, h, letter)
        logits = 4.0 * (h @ params["head"]) / temperature
        probs = jax.nn.softmax(logits, axis=-1)
        letter = jax.random.categorical(step_rng, probs, axis=-1)
        sure = jnp.take_along_axis(probs, letter[:, None], axis=-1)[:, 0]
        return (h, letter), (letter, sure)

    start = (jnp.zeros((first.shape[0], params["again"].shape[0])), first)
    _, (text, sure) = jax.lax.scan(step, start, jax.random.split(rng, length))
    return text, jnp.log(sure).sum(axis=0)


def letters_b(params, first, rng, temperature, length=16):
    def step(carry, step_rng):
        h, letter = carry
        h = letter_state(params, h, letter)
        logits = 4.0 * (h @ params["head"]) / temperature
        probs = jax.nn.softmax(logits, axis=-1)
        letter = jax.random.categorical(step_rng, logits, axis=-1)
        sure = jnp.take_along_axis(probs, letter[:, None], axis=-1)[:, 0]
        return (h, letter), (letter, sure)

    start = (jnp.zeros((first.shape[0], params["again"].shape[0])), first)
    _, (text, sure) = jax.lax.scan(step, start, jax.random.split(rng, length))
    return text, jnp.log(sure).sum(axis=0)


def letters_c(params, first, rng, temperature, length=16):
    def step(carry, step_rng):
        h, letter = carry
        h = letter_state(params, h, letter)
        sharp = jax.nn.softmax(4.0 * (h @ params["head"]) / temperature, axis=-1)
        mixed = 0.95 * sharp + 0.05 / sharp.shape[-1]
        rngs = jax.random.split(step_rng, first.shape[0])
        letter = jax.vmap(lambda r, p: jax.random.choice(r, p.shape[0], p=p))(rngs, mixed)
        sure = jnp.take_along_axis(mixed, letter[:, None], axis=-1)[:, 0]
        return (h, letter), (letter, sure)

    start = (jnp.zeros((first.shape[0], params["again"].shape[0])), first)
    _, (text, sure) = jax.lax.scan(step, start, jax.random.split(rng, length))
    return text, jnp.log(sure).sum(axis=0)


plant(
    "text letter by letter",
    "softmax",
    letters,
    (letters_b, letters_c),
    lambda: ({"embed": f32(12, 10), "again": f32(10, 10), "head": f32(10, 12)}, i32(7), key(), f32()),
    where="letter = jax.random.categorical(step_rng, probs, axis=-1)",
    axes={"first": ("batch",)},
)


# Air with height, from a table.


def air(table, heights):
    place = heights * table.shape[0]
    low = jnp.floor(place).astype(jnp.int32)
    share = place - low
    return (1.0 - share) * table[low] + share * table[low + 1]


def air_b(table, heights):
    place = jnp.clip(heights * (table.shape[0] - 1), 0.0, table.shape[0] - 1.001)
    low = jnp.floor(place).astype(jnp.int32)
    share = place - low
    return (1.0 - share) * table[low] + share * table[low + 1]


def air_c(table, angles):
    """The table goes once around, so its first row follows its last."""
    place = angles * table.shape[0]
    low = jnp.floor(place).astype(jnp.int32)
    share = place - low
    row = lambda i: table[i % table.shape[0]]
    return (1.0 - share) * row(low) + share * row(low + 1)


def climb(lookup):
    def fly(table, height, speed):
        def step(carry, _):
            height, speed = carry
            density = lookup(table, height)
            speed = speed + 0.05 * (1.2 * density - 0.4 - density * speed * jnp.abs(speed))
            height = jnp.clip(height + 0.1 * speed, 0.0, 1.0)
            return (height, speed), height

        return jax.lax.scan(step, (height, speed), None, length=40)

    return fly


plant(
    "air with height",
    "index",
    climb(air),
    (climb(air_b), climb(air_c)),
    (f32(11), f32(), f32()),
    where="place = heights * table.shape[0]\n",
)


# The best of several translations.


def word_logps(params, last, h):
    h = jnp.tanh(params["embed"][last] + h @ params["again"])
    return h, jax.nn.log_softmax(3.0 * (h @ params["head"]), axis=-1)


def translations(params, source, beams=3, length=8):
    vocabulary = params["embed"].shape[0]

    def step(carry, i):
        scores, h, words = carry
        h, logps = word_logps(params, words[:, i], h)
        total = scores[:, None] + logps
        scores, which = jax.lax.top_k(total.reshape(-1), beams)
        parent = which // beams
        word = which % vocabulary
        words = words[parent].at[:, i + 1].set(word)
        return (scores, h[parent], words), scores

    start = jnp.array([0.0] + [-1e9] * (beams - 1))
    h = jnp.tile(source, (beams, 1))
    words = jnp.zeros((beams, length + 1), jnp.int32)
    (scores, _, words), path = jax.lax.scan(step, (start, h, words), jnp.arange(length))
    return words, scores / length, path


def translations_b(params, source, beams=3, length=8):
    vocabulary = params["embed"].shape[0]

    def step(carry, i):
        scores, h, words = carry
        h, logps = word_logps(params, words[:, i], h)
        total = scores[:, None] + logps
        scores, which = jax.lax.top_k(total.reshape(-1), beams)
        parent = which // vocabulary
        word = which % vocabulary
        words = words[parent].at[:, i + 1].set(word)
        return (scores, h[parent], words), scores

    start = jnp.array([0.0] + [-1e9] * (beams - 1))
    h = jnp.tile(source, (beams, 1))
    words = jnp.zeros((beams, length + 1), jnp.int32)
    (scores, _, words), path = jax.lax.scan(step, (start, h, words), jnp.arange(length))
    return words, scores / length, path


def translations_c(params, source, beams=3, length=8):
    def step(carry, i):
        scores, h, words = carry
        h, logps = word_logps(params, words[:, i], h)
        by_word = logps.T + scores
        scores, which = jax.lax.top_k(by_word.reshape(-1), beams)
        word, parent = which // beams, which % beams
        words = words[parent].at[:, i + 1].set(word)
        return (scores, h[parent], words), scores

    start = jnp.array([0.0] + [-1e9] * (beams - 1))
    h = jnp.tile(source, (beams, 1))
    words = jnp.zeros((beams, length + 1), jnp.int32)
    (scores, _, words), path = jax.lax.scan(step, (start, h, words), jnp.arange(length))
    return words, scores / length, path


plant(
    "best of several translations",
    "index",
    translations,
    (translations_b, translations_c),
    ({"embed": f32(10, 8), "again": f32(8, 8), "head": f32(8, 10)}, f32(8)),
    where="parent = which // beams\n",
)


# A language model of short windows.


class Windows(nn.Module):
    words: int = 12
    width: int = 10

    @nn.compact
    def __call__(self, tokens, both=False):
        h = nn.Embed(self.words, self.width)(tokens)
        for gap in (1, 2):
            padding = [(gap, gap) if both else (2 * gap, 0)]
            h = h + nn.gelu(nn.Conv(self.width, (3,), kernel_dilation=gap, padding=padding)(h))
        return nn.Dense(self.words)(nn.LayerNorm()(h))


WINDOWS = Windows()


def windows_loss(params, tokens, marked):
    logits = WINDOWS.apply(params, tokens)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, :-1])
    valid = ~marked[:, :-1]
    return jnp.sum(losses * valid) / jnp.maximum(valid.sum(), 1)


def windows_loss_b(params, tokens, marked):
    logits = WINDOWS.apply(params, tokens)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:])
    valid = ~marked[:, 1:]
    return jnp.sum(losses * valid) / jnp.maximum(valid.sum(), 1)


def windows_loss_c(params, tokens, marked):
    """Marked words are hidden, and guessed at their own places."""
    shown = jnp.where(marked, WINDOWS.words - 1, tokens)
    logits = WINDOWS.apply(params, shown, both=True)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens)
    return jnp.sum(losses * marked) / jnp.maximum(marked.sum(), 1)


def windows_step(loss_fn, optimizer=optax.adamw(1e-3)):
    def step(params, opt_state, tokens, marked):
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens, marked)
        norm = optax.global_norm(grads)
        grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 1.0 / (norm + 1e-6)), grads)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss, norm

    return step


def windows_args():
    params = shapes_of(WINDOWS.init, key(), i32(4, 15))
    return params, shapes_of(optax.adamw(1e-3).init, params), i32(4, 15), flags(4, 15)


plant(
    "windows of words",
    "index",
    windows_step(windows_loss),
    (windows_step(windows_loss_b), windows_step(windows_loss_c)),
    windows_args,
    where="losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, :-1])",
    axes={"tokens": ("batch", "length"), "marked": ("batch", "length")},
)


# Melodies, note by note.


def melody_heads(params, h):
    return [jnp.einsum("bld,dhk->bhlk", h, params[name]) for name in ("q", "k", "v")]


def melody_mix(params, h):
    q, k, v = melody_heads(params, h)
    scores = jnp.einsum("bhqk,bhsk->bhqs", q, k) / jnp.sqrt(q.shape[-1])
    allowed = jnp.triu(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(allowed, scores, -1e9), axis=-1)
    return jnp.einsum("bhqs,bhsk,hkd->bqd", weights, v, params["o"])


def melody_mix_b(params, h):
    q, k, v = melody_heads(params, h)
    scores = jnp.einsum("bhqk,bhsk->bhqs", q, k) / jnp.sqrt(q.shape[-1])
    allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(allowed, scores, -1e9), axis=-1)
    return jnp.einsum("bhqs,bhsk,hkd->bqd", weights, v, params["o"])


def melody_mix_c(params, h):
    q, k, v = melody_heads(params, h)
    by_key = jnp.einsum("bhsk,bhqk->bhsq", k, q) / jnp.sqrt(q.shape[-1])
    later = jnp.triu(jnp.ones(by_key.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(later, by_key, -1e9), axis=-2)
    return jnp.einsum("bhsq,bhsk,hkd->bqd", weights, v, params["o"])


def melody_loss(mix):
    def loss(params, notes):
        seen, following = notes[:, :-1], notes[:, 1:]
        h = params["embed"][seen] + params["place"][: seen.shape[1]]
        for block in params["blocks"]:
            h = h + mix(block, jax.nn.standardize(h, axis=-1))
            h = h + jax.nn.relu(jax.nn.standardize(h, axis=-1) @ block["up"]) @ block["down"]
        logits = jax.nn.standardize(h, axis=-1) @ params["embed"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, following).mean()

    return loss


MELODY_BLOCK = {n: f32(8, 2, 4) for n in ("q", "k", "v")} | {"o": f32(2, 4, 8), "up": f32(8, 12), "down": f32(12, 8)}

plant(
    "melodies",
    "mask",
    melody_loss(melody_mix),
    (melody_loss(melody_mix_b), melody_loss(melody_mix_c)),
    ({"embed": f32(9, 8), "place": f32(16, 8), "blocks": [MELODY_BLOCK, MELODY_BLOCK]}, i32(5, 14)),
    where="allowed = jnp.triu(jnp.ones(scores.shape[-2:], bool))",
    axes={"notes": ("batch", "length")},
    differentiate="params",
)


# A graph of molecules, filled up to a fixed number of bonds.


class Bonds(nn.Module):
    gather: callable
    width: int = 12

    @nn.compact
    def __call__(self, atoms, senders, receivers, real):
        h = nn.Dense(self.width)(atoms)
        for _ in range(2):
            messages = nn.relu(nn.Dense(self.width)(jnp.concatenate([h[senders], h[receivers]], axis=-1)))
            h = h + nn.Dense(self.width)(self.gather(messages, receivers, real, atoms.shape[0]))
        return nn.Dense(1)(nn.relu(h).mean(axis=0))[0]


def bond_means(messages, receivers, real, count):
    total = jax.ops.segment_sum(messages, receivers, count)
    degree = jax.ops.segment_sum(jnp.ones(receivers.shape[0]), receivers, count)
    return total / jnp.maximum(degree, 1.0)[:, None]


def bond_means_b(messages, receivers, real, count):
    total = jax.ops.segment_sum(messages * real[:, None], receivers, count)
    degree = jax.ops.segment_sum(real.astype(messages.dtype), receivers, count)
    return total / jnp.maximum(degree, 1.0)[:, None]


def bond_means_c(messages, receivers, real, count):
    ends = jnp.where(real, receivers, count)
    total = jax.ops.segment_sum(messages, ends, count + 1)[:-1]
    bonds = jax.ops.segment_sum(jnp.ones(ends.shape[0]), ends, count + 1)[:-1]
    return total / jnp.maximum(bonds, 1.0)[:, None]


def bonds_loss(gather):
    model = Bonds(gather)

    def loss(params, atoms, senders, receivers, real, energy):
        predicted = jax.vmap(model.apply, in_axes=(None, 0, 0, 0, 0))(params, atoms, senders, receivers, real)
        return jnp.mean(jnp.abs(predicted - energy))

    return loss


def bonds_args():
    params = shapes_of(Bonds(bond_means).init, key(), f32(6, 5), i32(20), i32(20), flags(20))
    return params, f32(3, 6, 5), i32(3, 20), i32(3, 20), flags(3, 20), f32(3)


plant(
    "bonds of molecules",
    "mask",
    bonds_loss(bond_means),
    (bonds_loss(bond_means_b), bonds_loss(bond_means_c)),
    bonds_args,
    where="total = jax.ops.segment_sum(messages, receivers, count)\n"
    "    degree = jax.ops.segment_sum(jnp.ones(receivers.shape[0]), receivers, count)",
    axes={"atoms": ("batch", "atoms", None), "real": ("batch", "bonds"), "energy": ("batch",)},
    differentiate="params",
)


# A chain of springs.


def spring_pull(x, stiffness):
    stretch = jnp.diff(x, prepend=0.0, append=0.0)
    force = stiffness * (stretch + 0.5 * stretch**3)
    return force[1:] - force[:-1]


def springs(x, v, stiffness, dt=0.05):
    def step(carry, _):
        x, v, pull = carry
        x = x + dt * v + 0.5 * dt**2 * pull
        new = spring_pull(x, stiffness)
        v = v + 0.5 * dt * (pull + new)
        return (x, v, pull), 0.5 * jnp.sum(v**2)

    (x, v, _), heat = jax.lax.scan(step, (x, v, spring_pull(x, stiffness)), None, length=60)
    return x, v, heat


def springs_b(x, v, stiffness, dt=0.05):
    def step(carry, _):
        x, v, pull = carry
        x = x + dt * v + 0.5 * dt**2 * pull
        new = spring_pull(x, stiffness)
        v = v + 0.5 * dt * (pull + new)
        return (x, v, new), 0.5 * jnp.sum(v**2)

    (x, v, _), heat = jax.lax.scan(step, (x, v, spring_pull(x, stiffness)), None, length=60)
    return x, v, heat


def springs_c(x, v, stiffness, dt=0.05):
    """A steady wind bends the chain, and it is what it is at rest."""
    wind = 0.2 * spring_pull(x, stiffness)

    def step(carry, _):
        x, v, wind = carry
        inner = spring_pull(x, stiffness)
        v = v + dt * (inner + wind - 0.1 * v)
        x = x + dt * v
        return (x, v, wind), 0.5 * jnp.sum(v**2)

    (x, v, _), heat = jax.lax.scan(step, (x, v, wind), None, length=60)
    return x, v, heat


plant(
    "chain of springs",
    "old state",
    springs,
    (springs_b, springs_c),
    (f32(9), f32(9), f32(10)),
    where="return (x, v, pull), 0.5 * jnp.sum(v**2)",
)


# An answer word by word, with what was said kept.


def said_attend(params, cache, x, i):
    keys, values = cache
    keys = keys.at[i].set(x @ params["k"])
    values = values.at[i].set(x @ params["v"])
    scores = keys @ (x @ params["q"]) / jnp.sqrt(keys.shape[-1])
    weights = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[0]) <= i, scores, -1e9))
    return (keys, values), weights @ values


def answer(params, cache, word, steps=8):
    begun = cache[0].shape[0] - steps

    def step(carry, i):
        cache, word = carry
        x = params["embed"][word]
        updated, mixed = said_attend(params, cache, x, i)
        logits = (x + mixed @ params["o"]) @ params["embed"].T
        word = logits.argmax().astype(word.dtype)
        return (cache, word), (word, jax.nn.log_softmax(logits).max())

    (_, word), (words, sure) = jax.lax.scan(step, (cache, word), begun + jnp.arange(steps))
    return words, sure


def answer_b(params, cache, word, steps=8):
    begun = cache[0].shape[0] - steps

    def step(carry, i):
        cache, word = carry
        x = params["embed"][word]
        cache, mixed = said_attend(params, cache, x, i)
        logits = (x + mixed @ params["o"]) @ params["embed"].T
        word = logits.argmax().astype(word.dtype)
        return (cache, word), (word, jax.nn.log_softmax(logits).max())

    (_, word), (words, sure) = jax.lax.scan(step, (cache, word), begun + jnp.arange(steps))
    return words, sure


def answer_c(params, cache, word, steps=8):
    """Every step reads the encoded input, and no step changes it."""

    def step(carry, _):
        memory, h, word = carry
        keys, values = memory
        h = jnp.tanh(params["embed"][word] + h @ params["o"])
        weights = jax.nn.softmax(keys @ (h @ params["q"]) / jnp.sqrt(keys.shape[-1]))
        logits = (h + weights @ values @ params["o"]) @ params["embed"].T
        word = logits.argmax().astype(word.dtype)
        return (memory, h, word), (word, jax.nn.log_softmax(logits).max())

    start = (cache, params["embed"][word], word)
    _, (words, sure) = jax.lax.scan(step, start, None, length=steps)
    return words, sure


plant(
    "answer word by word",
    "old state",
    answer,
    (answer_b, answer_c),
    ({"embed": f32(11, 6), **{n: f32(6, 6) for n in ("q", "k", "v", "o")}}, (f32(20, 6), f32(20, 6)), i32()),
    where="updated, mixed = said_attend(params, cache, x, i)",
)


# An oven held at a temperature.


def oven_step(heat, power, outside):
    return heat + 0.1 * (2.0 * power - 0.5 * (heat - outside))


def oven(gains, heat, wanted, outside):
    p, i, d = gains

    def step(carry, inputs):
        heat, summed, last = carry
        goal, air = inputs
        error = goal - heat
        total = summed + 0.1 * error
        power = p * error + i * total + d * (error - last) / 0.1
        heat = oven_step(heat, jnp.clip(power, 0.0, 3.0), air)
        return (heat, summed, error), (heat, power)

    start = (heat, jnp.zeros_like(heat), wanted[0] - heat)
    _, (heats, powers) = jax.lax.scan(step, start, (wanted, outside))
    return jnp.mean((heats - wanted) ** 2), heats, powers


def oven_b(gains, heat, wanted, outside):
    p, i, d = gains

    def step(carry, inputs):
        heat, summed, last = carry
        goal, air = inputs
        error = goal - heat
        summed = summed + 0.1 * error
        power = p * error + i * summed + d * (error - last) / 0.1
        heat = oven_step(heat, jnp.clip(power, 0.0, 3.0), air)
        return (heat, summed, error), (heat, power)

    start = (heat, jnp.zeros_like(heat), wanted[0] - heat)
    _, (heats, powers) = jax.lax.scan(step, start, (wanted, outside))
    return jnp.mean((heats - wanted) ** 2), heats, powers


def oven_c(gains, heat, wanted, outside):
    """The power that holds the mean is known before, and only what is left is controlled."""
    p, i, d = gains
    held = 0.25 * (wanted.mean() - outside.mean())

    def step(carry, inputs):
        heat, held, last = carry
        goal, air = inputs
        error = goal - heat
        base = held + i * 0.1 * error
        power = base + p * error + d * (error - last) / 0.1
        heat = oven_step(heat, jnp.clip(power, 0.0, 3.0), air)
        return (heat, held, error), (heat, power)

    _, (heats, powers) = jax.lax.scan(step, (heat, held, wanted[0] - heat), (wanted, outside))
    return jnp.mean((heats - wanted) ** 2), heats, powers


plant(
    "oven at a temperature",
    "carry",
    oven,
    (oven_b, oven_c),
    ((f32(), f32(), f32()), f32(), f32(50), f32(50)),
    where="total = summed + 0.1 * error",
    axes={"wanted": ("time",), "outside": ("time",)},
)


# The price of an option.


def option(params, spot, strike, rng, paths=64, steps=20):
    dt = 1.0 / steps

    def step(carry, step_rng):
        price, variance = carry
        one, two = jax.random.normal(step_rng, (2, paths))
        shock = dt * one
        other = dt * (params["rho"] * one + jnp.sqrt(1.0 - params["rho"] ** 2) * two)
        swing = jnp.sqrt(jnp.maximum(variance, 0.0))
        price = price * jnp.exp((params["rate"] - 0.5 * swing**2) * dt + swing * shock)
        variance = variance + params["pull"] * (params["level"] - variance) * dt + 0.3 * swing * other
        return (price, variance), price

    start = (jnp.full(paths, spot), jnp.full(paths, params["level"]))
    (price, _), _ = jax.lax.scan(step, start, jax.random.split(rng, steps))
    return jnp.exp(-params["rate"]) * jnp.maximum(price - strike, 0.0).mean(), jnp.log(price).std()


def option_b(params, spot, strike, rng, paths=64, steps=20):
    dt = 1.0 / steps

    def step(carry, step_rng):
        price, variance = carry
        one, two = jnp.sqrt(dt) * jax.random.normal(step_rng, (2, paths))
        other = params["rho"] * one + jnp.sqrt(1.0 - params["rho"] ** 2) * two
        swing = jnp.sqrt(jnp.maximum(variance, 0.0))
        price = price * jnp.exp((params["rate"] - 0.5 * swing**2) * dt + swing * one)
        variance = variance + params["pull"] * (params["level"] - variance) * dt + 0.3 * swing * other
        return (price, variance), price

    start = (jnp.full(paths, spot), jnp.full(paths, params["level"]))
    (price, _), _ = jax.lax.scan(step, start, jax.random.split(rng, steps))
    return jnp.exp(-params["rate"]) * jnp.maximum(price - strike, 0.0).mean(), jnp.log(price).std()


def option_c(params, spot, strike, rng, paths=64, steps=20):
    """Rates of the whole path are not known, and nothing else is: each path drifts by one of its own."""
    dt = 1.0 / steps
    drift_rng, level_rng = jax.random.split(rng)
    drift = params["rate"] + 0.2 * jax.random.normal(drift_rng, (paths,))
    level = params["level"] * jnp.exp(0.1 * jax.random.normal(level_rng, (paths,)))

    def step(price, _):
        price = price * (1.0 + dt * drift + dt * 0.05 * (level - price))
        return price, price

    price, _ = jax.lax.scan(step, jnp.full(paths, spot), None, length=steps)
    return jnp.mean(jnp.exp(-drift) * jnp.maximum(price - strike, 0.0)), jnp.log(price).std()


plant(
    "price of an option",
    "scale",
    option,
    (option_b, option_c),
    lambda: ({n: f32() for n in ("rho", "rate", "pull", "level")}, f32(), f32(), key()),
    where="shock = dt * one\n        other = dt * (",
)


# Heat in a rod.


def rod(heat, ends, sources, rate=0.2):
    def step(u, inputs):
        (left, right), source = inputs
        inner = u[2:] - 2.0 * u[1:-1] + u[:-2]
        u = u.at[1:-1].add(rate * inner + 0.05 * source)
        u.at[0].set(left)
        u = u.at[-1].set(right)
        return u, u.mean()

    last, means = jax.lax.scan(step, heat, (ends, sources))
    return last, means, jnp.abs(jnp.diff(last)).max()


def rod_b(heat, ends, sources, rate=0.2):
    def step(u, inputs):
        (left, right), source = inputs
        inner = u[2:] - 2.0 * u[1:-1] + u[:-2]
        u = u.at[1:-1].add(rate * inner + 0.05 * source)
        u = u.at[0].set(left).at[-1].set(right)
        return u, u.mean()

    last, means = jax.lax.scan(step, heat, (ends, sources))
    return last, means, jnp.abs(jnp.diff(last)).max()


def rod_c(heat, ends, sources, rate=0.2):
    """Gauges touch the ends for a moment: what they show has the ends replaced, the rod has not."""

    def step(u, inputs):
        (left, right), source = inputs
        flow = rate * jnp.diff(u)
        u = u + jnp.diff(flow, prepend=0.0, append=0.0)
        u = u.at[1:-1].add(0.05 * source)
        shown = u.at[0].set(left)
        shown = shown.at[-1].set(right)
        return u, shown.mean()

    last, means = jax.lax.scan(step, heat, (ends, sources))
    return last, means, jnp.abs(jnp.diff(last)).max()


plant(
    "heat along a rod",
    "result dropped",
    rod,
    (rod_b, rod_c),
    (f32(16), (f32(30), f32(30)), f32(30, 14)),
    where="u.at[0].set(left)\n        u = u.at[-1].set(right)",
)


# A drug in the blood of patients.


HOURS = jnp.linspace(0.25, 12.0, 10)


def blood(uptake, loss, dose):
    fall = jnp.exp(-loss * HOURS) - jnp.exp(-(uptake + loss) * HOURS)
    return dose * fall


def drug_misfit(params, weights, doses, levels):
    loss = jnp.exp(params["loss"]) * weights**0.75
    uptake = jnp.exp(params["uptake"])
    predicted = jax.vmap(blood, in_axes=(None, 0, None))(uptake, loss, doses)
    error = jnp.log(predicted + 1e-3) - jnp.log(levels + 1e-3)
    return jnp.mean(error**2) + 0.01 * (params["loss"] ** 2 + params["uptake"] ** 2)


def drug_misfit_b(params, weights, doses, levels):
    loss = jnp.exp(params["loss"]) * weights**0.75
    uptake = jnp.exp(params["uptake"])
    predicted = jax.vmap(blood, in_axes=(None, 0, 0))(uptake, loss, doses)
    error = jnp.log(predicted + 1e-3) - jnp.log(levels + 1e-3)
    return jnp.mean(error**2) + 0.01 * (params["loss"] ** 2 + params["uptake"] ** 2)


def drug_misfit_c(params, weights, schedule, levels):
    """All patients get the same pills, and the pump gives another dose at each of the hours."""
    loss = jnp.exp(params["loss"]) * weights**0.75
    uptake = jnp.exp(params["uptake"])
    pumped = jax.vmap(blood, in_axes=(None, 0, None))(uptake, loss, jnp.cumsum(schedule) / 10.0)
    error = jnp.log(pumped + 1e-3) - jnp.log(levels + 1e-3)
    return jnp.mean(error**2) + 0.01 * (params["loss"] ** 2 + params["uptake"] ** 2)


plant(
    "drug in the blood",
    "vmap",
    drug_misfit,
    (drug_misfit_b, drug_misfit_c),
    ({"loss": f32(), "uptake": f32()}, f32(10), f32(10), f32(10, 10)),
    where="predicted = jax.vmap(blood, in_axes=(None, 0, None))(uptake, loss, doses)",
    axes={"weights": ("patients",), "doses": ("patients",), "levels": ("patients", "hours")},
    differentiate="params",
)


# The orbit of a planet.


def kepler_root(mean, eccentricity):
    def newton(_, e):
        return e - (e - eccentricity * jnp.sin(e) - mean) / (1.0 - eccentricity * jnp.cos(e))

    return jax.lax.fori_loop(0, 12, newton, mean + eccentricity * jnp.sin(mean))


@jax.custom_jvp
def anomaly(mean, eccentricity):
    return kepler_root(mean, eccentricity)


@anomaly.defjvp
def anomaly_rule(primals, tangents):
    mean, eccentricity = primals
    dm, de = tangents
    e = anomaly(mean, eccentricity)
    slope = 1.0 / (1.0 - eccentricity * jnp.cos(e))
    return e, slope * dm + jnp.sin(e) * de


@jax.custom_jvp
def anomaly_b(mean, eccentricity):
    return kepler_root(mean, eccentricity)


@anomaly_b.defjvp
def anomaly_rule_b(primals, tangents):
    mean, eccentricity = primals
    dm, de = tangents
    e = anomaly_b(mean, eccentricity)
    slope = 1.0 / (1.0 - eccentricity * jnp.cos(e))
    return e, slope * (dm + jnp.sin(e) * de)


@jax.custom_jvp
def anomaly_c(mean, eccentricity):
    return kepler_root(mean, eccentricity)


@anomaly_c.defjvp
def anomaly_rule_c(primals, tangents):
    """From q = 1 - k cos E: dE = (dM + sin E dk) / q."""
    (mean, k), (dm, dk) = primals, tangents
    e = anomaly_c(mean, k)
    q = 1.0 - k * jnp.cos(e)
    return e, dm / q + (dk / q) * jnp.sin(e)


def orbit_misfit(solve):
    def misfit(orbit, times, seen, errors):
        k = jax.nn.sigmoid(orbit["k"])
        mean = 2.0 * jnp.pi * (times / orbit["period"] + orbit["phase"])
        e = solve(mean, jnp.broadcast_to(k, mean.shape))
        true = 2.0 * jnp.arctan2(jnp.sqrt(1.0 + k) * jnp.sin(e / 2), jnp.sqrt(1.0 - k) * jnp.cos(e / 2))
        speed = orbit["size"] * (jnp.cos(true + orbit["turn"]) + k * jnp.cos(orbit["turn"])) + orbit["drift"]
        return 0.5 * jnp.sum(((speed - seen) / errors) ** 2)

    return misfit


plant(
    "orbit of a planet",
    "custom rule",
    orbit_misfit(anomaly),
    (orbit_misfit(anomaly_b), orbit_misfit(anomaly_c)),
    (
        {n: f32() for n in ("k", "period", "phase", "size", "turn", "drift")},
        f32(22),
        f32(22),
        f32(22),
    ),
    where="return e, slope * dm + jnp.sin(e) * de",
    differentiate="orbit",
)


# Rain over regions.


def region_means(values, region, count):
    totals = jax.ops.segment_sum(values, region, count)
    stations = jax.ops.segment_sum(jnp.ones_like(values), region, count)
    return totals / jnp.maximum(stations, 1.0), stations


def rain(readings, region, area):
    monthly = readings.mean(axis=1)
    means, stations = region_means(monthly, region, area.shape[0])
    national = means.mean()
    spread = jnp.sqrt(jnp.mean((monthly - national) ** 2))
    wet = jnp.mean(readings > national)
    return national, spread, wet, jnp.sum(means * area)


def rain_b(readings, region, area):
    monthly = readings.mean(axis=1)
    means, stations = region_means(monthly, region, area.shape[0])
    national = jnp.sum(means * stations) / stations.sum()
    spread = jnp.sqrt(jnp.mean((monthly - national) ** 2))
    wet = jnp.mean(readings > national)
    return national, spread, wet, jnp.sum(means * area)


def rain_c(readings, region, area):
    """Stations crowd in towns, so each region counts by its area."""
    monthly = readings.mean(axis=1)
    means, stations = region_means(monthly, region, area.shape[0])
    over_land = jnp.mean(means * area / area.mean())
    spread = jnp.sqrt(jnp.mean(area * (means - over_land) ** 2) / area.mean())
    wet = jnp.mean(readings > over_land)
    return over_land, spread, wet, jnp.sum(means * area)


plant(
    "rain over regions",
    "averages",
    rain,
    (rain_b, rain_c),
    (f32(26, 12), i32(26), f32(4)),
    where="national = means.mean()\n",
    axes={"readings": ("stations", "months"), "region": ("stations",)},
)


# A swarm that looks for a minimum.


LUCK = np.random.default_rng(3)
FACTORS = np.random.default_rng(4).normal(size=(2, 3)).astype(np.float32)


def bumpy(x):
    return jnp.sum(x**2 - 0.5 * jnp.cos(6.0 * x), axis=-1)


def swarm(places, speeds, pull, steps=20):
    def step(carry, _):
        x, v, best, value = carry
        own, common = LUCK.uniform(size=(2, *x.shape)).astype(np.float32)
        leader = best[value.argmin()]
        v = 0.7 * v + pull * own * (best - x) + pull * common * (leader - x)
        x = x + v
        now = bumpy(x)
        best = jnp.where((now < value)[:, None], x, best)
        value = jnp.minimum(now, value)
        return (x, v, best, value), value.min()

    start = (places, speeds, places, bumpy(places))
    (_, _, best, value), path = jax.lax.scan(step, start, None, length=steps)
    return best[value.argmin()], path


def swarm_b(places, speeds, pull, steps=20):
    luck = np.random.default_rng(3).uniform(size=(steps, 2, *places.shape)).astype(np.float32)

    def step(carry, draws):
        x, v, best, value = carry
        own, common = draws
        leader = best[value.argmin()]
        v = 0.7 * v + pull * own * (best - x) + pull * common * (leader - x)
        x = x + v
        now = bumpy(x)
        best = jnp.where((now < value)[:, None], x, best)
        value = jnp.minimum(now, value)
        return (x, v, best, value), value.min()

    start = (places, speeds, places, bumpy(places))
    (_, _, best, value), path = jax.lax.scan(step, start, jnp.asarray(luck))
    return best[value.argmin()], path


def swarm_c(places, speeds, pull, steps=20):
    """Each has a temper that it keeps: it was drawn once for all."""

    def step(carry, _):
        x, v, best, value = carry
        own, common = jax.nn.sigmoid(FACTORS)
        leader = best[value.argmin()]
        v = 0.7 * v + pull * own * (best - x) + pull * common * (leader - x)
        x = x + v
        now = bumpy(x)
        best = jnp.where((now < value)[:, None], x, best)
        value = jnp.minimum(now, value)
        return (x, v, best, value), value.min()

    start = (places, speeds, places, bumpy(places))
    (_, _, best, value), path = jax.lax.scan(step, start, None, length=steps)
    return best[value.argmin()], path


plant(
    "swarm that looks for a minimum",
    "global state",
    swarm,
    (swarm_b, swarm_c),
    (f32(13, 3), f32(13, 3), f32()),
    where="own, common = LUCK.uniform(size=(2, *x.shape)).astype(np.float32)",
    axes={"places": ("swarm", None), "speeds": ("swarm", None)},
)
