"""The storage of the data, tried after the run."""

from __future__ import annotations

from tdiag.model.kind import Kind


class Storage(Kind, frozen=True, kw_only=True):
    """Some files of the folder that fetches opened most files in, read cold there and, as copies,
    on a disk of the machine's own.

    ``bytes`` of ``files`` files took ``ns`` in ``folder`` and ``local_ns`` in ``local``. All of
    these are None where there is no other disk to compare with. Filesystem types as the system
    names them ("nfs4", "ext4"), "" = unknown.
    """

    folder: str
    filesystem: str
    local: str | None = None
    local_filesystem: str = ""
    local_free_bytes: int | None = None
    files: int | None = None
    bytes: int | None = None
    ns: int | None = None
    local_ns: int | None = None
