"""What runs for many lanes or shards at once: vmap, pmap and shard_map."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from corpus import f32, flags, i32, right, wrong

P = PartitionSpec
MESH = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
GRID = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

PARAMS = {"w": f32(8, 3), "b": f32(3)}
X, Y = f32(32, 8), f32(32, 3)


def _predict(params, x):
    return jnp.tanh(x @ params["w"] + params["b"])


def _loss(params, x, y):
    return ((_predict(params, x) - y) ** 2).mean()


def _descend(params, grads, rate=0.1):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


def _sharded(fun, in_specs, out_specs, mesh=MESH, check=False):
    return jax.shard_map(fun, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check)


DATA = (P(), P("data"), P("data"))


# LOX300: a result that is declared the same on all shards.


@wrong("LOX300", PARAMS, X, Y)
def a_data_parallel_step_that_forgets_to_average_the_gradients(params, x, y):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return _descend(params, grads), lax.pmean(loss, "data")

    return _sharded(step, DATA, (P(), P()))(params, x, y)


@right("LOX300", PARAMS, X, Y)
def a_data_parallel_step(params, x, y):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return _descend(params, lax.pmean(grads, "data")), lax.pmean(loss, "data")

    return _sharded(step, DATA, (P(), P()))(params, x, y)


@right("LOX300", PARAMS, X, Y)
def a_data_parallel_step_whose_types_are_checked(params, x, y):
    def step(params, x, y):
        def mean_loss(params):
            return lax.pmean(_loss(params, x, y), "data")

        loss, grads = jax.value_and_grad(mean_loss)(params)
        return _descend(params, grads), loss

    return _sharded(step, DATA, (P(), P()), check=True)(params, x, y)


@wrong("LOX300", PARAMS, X, Y)
def epochs_on_shards_that_average_the_loss_alone(params, x, y):
    @jax.jit
    def train(params, x, y):
        def epoch(params, _):
            def mean_loss(params):
                return lax.pmean(_loss(params, x, y), "data")

            loss, grads = jax.value_and_grad(mean_loss)(params)
            return _descend(params, grads), loss

        return lax.scan(epoch, params, length=3)

    return _sharded(train, DATA, (P(), P()))(params, x, y)


@right("LOX300", PARAMS, X, Y)
def epochs_on_shards(params, x, y):
    @jax.jit
    def train(params, x, y):
        def epoch(params, _):
            loss, grads = jax.value_and_grad(_loss)(params, x, y)
            grads, loss = lax.pmean((grads, loss), axis_name="data")
            return _descend(params, grads), loss

        return lax.scan(epoch, params, length=3)

    return _sharded(train, DATA, (P(), P()))(params, x, y)


@wrong("LOX300", X)
def statistics_of_observations_on_one_shard(obs):
    return _sharded(lambda obs: (obs.mean(axis=0), obs.std(axis=0)), P("data"), P())(obs)


@right("LOX300", X)
def statistics_of_observations_on_all_shards(obs):
    def statistics(obs):
        mean = lax.pmean(obs.mean(axis=0), "data")
        return mean, jnp.sqrt(lax.pmean(((obs - mean) ** 2).mean(axis=0), "data"))

    return _sharded(statistics, P("data"), P())(obs)


@right("LOX300", X)
def statistics_of_observations_by_shard(obs):
    return _sharded(lambda obs: obs.mean(axis=0, keepdims=True), P("data"), P("data"))(obs)


@right("LOX300", X)
def the_best_of_gathered_scores(obs):
    def best(obs):
        scores = lax.all_gather(obs.sum(axis=1), "data", tiled=True)
        return jnp.argmax(scores)

    return _sharded(best, P("data"), P())(obs)


@right("LOX300", X)
def a_sum_that_goes_round_the_ring(x):
    def ring(x):
        def hop(_, carry):
            total, passed = carry
            passed = lax.ppermute(passed, "data", [(shard, (shard + 1) % 4) for shard in range(4)])
            return total + passed, passed

        return lax.fori_loop(0, 3, hop, (x.sum(), x.sum()))[0]

    return _sharded(ring, P("data"), P())(x)


@wrong("LOX300", PARAMS, X, Y)
def gradients_that_are_averaged_over_the_wrong_axis_of_the_mesh(params, x, y):
    def step(params, x, y):
        grads = jax.grad(_loss)(params, x, y)
        return _descend(params, lax.pmean(grads, "model"))

    return _sharded(step, DATA, P(), mesh=GRID)(params, x, y)


@right("LOX300", PARAMS, X, Y)
def gradients_that_are_averaged_over_all_axes_of_the_mesh(params, x, y):
    def step(params, x, y):
        grads = jax.grad(_loss)(params, x, y)
        return _descend(params, lax.pmean(grads, ("data", "model")))

    return _sharded(step, DATA, P(), mesh=GRID)(params, x, y)


@right("LOX300", f32(32, 8), f32(8, 16), f32(16, 3))
def a_network_whose_hidden_units_are_on_shards(x, inner, outer):
    def forward(x, inner, outer):
        return lax.psum(jax.nn.relu(x @ inner) @ outer, "model")

    specs = (P("data"), P(None, "model"), P("model", None))
    return _sharded(forward, specs, P("data"), mesh=GRID)(x, inner, outer)


# LOX301: a sum of what is the same everywhere.


@wrong("LOX301", PARAMS, X, Y)
def a_penalty_that_is_summed_over_shards(params, x, y):
    def loss(params, x, y):
        error = lax.pmean(_loss(params, x, y), "data")
        penalty = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return error + 1e-3 * lax.psum(penalty, "data")

    return _sharded(loss, DATA, P())(params, x, y)


@right("LOX301", PARAMS, X, Y)
def a_penalty_that_is_added_once(params, x, y):
    def loss(params, x, y):
        error = lax.pmean(_loss(params, x, y), "data")
        return error + 1e-3 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))

    return _sharded(loss, DATA, P())(params, x, y)


@wrong("LOX301", PARAMS, X, Y)
def gradients_that_are_summed_by_differentiation_and_again(params, x, y):
    def step(params, x, y):
        def total(params):
            return ((_predict(params, x) - y) ** 2).sum() / 96

        return _descend(params, lax.psum(jax.grad(total)(params), "data"))

    return _sharded(step, DATA, P(), check=True)(params, x, y)


@right("LOX301", PARAMS, X, Y)
def gradients_that_are_summed_by_differentiation(params, x, y):
    def step(params, x, y):
        def total(params):
            return ((_predict(params, x) - y) ** 2).sum() / 96

        return _descend(params, jax.grad(total)(params))

    return _sharded(step, DATA, P(), check=True)(params, x, y)


@wrong("LOX301", f32(16, 8), f32(8))
def rewards_of_agents_that_count_a_shared_bonus_for_each(actions, bonus):
    def reward(action):
        return (action**2).sum() + lax.psum((bonus**2).sum(), "agent")

    return jax.vmap(reward, axis_name="agent")(actions)


@right("LOX301", f32(16, 8), f32(8))
def rewards_of_agents_that_share_what_all_do(actions, bonus):
    def reward(action):
        return lax.psum((action * bonus).sum(), "agent") / lax.psum(1, "agent") + (bonus**2).sum()

    return jax.vmap(reward, axis_name="agent")(actions)


@right("LOX301", X)
def a_count_of_examples_over_shards(x):
    def mean(x):
        return lax.psum(x.sum(axis=0), "data") / lax.psum(jnp.asarray(x.shape[0], x.dtype), "data")

    return _sharded(mean, P("data"), P())(x)


# LOX302: gradients that differentiation has summed.


@wrong("LOX302", PARAMS, X, Y)
def a_mean_of_gradients_that_were_summed_by_differentiation(params, x, y):
    def step(params, x, y):
        grads = jax.grad(_loss)(params, x, y)
        return _descend(params, lax.pmean(grads, "data"))

    return _sharded(step, DATA, P(), check=True)(params, x, y)


@wrong("LOX302", PARAMS, f32(5, 32, 8), f32(5, 32, 3))
def batches_whose_gradients_were_summed_by_differentiation(params, xs, ys):
    def train(params, xs, ys):
        def step(params, batch):
            loss, grads = jax.value_and_grad(jax.jit(_loss))(params, *batch)
            grads, loss = lax.pmean((grads, loss), "data")
            return _descend(params, grads), loss

        return lax.scan(step, params, (xs, ys))

    return _sharded(train, (P(), P(None, "data"), P(None, "data")), P(), check=True)(params, xs, ys)


@right("LOX302", PARAMS, X, Y)
def gradients_of_a_mean_loss_and_a_mean_of_their_norm(params, x, y):
    def step(params, x, y):
        def mean_loss(params):
            return lax.pmean(_loss(params, x, y), "data")

        loss, grads = jax.value_and_grad(mean_loss)(params)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(grads)))
        return _descend(params, grads), lax.pmean({"loss": loss, "norm": norm}, "data")

    return _sharded(step, DATA, P(), check=True)(params, x, y)


@right("LOX302", PARAMS, X, Y)
def gradients_that_are_summed_by_differentiation_and_a_mean_of_their_norm(params, x, y):
    def step(params, x, y):
        def total(params):
            return ((_predict(params, x) - y) ** 2).sum() / 96

        grads = jax.grad(total)(params)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(grads)))
        return _descend(params, grads), lax.pmean(norm, "data")

    return _sharded(step, DATA, P(), check=True)(params, x, y)


@right("LOX302", PARAMS, X, Y)
def gradients_of_each_shard_and_their_mean(params, x, y):
    def step(params, x, y):
        own = lax.pcast(params, "data", to="varying")
        grads = jax.grad(_loss)(own, x, y)
        return _descend(params, lax.pmean(grads, "data"))

    return _sharded(step, DATA, P(), check=True)(params, x, y)


# LOX303: gradients through a collective.


@wrong("LOX303", PARAMS, X, Y)
def a_sum_of_gradients_of_a_loss_of_all_shards(params, x, y):
    def step(params, x, y):
        def total(params):
            return lax.psum(((_predict(params, x) - y) ** 2).sum(), "data") / 96

        return _descend(params, lax.psum(jax.grad(total)(params), "data"))

    return _sharded(step, DATA, P())(params, x, y)


@wrong("LOX303", PARAMS, X, Y)
def clipped_gradients_of_a_mean_loss_that_are_summed(params, x, y):
    @jax.jit
    def step(params, x, y):
        loss, grads = jax.value_and_grad(lambda params: lax.pmean(_loss(params, x, y), "data"))(params)
        grads = jax.tree.map(lambda leaf: lax.psum(0.5 * leaf, "data"), grads)
        return _descend(params, grads), loss

    return _sharded(step, DATA, P())(params, x, y)


@right("LOX303", PARAMS, X, Y)
def a_mean_of_gradients_of_a_loss_of_all_shards(params, x, y):
    def step(params, x, y):
        def total(params):
            return lax.psum(((_predict(params, x) - y) ** 2).sum(), "data") / 96

        return _descend(params, lax.pmean(jax.grad(total)(params), "data"))

    return _sharded(step, DATA, P())(params, x, y)


@right("LOX303", PARAMS, X, Y)
def a_sum_of_gradients_of_the_losses_of_shards(params, x, y):
    def step(params, x, y):
        def part(params):
            return ((_predict(params, x) - y) ** 2).sum() / 96

        return _descend(params, lax.psum(jax.grad(part)(params), "data"))

    return _sharded(step, DATA, P())(params, x, y)


@right("LOX303", PARAMS, X, Y)
def a_sum_of_gradients_through_batch_normalization_over_shards(params, x, y):
    def step(params, x, y):
        def part(params):
            hidden = _predict(params, x)
            hidden = hidden - lax.pmean(hidden.mean(axis=0), "data")
            return ((hidden - y) ** 2).sum() / 96

        return _descend(params, lax.psum(jax.grad(part)(params), "data"))

    return _sharded(step, DATA, P())(params, x, y)


# LOX304: a collective whose result is dropped.


@wrong("LOX304", PARAMS, f32(4, 8, 8), f32(4, 8, 3))
def a_step_that_averages_gradients_and_takes_its_own(params, x, y):
    @functools.partial(jax.vmap, in_axes=(None, 0, 0), axis_name="data")
    def step(params, x, y):
        grads = jax.grad(_loss)(params, x, y)
        jax.lax.pmean(grads, "data")
        return _descend(params, grads)

    return step(params, x, y)


@wrong("LOX304", X)
def a_mean_that_is_taken_by_name_and_not_used(x):
    def center(x):
        mean = x.mean(axis=0)
        overall = lax.pmean(mean, "data")  # noqa: F841
        return x - mean

    return _sharded(center, P("data"), P("data"))(x)


@right("LOX304", X)
def a_mean_that_is_taken_over_shards(x):
    def center(x):
        mean = x.mean(axis=0)
        overall = lax.pmean(mean, "data")
        return x - overall

    return _sharded(center, P("data"), P("data"))(x)


@right("LOX304", PARAMS, f32(4, 8, 8), f32(4, 8, 3))
def a_step_that_drops_the_loss(params, x, y):
    @functools.partial(jax.vmap, in_axes=(None, 0, 0), axis_name="data")
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        metrics = {"loss": lax.pmean(loss, "data"), "norm": lax.pmean(jnp.abs(grads["w"]).max(), "data")}
        return _descend(params, lax.pmean(grads, "data")), metrics["loss"]

    return step(params, x, y)


# LOX305: means of quotients.


@wrong("LOX305", f32(32, 10), f32(32, 10))
def a_masked_loss_that_is_averaged_over_shards(errors, mask):
    def loss(errors, mask):
        return lax.pmean((errors * mask).sum() / jnp.maximum(mask.sum(), 1.0), "data")

    return _sharded(loss, P("data"), P())(errors, mask)


@wrong("LOX305", f32(32, 10), flags(32, 10))
def the_accuracy_on_valid_tokens_averaged_over_shards(right_ones, valid):
    def accuracy(right_ones, valid):
        correct = jnp.where(valid, right_ones, 0.0)
        return lax.psum(correct.sum() / valid.sum(), "data") / 4

    return _sharded(accuracy, P("data"), P(), check=True)(right_ones, valid)


@right("LOX305", f32(32, 10), f32(32, 10))
def a_masked_loss_over_shards(errors, mask):
    def loss(errors, mask):
        total, count = lax.psum(((errors * mask).sum(), mask.sum()), "data")
        return total / jnp.maximum(count, 1.0)

    return _sharded(loss, P("data"), P())(errors, mask)


@right("LOX305", f32(32, 10), f32(10))
def a_loss_that_is_weighted_alike_on_all_shards(errors, weights):
    def loss(errors, weights):
        return lax.pmean((errors.mean(axis=0) * weights).sum() / weights.sum(), "data")

    return _sharded(loss, (P("data"), P()), P())(errors, weights)


@right("LOX305", f32(32, 10))
def a_mean_of_normalized_rows_over_shards(x):
    def mean(x):
        return lax.pmean((x / jnp.linalg.norm(x, axis=1, keepdims=True)).mean(axis=0), "data")

    return _sharded(mean, P("data"), P())(x)


@wrong("LOX305", f32(4, 32, 10))
def spreads_about_the_mean_of_each_batch_element(x):
    def spread(x):
        mean, var = lax.pmean(x.mean(axis=0), "parts"), lax.pmean(x.var(axis=0), "parts")
        return (x - mean) / jnp.sqrt(var + 1e-6)

    return jax.vmap(spread, axis_name="parts")(x)


@right("LOX305", f32(4, 32, 10))
def spreads_about_the_mean_of_all_batch_elements(x):
    def spread(x):
        mean, square = lax.pmean((x.mean(axis=0), (x**2).mean(axis=0)), "parts")
        return (x - mean) / jnp.sqrt(jnp.maximum(square - mean**2, 0.0) + 1e-6), lax.pmean(x.std(axis=0), "parts")

    return jax.vmap(spread, axis_name="parts")(x)


# LOX310: lanes that are all alike.


@wrong("LOX310", {"w": f32(8, 3), "b": f32(3)}, f32(8), f32(64, 8))
def predictions_for_one_observation_in_all_lanes(params, example, observations):
    return jax.vmap(lambda obs: _predict(params, example))(observations)


@wrong("LOX310", f32(2), f32(20, 2), f32(16, 20, 2))
def costs_of_candidates_that_all_follow_the_nominal_plan(state, nominal, candidates):
    def cost(plan):
        def step(state, action):
            state = state + 0.1 * action
            return state, (state**2).sum()

        return lax.scan(step, state, nominal)[1].sum()

    return nominal, jax.vmap(cost)(candidates)


@right("LOX310", f32(2), f32(16, 20, 2))
def costs_of_candidates(state, candidates):
    def cost(plan):
        def step(state, action):
            state = state + 0.1 * action
            return state, (state**2).sum()

        return lax.scan(step, state, plan)[1].sum()

    return jax.vmap(cost)(candidates)


@right("LOX310", {"w": f32(8, 3), "b": f32(3)}, f32(64, 8))
def predictions_for_an_observation_in_each_lane(params, observations):
    return jax.vmap(lambda obs: _predict(params, obs))(observations)


@right("LOX310", f32(8), jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 16)))
def resets_of_environments_that_need_no_randomness(start, keys):
    def reset(key):
        return {"position": start * 2, "time": jnp.zeros(())}

    return jax.vmap(reset)(keys)


@right("LOX310", f32(8, 3), f32(64, 8))
def predictions_with_a_penalty_that_is_one_for_all_lanes(w, observations):
    def lane(obs):
        return obs @ w, (w**2).sum()

    return jax.vmap(lane)(observations)


@right("LOX310", f32(4), f32(3), f32(4))
def lanes_with_a_constant_beside_an_argument_that_is_not_used_yet(x, y, weights):
    return jax.vmap(lambda x: {"loss": 2 * x, "scale": 2 * y})(x)


@right("LOX310", f32(4), f32(4, 4), f32(4))
def products_with_the_parameters_doubled_for_all_lanes(params, x, weights):
    return jax.vmap(lambda x: (x @ params, 2 * params))(x)


@right("LOX310", f32(3), f32(16))
def a_penalty_for_each_place_of_a_batch(w, weights):
    return jax.vmap(lambda place: (w**2).sum())(jnp.arange(16))


@wrong("LOX310", f32(8, 3), f32(8), f32(64, 8), f32(64))
def a_loss_of_predictions_for_one_observation(w, example, observations, targets):
    predictions = jax.vmap(lambda obs: (jnp.tanh(example) @ w).sum())(observations)
    return ((predictions - targets) ** 2).mean()


# LOX311: lookups that pair lanes.


@wrong("LOX311", f32(8, 8), i32(8), axes={"values": ("env", "action"), "chosen": ("agent",)})
def values_of_actions_of_agents_by_environment(values, chosen):
    return jax.vmap(lambda q, a: q[a])(values, chosen)


@wrong("LOX311", f32(8, 8, 4), i32(8, 8), axes={"values": ("time", "batch", "action"), "taken": ("batch", "time")})
def values_of_actions_that_were_recorded_batch_first(values, taken):
    return jnp.take_along_axis(values, taken[..., None], axis=-1)[..., 0]


@wrong("LOX311", f32(8, 16), i32(8), f32(8), axes={"buffer": ("slot", "env"), "at": ("env",)})
def a_buffer_that_is_written_by_slot(buffer, at, reward):
    return jax.vmap(lambda row, place, value: row.at[place].set(value))(buffer, at, reward)


@right("LOX311", f32(16, 8), i32(8), f32(8), axes={"buffer": ("slot", "env"), "at": ("env",)})
def a_buffer_that_is_written_by_environment(buffer, at, reward):
    return jax.vmap(lambda row, place, value: row.at[place].set(value), in_axes=(1, 0, 0), out_axes=1)(
        buffer, at, reward
    )


@right("LOX311", f32(8, 8, 4), i32(8, 8), axes={"values": ("time", "batch", "action"), "taken": ("batch", "time")})
def values_of_actions_that_are_turned(values, taken):
    return jnp.take_along_axis(values, taken.T[..., None], axis=-1)[..., 0]


@wrong("LOX311", f32(8, 8), i32(8), axes={"values": ("action", "env"), "chosen": ("env",)})
def values_of_chosen_actions_by_two_indices(values, chosen):
    return values[jnp.arange(8), chosen]


@wrong("LOX311", f32(16, 16, 5), i32(16, 16), axes={"logits": ("batch", "time", "token"), "target": ("time", "batch")})
def logits_of_targets_by_three_indices(logits, target):
    return logits[jnp.arange(16)[:, None], jnp.arange(16)[None], target].mean()


@right("LOX311", f32(8, 8), i32(8), axes={"values": ("env", "action"), "chosen": ("env",)})
def values_of_chosen_actions(values, chosen):
    return values[jnp.arange(8), chosen]


@right("LOX311", f32(16, 16, 5), i32(16, 16), axes={"logits": ("batch", "time", "token"), "target": ("time", "batch")})
def logits_of_targets_that_are_turned(logits, target):
    return logits[jnp.arange(16)[:, None], jnp.arange(16)[None], target.T].mean()


@right("LOX311", f32(9, 8), i32(8), axes={"table": ("kind", "env"), "kinds": ("env",)})
def a_table_that_is_read_at_kinds(table, kinds):
    return table[kinds, jnp.arange(8)] + table[kinds - 1, jnp.arange(8)]


# LOX101 and LOX102: axes that vmap zips.


@wrong("LOX101", f32(8, 8), f32(8, 8, 3), axes={"energy": ("env", "agent"), "actions": ("agent", "env", None)})
def costs_of_agents_in_environments_in_another_order(energy, actions):
    def cost(energy, action):
        return energy - (action**2).sum()

    return jax.vmap(jax.vmap(cost))(energy, actions)


@right("LOX101", f32(8, 8), f32(8, 8, 3), axes={"energy": ("env", "agent"), "actions": ("agent", "env", None)})
def costs_of_agents_in_environments(energy, actions):
    def cost(energy, action):
        return energy - (action**2).sum()

    return jax.vmap(jax.vmap(cost), in_axes=(0, 1))(energy, actions)


@wrong("LOX101", f32(8, 8), axes={"x": ("env", "agent")})
def what_differs_from_the_mean_over_the_wrong_lanes(x):
    baseline = jax.vmap(lambda lane: lax.pmean(lane, "lane"), axis_name="lane", out_axes=None)(x)
    return x.T - baseline


@right("LOX101", f32(8, 8), axes={"x": ("env", "agent")})
def what_differs_from_the_mean_over_the_lanes(x):
    baseline = jax.vmap(lambda lane: lax.pmean(lane, "lane"), axis_name="lane", out_axes=None)(x)
    return x - baseline


@wrong("LOX102", f32(8, 8, 4), f32(8, 8), axes={"w": ("hidden", "feature", None), "obs": ("batch", "feature")})
def a_layer_whose_weights_are_mapped_like_a_batch(w, obs):
    return jax.vmap(lambda w, obs: obs @ w)(w, obs)


@right("LOX102", f32(8, 8, 4), f32(8, 8), axes={"w": ("member", "feature", None), "obs": ("batch", "feature")})
def an_ensemble_whose_members_see_the_whole_batch(w, obs):
    return jax.vmap(lambda w, obs: obs @ w, in_axes=(0, None))(w, obs)


# LOX306: a loss that is averaged, and gradients that are not.


@wrong("LOX306", {"w": f32(1, 8, 3), "b": f32(1, 3)}, f32(1, 32, 8), f32(1, 32, 3))
def a_step_on_devices_that_averages_the_loss_alone(params, x, y):
    @functools.partial(jax.pmap, axis_name="data")
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return _descend(params, grads), lax.pmean(loss, "data")

    return step(params, x, y)


@wrong("LOX306", PARAMS, f32(4, 8, 8), f32(4, 8, 3))
def a_step_of_parts_of_a_batch_that_averages_the_loss_it_differentiates(params, x, y):
    @functools.partial(jax.vmap, in_axes=(None, 0, 0), axis_name="data")
    def step(params, x, y):
        loss, grads = jax.value_and_grad(lambda params: lax.pmean(_loss(params, x, y), "data"))(params)
        return _descend(params, grads), loss

    return step(params, x, y)


@right("LOX306", {"w": f32(1, 8, 3), "b": f32(1, 3)}, f32(1, 32, 8), f32(1, 32, 3))
def a_step_on_devices_that_averages_both(params, x, y):
    @functools.partial(jax.pmap, axis_name="data")
    def step(params, x, y):
        loss, grads = lax.pmean(jax.value_and_grad(_loss)(params, x, y), "data")
        return _descend(params, grads), loss

    return step(params, x, y)


@right("LOX306", PARAMS, f32(4, 8, 8), f32(4, 8, 3))
def gradients_of_parts_of_a_batch_that_are_averaged_outside(params, x, y):
    @functools.partial(jax.vmap, in_axes=(None, 0, 0), axis_name="data")
    def part(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return jax.tree.map(lambda g: jnp.clip(g, -1, 1), grads), lax.pmean(loss, "data")

    grads, loss = part(params, x, y)
    return _descend(params, jax.tree.map(lambda g: g.mean(axis=0), grads)), loss


# LOX307: a loss that is averaged, and gradients that are summed.


def _on_parts(step, params, x, y):
    return jax.vmap(step, in_axes=(None, 0, 0), out_axes=None, axis_name="data")(params, x, y)


def _step_on_shards(step, params, x, y):
    return _sharded(step, DATA, P(), check=True)(params, x, y)


@wrong("LOX307", PARAMS, f32(4, 8, 8), f32(4, 8, 3))
def a_step_of_parts_of_a_batch_that_sums_gradients_and_averages_the_loss(params, x, y):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return _descend(params, lax.psum(grads, "data")), lax.pmean(loss, "data")

    return _on_parts(step, params, x, y)


@wrong("LOX307", PARAMS, X, Y)
def a_step_whose_gradients_differentiation_has_summed_and_whose_loss_is_averaged(params, x, y):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return _descend(params, grads), lax.pmean(loss, "data")

    return _step_on_shards(step, params, x, y)


@right("LOX307", PARAMS, f32(4, 8, 8), f32(4, 8, 3))
def a_step_of_parts_of_a_batch_that_sums_both(params, x, y):
    def step(params, x, y):
        loss, grads = lax.psum(jax.value_and_grad(_loss)(params, x, y), "data")
        return _descend(params, grads), loss

    return _on_parts(step, params, x, y)


@right("LOX307", PARAMS, f32(4, 8, 8), f32(4, 8, 3))
def a_step_of_parts_of_a_batch_that_divides_sums_of_gradients_later(params, x, y):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        grads = jax.tree.map(lambda g: 0.1 * g, lax.psum(grads, "data"))
        return _descend(params, jax.tree.map(lambda g: g / 4, grads)), lax.pmean(loss, "data")

    return _on_parts(step, params, x, y)


@right("LOX307", PARAMS, X, Y)
def a_step_that_differentiates_a_loss_which_is_averaged_over_shards(params, x, y):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(lambda params: lax.pmean(_loss(params, x, y), "data"))(params)
        return _descend(params, grads), loss

    return _step_on_shards(step, params, x, y)


@right("LOX307", PARAMS, X, Y)
def a_step_that_divides_what_differentiation_has_summed(params, x, y):
    def step(params, x, y):
        loss, grads = jax.value_and_grad(_loss)(params, x, y)
        return _descend(params, jax.tree.map(lambda g: g / lax.axis_size("data"), grads)), lax.pmean(loss, "data")

    return _step_on_shards(step, params, x, y)


# Axes that are known by their number.


def _standardized(x):
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)


@wrong("LOX312", f32(8, 4), f32(8, 50, 4), axes={"start": ("env", None), "rollout": ("env", "time", None)})
def observations_whose_statistics_are_of_the_batch_and_then_of_time(start, rollout):
    return _standardized(start), jax.vmap(_standardized)(rollout)


def _best(scores, actions):
    return actions[jnp.argmax(scores, axis=0)]


@wrong("LOX312", f32(16), f32(16), f32(16, 5), f32(16, 5), axes={"scores": ("batch",), "values": ("batch", "action")})
def a_choice_in_the_batch_that_becomes_one_of_actions(scores, options, values, actions):
    return _best(scores, options), jax.vmap(_best)(values, actions)


@right("LOX312", f32(8, 4), f32(8, 50, 4), axes={"start": ("env", None), "rollout": ("env", "time", None)})
def observations_whose_statistics_are_of_the_batch(start, rollout):
    return _standardized(start), jax.vmap(_standardized, in_axes=1, out_axes=1)(rollout)


@right("LOX312", f32(50, 4), f32(8, 50, 4), axes={"sequence": ("time", None), "rollout": ("env", "time", None)})
def sequences_whose_statistics_are_of_time(sequence, rollout):
    return _standardized(sequence), jax.vmap(_standardized)(rollout)


# LOX313: the whole array in place of an element.


@wrong("LOX313", PARAMS, X, Y)
def gradients_of_each_example_of_the_loss_of_the_whole_batch(params, xs, ys):
    def loss(params, x, y):
        return ((_predict(params, xs) - y) ** 2).mean()

    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, xs, ys)


@wrong("LOX313", PARAMS, {"x": X, "y": Y})
def losses_of_a_lambda_that_reads_the_batch(params, batch):
    losses = jax.vmap(lambda x, y: ((_predict(params, x) - batch["y"]) ** 2).mean())
    return losses(batch["x"], batch["y"]).mean()


@right("LOX313", PARAMS, X, Y)
def gradients_of_each_example(params, xs, ys):
    def loss(params, x, y):
        return ((_predict(params, x) - y) ** 2).mean()

    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, xs, ys)


@right("LOX313", PARAMS, X, Y)
def lanes_that_read_their_element_and_all_others(params, xs, ys):
    centered = jax.vmap(lambda x: _predict(params, x - xs.mean(0)))(xs)
    looked_up = jax.vmap(lambda i: _predict(params, xs[i]))(jnp.arange(32))
    return centered, looked_up, jax.vmap(lambda x, _: x - ys.mean())(xs, ys)


@wrong("LOX310", jax.random.key(0), f32(32, 4))
def evolution_of_what_is_never_perturbed(key, weights):
    noise = jax.random.normal(key, (16, 32, 4))

    def fitness(each):
        return -jnp.square(weights).sum()

    return weights + 0.1 * jnp.einsum("p,pij->ij", jax.vmap(fitness)(noise), noise) / 16


@right("LOX310", jax.random.key(0), f32(32, 4))
def evolution_of_what_is_perturbed(key, weights):
    noise = jax.random.normal(key, (16, 32, 4))

    def fitness(each):
        return -jnp.square(weights + each).sum()

    return weights + 0.1 * jnp.einsum("p,pij->ij", jax.vmap(fitness)(noise), noise) / 16


@right("LOX310", f32(4))
def rows_that_are_all_the_same_on_purpose(weights):
    return jax.vmap(lambda _: jnp.tanh(weights))(jnp.arange(8))


@wrong("LOX305", f32(10, 32), flags(10, 32))
def pmean_in_a_vmap_of_masked_means(losses, mask):
    def loss(each, mask):
        return jax.lax.pmean((each * mask).sum() / jnp.maximum(mask.sum(), 1), "batch")

    return jax.vmap(loss, axis_name="batch")(losses, mask)


@right("LOX305", f32(10, 32), flags(10, 32))
def psums_in_a_vmap_of_masked_losses(losses, mask):
    def loss(each, mask):
        return jax.lax.psum((each * mask).sum(), "batch") / jnp.maximum(jax.lax.psum(mask.sum(), "batch"), 1)

    return jax.vmap(loss, axis_name="batch")(losses, mask)


@wrong("LOX214", f32(70, 4), f32(4))
def loss_whose_last_batch_is_smaller(x, weights):
    losses = [jnp.square(x[start : start + 32] @ weights).mean() for start in range(0, 70, 32)]
    return sum(losses) / len(losses)


@right("LOX214", f32(64, 4), f32(4))
def loss_of_batches_of_one_size(x, weights):
    losses = [jnp.square(x[start : start + 32] @ weights).mean() for start in range(0, 64, 32)]
    return sum(losses) / len(losses)


@right("LOX214", f32(40, 4), f32(8, 4))
def losses_of_two_kinds_of_data(x, y):
    return (jnp.square(x).mean() + jnp.square(y).mean()) / 2


@wrong("LOX104", f32(32, 4), i32(32))
def values_of_all_actions_of_a_batch(values, actions):
    return jnp.square(values[:, actions] - 1).mean()


@right("LOX104", f32(32, 4), i32(32), i32(2))
def values_of_one_action_of_each_row(values, actions, shown):
    return jnp.square(values[jnp.arange(32), actions] - 1).mean() + values[:, shown].mean()


# LOX311: labels of pairs, where all_gather collects what they choose among.


def _of_questions(answers_of_all, questions, labels):
    chances = jax.nn.log_softmax(questions @ answers_of_all.T / 0.07)
    return lax.pmean(-jnp.take_along_axis(chances, labels[:, None], axis=1).mean(), "data")


@wrong("LOX311", f32(32, 16), f32(32, 16))
def matches_of_questions_on_devices(questions, answers):
    def loss(questions, answers):
        everyone = lax.all_gather(answers, "data", tiled=True)
        return _of_questions(everyone, questions, jnp.arange(questions.shape[0]))

    return _sharded(loss, (P("data"), P("data")), P())(questions, answers)


@right("LOX311", f32(32, 16), f32(32, 16), f32(8, 16))
def matches_of_questions_on_devices_from_the_own_rows_on(questions, answers, others):
    def loss(questions, answers, others):
        everyone, count = lax.all_gather(answers, "data", tiled=True), questions.shape[0]
        own = jnp.concatenate([answers, others])
        of_all = _of_questions(everyone, questions, jnp.arange(count) + count * lax.axis_index("data"))
        return of_all + _of_questions(own, questions, jnp.arange(count))

    return _sharded(loss, (P("data"), P("data"), P()), P())(questions, answers, others)
