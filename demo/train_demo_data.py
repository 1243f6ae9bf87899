"""Data of the trainer's demo: pairs of the miniature world, the shards the pipeline makes of them, zero-shot pictures.

    pairs/train.tar, pairs/held_out.tar     NNNNN.jpg and NNNNN.txt: what `python pipeline/grit.py` reads
    shards/train/, shards/held_out/         what it makes of them
    concepts/CONCEPT/N.png                  one object each, cut out and padded as the pipeline does

All of it is made once, for all models. Held-out scenes have seeds of their own, and so have the zero-shot pictures.
"""

import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2

from common.images import Image
from demo.world.scenes import HELD_OUT_SEEDS, SHARD_SEEDS, Scene, scene_stream
from demo.world.sprites import Style
from demo.world.vocabulary import CONCEPTS
from pipeline.images import border_square, crop_box, encode_jpeg

ROOT = Path(__file__).resolve().parent.parent
JOB = "jobs/train_demo/shards.yaml"
JPEG_QUALITY = 95


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """How much of the world the trainer sees."""

    train_rows: int = 2400
    held_out_rows: int = 400
    pictures: int = 6  # of each concept, to be classified
    picture_px: int = 128  # their sides
    min_side_px: float = 40.0  # of an object in such a picture, before it is resized
    styles: tuple[Style, ...] = ("openmoji",)  # one artist: three would want three times the steps


def make_data(folder: Path, config: DataConfig) -> None:
    """Make what is not there yet. What was made with other settings is made again."""
    for name, n_rows, seeds in (
        ("train", config.train_rows, SHARD_SEEDS),
        ("held_out", config.held_out_rows, HELD_OUT_SEEDS),
    ):
        pairs, shards = folder / "pairs" / f"{name}.tar", folder / "shards" / name
        settings: dict[str, Any] = {"rows": n_rows, "seed": seeds[0], "styles": list(config.styles)}
        if not is_made(pairs, settings):
            shutil.rmtree(shards, ignore_errors=True)
            write_pairs(pairs, n_rows, seeds, config.styles)
            mark_made(pairs, settings)
        settings["job"] = (ROOT / JOB).read_text("utf-8")
        if not is_made(shards, settings):
            make_shards(pairs, shards)
            mark_made(shards, settings)
    pictures, seed = folder / "concepts", HELD_OUT_SEEDS[len(HELD_OUT_SEEDS) // 2]
    settings = {"seed": seed, **asdict(config), "styles": list(config.styles)}
    if not is_made(pictures, settings):
        shutil.rmtree(pictures, ignore_errors=True)
        write_pictures(pictures, seed, config)
        mark_made(pictures, settings)


def stamp(place: Path) -> Path:
    return place.with_name(f"{place.name}.made.json")


def is_made(place: Path, settings: dict[str, Any]) -> bool:
    """Whether `place` was finished with these settings."""
    text = json.dumps(settings, indent=1) + "\n"
    return place.exists() and stamp(place).is_file() and stamp(place).read_text("utf-8") == text


def mark_made(place: Path, settings: dict[str, Any]) -> None:
    """Written last: what was cut off is made again."""
    stamp(place).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def write_pairs(path: Path, n_rows: int, seeds: range, styles: tuple[Style, ...]) -> None:
    """A tar of the first `n_rows` scenes of `seeds` with their captions, as img2dataset leaves them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp(path).unlink(missing_ok=True)
    scenes = scene_stream(seeds[0], styles)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(n_rows):
            scene = next(scenes)
            add(tar, f"{index:05d}.jpg", encode_jpeg(scene.image, JPEG_QUALITY))
            add(tar, f"{index:05d}.txt", scene.caption.encode())


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def make_shards(pairs: Path, output: Path) -> None:
    """The main job on `pairs`; finished shards stay. Raises RuntimeError when it fails."""
    command = [sys.executable, "pipeline/grit.py", JOB, f"input={pairs.resolve()}", f"output={output.resolve()}"]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise RuntimeError(f"the pipeline failed; its message is above. Again: {' '.join(command)}")


def write_pictures(folder: Path, seed: int, config: DataConfig) -> None:
    """`config.pictures` pictures of each concept, cut out of the scenes of `seed` and on."""
    missing = Counter({concept.name: config.pictures for concept in CONCEPTS})
    for scene in scene_stream(seed, config.styles):
        for name, picture in objects_of(scene, config):
            if missing[name] > 0:
                missing[name] -= 1
                path = folder / name / f"{missing[name]}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                if not cv2.imwrite(str(path), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)):
                    raise OSError(f"{path} could not be written")
        if not +missing:
            return


def objects_of(scene: Scene, config: DataConfig) -> Iterator[tuple[str, Image]]:
    """The concept of each object that is large enough, and its picture."""
    height, width = scene.image.shape[:2]
    for thing in scene.objects:
        x0, y0, x1, y1 = thing.box
        if min(x1 - x0, y1 - y0) >= config.min_side_px / 2 and max(x1 - x0, y1 - y0) >= config.min_side_px:
            crop = crop_box(scene.image, (x0 / width, y0 / height, x1 / width, y1 / height))
            yield thing.concept, border_square(crop, config.picture_px)
