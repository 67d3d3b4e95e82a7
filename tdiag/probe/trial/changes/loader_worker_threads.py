"""Libraries compute with this many threads in each DataLoader worker."""

import functools
from typing import Any

from ...patches import hidden
from ...thread_pools import limit
from ..change import ROUNDING, Change, Trial, number

NAME = "loader.worker_threads"


def install(trial: Trial, value: int) -> None:
    """After each worker's first batch, because its libraries are loaded then; the script's own
    ``worker_init_fn`` stays and runs first."""
    import torch
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import fetch

    original = fetch._BaseDatasetFetcher.__init__

    def limit_all() -> None:
        before = torch.get_num_threads()
        changed = []
        if before != value:
            torch.set_num_threads(value)
            changed = [f"torch {before} → {value}"]
        changed += limit(value)
        if changed:
            trial.applied(NAME, f"threads in workers: {', '.join(changed)}")
        else:
            trial.refused(NAME, f"libraries have {value} threads in workers already")

    def first(fetcher: Any, *args: Any) -> Any:
        del fetcher.fetch  # later batches skip this
        batch = fetcher.fetch(*args)
        trial.probe.guard(limit_all)()
        return batch

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if get_worker_info() is not None:
            self.fetch = functools.partial(first, self)

    hidden(first)
    trial.patches.set(fetch._BaseDatasetFetcher, "__init__", hidden(init))


CHANGE = Change(
    name=NAME,
    does="Libraries compute with this many threads in each DataLoader worker.",
    safety=ROUNDING,
    takes="N",
    parse=number(1),
    absent="no DataLoader has workers",
    limits="only torch, OpenCV, numexpr, OpenBLAS, MKL and OpenMP; pools of other libraries, and of"
    " libraries loaded after a worker's first batch, do not change",
    edit="DataLoader(..., worker_init_fn=f), where f calls threadpoolctl.threadpool_limits(N) and"
    " cv2.setNumThreads(N)",
    install=install,
)
