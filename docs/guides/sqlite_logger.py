import json
import sqlite3

import jax
import jax.numpy as jnp

import lox


class SqliteLogger(lox.loggers.Logger):
    """Writes to tables of SQLite: a row for each run, and one for each event of each key."""

    def __init__(self, path, **options):
        self.path = path
        super().__init__(**options)

    def start(self, run):
        with sqlite3.connect(self.path) as database:
            database.execute("CREATE TABLE IF NOT EXISTS runs (experiment, run, config)")
            database.execute("CREATE TABLE IF NOT EXISTS logs (experiment, run, step, key, value)")
            config = json.dumps(run.config, default=lambda value: value.tolist())  # Numbers and arrays of NumPy.
            database.execute("INSERT INTO runs VALUES (?, ?, ?)", (self.experiment, run.name, config))

    def write(self, run, logs):
        rows = [
            (self.experiment, run.name, int(step), key, float(value.mean()))
            for key, values in logs.items()
            for step, value in zip(run.steps(logs, key), values, strict=True)
        ]
        with sqlite3.connect(self.path) as database:
            database.executemany("INSERT INTO logs VALUES (?, ?, ?, ?, ?)", rows)


def train(rate):
    def step(weight, i):
        lox.log({"loss": weight**2}, step=i)
        return weight - rate * 2 * weight, None

    return jax.lax.scan(step, jnp.float32(1), jnp.arange(3))[0]


with SqliteLogger("logs.db", name="first") as logger:
    jax.jit(jax.vmap(lambda rate: logger.tap(train, logger.init(0, rate=rate))(rate)))(jnp.array([0.1, 0.25]))

with sqlite3.connect("logs.db") as database:
    for table in "runs", "logs":
        for row in database.execute(f"SELECT * FROM {table} ORDER BY run"):
            print(*row)
