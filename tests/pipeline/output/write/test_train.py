"""train/: the members that the loader of HyCoCLIP reads, and the added JSON."""

import io
import json
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import webdataset

from pipeline.config import WriteConfig
from pipeline.output.write.samples import to_json
from pipeline.output.write.stage import write_shard
from pipeline.output.write.train import train_sample
from tests.pipeline.output.write.shards import CAPTION, PROVENANCE, kept_row, plan, table


def samples(output: Path) -> list[dict[str, bytes]]:
    return list(webdataset.WebDataset(str(output / "train/00001.tar"), shardshuffle=False, empty_check=False))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_shard(table(), plan(), WriteConfig(formats=("train",)), str(tmp_path), PROVENANCE)
    return tmp_path


def test_webdataset_reads_the_members_of_hycoclip_in_every_sample(written: Path) -> None:
    found = samples(written)
    assert [sample["__key__"] for sample in found] == [f"{i:012d}" for i in (10, 12, 13)]
    for sample in found:
        n = int(sample["numparents.txt"].decode())
        assert n >= 1
        parents = {f"parent{i:03d}.{extension}" for i in range(n) for extension in ("jpg", "txt")}
        assert {key for key in sample if not key.startswith("__")} == {
            "child.jpg",
            "child.txt",
            "numparents.txt",
            "json",
        } | parents
        assert sample["child.txt"].decode() == CAPTION
        for name in ("child.jpg", *(name for name in parents if name.endswith(".jpg"))):
            with PIL.Image.open(io.BytesIO(sample[name])) as image:
                assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (224, 224))


def test_parents_are_chunks_then_expressions_and_each_text_occurs_once_with_its_best_kept_box(written: Path) -> None:
    sample = samples(written)[0]
    texts = [sample[f"parent{i:03d}.txt"].decode() for i in range(int(sample["numparents.txt"]))]
    assert texts == ["a small dog", "🐈 dog", "a café", "🐈 dog on a small dog"]
    parents = json.loads(sample["json"])["parents"]
    assert [p["box"] for p in parents] == [0, 1, 2, 1]  # index among the kept boxes
    assert [p["kind"] for p in parents] == ["noun_chunk"] * 3 + ["ref_exp"]
    assert [CAPTION[p["start"] : p["end"]] for p in parents] == texts
    assert sample["parent001.jpg"] == sample["parent003.jpg"]


def test_json_is_sorted_utf8_with_short_floats_and_without_removed_boxes(written: Path) -> None:
    raw = samples(written)[0]["json"]
    meta = json.loads(raw)
    assert "café 🐈".encode() in raw
    assert list(meta) == sorted(meta)
    assert [box["score"] for box in meta["boxes"]] == [0.9, 0.7, 0.65, 0.6]
    assert meta["clip_similarity"] == 0.31
    assert meta["tokens"] == kept_row(10)["tokens"]
    assert meta["provenance"]["config_hash"] == "c0ffee"
    assert meta["provenance"]["source_row"] == 10


def test_crop_shows_the_box_centred_on_white() -> None:
    image = PIL.Image.new("RGB", (300, 200), (0, 0, 255))
    image.paste((255, 0, 0), (30, 50, 270, 150))  # the box of 'a small dog'
    out = io.BytesIO()
    image.save(out, "JPEG", quality=100)
    crop = dict(train_sample(kept_row(1) | {"image": out.getvalue()}, WriteConfig(), "hash"))["parent000.jpg"]
    pixels = np.asarray(PIL.Image.open(io.BytesIO(crop))).astype(int)
    assert np.abs(pixels[112, 112] - (255, 0, 0)).max() < 12
    assert np.abs(pixels[112, 6] - (255, 0, 0)).max() < 12  # wide box: full width
    assert np.abs(pixels[20, 112] - 255).max() < 12  # and white above


def test_hard_negatives_of_the_input_belong_to_their_phrase() -> None:
    region = {"short_expr": "A small dog", "flag_short_neg": 1, "short_expr_negs": {"0": "a small cat"}}
    row = kept_row(1) | {"extra": json.dumps({"bbox_info": [region, region | {"short_expr": "a tree"}]})}
    fields = json.loads(dict(train_sample(row, WriteConfig(), "hash"))["json"])
    assert fields["hard_negatives"] == [{"parent": 0, "texts": ["a small cat"]}]
    plain = dict(train_sample(kept_row(1), WriteConfig(), "hash"))
    del fields["hard_negatives"]
    assert to_json(fields) == plain["json"]  # shards of other inputs keep their bytes


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (None, None),
        ('{"author": "a"}', None),
        ('{"subreddit": "foodporn"}', "foodporn"),
        ('{"subreddit": ""}', None),
        ('{"subreddit": 3}', None),
        ('{"author": "subreddit", "also": {"subreddit": "x"}}', None),
    ],
)
def test_subreddit_of_the_input_is_carried_to_the_json(extra: str | None, expected: str | None) -> None:
    fields = json.loads(dict(train_sample(kept_row(1) | {"extra": extra}, WriteConfig(), "hash"))["json"])
    assert fields.get("subreddit") == expected
    assert ("subreddit" in fields) == (expected is not None)  # shards of other inputs keep their bytes
