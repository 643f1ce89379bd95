"""The private names of JAX that lox uses, each with what it is for and what happens on a JAX without it.

A name is looked up when it is needed, not when lox is imported. Where JAX has lost it, what needs it raises
`UnsupportedJaxError`, or goes another way that is only slower; all else works. To add a name, register it in the module
that uses it::

    _lookup = private("jax._src.there:lookup", purpose="to ...", needed_for=Feature.SHARDS)

and use `_lookup.value`, or `_lookup.found` where there is another way. A private attribute of objects is registered
with `private_attribute`.
"""

from __future__ import annotations

import enum
import functools
import importlib
from typing import Any

import jax

from lox._exceptions import UnsupportedJaxError


class Feature(enum.Enum):
    """A feature that needs a private name, as an error message names it."""

    CONSTANTS = "a log of constants inside a jit, scan, cond or while_loop"
    CONTROL_FLOW = "a log inside a scan, cond or while_loop"
    CUSTOM_RULES = "a log in a custom_jvp or custom_vjp function under jax_enable_checks or optimize_remat"
    CHECKPOINT = "the derivative of a jax.checkpoint with a log inside"
    DERIVATIVES = "derivatives under a handler, as in lox.spool(jax.grad(f)); jax.grad of lox.spool(f) does without it"
    SCAN_DERIVATIVES = "the derivative of a scan with a log inside"
    FLAX_SCAN = "a log inside flax.linen.scan"
    VMAPPED_WHILE = "vmap of a while_loop with a log inside"
    SHARDS = "a log inside a shard_map"
    VMAPPED_SHARDS = "a log inside both a vmap and a shard_map"
    ORDERED_TAP = "lox.tap, or a logger's tap, in order; ordered=False does without it"
    TAP_ON_DEVICES = "lox.tap, or a logger's tap, in a program on several devices"
    LOWERING_RULES = "lox.progress, and lox.tap, or a logger's tap, of what is the same on all shards of a shard_map"
    PMAP = "a handler around pmap in several processes"


class PrivateName:
    """A name of JAX that is not public on all versions that lox supports.

    A name that is there but cannot be used as lox uses it counts as missing.

    Attributes:
        places: Its possible places, as ``"module:name"``: on older and newer versions, first where it is public.
        purpose: The use that lox has for it, such as ``"to tell ... apart"``.
        needed_for: The feature that raises an error without it, if any.
        otherwise: The substitute that lox uses without it, where that is not an error.
        has: An attribute that the value must have to be of use.
        value: The object of this name. Reading it raises `UnsupportedJaxError` if this JAX does not have it.
        owner: The module or class that has the name, once the value was read.
    """

    value: Any
    owner: Any

    def __init__(
        self, places: tuple[str, ...], purpose: str, needed_for: Feature | None, otherwise: str, has: str = ""
    ):
        self.places = places
        self.has = has
        self.purpose = purpose
        self.needed_for = needed_for
        self.otherwise = otherwise

    @property
    def found(self) -> bool:
        """Tell whether this JAX has the name."""
        try:
            self.value  # noqa: B018  (remembered by __getattr__)
        except UnsupportedJaxError:
            return False
        return True

    def __getattr__(self, attribute: str) -> Any:
        if attribute != "value":
            raise AttributeError(attribute)
        for place in self.places:
            module, _, path = place.partition(":")
            try:
                value: Any = importlib.import_module(module)
                for part in path.split("."):
                    owner, value = value, getattr(value, part)
            except (ImportError, AttributeError):
                continue
            if self.has and not hasattr(value, self.has):
                continue
            self.owner, self.value = owner, value  # From now on, attributes like others.
            return value
        raise self.missing()

    def need(self) -> None:
        """Raise `UnsupportedJaxError` if this JAX does not have the name."""
        self.value  # noqa: B018

    def missing(self) -> UnsupportedJaxError:
        """The error of what needs the name."""
        name = self.places[-1].replace(":", ".")
        feature = "this" if self.needed_for is None else self.needed_for.value
        return UnsupportedJaxError(
            f"jax {jax.__version__} has no {name}, which lox uses {self.purpose}. It is needed for {feature}. Use a "
            f"version of JAX that this version of lox supports, or a newer lox; if there is none, please report this."
        )


class PrivateAttribute(PrivateName):
    """A private attribute of an object of JAX's.

    Attributes:
        attribute: The attribute.
    """

    def __init__(self, owner: str, attribute: str, purpose: str, needed_for: Feature | None, otherwise: str):
        super().__init__((f"{owner}.{attribute}",), purpose, needed_for, otherwise)
        self.attribute = attribute

    def of(self, holder: Any) -> Any:
        """The attribute of an object.

        Raises:
            UnsupportedJaxError: It has none.
        """
        try:
            return getattr(holder, self.attribute)
        except AttributeError:
            raise self.missing() from None


PRIVATE_NAMES: dict[str, PrivateName] = {}
"""All private names, by their place in the oldest supported JAX."""


def private(
    *places: str, purpose: str, needed_for: Feature | None = None, otherwise: str = "", has: str = ""
) -> PrivateName:
    """Register a private name: see `PrivateName`. It is needed for something, or something is done otherwise."""
    return _register(PrivateName(places, purpose, needed_for, otherwise, has))


def private_attribute(
    owner: str, attribute: str, purpose: str, needed_for: Feature | None = None, otherwise: str = ""
) -> PrivateAttribute:
    """Register a private attribute of objects that are called `owner`."""
    name = PrivateAttribute(owner, attribute, purpose, needed_for, otherwise)
    _register(name)
    return name


def need(feature: Feature) -> None:
    """Raise `UnsupportedJaxError` if this JAX lacks a name that something is needed for."""
    for name in _needed_for(feature):
        name.need()


def lacks(feature: Feature) -> bool:
    """Tell whether this JAX lacks a name that something is needed for."""
    return not all(name.found for name in _needed_for(feature))


@functools.cache
def _needed_for(feature: Feature) -> tuple[PrivateName, ...]:
    return tuple(name for name in PRIVATE_NAMES.values() if name.needed_for is feature)


def _register(name: PrivateName) -> PrivateName:
    key = name.places[-1]
    if key in PRIVATE_NAMES:
        raise ValueError(f"{key} is registered already")
    if (name.needed_for is None) == (not name.otherwise):
        raise ValueError(f"{key} must say what needs it, or what is done without it")
    PRIVATE_NAMES[key] = name
    return name
