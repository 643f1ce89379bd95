"""Mistakes planted into axes, indices and dtypes, with right programs that look like them."""

import jax
import jax.numpy as jnp

from unseen.case import Case, f32, flags, i32

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


# Statistics.


def whiten(x, gamma):
    mean = x.mean()
    std = x.std()
    return gamma * (x - mean) / (std + 1e-5)


def whiten_b(x, gamma):
    center, spread = x.mean(axis=0), x.std(axis=0)
    return gamma * (x - center) / (spread + 1e-5)


def whiten_c(x, gamma):
    center = x.mean(axis=-1, keepdims=True)
    spread = x.std(axis=-1, keepdims=True)
    return gamma * (x - center) / (spread + 1e-5)


plant(
    "whitening",
    "wrong axis",
    whiten,
    (whiten_b, whiten_c),
    (f32(64, 5), f32(5)),
    where="mean = x.mean()\n",
    axes={"x": ("batch", "features"), "gamma": ("features",)},
)


def center(x, weights):
    mean = jnp.average(x, axis=1, weights=weights)
    return x - mean


def center_b(x, weights):
    middle = jnp.average(x, axis=0, weights=weights)
    return x - middle


def center_c(x, weights):
    middle = jnp.average(x, axis=1, keepdims=True)
    return (x - middle) * weights[:, None]


plant(
    "weighted center",
    "wrong axis",
    center,
    (center_b, center_c),
    (f32(12, 12), f32(12)),
    where="mean = jnp.average(x, axis=1, weights=weights)\n",
    axes={"x": ("batch", "features"), "weights": ("batch",)},
)


def discounts(rewards, gamma=0.9):
    powers = gamma ** jnp.arange(rewards.shape[1])
    return jnp.sum(rewards * powers, axis=0)


def discounts_b(rewards, gamma=0.9):
    powers = gamma ** jnp.arange(rewards.shape[0])
    return jnp.sum(rewards * powers[:, None], axis=0)


def discounts_c(rewards, gamma=0.9):
    steps = jnp.arange(rewards.shape[0])[:, None]
    return jnp.sum(rewards * gamma**steps, axis=0) / rewards.shape[1]


plant(
    "discount powers",
    "time and environments exchanged",
    discounts,
    (discounts_b, discounts_c),
    (f32(30, 6),),
    where="powers = gamma ** jnp.arange(rewards.shape[1])",
    axes={"rewards": ("time", "envs")},
)


def running_return(rewards):
    total = jnp.cumsum(rewards, axis=1)
    return total[-1], total.max(axis=0)


def running_return_b(rewards):
    sums = jnp.cumsum(rewards, axis=0)
    return sums[-1], sums.max(axis=0)


def running_return_c(rewards):
    ranks = jnp.cumsum(jnp.sort(rewards, axis=1), axis=1)
    return ranks[:, -1] / rewards.shape[1], ranks.max(axis=1)


plant(
    "running return",
    "wrong axis",
    running_return,
    (running_return_b, running_return_c),
    (f32(16, 16),),
    where="total = jnp.cumsum(rewards, axis=1)",
    axes={"rewards": ("time", "envs")},
)


def delta_rule(obs, rewards):
    change = obs[:, 1:] - obs[:, :-1]
    return change.sum(-1) + rewards[:, 1:]


def delta_rule_b(obs, rewards):
    shift = obs[1:] - obs[:-1]
    return shift.sum(-1) + rewards[1:]


def delta_rule_c(obs, rewards):
    gaps = obs[:, :, 1:] - obs[:, :, :-1]
    return gaps.sum(-1) + rewards


plant(
    "changes of observations",
    "time and environments exchanged",
    delta_rule,
    (delta_rule_b, delta_rule_c),
    (f32(20, 8, 3), f32(20, 8)),
    where="change = obs[:, 1:] - obs[:, :-1]",
    axes={"obs": ("time", "envs", None), "rewards": ("time", "envs")},
)


# Reshapes.


def fold(x):
    time, batch, dim = x.shape
    return jnp.tanh(x).reshape(batch, time, dim)


def fold_b(x):
    return jnp.tanh(x).swapaxes(0, 1)


def fold_c(x):
    time, batch, dim = x.shape
    flat = jnp.tanh(x).reshape(time * batch, dim)
    return flat.reshape(time, batch, dim).swapaxes(0, 1)


def sequence_means(fold_fn):
    return lambda x, lengths: fold_fn(x).sum(axis=1) / jnp.maximum(lengths, 1)[:, None]


plant(
    "batch major",
    "reshape for transpose",
    sequence_means(fold),
    (sequence_means(fold_b), sequence_means(fold_c)),
    (f32(20, 8, 3), i32(8)),
    where="return jnp.tanh(x).reshape(batch, time, dim)",
    axes={"x": ("time", "batch", None), "lengths": ("batch",)},
)


def flatten_pair(obs, actions):
    states = obs.reshape(-1, obs.shape[-1])
    moves = actions.swapaxes(0, 1).reshape(-1, actions.shape[-1])
    return jnp.concatenate([states, moves], axis=-1)


def flatten_pair_b(obs, actions):
    states = obs.reshape(-1, obs.shape[-1])
    chosen = actions.reshape(-1, actions.shape[-1])
    return jnp.concatenate([states, chosen], axis=-1)


def flatten_pair_c(obs, actions):
    states = obs.swapaxes(0, 1).reshape(-1, obs.shape[-1])
    chosen = actions.swapaxes(0, 1).reshape(-1, actions.shape[-1])
    return jnp.concatenate([states, chosen], axis=-1)


plant(
    "states and actions",
    "reshape for transpose",
    flatten_pair,
    (flatten_pair_b, flatten_pair_c),
    (f32(20, 8, 5), f32(20, 8, 2)),
    where="moves = actions.swapaxes(0, 1).reshape(-1, actions.shape[-1])",
    axes={"obs": ("time", "envs", None), "actions": ("time", "envs", None)},
)


def patches(images):
    batch, height, width, channels = images.shape
    return images.reshape(batch, (height // 4) * (width // 4), 4 * 4 * channels)


def patches_b(images):
    batch, height, width, channels = images.shape
    tiles = images.reshape(batch, height // 4, 4, width // 4, 4, channels)
    return tiles.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, 4 * 4 * channels)


def embed_patches(split):
    return lambda params, images: (split(images) @ params["w"]).mean(axis=1)


plant(
    "patches",
    "reshape for transpose",
    embed_patches(patches),
    (embed_patches(patches_b),),
    ({"w": f32(48, 8)}, f32(2, 16, 16, 3)),
    where="return images.reshape(batch, (height // 4) * (width // 4), 4 * 4 * channels)",
    axes={"images": ("batch", "height", "width", None)},
)


# Indices.


def finger_reward(sensors, torque):
    thumb, tip = sensors[0], sensors[5]
    return jnp.exp(-jnp.abs(thumb - tip)) - 0.01 * jnp.sum(torque**2)


def finger_reward_b(sensors, torque):
    thumb, tip = sensors[0], sensors[3]
    return jnp.exp(-jnp.abs(thumb - tip)) - 0.01 * jnp.sum(torque**2)


def finger_reward_c(sensors, torque):
    thumb, tip = sensors[0], sensors[-2]
    spare = sensors.at[5].get(mode="fill", fill_value=0.0)
    return jnp.exp(-jnp.abs(thumb - tip)) + spare - 0.01 * jnp.sum(torque**2)


plant(
    "finger tips",
    "index out of range",
    finger_reward,
    (finger_reward_b, finger_reward_c),
    (f32(5), f32(3)),
    where="thumb, tip = sensors[0], sensors[5]",
)


def interpolate(table, x):
    low = jnp.arange(table.shape[0])
    slopes = table[low + 1] - table[low]
    return slopes * x


def interpolate_b(table, x):
    first = jnp.arange(table.shape[0] - 1)
    slopes = table[first + 1] - table[first]
    return slopes * x[:-1]


def interpolate_c(table, x):
    low = jnp.arange(table.shape[0])
    high = (low + 1) % table.shape[0]
    return (table[high] - table[low]) * x


plant(
    "slopes of a table",
    "index out of range",
    interpolate,
    (interpolate_b, interpolate_c),
    (f32(16), f32(16)),
    where="slopes = table[low + 1] - table[low]",
)


def block_means(x, block=8):
    blocks = jnp.arange(x.shape[0] // block + 1)
    take = lambda b: jax.lax.dynamic_slice_in_dim(x, b * block, block).mean()
    return jax.vmap(take)(blocks)


def block_means_b(x, block=8):
    numbers = jnp.arange(x.shape[0] // block)
    take = lambda b: jax.lax.dynamic_slice_in_dim(x, b * block, block).mean()
    return jax.vmap(take)(numbers)


def block_means_c(x, block=8):
    starts = jnp.arange(x.shape[0] // block + 1) * block
    starts = jnp.minimum(starts, x.shape[0] - block)
    return jax.vmap(lambda s: jax.lax.dynamic_slice_in_dim(x, s, block).mean())(starts)


plant(
    "means of blocks",
    "index out of range",
    block_means,
    (block_means_b, block_means_c),
    (f32(64),),
    where="blocks = jnp.arange(x.shape[0] // block + 1)",
    axes={"x": ("time",)},
)


def scatter_ranks(scores):
    order = jnp.argsort(scores)
    ranks = jnp.zeros(scores.shape[0], jnp.int32).at[order + 1].set(jnp.arange(scores.shape[0]))
    return ranks / scores.shape[0]


def scatter_ranks_b(scores):
    order = jnp.argsort(scores)
    places = jnp.zeros(scores.shape[0], jnp.int32).at[order].set(jnp.arange(scores.shape[0]))
    return places / scores.shape[0]


def scatter_ranks_c(scores):
    order = jnp.argsort(scores)
    places = jnp.zeros(scores.shape[0] + 1, jnp.int32).at[order + 1].set(jnp.arange(scores.shape[0]))
    return places[1:] / scores.shape[0]


plant(
    "ranks",
    "index out of range",
    scatter_ranks,
    (scatter_ranks_b, scatter_ranks_c),
    (f32(20),),
    where="ranks = jnp.zeros(scores.shape[0], jnp.int32).at[order + 1].set(jnp.arange(scores.shape[0]))",
    axes={"scores": ("batch",)},
)


# Means.


def per_document(losses, mask):
    means = jnp.sum(losses * mask, axis=1) / jnp.maximum(mask.sum(axis=1), 1.0)
    chunks = means.reshape(4, -1)
    weights = mask.sum(axis=1).reshape(4, -1).sum(axis=1)
    return chunks.mean(axis=1).mean(), weights.sum()


def per_document_b(losses, mask):
    total = jnp.sum(losses * mask)
    count = jnp.maximum(mask.sum(), 1.0)
    return total / count, count


def per_document_c(losses, mask):
    kept = losses * mask
    return kept.reshape(4, -1).sum(axis=1).sum() / jnp.maximum(mask.sum(), 1.0), mask.sum()


plant(
    "loss of documents",
    "mean of means",
    per_document,
    (per_document_b, per_document_c),
    (f32(16, 30), f32(16, 30)),
    where="return chunks.mean(axis=1).mean(), weights.sum()",
    axes={"losses": ("batch", "length"), "mask": ("batch", "length")},
)


def masked_mean(x, mask):
    return jnp.mean(x * mask) / jnp.maximum(mask.sum(), 1.0)


def masked_mean_b(x, mask):
    return jnp.sum(x * mask) / jnp.maximum(mask.sum(), 1.0)


def masked_mean_c(x, mask):
    return jnp.mean(x * mask) / jnp.maximum(mask.mean(), 1e-6)


plant(
    "masked mean",
    "mean of means",
    masked_mean,
    (masked_mean_b, masked_mean_c),
    (f32(8, 20), f32(8, 20)),
    where="return jnp.mean(x * mask) / jnp.maximum(mask.sum(), 1.0)",
    axes={"x": ("batch", "length"), "mask": ("batch", "length")},
)


# Dtypes.


def brightness(images):
    total = images[..., 0] + images[..., 1] + images[..., 2]
    return total.astype(jnp.float32).mean(axis=(1, 2)) / 765.0


def brightness_b(images):
    colors = images.astype(jnp.float32)
    total = colors[..., 0] + colors[..., 1] + colors[..., 2]
    return total.mean(axis=(1, 2)) / 765.0


def checksum(images):
    flat = images.reshape(images.shape[0], -1).astype(jnp.uint32)
    mix = flat * jnp.uint32(2654435761)
    return jax.lax.reduce(mix, jnp.uint32(0), jax.lax.bitwise_xor, (1,))


U8 = jax.ShapeDtypeStruct((4, 12, 12, 3), jnp.uint8)
plant(
    "brightness",
    "integer overflow",
    brightness,
    (brightness_b, checksum),
    (U8,),
    where="total = images[..., 0] + images[..., 1] + images[..., 2]\n    return total.astype",
    axes={"images": ("batch", "height", "width", None)},
)


def low_precision_count(flags_):
    one = jnp.ones((), jnp.bfloat16)

    def step(total, hit):
        return total + jnp.where(hit, one, 0 * one), None

    return jax.lax.scan(step, jnp.zeros((), jnp.bfloat16), flags_)[0]


def low_precision_count_b(flags_):
    def step(total, hit):
        return total + hit.astype(jnp.int32), None

    return jax.lax.scan(step, jnp.int32(0), flags_)[0]


def low_precision_count_c(flags_):
    def step(ema, hit):
        return (ema * 0.9 + hit.astype(jnp.bfloat16) * 0.1).astype(jnp.bfloat16), None

    return jax.lax.scan(step, jnp.zeros((), jnp.bfloat16), flags_)[0]


plant(
    "count of hits",
    "dtype",
    low_precision_count,
    (low_precision_count_b, low_precision_count_c),
    (flags(5000),),
    where="return total + jnp.where(hit, one, 0 * one), None",
    axes={"flags_": ("time",)},
)


def product_of_shapes(x):
    scale = jnp.int32(70_000) * jnp.int32(70_000)
    return x / scale


def product_of_shapes_b(x):
    area = jnp.float32(70_000) * jnp.float32(70_000)
    return x / area


def product_of_shapes_c(x):
    area = jnp.int32(7_000) * jnp.int32(7_000)
    return x / area


plant(
    "area",
    "integer overflow",
    product_of_shapes,
    (product_of_shapes_b, product_of_shapes_c),
    (f32(10),),
    where="scale = jnp.int32(70_000) * jnp.int32(70_000)",
)


def truncated(progress, lr):
    factor = (progress // 100).astype(jnp.float32)
    return lr * (1.0 - factor)


def bucket(progress, lr):
    stage = progress // 25
    return lr * jnp.power(0.5, stage.astype(jnp.float32))


def truncated_b(progress, lr):
    factor = progress.astype(jnp.float32) / 100.0
    return lr * (1.0 - factor)


plant(
    "progress of a schedule",
    "dtype",
    truncated,
    (truncated_b, bucket),
    (i32(), f32()),
    where="factor = (progress // 100).astype(jnp.float32)",
)


# Joint axes of two arrays.


def interaction(users, items):
    return jnp.einsum("bi,ib->b", users, items)


def interaction_b(users, items):
    return jnp.einsum("bi,bi->b", users, items)


def interaction_c(users, items):
    return jnp.einsum("bi,ci->bc", users, items).diagonal()


plant(
    "interactions",
    "wrong axis",
    interaction,
    (interaction_b, interaction_c),
    (f32(10, 10), f32(10, 10)),
    where='return jnp.einsum("bi,ib->b", users, items)',
    axes={"users": ("batch", "features"), "items": ("batch", "features")},
)


def blend(values, weights):
    return jnp.sum(values * weights, axis=0)


def blend_b(values, weights):
    return jnp.sum(values * weights[:, None], axis=0)


plant(
    "mixture of experts",
    "(N,) meets (N, 1)",
    blend,
    (blend_b,),
    (f32(6, 6), f32(6)),
    where="return jnp.sum(values * weights, axis=0)",
    axes={"values": ("experts", "batch"), "weights": ("experts",)},
)
