"""Several captions of an image: from the columns of the input to the samples of the shards."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.world.layout import WorldConfig
from demo.world.scenes import TEST_SEEDS, make_scene
from pipeline.commands import rewrite, verify
from pipeline.images import encode_jpeg
from tests.pipeline.commands.derive.outputs import read_rows
from tests.pipeline.jobs import hash_output, run_job
from tests.pipeline.output.formats import defects
from tests.trainer.data.loading import small_loader, take
from tests.trainer.data.samples import TOKENIZER

ALL = ("read.captions=all", "read.caption_column=caption,title", "grounder=none", "scorer=none")


def write_input(folder: Path, rows: list[dict[str, Any]]) -> Path:
    image = encode_jpeg(make_scene(TEST_SEEDS.start, "openmoji", WorldConfig(width=96, height=96)).image)
    pq.write_table(pa.Table.from_pylist([{"image": image, **row} for row in rows]), folder / "in.parquet")
    return folder / "in.parquet"


def jsons(tar: Path) -> list[dict[str, Any]]:
    with tarfile.open(tar) as file:
        members = [file.extractfile(member) for member in file if member.name.endswith(".json")]
        return [json.load(member) for member in members if member]


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


def test_more_columns_need_a_rule_for_captions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_input(tmp_path, [{"caption": "a dog", "title": "b"}])
    assert run_job(path, tmp_path / "out", "read.caption_column=caption,title") == 2
    assert "random or all" in capsys.readouterr().err


GROUNDED = ("read.captions=all", "read.caption_column=caption,title", "score.min_clip_score=0")


def write_scenes(folder: Path) -> Path:
    """Two scenes, each with its caption, one that names a part of it, and one without anything to be found."""
    rows = []
    for seed in (TEST_SEEDS.start, TEST_SEEDS.start + 5):
        scene = make_scene(seed, "openmoji", WorldConfig(width=384, height=288))
        part = scene.caption[scene.phrases[0].start : scene.phrases[0].end]
        found = {"caption": [scene.caption, "my holiday"], "title": f"look at {part}"}
        rows.append({"image": encode_jpeg(scene.image), **found})
    return write_input(folder, rows)


@pytest.fixture(scope="module")
def grounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grounded")
    assert run_job(write_scenes(folder), folder / "out", *GROUNDED, "ground.captions=all", "score.min_score=0.2") == 0
    return folder


def test_each_caption_has_its_own_boxes(grounded: Path) -> None:
    assert verify.main([str(grounded / "out")]) == 0
    for row in read_rows(grounded / "out").values():
        first, holiday, title = row["captions"]
        assert first["boxes"] is None  # those of the row
        assert holiday["boxes"] == []
        assert len(title["boxes"]) == len(title["box_scores"]) > 0
        chunk = title["noun_chunks"][title["boxes"][0]["phrase"]]
        part = title["text"][chunk["start"] : chunk["end"]]
        assert title["text"].endswith(part)
        assert title["box_scores"][0]["clip_cosine"] is not None


def test_samples_begin_as_without_the_boxes_of_further_captions(grounded: Path, tmp_path: Path) -> None:
    assert run_job(grounded / "in.parquet", tmp_path / "out", *GROUNDED, "score.min_score=0.2") == 0
    for row in read_rows(tmp_path / "out").values():
        assert all(caption.keys() == {"kind", "text", "tokens"} for caption in row["captions"])
    for fewer, more in zip(samples(tmp_path / "out"), samples(grounded / "out"), strict=True):
        assert fewer.items() - {*fewer.items() & more.items()} == {("json", fewer["json"])}
        fields = json.loads(more["json"])
        n = int(more["numparents.txt"])
        title = fields["captions"][2]
        texts = [more[f"parent{n + i:03d}.txt"].decode() for i in range(len(title["parents"]))]
        assert texts == [title["text"][parent["start"] : parent["end"]] for parent in title["parents"]]


def samples(output: Path) -> list[dict[str, bytes]]:
    """The members of each sample of train/."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(output / "train" / "00000.tar") as file:
        for member in file:
            key, _, name = member.name.partition(".")
            content = file.extractfile(member)
            assert content is not None
            found.setdefault(key, {})[name] = content.read()
    return list(found.values())


@pytest.mark.parametrize("layout", ["train", "grit"])
def test_the_trainer_draws_boxes_of_the_caption_that_it_draws(grounded: Path, layout: str) -> None:
    phrases: dict[str, set[str]] = {}
    for sample in jsons(grounded / "out" / "train" / "00000.tar"):
        for caption in [sample | {"text": sample["caption"]}, *sample["captions"][1:]]:
            found = {caption["text"][parent["start"] : parent["end"]] for parent in caption["parents"]}
            phrases[caption["text"]] = found
    needs = frozenset({"boxes"})
    drawn = set()
    for batch in take(small_loader(grounded / "out" / layout, 1, needs, captions="random", boxes="random"), 60):
        text, phrase = (
            TOKENIZER.decode(ids[0].tolist()).replace(" ", "") for ids in (batch.token_ids, batch.box_token_ids)
        )
        (caption,) = (known for known in phrases if known.replace(" ", "").startswith(text))
        assert any(known.replace(" ", "").startswith(phrase) for known in phrases[caption])
        drawn.add(caption)
    assert drawn == {text for text, found in phrases.items() if found}  # my holiday has no box


def test_other_thresholds_are_applied_to_the_boxes_of_all_captions(grounded: Path, tmp_path: Path) -> None:
    scores = [box["score"] for row in read_rows(grounded / "out").values() for box in row["captions"][2]["boxes"]]
    limit = f"score.min_score={sorted(scores)[len(scores) // 2]}"
    arguments = [f"source={grounded / 'out'}", f"output={tmp_path / 'new'}", "ray.runner=local", "ray.cpu_workers=1"]
    assert rewrite.main([*arguments, limit]) == 0
    again = tmp_path / "again"
    assert run_job(grounded / "in.parquet", again, *GROUNDED, "ground.captions=all", limit) == 0
    tars = [{k: v for k, v in hash_output(tmp_path / name).items() if k.endswith(".tar")} for name in ("new", "again")]
    assert tars[0] == tars[1]
    removed = [
        score["removed"]
        for row in read_rows(again).values()
        for caption in row["captions"]
        for score in caption["box_scores"] or ()
    ]
    assert {None, "low_score"} == set(removed)
