"""Shardings that are part of the types of arrays, as they are over axes of a mesh of the type `Explicit`.

JAX refuses operations there for which it cannot tell the sharding of the result, such as a gather along a sharded axis.
It also needs a mesh for arrays that are made of nothing, which a program need not set to have sharded arguments.

Shardings over meshes can also be told as text, and made of it where there are as many devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

T = TypeVar("T")


def explicit_sharding(value: Any) -> Any:
    """The sharding that is part of the type of a value, concrete or abstract, or None."""
    sharding = (value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)).sharding
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    is_array = isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)
    return value.sharding if is_array else sharding  # An array also has the devices of the mesh.


def sharded_as(value: Any, array: Any) -> Any:
    """The array, whose leading axes are those of the value as far as both have them, sharded like the value there."""
    return sharded(spec_of(value, stop=jnp.ndim(array)), value, array)


def sharded(spec: PartitionSpec, like: Any, array: Any) -> Any:
    """The array, sharded like this, if `like` is sharded explicitly, over its mesh."""
    sharding = explicit_sharding(like)
    return array if sharding is None else jax.sharding.reshard(array, NamedSharding(sharding.mesh, spec))


def spec_of(value: Any, start: int = 0, stop: int | None = None) -> PartitionSpec:
    """The sharding of the axes `start` to `stop` of a value. Axes that it does not have are not sharded."""
    sharding = explicit_sharding(value)
    ndim = jnp.ndim(value)
    spec = (*(() if sharding is None else sharding.spec), *[None] * max(ndim, stop or 0))
    return PartitionSpec(*spec[start : ndim if stop is None else stop])


def without_sharding(function: Callable[..., T], specs: Callable[[], Any], *args: Any) -> T:
    """Call a function with arrays whose shardings are not part of their types, and shard the results.

    Args:
        function: A function of trees of arrays. It is called as it is where no array is sharded explicitly.
        specs: Returns the shardings of the results, a tree of `PartitionSpec`, or one for all arrays of a subtree.
        args: Its arguments.
    """
    mesh = mesh_of(args)
    if mesh is None:
        return function(*args)
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs(), is_leaf=_is_spec)
    axes = tuple(name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit)
    found: T = jax.sharding.auto_axes(function, axes=axes, out_sharding=shardings)(*args)
    return found


def sharded_alike(arrays: Sequence[Any]) -> Sequence[Any]:
    """The arrays, of equal dimension; those that are sharded otherwise become like the first that is sharded."""
    like = next((array for array in arrays if any(spec_of(array))), None)
    if like is None:
        return arrays
    spec = spec_of(like)
    return [array if spec_of(array) == spec else sharded(spec, like, array) for array in arrays]


def concatenate(arrays: Sequence[Any], axis: int) -> Any:
    """The arrays one after the other along an axis that is not sharded, sharded alike."""
    return jax.lax.concatenate(sharded_alike(arrays), axis)


def put(buffer: Any, array: Any, place: Any) -> Any:
    """The buffer with an array at a place along its first axis, sharded as it was."""
    if (mesh_of(buffer) is None) == (mesh_of(array) is None) and spec_of(buffer, 1) == spec_of(array):
        return _put(buffer, array, place)
    return without_sharding(_put, lambda: spec_of(buffer), buffer, array, place)


def _put(buffer: Any, array: Any, place: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(buffer, array, place, 0)


def specs_of(tree: Any, start: int = 0, stop: int | None = None) -> Any:
    """`spec_of` of each array of a tree."""
    return jax.tree.map(lambda array: spec_of(array, start, stop), tree)


def mesh_of(tree: Any) -> Any:
    """The mesh over which an array of a tree is sharded explicitly, or None."""
    for leaf in jax.tree.leaves(tree):
        sharding = explicit_sharding(leaf)
        if sharding is not None:
            return sharding.mesh
    return None


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, PartitionSpec)


def on_mesh_of(tree: Any) -> contextlib.AbstractContextManager[Any]:
    """The context in which the mesh of a tree is set, if an array of it is sharded explicitly and no mesh is set."""
    mesh = mesh_of(tree) if jax.sharding.get_mesh().empty else None
    return jax.set_mesh(mesh) if isinstance(mesh, Mesh) else contextlib.nullcontext()


def like(value: Any, array: Any) -> Any:
    """The array of NumPy, of the same shape as the value, sharded like it if that is sharded explicitly."""
    sharding = explicit_sharding(value)
    return jnp.asarray(array) if sharding is None else jax.device_put(array, sharding)


def described(sharding: Any) -> dict[str, Any] | None:
    """A sharding over a mesh as one of JSON; None for one that is of no mesh.

    Devices are told by their places among all devices of their platform, which are the same in all processes.
    """
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return None
    mesh = sharding.mesh
    platform = mesh.devices.flat[0].platform
    places = {device: place for place, device in enumerate(jax.devices(platform))}
    return {
        "shape": list(mesh.devices.shape),
        "axes": list(mesh.axis_names),
        "types": [kind.name for kind in mesh.axis_types],
        "devices": [places[device] for device in mesh.devices.flat],
        "platform": platform,
        "spec": [list(part) if isinstance(part, tuple) else part for part in sharding.spec],
    }


def made_of(about: dict[str, Any]) -> NamedSharding | None:
    """The sharding that `described` has told; None where there are not as many devices."""
    devices = _devices(about["platform"])
    if devices_of(about) > len(devices):
        return None
    mesh = Mesh(
        np.array([devices[place] for place in about["devices"]]).reshape(about["shape"]),
        tuple(about["axes"]),
        axis_types=tuple(AxisType[kind] for kind in about["types"]),
    )
    return NamedSharding(mesh, PartitionSpec(*(tuple(p) if isinstance(p, list) else p for p in about["spec"])))


def devices_of(about: dict[str, Any]) -> int:
    """The number of devices that a sharding needs, those with smaller places included."""
    return max(about["devices"]) + 1


def _devices(platform: str) -> Sequence[Any]:
    try:
        return jax.devices(platform)
    except RuntimeError:  # A machine of another kind.
        return jax.devices()
