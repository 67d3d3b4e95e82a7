"""The model computes padding

## What it measures
Tokens that counted steps look up in embedding tables: the length of each sequence, of the longest
one in its batch, and the length that all were padded to. Padding is recognised by a mask of the
same shape, or by the table's `padding_idx`; a token that only repeats does not count as padding.
Without such lookups: zeros at the end of sequences of features (speech, sensors) of different
lengths, in the first batches of the training loader.

## Why it is slow
Embeddings, linear layers and recurrent cells compute every position of the batch, and attention
every pair of positions. A mask only keeps padding out of the result.

## What to do
Pad each batch to its own longest sequence, not to a fixed length. Then put sequences of similar
length into one batch: sort pools of about 50 shuffled batches by length, and shuffle the batches.
Or pack several sequences into one row, with a mask that keeps them apart.

## How the gain is computed
From the time of forward, loss and backward, minus the dispatch overhead of their calls if that was
measured. High end: no padding is left; the attention kernels' share falls with the square of the
length, the rest in proportion. Low end: three quarters of what padding only to the longest sequence
saves, or of what sorted pools save if that is more.

## When this advice is wrong
Sorting by length makes batches less random, and static shapes (a compiled model, CUDA graphs, TPUs)
get several lengths: use a few fixed ones. Kernels for sequences without padding (variable-length
attention) may skip it already. Batches of short sequences use a device less well: enlarge them.
"""

from __future__ import annotations

import ast

from tdiag.evidence.feeding import Loader, Loaders, PaddedLookup, PaddedLookups
from tdiag.evidence.steps import Budget
from tdiag.evidence.store import Evidence
from tdiag.evidence.torch_ops import Dispatch, HostOps, Ops
from tdiag.model.diagnosis import Fix
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC, Threshold
from tdiag.probe.wire import is_user_file
from tdiag.rules.base import Abstain, Found, Gain, count, frac, held, text, where
from tdiag.rules.examples import at, budget, loaders
from tdiag.rules.fetch_lines import collate_place
from tdiag.rules.syntax import innermost, name_of, place_at, tree_of
from tdiag.rules.thresholds import FEWER_ROWS_FRAC
from tdiag.units import percent

CODE = "TD613"
NAME = "padding-computed"
CLASS = "compute"
UNTRIED = "needs another sampler, which must know the lengths"

PADS = {"pad", "pad_sequence"}
# Calls that choose the length of a batch, or make room for it.
LENGTHS = {
    "max", "zeros", "full", "ones", "empty", "new_zeros", "new_full", "zeros_like", "full_like",
}  # fmt: skip
KINDS = (ast.Call, ast.BinOp, ast.AugAssign)  # that pad
# Where positions are computed, in a run on the CPU and on a device.
COMPUTED = ("forward", "loss", "backward", "compute")
LEFT_BY_POOLS_FRAC = Threshold(
    0.1,
    "of the positions",
    "Simulated: pools of 50 batches of 8 to 64 sequences, sorted by length, keep 2 to 10 % padding"
    " (at most 512 long, uniform, and log-normal with σ 0.5 and 1; 2,000 and 20,000 sequences); in"
    " random order it was 43 to 81 % (benchmarks/rule_constants.py td613).",
)
# Kernels of attention, by torch's names.
ATTENTION = ("scaled_dot_product", "_flash_attention", "_efficient_attention", "_softmax", "bmm")


def check(
    budget: Budget,
    padded: PaddedLookups | None,
    loaders: Loaders | None,
    ops: Ops | None,
    dispatch: Dispatch | None,
    host_ops: HostOps | None,
) -> Found | None:
    loader = loaders.train() if loaders else None
    lookups = (padded.lookups if padded else ()) or _features(loader)
    if padded is None and not lookups:
        raise Abstain("torch calls were not counted (window ops)")
    if (padded and padded.packed) or not lookups:
        return None
    sequences, positions, longest, tokens = _sums(lookups)
    padding = 1 - tokens / positions
    if padding <= LEFT_BY_POOLS_FRAC:
        return None
    fixed = 1 - longest / positions  # what dynamic padding saves, without sorting
    pooled = 1 - (1 - padding) / (1 - LEFT_BY_POOLS_FRAC)
    scaling = max(0.0, held(budget, *COMPUTED) - _fixed_cost(budget, ops, dispatch))
    attends = _attention_frac(host_ops)
    high = padding * (1 - attends) + (1 - (1 - padding) ** 2) * attends
    place = _place(lookups, loader)
    lengths = tokens / sequences, longest / sequences, positions / sequences
    return Found(
        summary=(
            f"{percent(padding)} of the positions that the model computes are padding: sequences of"
            f" {lengths[0]:.0f} positions (mean) are padded to {lengths[2]:.0f}."
        ),
        evidence=(
            count("sequences counted", sequences, "ops"),
            count("positions of a sequence, mean", lengths[0], "ops"),
            count("longest sequence of a batch, mean", lengths[1], "ops"),
            count("positions with padding, mean", lengths[2], "ops"),
            frac("padding", padding, "ops"),
            text("padding recognised by", ", ".join(sorted({x.by for x in lookups})), "ops"),
        ),
        fix=_fix(fixed >= MAJORITY_FRAC * padding, loader, place),
        gain=Gain(
            scaling * max(fixed, pooled) * FEWER_ROWS_FRAC,
            scaling * high,
            "high end: no padding is left; low end: three quarters of what batches of sequences of"
            " similar length, padded to the longest of them, save.",
            COMPUTED,
        ),
        at=place,
    )


def _features(loader: Loader | None) -> tuple[PaddedLookup, ...]:
    """The batch's largest field of padded features, as if its positions were looked up."""
    fields = [x for x in (loader.fields if loader else ()) if x.padded]
    if not fields:
        return ()
    largest = max(fields, key=lambda x: x.bytes)
    found = largest.padded
    assert found is not None
    return (
        PaddedLookup(
            at=None, by=f"zeros at the end of {largest.name}", sequences=found.sequences,
            positions=found.positions, longest=found.longest, tokens=found.used,
        ),
    )  # fmt: skip


def _sums(lookups: tuple[PaddedLookup, ...]) -> tuple[int, int, int, int]:
    return (
        sum(x.sequences for x in lookups),
        sum(x.positions for x in lookups),
        sum(x.longest for x in lookups),
        sum(x.tokens for x in lookups),
    )


def _fixed_cost(budget: Budget, ops: Ops | None, dispatch: Dispatch | None) -> float:
    """Dispatch overhead, which does not fall with the length, ns per step. It counts only on the
    CPU: on a device the host's calls are not part of its computing."""
    if ops is None or dispatch is None or budget.has_device:
        return 0.0
    return dispatch.least_ns(line for line in ops.lines if line.phase in COMPUTED)


def _attention_frac(host_ops: HostOps | None) -> float:
    """Attention's kernels ÷ all ops, in the trace; 0 if there are none."""
    ops = host_ops.ops if host_ops else ()
    whole = sum(op.self_ns for op in ops)
    mine = sum(op.self_ns for op in ops if any(name in op.name for name in ATTENTION))
    return mine / whole if whole else 0.0


def _place(lookups: tuple[PaddedLookup, ...], loader: Loader | None) -> Place | None:
    """Where sequences are padded, if that is known; else where they are looked up."""
    if loader is not None and (place := _padding_line(loader) or collate_place(loader)):
        return place
    return max(lookups, key=lambda x: x.positions - x.tokens).at


def _padding_line(loader: Loader) -> Place | None:
    """The first line that pads in the collate function, in the dataset's method that reads samples,
    or in its class; else the only tokenizer's call in these files that pads."""
    collate, read = loader.collate_at, loader.dataset_at
    for place, kind, names in (
        (collate, ast.FunctionDef, PADS | LENGTHS),
        (read, ast.FunctionDef, PADS),
        (read, ast.ClassDef, PADS),
        (read, ast.FunctionDef, LENGTHS),
    ):
        if place is not None and is_user_file(place.file):
            scope = innermost(tree_of(place.file), (kind,), place.line)
            nodes = [x for x in (ast.walk(scope) if scope else ()) if isinstance(x, KINDS)]
            lines = [node.lineno for node in nodes if _pads(node, names)]
            if lines:
                return place_at(place.file, min(lines))
    places = (collate, read, loader.created_at)
    files = {place.file for place in places if place and is_user_file(place.file)}
    fixed = [
        place_at(file, node.lineno)
        for file in files
        for node in ast.walk(tree_of(file) or ast.Module([], []))
        if isinstance(node, ast.Call) and _padding(node) == "max_length"
    ]
    return fixed[0] if len(fixed) == 1 else None


def _pads(node: ast.AST, names: set[str]) -> bool:
    """A call of one of these names or of a tokenizer that pads, or a list made longer by ``[0] *
    n``."""
    if isinstance(node, ast.Call):
        extends = name_of(node) == "extend" and any(map(_repeats, node.args))
        return name_of(node) in names or extends or bool(_padding(node))
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_repeats(node.left) or _repeats(node.right))
    return isinstance(node, ast.AugAssign) and _repeats(node.value)


def _repeats(node: ast.AST) -> bool:
    """``[0] * n``"""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    return any(isinstance(x, ast.List) and len(x.elts) == 1 for x in (node.left, node.right))


def _padding(call: ast.Call) -> object:
    """The argument ``padding`` of a tokenizer's call, True if it is no constant; a number is a
    convolution's."""
    words = call.keywords
    given = next((word.value for word in words if word.arg == "padding"), ast.Constant(None))
    if not isinstance(given, ast.Constant):
        return True
    return given.value if isinstance(given.value, bool | str) else False


def _fix(to_longest: bool, loader: Loader | None, place: Place | None) -> Fix:
    here = where(place)
    made = where(loader.created_at) if loader else ""
    if to_longest:
        return Fix(
            f"Pad each batch to its own longest sequence{here}, not to a fixed length. Batches of"
            " sequences of similar length save more.",
            "safe",
            action="Pad batches to their longest sequence",
            code="batch = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)",
        )
    return Fix(
        f"Put sequences of similar length into one batch: give the DataLoader{made or here} a"
        " batch_sampler that sorts pools of shuffled samples by length, or pack several sequences"
        " into one row.",
        "review",
        action="Batch sequences of similar length",
        code=(
            "order = torch.randperm(len(lengths)).tolist()\n"
            "pools = [order[i : i + 50 * n] for i in range(0, len(order), 50 * n)]\n"
            "order = [i for p in pools for i in sorted(p, key=lengths.__getitem__)]\n"
            "batches = [order[i : i + n] for i in range(0, len(order), n)]\n"
            "random.shuffle(batches)\n"
            "loader = DataLoader(dataset, batch_sampler=batches, collate_fn=collate)"
        ),
    )


def fires() -> Evidence:
    """Sentences of 60 tokens in the mean, padded to the longest of each batch."""
    return _training(tokens=7_680, positions=16_384)


def clear() -> Evidence:
    """The same sentences, in batches of similar length."""
    return _training(tokens=7_680, positions=8_100)


def _training(tokens: int, positions: int) -> Evidence:
    lookup = PaddedLookup(
        at=at(18, "forward"), by="mask", sequences=128, positions=positions, longest=positions,
        tokens=tokens,
    )  # fmt: skip
    step = budget(forward=60, loss=2, backward=110, optimizer=8)
    return Evidence().add(step, PaddedLookups(lookups=(lookup,), packed=False), loaders())
