"""`lox.testing` itself: what it generates, what its oracle says, and what it says of functions of users."""

import runpy
import subprocess
import sys

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax import lax
from tiers import generates

import lox
from lox import _handler, testing
from lox.testing import Derivative, Log, Scan, Update, While
from lox.testing.__main__ import main

X, N = np.float32([0.3, -0.5]), 4


# -- programs ------------------------------------------------------------------------------------------------------


@generates(50)
@given(testing.programs(depth=1, constructs=["scan", "grad"], values=["x"], dtypes=[]))
def test_programs_are_made_of_what_was_asked_for(program):
    assert {type(statement) for statement in program.statements()} <= {Log, Update, Scan, Derivative}
    assert {statement.value for statement in program.statements() if isinstance(statement, Log)} == {"x"}
    assert not any(
        isinstance(inner, (Scan, Derivative)) for outer in program.body for inner in getattr(outer, "body", ())
    )


def test_a_program_prints_as_the_python_that_it_runs():
    program = testing.Program((Scan(2, (Log("a", "x", ("metric",), steps=True), Update(0.5, 0.25, 1))),))
    scope = {"lox": lox, "jax": jax, "jnp": jnp}
    exec(repr(program), scope)
    (x, n), logs = lox.spool(scope["program"])(X, N)
    (expected_x, expected_n), expected = lox.spool(program)(X, N)
    np.testing.assert_array_equal(x, expected_x)
    np.testing.assert_array_equal(logs["a"], expected["a"])
    assert n == expected_n and logs.steps["step"]["a"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"depth": -1}, "depth must be an integer of at least 0, got -1."),
        ({"length": 1.5}, "length must be an integer of at least 1, got 1.5."),
        ({"constructs": ["goto"]}, "got 'goto'"),
        ({"values": ["y"]}, "got 'y'"),
        ({"dtypes": ["float99"]}, "got 'float99'"),
        ({"values": [], "dtypes": []}, "A program must log something"),
    ],
)
def test_options_that_are_wrong(options, text):
    with pytest.raises(ValueError, match="depth|length|constructs|values|dtypes") as raised:
        testing.programs(**options)
    assert text in str(raised.value)


# -- laws ----------------------------------------------------------------------------------------------------------


def branching(x, n):
    def loop(x, n):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, lox.log({"x": c[1]})["x"] / 2), (0, x))[1]

    def step(x, i):
        return lax.cond((n + i) % 2 == 1, loop, lambda x, n: -x, x, n), lox.log({"i": i}, step=i)["i"]

    return lax.scan(step, x, jnp.arange(3))


@pytest.mark.parametrize("law", [testing.scan, testing.cond, testing.while_loop], ids=lambda law: law.__name__)
def test_loops_and_branches_keep_the_law(law):
    assert testing.check(branching, jnp.float32(3), jnp.int32(2), laws=[law]).kept == (law.__name__,)


def train(w, xs):
    def loss(w, x):
        return lox.log({"loss": jnp.mean((w * x - 1) ** 2)}, tags="metric")["loss"]

    def step(w, pair):
        i, x = pair
        slope = jax.grad(loss)(w, x)
        lox.log({"slope": slope}, step=i)
        return w - 0.1 * slope, None

    return lax.scan(step, w, (jnp.arange(len(xs)), xs))[0]


@pytest.mark.exhaustive
def test_a_function_of_the_users_is_checked():
    report = testing.check(train, jnp.float32(0.5), jnp.ones((3, 2)))
    assert {"transparency", "jit", "vmap", "derivatives", "scan", "filters", "tap_and_spool"} <= set(report.kept)
    assert report.not_applicable["while_loop"] == "the function has no while_loop"


def of_vmap(xs):
    return jax.vmap(lambda x: lox.log({"x": x})["x"] * 2)(xs)


def of_shards(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    spec = jax.sharding.PartitionSpec("d")
    return jax.shard_map(lambda x: lox.log({"x": x})["x"], mesh=mesh, in_specs=spec, out_specs=spec)(x)


def watching(w, x):
    slope = jax.grad(lambda w: jnp.sum(lox.log_grad({"h": w * x})["h"] ** 2))(w)
    return lox.log({"slope": slope})["slope"]


def straight_through(x):
    return lox.log({"x": x + lax.stop_gradient(jnp.round(x) - x), "square": lax.stop_gradient(1e8 * x * x)})["x"]


def growing(x):
    return lax.while_loop(lambda x: x < 5, lambda x: lox.log({"x": x})["x"] * 2, x)


@jax.custom_jvp
def with_rule(x):
    return jnp.sin(lox.log({"x": x})["x"])


@with_rule.defjvp
def with_rule_jvp(primals, tangents):
    return jnp.sin(primals[0]), jnp.cos(primals[0]) * lox.log({"tangent": tangents[0]})["tangent"]


def of_keys(key):
    return jax.random.split(lox.log({"key": key})["key"])


LEGITIMATE = {
    "a vmap inside": (of_vmap, (np.ones(3, np.float32),)),
    "a shard_map inside": (of_shards, (jnp.arange(8.0),)),
    "log_grad in its own grad": (watching, (jnp.float32(0.5), jnp.ones(2))),
    "derivatives that are cut off": (straight_through, (jnp.float32(0.3),)),
    "a loop as long as its argument says": (growing, (jnp.float32(1),)),
    "a rule that does not run the function": (with_rule, (jnp.float32(1),)),
    "keys": (of_keys, (jax.random.key(0),)),
    "numbers of Python": (lambda x: {"x": lox.log({"x": x})["x"], "coefficient": 1.0}, (1.0,)),
    "donated arguments": (jax.jit(lambda x: lox.log({"x": x})["x"] * 2, donate_argnums=0), (jnp.arange(3.0),)),
    "no arguments": (lambda: lox.log({"x": jnp.ones(2)})["x"], ()),
    "no iterations": (lambda x: lax.scan(lambda c, _: (c, lox.log({"c": c})["c"]), x, None, length=0), (1.0,)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LEGITIMATE)
def test_no_false_alarm(name):
    fun, args = LEGITIMATE[name]
    laws = [law for law in testing.LAWS if law is not testing.custom_rules]  # The same as for derivatives.
    assert testing.check(fun, *args, laws=laws).claims > 30


@pytest.mark.parametrize(
    ("refused", "law"),
    [
        (lambda x: jax.pure_callback(np.sin, x, x), testing.vmap),
        (lambda x: jax.pure_callback(np.sin, x, x, vmap_method="sequential"), testing.derivatives),
        (lambda x: jax.pure_callback(np.sin, x, x, vmap_method="sequential"), testing.logs_are_values),
    ],
)
def test_what_jax_has_not_is_no_law_of_lox(refused, law):
    report = testing.check(lambda x: lox.log({"x": refused(x)})["x"], jnp.float32(1), laws=[testing.jit, law])
    assert report.kept == ("jit",) and "JAX has no" in report.not_applicable[law.__name__]


class Changing:
    """A function that is another one each time."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        return lox.log({"x": x + self.calls})["x"]


@pytest.mark.parametrize(
    ("fun", "laws", "text"),
    [
        (lambda x: x, testing.LAWS, "the function logs nothing"),
        (Changing(), testing.LAWS, "it does something else when it is called again"),
        (train, [], "no law was given"),
        (lambda x: lox.log({"x": x})["x"], [testing.scan], "no law applies"),
        (
            lambda x: lax.fori_loop(0, jnp.int32(20), lambda i, x: lox.log({"x": x})["x"], x),
            testing.LAWS,
            "max_iters=16 is too small",
        ),
    ],
)
def test_nothing_is_said_to_be_checked_that_was_not(fun, laws, text):
    args = (jnp.float32(1), jnp.ones((2, 2))) if fun is train else (jnp.float32(1),)
    with pytest.raises(ValueError, match=text):
        testing.check(fun, *args, laws=laws)


def changing_keys():
    calls = iter(range(1000))
    return lambda x: lox.log({f"x{next(calls)}": x})


def once():
    calls = iter(range(1000))
    return lambda x: lox.log({"x": x}) if next(calls) == 0 else {"x": x}


@pytest.mark.parametrize(
    ("fun", "args", "options", "text"),
    [
        (changing_keys(), (1.0,), {}, "does something else when it is called again"),
        (once(), (1.0,), {}, "does something else when it is called again"),
        (lambda x: lox.log_grad({"x": x}), (1.0,), {}, "logged by a derivative"),
        (of_vmap, ("text",), {}, "pytrees of arrays, got 'text' of type str"),
        (
            lambda x: (lox.log({"x": x}), "text"),
            (1.0,),
            {},
            r"return pytrees of arrays, got 'text' of type str at \[1\]",
        ),
        (None, (), {}, "takes a function, got None"),
        (of_vmap, (jnp.ones(2),), {"laws": testing.jit}, "laws must be a list"),
        (of_vmap, (jnp.ones(2),), {"laws": ["jit"]}, "got 'jit'"),
        (of_vmap, (jnp.ones(2),), {"batch": []}, "batch= must be a list"),
        (of_vmap, (jnp.ones(2),), {"batch": [(jnp.ones(3),)]}, "structure, shapes and dtypes of the others"),
        (of_vmap, (jnp.ones(2),), {"spool": {"reduce": "mean"}}, "spool= takes unify"),
        (of_vmap, (jnp.ones(2),), {"tolerance": float("inf")}, "tolerance must be"),
        (of_vmap, (jnp.ones(2),), {"choose": lambda claims: None}, "A law makes claims"),
        (of_vmap, (jnp.ones(2),), {"choose": lambda claims: []}, "none of its claims was chosen"),
    ],
)
def test_arguments_that_are_wrong(fun, args, options, text):
    with pytest.raises(ValueError, match=text):
        testing.check(fun, *args, **options)


def test_every_lane_must_fit_in_max_iters():
    def f(x):
        return lax.while_loop(lambda x: jnp.abs(x) < 16, lambda x: lox.log({"x": x})["x"] - 1, x)

    with pytest.raises(ValueError, match="max_iters=16 is too small"):
        testing.check(f, jnp.float32(-4), batch=[(jnp.float32(4),)], laws=[testing.vmap])


def test_a_check_is_not_inside_of_a_handler():
    with pytest.raises(ValueError, match="outside of other transformations and handlers"):
        lox.spool(lambda x: testing.check(of_vmap, x))(jnp.ones(2))


def test_what_a_function_raises_is_raised():
    def f(x):
        lox.log({"x": x})
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        testing.check(f, 1.0)


# -- fuzz ----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_a_program_that_breaks_a_law_is_stored_as_a_file_that_shows_it(tmp_path, monkeypatch, capsys):
    scan_p = jax.extend.core.primitives.scan_p
    rule = _handler.rules[scan_p]
    options = ["--depth", "1", "--length", "1", "--laws", "scan", "--out", str(tmp_path / "found")]
    command = ["--minutes", "0.2", "--seed", "1", *options]  # The ninth program of this seed is a scan.

    def doubled(*call):
        outs, state, logs = rule(*call)
        return outs, state, (*logs, *logs)

    with monkeypatch.context() as patch:
        patch.setitem(_handler.rules, scan_p, doubled)
        assert main(command) == 1
        path = min((tmp_path / "found").iterdir())
        assert path.name.startswith("scan_") and f"{path}: BrokenLaw" in capsys.readouterr().out
        assert "# def program(x, n):" in path.read_text()
        with pytest.raises(testing.BrokenLaw):
            runpy.run_path(str(path))
    runpy.run_path(str(path))  # Without the mistake the law holds.


def test_a_run_without_findings_stores_nothing(tmp_path, capsys):
    tally = testing.fuzz(seconds=3, depth=1, laws=[testing.absence], folder=tmp_path / "found")
    assert tally.programs > 0 and tally.claims > 0 and not tally.failures
    assert not list((tmp_path / "found").iterdir())
    assert f"{tally.programs:,} programs" in capsys.readouterr().out


def test_a_run_that_checked_nothing_is_no_success(tmp_path, capsys):
    assert main(["--minutes", "1e-9", "--out", str(tmp_path)]) == 1
    assert "Nothing was checked" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as raised:
        main(["--minutes", "1", "--out", str(tmp_path / "file")])
    assert raised.value.code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--minutes", "0"],
        ["--minutes", "soon"],
        ["--depth", "-1"],
        ["--length", "0"],
        ["--laws", "gravity"],
        ["--depth", "x"],
    ],
)
def test_arguments_of_the_command_that_are_wrong(arguments):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


@pytest.mark.exhaustive
def test_a_loop_in_the_condition_of_a_loop_has_its_own_number_of_iterations():
    test = (Log("a", "n"), While(1, (), fori=True), While(2, (Log("a", "n"),)))
    program = testing.Program((While(3, (Log("b", "n"),), test=test),))
    for n in range(7):
        testing.check(program, np.float32([0.5, 1.0]), np.int32(n), laws=[testing.jit, testing.while_loop])


def test_without_hypothesis_the_extra_is_named():
    program = "import sys; sys.modules['hypothesis'] = None; import lox.testing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "the extra 'testing' installs: pip install 'jax-lox[testing]'" in done.stderr


LOGGED = Log("a", "x", ("metric",))
NESTED = testing.Program(
    (
        Log("b", "x"),
        testing.Call("strip", (testing.Call("keep", (LOGGED,), "metric"),), "metric"),
        testing.Call("tap", (LOGGED,), ""),
        While(3, (Update(0.5, 0.25, 1),), (Log("c", "n"),)),
    )
)


def test_statements_are_those_of_conditions_too_and_handlers_may_be_within_each_other():
    assert {each.key for each in NESTED.statements() if isinstance(each, Log)} == {"a", "b", "c"} and NESTED.handles
    assert "jit" in testing.check(NESTED, X, N, laws=[testing.absence, testing.jit]).kept
    spooled = lox.spool(NESTED, max_iters=3, unify=True)(X, N)[1]
    assert set(spooled) == set(testing.reference(NESTED, X, N).events) == {"a", "b", "c"}


def test_a_key_that_should_not_be_there_is_a_difference():
    heard = testing.reference(NESTED, X, N).events
    without = {key: of for key, of in heard.items() if key != "b"}
    assert testing.difference(heard, heard, 0) is None
    assert "key 'b'" in testing.difference(without, heard, 0) and "key 'b'" in testing.difference(heard, without, 0)
