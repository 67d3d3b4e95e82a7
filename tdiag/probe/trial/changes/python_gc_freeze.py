"""Objects that are alive after warm-up are left out of garbage collection."""

import gc

from ..change import SAME, Change, Trial, switch

NAME = "python.gc_freeze"


def install(trial: Trial, value: bool) -> None:
    def freeze() -> None:
        gc.collect()
        gc.freeze()
        trial.applied(NAME, f"{gc.get_freeze_count():,} objects frozen")

    trial.probe.when_warm(freeze)


CHANGE = Change(
    name=NAME,
    does="Objects that are alive after warm-up are left out of garbage collection.",
    safety=SAME,
    parse=switch,
    absent="the script ended while warming up",
    limits="the script's own calls of gc.collect() stay",
    edit="gc.collect(); gc.freeze() just before the training loop",
    install=install,
)
