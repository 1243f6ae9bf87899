"""Merge, dedupe and reshard with sources and outputs in a bucket."""

import fsspec
import pytest

from pipeline.commands import rewrite
from tests.pipeline.commands.derive.outputs import LOCAL, kept, lost, make_output, multiset, picture, read_rows


@pytest.mark.rest
def test_outputs_in_a_bucket_are_merged_deduplicated_and_resharded(server: str) -> None:
    fsspec.filesystem("s3").mkdir("mine")
    rows = [kept(picture(i), url=f"u{i}") for i in range(4)]
    make_output("s3://mine/a", {0: [rows[0], lost(), rows[1]], 1: [rows[2]]}, rows_per_shard=3)
    make_output("s3://mine/b", {0: [rows[3], rows[1]]}, rows_per_shard=3)
    sources = ("source=s3://mine/a", "source=s3://mine/b")
    assert rewrite.main([*sources, "output=s3://mine/both", *LOCAL]) == 0
    unique = ("source=s3://mine/both", "output=s3://mine/unique", "dedupe=[url,picture]", "dedupe_radius=4")
    assert rewrite.main([*unique, *LOCAL]) == 0
    assert {
        key: row["detail"] for key, row in read_rows("s3://mine/unique").items() if row["reason"] == "same_url"
    } == {"000000000005": "000000000002"}
    assert not fsspec.filesystem("s3").find("mine/unique/_dedupe")
    new = ("source=s3://mine/unique", "output=s3://mine/new", "samples_per_shard=1", "seed=3")
    assert rewrite.main([*new, *LOCAL]) == 0
    assert multiset("s3://mine/new") == multiset("s3://mine/unique")
