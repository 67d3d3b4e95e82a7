"""Reads many trace files at once: by processes here, or on a Dask or Ray cluster of the user's.

One task a file. It is read where the task runs, and what comes back is its evidence, some kilobytes
instead of the trace. A worker that dies costs its task one more try; results keep the files' order.
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
TRIES = 3  # of a file whose reader was killed; so often Dask's scheduler tries by itself

Found = TracedFile | RunError
Read = Callable[[Path], Found]
Tasks = Iterator[tuple[int, Callable[[], Found]]]  # a file's number, and what gives its result


def read_many(
    paths: Sequence[Path], executor: str, progress: Progress | None = None, read: Read | None = None
) -> list[Found]:
    """The evidence of each file, in order, or why it has none. ``executor``: ``processes``,
    ``dask://HOST:PORT`` or ``ray://HOST:PORT`` (without host and port: a cluster of this machine's,
    for the time being). ``progress``: files done, files in all. Raises UsageError for another
    executor, or one that does not answer."""
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
    """What a task gave, by the name that the user gave the file."""
    try:
        found = result()
    except Exception as error:  # whatever a cluster raises: a worker killed too often, no tdiag
        why = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return RunError(f"{path.name}: its reader ended early: {why}")
    return found.at(path) if isinstance(found, TracedFile) else found


def read_alone(path: Path) -> Found:
    """What a worker does. Its other cores have files of their own to read."""
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
    except Exception as error:  # Ray raises that very class, too
        why = str(error).strip().splitlines()[0]
        raise UsageError(f"no Ray cluster answers at {address}: {why}") from None
    try:
        task = ray.remote(max_retries=TRIES - 1)(_call)  # it takes functions alone
        pending = {task.remote(read, path): number for number, path in enumerate(paths)}
        while pending:
            (done,), _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(done), partial(ray.get, done)
    finally:
        ray.shutdown()
