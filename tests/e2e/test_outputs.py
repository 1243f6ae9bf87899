"""Guarantees of the commands, checked through the command line on the outputs of one job.

All checks that share outputs are in this file, so that `pytest -n 2 --dist loadgroup` makes each output once.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset as wds

from pipeline.explore.marks import MarkFile
from tests.e2e.commands import Done, kill_when, run, succeed
from tests.e2e.hashes import content_hashes, file_hashes
from tests.e2e.outputs import (
    HIGHER_SCORE,
    LOCAL,
    Outputs,
    arrow_rows,
    counts,
    drops,
    evaluation_rows,
    kept_rows,
    members,
    read_arrow,
    stored_images,
    takedown_list,
    taken_down_rows,
    train_keys,
)
from tests.e2e.recorded import RECORDED, environment, read_recorded
from tests.e2e.world import OUTAGES, input_rows
from tests.pipeline.output.formats import differences

VERIFIED = ("job", "merge", "dedupe", "reshard", "decontaminate", "takedown", "takedown_of_train_alone", "retry")
OTHER_RUNTIME = ("download.concurrency=3", "download.deadline_s=239", "download.retries=2")


def times(output: Path) -> dict[str, int]:
    """Return the times of modification of the files of shards."""
    return {name: (output / name).stat().st_mtime_ns for name in file_hashes(output)}


def keys(rows: list[dict[str, Any]]) -> list[str]:
    return [row["key"] for row in rows]


def test_each_input_row_is_in_the_ledger_once_and_in_its_order(outputs: Outputs) -> None:
    rows = arrow_rows(outputs.make("job"))
    assert [row["id"] for row in rows] == [row.id for row in input_rows()]
    assert keys(rows) == [f"{i:012d}" for i in range(len(rows))]


def test_rows_read_are_rows_kept_plus_rows_dropped_for_a_named_reason(outputs: Outputs) -> None:
    output = outputs.make("job")
    found, rows = counts(output), arrow_rows(output)
    assert found["read"] == len(input_rows()) == found["kept"] + sum(drops(output).values())
    assert found["kept"] == len(kept_rows(output)) > 20
    assert drops(output) == Counter(f"{row['stage']}:{row['reason']}" for row in rows if row["status"] != "kept")


def test_rows_that_fail_in_different_ways_have_different_reasons(outputs: Outputs) -> None:
    ends = {row["id"]: f"{row['stage']}:{row['reason']}" for row in arrow_rows(outputs.make("job"))}
    assert ends["bad-no-url"] == "read:missing_url"
    assert ends["bad-not-found"] == ends["scene-0060"] == "download:http_error"
    assert ends["bad-truncated"] == "download:undecodable"
    assert ends["bad-noai"] == "download:opted_out"
    assert ends["bad-caption-empty"] == "captions:empty_caption"
    assert ends["bad-caption-no-noun"] == "parse:no_phrase"
    assert ends["bad-no-box"] == "score:low_clip_score"


def test_private_addresses_are_refused_also_behind_a_redirect(outputs: Outputs) -> None:
    ends = {row["id"]: row["reason"] for row in arrow_rows(outputs.make("job"))}
    for name in ("private-network", "cloud-metadata", "redirect-inside", "redirect-metadata"):
        assert ends[f"bad-{name}"] == "private_address"


def test_the_kept_rows_alone_are_training_samples(outputs: Outputs) -> None:
    output = outputs.make("job")
    assert train_keys(output) == keys(kept_rows(output)) == list(stored_images(output))


def test_the_same_command_again_fetches_and_changes_nothing(outputs: Outputs) -> None:
    output = outputs.make("job")
    before, n_requests = (file_hashes(output), times(output)), outputs.web.n_requests
    succeed("job", *outputs.job(output))
    assert (file_hashes(output), times(output)) == before
    assert outputs.web.n_requests == n_requests


class Resumed(NamedTuple):
    """A job that was killed, of which a byte was damaged, and that was finished with other settings of the runtime."""

    output: Path
    exit_code: int
    finished: list[str]
    found: Done
    requeued: Done
    left: list[str]


@pytest.fixture(scope="module")
def resumed(outputs: Outputs) -> Resumed:
    output = outputs.folder / "resumed"
    manifests = output / "_manifests"
    code = kill_when((manifests / "00002.json").exists, "job", *outputs.job(output))
    finished = sorted(path.name for path in manifests.glob("*.json"))
    damage(output / "train" / "00000.tar")
    found = run("verify", output, "processes=1")
    requeued = run("verify", output, "processes=1", "requeue=true")
    left = sorted(path.name for path in manifests.glob("*.json"))
    succeed("job", *outputs.job(output, *OTHER_RUNTIME))
    return Resumed(output, code, finished, found, requeued, left)


def damage(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.rest
def test_a_job_that_was_killed_and_resumed_with_other_runtime_settings_gives_the_same_bytes(
    outputs: Outputs, resumed: Resumed
) -> None:
    assert resumed.exit_code == -9
    assert "00002.json" in resumed.finished
    assert "00004.json" not in resumed.finished
    assert file_hashes(resumed.output) == file_hashes(outputs.make("job"))
    assert counts(resumed.output) == counts(outputs.make("job"))


def test_verify_finds_a_damaged_bit_and_puts_its_shard_back_in_the_queue(resumed: Resumed) -> None:
    assert resumed.found.returncode == resumed.requeued.returncode == 1
    assert "train/00000.tar" in resumed.found.stdout + resumed.found.stderr
    assert resumed.left == [name for name in resumed.finished if name != "00000.json"]


@pytest.mark.parametrize("name", VERIFIED)
def test_verify_finds_every_output_intact_and_its_formats_agree(outputs: Outputs, name: str) -> None:
    done = succeed("verify", outputs.make(name), "processes=1")
    assert str(counts(outputs.make(name))["kept"]) in done.stdout
    assert differences(outputs.make(name)) == []


@pytest.mark.parametrize("name", RECORDED)
def test_outputs_have_the_recorded_content(outputs: Outputs, name: str) -> None:
    """After an intended change of the content: `python -m tests.e2e.record`."""
    record = read_recorded()
    if record["made_with"] != environment():
        pytest.skip("the hashes were recorded with other packages or on another processor")
    assert content_hashes(outputs.make(name)) == record["outputs"][name]


def test_a_higher_threshold_keeps_the_rows_with_a_box_above_it(outputs: Outputs) -> None:
    output, rows = outputs.make("refilter"), kept_rows(outputs.make("job"))
    expected = [row for row in rows if max_score(row) >= HIGHER_SCORE]
    assert 0 < len(expected) < len(rows)
    assert keys(kept_rows(output)) == train_keys(output) == keys(expected)
    n_more = sum(drops(output).values()) - sum(drops(outputs.make("job")).values())
    assert n_more == len(rows) - len(expected) <= drops(output)["score:low_score"]


def max_score(row: dict[str, Any]) -> float:
    """Return the best score of the kept boxes of a row."""
    pairs = zip(row["boxes"], row["box_scores"], strict=True)
    return max(box["score"] for box, score in pairs if score["removed"] is None)


def test_two_processes_give_the_bytes_of_one(outputs: Outputs, tmp_path: Path) -> None:
    settings = (f"score.min_score={HIGHER_SCORE}", "ray.runner=local", "ray.cpu_workers=2")
    succeed("rewrite", f"source={outputs.make('job')}", f"output={tmp_path / 'two'}", *settings)
    assert file_hashes(tmp_path / "two") == file_hashes(outputs.make("refilter"))


def test_refilter_with_other_formats_writes_the_files_of_the_job(outputs: Outputs) -> None:
    """But for the hash of the settings, of which the formats are a part."""
    job, train_alone = (content_hashes(outputs.make(name)) for name in ("job", "train_alone"))
    assert {name for name in train_alone if name.startswith(("grit/", "arrow/"))} == set()
    for name in (name for name in job if name.startswith("train/")):
        assert train_alone[name] == job[name]


def test_merge_appends_the_second_source_with_shifted_keys(outputs: Outputs) -> None:
    rows, merged = arrow_rows(outputs.make("job")), arrow_rows(outputs.make("merge"))
    first = [{**row, "detail": None, "source": f"0/{row['source']}"} for row in rows]
    second = [
        {**row, "key": f"{int(row['key']) + len(rows):012d}", "source": f"1/{row['source'][2:]}"} for row in first
    ]
    assert [{**row, "detail": None} for row in merged] == first + second


def test_dedupe_keeps_the_first_row_of_each_url(outputs: Outputs) -> None:
    seen = dict[str, str]()
    for row in kept_rows(outputs.make("merge")):
        seen.setdefault(row["url"], row["key"])
    output = outputs.make("dedupe")
    assert keys(kept_rows(output)) == train_keys(output) == list(seen.values())
    assert drops(output)["write:same_url"] == counts(outputs.make("merge"))["kept"] - len(seen)


@pytest.mark.parametrize(("name", "is_shuffled"), [("reshard", True), ("reshard_in_order", False)])
def test_reshard_divides_the_same_samples_into_shards_of_equal_size(
    outputs: Outputs, name: str, is_shuffled: bool
) -> None:
    job, output = outputs.make("job"), outputs.make(name)
    assert sorted(train_keys(output)) == train_keys(job)
    assert (train_keys(output) != train_keys(job)) == is_shuffled
    sizes = [sum(member.endswith(".child.jpg") for member, _ in members(path)) for path in tars(output)]
    assert sizes == [10, 10, 10, len(train_keys(job)) - 30]
    by_key = {row["key"]: row for row in arrow_rows(output)}
    assert [by_key[row["key"]] for row in arrow_rows(job)] == arrow_rows(job)
    assert dict(sorted(stored_images(output).items())) == stored_images(job)


def tars(output: Path) -> list[Path]:
    """Return the tars of train/."""
    return sorted((output / "train").glob("*.tar"))


def test_decontaminate_drops_the_rows_of_the_evaluation_set_by_url_and_by_picture(outputs: Outputs) -> None:
    output = outputs.make("decontaminate")
    gone = keys(list(evaluation_rows(outputs)))
    expected = [key for key in keys(kept_rows(outputs.make("job"))) if key not in gone]
    assert keys(kept_rows(output)) == train_keys(output) == expected
    reasons = {row["key"]: row["reason"] for row in arrow_rows(output)}
    assert {reasons[key] for key in gone} == {"in_evaluation_set"}


@pytest.mark.parametrize("name", ["takedown", "takedown_of_train_alone"])
def test_a_row_that_was_taken_down_is_in_no_file(outputs: Outputs, name: str) -> None:
    source, output = outputs.make("job"), outputs.make(name)
    gone, pictures = taken_down_rows(outputs), stored_images(source)
    contents = {path.name: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    for row in gone:
        secrets = (row["url"].encode(), row["sha256"].encode(), row["caption"].encode(), pictures[row["key"]])
        assert row["key"] not in train_keys(output)
        assert not [file for file, data in contents.items() for secret in secrets if secret in data]
    assert len(train_keys(output)) == len(train_keys(source)) - len(gone) == counts(output)["kept"]
    assert sum(n for reason, n in drops(output).items() if reason.endswith(":taken_down")) == len(gone)


def test_rows_that_were_taken_down_keep_their_place_alone_in_the_ledger_and_the_tables(outputs: Outputs) -> None:
    """These files are compressed, so the check above does not see their texts."""
    output, gone = outputs.make("takedown"), taken_down_rows(outputs)
    ledger = {row["key"]: row for row in arrow_rows(output)}
    paths = sorted((output / "grit").glob("*.parquet"))
    table = {row["key"]: row for path in paths for row in pq.read_table(path).to_pylist()}
    for row in gone:
        assert ledger[row["key"]]["reason"] == "taken_down"
        assert ledger[row["key"]]["source_row"] == row["source_row"]
        for found in (ledger[row["key"]], table[row["key"]]):
            text = repr(found)
            assert not [secret for secret in (row["url"], row["sha256"], row["caption"], row["id"]) if secret in text]
    for path in (output / "_summaries").glob("*.zst"):
        summary = pa.input_stream(path, compression="zstd").read()
        assert not [row["key"] for row in gone if row["url"].encode() in summary or row["sha256"].encode() in summary]


def test_other_rows_and_shards_are_as_before_the_takedown(outputs: Outputs) -> None:
    source, output = outputs.make("job"), outputs.make("takedown")
    gone = keys(list(taken_down_rows(outputs)))
    others = [row for row in arrow_rows(source) if row["key"] not in gone]
    assert [row for row in arrow_rows(output) if row["key"] not in gone] == others
    touched = {int(key) // 16 for key in gone}
    after = file_hashes(output)
    for name, value in file_hashes(source).items():
        if int(Path(name).name.partition(".")[0]) not in touched:
            assert after[name] == value


def test_a_dry_run_of_a_takedown_names_the_rows_and_changes_nothing(outputs: Outputs) -> None:
    output = outputs.make("job")
    before = file_hashes(output)
    done = succeed("takedown", output, f"list={takedown_list(outputs)}", "dry_run=true", *LOCAL[:2])
    assert all(key in done.stdout for key in keys(list(taken_down_rows(outputs))))
    assert file_hashes(output) == before


def test_a_retried_output_is_that_of_a_job_in_which_the_rows_succeeded_at_once(outputs: Outputs) -> None:
    source, output, fresh = outputs.make("job"), outputs.make("retry"), outputs.folder / "fresh"
    outputs.web.is_down = False
    try:
        succeed("job", *outputs.job(fresh))
    finally:
        outputs.web.is_down = True
    after = file_hashes(output)
    assert after == file_hashes(fresh)
    manifests = [sorted((folder / "_manifests").iterdir()) for folder in (output, fresh)]
    assert [path.read_bytes() for path in manifests[0]] == [path.read_bytes() for path in manifests[1]]
    ids = {row["key"]: row["id"] for row in arrow_rows(source)}
    new = [ids[key] for key in train_keys(output) if key not in train_keys(source)]
    assert new == [row.id for row in input_rows() if "/outage/" in (row.url or "")]
    touched = {place // 16 for place in OUTAGES}
    for name, value in file_hashes(source).items():
        if int(Path(name).name.partition(".")[0]) not in touched:
            assert after[name] == value


def test_a_retry_fetches_no_kept_row_again(outputs: Outputs, tmp_path: Path) -> None:
    output, web = outputs.copy("job", tmp_path / "out"), outputs.web
    dropped = [row for row in arrow_rows(output) if row["stage"] in ("ground", "score")]
    shown = sum(read_arrow(path).num_rows for path in (output / "_dropped").iterdir())
    before, web.is_down = web.n_requests, False
    try:
        succeed("retry", *outputs.job(output))
    finally:
        web.is_down = True
    assert len(OUTAGES) <= web.n_requests - before <= len(OUTAGES) + len(dropped) + shown


def test_the_sums_count_each_row_once_after_a_retry(outputs: Outputs) -> None:
    before, after = counts(outputs.make("job")), counts(outputs.make("retry"))
    assert after["read"] == before["read"] == after["kept"] + sum(drops(outputs.make("retry")).values())
    assert after["kept"] == before["kept"] + len(OUTAGES)


def test_a_job_leaves_the_rows_of_a_retry_alone(outputs: Outputs) -> None:
    output = outputs.folder / "retry"
    before = file_hashes(outputs.make("retry"))
    succeed("job", *outputs.job(output))
    assert file_hashes(output) == before


def test_another_configuration_is_refused_and_changes_nothing(outputs: Outputs) -> None:
    output = outputs.make("job")
    before = file_hashes(output)
    done = run("job", *outputs.job(output, "score.min_side_px=48"))
    assert done.returncode == 2
    assert "score.min_side_px" in done.stderr
    assert "overwrite=true" in done.stderr
    assert file_hashes(output) == before


def test_an_output_inside_of_its_source_is_refused(outputs: Outputs) -> None:
    output = outputs.make("job")
    done = run("rewrite", f"source={output}", f"output={output / 'inside'}", *LOCAL)
    assert done.returncode == 2
    assert not (output / "inside").exists()


def test_a_dry_run_predicts_the_rows_and_writes_nothing(outputs: Outputs) -> None:
    output = outputs.folder / "planned"
    done = succeed("job", *outputs.job(output, "dry_run=12", "quiet=false"))
    assert not output.exists()
    text = done.stdout.lower()
    assert all(word in text for word in ("kept", "bytes", "cpu time", str(len(input_rows()))))


def test_the_report_shows_the_counts_and_the_reasons_and_can_be_written_again(outputs: Outputs, tmp_path: Path) -> None:
    output = outputs.copy("job", tmp_path / "copy")
    page = (output / "report.html").read_text("utf-8")
    assert all(str(number) in page for number in (counts(output)["read"], counts(output)["kept"]))
    assert all(name.partition(":")[2] in page for name in drops(output))
    before = counts(output)
    for name in ("report.html", "stats.json"):
        (output / name).unlink()
    succeed("explore", output, "report=true")
    assert counts(output) == before
    assert "private_address" in (output / "report.html").read_text("utf-8")


def test_the_explorer_writes_a_page_for_a_file_server(outputs: Outputs, tmp_path: Path) -> None:
    page = tmp_path / "page"
    succeed("explore", outputs.make("job"), f"static={page}", f"cache={tmp_path / 'cache'}", "images=5")
    assert "<script" in (page / "index.html").read_text("utf-8")
    pictures = [path for path in page.rglob("*") if path.is_file() and path.read_bytes()[:3] == b"\xff\xd8\xff"]
    assert len(pictures) == 5


def test_people_can_judge_boxes_and_get_their_precision(outputs: Outputs, tmp_path: Path) -> None:
    output, marks = outputs.make("job"), MarkFile(tmp_path / "explore.csv")
    boxes = [(row, box) for row in kept_rows(output) for box, score in enumerate(row["box_scores"])
             if score["removed"] is None]  # fmt: skip
    for i, (row, box) in enumerate(boxes[:8]):
        marks.set(row, box, "right" if i < 6 else "wrong")
    assert "0.75" in succeed("quality", output, f"marks={marks.path}", f"plot={tmp_path / 'curve.png'}").stdout


def test_webdataset_reads_the_training_samples(outputs: Outputs) -> None:
    output = outputs.make("job")
    urls = [str(path) for path in tars(output)]
    samples = list(wds.WebDataset(urls, shardshuffle=False))
    assert [sample["__key__"] for sample in samples] == keys(kept_rows(output))
    for sample, row in zip(samples, kept_rows(output), strict=True):
        assert sample["child.txt"].decode() == row["caption"]
        assert int(sample["numparents.txt"]) == sum(name.startswith("parent") for name in sample) / 2
        assert json.loads(sample["json"])["key"] == row["key"]


def test_the_table_of_grit_has_all_rows_with_their_status(outputs: Outputs) -> None:
    output = outputs.make("job")
    rows = [row for path in sorted((output / "grit").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert keys(rows) == keys(arrow_rows(output))
    assert [row["key"] for row in rows if row["status"] == "success"] == keys(kept_rows(output))


def test_the_index_has_the_place_of_every_member(outputs: Outputs) -> None:
    output = outputs.make("job")
    for path in sorted((output / "_index").glob("*.arrow")):
        samples = read_arrow(path).to_pylist()
        for name in ("train", "grit"):
            tar = output / name / f"{path.stem}.tar"
            data = tar.read_bytes()
            found = {
                f"{sample['key']}.{member['name']}": data[member["offset"] : member["offset"] + member["size"]]
                for sample in samples
                if sample["format"] == name
                for member in sample["members"]
            }
            assert found == dict(members(tar))
