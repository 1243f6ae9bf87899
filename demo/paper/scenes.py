"""Scenes of the study: those of the training, which never show some pairs together, and those of the evaluation.

A share of all pairs of concepts, and of colours with concepts, is unseen: no training scene shows them together. The
choice depends on the names alone.
"""

import hashlib
import json
import tarfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import combinations, count, islice
from pathlib import Path
from random import Random
from typing import Final

from demo.paper.processes import each
from demo.train_demo_data import JPEG_QUALITY, add_member
from demo.world.layout import Slot
from demo.world.scenes import Scene, compose, make_scene
from demo.world.sprites import TRAIN_STYLES, Style
from demo.world.truth import object_boxes
from hypergrit_common.disk import atomic_write
from hypergrit_common.layouts import MIN_BOX_AREA_PX
from pipeline.images import encode_jpeg

UNSEEN_SHARE: Final = {"concepts": 0.04, "colour": 0.1}  # of the pairs of concepts, and of a colour and a concept
SCENES_PER_TAR: Final = 3000
KINDS: Final = {"pairs": "txt", "true": "json"}  # of tars, with the texts beside the pictures


@cache
def is_unseen(kind: str, first: str, second: str) -> bool:
    """True for a pair of names that no training scene shows together."""
    digest = hashlib.sha256(f"{kind} {first} {second}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < UNSEEN_SHARE[kind] * 2**32


def unseen_pairs(slots: Sequence[Slot]) -> list[tuple[Slot, Slot]]:
    """The pairs of objects of a layout whose concepts are unseen together."""
    pairs = combinations(sorted(slots, key=lambda slot: slot.concept.name), 2)
    return [(a, b) for a, b in pairs if is_unseen("concepts", a.concept.name, b.concept.name)]


def unseen_colours(slots: Sequence[Slot]) -> list[Slot]:
    """The objects of a layout whose colour is unseen with their concept."""
    return [slot for slot in slots if slot.colour and is_unseen("colour", slot.colour, slot.concept.name)]


def style_of(seed: int) -> Style:
    """The art style of a scene."""
    return Random(f"style {seed}").choice(TRAIN_STYLES)


def training_scenes(first: int) -> Iterator[Scene]:
    """Yield the scenes from a seed on that have a box and no unseen pair."""
    for seed in count(first):
        slots, _, _ = compose(seed)
        if not unseen_pairs(slots) and not unseen_colours(slots):
            scene = make_scene(seed, style_of(seed))
            if has_box(scene):
                yield scene


def write_scenes(folder: Path, n_scenes: int, seeds: range, n_jobs: int) -> None:
    """Write tars of scenes: FOLDER/pairs/ with captions alone, and FOLDER/true/ with their true boxes as GRIT has them.

    Finished tars are kept.
    """
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    counts = [min(SCENES_PER_TAR, n_scenes - first) for first in range(0, n_scenes, SCENES_PER_TAR)]
    each(partial(write_tar, folder, seeds), list(enumerate(counts)), n_jobs)


def write_tar(folder: Path, seeds: range, tar: tuple[int, int]) -> str:
    """Write one tar of each kind by number and length. Their seeds are apart, because some scenes are left out."""
    index, n_scenes = tar
    paths = {kind: folder / kind / f"{index:05d}.tar" for kind in KINDS}
    if all(path.is_file() for path in paths.values()):
        return f"{paths['true']} is finished"
    scenes = islice(training_scenes(seeds[4 * SCENES_PER_TAR * index]), n_scenes)
    made = [
        (encode_jpeg(s.image, JPEG_QUALITY), {"txt": s.caption, "json": json.dumps(grit_fields(s))}) for s in scenes
    ]
    for kind, path in paths.items():
        with atomic_write(path) as draft, tarfile.open(draft, "w", format=tarfile.USTAR_FORMAT) as file:
            for number, (image, texts) in enumerate(made, SCENES_PER_TAR * index):
                add_member(file, f"{number:09d}.jpg", image)
                add_member(file, f"{number:09d}.{KINDS[kind]}", texts[KINDS[kind]].encode())
    return str(paths["true"])


def has_box(scene: Scene) -> bool:
    """True if a phrase has a box that the trainer uses."""
    boxes = [scene.objects[i].box for phrase in scene.phrases for i in phrase.objects]
    return any((x1 - x0) * (y1 - y0) > MIN_BOX_AREA_PX for x0, y0, x1, y1 in boxes)


def grit_fields(scene: Scene) -> dict[str, object]:
    """The JSON of a scene as in GRIT: [start, end, x_min, y_min, x_max, y_max, score] for each object of a phrase."""
    boxes = object_boxes(scene)
    chunks = [[phrase.start, phrase.end, *boxes[i], 1.0] for phrase in scene.phrases for i in phrase.objects]
    return {"caption": scene.caption, "noun_chunks": chunks, "ref_exps": []}
