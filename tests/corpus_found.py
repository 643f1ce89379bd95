"""Writes what an audit says of the programs of the corpus to `corpus/found.json`: `python tests/corpus_found.py`."""

from __future__ import annotations

import json

import conftest  # noqa: F401  (several devices)
import jax
from corpus import LISTING, OF_A_VERSION, cases, told

with jax.numpy_dtype_promotion("standard"):
    found = {case.key: told(case.report()) for case in cases() if case.key not in OF_A_VERSION}
lines = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in sorted(found.items()) if each]
LISTING.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
