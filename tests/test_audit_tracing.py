"""What an audit says of functions that JAX refuses to trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._audit._capture import capture


def decides(x):
    if x.sum() > 0:
        return x
    return -x


def repeats(x):
    while x[0] > 0:
        x = x - 1
    return x


def counts(x):
    return jnp.zeros(x[0].astype(int))


def indexes(x):
    return [1, 2, 3][x[0].astype(int)]


def asks_numpy(x):
    return np.sin(x)


def selects(x):
    return x[x > 0].sum()


def converts(x):
    return float(x[0])


def divides(x):
    return {}["missing"]


@pytest.mark.parametrize(
    ("fun", "code", "line"),
    [
        (decides, "LOX401", 1),
        (repeats, "LOX401", 1),
        (counts, None, 1),
        (indexes, "LOX402", 1),
        (asks_numpy, "LOX403", 1),
        (selects, "LOX404", 1),
        (converts, "LOX405", 1),
        (divides, "LOX400", 1),
    ],
)
def test_what_a_function_raises_while_traced_is_found_at_its_line(fun, code, line):
    (finding,) = lox.audit(fun)(jnp.ones(3)).issues
    assert finding.code == code or (code is None and finding.code in ("LOX400", "LOX402", "LOX405"))
    assert (finding.file, finding.line) == (__file__, fun.__code__.co_firstlineno + line)
    assert finding.severity == "error" and finding.suggestion


def test_the_line_is_the_innermost_one_of_the_user():
    def calls(x):
        return jax.jit(jax.vmap(decides))(x[None])

    (finding,) = lox.audit(calls)(jnp.ones(3)).issues
    assert finding.line == decides.__code__.co_firstlineno + 1


def test_of_a_function_that_raises_nothing_nothing_is_found():
    report = lox.audit(jnp.sin)(jnp.ones(3))
    assert not report.issues and "LOX400" in [finding.code for finding in report.verified]


def test_with_static_arguments_the_same_function_is_fine():
    assert capture(lambda x, double: 2 * x if double else x, (jnp.ones(3), True), {}).error is None


LENGTHS = {
    "zeros": lambda x, n: jnp.zeros(n),
    "ones of several axes": lambda x, n: jnp.ones((3, n)),
    "reshape": lambda x, n: x.reshape(n, -1),
    "a slice": lambda x, n: x[:n],
    "a slice that is set": lambda x, n: x.at[n:].set(0.0),
    "keys": lambda x, n: jax.random.split(jax.random.key(0), n),
    "arange": lambda x, n: jnp.arange(n),
    "linspace": lambda x, n: jnp.linspace(0, 1, n),
    "one_hot": lambda x, n: jax.nn.one_hot(x, n),
    "padding": lambda x, n: jnp.pad(x, (0, n)),
    "an axis": lambda x, n: x.sum(n),
    "the length of a scan": lambda x, n: jax.lax.scan(lambda c, _: (c, c), x, length=n),
    "segments": lambda x, n: jax.ops.segment_sum(x, x.astype(int)),
    "an array of NumPy": lambda x, n: np.zeros(n),
}
SELECTIONS = {
    "nonzero": lambda x, n: jnp.nonzero(x),
    "where": lambda x, n: jnp.where(x > 0),
    "argwhere": lambda x, n: jnp.argwhere(x),
    "unique": lambda x, n: jnp.unique(x),
    "union": lambda x, n: jnp.union1d(x, x),
    "repeat": lambda x, n: jnp.repeat(x, n),
    "repeat by an array": lambda x, n: jnp.repeat(x, x.astype(int)),
}


@pytest.mark.parametrize(
    ("fun", "code", "cure"),
    [(fun, "LOX402", "dynamic_slice") for fun in LENGTHS.values()]
    + [(fun, "LOX404", "size=") for fun in SELECTIONS.values()],
    ids=[*LENGTHS, *SELECTIONS],
)
def test_what_has_an_unknown_length_is_told_with_what_helps(fun, code, cure):
    (finding,) = lox.audit(fun)(jnp.ones(3), jnp.int32(2)).issues
    assert finding.code == code and cure in finding.suggestion
    assert "Abstract tracer value" not in finding.message  # It says of nothing what it is.


@pytest.mark.parametrize("shape", ["a", (2, "a"), 2.5])
def test_a_shape_that_is_none_anyhow_is_no_unknown_length(shape):
    (finding,) = lox.audit(lambda x: jnp.zeros(shape))(jnp.ones(3)).issues
    assert finding.code == "LOX400"


@pytest.mark.parametrize("convert", [float, int, bool, complex, lambda x: x.item(), lambda x: x.tolist()])
def test_a_number_of_python_is_no_length(convert):
    (finding,) = lox.audit(lambda x: convert(x.sum()))(jnp.ones(3)).issues
    assert finding.code in ("LOX401", "LOX405")


def yields(x):
    yield x * 2


async def awaits(x):
    return x * 2


async def yields_and_awaits(x):
    yield x * 2


@pytest.mark.parametrize(
    ("fun", "what"), [(yields, "a generator"), (awaits, "an async function"), (yields_and_awaits, "a generator")]
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_function_that_runs_later_is_an_issue(fun, what, nested):
    report = lox.audit((lambda x: {"x": x, "y": fun(x)}) if nested else fun)(jnp.ones(3))
    (finding,) = report.issues
    assert finding.code == "LOX424" and what in finding.message and finding.file == __file__
    assert ("'out/y'" if nested else "'out'") in finding.message and (nested or finding.line == line_of(fun))
    assert not report.verified


def line_of(fun):
    return fun.__code__.co_firstlineno


def test_a_generator_that_is_used_up_is_fine():
    assert not lox.audit(lambda x: [*yields(x)])(jnp.ones(3)).issues


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([object()]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", int)]),
        np.ma.array([1.0, 2.0], mask=[False, True]),
    ],
    ids=["strings", "objects", "dates", "records", "masked"],
)
def test_an_array_that_jax_has_not_is_an_issue_that_names_it(array):
    def f(batch, scale=1.0):
        return batch["x"] * scale

    (finding,) = lox.audit(f)({"x": jnp.ones(3), "names": array}).issues
    assert finding.code == "LOX424" and finding.line == line_of(f)
    assert finding.message.startswith("'batch/names' is a") and str(array.dtype) in finding.message


def test_a_string_of_numpy_is_a_string():
    assert not lox.audit(lambda x, name: x * len(name))(jnp.ones(3), np.str_("a")).issues


def test_a_static_array_of_strings_is_not_told_to_be_an_argument():
    jitted = jax.jit(lambda x, names: x, static_argnames="names")
    (finding,) = lox.audit(jitted)(jnp.ones(3), names=np.array(["a"])).issues
    assert finding.code == "LOX425"  # It has no hash, which is what to mend.


def test_of_a_function_that_raises_nothing_is_verified():
    assert not lox.audit(decides)(jnp.ones(3)).verified


def test_where_no_line_is_known_the_function_is_told():
    def f(x):
        return x

    (finding,) = lox.audit(jax.vmap(f))(jnp.ones(())).issues  # JAX refuses it before f is called.
    assert (finding.code, finding.file, finding.line) == ("LOX400", __file__, line_of(f))
    (finding,) = lox.audit(lambda x, y: (x * 2).sum(), differentiate="y")(jnp.ones(3), jnp.ones(3)).warnings
    assert (finding.code, finding.file) == ("LOX603", __file__) and finding.line
