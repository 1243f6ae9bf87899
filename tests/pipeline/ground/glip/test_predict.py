"""The grounder: images, captions and spans in, boxes out."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from common.images import Image
from pipeline.ground.glip.config import CONFIGS
from pipeline.ground.glip.images import MEAN_BGR, STD_BGR, batch_images, network_size, normalise, padded_size, resize
from pipeline.ground.glip.load import save_glip
from pipeline.ground.glip.predict import GlipGrounder, Precision, Prepared, load_glip_grounder
from pipeline.ground.glip.text import Plan, Prompter
from pipeline.ground.grounder import Detection
from tests.pipeline.ground.glip.tiny import TINY, tiny_model, write_vocab


@pytest.fixture(scope="module")
def grounder(tmp_path_factory: pytest.TempPathFactory) -> GlipGrounder:
    prompter = Prompter(write_vocab(tmp_path_factory.mktemp("vocab")), TINY.text)
    return GlipGrounder(tiny_model(), prompter, torch.device("cpu"), 0.0, "caption")


def picture(height: int, width: int, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def assert_close(found: list[Detection] | None, wanted: list[Detection] | None) -> None:
    assert found is not None
    assert wanted is not None
    assert len(found) == len(wanted) > 0
    for mine, other in zip(found, wanted, strict=True):
        assert mine.phrase == other.phrase
        assert mine.score == pytest.approx(other.score, abs=1e-4)
        assert mine.box == pytest.approx(other.box, abs=1e-4)


def ask(grounder: GlipGrounder, images: list[Image], captions: list[str], spans: list) -> list[list[Detection] | None]:
    """Boxes of each image; None where no phrase can be asked for."""
    answers = grounder.collect(grounder.forward(grounder.prepare(images, captions, spans)))
    return [
        None if len(answer.dropped) == len(own) else answer.boxes for answer, own in zip(answers, spans, strict=True)
    ]


def test_an_image_gets_the_same_boxes_alone_and_in_any_batch(grounder: GlipGrounder) -> None:
    images = [picture(96, 96), picture(48, 60, 1), picture(96, 90, 2), picture(60, 48, 3)]
    captions = ["a red dog", "two dogs on a sofa", "dog", "the tennis racket left of a person"]
    spans = [[(2, 9)], [(0, 8), (12, 18)], [(0, 3)], [(0, 17), (26, 34)]]
    together = ask(grounder, images, captions, spans)
    for i, found in enumerate(together):
        assert_close(found, ask(grounder, images[i : i + 1], captions[i : i + 1], spans[i : i + 1])[0])


def test_one_bad_member_spoils_no_batch(grounder: GlipGrounder) -> None:
    images = [picture(96, 96), picture(1, 1), picture(3, 900), picture(96, 96, 4), picture(96, 96, 5)]
    captions = ["a dog", "a dog", "a dog", "\U0001f600\U0001f680", ""]
    spans = [[(0, 5)], [(0, 5)], [(0, 5)], [(0, 1)], [(3, 9)]]
    found = ask(grounder, images, captions, spans)
    assert [row is None for row in found] == [False, False, False, True, True]
    assert_close(found[0], ask(grounder, images[:1], captions[:1], spans[:1])[0])
    boxes = np.array([d.box for row in found for d in row or []])
    assert (boxes >= 0).all()
    assert (boxes <= 1).all()


def test_phrases_past_one_prompt_are_all_asked_for(grounder: GlipGrounder) -> None:
    caption = "red dog " * 40
    spans = [(8 * i, 8 * i + 7) for i in range(40)]
    found = ask(grounder, [picture(96, 96)], [caption], [spans])[0]
    assert found is not None
    assert {d.phrase for d in found} <= set(range(40))
    assert len({d.phrase // 15 for d in found}) > 1  # boxes from several prompts


def test_the_image_tower_runs_once_however_many_prompts_a_caption_needs(
    grounder: GlipGrounder, monkeypatch: pytest.MonkeyPatch
) -> None:
    caption = "red dog " * 40
    spans = [(8 * i, 8 * i + 7) for i in range(40)]
    calls: list[int] = []
    handle = grounder.model.backbone.register_forward_hook(lambda _, inputs, __: calls.append(len(inputs[0])))
    images, captions = [picture(96, 96), picture(96, 96, 1)], [caption, "a dog"]
    together = ask(grounder, images, captions, [spans, [(0, 5)]])
    handle.remove()
    assert calls == [2]
    plan = grounder.prompter.plan(caption, spans, "caption")
    assert len(plan.prompts) > 2
    for prompt in plan.prompts:  # as if each prompt were a caption of its own, on an image of its own
        alone = Prepared(
            sizes=[(96, 96)], plans=[Plan(prompts=(prompt,), dropped=())], groups=[([0], batch_images(images[:1]))]
        )
        numbers = {index for index, _ in prompt.phrases}
        assert together[0] is not None
        assert_close(
            [d for d in together[0] if d.phrase in numbers], grounder.collect(grounder.forward(alone))[0].boxes
        )


def test_phrases_that_cannot_be_asked_for_are_named(grounder: GlipGrounder) -> None:
    caption = "dog \U0001f600     " + "dog " * 40
    spans = [(0, 3), (4, 5), (6, 9), (11, len(caption)), (0, 999)]
    (answer,) = grounder.collect(grounder.forward(grounder.prepare([picture(96, 96)], [caption], [spans])))
    assert answer.dropped == {1: "unknown_words", 2: "no_word_piece", 3: "too_many_word_pieces", 4: "bad_span"}
    assert {d.phrase for d in answer.boxes} == {0}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_finds_nearly_the_same_boxes(grounder: GlipGrounder, precision: Precision) -> None:
    half = GlipGrounder(grounder.model, grounder.prompter, torch.device("cpu"), 0.0, "caption", precision)
    batch = ([picture(96, 96)], ["a red dog on a sofa"], [[(0, 9), (13, 19)]])
    (exact,), (near,) = ask(grounder, *batch), ask(half, *batch)
    assert exact is not None
    assert near is not None
    assert {d.phrase for d in near} == {0, 1}
    best, other = (max(found, key=lambda d: d.score) for found in (exact, near))
    assert other.score == pytest.approx(best.score, abs=0.02)
    partner = min(near, key=lambda d: np.abs(np.subtract(d.box, best.box)).max() + (d.phrase != best.phrase))
    assert partner.box == pytest.approx(best.box, abs=0.03)
    dtypes = []
    handle = grounder.model.rpn.register_forward_hook(lambda _, __, out: dtypes.extend(x.dtype for x in out))
    ask(half, *batch)
    handle.remove()
    assert set(dtypes) == {torch.float32}  # logits and box deltas


def test_a_floor_leaves_out_the_boxes_below_it_and_no_others(grounder: GlipGrounder) -> None:
    batch = ([picture(96, 96)], ["a red dog on a sofa"], [[(0, 9), (13, 19)]])
    (every,) = ask(grounder, *batch)
    assert every is not None
    floor = sorted(d.score for d in every)[len(every) // 2]
    (some,) = ask(GlipGrounder(grounder.model, grounder.prompter, torch.device("cpu"), floor, "caption"), *batch)
    assert_close(some, [d for d in every if d.score >= floor])


def test_images_of_one_padded_size_share_a_bucket(grounder: GlipGrounder) -> None:
    assert grounder.bucket(96, 100) == grounder.bucket(96, 128) == grounder.bucket(48, 60) == (96, 128)
    assert grounder.bucket(128, 96) == (128, 96)


def test_an_empty_batch_is_no_trouble(grounder: GlipGrounder) -> None:
    assert ask(grounder, [], [], []) == []


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((480, 640), (800, 1066)),
        ((640, 480), (1066, 800)),
        ((500, 1000), (666, 1332)),  # the long side's limit decides
        ((800, 1333), (800, 1333)),
        ((1, 1), (800, 800)),
        ((1, 10_000), (1, 1333)),
        ((10_000, 3), (1333, 1)),
    ],
)
def test_network_sizes_follow_the_short_side_up_to_the_long_sides_limit(
    size: tuple[int, int], wanted: tuple[int, int]
) -> None:
    assert network_size(*size, CONFIGS["glip_t"].detect) == wanted


def test_images_become_bgr_normalised_and_zero_padded() -> None:
    image = np.zeros((20, 33, 3), np.uint8)
    image[..., 0] = 200  # red
    batch = normalise(batch_images([image]), [(20, 33)])
    assert tuple(batch.shape) == (1, 3, *padded_size((20, 33))) == (1, 3, 32, 64)
    red = (200 - MEAN_BGR[2]) / STD_BGR[2]
    assert batch[0, 2, 0, 0].item() == pytest.approx(red)
    assert batch[0, 0, 0, 0].item() == pytest.approx(-MEAN_BGR[0] / STD_BGR[0])
    assert not batch[0, :, 20:].any()
    assert not batch[0, :, :, 33:].any()


def test_resizing_keeps_an_image_of_the_right_size() -> None:
    image = picture(10, 12)
    assert resize(image, (10, 12)) is image
    assert resize(image, (20, 24)).shape == (20, 24, 3)


def test_a_compiled_network_finds_the_same_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_glip(tmp_path, tiny_model().state_dict(), TINY, write_vocab(tmp_path))
    plain = load_glip_grounder(tmp_path, torch.device("cpu"), 0.0, "caption")
    # Tracing is what our code can break; generating C++ for it takes minutes and is torch's own business.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    compiled = load_glip_grounder(tmp_path, torch.device("cpu"), 0.0, "caption", compile=True)
    for size in ((96, 96), (96, 150)):
        batch = ([picture(*size)], ["a red dog on a sofa"], [[(0, 9), (13, 19)]])
        assert_close(ask(compiled, *batch)[0], ask(plain, *batch)[0])
