"""Reshard: the same rows in shards of equal numbers of samples, in an order that only the seed decides."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hypergrit_common.cli import NOTHING_KEPT
from pipeline.commands import rewrite
from pipeline.commands.rewrite import RewriteOptions
from pipeline.output import source as pick
from pipeline.output.ledger import read_manifests
from pipeline.output.manifest import manifest_hash
from pipeline.output.source import Source
from pipeline.output.store import Store
from tests.pipeline.commands.derive.outputs import (
    kept,
    lost,
    make_output,
    multiset,
    picture,
    plan_shards,
    random_shards,
    read_rows,
)
from tests.pipeline.jobs import hash_output

LOCAL = ("ray.runner=local", "ray.cpu_workers=1")


def run(source: Path, output: Path, *arguments: str) -> int:
    return rewrite.main([f"source={source}", f"output={output}", *LOCAL, *arguments])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with 29 rows in shards 0, 1, 3 and 4."""
    output = tmp_path_factory.mktemp("source") / "out"
    shards = random_shards(2, 5)
    del shards[2]
    make_output(output, shards)
    return output


def manifests(output: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((output / "_manifests").iterdir())]


def keys_of(output: Path, status: str = "kept") -> list[str]:
    return [key for key, row in read_rows(output).items() if row["status"] == status]


@pytest.mark.parametrize(
    "options", [["seed=1"], ["seed=2", "mix_shards=2"], ["mix_shards=null"], ["shuffle=false"]], ids=" ".join
)
def test_every_row_is_there_once_and_shards_have_equal_numbers_of_samples(
    source: Path, tmp_path: Path, options: list[str]
) -> None:
    assert run(source, tmp_path / "new", "samples_per_shard=5", *options) == 0
    assert multiset(tmp_path / "new") == multiset(source)
    old, new = keys_of(source), keys_of(tmp_path / "new")
    assert (new == old) == (options == ["shuffle=false"])
    found = manifests(tmp_path / "new")
    counts = [manifest["counts"]["kept"] for manifest in found]
    assert counts == [5] * (len(old) // 5) + [len(old) % 5] * (len(old) % 5 > 0)
    dropped = [manifest["counts"]["read"] - manifest["counts"]["kept"] for manifest in found]
    assert max(dropped) - min(dropped) <= 1
    plans = [manifest["plan"] for manifest in found]
    assert [plan["first_row"] + plan["n_rows"] for plan in plans[:-1]] == [plan["first_row"] for plan in plans[1:]]
    assert plans[-1]["first_row"] + plans[-1]["n_rows"] == 37  # one above the highest key of the source


@pytest.mark.parametrize("options", [["mix_shards=null"], ["mix_shards=2"], ["shuffle=false"]], ids=" ".join)
def test_a_manifest_names_the_shards_whose_rows_it_holds_and_no_others(
    source: Path, tmp_path: Path, options: list[str]
) -> None:
    assert run(source, tmp_path / "new", "samples_per_shard=2", *options) == 0
    hashes = {manifest["shard"]: manifest_hash(manifest) for manifest in read_manifests(Store(str(source)))}
    found = manifests(tmp_path / "new")
    for manifest in found:
        name = next(name for name in manifest["files"] if name.startswith("arrow/"))
        keys = pa.ipc.open_file(tmp_path / "new" / name).read_all()["key"].to_pylist()
        held = {int(key) // 8: hashes[int(key) // 8] for key in keys}
        assert len(manifest["origin"]["sources"]) == len(held)
        assert {item["shard"]: item["manifest"] for item in manifest["origin"]["sources"]} == held
    assert any(len(manifest["origin"]["sources"]) < len(hashes) for manifest in found)


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


def test_the_seed_decides_the_order(source: Path, tmp_path: Path) -> None:
    orders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(source, tmp_path / name, "samples_per_shard=7", f"seed={seed}") == 0
        orders.append(keys_of(tmp_path / name))
    assert hash_output(tmp_path / "a") == hash_output(tmp_path / "b")
    assert orders[0] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])


def test_samples_of_all_shards_are_mixed_and_every_order_can_occur(source: Path) -> None:
    from collections import Counter

    from pipeline.commands.rewrite_order import permutation

    orders = Counter(tuple(permutation(3, seed, 1)) for seed in range(600))
    assert len(orders) == 6
    assert min(orders.values()) > 60


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
    monkeypatch.setattr("pipeline.output.source.read_images", lambda *_: pytest.fail("a whole tar was read"))
    assert run(tmp_path / "a", tmp_path / "new", "samples_per_shard=2", "formats=[arrow,grit]") == 0
    assert sum(found) == (0 if settings else len(keys_of(tmp_path / "new")))


def test_an_output_without_index_or_with_a_damaged_one_is_read_too(source: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(source, tmp_path / "old")
    for path, content in zip(sorted((tmp_path / "old" / "_index").iterdir()), (b"", b"ARROW1", None), strict=False):
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
    assert run(tmp_path / "old", tmp_path / "new", "samples_per_shard=3") == 0
    assert multiset(tmp_path / "new") == multiset(source)


def test_a_stopped_run_is_completed_with_the_same_bytes_by_any_number_of_workers(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(source, tmp_path / "whole", "samples_per_shard=6", "ray.cpu_workers=2") == 0
    written: list[int] = []

    def stop(*arguments: Any, **options: Any) -> Any:
        written.append(1)
        if len(written) == 3:
            raise KeyboardInterrupt
        return write_shard(*arguments, **options)

    from pipeline.run import derived as output

    write_shard = output.write_shard
    with monkeypatch.context() as patch:
        patch.setattr(output, "write_shard", stop)
        assert run(source, tmp_path / "new", "samples_per_shard=6") == 130
    assert len(manifests(tmp_path / "new")) == 2
    assert run(source, tmp_path / "new", "samples_per_shard=6") == 0
    assert hash_output(tmp_path / "new") == hash_output(tmp_path / "whole")


@pytest.mark.parametrize("rows", [[lost(), lost()], [kept(picture(1))], [lost(), kept(picture(1))]], ids=len)
def test_few_rows_become_one_shard(tmp_path: Path, rows: Sequence[dict[str, Any]]) -> None:
    make_output(tmp_path / "a", {0: [], 1: rows})
    code = NOTHING_KEPT if len(rows) == 2 and rows[1] == lost() else 0
    assert run(tmp_path / "a", tmp_path / "new", "samples_per_shard=1000") == code
    assert multiset(tmp_path / "new") == multiset(tmp_path / "a")
    assert len(manifests(tmp_path / "new")) == 1


def test_a_source_that_changes_meanwhile_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_output(tmp_path / "a", {0: [kept(picture(1))]})
    manifest = tmp_path / "a" / "_manifests" / "00000.json"
    from pipeline.run import derived as output

    finished_shards = output.finished_shards

    def change(*arguments: Any) -> Any:
        manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"boxes": 7}))
        return finished_shards(*arguments)

    monkeypatch.setattr(output, "finished_shards", change)
    assert run(tmp_path / "a", tmp_path / "new", "samples_per_shard=2") == 2
    assert "has changed while it was read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=1"], "seed has no effect without samples_per_shard="),
        (["samples_per_shard=0"], "samples_per_shard"),
        (["samples_per_shard=-5"], "samples_per_shard"),
        (["samples_per_shard=many"], "samples_per_shard"),
        (["samples_per_shard=1.5"], "samples_per_shard"),
        (["samples_per_shard=5", "seed=-1"], "seed"),
        (["samples_per_shard=5", "seed=99999999999999999999"], "seed"),
        (["samples_per_shard=5", "mix_shards=0"], "mix_shards"),
        (["samples_per_shard=5", "output=elsewhere"], "output is given 2 times"),
        (["samples_per_shard=5", "rows_per_shard=5"], "rewrite cannot change rows_per_shard"),
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
