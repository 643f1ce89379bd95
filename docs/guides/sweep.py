import itertools

import jax
import jax.numpy as jnp

import lox


def train(key, rate):
    def step(weights, now):
        i, key = now
        x = jax.random.normal(key, (64, 3))
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - x.sum(-1)) ** 2))(weights)
        lox.log({"loss": loss}, step=i)
        return weights - rate * gradient, None

    return jax.lax.scan(step, jnp.zeros(3), (jnp.arange(20), jax.random.split(key, 20)))[0]


rates, seeds = [0.01, 0.05], [0, 1, 2]
grid = jnp.array(list(itertools.product(rates, seeds)))  # A row for each pair.

with lox.loggers.SaveLogger("runs", name="sweep") as logger:

    def run(rate, seed):
        key = jax.random.key(seed.astype(int))
        tapped = logger.tap(train, logger.init(key, rate=rate))
        return tapped(key, rate)

    jax.jit(jax.vmap(run))(grid[:, 0], grid[:, 1])

logs = lox.load(logger.directory, stack=True)
configs = lox.load_config(logger.directory)
print(logs["loss"].shape, "events, runs")
for rate in rates:
    of_rate = [column for column, config in enumerate(configs.values()) if config["rate"] == rate]
    last = logs["loss"][-1, of_rate]
    print(f"rate {rate}: last loss {last.mean():.4f}, over {len(of_rate)} seeds")
