"""Mistakes planted into losses, layers and agents, with right programs that look like them."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []


def plant(*args, **kwargs):
    CASES.append(Case(*args, **kwargs, planted=True))


# A critic of continuous actions.


class Critic(nn.Module):
    width: int = 32

    @nn.compact
    def __call__(self, obs, action):
        h = jnp.concatenate([obs, action], axis=-1)
        h = nn.relu(nn.Dense(self.width)(h))
        h = nn.relu(nn.Dense(self.width)(h))
        return nn.Dense(1)(h)


CRITIC = Critic()
CRITIC_OPTIMIZER = optax.adam(3e-4)


def critic_update(loss_fn):
    def update(params, target_params, opt_state, obs, action, reward, next_obs, next_action, done):
        next_q = CRITIC.apply(target_params, next_obs, next_action).squeeze(-1)
        target = jax.lax.stop_gradient(reward + 0.99 * (1.0 - done) * next_q)
        loss, grads = jax.value_and_grad(loss_fn)(params, obs, action, target)
        updates, opt_state = CRITIC_OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        target_params = optax.incremental_update(params, target_params, 0.005)
        return params, target_params, opt_state, loss

    return update


def critic_loss(params, obs, action, target):
    q = CRITIC.apply(params, obs, action)
    error = q - target
    return jnp.mean(optax.huber_loss(error))


def critic_loss_b(params, obs, action, target):
    q = CRITIC.apply(params, obs, action)
    error = q.squeeze(-1) - target
    return jnp.mean(optax.huber_loss(error))


def critic_loss_c(params, obs, action, target):
    q = CRITIC.apply(params, obs, action)
    gaps = q - q.squeeze(-1)
    wanted = target[:, None] - target
    return jnp.mean(optax.sigmoid_binary_cross_entropy(gaps, wanted > 0))


def critic_args():
    params = shapes_of(CRITIC.init, key(), f32(16, 5), f32(16, 2))
    opt_state = shapes_of(CRITIC_OPTIMIZER.init, params)
    return params, params, opt_state, f32(16, 5), f32(16, 2), f32(16), f32(16, 5), f32(16, 2), f32(16)


plant(
    "critic of continuous actions",
    "broadcast",
    critic_update(critic_loss),
    (critic_update(critic_loss_b), critic_update(critic_loss_c)),
    critic_args,
    where="error = q - target\n",
    axes={"obs": ("batch", None), "action": ("batch", None), "reward": ("batch",), "done": ("batch",)},
)


# A critic of quantiles.


def quantile_network(params, obs):
    h = jax.nn.relu(obs @ params["w1"] + params["b1"])
    return (h @ params["w2"]).reshape(obs.shape[0], 4, -1)


def quantile_learner(distance):
    def loss(params, target_params, obs, action, reward, next_obs, done):
        rows = jnp.arange(obs.shape[0])
        predicted = quantile_network(params, obs)[rows, action]
        following = quantile_network(target_params, next_obs)
        best = following.mean(axis=-1).argmax(axis=-1)
        target = reward[:, None] + 0.99 * (1.0 - done)[:, None] * following[rows, best]
        return distance(predicted, jax.lax.stop_gradient(target))

    return loss


def quantile_distance(predicted, target):
    levels = (jnp.arange(predicted.shape[-1]) + 0.5) / predicted.shape[-1]
    delta = target - predicted
    weight = jnp.abs(levels - (delta < 0))
    return jnp.mean(jnp.sum(weight * optax.huber_loss(delta), axis=-1))


def quantile_distance_b(predicted, target):
    levels = (jnp.arange(predicted.shape[-1]) + 0.5) / predicted.shape[-1]
    delta = target[:, None, :] - predicted[:, :, None]
    weight = jnp.abs(levels[:, None] - (delta < 0))
    return jnp.mean(jnp.sum(jnp.mean(weight * optax.huber_loss(delta), axis=-1), axis=-1))


def quantile_distance_c(predicted, target):
    delta = jnp.sort(target, axis=-1) - jnp.sort(predicted, axis=-1)
    return jnp.mean(jnp.sum(optax.huber_loss(delta), axis=-1))


QUANTILE_PARAMS = {"w1": f32(6, 24), "b1": f32(24), "w2": f32(24, 4 * 11)}

plant(
    "critic of quantiles",
    "broadcast",
    quantile_learner(quantile_distance),
    (quantile_learner(quantile_distance_b), quantile_learner(quantile_distance_c)),
    (QUANTILE_PARAMS, QUANTILE_PARAMS, f32(9, 6), i32(9), f32(9), f32(9, 6), f32(9)),
    where="delta = target - predicted\n",
    differentiate="params",
)


# Several answers to each question.


def answer_logps(params, tokens):
    h = jnp.tanh(params["embed"][tokens[..., :-1]])
    logps = jax.nn.log_softmax(h @ params["head"])
    return jnp.take_along_axis(logps, tokens[..., 1:, None], axis=-1)[..., 0]


def answers_learner(advantages):
    def loss(params, tokens, old_logps, rewards, valid):
        logps = answer_logps(params, tokens)
        ratio = jnp.exp(logps - old_logps)
        gain = advantages(rewards)[..., None]
        clipped = jnp.clip(ratio, 0.8, 1.2)
        objective = jnp.minimum(ratio * gain, clipped * gain)
        return -jnp.sum(objective * valid) / jnp.maximum(valid.sum(), 1.0)

    return loss


def answer_advantages(rewards):
    mean = rewards.mean(axis=0, keepdims=True)
    spread = rewards.std(axis=0, keepdims=True)
    return (rewards - mean) / (spread + 1e-4)


def answer_advantages_b(rewards):
    mean = rewards.mean(axis=1, keepdims=True)
    spread = rewards.std(axis=1, keepdims=True)
    return (rewards - mean) / (spread + 1e-4)


def answer_advantages_c(rewards):
    """The answers of a question were drawn at rising temperatures, each with a baseline of its own."""
    baseline = rewards.mean(axis=0)
    gain = rewards - baseline
    return gain / (jnp.sqrt(jnp.mean(gain**2)) + 1e-4)


plant(
    "answers in groups",
    "wrong axis",
    answers_learner(answer_advantages),
    (answers_learner(answer_advantages_b), answers_learner(answer_advantages_c)),
    ({"embed": f32(12, 16), "head": f32(16, 12)}, i32(6, 8, 10), f32(6, 8, 9), f32(6, 8), f32(6, 8, 9)),
    where="mean = rewards.mean(axis=0, keepdims=True)\n    spread = rewards.std(axis=0, keepdims=True)",
    axes={"tokens": ("questions", "answers", None), "rewards": ("questions", "answers")},
    differentiate="params",
)


# A forecast from what is past.


def past_mix(params, h):
    length = h.shape[1]
    padded = jnp.pad(h, ((0, 0), (2, 0), (0, 0)))
    taps = [padded[:, i : i + length] @ params["taps"][i] for i in range(3)]
    return jax.nn.gelu(sum(taps))


def forecast(params, series):
    h = series @ params["in"]
    for block in params["blocks"]:
        centre = h.mean(axis=1, keepdims=True)
        spread = jnp.sqrt(h.var(axis=1, keepdims=True) + 1e-5)
        normed = (h - centre) / spread * block["gain"] + block["shift"]
        h = h + past_mix(block, normed)
    return h @ params["out"]


def forecast_b(params, series):
    h = series @ params["in"]
    for block in params["blocks"]:
        centre = h.mean(axis=-1, keepdims=True)
        spread = jnp.sqrt(h.var(axis=-1, keepdims=True) + 1e-5)
        normed = (h - centre) / spread * block["gain"] + block["shift"]
        h = h + past_mix(block, normed)
    return h @ params["out"]


def forecast_c(params, series):
    seen = series[:, : series.shape[1] // 2]
    level = seen.mean(axis=1, keepdims=True)
    spread = jnp.sqrt(seen.var(axis=1, keepdims=True) + 1e-5)
    h = (series - level) / spread @ params["in"]
    for block in params["blocks"]:
        h = h + past_mix(block, h * block["gain"] + block["shift"])
    return (h @ params["out"]) * spread + level


def forecast_loss(model):
    def loss(params, series):
        predicted = model(params, series[:, :-1])
        return jnp.mean(jnp.abs(predicted - series[:, 1:])[:, series.shape[1] // 2 :])

    return loss


FORECAST_BLOCK = {"gain": f32(12), "shift": f32(12), "taps": f32(3, 12, 12)}

plant(
    "forecast of series",
    "wrong axis",
    forecast_loss(forecast),
    (forecast_loss(forecast_b), forecast_loss(forecast_c)),
    ({"in": f32(3, 12), "blocks": [FORECAST_BLOCK, FORECAST_BLOCK], "out": f32(12, 3)}, f32(7, 20, 3)),
    where="centre = h.mean(axis=1, keepdims=True)\n        spread = jnp.sqrt(h.var(axis=1, keepdims=True) + 1e-5)",
    axes={"series": ("batch", "time", None)},
    differentiate="params",
)


# A layer of experts.


def experts_of(params, x):
    hidden = jax.nn.silu(jnp.einsum("td,edh->teh", x, params["up"]))
    return jnp.einsum("teh,ehd->ted", hidden, params["down"])


def routed(params, x, chosen=2):
    gates = jax.nn.softmax(x @ params["router"], axis=0)
    best, which = jax.lax.top_k(gates, chosen)
    best = best / best.sum(axis=-1, keepdims=True)
    outs = jnp.take_along_axis(experts_of(params, x), which[..., None], axis=1)
    share = jax.nn.one_hot(which[:, 0], gates.shape[-1]).mean(axis=0)
    balance = gates.shape[-1] * jnp.sum(share * gates.mean(axis=0))
    return jnp.einsum("tk,tkd->td", best, outs), balance


def routed_b(params, x, chosen=2):
    gates = jax.nn.softmax(x @ params["router"], axis=-1)
    best, which = jax.lax.top_k(gates, chosen)
    best = best / best.sum(axis=-1, keepdims=True)
    outs = jnp.take_along_axis(experts_of(params, x), which[..., None], axis=1)
    share = jax.nn.one_hot(which[:, 0], gates.shape[-1]).mean(axis=0)
    balance = gates.shape[-1] * jnp.sum(share * gates.mean(axis=0))
    return jnp.einsum("tk,tkd->td", best, outs), balance


def routed_c(params, x):
    """One slot of each expert takes a mixture of all tokens."""
    scores = x @ params["router"]
    dispatch = jax.nn.softmax(scores, axis=0)
    combine = jax.nn.softmax(scores, axis=1)
    slots = jnp.einsum("te,td->ed", dispatch, x)
    hidden = jax.nn.silu(jnp.einsum("ed,edh->eh", slots, params["up"]))
    outs = jnp.einsum("eh,ehd->ed", hidden, params["down"])
    return combine @ outs, jnp.zeros(())


def expert_loss(layer):
    def loss(params, x, y):
        out, balance = layer(params, x)
        return jnp.mean((x + out - y) ** 2) + 0.01 * balance

    return loss


plant(
    "layer of experts",
    "softmax",
    expert_loss(routed),
    (expert_loss(routed_b), expert_loss(routed_c)),
    ({"router": f32(10, 4), "up": f32(4, 10, 14), "down": f32(4, 14, 10)}, f32(24, 10), f32(24, 10)),
    where='gates = jax.nn.softmax(x @ params["router"], axis=0)',
    axes={"x": ("tokens", None), "y": ("tokens", None)},
    differentiate="params",
)


# A block that attends.


def heads_of(params, x):
    parts = [jnp.einsum("bld,dhk->bhlk", x, params[name]) for name in ("q", "k", "v")]
    return parts[0] / jnp.sqrt(parts[0].shape[-1]), parts[1], parts[2]


def block_attention(params, x):
    q, k, v = heads_of(params, x)
    scores = jnp.einsum("bhqk,bhsk->bhqs", q, k)
    weights = jax.nn.softmax(scores, axis=2)
    mixed = jnp.einsum("bhqs,bhsk->bqhk", weights, v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, params["o"])


def block_attention_b(params, x):
    q, k, v = heads_of(params, x)
    scores = jnp.einsum("bhqk,bhsk->bhqs", q, k)
    weights = jax.nn.softmax(scores, axis=3)
    mixed = jnp.einsum("bhqs,bhsk->bqhk", weights, v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, params["o"])


def block_attention_c(params, x):
    """Queries compete for each place, as slots do, and then take the mean of what they won."""
    q, k, v = heads_of(params, x)
    scores = jnp.einsum("bhqk,bhsk->bhqs", q, k)
    won = jax.nn.softmax(scores, axis=2) + 1e-6
    means = won / won.sum(axis=3, keepdims=True)
    mixed = jnp.einsum("bhqs,bhsk->bqhk", means, v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, params["o"])


def block_network(attend):
    def apply(params, x):
        h = jax.nn.standardize(x, axis=-1)
        x = x + attend(params, h)
        h = jax.nn.gelu(jax.nn.standardize(x, axis=-1) @ params["up"])
        return x + h @ params["down"]

    return apply


plant(
    "block that attends",
    "softmax",
    block_network(block_attention),
    (block_network(block_attention_b), block_network(block_attention_c)),
    (
        {n: f32(8, 2, 4) for n in ("q", "k", "v")} | {"o": f32(2, 4, 8), "up": f32(8, 16), "down": f32(16, 8)},
        f32(3, 11, 8),
    ),
    where="weights = jax.nn.softmax(scores, axis=2)",
)


# Codes of noisy pictures.


def picture_loss(params, images, codes, seen):
    out = jnp.tanh(codes @ params["dec"]) @ params["pixels"]
    mean, log_std = jnp.split(seen, 2, axis=-1)
    kl = 0.5 * jnp.sum(jnp.exp(2 * log_std) + mean**2 - 1.0 - 2.0 * log_std, axis=-1)
    return jnp.mean(jnp.sum((out - images) ** 2, axis=-1) + kl)


def picture_codes(params, rng, images):
    noisy = images + 0.1 * jax.random.normal(rng, images.shape)
    seen = jnp.tanh(noisy @ params["enc"]) @ params["stats"]
    mean, log_std = jnp.split(seen, 2, axis=-1)
    codes = mean + jnp.exp(log_std) * jax.random.normal(rng, mean.shape)
    return picture_loss(params, images, codes, seen)


def picture_codes_b(params, rng, images):
    noise_rng, code_rng = jax.random.split(rng)
    noisy = images + 0.1 * jax.random.normal(noise_rng, images.shape)
    seen = jnp.tanh(noisy @ params["enc"]) @ params["stats"]
    mean, log_std = jnp.split(seen, 2, axis=-1)
    codes = mean + jnp.exp(log_std) * jax.random.normal(code_rng, mean.shape)
    return picture_loss(params, images, codes, seen)


def picture_codes_c(params, rng, images):
    crop_rng, code_rng = jax.random.split(rng)
    width = images.shape[-1]
    masks = images > 0.5
    shifts = jax.random.randint(crop_rng, (images.shape[0],), 0, width)
    same = jax.random.randint(crop_rng, (images.shape[0],), 0, width)
    moved = jax.vmap(jnp.roll)(images, shifts)
    moved_masks = jax.vmap(jnp.roll)(masks, same)
    seen = jnp.tanh(moved @ params["enc"]) @ params["stats"]
    mean, log_std = jnp.split(seen, 2, axis=-1)
    codes = mean + jnp.exp(log_std) * jax.random.normal(code_rng, mean.shape)
    return picture_loss(params, moved * moved_masks, codes, seen)


plant(
    "codes of noisy pictures",
    "key",
    picture_codes,
    (picture_codes_b, picture_codes_c),
    lambda: (
        {"enc": f32(30, 18), "stats": f32(18, 8), "dec": f32(4, 18), "pixels": f32(18, 30)},
        key(),
        f32(12, 30),
    ),
    where="codes = mean + jnp.exp(log_std) * jax.random.normal(rng, mean.shape)",
    differentiate="params",
)


# A cart driven by a noisy policy.


def cart_features(params, state):
    return jnp.tanh(params["w"] @ state + params["b"])


def cart_physics(state, force):
    position, speed = state
    speed = 0.98 * speed + 0.05 * jnp.squeeze(force)
    position = position + 0.05 * speed
    reward = -(position**2) - 0.1 * speed**2 - 0.01 * jnp.sum(force**2)
    return jnp.stack([position, speed]), reward


def cart_episode(params, state, rng):
    def step(state, _):
        mean = params["act"] @ cart_features(params, state)
        force = mean + 0.3 * jax.random.normal(rng, mean.shape)
        following, reward = cart_physics(state, force)
        logp = -jnp.sum(((force - mean) / 0.3) ** 2) / 2
        return following, (state, force, reward, logp)

    last, path = jax.lax.scan(step, state, None, length=30)
    return last, path


def cart_episode_b(params, state, rng):
    def step(state, step_rng):
        mean = params["act"] @ cart_features(params, state)
        force = mean + 0.3 * jax.random.normal(step_rng, mean.shape)
        following, reward = cart_physics(state, force)
        logp = -jnp.sum(((force - mean) / 0.3) ** 2) / 2
        return following, (state, force, reward, logp)

    last, path = jax.lax.scan(step, state, jax.random.split(rng, 30))
    return last, path


def cart_episode_c(params, state, rng):
    """The noise is a function of the state, and that function is drawn for the whole episode."""

    def step(state, _):
        features = cart_features(params, state)
        mean = params["act"] @ features
        wander = 0.3 * jax.random.normal(rng, params["act"].shape)
        force = mean + wander @ features
        following, reward = cart_physics(state, force)
        logp = -jnp.sum((force - mean) ** 2 / (0.09 * jnp.sum(features**2))) / 2
        return following, (state, force, reward, logp)

    return jax.lax.scan(step, state, None, length=30)


def cart_surrogate(episode):
    def loss(params, states, rng):
        rngs = jax.random.split(rng, states.shape[0])
        _, (_, force, reward, logp) = jax.vmap(episode, in_axes=(None, 0, 0))(params, states, rngs)
        togo = jnp.cumsum(reward[:, ::-1], axis=1)[:, ::-1]
        togo = jax.lax.stop_gradient(togo - togo.mean(axis=0))
        return -jnp.mean(logp * togo)

    return loss


plant(
    "cart driven by a noisy policy",
    "key",
    cart_surrogate(cart_episode),
    (cart_surrogate(cart_episode_b), cart_surrogate(cart_episode_c)),
    lambda: ({"w": f32(8, 2), "b": f32(8), "act": f32(1, 8)}, f32(6, 2), key()),
    where="force = mean + 0.3 * jax.random.normal(rng, mean.shape)",
)


# Agents with networks of their own.


def agent_network(params, obs):
    h = jax.nn.relu(obs @ params["w1"] + params["b1"])
    return h @ params["w2"], h @ params["v"]


def team_forward(params, obs):
    return jax.vmap(agent_network)(params, obs)


def team_forward_b(params, obs):
    return jax.vmap(agent_network, in_axes=(0, 1), out_axes=1)(params, obs)


def team_forward_c(params, obs):
    by_agent = obs.swapaxes(0, 1)
    logits, values = jax.vmap(agent_network)(params, by_agent)
    return logits.swapaxes(0, 1), values.swapaxes(0, 1)


def team_loss(forward):
    def loss(params, obs, actions, returns):
        logits, values = forward(params, obs)
        logps = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(logps, actions[..., None], axis=-1)[..., 0]
        gain = jax.lax.stop_gradient(returns - values)
        entropy = -jnp.sum(jnp.exp(logps) * logps, axis=-1)
        return jnp.mean(-chosen * gain - 0.01 * entropy + 0.5 * (returns - values) ** 2)

    return loss


plant(
    "agents with networks of their own",
    "vmap",
    team_loss(team_forward),
    (team_loss(team_forward_b), team_loss(team_forward_c)),
    (
        {"w1": f32(5, 7, 16), "b1": f32(5, 16), "w2": f32(5, 16, 4), "v": f32(5, 16)},
        f32(5, 5, 7),
        i32(5, 5),
        f32(5, 5),
    ),
    where="return jax.vmap(agent_network)(params, obs)",
    axes={"obs": ("envs", "agents", None), "actions": ("envs", "agents"), "returns": ("envs", "agents")},
    differentiate="params",
)


# A clipped policy step over a batch of episodes.


def clipped_actor(params, obs):
    h = jnp.tanh(obs @ params["w"])
    return h @ params["pi"], (h @ params["v"])[..., 0]


def episode_gain(rewards, values, dones, last_value, discount=0.99, trace=0.95):
    def backward(carry, step):
        gain, next_value = carry
        reward, value, done = step
        delta = reward + discount * next_value * (1.0 - done) - value
        gain = delta + discount * trace * gain
        return (gain, value), gain

    start = (jnp.zeros_like(last_value), last_value)
    _, gains = jax.lax.scan(backward, start, (rewards, values, dones), reverse=True)
    return gains


def episode_gain_b(rewards, values, dones, last_value, discount=0.99, trace=0.95):
    def backward(carry, step):
        gain, next_value = carry
        reward, value, done = step
        delta = reward + discount * next_value * (1.0 - done) - value
        gain = delta + discount * trace * (1.0 - done) * gain
        return (gain, value), gain

    start = (jnp.zeros_like(last_value), last_value)
    _, gains = jax.lax.scan(backward, start, (rewards, values, dones), reverse=True)
    return gains


def episode_gain_c(rewards, values, dones, last_value, discount=0.99, trace=0.95):
    discounts = discount * (1.0 - dones)
    following = jnp.concatenate([values[1:], last_value[None]])
    deltas = rewards + discounts * following - values

    def backward(gain, step):
        delta, rate = step
        gain = delta + rate * trace * gain
        return gain, gain

    _, gains = jax.lax.scan(backward, jnp.zeros_like(last_value), (deltas, discounts), reverse=True)
    return gains


def clipped_loss(gains_of):
    def loss(params, obs, actions, old_logps, rewards, dones, last_obs):
        logits, values = clipped_actor(params, obs)
        _, last_value = clipped_actor(params, last_obs)
        fixed, last_value = jax.lax.stop_gradient((values, last_value))
        gains = gains_of(rewards, fixed, dones, last_value)
        logps = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
        ratio = jnp.exp(logps - old_logps)
        scaled = (gains - gains.mean()) / (gains.std() + 1e-8)
        surrogate = jnp.minimum(ratio * scaled, jnp.clip(ratio, 0.8, 1.2) * scaled)
        return jnp.mean(0.5 * (values - (gains + fixed)) ** 2 - surrogate)

    return loss


plant(
    "clipped step over episodes",
    "done",
    clipped_loss(episode_gain),
    (clipped_loss(episode_gain_b), clipped_loss(episode_gain_c)),
    (
        {"w": f32(5, 16), "pi": f32(16, 4), "v": f32(16, 1)},
        f32(20, 6, 5),
        i32(20, 6),
        f32(20, 6),
        f32(20, 6),
        flags(20, 6),
        f32(6, 5),
    ),
    where="gain = delta + discount * trace * gain\n",
    axes={
        "obs": ("time", "envs", None),
        "actions": ("time", "envs"),
        "rewards": ("time", "envs"),
        "dones": ("time", "envs"),
    },
    differentiate="params",
)


# Returns of a walk that ends when it leaves the track.


def walk_step(params, state):
    push = jnp.tanh(state @ params["w"] + params["b"])
    following = state + 0.3 * push
    left = jnp.abs(following).max(axis=-1) > 1.0
    return following, 1.0 - jnp.sum(push**2, axis=-1), left


def walk_return(params, states, horizon=12):
    def step(state, _):
        following, reward, left = walk_step(params, state)
        return following, (reward, left)

    _, (rewards, dones) = jax.lax.scan(step, states, None, length=horizon)
    alive = jnp.cumprod(1.0 - dones, axis=0)
    returns = jnp.sum(rewards * alive, axis=0)
    return returns.mean(), alive.sum(axis=0)


def walk_return_b(params, states, horizon=12):
    def step(state, _):
        following, reward, left = walk_step(params, state)
        return following, (reward, left)

    _, (rewards, dones) = jax.lax.scan(step, states, None, length=horizon)
    survived = jnp.cumprod(1.0 - dones, axis=0)
    alive = jnp.concatenate([jnp.ones_like(survived[:1]), survived[:-1]])
    returns = jnp.sum(rewards * alive, axis=0)
    return returns.mean(), alive.sum(axis=0)


def walk_return_c(params, states, horizon=12):
    def step(state, _):
        over = jnp.abs(state).max(axis=-1) > 1.0
        following, reward, _ = walk_step(params, state)
        return following, (reward, over)

    _, (rewards, over) = jax.lax.scan(step, states, None, length=horizon)
    running = jnp.cumprod(1.0 - over, axis=0)
    returns = jnp.sum(rewards * running, axis=0)
    return returns.mean(), running.sum(axis=0)


plant(
    "walk off the track",
    "done",
    walk_return,
    (walk_return_b, walk_return_c),
    ({"w": f32(2, 2), "b": f32(2)}, f32(9, 2)),
    where="alive = jnp.cumprod(1.0 - dones, axis=0)\n",
)


# Two views of each picture.


def view_encoder(params, x):
    h = jax.nn.relu(x @ params["w1"])
    return h @ params["w2"]


def unit(x):
    return x / (jnp.linalg.norm(x, axis=-1, keepdims=True) + 1e-8)


def augmented(rng, x):
    scale_rng, noise_rng = jax.random.split(rng)
    scale = jax.random.uniform(scale_rng, (x.shape[0], 1), minval=0.6, maxval=1.4)
    return x * scale + 0.1 * jax.random.normal(noise_rng, x.shape)


def view_similarity(params, online, other):
    predicted = jax.nn.relu(online @ params["p1"]) @ params["p2"]
    return jnp.mean(jnp.sum(unit(predicted) * unit(other), axis=-1))


def views_loss(params, rng, x):
    left_rng, right_rng = jax.random.split(rng)
    left = view_encoder(params, augmented(left_rng, x))
    right = view_encoder(params, augmented(right_rng, x))
    return -0.5 * (view_similarity(params, left, right) + view_similarity(params, right, left))


def views_loss_b(params, rng, x):
    left_rng, right_rng = jax.random.split(rng)
    left = view_encoder(params, augmented(left_rng, x))
    right = view_encoder(params, augmented(right_rng, x))
    fixed_left, fixed_right = jax.lax.stop_gradient((left, right))
    return -0.5 * (view_similarity(params, left, fixed_right) + view_similarity(params, right, fixed_left))


def views_loss_c(params, rng, x):
    left_rng, right_rng = jax.random.split(rng)
    left = view_encoder(params, augmented(left_rng, x))
    right = view_encoder(params, augmented(right_rng, x))
    spread = sum(jnp.mean(jax.nn.relu(1.0 - jnp.sqrt(v.var(axis=0) + 1e-4))) for v in (left, right))
    both = view_similarity(params, left, right) + view_similarity(params, right, left)
    return spread - 0.5 * both


plant(
    "two views of pictures",
    "stop gradient",
    views_loss,
    (views_loss_b, views_loss_c),
    lambda: ({"w1": f32(12, 20), "w2": f32(20, 8), "p1": f32(8, 6), "p2": f32(6, 8)}, key(), f32(10, 12)),
    where="return -0.5 * (view_similarity(params, left, right) + view_similarity(params, right, left))",
    differentiate="params",
)


# Sounds as codes of a book.


def sound_encode(params, x):
    return jnp.tanh(x @ params["enc1"]) @ params["enc2"]


def sound_decode(params, z):
    return jnp.tanh(z @ params["dec1"]) @ params["dec2"]


def nearest(book, z):
    distances = jnp.sum((z[:, None] - book[None]) ** 2, axis=-1)
    return jnp.argmin(distances, axis=-1), distances


def sound_codes(params, x):
    z = sound_encode(params, x)
    which, _ = nearest(params["book"], z)
    code = params["book"][which]
    book_loss = jnp.mean((code - z) ** 2)
    commitment = jnp.mean((code - z) ** 2)
    passed = z + jax.lax.stop_gradient(code - z)
    return jnp.mean((sound_decode(params, passed) - x) ** 2) + book_loss + 0.25 * commitment


def sound_codes_b(params, x):
    z = sound_encode(params, x)
    which, _ = nearest(params["book"], z)
    code = params["book"][which]
    book_loss = jnp.mean((code - jax.lax.stop_gradient(z)) ** 2)
    commitment = jnp.mean((jax.lax.stop_gradient(code) - z) ** 2)
    passed = z + jax.lax.stop_gradient(code - z)
    return jnp.mean((sound_decode(params, passed) - x) ** 2) + book_loss + 0.25 * commitment


def sound_codes_c(params, x):
    z = sound_encode(params, x)
    _, distances = nearest(params["book"], z)
    code = jax.nn.softmax(-distances / 0.5, axis=-1) @ params["book"]
    drift = jnp.mean((code - z) ** 2)
    return jnp.mean((sound_decode(params, code) - x) ** 2) + 0.25 * drift


plant(
    "sounds as codes",
    "stop gradient",
    sound_codes,
    (sound_codes_b, sound_codes_c),
    (
        {"enc1": f32(16, 12), "enc2": f32(12, 6), "book": f32(9, 6), "dec1": f32(6, 12), "dec2": f32(12, 16)},
        f32(14, 16),
    ),
    where="book_loss = jnp.mean((code - z) ** 2)\n    commitment = jnp.mean((code - z) ** 2)\n",
    differentiate="params",
)


# An actor and a critic on one body.


def shared_body(params, obs):
    h = jax.nn.relu(obs @ params["body"])
    return jax.nn.log_softmax(h @ params["actor"]), h @ params["critic"]


def shared_loss(params, obs, actions, rewards, next_obs, dones):
    logps, values = shared_body(params, obs)
    _, following = shared_body(params, next_obs)
    target = jax.lax.stop_gradient(rewards + 0.97 * (1.0 - dones) * following)
    gain = target - values
    chosen = logps[jnp.arange(obs.shape[0]), actions]
    policy = -jnp.mean(chosen * gain)
    entropy = -jnp.mean(jnp.sum(jnp.exp(logps) * logps, axis=-1))
    return policy + 0.5 * jnp.mean(gain**2) - 0.02 * entropy


def shared_loss_b(params, obs, actions, rewards, next_obs, dones):
    logps, values = shared_body(params, obs)
    _, following = shared_body(params, next_obs)
    target = jax.lax.stop_gradient(rewards + 0.97 * (1.0 - dones) * following)
    gain = target - values
    chosen = logps[jnp.arange(obs.shape[0]), actions]
    policy = -jnp.mean(chosen * jax.lax.stop_gradient(gain))
    entropy = -jnp.mean(jnp.sum(jnp.exp(logps) * logps, axis=-1))
    return policy + 0.5 * jnp.mean(gain**2) - 0.02 * entropy


def shared_loss_c(params, obs, actions, rewards, next_obs, dones):
    """The whole Bellman residual is minimized, by both of its values."""
    logps, values = shared_body(params, obs)
    _, following = shared_body(params, next_obs)
    residual = rewards + 0.97 * (1.0 - dones) * following - values
    chosen = logps[jnp.arange(obs.shape[0]), actions]
    policy = -jnp.mean(chosen * jax.lax.stop_gradient(residual))
    entropy = -jnp.mean(jnp.sum(jnp.exp(logps) * logps, axis=-1))
    return policy + 0.5 * jnp.mean(residual**2) - 0.02 * entropy


plant(
    "actor and critic on one body",
    "stop gradient",
    shared_loss,
    (shared_loss_b, shared_loss_c),
    ({"body": f32(7, 18), "actor": f32(18, 4), "critic": f32(18)}, f32(13, 7), i32(13), f32(13), f32(13, 7), f32(13)),
    where="policy = -jnp.mean(chosen * gain)",
    axes={"obs": ("batch", None), "actions": ("batch",), "rewards": ("batch",), "dones": ("batch",)},
    differentiate="params",
)


# A classifier with running statistics.


class Classifier(nn.Module):
    classes: int = 4

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(24, use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.Dense(24, use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        return nn.Dense(self.classes)(x)


CLASSIFIER = Classifier()
CLASSIFIER_OPTIMIZER = optax.sgd(0.05, momentum=0.9)


def classifier_args():
    variables = shapes_of(functools.partial(CLASSIFIER.init, train=False), key(), f32(8, 10))
    opt_state = shapes_of(CLASSIFIER_OPTIMIZER.init, variables["params"])
    return variables["params"], variables["batch_stats"], opt_state, f32(5, 8, 10), i32(5, 8)


def classifier_epoch(params, stats, opt_state, xs, labels):
    def step(carry, batch):
        params, stats, opt_state = carry
        x, y = batch

        def loss_fn(p):
            variables = {"params": p, "batch_stats": stats}
            logits, _ = CLASSIFIER.apply(variables, x, train=True, mutable=["batch_stats"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = CLASSIFIER_OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, stats, opt_state), (loss, jnp.mean(logits.argmax(-1) == y))

    return jax.lax.scan(step, (params, stats, opt_state), (xs, labels))


def classifier_epoch_b(params, stats, opt_state, xs, labels):
    def step(carry, batch):
        params, stats, opt_state = carry
        x, y = batch

        def loss_fn(p):
            variables = {"params": p, "batch_stats": stats}
            logits, updated = CLASSIFIER.apply(variables, x, train=True, mutable=["batch_stats"])
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
            return loss, (logits, updated["batch_stats"])

        (loss, (logits, stats)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = CLASSIFIER_OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, stats, opt_state), (loss, jnp.mean(logits.argmax(-1) == y))

    return jax.lax.scan(step, (params, stats, opt_state), (xs, labels))


def classifier_epoch_c(params, stats, opt_state, xs, labels):
    """Small batches of a new task: the statistics of the first task are kept."""

    def step(carry, batch):
        params, stats, opt_state = carry
        x, y = batch

        def loss_fn(p):
            logits = CLASSIFIER.apply({"params": p, "batch_stats": stats}, x, train=False)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

        (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = CLASSIFIER_OPTIMIZER.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
        return (params, stats, opt_state), (loss, jnp.mean(logits.argmax(-1) == y))

    return jax.lax.scan(step, (params, stats, opt_state), (xs, labels))


plant(
    "classifier with running statistics",
    "old state",
    classifier_epoch,
    (classifier_epoch_b, classifier_epoch_c),
    classifier_args,
    where='logits, _ = CLASSIFIER.apply(variables, x, train=True, mutable=["batch_stats"])',
    axes={"xs": ("steps", "batch", None), "labels": ("steps", "batch")},
)


# The score of a classifier on held out pictures.


def held_out(params, stats, xs, labels):
    def step(totals, batch):
        x, y = batch
        variables = {"params": params, "batch_stats": stats}
        scores, _ = CLASSIFIER.apply(variables, x, train=True, mutable=["batch_stats"])
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).sum()
        return (totals[0] + loss, totals[1] + jnp.sum(scores.argmax(-1) == y)), None

    (loss, hits), _ = jax.lax.scan(step, (0.0, 0), (xs, labels))
    return loss / labels.size, hits / labels.size


def held_out_b(params, stats, xs, labels):
    def step(totals, batch):
        x, y = batch
        variables = {"params": params, "batch_stats": stats}
        scores = CLASSIFIER.apply(variables, x, train=False)
        loss = optax.softmax_cross_entropy_with_integer_labels(scores, y).sum()
        return (totals[0] + loss, totals[1] + jnp.sum(scores.argmax(-1) == y)), None

    (loss, hits), _ = jax.lax.scan(step, (0.0, 0), (xs, labels))
    return loss / labels.size, hits / labels.size


def held_out_c(params, stats, xs, labels):
    """The weights are a mean of checkpoints: their statistics are estimated anew before they are judged."""

    def estimate(stats, x):
        _, updated = CLASSIFIER.apply({"params": params, "batch_stats": stats}, x, train=True, mutable=["batch_stats"])
        return updated["batch_stats"], None

    stats, _ = jax.lax.scan(estimate, stats, xs)
    return held_out_b(params, stats, xs, labels)


plant(
    "score on held out pictures",
    "evaluation",
    held_out,
    (held_out_b, held_out_c),
    lambda: (*classifier_args()[:2], f32(5, 8, 10), i32(5, 8)),
    where='scores, _ = CLASSIFIER.apply(variables, x, train=True, mutable=["batch_stats"])',
)


# Replay by priority.


def replay_values(params, obs):
    return jax.nn.relu(obs @ params["w1"]) @ params["w2"]


def replay_errors(params, target_params, batch):
    q = jnp.take_along_axis(replay_values(params, batch["obs"]), batch["action"][:, None], axis=-1)[:, 0]
    following = replay_values(target_params, batch["next_obs"]).max(axis=-1)
    target = batch["reward"] + 0.99 * (1.0 - batch["done"]) * following
    return jax.lax.stop_gradient(target) - q


def replay_loss(params, target_params, batch, weights):
    errors = replay_errors(params, target_params, batch)
    return jnp.mean(weights * optax.huber_loss(errors)), errors


def replay_learn(params, target_params, buffer, priorities, rng):
    logits = 0.6 * jnp.log(priorities + 1e-6)
    rows = jax.random.categorical(rng, logits, shape=(8,))
    weights = (priorities.size * jax.nn.softmax(logits)[rows]) ** -0.4
    batch = jax.tree.map(lambda x: x[rows], buffer)
    grads, errors = jax.grad(replay_loss, has_aux=True)(params, target_params, batch, weights / weights.max())
    priorities.at[rows].set(jnp.abs(errors) + 1e-3)
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    return params, priorities, jnp.abs(errors).mean()


def replay_learn_b(params, target_params, buffer, priorities, rng):
    logits = 0.6 * jnp.log(priorities + 1e-6)
    rows = jax.random.categorical(rng, logits, shape=(8,))
    weights = (priorities.size * jax.nn.softmax(logits)[rows]) ** -0.4
    batch = jax.tree.map(lambda x: x[rows], buffer)
    grads, errors = jax.grad(replay_loss, has_aux=True)(params, target_params, batch, weights / weights.max())
    fresh = jnp.abs(errors) + 1e-3
    priorities = priorities.at[rows].set(fresh)
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    return params, priorities, jnp.abs(errors).mean()


def replay_learn_c(params, target_params, buffer, priorities, rng):
    """The newest entries wait for a call before they may be drawn."""
    usual = 0.6 * jnp.log(priorities + 1e-6)
    logits = usual.at[-4:].set(-jnp.inf)
    rows = jax.random.categorical(rng, logits, shape=(8,))
    weights = (priorities.size * jax.nn.softmax(logits)[rows]) ** -0.4
    batch = jax.tree.map(lambda x: x[rows], buffer)
    grads, errors = jax.grad(replay_loss, has_aux=True)(params, target_params, batch, weights / weights.max())
    params = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    return params, priorities.at[rows].set(jnp.abs(errors) + 1e-3), jnp.abs(errors).mean()


def replay_args():
    params = {"w1": f32(5, 16), "w2": f32(16, 4)}
    buffer = {"obs": f32(40, 5), "action": i32(40), "reward": f32(40), "next_obs": f32(40, 5), "done": flags(40)}
    return params, params, buffer, f32(40), key()


plant(
    "replay by priority",
    "result dropped",
    replay_learn,
    (replay_learn_b, replay_learn_c),
    replay_args,
    where="priorities.at[rows].set(jnp.abs(errors) + 1e-3)\n",
)


# A policy that remembers.


def memory_cell(params, h, x):
    update = jax.nn.sigmoid(x @ params["wz"] + h @ params["uz"])
    new = jnp.tanh(x @ params["wn"] + h @ params["un"])
    return (1.0 - update) * h + update * new


def recall(params, h, obs, first):
    def step(h, x):
        h = memory_cell(params, h, x)
        return h, h

    return jax.lax.scan(step, h, obs)


def recall_b(params, h, obs, first):
    def step(h, inputs):
        x, begins = inputs
        h = jnp.where(begins[:, None], 0.0, h)
        h = memory_cell(params, h, x)
        return h, h

    return jax.lax.scan(step, h, (obs, first))


def recall_c(params, h, obs, first):
    """One task over several episodes: what was found in one serves the next, and beginnings are seen as inputs."""

    def step(h, inputs):
        x, begins = inputs
        h = memory_cell(params, h, x.at[:, -1].set(begins.astype(x.dtype)))
        return h, h

    return jax.lax.scan(step, h, (obs, first))


def recall_loss(unroll):
    def loss(params, h, obs, first, actions, rewards):
        h, outs = unroll(params, h, obs, first)
        logps = jax.nn.log_softmax(outs @ params["pi"])
        values = outs @ params["v"]
        following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
        ends = jnp.concatenate([first[1:], jnp.ones_like(first[:1])])
        target = jax.lax.stop_gradient(rewards + 0.99 * jnp.where(ends, 0.0, following))
        gain = target - values
        chosen = jnp.take_along_axis(logps, actions[..., None], axis=-1)[..., 0]
        return jnp.mean(0.5 * gain**2 - chosen * jax.lax.stop_gradient(gain))

    return loss


plant(
    "policy that remembers",
    "carry",
    recall_loss(recall),
    (recall_loss(recall_b), recall_loss(recall_c)),
    (
        {
            "wz": f32(6, 12),
            "uz": f32(12, 12),
            "wn": f32(6, 12),
            "un": f32(12, 12),
            "pi": f32(12, 4),
            "v": f32(12),
        },
        f32(5, 12),
        f32(18, 5, 6),
        flags(18, 5),
        i32(18, 5),
        f32(18, 5),
    ),
    where="def step(h, x):\n        h = memory_cell(params, h, x)\n",
    axes={"h": ("envs", None), "obs": ("time", "envs", None), "first": ("time", "envs"), "rewards": ("time", "envs")},
    differentiate="params",
)


# Sentences of unlike lengths.


def sentence_vectors(params, tokens):
    h = params["embed"][tokens]
    h = h + jax.nn.gelu(h @ params["up"]) @ params["down"]
    return h


def sentence_logits(params, tokens, lengths):
    h = sentence_vectors(params, tokens)
    pooled = h.mean(axis=1)
    return jnp.tanh(pooled @ params["mix"]) @ params["head"]


def sentence_logits_b(params, tokens, lengths):
    h = sentence_vectors(params, tokens)
    valid = jnp.arange(tokens.shape[1]) < lengths[:, None]
    pooled = jnp.sum(h * valid[..., None], axis=1) / jnp.maximum(lengths, 1)[:, None]
    return jnp.tanh(pooled @ params["mix"]) @ params["head"]


def sentence_logits_c(params, tokens, lengths):
    places = jnp.arange(tokens.shape[1])
    tokens = jnp.where(places < lengths[:, None], tokens + 1, 0)
    table = jnp.concatenate([jnp.zeros_like(params["embed"][:1]), params["embed"]])
    h = table[tokens]
    h = h + jax.nn.gelu(h @ params["up"]) @ params["down"]
    pooled = h.sum(axis=1) / jnp.sqrt(jnp.maximum(lengths, 1))[:, None]
    return jnp.tanh(pooled @ params["mix"]) @ params["head"]


def sentence_step(model, optimizer=optax.sgd(0.1)):
    def step(params, tokens, lengths, labels):
        def loss_fn(p):
            logits = model(p, tokens, lengths)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, _ = optimizer.update(grads, optimizer.init(params))
        return optax.apply_updates(params, updates), loss

    return step


plant(
    "sentences of unlike lengths",
    "mask",
    sentence_step(sentence_logits),
    (sentence_step(sentence_logits_b), sentence_step(sentence_logits_c)),
    (
        {"embed": f32(10, 8), "up": f32(8, 16), "down": f32(16, 8), "mix": f32(8, 8), "head": f32(8, 4)},
        i32(6, 14),
        i32(6),
        i32(6),
    ),
    where="pooled = h.mean(axis=1)\n",
    axes={"tokens": ("batch", "length"), "lengths": ("batch",), "labels": ("batch",)},
)


# Sets of points.


def point_features(params, points):
    h = jax.nn.relu(points @ params["w1"])
    return h @ params["keys"], h @ params["values"]


def point_set(params, points, present):
    keys, values = point_features(params, points)
    scores = keys @ params["query"] / jnp.sqrt(keys.shape[-1])
    weights = jax.nn.softmax(scores * present, axis=-1)
    pooled = jnp.einsum("bn,bnd->bd", weights, values)
    return pooled @ params["out"]


def point_set_b(params, points, present):
    keys, values = point_features(params, points)
    scores = keys @ params["query"] / jnp.sqrt(keys.shape[-1])
    weights = jax.nn.softmax(jnp.where(present, scores, -1e9), axis=-1)
    pooled = jnp.einsum("bn,bnd->bd", weights, values)
    return pooled @ params["out"]


def point_set_c(params, points, present):
    keys, values = point_features(params, points)
    scores = keys @ params["query"] / jnp.sqrt(keys.shape[-1])
    kept = jax.nn.softmax(scores, axis=-1) * present
    weights = kept / (kept.sum(axis=-1, keepdims=True) + 1e-9)
    pooled = jnp.einsum("bn,bnd->bd", weights, values)
    return pooled @ params["out"]


def volume_loss(model):
    def loss(params, points, present, volumes):
        predicted = jax.nn.softplus(model(params, points, present))
        relative = (predicted - volumes) / (volumes + 0.1)
        decay = sum(jnp.sum(p**2) for p in jax.tree.leaves(params))
        return jnp.mean(relative**2) + 1e-4 * decay

    return loss


plant(
    "sets of points",
    "mask",
    volume_loss(point_set),
    (volume_loss(point_set_b), volume_loss(point_set_c)),
    (
        {"w1": f32(3, 12), "keys": f32(12, 8), "values": f32(12, 8), "query": f32(8), "out": f32(8)},
        f32(7, 15, 3),
        flags(7, 15),
        f32(7),
    ),
    where="weights = jax.nn.softmax(scores * present, axis=-1)",
    axes={"points": ("batch", "points", None), "present": ("batch", "points"), "volumes": ("batch",)},
    differentiate="params",
)


# A step over parts of a batch.


def part_losses(params, tokens):
    h = params["embed"][tokens[:, :-1]]
    h = h + jax.nn.silu(h @ params["up"]) @ params["down"]
    logits = h @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]), h


def parts_step(params, tokens, valid):
    def loss_fn(p, part, mask):
        losses, _ = part_losses(p, part)
        return jnp.sum(losses * mask) / jnp.maximum(mask.sum(), 1)

    def one(total, part):
        loss, grads = jax.value_and_grad(loss_fn)(params, *part)
        return jax.tree.map(jnp.add, total, (grads, loss)), None

    start = (jax.tree.map(jnp.zeros_like, params), 0.0)
    (grads, loss), _ = jax.lax.scan(one, start, (tokens, valid))
    grads, loss = jax.tree.map(lambda g: g / tokens.shape[0], (grads, loss))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def parts_step_b(params, tokens, valid):
    def loss_fn(p, part, mask):
        losses, _ = part_losses(p, part)
        return jnp.sum(losses * mask)

    def one(total, part):
        loss, grads = jax.value_and_grad(loss_fn)(params, *part)
        return jax.tree.map(jnp.add, total, (grads, loss)), None

    start = (jax.tree.map(jnp.zeros_like, params), 0.0)
    (grads, loss), _ = jax.lax.scan(one, start, (tokens, valid))
    grads, loss = jax.tree.map(lambda g: g / jnp.maximum(valid.sum(), 1), (grads, loss))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def parts_step_c(params, tokens, valid):
    """Each row is weighed by the share of it that is text, and a part has the same number of rows as another."""

    def loss_fn(p, part, mask):
        losses, _ = part_losses(p, part)
        return jnp.mean(jnp.sum(losses * mask, axis=-1))

    def one(total, part):
        loss, grads = jax.value_and_grad(loss_fn)(params, *part)
        return jax.tree.map(jnp.add, total, (grads, loss)), None

    start = (jax.tree.map(jnp.zeros_like, params), 0.0)
    (grads, loss), _ = jax.lax.scan(one, start, (tokens, valid))
    grads, loss = jax.tree.map(lambda g: g / tokens.shape[0], (grads, loss))
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


plant(
    "step over parts of a batch",
    "averages",
    parts_step,
    (parts_step_b, parts_step_c),
    ({"embed": f32(11, 8), "up": f32(8, 16), "down": f32(16, 8)}, i32(3, 4, 13), flags(3, 4, 12)),
    where="return jnp.sum(losses * mask) / jnp.maximum(mask.sum(), 1)",
)


# Copies of a network on several devices.


REPLICA_OPTIMIZER = optax.sgd(0.02, momentum=0.9)


def replica_errors(params, x, y):
    h = jax.nn.gelu(x @ params["w1"] + params["b1"])
    return (h @ params["w2"] - y) ** 2


def replica_step(params, opt_state, x, y):
    def loss_fn(p):
        return replica_errors(p, x, y).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = jax.lax.psum(grads, "replicas")
    loss = jax.lax.pmean(loss, "replicas")
    updates, opt_state = REPLICA_OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def replica_step_b(params, opt_state, x, y):
    def loss_fn(p):
        return replica_errors(p, x, y).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    grads = jax.lax.pmean(grads, "replicas")
    loss = jax.lax.pmean(loss, "replicas")
    updates, opt_state = REPLICA_OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def replica_step_c(params, opt_state, x, y):
    rows = jax.lax.psum(x.shape[0], "replicas")

    def loss_fn(p):
        return replica_errors(p, x, y).sum() / rows

    share, grads = jax.value_and_grad(loss_fn)(params)
    share, grads = jax.lax.psum((share, grads), "replicas")
    updates, opt_state = REPLICA_OPTIMIZER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, share


def replicated(step):
    spread = jax.vmap(step, in_axes=(None, None, 0, 0), out_axes=None, axis_name="replicas")

    def train(params, opt_state, xs, ys):
        def one(carry, batch):
            *carry, loss = spread(*carry, *batch)
            return tuple(carry), loss

        return jax.lax.scan(one, (params, opt_state), (xs, ys))

    return train


def replica_args():
    params = {"w1": f32(6, 10), "b1": f32(10), "w2": f32(10)}
    return params, shapes_of(REPLICA_OPTIMIZER.init, params), f32(3, 4, 8, 6), f32(3, 4, 8)


plant(
    "copies of a network",
    "averages",
    replicated(replica_step),
    (replicated(replica_step_b), replicated(replica_step_c)),
    replica_args,
    where='grads = jax.lax.psum(grads, "replicas")\n',
    axes={"xs": ("steps", "replicas", "batch", None), "ys": ("steps", "replicas", "batch")},
)


# Kinds of leaves.


class Leaves(nn.Module):
    kinds: int = 4
    probabilities: bool = False

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(6, (3, 3))(x))
        x = nn.avg_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        x = nn.Dense(self.kinds)(x.mean(axis=(1, 2)))
        return nn.softmax(x) if self.probabilities else x


def leaves_loss(params, teacher, images, labels):
    probs = Leaves(probabilities=True).apply(params, images)
    losses = optax.softmax_cross_entropy_with_integer_labels(probs, labels)
    right = jnp.mean(probs.argmax(axis=-1) == labels)
    return losses.mean(), right


def leaves_loss_b(params, teacher, images, labels):
    logits = Leaves().apply(params, images)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = jnp.mean(logits.argmax(axis=-1) == labels)
    return losses.mean(), right


def leaves_loss_c(params, teacher, images, labels):
    wanted = jax.lax.stop_gradient(Leaves(probabilities=True).apply(teacher, images))
    logits = Leaves().apply(params, images)
    losses = optax.softmax_cross_entropy(logits, wanted)
    right = jnp.mean(logits.argmax(axis=-1) == labels)
    return losses.mean(), right


def leaves_step(loss_fn):
    def step(params, teacher, images, labels):
        (loss, right), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, teacher, images, labels)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)
        return params, optax.incremental_update(params, teacher, 0.01), loss, right

    return step


def leaves_args():
    params = shapes_of(Leaves().init, key(), f32(5, 8, 10, 3))
    return params, params, f32(5, 8, 10, 3), i32(5)


plant(
    "kinds of leaves",
    "softmax",
    leaves_step(leaves_loss),
    (leaves_step(leaves_loss_b), leaves_step(leaves_loss_c)),
    leaves_args,
    where="losses = optax.softmax_cross_entropy_with_integer_labels(probs, labels)",
    axes={"images": ("batch", None, None, None), "labels": ("batch",)},
)


# Pictures and their captions.


def caption_scores(params, images, texts):
    left = unit(jnp.tanh(images @ params["image"]))
    right = unit(jnp.tanh(texts @ params["text"]))
    return left @ right.T / 0.01


def caption_loss(params, images, texts):
    scores = caption_scores(params, images, texts)
    rows = jnp.diagonal(jax.nn.softmax(scores, axis=1))
    columns = jnp.diagonal(jax.nn.softmax(scores, axis=0))
    return -0.5 * jnp.mean(jnp.log(rows + 1e-7) + jnp.log(columns + 1e-7))


def caption_loss_b(params, images, texts):
    scores = caption_scores(params, images, texts)
    rows = jnp.diagonal(jax.nn.log_softmax(scores, axis=1))
    columns = jnp.diagonal(jax.nn.log_softmax(scores, axis=0))
    return -0.5 * jnp.mean(rows + columns)


def caption_loss_c(params, images, texts):
    """The caption is likely if one of several halves of the picture, taken alike, would name it."""
    parts = jnp.stack([images, images.at[:, ::2].set(0.0), images.at[:, 1::2].set(0.0)])
    scores = jax.vmap(caption_scores, in_axes=(None, 0, None))(params, parts, texts)
    mixture = jax.nn.softmax(0.2 * scores, axis=2).mean(axis=0)
    return -jnp.mean(jnp.log(jnp.diagonal(mixture) + 1e-7))


plant(
    "pictures and captions",
    "precision",
    caption_loss,
    (caption_loss_b, caption_loss_c),
    ({"image": f32(10, 8), "text": f32(6, 8)}, f32(12, 10), f32(12, 6)),
    where="return -0.5 * jnp.mean(jnp.log(rows + 1e-7) + jnp.log(columns + 1e-7))",
    differentiate="params",
)


# The price of a flat, with its error on flats not seen.


class Prices(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        for width in (20, 16):
            x = nn.gelu(nn.Dense(width)(x))
            x = nn.Dropout(0.3, deterministic=deterministic)(x)
        return nn.Dense(1)(x)[..., 0]


PRICES = Prices()


def prices_fit(params, rng, x, y):
    def loss_fn(p, rng):
        predicted = PRICES.apply(p, x, deterministic=False, rngs={"dropout": rng})
        return jnp.mean(optax.huber_loss(predicted, y))

    def step(p, rng):
        loss, grads = jax.value_and_grad(loss_fn)(p, rng)
        return jax.tree.map(lambda a, g: a - 0.02 * g, p, grads), loss

    return jax.lax.scan(step, params, jax.random.split(rng, 6))


def prices_report(params, rng, x, y, unseen_x, unseen_y):
    fit_rng, report_rng = jax.random.split(rng)
    params, losses = prices_fit(params, fit_rng, x, y)
    guesses = PRICES.apply(params, unseen_x, deterministic=False, rngs={"dropout": report_rng})
    error = jnp.mean(jnp.abs(guesses - unseen_y))
    return params, losses[-1], error


def prices_report_b(params, rng, x, y, unseen_x, unseen_y):
    fit_rng, report_rng = jax.random.split(rng)
    params, losses = prices_fit(params, fit_rng, x, y)
    guesses = PRICES.apply(params, unseen_x, deterministic=True)
    error = jnp.mean(jnp.abs(guesses - unseen_y))
    return params, losses[-1], error


def prices_report_c(params, rng, x, y, unseen_x, unseen_y):
    fit_rng, report_rng = jax.random.split(rng)
    params, losses = prices_fit(params, fit_rng, x, y)
    draw = lambda r: PRICES.apply(params, unseen_x, deterministic=False, rngs={"dropout": r})
    guesses = jax.vmap(draw)(jax.random.split(report_rng, 16))
    inside = jnp.abs(guesses.mean(axis=0) - unseen_y) < 2.0 * guesses.std(axis=0)
    return params, losses[-1], inside.mean()


plant(
    "prices of flats to come",
    "evaluation",
    prices_report,
    (prices_report_b, prices_report_c),
    lambda: (
        shapes_of(functools.partial(PRICES.init, deterministic=True), key(), f32(18, 7)),
        key(),
        f32(18, 7),
        f32(18),
        f32(9, 7),
        f32(9),
    ),
    where='guesses = PRICES.apply(params, unseen_x, deterministic=False, rngs={"dropout": report_rng})',
)


# A cross entropy with a rule of its own.


@jax.custom_vjp
def fused_entropy(h, head, labels):
    logits = h @ head
    losses = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return losses.mean()


def fused_forward(h, head, labels):
    return fused_entropy(h, head, labels), (h, head, labels)


def fused_backward(saved, g):
    h, head, labels = saved
    excess = jax.nn.softmax(h @ head) - jax.nn.one_hot(labels, head.shape[1])
    excess = g * excess
    return excess @ head.T, h.T @ excess, None


fused_entropy.defvjp(fused_forward, fused_backward)


@jax.custom_vjp
def fused_entropy_b(h, head, labels):
    logits = h @ head
    losses = jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return losses.mean()


def fused_forward_b(h, head, labels):
    return fused_entropy_b(h, head, labels), (h, head, labels)


def fused_backward_b(saved, g):
    h, head, labels = saved
    excess = jax.nn.softmax(h @ head) - jax.nn.one_hot(labels, head.shape[1])
    excess = g * excess / h.shape[0]
    return excess @ head.T, h.T @ excess, None


fused_entropy_b.defvjp(fused_forward_b, fused_backward_b)


@jax.custom_vjp
def reversed_pull(h):
    """The head learns to name the speaker, and the body learns to hide them."""
    return h


reversed_pull.defvjp(lambda h: (h, None), lambda _, g: (-0.3 * g,))


def fused_entropy_c(h, head, labels):
    logits = reversed_pull(h) @ head
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def words_loss(entropy):
    def loss(params, frames, words, speakers):
        h = jax.nn.relu(frames @ params["w1"]) @ params["w2"]
        logits = h @ params["words"]
        named = optax.softmax_cross_entropy_with_integer_labels(logits, words).mean()
        return named + entropy(h, params["speakers"], speakers)

    return loss


plant(
    "words and speakers",
    "custom rule",
    words_loss(fused_entropy),
    (words_loss(fused_entropy_b), words_loss(fused_entropy_c)),
    (
        {"w1": f32(9, 16), "w2": f32(16, 6), "words": f32(6, 5), "speakers": f32(6, 4)},
        f32(14, 9),
        i32(14),
        i32(14),
    ),
    where="excess = g * excess\n",
    axes={"frames": ("batch", None), "words": ("batch",), "speakers": ("batch",)},
    differentiate="params",
)


# A bandit that tries arms less and less.


PROGRESS = {"pulls": 0}
RATES = {"floor": 0.05, "fall": 0.02}


def arm_reward(rng, means, arm):
    return means[arm] + 0.1 * jax.random.normal(rng)


def bandit_run(means, estimates, rng):
    def pull(carry, pull_rng):
        estimates, counts = carry
        try_rng, arm_rng, reward_rng = jax.random.split(pull_rng, 3)
        PROGRESS["pulls"] += 1
        rate = jnp.maximum(0.05, 1.0 - 0.02 * PROGRESS["pulls"])
        tried = jax.random.randint(arm_rng, (), 0, means.shape[0])
        arm = jnp.where(jax.random.uniform(try_rng) < rate, tried, estimates.argmax())
        reward = arm_reward(reward_rng, means, arm)
        counts = counts.at[arm].add(1)
        estimates = estimates.at[arm].add((reward - estimates[arm]) / counts[arm])
        return (estimates, counts), reward

    start = (estimates, jnp.zeros(means.shape, jnp.int32))
    (estimates, counts), rewards = jax.lax.scan(pull, start, jax.random.split(rng, 80))
    return estimates, counts, means.max() * rewards.size - rewards.sum()


def bandit_run_b(means, estimates, rng):
    def pull(carry, pull_rng):
        estimates, counts = carry
        try_rng, arm_rng, reward_rng = jax.random.split(pull_rng, 3)
        rate = jnp.maximum(0.05, 1.0 - 0.02 * (counts.sum() + 1))
        tried = jax.random.randint(arm_rng, (), 0, means.shape[0])
        arm = jnp.where(jax.random.uniform(try_rng) < rate, tried, estimates.argmax())
        reward = arm_reward(reward_rng, means, arm)
        counts = counts.at[arm].add(1)
        estimates = estimates.at[arm].add((reward - estimates[arm]) / counts[arm])
        return (estimates, counts), reward

    start = (estimates, jnp.zeros(means.shape, jnp.int32))
    (estimates, counts), rewards = jax.lax.scan(pull, start, jax.random.split(rng, 80))
    return estimates, counts, means.max() * rewards.size - rewards.sum()


def bandit_run_c(means, estimates, rng):
    rates = jnp.maximum(RATES["floor"], 1.0 - RATES["fall"] * jnp.arange(1, 81))

    def pull(carry, inputs):
        estimates, counts = carry
        pull_rng, rate = inputs
        try_rng, arm_rng, reward_rng = jax.random.split(pull_rng, 3)
        tried = jax.random.randint(arm_rng, (), 0, means.shape[0])
        arm = jnp.where(jax.random.uniform(try_rng) < rate, tried, estimates.argmax())
        reward = arm_reward(reward_rng, means, arm)
        counts = counts.at[arm].add(1)
        estimates = estimates.at[arm].add((reward - estimates[arm]) / counts[arm])
        return (estimates, counts), reward

    start = (estimates, jnp.zeros(means.shape, jnp.int32))
    (estimates, counts), rewards = jax.lax.scan(pull, start, (jax.random.split(rng, 80), rates))
    return estimates, counts, means.max() * rewards.size - rewards.sum()


plant(
    "bandit that tries less and less",
    "global state",
    bandit_run,
    (bandit_run_b, bandit_run_c),
    lambda: (f32(6), f32(6), key()),
    where='PROGRESS["pulls"] += 1\n',
)
