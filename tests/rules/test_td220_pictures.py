"""Pictures decoded in full and then scaled down."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tdiag.diagnose import diagnose
from tdiag.diagnose.engine import run_rule
from tdiag.evidence.feeding import Loaders
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Finding
from tdiag.rules.base import Gain
from tdiag.rules.catalogue import find, needs
from tdiag.rules.examples import MS, at, stack, stacks

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
