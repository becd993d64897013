"""Confidence sequences for paired samples: intervals that stay valid while pairs arrive. No I/O.

An ordinary interval, recomputed after every pair, excludes 0 sooner or later by chance alone. This
one excludes the true mean after *any* pair in at most 5 % of the cases. It contains the means for
which the Bayes factor of the t statistic is below 1 / alpha. With the right Haar prior on the
scatter and a normal prior on mean / scatter this factor is a martingale, so Ville's inequality
bounds its maximum (Robbins 1970; Lai 1976; the factor is by Gönen, Johnson, Lu and Westfall, 2005;
Grünwald, de Heide and Koolen, "Safe Testing", 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

#: Variance of the prior of mean / scatter: differences of about three scatters are expected.
_PRIOR = 10.0


def always_interval(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float] | None:
    """The interval of the mean of normal values, valid after every value; None below 3 values.

    The factor for n values, nu = n - 1 and a = 1 + n g is a^(-1/2) ((1 + x) / (1 + x / a))^(n/2)
    with x = t^2 / nu. The equation factor = 1 / alpha is solved for t.
    """
    n = len(values)
    if n < 2:
        return None
    a = 1 + n * _PRIOR
    ratio = (sqrt(a) / alpha) ** (2 / n)
    if ratio >= a:
        return None  # no t reaches 1 / alpha
    t = sqrt((n - 1) * (ratio - 1) / (1 - ratio / a))
    middle, error = float(np.mean(values)), float(np.std(values, ddof=1)) / sqrt(n)
    return middle - t * error, middle + t * error
