"""grit/: the layout of img2dataset with the columns of GRIT."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import webdataset

from pipeline.config import WriteConfig
from pipeline.output.write.grit import similarity_column
from pipeline.output.write.stage import write_shard
from schemas.files import grit_schema
from tests.pipeline.output.write.shards import CAPTION, PROVENANCE, kept_row, plan, table


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_shard(table(), plan(), WriteConfig(formats=("grit",)), str(tmp_path), PROVENANCE)
    return tmp_path / "grit"


def test_webdataset_reads_image_caption_and_the_lists_of_grit(written: Path) -> None:
    found = list(webdataset.WebDataset(str(written / "00001.tar"), shardshuffle=False))
    assert [sample["__key__"] for sample in found] == [f"{i:012d}" for i in (10, 12, 13)]
    assert found[0]["jpg"] == kept_row(10)["image"]
    assert found[0]["txt"].decode() == CAPTION
    meta = json.loads(found[0]["json"])
    assert [CAPTION[int(s) : int(e)] for s, e, *_ in meta["noun_chunks"]] == [
        "a small dog",
        "🐈 dog",
        "a café",
        "a café",
    ]
    assert [CAPTION[int(s) : int(e)] for s, e, *_ in meta["ref_exps"]] == ["a small dog", "🐈 dog on a small dog"]
    assert meta["noun_chunks"][1][2:] == meta["ref_exps"][1][2:] == [0.3, 0.25, 0.9, 0.75, 0.7]
    assert meta["clip_similarity_miniature"] == 0.31
    assert (meta["width"], meta["original_height"], meta["status"]) == (300, 400, "success")


def test_other_columns_of_the_input_are_kept_but_do_not_replace_those_of_grit(written: Path) -> None:
    meta = json.loads(next(iter(webdataset.WebDataset(str(written / "00001.tar"), shardshuffle=False)))["json"])
    assert meta["licence"] == "none"
    assert meta["url"] == "http://example.org/10.jpg"


def test_parquet_has_every_input_row_with_its_status(written: Path) -> None:
    found = pq.read_table(written / "00001.parquet")
    assert found.schema.equals(grit_schema("clip_similarity_miniature"))
    assert found["status"].to_pylist() == ["success", "failed_to_download", "success", "success"]
    lost = found.to_pylist()[1]
    assert lost["error_message"] == "download: http_error: 404"
    assert lost["caption"] == f" {CAPTION} "
    assert lost["noun_chunks"] is None


@pytest.mark.parametrize(
    ("scorer", "column"),
    [
        ("openai/clip-vit-base-patch32", "clip_similarity_vitb32"),
        ("/models/clip-vit-large-patch14/", "clip_similarity_vitl14"),
        ("miniature", "clip_similarity_miniature"),
        ("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "clip_similarity_clip_vit_b_32_laion2b_s34b_b79k"),
    ],
)
def test_similarity_column_names_its_scorer(scorer: str, column: str) -> None:
    assert similarity_column(scorer) == column
