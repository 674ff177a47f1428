"""Intervals over seeds or items."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import bootstrap


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[..., object] = np.mean,
    *,
    rng: np.random.Generator,
    level: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic over seeds or items.

    Args:
        values: ``(n,)`` one number a seed or item, n at least 2.
        statistic: takes ``axis``, as ``np.mean`` and ``np.median`` do.
        rng: source of the resamples.
        level: coverage aimed at.
        resamples: number of bootstrap samples.

    Raises:
        ValueError: fewer than two values, or one that is not finite.
    """
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or array.size < 2 or not np.isfinite(array).all():
        raise ValueError("an interval needs at least two finite values in one dimension")
    result = bootstrap((array,), statistic, confidence_level=level, n_resamples=resamples, method="percentile", rng=rng)
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
