"""What happens only while tracing, what forces tracing again, and what does not belong into a compiled program."""

from __future__ import annotations

import dataclasses
import functools
import logging
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import lox
from corpus import f32, flags, i32, right, wrong

logger = logging.getLogger(__name__)
HISTORY: list[jax.Array] = []
BY_NAME: dict[str, jax.Array] = {}
LAYERS: list[tuple[int, ...]] = []
CACHE: dict[int, np.ndarray] = {}
UPDATES = 0
COUNTS = {"steps": 0}
GENERATOR = np.random.default_rng(0)
DATASET = np.zeros((512, 128 * 128), np.float32)
PROTOTYPES = np.zeros((16, 128), np.float32)


def _loss(params, x, y):
    return ((x @ params - y) ** 2).mean()


@wrong("LOX410", f32(8), f32(32, 8), f32(32))
def a_train_step_that_prints_its_loss(params, x, y):
    loss, gradient = jax.value_and_grad(_loss)(params, x, y)
    print("loss", loss)
    return params - 0.1 * gradient


@wrong("LOX410", f32(4), f32(100, 4))
def a_rollout_that_logs_each_state_with_logging(state, actions):
    def step(state, action):
        state = 0.9 * state + action
        logger.info("state is %s", state)
        return state, state.sum()

    return jax.lax.scan(step, state, actions)[1]


@wrong("LOX410", f32(32))
@jax.jit
def a_jitted_step_that_writes_to_a_file(x):
    loss = (x**2).mean()
    with open("/dev/null", "a") as file:
        file.write(f"{loss}\n")
    return loss


@right("LOX410", f32(8), f32(32, 8), f32(32))
def a_train_step_that_prints_with_jax(params, x, y):
    loss, gradient = jax.value_and_grad(_loss)(params, x, y)
    jax.debug.print("loss {}", loss)
    lox.log({"loss": loss})
    return params - 0.1 * gradient


@right("LOX410", f32(8, 3), f32(3, 2))
def a_layer_that_prints_shapes_while_traced(x, w):
    batch = x.shape[0]
    print(f"tracing with {x.shape} and {w.dtype}, {batch} rows")
    return jnp.tanh(x @ w)


@right("LOX410", f32(8), False)
def a_step_that_would_print_if_asked_to(x, verbose):
    y = x * 2
    if verbose:
        print("y", y)
    return y


@right("LOX410", f32(8))
def a_step_with_a_callback_that_prints(x):
    def show(total):
        print("total", total)

    jax.debug.callback(show, x.sum())
    return x * 2


@jax.jit
def _train_step(params, x, y):
    loss, gradient = jax.value_and_grad(_loss)(params, x, y)
    return params - 0.1 * gradient, loss


@right("LOX410", f32(8), f32(32, 8), f32(32))
def a_training_loop_in_python_that_prints(params, x, y):
    losses = []
    start = time.perf_counter()
    for epoch in range(3):
        params, loss = _train_step(params, x, y)
        losses.append(loss)
        print("epoch", epoch, loss, time.perf_counter() - start)
    return params, losses


@wrong("LOX410", f32(32))
def a_step_that_writes_its_loss_to_the_standard_output(errors):
    loss = (errors**2).mean()
    sys.stderr.write(f"loss {loss}\n")
    return loss


@wrong("LOX410", f32(32))
def a_step_that_asks_for_its_log_each_time(errors):
    loss = (errors**2).mean()
    logging.getLogger(__name__).debug("loss %s", loss)
    return loss


@right("LOX410", f32(8, 3), f32(3, 2))
def a_layer_that_writes_shapes_to_the_standard_error(x, w):
    print("tracing with", x.shape, file=sys.stderr)
    sys.stderr.write("")
    return jnp.tanh(x @ w)


@wrong("LOX411", f32(32, 8))
def dropout_with_numpy(x):
    keep = np.random.uniform(size=x.shape) > 0.1
    return jnp.where(keep, x, 0) / 0.9


@wrong("LOX411", f32(4), f32(50, 4))
def exploration_with_random_in_a_scan(state, drift):
    def step(state, drift):
        state = state + drift + random.gauss(0.0, 0.1)
        return state, state

    return jax.lax.scan(step, state, drift)[1]


@wrong("LOX411", f32(16))
def noise_of_a_global_generator(x):
    noise = GENERATOR.normal(size=16).astype(np.float32)
    return jax.vmap(lambda x, noise: x + noise)(x, noise)


@right("LOX411", f32(32, 8))
def a_fixed_projection_of_numpy(x):
    projection = np.random.default_rng(7).normal(size=(8, 4)).astype(np.float32)
    return x @ projection


@right("LOX411", f32(16))
def a_fixed_projection_after_a_seed(x):
    np.random.seed(seed=17)
    shift = np.random.default_rng(seed=17).normal(size=4).astype(np.float32)
    return x @ np.random.randn(16, 4).astype(np.float32) + shift


@wrong("LOX411", f32(16))
def a_seed_after_the_draw(x):
    noise = np.random.randn(16).astype(np.float32)
    np.random.seed(17)
    return x + noise


@right("LOX411", f32(32, 8), jax.random.key(0))
def dropout_with_a_key(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x, 0) / 0.9


@wrong("LOX412", f32(64, 64))
def a_product_that_times_itself(x):
    start = time.perf_counter()
    y = x @ x
    return y, jnp.float32(time.perf_counter() - start)


@wrong("LOX412", f32(16))
@jax.jit
def a_step_that_stamps_its_time(x):
    return {"x": x + 1.0, "at": jnp.float32(time.time())}


@right("LOX412", f32(16), f32())
def a_step_that_is_given_the_time(x, now):
    return {"x": x + 1.0, "at": now}


@wrong("LOX413", f32(8))
def an_update_that_counts_itself_in_a_global(params):
    global UPDATES
    UPDATES += 1
    return params * 0.99 ** jnp.float32(UPDATES)


@right("LOX413", f32(8), f32())
def an_update_that_is_given_its_count_and_returns_the_next(params, updates):
    updates += 1
    return params * 0.99**updates, updates


@wrong("LOX413", f32(4), f32(30, 4))
def a_rollout_that_collects_rewards_in_a_list(state, actions):
    rewards = []

    def step(state, action):
        state = state + action
        rewards.append(state.sum())
        return state, None

    return jax.lax.scan(step, state, actions)[0], len(rewards)


@wrong("LOX413", f32(16, 4))
def a_vmapped_norm_that_collects_what_it_sees(rows):
    seen = []

    def norm(row):
        squared = (row**2).sum()
        seen.append(squared)
        return jnp.sqrt(squared + 1e-6)

    return jax.vmap(norm)(rows)


@wrong("LOX413", f32(10))
def a_scan_with_a_nonlocal_total(x):
    total = jnp.float32(0)

    def body(carry, x):
        nonlocal total
        total = total + x
        return carry, None

    jax.lax.scan(body, None, x)
    return x


class _Counter:
    """What steps of a training do with the object that they are methods of."""

    kinds: list[str] = []

    def __init__(self):
        self.steps = 0
        self.seen = []
        self.last = {}

    def decay(self, params):
        self.steps += 1
        return params * 0.99**self.steps

    def remember(self, params):
        self.seen.append("decay")
        return params * 0.99

    def name(self, params):
        self.last[len(self.last)] = "decay"
        return params * 0.99

    def share(self, params):
        self.kinds.append("decay")
        return params * 0.99

    def peek(self, params):
        return params * 0.99**self.steps

    def twice(self, params):
        self.seen.append(params)
        return params * 0.99 + self.seen.pop()


COUNTER = _Counter()

wrong("LOX413", f32(8))(_Counter().decay)
wrong("LOX413", f32(8))(_Counter().remember)
wrong("LOX413", f32(8))(_Counter().name)
wrong("LOX413", f32(8))(jax.jit(_Counter().share))
right("LOX413", f32(8))(_Counter().peek)
right("LOX413", f32(8))(_Counter().twice)


@wrong("LOX413", f32(8), f32(10, 8))
def a_scan_that_steps_an_object_of_outside(params, x):
    return jax.lax.scan(lambda params, x: (COUNTER.decay(params) + x, None), params, x)[0]


@wrong("LOX413", f32(8))
def a_step_that_counts_in_its_default_argument(params, calls=[]):
    calls.append(1)
    return params * 0.99 ** len(calls)


@wrong("LOX413", f32(8))
def a_step_that_counts_in_a_global_dict(params):
    COUNTS["steps"] += 1
    return params * 0.99


@right("LOX413", f32(8), f32(3, 8))
def a_model_of_an_object_that_is_made_anew(params, xs):
    counter = _Counter()
    for x in xs:
        params = counter.decay(params) + x
        counter.remember(params)
        counter.last["x"] = params
    return params, counter.steps


@dataclasses.dataclass
class _Layer:
    size: int
    sizes: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.scale = self.size**-0.5
        self.sizes.append(self.size)


LAYER = _Layer(8)


@right("LOX413", f32(8))
def a_layer_that_is_a_changed_copy(x):
    return x * dataclasses.replace(LAYER, size=4).scale


class _Trainer:
    def __init__(self):
        self.params, self.losses, self.epochs = jnp.ones(8), [], 0

    def train(self, x, y):
        for _ in range(2):
            self.params, loss = _train_step(self.params, x, y)
            self.losses.append(loss)
            self.epochs += 1
        return self.params


right("LOX413", f32(32, 8), f32(32))(_Trainer().train)


@right("LOX413", f32(8), f32(3, 8, 8))
def layers_that_are_collected_in_a_list(x, weights):
    activations = []
    for w in weights:
        x = jnp.tanh(x @ w)
        activations.append(x)
    return jnp.stack(activations)


@right("LOX413", f32(8), f32(8, 8))
def a_layer_that_appends_to_the_list_of_the_model_around_it(x, w):
    activations = []
    calls = 0

    def layer(x):
        nonlocal calls
        calls += 1
        x = jnp.tanh(x @ w)
        activations.append(x)
        return x

    layer(layer(x))
    return jnp.stack(activations), calls


@right("LOX413", {"w": f32(8, 4), "b": f32(4)})
def norms_that_are_collected_over_a_tree(params):
    norms = []
    jax.tree.map(lambda leaf: norms.append(jnp.linalg.norm(leaf)), params)
    return jnp.stack(norms)


@right("LOX413", f32(16, 4))
def a_table_that_is_kept_by_its_length(x):
    length = x.shape[0]
    LAYERS.append(x.shape)
    if length not in CACHE:
        CACHE[length] = np.linspace(0, 1, length, dtype=np.float32)
    return x * CACHE[length][:, None]


@wrong("LOX414", f32(4), f32(30, 4))
def rewards_of_a_scan_that_are_stacked_from_a_list(state, actions):
    rewards = []

    def step(state, action):
        state = state + action
        rewards.append(state.sum())
        return state, None

    state, _ = jax.lax.scan(step, state, actions)
    return state, jnp.stack(rewards)


@right("LOX414", f32(4), f32(30, 4))
def rewards_that_a_scan_returns(state, actions):
    def step(state, action):
        state = state + action
        return state, state.sum()

    return jax.lax.scan(step, state, actions)


@wrong("LOX414", f32(32))
def a_loss_that_is_appended_to_a_global_history(errors):
    loss = (errors**2).mean()
    HISTORY.append(loss)
    return loss


@wrong("LOX414", f32(16, 4))
def metrics_that_a_vmapped_function_puts_into_a_global_dict(x):
    def norm(row):
        BY_NAME["norm"] = jnp.linalg.norm(row)
        return row * 2

    return jax.vmap(norm)(x)


class _Agent:
    def __init__(self):
        self.loss = None

    def update(self, params, x):
        self.loss = (params * x).sum()
        return params - 0.1 * jax.grad(lambda params: (params * x).sum())(params)

    def update_and_tell(self, params, x):
        loss, gradient = jax.value_and_grad(lambda params: (params * x).sum())(params)
        return params - 0.1 * gradient, loss


wrong("LOX414", f32(8), f32(8))(jax.jit(_Agent().update))
right("LOX414", f32(8), f32(8))(jax.jit(_Agent().update_and_tell))


@wrong("LOX415", f32(4), f32(1000, 4))
def a_simulation_that_calls_numpy_at_each_step(state, forces):
    def step(state, force):
        force = jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(force.shape, force.dtype), force)
        return state + 0.01 * force, None

    return jax.lax.scan(step, state, forces)[0]


@wrong("LOX415", f32())
def a_search_that_prints_in_a_while_loop(x):
    def body(x):
        jax.debug.print("x {}", x)
        return x * 0.5

    return jax.lax.while_loop(lambda x: x > 1e-3, body, x)


@right("LOX415", f32(4), f32(1000, 4))
def a_simulation_that_prints_now_and_then(state, forces):
    def step(carry, force):
        count, state = carry
        state = state + 0.01 * force
        jax.lax.cond(count % 200 == 0, lambda: jax.debug.print("state {}", state), lambda: None)
        return (count + 1, state), None

    return jax.lax.scan(step, (jnp.int32(0), state), forces)[0]


@right("LOX415", f32(4), f32(5, 4))
def a_few_epochs_that_print(state, epochs):
    def epoch(state, x):
        state = state + x
        jax.debug.print("state {}", state)
        return state, None

    return jax.lax.scan(epoch, state, epochs)[0]


@right("LOX415", f32(4), f32(200, 128, 4))
def updates_that_print_after_a_rollout_each(state, forces):
    def update(state, force):
        state, reached = jax.lax.scan(lambda s, f: (s + 0.01 * f, s.sum()), state, force)
        jax.debug.print("reached {}", reached.mean())
        return state, None

    return jax.lax.scan(update, state, forces)[0]


@wrong("LOX415", f32(4), f32(200, 128, 4))
def rollouts_that_print_at_each_step(state, forces):
    def step(state, force):
        jax.debug.print("state {}", state)
        return state + 0.01 * force, None

    return jax.lax.scan(lambda s, f: jax.lax.scan(step, s, f), state, forces)[0]


@wrong("LOX416", f32(128 * 128), i32(32))
def a_batch_of_a_dataset_that_is_closed_over(w, index):
    return (jnp.asarray(DATASET)[index] @ w).mean()


@wrong("LOX416", f32(128 * 128))
def a_scan_over_a_dataset_that_is_closed_over(w):
    @jax.jit
    def epoch(w):
        return jax.lax.scan(lambda w, x: (w - 1e-3 * x * (w @ x), None), w, DATASET)[0]

    return epoch(w)


@right("LOX416", f32(128 * 128), i32(32), f32(512, 128 * 128))
def a_batch_of_a_dataset_that_is_passed(w, index, dataset):
    return (dataset[index] @ w).mean()


@right("LOX416", f32(32, 128))
def distances_to_a_few_constant_prototypes(x):
    return ((x[:, None] - PROTOTYPES) ** 2).sum(-1).argmin(-1)


@functools.partial(jax.jit, donate_argnums=0)
def _donating_step(params, gradient):
    return params - 0.1 * gradient


@wrong("LOX417", f32(64), f32(64))
def a_difference_to_donated_parameters(params, gradient):
    new = _donating_step(params, gradient)
    return new, jnp.linalg.norm(new - params)


@wrong("LOX417", f32(64), f32(3, 64))
def a_loop_that_forgets_the_new_parameters(params, gradients):
    for gradient in gradients:
        new = _donating_step(params, gradient)
    return new


@wrong("LOX417", f32(64))
def a_donated_array_that_is_passed_twice(params):
    return _donating_step(params, params)


@wrong("LOX417", f32(64), f32(64))
def donated_parameters_that_are_returned_too(params, gradient):
    return {"old": params, "new": _donating_step(params, gradient)}


@right("LOX417", f32(64), f32(3, 64))
def a_loop_that_goes_on_with_the_new_parameters(params, gradients):
    for gradient in gradients:
        params = _donating_step(params, gradient)
    return params


def _predict(w, x):
    return jax.nn.sigmoid(x @ w)


WEIGHTS = f32(8)


@wrong("LOX420", WEIGHTS, f32(32, 8), calls=[(WEIGHTS, f32(32, 8)), (WEIGHTS, f32(20, 8))])
def a_prediction_whose_last_batch_is_smaller(w, x):
    return _predict(w, x)


@wrong("LOX420", {"obs": f32(10, 4)}, calls=[({"obs": f32(11, 4)},), ({"obs": f32(12, 4)},)])
@jax.jit
def a_model_of_a_history_that_grows(batch):
    return batch["obs"].mean(axis=0)


@right("LOX420", WEIGHTS, f32(32, 8), flags(32), calls=[(WEIGHTS, f32(32, 8), flags(32))])
def a_prediction_of_padded_batches(w, x, mask):
    return jnp.where(mask, _predict(w, x), 0)


@jax.jit
def _next_token(embedding, tokens):
    seen = embedding[tokens]
    weights = jax.nn.softmax(seen @ seen[-1])
    return jnp.argmax(weights @ seen @ embedding.T).astype(jnp.int32)


@wrong("LOX420", f32(50, 16), i32(5))
def tokens_that_are_generated_from_a_sequence_that_grows(embedding, tokens):
    for _ in range(8):
        tokens = jnp.append(tokens, _next_token(embedding, tokens))
    return tokens


@jax.jit
def _ridge(x, y):
    return jnp.linalg.solve(x.T @ x + jnp.eye(x.shape[1]), x.T @ y)


@wrong("LOX420", f32(20, 8), f32(20))
def forecasts_from_all_that_came_before(x, y):
    return jnp.stack([x[t] @ _ridge(x[:t], y[:t]) for t in range(10, 20)])


@right("LOX420", f32(20, 8), f32(20))
def forecasts_from_windows_of_one_length(x, y):
    return jnp.stack([x[t] @ _ridge(x[t - 5 : t], y[t - 5 : t]) for t in range(10, 20)])


@jax.jit
def _new_features(x, w):
    return jnp.tanh(x @ w)


@right("LOX420", f32(32, 8), [f32(8 + 4 * layer, 4) for layer in range(6)])
def layers_that_each_add_features_to_those_before(x, weights):
    for w in weights:
        x = jnp.concatenate([x, _new_features(x, w)], axis=1)
    return x


@wrong("LOX421", f32(8), 0.1, calls=[(f32(8), jnp.float32(0.05))])
@jax.jit
def a_step_with_a_number_and_then_an_array(params, learning_rate):
    return params * (1 - learning_rate)


@wrong("LOX421", i32(32), calls=[(f32(32),)])
def a_sum_of_integers_and_then_of_floats(x):
    return x.sum()


@right("LOX421", f32(8), 0.1, calls=[(f32(8), 0.05), (f32(8), 0.01)])
@jax.jit
def a_step_with_a_number_each_time(params, learning_rate):
    return params * (1 - learning_rate)


@wrong("LOX422", {"obs": f32(32, 8)}, calls=[({"obs": f32(32, 8), "mask": flags(32)},)])
def a_batch_that_has_a_mask_at_times(batch):
    x = batch["obs"].mean(axis=-1)
    return jnp.where(batch["mask"], x, 0) if "mask" in batch else x


@wrong("LOX422", f32(8), None, calls=[(f32(8), f32(8))])
def a_state_without_momentum_at_first(params, momentum):
    return params - 0.1 * (params if momentum is None else momentum)


@right("LOX422", f32(8), f32(8), calls=[(f32(8), f32(8))])
def a_state_with_momentum_from_the_start(params, momentum):
    return params - 0.1 * momentum


@wrong("LOX423", f32(8), 1, calls=[(f32(8), 2), (f32(8), 3)])
@functools.partial(jax.jit, static_argnames="step")
def a_schedule_by_a_static_step(params, step):
    return params * 0.99**step


@functools.partial(jax.jit, static_argnames="step")
def _decayed(params, step):
    return params * 0.99**step


@functools.partial(jax.jit, static_argnames="axis")
def _means(x, axis):
    return x.mean(axis) * 2.0


@wrong("LOX423", f32(8))
def training_with_a_static_step(params):
    for step in range(10):
        params = _decayed(params, step)
    return params


@right("LOX423", f32(8), f32(2, 2, 2, 2, 2))
def training_with_few_static_steps_and_means_over_each_axis(params, x):
    for step in range(3):
        params = _decayed(params, step)
    return params, [_means(x, axis) for axis in range(5)]


@wrong("LOX423", f32(8), lambda x: x * 2, calls=[(f32(8), lambda x: x * 2)])
def an_update_by_a_new_lambda_each_time(params, transform):
    return transform(params)


@right("LOX423", f32(8), "relu", calls=[(f32(8), "relu")])
@functools.partial(jax.jit, static_argnames="activation")
def a_layer_whose_activation_stays(x, activation):
    return getattr(jax.nn, activation)(x)


@wrong("LOX424", f32(32, 8))
def a_jitted_layer_that_is_given_its_activation_by_name(x):
    @jax.jit
    def layer(x, activation):
        return getattr(jax.nn, activation)(x)

    return layer(x, "relu")


@wrong("LOX424", f32(16), f32(16))
def a_scan_that_returns_a_name(x, y):
    return jax.lax.scan(lambda carry, at: (carry, {"sum": at[0] + at[1], "name": "sum"}), None, (x, y))[1]


@wrong("LOX424", f32(16))
def batches_that_are_yielded(x):
    for start in range(0, 16, 4):
        yield x[start : start + 4] * 2.0


@wrong("LOX424", f32(16))
async def a_result_that_is_awaited(x):
    return x * 2.0


@wrong("LOX424", {"x": f32(2), "names": np.array(["mean", "max"])})
def a_batch_with_an_array_of_names(batch):
    return batch["x"] * 2.0


@right("LOX424", f32(16))
def batches_of_a_generator_that_is_used_up(x):
    def batches():
        for start in range(0, 16, 4):
            yield x[start : start + 4]

    return [batch * 2.0 for batch in batches()]


@wrong("LOX424", f32(16), ["mean", "max"])
@jax.jit
def statistics_by_a_list_of_names(x, names):
    return [getattr(jnp, name)(x) for name in names]


@right("LOX424", f32(16), ("mean", "max"))
@functools.partial(jax.jit, static_argnames="names")
def statistics_by_static_names(x, names):
    return [getattr(jnp, name)(x) for name in names]


@wrong("LOX425", f32(16), [8, 4])
@functools.partial(jax.jit, static_argnames="sizes")
def a_network_whose_static_sizes_are_a_list(x, sizes):
    return [jnp.ones((size, 16)) @ x for size in sizes]


@wrong("LOX425", f32(16), i32())
def a_window_whose_static_size_is_traced(x, size):
    @functools.partial(jax.jit, static_argnums=1)
    def window(x, size):
        return x[:size]

    return window(x, size)


@right("LOX425", f32(16), (8, 4))
@functools.partial(jax.jit, static_argnames="sizes")
def a_network_whose_static_sizes_are_a_tuple(x, sizes):
    return [jnp.ones((size, 16)) @ x for size in sizes]


# What is read once, and changes afterwards.


@wrong("LOX433", f32(8), f32(5, 32, 8), f32(5, 32))
def training_whose_rate_decays_beside_its_compiled_step(params, batches, targets):
    rate = 0.1

    @jax.jit
    def step(params, x, y):
        return params - rate * jax.grad(_loss)(params, x, y)

    for x, y in zip(batches, targets):
        params = step(params, x, y)
        rate = 0.9 * rate
    return params


@right("LOX433", f32(8), f32(5, 32, 8), f32(5, 32))
def training_whose_rate_is_an_argument_of_its_step(params, batches, targets):
    rate = jnp.float32(0.1)

    @jax.jit
    def step(params, rate, x, y):
        return params - rate * jax.grad(_loss)(params, x, y)

    for x, y in zip(batches, targets):
        params = step(params, rate, x, y)
        rate = 0.9 * rate
    return params


class Agent:
    def __init__(self, width):
        self.params = np.zeros(width, np.float32)
        self.discount = 0.99
        self.scale = None

    @functools.partial(jax.jit, static_argnums=0)
    def act(self, observation):
        return jnp.tanh(observation @ self.params)

    @functools.partial(jax.jit, static_argnums=0)
    def improve(self, params, observation, value):
        error = self.discount * value - observation @ params
        return params + 0.1 * error * observation

    def learn(self, observation, value):
        self.params = self.improve(self.params, observation, value)


AGENT = Agent(8)


@wrong("LOX433", f32(8))
def an_agent_that_acts_with_the_params_of_its_first_call(observation):
    return AGENT.act(observation)


@right("LOX433", f32(8), f32(8), f32())
def an_agent_that_is_given_its_params(params, observation, value):
    return AGENT.improve(params, observation, value)


@wrong("LOX433", f32(8), f32(5, 32, 8), f32(5, 32))
def training_whose_rate_decays_in_a_dict(params, batches, targets):
    options = {"rate": 0.1, "decay": 0.01}

    @jax.jit
    def step(params, x, y):
        return (1 - options["decay"]) * params - options["rate"] * jax.grad(_loss)(params, x, y)

    for x, y in zip(batches, targets):
        params = step(params, x, y)
        options["rate"] *= 0.5
    return params


@right("LOX433", f32(8), f32(5, 32, 8), f32(5, 32))
def training_with_options_that_stay_and_a_record(params, batches, targets):
    options, record = {"rate": 0.1, "decay": 0.01}, {"rate": 0.1, "losses": []}

    @jax.jit
    def step(params, rate, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return (1 - options["decay"]) * params - rate * grads, loss

    for x, y in zip(batches, targets):
        params, loss = step(params, record["rate"], x, y)
        record["rate"] *= 0.5
        record["last"] = loss
    return params, record["last"]


class Settings:
    temperature = 1.0


@wrong("LOX433", f32(8), f32(5, 8))
def annealing_whose_temperature_is_an_attribute_of_its_settings(x, noise):
    settings = Settings()

    def energy(x):
        return jnp.sum(jnp.cos(x) + x**2) / settings.temperature

    @jax.jit
    def relax(x, kick):
        return x - 0.01 * jax.grad(energy)(x) + kick

    for kick in noise:
        x = relax(x, kick)
        settings.temperature = 0.9 * settings.temperature
    return x


class Walker:
    def __init__(self, size):
        self.size = size
        self.steps = 0

    @functools.partial(jax.jit, static_argnums=0)
    def move(self, x, noise):
        return x + self.size * noise


@dataclasses.dataclass(frozen=True)
class EqualWalker:
    size: float = 1.0

    @functools.partial(jax.jit, static_argnums=0)
    def move(self, x, noise):
        return x + self.size * noise


@wrong("LOX433", f32(8), f32(5, 8))
def a_walk_whose_steps_are_to_become_small(x, noise):
    walker = Walker(1.0)
    for kick in noise:
        x = walker.move(x, kick)
        walker.size = walker.size / 2
    return x


@right("LOX433", f32(8), f32(5, 8))
def walks_whose_steps_are_counted_or_that_are_made_anew(x, noise):
    walker, size = Walker(1.0), 1.0
    for kick in noise:
        x = walker.move(x, kick)
        walker.steps += 1
    for kick in noise:
        x = EqualWalker(size).move(x, kick)
        size = size / 2
    for size in (1.0, 0.5):
        other = Walker(size)
        x = other.move(x, noise[0])
    return x


# What is compiled each time.


@wrong("LOX434", f32(8), f32(5, 32, 8), f32(5, 32))
def training_that_compiles_a_new_lambda_for_each_batch(params, batches, targets):
    for x, y in zip(batches, targets):
        step = jax.jit(lambda params: params - 0.1 * jax.grad(_loss)(params, x, y))
        params = step(params)
    return params


@wrong("LOX434", f32(8), f32(5, 32, 8), f32(5, 32))
def training_that_compiles_a_new_gradient_for_each_batch(params, batches, targets):
    for x, y in zip(batches, targets):
        params = params - 0.1 * jax.jit(jax.grad(_loss))(params, x, y)
    return params


@right("LOX434", f32(8), f32(5, 32, 8), f32(5, 32))
def training_that_compiles_its_gradient_once(params, batches, targets):
    gradient = jax.jit(jax.grad(_loss))
    for x, y in zip(batches, targets):
        params = params - 0.1 * gradient(params, x, y) - 0.01 * jax.jit(_loss)(params, x, y)
    return params


# Numbers that a function passes on to another one.


def _scaled(x, rate):
    logger.info("rate is %s", rate)
    return x * rate


def _deep(x, depth, *, width):
    print("layers", depth, "of", width)
    for _ in range(depth):
        x = jnp.tanh(x * width)
    return x


def _shown(x, loss):
    logger.info("loss is %s", loss)
    return x - loss


@right("LOX410", f32(8))
def a_rate_that_is_a_number_is_logged(x):
    return _scaled(x, 0.1)


@right("LOX410", f32(8))
def sizes_that_are_numbers_are_printed(x):
    return _deep(x, 3, width=64) + _deep(x, depth=2, width=32)


@wrong("LOX410", f32(8))
def a_loss_that_is_passed_on_is_logged(x):
    return _shown(x, jnp.sum(x**2))


# Attributes of objects whose methods are compiled.


class Ridge:
    def __init__(self, weight):
        self.weight = weight

    @functools.partial(jax.jit, static_argnums=0)
    def fit(self, w, x, y):
        return w - 0.1 * (jax.grad(_loss)(w, x, y) + self.weight * w)

    @functools.partial(jax.jit, static_argnums=0)
    def fit_by(self, weight, w, x, y):
        return w - 0.1 * (jax.grad(_loss)(w, x, y) + weight * w)


class RidgeByWeight(Ridge):
    def __hash__(self):
        return hash(self.weight)

    def __eq__(self, other):
        return self.weight == other.weight


@wrong("LOX433", f32(8), f32(32, 8), f32(32))
def fits_of_two_weights_of_which_the_second_is_not_compiled(w, x, y):
    objective = Ridge(1.0)
    strong = objective.fit(w, x, y)
    objective.weight = 0.01
    return strong, objective.fit(w, x, y)


@wrong("LOX433", f32(8), f32(5, 8))
def a_smoother_whose_bandwidth_shrinks_in_vain(signal, noise):
    class Smoother:
        bandwidth = 1.0

        @functools.partial(jax.jit, static_argnums=(0,))
        def smooth(self, signal):
            return signal + (jnp.roll(signal, 1) - signal) * jnp.exp(-1.0 / self.bandwidth)

    smoother = Smoother()
    found = []
    for each in noise:
        found.append(smoother.smooth(signal + each))
        smoother.bandwidth *= 0.5
    return jnp.stack(found)


@right("LOX433", f32(8), f32(32, 8), f32(32))
def fits_of_a_weight_that_is_set_before_the_first(w, x, y):
    objective = Ridge(1.0)
    objective.weight = 0.01
    for _ in range(3):
        w = objective.fit(w, x, y)
    return w, objective.fit(w, 2 * x, y)


@right("LOX433", f32(8), f32(32, 8), f32(32))
def fits_of_weights_by_which_objects_are_equal(w, x, y):
    objective = RidgeByWeight(1.0)
    for weight in (1.0, 0.1):
        objective.weight = weight
        w = objective.fit(w, x, y)
    objective.weight = 0.01
    return objective.fit(w, x, y)


@right("LOX433", f32(8), f32(32, 8), f32(32))
def fits_of_weights_that_are_given(w, x, y):
    objective = Ridge(1.0)
    for weight in (1.0, 0.1):
        objective.weight = weight
        w = objective.fit_by(jnp.float32(objective.weight), w, x, y)
    return w


@right("LOX433", f32(8), f32(32, 8), f32(32))
def fits_of_objects_that_are_made_for_each_weight(w, x, y):
    for weight in (1.0, 0.1):
        objective = Ridge(1.0)
        objective.weight = weight
        w = objective.fit(w, x, y)
    return w
