"""The examples of the documentation, as a reader runs them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lox

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "docs" / "examples"


def run(example, *arguments):
    """What an example prints."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(EXAMPLES / example), *map(str, arguments)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    assert "1 devices, 70 steps" in run("data_parallel.py", "--out", folder)
    return lox.load(folder)["0000000000000000"]


@pytest.mark.parametrize("arguments", [("--devices", 4), ("--devices", 2, "--processes", 2)])
def test_data_parallel_training_logs_the_same_however_it_is_spread(on_one_device, tmp_path, arguments):
    assert "4 devices, 70 steps" in run("data_parallel.py", *arguments, "--out", tmp_path)
    (logs,) = lox.load(tmp_path).values()
    assert logs.keys() == on_one_device.keys() == {"loss", "accuracy", "norm"}
    for key in logs:
        np.testing.assert_allclose(logs[key], on_one_device[key], rtol=1e-4)
        assert logs.steps["step"][key].tolist() == list(range(70))


def test_live_progress_says_how_far_it_is():
    shown = run("live_progress.py")
    assert "step 19981/20000 (100%)" in shown and "trained 4 networks" in shown


def test_the_solver_logs_the_same_steps_in_each_way():
    happened, first, folded, at_once = run("solver.py").splitlines()
    steps = int(happened.split()[3])
    accepted, rejected, dropped = (int(part.split()[-2]) for part in first.replace("did not fit", "more").split(","))
    assert accepted + rejected == steps and dropped == 0
    assert folded.endswith(f"of {steps} steps")
    assert len(set(at_once.partition(":")[2].split(" steps")[0].split(","))) == 4


def test_attention_is_watched_in_flax_and_in_equinox():
    shown = run("attention.py")
    assert shown.count("entropy of its heads") == 6
    for name in ("flax", "equinox"):
        (line,) = (line for line in shown.splitlines() if line.startswith(name))
        first, last = map(float, line.split(": loss ")[1].split(" to "))
        assert last < first / 3
