"""An audit says something of whatever JAX can trace, in each of its formats, and never raises itself."""

import ast
import functools
import json
import linecache
import operator
import runpy
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.experimental import io_callback, pallas
from jax.experimental import sparse as jsparse
from jax.sharding import PartitionSpec
from tiers import generates

import lox
from lox import testing
from lox._audit import _files
from lox._audit._capture import capture
from lox._audit._flow import DETAILS
from lox._audit._follow import follow
from lox._audit._formats._write import write
from lox._audit._location import frames, located

X = np.float32([0.5, -1.0, 2.0])
RAISES = "The function raises while it is traced"


def check(report):
    """The report, after it was written in all ways."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for detail in DETAILS:
        assert report.to_full(detail) and report.to_markdown(detail)
        assert report.to_mermaid(detail).startswith("flowchart TD\n")
        parts = json.loads(report.to_json(detail), parse_constant=refuse)
        assert len(parts["issues"]) == len(report.issues)
    assert str(report).splitlines()[-1].startswith(f"{report.name}: ") and repr(report) and report.__rich__()
    assert json.loads(report.to_sarif()) and report.to_github().count("\n::") == max(0, len(report.found) - 1)
    return report


def audited(fun, *args, **kwargs):
    """The report on a function that JAX traces, written in all ways."""
    report = check(lox.audit(fun)(*args, **kwargs))
    assert not [finding for finding in report.issues if finding.code.startswith("LOX40")], report.issues
    return report


# -- random programs -----------------------------------------------------------------------------------------------


def scalar(program):
    return lambda x, n: jnp.sum(program(x, n)[0])


WRAPPERS = {
    "alone": lambda program: program,
    "jit": jax.jit,
    "vmap": lambda program: jax.vmap(program, in_axes=(0, None)),
    "grad": lambda program: jax.grad(scalar(program)),
    "jvp": lambda program: lambda x, n: jax.jvp(lambda x: scalar(program)(x, n), (x,), (x,)),
    "checkpoint": jax.checkpoint,
    "spool": lambda program: lox.spool(program, unify=True, max_iters=4),
    "tap": lambda program: lox.tap(program, lambda logs: None),
    "jit of spool of vmap": lambda program: jax.jit(
        lox.spool(jax.vmap(program, in_axes=(0, None)), unify=True, reduce="last")
    ),
    "scan": lambda program: lambda x, n: lax.scan(lambda carry, _: (program(*carry), None), (x, n), length=2),
}


@pytest.mark.generated(3)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_random_programs_are_audited(wrapper, examples):
    @examples
    @given(testing.programs(depth=2, length=2), st.integers(0, 6))
    def is_audited(program, n):
        check(lox.audit(WRAPPERS[wrapper](program))(X, np.int32(n)))

    is_audited()


@generates(15)
@given(testing.programs(depth=3, length=2))
def test_nothing_is_wrong_with_random_programs(program):
    assert not lox.audit(program)(X, np.int32(3)).issues


# -- what is called, and with what ---------------------------------------------------------------------------------


class Model:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, x):
        return self.scale * x

    def method(self, x):
        return self(x).sum()

    @classmethod
    def make(cls, x):
        return cls(2.0)(x)

    @staticmethod
    def plain(x):
        return jnp.sin(x)


def with_all_kinds_of_arguments(a, /, b, *rest, c, d=2.0, **more):
    return a + b + sum(rest) + c + d + sum(more.values())


def generator(x):
    yield jnp.sin(x)
    yield jnp.cos(x)


def without_source():
    scope = {"jnp": jnp}
    exec("def f(x):\n    return jnp.sin(x) / jnp.sum(x)", scope)
    return scope["f"]


CALLED = {
    "a lambda": (lambda x: x + 1, X),
    "a partial": (functools.partial(jnp.clip, min=0.0, max=1.0), X),
    "a partial of an object": (functools.partial(Model(2.0).method), X),
    "an object": (Model(2.0), X),
    "a method": (Model(2.0).method, X),
    "a classmethod": (Model.make, X),
    "a staticmethod": (Model.plain, X),
    "a class": (Model, X),
    "a builtin": (abs, X),
    "a builtin of two": (operator.add, X, X),
    "a universal function": (jnp.add, X, X),
    "a reduction of one": (jnp.add.reduce, X),
    "a jitted function": (jax.jit(jnp.sin), X),
    "a jitted method": (jax.jit(Model(2.0).method), X),
    "a function that was vectorized": (jnp.vectorize(jnp.dot, signature="(n),(n)->()"), np.ones((2, 3)), X),
    "a function without source": (without_source(), X),
    "a function that calls a generator": (lambda x: list(generator(x)), X),
    "a derivative": (jax.grad(lambda x: jnp.sum(x**2)), X),
    "a function of nothing": (lambda: jnp.ones(3) * 2,),
    "a function that returns nothing": (lambda x: None, X),
    "a function that returns its argument": (lambda x: x, X),
    "a function that returns the same twice": (lambda x: (x, x), X),
    "a function that returns what it closes over": (lambda: X,),
    "a function that returns no arrays": (lambda x: {"name": "x", "of": [None, print, 2, 3.5, True, b""]}, X),
    "a function that returns a function": (lambda x: jax.vjp(jnp.sin, x)[1], X),
    "a function that returns what cannot be sorted": (lambda x: {1: x, "one": x}, X),
    "a function that counts its calls": (lambda x, calls=[]: calls.append(x.shape) or x, X),
    "a Python number": (lambda x, n: x * n, X, 3),
    "a string": (lambda x, name: x if name == "sin" else -x, X, "sin"),
    "nothing as an argument": (lambda x, y: x if y is None else y, X, None),
    "lists and dicts": (lambda tree: jax.tree.map(jnp.sin, tree), {"a": [X, (X, 2.0)], "b": None, "c": {}}),
    "numbers of NumPy": (lambda x, y: x + y, np.float32(1), np.int8(2)),
    "flags": (lambda x, y: jnp.where(x, 1, 2) if y else x, np.array([True, False]), True),
    "lists of names": (lambda x, names: dict.fromkeys(names, x), X, ["a", "b"]),
    "an empty array": (lambda x: (x.sum(), jnp.sort(x), x @ x.T, jax.nn.softmax(x), jnp.sin(x)), np.zeros((0, 3))),
    "an array of empty rows": (lambda x: (x.mean(0), x.reshape(0, 5), jnp.concatenate([x, x])), np.zeros((3, 0))),
    "the largest of nothing": (lambda x: jnp.max(x, initial=0), np.zeros(0)),
}


@pytest.mark.parametrize("name", CALLED)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_whatever_is_called_is_audited(name):
    fun, *args = CALLED[name]
    with jax.numpy_dtype_promotion("standard"):
        report = check(lox.audit(fun)(*args))
    assert {finding.code for finding in report.issues} <= {"LOX400"}
    assert name == "a function that returns what cannot be sorted" or not report.issues


def test_arguments_of_all_kinds_are_passed_on():
    args, kwargs = (X, 1.0, X, X), {"c": X, "more": X, "another": 2.0}
    report = audited(with_all_kinds_of_arguments, *args, **kwargs)
    assert report.name == "with_all_kinds_of_arguments"
    names = {value.name for value in report.program.inputs}
    assert {"a", "c", "more"} <= names


def test_what_is_no_function_is_refused():
    for fun in (None, 3, "sin", X):
        with pytest.raises(TypeError, match="takes a function"):
            lox.audit(fun)


# -- what is raised ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_what_stops_python_is_passed_on(error):
    def stops(x):
        raise error

    with pytest.raises(error):
        lox.audit(stops)(X)
    assert not audited(jnp.sin, X).issues  # Nothing is left of the trace.


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, lambda f: f])
@pytest.mark.parametrize("code", [0, 1, None, "enough"])
def test_a_function_that_exits_is_an_issue(around, code):
    """Else what checks a program by an audit, and by how Python exits, would not see that there was none."""

    def exits(x):
        sys.exit(code)

    report = check(lox.audit(around(exits))(X))
    (finding,) = report.issues
    assert finding.code == "LOX400" and finding.message.startswith(f"{RAISES}: SystemExit")
    assert finding.line == exits.__code__.co_firstlineno + 1
    assert not report.verified and not audited(jnp.sin, X).issues  # Nothing is left of the trace.


@pytest.mark.parametrize("broken", [ValueError, RecursionError])
def test_an_exception_that_cannot_say_what_it_is_is_an_issue(broken):
    class Mute(Exception):
        def __str__(self):
            raise broken("no words")

    def fails(x):
        raise Mute

    (finding,) = check(lox.audit(fails)(X)).issues
    assert finding.message == f"{RAISES}: Mute: its text is not known, as its __str__ raises {broken.__name__}"
    assert finding.line == fails.__code__.co_firstlineno + 1


@pytest.mark.parametrize("around", [jax.jit, jax.grad, jax.vmap, jax.checkpoint, lox.spool, lambda f: f])
@pytest.mark.parametrize(
    "error", [ValueError("x\ny"), RecursionError(), AssertionError, ExceptionGroup("a", [OSError()])]
)
def test_whatever_is_raised_is_an_issue(around, error):
    def fails(x):
        jnp.sin(x)
        raise error

    (finding,) = check(lox.audit(around(fails))(np.float32(1) if around is jax.grad else X)).issues
    assert finding.code == "LOX400"
    assert (finding.file, finding.line) == (__file__, fails.__code__.co_firstlineno + 2)


def test_a_function_without_end_is_an_issue():
    def endless(x):
        return endless(x + 1)

    (finding,) = check(lox.audit(endless)(X)).issues
    assert "RecursionError" in finding.message


# -- dtypes --------------------------------------------------------------------------------------------------------


def arithmetic(x):
    y = x.astype(jnp.float32)
    return x, y + 1, jnp.concatenate([x, x])[1:], jnp.where(y > 0, x, x), x.reshape(-1, 1).T, y.astype(x.dtype)


@pytest.mark.parametrize(
    "dtype",
    "bool int4 uint4 int2 int8 uint8 int16 uint16 int32 uint32 float16 bfloat16 float8_e4m3fn float8_e5m2".split()
    + "float8_e4m3b11fnuz float8_e8m0fnu float4_e2m1fn float32 complex64".split(),
)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_all_dtypes_are_audited(dtype):
    if not hasattr(jnp, dtype):
        pytest.skip(f"this JAX has no {dtype}")
    constant = jnp.zeros(3, dtype)
    audited(lambda x: arithmetic(jnp.real(x) if dtype == "complex64" else x), jax.ShapeDtypeStruct((3,), dtype))
    audited(lambda: (constant, constant.reshape(3, 1)))
    audited(lambda x, y: x == y, constant, np.asarray(constant))


def test_64_bits_are_audited():
    huge = jnp.finfo("float64").max
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        audited(lambda x, n: (x.sum() + n, n.astype(jnp.uint64) * 2, x * 1j), np.zeros(3), np.int64(2**62))
        audited(lambda: (jnp.square(huge), jnp.asarray(huge) ** 3, jnp.asarray(-huge) * huge, huge - jnp.inf))


def test_keys_are_audited():
    key = jax.random.key(0)
    for keys in (key, jax.random.split(key, 3), jax.eval_shape(lambda: key), jax.random.PRNGKey(1)):
        audited(lambda keys: (keys, jnp.stack([keys, keys]), keys.reshape(-1)), keys)
    audited(lambda: jax.random.normal(key, (3,)))
    audited(lambda key: lax.scan(lambda key, _: tuple(jax.random.split(key)), key, length=3), key)
    audited(lambda key, n: lax.cond(n > 0, lambda: key, lambda: jax.random.fold_in(key, n)), key, np.int32(1))


def test_tangents_of_integers_are_audited():
    zeros = np.zeros(3, jax.dtypes.float0)
    audited(lambda x, n: jax.jvp(lambda x, n: (-x, n), (x, n), (x, zeros)), X, np.int32([1, 2, 3]))
    audited(lambda x, n: jax.vjp(lambda x, n: (-x, n), x, n)[1]((x, zeros)), X, np.int32([1, 2, 3]))
    audited(lambda x: (x, zeros), X)
    check(lox.audit(lambda x: x)(zeros))


def test_complex_numbers_are_audited():
    def f(z):
        filled = z.at[jnp.array([0, 9])].get(mode="fill", fill_value=1j)
        return filled, abs(z), z.real, jnp.conj(z) ** 2, jnp.exp(z), z / z.sum(), jnp.fft.ifft(z), z @ z, z == 1j

    audited(f, np.complex64([1j, 2, 3]))
    audited(lambda: f(jnp.complex64([1j, 2, jnp.nan])))


# -- operations ----------------------------------------------------------------------------------------------------


@jax.custom_vjp
def clipped(x):
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (clipped(x), None), lambda _, bar: (bar,))


@jax.custom_jvp
def safe_sqrt(x):
    return jnp.sqrt(jnp.maximum(x, 0))


safe_sqrt.defjvp(lambda primals, tangents: (safe_sqrt(*primals), tangents[0]))


@jax.custom_batching.custom_vmap
def batched_by_rule(x):
    return jnp.sin(x)


@batched_by_rule.def_vmap
def _rule(size, batched, x):
    return jnp.cos(x), True


def loops_in_branches_in_a_loop(x):
    def body(carry, i):
        def long(x):
            return lax.while_loop(lambda x: jnp.sum(x) < 9, lambda x: x * x + 1, x)

        def short(x):
            return lax.fori_loop(0, i, lambda j, x: x - j, x)

        return lax.switch(i, [long, short, lambda x: x], carry), jnp.sum(carry)

    return lax.scan(body, x, jnp.arange(4))


def with_references(x):
    total = jax.new_ref(jnp.zeros(3))

    def body(i, _):
        total[...] += i * x
        total[i] = 2.0

    lax.fori_loop(0, 3, body, None)
    return total[...], jax.freeze(total) if hasattr(jax, "freeze") else None


def with_effects(x):
    jax.debug.print("x = {x}", x=x)
    jax.debug.callback(lambda x: None, x, ordered=True)
    io_callback(lambda x: None, None, x, ordered=True)
    y = io_callback(lambda x: x, jax.ShapeDtypeStruct((3,), jnp.float32), x)
    z = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((3,), jnp.float32), x)
    lox.log({"x": x, "sum": (y + z).sum()}, step=2)
    return lax.scan(lambda x, _: (io_callback(lambda x: x, x, x, ordered=True), None), x, length=2)


def with_pallas(x):
    def kernel(x, out):
        out[...] = x[...] * 2

    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((3,), jnp.float32))(x)


def on_several_devices(x):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("i",))
    spec = PartitionSpec("i")

    def each(x):
        lox.log({"x": x.sum()})
        first = lax.axis_index("i")
        return lax.psum(x, "i") + first, lax.all_gather(x, "i", tiled=True), lax.ppermute(x, "i", [(0, 1)])

    return jax.shard_map(each, mesh=mesh, in_specs=spec, out_specs=(PartitionSpec(), spec, spec), check_vma=False)(
        jnp.stack([x, x])
    )


def across_lanes(x):
    def each(x):
        return lax.psum(x, "lanes"), lax.axis_index("lanes"), lax.all_gather(x, "lanes"), lax.pmax(x, "lanes")

    return jax.vmap(each, axis_name="lanes")(x)


def with_reductions_of_ones_own(x):
    window = lax.reduce_window(x, 0.0, lambda a, b: a + 2 * b, (2,), (1,), "VALID")
    return lax.reduce(x, 0.0, lambda a, b: a + 2 * b, (0,)), window, lax.reduce_and(x > 0, axes=(0,))


def with_scatters(x):
    x = x.at[0].set(1).at[1].add(2).at[2].mul(3).at[0].min(4).at[1].max(5).at[:2].get()
    return jnp.zeros(5).at[jnp.array([0, 9])].apply(jnp.sin), x.at[np.array([True, False])].set(0)


def with_convolutions(x):
    image, kernel = x.reshape(1, 1, 3), jnp.ones((1, 1, 2))
    return lax.conv(image, kernel, (1,), "SAME"), jax.grad(lambda k: lax.conv(image, k, (1,), "VALID").sum())(kernel)


def with_a_sparse_matrix(x):
    matrix = jsparse.BCOO((x, jnp.array([[0, 0], [1, 1], [2, 0]])), shape=(3, 3))
    return matrix @ x, matrix.T.todense()


def with_platforms(x):
    return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)


def with_a_composite(x):
    return lax.composite(lambda x: jnp.sin(x) + 1, "my.sine")(x)


def with_an_exported_function(x):
    exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), jnp.float32))
    return exported.call(x)


def with_foreign_code(x):
    return jax.ffi.ffi_call("some_kernel", jax.ShapeDtypeStruct((3,), jnp.float32))(x, size=3)


def with_constants_at_compile_time(x):
    with jax.ensure_compile_time_eval():
        table = jnp.cumsum(jnp.arange(3.0))
    return x * table + np.float32([np.nan, np.inf, 1]) * jnp.array([True, False, True])


def with_derivatives_of_derivatives(x):
    def f(x):
        return jnp.sum(clipped(safe_sqrt(x)) ** 3)

    return jax.jacrev(jax.grad(f))(x), jax.linearize(lambda x: jnp.sum(x**3), x)[1](x)


def with_decompositions(x):
    matrix = x[:, None] * x + jnp.eye(3)
    return jnp.linalg.svd(matrix), jnp.linalg.eigh(matrix), jnp.linalg.solve(matrix, x), jnp.fft.fft(x)


def with_handlers(x):
    def inner(x):
        lox.log({"x": x}, step=1, tags="metric")
        return lox.log_grad({"slope": x})["slope"]

    _, logs = lox.spool(inner)(x)
    x = lox.tap(inner, lambda logs: None)(x) + lox.strip(inner)(x)
    return jax.vmap(inner)(x), logs


def with_names(x):
    with jax.named_scope("block|`<b>\"'"):
        return jax.named_call(jnp.sin, name="a\nb|c")(x)


OPERATIONS = (
    jax.vmap(clipped),
    jax.grad(lambda x: clipped(x).sum()),
    lambda x: jax.jvp(safe_sqrt, (x,), (x,)),
    jax.vmap(batched_by_rule),
    batched_by_rule,
    jax.checkpoint(lambda x: jnp.sin(x), policy=jax.checkpoint_policies.everything_saveable),
    jax.grad(jax.checkpoint(lambda x: jnp.sin(x).sum())),
    lambda x: lax.map(jnp.sin, x, batch_size=2),
    lambda x: lax.associative_scan(jnp.add, x),
    lambda x: lax.scan(lambda c, x: (c, x), 0.0, x[:0]),
    lambda x: lax.scan(lambda c, x: (c, x), None, None, length=0),
    lambda x: lax.scan(lambda c, _: (c[::-1], c), (x, -x, 2 * x), length=4),
    lambda x: lax.cond(x[0] > 0, lambda x: (x, x), lambda x: (x, -x), x),
    lambda x: lax.custom_root(lambda y: y**3 - x, x, lambda f, y: y - f(y), lambda g, y: y / g(jnp.ones(3))),
    lambda x: lax.optimization_barrier((x, x)),
    lambda x: lax.sort((x, -x), num_keys=2),
    lambda x: lax.top_k(x, 2),
    lambda x: lax.ragged_dot(x[:, None], jnp.ones((2, 1, 4)), jnp.array([1, 2])),
    lambda x: jax.lax.reduce_precision(x, 5, 2),
    lambda x: jnp.unique(x, size=2, return_inverse=True),
    lambda x: jnp.einsum("i,j,k->", x, x, x),
    lambda x: x.astype(complex) * 1j,
    loops_in_branches_in_a_loop,
    with_references,
    with_effects,
    with_pallas,
    on_several_devices,
    across_lanes,
    with_reductions_of_ones_own,
    with_scatters,
    with_convolutions,
    with_a_sparse_matrix,
    with_platforms,
    with_a_composite,
    with_an_exported_function,
    with_foreign_code,
    with_constants_at_compile_time,
    with_derivatives_of_derivatives,
    with_decompositions,
    with_handlers,
    with_names,
)


@pytest.mark.parametrize("place", range(len(OPERATIONS)), ids=lambda place: f"{place}-{OPERATIONS[place].__name__}")
def test_whatever_a_function_does_is_audited(place):
    with jax.numpy_dtype_promotion("standard"):
        audited(OPERATIONS[place], X)
        audited(jax.jit(OPERATIONS[place]), X)
        named = lambda x: OPERATIONS[place](x)  # noqa: E731
        check(lox.audit(named, axes={"x": ("time",)}, differentiate="x", calls=[(X[:2],), (X,)])(X))
        check(lox.audit(jax.vmap(named))(np.stack([X, X])))
        check(lox.audit(jax.grad(lambda x: sum(jnp.sum(leaf).astype(float) for leaf in jax.tree.leaves(named(x)))))(X))


def test_an_argument_that_is_a_reference_is_audited():
    def adds(total, x):
        total[...] += x

    check(lox.audit(adds)(jax.new_ref(jnp.zeros(3)), X))


def test_pmap_is_audited():
    audited(jax.pmap(lambda x: lax.psum(x, "i"), axis_name="i"), np.ones((2, 3), np.float32))


def test_a_constant_that_is_gone_is_audited():
    gone, donated = jnp.ones(3), jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated).block_until_ready()
    found = jax.make_jaxpr(lambda x: x + gone)(X)
    gone.delete()
    check(lox.audit(lambda x: jax.core.eval_jaxpr(found.jaxpr, found.consts, x))(X))
    check(lox.audit(lambda x: x + donated)(X))


# -- size ----------------------------------------------------------------------------------------------------------


def twice(f, depth):
    """A jitted function that calls one twice, that calls one twice, and so on: it is called 2**depth times."""
    for _ in range(depth):
        f = jax.jit(lambda x, f=f: f(f(x)))
    return f


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, jax.checkpoint])
def test_what_is_called_very_often_is_looked_at_a_few_times(transform):
    def f(x):
        return jnp.where(x > 0, x + 1, 0.5 * x)

    audited(transform(twice(f, 25)), X)
    audited(lambda x: transform(twice(f, 25))(jnp.tanh(x)), X)  # Its range is another one each time.


def test_a_log_in_what_is_called_very_often_is_looked_at_a_few_times():
    def f(x):
        lox.log({"x": x})
        return 0.5 * jnp.tanh(x) + 1

    audited(twice(f, 8), X)
    check(lox.audit(jax.vmap(twice(f, 8)))(X))


def test_calls_of_the_host_in_what_is_called_very_often_are_looked_at_a_few_times():
    def f(x):
        jax.debug.callback(lambda x: None, x)
        return jnp.tanh(x)

    audited(lambda x: lax.scan(lambda carry, _: (twice(f, 25)(carry), None), x, None, 200)[0], X)


def test_a_loop_whose_carry_is_a_queue_is_audited():
    def f(xs):
        return lax.scan(lambda queue, x: ((*queue[1:], jnp.tanh(x)), queue[0]), (jnp.float32(0),) * 200, xs)

    audited(f, X)


def test_loops_in_loops_are_audited():
    def f(x):
        return x + 1

    for _ in range(12):
        f = functools.partial(lambda f, x: lax.scan(lambda c, _: (f(c + 1), c), 0 * x, length=2)[0] * x, f)
    audited(f, np.float32(1))


# -- where an audit happens ----------------------------------------------------------------------------------------


def test_an_audit_while_something_is_traced_is_as_alone():
    reports = []

    def f(x):
        reports.append(lox.audit(lambda y: y.sum() + 1)(x))
        with jax.checking_leaks():
            reports.append(lox.audit(lambda y: y * x.sum())(x))
        return x

    for transformed in (jax.jit(f), jax.grad(lambda x: f(x).sum()), jax.vmap(f), lox.spool(f)):
        transformed(X[None])
    assert len(reports) == 8
    for report in reports:
        assert not check(report).issues


def test_an_audit_without_jit_is_as_with_it():
    with jax.disable_jit():
        assert not audited(jax.jit(lambda x: jnp.sin(x).sum()), X).issues


def test_an_audit_leaves_no_log_and_no_effect():
    seen = []

    def f(x):
        lox.log({"x": x})
        jax.debug.callback(seen.append, x)
        return x

    _, logs = lox.spool(lambda x: (audited(f, x), x)[1])(X)
    jax.effects_barrier()
    assert not logs and not seen


def test_threads_audit_at_the_same_time():
    expected = str(lox.audit(loops_in_branches_in_a_loop)(X))
    found, start = [], threading.Barrier(4)

    def audits():
        start.wait()
        for _ in range(3):
            found.append(str(lox.audit(loops_in_branches_in_a_loop)(X)))

    threads = [threading.Thread(target=audits) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 12


def test_an_audit_is_the_same_each_time():
    def f(x):
        return lax.scan(lambda c, x: (jnp.tanh(c + x), c), 0.0, x)

    assert str(lox.audit(f)(X)) == str(lox.audit(f)(X))


def test_an_expression_of_a_thousand_terms_is_read(tmp_path):
    path = tmp_path / "long.py"
    path.write_text(f"def f(x):\n    y = x - 1  # lox: ignore[LOX104]\n    return {' + '.join(['y'] * 1000)}\n")
    f = runpy.run_path(str(path))["f"]
    report = lox.audit(f)(X)
    assert [finding.code for finding in report.found] == ["LOX001"]
    check(report)


class Text:
    dtype = np.dtype("U1")


def test_results_that_jax_has_no_arrays_of_are_left_out():
    odd = (
        np.array(["a"]),
        np.array([Text()]),
        np.datetime64("2020"),
        np.longdouble(1),
        np.str_("a"),
        1 << 40,
        "a",
        None,
    )
    for result in odd:
        check(lox.audit(lambda x, result=result: (x, result))(X))


def test_pictures_of_several_reports_are_one(tmp_path):
    reports = [lox.audit(lambda x: x + 1)(X), lox.audit(lambda key: jax.random.normal(key))(jax.random.key(0))]
    text = write(reports, "mermaid", "calls")
    assert text.count("flowchart TD") == 1 and text.count("subgraph") == text.count("    end\n") == 2
    assert "<lambda>" not in text and "&lt;lambda&gt;" in text and "key&lt;fry&gt;" in text


def test_names_with_signs_of_html_are_text_in_markdown():
    text = lox.audit(lambda key: lox.log({"<script>\n|": jax.random.normal(key) + jax.random.normal(key)}))(
        jax.random.key(0)
    ).to_markdown()
    assert "<script>" not in text and "\n<lambda>" not in text and "key<fry>" not in text


def test_the_place_of_a_finding_in_sarif_is_a_uri(tmp_path, monkeypatch):
    (tmp_path / "a b#c.py").write_text(
        "import jax\ndef f(key):\n    return jax.random.normal(key) + jax.random.normal(key)\n"
    )
    monkeypatch.chdir(tmp_path)
    report = lox.audit(runpy.run_path(str(tmp_path / "a b#c.py"))["f"])(jax.random.key(0))
    assert '"uri": "a%20b%23c.py"' in report.to_sarif()


def test_without_source_a_finding_has_no_column():
    known = {"jax": jax}
    exec("def f(key):\n    return jax.random.normal(key) + jax.random.normal(key)\n", known)
    found = lox.audit(known["f"])(jax.random.key(0)).found
    assert [finding.column for finding in found] == [0] * len(found) and found


def test_a_file_that_was_written_again_is_read_again(tmp_path):
    file = tmp_path / "program.py"
    for text in ("x = 1\n", "y = 2\nz = 3\n"):
        file.write_text(text)
        linecache.checkcache(str(file))
        assert [ast.unparse(each) for each in _files.syntax(str(file)).body] == text.splitlines()


def _rows(table, rows):
    def step(total, row):
        return total + jax.grad(lambda table: jnp.sum(table[row] ** 2))(table).sum(), None

    return jax.lax.scan(step, 0.0, rows)[0]


def _other_rows(table, rows):
    def step(total, row):
        return total - jax.grad(lambda table: jnp.sum(table[row] ** 2))(table).sum(), None

    return jax.lax.scan(step, 0.0, rows)[0]


def test_an_audit_has_no_lines_of_a_program_that_was_audited_before():
    """JAX remembers the derivative of what it has jitted itself, with the lines that led to it first."""
    args = jax.ShapeDtypeStruct((7, 3), jnp.float32), jax.ShapeDtypeStruct((5, 4), jnp.int32)
    for fun in (_rows, _other_rows):
        program = follow(capture(fun, args, {}), {})
        called = {frame.code.co_qualname for step, _ in located(program) for frame in frames(step.equation)}
        assert {name.partition(".")[0] for name in called if "_rows" in name} == {fun.__name__}
