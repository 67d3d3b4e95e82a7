"""Pictures are decoded in full and then scaled down

## What it measures
In the fetches: JPEG pictures that Pillow decoded in full size and that `resize` (or `thumbnail`,
or torchvision's `Resize`) then scaled as a whole to at most half their width and height; the CPU
time of decoding and of scaling them.

## Why it is slow
The decoder writes and the scaling reads 4 to 64 times as many pixels as needed.

## What to do
Call `image.draft(None, (width, height))` between `Image.open` and the first use: the JPEG decoder
then makes the picture at 1/2, 1/4 or 1/8, at least as large as requested. `thumbnail` does this by
itself, unless `convert` or `load` came first. If pictures are always scaled to one size, store them
in that size. `torchvision.io.decode_jpeg(..., device="cuda")` decodes on the device, in full size.

## How the gain is computed
From the CPU time of decoding and scaling these pictures. High end: the picture is drafted to its
final size. Then 28 % of the decoding time is left, and a quarter of the scaling time, divided by
the draft scale; work between the two (`convert`, `rotate`) shrinks with the number of pixels. Low
end: it is drafted to twice that size, as `thumbnail` does. Then 93 % of the decoding time is left,
and three quarters of the scaling time, divided by the draft scale.

## When this advice is wrong
Drafted pictures differ a little from pictures scaled from full size. A random crop of the full
picture needs its pixels: pictures of which only a part is scaled are not counted. A program that
also keeps the full picture must not draft it. PNG decoders cannot do this. tdiag does not see what
OpenCV decodes (its counterpart of `draft` is `IMREAD_REDUCED_COLOR_2`).
"""

from __future__ import annotations

from tdiag.evidence.feeding import Loaders, Pictures, Shrunk
from tdiag.evidence.machine import System, Threads
from tdiag.evidence.steps import Budget, Phases
from tdiag.evidence.store import Evidence
from tdiag.model.diagnosis import Fix
from tdiag.model.threshold import Threshold
from tdiag.rules.base import DATA_WAIT, Found, Gain, count, ns, text, where
from tdiag.rules.examples import MS, at, budget, loaders, system
from tdiag.rules.feed import feed_of, share_of_rank
from tdiag.rules.fetch_lines import dataset_place, takes_batches
from tdiag.units import duration, percent

CODE = "TD220"
NAME = "pictures-decoded-too-large"
CLASS = "cpu"
UNTRIED = "the line that opens the picture must draft it; `ceiling.data` bounds the gain"
AFTER = {"TD209": "stored samples are not decoded again"}

_HOW = "(benchmarks/rule_constants.py td220)."
DECODING_LEFT_LEAST = Threshold(
    0.28,
    "of the decoding",
    "Measured with Pillow 13 and libjpeg-turbo on one core, pictures of 512 × 384 to 4000 × 3000,"
    f" qualities 75 to 95: 0.28 to 0.93 of the CPU time is left {_HOW}",
)
DECODING_LEFT_MOST = Threshold(
    0.93,
    "of the decoding",
    f"Measured with DECODING_LEFT_LEAST: most where every few pixels differ {_HOW}",
)
RESIZING_LEFT_LEAST = Threshold(
    0.25,
    "of the scaling, times the scale",
    "Measured with DECODING_LEFT_LEAST, bilinear to half the drafted size: 0.26 at 1/8, 0.48 at"
    f" 1/4, 0.74 at 1/2 {_HOW}",
)
RESIZING_LEFT_MOST = Threshold(
    0.75,
    "of the scaling, times the scale",
    f"Measured with RESIZING_LEFT_LEAST: most at 1/2 {_HOW}",
)


def check(
    budget: Budget,
    loaders: Loaders,
    system: System,
    phases: Phases | None,
    threads: Threads | None,
) -> Found | None:
    fed = feed_of(budget, loaders, phases, share_of_rank(system, threads))
    pictures = fed.loader.pictures if fed else None
    if fed is None or pictures is None or not pictures.size or not pictures.to:
        return None
    spent = sum(part.decode_ns + part.resize_ns for part in pictures.shrunk) * fed.batches
    between = sum(part.between_ns for part in pictures.shrunk) * fed.batches
    low, high = (fed.with_queueing(saved * fed.batches) for saved in _saved(pictures))
    shrunk = sum(part.pictures for part in pictures.shrunk)
    size, to = (f"{width} × {height}" for width, height in (pictures.size, pictures.to))
    place = pictures.at
    if place is None or takes_batches(place, fed.loader, ()):  # a library's dataset opens them
        place = dataset_place(fed.loader)
    return Found(
        summary=(
            f"Pillow decodes JPEG pictures in full ({size}) and then scales them down"
            f" ({to}){where(place)}: {duration(spent)} on a core per step,"
            f" {percent(spent / fed.cpu)} of the fetch's CPU time."
        ),
        evidence=(
            count("pictures decoded in full and scaled down, per batch", shrunk, "fetch"),
            count("JPEG pictures decoded, per batch", pictures.decoded, "fetch"),
            ns("decoding them, on a core, per step", _decoding(pictures) * fed.batches, "fetch"),
            ns("scaling them, on a core, per step", spent - _decoding(pictures) * fed.batches,
               "fetch"),
            ns("between the two, on a core, per step", between, "fetch"),
            text("size decoded, of the first", size, "fetch"),
            text("size after scaling, of the first", to, "fetch"),
            *fed.measures(),
        ),
        fix=Fix(
            "Let the JPEG decoder scale: call the picture's draft() right after Image.open,"
            f" before the picture is read{where(place)}.",
            "review",
            action="Decode pictures no larger than needed",
            code=(
                "image = Image.open(path)\n"
                f"image.draft(None, {tuple(pictures.to)})  # decodes at 1/2, 1/4 or 1/8"
            ),
        ),
        gain=Gain(
            fed.gain_of_saving(low),
            fed.gain_of_saving(high),
            f"high end: {percent(DECODING_LEFT_LEAST)} of the decoding is left, and little of the"
            " scaling and of the work before it; low end:"
            f" {percent(DECODING_LEFT_MOST)} of the decoding, drafted to twice the size.",
            DATA_WAIT,
            fetches=True,
        ),
        at=place,
    )  # fmt: skip


def _decoding(pictures: Pictures) -> float:
    return sum(part.decode_ns for part in pictures.shrunk)


def _saved(pictures: Pictures) -> tuple[float, float]:
    """CPU time, at least and at most, ns per batch."""
    low = high = 0.0
    for part in pictures.shrunk:
        high += part.decode_ns * (1 - DECODING_LEFT_LEAST)
        high += part.resize_ns * (1 - RESIZING_LEFT_LEAST / part.scale)
        high += part.between_ns * (1 - 1 / part.scale**2)
        if part.careful_scale > 1:
            low += part.decode_ns * (1 - DECODING_LEFT_MOST)
            low += part.resize_ns * (1 - RESIZING_LEFT_MOST / part.careful_scale)
    return low, high


def fires() -> Evidence:
    """Photographs of 12 megapixels for a network that takes 224 × 224."""
    return _fetching((4000, 3000), 8)


def clear() -> Evidence:
    """Pictures stored at the size that is needed: none is scaled by more than 2."""
    return _fetching(None, 0)


def _fetching(size: tuple[int, int] | None, scale: int) -> Evidence:
    part = Shrunk(
        scale=scale,
        careful_scale=scale,
        pictures=64.0,
        decode_ns=30.0 * MS,
        resize_ns=14.0 * MS,
        between_ns=5.0 * MS,
    )
    pictures = Pictures(
        decoded=64.0,
        shrunk=(part,) if size else (),
        at=at(14, "__getitem__") if size else None,
        size=size,
        to=(299, 224) if size else None,
    )
    fed = loaders(num_workers=4, pictures=pictures)
    step = budget(data_wait_cpu=60, forward=8, backward=10, optimizer=2)
    return Evidence().add(step, fed, system())
