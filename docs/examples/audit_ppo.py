"""PPO with five mistakes that run without an error, what an audit says of them, and the mended one.

    python docs/examples/audit_ppo.py

Each mistake is one that training survives, and learns less for it. `lox.audit` is told what the axes of the arguments
mean, traces the functions, and computes nothing.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import lox

TIME, ENVS, OBSERVATION, ACTIONS, EPOCHS = 128, 8, 4, 3, 4
SAMPLES = TIME * ENVS

OF_ROLLOUT = {"rewards": ("time", "env"), "values": ("time", "env"), "dones": ("time", "env")}
OF_SAMPLES = {"observations": ("sample", None), "actions": ("sample",), "before": ("sample",)}
OF_SAMPLES |= {"advantages": ("sample",), "targets": ("sample",)}


def estimates(rewards, values, dones):
    """Generalized advantage estimates: a recurrence that goes back in time."""

    def step(carry, now):
        following, advantage = carry
        reward, value, done = now
        delta = reward + 0.99 * following * (1 - done) - value
        advantage = delta + 0.99 * 0.95 * (1 - done) * advantage
        return (value, advantage), advantage

    first = jnp.zeros_like(values[0])
    with lox.audit.expect(scan="time"):
        return jax.lax.scan(step, (first, first), (rewards, values, dones), reverse=True)[1]


def network(params, observations):
    """The logits of actions, and values of shape (samples, 1)."""
    hidden = jnp.tanh(observations @ params["hidden"])
    return hidden @ params["policy"], hidden @ params["value"]


def clipped(logits, actions, before, advantages):
    """What PPO makes larger, for each sample."""
    now = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], -1)[:, 0]
    ratio = jnp.exp(now - before)
    return jnp.minimum(ratio * advantages, jnp.clip(ratio, 0.8, 1.2) * advantages)


# -- with mistakes -------------------------------------------------------------------------------------------------


def buggy_advantages(rewards, values, dones):
    """Advantages, normalized."""
    # 1. The arrays were transposed for a plot, and stayed so: the recurrence goes over environments.
    advantages = estimates(rewards.T, values.T, dones.T).T
    # 2. Centered for each environment, and scaled for each moment.
    return (advantages - advantages.mean(0)) / (advantages.std(1, keepdims=True) + 1e-8)


def buggy_update(params, key, observations, actions, before, advantages, targets):
    """Some epochs, each on a part of the samples."""

    def loss_fn(params, chosen):
        logits, values = network(params, observations)
        # 3. The values kept their last axis: each sample meets each other one.
        error = (values - targets) ** 2
        # 4. A probability may be too small to be more than zero, and its logarithm is then infinite.
        probabilities = jax.nn.softmax(logits)
        entropy = -(probabilities * jnp.log(probabilities)).sum(-1)
        return 0.5 * error.mean() - clipped(logits, actions, before, advantages)[chosen].mean() - 0.01 * entropy.mean()

    def epoch(params, _):
        # 5. Each epoch has the same key, and so the same part of the samples.
        chosen = jax.random.permutation(key, SAMPLES)[: SAMPLES // 4]
        gradient = jax.grad(loss_fn)(params, chosen)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), None

    return jax.lax.scan(epoch, params, length=EPOCHS)[0]


# -- without -------------------------------------------------------------------------------------------------------


def mended_advantages(rewards, values, dones):
    """Advantages, normalized."""
    advantages = estimates(rewards, values, dones)
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def mended_update(params, key, observations, actions, before, advantages, targets):
    """Some epochs, each on a part of the samples."""

    def loss_fn(params, chosen):
        logits, values = network(params, observations)
        error = (values[:, 0] - targets) ** 2
        entropy = -(jax.nn.softmax(logits) * jax.nn.log_softmax(logits)).sum(-1)
        return 0.5 * error.mean() - clipped(logits, actions, before, advantages)[chosen].mean() - 0.01 * entropy.mean()

    def epoch(params, key):
        chosen = jax.random.permutation(key, SAMPLES)[: SAMPLES // 4]
        gradient = jax.grad(loss_fn)(params, chosen)
        return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient), None

    return jax.lax.scan(epoch, params, jax.random.split(key, EPOCHS))[0]


def floats(*shape):
    """An argument of which only shape and dtype matter."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def main() -> None:
    """Audits all four."""
    rollout = [floats(TIME, ENVS)] * 3
    params = {"hidden": floats(OBSERVATION, 64), "policy": floats(64, ACTIONS), "value": floats(64, 1)}
    actions = jax.ShapeDtypeStruct((SAMPLES,), jnp.int32)
    samples = [floats(SAMPLES, OBSERVATION), actions, *[floats(SAMPLES)] * 3]

    for advantages, update in (buggy_advantages, buggy_update), (mended_advantages, mended_update):
        of_advantages = lox.audit(advantages, axes=OF_ROLLOUT)(*rollout)
        of_update = lox.audit(update, axes=OF_SAMPLES)(params, jax.random.key(0), *samples)
        for name, report in (advantages.__name__, of_advantages), (update.__name__, of_update):
            findings = (*report.issues, *report.warnings)
            print(f"{name}: {len(findings)} findings")
            for finding in findings:
                print(f"  {finding.code}, line {finding.line}: {finding.message}\n    {finding.suggestion}")


if __name__ == "__main__":
    main()
