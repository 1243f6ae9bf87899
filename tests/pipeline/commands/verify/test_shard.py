"""Checks of a shard: each kind of damage is found, and named with its file."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.commands.verify import manifest_problems, read_samples
from pipeline.config import WriteConfig
from pipeline.output.commit import read_places
from pipeline.output.store import Store
from pipeline.output.write.stage import write_shard
from pipeline.output.write.tar import TarWriter
from schemas.files import INDEX
from tests.pipeline.commands.verify.damage import (
    FILES,
    check,
    edit_manifest,
    flip,
    problems,
    replace,
    substitute,
    write_two,
)
from tests.pipeline.output.write import shards

FORMATS = [("train", "grit", "arrow"), ("grit", "train"), ("train", "arrow"), ("grit", "arrow"), ("train",), ("arrow",)]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_two(tmp_path)


@pytest.mark.parametrize("formats", FORMATS)
def test_a_shard_as_written_has_no_problems(tmp_path: Path, formats: tuple[str, ...]) -> None:
    write_two(tmp_path, WriteConfig(formats=formats))
    found = check(tmp_path)
    assert found.problems == []
    assert found.counts == {"read": 4, "kept": 3, "dropped": {"download": {"http_error": 1}}}
    assert (found.n_images > 0) == bool({"train", "grit"} & set(formats))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (flip, "other content"),
        (lambda path: flip(path, -1), "other content"),
        (Path.unlink, "missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, but the manifest names"),
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: (path.unlink(), path.mkdir()), "is a folder"),
    ],
    ids=["flipped", "last byte", "removed", "truncated", "empty", "folder"],
)
def test_a_damaged_file_is_named_and_no_other(
    output: Path, name: str, damage: Callable[[Path], object], text: str
) -> None:
    damage(output / name)
    (found,) = check(output).problems
    assert found.file == name
    assert text in found.text or "bytes, but" in found.text
    assert check(output).causes == ["_index/00001.arrow" if name.startswith("_index") else "_manifests/00001.json"]
    assert problems(output, 2) == []


def test_a_pipe_in_place_of_a_file_is_not_opened(output: Path) -> None:
    (output / FILES[0]).unlink()
    os.mkfifo(output / FILES[0])
    edit_manifest(output, lambda manifest: manifest["files"][FILES[0]].update(bytes=0))
    assert problems(output) == [f"{FILES[0]}: cannot be read: {output / FILES[0]} is a named pipe; give a regular file"]


@pytest.mark.parametrize("name", FILES)
def test_files_of_two_shards_that_were_swapped_are_named_in_both(output: Path, name: str) -> None:
    ours, theirs = output / name, output / name.replace("1", "2")
    data = ours.read_bytes()
    ours.write_bytes(theirs.read_bytes())
    theirs.write_bytes(data)
    assert [problem.file for problem in check(output).problems] == [name]
    assert [problem.file for problem in check(output, 2).problems] == [name.replace("1", "2")]


def test_swapped_manifests_are_found(output: Path) -> None:
    folder = output / "_manifests"
    for source, target in (("00001", "x"), ("00002", "00001"), ("x", "00002")):
        shutil.move(folder / f"{source}.json", folder / f"{target}.json")
    assert "it is the manifest of shard 2" in problems(output, 1)[0]
    assert "it is the manifest of shard 1" in problems(output, 2)[0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m["counts"].update(read=5), "5 rows read are not 3 kept and 1 dropped"),
        (lambda m: m["counts"].update(kept=4, read=5), "5 rows read, but 4 planned"),
        (lambda m: m["counts"].update(dropped={"download": {"timeout": 1}}), "its rows cannot be counted"),
        (lambda m: m["counts"].update(dropped={"download": {"\x1b[2J": 1}}), "is not a drop reason"),
        (lambda m: m["counts"].update(read="4"), "damaged: it is no manifest"),
        (lambda m: m["counts"].update(read=10**400), "damaged: it is no manifest"),
        (lambda m: m["provenance"].update(models=[]), "damaged: it is no manifest"),
        (lambda m: m.update(counts={}), "damaged: it is no manifest"),
        (lambda m: m.update(boxes=13), "boxes by removal reason"),
        (lambda m: m.update(phrases=8), "phrases with a box"),
        (lambda m: m.update(asked=1), "noun chunks by removal reason"),
        (lambda m: m["removed"].update(boxes={}), "boxes by removal reason"),
        (lambda m: m["files"].pop("grit/00001.tar"), "it does not list grit/00001.tar"),
        (lambda m: m["files"].pop("_index/00001.arrow"), "it does not list _index/00001.arrow"),
        (lambda m: m["files"].update({"../x": m["files"]["grit/00001.tar"]}), "it lists ../x"),
        (lambda m: m.update(formats=["train", "arrow"]), "it lists grit/00001"),
        (lambda m: m.update(formats=["train", "movie"]), "a field is missing"),
        (lambda m: m["files"]["grit/00001.tar"].update(rows=4), "grit/00001.tar has 4 rows by its entry"),
        (lambda m: m.update(schema="9.0"), "it has schema 9.0"),
        (lambda m: m.update(files=[]), "damaged: it is no manifest"),
    ],
)
def test_a_changed_field_of_the_manifest_is_found(output: Path, change: Callable[[Any], None], text: str) -> None:
    edit_manifest(output, change)
    found = problems(output)
    assert found
    assert all(problem.startswith("_manifests/00001.json: ") for problem in found)
    assert any(text in problem for problem in found), found


def test_a_manifest_that_another_job_planned_is_found(output: Path) -> None:
    manifest = json.loads((output / "_manifests/00001.json").read_text())
    assert list(manifest_problems(manifest, 1, manifest["plan"])) == []
    (text,) = manifest_problems(manifest, 1, manifest["plan"] | {"first_row": 7})
    assert "_job.json" in text


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'"text"', b"null"])
def test_a_manifest_that_is_no_json_object_is_damaged(output: Path, content: bytes) -> None:
    (output / "_manifests/00001.json").write_bytes(content)
    assert problems(output) == ["_manifests/00001.json: damaged: it is no manifest"]


IMAGE = shards.jpeg(300, 200)


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        ("grit/00001.tar", IMAGE, b"x" * len(IMAGE), "jpg cannot be decoded (not_an_image"),
        ("train/00001.tar", b"\xff\xd8\xff", b"xxx", "child.jpg cannot be decoded"),
        ("train/00001.tar", b"000000000012.json", b"000000000012.jsin", "cannot be read (TarError"),
    ],
)
def test_an_image_or_tar_that_agrees_with_its_hash_but_cannot_be_read_is_found(
    output: Path, name: str, old: bytes, new: bytes, text: str
) -> None:
    substitute(output, name, old, new)
    assert any(text in problem for problem in problems(output)), problems(output)


def rewritten(tar: Path, keys: list[str]) -> bytes:
    """The tar with these samples only, in this order."""
    store = Store(str(tar.parent))
    found = dict(read_samples(store, tar.name, read_places(store, tar.name)))
    found["000000000014"] = found["000000000013"]
    file = io.BytesIO()
    with TarWriter(file) as writer:
        for key in keys:
            writer.add_sample(key, found[key].items())
    return file.getvalue()


def test_a_member_that_occurs_twice_is_found(output: Path) -> None:
    name = "train/00001.tar"
    replace(output, name, rewritten(output / name, ["000000000010", "000000000010", "000000000012", "000000000013"]))
    assert any("a member of sample 000000000010 occurs twice" in problem for problem in problems(output))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((10, 12), "none in place of 000000000013"),
        ((12, 10, 13), "000000000012 in place of 000000000010"),
        ((10, 12, 13, 14), "000000000014 in place of none"),
    ],
)
@pytest.mark.parametrize("name", ["train/00001.tar", "grit/00001.tar"])
def test_samples_that_are_missing_moved_or_too_many_are_found(
    output: Path, name: str, numbers: tuple[int, ...], text: str
) -> None:
    replace(output, name, rewritten(output / name, [f"{number:012d}" for number in numbers]))
    found = problems(output)
    assert any(problem.startswith(f"{name}: ") and text in problem for problem in found), found
    assert any(problem.startswith("_index/00001.arrow: it does not name") for problem in found)


def test_a_key_that_occurs_twice_in_train_alone_is_no_problem_of_its_index(tmp_path: Path) -> None:
    write_two(tmp_path, WriteConfig(formats=("train",)))
    name = "train/00001.tar"
    replace(tmp_path, name, rewritten(tmp_path / name, ["000000000010", "000000000012", "000000000010"]))
    assert f"{name}: row 000000000010: its key occurs twice" in problems(tmp_path)
    assert check(tmp_path).causes == ["_manifests/00001.json"]


def test_the_tar_of_a_damaged_parquet_is_not_compared_with_it(tmp_path: Path) -> None:
    write_two(tmp_path, WriteConfig(formats=("grit",)))
    flip(tmp_path / FILES[1])
    assert [problem.partition(":")[0] for problem in problems(tmp_path)] == [FILES[1]]


def arrow_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def change_row(output: Path, **change: Any) -> None:
    """Change row 2 of arrow/, and let its manifest agree."""
    table = pa.ipc.open_file(output / FILES[0]).read_all()
    rows = table.to_pylist()
    rows[2] |= change
    replace(output, FILES[0], arrow_bytes(pa.Table.from_pylist(rows, schema=table.schema)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"status": "dropped"}, "its samples are not those of the kept rows"),
        ({"key": "000000000010"}, "its key occurs twice"),
        ({"box_scores": []}, "row 2 of batch 0 has not one of box_scores for each of boxes"),
        ({"clip_similarity": float("nan")}, "row 2 of batch 0 has a null, NaN or infinity in clip_similarity"),
        ({"image": b"no image"}, "image cannot be decoded"),
    ],
)
def test_an_impossible_row_of_arrow_is_found(output: Path, change: dict[str, Any], text: str) -> None:
    change_row(output, **change)
    assert any(text in problem for problem in problems(output)), problems(output)


def test_missing_rows_and_columns_of_the_ledgers_are_found(output: Path) -> None:
    table = pa.ipc.open_file(output / FILES[0]).read_all()
    replace(output, FILES[0], arrow_bytes(table.drop_columns(["key"])))
    assert any("cannot be read" in problem for problem in problems(output))
    replace(output, FILES[0], arrow_bytes(table.slice(0, 3)))
    assert any("its rows are not those of arrow/" in problem for problem in problems(output))
    replace(output, FILES[0], arrow_bytes(table))
    assert problems(output) == []
    parquet = pq.read_table(output / FILES[1])
    pq.write_table(parquet.rename_columns(["KEY", *parquet.column_names[1:]]), output / FILES[1])
    replace(output, FILES[1], (output / FILES[1]).read_bytes())
    assert any(problem.startswith("grit/00001.parquet: cannot be read") for problem in problems(output))


def test_an_index_with_another_offset_is_found_and_is_the_only_cause(output: Path) -> None:
    table = pa.ipc.open_file(output / FILES[4]).read_all()
    rows = table.to_pylist()
    rows[1]["members"][0]["offset"] += 512
    replace(output, FILES[4], arrow_bytes(pa.Table.from_pylist(rows, schema=INDEX)))
    (problem,) = problems(output)
    assert problem == "_index/00001.arrow: it does not name the members of train/; the first sample: 000000000012"
    assert check(output).causes == [FILES[4]]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_format_whose_hash_is_right_is_a_problem_of_that_file(output: Path, name: str) -> None:
    replace(output, name, b"x" * 5000)
    assert any(problem.startswith(f"{name}: cannot be read") for problem in problems(output)), problems(output)


def test_a_shard_with_many_problems_is_not_read_to_its_end(output: Path) -> None:
    rows = [shards.kept_row(i) for i in range(100)]
    plan = shards.plan(1, 100)
    write_shard(shards.table(rows), plan, WriteConfig(), str(output), shards.PROVENANCE)
    data = (output / "train/00001.tar").read_bytes()
    replace(output, "train/00001.tar", data.replace(b"\xff\xd8\xff", b"xxx"))
    assert 20 <= len(problems(output)) < 25
