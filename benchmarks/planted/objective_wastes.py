"""Wastes in the loss, and in metrics computed beside it. For drawn cases."""

from __future__ import annotations

from .parts import Waste


def loss(slow: str, fixed: str) -> tuple[dict[str, str], dict[str, str]]:
    """Both as bodies of ``loss_of(output, target)``; what precedes ``---`` stands above it."""
    texts = []
    for text in (slow, fixed):
        above, _, body = text.rpartition("---\n")
        lines = "\n".join("    " + line for line in body.strip("\n").split("\n"))
        texts.append({"LOSS": f"{above}\ndef loss_of(output, target):\n{lines}\n"})
    return texts[0], texts[1]


TRIPLETS = Waste(
    "a triplet loss that looks for each anchor's hardest pair with .item()",
    "python_loss",
    (),
    *loss(
        """
code, total = nn.functional.normalize(output, dim=1), output.sum() * 0
n = min($N, len(code))
for a in range(n):  # HERE
    far, near = None, None
    for b in range(n):  # HERE
        distance = (code[a] - code[b]).pow(2).sum()  # HERE
        if a != b and target[a] == target[b]:  # HERE
            far = distance if far is None or distance.item() > far.item() else far  # HERE
        elif a != b:
            near = distance if near is None or distance.item() < near.item() else near  # HERE
    if far is not None and near is not None:
        total = total + nn.functional.relu(far - near + 0.2)  # HERE
return total / n + nn.functional.cross_entropy(output, target)
""",
        """
code = nn.functional.normalize(output, dim=1)[:$N]
distance = 2 - 2 * code @ code.T
same = target[:$N, None] == target[:$N]
far = distance.masked_fill(~same, -9.0).amax(1)
near = distance.masked_fill(same, 9.0).amin(1)
triplets = nn.functional.relu(far - near + 0.2)
return triplets.mean() + nn.functional.cross_entropy(output, target)
""",
    ),
    amounts=(6, 10, 16),
)

FORWARD_SUMS = Waste(
    "the forward sums of a conditional random field, tag by tag",
    "python_loss",
    (),
    *loss(
        """
MOVES = torch.randn(10, 10) * 0.1
---
alpha = list(output[0])
for t in range(1, $N):  # HERE
    after = []
    for tag in range(10):  # HERE
        before = torch.stack(alpha) + MOVES[:, tag]  # HERE
        after.append(torch.logsumexp(before, 0) + output[t % len(output), tag])  # HERE
    alpha = after
total = torch.logsumexp(torch.stack(alpha), 0)
return total / $N + nn.functional.cross_entropy(output, target)
""",
        """
MOVES = torch.randn(10, 10) * 0.1
---
alpha = output[0]
for t in range(1, $N):
    alpha = torch.logsumexp(alpha[:, None] + MOVES, 0) + output[t % len(output)]
total = torch.logsumexp(alpha, 0)
return total / $N + nn.functional.cross_entropy(output, target)
""",
    ),
    amounts=(4, 10, 24),
    left="a loop over time",
)

BEST_PATHS = Waste(
    "Viterbi's best path for the log, state by state, in the loss",
    "python_loss",
    (),
    *loss(
        """
MOVES = torch.randn(10, 10) * 0.1
---
score, back = output[0], []
for t in range(1, $N):  # HERE
    best = []
    for state in range(10):  # HERE
        options = score + MOVES[:, state]  # HERE
        best.append((options.max().item(), int(options.argmax())))  # HERE
    score = torch.tensor([value for value, _ in best]) + output[t % len(output)].detach()  # HERE
    back.append([k for _, k in best])
return nn.functional.cross_entropy(output, target)
""",
        """
MOVES = np.random.randn(10, 10) * 0.1
---
table, back = output.detach().numpy(), []
score = table[0]
for t in range(1, $N):
    options = score[:, None] + MOVES
    back.append(options.argmax(0))
    score = options.max(0) + table[t % len(table)]
return nn.functional.cross_entropy(output, target)
""",
    ),
    amounts=(6, 20, 60),
)

BOXES = """
def boxes_of(output, n):
    near = output[:n, :2]
    return torch.cat([near, near + output[:n, 2:4].exp().clamp(max=4)], 1)
"""
OVERLAPS = Waste(
    "overlaps of all pairs of boxes, two nested loops",
    "python_loss",
    (),
    *loss(
        BOXES
        + """
def overlap(a, b):
    width = (torch.min(a[2], b[2]) - torch.max(a[0], b[0])).clamp(min=0)  # HERE
    height = (torch.min(a[3], b[3]) - torch.max(a[1], b[1])).clamp(min=0)  # HERE
    both = width * height  # HERE
    areas = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])  # HERE
    return both / (areas - both + 1e-6)  # HERE
---
boxes = boxes_of(output, $N)
terms = []
for i in range(len(boxes)):  # HERE
    for j in range(i):  # HERE
        terms.append(overlap(boxes[i], boxes[j]))  # HERE
return torch.stack(terms).mean() + nn.functional.cross_entropy(output, target)
""",
        BOXES
        + """
---
boxes = boxes_of(output, $N)
i, j = torch.tril_indices(len(boxes), len(boxes), -1)
a, b = boxes[i], boxes[j]
sides = (torch.min(a[:, 2:], b[:, 2:]) - torch.max(a[:, :2], b[:, :2])).clamp(min=0)
both = sides.prod(1)
areas = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1)
terms = both / (areas - both + 1e-6)
return terms.mean() + nn.functional.cross_entropy(output, target)
""",
    ),
    amounts=(4, 7, 12),
)

SUPPRESSED = Waste(
    "boxes suppressed by a while loop that asks of each tensor",
    "python_loss",
    (),
    *loss(
        BOXES
        + """
---
boxes = boxes_of(output.detach(), $N)
order = output[:$N, 4].argsort(descending=True).tolist()
keep = []
while order:  # HERE
    first = order.pop(0)
    keep.append(first)
    rest = []
    for k in order:  # HERE
        near = torch.max(boxes[first, :2], boxes[k, :2])  # HERE
        far = torch.min(boxes[first, 2:], boxes[k, 2:])  # HERE
        if (far - near).clamp(min=0).prod() < 0.5:  # HERE
            rest.append(k)
    order = rest
return nn.functional.cross_entropy(output[keep], target[keep])
""",
        BOXES
        + """
---
boxes = boxes_of(output.detach(), $N)
order = output[:$N, 4].argsort(descending=True).tolist()
near = torch.max(boxes[:, None, :2], boxes[:, :2])
far = torch.min(boxes[:, None, 2:], boxes[:, 2:])
apart = ((far - near).clamp(min=0).prod(2) < 0.5).tolist()
keep = []
while order:
    first = order.pop(0)
    keep.append(first)
    order = [k for k in order if apart[first][k]]
return nn.functional.cross_entropy(output[keep], target[keep])
""",
    ),
    amounts=(10, 16, 40),
)

CENTRES = Waste(
    "a centre loss that picks out each class at several temperatures",
    "python_loss",
    (),
    *loss(
        """
total = nn.functional.cross_entropy(output, target)
for scale in range(1, $N + 1):  # HERE
    for c in target.unique():  # HERE
        rows = output[target == c]  # HERE
        centre = rows.mean(0)  # HERE
        total = total + ((rows - centre) / scale).pow(2).mean() / 10  # HERE
return total
""",
        """
member = nn.functional.one_hot(target, 10).float()
count = member.sum(0).clamp(min=1)
centre = (member.T @ output) / count[:, None]
spread = ((output - centre[target]).pow(2).mean(1) / count[target]).sum() / 10
scales = 1 / torch.arange(1.0, $N + 1.0).pow(2)
return nn.functional.cross_entropy(output, target) + spread * scales.sum()
""",
    ),
    amounts=(2, 5, 15),
)

SMOOTHED = Waste(
    "smoothed targets written number by number into a list of lists",
    "python_loss",
    (),
    *loss(
        """
rows = [[0.9 if c == int(t) else 0.1 / $N for c in range($N)] for t in target]  # HERE
wanted = torch.tensor(rows)[:, :10]  # HERE
return -(wanted * output.log_softmax(1)).sum(1).mean()
""",
        """
wanted = torch.full_like(output, 0.1 / $N).scatter_(1, target[:, None], 0.9)
return -(wanted * output.log_softmax(1)).sum(1).mean()
""",
    ),
    amounts=(60, 200, 800),
)

DISCOUNTED = Waste(
    "a ranking loss that sums discounted gains place by place",
    "python_loss",
    (),
    *loss(
        """
total = nn.functional.cross_entropy(output, target)
for column in range($N):  # HERE
    order = output[:, column].argsort(descending=True)  # HERE
    for rank, row in enumerate(order[:16]):  # HERE
        gain = (target[row] == column).float()  # HERE
        total = total - 0.01 * gain * output[row, column] / math.log2(rank + 2)  # HERE
return total
""",
        """
scores, order = output[:, :$N].sort(0, descending=True)
gains = (target[order[:16]] == torch.arange($N)).float()
weight = 1 / torch.log2(torch.arange(len(gains)) + 2.0)
discounted = (gains * scores[:16] * weight[:, None]).sum()
return nn.functional.cross_entropy(output, target) - 0.01 * discounted
""",
    ),
    amounts=(2, 5, 10),
)

CONFUSION = Waste(
    "a confusion matrix and top-k hits counted row by row in Python",
    "python_loss",
    (),
    *loss(
        """
CONFUSION = torch.zeros(10, 10)
HITS = collections.Counter()
---
for wanted, guess in zip(target, output.argmax(1)):  # HERE
    CONFUSION[wanted, guess] += 1  # HERE
for k in range(1, $N + 1):
    for row in range(len(target)):  # HERE
        if target[row] in output[row].topk(k).indices:  # HERE
            HITS[k] += 1  # HERE
return nn.functional.cross_entropy(output, target)
""",
        """
CONFUSION = torch.zeros(100)
HITS = torch.zeros($N)
---
with torch.no_grad():
    CONFUSION.add_(torch.bincount(target * 10 + output.argmax(1), minlength=100))
    best = output.topk($N).indices == target[:, None]
    HITS.add_(best.cumsum(1).float().sum(0))
return nn.functional.cross_entropy(output, target)
""",
    ),
    amounts=(1, 3, 6),
    also=("overhead",),
)

PERTURBED = Waste(
    "an augmented loss averaged over many draws, one after another",
    "python_loss",
    (),
    *loss(
        """
total = 0.0
for _ in range($N):  # HERE
    noise = torch.randn_like(output) * 0.1  # HERE
    total = total + nn.functional.cross_entropy(output + noise, target)  # HERE
return total / $N
""",
        """
noisy = output + torch.randn($N, *output.shape) * 0.1
return nn.functional.cross_entropy(noisy.flatten(0, 1), target.repeat($N))
""",
    ),
    amounts=(30, 100, 300),
)

KERNELS = Waste(
    "a kernel two-sample loss over rows, bandwidth by bandwidth",
    "python_loss",
    (),
    *loss(
        """
half = min(len(output) // 2, $N)
total = nn.functional.cross_entropy(output, target)
for i in range(half):  # HERE
    for bandwidth in (0.5, 1.0, 2.0):  # HERE
        gap = (output[half : 2 * half] - output[i]).pow(2).sum(1)  # HERE
        total = total - 0.01 * torch.exp(-gap / bandwidth).mean() / half  # HERE
return total
""",
        """
half = min(len(output) // 2, $N)
gap = (output[half : 2 * half, None] - output[None, :half]).pow(2).sum(2)
bandwidths = torch.tensor([0.5, 1.0, 2.0])
near = torch.exp(-gap[..., None] / bandwidths).mean((0, 1)).sum()
return nn.functional.cross_entropy(output, target) - 0.01 * near
""",
    ),
    amounts=(6, 20, 60),
)
