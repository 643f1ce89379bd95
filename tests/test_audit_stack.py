"""The transformations around a program's parts, and what crosses their boundaries."""

import jax
import jax.numpy as jnp
from jax import lax

from lox._audit._capture import capture
from lox._audit._fold import fold_crossings
from lox._audit._follow import follow
from lox._audit._location import NOWHERE
from lox._audit._stack import Crossing, crossings, levels


def program(fun, *args, **axes):
    return follow(capture(fun, args, {}), axes)


def test_levels_are_the_nesting_of_what_runs_what():
    def loss(w, xs):
        def step(c, x):
            return jax.checkpoint(lambda c: jnp.tanh(c @ w + x))(c), c.sum()

        return lax.scan(step, jnp.zeros(4), xs)[1].sum()

    block = program(jax.jit(jax.grad(loss)), jnp.ones((4, 4)), jnp.ones((7, 4)))
    found = list(levels(block))
    kinds = [level.kind for level in found]
    assert found[0].depth == 0 and "jit:loss" in kinds
    inside = found[kinds.index("jit:loss")]
    assert {"jvp", "transpose"} <= set(inside.transformed)
    scans = [level for level in found if level.kind == "scan[7]"]
    assert len(scans) == 2 and all(level.depth == 2 for level in scans)
    assert any(level.kind.startswith("checkpoint") and level.depth == 3 for level in found)
    assert all(level.location.file == __file__ for level in scans)


def test_a_scan_takes_the_first_axis_away_and_stacks_it_again():
    def f(xs, w):
        return lax.scan(lambda c, x: (c + x @ w, c), jnp.zeros((3, 5)), xs)

    block = program(f, jnp.ones((7, 3, 4)), jnp.ones((4, 5)), xs=("time", "batch", "feature"))
    found = {(each.role, each.outside, each.inside) for each in crossings(block) if each.kind == "scan[7 time]"}
    assert ("each", "float32[7 time, 3 batch, 4 feature]", "float32[3 batch, 4 feature]") in found
    assert ("in", "float32[4, 5]", "float32[4, 5]") in found
    assert ("stacked", "float32[7 time, 3 batch, 5]", "float32[3 batch, 5]") in found
    assert {role for role, _, _ in found} == {"in", "carry", "each", "stacked"}


def test_branches_loops_and_calls_are_boundaries_too():
    def f(x):
        x = lax.cond(x.sum() > 0, lambda x: x, lambda x: -x, x)
        x = lax.while_loop(lambda x: x.sum() > 0, lambda x: x - 1, x)
        return jax.jit(lambda x: x.T)(x)

    block = program(f, jnp.ones((2, 3)), x=("time", "batch"))
    found = [(each.kind, each.role, each.outside) for each in crossings(block)]
    shape = "float32[2 time, 3 batch]"
    assert ("branch 0", "in", shape) in found and ("branch 1", "out", shape) in found
    assert ("while", "carry", shape) in found and ("while condition", "carry", shape) in found
    assert ("jit:<lambda>", "out", "float32[3 batch, 2 time]") in found


def test_many_values_that_cross_one_boundary_as_they_are_become_one_line():
    types = ["float32[3]", "float32[3]", "int32[]", "bool[]", "float32[1]", "float32[2]"]
    (line,) = fold_crossings(Crossing("scan", each, each, "in", NOWHERE) for each in types)
    assert (line.outside, line.inside) == ("2 x float32[3], int32[], bool[], 2 more", "the same")
