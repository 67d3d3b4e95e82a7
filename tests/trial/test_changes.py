"""What each change does inside the user's process; no time is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tdiag.probe.trial.changes import load, names
from tests.probe.harness import watch_code

from .scripts import run

FORMS = "[optimizer.defaults['foreach'], optimizer.defaults['fused']]"
ZEROED = "(optimizer.zero_grad(set_to_none=False), model[0].weight.grad is None)[1]"


@pytest.mark.parametrize("name", names())
def test_every_change_says_what_it_does_and_cannot(name: str) -> None:
    change = load(name)
    assert change.name == name
    assert change.does.endswith(".") and change.absent and change.limits
    assert bool(change.edit) == (change.kind == "fix")


# change, value, what shows it, unchanged, changed
EFFECTS = [
    ("loader.num_workers", "1", "loader.num_workers", "0", "1"),
    ("optimizer.foreach", "", FORMS, "[None, None]", "[True, None]"),
    ("optimizer.fused", "", FORMS, "[None, None]", "[None, True]"),
    ("loader.cache", "", "Data.asked", "64", "16"),
    ("optimizer.zero_grad", "", ZEROED, "False", "True"),
    ("evaluation.no_grad", "", "validate.graph", "True", "False"),
    ("python.gc_freeze", "", "any(o is loader for o in gc.get_objects())", "True", "False"),
    ("freeze", "script.py:validate", "evaluations", "[1, 2, 3, 4]", "[1, 1, 1, 1]"),
    ("ceiling.data", "", "(len(losses), Data.asked)", "(16, 64)", "(16, 16)"),
    ("ceiling.optimizer", "", "losses[4] == losses[8]", "False", "True"),
    ("ceiling.loss", "script.py:loss_of", "(loss_of.calls, losses[9])", "(16, X)", "(1, 0.0)"),
    ("ceiling.evaluation", "", "evaluations", "[1, 2, 3, 4]", "[1, 2, 2, 2]"),
    ("ceiling.gc", "", "gc.isenabled()", "True", "False"),
    ("ceiling.reads", "", "len(set(losses)) > 1", "True", "False"),
]  # fmt: skip
ALL_SHOWN = f"""
import json
def all_shown():
    return json.dumps([str(eval(show)) for show in {[show for _, _, show, _, _ in EFFECTS]!r}])
"""


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script shows without a change, all of it in one run."""
    shown, said = run(tmp_path_factory.mktemp("plain"), [], "all_shown()", code=ALL_SHOWN)
    assert said == []
    return dict(zip((show for _, _, show, _, _ in EFFECTS), json.loads(shown), strict=True))


@pytest.mark.parametrize(("change", "value", "show", "plain", "changed"), EFFECTS)
def test_it_takes_effect(
    change: str, value: str, show: str, plain: str, changed: str, unchanged: dict[str, str],
    tmp_path: Path,
) -> None:  # fmt: skip
    assert "X" in plain or unchanged[show] == plain
    with_it, said = run(tmp_path, [(change, value)], show)
    assert with_it == changed
    assert (change, "applied") in {(name, state) for name, state, _ in said}


LOADER_OF = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(8, 4))
loader = DataLoader(data, num_workers={workers})
"""


MOVED = """
import torch
from torch.overrides import TorchFunctionMode
seen = []
class Watch(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func.__name__ == "to": seen.append(kwargs)
        return func(*args, **kwargs or {{}})
def move(x):
    return x.to("meta")
x = torch.ones(2)
{pinned}
with Watch():
    move(x)
"""
# Which batches came of 8 samples one by one, and how often the dataset was asked for each.
INDEXED = """
import torch
from torch.utils.data import DataLoader, Dataset
DATA = torch.arange(40.0)
class Data(Dataset):
    calls = 0
    def __len__(self): return 40
    def __getitem__(self, index):
        Data.calls += 1
        return {result}
asked = []
for batch in DataLoader(Data(), batch_size=8):
    asked.append(Data.calls)
    Data.calls = 0
"""


@pytest.mark.parametrize(
    ("changes", "code", "show", "shown", "told"),
    [
        (
            [("loader.num_workers", "1"), ("loader.prefetch_factor", "7")],
            LOADER_OF.format(workers=0),
            "(loader.num_workers, loader.prefetch_factor)",
            "(1, 7)",
            "DataLoader at script.py:5: prefetch_factor 2 → 7",
        ),
        (
            [("loader.num_workers", "0"), ("loader.persistent_workers", "")],
            LOADER_OF.format(workers="1, prefetch_factor=4, timeout=9"),
            "(loader.num_workers, loader.prefetch_factor)",
            "(0, None)",
            "the DataLoader at script.py:5 has no workers",
        ),
        (
            [("loader.persistent_workers", "")],
            LOADER_OF.format(workers=1),
            "loader.persistent_workers",
            "True",
            "DataLoader at script.py:5: persistent_workers False → True",
        ),
        (
            [("loader.num_workers", "2")],
            LOADER_OF.format(workers=2),
            "loader.num_workers",
            "2",
            "the DataLoader at script.py:5 has num_workers=2 already",
        ),
        (
            [("loader.pin_memory", "")],
            LOADER_OF.format(workers=0),
            "loader.pin_memory",
            "False",
            "there is no device to copy to",
        ),
        (
            [("torch.num_threads", "2")],
            "import torch\ntorch.set_num_threads(1)",
            "torch.get_num_threads()",
            "2",
            "threads 1 → 2",
        ),
        (
            [("torch.anomaly", "off")],
            "import torch\ntorch.autograd.set_detect_anomaly(True)",
            "torch.is_anomaly_enabled()",
            "False",
            "anomaly detection at script.py:2 stays off",
        ),
        (
            [("torch.validate_args", "off")],
            "import torch.distributions as d\nd.Normal(0.0, -1.0)",
            "d.Distribution._validate_args", "False", "distributions check no arguments",
        ),
        (
            [("torch.profiler", "off")],
            "import torch\nwith torch.profiler.profile() as p:\n    p.step()",
            "p.profiler is None", "True", "the profiler at script.py:2 stays off",
        ),
        (
            [("torch.compile", "")],
            "import torch\nm = torch.nn.Linear(2, 2)\nm(torch.ones(1, 2))",
            "m._compiled_call_impl is None",
            "False",
            "compiled Linear",
        ),
        (
            [("torch.compile", "")],
            "import torch\nm = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))\n"
            "m.compile = lambda: None\nm(torch.ones(1, 2))",
            "m.training",
            "True",
            "compiled Sequential, whose dropout then draws other random numbers",
        ),
        (
            [("torch.compile", "script.py:loss_of")],
            "import functools, torch\n"  # what is called, without a C++ compiler's 12 s
            "torch.compile = functools.partial(torch.compile, backend='eager')\n"
            "frames = []\ndef loss_of(y):\n"
            "    frames.append(torch.compiler.is_compiling())\n    return (y * 2).sum()\n"
            "x = torch.ones(2, requires_grad=True)\ntorch.optim.SGD([x], lr=0.1)\n"
            "values = [loss_of(x).item() for _ in range(3)]",
            "(values, frames)",
            "([4.0, 4.0, 4.0], [False, True, True])",
            "compiled script.py:loss_of",
        ),
        (
            [("torch.deterministic", "off")],
            "import torch\ntorch.use_deterministic_algorithms(True)",
            "torch.are_deterministic_algorithms_enabled()",
            "False",
            "use_deterministic_algorithms() at script.py:2 stays off",
        ),
        (
            [("copies.non_blocking", "")],
            MOVED.format(pinned="x.is_pinned = lambda: True"),
            "seen",
            "[{'non_blocking': True}]",
            "to() at script.py:10 does not wait",
        ),
        (
            [("copies.non_blocking", "")],
            MOVED.format(pinned="pass"),
            "seen",
            "[{'non_blocking': True}]",
            "to() at script.py:10 copies from pageable memory; add loader.pin_memory",
        ),
        (
            [("evaluation.inference_mode", "")],
            "import torch\nm = torch.nn.Linear(2, 2).eval()\nx = torch.ones(1, 2)\n"
            "with torch.no_grad():\n    y = m(x)\nz = m.train()(x)",
            "(y.is_inference(), z.is_inference(), z.requires_grad)",
            "(True, False, True)",
            "Linear called at script.py:5 under inference_mode",
        ),
        (
            [("loader.whole_batches", "")],
            INDEXED.format(result="torch.as_tensor(index) * 2, {'x': DATA[index]}"),
            "asked",
            "[9, 9, 9, 1, 1]",
            "Data is indexed once per batch",
        ),
        (
            [("loader.whole_batches", "")],
            INDEXED.format(result="torch.rand(len(index) if type(index) is list else ())"),
            "asked",
            "[9, 8, 8, 8, 8]",
            "Data gives other values for a list of indices",
        ),
        (
            [("loader.whole_batches", "")],
            INDEXED.format(result="DATA[index + 0]"),
            "asked",
            "[9, 8, 8, 8, 8]",
            "Data takes no list of indices: TypeError",
        ),
        (
            [("torch.autocast", "bfloat16")],
            "import torch\nseen = []\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
            "        y = super().forward(x)\n        seen.append(str(y.dtype)[6:])\n"
            "        return {'y': [y]}\n"
            "m = Net(2, 2)\nm(torch.ones(1, 2))\nlast = m(torch.ones(1, 2))['y'][0]",
            "(seen, last.dtype)",
            "(['float32', 'bfloat16'], torch.float32)",
            "Net under bfloat16 autocast",
        ),
        (
            [("model.float32", "")],
            "import torch\nseen = []\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
            "        seen.append(str(x.dtype)[6:])\n        return super().forward(x)\n"
            "m = Net(2, 2).double()\nx = torch.ones(1, 2).double()\n"
            "last = [m(x).dtype for _ in range(2)][-1]",
            "(seen, last, m.weight.dtype, x.dtype)",
            "(['float32', 'float32'], torch.float64, torch.float32, torch.float64)",
            "Net: 2 parameters of float32",
        ),
        (
            [("model.float32", "")],
            "import torch\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n"
            "        return super().forward(x.double().to(torch.float64))\n"
            "m = Net(2, 2).double()\nx = torch.ones(1, 2)\n"
            "last = [m(x).dtype for _ in range(3)][1:]",
            "(last, m.weight.dtype, x.double().dtype, x.to(dtype=torch.float64).dtype)",
            "([torch.float64, torch.float64], torch.float32, torch.float64, torch.float64)",
            "Net: 2 parameters of float32",
        ),
        (
            [("model.channels_last", "")],
            "import torch\nm = torch.nn.Conv2d(3, 4, 2)\ny = m(torch.ones(1, 3, 8, 8))",
            "y.is_contiguous(memory_format=torch.channels_last)",
            "True",
            "Conv2d: 1 weight",
        ),
        (
            [("torch.float32_matmul_precision", "high")],
            "import torch\ntorch.set_float32_matmul_precision('highest')",
            "torch.get_float32_matmul_precision()",
            "high",
            "highest at script.py:2 → high",
        ),
        (
            [("optimizer.fused", "")],
            "import torch\n"
            "torch.utils._foreach_utils._get_fused_kernels_supported_devices = lambda: ['cuda']\n"
            "p = torch.nn.Linear(2, 2)\n"
            "o = torch.optim.SGD(p.parameters(), lr=0.1, foreach=True)",
            "(o.defaults['foreach'], o.defaults['fused'], len(o.param_groups[0]['params']))",
            "(True, None, 2)",
            "this torch has no fused optimizers on cpu",
        ),
        (
            [("torch.cudnn_benchmark", "")],
            "import torch",
            "torch.backends.cudnn.benchmark",
            "False",
            "there is no device with cuDNN",
        ),
        (
            [("ceiling.checkpoint", "")],
            "import torch, os\ntorch.save([1], 'saved.pt')",
            "os.path.exists('saved.pt')",
            "False",
            "torch.save() at script.py:2 does nothing",
        ),
        (
            [("ceiling.loss", "")],
            "import torch\nx = torch.ones(3, 2, requires_grad=True)\n"
            "loss = torch.nn.CrossEntropyLoss()(x, torch.zeros(3).long())",
            "loss.item()",
            "0.0",
            "cross_entropy at script.py:3 is a sum of its inputs",
        ),
    ],
)  # fmt: skip
def test_it_says_what_it_did(
    changes: list[tuple[str, str]], code: str, show: str, shown: str, told: str, tmp_path: Path
) -> None:
    code += f"\nimport sys\nsys.stdout.write(str({show}))\n"
    watched = watch_code(tmp_path, code, windows=[], trial=changes)
    assert (watched.returncode, watched.out) == (0, shown), watched.err
    assert told in {r.get("what") for r in watched.of("trial")}


FROZEN = """
import functools, torch
from torch.utils.data import DataLoader, Dataset
CALLS = []
class Data(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        CALLS.append(index)
        return index * 10
def decorate(f):
    @functools.wraps(f)
    def inner(*args):
        return f(*args)
    return inner
@decorate
def metric(x):
    CALLS.append("metric")
    return len(CALLS)
class Base:
    def name(self): return "base"
class Child(Base):
    def name(self):
        CALLS.append("name")
        return super().name() + str(len(CALLS))
def graded(x):
    CALLS.append("graded")
    return x * 2
def numbers():
    yield 1
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def epoch():
    CALLS.append("epoch")
    for x in DataLoader(Data(), batch_size=2):
        model(x[:, None].float()).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("spec", "calls", "made", "told"),
    [
        ("metric", "metric(1), metric(1), metric(torch.ones(2))", "['metric', 'metric']",
         "returns earlier results"),
        ("Child.name", "(a := Child()).name(), a.name(), Child().name()", "['name', 'name']",
         "returns earlier results"),
        ("Data.__getitem__", "list(DataLoader(d := Data())), list(DataLoader(d))",
         "[0, 1, 2, 3]", "returns earlier results"),
        ("graded", "graded(model.weight), graded(model.weight)", "['graded', 'graded']",
         "returns tensors that carry gradients"),
        ("numbers", "list(numbers()), list(numbers())", "[]", "is a generator or a coroutine"),
        ("epoch", "epoch(), epoch()", "['epoch', 0, 1, 2, 3, 'epoch', 0, 1, 2, 3]",
         "trains: training steps happen inside it"),
    ],
)  # fmt: skip
def test_a_function_is_frozen_or_says_why_not(
    spec: str, calls: str, made: str, told: str, tmp_path: Path
) -> None:
    start = "\ntorch.optim.SGD(model.parameters(), lr=0.1)\n"  # functions are looked for
    code = FROZEN + start + f"results = ({calls})\nimport sys\nsys.stdout.write(str(CALLS))\n"
    watched = watch_code(tmp_path, code, windows=[], trial=[("freeze", f"script.py:{spec}")])
    assert (watched.returncode, watched.out) == (0, made), watched.err
    assert any(told in r.get("what", "") for r in watched.of("trial")), watched.of("trial")
