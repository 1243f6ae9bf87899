"""Checks of a store: rows, images and folders are read from it, a job writes shards to it and resumes, and has a lease.

The tests need packages that the lock file does not have:

    pip install --target stores gcsfs==2026.8.2 gcp-storage-emulator==2026.7.19 adlfs==2026.8.0
    npm install --prefix stores azurite@3.35.0
    PATH=$PWD/stores/node_modules/.bin:$PATH PYTHONPATH=stores .venv/bin/python -m pytest tests/stores
"""

import json

import fsspec
import pytest

from hypergrit_common.errors import UserError
from pipeline.faults import ShardError
from pipeline.output.lock import hold_lease
from pipeline.output.manifest import read_manifest
from pipeline.output.store import Store
from pipeline.read.config import ReadConfig
from pipeline.read.plan import plan_shards
from pipeline.read.source import read_shard
from schemas.files import LEASE_FILE
from tests.pipeline.output.resume.jobs import configure, digests_of, run
from tests.pipeline.output.write.test_fence import take_over, write


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
    check_lease(f"{url}/held")


def check_lease(output: str) -> None:
    """Commit shards to an output while another job tries to, takes over, and has ended."""
    store = Store(output)
    with hold_lease(store) as lease:
        with pytest.raises(UserError, match="in use by a job on host"), hold_lease(Store(output)):
            pass
        lease.renew()
        write(output, lease.token)
        take_over(store)
        with pytest.raises(UserError, match="lost the output"):
            write(output, lease.token, "2")
        with pytest.raises(UserError, match="has lost the output"):
            lease.check()
    store.remove([LEASE_FILE])
    with pytest.raises(ShardError, match="nothing is written"):
        write(output, "gone", "3")
    manifest = read_manifest(store, 1)
    assert manifest is not None
    assert manifest["provenance"]["config_hash"] == "1"
