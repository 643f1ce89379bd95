"""What lox logs, next to what others log where they can: `jax.debug.callback` and flax's `sow`."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lox
from lox import testing

PLAIN = ["jit", "scan", "while_loop", "fori_loop", "cond", "switch", "checkpoint"]
"""What ordered callbacks of JAX's own go through."""


@pytest.mark.generated(40)
@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_tap_calls_back_as_often_and_in_the_order_that_an_ordered_debug_callback_does(jit, examples):
    @examples
    @given(testing.programs(depth=2, length=2, constructs=PLAIN), st.integers(0, 6))
    def alike(program, n):
        called, tapped = [], []

        def log(data, *, prefix="", tags=(), step=None, where=True):
            def callback(mask, *leaves):
                for key, leaf in zip(keys, map(np.asarray, leaves), strict=True) if np.any(mask) else ():
                    filler = np.array(np.nan if jnp.issubdtype(leaf.dtype, jnp.inexact) else 0).astype(leaf.dtype)
                    happened = np.reshape(mask, np.shape(mask) + (1,) * (leaf.ndim - np.ndim(mask)))
                    called.append((key, np.where(happened, leaf, filler)))

            paths = jax.tree_util.tree_leaves_with_path(data)
            keys = [prefix + jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in paths]
            jax.debug.callback(callback, where, *(jnp.asarray(leaf) for _, leaf in paths), ordered=True)
            return data

        def callback(logs):
            for key, value in logs.items():
                tapped.append((key, value[0]))

        x = np.float32([0.3, -0.5])
        jit(testing.define(program.source, log))(x, n)
        jax.effects_barrier()
        jit(lox.tap(program, callback))(x, n)
        lox.flush()
        assert [key for key, _ in tapped] == [key for key, _ in called]
        for (_, ours), (_, theirs) in zip(tapped, called, strict=True):
            assert testing.same(theirs, ours, 1e-6)

    alike()


class Layer(nn.Module):
    """One step of a recurrent network, that tells of itself in two ways."""

    @nn.compact
    def __call__(self, carry, x):
        hidden = nn.Dense(3)(carry) + x
        self.sow("intermediates", "hidden", hidden)
        lox.log({"hidden": hidden})
        return jnp.tanh(hidden), None


class Network(nn.Module):
    @nn.compact
    def __call__(self, xs):
        layers = nn.scan(
            Layer, variable_broadcast="params", split_rngs={"params": False}, variable_axes={"intermediates": 0}
        )
        out, _ = layers(name="layers")(jnp.zeros(3), xs)
        self.sow("intermediates", "out", out)
        lox.log({"out": out})
        return out


@pytest.mark.parametrize("jit", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("batched", [False, True], ids=["one", "vmap"])
def test_spool_returns_what_a_flax_model_sows(jit, batched):
    network = Network()
    xs = jax.random.normal(jax.random.key(0), (4, 5, 3))
    params = {"params": network.init(jax.random.key(1), xs[0])["params"]}

    def sown(xs):
        _, state = network.apply(params, xs, mutable=["intermediates"])
        return state["intermediates"]

    def plain(xs):
        return network.apply(params, xs)

    if not batched:
        xs, expected, (_, logs) = xs[0], jit(sown)(xs[0]), jit(lox.spool(plain))(xs[0])
    else:
        expected, (_, logs) = jit(jax.vmap(sown))(xs), jit(jax.vmap(lox.spool(plain)))(xs)
    np.testing.assert_allclose(logs["hidden"], expected["layers"]["hidden"][0], rtol=1e-6)
    np.testing.assert_allclose(np.squeeze(logs["out"], axis=-2), expected["out"][0], rtol=1e-6)
