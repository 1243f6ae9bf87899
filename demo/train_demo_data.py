"""Data of the trainer's demo: image-text pairs, shards, and pictures for zero-shot classification.

    pairs/train.tar, pairs/held_out.tar     NNNNN.jpg, NNNNN.txt and NNNNN.json (levels), the input of `hypergrit run`
    shards/train/, shards/held_out/         the output of the pipeline
    concepts/CONCEPT/N.png                  crops of single objects, padded like the pipeline's crops

The data is generated once for all models. Training pairs, held-out pairs and zero-shot pictures use different seeds.
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

from demo.world.scenes import HELD_OUT_SEEDS, SHARD_SEEDS, Scene, scene_stream
from demo.world.sprites import Style
from demo.world.vocabulary import CONCEPTS, levels_of
from hypergrit_common.images import Image
from pipeline.images import border_square, crop_box, encode_jpeg

ROOT = Path(__file__).resolve().parent.parent
JOB = "jobs/train_demo/shards.yaml"
JPEG_QUALITY = 95
LEVELS = "largest object"
"""What the levels of a scene describe; a part of the settings of the pairs."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Amount of data."""

    train_rows: int = 9600
    held_out_rows: int = 400
    pictures: int = 6  # zero-shot pictures per concept
    picture_px: int = 128  # side of a zero-shot picture
    min_side_px: float = 40.0  # minimum longer side of an object in a zero-shot picture, before resizing
    styles: tuple[Style, ...] = ("openmoji",)  # three styles would need three times as many steps


def make_data(folder: Path, config: DataConfig) -> None:
    """Generate missing data, and replace data that was generated with other settings."""
    for name, n_rows, seeds in (
        ("train", config.train_rows, SHARD_SEEDS),
        ("held_out", config.held_out_rows, HELD_OUT_SEEDS),
    ):
        pairs, shards = folder / "pairs" / f"{name}.tar", folder / "shards" / name
        settings: dict[str, Any] = {"rows": n_rows, "seed": seeds[0], "styles": list(config.styles), "levels": LEVELS}
        if not is_current(pairs, settings):
            shutil.rmtree(shards, ignore_errors=True)
            write_pairs(pairs, n_rows, seeds, config.styles)
            record_settings(pairs, settings)
        settings["job"] = (ROOT / JOB).read_text("utf-8")
        if not is_current(shards, settings):
            make_shards(pairs, shards)
            record_settings(shards, settings)
    pictures, seed = folder / "concepts", HELD_OUT_SEEDS[len(HELD_OUT_SEEDS) // 2]
    settings = {"seed": seed, **asdict(config), "styles": list(config.styles)}
    if not is_current(pictures, settings):
        shutil.rmtree(pictures, ignore_errors=True)
        write_pictures(pictures, seed, config)
        record_settings(pictures, settings)


def settings_path(output: Path) -> Path:
    """Return the path of the JSON file that records the settings of a finished output."""
    return output.with_name(f"{output.name}.made.json")


def is_current(output: Path, settings: dict[str, Any]) -> bool:
    """True if `output` was finished with these settings."""
    text = json.dumps(settings, indent=1) + "\n"
    recorded = settings_path(output)
    return output.exists() and recorded.is_file() and recorded.read_text("utf-8") == text


def record_settings(output: Path, settings: dict[str, Any]) -> None:
    """Record the settings of a finished output. Call it last, so that an interrupted output is generated again."""
    settings_path(output).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def write_pairs(path: Path, n_rows: int, seeds: range, styles: tuple[Style, ...]) -> None:
    """Write a tar of the first `n_rows` scenes of `seeds` with captions and levels, in img2dataset's format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    settings_path(path).unlink(missing_ok=True)
    scenes = scene_stream(seeds[0], styles)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in range(n_rows):
            scene = next(scenes)
            add_member(tar, f"{index:05d}.jpg", encode_jpeg(scene.image, JPEG_QUALITY))
            add_member(tar, f"{index:05d}.txt", scene.caption.encode())
            add_member(tar, f"{index:05d}.json", json.dumps({"levels": scene_levels(scene)}).encode())


def scene_levels(scene: Scene) -> list[str]:
    """The labels of the largest object of a scene in the WordNet tree, for models of taxonomies."""

    def area(box: tuple[float, float, float, float]) -> float:
        return (box[2] - box[0]) * (box[3] - box[1])

    return levels_of(max(scene.objects, key=lambda obj: area(obj.box)).concept)


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file with default metadata to a tar."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def make_shards(pairs: Path, output: Path, *overrides: str) -> None:
    """Run the pipeline on `pairs`; finished shards are kept. Raises RuntimeError if it fails."""
    paths = [f"input={pairs.resolve()}", f"output={output.resolve()}"]
    command = [sys.executable, "pipeline/grit.py", JOB, *paths, *overrides]
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise RuntimeError(f"the pipeline failed; see its message above. The command was: {' '.join(command)}")


def write_pictures(folder: Path, seed: int, config: DataConfig) -> None:
    """Write `config.pictures` pictures of each concept, cropped from the scenes of `seed`, `seed + 1`, ..."""
    missing = Counter({concept.name: config.pictures for concept in CONCEPTS})
    for scene in scene_stream(seed, config.styles):
        for name, picture in object_pictures(scene, config):
            if missing[name] > 0:
                missing[name] -= 1
                path = folder / name / f"{missing[name]}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                if not cv2.imwrite(str(path), cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)):
                    raise OSError(f"{path}: could not be written")
        if not +missing:
            return


def object_pictures(scene: Scene, config: DataConfig) -> Iterator[tuple[str, Image]]:
    """Yield the concept and the picture of each object of sufficient size."""
    height, width = scene.image.shape[:2]
    for obj in scene.objects:
        x0, y0, x1, y1 = obj.box
        if min(x1 - x0, y1 - y0) >= config.min_side_px / 2 and max(x1 - x0, y1 - y0) >= config.min_side_px:
            crop = crop_box(scene.image, (x0 / width, y0 / height, x1 / width, y1 / height))
            yield obj.concept, border_square(crop, config.picture_px)


if __name__ == "__main__":  # python -m demo.train_demo_data FOLDER [ROWS]
    make_data(
        Path(sys.argv[1]), DataConfig(train_rows=int(sys.argv[2]) if len(sys.argv) > 2 else DataConfig.train_rows)
    )
