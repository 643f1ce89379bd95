"""Faults at random places of random programs, for `lox.find_nonfinite`.

A program is a nest of loops, branches, batches and functions with rules, with operations before and after each. One
of these, drawn from all, gets an operand in one iteration and one batch element for which it is NaN. The NaN of a decoy
is hidden. `python tests/faults.py 1000` draws a thousand and prints what was wrong.
"""

import dataclasses
import functools
import linecache
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

LENGTH, ELEMENTS = 4, 3


def log(x, hit):
    return jnp.log(jnp.where(hit, jnp.float32(-1.0), jnp.abs(x) + 1.0))


def sqrt(x, hit):
    return jnp.sqrt(jnp.where(hit, jnp.float32(-2.0), jnp.abs(x) + 0.5))


def div(x, hit):
    zero = jnp.where(hit, jnp.zeros_like(x), jnp.ones_like(x))
    return lax.div(jnp.tanh(x) * zero, zero)


def sub(x, hit):
    large = jnp.where(hit, jnp.full_like(x, jnp.inf), jnp.sin(x))
    return lax.sub(large, large * jnp.float32(0.5))


def acos(x, hit):
    return jnp.arccos(jnp.where(hit, jnp.float32(2.0), 0.5 * jnp.tanh(x)))


def pow_(x, hit):
    return lax.pow(jnp.where(hit, jnp.float32(-3.0), jnp.abs(x) + 1.0), jnp.full_like(x, 0.3))


FAULTS = {"log": log, "sqrt": sqrt, "div": div, "sub": sub, "acos": acos, "pow": pow_}


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def with_backward(x, hit, kind, hidden):
    """An operation whose backward function has the fault."""
    return jnp.tanh(x) + 0.0 * hit


def backward(kind, hidden, kept, cotangent):
    x, hit = kept
    result = cotangent * FAULTS[kind](x, hit > 0.5)
    return jnp.where((hit > 0.5) & hidden, cotangent, result), jnp.zeros_like(hit)


with_backward.defvjp(lambda x, hit, kind, hidden: (jnp.tanh(x), (x, hit)), backward)

NESTS = ("scan", "scan reverse", "fori", "while", "condition", "cond", "vmap", "checkpoint", "custom", "jit", "shards")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A program with a fault.

    Attributes:
        nest: What is around, outermost first.
        wanted: For each part of the nest the iteration, batch element or shard in which the fault is.
        target: The number of the operation.
        kind: The primitive.
        backward: Whether the fault is in a backward function.
        hidden: Whether it is a decoy.
        jitted: Whether the whole is jitted.
    """

    nest: tuple[str, ...]
    wanted: tuple[int, ...]
    target: int
    kind: str
    backward: bool
    hidden: bool
    jitted: bool

    def expected(self):
        """The iterations, the batch element and the shard that a report is to have."""
        depth = self.target if self.target <= len(self.nest) else 2 * len(self.nest) - self.target
        around = list(zip(self.nest, self.wanted, strict=True))[:depth]
        iterations = tuple(number for name, number in around if name in LOOPS)
        batch = tuple(number for name, number in around if name == "vmap")
        return iterations, batch, {"d": number for name, number in around if name == "shards"}

    def program(self):
        """The function."""
        f = lambda x: self._run(0, x, jnp.bool_(True)).sum()  # noqa: E731
        f = jax.grad(f) if self.backward else f
        return jax.jit(f) if self.jitted else f

    def _operation(self, number, x, hit):
        is_target = number == self.target
        hit = hit if is_target else jnp.bool_(False)
        kind = self.kind if is_target else list(FAULTS)[number % len(FAULTS)]
        if self.backward:
            return with_backward(x, jnp.broadcast_to(hit.astype(jnp.float32), x.shape), kind, self.hidden)
        result = jnp.tanh(FAULTS[kind](x, hit))
        return jnp.where(hit, jnp.zeros_like(x), result) if is_target and self.hidden else result

    def _run(self, depth, x, hit):
        """The operation before, the rest of the nest, and the operation after."""
        if depth == len(self.nest):
            return self._operation(depth, x, hit)
        x = self._operation(depth, x, hit)
        x = getattr(self, "_" + self.nest[depth].replace(" ", "_"))(depth, x, hit, self.wanted[depth])
        return self._operation(2 * len(self.nest) - depth, x, hit)

    def _scan(self, depth, x, hit, wanted, reverse=False):
        def body(carry, i):
            x, best = carry
            here = LENGTH - 1 - i if reverse else i
            x = self._run(depth + 1, x, hit & (here == wanted))
            return (x, jnp.maximum(best, -jnp.inf)), x.sum()

        (x, _), sums = lax.scan(body, (x, jnp.full((), -jnp.inf)), jnp.arange(LENGTH), reverse=reverse)
        return x + 0.0 * sums.sum()

    def _scan_reverse(self, depth, x, hit, wanted):
        return self._scan(depth, x, hit, wanted, reverse=True)

    def _fori(self, depth, x, hit, wanted):
        return lax.fori_loop(0, LENGTH, lambda i, x: self._run(depth + 1, x, hit & (i == wanted)), x)

    def _while(self, depth, x, hit, wanted):
        def body(carry):
            i, x = carry
            return i + 1, self._run(depth + 1, x, hit & (i == wanted))

        return lax.while_loop(lambda carry: carry[0] < LENGTH, body, (0, x))[1]

    def _condition(self, depth, x, hit, wanted):
        def goes_on(carry):
            i, x = carry
            value = self._run(depth + 1, x, hit & (i == wanted))
            return (i < LENGTH) & (value.sum() < 1e6)

        return lax.while_loop(goes_on, lambda carry: (carry[0] + 1, 0.5 * carry[1]), (0, x))[1]

    def _cond(self, depth, x, hit, wanted):
        return lax.cond(hit | (x.sum() > 0), lambda x: self._run(depth + 1, x, hit), lambda x: 0.5 * x, x)

    def _vmap(self, depth, x, hit, wanted):
        def element(x, number):
            return self._run(depth + 1, x, hit & (number == wanted))

        last = 0 if self.backward else x.ndim  # JAX refuses another axis for some backward functions.
        xs = jnp.stack([x + 0.1 * number for number in range(ELEMENTS)], last)
        return jax.vmap(element, in_axes=(last, 0))(xs, jnp.arange(ELEMENTS)).sum(0)

    def _checkpoint(self, depth, x, hit, wanted):
        return jax.checkpoint(lambda x, hit: self._run(depth + 1, x, hit))(x, hit)

    def _custom(self, depth, x, hit, wanted):
        @jax.custom_vjp
        def f(x, hit):
            return self._run(depth + 1, x, hit > 0.5)

        def fwd(x, hit):
            return jax.vjp(f.fun, x, hit)

        f.defvjp(fwd, lambda pullback, cotangent: pullback(cotangent))
        return f(x, hit.astype(jnp.float32))

    def _jit(self, depth, x, hit, wanted):
        return jax.jit(lambda x, hit: self._run(depth + 1, x, hit))(x, hit)

    def _shards(self, depth, x, hit, wanted):
        def f(x, hit):
            here = hit & (lax.axis_index("d") == wanted)
            return lax.psum(self._run(depth + 1, x, here), "d")

        mesh = Mesh(np.array(jax.devices()[:2]), ("d",))
        return jax.shard_map(f, mesh=mesh, in_specs=(P(), P()), out_specs=P(), check_vma=False)(x, hit)

    def wrong(self, report):
        """What a report says that is not so; "" if all is right."""
        if self.hidden:
            return f"a decoy is reported: {report}" if report.found else ""
        if not report.found:
            return f"not found {report.lost}"
        place = report.iterations, report.batch, dict(report.shard)
        if place != self.expected():
            return f"at {place}, expected {self.expected()}: {report}"
        if (report.primitive, report.backward) != (self.kind, self.backward):
            return f"{report.primitive}, backward {report.backward}: {report}"
        line = linecache.getline(report.file, report.line)
        is_right = "with_backward(" in line or "lambda" in line if self.backward else line in SOURCES[self.kind]
        return "" if is_right else f"at the line {line.strip()!r}"


LOOPS = ("scan", "scan reverse", "fori", "while", "condition")
SOURCES = {
    kind: linecache.getlines(__file__)[function.__code__.co_firstlineno - 1 :][:4] for kind, function in FAULTS.items()
}


def draw(number):
    """The fault of this number: each has a main part in turn, so that none is rare."""
    chance = random.Random(number)
    main = ("condition", "cond", "checkpoint", "custom", "shards", "backward", "scan", "while")[number % 8]
    backward = main == "backward"
    nest = [] if backward else [main]
    inside = [
        name for name in NESTS if name != "shards" and not (backward and name in ("while", "condition", "custom"))
    ]
    for _ in range(chance.randint(1, 2) if backward else chance.randint(0, 2)):
        nest.insert(chance.randint(0, len(nest)), chance.choice(inside))
    if main == "cond":
        nest.insert(0, "vmap")
    if "shards" in nest:
        nest.sort(key=lambda name: name != "shards")
    if "condition" in nest:  # What it computes reaches nothing but whether the loop goes on.
        nest = [name for place, name in enumerate(nest) if name != "condition" or place == nest.index("condition")]
    size = {"vmap": ELEMENTS, "shards": 2}
    wanted = tuple(chance.randrange(size.get(name, LENGTH)) for name in nest)
    target = chance.randint(0, 2 * len(nest))
    kind = chance.choice(list(FAULTS))
    return Fault(tuple(nest), wanted, target, kind, backward, chance.random() < 0.3, chance.random() < 0.7)


def check(number):
    """What is wrong with the report on a fault, and the fault."""
    import lox

    fault = draw(number)
    return fault.wrong(lox.find_nonfinite(fault.program())(jnp.array([0.3, -0.4], jnp.float32))), fault


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 2)
    first, count = (0, int(sys.argv[1])) if len(sys.argv) == 2 else map(int, sys.argv[1:])
    failures = decoys = 0
    for number in range(first, first + count):
        wrong, fault = check(number)
        decoys += fault.hidden
        if wrong:
            failures += 1
            print(f"{number}: {fault}\n    {wrong}", flush=True)
    print(f"{count} faults, {decoys} of them decoys: {failures} wrong")
