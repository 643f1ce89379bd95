"""Plants small faults in copies of lox, drawn at random or chosen, and runs the tests that reach each of them.

    python tests/planted.py --seed 4 --count 120    what the tests of the default tier notice, and what survives
    python tests/planted.py --chosen tests/chosen_faults.json    the same for faults that somebody chose
    python tests/planted.py --seed 4 --count 120 --also integration exhaustive    what those notice of the survivors

`tests/mutants.py` breaks each rule by hand; these are mistakes of one token or one statement, anywhere in the library.
A file of chosen faults is a list of their path, line, and the texts before and after; code may have moved by some lines
since. The copies, the tests that reach each line and the outcomes are in `build/planted`. A run that was stopped
continues there; without the folder it begins anew. It needs Python 3.12 or later, for `sys.monitoring`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import CodeType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "build" / "planted"
COPIES = [PLACE / f"checkout-{number}" for number in range(os.cpu_count() or 1)]
"""Each has one fault at a time."""
LIMITS = {"default": 90.0, "integration": 300.0, "exhaustive": 600.0}
"""Seconds that the tests of a tier may take for one mutant."""
HANGING = ["-o", "faulthandler_timeout=30", "-o", "faulthandler_exit_on_timeout=true"]
"""A test that runs longer is one that the mutant keeps from ending."""
TOOL = 2  # `sys.monitoring.PROFILER_ID`, which older Pythons do not have

OUTPUT = "loggers _storage commands demo __main__ _tables _datasets _notebook _text _extras _run_all".split()
OUTCOMES = ("killed", "timed out", "unfinished", "survived", "unreached")
SHARES = {"core": 0.65, "output": 0.2, "auditor": 0.15}


def area_of(path: Path) -> str | None:
    """The area of a module, or None for the random programs and laws, which are tests themselves."""
    first = path.with_suffix("").parts[1]
    if first == "testing":
        return None
    return "auditor" if first in ("_audit", "_pytest") else "output" if first in OUTPUT else "core"


# -- what a mutant is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mutant:
    """A change of one node of a module: the bytes of the source from `start` to `end` become `after`."""

    area: str
    path: str
    line: int
    last: int
    start: int
    end: int
    before: str
    after: str
    scopes: tuple[tuple[int, int], ...]
    """First and last lines of the functions and classes around the node, from the inside, and of the module."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
NAMES = [("min", "max"), ("minimum", "maximum"), ("any", "all"), ("zeros", "ones")]
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
OPPOSITES = {old: new for pair in NAMES for old, new in (pair, pair[::-1])} | {"sorted": "list", "reversed": "list"}


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may take the place of this one."""
    one = ast.Constant(1)
    match node:
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                for other in COMPARISONS[type(op)]:
                    yield changed(node, ops=[*ops[:index], other(), *ops[index + 1 :]])
        case ast.BoolOp(op=op, values=values):
            yield changed(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for index in range(len(values)):
                left = [*values[:index], *values[index + 1 :]]
                yield changed(node, values=left) if len(left) > 1 else left[0]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd(), right=right):
            yield from (left, right)
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not text(node.left) and not text(node.right):
            yield changed(node, op=ARITHMETIC[type(op)]())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(other) for other in {value + 1, abs(value - 1)})
        case ast.Constant(value=None):
            yield ast.Constant(0)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Name(id=name) if name in OPPOSITES:
            yield changed(node, id=OPPOSITES[name])
        case ast.Attribute(attr=name) if name in OPPOSITES:
            yield changed(node, attr=OPPOSITES[name])
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                yield changed(node, keywords=[other for other in keywords if other is not keyword])
        case ast.ListComp(generators=loops) | ast.SetComp(generators=loops) | ast.GeneratorExp(generators=loops):
            for index, loop in enumerate(loops):
                if loop.ifs:
                    yield changed(node, generators=[*loops[:index], changed(loop, ifs=[]), *loops[index + 1 :]])
        case ast.Subscript(slice=ast.Slice(lower, upper, step) as where):
            if step is not None:
                yield changed(node, slice=changed(where, step=None))
            else:
                start = one if lower is None else ast.BinOp(lower, ast.Add(), one)
                yield changed(node, slice=changed(where, lower=start))
            if upper is not None:
                yield changed(node, slice=changed(where, upper=ast.BinOp(upper, ast.Add(), one)))
        case ast.Subscript(slice=ast.Constant(0)):
            yield changed(node, slice=ast.Constant(-1))
        case ast.Subscript(slice=ast.UnaryOp(ast.USub(), ast.Constant(1))):
            yield changed(node, slice=ast.Constant(0))
        case ast.Return(value=ast.Tuple(elts=[first, second, *rest])):
            yield ast.Return(ast.Tuple([second, first, *rest], ast.Load()))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def changed(node: Any, **fields: Any) -> Any:
    """The node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def text(node: ast.AST) -> bool:
    """Whether adding something to this is about sequences, where any other operation is an error at once."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def condition_of(node: ast.AST) -> list[tuple[ast.AST, list[ast.AST]]]:
    """The condition of a statement, with what may take its place: a loop that never ends is left out."""
    match node:
        case ast.If(test=test):
            return [(test, [ast.Constant(True), ast.Constant(False)])]
        case ast.While(test=test):
            return [(test, [ast.Constant(False)])]
    return []


def meant(node: ast.AST, parent: ast.AST) -> bool:
    """Whether the node is part of what programs do: no type, no message of an error, no pattern."""
    if node in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
        return False
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.pattern():
            return False
        case ast.Constant(None) if isinstance(parent, ast.Compare):
            return False  # Python warns of `is 0`.
        case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.FunctionDef(name="__repr__"):
            return False
        case ast.Assign(targets=[ast.Name(name)]) if name.lstrip("_")[:1].isupper() and not name.isupper():
            return False  # The name of a type.
        case ast.FunctionDef(decorator_list=decorators):
            return not any(ast.unparse(each).endswith(("overload", "abstractmethod")) for each in decorators)
        case ast.ClassDef(bases=bases):
            return not any("Protocol" in ast.unparse(base) for base in bases)
    return True


def sites(path: Path, area: str) -> Iterator[list[Mutant]]:
    """The mutants of each node of a module."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = path.relative_to(COPIES[0]).as_posix()
    tree = ast.parse(source)

    def visit(node: ast.AST, scopes: tuple[tuple[int, int], ...]) -> Iterator[list[Mutant]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            scopes = ((node.lineno, node.end_lineno or node.lineno), *scopes)
        for old, others in [(node, list(changes(node))), *condition_of(node)]:
            texts = dict.fromkeys(map(ast.unparse, others))
            found = [mutant(old, new, scopes) for new in texts if new != ast.unparse(old)]
            if found:
                yield found
        for child in ast.iter_child_nodes(node):
            if meant(child, node):
                yield from visit(child, scopes)

    def mutant(old: Any, new: str, scopes: tuple[tuple[int, int], ...]) -> Mutant:
        start, end = starts[old.lineno - 1] + old.col_offset, starts[old.end_lineno - 1] + old.end_col_offset
        after = new if isinstance(old, ast.stmt) else f"({new})"
        return Mutant(area, name, old.lineno, old.end_lineno, start, end, ast.unparse(old), after, scopes)

    yield from visit(tree, ((1, len(starts)),))


def draw(seed: int, count: int) -> list[Mutant]:
    """Draws nodes without regard to what changes them, one change of each, in shares of the areas."""
    chance = random.Random(seed)
    found: dict[str, list[list[Mutant]]] = {area: [] for area in SHARES}
    for path in sorted((COPIES[0] / "lox").rglob("*.py")):
        if area := area_of(path.relative_to(COPIES[0])):
            found[area] += sites(path, area)
    drawn = [
        chance.choice(site)
        for area, share in SHARES.items()
        for site in chance.sample(found[area], round(count * share))
    ]
    chance.shuffle(drawn)
    return drawn


def chosen(file: Path) -> list[Mutant]:
    """The faults of a file."""
    found = []
    for fault in json.loads(file.read_text(encoding="utf-8")):
        path = COPIES[0] / fault["path"]
        lines = path.read_bytes().splitlines(keepends=True)
        before, after = fault["before"], fault["after"]
        having = [number for number, text in enumerate(lines, 1) if text.count(before.encode()) == 1]
        if not having:
            raise SystemExit(f"{fault['path']} has no line with {before!r} once.")
        line = min(having, key=lambda number: abs(number - fault["line"]))
        start = sum(map(len, lines[: line - 1])) + lines[line - 1].index(before.encode())
        defined = [node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, DEFINITIONS)]
        ends = ((node.lineno, node.end_lineno or node.lineno) for node in defined)
        around = sorted((pair for pair in ends if pair[0] <= line <= pair[1]), key=lambda pair: pair[1] - pair[0])
        scopes, end = (*around, (1, len(lines))), start + len(before.encode())
        area = area_of(Path(fault["path"])) or "core"
        found.append(Mutant(area, fault["path"], line, line, start, end, before, after, scopes))
    return found


# -- which tests reach a line ----------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of this module as a plugin of pytest, in the processes that it starts."""
    parser.addoption("--planted-map", type=Path, help="write here which tests reach which lines, and their seconds")
    parser.addoption("--planted-part", type=int, help="run the tests of one of as many parts as there are processors")


def pytest_configure(config: pytest.Config) -> None:
    """Records what runs, from the import of lox on, and sees that the copy is what is imported."""
    if config.option.planted_map:
        config.pluginmanager.register(Reached(config.option.planted_map, f"{config.rootpath}{os.sep}"))
    import lox

    if Path(lox.__file__).parent != config.rootpath / "lox":
        raise pytest.UsageError(f"{lox.__file__} would be tested, which is not in {config.rootpath}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the tests of files that are in other parts out."""
    if (part := config.option.planted_part) is not None:
        files = [item.nodeid.partition("::")[0] for item in items]
        kept = [zlib.crc32(file.encode()) % len(COPIES) == part for file in files]
        items[:] = [item for item, keep in zip(items, kept, strict=True) if keep]


class Reached:
    """Writes which tests reach which lines of functions of lox, and how long each test takes."""

    def __init__(self, file: Path, root: str) -> None:
        self._file = file
        self._root = root
        self._lines: set[tuple[str, int]] = set()
        self._in_test = False
        self._seconds: dict[str, float] = {}
        self._reached: dict[str, dict[int, list[int]]] = {}
        events = sys.monitoring.events
        sys.monitoring.use_tool_id(TOOL, "planted")
        sys.monitoring.register_callback(TOOL, events.PY_START, self._start)
        sys.monitoring.register_callback(TOOL, events.LINE, self._line)
        sys.monitoring.set_events(TOOL, events.PY_START)

    def _start(self, code: CodeType, offset: int) -> Any:
        if code.co_filename.startswith(f"{self._root}lox{os.sep}"):
            self._watch(code)
        return sys.monitoring.DISABLE

    def _watch(self, code: CodeType) -> None:
        sys.monitoring.set_local_events(TOOL, code, sys.monitoring.events.LINE)
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                self._watch(inner)

    def _line(self, code: CodeType, line: int) -> None:
        if self._in_test and code.co_flags & inspect.CO_OPTIMIZED:  # A function, and no module or class.
            self._lines.add((code.co_filename.removeprefix(self._root), line))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines, self._in_test = set(), True
        result = yield
        self._in_test = False
        for path, line in self._lines:
            self._reached.setdefault(path, {}).setdefault(line, []).append(len(self._seconds) - 1)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took = report.duration if report.passed else math.inf
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + took

    def pytest_sessionfinish(self) -> None:
        for event in (sys.monitoring.events.PY_START, sys.monitoring.events.LINE):
            sys.monitoring.register_callback(TOOL, event, None)
        found = {
            "tests": [*self._seconds],
            "seconds": [*self._seconds.values()],
            "reached": self._reached,
        }
        self._file.write_text(json.dumps(found), encoding="utf-8")


def tests_of(mutant: Mutant, reach: dict[str, Any], limit: float) -> list[str]:
    """The tests that reach a mutant, in rounds: the quickest first, and each by file.

    Of what no test reaches, such as what runs when lox is imported, they are those that reach the function, class or
    module around it.
    """
    lines = reach["reached"].get(mutant.path, {})
    tests: set[int] = set()
    for first, last in ((mutant.line, mutant.last), *mutant.scopes):
        tests = tests or {test for line in range(first, last + 1) for test in lines.get(str(line), ())}
    order, spent = [], 0.0
    for test in sorted(tests, key=lambda test: (reach["seconds"][test], test)):
        spent += reach["seconds"][test]
        if spent <= limit / 2:  # The other half is for what a mutant slows down.
            order.append((int(math.log2(4 + spent)), reach["tests"][test].partition("::")[0], test))
    return [reach["tests"][test] for *_, test in sorted(order)]


# -- what becomes of a mutant ----------------------------------------------------------------------------------------


def run_pytest(place: Path, arguments: list[str], limit: float | None) -> tuple[int | None, str]:
    """The exit status and the output of pytest in a copy; no status where the limit ended it."""
    python_path = os.pathsep.join(map(str, (place, place / "lox" / "_pytest", place / "tests")))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "planted", "-n0", "-q", "--tb=no", "-rfE", *arguments],
        cwd=place,
        env=os.environ | {"PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]


def outcome(place: Path, mutant: Mutant, tests: list[str], limit: float) -> tuple[str, str]:
    """Plants the mutant, runs the tests and takes it out again; returns what became of it, and by what."""
    if not tests:
        return "unreached", ""
    listed = place.with_suffix(".txt")
    listed.write_text("\n".join(tests), encoding="utf-8")
    path = place / mutant.path
    original, kept = path.read_bytes(), path.stat()
    try:
        path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
        status, output = run_pytest(place, ["-x", *HANGING, "-m", "", f"@{listed}"], limit)
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    if status == 0:
        return "survived", ""
    if status is None:
        return "unfinished", ""
    if "Timeout (" in output:
        return "timed out", ""
    found = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "E "))]
    return "killed", found[0] if found else f"exit status {status}"


def make_copies() -> None:
    """Copies the checkout, where there are no copies yet."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0"):
        for place in [place for place in COPIES if (ROOT / name).is_file() and not (place / "whole").exists()]:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    for place in COPIES:
        (place / "whole").touch()


def reach_of(tier: str) -> dict[str, Any]:
    """The lines that each test of a tier reaches."""
    file = PLACE / f"{tier}.json"
    if not file.exists():
        print(f"Runs the tests of the {tier} tier, to see which lines each reaches.", flush=True)
        marks = [] if tier == "default" else ["-m", tier]

        def reach(part: int) -> dict[str, Any]:
            written = COPIES[part].with_suffix(".json")
            options = [f"--planted-map={written}", f"--planted-part={part}", *marks]
            status, output = run_pytest(COPIES[part], options, None)
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                sys.exit(output)  # Some tests could not be read.
            print(output.splitlines()[-1], flush=True)
            return json.loads(written.read_text(encoding="utf-8"))

        whole: dict[str, Any] = {"tests": [], "seconds": [], "reached": {}}
        with ThreadPoolExecutor() as pool:
            for part in pool.map(reach, range(len(COPIES))):
                first = len(whole["tests"])
                for path, lines in part["reached"].items():
                    for line, tests in lines.items():
                        known = whole["reached"].setdefault(path, {}).setdefault(line, [])
                        known += [first + test for test in tests]
                whole["tests"] += part["tests"]
                whole["seconds"] += part["seconds"]
        file.write_text(json.dumps(whole), encoding="utf-8")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Draws, runs what has not been run, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="what the faults are drawn with")
    parser.add_argument("--count", type=int, default=100, help="the number of faults that are drawn")
    parser.add_argument("--chosen", type=Path, help="a file of faults, in place of drawn ones")
    parser.add_argument("--also", nargs="*", default=[], choices=[*LIMITS][1:], help="tiers to run on what survives")
    options = parser.parse_args()
    if (options.seed is None) == (options.chosen is None):
        parser.error("give --seed or --chosen")
    make_copies()
    mutants = draw(options.seed, options.count) if options.chosen is None else chosen(options.chosen)
    reaches = {tier: reach_of(tier) for tier in ("default", *options.also)}
    name = f"seed-{options.seed}" if options.chosen is None else options.chosen.stem
    kept = PLACE / "outcomes" / f"{name}.json"
    kept.parent.mkdir(exist_ok=True)
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    copies: SimpleQueue[Path] = SimpleQueue()
    for place in COPIES:
        copies.put(place)

    def run(mutant: Mutant) -> dict[str, Any]:
        place = copies.get()
        try:
            result = {"area": mutant.area, "outcome": "unreached", "tiers": []} | found.get(str(mutant), {})
            for tier, reach in reaches.items():
                if tier not in result["tiers"] and result["outcome"] in ("survived", "unreached"):
                    tests = tests_of(mutant, reach, LIMITS[tier])
                    became, by = outcome(place, mutant, tests, LIMITS[tier])
                    if became != "unreached":
                        result |= {"outcome": became, "by": by, "tests": len(tests)}
                    result["tiers"] = [*result["tiers"], tier]
        finally:
            copies.put(place)
        return result

    counts: Counter[tuple[str, str]] = Counter()
    with ThreadPoolExecutor(len(COPIES)) as pool:
        for number, (mutant, result) in enumerate(zip(mutants, pool.map(run, mutants), strict=True), 1):
            found[str(mutant)] = result
            kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
            counts[result["area"], result["outcome"]] += 1
            print(f"{number:3} {result['outcome']:10} {mutant}  {result.get('by', '')}", flush=True)
    print(f"\n{'area':8}" + "".join(f"{column:>11}" for column in ("drawn", *OUTCOMES)))
    for area in SHARES:
        row = [counts[area, column] for column in OUTCOMES]
        print(f"{area:8}" + "".join(f"{cell:11}" for cell in (sum(row), *row)))


if __name__ == "__main__":
    main()
