"""Settings of a trial that the script sets itself, by another name."""

from __future__ import annotations

from pathlib import Path

from .scripts import run

TF32 = "torch.backends.cuda.matmul.allow_tf32"


def test_the_precision_stays_where_the_script_forbids_tf32(tmp_path: Path) -> None:
    change = ("torch.float32_matmul_precision", "high")
    shown, said = run(tmp_path, [change], TF32, code=f"\n{TF32} = False\n")
    assert shown == "True"
    assert (change[0], "applied", "highest → high") in said
