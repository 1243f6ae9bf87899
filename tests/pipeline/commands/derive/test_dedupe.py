"""Dedupe: over all shards the lowest key stays, and the ledger names it."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from hypergrit_common.images import STORED_IMAGE_LIMITS, decode
from hypergrit_common.near_duplicates import perceptual_hash
from pipeline.commands import rewrite, takedown
from pipeline.commands import rewrite_survey as survey
from pipeline.commands.rewrite_rows import Part
from pipeline.images import encode_jpeg
from pipeline.output.manifest import plan_from_json
from pipeline.output.source import Source
from pipeline.output.store import Store
from pipeline.read.types import ShardPlan
from pipeline.run import derived as output
from pipeline.stages.score.scorers import load_scorer
from tests.pipeline.commands.derive.outputs import Row, kept, lost, make_output, picture, read_rows
from tests.pipeline.jobs import hash_output

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")
NOISY = [picture(1, noise) for noise in (2.0, 4.0, 6.0, 9.0)]


def run(source: Path, output: Path, *arguments: str) -> int:
    """Run the command on this machine; duplicates have equal URLs or bytes unless `arguments` say otherwise."""
    by = [] if any(item.startswith("dedupe=") for item in arguments) else ["dedupe=[url,bytes]"]
    return rewrite.main([f"source={source}", f"output={output}", *LOCAL, *by, *arguments])


def shards() -> dict[int, Sequence[Row]]:
    """Rows 0 to 14 with URL u and picture p; those with the same URL, bytes or picture are in different shards."""
    return {
        0: [kept(picture(0), url="u0"), kept(picture(1), url="u1"), lost(url="u2"), kept(picture(2), url="u3")],
        1: [kept(picture(3), url="u3"), lost(url="u0"), kept(picture(0), url="u5"), kept(NOISY[0], url="u6")],
        2: [kept(picture(4), url="u8"), kept(picture(5), url=None), kept(picture(6), url=None)],
        3: [kept(picture(5), url="u5"), kept(picture(7), url="u2"), kept(NOISY[3], url="u9")],
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("source") / "out"
    make_output(output, shards(), rows_per_shard=4)
    return output


def dropped(output: Path) -> dict[int, tuple[str, int]]:
    """The rows that dedupe dropped: row -> (reason, row that stays)."""
    rows = read_rows(output).values()
    return {int(r["key"]): (r["reason"], int(r["detail"])) for r in rows if r["stage"] == "write"}


def test_the_row_with_the_lowest_key_stays(source: Path, tmp_path: Path) -> None:
    before = hash_output(source)
    assert run(source, tmp_path / "new") == 0
    expected = {4: ("same_url", 3), 12: ("same_url", 0), 6: ("same_bytes", 0)}
    # Row 12 has the URL of row 6, which goes itself, since its bytes are those of row 0.
    assert dropped(tmp_path / "new") == expected
    assert hash_output(source) == before
    old, new = read_rows(source), read_rows(tmp_path / "new")
    assert list(old) == list(new)
    for key, row in new.items():
        changed = {name for name, value in row.items() if value != old[key][name]}
        assert changed == ({"status", "stage", "reason", "detail", "image"} if int(key) in expected else set())
    stats = json.loads((tmp_path / "new" / "stats.json").read_bytes())["rows"]
    assert stats["read"] == len(old) == stats["kept"] + sum(sum(r.values()) for r in stats["dropped"].values())
    assert stats["dropped"]["write"] == {"same_url": 2, "same_bytes": 1}
    assert not (tmp_path / "new" / "_dedupe").exists() or not list((tmp_path / "new" / "_dedupe").iterdir())


def test_pictures_are_compared_within_the_radius(source: Path, tmp_path: Path) -> None:
    hashes = [
        perceptual_hash(decode(encode_jpeg(image), STORED_IMAGE_LIMITS)) for image in (picture(1), NOISY[0], NOISY[3])
    ]
    distances = [(hashes[0] ^ other).bit_count() for other in hashes[1:]]
    assert distances[0] < distances[1] <= 8
    for radius in (*distances, 0):
        assert run(source, tmp_path / f"{radius}", "dedupe=[picture]", f"dedupe_radius={radius}") == 0
        near = {row for row, distance in zip((7, 14), distances, strict=True) if distance <= radius}
        found = dropped(tmp_path / f"{radius}")
        assert found == dict.fromkeys(near, ("same_picture", 1)) | {6: ("same_picture", 0), 12: ("same_picture", 9)}


def test_shards_without_duplicates_are_the_same_bytes(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "new", "dedupe=[bytes]") == 0
    names = [f"{kind}/00000.{end}" for kind, end in (("train", "tar"), ("grit", "tar"), ("arrow", "arrow"))]
    old, new = hash_output(source), hash_output(tmp_path / "new")
    assert [old[name] for name in names] == [new[name] for name in names]
    assert old["grit/00001.tar"] != new["grit/00001.tar"]


def test_a_stopped_run_is_completed_with_the_same_bytes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("dedupe=[url,bytes,picture]", "dedupe_radius=4")
    assert run(source, tmp_path / "whole", *arguments) == 0
    calls: list[str] = []

    def stopping(name: str, function: Any, at: int) -> Any:
        def call(*values: Any) -> Any:
            calls.append(name)
            if calls.count(name) == at:
                raise KeyboardInterrupt
            return function(*values)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(survey, "make_facts", stopping("facts", survey.make_facts, 3))
        assert run(source, tmp_path / "new", *arguments) == 130
        assert calls.count("facts") == 3
        patch.setattr(output, "write_shard", stopping("write", output.write_shard, 2))
        assert run(source, tmp_path / "new", *arguments) == 130
        assert calls.count("facts") == 3 + 2  # those of two shards are read from the files of the first run
    assert run(source, tmp_path / "new", *arguments) == 0
    assert hash_output(tmp_path / "new") == hash_output(tmp_path / "whole")
    assert run(source, tmp_path / "new", "dedupe=[url]") == 2
    assert run(source, tmp_path / "new", "dedupe=[url]", "overwrite=true") == 0
    assert {reason for reason, _ in dropped(tmp_path / "new").values()} == {"same_url"}


@pytest.mark.parametrize("moment", ["after_report", "before_last"])
def test_a_takedown_removes_what_a_stopped_run_compared_and_holds_for_its_missing_shards(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    new = tmp_path / "new"
    write, remove = output.write_shard, Store.remove_many

    def write_but_last(table: pa.Table, plan: ShardPlan, *rest: Any) -> Any:
        if plan.index == 3 and moment == "before_last":
            raise KeyboardInterrupt
        return write(table, plan, *rest)

    def stop_at_facts(store: Store, names: Iterable[str]) -> None:
        found = list(names)
        if any("_dedupe" in name for name in found):
            raise KeyboardInterrupt
        remove(store, found)

    with monkeypatch.context() as patch:
        patch.setattr(output, "write_shard", write_but_last)
        patch.setattr(Store, "remove_many", stop_at_facts)
        assert run(source, new) == 130
    assert list((new / "_dedupe").iterdir())
    last = max(read_rows(source).values(), key=lambda row: row["key"])
    (tmp_path / "list.txt").write_text(last["sha256"])
    assert takedown.main([str(new), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    assert not list((new / "_dedupe").iterdir())
    assert run(source, new) == 0
    found = read_rows(new)[last["key"]]
    assert (found["reason"], found["sha256"], found["image"]) == ("taken_down", None, None)


def test_facts_of_another_source_are_not_used(source: Path, tmp_path: Path) -> None:

    make_output(tmp_path / "b", {0: [kept(picture(0), url="x"), kept(picture(1), url="x")]}, rows_per_shard=4)
    found = Source(str(source))
    for index in range(3):
        plan, provenance = plan_from_json(found.manifests[index]["plan"]), found.manifests[index]["provenance"]
        part = Part(found.shard(index), index, plan, provenance, 0)
        survey.write_facts(str(tmp_path / "new"), False, part)
    (tmp_path / "new" / "_dedupe" / "00001.facts.arrow").write_bytes(b"cut off")
    assert run(tmp_path / "b", tmp_path / "new") == 0
    assert dropped(tmp_path / "new") == {1: ("same_url", 0)}


def test_refilter_keeps_what_dedupe_dropped(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "unique") == 0
    assert (
        rewrite.main([f"source={tmp_path / 'unique'}", f"output={tmp_path / 'new'}", *LOCAL, "formats=[grit,arrow]"])
        == 0
    )
    assert dropped(tmp_path / "new") == dropped(tmp_path / "unique")


def test_an_output_without_kept_rows_has_no_duplicates(tmp_path: Path) -> None:
    make_output(tmp_path / "a", {0: [lost(url="u"), lost(url="u")], 1: []}, rows_per_shard=4)
    assert run(tmp_path / "a", tmp_path / "new", "dedupe=[url,bytes,picture]", "dedupe_radius=8") == NOTHING_KEPT
    assert dropped(tmp_path / "new") == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["dedupe=[url,pixels]"],
            "dedupe is ['url', 'pixels']; give one or more of ['url', 'bytes', 'picture', 'meaning']",
        ),
        (["dedupe=url"], "dedupe must be a list; write [url]"),
        (["dedupe=[picture]"], "dedupe=[picture] and dedupe_radius=BITS belong together"),
        (["dedupe_radius=3"], "dedupe=[picture] and dedupe_radius=BITS belong together"),
        (["dedupe=[picture]", "dedupe_radius=9"], "dedupe_radius"),
        (["dedupe=[picture]", "dedupe_radius=-1"], "dedupe_radius"),
        (["memory_gb=0"], "memory_gb"),
        (["memory_gb=nan"], "memory_gb"),
        (["dedupe=[url]; drop table facts"], "dedupe"),
        (["ground.floor=0.9"], "rewrite cannot change ground.floor"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(source, tmp_path / "new", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_an_undecodable_stored_image_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(0))]}, "formats=[arrow]", "write.image_bytes=true")
    name = tmp_path / "a" / "arrow" / "00000.arrow"
    import pyarrow as pa

    table = pa.ipc.open_file(name).read_all()
    broken = table.set_column(table.schema.get_field_index("image"), table.schema.field("image"), [[b"\xff\xd8 no"]])
    with pa.OSFile(str(name), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(broken)
    assert run(tmp_path / "a", tmp_path / "new", "dedupe=[picture]", "dedupe_radius=2") == 2
    assert "row 000000000000" in capsys.readouterr().err


def test_too_little_memory_is_an_error_that_names_the_setting(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, tmp_path / "new", "dedupe=[picture]", "dedupe_radius=8", "memory_gb=0.001") == 2
    error = capsys.readouterr().err
    assert "cannot be compared with memory_gb=0.001 and the disk of TMPDIR (" in error
    assert error.count("\n") == 1
    assert run(source, tmp_path / "new", "dedupe=[picture]", "dedupe_radius=8") == 0


def test_a_full_disk_is_an_error_that_names_tmpdir(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.commands import rewrite_survey as duplicates

    def full(*_: Any) -> None:
        raise duckdb.IOException("Could not write file: No space left on device")

    monkeypatch.setattr(duplicates.Duplicates, "find", full)
    assert run(source, tmp_path / "new") == 2
    assert "No space left on device; give a larger memory_gb, or a TMPDIR with more space" in capsys.readouterr().err


def test_images_with_the_same_meaning_are_those_whose_embeddings_are_alike(source: Path, tmp_path: Path) -> None:
    rows = {key: row for key, row in read_rows(source).items() if row["status"] == "kept"}
    images = [decode(row["image"], STORED_IMAGE_LIMITS) for row in rows.values()]
    features = load_scorer("miniature", "cpu", 8).embed_images(images).numpy()
    cosines = features @ features.T
    cosine = float(np.sort(cosines[np.triu_indices(len(cosines), 1)])[-12]) - 1e-3
    stays, expected = list[int](), dict[int, tuple[str, int]]()
    for i, key in enumerate(rows):
        near = [j for j in stays if cosines[i, j] >= cosine]
        expected |= {int(key): ("same_meaning", int([*rows][near[0]]))} if near else {}
        stays += [] if near else [i]
    assert run(source, tmp_path / "new", "dedupe=[meaning]", f"dedupe_cosine={cosine}") == 0
    assert dropped(tmp_path / "new") == expected
    assert len(expected) >= 4
    manifest = json.loads((tmp_path / "new" / "_manifests" / "00000.json").read_bytes())
    assert manifest["origin"]["settings"]["scorer_name"] == "miniature"
    assert len(manifest["origin"]["settings"]["scorer_sha256"]) == 64


@pytest.mark.parametrize("arguments", [("dedupe=[meaning]",), ("dedupe=[url]", "dedupe_cosine=0.9")])
def test_meaning_needs_a_cosine_and_a_cosine_needs_meaning(
    arguments: tuple[str, ...], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(source, tmp_path / "new", *arguments) == 2
    assert "dedupe=[meaning] and dedupe_cosine=COSINE belong together" in capsys.readouterr().err
