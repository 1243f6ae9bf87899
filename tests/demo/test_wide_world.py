"""Scenes of the wide world: true captions with exact spans, and further training of the models on them."""

import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import demo
from demo.train_glip import extend_embeddings, remaining, widen_vocabulary
from demo.world.scenes import Curriculum, Scene
from demo.world.wide.looks import BLACK_AND_WHITE, Look, alike, paint
from demo.world.wide.mentions import NUMBERS
from demo.world.wide.scenes import make_wide_scene, mixed_stream
from demo.world.wide.words import GENERAL_NOUNS, perhaps, surely
from pipeline.stages.ground.glip.load import load_glip
from pipeline.stages.ground.glip.text import Prompter

GLIP_WEIGHTS = Path(demo.__file__).parent / "weights" / "glip"
N = 150


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_wide_scene(seed, "fluent") for seed in range(N)]


def test_scene_depends_on_its_seed_only(scenes: list[Scene]) -> None:
    again = make_wide_scene(7, "fluent")
    assert again.caption == scenes[7].caption
    assert np.array_equal(again.image, scenes[7].image)
    assert len({scene.caption for scene in scenes}) > 0.9 * N


def test_boxes_lie_in_the_picture_and_phrases_in_the_caption(scenes: list[Scene]) -> None:
    for scene in scenes:
        side = scene.image.shape[0]
        assert all(0 <= o.box[0] < o.box[2] <= side and 0 <= o.box[1] < o.box[3] <= side for o in scene.objects)
        for phrase in scene.phrases:
            assert 0 <= phrase.start <= phrase.noun_start < phrase.noun_end == phrase.end <= len(scene.caption)
            assert scene.caption[phrase.noun_start : phrase.end].strip()
            assert all(0 <= index < len(scene.objects) for index in phrase.objects)
            assert bool(phrase.objects) == (phrase.kind not in ("absent", "abstract"))


def test_numbers_count_the_objects_of_their_phrase(scenes: list[Scene]) -> None:
    words = {word: n for n, word in NUMBERS.items()}
    found = 0
    for scene in scenes:
        for phrase in scene.phrases:
            first = scene.caption[phrase.start : phrase.end].lower().removeprefix("the ").split()[0]
            if first in words:
                found += 1
                assert len(phrase.objects) == words[first], scene.caption
    assert found > 10


def test_general_nouns_describe_their_objects_and_no_unnamed_ones(scenes: list[Scene]) -> None:
    found = 0
    for scene in scenes:
        named = {i for p in scene.phrases if p.kind in ("object", "count", "contrast") for i in p.objects}
        for phrase in scene.phrases:
            if phrase.kind != "category":
                continue
            noun = scene.caption[phrase.noun_start : phrase.end].lower()
            words = [word for word in GENERAL_NOUNS if noun in (word.noun, word.plural)]
            inside = {scene.objects[index].concept for index in phrase.objects}
            assert any(inside <= surely(word) for word in words), scene.caption
            others = set(range(len(scene.objects))) - named - set(phrase.objects)
            general = {i for p in scene.phrases if p.kind == "category" for i in p.objects}
            outside = {scene.objects[index].concept for index in others & general}
            assert any(not outside & perhaps(word) for word in words), scene.caption
            found += 1
    assert found > 20


def test_absent_nouns_describe_nothing_in_the_picture(scenes: list[Scene]) -> None:
    for scene in scenes:
        concepts = {obj.concept for obj in scene.objects}
        for phrase in scene.phrases:
            if phrase.kind == "absent":
                noun = scene.caption[phrase.noun_start : phrase.end].lower()
                assert noun not in concepts
                assert not any(concepts & surely(word) for word in GENERAL_NOUNS if word.noun == noun), scene.caption


def test_objects_told_apart_have_colours_that_differ_clearly(scenes: list[Scene]) -> None:
    for scene in scenes:
        told = [p for p in scene.phrases if p.kind == "contrast"]
        adjectives = [re.sub(r"^(a|an|the|one|two) ", "", scene.caption[p.start : p.noun_start].lower()) for p in told]
        assert all(adjectives), scene.caption
    assert alike("gray", BLACK_AND_WHITE)
    assert not alike("red", "blue")


@pytest.mark.parametrize("painting", ["ramp", "multiply", "blend", "hue", "colorize", "duotone"])
def test_painted_drawing_has_its_colour(painting: str) -> None:
    rgb = np.random.default_rng(0).integers(60, 220, (20, 20, 3)).astype(np.uint8)
    mean = paint(rgb, rgb[..., 0], Look(colour="red", painting=painting)).reshape(-1, 3).mean(axis=0)
    assert mean[0] > 1.4 * mean[1:].max()


def test_black_and_white_drawing_has_no_colour() -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (20, 20, 3)).astype(np.uint8)
    assert np.ptp(paint(rgb, rgb[..., 0], Look(colour=BLACK_AND_WHITE, painting="gray")), axis=2).max() == 0


def test_stream_continues_where_a_run_stopped() -> None:
    full = Curriculum(dense_first=0.4, dense_last=0.1, n_scenes=20, list_prompt_share=0.2)
    whole = list(islice(mixed_stream(100, ("fluent",), step=1, curriculum=full, wide_share=0.5), 12))
    rest = mixed_stream(106, ("fluent",), step=1, curriculum=remaining(full, 6), wide_share=0.5)
    later = {scene.seed: scene.caption for scene in islice(rest, 4)}
    assert later.items() <= {scene.seed: scene.caption for scene in whole}.items()


@pytest.mark.rest
def test_new_words_start_with_the_embedding_of_their_pieces(tmp_path: Path) -> None:
    old = tmp_path / "old.txt"
    pieces = [p for p in (GLIP_WEIGHTS / "vocab.txt").read_text().splitlines() if p not in ("object", "device")]
    old.write_text("".join(f"{piece}\n" for piece in pieces))
    model = load_glip(GLIP_WEIGHTS)
    widen_vocabulary(old, tmp_path / "new.txt", model.config.text)
    words = (tmp_path / "new.txt").read_text().splitlines()
    assert words[: len(pieces)] == pieces
    assert {"object", "device"} <= set(words[len(pieces) :])
    assert len(words) <= model.config.text.vocab_size
    before = Prompter(old, model.config.text)
    table = model.language_backbone.get_parameter(
        next(n for n, p in model.language_backbone.named_parameters() if p.shape[0] == model.config.text.vocab_size)
    )
    ids = before.tokenizer.encode("object", add_special_tokens=False).ids
    expected = table[ids].mean(dim=0).detach().clone()
    extend_embeddings(model, before, tmp_path / "new.txt")
    assert torch.equal(table[words.index("object")], expected)
