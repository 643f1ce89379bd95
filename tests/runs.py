"""The names of runs, as loggers make them, and loggers that write where a test says."""

from pathlib import Path

from lox.loggers import SaveLogger, State
from lox.loggers._state import state_of


def state(key, config=None, *, name=None, notes=None, **values) -> State:
    """The state that the `init` of any logger makes."""
    return state_of(key, config, values, name, notes)


def name_of(key, config=None, **options) -> str:
    """The name of the run that the `init` of any logger makes of these arguments."""
    return state(key, config, **options).name


def saver(path, **options) -> SaveLogger:
    """A logger whose experiment is in this directory, which it makes or continues."""
    path = Path(path)
    word = "resume" if (path / "experiment.json").exists() else "name"
    return SaveLogger(path.parent, **{word: path.name}, **options)
