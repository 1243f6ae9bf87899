"""Commands that make outputs from one with shards of pipeline.retry, or change it: the sums agree, no row is there twice."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipeline import decontaminate, dedupe, merge, refilter, reshard, takedown
from pipeline.summary.summary import compressed, decompressed
from pipeline.verify.output import Repeats, Sums, list_contents
from pipeline.verify.shard import Checker
from pipeline.write.store import Store
from tests.pipeline.derive.outputs import read_rows
from tests.pipeline.derive.rows import manifests_of, rows_of, stats_of
from tests.pipeline.download.server import TinyWeb
from tests.pipeline.jobs import hash_output
from tests.pipeline.retry.jobs import retry
from tests.pipeline.retry.test_command import FIRST, SECOND, indices, latest

LOCAL = ("ray.runner=local", "ray.cpu_workers=1", "report.trees=0")


def sums(output: Path) -> dict[str, Any]:
    rows: dict[str, Any] = stats_of(output)["rows"]
    assert rows["read"] == rows["kept"] + sum(n for reasons in rows["dropped"].values() for n in reasons.values())
    return rows


def test_refilter_keeps_the_attempts_and_can_be_retried(retried: Path, web: TinyWeb, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert refilter.main([f"source={retried}", f"output={new}", "formats=[arrow,grit]", *LOCAL]) == 0
    assert sums(new) == sums(retried)
    assert [m.get("retry") for m in manifests_of(new)] == [m.get("retry") for m in manifests_of(retried)]
    assert retry(new) == 0
    assert indices(new)[-1] == 30_000_002
    assert sums(new)["retried"] == 9


def test_dedupe_and_decontaminate_keep_the_attempts(retried: Path, tmp_path: Path) -> None:
    unique, clean = tmp_path / "unique", tmp_path / "clean"
    assert dedupe.main([f"source={retried}", f"output={unique}", "by=[bytes]", *LOCAL]) == 0
    rows = sums(unique)
    assert (rows["kept"], rows["dropped"]["write"]) == (5, {"same_bytes": 3})  # four times the same image
    (tmp_path / "urls.txt").write_text(str(latest(retried)["000000000003"]["url"]) + "\n")
    arguments = [f"source={retried}", f"output={clean}", f"against={tmp_path / 'urls.txt'}", *LOCAL]
    assert decontaminate.main(arguments) == 0
    assert sums(clean)["dropped"]["download"]["in_evaluation_set"] == 1
    assert sums(clean)["kept"] == 7
    assert retry(clean) == 2


def test_merge_shifts_the_attempts_with_their_shards(retried: Path, tmp_path: Path) -> None:
    other, both = tmp_path / "other", tmp_path / "both"
    assert refilter.main([f"source={retried}", f"output={other}", *LOCAL]) == 0
    assert merge.main([f"source={retried}", f"source={other}", f"output={both}", *LOCAL]) == 0
    assert indices(both) == [
        *range(6),
        FIRST,
        FIRST + 2,
        FIRST + 3,
        FIRST + 5,
        SECOND,
        SECOND + 2,
        SECOND + 3,
        SECOND + 5,
    ]
    assert [m["retry"]["shard"] for m in manifests_of(both)[6:10]] == [0, 2, 3, 5]
    rows = sums(both)
    assert (rows["read"], rows["kept"], rows["retried"]) == (24, 16, 16)
    assert {int(row["key"]) for row in rows_of(both)} == set(range(24))


@pytest.mark.parametrize("arguments", [("shuffle=false",), ("mix_shards=2", "seed=3")])
def test_reshard_takes_the_last_result_of_each_row(retried: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    new = tmp_path / "new"
    assert reshard.main([f"source={retried}", f"output={new}", "samples_per_shard=3", *arguments, *LOCAL]) == 0
    found = read_rows(new)  # fails if a key is there twice
    wanted = latest(retried)
    assert {key: row | {"image": None} for key, row in found.items()} == wanted
    assert sum(row["image"] is not None for row in found.values()) == 8
    assert {**sums(new), "retried": 8, "recovered": 3} == sums(retried)


def take_down(output: Path, tmp_path: Path, *entries: str) -> int:
    (tmp_path / "list.txt").write_text("\n".join(entries) + "\n")
    return takedown.main([str(output), f"list={tmp_path / 'list.txt'}", *LOCAL])


def test_takedown_removes_a_row_from_all_attempts(
    retried: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = latest(retried)
    entries = [str(rows["000000000003"]["url"]), "f" * 64]  # kept by the first attempt
    untouched = {name: digest for name, digest in hash_output(retried).items() if "00001." in name or "2." in name}
    assert take_down(retried, tmp_path, *entries) == 0
    assert "1 row in 1 of 3 shards taken down" in capsys.readouterr().out
    assert untouched.items() <= hash_output(retried).items()
    found = Counter((row["stage"], row["reason"]) for row in rows_of(retried) if row["key"] == "000000000003")
    assert found == {("read", "taken_down"): 2}
    assert sums(retried) == {
        "read": 12, "kept": 7, "dropped": {"read": {"taken_down": 1}, "download": {"duplicate": 1, "http_error": 3}},
        "unfinished": 0, "retried": 8, "recovered": 2,
    }  # fmt: skip


def test_takedown_by_the_hash_of_a_recovered_image(retried: Path, tmp_path: Path) -> None:
    digest = str(latest(retried)["000000000003"]["sha256"])
    same = {key for key, row in latest(retried).items() if row["sha256"] == digest}
    assert same == {f"{number:012d}" for number in (1, 3, 8, 9, 10)}  # 10 was dropped as a duplicate of 9
    assert take_down(retried, tmp_path, digest) == 0
    gone = [row for row in rows_of(retried) if row["key"] in same]
    assert {row["reason"] for row in gone} == {"taken_down"}
    assert not any(row["url"] or row["sha256"] for row in gone)
    rows = sums(retried)
    assert (rows["kept"], rows["dropped"]["download"]) == (4, {"http_error": 3, "taken_down": 5})


def test_an_interrupted_takedown_of_several_attempts_is_finished(
    retried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = str(latest(retried)["000000000003"]["sha256"])
    remove, n = takedown_module().remove_rows, 0

    def die_after_one(*arguments: Any) -> None:
        nonlocal n
        n += 1
        if n == 2:
            raise KeyboardInterrupt
        remove(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(takedown_module(), "remove_rows", die_after_one)
        assert take_down(retried, tmp_path, digest) == 130
    assert retry(retried) == 2  # until the takedown has finished
    assert take_down(retried, tmp_path, digest) == 0
    rows = sums(retried)
    assert (rows["kept"], rows["dropped"]["download"]) == (4, {"http_error": 3, "taken_down": 5})


def takedown_module() -> Any:
    from pipeline.derive import takedown as module

    return module


def test_the_summary_of_an_attempt_is_compared_with_the_rows_of_all_attempts(retried: Path) -> None:
    assert problems(retried) == []
    name = next(Path(retried, "_summaries").glob(f"{FIRST}*")).name
    path = retried / "_summaries" / name
    value = json.loads(decompressed(path.read_bytes()))
    value["rows"]["recovered"] += 1
    path.write_bytes(compressed(json.dumps(value).encode()))
    (found,) = problems(retried)
    assert found.startswith(f"_summaries/{name}: rows.recovered is ")


def problems(output: Path) -> list[str]:
    """The problems of the shards of an output and of its sums, as pipeline.verify finds them."""
    store = Store(str(output))
    contents, totals, repeats = list_contents(store), Sums(), Repeats()
    found = [str(problem) for problem in contents.problems]
    for index, plan in contents.plans.items():
        finding = Checker(str(output)).check(index, plan)
        totals.add(finding)
        repeats.add(finding)
        found += map(str, finding.problems)
    return found + [str(problem) for problem in (totals.problem(store), repeats.problem(store)) if problem]


def test_every_command_follows_an_attempt_with_other_settings_of_the_download(
    output: Path, web: TinyWeb, tmp_path: Path
) -> None:
    assert retry(output, "download.max_bytes=1000000", "reasons=[429]") == 0
    assert retry(output) == 0
    gone = str(latest(output)["000000000000"]["url"])
    assert take_down(output, tmp_path, gone, str(latest(output)["000000000003"]["url"])) == 0
    assert retry(output, "download.max_redirects=1") == 0
    wanted = sums(output)
    assert wanted["dropped"]["read"] == {"taken_down": 2}
    made = {name: tmp_path / name for name in ("strict", "again", "unique", "clean", "both", "shuffled")}
    (tmp_path / "urls.txt").write_text("http://example.org/1.jpg\n")
    source, second = f"source={output}", f"source={made['strict']}"
    assert (
        refilter.main([source, f"output={made['strict']}", "score.min_score=0.8", "formats=[grit,arrow]", *LOCAL]) == 0
    )
    assert refilter.main([second, f"output={made['again']}", "formats=[train,grit,arrow]", *LOCAL]) == 0
    assert dedupe.main([source, f"output={made['unique']}", "by=[url]", "formats=[grit,arrow]", *LOCAL]) == 0
    assert decontaminate.main([source, f"output={made['clean']}", f"against={tmp_path / 'urls.txt'}", *LOCAL]) == 0
    assert reshard.main([source, f"output={made['shuffled']}", "samples_per_shard=3", *LOCAL]) == 0
    assert (
        merge.main([source, second, f"output={made['both']}", "formats=[grit,arrow]", *LOCAL]) == 2
    )  # other thresholds
    assert (
        merge.main([source, f"source={made['clean']}", f"output={made['both']}", "formats=[grit,arrow]", *LOCAL]) == 0
    )
    for name, new in made.items():
        assert problems(new) == []
        times = 2 if name == "both" else 1
        found = sums(new)
        assert (found["read"], found["kept"]) == (12 * times, wanted["kept"] * times)
        if name != "shuffled":
            assert (found["retried"], found["recovered"]) == (wanted["retried"] * times, wanted["recovered"] * times)
    assert problems(output) == []
    hashes = [
        {m["provenance"]["config_hash"] for m in manifests_of(made[name])} for name in ("strict", "unique", "both")
    ]
    assert [len(found) for found in hashes] == [3, 3, 3]  # the job, and two attempts with settings of their own
    assert not hashes[0] & hashes[1]
