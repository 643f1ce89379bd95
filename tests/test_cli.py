"""The command line: what it prints, what it writes and how it exits."""

import argparse
import functools
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import lox
from lox.__main__ import _parser, main
from lox.commands._output import Failure
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
    assert printed.count("mean ± deviation over seeds") == 2 and f"written to {plot}" in printed
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


PARSED = {
    ("demo",): {"steps": 1000, "seeds": 4, "out": Path("lox-demo.png")},
    ("demo", "--steps", "1", "--seeds", "12", "--out", "a"): {"steps": 1, "seeds": 12, "out": Path("a")},
    ("ls", "p"): {"path": Path("p"), "names": False},
    ("ls", "p", "--names"): {"path": Path("p"), "names": True},
    ("show", "p"): {"keys": []},
    ("show", "p", "a", "b/*"): {"keys": ["a", "b/*"]},
    ("plot", "p", "a", "-o", "a.SVG", "--lines"): {"keys": ["a"], "out": Path("a.SVG"), "lines": True},
    ("plot", "p", "a", "b", "-o", "a.png"): {"keys": ["a", "b"], "lines": False},
    ("tail", "p"): {"events": 1, "interval": 1.0},
    ("tail", "p", "-n", "7", "--interval", "1e-3"): {"events": 7, "interval": 0.001},
    ("audit", "m.n:f.g"): {
        "function": "m.n:f.g",
        "run": None,
        "args": None,
        "axes": [],
        "differentiate": [],
        "select": None,
        "ignore": None,
        "format": None,
        "detail": "calls",
        "output": None,
        "baseline": None,
        "write_baseline": None,
        "fail_on": None,
    },
    ("audit", "m:f", "--args", "m:g", "--axes", "obs=time,batch,_", "--axes", "w=", "--axes", "x=a,,b"): {
        "args": "m:g",
        "axes": [("obs", ("time", "batch", None)), ("w", ()), ("x", ("a", None, "b"))],
    },
    ("audit", "m:f", "--differentiate", "a", "--differentiate", "b", "--full", "--detail", "lines"): {
        "differentiate": ["a", "b"],
        "format": "full",
        "detail": "lines",
    },
    ("audit", "m:f", "--select", "lox1, LOX2,", "--select", "LOX3", "--ignore", " lox104 "): {
        "select": ["LOX1", "LOX2", "LOX3"],
        "ignore": ["LOX104"],
    },
    ("audit", "--output", "o", "--write-baseline", "w", "--baseline", "b/b", "--run", "-m", "a", "--full"): {
        "output": Path("o"),
        "write_baseline": Path("w"),
        "baseline": Path("b/b"),
        "run": ["-m", "a", "--full"],
        "function": None,
        "format": None,
    },
    ("explain",): {"code": None},
    ("replay", "b", "m:f", "--args", "m:g"): {"bundle": Path("b"), "function": "m:f", "args": "m:g"},
}


def test_arguments_are_parsed_as_they_are_written():
    for argv, expected in PARSED.items():
        parsed = vars(_parser().parse_args(argv))
        assert {name: parsed[name] for name in expected} == expected, argv


def test_arguments_that_mean_nothing_are_named_with_what_they_must_be(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    number, some, place = "a whole number of at least 1", "a number of more than 0", "must be as in package.module:name"
    for argv, message in (
        *((["tail", ".", "-n", text], f"must be {number}, got {text!r}") for text in ("0", "-1", "1.5", "", "x", "²")),
        *((["tail", ".", "--interval", t], f"must be {some}, got {t!r}") for t in ("0", "-1", "nan", "inf", "x")),
        (["demo", "--seeds", "0"], f"--seeds: must be {number}, got '0'"),
        (["demo", "--out", "folder"], "--out: folder is a folder"),
        (["demo", "--out", "no/a"], "--out: the folder no does not exist"),
        (["plot", ".", "x", "-o", "a.pdf"], "must end in .png or .svg, got 'a.pdf'"),
        (["plot", ".", "x", "-o", "png"], "must end in .png or .svg, got 'png'"),
        (["audit", "m:f", "--output", "folder"], "--output: folder is a folder"),
        (["audit", "m:f", "--write-baseline", "no/a"], "--write-baseline: the folder no does not exist"),
        *((["audit", "m:f", "--axes", text], f"must be as in obs=time,batch,_, got {text!r}") for text in ("x", "=a")),
        *(
            (["audit", "m:f", "--args", text], f"{place}, got {text!r}")
            for text in ("m", "m:", ":f", "a b:f", "m:f:g", "m:1")
        ),
        (["audit", "a-b:f"], f"{place}, got 'a-b:f'"),
        (["replay", "b", "f"], f"{place}, got 'f'"),
        (["audit", "m:f", "--full", "--format", "json"], "not allowed with argument"),
        (["audit", "m:f", "--fail-on", "none"], "invalid choice: 'none'"),
        (["audit"], "give a function, as in package.module:name, or a script, as in --run train.py --steps 100"),
        (["audit", "m:f", "--run", "a.py"], "give a function, as in package.module:name, or a script"),
        *(
            (["audit", *option, "--run", "a.py"], "--args, --axes and --differentiate are for one function")
            for option in (["--args", "m:f"], ["--axes", "x=a"], ["--differentiate", "x"])
        ),
        (["export", ".", "--to", "parquet", "--project", "p", "-o", "x"], "--offline and --project are for --to wandb"),
        (["export", ".", "--to", "tensorboard", "--wide", "-o", "x"], "--wide is for tables, --to csv or parquet"),
    ):
        code, printed = run_expecting_exit(capsys, *argv)
        assert code == 2 and message in printed.err.splitlines()[-1] and not printed.out, argv
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_what_ends_a_command_is_one_line_and_an_exit_code(capsys, monkeypatch):
    def ending(with_what):
        def ls(path, names):
            assert (path, names) == (Path("p"), True)
            if isinstance(with_what, BaseException):
                raise with_what
            print("listed")
            return with_what

        monkeypatch.setattr("lox.commands.ls.ls", ls)
        code = main(["ls", "p", "--names"])
        return code, *capsys.readouterr()

    missing = ModuleNotFoundError("no a")
    missing.add_note("ls needs a,")
    missing.add_note("which b installs")
    for error, line in (
        (Failure("no\nway"), r"lox: no\nway"),
        (lox.StorageError("gone \x1b[2J"), r"lox: gone \x1b[2J"),
        (lox.LogValueError("odd"), "lox: odd"),
        (OSError("disk full"), "lox: disk full"),
        (missing, "lox: ls needs a, which b installs"),
    ):
        assert ending(error) == (1, "", f"{line}\n")
    assert ending(KeyboardInterrupt()) == (130, "", "")
    for code in (0, 1, 3):
        assert ending(code) == (code, "listed\n", "")
    for mistake in (ModuleNotFoundError("no a"), ValueError("a mistake"), RuntimeError("of lox")):
        with pytest.raises(type(mistake)):
            ending(mistake)


def test_the_demo_evaluates_the_parameters_that_a_step_returns():
    train_set, test_set = jax.tree.map(jax.numpy.asarray, training.load())
    train = jax.jit(lox.spool(lambda key: training.train(key, train_set, test_set, 2)))
    params, logs = train(jax.random.key(0))
    _, last = lox.spool(training.loss_fn)(params, test_set, 2, "test/")
    np.testing.assert_allclose(logs["test/loss"][-1], last["test/loss"][0], rtol=1e-5)
