"""Benchmark: the trainer's data loader compared with webdataset, Pillow and torchvision on the same shards.

    python -m benchmarks.loader [SHARDS]

Measures CPU time in one process with one thread. The baseline is HyCoCLIP's mapper as described in its paper:
webdataset reads and shuffles the samples, Pillow decodes them, and the full image and one random box are transformed by
RandomResizedCrop(224, scale=(0.5, 1), bicubic) and ToTensor. Both loaders encode the caption and the phrase with our
tokenizer.

- `ratio`: the baseline decodes only the two images that it uses.
- `ratio_pairs_768`: images of 1024 x 768 with captions and without boxes, as in RedCaps. Here our loader is faster
  because it decodes JPEGs at a reduced scale.

Without SHARDS, samples in HyCoCLIP's format are generated from the demo's world: 224 x 224, JPEG quality 95.
"""

import argparse
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import torch
import webdataset
from torchvision import transforms

from benchmarks.turns import take_turns, use_one_core
from demo.world.scenes import SHARD_SEEDS, Scene, scene_stream
from demo.world.sprites import TRAIN_STYLES
from hypergrit_common.shards import list_shards
from pipeline.images import border_square, crop_box, encode_jpeg
from pipeline.output.write.tar import TarWriter
from trainer.data.config import DataConfig
from trainer.data.loader import Loader
from trainer.text.tokenizer import Tokenizer, openai_tokenizer

ROUNDS = 7
BATCH = 64
SIZE_PX = 224
SAMPLES = 256
Batches = Iterator[Any]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", nargs="?", help="folder of training shards; default: shards made for the benchmark")
    given = parser.parse_args().shards
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    use_one_core()
    tokenizer = openai_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        shards = given or write_train(Path(folder, "train"))
        boxed = time_alternately(
            {
                "ours": iter(ours(shards, tokenizer, frozenset({"boxes"}))),
                "two decoded": baseline(shards, tokenizer, two_decoded),
            }
        )
        print_times("224 px, full image and box", boxed)
        pairs = write_pairs(Path(folder, "pairs"))
        pairs_only = time_alternately(
            {
                "ours": iter(ours(pairs, tokenizer, frozenset())),
                "webdataset": baseline(pairs, tokenizer, pair_decoded),
            }
        )
        print_times("1024 x 768 px, no box", pairs_only)
    result = {
        "name": "loader",
        "ratio": round(boxed["two decoded"] / boxed["ours"], 2),
        "ratio_pairs_768": round(pairs_only["webdataset"] / pairs_only["ours"], 2),
        "samples_per_s_per_core": round(1e6 / boxed["ours"]),
    }
    print(json.dumps(result))


def time_alternately(sides: dict[str, Batches]) -> dict[str, float]:
    """Return the median CPU time per sample of each loader in microseconds. The loaders take turns."""
    found = take_turns({name: partial(next, batches) for name, batches in sides.items()}, ROUNDS)
    return {name: 1e6 * seconds.cpu / BATCH for name, seconds in found.items()}


def print_times(title: str, median: dict[str, float]) -> None:
    """Print the CPU time per sample of each loader."""
    print(f"{title}: CPU time, median of {ROUNDS} batches of {BATCH}")
    for name, value in median.items():
        print(f"  {name:<14}{value:>8.0f} us/sample{1e6 / value:>8.0f} samples/s{value / median['ours']:>8.2f}")


def ours(shards: str, tokenizer: Tokenizer, needs: frozenset[str]) -> Loader:
    """Return our loader without worker processes."""
    config = DataConfig(shards=shards, workers=0)
    return Loader(config, tokenizer=tokenizer, size_px=SIZE_PX, batch=BATCH, needs=needs)


def baseline(shards: str, tokenizer: Tokenizer, decode: Callable[[dict[str, Any]], dict[str, Any]]) -> Batches:
    """Yield batches of a webdataset pipeline, indefinitely."""
    crop = transforms.RandomResizedCrop(
        SIZE_PX, scale=(0.5, 1.0), interpolation=transforms.InterpolationMode.BICUBIC, antialias=True
    )
    transform = transforms.Compose([crop, transforms.ToTensor()])
    samples = webdataset.WebDataset(list_shards(shards), shardshuffle=False).repeat().shuffle(4000, initial=SAMPLES)
    stream = iter(samples.map(decode))
    while True:
        chosen = list(islice(stream, BATCH))
        batch = {
            name: torch.stack([transform(sample[name]) for sample in chosen])
            for name in ("image", "box")
            if name in chosen[0]
        }
        yield batch, *(tokenizer(sample[name] for sample in chosen) for name in ("text", "phrase") if name in chosen[0])


def two_decoded(sample: dict[str, Any]) -> dict[str, Any]:
    """Decode the full image and one random box."""
    number = random.randrange(int(sample["numparents.txt"]))
    return {
        "image": pillow(sample["child.jpg"]),
        "text": sample["child.txt"].decode(),
        "box": pillow(sample[f"parent{number:03d}.jpg"]),
        "phrase": sample[f"parent{number:03d}.txt"].decode(),
    }


def pair_decoded(sample: dict[str, Any]) -> dict[str, Any]:
    """Decode a sample without boxes."""
    return {"image": pillow(sample["jpg"]), "text": sample["txt"].decode()}


def pillow(data: bytes) -> PIL.Image.Image:
    """Decode an image with Pillow."""
    with PIL.Image.open(io.BytesIO(data)) as file:
        return file.convert("RGB")


def write_train(folder: Path) -> str:
    """Write samples in HyCoCLIP's format, with the objects of a scene as boxes. Returns the folder."""

    def members(scene: Scene) -> Iterator[tuple[str, bytes]]:
        height, width = scene.image.shape[:2]
        yield "child.jpg", encode_jpeg(border_square(scene.image, SIZE_PX), 95)
        yield "child.txt", scene.caption.encode()
        yield "numparents.txt", b"%d" % len(scene.objects)
        for i, obj in enumerate(scene.objects):
            x0, y0, x1, y1 = obj.box
            crop = crop_box(scene.image, (x0 / width, y0 / height, x1 / width, y1 / height))
            yield f"parent{i:03d}.jpg", encode_jpeg(border_square(crop, SIZE_PX), 95)
            yield f"parent{i:03d}.txt", obj.concept.encode()

    return write(folder, members)


def write_pairs(folder: Path) -> str:
    """Write scenes enlarged to 1024 x 768, with noise so that they compress like photographs. Returns the folder."""
    grain = np.random.default_rng(0).normal(0, 6, (768, 1024, 3)).astype(np.float32)

    def members(scene: Scene) -> Iterator[tuple[str, bytes]]:
        large = cv2.resize(scene.image, (1024, 768), interpolation=cv2.INTER_CUBIC)
        yield "jpg", encode_jpeg(np.clip(large + grain, 0, 255).astype(np.uint8), 90)
        yield "txt", scene.caption.encode()

    return write(folder, members)


def write(folder: Path, members: Callable[[Scene], Iterator[tuple[str, bytes]]]) -> str:
    """Write a tar of `SAMPLES` scenes with the given members. Returns the folder."""
    folder.mkdir()
    with Path(folder, "00000.tar").open("wb", buffering=0) as file, TarWriter(file) as tar:
        for i, scene in enumerate(islice(scene_stream(SHARD_SEEDS[0], TRAIN_STYLES), SAMPLES)):
            tar.add_sample(f"{i:06d}", members(scene))
    return str(folder)


if __name__ == "__main__":
    main()
