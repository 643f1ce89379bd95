"""Bundles: what a call got and what was not finite in it, as a directory of arrays and text.

    BUNDLE/bundle.json       the function, its arguments but for the arrays, what was not finite, versions
    BUNDLE/program.txt       the operations of the function, one a line, as far as it can be traced
    BUNDLE/args-0.npy        an array of the arguments, by number
    BUNDLE/args-0-1.npy      a shard of one that is spread over several processes, each of which has a bundle
    BUNDLE/carry-0.npy       an array of the last good carry of the loop that failed
    BUNDLE/finite-0.npy      an array of the carry before something in it was infinite, where that was before it was NaN

A bundle is written under another name and renamed at the end, so that it is there as a whole or not at all.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._abstract import is_array
from lox._exceptions import LogValueError, StorageError
from lox._keys import impl_of, key_data, on_host
from lox._nonfinite._program import difference, path_of, program
from lox._nonfinite._record import Resume
from lox._nonfinite._structure import UnknownNode, filled_structure, structure_of
from lox._sharding import described, devices_of, made_of
from lox._storage._column import sync
from lox._storage._dtypes import as_stored, from_stored, name_of
from lox._storage._manifest import to_json, versions
from lox._storage._origin import origin

FILE, PROGRAM, FORMAT = "bundle.json", "program.txt", 1

_TEXT = 2
"""The version of the text of programs. That of lox 0.2, which is not told, lacks operands: it is not compared."""


@dataclasses.dataclass(frozen=True)
class Bundle:
    """The input of a guarded call.

    Attributes:
        args: The positional and the keyword arguments; None where an example is needed to put them together.
        unknown: What needs it.
        leaves: The leaves of the arguments, by path.
        function: The name of the function.
        place: The iteration that failed, with the carry before it, if it is known.
        program: The operations of the function, a text for each, or none where they are not known.
        versions: The versions of Python and of packages, by name.
        platform: The platform of JAX, as "cpu".
        devices: The number of devices that its arrays were spread over.
    """

    args: Any
    unknown: str
    leaves: dict[str, Any]
    function: str
    place: Resume | None
    program: list[str]
    versions: dict[str, str]
    platform: str
    devices: int


def write_bundle(
    path: Path, fun: Callable[..., Any], args: Any, kwargs: Any, found: dict[str, Any], place: Resume | None
) -> Path:
    """Write a bundle.

    Args:
        path: The directory. In one of several processes, the number of the process is added to its name, and where
            there is one, a further number.
        fun: The function.
        args: The positional arguments.
        kwargs: The keyword arguments.
        found: What was not finite, as text and numbers.
        place: The iteration that failed, with the last good carry, if there is one.

    Returns:
        The directory.
    """
    if jax.process_count() > 1:
        path = of_process(path, jax.process_index())
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    new.mkdir()
    place, is_compared = place or Resume(-1, -1, ()), runs_again(fun)
    try:
        leaves, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
        about = {
            "format": FORMAT,
            "function": name_of_function(fun),
            **found,
            "loop": place.loop,
            **origin(),
            "versions": versions(),
            "arguments": [
                _store(new, f"args-{i}", leaf) | {"path": path_of(key)} for i, (key, leaf) in enumerate(leaves)
            ],
            "program": _TEXT if is_compared else None,
            "platform": jax.default_backend(),
            "structure": structure_of((args, kwargs)),
            "process": jax.process_index(),
            "processes": jax.process_count(),
            "carry": [_store(new, f"carry-{i}", value) for i, value in enumerate(place.carry)],
            "infinite": place.infinite,
            "finite": [_store(new, f"finite-{i}", value) for i, value in enumerate(place.finite_carry)],
        }
        (new / FILE).write_text(to_json(about), encoding="utf-8")
        operations = program(fun, args, kwargs) if is_compared else []
        (new / PROGRAM).write_text("\n".join(operations), encoding="utf-8")
        for file in (*new.iterdir(), new):
            sync(file)
        written = _renamed(new, path)
        sync(path.parent)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return written


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
        lines = (path / PROGRAM).read_text(encoding="utf-8").splitlines()
        args, unknown = _arguments(about["structure"], leaves)
        return Bundle(
            args,
            unknown,
            leaves,
            about["function"],
            _place(path, about),
            lines if about.get("program") == _TEXT else [],
            about["versions"],
            about.get("platform", ""),
            max([1, *(devices_of(each["sharding"]) for each in about["arguments"] if each.get("sharding"))]),
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
    paths = [path_of(key) for key, _ in leaves]
    differs = [f"{each} is not in the bundle" for each in paths if each not in bundle.leaves]
    differs += [f"{each} is only in the bundle" for each in bundle.leaves if each not in paths]
    values = []
    for path, (_, leaf) in zip(paths, leaves, strict=True):
        saved = bundle.leaves.get(path)
        if is_array(saved) or isinstance(saved, np.ndarray):
            differs += [f"{path} is {_type(leaf)}, in the bundle {_type(saved)}"] * (_type(leaf) != _type(saved))
            values.append(saved)
        else:
            if isinstance(saved, _Text):
                same = _ADDRESS.sub("", repr(leaf)) == _ADDRESS.sub("", saved)
            else:
                same = np.ndim(leaf) == 0 and bool(leaf == saved or (leaf != leaf and saved != saved))
            differs += [f"{path} is {leaf!r}, in the bundle {saved!r}"] * (path in bundle.leaves and not same)
            values.append(leaf)
    if differs:
        raise LogValueError(f"The arguments are not those of the bundle: {'; '.join(differs[:_SHOWN])}.")
    args, kwargs = jax.tree.unflatten(structure, values)
    return args, kwargs


_SHOWN = 4


def check_program(bundle: Bundle, fun: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Refuse a function with other operations, operands or constants than that of the bundle.

    Raises:
        LogValueError: It has.
    """
    if bundle.versions.get("jax") != versions()["jax"] or not bundle.program:
        return  # Another JAX makes other operations of the same function.
    here = program(fun, args, kwargs)
    differs = difference(bundle.program, here, bundle.platform == jax.default_backend()) if here else ""
    if differs:
        raise LogValueError(
            f"{name_of_function(fun)} is not the function of the bundle, {bundle.function}: its operations differ, the "
            f"first ones in {differs} (- in the bundle, + here). Give the function that was guarded, with the "
            "constants that it had."
        )


def name_of_function(fun: Callable[..., Any]) -> str:
    """The module and the name of a function, of a partial one those of the function in it."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    module, name = getattr(fun, "__module__", None), getattr(fun, "__qualname__", None)
    return f"{module}:{name}" if name is not None else repr(type(fun).__name__)


def runs_again(fun: Callable[..., Any]) -> bool:
    """Tell whether a function is jitted, so that Python does nothing in it that a further trace would repeat."""
    return _compat.is_jitted(unbound(fun, (), {})[0])


def unbound(fun: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Sequence[Any], dict[str, Any]]:
    """The function that partial functions and methods call, jitted or not, with the arguments that it gets."""
    while not _compat.is_jitted(fun):
        if isinstance(fun, functools.partial):
            fun, args, kwargs = fun.func, (*fun.args, *args), {**fun.keywords, **kwargs}
        elif inspect.ismethod(fun):
            fun, args = fun.__func__, (fun.__self__, *args)
        else:
            break
    return fun, args, kwargs


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


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
            "sharding": described(value.sharding),
            "shards": [
                _store(folder, f"{name}-{number}", shard.data)
                | {"index": [list(one.indices(size)[:2]) for one, size in zip(shard.index, value.shape, strict=True)]}
                for number, shard in enumerate(shards.values())
            ],
        }
    if is_array(value):
        array = on_host(value)
        np.save(folder / f"{name}.npy", as_stored(np.asarray(array)), allow_pickle=False)
        about = {"file": f"{name}.npy", "dtype": name_of(np.asarray(array).dtype, impl_of(value))}
        if isinstance(value, np.generic):
            about["scalar"] = "numpy"
        elif getattr(value, "weak_type", False) and not value.ndim:
            about["scalar"] = "weak"
        sharding = described(value.sharding) if isinstance(value, jax.Array) else None
        return about | ({} if sharding is None else {"sharding": sharding})
    if value is None or type(value) in (bool, int, float, str):  # And no enumeration.
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
    if about.get("scalar") == "numpy":
        return array[()]  # Which can be a static argument.
    if about.get("scalar") == "weak":
        return jnp.asarray(array.item())
    return _placed(array, about)


def _arguments(structure: Any, leaves: dict[str, Any]) -> tuple[Any, str]:
    """The arguments, or None and what is in the way."""
    for path, leaf in leaves.items():
        if isinstance(leaf, _Text):
            return None, f"{leaf} as {path}"
    if structure is None:
        return None, "arguments that are not lists, tuples and dicts of arrays, numbers and text"
    try:
        return filled_structure(structure, iter(leaves.values())), ""
    except UnknownNode as error:
        return None, str(error)


def _place(path: Path, about: dict[str, Any]) -> Resume | None:
    """The iteration that failed; a loop that carries nothing does not."""
    carry, finite = ([_load(path, each) for each in about.get(name, ())] for name in ("carry", "finite"))
    found = Resume(about["loop"], about["iteration"], carry, about.get("infinite", -1), finite)
    return found if carry else None


def _placed(array: Any, about: dict[str, Any]) -> Any:
    """An array of JAX, of keys if it has their words, over devices as it was if there are as many."""
    told = about.get("sharding")
    sharding = None if told is None else made_of(told)
    impl = impl_of(array)
    if impl is None:
        return jnp.asarray(array) if sharding is None else jax.device_put(array, sharding)
    keys = jax.random.wrap_key_data(jnp.asarray(array), impl=impl)
    return keys if sharding is None else jax.device_put(keys, sharding)


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
    for folder, arguments in parts.items():
        shape = tuple(arguments[number]["shape"])
        for shard in arguments[number]["shards"]:
            array = from_stored(np.load(folder / shard["file"], allow_pickle=False), shard["dtype"])
            if whole is None:
                impl = impl_of(array)
                whole, is_there = np.empty((*shape, *array.shape[len(shape) :]), array.dtype), np.zeros(shape, bool)
                whole = whole if impl is None else key_data(whole, impl)
            where = tuple(slice(*bounds) for bounds in shard["index"])
            whole[where], is_there[where] = array, True
    if not np.all(is_there):
        (first, *_) = parts
        raise StorageError(
            f"{first} has only a part of {parts[first][number]['path']}: the directories of the other processes "
            "must be beside it."
        )
    return _placed(whole, next(iter(parts.values()))[number])


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
