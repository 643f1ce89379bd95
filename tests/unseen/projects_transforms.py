"""vmap, replicas, custom derivatives, and what happens around jit."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from unseen.case import Case, f32, i32

CASES = []
add = CASES.append


def mesh(name="data"):
    return jax.make_mesh((1,), (name,), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:1])


# The mapped function reads the whole batch.


def margin(params, anchor, positives, negatives):
    embed = lambda x: jnp.tanh(x @ params["w"])
    a = embed(anchor)
    near = jnp.sum((a - embed(positives)) ** 2)
    far = jnp.sum((a - embed(negatives)) ** 2)
    return jnp.maximum(near - far + 1.0, 0.0)


def triplet_loss(params, anchors, positives, negatives):
    losses = jax.vmap(lambda a, n: margin(params, a, positives, n))(anchors, negatives)
    return losses.mean()


def triplet_loss_b(params, anchors, positives, negatives):
    per_triplet = jax.vmap(lambda a, p, n: margin(params, a, p, n))(anchors, positives, negatives)
    return per_triplet.mean()


add(
    Case(
        "triplets",
        "vmap",
        triplet_loss,
        (triplet_loss_b,),
        ({"w": f32(10, 8)}, f32(32, 10), f32(32, 10), f32(32, 10)),
        where="losses = jax.vmap(lambda a, n: margin(params, a, positives, n))(anchors, negatives)",
        axes={"anchors": ("batch", None), "positives": ("batch", None), "negatives": ("batch", None)},
        differentiate="params",
        source="StackOverflow on vmap: a lambda that closes over the batch",
    )
)


# One example too many.


class Graph(NamedTuple):
    nodes: jax.Array
    adjacency: jax.Array
    target: jax.Array


def message_pass(params, graph):
    degree = jnp.maximum(graph.adjacency.sum(-1, keepdims=True), 1.0)
    h = jax.nn.relu((graph.adjacency @ graph.nodes / degree) @ params["w"])
    return h[0] @ params["readout"]


def message_pass_b(params, graph):
    degree = jnp.maximum(graph.adjacency.sum(-1, keepdims=True), 1.0)
    h = jax.nn.relu((graph.adjacency @ graph.nodes / degree) @ params["w"])
    return h.mean(axis=0) @ params["readout"]


def graph_loss(network):
    def loss(params, graphs):
        pred = jax.vmap(network, in_axes=(None, 0))(params, graphs)
        return jnp.mean((pred - graphs.target) ** 2)

    return jax.value_and_grad(loss)


add(
    Case(
        "graph readout",
        "vmap",
        graph_loss(message_pass),
        (graph_loss(message_pass_b),),
        ({"w": f32(6, 16), "readout": f32(16)}, Graph(f32(12, 9, 6), f32(12, 9, 9), f32(12))),
        where='return h[0] @ params["readout"]',
        axes={"graphs/nodes": ("batch", "nodes", None), "graphs/target": ("batch",)},
        source="code for a batch put under vmap: x[0] was the first of the batch",
    )
)


# in_axes over features.


def dynamics(params, state, action):
    return state + 0.1 * jnp.tanh(state @ params["a"] + action @ params["b"])


def model_loss(params, states, actions, next_states):
    pred = jax.vmap(dynamics, in_axes=(None, 0, 1))(params, states, actions)
    return jnp.mean((pred - next_states) ** 2)


def model_loss_b(params, states, actions, next_states):
    predicted = jax.vmap(dynamics, in_axes=(None, 0, 0))(params, states, actions)
    return jnp.mean((predicted - next_states) ** 2)


add(
    Case(
        "in_axes of actions",
        "vmap",
        model_loss,
        (model_loss_b,),
        ({"a": f32(8, 8), "b": f32(8, 8)}, f32(8, 8), f32(8, 8), f32(8, 8)),
        where="pred = jax.vmap(dynamics, in_axes=(None, 0, 1))(params, states, actions)",
        axes={"states": ("batch", "state"), "actions": ("batch", "action"), "next_states": ("batch", "state")},
        differentiate="params",
        source="klax#19, model-based RL in JAX: in_axes of one argument",
    )
)


# Ensemble.


def member(params, x):
    return (jnp.tanh(x @ params["w1"]) @ params["w2"])[:, 0]


def ensemble_target(params, obs, reward):
    qs = jax.vmap(member, in_axes=(0, None))(params, obs)
    pessimistic = jnp.min(qs, axis=1)
    return reward + 0.99 * jnp.mean(pessimistic)


def ensemble_target_b(params, obs, reward):
    qs = jax.vmap(member, in_axes=(0, None))(params, obs)
    lower = jnp.min(qs, axis=0)
    return reward + 0.99 * lower


def ensemble_loss(target):
    def loss(params, target_params, obs, next_obs, reward):
        goal = jax.lax.stop_gradient(target(target_params, next_obs, reward))
        qs = jax.vmap(member, in_axes=(0, None))(params, obs)
        return jnp.mean((qs - goal[None]) ** 2)

    return jax.value_and_grad(loss)


ENSEMBLE = {"w1": f32(10, 6, 16), "w2": f32(10, 16, 1)}
add(
    Case(
        "pessimistic ensemble",
        "wrong axis",
        ensemble_loss(ensemble_target),
        (ensemble_loss(ensemble_target_b),),
        (ENSEMBLE, ENSEMBLE, f32(64, 6), f32(64, 6), f32(64)),
        where="pessimistic = jnp.min(qs, axis=1)",
        axes={
            "params": ("members", None, None),
            "target_params": ("members", None, None),
            "obs": ("batch", None),
            "next_obs": ("batch", None),
            "reward": ("batch",),
        },
        source="JAX-CORL, REDQ and EDAC: the minimum over the batch",
    )
)


# Replicas.


def lsq(params, x, y):
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def replicated_step(params, x, y):
    def local(params, x, y):
        loss, grads = jax.value_and_grad(lsq)(params, x, y)
        loss = jax.lax.pmean(loss, "data")
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, loss

    return jax.shard_map(
        local, mesh=mesh(), in_specs=(P(), P("data"), P("data")), out_specs=(P(), P()), check_vma=False
    )(params, x, y)


def replicated_step_b(params, x, y):
    def local(params, x, y):
        loss, grads = jax.value_and_grad(lsq)(params, x, y)
        loss, grads = jax.lax.pmean((loss, grads), "data")
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return params, loss

    return jax.shard_map(
        local, mesh=mesh(), in_specs=(P(), P("data"), P("data")), out_specs=(P(), P()), check_vma=False
    )(params, x, y)


LINEAR = {"w": f32(6), "b": f32()}
add(
    Case(
        "replicas by shard_map",
        "replicas not averaged",
        replicated_step,
        (replicated_step_b,),
        (LINEAR, f32(32, 6), f32(32)),
        where='loss = jax.lax.pmean(loss, "data")\n        params',
        axes={"x": ("batch", None), "y": ("batch",)},
        source="Flax and scenic trainers: the loss is averaged over devices, the gradients are not",
    )
)


# Replicas as a named axis of vmap, with batch statistics.


def normed_forward(params, stats, x):
    mean, var = x.mean(axis=0), x.var(axis=0)
    new_stats = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, stats, {"mean": mean, "var": var})
    normed = (x - mean) / jnp.sqrt(var + 1e-5)
    return (jnp.tanh(normed @ params["w"]) @ params["v"])[:, 0], new_stats


def pmapped(params, stats, x, y):
    def loss_fn(p):
        out, new_stats = normed_forward(p, stats, x)
        return jnp.mean((out - y) ** 2), new_stats

    (loss, new_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    grads = jax.lax.psum(grads, "replica")
    loss = jax.lax.pmean(loss, "replica")
    new_stats = jax.lax.pmean(new_stats, "replica")
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), new_stats, loss


def pmapped_b(params, stats, x, y):
    def loss_fn(p):
        out, new_stats = normed_forward(p, stats, x)
        return jnp.mean((out - y) ** 2), new_stats

    (loss, new_stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    loss, grads, new_stats = jax.lax.pmean((loss, grads, new_stats), "replica")
    return jax.tree.map(lambda p, g: p - 1e-2 * g, params, grads), new_stats, loss


def over_replicas(step):
    def run(params, stats, x, y):
        return jax.vmap(step, in_axes=(None, None, 0, 0), out_axes=None, axis_name="replica")(params, stats, x, y)

    return run


add(
    Case(
        "replicas by a named axis",
        "replicas not averaged",
        over_replicas(pmapped),
        (over_replicas(pmapped_b),),
        ({"w": f32(6, 16), "v": f32(16, 1)}, {"mean": f32(6), "var": f32(6)}, f32(4, 16, 6), f32(4, 16)),
        where='grads = jax.lax.psum(grads, "replica")',
        axes={"x": ("replicas", "batch", None), "y": ("replicas", "batch")},
        source="data parallel trainers: gradients summed, loss averaged",
    )
)


# Perplexity of batches.


def token_losses(params, tokens):
    logits = params["embed"][tokens[:, :-1]] @ params["out"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    return losses, (tokens[:, 1:] != 0).astype(jnp.float32)


def corpus_loss(params, batches):
    def one(_, tokens):
        losses, mask = token_losses(params, tokens)
        return None, jnp.sum(losses * mask) / jnp.maximum(mask.sum(), 1.0)

    _, means = jax.lax.scan(one, None, batches)
    return jnp.mean(means)


def corpus_loss_b(params, batches):
    def one(_, tokens):
        losses, mask = token_losses(params, tokens)
        return None, (jnp.sum(losses * mask), mask.sum())

    _, (sums, counts) = jax.lax.scan(one, None, batches)
    return sums.sum() / jnp.maximum(counts.sum(), 1.0)


add(
    Case(
        "loss of a corpus",
        "mean of means",
        corpus_loss,
        (corpus_loss_b,),
        ({"embed": f32(50, 8), "out": f32(8, 50)}, i32(6, 4, 20)),
        where="return jnp.mean(means)",
        axes={"batches": ("steps", "batch", "length")},
        source="ms-swift#10165, levanter: micro-batches with unequal numbers of tokens",
    )
)


# Masked loss on shards.


def sharded_masked_loss(params, x, y, mask):
    def local(params, x, y, mask):
        err = (x @ params["w"] + params["b"] - y) ** 2
        mean = jnp.sum(err * mask) / jnp.maximum(jnp.sum(mask), 1.0)
        return jax.lax.pmean(mean, "data")

    specs = (P(), P("data"), P("data"), P("data"))
    return jax.shard_map(local, mesh=mesh(), in_specs=specs, out_specs=P())(params, x, y, mask)


def sharded_masked_loss_b(params, x, y, mask):
    def local(params, x, y, mask):
        err = (x @ params["w"] + params["b"] - y) ** 2
        total, count = jax.lax.psum((jnp.sum(err * mask), jnp.sum(mask)), "data")
        return total / jnp.maximum(count, 1.0)

    specs = (P(), P("data"), P("data"), P("data"))
    return jax.shard_map(local, mesh=mesh(), in_specs=specs, out_specs=P())(params, x, y, mask)


add(
    Case(
        "masked loss of shards",
        "mean of means",
        sharded_masked_loss,
        (sharded_masked_loss_b,),
        (LINEAR, f32(32, 6), f32(32), f32(32)),
        where='return jax.lax.pmean(mean, "data")',
        axes={"x": ("batch", None), "y": ("batch",), "mask": ("batch",)},
        differentiate="params",
        source="t5x-like losses: each host divides by its own count",
    )
)


# Custom derivatives.


@jax.custom_vjp
def stable_log1pexp(x):
    return jnp.logaddexp(x, 0.0)


def stable_forward(x):
    return stable_log1pexp(x), x


def stable_backward(x, g):
    return (g * jax.nn.sigmoid(-x),)


stable_log1pexp.defvjp(stable_forward, stable_backward)


@jax.custom_vjp
def stable_log1pexp_b(x):
    return jnp.logaddexp(x, 0.0)


stable_log1pexp_b.defvjp(lambda x: (stable_log1pexp_b(x), x), lambda x, g: (g * jax.nn.sigmoid(x),))


def softplus_loss(activation):
    def loss(params, x, y):
        scale = activation(x @ params["s"]) + 1e-3
        mean = x @ params["m"]
        return jnp.mean(0.5 * ((y - mean) / scale) ** 2 + jnp.log(scale))

    return jax.value_and_grad(loss)


add(
    Case(
        "softplus rule",
        "custom rule",
        softplus_loss(stable_log1pexp),
        (softplus_loss(stable_log1pexp_b),),
        ({"s": f32(5), "m": f32(5)}, f32(30, 5), f32(30)),
        where="return (g * jax.nn.sigmoid(-x),)",
        axes={"x": ("batch", None), "y": ("batch",)},
        source="jax#3213: the sign in a rule of the documentation",
    )
)


@jax.custom_jvp
def safe_norm(x):
    return jnp.sqrt(jnp.sum(x**2))


@safe_norm.defjvp
def safe_norm_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    norm = safe_norm(x)
    return norm, jnp.sum(2.0 * x * t) / jnp.maximum(norm, 1e-12)


@jax.custom_jvp
def safe_norm_b(x):
    return jnp.sqrt(jnp.sum(x**2))


@safe_norm_b.defjvp
def safe_norm_b_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    norm = safe_norm_b(x)
    return norm, jnp.sum(x * t) / jnp.maximum(norm, 1e-12)


def spring_forces(norm):
    def energy(positions, rest):
        lengths = jax.vmap(norm)(positions[1:] - positions[:-1])
        return 0.5 * jnp.sum((lengths - rest) ** 2)

    return lambda positions, rest: -jax.grad(energy)(positions, rest)


add(
    Case(
        "norm rule",
        "custom rule",
        spring_forces(safe_norm),
        (spring_forces(safe_norm_b),),
        (f32(10, 3), f32(9)),
        where="return norm, jnp.sum(2.0 * x * t) / jnp.maximum(norm, 1e-12)",
        axes={"positions": ("particles", None), "rest": ("springs",)},
        source="jaxsim#319 and safe norms in physics code: a factor in the rule",
    )
)


# An object's state under jit.


class Normalizer:
    def __init__(self, dim):
        self.mean = jnp.zeros(dim)
        self.scale = jnp.ones(dim)
        self.count = 0

    @functools.partial(jax.jit, static_argnums=0)
    def __call__(self, x):
        return (x - self.mean) / self.scale

    def update(self, x):
        self.count += x.shape[0]
        self.mean = self.mean + (x.mean(axis=0) - self.mean) / self.count


normalizer = Normalizer(4)


def policy_input(obs, goal):
    return jnp.concatenate([normalizer(obs), goal], axis=-1)


def policy_input_b(obs, goal, mean=None, scale=1.0):
    centered = obs - (jnp.zeros(4) if mean is None else mean)
    return jnp.concatenate([centered / scale, goal], axis=-1)


add(
    Case(
        "normalizer object",
        "state read by jit",
        policy_input,
        (policy_input_b,),
        (f32(16, 4), f32(16, 2)),
        where="return (x - self.mean) / self.scale",
        axes={"obs": ("batch", None), "goal": ("batch", None)},
        source="StackOverflow: attributes of self under jit are constants",
    )
)


# A counter that is kept by Python.


HISTORY = {"loss": [], "best": np.inf}


def sgd_step(params, x, y):
    loss, grads = jax.value_and_grad(lsq)(params, x, y)
    HISTORY["loss"].append(loss)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def sgd_step_b(params, x, y):
    loss, grads = jax.value_and_grad(lsq)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def epochs(params, xs, ys):
    step = lambda p, batch: (sgd_step(p, *batch), None)
    return jax.lax.scan(step, params, (xs, ys))[0]


def epochs_b(params, xs, ys):
    step = lambda p, batch: sgd_step_b(p, *batch)
    return jax.lax.scan(step, params, (xs, ys))


add(
    Case(
        "history of losses",
        "state read by jit",
        epochs,
        (epochs_b,),
        (LINEAR, f32(5, 32, 6), f32(5, 32)),
        where='HISTORY["loss"].append(loss)',
        axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
        source="StackOverflow: tracers that leak into a list",
    )
)


# Functions made anew.


@functools.partial(jax.jit, static_argnums=0)
def integrate(field, state, times):
    def step(y, dt):
        k1 = field(y)
        k2 = field(y + 0.5 * dt * k1)
        return y + dt * k2, y

    return jax.lax.scan(step, state, jnp.diff(times))[1]


def simulate(params, state, times):
    return integrate(lambda y: jnp.tanh(y @ params), state, times)


@jax.jit
def integrate_b(params, state, times):
    def step(y, dt):
        k1 = jnp.tanh(y @ params)
        k2 = jnp.tanh((y + 0.5 * dt * k1) @ params)
        return y + dt * k2, y

    return jax.lax.scan(step, state, jnp.diff(times))[1]


add(
    Case(
        "vector field",
        "recompilation",
        simulate,
        (integrate_b,),
        (f32(4, 4), f32(4), f32(20)),
        where="return integrate(lambda y: jnp.tanh(y @ params), state, times)",
        axes={"times": ("time",)},
        calls=((f32(4, 4), f32(4), f32(20)),),
        source="jax#14183: a lambda as a static argument",
    )
)


# Learning rate as a static number.


@functools.partial(jax.jit, static_argnames="lr")
def lr_step(params, x, y, lr):
    grads = jax.grad(lsq)(params, x, y)
    return jax.tree.map(lambda p, g: p - lr * g, params, grads)


def scheduled(params, x, y):
    for step in range(6):
        params = lr_step(params, x, y, lr=0.1 * 0.5**step)
    return params


@jax.jit
def lr_step_b(params, x, y, lr):
    grads = jax.grad(lsq)(params, x, y)
    return jax.tree.map(lambda p, g: p - lr * g, params, grads)


def scheduled_b(params, x, y):
    for step in range(6):
        params = lr_step_b(params, x, y, jnp.float32(0.1 * 0.5**step))
    return params


add(
    Case(
        "static learning rate",
        "recompilation",
        scheduled,
        (scheduled_b,),
        (LINEAR, f32(32, 6), f32(32)),
        where="params = lr_step(params, x, y, lr=0.1 * 0.5**step)",
        axes={"x": ("batch", None), "y": ("batch",)},
        source="jax#4274: how to find the reason of recompilation",
    )
)


# A Python loop over time.


def lstm_like(params, h, x):
    return jnp.tanh(x @ params["wx"] + h @ params["wh"])


def unrolled(params, xs):
    h = jnp.zeros((xs.shape[1], 16))
    outputs = []
    for t in range(xs.shape[0]):
        h = lstm_like(params, h, xs[t])
        outputs.append(h)
    return jnp.stack(outputs)


def unrolled_b(params, xs):
    def step(h, x):
        h = lstm_like(params, h, x)
        return h, h

    return jax.lax.scan(step, jnp.zeros((xs.shape[1], 16)), xs)[1]


add(
    Case(
        "loop over time",
        "unrolled loop",
        unrolled,
        (unrolled_b,),
        ({"wx": f32(6, 16), "wh": f32(16, 16)}, f32(200, 4, 6)),
        where="h = lstm_like(params, h, xs[t])",
        axes={"xs": ("time", "batch", None)},
        source="sbx#14: a loop that is unrolled compiles slowly",
    )
)


# Printing in the loop.


def debug_scan(params, xs, ys):
    def step(p, batch):
        loss, grads = jax.value_and_grad(lsq)(p, *batch)
        jax.debug.print("loss {x}", x=loss)
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads), None

    return jax.lax.scan(step, params, (xs, ys))[0]


def debug_scan_b(params, xs, ys):
    def step(p, batch):
        loss, grads = jax.value_and_grad(lsq)(p, *batch)
        return jax.tree.map(lambda a, g: a - 0.1 * g, p, grads), loss

    return jax.lax.scan(step, params, (xs, ys))


add(
    Case(
        "print of losses",
        "print in a hot loop",
        debug_scan,
        (debug_scan_b,),
        (LINEAR, f32(200, 32, 6), f32(200, 32)),
        where='jax.debug.print("loss {x}", x=loss)',
        axes={"xs": ("steps", "batch", None), "ys": ("steps", "batch")},
        source="discussions of slow training: debug.print in each step",
    )
)


# Steps that overflow.


class Progress(NamedTuple):
    env_steps: jax.Array
    params: dict


def count_steps(progress, grads, epoch):
    num_envs, unroll, updates = 8192, 64, 1024
    steps_per_epoch = num_envs * unroll * updates
    fraction = (epoch * steps_per_epoch) / 10_000_000_000.0
    lr = 3e-4 * (1.0 - fraction)
    params = jax.tree.map(lambda p, g: p - lr * g, progress.params, grads)
    return Progress(progress.env_steps + steps_per_epoch, params)


def count_steps_b(progress, grads, epoch):
    num_envs, unroll, updates = 8192, 64, 1024
    per_epoch = float(num_envs * unroll * updates)
    fraction = (epoch.astype(jnp.float32) * per_epoch) / 10_000_000_000.0
    lr = 3e-4 * (1.0 - fraction)
    params = jax.tree.map(lambda p, g: p - lr * g, progress.params, grads)
    return Progress(progress.env_steps + per_epoch, params)


def train_epochs(count, dtype):
    def run(params, grads):
        body = lambda p, e: (count(p, grads, e), None)
        start = Progress(jnp.zeros((), dtype), params)
        return jax.lax.scan(body, start, jnp.arange(20))[0]

    return run


add(
    Case(
        "environment steps",
        "integer overflow",
        train_epochs(count_steps, jnp.int32),
        (train_epochs(count_steps_b, jnp.float32),),
        (LINEAR, LINEAR),
        where="fraction = (epoch * steps_per_epoch) / 10_000_000_000.0",
        source="brax#578, mujoco_playground#48: env_steps in int32",
    )
)


# Pixels.


def pixel_difference(frames, next_frames):
    change = next_frames - frames
    motion = jnp.abs(change).astype(jnp.float32).mean(axis=(1, 2, 3))
    return (motion - motion.mean()) / (motion.std() + 1e-6)


def pixel_difference_b(frames, next_frames):
    delta = next_frames.astype(jnp.float32) - frames.astype(jnp.float32)
    motion = jnp.abs(delta).mean(axis=(1, 2, 3))
    return (motion - motion.mean()) / (motion.std() + 1e-6)


U8 = jax.ShapeDtypeStruct((16, 20, 20, 1), jnp.uint8)
add(
    Case(
        "difference of frames",
        "integer overflow",
        pixel_difference,
        (pixel_difference_b,),
        (U8, U8),
        where="change = next_frames - frames",
        axes={
            "frames": ("batch", "height", "width", None),
            "next_frames": ("batch", "height", "width", None),
        },
        source="pixel environments: differences of uint8 wrap",
    )
)


# Donation.


@functools.partial(jax.jit, donate_argnums=0)
def donated_update(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def polyak_train(params, x, y):
    grads = jax.grad(lsq)(params, x, y)
    updated = donated_update(params, grads)
    averaged = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b, params, updated)
    return updated, averaged


def polyak_train_b(params, x, y):
    grads = jax.grad(lsq)(params, x, y)
    before = jax.tree.map(lambda a: 0.99 * a, params)
    updated = donated_update(params, grads)
    return updated, jax.tree.map(lambda a, b: a + 0.01 * b, before, updated)


add(
    Case(
        "donated parameters",
        "donation",
        polyak_train,
        (polyak_train_b,),
        (LINEAR, f32(32, 6), f32(32)),
        where="averaged = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b, params, updated)",
        axes={"x": ("batch", None), "y": ("batch",)},
        source="discussions: Array has been deleted",
    )
)


# Scan over the batch.


def gru_like(params, h, x):
    z = jax.nn.sigmoid(x @ params["zx"] + h @ params["zh"])
    return (1 - z) * h + z * jnp.tanh(x @ params["hx"] + h @ params["hh"])


def summarize(params, sequences):
    def step(h, x):
        h = gru_like(params, h, x)
        return h, h

    h0 = jnp.zeros((sequences.shape[1], 16))
    last, hs = jax.lax.scan(step, h0, sequences)
    return last @ params["out"]


def summarize_b(params, sequences):
    def step(h, x):
        return gru_like(params, h, x), None

    start = jnp.zeros((sequences.shape[0], 16))
    last, _ = jax.lax.scan(step, start, sequences.swapaxes(0, 1))
    return last @ params["out"]


GRU_PARAMS = {"zx": f32(6, 16), "zh": f32(16, 16), "hx": f32(6, 16), "hh": f32(16, 16), "out": f32(16, 3)}
add(
    Case(
        "scan over sequences",
        "time and environments exchanged",
        summarize,
        (summarize_b,),
        (GRU_PARAMS, f32(32, 25, 6)),
        where="last, hs = jax.lax.scan(step, h0, sequences)",
        axes={"sequences": ("batch", "time", None)},
        source="RNNs in Haiku and Flax: batch-major data meet scan",
    )
)
