"""TensorBoard and Weights & Biases, as their own readers and files have it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import lox
from lox.loggers import MultiLogger, TensorBoardLogger, WandbLogger

KEYS = jax.random.key_data(jax.random.split(jax.random.key(0), 2))
NAMES = ["".join(f"{word:08x}" for word in words) for words in KEYS.tolist()]


def train(x):
    def step(x, i):
        lox.log({"train/loss": x, "accuracy": -x}, step=2 * i, epoch=i // 2)
        lox.log({"weights": jnp.stack([x, x + 1, jnp.nan])})
        return x + 1, None

    x = lax.scan(step, x, jnp.arange(3))[0]
    return lox.log({"end": x.astype(jnp.bfloat16)})["end"]


def run(logger):
    def one(words, x):
        return logger.tap(train, logger.init(words, rate=x, name="Ada"), buffer=2)(x)

    jax.jit(jax.vmap(one))(KEYS, jnp.arange(2.0))


# -- TensorBoard ---------------------------------------------------------------------------------------------------


def read_tensorboard(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    events.Reload()
    return events


def test_tensorboard_has_a_directory_for_each_lane(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        run(logger)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)
    for lane, name in enumerate(NAMES):
        events = read_tensorboard(tmp_path / name)
        assert set(events.Tags()["scalars"]) == {"train/loss", "accuracy", "end"}
        assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [
            (2 * i, lane + i) for i in range(3)
        ]
        assert [(event.step, event.value) for event in events.Scalars("end")] == [(0, lane + 3)]
        histograms = events.Histograms("weights")
        assert [event.step for event in histograms] == [0, 1, 2]
        assert [event.histogram_value.num for event in histograms] == [2, 2, 2]  # What is finite.
        (config,) = events.Tensors("config/text_summary")
        text = config.tensor_proto.string_val[0].decode()
        assert f"| rate | {float(lane)} |" in text and "| name | Ada |" in text


def test_tensorboard_goes_on_where_a_run_was(tmp_path):
    for start in (0, 10):
        with TensorBoardLogger(tmp_path) as logger:
            steps = {"step": {"x": np.arange(start, start + 2)}}
            logger.log(logger.init(7), lox.logdict({"x": np.arange(2.0) + start}, steps))
    events = read_tensorboard(tmp_path / "0000000000000007")
    assert [(event.step, event.value) for event in events.Scalars("x")] == [(0, 0), (1, 1), (10, 10), (11, 11)]


def test_tensorboard_takes_what_is_odd(tmp_path):
    with TensorBoardLogger(tmp_path) as logger:
        state = logger.init(7)
        logger.log(
            state, lox.logdict({"nan": np.float32([np.nan]), "true": np.array([True]), "empty": np.zeros((1, 0))})
        )
        logger.log(state, lox.logdict({"all nan": np.full((1, 3), np.nan), "int": np.int8([-3])}))
    events = read_tensorboard(tmp_path / "0000000000000007")
    values = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert np.isnan(values.pop("nan")) and values == {"true": 1, "int": -3}


@pytest.mark.parametrize("make", [TensorBoardLogger, lambda path: WandbLogger(mode="offline", dir=path)])
def test_complex_numbers_are_an_error_that_says_what_to_log(tmp_path, make, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = make(tmp_path)
    logger.log(logger.init(7), lox.logdict({"z": np.complex64([1j])}))
    with pytest.raises(lox.LogDataError, match="'z' is complex"):
        logger.close()


# -- Weights & Biases ----------------------------------------------------------------------------------------------


def records(path):
    """The records of a run's file, whose format is that of LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part = data[place + 7 : place + 7 + length]
        place += 7 + length
        parts = part if kind in (1, 2) else parts + part  # A whole record, or the first part of one.
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            yield record


def read_wandb(path):
    """By run: what describes it, its group, the axes of its metrics, and its rows."""
    import json

    found = {}
    for file in path.glob("wandb/*/*.wandb"):
        config, axes, rows, name, group = {}, {}, [], "", ""
        for record in records(file):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name, group = record.run.run_id, record.run.run_group
                config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "config":
                config |= {item.key: json.loads(item.value_json) for item in record.config.update}
            elif kind == "metric":
                axes[record.metric.name] = record.metric.step_metric
            elif kind == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                rows.append({key: value for key, value in items.items() if not key.startswith("_")})
        found[name] = (config, group, axes, rows)
    return found


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")


def test_wandb_has_a_run_for_each_lane(tmp_path, quiet):
    with WandbLogger(mode="offline", dir=tmp_path, project="p", group="g", config={"model": "small"}) as logger:
        run(logger)
    found = read_wandb(tmp_path)
    assert set(found) == set(NAMES)
    for lane, name in enumerate(NAMES):
        config, group, axes, rows = found[name]
        assert group == "g"
        described = {key: config[key] for key in ("key", "rate", "name", "model")}
        assert described == {"key": KEYS[lane].tolist(), "rate": lane, "name": "Ada", "model": "small"}
        assert axes == {"train/loss": "step", "accuracy": "step", "weights": "event", "end": "event"}
        of_loss = [row for row in rows if "train/loss" in row]
        assert of_loss == [
            {"step": 2 * i, "epoch": i // 2, "train/loss": lane + i, "accuracy": -(lane + i)} for i in range(3)
        ]
        assert [row["event"] for row in rows if "weights/bins" in row] == [0, 1, 2]
        assert [row for row in rows if "end" in row] == [{"event": 0, "end": lane + 3}]


def test_wandb_keeps_steps_that_go_backwards(tmp_path, quiet):
    with WandbLogger(mode="offline", dir=tmp_path) as logger:
        steps = {"step": {"x": np.array([5, 3, 4])}}
        logger.log(logger.init(7), lox.logdict({"x": np.arange(3.0)}, steps))
    ((_, _, _, rows),) = read_wandb(tmp_path).values()
    assert [(row["step"], row["x"]) for row in rows] == [(5, 0), (3, 1), (4, 2)]


def test_a_wandb_run_that_is_finished_underneath_is_an_error_and_other_sinks_go_on(tmp_path, quiet):
    wandb_logger = WandbLogger(mode="offline", dir=tmp_path / "w")
    (tmp_path / "w").mkdir()
    logger = MultiLogger(wandb_logger, TensorBoardLogger(tmp_path / "t"))
    state = logger.init(7)
    logger.log(state, lox.logdict({"x": np.arange(2.0)}))
    logger.flush()
    for each in wandb_logger._wandb_runs.values():
        each.finish()
    logger.log(state, lox.logdict({"x": np.arange(2.0)}))
    with pytest.raises(Exception, match="finished") as raised:
        logger.flush()
    assert any("WandbLogger" in note for note in raised.value.__notes__)
    logger.close()
    assert len(read_tensorboard(tmp_path / "t" / "0000000000000007").Scalars("x")) == 4


def test_keywords_that_are_the_loggers():
    with pytest.raises(lox.LogValueError, match="its id= itself"):
        WandbLogger(id="mine")
