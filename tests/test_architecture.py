"""The shape of the package: what imports what, what is exported, and one rule per primitive."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import jax.extend
import pytest

import lox
from lox import _handler

PACKAGE = Path(lox.__file__).parent


def modules(folder, root):
    """The modules in a folder, by the name under which code imports them that has the root on its path."""
    names = {path: ".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(folder.rglob("*.py"))}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


MODULES = modules(PACKAGE, PACKAGE.parent)
del MODULES["lox._pytest._lox_pytest"]  # It is a module of its own where lox is installed.
TESTS = Path(__file__).parent
EVERYWHERE = MODULES | modules(TESTS.parent / "benchmarks", TESTS.parent) | modules(TESTS, TESTS)
HANDLERS = {"lox._spool", "lox._strip", "lox._sites", "lox._stream", "lox._summary"}
# From the bottom: a module imports none of a later layer.
LAYERS = (
    {
        "lox._exceptions",
        "lox._compat",
        "lox._events",
        "lox._leading_axes",
        "lox._sharding",
        "lox._flax_probe",
        "lox._text",
        "lox._extras",
    }
    | {"lox._run_all", "lox._screen", "lox._site", "lox._timeline", "lox._patterns"},
    {"lox._ambient", "lox._arguments", "lox._unmatched", "lox._misspelt", "lox._effect", "lox._columns", "lox._split"}
    | {"lox._lockstep", "lox._log", "lox._log_grad"}
    | {"lox._keys", "lox._host_values", "lox._tables", "lox._datasets", "lox._abstract", "lox._notebook"},
    {
        "lox._handler",
        "lox._select",
        "lox._logs_in",
        "lox._logged_names",
        "lox._trace",
        "lox._late",
        "lox._eager",
        "lox._logdict",
        "lox._concatenate",
        "lox._collect",
        "lox._reduce",
        "lox._reductions",
        "lox._stepwise",
        "lox._bins",
        "lox._distributions",
        "lox._largest",
        "lox._own_reduction",
        "lox.reductions",
    },
    {"lox._rules", "lox._autodiff", "lox._batching", "lox._transform", "lox._channel", "lox._deliver"}
    | {"lox._shard_divergence", "lox._bounded", "lox._capped", "lox._chunks", "lox._fold", "lox._subsample"}
    | {"lox._stack", "lox._window", "lox._endpoint"},
    HANDLERS | {"lox._storage", "lox._tap", "lox._context", "lox._watch"},
    {"lox._progress"},
    {"lox.loggers", "lox._audit", "lox._nonfinite"},
    {"lox", "lox.__main__", "lox.commands", "lox.demo", "lox.testing"},
)


@functools.cache
def imports(module):
    """The modules that a module imports anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(EVERYWHERE[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in EVERYWHERE else node.module)
    return found


def layer(module):
    found = [
        place
        for place, names in enumerate(LAYERS)
        if module in names or any(module.startswith(f"{n}.") for n in names - {"lox"})
    ]
    assert len(found) == 1, f"{module} has no layer: name it in this test"
    return found[0]


def upwards(module):
    """What a module imports of the layers above its own."""
    found = {other for other in imports(module) & MODULES.keys() if layer(other) > layer(module)}
    if not module.startswith(("lox.demo", "lox.__main__", "lox.testing")) and module != "lox":
        found |= {other for other in imports(module) if other == "lox"}
    return found


def test_a_module_imports_downwards_only():
    assert {module: found for module in MODULES if (found := upwards(module))} == {}


def test_every_module_has_its_place_in_the_table_of_contributors():
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    here = {path.relative_to(PACKAGE) for path in MODULES.values()}
    names = {path.name if path.parent == Path() else f"{path.parts[0]}/" for path in here} - {"__init__.py"}
    assert {name for name in names if f"`{name}" not in page} == set()


def test_no_modules_import_each_other():
    graph = {module: imports(module) & MODULES.keys() - {module, "lox"} for module in MODULES}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_no_modules_of_the_benchmarks_and_the_tests_import_each_other():
    """Imports inside functions count."""
    others = EVERYWHERE.keys() - MODULES.keys()
    assert {"benchmarks.document", "corpus", "corpus.scan", "reference", "test_architecture"} <= others
    assert "benchmarks._report" in imports("benchmarks.auditing") and "corpus" in imports("benchmarks.auditing")
    graph = {module: imports(module) & others - {module} for module in others}
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_handlers_never_import_each_other():
    for handler in HANDLERS:
        assert not imports(handler) & (HANDLERS - {handler})


def test_rules_know_no_handler():
    rules = [module for module in MODULES if module.startswith("lox._rules.")]
    assert rules and {"lox._collect", "lox._transform"} < MODULES.keys()
    for module in rules:
        assert not imports(module) & (HANDLERS | {"lox._collect", "lox._transform"})


def private_names(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if "jax._src" in name or "jaxlib" in name
    ]
    versions = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("__version__", "__version_info__", "_src")
    ]
    named = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("jax._src")
    ]
    return imported + versions + named


def test_only_the_compat_package_touches_private_parts_of_jax_or_looks_at_versions():
    touching = {module for module, path in MODULES.items() if private_names(path)}
    assert {module for module in touching - {"lox.__main__"} if not module.startswith("lox._compat.")} == set()


def test_the_compat_package_looks_private_names_up_by_its_register_only():
    for module in MODULES:
        if module.startswith("lox._compat"):
            assert not {name for name in imports(module) if "jax._src" in name}


def test_exceptions_import_nothing_of_lox():
    assert not imports("lox._exceptions") & MODULES.keys()


EXPORTS = {
    "NonfiniteReport",
    "NonfiniteWarning",
    "find_nonfinite",
    "guard",
    "replay",
    "Point",
    "points",
    "progress",
    "watch",
    "context",
    "ContextError",
    "audit",
    "AuditError",
    "log",
    "log_grad",
    "load",
    "load_config",
    "save",
    "StorageError",
    "spool",
    "tap",
    "flush",
    "strip",
    "keep",
    "sites",
    "logdict",
    "LogSite",
    "LoggerWarning",
    "LoxError",
    "LogDataError",
    "LogValueError",
    "LoggerWarning",
    "ProgressWarning",
    "SelectionWarning",
    "SpoolError",
    "SpoolWarning",
    "StorageWarning",
    "StructureError",
    "TapWarning",
    "UnsupportedJaxError",
    "UnsupportedPrimitiveError",
}


def test_the_public_names_are_these():
    public = {name for name in dir(lox) if not name.startswith("_")}
    modules = {name for name in public if isinstance(getattr(lox, name), type(sys))}
    assert public - modules == EXPORTS


def test_public_names_are_documented():
    assert not [name for name in EXPORTS if not getattr(lox, name).__doc__]


@pytest.mark.parametrize("module", ["lox", "lox.loggers", "lox.commands"])
def test_importing_lox_imports_no_other_package_and_starts_no_device(module):
    code = (
        "import sys, jax\n"
        "before = set(sys.modules)\n"
        f"import {module}\n"
        "packages = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "from jax._src import xla_bridge\n"
        "print(sorted(packages - sys.stdlib_module_names), xla_bridge.backends_are_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['jax', 'lox'] False"


def test_what_is_imported_at_its_first_use_is_there_like_the_rest():
    code = (
        "import lox\n"
        "assert 'loggers' not in vars(lox)\n"
        "from lox import load, loggers, save\n"
        "assert lox.loggers is loggers and lox.load is load and lox.save is save\n"
        "assert not hasattr(lox, 'nothing')\n"
        "lox.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.endswith("AttributeError: module 'lox' has no attribute 'nothing'\n")


def test_a_second_rule_for_a_primitive_is_refused():
    primitive = jax.extend.core.primitives.scan_p
    before = _handler.rules[primitive]
    with pytest.raises(ValueError, match="scan already has a rule"):
        _handler.rule(primitive)(lambda *args: None)
    assert _handler.rules[primitive] is before


def test_there_are_rules_for_the_higher_order_primitives_of_jax():
    primitives = jax.extend.core.primitives
    expected = {
        primitives.jit_p,
        primitives.scan_p,
        primitives.while_p,
        primitives.cond_p,
        primitives.remat_p,
        primitives.custom_jvp_call_p,
        primitives.custom_vjp_call_p,
        primitives.linear_solve_p,
        primitives.closed_call_p,
    }
    assert expected <= set(_handler.rules)
