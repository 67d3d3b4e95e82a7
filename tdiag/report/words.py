"""The report's vocabulary: classes and components in plain words, and their colours.

Colours are fixed entries of the 256-colour palette with a contrast of at least 3.2:1 on white and
on #1e1e1e (WCAG requires 3:1 for graphics), so that every theme shows them.
"""

from __future__ import annotations

from typing import NamedTuple

GOOD, WARN, BAD, ACCENT = "color(29)", "color(166)", "color(167)", "color(32)"
QUIET = "color(244)"
CODE = f"bold {ACCENT}"
HEAD = "bold"
NOTHING = "–"  # not measured

#: verdict class → its title in the report
CLASSES = {
    "io": "I/O-bound",
    "cpu": "Preprocessing-bound",
    "input": "Input-bound",
    "loader": "DataLoader set-up",
    "h2d": "Host-to-device copies",
    "compute": "Compute-bound",
    "python_loss": "Python in the loss",
    "sync": "Device synchronisation",
    "overhead": "Host overhead",
    "eval": "Evaluation",
    "rollout": "Rollouts",
    "checkpoint": "Checkpointing",
    "logging": "Logging",
    "memory": "Memory",
    "comm": "Communication",
    "straggler": "Straggling rank",
    "no_device_activity": "No device activity captured",
    "unknown": "No verdict",
}


class Words(NamedTuple):
    """A budget component: its label (at most 22 cells), what it is, and its colour."""

    label: str
    meaning: str
    color: str


COMPONENTS = {
    "data_wait_io": Words("data wait: blocked", "loader blocked (storage)", "color(166)"),
    "data_wait_cpu": Words("data wait: CPU", "loader busy preprocessing", "color(136)"),
    "data_wait": Words("data wait", "loop waits for a batch", "color(130)"),
    "prepare": Words("prepare batch", "from the batch to forward", "color(101)"),
    "h2d": Words("host-to-device copy", "device only copies", "color(133)"),
    "forward": Words("forward", "the model's forward pass", "color(32)"),
    "loss": Words("loss", "end of forward to backward", "color(168)"),
    "python_loss": Words("Python in the loss", "device idle meanwhile", "color(162)"),
    "backward": Words("backward", "gradients", "color(62)"),
    "optimizer": Words("optimizer", "the weight update", "color(30)"),
    "compute": Words("device compute", "kernels running", "color(29)"),
    "comm": Words("communication", "nothing computed meanwhile", "color(97)"),
    "d2h": Words("device-to-host copy", "device only copies", "color(134)"),
    "sync": Words("synchronising", "host waits, device idle", "color(167)"),
    "alloc": Words("device allocation", "device idle meanwhile", "color(132)"),
    "cpu_ops": Words("CPU operations", "host computes, device idle", "color(137)"),
    "launch": Words("launching", "host issues work, device idle", "color(68)"),
    "evaluation": Words("evaluation", "forward without training", "color(98)"),
    "checkpoint": Words("checkpoint", "torch.save", "color(64)"),
    "gc": Words("garbage collection", "Python's collector runs", "color(131)"),
    "after_step": Words("after the step", "logging, metrics, schedules", "color(67)"),
    "other": Words("other", "other host work", "color(102)"),
    "unattributed": Words("unattributed", "measured, not explained", "color(243)"),
}

SAFETY = {
    "safe": "keeps results",
    "review": "review: may change results or memory",
    "manual": "needs your judgement",
}


def component(name: str) -> Words:
    """The words for a component; a component unknown to this version keeps its own name."""
    return COMPONENTS.get(name) or Words(name.replace("_", " "), "", "color(102)")


def verdict_class(name: str) -> str:
    """The words for a verdict class; an unknown one keeps its own name."""
    return CLASSES.get(name) or name.replace("_", " ")
