"""Tests that need the extra `integration`: other libraries, pages, several processes."""

import importlib.util

import pytest

if importlib.util.find_spec("flax") is None:
    raise pytest.UsageError("tests/integration needs more packages: pip install -e '.[integration]'")


def pytest_collection_modifyitems(items):
    for item in items:
        if "integration" in item.path.parts:
            item.add_marker(pytest.mark.integration)
