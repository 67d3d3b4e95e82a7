"""Wastes after the step and around it: metrics, waits, rollouts. For drawn cases."""

from __future__ import annotations

from .parts import Waste

NOTHING = {"AFTER": "def after_step(step, model, loss):\n    pass\n"}


def after(body: str, above: str = "") -> str:
    lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
    return f"{above}\ndef after_step(step, model, loss):\n{lines}\n"


EVALUATED = """
HELD_OUT, ANSWERS = torch.randn($N, 256), torch.randint(0, 10, ($N,))
"""
ONE_BY_ONE = Waste(
    "held-out samples evaluated one by one every other step",
    "eval",
    (),
    {
        "AFTER": after(
            """
if step % 2 == 0:
    model.eval()
    hits = 0
    with torch.no_grad():
        for x, y in zip(HELD_OUT, ANSWERS):  # HERE
            hits += int(model(x[None]).argmax(1) == y)  # HERE
    model.train()
""",
            EVALUATED,
        )
    },
    {
        "AFTER": after(
            """
if step % 2 == 0:
    model.eval()
    with torch.no_grad():
        hits = int((model(HELD_OUT).argmax(1) == ANSWERS).sum())
    model.train()
""",
            EVALUATED,
        )
    },
    twin=("-",),
    amounts=(32, 128, 600),
    also=("overhead",),
    left="an evaluation every other step",
)

SLEEPS = Waste(
    "a pause after each step, to be nice to others",
    "overhead",
    (),
    {"AFTER": after("time.sleep($N / 1000)  # HERE")},
    NOTHING,
    amounts=(5, 20, 80),
)

SPINS = Waste(
    "a busy wait after each step until a rate limit allows the next",
    "overhead",
    (),
    {
        "AFTER": after(
            """
allowed = time.perf_counter() + $N / 1000
while time.perf_counter() < allowed:  # HERE
    pass  # HERE
"""
        )
    },
    NOTHING,
    amounts=(5, 20, 80),
)

CURVES = Waste(
    "the area under a curve over a long history, sorted again after each step",
    "overhead",
    (),
    {
        "AFTER": after(
            """
SCORES[step % $N] = loss.item()
order = np.argsort(SCORES)  # HERE
hits = LABELS[order].cumsum()  # HERE
AREA.append(float((hits[LABELS[order] == 0]).sum()) / len(hits))  # HERE
""",
            "SCORES, LABELS = np.random.random($N), np.random.random($N) < 0.5\n"
            "AREA = collections.deque(maxlen=10)",
        )
    },
    {
        "AFTER": after(
            """
SCORES[step % $N] = loss.item()
if step % 500 == 200:
    order = np.argsort(SCORES)
    hits = LABELS[order].cumsum()
    AREA.append(float((hits[LABELS[order] == 0]).sum()) / len(hits))
""",
            "SCORES, LABELS = np.random.random($N), np.random.random($N) < 0.5\n"
            "AREA = collections.deque(maxlen=10)",
        )
    },
    amounts=(40_000, 150_000, 800_000),
    also=("logging", "eval"),
)

SUMMED = Waste(
    "a running mean that sums thousands of kept losses after each step",
    "overhead",
    (),
    {
        "AFTER": after(
            """
RECENT.append(loss.detach())
mean = sum(RECENT) / len(RECENT)  # HERE
""",
            "RECENT = collections.deque([torch.tensor(0.0)] * $N, maxlen=$N)",
        )
    },
    {
        "AFTER": after(
            """
TOTAL[0] += loss.item()
mean = TOTAL[0] / (step + 1)
""",
            "TOTAL = [0.0]",
        )
    },
    amounts=(3000, 8000, 40_000),
    also=("logging",),
)

WALKED = Waste(
    "all modules walked through after each step, to set their mode and dropout",
    "overhead",
    (),
    {
        "MODEL": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, $H), nn.ReLU(), nn.Linear($H, 10))
        self.adapters = nn.ModuleList(
            nn.Sequential(nn.Identity(), nn.Dropout(0.1)) for _ in range($N)
        )
    def forward(self, x):
        return self.body(x)
""",
        "AFTER": after(
            """
model.train()  # HERE
for name, module in model.named_modules():  # HERE
    if isinstance(module, nn.Dropout):  # HERE
        module.p = 0.1 / (1 + step)  # HERE
"""
        ),
    },
    {
        "AFTER": after(
            """
if step % 200 == 100:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1 / (1 + step)
"""
        )
    },
    amounts=(500, 1500, 8000),
)

CART = """
class Cart:
    def __init__(self):
        self.state = [0.0, 0.1, 0.05, 0.0]
    def step(self, action):
        place, speed, angle, turn = self.state
        force = 10.0 if action else -10.0
        push = (force + 0.05 * turn**2 * math.sin(angle)) / 1.1
        spin = (9.8 * math.sin(angle) - math.cos(angle) * push) / 0.65
        self.state = [place + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn,
                      turn + 0.02 * spin]
        if abs(self.state[2]) > 0.4:
            self.state = [0.0, 0.1, 0.05, 0.0]
        return self.state
"""
ROLLOUT = Waste(
    "actions asked of the policy one by one in a simulation, after each step",
    "rollout",
    (),
    {
        "AFTER": after(
            """
cart, memory = Cart(), []
with torch.no_grad():
    for _ in range($N):  # HERE
        seen = torch.tensor(cart.state * 64)[None]  # HERE
        action = int(torch.distributions.Categorical(logits=model(seen)).sample()) % 2  # HERE
        memory.append(cart.step(action))  # HERE
""",
            CART,
        )
    },
    {
        "AFTER": after(
            """
carts = [Cart() for _ in range($N)]
with torch.no_grad():
    seen = torch.tensor([cart.state for cart in carts]).repeat(1, 64)
    actions = torch.distributions.Categorical(logits=model(seen)).sample() % 2
    memory = [cart.step(action) for cart, action in zip(carts, actions.tolist())]
""",
            CART,
        )
    },
    twin=("-",),
    amounts=(16, 64, 300),
    also=("overhead",),
    left="a simulation in each step",
)

SINGLE_GRADIENTS = Waste(
    "gradients of single samples, one backward pass each, after each step",
    "overhead",
    (),
    {
        "AFTER": after(
            """
weights, norms = list(model.parameters()), []
for k in range($N):  # HERE
    out = nn.functional.cross_entropy(model(PROBE[k : k + 1]), WANTED[k : k + 1])  # HERE
    slopes = torch.autograd.grad(out, weights)  # HERE
    norms.append(sum(s.pow(2).sum() for s in slopes).sqrt().item())  # HERE
""",
            "PROBE, WANTED = torch.randn($N, 256), torch.randint(0, 10, ($N,))",
        )
    },
    {
        "AFTER": after(
            """
if step % 100 == 50:
    weights, norms = list(model.parameters()), []
    for k in range($N):
        out = nn.functional.cross_entropy(model(PROBE[k : k + 1]), WANTED[k : k + 1])
        slopes = torch.autograd.grad(out, weights)
        norms.append(sum(s.pow(2).sum() for s in slopes).sqrt().item())
""",
            "PROBE, WANTED = torch.randn($N, 256), torch.randint(0, 10, ($N,))",
        )
    },
    amounts=(8, 24, 100),
    also=("compute", "logging"),
)
