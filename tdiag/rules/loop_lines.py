"""What a sampled line of the training thread does: its phase, and whether it runs before the
forward or after the step.

The order is that of the source: in a function that leads to the forward and to the optimizer's
step, lines below both run after the step, and lines above both run before it. Where its first line
calls a function that leads to the forward, lines above that forward run before it as well. The
sampled stacks show which function calls which.
"""

from __future__ import annotations

import linecache
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from tdiag.evidence.sampled import CallFrame, CallTrees, StackLine, Stacks
from tdiag.evidence.steps import Budget
from tdiag.evidence.torch_ops import Ops
from tdiag.model.place import Place
from tdiag.model.threshold import MAJORITY_FRAC
from tdiag.rules.base import Abstain, same_function
from tdiag.rules.syntax import statement_text
from tdiag.rules.thresholds import MIN_SAMPLES

BEFORE, AFTER = "before", "after"
FORWARD, _UPDATE = ("forward", "loss"), ("optimizer",)
# A line of one of these phases is neither before nor after the step.
_IN_STEP = ("data_wait", *FORWARD, "backward", *_UPDATE, "evaluation", "checkpoint")
# Innermost frames of reading a tensor in Python: ``print(loss)``, ``f"{loss}"``.
TENSOR_METHODS = ("(torch/_tensor.py)", "(torch/_tensor_str.py)")
# Calls that write a file of arrays or objects, or put it in its place (a large file that another
# replaces is freed then), in a line's text; they may have no frame.
_SAVES = re.compile(
    r"\b(pickle|dill|cloudpickle|joblib|msgpack)\.(dumps?|packb?)\(|\b(np|numpy)\.save\w*\("
    r"|\bshutil\.(copy|move|make_archive|rmtree)|\b(gzip|bz2|lzma|zlib)\.(open|compress)\("
    r"|\bos\.(replace|rename|remove|unlink|fsync|symlink)\(|\.(unlink|rename|replace)\((?!['\"])"
)
# The innermost frames of such calls. Functions of the same files that read are left out.
_SAVING = re.compile(
    r"^(\w+\.)?(write\w*|compress|flush|close|dumps?|save|_?savez\w*|copy\w*|_fastcopy\w*) "
    r"\((\S*/)?(gzip|bz2|lzma|zipfile|shutil|format|npyio|_npyio_impl|numpy_pickle\w*)\.py\)$"
)
# Words that name the weights of a model in the code around.
_WEIGHTS = re.compile(
    r"state_dict\(|named_parameters\(|save_model|checkpoint|ckpt|(?<![a-z])weights(?![a-z])", re.I
)
LOSS_NAME = re.compile("loss|criterion|objective|elbo|penalty|nll|likelihood", re.IGNORECASE)
_FUNCTIONS = ("def ", "async def ")
TRAINING = ("backward", *_UPDATE)
FunctionKey = tuple[str, str]  # file and last part of the name, because samplers add the class
Call = tuple[FunctionKey, int]  # a function and its line that calls
# For each function its lines that lead to torch calls, and the phases of these.
Leading = dict[FunctionKey, dict[int, set[str]]]
# For each function that runs the loop the first line that leads to the forward, the last update.
Spans = dict[FunctionKey, tuple[int, int]]


def check_samples(stacks: Stacks) -> None:
    """Raises Abstain if too few samples of the training thread were taken."""
    if stacks.samples < MIN_SAMPLES:
        raise Abstain(f"only {stacks.samples} samples of the training thread were taken")


def phase_of(line: StackLine, ops: Ops | None) -> str:
    """The phase of most time in the line's torch calls, if its samples show no phase; else ""."""
    if line.phase or ops is None:
        return line.phase
    here = [x for x in ops.lines if x.at.spot == line.at.spot]
    return max(here, key=lambda x: x.elapsed_ns).phase if here else ""


def waits_for_device(line: StackLine, budget: Budget, ops: Ops | None) -> bool:
    """Whether the line reads a value from the device, and its samples end there: the host waits for
    work launched before, so the line itself costs nothing (idle time of the device after it:
    TD401)."""
    return budget.has_device and reads_value(line, ops)


def reads_value(line: StackLine, ops: Ops | None) -> bool:
    """Whether the line reads a tensor's value, and its samples end there."""
    if ops is None:
        return False
    inside = line.own_frac > MAJORITY_FRAC * line.self_frac or line.leaf.endswith(TENSOR_METHODS)
    here = line.at.spot
    return inside and any(x.conversions for x in ops.lines if x.at.spot == here)


def main_line(phase: str, stacks: Stacks | None, ops: Ops | None) -> StackLine | None:
    """The line with most of the phase's samples; None if no line has more than half of them, or if
    too few samples were taken."""
    if stacks is None or stacks.samples < MIN_SAMPLES:
        return None
    mine = [line for line in stacks.training if phase_of(line, ops) == phase]
    return most_sampled(mine)


def most_sampled(lines: Sequence[StackLine]) -> StackLine | None:
    """The line with more than half of these lines' samples, if there is one."""
    top = max(lines, key=lambda line: line.self_frac, default=None)
    whole = sum(line.self_frac for line in lines)
    return top if top is not None and top.self_frac > MAJORITY_FRAC * whole else None


def saved_by_hand(
    stacks: Stacks | None, ops: Ops | None, trees: CallTrees | None
) -> list[StackLine]:
    """Lines after the step that write the model's weights without ``torch.save``, most samples
    first: they call what writes files of arrays or objects, and their function, the one that calls
    it or a line that leads to it names weights. Where a function also trains, or the line's own
    calls ``torch.save``, only the block around the line tells. And such lines in a function that
    saves a checkpoint, and lines after the step that copy what they name as weights."""
    if stacks is None:
        return []
    frames = trees.training if trees else ()
    loops = step_spans(ops, frames) if ops else {}
    after = beside_the_step(AFTER, stacks, ops, trees)
    saving = [line.at for line in stacks.training if line.phase == "checkpoint"]
    return [
        line
        for line in stacks.training
        if (line in after and copies_weights(line.at))
        or (
            (_SAVES.search(linecache.getline(*line.at.spot)) or _SAVING.search(line.leaf))
            and (
                (line in after and of_weights(line, frames, loops))
                or (not line.phase and any(same_function(line.at, at) for at in saving))
            )
        )
    ]


def copies_weights(at: Place) -> bool:
    """Whether the line's statement copies what it names as weights."""
    text = statement_text(*at.spot)
    return "deepcopy(" in text and _WEIGHTS.search(text) is not None


def of_weights(
    line: StackLine, frames: Sequence[CallFrame], loops: Collection[FunctionKey]
) -> bool:
    text = _block(*line.at.spot, _FUNCTIONS)
    if function_key(line.at.file, line.at.function) in loops or "torch.save" in text:
        text = _block(*line.at.spot, ("if ", "for ", "while ", *_FUNCTIONS))
    texts = [text]
    for level, (function, number) in enumerate(chain(line, frames)):
        file, name = function
        texts += [name, linecache.getline(file, number)]
        if level == 1 and function not in loops:
            texts.append(_block(file, number, _FUNCTIONS))
    return any(map(_WEIGHTS.search, texts))


def _block(file: str, number: int, headers: tuple[str, ...]) -> str:
    """The source from the innermost of these headers around this line to the end of the line's own
    body."""
    lines = linecache.getlines(file)
    if not 0 < number <= len(lines):
        return ""
    indent, end = _indent(lines[number - 1]), number
    while end < len(lines) and lines[end].strip() and _indent(lines[end]) > indent:
        end += 1
    for begin in range(number - 1, -1, -1):
        if lines[begin].strip() and _indent(lines[begin]) < indent:
            indent = _indent(lines[begin])
            if lines[begin].lstrip().startswith(headers):
                return "".join(lines[begin:end])
    return "".join(lines[number - 1 : end])


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def beside_the_step(
    side: str, stacks: Stacks | None, ops: Ops | None, trees: CallTrees | None
) -> list[StackLine]:
    """The training thread's lines that run ``BEFORE`` the forward or ``AFTER`` the step, most
    samples first. If a framework runs the loop, those whose torch calls show the phase."""
    if stacks is None or ops is None:
        return []
    frames = trees.training if trees else ()
    leading = _leading(ops, frames)
    spans = _spans(leading)
    found = []
    for line in stacks.training:
        phase = phase_of(line, ops)
        if phase not in _IN_STEP and _side(phase, line, spans, leading, frames) == side:
            found.append(line)
    return found


def most_of_clean(clean: float, share: float, sampled: float) -> float:
    """The largest share of the step, 0..1, of lines beside it: of ``clean``, that of the clean
    steps, as large a part as they have of all samples there (``share`` of ``sampled``). 0 if the
    samples show less than most of it."""
    if not share or sampled < MAJORITY_FRAC * clean:
        return 0.0
    return clean * share / max(sampled, share)


def by_elimination(line: StackLine, budget: Budget, ops: Ops | None) -> str:
    """The component that most samples of a line must lie in, because all others together take less
    time; "" if there is none, or if torch calls of its function show the phase."""
    if line.phase or (ops and any(same_function(x.at, line.at) for x in ops.lines)):
        return ""
    for name in budget.components_ns:
        least = line.self_frac - (1 - budget.share(name))
        if least > MAJORITY_FRAC * line.self_frac:
            return name
    return ""


def within_the_step(
    stacks: Stacks, ops: Ops, trees: CallTrees | None
) -> dict[tuple[str, int], str]:
    """The phase of lines that make no torch call and run between the first forward and the update,
    by file and line: in the function that runs the loop, that of the last line above that leads to
    torch calls. Left out: lines below a first of several updates. Lines before the forward of a
    function that computes it: ``prepare``."""
    frames = trees.training if trees else ()
    leading = _leading(ops, frames)
    spans = _spans(leading)
    found = {}
    for line in stacks.training:
        callees, (function, number) = _in_loop(line, spans, frames)
        if phase_of(line, ops) or function is None:
            continue
        if number == spans[function][0] and _before_forward(callees, leading):
            found[line.at.spot] = "prepare"
            continue
        first, last = spans[function]
        above = [x for x in leading[function] if x < number]
        if first < number < last and above:
            phases = leading[function][max(above)]
            phase = next((x for x in (*_UPDATE, "backward", *reversed(FORWARD)) if x in phases), "")
            if phase and phase not in _UPDATE:
                found[line.at.spot] = phase
    return found


def of_the_loss(
    stacks: Stacks | None, ops: Ops | None, trees: CallTrees | None
) -> set[tuple[str, int]]:
    """The lines below a function that computes the loss, by its name and by its torch calls. The
    function may call the model as well, whose own lines are not the loss's, but it does not update
    it; or the model's forward calls it."""
    if stacks is None or ops is None:
        return set()
    frames = trees.training if trees else ()
    leading = _leading(ops, frames)
    spans = _spans(leading)
    called = (x for x in frames if x.name.endswith(".__call__"))  # of the user's TripletLoss
    named = {function_key(x.file, x.name) for x in called if LOSS_NAME.search(x.name)}
    named |= {function for function in leading if LOSS_NAME.search(function[1])}
    losses = {x for x in named & leading.keys() if "loss" in set().union(*leading[x].values())}
    model, computing = (
        {(x.at.file, x.at.function) for x in ops.lines if x.phase == phase}
        for phase in ("forward", "loss")
    )
    found = set()
    for line in stacks.training:
        below = _in_loop(line, spans, frames)[0]
        functions = {function for function, _ in below}
        if losses & functions and not (model - computing) & functions:
            found.add(line.at.spot)
        names = [name for (_, name), _ in below]
        first = names.index("forward") if "forward" in names else len(names)
        if inside := [i for i, name in enumerate(names) if i > first and LOSS_NAME.search(name)]:
            found |= {(file, number) for (file, _), number in below[inside[0] :]}
    return found


def _side(
    phase: str, line: StackLine, spans: Spans, leading: Leading, frames: Sequence[CallFrame]
) -> str:
    callees, (function, number) = _in_loop(line, spans, frames)
    # From a single line a framework runs the whole loop.
    if function is not None and not spans[function][0] == spans[function][1] == number:
        first, last = spans[function]
        before = number < first or (number == first and _before_forward(callees, leading))
        return AFTER if number > last else BEFORE if before else ""
    return {"after_step": AFTER, "prepare": BEFORE}.get(phase, "")


def _in_loop(
    line: StackLine, spans: Spans, frames: Sequence[CallFrame]
) -> tuple[list[Call], tuple[FunctionKey | None, int]]:
    """The innermost function with a span that leads to this line, and its line that does; before it
    the functions between, outermost first."""
    between: list[Call] = []
    for function, number in chain(line, frames):
        if function in spans:
            return between[::-1], (function, number)
        between.append((function, number))
    return [], (None, 0)


def _before_forward(callees: Sequence[Call], leading: Leading) -> bool:
    """Whether the last of these calls comes before the forward that they lead to. What a module's
    own ``forward`` does first is part of it."""
    for function, number in callees:
        if function[1] == "forward":
            return False
        forward = [x for x, phases in leading.get(function, {}).items() if phases & set(FORWARD)]
        if not forward or number != min(forward):
            return bool(forward) and number < min(forward)
    return False


def step_spans(ops: Ops, frames: Sequence[CallFrame]) -> Spans:
    """For each function that leads to the forward and to the update: the first of its lines that
    do, and the last that updates. A forward below it is not of the step."""
    return _spans(_leading(ops, frames))


def _spans(leading: Leading) -> Spans:
    spans = {}
    for function, lines in leading.items():
        forward = [number for number, phases in lines.items() if phases & set(FORWARD)]
        update = [number for number, phases in lines.items() if phases & set(_UPDATE)]
        if forward and update:
            spans[function] = (min(forward + update), max(update))
    return spans


def lines_to(phases: Sequence[str], ops: Ops, frames: Sequence[CallFrame]) -> set[Call]:
    """The lines that make torch calls of these phases, or lead to some. Of ``TRAINING``:
    ``trainer.train()``, ``loss = train_step(batch)``."""
    leading, wanted = _leading(ops, frames).items(), set(phases)
    return {(name, line) for name, lines in leading for line, of in lines.items() if wanted & of}


def trains_at(place: Place, ops: Ops | None, trees: CallTrees | None) -> bool:
    """Whether this is one of the lines that lead to TRAINING."""
    lines = lines_to(TRAINING, ops, trees.training if trees else ()) if ops else set()
    return place.spot in {(file, number) for (file, _), number in lines}


def _leading(ops: Ops, frames: Sequence[CallFrame]) -> Leading:
    """For each function the lines that make torch calls or lead to some, and the calls' phases. An
    agent's forward without gradients comes before the step's."""
    found: dict[FunctionKey, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    called, acts = {}, set()
    for x in ops.lines:
        function = function_key(x.at.file, x.at.function)
        if ops.acts and x.phase in ("forward", "prepare") and not x.grad_calls:
            acts.add((function, x.at.line))
        else:
            called[x.at.spot] = x.phase
            found[function][x.at.line].add(x.phase)
    seen = [(called.get((x.file, x.line)), list(stack_up(n, frames))) for n, x in enumerate(frames)]
    acts -= {call for phase, above in seen if phase in TRAINING for call in above}
    for phase, above in seen:
        for function, line in above if phase and acts.isdisjoint(above) else ():
            found[function][line].add(phase or "")
    return found


def chain(line: StackLine, frames: Sequence[CallFrame]) -> Iterator[Call]:
    """The line itself, then its callers, innermost first, in the stack with most samples."""
    mine = [
        number for number, frame in enumerate(frames) if (frame.file, frame.line) == line.at.spot
    ]
    if not mine:
        yield function_key(line.at.file, line.at.function), line.at.line
        return
    yield from stack_up(max(mine, key=lambda number: frames[number].frac), frames)


def stack_up(number: int, frames: Sequence[CallFrame]) -> Iterator[Call]:
    """The user's functions of one stack from this frame up, and their lines."""
    while number >= 0:
        frame = frames[number]
        if frame.user:
            yield function_key(frame.file, frame.name), frame.line
        number = frame.parent


def with_what_it_calls(lines: Sequence[StackLine], frames: Sequence[CallFrame]) -> list[StackLine]:
    """Of the functions through which most of these lines' samples pass, the one with fewest, the
    innermost of several: its own lines, most samples first, then those of what it calls. Empty if
    there is none, or if none of its own lines was sampled."""
    through: dict[FunctionKey, list[StackLine]] = defaultdict(list)
    for line in lines:
        for function in dict.fromkeys(function for function, _ in chain(line, frames)):
            through[function].append(line)
    shares = {function: sum(x.self_frac for x in mine) for function, mine in through.items()}
    most = MAJORITY_FRAC * sum(line.self_frac for line in lines)
    large = [function for function in shares if shares[function] > most]
    if not large:
        return []
    least = min(large, key=lambda function: shares[function])
    own = [x for x in through[least] if function_key(x.at.file, x.at.function) == least]
    return own + [x for x in through[least] if x not in own] if own else []


def function_key(file: str, name: str) -> FunctionKey:
    return file, name.rsplit(".", 1)[-1]
