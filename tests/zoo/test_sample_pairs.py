"""The sample scripts: each fixed twin learns what its slow one learns."""

import os
import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import warm

SAMPLES = Path(__file__).parents[2] / "sample_scripts"
PAIRS = ("io_reads", "cpu_decode", "python_loss", "compute", "overhead", "debugging", "h2d")
READS_FILES = ("io_reads", "cpu_decode")
# Where the fix sums in another order (1e-4) or rounds to float32 (1e-2); the others agree to every
# printed digit.
TOLERANCE = {"python_loss": 1e-4, "overhead": 1e-4, "compute": 1e-2}


def last_loss(script: str, *options: str) -> float:
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = warm.run([f"{script}.py", "--steps", "4", *options], SAMPLES, environ)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^4 steps, \S+ ms each, last loss (\S+)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return float(found[1])


def test_every_slow_sample_has_a_twin_and_the_healthy_one_needs_none() -> None:
    names = {path.stem for path in SAMPLES.glob("*.py")}
    assert names == {*PAIRS, *(f"{name}_fixed" for name in PAIRS), "healthy"}


@pytest.mark.parametrize("name", PAIRS)
def test_the_fixed_twin_reaches_the_same_loss(name: str, tmp_path: Path) -> None:
    options = ["--data", str(tmp_path), "--samples", "48"] if name in READS_FILES else []
    slow, fixed = last_loss(name, *options), last_loss(f"{name}_fixed", *options)
    assert fixed == pytest.approx(slow, rel=TOLERANCE.get(name, 0.0), abs=0.0)


def loss_and_gradients(script: str, batch: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
    first, second = (side.clone().requires_grad_() for side in batch[:2])
    loss = runpy.run_path(str(SAMPLES / script))["instance_loss"](first, second, batch[2])
    return [loss, *torch.autograd.grad(loss, [first, second])]


def test_the_vectorised_instance_loss_is_the_loop_s_value_and_gradient() -> None:
    random = torch.Generator().manual_seed(5)
    first, second = torch.randn(2, 200, 64, generator=random)
    second = torch.where(torch.rand(200, 1, generator=random) < 0.5, first + second, second)
    labels = torch.where(torch.rand(200, generator=random) < 0.5, 1, -1)
    loop = loss_and_gradients("python_loss.py", (first, second, labels))
    expression = loss_and_gradients("python_loss_fixed.py", (first, second, labels))
    assert loop[0] > 0
    torch.testing.assert_close(expression, loop, rtol=1e-4, atol=1e-6)


def test_cold_reads_reach_the_disk_in_every_epoch(tmp_path: Path) -> None:
    names = runpy.run_path(str(SAMPLES / "io_reads.py"))
    names["make_data"](tmp_path, 4)
    files = names["FeatureFiles"](tmp_path)
    assert [files[i] for i in range(4)]  # drops the pages that writing left behind
    before = bytes_read_from_disk()
    assert [files[i] for i in range(4)]
    read = bytes_read_from_disk() - before
    if read == 0 and not has_a_disk(tmp_path):
        pytest.skip("the temporary folder is not on a disk")
    assert read >= 4 * 512 * 1024


def bytes_read_from_disk() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("read_bytes")))


def has_a_disk(folder: Path) -> bool:
    """False on tmpfs and the like, whose device has the major number 0."""
    return os.major(folder.stat().st_dev) != 0
