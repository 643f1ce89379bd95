"""lox: logging for JAX."""

import importlib
import os
from typing import TYPE_CHECKING, Any

from lox._channel import flush as flush
from lox._context import context as context
from lox._exceptions import AuditError as AuditError
from lox._exceptions import ContextError as ContextError
from lox._exceptions import LogDataError as LogDataError
from lox._exceptions import LoggerWarning as LoggerWarning
from lox._exceptions import LogValueError as LogValueError
from lox._exceptions import LoxError as LoxError
from lox._exceptions import NonfiniteWarning as NonfiniteWarning
from lox._exceptions import ProgressWarning as ProgressWarning
from lox._exceptions import SelectionWarning as SelectionWarning
from lox._exceptions import SpoolError as SpoolError
from lox._exceptions import SpoolWarning as SpoolWarning
from lox._exceptions import StorageError as StorageError
from lox._exceptions import StorageWarning as StorageWarning
from lox._exceptions import StructureError as StructureError
from lox._exceptions import TapWarning as TapWarning
from lox._exceptions import UnsupportedJaxError as UnsupportedJaxError
from lox._exceptions import UnsupportedPrimitiveError as UnsupportedPrimitiveError
from lox._log import log as log
from lox._log_grad import log_grad as log_grad
from lox._logdict import logdict as logdict
from lox._spool import spool as spool
from lox._strip import keep as keep
from lox._strip import strip as strip

__version__ = "0.2.0"

if TYPE_CHECKING:
    from lox import loggers as loggers
    from lox import reductions as reductions
    from lox._audit import audit as audit
    from lox._nonfinite import NonfiniteReport as NonfiniteReport
    from lox._nonfinite import find_nonfinite as find_nonfinite
    from lox._nonfinite import guard as guard
    from lox._nonfinite import replay as replay
    from lox._progress import progress as progress
    from lox._sites import LogSite as LogSite
    from lox._sites import sites as sites
    from lox._storage import load as load
    from lox._storage import load_config as load_config
    from lox._storage import save as save
    from lox._tap import tap as tap
    from lox._watch import Point as Point
    from lox._watch import points as points
    from lox._watch import watch as watch

_AT_FIRST_USE = {
    "LogSite": "lox._sites",
    "NonfiniteReport": "lox._nonfinite",
    "Point": "lox._watch",
    "audit": "lox._audit",
    "find_nonfinite": "lox._nonfinite",
    "guard": "lox._nonfinite",
    "load": "lox._storage",
    "load_config": "lox._storage",
    "loggers": "lox.loggers",
    "points": "lox._watch",
    "progress": "lox._progress",
    "reductions": "lox.reductions",
    "replay": "lox._nonfinite",
    "save": "lox._storage",
    "sites": "lox._sites",
    "tap": "lox._tap",
    "watch": "lox._watch",
}


def __getattr__(name: str) -> Any:
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module 'lox' has no attribute {name!r}")
    module = importlib.import_module(_AT_FIRST_USE[name])
    return module if module.__name__ == f"lox.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_AT_FIRST_USE} - {"importlib", "os", "Any", "TYPE_CHECKING"})


if os.environ.get("LOX_AUDIT", "0") not in ("", "0"):
    importlib.import_module("lox._audit._environment").begin()
