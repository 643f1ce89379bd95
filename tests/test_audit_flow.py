"""The data flow of a program as an audit shows it."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import lox
from lox._audit._capture import capture
from lox._audit._flow import DETAILS, rows
from lox._audit._follow import follow
from lox._audit._location import transformations


def cell(params, h, x):
    return jnp.tanh(h @ params["u"] + x @ params["w"])


def policy(params, obs, done, unused):
    def step(h, x):
        obs, done = x
        h = jnp.where(done[:, None], 0.0, h)
        h = cell(params, h, obs)
        lox.log({"norm": jnp.abs(h).mean()})
        return h, h

    _, hs = lax.scan(step, jnp.zeros((16, 8)), (obs, done))
    jnp.exp(hs)
    return jax.nn.softmax(hs @ params["out"])


PARAMS = {"u": jnp.ones((8, 8)), "w": jnp.ones((4, 8)), "out": jnp.ones((8, 3))}
ARGS = (PARAMS, jax.ShapeDtypeStruct((32, 16, 4), jnp.float32), jax.ShapeDtypeStruct((32, 16), bool), jnp.uint8(1))
AXES = {"obs": ("time", "batch", "feature"), "done": ("time", "batch")}


def flow(detail="lines", fun=policy, args=ARGS, axes=AXES):
    return rows(follow(capture(fun, args, {}), axes), detail)


def test_arguments_come_first_with_what_is_known_of_them():
    found = {row.what: row.values for row in flow()}
    assert found["obs"] == ("float32[32 time, 16 batch, 4 feature]",)
    assert found["unused"] == ("uint8[] in [0, 255]",)
    assert found["params/out"] == ("float32[8, 3]",)
    assert [row.what for row in flow() if "never used" in row.notes] == ["unused"]


def test_a_row_is_a_line_of_source_with_what_comes_out_of_it():
    found = {row.what: row for row in flow()}
    line = found['return jnp.tanh(h @ params["u"] + x @ params["w"])']
    assert line.values == ("float32[16 batch, 8] in [-1, 1]",)
    assert (line.location.file, line.location.line) == (__file__, cell.__code__.co_firstlineno + 1)
    assert line.location.function == "cell"
    result = found['return jax.nn.softmax(hs @ params["out"])']
    assert result.values == ("float32[32 time, 16 batch, 3] in [0, 1]",)
    assert "params/out" in result.sources


def test_a_scan_says_over_what_it_goes_and_what_is_in_it_is_indented():
    found = flow()
    (place,) = (i for i, row in enumerate(found) if row.what == "scan[32 time]")
    assert found[place].depth == 0 and {"obs", "done"} <= set(found[place].sources)
    assert {row.depth for row in found[place + 1 : place + 4]} == {1}
    assert found[place].values[-1] == "float32[32 time, 16 batch, 8] in [-1, 1]"


def test_logs_are_waypoints():
    (log,) = (row for row in flow() if row.what == "lox.log")
    assert log.values == ("norm: float32[] in [0, 1]",) and log.depth == 1


def test_what_is_computed_and_goes_nowhere_is_said_to_be_dropped():
    dropped = [row.what for row in flow() if "dropped" in row.notes]
    assert dropped == ["jnp.exp(hs)"]


def test_more_detail_has_more_rows():
    counts = [len(flow(detail)) for detail in DETAILS]
    assert counts == sorted(counts) and len(set(counts)) == len(DETAILS)
    assert {"lox.log", "scan[32 time]"} <= {row.what for row in flow("calls")}
    assert "tanh" in {row.what for row in flow("equations")}


def test_what_a_library_does_is_not_opened():
    def f(x):
        return jnp.std(jnp.where(x > 0, x, 1))

    assert [row.what for row in flow(fun=f, args=(jnp.ones(3),), axes={})] == [
        "x",
        "return jnp.std(jnp.where(x > 0, x, 1))",
    ]


def test_what_is_called_again_is_shown_once():
    @jax.jit
    def layer(x):
        y = jnp.sin(x)
        return y + x

    found = flow(fun=lambda x: layer(layer(x)), args=(jnp.ones(3),), axes={})
    assert [row.what for row in found].count("y = jnp.sin(x)") == 1
    assert [row.notes for row in found if row.what == "jit:layer"] == [(), ("as above",)]


def test_branches_are_shown_one_after_the_other():
    def f(x):
        def small(x):
            return jnp.sin(x)

        def large(x):
            return jnp.cos(x)

        return lax.cond(x > 0, large, small, x)

    whats = [row.what for row in flow(fun=f, args=(jnp.float32(1),), axes={})]
    first, second = whats.index("branch 0"), whats.index("branch 1")
    assert whats.index("return jnp.sin(x)") in range(first, second) and whats.index("return jnp.cos(x)") > second


def test_a_function_that_raises_is_shown_as_far_as_it_came():
    def f(x):
        y = jnp.sin(x)
        if y > 0:
            return y
        return x

    found = capture(f, (jnp.float32(1),), {})
    assert isinstance(found.error, jax.errors.TracerBoolConversionError)
    whats = [row.what for row in rows(follow(found, {}), "lines")]
    assert "y = jnp.sin(x)" in whats


@pytest.mark.parametrize(
    ("transform", "expected"),
    [(jax.vmap, ("vmap",)), (lambda f: jax.vmap(jax.grad(f)), ("vmap", "jvp")), (lambda f: f, ())],
)
def test_transformations_around_an_equation_are_known(transform, expected):
    found = capture(transform(jnp.sin), (jnp.ones(3) if expected else jnp.float32(1),), {})
    names = [transformations(equation) for equation in found.jaxpr.eqns]
    assert any(name[: len(expected)] == expected for name in names) if expected else set(names) == {()}


@jax.jit
def inner(x, w):
    y = x @ w
    return jnp.tanh(y)


def whole(params, xs, flag, unused):
    def step(total, x):
        total = total + inner(x, params["w"])
        lox.log({"total": total})
        return total, total * 2

    last, twice = lax.scan(step, jnp.zeros(3), xs)
    jnp.exp(last)
    chosen = lax.cond(flag, jnp.sin, jnp.cos, twice)
    return inner(chosen, params["v"]) + last


GIVEN = {"w": jnp.ones((4, 3)), "v": jnp.ones((3, 3))}, jax.ShapeDtypeStruct((5, 4), jnp.float32)
FULL = """\
4. End-to-end data flow

step                                                 value                           from                   line
params/v                                             float32[3, 3]
params/w                                             float32[4, 3]
xs                                                   float32[5 time, 4]
flag                                                 bool[]
unused                                               uint8[] in [0, 255]             never used
#1 last, twice = lax.scan(step, jnp.zeros(3), xs)    float32[3] in [0, 0]                                   +6
#2 scan[5 time]                                      float32[3]; float32[5 time, 3]  from params/w, #1, xs  +6
  total                                              float32[3]
  x                                                  float32[4]
  #3 jit:inner                                       float32[3] in [-1, 1]           from x                 +2
    x                                                float32[4]
    w                                                float32[4, 3]
    #4 y = x @ w                                     float32[3]                      from x, w              -4
    #5 return jnp.tanh(y)                            float32[3] in [-1, 1]           from #4                -3
  #6 total = total + inner(x, params["w"])           float32[3]                      from total, #3         +2
  lox.log                                            total: float32[3]               from #6                +3
  #7 return total, total * 2                         float32[3]                      from #6                +4
#8 jnp.exp(last)                                                                     from #2, dropped       +7
#9 chosen = lax.cond(flag, jnp.sin, jnp.cos, twice)  float32[5 time, 3] in [-1, 1]   from flag, #2          +8
#10 jit:inner                                        float32[5 time, 3] in [-1, 1]   from #9, params/v      +9
  x                                                  float32[5 time, 3] in [-1, 1]
  w                                                  float32[3, 3]
  #11 y = x @ w                                      float32[5 time, 3]              from x, w              -4
  #12 return jnp.tanh(y)                             float32[5 time, 3] in [-1, 1]   from #11               -3
#13 return inner(chosen, params["v"]) + last         float32[5 time, 3]              from #2, #10           +9

5. Transformation stack

part            transformed by  operations  line
whole                           8
  scan[5 time]                  4           +6
    jit:inner                   2           +2
  branch 0                      1           +8
  branch 1                      1           +8
  jit:inner                     2           +9

6. Shape trace at boundaries

boundary      as       outside                        inside                         line
scan[5 time]  in       float32[4, 3]                  float32[4, 3]                  +6
scan[5 time]  carry    float32[3] in [0, 0]           float32[3]                     +6
scan[5 time]  each     float32[5 time, 4]             float32[4]                     +6
scan[5 time]  carry    float32[3]                     float32[3]                     +6
scan[5 time]  stacked  float32[5 time, 3]             float32[3]                     +6
jit:inner     in       float32[4]                     float32[4]                     +2
jit:inner     in       float32[4, 3]                  float32[4, 3]                  +2
jit:inner     out      float32[3] in [-1, 1]          float32[3] in [-1, 1]          +2
branch 0      in       float32[5 time, 3]             float32[5 time, 3]             +8
branch 0      out      float32[5 time, 3] in [-1, 1]  float32[5 time, 3] in [-1, 1]  +8
branch 1      in       float32[5 time, 3]             float32[5 time, 3]             +8
branch 1      out      float32[5 time, 3] in [-1, 1]  float32[5 time, 3] in [-1, 1]  +8
jit:inner     in       float32[5 time, 3] in [-1, 1]  float32[5 time, 3] in [-1, 1]  +9
jit:inner     in       float32[3, 3]                  float32[3, 3]                  +9
jit:inner     out      float32[5 time, 3] in [-1, 1]  float32[5 time, 3] in [-1, 1]  +9"""
PICTURE = """\
flowchart TD
    n0["params/v<br>float32[3, 3]"]
    n1["params/w<br>float32[4, 3]"]
    n2["xs<br>float32[5 time, 4]"]
    n3["flag<br>bool[]"]
    n4["unused<br>uint8[] in [0, 255]"]
    n5["scan[5 time]<br>float32[3]<br>float32[5 time, 3]"]
    n1 --> n5
    n2 --> n5
    n6["total<br>float32[3]"]
    n7["x<br>float32[4]"]
    n8["jit:inner<br>float32[3] in [-1, 1]"]
    n7 --> n8
    n9["x<br>float32[4]"]
    n10["w<br>float32[4, 3]"]
    n11["lox.log<br>total: float32[3]"]
    n6 --> n11
    n8 --> n11
    n12["jit:inner<br>float32[5 time, 3] in [-1, 1]"]
    n3 --> n12
    n5 --> n12
    n0 --> n12
    n13["x<br>float32[5 time, 3] in [-1, 1]"]
    n14["w<br>float32[3, 3]"]
"""


def test_a_report_has_each_line_call_loop_branch_and_boundary_with_what_goes_in_and_comes_out():
    report = lox.audit(whole, axes={"xs": ("time", None)})(*GIVEN, jax.ShapeDtypeStruct((), bool), jnp.uint8(1))
    text = report.to_full("lines")
    first = whole.__code__.co_firstlineno
    told = re.sub(r"test_audit_flow\.py:(\d+)", lambda line: f"{int(line[1]) - first:+}", text[text.index("4. ") :])
    without_widths = [re.sub(r"(?<=\S)  +(?=\S)", "  ", line.rstrip()) for line in told.splitlines()]
    assert without_widths == [re.sub(r"(?<=\S)  +(?=\S)", "  ", line) for line in FULL.splitlines()]
    assert report.to_mermaid("calls") == PICTURE
    assert [each.code for each in report.found] == []
