"""Small programs to hold, written as users write theirs: nothing of tdiag in them.

They update their weights by hand: the first optimizer of a process imports ``torch._dynamo``, which
takes longer than ``torch`` itself.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from tdiag.duel.side import Program

TRAIN = """
    import os, time, torch
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
    workers = int(os.environ.get("WORKERS", "0"))
    loader = DataLoader(data, batch_size=1, num_workers=workers)
    steps = 0
    for epoch in range(int(os.environ.get("EPOCHS", "100000"))):
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            model.zero_grad()
            loss.backward()
            time.sleep(float(os.environ.get("SLEEP", "0.002")))
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= 0.1 * weight.grad
            steps += 1
            with open(os.environ.get("COUNT", os.devnull), "w") as file:
                file.write(str(steps))
            if steps == int(os.environ.get("FAIL_AT", "-1")):
                raise ValueError("the script's own fault")
    print("trained to the end")
    """


def program(folder: Path, name: str = "side", code: str = TRAIN, **variables: str) -> Program:
    """The program, in a script file of its own."""
    script = folder / f"{name}.py"
    script.write_text(textwrap.dedent(code))
    one_core = {"OMP_NUM_THREADS": "1"}
    return Program(name, (sys.executable, str(script)), folder, {**one_core, **variables})
