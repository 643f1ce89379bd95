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
