"""Training programs that log as people do, each beside the one that returns the same arrays (see `programs`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import lox
from benchmarks.programs import Program, Step

STEPS = 20


# -- a network with a hidden layer on handwritten digits -------------------------------------------------------------


def _digits() -> tuple[Any, Any]:
    images, labels = load_digits(return_X_y=True)
    order = jax.random.randint(jax.random.key(0), (STEPS, 128), 0, len(labels))
    return jnp.float32(images / 16)[order], jnp.int32(labels)[order]


def _mlp(params: Any, images: Any) -> tuple[Any, Any]:
    hidden = jax.nn.relu(images @ params["in"])
    return hidden, hidden @ params["out"]


def _classify(params: Any, images: Any, labels: Any) -> tuple[Any, dict[str, Any]]:
    hidden, logits = _mlp(params, images)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
    accuracy = jnp.mean(jnp.argmax(logits, -1) == labels)
    return loss, {"loss": loss, "accuracy": accuracy, "dead": jnp.mean(hidden == 0)}


def digits() -> Program:
    """Updates of a network on the handwritten digits, which log the loss, accuracy, dead units and norms."""
    optimizer = optax.adam(1e-3)

    def loss_of(params, images, labels):
        loss, metrics = _classify(params, images, labels)
        lox.log(metrics)
        return loss

    def update(carry, batch):
        params, state = carry
        step, images, labels = batch
        grads = jax.grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(grads, state)
        lox.log({"grad_norm": optax.tree.norm(grads), "update_norm": optax.tree.norm(updates)}, step=step)
        return (optax.apply_updates(params, updates), state), None

    def f(params, batches):
        return jax.lax.scan(update, (params, optimizer.init(params)), batches)[0][0]

    def by_hand(params, batches):
        def update(carry, batch):
            params, state = carry
            step, images, labels = batch
            grads, metrics = jax.grad(_classify, has_aux=True)(params, images, labels)
            updates, state = optimizer.update(grads, state)
            norms = {"grad_norm": optax.tree.norm(grads), "update_norm": optax.tree.norm(updates)}
            return (optax.apply_updates(params, updates), state), (metrics | norms, step)

        (params, _), (logs, steps) = jax.lax.scan(update, (params, optimizer.init(params)), batches)
        return params, (logs, {"step": steps})

    keys = jax.random.split(jax.random.key(1))
    params = {"in": jax.random.normal(keys[0], (64, 128)) / 8, "out": jax.random.normal(keys[1], (128, 10)) / 11}
    batches = (jnp.arange(STEPS), *_digits())
    step = Step(update, ((params, optimizer.init(params)), [batch[0] for batch in batches]))
    return Program("MLP on digits", f, by_hand, (params, batches), step=step)


# -- a block of a transformer ----------------------------------------------------------------------------------------

WIDTH, HEADS, LENGTH, BATCH, VOCABULARY = 64, 4, 32, 8, 50


def _attend(params: Any, x: Any) -> tuple[Any, Any]:
    """The outputs of causal attention, and the entropy of each head, shape `(HEADS,)`."""
    q, k, v = jnp.einsum("blw,cwhd->cblhd", x, params["qkv"])
    scores = jnp.einsum("blhd,bmhd->bhlm", q, k) / jnp.sqrt(WIDTH / HEADS)
    scores = jnp.where(jnp.tri(LENGTH, dtype=bool), scores, -1e9)
    weights = jax.nn.softmax(scores)
    entropy = jax.scipy.special.entr(weights).sum(-1).mean((0, 2))
    return jnp.einsum("bhlm,bmhd,hdw->blw", weights, v, params["project"]), entropy


def _feed(params: Any, x: Any) -> Any:
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def _loss_of_tokens(params: Any, x: Any, tokens: Any) -> Any:
    logits = x @ params["embed"].T
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()


def transformer() -> Program:
    """Updates of a transformer block, which log inside of it, in the loss and in the update."""
    optimizer = optax.adamw(1e-3)

    def block(params, x):
        attended, entropy = _attend(params, x)
        x = x + attended
        out = x + _feed(params, x)
        return out, {"entropy": entropy, "residual": jnp.abs(out).mean()}

    def loss_of(params, tokens):
        x, inside = block(params, params["embed"][tokens])
        lox.log(inside, prefix="block/")
        loss = _loss_of_tokens(params, x, tokens)
        lox.log({"loss": loss})
        return loss

    def update(carry, batch):
        params, state = carry
        step, tokens = batch
        grads = jax.grad(loss_of)(params, tokens)
        updates, state = optimizer.update(grads, state, params)
        lox.log({name: optax.tree.norm(grad) for name, grad in grads.items()}, prefix="grads/", step=step)
        return (optax.apply_updates(params, updates), state), None

    def f(params, batches):
        return jax.lax.scan(update, (params, optimizer.init(params)), batches)[0][0]

    def loss_by_hand(params, tokens):
        x, inside = block(params, params["embed"][tokens])
        loss = _loss_of_tokens(params, x, tokens)
        return loss, {f"block/{name}": value for name, value in inside.items()} | {"loss": loss}

    def by_hand(params, batches):
        def update(carry, batch):
            params, state = carry
            step, tokens = batch
            grads, logs = jax.grad(loss_by_hand, has_aux=True)(params, tokens)
            updates, state = optimizer.update(grads, state, params)
            norms = {f"grads/{name}": optax.tree.norm(grad) for name, grad in grads.items()}
            return (optax.apply_updates(params, updates), state), (logs | norms, step)

        (params, _), (logs, steps) = jax.lax.scan(update, (params, optimizer.init(params)), batches)
        return params, (logs, {"step": steps})

    shapes = {
        "embed": (VOCABULARY, WIDTH),
        "qkv": (3, WIDTH, HEADS, WIDTH // HEADS),
        "project": (HEADS, WIDTH // HEADS, WIDTH),
        "up": (WIDTH, 4 * WIDTH),
        "down": (4 * WIDTH, WIDTH),
    }
    keys = jax.random.split(jax.random.key(2), len(shapes) + 1)
    params = {name: jax.random.normal(key, of) / 8 for (name, of), key in zip(shapes.items(), keys[1:], strict=True)}
    tokens = jax.random.randint(keys[0], (STEPS, BATCH, LENGTH), 0, VOCABULARY)
    batches = (jnp.arange(STEPS), tokens)
    step = Step(update, ((params, optimizer.init(params)), [batch[0] for batch in batches]))
    return Program("transformer block", f, by_hand, (params, batches), step=step)


# -- proximal policy optimization of a pole on a cart ----------------------------------------------------------------

ENVIRONMENTS, ROLLOUT, EPOCHS, MINIBATCHES = 16, 32, 2, 4


def _env_step(state: Any, action: Any) -> tuple[Any, Any]:
    """A pole on a cart, shape `(4,)`, that begins anew when it has fallen; returns whether it had."""
    x, speed, angle, spin = state
    force = jnp.where(action == 1, 10.0, -10.0)
    push = (force + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    twist = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    moved = jnp.stack([x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * spin, spin + 0.02 * twist])
    fallen = (jnp.abs(moved[0]) > 2.4) | (jnp.abs(moved[2]) > 0.2)
    return jnp.where(fallen, jnp.zeros(4), moved), fallen


def _policy(params: Any, state: Any) -> tuple[Any, Any]:
    hidden = jnp.tanh(state @ params["in"])
    return hidden @ params["actor"], (hidden @ params["critic"])[..., 0]


def _act(params: Any, states: Any, key: Any) -> tuple[Any, Any]:
    """The states after a step, and the transition of each environment."""
    logits, value = _policy(params, states)
    action = jax.random.categorical(key, logits)
    moved, fallen = jax.vmap(_env_step)(states, action)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
    return moved, {"state": states, "action": action, "value": value, "log_prob": chosen, "fallen": fallen}


def _advantages(params: Any, states: Any, rollout: Any) -> Any:
    """Generalized advantage estimates, shape `(ROLLOUT, ENVIRONMENTS)`."""

    def back(carry, at):
        advantage, following = carry
        there = 1.0 - at["fallen"]
        delta = 1.0 + 0.99 * following * there - at["value"]
        advantage = delta + 0.99 * 0.95 * there * advantage
        return (advantage, at["value"]), advantage

    _, last = _policy(params, states)
    return jax.lax.scan(back, (jnp.zeros_like(last), last), rollout, reverse=True)[1]


def _ppo_loss(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    logits, value = _policy(params, batch["state"])
    log_probs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(log_probs, batch["action"][:, None], 1)[:, 0]
    ratio = jnp.exp(chosen - batch["log_prob"])
    gain = jnp.minimum(ratio * batch["advantage"], jnp.clip(ratio, 0.8, 1.2) * batch["advantage"]).mean()
    error = jnp.mean((value - batch["value"] - batch["advantage"]) ** 2)
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, -1).mean()
    loss = 0.5 * error - gain - 0.01 * entropy
    metrics = {"loss": loss, "value_error": error, "entropy": entropy, "clipped": jnp.mean(jnp.abs(ratio - 1) > 0.2)}
    return loss, metrics


def _minibatches(rollout: Any, key: Any) -> Any:
    order = jax.random.permutation(key, ROLLOUT * ENVIRONMENTS)
    return jax.tree.map(
        lambda x: x.reshape(ROLLOUT * ENVIRONMENTS, *x.shape[2:])[order].reshape(MINIBATCHES, -1, *x.shape[2:]), rollout
    )


def ppo() -> Program:
    """Proximal policy optimization: rollouts and updates log in scans of several depths, and in the loss."""
    optimizer = optax.adam(1e-3)

    def f(params, key):
        def loss_of(params, batch):
            loss, metrics = _ppo_loss(params, batch)
            lox.log(metrics)
            return loss

        def learn(carry, batch):
            params, state = carry
            grads = jax.grad(loss_of)(params, batch)
            updates, state = optimizer.update(grads, state)
            lox.log({"grad_norm": optax.tree.norm(grads)})
            return (optax.apply_updates(params, updates), state), None

        def iterate(carry, step_key):
            (params, state, states), (step, key) = carry, step_key
            act_key, *keys = jax.random.split(key, 1 + EPOCHS)

            def move(states, key):
                states, transition = _act(params, states, key)
                lox.log({"fallen": transition["fallen"].sum()}, step=step)
                return states, transition

            states, rollout = jax.lax.scan(move, states, jax.random.split(act_key, ROLLOUT))
            rollout["advantage"] = _advantages(params, states, rollout)
            lox.log({"advantage": rollout["advantage"].mean()}, step=step)

            def epoch(carry, key):
                return jax.lax.scan(learn, carry, _minibatches(rollout, key))[0], None

            (params, state), _ = jax.lax.scan(epoch, (params, state), jnp.stack(keys))
            return (params, state, states), None

        start = params, optimizer.init(params), jnp.zeros((ENVIRONMENTS, 4))
        return jax.lax.scan(iterate, start, (jnp.arange(STEPS), jax.random.split(key, STEPS)))[0][0]

    def by_hand(params, key):
        def learn(carry, batch):
            params, state = carry
            grads, metrics = jax.grad(_ppo_loss, has_aux=True)(params, batch)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(params, updates), state), metrics | {"grad_norm": optax.tree.norm(grads)}

        def iterate(carry, step_key):
            (params, state, states), (step, key) = carry, step_key
            act_key, *keys = jax.random.split(key, 1 + EPOCHS)

            def move(states, key):
                states, transition = _act(params, states, key)
                return states, (transition, transition["fallen"].sum(), step)

            states, (rollout, fallen, steps) = jax.lax.scan(move, states, jax.random.split(act_key, ROLLOUT))
            rollout["advantage"] = _advantages(params, states, rollout)

            def epoch(carry, key):
                return jax.lax.scan(learn, carry, _minibatches(rollout, key))

            (params, state), metrics = jax.lax.scan(epoch, (params, state), jnp.stack(keys))
            return (params, state, states), (metrics, fallen, steps, rollout["advantage"].mean(), step)

        start = params, optimizer.init(params), jnp.zeros((ENVIRONMENTS, 4))
        xs = jnp.arange(STEPS), jax.random.split(key, STEPS)
        (params, _, _), (metrics, fallen, steps, advantage, step) = jax.lax.scan(iterate, start, xs)
        logs = {name: values.reshape(-1) for name, values in metrics.items()}
        logs |= {"fallen": fallen.reshape(-1), "advantage": advantage}
        return params, (logs, {"step": {"fallen": steps.reshape(-1), "advantage": step}})

    keys = jax.random.split(jax.random.key(3), 4)
    shapes = {"in": (4, 32), "actor": (32, 2), "critic": (32, 1)}
    params = {name: jax.random.normal(key, of) / 4 for (name, of), key in zip(shapes.items(), keys[1:], strict=True)}
    return Program("PPO", f, by_hand, (params, keys[0]))


ALL = (digits, transformer, ppo)
