"""The experiment that a logger writes: a new one for each logger, or one that is resumed."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import sys
import threading
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from lox._arguments import describe
from lox._exceptions import LogDataError, LoggerWarning, LogValueError
from lox._run_all import raise_first
from lox._site import calling_site, warn_at
from lox._storage import is_of_device
from lox.loggers._cards import Card, Cards, Damaged, Known

LATEST = "latest"
LONGEST = 100
"""Largest number of characters in the name of an experiment, without its number."""
NAMES = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_ .,=+@-]*[A-Za-z0-9_=+@-])?(?<!\.json)")
"""The names that each file system and service takes."""


class Experiment:
    """The experiment of a logger, or of several loggers that write one.

    Args:
        name: Its name; a number follows where another experiment has the name. By default the date, the time and the
            name of the script.
        resume: The name of the experiment to continue, or "latest", which with a name is the latest of this name.
        from_step: The step from which it is continued; without it, from its end.

    Attributes:
        owner: The name of the logger in messages.

    Raises:
        LogDataError: A name is no text, or the step no integer. A `TypeError`.
        LogValueError: A name has characters that not each file system takes, or the arguments exclude each other. A
            `ValueError`.
    """

    def __init__(self, name: Any = None, resume: Any = None, from_step: Any = None):
        _check_name("name", name)
        _check_name("resume", resume)
        if name == LATEST:
            raise LogValueError(f"name={LATEST!r} would be an experiment that resume= cannot name. Give another name.")
        if name is not None and resume not in (None, LATEST):
            raise LogValueError(f"resume={resume!r} names the experiment: with name=, it is None or {LATEST!r}.")
        if from_step is not None:
            from_step = _step(from_step)
            if resume is None:
                raise LogValueError("from_step= says where resume= continues an experiment, and there is no resume=.")
        self.owner = "A logger"
        self._given, self._resume, self._from_step = name, resume, from_step
        self._places: list[Cards] = []
        self._joined: dict[Cards, Card] = {}
        self._errors: dict[Cards, Exception] = {}
        self._name: str | None = None
        self._lock = threading.RLock()

    @property
    def may_be_another(self) -> bool:
        """True if another experiment can replace it: it has no name, continues none and has no card yet."""
        return self._given is None and self._resume is None and not self._joined

    @property
    def name(self) -> str | None:
        """Its name, once it is begun."""
        return self._name

    @property
    def from_step(self) -> int | None:
        """The step from which it is continued; None when it is a new one, or is continued from its end."""
        return self._from_step

    @property
    def is_resumed(self) -> bool:
        """True if it is continued."""
        return self._resume is not None

    def kept_by(self, *places: Cards) -> None:
        """Adds places that get its card."""
        self._places += [place for place in places if place not in self._places]

    def takes(self, other: Experiment) -> None:
        """Adds the places of another experiment, whose loggers write this one from now on."""
        self.kept_by(*other._places)

    def is_that_of(self, other: Experiment) -> bool:
        """Say whether another object is the same experiment: the names are equal, and one place is the same."""
        return self._name == other._name and any(place in self._places for place in other._places)

    def begin(self, place: Cards | None = None) -> str:
        """Begins or continues it, unless that was done, and returns its name.

        Args:
            place: The place of the caller. Errors of other places are raised to their own loggers.
        """
        with self._lock:
            if self._name is None and self._resume is not None:
                self._continue(self._resume)
            if self._name is None:
                self._make()
            name = str(self._name)
            if place is not None and place in self._errors:
                raise self._errors.pop(place)
            if place is not None and place not in self._joined:  # It failed before.
                self._join(name, place, place.read())
            return name

    def card(self, place: Cards) -> Card:
        """Its card in a place."""
        self.begin(place)
        return self._joined[place]

    def end(self, place: Cards | None) -> None:
        """Marks it as ended in a place."""
        if place is not None and place in self._joined and self._name is not None:
            place.end(self._name)

    def forked(self) -> None:
        """Is the same in a forked process, whatever the threads of its parent do with it."""
        self._lock = threading.RLock()

    # -- In several processes -----------------------------------------------------------------------------------------

    def told(self) -> str:
        """Begins it, and returns what other processes need to know of it, as text."""
        name = self.begin()
        cards = [self._joined[place].to_json() if place in self._joined else None for place in self._places]
        return json.dumps([name, self.is_resumed, cards])

    def follow(self, told: str) -> None:
        """Is the experiment that another process has begun, in the same places."""
        with self._lock:
            name, is_resumed, cards = json.loads(told)
            if not is_resumed:
                self._resume = self._from_step = None
            self._name = name
            for place, text in zip(self._places, cards, strict=True):
                if text is not None:
                    card = Card.from_json(text)
                    if not place.make(card) and place.read()[name] != card:
                        place.replace(card)
                    self._joined[place] = card

    # -- How it gets its name -----------------------------------------------------------------------------------------

    def _make(self) -> None:
        for name in _numbered(self._given or default_name()):
            card, taken = Card(name), False
            self._errors.clear()
            made: dict[Cards, Card] = {}
            for place in self._places:
                try:
                    taken = not place.make(card)
                except Exception as error:  # noqa: BLE001  (it is raised to the logger that writes there)
                    self._errors[place] = error
                    continue
                if taken:
                    break
                made[place] = card
            if not taken:
                self._raise_if_none(made)
                self._name, self._joined = name, made
                return
            for place in made:
                place.remove(name)

    def _continue(self, wanted: str) -> None:
        """Continues the experiment of a name; begins none when the latest is wanted and there is none."""
        known: dict[Cards, Known] = {}
        for place in self._places:
            try:
                known[place] = place.read()
            except Exception as error:  # noqa: BLE001  (it is raised to the logger that writes there)
                self._errors[place] = error
        self._raise_if_none(known)
        cards = [card for cards in known.values() for card in cards.values()]
        names = list(dict.fromkeys(card.name for card in sorted(cards, key=lambda card: -card.time)))
        where = f"in {' and '.join(map(str, known))}" if known else "that it knows of"
        if self._given is not None:
            names = [name for name in names if re.fullmatch(rf"{re.escape(self._given)}(-\d+)?", name)]
            where = f"called {self._given!r} {where}"
        if wanted == LATEST and not names:
            self._resume = self._from_step = None
            warn_at(
                calling_site(),
                f"{self.owner} begins a new experiment: there is none {where} that resume={LATEST!r} could continue.",
                LoggerWarning,
            )
            return
        if wanted != LATEST and wanted not in names:
            latest = f"The latest are {', '.join(map(repr, names[:10]))}." if names else "There is none at all."
            raise LogValueError(f"{self.owner} cannot continue {wanted!r}: no such experiment is {where}. {latest}")
        name = names[0] if wanted == LATEST else wanted
        for place, there in known.items():
            try:
                self._join(name, place, there)
            except Exception as error:  # noqa: BLE001  (it is raised to the logger that writes there)
                self._errors[place] = error
        self._raise_if_none(self._joined)
        self._name = name

    def _join(self, name: str, place: Cards, there: Known) -> None:
        """Has a place know of it."""
        card, found = Card(name), there.get(name)
        if isinstance(found, Damaged):
            raise found.error()
        if found is not None and self.is_resumed:
            card = found.again(self._from_step)
            place.replace(card)
        elif not place.make(card):
            raise LogValueError(f"There is another experiment {name!r} in {place}. Give this one another name.")
        self._joined[place] = card

    def _raise_if_none(self, known: Container[Cards]) -> None:
        """Raises what went wrong in its places, if that was so in all of them."""
        if self._places and not any(place in known for place in self._places):
            raise_first([self._errors.pop(place) for place in self._places])


def default_name() -> str:
    """The date, the time and the name of the script."""
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if spec is not None:
        script = spec.name.removesuffix(".__main__").rpartition(".")[2]
    elif file is not None:
        script = Path(file).stem
    else:
        script = "notebook" if "ipykernel" in sys.modules else "python"
    return experiment_name(f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}-{script[:40]}")


def experiment_name(text: str) -> str:
    """A name that an experiment can have, of any text."""
    name = re.sub(r"[^A-Za-z0-9_,=+@.-]", "-", text)[: LONGEST - 10].rstrip(".,")
    name = re.sub(r"\.json\Z", "-json", name)
    return name if NAMES.fullmatch(name) and name != LATEST and not is_of_device(name) else f"_{name}"


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in itertools.count(2):
        yield f"{name}-{number}"


def _check_name(word: str, name: Any) -> None:
    if name is None:
        return
    if not isinstance(name, str):
        raise LogDataError(f"{word}= of a logger is text, got {describe(name)}.")
    if not NAMES.fullmatch(name) or is_of_device(name) or (word == "name" and len(name) > LONGEST):
        raise LogValueError(
            f"{word}={name!r} is not the name of an experiment: it has 1 to {LONGEST} letters, digits and characters "
            "of ' _.,=+@-', begins with a letter, a digit or '_', does not end with a space, a dot, a comma or "
            "'.json', and is no name that Windows has for a device, such as 'con'."
        )


def _step(step: Any) -> int:
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise LogDataError(f"from_step= of a logger is an integer, got {describe(step)}.")
    number = step.__index__()
    if not -(2**63) <= number < 2**63:
        raise LogValueError(f"from_step= of a logger has 64 bits, got {number}.")
    return number
