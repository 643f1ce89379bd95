"""New states that nothing reads, where the old ones are returned in their place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._results._bindings import (
    Binding,
    Passed,
    Path,
    bindings,
    path_of,
    read_names,
    read_paths,
    stems,
)
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE
from lox._audit._sources import Source, sources

OLD = Kind(
    "LOX431",
    "warning",
    "A new state is computed, and the old one is returned",
    "Return the new one in the place of the old one; if it is not to be kept, assign it to _.",
    "Functions return the new states that they compute.",
    "The source of the functions that were traced was read for new values that nothing reads.",
)

_WITHOUT_STATE = {
    **dict.fromkeys(("train", "training", "is_training"), False),
    **dict.fromkeys(("use_running_average", "deterministic", "inference"), True),
}
"""Keywords, and what they are where a model is not to change its state."""
_ONLY_LOOKS = ("eval", "test", "valid", "predict", "infer", "peek", "look", "plan", "simulate", "try", "sample")
_OF_FIRST = {"apply_updates", "replace", "update_moment"}
_OF_SECOND = {"incremental_update", "periodic_update", "tree_at"}
_OF_OWNER = {"_replace", "replace", "apply_gradients"}
_OPTIMIZERS = ("opt", "tx", "solver")


def replaced(audited: Audited) -> Iterator[Finding | Held]:
    """LOX431: nothing reads a new value, and the old one that it was computed from is returned."""
    yield OLD.fine(NOWHERE)
    for source, each, path in audited.once(found):
        old, new = ".".join(path), f"'{each.name}'" if each.name.strip("_") else "its new value"
        yield OLD.at(
            source.at(each.node),
            f"Nothing reads {new}, which is computed here from '{old}', and '{source.code.co_name}' returns "
            f"'{old}' as it was.",
        )


def found(audited: Audited) -> list[tuple[Source, Binding, Path]]:
    """The functions that return the old value of what they compute, where they compute it, and the old one."""
    return [
        (source, each, path)
        for source in sources(audited)
        if not only_looks(source)
        for each in _unread(source)
        if (path := old_of(each)) is not None and Passed(source, each.node).has(path)
    ]


def only_looks(source: Source) -> bool:
    """Say whether a function has the name of one that is to keep nothing, such as that of an evaluation."""
    return source.code.co_name.lstrip("_").startswith(_ONLY_LOOKS)


def _unread(source: Source) -> list[Binding]:
    read = read_names(source.node)
    return [each for each in bindings(source) if each.name not in read]


def old_of(new: Binding) -> Path | None:
    """The old value that one takes the place of, if the source says so."""
    if path_of(new.value) is not None or _keeps_state(new.value):
        return None
    if (path := _of_known(new)) is not None or new.name.startswith("_"):
        return path
    wanted = stems(new.name)
    paths = read_paths(new.value)
    return next((path for path in paths if path[-1] in wanted or (path[-1] == new.name and len(path) > 1)), None)


def _of_known(new: Binding) -> Path | None:
    """The value that a call returns a new one of, by the name of what is called."""
    call = new.value
    if not isinstance(call, ast.Call):
        return None
    name, owner = ast.unparse(call.func).rpartition(".")[2], getattr(call.func, "value", None)
    if new.place == (1,) and name == "update" and len(call.args) > 1 and owner is not None:
        is_optimizer = any(part in ast.unparse(owner).lower() for part in _OPTIMIZERS)
        return path_of(call.args[1]) if is_optimizer else None
    if new.place or new.name.startswith("_"):
        return None
    if isinstance(owner, ast.Subscript) and isinstance(owner.value, ast.Attribute) and owner.value.attr == "at":
        return path_of(owner.value.value)
    if name in _OF_OWNER and call.keywords and not call.args and owner is not None:
        return path_of(owner)
    if name in _OF_SECOND and len(call.args) > 1:
        return path_of(call.args[1])
    return path_of(call.args[0]) if name in _OF_FIRST and call.args else None


def _keeps_state(value: ast.expr) -> bool:
    """Say whether a call says that it is no step of training: its state is the old one, and not to be kept."""
    keywords = [each for node in ast.walk(value) if isinstance(node, ast.Call) for each in node.keywords]
    told = {each.arg: each.value.value for each in keywords if isinstance(each.value, ast.Constant)}
    return any(told.get(name) is is_set for name, is_set in _WITHOUT_STATE.items())


KINDS = (OLD,)
CHECKS = (replaced,)
