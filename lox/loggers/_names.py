"""Keys of logs as names that a sink takes."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection

UNWRITABLE = r"[\ud800-\udfff]"
"""Characters that are no Unicode text."""


def escaped(key: str, refused: str, longest: int | None = None, reserved: Collection[str] = ()) -> str:
    r"""A key as a name that a sink takes; different keys have different names.

    Args:
        key: The key.
        refused: A regular expression for the characters that the sink refuses. Each becomes `_x`, its code point in
            hexadecimal digits, and `-`, none of which may be refused.
        longest: How long a name may be. One that is longer ends with a hash of the key instead.
        reserved: Names that stand for something else in the sink. `_x-` is put at the end of them, and of no name.

    >>> escaped("loss (train)", r"[^\w-]"), escaped("max_x", r"[^\w-]"), escaped("_x20-", r"[^\w-]")
    ('loss_x20-_x28-train_x29-', 'max_x', '_x5f-x20-')
    >>> escaped("step", r"[^\w-]", reserved={"step"}), escaped("step_x-", r"[^\w-]"), escaped("", r"[^\w-]")
    ('step_x-', 'step_x5f-x-', '_x-')
    """
    name = _without(refused, key)
    while not name or name in reserved:
        name += "_x-"
    if longest is not None and len(name) > longest:
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        name = f"{name[: longest - 27]}_x{digest}-"  # No code point has so many digits.
    return name


@functools.lru_cache(10_000)  # The same keys are written again and again.
def _without(refused: str, key: str) -> str:
    def escape(found: re.Match[str]) -> str:
        return "".join(f"_x{ord(character):x}-" for character in found[0])

    return re.sub(rf"{refused}|_(?=x[0-9a-f]*-)", escape, key)
