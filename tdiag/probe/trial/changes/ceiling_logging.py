"""Calls that write logs are skipped."""

import builtins
import csv
import functools
import logging
import sys
from typing import Any

from ...patches import hidden
from ...places import caller
from ..change import CEILING, TRAINING, Change, Trial, at, switch
from ..frozen import when_code_is_there

NAME = "ceiling.logging"
# Library methods, patched when the library is imported: module, class or "", method name prefixes.
LIBRARIES = (
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_", "flush")),
    ("tensorboardX.writer", "SummaryWriter", ("add_", "flush")),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
    ("mlflow", "", ("log_metric",)),
    ("tqdm.std", "tqdm", ("display", "set_postfix", "set_description", "write")),
)


def install(trial: Trial, value: bool) -> None:
    trial.patches.set(builtins, "print", _skipped(trial, print))
    trial.patches.set(logging.Logger, "_log", _skipped(trial, logging.Logger._log))
    for name in ("writerow", "writerows"):
        original = getattr(csv.DictWriter, name)
        trial.patches.set(csv.DictWriter, name, _skipped(trial, original))
    trial.patches.set(csv, "writer", hidden(_silent_writer(trial, csv.writer)))
    done: set[str] = set()

    def look() -> None:
        for module, owner, prefixes in LIBRARIES:
            found: Any = sys.modules.get(module)
            found = getattr(found, owner, None) if owner else found
            if found is None or module in done:
                continue
            done.add(module)
            for name, method in list(vars(found).items()):
                if name.startswith(prefixes) and callable(method):
                    trial.patches.set(found, name, _skipped(trial, method))

    when_code_is_there(trial, look)
    look()


def _skipped(trial: Trial, original: Any) -> Any:
    name = getattr(original, "__qualname__", "")

    @functools.wraps(original)
    def skipped(*args: Any, **kwargs: Any) -> None:
        trial.answer(NAME)
        trial.applied(NAME, f"{name}(){at(caller())} does nothing")

    return hidden(skipped)


def _silent_writer(trial: Trial, original: Any) -> Any:
    """``csv.writer`` returns C objects, whose methods cannot be replaced, so it is replaced
    itself."""

    class Silent:
        def __init__(self, written: Any) -> None:
            self.dialect = written.dialect
            self.writerow = _skipped(trial, written.writerow)
            self.writerows = _skipped(trial, written.writerows)

    @functools.wraps(original)
    def writer(*args: Any, **kwargs: Any) -> Any:
        return Silent(original(*args, **kwargs))

    return writer


CHANGE = Change(
    name=NAME,
    does="print(), logging, csv, tqdm, TensorBoard, wandb and mlflow write nothing.",
    safety=TRAINING,
    kind=CEILING,
    parse=switch,
    absent="nothing was printed or logged",
    limits="the script's own file writes stay, and so do values that it computes for a log; a"
    " script that reads its log fails",
    install=install,
)
