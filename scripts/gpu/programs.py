"""Programs that the GPU cases run. Each prints ``STEP_NS <mean>``: from one synchronisation to the
next ÷ the steps between them, which is what a step takes.

Programs that are timed take the device by turns: validate_gpu.py runs several cases at once, and
only what they do on the host before and after may overlap.
"""

from __future__ import annotations

TAKE_TURN = """
import fcntl, os
if os.environ.get("DEVICE_TURN"):
    turn = open(os.environ["DEVICE_TURN"], "w")
    fcntl.flock(turn, fcntl.LOCK_EX)
"""

# A step of `launches` kernels besides those of the optimizer. It measures itself, the last part of
# the run apart from the first (`LAST_NS`): what a profiler leaves behind would show there.
TRUTH = (
    """
import sys, time, torch
launches, reads, steps = int(sys.argv[1]), sys.argv[2] == "item", int(sys.argv[3])
weight = torch.nn.Parameter(torch.randn(512, 512, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=1e-6, fused=True)

def run(count):
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    for _ in range(count):
        x = weight
        for _ in range(launches):
            x = x * 1.0001
        loss = x.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if reads:
            loss.item()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - began) / count

"""
    + TAKE_TURN
    + """
run(20)
print("STEP_NS", run(steps), flush=True)
print("LAST_NS", run(steps), flush=True)
"""
)

# Sixty per cent of the device in one tensor: a second such program finds no room.
FILLS = (
    "filled = torch.empty(int(0.6 * torch.cuda.get_device_properties(0).total_memory),"
    " dtype=torch.uint8, device=device)"
)

# Ways to use a device that must keep their results, stderr and exit code under tdiag. Each prints
# a digest of its weights.
DIGEST = """
import hashlib
torch.cuda.synchronize()
print("DIGEST", hashlib.sha256(b"".join(
    p.detach().float().cpu().numpy().tobytes() for p in model.parameters())).hexdigest())
"""
_SMALL = """
import torch
from torch import nn
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(8, 64, 256, device="cuda")
def train(net, batch):
    loss = net(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_MANY = "for n in range(400): train(net, data[n % 8])\n"
WAYS = {
    "plain": _SMALL + "net = model\n" + _MANY,
    "compile": _SMALL + "net = torch.compile(model)\n" + _MANY,
    "reduce-overhead": _SMALL + "net = torch.compile(model, mode='reduce-overhead')\n" + _MANY,
    "captured-step": _SMALL + '''
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
static = data[0].clone()
with torch.cuda.stream(side):
    for _ in range(4):
        train(model, static)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train(model, static)
for n in range(400):
    static.copy_(data[n % 8])
    graph.replay()
''',
    "own-profiler": _SMALL + '''
plan = torch.profiler.schedule(wait=2, warmup=2, active=4, repeat=3)
with torch.profiler.profile(schedule=plan) as own:
    for n in range(400):
        train(model, data[n % 8])
        own.step()
''',
    "hooks-in-backward": _SMALL + '''
model[0].register_full_backward_hook(lambda *given: None)
net = model
''' + _MANY,
    "pinned-workers": _SMALL + '''
from torch.utils.data import DataLoader, TensorDataset
samples = TensorDataset(data.cpu().flatten(0, 1))
loader = DataLoader(samples, 64, num_workers=2, pin_memory=True)
for _ in range(50):
    for (x,) in loader:
        train(model, x.cuda(non_blocking=True))
''',
    "side-stream": _SMALL + '''
side = torch.cuda.Stream()
for n in range(400):
    with torch.cuda.stream(side):
        batch = data[n % 8] * 1.0
    torch.cuda.current_stream().wait_stream(side)
    train(model, batch)
''',
    "amp": _SMALL + '''
scaler = torch.amp.GradScaler()
for n in range(400):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(data[n % 8]).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
''',
    "two-gloo-ranks": _SMALL + '''
import torch.distributed
torch.distributed.init_process_group("gloo")
net = nn.parallel.DistributedDataParallel(model)
''' + _MANY,
    "two-nccl-ranks": """
import os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
""" + _SMALL + '''
import torch.distributed
torch.distributed.init_process_group("nccl")
net = nn.parallel.DistributedDataParallel(model)
''' + _MANY,
}  # fmt: skip

# Kernels timed by CUDA events, for the sums of the trace. `PRODUCTS`: matrix products of a step.
PRODUCTS = 2
EVENTS = """
import torch
a = torch.randn(4096, 4096, device="cuda")
weight = torch.nn.Parameter(torch.eye(4096, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=1e-9, fused=True)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for n in range(100000):
    loss = (a @ weight).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if n % 50 == 1:  # the host is ahead of the device by now
        start.record()
    if n % 50 == 49:
        end.record()
        end.synchronize()
        print("STEP_NS", start.elapsed_time(end) / 48 * 1e6, flush=True)
"""
