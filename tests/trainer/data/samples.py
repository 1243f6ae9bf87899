"""Small shards of each layout for tests. The number of a sample is encoded in its pixels and in its caption."""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from trainer.text.tokenizer import Tokenizer

Files = dict[str, bytes]
TOKENIZER = Tokenizer([])  # without merges: each token is a byte


def jpeg(shade: int = 0, width: int = 48, height: int = 48, **options: Any) -> bytes:
    """Encode a grey image with a darker left half."""
    pixels = np.full((height, width, 3), shade, np.uint8)
    pixels[:, : width // 2] //= 2
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def train_files(number: int, n_boxes: int = 2, with_json: bool = True) -> Files:
    """Files of a sample in the layout `train`; without the JSON, in the layout `hycoclip`."""
    caption = f"cat {number}"
    files = {
        "child.jpg": jpeg(number % 200 + 50),
        "child.txt": caption.encode(),
        "numparents.txt": b"%d" % n_boxes,
    }
    for i in range(n_boxes):
        files[f"parent{i:03d}.jpg"] = jpeg(100 + i)
        files[f"parent{i:03d}.txt"] = f"box {i} of {number}".encode()
    if with_json:
        tokens = [
            {"start": 0, "end": 3, "head": 0, "dep": "ROOT"},
            {"start": 4, "end": len(caption), "head": 0, "dep": "nummod"},
        ]
        files["json"] = json.dumps({"caption": caption, "tokens": tokens}).encode()
    return files


def grit_files(number: int, **fields: Any) -> Files:
    """Files of a raw GRIT sample with one box, the left half of the image."""
    caption = f"a cat {number}"
    columns = {"caption": caption, "noun_chunks": [[0, 5, 0.0, 0.0, 0.5, 1.0, 0.9]], "ref_exps": []}
    return {"jpg": jpeg(200, 128, 96), "json": json.dumps({**columns, **fields}).encode()}


def pair_files(number: int) -> Files:
    """Files of a sample in the layout `pairs`."""
    return {"jpg": jpeg(number % 200 + 50, 64, 40), "txt": f"cat {number}".encode()}


def tar_bytes(samples: Sequence[tuple[str, Files]], tar_format: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar of samples, given as (key, files)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tar_format) as tar:
        for key, files in samples:
            for extension, content in files.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def write_tar(path: Path, samples: Sequence[tuple[str, Files]], tar_format: int = tarfile.USTAR_FORMAT) -> Path:
    """Write samples, given as (key, files), to a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(samples, tar_format))
    return path


def write_shards(folder: Path, counts: Sequence[int], make: Any = train_files) -> Path:
    """Write shards 00000.tar, ... with these numbers of samples; keys are numbered over all shards."""
    number = 0
    for shard, count in enumerate(counts):
        numbers = range(number, number + count)
        write_tar(folder / f"{shard:05d}.tar", [(f"{n:04d}", make(n)) for n in numbers])
        number += count
    return folder
