"""Dtypes: where precision or range is lost."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax

from corpus import f32, flags, i32, right, wrong

KEY = jax.eval_shape(lambda: jax.random.key(0))


def _of(dtype, *shape):
    return jax.ShapeDtypeStruct(shape, dtype)


def image(*shape):
    return _of(jnp.uint8, *shape)


# -- LOX800: arguments of 64 bits ----------------------------------------------------------------------------------

SECONDS = 1.7e9 + 0.05 * np.arange(200)
USERS = 9_000_000_000 + np.arange(64)


@wrong("LOX800", SECONDS, f32(200))
def speed_by_unix_timestamps(times, positions):
    return jnp.diff(positions) / jnp.diff(times)


@right("LOX800", SECONDS - SECONDS[0], f32(200))
def speed_by_seconds_since_the_start(times, positions):
    return jnp.diff(positions) / jnp.diff(times)


@wrong("LOX800", {"user": USERS, "rating": np.linspace(1.0, 5.0, 64)})
def mean_rating_of_users_with_long_ids(batch):
    same = batch["user"][:, None] == batch["user"][None, :]
    return (same * batch["rating"]).sum(1) / same.sum(1)


@right("LOX800", {"user": np.arange(64), "rating": np.linspace(1.0, 5.0, 64)})
def mean_rating_of_numbered_users(batch):
    same = batch["user"][:, None] == batch["user"][None, :]
    return (same * batch["rating"]).sum(1) / same.sum(1)


@wrong("LOX800", np.array([1e-3, 2.5, 1e300]))
def logarithm_of_likelihoods_of_long_sequences(likelihoods):
    return jnp.log(likelihoods).sum()


@right("LOX800", np.random.default_rng(0).normal(size=(32, 4)), np.array([0.5, 0.25, 0.125, 1e-30]))
def a_layer_on_observations_of_numpy(obs, w):
    return jnp.tanh(obs @ w)


# -- LOX801: integers that wrap around -----------------------------------------------------------------------------


@wrong("LOX801", image(32, 32, 3), image(32, 32, 3))
def average_of_two_frames(frame, last_frame):
    return (frame + last_frame) // 2


@right("LOX801", image(32, 32, 3), image(32, 32, 3))
def average_of_two_frames_in_more_bits(frame, last_frame):
    return ((frame.astype(jnp.uint16) + last_frame) // 2).astype(jnp.uint8)


@wrong("LOX801", image(4, 32, 32))
def motion_between_frames(frames):
    return jax.vmap(lambda now, before: jnp.abs(now - before))(frames[1:], frames[:-1]).mean()


@right("LOX801", image(4, 32, 32))
def motion_between_frames_as_floats(frames):
    frames = frames.astype(jnp.float32) / 255
    return jnp.abs(frames[1:] - frames[:-1]).mean()


@right("LOX801", image(32, 32), image(32, 32))
def motion_between_frames_that_are_ordered_first(now, before):
    larger = jnp.maximum(now, before) - jnp.minimum(now, before)
    return larger, jnp.where(now > before, now - before, before - now)


@wrong("LOX801", image(8, 16, 16), f32())
def brighter_images(images, chance):
    @jax.jit
    def brighten(image):
        return image + 60

    return jax.vmap(lambda image: jnp.where(chance > 0.5, brighten(image), image))(images)


@right("LOX801", image(8, 16, 16), f32())
def negatives_of_images(images, chance):
    return jax.vmap(lambda image: jnp.where(chance > 0.5, 255 - image, image))(images)


@wrong("LOX801", f32(60_000, 8))
def keys_of_all_pairs_of_particles(positions):
    number = jnp.arange(len(positions))
    nearest = jnp.argmin(positions @ positions[:5].T, axis=1)
    return number * len(positions) + nearest


@right("LOX801", f32(600, 8))
def keys_of_pairs_of_a_few_particles(positions):
    number = jnp.arange(len(positions))
    nearest = jnp.argmin(positions @ positions[:5].T, axis=1)
    return number * len(positions) + nearest


@wrong("LOX801", flags(1000, 8))
def number_of_the_episode_in_8_bits(dones):
    return jnp.cumsum(dones.astype(jnp.int8), axis=0)


@right("LOX801", flags(1000, 8), _of(jnp.uint8, 1000, 8))
def number_of_the_episode(dones, truncations):
    discounts = 1 - truncations
    return jnp.cumsum(dones, axis=0), discounts


@wrong("LOX801", _of(jnp.int8, 64, 512), _of(jnp.int8, 512, 32))
def a_layer_of_integers_in_8_bits(x, w):
    return x @ w


@wrong("LOX801", f32(1000))
def a_count_of_steps_in_8_bits(rewards):
    def step(count, reward):
        return count + jnp.int8(1), count * reward

    return jax.lax.scan(step, jnp.int8(0), rewards)[1]


@right("LOX801", _of(jnp.int8, 64, 512), _of(jnp.int8, 512, 32), f32(1000), flags(1000))
def a_layer_of_integers_and_counts_that_begin_again(x, w, rewards, dones):
    def step(carry, at):
        (count, place), (reward, done) = carry, at
        return (jnp.where(done, 0, count + 1).astype(jnp.int8), (place + 1) % 100), count * reward

    counts = jax.lax.scan(step, (jnp.int8(0), jnp.int8(0)), (rewards, dones))[1]
    return counts, jnp.matmul(x, w, preferred_element_type=jnp.int32)


@right("LOX801", jax.random.key(0), _of(jnp.int8, 9, 9), i32(4))
def random_moves_on_a_board_of_small_integers(key, board, moves):
    key_of_place, key_of_stones = jax.random.split(key)
    row, column = jnp.divmod(jax.random.randint(key_of_place, (), 0, 100_000) % 81, 9)
    stones = jax.random.randint(key_of_stones, (9,), 0, 200, dtype=jnp.uint8)
    hashed = (jnp.arange(81, dtype=jnp.uint32) * jnp.uint32(2654435761)).sum()
    return board.at[row, column].add(jnp.int8(1)) * -board, stones[moves], hashed


@right("LOX801", KEY, f32(10))
def neighbours_of_cells_that_are_drawn_by_weight(key, weights):
    return jax.random.choice(key, jnp.arange(10), (3,), p=weights / weights.sum()) - 1


@right("LOX801", i32(3))
def distances_to_entries_that_may_be_missing(places):
    return jnp.abs(jnp.arange(10).at[places].get(mode="fill") - 5)


@wrong("LOX801", _of(jnp.int8, 16, 64), _of(jnp.int8, 64, 8))
def layer_of_eight_bits(x, w):
    return (x @ w).astype(jnp.float32) * 0.01


@right("LOX801", _of(jnp.int8, 16, 64), _of(jnp.int8, 64, 8), flags(16, 64))
def layer_of_eight_bits_that_adds_up_in_more(x, w, chosen):
    counts = jnp.dot(chosen.astype(jnp.int8), jnp.ones((64, 8), jnp.int8))
    return jnp.dot(x, w, preferred_element_type=jnp.int32).astype(jnp.float32) * 0.01 + counts


@wrong("LOX801", i32(500), i32(500))
def visits_of_cells_by_one_number(rows, columns):
    cells = jnp.sort(rows * 65_536 + columns)
    return cells // 65_536, cells % 65_536


@right("LOX801", i32(500), i32(500))
def visits_of_cells_of_a_small_map_by_one_number(rows, columns):
    cells = jnp.sort(rows * 4096 + columns)
    hashed = rows * 73_856_093 + columns * 19_349_663
    return cells // 4096, cells % 4096, hashed % 1024


# -- LOX802: conversions to integers -------------------------------------------------------------------------------


@wrong("LOX802", f32(64, 512))
def actions_stored_in_8_bits(logits):
    return jnp.argmax(logits, axis=-1).astype(jnp.int8)


@right("LOX802", f32(64, 18))
def few_actions_stored_in_8_bits(logits):
    return jnp.argmax(logits, axis=-1).astype(jnp.int8)


@wrong("LOX802", f32(28, 28))
def image_of_probabilities(logits):
    return (jax.nn.sigmoid(logits) * 256).astype(jnp.uint8)


@right("LOX802", f32(28, 28))
def image_of_probabilities_up_to_255(logits):
    return (jax.nn.sigmoid(logits) * 255).round().astype(jnp.uint8)


@wrong("LOX802", f32(100))
def audio_of_a_generator(x):
    return jnp.int16(jnp.tanh(x) * 2**15)


@right("LOX802", f32(100))
def clipped_audio_of_a_generator(x):
    return jnp.int16(jnp.tanh(x) * (2**15 - 1))


# -- LOX803: integers as floats ------------------------------------------------------------------------------------


@wrong("LOX803", _of(jnp.bfloat16, 4096, 64))
def positions_of_a_long_context_in_bfloat16(queries):
    frequencies = 10000 ** (-jnp.arange(32, dtype=jnp.bfloat16) / 32)
    angles = jnp.arange(queries.shape[0], dtype=jnp.bfloat16)[:, None] * frequencies
    one, other = jnp.split(queries, 2, axis=-1)
    return jnp.concatenate(
        [one * jnp.cos(angles) - other * jnp.sin(angles), other * jnp.cos(angles) + one * jnp.sin(angles)], axis=-1
    )


@right("LOX803", _of(jnp.bfloat16, 4096, 64))
def positions_of_a_long_context_in_float32(queries):
    frequencies = 10000 ** (-jnp.arange(32) / 32)
    angles = (jnp.arange(queries.shape[0])[:, None] * frequencies).astype(jnp.float32)
    cos, sin = jnp.cos(angles).astype(queries.dtype), jnp.sin(angles).astype(queries.dtype)
    one, other = jnp.split(queries, 2, axis=-1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], axis=-1)


@wrong("LOX803", f32(8))
def spectrum_at_samples_of_a_long_recording(frequencies):
    sample = jnp.arange(50_000_000)
    return jax.vmap(lambda frequency: jnp.sin(frequency * sample.astype(jnp.float32)).mean())(frequencies)


@right("LOX803", f32(8), i32(), i32(16))
def a_learning_rate_by_the_number_of_the_step(params, step, counts):
    rate = 1e-3 / jnp.sqrt(1.0 + step)
    return params - rate * counts.mean() * jnp.arange(8).astype(jnp.bfloat16)


@wrong("LOX803", _of(jnp.float16, 10, 4), _of(jnp.float16, 4, 5000))
def class_with_the_highest_score_as_a_float(features, weights):
    best = jnp.argmax(features @ weights, axis=-1)
    return jnp.stack([best.astype(features.dtype), features.max(-1)])


@right("LOX803", _of(jnp.float16, 10, 4), _of(jnp.float16, 4, 1000))
def class_of_a_few_with_the_highest_score_as_a_float(features, weights):
    best = jnp.argmax(features @ weights, axis=-1)
    return jnp.stack([best.astype(features.dtype), features.max(-1)])


# -- LOX804: floats that become infinite ---------------------------------------------------------------------------


@wrong("LOX804", image(64, 64), _of(jnp.float16, 64, 64))
def energy_of_an_image_in_float16(picture, noise):
    pixels = picture.astype(jnp.float16) * 2
    return (pixels**2).mean() + noise.mean()


@right("LOX804", image(64, 64), _of(jnp.float16, 64, 64))
def energy_of_a_scaled_image_in_float16(picture, noise):
    pixels = picture.astype(jnp.float16) / 255
    return (pixels**2).mean() + noise.mean()


@wrong("LOX804", _of(jnp.float16, 16), _of(jnp.float16, 16), _of(jnp.float16, 16))
def clipped_ratio_of_probabilities_in_float16(log_probs, old_log_probs, advantages):
    def loss(log_prob, old, advantage):
        return jnp.exp(jnp.clip(log_prob - old, -20, 20)) * advantage

    return jax.vmap(loss)(log_probs, old_log_probs, advantages).mean()


@right("LOX804", _of(jnp.float16, 16), _of(jnp.float16, 16), _of(jnp.float16, 16))
def closely_clipped_ratio_of_probabilities_in_float16(log_probs, old_log_probs, advantages):
    def loss(log_prob, old, advantage):
        return jnp.exp(jnp.clip(log_prob - old, -10, 10)) * advantage

    return jax.vmap(loss)(log_probs, old_log_probs, advantages).mean()


@wrong("LOX804", image(512, 512), jax.random.key(0))
def total_of_an_image_in_float16(picture, key):
    pixels = picture.astype(jnp.float16)
    return jax.random.normal(key) * pixels.sum()


@right("LOX804", image(512, 512), f32(4, 4), flags(4, 4))
def mean_of_an_image_in_float16_and_masked_scores(picture, scores, mask):
    capped = 50 * jnp.tanh(scores / 50) + jnp.where(mask, 0, jnp.finfo(jnp.float32).min)
    bias = jnp.where(mask, 0.0, -1e9).astype(jnp.float16)
    return picture.astype(jnp.float16).mean(), jax.nn.softmax(capped), bias


# -- LOX805: running sums ------------------------------------------------------------------------------------------


@wrong("LOX805", f32(1000, 8))
def return_of_an_episode_in_bfloat16(rewards):
    def step(total, reward):
        return total + reward.astype(jnp.bfloat16), total

    return jax.lax.scan(step, jnp.zeros(8, jnp.bfloat16), rewards)[0]


@right("LOX805", f32(1000, 8))
def return_of_an_episode_in_float32(rewards):
    def step(carry, reward):
        total, average = carry
        average = 0.9 * average + reward.astype(jnp.bfloat16)
        return (total + reward, average.astype(jnp.bfloat16)), total

    return jax.lax.scan(step, (jnp.zeros(8), jnp.zeros(8, jnp.bfloat16)), rewards)[0]


@wrong("LOX805", f32(500, 4), flags(500, 4))
def return_since_the_last_reset_in_float16(rewards, dones):
    @jax.jit
    def add(total, reward):
        return (total.astype(jnp.float32) + reward).astype(jnp.float16)

    def step(total, at):
        reward, done = at
        return jnp.where(done, 0, add(total, reward)).astype(jnp.float16), total

    return jax.lax.scan(step, jnp.zeros(4, jnp.float16), (rewards, dones))[1]


@right("LOX805", _of(jnp.bfloat16, 24, 8, 8), _of(jnp.bfloat16, 4, 8))
def residual_stream_over_a_few_layers(weights, x):
    return jax.lax.scan(lambda x, w: (x + jax.nn.relu(x @ w), None), x, weights)[0]


@wrong("LOX805", _of(jnp.bfloat16, 4, 32000), f32())
def nucleus_of_a_vocabulary_in_bfloat16(logits, top_p):
    probs = jnp.sort(jax.nn.softmax(logits), descending=True)
    return (jnp.cumsum(probs, axis=-1) < top_p).sum(-1)


@right("LOX805", _of(jnp.bfloat16, 4, 32000), f32())
def nucleus_of_a_vocabulary_in_float32(logits, top_p):
    probs = jnp.sort(jax.nn.softmax(logits), descending=True)
    return (jnp.cumsum(probs, axis=-1, dtype=jnp.float32) < top_p).sum(-1)


@wrong("LOX805", _of(jnp.bfloat16, 8), f32(16, 8), f32(16))
def descent_on_weights_in_bfloat16(weights, x, y):
    def loss(weights):
        return jnp.mean((x @ weights.astype(jnp.float32) - y) ** 2)

    def step(_, weights):
        return weights - (1e-3 * jax.grad(loss)(weights)).astype(jnp.bfloat16)

    return jax.lax.fori_loop(0, 2000, step, weights)


@right("LOX805", _of(jnp.bfloat16, 8), f32(16, 8), f32(16))
def descent_on_a_copy_of_the_weights_in_float32(weights, x, y):
    def loss(weights):
        return jnp.mean((x @ weights - y) ** 2)

    def step(_, weights):
        return weights - 1e-3 * jax.grad(loss)(weights)

    return jax.lax.fori_loop(0, 2000, step, weights.astype(jnp.float32)).astype(jnp.bfloat16)


@wrong("LOX805", f32(3))
def time_of_a_long_simulation(state):
    def step(_, at):
        state, time = at
        return state + 1e-3 * jnp.sin(time * state), time + 1e-3

    return jax.lax.fori_loop(0, 50_000_000, step, (state, 0.0))


@right("LOX805", f32(3))
def time_of_a_long_simulation_by_the_number_of_the_step(state):
    def step(count, state):
        return 0.999 * state + 1e-3 * jnp.sin(1e-3 * count * state)

    return jax.lax.fori_loop(0, 50_000_000, step, state)


@wrong("LOX805", _of(jnp.bfloat16, 8192, 32), i32(8192))
def load_of_experts_by_tokens(tokens, experts):
    return jax.ops.segment_sum(tokens, experts, num_segments=8) / len(tokens)


@right("LOX805", _of(jnp.bfloat16, 8192, 32), i32(8192))
def load_of_experts_by_tokens_in_float32(tokens, experts):
    total = jax.ops.segment_sum(tokens.astype(jnp.float32), experts, num_segments=8)
    return (total / len(tokens)).astype(tokens.dtype)


@right("LOX805", _of(jnp.bfloat16, 8192, 32), i32(8192))
def messages_between_the_nodes_of_a_graph(messages, receivers):
    return jax.ops.segment_sum(messages, receivers, num_segments=1024)


@wrong("LOX805", _of(jnp.bfloat16, 2, 64), i32(16, 512), f32(64))
def gradient_of_an_embedding_of_two_kinds_of_tokens(table, kinds, w):
    def loss(table):
        return jnp.mean(table[kinds].astype(jnp.float32) @ w)

    return jax.grad(loss)(table)


@right("LOX805", f32(2, 64), i32(16, 512), f32(64))
def gradient_of_an_embedding_in_float32(table, kinds, w):
    def loss(table):
        return jnp.mean(table[kinds] @ w)

    return jax.grad(loss)(table)


@wrong("LOX805", _of(jnp.bfloat16, 4, 32, 32, 8))
def pooling_over_a_whole_image_by_windows(image):
    window = (1, 32, 32, 1)
    return jax.lax.reduce_window(image, 0.0, jax.lax.add, window, window, "VALID") / 1024


@right("LOX805", _of(jnp.bfloat16, 4, 32, 32, 8))
def pooling_over_small_windows_and_then_by_the_mean(image):
    window = (1, 4, 4, 1)
    pooled = jax.lax.reduce_window(image, 0.0, jax.lax.add, window, window, "VALID") / 16
    return pooled.mean((1, 2)), image.sum((1, 2))


@wrong("LOX805", _of(jnp.bfloat16, 8), _of(jnp.bfloat16, 1000, 8))
def gradient_of_weights_that_all_steps_share(w, xs):
    def loss(w):
        def step(h, x):
            h = jnp.tanh(w * h + x)
            return h, h

        return jax.lax.scan(step, jnp.zeros_like(w), xs)[1].astype(jnp.float32).mean()

    return jax.grad(loss)(w)


@right("LOX805", f32(8), _of(jnp.bfloat16, 1000, 8))
def gradient_of_weights_that_each_step_converts(w, xs):
    def loss(w):
        def step(h, x):
            h = jnp.tanh(w.astype(jnp.bfloat16) * h + x)
            return h, h

        return jax.lax.scan(step, jnp.zeros(8, jnp.bfloat16), xs)[1].astype(jnp.float32).mean()

    return jax.grad(loss)(w)


# -- LOX807: scalars that widen --------------------------------------------------------------------------------------

HEADS = _of(jnp.bfloat16, 4, 16, 8)


@wrong("LOX807", HEADS, HEADS)
def attention_scores_by_a_scale_of_numpy(queries, keys):
    return jnp.einsum("bqd,bkd->bqk", queries, keys) / np.sqrt(queries.shape[-1])


@right("LOX807", HEADS, HEADS)
def attention_scores_by_a_scale_of_python(queries, keys):
    return jnp.einsum("bqd,bkd->bqk", queries, keys) / math.sqrt(queries.shape[-1])


@wrong("LOX807", HEADS, flags(4, 16, 8))
def scores_that_are_masked_with_the_least_float(scores, mask):
    return jnp.where(mask, scores, jnp.finfo(jnp.float32).min)


@right("LOX807", HEADS, flags(4, 16, 8))
def scores_that_are_masked_with_the_least_float_of_their_type(scores, mask):
    return jnp.where(mask, scores, jnp.finfo(scores.dtype).min)


@wrong("LOX807", _of(jnp.float16, 8, 16), _of(jnp.float16, 16))
def a_layer_with_a_temperature_of_jax(x, w):
    temperature = jnp.float32(0.7)
    return jax.nn.softmax(jax.jit(lambda x: x * w * temperature)(x))


@right("LOX807", _of(jnp.float16, 8, 16), f32())
def a_layer_with_a_temperature_that_is_learned(x, temperature):
    return jax.nn.softmax(x * temperature)


@wrong("LOX807", _of(jnp.bfloat16, 100, 8))
def a_filter_with_a_rate_of_numpy(xs):
    rate = np.float64(0.9)

    def step(last, x):
        return last, x - rate * last

    return jax.lax.scan(step, xs[0], xs)[1]


@right("LOX807", HEADS)
def a_normalization_in_float32_on_purpose(x):
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + np.float32(1e-6))
    return (scaled * np.float32(0.5)).astype(x.dtype)


@right("LOX807", HEADS)
def a_scale_of_numpy_whose_result_is_converted_back(x):
    return (x * np.float32(0.125)).astype(x.dtype)


@right("LOX807", HEADS, f32(8, 8), f32(8))
def activations_in_bfloat16_and_weights_in_float32(x, w, b):
    return jnp.where(x > np.float32(0.5), x, 0) @ w + b


@right("LOX807", HEADS)
def a_scale_by_a_root_of_a_number_of_python(x):
    return x / jnp.sqrt(x.shape[-1]) + 2 * jnp.pi


# -- LOX808: infinities that become NaN ----------------------------------------------------------------------------


@wrong("LOX808", f32(8, 4), flags(8, 4))
def entropy_of_a_policy_with_forbidden_actions(logits, allowed):
    log_probs = jax.nn.log_softmax(jnp.where(allowed, logits, -jnp.inf))
    return -(jnp.exp(log_probs) * log_probs).sum(axis=-1)


@wrong("LOX808", f32(4, 8), flags(4, 8))
def scores_with_a_mask_times_infinity(scores, mask):
    return jax.nn.softmax(scores + (1 - mask) * -jnp.inf)


@wrong("LOX808", i32(100))
def entropy_of_the_frequencies_of_tokens(tokens):
    frequencies = jnp.bincount(tokens, length=16) / 100
    return -(frequencies * jnp.log(frequencies)).sum()


@wrong("LOX808", f32(8, 4), flags(8, 4), i32(8))
def cross_entropy_of_allowed_classes_by_labels_in_one_hot(logits, allowed, labels):
    return optax.softmax_cross_entropy(jnp.where(allowed, logits, -jnp.inf), jax.nn.one_hot(labels, 4)).mean()


@right("LOX808", f32(8, 4), flags(8, 4), i32(100), KEY)
def infinities_that_meet_no_zero(logits, allowed, tokens, key):
    masked = jnp.where(allowed, logits, -jnp.inf)
    log_probs, probs = jax.nn.log_softmax(masked), jax.nn.softmax(masked)
    frequencies = jnp.bincount(tokens, length=16) / 100
    entropy = -(probs * jnp.where(allowed, log_probs, 0.0)).sum(), jnp.where(allowed, probs * log_probs, 0.0).sum()
    certain = jnp.where(frequencies > 0, frequencies * jnp.log(frequencies), 0.0), jax.scipy.special.entr(frequencies)
    return entropy, certain, jax.random.categorical(key, masked), masked.max(-1) - probs.max(-1)


# -- LOX809: rows of logits that are all masked --------------------------------------------------------------------


@wrong("LOX809", f32(2, 6, 6), flags(2, 6))
def attention_with_a_mask_of_queries_and_keys(scores, valid):
    mask = valid[:, :, None] & valid[:, None, :]
    return jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)


@wrong("LOX809", f32(2, 6, 6))
def attention_to_what_was_before_without_the_first(scores):
    before = jnp.tril(jnp.ones((6, 6), bool), k=-1)
    return jax.nn.softmax(jnp.where(before, scores, -jnp.inf), axis=-1)


@right("LOX809", f32(2, 6, 6), flags(2, 6))
def attention_whose_masked_rows_are_left_out(scores, valid):
    mask = valid[:, :, None] & valid[:, None, :]
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    finite = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    keys = jax.nn.softmax(jnp.where(valid[:, None, :], scores, -jnp.inf), axis=-1)
    return jnp.where(valid[:, :, None], weights, 0.0), finite, keys


# -- LOX810: softmax -----------------------------------------------------------------------------------------------


@wrong("LOX810", f32(8, 16), f32(16, 4))
def attention_weights_by_hand(queries, keys):
    scores = queries @ keys / 4.0
    return jnp.exp(scores) / jnp.sum(jnp.exp(scores), axis=-1, keepdims=True)


@right("LOX810", f32(8, 16), f32(16, 4))
def attention_weights_by_hand_without_the_largest(queries, keys):
    scores = queries @ keys / 4.0
    scores = scores - jnp.max(scores, axis=-1, keepdims=True)
    return jnp.exp(scores) / jnp.sum(jnp.exp(scores), axis=-1, keepdims=True)


@wrong("LOX810", f32(8, 4), f32(8, 4))
def policy_gradient_through_a_softmax_by_hand(logits, advantages):
    @jax.jit
    def softmax(logits):
        powers = jnp.exp(logits)
        return powers / (powers.sum() + 1e-8)

    return jax.grad(lambda logits: (jax.vmap(softmax)(logits) * advantages).sum())(logits)


@right("LOX810", f32(8, 4), f32(8, 4))
def policy_gradient_through_a_softmax_of_shifted_logits(logits, advantages):
    @jax.jit
    def softmax(logits):
        powers = jnp.exp(logits)
        return powers / (powers.sum() + 1e-8)

    def loss(logits):
        shifted = (logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True))) / 0.5
        return (jax.vmap(softmax)(shifted) * advantages).sum()

    return jax.grad(loss)(logits)


@right("LOX810", f32(8, 16), f32())
def weights_of_logits_below_the_second_largest(logits, temperature):
    second = jax.lax.top_k(logits, 2)[0][:, 1:]
    powers = jnp.exp(jnp.where(logits > second, 0.0, (logits - second) / temperature))
    return powers / powers.sum(axis=1, keepdims=True)


@right("LOX810", f32(10, 3), f32(3), f32(10))
def weights_of_a_kernel(points, center, logits):
    near = jnp.exp(-jnp.sum((points - center) ** 2, axis=-1))
    capped = jnp.exp(10 * jnp.tanh(logits))
    return near / near.sum() + capped / capped.sum() + jax.nn.softmax(logits, where=logits > 0)


# -- LOX811: logarithms of exponentials ----------------------------------------------------------------------------


@wrong("LOX811", f32(8, 10), i32(8))
def cross_entropy_by_hand(logits, labels):
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (jnp.log(jnp.exp(logits).sum(axis=1)) - chosen).mean()


@right("LOX811", f32(8, 10), i32(8))
def cross_entropy_by_logsumexp(logits, labels):
    chosen = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - chosen).mean()


@wrong("LOX811", f32(8, 3), f32(3, 2))
def scale_of_a_policy_by_a_softplus_by_hand(obs, weights):
    return jax.vmap(lambda obs: jnp.log(1 + jnp.exp(obs @ weights)))(obs) + 1e-3


@right("LOX811", f32(8, 3), f32(3, 2))
def scale_of_a_policy_by_softplus(obs, weights):
    return jax.vmap(lambda obs: jax.nn.softplus(obs @ weights))(obs) + 1e-3


@wrong("LOX811", f32(8), flags(8))
def logistic_loss_by_hand(logits, labels):
    signs = jnp.where(labels, 1.0, -1.0)
    return jnp.log1p(jnp.exp(-signs * logits)).mean()


@right("LOX811", f32(8), flags(8))
def logistic_loss_by_hand_without_overflow(logits, labels):
    signs = jnp.where(labels, 1.0, -1.0)
    margin = signs * logits
    softplus = jnp.where(logits > 20, logits, jnp.log1p(jnp.exp(logits)))
    return (jnp.maximum(-margin, 0) + jnp.log1p(jnp.exp(-jnp.abs(margin)))).mean() + softplus.mean()


def _cross_entropy(logits, labels, toward):
    is_positive = logits >= jnp.zeros_like(logits)
    size = jnp.where(is_positive, *toward)
    return jnp.where(is_positive, logits, 0) - logits * labels + jnp.log1p(jnp.exp(size))


@wrong("LOX811", f32(8), f32(8))
def a_cross_entropy_by_the_size_of_its_logits(logits, labels):
    return _cross_entropy(logits, labels, (logits, -logits)).mean()


@right("LOX811", f32(8), f32(8))
def a_cross_entropy_by_the_negative_size_of_its_logits(logits, labels):
    return _cross_entropy(logits, labels, (-logits, logits)).mean()


@wrong("LOX811", f32(100, 6))
def evidence_by_the_mean_of_likelihoods(log_likelihoods):
    return jnp.log(jnp.mean(jnp.exp(log_likelihoods), axis=0)).sum()


@right("LOX811", f32(100, 6))
def evidence_by_logsumexp(log_likelihoods):
    largest = log_likelihoods.max(axis=0)
    return (largest + jnp.log(jnp.mean(jnp.exp(log_likelihoods - largest), axis=0))).sum()


def _log_densities(params, x):
    z = (x[:, None, :] - params["means"]) / jnp.exp(params["scales"])
    return jnp.sum(-0.5 * z**2 - params["scales"], axis=-1)


GAUSSIANS = {"means": f32(5, 3), "scales": f32(5, 3), "logits": f32(5)}


@wrong("LOX811", GAUSSIANS, f32(100, 3))
def density_of_a_mixture_by_its_densities(params, x):
    terms = _log_densities(params, x) + jax.nn.log_softmax(params["logits"])
    return jnp.log(jnp.sum(jnp.exp(terms), axis=-1)).mean()


@right("LOX811", GAUSSIANS, f32(100, 3))
def density_of_a_mixture_by_logsumexp(params, x):
    terms = _log_densities(params, x) + jax.nn.log_softmax(params["logits"])
    largest = jax.lax.stop_gradient(terms.max(axis=-1, keepdims=True))
    return (jnp.log(jnp.sum(jnp.exp(terms - largest), axis=-1)) + largest[:, 0]).mean()


@right("LOX811", f32(10, 3), f32(20, 3))
def distances_to_the_nearest_of_several_points(x, points):
    squared = jnp.sum((x[:, None] - points) ** 2, axis=-1)
    nearest = squared.min(axis=-1, keepdims=True)
    within = jnp.sum((jnp.tanh(x)[:, None] - jnp.tanh(points)) ** 2, axis=-1)
    smoothed = jnp.log(1e-6 + jnp.exp(-squared).sum(axis=-1))
    return nearest[:, 0] - jnp.log(jnp.exp(nearest - squared).sum(axis=-1)), jnp.log(jnp.exp(-within).sum(-1)), smoothed


# -- LOX812: the logarithm of a softmax ----------------------------------------------------------------------------


@wrong("LOX812", f32(8, 10), i32(8))
def likelihood_by_the_logarithm_of_a_softmax(logits, labels):
    log_probs = jnp.log(jax.nn.softmax(logits))
    return -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()


@right("LOX812", f32(8, 10), i32(8))
def likelihood_by_log_softmax(logits, labels):
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()


@wrong("LOX812", f32(8, 10), i32(8), f32(8))
def policy_gradient_by_the_probabilities_of_actions(logits, actions, advantages):
    def loss(logits):
        probs = jax.nn.softmax(logits, axis=-1)
        return -(jnp.log(probs[jnp.arange(8), actions]) * advantages).mean()

    return jax.value_and_grad(loss)(logits)


@right("LOX812", f32(8, 10), f32(8, 10))
def entropies_by_functions_that_know_of_zero(logits, others):
    probs = jax.nn.softmax(logits)
    cross = jnp.where(probs > 0, probs * jnp.log(probs), 0.0)
    return jax.scipy.special.entr(probs).sum() + jax.scipy.special.rel_entr(probs, jax.nn.softmax(others)).sum(), cross


@wrong("LOX812", f32(8, 10))
def entropy_of_a_policy(logits):
    def entropy(logits):
        probs = jax.nn.softmax(logits)
        return -(probs * jnp.log(probs)).sum()

    return jax.grad(lambda logits: jax.vmap(entropy)(logits).mean())(logits)


@right("LOX812", f32(8, 10))
def entropy_of_a_policy_that_may_be_certain(logits):
    def entropy(logits):
        probs = jax.nn.softmax(logits)
        return -(probs * jnp.log(probs + 1e-8)).sum()

    return jax.grad(lambda logits: jax.vmap(entropy)(logits).mean())(logits)


# -- LOX813: softmax and sigmoid, twice ----------------------------------------------------------------------------


@wrong("LOX813", f32(4, 10), f32(32, 4), i32(32))
def cross_entropy_of_a_network_that_ends_in_a_softmax(w, x, labels):
    def network(x):
        return jax.nn.softmax(x @ w)

    probs = jax.lax.map(jax.jit(network), x)
    return optax.softmax_cross_entropy_with_integer_labels(probs, labels).mean()


@wrong("LOX813", f32(4), f32(32, 4), f32(32), KEY)
def update_of_a_classifier_that_ends_in_a_sigmoid(w, x, y, key):
    def loss(w):
        return optax.sigmoid_binary_cross_entropy(jax.nn.sigmoid(x @ w), y).mean()

    return w - 0.1 * jax.grad(loss)(w), jax.random.categorical(key, x)


@wrong("LOX813", f32(8, 4), KEY)
def actions_drawn_by_probabilities_as_logits(logits, key):
    probs = jax.nn.softmax(logits, axis=-1)
    return jax.random.categorical(key, probs)


@wrong("LOX813", f32(4, 10), f32(32, 4))
def entropy_of_a_policy_by_the_softmax_of_its_probabilities(w, obs):
    log_probs = jax.nn.log_softmax(obs @ w)
    probs = jax.nn.softmax(jnp.exp(log_probs))
    return -jnp.sum(probs * log_probs, axis=-1).mean()


@right("LOX813", f32(4, 10), f32(32, 4), i32(32), KEY)
def cross_entropy_of_a_network_that_returns_both(w, x, labels, key):
    def network(x):
        logits = x @ w
        return logits, jax.nn.softmax(logits)

    logits, probs = jax.lax.map(jax.jit(network), x)
    sharper = jax.nn.softmax(probs / 0.1)
    drawn = jax.random.categorical(key, jax.nn.log_softmax(logits))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), sharper, drawn


# -- LOX814: logarithms of what is squashed ------------------------------------------------------------------------


@wrong("LOX814", f32(32), flags(32))
def loss_of_a_discriminator_by_logarithms_of_a_sigmoid(scores, real):
    probability = jax.nn.sigmoid(scores)
    return -jnp.where(real, 1.0, 0.0) @ jnp.log(probability) - jnp.where(real, 0.0, 1.0) @ jnp.log1p(-probability)


@wrong("LOX814", f32(8, 2), f32(8))
def likelihood_of_squashed_actions(raw, weights):
    return jax.grad(lambda raw: (weights * jnp.log(1 - jnp.tanh(raw) ** 2).sum(axis=-1)).mean())(raw)


@right("LOX814", f32(32), f32(8, 2))
def logarithms_of_what_stays_away_from_zero(scores, raw):
    probability = jax.nn.sigmoid(jnp.clip(scores, -10, 10))
    return jnp.log(probability) + jnp.log(1 - probability), jnp.log(1 - jnp.tanh(raw) ** 2 + 1e-6)


# -- LOX815 to LOX817: attention -----------------------------------------------------------------------------------

TOKENS = f32(2, 6, 4, 16)


@wrong("LOX815", TOKENS, TOKENS, TOKENS)
def attention_with_weights_over_the_queries(queries, keys, values):
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(16)
    weights = jax.nn.softmax(scores, axis=-2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


@right("LOX815", TOKENS, TOKENS, TOKENS, f32(32, 16), f32(4, 16), KEY)
def attention_and_slots_that_compete_for_inputs(queries, keys, values, inputs, slots, key):
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(16)
    weights = jax.nn.softmax(scores, axis=-1)
    weights = jnp.where(jax.random.bernoulli(key, 0.9, weights.shape), weights / 0.9, 0.0)
    shares = jax.nn.softmax(inputs @ slots.T / 4.0, axis=-1)
    updates = shares.T @ jnp.tanh(inputs) / shares.sum(axis=0)[:, None]
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values), updates


@wrong("LOX816", TOKENS, TOKENS, TOKENS)
def attention_with_a_causal_mask_that_is_upside_down(queries, keys, values):
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(16)
    mask = jnp.tril(jnp.ones((6, 6)))
    weights = jax.nn.softmax(scores + mask * -1e9, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values)


@wrong("LOX816", f32(8, 4), flags(8, 4))
def policy_whose_logits_are_multiplied_by_a_mask(logits, allowed):
    return jax.vmap(lambda logits, allowed: jax.nn.softmax(logits * allowed))(logits, allowed)


@right("LOX816", TOKENS, TOKENS, TOKENS, f32(8, 4), flags(8, 4))
def attention_with_a_causal_mask_and_a_policy_of_allowed_actions(queries, keys, values, logits, allowed):
    scores = jnp.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(16)
    future = jnp.triu(jnp.ones((6, 6), bool), k=1)
    weights = jax.nn.softmax(jnp.where(future, -jnp.inf, scores), axis=-1)
    policy = jax.nn.softmax(logits + (1 - allowed) * -1e9)
    exponentials = jax.nn.softmax(logits * allowed) * allowed
    return jnp.einsum("bhqk,bkhd->bqhd", weights, values), policy, exponentials / exponentials.sum(-1, keepdims=True)


@wrong("LOX817", f32(6, 16), f32(16, 16), f32(16, 16), f32(16, 16))
def attention_with_queries_times_the_root_of_their_size(x, to_queries, to_keys, to_values):
    queries = x @ to_queries * jnp.sqrt(to_queries.shape[-1])
    return jax.nn.softmax(queries @ (x @ to_keys).T, axis=-1) @ (x @ to_values)


@right("LOX817", f32(6, 16), f32(16, 16), f32(16, 16), f32(16, 16))
def attention_with_queries_and_keys_of_length_one(x, to_queries, to_keys, to_values):
    queries, keys = x @ to_queries, x @ to_keys
    queries = queries / (jnp.linalg.norm(queries, axis=-1, keepdims=True) + 1e-6)
    return jax.nn.softmax(queries @ keys.T * 4.0, axis=-1) @ (x @ to_values)


OF_HEADS = f32(2, 4, 6, 16)


def _values_by(weights, values):
    return jnp.einsum("bhqk,bhkd->bhqd", weights, values)


def _scores_of_heads(queries, keys):
    return jnp.einsum("bhqd,bhkd->bhqk", queries, keys) / 4.0


@wrong("LOX815", OF_HEADS, OF_HEADS, OF_HEADS)
def attention_whose_weights_are_summed_without_the_values(queries, keys, values):
    weights = jax.nn.softmax(_scores_of_heads(queries, keys), axis=-1)
    return jnp.einsum("bhqk,bhvd->bhqd", weights, values)


@wrong("LOX816", OF_HEADS, OF_HEADS, OF_HEADS, flags(2, 6))
def attention_whose_weights_are_masked_after_the_softmax(queries, keys, values, valid):
    weights = jax.nn.softmax(_scores_of_heads(queries, keys), axis=-1)
    return _values_by(weights * valid[:, None, None, :], values)


@wrong("LOX816", OF_HEADS, OF_HEADS, OF_HEADS, f32(2, 6))
def attention_whose_weights_are_masked_by_time_and_by_padding_after_the_softmax(queries, keys, values, padding):
    mask = jnp.tril(jnp.ones((6, 6))) * padding[:, None, None, :]
    weights = jax.nn.softmax(_scores_of_heads(queries, keys), axis=-1) / 1.5
    return _values_by(weights * mask, values)


@wrong("LOX816", f32(32, 8), f32(8, 4), flags(32, 4))
def greedy_actions_of_values_that_are_zero_where_they_are_not_allowed(obs, w, allowed):
    return jnp.argmax((obs @ w) * allowed, axis=-1)


@right("LOX816", OF_HEADS, OF_HEADS, OF_HEADS, flags(2, 6), KEY)
def attention_that_is_masked_again_or_normalized_again_or_drops_weights(queries, keys, values, valid, key):
    mask, scores = valid[:, None, None, :], _scores_of_heads(queries, keys)
    weights = jax.nn.softmax(scores, axis=-1)
    again = weights * mask
    dropped = jnp.where(jax.random.bernoulli(key, 0.9, weights.shape), weights / 0.9, 0.0)
    of_queries = weights * valid[:, None, :, None]
    early = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1) * mask
    kinds = again / (again.sum(-1, keepdims=True) + 1e-9), dropped, of_queries, early
    normalized_after = _values_by(again, values) / (again.sum(-1, keepdims=True) + 1e-9)
    return normalized_after, [_values_by(each, values) for each in kinds]


@right("LOX816", f32(32, 8), f32(8, 4), flags(32, 4), i32(32))
def values_that_are_chosen_or_positive(obs, w, allowed, actions):
    values = obs @ w
    greedy = jnp.argmax(jnp.where(allowed, values, -jnp.inf), axis=-1)
    chosen = jax.nn.one_hot(actions, 4)
    taken = (values * chosen).sum(-1), (jax.nn.softmax(values) * chosen) @ w.T
    return greedy, (jax.nn.relu(values) * allowed).max(-1), taken


@wrong("LOX817", OF_HEADS, OF_HEADS, OF_HEADS)
def attention_whose_queries_are_scaled_before_it_scales_them(queries, keys, values):
    return jax.nn.dot_product_attention(queries / jnp.sqrt(16.0), keys, values)


@wrong("LOX817", OF_HEADS, OF_HEADS, OF_HEADS)
def attention_that_divides_the_weights_and_not_the_scores(queries, keys, values):
    scores = jnp.einsum("bhqd,bhkd->bhqk", queries, keys)
    weights = jax.nn.softmax(scores, axis=-1) / jnp.sqrt(queries.shape[-1])
    return _values_by(weights, values)


@right("LOX817", OF_HEADS, OF_HEADS, OF_HEADS)
def attention_whose_scale_is_split_between_queries_and_keys_or_is_the_size(queries, keys, values):
    scores = jnp.einsum("bhqd,bhkd->bhqk", queries / 2, keys / 2)
    by_size = jnp.einsum("bhqd,bhkd->bhqk", queries, keys) / 16
    return [_values_by(jax.nn.softmax(each, axis=-1), values) for each in (scores, by_size)]


# -- LOX819: means that count what is masked -----------------------------------------------------------------------


@wrong("LOX819", f32(64, 8), f32(64, 8), f32(64, 8), flags(64, 8))
def policy_gradient_of_advantages_that_are_normalized_with_the_padding(log_probs, returns, values, mask):
    advantages = jnp.where(mask, returns - values, 0.0)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return -(log_probs * advantages * mask).sum() / mask.sum()


@wrong("LOX819", f32(4, 10, 8), flags(4, 10))
def a_batch_norm_of_tokens_with_the_padding(tokens, mask):
    tokens = tokens * mask[..., None]
    return (tokens - tokens.mean((0, 1))) / jnp.sqrt(tokens.var((0, 1)) + 1e-5)


@wrong("LOX819", f32(8, 20), f32(8, 20))
def loss_of_tokens_that_is_averaged_and_divided_by_their_number(losses, mask):
    return jnp.mean(losses * mask) / jnp.maximum(mask.sum(), 1.0)


@right("LOX819", f32(8, 20), f32(8, 20))
def losses_of_tokens_that_are_divided_once(losses, mask):
    by_means = jnp.mean(losses * mask) / jnp.maximum(mask.mean(), 1e-6)
    by_another_count = jnp.mean(losses * mask) / jnp.maximum((losses > 1).sum(), 1)
    return jnp.sum(losses * mask) / jnp.maximum(mask.sum(), 1.0), by_means, by_another_count


@right("LOX819", f32(64, 8), f32(64, 8), f32(64, 8), flags(64, 8))
def policy_gradient_of_advantages_that_are_normalized_where_a_mask_keeps_them(log_probs, returns, values, mask):
    advantages = returns - values
    advantages = (advantages - advantages.mean(where=mask)) / (advantages.std(where=mask) + 1e-8)
    return -(log_probs * advantages * mask).sum() / mask.sum()


@right("LOX819", f32(64, 8), flags(64, 8))
def rewards_at_the_end_of_an_episode_that_are_normalized(scores, ended):
    rewards = jnp.where(ended, scores, 0.0)
    return (rewards - rewards.mean()) / (rewards.std() + 1e-8)


@right("LOX819", f32(4, 10, 8), flags(4, 10), KEY)
def layer_norms_of_masked_tokens_and_of_features_that_are_dropped(tokens, mask, key):
    def normalized(x):
        return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-6)

    dropped = jnp.where(jax.random.bernoulli(key, 0.9, tokens.shape), tokens, 0.0)
    return normalized(tokens * mask[..., None]), normalized(dropped), normalized(jnp.where(tokens > 0, tokens, 0.0))


# -- LOX820: indices beyond the end --------------------------------------------------------------------------------


@wrong("LOX820", f32(128), f32(128))
def errors_with_the_next_value_of_all_steps_at_once(rewards, values):
    t = jnp.arange(128)
    return rewards + 0.99 * values[t + 1] - values[t]


@wrong("LOX820", f32(16, 4), i32())
def feature_of_a_neighbour_that_is_limited_to_the_size(features, place):
    return features[jnp.clip(place + 1, 0, features.shape[0])]


@wrong("LOX820", f32(8, 10, 3), f32(3))
def trajectories_whose_last_step_is_replaced(trajectories, last):
    return jax.vmap(lambda steps: steps.at[steps.shape[0]].set(last))(trajectories)


@wrong("LOX820", f32(20))
def ranks_that_are_counted_from_one_in_an_array_that_counts_from_zero(scores):
    order = jnp.argsort(scores)
    return jnp.zeros(20, jnp.int32).at[order + 1].set(jnp.arange(20))


@right("LOX820", f32(20))
def ranks_by_the_order_of_scores(scores):
    order = jnp.argsort(scores)
    ranks = jnp.zeros(20, jnp.int32).at[order].set(jnp.arange(20))
    return ranks, jnp.zeros(21, jnp.int32).at[order + 1].set(jnp.arange(20))


@right("LOX820", f32(128), flags(128), i32(), KEY)
def values_at_indices_that_are_in_the_array(values, is_last, place, key):
    t = jnp.arange(128)
    following = jnp.where(is_last, 0.0, values[t + 1])
    filled = values.at[t + 1].get(mode="fill", fill_value=0.0)
    kept = values.at[jnp.where(values > 0, t, 128)].set(0.0).at[t + 1].set(filled, mode="drop")
    drawn = values[jax.random.randint(key, (4,), 0, 128)]
    return following, kept, drawn, values[t - 1], values[jnp.minimum(place + 1, 127)], values[place % 128]


@wrong("LOX820", f32(5, 3))
def sums_of_levels_at_times_of_another_scale(x):
    times = jnp.arange(0, 100, 10)[::-1]
    levels = jnp.linspace(1.0, 0.0, 10)
    return jax.lax.scan(lambda x, t: (x + levels[t] * jnp.tanh(x), None), x, times)[0]


@wrong("LOX820", f32(30, 2))
def forces_of_neighbours_that_are_filled_up(positions):
    gaps = jnp.sum((positions[:, None] - positions[None]) ** 2, axis=-1)
    nearest = jnp.sort(jnp.where(gaps < 0.25, jnp.arange(30)[None, :], 30), axis=1)[:, :6]
    return jnp.sum(positions[nearest] - positions[:, None], axis=1)


@right("LOX820", f32(30, 2), f32(5, 3))
def forces_of_neighbours_that_are_asked_for(positions, x):
    gaps = jnp.sum((positions[:, None] - positions[None]) ** 2, axis=-1)
    nearest = jnp.sort(jnp.where(gaps < 0.25, jnp.arange(30)[None, :], 30), axis=1)[:, :6]
    apart = jnp.where((nearest < 30)[..., None], positions[nearest] - positions[:, None], 0.0)
    counts = jnp.zeros(30).at[jnp.where(gaps < 0.25, jnp.arange(30)[None, :], 30)].add(1.0)
    levels = jnp.linspace(1.0, 0.0, 10)
    return apart.sum(axis=1), counts, jax.lax.scan(lambda x, t: (x + levels[t], None), x, jnp.arange(10)[::-1])[0]


# -- LOX821: a softmax over the batch ------------------------------------------------------------------------------


@wrong("LOX821", f32(16, 10), f32(32, 16), i32(32))
def cross_entropy_of_a_softmax_over_the_batch(w, x, labels):
    log_probabilities = jax.nn.log_softmax(x @ w, axis=0)
    return -(jax.nn.one_hot(labels, 10) * log_probabilities).sum(axis=1).mean()


@wrong("LOX821", f32(16, 10), f32(32, 16), i32(32))
def an_update_by_the_likelihood_of_a_softmax_over_the_batch(w, x, labels):
    def loss(w):
        probabilities = jax.nn.softmax(x @ w, axis=0)
        return -jnp.log(probabilities[jnp.arange(32), labels] + 1e-8).mean()

    return w - 0.1 * jax.grad(loss)(w)


@right("LOX821", f32(16, 10), f32(32, 16), f32(32, 16), i32(32))
def losses_over_classes_and_of_pairs_in_a_batch(w, images, texts, labels):
    classes = jnp.take_along_axis(jax.nn.log_softmax(images @ w, axis=1), labels[:, None], axis=1)
    turned = jax.nn.log_softmax((images @ w).T, axis=0)[labels, jnp.arange(32)]
    scores = images @ texts.T
    of_images = (jnp.eye(32) * jax.nn.log_softmax(scores, axis=1)).sum(axis=1)
    of_texts = (jnp.eye(32) * jax.nn.log_softmax(scores, axis=0)).sum(axis=1)
    positives = jax.nn.log_softmax(scores, axis=0)[jnp.arange(32), labels]
    weights = jax.nn.softmax(images @ w, axis=0)
    pooled = weights.T @ images
    return classes.mean() + turned.mean() + of_images.mean() + of_texts.mean() + positives.mean(), pooled


# -- LOX822: floats in an array of integers ------------------------------------------------------------------------


@wrong("LOX822", i32(100), f32(100))
def rewards_of_each_action_in_an_array_like_the_actions(actions, rewards):
    totals = jnp.zeros_like(actions, shape=4)
    return totals.at[actions].add(rewards)


@wrong("LOX822", f32(16), f32(100, 16))
def scores_in_an_array_of_zeros_that_are_integers(w, x):
    def fill(t, scores):
        return scores.at[t].set(jnp.tanh(x[t] @ w))

    return jax.lax.fori_loop(0, 100, fill, jnp.full(100, 0))


@right("LOX822", i32(100), f32(100), flags(100))
def counts_and_totals_of_each_action(actions, rewards, is_last):
    totals = jnp.zeros(4).at[actions].add(rewards)
    counts = jnp.zeros_like(actions, shape=4).at[actions].add(~is_last)
    levels = jnp.zeros(4, jnp.int32).at[actions].set((10 * rewards).astype(jnp.int32))
    return totals, counts, levels, jax.ops.segment_sum(rewards, actions, 4)


# -- LOX823: complements of integers -------------------------------------------------------------------------------


@wrong("LOX823", f32(32), f32(32), i32(32))
def targets_that_end_by_the_complement_of_an_integer(reward, value, done):
    return reward + 0.99 * value * ~done


@right("LOX823", f32(32), f32(32), i32(32), _of(jnp.uint32, 32))
def targets_that_end_by_the_negation_of_a_flag(reward, value, done, bits):
    low = bits & ~jnp.uint32(255)
    return reward + 0.99 * value * ~(done > 0), low


# -- LOX824: dropout -----------------------------------------------------------------------------------------------


@wrong("LOX824", f32(32, 16), KEY)
def hidden_values_divided_by_the_rate_of_what_is_dropped(x, key):
    rate = 0.1
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / rate, 0.0)


@wrong("LOX824", f32(32, 16), KEY)
def hidden_values_multiplied_by_what_is_kept(x, key):
    keep = jax.random.uniform(key, x.shape) < 0.8
    return x * keep.astype(x.dtype) * 0.8


@right("LOX824", f32(32, 16), KEY)
def hidden_values_divided_by_what_is_kept_and_a_mutation(x, key):
    keep = jax.random.bernoulli(key, 0.9, x.shape)
    dropped = jnp.where(keep, x / 0.9, 0.0) + x * (jax.random.uniform(jax.random.fold_in(key, 1), x.shape) > 0.3) / 0.7
    changed = jax.random.bernoulli(jax.random.fold_in(key, 2), 0.05, x.shape)
    noise = jax.random.normal(jax.random.fold_in(key, 3), x.shape)
    return dropped + 0.05 * changed * noise + x * jax.random.bernoulli(jax.random.fold_in(key, 4), 0.5, x.shape)


# -- LOX825: labels that were rolled -------------------------------------------------------------------------------


@wrong("LOX825", f32(30, 8), f32(8, 30), i32(4, 20))
def loss_of_the_next_letters_by_roll(table, out, letters):
    log_chances = jax.nn.log_softmax(jnp.cumsum(table[letters], axis=1) @ out)
    following = jnp.roll(letters, -1, axis=1)
    return -jnp.take_along_axis(log_chances, following[..., None], axis=-1).mean()


@right("LOX825", f32(30, 8), f32(8, 30), i32(4, 20), f32(4, 20))
def losses_of_the_next_letters_without_the_last_one(table, out, letters, mask):
    log_chances = jax.nn.log_softmax(jnp.cumsum(table[letters], axis=1) @ out)
    following = jnp.roll(letters, -1, axis=1)
    chosen = jnp.take_along_axis(log_chances, following[..., None], axis=-1)[..., 0]
    inside = jnp.arange(20) < 19
    weights = jnp.roll(mask, -1, axis=1).at[:, -1].set(0.0)
    waves = table[jnp.roll(letters, 1, axis=1)]
    return -chosen[:, :-1].mean() - jnp.mean(chosen * inside) - jnp.sum(chosen * weights), waves


# -- LOX806: digits of arguments -----------------------------------------------------------------------------------


@wrong("LOX806", np.linspace(0.0, 1.0, 50))
def an_integral_over_a_grid_of_numpy(grid):
    return jnp.trapezoid(jnp.sin(grid), grid)


@right("LOX806", np.linspace(0.0, 1.0, 50, dtype=np.float32), np.arange(50))
def an_integral_over_a_grid_of_floats_of_32_bits(grid, places):
    return jnp.trapezoid(jnp.sin(grid), grid) * places[-1]


@wrong("LOX821", f32(32, 8), f32(8, 5), i32(32))
def cross_entropy_of_probabilities_over_the_batch(x, w, labels):
    log_probs = jax.nn.log_softmax(x @ w, axis=0)
    return -jnp.take_along_axis(log_probs, labels[:, None], axis=1).mean()


@right("LOX821", f32(32, 5), i32(32))
def cross_entropy_and_entropy(logits, labels):
    probs, log_probs = jax.nn.softmax(logits), jax.nn.log_softmax(logits)
    entropy = -(probs * log_probs).sum(axis=-1).mean()
    one_hot = (jax.nn.one_hot(labels, 5) * log_probs).sum(axis=-1).mean()
    return entropy, one_hot, -log_probs[jnp.arange(32), labels].mean(), -(probs * log_probs).mean(axis=0).sum()


@right("LOX821", f32(16, 16), f32(4, 32))
def pairs_in_both_directions_and_tokens_that_experts_choose(similar, scores):
    pairs = jnp.arange(16)
    rows = (jax.nn.one_hot(pairs, 16) * jax.nn.log_softmax(similar, axis=0)).sum(axis=-1).mean()
    rows += (jax.nn.one_hot(pairs, 16).T * jax.nn.log_softmax(similar, axis=1)).sum(axis=-1).mean()
    rows += (jax.nn.one_hot(pairs, 16) * jax.nn.log_softmax(similar, axis=1)).sum(axis=0).mean()
    gates = jax.nn.softmax(scores, axis=0)
    chosen = jnp.take_along_axis(gates, jax.lax.top_k(gates, 8)[1], axis=1)
    return rows + jax.nn.log_softmax(similar, axis=1)[pairs, pairs].mean(), chosen


@wrong("LOX814", f32(64, 5), f32(5), f32(64))
def cross_entropy_with_a_sigmoid_by_hand(x, weights, labels):
    p = 1 / (1 + jnp.exp(-(x @ weights)))
    return -(labels * jnp.log(p) + (1 - labels) * jnp.log(1 - p)).mean()


@wrong("LOX814", f32(64), flags(64))
def cross_entropy_that_chooses_one_of_two_logarithms(logits, labels):
    p = jax.nn.sigmoid(logits)
    return -jnp.where(labels, jnp.log(p), jnp.log(1.0 - p)).mean()


@right("LOX814", f32(64), flags(64))
def cross_entropy_that_chooses_one_of_two_clipped_logarithms(logits, labels):
    p = jnp.clip(jax.nn.sigmoid(logits), 1e-6, 1 - 1e-6)
    return -jnp.where(labels, jnp.log(p), jnp.log(1.0 - p)).mean()


@wrong("LOX817", f32(2, 4, 16, 32), f32(2, 4, 16, 32), f32(2, 4, 16, 32))
def attention_scaled_by_how_many_queries_there_are(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(q.shape[-2])
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


@right("LOX817", f32(2, 4, 16, 32), f32(2, 4, 16, 32), f32(2, 4, 16, 32))
def attention_scaled_by_the_size_of_its_keys(q, k, v):
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / jnp.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


@wrong("LOX816", f32(2, 16, 64), flags(2, 16))
def attention_that_masks_queries(x, valid):
    scores = jnp.where(valid[:, :, None], jnp.einsum("bqd,bkd->bqk", x, x) / 8.0, -1e9)
    return jax.nn.softmax(scores, -1) @ x


@right("LOX816", f32(2, 16, 64), flags(2, 16))
def attention_that_masks_keys_and_queries(x, valid):
    scores = jnp.where(valid[:, None, :], jnp.einsum("bqd,bkd->bqk", x, x) / 8.0, -1e9)
    scores = jnp.where(valid[:, :, None], scores, -1e9)
    return jax.nn.softmax(scores, -1) @ x


@wrong("LOX808", f32(17))
def window_that_is_divided_by_zero_in_its_middle(x):
    t = jnp.linspace(-1, 1, 17)
    return (jnp.sin(20 * t) / t * x).sum()


@wrong("LOX808", f32(16))
def averages_that_count_from_zero(x):
    return (jnp.cumsum(x) / jnp.arange(16)).sum()


@right("LOX808", f32(17))
def window_without_a_division_by_zero(x):
    t = jnp.linspace(-1, 1, 17)
    return (jnp.where(t == 0, 20.0, jnp.sin(20 * t) / jnp.where(t == 0, 1.0, t)) * x).sum()


@right("LOX808", f32(16, 16))
def potential_whose_mean_is_set_after_the_division(density):
    k = jnp.fft.fftfreq(16) * 16
    squares = k[:, None] ** 2 + k[None, :] ** 2
    return jnp.fft.ifft2((jnp.fft.fft2(density) / squares).at[0, 0].set(0.0)).real


@right("LOX808", f32(16))
def reciprocals_without_the_first(x):
    return ((1.0 / jnp.arange(16))[1:] * x[1:]).sum()


@wrong("LOX820", f32(32, 4))
def actions_of_which_the_largest_row_is_taken(values):
    return jax.nn.one_hot(jnp.argmax(values, axis=0), 4)


@right("LOX820", f32(32, 4), i32(32))
def actions_of_which_the_largest_is_taken(values, labels):
    return jax.nn.one_hot(jnp.argmax(values, axis=1), 4) - jax.nn.one_hot(labels, 4)


@wrong("LOX813", f32(64, 8), f32(8, 4))
def temperature_of_probabilities(x, weights):
    return jax.nn.softmax(jax.nn.softmax(x @ weights) / 0.5)


@wrong("LOX813", f32(64, 8), f32(8, 4), flags(64, 4))
def legal_probabilities_as_logits(x, weights, legal):
    probabilities = jax.nn.softmax(x @ weights)
    return jax.random.categorical(jax.random.key(0), jnp.where(legal, probabilities, -1e9))  # lox: ignore[LOX704]


@wrong("LOX813", f32(5, 64, 10), i32(64))
def cross_entropy_of_the_mean_of_probabilities(logits, labels):
    mean = jax.nn.softmax(logits, -1).mean(0)
    return optax.softmax_cross_entropy_with_integer_labels(mean, labels).mean()


@right("LOX813", f32(5, 64, 10), f32(10, 10), i32(64))
def logits_of_gates(logits, weights, labels):
    gates = jax.nn.softmax(logits, -1).mean(0)
    scaled = jax.nn.log_softmax(logits[0]) / 0.5
    return jax.nn.softmax(scaled), optax.softmax_cross_entropy_with_integer_labels(gates @ weights, labels).mean()


@wrong("LOX821", f32(32, 6), axes={"scores": ("batch", None)})
def softmax_over_the_batch(scores):
    return jax.nn.softmax(scores, axis=0)


@right("LOX821", f32(32, 32), f32(32, 6), axes={"scores": ("batch", "batch"), "logits": ("batch", None)})
def softmax_over_pairs_of_a_batch(scores, logits):
    return jax.nn.softmax(scores, axis=0), jax.nn.softmax(logits, axis=1)


@right("LOX808", f32(17))
def bump_that_is_zero_where_its_exponent_is_infinite(x):
    t = jnp.linspace(-1, 1, 17)
    return (jnp.exp(-1 / jnp.square(t)) * x).sum()


@wrong("LOX813", f32(64, 8), f32(8, 4), f32(64, 4))
def probabilities_less_a_penalty(x, weights, legal):
    return jax.nn.log_softmax(jax.nn.softmax(x @ weights) - (1 - legal) * 1e10)


@wrong("LOX813", f32(64, 8), f32(8, 4), KEY)
def largest_of_probabilities_and_noise(x, weights, key):
    return jnp.argmax(jax.nn.softmax(x @ weights) + jax.random.gumbel(key, (64, 4)), axis=-1)


@right("LOX813", f32(64, 8), f32(8, 4), f32(64, 4), KEY)
def largest_of_logits_and_noise(x, weights, legal, key):
    logits = x @ weights - (1 - legal) * 1e10
    probabilities = jax.nn.softmax(logits) + 0.1 * jax.nn.softmax(x[:, :4]) * legal
    chosen = jnp.argmax(jnp.log(probabilities + 1e-6) + jax.random.gumbel(key, (64, 4)), axis=-1)
    return chosen, jax.nn.log_softmax(logits)


@wrong("LOX813", jax.random.key(0), f32(8, 4), f32(32, 8))
def experts_that_noise_chooses_by_probabilities(key, gate, x):
    chances = jnp.clip(jax.nn.softmax(x @ gate), 1e-6, 1.0)
    return jax.nn.softmax((chances + jax.random.gumbel(key, chances.shape)) / 0.5)


@wrong("LOX813", f32(16, 10), f32(16, 10), f32(32, 16))
def a_divergence_of_a_logarithm_and_a_probability(student, teacher, x):
    wanted, given = jax.nn.softmax(x @ teacher), jax.nn.softmax(x @ student)
    return jnp.sum(wanted * (jnp.log(wanted + 1e-9) - given), axis=-1).mean()


@right("LOX813", jax.random.key(0), f32(16, 10), f32(32, 16), f32(32, 10))
def logarithms_of_chances_with_noise_and_in_a_mixture(key, weights, x, densities):
    chances = jax.nn.softmax(x @ weights)
    relaxed = jax.nn.softmax((jnp.log(chances + 1e-8) + jax.random.gumbel(key, chances.shape)) / 0.5)
    mixed = jax.nn.logsumexp(jnp.log(chances + 1e-12) + densities, axis=-1)
    surprise = jnp.sum(chances * (jnp.log(chances + 1e-9) - jax.nn.log_softmax(densities)), axis=-1)
    return relaxed, mixed, surprise


# -- LOX813 to LOX816: weights of some, of segments and of documents -------------------------------------------------


@wrong("LOX813", f32(64, 50), i32(64, 5))
def shares_of_the_items_that_are_shown(ratings, shown):
    popularity = jax.nn.softmax(ratings, axis=-1)
    return jax.nn.softmax(jnp.take_along_axis(popularity, shown, axis=-1), axis=-1)


@wrong("LOX813", f32(32, 2), f32(32))
def loss_of_the_second_probability_as_a_logit(scores, is_fraud):
    probabilities = jax.nn.softmax(scores)
    return optax.sigmoid_binary_cross_entropy(probabilities[:, 1], is_fraud).mean()


@right("LOX813", f32(64, 50), i32(64, 5))
def shares_of_items_that_are_divided_by_their_sum_and_of_users_by_confidence(ratings, shown):
    popularity = jax.nn.softmax(ratings, axis=-1)
    among = jnp.take_along_axis(popularity, shown, axis=-1)
    of_users = jax.nn.softmax(popularity.max(axis=-1), axis=0)
    return among / among.sum(axis=-1, keepdims=True), of_users


@wrong("LOX815", f32(8, 16), f32(100, 16))
def means_of_stars_by_clusters_that_are_normalized_twice(centers, stars):
    shares = jax.nn.softmax(centers @ stars.T, axis=0)
    shares = shares / jnp.sum(shares, axis=0, keepdims=True)
    return shares @ stars


@right("LOX815", f32(8, 16), f32(100, 16))
def means_of_stars_by_clusters(centers, stars):
    shares = jax.nn.softmax(centers @ stars.T, axis=0)
    again = shares / jnp.sum(shares, axis=0, keepdims=True)
    return shares / shares.sum(axis=1, keepdims=True) @ stars, again.T @ centers


@wrong("LOX815", f32(120, 8), f32(8), i32(120))
def summaries_of_baskets_of_purchases(purchases, weights, basket):
    share = jax.nn.softmax(jnp.tanh(purchases) @ weights)
    return jnp.zeros((20, 8)).at[basket].add(purchases * share[:, None])


@right("LOX815", f32(120, 8), f32(8), i32(120), f32(120))
def summaries_of_baskets_by_shares_of_each(purchases, weights, basket, masses):
    share = jax.nn.softmax(jnp.tanh(purchases) @ weights)
    totals = jax.ops.segment_sum(share, basket, 20)
    sums = jax.ops.segment_sum(purchases * share[:, None], basket, 20)
    of_particles = jnp.zeros((20, 8)).at[basket].add(purchases * jax.nn.softmax(masses)[:, None])
    return sums / jnp.maximum(totals, 1e-6)[:, None], of_particles


@wrong("LOX816", f32(8, 6), flags(8, 6), flags(6))
def policy_whose_logits_are_multiplied_by_two_masks(logits, legal, enabled):
    return jax.nn.softmax(logits * (legal.astype(jnp.float32) * enabled.astype(jnp.float32)))


@right("LOX816", f32(8, 6), flags(8, 6), flags(6))
def policy_that_is_masked_by_two_masks_and_divided_again(logits, legal, enabled):
    keep = legal.astype(jnp.float32) * enabled.astype(jnp.float32)
    chances = jax.nn.softmax(logits * keep) * keep
    return chances / chances.sum(-1, keepdims=True), jax.nn.softmax(logits - 1e9 * (1.0 - keep))


@wrong("LOX816", f32(30, 8), f32(8), i32(4, 12))
def summary_of_a_song_by_the_notes_that_pad_it(table, weights, notes):
    padding = notes == 29
    embedded = table[notes]
    scores = jnp.where(~padding, -jnp.inf, embedded @ weights)
    return jnp.einsum("bl,bld->bd", jax.nn.softmax(scores, axis=-1), embedded)


@right("LOX816", f32(30, 8), f32(8), i32(4, 12), f32(3, 8), i32(4, 12))
def summary_of_a_song_by_its_notes_and_by_the_first_voice(table, weights, notes, voices, voice):
    embedded = table[notes] + voices[voice]
    logits = embedded @ weights
    of_notes = jax.nn.softmax(jnp.where(notes == 29, -1e9, logits), axis=-1)
    of_voice = jax.nn.softmax(jnp.where(voice == 0, logits, -1e9), axis=-1)
    return jnp.einsum("bl,bld->bd", of_notes, embedded), jnp.einsum("bl,bld->bd", of_voice, embedded)


def _attention_to_the_past(x, weights, keep):
    scores = jnp.einsum("bqd,bkd->bqk", x @ weights, x) / 4.0
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.where(keep, scores, -1e9), axis=-1), x)


@wrong("LOX816", f32(4, 24, 16), f32(16, 16), i32(4, 24))
def next_moves_in_rows_of_several_games(moves, weights, game):
    mixed = _attention_to_the_past(moves, weights, jnp.tril(jnp.ones((24, 24), bool)))
    goes_on = game[:, :-1] == game[:, 1:]
    errors = jnp.square(mixed[:, :-1] - moves[:, 1:]).mean(-1)
    return jnp.where(goes_on, errors, 0.0).sum() / goes_on.sum()


@right("LOX816", f32(4, 24, 16), f32(16, 16), i32(4, 24), f32(9, 16), i32(4, 24))
def next_moves_in_each_game_and_tokens_that_are_not_repeated(moves, weights, game, table, tokens):
    past = jnp.tril(jnp.ones((24, 24), bool))
    mixed = _attention_to_the_past(moves, weights, past & (game[:, :, None] == game[:, None, :]))
    goes_on = game[:, :-1] == game[:, 1:]
    errors = jnp.square(mixed[:, :-1] - moves[:, 1:]).mean(-1)
    written = _attention_to_the_past(table[tokens], weights, past)
    repeated = jnp.mean(tokens[:, :-1] == tokens[:, 1:])
    return jnp.where(goes_on, errors, 0.0).sum() / goes_on.sum(), written, repeated


@wrong("LOX808", f32(16, 9), flags(16, 9))
def shares_of_open_stations_by_the_largest_of_these(demand, is_open):
    largest = jnp.where(is_open, demand, -1e9).max(axis=-1, keepdims=True)
    powers = jnp.exp(demand - largest) * is_open
    return powers / powers.sum(axis=-1, keepdims=True)


@right("LOX808", f32(16, 9), flags(16, 9))
def shares_of_open_stations_by_what_is_masked_before(demand, is_open):
    largest = jnp.where(is_open, demand, -1e9).max(axis=-1, keepdims=True)
    chosen = jnp.where(is_open, jnp.exp(demand - largest), 0.0)
    powers = jnp.exp(demand - demand.max(axis=-1, keepdims=True)) * is_open
    return [each / (each.sum(axis=-1, keepdims=True) + 1e-9) for each in (chosen, powers)]


# -- LOX826: sums of a softmax over its own axis -------------------------------------------------------------------


@wrong("LOX826", f32(300, 2), f32(6, 2))
def shares_and_centers_of_shops_by_a_softmax_over_customers(customers, shops):
    nearness = -jnp.square(customers[:, None] - shops).sum(-1)
    parts = jax.nn.softmax(nearness, axis=0)
    mass = parts.sum(axis=0)
    return mass / customers.shape[0], jnp.einsum("ck,cd->kd", parts, customers) / mass[:, None]


@right("LOX826", f32(300, 2), f32(6, 2))
def shares_and_centers_of_shops_by_a_softmax_over_shops(customers, shops):
    nearness = -jnp.square(customers[:, None] - shops).sum(-1)
    parts = jax.nn.softmax(nearness, axis=1)
    mass = parts.sum(axis=0)
    return mass / customers.shape[0], jnp.einsum("ck,cd->kd", parts, customers) / mass[:, None]


@wrong("LOX826", f32(64, 16), f32(16, 4), differentiate="router")
def balance_of_experts_that_compete_for_tokens_by_mistake(tokens, router):
    logits = tokens @ router
    chances = jnp.exp(jax.nn.log_softmax(logits, axis=0))
    load = jax.nn.one_hot(logits.argmax(axis=1), 4).mean(axis=0)
    return 4 * jnp.sum(load * chances.mean(axis=0))


@right("LOX826", f32(64, 16), f32(16, 4), differentiate="router")
def balance_of_experts(tokens, router):
    logits = tokens @ router
    chances = jnp.exp(jax.nn.log_softmax(logits, axis=1))
    load = jax.nn.one_hot(logits.argmax(axis=1), 4).mean(axis=0)
    return 4 * jnp.sum(load * chances.mean(axis=0))


@wrong("LOX826", f32(8, 50, 5), f32(8, 50, 3))
def prototypes_whose_counts_decide_what_is_kept(scores, features):
    def of_image(scores, features):
        weights = jax.nn.softmax(scores, axis=0)
        count = weights.sum(axis=0)
        return jnp.where((count > 2.0)[:, None], weights.T @ features, 0.0) * jnp.log1p(count)[:, None]

    return jax.vmap(of_image)(scores, features)


@right("LOX826", f32(8, 50), f32(8, 50), f32(8, 50, 5))
def means_with_any_weights(scores, values, logits):
    def mean(values, weights):
        return jnp.sum(weights * values, axis=-1) / (weights.sum(axis=-1) + 1e-9)

    chances = jax.nn.softmax(logits, axis=-1)
    entropy = -jnp.sum(chances * jnp.log(chances + 1e-9), axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)
    return mean(values, weights), jnp.average(values, axis=-1, weights=weights), entropy, weights.sum(axis=-1)


@right("LOX826", f32(4, 7, 16), f32(4, 20, 16))
def slots_that_compete_for_inputs(slots, inputs):
    attention = jax.nn.softmax(jnp.einsum("bsd,bnd->bsn", slots, inputs), axis=1)
    attention = attention / (attention.sum(axis=2, keepdims=True) + 1e-8)
    return jnp.einsum("bsn,bnd->bsd", attention, inputs)


# -- LOX830: orders that are taken for ranks -----------------------------------------------------------------------


@wrong("LOX830", f32(50), f32(50))
def rank_correlation_of_orders(x, y):
    one, other = (jnp.argsort(each).astype(jnp.float32) for each in (x, y))
    one, other = one - one.mean(), other - other.mean()
    return jnp.sum(one * other) / jnp.sqrt(jnp.sum(one**2) * jnp.sum(other**2))


@wrong("LOX830", f32(8, 64), f32(8, 64))
def losses_that_weigh_by_the_order_of_priorities(priorities, losses):
    def of_batch(priorities, losses):
        weights = 1.0 / (1.0 + jnp.argsort(-priorities))
        return jnp.sum(weights * losses) / weights.sum()

    return jax.vmap(of_batch)(priorities, losses)


@right("LOX830", f32(50), f32(50), jax.random.key(0), f32(50))
def ranks_orders_and_random_places(x, y, key, grid):
    one, other = (jnp.argsort(jnp.argsort(each)) / 49 for each in (x, y))
    order = jnp.argsort(-x)
    gains = y[order] / jnp.log2(jnp.arange(50) + 2.0)
    shuffled = jnp.argsort(jax.random.uniform(key, (50,))) / 50
    best = 0.1 * jnp.argsort(x)[0]
    inverse = jnp.zeros(50).at[order].set(jnp.arange(50.0)) / 49
    return jnp.corrcoef(one, other), gains, shuffled, best, inverse * grid


# -- LOX820: parts that do not divide a ring ---------------------------------------------------------------------------


@wrong("LOX820", {"obs": f32(1000, 4), "reward": f32(1000), "at": i32()}, {"obs": f32(64, 4), "reward": f32(64)})
def transitions_that_do_not_divide_their_memory(memory, batch):
    at = memory["at"]
    obs = jax.lax.dynamic_update_slice(memory["obs"], batch["obs"], (at, 0))
    reward = jax.lax.dynamic_update_slice_in_dim(memory["reward"], batch["reward"], at, axis=0)
    return {"obs": obs, "reward": reward, "at": (at + 64) % memory["reward"].shape[0]}


@wrong("LOX820", f32(2, 50, 3), f32(30, 2, 8, 3))
def windows_that_do_not_divide_a_history(history, windows):
    def write(history, numbered):
        number, window = numbered
        return jax.lax.dynamic_update_slice_in_dim(history, window, (number * 8) % 50, axis=1), history.mean()

    return jax.lax.scan(write, history, (jnp.arange(30), windows))


@wrong("LOX820", f32(6, 100), i32(6), f32(6, 12))
def rings_of_many_series(rings, at, parts):
    def write(ring, at, part):
        return jax.lax.dynamic_update_slice(ring, part, (at,)), jnp.mod(at + part.shape[0], ring.shape[0])

    return jax.vmap(write)(rings, at, parts)


@right("LOX820", {"obs": f32(1024, 4), "reward": f32(1024), "at": i32()}, {"obs": f32(64, 4), "reward": f32(64)})
def transitions_that_divide_their_memory(memory, batch):
    at = memory["at"]
    obs = jax.lax.dynamic_update_slice(memory["obs"], batch["obs"], (at, 0))
    reward = jax.lax.dynamic_update_slice_in_dim(memory["reward"], batch["reward"], at, axis=0)
    return {"obs": obs, "reward": reward, "at": (at + 64) % memory["reward"].shape[0]}


@wrong("LOX820", f32(4, 16), f32(4, 32))
def beams_by_the_wrong_size(states, scores):
    _, which = jax.lax.top_k(scores.reshape(-1), scores.shape[0])
    return states[which // scores.shape[0]], which % scores.shape[1]


@right("LOX820", f32(4, 16), f32(4, 32))
def beams_by_the_vocabulary(states, scores):
    _, which = jax.lax.top_k(scores.reshape(-1), scores.shape[0])
    return states[which // scores.shape[1]], which % scores.shape[1]


@wrong("LOX820", f32(6, 20), f32(6, 3))
def row_of_the_best_by_the_wrong_size(grid, rows):
    best = jnp.argmax(grid)
    return rows[best // grid.shape[0]]


@right("LOX820", f32(6, 20), f32(6, 3))
def row_of_the_best(grid, rows):
    best = jnp.argmax(grid)
    return rows[best // grid.shape[1]]


@right("LOX820", f32(9, 3), f32(12))
def parents_of_a_heap(nodes, values):
    _, children = jax.lax.top_k(values, 4)
    return nodes[(children - 1) // 2]


@right("LOX820", f32(1000, 4), i32(), f32(64, 4))
def transitions_whose_places_each_begin_anew(memory, at, batch):
    places = (at + jnp.arange(64)) % memory.shape[0]
    return memory.at[places].set(batch), (at + 64) % memory.shape[0]


@right("LOX820", f32(1000, 4), i32(), f32(64, 4))
def transitions_that_begin_anew_where_they_do_not_fit(memory, at, batch):
    at = jnp.where(at + 64 > memory.shape[0], 0, at)
    return jax.lax.dynamic_update_slice_in_dim(memory, batch, at, axis=0), at + 64


@right("LOX820", f32(50, 3), i32(), f32(1, 3))
def newest_keys_of_a_window(keys, at, key):
    return jax.lax.dynamic_update_slice_in_dim(keys, key, at % 50, axis=0), at + 1


# -- LOX612: labels that a causal model is given -----------------------------------------------------------------------

WORDS = {"words": f32(40, 16), "layers": f32(3, 16, 16), "out": f32(16, 40)}
RECURRENT = {"words": f32(40, 16), "hidden": f32(16, 16), "out": f32(16, 40)}


def _decoded(params, tokens):
    past = jnp.tril(jnp.ones((tokens.shape[1], tokens.shape[1]), bool))

    def layer(x, weights):
        scores = jnp.einsum("btd,de,bse->bts", x, weights, x) / 4.0
        return x + jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1) @ x, None

    return jax.lax.scan(layer, params["words"][tokens], params["layers"])[0] @ params["out"]


def _read_in_turn(params, embedded):
    def read(hidden, x):
        hidden = jnp.tanh(hidden @ params["hidden"] + x)
        return hidden, hidden @ params["out"]

    return jax.lax.scan(read, jnp.zeros_like(embedded[0]), embedded)[1]


def _losses(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


@wrong("LOX612", WORDS, i32(4, 24), differentiate="params")
def words_of_a_decoder_that_is_given_them(params, tokens):
    return _losses(_decoded(params, tokens), tokens).mean()


@wrong("LOX612", WORDS, i32(4, 24), i32(4), differentiate="params")
def words_of_a_decoder_after_a_cut_of_both(params, tokens, lengths):
    given, wanted = tokens[:, 1:], tokens[:, 1:]
    inside = jnp.arange(23) < lengths[:, None]
    logs = jax.nn.log_softmax(_decoded(params, given))
    chosen = jnp.take_along_axis(logs, wanted[..., None], axis=-1)[..., 0]
    return -jnp.sum(chosen * inside) / jnp.maximum(inside.sum(), 1)


@wrong("LOX612", RECURRENT, i32(24, 4), differentiate="params")
def letters_of_a_recurrent_network_that_reads_them(params, letters):
    return _losses(_read_in_turn(params, params["words"][letters]), letters).mean()


@wrong("LOX612", RECURRENT, i32(4, 24), differentiate="params")
def letters_one_hot_of_each_sequence(params, letters):
    def loss(letters):
        one_hot = jax.nn.one_hot(letters, 40)
        return -jnp.sum(jax.nn.log_softmax(_read_in_turn(params, one_hot @ params["words"])) * one_hot, axis=-1).mean()

    return jax.vmap(loss)(letters).mean()


@right("LOX612", WORDS, i32(4, 24), differentiate="params")
def words_of_a_decoder_one_later(params, tokens):
    return _losses(_decoded(params, tokens[:, :-1]), tokens[:, 1:]).mean()


@right("LOX612", WORDS, i32(4, 24), differentiate="params")
def words_of_a_decoder_whose_logits_are_cut(params, tokens):
    return _losses(_decoded(params, tokens)[:, :-1], tokens[:, 1:]).mean()


@right("LOX612", WORDS, i32(4, 24), differentiate="params")
def words_of_a_decoder_that_begins_by_a_zero(params, tokens):
    given = jnp.concatenate([jnp.zeros_like(tokens[:, :1]), tokens[:, :-1]], axis=1)
    return _losses(_decoded(params, given), tokens).mean()


@right("LOX612", WORDS, i32(4, 24), flags(4, 24), differentiate="params")
def words_that_are_hidden_from_an_encoder(params, tokens, is_hidden):
    embedded = params["words"][jnp.where(is_hidden, 39, tokens)]
    mixed = embedded + jax.nn.softmax(embedded @ jnp.swapaxes(embedded, 1, 2), axis=-1) @ embedded
    return jnp.sum(_losses(mixed @ params["out"], tokens) * is_hidden) / jnp.maximum(is_hidden.sum(), 1)


@right("LOX612", RECURRENT, i32(24, 4), differentiate="params")
def letters_of_a_recurrent_network_that_reads_those_before(params, letters):
    embedded = params["words"][letters]
    before = jnp.concatenate([jnp.zeros_like(embedded[:1]), embedded[:-1]], axis=0)
    return _losses(_read_in_turn(params, before), letters).mean()


@right("LOX612", RECURRENT, i32(24, 4), differentiate="params")
def letters_that_are_kept_in_a_code(params, letters):
    def read(hidden, x):
        return jnp.tanh(hidden @ params["hidden"] + x), None

    code, _ = jax.lax.scan(read, jnp.zeros((4, 16)), params["words"][letters])
    return _losses(_read_in_turn(params, jnp.broadcast_to(code, (24, 4, 16))), letters).mean()


@right("LOX612", RECURRENT, i32(24, 4), i32(24, 4), differentiate="params")
def tags_of_the_letters_that_are_read(params, letters, tags):
    return _losses(_read_in_turn(params, params["words"][letters]), tags).mean()


@right("LOX812", jax.random.key(0), f32(20, 8))
def words_that_are_drawn_by_their_chances(key, logits):
    chances = jax.nn.softmax(logits, axis=-1)
    drawn = jax.random.categorical(key, jnp.log(chances))
    return drawn, chances


@right("LOX801", image(10, 16, 16))
def distances_of_frames(frames):
    return jnp.maximum(frames[1:], frames[:-1]) - jnp.minimum(frames[1:], frames[:-1])


@wrong("LOX801", image(10, 16, 16))
def distances_of_frames_by_a_difference(frames):
    return jnp.abs(frames[1:] - frames[:-1])


@right("LOX801", f32())
def powers_of_three(x):
    return jnp.cos(jnp.power(3, jnp.arange(12)) * x)


@right("LOX808", f32())
def an_entropy_in_a_branch_for_what_is_positive(x):
    def term(x):
        p = jnp.maximum(x, 0.0)
        return p * jnp.log(p)

    return jax.lax.cond(x > 1e-3, term, jnp.zeros_like, x)


@wrong("LOX808", f32(), f32())
def an_entropy_in_a_branch_of_something_else(x, y):
    def term(x):
        p = jnp.maximum(x, 0.0)
        return p * jnp.log(p)

    return jax.lax.cond(y > 1e-3, term, jnp.zeros_like, x)


@wrong("LOX820", f32(40), f32(40))
def mass_on_a_ring_whose_last_share_is_left_out(places, masses):
    places = places % 24
    left = jnp.floor(places).astype(jnp.int32)
    share = places - left
    return jnp.zeros(24).at[left].add(masses * (1 - share)).at[left + 1].add(masses * share)


@right("LOX820", f32(40), f32(40))
def mass_on_a_ring(places, masses):
    places = places % 24
    left = jnp.floor(places).astype(jnp.int32)
    share = places - left
    return jnp.zeros(24).at[left].add(masses * (1 - share)).at[(left + 1) % 24].add(masses * share)


@right("LOX820", f32(40), f32(40))
def mass_on_a_line_with_a_place_more(places, masses):
    places = places % 24
    left = jnp.floor(places).astype(jnp.int32)
    share = places - left
    return jnp.zeros(25).at[left].add(masses * (1 - share)).at[left + 1].add(masses * share)


@wrong("LOX820", f32(30, 8), i32(16, 12))
def vectors_of_words_after_a_beginning_that_has_none(table, words):
    beginning = jnp.full((words.shape[0], 1), table.shape[0], words.dtype)
    return table[jnp.concatenate([beginning, words[:, :-1]], axis=1)]


@right("LOX820", f32(30, 8), i32(16, 12))
def vectors_of_words_after_a_beginning(table, words):
    beginning = jnp.full((words.shape[0], 1), table.shape[0] - 1, words.dtype)
    return table[jnp.concatenate([beginning, words[:, :-1]], axis=1)]


@right("LOX820", f32(30, 8), i32(16, 12))
def vectors_of_words_before_what_is_cut_off(table, words):
    beginning = jnp.full((words.shape[0], 1), table.shape[0], words.dtype)
    return table[jnp.concatenate([beginning, words], axis=1)[:, 1:]]


@wrong("LOX820", f32(32, 32, 3), jax.random.key(0))
def a_crop_that_begins_anywhere(image, key):
    row, column = jax.random.randint(key, (2,), 0, 32)
    return jax.lax.dynamic_slice(image, (row, column, 0), (24, 24, 3))


@right("LOX820", f32(32, 32, 3), jax.random.key(0))
def a_crop_that_begins_where_it_fits(image, key):
    row, column = jax.random.randint(key, (2,), 0, 32 - 24 + 1)
    return jax.lax.dynamic_slice(image, (row, column, 0), (24, 24, 3))


@right("LOX820", f32(32, 32, 3), jax.random.key(0))
def a_crop_of_what_was_padded(image, key):
    row, column = jax.random.randint(key, (2,), 0, 32)
    padded = jnp.pad(image, ((0, 24), (0, 24), (0, 0)), mode="reflect")
    return jax.lax.dynamic_slice(padded, (row, column, 0), (24, 24, 3))


def _pairs_of(present):
    return present[:, :, None] & present[:, None, :]


@wrong("LOX809", f32(4, 6, 6), f32(4, 6, 8), flags(4, 6), differentiate="messages")
def messages_between_those_present_without_what_those_absent_get(scores, messages, present):
    weights = jax.nn.softmax(jnp.where(_pairs_of(present), scores, -jnp.inf), axis=-1)
    received = jnp.where(present[..., None], weights @ messages, 0.0)
    return jnp.mean(received**2)


@wrong("LOX809", {"w": f32(8, 8)}, f32(4, 6, 8), flags(4, 6), differentiate="params")
def attention_among_agents_with_a_product_of_flags_that_is_added(params, agents, alive):
    alive = alive.astype(jnp.float32)
    both = jnp.einsum("bi,bj->bij", alive, alive) > 0.5
    scores = jnp.einsum("bid,de,bje->bij", agents, params["w"], agents) + jnp.where(both, 0.0, -jnp.inf)
    weights = jnp.where(both, jax.nn.softmax(scores, axis=-1), 0.0)
    return jnp.mean((weights @ agents - agents) ** 2)


@right("LOX809", f32(4, 6, 6), f32(4, 6, 8), flags(4, 6), differentiate=("scores", "messages"))
def messages_with_weights_that_are_left_out_before_the_product(scores, messages, present):
    pairs = _pairs_of(present)
    weights = jnp.where(pairs, jax.nn.softmax(jnp.where(pairs, scores, -jnp.inf), axis=-1), 0.0)
    return jnp.mean((weights @ messages) ** 2)


@right("LOX809", f32(4, 6, 6), f32(4, 6, 8), flags(4, 6), differentiate="messages")
def messages_between_those_present_and_to_oneself(scores, messages, present):
    pairs = _pairs_of(present) | jnp.eye(6, dtype=bool)
    weights = jax.nn.softmax(jnp.where(pairs, scores, -jnp.inf), axis=-1)
    return jnp.mean(jnp.where(present[..., None], weights @ messages, 0.0) ** 2)


@right("LOX809", {"w": f32(8, 8)}, f32(4, 6, 8), flags(4, 6), differentiate="params")
def attention_among_agents_with_a_large_number_that_is_added(params, agents, alive):
    alive = alive.astype(jnp.float32)
    both = jnp.einsum("bi,bj->bij", alive, alive) > 0.5
    scores = jnp.einsum("bid,de,bje->bij", agents, params["w"], agents) + jnp.where(both, 0.0, -1e9)
    weights = jnp.where(both, jax.nn.softmax(scores, axis=-1), 0.0)
    return jnp.mean((weights @ agents - agents) ** 2)


@right("LOX809", f32(4, 6, 6), f32(4, 6, 8), flags(4, 6), differentiate="messages")
def messages_with_weights_of_those_present_alone(scores, messages, present):
    pairs = _pairs_of(present)
    weights = jax.nn.softmax(jnp.where(pairs, scores, -jnp.inf), axis=-1, where=pairs)
    return jnp.mean(jnp.where(present[..., None], weights @ messages, 0.0) ** 2)


@right("LOX809", f32(4, 6, 6), f32(4, 6, 8), flags(4, 6), differentiate="messages")
def messages_to_those_absent_with_equal_weights(scores, messages, present):
    masked = jnp.where(_pairs_of(present), scores, -jnp.inf)
    weights = jax.nn.softmax(jnp.where(present[..., None], masked, 0.0), axis=-1)
    return jnp.mean(jnp.where(present[..., None], weights @ messages, 0.0) ** 2)


_READER = {"table": f32(30, 16), "queries": f32(16, 12), "keys": f32(16, 12)}


@right("LOX816", _READER, i32(4, 13), differentiate="params")
def loss_of_a_model_that_reads_backwards(params, tokens):
    later, earlier = tokens[:, 1:], tokens[:, :-1]
    seen = params["table"][later]
    scores = jnp.einsum("bqd,bkd->bqk", seen @ params["queries"], seen @ params["keys"]) / math.sqrt(12)
    on = jnp.triu(jnp.ones((12, 12), bool))
    mixed = jax.nn.softmax(jnp.where(on, scores, -1e9), axis=-1) @ seen
    return optax.softmax_cross_entropy_with_integer_labels(mixed @ params["table"].T, earlier).mean()
