"""Attention and gradients of a small transformer, in flax and in equinox: the same log calls in both.

    python docs/examples/attention.py

`lox.log` in the attention says how sharp it is, and `lox.log_grad` around each block what of the gradient comes back to
it. The modules return nothing more than they did, and training is the same function with and without.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx

import lox

TOKENS, LENGTH, WIDTH, HEADS, BLOCKS = 8, 12, 32, 4, 3


def attend(queries, keys, values):
    """Causal attention over arrays of shape (length, heads, width of a head)."""
    scores = jnp.einsum("qhd,khd->hqk", queries, keys) / jnp.sqrt(queries.shape[-1])
    weights = jax.nn.softmax(jnp.where(jnp.tri(len(queries), dtype=bool), scores, -jnp.inf))
    entropy = -jnp.sum(jax.scipy.special.xlogy(weights, weights), -1)
    lox.log({"entropy": entropy.mean(-1), "on_itself": jnp.einsum("hqq->h", weights) / len(queries)})
    return jnp.einsum("hqk,khd->qhd", weights, values)


class FlaxBlock(nnx.Module):
    """Attention and a network, each around a residual connection."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.project = nnx.Linear(WIDTH, 3 * WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        """Of and to arrays of shape (length, width)."""
        x = lox.log_grad({"block": x})["block"]
        heads = self.project(self.norm(x)).reshape(LENGTH, HEADS, -1)
        x = x + attend(*jnp.split(heads, 3, axis=-1)).reshape(LENGTH, WIDTH)
        return x + self.down(jax.nn.gelu(self.up(x)))


class EquinoxBlock(eqx.Module):
    """The same."""

    norm: eqx.nn.LayerNorm
    project: eqx.nn.Linear
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.norm = eqx.nn.LayerNorm(WIDTH)
        self.project = eqx.nn.Linear(WIDTH, 3 * WIDTH, key=keys[0])
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=keys[1])
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=keys[2])

    def __call__(self, x):
        """Of and to arrays of shape (length, width)."""
        x = lox.log_grad({"block": x})["block"]
        heads = jax.vmap(lambda token: self.project(self.norm(token)))(x).reshape(LENGTH, HEADS, -1)
        x = x + attend(*jnp.split(heads, 3, axis=-1)).reshape(LENGTH, WIDTH)
        return x + jax.vmap(lambda token: self.down(jax.nn.gelu(self.up(token))))(x)


def flax_model(key):
    """The parameters, and what computes logits of shape (length, tokens) with them."""
    rngs = nnx.Rngs(key)
    blocks = nnx.List([FlaxBlock(rngs) for _ in range(BLOCKS)])
    definition, parameters = nnx.split(blocks)
    return with_embedding(key, parameters, lambda parameters: nnx.merge(definition, parameters))


def equinox_model(key):
    """The same."""
    parameters, static = eqx.partition([EquinoxBlock(k) for k in jax.random.split(key, BLOCKS)], eqx.is_array)
    return with_embedding(key, parameters, lambda parameters: eqx.combine(parameters, static))


def with_embedding(key, blocks, merged):
    """Puts an embedding before the blocks, and reads tokens with it after them."""
    embedding = jax.random.normal(key, (TOKENS, WIDTH)) / 6
    places = jax.random.normal(jax.random.fold_in(key, 1), (LENGTH, WIDTH)) / 6

    def logits(parameters, tokens):
        blocks, embedding, places = parameters
        x = embedding[tokens] + places
        for place, block in enumerate(merged(blocks)):
            with lox.context(prefix=f"block{place}/"):
                x = block(x)
        return x @ embedding.T

    return (blocks, embedding, places), logits


def train(parameters, logits, key, steps=60):
    """Learns to say each sequence once more after its half."""
    optimizer = optax.adam(3e-3)

    def loss_fn(parameters, tokens):
        found = jax.vmap(logits, in_axes=(None, 0))(parameters, tokens[:, :-1])
        losses = optax.softmax_cross_entropy_with_integer_labels(found, tokens[:, 1:])
        return losses[:, LENGTH // 2 :].mean()

    def step(carry, key):
        parameters, state = carry
        half = jax.random.randint(key, (32, (LENGTH + 1) // 2 + 1), 0, TOKENS)
        loss, gradient = jax.value_and_grad(loss_fn)(parameters, jnp.tile(half, 2)[:, : LENGTH + 1])
        lox.log({"loss": loss})
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(parameters, updates), state), None

    carry = (parameters, optimizer.init(parameters))
    return jax.lax.scan(step, carry, jax.random.split(key, steps))[0][0]


def main() -> None:
    """Trains both, and compares what they logged."""
    for name, model in {"flax": flax_model, "equinox": equinox_model}.items():
        parameters, logits = model(jax.random.key(0))
        spooled = jax.jit(lox.spool(lambda parameters, key, logits=logits: train(parameters, logits, key)))
        _, logs = spooled(parameters, jax.random.key(1))
        print(f"{name}: loss {logs['loss'][0]:.3f} to {logs['loss'][-1]:.3f}")
        for place in range(BLOCKS):
            entropy = logs[f"block{place}/entropy"]  # (steps, batch, heads)
            gradients = logs[f"block{place}/grad/block"]  # (steps, batch, length, width)
            norms = jnp.sqrt((gradients**2).sum((1, 2, 3)))
            last = ", ".join(f"{head:.2f}" for head in entropy[-1].mean(0))
            print(f"  block {place}: entropy of its heads {last}; gradient {norms[0]:.1e} to {norms[-1]:.1e}")


if __name__ == "__main__":
    main()
