"""The summary of a shard is compared with the rows of the shard."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypergrit_common.config import to_yaml
from pipeline.config import WriteConfig
from pipeline.output.contents import requeue
from pipeline.output.store import Store
from pipeline.report.stats import build_stats
from pipeline.summary.totals import compressed, decompressed
from tests.pipeline.commands.verify.damage import check, edit_manifest, flip, problems, write_two
from tests.pipeline.output.resume.jobs import configure

SUMMARY = "_summaries/00001.json.zst"
ROLLUP = "_rollup/00000.json.zst"


def edit(output: Path, change: Callable[[Any], object]) -> None:
    """Change the JSON of the summary of shard 1 in place."""
    value = json.loads(decompressed((output / SUMMARY).read_bytes()))
    change(value)
    (output / SUMMARY).write_bytes(compressed(json.dumps(value).encode()))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda value: value["rows"].update(kept=2, read=3), "rows.read is 3, but 4 in the rows"),
        (lambda value: value["rows"]["dropped"]["download"].update(timeout=1), "rows.dropped.download.timeout is 1"),
        (lambda value: value["bytes"].update(train=1), "bytes.train is 1, but "),
        (lambda value: value["totals"]["chunks"].update(pronoun=99), "totals.chunks.pronoun is 99, but null"),
        (lambda value: value["totals"]["images"].update(hashes=""), 'totals.images.hashes is "", but "'),
        (lambda value: value["totals"]["histograms"].pop("clip_cosine"), "totals.histograms.clip_cosine is null"),
        (lambda value: value["totals"]["heads"]["texts"].append("\x1b[2J"), "totals.heads.texts is ["),
        (lambda value: value["places"].update(kept=[7]), "places.kept is [7], but [1] in the rows"),
        (lambda value: value.update(totals=None), "totals is null, but {"),
    ],
)
def test_a_summary_that_differs_from_the_rows_is_named_with_the_fix(
    tmp_path: Path, change: Callable[[Any], object], text: str
) -> None:
    edit(write_two(tmp_path), change)
    (found,) = problems(tmp_path)
    assert found.startswith(f"{SUMMARY}: ")
    assert text in found
    assert f"remove it and {ROLLUP}, if it exists, and run `hypergrit explore {tmp_path} report=true`" in found
    assert problems(tmp_path, 2) == []


def test_the_report_counts_the_rows_again_if_a_flipped_bit_left_json(tmp_path: Path) -> None:
    expected = build_stats(Store(str(write_two(tmp_path))))
    for path in (tmp_path / "_rollup").glob("*"):
        path.unlink()
    edit(tmp_path, lambda value: value["rows"].update(kept=2, read=3))
    assert build_stats(Store(str(tmp_path))) == expected


def test_a_flipped_byte_of_a_summary_is_named_whether_it_can_be_decompressed_or_not(tmp_path: Path) -> None:
    flip(write_two(tmp_path) / SUMMARY)
    (found,) = problems(tmp_path)
    assert found.startswith(f"{SUMMARY}: ")


def spoil_header(path: Path) -> None:
    path.write_bytes(b"?" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    "damage", [spoil_header, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"{}")]
)
def test_a_damaged_summary_is_named(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    damage(write_two(tmp_path) / SUMMARY)
    assert [found.partition(";")[0] for found in problems(tmp_path)] == [f"{SUMMARY}: damaged"]


@pytest.mark.parametrize("formats", [("train", "grit"), ("train", "arrow")])
def test_a_summary_is_compared_with_or_without_rows(tmp_path: Path, formats: tuple[str, ...]) -> None:
    write_two(tmp_path, WriteConfig(formats=formats))
    assert problems(tmp_path) == []
    edit(tmp_path, lambda value: value["totals"].update(grounded=99))
    assert "totals.grounded is 99" in problems(tmp_path)[0]


def test_a_summary_that_the_report_ignores_is_no_defect(tmp_path: Path) -> None:
    write_two(tmp_path)
    edit(tmp_path, lambda value: value.update(version=0, rows={}))
    assert problems(tmp_path) == []
    edit(tmp_path, lambda value: value.update(version=1, manifests={"1": "0" * 64}))
    assert problems(tmp_path) == []
    (tmp_path / SUMMARY).unlink()
    assert problems(tmp_path) == []


def test_a_requeued_summary_is_counted_again(tmp_path: Path) -> None:
    write_two(tmp_path)
    Store(str(tmp_path)).write("config.yaml", to_yaml(configure("/pairs", tmp_path)))
    expected = build_stats(str(tmp_path))
    before = (tmp_path / SUMMARY).read_bytes()
    edit(tmp_path, lambda value: value["totals"].update(grounded=99))
    (tmp_path / "_rollup").mkdir(exist_ok=True)
    (tmp_path / ROLLUP).touch()
    finding = check(tmp_path)
    assert finding.causes == [SUMMARY, ROLLUP]

    class Lease:
        def check(self) -> None: ...

    requeue(Store(str(tmp_path)), [finding], Lease())
    assert not (tmp_path / SUMMARY).exists()
    assert not (tmp_path / ROLLUP).exists()
    assert (tmp_path / "_manifests/00001.json").exists()
    assert build_stats(str(tmp_path)) == expected
    assert (tmp_path / SUMMARY).read_bytes() == before


def test_a_shard_with_other_defects_is_computed_again_as_a_whole(tmp_path: Path) -> None:
    write_two(tmp_path)
    edit_manifest(tmp_path, lambda manifest: manifest.update(asked=1))
    edit(tmp_path, lambda value: value.update(rows={}))
    assert check(tmp_path).causes == ["_manifests/00001.json"]
