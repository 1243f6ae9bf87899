"""Evaluation sets of the study in the files of the benchmarks, for the tasks of `trainer.evaluate`.

    test/, validation/
        own/scenes/         whole scenes with one object, with a tree of WordNet hypernyms
        coco/               scenes with two captions each, and the images of the hard negatives
    test/
        own/unseen_style/   whole scenes with one object in an art style that no model was trained on
        sugarcrepe/         seven files of true and false captions
        vl_checklist/       object by location and size, attribute by colour and size, relation by space
        chains/             chains of four captions, from a general word to the caption
        held_out/           link to held-out shards with true boxes
        traversal/          images and texts for the walks to the root
    unseen/, seen/          two files in SugarCrepe's form about pairs that the training never shows, or does

Scenes come from seeds that no training uses.
"""

import csv
import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

from demo.paper.hard_negatives import (
    COMBINATIONS,
    SUGARCREPE,
    VL_CHECKLIST,
    Captions,
    Maker,
    View,
    object_columns,
    view_of,
)
from demo.paper.scenes import style_of
from demo.paper.sizes import Size
from demo.train_demo_data import JPEG_QUALITY
from demo.world.captions import article, write_caption
from demo.world.layout import draw_layout
from demo.world.scenes import DEFAULT, HELD_OUT_SEEDS, compose, make_scene
from demo.world.sprites import HELD_OUT_STYLE, Style
from demo.world.vocabulary import CATEGORY_NOUNS, COLOURS, CONCEPTS, category_nouns
from hypergrit_common.json_file import write_object
from pipeline.images import encode_jpeg
from trainer.evaluation.tasks.vlchecklist import COLUMNS

FIRST: Final = {
    name: HELD_OUT_SEEDS[number * len(HELD_OUT_SEEDS) // 5]
    for number, name in enumerate(("held_out", "validation", "singles", "test", "combinations"))
}
"""First seeds of the scenes."""
OBJECT_COLUMNS: Final = [folder for column, folder in COLUMNS.items() if column.startswith("object/")]
MAX_SCENES_PER_PAIR: Final = 400
"""Scenes that are searched for each pair of a file before the file stays shorter."""
N_WALKS: Final = 4
PROMPTS: Final = ("{}", "a {}", "the {}")
Pairs = dict[str, list[tuple[int, Captions]]]
"""Seeds of images with their captions, by file."""


def write_sets(folder: Path, size: Size, shards: Path) -> None:
    """Write all sets to `folder`; the held-out shards become a link to `shards`."""
    shutil.rmtree(folder, ignore_errors=True)
    test, validation = folder / "test", folder / "validation"
    n, half = size.pictures, -(-size.pictures // 3)
    singles = single_scenes(FIRST["singles"], n + half)
    write_concepts(test / "own" / "scenes", {name: seeds[:n] for name, seeds in singles.items()})
    write_concepts(validation / "own" / "scenes", {name: seeds[n:] for name, seeds in singles.items()})
    write_concepts(
        test / "own" / "unseen_style", {k: seeds[: n // 3 + 1] for k, seeds in singles.items()}, HELD_OUT_STYLE
    )
    pairs = find_pairs(size.pairs)
    captioned = range(FIRST["test"], FIRST["test"] + size.captioned)
    write_images(test, {*captioned, *(seed for found in pairs.values() for seed, _ in found)})
    write_captions(test / "coco" / "annotations", captioned)
    write_negatives(test, pairs)
    write_chains(test / "chains", size.captioned // 4)
    write_walks(test / "traversal", test / "coco" / "val2017", captioned)
    (test / "held_out").symlink_to(shards.resolve(), target_is_directory=True)
    captioned = range(FIRST["validation"], FIRST["validation"] + -(-size.captioned // 2))
    write_images(validation, captioned)
    write_captions(validation / "coco" / "annotations", captioned)
    for name, makers in COMBINATIONS.items():
        found = search(FIRST["combinations"], size.pairs, makers)
        write_images(folder / name, {seed for rows in found.values() for seed, _ in rows})
        write_sugarcrepe(folder / name / "sugarcrepe", found)


def single_scenes(first: int, n: int) -> dict[str, list[int]]:
    """Seeds of `n` scenes of each concept that show one object of it alone."""
    found: dict[str, list[int]] = {concept.name: [] for concept in CONCEPTS}
    for seed in count(first):
        slots = draw_layout(Random(f"layout {seed}"), DEFAULT)
        if len(slots) == 1 and len(found[slots[0].concept.name]) < n:
            found[slots[0].concept.name].append(seed)
            if all(len(seeds) == n for seeds in found.values()):
                break
    return found


def write_image(path: Path, seed: int, style: Style | None = None) -> None:
    """Write a scene as a JPEG file."""
    path.write_bytes(encode_jpeg(make_scene(seed, style or style_of(seed)).image, JPEG_QUALITY))


def write_images(folder: Path, seeds: Iterable[int]) -> None:
    """Write scenes as images of COCO."""
    images = folder / "coco" / "val2017"
    images.mkdir(parents=True)
    for seed in sorted(seeds):
        write_image(images / image_name(seed), seed)


def image_name(seed: int) -> str:
    """File name of a scene, in COCO's form."""
    return f"{seed:012d}.jpg"


def write_concepts(folder: Path, scenes: Mapping[str, Sequence[int]], style: Style | None = None) -> None:
    """Write scenes of each concept, and the tree of the concepts."""
    for name, seeds in scenes.items():
        (folder / name.replace(" ", "_")).mkdir(parents=True)
        for seed in seeds:
            write_image(folder / name.replace(" ", "_") / image_name(seed), seed, style)
    (folder / "prompts.txt").write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
    (folder / "tree.txt").write_text("\n".join(tree_lines()) + "\n", encoding="utf-8")


def tree_lines() -> Iterator[str]:
    """Yield the lines `child parent name` of the tree of the concepts' WordNet hypernyms."""
    parents = {concept.name.replace(" ", "_"): concept.hypernyms[0] for concept in CONCEPTS}
    for concept in CONCEPTS:
        parents |= dict(zip(concept.hypernyms, concept.hypernyms[1:], strict=False))
    parents |= dict.fromkeys(set(parents.values()) - parents.keys(), "-")
    yield "# WordNet 3.0, Copyright 2006 by Princeton University. All rights reserved."
    yield from (f"{child} {parent} {child.partition('.')[0]}" for child, parent in sorted(parents.items()))


def find_pairs(n_pairs: int) -> Pairs:
    """Search the scenes for `n_pairs` pairs of each file of SugarCrepe and VL-CheckList."""
    return search(FIRST["test"], n_pairs, SUGARCREPE | VL_CHECKLIST, object_columns, OBJECT_COLUMNS)


def search(
    first: int,
    n_pairs: int,
    makers: Mapping[str, Maker],
    columns: Callable[[View], list[tuple[str, Captions]]] = lambda view: [],
    names: Sequence[str] = (),
) -> Pairs:
    """Search the scenes for `n_pairs` pairs of each file: of `makers`, and of `columns` with these `names`."""
    found: Pairs = {name: [] for name in (*makers, *names)}
    for seed in range(first, first + MAX_SCENES_PER_PAIR * n_pairs):
        if all(len(pairs) >= n_pairs for pairs in found.values()):
            break
        view = view_of(draw_layout(Random(f"layout {seed}"), DEFAULT), DEFAULT, Random(f"negatives {seed}"))
        made = [(name, make(view)) for name, make in makers.items() if len(found[name]) < n_pairs]
        for name, captions in [*made, *columns(view)]:
            if captions and len(found[name]) < n_pairs:
                found[name].append((seed, captions))
    return found


def write_captions(folder: Path, seeds: range) -> None:
    """Write COCO's captions: the caption of each scene, and another one of the same layout."""
    images = [{"id": seed, "file_name": image_name(seed)} for seed in seeds]
    annotations = []
    for seed in seeds:
        slots, caption, _ = compose(seed)
        other, _ = write_caption(slots, Random(f"second caption {seed}"), DEFAULT)
        annotations += [
            {"id": 2 * seed + number, "image_id": seed, "caption": text} for number, text in enumerate((caption, other))
        ]
    folder.mkdir(parents=True)
    write_object({"images": images, "annotations": annotations}, folder / "captions_val2017.json")


def write_sugarcrepe(folder: Path, pairs: Pairs) -> None:
    """Write files of SugarCrepe."""
    folder.mkdir(parents=True)
    for name, found in pairs.items():
        entries = [
            {"filename": image_name(seed), "caption": captions.true, "negative_caption": captions.false}
            for seed, captions in found
        ]
        write_object({str(i): entry for i, entry in enumerate(entries)}, folder / f"{name}.json")


def write_negatives(folder: Path, pairs: Pairs) -> None:
    """Write the files of SugarCrepe and the corpora of VL-CheckList, whose images are those of COCO."""
    write_sugarcrepe(folder / "sugarcrepe", {name: pairs[name] for name in SUGARCREPE})
    (folder / "vl_checklist" / "data").mkdir(parents=True)
    for column in (*OBJECT_COLUMNS, *VL_CHECKLIST):
        rows: list[Any] = [
            [image_name(seed), {"POS": [captions.true], "NEG": [captions.false]}] for seed, captions in pairs[column]
        ]
        data = f"data/{column.replace('/', '_')}.json"
        (folder / "vl_checklist" / data).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        corpus = "vg_obj" if column.startswith("Object") else "vg"
        path = folder / "vl_checklist" / "corpus" / "v1" / column / f"{corpus}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"ANNO_PATH: {data}\nIMG_ROOT: ../coco/val2017\n", encoding="utf-8")


def write_chains(folder: Path, n: int) -> None:
    """Write scenes with chains of four captions: a general word, a noun, the noun with its colour, the caption."""
    images = folder / "scenes"
    images.mkdir(parents=True)
    rows: list[dict[str, str]] = []
    for seed in count(FIRST["test"]):
        slots, caption, _ = compose(seed)
        for slot in slots:
            general = category_nouns(slot.concept, [other.concept for other in slots if other is not slot])
            phrase = f"{slot.colour} {slot.concept.noun}"
            if slot.colour and slot.concept.is_countable and general and phrase in caption.lower():
                names = (mention_of(general[0]), mention_of(slot.concept.noun), mention_of(phrase), caption)
                rows.append({"captions": " => ".join(names), "image": image_name(seed)})
                write_image(images / image_name(seed), seed)
                break
        if len(rows) >= n:
            break
    with (folder / "scenes.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ("captions", "image"))
        writer.writeheader()
        writer.writerows(rows)


def mention_of(words: str) -> str:
    """The words with an article."""
    return f"{article(words)} {words}"


def write_walks(folder: Path, images: Path, seeds: range) -> None:
    """Write the start images of the walks, and the pool of texts in MERU's form."""
    folder.mkdir(parents=True)
    for seed in seeds[:N_WALKS]:
        shutil.copy(images / image_name(seed), folder / image_name(seed))
    nouns = [*(concept.noun for concept in CONCEPTS), *(entry.noun for entry in CATEGORY_NOUNS)]
    texts: dict[str, list[str]] = defaultdict(list)
    texts["captions"] = [compose(seed)[1] for seed in seeds[:200]]
    texts["nouns"], texts["adjectives"] = list(dict.fromkeys(nouns)), list(COLOURS)
    write_object(dict(texts), folder / "pexels_text.json")
