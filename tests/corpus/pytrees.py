"""Arguments and results that JAX takes apart and puts together."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from corpus import f32, i32, right, wrong


@dataclasses.dataclass
class _Pose:
    position: Any
    velocity: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Particle:
    position: Any
    velocity: Any
    mass: float = dataclasses.field(default=1.0, metadata={"static": True})


class _Carry:
    """A plain class."""

    def __init__(self, position, velocity):
        self.position, self.velocity = position, velocity


def _moved(body, force):
    velocity = body.velocity + 0.01 * force
    return dataclasses.replace(body, position=body.position + 0.01 * velocity, velocity=velocity)


@wrong("LOX500", f32(3), f32(3), f32(100, 3))
def a_simulation_that_carries_a_plain_dataclass(position, velocity, forces):
    def step(pose, force):
        return _moved(pose, force), pose.position

    return jax.lax.scan(step, _Pose(position, velocity), forces)[1]


@wrong("LOX500", f32(16, 3), f32(16, 3))
def a_vmapped_function_that_returns_a_plain_class(position, velocity):
    return jax.vmap(lambda x, v: _Carry(x + v, v))(position, velocity)


@wrong("LOX500", _Pose(jnp.zeros(3), jnp.zeros(3)), f32(3))
@jax.jit
def a_jitted_step_of_a_plain_dataclass(pose, force):
    return pose.velocity + 0.01 * force


@wrong("LOX500", _Pose(jnp.zeros(3), jnp.zeros(3)), f32(3))
def an_energy_of_a_plain_dataclass(pose, force):
    return (pose.velocity**2).sum() / 2 - pose.position @ force


@right("LOX500", f32(3), f32(3), f32(50, 3))
def a_simulation_that_carries_a_registered_dataclass(position, velocity, forces):
    def step(pose, force):
        return _moved(pose, force), pose.position

    return jax.lax.scan(step, _Particle(position, velocity), forces)[1]


@dataclasses.dataclass(frozen=True)
class _Config:
    hidden: int = 32
    discount: float = 0.99


@right("LOX500", _Config(), f32(8))
def returns_with_a_configuration_without_arrays(config, rewards):
    return (rewards * config.discount ** jnp.arange(8)).sum()


@jax.tree_util.register_pytree_node_class
class _Swapped:
    """Its children are unflattened in another order than they are flattened."""

    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def tree_flatten(self):
        return (self.mean, self.std), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        std, mean = children
        return cls(mean, std)


@jax.tree_util.register_pytree_node_class
class _Forgetful:
    """It has an array that is no child."""

    def __init__(self, weights, target=None):
        self.weights, self.target = weights, target

    def tree_flatten(self):
        return (self.weights,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@jax.tree_util.register_pytree_node_class
class _Normal:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def tree_flatten(self):
        return (self.mean, self.std), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@wrong("LOX501", _Swapped(f32(8), f32(8)), f32(8))
def a_normalization_by_statistics_that_are_swapped(statistics, x):
    return jax.vmap(lambda s, x: x * s.std + s.mean)(statistics, x)


@wrong("LOX501", _Forgetful(jnp.ones(8), jnp.zeros(8)), f32(8))
def a_network_whose_target_is_forgotten(network, x):
    return (network.weights * x).sum()


@right("LOX501", _Normal(f32(8), f32(8)), f32(8))
def a_normalization_by_statistics(statistics, x):
    return x * statistics.std + statistics.mean


@jax.tree_util.register_pytree_node_class
class _Checked:
    """It converts what it is built of."""

    def __init__(self, rotation):
        rotation = jnp.asarray(rotation)
        if rotation.shape[-1] != 4:
            raise ValueError("a rotation has four numbers")
        self.rotation = rotation

    def tree_flatten(self):
        return (self.rotation,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Validated:
    low: Any
    high: Any

    def __post_init__(self):
        if self.low.ndim != self.high.ndim:
            raise ValueError("of one rank, please")


@jax.tree_util.register_pytree_node_class
class _Unchecked:
    """It converts what it is built of, but not when it is put together."""

    def __init__(self, rotation):
        self.rotation = jnp.asarray(rotation)

    def tree_flatten(self):
        return (self.rotation,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        new = object.__new__(cls)
        (new.rotation,) = children
        return new


@wrong("LOX502", _Checked(jnp.ones(4)))
def a_unit_quaternion_of_a_class_that_converts(pose):
    return pose.rotation / jnp.sqrt((pose.rotation**2).sum() + 1e-6)


@wrong("LOX502", _Validated(jnp.zeros(3), jnp.ones(3)), f32(3))
def an_action_in_a_box_that_is_validated(box, action):
    return jnp.clip(action, box.low, box.high)


@right("LOX502", _Unchecked(jnp.ones(4)))
def a_unit_quaternion(pose):
    return pose.rotation / jnp.sqrt((pose.rotation**2).sum() + 1e-6)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Grid:
    values: Any
    spacing: Any = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class _Named:
    """Its names are a list."""

    def __init__(self, values, names):
        self.values, self.names = values, names

    def tree_flatten(self):
        return (self.values,), self.names

    @classmethod
    def tree_unflatten(cls, names, children):
        return cls(*children, names)


@wrong("LOX503", _Grid(f32(16, 16), np.ones(2, np.float32)))
def a_laplacian_on_a_grid_with_a_static_array(grid):
    dx, dy = grid.spacing
    return jnp.gradient(grid.values, axis=0) / dx + jnp.gradient(grid.values, axis=1) / dy


@wrong("LOX503", f32(16, 16), f32(10))
def diffusion_that_carries_a_static_array(values, rates):
    def step(grid, rate):
        values = grid.values + rate * jnp.gradient(grid.values, axis=0)
        return _Grid(values, grid.spacing * 1), None

    return jax.lax.scan(step, _Grid(values, np.ones(2, np.float32)), rates)[0].values


@right("LOX503", _Named(f32(3), ["x", "y", "z"]))
def the_norm_of_a_vector_with_a_list_of_names(vector):
    return (vector.values**2).sum()


@right("LOX503", _Grid(f32(16, 16), (0.1, 0.1)))
def a_laplacian_on_a_grid_with_a_static_tuple(grid):
    dx, dy = grid.spacing
    return jnp.gradient(grid.values, axis=0) / dx + jnp.gradient(grid.values, axis=1) / dy


class _State(NamedTuple):
    params: Any
    momentum: Any
    step: Any


STATE = _State({"w": f32(8, 2)}, {"w": f32(8, 2)}, jax.ShapeDtypeStruct((), jnp.int32))


def _trained(state, x):
    gradient = jax.grad(lambda params: ((x @ params["w"]) ** 2).mean())(state.params)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state.momentum, gradient)
    params = jax.tree.map(lambda p, m: p - 0.1 * m, state.params, momentum)
    return _State(params, momentum, state.step + 1)


@wrong("LOX504", STATE, f32(32, 8))
def a_train_step_that_makes_its_counter_a_float(state, x):
    state = _trained(state, x)
    return state._replace(step=state.step * 1.0), (x**2).mean()


@wrong("LOX504", STATE._replace(momentum={"w": None}), f32(32, 8))
def a_train_step_that_starts_without_momentum(state, x):
    momentum = {"w": jnp.zeros_like(state.params["w"])} if state.momentum["w"] is None else state.momentum
    return _trained(state._replace(momentum=momentum), x)


@wrong("LOX504", {"w": jax.ShapeDtypeStruct((8, 2), jnp.bfloat16), "scale": f32()}, f32(32, 8))
def a_train_step_that_widens_its_parameters(params, x):
    def loss(params):
        return (params["scale"] * (x @ params["w"].astype(jnp.float32)) ** 2).mean()

    value, gradient = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p.astype(jnp.float32) - 0.1 * g.astype(jnp.float32), params, gradient), value


@wrong("LOX504", {"w": f32(8, 2), "step": i32()}, f32(32, 8))
def a_train_step_that_halves_its_counter(state, x):
    gradient = jax.grad(lambda w: ((x @ w) ** 2).mean())(state["w"])
    return {**state, "w": state["w"] - 0.1 * gradient, "step": (state["step"] + 1) / 2}, gradient


@right("LOX504", {"w": f32(8, 2), "step": i32()}, f32(32, 8))
def a_train_step_that_counts(state, x):
    gradient = jax.grad(lambda w: ((x @ w) ** 2).mean())(state["w"])
    return {**state, "w": state["w"] - 0.1 * gradient, "step": state["step"] + 1}, gradient


@wrong("LOX504", _Particle(f32(3), f32()), f32(3))
@jax.jit
def a_step_that_makes_a_speed_weakly_typed(body, force):
    speed = jax.lax.cond(force[0] > 0, lambda: 1.0, lambda: 0.0)
    return dataclasses.replace(body, position=body.position + force, velocity=speed)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Spring:
    length: Any
    force: Any


@wrong("LOX504", _Particle(f32(3), f32()), _Spring(f32(3), f32()))
def a_step_that_makes_numbers_of_two_states_weakly_typed(body, spring):
    pull = jnp.where(body.position[0] > 0, 1.0, 0.0)
    body = dataclasses.replace(body, position=body.position + pull, velocity=pull)
    return body, _Spring(spring.length - pull, pull)


@right("LOX504", STATE, f32(32, 8))
def a_train_step_that_keeps_its_types(state, x):
    return _trained(state, x), (x**2).mean()


@right("LOX504", {"image": jax.ShapeDtypeStruct((4, 8, 8), jnp.uint8), "label": f32(4)}, f32())
def a_batch_whose_images_become_floats(batch, scale):
    return {**batch, "image": batch["image"].astype(jnp.float32) * scale}, scale


@right("LOX504", {"w": f32(8, 2), "b": f32(2)})
def parameters_in_half_precision(params):
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
