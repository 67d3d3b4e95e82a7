"""Wastes of arithmetic that the values or the use of tensors show. Added after cases had been drawn
and recorded, so they are never drawn."""

from __future__ import annotations

from .module_wastes import net
from .parts import Waste


def waste(
    what: str, code: str, init: str, slow: str, fixed: str, *, fixed_init: str = "",
    cls: str = "compute",
) -> Waste:  # fmt: skip
    """In the model: its layers, and its forward as it is and as it should be."""
    made = {"MODEL": net(init, slow)}, {"MODEL": net(fixed_init or init, fixed)}
    return Waste(what, cls, (code,), *made, one_core=True)


UNUSED = waste(
    "a picture rebuilt in each forward that no loss takes",
    "TD737",
    """
self.body, self.head = nn.Sequential(nn.Linear(256, 512), nn.ReLU()), nn.Linear(512, 10)
self.rebuild = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 1024))
""",
    """
hidden = self.body(x)
rebuilt = self.rebuild(hidden)  # HERE
return self.head(hidden)
""",
    """
return self.head(self.body(x))
""",
)
JOINED = waste(
    "a code for each of 3,000 users, a parameter each, stacked in each step",
    "TD738",
    """
self.codes = nn.ParameterList(torch.randn(16) / 4 for _ in range(3000))
self.body, self.head = nn.Linear(256, 16), nn.Linear(16, 10)
""",
    """
codes = torch.stack(list(self.codes))  # HERE
return self.head(self.body(x) * codes[(x[:, 0] * 1000).long() % 3000])
""",
    """
return self.head(self.body(x) * self.codes[(x[:, 0] * 1000).long() % 3000])
""",
    fixed_init="""
self.codes = nn.Parameter(torch.randn(3000, 16) / 4)
self.body, self.head = nn.Linear(256, 16), nn.Linear(16, 10)
""",
    cls="overhead",
)
GRAPH = waste(
    "a graph of ten links a node as a dense matrix",
    "TD739",
    """
links = (torch.rand(3000, 3000) < 10 / 3000).float()
self.register_buffer("links", links)
self.nodes = nn.Parameter(torch.randn(3000, 64) / 8)
self.body, self.head = nn.Linear(256, 64), nn.Linear(64, 10)
""",
    """
seen = self.links @ self.nodes  # HERE
return self.head(self.body(x) * seen[(x[:, 0] * 1000).long() % 3000])
""",
    """
seen = self.links @ self.nodes
return self.head(self.body(x) * seen[(x[:, 0] * 1000).long() % 3000])
""",
    fixed_init="""
links = (torch.rand(3000, 3000) < 10 / 3000).float().to_sparse_csr()
self.register_buffer("links", links)
self.nodes = nn.Parameter(torch.randn(3000, 64) / 8)
self.body, self.head = nn.Linear(256, 64), nn.Linear(64, 10)
""",
)
REPEATED = waste(
    "rows repeated before the encoder, one copy for each candidate",
    "TD740",
    """
self.encoder = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
self.candidates, self.head = nn.Parameter(torch.randn(16, 256)), nn.Linear(256, 10)
""",
    """
rows = x.repeat_interleave(16, 0)  # HERE
states = self.encoder(rows).view(len(x), 16, 256)
return self.head((states * self.candidates).mean(1))
""",
    """
states = self.encoder(x).repeat_interleave(16, 0).view(len(x), 16, 256)
return self.head((states * self.candidates).mean(1))
""",
)
LOW_RANK = waste(
    "an adapter's two factors multiplied into a full weight in each step",
    "TD741",
    """
self.weights = nn.Parameter(torch.randn(2048, 256) / 16, requires_grad=False)
self.a, self.b = nn.Parameter(torch.randn(8, 256) / 16), nn.Parameter(torch.zeros(2048, 8))
self.last = nn.Parameter(torch.randn(2048, 2048) / 45, requires_grad=False)
self.c, self.d = nn.Parameter(torch.randn(8, 2048) / 45), nn.Parameter(torch.zeros(2048, 8))
self.head = nn.Linear(2048, 10)
""",
    """
x = nn.functional.linear(x, self.weights + self.b @ self.a).relu()  # HERE
x = nn.functional.linear(x, self.last + self.d @ self.c).relu()  # HERE
return self.head(x)
""",
    """
x = (nn.functional.linear(x, self.weights) + x @ self.a.T @ self.b.T).relu()
x = (nn.functional.linear(x, self.last) + x @ self.c.T @ self.d.T).relu()
return self.head(x)
""",
)
ZEROS = waste(
    "weights of a few inputs written into zeros for all of them",
    "TD742",
    """
self.wide = nn.Linear(256, 4096)
self.few = nn.Parameter(torch.randn(128, 1024) / 11)
self.head = nn.Linear(1024, 10)
""",
    """
weight = torch.zeros(4096, 1024)
weight[:128] = self.few
return self.head((self.wide(x) @ weight).relu())  # HERE
""",
    """
return self.head((self.wide(x)[:, :128] @ self.few).relu())
""",
)
PRIME = waste(
    "signals filtered by a Fourier transform of 8,191 samples, a prime",
    "TD743",
    """
self.up, self.head = nn.Linear(256, 4096), nn.Linear(4096, 10)
self.filter = nn.Parameter(torch.randn(4096) / 64)
""",
    """
signal = self.up(x)
found = torch.fft.rfft(signal, 8191) * torch.fft.rfft(self.filter, 8191)  # HERE
return self.head(torch.fft.irfft(found, 8191)[:, :4096])  # HERE
""",
    """
signal = self.up(x)
found = torch.fft.rfft(signal, 8192) * torch.fft.rfft(self.filter, 8192)
return self.head(torch.fft.irfft(found, 8192)[:, :4096])
""",
)
GATHERED = waste(
    "a matrix of weights copied for each link of a graph",
    "TD745",
    """
self.kinds, self.ends = torch.randint(0, 8, (6000,)), torch.randint(0, 512, (6000,))
self.weights = nn.Parameter(torch.randn(8, 32, 32) / 6)
self.nodes, self.body, self.head = nn.Linear(256, 512), nn.Linear(1, 32), nn.Linear(32, 10)
""",
    """
nodes = self.body(self.nodes(x).mean(0)[:, None])
links = self.weights[self.kinds]  # HERE
sent = torch.bmm(nodes[self.ends, None], links)[:, 0]  # HERE
return self.head(sent[: len(x)] + sent.mean(0))
""",
    """
nodes = self.body(self.nodes(x).mean(0)[:, None])
sent = (nodes @ self.weights)[self.kinds, self.ends]
return self.head(sent[: len(x)] + sent.mean(0))
""",
)
FROZEN = waste(
    "data that requires gradients below a frozen encoder",
    "TD744",
    """
self.encoder = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU())
self.encoder.requires_grad_(False)
self.head = nn.Linear(1024, 10)
""",
    """
x = x.detach().requires_grad_()  # HERE
return self.head(self.encoder(x))
""",
    """
return self.head(self.encoder(x))
""",
)
BRACKETS = waste(
    "pairs of 32 parts, each picked by brackets",
    "TD749",
    """
self.left, self.right = torch.triu_indices(32, 32, 1)
self.body, self.head = nn.Linear(256, 512), nn.Linear(496, 10)
""",
    """
parts = self.body(x).view(-1, 32, 16)
return self.head((parts[:, self.left] * parts[:, self.right]).sum(-1))  # HERE
""",
    """
parts = self.body(x).view(-1, 32, 16)
pairs = parts.index_select(1, self.left) * parts.index_select(1, self.right)
return self.head(pairs.sum(-1))
""",
)
