"""What shards and their metadata tell of the machine on which they were made: nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from pipeline import grit
from pipeline.output.write.samples import remove_url_secrets
from pipeline.output.write.tar import file_metadata
from pipeline.read.listing import file_name, input_folders, list_files
from schemas.files import FILES, INDEX_FOLDER
from tests.e2e.outputs import arrow_rows
from tests.pipeline.here import running_here
from tests.pipeline.jobs import hash_output, jsons, run_job


def write_input(folder: Path) -> None:
    """Write two folders with files of one name: pictures by paths below the folder, two of which are no picture."""
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            picture = np.full((64, 64, 3), 40 * i + 20 * (name == "b"), np.uint8)
            cv2.imwrite(str(folder / name / f"{i}.jpg"), picture)
        rows = [{"image_path": f"{i}.jpg", "caption": f"a dog {name} {i}"} for i in range(4)]
        lines = [*map(json.dumps, rows), "no row"]
        (folder / name / "pairs.jsonl").write_text("\n".join(lines))


def run(input: Path, output: Path, *arguments: str) -> dict[str, str]:
    """Run the job on both folders, and return the hashes of its shards."""
    given = [f"input=[{input / 'a'},{input / 'b'}]", f"read.image_roots=[{input / 'a'},{input / 'b'}]"]
    common = ["rows_per_shard=4", "ray.runner=local", "grounder=none", "scorer=none", "parse.model=none", "quiet=true"]
    with running_here():
        assert grit.main([*given, f"output={output}", *common, *arguments]) == 0
    return hash_output(output)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    folder = tmp_path_factory.mktemp("jane")
    write_input(folder / "input")
    return folder, run(folder / "input", folder / "out")


def test_equal_inputs_in_two_folders_give_equal_files_in_any_order_of_shards(
    first: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.pipeline import here

    compute = here.compute_here
    monkeypatch.setattr(here, "compute_here", lambda plans, *rest: compute([*plans][::-1], *rest))
    shutil.copytree(first[0] / "input", tmp_path / "other" / "place")
    found = run(tmp_path / "other" / "place", tmp_path / "out")
    assert {name.partition("/")[0] for name in found} == {*FILES, INDEX_FOLDER, "_manifests"}
    assert len(found) == 18
    assert found == first[1]


def test_no_file_of_a_shard_names_the_folder(first: tuple[Path, dict[str, str]]) -> None:
    folder, hashes = first
    for name in hashes:
        assert folder.name.encode() not in (folder / "out" / name).read_bytes(), name
    rows = arrow_rows(folder / "out")
    assert not any(folder.name in json.dumps(row, default=repr) for row in rows)
    assert [row["source"] for row in rows] == ["0/pairs.jsonl"] * 5 + ["1/pairs.jsonl"] * 5
    details = {(row["reason"], row["detail"]) for row in rows if row["status"] == "dropped"}
    assert ("image_not_found", "3.jpg: no such file") in details
    assert any((reason, text[:22]) == ("bad_row", "1/pairs.jsonl, line 5:") for reason, text in details)
    record = json.loads((folder / "out" / "_job.json").read_text())
    assert record["folders"] == [f"{folder / 'input' / name}/" for name in "ab"]


def test_a_row_is_described_with_its_file_in_full(first: tuple[Path, dict[str, str]], capsys: Any) -> None:
    from hypergrit import __main__ as hypergrit

    assert hypergrit.main(["explore", str(first[0] / "out"), "row=7"]) == 0
    assert f"row 2 (from 0) of {first[0] / 'input' / 'b' / 'pairs.jsonl'}" in capsys.readouterr().out


def test_train_names_its_file_below_the_input(tars: Path, finished: Path) -> None:
    assert {sample["provenance"]["source"] for sample in jsons(finished / "train" / "00000.tar")} == {"0/00000.tar"}


def test_a_merge_keeps_files_of_one_name_apart(tars: Path, finished: Path, tmp_path: Path) -> None:
    assert run_job(tars, tmp_path / "other") == 0
    from hypergrit import __main__ as hypergrit

    sources = [f"source={finished}", f"source={tmp_path / 'other'}"]
    with running_here():
        assert hypergrit.main(["rewrite", *sources, f"output={tmp_path / 'both'}", "ray.runner=local"]) == 0
    assert {row["source"] for row in arrow_rows(tmp_path / "both")} == {"0/0/00000.tar", "1/0/00000.tar"}


def test_a_merge_shows_the_names_of_files_in_its_sources(
    first: tuple[Path, dict[str, str]], tmp_path: Path, capsys: Any
) -> None:
    from hypergrit import __main__ as hypergrit

    write_input(tmp_path / "input")
    run(tmp_path / "input", tmp_path / "out")
    sources, both, again = [first[0] / "out", tmp_path / "out"], tmp_path / "both", tmp_path / "again"
    with running_here():
        arguments = [*(f"source={source}" for source in sources), f"output={both}", "mixed=true"]
        assert hypergrit.main(["rewrite", *arguments, "ray.runner=local"]) == 0
        assert hypergrit.main(["rewrite", f"source={both}", f"output={again}", "mixed=true", "ray.runner=local"]) == 0
    for name in (f"1/pairs.jsonl of {sources[0]}", f"0/pairs.jsonl of {sources[1]}"):
        assert f"{name}, line 5: " in (both / "report.html").read_text()
    assert f"0/1/pairs.jsonl of {both}, line 5: " in (again / "report.html").read_text()
    assert hypergrit.main(["explore", str(both), "row=17"]) == 0
    assert f"row 2 (from 0) of 1/pairs.jsonl of {sources[1]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("input", "names"),
    [
        ("ROOT", {"0/a/x.csv", "0/b/x.csv"}),
        ("ROOT/b,ROOT/a", {"0/x.csv", "1/x.csv"}),
        ("ROOT/a/x.csv", {"0/x.csv"}),
        ("ROOT/a/x.csv,ROOT/b/x.csv", {"0/x.csv", "1/x.csv"}),
        ("ROOT/*/x.csv", {"0/a/x.csv", "0/b/x.csv"}),
        ("ROOT/{a,b}/x.csv", {"0/a/x.csv", "0/b/x.csv"}),
        ("file://ROOT/a", {"0/x.csv"}),
        ("simplecache::file://ROOT/a/x.csv", {"0/x.csv"}),
        ("ROOT/a,ROOT", {"0/x.csv", "1/b/x.csv"}),
    ],
)
def test_names_of_files_begin_with_the_number_of_their_folder(tmp_path: Path, input: str, names: set[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").write_text("url,caption\nhttp://h/1.jpg,a dog\n")
    text = input.replace("ROOT", str(tmp_path))
    files = list_files(text)
    folders = input_folders(text, (), files)
    assert {file_name(path, folders) for path, _ in files} == names


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("s3://bucket/a/x.tar", "s3://bucket/a/x.tar"),
        ("hf://datasets/me/set/x.parquet", "hf://datasets/me/set/x.parquet"),
        ("https://h/x.parquet?X-Amz-Signature=1f&b=2", "https://h/x.parquet"),
        ("https://ann:pw@h/x.csv", "https://h/x.csv"),
    ],
)
def test_a_url_is_a_name_without_its_secrets(path: str, name: str) -> None:
    assert file_name(path, ["/data/"]) == name


def test_files_come_in_the_order_of_the_folders_wherever_these_are(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / name).mkdir()
        for file in ("2.csv", "1.csv"):
            (tmp_path / name / file).write_text("url,caption\n")
    given = f"{tmp_path / 'b'},{tmp_path}/{{c,a}}/*.csv,{tmp_path}"
    found = [path.removeprefix(f"{tmp_path}/") for path, _ in list_files(given)]
    assert found == ["b/1.csv", "b/2.csv", "c/1.csv", "c/2.csv", "a/1.csv", "a/2.csv"]


def test_new_folders_take_the_numbers_of_those_that_are_gone(tmp_path: Path) -> None:
    places = {name: f"{tmp_path / name}/" for name in "abc"}
    for place in places.values():
        Path(place).mkdir()
        Path(place, "x.csv").write_text("url,caption\n")

    def numbered(input: str, known: str) -> str:
        text = ",".join(places[name] for name in input)
        found = input_folders(text, [places[name] for name in known], list_files(text))
        return "".join(Path(place).name for place in found)

    cases = {("ab", ""): "ab", ("ba", "a"): "ab", ("c", "a"): "c", ("cb", "ab"): "cb", ("b", "ab"): "ab"}
    assert {case: numbered(*case) for case in cases} == cases


def test_metadata_and_messages_of_packages_have_no_folders() -> None:
    provenance: Any = {"models": {"scorer": {"name": "/home/jane/models/clip", "sha256": "1"}}}
    assert "jane" not in file_metadata(provenance)["hypergrit_provenance"]
    text = "OSError: no '/home/jane/a b.jpg' at https://h/x/1.jpg, 3/4"
    row = {"reason": "internal_error", "detail": text}
    found = remove_url_secrets(row, strip_query=False)["detail"]
    assert found == "OSError: no 'a b.jpg' at https://h/x/1.jpg, 3/4"
