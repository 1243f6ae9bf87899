"""Evaluation images among training shards: by URL, by file, and by picture."""

import io
import json
import tarfile
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest

from trainer.evaluation.contamination import count_copies, find_near, picture_hash, training_fingerprints
from trainer.evaluation.tasks.base import ImageSource


def picture(seed: int, width: int = 96, height: int = 64) -> PIL.Image.Image:
    """A smooth random picture."""
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8, 3)).astype(np.uint8)
    return PIL.Image.fromarray(cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC))


def encode(image: PIL.Image.Image, quality: int = 95) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def write_shard(folder: Path, samples: list[tuple[bytes, str]]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "00000.tar", "w") as tar:
        for i, (image, url) in enumerate(samples):
            fields = {"caption": "a picture", "url": url}
            for name, content in (("jpg", image), ("json", json.dumps(fields).encode())):
                info = tarfile.TarInfo(f"{i:03d}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return str(folder)


def test_copies_are_counted_by_url_file_and_picture(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / f"{i}.jpg").write_bytes(encode(picture(i)))
    square = PIL.Image.new("RGB", (96, 96), "white")
    square.paste(picture(3), (0, 16))
    shards = write_shard(
        tmp_path / "shards",
        [
            ((tmp_path / "0.jpg").read_bytes(), ""),  # the same file
            (encode(picture(1).resize((60, 40)), 60), ""),  # resized and compressed again
            (encode(picture(100)), "HTTPS://host/2.jpg"),  # another picture with the address of image 2
            (encode(square.resize((224, 224))), ""),  # on a white square
            (encode(picture(101)), "http://host/other.jpg"),
            (b"not an image", "http://host/5.jpg"),
        ],
    )
    images = [ImageSource(path=tmp_path / f"{i}.jpg", urls=(f"http://host/{i}.jpg",)) for i in range(6)]
    images.append(ImageSource(path=tmp_path / "0.jpg", box=(0.0, 0.0, 9.0, 9.0)))
    found = count_copies(images, training_fingerprints(shards, tmp_path / "cache"))
    assert (found.by_url, found.by_hash, found.by_picture, found.any) == (1, 1, 3, 4)
    assert (found.n_images, found.n_with_url, found.n_training) == (6, 6, 5)


def test_fingerprints_are_cached_until_the_shards_change(tmp_path: Path) -> None:
    shards = write_shard(tmp_path / "shards", [(encode(picture(0)), "")])
    assert len(training_fingerprints(shards, tmp_path / "cache")) == 1
    (file,) = (tmp_path / "cache").iterdir()
    before = file.stat().st_mtime_ns
    training_fingerprints(shards, tmp_path / "cache")
    assert file.stat().st_mtime_ns == before


def test_near_hashes_equal_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.evaluation.contamination.MAX_PAIRS", 5)
    random = np.random.default_rng(0)
    queries = random.integers(0, 2**63, 200, np.uint64)
    others = queries[:100].copy()
    for row in range(100):  # row % 6 different bits
        for bit in random.choice(64, row % 6, replace=False):
            others[row] ^= np.uint64(1) << np.uint64(bit)
    pairs = np.bitwise_count(queries[:, None] ^ others[None]) <= 3
    assert find_near(queries, others).tolist() == pairs.any(1).tolist()
    assert pairs.any(1).sum() >= 60


def test_pictures_without_contrast_are_not_copies_of_each_other(tmp_path: Path) -> None:
    assert picture_hash(np.full((20, 20, 3), 90, np.uint8)) == 0
    assert not find_near(np.zeros(2, np.uint64), np.zeros(2, np.uint64)).any()


def test_an_empty_pool_has_no_copies() -> None:
    assert find_near(np.array([5], np.uint64), np.zeros(0, np.uint64)).tolist() == [False]
