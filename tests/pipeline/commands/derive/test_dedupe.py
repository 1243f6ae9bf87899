"""Duplicates and evaluation images: what stops a search, what is left of one that was stopped, and how near is near."""

from pathlib import Path
from typing import Any

import cv2
import duckdb
import numpy as np
import pyarrow as pa
import pytest

from hypergrit_common.images import decode
from hypergrit_common.near_duplicates import perceptual_hash
from pipeline.commands import rewrite_survey as survey
from pipeline.commands import takedown
from pipeline.commands.evaluation_set import EvaluationSet, read_evaluation_set
from pipeline.images import encode_jpeg
from pipeline.output.store import Store
from pipeline.read.takedown import TakedownList
from pipeline.read.types import ShardPlan
from pipeline.run import derived
from tests.pipeline.commands.derive.outputs import LOCAL, kept, lost, make_output, picture, read_rows
from tests.pipeline.commands.derive.outputs import run_rewrite as run
from tests.pipeline.commands.derive.rows import stats_of
from tests.pipeline.jobs import hash_output

Printed = pytest.CaptureFixture[str]
SIMILAR = ("dedupe=[url,bytes,picture]", "dedupe_radius=4")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards; rows 2 and 5 repeat row 0, by their URL and by their bytes."""
    output = tmp_path_factory.mktemp("source") / "out"
    rows = [kept(picture(n), url=f"http://x/{n}") for n in range(6)]
    rows[2] |= {"url": rows[0]["url"]}
    rows[5] |= {"image": rows[0]["image"], "sha256": rows[0]["sha256"]}
    make_output(output, {0: [*rows[:4], lost()], 1: rows[4:]}, rows_per_shard=5)
    return output


def test_shards_without_duplicates_are_the_same_bytes(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "new", "dedupe=[bytes]") == 0
    old, new = hash_output(source), hash_output(tmp_path / "new")
    assert all(old[f"{kind}/00000.{end}"] == new[f"{kind}/00000.{end}"] for kind, end in
               (("train", "tar"), ("grit", "tar"), ("arrow", "arrow")))  # fmt: skip
    assert old["grit/00001.tar"] != new["grit/00001.tar"]


@pytest.mark.parametrize("moment", ["after_report", "before_last"])
def test_a_takedown_holds_for_the_missing_shards_of_a_stopped_run(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    new, write = tmp_path / "new", derived.write_shard

    def write_but_last(table: pa.Table, plan: ShardPlan, *rest: Any) -> Any:
        if plan.index == 1 and moment == "before_last":
            raise KeyboardInterrupt
        return write(table, plan, *rest)

    def stop(self: Any, store: Store) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(derived, "write_shard", write_but_last)
        patch.setattr(survey.Survey, "clean", stop)
        assert run(source, new, "dedupe=[url]") == 130
    assert list((new / "_dedupe").iterdir())
    last = max(read_rows(source).values(), key=lambda row: row["key"])
    (tmp_path / "list.txt").write_text(last["sha256"])
    assert takedown.main([str(new), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    assert run(source, new, "dedupe=[url]") == 0
    found = read_rows(new)[last["key"]]
    assert (found["reason"], found["sha256"], found["image"]) == ("taken_down", None, None)
    assert not list((new / "_dedupe").iterdir())


@pytest.mark.parametrize("damage", ["of another run", "gone"])
def test_rows_to_drop_of_another_run_are_not_used(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    commit, new = derived.commit, tmp_path / "new"

    def damaged(*arguments: Any) -> Any:
        for path in (new / "_dedupe").iterdir():
            if damage == "gone":
                path.unlink()
            else:
                survey.write_drops(str(new), "token of a killed run", arguments[-1].part, survey.DROPS.empty_table())
        return commit(*arguments)

    monkeypatch.setattr(derived, "commit", damaged)
    assert run(source, new, "dedupe=[url]") == 2


@pytest.mark.parametrize("options", [(*SIMILAR, "overwrite=true"), ("samples_per_shard=3", "seed=4", "overwrite=true")])
def test_shards_of_other_options_are_discarded_only_when_asked_for(
    source: Path, tmp_path: Path, capsys: Printed, options: tuple[str, ...]
) -> None:
    new = tmp_path / "new"
    assert run(source, new, "dedupe=[url]", "samples_per_shard=3") == 0
    before = hash_output(new)
    assert run(source, new, *options[:-1]) == 2
    error = capsys.readouterr().err
    assert "give overwrite=true" in error
    assert "changed" not in error
    assert hash_output(new) == before
    assert run(source, new, *options) == 0
    assert run(source, tmp_path / "fresh", *options) == 0
    assert hash_output(new) == hash_output(tmp_path / "fresh")


def test_an_undecodable_stored_image_is_named(tmp_path: Path, capsys: Printed) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(0))]}, "formats=[arrow]", "write.image_bytes=true")
    name = tmp_path / "a" / "arrow" / "00000.arrow"
    table = pa.ipc.open_file(name).read_all()
    broken = table.set_column(table.schema.get_field_index("image"), table.schema.field("image"), [[b"\xff\xd8 no"]])
    with pa.OSFile(str(name), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(broken)
    assert run(tmp_path / "a", tmp_path / "new", "dedupe=[picture]", "dedupe_radius=2") == 2
    assert "row 000000000000" in capsys.readouterr().err


def test_too_little_memory_is_an_error_that_names_the_setting(source: Path, tmp_path: Path, capsys: Printed) -> None:
    assert run(source, tmp_path / "new", *SIMILAR, "memory_gb=0.001") == 2
    error = capsys.readouterr().err
    assert "memory_gb=0.001" in error
    assert error.count("\n") == 1
    assert run(source, tmp_path / "new", *SIMILAR) == 0


def test_a_full_disk_is_an_error_that_names_tmpdir(
    source: Path, tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise duckdb.IOException("Could not write file: No space left on device")

    monkeypatch.setattr(survey.Duplicates, "find", full)
    assert run(source, tmp_path / "new", "dedupe=[url]") == 2
    assert "No space left on device" in (error := capsys.readouterr().err)
    assert "TMPDIR" in error


# Evaluation images.


def test_rows_are_found_by_url_hash_and_a_copy_of_the_image(source: Path, tmp_path: Path) -> None:
    rows = [row for row in read_rows(source).values() if row["status"] == "kept"][1:]
    image = decode(rows[3]["image"])
    small = cv2.resize(image, None, fx=0.6, fy=0.6, interpolation=cv2.INTER_AREA)
    (tmp_path / "set" / "deep").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "set" / "deep" / "copy.jpg"), small[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 70])
    near = perceptual_hash(decode(rows[2]["image"])) ^ 0b101
    lines = [rows[0]["url"].replace("http:", "HTTPS:"), rows[1]["sha256"].upper(), f"{near:016x}", "# a comment"]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    arguments = [f"against={tmp_path / 'set'}", f"against={tmp_path / 'list.txt'}"]
    assert run(source, tmp_path / "new", *arguments) == 0
    found = {key: row for key, row in read_rows(tmp_path / "new").items() if row["reason"] == "in_evaluation_set"}
    assert {rows[i]["key"] for i in range(4)} <= {*found}
    assert [found[rows[i]["key"]]["detail"] for i in (1, 2)] == ["sha256", "perceptual hash, 2 bits"]
    assert all(row["stage"] == "download" and row["boxes"] is row["caption"] is None for row in found.values())
    assert stats_of(tmp_path / "new")["rows"]["dropped"]["download"]["in_evaluation_set"] == len(found)
    assert run(source, tmp_path / "new", *arguments, "against_radius=1") == 2  # another set: nothing is discarded
    assert run(source, tmp_path / "new", *arguments, "against_radius=1", "overwrite=true") == 0
    assert read_rows(tmp_path / "new")[rows[2]["key"]]["status"] == "kept"


def test_the_radius_is_the_largest_distance_that_counts() -> None:
    image = encode_jpeg(picture(3))
    shown = perceptual_hash(decode(image))
    for bits, radius, is_found in ((3, 3, True), (4, 3, False), (0, 0, True), (1, 0, False)):
        near = EvaluationSet(TakedownList(), (shown ^ (2**bits - 1),), radius)
        assert (near.match(None, None, image) is not None) == is_found


def test_an_image_that_cannot_be_decoded_counts_with_its_hash(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG broken")
    found = read_evaluation_set([str(tmp_path)], 6)
    assert (len(found.entries.hashes), found.pictures) == (1, ())
    assert "cannot be decoded" in caplog.text
    cv2.imwrite(str(tmp_path / "good.png"), np.zeros((40, 40, 3), np.uint8))
    assert read_evaluation_set([str(tmp_path)], 6).digest != found.digest
