"""Shares of the step, and of the device's memory, that several rules measure against."""

from __future__ import annotations

# TensorFlow's input-pipeline analysis calls a program "moderately" bound by what takes 5 % of its
# step (kModeratelyInfeedBoundThresholdInPercent), and not bound by it below.
NOTICEABLE_FRAC = 0.05
# By definition of "mostly": what the larger half went to.
MOSTLY_FRAC = 0.5
# How much of a device's memory may be planned for; the last tenth is for peaks and fragmentation.
# vLLM plans with as much (gpu_memory_utilization: 0.9 for years, 0.92 in its newest releases).
USABLE_MEMORY_FRAC = 0.9
