"""Held-out evaluation sets of the miniature world in the files of the benchmarks, for `trainer.evaluate`.

    coco/               scenes with two captions each, and the images of the hard negatives
    sugarcrepe/         seven files of true and false captions
    vl_checklist/       object by location and size, attribute by colour and size, relation by space
    own/concepts/       crops of single objects in the style of the training, with a tree of WordNet hypernyms
    own/unseen_style/   crops in the style that no model was trained on, with the same tree
    traversal/          images and texts for the walks to the root
    held_out/           link to held-out shards

Scenes come from seeds that neither training nor held-out shards use.
"""

import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from demo.paper.hard_negatives import SUGARCREPE, VL_CHECKLIST, Captions, object_columns, view_of
from demo.paper.sizes import Size
from demo.train_demo_data import (
    JOB,
    JPEG_QUALITY,
    LEVELS,
    ROOT,
    DataConfig,
    is_current,
    make_shards,
    record_settings,
    write_pairs,
    write_pictures,
)
from demo.world.captions import write_caption
from demo.world.scenes import DEFAULT, HELD_OUT_SEEDS, SHARD_SEEDS, compose, make_scene
from demo.world.sprites import HELD_OUT_STYLE, Style
from demo.world.vocabulary import CATEGORY_NOUNS, COLOURS, CONCEPTS
from hypergrit_common.json_file import write_object
from pipeline.images import encode_jpeg
from trainer.evaluation.tasks.vlchecklist import COLUMNS

STYLE: Final[Style] = "openmoji"
FIRST: Final = HELD_OUT_SEEDS[3 * len(HELD_OUT_SEEDS) // 4]
"""First seed of the scenes."""
PICTURES: Final = HELD_OUT_SEEDS[len(HELD_OUT_SEEDS) // 2]
OBJECT_COLUMNS: Final = [folder for column, folder in COLUMNS.items() if column.startswith("object/")]
MAX_SCENES_PER_PAIR: Final = 400
"""Scenes that are searched for each pair of a file before the file stays shorter."""
N_WALKS: Final = 4
PROMPTS: Final = ("{}", "a {}", "the {}")


def write_sets(folder: Path, size: Size, shards: Path) -> None:
    """Write all sets to `folder`, whose `held_out` becomes a link to `shards`."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, style in (("concepts", STYLE), ("unseen_style", HELD_OUT_STYLE)):
        write_concepts(folder / "own" / name, size.pictures, style)
    pairs = find_pairs(size.pairs)
    images = folder / "coco" / "val2017"
    images.mkdir(parents=True)
    captioned = range(FIRST, FIRST + size.captioned)
    for seed in sorted({*captioned, *(seed for found in pairs.values() for seed, _ in found)}):
        (images / image_name(seed)).write_bytes(encode_jpeg(make_scene(seed, STYLE).image, JPEG_QUALITY))
    write_captions(folder / "coco" / "annotations", captioned)
    write_negatives(folder, pairs)
    write_walks(folder / "traversal", images, captioned)
    (folder / "held_out").symlink_to(shards.resolve(), target_is_directory=True)


def image_name(seed: int) -> str:
    """File name of a scene, in COCO's form."""
    return f"{seed:012d}.jpg"


def write_concepts(folder: Path, n_pictures: int, style: Style) -> None:
    """Write pictures of each concept in one style, and the tree of the concepts."""
    write_pictures(folder, PICTURES, DataConfig(pictures=n_pictures, styles=(style,)))
    for path in list(folder.iterdir()):
        path.rename(folder / path.name.replace(" ", "_"))
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


def find_pairs(n_pairs: int) -> dict[str, list[tuple[int, Captions]]]:
    """Search the scenes for `n_pairs` pairs of each file: the seed of the image, and the captions."""
    found: dict[str, list[tuple[int, Captions]]] = {name: [] for name in (*SUGARCREPE, *VL_CHECKLIST, *OBJECT_COLUMNS)}
    for seed in range(FIRST, FIRST + MAX_SCENES_PER_PAIR * n_pairs):
        if all(len(pairs) >= n_pairs for pairs in found.values()):
            break
        view = view_of(compose(seed)[0], DEFAULT, Random(f"negatives {seed}"))
        made = [(name, make(view)) for name, make in (SUGARCREPE | VL_CHECKLIST).items()]
        for name, captions in [*made, *object_columns(view)]:
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


def write_negatives(folder: Path, pairs: dict[str, list[tuple[int, Captions]]]) -> None:
    """Write the files of SugarCrepe and the corpora of VL-CheckList, whose images are those of COCO."""
    for name in ("sugarcrepe", "vl_checklist/data"):
        (folder / name).mkdir(parents=True)
    for name in SUGARCREPE:
        entries = [
            {"filename": image_name(seed), "caption": captions.true, "negative_caption": captions.false}
            for seed, captions in pairs[name]
        ]
        write_object({str(i): entry for i, entry in enumerate(entries)}, folder / f"sugarcrepe/{name}.json")
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


FORMATS = "formats=[train,grit,arrow]"


def data_settings(size: Size) -> dict[str, Any]:
    """The settings that all data of a study depend on."""
    return shard_settings() | {
        "rows": [size.train_rows, size.held_out_rows],
        "pictures": size.pictures,
        "captioned": size.captioned,
        "pairs": size.pairs,
    }


def shard_settings() -> dict[str, Any]:
    """The settings that training and held-out shards share."""
    return {"job": (ROOT / JOB).read_text("utf-8"), "style": STYLE, "levels": LEVELS}


def make_data(folder: Path, size: Size) -> None:
    """Write what is missing, and replace what was written with other settings.

    Raises RuntimeError if the pipeline fails.
    """
    for name, n_rows, seeds in (
        ("train", size.train_rows, SHARD_SEEDS),
        ("held_out", size.held_out_rows, HELD_OUT_SEEDS),
    ):
        pairs, shards = folder / "pairs" / f"{name}.tar", folder / "shards" / name
        settings = shard_settings() | {"rows": n_rows, "seed": seeds[0]}
        if not is_current(pairs, settings):
            shutil.rmtree(shards, ignore_errors=True)
            write_pairs(pairs, n_rows, seeds, (STYLE,))
            record_settings(pairs, settings)
        if not is_current(shards, settings):
            make_shards(pairs, shards, FORMATS, f"ray.runner={size.runner}")
            record_settings(shards, settings)
    sets, record = folder / "sets", data_settings(size)
    if not is_current(sets, record):
        write_sets(sets, size, folder / "shards" / "held_out")
        record_settings(sets, record)
