"""Real programs have the curves that they had before, in each sink, when they log with lox."""

from collections import defaultdict

import numpy as np
import pytest
from ports import classifier, dqn, ppo, solver, vae
from sinks import Mlflow, Sink, TensorBoard, Trackio, Wandb

import lox
from lox.loggers import MemoryLogger, MultiLogger, SaveLogger

# MLflow's own, of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def mlflow_store(tmp_path_factory):
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture
def sinks(tmp_path, monkeypatch, mlflow_store, trackio_folder):
    """The services, by name."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    paths = {name: tmp_path / name for name in ("tensorboard", "wandb", "mlflow", "trackio")}
    for path in paths.values():
        path.mkdir()
    return {
        "tensorboard": TensorBoard(paths["tensorboard"]),
        "wandb": Wandb(paths["wandb"]),
        "mlflow": Mlflow(paths["mlflow"], mlflow_store),
        "trackio": Trackio(paths["trackio"], trackio_folder),
    }


def name_of(port):
    return port.__name__.removeprefix("ports.")


@pytest.mark.parametrize("port", [ppo, classifier, solver, vae, dqn], ids=name_of)
def test_a_port_has_the_curves_of_its_original_in_each_sink(port, sinks, tmp_path):
    expected = port.original()
    memory = MemoryLogger()
    others = [SaveLogger(tmp_path / "saved"), memory, *(sink.logger(name=None) for sink in sinks.values())]
    with MultiLogger(*others, name=Sink.experiment) as logger:
        names = [state.name for state in port.ported(logger)]
    read = {
        "save": {name: curves_in(logs) for name, logs in lox.load(tmp_path / "saved").items()},
        "memory": {name: curves_in(memory[name]) for name in memory.runs},
    } | {name: sink.numbers() for name, sink in sinks.items()}
    assert all(points for curves in expected for points in curves.values())
    for sink, runs in read.items():
        assert sorted(run_in(runs, name)[0] for name in names) == sorted(runs), sink
        for curves, name in zip(expected, names, strict=True):
            assert_curves(run_in(runs, name)[1], curves, f"{sink}, {name}")


def run_in(runs, name):
    """The one run with this name, wherever it is."""
    (found,) = [(path, curves) for path, curves in runs.items() if path == name or path.endswith(f"/{name}")]
    return found


def curves_in(logs):
    """The curves of a logdict: where events have batch axes, the means over the elements in which they happened."""
    curves = defaultdict(list)
    for key, values in logs.items():
        values, steps = np.asarray(values, np.float64), np.asarray(logs.steps["step"][key])
        happened = np.broadcast_to(logs.mask.get(key, True), steps.shape)
        for value, step, where in zip(values, steps, happened, strict=True):
            assert len(set(step[where])) == 1  # In no element did it happen at another step.
            curves[key].append((step[where][0], value[where].mean()))
    return dict(curves)


def assert_curves(found, expected, where):
    assert sorted(found) == sorted(expected), where
    for key, points in expected.items():
        steps, values = zip(*found[key], strict=True)
        expected_steps, expected_values = zip(*points, strict=True)
        assert list(steps) == list(expected_steps), f"{key} in {where}"
        np.testing.assert_allclose(values, expected_values, rtol=1e-5, atol=2e-6, err_msg=f"{key} in {where}")
