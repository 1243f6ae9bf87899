"""Evaluation sets of strangers: names that lead out of the folder, files that are large or no files, and small bombs."""

import gzip
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from scipy.io import savemat

from hypergrit_common.errors import UserError
from hypergrit_common.samples import MAX_SAMPLE_BYTES
from tests.trainer.data.samples import jpeg, write_tar
from tests.trainer.evaluation.tasks.embedding import model_and_tokenizer
from trainer.evaluation.embedder import CachedEmbedder
from trainer.evaluation.run.contamination import training_fingerprints
from trainer.evaluation.sets.lists import MAX_MAT_BYTES, read_cars, read_flowers102
from trainer.evaluation.sets.packed import read_mnist
from trainer.evaluation.task import ImageSource, TaskOptions
from trainer.evaluation.tasks import multilabel


def write_image(path: Path, value: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(np.full((20, 24, 3), value, np.uint8)).save(path)
    return str(path)


def test_only_images_below_the_data_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, opened = tmp_path / "data", []
    for i in range(3):
        write_image(root / f"multilabel/mine/{i}.png", 60 * i)
    outside = [
        write_image(tmp_path / "data2/private.png", 200),
        "../../../data2/private.png",
        "../../../../../etc/passwd",
    ]
    rows = [*(f"{i}.png,{'a' if i else 'b'}" for i in range(3)), *(f"{name},a" for name in outside), "../mine/2.png,b"]
    (root / "multilabel/mine.csv").write_text("\n".join(["image,labels", *rows]) + "\n")
    embedder = CachedEmbedder(*model_and_tokenizer("meru"), tmp_path / "cache", workers=1)
    embedder.root = root
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(str(path)) or real(path))
    found = multilabel.evaluate(embedder, root, TaskOptions())
    assert found.skipped == {"mine: unreadable image": 2, "mine: missing image": 1}
    assert not [path for path in map(os.path.abspath, opened) if not path.startswith(f"{root}/")]
    assert {os.path.abspath(image.path).rpartition("/")[2] for image in embedder.seen} == {f"{i}.png" for i in range(3)}


def test_images_that_are_large_or_no_files_are_unreadable(tmp_path: Path) -> None:
    write_image(tmp_path / "good.png", 1)
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(40 * MAX_SAMPLE_BYTES)
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "zero.jpg").symlink_to("/dev/zero")
    embedder = CachedEmbedder(*model_and_tokenizer("meru"), tmp_path / "cache", workers=1)
    names = ("good.png", "large.jpg", "pipe.jpg", "zero.jpg")
    found = embedder.images([ImageSource(path=tmp_path / name) for name in names])
    assert {*found.errors} == {1, 2, 3}
    assert "more than" in found.errors[1]


def test_an_idx_file_is_unpacked_no_further_than_it_says(tmp_path: Path) -> None:
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(struct.pack(">BBBBI", 0, 0, 8, 1, 1) + b"\0")
    for shape, size in (((1, 2, 2), 1 << 20), ((2**32 - 1,) * 3, 1 << 20), ((60_001, 28, 28), 60_001 * 28**2)):
        bomb = struct.pack(">BBBBIII", 0, 0, 8, 3, *shape) + bytes(size)
        (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(bomb, 1))
        with pytest.raises(UserError, match="is not an idx file with 3 axes of bytes, at most 47,040,000 of them"):
            read_mnist(tmp_path)


def test_a_matlab_file_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "devkit").mkdir()
    packer = zlib.compressobj()
    bomb = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(1 + (MAX_MAT_BYTES >> 20))), packer.flush()])
    savemat(tmp_path / "good.mat", {"class_names": np.array(["a"], object)}, do_compression=True)
    bombs = (tmp_path / "good.mat").read_bytes() + struct.pack("<II", 15, len(bomb)) + bomb
    assert len(bombs) < 1 << 20
    for name in ("devkit/cars_meta.mat", "cars_test_annos_withlabels.mat", "setid.mat", "imagelabels.mat"):
        (tmp_path / name).write_bytes(bombs)
    for read in (read_cars, read_flowers102):
        with pytest.raises(UserError, match="bytes after decompression"):
            read(tmp_path)


def test_a_nested_json_of_a_training_shard_hides_no_other_sample(tmp_path: Path) -> None:
    members = [{"jpg": jpeg(), "json": text.encode()} for text in ("[" * 100_000, json.dumps({"url": "http://h/1"}))]
    write_tar(tmp_path / "shards/0.tar", [(str(i), files) for i, files in enumerate(members)])
    found = training_fingerprints(str(tmp_path / "shards"), tmp_path / "cache")
    assert len(found) == 2
    assert [url != 0 for url in found["url"]] == [False, True]
