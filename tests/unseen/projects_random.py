"""Random numbers: keys that are used twice, shared, or never."""

from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp

from unseen.case import Case, f32, i32, key

CASES = []
add = CASES.append


# Reset of a task.


class Body(NamedTuple):
    qpos: jax.Array
    qvel: jax.Array
    target: jax.Array


def reset(rng):
    rng, joint_rng, target_rng = jax.random.split(rng, 3)
    qpos = jax.random.uniform(joint_rng, (7,), minval=-0.1, maxval=0.1)
    qvel = 0.01 * jax.random.normal(joint_rng, (7,))
    angle = jax.random.uniform(target_rng, (), minval=-jnp.pi, maxval=jnp.pi)
    return Body(qpos, qvel, jnp.stack([jnp.cos(angle), jnp.sin(angle)]))


def reset_b(rng):
    joint_rng, speed_rng, target_rng = jax.random.split(rng, 3)
    qpos = jax.random.uniform(joint_rng, (7,), minval=-0.1, maxval=0.1)
    qvel = 0.01 * jax.random.normal(speed_rng, (7,))
    angle = jax.random.uniform(target_rng, (), minval=-jnp.pi, maxval=jnp.pi)
    return Body(qpos, qvel, jnp.stack([jnp.cos(angle), jnp.sin(angle)]))


def reset_many(one):
    return lambda rng: jax.vmap(one)(jax.random.split(rng, 16))


add(
    Case(
        "reset of joints",
        "key reuse",
        reset_many(reset),
        (reset_many(reset_b),),
        lambda: (key(),),
        where="qvel = 0.01 * jax.random.normal(joint_rng, (7,))",
        source="mujoco_playground#349: one key for positions and velocities",
    )
)


# Meta training.


def sample_ruleset(rng):
    return jax.random.randint(rng, (4,), 0, 30)


def reset_grid(rng, ruleset):
    cells = jax.random.randint(rng, (5, 5), 0, 4)
    return cells.at[ruleset[0] % 5, ruleset[1] % 5].set(9)


def start_tasks(rng, num_envs=32):
    rng, rules_rng, env_rng = jax.random.split(rng, num=3)
    ruleset_keys = jax.random.split(rng, num=num_envs)
    reset_keys = jax.random.split(rng, num=num_envs)
    rulesets = jax.vmap(sample_ruleset)(ruleset_keys)
    return jax.vmap(reset_grid)(reset_keys, rulesets), rulesets


def start_tasks_b(rng, num_envs=32):
    rng, rules_rng, env_rng = jax.random.split(rng, num=3)
    ruleset_keys = jax.random.split(rules_rng, num=num_envs)
    starts = jax.random.split(env_rng, num=num_envs)
    rulesets = jax.vmap(sample_ruleset)(ruleset_keys)
    return jax.vmap(reset_grid)(starts, rulesets), rulesets


add(
    Case(
        "tasks of meta training",
        "key reuse",
        start_tasks,
        (start_tasks_b,),
        lambda: (key(),),
        where="reset_keys = jax.random.split(rng, num=num_envs)",
        source="xland-minigrid#42: the split keys are not used",
    )
)


# Rollout whose key does not move.


def act(params, obs, rng):
    logits = jnp.tanh(obs @ params["w1"]) @ params["w2"]
    return jax.random.categorical(rng, logits)


def rollout(params, obs, rng):
    def step(carry, _):
        obs, rng = carry
        _, act_rng, noise_rng = jax.random.split(rng, 3)
        action = act(params, obs, act_rng)
        moved = obs.at[:, 0].add(jnp.where(action == 0, -0.1, 0.1))
        moved = moved + 0.01 * jax.random.normal(noise_rng, obs.shape)
        return (moved, rng), (obs, action)

    return jax.lax.scan(step, (obs, rng), None, length=24)


def rollout_b(params, obs, rng):
    def step(carry, _):
        obs, rng = carry
        rng, act_rng, noise_rng = jax.random.split(rng, 3)
        action = act(params, obs, act_rng)
        moved = obs.at[:, 0].add(jnp.where(action == 0, -0.1, 0.1))
        moved = moved + 0.01 * jax.random.normal(noise_rng, obs.shape)
        return (moved, rng), (obs, action)

    return jax.lax.scan(step, (obs, rng), None, length=24)


add(
    Case(
        "rollout's key",
        "key reuse",
        rollout,
        (rollout_b,),
        lambda: ({"w1": f32(5, 16), "w2": f32(16, 3)}, f32(10, 5), key()),
        where="_, act_rng, noise_rng = jax.random.split(rng, 3)",
        axes={"obs": ("envs", None)},
        source="scripts in the manner of PureJaxRL: the first of the split keys is dropped",
    )
)


# Dropout under vmap.


class Encoder(eqx.Module):
    lin: eqx.nn.Linear
    drop: eqx.nn.Dropout
    out: eqx.nn.Linear

    def __call__(self, x, rng):
        h = jax.nn.relu(self.lin(x))
        return self.out(self.drop(h, key=rng))


def make_encoder(rng):
    k1, k2 = jax.random.split(rng)
    return Encoder(eqx.nn.Linear(8, 32, key=k1), eqx.nn.Dropout(0.3), eqx.nn.Linear(32, 4, key=k2))


def dropout_loss(rng, x, y):
    model_rng, rng = jax.random.split(rng)
    model = make_encoder(model_rng)
    pred = jax.vmap(lambda row: model(row, rng))(x)
    return jnp.mean((pred - y) ** 2)


def dropout_loss_b(rng, x, y):
    model_rng, rng = jax.random.split(rng)
    model = make_encoder(model_rng)
    preds = jax.vmap(model)(x, jax.random.split(rng, x.shape[0]))
    return jnp.mean((preds - y) ** 2)


add(
    Case(
        "dropout of a batch",
        "key shared by batch elements",
        dropout_loss,
        (dropout_loss_b,),
        lambda: (key(), f32(64, 8), f32(64, 4)),
        where="pred = jax.vmap(lambda row: model(row, rng))(x)",
        axes={"x": ("batch", None), "y": ("batch", None)},
        source="equinox#181: closing over the key",
    )
)


# Population of agents.


def init_agent(rng, obs_dim=6):
    k1, k2 = jax.random.split(rng)
    return {"w1": jax.random.normal(k1, (obs_dim, 16)), "w2": jax.random.normal(k2, (16, 2))}


def evaluate_agent(params, rng, scale):
    obs = scale * jax.random.normal(rng, (20, 6))
    return jnp.mean(jnp.tanh(obs @ params["w1"]) @ params["w2"])


def population(rng, scales):
    init_rng, eval_rng = jax.random.split(rng)
    agents = jax.vmap(lambda _: init_agent(init_rng))(jnp.arange(scales.shape[0]))
    keys = jax.random.split(eval_rng, scales.shape[0])
    return jax.vmap(evaluate_agent)(agents, keys, scales)


def population_b(rng, scales):
    init_rng, eval_rng = jax.random.split(rng)
    agents = jax.vmap(init_agent)(jax.random.split(init_rng, scales.shape[0]))
    keys = jax.random.split(eval_rng, scales.shape[0])
    return jax.vmap(evaluate_agent)(agents, keys, scales)


add(
    Case(
        "population",
        "key shared by batch elements",
        population,
        (population_b,),
        lambda: (key(), f32(12)),
        where="agents = jax.vmap(lambda _: init_agent(init_rng))(jnp.arange(scales.shape[0]))",
        axes={"scales": ("agents",)},
        source="population-based training in JAX: all members start equal",
    )
)


# Sampler of a diffusion model.


def denoise(params, x, t):
    h = jnp.tanh(jnp.concatenate([x, jnp.full((x.shape[0], 1), t)], axis=-1) @ params["w1"])
    return h @ params["w2"]


def ancestral(params, rng, shape, betas):
    init_rng, step_rng = jax.random.split(rng)
    alphas = 1.0 - betas

    def step(x, t):
        eps = denoise(params, x, t)
        mean = (x - betas[t] * eps) / jnp.sqrt(alphas[t])
        noise = jax.random.normal(step_rng, x.shape)
        return mean + jnp.sqrt(betas[t]) * noise, None

    x = jax.random.normal(init_rng, shape)
    return jax.lax.scan(step, x, jnp.arange(betas.shape[0])[::-1])[0]


def ancestral_b(params, rng, shape, betas):
    init_rng, step_rng = jax.random.split(rng)
    alphas = 1.0 - betas

    def step(x, t):
        eps = denoise(params, x, t)
        mean = (x - betas[t] * eps) / jnp.sqrt(alphas[t])
        noise = jax.random.normal(jax.random.fold_in(step_rng, t), x.shape)
        return mean + jnp.sqrt(betas[t]) * noise, None

    x = jax.random.normal(init_rng, shape)
    return jax.lax.scan(step, x, jnp.arange(betas.shape[0])[::-1])[0]


add(
    Case(
        "ancestral sampling",
        "key reuse",
        lambda params, rng, betas: ancestral(params, rng, (16, 2), betas),
        (lambda params, rng, betas: ancestral_b(params, rng, (16, 2), betas),),
        lambda: ({"w1": f32(3, 32), "w2": f32(32, 2)}, key(), f32(50)),
        where="noise = jax.random.normal(step_rng, x.shape)",
        source="diffusion samplers in JAX: the key is closed over by scan",
    )
)


# A key that is stored and not set.


class Deck(NamedTuple):
    cards: jax.Array
    drawn: jax.Array
    rng: jax.Array


def new_deck(rng):
    rng, shuffle_rng = jax.random.split(rng)
    return Deck(jax.random.permutation(shuffle_rng, 52), jnp.int32(0), jax.random.key(0))


def new_deck_b(rng):
    rng, shuffle_rng = jax.random.split(rng)
    return Deck(jax.random.permutation(shuffle_rng, 52), jnp.int32(0), rng)


def draw(deck, _):
    rng, shuffle_rng = jax.random.split(deck.rng)
    empty = deck.drawn >= 52
    cards = jnp.where(empty, jax.random.permutation(shuffle_rng, 52), deck.cards)
    at = jnp.where(empty, 0, deck.drawn)
    return Deck(cards, at + 1, rng), cards[at]


def play(new):
    def one(rng):
        return jax.lax.scan(draw, new(rng), None, length=120)[1]

    return lambda rng: jax.vmap(one)(jax.random.split(rng, 8))


add(
    Case(
        "second deck",
        "key shared by batch elements",
        play(new_deck),
        (play(new_deck_b),),
        lambda: (key(),),
        where="return Deck(jax.random.permutation(shuffle_rng, 52), jnp.int32(0), jax.random.key(0))",
        source="mahjax#71 and #72: the wall's key stays at its default",
    )
)


# Epsilon greedy.


def q_values(params, obs):
    return jnp.maximum(obs @ params["w1"], 0) @ params["w2"]


def explore(params, obs, rng, epsilon):
    q = q_values(params, obs)
    rng, eps_rng = jax.random.split(rng)
    greedy = jnp.argmax(q, axis=-1)
    random_actions = jax.random.uniform(eps_rng, greedy.shape) * q.shape[-1]
    coin = jax.random.uniform(eps_rng, greedy.shape) < epsilon
    return rng, jnp.where(coin, random_actions.astype(jnp.int32), greedy)


def explore_b(params, obs, rng, epsilon):
    q = q_values(params, obs)
    rng, eps_rng, action_rng = jax.random.split(rng, 3)
    greedy = jnp.argmax(q, axis=-1)
    random_actions = jax.random.uniform(action_rng, greedy.shape) * q.shape[-1]
    flip = jax.random.uniform(eps_rng, greedy.shape) < epsilon
    return rng, jnp.where(flip, random_actions.astype(jnp.int32), greedy)


add(
    Case(
        "epsilon greedy",
        "key reuse",
        explore,
        (explore_b,),
        lambda: ({"w1": f32(6, 16), "w2": f32(16, 4)}, f32(32, 6), key(), f32()),
        where="coin = jax.random.uniform(eps_rng, greedy.shape) < epsilon",
        axes={"obs": ("envs", None)},
        source="epsilon-greedy policies: the same numbers choose whether and what",
    )
)


# More keys than were split.


def init_network(rng, sizes=(8, 32, 32, 4)):
    keys = jax.random.split(rng, len(sizes) - 1)
    layers = []
    for i in range(1, len(sizes)):
        scale = jnp.sqrt(2.0 / sizes[i - 1])
        layers.append((scale * jax.random.normal(keys[i], (sizes[i - 1], sizes[i])), jnp.zeros(sizes[i])))
    return layers


def init_network_b(rng, sizes=(8, 32, 32, 4)):
    keys = jax.random.split(rng, len(sizes))
    layers = []
    for i in range(1, len(sizes)):
        std = jnp.sqrt(2.0 / sizes[i - 1])
        layers.append((std * jax.random.normal(keys[i], (sizes[i - 1], sizes[i])), jnp.zeros(sizes[i])))
    return layers


def apply_network(init):
    def run(rng, x):
        layers = init(rng)
        for w, b in layers[:-1]:
            x = jax.nn.relu(x @ w + b)
        return x @ layers[-1][0] + layers[-1][1]

    return run


add(
    Case(
        "keys of layers",
        "index out of range",
        apply_network(init_network),
        (apply_network(init_network_b),),
        lambda: (key(), f32(16, 8)),
        where="layers.append((scale * jax.random.normal(keys[i], (sizes[i - 1], sizes[i])), jnp.zeros(sizes[i])))",
        axes={"x": ("batch", None)},
        source="networks by hand: the keys are counted from zero, the layers from one",
    )
)


# Variational autoencoder.


class VAE(nn.Module):
    latents: int = 4

    @nn.compact
    def __call__(self, x, rng):
        h = nn.relu(nn.Dense(32)(x))
        mean, logvar = nn.Dense(self.latents)(h), nn.Dense(self.latents)(h)
        z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(rng, mean.shape)
        return nn.Dense(x.shape[-1])(nn.relu(nn.Dense(32)(z))), mean, logvar


vae = VAE()


def elbo(params, x, rng):
    recon, mean, logvar = vae.apply(params, x, rng)
    kl = -0.5 * jnp.sum(1 + logvar - mean**2 - jnp.exp(logvar), axis=-1)
    return jnp.mean(jnp.sum((recon - x) ** 2, axis=-1) + kl)


def train_vae(rng, data):
    params = vae.init(rng, data[0], rng)

    def step(carry, x):
        params, step_rng = carry
        step_rng, noise_rng = jax.random.split(step_rng)
        loss, grads = jax.value_and_grad(elbo)(params, x, noise_rng)
        return (jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), step_rng), loss

    return jax.lax.scan(step, (params, rng), data)


def train_vae_b(rng, data):
    init_rng, noise_rng, rng = jax.random.split(rng, 3)
    params = vae.init(init_rng, data[0], noise_rng)

    def step(carry, x):
        params, step_rng = carry
        step_rng, sample_rng = jax.random.split(step_rng)
        loss, grads = jax.value_and_grad(elbo)(params, x, sample_rng)
        return (jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), step_rng), loss

    return jax.lax.scan(step, (params, rng), data)


add(
    Case(
        "variational autoencoder",
        "key reuse",
        train_vae,
        (train_vae_b,),
        lambda: (key(), f32(6, 20, 10)),
        where="params = vae.init(rng, data[0], rng)",
        axes={"data": ("steps", "batch", None)},
        source="Flax examples as users change them: one key to initialize and to sample",
    )
)


# Metropolis steps.


def log_density(x):
    return -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4)


def metropolis(rng, x0, steps):
    def step(x, rng):
        proposal = x + 0.5 * jax.random.normal(rng, x.shape)
        log_ratio = log_density(proposal) - log_density(x)
        accept = jnp.log(jax.random.uniform(rng)) < log_ratio
        return jnp.where(accept, proposal, x), accept

    return jax.lax.scan(step, x0, jax.random.split(rng, steps))


def metropolis_b(rng, x0, steps):
    def step(x, rng):
        proposal_rng, accept_rng = jax.random.split(rng)
        proposal = x + 0.5 * jax.random.normal(proposal_rng, x.shape)
        log_ratio = log_density(proposal) - log_density(x)
        taken = jnp.log(jax.random.uniform(accept_rng)) < log_ratio
        return jnp.where(taken, proposal, x), taken

    return jax.lax.scan(step, x0, jax.random.split(rng, steps))


def chains(kernel):
    def run(rng, starts):
        keys = jax.random.split(rng, starts.shape[0])
        return jax.vmap(lambda k, x: kernel(k, x, 40))(keys, starts)

    return run


add(
    Case(
        "metropolis acceptance",
        "key reuse",
        chains(metropolis),
        (chains(metropolis_b),),
        lambda: (key(), f32(4, 3)),
        where="accept = jnp.log(jax.random.uniform(rng)) < log_ratio",
        axes={"starts": ("chains", None)},
        source="BlackJAX users' kernels: one key to propose and to accept",
    )
)


# Augmentation.


def crop(image, rng, pad=4):
    padded = jnp.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="edge")
    start = jax.random.randint(rng, (2,), 0, 2 * pad + 1)
    return jax.lax.dynamic_slice(padded, (start[0], start[1], 0), image.shape)


def augment(rng, images, labels):
    flip_rng, crop_rng = jax.random.split(rng)
    flip = jax.random.bernoulli(flip_rng, 0.5, (images.shape[0], 1, 1, 1))
    images = jnp.where(flip, images[:, :, ::-1], images)
    images = jax.vmap(crop, in_axes=(0, None))(images, crop_rng)
    return images, labels


def augment_b(rng, images, labels):
    flip_rng, crop_rng = jax.random.split(rng)
    flip = jax.random.bernoulli(flip_rng, 0.5, (images.shape[0], 1, 1, 1))
    images = jnp.where(flip, images[:, :, ::-1], images)
    images = jax.vmap(crop)(images, jax.random.split(crop_rng, images.shape[0]))
    return images, labels


add(
    Case(
        "random crops",
        "key shared by batch elements",
        augment,
        (augment_b,),
        lambda: (key(), f32(8, 16, 16, 3), i32(8)),
        where="images = jax.vmap(crop, in_axes=(0, None))(images, crop_rng)",
        axes={"images": ("batch", "height", "width", None), "labels": ("batch",)},
        source="DrQ in JAX: the same shift for all images of a batch",
    )
)
