"""The summary of a shard is compared with the rows of the shard."""

import hashlib
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
from pipeline.summary.totals import compressed, decompressed, encode_json
from tests.pipeline.commands.verify.damage import check, edit_manifest, flip, problems, write_two
from tests.pipeline.output.resume.jobs import configure

SUMMARY = "_summaries/00001.json.zst"
ROLLUP = "_rollup/00000.json.zst"


def edit(output: Path, change: Callable[[Any], object], seal: bool = True) -> None:
    """Change the JSON of the summary of shard 1 in place, and `seal` it with its new hash."""
    value = json.loads(decompressed((output / SUMMARY).read_bytes()))
    digest = value.pop("sha256")
    change(value)
    value["sha256"] = hashlib.sha256(encode_json(value)).hexdigest() if seal else digest
    (output / SUMMARY).write_bytes(compressed(encode_json(value)))


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        (lambda value: value["rows"].update(kept=2, read=3), "rows"),
        (lambda value: value["bytes"].update(train=1), "bytes"),
        (lambda value: value["totals"]["chunks"].update(pronoun=99), "totals"),
        (lambda value: value["totals"]["images"].update(hashes=""), "totals"),
        (lambda value: value["places"].update(kept=[7]), "places"),
    ],
)
def test_a_summary_that_differs_from_the_rows_is_named_with_the_fix(
    tmp_path: Path, change: Callable[[Any], object], entry: str
) -> None:
    edit(write_two(tmp_path), change)
    (found,) = problems(tmp_path)
    assert found.startswith(f"{SUMMARY}: its {entry} are not those of the rows")
    assert f"`hypergrit explore {tmp_path} report=true`" in found
    assert problems(tmp_path, 2) == []


@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"{}"), lambda path: path.unlink(),
     lambda path: edit(path.parents[1], lambda value: value.update(version=0, rows={})),
     lambda path: edit(path.parents[1], lambda value: value.update(manifests={"1": "0" * 64})),
     lambda path: edit(path.parents[1], lambda value: value["rows"].update(kept=2, read=3), seal=False)],
    ids=["flipped", "empty", "no zstd", "removed", "version", "manifests", "flipped bit that left JSON"],
)  # fmt: skip
def test_a_summary_that_the_report_does_not_read_is_no_defect_and_counted_again(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    expected = build_stats(Store(str(write_two(tmp_path))))
    before = (tmp_path / SUMMARY).read_bytes()
    for path in (tmp_path / "_rollup").glob("*"):
        path.unlink()
    damage(tmp_path / SUMMARY)
    assert problems(tmp_path) == []
    assert build_stats(Store(str(tmp_path))) == expected
    assert (tmp_path / SUMMARY).read_bytes() == before


@pytest.mark.parametrize("formats", [("train", "grit"), ("train", "arrow")])
def test_a_summary_is_compared_with_or_without_rows(tmp_path: Path, formats: tuple[str, ...]) -> None:
    write_two(tmp_path, WriteConfig(formats=formats))
    assert problems(tmp_path) == []
    edit(tmp_path, lambda value: value["totals"].update(grounded=99))
    assert "its totals are not" in problems(tmp_path)[0]


def test_a_requeued_summary_is_counted_again(tmp_path: Path) -> None:
    write_two(tmp_path)
    Store(str(tmp_path)).write("config.yaml", to_yaml(configure("/pairs", tmp_path)))
    expected = build_stats(str(tmp_path))
    before = (tmp_path / SUMMARY).read_bytes()
    edit(tmp_path, lambda value: value["totals"].update(grounded=99))
    (tmp_path / "_rollup").mkdir(exist_ok=True)
    (tmp_path / ROLLUP).touch()
    finding = check(tmp_path)
    assert finding.causes == [SUMMARY]

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
