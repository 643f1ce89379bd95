"""The examples of the documentation, as a reader runs them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lox

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "docs" / "examples"
OF_TESTS = ("XLA_FLAGS", "PYTEST_CURRENT_TEST")


def run(example, *arguments):
    """What an example prints."""
    return ran(example, *arguments).stdout


def ran(example, *arguments):
    """The process of an example, which has ended well."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(EXAMPLES / example), *map(str, arguments)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    assert "1 devices, 70 steps" in run("data_parallel.py", "--out", folder)
    (logs,) = lox.load(folder).values()
    return logs


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
    assert "step 20000/20000 (100%)" in shown and "trained 4 networks" in shown


def test_bars_say_how_far_a_sampler_a_training_and_a_solver_are():
    found = ran("bars.py")
    mean, loss, sweeps = found.stdout.splitlines()
    assert mean.endswith("(0 and 1)") and all(abs(float(x) - of) < 0.2 for x, of in zip(mean.split()[1:3], (0, 1)))
    assert float(loss.split()[3]) < 0.01 < 0.1 < float(loss.split()[1])
    counts = list(map(int, sweeps.split()[1:]))
    assert counts == sorted(counts) and len(counts) == 3
    shown = found.stderr
    assert "NUTS 40,000/40,000 (100%)" in shown and "4 elements" in shown
    assert "train/scan 30,000/30,000 (100%)" in shown
    assert f"heat {max(counts):,}, " in shown and shown.splitlines()[-1].endswith("3/3 elements done")


def test_layers_of_a_model_without_log_calls_are_watched():
    wide, narrow, root = run("layers.py").splitlines()
    stds = [[float(each) for each in line.rpartition("step ")[2].split()] for line in (wide, narrow)]
    assert len(stds[0]) == len(stds[1]) == 6 and min(stds[0]) > 5 * stds[1][-2]
    assert root.startswith("slope 0.1667, guesses 5.0 3.4") and float(root.split()[-1]) < 3.001


def test_the_first_nan_of_a_training_is_found_and_mended():
    warned, found, line, *_, mended = run("first_nan.py").splitlines()
    assert warned.endswith("train has NaN in the carry of a loop after iteration 31")
    assert found.startswith("NaN begins in div at ")
    assert found.endswith("(normalized), iteration 31, batch element 2, at [0]")
    assert line.strip() == "return advantages / advantages.std()" and mended == "All results and carries are finite."


def test_the_solver_logs_the_same_steps_in_each_way():
    happened, first, folded, at_once = run("solver.py").splitlines()
    steps = int(happened.split()[3])
    accepted, rejected, dropped = (int(part.split()[-2]) for part in first.replace("did not fit", "more").split(","))
    assert accepted + rejected == steps and dropped == 0
    assert folded.endswith(f"of {steps} steps")
    assert len(set(at_once.partition(":")[2].split(" steps")[0].split(","))) == 4


def test_each_environment_logs_where_its_episodes_end():
    first, _, *environments, memory, _, _, _, _, _ = run("episodes.py").splitlines()
    episodes, kept, dropped = (int(number) for number in re.findall(r"(\d+) (?:episodes|kept|dropped)", first))
    assert episodes == kept + dropped
    for line in environments:
        numbers, steps = (json.loads(part) for part in re.findall(r"\[.*?\]", line))
        assert numbers == list(range(len(numbers))) and steps == sorted(steps)
    assert "221 kB of logs; those of every step would be 27 MB" in memory


def test_returns_of_all_environments_have_quantiles():
    *_, title, first, second, third, last = run("episodes.py").splitlines()
    assert title == "returns, of all environments: 10 %, median, 90 %"
    rows = [tuple(map(int, re.findall(r"-?\d+", line))) for line in (first, second, third, last)]
    assert [step // 250 for step, *_ in rows] == [1, 2, 3, 3] and rows[-1][0] == 999
    assert all(low < median < high < -10 for _, low, median, high in rows)


def test_attention_is_watched_in_flax_and_in_equinox():
    shown = run("attention.py")
    assert shown.count("entropy of its heads") == 6
    for name in ("flax", "equinox"):
        (line,) = (line for line in shown.splitlines() if line.startswith(name))
        first, last = map(float, line.split(": loss ")[1].split(" to "))
        assert last < first / 3


def test_the_digits_are_learnt_and_drawn(tmp_path):
    shown = run("digits.py", "--out", tmp_path / "plot.png")
    assert shown.startswith("4 seeds, 300 steps: accuracy 0.9")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_hamiltonian_monte_carlo_finds_the_mean():
    shown = run("hmc.py")
    assert "positions (1000, 4, 2)" in shown and shown.count("acceptance 0.") == 4
    *_, first, second = re.search(r"mean (\S+) (\S+) .*R-hat (\S+) (\S+)", shown).groups()
    assert max(float(first), float(second)) < 1.05


def test_the_audit_of_ppo_finds_each_mistake_and_none_when_they_are_mended():
    shown = run("audit_ppo.py")
    assert set(re.findall(r"LOX\d{3}", shown)) == {"LOX104", "LOX105", "LOX108", "LOX702", "LOX812"}
    assert "mended_advantages: 0 findings" in shown and "mended_update: 0 findings" in shown
