"""What a share of samples tells of the share of time."""

from __future__ import annotations

from math import sqrt

# The standard normal's 97.5 % point, for an interval that holds the true share in 95 of 100 cases.
NORMAL_95 = 1.96


def known_to(share: float, samples: int) -> tuple[float, float]:
    """Least and greatest share of time, 0..1, for ``share`` of so many samples.

    Wilson's score interval for a proportion, which holds for few samples and for shares near 0 or
    1 (Brown, Cai, DasGupta 2001, "Interval estimation for a binomial proportion").
    """
    if samples <= 0:
        return 0.0, 1.0
    share, z2 = min(1.0, share), NORMAL_95**2 / samples
    centre = (share + z2 / 2) / (1 + z2)
    half = sqrt(z2 * share * (1 - share) + z2 * z2 / 4) / (1 + z2)
    return max(0.0, centre - half), min(1.0, centre + half)
