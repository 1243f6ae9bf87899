"""Evaluation sets of the study in the files of the benchmarks, of scenes from seeds that no training uses.

test/, validation/   own/scenes/        whole scenes with one object, with a tree of WordNet hypernyms
                     coco/              scenes with two captions each, and the images of the hard negatives
test/                own/unseen_style/  whole scenes with one object in an art style that no model was trained on
                     sugarcrepe/, vl_checklist/, chains/ (from a general word to the caption)
                     held_out/          link to held-out shards with true boxes
                     traversal/         images and texts for the walks to the root
unseen/, seen/       sugarcrepe/        two files about pairs that the training never shows, or does
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Final

import pandas as pd

from demo.paper.hard_negatives import COMBINATIONS, SUGARCREPE, VL_CHECKLIST, Captions, Maker, object_columns, view_of
from demo.paper.plan import Size
from demo.paper.scenes import style_of
from demo.train_demo_data import JPEG_QUALITY
from demo.world.captions import article, write_caption
from demo.world.layout import draw_layout
from demo.world.scenes import DEFAULT, HELD_OUT_SEEDS, compose, make_scene
from demo.world.sprites import HELD_OUT_STYLE, Style
from demo.world.vocabulary import CATEGORY_NOUNS, COLOURS, CONCEPTS, category_nouns
from pipeline.images import encode_jpeg
from trainer.evaluation.tasks.vlchecklist import COLUMNS

FIRST: Final = {  # first seeds of the scenes
    name: HELD_OUT_SEEDS[number * len(HELD_OUT_SEEDS) // 5]
    for number, name in enumerate(("held_out", "validation", "singles", "test", "combinations"))
}
OBJECT_COLUMNS: Final = [folder for column, folder in COLUMNS.items() if column.startswith("object/")]
MAX_SCENES_PER_PAIR: Final = 400  # that are searched for each pair of a file before the file stays shorter
N_WALKS: Final = 4  # start images of the walks
N_POOL: Final = 200  # captions in their pool of texts
PROMPTS: Final = ("{}", "a {}", "the {}")
Pairs = dict[str, list[tuple[int, Captions]]]  # seeds of images with their captions, by file


def write_sets(folder: Path, size: Size, shards: Path) -> None:
    """Write all sets to `folder`; the held-out shards become a link to `shards`."""
    shutil.rmtree(folder, ignore_errors=True)
    test, validation = folder / "test", folder / "validation"
    n, half = size.pictures, -(-size.pictures // 3)
    singles = single_scenes(FIRST["singles"], n + half)
    write_concepts(test / "own" / "scenes", {name: seeds[:n] for name, seeds in singles.items()})
    write_concepts(validation / "own" / "scenes", {name: seeds[n:] for name, seeds in singles.items()})
    some = {name: seeds[: n // 3 + 1] for name, seeds in singles.items()}
    write_concepts(test / "own" / "unseen_style", some, HELD_OUT_STYLE)
    captioned = range(FIRST["test"], FIRST["test"] + size.captioned)
    write_captioned(test, captioned)
    write_captioned(validation, range(FIRST["validation"], FIRST["validation"] + -(-size.captioned // 2)))
    pairs = search(FIRST["test"], size.pairs, SUGARCREPE | VL_CHECKLIST, OBJECT_COLUMNS)
    write_sugarcrepe(test, {name: pairs.pop(name) for name in SUGARCREPE})
    write_checklist(test, pairs)
    for name, makers in COMBINATIONS.items():
        write_sugarcrepe(folder / name, search(FIRST["combinations"], size.pairs, makers))
    write_chains(test / "chains", size.captioned // 4)
    write_walks(test / "traversal", test / "coco" / "val2017", captioned)
    (test / "held_out").symlink_to(shards.resolve(), target_is_directory=True)


def single_scenes(first: int, n: int) -> dict[str, list[int]]:
    """Seeds of `n` scenes of each concept that show one object of it alone."""
    found: dict[str, list[int]] = {concept.name: [] for concept in CONCEPTS}
    seeds = count(first)
    while any(len(some) < n for some in found.values()):
        slots = draw_layout(Random(f"layout {(seed := next(seeds))}"), DEFAULT)
        if len(slots) == 1 and len(found[slots[0].concept.name]) < n:
            found[slots[0].concept.name].append(seed)
    return found


def search(first: int, n_pairs: int, makers: Mapping[str, Maker], columns: Sequence[str] = ()) -> Pairs:
    """Search the scenes for `n_pairs` pairs of each file: of `makers`, and of the columns of objects."""
    found: Pairs = {name: [] for name in (*makers, *columns)}
    for seed in range(first, first + MAX_SCENES_PER_PAIR * n_pairs):
        if all(len(pairs) >= n_pairs for pairs in found.values()):
            break
        view = view_of(draw_layout(Random(f"layout {seed}"), DEFAULT), Random(f"negatives {seed}"))
        made = [(name, make(view)) for name, make in makers.items() if len(found[name]) < n_pairs]
        for name, captions in [*made, *(object_columns(view) if columns else ())]:
            if captions and len(found[name]) < n_pairs:
                found[name].append((seed, captions))
    return found


def write_text(path: Path, text: str) -> None:
    """Write a file and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_image(path: Path, seed: int, style: Style | None = None) -> None:
    """Write a scene as a JPEG file, if it is missing, and its folder."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_jpeg(make_scene(seed, style or style_of(seed)).image, JPEG_QUALITY))


def write_images(folder: Path, seeds: Iterable[int]) -> None:
    """Write scenes as images of COCO."""
    for seed in seeds:
        write_image(folder / "coco" / "val2017" / image_name(seed), seed)


def image_name(seed: int) -> str:
    """File name of a scene, in COCO's form."""
    return f"{seed:012d}.jpg"


def write_concepts(folder: Path, scenes: Mapping[str, Sequence[int]], style: Style | None = None) -> None:
    """Write scenes of each concept, and the tree of the concepts."""
    for name, seeds in scenes.items():
        for seed in seeds:
            write_image(folder / name.replace(" ", "_") / image_name(seed), seed, style)
    write_text(folder / "prompts.txt", "\n".join(PROMPTS) + "\n")
    write_text(folder / "tree.txt", "\n".join(tree_lines()) + "\n")


def tree_lines() -> Iterator[str]:
    """Yield the lines `child parent name` of the tree of the concepts' WordNet hypernyms."""
    parents = {concept.name.replace(" ", "_"): concept.hypernyms[0] for concept in CONCEPTS}
    for concept in CONCEPTS:
        parents |= dict(zip(concept.hypernyms, concept.hypernyms[1:], strict=False))
    parents |= dict.fromkeys(set(parents.values()) - parents.keys(), "-")
    yield "# WordNet 3.0, Copyright 2006 by Princeton University. All rights reserved."
    yield from (f"{child} {parent} {child.partition('.')[0]}" for child, parent in sorted(parents.items()))


def write_captioned(folder: Path, seeds: range) -> None:
    """Write scenes with COCO's captions: the caption of each scene, and another one of the same layout."""
    annotations = []
    for seed in seeds:
        slots, caption, _ = compose(seed)
        other, _ = write_caption(slots, Random(f"second caption {seed}"), DEFAULT)
        for number, text in enumerate((caption, other)):
            annotations.append({"id": 2 * seed + number, "image_id": seed, "caption": text})
    content = {"images": [{"id": seed, "file_name": image_name(seed)} for seed in seeds], "annotations": annotations}
    write_text(folder / "coco" / "annotations" / "captions_val2017.json", json.dumps(content))
    write_images(folder, seeds)


def write_sugarcrepe(folder: Path, pairs: Pairs) -> None:
    """Write files of SugarCrepe with their images."""
    for name, found in pairs.items():
        entries = {
            number: {"filename": image_name(seed), "caption": true, "negative_caption": false}
            for number, (seed, (true, false)) in enumerate(found)
        }
        write_text(folder / "sugarcrepe" / f"{name}.json", json.dumps(entries))
        write_images(folder, [seed for seed, _ in found])


def write_checklist(folder: Path, pairs: Pairs) -> None:
    """Write the corpora of VL-CheckList, whose images are those of COCO."""
    for column, found in pairs.items():
        rows = [[image_name(seed), {"POS": [true], "NEG": [false]}] for seed, (true, false) in found]
        data, corpus = f"data/{column.replace('/', '_')}.json", "vg_obj" if column.startswith("Object") else "vg"
        write_text(folder / "vl_checklist" / data, json.dumps(rows))
        path = folder / "vl_checklist" / "corpus" / "v1" / column / f"{corpus}.yaml"
        write_text(path, f"ANNO_PATH: {data}\nIMG_ROOT: ../coco/val2017\n")
        write_images(folder, [seed for seed, _ in found])


def chains() -> Iterator[tuple[int, str]]:
    """Yield scenes with a chain of four captions: a general word, a noun, the noun with its colour, the caption."""
    for seed in count(FIRST["test"]):
        slots, caption, _ = compose(seed)
        for slot in slots:
            general = category_nouns(slot.concept, [other.concept for other in slots if other is not slot])
            phrase = f"{slot.colour} {slot.concept.noun}"
            if slot.colour and slot.concept.is_countable and general and phrase in caption.lower():
                words = (general[0], slot.concept.noun, phrase)
                yield seed, " => ".join((*(f"{article(part)} {part}" for part in words), caption))
                break


def write_chains(folder: Path, n: int) -> None:
    """Write scenes with chains of captions, in HierarCaps's form."""
    rows = [{"captions": chain, "image": image_name(seed)} for seed, chain in islice(chains(), n)]
    write_text(folder / "scenes.csv", pd.DataFrame(rows).to_csv(index=False))
    for row in rows:
        write_image(folder / "scenes" / row["image"], int(Path(row["image"]).stem))


def write_walks(folder: Path, images: Path, seeds: range) -> None:
    """Write the start images of the walks, and the pool of texts in MERU's form."""
    nouns = dict.fromkeys([*(concept.noun for concept in CONCEPTS), *(entry.noun for entry in CATEGORY_NOUNS)])
    captions = [compose(seed)[1] for seed in seeds[:N_POOL]]
    texts = {"captions": captions, "nouns": list(nouns), "adjectives": list(COLOURS)}
    write_text(folder / "pexels_text.json", json.dumps(texts))
    for seed in seeds[:N_WALKS]:
        shutil.copy(images / image_name(seed), folder / image_name(seed))
