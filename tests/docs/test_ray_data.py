"""Ray Data reads the shards, runs the stages, and its datasets become inputs: the examples of docs/shards.md."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.world.scenes import TEST_SEEDS, make_scene
from hypergrit_common.errors import UserError
from hypergrit_common.local_ray import init_ray, python_path
from pipeline import ReadConfig, plan_shards, read_shard, write_input
from pipeline.images import encode_jpeg
from pipeline.read import tables as module
from tests.engines.outputs import BOXES, KEYS, write_uneven
from tests.pipeline.output.write.shards import CAPTION

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def pairs() -> list[dict[str, Any]]:
    """Three scenes of the demo's world and their captions."""
    scenes = [make_scene(seed, "openmoji") for seed in TEST_SEEDS[:3]]
    return [{"image": encode_jpeg(scene.image), "caption": scene.caption, "n": i} for i, scene in enumerate(scenes)]


def read_all(folder: Path) -> list[dict[str, Any]]:
    plans = plan_shards(str(folder), 2, None, ReadConfig())
    return [row for plan in plans for row in read_shard(plan, ReadConfig()).to_pylist()]


def test_tables_and_batches_become_an_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE_BYTES", 1)
    rows = pairs()
    tables = [pa.Table.from_pylist(rows[:1]), pa.RecordBatch.from_pylist(rows[1:])]
    assert write_input(iter(tables), tmp_path / "in") == 3
    found = read_all(tmp_path / "in")
    assert [(row["image"], row["caption_original"], row["extra"]) for row in found] == [
        (row["image"], row["caption"], f'{{"n": {i}}}') for i, row in enumerate(rows)
    ]
    assert [path.name for path in sorted((tmp_path / "in").iterdir())] == ["00000.parquet", "00001.parquet"]
    with pytest.raises(UserError, match="is not empty"):
        write_input(iter(tables), tmp_path / "in")


def test_an_iterator_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    def stopping() -> Iterator[pa.Table]:
        yield pa.table({"url": ["http://example.org/1.jpg"], "caption": ["a dog"]})
        raise ConnectionError

    with pytest.raises(UserError, match="cannot be written"):
        write_input(stopping(), tmp_path / "in")
    with pytest.raises(UserError, match="have no row"):
        write_input([], tmp_path / "in")
    with pytest.raises(UserError, match="cannot be joined"):
        write_input([pa.table({"url": [1]}), pa.table({"url": [{"a": 1}]})], tmp_path / "in")
    assert not list(tmp_path.iterdir())


def test_the_page_contains_the_example_verbatim() -> None:
    code = (EXAMPLES / "ray_data_stages.py").read_text(encoding="utf-8")
    assert f"```python\n{code}```\n" in (ROOT / "docs" / "shards.md").read_text(encoding="utf-8")


def run_examples(folder: Path) -> None:
    """Run the examples on a Ray of their own."""
    import ray.data

    init_ray("local", num_cpus=2, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": python_path(str(ROOT))}})
    try:
        sys.argv = ["", str(write_uneven(folder / "out"))]
        runpy.run_path(str(EXAMPLES / "read_ray_data.py"), run_name="__main__")
        batches = ray.data.from_items(pairs()).iter_batches(batch_format="pyarrow", batch_size=2)
        assert write_input(batches, folder / "in") == 3
        sys.argv = ["", f"input={folder / 'in'}", f"output={folder / 'boxes'}", "rows_per_shard=2"]
        runpy.run_path(str(EXAMPLES / "ray_data_stages.py"), run_name="__main__")
    finally:
        ray.shutdown()


@pytest.mark.ray
@pytest.mark.rest
def test_ray_data_reads_shards_runs_the_stages_and_is_an_input(tmp_path: Path) -> None:
    # In a process of its own: this one may have joined a cluster, and starts others after it.
    code = f"from tests.docs.test_ray_data import *; run_examples(Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if CAPTION in line]
    assert lines == [f"{key} (224, 224) {CAPTION} {boxes}" for key, boxes in zip(KEYS, BOXES, strict=True)]
    rows = sorted(pq.read_table(tmp_path / "boxes").to_pylist(), key=lambda row: str(row["key"]))
    assert [row["key"] for row in rows] == [f"{i:012d}" for i in range(3)]
    assert all(row["status"] == "kept" and row["boxes"] and row["box_scores"] for row in rows)
    assert np.isfinite([row["clip_similarity"] for row in rows]).all()
