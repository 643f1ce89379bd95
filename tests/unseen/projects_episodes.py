"""Rollouts: what the end of an episode must cut, and which axis is time."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from unseen.case import Case, f32, flags, i32, key, shapes_of

CASES = []
add = CASES.append

GAMMA = 0.99
LAMBDA = 0.95
T, N = 32, 8


class Transition(NamedTuple):
    obs: jax.Array
    action: jax.Array
    reward: jax.Array
    done: jax.Array
    value: jax.Array


TRAJ = Transition(f32(T, N, 6), i32(T, N), f32(T, N), f32(T, N), f32(T, N))
TRAJ_AXES = {
    "traj/obs": ("time", "envs", None),
    "traj/action": ("time", "envs"),
    "traj/reward": ("time", "envs"),
    "traj/done": ("time", "envs"),
    "traj/value": ("time", "envs"),
    "last_val": ("envs",),
}


# GAE whose recursion runs on over the end.


def gae(traj, last_val):
    def step(carry, t):
        adv, next_value = carry
        not_done = 1.0 - t.done
        delta = t.reward + GAMMA * next_value * not_done - t.value
        adv = delta + GAMMA * LAMBDA * adv
        return (adv, t.value), adv

    _, advantages = jax.lax.scan(step, (jnp.zeros_like(last_val), last_val), traj, reverse=True, unroll=8)
    return advantages, advantages + traj.value


def gae_b(traj, last_val):
    def step(carry, t):
        adv, next_value = carry
        not_done = 1.0 - t.done
        delta = t.reward + GAMMA * next_value * not_done - t.value
        adv = delta + GAMMA * LAMBDA * not_done * adv
        return (adv, t.value), adv

    _, advantages = jax.lax.scan(step, (jnp.zeros_like(last_val), last_val), traj, reverse=True, unroll=8)
    return advantages, advantages + traj.value


add(
    Case(
        "gae recursion",
        "done cuts a part",
        gae,
        (gae_b,),
        (TRAJ, f32(N)),
        where="adv = delta + GAMMA * LAMBDA * adv\n",
        axes=TRAJ_AXES,
        source="Super-mario-bros-PPO#21: the recursion is not reset",
    )
)


# Discounted returns.


def discounted(rewards, dones, bootstrap):
    def step(ret, x):
        reward, done = x
        ret = reward + GAMMA * ret
        return ret, (ret, done)

    _, (returns, _) = jax.lax.scan(step, bootstrap, (rewards, dones), reverse=True)
    return returns


def discounted_b(rewards, dones, bootstrap):
    def step(ret, x):
        reward, done = x
        ret = reward + GAMMA * jnp.where(done, 0.0, ret)
        return ret, (ret, done)

    _, (returns, _) = jax.lax.scan(step, bootstrap, (rewards, dones), reverse=True)
    return returns


def reinforce(returns_fn):
    def loss(log_probs, rewards, dones, bootstrap):
        returns = returns_fn(rewards, dones, bootstrap)
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        return -(log_probs * returns).mean()

    return loss


add(
    Case(
        "reward to go",
        "done cuts a part",
        reinforce(discounted),
        (reinforce(discounted_b),),
        (f32(T, N), f32(T, N), flags(T, N), f32(N)),
        where="ret = reward + GAMMA * ret\n",
        axes={
            "log_probs": ("time", "envs"),
            "rewards": ("time", "envs"),
            "dones": ("time", "envs"),
            "bootstrap": ("envs",),
        },
        differentiate="log_probs",
        source="REINFORCE scripts in JAX: one return over several episodes",
    )
)


# LSTM whose cell state survives.


class MemoryCore(nn.Module):
    features: int = 16

    @nn.compact
    def __call__(self, carry, x):
        c, h = carry
        embedding, resets = x
        keep = 1.0 - resets[:, None]
        (c, h), y = nn.LSTMCell(self.features)((c, h * keep), embedding)
        return (c, h), y


class MemoryCoreB(nn.Module):
    features: int = 16

    @nn.compact
    def __call__(self, carry, x):
        c, h = carry
        embedding, resets = x
        keep = 1.0 - resets[:, None]
        (c, h), y = nn.LSTMCell(self.features)((c * keep, h * keep), embedding)
        return (c, h), y


def unroll(core):
    def run(params, state, embeddings, resets):
        step = lambda carry, x: core.apply(params, carry, x)
        return jax.lax.scan(step, state, (embeddings, resets))

    return run


def lstm_args():
    state = (f32(N, 16), f32(N, 16))
    params = shapes_of(MemoryCore().init, jax.random.key(0), state, (f32(N, 10), f32(N)))
    return params, state, f32(T, N, 10), f32(T, N)


add(
    Case(
        "lstm reset",
        "done cuts a part",
        unroll(MemoryCore()),
        (unroll(MemoryCoreB()),),
        lstm_args,
        where="(c, h), y = nn.LSTMCell(self.features)((c, h * keep), embedding)",
        axes={"embeddings": ("time", "envs", None), "resets": ("time", "envs")},
        source="Mava#1006, JaxMARL#127: resets of recurrent states",
    )
)


# Auto-reset of a batch of environments.


class EnvState(NamedTuple):
    pos: jax.Array
    vel: jax.Array
    t: jax.Array


def env_reset(rng):
    start = jax.random.uniform(rng, (2,), minval=-0.05, maxval=0.05)
    return EnvState(start, jnp.zeros(2), jnp.int32(0))


def env_step(state, action):
    force = jnp.where(action == 1, 1.0, -1.0)
    vel = state.vel + 0.02 * force - 0.01 * state.pos
    pos = state.pos + 0.02 * vel
    t = state.t + 1
    done = (jnp.abs(pos) > 2.4).any() | (t >= 200)
    return EnvState(pos, vel, t), 1.0 - 0.1 * jnp.sum(pos**2), done


def rollout_step(rng, states, actions):
    num = actions.shape[0]
    stepped, reward, done = jax.vmap(env_step)(states, actions)
    fresh = jax.vmap(env_reset)(jax.random.split(rng, num))
    states = jax.lax.cond(done.any(), lambda: fresh, lambda: stepped)
    return states, reward, done


def rollout_step_b(rng, states, actions):
    num = actions.shape[0]
    stepped, reward, done = jax.vmap(env_step)(states, actions)
    fresh = jax.vmap(env_reset)(jax.random.split(rng, num))
    pick = lambda a, b: jnp.where(done.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)
    return jax.tree.map(pick, fresh, stepped), reward, done


add(
    Case(
        "reset of all envs",
        "done cuts a part",
        rollout_step,
        (rollout_step_b,),
        (key(), EnvState(f32(N, 2), f32(N, 2), i32(N)), i32(N)),
        where="states = jax.lax.cond(done.any(), lambda: fresh, lambda: stepped)",
        axes={"actions": ("envs",), "states/t": ("envs",)},
        source="gymnax-like wrappers: lax.cond on the flags of all environments",
    )
)


# Frame stack.


class StackState(NamedTuple):
    frames: jax.Array
    env: EnvState


def observe(state):
    return jnp.concatenate([state.pos, state.vel])


def stacked_step(rng, state, action):
    env, reward, done = env_step(state.env, action)
    env = jax.tree.map(lambda a, b: jnp.where(done, a, b), env_reset(rng), env)
    frames = jnp.roll(state.frames, -1, axis=0).at[-1].set(observe(env))
    return StackState(frames, env), frames.reshape(-1), reward, done


def stacked_step_b(rng, state, action):
    env, reward, done = env_step(state.env, action)
    env = jax.tree.map(lambda a, b: jnp.where(done, a, b), env_reset(rng), env)
    frame = observe(env)
    rolled = jnp.roll(state.frames, -1, axis=0).at[-1].set(frame)
    rolled = jnp.where(done, jnp.broadcast_to(frame, rolled.shape), rolled)
    return StackState(rolled, env), rolled.reshape(-1), reward, done


add(
    Case(
        "frame stack",
        "done cuts a part",
        jax.vmap(stacked_step),
        (jax.vmap(stacked_step_b),),
        (
            jax.eval_shape(lambda: jax.random.split(jax.random.key(0), N)),
            StackState(f32(N, 4, 4), EnvState(f32(N, 2), f32(N, 2), i32(N))),
            i32(N),
        ),
        where="frames = jnp.roll(state.frames, -1, axis=0).at[-1].set(observe(env))",
        source="frame stacking wrappers of gymnax and brax users: frames of the last episode",
    )
)


# Episode statistics.


class LogState(NamedTuple):
    env: EnvState
    episode_return: jax.Array
    episode_length: jax.Array
    last_return: jax.Array
    last_length: jax.Array


def logged_step(state, action):
    env, reward, done = env_step(state.env, action)
    new_return = state.episode_return + reward
    new_length = state.episode_length + 1
    return LogState(
        env=env,
        episode_return=new_return * (1 - done),
        episode_length=new_length,
        last_return=jnp.where(done, new_return, state.last_return),
        last_length=jnp.where(done, new_length, state.last_length),
    ), (reward, done)


def logged_step_b(state, action):
    env, reward, done = env_step(state.env, action)
    new_return = state.episode_return + reward
    new_length = state.episode_length + 1
    return LogState(
        env=env,
        episode_return=new_return * (1 - done),
        episode_length=new_length * (1 - done),
        last_return=jnp.where(done, new_return, state.last_return),
        last_length=jnp.where(done, new_length, state.last_length),
    ), (reward, done)


def evaluate(step):
    def run(state, actions):
        state, (rewards, dones) = jax.lax.scan(jax.vmap(step), state, actions)
        return state.last_return.mean(), state.last_length.mean(), rewards.mean(), dones.sum()

    return run


LOG_STATE = LogState(EnvState(f32(N, 2), f32(N, 2), i32(N)), f32(N), i32(N), f32(N), i32(N))
add(
    Case(
        "episode length",
        "done cuts a part",
        evaluate(logged_step),
        (evaluate(logged_step_b),),
        (LOG_STATE, i32(T, N)),
        where="episode_length=new_length,",
        axes={"actions": ("time", "envs")},
        source="LogWrapper of PureJaxRL and what users change in it",
    )
)


# The observation that is returned after an automatic reset.


def auto_reset_step(rng, state, action):
    next_state, reward, done = env_step(state, action)
    obs = observe(next_state)
    reset_state = env_reset(rng)
    next_state = jax.tree.map(lambda a, b: jax.lax.select(done, a, b), reset_state, next_state)
    return obs, next_state, reward, done


def auto_reset_step_b(rng, state, action):
    stepped, reward, done = env_step(state, action)
    restart = env_reset(rng)
    state = jax.tree.map(lambda a, b: jax.lax.select(done, a, b), restart, stepped)
    return observe(state), state, reward, done


add(
    Case(
        "observation after reset",
        "done cuts a part",
        auto_reset_step,
        (auto_reset_step_b,),
        (key(), EnvState(f32(2), f32(2), i32()), i32()),
        where="obs = observe(next_state)",
        source="PureJaxRL#23, gymnax: which observation goes with done",
    )
)


# Statistics of observations.


class RunningStats(NamedTuple):
    mean: jax.Array
    var: jax.Array
    count: jax.Array


def update_stats(stats, obs):
    batch_mean = obs.mean(axis=(0, 2))
    batch_var = obs.var(axis=(0, 2))
    n = obs.shape[0] * obs.shape[1]
    delta = batch_mean - stats.mean
    total = stats.count + n
    mean = stats.mean + delta * n / total
    m2 = stats.var * stats.count + batch_var * n + delta**2 * stats.count * n / total
    return RunningStats(mean, m2 / total, total)


def update_stats_b(stats, obs):
    obs_mean = obs.mean(axis=(0, 1))
    obs_var = obs.var(axis=(0, 1))
    n = obs.shape[0] * obs.shape[1]
    delta = obs_mean - stats.mean
    total = stats.count + n
    mean = stats.mean + delta * n / total
    m2 = stats.var * stats.count + obs_var * n + delta**2 * stats.count * n / total
    return RunningStats(mean, m2 / total, total)


def normalized(update):
    def run(stats, obs):
        stats = update(stats, obs)
        return stats, jnp.clip((obs - stats.mean) / jnp.sqrt(stats.var + 1e-8), -10, 10)

    return run


add(
    Case(
        "observation statistics",
        "wrong axis",
        normalized(update_stats),
        (normalized(update_stats_b),),
        (RunningStats(f32(8), f32(8), f32()), f32(T, 8, 8)),
        where="batch_mean = obs.mean(axis=(0, 2))",
        axes={"obs": ("time", "envs", "features"), "stats/mean": ("features",), "stats/var": ("features",)},
        source="brax-like running statistics over the wrong axes, as many environments as features",
    )
)


# GAE over (envs, time).


def collect(params, rng, obs0, length):
    def step(carry, step_rng):
        obs = carry
        value = jnp.tanh(obs @ params["w"]).sum(-1)
        action = jax.random.normal(step_rng, obs.shape) * 0.1
        next_obs = 0.95 * obs + action
        reward = -jnp.sum(obs**2, axis=-1)
        done = (jnp.abs(next_obs).max(axis=-1) > 3.0).astype(jnp.float32)
        return next_obs, (reward, done, value)

    return jax.lax.scan(step, obs0, jax.random.split(rng, length))


def env_rollouts(params, rng, obs0, length):
    rngs = jax.random.split(rng, obs0.shape[0])
    return jax.vmap(lambda r, o: collect(params, r, o, length))(rngs, obs0)


def estimate(rewards, dones, values, last_value):
    def back(carry, x):
        gae, nxt = carry
        r, d, v = x
        delta = r + GAMMA * nxt * (1 - d) - v
        gae = delta + GAMMA * LAMBDA * (1 - d) * gae
        return (gae, v), gae

    _, adv = jax.lax.scan(back, (jnp.zeros_like(last_value), last_value), (rewards, dones, values), reverse=True)
    return adv


def train_iteration(params, rng, obs0):
    last_obs, (rewards, dones, values) = env_rollouts(params, rng, obs0, 16)
    last_value = jnp.tanh(last_obs @ params["w"]).sum(-1)
    advantages = estimate(rewards, dones, values, last_value)
    return last_obs, (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def train_iteration_b(params, rng, obs0):
    last_obs, traj = env_rollouts(params, rng, obs0, 16)
    rewards, dones, values = jax.tree.map(lambda x: x.swapaxes(0, 1), traj)
    last_value = jnp.tanh(last_obs @ params["w"]).sum(-1)
    adv = estimate(rewards, dones, values, last_value)
    return last_obs, (adv - adv.mean()) / (adv.std() + 1e-8)


add(
    Case(
        "gae of vmapped rollouts",
        "time and environments exchanged",
        train_iteration,
        (train_iteration_b,),
        ({"w": f32(4, 8)}, key(), f32(16, 4)),
        where="advantages = estimate(rewards, dones, values, last_value)",
        axes={"obs0": ("envs", None)},
        source="vmap of a scan in one train(rng): (envs, time) meets code for (time, envs)",
    )
)


# Unflattening.


def value_head(params, x):
    return (jnp.tanh(x @ params["w1"]) @ params["w2"])[..., 0]


def batched_values(params, obs):
    steps, envs = obs.shape[:2]
    flat = obs.swapaxes(0, 1).reshape(steps * envs, -1)
    values = value_head(params, flat)
    return values.reshape(steps, envs)


def batched_values_b(params, obs):
    steps, envs = obs.shape[:2]
    flat = obs.reshape(steps * envs, -1)
    return value_head(params, flat).reshape(steps, envs)


def td_errors(values_fn):
    def run(params, obs, rewards, dones):
        values = values_fn(params, obs)
        target = rewards[:-1] + GAMMA * (1 - dones[:-1]) * values[1:]
        return jnp.mean((jax.lax.stop_gradient(target) - values[:-1]) ** 2)

    return run


add(
    Case(
        "values of a flattened rollout",
        "reshape for transpose",
        td_errors(batched_values),
        (td_errors(batched_values_b),),
        ({"w1": f32(6, 32), "w2": f32(32, 1)}, f32(T, N, 6), f32(T, N), f32(T, N)),
        where="return values.reshape(steps, envs)",
        axes={"obs": ("time", "envs", None), "rewards": ("time", "envs"), "dones": ("time", "envs")},
        differentiate="params",
        source="flatten in one order, unflatten in another: PPO ports",
    )
)


# Agents and environments in one axis.


def batchify(per_agent):
    return jnp.stack(per_agent).reshape(len(per_agent) * per_agent[0].shape[0], -1)


def critic_rollout(params, hidden, obs, dones, world_state):
    num_agents = len(obs)
    actor_in = batchify(obs)
    resets = jnp.concatenate(dones)
    critic_in = jnp.repeat(world_state, num_agents, axis=0)
    hidden = hidden * (1.0 - resets[:, None])
    hidden = jnp.tanh(critic_in @ params["in"] + hidden @ params["rec"])
    return hidden, (hidden @ params["out"])[:, 0], actor_in @ params["pi"]


def critic_rollout_b(params, hidden, obs, dones, world_state):
    num_agents = len(obs)
    actor_in = batchify(obs)
    resets = jnp.concatenate(dones)
    critic_in = jnp.tile(world_state, (num_agents, 1))
    hidden = hidden * (1.0 - resets[:, None])
    hidden = jnp.tanh(critic_in @ params["in"] + hidden @ params["rec"])
    return hidden, (hidden @ params["out"])[:, 0], actor_in @ params["pi"]


MARL = {"in": f32(20, 16), "rec": f32(16, 16), "out": f32(16, 1), "pi": f32(6, 5)}
add(
    Case(
        "agents and environments",
        "reshape for transpose",
        critic_rollout,
        (critic_rollout_b,),
        (MARL, f32(3 * N, 16), [f32(N, 6)] * 3, [f32(N)] * 3, f32(N, 20)),
        where="critic_in = jnp.repeat(world_state, num_agents, axis=0)",
        axes={"obs": ("envs", None), "dones": ("envs",), "world_state": ("envs", None)},
        source="JaxMARL#85 and #169: batchify against repeat",
    )
)


# Shuffling what a recurrent network reads.


def recurrent_minibatches(rng, traj, minibatches=4):
    steps, envs = traj.reward.shape
    order = jax.random.permutation(rng, steps * envs)
    flat = jax.tree.map(lambda x: x.reshape((steps * envs,) + x.shape[2:])[order], traj)
    back = jax.tree.map(lambda x: x.reshape((steps, envs) + x.shape[1:]), flat)
    return jax.tree.map(lambda x: jnp.stack(jnp.split(x, minibatches, axis=1)), back)


def recurrent_minibatches_b(rng, traj, minibatches=4):
    _, envs = traj.reward.shape
    perm = jax.random.permutation(rng, envs)
    picked = jax.tree.map(lambda x: jnp.take(x, perm, axis=1), traj)
    return jax.tree.map(lambda x: jnp.stack(jnp.split(x, minibatches, axis=1)), picked)


def recurrent_epoch(minibatches):
    def run(params, rng, traj):
        def update(p, batch):
            def loss_fn(q):
                step = lambda h, x: (jnp.tanh(x[0] @ q["in"] + (h * (1 - x[1])[:, None]) @ q["rec"]),) * 2
                _, hs = jax.lax.scan(step, jnp.zeros((batch.obs.shape[1], 16)), (batch.obs, batch.done))
                return jnp.mean(((hs @ q["out"])[..., 0] - batch.value) ** 2)

            loss, grads = jax.value_and_grad(loss_fn)(p)
            return jax.tree.map(lambda a, g: a - 1e-3 * g, p, grads), loss

        return jax.lax.scan(update, params, minibatches(rng, traj))

    return run


add(
    Case(
        "recurrent minibatches",
        "time and environments exchanged",
        recurrent_epoch(recurrent_minibatches),
        (recurrent_epoch(recurrent_minibatches_b),),
        ({"in": f32(6, 16), "rec": f32(16, 16), "out": f32(16, 1)}, key(), TRAJ),
        where="order = jax.random.permutation(rng, steps * envs)",
        axes={name: labels for name, labels in TRAJ_AXES.items() if name != "last_val"},
        source="Mava#846: data are shuffled over time too",
    )
)


# The value that follows the last step.


def ppo_targets(params, traj, last_obs):
    last_val = value_head(params, last_obs)
    next_values = jnp.concatenate([traj.value[:, 1:], last_val[:, None]], axis=1)
    return traj.reward + GAMMA * (1 - traj.done) * next_values - traj.value


def ppo_targets_b(params, traj, last_obs):
    last_val = value_head(params, last_obs)
    following = jnp.concatenate([traj.value[1:], last_val[None]], axis=0)
    return traj.reward + GAMMA * (1 - traj.done) * following - traj.value


SQUARE = Transition(f32(16, 16, 6), i32(16, 16), f32(16, 16), f32(16, 16), f32(16, 16))
add(
    Case(
        "following values",
        "time and environments exchanged",
        ppo_targets,
        (ppo_targets_b,),
        ({"w1": f32(6, 32), "w2": f32(32, 1)}, SQUARE, f32(16, 6)),
        where="next_values = jnp.concatenate([traj.value[:, 1:], last_val[:, None]], axis=1)",
        axes={
            "traj/value": ("time", "envs"),
            "traj/reward": ("time", "envs"),
            "traj/done": ("time", "envs"),
            "last_obs": ("envs", None),
        },
        source="as many steps as environments: the shift along environments passes",
    )
)


# Sum of rewards.


def fitness(params, rng, obs0):
    _, (rewards, dones, _) = collect(params, rng, obs0, 64)
    alive = jnp.cumprod(1.0 - dones, axis=1)
    returns = jnp.sum(rewards * alive, axis=0)
    return returns.mean(), returns.std()


def fitness_b(params, rng, obs0):
    _, (rewards, dones, _) = collect(params, rng, obs0, 64)
    still = jnp.cumprod(1.0 - dones, axis=0)
    returns = jnp.sum(rewards * still, axis=0)
    return returns.mean(), returns.std()


add(
    Case(
        "alive mask",
        "wrong axis",
        fitness,
        (fitness_b,),
        ({"w": f32(4, 8)}, key(), f32(10, 4)),
        where="alive = jnp.cumprod(1.0 - dones, axis=1)",
        axes={"obs0": ("envs", None)},
        source="evosax and brax rollouts: the mask of finished episodes",
    )
)


# Images.


def to_channels_first(images):
    batch, height, width, channels = images.shape
    return images.reshape(batch, channels, height, width)


def to_channels_first_b(images):
    return jnp.transpose(images, (0, 3, 1, 2))


def conv_features(layout):
    def run(kernel, images):
        x = layout(images) / 255.0
        x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        return jax.nn.relu(x).mean(axis=(2, 3))

    return run


add(
    Case(
        "channels first",
        "reshape for transpose",
        conv_features(to_channels_first),
        (conv_features(to_channels_first_b),),
        (f32(16, 3, 3, 3), f32(4, 32, 32, 3)),
        where="return images.reshape(batch, channels, height, width)",
        axes={"images": ("batch", "height", "width", "channels")},
        source="ports from PyTorch to JAX: reshape for permute",
    )
)
