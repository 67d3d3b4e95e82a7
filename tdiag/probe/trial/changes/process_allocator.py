"""Another malloc, preloaded."""

import ctypes.util
import os

from ..change import SAME, Change, Trial

NAME = "process.allocator"
LIBRARIES = {"jemalloc": ("jemalloc",), "tcmalloc": ("tcmalloc_minimal", "tcmalloc")}


def known(text: str) -> str:
    if text not in LIBRARIES:
        raise ValueError(f"takes {' or '.join(LIBRARIES)}")
    return text


def environment(text: str) -> dict[str, str]:
    for name in LIBRARIES[known(text)]:
        found = ctypes.util.find_library(name)
        if found:
            before = os.environ.get("LD_PRELOAD", "")
            return {"LD_PRELOAD": f"{found} {before}".strip()}
    raise ValueError(f"{text} is not installed on this machine")


def install(trial: Trial, value: str) -> None:
    with open("/proc/self/maps", encoding="utf-8") as file:
        if any(f"lib{name}" in line for line in file for name in LIBRARIES[value]):
            trial.applied(NAME, f"malloc of {value}")


CHANGE = Change(
    name=NAME,
    does="Host memory comes from another, preloaded malloc.",
    safety=SAME,
    takes="jemalloc or tcmalloc",
    parse=known,
    environment=environment,
    absent="the program did not load the preloaded library",
    limits="device memory has its own allocator",
    edit="LD_PRELOAD=libjemalloc.so.2 python train.py",
    install=install,
)
