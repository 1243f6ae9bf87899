"""Benchmark: copies and different pictures by the distance of their perceptual hashes (pHash, pipeline.dedupe).

    python -m benchmarks.perceptual [--images FOLDER] [--tiles 3] [--scenes 400] [--no-copies]

Pictures are stored as the job stores them, and compared with copies of each that were changed before they were stored:
recall is the share of copies within the radius. False pairs are pairs of different pictures within it. Photographs come
from `--images`, each cut into `--tiles` x `--tiles` different pictures; false pairs within a photograph, such as two
parts of a sky, are counted apart (`same_source`). Without `--images`, the pictures are scenes of the demo alone. Light
changes leave the picture as it is; heavy ones move or replace much of it. The last line is one JSON object; `recall` is
that of all light changes.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from common.images import STORED_IMAGE_LIMITS, Image, ImageLimits, decode
from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.derive.phash import perceptual_hash
from pipeline.images import ResizeConfig, encode_jpeg, resize, resize_as

RADII: Final = (0, 2, 4, 6, 8, 10, 12, 14, 16)
MIN_SIDE: Final = 200
Change = Callable[[Image], Image]
Picture = tuple[int, Image]
"""The number of the source, of which several pictures may be parts, and the picture."""


def jpeg(quality: int) -> Change:
    """Return the change of encoding with this JPEG quality."""
    return lambda image: decode(encode_jpeg(image, quality), ImageLimits())


def webp(quality: int) -> Change:
    """Return the change of encoding as WebP."""

    def change(image: Image) -> Image:
        _, data = cv2.imencode(".webp", image[:, :, ::-1], [cv2.IMWRITE_WEBP_QUALITY, quality])
        return decode(data.tobytes(), ImageLimits())

    return change


def scaled(y: float, x: float) -> Change:
    """Return the change of height and width by these factors."""
    return lambda image: resize(image, max(1, round(image.shape[0] * y)), max(1, round(image.shape[1] * x)))


def cropped(share: float) -> Change:
    """Return the removal of this share of height and width, half of it at each side."""

    def change(image: Image) -> Image:
        top, left = (round(side * share / 2) for side in image.shape[:2])
        return image[top : image.shape[0] - top, left : image.shape[1] - left]

    return change


def recoloured(factor: float = 1.0, offset: float = 0.0, gamma: float = 1.0) -> Change:
    """Return a change of contrast, brightness and gamma."""
    values = 255 * (np.arange(256) / 255) ** gamma
    table = np.clip((values - 128) * factor + 128 + offset, 0, 255).astype(np.uint8)
    return lambda image: table[image]


def tinted(*gains: float) -> Change:
    """Return the multiplication of red, green and blue."""
    return lambda image: np.clip(image * np.array(gains), 0, 255).astype(np.uint8)


def hue(degrees: int) -> Change:
    """Return a rotation of the hue."""

    def change(image: Image) -> Image:
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
        hsv[:, :, 0] = (hsv[:, :, 0].astype(int) + degrees // 2) % 180
        return np.asarray(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB), np.uint8)

    return change


def grey(image: Image) -> Image:
    """Return the image without colours."""
    return np.repeat(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[:, :, None], 3, axis=2)


def noisy(image: Image) -> Image:
    """Return the image with noise of a standard deviation of 10."""
    noise = np.random.default_rng(0).normal(0, 10, image.shape)
    return np.clip(image + noise, 0, 255).astype(np.uint8)


def labelled(image: Image) -> Image:
    """Return the image with a line of text near its lower edge."""
    out, scale = image.copy(), image.shape[1] / 500
    place = (image.shape[1] // 20, image.shape[0] - image.shape[0] // 20)
    cv2.putText(out, "photographer.example", place, cv2.FONT_HERSHEY_SIMPLEX, scale, (255, 255, 255), 2)
    return out


def framed(image: Image) -> Image:
    """Return the image with a white border of 5 % at each side."""
    y, x = (side // 20 for side in image.shape[:2])
    return np.asarray(cv2.copyMakeBorder(image, y, y, x, x, cv2.BORDER_CONSTANT, value=(255, 255, 255)), np.uint8)


def turned(image: Image) -> Image:
    """Return the image rotated by 3 degrees within its frame."""
    height, width = image.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), 3, 1.1)
    return np.asarray(cv2.warpAffine(image, matrix, (width, height)), np.uint8)


LIGHT: Final[Mapping[str, Change]] = {
    "JPEG, quality 75": jpeg(75),
    "JPEG, quality 30": jpeg(30),
    "JPEG, quality 10": jpeg(10),
    "WebP, quality 40": webp(40),
    "half the size": scaled(0.5, 0.5),
    "a quarter of the size": scaled(0.25, 0.25),
    "10 % wider": scaled(1, 1.1),
    "darker (-40)": recoloured(offset=-40),
    "lighter (+40)": recoloured(offset=40),
    "contrast 1.4": recoloured(factor=1.4),
    "gamma 1.5": recoloured(gamma=1.5),
    "warmer": tinted(1.15, 1.0, 0.85),
    "without colours": grey,
    "blurred": lambda image: np.asarray(cv2.GaussianBlur(image, (0, 0), 2), np.uint8),
    "noise": noisy,
    "a line of text": labelled,
    "a quarter of the size, JPEG 50, warmer": lambda image: tinted(1.1, 1, 0.9)(jpeg(50)(scaled(0.25, 0.25)(image))),
    "cropped by 2 %": cropped(0.02),
}
HEAVY: Final[Mapping[str, Change]] = {
    "cropped by 5 %": cropped(0.05),
    "cropped by 10 %": cropped(0.1),
    "cropped by 20 %": cropped(0.2),
    "white border of 5 %": framed,
    "rotated by 3 degrees": turned,
    "hue + 90 degrees": hue(90),
    "mirror image": lambda image: np.ascontiguousarray(image[:, ::-1]),
}
"""Name -> change. Those of HEAVY move or replace much of the picture."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, action="append", default=[], help="folder of photographs")
    parser.add_argument("--tiles", type=int, default=3, help="pictures along each side of a photograph")
    parser.add_argument("--scenes", type=int, default=400, help="number of scenes of the demo")
    parser.add_argument("--no-copies", action="store_true", help="count false pairs only")
    options = parser.parse_args()
    sets = {"photographs": list(photographs(options.images, options.tiles)), "scenes": list(scenes(options.scenes))}
    record: dict[str, object] = {"name": "perceptual"}
    for name, pictures in sets.items():
        if pictures:
            record[name] = measure(name, pictures, {} if options.no_copies else {**LIGHT, **HEAVY})
    print(json.dumps(record))


def photographs(folders: list[Path], n_tiles: int) -> Iterator[Picture]:
    """Yield the tiles of the images in these folders, without small ones."""
    for source, path in enumerate(sorted(path for folder in folders for path in folder.rglob("*.jp*g"))):
        image = decode(path.read_bytes(), ImageLimits(max_pixels=10**9))
        height, width = (side // n_tiles for side in image.shape[:2])
        for y, x in np.ndindex(n_tiles, n_tiles):
            if min(height, width) >= MIN_SIDE:
                yield source, image[y * height : (y + 1) * height, x * width : (x + 1) * width]


def scenes(n: int) -> Iterator[Picture]:
    """Yield scenes of the demo."""
    for seed in TEST_SEEDS[:n]:
        yield seed, make_scene(seed, "openmoji", WorldConfig(width=640, height=480)).image


def stored_hash(image: Image) -> int:
    """Return the perceptual hash of an image as the job stores it."""
    config = ResizeConfig()
    return perceptual_hash(decode(encode_jpeg(resize_as(image, config), config.jpeg_quality), STORED_IMAGE_LIMITS))


def hashes(images: list[Image]) -> np.ndarray:
    """Return the perceptual hashes of stored images, uint64 [n]."""
    return np.array([stored_hash(image) for image in images], np.uint64)


def measure(name: str, numbered: list[Picture], changes: Mapping[str, Change]) -> dict[str, object]:
    """Print false pairs and the recall of each change by radius; return the figures."""
    sources, pictures = np.array([source for source, _ in numbered]), [picture for _, picture in numbered]
    originals, (a, b) = hashes(pictures), np.triu_indices(len(pictures), 1)
    distances, is_same = np.bitwise_count(originals[a] ^ originals[b]), sources[a] == sources[b]
    n_pairs, false = int((~is_same).sum()), {r: int((distances[~is_same] <= r).sum()) for r in RADII}
    print(f"{len(pictures)} {name}: share of copies within the radius, in %")
    print(f"{'':<40}{''.join(f'{r:>7}' for r in RADII)}")
    print(f"{f'false pairs among {n_pairs}':<40}{''.join(f'{false[r]:>7}' for r in RADII)}")
    recalls: dict[str, dict[int, float]] = {}
    for change, apply in changes.items():
        copies = hashes([apply(image) for image in pictures])
        distances = np.bitwise_count(originals ^ copies)
        recalls[change] = {r: round(float((distances <= r).mean()), 4) for r in RADII}
        print(f"{change:<40}{''.join(f'{100 * recalls[change][r]:>7.1f}' for r in RADII)}", flush=True)
    figures = {"pictures": len(pictures), "pairs": n_pairs, "false_pairs": false}
    figures |= {"same_source": {r: int((distances[is_same] <= r).sum()) for r in RADII}}
    if not changes:
        return figures
    light = {r: round(sum(recalls[change][r] for change in LIGHT) / len(LIGHT), 4) for r in RADII}
    print(f"{'light changes, mean':<40}{''.join(f'{100 * light[r]:>7.1f}' for r in RADII)}\n")
    return figures | {"recall": light, "heavy": {change: recalls[change] for change in HEAVY}}


if __name__ == "__main__":
    main()
