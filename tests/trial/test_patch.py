"""Edits of what won: only the meant node changes, and what is not plain is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tdiag.model.place import Place
from tdiag.model.trials import Applied, Tried
from tdiag.trial.winning_patch import write

from .patching import FAR_NS, HEAD, WORKERS, after, applied, refused


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("DataLoader(data)", "DataLoader(data, num_workers=4)"),
        ("DataLoader(data, 8,)", "DataLoader(data, 8, num_workers=4,)"),
        ("DataLoader(data, num_workers = 0 , shuffle=True)",
         "DataLoader(data, num_workers = 4 , shuffle=True)"),
        ("DataLoader(data, 8, None, None, None, 0, None)",
         "DataLoader(data, 8, None, None, None, 4, None)"),
        ("torch.utils.data.DataLoader(data)", "torch.utils.data.DataLoader(data, num_workers=4)"),
        ("DataLoader(data, **more, num_workers=0)", "DataLoader(data, **more, num_workers=4)"),
        ("wrap(DataLoader((1, 2), sampler=f(x for x in data)))",
         "wrap(DataLoader((1, 2), sampler=f(x for x in data), num_workers=4))"),
        ("DataLoader(\n    data,  # which\n    batch_size=8,  # large\n    # the end\n)",
         "DataLoader(\n    data,  # which\n    batch_size=8,  # large\n    # the end\n"
         "    num_workers=4,\n)"),
        ("DataLoader(\n\tdata,\n\tbatch_size=8 # large\n)",
         "DataLoader(\n\tdata,\n\tbatch_size=8, # large\n\tnum_workers=4\n)"),
        ("DataLoader(data,\n           batch_size=8)  # all",
         "DataLoader(data,\n           batch_size=8,\n           num_workers=4)  # all"),
        ("DataLoader(\n    data, batch_size=8\n)",
         "DataLoader(\n    data, batch_size=8, num_workers=4\n)"),
        ("DataLoader(\n    data,\n)", "DataLoader(\n    data,\n    num_workers=4,\n)"),
    ],
)  # fmt: skip
def test_an_argument_is_added_or_changed_where_it_is_written(
    before: str, now: str, tmp_path: Path
) -> None:
    code = f"{HEAD}x  =  {before} ; y=[1,2 ]\n"
    assert after(tmp_path, code, WORKERS, 3) == code.replace(before, now)


@pytest.mark.parametrize(
    ("change", "call", "now"),
    [
        ("loader.persistent_workers", "DataLoader(d, num_workers=n)",
         "DataLoader(d, num_workers=n, persistent_workers=True)"),
        ("loader.pin_memory", "DataLoader(d, pin_memory=False)", "DataLoader(d, pin_memory=True)"),
        ("loader.prefetch_factor=8", "DataLoader(d, num_workers=2)",
         "DataLoader(d, num_workers=2, prefetch_factor=8)"),
        ("loader.num_workers=0",
         "DataLoader(d, num_workers=2, prefetch_factor=4, persistent_workers=True)",
         "DataLoader(d, num_workers=0, prefetch_factor=None, persistent_workers=False)"),
        ("optimizer.fused", "torch.optim.Adam(p, 1e-3, foreach=True)",
         "torch.optim.Adam(p, 1e-3, foreach=None, fused=True)"),
        ("optimizer.foreach", "torch.optim.SGD(p, lr=0.1)",
         "torch.optim.SGD(p, lr=0.1, foreach=True)"),
        ("optimizer.zero_grad=set_to_none", "opt.zero_grad(set_to_none=False)",
         "opt.zero_grad(set_to_none=True)"),
        ("torch.anomaly=off", "torch.autograd.set_detect_anomaly(True)",
         "torch.autograd.set_detect_anomaly(False)"),
        ("torch.anomaly=off", "torch.autograd.detect_anomaly()",
         "torch.autograd.set_detect_anomaly(False)"),
        ("ddp.find_unused_parameters=off",
         "torch.nn.parallel.DistributedDataParallel(p, find_unused_parameters=True)",
         "torch.nn.parallel.DistributedDataParallel(p, find_unused_parameters=False)"),
        ("ddp.bucket_cap_mb=50", "torch.nn.parallel.DistributedDataParallel(p)",
         "torch.nn.parallel.DistributedDataParallel(p, bucket_cap_mb=50)"),
        ("copies.non_blocking", "d.to(n)", "d.to(n, non_blocking=True)"),
        ("torch.deterministic=off", "torch.use_deterministic_algorithms(True, warn_only=True)",
         "torch.use_deterministic_algorithms(False, warn_only=True)"),
        ("torch.num_threads=3", "torch.set_num_threads(1)", "torch.set_num_threads(3)"),
        ("torch.validate_args=off",
         "torch.distributions.Distribution.set_default_validate_args(True)",
         "torch.distributions.Distribution.set_default_validate_args(False)"),
        ("torch.float32_matmul_precision=high", "torch.set_float32_matmul_precision('highest')",
         "torch.set_float32_matmul_precision('high')"),
    ],
)  # fmt: skip
def test_each_change_of_a_call(change: str, call: str, now: str, tmp_path: Path) -> None:
    code = f"{HEAD}def f(d, n, p, opt):\n    return ({call})\n"
    assert after(tmp_path, code, change, 4) == code.replace(call, now)


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("import torch.utils.data as td", "td.DataLoader(d)"),
        ("from torch.utils import data", "data.DataLoader(d)"),
        ("from torch.utils.data import DataLoader as Loads", "Loads(d)"),
        ("from torch.utils.data.dataloader import DataLoader", "DataLoader(d)"),
    ],
)
def test_a_call_is_known_by_what_its_name_is_bound_to(
    imports: str, call: str, tmp_path: Path
) -> None:
    now = after(tmp_path, f"{imports}\nx = {call}\n", WORKERS, 2)
    assert f"{call[:-1]}, num_workers=4)" in now


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("DataLoader(*args)", "come from a sequence"),
        ("DataLoader(data, **config)", "come from a dictionary"),
        ("DataLoader(data, num_workers=args.workers)", "num_workers is `args.workers` there"),
        ("DataLoader(data, num_workers=N if train else 0)", "num_workers is `N if train else 0`"),
        ("DataLoader(x for x in data)", "generator without parentheses"),
        ("a, b = DataLoader(data), DataLoader(data)", "called several times there"),
        ("make(data)", "no call of DataLoader itself is written there"),
        ("functools.partial(DataLoader, data)()", "no call of DataLoader itself"),
        ("super().__init__(data)", "no call of DataLoader itself"),
        ("other.DataLoader(data)", "no call of DataLoader itself"),
    ],
)
def test_a_call_that_is_not_plain_is_left_to_the_user(call: str, why: str, tmp_path: Path) -> None:
    said = refused(tmp_path, f"{HEAD}import other\n{call}\n", WORKERS, 4)
    assert said.startswith(f"{WORKERS}: train.py:4: ") and why in said
    assert said.endswith("By hand: DataLoader(..., num_workers=N)")


def test_a_name_of_the_users_own_is_not_torchs(tmp_path: Path) -> None:
    """Also where it is bound to both, by a condition."""
    own = "class DataLoader: pass\nx = DataLoader(1)\n"
    assert "no call of DataLoader itself" in refused(tmp_path, own, WORKERS, 2)
    both = "try:\n    from fast import DataLoader\nexcept ImportError:\n    from torch.utils.data"
    both += " import DataLoader\nx = DataLoader(1)\n"
    assert "no call of DataLoader itself" in refused(tmp_path, both, WORKERS, 5)


@pytest.mark.parametrize(
    ("form", "call", "why"),
    [
        (
            "fused",
            "torch.optim.Adadelta(p, 1.0, 0.9, 1e-6, 0, True)",
            "the meaning of its positional",
        ),
        ("fused", "torch.optim.lr_scheduler.StepLR(opt, 1)", "no call of an optimizer"),
        ("foreach", "Adam(p)", "no call of an optimizer"),
        ("fused", "torch.optim.Adam(p, foreach=fast)", "foreach is `fast` there"),
    ],
)
def test_an_optimizer_that_is_not_plain(form: str, call: str, why: str, tmp_path: Path) -> None:
    assert why in refused(tmp_path, f"{HEAD}{call}\n", f"optimizer.{form}", 3)


def test_made_by_one_call_of_which_some_do_not_suit(tmp_path: Path) -> None:
    code = f"{HEAD}def make(d, n):\n    return DataLoader(d, num_workers=n)\n"
    why = refused(tmp_path, code, "loader.persistent_workers", 4, refused=True)
    assert "does not suit all of them" in why


def test_a_setting_comes_below_the_imports(tmp_path: Path) -> None:
    code = '"""Doc."""\nimport os\nimport torch, numpy\nfrom torch import nn\n\nnn.Linear(1, 1)\n'
    now = code.replace("nn\n\n", "nn\ntorch.set_num_threads(2)\n\n", 1)
    assert after(tmp_path, code, "torch.num_threads=2", 0) == now
    for code in ("import torch as th\n", "def f():\n    import torch\n", "from torch import nn\n"):
        assert "no plain `import torch`" in refused(tmp_path, code, "torch.num_threads=2", 0)


def test_a_setting_of_the_script_itself_is_changed_alone(tmp_path: Path) -> None:
    """It comes later than one at the top, which would change nothing."""
    file = tmp_path / "train.py"
    file.write_text("import torch\ntorch.set_num_threads(1)\n")
    spots = tuple(Applied("torch.num_threads", Place(str(file), line)) for line in (0, 2))
    won = Tried(change="torch.num_threads=2", ceiling=False, safety="", answer="faster",
                applied=spots)  # fmt: skip
    assert applied(tmp_path, write(won, tmp_path, FAR_NS)) == (
        b"import torch\ntorch.set_num_threads(2)\n"
    )


def test_cudnn_benchmark_is_set_once(tmp_path: Path) -> None:
    change, code = "torch.cudnn_benchmark", "import torch\nmodel = 1\n"
    line = "torch.backends.cudnn.benchmark = "
    assert after(tmp_path, code, change, 0) == f"import torch\n{line}True\nmodel = 1\n"
    assert after(tmp_path, f"{code}{line}False\n", change, 0) == f"{code}{line}True\n"
    twice = f"{code}{line}False\n{line}fast\n"
    assert "is already set there" in refused(tmp_path, twice, change, 0)


MODEL = """\
import torch
def main(data):
    model = Net()
    model = model.to(0)
    steps = 0

    # Train.
    for epoch in range(3):
        for x in data:
            loss = criterion(model(x))
"""


@pytest.mark.parametrize(
    ("change", "statement"),
    [
        ("torch.compile", "model.compile()"),
        ("model.channels_last", "model.to(memory_format=torch.channels_last)"),
    ],
)
def test_a_model_is_treated_in_front_of_the_loop(
    change: str, statement: str, tmp_path: Path
) -> None:
    now = MODEL.replace("steps = 0\n", f"steps = 0\n    {statement}\n")
    assert after(tmp_path, MODEL, change, 10, variable="model") == now


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("def main(data):\n    model = Net()\n", "def main(data, model):\n    a = 0\n", "not made"),
        ("        for x in data:", "        model = Net()\n        for x in data:", "not made"),
        ("    model = Net()\n", "    model, b = Net(), 1\n", "not made"),
        ("model(x)", "net(x)", "no call of `model` itself"),
        ("model(x)", "model(model(x))", "several times"),
    ],
)
def test_a_model_that_is_not_plainly_made_is_left_to_the_user(
    old: str, new: str, why: str, tmp_path: Path
) -> None:
    code = MODEL.replace(old, new)
    line = 1 + next(i for i, text in enumerate(code.splitlines()) if "criterion" in text)
    assert why in refused(tmp_path, code, "torch.compile", line, variable="model")


EVALUATION = """\
import torch
class Trainer:
    @timed  # how long
    def validate(self, data):
        self.model.eval()
        for x in data:
            self.model(x)
        self.model.train()
"""


def test_an_evaluation_gets_a_decorator(tmp_path: Path) -> None:
    now = after(tmp_path, EVALUATION, "evaluation.no_grad", 7, function="validate")
    assert now == EVALUATION.replace("long\n", "long\n    @torch.no_grad()\n")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("        self.model.eval()\n", "", "may be more than an evaluation"),
        ("self.model(x)", "self.model(x).backward()", "may be more than an evaluation"),
        ("self.model(x)", "yield self.model(x)", "is a generator"),
        ("import torch\n", "from torch import nn\n", "no plain `import torch`"),
        ("self.model(x)", "(lambda: self.model(x))()", "not in its own function"),
    ],
)
def test_what_may_be_no_evaluation_gets_none(old: str, new: str, why: str, tmp_path: Path) -> None:
    code = EVALUATION.replace(old, new)
    line = 1 + next(i for i, text in enumerate(code.splitlines()) if "self.model(x)" in text)
    function = "<lambda>" if "lambda" in code else "validate"
    assert why in refused(tmp_path, code, "evaluation.no_grad", line, function=function)
