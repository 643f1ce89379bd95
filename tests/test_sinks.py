"""TensorBoard and Weights & Biases, as their own readers and files have it."""

import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from sinks import TensorBoard, Wandb

import lox
from lox.loggers import MemoryLogger, MultiLogger, WandbLogger

KEYS = jax.random.key_data(jax.random.split(jax.random.key(0), 2))
NAMES = ["".join(f"{word:08x}" for word in words) for words in KEYS.tolist()]
NAME = "0000000000000007"  # Of the seed 7.


@pytest.fixture
def tensorboard(tmp_path):
    return TensorBoard(tmp_path)


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    return Wandb(tmp_path)


@pytest.fixture(params=["tensorboard", "wandb"])
def sink(request):
    return request.getfixturevalue(request.param)


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


def logged(sink, *parts, **options):
    """What a sink has of one run that logs these."""
    with sink.logger(**options) as logger:
        for part in parts:
            logger.log(logger.init(7), part if isinstance(part, lox.logdict) else lox.logdict(part))
    return sink


# -- all of them ---------------------------------------------------------------------------------------------------


def test_each_lane_has_a_run_of_its_own(sink):
    with sink.logger() as logger:
        run(logger)
    found = sink.numbers()
    assert set(found) == set(NAMES)
    for lane, name in enumerate(NAMES):
        assert found[name]["train/loss"] == [(2 * i, lane + i) for i in range(3)]
        assert found[name]["accuracy"] == [(2 * i, -(lane + i)) for i in range(3)]
        assert found[name]["epoch"] == [(2 * i, i // 2) for i in range(3)]
        assert found[name]["end"] == [(0, lane + 3)]


def test_a_run_goes_on_where_it_was(sink):
    for start in (0, 10):
        steps = {"step": {"x": np.arange(start, start + 2)}}
        logged(sink, lox.logdict({"x": np.arange(2.0) + start}, steps))
    assert sink.numbers() == {NAME: {"x": [(0, 0), (1, 1), (10, 10), (11, 11)]}}


ODD = ["a b", "a_b", "a*b", "a//b", "a/", "/a", "//a", "a", "A", "..", "../a", "a/./b", "..a", "é", "模型", "a\nb"]
ODD += ["%61", "_x2a-", "a_x2a-b", "_x4*", "x.mean", "step", "time_", "x" * 300, "x" * 301, "a:b", "a b ", "."]


def test_every_key_is_kept_apart_from_the_others(sink):
    logged(sink, {key: np.float32([place]) for place, key in enumerate(ODD)})
    (found,) = sink.numbers().values()
    assert sorted(value for events in found.values() for _, value in events) == list(range(len(ODD)))
    assert len(found) == len(ODD)


def test_what_is_not_finite(sink):
    logged(sink, {"x": np.float32([np.nan, np.inf, -np.inf, 1])})
    largest = np.inf
    np.testing.assert_equal(sink.numbers()[NAME]["x"], [(0, np.nan), (1, largest), (2, -largest), (3, 1)])


def test_a_key_whose_dtype_and_shape_change(sink):
    values = [np.int8([-3]), np.float16([0.5]), np.array([True]), np.ones((1, 2)), np.zeros((1, 0))]
    values += [np.full((1, 2), np.nan), np.float32([[[7]]]), np.ones(1, ml_dtypes.bfloat16)]
    logged(sink, *[{"x": value} for value in values])
    assert sink.numbers()[NAME]["x"] == [(0, -3), (1, 0.5), (2, 1), (6, 7), (7, 1)]


def test_arrays_without_a_number_are_nothing(sink):
    logged(sink, {"empty": np.zeros((1, 0, 3)), "none": np.full((2, 3), np.nan)})
    logged(sink, {"x": np.ones(1)})
    assert sink.numbers() == {NAME: {"x": [(0, 1)]}}


def test_steps_that_are_no_integers(sink):
    logged(sink, lox.logdict({"x": np.arange(2.0)}, {"step": {"x": np.float32([0.5, 2])}}))
    found = sink.numbers()[NAME]
    if isinstance(sink, Wandb):
        assert found == {"x": [(0.5, 0), (2, 1)]}
    else:
        assert found == {"x": [(0, 0), (1, 1)], "step": [(0, 0.5), (1, 2)]}


def test_steps_that_go_backwards(sink):
    logged(sink, lox.logdict({"x": np.arange(3.0)}, {"step": {"x": np.array([5, 3, 4])}}))
    assert sorted(sink.numbers()[NAME]["x"]) == [(3, 1), (4, 2), (5, 0)]


def test_complex_numbers_are_an_error_that_says_what_to_log(sink):
    with pytest.raises(lox.LogDataError, match="'z' is complex") as raised:
        logged(sink, {"z": np.complex64([1j])})
    assert any(type(sink).__name__ in note for note in raised.value.__notes__)


def test_threads_log_to_one_run_and_to_others(sink):
    with sink.logger() as logger:

        def log(seed):
            for i in range(10):
                logger.log(logger.init(seed), lox.logdict({"mine": np.float32([i])}))
                logger.log(logger.init(7), lox.logdict({f"of {seed}": np.float32([i])}))

        threads = [threading.Thread(target=log, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = sink.numbers()
    events = [(i, i) for i in range(10)]
    assert [found[f"{seed:016x}"]["mine"] for seed in (1, 2)] == [events, events]
    assert list(found[NAME].values()) == [events, events]


# -- images --------------------------------------------------------------------------------------------------------


def test_images_are_written_where_asked(sink):
    gray = np.linspace(0, 1, 12).reshape(1, 3, 4)
    color = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4)).astype(np.uint8)
    data = {
        "gray": gray.astype(np.float32),
        "in/one": gray[..., None].astype(ml_dtypes.bfloat16),
        "rgb": color[..., :3],
        "rgba": color,
        "wild": np.float32([[[-1, np.nan, 2, 0.5]]]),
        "mask": gray > 0.5,
        "none": gray,
    }
    found = logged(sink, data, images=[key for key in data if key != "none"]).images()[NAME]
    assert set(found) == data.keys() - {"none"}

    def opaque(levels):
        levels = levels.reshape(*levels.shape[:2], -1)
        return np.concatenate([np.broadcast_to(levels, (*levels.shape[:2], 3)), np.full_like(levels[..., :1], 255)], 2)

    expected = {
        "gray": [np.round(gray[0] * 255)],
        "in/one": [np.round(data["in/one"][0].astype(np.float32) * 255)],
        "rgb": color[..., :3],
        "wild": [np.array([[0, 0, 255, 128]])],
        "mask": [(gray[0] > 0.5) * 255],
    }
    for key, arrays in expected.items():
        np.testing.assert_array_equal([image for _, image in found[key]], [opaque(array) for array in arrays])
    np.testing.assert_array_equal([image for _, image in found["rgba"]], color)
    assert [step for step, _ in found["rgb"]] == [0, 1]


def test_images_of_odd_keys_are_kept_apart(sink):
    odd = ["a*b", "a b", "a_x2a-b", "é", "../a", "a/b", "a//b", "x" * 200, "x" * 201]
    data = {key: np.full((1, 2, 2), place, np.uint8) for place, key in enumerate(odd)}
    found = logged(sink, data, images=odd).images()[NAME]
    assert sorted(image[0, 0, 0] for ((_, image),) in found.values()) == list(range(len(odd)))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 2), (2, 2, 3, 3), (0, 3), (2, 0, 3)])
def test_what_is_no_image_is_an_error(tensorboard, shape):
    with pytest.raises(lox.LogDataError, match=r"'x' must have the shape \(H, W\) or \(H, W, C\)"):
        logged(tensorboard, {"x": np.zeros((1, *shape))}, images="x")


def test_an_image_of_other_integers_is_an_error(tensorboard):
    with pytest.raises(lox.LogDataError, match="'x' must be of uint8, or of floats from 0 to 1, got int32"):
        logged(tensorboard, {"x": np.zeros((1, 2, 2), np.int32)}, images="x")


def test_the_names_of_images_are_names(sink):
    with pytest.raises(lox.LogDataError, match="images must be a string or an iterable of strings"):
        sink.logger(images=3)


# -- TensorBoard ---------------------------------------------------------------------------------------------------


def test_tensorboard_has_histograms_and_what_describes_the_run(tensorboard):
    with tensorboard.logger() as logger:
        run(logger)
    for lane, name in enumerate(NAMES):
        events = tensorboard.read(name)
        histograms = events.Histograms("weights")
        assert [event.step for event in histograms] == [0, 1, 2]
        assert [event.histogram_value.num for event in histograms] == [2, 2, 2]  # What is finite.
        (config,) = events.Tensors("config/text_summary")
        text = config.tensor_proto.string_val[0].decode()
        assert f"| rate | {float(lane)} |" in text and "| name | Ada |" in text


# -- Weights & Biases ----------------------------------------------------------------------------------------------


def test_wandb_has_histograms_axes_and_what_describes_the_run(wandb):
    with wandb.logger(project="p", group="g", config={"model": "small"}) as logger:
        run(logger)
    found = wandb.read()
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
        assert [row["event"] for row in rows if "bins" in row.get("weights", {})] == [0, 1, 2]
        assert [row for row in rows if "end" in row] == [{"event": 0, "end": lane + 3}]


def test_wandb_has_steps_of_several_dtypes(wandb):
    steps = {"x": np.int32([1065353216]), "y": np.float32([1])}  # The same bits.
    logged(wandb, lox.logdict({"x": np.ones(1), "y": np.ones(1)}, {"step": steps}))
    assert wandb.numbers()[NAME] == {"x": [(1065353216, 1)], "y": [(1, 1)]}


@pytest.mark.parametrize("name", ["id", "resume", "reinit"])
def test_keywords_that_are_those_of_the_logger_for_wandb(name):
    with pytest.raises(lox.LogValueError, match=f"its {name}= itself"):
        WandbLogger(**{name: "mine"})


# -- runs that end underneath -----------------------------------------------------------------


def test_a_wandb_run_that_is_finished_underneath_is_an_error_and_other_sinks_go_on(wandb):
    first, memory = wandb.logger(), MemoryLogger()
    logger = MultiLogger(first, memory)
    logger.log(logger.init(7), lox.logdict({"x": np.arange(2.0)}))
    logger.flush()
    for each in first._wandb_runs.values():
        each.finish()
    logger.log(logger.init(7), lox.logdict({"x": np.arange(2.0)}))
    with pytest.raises(Exception, match="finished") as raised:
        logger.flush()
    assert any("WandbLogger" in note for note in raised.value.__notes__)
    logger.close()
    assert memory[NAME]["x"].tolist() == [0, 1, 0, 1]
