"""torch's allocator on the device uses expandable segments."""

import os

from ..change import SAME, Change, Trial, switch

NAME = "process.expandable_segments"
VARIABLE, SETTING = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"


def environment(text: str) -> dict[str, str]:
    before = os.environ.get(VARIABLE, "").split(",")
    others = [one for one in before if one and not one.startswith("expandable_segments")]
    return {VARIABLE: ",".join([*others, SETTING])}


def install(trial: Trial, value: bool) -> None:
    from ... import accelerator

    if not accelerator.cuda_possible():
        trial.refused(NAME, "there is no device with such an allocator")
    else:
        trial.sets(NAME, f"{VARIABLE}={os.environ.get(VARIABLE, '')}")


CHANGE = Change(
    name=NAME,
    does="torch's allocator grows segments of device memory, which avoids fragmentation.",
    safety=SAME,
    parse=switch,
    environment=environment,
    absent="torch was not imported",
    limits="does not help if memory is simply too small",
    edit="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
    install=install,
)
