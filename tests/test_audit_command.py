"""The command `lox audit`: what it prints, and how it exits."""

import json
import sys

import pytest

from lox.__main__ import main

PROGRAM = """
import functools, jax, jax.numpy as jnp

class steps:
    def update(obs, w):
        return obs.T + obs * w

def positional():
    return jax.ShapeDtypeStruct((8, 8), jnp.float32), jnp.ones(8)

def named():
    return {"obs": jnp.ones((8, 8)), "w": jnp.ones(8)}

def unlike():
    return jnp.ones((8, 8)), jnp.ones(3)

def scale(x, *more, factor=2):
    return x * factor

def nothing():
    return jnp.zeros(3)

@functools.wraps(scale)
def scaled():
    return scale(jnp.ones(3))

def listed():
    return [1]

number = 3
"""


@pytest.fixture(autouse=True)
def program(tmp_path, monkeypatch):
    (tmp_path / "auditedprogram.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("auditedprogram", None)
    sys.path[:] = [path for path in sys.path if path != str(tmp_path)]


@pytest.fixture
def audit(capsys):
    def run(*argv):
        try:
            code = main(["audit", *argv])
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


SQUARE = ("auditedprogram:steps.update", "--axes", "obs=time,batch", "--args")


@pytest.mark.parametrize("factory", ["positional", "named"])
def test_the_report_is_printed_and_an_issue_is_exit_code_1(audit, factory):
    code, out, err = audit(*SQUARE, f"auditedprogram:{factory}")
    assert code == 1 and not err
    assert out.startswith("auditedprogram.py:6:16 LOX101 Axis 0 of obs.T of shape (8 batch, 8 time) is batch")
    assert out.splitlines()[-1].startswith("update: 1 error")


def test_json_is_a_list_of_objects(audit):
    code, out, _ = audit(*SQUARE, "auditedprogram:positional", "--format", "json")
    assert code == 1 and [issue["code"] for issue in json.loads(out)[0]["issues"]] == ["LOX101"]


@pytest.mark.parametrize(
    ("write", "start"),
    [("markdown", "# Audit of `update`"), ("mermaid", "flowchart TD"), ("full", "Audit of update: 1 error")],
)
def test_other_forms(audit, write, start):
    assert audit(*SQUARE, "auditedprogram:positional", "--format", write, "--detail", "equations")[1].startswith(start)


def test_what_is_ignored_is_no_failure(audit):
    ignored = ("--ignore", "LOX101", "--fail-on", "warning")
    assert audit(*SQUARE, "auditedprogram:positional", *ignored)[0] == 0
    assert audit(*SQUARE, "auditedprogram:positional", *ignored, "--ignore", "LOX7")[0] == 0


def test_a_function_without_arguments_needs_no_factory(audit):
    code, out, _ = audit("auditedprogram:nothing")
    assert code == 0 and out.startswith("nothing: nothing found; ")


def test_a_function_whose_arguments_are_injected_needs_no_factory(audit):
    code, out, error = audit("auditedprogram:scaled")
    assert (code, error) == (0, "") and out.startswith("scale: nothing found")


def test_a_function_that_raises_is_an_issue(audit):
    code, out, _ = audit("auditedprogram:steps.update", "--args", "auditedprogram:unlike")
    assert code == 1 and "LOX400" in out and "ValueError" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["missing.program:f"], "there is no module missing here or among what is installed"),
        (["auditedprogram.py:scale"], "or among what is installed; if a file is meant, write auditedprogram:scale"),
        (["auditedprogram:missing"], "auditedprogram has no missing"),
        (["auditedprogram:steps.update"], "update takes obs and w: give them with --args MODULE:FACTORY"),
        (["auditedprogram:scale"], "scale takes x: give it with --args MODULE:FACTORY"),
        (["auditedprogram:scale", "--args", "auditedprogram:named"], "lox.audit(scale) is given 2 arguments, and "),
        (["auditedprogram:number"], "auditedprogram:number is no function but int"),
        (["auditedprogram:nothing", "--args", "auditedprogram:listed"], "must return a tuple of positional or a dict"),
        (["auditedprogram:nothing", "--axes", "obs=time"], "axes= names 'obs'"),
        (["auditedprogram:nothing", "--ignore", "LOX999"], "lox.audit knows no LOX999"),
        (["auditedprogram:nothing", "--differentiate", "w"], "differentiate= names 'w'"),
    ],
)
def test_what_cannot_be_audited_is_said(audit, argv, message):
    code, out, err = audit(*argv)
    assert code == 1 and not out and message in err


def test_a_module_that_needs_another_says_which(audit, tmp_path):
    (tmp_path / "needing.py").write_text("import notinstalled\n")
    code, _, err = audit("needing:f")
    assert code == 1 and "importing needing needs notinstalled, which is not installed" in err


@pytest.mark.parametrize(
    "argv",
    [
        ["module.f"],
        ["a:b:c"],
        ["m:f", "--axes", "time"],
        ["m:f", "--format", "yaml"],
        [],
        ["m:f", "--run", "script.py"],
        ["--run"],
        ["--args", "m:f", "--run", "x.py"],
    ],
)
def test_wrong_usage_is_exit_code_2(audit, argv):
    assert audit(*argv)[0] == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train.py"], "a script goes after --run: lox audit --run train.py"),
        (["train.py", "--run"], "a script goes after --run: lox audit --run train.py"),
        (["train"], "a script is run by --run FILE, a module by --run -m NAME"),
        (["--run"], "--run takes a script, as in --run train.py --steps 100; it comes after other options"),
        (["--run", "-m"], "--run -m needs the name of a module"),
        (["--run", "missing.py"], "there is no file missing.py to run\n"),
        (["--run", "module:f"], "a function is audited without --run: lox audit module:f"),
        (["--run", "python3", "train.py", "--n", "1"], "without python3: --run train.py --n 1"),
        (["--run", "json.tool", "a b"], "a module is run with -m: --run -m json.tool 'a b'"),
        (["--run", "--select=LOX1", "train.py"], "--select=LOX1 comes before --run"),
        (["--run", "there.py --n 1"], "its arguments go without quotes: --run there.py --n 1"),
    ],
)
def test_a_wrong_use_of_run_says_what_was_meant(audit, tmp_path, argv, message):
    (tmp_path / "there.py").write_text("")
    code, out, err = audit(*argv)
    assert code in (1, 2) and not out and message in err and "Traceback" not in err


def test_options_that_went_to_a_script_are_named_if_it_refuses_them(audit, tmp_path):
    (tmp_path / "strict.py").write_text("import sys\nsys.exit(2 if len(sys.argv) > 3 else 0)\n")
    hint = "--select and --full went to the script: options of lox audit come before --run"
    code, _, err = audit("--run", "strict.py", "--select=LOX1", "--full", "--full")
    assert code == 2 and hint in err
    code, _, err = audit("--run", "strict.py", "--select=LOX1", "--full")
    assert code == 0 and "went to the script" not in err
    code, _, err = audit("--run", "strict.py", "--a", "--b", "--c")
    assert code == 2 and "went to the script" not in err


EXITING = """
import sys, jax.numpy as jnp

def exits(x):
    sys.exit(0)

def square(x):
    return x * x

def arguments():
    return (jnp.ones(3),)

def exiting():
    sys.exit(0)

def needing(n):
    return (jnp.ones(n),)

def inner():
    raise ValueError("no data\\nat all")

def raising():
    return inner()
"""


@pytest.fixture
def module(tmp_path):
    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)

    names = []
    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_function_that_exits_does_not_pass(audit, module):
    module("exitingprogram", EXITING)
    code, out, _ = audit("exitingprogram:exits", "--args", "exitingprogram:arguments")
    assert code == 1 and "LOX400" in out and "SystemExit: 0" in out


def test_what_makes_arguments_and_exits_does_not_pass(audit, module):
    module("exitingprogram", EXITING)
    code, out, err = audit("exitingprogram:square", "--args", "exitingprogram:exiting")
    assert code == 1 and not out
    assert err == "lox: calling exitingprogram:exiting exits Python, with 0, instead of returning\n"


def test_a_module_that_exits_does_not_pass(audit, module):
    module("leavingprogram", "import sys\nsys.exit(0)\n")
    code, out, err = audit("leavingprogram:f")
    assert code == 1 and not out and "importing leavingprogram exits Python, with 0" in err


def test_what_needs_arguments_to_make_some_is_one_line(audit, module):
    module("exitingprogram", EXITING)
    code, _, err = audit("exitingprogram:square", "--args", "exitingprogram:needing")
    assert code == 1 and err.count("\n") == 1
    assert "calling exitingprogram:needing raises TypeError: needing() missing 1 required positional argument" in err


def test_an_exception_of_what_makes_arguments_is_told_with_its_own_lines(audit, module):
    module("exitingprogram", EXITING)
    code, _, err = audit("exitingprogram:square", "--args", "exitingprogram:raising")
    assert code == 1 and err.endswith("lox: calling exitingprogram:raising raises ValueError: no data\n")
    assert "in raising" in err and "in inner" in err
    assert "commands" not in err and "importlib" not in err and "Traceback" not in err


def test_an_exception_of_a_module_is_told_with_its_own_lines(audit, module):
    module("failingprogram", "def f():\n    return {}['x']\nf()\n")
    code, _, err = audit("failingprogram:f")
    assert code == 1 and err.endswith("lox: importing failingprogram raises KeyError: 'x'\n")
    assert "line 3" in err and "line 2" in err and "importlib" not in err and "commands" not in err


def test_a_module_that_is_no_python_is_one_line(audit, module):
    module("wrongprogram", "def (:\n")
    code, _, err = audit("wrongprogram:f")
    assert code == 1 and err.count("\n") == 1 and "SyntaxError" in err and "wrongprogram.py, line 1" in err
