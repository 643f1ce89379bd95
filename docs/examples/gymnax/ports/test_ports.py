"""Each program does the same with lox as without, and logs what it should."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lox

HERE = Path(__file__).parent
LOGGED = {
    "purejaxrl_ppo": ["ppo"],
    "flax_digits": ["digits"],
    "diffrax_ode": [],
    "numpyro_regression": [],
    "dqn": ["dqn"],
}
"""The programs, and the experiments that each writes."""


def run(program, folder):
    """What a program prints, line by line."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(HERE / program)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_program_is_run():
    assert {path.stem for path in HERE.glob("*_lox.py")} == {f"{name}_lox" for name in LOGGED}


@pytest.mark.parametrize("name", LOGGED)
def test_a_program_prints_with_lox_what_it_printed_without(name, tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    expected = run(f"{name}.py", before)
    found = run(f"{name}_lox.py", after)
    assert expected and found[: len(expected)] == expected
    assert sorted(path.name for path in after.glob("runs/*")) == LOGGED[name]
    if name == "purejaxrl_ppo":
        runs = lox.load(after / "runs").values()
        assert [set(logs) for logs in runs] == [{"return", "loss/actor", "loss/value", "loss/entropy"}] * 2
        assert all(len(logs["loss/value"]) == 25 for logs in runs)  # One for each update.
    elif name == "flax_digits":
        [logs] = lox.load(after / "runs").values()
        assert {key: len(logs[key]) for key in logs} == dict.fromkeys(["loss", "accuracy", "norm", "dead"], 100)
    elif name == "dqn":
        assert len(list(after.glob("runs/dqn/gamma=0.99,seed=0-*/events.out.*"))) == 1
    else:  # They say how often the field, or the model, was evaluated.
        assert len(found) == len(expected) + 1 and "evaluations" in found[-1]
