"""Whose line a fetch is, where a library's dataset does the work."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tdiag.rules.examples import at, stack, stacks

from .test_td101_td2xx_input import CPU_FETCH, ONE_CORE, TWO_FULL, run, starved

LOADING = "load (PIL/ImageFile.py)"
IMAGE_FOLDER = {
    **CPU_FETCH,
    "dataset_class": "ImageFolder",
    "dataset_at": at(245, "__getitem__", "/env/lib/python3.11/site-packages/torchvision/folder.py"),
}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loop_over_a_librarys_dataset_stands_for_the_loader(workers: int) -> None:
    """Its function trains as well, so the samples below it are the dataset's."""
    taking = stack(43, 0.6, LOADING, "data_wait", function="main")
    training = (stack(44, 0.2, phase="backward", function="main"), taking)
    evidence = starved(IMAGE_FOLDER, TWO_FULL, workers).add(
        stacks(training, (replace(taking, phase=""),) if workers else ())
    )
    found = run(evidence)["TD202"]
    assert found.location is not None and found.location.line == 41
    assert f"the work of ImageFolder ({LOADING}) for the loader at train.py:41" in found.fix.text


def test_torchs_own_collating_under_the_loop_is_no_line_of_the_users() -> None:
    collating = stack(43, 0.5, "collate_tensor_fn (_utils/collate.py)", "data_wait", "main")
    mine = stack(15, 0.3, "resize (PIL/Image.py)", "data_wait", "__getitem__")
    training = (stack(44, 0.2, phase="backward", function="main"), collating, mine)
    found = run(starved(CPU_FETCH, ONE_CORE).add(stacks(training)))["TD202"]
    assert found.location is not None and found.location.line == 15


def test_a_loop_is_told_by_its_text_where_another_function_trains(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("for batch in loader:\n    step(batch)\n")
    taking = replace(stack(1, 0.6, LOADING, "data_wait", "fit"), at=at(1, "fit", str(script)))
    found = run(starved(IMAGE_FOLDER, ONE_CORE).add(stacks((taking,))))["TD202"]
    assert found.location is not None and found.location.line == 41


def test_a_loop_of_the_datasets_own_is_no_loop_over_a_loader(tmp_path: Path) -> None:
    """It goes over the lines of a file, below ``__getitem__``."""
    script = tmp_path / "genome.py"
    script.write_text("for line in file:\n    parts.append(line)\n")
    going = stack(1, 0.6, "fetch_sequence (src/genome.py)", "data_wait", "fetch_sequence")
    mine = replace(going, at=at(1, "fetch_sequence", str(script)))
    found = run(starved(CPU_FETCH, ONE_CORE).add(stacks((mine,))))["TD202"]
    assert found.location is not None and found.location.file == str(script)
