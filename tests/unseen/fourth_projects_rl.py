"""Mistakes as they were made in public projects: agents, environments, replay, planning and episodes."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from unseen.case import Case, f32, flags, i32, key

CASES = []


# Rules and starts of a grid world.

MOVES = jnp.array([[0, 1], [0, -1], [1, 0], [-1, 0]])


def draw_rule(rng):
    return jax.random.uniform(rng)


def place_agent(rule, rng):
    place = jax.random.randint(rng, (2,), 0, 9)
    return {"agent": place, "goal": jnp.where(rule > 0.5, 8 - place, place // 2)}


def walk(policy, state, rng):
    def step(state, rng):
        logits = policy[state["agent"][0], state["agent"][1]]
        action = jax.random.categorical(rng, logits)
        agent = jnp.clip(state["agent"] + MOVES[action], 0, 8)
        reward = -0.05 * jnp.abs(agent - state["goal"]).sum()
        return {**state, "agent": agent}, reward

    _, rewards = jax.lax.scan(step, state, jax.random.split(rng, 20))
    return rewards.sum()


def grid_returns(policy, rng):
    rng, _rng1, _rng2, walk_rng = jax.random.split(rng, num=4)
    rules = jax.vmap(draw_rule)(jax.random.split(rng, 6))
    states = jax.vmap(place_agent)(rules, jax.random.split(rng, 6))
    return jax.vmap(walk, in_axes=(None, 0, 0))(policy, states, jax.random.split(walk_rng, 6))


def grid_returns_b(policy, rng):
    rng, _rng1, _rng2, walk_rng = jax.random.split(rng, num=4)
    rules = jax.vmap(draw_rule)(jax.random.split(_rng1, 6))
    states = jax.vmap(place_agent)(rules, jax.random.split(_rng2, 6))
    return jax.vmap(walk, in_axes=(None, 0, 0))(policy, states, jax.random.split(walk_rng, 6))


def grid_gain(policy, rng):
    rule_rng, start_rng, walk_rng = jax.random.split(rng, num=3)
    rules = jax.vmap(draw_rule)(jax.random.split(rule_rng, 6))
    states = jax.vmap(place_agent)(rules, jax.random.split(start_rng, 6))
    evaluate = jax.vmap(walk, in_axes=(None, 0, 0))
    ours = evaluate(policy, states, jax.random.split(walk_rng, 6))
    uniform = evaluate(jnp.zeros_like(policy), states, jax.random.split(walk_rng, 6))
    return jnp.mean(ours - uniform)


CASES.append(
    Case(
        "rules and starts of a grid",
        "keys",
        grid_returns,
        (grid_returns_b, grid_gain),
        lambda: (f32(9, 9, 4), key()),
        where="rules = jax.vmap(draw_rule)(jax.random.split(rng, 6))\n"
        "    states = jax.vmap(place_agent)(rules, jax.random.split(rng, 6))",
        source="github.com/dunnolab/xland-minigrid/issues/42",
    )
)


# A recurrent team learner.


def gru_cell(params, h, x):
    z = jax.nn.sigmoid(x @ params["wz"] + h @ params["uz"])
    n = jnp.tanh(x @ params["wn"] + h @ params["un"])
    return (1.0 - z) * h + z * n


def unroll_q(params, obs, resets, reverse=False):
    def step(h, xs):
        x, reset = xs
        h = jnp.where(reset[:, None], jnp.zeros_like(h), h)
        h = gru_cell(params, h, x)
        return h, h @ params["out"]

    h = jnp.zeros((obs.shape[1], params["uz"].shape[0]))
    return jax.lax.scan(step, h, (obs, resets), reverse=reverse)[1]


def recurrent_td(params, target_params, obs, actions, rewards, dones):
    q = unroll_q(params, obs, dones)
    q_target = unroll_q(target_params, obs, dones)
    taken = jnp.take_along_axis(q, actions[..., None], axis=-1)[..., 0]
    best = jnp.take_along_axis(q_target, jnp.argmax(q, axis=-1)[..., None], axis=-1)[..., 0]
    target = rewards[:-1] + 0.99 * (1.0 - dones[:-1]) * best[1:]
    return jnp.mean((taken[:-1] - jax.lax.stop_gradient(target)) ** 2)


def recurrent_td_b(params, target_params, obs, actions, rewards, dones):
    starts = jnp.concatenate([jnp.ones_like(dones[:1]), dones[:-1]])
    q = unroll_q(params, obs, starts)
    q_target = unroll_q(target_params, obs, starts)
    taken = jnp.take_along_axis(q, actions[..., None], axis=-1)[..., 0]
    best = jnp.take_along_axis(q_target, jnp.argmax(q, axis=-1)[..., None], axis=-1)[..., 0]
    target = rewards[:-1] + 0.99 * (1.0 - dones[:-1]) * best[1:]
    return jnp.mean((taken[:-1] - jax.lax.stop_gradient(target)) ** 2)


def hindsight_regression(params, target_params, obs, actions, rewards, dones):
    def back(g, xs):
        reward, done = xs
        g = reward + 0.99 * (1.0 - done) * g
        return g, g

    _, returns = jax.lax.scan(back, jnp.zeros(rewards.shape[1]), (rewards, dones), reverse=True)
    q = unroll_q(params, obs, dones, reverse=True)
    anchor = unroll_q(target_params, obs, dones, reverse=True)
    taken = jnp.take_along_axis(q, actions[..., None], axis=-1)[..., 0]
    return jnp.mean((taken - returns) ** 2) + 0.1 * jnp.mean((q - jax.lax.stop_gradient(anchor)) ** 2)


def gru_shapes(inputs, hidden, outputs):
    return {
        "wz": f32(inputs, hidden),
        "uz": f32(hidden, hidden),
        "wn": f32(inputs, hidden),
        "un": f32(hidden, hidden),
        "out": f32(hidden, outputs),
    }


CASES.append(
    Case(
        "recurrent team learner",
        "episodes",
        recurrent_td,
        (recurrent_td_b, hindsight_regression),
        (gru_shapes(5, 8, 4), gru_shapes(5, 8, 4), f32(12, 3, 5), i32(12, 3), f32(12, 3), flags(12, 3)),
        where="q = unroll_q(params, obs, dones)\n    q_target = unroll_q(target_params, obs, dones)",
        axes={"obs": ("time", "envs", None), "rewards": ("time", "envs"), "dones": ("time", "envs")},
        differentiate="params",
        source="github.com/bold-lab-ai/JaxMARL/pull/127",
    )
)


# A wrapper that starts episodes anew.


class Cart(NamedTuple):
    pos: jax.Array
    vel: jax.Array
    time: jax.Array


def fresh_cart(rng):
    pos, vel = jax.random.uniform(rng, (2,), minval=-0.3, maxval=0.3)
    return Cart(pos, vel, jnp.zeros(()))


def cart_view(cart):
    return jnp.stack([cart.pos, cart.vel, cart.time / 5.0])


def push(cart, force):
    vel = 0.9 * cart.vel + 0.3 * (force - 0.5)
    return Cart(cart.pos + vel, vel, cart.time + 1.0)


def cart_value(params, obs):
    return jnp.tanh(obs @ params["w"]) @ params["v"]


def autoreset_step(cart, force, rng):
    moved = push(cart, force)
    terminated = jnp.abs(moved.pos) > 2.0
    truncated = moved.time >= 5
    cart = jax.tree.map(lambda a, b: jnp.where(terminated | truncated, a, b), fresh_cart(rng), moved)
    return cart, cart_view(cart), -jnp.abs(moved.pos), terminated, truncated


def autoreset_step_b(cart, force, rng):
    moved = push(cart, force)
    terminated = jnp.abs(moved.pos) > 2.0
    truncated = moved.time >= 5
    cart = jax.tree.map(lambda a, b: jnp.where(terminated | truncated, a, b), fresh_cart(rng), moved)
    return cart, cart_view(moved), -jnp.abs(moved.pos), terminated, truncated


def cart_rollout(env_step, rng, forces):
    def step(cart, xs):
        obs = cart_view(cart)
        cart, next_obs, reward, terminated, truncated = env_step(cart, *xs)
        return cart, (obs, next_obs, reward, terminated, truncated)

    first, *rest = jax.random.split(rng, forces.shape[0] + 1)
    return jax.lax.scan(step, fresh_cart(first), (forces, jnp.stack(rest)))[1]


def cart_critic(env_step):
    def loss(params, rng, forces):
        obs, next_obs, rewards, terminated, _ = cart_rollout(env_step, rng, forces)
        targets = rewards + 0.97 * (1.0 - terminated) * cart_value(params, next_obs)
        return jnp.mean((cart_value(params, obs) - jax.lax.stop_gradient(targets)) ** 2)

    return loss


def finite_horizon(cart, force, rng):
    moved = push(cart, force)
    over = (jnp.abs(moved.pos) > 2.0) | (moved.time >= 5)
    cart = jax.tree.map(functools.partial(jnp.where, over), fresh_cart(rng), moved)
    return cart, cart_view(cart), -jnp.abs(moved.pos), over, over


CASES.append(
    Case(
        "cart that starts anew",
        "episodes",
        cart_critic(autoreset_step),
        (cart_critic(autoreset_step_b), cart_critic(finite_horizon)),
        lambda: ({"w": f32(3, 8), "v": f32(8)}, key(), f32(23)),
        where="return cart, cart_view(cart), -jnp.abs(moved.pos), terminated, truncated",
        axes={"forces": ("time",)},
        differentiate="params",
        source="github.com/google-deepmind/mujoco_playground/pull/351",
    )
)


# Advantages of a hopper.


def hop(state, action):
    state = state + jnp.where(action > 0.5, 0.4, -0.3)
    done = jnp.abs(state) > 0.9
    return jnp.where(done, 0.0, state), 1.0 - jnp.abs(state), done


def hopper_values(weights, state):
    return weights[0] + weights[1] * state + weights[2] * state**2


def hopper_advantages(weights, start, actions, gamma=0.99, lam=0.95):
    def step(state, action):
        value = hopper_values(weights, state)
        state, reward, done = hop(state, action)
        return state, (value, reward, done)

    last, (values, rewards, dones) = jax.lax.scan(step, start, actions)
    advantages, running = [], jnp.zeros_like(last)
    for t in reversed(range(actions.shape[0])):
        if t == actions.shape[0] - 1:
            alive, next_value = 1.0 - dones[t], hopper_values(weights, last)
        else:
            alive, next_value = 1.0 - dones[t + 1], values[t + 1]
        delta = rewards[t] + gamma * alive * next_value - values[t]
        running = delta + gamma * lam * alive * running
        advantages.insert(0, running)
    return jnp.stack(advantages)


def hopper_advantages_b(weights, start, actions, gamma=0.99, lam=0.95):
    def step(state, action):
        value = hopper_values(weights, state)
        state, reward, done = hop(state, action)
        return state, (value, reward, done)

    last, (values, rewards, dones) = jax.lax.scan(step, start, actions)
    advantages, running = [], jnp.zeros_like(last)
    for t in reversed(range(actions.shape[0])):
        next_value = hopper_values(weights, last) if t == actions.shape[0] - 1 else values[t + 1]
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * alive * next_value - values[t]
        running = delta + gamma * lam * alive * running
        advantages.insert(0, running)
    return jnp.stack(advantages)


def hopper_advantages_c(weights, start, actions, gamma=0.99, lam=0.95):
    def step(carry, action):
        state, begun = carry
        value = hopper_values(weights, state)
        following, reward, done = hop(state, action)
        return (following, done), (value, reward, begun)

    first = (start, jnp.zeros(start.shape, bool))
    (last, last_begun), (values, rewards, begun) = jax.lax.scan(step, first, actions)
    advantages, running = [], jnp.zeros_like(last)
    for t in reversed(range(actions.shape[0])):
        if t == actions.shape[0] - 1:
            alive, next_value = 1.0 - last_begun, hopper_values(weights, last)
        else:
            alive, next_value = 1.0 - begun[t + 1], values[t + 1]
        delta = rewards[t] + gamma * alive * next_value - values[t]
        running = delta + gamma * lam * alive * running
        advantages.insert(0, running)
    return jnp.stack(advantages)


CASES.append(
    Case(
        "advantages of a hopper",
        "episodes",
        hopper_advantages,
        (hopper_advantages_b, hopper_advantages_c),
        (f32(3), f32(4), f32(10, 4)),
        where="alive, next_value = 1.0 - dones[t + 1], values[t + 1]",
        axes={"start": ("envs",), "actions": ("time", "envs")},
        source="github.com/anthonytorlucci/rlevo/issues/342",
    )
)


# Critics of a continuous agent.


def twin_q(params, obs, actions):
    x = jnp.concatenate([obs, actions], axis=-1)
    return tuple(jax.nn.relu(x @ p["w1"]) @ p["w2"] for p in (params["first"], params["second"]))


class TwinDelayed:
    gamma = 0.98
    noise = 0.2

    def policy(self, actor, obs):
        return jnp.tanh(obs @ actor)

    def targets(self, critic, actor, rng, batch):
        noise = self.noise * jax.random.normal(rng, batch["actions"].shape)
        following = jnp.clip(self.policy(actor, batch["next_obs"]) + jnp.clip(noise, -0.5, 0.5), -1.0, 1.0)
        q1, q2 = twin_q(critic, batch["next_obs"], following)
        return jax.lax.stop_gradient(batch["rewards"] + self.gamma * jnp.minimum(q1, q2))

    def loss(self, critic, slow_critic, slow_actor, rng, batch):
        target = self.targets(slow_critic, slow_actor, rng, batch)
        q1, q2 = twin_q(critic, batch["obs"], batch["actions"])
        return jnp.mean((q1 - target) ** 2 + (q2 - target) ** 2)


class TwinDelayedB(TwinDelayed):
    def targets(self, critic, actor, rng, batch):
        noise = self.noise * jax.random.normal(rng, batch["actions"].shape)
        following = jnp.clip(self.policy(actor, batch["next_obs"]) + jnp.clip(noise, -0.5, 0.5), -1.0, 1.0)
        q1, q2 = twin_q(critic, batch["next_obs"], following)
        live = 1.0 - batch["terminals"]
        return jax.lax.stop_gradient(batch["rewards"] + self.gamma * live * jnp.minimum(q1, q2))


class TwinDelayedC(TwinDelayed):
    def loss(self, critic, slow_critic, slow_actor, rng, batch):
        target = super().targets(slow_critic, slow_actor, rng, batch)
        q1, q2 = twin_q(critic, batch["obs"], batch["actions"])
        keep = 1.0 - batch["terminals"]
        return jnp.sum(keep * ((q1 - target) ** 2 + (q2 - target) ** 2)) / jnp.maximum(keep.sum(), 1.0)


def q_shapes(inputs):
    return {n: {"w1": f32(inputs, 16), "w2": f32(16)} for n in ("first", "second")}


CASES.append(
    Case(
        "critics of a continuous agent",
        "episodes",
        TwinDelayed().loss,
        (TwinDelayedB().loss, TwinDelayedC().loss),
        lambda: (
            q_shapes(9),
            q_shapes(9),
            f32(6, 3),
            key(),
            {
                "obs": f32(32, 6),
                "actions": f32(32, 3),
                "rewards": f32(32),
                "next_obs": f32(32, 6),
                "terminals": flags(32),
            },
        ),
        where='return jax.lax.stop_gradient(batch["rewards"] + self.gamma * jnp.minimum(q1, q2))',
        axes={"batch/rewards": ("batch",), "batch/terminals": ("batch",)},
        differentiate="critic",
        source="github.com/thu-ml/tianshou/issues/869",
    )
)


# An agent that explores now and then.


def act_sometimes(q_params, rng, observations, epsilon=0.3):
    q = jax.nn.relu(observations @ q_params["hidden"]) @ q_params["head"]
    batch, n_actions = q.shape
    explore = jax.random.uniform(rng, (batch,)) < epsilon
    random_actions = jax.random.randint(rng, (batch,), 0, n_actions)
    return jnp.where(explore, random_actions, q.argmax(axis=-1))


def act_sometimes_b(q_params, rng, observations, epsilon=0.3):
    q = jax.nn.relu(observations @ q_params["hidden"]) @ q_params["head"]
    batch, n_actions = q.shape
    explore_rng, action_rng = jax.random.split(rng)
    explore = jax.random.uniform(explore_rng, (batch,)) < epsilon
    random_actions = jax.random.randint(action_rng, (batch,), 0, n_actions)
    return jnp.where(explore, random_actions, q.argmax(axis=-1))


def act_sometimes_c(q_params, rng, observations, epsilon=0.3):
    q = jax.nn.relu(observations @ q_params["hidden"]) @ q_params["head"]
    batch, n_actions = q.shape
    whole_batch, rng = jax.random.split(rng)
    return jax.lax.cond(
        jax.random.uniform(whole_batch) < epsilon,
        lambda: jax.random.randint(rng, (batch,), 0, n_actions),
        lambda: jax.random.categorical(rng, 5.0 * q, axis=-1).astype(jnp.int32),
    )


CASES.append(
    Case(
        "agent that explores now and then",
        "keys",
        act_sometimes,
        (act_sometimes_b, act_sometimes_c),
        lambda: ({"hidden": f32(7, 12), "head": f32(12, 5)}, key(), f32(64, 7)),
        where="random_actions = jax.random.randint(rng, (batch,), 0, n_actions)\n"
        "    return jnp.where(explore, random_actions, q.argmax(axis=-1))",
        axes={"observations": ("batch", None)},
        source="review comments on DQN agents",
    )
)


# A runner of several tables.


def deal_runner(logits, rng, hands):
    def env_step(carry, _):
        rng, hands = carry
        act_rng, card_rng = jax.random.split(rng)
        hit = jax.random.categorical(act_rng, logits[jnp.minimum(hands, 21)])
        card = jax.random.randint(card_rng, hands.shape, 1, 11)
        reached = hands + hit * card
        bust = reached > 21
        reward = jnp.where(bust, -1.0, jnp.where(hit == 0, reached / 21.0, 0.0))
        hands = jnp.where(bust | (hit == 0), 2, reached)
        return (rng, hands), reward

    (_, hands), rewards = jax.lax.scan(env_step, (rng, hands), None, length=30)
    return hands, rewards.mean(axis=0)


def deal_runner_b(logits, rng, hands):
    def env_step(carry, _):
        rng, hands = carry
        rng, act_rng, card_rng = jax.random.split(rng, 3)
        hit = jax.random.categorical(act_rng, logits[jnp.minimum(hands, 21)])
        card = jax.random.randint(card_rng, hands.shape, 1, 11)
        reached = hands + hit * card
        bust = reached > 21
        reward = jnp.where(bust, -1.0, jnp.where(hit == 0, reached / 21.0, 0.0))
        hands = jnp.where(bust | (hit == 0), 2, reached)
        return (rng, hands), reward

    (_, hands), rewards = jax.lax.scan(env_step, (rng, hands), None, length=30)
    return hands, rewards.mean(axis=0)


def deal_runner_c(logits, rng, hands):
    def env_step(carry, turn):
        rng, hands = carry
        act_rng, card_rng = jax.random.split(jax.random.fold_in(rng, turn))
        hit = jax.random.categorical(act_rng, logits[jnp.minimum(hands, 21)])
        card = jax.random.randint(card_rng, hands.shape, 1, 11)
        reached = hands + hit * card
        bust = reached > 21
        reward = jnp.where(bust, -1.0, jnp.where(hit == 0, reached / 21.0, 0.0))
        hands = jnp.where(bust | (hit == 0), 2, reached)
        return (rng, hands), reward

    (_, hands), rewards = jax.lax.scan(env_step, (rng, hands), jnp.arange(30))
    return hands, rewards.mean(axis=0)


CASES.append(
    Case(
        "runner of several tables",
        "keys",
        deal_runner,
        (deal_runner_b, deal_runner_c),
        lambda: (f32(22, 2), key(), i32(6)),
        where="act_rng, card_rng = jax.random.split(rng)\n",
        source="questions about random keys in lax.scan",
    )
)


# Smoothed targets of a deterministic policy.


def smoothed_target(critic, actor, rng, obs, rewards, dones, sigma=0.2):
    action = jnp.tanh(obs @ actor)
    noise = jnp.clip(sigma * jax.random.normal(rng, action.shape[1:]), -0.5, 0.5)
    action = jnp.clip(action + noise, -1.0, 1.0)
    q = jnp.sum(jnp.tanh(obs @ critic["obs"] + action @ critic["act"]) * critic["head"], axis=-1)
    return rewards + 0.99 * (1.0 - dones) * q


def smoothed_target_b(critic, actor, rng, obs, rewards, dones, sigma=0.2):
    action = jnp.tanh(obs @ actor)
    noise = jnp.clip(sigma * jax.random.normal(rng, action.shape), -0.5, 0.5)
    action = jnp.clip(action + noise, -1.0, 1.0)
    q = jnp.sum(jnp.tanh(obs @ critic["obs"] + action @ critic["act"]) * critic["head"], axis=-1)
    return rewards + 0.99 * (1.0 - dones) * q


def perturbed_policy_values(critic, actor, rng, obs, rewards, dones, sigma=0.2):
    shift = sigma * jax.random.normal(rng, actor.shape[1:])
    action = jnp.tanh(obs @ actor + shift)
    q = jnp.sum(jnp.tanh(obs @ critic["obs"] + action @ critic["act"]) * critic["head"], axis=-1)
    values = rewards + 0.99 * (1.0 - dones) * q
    return values.mean(), shift


CASES.append(
    Case(
        "smoothed targets of a policy",
        "keys",
        smoothed_target,
        (smoothed_target_b, perturbed_policy_values),
        lambda: (
            {"obs": f32(11, 24), "act": f32(4, 24), "head": f32(24)},
            f32(11, 4),
            key(),
            f32(40, 11),
            f32(40),
            flags(40),
        ),
        where="noise = jnp.clip(sigma * jax.random.normal(rng, action.shape[1:]), -0.5, 0.5)",
        source="review comments on TD3 in JAX",
    )
)


# One loss for actor and critic.


def tanh_policy(actor, rng, obs):
    mean, log_std = jnp.split(obs @ actor, 2, axis=-1)
    std = jnp.exp(jnp.clip(log_std, -5.0, 1.0))
    noise = jax.random.normal(rng, mean.shape)
    raw = mean + std * noise
    log_prob = (-0.5 * noise**2 - jnp.log(std) - 0.5 * jnp.log(2.0 * jnp.pi)).sum(-1)
    squash = 2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))
    return jnp.tanh(raw), log_prob - squash.sum(-1)


def q_head(critic, obs, action):
    return jnp.tanh(jnp.concatenate([obs, action], -1) @ critic["w"]) @ critic["v"]


def soft_loss(params, target_critic, rng, obs, actions, rewards, next_obs, alpha=0.1):
    now, later = jax.random.split(rng)
    next_action, next_log_prob = tanh_policy(params["actor"], later, next_obs)
    backup = rewards + 0.99 * (q_head(target_critic, next_obs, next_action) - alpha * next_log_prob)
    critic_loss = jnp.mean((q_head(params["critic"], obs, actions) - jax.lax.stop_gradient(backup)) ** 2)
    new_action, log_prob = tanh_policy(params["actor"], now, obs)
    q_new = q_head(params["critic"], obs, new_action)
    actor_loss = jnp.mean(alpha * log_prob - q_new)
    return critic_loss + actor_loss


def soft_loss_b(params, target_critic, rng, obs, actions, rewards, next_obs, alpha=0.1):
    now, later = jax.random.split(rng)
    next_action, next_log_prob = tanh_policy(params["actor"], later, next_obs)
    backup = rewards + 0.99 * (q_head(target_critic, next_obs, next_action) - alpha * next_log_prob)
    critic_loss = jnp.mean((q_head(params["critic"], obs, actions) - jax.lax.stop_gradient(backup)) ** 2)
    new_action, log_prob = tanh_policy(params["actor"], now, obs)
    q_new = q_head(jax.lax.stop_gradient(params["critic"]), obs, new_action)
    actor_loss = jnp.mean(alpha * log_prob - q_new)
    return critic_loss + actor_loss


def soft_step(agents, target_critic, rng, obs, actions, rewards, next_obs, alpha=0.1):
    def critic_loss(critic, rng):
        next_action, next_log_prob = tanh_policy(agents["actor"], rng, next_obs)
        backup = rewards + 0.99 * (q_head(target_critic, next_obs, next_action) - alpha * next_log_prob)
        return jnp.mean((q_head(critic, obs, actions) - backup) ** 2)

    def actor_loss(actor, rng):
        new_action, log_prob = tanh_policy(actor, rng, obs)
        return jnp.mean(alpha * log_prob - q_head(agents["critic"], obs, new_action))

    now, later = jax.random.split(rng)
    return jax.grad(actor_loss)(agents["actor"], now), jax.grad(critic_loss)(agents["critic"], later)


CASES.append(
    Case(
        "one loss for actor and critic",
        "stop_gradient",
        soft_loss,
        (soft_loss_b, soft_step),
        lambda: (
            {"actor": f32(5, 4), "critic": {"w": f32(7, 16), "v": f32(16)}},
            {"w": f32(7, 16), "v": f32(16)},
            key(),
            f32(20, 5),
            f32(20, 2),
            f32(20),
            f32(20, 5),
        ),
        where='q_new = q_head(params["critic"], obs, new_action)',
        differentiate="params",
        source="joint losses of soft actor-critic agents",
    )
)


# Several epochs over the answers of a model.


def answer_log_probs(table, prompts, answers):
    logits = table["embed"][prompts] @ table["head"]
    return jnp.take_along_axis(jax.nn.log_softmax(logits), answers[..., None], axis=-1)[..., 0]


def group_advantages(rewards):
    return (rewards - rewards.mean(axis=1, keepdims=True)) / (rewards.std(axis=1, keepdims=True) + 1e-4)


def answer_epochs(ratio_of):
    def train(table, prompts, answers, rewards, old_logps, mask):
        advantages = group_advantages(rewards)[..., None]

        def loss(table):
            logps = answer_log_probs(table, prompts, answers)
            ratio = ratio_of(logps, old_logps)
            clipped = jnp.clip(ratio, 0.8, 1.2)
            objective = jnp.minimum(ratio * advantages, clipped * advantages)
            return -jnp.sum(objective * mask) / jnp.sum(mask)

        def epoch(table, _):
            value, grads = jax.value_and_grad(loss)(table)
            return jax.tree.map(lambda p, g: p - 0.5 * g, table, grads), value

        return jax.lax.scan(epoch, table, None, length=4)

    return train


def ratio_on_policy(logps, old_logps):
    return jnp.exp(logps - jax.lax.stop_gradient(logps))


def ratio_to_behaviour(logps, old_logps):
    return jnp.exp(logps - jax.lax.stop_gradient(old_logps))


def answer_single_step(table, prompts, answers, rewards, old_logps, mask):
    advantages = group_advantages(rewards)[..., None]

    def loss(table):
        logps = answer_log_probs(table, prompts, answers)
        score = jnp.exp(logps - jax.lax.stop_gradient(logps))
        gap = old_logps - logps
        penalty = jnp.exp(gap) - gap - 1.0
        return -jnp.sum((score * advantages - 0.04 * penalty) * mask) / jnp.sum(mask)

    value, grads = jax.value_and_grad(loss)(table)
    return jax.tree.map(lambda p, g: p - 0.5 * g, table, grads), value


CASES.append(
    Case(
        "epochs over answers of a model",
        "stop_gradient",
        answer_epochs(ratio_on_policy),
        (answer_epochs(ratio_to_behaviour), answer_single_step),
        (
            {"embed": f32(4, 9), "head": f32(9, 6)},
            i32(3, 5, 7),
            i32(3, 5, 7),
            f32(3, 5),
            f32(3, 5, 7),
            f32(3, 5, 7),
        ),
        where="return jnp.exp(logps - jax.lax.stop_gradient(logps))",
        axes={
            "rewards": ("prompts", "group"),
            "old_logps": ("prompts", "group", "length"),
            "mask": ("prompts", "group", "length"),
        },
        source="github.com/meta-pytorch/torchforge/pull/571",
    )
)


# A chain of memory.


class MemoryState(NamedTuple):
    context: jax.Array
    query: jax.Array
    time: jax.Array


class MemoryChain:
    length = 6

    def reset(self, rng):
        first, second = jax.random.split(rng)
        context = jax.random.bernoulli(first, 0.5, (3,)).astype(jnp.float32)
        return MemoryState(context, jax.random.randint(second, (), 0, 3), jnp.int32(0))

    def observe(self, state):
        shown = jnp.where(state.time == 0, state.context, 0.0)
        asked = jnp.where(state.time == self.length - 1, state.query, 0)
        return jnp.concatenate([shown, jnp.array([1.0]) * asked, (state.time / self.length)[None]])

    def step(self, state, action):
        following = state._replace(time=state.time + 1)
        right = action == state.context[state.query].astype(jnp.int32)
        reward = jnp.where(following.time == self.length, jnp.where(right, 1.0, -1.0), 0.0)
        return following, self.observe(state), reward

    def play(self, policy, rng):
        def act(carry, _):
            state, obs = carry
            action = jnp.argmax(obs @ policy)
            state, obs, reward = self.step(state, action)
            return (state, obs), (obs, reward)

        state = self.reset(rng)
        (_, _), (views, rewards) = jax.lax.scan(act, (state, self.observe(state)), None, length=self.length)
        return views, rewards.sum()


class MemoryChainB(MemoryChain):
    def step(self, state, action):
        following = state._replace(time=state.time + 1)
        right = action == state.context[state.query].astype(jnp.int32)
        reward = jnp.where(following.time == self.length, jnp.where(right, 1.0, -1.0), 0.0)
        return following, self.observe(following), reward


class MemoryChainC(MemoryChain):
    def step(self, state, action):
        asked = self.observe(state)
        right = action == state.context[state.query].astype(jnp.int32)
        reward = jnp.where(asked[-1] * self.length >= self.length - 1, jnp.where(right, 1.0, -1.0), 0.0)
        state = state._replace(time=state.time + 1)
        return state, self.observe(state), reward


CASES.append(
    Case(
        "chain of memory",
        "state",
        MemoryChain().play,
        (MemoryChainB().play, MemoryChainC().play),
        lambda: (f32(5, 2), key()),
        where="return following, self.observe(state), reward",
        source="github.com/RobertTLange/gymnax/pull/36",
    )
)


# A wrapper that keeps returns of episodes.


class LogState(NamedTuple):
    env: jax.Array
    running: jax.Array
    length: jax.Array
    finished: jax.Array
    finished_length: jax.Array


def drift_step(env, action):
    env = env + 0.5 * action - 0.1
    done = jnp.abs(env) > 1.2
    return jnp.where(done, 0.0, env), 1.0 - env**2, done


def logged_step(state, action):
    env, reward, done = drift_step(state.env, action)
    running = (state.running + reward) * (1.0 - done)
    length = (state.length + 1) * (1 - done)
    return LogState(
        env=env,
        running=running,
        length=length,
        finished=state.finished * (1.0 - done) + running * done,
        finished_length=state.finished_length * (1 - done) + length * done,
    )


def logged_step_b(state, action):
    env, reward, done = drift_step(state.env, action)
    running = state.running + reward
    length = state.length + 1
    return LogState(
        env=env,
        running=running * (1.0 - done),
        length=length * (1 - done),
        finished=state.finished * (1.0 - done) + running * done,
        finished_length=state.finished_length * (1 - done) + length * done,
    )


def logged_step_c(state, action):
    env, reward, done = drift_step(state.env, action)
    total, steps = state.running + reward, state.length + 1
    running = total * (1.0 - done)
    length = steps * (1 - done)
    return LogState(
        env=env,
        running=running,
        length=length,
        finished=jnp.where(done, total, state.finished),
        finished_length=jnp.where(done, steps, state.finished_length),
    )


def logged_run(step):
    def run(start, actions):
        zeros, counts = jnp.zeros_like(start), jnp.zeros(start.shape, jnp.int32)
        state = LogState(start, zeros, counts, zeros, counts)
        state, _ = jax.lax.scan(lambda s, a: (step(s, a), None), state, actions)
        return state.finished.mean(), state.finished_length, state.env

    return run


CASES.append(
    Case(
        "returns of episodes kept",
        "state",
        logged_run(logged_step),
        (logged_run(logged_step_b), logged_run(logged_step_c)),
        (f32(5), f32(18, 5)),
        where="running = (state.running + reward) * (1.0 - done)\n    length = (state.length + 1) * (1 - done)",
        source="log wrappers of gymnax ports",
    )
)


# Slow weights of a value network.


class Learner(NamedTuple):
    params: dict
    target_params: dict
    opt_state: optax.OptState
    steps: jax.Array


def learner_q(params, obs):
    return jax.nn.relu(obs @ params["w"] + params["b"]) @ params["head"]


def learner_update(learner, optimizer, batch):
    obs, actions, rewards, next_obs = batch

    def loss(params):
        q = jnp.take_along_axis(learner_q(params, obs), actions[:, None], axis=1)[:, 0]
        best = learner_q(learner.target_params, next_obs).max(axis=-1)
        return jnp.mean(optax.huber_loss(q, jax.lax.stop_gradient(rewards + 0.9 * best)))

    value, grads = jax.value_and_grad(loss)(learner.params)
    updates, opt_state = optimizer.update(grads, learner.opt_state, learner.params)
    return value, optax.apply_updates(learner.params, updates), opt_state


def slow_updates(params, batches):
    optimizer = optax.adam(0.01)
    first = Learner(params, params, optimizer.init(params), jnp.int32(0))

    def step(learner, batch):
        value, params, opt_state = learner_update(learner, optimizer, batch)
        target_params = optax.incremental_update(params, learner.target_params, 0.2)
        metrics = {"loss": value, "drift": optax.global_norm(target_params)}
        return learner._replace(params=params, opt_state=opt_state, steps=learner.steps + 1), metrics

    learner, metrics = jax.lax.scan(step, first, batches)
    return learner.params, metrics["loss"]


def slow_updates_b(params, batches):
    optimizer = optax.adam(0.01)
    first = Learner(params, params, optimizer.init(params), jnp.int32(0))

    def step(learner, batch):
        value, params, opt_state = learner_update(learner, optimizer, batch)
        target_params = optax.incremental_update(params, learner.target_params, 0.2)
        metrics = {"loss": value, "drift": optax.global_norm(target_params)}
        return Learner(params, target_params, opt_state, learner.steps + 1), metrics

    learner, metrics = jax.lax.scan(step, first, batches)
    return learner.params, metrics["loss"]


def frozen_rounds(params, batches):
    optimizer = optax.adam(0.01)

    def round_of(target_params, batch):
        first = Learner(target_params, target_params, optimizer.init(target_params), jnp.int32(0))

        def step(learner, _):
            value, params, opt_state = learner_update(learner, optimizer, batch)
            return learner._replace(params=params, opt_state=opt_state, steps=learner.steps + 1), value

        learner, values = jax.lax.scan(step, first, None, length=3)
        return learner.params, values[-1]

    return jax.lax.scan(round_of, params, batches)


CASES.append(
    Case(
        "slow weights of a value network",
        "state",
        slow_updates,
        (slow_updates_b, frozen_rounds),
        ({"w": f32(6, 10), "b": f32(10), "head": f32(10, 4)}, (f32(8, 16, 6), i32(8, 16), f32(8, 16), f32(8, 16, 6))),
        where="return learner._replace(params=params, opt_state=opt_state, steps=learner.steps + 1), metrics",
        source="target networks in ports of DQN",
    )
)


# Memory of a recurrent policy between rollouts.


def memory_policy(params, h, x):
    h = jnp.tanh(x @ params["in"] + h @ params["rec"])
    return h, jax.nn.log_softmax(h @ params["pi"]), h @ params["v"]


def memory_rollout(params, h, world, rng):
    def step(carry, rng):
        h, world = carry
        h, logp, value = memory_policy(params, h, world)
        action = jax.random.categorical(rng, logp)
        reward = jnp.cos(world.sum(-1) + action)
        moved = 0.8 * world + 0.1 * action[:, None]
        return (h, moved), (world, action, reward, value)

    return jax.lax.scan(step, (h, world), jax.random.split(rng, 9))


def memory_pg(params, h, obs, actions, advantages):
    def step(h, x):
        h, logp, value = memory_policy(params, h, x)
        return h, (logp, value)

    _, (logps, values) = jax.lax.scan(step, h, obs)
    taken = jnp.take_along_axis(logps, actions[..., None], axis=-1)[..., 0]
    return -jnp.mean(taken * advantages), values


def memory_train(params, h0, world, rng):
    def update(carry, rng):
        params, h, world = carry
        (h, world), (obs, actions, rewards, values) = memory_rollout(params, h, world, rng)
        advantages = jnp.cumsum(rewards[::-1], axis=0)[::-1] - values
        grads, _ = jax.grad(memory_pg, has_aux=True)(params, h, obs, actions, advantages)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return (params, h, world), rewards.mean()

    return jax.lax.scan(update, (params, h0, world), jax.random.split(rng, 5))


def memory_train_b(params, h0, world, rng):
    def update(carry, rng):
        params, h_start, world = carry
        (h, world), (obs, actions, rewards, values) = memory_rollout(params, h_start, world, rng)
        advantages = jnp.cumsum(rewards[::-1], axis=0)[::-1] - values
        grads, _ = jax.grad(memory_pg, has_aux=True)(params, h_start, obs, actions, advantages)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return (params, h, world), rewards.mean()

    return jax.lax.scan(update, (params, h0, world), jax.random.split(rng, 5))


def memory_train_c(params, h0, world, rng):
    def update(carry, rng):
        params, h, world = carry
        (h, world), (obs, actions, rewards, values) = memory_rollout(params, h, world, rng)
        _, _, bootstrap = memory_policy(params, h, world)
        advantages = jnp.cumsum(rewards[::-1], axis=0)[::-1] + bootstrap - values
        grads, _ = jax.grad(memory_pg, has_aux=True)(params, carry[1], obs, actions, advantages)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        return (params, h, world), rewards.mean()

    return jax.lax.scan(update, (params, h0, world), jax.random.split(rng, 5))


CASES.append(
    Case(
        "memory between rollouts",
        "state",
        memory_train,
        (memory_train_b, memory_train_c),
        lambda: (
            {"in": f32(4, 7), "rec": f32(7, 7), "pi": f32(7, 3), "v": f32(7)},
            f32(6, 7),
            f32(6, 4),
            key(),
        ),
        where="grads, _ = jax.grad(memory_pg, has_aux=True)(params, h, obs, actions, advantages)",
        axes={"h0": ("envs", None), "world": ("envs", None)},
        source="ports of purejaxrl ppo_rnn",
    )
)


# Scales of observations and rewards.


class Moments(NamedTuple):
    mean: jax.Array
    var: jax.Array
    count: jax.Array


def merge_moments(moments, batch):
    n = batch.shape[0]
    total = moments.count + n
    mean = moments.mean + (batch.mean(axis=0) - moments.mean) * n / total
    delta = batch.mean(axis=0) - mean
    m2 = moments.var * moments.count + batch.var(axis=0) * n + delta**2 * moments.count * n / total
    return Moments(mean, m2 / total, total)


def merge_moments_b(moments, batch):
    n = batch.shape[0]
    total = moments.count + n
    delta = batch.mean(axis=0) - moments.mean
    mean = moments.mean + delta * n / total
    m2 = moments.var * moments.count + batch.var(axis=0) * n + delta**2 * moments.count * n / total
    return Moments(mean, m2 / total, total)


def merge_one_by_one(moments, batch):
    def add(moments, x):
        total = moments.count + 1
        before = x - moments.mean
        mean = moments.mean + before / total
        after = x - mean
        m2 = moments.var * moments.count + before * after
        return Moments(mean, m2 / total, total), None

    return jax.lax.scan(add, moments, batch)[0]


def scaled_policy(merge):
    def run(policy, observations):
        width = observations.shape[-1]
        first = Moments(jnp.zeros(width), jnp.ones(width), jnp.float32(1e-4))

        def step(moments, obs):
            moments = merge(moments, obs)
            scaled = jnp.clip((obs - moments.mean) / jnp.sqrt(moments.var + 1e-8), -10.0, 10.0)
            return moments, jnp.tanh(scaled @ policy)

        return jax.lax.scan(step, first, observations)

    return run


CASES.append(
    Case(
        "scales of observations",
        "numbers",
        scaled_policy(merge_moments),
        (scaled_policy(merge_moments_b), scaled_policy(merge_one_by_one)),
        (f32(5, 2), f32(7, 12, 5)),
        where="delta = batch.mean(axis=0) - mean\n",
        source="ports of RunningMeanStd",
    )
)


# A ring of transitions.


class Ring(NamedTuple):
    data: jax.Array
    position: jax.Array


def ring_insert(ring, rows):
    data = jax.lax.dynamic_update_slice(ring.data, rows, (ring.position, 0))
    return Ring(data, (ring.position + rows.shape[0]) % ring.data.shape[0])


def ring_insert_b(ring, rows):
    capacity, n = ring.data.shape[0], rows.shape[0]
    slots = (ring.position + jnp.arange(n)) % capacity
    return Ring(ring.data.at[slots].set(rows), (ring.position + n) % capacity)


def ring_insert_c(ring, rows):
    capacity, n = ring.data.shape[0], rows.shape[0]
    shift = jnp.minimum(0, capacity - ring.position - n)
    data = jnp.roll(ring.data, shift, axis=0)
    position = ring.position + shift
    data = jax.lax.dynamic_update_slice_in_dim(data, rows, position, axis=0)
    return Ring(data, (position + n) % (capacity + 1))


def ring_filling(insert):
    def fill(weights, chunks):
        ring = Ring(jnp.zeros((16, chunks.shape[-1])), jnp.int32(0))

        def add(ring, rows):
            ring = insert(ring, rows)
            newest = ring.data @ weights
            return ring, newest.mean()

        return jax.lax.scan(add, ring, chunks)

    return fill


CASES.append(
    Case(
        "ring of transitions",
        "index",
        ring_filling(ring_insert),
        (ring_filling(ring_insert_b), ring_filling(ring_insert_c)),
        (f32(4), f32(9, 5, 4)),
        where="data = jax.lax.dynamic_update_slice(ring.data, rows, (ring.position, 0))",
        source="github.com/adaptive-intelligent-robotics/QDax/issues/71",
    )
)


# A young memory.


class Replay:
    capacity = 64

    def init(self, width):
        return {"rows": jnp.zeros((self.capacity, width)), "size": jnp.int32(0), "next": jnp.int32(0)}

    def add(self, memory, row):
        rows = memory["rows"].at[memory["next"]].set(row)
        size = jnp.minimum(memory["size"] + 1, self.capacity)
        return {"rows": rows, "size": size, "next": (memory["next"] + 1) % self.capacity}

    def sample(self, memory, rng, n):
        chosen = jax.random.randint(rng, (n,), 0, self.capacity)
        return memory["rows"][chosen]

    def train(self, weights, rng, stream):
        def step(carry, xs):
            weights, memory = carry
            row, rng = xs
            memory = self.add(memory, row)
            x, y = jnp.split(self.sample(memory, rng, 8), [row.shape[0] - 1], axis=-1)
            grads = jax.grad(lambda w: jnp.mean((x @ w - y[:, 0]) ** 2))(weights)
            return (weights - 0.1 * grads, memory), None

        first = (weights, self.init(stream.shape[-1]))
        (weights, memory), _ = jax.lax.scan(step, first, (stream, jax.random.split(rng, stream.shape[0])))
        return weights, memory["size"]


class ReplayB(Replay):
    def sample(self, memory, rng, n):
        chosen = jax.random.randint(rng, (n,), 0, memory["size"])
        return memory["rows"][chosen]


class ReplayC(Replay):
    def sample(self, memory, rng, n):
        rank = jax.random.randint(rng, (n,), 0, self.capacity)
        age = rank % jnp.maximum(memory["size"], 1)
        return memory["rows"][(memory["next"] - 1 - age) % self.capacity]


CASES.append(
    Case(
        "young memory",
        "index",
        Replay().train,
        (ReplayB().train, ReplayC().train),
        lambda: (f32(5), key(), f32(30, 6)),
        where="chosen = jax.random.randint(rng, (n,), 0, self.capacity)",
        source="github.com/huggingface/lerobot/pull/918",
    )
)


# Sums of the next few rewards.


def few_step_targets(values, rewards, discounts, n=3):
    total = jnp.zeros_like(rewards)
    weight = jnp.ones_like(rewards)
    for k in range(n):
        total = total + weight * jnp.roll(rewards, -k, axis=0)
        weight = weight * jnp.roll(discounts, -k, axis=0)
    bootstrap = jnp.concatenate([values[n:], jnp.broadcast_to(values[-1:], (n, *values.shape[1:]))])
    return total + weight * bootstrap[: rewards.shape[0]]


def few_step_targets_b(values, rewards, discounts, n=3):
    steps = rewards.shape[0]
    padding = [(0, n)] + [(0, 0)] * (rewards.ndim - 1)
    rewards = jnp.pad(rewards, padding)
    discounts = jnp.pad(discounts, padding, constant_values=1.0)
    total, weight = 0.0, 1.0
    for k in range(n):
        total = total + weight * rewards[k : k + steps]
        weight = weight * discounts[k : k + steps]
    bootstrap = jnp.concatenate([values[n:], jnp.broadcast_to(values[-1:], (n, *values.shape[1:]))])
    return total + weight * bootstrap[:steps]


def few_step_targets_c(values, rewards, discounts, n=3):
    steps = jnp.arange(rewards.shape[0])[:, None]
    total, weight = jnp.zeros_like(rewards), jnp.ones_like(rewards)
    for k in range(n):
        inside = steps + k < rewards.shape[0]
        total = total + weight * jnp.where(inside, jnp.roll(rewards, -k, axis=0), 0.0)
        weight = weight * jnp.where(inside, jnp.roll(discounts, -k, axis=0), 1.0)
    return total + weight * values[jnp.minimum(steps[:, 0] + n, values.shape[0] - 1)]


def few_step_loss(targets_of):
    def loss(params, slow_params, obs, rewards, discounts):
        values = jnp.tanh(obs @ params["w"]) @ params["v"]
        slow = jnp.tanh(obs @ slow_params["w"]) @ slow_params["v"]
        targets = jax.lax.stop_gradient(targets_of(slow, rewards, discounts))
        return jnp.mean((values[:-1] - targets) ** 2)

    return loss


CASES.append(
    Case(
        "sums of the next few rewards",
        "index",
        few_step_loss(few_step_targets),
        (few_step_loss(few_step_targets_b), few_step_loss(few_step_targets_c)),
        ({"w": f32(4, 9), "v": f32(9)}, {"w": f32(4, 9), "v": f32(9)}, f32(13, 6, 4), f32(12, 6), f32(12, 6)),
        where="total = total + weight * jnp.roll(rewards, -k, axis=0)\n"
        "        weight = weight * jnp.roll(discounts, -k, axis=0)",
        axes={"obs": (None, "envs", None), "rewards": ("time", "envs"), "discounts": ("time", "envs")},
        differentiate="params",
        source="n-step returns written with jnp.roll",
    )
)


# Entropy in the target of a critic.


def gaussian_action(actor, rng, obs):
    mean = obs @ actor["mean"]
    std = jax.nn.softplus(obs @ actor["std"]) + 1e-3
    action = mean + std * jax.random.normal(rng, mean.shape)
    return action, jax.scipy.stats.norm.logpdf(action, mean, std)


def critic_value(critic, obs, action):
    h = jax.nn.silu(jnp.concatenate([obs, action], axis=-1) @ critic["w1"] + critic["b1"])
    return jnp.squeeze(h @ critic["w2"], axis=-1)


def entropy_target_loss(critic, slow_critic, actor, rng, obs, actions, rewards, next_obs):
    following, log_prob = gaussian_action(actor, rng, next_obs)
    log_prob = log_prob.sum(axis=-1, keepdims=True)
    soft_value = critic_value(slow_critic, next_obs, following) - 0.2 * log_prob
    target = jax.lax.stop_gradient(rewards + 0.99 * soft_value)
    return 0.5 * jnp.mean((critic_value(critic, obs, actions) - target) ** 2)


def entropy_target_loss_b(critic, slow_critic, actor, rng, obs, actions, rewards, next_obs):
    following, log_prob = gaussian_action(actor, rng, next_obs)
    log_prob = log_prob.sum(axis=-1)
    soft_value = critic_value(slow_critic, next_obs, following) - 0.2 * log_prob
    target = jax.lax.stop_gradient(rewards + 0.99 * soft_value)
    return 0.5 * jnp.mean((critic_value(critic, obs, actions) - target) ** 2)


def entropy_target_loss_c(critic, slow_critic, actor, rng, obs, actions, rewards, next_obs):
    rngs = jax.random.split(rng, 4)
    following, log_prob = jax.vmap(gaussian_action, in_axes=(None, 0, None))(actor, rngs, next_obs)
    values = jax.vmap(critic_value, in_axes=(None, None, 0))(slow_critic, next_obs, following)
    soft_values = values - 0.2 * log_prob.sum(axis=-1)
    targets = jax.lax.stop_gradient(rewards + 0.99 * soft_values)
    return 0.5 * jnp.mean((critic_value(critic, obs, actions) - targets) ** 2)


CASES.append(
    Case(
        "entropy in the target of a critic",
        "broadcast",
        entropy_target_loss,
        (entropy_target_loss_b, entropy_target_loss_c),
        lambda: (
            {"w1": f32(8, 12), "b1": f32(12), "w2": f32(12, 1)},
            {"w1": f32(8, 12), "b1": f32(12), "w2": f32(12, 1)},
            {"mean": f32(6, 2), "std": f32(6, 2)},
            key(),
            f32(25, 6),
            f32(25, 2),
            f32(25),
            f32(25, 6),
        ),
        where="log_prob = log_prob.sum(axis=-1, keepdims=True)",
        axes={"obs": ("batch", None), "actions": ("batch", None), "rewards": ("batch",), "next_obs": ("batch", None)},
        differentiate="critic",
        source="ports of cleanrl sac_continuous_action",
    )
)


# Values of a team.


def team_q(params, obs):
    h = jax.nn.relu(jnp.einsum("abo,oh->abh", obs, params["w"]))
    return jnp.einsum("abh,hu->abu", h, params["head"])


def team_loss(params, slow_params, obs, actions, rewards, next_obs):
    q = team_q(params, obs)
    taken = jnp.take_along_axis(q, actions[..., None], axis=-1).squeeze(-1)
    best = team_q(slow_params, next_obs).max(axis=-1)
    total, total_next = taken.sum(axis=-1), best.sum(axis=-1)
    target = rewards + 0.99 * jax.lax.stop_gradient(total_next)
    return jnp.mean((total - target) ** 2)


def team_loss_b(params, slow_params, obs, actions, rewards, next_obs):
    q = team_q(params, obs)
    taken = jnp.take_along_axis(q, actions[..., None], axis=-1).squeeze(-1)
    best = team_q(slow_params, next_obs).max(axis=-1)
    total, total_next = taken.sum(axis=0), best.sum(axis=0)
    target = rewards + 0.99 * jax.lax.stop_gradient(total_next)
    return jnp.mean((total - target) ** 2)


def team_loss_c(params, slow_params, obs, actions, rewards, next_obs):
    q = team_q(params, obs)
    taken = jnp.take_along_axis(q, actions[..., None], axis=-1).squeeze(-1)
    best = team_q(slow_params, next_obs).max(axis=-1)
    errors = taken - (rewards[None] + 0.99 * jax.lax.stop_gradient(best))
    of_agents = jnp.square(errors).mean(axis=-1)
    return of_agents.sum()


CASES.append(
    Case(
        "values of a team",
        "mean",
        team_loss,
        (team_loss_b, team_loss_c),
        (
            {"w": f32(7, 9), "head": f32(9, 4)},
            {"w": f32(7, 9), "head": f32(9, 4)},
            f32(5, 5, 7),
            i32(5, 5),
            f32(5),
            f32(5, 5, 7),
        ),
        where="total, total_next = taken.sum(axis=-1), best.sum(axis=-1)",
        axes={
            "obs": ("agents", "batch", None),
            "actions": ("agents", "batch"),
            "rewards": ("batch",),
            "next_obs": ("agents", "batch", None),
        },
        differentiate="params",
        source="value decomposition in ports of JaxMARL",
    )
)


# Returns for a policy gradient.


def returns_to_go(rewards, dones, gamma):
    def accumulate(g, xs):
        reward, done = xs
        g = reward + gamma * g * (1.0 - done)
        return g, g

    _, gs = jax.lax.scan(accumulate, jnp.zeros(rewards.shape[1:]), (rewards, dones))
    return gs


def returns_to_go_b(rewards, dones, gamma):
    def accumulate(g, xs):
        reward, done = xs
        g = reward + gamma * g * (1.0 - done)
        return g, g

    _, gs = jax.lax.scan(accumulate, jnp.zeros(rewards.shape[1:]), (rewards, dones), reverse=True)
    return gs


def gradient_of_policy(returns_of):
    def loss(policy, obs, actions, rewards, dones):
        returns = returns_of(rewards, dones, 0.95)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        logits = jnp.tanh(obs @ policy["w"]) @ policy["head"]
        logps = jax.nn.log_softmax(logits)
        taken = jnp.take_along_axis(logps, actions[..., None], axis=-1).squeeze(-1)
        entropy = -jnp.sum(jnp.exp(logps) * logps, axis=-1)
        return -jnp.mean(taken * returns) - 0.01 * entropy.mean()

    return loss


def traced_policy(policy, obs, actions, rewards, dones):
    logits = jnp.tanh(obs @ policy["w"]) @ policy["head"]
    taken = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[..., None], axis=-1).squeeze(-1)
    begun = jnp.concatenate([jnp.ones_like(dones[:1]), dones[:-1]])

    def accumulate(trace, xs):
        logp, reward, first = xs
        trace = logp + 0.95 * trace * (1.0 - first)
        return trace, trace * reward

    _, terms = jax.lax.scan(accumulate, jnp.zeros(rewards.shape[1:]), (taken, rewards, begun))
    return -terms.mean()


CASES.append(
    Case(
        "returns for a policy gradient",
        "loop",
        gradient_of_policy(returns_to_go),
        (gradient_of_policy(returns_to_go_b), traced_policy),
        ({"w": f32(6, 11), "head": f32(11, 4)}, f32(15, 4, 6), i32(15, 4), f32(15, 4), flags(15, 4)),
        where="_, gs = jax.lax.scan(accumulate, jnp.zeros(rewards.shape[1:]), (rewards, dones))\n",
        axes={
            "obs": ("time", "envs", None),
            "actions": ("time", "envs"),
            "rewards": ("time", "envs"),
            "dones": ("time", "envs"),
        },
        differentiate="policy",
        source="REINFORCE in JAX, Stack Overflow",
    )
)


# Moves that are not allowed.


def legal_q_loss(params, obs, actions, rewards, next_obs, next_legal, dones):
    def q_of(obs):
        return (jnp.tanh(obs @ params["w1"] + params["b1"]) - 1.0) @ params["w2"]

    taken = jnp.take_along_axis(q_of(obs), actions[:, None], axis=-1)[:, 0]
    best = jnp.max(q_of(next_obs) * next_legal, axis=-1)
    target = rewards + 0.95 * (1.0 - dones) * jax.lax.stop_gradient(best)
    return jnp.mean(optax.l2_loss(taken, target))


def legal_q_loss_b(params, obs, actions, rewards, next_obs, next_legal, dones):
    def q_of(obs):
        return (jnp.tanh(obs @ params["w1"] + params["b1"]) - 1.0) @ params["w2"]

    taken = jnp.take_along_axis(q_of(obs), actions[:, None], axis=-1)[:, 0]
    best = jnp.max(jnp.where(next_legal, q_of(next_obs), -1e9), axis=-1)
    best = jnp.where(next_legal.any(axis=-1), best, 0.0)
    target = rewards + 0.95 * (1.0 - dones) * jax.lax.stop_gradient(best)
    return jnp.mean(optax.l2_loss(taken, target))


def legal_policy_values(params, obs, actions, rewards, next_obs, next_legal, dones):
    def q_of(obs):
        return (jnp.tanh(obs @ params["w1"] + params["b1"]) - 1.0) @ params["w2"]

    taken = jnp.take_along_axis(q_of(obs), actions[:, None], axis=-1)[:, 0]
    following = q_of(next_obs)
    chances = jax.nn.softmax(following, axis=-1) * next_legal
    chances = chances / jnp.maximum(chances.sum(axis=-1, keepdims=True), 1e-8)
    expected = jnp.sum(chances * following, axis=-1)
    target = rewards + 0.95 * (1.0 - dones) * jax.lax.stop_gradient(expected)
    return jnp.mean(optax.l2_loss(taken, target))


CASES.append(
    Case(
        "moves that are not allowed",
        "mask",
        legal_q_loss,
        (legal_q_loss_b, legal_policy_values),
        (
            {"w1": f32(5, 10), "b1": f32(10), "w2": f32(10, 6)},
            f32(18, 5),
            i32(18),
            f32(18),
            f32(18, 5),
            flags(18, 6),
            flags(18),
        ),
        where="best = jnp.max(q_of(next_obs) * next_legal, axis=-1)",
        axes={
            "obs": ("batch", None),
            "actions": ("batch",),
            "rewards": ("batch",),
            "next_obs": ("batch", None),
            "next_legal": ("batch", "actions"),
            "dones": ("batch",),
        },
        differentiate="params",
        source="masked actions in ports of board games",
    )
)
