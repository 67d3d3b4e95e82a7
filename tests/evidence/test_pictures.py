"""What fetches decoded and scaled down."""

from __future__ import annotations

from pathlib import Path

from tdiag.evidence.feeding import Loaders, Pictures
from tdiag.evidence.from_run import load_run

from .making import MS, TRAIN, Run, loader, plain


def test_records_of_fetches_become_means_over_all_of_them(tmp_path: Path) -> None:
    run = Run(tmp_path)
    loader(run, batch_size=8, at=["/u/train.py", 5, "<module>"])
    run.steps(30, plain)
    told = {
        "decoded": 8, "shrunk": [[4, 2, 8, 8 * MS, 4 * MS, 2 * MS]],
        "at": ["/u/data.py", 9, "read"], "size": [1024, 768], "to": [224, 168],
    }  # fmt: skip
    for number, pictures in enumerate((told, told, {"decoded": 8}, None)):
        run.add(
            "fetch", t=run.now - (50 + number) * MS, wall=20 * MS, loader=TRAIN, worker=None,
            load=20 * MS, load_cpu=20 * MS, collate=0, collate_cpu=0, pictures=pictures,
        )  # fmt: skip
    known = load_run(run.write()).get(Loaders)
    assert known is not None
    pictures = known.loaders[0].pictures
    assert isinstance(pictures, Pictures)
    (part,) = pictures.shrunk
    assert (pictures.decoded, part.pictures, part.decode_ns) == (6.0, 4.0, 4.0 * MS)
    assert (part.scale, part.careful_scale, part.resize_ns) == (4, 2, 2.0 * MS)
    assert part.between_ns == 1.0 * MS
    assert pictures.at is not None and (pictures.at.line, pictures.size) == (9, (1024, 768))
