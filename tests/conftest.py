"""JAX as the tests have it: several CPU devices, strict dtype promotion, quick compilation. No library calls home."""

import gc
import os
import signal

DEVICES = 4
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_ERROR_REPORTING"] = "false"
# A job that a shell started in the background ignores interrupts, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import pytest  # noqa: E402
from compilation import compile_old_programs_quickly, keep_what_can_be_kept  # noqa: E402
from jax.experimental.compilation_cache import compilation_cache  # noqa: E402
from tiers import examples as examples  # noqa: E402
from tiers import pytest_collection_modifyitems as pytest_collection_modifyitems  # noqa: E402
from tiers import pytest_configure as choose_tier  # noqa: E402
from tiers import pytest_ignore_collect as pytest_ignore_collect  # noqa: E402
from tiers import share  # noqa: E402

from lox import _logged_names  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")

QUICK = {
    "jax_disable_most_optimizations": True,
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
"""How the tests compile: quickly, and once for all runs."""

AS_USERS = {"jax_disable_most_optimizations": False, "jax_enable_compilation_cache": False}


def pytest_addoption(parser):
    parser.addoption(
        "--as-users", action="store_true", help="compile as users do: with all optimizations, and without a cache"
    )
    parser.addoption("--no-compilation-cache", action="store_true", help="compile everything")
    parser.addoption("--share", type=share, help="run one of so many shares of the slow tests, as in 1/2")
    parser.addoption("--mutant", help="break lox in this way, of tests/mutants.py")


def pytest_configure(config):
    choose_tier(config)
    if config.getoption("mutant"):
        from mutants import HOW

        if config.getoption("mutant") not in HOW:
            raise pytest.UsageError(f"--mutant takes one of {', '.join(HOW)}")
        breaks = HOW[config.getoption("mutant")]
        breaks(pytest.MonkeyPatch())
    if config.getoption("as_users"):
        return
    if config.getoption("no_compilation_cache"):
        QUICK["jax_enable_compilation_cache"] = False
    if hasattr(config, "cache"):  # Not with `-p no:cacheprovider`.
        QUICK["jax_compilation_cache_dir"] = str(config.cache.mkdir("jax"))
    for name, value in QUICK.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)  # For the processes that tests start.
    compile_old_programs_quickly()
    keep_what_can_be_kept()
    if jax.__version_info__ < (0, 11):  # It can be kept where the test's own process is asked, and not elsewhere.
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "False"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["options"] = {name: node.config.getoption(name) for name in ("share", "hypothesis_seed")}


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # Tests that collect garbage need not look at what was imported.


@pytest.fixture(scope="session", autouse=True)
def options_are_not_for_sessions_that_tests_start():
    """Takes them from the environment where tests run: before that, the workers of xdist read them there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_ADDOPTS", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Lets go of the programs of the module before, which would take gigabytes together."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def names_that_other_tests_logged_are_unknown(monkeypatch):
    """Keeps what handlers took in one test from silencing the warnings of selections in another."""
    for name in ("taken", "removed", "_excused"):
        monkeypatch.setattr(_logged_names, name, set())


@pytest.fixture(scope="session", autouse=True)
def failing_checks_raise():
    """Makes a check of the auditor that fails raise, where users get a finding."""
    from lox._audit import _failures

    def raises(part, error):
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_failures, "failure", raises)
        yield


def pytest_runtest_setup(item):
    """Compiles as users do where a test is marked so, and quickly elsewhere."""
    if item.config.getoption("as_users"):
        return
    options = QUICK | (AS_USERS if item.get_closest_marker("optimized") else {})
    if jax.config.values["jax_disable_most_optimizations"] != options["jax_disable_most_optimizations"]:
        for name, value in options.items():
            jax.config.update(name, value)
        jax.clear_caches()
        compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def trackio_folder(tmp_path_factory):
    """Where Trackio writes in this process, which asks the environment once, when it is imported."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder))
        import trackio  # noqa: F401

        yield folder
