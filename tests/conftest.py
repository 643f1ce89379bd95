"""Several CPU devices, strict dtype promotion. Both must be set before the tests use JAX. No library calls home."""

import os
import signal

DEVICES = 4
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_ERROR_REPORTING"] = "false"
# A job that a shell started in the background ignores interrupts, and so would the programs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture(scope="session")
def trackio_folder(tmp_path_factory):
    """Where Trackio writes in this process, which asks the environment once, when it is imported."""
    folder = tmp_path_factory.mktemp("trackio")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(folder))
        import trackio  # noqa: F401

        yield folder
