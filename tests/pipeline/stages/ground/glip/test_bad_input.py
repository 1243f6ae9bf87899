"""Unusual rows: GLIP grounds or drops them, and the other rows of their table are not affected."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import PIL.Image
import pytest

from pipeline.stages.ground.glip.load import save_glip
from pipeline.stages.ground.load import GroundConfig
from pipeline.stages.ground.stage import Ground
from tests.pipeline.rows import table_after
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model, write_vocab


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("glip")
    config = replace(TINY, detect=replace(TINY.detect, max_boxes=3))
    save_glip(folder, tiny_model(config).state_dict(), config, write_vocab(folder))
    return Ground(GroundConfig(grounder=str(folder), device="cpu", floor=0.0))


def encoded(mode: str, width: int, height: int) -> bytes:
    """Encode an image of noise in a colour mode, in a file format that supports it."""
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 4), np.uint8)
    match mode:
        case "I;16":
            image = PIL.Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
        case "L":
            image = PIL.Image.fromarray(noise[..., 0])
        case "CMYK":
            image = PIL.Image.fromarray(noise, mode="CMYK")
        case _:
            image = PIL.Image.fromarray(noise[..., : len(mode)])
    file = io.BytesIO()
    image.save(file, "PNG" if mode in ("I;16", "RGBA") else "JPEG", **({} if mode == "I;16" else {"quality": 95}))
    return file.getvalue()


def parsed_row(
    image: bytes, width: int, height: int, caption: str = "a red dog", *spans: tuple[int, int]
) -> dict[str, Any]:
    chunks = [{"start": s, "end": e, "root": 0, "removed": None} for s, e in spans or [(0, len(caption))]]
    return {"caption": caption, "noun_chunks": chunks, "width": width, "height": height, "image": image}


def ordinary_row() -> dict[str, Any]:
    return parsed_row(encoded("RGB", 96, 96), 96, 96)


def test_images_of_any_shape_and_colour_mode_are_grounded_beside_an_ordinary_one(ground: Ground) -> None:
    kinds = [("L", 60, 40), ("CMYK", 60, 40), ("I;16", 60, 40), ("RGBA", 60, 40), ("RGB", 1, 1), ("RGB", 2000, 4)]
    unusual = [parsed_row(encoded(mode, w, h), w, h) for mode, w, h in kinds]
    unusual.append(parsed_row(encoded("RGB", 60, 40), 60, 40) | {"width": None, "height": None})
    table = ground(table_after("parse", [ordinary_row(), *unusual]))
    assert table["status"].to_pylist() == ["kept"] * 8
    for boxes in table["boxes"].to_pylist():
        assert boxes
        assert all(0 <= box[side] <= 1 for box in boxes for side in ("x_min", "y_min", "x_max", "y_max"))
    (alone,) = ground(table_after("parse", [ordinary_row()]))["boxes"].to_pylist()
    assert len(alone) == len(table["boxes"][0])
    for box, box_alone in zip(table["boxes"][0].as_py(), alone, strict=True):
        assert box["score"] == pytest.approx(box_alone["score"], abs=1e-4)


def test_captions_without_a_groundable_phrase_are_dropped_with_the_reason_and_other_rows_are_not(
    ground: Ground,
) -> None:
    image = encoded("RGB", 96, 96)
    emoji = parsed_row(image, 96, 96, "\U0001f600\U0001f680")
    outside = parsed_row(image, 96, 96, "dog", (1, 99))
    blank = parsed_row(image, 96, 96, "dog       dog", (3, 10))
    table = ground(table_after("parse", [emoji, ordinary_row(), outside, blank]))
    assert table["reason"].to_pylist() == ["ungroundable", None, "ungroundable", "ungroundable"]
    assert table["detail"].to_pylist() == ["unknown_words", None, "bad_span", "no_word_piece"]
    assert len(table["boxes"][1]) > 0


def test_each_of_two_hundred_phrases_is_grounded_or_removed(ground: Ground) -> None:
    caption = "red dog " * 199 + "x" * 200
    spans = [(8 * i, 8 * i + 7) for i in range(199)] + [(199 * 8, len(caption))]
    many_phrases = parsed_row(encoded("RGB", 96, 96), 96, 96, caption, *spans)
    table = ground(table_after("parse", [many_phrases, ordinary_row()]))
    assert table["status"].to_pylist() == ["kept", "kept"]
    removed = [chunk["removed"] for chunk in table["noun_chunks"][0].as_py()]
    assert removed[:199] == [None] * 199
    assert removed[199] in ("too_many_word_pieces", "unknown_words")
