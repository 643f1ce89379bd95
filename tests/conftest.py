"""Several CPU devices, strict dtype promotion. Both must be set before the tests use JAX. No library calls home."""

import os

DEVICES = 4
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_ERROR_REPORTING"] = "false"

import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
