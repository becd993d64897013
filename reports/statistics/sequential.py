"""Confidence sequences for paired samples: intervals that hold at every look. No I/O.

An ordinary interval, computed after every pair, excludes 0 sooner or later by chance alone. The
interval here does so at *any* look in at most 5 % of the cases. It contains the means against which
the t statistic's Bayes factor stays below 1 / alpha. With the right Haar prior on the scatter and a
normal one on the mean over the scatter that factor is a martingale, whose maximum Ville's
inequality bounds (Robbins 1970; Lai 1976; the factor is Gönen, Johnson, Lu and Westfall's, 2005;
Grünwald, de Heide and Koolen, "Safe Testing", 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np

#: Variance of the prior of mean over scatter: what is looked for is some three scatters large.
_PRIOR = 10.0


def always_interval(values: Sequence[float], alpha: float = 0.05) -> tuple[float, float] | None:
    """The interval of the mean of normal values, valid however often it is looked at; None below 3.

    The factor for n values, nu = n - 1 and a = 1 + n g is a^(-1/2) ((1 + x) / (1 + x / a))^(n/2)
    with x = t^2 / nu; it is solved for t where it reaches 1 / alpha.
    """
    n = len(values)
    if n < 2:
        return None
    a = 1 + n * _PRIOR
    ratio = (sqrt(a) / alpha) ** (2 / n)
    if ratio >= a:
        return None  # whatever t is
    t = sqrt((n - 1) * (ratio - 1) / (1 - ratio / a))
    middle, error = float(np.mean(values)), float(np.std(values, ddof=1)) / sqrt(n)
    return middle - t * error, middle + t * error
