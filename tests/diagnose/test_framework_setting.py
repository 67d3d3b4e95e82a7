"""The line that makes a framework's setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.diagnose.framework_setting import made_at
from tdiag.model.place import Place

SCRIPT = """\
def main():
    arguments = TrainingArguments(
        output_dir="out",
        eval_strategy="steps",
        eval_steps=25,
        save_strategy="epoch",
        logging_steps=5,
    )
    trainer = Trainer(arguments)
    trainer.train()
    other = TrainingArguments("b", logging_steps=1)
    trainer.evaluate()
"""


@pytest.mark.parametrize(
    ("line", "code", "driver", "found"),
    [
        (10, "TD802", "transformers", 5),  # the number rather than the word
        (10, "TD803", "transformers", 6),  # the word alone
        (10, "TD804", "transformers", 10),  # two of them: which?
        (10, "TD201", "transformers", 10),  # not set
        (10, "TD502", "transformers", 10),  # no setting of the framework
        (12, "TD802", "transformers", 12),  # the script's own evaluation
        (10, "TD802", "", 10),  # the script's own loop
        (10, "TD802", "lightning", 10),  # which trains by fit()
    ],
)
def test_a_finding_at_the_call_that_trains_moves_to_the_setting(
    line: int, code: str, driver: str, found: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    at = Place(str(script), line, "main")
    moved = made_at(at, code, driver, ())
    assert moved == Place(str(script), found, "main")


def test_no_place_and_no_source_stay_as_they_are(tmp_path: Path) -> None:
    assert made_at(None, "TD802", "transformers", ()) is None
    gone = Place(str(tmp_path / "gone.py"), 10)
    assert made_at(gone, "TD802", "transformers", ()) is gone
