import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax

import lox

STEPS, LEARNING_STARTS, TRAIN_EVERY, TARGET_EVERY, LOG_EVERY = 400, 100, 2, 50, 50
BATCH, GAMMA = 64, 0.99

env, env_params = gymnax.make("CartPole-v1")
reset, env_step = jax.jit(env.reset), jax.jit(env.step)
optimizer = optax.adam(2e-3)


def init(key):
    layers = zip(jax.random.split(key, 3), [(4, 64), (64, 64), (64, env.num_actions)], strict=True)
    return [jax.nn.initializers.he_normal()(key, shape) for key, shape in layers]


@jax.jit
def q_values(params, obs):
    for weights in params[:-1]:
        obs = jax.nn.relu(obs @ weights)
    return obs @ params[-1]


@jax.jit
@lox.spool
def update(params, target, opt_state, obs, actions, rewards, after, dones):
    targets = rewards + GAMMA * (1 - dones) * q_values(target, after).max(-1)

    def loss_fn(params):
        chosen = jnp.take_along_axis(q_values(params, obs), actions[:, None], -1)[:, 0]
        loss = jnp.mean((chosen - targets) ** 2)
        lox.log({"losses": {"td_loss": loss, "q_values": chosen.mean()}})
        return loss

    gradient = jax.grad(loss_fn)(params)
    lox.log({"losses": {"gradient": optax.tree.norm(gradient)}})
    updates, opt_state = optimizer.update(gradient, opt_state)
    return optax.apply_updates(params, updates), opt_state


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    logger = lox.loggers.TensorBoardLogger("runs", name="dqn")
    run = logger.init(0, gamma=GAMMA)
    params = target = init(jax.random.key(0))
    opt_state = optimizer.init(params)
    obs, state = reset(jax.random.key(1), env_params)
    replay, total, returns = [], 0.0, []
    for step in range(STEPS):
        explore = rng.random() < max(0.05, 1 - step / 300)
        action = int(rng.integers(env.num_actions)) if explore else int(q_values(params, obs).argmax())
        after, state, reward, terminated, truncated, _ = env_step(jax.random.key(step), state, action, env_params)
        replay.append((np.asarray(obs), action, float(reward), np.asarray(after), bool(terminated)))
        obs, total = after, total + float(reward)
        if terminated or truncated:
            logger.log(run, {"charts/episodic_return": total}, step=step)
            returns.append(total)
            total = 0.0
        if step >= LEARNING_STARTS and step % TRAIN_EVERY == 0:
            samples = [replay[place] for place in rng.integers(len(replay), size=BATCH)]
            batch = [np.stack(column) for column in zip(*samples, strict=True)]
            (params, opt_state), logs = update(params, target, opt_state, *batch)
            if step % LOG_EVERY == 0:
                logger.log(run, logs, step=step)
        if step % TARGET_EVERY == 0:
            target = params
    logger.close()
    print(f"{len(returns)} episodes, mean return {np.mean(returns):.1f}")
