"""A run directory behind a URL, through fsspec: ``s3://bucket/runs/7``.

Each machine of a job writes its run directory on its own disk and copies it to
``<URL>/nodes/<name>`` when it ends. The last machine to end copies the others' run directories
here, makes the report, and copies that to ``<URL>``. While the program runs, nothing depends on
the network. A run that cannot be copied stays on its machine.
"""

from __future__ import annotations

import json
import platform
import re
import secrets
import shlex
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from tdiag.errors import OccupiedError, RunError, UsageError
from tdiag.launch.joining import alike, has_parts
from tdiag.launch.target import Target
from tdiag.probe.wire import CONTROL, NODES, RUN

URL = re.compile(r"[a-zA-Z][\w+.-]*://")
# They have no folders: a name exists once a file is put there. Making a "folder" might make a
# bucket.
OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss"}
INSTALL = "pip install 'tdiag[fsspec]', and for s3:// s3fs, for gs:// gcsfs, for az:// adlfs"


def is_url(text: object) -> bool:
    return URL.match(str(text)) is not None


class Folder:
    """The folder or file that a URL names. Raises UsageError for an unusable URL; each method
    raises RunError if the store refuses."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.part = ""  # this machine's folder below it
        try:
            core: Any = import_module("fsspec.core")
            self.fs, path = core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:  # fsspec or the protocol's package is missing
            raise UsageError(f"cannot use {url}: {error}", INSTALL) from None
        except Exception as error:  # each store raises its own errors, also below
            raise _refused(url, error) from None
        self.root = str(path).rstrip("/")

    def join(self, target: Target, command: Sequence[str]) -> None:
        """Begin this machine's part of a run, before the program starts. Raises OccupiedError if
        the folder contains anything but the same job, under way."""
        with self._told():
            found = [name for name in self._names("") if not name.startswith(f"{NODES}/")]
        records = self.records()
        hint = "name a new URL; other machines can join only a job that is under way"
        others = [record.get("command") or () for record in records.values()]
        if found or (records and not has_parts(target)):
            raise OccupiedError(f"{self.url} is not empty", hint)
        if different := [words for words in others if alike(words) != alike(command)]:
            said = shlex.join(map(str, different[0]))
            raise OccupiedError(f"another job is in {self.url}: {said}", hint)
        if records and all(record.get("end_unix_ns") for record in records.values()):
            raise OccupiedError(f"the job in {self.url} has ended", hint)
        host = re.sub(r"[^\w.-]+", "_", platform.node()) or "node"
        self.part = f"{NODES}/{host}-{secrets.token_hex(3)}"
        begun = {"command": list(command), "hostname": platform.node(), "end_unix_ns": None}
        with self._told():
            self._put(f"{self.part}/{RUN}", json.dumps(begun).encode())

    def withdraw(self) -> None:
        """Remove this part: the program was not started."""
        with self._told():
            self.fs.rm_file(self._at(self.part, RUN))

    def leave(self, run_dir: Path, whole: bool) -> tuple[str, ...]:
        """Copy this machine's run directory there, ``run.json`` last (only ``run.json`` unless
        ``whole``). Then, if all machines have ended, copy the others' run directories here. Returns
        the names of the machines on which the job still runs."""
        with self._told():
            for file in sorted(run_dir.rglob("*")) if whole else ():
                name = file.relative_to(run_dir).as_posix()
                if file.is_file() and name != RUN and not name.startswith(f"{CONTROL}/"):
                    self._put(f"{self.part}/{name}", file)
            self._put(f"{self.part}/{RUN}", run_dir / RUN)
        records = {part: r for part, r in self.records().items() if part != self.part}
        awaited = tuple(str(r["hostname"]) for r in records.values() if not r.get("end_unix_ns"))
        if not awaited and whole:
            for part in records:
                self.copy(run_dir / part, part)
        return awaited

    def put(self, *files: Path) -> None:
        """Copy the report's files there, next to the machines' folders."""
        with self._told():
            for file in files:
                if file.is_file():
                    self._put(file.name, file)

    def copy(self, here: Path, part: str = "", wanted: Callable[[str], bool] = bool) -> None:
        """Copy the files there into the folder ``here``: those whose names are ``wanted``."""
        with self._told():
            for name in filter(wanted, self._names(part)):
                if ".." in PurePosixPath(name).parts:
                    raise OSError(f"a file name points outside the folder: {name}")
                file = here / name
                file.parent.mkdir(parents=True, exist_ok=True)
                self.fs.get_file(self._at(part, name), str(file))

    def names(self, wanted: Callable[[str], bool] = bool) -> list[str]:
        """The names of the files there, relative to the folder; of a file "" alone."""
        with self._told():
            if self.fs.isfile(self.root):
                return [""]
            return [name for name in self._names("") if wanted(name)]

    def copy_file(self, here: Path) -> Path | None:
        """If the URL names a file, its copy in this folder."""
        with self._told():
            if not self.fs.isfile(self.root):
                return None
            file = here / PurePosixPath(self.root).name
            self.fs.get_file(self.root, str(file))
            return file

    def records(self) -> dict[str, dict[str, Any]]:
        """``run.json`` of each machine, by its folder."""
        with self._told():
            names = filter(re.compile(f"{NODES}/[^/]+/{RUN}").fullmatch, self._names(""))
            return {
                name.removesuffix(f"/{RUN}"): json.loads(self.fs.cat(self._at(name)))
                for name in names
            }

    def _names(self, part: str) -> list[str]:
        """The names of the files there, relative to ``part``."""
        at = self._at(part)
        self.fs.invalidate_cache()
        try:
            found = self.fs.find(at)
        except FileNotFoundError:
            return []
        return sorted(str(name).removeprefix(at).lstrip("/") for name in found)

    def _at(self, *names: str) -> str:
        return "/".join(filter(None, (self.root, *names)))

    def _put(self, name: str, content: Path | bytes) -> None:
        at = self._at(name)
        if self.url.partition("://")[0] not in OBJECT_STORES:
            self.fs.makedirs(at.rpartition("/")[0], exist_ok=True)
        if isinstance(content, bytes):
            self.fs.pipe_file(at, content)
        else:
            self.fs.put_file(str(content), at)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RunError:
            raise
        except Exception as error:
            raise _refused(self.url, error) from None


def _refused(url: str, error: Exception) -> RunError:
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "check the URL, the credentials and the right to write, or use a folder: --run-dir DIR"
    return RunError(f"cannot use {url}: {what}", hint)


@contextmanager
def fetched(url: str, wanted: Callable[[str], bool] = bool) -> Iterator[Path]:
    """A temporary copy of what the URL names: a run, a file or a folder of traces. The parts of
    several machines become one run directory."""
    folder = Folder(url)
    with tempfile.TemporaryDirectory(prefix="tdiag-") as temporary:
        here = Path(temporary) / (PurePosixPath(folder.root).name or "run")
        here.mkdir()
        if (file := folder.copy_file(here)) is not None:
            yield file
            return
        folder.copy(here, wanted=wanted)
        if not any(here.iterdir()):
            raise RunError(f"{url} contains nothing that can be read", "check the URL")
        parts = sorted((here / NODES).glob(f"*/{RUN}"), key=_began)
        if parts and not (here / RUN).exists():
            for entry in list(parts[0].parent.iterdir()):
                if not (here / entry.name).exists():
                    entry.rename(here / entry.name)
        yield here


@contextmanager
def listed(
    url: str, wanted: Callable[[str], bool] = bool
) -> Iterator[tuple[Path, dict[Path, str]]]:
    """What the URL names, without copying it: a temporary file, or a folder of files, all of them
    empty, and the URL of each file."""
    folder = Folder(url)
    with tempfile.TemporaryDirectory(prefix="tdiag-") as temporary:
        here = Path(temporary) / (PurePosixPath(folder.root).name or "traces")
        there = {here / name: f"{folder.url}/{name}".rstrip("/") for name in folder.names(wanted)}
        if not there:
            raise RunError(f"{url} contains nothing that can be read", "check the URL")
        for file in there:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        yield here, there


def _began(record: Path) -> int:
    return int(json.loads(record.read_text()).get("start_unix_ns") or 0)
