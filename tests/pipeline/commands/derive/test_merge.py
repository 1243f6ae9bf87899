"""Merge: every row of every source once, with unique keys, and refusals that name each difference."""

import json
from pathlib import Path

import pytest

from hypergrit_common.cli import NOTHING_KEPT
from pipeline import grit
from pipeline.commands import rewrite, takedown
from schemas.status import KEY_REASONS
from tests.pipeline.commands.derive.outputs import (
    Row,
    kept,
    lost,
    make_output,
    multiset,
    picture,
    random_shards,
    read_rows,
)
from tests.pipeline.commands.derive.rows import manifests_of
from tests.pipeline.jobs import hash_output, run_job

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")


def run(output: Path, *arguments: str) -> int:
    return rewrite.main([f"output={output}", *arguments, *LOCAL])


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Two outputs; the first lacks its second shard, the second has rows that are duplicates of others."""
    first, second = tmp_path / "a", tmp_path / "b"
    shards = random_shards(1, 3)
    del shards[1]
    make_output(first, shards)
    rows: list[Row] = [kept(picture(5)), lost(reason="duplicate", detail="000000000000"), lost(detail="000000000000")]
    make_output(second, {0: rows, 1: [kept(picture(6))]})
    return [first, second]


def test_keys_are_those_of_concatenated_inputs(sources: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "new"
    before = [hash_output(source) for source in sources]
    assert run(output, *(f"source={source}" for source in sources)) == 0
    assert [hash_output(source) for source in sources] == before
    old, new = [read_rows(source) for source in sources], read_rows(output)
    offset = 21  # the first source ends with row 20, whether or not its second shard was finished
    assert list(new) == [*old[0], *(f"{int(key) + offset:012d}" for key in old[1])]
    for key, row in old[1].items():
        merged = new[f"{int(key) + offset:012d}"]
        assert {**merged, "key": row["key"], "detail": row["detail"]} == row
        assert merged["detail"] == ("000000000021" if row["reason"] in KEY_REASONS else row["detail"])
    assert multiset(output, ["key", "detail"]) == sum((multiset(s, ["key", "detail"]) for s in sources[1:]),
                                                      multiset(sources[0], ["key", "detail"]))  # fmt: skip
    manifests = [json.loads(path.read_bytes()) for path in sorted((output / "_manifests").iterdir())]
    assert [manifest["shard"] for manifest in manifests] == [0, 1, 2, 3]
    assert [manifest["plan"]["first_row"] for manifest in manifests] == [0, 16, 21, 29]
    assert manifests[3]["origin"]["sources"][0]["output"] == str(sources[1])
    assert manifests[3]["origin"]["settings"] == {"key_offset": offset}
    assert json.loads((output / "stats.json").read_bytes())["rows"]["read"] == len(new)


def test_an_output_of_a_job_merged_alone_is_the_same(finished: Path, tmp_path: Path) -> None:
    output = tmp_path / "new"
    assert run(output, f"source={finished}") == 0
    hashes = {name: value for name, value in hash_output(finished).items() if not name.startswith("_manifests")}
    assert hashes == {name: value for name, value in hash_output(output).items() if not name.startswith("_manifests")}


def test_a_merged_output_can_be_refiltered_and_merged(finished: Path, sources: list[Path], tmp_path: Path) -> None:
    assert run(tmp_path / "two", *(f"source={source}" for source in sources)) == 0
    assert rewrite.main(
        [f"source={tmp_path / 'two'}", f"output={tmp_path / 'strict'}", "score.min_score=0.95", *LOCAL]
    ) == NOTHING_KEPT  # fmt: skip
    assert run(tmp_path / "four", f"source={tmp_path / 'two'}", f"source={sources[1]}") == 0
    assert len(read_rows(tmp_path / "four")) == len(read_rows(tmp_path / "two")) + 4


def test_a_second_run_makes_only_what_is_missing(
    sources: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = [f"source={source}" for source in sources]
    assert run(tmp_path / "new", *arguments) == 0
    before = hash_output(tmp_path / "new")
    (tmp_path / "new" / "_manifests" / "00002.json").unlink()
    with caplog.at_level("INFO", "hypergrit"):
        assert run(tmp_path / "new", *arguments) == 0
    assert "4 shards, 3 finished before" in caplog.text
    assert hash_output(tmp_path / "new") == before
    assert run(tmp_path / "new", *reversed(arguments)) == 2


@pytest.mark.parametrize(
    ("settings", "packages", "message"),
    [
        (["download.max_bytes=77"], {}, "download.max_bytes: 32000000, 77"),
        (["ground.floor=0.2", "score.min_score=0.7"], {}, "ground.floor: 0.1, 0.2; score.min_score: null, 0.7"),
        ([], {"torch": "9.9"}, 'packages.torch: "2.0", "9.9"'),
        ([], {"spacy": "3"}, 'packages.spacy: null, "3"'),
    ],
)
def test_each_difference_is_named_and_allowed_by_an_option(
    tmp_path: Path, settings: list[str], packages: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(1))]})
    make_output(tmp_path / "b", {0: [kept(picture(2))]}, *settings, **packages)
    make_output(tmp_path / "c", {0: [kept(picture(2))]}, "formats=[arrow,grit]", "limit=3", rows_per_shard=4)
    both = [f"source={tmp_path / 'a'}", f"source={tmp_path / 'b'}"]
    assert run(tmp_path / "new", *both) == 2
    error = capsys.readouterr().err
    assert f"the sources differ in {message}. Give mixed=true" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert run(tmp_path / "new", *both, "mixed=true") == 0
    merged = [json.loads((tmp_path / "new" / "_manifests" / f"0000{i}.json").read_bytes()) for i in range(2)]
    old = [json.loads((tmp_path / name / "_manifests" / "00000.json").read_bytes()) for name in "ab"]
    assert [manifest["provenance"] for manifest in merged] == [manifest["provenance"] for manifest in old]
    assert run(tmp_path / "more", f"source={tmp_path / 'a'}", f"source={tmp_path / 'c'}") == 0
    if settings:
        capsys.readouterr()
        assert run(tmp_path / "again", f"source={tmp_path / 'new'}", f"source={tmp_path / 'a'}") == 2
        assert "itself holds shards with 2 different settings" in capsys.readouterr().err
        assert run(tmp_path / "train", f"source={tmp_path / 'new'}", "formats=[train]") == 0
        hashes = {manifest["provenance"]["config_hash"] for manifest in merged + manifests_of(tmp_path / "train")}
        assert len(hashes) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["output=/tmp/x"], "source is not set"),
        (["source=", "output=/tmp/x"], "source is not set"),
        (["source={a}"], "output is not set"),
        (["source={a}", "source={a}/", "output=/tmp/x"], "given twice"),
        (["source={a}", "source=file://{a}", "output=/tmp/x"], "given twice"),
        (["source={a}", "output={a}"], "is the source"),
        (["source={a}", "output=/tmp/x", "output=/tmp/y"], "output is given 2 times"),
        (["source={a}/nothing", "output=/tmp/x"], "does not exist"),
        (["source=s3://me:secret@bucket/a", "output=/tmp/x"], "contains a user name or a password"),
        (["source={a}", "output=/tmp/x", "mixed=perhaps"], "mixed"),
        (["source={a}", "output=/tmp/x", "mixd=true"], "mixd"),
        (["source={a}", "output=/tmp/x", "ground.floor=0.5"], "rewrite cannot change ground.floor"),
        (["source={a}", "output=/tmp/x", "jobs/demo.yaml"], "'jobs/demo.yaml' is not key=value"),
        (["source={a}", "output=/tmp/x", "write.formats=[coco]"], "formats is ['coco']"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(1))]})
    output = tmp_path / "x"
    filled = [item.format(a=tmp_path / "a").replace("/tmp/x", str(output)) for item in arguments]
    assert rewrite.main([*filled, *LOCAL]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert "secret" not in error
    assert not output.exists()


def test_a_row_that_was_taken_down_from_one_source_leaves_finished_shards_of_the_others(tmp_path: Path) -> None:
    names, path, output = ("a", "b"), tmp_path / "list.txt", tmp_path / "out"
    for name in names:
        make_output(
            tmp_path / name, {0: [kept(picture(1), url="http://x/1"), kept(picture(2), url=f"http://x/{name}")]}
        )
    sources = [f"source={tmp_path / name}" for name in names]
    assert run(output, *sources) == 0
    path.write_text("http://x/1\n")
    assert takedown.main([str(tmp_path / "a"), f"list={path}", *LOCAL]) == 0
    assert run(output, *sources, "overwrite=true") == 0
    assert sorted(row["url"] or "" for row in read_rows(output).values()) == ["", "", "http://x/a", "http://x/b"]
    assert run(tmp_path / "fresh", *sources) == 0
    assert hash_output(output) == hash_output(tmp_path / "fresh")


def test_a_job_does_not_resume_a_merged_output_without_asking(
    finished: Path, sources: list[Path], tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record of an earlier command at the same place would let a job take the shards for its own."""
    output = tmp_path / "new"
    arguments = ["score.min_score=0.9", *LOCAL]
    assert rewrite.main([f"source={finished}", f"output={output}", *arguments]) == NOTHING_KEPT
    assert (output / "_job.json").exists()
    both = (f"source={finished}", f"source={sources[1]}", "mixed=true")
    assert run(output, *both, "overwrite=true") == 0
    assert not (output / "_job.json").exists()
    assert run_job(tars, output, "score.min_score=0.5") == grit.FAILED_SHARDS - 1
    assert "overwrite=true" in capsys.readouterr().err


def test_urls_without_queries_are_found_in_a_merged_output(tmp_path: Path) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(1), url="http://x/a?id=1")]})
    rows = [kept(picture(n), url=f"http://x/{n}?id=2") for n in (2, 3)]
    make_output(tmp_path / "b", {0: rows}, "write.strip_url_queries=true")
    new = tmp_path / "new"
    assert run(new, *(f"source={tmp_path / name}" for name in "ab")) == 0
    assert [row["url"] for row in read_rows(new).values()] == ["http://x/a", "http://x/2", "http://x/3"]
    assert "strip_url_queries: true" in (new / "config.yaml").read_text()
    (tmp_path / "list").write_text("http://x/2?id=2\n")
    assert rewrite.main([f"source={new}", f"output={tmp_path / 'c'}", f"against={tmp_path / 'list'}", *LOCAL]) == 0
    assert [row["status"] for row in read_rows(tmp_path / "c").values()] == ["kept", "dropped", "kept"]
    assert takedown.main([str(new), f"list={tmp_path / 'list'}", *LOCAL]) == 0
    assert [row["reason"] for row in read_rows(new).values()] == [None, "taken_down", None]
