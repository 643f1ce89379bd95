"""The names of runs, as loggers make them."""

from lox.loggers import State
from lox.loggers._state import state_of


def state(key, config=None, *, name=None, notes=None, **values) -> State:
    """The state that the `init` of any logger makes."""
    return state_of(key, config, values, name, notes)


def name_of(key, config=None, **options) -> str:
    """The name of the run that the `init` of any logger makes of these arguments."""
    return state(key, config, **options).name
