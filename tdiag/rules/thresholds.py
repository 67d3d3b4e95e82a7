"""Thresholds that several rules share. A threshold of one rule is in that rule's file."""

from __future__ import annotations

from tdiag.model.threshold import Threshold

HEALTHY_COMPUTE_FRAC = Threshold(
    0.8,
    "of the step",
    "By Amdahl's law: where four fifths compute, removing all the rest gains at most 1.25×.",
)
USABLE_MEMORY_FRAC = Threshold(
    0.9,
    "of the device's memory",
    "vLLM plans with as much (gpu_memory_utilization: 0.9 for years, 0.92 in its newest releases);"
    " the last tenth is for peaks and fragmentation.",
)
HIGH_FRAC = Threshold(
    0.20,
    "of the step",
    "TensorFlow's input-pipeline analysis calls a program highly bound by something from 20 % of"
    " the step on (kHighlyInfeedBoundThresholdInPercent).",
)
FREED_MEMORY_FRAC = Threshold(
    0.25,
    "of the memory in use",
    "By arithmetic: without a quarter of what it needs, a batch may be a third larger.",
)
LOW_END_FRAC = Threshold(
    0.5,
    "of the gain at best",
    "Heuristic: if no measurement shows how much of the cost remains after the fix, the low end"
    " assumes half of it.",
)
PRODUCTS_LOW_FRAC = Threshold(
    0.5,
    "of the data sheet's rate",
    "Heuristic: an H100 reached 0.67 to 0.84 with large bfloat16 products (docs/gpu-validation.md);"
    " smaller ones reach less.",
)
PRODUCTS_HIGH_FRAC = Threshold(
    0.82,
    "of the data sheet's rate",
    "docs/gpu-validation.md: bfloat16 products of 16,384 × 2,048 × 2,048 reached 0.81 to 0.84 on an"
    " H100, forward and backward, torch 2.11.",
)
REPLACED_LOW_FRAC = Threshold(
    0.85,
    "of the gain at best",
    "Measured: where one tensor call replaces Python's work on a batch, 16 of 17 twins saved at"
    " least 0.87 of it, one 0.84 (benchmarks/rule_constants.py thresholds.REPLACED_LOW_FRAC).",
)
RARER_LOW_FRAC = Threshold(
    0.75,
    "of the cost",
    "By arithmetic: a quarter as often saves three quarters. What is done often enough to be"
    " noticed is mostly done far more often than needed: by default, Lightning's Trainer logs every"
    " 50 steps and saves once an epoch, Hugging Face's does both every 500 steps.",
)
LOG_EVERY = Threshold(
    50, "steps", "PyTorch Lightning's Trainer logs every 50 steps by default (log_every_n_steps)."
)
LOG_LOW_FRAC = Threshold(
    0.9,
    "of the cost",
    "By arithmetic: once in ten steps saves nine tenths. PyTorch's own MNIST example logs every 10"
    " steps by default (--log-interval).",
)
FEWER_ROWS_FRAC = Threshold(
    0.75,
    "of the share of rows saved",
    "Measured, batches of 16 and 64 sequences sorted by length against random order, 64 and 256"
    " wide, torch 2.13, one core: the time saved was 0.74 (a convolution) to 1.13 times the"
    " positions saved (a transformer layer) (benchmarks/rule_constants.py"
    " thresholds.FEWER_ROWS_FRAC).",
)
MIN_SAMPLES = Threshold(
    100, "samples", "Of fewer, 2 % (the smallest gain reported) is less than two samples."
)
FUSED_HIGH_FRAC = Threshold(
    0.75, "of the time", "By arithmetic: four kernels fused into one move a quarter of the data."
)
FUSED_LOW_FRAC = Threshold(
    0.25, "of the time", "Heuristic: half of the kernels fuse in pairs and move half of their data."
)
MIN_OPTIMIZER_FRAC = Threshold(
    0.1,
    "of the step",
    "At a tenth of the step, the smallest speedup measured for the fix (1.45×) makes the step 1.03×"
    " faster, little more than the ±1.4 % by which a program differs from itself.",
)
LARGE_WAIT_FRAC = Threshold(
    0.2,
    "of the step",
    "As for waiting for input: TensorFlow's analysis calls a program highly bound by it from 20 %"
    " on. On CPUs, ranks with nothing to mend waited 14 and 15 % of a step for each other.",
)

# The loader's queue.
DEFAULT_PREFETCH = Threshold(
    2, "batches per worker", "The default of prefetch_factor (PyTorch's documentation)."
)
SLOW_FRAC = Threshold(
    0.1,
    "of the fetches or waits",
    "Heuristic: slow batches must be the exception, so only the slowest tenth counts as a burst.",
)
MIN_SEEN = Threshold(
    20, "values", "By arithmetic: the slowest tenth of 20 is two; of fewer, one decides."
)
