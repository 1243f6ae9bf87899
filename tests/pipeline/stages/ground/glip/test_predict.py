"""GLIP as a grounder: boxes for images, captions and spans."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu.glip import compile_image_tower
from hypergrit_common.images import Image
from pipeline.stages.ground.glip.config import CONFIGS
from pipeline.stages.ground.glip.load import save_glip
from pipeline.stages.ground.glip.predict import (
    MEAN_BGR,
    STD_BGR,
    GlipGrounder,
    Precision,
    Prepared,
    batch_images,
    load_glip_grounder,
    network_size,
    normalise,
    padded_size,
    resize_bilinear,
)
from pipeline.stages.ground.glip.text import Plan, Prompter
from pipeline.stages.ground.grounder import Detection
from tests.pipeline.stages.ground.glip.tiny import TINY, tiny_model, write_vocab


@pytest.fixture(scope="module")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> GlipGrounder:
    prompter = Prompter(write_vocab(tmp_path_factory.mktemp("vocab")), TINY.text)
    return GlipGrounder(tiny_model(), prompter, torch.device("cpu"), 0.0)


def noise(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def assert_close(found: list[Detection] | None, expected: list[Detection] | None) -> None:
    assert found is not None
    assert expected is not None
    assert len(found) == len(expected) > 0
    for box, expected_box in zip(found, expected, strict=True):
        assert box.phrase == expected_box.phrase
        assert box.score == pytest.approx(expected_box.score, abs=1e-4)
        assert box.box == pytest.approx(expected_box.box, abs=1e-4)


def predict(
    grounder: GlipGrounder, images: list[Image], captions: list[str], spans: list
) -> list[list[Detection] | None]:
    """Boxes of each image; None if all its phrases are dropped."""
    grounded = grounder.collect(grounder.forward(grounder.prepare(images, captions, spans)))
    return [
        None if len(item.dropped) == len(phrases) else item.boxes for item, phrases in zip(grounded, spans, strict=True)
    ]


def test_boxes_of_noun_chunks_are_the_same_beside_expressions(grounder: GlipGrounder) -> None:
    image, caption, chunks = noise(96, 96), "a red dog on the sofa", [(0, 9), (13, 21)]
    alone, beside = (predict(grounder, [image], [caption], [spans])[0] for spans in (chunks, [*chunks, (0, 21)]))
    assert alone == [box for box in beside or () if box.phrase < 2]
    assert any(box.phrase == 2 for box in beside or ())


def test_an_image_has_the_same_boxes_alone_and_in_a_batch(grounder: GlipGrounder) -> None:
    images = [noise(96, 96), noise(48, 60, 1), noise(96, 90, 2), noise(60, 48, 3)]
    captions = ["a red dog", "two dogs on a sofa", "dog", "the tennis racket left of a person"]
    spans = [[(2, 9)], [(0, 8), (12, 18)], [(0, 3)], [(0, 17), (26, 34)]]
    together = predict(grounder, images, captions, spans)
    for i, found in enumerate(together):
        assert_close(found, predict(grounder, images[i : i + 1], captions[i : i + 1], spans[i : i + 1])[0])


def test_the_image_tower_runs_once_per_image_even_with_several_prompts(
    grounder: GlipGrounder, monkeypatch: pytest.MonkeyPatch
) -> None:
    caption = "red dog " * 40
    spans = [(8 * i, 8 * i + 7) for i in range(40)]
    calls: list[int] = []
    handle = grounder.model.backbone.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
    images, captions = [noise(96, 96), noise(96, 96, 1)], [caption, "a dog"]
    together = predict(grounder, images, captions, [spans, [(0, 5)]])
    handle.remove()
    assert calls == [2]
    plan = grounder.prompter.plan(caption, spans)
    assert len(plan.prompts) > 2
    for prompt in plan.prompts:  # each prompt alone gives the same boxes
        alone = Prepared(
            sizes=[(96, 96)], plans=[Plan(prompts=(prompt,), dropped=())], groups=[([0], batch_images(images[:1]))]
        )
        phrases = {item.phrase for item in prompt.phrases}
        assert together[0] is not None
        assert_close(
            [d for d in together[0] if d.phrase in phrases], grounder.collect(grounder.forward(alone))[0].boxes
        )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_finds_nearly_the_same_boxes(grounder: GlipGrounder, precision: Precision) -> None:
    half = GlipGrounder(grounder.model, grounder.prompter, torch.device("cpu"), 0.0, precision)
    batch = ([noise(96, 96)], ["a red dog on a sofa"], [[(0, 9), (13, 19)]])
    (exact,), (in_half,) = predict(grounder, *batch), predict(half, *batch)
    assert exact is not None
    assert in_half is not None
    assert {d.phrase for d in in_half} == {0, 1}
    best, best_in_half = (max(found, key=lambda d: d.score) for found in (exact, in_half))
    assert best_in_half.score == pytest.approx(best.score, abs=0.02)
    partner = min(in_half, key=lambda d: np.abs(np.subtract(d.box, best.box)).max() + (d.phrase != best.phrase))
    assert partner.box == pytest.approx(best.box, abs=0.03)
    dtypes = []
    handle = grounder.model.rpn["head"].register_forward_hook(lambda _, __, out: dtypes.extend(x.dtype for x in out))
    predict(half, *batch)
    handle.remove()
    assert set(dtypes) == {torch.float32}  # logits and box deltas


def test_a_floor_removes_exactly_the_boxes_below_it(grounder: GlipGrounder) -> None:
    batch = ([noise(96, 96)], ["a red dog on a sofa"], [[(0, 9), (13, 19)]])
    (all_boxes,) = predict(grounder, *batch)
    assert all_boxes is not None
    floor = sorted(d.score for d in all_boxes)[len(all_boxes) // 2]
    (above_floor,) = predict(GlipGrounder(grounder.model, grounder.prompter, torch.device("cpu"), floor), *batch)
    assert_close(above_floor, [d for d in all_boxes if d.score >= floor])


def test_images_of_one_padded_size_share_a_bucket(grounder: GlipGrounder) -> None:
    assert grounder.bucket(96, 100) == grounder.bucket(96, 128) == grounder.bucket(48, 60) == (96, 128)
    assert grounder.bucket(128, 96) == (128, 96)


def test_an_empty_batch_gives_no_result(grounder: GlipGrounder) -> None:
    assert predict(grounder, [], [], []) == []


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((480, 640), (800, 1066)),
        ((640, 480), (1066, 800)),
        ((500, 1000), (666, 1332)),  # limited by the longer side
        ((800, 1333), (800, 1333)),
        ((1, 1), (800, 800)),
        ((1, 10_000), (1, 1333)),
        ((10_000, 3), (1333, 1)),
    ],
)
def test_images_are_resized_by_the_shorter_side_within_the_limit_of_the_longer_side(
    size: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert network_size(*size, CONFIGS["glip_t"].detect) == expected


def test_images_are_converted_to_bgr_normalised_and_zero_padded() -> None:
    image = np.zeros((20, 33, 3), np.uint8)
    image[..., 0] = 200  # red
    batch = normalise(batch_images([image]), [(20, 33)])
    assert tuple(batch.shape) == (1, 3, *padded_size((20, 33))) == (1, 3, 32, 64)
    red = (200 - MEAN_BGR[2]) / STD_BGR[2]
    assert batch[0, 2, 0, 0].item() == pytest.approx(red)
    assert batch[0, 0, 0, 0].item() == pytest.approx(-MEAN_BGR[0] / STD_BGR[0])
    assert not batch[0, :, 20:].any()
    assert not batch[0, :, :, 33:].any()


def test_an_image_of_the_right_size_is_not_copied() -> None:
    image = noise(10, 12)
    assert resize_bilinear(image, (10, 12)) is image
    assert resize_bilinear(image, (20, 24)).shape == (20, 24, 3)


@pytest.mark.rest
def test_a_compiled_network_finds_the_same_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(TINY, backbone=replace(TINY.backbone, depths=(1, 1, 1, 2)))
    save_glip(tmp_path, tiny_model(config).state_dict(), config, write_vocab(tmp_path))
    plain = load_glip_grounder(tmp_path, torch.device("cpu"), 0.0)
    # This tests that the code can be traced; generating C++ takes minutes and is tested by torch.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    compiled = load_glip_grounder(tmp_path, torch.device("cpu"), 0.0)
    compile_image_tower(compiled.model)
    for size in ((96, 96), (96, 150)):
        batch = ([noise(*size)], ["a red dog on a sofa"], [[(0, 9), (13, 19)]])
        assert_close(predict(compiled, *batch)[0], predict(plain, *batch)[0])
