"""Ranks exchange gradients in buckets of this size."""

from ..change import ROUNDING, Change, number
from ..ddp_arguments import argument

CHANGE = Change(
    name="ddp.bucket_cap_mb",
    does="DistributedDataParallel reduces gradients in buckets of this many MiB.",
    safety=ROUNDING,
    takes="N",
    parse=number(1),
    absent="no DistributedDataParallel was made",
    limits="the first bucket has another size; a model smaller than a bucket has only one",
    edit="DistributedDataParallel(model, bucket_cap_mb=N)",
    install=argument("bucket_cap_mb"),
)
