"""`lox.testing` itself: what it generates, what its oracle says, and that it finds what is broken."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from jax import lax
from jax.interpreters import ad, batching

import lox
from lox import (
    _autodiff,
    _batching,
    _collect,
    _deliver,
    _effect,
    _events,
    _handler,
    _log,
    _select,
    _spool,
    _strip,
    _tap,
    testing,
)
from lox._rules import _scan
from lox.testing._program import Branch, Derivative, Log, Scan, Update, Vmap

X, N = np.float32([0.3, -0.5]), 4
LANES = tuple((jnp.float32([0.3, -0.5]) * scale, jnp.int32(n)) for scale, n in ((1, 4), (0.5, 1), (-1, 3)))

quick = settings(deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def depths(logs):
    """Lanes are in the names of keys."""
    return {key: int(key.startswith("lanes")) for key in logs}


def collected(program, x, n):
    return jax.jit(lox.spool(program, unify=True, max_iters=4))(x, n)


# -- programs ------------------------------------------------------------------------------------------------------


@settings(quick, max_examples=30)
@given(testing.programs(depth=2, length=2))
def test_the_reference_computes_and_logs_what_jax_does(program):
    expected = testing.reference(program, X, N)
    (x, n), logs = collected(program, X, N)
    np.testing.assert_allclose(x, expected.out[0], rtol=1e-4, atol=1e-4)
    assert n == expected.out[1]
    assert testing.difference(expected.events, testing.events(logs, depths(logs)), 1e-4) is None


@settings(quick, max_examples=50)
@given(testing.programs(depth=1, constructs=["scan", "grad"], values=["x"]))
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
        ({"values": []}, "A program must log something"),
    ],
)
def test_options_that_are_wrong(options, text):
    with pytest.raises(ValueError, match="depth|length|constructs|values") as raised:
        testing.programs(**options)
    assert text in str(raised.value)


# -- laws ----------------------------------------------------------------------------------------------------------


UNROLLED = {testing.scan, testing.cond, testing.while_loop}
"""Random programs are checked for these by the reference, which is quicker than JAX where it runs Python loops."""

CONSTRUCTS = {testing.custom_rules: ["custom_jvp", "custom_vjp", "scan"]}


@pytest.mark.parametrize("law", [law for law in testing.LAWS if law not in UNROLLED], ids=lambda law: law.__name__)
def test_random_programs_keep_the_law(law):
    checked = 0

    @settings(quick, max_examples=3)
    @given(testing.programs(depth=2, length=2, constructs=CONSTRUCTS.get(law, testing.CONSTRUCTS)))
    def check(program):
        nonlocal checked
        try:
            checked += bool(testing.check(program, *LANES[0], laws=[law], lanes=LANES).kept)
        except ValueError as error:  # A filter leaves nothing, or the law says nothing of the program.
            assume("nothing to check" not in str(error))
            raise

    check()
    assert checked >= 3


def branching(x, n):
    def loop(x, n):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, lox.log({"x": c[1]})["x"] / 2), (0, x))[1]

    def step(x, i):
        return lax.cond((n + i) % 2 == 1, loop, lambda x, n: -x, x, n), lox.log({"i": i}, step=i)["i"]

    return lax.scan(step, x, jnp.arange(3))


@pytest.mark.parametrize("law", sorted(UNROLLED, key=lambda law: law.__name__), ids=lambda law: law.__name__)
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


def test_a_function_of_the_users_is_checked():
    report = testing.check(train, jnp.float32(0.5), jnp.ones((3, 2)))
    assert {"transparency", "jit", "vmap", "derivatives", "scan", "filters", "tap_and_spool"} <= set(report.kept)
    assert report.not_applicable["while_loop"] == "the function has no while_loop"


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
            "max_iters is too small",
        ),
    ],
)
def test_nothing_is_said_to_be_checked_that_was_not(fun, laws, text):
    args = (jnp.float32(1), jnp.ones((2, 2))) if fun is train else (jnp.float32(1),)
    with pytest.raises(ValueError, match=text):
        testing.check(fun, *args, laws=laws)


def test_what_a_function_raises_is_raised():
    def f(x):
        lox.log({"x": x})
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        testing.check(f, 1.0)


# -- mutants -------------------------------------------------------------------------------------------------------


primitives = jax.extend.core.primitives


def rule(primitive, broken):
    """Breaks the rule of a primitive in lox's table."""
    return lambda patch: patch.setitem(_handler.rules, primitive, broken(_handler.rules[primitive]))


def entry(table, broken):
    """Breaks what one of JAX's tables says of a log."""
    return lambda patch: patch.setitem(table, _effect.log_p, broken(table[_effect.log_p]))


def name(owner, attribute, broken):
    """Breaks a step that rules and handlers go through."""
    return lambda patch: patch.setattr(owner, attribute, broken(getattr(owner, attribute)))


def silent(rule):
    return lambda handler, primitive, args, params: (
        rule(_handler.Silence(), primitive, args, params)[0],
        handler.join(()),
    )


def doubled(rule):
    def double(handler, primitive, args, params):
        outs, nodes = rule(handler, primitive, args, params)
        return outs, (*nodes, *nodes)

    return double


def inlined(rule):
    return lambda handler, primitive, args, params: _handler.under(handler, params["fun"].call_wrapped)(*args)


def negated(rule):
    def negate(handler, primitive, args, params):
        outs, nodes = rule(handler, primitive, args, params)
        return [-out if jnp.issubdtype(out.dtype, jnp.floating) else out for out in outs], nodes

    return negate


def of_tangents(rule):
    def jvp(primals, tangents, **params):
        return rule([jnp.zeros_like(primal) for primal in primals], tangents, **params)

    return jvp


def lost(batch):
    return lambda axis_data, leaves, dims, **params: ([], [])


def in_other_lanes(batch):
    def flipped(axis_data, leaves, dims, **params):
        leaves = [leaf if dim is None else jnp.flip(leaf, dim) for leaf, dim in zip(leaves, dims, strict=True)]
        return batch(axis_data, leaves, dims, **params)

    return flipped


def unmasked(patch):
    for attribute in ("fold", "lift"):
        name(_spool, attribute, lambda of: lambda how, value, mask, *rest: of(how, value, None, *rest))(patch)


def always_there(filled):
    def fill(*args):
        def sure(event, depth):
            return event if event.mask is None else dataclasses.replace(event, mask=jnp.ones_like(event.mask))

        return _events.map_events(sure, filled(*args))

    return fill


STEP = Update(0.5, 0.25, 1)


class Always:
    value = True


MUTANTS = {
    "scan drops its logs": (rule(primitives.scan_p, silent), "reference", ["scan"]),
    "scan logs twice": (rule(primitives.scan_p, doubled), "reference", ["scan"]),
    "scan reversed logs backwards": (
        name(_scan, "_in_order", lambda _: lambda nodes, options: nodes),
        "reference",
        testing.Program((Scan(3, (Log("a", "x"), STEP), reverse=True),)),
    ),
    "cond drops its logs": (rule(primitives.cond_p, silent), "reference", ["cond", "scan"]),
    "cond logs of both branches": (name(_collect, "_filled", always_there), "reference", ["cond", "scan"]),
    "while drops its logs": (rule(primitives.while_p, silent), "reference", ["while_loop"]),
    "while logs twice": (rule(primitives.while_p, doubled), "reference", ["while_loop", "fori_loop"]),
    "jit drops its logs": (rule(primitives.jit_p, silent), "reference", ["jit"]),
    "jit logs twice": (rule(primitives.jit_p, doubled), "reference", ["jit"]),
    "jit returns something else": (rule(primitives.jit_p, negated), "transparency", ["jit"]),
    "checkpoint drops its logs": (rule(primitives.remat_p, silent), "reference", ["checkpoint"]),
    "checkpoint logs twice": (rule(primitives.remat_p, doubled), "reference", ["checkpoint"]),
    "custom_jvp loses its rule": (rule(primitives.custom_jvp_call_p, inlined), "derivatives", ["custom_jvp"]),
    "custom_jvp logs twice": (rule(primitives.custom_jvp_call_p, doubled), "jit", ["custom_jvp"]),
    "custom_vjp loses its rule": (rule(primitives.custom_vjp_call_p, inlined), "derivatives", ["custom_vjp"]),
    "custom_vjp drops its logs": (rule(primitives.custom_vjp_call_p, silent), "jit", ["custom_vjp"]),
    "a log is of the tangent": (entry(ad.primitive_jvps, of_tangents), "derivatives", []),
    "vmap loses logs": (entry(batching.fancy_primitive_batchers, lost), "vmap", []),
    "vmap mixes lanes": (entry(batching.fancy_primitive_batchers, in_other_lanes), "vmap", []),
    "no lane is masked": (name(_batching.Mask, "replace", lambda _: lambda self, nodes: nodes), "vmap", ["while_loop"]),
    "scans are not anchored": (name(_autodiff, "_may_log", lambda _: lambda jaxpr: False), "derivatives", ["scan"]),
    "tags are not looked at": (
        name(_select.Selection, "has", lambda _: lambda self, key, tags: self.argnames is None or key in self.argnames),
        "reference",
        ["strip", "keep"],
    ),
    "strip keeps and keep strips": (
        name(
            _strip.Strip,
            "replace",
            lambda _: lambda self, nodes: self.selection.split(nodes)[not self.removes_selected],
        ),
        "filters",
        [],
    ),
    "interval is one too long": (
        name(_spool, "thin", lambda thin: lambda nodes, interval, seen: thin(nodes, interval + 1, seen)),
        "filters",
        testing.Program((Log("a", "x"), STEP, Log("a", "x"), STEP, Log("a", "x"))),
    ),
    "reduce counts what did not happen": (
        unmasked,
        "filters",
        testing.Program((Vmap(3, (Branch(((), (Log("lanes3/a", "x", steps=True),))),)),)),
    ),
    "a buffer is not emptied at the end": (
        name(_tap.Tap, "_flushed", lambda _: lambda self: self),
        "tap_and_spool",
        [],
    ),
    "a buffer hands over sites one by one": (
        name(_deliver, "_ordered", lambda _: lambda array, first: array),
        "tap_and_spool",
        testing.Program((Scan(2, (Log("a", "x"), STEP, Log("a", "x"), STEP)),)),
    ),
    "a tap skips what did happen": (
        name(_tap, "_happened", lambda _: lambda nodes: jnp.int32(0)),
        "tap_and_spool",
        [],
    ),
    "a program without a handler logs": (name(_log, "recording", lambda _: Always), "absence", []),
}


def keeps(law, program):
    if law == "reference":
        _, logs = collected(program, X, N)
        expected = testing.reference(program, X, N)
        difference = testing.difference(expected.events, testing.events(logs, depths(logs)), 1e-4)
        if difference is not None:
            raise testing.BrokenLaw(difference)
        return
    try:
        testing.check(program, *LANES[0], laws=[getattr(testing, law)], lanes=LANES)
    except ValueError as error:
        if "nothing to check" not in str(error):
            raise


def find_broken(law, constructs):
    """Runs random programs of these constructs, or the given one, until one breaks the law."""
    if isinstance(constructs, testing.Program):
        keeps(law, constructs)
        return

    @settings(quick, max_examples=25, phases=[Phase.generate])
    @given(testing.programs(depth=2, length=2, constructs=constructs, values=["x", "n"]))
    def search(program):
        keeps(law, program)

    search()


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_found(mutant, monkeypatch):
    broken, law, constructs = MUTANTS[mutant]
    jax.clear_caches()
    with monkeypatch.context() as patch:
        broken(patch)
        with pytest.raises((testing.BrokenLaw, lox.LoxError, TypeError, ValueError, AttributeError, KeyError)):
            find_broken(law, constructs)
    jax.clear_caches()
    lox.flush()
