"""Ranks do not send each other the model's buffers."""

from ..change import SAME, Change, off
from ..ddp_arguments import argument

CHANGE = Change(
    name="ddp.broadcast_buffers",
    does="DistributedDataParallel does not send rank 0's buffers before each forward.",
    safety=SAME,
    takes="off",
    parse=off,
    absent="no DistributedDataParallel was made",
    limits="buffers that a step changes (the averages of batch norms) then differ between ranks",
    edit="DistributedDataParallel(model, broadcast_buffers=False)",
    install=argument("broadcast_buffers", given=False, unset=True, newer="forward_sync_buffers"),
)
