"""Imports of optional packages, which extras of lox install."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Around imports for `what`: an import that fails says which extra of lox installs the package.

    >>> try:
    ...     with extra("pandas", "to_pandas"):
    ...         import no_such_package
    ... except ImportError as error:
    ...     print(*error.__notes__)
    to_pandas needs no_such_package, which the extra 'pandas' installs: pip install 'jax-lox[pandas]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "lox").startswith("lox"):
            error.add_note(
                f"{what} needs {error.name}, which the extra {name!r} installs: pip install 'jax-lox[{name}]'"
            )
        raise
