"""A number that decides something."""

from __future__ import annotations


class Threshold(float):
    """Behaves as its value, and carries its unit and its source.

    ``source`` is a sentence: what was measured and by which benchmark, or what is cited. The docs
    of rules and of the verdict print it (``scripts/generate_docs.py``).
    """

    unit: str
    source: str

    def __new__(cls, value: float, unit: str, source: str) -> Threshold:
        number = super().__new__(cls, value)
        number.unit, number.source = unit, source
        return number

    def __str__(self) -> str:
        return f"{float(self):,.10g}"


# Thresholds shared by evidence, rules and the verdict.
MAJORITY_FRAC = Threshold(
    0.5, "of the whole", 'By definition of "most": the larger half of what was measured.'
)
NORMAL_95 = Threshold(
    1.96, "standard deviations", "By definition: 97.5 % point of the normal distribution."
)
NOTICEABLE_FRAC = Threshold(
    0.05,
    "of the time",
    "TensorFlow's input-pipeline analysis calls a program moderately bound by what takes 5 % of its"
    " step (kModeratelyInfeedBoundThresholdInPercent), and not bound by it below.",
)
RUN_TO_RUN_FRAC = Threshold(
    0.16,
    "of the step",
    "Measured: separate runs of one program on a busy machine differed by 9 to 16 %.",
)
