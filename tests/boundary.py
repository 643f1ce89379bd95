"""What works on a JAX that lacks a private name or module; to be run in a process of its own.

It imports JAX once and forks a process for each loss. There the name is hidden from lox, but not from JAX itself, lox
is imported and a table of programs runs. Printed is, as JSON, what came of each.
"""

import importlib
import json
import os
import sys
import tempfile
import traceback
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from compilation import keep_what_can_be_kept
from jax.interpreters import batching, partial_eval

SCENARIOS = {}


def scenario(*features):
    """Registers a program that may raise `UnsupportedJaxError` where one of these features is lost.

    It returns what was logged and what is expected.
    """

    def register(function):
        SCENARIOS[function.__name__] = (function, features)
        return function

    return register


class Hidden(types.ModuleType):
    """A module of which lox does not see a name."""

    def __init__(self, module, hidden):
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _hidden=hidden)

    def __getattr__(self, name):
        if name == self._hidden and sys._getframe(1).f_globals["__name__"].startswith("lox"):
            raise AttributeError(name)
        return getattr(self._module, name)

    def __setattr__(self, name, value):
        setattr(self._module, name, value)


def hide(place):
    """Hides ``"module:name"``, or a module."""
    module, _, path = place.partition(":")
    if not path:
        importing = importlib.import_module

        def import_module(name, package=None):
            if name == module and sys._getframe(1).f_globals["__name__"].startswith("lox"):
                raise ModuleNotFoundError(name)
            return importing(name, package)

        importlib.import_module = import_module
        return
    if module not in sys.modules:
        return
    hidden = Hidden(sys.modules[module], path.partition(".")[0])
    parent, _, name = module.rpartition(".")
    setattr(sys.modules[parent], name, hidden)
    sys.modules[module] = hidden


def arrays(logs):
    return {key: np.asarray(value).tolist() for key, value in logs.items()}


def logged(x):
    import lox

    lox.log({"x": x, "double": 2 * x})
    return x * x


def doubles(*values):
    return {"x": list(values), "double": [2 * value for value in values]}


@scenario()
def no_handler():
    import lox

    def without(x):
        return x * x

    def with_log(x):
        lox.log({"x": x, "double": 2})
        return x * x

    same = str(jax.make_jaxpr(with_log)(3.0)), str(jax.make_jaxpr(without)(3.0))
    assert float(with_log(3.0)) == float(jax.jit(with_log)(3.0)) == 9.0
    assert float(jax.grad(with_log)(3.0)) == 6.0
    return same


@scenario()
def plain():
    import lox

    out, logs = lox.spool(logged)(np.float32(3))
    assert out == 9
    return arrays(logs), doubles(3)


@scenario()
def jit():
    import lox

    return arrays(lox.spool(jax.jit(logged))(3.0)[1]), doubles(3)


@scenario()
def jit_of_spool():
    import lox

    return arrays(jax.jit(lox.spool(lambda x: jax.jit(logged)(x)))(3.0)[1]), doubles(3)


@scenario("CONSTANTS")
def constants():
    import lox

    def fun(x):
        with jax.ensure_compile_time_eval():
            lox.log({"constant": 7})
        return x

    return arrays(lox.spool(jax.jit(fun))(3.0)[1]), {"constant": [7]}


def looped(x):
    import lox

    def body(carry, i):
        lox.log({"carry": carry, "same": x})
        return carry * x, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


LOOPED = {"carry": [2.0, 4.0, 8.0], "same": [2.0, 2.0, 2.0]}


@scenario("CONTROL_FLOW")
def scan():
    import lox

    return arrays(lox.spool(looped)(2.0)[1]), LOOPED


@scenario("CONTROL_FLOW")
def cond():
    import lox

    def fun(x):
        return jax.lax.cond(x > 0, logged, lambda x: x, x)

    out, logs = lox.spool(fun, unify=True)(3.0)
    assert logs.mask["x"].tolist() == [True]
    return arrays(logs), doubles(3)


def counted(x):
    import lox

    def body(value):
        lox.log({"value": value})
        return value + 1

    return jax.lax.while_loop(lambda value: value < 5, body, x)


@scenario("CONTROL_FLOW")
def while_loop():
    import lox

    return arrays(lox.spool(counted, reduce="sum")(2.0)[1]), {"value": [2.0 + 3 + 4]}


@scenario()
def vmap():
    import lox

    logs = lox.spool(jax.vmap(logged))(np.float32([1, 2]))[1]
    return arrays(logs), {"x": [[1, 2]], "double": [[2, 4]]}


@scenario("CONTROL_FLOW", "VMAPPED_WHILE")
def vmap_of_while():
    import lox

    logs = lox.spool(jax.vmap(counted), reduce="sum")(np.float32([2, 4]))[1]
    return arrays(logs), {"value": [[9.0, 4.0]]}


@scenario()
def grad_of_spool():
    import lox

    return float(jax.grad(lambda x: lox.spool(logged)(x)[1]["double"].sum())(3.0)), 2.0


@scenario("DERIVATIVES")
def grad():
    import lox

    out, logs = lox.spool(jax.grad(logged))(3.0)
    return (float(out), arrays(logs)), (6.0, doubles(3))


@scenario("DERIVATIVES")
def grad_of_jit():
    import lox

    out, logs = lox.spool(jax.grad(jax.jit(logged)))(3.0)
    return (float(out), arrays(logs)), (6.0, doubles(3))


@scenario("CONTROL_FLOW", "DERIVATIVES", "SCAN_DERIVATIVES", "SHARDS")
def grad_of_scan():
    import lox

    out, logs = lox.spool(jax.grad(looped))(2.0)
    return (float(out), arrays(logs)), (32.0, LOOPED)


@scenario("CONTROL_FLOW", "DERIVATIVES", "SCAN_DERIVATIVES", "SHARDS", "ORDERED_TAP")
def tap_of_grad_of_scan():
    import lox

    found = []
    out = lox.tap(jax.grad(looped), found.append)(2.0)
    lox.flush()
    return (float(out), [each["carry"].tolist() for each in found]), (32.0, [[2.0], [4.0], [8.0]])


@scenario("CONTROL_FLOW", "DERIVATIVES")
def grad_of_while():
    import lox

    def fun(x):
        _, out = jax.lax.while_loop(
            lambda carry: carry[0] < 3, lambda carry: (carry[0] + 1, logged(carry[1]) * x), (0, x)
        )
        return out

    def slope(x):
        out, linear = jax.linearize(fun, x)
        return out, linear(1.0)

    out, logs = lox.spool(jax.jit(slope), reduce="sum")(1.0)
    return ([float(each) for each in out], arrays(logs)), ([1.0, 15.0], {"x": [3.0], "double": [6.0]})


@scenario("CHECKPOINT", "DERIVATIVES")
def checkpoint():
    import lox

    out, logs = lox.spool(jax.grad(jax.checkpoint(logged)))(3.0)
    return (float(out), arrays(logs)), (6.0, doubles(3))


@scenario("DERIVATIVES", "CUSTOM_RULES")
def custom_jvp():
    import lox

    @jax.custom_jvp
    def fun(x):
        return logged(x)

    fun.defjvp(lambda primals, tangents: (fun(*primals), 7 * tangents[0]))
    out, logs = lox.spool(jax.grad(jax.jit(fun)))(3.0)
    return (float(out), arrays(logs)), (7.0, doubles(3))


@scenario("DERIVATIVES", "CUSTOM_RULES")
def custom_vjp():
    import lox

    @jax.custom_vjp
    def fun(x):
        return logged(x)

    fun.defvjp(lambda x: (fun(x), None), lambda _, bar: (7 * bar,))
    out, logs = lox.spool(jax.grad(jax.jit(fun)))(3.0)
    return (float(out), arrays(logs)), (7.0, doubles(3))


@scenario("CUSTOM_RULES")
def checked():
    import lox

    @jax.custom_jvp
    def fun(x):
        return logged(x)

    fun.defjvp(lambda primals, tangents: (fun(*primals), 7 * tangents[0]))
    with jax.enable_checks(True):
        return arrays(lox.spool(jax.jit(fun))(3.0)[1]), doubles(3)


@scenario()
def custom_vmap():
    import lox

    @jax.custom_batching.custom_vmap
    def fun(x):
        return logged(x)

    @fun.def_vmap
    def _(axis_size, in_batched, x):
        return x * 7, True

    out, logs = jax.vmap(lox.spool(fun))(np.float32([1, 2]))
    return (out.tolist(), arrays(logs)), ([7.0, 14.0], {"x": [[1], [2]], "double": [[2], [4]]})


def on_shards(fun):
    mesh = jax.make_mesh((2,), ("shard",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("shard")
    return jax.shard_map(fun, mesh=mesh, in_specs=spec, out_specs=spec)


@scenario("SHARDS")
def shard_map():
    import lox

    logs = lox.spool(jax.jit(on_shards(lambda x: logged(x[0])[None])))(np.float32([1, 2]))[1]
    return arrays(logs), {"x": [[1, 2]], "double": [[2, 4]]}


@scenario("SHARDS", "VMAPPED_SHARDS")
def vmap_of_shard_map():
    import lox

    fun = jax.vmap(on_shards(lambda x: logged(x[0])[None]))
    logs = lox.spool(fun)(np.float32([[1, 2], [3, 4], [5, 6]]))[1]
    return arrays(logs)["x"], [[[1, 3, 5], [2, 4, 6]]] if logs["x"].shape == (1, 2, 3) else [[[1, 2], [3, 4], [5, 6]]]


@scenario("SHARDS", "CONTROL_FLOW", "TAP_ON_DEVICES", "LOWERING_RULES", "ORDERED_TAP")
def tap_on_shards():
    import lox

    def fun(x):
        lox.log({"same": jax.lax.psum(x[0], "shard")})
        return x

    found = []
    lox.tap(jax.jit(on_shards(fun)), found.append)(np.float32([1, 2]))
    lox.flush()
    return [each["same"].tolist() for each in found], [[3.0]]


@scenario("ORDERED_TAP")
def tap():
    import lox

    found = []
    lox.tap(jax.jit(logged), found.append)(3.0)
    lox.flush()
    return [arrays(each) for each in found], [doubles(3)]


@scenario()
def tap_unordered():
    import lox

    found = []
    lox.tap(logged, found.append, ordered=False)(3.0)
    lox.flush()
    return [arrays(each) for each in found], [doubles(3)]


@scenario("ORDERED_TAP", "TAP_ON_DEVICES")
def tap_on_devices():
    import lox

    found = []
    mesh = jax.make_mesh((2,), ("shard",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(np.float32([1, 2]), jax.NamedSharding(mesh, jax.sharding.PartitionSpec("shard")))
    lox.tap(jax.jit(logged), found.append)(x)
    lox.flush()
    return [each["x"].tolist() for each in found], [[[1.0, 2.0]]]


@scenario()
def strip():
    import lox

    return arrays(lox.spool(lox.strip(jax.jit(logged), argnames="double"))(3.0)[1]), {"x": [3]}


@scenario()
def keep():
    import lox

    return arrays(lox.spool(lox.keep(jax.jit(logged), argnames="double"))(3.0)[1]), {"double": [6]}


@scenario("CONTROL_FLOW")
def sites():
    import lox

    return [each.events for each in lox.sites(looped)(2.0)], [3]


@scenario()
def log_grad():
    import lox

    def fun(x):
        return lox.log_grad({"x": x})["x"] ** 2

    return arrays(lox.spool(jax.grad(fun))(3.0)[1]), {"grad/x": [6.0]}


@scenario("ORDERED_TAP")
def logger():
    import lox
    from lox.loggers import SaveLogger

    with tempfile.TemporaryDirectory() as folder:
        saving = SaveLogger(folder)
        run = saving.init(jax.random.key(0))
        saving.tap(jax.jit(logged), run)(3.0)
        lox.flush()
        saving.flush()
        return arrays(lox.load(saving.directory / run.name)), doubles(3)


@scenario("CONTROL_FLOW")
def audit():
    import lox

    def fun(key):
        return jax.random.normal(key) + jax.random.uniform(key), looped(2.0)

    report = lox.audit(fun)(jax.random.key(0))
    return sorted({each.code for each in (*report.issues, *report.warnings)}), ["LOX700"]


@scenario("CONTROL_FLOW", "CONSTANTS", "DERIVATIVES", "ORDERED_TAP")
def testing():
    from lox.testing import LAWS, check

    return check(logged, 3.0, laws=LAWS[:1], choose=lambda claims: claims[:1]).claims, 1


def outcome(name):
    """What comes of a scenario: "right", what is wrong, or the error."""
    from lox import UnsupportedJaxError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, expected = SCENARIOS[name][0]()
    except UnsupportedJaxError as error:
        return f"unsupported: {error}"
    except BaseException:  # noqa: BLE001
        return f"raised: {traceback.format_exc()[-1500:]}"
    return "right" if found == expected else f"wrong: {found} instead of {expected}"


def in_child(loss, names):
    """What comes of scenarios where something is lost."""
    for place in loss["places"]:
        hide(place)
    for primitive in [*batching.fancy_primitive_batchers, *partial_eval.dce_rules]:
        if primitive.name in loss.get("primitives", ()):
            primitive.name = f"another_{primitive.name}"
    try:
        from lox import _compat
    except BaseException:  # noqa: BLE001
        return {"import": traceback.format_exc()[-1500:]}
    for key in loss["attributes"]:
        _compat.PRIVATE_NAMES[key].attribute = "_gone"
    lost = [name for key, name in _compat.PRIVATE_NAMES.items() if key in loss["attributes"] or is_lost(key, name)]
    return {
        "names": [name.places[-1].replace(":", ".") for name in lost],
        "features": [name.needed_for.name for name in lost if name.needed_for is not None],
        "outcomes": {name: outcome(name) for name in names},
    }


def is_lost(key, name):
    """Whether a name that this JAX has cannot be found."""
    return not hasattr(name, "attribute") and key in KNOWN and not name.found


def fork(function):
    """What a function returns in a forked process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "w") as pipe:
            pipe.write(json.dumps(function()))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"import": "the process died"}


KNOWN = set()
"""The names that this JAX has."""


def losses():
    """What is hidden, by each private name of this JAX and each private module."""
    from lox import _compat

    found = {}
    for key, name in _compat.PRIVATE_NAMES.items():
        if hasattr(name, "attribute"):
            found[key] = {"places": [], "attributes": [key]}
        elif name.found:
            found[key] = {"places": list(name.places), "attributes": []}
    modules = {place.partition(":")[0] for name in _compat.PRIVATE_NAMES.values() for place in name.places}
    for module in sorted(modules & {module for module in sys.modules if module.startswith("jax._src.")}):
        found[module] = {"places": [module], "attributes": []}
    for primitive in ("shard_map", "custom_vmap_call"):
        found[f"primitive {primitive}"] = {"places": [], "attributes": [], "primitives": [primitive]}
    return found


def main():
    """Prints what comes of scenarios, all or some by name, for each loss."""
    keep_what_can_be_kept()
    names = list(SCENARIOS) if sys.argv[1] == "all" else sys.argv[1].split(",")
    each = fork(losses)
    KNOWN.update(each)
    if sys.argv[1] == "all":  # A module of which lox uses one name is the same loss as that name.
        inside = [place.partition(":")[0] for loss in each.values() for place in loss["places"] if ":" in place]
        each = {name: loss for name, loss in each.items() if inside.count(name) != 1}
    print(json.dumps({name: fork(lambda loss=loss: in_child(loss, names)) for name, loss in each.items()}))


if __name__ == "__main__":
    main()
