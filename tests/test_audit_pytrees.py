"""What an audit says of classes that JAX takes apart and puts together."""

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lox
from lox._audit._checks._jit._refused import explain


class State(NamedTuple):
    x: Any
    count: Any


class Mode(enum.Enum):
    FAST = 1


@dataclasses.dataclass
class Plain:
    x: Any


def found(fun, *args):
    return [finding for finding in lox.audit(fun)(*args).at_least("warning") if finding.code.startswith("LOX50")]


def error_of(fun, *args):
    with pytest.raises(Exception) as caught:
        fun(*args)
    return caught.value


@pytest.mark.parametrize(
    ("fun", "arg", "code"),
    [
        (jax.jit(lambda x: 1), Plain(1), "LOX500"),
        (jax.vmap(lambda x: 1), Plain(1), "LOX500"),
        (jax.grad(lambda x: 1.0), Plain(1), "LOX500"),
        (jax.checkpoint(lambda x: 1.0), Plain(1), "LOX500"),
        (jax.jit(lambda x: 1), Mode.FAST, "LOX424"),
        (jax.jit(lambda x: 1), "name", "LOX424"),
        (jax.jit(lambda x: 1), jnp.sin, "LOX424"),
        (jax.jit(lambda x: 1, static_argnums=0), [1], "LOX425"),
    ],
)
def test_what_jax_refuses_is_told_by_what_it_is(fun, arg, code):
    kind, message = explain(error_of(fun, arg))
    assert kind.code == code and message


def test_other_errors_are_not_explained():
    assert explain(TypeError("unsupported operand type(s)")) is None
    assert explain(ValueError("no")) is None


def test_arrays_of_an_unregistered_dataclass_are_named():
    (finding,) = found(lambda state: state.x * 2, Plain(jnp.ones(3)))
    assert finding.code == "LOX500" and "'Plain'" in finding.message and "(x)" in finding.message


def test_an_unregistered_dataclass_that_jax_refuses_is_told_once():
    (finding,) = found(jax.jit(lambda state: state.x * 2), Plain(jnp.ones(3)))
    assert finding.code == "LOX500" and "takes it for an array" in finding.message


def test_a_state_that_is_returned_with_other_types_is_told_leaf_by_leaf():
    (finding,) = found(lambda s: State(s.x, s.count.astype(jnp.float32)), State(jnp.ones(3), jnp.int32(0)))
    assert finding.code == "LOX504" and "count is int32[], and returned as float32[]" in finding.message


def test_a_state_that_is_returned_in_other_precision_as_a_whole_is_fine():
    half = jax.jit(lambda s: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), s))
    assert not found(half, State(jnp.ones(3), jnp.float32(0)))


def test_a_static_array_of_one_element_can_be_compared():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Scaled:
        x: Any
        by: Any = dataclasses.field(metadata={"static": True})

    assert not found(lambda s: s.x * s.by, Scaled(jnp.ones(3), np.float32(2)))
    assert not found(lambda s: s.x * s.by, Scaled(jnp.ones(3), np.ones(1, np.float32)))


def test_two_states_of_one_class_are_not_compared():
    def swap(old, new):
        return State(new.x, old.count.astype(jnp.float32))

    state = State(jnp.ones(3), jnp.int32(0))
    assert not found(swap, state, state)


def test_a_python_number_that_stays_one_is_fine():
    assert not found(lambda s: State(s.x, s.count + 1), State(jnp.ones(3), 0))


def test_a_class_within_a_container_is_looked_at():
    @jax.tree_util.register_pytree_node_class
    class Converts:
        def __init__(self, x):
            self.x = jnp.asarray(x)

        def tree_flatten(self):
            return (self.x,), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    (finding,) = found(lambda batch: batch["a"][0].x, {"a": [Converts(jnp.ones(3))]})
    assert finding.code == "LOX502" and "'Converts'" in finding.message


def test_namedtuples_and_jax_types_are_fine():
    state = State({"w": jnp.ones(3)}, jax.tree_util.Partial(jnp.sin))
    assert not found(lambda s, key: s.count(s.x["w"]), state, jax.random.key(0))
