"""Runs a part of a program on the shards of a `shard_map`: values have an axis for each axis of the mesh, in front."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


@dataclasses.dataclass(frozen=True)
class Shards:
    """The shards that a `shard_map` makes.

    Attributes:
        mesh: The mesh.
        names: The names of the axes of the mesh that values are split along.
        in_specs: How the arguments are split.
        out_specs: How the results are put together.
    """

    mesh: Any
    names: tuple[Any, ...]
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]

    @staticmethod
    def of(params: dict[str, Any]) -> Shards:
        names = tuple(name for name in params["mesh"].axis_names if name in params["newly_manual_axes"])
        return Shards(params["mesh"], names, tuple(params["in_specs"]), tuple(params["out_specs"]))

    def within(self, around: Shards) -> Shards:
        """The shards that these make of each of others."""
        return dataclasses.replace(around, names=(*around.names, *self.names))

    @property
    def ndim(self) -> int:
        """The number of axes in front."""
        return len(self.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of shards along each axis."""
        return tuple(self.mesh.shape[name] for name in self.names)

    def copies(self, value: Any) -> Any:
        """A constant, on each shard."""
        return jnp.broadcast_to(value, (*self.shape, *jnp.shape(value)))

    def split(self, *args: Any) -> list[Any]:
        """The arguments as values on the shards."""
        return self._mapped(lambda *xs: list(map(self._expand, xs)), self.in_specs, self._spec)(*args)

    def join(self, *outs: Any) -> list[Any]:
        """The results of values on the shards."""
        run = lambda *xs: list(map(self._shrink, xs))  # noqa: E731
        return self._mapped(run, self._spec, list(self.out_specs))(*outs)

    def on_each(self, run: Callable[..., Sequence[Any]]) -> Callable[..., list[Any]]:
        """A function of flat values, run on each shard."""
        return self._mapped(lambda *xs: list(map(self._expand, run(*map(self._shrink, xs)))), self._spec, self._spec)

    def any(self, flag: Any) -> Any:
        """Whether a flag is set on a shard, on each shard."""
        return jax.lax.pmax(flag.astype("int32"), self.names) > 0

    @property
    def _spec(self) -> PartitionSpec:
        return PartitionSpec(*self.names)

    def _mapped(self, run: Callable[..., Any], ins: Any, outs: Any) -> Callable[..., list[Any]]:
        return jax.jit(
            jax.shard_map(run, mesh=self.mesh, in_specs=ins, out_specs=outs, axis_names={*self.names}, check_vma=False)
        )

    def _expand(self, value: Any) -> Any:
        return jax.lax.expand_dims(value, range(self.ndim))

    def _shrink(self, value: Any) -> Any:
        return jax.lax.squeeze(value, range(self.ndim))
