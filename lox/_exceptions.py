"""The errors and warnings that lox raises. This module imports nothing of lox."""


class LoxError(Exception):
    """Base class of every exception that lox raises on purpose."""


class LogDataError(LoxError, TypeError):
    """Data that `lox.log` cannot log: its type, a key or a tag is wrong."""


class LogValueError(LoxError, ValueError):
    """An argument of the right type and a wrong value: clashing keys, a step that is not a scalar."""


class SpoolError(LoxError, ValueError):
    """Logs cannot be returned as arrays because their number has no static bound."""


class StructureError(LoxError, ValueError):
    """Logs cannot be returned as arrays because events of one key differ in type, or may not happen."""


class StorageError(LoxError, OSError):
    """Saved logs cannot be read or continued: the files are not lox's, are damaged, or another process writes them."""


class ContextError(LoxError, RuntimeError):
    """A block of `lox.context` was left in another order than blocks nest, or its counters cannot reach a log."""


class UnsupportedPrimitiveError(LoxError, NotImplementedError):
    """A log is inside a JAX primitive that lox has no rule for."""


class UnsupportedJaxError(LoxError, NotImplementedError):
    """The installed version of JAX lacks something that lox needs for what was asked."""


class AuditError(LoxError, ValueError):
    """An audit found something at least as severe as the severity of `raise_for`."""


class HandlerError(LoxError, TypeError):
    """A handler does not keep to the contract of `Handler`: a mistake in lox, or in a handler of your own."""


class SpoolWarning(UserWarning):
    """`lox.spool` left out logs, because the caller asked for a warning only."""


class SelectionWarning(UserWarning):
    """A name or pattern selects none of the logs of a function that logs. It is probably misspelt."""


class StorageWarning(UserWarning):
    """Saved logs are damaged and were read in part, because the caller asked for that."""


class TapWarning(UserWarning):
    """`lox.tap` cannot do all that it was asked for, or a callback raised an error that is only a warning."""


class ProgressWarning(UserWarning):
    """The display of `lox.progress` failed. The program goes on without it."""


class LoggerWarning(UserWarning):
    """A logger has nothing to continue, continues a run in a way that may not be intended, or failed for a run."""


class NonfiniteWarning(UserWarning):
    """A call of a function under `lox.guard` has NaN, or infinite values, in a result or in a carry."""
