"""NumPy's and SciPy's OpenBLAS computes with this many threads; torch's threads stay."""

import os

from ..change import ROUNDING, Change, Trial, number

NAME = "process.library_threads"
VARIABLES = ("OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def environment(text: str) -> dict[str, str]:
    return dict.fromkeys(VARIABLES, text)


def install(trial: Trial, value: int) -> None:
    trial.sets(NAME, f"{VARIABLES[0]}={os.environ.get(VARIABLES[0], '')}")


CHANGE = Change(
    name=NAME,
    does="NumPy's and SciPy's OpenBLAS and numexpr compute with this many threads; torch's stay.",
    safety=ROUNDING,
    takes="N",
    parse=number(1),
    environment=environment,
    absent="torch was not imported",
    limits="OpenCV, and a NumPy that is built with MKL or OpenMP, do not change",
    edit="OPENBLAS_NUM_THREADS=N python train.py",
    install=install,
)
