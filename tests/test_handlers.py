"""The contract of handlers: what the core asks of one, and what it says of one that does not keep to it."""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

import lox
from lox import _transform
from lox._handler import Filter


@dataclasses.dataclass(frozen=True)
class Uses(Filter):
    """Notes the use that each primitive makes of its programs."""

    seen: list = dataclasses.field(default_factory=list, compare=False)

    def rewrite(self, state, logs):
        return logs

    def enter(self, state, programs, inside):
        self.seen.append(inside)
        return self, state


def test_a_handler_is_told_a_branch_from_a_loop_a_call_and_a_function_with_rules():
    @jax.custom_jvp
    def ruled(x):
        return lox.log({"x": x})["x"]

    ruled.defjvp(lambda primals, tangents: (primals[0], tangents[0]))

    def body(x):
        return lox.log({"x": x})["x"] + 1

    uses = {
        "call": jax.jit(body),
        "loop": lambda x: lax.fori_loop(0, 3, lambda _, x: body(x), x),
        "branch": lambda x: lax.cond(x > 0, body, lambda x: x, x),
        "rule": ruled,
    }
    found = {}
    for use, program in uses.items():
        handler = Uses()
        jax.make_jaxpr(lambda x, f=program, h=handler: _transform.run(h, None, f, (x,), {})[0])(jnp.float32(1))
        found[use] = set(handler.seen)
    assert found == {use: {use} for use in uses}
