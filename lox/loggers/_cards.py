"""The cards of experiments: each place where loggers write has one for each experiment, made by one process only."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from lox._exceptions import StorageError
from lox._storage import MANIFEST, put

TRIES = 100
"""Number of attempts to make a card while other programs make and remove directories."""


@dataclasses.dataclass(frozen=True)
class Card:
    """An experiment.

    Attributes:
        name: Its name.
        token: A unique text. It tells experiments of one name apart, in different places.
        time: When it was begun or resumed last, in nanoseconds since 1970.
        resumed: The steps from which it was resumed.
    """

    name: str
    token: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex[:16])
    time: int = dataclasses.field(default_factory=time.time_ns)
    resumed: tuple[int, ...] = ()

    def again(self, step: int | None) -> Card:
        """The card of the experiment when it is resumed, from a step or from its end."""
        steps = self.resumed if step is None else (*self.resumed, step)
        return dataclasses.replace(self, time=time.time_ns(), resumed=steps)

    @property
    def suffix(self) -> str:
        """The end of the names of what a sink writes that takes no steps back: it goes on under another name."""
        if not self.resumed:
            return ""
        step = self.resumed[-1]
        count = self.resumed.count(step)
        return f"-from{step}" if count == 1 else f"-from{step}-{count}"

    def to_json(self) -> str:
        """The card as text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Card:
        """The card of a text.

        Raises:
            ValueError: It is that of no card.
        """
        try:
            found = json.loads(text)
            return cls(str(found["name"]), str(found["token"]), int(found["time"]), tuple(map(int, found["resumed"])))
        except (KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(repr(error)) from error


@dataclasses.dataclass(frozen=True)
class Damaged:
    """The card of an experiment that cannot be read. Only a logger that needs it raises an error.

    Attributes:
        name: The name of the experiment.
        time: When the card was written, in nanoseconds since 1970.
        where: Its place.
        why: The reason why it cannot be read.
    """

    name: str
    time: int
    where: str
    why: str

    def error(self) -> StorageError:
        """The error of a logger that needs the card."""
        return StorageError(
            f"{self.where} cannot be read: {self.why}. It says when the experiment {self.name!r} was begun. Begin "
            "another one, or continue another one by its name."
        )


Known = Mapping[str, Card | Damaged]
"""The cards of a place, by the names of their experiments."""


class Cards(Protocol):
    """The cards of one place. Those of one place are equal, whichever logger has them."""

    def read(self) -> Known:
        """The card of each experiment, by name."""

    def make(self, card: Card) -> bool:
        """Makes a card, unless there is one for its name. Of several at once, one is made."""

    def replace(self, card: Card) -> None:
        """Replaces the card of an experiment."""

    def remove(self, name: str) -> None:
        """Removes a card that was made just now."""

    def end(self, name: str) -> None:
        """Says that nobody writes the experiment any more."""


@dataclasses.dataclass(frozen=True)
class Files:
    """Cards in files.

    Attributes:
        folder: The directory that they are in, or whose directories they are in.
        pattern: The path of a card in it, with a star for the name of its experiment.
    """

    folder: Path
    pattern: str

    @classmethod
    def at(cls, folder: str | Path, pattern: str) -> Files:
        """The cards of a directory, wherever the program goes later."""
        return cls(Path(folder).resolve(), pattern)

    def read(self) -> Known:
        """See `Cards`."""
        found: dict[str, Card | Damaged] = {}
        before, after = self.pattern.split("*")
        for path in sorted(self.folder.glob(self.pattern)):
            name = path.relative_to(self.folder).as_posix().removeprefix(before).removesuffix(after)
            try:
                written = path.stat().st_mtime_ns
                try:
                    text = path.read_text(encoding="utf-8")
                    # What did not get to the disk before the power went says nothing; else the directory may have been
                    # renamed, or copied.
                    card = Card(name, "", written) if not text or "\0" in text else Card.from_json(text)
                    found[name] = dataclasses.replace(card, name=name)
                except (PermissionError, IsADirectoryError, ValueError) as error:
                    found[name] = Damaged(name, written, str(path), str(error))
            except FileNotFoundError:
                continue
        return found

    def make(self, card: Card) -> bool:
        """See `Cards`."""
        path = self._path(card.name)
        if path.exists() or self._is_in_the_way(path.parent):
            return False
        for attempt in range(TRIES):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with self._written(path, card) as new:
                    return put(new, path)
            except FileNotFoundError:  # Another program has removed the directory.
                if attempt == TRIES - 1:
                    raise
        return False

    def replace(self, card: Card) -> None:
        """See `Cards`."""
        path = self._path(card.name)
        with self._written(path, card) as new:
            os.replace(new, path)

    def remove(self, name: str) -> None:
        """See `Cards`."""
        self._path(name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # It is not empty.
            self._path(name).parent.rmdir()

    def end(self, name: str) -> None:
        """See `Cards`."""

    def _is_in_the_way(self, folder: Path) -> bool:
        """Say whether the directory of an experiment cannot be made, since a file or a run has its path."""
        return folder != self.folder and ((folder.exists() and not folder.is_dir()) or (folder / MANIFEST).exists())

    def _path(self, name: str) -> Path:
        return self.folder / self.pattern.replace("*", name)

    @contextlib.contextmanager
    def _written(self, path: Path, card: Card) -> Iterator[Path]:
        new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            new.write_text(card.to_json(), encoding="utf-8")
            yield new
        finally:
            new.unlink(missing_ok=True)

    def __str__(self) -> str:
        return str(self.folder)
