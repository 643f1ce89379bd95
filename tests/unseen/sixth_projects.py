"""Mistakes that users of public projects made, each written anew, with right programs that look like them."""

import functools
from typing import NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.flatten_util import ravel_pytree

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []


def project(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


def layers(*sizes):
    return [{"w": f32(a, b), "b": f32(b)} for a, b in zip(sizes[:-1], sizes[1:], strict=True)]


def perceptron(params, x):
    for layer in params[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


# A Bayesian classifier whose labels are a column.


def bernoulli(logits, labels):
    return jnp.sum(labels * jax.nn.log_sigmoid(logits) + (1.0 - labels) * jax.nn.log_sigmoid(-logits))


def bernoulli_b(logits, labels):
    labels = labels.squeeze(-1)
    positive, negative = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
    return jnp.sum(labels * positive + (1.0 - labels) * negative)


def bradley_terry(logits, labels):
    margins = logits[:, None] - logits[None, :]
    preferred = labels > labels.T
    return jnp.sum(jnp.where(preferred, jax.nn.log_sigmoid(margins), 0.0)) / labels.shape[0]


def classifier(log_likelihood):
    def negative_elbo(guide, noise, features, labels):
        scale = jax.nn.softplus(guide["rho"])
        weights = guide["loc"] + scale * noise
        logits = features @ weights + guide["bias"]
        divergence = jnp.sum(0.5 * (scale**2 + guide["loc"] ** 2 - 1.0) - jnp.log(scale))
        return divergence - log_likelihood(logits, labels)

    return negative_elbo


project(
    "column of labels",
    "shapes that broadcast",
    classifier(bernoulli),
    (classifier(bernoulli_b), classifier(bradley_terry)),
    ({"loc": f32(6), "rho": f32(6), "bias": f32()}, f32(6), f32(40, 6), f32(40, 1)),
    where="labels * jax.nn.log_sigmoid(logits) + (1.0 - labels) * jax.nn.log_sigmoid(-logits)",
    axes={"features": ("data", None), "labels": ("data", None)},
    differentiate="guide",
    source="pyro-ppl/numpyro#1230",
)


# The critic of PPO.


class ActorCritic(nn.Module):
    actions: int = 4

    @nn.compact
    def __call__(self, obs):
        logits = nn.Dense(self.actions)(nn.tanh(nn.Dense(32)(obs)))
        values = nn.Dense(1)(nn.tanh(nn.Dense(32)(obs)))
        return logits, values


AGENT = ActorCritic()


def critic_error(values, returns, old_values):
    clipped = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    return jnp.maximum(jnp.square(values - returns), jnp.square(clipped - returns)).mean()


def critic_error_b(values, returns, old_values):
    values = values[..., 0]
    near = old_values + jnp.clip(values - old_values, -0.2, 0.2)
    return jnp.maximum(jnp.square(values - returns), jnp.square(near - returns)).mean()


def critic_error_c(values, returns, old_values):
    differences = values - values.T
    wanted = returns[:, None] - returns[None, :]
    drift = jnp.square(values[:, 0] - old_values).mean()
    level = jnp.square(values.mean() - returns.mean())
    return 0.5 * jnp.square(differences - wanted).mean() + level + 0.01 * drift


def ppo(critic_loss):
    def loss(params, obs, actions, old_log_probs, advantages, returns, old_values):
        logits, values = AGENT.apply(params, obs)
        log_policy = jax.nn.log_softmax(logits)
        log_probs = jnp.take_along_axis(log_policy, actions[:, None], axis=-1)[:, 0]
        ratio = jnp.exp(log_probs - old_log_probs)
        gain = jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)
        entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, axis=-1)
        return 0.5 * critic_loss(values, returns, old_values) - gain.mean() - 0.01 * entropy.mean()

    return loss


project(
    "column of values",
    "shapes that broadcast",
    ppo(critic_error),
    (ppo(critic_error_b), ppo(critic_error_c)),
    lambda: (
        shapes_of(AGENT.init, jax.random.key(0), jnp.zeros((1, 8))),
        f32(64, 8),
        i32(64),
        f32(64),
        f32(64),
        f32(64),
        f32(64),
    ),
    where="clipped = old_values + jnp.clip(values - old_values, -0.2, 0.2)",
    axes={"obs": ("batch", None), "returns": ("batch",), "old_values": ("batch",)},
    differentiate="params",
    source="RLinf/RLinf#1568",
)


# The targets of soft actor-critic.

CRITIC, CRITIC_STATIC = eqx.partition(eqx.nn.MLP(9, 1, 32, 2, key=jax.random.key(0)), eqx.is_inexact_array)


def q_values(params, obs, actions):
    return jax.vmap(eqx.combine(params, CRITIC_STATIC))(jnp.concatenate([obs, actions], axis=-1))


def soft_td(critic, targets, batch, log_probs, alpha):
    next_q = jnp.minimum(*(q_values(t, batch["next_obs"], batch["next_actions"]) for t in targets))
    backup = next_q - alpha * log_probs
    wanted = batch["rewards"] + 0.99 * (1.0 - batch["dones"]) * backup
    q = q_values(critic, batch["obs"], batch["actions"])
    return jnp.mean((q - jax.lax.stop_gradient(wanted)) ** 2)


def soft_td_b(critic, targets, batch, log_probs, alpha):
    next_q = jnp.minimum(*(q_values(t, batch["next_obs"], batch["next_actions"]) for t in targets))
    soft = next_q[:, 0] - alpha * log_probs
    wanted = batch["rewards"] + 0.99 * (1.0 - batch["dones"]) * soft
    q = q_values(critic, batch["obs"], batch["actions"])[:, 0]
    return jnp.mean((q - jax.lax.stop_gradient(wanted)) ** 2)


def soft_td_c(critic, targets, batch, log_probs, alpha):
    column = lambda x: x[:, None]
    next_q = jnp.minimum(*(q_values(t, batch["next_obs"], batch["next_actions"]) for t in targets))
    soft = next_q - alpha * column(log_probs)
    wanted = column(batch["rewards"]) + 0.99 * (1.0 - column(batch["dones"])) * soft
    q = q_values(critic, batch["obs"], batch["actions"])
    return jnp.mean((q - jax.lax.stop_gradient(wanted)) ** 2)


project(
    "entropy of a column",
    "shapes that broadcast",
    soft_td,
    (soft_td_b, soft_td_c),
    lambda: (
        CRITIC,
        (CRITIC, CRITIC),
        {
            "obs": f32(32, 6),
            "actions": f32(32, 3),
            "rewards": f32(32),
            "dones": f32(32),
            "next_obs": f32(32, 6),
            "next_actions": f32(32, 3),
        },
        f32(32),
        f32(),
    ),
    where="backup = next_q - alpha * log_probs",
    axes={"log_probs": ("batch",)},
    differentiate="critic",
    source="ray-project/ray#6295",
)


# Two critics and one gradient.


def twin_critics(update):
    def step(critics, opt_states, obs, actions, targets):
        inputs = jnp.concatenate([obs, actions], axis=-1)

        def critic_loss(params):
            return jnp.mean((perceptron(params, inputs)[:, 0] - targets) ** 2)

        return update(critic_loss, critics, opt_states)

    return step


ADAM = optax.adam(3e-4)


def update_critics(critic_loss, critics, opt_states):
    loss_1, grads = jax.value_and_grad(critic_loss)(critics[0])
    loss_2, _ = jax.value_and_grad(critic_loss)(critics[1])
    updates_1, opt_1 = ADAM.update(grads, opt_states[0], critics[0])
    updates_2, opt_2 = ADAM.update(grads, opt_states[1], critics[1])
    critics = (optax.apply_updates(critics[0], updates_1), optax.apply_updates(critics[1], updates_2))
    return critics, (opt_1, opt_2), loss_1 + loss_2


def update_critics_b(critic_loss, critics, opt_states):
    loss_1, grads_1 = jax.value_and_grad(critic_loss)(critics[0])
    loss_2, grads_2 = jax.value_and_grad(critic_loss)(critics[1])
    updates_1, opt_1 = ADAM.update(grads_1, opt_states[0], critics[0])
    updates_2, opt_2 = ADAM.update(grads_2, opt_states[1], critics[1])
    critics = (optax.apply_updates(critics[0], updates_1), optax.apply_updates(critics[1], updates_2))
    return critics, (opt_1, opt_2), loss_1 + loss_2


def update_critics_c(critic_loss, critics, opt_states):
    losses, grads = zip(*(jax.value_and_grad(critic_loss)(c) for c in critics), strict=True)
    shared = jax.tree.map(lambda a, b: 0.5 * (a + b), *grads)
    pairs = [ADAM.update(shared, o, c) for o, c in zip(opt_states, critics, strict=True)]
    critics = tuple(optax.apply_updates(c, u) for c, (u, _) in zip(critics, pairs, strict=True))
    return critics, tuple(o for _, o in pairs), sum(losses)


project(
    "second critic",
    "results dropped",
    twin_critics(update_critics),
    (twin_critics(update_critics_b), twin_critics(update_critics_c)),
    lambda: (
        (layers(9, 16, 1), layers(9, 16, 1)),
        (shapes_of(ADAM.init, layers(9, 16, 1)), shapes_of(ADAM.init, layers(9, 16, 1))),
        f32(32, 6),
        f32(32, 3),
        f32(32),
    ),
    where="loss_2, _ = jax.value_and_grad(critic_loss)(critics[1])",
    axes={"obs": ("batch", None), "actions": ("batch", None), "targets": ("batch",)},
    source="Toni-SM/skrl#425",
)


# A target network of implicit Q-learning.


class Learner(NamedTuple):
    critic: list
    target: list
    opt_state: tuple


def critic_step(learner, batch):
    def loss(params):
        bootstrap = perceptron(learner.target, batch["next_obs"]).max(axis=-1)
        wanted = batch["rewards"] + 0.99 * batch["discounts"] * bootstrap
        q = perceptron(params, batch["obs"])
        chosen = jnp.take_along_axis(q, batch["actions"][:, None], axis=-1)[:, 0]
        return jnp.mean((chosen - wanted) ** 2)

    value, grads = jax.value_and_grad(loss)(learner.critic)
    updates, opt_state = ADAM.update(grads, learner.opt_state, learner.critic)
    return learner._replace(critic=optax.apply_updates(learner.critic, updates), opt_state=opt_state), value


def several_updates(learner, batches):
    for i in range(4):
        learner, loss = critic_step(learner, jax.tree.map(lambda x, i=i: x[i], batches))
        new_target = optax.incremental_update(learner.critic, learner.target, 0.005)
    return learner._replace(target=new_target), loss


def several_updates_b(learner, batches):
    for i in range(4):
        learner, loss = critic_step(learner, jax.tree.map(lambda x, i=i: x[i], batches))
        target = optax.incremental_update(learner.critic, learner.target, 0.005)
        learner = learner._replace(target=target)
    return learner, loss


def several_updates_c(learner, batches):
    learner, losses = jax.lax.scan(critic_step, learner, batches)
    target = optax.incremental_update(learner.critic, learner.target, 0.02)
    return learner._replace(target=target), losses[-1]


project(
    "moving target",
    "results dropped",
    several_updates,
    (several_updates_b, several_updates_c),
    lambda: (
        Learner(layers(6, 16, 4), layers(6, 16, 4), shapes_of(ADAM.init, layers(6, 16, 4))),
        {
            "obs": f32(4, 32, 6),
            "actions": i32(4, 32),
            "rewards": f32(4, 32),
            "discounts": f32(4, 32),
            "next_obs": f32(4, 32, 6),
        },
    ),
    where="new_target = optax.incremental_update(learner.critic, learner.target, 0.005)",
    source="nissymori/JAX-CORL#73",
)


# Statistics of batch normalisation.


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, images, train):
        x = nn.Conv(8, (3, 3))(images)
        x = nn.relu(nn.BatchNorm(use_running_average=not train)(x))
        return nn.Dense(10)(x.mean(axis=(1, 2)))


CONV = ConvNet()
SGD = optax.sgd(0.1, momentum=0.9)


def batch_loss(params, stats, images, labels):
    variables = {"params": params, "batch_stats": stats}
    logits, mutated = CONV.apply(variables, images, train=True, mutable=["batch_stats"])
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    return loss, mutated["batch_stats"]


def classify_step(state, images, labels):
    value_and_grad = jax.value_and_grad(batch_loss, has_aux=True)
    (loss, batch_stats), grads = value_and_grad(state["params"], state["batch_stats"], images, labels)
    updates, opt_state = SGD.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {**state, "params": params, "opt_state": opt_state}, loss


def classify_step_b(state, images, labels):
    value_and_grad = jax.value_and_grad(batch_loss, has_aux=True)
    (loss, stats), grads = value_and_grad(state["params"], state["batch_stats"], images, labels)
    updates, opt_state = SGD.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "batch_stats": stats, "opt_state": opt_state}, loss


def classify_step_sharpness_aware(state, images, labels):
    value_and_grad = jax.value_and_grad(batch_loss, has_aux=True)
    (loss, stats), grads = value_and_grad(state["params"], state["batch_stats"], images, labels)
    scale = 0.05 / (optax.global_norm(grads) + 1e-12)
    worst = jax.tree.map(lambda p, g: p + scale * g, state["params"], grads)
    (_, _), grads = value_and_grad(worst, state["batch_stats"], images, labels)
    updates, opt_state = SGD.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "batch_stats": stats, "opt_state": opt_state}, loss


def classify_step_frozen(state, images, labels):
    def loss_of(params):
        variables = {"params": params, "batch_stats": state["batch_stats"]}
        logits = CONV.apply(variables, images, train=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    loss, grads = jax.value_and_grad(loss_of)(state["params"])
    updates, opt_state = SGD.update(grads, state["opt_state"], state["params"])
    return dict(state, params=optax.apply_updates(state["params"], updates), opt_state=opt_state), loss


def conv_state():
    variables = shapes_of(functools.partial(CONV.init, train=False), jax.random.key(0), jnp.zeros((1, 8, 8, 3)))
    return {**variables, "opt_state": shapes_of(SGD.init, variables["params"])}


project(
    "running statistics",
    "results dropped",
    classify_step,
    (classify_step_b, classify_step_sharpness_aware, classify_step_frozen),
    lambda: (conv_state(), f32(16, 8, 8, 3), i32(16)),
    where='return {**state, "params": params, "opt_state": opt_state}, loss',
    axes={"images": ("batch", "height", "width", None), "labels": ("batch",)},
    source="google/flax#3602",
)


# Walls and inflow of a tracer in a channel.


def walls(q, inflow):
    q = jnp.maximum(q, 0.0)
    q.at[0].set(inflow)
    return q.at[-1].set(q[-2])


def walls_b(q, inflow):
    q = jnp.maximum(q, 0.0)
    return q.at[0].set(inflow).at[-1].set(q[-2])


def walls_c(q, inflow):
    inner = jnp.maximum(q[1:-1], 0.0)
    return jnp.concatenate([inflow[None], inner, inner[-1:]])


def channel(boundary):
    def simulate(q, speed, inflows):
        dx, dt = 0.1, 0.02

        def step(q, inflow):
            upwind = (q - jnp.roll(q, 1)) / dx
            spread = (jnp.roll(q, 1) - 2.0 * q + jnp.roll(q, -1)) / dx**2
            q = boundary(q + dt * (0.01 * spread - speed * upwind), inflow)
            return q, q.sum() * dx

        return jax.lax.scan(step, q, inflows)

    return simulate


project(
    "inflow",
    "results dropped",
    channel(walls),
    (channel(walls_b), channel(walls_c)),
    (f32(50), f32(), f32(30)),
    where="q.at[0].set(inflow)\n",
    axes={"q": ("cell",), "inflows": ("time",)},
    source="Stack Overflow, q[q < 0] = 0 in JAX (openillumi.com/?p=88376)",
)


# Averaged weights of a denoiser.


class Denoiser(nn.Module):
    @nn.compact
    def __call__(self, x, t):
        h = jnp.concatenate([x, jnp.sin(t[:, None] * 2.0 ** jnp.arange(4))], axis=-1)
        return nn.Dense(x.shape[-1])(nn.silu(nn.Dense(32)(h)))


DENOISER = Denoiser()


def denoise_step(averaged):
    def step(state, rng, images):
        time_key, noise_key = jax.random.split(rng)
        t = jax.random.uniform(time_key, images.shape[:1])
        noise = jax.random.normal(noise_key, images.shape)
        noisy = jnp.cos(t)[:, None] * images + jnp.sin(t)[:, None] * noise

        def loss_of(params):
            return jnp.mean((DENOISER.apply(params, noisy, t) - noise) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        updates, opt_state = ADAM.update(grads, state["opt_state"], state["params"])
        params = optax.apply_updates(state["params"], updates)
        return averaged(state, params, opt_state), loss

    return step


def averaged(state, params, opt_state):
    ema = jax.tree.map(lambda e, p: 0.999 * e + 0.001 * p, state["ema"], params)
    step = state["step"] + 1
    return state | {"step": step, "params": params, "opt_state": opt_state}


def averaged_b(state, params, opt_state):
    mean = jax.tree.map(lambda e, p: 0.999 * e + 0.001 * p, state["ema"], params)
    return {"step": state["step"] + 1, "params": params, "ema": mean, "opt_state": opt_state}


def averaged_c(state, params, opt_state):
    moved = jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, state["ema"], params)
    due = state["step"] % 10 == 0
    mean = jax.tree.map(lambda new, old: jnp.where(due, new, old), moved, state["ema"])
    return {"step": state["step"] + 1, "params": params, "ema": mean, "opt_state": opt_state}


def denoiser_state():
    params = shapes_of(DENOISER.init, jax.random.key(0), jnp.zeros((1, 12)), jnp.zeros(1))
    return {"step": i32(), "params": params, "ema": params, "opt_state": shapes_of(ADAM.init, params)}


project(
    "averaged weights",
    "results dropped",
    denoise_step(averaged),
    (denoise_step(averaged_b), denoise_step(averaged_c)),
    lambda: (denoiser_state(), key(), f32(16, 12)),
    where='ema = jax.tree.map(lambda e, p: 0.999 * e + 0.001 * p, state["ema"], params)',
    axes={"images": ("batch", None)},
    source="NobuoTsukamoto/jax_examples#20, keras-team/keras#18949",
)


# Adam by hand.


def fit_curve(moments):
    def fit(params, times, heights):
        def error(p):
            curve = p["amplitude"] * jnp.exp(-p["rate"] * times) + p["offset"]
            return jnp.mean((curve - heights) ** 2)

        zeros = jax.tree.map(jnp.zeros_like, params)
        state = (params, zeros, zeros)
        return jax.lax.scan(functools.partial(moments, error), state, jnp.arange(1, 51))

    return fit


def adam_step(error, state, i):
    params, m, v = state
    loss, grads = jax.value_and_grad(error)(params)
    m_new = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v_new = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, grads)
    corrected = jax.tree.map(lambda m: m / (1.0 - 0.9**i), m_new)
    scales = jax.tree.map(lambda v: jnp.sqrt(v / (1.0 - 0.999**i)) + 1e-8, v_new)
    params = jax.tree.map(lambda p, m, s: p - 0.05 * m / s, params, corrected, scales)
    state = (params, m, v)
    return state, loss


def adam_step_b(error, state, i):
    params, m, v = state
    loss, grads = jax.value_and_grad(error)(params)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, grads)
    corrected = jax.tree.map(lambda m: m / (1.0 - 0.9**i), m)
    scales = jax.tree.map(lambda v: jnp.sqrt(v / (1.0 - 0.999**i)) + 1e-8, v)
    params = jax.tree.map(lambda p, m, s: p - 0.05 * m / s, params, corrected, scales)
    return (params, m, v), loss


def adam_step_restarted(error, state, i):
    params, m, v = state
    loss, grads = jax.value_and_grad(error)(params)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
    v = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g**2, v, grads)
    params = jax.tree.map(lambda p, m, v: p - 0.05 * m / (jnp.sqrt(v) + 1e-3), params, m, v)
    keep = i % 10 != 0
    m, v = jax.tree.map(lambda x: jnp.where(keep, x, 0.0), (m, v))
    return (params, m, v), loss


project(
    "moments",
    "carry that never changes",
    fit_curve(adam_step),
    (fit_curve(adam_step_b), fit_curve(adam_step_restarted)),
    ({"amplitude": f32(), "rate": f32(), "offset": f32()}, f32(20), f32(20)),
    where="state = (params, m, v)",
    axes={"times": ("sample",), "heights": ("sample",)},
    source="raskr/rust-autograd#16",
)


# Double Q-learning.


class QNetwork(nn.Module):
    @nn.compact
    def __call__(self, obs):
        return nn.Dense(4)(nn.relu(nn.LayerNorm()(nn.Dense(32)(obs))))


Q = QNetwork()


def td_loss(params, target_params, obs, actions, rewards, terminated, next_obs):
    q = Q.apply(params, obs)
    chosen = jnp.take_along_axis(q, actions[:, None], axis=-1)[:, 0]
    best = jnp.argmax(Q.apply(params, next_obs), axis=-1)
    next_q = jnp.take_along_axis(Q.apply(params, next_obs), best[:, None], axis=-1)[:, 0]
    target = rewards + 0.99 * (1.0 - terminated) * next_q
    return optax.huber_loss(chosen, target).mean()


def td_loss_b(params, target_params, obs, actions, rewards, terminated, next_obs):
    q = Q.apply(params, obs)
    chosen = jnp.take_along_axis(q, actions[:, None], axis=-1)[:, 0]
    best = jnp.argmax(Q.apply(params, next_obs), axis=-1)
    frozen = Q.apply(target_params, next_obs)
    target = rewards + 0.99 * (1.0 - terminated) * jnp.take_along_axis(frozen, best[:, None], axis=-1)[:, 0]
    return optax.huber_loss(chosen, target).mean()


def td_loss_clipped(params, target_params, obs, actions, rewards, terminated, next_obs):
    q = Q.apply(params, obs)
    chosen = jnp.take_along_axis(q, actions[:, None], axis=-1)[:, 0]
    lower = jnp.minimum(Q.apply(params, next_obs), Q.apply(target_params, next_obs)).max(axis=-1)
    wanted = rewards + 0.99 * (1.0 - terminated) * lower
    return optax.huber_loss(chosen, jax.lax.stop_gradient(wanted)).mean()


def q_params():
    return shapes_of(Q.init, jax.random.key(0), jnp.zeros((1, 6)))


project(
    "target of the same network",
    "targets with gradients",
    td_loss,
    (td_loss_b, td_loss_clipped),
    lambda: (q_params(), q_params(), f32(32, 6), i32(32), f32(32), f32(32), f32(32, 6)),
    where="target = rewards + 0.99 * (1.0 - terminated) * next_q",
    axes={"obs": ("batch", None), "rewards": ("batch",), "terminated": ("batch",), "next_obs": ("batch", None)},
    differentiate="params",
    source="datawhalechina/easy-rl#117",
)


# The temperature of soft actor-critic.


def squashed(actor, obs, noise):
    mean, log_std = jnp.split(perceptron(actor, obs), 2, axis=-1)
    log_std = jnp.clip(log_std, -5.0, 2.0)
    raw = mean + jnp.exp(log_std) * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi)
    volume = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), jnp.sum(normal - volume, axis=-1)


def actor_and_temperature(params, critic, obs, noise):
    actions, log_pi = squashed(params["actor"], obs, noise)
    q = perceptron(critic, jnp.concatenate([obs, actions], axis=-1))[:, 0]
    alpha = jnp.exp(params["log_alpha"])
    actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_pi - q)
    alpha_loss = jnp.mean(-alpha * (log_pi - 3.0))
    return actor_loss + alpha_loss


def actor_and_temperature_b(params, critic, obs, noise):
    actions, log_pi = squashed(params["actor"], obs, noise)
    q = perceptron(critic, jnp.concatenate([obs, actions], axis=-1))[:, 0]
    alpha = jnp.exp(params["log_alpha"])
    actor_loss = jnp.mean(jax.lax.stop_gradient(alpha) * log_pi - q)
    alpha_loss = jnp.mean(-alpha * jax.lax.stop_gradient(log_pi - 3.0))
    return actor_loss + alpha_loss


def actor_and_temperature_c(params, critic, obs, noise):
    actions, log_pi = squashed(params["actor"], obs, noise)
    frozen_actor = jax.lax.stop_gradient(params["actor"])
    _, fixed = squashed(frozen_actor, obs, noise)
    q = perceptron(critic, jnp.concatenate([obs, actions], axis=-1))[:, 0]
    alpha = jnp.exp(params["log_alpha"])
    return jnp.mean(jax.lax.stop_gradient(alpha) * log_pi - q) - jnp.mean(alpha * (fixed - 3.0))


project(
    "temperature",
    "targets with gradients",
    actor_and_temperature,
    (actor_and_temperature_b, actor_and_temperature_c),
    ({"actor": layers(6, 16, 6), "log_alpha": f32()}, layers(9, 16, 1), f32(32, 6), f32(32, 3)),
    where="alpha_loss = jnp.mean(-alpha * (log_pi - 3.0))",
    axes={"obs": ("batch", None), "noise": ("batch", None)},
    differentiate="params",
    source="haosulab/ManiSkill#899",
)


# The advantage of an actor-critic.


def swarm_loss(params, obs, actions, returns):
    logits = perceptron(params["actor"], obs)
    values = perceptron(params["critic"], obs)[..., 0]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    advantage = returns - values
    actor_loss = -jnp.mean(log_probs * advantage)
    critic_loss = optax.huber_loss(values, returns).mean()
    return actor_loss + 0.5 * critic_loss


def swarm_loss_b(params, obs, actions, returns):
    logits = perceptron(params["actor"], obs)
    values = perceptron(params["critic"], obs)[..., 0]
    log_probs = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1)[..., 0]
    actor_loss = -jnp.mean(log_probs * jax.lax.stop_gradient(returns - values))
    critic_loss = optax.huber_loss(values, returns).mean()
    return actor_loss + 0.5 * critic_loss


def swarm_loss_c(params, obs, actions, returns):
    logits = perceptron(params["actor"], obs)
    values = perceptron(params["critic"], obs)[..., 0]
    baseline = perceptron(jax.lax.stop_gradient(params["critic"]), obs)[..., 0]
    taken = jax.nn.one_hot(actions, logits.shape[-1])
    log_probs = jnp.sum(taken * jax.nn.log_softmax(logits), axis=-1)
    return 0.5 * optax.huber_loss(values, returns).mean() - jnp.mean(log_probs * (returns - baseline))


project(
    "advantage of colloids",
    "targets with gradients",
    swarm_loss,
    (swarm_loss_b, swarm_loss_c),
    ({"actor": layers(6, 16, 4), "critic": layers(6, 16, 1)}, f32(20, 8, 6), i32(20, 8), f32(20, 8)),
    where="advantage = returns - values",
    axes={"obs": ("time", "particle", None), "actions": ("time", "particle"), "returns": ("time", "particle")},
    differentiate="params",
    source="SwarmRL/SwarmRL#99",
)


# A codebook.


def nearest(codebook, z):
    distances = jnp.sum((z[:, None] - codebook[None]) ** 2, axis=-1)
    return codebook[jnp.argmin(distances, axis=-1)]


def quantise(codebook, z):
    quantised = z + jax.lax.stop_gradient(nearest(codebook, z) - z)
    encoding_loss = jnp.mean((jax.lax.stop_gradient(quantised) - z) ** 2)
    codebook_loss = jnp.mean((quantised - jax.lax.stop_gradient(z)) ** 2)
    return quantised, 0.25 * encoding_loss + codebook_loss


def quantise_b(codebook, z):
    codes = nearest(codebook, z)
    encoding_loss = jnp.mean((jax.lax.stop_gradient(codes) - z) ** 2)
    codebook_loss = jnp.mean((codes - jax.lax.stop_gradient(z)) ** 2)
    return z + jax.lax.stop_gradient(codes - z), 0.25 * encoding_loss + codebook_loss


def quantise_rotated(codebook, z):
    codes = nearest(codebook, z)
    ratio = jnp.linalg.norm(codes, axis=-1, keepdims=True) / (jnp.linalg.norm(z, axis=-1, keepdims=True) + 1e-6)
    straight = jax.lax.stop_gradient(ratio) * z
    quantised = straight + jax.lax.stop_gradient(codes - straight)
    losses = jnp.mean((codes - jax.lax.stop_gradient(z)) ** 2 + 0.25 * (jax.lax.stop_gradient(codes) - z) ** 2)
    return quantised, losses


def autoencoder(quantiser):
    def loss(params, images):
        z = perceptron(params["encoder"], images)
        codes, commitment = quantiser(params["codebook"], z)
        restored = perceptron(params["decoder"], codes)
        return jnp.mean((restored - images) ** 2) + commitment

    return loss


project(
    "codebook",
    "gradients that do not arrive",
    autoencoder(quantise),
    (autoencoder(quantise_b), autoencoder(quantise_rotated)),
    ({"encoder": layers(20, 16, 4), "decoder": layers(4, 16, 20), "codebook": f32(8, 4)}, f32(32, 20)),
    where="codebook_loss = jnp.mean((quantised - jax.lax.stop_gradient(z)) ** 2)",
    axes={"images": ("batch", None)},
    differentiate="params",
    source="andylolu2/jax-vqvae-gpt#2",
)


# A critic that learns from what it said before.


def clipped_actor_critic(value_error):
    def loss(params, batch):
        logits = perceptron(params["policy"], batch["obs"])
        values = perceptron(params["value"], batch["obs"])[..., 0]
        log_probs = jax.nn.log_softmax(logits)
        chosen = jnp.take_along_axis(log_probs, batch["actions"][..., None], axis=-1)[..., 0]
        ratio = jnp.exp(chosen - batch["log_probs"])
        gain = jnp.minimum(ratio * batch["advantages"], jnp.clip(ratio, 0.8, 1.2) * batch["advantages"])
        returns = batch["advantages"] + batch["values"]
        return 0.5 * value_error(values, returns, batch) - gain.mean()

    return loss


def value_error(values, returns, batch):
    return jnp.mean((batch["values"] - returns) ** 2)


def value_error_b(values, returns, batch):
    return jnp.mean((values - returns) ** 2)


def value_error_c(values, returns, batch):
    near = batch["values"] + jnp.clip(values - batch["values"], -0.2, 0.2)
    return jnp.mean(jnp.maximum((values - returns) ** 2, (near - returns) ** 2))


project(
    "dead critic",
    "gradients that do not arrive",
    clipped_actor_critic(value_error),
    (clipped_actor_critic(value_error_b), clipped_actor_critic(value_error_c)),
    (
        {"policy": layers(6, 16, 4), "value": layers(6, 16, 1)},
        {
            "obs": f32(64, 6),
            "actions": i32(64),
            "log_probs": f32(64),
            "advantages": f32(64),
            "values": f32(64),
        },
    ),
    where='return jnp.mean((batch["values"] - returns) ** 2)',
    differentiate="params",
    source="jsboige/CoursIA#15256",
)


# Positions of patches, with a class token in front.


def embed(params, patches):
    tokens = patches @ params["project"]
    cls = jnp.broadcast_to(params["cls"], (patches.shape[0], 1, tokens.shape[-1]))
    tokens = jnp.concatenate([cls, tokens], axis=1)
    return tokens + params["positions"][jnp.arange(tokens.shape[1])]


def embed_b(params, patches):
    tokens = patches @ params["project"] + params["positions"][jnp.arange(patches.shape[1])]
    cls = jnp.broadcast_to(params["cls"], (patches.shape[0], 1, tokens.shape[-1]))
    return jnp.concatenate([cls, tokens], axis=1)


def embed_saturating(params, patches):
    tokens = patches @ params["project"]
    cls = jnp.broadcast_to(params["cls"], (patches.shape[0], 1, tokens.shape[-1]))
    far = params["positions"].shape[0] - 1
    buckets = jnp.clip(jnp.log2(1.0 + jnp.arange(patches.shape[1] + 1)) * 4, 0, far).astype(jnp.int32)
    return jnp.concatenate([cls, tokens], axis=1) + params["positions"][buckets]


def patch_classifier(embedding):
    def loss(params, patches, labels):
        x = embedding(params, patches)
        scores = jnp.einsum("bqd,bkd->bqk", x @ params["query"], x @ params["key"]) / jnp.sqrt(x.shape[-1])
        x = x + jax.nn.softmax(scores, axis=-1) @ x
        logits = perceptron(params["head"], x[:, 0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


project(
    "one position too few",
    "index out of range",
    patch_classifier(embed),
    (patch_classifier(embed_b), patch_classifier(embed_saturating)),
    (
        {
            "project": f32(12, 16),
            "cls": f32(16),
            "positions": f32(16, 16),
            "query": f32(16, 16),
            "key": f32(16, 16),
            "head": layers(16, 10),
        },
        f32(8, 16, 12),
        i32(8),
    ),
    where='return tokens + params["positions"][jnp.arange(tokens.shape[1])]',
    axes={"patches": ("batch", "patch", None), "labels": ("batch",)},
    differentiate="params",
    source="jax-ml/jax#3774",
)


# The next observation of a replay buffer that keeps each observation once.


def replay(draw):
    def learn(params, opt_state, buffer, rng):
        now, after = draw(buffer, rng)
        obs, next_obs = buffer["obs"][now], buffer["obs"][after]
        not_done = 1.0 - buffer["done"][now]

        def loss_of(p):
            q = jnp.take_along_axis(perceptron(p, obs), buffer["action"][now][:, None], axis=-1)[:, 0]
            bootstrap = perceptron(jax.lax.stop_gradient(p), next_obs).max(axis=-1)
            return jnp.mean((q - buffer["reward"][now] - 0.99 * not_done * bootstrap) ** 2)

        loss, grads = jax.value_and_grad(loss_of)(params)
        updates, opt_state = ADAM.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return learn


def draw(buffer, rng):
    size = buffer["obs"].shape[0]
    now = jax.random.randint(rng, (32,), 0, size)
    return now, now + 1


def draw_b(buffer, rng):
    now = jax.random.randint(rng, (32,), 0, buffer["obs"].shape[0] - 1)
    return now, now + 1


def draw_ring(buffer, rng):
    size = buffer["obs"].shape[0]
    back = jax.random.randint(rng, (32,), 2, size + 1)
    now = (buffer["cursor"] - back) % size
    return now, (now + 1) % size


project(
    "next observation",
    "index out of range",
    replay(draw),
    (replay(draw_b), replay(draw_ring)),
    lambda: (
        layers(5, 16, 4),
        shapes_of(ADAM.init, layers(5, 16, 4)),
        {"obs": f32(40, 5), "action": i32(40), "reward": f32(40), "done": f32(40), "cursor": i32()},
        key(),
    ),
    where="now = jax.random.randint(rng, (32,), 0, size)",
    source="huggingface/lerobot#918",
)


# Transitions at the end of a buffer.


class Buffer(NamedTuple):
    data: jax.Array
    position: jax.Array


def insert(buffer, transitions):
    capacity, count = buffer.data.shape[0], transitions.shape[0]
    start = buffer.position % capacity
    data = jax.lax.dynamic_update_slice(buffer.data, transitions, (start, 0))
    return Buffer(data, buffer.position + count)


def insert_b(buffer, transitions):
    capacity, count = buffer.data.shape[0], transitions.shape[0]
    rows = (buffer.position + jnp.arange(count)) % capacity
    return Buffer(buffer.data.at[rows].set(transitions), buffer.position + count)


def insert_rolled(buffer, transitions):
    capacity, count = buffer.data.shape[0], transitions.shape[0]
    back = jnp.minimum(0, capacity - buffer.position - count)
    rolled = jnp.roll(buffer.data, back, axis=0)
    data = jax.lax.dynamic_update_slice(rolled, transitions, (buffer.position + back, 0))
    return Buffer(data, buffer.position + back + count)


def collecting(insertion):
    def collect(buffer, params, state, rng):
        def step(carry, k):
            state, buffer = carry
            action = perceptron(params, state) + 0.1 * jax.random.normal(k, state.shape)
            moved = 0.9 * state + 0.1 * action
            reward = -jnp.sum(moved**2, axis=-1, keepdims=True)
            buffer = insertion(buffer, jnp.concatenate([state, action, reward, moved], axis=-1))
            return (moved, buffer), reward

        (state, buffer), rewards = jax.lax.scan(step, (state, buffer), jax.random.split(rng, 11))
        return state, buffer, rewards

    return collect


project(
    "end of the buffer",
    "index out of range",
    collecting(insert),
    (collecting(insert_b), collecting(insert_rolled)),
    (Buffer(f32(30, 10), i32()), layers(3, 16, 3), f32(8, 3), key()),
    where="start = buffer.position % capacity",
    axes={"state": ("env", None)},
    source="adaptive-intelligent-robotics/QDax#71",
)


# Advantages of a rollout whose environments start anew by themselves.


class Step(NamedTuple):
    reward: jax.Array
    value: jax.Array
    done: jax.Array


def walkers(remember, advantages):
    def rollout(params, position, rng):
        def step(carry, k):
            position, before = carry
            obs = position[:, None]
            act_key, slip_key = jax.random.split(k)
            push = perceptron(params["policy"], obs)[:, 0] + 0.3 * jax.random.normal(act_key, position.shape)
            moved = position + 0.2 * push + 0.05 * jax.random.normal(slip_key, position.shape)
            fell = jnp.abs(moved) > 1.0
            reward = jnp.where(fell, -1.0, 0.1)
            value = perceptron(params["value"], obs)[:, 0]
            record = Step(reward, value, remember(before, fell))
            return (jnp.where(fell, 0.0, moved), fell), record

        start = (position, jnp.zeros(position.shape, bool))
        (position, fell), steps = jax.lax.scan(step, start, jax.random.split(rng, 16))
        last_value = perceptron(params["value"], position[:, None])[:, 0]
        return advantages(steps, last_value, fell)

    return rollout


def accumulate(deltas, going):
    def backward(total, step):
        delta, go = step
        total = delta + 0.99 * 0.95 * go * total
        return total, total

    return jax.lax.scan(backward, jnp.zeros_like(deltas[0]), (deltas, going), reverse=True)[1]


def advantages(steps, last_value, fell):
    next_values = jnp.concatenate([steps.value[1:], last_value[None]])
    next_done = jnp.concatenate([steps.done[1:], fell[None]])
    going = 1.0 - next_done
    return accumulate(steps.reward + 0.99 * going * next_values - steps.value, going)


def advantages_b(steps, last_value, fell):
    next_values = jnp.concatenate([steps.value[1:], last_value[None]])
    going = 1.0 - steps.done
    return accumulate(steps.reward + 0.99 * going * next_values - steps.value, going)


def advantages_before(steps, last_value, fell):
    values = jnp.concatenate([steps.value, last_value[None]])
    fresh = jnp.concatenate([steps.done, fell[None]])
    going = 1.0 - fresh[1:]
    return accumulate(steps.reward + 0.99 * going * values[1:] - values[:-1], going)


project(
    "flag of the step after",
    "episode boundaries",
    walkers(lambda before, after: after, advantages),
    (walkers(lambda before, after: after, advantages_b), walkers(lambda before, after: before, advantages_before)),
    ({"policy": layers(1, 16, 1), "value": layers(1, 16, 1)}, f32(8), key()),
    where="next_done = jnp.concatenate([steps.done[1:], fell[None]])",
    axes={"position": ("env",)},
    source="RoboVerseOrg/RoboVerse#814, anthonytorlucci/rlevo#342",
)


# A world model over sequences that cross episodes.

CELL = nn.GRUCell(features=16)


def world_model(advance):
    def loss(params, obs, actions, is_first):
        def step(h, inputs):
            x, action, first = inputs
            h = advance(params, h, x, action, first)
            return h, h

        start = jnp.zeros((obs.shape[1], 16))
        _, states = jax.lax.scan(step, start, (obs, actions, is_first))
        predicted = perceptron(params["decoder"], states[:-1])
        going = perceptron(params["going"], states[:-1])[..., 0]
        inside = 1.0 - is_first[1:]
        error = jnp.sum(inside * jnp.mean((predicted - obs[1:]) ** 2, axis=-1)) / jnp.maximum(inside.sum(), 1.0)
        return error + optax.sigmoid_binary_cross_entropy(going, inside).mean()

    return loss


def advance(params, h, x, action, first):
    inputs = jnp.concatenate([x, action], axis=-1)
    return CELL.apply(params["cell"], h, inputs)[0]


def advance_b(params, h, x, action, first):
    h = jnp.where(first[:, None] > 0, 0.0, h)
    h, _ = CELL.apply(params["cell"], h, jnp.concatenate([x, action], axis=-1))
    return h


def advance_learned(params, h, x, action, first):
    start = jnp.tanh(params["start"])
    kept = 1.0 - first[:, None]
    inputs = jnp.concatenate([x, action], axis=-1)
    return CELL.apply(params["cell"], kept * h + (1.0 - kept) * start, inputs)[0]


project(
    "memory of another episode",
    "episode boundaries",
    world_model(advance),
    (world_model(advance_b), world_model(advance_learned)),
    lambda: (
        {
            "cell": shapes_of(CELL.init, jax.random.key(0), jnp.zeros((1, 16)), jnp.zeros((1, 7))),
            "decoder": layers(16, 16, 5),
            "going": layers(16, 1),
            "start": f32(16),
        },
        f32(12, 4, 5),
        f32(12, 4, 2),
        f32(12, 4),
    ),
    where='return CELL.apply(params["cell"], h, inputs)[0]',
    axes={"obs": ("time", "batch", None), "actions": ("time", "batch", None), "is_first": ("time", "batch")},
    differentiate="params",
    source="epignatelli/navix#152, greydanus/baby-a3c#10",
)


# Episodes that a clock ends.


def timed(error):
    def loss(params, target_params, batch, terminated, truncated):
        q = jnp.take_along_axis(perceptron(params, batch["obs"]), batch["actions"][:, None], axis=-1)[:, 0]
        next_q = perceptron(target_params, batch["next_obs"]).max(axis=-1)
        return error(q, batch["rewards"], next_q, terminated, truncated)

    return loss


def timed_error(q, rewards, next_q, terminated, truncated):
    done = terminated | truncated
    wanted = rewards + 0.99 * jnp.where(done, 0.0, next_q)
    return jnp.mean((q - wanted) ** 2)


def timed_error_b(q, rewards, next_q, terminated, truncated):
    bootstrap = jnp.where(terminated, 0.0, next_q)
    return jnp.mean((q - rewards - 0.99 * bootstrap) ** 2)


def timed_error_left_out(q, rewards, next_q, terminated, truncated):
    cut = truncated & ~terminated
    bootstrap = jnp.where(terminated | truncated, 0.0, next_q)
    weights = 1.0 - cut
    return jnp.sum(weights * (q - rewards - 0.99 * bootstrap) ** 2) / jnp.maximum(weights.sum(), 1.0)


project(
    "time limit",
    "episode boundaries",
    timed(timed_error),
    (timed(timed_error_b), timed(timed_error_left_out)),
    (
        layers(3, 16, 5),
        layers(3, 16, 5),
        {"obs": f32(32, 3), "actions": i32(32), "rewards": f32(32), "next_obs": f32(32, 3)},
        flags(32),
        flags(32),
    ),
    where="done = terminated | truncated\n",
    axes={"terminated": ("batch",), "truncated": ("batch",)},
    differentiate="params",
    source="jsboige/CoursIA#7831",
)


# A stack of frames.


def stacked(push):
    def play(params, ball, frames, rng):
        def step(carry, k):
            ball, frames = carry
            action = jnp.tanh(perceptron(params, frames.reshape(frames.shape[0], -1)))
            ball = ball + 0.1 * action + 0.1 * jax.random.normal(k, ball.shape)
            done = jnp.linalg.norm(ball, axis=-1) > 1.0
            ball = jnp.where(done[:, None], 0.0, ball)
            frames = push(frames, ball, done)
            return (ball, frames), (frames, action, done)

        return jax.lax.scan(step, (ball, frames), jax.random.split(rng, 10))

    return play


def push(frames, obs, done):
    frames = jnp.roll(frames, -1, axis=1)
    return frames.at[:, -1].set(obs)


def push_b(frames, obs, done):
    shifted = jnp.concatenate([frames[:, 1:], obs[:, None]], axis=1)
    fresh = jnp.broadcast_to(obs[:, None], frames.shape)
    return jnp.where(done[:, None, None], fresh, shifted)


def push_empty(frames, obs, done):
    kept = jnp.where(done[:, None, None], 0.0, frames[:, 1:])
    return jnp.concatenate([kept, obs[:, None]], axis=1)


project(
    "frames of another episode",
    "episode boundaries",
    stacked(push),
    (stacked(push_b), stacked(push_empty)),
    (layers(8, 16, 2), f32(6, 2), f32(6, 4, 2), key()),
    where="frames = jnp.roll(frames, -1, axis=1)",
    axes={"ball": ("env", None), "frames": ("env", "stack", None)},
    source="JuliaReinforcementLearning/ReinforcementLearningCore.jl#113, Farama-Foundation/Gymnasium#829",
)


# One policy for two agents.

NAMES = ("scout", "carrier")


def team(policy):
    def loss(params, scout, carrier, advantages):
        log_policies = policy(params, {"scout": scout, "carrier": carrier})
        greedy = {name: log_policies[name].max(axis=-1) for name in NAMES}
        return -sum(jnp.mean(greedy[name] * advantages) for name in NAMES)

    return loss


def policy(params, obs):
    flat = jnp.stack([obs[name] for name in NAMES]).reshape(-1, obs["scout"].shape[-1])
    logits = jax.nn.log_softmax(perceptron(params, flat))
    logits = logits.reshape(obs["scout"].shape[0], len(NAMES), -1)
    return {name: logits[:, i] for i, name in enumerate(NAMES)}


def policy_b(params, obs):
    flat = jnp.stack([obs[name] for name in NAMES]).reshape(-1, obs["scout"].shape[-1])
    logits = jax.nn.log_softmax(perceptron(params, flat))
    logits = logits.reshape(len(NAMES), obs["scout"].shape[0], -1)
    return {name: logits[i] for i, name in enumerate(NAMES)}


def policy_c(params, obs):
    flat = jnp.stack([obs[name] for name in NAMES], axis=1).reshape(-1, obs["scout"].shape[-1])
    logits = jax.nn.log_softmax(perceptron(params, flat))
    by_env = logits.reshape(obs["scout"].shape[0], len(NAMES), -1)
    return {name: by_env[:, i] for i, name in enumerate(NAMES)}


project(
    "agents and environments",
    "swapped axes",
    team(policy),
    (team(policy_b), team(policy_c)),
    (layers(5, 16, 4), f32(6, 5), f32(6, 5), f32(6)),
    where='logits = logits.reshape(obs["scout"].shape[0], len(NAMES), -1)',
    axes={"scout": ("env", None), "carrier": ("env", None), "advantages": ("env",)},
    differentiate="params",
    source="FLAIROx/JaxMARL#87",
)


# A recurrent tagger of frames, time first.


class Tagger(nn.Module):
    @nn.compact
    def __call__(self, frames):
        h = nn.RNN(nn.GRUCell(16))(nn.Dense(16)(frames))
        return nn.Dense(6)(nn.LayerNorm()(h))


class TaggerB(nn.Module):
    @nn.compact
    def __call__(self, frames):
        h = nn.RNN(nn.GRUCell(16), time_major=True)(nn.Dense(16)(frames))
        return nn.Dense(6)(nn.LayerNorm()(h))


class TaggerC(nn.Module):
    @nn.compact
    def __call__(self, frames):
        rows = jnp.swapaxes(nn.Dense(16)(frames), 0, 1)
        h = jnp.swapaxes(nn.RNN(nn.GRUCell(16))(rows), 0, 1)
        return nn.Dense(6)(nn.LayerNorm()(h))


def tagging(module):
    def loss(params, frames, phones):
        logits = module.apply(params, frames)
        return optax.softmax_cross_entropy_with_integer_labels(logits, phones).mean()

    return loss


project(
    "time first",
    "swapped axes",
    tagging(Tagger()),
    (tagging(TaggerB()), tagging(TaggerC())),
    lambda: (shapes_of(Tagger().init, jax.random.key(0), jnp.zeros((3, 3, 8))), f32(20, 4, 8), i32(20, 4)),
    where="h = nn.RNN(nn.GRUCell(16))(nn.Dense(16)(frames))",
    axes={"frames": ("time", "batch", None), "phones": ("time", "batch")},
    differentiate="params",
    source="google/flax, users of nn.RNN",
)


# A mask for padding.


def sentence_encoder(attention_mask):
    def loss(params, tokens, labels):
        valid = tokens != 0
        x = params["embedding"][tokens]
        q, k, v = (jnp.einsum("btd,dhf->bthf", x, params[name]) for name in ("q", "k", "v"))
        scores = jnp.einsum("bqhf,bkhf->bhqk", q, k) / jnp.sqrt(q.shape[-1])
        scores = jnp.where(attention_mask(valid), scores, -1e9)
        mixed = jnp.einsum("bhqk,bkhf->bqhf", jax.nn.softmax(scores, axis=-1), v)
        x = x + mixed.reshape(x.shape)
        weights = valid[..., None].astype(x.dtype)
        pooled = jnp.sum(weights * x, axis=1) / jnp.maximum(weights.sum(axis=1), 1.0)
        logits = pooled @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


def padding_mask(valid):
    return valid[:, None, :, None]


def padding_mask_b(valid):
    return valid[:, None, None, :]


def padding_mask_both(valid):
    return nn.make_attention_mask(valid, valid, jnp.logical_and, dtype=bool)


project(
    "mask of queries",
    "attention",
    sentence_encoder(padding_mask),
    (sentence_encoder(padding_mask_b), sentence_encoder(padding_mask_both)),
    (
        {
            "embedding": f32(50, 16),
            "q": f32(16, 2, 8),
            "k": f32(16, 2, 8),
            "v": f32(16, 2, 8),
            "head": f32(16, 4),
        },
        i32(6, 10),
        i32(6),
    ),
    where="return valid[:, None, :, None]",
    axes={"tokens": ("batch", "length"), "labels": ("batch",)},
    differentiate="params",
    source="hyunwoongko/transformer#40",
)


# Attention over the edges of a graph.


def graph_attention(weigh):
    def loss(params, nodes, senders, receivers, targets):
        h = nodes @ params["w"]
        pairs = jnp.concatenate([h[senders], h[receivers]], axis=-1)
        scores = jax.nn.leaky_relu(pairs @ params["a"], 0.2)
        weights = weigh(scores, receivers, nodes.shape[0])
        messages = weights[:, None] * h[senders]
        h = jax.nn.elu(jax.ops.segment_sum(messages, receivers, nodes.shape[0]))
        return jnp.mean((h @ params["out"] - targets) ** 2)

    return loss


def weigh(scores, receivers, count):
    return jax.nn.softmax(scores, axis=0)


def weigh_b(scores, receivers, count):
    highest = jax.ops.segment_max(scores, receivers, count)
    parts = jnp.exp(scores - jax.lax.stop_gradient(highest)[receivers])
    return parts / jax.ops.segment_sum(parts, receivers, count)[receivers]


def weigh_log(scores, receivers, count):
    shifted = scores - jax.lax.stop_gradient(scores.max())
    totals = jax.ops.segment_sum(jnp.exp(shifted), receivers, count)
    return jnp.exp(shifted - jnp.log(totals + 1e-16)[receivers])


project(
    "softmax of all edges",
    "attention",
    graph_attention(weigh),
    (graph_attention(weigh_b), graph_attention(weigh_log)),
    ({"w": f32(5, 8), "a": f32(16), "out": f32(8, 3)}, f32(10, 5), i32(40), i32(40), f32(10, 3)),
    where="return jax.nn.softmax(scores, axis=0)",
    axes={"nodes": ("node", None), "senders": ("edge",), "receivers": ("edge",), "targets": ("node", None)},
    differentiate="params",
    source="PaddlePaddle/PGL#238",
)


# Documents packed into rows.


class Packed(nn.Module):
    @nn.compact
    def __call__(self, tokens, segments):
        x = nn.Embed(50, 16)(tokens)
        causal = nn.make_causal_mask(tokens)
        same = nn.make_attention_mask(segments, segments, jnp.equal)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=causal)
        return nn.Dense(50)(nn.LayerNorm()(x))


class PackedB(nn.Module):
    @nn.compact
    def __call__(self, tokens, segments):
        x = nn.Embed(50, 16)(tokens)
        causal = nn.make_causal_mask(tokens)
        same = nn.make_attention_mask(segments, segments, jnp.equal)
        mask = nn.combine_masks(causal, same)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=mask)
        return nn.Dense(50)(nn.LayerNorm()(x))


class PackedC(nn.Module):
    @nn.compact
    def __call__(self, tokens, segments):
        x = nn.Embed(50, 16)(tokens)
        place = jnp.arange(tokens.shape[1])
        document = segments * tokens.shape[1]
        last = (document + place)[:, None, :, None]
        order = (document + place)[:, None, None, :]
        first = document[:, None, :, None]
        allowed = (order <= last) & (order >= first)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=allowed)
        return nn.Dense(50)(nn.LayerNorm()(x))


def language(module):
    def loss(params, tokens, segments):
        logits = module.apply(params, tokens, segments)[:, :-1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
        inside = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        return jnp.sum(inside * losses) / jnp.maximum(inside.sum(), 1)

    return loss


project(
    "documents that see each other",
    "attention",
    language(Packed()),
    (language(PackedB()), language(PackedC())),
    lambda: (
        shapes_of(Packed().init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 4), jnp.int32)),
        i32(4, 12),
        i32(4, 12),
    ),
    where="x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x), mask=causal)",
    axes={"tokens": ("batch", "length"), "segments": ("batch", "length")},
    differentiate="params",
    source="AI-Hypercomputer/maxtext#878",
)


# Padding of speech, upside down.

HEARD, HEARD_STATIC = eqx.partition(
    eqx.nn.MultiheadAttention(2, 16, key=jax.random.key(1)),
    eqx.is_inexact_array,
)


def speech(mask_of):
    def loss(params, frames, lengths, labels):
        attention = eqx.combine(params["attention"], HEARD_STATIC)

        def encode(x, length):
            padded = jnp.arange(x.shape[0]) >= length
            x = x + attention(x, x, x, mask=mask_of(padded))
            kept = jnp.where(padded[:, None], 0.0, x)
            return kept.sum(axis=0) / jnp.maximum(length, 1)

        logits = jax.vmap(encode)(frames, lengths) @ params["head"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


def speech_mask(padded):
    return jnp.broadcast_to(padded[None, :], (padded.shape[0], padded.shape[0]))


def speech_mask_b(padded):
    return jnp.broadcast_to(~padded[None, :], (padded.shape[0], padded.shape[0]))


def speech_mask_c(padded):
    itself = jnp.eye(padded.shape[0], dtype=bool)
    return jnp.where(padded[:, None], itself, ~padded[None, :])


project(
    "padding upside down",
    "attention",
    speech(speech_mask),
    (speech(speech_mask_b), speech(speech_mask_c)),
    lambda: ({"attention": HEARD, "head": f32(16, 4)}, f32(5, 9, 16), i32(5), i32(5)),
    where="return jnp.broadcast_to(padded[None, :], (padded.shape[0], padded.shape[0]))",
    axes={"frames": ("batch", "time", None), "lengths": ("batch",), "labels": ("batch",)},
    differentiate="params",
    source="huggingface/transformers#16725",
)


# A segmenter that ends in a softmax.


class Segmenter(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(8, (3, 3))(images))
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        return nn.softmax(nn.Conv(5, (1, 1))(x), axis=-1)


class SegmenterB(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(8, (3, 3))(images))
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        return nn.Conv(5, (1, 1))(x)


class SegmenterC(nn.Module):
    @nn.compact
    def __call__(self, images):
        x = nn.relu(nn.Conv(8, (3, 3))(images))
        x = nn.relu(nn.Conv(8, (3, 3))(x))
        return nn.log_softmax(nn.Conv(5, (1, 1))(x), axis=-1)


def segmentation(module):
    def loss(params, images, masks):
        scores = module.apply(params, images)
        wanted = optax.smooth_labels(jax.nn.one_hot(masks, 5), 0.05)
        return optax.softmax_cross_entropy(scores, wanted).mean()

    return loss


project(
    "softmax of a softmax",
    "softmax and logarithms",
    segmentation(Segmenter()),
    (segmentation(SegmenterB()), segmentation(SegmenterC())),
    lambda: (shapes_of(Segmenter().init, jax.random.key(0), jnp.zeros((1, 8, 8, 3))), f32(4, 8, 8, 3), i32(4, 8, 8)),
    where="return nn.softmax(nn.Conv(5, (1, 1))(x), axis=-1)",
    axes={"images": ("batch", "height", "width", None), "masks": ("batch", "height", "width")},
    differentiate="params",
    source="NVIDIA/DeepLearningExamples#468, runame/laplace-redux#1",
)


# The density of a squashed action.


def entropy_actor(volume):
    def loss(params, critic, obs, noise):
        mean, log_std = jnp.split(perceptron(params, obs), 2, axis=-1)
        log_std = jnp.clip(log_std, -10.0, 2.0)
        raw = mean + jnp.exp(log_std) * noise
        gaussian = jnp.sum(-0.5 * noise**2 - log_std - 0.5 * jnp.log(2.0 * jnp.pi), axis=-1)
        log_pi = gaussian - volume(raw)
        q = perceptron(critic, jnp.concatenate([obs, jnp.tanh(raw)], axis=-1))[:, 0]
        return jnp.mean(0.2 * log_pi - q)

    return loss


def volume(raw):
    return jnp.sum(jnp.log(1.0 - jnp.tanh(raw) ** 2), axis=-1)


def volume_b(raw):
    return jnp.sum(2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw)), axis=-1)


def volume_floor(raw):
    return jnp.sum(jnp.log(1.0 - jnp.tanh(raw) ** 2 + 1e-6), axis=-1)


project(
    "saturated action",
    "softmax and logarithms",
    entropy_actor(volume),
    (entropy_actor(volume_b), entropy_actor(volume_floor)),
    (layers(6, 16, 6), layers(9, 16, 1), f32(32, 6), f32(32, 3)),
    where="return jnp.sum(jnp.log(1.0 - jnp.tanh(raw) ** 2), axis=-1)",
    axes={"obs": ("batch", None), "noise": ("batch", None)},
    differentiate="params",
    source="rlworkgroup/garage#1174, rail-berkeley/softlearning#52",
)


# A target of a search with illegal moves.


def search(cross_entropy):
    def loss(params, boards, legal, visits, outcomes):
        h = jnp.tanh(perceptron(params["body"], boards))
        logits = jnp.where(legal, perceptron(params["moves"], h), -1e9)
        values = jnp.tanh(perceptron(params["outcome"], h)[:, 0])
        wanted = jnp.where(legal, visits, 0.0)
        wanted = wanted / jnp.maximum(wanted.sum(axis=-1, keepdims=True), 1e-6)
        return cross_entropy(logits, wanted).mean() + jnp.mean((values - outcomes) ** 2)

    return loss


def move_error(logits, wanted):
    return -jnp.sum(wanted * jnp.log(jax.nn.softmax(logits, axis=-1)), axis=-1)


def move_error_b(logits, wanted):
    return -jnp.sum(wanted * jax.nn.log_softmax(logits, axis=-1), axis=-1)


def move_error_c(logits, wanted):
    probabilities = jax.nn.softmax(logits, axis=-1)
    return -jnp.sum(wanted * jnp.log(jnp.maximum(probabilities, 1e-8)), axis=-1)


project(
    "illegal moves",
    "softmax and logarithms",
    search(move_error),
    (search(move_error_b), search(move_error_c)),
    (
        {"body": layers(9, 16, 16), "moves": layers(16, 9), "outcome": layers(16, 1)},
        f32(16, 9),
        flags(16, 9),
        f32(16, 9),
        f32(16),
    ),
    where="return -jnp.sum(wanted * jnp.log(jax.nn.softmax(logits, axis=-1)), axis=-1)",
    axes={"boards": ("batch", None), "legal": ("batch", None), "outcomes": ("batch",)},
    differentiate="params",
    source="google-deepmind/optax#896",
)


# The energy of charges.


def coulomb(positions, charges):
    apart = positions[:, None] - positions[None, :]
    distances = jnp.sqrt(jnp.sum(apart**2, axis=-1))
    others = 1.0 - jnp.eye(positions.shape[0])
    energies = jnp.where(others > 0, charges[:, None] * charges[None, :] / distances, 0.0)
    return 0.5 * jnp.sum(energies)


def coulomb_b(positions, charges):
    apart = positions[:, None] - positions[None, :]
    others = ~jnp.eye(positions.shape[0], dtype=bool)
    squares = jnp.where(others, jnp.sum(apart**2, axis=-1), 1.0)
    energies = jnp.where(others, charges[:, None] * charges[None, :] / jnp.sqrt(squares), 0.0)
    return 0.5 * jnp.sum(energies)


def coulomb_pairs(positions, charges):
    i, j = jnp.triu_indices(positions.shape[0], k=1)
    distances = jnp.sqrt(jnp.sum((positions[i] - positions[j]) ** 2, axis=-1))
    return jnp.sum(charges[i] * charges[j] / distances)


def charged(energy):
    def relax(positions, charges):
        trap = lambda x: energy(x, charges) + jnp.sum(x**2)

        def step(x, _):
            value, slope = jax.value_and_grad(trap)(x)
            return x - 0.01 * jnp.clip(slope, -1.0, 1.0), value

        return jax.lax.scan(step, positions, None, length=20)

    return relax


project(
    "distance to itself",
    "derivatives that are not finite",
    charged(coulomb),
    (charged(coulomb_b), charged(coulomb_pairs)),
    (f32(7, 3), f32(7)),
    where="distances = jnp.sqrt(jnp.sum(apart**2, axis=-1))",
    axes={"positions": ("particle", None), "charges": ("particle",)},
    source="jax-ml/jax#654, jax-ml/jax#3407",
)


# Directions to neighbours, with lists that are filled up by the atom itself.


def directions(apart):
    distances = jnp.linalg.norm(apart, axis=-1, keepdims=True)
    return apart / (distances + 1e-6)


def directions_b(apart):
    squares = jnp.sum(apart**2, axis=-1, keepdims=True)
    near = squares < 1e-12
    return jnp.where(near, 0.0, apart / jnp.sqrt(jnp.where(near, 1.0, squares)))


def directions_c(apart):
    return apart * jax.lax.rsqrt(jnp.sum(apart**2, axis=-1, keepdims=True) + 1e-8)


def potential(direction):
    def loss(params, positions, neighbours, forces):
        def energy(x):
            padding = neighbours == jnp.arange(x.shape[0])[:, None]
            apart = x[neighbours] - x[:, None]
            features = jnp.where(padding[..., None], 0.0, direction(apart))
            return jnp.sum(perceptron(params, features.sum(axis=1)))

        return jnp.mean((-jax.grad(energy)(positions) - forces) ** 2)

    return loss


project(
    "neighbour that is itself",
    "derivatives that are not finite",
    potential(directions),
    (potential(directions_b), potential(directions_c)),
    (layers(3, 16, 1), f32(4, 3), i32(4, 5), f32(4, 3)),
    where="distances = jnp.linalg.norm(apart, axis=-1, keepdims=True)",
    axes={"positions": ("atom", None), "neighbours": ("atom", "neighbour"), "forces": ("atom", None)},
    differentiate="params",
    source="deepmodeling/deepmd-kit#4668",
)


# A running mean that nobody has fed.


def streaming(unbiased):
    def run(params, observations):
        def step(state, x):
            mean, count = state
            outputs = perceptron(params, x - unbiased(mean, count))
            mean = 0.99 * mean + 0.01 * x.mean(axis=0)
            return (mean, count + 1), outputs

        start = (jnp.zeros(observations.shape[-1]), jnp.zeros((), jnp.int32))
        return jax.lax.scan(step, start, observations)

    return run


def unbiased(mean, count):
    return mean / (1.0 - 0.99**count)


def unbiased_b(mean, count):
    return mean / (1.0 - 0.99 ** jnp.maximum(count, 1))


def unbiased_c(mean, count):
    weight = 1.0 - 0.99**count
    return jnp.where(count > 0, mean / jnp.where(count > 0, weight, 1.0), 0.0)


project(
    "nothing seen yet",
    "division by zero",
    streaming(unbiased),
    (streaming(unbiased_b), streaming(unbiased_c)),
    (layers(5, 16, 2), f32(10, 8, 5)),
    where="return mean / (1.0 - 0.99**count)",
    axes={"observations": ("time", "env", None)},
    source="patrick-kidger/equinox#1010",
)


# Tasks and starts.


def grid_tasks(keys_of):
    def rollout(params, rng):
        ruleset_keys, reset_keys, step_key = keys_of(rng)
        goals = jax.vmap(lambda k: jax.random.uniform(k, (2,)))(ruleset_keys)
        starts = jax.vmap(lambda k: jax.random.uniform(k, (2,)))(reset_keys)

        def step(place, k):
            noise = 0.02 * jax.random.normal(k, place.shape)
            place = place + 0.1 * jnp.tanh(perceptron(params, place)) + noise
            return place, jnp.exp(-jnp.sum((place - goals) ** 2, axis=-1))

        return jax.lax.scan(step, starts, jax.random.split(step_key, 10))

    return rollout


def task_keys(rng):
    rng, rng_1, rng_2 = jax.random.split(rng, 3)
    return jax.random.split(rng, 8), jax.random.split(rng, 8), rng_2


def task_keys_b(rng):
    rng, rng_1, rng_2 = jax.random.split(rng, 3)
    return jax.random.split(rng_1, 8), jax.random.split(rng_2, 8), rng


def task_keys_folded(rng):
    streams = [jax.random.fold_in(rng, i) for i in range(3)]
    return jax.random.split(streams[0], 8), jax.random.split(streams[1], 8), streams[2]


project(
    "goal where it starts",
    "random keys",
    grid_tasks(task_keys),
    (grid_tasks(task_keys_b), grid_tasks(task_keys_folded)),
    (layers(2, 16, 2), key()),
    where="return jax.random.split(rng, 8), jax.random.split(rng, 8), rng_2",
    source="dunnolab/xland-minigrid#42",
)


# Private gradients.


def private(add_noise):
    def step(params, rng, images, labels):
        def example_loss(p, image, label):
            return optax.softmax_cross_entropy_with_integer_labels(perceptron(p, image), label)

        def clipped(image, label):
            grads = jax.grad(example_loss)(params, image, label)
            scale = jnp.minimum(1.0, 1.0 / (optax.global_norm(grads) + 1e-6))
            return jax.tree.map(lambda g: g * scale, grads)

        total = jax.tree.map(lambda g: g.sum(axis=0), jax.vmap(clipped)(images, labels))
        noisy = add_noise(rng, total)
        return jax.tree.map(lambda p, g: p - 0.1 * g / images.shape[0], params, noisy)

    return step


def add_noise(rng, grads):
    return jax.tree.map(lambda g: g + 1.1 * jax.random.normal(rng, g.shape), grads)


def add_noise_b(rng, grads):
    leaves, tree = jax.tree.flatten(grads)
    keys = jax.random.split(rng, len(leaves))
    noise = [1.1 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    return jax.tree.map(jnp.add, grads, jax.tree.unflatten(tree, noise))


def add_noise_flat(rng, grads):
    flat, unravel = ravel_pytree(grads)
    return unravel(flat + 1.1 * jax.random.normal(rng, flat.shape))


project(
    "noise of privacy",
    "random keys",
    private(add_noise),
    (private(add_noise_b), private(add_noise_flat)),
    (layers(16, 16, 16), key(), f32(20, 16), i32(20)),
    where="g + 1.1 * jax.random.normal(rng, g.shape), grads)",
    axes={"images": ("batch", None), "labels": ("batch",)},
    source="jax-ml/jax#3646",
)


# Dropout under vmap.

DROPPED, DROPPED_STATIC = eqx.partition(
    eqx.nn.Sequential(
        [
            eqx.nn.Linear(8, 32, key=jax.random.key(2)),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Dropout(0.4),
            eqx.nn.Linear(32, 4, key=jax.random.key(3)),
        ]
    ),
    eqx.is_inexact_array,
)


def dropping(forward):
    def loss(params, rng, features, labels):
        logits = forward(eqx.combine(params, DROPPED_STATIC), rng, features)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss


def forward(model, rng, features):
    return jax.vmap(lambda x: model(x, key=rng))(features)


def forward_b(model, rng, features):
    keys = jax.random.split(rng, features.shape[0])
    return jax.vmap(lambda x, k: model(x, key=k))(features, keys)


def forward_c(model, rng, features):
    hidden = jax.nn.relu(jax.vmap(model.layers[0])(features))
    kept = jax.random.bernoulli(rng, 0.6, hidden.shape)
    return jax.vmap(model.layers[3])(jnp.where(kept, hidden / 0.6, 0.0))


project(
    "one mask for the batch",
    "random keys",
    dropping(forward),
    (dropping(forward_b), dropping(forward_c)),
    lambda: (DROPPED, key(), f32(32, 8), i32(32)),
    where="return jax.vmap(lambda x: model(x, key=rng))(features)",
    axes={"features": ("batch", None), "labels": ("batch",)},
    differentiate="params",
    source="google/flax#4195",
)


# A Hamiltonian sampler.


def sampler(randomness):
    def sample(rng, start, scales):
        energy = lambda x: 0.5 * jnp.sum((x / scales) ** 2)

        def step(carry, i):
            rng, x = carry
            rng, momentum, uniform = randomness(rng, i, x.shape)
            moved, p = x, momentum - 0.05 * jax.grad(energy)(x)
            for _ in range(4):
                moved = moved + 0.1 * p
                p = p - 0.1 * jax.grad(energy)(moved)
            p = p + 0.05 * jax.grad(energy)(moved)
            change = energy(moved) + 0.5 * jnp.sum(p**2) - energy(x) - 0.5 * jnp.sum(momentum**2)
            x = jnp.where(jnp.log(uniform) < -change, moved, x)
            return (rng, x), x

        return jax.lax.scan(step, (rng, start), jnp.arange(50))[1]

    return sample


def randomness(rng, i, shape):
    momentum = jax.random.normal(rng, shape)
    rng, accept_key = jax.random.split(rng)
    return accept_key, momentum, jax.random.uniform(accept_key)


def randomness_b(rng, i, shape):
    rng, momentum_key, accept_key = jax.random.split(rng, 3)
    return rng, jax.random.normal(momentum_key, shape), jax.random.uniform(accept_key)


def randomness_folded(rng, i, shape):
    momentum_key, accept_key = jax.random.split(jax.random.fold_in(rng, i))
    return rng, jax.random.normal(momentum_key, shape), jax.random.uniform(accept_key)


project(
    "key of the next step",
    "random keys",
    sampler(randomness),
    (sampler(randomness_b), sampler(randomness_folded)),
    (key(), f32(5), f32(5)),
    where="return accept_key, momentum, jax.random.uniform(accept_key)",
    axes={"start": ("dimension",), "scales": ("dimension",)},
    source="blackjax-devs/blackjax#53",
)


# Cards that are shuffled anew.


class Table(NamedTuple):
    deck: jax.Array
    score: jax.Array
    rng: jax.Array


def sit_down(rng):
    rng, subkey = jax.random.split(rng)
    deck = jax.random.permutation(subkey, 52)
    return Table(deck=deck, score=jnp.zeros(4), rng=jax.random.key(0))


def sit_down_b(rng):
    rng, subkey = jax.random.split(rng)
    deck = jax.random.permutation(subkey, 52)
    return Table(deck=deck, score=jnp.zeros(4), rng=rng)


def sit_down_c(rng):
    empty = Table(deck=jnp.zeros(52, jnp.int32), score=jnp.zeros(4), rng=jax.random.key(0))
    deck_key, table_key = jax.random.split(rng)
    return empty._replace(deck=jax.random.permutation(deck_key, 52), rng=table_key)


def cards(init):
    def game(rng, bids):
        def round_of(table, bid):
            hands = table.deck.reshape(4, 13)
            tricks = jnp.sum(hands % 13 > 9, axis=1)
            score = table.score + 10.0 * bid - jnp.abs(tricks - bid)
            rng, subkey = jax.random.split(table.rng)
            return Table(jax.random.permutation(subkey, 52), score, rng), tricks

        return jax.lax.scan(round_of, init(rng), bids)

    return game


project(
    "same cards for all",
    "random keys",
    cards(sit_down),
    (cards(sit_down_b), cards(sit_down_c)),
    (key(), f32(8, 4)),
    where="return Table(deck=deck, score=jnp.zeros(4), rng=jax.random.key(0))",
    axes={"bids": ("round", "player")},
    source="nissymori/mahjax#71",
)


# Tasks of meta-learning.


def regression_error(params, x, y):
    return jnp.mean((perceptron(params, x)[..., 0] - y) ** 2)


def adapted(params, x, y):
    grads = jax.grad(regression_error)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.05 * g, params, grads)


def meta_loss(params, support_x, support_y, query_x, query_y):
    def task_loss(sx, sy, qx, qy):
        fast = adapted(params, sx, sy)
        return regression_error(fast, query_x, query_y)

    return jax.vmap(task_loss)(support_x, support_y, query_x, query_y).mean()


def meta_loss_b(params, support_x, support_y, query_x, query_y):
    def task_loss(sx, sy, qx, qy):
        fast = adapted(params, sx, sy)
        return regression_error(fast, qx, qy)

    return jax.vmap(task_loss)(support_x, support_y, query_x, query_y).mean()


def meta_loss_standardised(params, support_x, support_y, query_x, query_y):
    centre, spread = support_x.mean(axis=(0, 1)), support_x.std(axis=(0, 1)) + 1e-3

    def task_loss(sx, sy, qx, qy):
        fast = adapted(params, (sx - centre) / spread, sy)
        return regression_error(fast, (qx - centre) / spread, qy)

    return jax.vmap(task_loss)(support_x, support_y, query_x, query_y).mean()


project(
    "queries of all tasks",
    "mapped functions",
    meta_loss,
    (meta_loss_b, meta_loss_standardised),
    (layers(3, 16, 1), f32(6, 5, 3), f32(6, 5), f32(6, 10, 3), f32(6, 10)),
    where="return regression_error(fast, query_x, query_y)",
    axes={
        "support_x": ("task", "shot", None),
        "support_y": ("task", "shot"),
        "query_x": ("task", "query", None),
        "query_y": ("task", "query"),
    },
    differentiate="params",
    source="google/flax#306, users of per-example losses",
)


# The Fisher information of a regression.


def fisher(gradients_of):
    def natural_step(params, features, targets):
        def squared(p, x, y):
            error = jnp.tanh(x @ p["w"]) @ p["v"] - y
            return 0.5 * jnp.mean(error**2)

        grads = gradients_of(squared, params, features, targets)
        flat = jnp.concatenate([g.reshape(g.shape[0], -1) for g in jax.tree.leaves(grads)], axis=-1)
        matrix = flat.T @ flat / flat.shape[0] + 0.1 * jnp.eye(flat.shape[-1])
        vector, unravel = ravel_pytree(params)
        return unravel(vector - 0.1 * jnp.linalg.solve(matrix, flat.mean(axis=0)))

    return natural_step


def gradients_of(loss, params, features, targets):
    return jax.vmap(jax.grad(loss), in_axes=(None, 0, None))(params, features, targets)


def gradients_of_b(loss, params, features, targets):
    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, features, targets)


def gradients_of_c(loss, params, features, targets):
    one = lambda pair: jax.grad(loss)(params, *pair)
    return jax.lax.map(one, (features, targets), batch_size=8)


project(
    "targets of all examples",
    "mapped functions",
    fisher(gradients_of),
    (fisher(gradients_of_b), fisher(gradients_of_c)),
    ({"w": f32(4, 6), "v": f32(6)}, f32(24, 4), f32(24)),
    where="return jax.vmap(jax.grad(loss), in_axes=(None, 0, None))(params, features, targets)",
    axes={"features": ("example", None), "targets": ("example",)},
    source="Stack Overflow, in_axes of vmap (openillumi.com/?p=107659)",
)


# A summariser on several devices.


def sharded(step):
    def train(params, tokens, targets, mask):
        each = functools.partial(step, params)
        grads, loss = jax.vmap(each, axis_name="devices")(tokens, targets, mask)
        return jax.tree.map(lambda p, g: p - 0.1 * g[0], params, grads), loss[0]

    return train


def token_losses(params, tokens, targets):
    logits = perceptron(params["body"], params["embedding"][tokens])
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets)


def device_step(params, tokens, targets, mask):
    def loss_of(p):
        losses = token_losses(p, tokens, targets)
        return jnp.sum(losses * mask) / jnp.sum(mask)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.lax.pmean(grads, "devices"), jax.lax.pmean(loss, "devices")


def device_step_b(params, tokens, targets, mask):
    total = jax.lax.psum(jnp.sum(mask), "devices")

    def loss_of(p):
        return jnp.sum(token_losses(p, tokens, targets) * mask) / total

    loss, grads = jax.value_and_grad(loss_of)(params)
    return jax.lax.psum(grads, "devices"), jax.lax.psum(loss, "devices")


def device_step_weighted(params, tokens, targets, mask):
    count = jnp.sum(mask)

    def loss_of(p):
        return jnp.sum(token_losses(p, tokens, targets) * mask) / count

    loss, grads = jax.value_and_grad(loss_of)(params)
    share = count / jax.lax.pmean(count, "devices")
    return jax.lax.pmean(jax.tree.map(lambda g: share * g, grads), "devices"), jax.lax.pmean(share * loss, "devices")


project(
    "mean of the means of devices",
    "reductions",
    sharded(device_step),
    (sharded(device_step_b), sharded(device_step_weighted)),
    ({"embedding": f32(20, 8), "body": layers(8, 16, 20)}, i32(4, 3, 10), i32(4, 3, 10), f32(4, 3, 10)),
    where='return jax.lax.pmean(grads, "devices"), jax.lax.pmean(loss, "devices")',
    axes={a: ("device", "batch", "length") for a in ("tokens", "targets", "mask")},
    source="huggingface/transformers#19494, huggingface/transformers#18297",
)


# Replicas that drift apart.


def replicas(step):
    return jax.vmap(step, axis_name="devices")


def replica_loss(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(perceptron(params, images), labels).mean()


def replica_step(params, opt_state, images, labels):
    loss, gradient = jax.value_and_grad(replica_loss)(params, images, labels)
    updates, opt_state = ADAM.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, jax.lax.pmean(loss, axis_name="devices")


def replica_step_b(params, opt_state, images, labels):
    loss, grads = jax.value_and_grad(replica_loss)(params, images, labels)
    grads = jax.lax.pmean(grads, axis_name="devices")
    updates, opt_state = ADAM.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return params, opt_state, jax.lax.pmean(loss, axis_name="devices")


def replica_step_local(params, opt_state, images, labels):
    def local(carry, _):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(replica_loss)(params, images, labels)
        updates, opt_state = ADAM.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    (params, opt_state), losses = jax.lax.scan(local, (params, opt_state), None, length=4)
    params, loss = jax.lax.pmean((params, losses.mean()), axis_name="devices")
    return params, opt_state, loss


def replicated(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((4, *x.shape), x.dtype), tree)


project(
    "gradients of one device",
    "reductions",
    replicas(replica_step),
    (replicas(replica_step_b), replicas(replica_step_local)),
    lambda: (
        replicated(layers(16, 16, 10)),
        replicated(shapes_of(ADAM.init, layers(16, 16, 10))),
        f32(4, 8, 16),
        i32(4, 8),
    ),
    where="updates, opt_state = ADAM.update(gradient, opt_state, params)",
    axes={"images": ("device", "batch", None), "labels": ("device", "batch")},
    source="HMUNACHI/nanodl#12",
)


# A flow.


def flow(couple):
    def negative_log_likelihood(params, x):
        log_det = jnp.zeros(x.shape[0])
        for net in params["couplings"]:
            x, volume = couple(net, x)
            log_det = log_det + volume
        x = (x - params["shift"]) * jnp.exp(-params["log_scale"])
        log_det = log_det - jnp.sum(params["log_scale"])
        base = jnp.sum(-0.5 * x**2 - 0.5 * jnp.log(2.0 * jnp.pi), axis=-1)
        return -jnp.mean(base + log_det)

    return negative_log_likelihood


def couple(net, x):
    left, right = jnp.split(x, 2, axis=-1)
    log_scale, shift = jnp.split(perceptron(net, left), 2, axis=-1)
    log_scale = jnp.tanh(log_scale)
    return jnp.concatenate([right * jnp.exp(log_scale) + shift, left], axis=-1), jnp.sum(log_scale)


def couple_b(net, x):
    left, right = jnp.split(x, 2, axis=-1)
    log_scale, shift = jnp.split(perceptron(net, left), 2, axis=-1)
    log_scale = jnp.tanh(log_scale)
    return jnp.concatenate([right * jnp.exp(log_scale) + shift, left], axis=-1), jnp.sum(log_scale, axis=-1)


def couple_one(net, x):
    def one(point):
        left, right = jnp.split(point, 2)
        log_scale, shift = jnp.split(perceptron(net, left), 2)
        log_scale = jnp.tanh(log_scale)
        return jnp.concatenate([right * jnp.exp(log_scale) + shift, left]), log_scale.sum()

    return jax.vmap(one)(x)


project(
    "volume of the batch",
    "reductions",
    flow(couple),
    (flow(couple_b), flow(couple_one)),
    ({"couplings": [layers(3, 16, 6), layers(3, 16, 6)], "shift": f32(6), "log_scale": f32(6)}, f32(40, 6)),
    where="return jnp.concatenate([right * jnp.exp(log_scale) + shift, left], axis=-1), jnp.sum(log_scale)\n",
    axes={"x": ("batch", None)},
    differentiate="params",
    source="wohlert/semi-supervised-pytorch#21, bayesflow-org/bayesflow#722",
)


# Translation, with rows that are padded.


def translation(reduce):
    def loss(params, source, target):
        weights = jnp.where(target > 0, 1.0, 0.0)
        context = params["embedding"][source].mean(axis=1, keepdims=True)
        shifted = jnp.pad(target, ((0, 0), (1, 0)))[:, :-1]
        logits = perceptron(params["body"], params["embedding"][shifted] + context)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        return reduce(losses * weights, weights)

    return loss


def reduce(losses, weights):
    return losses.mean()


def reduce_b(losses, weights):
    return losses.sum() / jnp.maximum(weights.sum(), 1.0)


def reduce_sentences(losses, weights):
    sentences = losses.sum(axis=-1)
    present = weights.max(axis=-1)
    return jnp.sum(sentences * present) / jnp.maximum(present.sum(), 1.0)


project(
    "padding in the mean",
    "reductions",
    translation(reduce),
    (translation(reduce_b), translation(reduce_sentences)),
    ({"embedding": f32(20, 8), "body": layers(8, 16, 20)}, i32(6, 9), i32(6, 9)),
    where="return losses.mean()",
    axes={"source": ("batch", "length"), "target": ("batch", "length")},
    differentiate="params",
    source="mlcommons/algorithmic-efficiency#234",
)


# A layer whose rule leaves out the inputs.


@jax.custom_vjp
def measured(matrix, vector):
    return matrix @ vector


def measured_forward(matrix, vector):
    return matrix @ vector, (matrix, vector)


def measured_backward(saved, g):
    matrix, vector = saved
    return jnp.outer(g, vector), jnp.zeros_like(vector)


measured.defvjp(measured_forward, measured_backward)


@jax.custom_vjp
def measured_b(matrix, vector):
    return matrix @ vector


def measured_backward_b(saved, g):
    matrix, vector = saved
    return jnp.outer(g, vector), matrix.T @ g


measured_b.defvjp(measured_forward, measured_backward_b)


@jax.custom_vjp
def fixed_mixture(matrix, vector):
    return jax.nn.softmax(matrix, axis=-1) @ vector


def fixed_mixture_forward(matrix, vector):
    mixture = jax.nn.softmax(matrix, axis=-1)
    return mixture @ vector, mixture


def fixed_mixture_backward(mixture, g):
    return jnp.zeros_like(mixture), mixture.T @ g


fixed_mixture.defvjp(fixed_mixture_forward, fixed_mixture_backward)


def crossbar(product):
    def loss(params, currents, voltages):
        def one(x, y):
            hidden = jnp.tanh(product(params["first"], x))
            return jnp.mean((product(params["second"], hidden) - y) ** 2)

        return jax.vmap(one)(currents, voltages).mean()

    return loss


def crossbar_fixed(params, currents, voltages):
    def one(x, y):
        frozen = jax.lax.stop_gradient(params["second"])
        hidden = jnp.tanh(params["first"] @ x)
        return jnp.mean((fixed_mixture(frozen, hidden) - y) ** 2)

    return jax.vmap(one)(currents, voltages).mean()


project(
    "rule without inputs",
    "custom rules",
    crossbar(measured),
    (crossbar(measured_b), crossbar_fixed),
    ({"first": f32(8, 4), "second": f32(3, 8)}, f32(20, 4), f32(20, 3)),
    where="return jnp.outer(g, vector), jnp.zeros_like(vector)",
    axes={"currents": ("sample", None), "voltages": ("sample", None)},
    differentiate="params",
    source="jax-ml/jax#17496",
)


# A rule with a sign.


@jax.custom_jvp
def crosswind(angle, speed):
    return jnp.sin(angle) * speed


@crosswind.defjvp
def crosswind_rule(primals, tangents):
    angle, speed = primals
    d_angle, d_speed = tangents
    out = crosswind(angle, speed)
    return out, jnp.cos(angle) * speed * d_angle - jnp.sin(angle) * d_speed


@jax.custom_jvp
def crosswind_b(angle, speed):
    return jnp.sin(angle) * speed


@crosswind_b.defjvp
def crosswind_rule_b(primals, tangents):
    angle, speed = primals
    d_angle, d_speed = tangents
    return crosswind_b(angle, speed), jnp.cos(angle) * speed * d_angle + jnp.sin(angle) * d_speed


@jax.custom_jvp
def crosswind_c(angle, speed):
    return jnp.cos(angle + 0.5 * jnp.pi) * -speed


@crosswind_c.defjvp
def crosswind_rule_c(primals, tangents):
    angle, speed = primals
    d_angle, d_speed = tangents
    turned = angle + 0.5 * jnp.pi
    change = jnp.sin(turned) * speed * d_angle - jnp.cos(turned) * d_speed
    return crosswind_c(angle, speed), change


def sailing(wind):
    def drift(course, speeds):
        def hour(place, now):
            angle, speed = now
            place = place + jnp.stack([jnp.cos(angle) * 3.0, wind(angle, speed)])
            return place, place

        last, track = jax.lax.scan(hour, jnp.zeros(2), (course, speeds))
        return jnp.sum((last - jnp.array([20.0, 4.0])) ** 2) + 0.01 * jnp.sum(track[:, 1] ** 2)

    return drift


project(
    "sign of a rule",
    "custom rules",
    sailing(crosswind),
    (sailing(crosswind_b), sailing(crosswind_c)),
    (f32(12), f32(12)),
    where="return out, jnp.cos(angle) * speed * d_angle - jnp.sin(angle) * d_speed",
    axes={"course": ("hour",), "speeds": ("hour",)},
    differentiate="speeds",
    source="jax-ml/jax#3213",
)


# Normalisation in half precision.


def half_block(norm):
    def block(params, hidden):
        x = hidden.astype(jnp.float16)
        normed = norm(x) * params["scale"].astype(x.dtype)
        gate = jax.nn.silu(normed @ params["gate"].astype(x.dtype))
        return x + (gate * (normed @ params["up"].astype(x.dtype))) @ params["down"].astype(x.dtype)

    return block


def rms(x):
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-6)


def rms_b(x):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def rms_scaled(x):
    peak = jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), 1e-3)
    small = x / peak
    power = jnp.mean(jnp.square(small), axis=-1, keepdims=True, dtype=jnp.float32)
    return small * jax.lax.rsqrt(power + 1e-6).astype(x.dtype)


project(
    "squares of halves",
    "number types",
    half_block(rms),
    (half_block(rms_b), half_block(rms_scaled)),
    ({"scale": f32(64), "gate": f32(64, 32), "up": f32(64, 32), "down": f32(32, 64)}, f32(2, 8, 64)),
    where="return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-6)",
    axes={"hidden": ("batch", "length", None)},
    source="young-geng/EasyLM#50",
)


# Motion between frames.


def motion(difference):
    def detect(params, frames):
        changes = difference(frames[1:], frames[:-1])
        features = changes.reshape(*changes.shape[:2], -1) / 255.0
        scores = perceptron(params, features)[..., 0]
        return jax.nn.sigmoid(scores), features.mean(axis=-1)

    return detect


def difference(now, before):
    return jnp.abs(now - before)


def difference_b(now, before):
    return jnp.abs(now.astype(jnp.int16) - before.astype(jnp.int16))


def difference_ordered(now, before):
    return jnp.where(now > before, now - before, before - now)


project(
    "frames of bytes",
    "number types",
    motion(difference),
    (motion(difference_b), motion(difference_ordered)),
    (layers(36, 16, 1), jax.ShapeDtypeStruct((5, 3, 6, 6), jnp.uint8)),
    where="return jnp.abs(now - before)",
    axes={"frames": ("time", "camera", "height", "width")},
    source="waveform80/picamera#263",
)


# Voxels of a scan.

ROWS, CHANNELS = 1880, 1496


def scanner(count):
    def coefficient(view_sums, view_mask, plastic):
        pixels = count(view_mask)
        mean = jnp.sum(view_sums * plastic * view_mask) / pixels
        return mean, view_sums - mean * view_mask

    return coefficient


def count_pixels(view_mask):
    return jnp.sum(view_mask.astype(jnp.int32) * (ROWS * CHANNELS))


def count_pixels_b(view_mask):
    return jnp.sum(view_mask.astype(jnp.float32)) * float(ROWS * CHANNELS)


def count_pixels_c(view_mask):
    views = jnp.sum(view_mask.astype(jnp.int32))
    return views.astype(jnp.float32) * ROWS * CHANNELS


project(
    "more voxels than integers",
    "number types",
    scanner(count_pixels),
    (scanner(count_pixels_b), scanner(count_pixels_c)),
    (f32(4000), flags(4000), f32(4000)),
    where="return jnp.sum(view_mask.astype(jnp.int32) * (ROWS * CHANNELS))",
    axes={"view_sums": ("view",), "view_mask": ("view",), "plastic": ("view",)},
    source="cabouman/mbirjax#217",
)


# An objective with weights.


class Objective:
    def __init__(self, target):
        self.target = target
        self.weight = 1.0

    @functools.partial(jax.jit, static_argnums=0)
    def cost(self, x):
        return self.weight * jnp.sum((x - self.target) ** 2) + jnp.sum(jnp.cos(3.0 * x))


class ObjectiveB:
    def __init__(self, target):
        self.target = target

    @functools.partial(jax.jit, static_argnums=0)
    def cost(self, x, weight):
        return weight * jnp.sum((x - self.target) ** 2) + jnp.sum(jnp.cos(3.0 * x))


def continuation(x):
    objective = Objective(0.5)
    for weight in (0.1, 1.0, 10.0):
        objective.weight = weight
        for _ in range(3):
            x = x - 0.02 * jax.grad(objective.cost)(x)
    return x, objective.cost(x)


def continuation_b(x):
    objective = ObjectiveB(0.5)
    for weight in (0.1, 1.0, 10.0):
        for _ in range(3):
            x = x - 0.02 * jax.grad(objective.cost)(x, weight)
    return x, objective.cost(x, 10.0)


def continuation_anew(x):
    for weight in (0.1, 1.0, 10.0):
        objective = Objective(0.5)
        objective.weight = weight
        for _ in range(3):
            x = x - 0.02 * jax.grad(objective.cost)(x)
    return x, objective.cost(x)


project(
    "weight that was compiled",
    "compilation",
    continuation,
    (continuation_b, continuation_anew),
    (f32(6),),
    where="return self.weight * jnp.sum((x - self.target) ** 2) + jnp.sum(jnp.cos(3.0 * x))",
    source="PlasmaControl/DESC#310",
)


# A running variance.


class Moments(NamedTuple):
    mean: jax.Array
    var: jax.Array
    count: jax.Array


def merged(moments, mean, var, count):
    delta = mean - moments.mean
    total = moments.count + count
    spread = moments.var * moments.count + var * count + delta**2 * moments.count * count / total
    return Moments(moments.mean + delta * count / total, spread / total, total)


def observe(moments, obs):
    batch_mean = jnp.mean(obs, axis=-1, keepdims=True)
    batch_var = jnp.var(obs, axis=-1, keepdims=True)
    return merged(moments, batch_mean.mean(axis=0), batch_var.mean(axis=0), obs.shape[0])


def observe_b(moments, obs):
    return merged(moments, jnp.mean(obs, axis=0), jnp.var(obs, axis=0), obs.shape[0])


def observe_all(moments, obs):
    one_by_one = lambda m, x: (merged(m, x, jnp.zeros_like(x), 1), None)
    return jax.lax.scan(one_by_one, moments, obs)[0]


def normalised(observe):
    def rollout(params, moments, obs):
        def step(moments, x):
            moments = observe(moments, x)
            centred = (x - moments.mean) / jnp.sqrt(moments.var + 1e-8)
            return moments, jnp.tanh(perceptron(params, centred))

        return jax.lax.scan(step, moments, obs)

    return rollout


project(
    "statistics across features",
    "normalisation",
    normalised(observe),
    (normalised(observe_b), normalised(observe_all)),
    (layers(6, 16, 2), Moments(f32(6), f32(6), f32()), f32(10, 8, 6)),
    where="batch_mean = jnp.mean(obs, axis=-1, keepdims=True)",
    axes={"obs": ("time", "env", "feature")},
    source="vwxyzjn/cleanrl#18, tensorflow/agents#651",
)


# Normalisation of a causal model.


def causal_model(norm):
    def loss(params, tokens):
        x = params["embedding"][tokens[:, :-1]]
        h = norm(x, params["scale"])
        scores = jnp.einsum("bqd,bkd->bqk", h @ params["q"], h @ params["k"]) / jnp.sqrt(h.shape[-1])
        allowed = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        x = x + jax.nn.softmax(jnp.where(allowed, scores, -1e9), axis=-1) @ (h @ params["v"])
        logits = norm(x, params["scale"]) @ params["embedding"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return loss


def layer_norm(x, scale):
    centred = x - x.mean(axis=1, keepdims=True)
    return scale * centred / jnp.sqrt(jnp.mean(centred**2, axis=1, keepdims=True) + 1e-5)


def layer_norm_b(x, scale):
    centred = x - x.mean(axis=-1, keepdims=True)
    return scale * centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)


def layer_norm_one(x, scale):
    def one(vector):
        centred = vector - vector.mean(axis=0)
        return scale * centred / jnp.sqrt(jnp.mean(centred**2, axis=0) + 1e-5)

    return jax.vmap(jax.vmap(one))(x)


project(
    "normalised over time",
    "normalisation",
    causal_model(layer_norm),
    (causal_model(layer_norm_b), causal_model(layer_norm_one)),
    ({"embedding": f32(30, 16), "scale": f32(16), "q": f32(16, 16), "k": f32(16, 16), "v": f32(16, 16)}, i32(4, 13)),
    where="centred = x - x.mean(axis=1, keepdims=True)",
    axes={"tokens": ("batch", "time")},
    differentiate="params",
    source="tensorflow/addons#2142",
)


# Dropout in a fine-tuning step.


class Head(nn.Module):
    @nn.compact
    def __call__(self, features, deterministic):
        x = nn.Dropout(0.1)(features, deterministic=deterministic)
        x = nn.Dropout(0.1)(nn.tanh(nn.Dense(32)(x)), deterministic=deterministic)
        return nn.Dense(4)(x)


HEAD = Head()


def fine_tuning(loss_of):
    def step(params, opt_state, dropout_rng, features, labels):
        loss, grads = jax.value_and_grad(loss_of)(params, dropout_rng, features, labels)
        updates, opt_state = ADAM.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def tuned_loss(params, dropout_rng, features, labels):
    logits = HEAD.apply(params, features, deterministic=True, rngs={"dropout": dropout_rng})
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def tuned_loss_b(params, dropout_rng, features, labels):
    logits = HEAD.apply(params, features, deterministic=False, rngs={"dropout": dropout_rng})
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def tuned_loss_consistent(params, dropout_rng, features, labels):
    calm = jax.lax.stop_gradient(jax.nn.softmax(HEAD.apply(params, features, deterministic=True)))
    noisy = HEAD.apply(params, features, deterministic=False, rngs={"dropout": dropout_rng})
    agreement = optax.softmax_cross_entropy(noisy, calm).mean()
    return optax.softmax_cross_entropy_with_integer_labels(noisy, labels).mean() + agreement


def head_params():
    return shapes_of(functools.partial(HEAD.init, deterministic=True), jax.random.key(0), jnp.zeros((1, 16)))


project(
    "dropout that is off",
    "training and evaluation",
    fine_tuning(tuned_loss),
    (fine_tuning(tuned_loss_b), fine_tuning(tuned_loss_consistent)),
    lambda: (head_params(), shapes_of(ADAM.init, head_params()), key(), f32(16, 16), i32(16)),
    where='logits = HEAD.apply(params, features, deterministic=True, rngs={"dropout": dropout_rng})',
    axes={"features": ("batch", None), "labels": ("batch",)},
    source="huggingface/transformers#15534",
)


# Evaluation while training.


def watched(evaluate):
    def train(params, opt_state, batches, held_out):
        def step(carry, batch):
            now, opt_state = carry
            loss, grads = jax.value_and_grad(regression_error)(now, *batch)
            updates, opt_state = ADAM.update(grads, opt_state, now)
            now = optax.apply_updates(now, updates)
            return (now, opt_state), evaluate(params, now, loss, held_out)

        return jax.lax.scan(step, (params, opt_state), batches)

    return train


def evaluate(params, now, loss, held_out):
    return {"train": loss, "validation": regression_error(params, *held_out)}


def evaluate_b(params, now, loss, held_out):
    return {"train": loss, "validation": regression_error(now, *held_out)}


def evaluate_progress(params, now, loss, held_out):
    before, after = regression_error(params, *held_out), regression_error(now, *held_out)
    return {"train": loss, "validation": after - before}


project(
    "weights of the start",
    "training and evaluation",
    watched(evaluate),
    (watched(evaluate_b), watched(evaluate_progress)),
    lambda: (
        layers(3, 16, 1),
        shapes_of(ADAM.init, layers(3, 16, 1)),
        (f32(12, 8, 3), f32(12, 8)),
        (f32(20, 3), f32(20)),
    ),
    where='return {"train": loss, "validation": regression_error(params, *held_out)}',
    source="google/flax#3982",
)


# State of an Equinox model.


class Normed(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, rng):
        keys = jax.random.split(rng)
        self.first = eqx.nn.Linear(6, 16, key=keys[0])
        self.norm = eqx.nn.BatchNorm(16, axis_name="batch", mode="batch")
        self.last = eqx.nn.Linear(16, 4, key=keys[1])

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jax.nn.relu(x)), state


NORMED, NORMED_STATE = eqx.nn.make_with_state(Normed)(jax.random.key(4))
NORMED_PARAMS, NORMED_STATIC = eqx.partition(NORMED, eqx.is_inexact_array)


def normed_loss(params, state, features, labels):
    model = eqx.combine(params, NORMED_STATIC)
    mapped = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    logits, state = mapped(features, state)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), state


def normed_step(params, state, features, labels):
    (loss, _), grads = jax.value_and_grad(normed_loss, has_aux=True)(params, state, features, labels)
    return eqx.apply_updates(params, jax.tree.map(lambda g: -0.1 * g, grads)), state, loss


def normed_step_b(params, state, features, labels):
    (loss, state), grads = jax.value_and_grad(normed_loss, has_aux=True)(params, state, features, labels)
    return eqx.apply_updates(params, jax.tree.map(lambda g: -0.1 * g, grads)), state, loss


def normed_step_twice(params, state, features, labels):
    value_and_grad = jax.value_and_grad(normed_loss, has_aux=True)
    (loss, after), grads = value_and_grad(params, state, features, labels)
    trial = eqx.apply_updates(params, jax.tree.map(lambda g: -0.2 * g, grads))
    reached, _ = normed_loss(trial, state, features, labels)
    rate = jnp.where(reached < loss, 0.2, 0.05)
    return eqx.apply_updates(params, jax.tree.map(lambda g: -rate * g, grads)), after, loss


project(
    "state of a module",
    "state that is lost",
    normed_step,
    (normed_step_b, normed_step_twice),
    lambda: (NORMED_PARAMS, NORMED_STATE, f32(32, 6), i32(32)),
    where="(loss, _), grads = jax.value_and_grad(normed_loss, has_aux=True)(params, state, features, labels)",
    axes={"features": ("batch", None), "labels": ("batch",)},
    source="patrick-kidger/equinox#186",
)


# State of an NNX model.


class Regressor(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(5, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.last = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))[..., 0]


REGRESSOR, REGRESSOR_STATE = nnx.split(Regressor(nnx.Rngs(0)))


def regressor_error(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def regressor_update(model, x, y):
    loss, grads = nnx.value_and_grad(regressor_error)(model, x, y)
    params = jax.tree.map(lambda p, g: p - 0.05 * g, nnx.state(model, nnx.Param), grads)
    nnx.update(model, params)
    return loss


def regressor_steps(state, x, y):
    model = nnx.merge(REGRESSOR, state)
    update = jax.jit(regressor_update)
    losses = [update(model, x, y) for _ in range(3)]
    return nnx.state(model), jnp.stack(losses)


def regressor_steps_b(state, x, y):
    model = nnx.merge(REGRESSOR, state)
    update = nnx.jit(regressor_update)
    losses = [update(model, x, y) for _ in range(3)]
    return nnx.state(model), jnp.stack(losses)


def regressor_steps_look(state, x, y):
    model = nnx.merge(REGRESSOR, state)
    model.eval()
    error_of = jax.jit(regressor_error)
    return nnx.state(model), jnp.stack([error_of(model, x, y), error_of(model, 0.5 * x, y)])


project(
    "module through jax.jit",
    "state that is lost",
    regressor_steps,
    (regressor_steps_b, regressor_steps_look),
    lambda: (REGRESSOR_STATE, f32(24, 5), f32(24)),
    where="update = jax.jit(regressor_update)",
    axes={"x": ("batch", None), "y": ("batch",)},
    source="google/flax, users of nnx modules under jax.jit",
)


# Arguments in another order.


def distance_step(gradient, distance, squares):
    return distance * gradient / jnp.sqrt(squares + 1e-8)


class Travel(NamedTuple):
    distance: dict
    squares: dict


def travelling(scaled):
    def step(params, start, state, features, targets):
        def error(p):
            return jnp.mean((jnp.tanh(features @ p["w"] + p["b"]) @ p["v"] - targets) ** 2)

        loss, grads = jax.value_and_grad(error)(params)
        squares = jax.tree.map(lambda s, g: s + jnp.sum(g**2), state.squares, grads)
        longest = lambda d, p, s: jnp.maximum(d, jnp.linalg.norm(p - s))
        distance = jax.tree.map(longest, state.distance, params, start)
        params = jax.tree.map(lambda p, u: p - u, params, scaled(grads, distance, squares))
        return params, Travel(distance, squares), loss

    return step


def scaled(grads, distance, squares):
    return jax.tree.map(distance_step, distance, squares, grads)


def scaled_b(grads, distance, squares):
    return jax.tree.map(distance_step, grads, distance, squares)


def scaled_c(grads, distance, squares):
    return jax.tree.map(lambda d, s, g: distance_step(g, d, s), distance, squares, grads)


def weights():
    return {"w": f32(4, 8), "b": f32(8), "v": f32(8)}


project(
    "order of arguments",
    "arguments in another order",
    travelling(scaled),
    (travelling(scaled_b), travelling(scaled_c)),
    lambda: (
        weights(),
        weights(),
        Travel({k: f32() for k in weights()}, {k: f32() for k in weights()}),
        f32(20, 4),
        f32(20),
    ),
    where="return jax.tree.map(distance_step, distance, squares, grads)",
    axes={"features": ("batch", None), "targets": ("batch",)},
    source="google-deepmind/optax#1499",
)


# A step that is compiled again and again.


def heat_step(field, source, rate):
    around = sum(jnp.roll(field, shift, axis) for axis in (0, 1) for shift in (-1, 1))
    return field + rate * (around - 4.0 * field + source)


def annealed(solve):
    def run(field, source):
        field = solve(field, source)
        return field, jnp.mean((field - source) ** 2)

    return run


def solve(field, source):
    for i in range(12):
        step = jax.jit(functools.partial(heat_step, rate=0.2 * 0.9**i))
        field = step(field, source)
    return field


def solve_b(field, source):
    step = jax.jit(heat_step)
    for i in range(12):
        field = step(field, source, 0.2 * 0.9**i)
    return field


def solve_phases(field, source):
    for rate, length in ((0.2, 8), (0.05, 4)):
        phase = jax.jit(lambda f, s, r=rate, n=length: jax.lax.fori_loop(0, n, lambda _, x: heat_step(x, s, r), f))
        field = phase(field, source)
    return field


project(
    "compiled in a loop",
    "compilation",
    annealed(solve),
    (annealed(solve_b), annealed(solve_phases)),
    (f32(12, 12), f32(12, 12)),
    where="step = jax.jit(functools.partial(heat_step, rate=0.2 * 0.9**i))",
    axes={"field": ("row", "column"), "source": ("row", "column")},
    source="patrick-kidger/equinox#1141, jax-ml/jax#2515",
)
