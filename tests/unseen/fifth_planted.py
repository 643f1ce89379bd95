"""Mistakes planted into programs of our own, with right programs that look like them."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, i32, key, shapes_of

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


# A network with few weights.


def sparse_loss(params, x, y):
    h = jax.nn.relu(x @ params["w1"])
    h = jax.nn.relu(h @ params["w2"])
    return jnp.mean((h @ params["w3"] - y) ** 2)


def largest(params, share):
    keep = lambda p: (jnp.abs(p) >= jnp.quantile(jnp.abs(p), 1.0 - share)).astype(p.dtype)
    return jax.tree.map(keep, params)


def prune(params, xs, ys):
    tx = optax.adamw(1e-2, weight_decay=1e-3)
    masks = largest(params, 0.4)
    params = jax.tree.map(jnp.multiply, params, masks)

    def step(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(sparse_loss)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        jax.tree.map(jnp.multiply, params, masks)
        return (params, opt_state), loss

    (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), (xs, ys))
    return params, losses


def prune_b(params, xs, ys):
    tx = optax.adamw(1e-2, weight_decay=1e-3)
    masks = largest(params, 0.4)
    params = jax.tree.map(jnp.multiply, params, masks)

    def step(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(sparse_loss)(params, *batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        params = jax.tree.map(jnp.multiply, params, masks)
        return (params, opt_state), loss

    (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), (xs, ys))
    return params, losses


def prune_c(params, xs, ys):
    tx = optax.sgd(1e-2, momentum=0.9)
    masks = largest(params, 0.4)
    params = jax.tree.map(jnp.multiply, params, masks)

    def step(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(sparse_loss)(params, *batch)
        grads = jax.tree.map(jnp.multiply, grads, masks)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    (params, _), losses = jax.lax.scan(step, (params, tx.init(params)), (xs, ys))
    return params, losses


plant(
    "few weights",
    "dropped result",
    prune,
    (prune_b, prune_c),
    ({"w1": f32(6, 16), "w2": f32(16, 16), "w3": f32(16)}, f32(8, 12, 6), f32(8, 12)),
    where="        jax.tree.map(jnp.multiply, params, masks)\n        return",
    axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
)


# Yields of fields.


class YieldNet(nn.Module):
    members: int = 1

    @nn.compact
    def __call__(self, x):
        x = nn.gelu(nn.Dense(20)(x - 0.5))
        return nn.Dense(self.members)(nn.gelu(nn.Dense(20)(x)))


def yield_step(params, x, y):
    loss = lambda p: jnp.mean((YieldNet().apply(p, x) - y[:, None]) ** 2)
    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads), value


def explained(params, x, y):
    predicted = YieldNet().apply(params, x)
    rest = jnp.sum((y - predicted) ** 2)
    return 1.0 - rest / jnp.sum((y - y.mean()) ** 2)


def explained_b(params, x, y):
    predicted = YieldNet().apply(params, x)[:, 0]
    rest = jnp.sum((y - predicted) ** 2)
    return 1.0 - rest / jnp.sum((y - y.mean()) ** 2)


def spread_score(params, x, y):
    predicted = YieldNet().apply(params, x)[:, 0]
    between = jnp.abs(predicted[:, None] - predicted)
    closeness = jnp.abs(predicted[:, None] - y[None, :])
    return closeness.mean() - 0.5 * between.mean()


def fields(score):
    def train(params, x, y, test_x, test_y):
        losses = []
        for _ in range(4):
            params, value = yield_step(params, x, y)
            losses.append(value)
        return params, jnp.stack(losses), score(params, test_x, test_y)

    return train


plant(
    "yields of fields",
    "broadcast",
    fields(explained),
    (fields(explained_b), fields(spread_score)),
    lambda: (shapes_of(YieldNet().init, key(), f32(1, 5)), f32(20, 5), f32(20), f32(10, 5), f32(10)),
    where="predicted = YieldNet().apply(params, x)\n",
    axes={"x": ("batch", None), "y": ("batch",), "test_x": ("test", None), "test_y": ("test",)},
)


# Two views of a shell.


def views(rng, x):
    first_rng, second_rng = jax.random.split(rng)
    jitter = lambda k: x * (1.0 + 0.1 * jax.random.normal(k, x.shape))
    return jitter(first_rng), jitter(second_rng)


def embed_shell(params, x):
    return jax.nn.relu(x @ params["e1"]) @ params["e2"]


def predict_shell(params, z):
    return jax.nn.relu(z @ params["p1"]) @ params["p2"]


def unit(x):
    return x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-8)


def shell_loss(params, rng, x):
    left, right = views(rng, x)
    z_left, z_right = embed_shell(params, left), embed_shell(params, right)
    p_left, p_right = predict_shell(params, z_left), predict_shell(params, z_right)
    one = -jnp.sum(unit(p_left) * unit(z_right), axis=-1)
    two = -jnp.sum(unit(p_right) * unit(jax.lax.stop_gradient(z_left)), axis=-1)
    return 0.5 * jnp.mean(one + two)


def shell_loss_b(params, rng, x):
    left, right = views(rng, x)
    z_left, z_right = embed_shell(params, left), embed_shell(params, right)
    p_left, p_right = predict_shell(params, z_left), predict_shell(params, z_right)
    one = -jnp.sum(unit(p_left) * unit(jax.lax.stop_gradient(z_right)), axis=-1)
    two = -jnp.sum(unit(p_right) * unit(jax.lax.stop_gradient(z_left)), axis=-1)
    return 0.5 * jnp.mean(one + two)


def shell_loss_c(params, rng, x):
    left, right = views(rng, x)
    p_left = unit(predict_shell(params, embed_shell(params, left)))
    p_right = unit(predict_shell(params, embed_shell(params, right)))
    scores = p_left @ p_right.T / 0.1
    same = jnp.arange(x.shape[0])
    one = optax.softmax_cross_entropy_with_integer_labels(scores, same)
    two = optax.softmax_cross_entropy_with_integer_labels(scores.T, same)
    return 0.5 * jnp.mean(one + two)


plant(
    "views of a shell",
    "stop_gradient",
    shell_loss,
    (shell_loss_b, shell_loss_c),
    lambda: ({"e1": f32(10, 16), "e2": f32(16, 8), "p1": f32(8, 8), "p2": f32(8, 8)}, key(), f32(12, 10)),
    where="one = -jnp.sum(unit(p_left) * unit(z_right), axis=-1)",
    axes={"x": ("batch", None)},
    differentiate="params",
)


# A lamp that saves power.


class LampNet(nn.Module):
    @nn.compact
    def __call__(self, obs):
        h = nn.tanh(nn.Dense(24)(obs))
        return nn.Dense(4)(h), nn.Dense(1)(h)[..., 0]


def lamp_loss(params, obs, actions, returns, old_values):
    logits, values = LampNet().apply(params, obs)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    gains = returns - values
    gains = gains / (jnp.abs(jax.lax.stop_gradient(gains)).mean() + 1e-6)
    near = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    critic = jnp.maximum((values - returns) ** 2, (near - returns) ** 2).mean()
    return -jnp.mean(chosen * gains) + 0.5 * critic


def lamp_loss_b(params, obs, actions, returns, old_values):
    logits, values = LampNet().apply(params, obs)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    gains = returns - jax.lax.stop_gradient(values)
    gains = gains / (jnp.abs(gains).mean() + 1e-6)
    near = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    critic = jnp.maximum((values - returns) ** 2, (near - returns) ** 2).mean()
    return -jnp.mean(chosen * gains) + 0.5 * critic


def lamp_loss_c(params, obs, actions, returns, old_values):
    logits, values = LampNet().apply(params, obs)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    gains = returns - old_values
    gains = gains / (jnp.abs(gains).mean() + 1e-6)
    near = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    critic = jnp.maximum((values - returns) ** 2, (near - returns) ** 2).mean()
    return -jnp.mean(chosen * gains) + 0.5 * critic


plant(
    "a lamp",
    "stop_gradient",
    lamp_loss,
    (lamp_loss_b, lamp_loss_c),
    lambda: (shapes_of(LampNet().init, key(), f32(1, 4)), f32(10, 6, 4), i32(10, 6), f32(10, 6), f32(10, 6)),
    where="gains = returns - values\n",
    axes={"obs": ("time", "env", None)} | {n: ("time", "env") for n in ("actions", "returns", "old_values")},
    differentiate="params",
)


# Returns over a few steps.


def few_step_returns(rewards, dones, values, count=3, gamma=0.95):
    length = rewards.shape[0] - count
    total = jnp.zeros_like(rewards[:length])
    for k in range(count):
        total = total + gamma**k * rewards[k : k + length]
    going = 1.0 - dones[count - 1 : count - 1 + length]
    return total + gamma**count * going * values[count:]


def few_step_returns_b(rewards, dones, values, count=3, gamma=0.95):
    length = rewards.shape[0] - count
    total, going = jnp.zeros_like(rewards[:length]), jnp.ones_like(rewards[:length])
    for k in range(count):
        total = total + going * gamma**k * rewards[k : k + length]
        going = going * (1.0 - dones[k : k + length])
    return total + gamma**count * going * values[count:]


def few_step_returns_c(rewards, dones, values, count=3, gamma=0.95):
    ended = jnp.cumsum(dones, axis=0)
    rewards = jnp.where(ended - dones > 0.0, 0.0, rewards)
    values = jnp.where(jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]]) > 0.0, 0.0, values)
    length = rewards.shape[0] - count
    total = jnp.zeros_like(rewards[:length])
    for k in range(count):
        total = total + gamma**k * rewards[k : k + length]
    return total + gamma**count * values[count:]


def fit_critic(returns):
    def loss(params, obs, rewards, dones):
        values = jax.nn.relu(obs @ params["w1"] + params["b1"]) @ params["w2"]
        targets = jax.lax.stop_gradient(returns(rewards, dones, values))
        return optax.huber_loss(values[: targets.shape[0]], targets).mean()

    return loss


plant(
    "returns of few steps",
    "episode boundary",
    fit_critic(few_step_returns),
    (fit_critic(few_step_returns_b), fit_critic(few_step_returns_c)),
    ({"w1": f32(5, 16), "b1": f32(16), "w2": f32(16)}, f32(20, 6, 5), f32(20, 6), f32(20, 6)),
    where="total = total + gamma**k * rewards[k : k + length]\n    going = 1.0",
    axes={"obs": ("time", "env", None), "rewards": ("time", "env"), "dones": ("time", "env")},
    differentiate="params",
)


# Noise on shapes of coasts.


def coast_signal():
    return jnp.cumprod(1.0 - jnp.linspace(1e-4, 0.05, 60))


def coast_error(params, rng, coasts, kept, steps):
    noise = jax.random.normal(rng, coasts.shape)
    noisy = jnp.sqrt(kept)[:, None] * coasts + jnp.sqrt(1.0 - kept)[:, None] * noise
    clock = jnp.stack([jnp.sin(steps / 10.0), jnp.cos(steps / 10.0)], axis=-1)
    h = jax.nn.silu(jnp.concatenate([noisy, clock], axis=-1) @ params["w1"] + params["b1"])
    return jnp.mean((h @ params["w2"] - noise) ** 2)


def coast_loss(params, rng, coasts):
    step_rng, noise_rng = jax.random.split(rng)
    signal = coast_signal()
    steps = jax.random.randint(step_rng, (coasts.shape[0],), 1, signal.shape[0] + 1)
    return coast_error(params, noise_rng, coasts, signal[steps], steps)


def coast_loss_b(params, rng, coasts):
    step_rng, noise_rng = jax.random.split(rng)
    signal = coast_signal()
    steps = jax.random.randint(step_rng, (coasts.shape[0],), 0, signal.shape[0])
    return coast_error(params, noise_rng, coasts, signal[steps], steps)


def coast_loss_c(params, rng, coasts):
    step_rng, noise_rng = jax.random.split(rng)
    signal = jnp.concatenate([jnp.ones(1), coast_signal()])
    steps = jax.random.randint(step_rng, (coasts.shape[0],), 1, signal.shape[0])
    return coast_error(params, noise_rng, coasts, signal[steps], steps)


plant(
    "shapes of coasts",
    "index out of range",
    coast_loss,
    (coast_loss_b, coast_loss_c),
    lambda: ({"w1": f32(14, 24), "b1": f32(24), "w2": f32(24, 12)}, key(), f32(16, 12)),
    where="steps = jax.random.randint(step_rng, (coasts.shape[0],), 1, signal.shape[0] + 1)",
    axes={"coasts": ("batch", None)},
    differentiate="params",
)


# Charges on a ring.


def ring_density(places, cells):
    left = jnp.floor(places).astype(jnp.int32)
    share = places - left
    density = jnp.zeros(cells).at[left].add(1.0 - share)
    return density.at[left + 1].add(share)


def ring_density_b(places, cells):
    left = jnp.floor(places).astype(jnp.int32)
    share = places - left
    density = jnp.zeros(cells).at[left].add(1.0 - share)
    return density.at[(left + 1) % cells].add(share)


def ring_density_c(places, cells):
    left = jnp.floor(places).astype(jnp.int32)
    share = places - left
    nodes = jnp.zeros(cells + 1).at[left].add(1.0 - share)
    nodes = nodes.at[left + 1].add(share)
    return nodes[:-1].at[0].add(nodes[-1])


def ring(deposit, cells=16):
    def run(places, speeds, field_gain):
        waves = 2.0 * jnp.pi * jnp.fft.rfftfreq(cells)
        inverse = jnp.where(waves > 0.0, 1.0 / jnp.where(waves > 0.0, waves, 1.0) ** 2, 0.0)

        def step(carry, _):
            places, speeds = carry
            places = (places + 0.1 * speeds) % cells
            density = deposit(places, cells)
            potential = jnp.fft.irfft(inverse * jnp.fft.rfft(density - density.mean()), cells)
            field = -0.5 * (jnp.roll(potential, -1) - jnp.roll(potential, 1))
            speeds = speeds - 0.1 * field_gain * field[jnp.floor(places).astype(jnp.int32) % cells]
            return (places, speeds), (density.sum(), jnp.sum(speeds**2))

        start = places * cells, speeds
        return jax.lax.scan(step, start, None, 30)

    return run


plant(
    "charges on a ring",
    "index out of range",
    ring(ring_density),
    (ring(ring_density_b), ring(ring_density_c)),
    (f32(50), f32(50), f32()),
    where="return density.at[left + 1].add(share)",
    axes={"places": ("charges",), "speeds": ("charges",)},
)


# Codes of songs.


def song_code(params, rng, songs):
    keep = jax.random.bernoulli(rng, 0.8, songs.shape)
    h = jax.nn.relu(jnp.where(keep, songs / 0.8, 0.0) @ params["e1"])
    return jnp.split(h @ params["e2"], 2, axis=-1)


def song_terms(params, songs, mean, spread, z):
    rebuilt = jax.nn.relu(z @ params["d1"]) @ params["d2"]
    fit = jnp.sum((rebuilt - songs) ** 2, axis=-1)
    prior = 0.5 * jnp.sum(jnp.exp(2.0 * spread) + mean**2 - 1.0 - 2.0 * spread, axis=-1)
    return jnp.mean(fit + 0.1 * prior)


def song_loss(params, rng, songs):
    mean, spread = song_code(params, rng, songs)
    spread = jnp.clip(spread, -3.0, 1.0)
    z = mean + jnp.exp(spread) * jax.random.normal(rng, mean.shape)
    return song_terms(params, songs, mean, spread, z)


def song_loss_b(params, rng, songs):
    drop_rng, code_rng = jax.random.split(rng)
    mean, spread = song_code(params, drop_rng, songs)
    spread = jnp.clip(spread, -3.0, 1.0)
    z = mean + jnp.exp(spread) * jax.random.normal(code_rng, mean.shape)
    return song_terms(params, songs, mean, spread, z)


def song_loss_c(params, rng, songs):
    drop_rng, code_rng = jax.random.split(rng)
    mean, spread = song_code(params, drop_rng, songs)
    spread = jnp.clip(spread, -3.0, 1.0)

    def sampled(sign):
        z = mean + sign * jnp.exp(spread) * jax.random.normal(code_rng, mean.shape)
        return song_terms(params, songs, mean, spread, z)

    return 0.5 * (sampled(1.0) + sampled(-1.0))


plant(
    "codes of songs",
    "key reuse",
    song_loss,
    (song_loss_b, song_loss_c),
    lambda: ({"e1": f32(8, 16), "e2": f32(16, 16), "d1": f32(8, 16), "d2": f32(16, 8)}, key(), f32(14, 8)),
    where="z = mean + jnp.exp(spread) * jax.random.normal(rng, mean.shape)",
    axes={"songs": ("batch", None)},
    differentiate="params",
)


# Ages of rocks.


class Chain(NamedTuple):
    place: jax.Array
    energy: jax.Array
    accepted: jax.Array


def rock_energy(place, counts, times):
    rate, start = jnp.exp(place)
    expected = start * jnp.exp(-rate * times)
    return 0.5 * jnp.sum((counts - expected) ** 2) / 0.05 + 0.5 * jnp.sum(place**2)


def rock_move(chain, move_rng, choice_rng, counts, times):
    proposal = chain.place + 0.1 * jax.random.normal(move_rng, chain.place.shape)
    energy = rock_energy(proposal, counts, times)
    accept = jnp.log(jax.random.uniform(choice_rng)) < chain.energy - energy
    place = jnp.where(accept, proposal, chain.place)
    return Chain(place, jnp.where(accept, energy, chain.energy), chain.accepted + accept)


def rocks(rng, counts, times):
    def step(carry, _):
        chain, rng = carry
        _, move_rng, choice_rng = jax.random.split(rng, 3)
        chain = rock_move(chain, move_rng, choice_rng, counts, times)
        return (chain, rng), chain.place

    place = jnp.zeros(2)
    start = Chain(place, rock_energy(place, counts, times), jnp.int32(0))
    (chain, _), places = jax.lax.scan(step, (start, rng), None, 100)
    return places[50:].mean(axis=0), chain.accepted


def rocks_b(rng, counts, times):
    def step(carry, _):
        chain, rng = carry
        rng, move_rng, choice_rng = jax.random.split(rng, 3)
        chain = rock_move(chain, move_rng, choice_rng, counts, times)
        return (chain, rng), chain.place

    place = jnp.zeros(2)
    start = Chain(place, rock_energy(place, counts, times), jnp.int32(0))
    (chain, _), places = jax.lax.scan(step, (start, rng), None, 100)
    return places[50:].mean(axis=0), chain.accepted


def rocks_c(rng, counts, times):
    def step(carry, _):
        chain, rng, i = carry
        move_rng, choice_rng = jax.random.split(jax.random.fold_in(rng, i))
        chain = rock_move(chain, move_rng, choice_rng, counts, times)
        return (chain, rng, i + 1), chain.place

    place = jnp.zeros(2)
    start = Chain(place, rock_energy(place, counts, times), jnp.int32(0))
    (chain, _, _), places = jax.lax.scan(step, (start, rng, jnp.int32(0)), None, 100)
    return places[50:].mean(axis=0), chain.accepted


plant(
    "ages of rocks",
    "key reuse",
    rocks,
    (rocks_b, rocks_c),
    lambda: (key(), f32(9), f32(9)),
    where="_, move_rng, choice_rng = jax.random.split(rng, 3)",
    axes={"counts": ("measurements",), "times": ("measurements",)},
)


# Runs of a search for a recipe of steel.


def steel(x):
    return jnp.sum((x - 0.3) ** 2) + 0.1 * jnp.sum(jnp.cos(8.0 * x))


def evolve(rng, mean, spread, generations=20):
    def generation(carry, rng):
        mean, spread = carry
        tried = mean + spread * jax.random.normal(rng, (12, mean.shape[0]))
        scores = jax.vmap(steel)(tried)
        best = tried[jnp.argsort(scores)[:4]]
        spread = 0.8 * spread + 0.2 * best.std(axis=0)
        return (best.mean(axis=0), spread), scores.min()

    start = mean, jnp.full_like(mean, spread)
    (mean, _), best = jax.lax.scan(generation, start, jax.random.split(rng, generations))
    return mean, best


def repeated_search(rng, mean):
    run = lambda seed: evolve(rng, mean, 0.5)
    means, best = jax.vmap(run)(jnp.arange(6))
    return means, best[:, -1].mean(), best[:, -1].std()


def repeated_search_b(rng, mean):
    run = lambda seed: evolve(jax.random.fold_in(rng, seed), mean, 0.5)
    means, best = jax.vmap(run)(jnp.arange(6))
    return means, best[:, -1].mean(), best[:, -1].std()


def repeated_search_c(rng, mean):
    run = lambda spread: evolve(rng, mean, spread)
    means, best = jax.vmap(run)(jnp.linspace(0.1, 1.0, 6))
    return means, best[:, -1].min(), best[:, -1].argmin()


plant(
    "a recipe of steel",
    "key shared by elements",
    repeated_search,
    (repeated_search_b, repeated_search_c),
    lambda: (key(), f32(5)),
    where="run = lambda seed: evolve(rng, mean, 0.5)",
)


# Sensors that learn from few readings.


def sensor_error(params, x, y):
    h = jnp.tanh(x[..., None] * params["w1"] + params["b1"])
    return jnp.mean((h @ params["w2"] + params["b2"] - y) ** 2)


def tuned(params, x, y):
    for _ in range(2):
        grads = jax.grad(sensor_error)(params, x, y)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params


def sensor_loss(params, x, y, later_x, later_y):
    fitted = jax.vmap(tuned, in_axes=(None, 0, 0))(params, x, y)
    errors = jax.vmap(sensor_error, in_axes=(0, None, None))(fitted, later_x, later_y)
    return errors.mean()


def sensor_loss_b(params, x, y, later_x, later_y):
    fitted = jax.vmap(tuned, in_axes=(None, 0, 0))(params, x, y)
    errors = jax.vmap(sensor_error)(fitted, later_x, later_y)
    return errors.mean()


def sensor_loss_c(params, x, y, later_x, later_y):
    fitted = jax.vmap(tuned, in_axes=(None, 0, 0))(params, x, y)
    each = jax.vmap(sensor_error, in_axes=(None, 0, 0))
    table = jax.vmap(each, in_axes=(0, None, None))(fitted, later_x, later_y)
    return jnp.mean(jnp.diag(table))


plant(
    "sensors with few readings",
    "vmap",
    sensor_loss,
    (sensor_loss_b, sensor_loss_c),
    ({"w1": f32(12), "b1": f32(12), "w2": f32(12), "b2": f32()}, f32(7, 5), f32(7, 5), f32(7, 9), f32(7, 9)),
    where="errors = jax.vmap(sensor_error, in_axes=(0, None, None))(fitted, later_x, later_y)",
    axes={n: ("sensors", "readings") for n in ("x", "y")} | {n: ("sensors", "later") for n in ("later_x", "later_y")},
    differentiate="params",
)


# Experts for laws.


def each_expert(params, x):
    h = jax.nn.gelu(jnp.einsum("td,edh->teh", x, params["up"]))
    return jnp.einsum("teh,ehd->ted", h, params["down"])


def routed(params, x):
    logits = x @ params["route"]
    shares = jax.nn.softmax(logits, axis=0)
    return jnp.einsum("te,ted->td", shares, each_expert(params, x))


def routed_b(params, x):
    logits = x @ params["route"]
    shares = jax.nn.softmax(logits, axis=1)
    return jnp.einsum("te,ted->td", shares, each_expert(params, x))


def routed_c(params, x):
    logits = x @ params["route"]
    gathered = jax.nn.softmax(logits, axis=0).T @ x
    h = jax.nn.gelu(jnp.einsum("ed,edh->eh", gathered, params["up"]))
    made = jnp.einsum("eh,ehd->ed", h, params["down"])
    return jax.nn.softmax(logits, axis=1) @ made


def laws(route):
    def loss(params, pages, topics):
        x = pages @ params["embed"]
        x = x + jax.vmap(route, in_axes=(None, 0))(params, x)
        logits = x.mean(axis=1) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, topics).mean()

    return loss


plant(
    "experts for laws",
    "normalization axis",
    laws(routed),
    (laws(routed_b), laws(routed_c)),
    (
        {"embed": f32(6, 8), "route": f32(8, 5), "up": f32(5, 8, 10), "down": f32(5, 10, 8), "out": f32(8, 4)},
        f32(4, 12, 6),
        i32(4),
    ),
    where="shares = jax.nn.softmax(logits, axis=0)\n",
    axes={"pages": ("batch", "tokens", None), "topics": ("batch",)},
    differentiate="params",
)


# Tides to come.


def tide_scores(params, tides):
    x = tides[..., None] * params["in"] + params["places"][: tides.shape[1]]
    q, k, v = x @ params["q"], x @ params["k"], x @ params["v"]
    return jnp.einsum("btd,bsd->bts", q, k) / jnp.sqrt(q.shape[-1]), v


def tide_loss(params, tides):
    scores, v = tide_scores(params, tides[:, :-1])
    length = scores.shape[-1]
    visible = jnp.triu(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
    predicted = (weights @ v @ params["out"])[..., 0]
    return jnp.mean((predicted - tides[:, 1:]) ** 2)


def tide_loss_b(params, tides):
    scores, v = tide_scores(params, tides[:, :-1])
    length = scores.shape[-1]
    visible = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(visible, scores, -1e9), axis=-1)
    predicted = (weights @ v @ params["out"])[..., 0]
    return jnp.mean((predicted - tides[:, 1:]) ** 2)


def tide_loss_c(params, tides):
    scores, v = tide_scores(params, tides[:, 1:])
    length = scores.shape[-1]
    later = jnp.triu(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(later, scores, -1e9), axis=-1)
    earlier = (weights @ v @ params["out"])[..., 0]
    return jnp.mean((earlier - tides[:, :-1]) ** 2)


plant(
    "tides",
    "attention mask",
    tide_loss,
    (tide_loss_b, tide_loss_c),
    (
        {"in": f32(8), "places": f32(16, 8), "q": f32(8, 8), "k": f32(8, 8), "v": f32(8, 8), "out": f32(8, 1)},
        f32(5, 13),
    ),
    where="visible = jnp.triu(jnp.ones((length, length), bool))",
    axes={"tides": ("batch", "time")},
    differentiate="params",
)


# Teams of players.


class TeamBlock(nn.Module):
    heads: int = 2

    def scaled(self, q, k):
        return jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[1])

    @nn.compact
    def __call__(self, x):
        h = nn.LayerNorm()(x)
        split = lambda y: y.reshape(*y.shape[:2], self.heads, -1)
        q, k, v = (split(nn.Dense(x.shape[-1], use_bias=False)(h)) for _ in range(3))
        weights = jax.nn.softmax(self.scaled(q, k), axis=-1)
        seen = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)
        x = x + nn.Dense(x.shape[-1])(seen)
        return x + nn.Dense(x.shape[-1])(nn.relu(nn.Dense(24)(nn.LayerNorm()(x))))


class TeamBlockB(TeamBlock):
    def scaled(self, q, k):
        return jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(q.shape[-1])


class TeamBlockC(TeamBlock):
    def scaled(self, q, k):
        columns = jnp.moveaxis(q, -1, 1)
        return jnp.einsum("bdqh,bkhd->bhqk", columns, k) / jnp.sqrt(columns.shape[1])


def team_loss(block):
    def loss(params, players, won):
        h = block.apply(params["block"], players @ params["embed"])
        chance = h.mean(axis=1) @ params["out"]
        return optax.sigmoid_binary_cross_entropy(chance, won).mean()

    return loss


plant(
    "teams of players",
    "attention scale",
    team_loss(TeamBlock()),
    (team_loss(TeamBlockB()), team_loss(TeamBlockC())),
    lambda: (
        {"block": shapes_of(TeamBlock().init, key(), f32(1, 11, 16)), "embed": f32(5, 16), "out": f32(16)},
        f32(6, 11, 5),
        f32(6),
    ),
    where="/ jnp.sqrt(q.shape[1])\n",
    axes={"players": ("batch", "players", None), "won": ("batch",)},
    differentiate="params",
)


# Money on several funds.


def fund_shares(params, signals):
    scores = jnp.tanh((signals - 0.5) @ params["w1"]) @ params["w2"] + params["taste"]
    raw = jax.nn.relu(scores - scores.mean(axis=-1, keepdims=True))
    return raw / (raw.sum(axis=-1, keepdims=True) + 1e-3)


def fund_loss(params, signals, gains):
    shares = fund_shares(params, signals)
    grown = jnp.log1p(0.1 * jnp.sum(shares * gains, axis=-1))
    terms = jnp.where(shares > 0.0, -shares * jnp.log(shares), 0.0)
    return -jnp.mean(grown) - 0.01 * jnp.mean(terms.sum(axis=-1))


def fund_loss_b(params, signals, gains):
    shares = fund_shares(params, signals)
    grown = jnp.log1p(0.1 * jnp.sum(shares * gains, axis=-1))
    held = jnp.where(shares > 0.0, shares, 1.0)
    terms = -held * jnp.log(held)
    return -jnp.mean(grown) - 0.01 * jnp.mean(terms.sum(axis=-1))


def fund_loss_c(params, signals, gains):
    shares = 0.98 * fund_shares(params, signals) + 0.02 / gains.shape[-1]
    grown = jnp.log1p(0.1 * jnp.sum(shares * gains, axis=-1))
    pieces = jnp.where(shares > 0.0, -shares * jnp.log(shares), 0.0)
    return -jnp.mean(grown) - 0.01 * jnp.mean(pieces.sum(axis=-1))


plant(
    "funds",
    "nan gradient",
    fund_loss,
    (fund_loss_b, fund_loss_c),
    ({"w1": f32(6, 12), "w2": f32(12, 5), "taste": f32(5)}, f32(18, 6), f32(18, 5)),
    where="terms = jnp.where(shares > 0.0, -shares * jnp.log(shares), 0.0)",
    axes={"signals": ("days", None), "gains": ("days", "funds")},
    differentiate="params",
)


# Water in soil.


def seepage(params, rain):
    h = jnp.maximum((rain - 0.5) @ params["w1"] + params["b1"] - 0.5, 0.0)
    rate = jnp.sqrt(h)
    return rate @ params["w2"]


def seepage_b(params, rain):
    h = jnp.maximum((rain - 0.5) @ params["w1"] + params["b1"] - 0.5, 0.0)
    rate = jnp.sqrt(h + 1e-4)
    return rate @ params["w2"]


def seepage_c(params, rain):
    h = jax.nn.softplus((rain - 0.5) @ params["w1"] + params["b1"] - 0.5)
    speed = jnp.sqrt(h)
    return speed @ params["w2"]


def soil(flow):
    def loss(params, rain, levels):
        def day(level, inputs):
            rain, seen = inputs
            gain = flow(params, rain)
            level = 0.9 * level + 0.1 * gain
            return level, (level - seen) ** 2

        _, errors = jax.lax.scan(day, levels[0], (rain, levels))
        return errors.mean() + 1e-4 * optax.global_norm(params["w1"]) ** 2

    return loss


plant(
    "water in soil",
    "nan gradient",
    soil(seepage),
    (soil(seepage_b), soil(seepage_c)),
    ({"w1": f32(4, 12), "b1": f32(12), "w2": f32(12)}, f32(20, 4), f32(20)),
    where="rate = jnp.sqrt(h)\n",
    axes={"rain": ("time", None), "levels": ("time",)},
    differentiate="params",
)


# Errors of a forecast, piece by piece.


def forecast(params, x):
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"]


def piecewise_error(params, x, y, size=16):
    errors = []
    for begin in range(0, x.shape[0], size):
        piece = slice(begin, begin + size)
        errors.append(jnp.mean((forecast(params, x[piece]) - y[piece]) ** 2))
    return jnp.stack(errors).mean()


def piecewise_error_b(params, x, y, size=16):
    total = 0.0
    for begin in range(0, x.shape[0], size):
        piece = slice(begin, begin + size)
        total = total + jnp.sum((forecast(params, x[piece]) - y[piece]) ** 2)
    return total / x.shape[0]


def piecewise_error_c(params, x, y, size=10):
    parts = []
    for begin in range(0, x.shape[0], size):
        piece = slice(begin, begin + size)
        parts.append(jnp.mean((forecast(params, x[piece]) - y[piece]) ** 2))
    return jnp.stack(parts).mean()


def best_model(error):
    def run(params, x, y, test_x, test_y):
        def step(carry, _):
            params, best, lowest = carry
            loss = lambda p: jnp.mean((forecast(p, x) - y) ** 2)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
            value = error(params, test_x, test_y)
            best = jax.tree.map(lambda b, p: jnp.where(value < lowest, p, b), best, params)
            return (params, best, jnp.minimum(value, lowest)), value

        start = params, params, jnp.float32(1e9)
        (_, best, lowest), values = jax.lax.scan(step, start, None, 6)
        return best, lowest, values

    return run


plant(
    "errors of a forecast",
    "mean of means",
    best_model(piecewise_error),
    (best_model(piecewise_error_b), best_model(piecewise_error_c)),
    ({"w1": f32(4, 10), "b1": f32(10), "w2": f32(10)}, f32(24, 4), f32(24), f32(50, 4), f32(50)),
    where="return jnp.stack(errors).mean()",
    axes={"x": ("batch", None), "y": ("batch",), "test_x": ("test", None), "test_y": ("test",)},
)


# Directions of stars.


def lengths(x):
    return jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-8)


@jax.custom_vjp
def direction(x):
    return x / lengths(x)


def direction_forward(x):
    out = direction(x)
    return out, (out, lengths(x))


def direction_backward(saved, g):
    out, length = saved
    return (g / length,)


direction.defvjp(direction_forward, direction_backward)


@jax.custom_vjp
def direction_b(x):
    return x / lengths(x)


def direction_forward_b(x):
    out = direction_b(x)
    return out, (out, lengths(x))


def direction_backward_b(saved, g):
    out, length = saved
    along = jnp.sum(g * out, axis=-1, keepdims=True)
    return ((g - along * out) / length,)


direction_b.defvjp(direction_forward_b, direction_backward_b)


@jax.custom_vjp
def on_grid(x):
    return jnp.round(64.0 * x) / 64.0


def on_grid_forward(x):
    return on_grid(x), None


def on_grid_backward(_, g):
    return (g,)


on_grid.defvjp(on_grid_forward, on_grid_backward)


def direction_c(x):
    return on_grid(x / lengths(x))


def stars(point):
    def loss(params, images, wanted):
        h = jax.nn.gelu(images @ params["w1"] + params["b1"])
        found = point(h @ params["w2"])
        apart = 1.0 - jnp.sum(found * wanted / lengths(wanted), axis=-1)
        return apart.mean() + 0.1 * jnp.mean(found[:, 0] ** 2)

    return loss


plant(
    "directions of stars",
    "custom rule",
    stars(direction),
    (stars(direction_b), stars(direction_c)),
    ({"w1": f32(10, 16), "b1": f32(16), "w2": f32(16, 3)}, f32(12, 10), f32(12, 3)),
    where="return (g / length,)",
    axes={"images": ("batch", None), "wanted": ("batch", None)},
    differentiate="params",
)


# A lens that is ground.


def lens_cost(params, rays):
    bent = rays + params["bend"] * rays**3 - params["shift"]
    return jnp.mean((bent * params["focus"] - 0.2) ** 2)


def grind(params, rays):
    def step(carry, rays):
        params, speed = carry
        value, grads = jax.value_and_grad(lens_cost)(params, rays)
        faster = jax.tree.map(lambda s, g: 0.9 * s - 0.02 * g, speed, grads)
        params = jax.tree.map(jnp.add, params, faster)
        return (params, speed), value

    start = params, jax.tree.map(jnp.zeros_like, params)
    (params, _), values = jax.lax.scan(step, start, rays)
    return params, values


def grind_b(params, rays):
    def step(carry, rays):
        params, speed = carry
        value, grads = jax.value_and_grad(lens_cost)(params, rays)
        speed = jax.tree.map(lambda s, g: 0.9 * s - 0.02 * g, speed, grads)
        params = jax.tree.map(jnp.add, params, speed)
        return (params, speed), value

    start = params, jax.tree.map(jnp.zeros_like, params)
    (params, _), values = jax.lax.scan(step, start, rays)
    return params, values


def grind_c(params, rays):
    def step(carry, rays):
        params, speed = carry
        ahead = jax.tree.map(lambda p, s: p + 0.9 * s, params, speed)
        value, grads = jax.value_and_grad(lens_cost)(ahead, rays)
        faster = jax.tree.map(lambda s, g: 0.9 * s - 0.02 * g, speed, grads)
        params = jax.tree.map(jnp.add, params, faster)
        return (params, faster), value

    start = params, jax.tree.map(jnp.zeros_like, params)
    (params, _), values = jax.lax.scan(step, start, rays)
    return params, values


plant(
    "a lens",
    "value not handed on",
    grind,
    (grind_b, grind_c),
    ({"bend": f32(), "shift": f32(), "focus": f32()}, f32(25, 10)),
    where="params = jax.tree.map(jnp.add, params, faster)\n        return (params, speed), value",
    axes={"rays": ("steps", "batch")},
)


# Rain of the next hours.


class Gauge:
    def __init__(self, params):
        self.params = params

    def cell(self, h, x):
        p = self.params
        gate = jax.nn.sigmoid(x @ p["gx"] + h @ p["gh"])
        return (1.0 - gate) * h + gate * jnp.tanh(x @ p["cx"] + h @ p["ch"])

    def read(self, rain):
        h = jnp.zeros((rain.shape[0], self.params["gh"].shape[0]))
        for hour in range(rain.shape[1]):
            h = self.cell(h, rain[:, hour])
        return h

    def ahead(self, h, x, hours):
        out = []
        for _ in range(hours):
            following = self.cell(h, x)
            x = following @ self.params["out"]
            out.append(x)
        return jnp.stack(out, axis=1)


class GaugeB(Gauge):
    def ahead(self, h, x, hours):
        out = []
        for _ in range(hours):
            h = self.cell(h, x)
            x = h @ self.params["out"]
            out.append(x)
        return jnp.stack(out, axis=1)


class GaugeC(Gauge):
    def ahead(self, h, x, hours):
        out = []
        for hour in range(hours):
            stamp = jnp.full_like(x, (hour + 1) / hours)
            following = self.cell(h, x + stamp)
            out.append(following @ self.params["out"])
        return jnp.stack(out, axis=1)


def rain_loss(model):
    def loss(params, rain, later):
        gauge = model(params)
        h = gauge.read(rain[:, :-1])
        return jnp.mean((gauge.ahead(h, rain[:, -1], later.shape[1]) - later) ** 2)

    return loss


plant(
    "rain of the next hours",
    "value not handed on",
    rain_loss(Gauge),
    (rain_loss(GaugeB), rain_loss(GaugeC)),
    (
        {"gx": f32(3, 8), "gh": f32(8, 8), "cx": f32(3, 8), "ch": f32(8, 8), "out": f32(8, 3)},
        f32(6, 7, 3),
        f32(6, 4, 3),
    ),
    where="following = self.cell(h, x)\n",
    axes={"rain": ("batch", "hours", None), "later": ("batch", "later", None)},
    differentiate="params",
)


# Loudness of speech.


def stored_wave(waves):
    return jnp.round(jnp.clip(waves, -1.0, 1.0) * 32767.0).astype(jnp.int16)


def loudness(samples):
    squares = samples * samples
    return jnp.sqrt(squares.astype(jnp.float32).mean(axis=-1) + 1.0) / 32768.0


def loudness_b(samples):
    squares = samples.astype(jnp.float32) ** 2
    return jnp.sqrt(squares.mean(axis=-1) + 1.0) / 32768.0


def loudness_c(samples):
    words = samples.astype(jnp.uint32)
    mixed = (words * jnp.uint32(2654435761)) >> 16
    pick = (mixed % 4 == 0).astype(jnp.float32)
    squares = samples.astype(jnp.float32) ** 2
    return jnp.sqrt((pick * squares).sum(axis=-1) / (pick.sum(axis=-1) + 1.0) + 1.0) / 32768.0


def gated(loud, frame=20):
    def run(waves, floor):
        frames = stored_wave(waves).reshape(waves.shape[0], -1, frame)
        level = loud(frames)
        spoken = level > 0.1 * floor
        highest = jax.lax.cummax(level, axis=1)
        return jnp.where(spoken, level, 0.0).mean(axis=1), highest[:, -1]

    return run


plant(
    "loudness of speech",
    "integer overflow",
    gated(loudness),
    (gated(loudness_b), gated(loudness_c)),
    (f32(4, 200), f32()),
    where="squares = samples * samples",
    axes={"waves": ("batch", "time")},
)


# Energy of a day.


def meter(dtype):
    def total(power, prices):
        def tick(carry, inputs):
            used, cost = carry
            power, price = inputs
            step = (power * 0.01).astype(dtype)
            used = used + step
            return (used, cost + step * price.astype(dtype)), used

        start = jnp.zeros((), dtype), jnp.zeros((), dtype)
        (used, cost), path = jax.lax.scan(tick, start, (power, prices))
        return used.astype(jnp.float32), cost.astype(jnp.float32), path[::100].astype(jnp.float32)

    return total


def day_of(total):
    def run(weights, weather, prices):
        power = jax.nn.softplus(weather.astype(jnp.bfloat16) @ weights.astype(jnp.bfloat16))
        return total(power, prices)

    return run


def summed(power, prices):
    step = power * jnp.bfloat16(0.01)
    used = jnp.sum(step, dtype=jnp.float32)
    cost = jnp.sum(step * prices.astype(jnp.bfloat16), dtype=jnp.float32)
    path = jnp.cumsum(step.astype(jnp.float32))
    return used, cost, path[::100]


energy_of_day = day_of(meter(jnp.bfloat16))
energy_of_day_b = day_of(meter(jnp.float32))
energy_of_day_c = day_of(summed)


plant(
    "energy of a day",
    "precision",
    energy_of_day,
    (energy_of_day_b, energy_of_day_c),
    (f32(5), f32(1440, 5), f32(1440)),
    where="used = used + step\n",
    axes={"weather": ("time", None), "prices": ("time",)},
)


# Dogs in a park.


class DogNet(nn.Module):
    @nn.compact
    def __call__(self, x, h):
        for name in ("low", "high"):
            x = nn.tanh(nn.Dense(12, name=name)(x))
        h = nn.tanh(nn.Dense(12, name="memory")(h) + x)
        return h, nn.Dense(2, name="out")(h)


def per_dog(paths):
    steps, dogs, width = paths.shape
    return paths.reshape(dogs, steps, width)


def per_dog_b(paths):
    return paths.transpose(1, 0, 2)


def park(order):
    def loss(params, paths):
        tracks = order(paths)
        inputs, wanted = tracks[:, :-1], tracks[:, 1:, :2]

        def follow(track):
            step = lambda h, x: DogNet().apply(params, x, h)
            return jax.lax.scan(step, jnp.zeros(12), track)[1]

        return jnp.mean((jax.vmap(follow)(inputs) - wanted) ** 2)

    return loss


def park_flat(params, paths):
    steps, dogs, width = paths.shape
    flat = paths[:-1].reshape((steps - 1) * dogs, width)
    _, guesses = DogNet().apply(params, flat, jnp.zeros((flat.shape[0], 12)))
    guesses = guesses.reshape(steps - 1, dogs, 2)
    return jnp.mean((guesses - paths[1:, :, :2]) ** 2)


plant(
    "dogs in a park",
    "reshape for transpose",
    park(per_dog),
    (park(per_dog_b), park_flat),
    lambda: (shapes_of(DogNet().init, key(), f32(1, 3), f32(1, 12)), f32(14, 6, 3)),
    where="return paths.reshape(dogs, steps, width)",
    axes={"paths": ("time", "dogs", None)},
    differentiate="params",
)


# A boat that is put back.


class Boat(NamedTuple):
    place: jax.Array
    speed: jax.Array
    age: jax.Array


def put_back(boat, done, harbor):
    lost = done[:, None]
    return Boat(
        jnp.where(lost, harbor, boat.place),
        boat.speed,
        jnp.where(done, 0, boat.age),
    )


def put_back_b(boat, done, harbor):
    lost = done[:, None]
    return Boat(
        jnp.where(lost, harbor, boat.place),
        jnp.where(lost, 0.0, boat.speed),
        jnp.where(done, 0, boat.age),
    )


def sail(reset):
    def run(policy, rng, harbor):
        def step(boat, rng):
            rudder = jnp.tanh(jnp.concatenate([boat.place, boat.speed], axis=-1) @ policy)
            gust = 0.1 * jax.random.normal(rng, boat.speed.shape)
            speed = 0.95 * boat.speed + 0.1 * rudder + gust
            place = boat.place + 0.2 * speed
            done = (jnp.abs(place).max(axis=-1) > 1.5) | (boat.age >= 30)
            reward = -jnp.sum(place**2, axis=-1)
            return reset(Boat(place, speed, boat.age + 1), done, harbor), (reward, done)

        start = Boat(harbor, jnp.zeros_like(harbor), jnp.zeros(harbor.shape[0], jnp.int32))
        _, (rewards, dones) = jax.lax.scan(step, start, jax.random.split(rng, 50))
        return rewards.mean(), dones.sum()

    return run


def sail_c(policy, rng, harbor):
    def step(carry, rng):
        boat, stream = carry
        rudder = jnp.tanh(jnp.concatenate([boat.place, boat.speed], axis=-1) @ policy)
        stream = 0.99 * stream + 0.02 * jax.random.normal(rng, stream.shape)
        speed = 0.95 * boat.speed + 0.1 * rudder + stream
        place = boat.place + 0.2 * speed
        done = (jnp.abs(place).max(axis=-1) > 1.5) | (boat.age >= 30)
        reward = -jnp.sum(place**2, axis=-1)
        boat = put_back_b(Boat(place, speed, boat.age + 1), done, harbor)
        return (boat, stream), (reward, done)

    start = Boat(harbor, jnp.zeros_like(harbor), jnp.zeros(harbor.shape[0], jnp.int32))
    _, (rewards, dones) = jax.lax.scan(step, (start, jnp.zeros(2)), jax.random.split(rng, 50))
    return rewards.mean(), dones.sum()


plant(
    "a boat",
    "episode boundary",
    sail(put_back),
    (sail(put_back_b), sail_c),
    lambda: (f32(4, 2), key(), f32(7, 2)),
    where="        boat.speed,\n",
    axes={"harbor": ("env", None)},
)
