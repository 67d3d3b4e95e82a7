"""What the probe sees of checkpoints, by whichever function they are saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.evidence.steps import Phases
from tdiag.evidence.training import Savers

from .harness import watch_code

SCRIPT = """
import torch
{imports}
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.ones(8, 256)).sum().backward()
    optimizer.step()
    if step % 10 == 0:
        {save}
"""
WAYS = {
    "torch.save": ("", "torch.save(model.state_dict(), 'last.pt')"),
    "safetensors.torch.save_file": (
        "from safetensors.torch import save_file as keep",
        "keep(model.state_dict(), 'last.safetensors')",
    ),
    "safetensors.torch.save_model": (
        "import safetensors.torch",
        "safetensors.torch.save_model(model, 'last.safetensors')",
    ),
    "torch.distributed.checkpoint.save": (
        "import torch.distributed.checkpoint as dcp",
        "dcp.save(model.state_dict(), checkpoint_id='last', no_dist=True)",
    ),
    # It writes to memory first, and then to the file.
    "Fabric.save": (
        "from lightning.fabric import Fabric",
        "Fabric(accelerator='cpu').save('last.ckpt', {'model': model})",
    ),
    "torch.jit.save": (
        "still = torch.jit.trace(torch.nn.Linear(256, 256), torch.ones(8, 256))",
        "torch.jit.save(still, 'last.pt')",
    ),
    # It runs the model, which is no evaluation then.
    "torch.export.export": (
        "import torch.export",
        "torch.export.export(model, (torch.ones(8, 256),))",
    ),
}


def needs(name: str) -> list[pytest.MarkDecorator]:
    """safetensors and Fabric come with the extra ``frameworks``; ten exports take seconds."""
    slow = name.startswith(("safetensors", "torch.export", "Fabric"))
    return [pytest.mark.training] if slow else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in WAYS])
def test_a_save_is_a_checkpoint_once(tmp_path: Path, name: str) -> None:
    imports, save = WAYS[name]
    script = SCRIPT.format(imports=imports, save=save.replace("'last", f"'{tmp_path}/last"))
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=100)
    assert run.returncode == 0 and run.of("failure") == []
    evidence = run.evidence()
    phases, savers = evidence.get(Phases), evidence.get(Savers)
    assert phases is not None and savers is not None
    assert phases.counts["checkpoint"] == pytest.approx(0.1, abs=0.03)
    assert "evaluation" not in phases.wall_ns
    (saver,) = savers.savers
    assert (saver.name, saver.at and saver.at.line) == (name, 11)


def test_a_run_that_never_saves_names_nobody(tmp_path: Path) -> None:
    script = SCRIPT.format(imports="", save="pass")
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=60)
    savers = run.evidence().get(Savers)
    assert savers is not None and savers.savers == ()


def test_what_is_saved_within_forward_or_backward_is_no_checkpoint(tmp_path: Path) -> None:
    """Activations on a disk."""
    hooks = f"""
def pack(x):
    torch.save(x, {str(tmp_path / "x.pt")!r})
    return x
pushed = torch.autograd.graph.saved_tensors_hooks(pack, pack)
pushed.__enter__()"""
    script = SCRIPT.format(imports=hooks, save="pass")
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    evidence = run.evidence()
    phases, savers = evidence.get(Phases), evidence.get(Savers)
    assert phases is not None and "checkpoint" not in phases.wall_ns
    assert savers is not None and savers.savers == ()


FRAMEWORK = """
import time
import torch
class Accelerator:
    def save_state(self, folder, model):
        time.sleep(0.002)  # gathers the states
        torch.save(model.state_dict(), folder + "/model.pt")
        torch.save(torch.get_rng_state(), folder + "/random.pt")
        return "saved"
"""
SAVES = "assert Accelerator().save_state({folder!r}, model) == 'saved'"


def test_a_checkpoint_of_a_framework_is_all_that_it_does_for_it(tmp_path: Path) -> None:
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "accelerator.py").write_text(FRAMEWORK)
    imports, save = (
        "from accelerate.accelerator import Accelerator",
        SAVES.format(folder=str(tmp_path)),
    )
    script = SCRIPT.format(imports=imports, save=save)
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=100)
    assert run.returncode == 0 and run.of("failure") == [], run.err
    evidence = run.evidence()
    phases, savers = evidence.get(Phases), evidence.get(Savers)
    assert phases is not None and savers is not None
    assert phases.counts["checkpoint"] == pytest.approx(0.1, abs=0.03)
    assert phases.checkpoint_ns_each is not None and phases.checkpoint_ns_each > 2e6
    (saver,) = savers.savers
    assert (saver.name, saver.at and saver.at.line) == ("Accelerator.save_state", 11)


def test_a_framework_without_that_method_is_left_as_it_is(tmp_path: Path) -> None:
    package = tmp_path / "accelerate"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "accelerator.py").write_text(FRAMEWORK.replace("save_state", "store"))
    imports = "from accelerate.accelerator import Accelerator"
    save = SAVES.format(folder=str(tmp_path)).replace("save_state", "store")
    script = SCRIPT.format(imports=imports, save=save)
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=100)
    assert run.returncode == 0 and run.of("failure") == [], run.err
    savers = run.evidence().get(Savers)
    assert savers is not None
    assert {saver.name for saver in savers.savers} == {"torch.save"}


def test_a_save_hides_no_cpu_time_of_a_batch_made_by_hand(tmp_path: Path) -> None:
    save = f"torch.save(model.state_dict(), '{tmp_path}/last.pt'); sum(range(200_000))"
    script = SCRIPT.format(imports="", save=save).replace("step % 10 == 0", "True")
    run = watch_code(tmp_path, script, windows=["baseline"], profiling=True, steps=60)
    assert run.returncode == 0 and run.of("failure") == []
    phases = run.evidence().get(Phases)
    assert phases is not None and phases.counts["checkpoint"] == pytest.approx(1, abs=0.1)
    assert phases.cpu_ns["prepare"] > 0
