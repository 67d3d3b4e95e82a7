"""What is told of pictures that Pillow decodes in a fetch."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image, ImageFile

from tdiag.probe.pictures import DecodeWatch, draft_scale

SIDE = 512


def opened(kind: str = "JPEG") -> Image.Image:
    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE)).save(file, kind)
    return Image.open(file)


def told(work: Callable[[], Any]) -> dict[str, Any] | None:
    watch = DecodeWatch()
    watch.begin()
    try:
        work()
    finally:
        record = watch.end()
    return record


def scales(work: Callable[[], Any]) -> list[list[int]]:
    record = told(work)
    assert record is not None
    return [entry[:3] for entry in record["shrunk"]]


def drafted() -> Image.Image:
    image = opened()
    image.draft(None, (64, 64))
    return image.resize((64, 64))


def shrunk_late() -> Image.Image:
    image = opened().convert("RGB")
    image.thumbnail((64, 64))
    return image


def test_pictures_decoded_in_full_and_scaled_down_are_told_by_scale() -> None:
    assert scales(lambda: opened().resize((64, 64))) == [[8, 4, 1]]
    assert scales(lambda: opened().convert("L").rotate(7).resize((128, 256))) == [[2, 1, 1]]
    assert scales(shrunk_late) == [[8, 4, 1]]
    both = scales(lambda: (opened().resize((200, 200)), opened().resize((64, 64)), drafted()))
    assert both == [[2, 1, 1], [8, 4, 1]]


@pytest.mark.parametrize(
    "work",
    [
        lambda: opened().convert("RGB"),
        lambda: opened().resize((300, 300)),  # the decoder has no scale between 1 and 1/2
        lambda: opened().crop((0, 0, 400, 400)).resize((64, 64)),
        lambda: opened().resize((64, 64), box=(0, 0, 400, 400)),
        lambda: opened().thumbnail((64, 64)),  # drafts by itself
        drafted,
    ],
)
def test_pictures_that_need_their_pixels_or_were_drafted_are_not(work: Callable[[], Any]) -> None:
    assert scales(work) == []


def test_the_place_is_the_line_that_decodes_the_first_of_them() -> None:
    def read() -> Image.Image:
        image = opened().convert("RGB")
        return image.resize((64, 64))

    record = told(read)
    assert record is not None
    assert record["at"] == [__file__, read.__code__.co_firstlineno + 1, "read"]
    assert (record["size"], record["to"], record["decoded"]) == ([SIDE, SIDE], [64, 64], 1)


def test_decoding_within_resize_is_no_scaling() -> None:
    record = told(lambda: opened().resize((64, 64), Image.Resampling.NEAREST))
    assert record is not None
    (_, _, _, decoding, scaling, between) = record["shrunk"][0]
    assert 0 <= scaling < decoding and between == 0


def test_what_is_done_before_scaling_is_told() -> None:
    record = told(lambda: opened().convert("L").rotate(7).resize((64, 64)))
    assert record is not None and record["shrunk"][0][5] > 0


def test_nothing_is_told_of_other_formats_or_threads() -> None:
    assert told(lambda: opened("PNG").resize((64, 64))) is None

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: opened().resize((64, 64)))
        thread.start()
        thread.join()

    assert told(elsewhere) is None


def test_pillow_is_left_as_it_was() -> None:
    before = ImageFile.ImageFile.load, Image.Image.resize
    with pytest.raises(ValueError):
        told(lambda: opened().resize((64, 64), 99))
    assert (ImageFile.ImageFile.load, Image.Image.resize) == before
    pixels = opened().resize((64, 64)).tobytes()
    made = []
    told(lambda: made.append(opened().resize((64, 64)).tobytes()))
    assert made == [pixels]


@pytest.mark.parametrize("to", [(16, 16), (64, 100), (100, 300), (256, 256), (257, 256)])
def test_the_scale_is_pillows_own(to: tuple[int, int]) -> None:
    image = opened()
    image.draft(None, to)
    assert image.size == (SIDE // draft_scale((SIDE, SIDE), to),) * 2
