"""Outputs for tests, made without a job: shards of rows whose pictures, URLs and hashes are given."""

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pytest

from hypergrit_common.config import to_yaml
from hypergrit_common.images import Image
from pipeline.commands import rewrite
from pipeline.commands.frame import new_config
from pipeline.commands.rewrite import Pass, RewriteOptions, plan_parts
from pipeline.config import PipelineConfig
from pipeline.images import encode_jpeg
from pipeline.output.commit import Staging
from pipeline.output.ledger import read_images, read_manifests
from pipeline.output.record import make_record, write_record
from pipeline.output.source import Source
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.read.types import Piece, ShardPlan
from pipeline.run.derived import NewShard
from schemas.files import FILES
from schemas.job import InputBatch, InputFile
from schemas.rows import SCORED
from tests.pipeline.output.resume.jobs import configure, provenance_of

Row = dict[str, Any]
LOCAL = ("ray.runner=local", "ray.cpu_workers=1")
"""Arguments of a command that runs in the process of the test (conftest.py)."""


def picture(seed: int, noise: float = 0.0) -> Image:
    """A picture of random colours; `noise` adds the noise of another seed, so that the same picture differs a little."""
    colours = np.random.default_rng(seed).integers(0, 256, (6, 8, 3)).astype(np.float32)
    image = cv2.resize(colours, (96, 72), interpolation=cv2.INTER_CUBIC)
    image += np.random.default_rng(int(noise * 1000) + seed).normal(0, noise, image.shape).astype(np.float32)
    return np.clip(image, 0, 255).astype(np.uint8)


def kept(image: Image, **columns: Any) -> Row:
    """A kept row with one box."""
    data = encode_jpeg(image)
    caption = "a cat"
    box = {"phrase": 0, "x_min": 0.0, "y_min": 0.0, "x_max": 0.5, "y_max": 0.5, "score": 0.9}
    row: Row = dict.fromkeys(SCORED.names)
    row |= {"status": "kept", "image": data, "sha256": hashlib.sha256(data).hexdigest(), "caption": caption}
    row |= {"width": image.shape[1], "height": image.shape[0], "caption_original": caption, "tokens": []}
    row |= {"noun_chunks": [{"start": 0, "end": 5, "root": -1, "removed": None}], "ref_exps": [], "boxes": [box]}
    area_px = float(image.shape[0] * image.shape[1] // 4)
    row |= {"box_scores": [{"area_px": area_px, "clip_cosine": 0.3, "removed": None}], "clip_similarity": 0.25}
    return row | columns


def scored(number: int, score: float, **columns: Any) -> Row:
    """A kept row with the picture of this number, and one box with this score."""
    row = kept(picture(number), url=f"http://x/{number}")
    return row | {"boxes": [row["boxes"][0] | {"score": score}]} | columns


def lost(**columns: Any) -> Row:
    """A row that the download dropped."""
    row: Row = dict.fromkeys(SCORED.names)
    row |= {"status": "dropped", "stage": "download", "reason": "http_error", "detail": "404"}
    return row | columns


def make_output(
    output: Path | str, shards: Mapping[int, Sequence[Row]], *settings: str, rows_per_shard: int = 8, **packages: str
) -> PipelineConfig:
    """Write the shards of a job: index -> rows. Missing indices are shards that failed."""
    config = configure("/pairs", output, f"rows_per_shard={rows_per_shard}", *settings)
    store = Store(str(output))
    store.write("config.yaml", to_yaml(config))
    for index, rows in shards.items():
        first = index * rows_per_shard
        places = [
            {"key": f"{first + i:012d}", "source": "0/0.parquet", "source_row": first + i} for i in range(len(rows))
        ]
        table = pa.Table.from_pylist([row | place for row, place in zip(rows, places, strict=True)], schema=SCORED)
        plan = ShardPlan(
            index, first, len(rows), (Piece("/pairs/0.parquet", first, len(rows), 99, name="0/0.parquet"),)
        )
        write_shard(table, plan, config.write, config.output, provenance_of(config, **packages))
    return config


HOSTS = ("img.example.org", "cdn.example.net", "example.com")
"""Hosts of the URLs of `write_output`, in turn."""


def write_output(output: Path, formats: Sequence[str] = tuple(FILES)) -> None:
    """Write three shards of ten rows; row 5 is dropped by `download`, row 6 by `score`."""
    rows = list[Row]()
    for number in range(10):
        row = lost() if number == 5 else kept(picture(number))
        rows.append(row | {"url": f"http://{HOSTS[number % 3]}/{number}.jpg", "id": f"row {number}"})
    scores = [{**score, "removed": "low_score"} for score in rows[6]["box_scores"]]
    rows[6] |= {"status": "dropped", "stage": "score", "reason": "low_score", "image": None, "box_scores": scores}
    make_output(output, {0: rows[:4], 1: rows[4:8], 2: rows[8:]}, f"formats=[{','.join(formats)}]", rows_per_shard=4)


def record_job(config: PipelineConfig, n_rows: int) -> None:
    """Write the `_job.json` of an output of `make_output` whose job has this number of rows."""
    path, n_shards = "/pairs/0.parquet", -(-n_rows // config.rows_per_shard)
    file: InputFile = {"path": path, "size": 99, "hash": f"sha256:{'0' * 64}", "cuts": [[0, 0, 1], [n_rows, 0, 1]]}
    batch: InputBatch = {"first_shard": 0, "first_row": 0, "shards": n_shards, "rows": n_rows, "files": [file]}
    write_record(Store(config.output), make_record(config, provenance_of(config), [batch], ["/pairs/"]))


def random_shards(seed: int, n_shards: int, rows_per_shard: int = 8) -> dict[int, list[Row]]:
    """Rows with distinct URLs and pictures, of which a third are dropped; the last shard is not full."""
    rng = random.Random(seed)
    shards: dict[int, list[Row]] = {}
    for shard in range(n_shards):
        n_rows = rows_per_shard if shard < n_shards - 1 else rows_per_shard // 2 + 1
        numbers = [1000 * seed + rows_per_shard * shard + i for i in range(n_rows)]
        shards[shard] = [
            lost(url=f"http://x/{n}") if rng.random() < 0.33 else kept(picture(n), url=f"http://x/{n}") for n in numbers
        ]
    return shards


def read_rows(output: Path | str) -> dict[str, Row]:
    """All rows of arrow/ by key, with their images from grit/. Fails if a key is there twice, or counts differ."""
    store, rows = Store(str(output)), dict[str, Row]()
    for manifest in read_manifests(store):
        with store.fs.open(store.path(FILES["arrow"][0].path(manifest["shard"])), "rb") as file:
            found = pa.ipc.open_file(file).read_all().to_pylist()
        images = read_images(store, manifest, {row["key"] for row in found})
        assert len(found) == manifest["counts"]["read"] == manifest["plan"]["n_rows"]
        assert sum(row["key"] in images for row in found if row["status"] == "kept") == manifest["counts"]["kept"]
        for row in found:
            assert row["key"] not in rows
            rows[row["key"]] = row | {"image": images.get(row["key"])}
    return rows


def multiset(output: Path | str, without: Sequence[str] = ()) -> Counter[str]:
    """The rows of an output, with all columns and images but `without`."""
    rows = read_rows(output).values()
    return Counter(repr([(name, value) for name, value in row.items() if name not in without]) for row in rows)


def run_rewrite(source: Path | str, output: Path | str, *arguments: str) -> int:
    """Rewrite an output in the process of the test; return the exit code."""
    return rewrite.main([f"source={source}", f"output={output}", *LOCAL, *arguments])


@contextmanager
def killed_before_file(n: int) -> Iterator[None]:
    """Commands end as after a kill before they publish file `n` of their shards."""
    publish, numbers = Staging.publish_file, itertools.count()

    def killed(staging: Staging, relative: str) -> None:
        if next(numbers) >= n:
            raise KeyboardInterrupt
        publish(staging, relative)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Staging, "publish_file", killed)
        yield


def plan_shards(source: Source, output: Path, options: RewriteOptions) -> Sequence[NewShard]:
    """The shards of a rewrite of one source; `options` leave their number of rows as it is."""
    config = new_config(source, [], str(output))
    parts = plan_parts([source], [source.config], [source.config], set())
    unused: Any = None
    found = Pass(parts=parts, config=config, options=options, evaluation=None, filters=False)
    return found.plan(unused, unused)
