"""Changes to how the tests compile on jax 0.10. They replace private functions of JAX."""

import importlib

import jax

OLD = jax.__version_info__ < (0, 11)


def compile_old_programs_quickly():
    """Compiles without the emitters of fusions on jax 0.10 where optimizations are off: in two thirds of the time."""
    if not OLD:
        return
    compiler = importlib.import_module("jax._src.compiler")

    def options(*args, gets=compiler.get_compile_options, **kwargs):
        found = gets(*args, **kwargs)
        if jax.config.values["jax_disable_most_optimizations"]:
            found.env_option_overrides = [*found.env_option_overrides, ("xla_cpu_use_fusion_emitters", False)]
        return found

    compiler.get_compile_options = options


def keep_what_can_be_kept():
    """Keeps a program off the disk on jax 0.10 if it runs on several devices: storing some of these crashes there."""
    if not OLD:
        return
    cache = importlib.import_module("jax._src.compilation_cache")

    def store(key, name, executable, *args, stores=cache.put_executable_and_time):
        if len(executable.local_devices()) == 1:
            stores(key, name, executable, *args)

    cache.put_executable_and_time = store
