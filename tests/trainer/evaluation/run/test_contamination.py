"""Evaluation images among training shards: by URL, by file, and by picture."""

import io
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest

from pipeline.commands.evaluation_set import read_evaluation_set
from tests.trainer.data.samples import write_tar
from trainer.evaluation.run.contamination import ROW, count_copies, training_fingerprints
from trainer.evaluation.task import ImageSource


def picture(seed: int, width: int = 96, height: int = 64) -> PIL.Image.Image:
    """A smooth random picture."""
    noise = np.random.default_rng(seed).integers(0, 255, (6, 8, 3)).astype(np.uint8)
    return PIL.Image.fromarray(cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC))


def encode(image: PIL.Image.Image, quality: int = 95) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def write_shard(folder: Path, samples: list[tuple[bytes, str]]) -> str:
    files = [
        {"jpg": image, "json": json.dumps({"caption": "a picture", "url": url}).encode()} for image, url in samples
    ]
    return str(write_tar(folder / "00000.tar", [(f"{i:03d}", members) for i, members in enumerate(files)]).parent)


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


@pytest.mark.parametrize(
    "rows", [None, np.zeros(1), np.zeros(2, ROW)], ids=["no file of NumPy", "another type", "too many"]
)
def test_damaged_fingerprints_are_computed_again(tmp_path: Path, rows: np.ndarray[Any, Any] | None) -> None:
    shards = write_shard(tmp_path / "shards", [(encode(picture(0)), "")])
    expected = training_fingerprints(shards, tmp_path / "cache", state="as written").tolist()
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(b"PK") if rows is None else np.save(file, rows)
    for state in ("damaged", "written again"):
        assert training_fingerprints(shards, tmp_path / "cache", state=state).tolist() == expected
    assert np.load(file).tolist() == expected


PAIRS = {  # an evaluation image and a training image
    "equal": (picture(1), picture(1)),
    "smaller, of low quality": (picture(2), picture(2).resize((60, 40))),
    "darker": (picture(3), picture(3).point(lambda value: value * 0.8)),
    "mirror image": (picture(4), picture(4).transpose(PIL.Image.Transpose.FLIP_LEFT_RIGHT)),
    "another picture": (picture(5), picture(6)),
    "one colour": (PIL.Image.new("RGB", (30, 20), "red"), PIL.Image.new("RGB", (40, 40), "blue")),
}
URLS = {
    "HTTPS://Example.org:443/b/../a%7eb.jpg#top": "http://example.org/a~b.jpg",
    "http://example.org/A.jpg": "http://example.org/a.jpg",
    "http://example.org/a.jpg?x=1": "http://example.org/a.jpg",
    "http://example.org./a.jpg": "https://example.org/a.jpg",
    "mirror of a.jpg": "mirror of a.jpg",
}


@pytest.mark.parametrize("name", PAIRS)
def test_pictures_that_decontaminate_drops_are_counted_and_no_others(tmp_path: Path, name: str) -> None:
    image, training = PAIRS[name]
    (tmp_path / "set").mkdir()
    path, stored = tmp_path / "set" / "image.jpg", encode(training, 60)
    path.write_bytes(encode(image))
    is_dropped = read_evaluation_set([str(tmp_path / "set")], radius=6).match(None, None, stored) is not None
    shards = write_shard(tmp_path / "shards", [(stored, "")])
    found = count_copies([ImageSource(path=path)], training_fingerprints(shards, tmp_path / "cache"))
    assert found.by_picture == is_dropped == (name not in ("mirror image", "another picture"))


@pytest.mark.parametrize("url", URLS)
def test_urls_that_decontaminate_drops_are_counted_and_no_others(tmp_path: Path, url: str) -> None:
    listed = tmp_path / "urls.txt"
    listed.write_text(f"{url}\nhttp://example.org/none.jpg\n") if "://" in url else listed.write_text(
        "http://h.org/x\n"
    )
    is_dropped = read_evaluation_set([str(listed)], radius=6).match(URLS[url], None, None) is not None
    shards = write_shard(tmp_path / "shards", [(encode(picture(0)), URLS[url])])
    image = ImageSource(path=tmp_path / "none.jpg", urls=(url,))
    assert count_copies([image], training_fingerprints(shards, tmp_path / "cache")).by_url == is_dropped
