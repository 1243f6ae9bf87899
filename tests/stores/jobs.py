"""Checks of a store: rows, images and folders are read from it, and a job writes shards to it and resumes."""

import json

import fsspec

from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.stage import read_shard
from tests.pipeline.resume.jobs import configure, digests_of, run


def read(source: str, **settings: object) -> list[dict]:
    """The rows of an input."""
    config = ReadConfig(**settings)  # type: ignore[arg-type]
    plans = plan_shards(source, 3, None, config)
    return [row for plan in plans for row in read_shard(plan, config).to_pylist()]


def check_store(url: str) -> None:
    """Use the empty folder `url` of a store as input, as a root of images and as output."""
    fs, root = fsspec.core.url_to_fs(url)
    fs.pipe_file(f"{root}/in/a.jpg", b"image")
    fs.pipe_file(f"{root}/in/a.txt", b"a cat")
    fs.pipe_file(f"{root}/secret.jpg", b"secret")
    urls = [f"{url}/in/a.jpg", f"{url}/secret.jpg", f"{url}/in/../secret.jpg", f"{url}/in/none.jpg"]
    for i in range(3):
        rows = "".join(json.dumps({"url": text, "caption": "x"}) + "\n" for text in urls)
        fs.pipe_file(f"{root}/rows/{i}.jsonl", rows.encode())
    (image,) = read(f"{url}/in")
    assert (image["image"], image["caption_original"]) == (b"image", "a cat")
    found = read(f"{url}/rows/{{0..1}}.jsonl", image_roots=(f"{url}/in",))
    assert [row["image"] for row in found[:4]] == [b"image", None, None, None]
    assert [row["reason"] for row in found[:4]] == [None, "image_refused", "image_refused", "image_not_found"]
    config = configure(f"{url}/rows", f"{url}/out")
    assert run(config) == [0, 1, 2, 3]
    before = digests_of(fs, f"{root}/out")
    assert run(config) == []
    fs.rm_file(f"{root}/out/_manifests/00002.json")
    assert run(config) == [2]
    assert digests_of(fs, f"{root}/out") == before
