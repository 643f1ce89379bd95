"""The command line: what it prints, what it writes and how it exits."""

import argparse
import functools
import subprocess
import sys

import jax
import numpy as np
import pytest

import lox
from lox.__main__ import _parser, main
from lox.demo import report, training


def run_expecting_exit(capsys, *argv):
    with pytest.raises(SystemExit) as exit_info:
        main(argv)
    return exit_info.value.code, capsys.readouterr()


def test_demo_shows_sites_logs_and_reductions_and_writes_a_plot(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    plot = tmp_path / "plot.png"
    assert main(["demo", "--steps", "20", "--seeds", "2", "--out", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "scan[20]" in printed and "training.py" in printed
    assert "2 networks, 20 steps" in printed
    assert 'reduce="mean"' in printed and 'reduce="last"' in printed
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_table_of_the_demo_goes_from_the_first_step_to_the_last():
    zeros = np.zeros((20, 2))
    steps = {key: np.arange(20)[:, None] + np.zeros((1, 2), int) for key in report.SCALARS}
    table = report.over_time(lox.logdict(dict.fromkeys(report.SCALARS, zeros), {"step": steps}), rows=3)
    assert [*table.columns[0].cells] == ["0", "9", "19"]


def test_the_digits_of_the_demo_are_images_from_zero_to_one():
    for digits in training.load():
        assert digits.images.dtype == np.float32 and digits.images.shape[1:] == (training.PIXELS,)
        assert (digits.images.min(), digits.images.max()) == (0, 1)


@pytest.mark.integration
def test_demo_learns_and_the_reduced_logs_agree_with_all_of_them():
    train = functools.partial(training.train, steps=200)
    key, data = jax.random.key(0), training.load()
    _, logs = jax.jit(lox.spool(train))(key, *data)
    _, means = jax.jit(lox.spool(train, tags="metric", reduce="mean"))(key, *data)
    assert logs["test/accuracy"][-1] > 0.9
    np.testing.assert_array_equal(logs["weights/hidden"].sum(axis=1), 64 * 64)
    assert sorted(means) == ["test/accuracy", "test/loss", "train/accuracy", "train/loss"]
    np.testing.assert_allclose(means["train/loss"], logs["train/loss"].mean(keepdims=True), rtol=1e-5)


def test_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "lox", "--help"], capture_output=True, text=True, check=True)
    assert "train on handwritten digits" in done.stdout


def test_help_of_demo_lists_its_options(capsys):
    code, printed = run_expecting_exit(capsys, "demo", "--help")
    assert code == 0
    assert all(option in printed.out for option in ("--steps", "--seeds", "--out"))


def test_help_says_what_each_command_does_and_what_each_argument_takes():
    (commands,) = (each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction))
    assert [each.dest for each in commands._choices_actions if each.help] == [*commands.choices]
    for command in commands.choices.values():
        assert command.description
        for argument in command._actions:
            assert argument.help and (argument.metavar or argument.choices or argument.nargs == 0), argument


def test_without_a_command_it_says_how_it_is_used(capsys):
    code, printed = run_expecting_exit(capsys)
    assert code == 2
    assert "usage: lox" in printed.err


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_a_number_of_steps_that_is_none_is_refused(capsys, steps):
    code, printed = run_expecting_exit(capsys, "demo", f"--steps={steps}")
    assert code == 2
    assert f"--steps: must be a whole number of at least 1, got '{steps}'" in printed.err


def test_a_plot_that_cannot_be_written_is_refused_before_the_training(capsys, tmp_path):
    code, printed = run_expecting_exit(capsys, "demo", "--out", str(tmp_path / "missing" / "plot.png"))
    assert code == 2
    assert f"the folder {tmp_path / 'missing'} does not exist" in printed.err


def test_a_missing_package_of_the_demo_is_named_with_its_extra(capsys, monkeypatch):
    monkeypatch.delattr(lox, "demo", raising=False)
    for module in [name for name in sys.modules if name.startswith("lox.demo")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "optax", None)
    assert main(["demo"]) == 1
    assert "demo needs optax, which the extra 'demo' installs: pip install 'jax-lox[demo]'" in capsys.readouterr().err
