"""New values that nothing reads, where the old ones are used after them as if they were new."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

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
from lox._audit._checks._results._dropped import computed_by, is_dead
from lox._audit._checks._results._replaced import OLD, found, old_of, only_looks
from lox._audit._findings import Finding
from lox._audit._program import Step
from lox._audit._sources import Source, sources

_CHANGED = re.compile(
    r"(?:\w+_)?(?:re|un|de|norm_)?(?:clip|normali[sz]|scal|mask|pad|shift|discount|whiten|standardi[sz]|center|detach|"
    r"stop|smooth|weight|permut|shuffl|sort|revers|flatten|reshap|transpos|augment|perturb|symmetri[sz]|project|wrap|"
    r"bound|mix|stabili[sz]|filter|correct|trim|drop|decay|rotat|clamp|quanti[sz]|resampl|jitter)p?p?ed(?:_\w+)?"
)
"""Names that say what was done to a value, so that the value itself is not meant after it."""

_MOMENT = re.compile(r"m|v|mu|nu|h|c|(?:\w+_)?(?:mom\w*|vel\w*|ema\w*|stats?|state|hidden|memory|carry|buffer|count)")
"""Names of what one step hands to the next one."""
_STATISTIC = re.compile(r"(?:\w+_)?(?:ema\w*|stats?|statistics|moments?|averages?|buffer|memory|count(er)?)")
"""Names of what gathers what all steps give: nobody tries several steps from the same one."""
_TRAINED = re.compile(r"(?:\w+_)?(?:params?|weights?|theta)|w|p")

_OF_ARRAYS = {"T", "mT", "at"}

_CHANGING = {"where", "select", "clip", "stop_gradient", "nan_to_num", "mod", "remainder", "clip_by_global_norm"}
"""Functions that give a value which is to be used in place of what they get."""


def rebound(audited: Audited) -> Iterator[Finding]:
    """LOX431: a name gets the new one of a value, and then, unread, another new one of the same old value."""
    for source in sources(audited):
        for body in _bodies(source):
            for first, second, path in _twice(source, body):
                yield OLD.at(
                    source.at(first.node),
                    f"Nothing reads this '{first.name}': line {second.node.lineno} computes '{first.name}' anew from "
                    f"'{'.'.join(path)}' as it was.",
                )


def changed(audited: Audited) -> Iterator[Finding]:
    """LOX431: nothing reads a value that could take the place of what it was made of, and that is used after it."""
    named = [(source, each) for source in sources(audited) for each in _unread(source)]
    told = {(source, each.node) for source, each, _ in audited.once(found)}
    left = [(source, each) for source, each in named if (source, each.node) not in told and _old_path(source, each)]
    computed = computed_by(audited, ((source, each.node) for source, each in left)) if left else {}
    for source, each in left:
        steps, old = computed[source, each.node], _old_path(source, each)
        in_vain = [step for step in steps if is_dead(step, audited.live)]
        if not in_vain or (not each.place and len(in_vain) < len(steps)) or old is None:
            continue
        is_whole = not each.place and not each.name.startswith("_")
        if _is_changed(each) or _is_gradient(source, each) or (is_whole and _is_alike(steps)):
            yield OLD.at(
                source.at(each.node),
                f"Nothing reads '{each.name}', which is computed here from '{'.'.join(old)}', and '{'.'.join(old)}' is "
                "used after it.",
            )


def _is_gradient(source: Source, new: Binding) -> bool:
    """Say whether a name is for all gradients that a call returns beside the value."""
    made = new.value.func if isinstance(new.value, ast.Call) else None
    if isinstance(made, ast.Name):
        named = [each.value for each in bindings(source) if each.name == made.id and not each.place]
        made = named[0] if len(named) == 1 else None
    path = path_of(made.func) if isinstance(made, ast.Call) else None
    is_beside = path is not None and path[-1] in ("value_and_grad", "filter_value_and_grad")
    return is_beside and new.place == (1,) and not new.name.startswith("_")


def _old_path(source: Source, new: Binding) -> Path | None:
    """The value that a new one is made from and that is used after it: the one in its name, or else the first."""
    read = [path for path in read_paths(new.value) if path[0] in source.locals or path[0] not in source.names]
    used = [path for path in read if _is_read_after(source, new, path)]
    return next((path for path in used if path[-1] in new.name.split("_")), next(iter(used), None))


def _is_alike(steps: Sequence[Step]) -> bool:
    """Say whether the result of operations has the type of one of the arrays that they take, and of no other one."""
    (*_, last), made = steps, {value for step in steps for value in step.outputs}
    given = {value for step in steps for value in step.inputs if value not in made and value.number is None}
    return any(sum(value.aval == result.aval for value in given) == 1 for result in last.outputs if result.shape)


def kept(audited: Audited) -> Iterator[Finding]:
    """LOX431: what `update...(old, ...)` gives is used, and the old one is returned; or that of `new_old` is."""
    for source in sources(audited):
        for each in bindings(source) if not only_looks(source) else ():
            path = _updated(each) or _renewed(source, each) or _remembered(source, each)
            if path is None or path[0] == each.name or not Passed(source, each.node).has(path):
                continue
            is_whole = _updated(each) is not None and _is_returned(source, each.name)
            if not Passed(source, each.node).has((each.name,)) and not is_whole:
                yield OLD.at(
                    source.at(each.node),
                    f"'{each.name}' is the new one of '{'.'.join(path)}', and '{source.code.co_name}' returns "
                    f"'{'.'.join(path)}' as it was.",
                )


def _renewed(source: Source, new: Binding) -> Path | None:
    """The argument that a name says to be the new one of, if the function returns the new one of another argument."""
    given = {each.arg for each in ast.walk(source.node.args) if isinstance(each, ast.arg)}
    bound = bindings(source)
    arguments = given | {
        each.name for each in bound if (own := path_of(_expression(each))) is not None and own[0] in given
    }
    pairs = [(each, _argument(each, arguments) or _rebound(each, arguments)) for each in bound]
    path = _argument(new, arguments)
    if path is None or new.name not in read_names(source.node):
        return None
    others = [each for each, old in pairs if old is not None and old != path]
    return path if any(Passed(source, each.node).has((each.name,)) for each in others) else None


def _remembered(source: Source, new: Binding) -> Path | None:
    """The argument of the body of a scan that a name says to be the new one of, if that is for the next iteration."""
    given = {each.arg for each in source.node.args.args[:1]}
    given |= {each.name for each in bindings(source) if path_of(each.value) in {(name,) for name in given}}
    path = _argument(new, {name for name in given if _STATISTIC.fullmatch(name)})
    return path if path is not None and new.name in read_names(source.node) and _is_scanned(source) else None


def _is_scanned(source: Source) -> bool:
    """Say whether the function that another one is written in gives that to a scan."""
    around = ast.walk(source.parents[0]) if source.parents else ()
    calls = (each for each in around if isinstance(each, ast.Call) and each.args)
    names = ((path_of(each.func) or ("",), path_of(each.args[0])) for each in calls)
    return any(path[-1] == "scan" and name == (source.code.co_name,) for path, name in names)


def _argument(new: Binding, arguments: set[str]) -> Path | None:
    """The argument that a value is computed from, and by its name is the new one of."""
    wanted = stems(new.name, numbered=False) & arguments
    wanted |= {each for each in stems(new.name) & arguments if _MOMENT.fullmatch(each)}
    return next((path for path in read_paths(new.value) if len(path) == 1 and path[0] in wanted), None)


def _expression(new: Binding) -> ast.expr:
    """The expression that a name gets, out of a tuple that is written there."""
    if len(new.place) == 1 and isinstance(new.value, (ast.Tuple, ast.List)):
        return new.value.elts[new.place[0]]
    return new.value


def _rebound(new: Binding, arguments: set[str]) -> Path | None:
    """The argument that gets a new value under its own name."""
    is_trained = new.name in arguments and _TRAINED.fullmatch(new.name) is not None
    return next((path for path in read_paths(new.value) if is_trained and path == (new.name,)), None)


def _is_changed(new: Binding) -> bool:
    """Say whether a name, or the call that it is assigned, says that a value is to be used in place of another one."""
    call = new.value
    name = ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
    return _CHANGED.fullmatch(new.name) is not None or (name in _CHANGING and not new.name.startswith("_"))


def _bodies(source: Source) -> Iterator[list[ast.stmt]]:
    """The statements that are run one after another: of a function, a loop or a branch of it."""
    run = set(source.executed)
    for node in (source.node, *source.executed):
        for name in ("body", "orelse"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                yield [each for each in statements if each in run]


def _twice(source: Source, body: list[ast.stmt]) -> Iterator[tuple[Binding, Binding, Path]]:
    bound = {each.node: each for each in bindings(source) if isinstance(each.node.targets[0], ast.Name)}
    for place, node in enumerate(body):
        first = bound.get(node) if isinstance(node, ast.Assign) else None
        path = old_of(first) if first is not None else None
        if first is None or path is None or path[0] == first.name:
            continue
        for later in body[place + 1 :]:
            second = bound.get(later) if isinstance(later, ast.Assign) else None
            if any(
                isinstance(each, ast.Name) and each.id in (first.name, path[0]) for each in _assigned(later, second)
            ):
                break
            if first.name in _names(later):
                break
            if second is not None and second.name == first.name:
                if path in (old_of(second), *read_paths(second.value)):
                    yield first, second, path
                break


def _assigned(node: ast.stmt, but: Binding | None) -> Iterator[ast.AST]:
    """The names that a statement assigns, but for that of a binding."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and (but is None or each.id != but.name):
            yield each


def _names(node: ast.stmt) -> set[str]:
    loads = (each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    return {each.id for each in loads}


def _unread(source: Source) -> list[Binding]:
    read = read_names(source.node)
    return [each for each in bindings(source) if each.name not in read]


def _is_read_after(source: Source, new: Binding, path: Path) -> bool:
    """Say whether a path is read after a value was made of it, before it gets another value."""
    again = [
        each.node.lineno for each in bindings(source) if each.name == path[0] and each.node.lineno > new.node.lineno
    ]
    end, last = new.node.end_lineno or new.node.lineno, min(again, default=10**9)
    later = (each for each in source.executed if isinstance(each, ast.stmt) and end < each.lineno <= last)
    return any(path == read or _is_of_array(path, read) for each in later for read in read_paths(each))


def _is_of_array(path: Path, read: Path) -> bool:
    """Say whether a path is one of the arrays that another one computes from, as `x.T` does from `x`."""
    return read[:-1] == path and read[-1] in _OF_ARRAYS


def _updated(new: Binding) -> Path | None:
    """The first argument of a call of `update` or the like, if all that it gives has a name."""
    call = new.value
    if new.place or new.name.startswith("_") or not isinstance(call, ast.Call) or not call.args:
        return None
    name = ast.unparse(call.func).rpartition(".")[2].lstrip("_")
    return path_of(call.args[0]) if re.fullmatch(r"update_\w+", name) else None


def _is_returned(source: Source, name: str) -> bool:
    """Say whether anything that a function returns reads a name itself, or a field of it."""
    returns = (node.value for node in source.executed if isinstance(node, ast.Return) and node.value is not None)
    return any(path[0] == name for each in returns for path in read_paths(each))


CHECKS = (rebound, changed, kept)
