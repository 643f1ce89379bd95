"""What JAX refuses while it traces."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from corpus import f32, flags, i32, right, wrong


@wrong("LOX400", f32(32, 8), f32(4, 2))
def a_layer_whose_weights_do_not_fit(x, w):
    return jnp.tanh(x @ w)


@wrong("LOX400", {"obs": f32(32, 8), "action": f32(32, 2)})
def a_critic_that_reads_a_key_that_is_not_there(batch):
    @jax.jit
    def value(batch):
        return (batch["obs"].sum(-1) + batch["actions"].sum(-1)).mean()

    return value(batch)


@right("LOX400", f32(32, 8), f32(8, 2))
def a_layer_whose_weights_fit(x, w):
    return jnp.tanh(x @ w)


@wrong("LOX401", f32(16), f32(4))
def a_step_that_is_taken_if_the_gradient_is_small(params, x):
    gradient = jax.grad(lambda params: (jnp.outer(params, x) ** 2).mean())(params)
    if jnp.linalg.norm(gradient) < 1.0:
        params = params - 0.1 * gradient
    return params


@right("LOX401", f32(16), f32(4))
def a_step_that_is_chosen_if_the_gradient_is_small(params, x):
    gradient = jax.grad(lambda params: (jnp.outer(params, x) ** 2).mean())(params)
    small = jnp.linalg.norm(gradient) < 1.0
    return jnp.where(small, params - 0.1 * gradient, params)


@wrong("LOX401", f32(8))
def an_iteration_until_python_sees_convergence(x):
    error = jnp.inf
    while error > 1e-3:
        new = 0.5 * (x + 2.0 / x)
        error, x = jnp.abs(new - x).max(), new
    return x


@right("LOX401", f32(8))
def an_iteration_until_convergence(x):
    def improve(state):
        x, _ = state
        new = 0.5 * (x + 2.0 / jnp.maximum(x, 1e-6))
        return new, jnp.abs(new - x).max()

    return jax.lax.while_loop(lambda state: state[1] > 1e-3, improve, (x, jnp.float32(jnp.inf)))[0]


@wrong("LOX401", f32(64), flags(64))
def a_reset_that_python_decides(state, done):
    return jax.vmap(lambda state, done: jnp.float32(0) if done else state)(state, done)


@right("LOX401", f32(64), True)
def dropout_that_a_static_flag_decides(x, training):
    return x * 0.5 if training else x


@wrong("LOX402", f32(10, 4), i32())
def the_layer_of_a_list_by_a_traced_index(x, index):
    activations = [jnp.tanh, jax.nn.relu]
    return activations[index](x)


@right("LOX402", f32(10, 4), i32())
def the_layer_by_a_switch(x, index):
    return jax.lax.switch(index, [jnp.tanh, jax.nn.relu], x)


@wrong("LOX402", f32(20), i32())
def a_sum_in_as_many_steps_as_an_array_says(x, steps):
    total = jnp.float32(0)
    for step in range(steps):
        total = total + x[step]
    return total


@right("LOX402", f32(20), i32())
def a_sum_of_as_many_as_an_array_says(x, steps):
    return jnp.where(jnp.arange(20) < steps, x, 0).sum()


@wrong("LOX402", f32(32, 8), i32())
def a_prefix_of_as_many_as_an_array_says(x, length):
    return x[:length].sum(0)


@wrong("LOX402", f32(), i32())
def positions_up_to_a_length_that_an_array_says(x, length):
    return x * jnp.arange(length)


@wrong("LOX402", i32(), jax.random.key(0))
def as_many_keys_as_an_array_says(count, key):
    return jax.random.split(key, count)


@right("LOX402", f32(32, 8), i32())
def a_window_of_fixed_length_from_where_an_array_says(x, start):
    return jax.lax.dynamic_slice_in_dim(x, start, 4).sum(0)


@right("LOX402", f32(32, 8), 4)
def a_prefix_of_a_static_length(x, length):
    return x[:length].sum(0) + jnp.zeros(8)


@wrong("LOX403", f32(32, 8))
def a_normalization_with_numpy(x):
    mean = np.mean(np.asarray(x), axis=0)
    return x - mean


@wrong("LOX403", f32(16))
def a_sine_of_numpy_in_a_jitted_function(x):
    return jax.jit(lambda x: np.sin(x).sum())(x)


@right("LOX403", f32(32, 8))
def a_normalization_with_constants_of_numpy(x):
    scale = np.linspace(0.5, 1.0, 8, dtype=np.float32)
    return (x - jnp.mean(x, axis=0)) * scale


@wrong("LOX404", f32(128), flags(128))
def the_mean_of_the_episodes_that_are_done(returns, done):
    return returns[done].mean()


@wrong("LOX404", f32(128))
def the_positions_above_a_threshold(x):
    return jax.jit(lambda x: jnp.sqrt(x[x > 0.0]))(x)


@wrong("LOX404", flags(128))
def where_episodes_end(done):
    return jnp.nonzero(done)[0]


@wrong("LOX404", i32(128))
def the_labels_that_there_are(labels):
    return jax.jit(jnp.unique)(labels)


@right("LOX404", flags(128))
def where_the_first_episodes_end(done):
    return jnp.nonzero(done, size=8, fill_value=-1)[0]


@right("LOX404", f32(4), i32(4))
def as_many_of_each_with_a_known_total(x, counts):
    return jnp.repeat(x, counts, total_repeat_length=16)


@right("LOX404", f32(128), flags(128))
def the_mean_where_an_episode_is_done(returns, done):
    return jnp.where(done, returns, 0).sum() / jnp.maximum(done.sum(), 1)


@wrong("LOX405", f32(32))
def a_loss_as_a_python_number(errors):
    loss = (errors**2).mean()
    return {"loss": float(loss)}


@wrong("LOX405", f32(64))
def the_loss_of_a_jitted_step_by_item(errors):
    @jax.jit
    def step(errors):
        return (errors**2).mean().item()

    return step(errors)


@right("LOX405", f32(32))
def a_loss_as_an_array(errors):
    loss = (errors**2).mean()
    return {"loss": loss.astype(jnp.float32), "count": float(errors.shape[0])}
