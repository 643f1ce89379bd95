"""The warning about a name or a pattern that selects nothing."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator

from lox._exceptions import SelectionWarning
from lox._patterns import is_pattern, matches
from lox._site import Site, warn_at

_LISTED = 10
_LOOPS = "loops of the function"
_THERE = {"tags": "tags of the logs", "at": "points of the function", "label": _LOOPS, "total": _LOOPS}


def unmatched(names: Iterable[str], there: Collection[str]) -> list[str]:
    """The names and patterns that match none of the names in `there`."""
    return [name for name in names if name not in there and not any(matches(name, each) for each in there)]


def warn_unmatched(function: str, keyword: str, name: str, there: Collection[str], site: Site) -> None:
    """Warn of a name or pattern that matches nothing.

    Args:
        function: The function of lox that was called.
        keyword: Its argument that has the name.
        name: The name.
        there: The names that exist.
        site: The line in the user's program.
    """
    what = _THERE.get(keyword, "keys that are logged")
    if not there:
        found = "the logs have no tags." if keyword == "tags" else f"the function has no {what.partition(' ')[0]}."
    else:
        listed = sorted(there)
        more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
        found = f"it is none of the {what}: {', '.join(map(repr, listed[:_LISTED]))}{more}."
        if is_pattern(name):
            found = found.replace("it is none", "it matches none")
        if meant := closest(name, there):
            found += f" Did you mean {meant!r}?"
    message = f"{name!r} in {keyword}= of {function} selects nothing: {found}"
    warn_at(site, message, SelectionWarning)


def closest(name: str, there: Collection[str]) -> str | None:
    """The name, or the pattern that has matches, that somebody probably meant by another name."""
    found = (each for each in _alike(name, there) if each != name and any(matches(each, it) for it in there))
    return next(found, None)


def _alike(name: str, there: Collection[str]) -> Iterator[str]:
    """Names and patterns like this one, the most probable first."""
    if is_pattern(name):
        yield re.sub(r"\*+", "**", name)
        before, slash, last = name.rpartition("/")
        if slash and last.strip("*"):
            yield f"**/{last}"
            if meant := closest(last, {each.rpartition("/")[2] for each in there}):
                yield f"{before}/{meant}"
    yield from sorted(each for each in there if each.endswith(f"/{name}") or name.endswith(f"/{each}"))
    yield from difflib.get_close_matches(name, sorted(there), 1)
