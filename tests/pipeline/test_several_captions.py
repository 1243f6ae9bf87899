"""Several captions of an image: from the columns of the input to the samples of the shards."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.images import encode_jpeg
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.jobs import jsons, run_job
from tests.pipeline.output.formats import defects

ALL = ("read.captions=all", "read.caption_column=caption,title", "grounder=none", "scorer=none")


def write_input(folder: Path, rows: list[dict[str, Any]]) -> Path:
    image = encode_jpeg(make_scene(TEST_SEEDS.start, "openmoji", WorldConfig(width=96, height=96)).image)
    pq.write_table(pa.Table.from_pylist([{"image": image, **row} for row in rows]), folder / "in.parquet")
    return folder / "in.parquet"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    rows = [
        {"caption": ["a red &amp; big dog", "", "a cat"], "title": "my <b>pet</b>"},
        {"caption": ["x" * 2000, "a small cat"], "title": "a small cat"},
        {"caption": ["a dog"], "title": None},
        {"caption": ["<b></b>", " "], "title": "<br>"},
    ]
    assert run_job(write_input(folder, rows), folder / "out", *ALL) == 0
    return folder / "out"


def test_all_captions_are_cleaned_and_the_first_that_stays_is_the_caption(output: Path) -> None:
    rows = [*read_rows(output).values()]
    kinds = [[(c["kind"], c["text"]) for c in row["captions"] or ()] for row in rows]
    assert kinds[0] == [("caption", "a red & big dog"), ("caption", "a cat"), ("title", "my pet")]
    assert kinds[1:3] == [[], []]  # a caption that is left alone is no list
    assert [row["caption"] for row in rows[:3]] == ["a red & big dog", "a small cat", "a dog"]
    assert (rows[3]["stage"], rows[3]["reason"]) == ("captions", "empty_caption")
    assert defects(output) == []


def test_samples_have_all_captions_each_with_its_parse(output: Path) -> None:
    first, *others = jsons(output / "train" / "00000.tar")
    assert [c["text"] for c in first["captions"]] == ["a red & big dog", "a cat", "my pet"]
    assert first["captions"][0]["tokens"] == first["tokens"]
    for caption in first["captions"]:
        words = [caption["text"][token["start"] : token["end"]] for token in caption["tokens"]]
        assert words == caption["text"].split()
    assert all("captions" not in sample for sample in others)
    found = [sample.get("captions") for sample in jsons(output / "grit" / "00000.tar")]
    assert found[0] == [{"kind": c["kind"], "text": c["text"]} for c in first["captions"]]
    assert found[1:] == [None] * len(others)
