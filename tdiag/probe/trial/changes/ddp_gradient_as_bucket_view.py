"""Gradients lie in the buckets that ranks exchange."""

from ..change import SAME, Change, switch
from ..ddp_arguments import argument

CHANGE = Change(
    name="ddp.gradient_as_bucket_view",
    does="DistributedDataParallel copies no gradients: they are views of the reduced buckets.",
    safety=SAME,
    parse=switch,
    absent="no DistributedDataParallel was made",
    limits="a script that calls detach_() on a gradient fails",
    edit="DistributedDataParallel(model, gradient_as_bucket_view=True)",
    install=argument("gradient_as_bucket_view"),
)
