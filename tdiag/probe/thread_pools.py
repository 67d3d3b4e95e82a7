"""The thread pools of libraries in this process, through their own functions (like
threadpoolctl)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

# By prefix of a library's file name: pairs of functions that get and set its number of threads.
# NumPy and SciPy build OpenBLAS with their own prefix and suffix.
_OPENBLAS = tuple(
    (f"{p}openblas_get_num_threads{s}", f"{p}openblas_set_num_threads{s}")
    for p in ("", "scipy_")
    for s in ("", "64_", "_64")
)
_OPENMP = (("omp_get_max_threads", "omp_set_num_threads"),)
_OF_FILES = {
    "libopenblas": _OPENBLAS,
    "libscipy_openblas": _OPENBLAS,
    "libmkl_rt": (("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),),
    "libgomp": _OPENMP,
    "libiomp": _OPENMP,
    "libomp": _OPENMP,
}
_TORCHS = ("gomp", "iomp", "omp", "mkl_rt")
_OF_MODULES = {
    "cv2": ("getNumThreads", "setNumThreads"),
    "numexpr": ("get_num_threads", "set_num_threads"),
}


def counts() -> dict[str, int]:
    """How many threads the pools of NumPy's and other libraries have, without OpenMP's, which
    torch computes with."""
    return {name: count() for name, count, _ in _pools() if name not in _TORCHS}


def limit(threads: int) -> list[str]:
    """Give each pool this many threads. Returns what changed, such as ``openblas 8 → 1``."""
    changed = []
    for name, count, set_count in _pools():
        before = count()
        if before != threads:
            set_count(threads)
            changed.append(f"{name} {before} → {threads}")
    return changed


def _pools() -> Iterator[tuple[str, Callable[[], int], Callable[[int], Any]]]:
    for path in _loaded():
        file = os.path.basename(path)
        for start, functions in _OF_FILES.items():
            if file.startswith(start):
                try:
                    library = ctypes.CDLL(path)  # the copy that is already loaded
                except OSError:  # its file was replaced since
                    continue
                for get, put in functions:
                    if hasattr(library, get) and hasattr(library, put):
                        yield start[3:], getattr(library, get), getattr(library, put)
    for name, (get, put) in _OF_MODULES.items():
        module = sys.modules.get(name)
        if hasattr(module, get) and hasattr(module, put):
            yield name, getattr(module, get), getattr(module, put)


def _loaded() -> list[str]:
    """Paths of the shared libraries loaded in this process; none where Linux does not list them."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            paths = {line.rstrip("\n").partition("/")[2] for line in file}
    except OSError:
        return []
    return sorted(f"/{path}" for path in paths if ".so" in path)
