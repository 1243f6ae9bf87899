"""Shards of drawn samples, for speed tests without data: `hypergrit train JOB.yaml data=synthetic`.

Images have smooth random colours, whose files are about as large as those of photos. Captions have 6 to 40 words, a phrase
2 to 6 of them, and each word depends on the first.
"""

import io
import json
import random
import tarfile
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from hypergrit_common.disk import atomic_write

N_SAMPLES: Final = 2048
SIZE_PX: Final = 224  # of images and boxes
QUALITY: Final = 95
WORDS: Final = ("a", "the", "small", "red", "dog", "house", "with", "on", "grass", "tree", "old", "car", "near", "and")


def write_synthetic_shard(folder: Path) -> Path:
    """Write one shard in the layout `train` to `folder`, unless it exists, and return the folder. Raises OSError."""
    path = folder / "00000.tar"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, tarfile.open(draft, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(N_SAMPLES):
                for extension, content in sample_files(number).items():
                    member = tarfile.TarInfo(f"{number:06d}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


def sample_files(number: int) -> dict[str, bytes]:
    """The files of a sample with one to three boxes, by extension."""
    generator = random.Random(number)
    words = generator.choices(WORDS, k=generator.randint(6, 40))
    caption, tokens = " ".join(words), []
    for index, word in enumerate(words):
        start = len(" ".join(words[:index])) + (index > 0)
        tokens.append({"start": start, "end": start + len(word), "head": 0, "dep": "dep" if index else "ROOT"})
    n_boxes = generator.randint(1, 3)
    files = {"child.jpg": jpeg(number), "child.txt": caption.encode(), "numparents.txt": b"%d" % n_boxes}
    for box in range(n_boxes):
        files[f"parent{box:03d}.jpg"] = jpeg(number + box + 1)
        files[f"parent{box:03d}.txt"] = " ".join(words[box : box + generator.randint(2, 6)]).encode()
    return files | {"json": json.dumps({"caption": caption, "tokens": tokens}).encode()}


def jpeg(seed: int) -> bytes:
    """An encoded picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (28, 28, 3), dtype=np.uint8)
    large = cv2.resize(pixels, (SIZE_PX, SIZE_PX), interpolation=cv2.INTER_CUBIC)
    return bytes(cv2.imencode(".jpg", large, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])
