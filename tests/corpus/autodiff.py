"""What a derivative of the function would be."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax

from corpus import f32, flags, i32, right, wrong

NETWORK = {"hidden": f32(4, 16), "bias": f32(16), "out": f32(16, 3)}
KEY = jax.eval_shape(lambda: jax.random.key(0))


def _network(params, x):
    return jax.nn.relu(x @ params["hidden"] + params["bias"]) @ params["out"]


# -- LOX600: what is differentiated is no scalar -----------------------------------------------------------------------


@wrong("LOX600", NETWORK, f32(32, 4), f32(32, 3), differentiate="params")
def squared_error_of_each_example(params, x, y):
    return ((_network(params, x) - y) ** 2).sum(axis=-1)


@right("LOX600", NETWORK, f32(32, 4), f32(32, 3), differentiate="params")
def squared_error_of_the_batch(params, x, y):
    return ((_network(params, x) - y) ** 2).sum(axis=-1).mean()


@wrong("LOX600", NETWORK, f32(32, 4), i32(32), differentiate="params")
def predictions_before_the_loss(params, x, labels):
    logits = _network(params, x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return logits, loss


@right("LOX600", NETWORK, f32(32, 4), i32(32), differentiate="params")
def loss_before_the_predictions(params, x, labels):
    logits = _network(params, x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, logits


@wrong("LOX600", NETWORK, f32(32, 4), i32(32), differentiate="params")
def number_of_errors_as_a_loss(params, x, labels):
    return (_network(params, x).argmax(axis=-1) != labels).sum()


@wrong("LOX600", f32(3), f32(3), f32(100), differentiate="position")
def energy_of_each_step_of_a_flight(position, velocity, gusts):
    def step(state, gust):
        position, velocity = state
        velocity = velocity - 0.01 * jnp.array([0.0, 0.0, 9.81]) + 0.01 * gust
        return (position + 0.01 * velocity, velocity), 0.5 * (velocity @ velocity) + 9.81 * position[2]

    return jax.lax.scan(step, (position, velocity), gusts)[1]


@right("LOX600", f32(3), f32(3), f32(100), differentiate="position")
def final_height_of_a_flight(position, velocity, gusts):
    def step(state, gust):
        position, velocity = state
        velocity = velocity - 0.01 * jnp.array([0.0, 0.0, 9.81]) + 0.01 * gust
        return (position + 0.01 * velocity, velocity), position

    (position, _), path = jax.lax.scan(step, (position, velocity), gusts)
    return position[2], path


# -- LOX601: what it is differentiated by is not real ------------------------------------------------------------------


@wrong("LOX601", i32(8, 12), f32(100, 16), differentiate="tokens")
def saliency_of_tokens(tokens, embedding):
    return jnp.tanh(embedding[tokens].mean(axis=1)).sum()


@right("LOX601", i32(8, 12), f32(100, 16), differentiate="embedding")
def gradient_of_an_embedding(tokens, embedding):
    return jnp.tanh(embedding[tokens].mean(axis=1)).sum()


@wrong("LOX601", jax.ShapeDtypeStruct((28, 28), jnp.uint8), NETWORK, differentiate="image")
def adversarial_loss_of_a_byte_image(image, params):
    pixels = image.astype(jnp.float32) / 255
    return jax.nn.logsumexp(_network(params, pixels.reshape(-1, 4)).mean(axis=0))


@right("LOX601", f32(28, 28), NETWORK, differentiate="image")
def adversarial_loss_of_a_float_image(image, params):
    return jax.nn.logsumexp(_network(params, image.reshape(-1, 4)).mean(axis=0))


@right("LOX601", {"net": NETWORK, "step": i32()}, f32(32, 4), differentiate="state")
def state_with_a_counter_of_which_the_floats_are_trained(state, x):
    return (_network(state["net"], x) ** 2).mean() * 0.99 ** state["step"].astype(jnp.float32)


# -- LOX602: every path is cut -----------------------------------------------------------------------------------------


@wrong("LOX602", NETWORK, f32(32, 4), f32(32, 3), differentiate="params")
def expected_return_of_greedy_actions(params, obs, values):
    actions = jnp.argmax(_network(params, obs), axis=-1)
    return -jnp.take_along_axis(values, actions[:, None], axis=-1).mean()


@right("LOX602", NETWORK, f32(32, 4), f32(32, 3), differentiate="params")
def expected_return_of_soft_actions(params, obs, values):
    return -(jax.nn.softmax(_network(params, obs)) * values).sum(axis=-1).mean()


@wrong("LOX602", NETWORK, f32(32, 4), f32(32, 3), KEY, differentiate="params")
def policy_loss_without_the_log_probability(params, obs, advantages, key):
    actions = jax.random.categorical(key, _network(params, obs))
    return -jnp.take_along_axis(advantages, actions[:, None], axis=-1).mean()


@right("LOX602", NETWORK, f32(32, 4), f32(32, 3), KEY, differentiate="params")
def policy_loss_with_the_log_probability(params, obs, advantages, key):
    logits = _network(params, obs)
    actions = jax.random.categorical(key, logits)[:, None]
    log_probability = jnp.take_along_axis(jax.nn.log_softmax(logits), actions, axis=-1)
    return -(log_probability * jnp.take_along_axis(advantages, actions, axis=-1)).mean()


@wrong("LOX602", f32(64, 8), f32(512, 8), differentiate="encoded")
def codebook_loss_without_straight_through(encoded, codebook):
    distance = ((encoded[:, None] - codebook) ** 2).sum(axis=-1)
    quantized = codebook[jnp.argmin(distance, axis=-1)]
    return jnp.mean((quantized - jnp.tanh(quantized)) ** 2)


@right("LOX602", f32(64, 8), f32(512, 8), differentiate=("encoded", "codebook"))
def codebook_loss_with_straight_through(encoded, codebook):
    distance = ((encoded[:, None] - codebook) ** 2).sum(axis=-1)
    code = codebook[jnp.argmin(distance, axis=-1)]
    quantized = encoded + jax.lax.stop_gradient(code - encoded)
    commitment = jnp.mean((jax.lax.stop_gradient(code) - encoded) ** 2)
    learned = jnp.mean((code - jax.lax.stop_gradient(encoded)) ** 2)
    return jnp.mean((quantized - jnp.tanh(quantized)) ** 2) + learned + 0.25 * commitment


@wrong("LOX602", f32(16), f32(100, 16), differentiate="weights")
def quantized_weights(weights, x):
    scale = 127.0

    @jax.jit
    def quantize(w):
        return jnp.round(w * scale) / scale

    return jnp.mean(jnp.square(x @ quantize(weights) - 1.0))


@right("LOX602", f32(16), f32(100, 16), differentiate="weights")
def quantized_weights_with_straight_through(weights, x):
    scale = 127.0

    @jax.jit
    def quantize(w):
        return w + jax.lax.stop_gradient(jnp.round(w * scale) / scale - w)

    return jnp.mean(jnp.square(x @ quantize(weights) - 1.0))


@wrong("LOX602", NETWORK, NETWORK, f32(32, 4), f32(32), i32(32), differentiate="params")
def q_loss_with_the_wrong_side_stopped(params, target_params, obs, targets, actions):
    values = jnp.take_along_axis(_network(params, obs), actions[:, None], axis=-1)[:, 0]
    return jnp.mean((jax.lax.stop_gradient(values) - targets - _network(target_params, obs).max(axis=-1)) ** 2)


@right("LOX602", NETWORK, NETWORK, f32(32, 4), f32(32), i32(32), differentiate="params")
def q_loss_with_the_target_stopped(params, target_params, obs, rewards, actions):
    values = jnp.take_along_axis(_network(params, obs), actions[:, None], axis=-1)[:, 0]
    target = rewards + 0.99 * _network(target_params, obs).max(axis=-1)
    return jnp.mean((values - jax.lax.stop_gradient(target)) ** 2)


@wrong("LOX602", f32(), f32(50), differentiate="threshold")
def number_of_steps_above_a_threshold(threshold, rewards):
    def step(total, reward):
        return total + jnp.where(reward > threshold, 1.0, 0.0), None

    return jax.lax.scan(step, 0.0, rewards)[0]


@right("LOX602", f32(), f32(50), differentiate="threshold")
def soft_number_of_steps_above_a_threshold(threshold, rewards):
    def step(total, reward):
        return total + jax.nn.sigmoid(reward - threshold), None

    return jax.lax.scan(step, 0.0, rewards)[0]


@wrong("LOX602", NETWORK, f32(32, 4), i32(32))
@jax.jit
def update_by_the_number_of_errors(params, x, labels):
    def loss(params):
        return 1 - (jnp.argmax(_network(params, x), axis=-1) == labels).mean()

    return jax.tree.map(lambda param, slope: param - 0.1 * slope, params, jax.grad(loss)(params))


@right("LOX602", NETWORK, f32(32, 4), i32(32))
@jax.jit
def update_by_the_likelihood_beside_the_number_of_errors(params, x, labels):
    def loss(params):
        logits = _network(params, x)
        errors = (jnp.argmax(logits, axis=-1) != labels).mean()
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), errors

    gradient, errors = jax.grad(loss, has_aux=True)(params)
    return jax.tree.map(lambda param, slope: param - 0.1 * slope, params, gradient), errors


# -- LOX603: an argument that nothing depends on -----------------------------------------------------------------------


@wrong("LOX603", NETWORK, NETWORK, f32(32, 4), f32(32, 3), differentiate="params")
def loss_of_the_averaged_parameters(params, averaged, x, y):
    return jnp.mean((_network(averaged, x) - y) ** 2)


@right("LOX603", NETWORK, NETWORK, f32(32, 4), f32(32, 3), differentiate="params")
def loss_of_the_parameters(params, averaged, x, y):
    drift = optax.tree.sub(params, averaged)
    return jnp.mean((_network(params, x) - y) ** 2) + 1e-3 * optax.tree.norm(drift, squared=True)


@wrong("LOX603", f32(4, 3), f32(), f32(32, 4), f32(32, 3), differentiate=("mean", "log_std"))
def behaviour_cloning_that_forgets_the_spread(mean, log_std, obs, actions):
    return jnp.mean(0.5 * jnp.sum((actions - obs @ mean) ** 2, axis=-1))


@right("LOX603", f32(4, 3), f32(), f32(32, 4), f32(32, 3), differentiate=("mean", "log_std"))
def behaviour_cloning(mean, log_std, obs, actions):
    scaled = (actions - obs @ mean) * jnp.exp(-log_std)
    return jnp.mean(0.5 * jnp.sum(scaled**2, axis=-1)) + 3 * log_std


@right("LOX603", {"actor": NETWORK, "critic": NETWORK}, f32(32, 4), differentiate="params")
def loss_of_one_of_two_networks(params, obs):
    return -jnp.mean(jax.nn.log_softmax(_network(params["actor"], obs))[:, 0])


@wrong("LOX603", NETWORK, f32(32, 4), f32(32, 3))
def update_by_what_is_outside_of_the_loss(params, x, y):
    gradient = jax.grad(lambda _: jnp.mean((_network(params, x) - y) ** 2))(params)
    return jax.tree.map(lambda param, slope: param - 0.1 * slope, params, gradient)


@right("LOX603", NETWORK, f32(32, 4), f32(32, 3))
def update_by_what_the_loss_is_given(params, x, y):
    gradient = jax.grad(lambda params: jnp.mean((_network(params, x) - y) ** 2))(params)
    return jax.tree.map(lambda param, slope: param - 0.1 * slope, params, gradient)


# -- LOX604: one array of several is cut off ---------------------------------------------------------------------------


@wrong("LOX604", {"w": f32(4), "threshold": f32()}, f32(32, 4), f32(32), differentiate="params")
def classifier_with_a_hard_threshold(params, x, y):
    score = x @ params["w"]
    prediction = jnp.where(score > params["threshold"], score, 0.1 * score)
    return jnp.mean((prediction - y) ** 2)


@right("LOX604", {"w": f32(4), "threshold": f32()}, f32(32, 4), f32(32), differentiate="params")
def classifier_with_a_soft_threshold(params, x, y):
    score = x @ params["w"]
    gate = jax.nn.sigmoid(score - params["threshold"])
    return jnp.mean((gate * score + (1 - gate) * 0.1 * score - y) ** 2)


@wrong("LOX604", {"slope": f32(), "levels": f32()}, f32(200), differentiate="params")
def quantizer_with_a_learned_number_of_levels(params, signal):
    levels = jnp.floor(params["levels"])
    bounded = jnp.tanh(params["slope"] * signal)
    rounded = bounded + jax.lax.stop_gradient(jnp.round(bounded * levels) / levels - bounded)
    return jnp.mean((rounded - signal) ** 2)


@right("LOX604", {"slope": f32(), "levels": f32()}, f32(200), differentiate="params")
def quantizer_with_a_stopped_number_of_levels(params, signal):
    levels = jax.lax.stop_gradient(params["levels"])
    bounded = jnp.tanh(params["slope"] * signal)
    rounded = bounded + jax.lax.stop_gradient(jnp.round(bounded * levels) / levels - bounded)
    return jnp.mean((rounded - signal) ** 2)


@right("LOX604", {"online": NETWORK, "target": NETWORK}, f32(32, 4), f32(32, 3), differentiate="params")
def loss_with_the_target_network_among_the_parameters(params, obs, rewards):
    target = jax.lax.stop_gradient(rewards + 0.99 * _network(params["target"], obs))
    return jnp.mean((_network(params["online"], obs) - target) ** 2)


# -- LOX605: what has no reverse-mode derivative -----------------------------------------------------------------------


@wrong("LOX605", f32(2), differentiate="velocity")
def where_a_ball_lands(velocity):
    def falling(state):
        return state[0][1] >= 0

    def step(state):
        position, velocity = state
        return position + 0.01 * velocity, velocity - 0.01 * jnp.array([0.0, 9.81])

    position, _ = jax.lax.while_loop(falling, step, (jnp.array([0.0, 1.0]), velocity))
    return (position[0] - 10.0) ** 2


@right("LOX605", f32(2), differentiate="velocity")
def where_a_ball_lands_within_a_number_of_steps(velocity):
    def step(state, _):
        position, velocity = state
        moved = position + 0.01 * velocity, velocity - 0.01 * jnp.array([0.0, 9.81])
        return jax.tree.map(lambda new, old: jnp.where(position[1] >= 0, new, old), moved, state), None

    (position, _), _ = jax.lax.scan(step, (jnp.array([0.0, 1.0]), velocity), length=300)
    return (position[0] - 10.0) ** 2


@wrong("LOX605", f32(3), i32(), differentiate="x")
def rounds_of_relaxation(x, rounds):
    return jax.lax.fori_loop(0, rounds, lambda _, x: 0.5 * (x + jnp.roll(x, 1)), x)[0]


@right("LOX605", f32(3), differentiate="x")
def fixed_rounds_of_relaxation(x):
    return jax.lax.fori_loop(0, 10, lambda _, x: 0.5 * (x + jnp.roll(x, 1)), x)[0]


@right("LOX605", f32(3), i32(), differentiate="x")
def search_beside_the_derivative(x, rounds):
    scale = jax.lax.fori_loop(0, rounds, lambda _, s: 0.5 * s, jax.lax.stop_gradient(jnp.abs(x).max()) + 1.0)
    return jnp.sum(jnp.tanh(x / scale))


@wrong("LOX605", f32(8, 3), differentiate="state")
def reward_of_a_simulator_on_the_host(state):
    def simulate(state):
        return state.sum(axis=-1)

    rewards = jax.pure_callback(simulate, jax.ShapeDtypeStruct((8,), jnp.float32), state)
    return -rewards.mean()


# -- LOX606: derivatives that are infinite where values get ------------------------------------------------------------


@wrong("LOX606", f32(5), f32(), differentiate="x")
def pull_to_a_ball(x, radius):
    norm = jnp.sqrt(jnp.sum(x**2))
    inside = jnp.where(norm > radius, radius * x / norm, x)
    return jnp.sum(jnp.tanh(inside))


@wrong("LOX606", f32(10, 3), f32(10, 3), differentiate="position")
def mean_distance_to_targets(position, target):
    return jnp.linalg.norm(position - target, axis=-1).mean()


@right("LOX606", f32(10, 3), f32(10, 3), differentiate="position")
def mean_distance_to_targets_with_an_epsilon(position, target):
    return jnp.sqrt(jnp.sum((position - target) ** 2, axis=-1) + 1e-8).mean()


@right("LOX606", f32(10, 3), f32(10, 3), differentiate="position")
def mean_distance_to_targets_by_safe_norm(position, target):
    return optax.safe_norm(position - target, 1e-6, axis=-1).mean()


@wrong("LOX606", f32(16, 8), f32(32, 16), differentiate="w")
def spread_of_embeddings_that_may_all_be_equal(w, x):
    embeddings = jax.nn.relu(x @ w)
    return jax.nn.relu(1 - embeddings.std(axis=0)).mean()


@right("LOX606", f32(16, 8), f32(32, 16), differentiate="w")
def spread_of_embeddings_with_an_epsilon(w, x):
    embeddings = jax.nn.relu(x @ w)
    return jax.nn.relu(1 - jnp.sqrt(embeddings.var(axis=0) + 1e-4)).mean()


@wrong("LOX606", f32(6, 3), f32(6, 3), differentiate="position")
def distances_by_products(position, target):
    return jnp.sqrt(((position - target) * (position - target)).sum(axis=-1)).mean()


@wrong("LOX606", f32(2), f32(2), differentiate=("one", "other"))
def spring_between_two_bodies(one, other):
    across, along = one[0] - other[0], one[1] - other[1]
    stretch = jnp.sqrt(across**2 + along**2) - 1.0
    return 0.5 * 100.0 * stretch**2


@right("LOX606", f32(5), differentiate="angles")
def length_that_is_never_zero(angles):
    return jnp.sqrt(jnp.cos(angles) ** 2 + 4.0 * jnp.sin(angles) ** 2).sum()


@wrong("LOX606", f32(4, 2), f32(32, 4), KEY, differentiate="w")
def squashed_gaussian_policy(w, obs, key):
    raw = obs @ w + jax.random.normal(key, (32, 2))
    action = jnp.tanh(raw)
    log_probability = -0.5 * (raw - obs @ w) ** 2 - jnp.log(1 - action**2)
    return log_probability.sum(axis=-1).mean()


@right("LOX606", f32(4, 2), f32(32, 4), KEY, differentiate="w")
def squashed_gaussian_policy_by_softplus(w, obs, key):
    raw = obs @ w + jax.random.normal(key, (32, 2))
    correction = 2 * (jnp.log(2.0) - raw - jax.nn.softplus(-2 * raw))
    return (-0.5 * (raw - obs @ w) ** 2 - correction).sum(axis=-1).mean()


@wrong("LOX606", f32(8), f32(64, 8), flags(64), differentiate="w")
def cross_entropy_of_probabilities(w, x, y):
    probability = jax.nn.sigmoid(x @ w)
    return -jnp.mean(jnp.where(y, jnp.log(probability), jnp.log(1 - probability)))


@right("LOX606", f32(8), f32(64, 8), flags(64), differentiate="w")
def cross_entropy_of_clipped_probabilities(w, x, y):
    probability = jnp.clip(jax.nn.sigmoid(x @ w), 1e-6, 1 - 1e-6)
    return -jnp.mean(jnp.where(y, jnp.log(probability), jnp.log(1 - probability)))


@wrong("LOX606", NETWORK, f32(32, 4), i32(32), differentiate="params")
def likelihood_of_labels_by_softmax(params, x, labels):
    probabilities = jax.nn.softmax(_network(params, x))
    chosen = jax.vmap(lambda p, label: p[label])(probabilities, labels)
    return -jnp.log(chosen).mean()


@right("LOX606", NETWORK, f32(32, 4), i32(32), differentiate="params")
def likelihood_of_labels_by_log_softmax(params, x, labels):
    logs = jax.nn.log_softmax(_network(params, x))
    return -jax.vmap(lambda p, label: p[label])(logs, labels).mean()


@wrong("LOX606", f32(16, 3), f32(16, 3), differentiate="heading")
def angle_between_directions(heading, goal):
    cosine = jnp.clip(jnp.sum(heading * goal, axis=-1), -1.0, 1.0)
    return jnp.arccos(cosine).mean()


@right("LOX606", f32(16, 3), f32(16, 3), differentiate="heading")
def angle_between_directions_short_of_the_ends(heading, goal):
    cosine = jnp.clip(jnp.sum(heading * goal, axis=-1), -1 + 1e-6, 1 - 1e-6)
    return jnp.arccos(cosine).mean()


@wrong("LOX606", f32(20), differentiate="pressure")
def flow_through_valves(pressure):
    def flow(p):
        return jnp.maximum(p, 0.0) ** 0.5

    return jax.vmap(flow)(pressure).sum()


@right("LOX606", f32(20), differentiate="pressure")
def flow_through_valves_that_leak(pressure):
    def flow(p):
        return jnp.maximum(p, 1e-4) ** 0.5

    return jax.vmap(flow)(pressure).sum()


@right("LOX606", f32(10, 3), differentiate="x")
def norm_that_is_only_measured(x):
    return jnp.mean(x**2), {"norm": jnp.linalg.norm(x)}


@right("LOX606", f32(10, 3), differentiate="rate")
def logarithm_of_an_argument(rate):
    return jnp.log(rate).sum() + jnp.sqrt(rate).sum()


# -- LOX607: jnp.where and what it leaves out --------------------------------------------------------------------------


@wrong("LOX607", f32(100), differentiate="x")
def logarithm_where_it_is_positive(x):
    return jnp.where(x > 0, jnp.log(x), 0.0).sum()


@right("LOX607", f32(100), differentiate="x")
def logarithm_of_what_is_made_positive(x):
    safe = jnp.where(x > 0, x, 1.0)
    return jnp.where(x > 0, jnp.log(safe), 0.0).sum()


@wrong("LOX607", f32(20, 50), flags(20, 50), differentiate="values")
def mean_over_steps_that_are_valid(values, valid):
    count = valid.sum(axis=1)
    total = (values * valid).sum(axis=1)
    return jnp.where(count > 0, total / count, 0.0).mean()


@right("LOX607", f32(20, 50), flags(20, 50), differentiate="values")
def mean_over_steps_that_are_chosen(values, valid):
    count = valid.sum(axis=1)
    total = jnp.where(valid, values, 0.0).sum(axis=1)
    return jnp.where(count > 0, total / count, 0.0).mean()


@right("LOX607", f32(20, 50), flags(20, 50), differentiate="values")
def mean_over_at_least_one_step(values, valid):
    count = valid.sum(axis=1)
    total = (values * valid).sum(axis=1)
    return jnp.where(count > 0, total / jnp.maximum(count, 1), 0.0).mean()


@wrong("LOX607", f32(6, 3), differentiate="positions")
def repulsion_between_other_particles(positions):
    apart = positions[:, None] - positions[None, :]
    squared = jnp.sum(apart**2, axis=-1)
    return jnp.where(squared > 0, 1.0 / jnp.sqrt(squared), 0.0).sum()


@right("LOX607", f32(6, 3), differentiate="positions")
def repulsion_between_others_chosen_before(positions):
    apart = positions[:, None] - positions[None, :]
    squared = jnp.sum(apart**2, axis=-1)
    other = squared > 0
    return jnp.where(other, 1.0 / jnp.sqrt(jnp.where(other, squared, 1.0)), 0.0).sum()


def _inverse_distances(one, other):
    return 1.0 / jnp.sqrt(jnp.sum((one[:, None] - other) ** 2, axis=-1))


@wrong("LOX607", f32(12, 3), f32(12), differentiate="positions")
def energy_of_charges_without_the_diagonal(positions, charges):
    inverse = jnp.where(jnp.eye(12, dtype=bool), 0.0, _inverse_distances(positions, positions))
    return charges @ inverse @ charges / 2


@right("LOX607", f32(12, 3), f32(12, 3), differentiate="positions")
def energies_of_charges_and_of_two_molecules(positions, others):
    same = jnp.eye(12, dtype=bool)
    squared = jnp.sum((positions[:, None] - positions) ** 2, axis=-1)
    safe = jnp.where(same, 0.0, 1.0 / jnp.sqrt(jnp.where(same, 1.0, squared)))
    return safe.sum() + jnp.where(same, 0.0, _inverse_distances(positions, others)).sum()


@wrong("LOX607", f32(32, 10), f32(32, 10), differentiate="logits")
def divergence_with_nan_taken_for_zero(logits, target):
    p = jax.nn.softmax(logits)
    ratio = target / p
    return jnp.where(jnp.isfinite(ratio), ratio, 0.0).sum(axis=-1).mean()


@wrong("LOX607", f32(64), differentiate="angle")
def sinc_of_an_angle(angle):
    @jax.vmap
    def sinc(x):
        return jnp.where(jnp.abs(x) < 1e-3, 1.0 - x**2 / 6, jnp.sin(x) / x)

    return sinc(angle).sum()


@wrong("LOX607", f32(64, 3), differentiate="error")
def robust_loss_that_grows_slowly_from_one_on(error):
    squared = jnp.sum(error**2, axis=-1)
    return jnp.where(squared < 1.0, squared, 2.0 * jnp.sqrt(squared) - 1.0).mean()


@right("LOX607", f32(64), differentiate="angle")
def sinc_of_a_safe_angle(angle):
    @jax.vmap
    def sinc(x):
        small = jnp.abs(x) < 1e-3
        safe = jnp.where(small, 1.0, x)
        return jnp.where(small, 1.0 - x**2 / 6, jnp.sin(safe) / safe)

    return sinc(angle).sum()


@right("LOX607", f32(64), differentiate="x")
def huber_loss_by_hand(x):
    size = jnp.abs(x)
    return jnp.where(size <= 1.0, 0.5 * x**2, size - 0.5).mean()


@right("LOX607", f32(64), f32(64), differentiate="x")
def where_over_data_that_is_missing(x, data):
    error = x - jnp.where(jnp.isnan(data), 0.0, data)
    return jnp.where(jnp.isnan(data), 0.0, error**2).mean()


# -- LOX608 and LOX609: custom rules -----------------------------------------------------------------------------------


@jax.custom_vjp
def _smooth_l1(x):
    return jnp.sqrt(1.0 + x**2) - 1.0


_smooth_l1.defvjp(lambda x: (_smooth_l1(x), x), lambda x, bar: (bar * x / (1.0 + x**2),))


@wrong("LOX608", f32(32), f32(32), differentiate="prediction")
def loss_whose_rule_forgets_the_root(prediction, target):
    return _smooth_l1(prediction - target).mean()


@jax.custom_vjp
def _pseudo_huber(x):
    return jnp.sqrt(1.0 + x**2) - 1.0


_pseudo_huber.defvjp(lambda x: (_pseudo_huber(x), x), lambda x, bar: (bar * x / jnp.sqrt(1.0 + x**2),))


@right("LOX608", f32(32), f32(32), differentiate="prediction")
def loss_whose_rule_is_right(prediction, target):
    return _pseudo_huber(prediction - target).mean()


@jax.custom_jvp
def _swish(x, sharpness):
    return x * jax.nn.sigmoid(sharpness * x)


@_swish.defjvp
def _swish_tangent(primals, tangents):
    x, sharpness = primals
    gate = jax.nn.sigmoid(sharpness * x)
    slope = gate + x * gate * (1 - gate)
    return x * gate, slope * tangents[0] + x**2 * gate * (1 - gate) * tangents[1]


@wrong("LOX608", NETWORK, f32(32, 4), f32())
def activation_whose_rule_forgets_the_chain(params, x, sharpness):
    @jax.vmap
    def layer(x):
        return _swish(x @ params["hidden"] + params["bias"], sharpness) @ params["out"]

    return layer(x).sum()


@jax.custom_jvp
def _scaled_swish(x, sharpness):
    return x * jax.nn.sigmoid(sharpness * x)


@_scaled_swish.defjvp
def _scaled_swish_tangent(primals, tangents):
    x, sharpness = primals
    gate = jax.nn.sigmoid(sharpness * x)
    slope = gate + sharpness * x * gate * (1 - gate)
    return x * gate, slope * tangents[0] + x**2 * gate * (1 - gate) * tangents[1]


@right("LOX608", NETWORK, f32(32, 4), f32())
def activation_whose_rule_has_the_chain(params, x, sharpness):
    @jax.vmap
    def layer(x):
        return _scaled_swish(x @ params["hidden"] + params["bias"], sharpness) @ params["out"]

    return layer(x).sum()


def _dense(backward):
    @jax.custom_vjp
    def dense(x, w):
        return x @ w

    dense.defvjp(lambda x, w: (x @ w, (x, w)), backward)
    return dense


_wrong_dense = _dense(lambda kept, bar: (bar @ kept[1], kept[0].T @ bar))
_right_dense = _dense(lambda kept, bar: (bar @ kept[1].T, kept[0].T @ bar))
_short_dense = _dense(lambda kept, bar: (bar @ kept[1].T,))
_transposed_dense = _dense(lambda kept, bar: (bar @ kept[1].T, bar.T @ kept[0]))


@wrong("LOX608", f32(32, 8), f32(8, 8), f32(32, 8), differentiate="w")
def product_whose_rule_forgets_to_transpose(x, w, y):
    def layer(x, _):
        return _wrong_dense(x, w), None

    return jnp.mean((jax.lax.scan(layer, x, length=3)[0] - y) ** 2)


@right("LOX608", f32(32, 8), f32(8, 8), f32(32, 8), differentiate="w")
def product_whose_rule_transposes(x, w, y):
    def layer(x, _):
        return _right_dense(x, w), None

    return jnp.mean((jax.lax.scan(layer, x, length=3)[0] - y) ** 2)


@jax.custom_vjp
def _clip_gradient(x):
    return x


_clip_gradient.defvjp(lambda x: (x, None), lambda _, bar: (jnp.clip(bar, -1.0, 1.0),))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _reverse_gradient(x, strength):
    return x


_reverse_gradient.defvjp(lambda x, strength: (x, None), lambda strength, _, bar: (-strength * bar,))


@right("LOX608", NETWORK, f32(32, 4), differentiate="params")
def gradients_that_are_clipped_and_reversed(params, x):
    features = _clip_gradient(jax.nn.relu(x @ params["hidden"] + params["bias"]))
    return jax.nn.logsumexp(_reverse_gradient(features, 0.5) @ params["out"])


@jax.custom_vjp
def _sign(x):
    return jnp.where(x >= 0, 1.0, -1.0)


_sign.defvjp(lambda x: (_sign(x), x), lambda x, bar: (jnp.where(jnp.abs(x) <= 1, bar, 0.0),))


@jax.custom_jvp
def _spike(voltage):
    return (voltage > 1.0).astype(jnp.float32)


@_spike.defjvp
def _spike_tangent(primals, tangents):
    return _spike(*primals), tangents[0] / (1.0 + 10.0 * jnp.abs(primals[0] - 1.0)) ** 2


@right("LOX608", f32(32, 4), f32(4, 16), differentiate="w")
def estimators_of_binary_and_spiking_units(x, w):
    def step(voltage, x):
        voltage = 0.9 * voltage + x @ _sign(w)
        spikes = _spike(voltage)
        return voltage - spikes, spikes

    return jnp.mean(jax.lax.scan(step, jnp.zeros(16), x)[1])


@jax.custom_vjp
def _clamp(x):
    return jnp.clip(x, -1.0, 1.0)


_clamp.defvjp(lambda x: (_clamp(x), None), lambda _, bar: (bar,))


@right("LOX608", f32(32), differentiate="action")
def clip_that_lets_gradients_through(action):
    return jnp.sum((_clamp(action) - 0.5) ** 2)


@jax.custom_vjp
def _cross_entropy(logits, labels):
    return -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)


_cross_entropy.defvjp(
    lambda logits, labels: (_cross_entropy(logits, labels), (logits, labels)),
    lambda kept, bar: (bar[:, None] * (jax.nn.softmax(kept[0]) - kept[1]), None),
)


@right("LOX608", f32(16, 5), f32(16, 5), differentiate="logits")
def rule_that_holds_for_labels_that_sum_to_one(logits, labels):
    return _cross_entropy(logits, labels).mean()


@wrong("LOX609", f32(32, 8), f32(8, 4), differentiate="w")
def rule_with_too_few_cotangents(x, w):
    return _short_dense(x, w).mean()


@wrong("LOX609", f32(32, 8), f32(8, 4), differentiate="w")
def rule_with_a_cotangent_of_another_shape(x, w):
    @jax.jit
    def layer(x):
        return _transposed_dense(x, w)

    return layer(x).mean()


@jax.custom_jvp
def _energy(position):
    return 0.5 * jnp.sum(position**2)


@_energy.defjvp
def _energy_tangent(primals, tangents):
    return _energy(*primals), primals[0] * tangents[0]


@wrong("LOX609", f32(6, 3), differentiate="position")
def rule_with_a_tangent_of_another_shape(position):
    return _energy(position)


@right("LOX609", f32(32, 8), f32(8, 4), differentiate="w")
def rule_with_cotangents_for_all(x, w):
    return _right_dense(x, w).mean()


# -- LOX610 to LOX614: what is to be a constant for the derivative -----------------------------------------------------


def _value(params, obs):
    return _network(params, obs)[..., 0]


@wrong("LOX610", NETWORK, f32(32, 4), f32(32, 4), f32(32), f32(32), differentiate="params")
def values_whose_target_moves(params, obs, next_obs, reward, done):
    target = reward + 0.99 * (1 - done) * _value(params, next_obs)
    return jnp.mean((_value(params, obs) - target) ** 2)


@right("LOX610", NETWORK, f32(32, 4), f32(32, 4), f32(32), f32(32), differentiate="params")
def values_whose_target_is_stopped(params, obs, next_obs, reward, done):
    target = reward + 0.99 * (1 - done) * jax.lax.stop_gradient(_value(params, next_obs))
    return jnp.mean((_value(params, obs) - target) ** 2)


@wrong("LOX610", NETWORK, f32(32, 4), f32(32, 4), f32(32), flags(32), i32(32), differentiate="params")
def q_learning_whose_target_moves(params, obs, next_obs, reward, done, actions):
    chosen = jnp.take_along_axis(_network(params, obs), actions[:, None], axis=-1)[:, 0]
    later = jnp.where(done, 0.0, _network(params, next_obs).max(axis=-1))
    return optax.huber_loss(chosen, reward + 0.95 * later).mean()


@wrong("LOX610", NETWORK, f32(65, 4), f32(64), f32(64), differentiate="params")
def lambda_returns_that_move(params, obs, reward, done):
    values = _value(params, obs)

    def back(later, at):
        reward, done, value = at
        later = reward + 0.99 * (1 - done) * (0.05 * value + 0.95 * later)
        return later, later

    _, returns = jax.lax.scan(back, values[-1], (reward, done, values[1:]), reverse=True)
    return jnp.mean((values[:-1] - returns) ** 2)


def _updated(params, gradient):
    return jax.tree.map(lambda param, slope: param - 1e-3 * slope, params, gradient)


@wrong("LOX610", NETWORK, f32(10, 32, 4), f32(10, 32, 4), f32(10, 32))
def updates_by_values_whose_target_moves(params, obs, next_obs, reward):
    def update(params, batch):
        gradient = jax.grad(lambda params: values_whose_target_moves(params, *batch, 0.0))(params)
        return _updated(params, gradient), None

    return jax.lax.scan(update, params, (obs, next_obs, reward))[0]


@right("LOX610", NETWORK, f32(10, 32, 4), f32(10, 32, 4), f32(10, 32))
def updates_by_values_whose_target_is_stopped(params, obs, next_obs, reward):
    def update(params, batch):
        gradient = jax.grad(lambda params: values_whose_target_is_stopped(params, *batch, 0.0))(params)
        return _updated(params, gradient), None

    return jax.lax.scan(update, params, (obs, next_obs, reward))[0]


TWINS = {"one": NETWORK, "other": NETWORK}


def _twins_loss(params, later, obs, next_obs, reward, entropy):
    least = jnp.minimum(_value(later["one"], next_obs), _value(later["other"], next_obs))
    target = reward + 0.99 * (least - 0.2 * entropy)
    return sum(jnp.mean((_value(each, obs) - target) ** 2) for each in params.values())


@wrong("LOX610", TWINS, f32(32, 4), f32(32, 4), f32(32), f32(32))
def update_of_two_critics_by_the_least_of_them(params, obs, next_obs, reward, entropy):
    gradient = jax.grad(lambda params: _twins_loss(params, params, obs, next_obs, reward, entropy))(params)
    return _updated(params, gradient)


@right("LOX610", TWINS, TWINS, f32(32, 4), f32(32, 4), f32(32), f32(32))
def update_of_two_critics_by_the_least_of_their_copies(params, copies, obs, next_obs, reward, entropy):
    gradient = jax.grad(_twins_loss)(params, copies, obs, next_obs, reward, entropy)
    return _updated(params, gradient)


@right("LOX610", NETWORK, f32(64), f32(64), differentiate="params")
def residual_of_an_equation_with_damping(params, time, force):
    def position(time):
        return _value(params, jnp.stack([time, time**2, jnp.sin(time), jnp.cos(time)]))

    speed = jax.vmap(jax.grad(position))(time)
    return jnp.mean((speed + 0.9 * jax.vmap(position)(time) - force) ** 2)


@right("LOX610", NETWORK, f32(64, 4), f32(64), differentiate="params")
def noise_that_is_correlated_in_time(params, x, observed):
    error = _value(params, x)
    return jnp.mean((error[1:] - 0.9 * error[:-1] - observed[1:]) ** 2)


@right("LOX610", NETWORK, f32(32, 4), f32(32, 4), differentiate="params")
def two_views_that_are_to_agree(params, one, other):
    return jnp.mean((_network(params, one) - 0.99 * _network(params, other)) ** 2)


ACTOR_CRITIC = {**NETWORK, "value": f32(16)}


def _actor_critic(params, obs, actions):
    hidden = jax.nn.relu(obs @ params["hidden"] + params["bias"])
    log_probabilities = jax.nn.log_softmax(hidden @ params["out"])
    return jnp.take_along_axis(log_probabilities, actions[:, None], axis=-1)[:, 0], hidden @ params["value"]


@wrong("LOX611", ACTOR_CRITIC, f32(32, 4), i32(32), f32(32), differentiate="params")
def actor_critic_whose_advantages_are_differentiated(params, obs, actions, returns):
    log_probability, values = _actor_critic(params, obs, actions)
    advantages = returns - values
    return -jnp.mean(log_probability * advantages) + 0.5 * jnp.mean(advantages**2)


@wrong("LOX611", ACTOR_CRITIC, f32(32, 4), i32(32), f32(32), f32(32), differentiate="params")
def clipped_ratio_whose_advantages_are_differentiated(params, obs, actions, returns, old):
    log_probability, values = _actor_critic(params, obs, actions)
    advantages = returns - values
    advantages = (advantages - advantages.mean()) / (jnp.sqrt(advantages.var() + 1e-6))
    ratio = jnp.exp(log_probability - old)
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages).mean()


@right("LOX611", ACTOR_CRITIC, f32(32, 4), i32(32), f32(32), differentiate="params")
def actor_critic_whose_advantages_are_stopped(params, obs, actions, returns):
    log_probability, values = _actor_critic(params, obs, actions)
    advantages = returns - values
    return -jnp.mean(log_probability * jax.lax.stop_gradient(advantages)) + 0.5 * jnp.mean(advantages**2)


@right("LOX611", NETWORK, f32(32, 4), f32(32, 3), differentiate="params")
def focal_loss_of_soft_labels(params, x, labels):
    logits = _network(params, x)
    return -jnp.mean((labels - jax.nn.softmax(logits)) * jax.nn.log_softmax(logits))


@wrong("LOX612", ACTOR_CRITIC, f32(32, 4), i32(32), f32(32), differentiate="params")
def ratio_of_a_policy_to_itself(params, obs, actions, advantages):
    new, _ = _actor_critic(params, obs, actions)
    old, _ = _actor_critic(params, obs, actions)
    ratio = jnp.exp(new - old)
    return -jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages).mean()


@right("LOX612", ACTOR_CRITIC, f32(32, 4), i32(32), f32(32), differentiate="params")
def ratio_of_a_policy_to_its_stopped_self(params, obs, actions, advantages):
    new, _ = _actor_critic(params, obs, actions)
    old, _ = _actor_critic(jax.lax.stop_gradient(params), obs, actions)
    return -jnp.mean(jnp.exp(new - old) * advantages)


@wrong("LOX613", {"student": NETWORK, "teacher": NETWORK}, f32(32, 4), f32(32, 4), differentiate="params")
def distillation_that_trains_the_teacher(params, x, other_view):
    taught = jax.nn.softmax(_network(params["teacher"], x) / 0.04)
    return optax.softmax_cross_entropy(_network(params["student"], other_view), taught).mean()


@right("LOX613", {"student": NETWORK, "teacher": NETWORK}, f32(32, 4), f32(32, 4), differentiate="params")
def distillation_that_keeps_the_teacher(params, x, other_view):
    taught = jax.lax.stop_gradient(jax.nn.softmax(_network(params["teacher"], x) / 0.04))
    return optax.softmax_cross_entropy(_network(params["student"], other_view), taught).mean()


@right("LOX613", {"source": NETWORK, "target": NETWORK}, f32(32, 4), f32(32, 4), differentiate="params")
def two_encoders_that_are_both_trained(params, source, target):
    scores = _network(params["source"], source) @ _network(params["target"], target).T
    return optax.softmax_cross_entropy_with_integer_labels(scores, jnp.arange(32)).mean()


def _quantized(encoded, codebook):
    distance = ((encoded[:, None] - codebook) ** 2).sum(axis=-1)
    return codebook[jnp.argmin(distance, axis=-1)]


@wrong("LOX614", {"in": f32(8, 4), "codes": f32(32, 4), "out": f32(4, 8)}, f32(64, 8), differentiate="params")
def quantization_whose_losses_move_both(params, x):
    encoded = x @ params["in"]
    code = _quantized(encoded, params["codes"])
    decoded = (encoded + jax.lax.stop_gradient(code - encoded)) @ params["out"]
    return jnp.mean((decoded - x) ** 2) + jnp.mean((code - encoded) ** 2) + 0.25 * jnp.mean((encoded - code) ** 2)


@right("LOX614", {"in": f32(8, 4), "codes": f32(32, 4), "out": f32(4, 8)}, f32(64, 8), differentiate="params")
def quantization_whose_losses_move_one_side_each(params, x):
    encoded = x @ params["in"]
    code = _quantized(encoded, params["codes"])
    decoded = (encoded + jax.lax.stop_gradient(code - encoded)) @ params["out"]
    learned = jnp.mean((code - jax.lax.stop_gradient(encoded)) ** 2)
    commitment = jnp.mean((jax.lax.stop_gradient(code) - encoded) ** 2)
    return jnp.mean((decoded - x) ** 2) + learned + 0.25 * commitment


@wrong("LOX610", {"value": NETWORK, "action": NETWORK}, f32(32, 4), f32(32, 4), f32(32), i32(32))
def update_of_actions_towards_values_that_move(params, obs, next_obs, reward, actions):
    def loss(params):
        chosen = jnp.take_along_axis(_network(params["action"], obs), actions[:, None], axis=-1)[:, 0]
        return jnp.mean((chosen - (reward + 0.99 * _value(params["value"], next_obs))) ** 2)

    return _updated(params, jax.grad(loss)(params))


# -- LOX616 and LOX617: signs in policy gradients ----------------------------------------------------------------------


def _log_chances(params, obs, actions):
    log_chances = jax.nn.log_softmax(_network(params, obs))
    return log_chances, jnp.take_along_axis(log_chances, actions[:, None], axis=-1)[:, 0]


@wrong("LOX616", NETWORK, f32(32, 4), i32(32), f32(32), differentiate="params")
def loss_of_a_policy_that_is_to_be_sure(params, obs, actions, advantages):
    log_chances, chosen = _log_chances(params, obs, actions)
    entropy = -jnp.sum(jnp.exp(log_chances) * log_chances, axis=-1)
    return jnp.mean(-chosen * advantages + 0.01 * entropy)


@right("LOX616", NETWORK, f32(32, 4), i32(32), f32(32), f32(32, 4), differentiate="params")
def loss_of_a_policy_that_is_to_explore(params, obs, actions, advantages, unlabelled):
    log_chances, chosen = _log_chances(params, obs, actions)
    entropy = -jnp.sum(jnp.exp(log_chances) * log_chances, axis=-1)
    others = _log_chances(params, unlabelled, actions)[0]
    return jnp.mean(-chosen * advantages - 0.01 * entropy) - 0.1 * jnp.mean(jnp.sum(jnp.exp(others) * others, axis=-1))


@wrong("LOX617", NETWORK, f32(32, 4), i32(32), f32(32), f32(32), differentiate="params")
def clipped_loss_that_makes_what_is_good_rare(params, obs, actions, before, advantages):
    ratio = jnp.exp(_log_chances(params, obs, actions)[1] - before)
    normalized = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return jnp.minimum(ratio * normalized, jnp.clip(ratio, 0.8, 1.2) * normalized).mean()


@right("LOX617", NETWORK, f32(32, 4), i32(32), f32(32), f32(32), differentiate="params")
def clipped_loss_that_makes_what_is_good_frequent(params, obs, actions, before, advantages):
    ratio = jnp.exp(_log_chances(params, obs, actions)[1] - before)
    return jnp.maximum(-ratio * advantages, -jnp.clip(ratio, 0.8, 1.2) * advantages).mean()


@right("LOX617", NETWORK, f32(32, 4), i32(32), f32(32), f32(32), differentiate="params")
def loss_by_rewards_and_one_by_costs(params, obs, actions, rewards, costs):
    chosen = _log_chances(params, obs, actions)[1]
    return jnp.mean(chosen * jax.lax.stop_gradient(costs - rewards)) - jnp.mean(chosen * rewards)


# -- LOX618: targets by name -------------------------------------------------------------------------------------------


@wrong("LOX618", {"fixed": NETWORK, "learned": NETWORK}, f32(32, 4), differentiate="params")
def novelty_by_a_target_that_learns(params, obs):
    target = _network(params["fixed"], obs)
    return jnp.mean((_network(params["learned"], obs) - target) ** 2)


@right("LOX618", {"fixed": NETWORK, "learned": NETWORK}, f32(32, 4), f32(32, 4), differentiate="params")
def novelty_by_a_target_that_is_fixed(params, obs, other):
    target = jax.lax.stop_gradient(_network(params["fixed"], obs))
    views = _network(params["learned"], obs) - _network(params["learned"], other)
    return jnp.mean((_network(params["learned"], obs) - target) ** 2) + jnp.mean(views**2)


# -- LOX615: custom rules that are compared on demand ------------------------------------------------------------------


@jax.custom_vjp
def _signed_square(x):
    return x * jnp.abs(x)


_signed_square.defvjp(lambda x: (_signed_square(x), x), lambda x, bar: (2 * bar * x,))


@wrong("LOX615", f32(32), differentiate="x", check_rules=True)
def rule_that_is_wrong_for_negative_numbers(x):
    return _signed_square(x).sum()


def _newton(a):
    return jax.lax.fori_loop(0, 30, lambda _, x: 0.5 * (x + (1 + a**2) / x), jnp.ones_like(a))


@jax.custom_vjp
def _root(a):
    return _newton(a)


_root.defvjp(lambda a: (_newton(a), a), lambda a, bar: (bar * a / jnp.sqrt(1 + a**2),))


@right("LOX615", f32(32), differentiate="x", check_rules=True)
def rule_of_a_loop_by_its_fixed_point(x):
    return _root(x).sum()


@wrong("LOX611", ACTOR_CRITIC, f32(32, 4), f32(32, 4), i32(32), f32(32), differentiate="params")
def actor_critic_whose_targets_alone_are_stopped(params, obs, next_obs, actions, rewards):
    log_probability, values = _actor_critic(params, obs, actions)
    _, next_values = _actor_critic(params, next_obs, actions)
    advantages = jax.lax.stop_gradient(rewards + 0.99 * next_values) - values
    return -jnp.mean(log_probability * advantages) + 0.5 * jnp.mean(advantages**2)


@wrong("LOX611", ACTOR_CRITIC, f32(32, 4), i32(32), f32(32), differentiate="params")
def exponential_weights_that_are_differentiated(params, obs, actions, returns):
    log_probability, values = _actor_critic(params, obs, actions)
    weights = jnp.minimum(jnp.exp(returns - values), 20.0)
    return -jnp.mean(weights * log_probability)


@right("LOX611", ACTOR_CRITIC, f32(32, 4), i32(32), f32(32), differentiate="params")
def exponential_weights_that_are_stopped(params, obs, actions, returns):
    log_probability, values = _actor_critic(params, obs, actions)
    weights = jnp.minimum(jnp.exp(returns - values), 20.0)
    return -jnp.mean(jax.lax.stop_gradient(weights) * log_probability) + 0.5 * jnp.mean((returns - values) ** 2)


@wrong("LOX607", f32(16, 5), flags(16, 5), differentiate="logits")
def entropy_of_legal_actions(logits, legal):
    chances = jax.nn.softmax(jnp.where(legal, logits, -jnp.inf))
    return jnp.where(legal, chances * jnp.log(chances), 0.0).sum()


@right("LOX607", f32(16, 5), flags(16, 5), differentiate="logits")
def entropy_of_legal_actions_with_a_safe_logarithm(logits, legal):
    chances = jnp.where(legal, jax.nn.softmax(jnp.where(legal, logits, -jnp.inf)), 1.0)
    return (chances * jnp.log(chances)).sum()


@right("LOX606", f32(16, 8), f32(32, 16), differentiate="w")
def directions_of_vectors_that_are_not_finite_where_they_are_zero(w, x):
    along = x @ w
    along = along / jnp.linalg.norm(along, axis=-1, keepdims=True)
    return (along @ along.T).mean()


# -- LOX607: missing data ----------------------------------------------------------------------------------------------


@wrong("LOX607", f32(6), f32(40, 6), f32(40), differentiate="w")
def errors_of_prices_where_some_were_not_quoted(w, features, quoted):
    errors = jnp.square(jnp.exp(features @ w) - quoted)
    return jnp.where(jnp.isnan(quoted), 0.0, errors).mean()


@wrong("LOX607", f32(6), f32(40, 6), differentiate="scale")
def size_of_measurements_that_are_not_all_there(scale, measured):
    return jnp.where(jnp.isnan(measured), 0.0, measured * scale).sum()


@wrong("LOX607", f32(6), f32(40, 6), f32(40), differentiate="w")
def mean_of_errors_that_are_not_nan(w, features, quoted):
    return jnp.nanmean((features @ w - quoted) ** 2)


@right("LOX607", f32(6), f32(40, 6), f32(40), differentiate="w")
def errors_that_are_chosen_before_they_are_squared(w, features, quoted):
    missing = jnp.isnan(quoted)
    errors = jnp.where(missing, 0.0, features @ w - quoted)
    filled = features @ w - jnp.nan_to_num(quoted)
    return (
        jnp.square(errors).mean()
        + jnp.where(missing, 0.0, jnp.square(filled)).mean()
        + jnp.where(missing, 0.0, jnp.abs(features @ w - quoted)).sum()
    )


@right("LOX607", f32(6), f32(40, 6), f32(40), differentiate="w")
def errors_of_prices_that_were_quoted(w, features, quoted):
    missing = jnp.isnan(quoted)
    errors = jnp.square(jnp.exp(features @ w) - jnp.where(missing, 0.0, quoted))
    scale = jnp.where(missing, 0.0, jnp.square(quoted)).mean()
    return jnp.where(missing, 0.0, errors).mean() / scale


# The spread of what is drawn.

CODER = {"in": f32(12, 8), "out": f32(4, 12)}


def _coded(params, x, key):
    mean, log_var = jnp.split(x @ params["in"], 2, axis=-1)
    code = mean + jnp.exp(0.5 * log_var) * jax.random.normal(key, mean.shape)
    return mean, log_var, jnp.sum((jnp.tanh(code) @ params["out"] - x) ** 2, axis=-1)


@wrong("LOX620", CODER, f32(32, 12), jax.random.key(0), differentiate="params")
def coder_whose_divergence_is_subtracted(params, x, key):
    mean, log_var, error = _coded(params, x, key)
    divergence = 0.5 * jnp.sum(1.0 + log_var - mean**2 - jnp.exp(log_var), axis=-1)
    return jnp.mean(error + divergence)


@right("LOX620", CODER, f32(32, 12), jax.random.key(0), differentiate="params")
def coder_whose_divergence_is_added(params, x, key):
    mean, log_var, error = _coded(params, x, key)
    divergence = -0.5 * jnp.sum(1.0 + log_var - mean**2 - jnp.exp(log_var), axis=-1)
    return jnp.mean(error + 0.1 * divergence)


@wrong("LOX620", {"mean": f32(5), "log_scale": f32(5)}, f32(30, 5), f32(30), jax.random.key(0), differentiate="q")
def bound_whose_entropy_is_subtracted(q, x, y, key):
    w = q["mean"] + jnp.exp(q["log_scale"]) * jax.random.normal(key, (10, 5))
    fit = jax.scipy.stats.norm.logpdf(y, w @ x.T, 0.5).sum(axis=1) + jax.scipy.stats.norm.logpdf(w).sum(axis=1)
    return jnp.mean(fit) - q["log_scale"].sum()


@right("LOX620", {"mean": f32(5), "log_scale": f32(5)}, f32(30, 5), f32(30), jax.random.key(0), differentiate="q")
def bound_by_the_density_of_what_is_drawn(q, x, y, key):
    w = q["mean"] + jnp.exp(q["log_scale"]) * jax.random.normal(key, (10, 5))
    fit = jax.scipy.stats.norm.logpdf(y, w @ x.T, 0.5).sum(axis=1)
    own = jax.scipy.stats.norm.logpdf(w, q["mean"], jnp.exp(q["log_scale"])).sum(axis=1)
    return jnp.mean(own - fit)


@right(
    "LOX620", {"mean": f32(5, 3), "log_std": f32(5, 3)}, f32(30, 5), f32(3), jax.random.key(0), differentiate="policy"
)
def policy_that_is_kept_random(policy, x, goal, key):
    mean, log_std = x @ policy["mean"], jnp.clip(x @ policy["log_std"], -5.0, 2.0)
    action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    log_prob = jnp.sum(-0.5 * ((action - mean) / jnp.exp(log_std)) ** 2 - log_std, axis=-1)
    return jnp.mean(0.2 * log_prob + jnp.abs(action - goal).sum(axis=-1))


# -- LOX610, LOX619, LOX621: losses that change both sides of a comparison --------------------------------------------

ATOMS = jnp.linspace(-10.0, 10.0, 21)
CATEGORICAL = {"hidden": f32(4, 16), "bias": f32(16), "out": f32(16, 21)}


def _onto_atoms(probabilities, reward, discount):
    moved = jnp.clip(reward + discount * ATOMS, -10.0, 10.0)
    near = jnp.clip(1.0 - jnp.abs(moved[None, :] - ATOMS[:, None]), 0.0, 1.0)
    return near @ probabilities


@wrong("LOX610", CATEGORICAL, f32(32, 4), f32(32, 4), f32(32), f32(32), differentiate="params")
def categorical_values_whose_target_moves(params, obs, next_obs, reward, discount):
    def loss(obs, next_obs, reward, discount):
        target = _onto_atoms(jax.nn.softmax(_network(params, next_obs)), reward, discount)
        return -jnp.dot(target, jax.nn.log_softmax(_network(params, obs)))

    return jax.vmap(loss)(obs, next_obs, reward, discount).mean()


@right("LOX610", CATEGORICAL, f32(32, 4), f32(32, 4), f32(32), f32(32), differentiate="params")
def categorical_values_whose_target_is_stopped(params, obs, next_obs, reward, discount):
    def loss(obs, next_obs, reward, discount):
        target = _onto_atoms(jax.nn.softmax(_network(params, next_obs)), reward, discount)
        return -jnp.dot(jax.lax.stop_gradient(target), jax.nn.log_softmax(_network(params, obs)))

    return jax.vmap(loss)(obs, next_obs, reward, discount).mean()


@wrong("LOX610", CATEGORICAL, f32(10, 32, 4), f32(10, 32, 4), f32(10, 32), f32(10, 32))
def updates_by_a_divergence_from_values_that_move(params, obs, next_obs, reward, discount):
    def loss(params, obs, next_obs, reward, discount):
        later = jnp.exp(jax.nn.log_softmax(_network(params, next_obs)))
        target = jax.vmap(_onto_atoms)(later, reward, discount)
        return optax.kl_divergence(jax.nn.log_softmax(_network(params, obs)), target).mean()

    def update(params, batch):
        return _updated(params, jax.grad(loss)(params, *batch)), None

    return jax.lax.scan(update, params, (obs, next_obs, reward, discount))[0]


@right("LOX610", NETWORK, f32(32, 4), f32(32, 4), differentiate="params")
def divergence_of_an_example_from_its_neighbor(params, x, near):
    taught = jax.nn.softmax(_network(params, x))
    return optax.kl_divergence(jax.nn.log_softmax(_network(params, near)), taught).mean()


@right("LOX610", {"gate": f32(4, 3), "experts": f32(3, 4, 5)}, f32(32, 4), i32(32), f32(32), differentiate="params")
def experts_that_a_gate_weighs(params, x, labels, weight):
    gate = jax.nn.softmax(x @ params["gate"]) * weight[:, None]
    logits = jax.nn.log_softmax(jnp.einsum("bi,eij->bej", x, params["experts"]))
    chosen = jnp.take_along_axis(logits, labels[:, None, None], axis=-1)[..., 0]
    return -jnp.mean(jnp.sum(gate * chosen, axis=-1))


VIEWS = {"encoder": f32(4, 8), "bias": f32(8), "predictor": f32(8, 8), "decoder": f32(8, 4), "scale": f32()}


def _encoded(params, x):
    return jax.nn.relu(x @ params["encoder"] + params["bias"])


def _unit(x):
    return x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6)


@wrong("LOX619", VIEWS, f32(32, 4), f32(32, 4), differentiate="params")
def two_views_that_move_towards_each_other(params, one, other):
    predicted = _encoded(params, one) @ params["predictor"]
    return 2.0 - 2.0 * jnp.mean(jnp.sum(_unit(predicted) * _unit(_encoded(params, other)), axis=-1))


@right("LOX619", VIEWS, f32(32, 4), f32(32, 4), differentiate="params")
def two_views_of_which_one_is_stopped(params, one, other):
    predicted = _encoded(params, one) @ params["predictor"]
    target = jax.lax.stop_gradient(_encoded(params, other))
    return 2.0 - 2.0 * jnp.mean(jnp.sum(_unit(predicted) * _unit(target), axis=-1))


@wrong("LOX619", VIEWS, KEY, f32(32, 4), differentiate="params")
def two_noisy_views_whose_cosine_is_all(params, key, x):
    one, other = (x + 0.1 * jax.random.normal(each, x.shape) for each in jax.random.split(key))
    predicted = _encoded(params, one) @ params["predictor"]
    decay = sum(jnp.sum(each**2) for each in jax.tree.leaves(params))
    return -optax.cosine_similarity(predicted, _encoded(params, other), epsilon=1e-6).mean() + 1e-4 * decay


@wrong("LOX619", VIEWS, f32(20, 16, 4), f32(20, 16, 4))
def updates_of_latent_dynamics_alone(params, obs, next_obs):
    def loss(params, obs, next_obs):
        predicted = jnp.tanh(_encoded(params, obs) @ params["predictor"])
        return optax.l2_loss(predicted, _encoded(params, next_obs)).mean()

    def update(params, batch):
        return _updated(params, jax.grad(loss)(params, *batch)), None

    return jax.lax.scan(update, params, (obs, next_obs))[0]


@right("LOX619", VIEWS, f32(16, 4), f32(16, 4), differentiate="params")
def latent_dynamics_with_a_decoder(params, obs, next_obs):
    encoded = _encoded(params, obs)
    dynamics = jnp.mean((encoded @ params["predictor"] - _encoded(params, next_obs)) ** 2)
    return dynamics + jnp.mean((encoded @ params["decoder"] - obs) ** 2)


@right("LOX619", VIEWS, f32(16, 4), f32(16, 4), differentiate="params")
def predicted_views_among_all_of_a_batch(params, one, other):
    predicted = _unit(_encoded(params, one) @ params["predictor"])
    scores = predicted @ _unit(_encoded(params, other)).T
    return optax.softmax_cross_entropy_with_integer_labels(scores / 0.1, jnp.arange(16)).mean()


@right("LOX619", VIEWS, f32(16, 4), f32(16, 4), differentiate="params")
def two_views_that_are_kept_apart_by_their_variance(params, one, other):
    first, second = _encoded(params, one) @ params["predictor"], _encoded(params, other)
    spread = sum(jax.nn.relu(1.0 - jnp.sqrt(each.var(axis=0) + 1e-4)).mean() for each in (first, second))
    return jnp.mean((first - second) ** 2) + spread


@right("LOX619", NETWORK, f32(64, 4), differentiate="params")
def residual_of_an_equation_without_data(params, x):
    def field(at):
        return _network(params, at)[0]

    slope = jax.vmap(jax.grad(field))(x)[:, 0]
    return jnp.mean((slope - jax.vmap(field)(x) ** 2) ** 2)


MULTIPLIED = {"policy": NETWORK, "log_alpha": f32()}


def _log_probability(params, obs, actions):
    return jnp.take_along_axis(jax.nn.log_softmax(_network(params, obs)), actions[:, None], axis=1)[:, 0]


@wrong("LOX621", MULTIPLIED, f32(32, 4), i32(32), f32(32), differentiate="params")
def entropy_weight_whose_loss_moves_the_policy(params, obs, actions, q):
    log_probability = _log_probability(params["policy"], obs, actions)
    weight = jax.lax.stop_gradient(jnp.exp(params["log_alpha"]))
    policy_loss = (weight * log_probability - jnp.exp(log_probability) * q).mean()
    return policy_loss - (params["log_alpha"] * (log_probability - 2.0)).mean()


@right("LOX621", MULTIPLIED, f32(32, 4), i32(32), f32(32), differentiate="params")
def entropy_weight_whose_loss_moves_it_alone(params, obs, actions, q):
    log_probability = _log_probability(params["policy"], obs, actions)
    weight = jax.lax.stop_gradient(jnp.exp(params["log_alpha"]))
    policy_loss = (weight * log_probability - jnp.exp(log_probability) * q).mean()
    return policy_loss - (params["log_alpha"] * (jax.lax.stop_gradient(log_probability) - 2.0)).mean()


@wrong("LOX621", MULTIPLIED, NETWORK, f32(32, 4), f32(32, 3))
def updates_by_a_bound_that_moves_the_policy(params, old, obs, q):
    def loss(params):
        new, before = jax.nn.log_softmax(_network(params["policy"], obs)), jax.nn.softmax(_network(old, obs))
        distance = jnp.sum(before * (jnp.log(before + 1e-6) - new), axis=-1).mean()
        bound = jax.nn.softplus(params["log_alpha"])
        policy_loss = jax.lax.stop_gradient(bound) * distance - jnp.mean(jnp.sum(jnp.exp(new) * q, axis=-1))
        return policy_loss + bound * (0.01 - distance)

    return _updated(params, jax.grad(loss)(params))


@right("LOX621", MULTIPLIED, NETWORK, f32(32, 4), f32(32, 3))
def updates_by_a_bound_with_a_loss_of_its_own(params, old, obs, q):
    def loss(params):
        new, before = jax.nn.log_softmax(_network(params["policy"], obs)), jax.nn.softmax(_network(old, obs))
        distance = jnp.sum(before * (jnp.log(before + 1e-6) - new), axis=-1).mean()
        bound = jax.nn.softplus(params["log_alpha"])
        policy_loss = jax.lax.stop_gradient(bound) * distance - jnp.mean(jnp.sum(jnp.exp(new) * q, axis=-1))
        return policy_loss + bound * (0.01 - jax.lax.stop_gradient(distance))

    return _updated(params, jax.grad(loss)(params))


@right("LOX621", {**VIEWS, "other": f32()}, f32(32, 4), f32(32), f32(32, 4), differentiate="params")
def losses_weighed_by_learned_uncertainties(params, x, y, image):
    encoded = _encoded(params, x)
    regression = jnp.mean((encoded.sum(axis=-1) - y) ** 2)
    reconstruction = jnp.mean((encoded @ params["decoder"] - image) ** 2)
    losses = zip((regression, reconstruction), (params["scale"], params["other"]), strict=True)
    return sum(jnp.exp(-uncertainty) * loss + uncertainty for loss, uncertainty in losses)


@right("LOX607", f32(5), differentiate="x")
def curvature_along_a_direction(x):
    gradient = jax.grad(jax.scipy.special.logsumexp)
    return jnp.sum(jax.jvp(gradient, (x,), (x,))[1] ** 2)


# Values that are zero only by rounding, or in a branch that is not taken there.


@right("LOX606", f32(), f32(16), f32(16), differentiate="level")
def a_signal_and_noise_by_a_level_between_zero_and_one(level, signal, noise):
    kept = jax.nn.sigmoid(level)
    return jnp.mean((jnp.sqrt(kept) * signal + jnp.sqrt(1.0 - kept) * noise) ** 2)


@right("LOX606", f32(5, 3), differentiate="positions")
def springs_between_each_two_of_some_balls(positions):
    i, j = jnp.triu_indices(5, k=1)
    r = jnp.sqrt(jnp.sum((positions[i] - positions[j]) ** 2, axis=-1))
    return jnp.sum(jnp.where(r < 2.0, 1.0 / r**3, 0.0))


@right("LOX606", f32(), differentiate="depth")
def the_speed_of_what_flows_out_of_a_tank(depth):
    above = jnp.maximum(depth - 0.5, 0.0)
    return jax.lax.cond(above > 1e-6, lambda: jnp.sqrt(19.6 * above), lambda: 0.0 * above)


@right("LOX606", f32(4), differentiate="v")
def the_length_of_a_vector_that_is_not_zero(v):
    squared = jnp.sum(v**2)
    return jax.lax.cond(squared <= 0.0, lambda: 0.0, lambda: jnp.sqrt(squared))


@wrong("LOX606", f32(4), differentiate="v")
def the_length_of_a_vector_in_a_branch_that_takes_zero(v):
    squared = jnp.sum(v**2)
    return jax.lax.cond(squared >= 0.0, lambda: jnp.sqrt(squared), lambda: 0.0)


@wrong("LOX606", f32(), f32(), differentiate="y")
def a_root_in_a_branch_of_something_else(x, y):
    return jax.lax.cond(x > -1, lambda y: jnp.sqrt(y), lambda y: y, y**2)


@right("LOX606", {"w": f32(12, 32), "v": f32(32, 8)}, f32(16, 12), differentiate="params")
def directions_of_what_a_network_makes_of_sounds(params, sounds):
    made = jax.nn.relu(sounds @ params["w"]) @ params["v"]
    made = made / (jnp.linalg.norm(made, axis=-1, keepdims=True) + 1e-8)
    return jnp.mean(made @ made.T)


@wrong("LOX606", {"w": f32(12, 8)}, f32(16, 12), differentiate="params")
def directions_of_sounds_of_which_some_may_be_silent(params, sounds):
    made = sounds @ params["w"]
    made = made / (jnp.linalg.norm(made, axis=-1, keepdims=True) + 1e-8)
    return jnp.mean(made @ made.T)


# Rules that do not multiply by what they are given.


@jax.custom_vjp
def _hinge(margin):
    return jnp.maximum(1.0 - margin, 0.0)


_hinge.defvjp(lambda margin: (_hinge(margin), margin), lambda margin, bar: (jnp.where(margin < 1.0, -1.0, 0.0),))


@wrong("LOX608", f32(6), f32(32, 6), f32(32), differentiate="w")
def a_loss_whose_rule_leaves_out_what_comes_after_it(w, x, y):
    return _hinge(y * (x @ w)).mean()


@jax.custom_vjp
def _slow_hinge(margin):
    return jnp.maximum(1.0 - margin, 0.0)


_slow_hinge.defvjp(
    lambda margin: (_slow_hinge(margin), margin),
    lambda margin, bar: (jnp.clip(bar, -0.1, 0.1) * jnp.where(margin < 1.0, -1.0, 0.0),),
)


@right("LOX608", f32(6), f32(32, 6), f32(32), differentiate="w")
def a_loss_whose_rule_clips_what_comes_after_it(w, x, y):
    return _slow_hinge(y * (x @ w)).mean()


def _energy_of_pairs(places, i, j):
    apart = jnp.sqrt(((places[i] - places[j]) ** 2).sum(-1))
    return (1.0 / (apart + 0.1)).sum()


@right("LOX606", f32(6, 3), differentiate="places")
def balls_that_repel_each_other(places):
    return _energy_of_pairs(places, *jnp.triu_indices(6, k=1))


@wrong("LOX606", f32(6, 3), i32(15), i32(15), differentiate="places")
def balls_that_may_repel_themselves(places, i, j):
    return _energy_of_pairs(places, i, j)


# Two views of one thing.


def _views(key, x):
    return [x + 0.1 * jax.random.normal(each, x.shape) for each in jax.random.split(key)]


def _direction(x):
    return x / jnp.sqrt(jnp.sum(x**2, axis=-1, keepdims=True) + 1e-6)


_TWINS = {"encoder": f32(8, 6), "predictor": f32(6, 6)}


@wrong("LOX624", _TWINS, jax.random.key(0), f32(16, 8), differentiate="params")
def views_of_which_one_target_moves(params, key, x):
    codes = [jnp.tanh(view @ params["encoder"]) for view in _views(key, x)]
    guesses = [_direction(code @ params["predictor"]) for code in codes]
    one = jnp.sum(guesses[0] * _direction(codes[1]), axis=-1)
    other = jnp.sum(guesses[1] * _direction(jax.lax.stop_gradient(codes[0])), axis=-1)
    return -jnp.mean(one + other)


@right("LOX624", _TWINS, jax.random.key(0), f32(16, 8), differentiate="params")
def views_of_which_no_target_moves(params, key, x):
    codes = [jnp.tanh(view @ params["encoder"]) for view in _views(key, x)]
    guesses = [_direction(code @ params["predictor"]) for code in codes]
    one = jnp.sum(guesses[0] * _direction(jax.lax.stop_gradient(codes[1])), axis=-1)
    other = jnp.sum(guesses[1] * _direction(jax.lax.stop_gradient(codes[0])), axis=-1)
    return -jnp.mean(one + other)


@right("LOX624", _TWINS, jax.random.key(0), f32(16, 8), differentiate="params")
def views_with_a_report_of_how_alike_they_are(params, key, x):
    codes = [jnp.tanh(view @ params["encoder"]) for view in _views(key, x)]
    guess = _direction(codes[0] @ params["predictor"])
    target = _direction(jax.lax.stop_gradient(codes[1]))
    return -jnp.mean(jnp.sum(guess * target, axis=-1)), jnp.sum(guess * _direction(codes[1]), axis=-1).mean()


@right("LOX624", _TWINS, f32(16, 8), f32(16, 6), differentiate="params")
def a_code_that_two_losses_move_apart(params, x, targets):
    code = jnp.tanh(x @ params["encoder"])
    guess = code @ params["predictor"]
    return jnp.mean((guess - jax.lax.stop_gradient(code)) ** 2) + jnp.mean((guess - targets) ** 2)


_QUANTIZER = {"in": f32(8, 4), "codes": f32(32, 4), "out": f32(4, 8)}


@wrong("LOX614", _QUANTIZER, f32(64, 8), differentiate="params")
def codes_with_a_loss_of_the_straight_through_value(params, x):
    encoded = x @ params["in"]
    code = _quantized(encoded, params["codes"])
    quantised = encoded + jax.lax.stop_gradient(code - encoded)
    codebook_loss = jnp.mean((quantised - jax.lax.stop_gradient(encoded)) ** 2)
    commitment = jnp.mean((jax.lax.stop_gradient(quantised) - encoded) ** 2)
    return jnp.mean((quantised @ params["out"] - x) ** 2) + codebook_loss + 0.25 * commitment


@right("LOX614", _QUANTIZER, f32(64, 8), differentiate="params")
def codes_with_a_loss_of_what_was_looked_up(params, x):
    encoded = x @ params["in"]
    code = _quantized(encoded, params["codes"])
    quantised = encoded + jax.lax.stop_gradient(code - encoded)
    codebook_loss = jnp.mean((code - jax.lax.stop_gradient(encoded)) ** 2)
    commitment = jnp.mean((jax.lax.stop_gradient(quantised) - encoded) ** 2)
    return jnp.mean((quantised @ params["out"] - x) ** 2) + codebook_loss + 0.25 * commitment


@right("LOX614", _QUANTIZER, f32(64, 8), differentiate="params")
def codes_with_a_report_of_the_distance_of_the_straight_through_value(params, x):
    encoded = x @ params["in"]
    code = _quantized(encoded, params["codes"])
    quantised = encoded + jax.lax.stop_gradient(code - encoded)
    moved = jnp.mean((quantised - jax.lax.stop_gradient(encoded)) ** 2)
    learned = jnp.mean(optax.l2_loss(code, jax.lax.stop_gradient(encoded)))
    commitment = jnp.mean((encoded - jax.lax.stop_gradient(code)) ** 2)
    return jnp.mean((quantised @ params["out"] - x) ** 2) + learned + 0.25 * commitment, moved
