"""The table of the zoo: what each script is, and what a watcher has to see in it.

``steps(n)`` and ``backward(n)`` are counts *in each training process* of a run with ``--steps n``;
``test_zoo_plain.py`` checks them against hooks that have nothing to do with tdiag. Every script
that ends by itself prints ``RESULT <weights> <losses and next random numbers>``, two sha256
digests by which runs are compared bit for bit.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


def _same(n: int) -> int:
    return n


def _none(n: int) -> int:
    return 0


def _until_three(n: int) -> int:
    return min(n, 3)


@dataclass(frozen=True)
class Entry:
    """One way to run one script.

    ``boundary``: what ends a step (``optimizer``, ``backward``, ``batch``; None: never trains).
    ``steps``: how often it happens; for ``optimizer`` of the first optimizer that steps.
    ``backward``: calls of ``backward()``. ``evaluation``: forward passes between steps, with
    gradient recording ``off`` or ``on``. ``returncode``: as ``subprocess`` gives it, −n for
    signal n. ``processes``: how many of them train. ``slow``: takes more than a few seconds.
    """

    name: str
    style: str
    script: str = ""
    args: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()  # between the interpreter and the script
    boundary: str | None = "optimizer"
    steps: Callable[[int], int] = _same
    backward: Callable[[int], int] = _same
    evaluation: str = ""
    returncode: int = 0
    result: bool = True
    processes: int = 1
    loader: bool = True  # batches come from a DataLoader
    pythonpath: str = ""  # of the user, relative to SCRIPTS
    needs: tuple[str, ...] = ()  # programs
    slow: bool = False
    own_profilers: tuple[str, ...] = field(default=())

    def target(self, steps: int) -> list[str]:
        """What follows the interpreter: launcher, script and arguments."""
        script = self.script or f"{self.name}.py"
        return [*self.launcher, script, *self.args, "--steps", str(steps)]

    def command(self, steps: int) -> list[str]:
        """The plain command; run it in ``SCRIPTS`` with ``environment()``."""
        return [sys.executable, *self.target(steps)]

    def environment(self) -> dict[str, str]:
        """The caller's environment, one thread for torch, and the user's own PYTHONPATH."""
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        environ.pop("PYTHONPATH", None)
        if self.pythonpath:
            environ["PYTHONPATH"] = str(SCRIPTS / self.pythonpath)
        return environ

    def missing(self) -> list[str]:
        """Programs the entry needs that this machine lacks."""
        return [program for program in self.needs if shutil.which(program) is None]


def _workers(name: str, style: str, *args: str, slow: bool = False) -> Entry:
    return Entry(name, style, script="workers.py", args=args, slow=slow)


def _dies(how: str, style: str, returncode: int) -> Entry:
    return Entry(
        f"dies_{how}",
        style,
        script="dies.py",
        args=("--how", how),
        steps=_until_three,
        backward=_until_three,
        returncode=returncode,
        result=False,
        loader=False,
    )


# Each pass starts two workers that import torch: of 40 steps, two passes; the others make five.
SPAWNED = ("--start-method", "spawn", "--samples", "160")

ZOO: tuple[Entry, ...] = (
    Entry("plain_loop", "loop at module level"),
    Entry("functions", "functions and a main guard; evaluates each epoch", evaluation="off"),
    Entry("trainer_class", "Trainer class, callbacks, schedule, clipping, dict batches"),
    Entry("package", "python -m package.module", "zoo_package.train", launcher=("-m",)),
    Entry("config_file", "options from a JSON file; next(iterator) instead of for"),
    Entry("gan", "two optimizers, two losses a step", backward=lambda n: 2 * n),
    Entry("lbfgs", "closure called four times a step", backward=lambda n: 4 * n, loader=False),
    Entry("grad_accumulation", "four backward calls a step", backward=lambda n: 4 * n),
    Entry("grad_scaler", "GradScaler on the CPU; skips update 3", steps=lambda n: n - (n > 2)),
    Entry("several_loaders", "two loaders zipped, a third for validation", evaluation="off"),
    Entry("iterable_dataset", "endless IterableDataset"),
    Entry("hand_indexed", "no DataLoader: tensors indexed by hand", loader=False),
    Entry("hand_sgd", "bare tensors, SGD by hand", boundary="backward", loader=False),
    Entry("hand_adam", "Adam class by hand", boundary="backward"),
    Entry("eval_with_grad", "evaluates every 4 steps recording gradients", evaluation="on"),
    _workers("workers_0", "num_workers 0, random numbers in the dataset", "--workers", "0"),
    _workers("workers_fork", "2 workers, default start"),
    _workers("workers_persistent", "2 persistent workers", "--persistent"),
    _workers("workers_spawn", "2 spawned workers", *SPAWNED, slow=True),
    Entry("checkpoints", "torch.save of state_dict and of the whole module"),
    Entry("compiled", "torch.compile, backend eager"),
    Entry(
        "compiled_inductor",
        "torch.compile, backend inductor",
        script="compiled.py",
        args=("--backend", "inductor"),
        needs=("g++",),
        slow=True,
    ),
    Entry("own_profiler", "torch.profiler of its own", own_profilers=("torch.profiler",)),
    Entry("own_cprofile", "cProfile of its own", loader=False, own_profilers=("cProfile",)),
    Entry("separate_modules", "several modules called one after another"),
    Entry("loss_in_model", "model returns an output object with the loss (Hugging Face)"),
    Entry("module_trainer", "backward inside optimizer.step (Lightning)", evaluation="off"),
    Entry("generator_loader", "batches from a generator", loader=False),
    Entry(
        "own_site",
        "sitecustomize of its own on PYTHONPATH",
        script="own_site/train.py",
        pythonpath="own_site/site",
        loader=False,
    ),
    Entry(
        "ddp",
        "DistributedDataParallel, 2 processes, gloo",
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        processes=2,
        slow=True,
    ),
    Entry("children", "subprocess and fork in the middle of training", loader=False),
    Entry("signals", "handlers for SIGUSR1 and SIGTERM", loader=False),
    _dies("crash", "exception at step 3", 1),
    _dies("os_exit", "os._exit(9) at step 3", 9),
    _dies("sys_exit", "sys.exit(7) at step 3", 7),
    _dies("exit_message", "sys.exit(message) at step 3", 1),
    _dies("sigkill", "SIGKILL at step 3", -9),
    _dies("sigterm", "SIGTERM at step 3", -15),
    _dies("interrupt", "SIGINT at step 3", -2),
    Entry(
        "never_trains",
        "torch without training",
        boundary=None,
        steps=_none,
        backward=_none,
        loader=False,
    ),
    Entry(
        "no_torch",
        "no torch at all",
        boundary=None,
        steps=_none,
        backward=_none,
        result=False,
        loader=False,
    ),
    Entry("catches_all", "swallows BaseException in every step"),
    Entry("in_thread", "trains in a thread that is not the main one"),
    Entry("spawned", "the training process is a spawned child", loader=False, slow=True),
    Entry("progress_bar", "tqdm and warnings on stderr"),
    Entry("autograd_grad", "torch.autograd.grad only", boundary="batch", backward=_none),
    Entry("custom_optimizer", "Optimizer subclass, gradient penalty"),
    Entry("optimizer_in_backward", "an optimizer a parameter, stepped by hooks in backward"),
)

BY_NAME = {entry.name: entry for entry in ZOO}
