"""Several things of which one may fail without harm to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each(act: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Does something with all items, and then raises what was raised first, with notes of the rest."""
    errors: list[BaseException] = []
    for item in items:
        try:
            act(item)
        except BaseException as error:  # noqa: BLE001  (whatever it is, the next item has its turn)
            errors.append(error)
    raise_first(errors)


def raise_first(errors: Iterable[BaseException]) -> None:
    """Raises the first of several errors, if there is one, with notes of the rest."""
    raised = list(errors)
    if not raised:  # As at nearly every event.
        return
    for note in dict.fromkeys(f"Another one raised {type(later).__name__}: {later}" for later in raised[1:]):
        raised[0].add_note(note)
    raise raised[0]
