"""Faults at random places of the programs of `lox.testing`, which were not written for `lox.find_nonfinite`.

One float operation of a program gets operands for which it is NaN, in one iteration of each loop around, one batch
element and one shard. Each loop of a program also carries an infinite value. Faults are drawn for each of `FAMILIES` in
turn, and are kept if the result of the program shows that they happen. `python tests/faults_in_programs.py 1000` draws
a thousand, and prints what was wrong and the numbers of each family.
"""

import collections
import dataclasses
import functools
import linecache
import random
import sys
import types

import faults
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings

import lox
from lox.testing import Call, Derivative, Scan, Update, Vmap, While, programs
from lox.testing._program import _Source

FAMILIES = ("condition", "branch of a batch", "checkpoint", "custom_vjp", "shard_map", "backward", "scan", "while")
STATEMENTS = 14
"""The greatest number of statements of a program: larger ones take most of the time."""
CONSTRUCTS = {
    "condition": ("while_loop", "scan", "vmap", "jit"),
    "branch of a batch": ("vmap", "cond", "switch", "scan", "while_loop"),
    "checkpoint": ("checkpoint", "scan", "vmap", "grad", "cond"),
    "custom_vjp": ("custom_vjp", "vjp", "scan", "vmap"),
    "shard_map": ("shard_map", "scan", "cond", "while_loop"),
    "backward": ("grad", "vjp", "scan", "vmap", "jit", "checkpoint", "cond"),
    "scan": lox.testing.CONSTRUCTS,
    "while": ("while_loop", "fori_loop", "scan", "cond", "linearize", "custom_jvp", "context", "tap", "spool"),
}
"""The constructs of the programs that are drawn for each family."""
OPERATIONS = ("mul", "add", "mul", "add", "sin")
"""The float operations of an `Update`."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of an `Update`: the statements around, outermost first, with the number of the function in each."""

    around: tuple[tuple[object, str, int], ...]

    @property
    def families(self):
        """The families that a fault here belongs to."""
        kinds = [kind for _, kind, _ in self.around]
        batches = [statement for statement, kind, _ in self.around if kind == "vmap"]
        for name in ("condition", "checkpoint", "custom_vjp", "shard_map", "scan", "while"):
            if name in kinds:
                yield name
        if batches and "branch" in kinds[kinds.index("vmap") :]:
            yield "branch of a batch"
        if self.is_differentiated:
            yield "backward"

    @property
    def is_differentiated(self):
        """Whether a backward pass goes through it, and no forward mode."""
        kinds = [kind for _, kind, _ in self.around]
        if "backward" not in kinds or "forward" in kinds:
            return False
        inside = kinds[len(kinds) - kinds[::-1].index("backward") :]
        return not {"while", "condition", "custom_vjp", "custom_jvp"} & set(inside)


def kind_of(statement, part):
    """What a function inside of a statement is in."""
    match statement:
        case Call(how=how):
            return how
        case Scan():
            return "scan"
        case While():
            return ("while", "condition")[part]
        case Derivative(how=how):
            return "backward" if how in ("grad", "vjp") else "forward"
        case Vmap(sharded=sharded):
            return "shard_map" if sharded else "vmap"
    return "branch"


class Faulty(_Source):
    """Writes a program with a fault in one of its updates.

    Attributes:
        places: The places of all updates, in the order in which they are written.
        line: The line with the fault.
    """

    def __init__(self, target=-1, operation=0, hidden=False, kind=""):
        super().__init__()
        self._target, self._operation, self._hidden, self._kind = target, operation, hidden, kind
        self._around = []
        self._inside = iter(())
        self._hit = "h0"
        self.places = []
        self.line = ""

    def source(self, body):
        lines = ["i = 0", *self.body(body), "return x, n"]
        return "\n".join(["def program(x, n, h0):", *("    " + line for line in lines)])

    def _function(self, arguments, before, body, result):
        statement, part = next(self._inside)
        number = len(self._around)
        self._around.append((statement, kind_of(statement, part), part))
        around, before = self._hit, list(before)
        counter = {"scan": "i", "while": "i", "condition": "i", "vmap": "lane", "shard_map": "lane"}
        if (name := counter.get(self._around[-1][1])) is not None:
            self._hit = f"h_{len(self.places)}_{number}"
            before.append(f"{self._hit} = {around} & ({name} == wanted[{number}])")
        if self._around[-1][1] in ("custom_jvp", "custom_vjp"):  # What their function uses is an argument.
            arguments = f"{arguments}, {around}"
        if self._around[-1][1] == "condition":
            result = f"({result}) & (x.sum() < 1e6)"
        inside = self._inside
        found = super()._function(arguments, before, body, result)
        self._inside, self._hit = inside, around
        self._around.pop()
        return found

    def _statement(self, statement):
        self._inside = iter([(statement, part) for part in range(len(getattr(statement, "bodies", "ab")))])
        if isinstance(statement, Scan):
            return self._scan(statement)
        if not isinstance(statement, Update):
            return super()._statement(statement)
        self.places.append(Place(tuple(self._around)))
        return self._update(statement) if len(self.places) - 1 == self._target else super()._statement(statement)

    def _update(self, update):
        """The operations of an update, one a line."""
        hit, scale, shift = self._hit, f"jnp.full_like(x, {update.scale})", f"jnp.full_like(x, {update.shift})"
        count = "jnp.asarray(n, x.dtype)"
        inf = lambda value: f"jnp.where({hit}, jnp.inf, {value})"  # noqa: E731
        lines = [
            ("t = {} * x", f"t = {inf(scale)} * jnp.where({hit}, 0.0, x)", scale),
            ("t = t + {}", f"t = {inf('t')} + jnp.where({hit}, -jnp.inf, {shift})", shift),
            ("c = 0.1 * {}", f"c = {inf('jnp.full_like(x, 0.1)')} * jnp.where({hit}, 0.0, {{}})", count),
            ("t = t + {}", f"t = {inf('t')} + jnp.where({hit}, -jnp.inf, c)", "c"),
            ("t = jnp.sin({})", f"t = jnp.sin({inf('t')})", "t"),
        ]
        found = [
            (bad if place == self._operation and not self._kind else good).format(value)
            for place, (good, bad, value) in enumerate(lines)
        ]
        self.line = found[self._operation]
        if self._kind:
            as_float = f"jnp.full_like(t, {hit})"
            self.line = f"t = with_backward(t, {as_float}, {self._kind!r}, {self._hidden})"
            found.append(self.line)
        elif self._hidden:
            found.append(f"t = jnp.where({hit}, x, jax.lax.stop_gradient(t))")
        return [*found, f"x, n = t, (3 * n + {update.count}) % 7"]

    def _scan(self, scan):
        before = ["x, n, best = carry"]
        name, lines = self._function("carry, i", before, scan.body, "(x, n, jnp.maximum(best, -jnp.inf)), None")
        options = f"reverse={scan.reverse}, unroll={scan.unroll}"
        start = f"(x, n, -jnp.inf), jnp.arange({scan.length})"
        return [*lines, f"(x, n, _), _ = jax.lax.scan({name}, {start}, {options})"]

    def _call(self, call):
        if not call.how.startswith("custom"):
            return super()._call(call)
        name, lines = self._function("x, n, i", [], call.body, "x, n")
        if call.how == "custom_jvp":
            rule = [f"def {name}_jvp(primals, tangents):"]
            rule += [f"    return {name}(*primals), (2 * tangents[0], tangents[1])"]
            decorated = [f"{name} = jax.custom_jvp({name})", *rule, f"{name}.defjvp({name}_jvp)"]
        else:
            rule = [f"{name}_fwd = lambda *args: ({name}(*args), None)"]
            rule += [f"{name}_bwd = lambda _, bars: (3 * bars[0], None, None, None)"]
            decorated = [f"{name} = jax.custom_vjp({name})", *rule, f"{name}.defvjp({name}_fwd, {name}_bwd)"]
        return [*lines, *decorated, f"x, n = {name}(x, jnp.asarray(n), jnp.asarray(i), {self._hit})"]

    def _vmap(self, vmap):
        size, axis = vmap.size, vmap.axis
        xs = f"jnp.stack([x * (1 + lane) / 2 for lane in range({size})], {axis})"
        given = f"{xs}, (n + jnp.arange({size})) % 7, jnp.arange({size})"
        if not vmap.sharded:
            name, lines = self._function("x, n, lane", [], vmap.body, "x, n")
            mapped = f"jax.vmap({name}, in_axes=({axis}, 0, 0), out_axes=({axis}, 0))"
            return [*lines, f"x, n = {mapped}({given})", f"x, n = x.mean({axis}), n.max()"]
        name, lines = self._function(
            "x, n, lane", ["x, n, lane = x[0], n[0], lane[0]"], vmap.body, "x[None], jnp.asarray(n)[None]"
        )
        mesh = f'jax.sharding.Mesh(jax.devices()[:{size}], ("shards",))'
        spec = 'jax.sharding.PartitionSpec("shards")'
        mapped = f"jax.shard_map({name}, mesh={mesh}, in_specs={spec}, out_specs={spec})"
        return [*lines, f"x, n = {mapped}({given})", "x, n = x.mean(0), n.max()"]


@functools.cache
def pool(family, rounds):
    """Random programs, and for each update in one that is of a family the number of the program and its own."""
    found = []
    for number in range(rounds):
        options = {"max_examples": 50, "deadline": None, "database": None, "phases": [Phase.generate]}
        run = settings(**options, suppress_health_check=list(HealthCheck))
        drawn = programs(depth=3, length=2, constructs=CONSTRUCTS[family], values=("x", "n"), dtypes=())
        seed(number)(run(given(drawn)(lambda program: found.append(program))))()
    found = [program for program in found if len(list(program.statements())) <= STATEMENTS]
    places = []
    for number, program in enumerate(found):
        written = Faulty()
        written.source(program.body)
        places += [(number, target) for target, place in enumerate(written.places) if family in place.families]
    return found, places


@dataclasses.dataclass
class Fault:
    """A program with a fault.

    Attributes:
        number: Its number.
        family: What it was drawn for.
        hidden: Whether it is a decoy.
        place: Where it is.
        wanted: For each function around, the iteration, batch element or shard in which it happens.
        operation: The number of the operation.
        kind: For one in a backward pass, the primitive.
        jitted: Whether the whole is jitted.
        source: The program.
        line: The line with the fault.
    """

    number: int
    family: str
    hidden: bool
    place: Place
    wanted: tuple[int, ...]
    operation: int
    kind: str
    jitted: bool
    source: str
    line: str

    @functools.cached_property
    def file(self):
        """The name under which the source is known, for it to be shown."""
        name = f"<fault {self.number}{' hidden' if self.hidden else ''}>"
        lines = [line + "\n" for line in self.source.splitlines()]
        linecache.cache[name] = len(self.source), None, lines, name
        return name

    @functools.cached_property
    def program(self):
        """The function of `x`, `n` and whether the fault happens."""
        handlers = {name: getattr(lox, name) for name in ("log", "strip", "keep", "spool", "tap", "context")}
        if self.number % 3:  # Most programs do not log, which takes most of the time.
            handlers["log"] = lambda data, **options: data
        scope = {"jax": jax, "jnp": jnp, "lox": types.SimpleNamespace(**handlers), "wanted": (*self.wanted, *[0] * 99)}
        scope["with_backward"] = faults.with_backward
        exec(compile(self.source, self.file, "exec"), scope)
        return scope["program"]

    @functools.cached_property
    def compiled(self):
        """The program, run by JAX alone."""
        return jax.jit(self.program)

    def result(self, happens):
        """What the program returns."""
        return np.asarray(self.compiled(X, N, jnp.bool_(happens))[0])

    @property
    def happens(self):
        """Whether the result shows that the fault happens: NaN or, of a condition, another result."""
        bad = self.result(True)
        if "condition" in [kind for _, kind, _ in self.place.around]:
            return not np.array_equal(bad, self.result(False), equal_nan=True)
        return bool(np.isnan(bad).any())

    def expected(self):
        """The iterations, the batch element and the shard that a report is to have."""
        iterations, batch, shard = [], [], {}
        for (statement, kind, _), wanted in zip(self.place.around, self.wanted, strict=True):
            if kind in ("scan", "while", "condition"):
                is_reversed = isinstance(statement, Scan) and statement.reverse
                iterations.append(statement.length - 1 - wanted if is_reversed else wanted)
            elif kind == "vmap":
                batch.append(wanted)
            elif kind == "shard_map":
                shard["shards"] = wanted
        return tuple(iterations), tuple(batch), shard

    def wrong(self, report):
        """What a report says that is not so: "place", "equation", "decoy" or "error", and the report; "" if nothing."""
        if self.hidden:
            return f"decoy: {report}" if report.found else ""
        place = report.iterations, report.batch, dict(report.shard)
        if not report.found or place != self.expected():
            return f"place: {place}, expected {self.expected()}: {report}"
        wanted = {"sin": ("sin", "cos")}.get(OPERATIONS[self.operation], (OPERATIONS[self.operation],))
        if self.kind:
            wanted = (self.kind,)
        line = linecache.getline(report.file, report.line).strip()
        if report.primitive not in wanted or line != self.line or report.backward != bool(self.kind):
            return f"equation: {report.primitive} in {line!r}, expected {wanted} in {self.line!r}: {report}"
        return ""


X, N = jnp.array([0.3, -0.5], jnp.float32), jnp.int32(3)


def draw(number, rounds=8):
    """The fault of this number, which happens."""
    chance = random.Random(number)
    family = FAMILIES[number % len(FAMILIES)]
    found, places = pool(family, rounds)
    for _ in range(1000):
        program, target = chance.choice(places)
        hidden, operation = chance.random() < 0.3, chance.randrange(len(OPERATIONS))
        kind = chance.choice(list(faults.FAULTS)) if family == "backward" else ""
        written = Faulty()
        written.source(found[program].body)
        place = written.places[target]
        sizes = [_size(statement, kind) for statement, kind, _ in place.around]
        if not all(sizes):
            continue
        wanted = tuple(map(chance.randrange, sizes))
        faulty = Faulty(target, operation, False, kind)
        fault = Fault(
            number, family, False, place, wanted, operation, kind, chance.random() < 0.7,
            faulty.source(found[program].body), faulty.line,
        )  # fmt: skip
        if not fault.happens:
            continue
        if not hidden:
            return fault
        faulty = Faulty(target, operation, True, kind)
        source = faulty.source(found[program].body)
        fault = dataclasses.replace(fault, hidden=True, source=source, line=faulty.line)
        if np.isfinite(fault.result(True)).all():  # A derivative of second order finds what one of first order hides.
            return fault
    raise ValueError(f"no fault happens in {len(places)} places of {family}: draw more programs with rounds=")


def _size(statement, kind):
    match kind:
        case "scan":
            return statement.length
        case "while" | "condition":
            return statement.bound
        case "vmap" | "shard_map":
            return statement.size
    return 1


def check(number, rounds=8):
    """What is wrong with the report on a fault, and the fault."""
    fault = draw(number, rounds)
    program = jax.jit(fault.program) if fault.jitted else fault.program
    try:
        return fault.wrong(lox.find_nonfinite(program)(X, N, jnp.bool_(True))), fault
    except Exception as error:  # noqa: BLE001  (whatever goes wrong is what it looks for)
        return f"error: {type(error).__name__}: {error}", fault


if __name__ == "__main__":
    first, count = (0, int(sys.argv[1])) if len(sys.argv) == 2 else map(int, sys.argv[1:])
    drawn, failed = collections.Counter(), collections.Counter()
    for number in range(first, first + count):
        wrong, fault = check(number)
        names = ["all", *(["decoy"] if fault.hidden else ["fault", *fault.place.families])]
        drawn.update(names)
        if wrong:
            kind = wrong.partition(":")[0]
            failed.update((name, kind) for name in names)
            print(f"{number}: jitted {fault.jitted}, wanted {fault.wanted}\n    {wrong}\n{fault.source}", flush=True)
        if number % 50 == 49:
            jax.clear_caches()
    for name, of_name in drawn.items():
        bad = ", ".join(f"{count} {kind}" for (one, kind), count in failed.items() if one == name)
        print(f"{name}: {of_name} drawn, wrong: {bad or 'none'}")
