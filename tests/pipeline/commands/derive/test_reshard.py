"""Shards of another size: what their manifests name, what their order depends on, and what they read."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline.commands.rewrite import RewriteOptions
from pipeline.commands.rewrite_order import permutation
from pipeline.output import ledger as pick
from pipeline.output.source import Source
from pipeline.run import derived
from tests.pipeline.commands.derive.outputs import kept, make_output, picture, plan_shards, random_shards
from tests.pipeline.commands.derive.outputs import run_rewrite as run
from tests.pipeline.commands.derive.rows import rows_of
from tests.pipeline.jobs import hash_output


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with 29 rows in shards 0, 1, 3 and 4."""
    output = tmp_path_factory.mktemp("source") / "out"
    shards = random_shards(2, 5)
    del shards[2]
    make_output(output, shards)
    return output


@pytest.mark.parametrize("changed", ["a shard that is mixed with it", "nothing"])
def test_a_shard_is_made_again_if_another_one_changes_whose_rows_decide_its_own(source: Path, changed: str) -> None:
    found = Source(str(source))
    options = RewriteOptions(samples_per_shard=1, seed=3)
    plans = plan_shards(found, Path("/new"), options)
    if changed != "nothing":
        found.manifests[0]["counts"]["kept"] -= 1
    same = [
        old.origin == new.origin for old, new in zip(plans, plan_shards(found, Path("/new"), options), strict=False)
    ]
    assert same == [changed == "nothing"] * len(same)
    assert any(0 not in {source["shard"] for source in plan.origin["sources"]} for plan in plans)


def test_the_seed_decides_the_order_which_can_be_any(source: Path) -> None:
    orders = Counter(tuple(permutation(3, seed, 1)) for seed in range(600))
    assert len(orders) == 6
    assert min(orders.values()) > 60
    first, second = (
        [shard.origin["sources"] for shard in plan_shards(Source(str(source)), Path("/new"), options)]
        for options in (RewriteOptions(samples_per_shard=2, seed=1), RewriteOptions(samples_per_shard=2, seed=2))
    )
    assert first != second


@pytest.mark.parametrize("settings", [[], ["formats=[arrow]", "write.image_bytes=true"]], ids=["grit", "arrow"])
def test_single_images_are_read_by_their_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str]
) -> None:
    make_output(tmp_path / "a", random_shards(3, 3), *settings)
    found: list[int] = []
    places = pick.image_places

    def count(*arguments: Any) -> dict[str, tuple[int, int]]:
        found.append(len(result := places(*arguments)))
        return result

    monkeypatch.setattr(pick, "image_places", count)
    monkeypatch.setattr("pipeline.report.html.pick_pictures", lambda *_: [])  # of all rows
    monkeypatch.setattr(pick, "tar_images", lambda *_: pytest.fail("a whole tar was read"))
    assert run(tmp_path / "a", tmp_path / "new", "samples_per_shard=2", "formats=[arrow,grit]") == 0
    assert sum(found) == (0 if settings else sum(row["status"] == "kept" for row in rows_of(tmp_path / "new")))


def test_two_workers_write_the_bytes_of_one(source: Path, tmp_path: Path) -> None:
    assert run(source, tmp_path / "one", "samples_per_shard=6", "dedupe=[url]") == 0
    assert run(source, tmp_path / "two", "samples_per_shard=6", "dedupe=[url]", "ray.cpu_workers=2") == 0
    assert hash_output(tmp_path / "one") == hash_output(tmp_path / "two")


def test_a_source_that_changes_meanwhile_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(1))]})
    manifest, finished_shards = tmp_path / "a" / "_manifests" / "00000.json", derived.finished_shards

    def change(*arguments: Any) -> Any:
        manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"boxes": 7}))
        return finished_shards(*arguments)

    monkeypatch.setattr(derived, "finished_shards", change)
    assert run(tmp_path / "a", tmp_path / "new", "samples_per_shard=2") == 2
    assert "has changed while it was read" in capsys.readouterr().err
