"""Values that are images."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from lox._arguments import names
from lox._exceptions import LogDataError

CHANNELS = (1, 3, 4)


def keys_of_images(images: str | Iterable[str]) -> frozenset[str]:
    """Reads the keyword `images` of a logger.

    Raises:
        LogDataError: It is not a name or an iterable of names. A `TypeError`.
    """
    return frozenset(names(images, "images", ""))


def image(key: str, value: np.ndarray) -> np.ndarray:
    """An image as sinks take it.

    Args:
        key: Its key.
        value: Gray, shape `(H, W)` or `(H, W, 1)`, RGB, shape `(H, W, 3)`, or RGBA, shape `(H, W, 4)`. Integers are
            `uint8`. Floats go from 0 to 1, to which others are clipped, with NaN as 0; so do booleans.

    Returns:
        An array of `uint8`, shape `(H, W)`, `(H, W, 3)` or `(H, W, 4)`.

    Raises:
        LogDataError: The value has another shape or dtype. A `TypeError`.

    >>> image("x", np.array([[0.0, 0.5, 2.0]])).tolist()
    [[0, 128, 255]]
    """
    good = value.ndim == 2 or (value.ndim == 3 and value.shape[2] in CHANNELS)
    if not good or not value.size:
        raise LogDataError(
            f"The image {key!r} must have the shape (H, W) or (H, W, C) with C in {CHANNELS}, got {value.shape}."
        )
    if value.dtype.kind in "iu" and value.dtype != np.uint8:
        raise LogDataError(
            f"The image {key!r} must be of uint8, or of floats from 0 to 1, got {value.dtype.name}. "
            "Write image.astype(jnp.uint8)."
        )
    if value.dtype != np.uint8:
        levels = np.clip(np.nan_to_num(value.astype(np.float32), posinf=1, neginf=0), 0, 1)
        value = (levels * 255 + 0.5).astype(np.uint8)
    return value[..., 0] if value.shape[2:] == (1,) else value
