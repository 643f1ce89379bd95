"""Measure the auditor: `python -m unseen [--list] [--check] [--only TEXT] [--no-public]`."""

import argparse
import ast
import functools
import importlib
import inspect
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import lox
from unseen.case import Case

FILES = {
    "first": (
        "projects_targets",
        "projects_episodes",
        "projects_networks",
        "projects_state",
        "projects_random",
        "projects_transforms",
        "planted_losses",
        "planted_loops",
        "planted_arrays",
    ),
    "second": (
        "second_projects_targets",
        "second_projects_episodes",
        "second_projects_attention",
        "second_projects_numbers",
        "second_projects_training",
        "second_planted_models",
        "second_planted_training",
        "second_planted_agents",
        "second_planted_science",
        "second_systems",
    ),
    "third": (
        "third_projects_rl",
        "third_projects_networks",
        "third_projects_science",
        "third_planted_learning",
        "third_planted_models",
    ),
    "fourth": (
        "fourth_projects_rl",
        "fourth_projects_models",
        "fourth_projects_numerics",
        "fourth_planted_learning",
        "fourth_planted_science",
    ),
    "fifth": ("fifth_projects", "fifth_planted"),
    "sixth": ("sixth_projects", "sixth_planted"),
}
"""The files of each set: a set is written when checks were written with the programs of the one before at hand."""


def load(sets):
    """The cases of some sets, each with the path of its file."""
    for name in (file for each in sets for file in FILES[each]):
        module = importlib.import_module(f"unseen.{name}")
        for case in module.CASES:
            yield case, Path(module.__file__).resolve()


@functools.cache
def text_of(path):
    text = path.read_text()
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    return text, functions


def lines_of(case, path):
    """The lines of the mistake, and those of the outermost function or class around it."""
    text, functions = text_of(path)
    places, start = [], text.find(case.where)
    while start >= 0:
        line = text[text.rfind("\n", 0, start) + 1 : start]
        if not line.lstrip().startswith("where="):
            places.append(start)
        start = text.find(case.where, start + 1)
    if len(places) != 1:
        raise ValueError(f"{case.name}: `where` is {len(places)} times in {path.name}")
    first = text.count("\n", 0, places[0]) + 1
    last = first + case.where.rstrip("\n").count("\n")
    around = [f for f in functions if f.lineno <= first <= f.end_lineno]
    whole = max(around, key=lambda f: f.end_lineno - f.lineno) if around else None
    if whole is None:
        return range(first, last + 1), range(first, last + 1)
    begin = min(each.lineno for each in (whole, *whole.decorator_list))
    return range(first, last + 1), range(begin, whole.end_lineno + 1)


@dataclass
class Outcome:
    """What was found in a program."""

    findings: tuple = ()
    crash: str = ""
    seconds: float = 0.0

    @property
    def codes(self):
        return {f.code for f in self.findings}


def audit(function, args, axes, differentiate, calls):
    started = time.perf_counter()
    try:
        report = lox.audit(function, axes=axes, differentiate=differentiate, calls=calls)(*args)
        findings = tuple(f for f in (*report.issues, *report.warnings) if f.severity in ("error", "warning"))
        return Outcome(findings, "", time.perf_counter() - started)
    except Exception as error:  # noqa: BLE001
        return Outcome((), f"{type(error).__name__}: {error}".splitlines()[0][:200], time.perf_counter() - started)


def names_its_arguments(case, function):
    """Labels whose arguments the function has: near misses need not have them all."""
    try:
        names = set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        names = set()
    axes = {k: v for k, v in (case.axes or {}).items() if k.split("/")[0] in names} or None
    wanted = (case.differentiate,) if isinstance(case.differentiate, str) else case.differentiate or ()
    kept = tuple(n for n in wanted if n.split("/")[0] in names)
    return axes, (kept[0] if len(kept) == 1 else kept or None)


@dataclass
class Result:
    """Outcomes of one case."""

    case: Case
    path: Path
    wrong: Outcome
    bare: Outcome
    right: list
    right_bare: list
    jaxpr: float

    def at(self, outcome, twin):
        """What points at the mistake and not into the mended twin: at its line, in its function, anywhere."""
        line, whole = lines_of(self.case, self.path)
        told = [f for f in outcome.findings if f.code not in twin.codes]
        near = [f for f in told if f.file and f.line and Path(f.file).resolve() == self.path]
        return [
            any(f.line in line for f in near),
            any(f.line in whole for f in near),
            bool(told),
        ]

    @property
    def found(self):
        return self.at(self.wrong, self.right[0])

    @property
    def found_bare(self):
        return self.at(self.bare, self.right_bare[0])


def seconds_of_jaxpr(function, args):
    """How long JAX takes to trace a function, as in a new process."""
    jax.clear_caches()
    started = time.perf_counter()
    try:
        jax.make_jaxpr(function)(*args)
    except Exception:  # noqa: BLE001
        return float("nan")
    return time.perf_counter() - started


def measure(case, path):
    args, calls = case.arguments(), case.further_calls()

    def look(function, labels):
        axes, differentiate = names_its_arguments(case, function)
        return audit(function, args, axes if labels else None, differentiate, calls)

    jaxpr = seconds_of_jaxpr(case.wrong, args)
    jax.clear_caches()  # So that the audit of the wrong program, which is the first, takes as long as in a new process.
    return Result(
        case,
        path,
        look(case.wrong, True),
        look(case.wrong, False),
        [look(f, True) for f in case.right],
        [look(f, False) for f in case.right],
        jaxpr,
    )


COLUMNS = (
    "mistakes",
    "found",
    "at line",
    "anywhere",
    "found bare",
    "twins alarmed",
    "near misses",
    "alarmed",
    "crashes",
)


def row_of(result):
    line, whole, anywhere = result.found
    near = result.right[1:]
    near_bare = result.right_bare[1:]
    outcomes = [result.wrong, result.bare, *result.right, *result.right_bare]
    return (
        1,
        whole,
        line,
        anywhere,
        result.found_bare[1],
        bool(result.right[0].findings or result.right_bare[0].findings),
        len(near),
        sum(bool(a.findings or b.findings) for a, b in zip(near, near_bare, strict=True)),
        sum(bool(o.crash) for o in outcomes),
    )


def table(results):
    rows = defaultdict(lambda: [0] * len(COLUMNS))
    for result in results:
        for name in (result.case.family, "all"):
            rows[name] = [a + int(b) for a, b in zip(rows[name], row_of(result), strict=True)]
    total = rows.pop("all", [0] * len(COLUMNS))
    width = max(len(n) for n in [*rows, "family"])
    print(" ".join([f"{'family':<{width}}", *(f"{c:>13}" for c in COLUMNS)]))
    for name, row in [*sorted(rows.items()), ("all", total)]:
        print(" ".join([f"{name:<{width}}", *(f"{v:>13}" for v in row)]))
    audits = [o.seconds for r in results for o in (r.wrong,)]
    jaxprs = [r.jaxpr for r in results if r.jaxpr == r.jaxpr]
    print(f"seconds: audit {sum(audits):.1f}, jax.make_jaxpr {sum(jaxprs):.1f}")


def show(label, outcome):
    if outcome.crash:
        print(f"  {label}: crashed: {outcome.crash}")
    for f in outcome.findings:
        where = f"{Path(f.file).name}:{f.line}" if f.file else "-"
        print(f"  {label}: {f.severity} {f.code} {where} {str(f.message).splitlines()[0][:110]}")


def show_result(result):
    line, whole, anywhere = result.found
    verdict = "at the line" if line else "in the function" if whole else "elsewhere" if anywhere else "MISSED"
    span = lines_of(result.case, result.path)[0]
    print(f"{result.case.name} [{result.case.family}] {result.path.name}:{span[0]} {verdict}")
    show("wrong", result.wrong)
    show("wrong, bare", result.bare)
    for i, (a, b) in enumerate(zip(result.right, result.right_bare, strict=True)):
        name = "twin" if i == 0 else f"near miss {i}"
        show(name, a)
        show(f"{name}, bare", b)


def measure_public(only, listed):
    from unseen.public import PUBLIC

    counts = Counter()
    for name, make in PUBLIC.items():
        if only not in name:
            continue
        try:
            function, args = make()
        except ImportError as error:
            counts["not installed"] += 1
            if listed:
                print(f"{name}: not installed: {error}")
            continue
        except Exception as error:  # noqa: BLE001
            counts["not built"] += 1
            print(f"{name}: not built: {type(error).__name__}: {str(error)[:150]}")
            continue
        outcome = audit(function, args, None, None, ())
        counts["crashed" if outcome.crash else "with findings" if outcome.findings else "clean"] += 1
        counts["findings"] += len(outcome.findings)
        if listed and (outcome.findings or outcome.crash):
            print(name)
            show("public", outcome)
    print("public functions:", ", ".join(f"{v} {k}" for k, v in counts.items()))


def filled(shape, random):
    """An array for a shape, with numbers that a program can take."""
    if not isinstance(shape, jax.ShapeDtypeStruct):
        return shape
    if jax.dtypes.issubdtype(shape.dtype, jax.dtypes.prng_key):
        seed = jax.random.key(int(random.integers(1000)))
        return seed if shape.shape == () else jax.random.split(seed, shape.shape)
    if shape.dtype == bool:
        return jax.numpy.asarray(random.random(shape.shape) < 0.4)
    if jax.numpy.issubdtype(shape.dtype, jax.numpy.integer):
        return jax.numpy.asarray(random.integers(0, 4, shape.shape), shape.dtype)
    return jax.numpy.asarray(random.uniform(0.05, 0.95, shape.shape), shape.dtype)


def numbers(case, function):
    random = np.random.default_rng(0)
    leaf = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    args = jax.tree.map(lambda x: filled(x, random), case.arguments(), is_leaf=leaf)
    return sees(jax.jit(function)(*args))


def sees(outs):
    return [
        np.asarray(x, dtype=np.float64)
        for x in jax.tree.leaves(outs)
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    ]


def gradients(case, function):
    """Derivatives, where the case says by what, else nothing."""
    names = list(inspect.signature(function).parameters)
    if case.differentiate not in names:
        return []
    return numbers(case, jax.grad(function, argnums=names.index(case.differentiate)))


def differs(case, twin):
    """Whether the wrong program and its twin, which returned `twin`, return the same numbers."""
    wrong = numbers(case, case.wrong)
    if [x.shape for x in wrong] != [x.shape for x in twin]:
        return ""
    same = lambda left, right: all(np.allclose(x, y, equal_nan=True) for x, y in zip(left, right, strict=True))
    if not same(wrong, twin) or not same(gradients(case, case.wrong), gradients(case, case.right[0])):
        return ""
    return "equal numbers"


def misfits(case):
    """What `lox.audit` says of the labels: it is asked about functions of the same arguments that return nothing."""
    told = []
    for i, function in enumerate((case.wrong, *case.right)):
        axes, differentiate = names_its_arguments(case, function)
        if i == 0 and (axes or {}).keys() != (case.axes or {}).keys():
            told.append("labels name no argument")
        defaults = inspect.signature(function).parameters.values()
        names = ", ".join(p.name if p.default is p.empty else f"{p.name}=None" for p in defaults)
        probe = eval(f"lambda {names}: 0.0", {})
        if axes:
            crash = audit(probe, case.arguments(), axes, None, ()).crash
            told += [f"labels of program {i}: {crash}"] if crash else []
    return told


def check(sets, only):
    """Whether cases are as they say: traced, run, and placed."""
    jax.config.update("jax_disable_most_optimizations", True)
    seen, bad = set(), 0
    for case, path in load(sets):
        if only not in case.name and only not in case.family:
            continue
        problems = []
        if case.name in seen:
            problems.append("name is taken")
        seen.add(case.name)
        try:
            lines_of(case, path)
        except ValueError as error:
            problems.append(str(error))
        note = ""
        for i, function in enumerate((case.wrong, *case.right)):
            try:
                jax.make_jaxpr(function)(*case.arguments())
                outs = numbers(case, function) if i else []
                note = differs(case, outs) if i == 1 else note
            except Exception as error:  # noqa: BLE001
                problems.append(f"program {i} does not run: {type(error).__name__}: {str(error)[:200]}")
                continue
            if not all(np.isfinite(x).all() for x in outs):
                problems.append(f"program {i} returns what is not finite")
        problems += misfits(case)
        bad += bool(problems)
        if problems or note:
            print(f"{case.name} [{case.family}]: {'; '.join([*problems, note])}", flush=True)
    print(f"{len(seen)} cases, {bad} with problems")
    return bad


def check_public(only):
    """Whether functions of public libraries are built and traced."""
    from unseen.public import PUBLIC

    bad, missing = 0, 0
    for name, make in PUBLIC.items():
        if only not in name:
            continue
        try:
            function, args = make()
            jax.make_jaxpr(function)(*args)
        except ImportError:
            missing += 1
        except Exception as error:  # noqa: BLE001
            bad += 1
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    print(f"{len(PUBLIC)} public functions, {missing} not installed, {bad} with problems")
    return bad


def main():
    parser = argparse.ArgumentParser(prog="python -m unseen", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print what was found in each program")
    parser.add_argument("--check", action="store_true", help="check the cases, without an audit")
    parser.add_argument("--only", default="", help="cases whose name or family has this text")
    parser.add_argument("--no-public", action="store_true", help="leave out functions of public libraries")
    parser.add_argument("--no-cases", action="store_true", help="leave out the cases")
    parser.add_argument("--set", nargs="*", default=[*FILES], choices=[*FILES], help="which programs")
    options = parser.parse_args()
    if options.check:
        bad = 0 if options.no_cases else check(options.set, options.only)
        bad += 0 if options.no_public else check_public(options.only)
        raise SystemExit(1 if bad else 0)
    results = []
    for case, path in load(options.set) if not options.no_cases else ():
        if options.only in case.name or options.only in case.family:
            results.append(measure(case, path))
            if options.list:
                show_result(results[-1])
    for title, planted in (("mistakes of projects", False), ("planted mistakes", True)):
        chosen = [r for r in results if r.case.planted == planted]
        if chosen:
            print(f"\n{title}")
            table(chosen)
    if not options.no_public:
        measure_public(options.only, options.list)


if __name__ == "__main__":
    main()
