"""Mutants: every rule of lox, and every step that masks or moves logs, broken once.

A mutant replaces an entry of lox's table of rules, an entry of one of JAX's, or a step that rules and handlers go
through. docs/testing.md lists them with the law that finds them. No law is of bars: default tests find those mutants.

    python tests/mutants.py              which test of the default tier catches each of them
    python tests/mutants.py NAME...      the same for some
"""

import concurrent.futures
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.extend
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching

import lox
from lox import (
    _autodiff,
    _batching,
    _bins,
    _bounded,
    _capped,
    _collect,
    _columns,
    _compat,
    _deliver,
    _effect,
    _events,
    _fold,
    _handler,
    _log,
    _own_reduction,
    _reduce,
    _reductions,
    _select,
    _sites,
    _split,
    _spool,
    _stack,
    _stepwise,
    _stream,
    _strip,
    _summary,
    _trace,
    _window,
    testing,
)
from lox._log_grad import log_grad_p
from lox._progress import _bars, _board, _chunks
from lox._rules import _cond, _scan, _shard_map
from lox.testing import Branch, Log, Scan, Update, Vmap

primitives = jax.extend.core.primitives


# -- how to break things -------------------------------------------------------------------------------------------


def rule(primitive, broken):
    """Breaks the rule of a primitive in lox's table."""
    return lambda patch: patch.setitem(_handler.rules, primitive, broken(_handler.rules[primitive]))


def own_rule(module, rules, primitive, broken):
    """Breaks the rule of a primitive that a handler has of its own."""
    return name(module, rules, lambda table: {**table, primitive: broken(table[primitive])})


def closed_calls(broken):
    """Breaks the rule of `closed_call`, and what a handler does where jax 0.10 hands it the call itself."""

    def called(process):
        def run(trace, primitive, fun, args, params):
            def as_rule(handler, state, primitive, args, params):
                return _trace.under(handler, fun.call_wrapped)(state, *args)

            outs, _, logs = broken(as_rule)(trace.handler, trace.state, primitive, args, params)
            trace.collected = [*trace.collected, *logs]
            return outs

        return run

    def breaks(patch):
        rule(primitives.closed_call_p, broken)(patch)
        name(_trace.HandlerTrace, "process_call", called)(patch)

    return breaks


def entry(table, broken):
    """Breaks what one of JAX's tables says of a log."""
    return lambda patch: patch.setitem(table, _effect.log_p, broken(table[_effect.log_p]))


def name(owner, attribute, broken):
    """Breaks a step that rules and handlers go through."""
    return lambda patch: patch.setattr(owner, attribute, broken(getattr(owner, attribute)))


def both(*breaks):
    """Breaks several things, as a rule and that of a primitive which becomes the first one's."""
    return lambda patch: [each(patch) for each in breaks]


def instead(value):
    """Whatever it was, this is in its place."""
    return lambda _: value


# -- broken rules --------------------------------------------------------------------------------------------------


def silent(rule):
    return lambda handler, state, *rest: (rule(_handler.DropAll(), None, *rest)[0], state, ())


def doubled(rule):
    def double(*call):
        outs, state, logs = rule(*call)
        return outs, state, (*logs, *logs)

    return double


def inlined(rule):
    return lambda handler, state, primitive, args, params: _trace.under(handler, params["fun"].call_wrapped)(
        state, *args
    )


def negated(rule):
    def negate(*call):
        outs, *results = rule(*call)
        return [-out if jnp.issubdtype(out.dtype, jnp.floating) else out for out in outs], *results

    return negate


def leaking(rule):
    kept = []

    def leak(handler, state, primitive, args, params):
        kept.append(args)
        return rule(handler, state, primitive, args, params)

    return leak


def bound_as_it_is(rule):
    return lambda handler, state, primitive, args, params: (primitive.bind(*args, **params), state, ())


# -- broken steps --------------------------------------------------------------------------------------------------


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


def from_other_shards(expand):
    def mixed(nodes, axes_of, manual, depth=0):
        def shift(leaf):
            axes = sorted(_compat.varying_axes(leaf))
            return lax.ppermute(leaf, axes[0], [(0, 1), (1, 0)]) if axes else leaf

        return expand(nodes if depth else jax.tree.map(shift, nodes), axes_of, manual, depth)

    return mixed


def unmasked(patch):
    for attribute in ("fold", "lift"):
        name(_fold, attribute, lambda of: lambda how, value, mask, *rest: of(how, value, None, *rest))(patch)


def zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)


def always_there(filled):
    def fill(*args):
        def sure(event, depth):
            return event if event.mask is None else dataclasses.replace(event, mask=jnp.ones_like(event.mask))

        return _events.map_events(sure, filled(*args))

    return fill


def cut_off(result):
    return lambda self, state, logs: lax.stop_gradient(result(self, state, logs))


def forgetful(merged):
    def of_this_iteration(first, second):
        if first.in_loop:
            first = first.map(lambda _, each: _reduce.empty_in_loop(jax.tree.map(jax.typeof, each)))
        return merged(first, second)

    return of_this_iteration


def same_mean(merge):
    def merged(reduction, first, second, *happened):
        found = merge(reduction, first, second, *happened)
        return found._replace(squares=first.squares.plus(second.squares.value()))

    return merged


def own_average(merge):
    return lambda reduction, *states: merge(reduction, *states)._replace(own=states[1].own)


class Lazy(_stream.BufferedTap):
    def finish(self, state):
        return state


def overtaking(handler, *rest):
    fields = {field.name: getattr(handler, field.name) for field in dataclasses.fields(handler)}
    return _stream._scan(Lazy(**fields), *rest)


class Always:
    value = True


def told_as(change):
    """Changes the number of iterations that a loop tells, and the elements that go on."""

    def changed(report):
        def tell(loop, run, done, goes_on, board, live):
            done, live = change(done, live)
            return report(loop, run, done, goes_on, board, live)

        return tell

    return name(_chunks, "report", changed)


def whole_groups(loop):
    def without_rest(path, length, unroll, *rest, **options):
        return loop(path, length and length // unroll * unroll, unroll, *rest, **options)

    return without_rest


def shorter(run):
    def run_less(loop, steps, values):
        length = steps.length and steps.length - 1
        return run(loop, dataclasses.replace(steps, length=length), values)

    return run_less


def forwards(scan):
    return lambda bar, params, *args: scan(bar, {**params, "reverse": False}, *args)


# -- programs that take a certain step -----------------------------------------------------------------------------


STEP = Update(0.5, 0.25, 1)
THREE = testing.Program((Log("a", "x"), STEP, Log("a", "x"), STEP, Log("a", "x")))
SCANS = testing.Program((Scan(3, (Log("a", "x"), STEP, Log("a", "x"), STEP)),))
BRANCHES_OF_LANES = testing.Program((Vmap(3, (Branch(((), (Log("lanes3/a", "x", steps=True),))),)),))
TWICE_IN_A_BRANCH = testing.Program((Scan(3, (Branch(((), (Log("a", "x"), STEP, Log("a", "x"))), on="i"), STEP)),))
BEFORE_A_SCAN = testing.Program((Log("a", "x"), STEP, *SCANS.body))
MAYBE = testing.Program((Scan(3, (Branch(((), (Log("a", "x"),)), on="i"), STEP, Log("a", "x"))),))


def solves(x, n):
    lox.log({"x": x})

    def solve(matvec, b):
        return lox.log({"solved": b / 2})["solved"]

    return lax.custom_linear_solve(lambda v: 2 * v, x, solve, symmetric=True), n


@jax.custom_batching.custom_vmap
def halves(x):
    return lox.log({"half": x / 2})["half"]


@halves.def_vmap
def halves_rule(axis_size, in_batched, x):
    return lox.log({"half": x / 2})["half"], True


def batched_by_a_rule(x, n):
    lox.log({"x": x})
    return halves(x), n


def hears_cotangents(x, n):
    lox.log({"x": x})
    return jnp.sin(lox.log_grad({"x": x})["x"]), n


def calls(x, n):
    # JAX has the primitive only in jaxprs of its own making: here one in the place of a `jit`.
    lox.log({"x": x})
    closed = jax.make_jaxpr(jax.jit(lambda x: lox.log({"inside": x})["inside"] / 2))(x)
    jaxpr = _compat.open_jaxpr(closed)
    (eqn,) = jaxpr.eqns
    eqn = eqn.replace(primitive=primitives.closed_call_p, params={"call_jaxpr": eqn.params["jaxpr"]})
    jaxpr = jaxpr.replace(eqns=[eqn])
    (x,) = jax.extend.core.jaxpr_as_fun(jaxpr if _compat.open_jaxpr(closed) is closed else closed.replace(jaxpr=jaxpr))(
        x
    )
    return x, n


def relaxes(x, n):
    def step(c):
        return c[0] + 1, lox.log({"x": c[1]})["x"] / 2

    return lax.while_loop(lambda c: c[0] < n, step, (0, x))[1], n


# Name: how, the law that finds it, and by which program: random ones of these constructs, or this one.
MUTANTS = {
    # Rules.
    "jit drops its logs": (rule(primitives.jit_p, silent), "jit", ["jit"]),
    "jit logs twice": (rule(primitives.jit_p, doubled), "jit", ["jit"]),
    "jit returns something else": (rule(primitives.jit_p, negated), "transparency", ["jit"]),
    "jit keeps a tracer": (rule(primitives.jit_p, leaking), "hygiene", ["jit"]),
    "checkpoint drops its logs": (rule(primitives.remat_p, silent), "jit", ["checkpoint"]),
    "checkpoint logs twice": (rule(primitives.remat_p, doubled), "jit", ["checkpoint"]),
    "closed_call drops its logs": (closed_calls(silent), "no_silent_loss", calls),
    "closed_call logs twice": (closed_calls(doubled), "no_silent_loss", calls),
    "scan drops its logs": (rule(primitives.scan_p, silent), "scan", ["scan"]),
    "scan logs twice": (rule(primitives.scan_p, doubled), "scan", ["scan"]),
    "cond drops its logs": (rule(primitives.cond_p, silent), "cond", ["cond", "switch"]),
    "cond logs twice": (rule(primitives.cond_p, doubled), "cond", ["cond", "switch"]),
    "while drops its logs": (own_rule(_stack, "rules", primitives.while_p, silent), "while_loop", ["while_loop"]),
    "while drops the logs of a tap": (rule(primitives.while_p, silent), "while_loop", ["while_loop"]),
    "a scan of every other event drops its logs": (
        own_rule(_stack, "_rules_with_interval", primitives.scan_p, silent),
        "filters",
        ["scan"],
    ),
    "while logs twice": (own_rule(_stack, "rules", primitives.while_p, doubled), "while_loop", ["while_loop"]),
    "custom_jvp loses its rule": (rule(primitives.custom_jvp_call_p, inlined), "custom_rules", ["custom_jvp"]),
    "custom_jvp drops its logs": (
        both(rule(primitives.custom_jvp_call_p, silent), rule(_compat.high_p, silent)),
        "jit",
        ["custom_jvp"],
    ),
    "custom_jvp logs twice": (rule(primitives.custom_jvp_call_p, doubled), "jit", ["custom_jvp"]),
    "custom_vjp loses its rule": (rule(primitives.custom_vjp_call_p, inlined), "custom_rules", ["custom_vjp"]),
    "custom_vjp drops its logs": (rule(primitives.custom_vjp_call_p, silent), "jit", ["custom_vjp"]),
    "custom_vjp logs twice": (rule(primitives.custom_vjp_call_p, doubled), "jit", ["custom_vjp"]),
    "custom_vmap drops its logs": (rule(_compat.custom_vmap_p, silent), "no_silent_loss", batched_by_a_rule),
    "custom_vmap logs twice": (rule(_compat.custom_vmap_p, doubled), "no_silent_loss", batched_by_a_rule),
    "custom_linear_solve drops its logs": (rule(primitives.linear_solve_p, silent), "no_silent_loss", solves),
    "custom_linear_solve logs twice": (rule(primitives.linear_solve_p, doubled), "no_silent_loss", solves),
    "shard_map drops its logs": (rule(_compat.shard_map_p, silent), "jit", ["shard_map"]),
    "shard_map logs twice": (rule(_compat.shard_map_p, doubled), "jit", ["shard_map"]),
    "log_grad logs nothing": (rule(log_grad_p, bound_as_it_is), "no_silent_loss", hears_cotangents),
    # How JAX's own transformations meet a log.
    "a log is of the tangent": (entry(ad.primitive_jvps, of_tangents), "derivatives", []),
    "vmap loses logs": (entry(batching.fancy_primitive_batchers, lost), "vmap", []),
    "vmap mixes batch elements": (entry(batching.fancy_primitive_batchers, in_other_lanes), "vmap", []),
    "shard_map mixes shards": (name(_shard_map, "_expand", from_other_shards), "jit", ["shard_map"]),
    "shards share what only some of them log": (
        name(_cond, "varied", instead(lambda branch, index: branch)),
        "tap_and_spool",
        testing.Program((Vmap(3, (Branch(((), (Log("a", "constant"),)), on="n"),), sharded=True),)),
    ),
    "batch elements log in branches not taken": (
        name(_batching, "logs_in", instead(lambda params: False)),
        "vmap",
        ["cond"],
    ),
    "batch elements log after they finished": (
        name(_batching, "_predicate_is_batched", instead(lambda *args: False)),
        "vmap",
        ["while_loop"],
    ),
    "no batch element is masked": (
        name(_batching.Mask, "rewrite", instead(lambda self, state, logs: logs)),
        "vmap",
        ["while_loop"],
    ),
    "a log that needs no iteration leaves its scan": (
        name(_autodiff, "_may_log", instead(lambda jaxpr: False)),
        "derivatives",
        ["scan"],
    ),
    "a loop logs again when its tangent runs": (
        name(_autodiff, "_SilentStaging", instead(lambda trace: trace)),
        "derivatives",
        relaxes,
    ),
    # How spool collects.
    "scan reversed logs backwards": (
        name(_scan, "_in_order", instead(lambda logs, reverse: logs)),
        "scan",
        testing.Program((Scan(3, (Log("a", "x"), STEP), reverse=True),)),
    ),
    "sites of one key log one after the other": (
        name(_columns, "in_sequence", lambda join: lambda parts, *rest: join(parts[::-1], *rest)),
        "jit",
        THREE,
    ),
    "cond logs of both branches": (name(_collect, "_filled", always_there), "cond", ["cond", "scan"]),
    "a bounded loop writes all events to one place": (
        name(_bounded, "_written", lambda write: lambda buffers, logs, slot: write(buffers, logs, 0 * slot)),
        "while_loop",
        ["while_loop", "fori_loop"],
    ),
    "logs have no derivative": (name(_stack.Spool, "result", cut_off), "logs_are_values", []),
    # Filters.
    "tags are not looked at": (
        name(
            _select.Selection,
            "has",
            instead(lambda self, key, tags: self.argnames is None or key in self.argnames),
        ),
        "jit",
        ["strip", "keep"],
    ),
    "strip keeps and keep strips": (
        name(
            _strip.Strip,
            "rewrite",
            instead(lambda self, state, logs: self.selection.split(logs)[not self.removes_selected]),
        ),
        "filters",
        [],
    ),
    "interval is one too long": (
        name(_stack, "subsampled", lambda keep: lambda logs, interval, before: keep(logs, interval + 1, before)),
        "filters",
        THREE,
    ),
    "interval counts what did not happen": (
        name(_stack, "compact", instead(lambda block, interval, offset: block)),
        "filters",
        MAYBE,
    ),
    "reduce counts what did not happen": (unmasked, "filters", BRANCHES_OF_LANES),
    "reduce forgets earlier iterations": (
        name(_fold, "merged", forgetful),
        "filters",
        SCANS,
    ),
    "reduce forgets what each iteration surely has": (
        name(_fold, "repeated", instead(lambda accumulator, trips: dataclasses.replace(accumulator, certain=0))),
        "filters",
        SCANS,
    ),
    "reduce prefers the latter": (
        name(_fold, "merge", lambda merge: lambda first, second: merge(second, first)),
        "filters",
        SCANS,
    ),
    "the spread forgets how far the means are apart": (
        name(_reductions.Spread, "merge", same_mean),
        "filters",
        SCANS,
    ),
    "a moving average forgets what was before a loop": (
        name(_reductions.Ewma, "merge", own_average),
        "filters",
        SCANS,
    ),
    "bins count what did not happen": (
        name(
            _bins.Binned, "add", lambda add: lambda self, state, values, _, shape: add(self, state, values, None, shape)
        ),
        "filters",
        BRANCHES_OF_LANES,
    ),
    "events of a branch are forgotten at the next one": (
        name(_stepwise.Pending, "then", instead(lambda self, other: dataclasses.replace(other, room=self.room))),
        "filters",
        TWICE_IN_A_BRANCH,
    ),
    "a state forgets the one before it": (
        name(_own_reduction.Own, "join", instead(lambda self, first, second, batch_ndim: second)),
        "filters",
        BEFORE_A_SCAN,
    ),
    "a scan counts twice what it continues": (
        name(_fold, "entered", instead(lambda accumulator: accumulator)),
        "filters",
        testing.Program((Scan(2, (Log("a", "x"), STEP, Scan(3, (Log("a", "x"), STEP)))),)),
    ),
    # How tap delivers.
    "a buffer is not emptied at the end": (
        name(_stream.BufferedTap, "_flushed", instead(lambda self, state: state)),
        "tap_and_spool",
        [],
    ),
    "what a scan sends overtakes what waits": (
        name(_stream.BufferedTap, "rules", instead({primitives.scan_p: overtaking})),
        "tap_and_spool",
        testing.Program((Log("a", "x"), STEP, Scan(5, (Log("a", "x"), STEP)))),
    ),
    "a buffer hands over sites one by one": (
        name(_deliver, "_ordered", instead(lambda array, first: array)),
        "tap_and_spool",
        testing.Program((Scan(2, (Log("a", "x"), STEP, Log("a", "x"), STEP)),)),
    ),
    "a tap skips what did happen": (
        name(_stream, "_happened", instead(lambda nodes: jnp.int32(0))),
        "tap_and_spool",
        [],
    ),
    "a tap skips one too many": (
        name(_stream, "_subsampled", lambda thin: lambda nodes, counts, interval: thin(nodes, counts, interval + 1)),
        "tap_and_spool",
        THREE,
    ),
    "max_events counts what did not happen": (
        name(
            _capped.Capped,
            "_append",
            lambda append: lambda self, buffer, event, happened: append(self, buffer, event, jnp.ones_like(happened)),
        ),
        "filters",
        MAYBE,
    ),
    "max_events forgets what surely happened before": (
        name(_capped, "in_sequence", instead(lambda rows: rows[-1])),
        "filters",
        testing.Program((Log("a", "x"), STEP, Scan(3, (Log("a", "x", where="odd"), STEP)))),
    ),
    "types of a key are not told apart": (
        name(_split, "_name", instead(lambda event, key, depth: f"{key}\0")),
        "filters",
        testing.Program((Log("a", "x"), STEP)),
    ),
    "types are numbered from the last": (
        name(_spool, "numbered", lambda numbered: lambda timelines, order: numbered(timelines, order[::-1])),
        "filters",
        testing.Program((Log("a", "x"), STEP)),
    ),
    "a window forgets the one before it": (
        name(
            _window,
            "rows_of",
            lambda rows: lambda timelines, folding, event, mask: rows(timelines, zeros(folding), event, mask),
        ),
        "filters",
        testing.Program((Scan(3, (Log("a", "x"), STEP)),)),
    ),
    "a window never ends": (
        name(_window, "folded", lambda fold: lambda reductions, size, *rest: fold(reductions, None, *rest)),
        "filters",
        testing.Program((Scan(3, (Log("a", "x"), STEP)),)),
    ),
    "a tap sends the last window twice": (
        name(_summary.SummaryTap, "_waits", instead(lambda self, number: number > 0)),
        "tap_and_spool",
        testing.Program((Scan(2, (Log("a", "x"), STEP)),)),
    ),
    # Where a log happens.
    "a log happens everywhere": (
        name(_log, "read_event", lambda read: lambda *args: dataclasses.replace(read(*args), mask=None, batch_ndim=0)),
        "jit",
        testing.Program((Scan(3, (Log("a", "x", where="odd"), STEP)),)),
    ),
    "axes of where= are not batch axes": (
        name(_log, "read_event", lambda read: lambda *args: dataclasses.replace(read(*args), batch_ndim=0)),
        "jit",
        testing.Program((Log("c", "x", where="each"), STEP, Log("c", "x", where="each"))),
    ),
    # Without handlers.
    "a program without a handler logs": (name(_log, "recording", instead(Always)), "absence", []),
    "sites forgets that loops repeat": (
        name(_sites._Place, "through", lambda through: lambda self, name, times=1, exact=True: through(self, name)),
        "no_silent_loss",
        ["scan"],
    ),
}


# Name: how. They break bars, of which there is no law.
OF_BARS = {
    "a chunk counts as one iteration": told_as(lambda done, live: (jnp.minimum(done, 1), live)),
    "the rest of an unrolled loop is not counted": name(_chunks, "Loop", whole_groups),
    "no element is done before the last one": told_as(lambda done, live: (done, None)),
    "a chunk is as long as the one before": name(_board, "GROWTH", instead(1)),
    "a chunk takes the time between two updates": name(_board, "CHUNKS", instead(1)),
    "the last iteration has no chunk": name(_chunks, "_in_chunks", shorter),
    "a scan in chunks runs forwards": name(_chunks, "_scan", forwards),
    "loops in loops have bars": name(_bars.Bars, "wants", instead(lambda self, place: place.kind in _bars.LOOPS)),
}
HOW = {mutant: breaks for mutant, (breaks, *_) in MUTANTS.items()} | OF_BARS
"""How each mutant breaks lox."""


# -- which test catches them -----------------------------------------------------------------------------------------


ROOT = Path(__file__).parent.parent
LIKELY = ("composition", "laws", "scan", "cond", "while", "tap", "custom_rules", "shard_map", "reduce", "vmap", "sites")


def first_failure(mutant):
    """The first test of the default tier that fails when a mutant is planted, or an empty string."""
    likely = [f"tests/test_{name}.py" for name in (("progress",) if mutant in OF_BARS else LIKELY)]
    for chosen in (likely, ["tests", "lox"]):
        command = [sys.executable, "-m", "pytest", "-qx", "-n0", "--tb=no", "--mutant", mutant, *chosen]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            if line.startswith(("FAILED", "ERROR")):
                return line
        if done.returncode:
            raise RuntimeError(f"{mutant}: pytest ended with {done.returncode}: {done.stdout + done.stderr}")
    return ""


def main():
    names = sys.argv[1:] or list(HOW)
    if unknown := set(names) - set(HOW):
        raise SystemExit(f"There are no mutants {sorted(unknown)}, of {list(HOW)}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = {}
        for mutant, failure in zip(names, pool.map(first_failure, names), strict=True):
            found[mutant] = failure
            print(f"{mutant}: {failure or 'SURVIVED'}", flush=True)
    print(f"{sum(map(bool, found.values()))} of {len(found)} caught by the default tier")


if __name__ == "__main__":
    main()
