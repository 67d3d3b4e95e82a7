"""Pictures decoded in full and then scaled down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders, Pictures
from tdiag.evidence.from_run import load_run
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.base import Gain
from tdiag.rules.catalogue import find, needs
from tdiag.rules.examples import at, stack, stacks
from tests.evidence.making import MS, TRAIN, Run, loader, plain

RULE = find("TD220")


def loader_with(**changes: Any) -> Evidence:
    evidence = RULE.fires()
    known = evidence.get(Loaders)
    assert known is not None and known.loaders[0].pictures is not None
    pictures = replace(known.loaders[0].pictures, **changes)
    return evidence.add(Loaders(loaders=(replace(known.loaders[0], pictures=pictures),)))


def found(**changes: Any) -> Finding:
    finding = run_rule(RULE, loader_with(**changes))
    assert isinstance(finding, Finding), finding
    return finding


def gain(
    scale: int, careful: int, decode_ms: float, resize_ms: float, between_ms: float = 0.0
) -> Gain:
    """Of such pictures, in the example: a fetch of 60 ms that makes a step of 80 ms."""
    evidence = RULE.fires()
    known = evidence.get(Loaders)
    assert known is not None and known.loaders[0].pictures is not None
    one = replace(
        known.loaders[0].pictures.shrunk[0],
        scale=scale,
        careful_scale=careful,
        decode_ns=decode_ms * MS,
        resize_ns=resize_ms * MS,
        between_ns=between_ms * MS,
    )
    changed = loader_with(shrunk=(one,))
    kinds = {name: changed.get(kind) for name, (kind, _) in needs(RULE).items()}
    result = RULE.check(**kinds)
    assert result is not None and result.gain is not None
    return result.gain


def test_the_gain_follows_decoding_and_scaling() -> None:
    halved = gain(2, 1, 30, 0)
    assert halved.low_ns == 0  # twice the size cannot be drafted
    assert halved.high_ns == pytest.approx(80 * MS * 0.72 * 30 / 60, rel=0.02)
    turned = gain(2, 2, 0, 0, between_ms=20)  # at best: it may have nothing to do with pixels
    assert turned.low_ns == 0
    assert turned.high_ns == pytest.approx(80 * MS * 0.75 * 20 / 60, rel=0.02)
    scaled = gain(8, 4, 0, 40)
    assert scaled.low_ns == pytest.approx(80 * MS * (1 - 0.75 / 4) * 40 / 60, rel=0.02)
    assert scaled.high_ns == pytest.approx(80 * MS * (1 - 0.25 / 8) * 40 / 60, rel=0.02)


def test_a_librarys_dataset_is_named_by_the_line_that_makes_the_loader() -> None:
    assert found(at=None).location == at(12, "__getitem__")
    known = RULE.fires().get(Loaders)
    assert known is not None
    theirs = replace(known.loaders[0], dataset_at=at(1, "load", "/x/site-packages/tv/folder.py"))
    finding = run_rule(
        RULE,
        RULE.fires().add(
            Loaders(loaders=(replace(theirs, pictures=replace(theirs.pictures, at=None)),))  # type: ignore[type-var]
        ),
    )
    assert isinstance(finding, Finding) and finding.location == at(41)


def test_it_comes_before_the_line_that_decodes_and_before_more_workers() -> None:
    decoding = stack(14, 0.75, "load (PIL/ImageFile.py)", function="__getitem__")
    evidence = loader_with().add(stacks(workers=(decoding,)))
    codes = [finding.code for finding in diagnose(evidence).findings]
    assert codes.index("TD220") < codes.index("TD218")
    assert "TD201" not in codes or codes.index("TD220") < codes.index("TD201")


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
