"""Ranks keep their own gradients."""

import functools
from typing import Any

from ...patches import hidden
from ...wire import COLD
from ..change import CEILING, TRAINING, Change, Trial, switch

NAME = "ceiling.communication"


def install(trial: Trial, value: bool) -> None:
    """Gradients are exchanged until the ranks are first held, so that all are held at the same
    step. From then on every rank runs the same number of steps per turn and needs no exchange."""
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
    from torch.nn.parallel import DistributedDataParallel

    init = DistributedDataParallel.__init__
    register = DistributedDataParallel.register_comm_hook
    users: dict[int, tuple[Any, Any]] = {}  # the script's own hook, by the model's number
    held = [False]

    @functools.wraps(init)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        model = id(self)

        def hook(group, bucket):  # type: ignore[no-untyped-def]  # torch checks annotations
            held[0] = held[0] or trial.probe.window == COLD
            if not held[0]:
                state, own = users.get(model, (group, default_hooks.allreduce_hook))
                return own(state, bucket)
            trial.answer(NAME)
            trial.applied(NAME, "gradients are not reduced")
            return debugging_hooks.noop_hook(None, bucket)

        register(self, self.process_group, hook)

    @functools.wraps(register)
    def register_comm_hook(self: Any, state: object, hook: Any) -> None:
        users[id(self)] = state, hook

    trial.patches.set(DistributedDataParallel, "__init__", hidden(made))
    trial.patches.set(DistributedDataParallel, "register_comm_hook", hidden(register_comm_hook))


CHANGE = Change(
    name=NAME,
    does="DistributedDataParallel's gradients are not exchanged between ranks.",
    safety=TRAINING,
    kind=CEILING,
    rare=True,
    parse=switch,
    absent="no gradients of a DistributedDataParallel were reduced",
    limits="buffers that are broadcast before a forward, collectives that the script calls itself,"
    " and FSDP stay",
    install=install,
)
