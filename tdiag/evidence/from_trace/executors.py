"""Reads many trace files at once: in processes here, or on the user's Dask or Ray cluster.

One task per file. The file is read where the task runs; what comes back is its evidence, some
kilobytes instead of the trace. If a worker dies, its task is tried once more. Results keep the
order of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from tdiag.errors import RunError, UsageError
from tdiag.evidence.from_trace.trace_files import TracedFile, in_children, or_error
from tdiag.trace.inflate import Progress

PROCESSES, DASK, RAY = "processes", "dask://", "ray://"
INSTALL = "install it here and on its workers: pip install 'tdiag[{}]'"
CONNECT_WITHIN = "20s"
TRIES = 3  # attempts per file if its reader is killed; the default of Dask's scheduler

Found = TracedFile | RunError
Read = Callable[[Path], Found]
Tasks = Iterator[tuple[int, Callable[[], Found]]]  # index of a file → its result


def read_many(
    paths: Sequence[Path], executor: str, progress: Progress | None = None, read: Read | None = None
) -> list[Found]:
    """The evidence of each file, in order, or the error that prevented it. ``executor``:
    ``processes``, ``dask://HOST:PORT`` or ``ray://HOST:PORT`` (without host and port: a temporary
    cluster on this machine). ``progress``: files done, files in all. Raises UsageError for another
    executor, or if the cluster does not answer."""
    there = [path.absolute() for path in paths]
    if executor == PROCESSES:
        tasks: Tasks = ((n, partial(_same, one)) for n, one in enumerate(in_children(paths)))
    elif executor.startswith(DASK):
        tasks = _on_dask(executor.removeprefix(DASK), there, read or read_alone)
    elif executor.startswith(RAY):
        tasks = _on_ray(executor, there, read or read_alone)
    else:
        raise UsageError(
            f"--executor {executor} is not known", f"there are: {PROCESSES}, {DASK}…, {RAY}…"
        )
    found: dict[int, Found] = {}
    for number, result in tasks:
        found[number] = _settled(result, paths[number])
        if progress is not None:
            progress(len(found), len(paths))
    return [found[number] for number in range(len(paths))]


def _same(found: Found) -> Found:
    return found


def _settled(result: Callable[[], Found], path: Path) -> Found:
    """A task's result, with the file name as the user gave it."""
    try:
        found = result()
    except Exception as error:  # any of a cluster's: worker killed, tdiag not installed
        why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return RunError(f"{path.name}: its reader ended early: {why}")
    return found.at(path) if isinstance(found, TracedFile) else found


def read_alone(path: Path) -> Found:
    """Runs in a worker, in one process: the worker's other cores read other files."""
    return or_error(path, alone=False)


def _call(read: Read, path: Path) -> Found:
    return read(path)


def _on_dask(address: str, paths: Sequence[Path], read: Read) -> Tasks:
    try:
        dask: Any = import_module("distributed")
    except ImportError as error:
        raise UsageError(f"Dask cannot be used: {error}", INSTALL.format("dask")) from error
    try:
        client = dask.Client(address or None, timeout=CONNECT_WITHIN)
    except (OSError, ValueError) as error:
        raise UsageError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        futures = client.map(read, paths, pure=False, retries=TRIES - 1)
        numbers = {future.key: number for number, future in enumerate(futures)}
        for future in dask.as_completed(futures):
            yield numbers[future.key], future.result


def _on_ray(address: str, paths: Sequence[Path], read: Read) -> Tasks:
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise UsageError(f"Ray cannot be used: {error}", INSTALL.format("ray")) from error
    where: dict[str, Any] = {"include_dashboard": False} if address == RAY else {"address": address}
    try:
        ray.init(**where, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises plain Exception, too
        why = str(error).strip().splitlines()[0]
        raise UsageError(f"no Ray cluster answers at {address}: {why}") from None
    try:
        task = ray.remote(max_retries=TRIES - 1)(_call)  # Ray accepts only functions
        pending = {task.remote(read, path): number for number, path in enumerate(paths)}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(done), partial(ray.get, done)
    finally:
        ray.shutdown()
