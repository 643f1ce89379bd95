"""Tests that need the extra `integration`: other libraries, pages, several processes."""

import importlib.util

import pytest

if importlib.util.find_spec("flax") is None:
    raise pytest.UsageError("tests/integration needs more packages: pip install -e '.[integration]'")
