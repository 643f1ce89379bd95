"""Bundles: what a call got and what was not finite in it, as a directory of arrays and text.

    BUNDLE/bundle.json       the function, its arguments but for the arrays, what was not finite, versions
    BUNDLE/program.txt       the operations of the function, one a line, as far as it can be traced
    BUNDLE/args-0.npy        an array of the arguments, by number
    BUNDLE/args-0-1.npy      a shard of one that is spread over several processes, each of which has a bundle
    BUNDLE/carry-0.npy       an array of the last good carry of the loop that failed

A bundle is written under another name and renamed at the end, so that it is there as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import convert_element_type_p, jit_p

from lox import _compat
from lox._abstract import is_array, trace
from lox._exceptions import LogValueError, StorageError
from lox._keys import impl_of, on_host
from lox._logs_in import jaxprs_in
from lox._storage._column import sync
from lox._storage._dtypes import as_stored, from_stored, name_of
from lox._storage._manifest import to_json, versions
from lox._storage._origin import origin

FILE, PROGRAM, FORMAT = "bundle.json", "program.txt", 1


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The input of a guarded call.

    Attributes:
        args: The positional and the keyword arguments; None where they are not lists, tuples and dicts of arrays,
            numbers and text.
        leaves: The leaves of the arguments, by path.
        function: The name of the function.
        loop: The number of the loop that failed, among the outermost ones, or -1.
        iteration: The first iteration of it whose carry was bad, or -1.
        carry: The carry before it.
        program: The operations of the function, a text for each, or none where they are not known.
        versions: The versions of Python and of packages, by name.
    """

    args: Any
    leaves: dict[str, Any]
    function: str
    loop: int
    iteration: int
    carry: list[Any]
    program: list[str]
    versions: dict[str, str]


def write_bundle(
    path: Path, fun: Callable[..., Any], args: Any, kwargs: Any, found: dict[str, Any], carry: Any
) -> Path:
    """Write a bundle.

    Args:
        path: The directory. In one of several processes, the number of the process is added to its name, and where
            there is one, a further number.
        fun: The function.
        args: The positional arguments.
        kwargs: The keyword arguments.
        found: What was not finite, as text and numbers.
        carry: The last good carry, if there is one.

    Returns:
        The directory.
    """
    if jax.process_count() > 1:
        path = of_process(path, jax.process_index())
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    new.mkdir()
    try:
        leaves, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
        about = {
            "format": FORMAT,
            "function": name_of_function(fun),
            **found,
            **origin(),
            "versions": versions(),
            "arguments": [
                _store(new, f"args-{i}", leaf) | {"path": _path(key)} for i, (key, leaf) in enumerate(leaves)
            ],
            "structure": _structure((args, kwargs)),
            "program": "recorded" if runs_again(fun) else "not recorded: the function is not jitted",
            "process": jax.process_index(),
            "processes": jax.process_count(),
            "carry": [_store(new, f"carry-{number}", value) for number, value in enumerate(carry)],
        }
        (new / FILE).write_text(to_json(about), encoding="utf-8")
        operations = program(fun, args, kwargs) if runs_again(fun) else []
        (new / PROGRAM).write_text("\n".join(operations), encoding="utf-8")
        for file in (*new.iterdir(), new):
            sync(file)
        place = _renamed(new, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return place


def of_process(path: Path, process: int) -> Path:
    """The directory of one of several processes."""
    return path.with_name(f"{path.name}-process{process}")


def read_bundle(path: Path) -> Bundle:
    """Read a bundle, of several processes with the shards that the others have.

    Raises:
        StorageError: There is none, or it is damaged, or of another format, or shards are missing.
    """
    if not path.exists() and of_process(path, 0).exists():
        path = of_process(path, 0)
    try:
        about = json.loads((path / FILE).read_text(encoding="utf-8"))
        if about["format"] != FORMAT:
            raise StorageError(f"{path} is of format {about['format']!r}, and this lox reads {FORMAT}.")
        parts = {path: about["arguments"], **_of_other_processes(path, about)}
        leaves = {
            each["path"]: _load_shards(parts, number) if "shards" in each else _load(path, each)
            for number, each in enumerate(about["arguments"])
        }
        structure = about["structure"]
        is_told = structure is not None and not any(isinstance(leaf, _Text) for leaf in leaves.values())
        return Bundle(
            None if not is_told else _filled(structure, iter(leaves.values())),
            leaves,
            about["function"],
            about["loop"],
            about["iteration"],
            [_load(path, each) for each in about["carry"]],
            (path / PROGRAM).read_text(encoding="utf-8").splitlines(),
            about["versions"],
        )
    except FileNotFoundError as error:
        what = "is damaged: it" if (path / FILE).exists() else "is no bundle of lox.guard: it"
        raise StorageError(f"{path} {what} has no {Path(error.filename).name}.") from None
    except (EOFError, KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {type(error).__name__}: {error}.") from error


def filled(bundle: Bundle, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with the arrays of a bundle in place of theirs.

    Raises:
        LogValueError: They are not like those of the bundle.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path((args, kwargs))
    paths = [_path(key) for key, _ in leaves]
    differs = [f"{each} is not in the bundle" for each in paths if each not in bundle.leaves]
    differs += [f"{each} is only in the bundle" for each in bundle.leaves if each not in paths]
    values = []
    for path, (_, leaf) in zip(paths, leaves, strict=True):
        saved = bundle.leaves.get(path)
        if is_array(saved) or isinstance(saved, np.ndarray):
            differs += [f"{path} is {_type(leaf)}, in the bundle {_type(saved)}"] * (_type(leaf) != _type(saved))
            values.append(saved)
        else:
            text = saved if isinstance(saved, _Text) else None
            same = np.ndim(leaf) == 0 and bool(leaf == saved) if text is None else repr(leaf) == text
            differs += [f"{path} is {leaf!r}, in the bundle {saved!r}"] * (path in bundle.leaves and not same)
            values.append(leaf)
    if differs:
        raise LogValueError(f"The arguments are not those of the bundle: {'; '.join(differs[:_SHOWN])}.")
    args, kwargs = jax.tree.unflatten(structure, values)
    return args, kwargs


_SHOWN = 4


def check_program(bundle: Bundle, fun: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Refuse a function with other operations than that of the bundle.

    Raises:
        LogValueError: It has.
    """
    if bundle.versions.get("jax") != versions()["jax"] or not bundle.program:
        return  # Another JAX makes other operations of the same function.
    here = program(fun, args, kwargs)
    if here and here != bundle.program:
        lines = [line for line in difflib.ndiff(bundle.program, here) if line[0] in "-+"]
        raise LogValueError(
            f"{name_of_function(fun)} is not the function of the bundle, {bundle.function}: its operations differ, the "
            f"first ones in {'; '.join(lines[:_SHOWN])} (- in the bundle, + here). Give the function that was guarded."
        )


def program(fun: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """The operations of a function, each with the types of its results; none where it cannot be traced."""
    with contextlib.suppress(Exception):  # Whatever a function raises that is to get concrete values.
        return list(_lines(trace(fun, args, kwargs)[0], 0))
    return []


def _lines(jaxpr: Any, depth: int) -> Iterator[str]:
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        if eqn.primitive is jit_p:  # Which values pass it by depends on how it is called.
            yield from _lines(eqn.params["jaxpr"], depth)
            continue
        if eqn.primitive is convert_element_type_p:  # Arrays that are saved have no weak types to convert.
            continue
        if eqn.primitive.name.startswith("lox_"):  # Logs are no part of what is searched.
            continue
        types = " ".join(str(var.aval).lstrip("~") for var in eqn.outvars)
        yield f"{'  ' * depth}{eqn.primitive.name} {types}"
        for inner in jaxprs_in(eqn.params):
            yield from _lines(inner, depth + 1)


def name_of_function(fun: Callable[..., Any]) -> str:
    """The module and the name of a function, of a partial one those of the function in it."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    module, name = getattr(fun, "__module__", None), getattr(fun, "__qualname__", None)
    return f"{module}:{name}" if name is not None else repr(type(fun).__name__)


def runs_again(fun: Callable[..., Any]) -> bool:
    """Tell whether a function is jitted, so that Python does nothing in it that a further trace would repeat."""
    while not _compat.is_jitted(fun):
        inner = getattr(fun, "func" if isinstance(fun, functools.partial) else "__func__", None)
        if inner is None:
            return False
        fun = inner
    return True


class _Text(str):
    """The text of a value that is no array, number, text, or None."""

    __slots__ = ()


def _type(value: Any) -> str:
    if not is_array(value):
        return repr(value)
    dtype = jnp.result_type(value) if impl_of(value) is None else name_of(np.dtype(np.uint32), impl_of(value))
    shape = np.shape(value)[: np.ndim(value) - (isinstance(value, np.ndarray) and impl_of(value) is not None)]
    return f"{dtype}{list(shape)}"


def _store(folder: Path, name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated:
        shards = {str(shard.index): shard for shard in value.addressable_shards}
        return {
            "shape": list(value.shape),
            "shards": [
                _store(folder, f"{name}-{number}", shard.data)
                | {"index": [list(one.indices(size)[:2]) for one, size in zip(shard.index, value.shape, strict=True)]}
                for number, shard in enumerate(shards.values())
            ],
        }
    if is_array(value):
        array = on_host(value)
        np.save(folder / f"{name}.npy", as_stored(np.asarray(array)), allow_pickle=False)
        return {"file": f"{name}.npy", "dtype": name_of(np.asarray(array).dtype, impl_of(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return {"text": repr(value)}


def _load(folder: Path, about: dict[str, Any]) -> Any:
    if "complex" in about:
        return complex(*about["complex"])
    if "file" not in about:
        return about["value"] if "value" in about else _Text(about["text"])
    array = from_stored(np.load(folder / about["file"], allow_pickle=False), about["dtype"])
    impl = impl_of(array)
    return jnp.asarray(array) if impl is None else jax.random.wrap_key_data(jnp.asarray(array), impl=impl)


def _of_other_processes(path: Path, about: dict[str, Any]) -> dict[Path, list[dict[str, Any]]]:
    """The arguments in the bundles that the other processes have written of the same call, as far as they are there."""
    own, found = f"-process{about['process']}", {}
    for process in range(about["processes"]):
        name, mark, number = path.name.rpartition(own)
        other = path.with_name(f"{name}-process{process}{number}")
        if process != about["process"] and mark and (other / FILE).exists():
            of_other = json.loads((other / FILE).read_text(encoding="utf-8"))
            if all(of_other[each] == about[each] for each in ("function", "iteration", "processes")):
                found[other] = of_other["arguments"]
    return found


def _load_shards(parts: dict[Path, list[dict[str, Any]]], number: int) -> Any:
    """An argument from the shards of all processes."""
    whole: Any = None
    is_there: Any = None
    impl: str | None = None
    for folder, arguments in parts.items():
        shape = tuple(arguments[number]["shape"])
        for shard in arguments[number]["shards"]:
            array = from_stored(np.load(folder / shard["file"], allow_pickle=False), shard["dtype"])
            if whole is None:
                impl = impl_of(array)
                whole, is_there = np.empty((*shape, *array.shape[len(shape) :]), array.dtype), np.zeros(shape, bool)
            where = tuple(slice(*bounds) for bounds in shard["index"])
            whole[where], is_there[where] = array, True
    if not np.all(is_there):
        (first, *_) = parts
        raise StorageError(
            f"{first} has only a part of {parts[first][number]['path']}: the directories of the other processes "
            "must be beside it."
        )
    return jnp.asarray(whole) if impl is None else jax.random.wrap_key_data(jnp.asarray(whole), impl=impl)


def _path(key: Sequence[Any]) -> str:
    """The path of an argument, as in ``args[0]['w']``."""
    first, *rest = key
    return f"{'args' if first.idx == 0 else 'kwargs'}{jax.tree_util.keystr(tuple(rest))}"


def _structure(tree: Any) -> Any:
    """A tree of lists, tuples and dicts of strings as one of JSON; None where it has anything else inside."""
    if type(tree) in (list, tuple):
        parts = [_structure(each) for each in tree]
        return None if None in parts else {type(tree).__name__: parts}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        inner = {key: _structure(tree[key]) for key in sorted(tree)}
        return None if None in inner.values() else {"dict": inner}
    if tree is None:
        return {"none": 0}
    return {"leaf": 0} if jax.tree.structure(tree) == jax.tree.structure(0) else None


def _filled(structure: Any, leaves: Iterator[Any]) -> Any:
    ((kind, inner),) = structure.items()
    if kind == "dict":
        return {key: _filled(each, leaves) for key, each in inner.items()}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](_filled(each, leaves) for each in inner)
    return next(leaves) if kind == "leaf" else None


def _renamed(new: Path, path: Path) -> Path:
    number = 1
    while True:
        place = path if number == 1 else path.with_name(f"{path.name}-{number}")
        number += 1
        if place.exists():
            continue
        try:
            os.rename(new, place)
        except OSError:
            if not place.exists():
                raise
        else:
            return place
