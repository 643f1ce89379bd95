"""Audits without setup: of a script, of the tests of a project, of a process with LOX_AUDIT."""

import functools
import json
import os
import subprocess
import sys
import types

import execnet
import jax
import jax.numpy as jnp
import pytest

from lox.__main__ import main
from lox._audit._recorder import Recorder
from lox._pytest._lox_pytest import _Audits

SCRIPT = """
import functools
import sys
import jax
import jax.numpy as jnp

@functools.partial(jax.jit, static_argnames="n")
def draw(key, n):
    return jax.random.normal(key, (n,)) + jax.random.normal(key, (n,))

@jax.jit
def fine(x):
    return jnp.tanh(x)

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    print(fine(draw(jax.random.key(0), n=3)).shape)
    if "fail" in sys.argv:
        raise KeyError("missing")
    if "exit" in sys.argv:
        sys.exit(7)
    if "interrupt" in sys.argv:
        raise KeyboardInterrupt
"""


def codes(reports):
    return [[finding.code for finding in report.found] for report in reports]


def names(reports):
    return [report.name for report in reports]


def twice(key):
    return jax.random.normal(key) + jax.random.normal(key)


def test_a_function_is_audited_at_its_first_compilation_with_its_arguments():
    with Recorder() as recorder:

        @jax.jit
        def f(x, y):
            return x[0] + y

        f(jnp.ones(3), 1.0)
        f(jnp.ones(4), 1.0)
        (report,) = recorder.reports()
        assert recorder.reports() == []
    assert report.name == "f" and [value.shape for value in report.program.inputs] == [(3,), ()]


@pytest.mark.parametrize(
    "made",
    [
        lambda jit: jit(twice),
        lambda jit: functools.partial(jit, keep_unused=True)(twice),
        lambda jit: jit(functools.partial(twice)),
        lambda jit: jit(keep_unused=True)(twice),
    ],
    ids=["function", "partial of jit", "partial", "factory"],
)
def test_however_it_is_jitted(made):
    with Recorder() as recorder:
        f = made(jax.jit)
        f(jax.random.key(0))
        assert codes(recorder.reports()) == [["LOX700"]]


def test_what_jit_returns_is_what_it_always_returns():
    before, plain = jax.jit, jax.jit(twice)
    with Recorder():
        f = jax.jit(twice)
        assert type(f) is type(plain) and f.__name__ == "twice" and f.__wrapped__.__wrapped__ is twice
        assert f.lower(jax.random.key(0)).compile()(jax.random.key(0)) == plain(jax.random.key(0))
        assert jax.jit.__name__ == "jit"
    assert jax.jit is before
    assert f(jax.random.key(0)) == plain(jax.random.key(0))


def test_the_hook_is_gone_after_an_exception():
    before = jax.jit
    with pytest.raises(KeyError), Recorder():
        raise KeyError
    assert jax.jit is before


def test_what_a_compiled_function_calls_is_audited_with_it():
    with Recorder() as recorder:
        inner = jax.jit(lambda x: x * 2)

        @jax.jit
        def outer(x):
            return inner(x) + 1

        outer(1.0)
        assert names(recorder.reports()) == ["outer"]
        inner(jnp.ones(3))
        assert names(recorder.reports()) == ["<lambda>"]


def test_functions_of_one_source_are_audited_once():
    with Recorder() as recorder:
        for rate in range(5):
            jax.jit(lambda x, rate=rate: x * rate)(1.0)
        assert len(recorder.reports()) == 1


def test_static_and_donated_arguments_stay_what_they_are():
    with Recorder() as recorder:

        @functools.partial(jax.jit, static_argnums=1, static_argnames=("name",), donate_argnums=0)
        def f(x, n, name="a"):
            for _ in range(n):
                x = x + len(name)
            return x

        f(jnp.ones(3), 2, name="abc")
        assert names(recorder.reports()) == ["f"] and not recorder.left_out


def test_methods_are_audited():
    with Recorder() as recorder:

        class Model:
            def __init__(self):
                self.step = jax.jit(self._step)

            def _step(self, key):
                return twice(key)

        Model().step(jax.random.key(0))
        assert codes(recorder.reports()) == [["LOX700"]]


def test_a_function_that_raises_is_the_users_to_mend():
    with Recorder() as recorder:
        f = jax.jit(lambda x: x + undefined)  # noqa: F821
        with pytest.raises(NameError):
            f(1.0)
        assert recorder.reports() == []
        with pytest.raises(NameError):
            f(2.0)
        (report,) = recorder.reports(raised=True)
        assert isinstance(report.error, NameError) and recorder.left_out == []


def test_a_function_that_raised_first_is_audited_when_it_does_not():
    with Recorder() as recorder:

        @jax.jit
        def f(key, x):
            return x + jnp.ones(3) + twice(key)

        with pytest.raises(TypeError):
            f(jax.random.key(0), jnp.ones(4))
        f(jax.random.key(0), jnp.ones(3))
        assert codes(recorder.reports(raised=True)) == [["LOX700"]]


class Model:
    def __init__(self, draw):
        self.draw = draw

    def step(self, key):
        return self.draw(key)


@pytest.mark.parametrize(
    "over",
    [
        lambda draw: lambda key: draw(key),
        lambda draw: functools.partial(lambda draw, key: draw(key), draw),
        lambda draw: Model(draw).step,
        lambda draw: lambda key, draw=draw: draw(key),
        lambda draw: lambda key, *, draw=draw: draw(key),
        lambda draw: jax.vmap(draw, axis_size=2, in_axes=None),
    ],
    ids=["closure", "partial", "method", "default", "keyword", "vmap"],
)
def test_functions_of_one_source_over_different_functions_are_both_audited(over):
    with Recorder() as recorder:
        for draw in (lambda key: jax.random.normal(key), twice):
            jax.jit(over(draw))(jax.random.key(0))
        assert "LOX700" in {code for each in codes(recorder.reports()) for code in each}


def test_what_jax_has_compiled_for_a_function_is_found_again():
    traced = []

    def f(x):
        traced.append(x)
        return x + 1

    with Recorder():
        for _ in range(5):
            jax.jit(f)(1.0)
    assert len(traced) == 1


@pytest.mark.integration  # It needs equinox.
def test_findings_are_the_users_alone():
    import equinox

    with Recorder() as recorder:

        @equinox.filter_jit
        def f(layer, key):
            return layer(jnp.ones(3)) + twice(key)

        f(equinox.nn.Linear(3, 1, key=jax.random.key(1)), jax.random.key(0))
        found = [finding for report in recorder.reports() for finding in report.found]
    assert {finding.code for finding in found} == {"LOX700"} and all(each.file == __file__ for each in found)


def test_functions_are_audited_in_the_context_of_their_call():
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    with Recorder() as recorder:

        @jax.jit
        def wide(x, key):
            return x.astype(jnp.float64) + jax.random.normal(key) + jax.random.normal(key)

        @jax.jit
        def sharded(x, key):
            x = jax.reshard(x, jax.sharding.PartitionSpec("d"))
            return x + jax.random.normal(key) + jax.random.normal(key)

        with jax.enable_x64(True):
            assert wide(jnp.ones(3), jax.random.key(0)).dtype == "float64"
        with jax.set_mesh(mesh):
            sharded(jnp.ones(4), jax.random.key(0))
        reports = {report.name: report for report in recorder.reports()}
    assert reports.keys() == {"wide", "sharded"} and not recorder.left_out and not recorder.reports()
    assert [[finding.code for finding in report.issues] for report in reports.values()] == [["LOX700"]] * 2


def test_objects_of_the_user_are_audited_after_their_calls():
    calls = []

    class Doubling:
        def __call__(self, x):
            calls.append(x)
            return 2 * x

    with Recorder() as recorder:
        assert jax.jit(Doubling())(1.0) == 2 and len(calls) == 1
        assert len(recorder.reports()) == 1 and len(calls) == 2


@pytest.mark.integration
def test_functions_that_a_library_splits_into_arrays_are_audited():
    from flax import nnx

    class Counting(nnx.Module):
        def __init__(self):
            self.calls = nnx.Variable(jnp.zeros(()))

    with Recorder() as recorder:

        @nnx.jit
        def step(model, key):
            model.calls[...] += 1
            return jax.random.normal(key) + jax.random.normal(key)

        model = Counting()
        for seed in range(2):
            step(model, jax.random.key(seed))
        (report,) = recorder.reports()
    assert model.calls[...] == 2 and not recorder.left_out
    assert [finding.code for finding in report.issues] == ["LOX700"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "training.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return "training.py"


def test_run_audits_what_a_script_compiles(script, capsys):
    before = sys.argv, list(sys.path), jax.jit
    assert main(["audit", "--run", script, "--steps", "3"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["arguments ['--steps', '3']", "(3,)"]
    assert out[2].startswith("training.py:9:") and "LOX700" in out[2]
    assert out[3].startswith("2 functions: 1 error; ") and len(out) == 4
    assert (sys.argv, list(sys.path), jax.jit) == before


def test_run_takes_a_module(script, capsys):
    assert main(["audit", "--ignore", "LOX7", "--run", "-m", "training", "x"]) == 0
    assert capsys.readouterr().out.startswith("arguments ['x']")


@pytest.mark.parametrize(("how", "code"), [("fail", 1), ("exit", 7), ("interrupt", 130)])
def test_a_script_that_fails_is_audited_as_far_as_it_came(script, capsys, how, code):
    assert main(["audit", "--run", script, how]) == code
    printed = capsys.readouterr()
    assert "LOX700" in printed.out
    assert ("KeyError: 'missing'" in printed.err) is (how == "fail") and "lox/commands" not in printed.err


def test_run_writes_to_a_file(script, tmp_path, capsys):
    assert main(["audit", "--format", "sarif", "--output", "found.sarif", "--run", script]) == 1
    assert capsys.readouterr().out == "arguments []\n(3,)\n"
    found = json.loads((tmp_path / "found.sarif").read_text())
    assert [result["ruleId"] for result in found["runs"][0]["results"]] == ["LOX700"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "ending",
    [
        "f(key)\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\n",
        "f(key)\nos.chdir('/')\nopen(__file__).close()\n",
        "threading.Timer(0.5, lambda: f(key)).start()\n",
    ],
    ids=["fork", "other folder", "thread"],
)
def test_however_a_script_goes_on(tmp_path, ending):
    (tmp_path / "script.py").write_text(
        "import os\nimport sys\nimport threading\nimport jax\nkey = jax.random.key(0)\n"
        f"f = jax.jit(lambda key: jax.random.normal(key) + jax.random.normal(key))\n{ending}"
    )
    found = run("-W", "ignore", "-m", "lox", "audit", "--run", "script.py", folder=tmp_path)
    assert found.returncode == 1 and found.stdout.count("LOX700") == 1, found.stderr


def test_a_script_that_compiles_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "empty.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--run", "empty.py"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "lox: no function that the script gives to jax.jit was compiled\n" and printed.out == "1\n"
    assert main(["audit", "--format", "json", "--run", "empty.py"]) == 0
    assert capsys.readouterr().out == "1\n[]\n"


def test_a_script_that_ends_with_a_message_says_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "ending.py").write_text("import sys\nsys.exit('no data')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--run", "ending.py"]) == 1
    assert capsys.readouterr().err.startswith("no data\n")


def test_a_script_that_cannot_run_is_told_as_python_does(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text("def (:")
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--run", "broken.py"]) == 1
    error = capsys.readouterr().err
    assert "SyntaxError" in error and "lox/commands" not in error


def test_settings_of_the_project_count(script, tmp_path, capsys):
    (tmp_path / "pyproject.toml").write_text('[tool.lox.audit]\nignore = ["LOX700"]\n')
    assert main(["audit", "--run", script]) == 0
    assert "LOX700" not in capsys.readouterr().out
    assert main(["audit", "--ignore", "LOX1", "--run", script]) == 1


def run(*argv, folder, **environment):
    return subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.integration
def test_the_environment_asks_for_audits(script, tmp_path):
    (tmp_path / "main.py").write_text("import lox\nimport runpy\nrunpy.run_path('training.py', run_name='__main__')\n")
    found = run("main.py", folder=tmp_path, LOX_AUDIT="1")
    assert found.returncode == 0 and "LOX700" in found.stderr and "2 functions: 1 error" in found.stderr
    for no in ("0", ""):
        assert run("main.py", folder=tmp_path, LOX_AUDIT=no).stderr == ""


def test_a_comment_that_one_of_several_audits_needs_is_used(tmp_path, monkeypatch, capsys):
    (tmp_path / "both.py").write_text(
        "import jax\n"
        "def draw(key, again):\n"
        "    return jax.random.normal(key) + jax.random.normal(again)  # lox: ignore[LOX700]\n"
        "one = jax.jit(lambda key: draw(key, key))\n"
        "two = jax.jit(lambda key: draw(*jax.random.split(key)))\n"
        "one(jax.random.key(0)), two(jax.random.key(0))\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "--fail-on", "warning", "--run", "both.py"]) == 0
    assert "LOX001" not in capsys.readouterr().out
    alone = (tmp_path / "both.py").read_text().replace("one(jax.random.key(0)), ", "")
    (tmp_path / "alone.py").write_text(alone)
    assert main(["audit", "--fail-on", "warning", "--run", "alone.py"]) == 1
    assert "LOX001 LOX700 is ignored here" in capsys.readouterr().out


def test_what_cannot_be_remembered_does_not_stop_the_program():
    class Odd:
        def __init__(self, fails):
            self.fails = fails

    def flatten(odd):
        if odd.fails:
            raise ValueError("not now")
        return (), odd

    jax.tree_util.register_pytree_node(Odd, flatten, lambda odd, _: odd)
    with Recorder() as recorder:
        f = jax.jit(lambda x, odd: x + 1, static_argnums=1)
        assert f(1.0, Odd(True)) == 2.0
        assert recorder.reports() == [] and recorder.left_out == ["<lambda>"]


TESTS = """
import jax, pytest
from training import draw, fine

def test_draw():
    assert draw(jax.random.key(0), n=3).shape == (3,)

def test_fine():
    fine(1.0)
"""


@pytest.mark.integration
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_pytest_audits_what_tests_compile(script, tmp_path, workers):
    (tmp_path / "test_training.py").write_text(TESTS)
    options = ("-m", "pytest", "-p", "no:cacheprovider", *workers)
    assert "LOX700" not in run(*options, folder=tmp_path).stdout
    found = run(*options, "--lox-audit", folder=tmp_path)
    assert found.returncode == 1 and "2 passed" in found.stdout
    assert "= lox audit =" in found.stdout and "1 finding in 2 functions." in found.stdout
    assert found.stdout.count("LOX700") == 1
    (tmp_path / "pyproject.toml").write_text('[tool.lox.audit]\nignore = ["LOX700"]\n')
    assert run(*options, "--lox-audit", folder=tmp_path).returncode == 0


@pytest.mark.integration
def test_a_comment_that_an_audit_of_an_earlier_test_needs_is_used(tmp_path):
    (tmp_path / "losses.py").write_text("def loss(a, b):\n    return ((a - b) ** 2).mean()  # lox: ignore[LOX104]\n")
    (tmp_path / "test_losses.py").write_text(
        "import jax, jax.numpy as jnp, losses\n\n"
        "def test_one():\n    jax.jit(lambda a, b: losses.loss(a, b))(jnp.ones(3), jnp.ones((3, 1)))\n\n"
        "def test_two():\n    jax.jit(lambda a, b: 1 + losses.loss(a, b))(jnp.ones(3), jnp.ones(3))\n"
    )
    found = run("-m", "pytest", "-p", "no:cacheprovider", "--lox-audit", folder=tmp_path)
    assert found.returncode == 0 and "2 passed" in found.stdout and "LOX001" not in found.stdout


@pytest.mark.integration
@pytest.mark.parametrize("settings", ["[tool]\nlox = 3\n", "[tool.lox.audit]\nignore = 3\n", "[tool.lox.audit\n"])
def test_wrong_settings_are_said_and_end_no_program(script, tmp_path, settings):
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "main.py").write_text("import lox\nprint('ran')\n")
    found = run("main.py", folder=tmp_path, LOX_AUDIT="1")
    assert (found.returncode, found.stdout) == (0, "ran\n")
    assert "LOX_AUDIT: nothing is audited: " in found.stderr and "pyproject.toml" in found.stderr


@pytest.mark.parametrize("arguments", [["--select", "LOX9999"], ["--baseline", "missing.json"]])
def test_what_is_wrong_is_said_before_the_script_runs(script, capsys, arguments):
    assert main(["audit", *arguments, "--run", script]) == 1
    printed = capsys.readouterr()
    assert printed.out == "" and arguments[1] in printed.err


def test_run_of_no_module(capsys):
    assert main(["audit", "--run", "-m"]) == 1
    assert "needs the name of a module" in capsys.readouterr().err


@pytest.mark.integration
def test_pytest_says_what_it_could_not_audit(tmp_path):
    (tmp_path / "test_once.py").write_text(
        "import jax\ncalls = []\n"
        "def test():\n    def once(x):\n        calls.append(x)\n        assert len(calls) == 1\n        return x\n"
        "    jax.jit(once)(1.0)\n"
    )
    found = run("-m", "pytest", "-p", "no:cacheprovider", "--lox-audit", folder=tmp_path)
    assert "once is not audited: it cannot be traced again" in found.stdout and "0 findings in 0" in found.stdout


class Summary:
    """Takes what a plugin of pytest says at the end."""

    def __init__(self):
        self.lines = []

    def section(self, title):
        self.lines.append(f"= {title}")

    def line(self, text):
        self.lines.append(text)


def test_what_workers_of_pytest_have_audited_is_told_once_by_the_controller(tmp_path):
    def config(**more):
        return types.SimpleNamespace(rootpath=tmp_path, **more)

    def draw(key):
        return jax.random.normal(key) + jax.random.normal(key)

    def tested(audits, *functions):
        """Runs a test that compiles these."""
        protocol = audits.pytest_runtest_protocol()
        next(protocol)
        for function in functions:
            jax.jit(function)(jax.random.key(0))
        with pytest.raises(StopIteration) as ended:
            protocol.send("the result")
        assert ended.value.value == "the result"

    def finished(audits, status=pytest.ExitCode.OK, **more):
        session = types.SimpleNamespace(config=config(**more), exitstatus=status)
        audits.pytest_sessionfinish(session)
        summary = Summary()
        audits.pytest_terminal_summary(summary)
        audits.pytest_unconfigure()
        return session.exitstatus, summary.lines

    jit, outputs = jax.jit, []
    for functions in ([draw], [lambda key: key, draw]):
        worker, output = _Audits(config()), {}
        tested(worker, *functions)
        worker._recorder.left_out.append(f"left {len(functions)}")
        status, lines = finished(worker, workeroutput=output)
        assert status == pytest.ExitCode.OK  # The controller says how the session ended.
        count = f"{len(functions)} function{'s' if len(functions) > 1 else ''}"
        assert lines[0] == "= lox audit" and lines[-1] == f"1 finding in {count}."
        assert "LOX700" in lines[1] and "test_audit_recorder.py:" in lines[1]
        outputs.append(execnet.loads(execnet.dumps(output)))
    assert jax.jit is jit
    for status, found in (
        (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED),
        (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERRUPTED),
    ):
        controller = _Audits(config())
        for output in outputs:
            controller.pytest_testnodedown(types.SimpleNamespace(workeroutput=output))
        controller.pytest_testnodedown(types.SimpleNamespace())  # One that crashed.
        ended, (_, line, *left, count) = finished(controller, status)
        assert ended == found and "LOX700" in line and count == "1 finding in 3 functions."
        assert [each.partition(" is not audited")[0] for each in left] == ["left 1", "left 2"]
    fine = _Audits(config())
    tested(fine)
    jax.jit(lambda key: key)(jax.random.key(1))  # As a fixture of the session does at its end.
    assert finished(fine) == (pytest.ExitCode.OK, ["= lox audit", "0 findings in 1 function."])
    (tmp_path / "pyproject.toml").write_text('[tool.lox.audit]\nignore = ["LOX700"]\n')
    settled = _Audits(config())
    tested(settled, draw)
    assert finished(settled) == (pytest.ExitCode.OK, ["= lox audit", "0 findings in 1 function."])
    (tmp_path / "pyproject.toml").write_text("[tool.lox.audit]\nignore = 3\n")
    with pytest.raises(pytest.UsageError, match="pyproject.toml"):
        _Audits(config())
    assert jax.jit is jit
