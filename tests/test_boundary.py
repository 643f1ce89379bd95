"""On a JAX that has lost a private name or module, lox loses what needs that, with an error, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import boundary
import jax
import pytest

import lox
from lox import _compat
from lox._compat import _names

NAMES = _compat.PRIVATE_NAMES
ONLY_FROM_0_11 = {"jax._src.flattree:nones"}


def outcomes(tmp_path, scenarios):
    """What comes of scenarios for each loss, as `boundary.py` prints it."""
    settings = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "True",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),  # All processes compile the same programs.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "PYTHONPATH": str(Path(lox.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, boundary.__file__, scenarios],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def wrong(found):
    """What did not come as the register says."""
    for loss, seen in found.items():
        if "import" in seen:
            yield f"without {loss}: import lox: {seen['import']}"
            continue
        for scenario, outcome in seen["outcomes"].items():
            needed = set(boundary.SCENARIOS[scenario][1]) & set(seen["features"])
            says_why = outcome.startswith("unsupported: ") and any(name in outcome for name in seen["names"])
            # Of a primitive that lox does not find by its name, it says that it has no rule for it.
            of_primitive = loss.startswith("primitive ") and "UnsupportedPrimitiveError: lox has no rule" in outcome
            uses_it = scenario in ("custom_vmap", "shard_map", "vmap_of_shard_map", "tap_on_shards")
            if outcome != "right" and not (needed and says_why) and not (of_primitive and uses_it):
                yield f"without {loss}: {scenario}: {outcome}"


def test_without_any_private_name_lox_is_imported_and_the_basic_handlers_work(tmp_path):
    found = outcomes(tmp_path, "no_handler,plain,jit")
    assert set(NAMES) - ONLY_FROM_0_11 <= set(found)
    assert list(wrong(found)) == []
    assert {outcome for seen in found.values() for outcome in seen["outcomes"].values()} == {"right"}


@pytest.mark.integration
def test_without_a_private_name_only_what_needs_it_raises(tmp_path):
    found = outcomes(tmp_path, "all")
    assert list(wrong(found)) == []
    # The table of scenarios shows each error, but for those of flax and of several processes.
    raised = {loss for loss, seen in found.items() if {*seen["outcomes"].values()} != {"right"}}
    features = {loss: set(seen["features"]) - {"FLAX_SCAN", "PMAP"} for loss, seen in found.items()}
    assert {loss for loss, needed in features.items() if needed} - raised == set()


def test_this_jax_has_all_private_names():
    missing = {key for key, name in NAMES.items() if not isinstance(name, _names.PrivateAttribute) and not name.found}
    assert missing == (ONLY_FROM_0_11 if jax.__version_info__ < (0, 11) else set())


def test_private_names_only_become_fewer():
    assert len(NAMES) <= 27


def test_each_private_name_says_what_it_is_for_and_what_happens_without_it():
    for name in NAMES.values():
        assert name.purpose.startswith("to ")
        assert (name.needed_for is None) != (not name.otherwise)


def test_a_private_name_is_registered_once(monkeypatch):
    monkeypatch.setattr(_names, "PRIVATE_NAMES", dict(NAMES))
    with pytest.raises(ValueError, match="is registered already"):
        _names.private(next(iter(NAMES)), purpose="to test", otherwise="Nothing is lost.")


def test_the_error_says_the_version_the_name_the_feature_and_what_to_do():
    name = _names.PrivateName(("jax._src.nowhere:gone",), "to look", _names.Feature.SHARDS, "")
    with pytest.raises(lox.UnsupportedJaxError) as caught:
        name.need()
    assert str(caught.value) == (
        f"jax {jax.__version__} has no jax._src.nowhere.gone, which lox uses to look. It is needed for a log inside "
        "a shard_map. Use a version of JAX that this version of lox supports, or a newer lox; if there is none, please "
        "report this."
    )
    assert isinstance(caught.value, NotImplementedError) and isinstance(caught.value, lox.LoxError)


def test_a_name_that_is_something_else_counts_as_missing():
    for has, found in (("bind", True), ("add_type", False)):
        name = _names.PrivateName(("jax.lax:add_p",), "to add", _names.Feature.SHARDS, "", has)
        assert name.found == found


def test_a_public_name_is_preferred():
    name = _names.PrivateName(("jax.lax:add", "jax._src.nowhere:gone"), "to add", _names.Feature.SHARDS, "")
    assert name.value is jax.lax.add and name.owner is jax.lax


def test_several_processes_without_what_pmap_asks_are_refused(monkeypatch):
    lost = _names.PrivateName(("jax._src.nowhere:core",), "to run pmap", _names.Feature.PMAP, "")
    monkeypatch.setattr(_compat._patches, "_is_clean", lost)
    monkeypatch.setattr(_compat._patches, "need", lambda feature: lost.need())
    lox.spool(lambda x: x)(1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(lox.UnsupportedJaxError, match="pmap in several processes"):
        lox.spool(lambda x: x)(1)
