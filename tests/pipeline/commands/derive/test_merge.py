"""Several sources: keys of concatenated inputs, differences that are named, and what their merge may not be used for."""

import json
from pathlib import Path

import pytest

from hypergrit_common.cli import NOTHING_KEPT
from pipeline import grit
from pipeline.commands import rewrite, takedown
from tests.pipeline.commands.derive.outputs import LOCAL, kept, make_output, picture, read_rows, scored
from tests.pipeline.commands.derive.rows import manifests_of
from tests.pipeline.jobs import hash_output, run_job


def run(output: Path, *arguments: str) -> int:
    return rewrite.main([f"output={output}", *arguments, *LOCAL])


def test_an_output_of_a_job_merged_alone_is_the_same(finished: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "new", f"source={finished}") == 0
    old, new = (hash_output(folder) for folder in (finished, tmp_path / "new"))
    assert {k: v for k, v in old.items() if "_man" not in k} == {k: v for k, v in new.items() if "_man" not in k}


@pytest.mark.parametrize(
    ("settings", "packages", "message"),
    [
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
    both = [f"source={tmp_path / 'a'}", f"source={tmp_path / 'b'}"]
    assert run(tmp_path / "new", *both) == 2
    assert f"the sources differ in {message}. Give mixed=true" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert run(tmp_path / "new", *both, "mixed=true") == 0
    merged = manifests_of(tmp_path / "new")
    old = [manifest for name in "ab" for manifest in manifests_of(tmp_path / name)]
    assert [manifest["provenance"] for manifest in merged] == [manifest["provenance"] for manifest in old]
    if settings:
        assert run(tmp_path / "again", f"source={tmp_path / 'new'}", both[0]) == 2
        assert "itself holds shards with 2 different settings" in capsys.readouterr().err
        assert run(tmp_path / "train", f"source={tmp_path / 'new'}", "formats=[train]") == 0
        hashes = {manifest["provenance"]["config_hash"] for manifest in merged + manifests_of(tmp_path / "train")}
        assert len(hashes) == 4


def test_other_private_hosts_are_no_difference(tmp_path: Path) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(1))]})
    make_output(tmp_path / "b", {0: [kept(picture(2))]}, "download.allowed_private_hosts=[localhost]")
    assert run(tmp_path / "new", f"source={tmp_path / 'a'}", f"source={tmp_path / 'b'}") == 0
    assert len({manifest["provenance"]["config_hash"] for manifest in manifests_of(tmp_path / "new")}) == 1


def test_formats_limits_and_thresholds_that_are_given_are_no_difference(tmp_path: Path) -> None:
    make_output(tmp_path / "a", {0: [scored(1, 0.9), scored(2, 0.6)]})
    make_output(tmp_path / "b", {0: [scored(3, 0.9)]}, "formats=[arrow,grit]", "limit=3", rows_per_shard=4)
    high = "score.min_score=0.8"
    assert run(tmp_path / "strict", f"source={tmp_path / 'a'}", high) == 0
    sources = [f"source={tmp_path / 'strict'}", f"source={tmp_path / 'b'}"]
    assert run(tmp_path / "new", *sources) == 2
    assert run(tmp_path / "new", *sources, high) == 0
    assert len({json.dumps(manifest["provenance"]) for manifest in manifests_of(tmp_path / "new")}) == 1


def test_a_row_that_was_taken_down_from_one_source_leaves_finished_shards_of_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        make_output(tmp_path / name, {0: [scored(1, 0.9), scored(2, 0.9, url=f"http://x/{name}")]})
    sources = [f"source={tmp_path / name}" for name in ("a", "b")]
    assert run(tmp_path / "out", *sources) == 0
    (tmp_path / "list.txt").write_text("http://x/1\n")
    assert takedown.main([str(tmp_path / "a"), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    capsys.readouterr()
    assert run(tmp_path / "out", *sources) == 2
    assert "1 finished shard that this command would discard (1 made before a shard of a" in capsys.readouterr().err
    assert run(tmp_path / "out", *sources, "overwrite=true") == 0
    rows = read_rows(tmp_path / "out").values()
    assert sorted(row["url"] or "" for row in rows) == ["", "", "http://x/a", "http://x/b"]
    assert run(tmp_path / "fresh", *sources) == 0
    assert hash_output(tmp_path / "out") == hash_output(tmp_path / "fresh")


@pytest.mark.parametrize(
    "options", [("dedupe=[url]",), ("samples_per_shard=2",), ("dedupe=[url]", "samples_per_shard=2")]
)
def test_shards_that_a_change_of_a_source_has_outdated_are_told_from_those_of_another_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    for n, name in enumerate("ab"):
        make_output(tmp_path / name, {0: [kept(picture(3 * n + i), url=f"http://x/{3 * n + i}") for i in range(3)]})
    arguments = [*(f"source={tmp_path / name}" for name in "ab"), *options]
    assert run(tmp_path / "out", *arguments) == 0
    n_shards = len(manifests_of(tmp_path / "out"))
    assert run(tmp_path / "out", arguments[1], "samples_per_shard=1") == 2
    assert "before a shard" not in capsys.readouterr().err
    (tmp_path / "list.txt").write_text("http://x/1\nhttp://x/4\n")
    for name in ("a", "b", "out"):
        assert takedown.main([str(tmp_path / name), f"list={tmp_path / 'list.txt'}", *LOCAL]) == 0
    capsys.readouterr()
    assert run(tmp_path / "out", *arguments) == 2
    assert f"would discard ({n_shards} made before a shard of a source changed, such as by" in capsys.readouterr().err
    assert run(tmp_path / "out", *arguments, "overwrite=true") == 0
    assert sorted(row["url"] or "" for row in read_rows(tmp_path / "out").values() if row["status"] == "kept") == [
        f"http://x/{n}" for n in (0, 2, 3, 5)
    ]


def test_a_job_does_not_resume_a_merged_output_without_asking(
    finished: Path, tars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record of an earlier command at the same place would let a job take the shards for its own."""
    make_output(tmp_path / "b", {0: [kept(picture(1))]})
    assert run(tmp_path / "new", f"source={finished}", "score.min_score=0.9") == NOTHING_KEPT
    assert (tmp_path / "new/_job.json").exists()
    both = (f"source={finished}", f"source={tmp_path / 'b'}", "mixed=true")
    assert run(tmp_path / "new", *both, "overwrite=true") == 0
    assert not (tmp_path / "new/_job.json").exists()
    assert run_job(tars, tmp_path / "new", "score.min_score=0.5") == grit.INCOMPLETE - 1
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
    assert run(tmp_path / "c", f"source={new}", f"against={tmp_path / 'list'}") == 0
    assert [row["status"] for row in read_rows(tmp_path / "c").values()] == ["kept", "dropped", "kept"]
    assert takedown.main([str(new), f"list={tmp_path / 'list'}", *LOCAL]) == 0
    assert [row["reason"] for row in read_rows(new).values()] == [None, "taken_down", None]
